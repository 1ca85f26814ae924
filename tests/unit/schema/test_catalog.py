"""The indices of a bundle: what is written is read, what is not asked for is not decoded, junk is refused."""

from __future__ import annotations

import random
import struct

import pytest

from cutlass_aot.errors import BundleError, CorruptFile, SchemaTooNew
from cutlass_aot.schema.bundles import catalog as module
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_KIND,
    SCHEMA,
    Catalog,
    FileReference,
    GroupEntry,
    Groups,
    RankingReference,
    common_alignment,
    signature,
)
from cutlass_aot.schema.bundles.group_index import GROUP_KIND, group_from_bytes, group_to_bytes
from cutlass_aot.schema.bundles.tiling_table import TilingTable
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode, seal, unseal
from cutlass_aot.schema.kernels.tiling import Tiling
from cutlass_aot.schema.tuning.costs import FORMULA, Costs, Machine
from cutlass_aot.schema.tuning.ranking import (
    RANKING_KIND,
    RANKING_SCHEMA,
    Extents,
    RankedProblem,
    RankedProblems,
    Ranking,
)
from tests.support.bundles import REQUIREMENTS, designs, entry
from tests.support.kernels import gemm, operand


def reference(path):
    return FileReference(path, 7, "ab" * 32)


def group(name="g", rankings=(), **changes):
    kernel = gemm(**changes)
    return GroupEntry(
        name, kernel.operation, kernel.operands, kernel.accumulator, kernel.epilogue, kernel.target, 3,
        reference(f"groups/{name}.msgpack"), reference("code/k.zst"),
        {"x86_64": (reference("lib/x86_64/k.so.zst"),)}, rankings,
    )  # fmt: skip


GROUPS = [
    group("d"),
    group("a", dtypes=("bf16",) * 3),
    group("c", accumulator="f16"),
    group("b", rankings=(RankingReference("NVIDIA H200", True, reference("rankings/b-0.msgpack")),)),
    group("e", operation="conv"),
]


def word(dtypes, operation="gemm", layouts="tnt", target="sm_90a"):
    return signature(operation, dtypes, layouts, target)


def catalog(groups=GROUPS, **changes):
    values = {
        "name": "small", "version": "0.1.0", "device": "h200", "targets": ("sm_90a",), "hosts": ("x86_64",),
        "requirements": REQUIREMENTS, "provenance": {"dsl": "4.8.1"}, "groups": Groups.of(groups),
        "launchers": {"x86_64": reference("lib/x86_64/launcher.so.zst")}, "alignment": 16,
    }  # fmt: skip
    return Catalog(**{**values, **changes})


@pytest.fixture
def decoded(monkeypatch):
    """Names of the groups that are decoded, as they are."""
    names = []

    def recorded(cls, data, what):
        if cls is GroupEntry:
            names.append(data["name"])
        return from_plain(cls, data, what)

    monkeypatch.setattr(module, "from_plain", recorded)
    return names


# -- groups -------------------------------------------------------------------------------------------------


def test_groups_read_back_in_order_of_name():
    groups = Groups.of(GROUPS)
    assert list(groups) == sorted(GROUPS, key=lambda item: item.name)
    assert [groups[0].name, groups[-1].name, [g.name for g in groups[1:3]]] == ["a", "e", ["b", "c"]]
    assert len(groups) == 5
    assert GROUPS[0] in groups
    assert list(Groups.of([])) == []
    assert len(Groups.of([])) == 0


def test_the_order_they_are_given_in_does_not_show():
    expected = catalog().to_bytes()
    for seed in range(5):
        shuffled = random.Random(seed).sample(GROUPS, len(GROUPS))
        assert Groups.of(shuffled) == Groups.of(GROUPS)
        assert hash(Groups.of(shuffled)) == hash(Groups.of(GROUPS))
        assert catalog(shuffled).to_bytes() == expected
    assert Groups.of(GROUPS) != Groups.of(GROUPS[1:])
    assert Groups.of(GROUPS) != GROUPS


def test_groups_are_kept_by_what_is_asked_for_first():
    assert signature("gemm", ["f16", "bf16"], "tn", "sm_90a") == "gemm f16.bf16 tn sm_90a"
    groups = Groups.of(GROUPS)
    assert [g.name for g in groups.with_signature(word(["f16"] * 3))] == ["b", "c", "d"]
    assert [g.name for g in groups.with_signature(word(["bf16"] * 3))] == ["a"]
    assert [g.name for g in groups.with_signature(word(["f16"] * 3, operation="conv"))] == ["e"]
    assert {g.signature for g in GROUPS} == set(groups.records)
    for other in (word(["f16"] * 2), word(["f16"] * 3, layouts="ttt"), word(["f16"] * 3, target="sm_80"), ""):
        assert groups.with_signature(other) == ()


