"""The files of installed distributions, which kernels can depend on as a whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.distributions import installed
from cutlass_aot.generators.registry import distribution_digests, version_of
from cutlass_aot.runtime import declared

FILES = ("kit/__init__.py", "kit/deep/__init__.py", "kit/table.json")


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared here is forgotten afterwards."""
    monkeypatch.setattr(declared, "_declared", {})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are installed in, with one package."""
    folder = tmp_path / "site"
    listed = [
        *FILES, "kit/__pycache__/__init__.cpython-311.pyc", "kit/gone.py", "../../bin/kit",
        "some_kit-1.0.dist-info/METADATA", "some_kit-1.0.dist-info/RECORD",
    ]  # fmt: skip
    for name in listed:
        if name not in ("kit/gone.py", "../../bin/kit"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
    info = folder / "some_kit-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-kit\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in listed))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_the_files_are_those_that_it_installed(site: Path) -> None:
    for name in ("some-kit", "Some.Kit", "some_kit"):
        found = installed(name)
        assert dict(found.files) == {name: site / name for name in sorted(FILES)}
        assert found.record == site / "some_kit-1.0.dist-info" / "RECORD"
        assert found.folders == {str(site / "kit"), str(site / "kit/deep")}


def test_an_editable_one_has_the_sources_of_its_project(site: Path, tmp_path: Path) -> None:
    project = tmp_path / "a project"
    sources = ("src/kit/__init__.py", "tests/test_kit.py", "setup.py")
    for name in (
        *sources,
        "README.md",
        ".venv/lib/x.py",
        "venv/lib/site-packages/x.py",
        "src/__pycache__/x.py",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    url = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (site / "some_kit-1.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    found = installed("some-kit")
    assert dict(found.files) == {name: project / name for name in sorted(sources)}
    assert found.record is None
    assert str(project / "src/kit") in found.folders


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "file:///x"}', '{"dir_info": {"editable": true}}'])
def test_another_direct_url_is_not_that_of_an_editable_one(site: Path, text: str) -> None:
    (site / "some_kit-1.0.dist-info" / "direct_url.json").write_text(text)
    assert len(installed("some-kit").files) == len(FILES)


@pytest.mark.parametrize("name", ["another-kit", "", "../site"])
def test_what_is_not_installed_is_refused(site: Path, name: str) -> None:
    with pytest.raises(GeneratorError, match="is not installed: install it"):
        installed(name)


def test_one_that_does_not_list_its_files_is_refused(site: Path) -> None:
    (site / "some_kit-1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(GeneratorError, match="lists 0 files, expected 1 to 100000: name the modules"):
        installed("some-kit")


def declare(**more: Any) -> Any:
    name = "of_a_kit"

    def function() -> None: ...

    function.__qualname__ = name
    return cutlass_aot.kernel(name=name, targets=["sm_90a"], **more)(function)


def test_the_version_of_a_generator_covers_its_distributions(site: Path) -> None:
    generator = DeclaredGenerator(declare(distributions=["some-kit"]))
    seen: list[Path] = []

    def read(path: Path) -> str:
        seen.append(path)
        return path.read_text()

    assert set(distribution_digests(generator, read)) == {f"some-kit/{name}" for name in FILES}
    assert site / "some_kit-1.0.dist-info" / "RECORD" in seen
    versions = {version_of(generator)}
    for name in FILES:
        (site / name).write_text("changed")
        versions.add(version_of(generator))
    (site / "kit/table.json").unlink()
    versions.add(version_of(generator))
    assert len(versions) == len(FILES) + 2


@pytest.mark.parametrize("what", ["modules", "distributions"])
@pytest.mark.parametrize("names", ["quack", [""], [3]])
def test_a_list_of_names_is_expected(what: str, names: Any) -> None:
    with pytest.raises(GeneratorError, match=f"`{what}`: expected a list of names"):
        declare(**{what: names})


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the examples' packages need Python 3.11")
def test_flash_attention_is_whole() -> None:
    pytest.importorskip("flash_attn.cute", reason="no flash-attn-4", exc_type=ImportError)
    assert "flash_attn/cute/softmax.py" in installed("flash-attn-4").files
