"""The choice of experts of a token, declared. What it computes is in ``top_k_gate_kernel``."""

from __future__ import annotations

from typing import Any

from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand

_WARP = 32


@kernel(
    name="top_k_gate",
    params={
        "experts": [8, 16, 32, 60, 64, 128, 160, 256, 384, 512],
        "k": [1, 2, 4, 6, 8],
        "dtype": ["f32", "bf16"],
        "scoring": ["softmax", "sigmoid"],
        "bias": [False, True],
        "normalised": [True, False],
        "groups": ["none", "8x4"],
    },
    modules=["cutlass_aot.kernels.top_k_gate_kernel"],
)
def top_k_gate(
    experts: int, k: int, dtype: str, scoring: str, bias: bool, normalised: bool, groups: str
) -> Any:
    """The k experts of each token by their logits, and their weights in f32.

    Args:
        experts: their number, up to 512.
        k: experts of a token, up to 8.
        dtype: of the logits: ``f32`` or ``bf16``.
        scoring: ``softmax`` or ``sigmoid`` of the logits.
        bias: whether a bias is added to the scores that choose; weights are without it.
        normalised: whether the weights of a token are divided by their sum.
        groups: ``none``, or ``8x4``: experts are in 8 groups, of which 4 are chosen first, by the sums of
            their two largest scores; as DeepSeek-V3 has it with 256 experts.
    """
    count, chosen = (1, 1) if groups == "none" else map(int, groups.split("x"))
    if (count > 1 and experts % (count * _WARP)) or k * count > experts * chosen:
        return None

    from cutlass_aot.kernels.top_k_gate_kernel import top_k_gate

    return (
        top_k_gate,
        [
            Operand("logits", dtype, ("T", experts)),
            Operand("bias", "f32" if bias else None, (experts,)),
            Operand("weight", "f32", ("T", k), written=True),
            Operand("index", "i32", ("T", k), written=True),
            Operand("scaling", "f32", ()),
        ],
        (scoring == "sigmoid", normalised, count, chosen),
    )