def test_groups_of_element_types_in_any_layout_and_for_any_target():
    others = [
        group("x", layouts="ttt"),
        group("y", target="sm_100a"),
        group("z", dtypes=("f16", "f16", "f32")),
    ]
    groups = Groups.of([*GROUPS, *others])
    assert {g.name for g in groups.with_dtypes("gemm", ["f16"] * 3)} == {"b", "c", "d", "x", "y"}
    assert {g.name for g in groups.with_dtypes("gemm", ["f16", "f16", "f32"])} == {"z"}
    assert {g.name for g in groups.with_dtypes("conv", ["f16"] * 3)} == {"e"}
    # No beginning of a name is taken for the name.
    assert groups.with_dtypes("gem", ["f16"] * 3) == ()
    assert groups.with_dtypes("gemm", ["f16", "f16", "f"]) == ()
    assert groups.with_dtypes("gemm", ["f16", "f16"]) == ()


def test_reading_decodes_nothing_and_a_look_up_its_own_once(decoded):
    found = Catalog.from_bytes(catalog().to_bytes(), "catalog")
    assert len(found.groups) == 5
    assert decoded == []
    for _ in range(3):
        first = found.groups.with_signature(word(["bf16"] * 3))
        assert first is found.groups.with_signature(word(["bf16"] * 3))
        assert found.groups.with_dtypes("gemm", ["bf16"] * 3) == first
        assert found.groups.with_dtypes("gemm", ["f64"] * 3) == ()
    assert decoded == ["a"]
    list(found.groups)
    decoded.clear()
    list(found.groups)
    assert decoded == []


def test_everything_of_a_catalog_reads_back():
    written = catalog()
    found = Catalog.from_bytes(written.to_bytes(), "catalog")
    assert found == written
    assert hash(found.groups) == hash(written.groups)
    assert list(found.groups) == list(written.groups)
    assert found.groups[1].rankings == GROUPS[3].rankings
    assert found.groups[1].files == (
        reference("groups/b.msgpack"), reference("code/k.zst"), reference("lib/x86_64/k.so.zst"),
        reference("rankings/b-0.msgpack"),
    )  # fmt: skip
    assert found.to_bytes() == written.to_bytes()


def test_the_common_alignment_is_that_of_all_operands():
    assert common_alignment([]) == 1
    assert common_alignment(GROUPS) == 16
    odd = tuple(operand(name, alignment=n) for name, n in (("a", 4), ("b", 6), ("out", 16)))
    assert common_alignment([group(operands=odd)]) == 48


def body(**changes):
    found = unseal(catalog().to_bytes(), CATALOG_KIND, SCHEMA, "catalog")
    return {**found, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None, "needs": {}},
        {"needs": {"cuda_driver": "12.0", "tvm_ffi": "main", "glibc": "2.28"}},
        {"groups": []},
        {"groups": {"gemm f16": b"bytes"}},
        {"groups": {"gemm f16": ["text"]}},
        {"groups": {"gemm f16": None}},
        {"launchers": None},
        {"launchers": {"x86_64": None}},
        {"launchers": {"x86_64": {"path": "../x", "size": 1, "sha256": "0"}}},
        {"alignment": 0},
        {"alignment": -16},
        {"alignment": True},
        {"alignment": "16"},
        {"alignment": 1 << 32},
        {"targets": 3},
        {"provenance": []},
    ],
)
def test_a_malformed_catalog_is_refused(changes):
    with pytest.raises(CorruptFile):
        Catalog.from_bytes(seal(CATALOG_KIND, SCHEMA, body(**changes)), "catalog")


@pytest.mark.parametrize("missing", ["launchers", "alignment", "groups", "needs", "name"])
def test_a_catalog_without_a_field_is_refused(missing):
    found = body()
    del found[missing]
    with pytest.raises(CorruptFile, match=f"catalog is malformed: {missing}: it is missing"):
        Catalog.from_bytes(seal(CATALOG_KIND, SCHEMA, found), "catalog")


