"""Where a module comes from, and whether its code may decide kernels."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from cutlass_aot.programs.describe import distributions
from cutlass_aot.programs.describe.distributions import deciding_origin_of, origin_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the search path; what a test imports from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]
    for cached in (distributions._origin_of_file, distributions._owner, distributions._records):
        cached.cache_clear()
    distributions._installed.cache_clear()
    distributions._digest.cache_clear()


def write(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def loaded(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_package_that_nothing_installed_has_all_of_its_sources(folder):
    write(folder, own__one="", own__inner__two="", other="")
    (folder / "own" / "__init__.py").write_text("")
    origin = origin_of(importlib.import_module("own.one"))
    assert (origin.name, origin.version, origin.root) == ("own", "-", str(folder))
    assert origin.files == ("own/__init__.py", "own/inner/two.py", "own/one.py")
    assert origin == origin_of(importlib.import_module("own.inner.two"))


@pytest.mark.parametrize("name", ["torch._inductor.runtime.compile_tasks.c123", "numpy.made", "made"])
def test_a_generated_file_is_not_of_the_package_that_it_is_loaded_into(tmp_path, name):
    """As Inductor loads what helion generates: a file in a folder of temporary files, beside others."""
    write(tmp_path, ab__c123="VALUE = 1\n", ab__other="", made="")
    origin = deciding_origin_of(loaded(tmp_path / "ab" / "c123.py", name))
    assert (origin.name, origin.root, origin.files) == (name, str(tmp_path / "ab"), ("c123.py",))
    first = origin.fingerprint
    write(tmp_path, ab__c123="VALUE = 2\n")
    assert deciding_origin_of(loaded(tmp_path / "ab" / "c123.py", name)).fingerprint != first


def test_kernels_within_a_framework_are_of_their_folder(folder):
    """As torch has some: its other code decides nothing."""
    sources = {"torch/nn.py": "", "torch/_native/ops.py": "TILE = 1\n", "torch/_native/more.py": ""}
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    installed = folder / "torch-2.13.0+cpu.dist-info"
    installed.mkdir()
    (installed / "RECORD").write_text("".join(f"{name},,\n" for name in sources))
    assert deciding_origin_of(loaded(folder / "torch" / "nn.py", "torch.nn")) is None
    origin = deciding_origin_of(loaded(folder / "torch" / "_native" / "ops.py", "torch._native.ops"))
    assert (origin.name, origin.version) == ("torch/_native", "2.13.0")
    assert origin.files == ("torch/_native/more.py", "torch/_native/ops.py")
