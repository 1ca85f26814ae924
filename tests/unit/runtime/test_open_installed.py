"""Installed bundles: which one is opened by name, and why the others are not."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutlass_aot
from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError, CorruptFile, Incompatible
from cutlass_aot.runtime.files.verified_read import read_catalog
from cutlass_aot.runtime.installed import Candidate, InstalledStatus, installed_report, precedence
from cutlass_aot.runtime.opened.bundle_directory import BundleDirectory
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import Target
from tests.support.bundles import REQUIREMENTS, designs, write_bundle


@pytest.fixture(autouse=True)
def _no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTLASS_AOT_BUNDLE_PATH", raising=False)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the search path, before what is installed."""
    folder = tmp_path / "tree"
    folder.mkdir()
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", str(folder))
    return folder


def operands(dtype: str = "f16", extent: int = 64) -> tuple[Any, ...]:
    describe = cutlass_aot.describe
    return (
        describe((extent, extent), dtype),
        describe((extent, extent), dtype, strides=(1, extent)),
        describe((extent, extent), dtype),
    )


def of(dtype: str, **changes: Any) -> list[Kernel]:
    return designs(dtypes=(dtype,) * 3, **changes)


def reasons(name: str | None = None, **options: Any) -> dict[str, str]:
    """Why each bundle is not opened, by the name of its directory."""
    return {Path(item.path).name: item.reason for item in installed_report(name, **options)}


# -- one of several -----------------------------------------------------------------------------------------


def test_the_only_one_needs_no_name(tree: Path) -> None:
    write_bundle(tree / "one", of("f16"))
    bundle = cutlass_aot.open_installed()
    assert (bundle.name, bundle.version, bundle.path) == ("small", "0.1.0", tree / "one")
    assert len(bundle.find(*operands())) == 3


def test_of_several_names_one_has_to_be_named(tree: Path) -> None:
    write_bundle(tree / "a", of("f16"), name="a")
    write_bundle(tree / "b", of("bf16"), name="b")
    with pytest.raises(BundleError, match=r"several names are installed \(a, b\)"):
        cutlass_aot.open_installed()
    assert cutlass_aot.open_installed("b").path == tree / "b"


def test_the_newest_version_is_opened(tree: Path) -> None:
    write_bundle(tree / "a", of("f16"), version="0.10.0")
    write_bundle(tree / "b", of("f16"), version="0.9.0")
    assert cutlass_aot.open_installed("small").version == "0.10.0"
    assert reasons() == {"a": "", "b": f"{tree / 'a'} is newer"}


def test_of_two_copies_the_path_decides(tree: Path) -> None:
    write_bundle(tree / "b", of("f16"))
    write_bundle(tree / "a", of("f16"))
    assert cutlass_aot.open_installed("small").path == tree / "a"
    assert reasons() == {"a": "", "b": f"{tree / 'a'} is the same version, and its path comes first"}


def test_the_one_for_this_gpu_is_opened(tree: Path, gpu: dict[str, Any]) -> None:
    """Even if another one is newer; an exact target comes before that of a family, and a portable one."""
    for name, target in (("a", "sm_80"), ("b", "sm_100f"), ("c", "sm_100a"), ("d", "sm_90a")):
        write_bundle(tree / name, of("f16", target=target), version="9.0" if name == "d" else "1.0")
    for capability, opened in (((10, 0), "c"), ((10, 3), "b"), ((9, 0), "d"), ((8, 6), "a")):
        gpu["capability"] = capability
        assert cutlass_aot.open_installed("small").path == tree / opened
        assert [name for name, reason in reasons().items() if not reason] == [opened]
    gpu["capability"] = (10, 0)
    found = reasons()
    assert found["d"] == f"{tree / 'c'} has kernels for more of this machine's GPUs"
    assert found["b"] == f"{tree / 'c'} has kernels that are built for this machine's GPU"


def test_without_a_gpu_the_version_decides(tree: Path) -> None:
    write_bundle(tree / "a", of("f16", target="sm_100a"), version="1.0")
    write_bundle(tree / "b", of("f16", target="sm_90a"), version="2.0")
    assert cutlass_aot.open_installed("small").path == tree / "b"