@pytest.mark.parametrize(
    "changes",
    [
        {"operands": []},
        {"operands": [{"name": "a"}]},
        {"operands": [encode({"name": "a"})]},
        {"operands": [b"\xc1"]},
        {"operands": 3},
        {"code": b"x"},
        {"child": None},
        {"child": {"path": "/etc/passwd", "size": 1, "sha256": "0"}},
        {"libraries": encode({"x86_64": 1})},
        {"libraries": encode([])},
        {"libraries": encode({"x86_64": []})},
        {"libraries": {}},
        {"rankings": [["gpu"]]},
        {"rankings": [["gpu", True, {"path": "../../x", "size": 1, "sha256": "0"}]]},
        {"rankings": None},
        {"count": "many"},
        {"operation": "conv"},
        {"target": "sm_80"},
    ],
)
def test_a_malformed_group_is_refused_when_it_is_needed(changes):
    good = body()
    requested = word(["bf16"] * 3)
    record = {**decode(good["groups"][requested][0], "group"), **changes}
    bad = body(groups={**good["groups"], requested: [encode(record)]})
    found = Catalog.from_bytes(seal(CATALOG_KIND, SCHEMA, bad), "catalog")
    assert [g.name for g in found.groups.with_signature(word(["f16"] * 3))] == ["b", "c", "d"]
    for _ in range(2):
        with pytest.raises(CorruptFile, match=r"catalog|leads out of the bundle"):
            found.groups.with_signature(requested)
        with pytest.raises(CorruptFile, match=r"catalog|leads out of the bundle"):
            list(found.groups)


def test_schema_versions_of_every_file():
    members = [entry(kernel) for kernel in designs()]
    ranking = Ranking(
        "ab" * 32, "gpu", False, "o", RankedProblems([RankedProblem(Extents(1, 1, 1, 1), ("aa",))])
    )
    for data, kind, schema, read in (
        (catalog().to_bytes(), CATALOG_KIND, SCHEMA, lambda d: Catalog.from_bytes(d, "it")),
        (group_to_bytes(members), GROUP_KIND, SCHEMA, lambda d: group_from_bytes(d, group(), "it")),
        (ranking.to_bytes(), RANKING_KIND, RANKING_SCHEMA, lambda d: Ranking.from_bytes(d, "it")),
    ):
        found = unseal(data, kind, schema, "it")
        with pytest.raises(
            SchemaTooNew, match=f"it has schema version {schema + 1}.*up to {schema}: upgrade"
        ):
            read(seal(kind, schema + 1, found))
        with pytest.raises(CorruptFile, match="is not a 'cutlass-aot"):
            read(seal("another", schema, found))
        if schema > 1:
            with pytest.raises(CorruptFile, match=f"no longer reads: build it again, with version {schema}"):
                read(seal(kind, schema - 1, found))


def test_the_module_says_which_files_there_are():
    for name in ("catalog.msgpack", "groups/", "rankings/", "launcher", "MANIFEST.json"):
        assert name in (module.__doc__ or "")


# -- a group's own index ------------------------------------------------------------------------------------

MEMBERS = [
    *designs(((64, 128), (128, 128))),
    gemm(design={"family": "G", "stages": 3, "flag": False}, constants={"sms": 132}, workspace_bytes=64),
    gemm(design={}, generator="another"),
]


def index_of(members=MEMBERS):
    entries = [entry(kernel)._replace(provenance={"by": kernel.generator}) for kernel in members]
    return entries, group_from_bytes(group_to_bytes(entries), group(), "index")


def test_every_kernel_of_an_index_reads_back():
    entries, index = index_of()
    assert list(index) == entries
    assert len(index) == 4
    assert [index[-1], index[1:3]] == [entries[-1], entries[1:3]]
    with pytest.raises(IndexError):
        index[4]
    for position, item in enumerate(entries):
        kernel = item.kernel
        assert index.digest(position) == kernel.digest
        assert index.design(position) == dict(kernel.design)
        assert index.position(kernel.digest) == position
        # The digest is taken from the row; it is the record's own.
        found = index[position].kernel
        assert found.digest == from_plain(type(found), to_plain(found), "it").digest
    assert index.position("ab" * 32) is None
    assert index.position("") is None


