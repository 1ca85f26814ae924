"""The manifest's [select] table and lists of shapes: what is read, and how each mistake is named."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.model import load_manifest, parse_manifest
from cutlass_aot.manifest.select import MAX_SHAPES, SelectSettings
from cutlass_aot.schema.kernels.operands import MAX_EXTENT
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.shapes import parse_shapes, shapes_of
from tests.support.paths import REPOSITORY

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
SHAPES = "m = [1, 16]\n[layers]\nnk = [[4096, 2048]]\n[experts]\ngroups = [[4, 8]]\n"
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
    (note,) = settings.shapes.notes
    assert note.startswith("select.shapes: shapes/llm.toml: table [experts] has no `nk`")
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
    tables = "{ m = [8], nk = [[64, 128]], batch = 4 }, { m = [1, 2], nk = [[64, 8]] }"
    text = f'heuristics = "nvmatmul"\nshapes = [{tables}]'
    expected = Extents(4, 8, 64, 128), Extents(1, 1, 64, 8), Extents(1, 2, 64, 8)
    assert parse(text).shapes.extents == expected


MISTAKES = {
    "empty": ("", r"\[select\]: expected a table with some of shapes, heuristics, keep, gpu, tuning"),
    "unknown key": ("shape = 1", r"unknown key 'shape' in \[select\]: expected one of shapes, heuristics"),
    "shapes alone": ("shapes = [{ m = [1], nk = [[1, 1]] }]", "select.heuristics: missing"),
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
    "list without m": (
        'heuristics = "x"\nshapes = [{ nk = [[1, 1]] }]',
        r"select.shapes\[0\]: `m` is missing",
    ),
    "list without nk": (
        'heuristics = "x"\nshapes = [{ m = [1] }]',
        r"select.shapes\[0\]: no table has `nk`, or extents",
    ),
    "list with a wrong pair": (
        'heuristics = "x"\nshapes = [{ m = [1], nk = [[1]] }]',
        r"select.shapes\[0\]: `table.nk\[0\]` is \[1\]: expected \[n, k\]",
    ),
    "list with an unknown key": (
        'heuristics = "x"\nshapes = [{ m = [1], nk = [[1, 1]], l = 2 }]',
        r"unknown key 'l' in select.shapes\[0\]: expected one of m, nk, batch",
    ),
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
    "nothing": ("", "no table has `nk`, or extents by name: expected"),
    "no m": ("[a]\nnk = [[1, 2]]", "`m` is missing"),
    "zero": (
        "m = [0]\n[a]\nnk = [[1, 2]]",
        r"`m\[0\]` has 0: expected a number from 1 to 9223372036854775807",
    ),
    "triple": ("m = [1]\n[a]\nnk = [[1, 2], [1, 2, 3]]", r"`a.nk\[1\]` is \[1, 2, 3\]: expected \[n, k\]"),
}


@pytest.mark.parametrize("mistake", sorted(FILES))
def test_a_mistake_in_a_shapes_file_is_named_with_the_file(tmp_path, mistake):
    text, message = FILES[mistake]
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ManifestError, match=message) as caught:
        parse('heuristics = "nvmatmul"\nshapes = "s.toml"', tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'm.toml'}: select.shapes: s.toml: ")


def test_more_shapes_than_can_be_ranked_in_a_reasonable_time_are_refused(tmp_path):
    (tmp_path / "s.toml").write_text(f"m = {list(range(1, 66))}\n[a]\nnk = {[[n, n] for n in range(1, 65)]}")
    with pytest.raises(ManifestError, match=f"select.shapes: 4160 problems, expected at most {MAX_SHAPES}"):
        parse('heuristics = "nvmatmul"\nshapes = "s.toml"', tmp_path)


@given(rows=FEW, tables=st.lists(st.tuples(PAIRS, EXTENT), min_size=1, max_size=3))
def test_a_list_in_the_manifest_says_what_a_file_says(rows, tables):
    document = {"m": rows, **{f"t{i}": {"nk": nk, "batch": batch} for i, (nk, batch) in enumerate(tables)}}
    listed = ", ".join(f"{{ m = {rows}, nk = {nk}, batch = {batch} }}" for nk, batch in tables)
    written = parse(f'heuristics = "nvmatmul"\nshapes = [{listed}]').shapes.extents
    assert sorted(written) == sorted(shapes_of(document, "file").extents)
    assert set(written) == {
        Extents(batch, m, n, k) for nk, batch in tables for n, k in nk for m in rows
    }  # fmt: skip


ANYTHING = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("abc", max_size=3) | st.just(1.5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["m", "nk", "batch", "x"]), ANYTHING), st.booleans())
def test_any_table_is_read_or_refused_in_words(table, listed):
    words = ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    value = f"{{ {words} }}"
    with contextlib.suppress(ManifestError):
        shapes = parse(f'heuristics = "nvmatmul"\nshapes = {f"[{value}]" if listed else value}').shapes
        assert 1 <= len(shapes.extents) <= MAX_SHAPES
        numbers = [number for e in shapes.extents for number in (e.batch, e.m, e.n, e.k)]
        assert all(type(number) is int and 1 <= number <= MAX_EXTENT for number in numbers)


def test_the_shapes_that_we_ship():
    path = REPOSITORY / "manifests" / "shapes" / "llm.toml"
    shapes = parse_shapes(path.read_bytes(), "llm.toml")
    assert len(shapes.extents) == 150
    assert shapes.notes == ()
    assert load_manifest(REPOSITORY / "manifests" / "sm100_llm.toml").select.shapes.extents == shapes.extents
