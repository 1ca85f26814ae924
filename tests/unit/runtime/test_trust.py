"""Whose bundles a process loads; and that what was verified is used, whatever happens to the files."""

from __future__ import annotations

import ast
import ctypes
import gc
import json
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.bundle.replace import TOP_LEVEL
from cutlass_aot.cli import main
from cutlass_aot.errors import CorruptFile, CutlassAotError, SignatureError, UntrustedBundle
from cutlass_aot.runtime import bundle as bundle_module
from cutlass_aot.runtime import bundle_search, declared
from cutlass_aot.runtime.files import signatures, trust, verified_read
from cutlass_aot.runtime.files.signatures import examine
from cutlass_aot.runtime.launching.code_cache import DIRECTORY_VARIABLE
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.search_path import ENVIRONMENT_VARIABLE as PATH_VARIABLE
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.bundles import designs, write_bundle
from tests.support.flips import files_of, flipped, positions
from tests.support.native import arrays, f32_gemm, on_gpu, write_host_bundle
from tests.support.signing import Key, make_key, without_cryptography
from tests.support.synthetic import ranking
from tests.unit.runtime.test_search_path import install

pytest.importorskip("cryptography")

PACKAGE = Path(cutlass_aot.__file__).parent
VARIABLE = trust.ENVIRONMENT_VARIABLE


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has opened no bundle yet."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(trust, "_process", trust._Process())
    monkeypatch.setattr(bundle_module, "_opened", [])
    monkeypatch.setattr(bundle_search, "_installed", {})


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return make_key(tmp_path / "keys", 1)


@pytest.fixture
def other(tmp_path: Path) -> Key:
    return make_key(tmp_path / "others", 2)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle", designs())


# -- the policy -------------------------------------------------------------------------------------------


def by_argument(path: Path, key: Key, monkeypatch: pytest.MonkeyPatch) -> cutlass_aot.Bundle:
    return cutlass_aot.open(path, keys=[key.public])


def by_trust(path: Path, key: Key, monkeypatch: pytest.MonkeyPatch) -> cutlass_aot.Bundle:
    cutlass_aot.trust(key.public)
    return cutlass_aot.open(path)


def by_environment(path: Path, key: Key, monkeypatch: pytest.MonkeyPatch) -> cutlass_aot.Bundle:
    monkeypatch.setenv(VARIABLE, str(key.public))
    return cutlass_aot.open(path)


WAYS = pytest.mark.parametrize("way", [by_argument, by_trust, by_environment])
Way = Callable[[Path, Key, pytest.MonkeyPatch], cutlass_aot.Bundle]


def test_nobody_asks_for_a_signature_unless_told(bundle: Path, key: Key) -> None:
    assert cutlass_aot.open(bundle).signers == ()
    key.sign(bundle).write_bytes(b"garbage")
    assert cutlass_aot.open(bundle).signers == ()


@WAYS
def test_a_signed_bundle_is_opened(bundle: Path, key: Key, monkeypatch: Any, way: Way) -> None:
    key.sign(bundle)
    opened = way(bundle, key, monkeypatch)
    assert [signer.raw for signer in opened.signers] == [key.raw]
    assert len(opened.kernels()) == 3


@WAYS
def test_an_unsigned_bundle_is_refused(bundle: Path, key: Key, monkeypatch: Any, way: Way) -> None:
    with pytest.raises(UntrustedBundle, match="it has no signature; trusted by ") as caught:
        way(bundle, key, monkeypatch)
    assert key.id in str(caught.value)
    assert str(key.public) in str(caught.value)


@WAYS
def test_another_key_is_refused(bundle: Path, key: Key, other: Key, monkeypatch: Any, way: Way) -> None:
    other.sign(bundle)
    with pytest.raises(UntrustedBundle, match=f"it is signed by {other.id}; trusted by .*{key.id}"):
        way(bundle, key, monkeypatch)


@WAYS
def test_two_signers_of_whom_one_is_trusted(
    bundle: Path, key: Key, other: Key, monkeypatch: Any, way: Way
) -> None:
    key.sign(bundle)
    other.sign(bundle)
    assert [signer.raw for signer in way(bundle, key, monkeypatch).signers] == [key.raw]