def test_kernels_are_made_once_and_only_those_asked_for(monkeypatch):
    from cutlass_aot.schema.kernels.kernel import Kernel

    _, index = index_of()
    made = []
    real = Kernel.make.__func__
    monkeypatch.setattr(
        Kernel, "make", classmethod(lambda cls, **k: (made.append(k["digest"]), real(cls, **k))[1])
    )
    for position in range(len(index)):
        index.digest(position), index.design(position)
    assert made == []
    assert index[2] is index[2]
    assert made == [index.digest(2)]


ROW = ["g", [None], {}, 0, b"\2" * 32, ["sm_90a", "13.0", 1, 0, 0, 0], 0, [0, 1, b"\3" * 32], 0]


def index_file(*rows, **changes):
    """The file of an index with these rows."""
    table = TilingTable.of([Tiling.make([None] * 8, {})] * len(rows))
    body = {
        "design": ["family"], "provenance": [{}], "digests": b"\1" * 32 * len(rows),
        "rows": [encode(row) for row in rows], "tilings": table.rows, "kinds": list(table.kinds),
    }  # fmt: skip
    return seal(GROUP_KIND, SCHEMA, {**body, **changes})


def test_a_row_that_is_sound_is_read():
    assert group_from_bytes(index_file(ROW), group(), "index")[0].code.sha256 == "03" * 32


def test_an_index_has_the_tilings_of_its_kernels():
    members = designs(((64, 128), (128, 128)))
    index = group_from_bytes(group_to_bytes([entry(kernel) for kernel in members]), group(), "index")
    assert index.tilings == TilingTable.of(list(map(Tiling.of, members)))
    by_position = zip(index.tilings.column("position"), index.tilings.tilings(), strict=True)
    assert [tiling for _, tiling in sorted(by_position)] == list(map(Tiling.of, members))
    assert index.tilings != TilingTable.of(list(map(Tiling.of, members[::-1])))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, None), (0, 7), (1, None), (1, []), (1, [1, 2]), (1, 7),
        (2, None), (2, {"sms": "many"}), (3, "x"), (4, "text"), (4, None),
        (5, []), (5, None), (6, 9), (6, -1), (6, None), (6, "x"),
        (7, None), (7, [0, 1]), (7, [0, 1, b"short"]),
        (7, [-1, 1, b"\3" * 32]), (7, [1 << 30, 1, b"\3" * 32]),
        (8, 1), (8, -1), (8, True), (8, None),
    ],
)  # fmt: skip
def test_a_malformed_row_is_refused_at_the_latest_when_it_is_asked_for(position, value):
    row = list(ROW)
    row[position] = value
    data = index_file(ROW, row)
    with pytest.raises(CorruptFile, match="index is malformed"):
        group_from_bytes(data, group(), "index")[1]
    if position == 1:
        with pytest.raises(CorruptFile, match="index is malformed"):
            group_from_bytes(data, group(), "index").design(1)


@pytest.mark.parametrize(
    "wrong",
    [{"design": 1}, {"provenance": [1]}, {"provenance": 1}, {"rows": 3}, {"rows": []}, {"digests": b""},
     {"digests": 1}, {"digests": b"\1" * 33}, {"tilings": b""}, {"tilings": 1}, {"tilings": b"x"},
     {"tilings": b"x" * 52}, {"tilings": bytes(52)}, {"tilings": bytes(104)}, {"kinds": []}, {"kinds": 1},
     {"tilings": [0] * 13}],
)  # fmt: skip
def test_a_malformed_index_is_refused_at_the_latest_when_it_is_needed(wrong):
    def read(data):
        index = group_from_bytes(data, group(), "index")
        index.tilings.tilings()
        return list(index)

    assert len(read(index_file(ROW))) == 1
    with pytest.raises(CorruptFile, match="index is malformed"):
        read(index_file(ROW, **wrong))
    for body in (None, [], {}, 7):
        with pytest.raises(CorruptFile, match="index is malformed"):
            group_from_bytes(seal(GROUP_KIND, SCHEMA, body), group(), "index")


def test_what_a_choice_takes_of_impossible_tilings_is_refused():
    numbers = struct.pack("<13I", 7, 128, 128, 128, 128, 64, 1, 0, 1, 0, 0, 0, 0)
    table = TilingTable(numbers, ["F"], "index")
    for needed in (lambda: table.position(0), table.clusters, table.tilings, lambda: table.column("depth")):
        with pytest.raises(CorruptFile, match="index is malformed"):
            needed()


