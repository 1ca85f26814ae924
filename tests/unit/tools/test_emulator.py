"""tools/check/emulator.py without a network: what it says where it cannot fetch, and what it keeps."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import BinaryIO

import pytest
from click.testing import CliRunner

from tools.check import emulator


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


def test_an_emulator_is_whole_or_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is taken where it lies, without another look."""
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "qemu-x86_64").write_bytes(b"program" * 1000)
    with tarfile.open(tmp_path / "package.deb", "w") as package:
        package.add(tmp_path / "usr" / "qemu-x86_64", "./usr/bin/qemu-x86_64")
    programs, made = tmp_path / "programs", tmp_path / "made"
    programs.mkdir()
    made.mkdir()
    (programs / "dpkg-deb").write_text('#!/bin/sh\nexec cat "$2"\n')
    (programs / "dpkg-deb").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)

    def interrupted(source: BinaryIO, target: BinaryIO) -> None:
        target.write(source.read(100))
        target.flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(emulator.shutil, "copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            emulator.take_emulator(tmp_path / "package.deb", ["qemu-x86_64"], made / "qemu-x86_64")
    assert list(made.iterdir()) == []
    assert emulator.take_emulator(tmp_path / "package.deb", ["qemu-x86_64"], made / "qemu-x86_64")
    assert list(made.iterdir()) == [made / "qemu-x86_64"]
    assert (made / "qemu-x86_64").read_bytes() == b"program" * 1000
    assert (made / "qemu-x86_64").stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_registry_that_make_fetches_is_whole_or_not_there(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apt-get").write_text("#!/bin/sh\ntouch docker-registry_2_amd64.deb\n")
    # The second time it gets to the end.
    (programs / "dpkg").write_text(
        '#!/bin/sh\nmkdir -p "$3/usr/bin"\necho part > "$3/usr/bin/docker-registry"\n'
        f'[ -e "{tmp_path}/again" ] || {{ touch "{tmp_path}/again"; exit 1; }}\n'
        'echo whole > "$3/usr/bin/docker-registry"\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    command = ["make", "--file", str(emulator.REPOSITORY / "Makefile"), "registry"]
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    program = tmp_path / "build" / "docker-registry" / "usr" / "bin" / "docker-registry"
    for status, found in ((2, None), (0, "whole\n"), (0, "whole\n")):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
        assert done.returncode == status, done.stderr
        assert (program.read_text() if program.exists() else None) == found
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["docker-registry"]


def test_what_is_there_stays_unless_something_else_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert emulator.present(tmp_path) is None
    record = {
        "wanted": emulator.expected(),
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
