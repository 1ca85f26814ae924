"""Manifests: what is read, and how each mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.filters import DesignFilter, spread
from cutlass_aot.manifest.model import device_text, load_manifest, parse_manifest
from tests.support.paths import REPOSITORY

GOOD = """
[bundle]
name = "test"
version = "1.0"
targets = ["sm_100a", "sm_103a"]
device = "b200"

[[kernels]]
generator = "cutlass.operators"
operation = "gemm"
ab = ["f16", "i8"]
out = ["same", "f32"]
layouts = ["tnt", "ttt"]
tile = ["128x*"]
"""


def parse(text: str):
    return parse_manifest(text.encode(), Path("m.toml"))


def test_operands_are_the_product_of_what_is_listed():
    (table,) = parse(GOOD).tables
    assert table.combinations == (
        (("f16", "f16", "f16"), "f32"),
        (("f16", "f16", "f32"), "f32"),
        (("i8", "i8", "i8"), "i32"),
        (("i8", "i8", "f32"), "i32"),
    )
    assert table.layouts == ("tnt", "ttt")
    assert table.targets == ("sm_100a", "sm_103a")
    assert table.filters == (DesignFilter("tile", ("128x*",)),)


def test_a_and_b_can_differ():
    text = GOOD.replace('ab = ["f16", "i8"]', 'a = ["i8", "u8"]\nb = "bf16"').replace(', "f32"]', "]")
    (table,) = parse(text).tables
    assert table.combinations == ((("i8", "bf16", "bf16"), "f32"), (("u8", "bf16", "bf16"), "f32"))


def test_integers_accumulate_in_integers():
    (table,) = parse(GOOD.replace('ab = ["f16", "i8"]', 'a = "i8"\nb = "u8"').replace(', "f32"]', "]")).tables
    assert table.combinations == ((("i8", "u8", "i8"), "i32"),)


def test_tf32_gives_f32():
    (table,) = parse(GOOD.replace('["f16", "i8"]', '"tf32"').replace(', "f32"]', "]")).tables
    assert table.combinations == ((("tf32", "tf32", "f32"), "f32"),)


def test_scale_factors():
    (table,) = parse(GOOD).tables
    assert table.scales == ((None, None),)
    both = 'scale = [{ dtype = "f8e8m0", block = 32 }, { dtype = "f8e4m3", block = 16 }]'
    (table,) = parse(GOOD + both).tables
    assert table.scales == ((("f8e8m0", 32, 1),) * 2, (("f8e4m3", 16, 1),) * 2)
    (table,) = parse(GOOD + 'a_scale = { dtype = "bf16", block = 128 }').tables
    assert table.scales == ((("bf16", 128, 1), None),)


def test_an_operation_can_fix_its_operands():
    text = GOOD.replace('ab = ["f16", "i8"]\nout = ["same", "f32"]\nlayouts = ["tnt", "ttt"]', "")
    (table,) = parse(text.replace('"gemm"', '"copy"')).tables
    assert (table.combinations, table.layouts) == ((((), ""),), ("",))


def test_an_epilogue():
    formula = "alpha * accum + C"
    operands = '[kernels.operands]\nC = { dtype = "bf16", extents = "MN" }'
    (table,) = parse(f'{GOOD}epilogue = "D = relu({formula})"\n{operands}').tables
    assert [operand.name for operand in table.epilogue.operands] == ["C", "alpha"]
    (other,) = parse(f'{GOOD}epilogue = "D = relu(C + accum * (alpha))"\n{operands}').tables
    assert other.epilogue == table.epilogue


def test_each_target_can_have_its_device_profile():
    one = parse(GOOD)
    assert one.devices == {"sm_100a": "b200", "sm_103a": "b200"}
    assert device_text(one.devices) == "b200"
    text = GOOD.replace('device = "b200"', 'device = { sm_103a = "gb300", sm_100a = "b200" }')
    assert parse(text).devices == {"sm_100a": "b200", "sm_103a": "gb300"}
    assert device_text(parse(text).devices) == "sm_100a b200, sm_103a gb300"


def test_any_operation_can_list_its_operands():
    text = GOOD.replace('ab = ["f16", "i8"]\nout = ["same", "f32"]', 'dtypes = [["f32", "f32"]]')
    text = text.replace('["tnt", "ttt"]', '["tt"]').replace('"gemm"', '"copy"')
    (table,) = parse(text + 'accumulator = "f32"').tables
    assert table.combinations == ((("f32", "f32"), "f32"),)


def test_sums_are_exact_unless_a_table_says_otherwise():
    for written, expected in (
        ("", ("exact",)),
        ('accumulation = "fast"', ("fast",)),
        ('accumulation = ["fast", "exact"]', ("exact", "fast")),
    ):
        (table,) = parse(GOOD + written).tables
        assert table.accumulations == expected


MISTAKES = {
    "unknown top-level key": (GOOD + "\n[extra]\n", "unknown key 'extra' in the top level: expected one of"),
    "unknown bundle key": (GOOD.replace("device =", "devices ="), r"unknown key 'devices' in \[bundle\]"),
    "no bundle": ("[[kernels]]\ngenerator='x'", r"\[bundle\] is missing"),
    "no kernels": (GOOD.split("[[kernels]]")[0], r"\[\[kernels\]\], \[\[programs\]\] and"),
    "one bracket": (
        GOOD.replace("[[kernels]]", "[kernels]", 1),
        r"\[kernels\] is a single table: write \[\[kernels",
    ),
    "a key that may be meant": (
        GOOD.split("[[kernels]]")[0] + "[[kernels]]\ngenerator = 'g'\nAB = 'bf16'\n",
        r"kernels\[0\]\.ab: missing, expected some of .*; 'AB' may be meant for 'ab'",
    ),
    "another key that may be meant": (
        GOOD.split("[[kernels]]")[0] + "[[kernels]]\ngenerator = 'g'\ndtype = 'bf16'\n",
        r"kernels\[0\]\.ab: missing, expected some of .*; 'dtype' may be meant for 'dtypes'",
    ),
    "no command": (GOOD + "\n[[programs]]\n", r"programs\[0\].run: missing, expected the words of a command"),
    "a command as text": (
        GOOD + "\n[[programs]]\nrun = 'python x.py'\n",
        r"programs\[0\].run: 'python x.py'",
    ),
    "unknown key of a program": (
        GOOD + "\n[[programs]]\nrun = ['python']\nenv = {}\n",
        r"unknown key 'env' in programs\[0\]",
    ),
    "another target of a program": (
        GOOD + "\n[[programs]]\nrun = ['python']\ntargets = ['sm_80']\n",
        r"programs\[0\].targets: sm_80: expected some of the bundle's",
    ),
    "unknown tensors": (
        GOOD + "\n[[programs]]\nrun = ['python']\ntensors = 'mock'\n",
        r"programs\[0\].tensors: unknown 'mock': expected one of fake, real",
    ),
    "no variables": (
        GOOD + "\n[[programs]]\nrun = ['python']\nenvironment = { A = 1 }\n",
        r"programs\[0\].environment: expected a table of variables",
    ),
    "no timeout": (
        GOOD + "\n[[programs]]\nrun = ['python']\ntimeout = 0\n",
        r"programs\[0\].timeout: 0, expected a number of seconds",
    ),
    "no file of a recording": (GOOD + "\n[[recordings]]\n", r"recordings\[0\].file: missing"),
    "unknown dtype": (
        GOOD.replace('"i8"', '"int8"'),
        r"kernels\[0\].ab: unknown 'int8': expected one of f64",
    ),
    "unknown out": (GOOD.replace('"same"', '"equal"'), r"kernels\[0\].out: unknown 'equal'"),
    "unknown target": (GOOD.replace("sm_103a", "sm_104a"), "bundle.targets: unknown 'sm_104a'"),
    "empty targets": (GOOD.replace('["sm_100a", "sm_103a"]', "[]"), "bundle.targets: empty"),
    "bad name": (GOOD.replace('"test"', '"../x"'), "bundle.name: '../x' is not a name"),
    "bad version": (GOOD.replace('"1.0"', '"one"'), "bundle.version: 'one' is not a version"),
    "bad layout letter": (GOOD.replace('"tnt"', '"trt"'), r"kernels\[0\].layouts: 'trt'"),
    "layout of two": (GOOD.replace('"tnt"', '"tn"'), r"kernels\[0\].layouts: 'tn'"),
    "wrong type": (GOOD.replace('name = "test"', "name = 3"), "bundle.name: 3, expected text"),
    "limit of zero": (GOOD + "max_per_group = 0", "max_per_group: 0, expected a whole number above 0"),
    "limit of true": (GOOD + "max_per_group = true", "max_per_group: True"),
    "filter of floats": (GOOD + "stages = [1.5]", r"kernels\[0\].stages"),
    "empty filter": (GOOD + "stages = []", r"kernels\[0\].stages"),
    "exclude is text": (GOOD + 'exclude = "x"', r"kernels\[0\].exclude"),
    "both ways": (GOOD + 'dtypes = [["f16", "f16", "f16"]]', "give either `dtypes` or `ab`, not both"),
    "device of another target": (
        GOOD.replace('device = "b200"', 'device = { sm_90a = "h200" }'),
        "bundle.device names sm_90a, which is not among bundle.targets",
    ),
    "device of one target alone": (
        GOOD.replace('device = "b200"', 'device = { sm_100a = "b200" }'),
        "bundle.device.sm_103a: missing",
    ),
    "huge number": (GOOD + f"stages = {2**70}", "more than 64 bits"),
    "no TOML": ("[bundle\n", "not valid TOML.*line 1"),
    "missing ab": (GOOD.replace('ab = ["f16", "i8"]', ""), r"kernels\[0\].ab: missing"),
    "ab and a": (GOOD + 'a = "i8"', r"kernels\[0\]: give either `ab` or `a`, not both"),
    "a alone": (GOOD.replace("ab =", "a ="), r"kernels\[0\].b: missing"),
    "scale of text": (GOOD + 'scale = "mx"', r"kernels\[0\].scale: 'mx', expected a table such as"),
    "scale of no type": (GOOD + 'scale = { dtype = "mx", block = 32 }', "scale.dtype: unknown 'mx'"),
    "scale of no block": (GOOD + 'scale = { dtype = "f8e8m0", block = 0 }', "scale.block: 0, expected"),
    "scale of a list": (GOOD + 'scale = { dtype = ["f8e8m0"], block = 32 }', "scale.dtype: unknown"),
    "dtypes of lists": (
        GOOD.replace('ab = ["f16", "i8"]\nout = ["same", "f32"]', 'dtypes = [[["f16"], "f16", "f16"]]')
        + 'accumulator = "f32"',
        "dtypes: unknown",
    ),
    "two scales": (
        GOOD + 'scale = { dtype = "f8e8m0", block = 32 }\na_scale = { dtype = "f8e8m0", block = 32 }',
        "give either `scale` or `a_scale`, not both",
    ),
    "no formula": (GOOD + 'operands = { C = { dtype = "f32" } }', "`epilogue` is missing"),
    "wrong formula": (GOOD + 'epilogue = "D = softmax(accum)"', r"kernels\[0\]\.epilogue.*softmax"),
    "operands of nothing": (
        GOOD.replace('ab = ["f16", "i8"]\nout = ["same", "f32"]', "").replace('"gemm"', '"copy"'),
        r"kernels\[0\].layouts: needs operands",
    ),
    "unknown accumulation": (
        GOOD + 'accumulation = "fats"',
        r"kernels\[0\].accumulation: unknown 'fats': expected one of exact, fast; did you mean 'fast'",
    ),
    "unknown host": (
        GOOD.replace("device =", 'hosts = ["sparc"]\ndevice ='),
        "bundle.hosts: unknown 'sparc'",
    ),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_a_mistake_is_named(mistake):
    text, message = MISTAKES[mistake]
    with pytest.raises(ManifestError, match=message) as caught:
        parse(text)
    assert str(caught.value).startswith("m.toml: ")


def test_not_utf8_is_named(tmp_path):
    path = tmp_path / "m.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match="not UTF-8"):
        load_manifest(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ManifestError, match="cannot be read: No such file"):
        load_manifest(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted((REPOSITORY / "manifests").glob("*.toml")), ids=lambda p: p.stem)
def test_the_manifests_that_we_ship_parse(path):
    manifest = load_manifest(path)
    assert manifest.tables or manifest.programs


def test_a_program_has_the_targets_of_the_bundle_unless_it_names_some():
    text = GOOD.split("[[kernels]]")[0] + "[[programs]]\nrun = ['python', 'warm.py']\n"
    manifest = parse_manifest(text.encode(), Path("m.toml"))
    (program,) = manifest.programs
    assert program.targets == manifest.targets
    assert program.command == "python warm.py"
    assert program.fake_tensors
    named = parse_manifest((text + f"targets = ['{manifest.targets[-1]}']\n").encode(), Path("m.toml"))
    assert named.programs[0].targets == manifest.targets[-1:]


def test_kernels_may_need_no_device_profile():
    # Whether they do is for their generator to say: tests/unit/builder/test_plan.py.
    assert parse(GOOD.replace('device = "b200"', "")).devices == {}


def test_recordings_need_no_device_profile():
    text = '[bundle]\nname = "a"\ntargets = ["sm_90a"]\n[[recordings]]\nfile = "a.recording"\n'
    manifest = parse_manifest(text.encode(), Path("m.toml"))
    assert [table.file for table in manifest.recordings] == ["a.recording"]
    assert manifest.devices == {}


DESIGN = {"tile_shape": (256, 128, 64), "use_2cta_mma": True, "tile_scheduler": "clc", "num_smem_stages": 8}


@pytest.mark.parametrize(
    ("written", "value", "accepted"),
    [
        ("tile", "256x128", True),
        ("tile", "256x128x64", True),
        ("tile", "256x*", True),
        ("tile", "*x128", True),
        ("tile", "256", True),
        ("tile", 256, False),
        ("tile", "128x256", False),
        ("tile", "256x12", False),
        ("tile_shape", "256x128", True),
        ("use_2cta_mma", True, True),
        ("use_2cta_mma", False, False),
        ("use_2cta_mma", "true", True),
        ("use_2cta_mma", "false", False),
        ("use_2cta_mma", 1, False),
        ("scheduler", "clc", True),
        ("scheduler", "c*", True),
        ("scheduler", "static", False),
        ("stages", 8, True),
        ("stages", "8", True),
        ("stages", 4, False),
        ("cluster", "*", False),
    ],
)
def test_a_filter_accepts(written, value, accepted):
    assert DesignFilter(written, (value,)).accepts(DESIGN) is accepted


def test_a_cap_spreads_over_what_there_is():
    assert spread(3, 5) == [0, 1, 2]
    assert spread(10, 1) == [5]
    assert spread(10, 4) == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[bundle]", "[bundle]\nplugins = []", "'plugins' belongs above [bundle], at the top level"),
        ("[bundle]", 'device = "b200"\n[bundle]', "'device' belongs into [bundle]"),
        (
            "generator",
            "genrator",
            "kernels[0].generator: missing, expected text; 'genrator' may be meant for it",
        ),
        ("tile = ", "target = { sm_90a = 1 }\ntile = ", "or a list of them; did you mean 'targets'?"),
        ("targets", "tragets", "; did you mean 'targets'?"),
    ],
)
def test_a_key_that_is_misspelt_or_misplaced_is_told_what_is_meant(old, new, message):
    with pytest.raises(ManifestError) as caught:
        parse(GOOD.replace(old, new))
    assert str(caught.value).endswith(message)
