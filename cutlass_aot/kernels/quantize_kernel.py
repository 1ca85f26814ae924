"""Rounding to FP8 with a scale for each 128 columns of a row, in CuTe DSL. It imports the DSL.

Scales are those of :mod:`.fp8`. A thread loads 64 bytes before it uses the first of them.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import fp8
from cutlass_aot.kernels.vectors import VECTOR, in_vectors, load

WARP = 32
THREADS = 128
LOADS = 4
"""Vectors that a thread loads before it uses one."""


@cute.kernel  # type: ignore[untyped-decorator]
def quantize_kernel(x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor) -> None:
    """Round a part of the columns of a row.

    Args:
        x: (T, n).
        out: (T, n) f8e4m3.
        scale: (T, n / 128) f32.
    """
    thread, _, _ = cute.arch.thread_idx()
    row, part, _ = cute.arch.block_idx()
    inputs, outputs = in_vectors(x), in_vectors(out)
    count = x.shape[1] // VECTOR
    base = part * (LOADS * THREADS) + thread
    held = cute.make_rmem_tensor(((1, VECTOR), LOADS), x.element_type)
    for step in cutlass.range_constexpr(LOADS):
        place = cutlass.min(base + step * THREADS, count - 1)
        held[None, step].store(load(inputs, row, place, True))
    for step in cutlass.range_constexpr(LOADS):
        vector = base + step * THREADS
        # All threads of a warp take part in shuffles, or none does.
        if vector - thread % WARP < count:
            values = held[None, step].load().to(cutlass.Float32)
            fp8.store_scaled(outputs, scale, row, vector, count, values)


@cute.jit  # type: ignore[untyped-decorator]
def quantize(x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor, stream: Any) -> None:
    """Launch the kernel.

    Args:
        x: (T, n).
        out: (T, n) f8e4m3, or its bytes as u8.
        scale: (T, n / 128) f32.
        stream: CUDA stream.
    """
    parts = cute.ceil_div(x.shape[1], LOADS * THREADS * VECTOR)
    quantize_kernel(x, fp8.as_fp8(out), scale).launch(
        grid=(x.shape[0], parts, 1), block=(THREADS, 1, 1), stream=stream
    )
