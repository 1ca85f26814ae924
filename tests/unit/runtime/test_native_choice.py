"""The choice in native code against the one in Python; of near equals, roundings may decide."""

from __future__ import annotations

import gc
import math
import random
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from struct import pack, unpack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.errors import CorruptFile
from cutlass_aot.runtime.dispatch import MAX_REMEMBERED
from cutlass_aot.runtime.opened import native_choice
from cutlass_aot.runtime.selection.correction import corrected, nearest
from cutlass_aot.runtime.selection.cost_model import Candidates, microseconds
from cutlass_aot.runtime.selection.tiers import Ranked
from cutlass_aot.schema.kernels.operands import OperandDescription, describe, supports
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.tuning.costs import Costs, Derivation, Machine
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking
from tests.support.replace import replace
from tests.unit.runtime.test_tensors import descriptions, problems

pytest.importorskip("tvm_ffi")
from tests.support.native_launcher import GEMM, Native, Refused, product, tensors

TRAFFIC = Traffic(1, 1, 2, 8)
H200 = Machine(132, 1980, 4917)


@pytest.fixture(scope="module")
def native(launcher_library: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Native]:
    yield Native(launcher_library, tmp_path_factory.mktemp("kernels"))
    gc.collect()


def some_candidates(seed: int) -> tuple[Candidates, list[Costs]]:
    chance = random.Random(seed)
    tilings = {}
    for number in range(40):
        tile = (chance.choice([64, 128, 256]), chance.choice([8, 64, 96, 256]), chance.choice([64, 128]))
        cluster = (chance.choice([1, 2]), chance.choice([1, 2]), chance.choice([1, 1, 4, 8]))
        size = cluster[0] * cluster[1] * cluster[2]
        # Some launch more clusters than run at once.
        active = chance.choice([0, 0, 15, 200])
        constants = {f"max_active_clusters_{size}": active} if active else {}
        design = [
            tile,
            cluster,
            chance.random() < 0.3,
            chance.choice(["F", "Sm90ClusterGemm"] if seed < 2 else ["F", "Sm80TensorOpGemm"]),
            "clc",
            chance.choice([1, 2]),
            None,
            None,
        ]
        tilings[f"{number:02}"] = Tiling.make(design, constants)
    candidates = Candidates.of(tilings, TRAFFIC, "sm_90a")
    costs = [
        own._replace(
            tail=chance.random(),
            overlap=1 + 3 * chance.random(),
            step=own.step * (0.5 + chance.random()),
            within_line=chance.random(),
            partial_sectors=4 * chance.random(),
            partial_lines=4 * chance.random(),
        )
        for own in candidates.derived(H200)
    ]
    return candidates, costs


def measured(
    problems: Sequence[RankedProblem], candidates: Candidates | None = None, costs: Sequence[Costs] = ()
) -> Ranked:
    """Times on the GPU that is chosen for, with a cost model if there are ``costs``."""
    fit = tuple(sorted(zip(candidates.digests, costs, strict=True))) if candidates and costs else ()
    machine = H200 if fit else None
    return Ranked(Ranking("g", "NVIDIA H200", True, "for a test", RankedProblems(problems), machine, fit))


def selection(
    native: Native,
    candidates: Candidates,
    constants: Sequence[Costs] | Derivation,
    known: Ranked | None = None,
    operands: Any = GEMM,
    ordinal: int = 0,
) -> Any:
    select = partial(native.make, "select")
    return native_choice.make(select, candidates, constants, H200, known, operands, ordinal).launch


