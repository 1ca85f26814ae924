"""FlashAttention-4 as a server or a trainer calls it: forward, backward and combine, on small shapes.

It knows nothing of cutlass-aot. On a machine with a GPU, ``--check`` compares every result with torch, also
over sequence lengths beyond those that are run first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from cases import Case, Result, main
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
from flash_attn.cute.interface import _flash_attn_bwd, flash_attn_combine

HEADS, KV_HEADS, SPLITS, PAGE = 16, 4, 4, 128
DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 96, 128)
LENGTHS = (512,)
OTHER_LENGTHS = (384, 1000, 2048)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Random operands."""
    return torch.randn(*shape, device="cuda", dtype=dtype)


def int32(values: list[int]) -> torch.Tensor:
    """Lengths or offsets."""
    return torch.tensor(values, device="cuda", dtype=torch.int32)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, left: int | None = None
) -> torch.Tensor:
    """Attention in float32 by torch. The last query sees the last key, as in FlashAttention."""
    rows, columns = q.shape[1], k.shape[1]
    last = torch.arange(rows, device="cuda")[:, None] + columns - rows
    column = torch.arange(columns, device="cuda")[None, :]
    mask = torch.ones(rows, columns, dtype=torch.bool, device="cuda")
    if causal:
        mask &= column <= last
    if left is not None:
        mask &= column >= last - left
    out = torch.nn.functional.scaled_dot_product_attention(
        *(operand.transpose(1, 2).float() for operand in (q, k, v)), attn_mask=mask, enable_gqa=True
    )
    return out.transpose(1, 2)


def forward(
    dtype: torch.dtype,
    head_dim: int,
    kv_heads: int,
    causal: bool = False,
    left: int | None = None,
    splits: int = 1,
) -> Case:
    """Attention of a batch of equal lengths; with ``splits``, of parts of the keys, which are combined."""

    def run(length: int) -> list[Result]:
        q = normal(2, length, HEADS, head_dim, dtype=dtype)
        k, v = (normal(2, length, kv_heads, head_dim, dtype=dtype) for _ in range(2))
        window = (None, None) if left is None else (left, 0)
        out, *_ = flash_attn_func(q, k, v, causal=causal, window_size=window, num_splits=splits)
        return [(out, lambda: reference(q, k, v, causal, left))]

    return run


def varlen(dtype: torch.dtype, head_dim: int) -> Case:
    """Attention of sequences of different lengths, one after the other."""

    def run(length: int) -> list[Result]:
        ends = [0, length, length + length // 2]
        q = normal(ends[-1], HEADS, head_dim, dtype=dtype)
        k, v = (normal(ends[-1], KV_HEADS, head_dim, dtype=dtype) for _ in range(2))
        offsets = int32(ends)
        out, *_ = flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=length, max_seqlen_k=length,
            causal=True,
        )  # fmt: skip
        pieces = [slice(first, last) for first, last in pairwise(ends)]
        parts = (reference(q[None, piece], k[None, piece], v[None, piece], True)[0] for piece in pieces)
        return [(out, lambda: torch.cat(list(parts)))]

    return run


def paged(dtype: torch.dtype, head_dim: int, queries: int | None = None) -> Case:
    """Attention over keys and values in pages, as a server keeps them; decoding has one query each."""

    def run(length: int) -> list[Result]:
        pages = -(-length // PAGE)
        q = normal(2, queries or length, HEADS, head_dim, dtype=dtype)
        k, v = (normal(2 * pages, PAGE, KV_HEADS, head_dim, dtype=dtype) for _ in range(2))
        order = [[2 * page + sequence for page in range(pages)] for sequence in range(2)]
        table = torch.tensor(order, device="cuda", dtype=torch.int32)
        out, *_ = flash_attn_varlen_func(
            q, k, v, seqused_k=int32([length, length]), page_table=table, causal=True
        )
        flat = (cache[table.long()].flatten(1, 2)[:, :length] for cache in (k, v))
        return [(out, lambda: reference(q, *flat, causal=True))]

    return run


def backward(dtype: torch.dtype, head_dim: int, kv_heads: int, causal: bool) -> Case:
    """Gradients by FlashAttention's own function: autograd needs a build of torch with CUDA."""

    def run(length: int) -> list[Result]:
        q, dout = (normal(2, length, HEADS, head_dim, dtype=dtype) for _ in range(2))
        k, v = (normal(2, length, kv_heads, head_dim, dtype=dtype) for _ in range(2))
        out, lse, *_ = flash_attn_func(q, k, v, causal=causal, return_lse=True)
        gradients = _flash_attn_bwd(q, k, v, out, dout, lse, causal=causal)[:3]

        def expected(index: int) -> torch.Tensor:
            operands = [operand.float().requires_grad_() for operand in (q, k, v)]
            with torch.enable_grad():
                result = reference(operands[0], operands[1], operands[2], causal)
            return torch.autograd.grad(result, operands[index], dout.float())[0]

        return [(found, partial(expected, index)) for index, found in enumerate(gradients)]

    return run


def combine(dtype: torch.dtype, head_dim: int) -> Case:
    """The last step of attention whose keys were split: partial results, weighted."""

    def run(length: int) -> list[Result]:
        parts = normal(SPLITS, 2, length, HEADS, head_dim, dtype=torch.float32)
        # Of (splits, batch, heads, length), seen as (splits, batch, length, heads), as the kernels write it.
        lse = normal(SPLITS, 2, HEADS, length, dtype=torch.float32).transpose(-1, -2)
        out, *_ = flash_attn_combine(parts, lse, out_dtype=dtype)
        return [(out, lambda: (lse.softmax(0)[..., None] * parts).sum(0))]

    return run


def cases() -> Iterator[tuple[str, Case]]:
    """Name and function of every case."""
    for dtype in DTYPES:
        for head_dim in HEAD_DIMS:
            name = f"{str(dtype).removeprefix('torch.')}, head dimension {head_dim}"
            yield f"forward, {name}", forward(dtype, head_dim, HEADS)
            yield f"forward, causal, {name}", forward(dtype, head_dim, HEADS, causal=True)
            yield f"forward, window, {name}", forward(dtype, head_dim, HEADS, causal=True, left=100)
            yield f"forward, GQA, {name}", forward(dtype, head_dim, KV_HEADS, causal=True)
            yield f"forward, varlen, {name}", varlen(dtype, head_dim)
            yield f"forward, paged, {name}", paged(dtype, head_dim)
            yield f"forward, paged, decode, {name}", paged(dtype, head_dim, queries=1)
            yield f"backward, {name}", backward(dtype, head_dim, HEADS, causal=False)
            yield f"backward, causal, {name}", backward(dtype, head_dim, HEADS, causal=True)
            yield f"backward, GQA, {name}", backward(dtype, head_dim, KV_HEADS, causal=True)
            if torch.cuda.get_device_capability()[0] == 10:  # The package splits keys on Blackwell alone.
                yield f"forward, split keys, {name}", forward(dtype, head_dim, HEADS, splits=SPLITS)
            yield f"combine, {name}", combine(dtype, head_dim)


if __name__ == "__main__":
    main(__doc__, cases(), LENGTHS, OTHER_LENGTHS)
