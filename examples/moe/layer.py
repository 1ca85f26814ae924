"""A mixture-of-experts layer in FP8 from a bundle: from the router's logits to the sum of the experts.

For each token t, with the sum over its k experts e::

    y[t] = sum of weight[t, e] * down[e] @ (silu(gate) * up)        (gate, up) = gate_up[e] @ x[t]

Eight launches for any number of tokens. Which token goes to which expert is known on the GPU alone, so that
one CUDA graph serves all routings of a number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import cutlass_aot
from cutlass_aot.deep_gemm.utils import per_block_cast_to_fp8
from cutlass_aot.kernels.expert_rows import expert_rows
from cutlass_aot.kernels.gather_reduce import gather_reduce
from cutlass_aot.kernels.gather_rows import gather_rows
from cutlass_aot.kernels.quantize import quantize_fp8
from cutlass_aot.kernels.swiglu import fused_swiglu_fp8
from cutlass_aot.kernels.top_k_gate import top_k_gate

FP8 = torch.float8_e4m3fn
BLOCK = 128
"""Elements along K that share a scale factor."""


@dataclass(frozen=True)
class Weights:
    """A matrix for each expert, in FP8 with a scale factor for 128 x 128.

    Attributes:
        values: (experts, n, k) f8e4m3.
        factors: (experts, n / 128, k / 128) f32.
    """

    values: Tensor
    factors: Tensor

    @classmethod
    def of(cls, weights: Tensor) -> Weights:
        """Round (experts, n, k); n and k are multiples of 128."""
        rounded = [per_block_cast_to_fp8(expert, use_ue8m0=False) for expert in weights]
        return cls(torch.stack([values for values, _ in rounded]), torch.stack([f for _, f in rounded]))


class ExpertLayer:
    """The layer, for DeepSeek-V3's choice of experts: 8 of 256, from 4 of 8 groups.

    Args:
        bundle: with the kernels of moe.toml.
        gate_up: (experts, 2 * inner, hidden).
        down: (experts, hidden, inner).
        bias: (experts,) f32, added to the scores that choose.
        scaling: what the weights of a token add up to.
    """

    def __init__(
        self, bundle: cutlass_aot.Bundle, gate_up: Weights, down: Weights, bias: Tensor, scaling: float = 2.5
    ) -> None:
        self.bundle, self.gate_up, self.down = bundle, gate_up, down
        self.bias, self.scaling = bias, scaling
        experts, k = len(gate_up.values), 8
        self.gate = top_k_gate(
            experts=experts, k=k, dtype="f32", scoring="sigmoid", bias=True, normalised=True, groups="8x4"
        )
        self.rows = expert_rows(k=k)
        self.quantize = quantize_fp8(dtype="bf16", out_dtype="f8e4m3", scales="rows")
        self.gather = gather_rows(dtype="f8e4m3", scales="rows")
        self.swiglu = fused_swiglu_fp8(
            dtype="bf16", gate="halves", out_dtype="f8e4m3", scales="columns", masked=False
        )
        self.reduce = gather_reduce(k=k, dtype="bf16")
        self.k = k

    def __call__(self, x: Tensor, logits: Tensor) -> Tensor:
        """Compute the layer for (tokens, hidden) bf16 with (tokens, experts) f32 of the router."""
        tokens, hidden = x.shape
        experts, inner = logits.shape[1], self.down.values.shape[2]
        rows = tokens * self.k

        weight = x.new_empty(tokens, self.k, dtype=torch.float32)
        expert = x.new_empty(tokens, self.k, dtype=torch.int32)
        self.gate(logits, self.bias, weight, expert, self.scaling)

        offsets = x.new_empty(experts, dtype=torch.int32)
        destination, source = torch.empty_like(expert), x.new_empty(rows, dtype=torch.int32)
        self.rows(expert, offsets, destination, source)

        narrow, factors = x.new_empty(tokens, hidden, dtype=FP8), by_rows(x, tokens, hidden)
        self.quantize(x, narrow, factors)
        sorted_rows, sorted_factors = x.new_empty(rows, hidden, dtype=FP8), by_columns(x, rows, hidden)
        self.gather(narrow, factors, source, sorted_rows, sorted_factors)

        both = x.new_empty(rows, 2 * inner)
        self.grouped(sorted_rows, sorted_factors, self.gate_up, both, offsets)
        inner_rows, inner_factors = x.new_empty(rows, inner, dtype=FP8), by_columns(x, rows, inner)
        self.swiglu(both, inner_rows, inner_factors, None)
        of_experts = x.new_empty(rows, hidden)
        self.grouped(inner_rows, inner_factors, self.down, of_experts, offsets)

        out = torch.empty_like(x)
        self.reduce(of_experts, destination, weight, out)
        return out

    def grouped(self, rows: Tensor, factors: Tensor, weights: Weights, out: Tensor, offsets: Tensor) -> None:
        """Multiply each expert's rows by its matrix."""
        self.bundle.run(
            "grouped_gemm", rows, weights.values.mT, out,
            a_scale=factors, b_scale=weights.factors, offsets=offsets,
        )  # fmt: skip


def by_rows(x: Tensor, rows: int, columns: int) -> Tensor:
    """Room for the scale factors of a matrix, those of a row one after the other."""
    return x.new_empty(rows, columns // BLOCK, dtype=torch.float32)


def by_columns(x: Tensor, rows: int, columns: int) -> Tensor:
    """Room for the scale factors as a GEMM takes them: those of all rows for a block of K together."""
    return x.new_empty(columns // BLOCK, rows, dtype=torch.float32).mT
