"""Installed bundles are found by entry point, and their packages are not imported."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from pathlib import Path

import pytest

import cutlass_aot
from cutlass_aot.doctor import machine
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.declared import BundleSearch
from cutlass_aot.runtime.installed import installed_report
from cutlass_aot.runtime.search_path import located
from tests.support.bundles import designs, write_bundle


def install(site: Path, distribution: str, name: str, version: str = "0.1.0", *, bundle: bool = True) -> Path:
    """What installing a bundle's wheel leaves behind."""
    package = distribution.replace("-", "_")
    folder = site / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('a bundle must not be imported')\n")
    if bundle:
        write_bundle(folder / "bundle", designs(), name=name, version=version)
    info = site / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[cutlass_aot.bundles]\n{name} = {package}\n")
    return folder / "bundle"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return folder


def test_an_installed_bundle_is_opened(site: Path) -> None:
    path = install(site, "cutlass-aot-small", "small")
    bundle = cutlass_aot.open_installed("small")
    assert (bundle.path, bundle.version) == (path, "0.1.0")
    assert cutlass_aot.open_installed("small", "0.1.0").path == path
    assert "cutlass_aot_small" not in sys.modules


def test_installed_bundles_are_listed(site: Path) -> None:
    install(site, "cutlass-aot-small", "small")
    install(site, "cutlass-aot-other", "other", "2.0")
    found = [(b.name, b.version, b.distribution) for b in cutlass_aot.installed_bundles() if b.path]
    assert found == [("other", "2.0", "cutlass-aot-other"), ("small", "0.1.0", "cutlass-aot-small")]


def test_an_unknown_name_lists_what_is_installed(site: Path) -> None:
    install(site, "cutlass-aot-small", "small")
    with pytest.raises(
        BundleError, match=r"'large' is not installed \(installed bundles: small 0\.1\.0\); install"
    ):
        cutlass_aot.open_installed("large")
    with pytest.raises(BundleError, match=r"'small 9' is not installed \(installed bundles: small 0\.1\.0"):
        cutlass_aot.open_installed("small", "9")


def test_nothing_installed(site: Path) -> None:
    with pytest.raises(BundleError, match="installed bundles: none"):
        cutlass_aot.open_installed("small")


def test_of_two_versions_of_one_name_the_newer_is_opened(site: Path) -> None:
    first = install(site, "cutlass-aot-small", "small", "0.9.0")
    second = install(site, "vendor-small", "small", "0.10.0")
    bundle = cutlass_aot.open_installed("small")
    assert bundle.path == second
    (other,) = [item for item in installed_report("small") if item.reason]
    assert (other.path, other.reason) == (str(first), f"{second} is newer")
    assert cutlass_aot.open_installed("small", "0.9.0").path == first


@pytest.mark.parametrize("announced", [("prod", "0.0.1"), ("other", "9.9")])
def test_a_wheel_that_announces_another_bundle_than_it_has(site: Path, announced: tuple[str, str]) -> None:
    """What is signed is the catalog, not the wheel's metadata."""
    path = install(site, "vendor", "other", "0.0.1")
    name, version = announced
    metadata = site / "vendor-0.0.1.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.0.1", version))
    (metadata.parent / "entry_points.txt").write_text(f"[cutlass_aot.bundles]\n{name} = vendor\n")
    expected = re.escape(f"{path} is bundle other 0.0.1, but vendor announces {name} {version}: expected")
    for requested in (name, None):
        with pytest.raises(BundleError, match=expected):
            cutlass_aot.open_installed(requested)
    install(site, "cutlass-aot-small", "small")
    assert cutlass_aot.open_installed().name == "small"
    (refused,) = [item for item in installed_report() if item.reason]
    assert refused[:3] == (name, version, str(path))
    assert re.match(expected, refused.reason)
    if name != "other":
        with pytest.raises(BundleError, match="'other' is not installed"):
            cutlass_aot.open_installed("other")
    search = BundleSearch()
    assert "other" not in [bundle.name for bundle in search]
    assert any(re.search(expected, problem) for problem in search.problems)


@pytest.mark.parametrize("left", [None, "", "Metadata-Version: 2.1\nName: cutlass-aot-gone\n", b"\xff\xfe"])
def test_a_distribution_without_a_version_stops_nothing(site: Path, left: str | bytes | None) -> None:
    """As an interrupted uninstall leaves it."""
    path = install(site, "cutlass-aot-gone", "gone")
    metadata = site / "cutlass_aot_gone-0.1.0.dist-info" / "METADATA"
    metadata.unlink()
    if left is not None:
        metadata.write_bytes(left if isinstance(left, bytes) else left.encode())
    (listed,) = [item for item in cutlass_aot.installed_bundles() if item.name == "gone"]
    assert (listed.version, listed.path) == ("", path)
    assert "gone" in [item["name"] for item in machine.collect()["bundles"]]
    for requested in ("gone", None):
        with pytest.raises(BundleError, match=r"'gone' .* has no version: its METADATA is gone or damaged"):
            cutlass_aot.open_installed(requested)
    with pytest.raises(BundleError, match=r"'small' is not installed \(installed bundles: gone\);"):
        cutlass_aot.open_installed("small")
    install(site, "cutlass-aot-small", "small")
    assert [item.reason for item in installed_report("small")] == [""]
    (refused,) = [item for item in installed_report() if item.reason]
    assert (refused.name, refused.path, refused.reason) == ("gone", str(path), listed.problem)


def test_a_path_that_can_be_none_is_reported(site: Path) -> None:
    install(site, "cutlass-aot-small", "small")
    assert cutlass_aot.open_installed("small", paths=["a\0b"]).name == "small"
    (refused,) = [item for item in installed_report("small", paths=["a\0b"]) if item.reason]
    assert "cannot be read: " in refused.reason


def test_a_wheel_whose_folder_must_not_be_looked_into_stops_nothing(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(site, "cutlass-aot-small", "small")

    def refused(folder: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", refused)
        assert [item.path for item in located()] == [path]


def test_a_wheel_without_its_files(site: Path) -> None:
    install(site, "cutlass-aot-small", "small", bundle=False)
    with pytest.raises(
        BundleError, match="package cutlass_aot_small has no folder 'bundle': install the wheel"
    ):
        cutlass_aot.open_installed("small")
