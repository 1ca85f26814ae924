"""Lists of problems: every m with every (n, k), and what is not such a list."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.tuning import shapes
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.shapes import parse_shapes


def parse(text):
    return parse_shapes(text.encode(), "s.toml")


def test_every_m_with_every_nk_once_in_order():
    found = parse(
        "m = [16, 1]\n[a]\nnk = [[64, 128], [32, 8]]\n[b]\nbatch = 4\nnk = [[64, 128], [64, 128]]\n"
    )
    assert found.extents == (
        Extents(1, 16, 64, 128),
        Extents(1, 1, 64, 128),
        Extents(1, 16, 32, 8),
        Extents(1, 1, 32, 8),
        Extents(4, 16, 64, 128),
        Extents(4, 1, 64, 128),
    )
    assert found.notes == ()


def test_a_table_can_have_its_own_m_and_several_batches():
    found = parse("m = 2\n[a]\nnk = [[8, 8]]\n[b]\nm = [3, 4]\nbatch = [1, 5]\nnk = [[8, 8]]\n")
    assert [(problem.batch, problem.m) for problem in found.extents] == [
        (1, 2),
        (1, 3),
        (1, 4),
        (5, 3),
        (5, 4),
    ]
    assert parse("[a]\nm = 7\nnk = [[8, 8]]\n").extents == (Extents(1, 7, 8, 8),)


def test_extents_by_name_are_problems_of_kernels_of_ones_own():
    found = parse("[norm]\nT = [1, 4096]\nH = 128\n[axpy]\nN = 1000\n")
    assert (found.extents, found.notes) == ((), ())
    assert found.own == ({"T": 1, "H": 128}, {"T": 4096, "H": 128}, {"N": 1000})
    assert parse("[long]\nN = 3000000000\n").own == ({"N": 3000000000},)


def test_each_problem_of_extents_by_name_is_there_once():
    found = parse("[a]\nN = [1, 1, 2]\n[b]\nN = 1\n[c]\nH = 4\nT = 5\n[d]\nT = 5\nH = 4\n")
    assert found.own == ({"N": 1}, {"N": 2}, {"H": 4, "T": 5})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[norm]\nT = [1, 0]\n", "`norm.T[1]` has 0: expected a number from 1 to"),
        ("[norm]\nT = []\n", "`norm.T` is []: expected a list that is not empty"),
        (f"[norm]\nT = {list(range(1, 400))}\nH = {list(range(1, 400))}\n", "more than 100000 problems"),
    ],
)
def test_extents_by_name_that_cannot_be_are_refused(text, message):
    with pytest.raises(ManifestError, match=re.escape(message)):
        parse(text)


def test_what_is_taken_otherwise_is_noted():
    found = parse(
        'm = [1]\n[a]\nnk = [[8, 8]]\n[about]\nsource = "a model"\n[moe]\ngroups = 4\nnk = [[16, 8]]\n'
    )
    assert found.extents == (Extents(1, 1, 8, 8), Extents(1, 1, 16, 8))
    assert found.notes == (
        "s.toml: table [about] has no `nk`: left out",
        "s.toml: table [moe] has `groups`: its `nk` are taken as dense problems",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nnk = [[8, 8]]\n", "`m` is missing: expected a list such as m = [1, 16, 4096]"),
        ("m = []\n[a]\nnk = [[8, 8]]\n", "`m` is []: expected a list that is not empty"),
        ("m = [8]\n[a]\nm = []\nnk = [[8, 8]]\n", "`a.m` is []: expected a list that is not empty"),
        ('m = "16"\n[a]\nnk = [[8, 8]]\n', "`m` has '16': expected a number"),
        ("m = [1, 0]\n[a]\nnk = [[8, 8]]\n", "`m[1]` has 0: expected a number from 1 to"),
        ("m = [true]\n[a]\nnk = [[8, 8]]\n", "`m[0]` has True: expected a number from 1 to"),
        ("m = [1.5]\n[a]\nnk = [[8, 8]]\n", "`m[0]` has 1.5: expected a number from 1 to"),
        ("m = [9223372036854775808]\n[a]\nnk = [[8, 8]]\n", "expected a number from 1 to"),
        ("m = [1]\nn = [8]\n", "unknown key `n`: expected `m`, and tables with `nk` or with extents by name"),
        ("m = [1]\n[a]\nnk = [[8, 8]]\nbatches = 2\n", "unknown key `a.batches`: expected one of `batch`"),
        ("m = [1]\n[a]\nnk = [[8, 8], [8]]\n", "`a.nk[1]` is [8]: expected [n, k]"),
        ("m = [1]\n[a]\nnk = [8, 8]\n", "`a.nk[0]` is 8: expected [n, k]"),
        ("m = [1]\n[a]\nnk = []\n", "`a.nk` is []: expected a list that is not empty"),
        ('m = [1]\n[a]\nnk = [["8", 8]]\n', "`a.nk[0]` has '8': expected a number"),
        ("m = [1]\n[a]\nbatch = -1\nnk = [[8, 8]]\n", "`a.batch` has -1: expected a number"),
        ("m = [1]\n[a]\nbatch = [1, 0]\nnk = [[8, 8]]\n", "`a.batch[1]` has 0: expected a number"),
        (
            "m = [1]\n[a]\nmk = [[8, 8]]\n",
            "no table has `nk`, or extents by name: expected one such as [layers]",
        ),
        ("m = [1\n", "not valid TOML"),
    ],
)
def test_what_is_no_list_of_problems_is_refused(text, message):
    with pytest.raises(ManifestError) as caught:
        parse(text)
    assert str(caught.value).startswith("s.toml: ")
    assert message in str(caught.value)


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(ManifestError, match=r"s\.toml: not UTF-8 text at byte 5"):
        parse_shapes(b"m = [\xff]", "s.toml")


def test_lists_are_bounded(monkeypatch):
    monkeypatch.setattr(shapes, "MAX_PROBLEMS", 3)
    parse("m = [1, 2, 3]\n[a]\nnk = [[8, 8]]\n")
    with pytest.raises(ManifestError, match="more than 3 problems: split the list"):
        parse("m = [1, 2, 3, 4]\n[a]\nnk = [[8, 8]]\n")


EXTENT = st.integers(1, 1 << 20)


@given(st.lists(EXTENT, min_size=1, max_size=4), st.lists(st.tuples(EXTENT, EXTENT), min_size=1, max_size=4))
def test_any_list_gives_its_products(heights, pairs):
    found = parse(f"m = {heights}\n[a]\nnk = {[list(pair) for pair in pairs]}\n")
    assert set(found.extents) == {Extents(1, m, n, k) for m in heights for n, k in pairs}
    assert len(found.extents) == len(set(found.extents))