def times(candidates: Candidates, costs: Sequence[Costs], extents: Extents) -> list[float]:
    todo = candidates.work(extents, H200.sm_count)
    return [microseconds(own, work) for own, work in zip(costs, todo, strict=True)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("derived", [False, True])
def test_native_code_takes_a_kernel_as_fast_as_the_one_that_python_takes(
    native: Native, seed: int, derived: bool
) -> None:
    candidates, costs = some_candidates(seed)
    choose = selection(native, candidates, candidates.unmeasured(H200) if derived else costs)
    costs = candidates.derived(H200) if derived else costs
    chance = random.Random(100 + seed)
    for _ in range(300):
        # Rows begin at lines and sectors, or within them.
        multiples = 1, chance.choice([1, 16, 64]), chance.choice([1, 32, 128])
        drawn = [-(-int(2 ** chance.uniform(0, 14)) // multiple) * multiple for multiple in multiples]
        extents = Extents(chance.choice([1, 1, 7]), *drawn)
        expected = times(candidates, costs, extents)
        assert expected[choose(*extents)] == pytest.approx(min(expected), rel=1e-12)


def drawn_extents(chance: random.Random, batch: int, octaves: bool) -> Extents:
    """Extents of a problem; with ``octaves`` powers of two, so that many are equally near to others."""
    powers = (chance.uniform(0, 14) for _ in range(3))
    return Extents(batch, *(int(2 ** (int(power) if octaves else power)) for power in powers))


def drawn_times(
    candidates: Candidates,
    costs: Sequence[Costs],
    count: int,
    seed: int,
    batches: Sequence[int] = (1,),
    octaves: bool = False,
) -> RankedProblems:
    """Problems with times of some kernels, slower or faster than estimated, and of one that is none."""
    chance = random.Random(seed)
    problems = {}
    for _ in range(count):
        extents = drawn_extents(chance, chance.choice(batches), octaves)
        drawn = {
            digest: time * 1e-6 * chance.lognormvariate(0, 0.2)
            for digest, time in zip(candidates.digests, times(candidates, costs, extents), strict=True)
            if chance.random() < 0.7
        }
        order = sorted({**drawn, "ff": 1e-5}.items(), key=lambda item: item[1])
        digests, seconds = zip(*order, strict=True)
        # As a file has them: in single precision.
        rounded = unpack(f"<{len(order)}f", pack(f"<{len(order)}f", *seconds))
        problems[extents] = RankedProblem(extents, digests, rounded)
    return RankedProblems(problems.values())


@pytest.mark.parametrize("octaves", [False, True])
@pytest.mark.parametrize("batches", [(1,), (1, 7)])
@pytest.mark.parametrize("count", [1, 9, 80, 400])
@pytest.mark.parametrize("seed", range(3))
def test_native_code_corrects_estimates_as_python_does(
    native: Native, seed: int, count: int, batches: tuple[int, ...], octaves: bool
) -> None:
    candidates, costs = some_candidates(seed)
    # Alike, so that several lead, and each faster for some problems.
    costs = [own._replace(step=costs[0].step * (1 + number / 400)) for number, own in enumerate(costs)]
    problems = drawn_times(candidates, costs, count, seed, batches, octaves)
    choose = selection(native, candidates, costs, measured(list(problems), candidates, costs))
    estimate = candidates.estimator(costs, H200.sm_count)
    chance, changed = random.Random(200 + seed), 0
    for _ in range(300):
        extents = drawn_extents(chance, chance.choice([1, 1, 7]), octaves)
        plain = dict(zip(candidates.digests, times(candidates, costs, extents), strict=True))
        expected = corrected(plain, nearest(problems, extents), estimate)
        number = choose(*extents)
        taken = candidates.digests[number]
        assert expected[taken] == pytest.approx(min(expected.values()), rel=1e-9)
        # The second time, what the measured problems say of its kernels is known.
        assert choose(*extents) == number
        changed += taken != min(plain, key=plain.__getitem__)
    assert changed > (1 if count == 1 else 10)


def test_times_of_several_groups_correct_nothing(native: Native) -> None:
    candidates, costs = some_candidates(1)
    problems = list(drawn_times(candidates, costs, 9, 1))
    parts = [measured(part, candidates, costs) for part in (problems[:4], problems[4:])]
    choose = selection(native, candidates, costs, Ranked.merged(parts))
    for m in (24, 333, 5000):
        expected = times(candidates, costs, Extents(1, m, 3584, 3584))
        assert expected[choose(1, m, 3584, 3584)] == pytest.approx(min(expected), rel=1e-12)


def test_the_first_of_equals_is_taken(native: Native) -> None:
    candidates, costs = some_candidates(1)
    same = Candidates.of(dict.fromkeys(("aa", "bb", "cc"), candidates.tilings[3]), TRAFFIC, "sm_90a")
    assert selection(native, same, [costs[3]] * 3)(1, 333, 3584, 3584) == 0
    assert [same.digest(number) for number in range(3)] == ["aa", "bb", "cc"]


# -- operands -----------------------------------------------------------------------------------------------


def test_operands_are_chosen_for_as_their_extents_are(native: Native) -> None:
    candidates, costs = some_candidates(2)
    choose = selection(native, candidates, costs)
    for batch in (None, 1, 3):
        operands = product(m=96, n=64, k=48, batch=batch)
        assert choose(*tensors(*operands)) == choose(batch or 1, 96, 64, 48) >= 0


CHANGED = {
    "another GPU": lambda a, b, out: (a, b, replace(out, device=1)),
    "all on another GPU": lambda *operands: [replace(operand, device=1) for operand in operands],
    "not on a GPU": lambda a, b, out: (replace(a, device=None), b, out),
    "another element type": lambda a, b, out: (a, replace(b, dtype="bf16"), out),
    "another width": lambda a, b, out: (a, b, replace(out, dtype="f32")),
    "another layout": lambda a, b, out: (replace(a, strides=(1, 64)), b, out),
    "an address that is not aligned": lambda a, b, out: (replace(a, address=1026), b, out),
    "a stride that is not divisible": lambda a, b, out: (replace(a, strides=(17, 1)), b, out),
    "rows one over the other": lambda a, b, out: (replace(a, strides=(0, 1)), b, out),
    "rows that overlap": lambda a, b, out: (replace(a, strides=(8, 1)), b, out),
    "a stride beyond a descriptor's": lambda a, b, out: (replace(a, strides=(1 << 40, 1)), b, out),
    "an extent of 1": lambda a, b, out: (
        replace(a, shape=(1, 16)), b, replace(out, shape=(1, 32)),
    ),
    "an extent of 0": lambda a, b, out: (replace(a, shape=(0, 16)), b, replace(out, shape=(0, 32))),
    "an extent beyond 32 bits": lambda a, b, out: (
        replace(a, shape=(1 << 31, 16)), b, replace(out, shape=(1 << 31, 32)),
    ),
    "an extent that is not divisible": lambda a, b, out: (
        a, replace(b, shape=(16, 30)), replace(out, shape=(64, 30)),
    ),
    "extents that do not agree": lambda a, b, out: (replace(a, shape=(48, 16)), b, out),
    "depths that do not agree": lambda a, b, out: (replace(a, shape=(64, 8)), b, out),
    "columns that do not agree": lambda a, b, out: (a, b, replace(out, shape=(64, 24))),
    "a vector": lambda a, b, out: (replace(a, shape=(16,), strides=(1,)), b, out),
    "batches that do not agree": lambda a, b, out: (
        *product(batch=2)[:2], product(batch=3)[2],
    ),
    "a batch in some": lambda a, b, out: (product(batch=1)[0], b, out),
    "a batch that is broadcast": lambda a, b, out: (
        replace(product(batch=2)[0], strides=(0, 16, 1)), *product(batch=2)[1:],
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_python_decides_about_other_operands(native: Native, change: Any) -> None:
    candidates, costs = some_candidates(2)
    choose = selection(native, candidates, costs)
    assert choose(*tensors(*product())) >= 0
    assert choose(*tensors(*change(*product()))) == -1


def test_python_decides_about_what_is_not_a_tensor_or_has_no_strides(native: Native) -> None:
    candidates, costs = some_candidates(2)
    choose = selection(native, candidates, costs)
    a, b, out = tensors(*product())
    assert choose(1, b, out) == -1
    assert choose(None, b, out) == -1
    assert choose(a, b, tensors(product()[2], strided=False)[0]) == -1


def test_python_decides_about_problems_that_were_measured(native: Native) -> None:
    candidates, costs = some_candidates(2)
    # At the largest, logarithms of neighbours differ least.
    sizes = [64, 8, 3000, 264, 40, 512, (1 << 31) - 2]
    problems = [RankedProblem(Extents(1, m, 32, 16), ("00",), (1e-5,)) for m in sizes]
    choose = selection(native, candidates, costs, measured(problems))
    for m in sizes:
        assert choose(*tensors(*product(m=m))) == -1
        assert choose(*tensors(*product(m=m + 1))) >= 0


def test_python_decides_about_operands_that_are_not_those_of_a_plain_gemm(native: Native) -> None:
    candidates, costs = some_candidates(2)
    a, b, out = GEMM
    for operands in (
        (a, b, replace(out, multiples=(1, 64, 1))), (a, b, replace(out, compact=True)), (a, b, out, out),
        (a, b, replace(out, extents=("L", "M", "P"))),
    ):  # fmt: skip
        choose = selection(native, candidates, costs, operands=operands)
        assert choose(*tensors(*product())) == -1
        assert choose(1, 64, 32, 16) >= 0
    # Tensors have no element type of TF32: they are f32, for which there are other kernels.
    choose = selection(native, candidates, costs, operands=[replace(of, dtype="tf32") for of in GEMM])
    assert choose(*tensors(*(replace(of, dtype="f32") for of in product()))) == -1


@given(problems() | st.lists(descriptions(), min_size=3, max_size=3))
@settings(max_examples=500)
def test_what_native_code_chooses_for_is_supported(
    native: Native, operands: Sequence[OperandDescription]
) -> None:
    candidates, costs = some_candidates(3)
    if any(len(operand.shape) > 8 for operand in operands):
        return
    number = selection(native, candidates, costs)(*tensors(*operands))
    supported = bool(supports(GEMM, operands))
    a, b, _ = operands
    if number >= 0:
        batch = a.shape[0] if len(a.shape) == 3 else 1
        extents = Extents(batch, a.shape[-2], b.shape[-1], a.shape[-1])
        expected = times(candidates, costs, extents)
        assert supported
        assert expected[number] == pytest.approx(min(expected), rel=1e-12)
    elif supported:
        one = any(1 in operand.shape[-2:] for operand in operands)
        assert one or any(0 in operand.strides for operand in operands)


# -- launching ----------------------------------------------------------------------------------------------


def learnt(native: Native, seed: int = 2, kernel: str = "record") -> tuple[Any, Any]:
    """A selection that launches each kernel by one function, and that function."""
    candidates, costs = some_candidates(seed)
    choose, launch = selection(native, candidates, costs), native.launch(GEMM, kernel)
    for number in range(len(costs)):
        assert choose(number, launch) is None
    return choose, launch


def test_a_kernel_is_launched_once_it_is_known_how(native: Native) -> None:
    candidates, costs = some_candidates(2)
    choose, launch = selection(native, candidates, costs), native.launch(GEMM)
    given = tensors(*product(m=96, n=64, k=48))
    number = choose(*given)
    choose(number + 1, launch)
    native.count.value = -1
    assert choose(*given) == number
    assert native.count.value == -1
    choose(number, launch)
    assert choose(*given).handle == launch.handle
    # As compiled code takes them: with the batch.
    assert [seen.shape for seen in native.seen[: native.count.value]] == [
        (1, 96, 48),
        (1, 48, 64),
        (1, 96, 64),
    ]
    # What Python has to decide about is not launched.
    native.count.value = -1
    assert choose(*tensors(*product(m=1))) == -1
    assert native.count.value == -1


def test_the_first_function_for_a_kernel_stays_and_is_let_go_with_the_selection(native: Native) -> None:
    choose, launch = learnt(native)
    known = launch.references
    other = native.launch(GEMM, "fail")
    choose(0, other)
    assert (launch.references, other.references) == (known, 1)
    assert choose(*tensors(*product())).handle == launch.handle
    del choose
    assert launch.references == 1


def test_errors_of_a_launch_are_passed_on(native: Native) -> None:
    choose, _ = learnt(native, kernel="fail")
    with pytest.raises(Refused, match="ValueError: Mismatched type on argument #1"):
        choose(*tensors(*product()))


def test_what_is_not_a_kernel_is_not_learnt(native: Native) -> None:
    choose = selection(native, *some_candidates(2))
    launch = native.launch(GEMM)
    for number in (-1, 40, 1 << 40, 1.5, None):
        with pytest.raises(Refused, match="TypeError: expected the number of a kernel"):
            choose(number, launch)
    assert launch.references == 1


def test_a_dispatch_cache_launches_what_a_selection_chooses_and_remembers_it(native: Native) -> None:
    choose, launch = learnt(native)
    cache = native.dispatch_cache()
    first, second = tensors(*product(m=96)), tensors(*product(m=72, batch=3))
    assert cache(*first) is False
    # However often it is added, it is asked once.
    held = choose.references
    assert cache(choose) == cache(choose) == 0
    assert choose.references == held + 1
    known = launch.references
    for turn in range(3):
        assert [seen.shape[1] for seen in native.record(cache, *first)] == [96, 16, 96]
        assert [seen.shape[0] for seen in native.record(cache, *second)] == [3, 3, 3]
        # Each holds it once.
        assert launch.references == known + 2, turn
    # Neither do others go to the selection, nor what Python has to decide about.
    assert cache(*tensors(*product(m=1))) is False
    assert cache(*first[:2]) is False
    assert cache(*first, 2.0) is False
    assert cache(*first, launch) == 3
    del cache
    assert launch.references == known


def test_selections_are_asked_one_after_the_other(native: Native) -> None:
    candidates, costs = some_candidates(2)
    cache, counts = native.dispatch_cache(), []
    for dtype in ("f16", "bf16"):
        operands = [replace(of, dtype=dtype) for of in GEMM]
        choose, launch = selection(native, candidates, costs, operands=operands), native.launch(operands)
        for number in range(len(costs)):
            choose(number, launch)
        assert cache(choose) == 0
        counts.append((launch, launch.references))
    for m, dtype in ((64, "f16"), (64, "bf16"), (96, "bf16")):
        native.record(cache, *tensors(*(replace(of, dtype=dtype) for of in product(m=m))))
    assert [launch.references - before for launch, before in counts] == [1, 2]


def test_a_linear_layer_is_chosen_for_too(native: Native) -> None:
    choose, _ = learnt(native)
    cache = native.dispatch_cache()
    cache(choose)
    linear = native.make("linear", cache)
    x, weight, out = (
        describe(shape, "f16", address=1024, device=0) for shape in ((3, 8, 16), (32, 16), (3, 8, 32))
    )
    native.count.value = -1
    assert linear(*tensors(x, weight, out)) is None
    assert [seen.shape for seen in native.seen[: native.count.value]] == [
        (1, 24, 16),
        (1, 16, 32),
        (1, 24, 32),
    ]


def test_an_error_of_a_chosen_launch_is_not_remembered(native: Native) -> None:
    choose, launch = learnt(native, kernel="fail")
    cache = native.dispatch_cache()
    cache(choose)
    known = launch.references
    for _ in range(2):
        with pytest.raises(Refused, match="Mismatched type on argument #1"):
            cache(*tensors(*product()))
    assert launch.references == known


def test_a_full_dispatch_cache_asks_no_selection(native: Native) -> None:
    """Python finds the kernel then, and drops the cache."""
    choose, launch = learnt(native)
    cache = native.dispatch_cache()
    cache(choose)
    given, known = tensors(*product()), launch.references
    for m in range(2, MAX_REMEMBERED + 2):
        given[0].shape[0] = given[2].shape[0] = m
        assert cache(*given) is None
    assert launch.references == known + MAX_REMEMBERED
    assert cache(*given) is None
    given[0].shape[0] = given[2].shape[0] = 1 << 20
    assert cache(*given) is False
    assert cache(*given, launch) == MAX_REMEMBERED + 1


def test_threads_learn_choose_and_launch_at_once(native: Native) -> None:
    candidates, costs = some_candidates(2)
    choose, cache, launch = selection(native, candidates, costs), native.dispatch_cache(), native.launch(GEMM)
    start, failures = threading.Barrier(6), []

    def work(own: int) -> None:
        start.wait()
        try:
            for turn in range(300):
                choose((turn + own) % len(costs), launch)
                if turn == own:
                    cache(choose)
                given = tensors(*product(m=2 + turn, n=8 * (1 + own)))
                assert cache(*given) in (None, False)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(own,)) for own in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    native.record(cache, *tensors(*product(m=1000)))


# -- making one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, b"", "TypeError: expected tilings"), (0, b"x" * 51, "TypeError: expected tilings"),
        (0, bytes(40 * 52), "ValueError: impossible tiling"), (1, b"x", "TypeError: expected tilings"),
        (2, b"x" * 80, "ValueError: expected the costs of each kernel"), (3, b"x" * 8, "TypeError"),
        (4, b"x", "TypeError"),
        (5, b"x", "TypeError"), (5, b"", "ValueError: impossible"),
        (5, pack("=2I", 3, 2), "ValueError: impossible"), (5, pack("=2I", 1, 4), "ValueError: impossible"),
        (6, b"x", "TypeError"), (6, pack("=2H", 0, 1), "ValueError: impossible"),
        (6, pack("=3H", 0, 1, 2), "ValueError: impossible"),
        (7, b"x", "TypeError"), (7, pack("=3f", 1e-5, 0, 1e-5), "ValueError: impossible"),
        (7, pack("=3f", 1e-5, math.inf, 1e-5), "ValueError: impossible"),
        (8, b"x", "TypeError"), (8, b"", "ValueError: impossible"),
        (9, bytes(120), "ValueError: impossible tiling, operand or times"),
        (9, pack("=15q", *[2, 16, 3, 8, 16] * 3), "ValueError: impossible"),
        (10, 1.5, "TypeError"),
    ],
    ids=map(str, range(22)),
)  # fmt: skip
def test_what_is_not_a_group_is_refused(native: Native, position: int, value: Any, message: str) -> None:
    made: list[Any] = []
    candidates, costs = some_candidates(2)
    problems = [
        RankedProblem(Extents(1, 64, 32, 16), ("00",), (1e-5,)),
        RankedProblem(Extents(1, 64, 64, 16), ("00", "01"), (1e-5, 2e-5)),
    ]
    known = measured(problems, candidates, costs)
    native_choice.make(lambda *given: made.extend(given), candidates, costs, H200, known, GEMM, 0)
    assert native.make("select", *made)(1, 2, 3, 4) >= 0
    made[position] = value
    with pytest.raises(Refused, match=message):
        native.make("select", *made)


def test_a_bundle_whose_tilings_are_impossible_is_corrupt() -> None:
    def refused(*_: Any) -> None:
        raise ValueError("impossible tiling or operand")

    candidates, costs = some_candidates(2)
    with pytest.raises(CorruptFile, match=r"impossible tiling or operand.*build the bundle again"):
        native_choice.make(refused, candidates, costs, H200, None, GEMM, 0)


def test_what_is_not_a_problem_is_refused(native: Native) -> None:
    choose = selection(native, *some_candidates(2))
    for given_ in ((1, 2), (1, 0, 3, 4), (1, 2, 3, 4.5), (1, 2, 3, -4), (1, 2, 3, 4, 5)):
        with pytest.raises(Refused, match="TypeError: expected"):
            choose(*given_)
