"""Licences of the packages whose code is in kernels: all of them, or an error."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from cutlass_aot.builder.link.packages import license_notices
from cutlass_aot.errors import ToolchainError
from cutlass_aot.generators.registry import code_origins, find


def install(folder: Path, license_file: str = "") -> None:
    about = folder / "of_a_user-1.0.dist-info"
    (about / "licenses").mkdir(parents=True)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: of-a-user\nVersion: 1.0\nLicense-Expression: MIT\nAuthor: A User\n"
    )
    files = ["METADATA"]
    if license_file:
        (about / license_file).write_text("Permission is hereby granted")
        files.append(license_file)
    (about / "RECORD").write_text("".join(f"of_a_user-1.0.dist-info/{name},,\n" for name in files))


@pytest.mark.parametrize("name", ["licenses/LICENSE.txt", "licenses/NOTICE", "COPYING"])
def test_notices_are_those_of_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert b"Permission is hereby granted" in license_notices("of-a-user", "1.0")


def test_a_version_may_leave_out_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As requests for kernels within torch do, whose builds have the same sources."""
    install(tmp_path)
    about = tmp_path / "of_a_user-1.0.dist-info"
    (about / "METADATA").write_text((about / "METADATA").read_text().replace("1.0", "1.0+cpu"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for version in ("1.0", "1.0+cpu"):
        assert license_notices("of-a-user", version)
    with pytest.raises(ToolchainError, match=r"1\.0\+cpu is installed"):
        license_notices("of-a-user", "1.0+cu130")


def test_a_package_without_such_a_file_is_named_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = license_notices("of-a-user", "1.0").decode()
    assert "License-Expression: MIT\nAuthor: A User" in text


@pytest.mark.parametrize(("name", "found"), [("of-a-user", "1.0"), ("of-nobody", "no release")])
def test_a_release_that_is_not_installed_any_more_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: str
) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ToolchainError, match=f"has to carry its licence, and {found} is installed"):
        license_notices(name, "2.0")


@pytest.mark.parametrize("generator", ["cutlass.operators", "tf32_gemm"])
def test_kernels_of_the_operators_package_have_its_code(generator: str) -> None:
    found = code_origins(find(generator).load())
    assert found["nvidia-cutlass-operators"] == metadata.version("nvidia-cutlass-operators")
    assert b"Redistributions in binary form" in license_notices(
        "nvidia-cutlass-operators", found["nvidia-cutlass-operators"]
    )
