"""The end of a mixture-of-experts layer, in CuTe DSL. It imports the DSL.

    out[t] = sum over j of weight[t, j] * expert_out[index[t, j]]

in f32, rounded once to the output's element type. An index below zero stands for no expert and adds nothing,
whatever the weight. One of R or more is not checked, and reads outside ``expert_out``.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.vectors import MAX_GRID_Y, VECTOR, in_vectors, load_floats, store

THREADS = 128


@cute.kernel  # type: ignore[untyped-decorator]
def gather_reduce_kernel(
    expert_out: cute.Tensor, index: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, k: cutlass.Constexpr
) -> None:
    """Compute one token, every so many of its columns.

    Args:
        expert_out: (R, N).
        index: (T, k) i32.
        weight: (T, k) f32.
        out: (T, N).
        k: experts a token.
    """
    thread, _, _ = cute.arch.thread_idx()
    token, block, _ = cute.arch.block_idx()
    _, blocks, _ = cute.arch.grid_dim()
    inputs = in_vectors(expert_out)
    outputs = in_vectors(out)

    vector = block * THREADS + thread
    while vector < out.shape[1] // VECTOR:
        total = cute.make_rmem_tensor((1, VECTOR), cutlass.Float32)
        total.fill(0.0)
        for j in cutlass.range_constexpr(k):
            source = index[token, j]
            factor = weight[token, j]
            # Loaded in any case, from row 0 if there is no expert, so that all k loads are under way at
            # once; what was loaded is left out afterwards, since it may be infinite.
            values = load_floats(inputs, cutlass.max(source, 0), vector)
            for i in cutlass.range_constexpr(VECTOR):
                term = factor * values[i]
                total[i] = total[i] + (term if source >= 0 else cutlass.Float32(0.0))
        store(outputs, token, vector, total.load())
        vector += blocks * THREADS


@cute.jit  # type: ignore[untyped-decorator]
def gather_reduce(
    expert_out: cute.Tensor,
    index: cute.Tensor,
    weight: cute.Tensor,
    out: cute.Tensor,
    k: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        expert_out: (R, N).
        index: (T, k) i32.
        weight: (T, k) f32.
        out: (T, N).
        k: experts a token.
        stream: CUDA stream.
    """
    tokens, columns = out.shape
    gather_reduce_kernel(expert_out, index, weight, out, k).launch(
        grid=(tokens, cutlass.min((columns // VECTOR - 1) // THREADS + 1, MAX_GRID_Y), 1),
        block=(THREADS, 1, 1),
        stream=stream,
    )
