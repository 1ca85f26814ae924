"""Planning: filters, caps, warnings, and the errors a manifest's author sees."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cutlass_aot.builder.plan.known_bad import TABLE, known_bad
from cutlass_aot.builder.plan.plan import (
    against_store,
    enumerations,
    kernel_keys,
    load_selection,
    load_sources,
    other_profiles,
    save_selection,
    select,
)
from cutlass_aot.builder.records import Selection
from cutlass_aot.errors import GeneratorError, ManifestError
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.store.store import Store
from tests.support.inputs import plan_digest
from tests.support.kernels import gemm, operand

HEAD = """
[bundle]
name = "test"
targets = ["sm_90a"]
device = "h200"
[[kernels]]
generator = "cutlass.operators"
ab = "f16"
"""


def manifest(extra: str = "", head: str = HEAD):
    return parse_manifest((head + extra).encode(), Path("m.toml"))


def kernels(*tiles):
    return [gemm(design={"family": "F", "tile_shape": tile, "use_2cta_mma": tile[0] > 128}) for tile in tiles]


TILES = kernels((64, 64, 64), (128, 64, 64), (128, 128, 64), (256, 128, 64))


def chosen(extra: str, answers=None):
    parsed = manifest(extra)
    questions = enumerations(parsed, load_sources(parsed))
    answers = answers or [(question, TILES) for question in questions]
    return [dict(kernel.design)["tile_shape"] for kernel in select(parsed, answers, "4.8.1").kernels]


def test_without_filters_everything_is_chosen():
    assert len(chosen("")) == 4


def test_filters_all_have_to_accept():
    assert chosen('tile = "128x*"\nuse_2cta_mma = false') == [(128, 128, 64), (128, 64, 64)]


def test_exclude_needs_all_of_one_of_its_tables():
    extra = 'exclude = [{tile = "128x*"}, {tile = "256x*", use_2cta_mma = false}]'
    assert chosen(extra) == [(256, 128, 64), (64, 64, 64)]


def test_a_cap_keeps_the_ends():
    assert len(chosen("max_per_group = 2")) == 2


def test_a_kernel_named_by_two_tables_is_built_once():
    extra = 'tile = "64x64"\n[[kernels]]\ngenerator = "cutlass.operators"\nab = "f16"\ntile = "64x*"'
    assert chosen(extra) == [(64, 64, 64)]


def test_a_filter_that_matches_nothing_is_named_with_what_there_is():
    with pytest.raises(
        ManifestError,
        match=r"kernels\[0\]: no kernel is left: tile = \['512x\*'\] matches nothing; .* has .*128x128x64",
    ):
        chosen('tile = "512x*"')


def test_a_value_that_matches_nothing_beside_others_is_warned_of():
    parsed = manifest('tile = ["64x64", "512x*"]\nexclude = [{tile = "999x*"}]')
    questions = enumerations(parsed, load_sources(parsed))
    selection = select(parsed, [(question, TILES) for question in questions], "4.8.1")
    assert selection.warnings == (
        "kernels[0]: tile = ['512x*'] matches nothing",
        "kernels[0]: exclude tile = ['999x*'] leaves nothing out",
    )


def test_an_exclude_that_leaves_nothing_is_named():
    with pytest.raises(ManifestError, match="`exclude` leaves none of 4"):
        chosen('exclude = {tile = "*"}')


def test_sums_of_fp8_on_sm_90a_alone_are_asked_for_in_each_way():
    parsed = manifest(
        'accumulation = ["exact", "fast"]',
        HEAD.replace('"f16"', '["f16", "f8e4m3"]').replace('"sm_90a"', '"sm_90a", "sm_100a"'),
    )
    questions = [(q.problem.dtypes[0], q.target, q.problem.accumulation) for q in enumerations(
        parsed, load_sources(parsed)
    )]  # fmt: skip
    assert questions == [
        ("f16", "sm_90a", "exact"), ("f16", "sm_100a", "exact"),
        ("f8e4m3", "sm_90a", "exact"), ("f8e4m3", "sm_90a", "fast"), ("f8e4m3", "sm_100a", "exact"),
    ]  # fmt: skip


def test_an_empty_enumeration_is_named():
    parsed = manifest()
    questions = enumerations(parsed, load_sources(parsed))
    with pytest.raises(ManifestError, match="has none for gemm"):
        select(parsed, [(question, []) for question in questions], "4.8.1")


def test_a_target_that_gets_nothing_is_warned_of():
    parsed = manifest(head=HEAD.replace('"sm_90a"', '"sm_100a", "sm_103a"'))
    first, second = enumerations(parsed, load_sources(parsed))
    selection = select(parsed, [(first, TILES), (second, [])], "4.8.1")
    assert selection.warnings == (
        "kernels[0]: gemm f16.f16.f16 accumulator f32 tnt on sm_103a: the generator has none",
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "colour = 1",
            r"kernels\[0\]: unknown key 'colour': expected one of generator, .*: family, tile, cluster",
        ),
        ("exclude = {colour = 1}", r"kernels\[0\]: unknown key 'colour'"),
        ('operation = "fft"', r"kernels\[0\].operation: generator 'cutlass.operators' has no 'fft'"),
    ],
)
def test_what_a_generator_lacks_is_named(extra, message):
    with pytest.raises(ManifestError, match=message):
        load_sources(manifest(extra))


def test_a_profile_of_a_gpu_that_does_not_run_a_target_is_said_where_its_numbers_are_compiled_in():
    equal = {"sm_103a": load_profile("b200")}
    assert other_profiles([gemm(target="sm_103a", constants={"sm_count": 148})], equal) == []
    with_numbers = [gemm(target=target, constants={"sm_count": 132}) for target in ("sm_90a", "sm_100a")]
    others = [gemm(target="sm_110a"), gemm(target="sm_120a", constants={"sm_count": 132})]
    assert other_profiles(with_numbers, {}) == []
    kernels = [*with_numbers, *others]
    devices = dict.fromkeys((kernel.target for kernel in kernels), load_profile("h200"))
    assert other_profiles(kernels, devices) == [
        "bundle.device: kernels for sm_100a are built for the number of multiprocessors of NVIDIA H200, "
        'which does not run them: expected b200, as in device = { sm_100a = "b200" }'
    ]


def test_a_device_profile_is_missed_where_a_generator_uses_it():
    without = HEAD.replace('device = "h200"', "")
    with pytest.raises(
        ManifestError,
        match=r"bundle.device: missing; kernels\[0\] .* 'cutlass.operators'.*one of b200, gb10, gb300, h100",
    ):
        load_sources(manifest(head=without))
    load_sources(manifest(head=without.replace("cutlass.operators", "simt_f64_gemm").replace("f16", "f64")))
    own = 'plugins = ["tests.support.declared_kernels"]\n' + without.replace('ab = "f16"', "")
    own = own.replace("cutlass.operators", "tiled") + 'operation = "tiled"'
    sources = load_sources(manifest(head=own))
    assert sources.instances["tiled"].enumerate


def test_a_target_that_a_generator_cannot_serve_is_named():
    text = HEAD.replace("cutlass.operators", "misbehaving").replace("sm_90a", "sm_100a")
    with pytest.raises(
        ManifestError, match="'misbehaving' cannot serve target sm_100a: expected some of sm_80"
    ):
        load_sources(manifest(head='plugins = ["tests.support.misbehaving"]\n' + text))


def test_an_unknown_generator_is_named():
    with pytest.raises(ManifestError, match=r"unknown generator .* .nobody.: expected one of .*cutlass"):
        load_sources(manifest(head=HEAD.replace("cutlass.operators", "nobody")))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('broken')", "cannot be imported: RuntimeError: broken"),
        ("x = 1", "registers no generator"),
        (
            "from cutlass_aot.generators.registry import register\n@register\nclass G:\n    name = 'g'\n",
            "is not a generator: it lacks version, operations",
        ),
    ],
)
def test_a_bad_plugin_is_named(tmp_path, monkeypatch, source, message):
    (tmp_path / "bad_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "bad_plugin", raising=False)
    with pytest.raises(GeneratorError, match=message):
        load_sources(manifest(head='plugins = ["bad_plugin"]\n' + HEAD))


TGV = gemm(design={"family": "TgvGemm", "tile_shape": (64, 8, 128)}, target="sm_103a")


@pytest.mark.parametrize(
    ("kernel", "dsl", "bad"),
    [
        (TGV, "4.8.1", True),
        (TGV, "4.0", True),
        (TGV, "3.9.9", False),
        (gemm(design=dict(TGV.design), target="sm_100a"), "4.8.1", False),
        (gemm(design=dict(TGV.design), target="sm_100f"), "4.8.1", True),
        (gemm(design=dict(TGV.design), target="sm_103f"), "4.8.1", True),
        (gemm(design={"family": "Other"}, target="sm_103a"), "4.8.1", False),
        (gemm(design=dict(TGV.design), target="sm_103a", generator="mine"), "4.8.1", False),
        (gemm(("u8", "u8", "i32"), accumulator="i32"), "4.8.1", True),
        (gemm(("u8", "u8", "bf16"), accumulator="i32", target="sm_100a"), "4.8.1", True),
        (gemm(("i8", "i8", "i32"), accumulator="i32"), "4.8.1", False),
        (gemm(("u8", "bf16", "bf16"), target="sm_100a"), "4.8.1", False),
    ],
)
def test_a_kernel_is_known_to_be_bad(kernel, dsl, bad):
    assert bool(known_bad(kernel, dsl)) is bad


def test_it_is_so_with_an_epilogue_too():
    kernel = gemm(("u8", "u8", "bf16"), accumulator="i32", target="sm_100a", epilogue="D = accum * row")
    row = operand("out", "f32")._replace(name="row", extents=("N",), written=False)
    assert known_bad(dataclasses.replace(kernel, operands=(*kernel.operands, row)), "4.8.1")


def test_a_row_ends_with_the_version_that_mends_it():
    row = dataclasses.replace(TABLE[0], until="4.10")
    assert known_bad(TGV, "4.9", (row,))
    assert not known_bad(TGV, "4.10", (row,))


def test_known_bad_kernels_are_left_out_with_a_warning():
    parsed = manifest(head=HEAD.replace('"sm_90a"', '"sm_100a", "sm_103a"'))
    good, bad = enumerations(parsed, load_sources(parsed))
    selection = select(parsed, [(good, TILES), (bad, [TGV])], "4.8.1")
    assert TGV not in selection.kernels
    assert any(
        "1 left out as known to be bad: TgvGemm has not been run" in warning for warning in selection.warnings
    )
    with pytest.raises(ManifestError, match="no kernel is left: TgvGemm has not been run on sm_103"):
        select(parsed, [(good, []), (bad, [TGV])], "4.8.1")


BAD = """
[[known_bad]]
generator = "cutlass.operators"
reason = "gives wrong results, our issue 12"
"""


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ("", 0),
        ('design = { tile = "128x*" }', 2),
        ('design = { tile = ["64x64x64", "128x128x64"], family = "F" }', 2),
        ('targets = ["sm_90a"]', 0),
        ('targets = ["sm_100a"]', 4),
        ('dtypes = ["f16.f16.*", "i8.i8.i8"]', 0),
        ('dtypes = "f16.f16"', 4),
        ('accumulator = "f32"', 0),
        ('accumulator = ["f16", "i32"]', 4),
        ('layouts = "*nt"', 0),
        ('layouts = ["nnt", "ttt"]', 4),
        ('since = "4.9"', 4),
        ('since = "4.8"\nuntil = "4.8.1"', 4),
        ('until = "5.0"', 0),
    ],
)
def test_a_manifest_knows_of_bad_kernels_too(keys, left):
    parsed = manifest(BAD + keys)
    (question,) = enumerations(parsed, load_sources(parsed))
    if not left:
        with pytest.raises(ManifestError, match="no kernel is left: gives wrong results, our issue 12"):
            select(parsed, [(question, TILES)], "4.8.1")
        return
    selection = select(parsed, [(question, TILES)], "4.8.1")
    assert len(selection.kernels) == left
    assert any("our issue 12" in warning for warning in selection.warnings) == (left < len(TILES))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[known_bad]\ngenerator = 'a'", r"\[known_bad\] is a single table: write \[\[known_bad\]\]"),
        ("[[known_bad]]\nreason = 'x'", r"known_bad\[0\].generator: missing"),
        ("[[known_bad]]\ngenerator = 'x'", r"known_bad\[0\].reason: missing"),
        (BAD + "family = 'F'", r"unknown key 'family' in known_bad\[0\]: expected one of generator"),
        (BAD + "since = 'new'", r"known_bad\[0\].since: 'new', expected a version of the DSL"),
        (BAD + "targets = 'sm_1'", r"known_bad\[0\].targets: unknown 'sm_1'"),
        (BAD + "design = 1", r"known_bad\[0\].design: 1, expected a table"),
        (BAD + "design = { tile = [] }", r"known_bad\[0\].design.tile: \[\]: expected a value"),
    ],
)
def test_a_wrong_table_of_bad_kernels_is_named(table, message):
    with pytest.raises(ManifestError, match=message):
        manifest(table)


def test_a_selection_is_kept_by_what_it_follows_from(tmp_path):
    store = Store(tmp_path / "store")
    parsed = manifest()
    device = {"sm_90a": load_profile("h200")}
    plan = plan_digest(parsed, device)
    assert load_selection(store, plan) is None
    selection = Selection(tuple(TILES), ("a warning",))
    save_selection(store, plan, selection)
    assert load_selection(store, plan) == selection
    assert plan == plan_digest(manifest(), device)
    assert plan != plan_digest(manifest('tile = "*"'), device)
    assert plan != plan_digest(parsed, {"sm_90a": load_profile("b200")})
    assert plan != plan_digest(parsed, device, compiler="other")


def test_without_artifacts_everything_is_to_build(tmp_path):
    parsed = manifest()
    sources = load_sources(parsed)
    selection = Selection(tuple(TILES), ())
    keys = kernel_keys(selection, sources.versions, "toolchain")
    planned = against_store(selection, keys, Store(tmp_path / "store"))
    assert {item.why for item in planned} == {"not in the store for this toolchain and generator"}


def test_a_generator_that_writes_another_name_is_refused():
    parsed = manifest()
    selection = Selection((gemm(generator="somebody"),), ())
    with pytest.raises(GeneratorError, match="a generator writes its own name"):
        kernel_keys(selection, load_sources(parsed).versions, "toolchain")


def test_where_a_generator_has_nothing_what_it_has_instead_is_said():
    parsed = manifest('layouts = ["tnt", "ttt"]\n')
    first, second = questions = enumerations(parsed, load_sources(parsed))
    alternatives = {first: "it has some with bf16 as `b`"}
    with pytest.raises(ManifestError) as caught:
        select(parsed, [(question, []) for question in questions], "4.8.1", alternatives)
    assert str(caught.value) == (
        "kernels[0]: no kernel is left: generator 'cutlass.operators' has none for "
        f"{first.name}: it has some with bf16 as `b`; {second.name}"
    )


@pytest.mark.parametrize(
    ("out", "said"),
    [("", ["f16"]), ('out = ["bf16", "f8e4m3", "f32"]', ["bf16 and f32"]), ('out = "f8e4m3"', [])],
)
def test_an_output_that_is_scaled_by_block_and_not_quantised_is_said(out, said):
    parsed = manifest(
        f'{out}\nepilogue = "scale = max(abs(accum)) / 448; t = 1 / scale; D = accum * t"\n'
        'operands = { scale = { extents = "MN/128" } }'
    )
    questions = enumerations(parsed, load_sources(parsed))
    found = select(parsed, [(question, TILES) for question in questions], "4.8.1").warnings
    assert [warning for warning in found if "quantised" in warning] == [
        "kernels[0]: D is scaled by `scale`, which has a value for each 128 columns, and stored as "
        f'{names}: a quantised output needs its type, such as out = "f8e4m3"'
        for names in said
    ]


def test_a_name_in_an_epilogue_that_is_declared_nowhere_is_said_once():
    table = """
epilogue = "D = relu(accum * alpha) + bia + beta + bias"
operands = { bias = { extents = "N" }, beta = {} }
"""
    more = HEAD[HEAD.index("[[kernels]]") :] + table
    parsed = manifest(table + more)
    questions = enumerations(parsed, load_sources(parsed))
    found = select(parsed, [(question, TILES) for question in questions], "4.8.1").warnings
    assert [warning for warning in found if "epilogue" in warning] == [
        "kernels[0], kernels[1]: `alpha` of the epilogue is declared nowhere: it is a number, passed by "
        "value; operands = { alpha = {} } says that this is meant",
        "kernels[0], kernels[1]: `bia` of the epilogue is declared nowhere: it is a number, passed by "
        "value; operands = { bia = {} } says that this is meant; did you mean 'bias'?",
    ]