@WAYS
@pytest.mark.parametrize("damage", ["empty", "truncated", "garbage", "oversized", "link", "folder", "moved"])
def test_a_damaged_signature_is_refused(
    bundle: Path, tmp_path: Path, key: Key, monkeypatch: Any, way: Way, damage: str
) -> None:
    path = key.sign(bundle)
    data = path.read_bytes()
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(data[:-1])
    elif damage == "garbage":
        path.write_bytes(b"\xff" * len(data))
    elif damage == "oversized":
        path.write_bytes(data + b" " * (1 << 17))
    elif damage == "link":
        path.rename(tmp_path / "outside")
        path.symlink_to(tmp_path / "outside")
    elif damage == "folder":
        (bundle / "signatures").rename(tmp_path / "outside")
        (bundle / "signatures").symlink_to(tmp_path / "outside")
    else:
        write_bundle(tmp_path / "later", designs(((64, 64),)))
        shutil.copy(key.sign(tmp_path / "later"), path)
    with pytest.raises(UntrustedBundle, match=r"signatures\S* is not good: "):
        way(bundle, key, monkeypatch)


@WAYS
def test_a_manifest_that_changed_after_signing_is_refused(
    bundle: Path, key: Key, monkeypatch: Any, way: Way
) -> None:
    key.sign(bundle)
    # Nothing but a space: what was signed are bytes.
    (bundle / MANIFEST_NAME).write_bytes((bundle / MANIFEST_NAME).read_bytes() + b" ")
    with pytest.raises(UntrustedBundle, match="a signature of something else"):
        way(bundle, key, monkeypatch)


