"""The check of installers, with the pip of this environment alone: what it tells of wheels, good and bad."""

from __future__ import annotations

import platform

import pytest

pytest.importorskip("cryptography")

from cutlass_aot.bundle.wheel.verify import look_at_wheel
from cutlass_aot.bundle.write import write_bundle
from tests.support.synthetic import plan
from tools.check import installers
from tools.fuzz.zips import HIDDEN, hidden_entry, moved


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installers")
    write_bundle(plan(folder / "linked"), folder / "small")
    return installers.wheels(folder / "small", folder)


def test_wheels_made_otherwise_verify_and_those_with_something_hidden_do_not(wheels):
    good, hidden = wheels
    assert {what for what, wheel in good.items() if look_at_wheel(wheel).problems} == set()
    assert {what for what, wheel in hidden.items() if not look_at_wheel(wheel).problems} == set()
    assert set(hidden) == set(HIDDEN)


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="the wheel is for x86-64 and glibc",
)
def test_what_pip_installs_is_compared_with_record(wheels, tmp_path):
    good, _ = wheels
    wheel = good["the wheel, signed"]
    tool = tmp_path / "none"
    (tmp_path / "one").mkdir()
    assert installers.installed(tool, "pip", wheel, str(wheel), tmp_path / "one") == installers.SAME
    # Compared with the RECORD of another wheel, which has no signature.
    (tmp_path / "two").mkdir()
    with installers.serving(wheel.parent) as server:
        address = f"{server}/{wheel.name}"
        found = installers.installed(tool, "pip", good["the wheel"], address, tmp_path / "two")
    assert found.startswith("cutlass_aot_bundle_small/bundle/signatures/")
    (tmp_path / "three").mkdir()
    assert installers.installed(tool, "pip", wheel, "none.whl", tmp_path / "three") == installers.REFUSED


def test_outcomes_are_told_by_installer_and_release():
    said = {("uv", release, ""): installers.SAME for release in ("1", "2", "3", "4")}
    assert installers._told(said) == "the same files, by all"
    said |= {
        ("uv", "2", ""): "evil.pth too",
        ("uv", "3", ""): "evil.pth too",
        ("pip", "1", ""): installers.SAME,
    }
    assert installers._told(said) == "evil.pth too: uv 2 to 3; the same files: uv 1, 4, pip"


def test_a_hidden_entry_is_where_the_index_allows_for_it(wheels):
    data = wheels[0]["the wheel"].read_bytes()
    assert moved(data, 0, hidden_entry()).startswith(hidden_entry() + data[:30])