def test_sizes_of_clusters_have_the_numbers_that_are_compiled_in():
    values = [None, (2, 1, 1), None, None, None, None, None, None]
    tilings = [
        Tiling.make([None] * 8, {}),
        Tiling.make(values, {}),
        Tiling.make(values, {"max_active_clusters_2": 66}),
    ]
    assert TilingTable.of(tilings).clusters() == {(1, 0), (2, 0), (2, 66)}


# -- rankings -----------------------------------------------------------------------------------------------

FIRST, SECOND = Extents(1, 512, 512, 512), Extents(16, 64, 64, 2**40)


def ranking(**changes):
    values = {
        "group": "cd" * 32, "gpu": "NVIDIA H200", "measured": True, "origin": "tuned for a test",
        "problems": (
            RankedProblem(FIRST, ("bb", "aa"), (2**-16, 3 * 2**-16)),
            RankedProblem(SECOND, ("aa",), (1.0,), frozenset(("bb",))),
        ),
    }  # fmt: skip
    found = {**values, **changes}
    return Ranking(**{**found, "problems": RankedProblems(found["problems"])})


def test_a_ranking_reads_back():
    assert Ranking.from_bytes(ranking().to_bytes(), "it") == ranking()
    plain = ranking(measured=False, problems=(RankedProblem(FIRST, ("bb", "aa")),))
    assert Ranking.from_bytes(plain.to_bytes(), "it") == plain
    assert len(Ranking.from_bytes(ranking(problems=()).to_bytes(), "it").problems) == 0


def test_problems_are_written_in_order():
    turned = ranking(problems=ranking().problems[::-1])
    assert turned.to_bytes() == ranking().to_bytes()


def test_extents_read_as_a_problem():
    assert str(FIRST) == "512x512x512"
    assert str(SECOND) == f"16 of 64x64x{2**40}"


def columns(*problems, slower=None):
    """Problems (extents, positions, times) as the file has them, with the bits of slower kernels of each."""
    extents, positions, seconds = (
        [item for row in column for item in row] for column in zip(*problems, strict=True)
    )
    counts = [len(problem[1]) for problem in problems]
    bits = [0] * len(problems) if slower is None else slower
    forms = {"extents": "q", "counts": "I", "positions": "H", "seconds": "f", "slower": "B"}
    given = zip(forms.items(), (extents, counts, positions, seconds, bits), strict=True)
    return {name: struct.pack(f"<{len(column)}{form}", *column) for (name, form), column in given}


def with_problems(problems):
    """A ranking of two kernels whose file has these problems."""
    found = unseal(ranking().to_bytes(), RANKING_KIND, RANKING_SCHEMA, "it")
    return Ranking.from_bytes(seal(RANKING_KIND, RANKING_SCHEMA, {**found, "problems": problems}), "it")


ONES = [1, 1, 1, 1]


@pytest.mark.parametrize(
    "problem",
    [
        (ONES, [], []),
        (ONES, [2], [1.0]),
        (ONES, [0, 0], [1.0, 2.0]),
        (ONES, [0, 1], [2.0, 1.0]),
        (ONES, [0], [0.0]),
        (ONES, [0], [-1.0]),
        (ONES, [0], [float("inf")]),
        (ONES, [0], [float("nan")]),
        (ONES, [0, 1], [1.0, float("nan")]),
    ],
)
def test_an_impossible_problem_is_refused_when_it_is_needed(problem):
    read = with_problems(columns(problem))
    with pytest.raises(CorruptFile, match="it is malformed"):
        list(read.problems)


@pytest.mark.parametrize(
    "problems",
    [
        columns(([0, 1, 1, 1], [0], [1.0])),
        columns(([1, 1, 1, -1], [0], [1.0])),
        columns((ONES, [0], [1.0]), (ONES, [0], [1.0])),
        columns(([1, 1, 1, 2], [0], [1.0]), (ONES, [0], [1.0])),
    ],
)
def test_impossible_extents_are_refused_when_all_are_needed(problems):
    read = with_problems(problems)
    with pytest.raises(CorruptFile, match="it is malformed"):
        list(read.problems)


