"""Choosing at build time with the real heuristic: what it keeps, what it says, and that it is asked once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import cutlass_aot
from cutlass_aot.builder import build
from cutlass_aot.builder.compile.fork_client import ForkServer
from cutlass_aot.builder.settings import Settings
from cutlass_aot.cli.output.progress import PlainReport
from cutlass_aot.errors import CutlassAotError, ManifestError
from cutlass_aot.schema.tuning.ranking import Extents
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile

MANIFEST = """
[bundle]
name = "chosen"
targets = ["sm_100a"]
device = "b200"
[select]
heuristics = "nvmatmul"
shapes = [{ m = [16, 1024, 8192], nk = [[4096, 4096], [8192, 8192]] }]
keep = 2
[[kernels]]
generator = "cutlass.operators"
ab = "bf16"
family = ["PersistentDenseGemm", "TgvGemm"]
tile = ["64x32", "128x128", "128x256", "256x256", "64x8"]
cluster = ["1x1", "2x1", "1x4", "4x1"]
"""


@pytest.fixture
def manifest(tmp_path):
    def write(*changes, text=MANIFEST):
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "m.toml"
        path.write_text(text)
        return path

    return write


def plan(path, store="no-store"):
    made = build.make_plan(path, Settings(path.parent / store, 1, 120, PlainReport()))
    return made.selection, made.kernels


def test_the_best_of_each_shape_are_kept_and_ranked(manifest):
    whole, _ = plan(manifest(("keep = 2\n", "")))
    assert 20 <= len(whole.kernels) <= 60
    chosen, planned = plan(manifest())
    assert [item.kernel for item in planned] == list(chosen.kernels)

    (ranking,) = chosen.rankings
    assert (ranking.gpu, ranking.measured) == ("B200", False)
    assert ranking.origin == "nvMatmulHeuristics 0.1.0.27 for B200"
    assert ranking.group == chosen.kernels[0].group
    ranked = {problem.extents: problem.kernels for problem in ranking.problems}
    assert set(ranked) == {Extents(1, m, n, n) for m in (16, 1024, 8192) for n in (4096, 8192)}

    # What is kept: two of each shape, and the kernels that the model cannot judge.
    designs = {kernel.digest: dict(kernel.design) for kernel in chosen.kernels}
    modelled = {digest for digest, design in designs.items() if design["family"] != "TgvGemm"}
    assert modelled == {digest for kernels in ranked.values() for digest in kernels[:2]}
    assert set(designs) - modelled
    assert len(chosen.kernels) < len(whole.kernels) / 2
    # A static scheduler ties with the dynamic one, which is first in the default order.
    assert {designs[digest]["tile_scheduler"] for digest in modelled} == {"clc"}

    # Few rows want a small tile, many the largest one with two blocks sharing an instruction.
    few, many = (designs[ranked[Extents(1, m, 8192, 8192)][0]] for m in (16, 8192))
    assert few["tile_shape"][:2] == (64, 32)
    assert many["tile_shape"][:2] == (256, 256)
    assert many["use_2cta_mma"]

    # What was not kept is not ranked, and the order is that of the ranking of all.
    (before,) = whole.rankings
    for problem in before.problems:
        kept = [digest for digest in problem.kernels if digest in designs]
        assert list(ranked[problem.extents])[: len(kept)] == kept

    (warning,) = chosen.warnings
    group = "gemm-bf16.bf16.bf16-f32-tnt-sm_100a"
    assert warning == (
        f"select: {group}: 6 of 6 shapes ranked for B200; the best 2 of each shape keep {len(designs)} of "
        f"{len(whole.kernels)} kernels, {len(whole.kernels) - len(designs)} left out; kept though not "
        f"modelled: {len(designs) - len(modelled)} (TgvGemm)"
    )


def test_ranking_twice_gives_the_same_bytes(manifest):
    path = manifest(("keep = 2\n", ""))
    first, second = plan(path)[0], plan(path)[0]
    assert [item.to_bytes() for item in first.rankings] == [item.to_bytes() for item in second.rankings]


def test_what_cannot_be_ranked_stays_and_is_warned_of(manifest):
    both = (('["sm_100a"]', '["sm_90a", "sm_100a"]'), ('"b200"', '{ sm_90a = "h200", sm_100a = "b200" }'))
    older = ('family = ["PersistentDenseGemm", "TgvGemm"]\n', ""), ('"64x8"', '"128x192"')
    selection, _ = plan(manifest(*both, *older))
    hopper = [kernel for kernel in selection.kernels if kernel.target == "sm_90a"]
    assert len(hopper) > 2
    assert len(selection.rankings) == 1
    assert any(
        warning.startswith(
            "select: sm_90a is not ranked and stays whole: nvmatmul models B200 (NVIDIA B200), "
        )
        for warning in selection.warnings
    )


def test_a_gpu_named_for_a_target_that_the_model_lacks_ranks_nothing(manifest):
    path = manifest(
        ('["sm_100a"]', '["sm_90a"]'),
        ('"b200"', '"h200"'),
        ("keep = 2", 'keep = 2\ngpu = { sm_90a = "B200" }'),
        ('family = ["PersistentDenseGemm", "TgvGemm"]\n', ""),
        ('"64x8"', '"128x192"'),
    )
    with pytest.raises(
        ManifestError, match=r"select.keep: no kernel can be ranked.*stays whole: nvmatmul models"
    ):
        plan(path)


# Element types that the model has no times for: it answers zero, and the package takes that for the best.
ZERO = """
from cutlass.operators.heuristics.nvmatmul import _mapping
from cutlass_aot.generators.cutlass_operators import rank, worker
from cutlass_aot.generators.cutlass_operators import CutlassOperators, FAMILIES
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.tuning.ranking import Extents

