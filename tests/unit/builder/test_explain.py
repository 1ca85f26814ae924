"""Why a build plans again: the first difference, by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutlass_aot.builder.inputs.explain import explain, first_difference, keep_parts
from cutlass_aot.builder.plan.plan import save_selection
from cutlass_aot.builder.records import Selection
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.store.store import Store
from tests.support.inputs import inputs

HEAD = """
[bundle]
name = "test"
targets = ["sm_90a"]
device = "h200"
[[kernels]]
generator = "cutlass.operators"
ab = "f16"
"""


def inputs_of(text=HEAD, device="h200", compiler="4.8.1"):
    parsed = parse_manifest(text.encode(), Path("m.toml"))
    return inputs(parsed, {"sm_90a": load_profile(device)}, compiler=compiler)


@pytest.fixture
def store(tmp_path):
    """One that knows a build of HEAD."""
    store = Store(tmp_path / "store")
    save_selection(store, inputs_of().plan_digest, Selection((), ()))
    keep_parts(store, inputs_of())
    return store


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ({}, ""),
        ({"text": HEAD + 'tile = "64x64"'}, "the manifest: kernels[0] has changed"),
        ({"text": HEAD + "[[kernels]]\ngenerator = \"simt_f64_gemm\"\nab = \"f64\""},
         "the manifest: kernels[1] is new"),
        ({"text": HEAD.replace('"h200"', '"h200"\nversion = "2"')}, "the manifest: [bundle] has changed"),
        ({"device": "b200"}, "the device profile: sm_90a has changed"),
        ({"compiler": "4.9.0"}, "the compiler: nvidia-cutlass-dsl was 4.8.1, is 4.9.0"),
        ({"device": "b200", "compiler": "4.9.0"}, "the device profile: sm_90a has changed"),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(store, now, difference):
    assert explain(inputs_of(**now), store) == difference


def test_where_there_is_nothing_to_compare_with_it_says_so(store, tmp_path):
    other = HEAD.replace('"test"', '"other"')
    assert explain(inputs_of(other), store) == "the store knows no earlier build of a bundle named 'other'"
    assert explain(inputs_of(), None) == "there is no store yet"
    store.record_path("plan", inputs_of().plan_digest).unlink()
    assert explain(inputs_of(), store) == "the store has lost the plan of the last build"


def test_a_record_that_is_something_else_counts_as_none(store):
    (path,) = (store.root / "records" / "inputs").glob("*/*")
    for body in (None, {}, {"parts": 1}, {"parts": {"a": 1}}, {"parts": {"a": {"b": 1}}}):
        store.put_record("inputs", path.name, body)
        assert explain(inputs_of(), store).startswith("the store knows no earlier build")


def test_what_is_gone_is_named():
    assert first_difference({"a": {"x": "1", "y": "2"}}, {"a": {"x": "1"}}) == "a: y is gone"
    assert first_difference({}, {"a": {"x": "1"}}) == "a: x is new"
