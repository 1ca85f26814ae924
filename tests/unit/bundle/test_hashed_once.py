"""Each file of a bundle is hashed once when it is written, and once whenever it is read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.bundle.apply_tuning import apply_tuning
from cutlass_aot.bundle.sign import KeyFile, sign_bundle
from cutlass_aot.bundle.verify.directory import require_sound, verify_bundle
from cutlass_aot.bundle.verify.verified import VerifiedBundle
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import bundle_is, write_bundle
from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from cutlass_aot.schema.bundles.signature import SIGNATURES
from tests.support.flips import files_of, flipped
from tests.support.registries import fake_registry
from tests.support.replace import replace
from tests.support.signing import Key, make_key
from tests.support.synthetic import entry, kernels, plan, request_group
from tests.support.tunings import tuned_group, tuning

pytest.importorskip("cryptography")

Counting = Callable[..., Counter[str]]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "linked"
    made = plan(folder)
    write_bundle(replace(made, groups=(*made.groups, request_group(folder))), tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return make_key(tmp_path / "keys", 1)


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Calls a function, and counts by their path how often a bundle's files were hashed meanwhile."""
    found: Counter[str] = Counter()
    original = hashlib.sha256

    class Counted:
        def __init__(self, data: bytes = b"") -> None:
            self._hash = original(data)

        def update(self, data: bytes) -> None:
            self._hash.update(data)

        def digest(self) -> bytes:
            found[self._hash.hexdigest()] += 1
            return self._hash.digest()

        def hexdigest(self) -> str:
            return self.digest().hex()

    def count(bundle: Path, call: Callable[..., Any], *arguments: Any, **options: Any) -> Counter[str]:
        found.clear()
        with monkeypatch.context() as patched:
            patched.setattr(hashlib, "sha256", Counted)
            call(*arguments, **options)
        return Counter(
            {path: found[original((bundle / path).read_bytes()).hexdigest()] for path in files_of(bundle)}
        )

    return count


def counts(found: Counter[str], folder: str = "") -> set[int]:
    """How often files were hashed whose paths begin so; the manifest and signatures do not count."""
    unlisted = (MANIFEST_NAME, f"{SIGNATURES}/")
    return {
        count for path, count in found.items() if path.startswith(folder) and not path.startswith(unlisted)
    }


def test_a_file_is_hashed_once_when_it_is_written_and_once_when_it_is_looked_for(
    tmp_path: Path, hashes: Counting
) -> None:
    made, out = plan(tmp_path / "linked"), tmp_path / "small"
    assert counts(hashes(out, write_bundle, made, out)) == {1}
    written = write_bundle(made, out)
    assert not written
    assert counts(hashes(out, bundle_is, out, written.catalog_sha256)) == {1}
    # Those that are bytes of the plan are hashed to be named, and where they lie.
    again = hashes(out, write_bundle, made, out)
    assert counts(again, "lib/") == counts(again, "code/") == {1}
    assert counts(again) == {1, 2}


def test_a_file_is_hashed_once_when_a_bundle_is_verified_or_signed(
    bundle: Path, key: Key, hashes: Counting
) -> None:
    assert counts(hashes(bundle, verify_bundle, bundle)) == {1}
    assert counts(hashes(bundle, sign_bundle, bundle, KeyFile(key.path, lambda: ""))) == {1}
    assert counts(hashes(bundle, verify_bundle, bundle)) == {1}


@pytest.mark.parametrize("signed", [False, True])
def test_a_wheel_hashes_a_file_when_it_is_verified_and_when_it_is_packed(
    bundle: Path, key: Key, tmp_path: Path, hashes: Counting, signed: bool
) -> None:
    signer = KeyFile(key.path, lambda: "") if signed else None
    assert counts(hashes(bundle, build_wheels, bundle, tmp_path / "wheels", signer=signer)) == {2}


def test_a_tuning_file_hashes_a_file_when_it_is_verified_and_when_it_is_copied(
    bundle: Path, tmp_path: Path, hashes: Counting
) -> None:
    times = tuning([tuned_group([entry(kernel) for kernel in kernels()])])
    found = hashes(bundle, apply_tuning, bundle, times, tmp_path / "tuned")
    assert counts(found, "lib/") == counts(found, "code/") == counts(found, "groups/") == {2}


def test_a_push_hashes_a_file_once_and_a_pull_when_it_arrives_and_when_it_is_verified(
    bundle: Path, tmp_path: Path, hashes: Counting
) -> None:
    pytest.importorskip("oras")
    from cutlass_aot.bundle.oci.pull import pull_bundle
    from cutlass_aot.bundle.oci.push import push_bundle

    with fake_registry() as server:
        name, out = f"{server.name}/k/small:1", tmp_path / "out"
        # The registry of this process hashes what it is sent.
        assert counts(hashes(bundle, push_bundle, bundle, name, plain_http=True)) == {1 + 1}
        assert counts(hashes(bundle, pull_bundle, name, out, plain_http=True)) == {2}
        assert counts(hashes(bundle, pull_bundle, name, out, plain_http=True)) == {1}


def test_what_is_altered_after_it_was_verified_is_neither_packed_nor_copied(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = bundle / "lib/x86_64/launcher.so.zst"
    data = library.read_bytes()

    def altered(path: Path) -> VerifiedBundle:
        verified = require_sound(path)
        library.write_bytes(flipped(data, 20))
        return verified

    monkeypatch.setattr("cutlass_aot.bundle.wheel.write.require_sound", altered)
    with pytest.raises(CorruptFile, match="it was altered"):
        build_wheels(bundle, tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []
    library.write_bytes(data)
    monkeypatch.setattr("cutlass_aot.bundle.apply_tuning.require_sound", altered)
    times = tuning([tuned_group([entry(kernel) for kernel in kernels()])])
    with pytest.raises(BundleError, match="exchanged or damaged since"):
        apply_tuning(bundle, times, tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()
