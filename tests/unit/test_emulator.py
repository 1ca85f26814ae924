"""tools/emulator.py without a network: what it says where it cannot fetch, and what it keeps."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools import emulator


def test_a_machine_that_cannot_is_told_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "riscv64")
        result = CliRunner().invoke(emulator.main, ["--directory", str(tmp_path / "e")])
    assert result.exit_code == 1
    assert "it is for Linux on x86_64, this is Linux on riscv64" in result.output
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    result = CliRunner().invoke(emulator.main, ["--directory", str(tmp_path / "e")])
    assert result.exit_code == 1
    assert "no emulator for aarch64: apt-get was not found" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_and_says_the_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("apt-get", "dpkg-deb"):
        (programs / name).write_text("#!/bin/sh\necho E: there is no network >&2\nexit 100\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    result = CliRunner().invoke(emulator.main, ["--directory", str(tmp_path / "build" / "e")])
    assert result.exit_code == 1
    assert "package lists failed (exit status 100):\nE: there is no network" in result.output
    assert list((tmp_path / "build").iterdir()) == []


def test_what_is_there_stays_unless_something_else_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert emulator.present(tmp_path) is None
    record = {
        "wanted": emulator.wanted(),
        "python": "3.11.2",
        "libc": "glibc",
        "emulator": "q",
        "wheels": ["w"],
    }
    (tmp_path / emulator.RECORD).write_text(json.dumps(record))
    assert emulator.present(tmp_path) == record
    monkeypatch.setenv("PATH", "")
    result = CliRunner().invoke(emulator.main, ["--directory", str(tmp_path)])
    assert (result.exit_code, result.output) == (0, "q; Python 3.11.2, glibc; w\n")
    monkeypatch.setattr(emulator, "requirements", lambda: ["another"])
    assert emulator.present(tmp_path) is None
    (tmp_path / emulator.RECORD).write_text("torn")
    assert emulator.present(tmp_path) is None
