"""`cutlass-aot doctor` reads every variable of this package, and exits with 1 where one cannot be served."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.cli import main
from cutlass_aot.doctor.environment import CHECKS
from tests.contract.test_reference_pages import REFERENCE, rows
from tests.support.bundles import designs, write_bundle


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("CUTLASS_AOT_"):
            monkeypatch.delenv(name)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--json", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code, json.loads(capsys.readouterr().out)


def test_every_variable_is_read() -> None:
    page = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    assert {*CHECKS} == {name for name in rows(page) if name.startswith("CUTLASS_AOT_")}


def test_nothing_asked_for_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = doctor(capsys)
    assert (status, found["environment"]) == (0, [])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CUTLASS_AOT_BUNDLE_PATH", "/no/such/folder", "/no/such/folder is missing"),
        ("CUTLASS_AOT_CACHE", "/dev/null", "/dev/null is not a directory"),
        ("CUTLASS_AOT_CACHE", "here", "expected an absolute path"),
        ("CUTLASS_AOT_CACHE_BYTES", "4G", "expected a number of bytes"),
        ("CUTLASS_AOT_KEY_PASSPHRASE", "", "it is set and empty"),
        ("CUTLASS_AOT_POLICY", "often", "expected one of required, warn, jit, got 'often'"),
        ("CUTLASS_AOT_PROGRAM", "/no/plan", "there is no plan '/no/plan'"),
        ("CUTLASS_AOT_SERVE", "nothing", "'nothing' is not a bundle"),
        ("CUTLASS_AOT_TRUSTED_KEYS", "/no/key", "keys /no/key cannot be read"),
        ("CUTLASS_AOT_POLCY", "warn", "nothing reads this variable: did you mean CUTLASS_AOT_POLICY?"),
    ],
)
def test_what_cannot_be_served_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    status, found = doctor(capsys)
    (variable,) = found["environment"]
    assert (status, variable["name"], variable["value"]) == (1, name, value)
    assert words in variable["problems"][0]


def test_a_directory_without_bundles_is_not_listed_as_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = tmp_path / "missing", tmp_path / "empty", tmp_path / "damaged", tmp_path / "good"
    missing, empty, damaged, good = folders
    empty.mkdir()
    write_bundle(good / "small", designs())
    write_bundle(damaged, designs())
    (damaged / "catalog.msgpack").write_bytes(b"")
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", os.pathsep.join(map(str, folders)))
    _, found = doctor(capsys)
    listed = {item["name"]: item["problem"] for item in found["bundles"]}
    assert [*listed] == ["damaged", "small"]
    assert "catalog.msgpack" in listed["damaged"]
    assert not listed["small"]
    assert found["without_bundles"] == [
        f"{empty} holds no bundle: expected MANIFEST.json in it or below it",
        f"{missing} is missing: expected a directory of bundles",
    ]
    with pytest.raises(SystemExit):
        main(["doctor"])
    lines = " ".join(capsys.readouterr().out.split())
    assert f"no bundle: {missing} is missing: expected a directory of bundles" in lines
    assert f"missing ? ({missing})" not in lines
    # Nor do other commands take its name for that of a bundle.
    with pytest.raises(SystemExit):
        main(["ls", "missing"])
    assert "(installed: damaged, small)" in capsys.readouterr().err


def test_good_values_are_no_fault_and_a_passphrase_stays_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "small", designs())
    for name, value in {
        "CUTLASS_AOT_BUNDLE_PATH": str(tmp_path),
        "CUTLASS_AOT_CACHE": str(tmp_path),
        "CUTLASS_AOT_CACHE_BYTES": "1000000",
        "CUTLASS_AOT_KEY_PASSPHRASE": "open sesame",
        "CUTLASS_AOT_POLICY": "warn",
    }.items():
        monkeypatch.setenv(name, value)
    status, found = doctor(capsys)
    assert status == 0
    assert [variable["problems"] for variable in found["environment"]] == [[]] * 5
    assert "sesame" not in json.dumps(found)


def test_a_bundle_to_serve_that_cannot_run_here_is_a_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "small", designs(), hosts=("riscv64",))
    monkeypatch.setenv("CUTLASS_AOT_SERVE", str(bundle))
    status, found = doctor(capsys)
    assert status == 1
    (problem,) = found["environment"][0]["problems"]
    assert problem.startswith(f"{bundle} cannot be used here: ")


def test_a_bundle_that_no_required_key_has_signed_cannot_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "small", designs())
    monkeypatch.setenv("CUTLASS_AOT_TRUSTED_KEYS", str(tmp_path / "none"))
    status, found = doctor(capsys, str(bundle))
    assert status == 1
    assert found["bundles"][0]["reasons"][0]["about"] == "signature"
