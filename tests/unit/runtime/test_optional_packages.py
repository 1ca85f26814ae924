"""Optional packages: imported if they are new enough, and otherwise an error that says what to install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cutlass_aot.errors import StoreError
from cutlass_aot.runtime import optional_packages
from cutlass_aot.runtime.optional_packages import LOWER_BOUNDS, optional
from tests.support.paths import REPOSITORY


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    optional_packages._installed.cache_clear()


def install(folder: Path, name: str, version: str, source: str) -> None:
    """A package with this source for its module, in front of every other."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / f"{name}.py").write_text(source)


@pytest.mark.parametrize("source", ["", "raise AttributeError('old')"])
def test_a_release_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    install(tmp_path, "fsspec", "2022.11", source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StoreError) as caught:
        optional("fsspec.core", StoreError, "the store")
    assert str(caught.value) == (
        "the store needs the package fsspec, 2024.2 or newer, and 2022.11 is installed: "
        "pip install 'fsspec>=2024.2'"
    )


def test_one_that_fails_at_its_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "fsspec", "2099.1", "raise AttributeError('numpy has no attribute bool')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        StoreError, match=r"importing fsspec 2099[.]1 fails with AttributeError: numpy has no"
    ):
        optional("fsspec", StoreError, "the store")


def test_one_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError, match=r"cannot be imported here .*pip install 'rich>=13'"):
        optional("rich", ImportError, "a report")


def test_one_without_metadata_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("rich")
    monkeypatch.setitem(sys.modules, "rich", module)
    monkeypatch.setattr(optional_packages.metadata, "version", lambda name: None)
    assert optional("rich", ImportError, "a report") is module


def test_the_bounds_are_those_of_the_project() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    for name, bound in LOWER_BOUNDS.items():
        found = set(re.findall(rf'"{name}(?:\[[a-z]+\])?>=([0-9.]+)', text))
        assert found == {bound}, name


@pytest.mark.parametrize(
    "command",
    [
        ("key", "new", "made"),
        ("sign", "b", "--key", "key"),
        ("verify", "b", "--key", "key.pub"),
        ("ls", "b"),
        ("bundle", "pull", "localhost:1/a:b", "-o", "pulled"),
        ("build", "m.toml", "--remote", "https://localhost:1/store"),
    ],
)
def test_commands_with_old_packages_end_with_an_error_and_leave_nothing(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    for name in ("cryptography", "oras", "requests", "urllib3", "fsspec"):
        install(tmp_path / "old", name, "0.1", "raise AttributeError('of an old release')")
    work = tmp_path / "work"
    (work / "b").mkdir(parents=True)
    (work / "b/MANIFEST.json").write_text("{}")
    (work / "b/catalog.msgpack").write_bytes(b"")
    (work / "key").write_text("-----BEGIN PRIVATE KEY-----")
    (work / "key.pub").write_text("-----BEGIN PUBLIC KEY-----")
    (work / "m.toml").write_text(
        '[bundle]\nname = "a"\nversion = "1"\ntargets = ["sm_90a"]\n'
        '[[kernels]]\ngenerator = "simt_f64_gemm"\noperation = "gemm"\nab = "f64"\n'
    )
    before = sorted(work.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", "from cutlass_aot.cli import main; main()", *command],
        cwd=work, capture_output=True, text=True, check=False,
        env={
            "PATH": "",
            "PYTHONPATH": f"{tmp_path / 'old'}:{REPOSITORY}",
            "CUTLASS_AOT_TRUSTED_KEYS": "key.pub",
            "CUTLASS_AOT_STORE": str(tmp_path / "store"),
        },
    )  # fmt: skip
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"needs the package [a-z0-9]+, [0-9.]+ or newer, and 0.1 is installed", done.stderr)
    assert sorted(work.rglob("*")) == before