CAPABILITIES = [(8, 0), (8, 6), (9, 0), (10, 0), (10, 3)]
TARGETS = ["sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_103a"]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], BundleDirectory]:
    folder = tmp_path_factory.mktemp("directories")
    made = {}
    for target in TARGETS:
        for version in ("1.0", "1.10"):
            path = write_bundle(folder / f"{target}-{version}", of("f16", target=target), version=version)
            made[target, version] = BundleDirectory(path, read_catalog(path))
    return made


@given(data=st.data())
def test_what_is_opened_runs_if_anything_does(
    directories: dict[tuple[str, str], BundleDirectory], data: st.DataObject
) -> None:
    candidates = data.draw(
        st.lists(
            st.builds(Candidate, st.sampled_from(list(directories.values())), st.integers(0, 2)), min_size=1
        )
    )
    capability = data.draw(st.sampled_from(CAPABILITIES))
    first = max(candidates, key=lambda candidate: precedence(candidate, [capability]))
    runs = [
        candidate
        for candidate in candidates
        if Target.parse(candidate.directory.catalog.targets[0]).runs_on(capability)
    ]
    assert first in runs or not runs
    # Of those for the same target the place decides, then the version.
    for other in candidates:
        if other.directory.catalog.targets == first.directory.catalog.targets:
            assert first.place <= other.place
            if first.place == other.place and other.directory.catalog.version == "1.10":
                assert first.directory.catalog.version == "1.10"


# -- the search path ----------------------------------------------------------------------------------------


def test_directories_earlier_on_the_path_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    write_bundle(first, of("f16"))
    write_bundle(second / "small", of("f16"), version="9.0")
    write_bundle(third / "package" / "bundle", of("f16"), version="10.0")
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", os.pathsep.join([str(second), "", str(third)]))
    assert cutlass_aot.open_installed("small", paths=[first]).path == first
    assert reasons(paths=[first]) == {
        "first": "",
        "small": f"{first} comes earlier on the search path",
        "bundle": f"{first} comes earlier on the search path",
    }
    assert cutlass_aot.open_installed("small").path == second / "small"
    assert cutlass_aot.open_installed("small", "10.0").path == third / "package" / "bundle"
    with pytest.raises(
        BundleError, match=r"'large' is not installed \(installed bundles: small 9\.0, small 10\.0"
    ):
        cutlass_aot.open_installed("large")


def test_a_directory_twice_counts_once(tree: Path, tmp_path: Path) -> None:
    write_bundle(tree / "small", of("f16"))
    (tmp_path / "link").symlink_to(tree)
    assert len(cutlass_aot.installed_bundles([tmp_path / "link", tree / "small"])) == 1


