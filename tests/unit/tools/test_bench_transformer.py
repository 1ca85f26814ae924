"""The block that tools/bench/transformer.py measures, and its table; small and on the CPU."""

from __future__ import annotations

import copy
import math
import sys

import pytest

torch = pytest.importorskip("torch")

import cutlass_aot.torch as aot  # noqa: E402
from tests.support.torch_bundles import bundle  # noqa: E402
from tools.bench import transformer as bench  # noqa: E402

CONFIG = bench.Config(hidden=32, heads=4, kv_heads=2, intermediate=48)


@pytest.fixture
def block():
    torch.manual_seed(0)
    return bench.make_block(CONFIG, dtype=torch.float64)


@torch.no_grad()
def test_the_last_token_is_the_same_with_a_cache(block):
    x = torch.randn(3, 6, 32, dtype=torch.float64)
    expected = block(x)[:, -1:]
    hidden = block.attention_norm(x)
    keys, values = (
        layer(hidden).view(3, 6, 2, 8).transpose(1, 2).contiguous() for layer in (block.key, block.value)
    )
    for cache in (keys, values):
        cache[:, :, -1] = math.nan
    block.set_cache(keys, values)
    torch.testing.assert_close(block(x[:, -1:]), expected)


@torch.no_grad()
def test_every_layer_is_swapped_and_gives_the_same(block):
    fake = bundle(name="bench")
    ours = copy.deepcopy(block)
    assert len(aot.replace_linear(ours, fake).replaced) == 7
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    assert bench.largest_error(ours(x), block(x)) < 1e-12
    assert len(fake.launched) == 7


def test_the_table_says_what_could_not_run():
    rows = [
        bench.Timing("decode", 16, "eager", 20.0, 10.0, 1e-3),
        bench.Timing("decode", 16, "default", note="inductor needs triton, which is not installed"),
    ]
    lines = bench.table(rows).markdown().splitlines()
    assert lines[-2] == "| decode | 16 | eager | 20.000 | 10.000 | 2.00 | 1.0e-03 |"
    assert (
        lines[-1] == "| decode | 16 | default | — | inductor needs triton, which is not installed | — | — |"
    )


def test_what_fails(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in bench.DSL]:
        monkeypatch.delitem(sys.modules, name)
    assert not bench.failures([bench.Timing("decode", 1, "eager", 1.0, 1.0, bench.TOLERANCE)])
    bad = [bench.Timing("decode", 1, "eager", 1.0, 1.0, error) for error in (0.1, math.nan)]
    assert len(bench.failures(bad)) == 2
    monkeypatch.setitem(sys.modules, "cutlass.cute", object())
    assert bench.failures([]) == ["the DSL was imported: cutlass"]
