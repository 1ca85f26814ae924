"""The choice of experts of a token, in CuTe DSL. It imports the DSL.

For a token's logits x[t, e]::

    score  = softmax(x[t])                    or sigmoid(x[t])
    index  = the k experts with the largest score + bias[e], the largest first
    weight = score[index]                     divided by their sum if normalised, times ``scaling``

in f32. Of equal ones the expert with the lower number comes first. With groups, the experts of
``chosen_groups`` groups alone are chosen among: those with the largest sums of their two largest.

A warp computes a token. Lane l has the experts l, 32 + l, 64 + l and so on; so a group of 32 experts, or of
a multiple of them, lies across the lanes. What is chosen by is compared as integers in the order of the
numbers, of which a warp finds the largest in one instruction.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute

WARP = 32
THREADS = 128
TOKENS = THREADS // WARP

NO_EXPERT = 1 << 30
"""More than the number of any expert."""

NOT_CHOSEN = -(1 << 31)
"""Behind every number, minus infinity too: places without an expert, and experts out of the choice."""

SMALLEST_TOTAL = 2.0**-100
"""What the sum of a token's scores is divided by at least."""


def _in_order(bits: Any) -> Any:
    """The bits of an f32 number as an integer in the order of the numbers, or such an integer as bits."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@cute.jit  # type: ignore[untyped-decorator]
def _best(choice: Any, lane: Any, first: cutlass.Constexpr, end: cutlass.Constexpr) -> Any:
    """The largest of the warp's choice in places ``first`` to ``end``, and its expert, the first if equal."""
    largest = choice[first]
    for i in cutlass.range_constexpr(first + 1, end):
        largest = cutlass.max(largest, choice[i])
    largest = cute.arch.warp_redux_sync(largest, "max")
    expert = cutlass.Int32(NO_EXPERT)
    for i in cutlass.range_constexpr(end - 1, first - 1, -1):
        expert = i * WARP + lane if choice[i] == largest else expert
    return largest, cute.arch.warp_redux_sync(expert, "min")


@cute.jit  # type: ignore[untyped-decorator]
def _without(choice: Any, lane: Any, expert: Any, first: cutlass.Constexpr, end: cutlass.Constexpr) -> None:
    """Take an expert out of the choice."""
    for i in cutlass.range_constexpr(first, end):
        choice[i] = cutlass.Int32(NOT_CHOSEN) if expert == i * WARP + lane else choice[i]


