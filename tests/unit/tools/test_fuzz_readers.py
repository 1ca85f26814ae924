"""Fuzzing of readers: the short form, and that the tool finds what it is for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc

import pytest

pytest.importorskip("oras")

from cutlass_aot.bundle.elf import MAX_NAME_BYTES, read_shared_object
from cutlass_aot.bundle.wheel.catalog import read_wheel_catalog
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.errors import CorruptFile, ManifestError
from cutlass_aot.manifest.toml import parse_toml
from cutlass_aot.runtime.files.verified_read import parse_manifest
from cutlass_aot.schema.encoding import check_schema, decode, shown
from cutlass_aot.store.files import read_found
from tests.support.synthetic import plan, shared_object
from tests.support.verifying import verify_wheel


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    write_bundle(plan(folder / "linked"), folder / "small")
    return folder / "small"


@pytest.fixture
def tool(monkeypatch):
    from tools.fuzz import readers as fuzz_readers

    return fuzz_readers


def test_no_reader_does_harm(bundle, tmp_path):
    """Some thousand inputs; the long form has a million: docs/results/fuzz-results.md."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.fuzz.readers", str(bundle), "--inputs", "5000",
         "--keep", str(tmp_path / "kept")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "no finding"
    rows = {cells[1].strip(): cells for cells in (line.split("|") for line in lines) if len(cells) > 5}
    assert int(rows["all"][2].replace(",", "")) >= 5000
    # Each reader takes some of its inputs, and refuses others: what is made is neither all good nor all bad.
    for name, cells in rows.items():
        if name not in ("reader", "---", "all"):
            assert int(cells[4].replace(",", "")) > 0, name
            assert cells[5].strip(), name
    assert not (tmp_path / "kept").exists()


def test_inputs_are_drawn_from_the_seed(tool, bundle, tmp_path):
    first = {reader.name: reader for reader in tool.readers(bundle, tmp_path)}
    (tmp_path / "second").mkdir()
    for again in tool.readers(bundle, tmp_path / "second"):
        one = [tool.input_of(first[again.name], 3, number) for number in range(5)]
        # A store's record has its time in it.
        if again.name not in ("store",):
            assert one == [tool.input_of(again, 3, number) for number in range(5)], again.name
        assert len(set(one)) > 1


def raises(data):
    raise KeyError(data)


def refuses(data):
    raise CorruptFile("no")


def hangs(data):
    while True:
        pass


def hangs_for_good(data):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(60)


def grows(data):
    return bytearray(1 << 30)


def crashes(data):
    os.kill(os.getpid(), signal.SIGKILL)


def recurses(data):
    recurses(data)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (raises, "KeyError"),
        (hangs, r"TooSlow .*more than 1\.5 seconds"),
        (hangs_for_good, "a hang that no signal interrupts"),
        (grows, "MemoryError"),
        (crashes, "a process that ended with -9"),
        (recurses, "RecursionError"),
        (refuses, ""),
        (lambda data: None, ""),
        (lambda data: ["a problem"], ""),
    ],
)
def test_what_counts_as_a_finding(tool, tmp_path, monkeypatch, read, finding):
    """Every third input; what comes after a process that was lost is read by another."""

    def every_third(data):
        return read(data) if data[0] % 3 == 2 else None

    reader = tool.Reader("made up", lambda source: source.randbytes(1), every_third, 1)
    monkeypatch.setattr(tool, "readers", lambda bundle, folder: [reader])
    if read is hangs_for_good:  # Not for the others: a busy machine may hold any of them up for seconds.
        monkeypatch.setattr(tool, "PATIENCE", 2.0)
    found = tool.run(tmp_path, {"made up": 9}, seconds=1.5, workers=1)["made up"]
    bad = [n for n in range(9) if tool.input_of(reader, 0, n)[0] % 3 == 2]
    assert len(bad) > 1
    row = tool._row(found)
    assert row["inputs"] == 9
    assert row["findings"] == (len(bad) if finding else 0)
    assert bool(found.findings) == bool(finding)
    for place, numbers in found.findings.items():
        assert pytest.approx(numbers) == bad[: len(numbers)]
        assert re.match(finding, place), place
    if finding:
        lines = list(tool.keep_findings(tmp_path, {"made up": found}, 0, tmp_path / "kept"))
        kept = tmp_path / "kept" / f"made-up-{bad[0]}"
        assert kept.read_bytes() == tool.input_of(reader, 0, bad[0])
        assert any(str(kept) in line for line in lines)


# -- what it found -------------------------------------------------------------------------------------------


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


def test_values_that_are_nested_deep_are_shown_by_their_type():
    assert shown(nested(5000)) == "a list"
    assert shown(-(1 << 20_000)) == "a number of 20001 bits"
    assert len(shown((1 << 400) - 1)) <= 103
    assert shown("x" * 5000) == "'" + "x" * 99 + "..."
    assert shown("\x1b\ud800") == r"'\x1b\ud800'"
    assert [shown(value) for value in (None, 7, 1.5, True, b"x")] == ["None", "7", "1.5", "True", "bytes"]
    with pytest.raises(CorruptFile, match=r"found a list\)"):
        check_schema(nested(5000), 1, "it")
    for depth in (900, 950, 980, 985, 990, 995):
        text = '{"kind": ' + "[" * depth + "]" * depth + "}"
        with pytest.raises(CorruptFile):
            parse_manifest(text.encode(), "it")


def test_a_number_of_thousands_of_digits_is_no_toml():
    with pytest.raises(ManifestError, match="not valid TOML"):
        parse_toml(b"a = " + b"9" * 5000, "it")


def test_arrays_that_claim_more_than_there_is_memory_for(monkeypatch):
    def unpackb(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("cutlass_aot.schema.encoding.msgpack.unpackb", unpackb)
    with pytest.raises(CorruptFile, match="more than there is memory for"):
        decode(b"\xdd", "it")


def test_a_symbol_with_a_name_that_is_too_long():
    longest = "a" * (MAX_NAME_BYTES - 1)
    assert read_shared_object(shared_object([longest]), "it").exported == {longest}
    with pytest.raises(CorruptFile, match="has more than 4096 bytes"):
        read_shared_object(shared_object([longest + "a"]), "it")


def test_an_entry_of_a_wheel_that_claims_more_than_the_file_has(bundle, tmp_path):
    (wheel,) = build_wheels(bundle, tmp_path)
    data = bytearray(wheel.read_bytes())
    last = data.rindex(b"PK\x01\x02")
    data[last + 20 : last + 24] = (570_000_000).to_bytes(4, "little")
    wheel.write_bytes(data)
    (problem,) = verify_wheel(wheel)
    assert problem.path.endswith("/RECORD")
    assert problem.found == "570000000 bytes in the zip"


def test_a_small_file_of_a_store_costs_little(tmp_path):
    (tmp_path / "small").write_bytes(b"0123456789")
    tracemalloc.start()
    try:
        assert read_found(tmp_path / "small", 1 << 28)[0] == b"0123456789"
        assert read_found(tmp_path / "small", 4)[0] == b"01234"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_same_of_what_is_read_without_unpacking(bundle, tmp_path):
    (wheel,) = build_wheels(bundle, tmp_path)
    data = bytearray(wheel.read_bytes())
    name = data.rindex(b"bundle/MANIFEST.json")
    entry = data.rindex(b"PK\x01\x02", 0, name)
    data[entry + 20 : entry + 24] = (570_000_000).to_bytes(4, "little")
    wheel.write_bytes(data)
    with pytest.raises(CorruptFile, match="claims more bytes than the file has"):
        read_wheel_catalog(wheel)
