"""The example of an expert layer, on the host: what goes where between its kernels.

The GEMMs of groups are real launches to kernels that compute on the host; those around them are replaced by
what their pages say that they compute. tests/gpu/test_moe.py runs all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from tests.support.scaled_host import GROUPS, write_scaled_bundle

torch = pytest.importorskip("torch")
from examples.moe import layer as example  # noqa: E402 - which needs torch
from tools.bench import moe  # noqa: E402 - whose references need torch

EXPERTS, HIDDEN, INNER, TOKENS = 16, 256, 128, 5


def as_fp8(x: Any, out: Any, scale: Any) -> None:
    """Scales of 128 columns, and the values over them."""
    pieces = x.float().unflatten(-1, (-1, 128))
    scale.copy_(pieces.abs().amax(-1).clamp(2.0**-100) / 448)
    out.copy_((pieces / scale[..., None]).flatten(-2))


def gate(**parameters: Any) -> Callable[..., None]:
    assert parameters["experts"] == EXPERTS

    def launch(logits: Any, bias: Any, weight: Any, index: Any, scaling: float) -> None:
        weights, experts = moe.chosen(torch, logits, bias)
        weight.copy_(weights * (scaling / moe.SCALING))
        index.copy_(experts)

    return launch


def rows(**parameters: Any) -> Callable[..., None]:
    def launch(index: Any, offsets: Any, destination: Any, source: Any) -> None:
        order = index.flatten().argsort(stable=True)
        offsets.copy_(torch.bincount(index.flatten(), minlength=len(offsets)).cumsum(0))
        destination.view(-1)[order] = torch.arange(len(order), dtype=torch.int32)
        source.copy_(order // parameters["k"])

    return launch


def gather(**parameters: Any) -> Callable[..., None]:
    def launch(x: Any, scale: Any, index: Any, out: Any, out_scale: Any) -> None:
        assert scale.stride(-1) == 1
        assert out_scale.stride(-2) == 1
        out.view(torch.uint8).copy_(x.view(torch.uint8)[index])
        out_scale.copy_(scale[index])

    return launch


def swiglu(**parameters: Any) -> Callable[..., None]:
    def launch(x: Any, out: Any, scale: Any, counts: Any) -> None:
        assert counts is None
        first, second = x.float().chunk(2, -1)
        as_fp8(torch.nn.functional.silu(first) * second, out, scale)

    return launch


def reduce(**parameters: Any) -> Callable[..., None]:
    def launch(expert_out: Any, index: Any, weight: Any, out: Any) -> None:
        out.copy_((expert_out[index].float() * weight[..., None]).sum(1))

    return launch


@pytest.fixture
def layer(tmp_path: Path, launcher_library: bytes, claims: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, stand_in in (
        ("top_k_gate", gate), ("expert_rows", rows), ("gather_rows", gather), ("gather_reduce", reduce),
        ("fused_swiglu_fp8", swiglu), ("quantize_fp8", lambda **parameters: as_fp8),
    ):  # fmt: skip
        monkeypatch.setattr(example, name, stand_in)
    torch.manual_seed(0)
    write_scaled_bundle(tmp_path / "moe", [GROUPS[0]], launcher_library, name="moe")
    gate_up = example.Weights.of(torch.randn(EXPERTS, 2 * INNER, HIDDEN) / HIDDEN**0.5)
    down = example.Weights.of(torch.randn(EXPERTS, HIDDEN, INNER) / INNER**0.5)
    return example.ExpertLayer(cutlass_aot.open(tmp_path / "moe"), gate_up, down, torch.randn(EXPERTS) * 0.1)


def test_a_layer_computes_what_its_experts_do(layer: Any) -> None:
    def wide(weights: Any) -> Callable[[int], Any]:
        return lambda expert: moe.wide(weights, expert)

    for tokens in (1, TOKENS):
        x, logits = torch.randn(tokens, HIDDEN).bfloat16(), torch.randn(tokens, EXPERTS)
        right = moe.expected(torch, x, logits, layer.bias, wide(layer.gate_up), wide(layer.down))
        found = layer(x, logits)
        assert (found.shape, found.dtype) == (x.shape, torch.bfloat16)
        assert float((found.float() - right).norm() / right.norm()) < moe.BOUND


def test_the_same_layer_by_torch_is_the_reference_too(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a benchmark compares with is right."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    x, logits = torch.randn(TOKENS, HIDDEN).bfloat16(), torch.randn(TOKENS, EXPERTS)
    half = [
        torch.stack([moe.wide(part, expert).bfloat16() for expert in range(EXPERTS)])
        for part in (layer.gate_up, layer.down)
    ]
    right = moe.expected(torch, x, logits, layer.bias, *(lambda e, w=w: w[e].float() for w in half))
    found = moe.by_torch(torch, x, logits, layer.bias, *half)()
    assert float((found.float() - right).norm() / right.norm()) < 1e-2
    from cutlass_aot import deep_gemm

    write = moe.by_deep_gemm(torch, deep_gemm, x[:1], logits[:1], layer.bias, layer.gate_up, layer.down)
    right = moe.expected(
        torch, x[:1], logits[:1], layer.bias,
        lambda e: moe.wide(layer.gate_up, e), lambda e: moe.wide(layer.down, e),
    )  # fmt: skip
    assert float((write().float() - right).norm() / right.norm()) < moe.BOUND