@cute.kernel  # type: ignore[untyped-decorator]
def top_k_gate_kernel(
    logits: cute.Tensor,
    bias: Any,
    weight: cute.Tensor,
    index: cute.Tensor,
    scaling: cutlass.Float32,
    sigmoid: cutlass.Constexpr,
    normalised: cutlass.Constexpr,
    groups: cutlass.Constexpr,
    chosen_groups: cutlass.Constexpr,
) -> None:
    """Choose a token's experts.

    Args:
        logits: (T, E).
        bias: (E) f32, or None.
        weight: (T, k) f32.
        index: (T, k) i32.
        scaling: what weights are multiplied by.
        sigmoid: whether scores are sigmoids, and not a softmax.
        normalised: whether the weights of a token add up to ``scaling``.
        groups: groups of experts, of whole warps' widths each if there are more than one.
        chosen_groups: groups that are chosen among.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    tokens, experts = logits.shape
    k = weight.shape[1]
    lane = thread % WARP
    given = block * TOKENS + thread // WARP
    token = cutlass.min(given, tokens - 1)
    held = -(-experts // WARP)

    # A place without an expert counts as minus infinity throughout.
    scores = cute.make_rmem_tensor(held, cutlass.Float32)
    for i in cutlass.range_constexpr(held):
        expert = i * WARP + lane
        value = logits[token, cutlass.min(expert, experts - 1)].to(cutlass.Float32)
        scores[i] = value if expert < experts else -cutlass.Float32.inf
    if cutlass.const_expr(sigmoid):
        for i in cutlass.range_constexpr(held):
            scores[i] = 1.0 / (1.0 + cute.math.exp(-scores[i], fastmath=True))
    else:
        largest = scores[0]
        for i in cutlass.range_constexpr(1, held):
            largest = cute.arch.fmax(largest, scores[i])
        largest = cute.arch.warp_reduction_max(largest)
        total = cutlass.Float32(0.0)
        for i in cutlass.range_constexpr(held):
            scores[i] = cute.math.exp2((scores[i] - largest) * math.log2(math.e), fastmath=True)
            total += scores[i]
        factor = 1.0 / cute.arch.warp_reduction_sum(total)
        for i in cutlass.range_constexpr(held):
            scores[i] = scores[i] * factor

    numbers = cute.make_rmem_tensor(held, cutlass.Float32)
    for i in cutlass.range_constexpr(held):
        numbers[i] = scores[i]
        if cutlass.const_expr(bias is not None):
            numbers[i] += bias[cutlass.min(i * WARP + lane, experts - 1)]
    choice = cute.make_rmem_tensor(held, cutlass.Int32)
    for i in cutlass.range_constexpr(held):
        value = _in_order(cute.recast_tensor(numbers, cutlass.Int32)[i])
        choice[i] = value if i * WARP + lane < experts else cutlass.Int32(NOT_CHOSEN)

    if cutlass.const_expr(groups > 1):
        width = held // groups
        sums = cute.make_rmem_tensor(groups, cutlass.Float32)
        rest = cute.make_rmem_tensor(held, cutlass.Int32)
        rest.store(choice.load())
        two = cute.make_rmem_tensor(2, cutlass.Int32)
        for group in cutlass.range_constexpr(groups):
            first, end = group * width, (group + 1) * width
            one, expert = _best(rest, lane, first, end)
            _without(rest, lane, expert, first, end)
            other, _ = _best(rest, lane, first, end)
            two[0], two[1] = _in_order(one), _in_order(other)
            as_floats = cute.recast_tensor(two, cutlass.Float32)
            sums[group] = as_floats[0] + as_floats[1]
        for group in cutlass.range_constexpr(groups):
            # The number of groups that come before it.
            before = cutlass.Int32(0)
            for other in cutlass.range_constexpr(groups):
                if cutlass.const_expr(other < group):
                    before += cutlass.Int32(sums[other] >= sums[group])
                elif cutlass.const_expr(other > group):
                    before += cutlass.Int32(sums[other] > sums[group])
            for i in cutlass.range_constexpr(group * width, (group + 1) * width):
                choice[i] = choice[i] if before < chosen_groups else cutlass.Int32(NOT_CHOSEN)

    # Lane j keeps the j-th expert.
    chosen = cutlass.Int32(0)
    for j in cutlass.range_constexpr(k):
        _, expert = _best(choice, lane, 0, held)
        _without(choice, lane, expert, 0, held)
        chosen = expert if lane == j else chosen
    score = cutlass.Float32(0.0)
    for i in cutlass.range_constexpr(held):
        there = cute.arch.shuffle_sync(scores[i], chosen % WARP)
        score = there if chosen // WARP == i else score
    kept = score if lane < k else cutlass.Float32(0.0)
    total = cute.arch.warp_reduction_sum(kept)
    factor = scaling
    if cutlass.const_expr(normalised):
        # Sigmoids of very negative logits are all 0: so are the weights then.
        factor = scaling / cute.arch.fmax(total, cutlass.Float32(SMALLEST_TOTAL))
    if lane < k and given < tokens:
        weight[token, lane] = kept * factor
        index[token, lane] = chosen


@cute.jit  # type: ignore[untyped-decorator]
def top_k_gate(
    logits: cute.Tensor,
    bias: Any,
    weight: cute.Tensor,
    index: cute.Tensor,
    scaling: cutlass.Float32,
    sigmoid: cutlass.Constexpr,
    normalised: cutlass.Constexpr,
    groups: cutlass.Constexpr,
    chosen_groups: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        logits: (T, E).
        bias: (E) f32, or None.
        weight: (T, k) f32.
        index: (T, k) i32.
        scaling: what weights are multiplied by.
        sigmoid: whether scores are sigmoids, and not a softmax.
        normalised: whether the weights of a token add up to ``scaling``.
        groups: groups of experts.
        chosen_groups: groups that are chosen among.
        stream: CUDA stream.
    """
    top_k_gate_kernel(
        logits, bias, weight, index, scaling, sigmoid, normalised, groups, chosen_groups
    ).launch(grid=(cute.ceil_div(logits.shape[0], TOKENS), 1, 1), block=(THREADS, 1, 1), stream=stream)
