"""What `make bundle` installs is pinned and, but for torch, checked against hashes; bounds are tested."""

from __future__ import annotations

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.paths import REPOSITORY
from tools.check.hashes import NOT_HASHED, Release, is_taken, releases, without_a_file
from tools.check.lower_bounds import CASES, requirements, tables

CONSTRAINTS = releases((REPOSITORY / "constraints.txt").read_text())
HASHES = (REPOSITORY / "hashes.txt").read_text()
RUN_ON_GPUS = {"torch": "2.11", "triton": "3.6"}
"""Too large for an environment of its own; the results on GPUs have these releases."""
INSTALLED_BY_HAND = {"pip", "cutlass-aot", *NOT_HASHED}


def here() -> dict[str, str]:
    """What is pinned for this Python."""
    found = [pin for pin in CONSTRAINTS if not pin.marker or Requirement(str(pin)).marker.evaluate()]
    names = [canonicalize_name(pin.name) for pin in found]
    assert len(names) == len(set(names))
    return {canonicalize_name(pin.name): pin.version for pin in found}


def test_every_pin_has_hashes() -> None:
    hashed: dict[str, int] = {}
    for block in re.sub(r" \\\n", " ", HASHES).splitlines():
        if block and not block.startswith("#"):
            pin, *digests = block.split("    --hash=")
            assert digests, pin
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64} ?", digest) for digest in digests)
            hashed[pin.strip()] = len(digests)
    assert list(hashed) == [str(pin) for pin in CONSTRAINTS if pin.name not in NOT_HASHED]


def test_what_is_installed_is_pinned() -> None:
    """But for the libraries of CUDA, which torch's builds with CUDA name by exact versions."""
    pinned = here()
    exact = {
        canonicalize_name(Requirement(text).name) for text in metadata.requires("torch") or () if "==" in text
    }
    for found in metadata.distributions():
        name = canonicalize_name(found.name)
        if name in INSTALLED_BY_HAND or (name in exact and name not in pinned):
            continue
        assert found.version == pinned.get(name), f"{name} {found.version} is installed"


@pytest.mark.parametrize("table", sorted(tables()))
def test_what_the_project_asks_for_is_pinned(table: str) -> None:
    pinned = here()
    for requirement in tables()[table]:
        if requirement.marker is None or requirement.marker.evaluate({"extra": table}):
            name = canonicalize_name(requirement.name)
            assert requirement.specifier.contains(Version(pinned[name])), f"{requirement}: {pinned[name]}"


@pytest.mark.parametrize("table", sorted(tables()))
def test_every_lower_bound_is_a_release_that_was_tested(table: str) -> None:
    """By a case of the tool, on a GPU, or as the lowest release that is pinned: every test runs with that."""
    in_cases = {requirement.name for case in CASES for requirement in requirements(case)}
    for requirement in tables()[table]:
        (bound,) = [item.version for item in requirement.specifier if item.operator in (">=", "==")]
        name = canonicalize_name(requirement.name)
        if name in RUN_ON_GPUS:
            assert bound == RUN_ON_GPUS[name], requirement
        elif requirement.name not in in_cases:
            pinned = [Version(pin.version) for pin in CONSTRAINTS if canonicalize_name(pin.name) == name]
            assert Version(bound) == min(pinned), requirement


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.6-cp313-cp313-musllinux_1_2_aarch64.whl", True),
        ("cryptography-50.0.2-cp39-abi3-manylinux_2_34_aarch64.whl", True),
        ("click-8.5.1-py3-none-any.whl", True),
        ("click-8.5.1.tar.gz", True),
        ("numpy-2.4.6-cp311-cp311-win_amd64.whl", False),
        ("numpy-2.4.6-cp311-cp311-macosx_14_0_arm64.whl", False),
        ("cffi-2.1.1-cp39-cp39-manylinux_2_17_x86_64.whl", False),
        ("msgpack-1.2.4-pp310-pypy310_pp73-manylinux_2_17_x86_64.whl", False),
        ("zstandard-0.25.0-cp311-cp311-manylinux_2_17_ppc64le.whl", False),
    ],
)
def test_files_that_pip_may_take_are_hashed(name: str, taken: bool) -> None:
    assert is_taken(name) is taken


@pytest.mark.parametrize(
    ("names", "marker", "lacking"),
    [
        (["x-1.tar.gz"], "", []),
        (["x-1-py3-none-any.whl"], "", []),
        (["x-1-cp38-abi3-manylinux_2_28_x86_64.whl", "x-1-cp38-abi3-manylinux_2_28_aarch64.whl"], "", []),
        (["x-1-cp312-abi3-manylinux_2_28_x86_64.whl", "x-1-cp312-abi3-manylinux_2_28_aarch64.whl"],
         "", [f"3.{minor} on {machine}" for minor in (10, 11) for machine in ("x86_64", "aarch64")]),
        ([f"x-1-cp3{minor}-cp3{minor}-linux_{machine}.whl"
          for minor in range(11, 15) for machine in ("x86_64", "aarch64")],
         "", ["3.10 on x86_64", "3.10 on aarch64"]),
        ([f"x-1-cp3{minor}-cp3{minor}-linux_{machine}.whl"
          for minor in range(11, 15) for machine in ("x86_64", "aarch64")],
         'python_version >= "3.11"', []),
        (["x-1-py2-none-any.whl", "x-2.tar.gz", "x-1-cp310-cp310-musllinux_1_2_x86_64.whl"],
         'python_version < "3.11"', ["3.10 on x86_64", "3.10 on aarch64"]),
    ],
)  # fmt: skip
def test_a_release_that_a_python_has_no_file_of_needs_a_marker(
    names: list[str], marker: str, lacking: list[str]
) -> None:
    assert without_a_file(Release("x", "1", marker), [{"filename": name} for name in names]) == lacking


def test_a_file_may_ask_for_a_newer_python() -> None:
    file = {"filename": "x-1.tar.gz", "requires-python": ">=3.11.5"}
    assert without_a_file(Release("x", "1", ""), [file]) == ["3.10 on x86_64", "3.10 on aarch64"]
