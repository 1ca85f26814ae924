"""`cutlass-aot new`: what it writes, and what it refuses. That it builds is tested with the compiler."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cutlass_aot.cli import main
from cutlass_aot.cli.new import write_package
from cutlass_aot.errors import GeneratorError
from cutlass_aot.manifest.model import load_manifest
from cutlass_aot.manifest.toml import load_toml
from tests.support.paths import REPOSITORY, TEMPLATES


@pytest.mark.parametrize(("kind", "own"), [("kernel", "axpy"), ("generator", "scale_add")])
def test_the_examples_own_name_gives_the_template(tmp_path: Path, kind: str, own: str) -> None:
    written = write_package(kind, own, tmp_path / "made")
    for path in written:
        assert (tmp_path / "made" / path).read_bytes() == (TEMPLATES / kind / path).read_bytes()
    assert sorted(written) == sorted(
        path.relative_to(TEMPLATES / kind).as_posix()
        for path in (TEMPLATES / kind).rglob("*")
        if path.suffix in (".py", ".toml")
    )


@pytest.mark.parametrize("kind", ["kernel", "generator"])
@pytest.mark.parametrize("name", ["soft_cap", "q", "x2_y"])
def test_another_name_stands_everywhere(tmp_path: Path, kind: str, name: str) -> None:
    folder = tmp_path / "made"
    for path in write_package(kind, name, folder):
        text = (folder / path).read_text()
        assert not any(word in text.lower() for word in ("axpy", "scale_add", "scale-add", "scaleadd"))
        if path.endswith(".py"):
            ast.parse(text)
    project = load_toml(folder / "pyproject.toml")["project"]
    assert project["name"] == f"{name.replace('_', '-')}-kernels"
    (location,) = project["entry-points"]["cutlass_aot.generators"].values()
    module, _, attribute = location.partition(":")
    assert f" {attribute}" in (folder / f"{module.replace('.', '/')}.py").read_text()
    (table,) = load_manifest(folder / f"{name}.toml").tables
    assert (table.generator, table.operation) == (name, name)


@pytest.mark.parametrize(("kind", "own"), [("kernel", "axpy"), ("generator", "scale_add")])
@pytest.mark.parametrize("form", ["s{}", "{}2", "my_{}", "{0}_{0}"])
def test_a_name_that_contains_the_examples_stands_there_once(
    tmp_path: Path, kind: str, own: str, form: str
) -> None:
    name = form.format(own)
    write_package(kind, name, tmp_path / "made")
    write_package(kind, "soft_cap", tmp_path / "other")
    project = load_toml(tmp_path / "made" / "pyproject.toml")["project"]
    assert project["name"] == f"{name.replace('_', '-')}-kernels"
    (location,) = project["entry-points"]["cutlass_aot.generators"].values()
    assert (tmp_path / "made" / location.partition(".")[0] / "__init__.py").exists()
    for path in (tmp_path / "other").rglob("*.py"):
        made = tmp_path / "made" / path.relative_to(tmp_path / "other").as_posix().replace("soft_cap", name)
        text = path.read_text().replace("soft_cap", name).replace("soft-cap", name.replace("_", "-"))
        as_class = "".join(word.capitalize() for word in name.split("_"))
        assert made.read_text() == text.replace("SoftCap", as_class)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *(
            (name, "expected at most 64 lower-case")
            for name in ("", "Axpy", "2x", "a-b", "a__b", "a_", "../x")
        ),
        ("x" * 65, "expected at most 64 lower-case"),
        ("a\nb", "expected at most 64 lower-case"),
        ("gemm", "it is the operation of GEMMs"),
        *((name, "it is a keyword of Python; choose") for name in ("class", "True", "None", "match", "_")),
        ("true", "it is a keyword of Python, as True; choose"),
        ("none", "it is a keyword of Python, as None; choose"),
        *((name, "it is a built-in name of Python") for name in ("max", "hash")),
        *((name, f"{name} is a module of Python's library") for name in ("os", "json", "queue")),
        ("click", r"click is a module that is installed \(.*click.*\), which it would hide"),
    ],
)
@pytest.mark.parametrize("kind", ["kernel", "generator"])
def test_a_name_that_no_kernel_can_have_is_refused(tmp_path: Path, kind: str, name: str, why: str) -> None:
    with pytest.raises(
        click.BadParameter, match=f"^{name!r} cannot name a {kind}: {why}".replace("\\n", "\\\\n")
    ):
        write_package(kind, name, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_installed_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warp_kernels.py").write_text("")
    # A folder without code hides nothing: `new` may have been called in it.
    (tmp_path / "folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        click.BadParameter, match=r"'warp' cannot .*: warp_kernels is a module that is installed"
    ):
        write_package("kernel", "warp", tmp_path / "made")
    assert write_package("kernel", "folder", tmp_path / "made")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("kernel", name) for name in ("cutlass_aot", "torch", "cutlass", "cute", "bundle", "x", "dtype")),
        *(("generator", name) for name in ("register", "cutlass", "problem")),
    ],
)
def test_a_name_that_the_template_uses_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    with pytest.raises(
        click.BadParameter, match=f"{name!r} cannot name a {kind}: it means something else in"
    ):
        write_package(kind, name, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["class", "rms_norm"])
def test_a_name_that_is_refused_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["new", "kernel", name])
    assert ended.value.code == 2
    assert f"Invalid value for NAME: {name!r} " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rms_norm", "simt_f64_gemm"])
def test_the_name_of_another_generator_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        click.BadParameter, match=f"{name!r} is the name of generator cutlass_aot.*: give yours"
    ):
        write_package("kernel", name, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("made", "dangling"):
        with pytest.raises(GeneratorError, match="exists: name another folder with -o"):
            write_package("kernel", "q", tmp_path / name)


def test_a_folder_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GeneratorError, match="cannot be written"):
        write_package("kernel", "q", tmp_path / "file" / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["kernel", "generator"])
def test_the_launch_script_says_in_a_line_that_torch_has_no_gpu(tmp_path: Path, kind: str) -> None:
    """Torch would raise an error of its own, with a traceback, where the first tensor is made."""
    write_package(kind, "soft_cap", tmp_path / "made")
    (tmp_path / "made" / "torch.py").write_text(
        "from types import SimpleNamespace\n__version__ = '2.13.0+cpu'\n"
        "cuda = SimpleNamespace(is_available=lambda: False)\n"
    )
    done = subprocess.run(
        [sys.executable, "launch.py"], cwd=tmp_path / "made", capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "torch 2.13.0+cpu finds no GPU: expected one, and a torch that is built for CUDA\n"
    )
