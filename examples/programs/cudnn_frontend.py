"""Kernels of the cuDNN frontend for Hopper, in CuTe DSL: attention, also over sparse blocks, and top-k.

It knows nothing of cutlass-aot, which was not built for this package: see "Kept apart" in
docs/results/programs.md. On a machine with a GPU, ``--check`` compares every result with torch, also over
lengths beyond those that are run first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from cases import Case, Result, main
from cudnn.block_sparse_attention.api import block_sparse_attention_forward
from cudnn.deepseek_sparse_attention.indexer_top_k.api import indexer_top_k_wrapper
from cudnn.sdpa.fwd.api_dsl import sdpa_fwd_wrapper_dsl_sm90
from torch.nn.functional import scaled_dot_product_attention

DTYPES = (torch.bfloat16, torch.float16)
HEADS, KEY_HEADS = 8, 2
WIDE = 512
"""The head dimension that this attention is for."""
LENGTHS, OTHER_LENGTHS = (512, 1024), (640,)


def heads(length: int, count: int, dimension: int, dtype: torch.dtype) -> torch.Tensor:
    """Two sequences, of which the heads of a token lie together."""
    return torch.randn(2, length, count, dimension, device="cuda", dtype=dtype).transpose(1, 2)


def attention(dtype: torch.dtype, causal: bool, length: int) -> list[Result]:
    """Attention with a head dimension of 512, four heads of queries for one of keys.

    The package compiles it for each length, so that others are not run.
    """
    if length not in LENGTHS:
        return []
    query = heads(length, HEADS, WIDE, dtype)
    key, value = heads(length, KEY_HEADS, WIDE, dtype), heads(length, KEY_HEADS, WIDE, dtype)
    out = sdpa_fwd_wrapper_dsl_sm90(query, key, value, is_causal=causal)["o_tensor"]
    return [
        (
            out,
            lambda: scaled_dot_product_attention(
                query.float(), key.float(), value.float(), is_causal=causal, enable_gqa=True
            ),
        )
    ]


def sparse_attention(dtype: torch.dtype, block: int, length: int) -> list[Result]:
    """Attention of each block of queries to the last four blocks of keys."""
    query, key, value = (heads(length, HEADS, 128, dtype).contiguous() for _ in range(3))
    last = torch.arange(length // block - 4, length // block, device="cuda", dtype=torch.int32)
    blocks = last.expand(2, HEADS, length // block, 4).contiguous()
    found = block_sparse_attention_forward(query, key, value, blocks, 4, sparse_block_size=block)
    first = length - 4 * block
    return [
        (
            next(iter(found.values())),
            lambda: scaled_dot_product_attention(
                query.float(), key[:, :, first:].float(), value[:, :, first:].float()
            ),
        )
    ]


def top_k(count: int, rows: int) -> list[Result]:
    """The largest scores of each row."""
    scores = torch.randn(rows, 8192, device="cuda")
    lengths = torch.full((rows,), 8192, device="cuda", dtype=torch.int32)
    found = indexer_top_k_wrapper(scores, lengths, count)
    return [
        (found["values"].sort(descending=True)[0], lambda: scores.topk(count)[0]),
        (scores.gather(1, found["indices"].long()), lambda: found["values"]),
    ]


def cases() -> Iterator[tuple[str, Case]]:
    """Every case with its name."""
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for causal in (False, True):
            yield f"attention, {'causal, ' * causal}{name}", partial(attention, dtype, causal)
        for block in (64, 128):
            yield f"attention of blocks of {block}, {name}", partial(sparse_attention, dtype, block)
    for count in (512, 2048):
        yield f"top {count}", partial(top_k, count)


if __name__ == "__main__":
    main(__doc__, cases(), LENGTHS, OTHER_LENGTHS)
