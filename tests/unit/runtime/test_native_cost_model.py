"""The cost model in native code against the one in Python; of near equals, roundings may decide."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.runtime.selection.cost_model import Candidates, microseconds
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.tuning.costs import Costs, Machine
from cutlass_aot.schema.tuning.ranking import Extents

tvm_ffi = pytest.importorskip("tvm_ffi")

TRAFFIC = Traffic(1, 1, 2, 8)
H200 = Machine(132, 1980, 4917)


@pytest.fixture(scope="module")
def make(launcher_library: bytes, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("native") / "launcher.so"
    path.write_bytes(launcher_library)
    return tvm_ffi.load_module(str(path)).get_function("cutlass_aot_cost_model")


def some_candidates(seed: int) -> tuple[Candidates, list[Costs]]:
    chance = random.Random(seed)
    tilings = {}
    for number in range(40):
        tile = (chance.choice([64, 128, 256]), chance.choice([8, 64, 96, 256]), chance.choice([64, 128]))
        cluster = (chance.choice([1, 2]), chance.choice([1, 2]), chance.choice([1, 1, 4, 8]))
        constants = chance.choice([{}, {f"max_active_clusters_{cluster[0] * cluster[1] * cluster[2]}": 15}])
        design = [
            tile,
            cluster,
            chance.random() < 0.3,
            chance.choice(["F", "Sm90ClusterGemm"]),
            "clc",
            chance.choice([1, 2]),
            None,
            None,
        ]
        tilings[f"{number:02}"] = Tiling.make(design, constants)
    candidates = Candidates(tilings, TRAFFIC, "sm_90a")
    costs = [
        own._replace(
            tail=chance.random(), overlap=1 + 3 * chance.random(), step=own.step * (0.5 + chance.random())
        )
        for own in candidates.derived(H200)
    ]
    return candidates, costs


@pytest.mark.parametrize("seed", range(4))
def test_native_code_takes_a_kernel_as_fast_as_the_one_that_python_takes(make: Any, seed: int) -> None:
    candidates, costs = some_candidates(seed)
    fastest = make(candidates.packed(costs, 132), TRAFFIC.a, TRAFFIC.b, TRAFFIC.out)
    chance = random.Random(100 + seed)
    for _ in range(300):
        drawn = [int(2 ** chance.uniform(0, 14)) for _ in range(3)]
        extents = Extents(chance.choice([1, 1, 7]), *drawn)
        times = [
            microseconds(own, todo) for own, todo in zip(costs, candidates.work(extents, 132), strict=True)
        ]
        position = fastest(*extents)
        assert times[position] == pytest.approx(min(times), rel=1e-12)


def test_the_first_of_equals_is_taken(make: Any) -> None:
    candidates, costs = some_candidates(1)
    same = Candidates(dict.fromkeys(("aa", "bb", "cc"), candidates.tilings[3]), TRAFFIC, "sm_90a")
    fastest = make(same.packed([costs[3]] * 3, 132), 1.0, 1.0, 2.0)
    assert fastest(1, 333, 3584, 3584) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((b"", 1.0, 1.0, 2.0), "expected kernels as bytes"),
        ((b"x" * 100, 1.0, 1.0, 2.0), "expected kernels as bytes"),
        ((b"x" * 152, "many", 1.0, 2.0), "expected numbers after the kernels"),
        ((b"x" * 152, 1.0), "expected the kernels, and bytes of three operands"),
    ],
)
def test_what_is_not_a_model_is_refused(make: Any, given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make(*given)


def test_what_is_not_a_problem_is_refused(make: Any) -> None:
    candidates, costs = some_candidates(2)
    fastest = make(candidates.packed(costs, 132), 1.0, 1.0, 2.0)
    for given in ((1, 2, 3), (1, 0, 3, 4), (1, 2, 3, 4.5), (1, 2, 3, -4)):
        with pytest.raises(TypeError, match="expected"):
            fastest(*given)