def test_the_problem_of_some_extents_is_found_where_it_stands():
    """Bytes that look like it, but begin within other extents, are not it."""
    sought = (1, 2, 3, 4)
    # From its second byte on, the bytes of (1, 2, 3, 4).
    before = [256, 512, 768, 1024]
    several = [(before, [0], [1.0]), ([2**32, 2**33, 3 * 2**32, 2**34], [0], [2.0])]
    read = with_problems(columns(([1, 1, 1, 2], [1], [0.5]), *several))
    assert read.problems.find(sought) is None
    assert read.problems.find((2**70, 1, 1, 1)) is None
    read = with_problems(columns(([1, 1, 1, 2], [1], [0.5]), (sought, [0, 1], [1.0, 2.0]), *several))
    assert read.problems.find(sought).seconds == (1.0, 2.0)
    assert read.problems.find(tuple(before)).seconds == (1.0,)
    assert (len(read.problems), len(read.problems.extents)) == (4, 4)


def test_slower_kernels_are_kernels_without_a_time():
    problem = (ONES, [0], [1.0])
    assert with_problems(columns(problem, slower=[0b10])).problems[0].slower == {"bb"}
    for bits in (0b01, 0b11, 0b100, 0b1000_0000):
        with pytest.raises(CorruptFile, match="a slower kernel of the problem 1x1x1 is none, or has a time"):
            list(with_problems(columns(problem, slower=[bits])).problems)


ONE = columns((ONES, [0], [1.0]))


@pytest.mark.parametrize(
    "changes",
    [
        {"kernels": ["zz", "aa"]},
        {"kernels": ["bb", "aa"]},
        {"kernels": ["aa", "aa"]},
        {"kernels": [1, 2]},
        {"problems": columns((ONES, [0], []))},
        {"problems": columns((ONES, [0], [1.0, 2.0]))},
        {"problems": columns((ONES, [0, 1], [1.0]))},
        {"problems": columns((ONES[:3], [0], [1.0]))},
        {"problems": {**ONE, "extents": ONE["extents"] + b"1"}},
        {"problems": {**ONE, "extents": ONE["extents"] * 2}},
        {"problems": {**ONE, "extents": ONE["extents"] + b"12345678", "counts": ONE["counts"] + b"1"}},
        {"problems": {**ONE, "counts": ONE["counts"] + b"1"}},
        {"problems": {**ONE, "counts": b"\xff" * 4}},
        {"problems": {**ONE, "positions": ONE["positions"] + b"1"}},
        {"problems": {**ONE, "seconds": ONE["seconds"][:3]}},
        {"problems": {**ONE, "slower": b""}},
        {"problems": {**ONE, "slower": b"\0\0"}},
        {"problems": {**ONE, "positions": "00"}},
        {"problems": {**ONE, "extents": [1, 1, 1, 1]}},
        {"problems": {name: ONE[name] for name in ("extents", "counts", "positions", "seconds")}},
        {"problems": [[[1, 1, 1, 1], b"\0\0", b"abcd"]]},
        {"problems": 3},
    ],
)
def test_malformed_columns_are_refused_at_once(changes):
    found = unseal(ranking().to_bytes(), RANKING_KIND, RANKING_SCHEMA, "it")
    with pytest.raises(CorruptFile, match="it is malformed"):
        Ranking.from_bytes(seal(RANKING_KIND, RANKING_SCHEMA, {**found, **changes}), "it")


def test_a_modelled_ranking_has_no_times():
    given = ranking(
        measured=False, problems=(RankedProblem(FIRST, ("bb", "aa")), RankedProblem(SECOND, ("aa",)))
    )
    assert Ranking.from_bytes(given.to_bytes(), "it") == given
    found = unseal(given.to_bytes(), RANKING_KIND, RANKING_SCHEMA, "it")
    data = seal(RANKING_KIND, RANKING_SCHEMA, {**found, "problems": ONE})
    with pytest.raises(CorruptFile, match="other numbers of kernels, positions and times"):
        Ranking.from_bytes(data, "it")
    data = seal(RANKING_KIND, RANKING_SCHEMA, {**found, "problems": {**ONE, "seconds": b""}})
    with pytest.raises(CorruptFile, match="other numbers of bits than of kernels"):
        Ranking.from_bytes(data, "it")
    slower = given.problems[1]._replace(slower=frozenset(("bb",)))
    with pytest.raises(BundleError, match="has other numbers of kernels and times"):
        ranking(measured=False, problems=(slower,)).to_bytes()
    for wrong in (RankedProblem(FIRST, ()), RankedProblem(FIRST, ("aa",), (1.0,), frozenset(("aa",)))):
        with pytest.raises(BundleError, match="has no kernel, or one that is among the slower ones too"):
            ranking(measured=bool(wrong.seconds), problems=(wrong,)).to_bytes()


