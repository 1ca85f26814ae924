"""Facts of a machine: this one's, and those of a file, which may hold anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cutlass_aot.doctor import facts
from cutlass_aot.doctor.facts import MAX_BYTES, facts_record, parse_facts, read_facts, this_machine
from cutlass_aot.errors import DeviceError, FactsError
from cutlass_aot.runtime.machine import cuda_driver, host
from cutlass_aot.runtime.machine.compatibility import Driver, Gpu, Machine

WHOLE = """
host = "aarch64"
libc = "glibc 2.39"
python = "3.12.3"
tvm_ffi = "0.1.15.post2"
torch = "2.11.0"
torch_cuda = "13.0"

[driver]
cuda = "13.0"
release = "580.126.09"

[[gpus]]
name = "NVIDIA GB300"
compute_capability = "10.3"

[[gpus]]
name = "NVIDIA H200"
"""


def refused(text: str) -> str:
    with pytest.raises(FactsError) as caught:
        parse_facts(text.encode(), "facts.toml")
    message = str(caught.value)
    assert message.startswith("facts.toml")
    return message


def test_every_key() -> None:
    found = parse_facts(WHOLE.encode(), "facts.toml")
    assert found == Machine(
        host="aarch64",
        libc="glibc 2.39",
        tvm_ffi="0.1.15.post2",
        python="3.12.3",
        torch="2.11.0",
        torch_cuda="13.0",
        driver=Driver((13, 0), "580.126.09"),
        gpus=(Gpu("NVIDIA GB300", (10, 3)), Gpu("NVIDIA H200", None)),
    )
    assert parse_facts(json.dumps(facts_record(found)).encode(), "facts.json") == found
    printed = json.dumps({"cutlass_aot": "0.1.0", "run": {}, "facts": facts_record(found)})
    assert parse_facts(printed.encode(), "doctor --json") == found


def test_what_is_left_out_is_not_there() -> None:
    assert parse_facts(b'host = "amd64"', "f") == Machine("x86_64", None, None, gpus=())


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("", "key `host` is missing: expected a CPU architecture such as x86_64"),
        ('hots = "x86_64"', "unknown key 'hots': expected one of `host`, `libc`, `python`, `tvm_ffi`"),
        ("host = 1", "`host` is 1: expected printable text"),
        (f"host = 0x{'f' * 6000}", "`host` is a number of 24000 bits: expected printable text"),
        (f'host = "x"\n[[gpus]]\nname = 0b1{"0" * 9}', "`gpus[0].name` is 512: expected printable"),
        (f'host = "x"\n[driver]\nrelease = 0o1{"0" * 6000}', "`driver.release` is a number of 18001 bits"),
        (f'host = "x"\nlibc = [0x{"f" * 6000}]', "`libc` is a list: expected printable text"),
        ('host = ""', "`host` is '': expected printable text"),
        ('host = "\\u001b[31m"', "expected printable text of at most 200 characters"),
        (f'host = "{"x" * 201}"', "of at most 200 characters; leave the key out for what is not there"),
        ('host = "x86_64"\nglibc = "2.36"', "unknown key 'glibc'"),
        ('host = "x86_64"\ndriver = "580"', "`driver` is a str: expected a table"),
        ('host = "x86_64"\n[driver]', "`driver` is empty: expected `cuda`, `release` or both"),
        ('host = "x86_64"\n[driver]\ncuda = 13.0', "`driver.cuda` is 13.0: expected printable text"),
        ('host = "x86_64"\n[driver]\ncuda = "13"', "`driver.cuda` is '13': expected a version such as 12.8"),
        (
            'host = "x86_64"\n[driver]\nrelease = "R580"',
            "`driver.release` is 'R580': expected such text as 580",
        ),
        (
            'host = "x86_64"\n[driver]\nversion = "1"',
            "unknown key 'driver.version': expected one of `cuda`, `re",
        ),
        ('host = "x86_64"\ngpus = "B200"', "`gpus` is not a list of at most 1024 tables: expected [[gpus]]"),
        ('host = "x86_64"\ngpus = ["B200"]', "`gpus[0]` is a str: expected a table"),
        ('host = "x86_64"\n[[gpus]]', "`gpus[0].name` is missing: expected a model such as NVIDIA H200"),
        ('host = "x86_64"\n[[gpus]]\nmodel = "B200"', "unknown key 'gpus[0].model': expected one of `name`"),
        (
            'host = "x86_64"\n[[gpus]]\nname = "B200"\ncompute_capability = "sm_100"',
            "`gpus[0].compute_capability` is 'sm_100': expected a version such as 12.8",
        ),
        ("host = ", "not valid TOML"),
        ('{"host": ', "not valid JSON"),
        ('{"host": "x86_64", "host ": 1}', "unknown key 'host '"),
        ("{" + '"a":{' * 100_000, "not valid JSON"),
        ("a = " + "[" * 100_000, "not valid TOML"),
        (f'{{"host": {"9" * 10_000}}}', "facts.toml"),
    ],
)
def test_what_is_no_fact_is_refused(text: str, piece: str) -> None:
    assert piece in refused(text)


def test_a_file_is_read_no_further_than_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "facts.toml"
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(FactsError, match=f"has more than {MAX_BYTES} bytes"):
        read_facts(file)
    with pytest.raises(FactsError, match="not UTF-8 text at byte 0"):
        parse_facts(b"\xff", "f")
    with pytest.raises(FactsError, match="cannot be read: No such file"):
        read_facts(tmp_path / "missing")
    with pytest.raises(FactsError, match="cannot be read: Is a directory"):
        read_facts(tmp_path)
    with pytest.raises(FactsError, match=r"a\\x00b' cannot be the path of a file: embedded null"):
        read_facts(tmp_path / "a\0b")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*facts.KEYS, *facts.DRIVER_KEYS, *facts.GPU_KEYS, "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
@example(WHOLE.encode())
def test_any_bytes_are_facts_or_refused(data: bytes) -> None:
    try:
        found = parse_facts(data, "f")
    except FactsError:
        return
    assert facts.facts_of(facts_record(found), "f") == found


@settings(max_examples=300)
@given(anything, st.booleans())
def test_any_document_is_facts_or_refused(document: Any, with_host: bool) -> None:
    if with_host and isinstance(document, dict):
        document["host"] = "x86_64"
    try:
        found = facts.facts_of(document, "f")
    except FactsError:
        return
    assert facts.facts_of(facts_record(found), "f") == found


# -- this machine -----------------------------------------------------------------------------------------


def test_this_machine_reads_back() -> None:
    found = this_machine()
    assert parse_facts(json.dumps(facts_record(found)).encode(), "f") == found
    assert found.libc is not None
    assert found.tvm_ffi is not None
    assert found.gpus is not None


def test_a_machine_with_gpus(gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "device_count", lambda: 2)
    monkeypatch.setattr(cuda_driver, "driver_release", lambda: "580.126.09")
    gpu["count"] = 2
    found = this_machine()
    assert found.driver == Driver((13, 0), "580.126.09")
    assert found.gpus == (Gpu("NVIDIA H200", (9, 0)),) * 2
    assert facts.facts_of(facts_record(found), "f") == found


def test_a_driver_without_its_module_is_none(gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> int:
        raise DeviceError("not there")

    monkeypatch.setattr(cuda_driver, "device_count", missing)
    gpu["driver"] = (0, 0)
    found = this_machine()
    assert found.driver is None
    assert found.gpus == ()


@pytest.mark.parametrize(
    ("glibc", "maps", "expected"),
    [
        ("2.36", "", "glibc 2.36"),
        (None, "7f r-xp 00:00 1 /lib/ld-musl-x86_64.so.1\n", "musl"),
        (None, "7f r-xp 00:00 1 /usr/lib/other.so\n", None),
        (None, None, None),
    ],
)
def test_the_c_library(
    glibc: str | None, maps: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "glibc_version", lambda: glibc)
    monkeypatch.setattr(host, "_MAPS", tmp_path / "maps")
    if maps is not None:
        (tmp_path / "maps").write_text(maps)
    assert host.c_library() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '13.0'\n", "13.0"),
        ("__version__ = '2.4.0'\ncuda = \"12.1\"\nhip = None\n", "12.1"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.2'\n", None),
        ("", None),
        (None, None),
    ],
)
def test_what_torch_was_built_for_is_read_not_imported(
    text: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch-2.11.0.dist-info").mkdir()
    (tmp_path / "torch-2.11.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
    (tmp_path / "torch").mkdir()
    if text is not None:
        (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert host.torch_cuda() == expected
    assert host.installed_version("torch") == "2.11.0"


def test_no_torch_was_built_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert host.torch_cuda() is None