@WAYS
def test_an_installed_bundle_is_held_against_keys_too(
    tmp_path: Path, key: Key, other: Key, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    site = tmp_path / "site"
    path = install(site, "cutlass-aot-small", "small")
    monkeypatch.syspath_prepend(str(site))

    def open_it() -> cutlass_aot.Bundle:
        with monkeypatch.context() as patch:
            patch.setattr(cutlass_aot, "open", lambda path, **how: cutlass_aot.open_installed("small", **how))
            return way(path, key, monkeypatch)

    other.sign(path)
    with pytest.raises(UntrustedBundle):
        open_it()
    key.sign(path)
    assert [signer.raw for signer in open_it().signers] == [key.raw]


def test_what_else_is_in_the_folder_neither_helps_nor_harms(bundle: Path, key: Key) -> None:
    key.sign(bundle)
    for number in range(1000):
        (bundle / "signatures" / f"junk-{number}").write_text("x")
    assert cutlass_aot.open(bundle, keys=key.public).signers
    key_file = bundle / "signatures" / f"{key.id}.json"
    key_file.unlink()
    with pytest.raises(UntrustedBundle, match="more than 64 files"):
        cutlass_aot.open(bundle, keys=key.public)


@pytest.mark.parametrize("keys", [b"release.pub", 7, [b"release.pub"], [["release.pub"]]])
def test_what_is_no_path_is_no_key(bundle: Path, keys: Any) -> None:
    said = r"the argument `keys` has (7|.*release\.pub.*): expected files or directories of public keys"
    with pytest.raises(SignatureError, match=said):
        cutlass_aot.open(bundle, keys=keys)
    with pytest.raises(SignatureError, match=said):
        cutlass_aot.open_installed("small", keys=keys)
    if isinstance(keys, list):
        with pytest.raises(SignatureError, match=r"cutlass_aot\.trust has "):
            cutlass_aot.trust(*keys)


def test_keys_that_can_be_read_but_once_count_for_every_bundle(
    tmp_path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, dtype in (("1.0", "f16"), ("2.0", "bf16")):
        root = tmp_path / "tree" / version
        key.sign(write_bundle(root, designs(dtypes=(dtype,) * 3), version=version))
    read = signatures.read_public_key
    seen: list[Path] = []

    def noted(path: Path) -> signatures.PublicKey:
        seen.append(path)
        return read(path)

    monkeypatch.setattr(signatures, "read_public_key", noted)
    for keys in (key.public.parent.glob("*.pub"), (name for name in [str(key.public)])):
        seen.clear()
        opened = cutlass_aot.open_installed("small", paths=[tmp_path / "tree"], keys=keys)
        assert opened.path.name == "2.0"
        assert seen == [key.public]


def test_of_an_untrusted_directory_nothing_but_the_manifest_is_read(
    tmp_path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    key.sign(write_bundle(tree / "good", designs(), name="good"))
    write_bundle(tree / "bad", designs(), name="better")
    monkeypatch.setenv(PATH_VARIABLE, str(tree))
    monkeypatch.setattr(bundle_search, "_installed", {})
    read = verified_read.open_beneath
    seen: list[str] = []

    def noted(root: Path, path: str) -> int:
        seen.append(f"{root.name}/{path}")
        return read(root, path)

    monkeypatch.setattr(verified_read, "open_beneath", noted)
    opened = cutlass_aot.open_installed(keys=key.public)
    assert opened.name == "good"
    # Each once: what is named by its catalog is what is opened.
    assert seen.count("good/catalog.msgpack") == seen.count("good/MANIFEST.json") == 1
    cutlass_aot.trust(key.public)
    assert [bundle.name for bundle in declared.BundleSearch()] == ["good"]
    assert "bad/MANIFEST.json" in seen
    assert "bad/catalog.msgpack" not in seen
    # It may be what was asked for: nobody has looked.
    with pytest.raises(UntrustedBundle, match=r"'better' is not installed .*good.*is not signed"):
        cutlass_aot.open_installed("better")


def test_every_demand_has_to_be_met(bundle: Path, key: Key, other: Key) -> None:
    cutlass_aot.trust(key.public)
    key.sign(bundle)
    with pytest.raises(UntrustedBundle, match="trusted by the argument"):
        cutlass_aot.open(bundle, keys=[other.public])
    (bundle / "signatures" / f"{key.id}.json").unlink()
    other.sign(bundle)
    # An argument does not widen what the process trusts.
    with pytest.raises(UntrustedBundle, match=r"trusted by cutlass_aot\.trust"):
        cutlass_aot.open(bundle, keys=[other.public])
    key.sign(bundle)
    opened = cutlass_aot.open(bundle, keys=[other.public])
    assert {signer.raw for signer in opened.signers} == {key.raw, other.raw}


@pytest.mark.parametrize("way", [by_argument, by_trust])
def test_what_a_program_says_beats_the_environment_and_is_logged(
    bundle: Path, key: Key, other: Key, monkeypatch: Any, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, str(other.public))
    key.sign(bundle)
    with caplog.at_level(logging.WARNING, "cutlass_aot"):
        assert way(bundle, key, monkeypatch).signers
        assert way(bundle, key, monkeypatch).signers
    assert len(caplog.messages) == 1
    assert f"the keys of {VARIABLE} do not count where" in caplog.messages[0]


def test_the_environment_names_files_and_directories(
    bundle: Path, tmp_path: Path, key: Key, other: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = make_key(tmp_path / "keys", 3)
    monkeypatch.setenv(VARIABLE, f"{tmp_path / 'keys'}:{other.public}")
    for each in (third, other):
        shutil.rmtree(bundle / "signatures", ignore_errors=True)
        each.sign(bundle)
        assert [signer.raw for signer in cutlass_aot.open(bundle).signers] == [each.raw]


# -- it cannot be weakened --------------------------------------------------------------------------------


def test_keys_of_the_environment_stay_when_the_variable_goes(
    bundle: Path, tmp_path: Path, key: Key, other: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    key.sign(bundle)
    by_environment(bundle, key, monkeypatch)
    unsigned = write_bundle(tmp_path / "unsigned", designs())
    foreign = write_bundle(tmp_path / "foreign", designs())
    other.sign(foreign)
    for change in (
        lambda: monkeypatch.delenv(VARIABLE),
        lambda: monkeypatch.setenv(VARIABLE, ""),
        lambda: monkeypatch.setenv(VARIABLE, str(other.public)),
        key.public.unlink,
    ):
        change()
        for path in (unsigned, foreign):
            with pytest.raises(UntrustedBundle):
                cutlass_aot.open(path)
        assert cutlass_aot.open(bundle).signers


@pytest.mark.parametrize("text", ["", ":", "::"])
def test_an_empty_variable_is_an_error(bundle: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SignatureError, match="is set and empty"):
        cutlass_aot.open(bundle)


def test_no_keys_are_no_policy(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SignatureError, match="the argument `keys` names no keys"):
        cutlass_aot.open(bundle, keys=[])
    with pytest.raises(SignatureError, match=r"cutlass_aot\.trust names no keys"):
        cutlass_aot.trust()
    (tmp_path / "empty").mkdir()
    for ask in (
        lambda: cutlass_aot.trust(tmp_path / "empty"),
        lambda: cutlass_aot.open(bundle, keys=tmp_path / "empty"),
        lambda: cutlass_aot.open(bundle, keys=str(tmp_path / "none")),
    ):
        with pytest.raises(SignatureError):
            ask()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(SignatureError, match="cannot be read"):
        cutlass_aot.open(bundle)


def test_a_second_call_can_only_take_keys_away(bundle: Path, tmp_path: Path, key: Key, other: Key) -> None:
    cutlass_aot.trust(key.public, other.public)
    other.sign(bundle)
    assert cutlass_aot.open(bundle).signers
    trust._process.opened.clear()
    with pytest.raises(SignatureError, match="a second call can only take keys away"):
        cutlass_aot.trust(key.public, make_key(tmp_path / "keys", 3).public)
    assert cutlass_aot.open(bundle).signers
    trust._process.opened.clear()
    cutlass_aot.trust(key.public)
    with pytest.raises(UntrustedBundle):
        cutlass_aot.open(bundle)
    with pytest.raises(SignatureError, match="can only take keys away"):
        cutlass_aot.trust(other.public)


def test_trust_that_comes_too_late_says_so_and_holds(bundle: Path, tmp_path: Path, key: Key) -> None:
    early = cutlass_aot.open(bundle)
    with pytest.raises(UntrustedBundle, match="was opened already, and not checked against"):
        cutlass_aot.trust(key.public)
    with pytest.raises(UntrustedBundle):
        cutlass_aot.open(bundle)
    assert early.signers == ()


def test_trust_that_comes_when_a_kernel_alone_is_held_says_so(bundle: Path, key: Key) -> None:
    kernel = cutlass_aot.open(bundle).kernels()[0]
    gc.collect()
    assert bundle_module.opened_bundles() == []
    with pytest.raises(UntrustedBundle, match=f"bundle small .{bundle}. was opened already"):
        cutlass_aot.trust(key.public)
    assert kernel.kernel in designs()


def test_what_could_not_be_opened_is_not_counted(bundle: Path, tmp_path: Path, key: Key) -> None:
    broken = write_bundle(tmp_path / "broken", designs())
    (broken / CATALOG_NAME).write_bytes(b"")
    with pytest.raises(CorruptFile):
        cutlass_aot.open(broken)
    with pytest.raises(UntrustedBundle):
        cutlass_aot.open(bundle, keys=key.public)
    cutlass_aot.trust(key.public)


@pytest.mark.parametrize("where", ["before the check", "after the check", "once it is open"])
@pytest.mark.parametrize("signed", [False, True])
def test_trust_that_comes_while_another_thread_opens_a_bundle(
    bundle: Path, key: Key, monkeypatch: pytest.MonkeyPatch, where: str, signed: bool
) -> None:
    """One of the two says so: nothing that the keys have not signed is open without a word."""
    if signed:
        key.sign(bundle)
    late: list[BaseException] = []

    def trust_now() -> None:
        def call() -> None:
            try:
                cutlass_aot.trust(key.public)
            except UntrustedBundle as error:
                late.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    function = {
        "before the check": "check", "after the check": "note_opened", "once it is open": "note_opened"
    }[where]  # fmt: skip
    real = getattr(trust, function)

    def interrupted(*arguments: Any) -> Any:
        if where == "once it is open":
            found = real(*arguments)
            trust_now()
            return found
        monkeypatch.setattr(trust, function, real)
        trust_now()
        return real(*arguments)

    monkeypatch.setattr(trust, function, interrupted)
    try:
        opened = cutlass_aot.open(bundle)
    except UntrustedBundle:
        assert not signed
        assert late == []
        assert where != "once it is open"
        return
    assert where == "once it is open" or (signed and opened.signers)
    assert bool(late) is (where == "once it is open")


def test_no_bundle_is_lost_where_several_threads_open_them(bundle: Path) -> None:
    first, second, held = (cutlass_aot.open(bundle) for _ in range(3))
    bundle_module._opened.clear()
    bundle_module.note_opened(held)
    inside, done = threading.Event(), threading.Event()

    def trace(frame: Any, event: str, argument: object) -> Any:
        # In the middle of making the list anew, when one was taken over.
        if frame.f_code.co_name == "<genexpr>" and event == "return" and not inside.is_set():
            inside.set()
            done.wait(0.3)
        return trace

    def note() -> None:
        sys.settrace(trace)
        bundle_module.note_opened(first)

    thread = threading.Thread(target=note)
    thread.start()
    assert inside.wait(5)
    bundle_module.note_opened(second)
    done.set()
    thread.join()
    assert {id(item) for item in bundle_module.opened_bundles()} == {id(first), id(second), id(held)}


def test_a_bundle_that_was_held_against_the_key_may_be_open(bundle: Path, key: Key) -> None:
    key.sign(bundle)
    opened = cutlass_aot.open(bundle, keys=[key.public])
    cutlass_aot.trust(key.public)
    assert opened.signers


def test_without_the_package_nothing_is_opened_where_keys_are_required(
    bundle: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    key.sign(bundle)
    without_cryptography(monkeypatch)
    for way in (by_argument, by_environment):
        with pytest.raises(SignatureError, match=r"pip install 'cryptography>=38'"):
            way(bundle, key, monkeypatch)
    monkeypatch.delenv(VARIABLE)
    assert cutlass_aot.open(bundle)


def test_the_variable_is_not_read_at_import_nor_the_package_imported_without_keys(bundle: Path) -> None:
    code = (
        "import sys, cutlass_aot\n"
        "import cutlass_aot.runtime.bundle\n"
        "import os; del os.environ['CUTLASS_AOT_TRUSTED_KEYS']\n"
        f"assert cutlass_aot.open({str(bundle)!r}).kernels()\n"
        "assert not {'cryptography', 'cutlass_aot.runtime.files.signatures'} & set(sys.modules)\n"
    )
    environment = {"CUTLASS_AOT_TRUSTED_KEYS": "/none", "PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=bundle)


# -- whoever opens a bundle -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["BundleDirectory", "Library", "Code"])
def test_there_is_one_way_to_open_a_bundle(what: str) -> None:
    """Whatever makes a ``BundleDirectory``, or opens code, has checked it against the policy."""
    made = {
        path.relative_to(PACKAGE).as_posix()
        for path in (PACKAGE / "runtime", PACKAGE / "torch", PACKAGE / "doctor", PACKAGE)
        for path in path.glob("**/*.py" if path != PACKAGE else "*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) == what
    }
    # torch has a class Library of its own, for operators.
    assert made - {"torch/operators.py"} == {"runtime/opened/bundle_directory.py"}
    source = (PACKAGE / "runtime" / "opened" / "bundle_directory.py").read_text(encoding="utf-8")
    assert (
        source.index("trust.check(") < source.index("trust.note_opened(") < source.index(" BundleDirectory(")
    )


@pytest.mark.parametrize("arguments", [("ls",), ("show", "gemm")])
def test_the_command_line_refuses_with_a_status_of_its_own(
    bundle: Path, key: Key, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv(VARIABLE, str(key.public))
    name, *rest = arguments
    with pytest.raises(SystemExit) as caught:
        main([name, str(bundle), *rest])
    assert caught.value.code == UntrustedBundle.exit_code == 3
    assert "is not signed by a key that is trusted" in capsys.readouterr().err


def test_a_declared_kernel_passes_over_installed_bundles_that_are_not_trusted(
    tmp_path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    key.sign(install(site, "cutlass-aot-one", "one"))
    install(site, "cutlass-aot-two", "two")
    monkeypatch.syspath_prepend(str(site))
    cutlass_aot.trust(key.public)
    search = declared.BundleSearch()
    assert [found.path.parent.name for found in search] == ["cutlass_aot_one"]
    (problem,) = search.problems
    assert problem.startswith("installed bundle two 0.1.0 cannot be opened: bundle ")
    assert "is not signed by a key that is trusted" in problem


# -- what was verified is what is used --------------------------------------------------------------------


SHAPE = (8, 12, 16)


@pytest.fixture(scope="module")
def _host_bundle(tmp_path_factory: pytest.TempPathFactory, launcher_library: bytes) -> Path:
    pytest.importorskip("numpy")
    folder = tmp_path_factory.mktemp("host")
    kernels: list[Kernel] = [f32_gemm("ttt"), f32_gemm("ttt", design={"tile_shape": (256, 256, 32)})]
    rankings = [ranking(kernels)]
    root = write_host_bundle(folder / "bundle", kernels, launcher_library, rankings=rankings)
    make_key(folder / "keys", 1).sign(root)
    return root


@pytest.fixture
def host_bundle(_host_bundle: Path, tmp_path: Path) -> Path:
    shutil.copytree(_host_bundle, tmp_path / "host")
    return tmp_path / "host"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for what is unpacked."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests of the code that runs: libraries that the loader sees, while it works, and code of kernels.

    Nothing is kept from one use to the next, so that every use reads every file that it needs.
    """
    monkeypatch.setenv(DIRECTORY_VARIABLE, "")
    seen: list[str] = []
    load, provide = ctypes.CDLL, Library.provide

    def record(name: Any, *rest: Any, **named: Any) -> ctypes.CDLL:
        if name is not None and Path(name).is_file():
            seen.append(digest(Path(name).read_bytes()))
        return load(name, *rest, **named)

    def record_code(self: Library, symbol: str, code: Callable[[], bytes]) -> None:
        def given() -> bytes:
            data = code()
            seen.append(digest(data))
            return data

        provide(self, symbol, given)

    monkeypatch.setattr(ctypes, "CDLL", record)
    monkeypatch.setattr(Library, "provide", record_code)
    return seen


def use(bundle: cutlass_aot.Bundle) -> None:
    """Launch the best kernel, and look at what came out."""
    a, b, out, product = arrays(*SHAPE)
    bundle.gemm(*on_gpu(a, b, out))
    assert abs(out - product).max() < 1e-4


def test_a_signed_bundle_runs_and_every_kind_of_file_is_there(
    host_bundle: Path, key: Key, gpu: Any, mapped: list[str]
) -> None:
    use(cutlass_aot.open(host_bundle, keys=[key.public]))
    # A library with kernels, the code of one, and the launcher.
    assert len(mapped) == 3
    tops = {path.partition("/")[0] for path in files_of(host_bundle)}
    # Licences and the bill of materials are not read at run time, and these kernels answer no requests.
    assert tops == TOP_LEVEL - {"licenses", "requests", "sbom"}


def test_one_flipped_byte_of_any_file_is_found_before_it_is_mapped(
    host_bundle: Path, key: Key, gpu: Any, mapped: list[str]
) -> None:
    use(cutlass_aot.open(host_bundle, keys=[key.public]))
    sound = set(mapped)
    for path in files_of(host_bundle):
        file = host_bundle / path
        good = file.read_bytes()
        for position in positions(len(good)):
            file.write_bytes(flipped(good, position))
            mapped.clear()
            with pytest.raises(CutlassAotError) as caught:
                use(cutlass_aot.open(host_bundle, keys=[key.public]))
            assert set(mapped) <= sound, (path, position)
            if path == MANIFEST_NAME or path.startswith("signatures/"):
                assert isinstance(caught.value, UntrustedBundle), (path, position)
                assert mapped == []
            else:
                assert path.rpartition("/")[2] in str(caught.value), (path, position)
        file.write_bytes(good)
    use(cutlass_aot.open(host_bundle, keys=[key.public]))


def test_a_file_that_is_swapped_between_open_and_first_use_is_not_executed(
    host_bundle: Path, tmp_path: Path, key: Key, gpu: Any, mapped: list[str]
) -> None:
    use(cutlass_aot.open(host_bundle, keys=[key.public]))
    sound = set(mapped)
    libraries = [path for path in files_of(host_bundle) if path.startswith(("lib/", "code/"))]
    assert len(libraries) == 3
    for path in libraries:
        opened = cutlass_aot.open(host_bundle, keys=[key.public])
        good = (host_bundle / path).read_bytes()
        others = [(host_bundle / other).read_bytes() for other in libraries if other != path]
        for bad in (*others, good + b"\0", good[:-1], b"", b"\x7fELF"):
            # A rename, as whoever swaps files without a gap would do it.
            (tmp_path / "swapped").write_bytes(bad)
            (tmp_path / "swapped").rename(host_bundle / path)
            mapped.clear()
            with pytest.raises(CutlassAotError):
                use(opened)
            assert set(mapped) <= sound
        (host_bundle / path).write_bytes(good)
        use(opened)


def test_a_file_that_is_written_to_after_it_was_mapped_changes_nothing(
    host_bundle: Path, key: Key, gpu: Any, cache: Path
) -> None:
    opened = cutlass_aot.open(host_bundle, keys=[key.public])
    use(opened)
    for path in files_of(host_bundle):
        size = (host_bundle / path).stat().st_size
        with (host_bundle / path).open("r+b") as file:
            file.write(b"\xcc" * size)
    use(opened)


def test_unpacked_code_that_is_altered_between_unpacking_and_use_is_not_used(
    host_bundle: Path, key: Key, gpu: Any, mapped: list[str], cache: Path
) -> None:
    use(cutlass_aot.open(host_bundle, keys=[key.public]))
    sound = set(mapped)
    (unpacked,) = cache.glob("*.code")
    good = unpacked.read_bytes()
    for bad in (*(flipped(good, position) for position in positions(len(good))), good[:-1], b"", good + b"x"):
        opened = cutlass_aot.open(host_bundle, keys=[key.public])
        unpacked.write_bytes(bad)
        mapped.clear()
        use(opened)
        assert set(mapped) <= sound


def test_a_manifest_that_is_swapped_after_open_has_no_effect(
    host_bundle: Path, tmp_path: Path, key: Key, gpu: Any, cache: Path
) -> None:
    opened = cutlass_aot.open(host_bundle, keys=[key.public])
    other = write_bundle(tmp_path / "other", designs())
    for name in (MANIFEST_NAME, "catalog.msgpack"):
        shutil.copy(other / name, host_bundle / name)
    use(opened)
    with pytest.raises(UntrustedBundle):
        cutlass_aot.open(host_bundle, keys=[key.public])


def test_the_manifest_is_read_once_and_the_signature_is_held_against_those_bytes(
    host_bundle: Path, tmp_path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swapped between the check and the catalog: the bytes that were checked count."""
    check = trust.check
    evil = write_bundle(tmp_path / "evil", designs())

    def swap(root: Path, manifest: bytes, keys: Any) -> Any:
        found = check(root, manifest, keys)
        shutil.copy(evil / MANIFEST_NAME, root / MANIFEST_NAME)
        return found

    monkeypatch.setattr(trust, "check", swap)
    opened = cutlass_aot.open(host_bundle, keys=[key.public])
    assert [group.operands[0].dtype for group in opened.groups] == ["f32"]
    shutil.copy(evil / "catalog.msgpack", host_bundle / "catalog.msgpack")
    key.sign(host_bundle)
    shutil.copytree(evil / "groups", host_bundle / "groups", dirs_exist_ok=True)

    def swap_catalog(root: Path, manifest: bytes, keys: Any) -> Any:
        found = check(root, manifest, keys)
        body = json.loads(manifest)
        body["files"]["catalog.msgpack"]["sha256"] = "0" * 64
        (root / MANIFEST_NAME).write_text(json.dumps(body))
        return found

    monkeypatch.setattr(trust, "check", swap_catalog)
    assert [group.operands[0].dtype for group in cutlass_aot.open(host_bundle, keys=key.public).groups] == [
        "f16"
    ]


def test_nothing_is_mapped_of_a_bundle_that_is_refused(
    host_bundle: Path, other: Key, gpu: Any, mapped: list[str]
) -> None:
    with pytest.raises(UntrustedBundle):
        use(cutlass_aot.open(host_bundle, keys=[other.public]))
    cutlass_aot.trust(other.public)
    with pytest.raises(UntrustedBundle):
        use(cutlass_aot.open(host_bundle))
    assert mapped == []


def test_examining_says_what_is_there(bundle: Path, key: Key, other: Key) -> None:
    manifest = (bundle / MANIFEST_NAME).read_bytes()
    assert examine(bundle, manifest) == []
    key.sign(bundle)
    other.sign(bundle).write_bytes(b"x")
    found = {
        item.path: (item.signature is not None, bool(item.problem)) for item in examine(bundle, manifest)
    }
    assert found == {
        f"signatures/{key.id}.json": (True, False),
        f"signatures/{other.id}.json": (False, True),
    }
