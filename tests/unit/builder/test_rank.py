"""Ranking a selection: which GPU is modelled, which requests are made, how ties are broken, what stays."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.builder.compile import compile as compiling
from cutlass_aot.builder.compile.messages import Rank
from cutlass_aot.builder.compile.pool import Pool
from cutlass_aot.builder.plan.plan import (
    enumerations,
    load_selection,
    load_sources,
    save_selection,
    select,
)
from cutlass_aot.builder.plan.rank import (
    MAX_RANKED,
    Model,
    best_first,
    check_answer,
    choose,
    find_model,
    rank,
    requests_of,
    supported,
)
from cutlass_aot.builder.records import Selection
from cutlass_aot.errors import GeneratorError, ManifestError, ToolchainError
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Heuristic, Problem, Ranked, Ranker
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.store.store import Store
from tests.support import ranking
from tests.support.inputs import plan_digest
from tests.support.kernels import gemm

HEAD = """
plugins = ["tests.support.ranking"]
[bundle]
name = "test"
targets = ["sm_90a"]
device = "h200"
[[kernels]]
generator = "ranking"
ab = "f16"
[select]
heuristics = "by_tile"
shapes = [{ m = [1, 13, 64], nk = [[64, 64]] }]
"""
DEVICES = {"sm_90a": load_profile("h200"), "sm_100a": load_profile("b200"), "sm_103a": load_profile("gb300")}
SHAPE = Extents(1, 64, 64, 64)
BY_TILE = Heuristic("By tile", "msgpack", "0", ranking.GPUS)
MODEL = Model("by_tile", {"ranking": BY_TILE}, {"sm_90a": "GOOD"}, ())

REFERENCES = {name: GeneratorReference(name, "module:Class") for name in ("ranking", "second")}


def manifest(extra: str = "", head: str = HEAD):
    return parse_manifest((head + extra).encode(), Path("m.toml"))


def model_of(extra: str = "", head: str = HEAD, **devices):
    parsed = manifest(extra, head)
    return find_model(parsed, load_sources(parsed), {**DEVICES, **devices})


def kernels(*designs):
    return [
        gemm(
            design={"family": family, "tile_shape": (*tile, 64), "tile_scheduler": scheduler},
            generator="ranking",
        )
        for family, tile, scheduler in designs
    ]


def request(members, shapes=(SHAPE,)):
    problem = Problem("gemm", ("f16", "f16", "f16"), "tnt", "f32")
    return Rank(REFERENCES["ranking"], problem, "sm_90a", tuple(members), tuple(shapes), "by_tile", "GOOD")


# --- which model of which GPU


def test_the_gpu_follows_from_the_device_profile():
    model = model_of()
    assert model.gpus == {"sm_90a": "GOOD"}
    assert model.warnings == ()
    assert model.packages == {"msgpack": "0"}


def test_the_manifest_can_name_the_gpu():
    assert model_of('gpu = { sm_90a = "LIAR" }').gpus == {"sm_90a": "LIAR"}


def test_without_a_heuristic_there_is_no_model():
    assert model_of(head=HEAD.split("[select]")[0]) is None


def test_a_gpu_that_the_heuristic_does_not_know_is_warned_of():
    model = model_of(head=HEAD.replace("sm_90a", "sm_100a"))
    assert model.gpus == {}
    (warning,) = model.warnings
    assert warning.startswith(
        "select: sm_100a is not ranked and stays whole: by_tile models GOOD (NVIDIA H200), "
    )
    assert warning.endswith("not NVIDIA B200")


def test_a_profile_of_a_gpu_that_the_target_does_not_run_on_is_refused():
    h200 = load_profile("h200")
    with pytest.raises(
        ManifestError,
        match=r"select.gpu.sm_100a: missing, .* 'h200' is of compute capability 9.0, where sm_100a does not",
    ):
        model_of(head=HEAD.replace("sm_90a", "sm_100a"), sm_100a=h200)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("by_tile", "by_luck"), "select.heuristics: unknown 'by_luck': expected one of by_tile"),
        (
            ("shapes", 'gpu = { sm_90a = "X" }\nshapes'),
            "select.gpu.sm_90a: unknown 'X': expected one of GOOD",
        ),
        (('"ranking"', '"simt_f64_gemm"'), "select.heuristics: no generator of the manifest can rank"),
    ],
)
def test_what_no_generator_has_is_named(change, message):
    head = HEAD.replace(*change).replace('ab = "f16"', 'ab = "f64"')
    with pytest.raises(ManifestError, match=message):
        model_of(head=head)


def test_cutlass_operators_is_a_ranker_and_others_are_none():
    parsed = manifest(head=HEAD.replace('"ranking"', '"cutlass.operators"').replace("by_tile", "nvmatmul"))
    sources = load_sources(parsed)
    assert isinstance(sources.instances["cutlass.operators"], Ranker)
    devices = {"sm_90a": load_profile("b200")}
    with pytest.raises(ManifestError, match="where sm_90a does not run"):
        find_model(parsed, sources, devices)


# --- which requests are made


def test_a_group_is_ranked_for_the_shapes_it_supports():
    members = kernels(("Known", (64, 64), "clc"), ("Known", (128, 64), "clc"))
    odd = Extents(1, 64, 64, 60)
    (only,), warnings = requests_of(members, [SHAPE, odd], MODEL, REFERENCES)
    assert only == request(members)
    assert warnings == []


def test_what_is_not_requested_is_warned_of():
    foreign = gemm(generator="other", dtypes=("bf16", "bf16", "bf16"))
    members = [*kernels(("Known", (64, 64), "clc")), foreign]
    requests, warnings = requests_of(members, [Extents(1, 64, 64, 60)], MODEL, REFERENCES)
    assert requests == []
    assert warnings == [
        "select: gemm-f16.f16.f16-f32-tnt-sm_90a is not ranked and stays whole: it supports none of 1 shapes",
        "select: generator 'other' has no heuristic 'by_tile': its kernels stay",
    ]


def test_two_rankings_of_one_group_are_not_mixed():
    members = [gemm(generator="ranking"), gemm(generator="second")]
    model = dataclasses.replace(MODEL, heuristics={"ranking": BY_TILE, "second": BY_TILE})
    requests, warnings = requests_of(members, [SHAPE], model, REFERENCES)
    assert requests == []
    assert "the rankings of ranking and second cannot be compared" in warnings[0]


def test_a_target_without_a_model_is_not_ranked():
    members = [gemm(target="sm_100a", generator="ranking")]
    assert requests_of(members, [SHAPE], MODEL, REFERENCES) == ([], [])


@pytest.mark.parametrize(
    ("layouts", "extents", "fits"),
    [
        ("tnt", Extents(1, 13, 64, 64), True),
        ("tnt", Extents(1, 64, 60, 64), False),
        ("tnt", Extents(1, 64, 64, 60), False),
        ("nnn", Extents(1, 13, 64, 64), False),
        ("nnn", Extents(1, 64, 13, 64), True),
        ("ttt", Extents(3, 13, 64, 64), True),
        ("ttt", Extents(1, 13, 60, 64), False),
    ],
)
def test_shapes_are_held_against_divisibility(layouts, extents, fits):
    assert supported(gemm(layouts=layouts).operands, [extents]) == ((extents,) if fits else ())


def test_what_is_no_gemm_has_no_shapes():
    operands = tuple(operand._replace(extents=("G", *operand.extents[1:])) for operand in gemm().operands)
    assert supported(operands, [SHAPE]) == ()


# --- what comes of an answer


@pytest.mark.parametrize("wrong", ["few", "foreign", "unmodelled", "twice", "empty tie"])
def test_an_answer_that_cannot_be_is_refused(wrong):
    members = kernels(("Known", (64, 64), "clc"), ("Known", (128, 64), "clc"))
    one, two = (kernel.digest for kernel in members)
    answer = Ranked(frozenset({one, two}), (((one,), (two,)),))
    check_answer(request(members), answer)
    changes = {
        "few": {"problems": ()},
        "foreign": {"modelled": answer.modelled | {"x"}},
        "unmodelled": {"modelled": frozenset({one})},
        "twice": {"problems": (((one,), (one,)),)},
        "empty tie": {"problems": (((one,), ()),)},
    }[wrong]
    with pytest.raises(GeneratorError, match=r"generator 'ranking' ranked gemm.* wrongly"):
        check_answer(request(members), dataclasses.replace(answer, **changes))


def test_of_kernels_that_tie_the_first_in_the_default_order_stands_for_all():
    members = kernels(
        ("Known", (64, 64), "static"), ("Known", (64, 64), "clc"), ("Known", (128, 64), "static")
    )
    by_digest = {kernel.digest: kernel for kernel in members}
    static, dynamic, other = by_digest
    for tied in ((static, dynamic), (dynamic, static)):
        assert best_first([(other,), tied], by_digest, SHAPE, 132) == (other, dynamic)


TILES = [
    ("Known", (16 * m, 16 * n), scheduler) for m in (4, 8) for n in (2, 4, 8) for scheduler in ("clc", "x")
]
POOL = kernels(*TILES, ("Unknown", (64, 8), "clc"))
DIGESTS = sorted(kernel.digest for kernel in POOL if dict(kernel.design)["family"] == "Known")
TIED = st.lists(st.lists(st.sampled_from(DIGESTS), min_size=1), max_size=5).map(
    lambda ties: [
        tuple(dict.fromkeys(d for d in tie if not any(d in earlier for earlier in ties[:index])))
        for index, tie in enumerate(ties)
    ]
).map(lambda ties: tuple(tie for tie in ties if tie))  # fmt: skip


@given(st.lists(TIED, min_size=1, max_size=6), st.none() | st.integers(1, 4))
def test_keep_leaves_out_what_is_modelled_and_nowhere_among_the_best(problems, keep):
    shapes = tuple(Extents(1, 64 * (index + 1), 64, 64) for index in range(len(problems)))
    selection = Selection(tuple(POOL), ("before",))
    answer = Ranked(frozenset(DIGESTS), tuple(problems), "why")
    requests = [request(POOL, shapes)]
    if not any(problems):
        if keep is None:
            assert choose(selection, requests, [answer], MODEL, DEVICES, keep, len(shapes)).rankings == ()
        else:
            with pytest.raises(ManifestError, match=r"select.keep: no kernel can be ranked, .* whole: why"):
                choose(selection, requests, [answer], MODEL, DEVICES, keep, len(shapes))
        return
    result = choose(selection, requests, [answer], MODEL, DEVICES, keep, len(shapes))
    by_digest = {kernel.digest: kernel for kernel in POOL}
    best = [best_first(tied, by_digest, shape, 132) for tied, shape in zip(problems, shapes, strict=True)]
    left = {kernel.digest for kernel in result.kernels}
    if keep is None:
        assert result.kernels == selection.kernels
    else:
        assert left & set(DIGESTS) == {digest for ranked in best for digest in ranked[:keep]}
        assert left - set(DIGESTS) == {by_digest[d].digest for d in by_digest if d not in DIGESTS}
    (ranked_group,) = result.rankings
    assert ranked_group.group == POOL[0].group
    assert not ranked_group.measured
    assert (ranked_group.gpu, ranked_group.origin) == ("GOOD", "By tile 0 for GOOD")
    expected = {
        shape: tuple(digest for digest in ranked if digest in left)[:MAX_RANKED]
        for shape, ranked in zip(shapes, best, strict=True)
        if ranked
    }
    assert {problem.extents: problem.kernels for problem in ranked_group.problems} == expected
    assert result.warnings[0] == "before"
    assert f"{len(expected)} of {len(problems)} shapes ranked for GOOD" in result.warnings[1]


def test_a_ranking_names_a_bounded_number_of_kernels():
    members = kernels(*(("Known", (64, 8 * (n + 1)), "clc") for n in range(MAX_RANKED + 3)))
    problem = tuple((kernel.digest,) for kernel in members)
    answer = Ranked(frozenset(kernel.digest for kernel in members), (problem,))
    result = choose(Selection(tuple(members), ()), [request(members)], [answer], MODEL, DEVICES, None, 1)
    assert result.rankings[0].problems[0].kernels == tuple(digest for (digest,) in problem[:MAX_RANKED])


def test_shapes_that_do_not_fit_are_told():
    members = kernels(("Known", (64, 64), "clc"))
    digest = members[0].digest
    answer = Ranked(frozenset({digest}), (((digest,),),))
    selection = Selection(tuple(members), ())
    (warning,) = choose(selection, [request(members)], [answer], MODEL, DEVICES, None, 3).warnings
    assert warning.endswith("1 of 3 shapes ranked for GOOD (2 not divisible as its operands have to be)")


# --- the whole of it, with a generator in workers


def planned(tmp_path, extra=""):
    parsed = manifest(extra)
    sources = load_sources(parsed)
    model = find_model(parsed, sources, DEVICES)
    with Pool(1, sources.instances["ranking"].modules) as pool:
        answers = compiling.enumerate_kernels(pool, enumerations(parsed, sources), DEVICES)
        selection = select(parsed, answers, "4.8.1")
        return selection, rank(selection, parsed, model, sources, DEVICES, pool)


@pytest.fixture
def installed(monkeypatch):
    """The package that the heuristic comes in, at the version it was written for."""
    monkeypatch.setattr("cutlass_aot.builder.plan.rank.metadata.version", lambda name: "0")


@pytest.mark.usefixtures("installed")
def test_workers_rank_and_the_best_are_kept(tmp_path):
    before, after = planned(tmp_path, "keep = 1")
    assert len(before.kernels) == 7
    designs = [tuple(value for _, value in kernel.design) for kernel in after.kernels]
    assert sorted(designs) == [
        ("Known", "clc", (128, 128, 64)),
        ("Known", "clc", (256, 128, 64)),
        ("Unknown", "clc", (64, 8, 64)),
    ]
    assert after.warnings == (
        "select: gemm-f16.f16.f16-f32-tnt-sm_90a: 2 of 3 shapes ranked for GOOD (1 without answer: 13 is "
        "unlucky); the best 1 of each shape keep 3 of 7 kernels, 4 left out; kept though not modelled: 1 "
        "(Unknown)",
    )
    by_digest = {kernel.digest: dict(kernel.design)["tile_shape"] for kernel in after.kernels}
    assert {
        problem.extents.m: [by_digest[digest] for digest in problem.kernels]
        for problem in after.rankings[0].problems
    } == {1: [(128, 128, 64)], 64: [(256, 128, 64), (128, 128, 64)]}


@pytest.mark.usefixtures("installed")
def test_without_keep_everything_stays(tmp_path):
    before, after = planned(tmp_path)
    assert after.kernels == before.kernels
    assert [len(problem.kernels) for problem in after.rankings[0].problems] == [2, 3]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ("LIAR", "generator 'ranking' ranked gemm-f16.f16.f16-f32-tnt-sm_90a wrongly"),
        (
            "RAISES",
            "failed on the ranking of gemm.*RuntimeError: no such model\n +--> .*:[0-9]+, in rank\n",
        ),
    ],
)
def test_a_generator_that_ranks_wrong_is_named(tmp_path, gpu, message):
    with pytest.raises(GeneratorError, match=message):
        planned(tmp_path, f'gpu = {{ sm_90a = "{gpu}" }}')


def test_another_version_of_the_heuristic_is_refused(tmp_path):
    with pytest.raises(
        ToolchainError, match=r"\[select\] needs msgpack 0, found 1.*pip install 'msgpack==0'"
    ):
        planned(tmp_path)


@pytest.mark.usefixtures("installed")
def test_a_ranked_selection_is_kept_by_what_it_follows_from(tmp_path):
    _, selection = planned(tmp_path, "keep = 1")
    store = Store(tmp_path / "store")
    save_selection(store, "0" * 64, selection)
    assert load_selection(store, "0" * 64) == selection


def test_a_plan_follows_from_the_bytes_of_the_files_it_names(tmp_path):
    head = HEAD.replace("[{ m = [1, 13, 64], nk = [[64, 64]] }]", '"s.toml"\ntuning = ["t.json"]')
    (tmp_path / "s.toml").write_text("m = [1]\n[a]\nnk = [[64, 64]]")
    (tmp_path / "t.json").write_text("{}")

    def plan(heuristics=None):
        parsed = parse_manifest(head.encode(), tmp_path / "m.toml")
        return plan_digest(parsed, DEVICES, heuristics)

    first = plan()
    assert first == plan()
    assert first != plan({"msgpack": "0"})
    (tmp_path / "t.json").write_text("{ }")
    second = plan()
    (tmp_path / "s.toml").write_text("m = [2]\n[a]\nnk = [[64, 64]]")
    assert len({first, second, plan()}) == 3