def test_a_read_only_tree_is_enough(tree: Path) -> None:
    write_bundle(tree / "small", of("f16"))
    folders = [tree, tree / "small", *(path for path in tree.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert cutlass_aot.open_installed("small").find(*operands())
    finally:
        for folder in folders:
            folder.chmod(0o755)


# -- what cannot be used ------------------------------------------------------------------------------------


def test_what_cannot_be_used_is_left_out_with_the_reason(tree: Path) -> None:
    write_bundle(tree / "good", of("f16"), name="good")
    write_bundle(tree / "host", of("bf16"), name="host", hosts=("s390x",))
    write_bundle(tree / "old", of("bf16"), name="old", requirements=REQUIREMENTS._replace(glibc="9.9"))
    (write_bundle(tree / "torn", of("bf16"), name="torn") / CATALOG_NAME).write_bytes(b"torn")
    manifest = write_bundle(tree / "newer", of("bf16"), name="newer") / "MANIFEST.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 999}))
    assert cutlass_aot.open_installed().name == "good"
    found = reasons()
    assert set(found) == {"good", "host", "old", "torn", "newer"}
    assert found["good"] == ""
    assert "s390x" in found["host"]
    assert "needs 9.9 or newer" in found["old"]
    assert "expected" in found["torn"]
    assert "999" in found["newer"]
    (record,) = [to_plain(item) for item in installed_report() if not item.reason]
    assert json.loads(json.dumps(record))["targets"] == ["sm_90a"]


def test_without_a_check_other_machines_are_no_reason(tree: Path) -> None:
    write_bundle(tree / "host", of("bf16"), hosts=("s390x",))
    assert cutlass_aot.open_installed("small", check=False).name == "small"


def test_an_older_version_serves_where_the_newest_cannot_be_used(tree: Path) -> None:
    write_bundle(tree / "1", of("f16"), version="1.0")
    write_bundle(tree / "2", of("f16"), version="2.0", requirements=REQUIREMENTS._replace(glibc="9.9"))
    bundle = cutlass_aot.open_installed("small")
    assert bundle.version == "1.0"
    assert "needs 9.9" in reasons()["2"]


def test_one_error_is_raised_as_it_is_and_several_together(tree: Path) -> None:
    root = write_bundle(tree / "a", of("f16"), requirements=REQUIREMENTS._replace(glibc="9.9"))
    with pytest.raises(Incompatible, match=r"needs 9\.9"):
        cutlass_aot.open_installed("small")
    write_bundle(tree / "b", of("f16"), hosts=("s390x",))
    with pytest.raises(Incompatible, match=r"none of the 2 bundles .*needs 9\.9.*; .*s390x"):
        cutlass_aot.open_installed("small")
    (root / CATALOG_NAME).unlink()
    with pytest.raises(BundleError, match=r"none of the 2 bundles that are installed"):
        cutlass_aot.open_installed()
    (tree / "b" / CATALOG_NAME).write_bytes(b"torn")
    (root / CATALOG_NAME).write_bytes(b"torn")
    with pytest.raises(BundleError, match=r"'small' is not installed \(installed bundles: none"):
        cutlass_aot.open_installed("small")
    for path in (tree / "b").iterdir():
        if path.is_file():
            path.unlink()
    with pytest.raises(CorruptFile):
        cutlass_aot.open_installed()


def test_a_directory_that_is_not_there_or_holds_nothing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "some" / "small", of("f16"))
    (tmp_path / "empty").mkdir()
    names = [str(tmp_path / name) for name in ("gone", "empty", "some")]
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", os.pathsep.join(names))
    found = reasons()
    assert "is missing: expected a directory" in found["gone"]
    assert "MANIFEST.json" in found["empty"]
    assert found["small"] == ""


def test_a_report_of_nothing_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutlass_aot.runtime.installed.located", lambda paths: [])
    importlib.invalidate_caches()
    assert installed_report() == []
    with pytest.raises(BundleError, match="no bundle is installed"):
        cutlass_aot.open_installed()


# -- the command --------------------------------------------------------------------------------------------


def test_the_command_says_what_is_found_and_what_is_not(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["installed", *arguments])
        assert ended.value.code == (arguments[:1] == ("other",))
        return capsys.readouterr().out

    write_bundle(tree / "good", of("f16"))
    write_bundle(tree / "old", of("f16"), version="0.0.9")
    write_bundle(tree / "host", of("bf16"), name="host", hosts=("s390x",))
    lines = run().splitlines()
    assert lines[0].startswith(f"host 0.1.0: 3 kernels for sm_90a ({tree / 'host'}): not opened: ")
    assert lines[1] == (
        f"small 0.0.9: 3 kernels for sm_90a ({tree / 'old'}): not opened: {tree / 'good'} is newer"
    )
    assert lines[2] == f"small 0.1.0: 3 kernels for sm_90a ({tree / 'good'})"
    assert "host" not in run("small")
    assert run("other", "--path", str(tree)) == "no bundle other is installed\n"
    records = json.loads(run("--json"))
    assert [item["name"] for item in records] == ["host", "small", "small"]
    assert str(InstalledStatus("x", "", "/x", reason="torn")) == "x (/x): not opened: torn"
