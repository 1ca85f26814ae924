"""The compiler's fingerprint: it follows the files that are imported, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cutlass_aot.builder import toolchain
from cutlass_aot.builder.assemble import cuda_driver_for
from cutlass_aot.errors import ToolchainError
from cutlass_aot.runtime.machine import cuda_driver


def install(root, name, files, version="1.0", record=True):
    """A distribution as pip leaves it."""
    info = root / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    if record:
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in [*files, f"{info.name}/METADATA"]))


@pytest.fixture
def first(tmp_path, monkeypatch):
    """A folder that comes first on the search path, with everything that is required."""
    for name in ("nvidia-cutlass-dsl", "nvidia-cutlass-operators", "torch"):
        install(tmp_path / "first", name, {f"{name}.py": "1"})
    monkeypatch.setattr("sys.path", [str(tmp_path / "first"), str(tmp_path / "second")])
    return tmp_path / "first"


def fingerprint():
    return toolchain.detect_compiler().fingerprint


def test_it_differs_on_a_changed_file(first):
    before = fingerprint()
    assert fingerprint() == before
    (first / "nvidia-cutlass-operators.py").write_text("2")
    assert fingerprint() != before


def test_it_does_not_differ_on_what_is_compiled_at_installation(first):
    before = fingerprint()
    record = first / "nvidia_cutlass_dsl-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "__pycache__/x.pyc,,\n../../../bin/script,,\n")
    assert fingerprint() == before


def test_it_follows_the_distribution_that_is_imported(first, tmp_path):
    before = fingerprint()
    install(tmp_path / "second", "nvidia-cutlass-dsl", {"nvidia-cutlass-dsl.py": "shadowed"})
    assert fingerprint() == before
    (first / "nvidia-cutlass-dsl.py").write_text("imported")
    assert fingerprint() != before


def test_it_differs_on_a_version(first, tmp_path, monkeypatch):
    before = fingerprint()
    for name in ("nvidia-cutlass-dsl", "nvidia-cutlass-operators", "torch"):
        install(tmp_path / "second", name, {f"{name}.py": "1"}, version="1.1")
    monkeypatch.setattr("sys.path", [str(tmp_path / "second")])
    assert fingerprint() != before


def test_an_installation_that_does_not_list_its_files_is_refused(first):
    install(first, "nvidia-cutlass-dsl-libs-base", {}, record=False)
    with pytest.raises(ToolchainError, match="does not say which files it installed"):
        fingerprint()


def test_an_editable_installation_is_refused(first):
    record = '{"url": "file:///somewhere", "dir_info": {"editable": true}}'
    (first / "nvidia_cutlass_operators-1.0.dist-info" / "direct_url.json").write_text(record)
    with pytest.raises(ToolchainError, match="is an editable installation"):
        fingerprint()


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(ToolchainError, match=r"nvidia-cutlass-dsl, .*torch missing; install it with"):
        fingerprint()


@pytest.mark.parametrize("name", toolchain.CODE_GENERATION)
def test_it_differs_on_each_of_our_modules_that_make_objects(first, tmp_path, monkeypatch, name):
    shutil.copytree(toolchain._OWN, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(toolchain, "_OWN", tmp_path / "own")
    before = fingerprint()
    with (tmp_path / "own" / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert fingerprint() != before


def test_none_of_our_modules_that_make_objects_is_forgotten():
    """Those of the builder that a worker imports, but for what brings its work and what traces for checks."""
    code = (
        "import sys, cutlass_aot.builder.compile.fork_server, cutlass_aot.builder.compile.worker\n"
        "print(*(name for name in sys.modules if name.startswith('cutlass_aot.builder.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {name.removeprefix("cutlass_aot.").replace(".", "/") for name in done.stdout.split()}
    known = {name.removesuffix(".py").removesuffix("/__init__") for name in toolchain.CODE_GENERATION}
    packages = {"builder/compile", "builder/link"}
    assert modules - known == {*packages, "builder/compile/messages", "builder/compile/trace"}


def test_targets_that_the_assembler_does_not_know_are_refused(first):
    install(first, "nvidia-cutlass-dsl-libs-cu12", {"libs.py": "1"})
    compiler = toolchain.detect_compiler()
    assert compiler.toolkit == 12
    compiler.require(["sm_100a", "sm_121a"])
    with pytest.raises(ToolchainError, match=r"for CUDA 12 here.* code for sm_107a: pip install .*cu13"):
        compiler.require(["sm_100a", "sm_107a"])


def test_it_differs_on_the_libraries_that_the_driver_chooses(first, monkeypatch):
    for toolkit in (12, 13):
        install(first, f"nvidia-cutlass-dsl-libs-cu{toolkit}", {f"libs{toolkit}.py": "1"})
    monkeypatch.setattr(cuda_driver, "driver_version", lambda: (12, 9))
    older = toolchain.detect_compiler()
    monkeypatch.setattr(cuda_driver, "driver_version", lambda: (13, 0))
    newer = toolchain.detect_compiler()
    assert (older.toolkit, newer.toolkit) == (12, 13)
    assert older.fingerprint != newer.fingerprint


@pytest.mark.parametrize(
    ("assemblers", "driver"),
    [([], "12.0"), (["12.9"], "12.0"), (["12.9", "13.4.59"], "13.0"), (["11.8"], "12.0")],
)
def test_a_bundle_needs_a_driver_of_its_assemblers_major_version(assemblers, driver):
    facts = [SimpleNamespace(facts=SimpleNamespace(ptxas_version=version)) for version in assemblers]
    assert cuda_driver_for(facts) == driver
