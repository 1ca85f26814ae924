"""RMSNorm, in CuTe DSL. It imports the DSL.

    out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight

in f32, rounded once to the output's element type. A block of threads holds a whole row in registers, so that
it is read once.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.vectors import VECTOR, in_vectors, load_floats, store

WARP = 32
MAX_THREADS = 512


def threads_of(n: int) -> int:
    """Threads of a block for rows of ``n`` elements: a warp more for every 32 vectors, as far as it goes."""
    return min(MAX_THREADS, (n // VECTOR + WARP - 1) // WARP * WARP)


@cute.kernel  # type: ignore[untyped-decorator]
def rms_norm_kernel(
    x: cute.Tensor,
    weight: cute.Tensor,
    out: cute.Tensor,
    eps: cutlass.Float32,
    n: cutlass.Constexpr,
    threads: cutlass.Constexpr,
) -> None:
    """Normalise one row.

    Args:
        x: (T, n).
        weight: (1, n).
        out: (T, n).
        eps: added to the mean square.
        n: elements of a row.
        threads: of this block.
    """
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    inputs = in_vectors(x)
    weights = in_vectors(weight)
    outputs = in_vectors(out)
    warps = threads // WARP
    steps = (n // VECTOR - 1) // threads + 1
    partial = cute.make_tensor(cute.arch.alloc_smem(cutlass.Float32, warps), cute.make_layout(warps))

    held = cute.make_rmem_tensor(((1, VECTOR), steps), cutlass.Float32)
    gain = cute.make_rmem_tensor(((1, VECTOR), steps), cutlass.Float32)
    held.fill(0.0)
    for step in cutlass.range_constexpr(steps):
        vector = step * threads + thread
        if vector < n // VECTOR:
            held[None, step].store(load_floats(inputs, row, vector))
            # Requirements after the sum: on its way meanwhile.
            gain[None, step].store(load_floats(weights, 0, vector))
    square = cutlass.Float32(0.0)
    for i in cutlass.range_constexpr(VECTOR * steps):
        square += held[i] * held[i]
    square = cute.arch.warp_reduction_sum(square)
    if thread % WARP == 0:
        partial[thread // WARP] = square
    cute.arch.sync_threads()
    total = cutlass.Float32(0.0)
    for warp in cutlass.range_constexpr(warps):
        total += partial[warp]
    factor = cute.math.rsqrt(total * (1.0 / n) + eps)
    for step in cutlass.range_constexpr(steps):
        vector = step * threads + thread
        if vector < n // VECTOR:
            store(outputs, row, vector, held[None, step].load() * factor * gain[None, step].load())


@cute.jit  # type: ignore[untyped-decorator]
def rms_norm(
    x: cute.Tensor,
    weight: cute.Tensor,
    out: cute.Tensor,
    eps: cutlass.Float32,
    n: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        x: (T, n).
        weight: (n).
        out: (T, n).
        eps: added to the mean square.
        n: elements of a row.
        stream: CUDA stream.
    """
    threads = threads_of(n)
    gain = cute.make_tensor(weight.iterator, cute.make_layout((1, n), stride=(n, 1)))
    rms_norm_kernel(x, gain, out, eps, n, threads).launch(
        grid=(x.shape[0], 1, 1), block=(threads, 1, 1), stream=stream
    )
