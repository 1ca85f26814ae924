"""Installed bundles are found by entry point, and their packages are not imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import cutlass_aot
from cutlass_aot.errors import BundleError
from tests.unit.bundles import designs, write_bundle


def install(site: Path, distribution: str, name: str, version: str = "0.1.0", *, bundle: bool = True) -> Path:
    """What installing a bundle's wheel leaves behind."""
    package = distribution.replace("-", "_")
    folder = site / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('a bundle must not be imported')\n")
    if bundle:
        write_bundle(folder / "bundle", designs())
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
    with pytest.raises(BundleError, match=r"'large' is not installed: installed are small 0\.1\.0; install"):
        cutlass_aot.open_installed("large")
    with pytest.raises(BundleError, match=r"'small 9' is not installed: installed are small 0\.1\.0"):
        cutlass_aot.open_installed("small", "9")


def test_nothing_installed(site: Path) -> None:
    with pytest.raises(BundleError, match="installed are no bundles"):
        cutlass_aot.open_installed("small")


def test_of_two_versions_of_one_name_the_newer_is_opened(site: Path) -> None:
    first = install(site, "cutlass-aot-small", "small", "0.9.0")
    second = install(site, "vendor-small", "small", "0.10.0")
    bundle = cutlass_aot.open_installed("small")
    assert bundle.path == second
    (shadowed,) = bundle.report().shadowed
    assert (shadowed.path, shadowed.by, shadowed.reason) == (str(first), str(second), "it is newer")
    assert cutlass_aot.open_installed("small", "0.9.0").path == first


def test_a_wheel_without_its_files(site: Path) -> None:
    install(site, "cutlass-aot-small", "small", bundle=False)
    with pytest.raises(
        BundleError, match="package cutlass_aot_small has no folder 'bundle': install the wheel"
    ):
        cutlass_aot.open_installed("small")
