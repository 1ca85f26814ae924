"""What is pushed comes back, and a pull that fails leaves everything as it was."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import replace

import pytest

pytest.importorskip("oras")

from cutlass_aot.bundle.oci import pull, registry
from cutlass_aot.bundle.oci.pull import pull_bundle
from cutlass_aot.bundle.oci.push import push_bundle
from cutlass_aot.bundle.verify.directory import verify_bundle
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import (
    BundleError,
    CorruptFile,
    RegistryError,
    RegistryNameError,
    SignatureError,
    ToolchainError,
    UntrustedBundle,
)
from cutlass_aot.runtime.files import trust
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME
from tests.support.oci import (
    do_pull,
    left_behind,
    public,
    refused,
    sign,
    tree,
)
from tests.support.signing import without_cryptography
from tests.support.synthetic import plan


def test_what_is_pushed_comes_back(fake, bundle, tmp_path):
    pushed = push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert pushed.uploaded == pushed.blobs == len(fake.blobs)
    out = tmp_path / "out" / "small"
    pulled = do_pull(fake, out)
    assert pulled.written
    assert pulled.name == pushed.name
    assert pulled.files == len(tree(bundle))
    assert tree(out) == tree(bundle)
    assert verify_bundle(out) == []
    assert left_behind(out) == []
    assert {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()} == {0o644}


def test_a_second_push_sends_nothing_and_a_second_pull_fetches_two_small_files(fake, bundle, tmp_path):
    push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True).uploaded == 0
    do_pull(fake, tmp_path / "out")
    fake.requests.clear()
    assert not do_pull(fake, tmp_path / "out").written
    assert len(fake.requests) == 2


def test_a_damaged_bundle_is_not_pushed(fake, bundle):
    (bundle / CATALOG_NAME).write_bytes(b"other")
    with pytest.raises(BundleError, match=r"is damaged: catalog\.msgpack"):
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert fake.requests == []


@pytest.mark.parametrize("name", ["r.org/small", "r.org/small@sha256:" + "0" * 64])
def test_a_push_needs_a_tag(bundle, name):
    with pytest.raises(RegistryNameError, match="expected registry/repository:tag"):
        push_bundle(bundle, name)


def test_a_pull_needs_a_tag_or_a_digest(tmp_path):
    with pytest.raises(RegistryNameError, match="neither a tag nor a digest"):
        pull_bundle("r.org/small", tmp_path)


def test_by_digest_it_is_what_was_pushed(fake, there, bundle):
    digest = "sha256:" + hashlib.sha256(fake.manifests["1"]).hexdigest()
    fake.manifests[digest] = fake.manifests[digest].replace(b"sha256", b"sha257", 1)
    refused(fake, there, CorruptFile, "it was altered", f"@{digest}")
    fake.put("1", fake.manifests["1"])
    assert do_pull(fake, there, f"@{digest}").name.endswith(digest)
    assert tree(there) == tree(bundle)


def test_a_disk_without_room_is_noticed_before(fake, there, monkeypatch):
    monkeypatch.setattr(pull.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1000, 990, 10))
    refused(fake, there, RegistryError, "10 are free")
    assert len(fake.fetched()) == 1


def test_a_disk_that_is_full_after_all(fake, there, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(pull, "create", full)
    refused(fake, there, BundleError, "No space left on device.* pull again")


def test_signatures_go_along(fake, bundle, tmp_path, key):
    sign(bundle, key)
    push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    do_pull(fake, tmp_path / "out", keys=[public(key)])
    assert tree(tmp_path / "out") == tree(bundle)
    assert any(path.startswith("signatures/") for path in tree(bundle))
    assert not do_pull(fake, tmp_path / "out", keys=[public(key)]).written
    # Unsigned since: another bundle, though its manifest is the same.
    shutil.rmtree(bundle / "signatures")
    push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert do_pull(fake, tmp_path / "out").written
    assert tree(tmp_path / "out") == tree(bundle)


@pytest.mark.parametrize("signed", [False, True])
def test_what_nobody_trusted_has_signed_is_refused_before_anything_large_is_fetched(
    fake, there, bundle, key, signed
):
    if signed:
        sign(bundle, key)
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    fake.requests.clear()
    message = refused(fake, there, UntrustedBundle, "signed", keys=[public(key, "other")])
    assert f"{fake.name}/k/small:1" in message
    assert "staging" not in message
    assert len(fake.fetched()) == 1 + signed
    # Also one that is there already.
    do_pull(fake, there)
    refused(fake, there, UntrustedBundle, "signed", keys=[public(key, "other")])


def test_the_keys_that_programs_require_count_too(fake, there, key, monkeypatch):
    monkeypatch.setenv("CUTLASS_AOT_TRUSTED_KEYS", str(public(key)))
    monkeypatch.setattr(trust, "_process", trust._Process())
    refused(fake, there, UntrustedBundle, "CUTLASS_AOT_TRUSTED_KEYS")


def test_a_key_that_cannot_be_read_is_told_first(fake, there, key):
    refused(fake, there, SignatureError, "cannot be read", keys=[key.parent / "none.pub"])
    assert fake.requests == []


def test_an_interrupt_leaves_nothing(fake, there, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry.Registry, "fetch", interrupt)
    refused(fake, there, KeyboardInterrupt, "")


def test_other_clients_write_the_bundle(fake, there, bundle, tmp_path):
    """By the titles alone."""
    client = pytest.importorskip("oras.client").OrasClient(insecure=True)
    client.pull(target=f"{fake.name}/k/small:1", outdir=str(tmp_path / "other"))
    assert tree(tmp_path / "other") == tree(bundle)


def test_what_is_no_bundle_is_not_replaced(fake, there, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(BundleError, match=r"a directory that holds 'letter\.txt'"):
        do_pull(fake, tmp_path / "mine")
    assert tree(tmp_path / "mine") == {"letter.txt": b"dear"}


def test_without_the_client_it_says_what_to_install(bundle, monkeypatch):
    monkeypatch.delitem(sys.modules, "cutlass_aot.bundle.oci.registry")
    monkeypatch.setitem(sys.modules, "oras", None)
    with pytest.raises(ToolchainError, match=r"pip install 'oras>=0.2.43'"):
        push_bundle(bundle, "r.example.org/small:1")


def test_the_commands(fake, bundle, tmp_path, capsys):
    for arguments, status in (
        (["push", str(bundle), f"{fake.name}/k/small:1", "--plain-http"], 0),
        (["pull", f"{fake.name}/k/small:1", "-o", str(tmp_path / "out"), "--plain-http"], 0),
        (["pull", f"{fake.name}/k/small:1", "-o", str(tmp_path / "out"), "--plain-http", "--json"], 0),
        (["pull", f"{fake.name}/k/small:2", "-o", str(tmp_path / "out"), "--plain-http"], 1),
        (["pull", "small", "-o", str(tmp_path / "out")], 2),
    ):
        with pytest.raises(SystemExit) as raised:
            main(["bundle", *arguments])
        assert raised.value.code == status
    printed = capsys.readouterr()
    name = f"{fake.name}/k/small@sha256:{hashlib.sha256(fake.manifests['1']).hexdigest()}"
    first, second, *rest = printed.out.splitlines()
    count = len(tree(bundle))
    assert first == f"{name}: {count + 1} blobs, {count + 1} of them new"
    assert second.startswith(f"{tmp_path / 'out'}: {count} files, ")
    assert json.loads("\n".join(rest))["written"] is False
    assert "(status 404)" in printed.err
    assert "small@" not in printed.err


def test_signatures_that_nobody_can_check_are_told(fake, bundle, tmp_path, key, capsys, monkeypatch):
    sign(bundle, key)
    without_cryptography(monkeypatch)
    for arguments, path in (
        (["push", str(bundle), f"{fake.name}/k/small:2"], bundle),
        (["pull", f"{fake.name}/k/small:2", "-o", str(tmp_path / "out")], tmp_path / "out"),
    ):
        with pytest.raises(SystemExit) as raised:
            main(["bundle", *arguments, "--plain-http"])
        error = capsys.readouterr().err
        assert (raised.value.code, error.count(f"{path}: signatures not checked: ")) == (0, 1)


@pytest.fixture
def signed(fake, there, bundle, key):
    """A bundle with sequence 5 in place, and the pushing of one of the same name with another."""
    sign(there, key, 5)

    def push(sequence):
        sign(bundle, key, sequence)
        push_bundle(bundle, f"{fake.name}/k/small:2", plain_http=True)

    return push


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_pull_does_not_go_back_to_a_lower_sequence(fake, there, bundle, key, signed, monkeypatch, by):
    keys = [public(key)] if by == "argument" else []
    if by == "variable":
        monkeypatch.setattr(trust, "_process", trust._Process())
        monkeypatch.setenv(trust.ENVIRONMENT_VARIABLE, str(public(key)))
    signed(4)
    match = "has sequence 4 by key .* has 5: it is older"
    message = refused(fake, there, UntrustedBundle, match, ":2", keys=keys)
    assert "--allow-older" in message
    assert do_pull(fake, there, ":2", keys=keys, allow_older=True).written
    assert tree(there) == tree(bundle)


@pytest.mark.parametrize("sequence", [5, 6])
def test_a_pull_goes_on_to_the_same_or_a_higher_sequence(fake, there, bundle, key, signed, sequence):
    signed(sequence)
    assert do_pull(fake, there, ":2", keys=[public(key)]).written
    assert tree(there) == tree(bundle)


def test_a_sequence_of_somebody_else_holds_nothing_back(fake, there, bundle, key, signed):
    """Nor one where no key is required."""
    shutil.rmtree(there / "signatures")
    sign(there, key.parent / "other.pem", 9)
    signed(4)
    assert do_pull(fake, there, ":2", keys=[public(key)]).written
    sign(there, key, 9)
    assert do_pull(fake, there, ":2").written


def test_a_sequence_of_another_bundle_by_the_same_key_counts(fake, tmp_path, bundle, key, signed):
    """Or that bundle would be a way back to an older one of the first name."""
    output = tmp_path / "elsewhere" / "small"
    write_bundle(replace(plan(tmp_path / "linked"), name="another"), output)
    sign(output, key, 9)
    signed(4)
    match = "has sequence 4 by key .* has 9: it is older"
    refused(fake, output, UntrustedBundle, match, ":2", keys=[public(key)])


def test_sequences_are_compared_key_by_key(fake, there, bundle, key, signed):
    other = key.parent / "other.pem"
    keys = [public(key), public(key, "other")]
    sign(there, other, 100)
    sign(bundle, other, 101)
    signed(4)
    refused(fake, there, UntrustedBundle, "has sequence 4 by key .* has 5: it is older", ":2", keys=keys)
    shutil.rmtree(bundle / "signatures")
    sign(bundle, other, 101)
    push_bundle(bundle, f"{fake.name}/k/small:2", plain_http=True)
    refused(fake, there, UntrustedBundle, "has sequence 0 by key .* has 5: it is older", ":2", keys=keys)
    signed(6)
    assert do_pull(fake, there, ":2", keys=keys).written
