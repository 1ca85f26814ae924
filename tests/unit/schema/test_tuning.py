"""The tuning file: what is written reads back, equal records give equal bytes, and nothing else is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.errors import CorruptFile, CutlassAotError, SchemaTooNew, TuningError
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.tuning import tuning as tuning_module
from cutlass_aot.schema.tuning.costs import FORMULA
from cutlass_aot.schema.tuning.ranking import MAX_EXTENT, Extents
from cutlass_aot.schema.tuning.tuning import (
    TunedGroup,
    TunedKernel,
    TunedProblem,
    Tuning,
    read_tuning,
    write_tuning,
)
from tests.support.synthetic import entry, kernels
from tests.support.tunings import PROBLEM, tuned_group, tuning

TEXT = st.text(max_size=12)
TIMES = st.integers(1, 10**9).map(lambda thousandths: thousandths / 1000)
CLOCKS = st.none() | st.integers(1, 5000)


@st.composite
def problems(draw, digests):
    """What was measured of one problem: each kernel was ranked, stopped, failed, or not tried."""
    fates = draw(st.lists(st.sampled_from("rsfn"), min_size=len(digests), max_size=len(digests)))
    of = {fate: [d for d, own in zip(digests, fates, strict=True) if own == fate] for fate in "rsf"}

    def times(members):
        found = sorted(draw(st.lists(TIMES, min_size=len(members), max_size=len(members))))
        return tuple(zip(draw(st.permutations(members)), found, strict=True))

    failed = tuple((member, draw(TEXT)) for member in of["f"])
    return times(of["r"]), times(of["s"]), failed, draw(CLOCKS), draw(CLOCKS)


@st.composite
def groups(draw, number):
    """A group in its canonical form: kernels by name, problems by extents, failures by position."""
    names = draw(st.lists(TEXT, min_size=1, max_size=4))
    members = [
        TunedKernel(digest(f"{number}.{index}".encode()), digest(name.encode()), name)
        for index, name in enumerate(names)
    ]
    members.sort(key=lambda kernel: (kernel.name, kernel.digest))
    digests = [kernel.digest for kernel in members]
    extents = st.builds(Extents, *[st.integers(1, MAX_EXTENT)] * 4)
    found = []
    for shape in sorted(draw(st.sets(extents, max_size=3))):
        ranked, stopped, failed, sm, memory = draw(problems(digests))
        failed = tuple(sorted(failed, key=lambda item: digests.index(item[0])))
        found.append(TunedProblem(shape, ranked, stopped, failed, sm, memory))
    return TunedGroup(digest(str(number).encode()), draw(TEXT), tuple(members), tuple(found))


@st.composite
def tunings(draw):
    found = [draw(groups(number)) for number in range(draw(st.integers(0, 3)))]
    return tuning(
        sorted(found, key=lambda group: (group.name, group.digest)),
        gpu=draw(TEXT),
        driver=draw(st.none() | TEXT),
        power_limit_watts=draw(st.none() | TIMES),
        versions=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
    )


@given(tunings())
def test_what_is_written_reads_back(made):
    data = made.to_bytes()
    assert Tuning.from_bytes(data, "t.json") == made
    assert Tuning.from_bytes(data, "t.json").to_bytes() == data


@given(tunings(), st.randoms())
def test_the_order_of_what_is_written_does_not_show(made, random):
    def shuffled(items):
        found = list(items)
        return tuple(random.sample(found, len(found)))

    mixed = replace(
        made,
        versions=dict(shuffled(made.versions.items())),
        groups=shuffled(
            replace(
                group,
                kernels=shuffled(group.kernels),
                problems=shuffled(replace(p, failed=shuffled(p.failed)) for p in group.problems),
            )
            for group in made.groups
        ),
    )
    assert mixed.to_bytes() == made.to_bytes()


def sound():
    members = [entry(kernel) for kernel in kernels()]
    first, second, third = (member.kernel.digest for member in members)
    problem = TunedProblem(
        PROBLEM, ((first, 10.5), (second, 11.0)), ((third, 99.0),), sm_mhz=1980, memory_mhz=3201
    )
    failed = TunedProblem(Extents(2, 8, 8, 8), ((first, 1.0),), (), ((third, "wrong result"),), sm_mhz=1755)
    return tuning([tuned_group(members, [problem, failed])])


def test_the_file_is_for_people_too():
    lines = sound().to_bytes().decode().splitlines()
    assert lines[-1] == "}"
    record = json.loads("\n".join(lines))
    assert record["kind"] == "cutlass-aot tuning"
    assert record["clocks"] == {
        "sm_mhz": {"min": 1755, "median": 1755, "max": 1980},
        "memory_mhz": {"min": 3201, "median": 3201, "max": 3201},
    }
    (group,) = record["groups"]
    # One line a kernel and one a problem, the quickest first.
    assert sum('"object_sha256"' in line for line in lines) == 3
    (line,) = [line for line in lines if "[1, 512, 1024, 2048]" in line]
    position = {kernel["digest"]: index for index, kernel in enumerate(group["kernels"])}
    first, second, third = (position[kernel.digest] for kernel in kernels())
    assert json.loads(line.strip().rstrip(",")) == {
        "extents": [1, 512, 1024, 2048],
        "microseconds": [[first, 10.5], [second, 11.0]],
        "stopped": [[third, 99.0]],
        "sm_mhz": 1980,
        "memory_mhz": 3201,
    }
    assert "failed" not in line


def test_clocks_that_are_not_known_are_left_out():
    record = json.loads(tuning([tuned_group([entry(kernels()[0])])], driver=None).to_bytes())
    assert record["clocks"] == {"sm_mhz": None, "memory_mhz": None}
    assert record["driver"] is None
    assert set(record["groups"][0]["problems"][0]) == {"extents", "microseconds"}


def altered(change):
    record = json.loads(sound().to_bytes())
    change(record, record["groups"][0], record["groups"][0]["problems"][0])
    return json.dumps(record).encode()


def setting(where, key, value):
    """A change of the file, of one of its groups, or of a problem."""

    def change(record, group, problem):
        {"file": record, "group": group, "problem": problem}[where][key] = value

    return change


def twice(where, key):
    def change(record, group, problem):
        items = {"file": record, "group": group, "problem": problem}[where][key]
        items.append(items[0])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record, group, problem: record.pop("gpu"), "gpu: it is missing"),
        (setting("file", "gpu", 5), "gpu: found 5, expected text"),
        (setting("file", "power_limit_watts", "700"), "found '700', expected a number"),
        (setting("file", "versions", ["4.8.1"]), "malformed"),
        (setting("file", "groups", {"a": 1}), "malformed"),
        (twice("file", "groups"), "a group is there twice"),
        (twice("group", "kernels"), "a kernel is there twice"),
        (twice("group", "problems"), "a problem is there twice"),
        (setting("group", "digest", "ab" * 31), "is not a SHA-256, expected 64 hexadecimal digits"),
        (setting("problem", "extents", [1, 2, 3]), "malformed"),
        (setting("problem", "extents", [1, 0, 3, 4]), "expected whole numbers from 1"),
        (setting("problem", "extents", [1, 1, MAX_EXTENT + 1, 4]), "expected whole numbers from 1"),
        (setting("problem", "extents", [True, 1, 1, 4]), "found True, expected a whole number"),
        (setting("problem", "microseconds", [[3, 1.0]]), "expected a whole number from 0 to 2, found 3"),
        (setting("problem", "microseconds", [[-1, 1.0]]), "expected a whole number from 0 to 2, found -1"),
        (setting("problem", "microseconds", [[0, 2.0], [1, 1.0]]), "times are not in order"),
        (setting("problem", "microseconds", [[0, 0.0]]), "expected a number from 1e-06"),
        (setting("problem", "microseconds", [[0, float("nan")]]), "found nan, expected a number"),
        (setting("problem", "microseconds", [[0, float("inf")]]), "expected a number from 1e-06"),
        (
            setting("problem", "microseconds", [[0, True]]),
            "[0][1]: found True, expected a number",
        ),
        (setting("problem", "microseconds", [[0, 1.0], [0, 2.0]]), "a kernel of a problem is there twice"),
        (setting("problem", "failed", [[0, "why"]]), "a kernel of a problem is there twice"),
        (setting("problem", "failed", [[2, None]]), "expected text"),
        (setting("problem", "sm_mhz", 0), "found 0, expected a number from 1"),
        *((setting("group", "model", {"formula": bad}), "groups[0].model") for bad in (None, 0, True, "4")),
        (setting("group", "model", []), "groups[0].model"),
        (setting("group", "other_formula", FORMULA), "a cost model of another formula"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(CorruptFile, match=r"t\.json is malformed: .*measure again") as caught:
        Tuning.from_bytes(altered(change), "t.json")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not readable JSON"),
        (b"\xff\xfe", "not readable JSON"),
        (b"[" * 100_000, "not readable JSON"),
        (b"[]", "not a 'cutlass-aot tuning' file (found a list"),
        (b'{"kind": "cutlass-aot bundle"}', "not a 'cutlass-aot tuning' file (found 'cutlass-aot bundle'"),
        (b'{"kind": "cutlass-aot tuning"}', "no valid schema version (found None)"),
        (b'{"kind": "cutlass-aot tuning", "schema": true}', "no valid schema version"),
        (b'{"kind": "cutlass-aot tuning", "schema": 0}', "no valid schema version"),
    ],
)
def test_what_is_no_tuning_file_is_refused(data, message):
    with pytest.raises(CorruptFile) as caught:
        Tuning.from_bytes(data, "t.json")
    assert str(caught.value).startswith("t.json ")
    assert message in str(caught.value)


def test_a_group_without_kernels_is_refused():
    changed = altered(setting("group", "kernels", []))
    with pytest.raises(CorruptFile):
        Tuning.from_bytes(changed, "t.json")


def test_a_newer_schema_is_refused():
    with pytest.raises(SchemaTooNew, match=r"t\.json has schema version 5, .*upgrade"):
        Tuning.from_bytes(altered(setting("file", "schema", 5)), "t.json")


def test_a_truncated_file_is_refused_wherever_it_ends():
    data = sound().to_bytes()
    for length in range(0, len(data) - 2, 7):
        with pytest.raises(CutlassAotError):
            Tuning.from_bytes(data[:length], "t.json")


def test_files_are_bounded(tmp_path, monkeypatch):
    data = sound().to_bytes()
    (tmp_path / "t.json").write_bytes(data)
    monkeypatch.setattr(tuning_module, "MAX_TUNING_BYTES", len(data))
    assert read_tuning(tmp_path / "t.json") == sound()
    monkeypatch.setattr(tuning_module, "MAX_TUNING_BYTES", len(data) - 1)
    with pytest.raises(CorruptFile, match="is larger than"):
        read_tuning(tmp_path / "t.json")


def test_a_file_is_replaced_at_once_and_by_nothing_less(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "t.json"
    write_tuning(sound(), path)
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.read_bytes()

    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Tuning, "to_bytes", full)
    with pytest.raises(TuningError, match=r"t\.json: the tuning file cannot be written: No space left"):
        write_tuning(tuning(), path)
    assert [item.name for item in path.parent.iterdir()] == ["t.json"]
    assert path.read_bytes() == before


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TuningError, match=r"no\.json: the tuning file cannot be read: No such file"):
        read_tuning(tmp_path / "no.json")
