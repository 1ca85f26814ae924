"""On a GPU: the example of an expert layer against f32, and as a graph that is replayed with another routing.

cutlass-aot build examples/moe/moe.toml; python -m pytest -m gpu
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.gpu.conftest import opened
from tools.bench import moe

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

EXPERTS, HIDDEN, INNER = 256, 1024, 512


@pytest.fixture(scope="module")
def layer(capability: Any) -> Any:
    from examples.moe import layer as example

    torch.manual_seed(0)
    gate_up = example.Weights.of(torch.randn(EXPERTS, 2 * INNER, HIDDEN, device="cuda") / HIDDEN**0.5)
    down = example.Weights.of(torch.randn(EXPERTS, HIDDEN, INNER, device="cuda") / INNER**0.5)
    bias = torch.randn(EXPERTS, device="cuda") * 0.1
    return example.ExpertLayer(opened("moe", capability), gate_up, down, bias)


def check(layer: Any, x: Any, logits: Any, found: Any) -> None:
    wide = partial(moe.wide, layer.gate_up), partial(moe.wide, layer.down)
    right = moe.expected(torch, x, logits, layer.bias, *wide)
    assert float((found.float() - right).norm() / right.norm()) < moe.BOUND


@pytest.mark.parametrize("tokens", [1, 7, 128, 1500])
def test_a_layer_is_what_its_experts_compute(layer: Any, tokens: int) -> None:
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    logits = torch.randn(tokens, EXPERTS, device="cuda")
    check(layer, x, logits, layer(x, logits))


def test_a_graph_is_replayed_with_another_routing(layer: Any) -> None:
    x = torch.randn(100, HIDDEN, device="cuda").bfloat16()
    logits = torch.randn(100, EXPERTS, device="cuda")
    graph, out = moe.captured(torch, partial(layer, x, logits))
    for favoured in (0, 200):
        x.normal_()
        logits.normal_()
        logits[:, favoured : favoured + 8] += 3
        graph.replay()
        check(layer, x, logits, out)