def test_problems_are_decoded_when_they_are_needed():
    # The second problem names a kernel that there is not.
    read = with_problems(columns((ONES, [1, 0], [1.0, 2.0]), ([1, 2, 3, 4], [7], [1.0])))
    assert read.problems.find(Extents(*ONES)) == RankedProblem(Extents(*ONES), ("bb", "aa"), (1.0, 2.0))
    assert read.problems.find(Extents(1, 2, 3, 5)) is None
    assert read.problems.extents == (Extents(*ONES), Extents(1, 2, 3, 4))
    with pytest.raises(CorruptFile, match="it is malformed"):
        read.problems.find(Extents(1, 2, 3, 4))


# Exact in single precision, in which they are kept.
COSTS = Costs(1.5, 2.0, 0.25, 0.5, 0.25, 0.5, 0.125, 0.5, 0.75, 4000.0, 0.0625, 1.0, 0.25, 2.5, 0.375)
H200 = Machine(132, 1980, 4917)


def test_a_ranking_with_a_cost_model_reads_back():
    """It may have constants of kernels without times."""
    given = ranking(machine=H200, costs=(("aa", COSTS), ("bb", COSTS._replace(step=0.5)), ("cc", COSTS)))
    found = Ranking.from_bytes(given.to_bytes(), "it")
    assert found == given
    assert found.kernels == {"aa", "bb", "cc"}


@pytest.mark.parametrize(
    "changes",
    [
        {"costs": b"1234"},
        {"costs": struct.pack("<15f", *COSTS)},
        {"costs": struct.pack("<15f", *COSTS._replace(step=0.0)) * 2},
        {"costs": struct.pack("<15f", *COSTS._replace(launch=float("nan"))) * 2},
        {"costs": struct.pack("<15f", *COSTS._replace(tile=float("nan"))) * 2},
        {"costs": struct.pack("<15f", *COSTS._replace(unevenness=float("nan"))) * 2},
        {"costs": struct.pack("<15f", *COSTS._replace(tail=1.5)) * 2},
        {"costs": struct.pack("<15f", *COSTS._replace(overlap=0.5)) * 2},
        {"costs": b""},
        {"costs": 3},
        {"machine": None},
        {"machine": [0, 1980, 4917]},
        {"machine": [132, 1980]},
        {"machine": "H200"},
        {"formula": 0},
        {"formula": True},
        {"formula": "2"},
        {"formula": 1 << 20},
    ],
)
def test_an_impossible_cost_model_is_refused(changes):
    given = ranking(machine=H200, costs=(("aa", COSTS), ("bb", COSTS)))
    found = unseal(given.to_bytes(), RANKING_KIND, RANKING_SCHEMA, "it")
    with pytest.raises(CorruptFile, match="malformed"):
        Ranking.from_bytes(seal(RANKING_KIND, RANKING_SCHEMA, {**found, **changes}), "it")


def test_constants_of_another_formula_are_not_even_decoded():
    given = ranking(machine=H200, costs=(("aa", COSTS), ("bb", COSTS)))
    assert Ranking.from_bytes(given.to_bytes(), "it") == given
    found = unseal(given.to_bytes(), RANKING_KIND, RANKING_SCHEMA, "it")
    other = {**found, "formula": FORMULA + 1, "costs": b"of another number of constants"}
    read = Ranking.from_bytes(seal(RANKING_KIND, RANKING_SCHEMA, other), "it")
    assert (read.machine, read.costs, read.formula) == (None, (), FORMULA + 1)
    assert read.problems == given.problems
    assert read.origin.startswith("tuned for a test; its cost model is of formula")
    assert Ranking.from_bytes(read.to_bytes(), "it") == read


@pytest.mark.parametrize(
    "sha256", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "/tmp/x", "../x", "0" * 64 + "\n"]
)
def test_a_reference_without_a_digest_is_refused(sha256):
    """Files outside the bundle are named by it."""
    with pytest.raises(CorruptFile, match=r"is not a SHA-256, expected 64 hexadecimal digits"):
        from_plain(FileReference, {"path": "code/x.zst", "size": 1, "sha256": sha256}, "a file reference")


@pytest.mark.parametrize("size", [True, 1.0, "1", None])
def test_a_reference_without_a_size_is_refused(size):
    with pytest.raises(CorruptFile, match="malformed"):
        from_plain(
            FileReference, {"path": "code/x.zst", "size": size, "sha256": "0" * 64}, "a file reference"
        )
