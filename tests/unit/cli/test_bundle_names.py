"""Commands that open bundles take the name of an installed one, as `doctor` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutlass_aot.cli import main
from tests.support.bundles import designs, write_bundle

KERNELS = designs()


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle called small on the search path, and another directory to be in."""
    bundle = write_bundle(tmp_path / "path" / "small", KERNELS)
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", str(bundle.parent))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return bundle


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([*arguments])
    printed = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, printed.out, printed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "small"],
        ["show", "small", KERNELS[0].digest],
        ["choose", "small", "--m", "64", "--n", "128", "--k", "64"],
        ["doctor", "small"],
        ["verify", "small"],
        ["bundle", "prefill", "small", "unpacked"],
        ["diff", "small", "small"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_an_installed_bundle_is_found_by_its_name(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    _, out, errors = call(capsys, *arguments)
    assert "not a bundle" not in errors
    assert "no such" not in errors
    assert out


def test_a_directory_comes_before_an_installed_bundle(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_bundle(tmp_path / "here" / "small", KERNELS[:1])
    assert len(json.loads(call(capsys, "ls", "small", "--json")[1])) == 1
    assert len(json.loads(call(capsys, "ls", "../path/small", "--json")[1])) == len(KERNELS)


def test_a_directory_that_is_no_bundle_hides_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "here" / "small").mkdir()
    assert len(json.loads(call(capsys, "ls", "small", "--json")[1])) == len(KERNELS)


def test_what_is_neither_is_said_with_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ls", "verify", "wheel"):
        status, out, errors = call(capsys, name, "smal")
        assert (status, out) == (1, "")
        assert errors.startswith("error: 'smal' is not a bundle: expected a directory,")
        assert errors.endswith(
            "or the name of an installed bundle (installed: small); did you mean 'small'?\n"
        )


def test_a_bundle_that_was_built_here_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    write_bundle(Path("build/bundles/large"), KERNELS)
    for name in ("ls", "choose", "wheel"):
        _, _, errors = call(capsys, name, "large")
        assert errors.endswith("(installed: small); did you mean 'build/bundles/large'?\n")