problem = Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32")
generator = CutlassOperators()
kernels = [
    kernel
    for kernel in generator.enumerate(problem, "sm_100a", load_profile("b200"))
    if dict(kernel.design)["family"] == "PersistentDenseGemm"
]
shapes = [Extents(1, 8192, 8192, 8192), Extents(2, 16, 4096, 4096)]
ranked = generator.rank(problem, "sm_100a", kernels, shapes, heuristic="nvmatmul", gpu="B200")
assert all(ranked.problems) and ranked.modelled == {kernel.digest for kernel in kernels}
_mapping.build_precision_string = lambda *_: "XXX"
ranked = generator.rank(problem, "sm_100a", kernels, shapes, heuristic="nvmatmul", gpu="B200")
assert ranked.problems == ((), ()), ranked.problems
assert ranked.reason == "No candidate Operator matched any nvmatmul heuristic config", ranked.reason
configurations = rank._provider.MatmulHeuristics(gpu="B200").get_configs
found = configurations(64, 64, 64, 1, "XXX", ("t", "n", "t"), 8, 8)
assert [config["estimated_runtime"] for config in found] == [0.0], found
"""


def test_what_the_model_has_no_time_for_is_not_ranked():
    result = subprocess.run([sys.executable, "-c", ZERO], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def _check_choices(bundle):
    """The runtime chooses by the ranking that the bundle was built with."""
    opened = cutlass_aot.open(bundle)
    tiles = {}
    for m in (16, 8192):
        a = cutlass_aot.describe((m, 8192), "bf16")
        b = cutlass_aot.describe((8192, 8192), "bf16", strides=(1, 8192))
        out = cutlass_aot.describe((m, 8192), "bf16")
        choice = opened.choose(a, b, out, accumulator="f32", target="sm_100a")
        assert choice.tier == "modelled"
        assert choice.reason == f"{m}x8192x8192 was ranked for B200"
        tiles[m] = dict(choice.kernel.kernel.design)["tile_shape"][:2]
    assert tiles == {16: (64, 32), 8192: (256, 256)}


def test_a_ranked_plan_is_made_once(manifest, tmp_path, monkeypatch):
    small = ("m = [16, 1024, 8192], nk = [[4096, 4096], [8192, 8192]]", "m = [16, 8192], nk = [[8192, 8192]]")
    path = manifest(small, ("keep = 2", "keep = 1"), (', "TgvGemm"', ""))
    settings = Settings(tmp_path / "store", 2, 120, PlainReport())
    built = build.build(path, tmp_path / "out", settings)
    assert (built.kernels, built.compiled, built.failures) == (2, 2, ())
    _check_choices(built.bundle)

    def refuse(_):
        raise AssertionError("a worker, which imports the DSL, was asked for")

    monkeypatch.setattr(ForkServer, "start", refuse)
    selection, planned = plan(path, "store")
    assert [item.why for item in planned] == ["present", "present"]
    (ranking,) = selection.rankings
    assert {problem.kernels[0] for problem in ranking.problems} == {item.kernel.digest for item in planned}
    assert not build.build(path, tmp_path / "out", settings).written
    # Another list of shapes is another plan.
    with pytest.raises(AssertionError, match="a worker"):
        plan(manifest(("m = [16", "m = [17")), "store")


def test_the_command_shows_what_was_ranked(manifest):
    path = manifest()
    command = [sys.executable, "-m", "cutlass_aot", "plan", str(path), "--store", str(path.parent / "s")]
    result = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    told = json.loads(result.stdout)
    (ranking,) = told["rankings"]
    assert (ranking["gpu"], ranking["shapes"]) == ("B200", 6)
    assert "ranking for 6 shapes" in result.stderr


def test_an_unknown_heuristic_is_named(manifest):
    with pytest.raises(
        CutlassAotError, match=r"m.toml: select.heuristics: unknown 'luck': expected one of nvmatmul"
    ):
        plan(manifest(("nvmatmul", "luck")))


def test_the_manifest_of_language_models_comes_to_dozens():
    path = REPOSITORY / "manifests" / "sm100_llm.toml"
    selection, planned = plan(path)
    counts = {}
    for item in planned:
        counts[item.kernel.group_name] = counts.get(item.kernel.group_name, 0) + 1
    assert len(counts) == len(selection.rankings) == 4
    assert all(12 <= count <= 48 for count in counts.values()), counts
    assert all(len(ranking.problems) == 150 for ranking in selection.rankings)
    assert {ranking.gpu for ranking in selection.rankings} == {"B200", "GB300_NVL"}
