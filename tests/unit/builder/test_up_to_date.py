"""A build with nothing to do: answered from the build state, and never where anything is not what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.builder.inputs.file_digests import Files
from cutlass_aot.builder.inputs.up_to_date import UpToDateBundle, remember_build, up_to_date
from cutlass_aot.store.build_state import read_state, write_state
from tests.support.stores import age


@pytest.fixture
def built(tmp_path):
    """A manifest, a source, a bundle of two files, and the build state that says it is up to date."""
    manifest, source = tmp_path / "m.toml", tmp_path / "source.py"
    manifest.write_text("name = 1")
    source.write_text("pass")
    library = tmp_path / "out" / "b" / "lib" / "x.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"code")
    (tmp_path / "store").mkdir()
    files = Files()
    files.digest(manifest)
    files.digest(source)
    answer = UpToDateBundle(tmp_path / "out" / "b", 3)
    made = {str(library): Files().digest(library)}
    (tmp_path / "package").mkdir()
    packages = [str(tmp_path / "package")]
    remember_build(manifest, tmp_path / "store", answer, files.used, packages, made)
    return tmp_path


def ask(folder, manifest="m.toml", out="out"):
    return up_to_date(folder / manifest, folder / "store", folder / out)


def test_it_is_answered_again_and_again(built):
    assert ask(built) == UpToDateBundle(built / "out" / "b", 3)
    assert ask(built) == ask(built)


@pytest.mark.parametrize(("hours", "noted"), [(23, False), (25, True), (-25, True)])
def test_an_answer_notes_its_use_once_a_day(built, hours, noted):
    """A collection takes build state that nobody uses."""
    assert ask(built) is not None
    (path,) = (built / "store" / "build_state").iterdir()
    age(path, hours=hours)
    before = path.stat().st_mtime
    assert ask(built) is not None
    assert (path.stat().st_mtime != before) == noted


@pytest.mark.parametrize(
    "file", ["m.toml", "source.py", "out/b/lib/x.so", "out/b/another", "out/b/lib/another.so"]
)
def test_a_file_that_changes_or_comes_along_is_a_difference(built, file):
    (built / file).write_bytes(b"other")
    assert ask(built) is None


def test_a_module_that_could_be_imported_instead_is_a_difference(built):
    (built / "package" / "notes.txt").touch()
    assert ask(built) is not None
    (built / "package" / "module").mkdir()
    assert ask(built) is None


@pytest.mark.parametrize("file", ["m.toml", "source.py", "out/b/lib/x.so"])
def test_a_file_that_goes_is_a_difference(built, file):
    (built / file).unlink()
    assert ask(built) is None


def test_another_manifest_output_or_store_has_its_own_answer(built):
    (built / "copy.toml").write_bytes((built / "m.toml").read_bytes())
    assert ask(built, manifest="copy.toml") is None
    assert ask(built, out="elsewhere") is None
    assert up_to_date(built / "m.toml", built / "no-store", built / "out") is None


def test_another_search_path_or_package_is_a_difference(built, monkeypatch):
    packages = built / "packages"
    packages.mkdir()
    monkeypatch.setattr("sys.path", [*sys.path, str(packages)])
    assert ask(built) is None
    files = Files()
    files.digest(built / "m.toml")
    remember_build(
        built / "m.toml", built / "store", UpToDateBundle(built / "out" / "b", 3), files.used, [], {}
    )
    assert ask(built) is not None
    (packages / "new-1.0.dist-info").mkdir()
    assert ask(built) is None


@pytest.mark.parametrize(
    "body", [None, [], {}, {"files": 1}, {"files": {"a": ["b"]}, "search": {}, "folders": {}}]
)
def test_a_note_that_is_something_else_answers_nothing(built, body):
    (name,) = (path.name for path in (built / "store" / "build_state").iterdir())
    write_state(built / "store", name, body)
    assert ask(built) is None


@pytest.mark.parametrize("damage", [b"", b"\x00" * 100, "cut"])
def test_a_damaged_note_answers_nothing(built, damage):
    (path,) = (built / "store" / "build_state").iterdir()
    path.write_bytes(path.read_bytes()[:-9] if damage == "cut" else damage)
    assert ask(built) is None


def test_a_store_that_cannot_be_written_takes_no_note(tmp_path):
    (tmp_path / "store").write_text("a file")
    write_state(tmp_path / "store", "0" * 64, {})
    assert read_state(tmp_path / "store", "0" * 64) is None


def test_answering_imports_next_to_nothing():
    script = (
        "import sys; import cutlass_aot.builder.inputs.up_to_date; print('\\n'.join(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    own = {name for name in done.stdout.split() if name.startswith("cutlass_aot")}
    assert own == {
        "cutlass_aot",
        "cutlass_aot.builder",
        "cutlass_aot.builder.inputs",
        "cutlass_aot.builder.inputs.up_to_date",
        "cutlass_aot.builder.inputs.file_digests",
        "cutlass_aot.errors",
        "cutlass_aot.runtime",
        "cutlass_aot.runtime.files",
        "cutlass_aot.runtime.files.regular_file",
        "cutlass_aot.schema",
        "cutlass_aot.schema.codec",
        "cutlass_aot.schema.encoding",
        "cutlass_aot.store",
        "cutlass_aot.store.build_state",
    }
    heavy = {"cutlass", "torch", "filelock", "zstandard", "fsspec", "importlib.metadata", "tomllib", "rich"}
    assert not heavy & set(done.stdout.split())


def test_paths_may_be_relative(built, monkeypatch):
    monkeypatch.chdir(built)
    assert up_to_date(Path("m.toml"), Path("store"), Path("out")) == UpToDateBundle(Path("out/b"), 3)
