"""The manifest's [select] table and lists of shapes: what is read, and how each mistake is named."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.model import load_manifest, parse_manifest
from cutlass_aot.manifest.select import SelectSettings
from cutlass_aot.manifest.shapes import MAX_SHAPES, shapes_of_file, shapes_of_list
from cutlass_aot.manifest.toml import load_toml
from cutlass_aot.schema.operands import MAX_EXTENT
from cutlass_aot.schema.ranking import Extents

REPOSITORY = Path(__file__).resolve().parents[2]

HEAD = """
[bundle]
name = "test"
targets = ["sm_100a", "sm_103a"]
device = "b200"
[[kernels]]
generator = "cutlass.operators"
ab = "f16"
[select]
"""
SHAPES = "m = [1, 16]\n[layers]\nnk = [[4096, 2048]]\n[experts]\nnk = [[64, 64]]\ngroups = [[4, 8]]\n"
RANKED = 'heuristics = "nvmatmul"\nshapes = [{ m = [16, 1], nk = [[64, 128]] }]\n'

EXTENT = st.integers(1, MAX_EXTENT)
FEW = st.lists(EXTENT, min_size=1, max_size=4)
PAIRS = st.lists(st.lists(EXTENT, min_size=2, max_size=2), min_size=1, max_size=4)


def parse(text: str, folder: Path = Path()):
    return parse_manifest((HEAD + text).encode(), folder / "m.toml").select


def test_a_manifest_without_the_table_selects_nothing():
    text = HEAD.replace("[select]", "")
    assert parse_manifest(text.encode(), Path("m.toml")).select == SelectSettings()


def test_every_key_is_read(tmp_path):
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "llm.toml").write_text(SHAPES)
    (tmp_path / "h200.json").write_bytes(b"{}")
    settings = parse(
        'heuristics = "nvmatmul"\nshapes = "shapes/llm.toml"\nkeep = 4\ntuning = ["h200.json"]\n'
        'gpu = { sm_103a = "GB300_NVL" }',
        tmp_path,
    )
    assert settings.heuristics == "nvmatmul"
    assert settings.shapes.extents == (Extents(1, 1, 4096, 2048), Extents(1, 16, 4096, 2048))
    assert settings.shapes.passed_over == ("experts",)
    assert settings.keep == 4
    assert settings.gpus == {"sm_103a": "GB300_NVL"}
    assert settings.tuning == ("h200.json",)
    assert settings.inputs == {
        "shapes/llm.toml": hashlib.sha256(SHAPES.encode()).hexdigest(),
        "h200.json": hashlib.sha256(b"{}").hexdigest(),
    }


def test_tuning_files_need_no_heuristic(tmp_path):
    (tmp_path / "a.json").write_bytes(b"1")
    settings = parse('tuning = "a.json"', tmp_path)
    assert settings.tuning == ("a.json",)
    assert settings.heuristics == ""


def test_shapes_can_stand_in_the_manifest():
    text = 'heuristics = "nvmatmul"\nshapes = [{ m = 8, nk = [[64, 128]], batch = [1, 4] }]'
    assert parse(text).shapes.extents == (Extents(1, 8, 64, 128), Extents(4, 8, 64, 128))


MISTAKES = {
    "empty": ("", r"\[select\]: expected a table with some of shapes, heuristics, keep, gpu, tuning"),
    "unknown key": ("shape = 1", r"unknown key 'shape' in \[select\]: expected one of shapes, heuristics"),
    "shapes alone": ("shapes = [{ m = 1, nk = [[1, 1]] }]", "select.heuristics: missing"),
    "heuristic alone": ('heuristics = "nvmatmul"', "select.shapes: missing"),
    "keep alone": ("keep = 1", "select.keep: needs `heuristics` and `shapes`"),
    "gpu alone": ('gpu = { sm_100a = "B200" }', "select.gpu: needs `heuristics`"),
    "keep of none": (RANKED + "keep = 0", "select.keep: 0, expected a whole number from 1 to"),
    "keep true": (RANKED + "keep = true", "select.keep: True, expected"),
    "keep text": (RANKED + 'keep = "4"', "select.keep: '4', expected"),
    "gpu is text": (RANKED + 'gpu = "B200"', "select.gpu: 'B200', expected a table"),
    "gpu of another target": (
        RANKED + 'gpu = { sm_90a = "H200" }',
        "unknown key 'sm_90a' in select.gpu: expected one of sm_100a, sm_103a",
    ),
    "gpu is a number": (RANKED + "gpu = { sm_100a = 1 }", "select.gpu.sm_100a: 1, expected text"),
    "heuristics is a list": (RANKED.replace('"nvmatmul"', "[]"), r"select.heuristics: \[\], expected text"),
    "shapes is empty": ('heuristics = "x"\nshapes = []', r"select.shapes: \[\], expected a file, or a list"),
    "shapes is a number": ('heuristics = "x"\nshapes = 3', "select.shapes: 3, expected a file, or a list"),
    "shapes of texts": ('heuristics = "x"\nshapes = ["a"]', r"select.shapes\[0\]: 'a', expected a table"),
    "list without m": ('heuristics = "x"\nshapes = [{ nk = [[1, 1]] }]', r"select.shapes\[0\].m: missing"),
    "no such file": ('heuristics = "x"\nshapes = "none.toml"', "select.shapes: none.toml: cannot be read"),
    "absolute file": ('heuristics = "x"\nshapes = "/s.toml"', "'/s.toml', expected a path relative to"),
    "no such tuning": ('tuning = ["none.json"]', "select.tuning: none.json: cannot be read: No such file"),
    "absolute tuning": ('tuning = ["/a.json"]', "select.tuning: '/a.json', expected a path relative to"),
    "tuning of numbers": ("tuning = [1]", r"select.tuning: \[1\], expected a list of text"),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_a_mistake_is_named(tmp_path, mistake):
    text, message = MISTAKES[mistake]
    with pytest.raises(ManifestError, match=message) as caught:
        parse(text, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'm.toml'}: ")


def test_a_tuning_file_named_twice_is_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(b"1")
    with pytest.raises(ManifestError, match=r"select.tuning: 'a.json' stands there twice"):
        parse('tuning = ["a.json", "a.json"]', tmp_path)


FILES = {
    "no TOML": ("m = [", "not valid TOML"),
    "nothing": ("", "no problems; expected `m` and at least one table with `nk`"),
    "m alone": ("m = [1]", "no problems"),
    "grouped alone": ("m = [1]\n[a]\ngroups = [[1, 2]]", "no problems"),
    "no m": ("[a]\nnk = [[1, 2]]", "a.m: missing, expected a whole number from 1 to 2147483647"),
    "no nk": ("m = [1]\n[a]\nm = [2]", r"a.nk: missing, expected a list of pairs \[n, k\]"),
    "zero": ("m = [0]\n[a]\nnk = [[1, 2]]", r"a.m: \[0\], expected a whole number"),
    "true": ("m = [true]\n[a]\nnk = [[1, 2]]", r"a.m: \[True\], expected a whole number"),
    "too large": (f"m = {2**31}\n[a]\nnk = [[1, 2]]", "a.m: 2147483648, expected"),
    "empty m": ("m = []\n[a]\nnk = [[1, 2]]", r"a.m: \[\], expected"),
    "triple": ("m = [1]\n[a]\nnk = [[1, 2], [1, 2, 3]]", r"a.nk\[1\]: \[1, 2, 3\], expected \[n, k\]"),
    "fraction": ("m = [1]\n[a]\nnk = [[1.5, 2]]", r"a.nk\[0\]: \[1.5, 2\], expected"),
    "batch of zero": ("m = [1]\n[a]\nnk = [[1, 2]]\nbatch = 0", "a.batch: 0, expected"),
    "unknown key": ("m = [1]\n[a]\nnk = [[1, 2]]\nl = 3", "unknown key 'l' in a: expected one of m, nk"),
    "a value": ("m = [1]\nn = [2]\n[a]\nnk = [[1, 2]]", r"n: \[2\], expected `m`, or tables with `nk`"),
    "too many": (f"m = {list(range(1, 66))}\n[a]\nnk = {[[n, n] for n in range(1, 65)]}", "more than 4096"),
    "too many together": (
        f"m = {list(range(1, 65))}\n[a]\nnk = {[[n, n] for n in range(1, 65)]}\n[b]\nnk = [[9999, 1]]",
        "b: more than 4096 problems",
    ),
}


@pytest.mark.parametrize("mistake", sorted(FILES))
def test_a_mistake_in_a_shapes_file_is_named_with_the_file(tmp_path, mistake):
    text, message = FILES[mistake]
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ManifestError, match=message) as caught:
        parse('heuristics = "nvmatmul"\nshapes = "s.toml"', tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'm.toml'}: select.shapes: s.toml: ")


@given(rows=FEW, tables=st.dictionaries(st.sampled_from("abc"), PAIRS, min_size=1), batches=FEW)
def test_a_file_has_every_m_with_every_pair_once(rows, tables, batches):
    document = {"m": rows, **{name: {"nk": pairs, "batch": batches} for name, pairs in tables.items()}}
    expected = {
        Extents(batch, m, n, k)
        for pairs in tables.values()
        for n, k in pairs
        for m in rows
        for batch in batches
    }
    shapes = shapes_of_file(document).extents
    assert list(shapes) == sorted(expected)
    # Neither the order of tables nor that of numbers is a choice.
    turned = dict(reversed([*document.items()])) | {"m": rows[::-1]}
    assert shapes_of_file(turned).extents == shapes
    # What a list of tables says is the same.
    listed = [{"m": rows, "nk": pairs, "batch": batches} for pairs in tables.values()]
    assert shapes_of_list(listed, "select.shapes").extents == shapes


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["m", "nk", "batch", "groups", "x"]), ANYTHING))
def test_any_table_is_read_or_refused_in_words(table):
    for document in (table, {"m": [1], "a": table}):
        with contextlib.suppress(ManifestError):
            shapes = shapes_of_file(document)
            assert 1 <= len(shapes.extents) <= MAX_SHAPES
            numbers = [number for e in shapes.extents for number in (e.batch, e.m, e.n, e.k)]
            assert all(type(number) is int and 1 <= number <= MAX_EXTENT for number in numbers)


def test_the_shapes_that_we_ship():
    shapes = shapes_of_file(load_toml(REPOSITORY / "manifests" / "shapes" / "llm.toml"))
    assert len(shapes.extents) == 150
    assert shapes.passed_over == ()
    assert load_manifest(REPOSITORY / "manifests" / "sm100_llm.toml").select.shapes == shapes
