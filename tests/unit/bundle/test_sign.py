"""Signing: keys are made once, signatures are verified before they are written, and bundles carry them."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from cutlass_aot.bundle import sign
from cutlass_aot.bundle.files import exchange, manifest_to_bytes
from cutlass_aot.bundle.sign import Command, KeyFile, new_key, sign_bundle
from cutlass_aot.bundle.verify.directory import Findings, look_at_bundle, verify_bundle
from cutlass_aot.bundle.verify.path import look_at
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import bundle_is, write_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError, CutlassAotError, SignatureError
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.files.signatures import read_public_key, read_public_keys
from cutlass_aot.runtime.files.verified_read import read_catalog, read_manifest
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME, FileReference, Groups
from cutlass_aot.schema.bundles.signature import MAX_SIGNATURE_FILE, MAX_SIGNATURES
from cutlass_aot.schema.encoding import digest
from tests.support.clock import SOON
from tests.support.signing import Key, make_key, without_cryptography
from tests.support.synthetic import plan
from tests.support.unreadable import unreadable

pytest.importorskip("cryptography")


@pytest.fixture(autouse=True)
def _no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTLASS_AOT_KEY_PASSPHRASE", raising=False)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_bundle(plan(tmp_path / "linked"), tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return make_key(tmp_path / "keys", 1)


@pytest.fixture
def other(tmp_path: Path) -> Key:
    return make_key(tmp_path / "keys", 2)


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return call


def never() -> str:
    raise AssertionError("the key is not protected")


def keys_of(*keys: Key):
    return read_public_keys([key.public for key in keys])


def problems(bundle: Path) -> dict[str, str]:
    return {problem.path: problem.found for problem in verify_bundle(bundle)}


# -- keys -------------------------------------------------------------------------------------------------


def test_a_new_key_signs_and_its_public_part_verifies(bundle: Path, tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        made = new_key(tmp_path / "release")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "release").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "release.pub").stat().st_mode) == 0o644
    assert read_public_key(tmp_path / "release.pub") == made
    sign_bundle(bundle, KeyFile(tmp_path / "release", never))
    assert look_at(bundle, [made]) == Findings([], [made.id])


@pytest.mark.parametrize("there", ["release", "release.pub"])
def test_a_key_is_never_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    with pytest.raises(SignatureError, match=f"{there}: is there already; a key is never overwritten"):
        new_key(tmp_path / "release")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "precious"


def test_a_key_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="No such file or directory"):
        new_key(tmp_path / "none" / "release")


def test_no_two_keys_are_the_same(tmp_path: Path) -> None:
    assert new_key(tmp_path / "a").raw != new_key(tmp_path / "b").raw


def test_a_passphrase_protects_a_key(bundle: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "release", "correct horse")
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in (tmp_path / "release").read_bytes()
    sign_bundle(bundle, KeyFile(tmp_path / "release", lambda: "correct horse"))
    with pytest.raises(SignatureError, match="its passphrase is another one"):
        KeyFile(tmp_path / "release", lambda: "battery staple")


@pytest.mark.parametrize(
    ("passphrase", "says"),
    [
        ("", "the passphrase has 0 bytes: expected 1 to 1023; choose another"),
        ("x" * 1024, "the passphrase has 1024 bytes: expected 1 to 1023; choose another"),
        ("ä" * 512, "the passphrase has 1024 bytes: expected 1 to 1023; choose another"),
        # As the environment has bytes that are not UTF-8.
        ("open-sesame\udcff", "the passphrase is not text in UTF-8: expected one that is"),
    ],
)
def test_what_can_be_no_passphrase_is_refused(tmp_path: Path, passphrase: str, says: str) -> None:
    new_key(tmp_path / "protected", "x" * 1023)
    KeyFile(tmp_path / "protected", lambda: "x" * 1023)
    for use in (
        lambda: new_key(tmp_path / "release", passphrase),
        lambda: KeyFile(tmp_path / "protected", lambda: passphrase),
    ):
        with pytest.raises(SignatureError) as raised:
            use()
        assert str(raised.value) == says
        assert raised.value.__suppress_context__ or raised.value.__context__ is None
    assert not (tmp_path / "release").exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a public key in PEM"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not a public key in PEM"),
        (b"x" * 70_000, "larger than 65536 bytes"),
    ],
)
def test_what_is_no_public_key_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "x.pub").write_bytes(data)
    with pytest.raises(SignatureError, match=says):
        read_public_key(tmp_path / "x.pub")


def test_a_private_key_is_no_public_one_nor_the_reverse(key: Key) -> None:
    with pytest.raises(SignatureError, match="is a private key, expected a public one"):
        read_public_key(key.path)
    with pytest.raises(SignatureError, match="is a public key, expected the private one"):
        KeyFile(key.public, never)


def test_a_file_has_one_key(key: Key, other: Key, tmp_path: Path) -> None:
    both = tmp_path / "both.pub"
    both.write_bytes(key.public.read_bytes() + other.public.read_bytes())
    with pytest.raises(SignatureError, match=r"both\.pub holds 2 keys .*, expected one public key a file"):
        read_public_key(both)
    both.write_bytes(b"release, 2026\n" + key.public.read_bytes())
    assert read_public_key(both).raw == key.raw


def test_a_key_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    made, pem = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
    (tmp_path / "ec").write_bytes(
        made.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "ec.pub").write_bytes(
        made.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(SignatureError, match="expected a public key of Ed25519"):
        read_public_key(tmp_path / "ec.pub")
    with pytest.raises(SignatureError, match="expected a private key of Ed25519"):
        KeyFile(tmp_path / "ec", never)


def test_a_directory_gives_its_public_keys(key: Key, other: Key) -> None:
    (key.public.parent / "notes.txt").write_text("not a key")
    assert {found.raw for found in read_public_keys([key.public.parent, key.public])} == {key.raw, other.raw}


def test_a_directory_without_public_keys_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match=r"has no public keys: expected files \*\.pub"):
        read_public_keys([tmp_path])
    with pytest.raises(SignatureError, match=r"none\.pub cannot be read: No such file"):
        read_public_keys([tmp_path / "none.pub"])


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800"])
def test_what_can_be_no_path_is_no_key(tmp_path: Path, name: str) -> None:
    for read in (read_public_key, lambda path: read_public_keys([path])):
        with pytest.raises(SignatureError, match=r"cannot be (read|the path of (a key|keys)): "):
            read(tmp_path / name)


def test_keys_in_a_directory_that_must_not_be_looked_into(tmp_path: Path) -> None:
    with unreadable(tmp_path) as folder:
        for path in (folder, folder / "keys", folder / "x.pub"):
            with pytest.raises(SignatureError, match=r"unreadable\S* cannot be read: Permission denied"):
                read_public_keys([path])


def test_a_key_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.pub")
    with pytest.raises(SignatureError, match="not a public key in PEM"):
        read_public_key(tmp_path / "x.pub")


# -- signatures -------------------------------------------------------------------------------------------


def test_equal_bundles_and_keys_give_equal_signatures(bundle: Path, tmp_path: Path, key: Key) -> None:
    shutil.copytree(bundle, tmp_path / "copy")
    one = sign_bundle(bundle, KeyFile(key.path, never))
    two = sign_bundle(tmp_path / "copy", KeyFile(key.path, never))
    assert one.name == two.name == f"{key.id}.json"
    assert one.read_bytes() == two.read_bytes()
    assert stat.S_IMODE(one.stat().st_mode) == 0o644
    assert list(one.parent.iterdir()) == [one]


def test_several_signatures_stand_side_by_side(bundle: Path, key: Key, other: Key) -> None:
    for each in (key, other, key):
        sign_bundle(bundle, KeyFile(each.path, never))
    findings = look_at_bundle(bundle)
    assert findings.problems == []
    assert sorted(findings.signers) == sorted([key.id, other.id])
    for each in (key, other):
        assert look_at_bundle(bundle, keys_of(each)).problems == []


def test_an_unsigned_bundle_and_another_key_are_problems_for_who_asks(
    bundle: Path, key: Key, other: Key
) -> None:
    (problem,) = look_at_bundle(bundle, keys_of(key)).problems
    assert (problem.path, problem.found) == ("signatures", "no right signature")
    assert problem.expected == f"one by {key.id} ({key.public})"
    other.sign(bundle)
    (problem,) = look_at_bundle(bundle, keys_of(key)).problems
    assert problem.found == f"signatures by {other.id}"
    assert verify_bundle(bundle) == []


def test_a_signature_of_another_bundle_is_a_problem(bundle: Path, tmp_path: Path, key: Key) -> None:
    write_bundle(plan(tmp_path / "linked", version="0.2.0"), tmp_path / "later")
    signature = key.sign(tmp_path / "later")
    (bundle / "signatures").mkdir()
    shutil.copy(signature, bundle / "signatures")
    findings = look_at_bundle(bundle, keys_of(key))
    assert [problem.path for problem in findings.problems] == ["signatures", f"signatures/{key.id}.json"]
    assert "a signature of something else" in findings.problems[1].found
    assert findings.signers == []


def test_a_manifest_that_changed_after_signing_is_a_problem(bundle: Path, key: Key) -> None:
    key.sign(bundle)
    body = json.loads((bundle / MANIFEST_NAME).read_bytes())
    # Other bytes that say the same.
    (bundle / MANIFEST_NAME).write_text(json.dumps(body, sort_keys=True))
    assert f"signatures/{key.id}.json" in problems(bundle)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 100, b"{", b" " * (MAX_SIGNATURE_FILE + 1)])
def test_garbage_is_a_problem(bundle: Path, key: Key, other: Key, data: bytes) -> None:
    key.sign(bundle).write_bytes(data)
    other.sign(bundle)
    findings = look_at_bundle(bundle, keys_of(key, other))
    assert [problem.path for problem in findings.problems] == [f"signatures/{key.id}.json"]
    assert findings.signers == [other.id]


def test_a_truncated_signature_is_a_problem_wherever_it_ends(bundle: Path, key: Key) -> None:
    path = key.sign(bundle)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert list(problems(bundle)) == [f"signatures/{key.id}.json"], length


def test_a_signature_under_the_name_of_another_key_is_a_problem(bundle: Path, key: Key, other: Key) -> None:
    path = key.sign(bundle)
    path.rename(path.with_name(f"{other.id}.json"))
    assert f"is by key {key.id}" in problems(bundle)[f"signatures/{other.id}.json"]
    assert look_at_bundle(bundle, keys_of(other)).signers == []


def test_anything_else_in_the_folder_is_a_problem(bundle: Path, key: Key) -> None:
    key.sign(bundle)
    (bundle / "signatures" / "README").write_text("x")
    (bundle / "signatures" / "inner").mkdir()
    (bundle / "signatures" / "inner" / "x").write_text("x")
    found = problems(bundle)
    assert found["signatures/README"] == "a file that is not a signature"
    assert found["signatures/inner"] == "a file that is not a signature"


def test_links_are_problems_and_are_not_followed(bundle: Path, tmp_path: Path, key: Key) -> None:
    path = key.sign(bundle)
    path.rename(tmp_path / "outside.json")
    path.symlink_to(tmp_path / "outside.json")
    findings = look_at_bundle(bundle, keys_of(key))
    assert (f"signatures/{key.id}.json", "a symbolic link") in {(p.path, p.found) for p in findings.problems}
    assert findings.signers == []
    path.unlink()
    (bundle / "signatures").rmdir()
    (tmp_path / "signatures").mkdir()
    key.sign(bundle)
    shutil.rmtree(tmp_path / "signatures")
    (bundle / "signatures").rename(tmp_path / "signatures")
    (bundle / "signatures").symlink_to(tmp_path / "signatures")
    findings = look_at_bundle(bundle, keys_of(key))
    assert ("signatures", "a symbolic link") in {(p.path, p.found) for p in findings.problems}
    assert findings.signers == []


def test_a_fifo_is_not_waited_for(bundle: Path, key: Key) -> None:
    path = key.sign(bundle)
    path.unlink()
    os.mkfifo(path)
    assert "no regular file" in problems(bundle)[f"signatures/{key.id}.json"]


def test_a_file_in_place_of_the_folder_is_a_problem(bundle: Path) -> None:
    (bundle / "signatures").write_text("x")
    assert "no readable directory" in problems(bundle)["signatures"]


def test_there_is_a_bound_on_their_number(bundle: Path, key: Key) -> None:
    (bundle / "signatures").mkdir()
    for number in range(MAX_SIGNATURES):
        (bundle / "signatures" / f"{number:016x}.json").write_text("x")
    assert len(problems(bundle)) == MAX_SIGNATURES
    (bundle / "signatures" / f"{MAX_SIGNATURES:016x}.json").write_text("x")
    assert problems(bundle) == {"signatures": f"more than {MAX_SIGNATURES} files"}
    with pytest.raises(BundleError, match="not sound"):
        sign_bundle(bundle, KeyFile(key.path, never))


def test_the_bound_holds_for_signing(
    bundle: Path, key: Key, other: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign, "MAX_SIGNATURES", 1)
    sign_bundle(bundle, KeyFile(key.path, never))
    sign_bundle(bundle, KeyFile(key.path, never))
    with pytest.raises(BundleError, match="has 1 signatures already"):
        sign_bundle(bundle, KeyFile(other.path, never))
    with pytest.raises(BundleError, match="has 1 signatures already"):
        build_wheels(bundle, bundle.parent / "wheels", signer=KeyFile(other.path, never))
    assert build_wheels(bundle, bundle.parent / "wheels", signer=KeyFile(key.path, never))
    assert verify_bundle(bundle) == []


def test_a_manifest_that_lists_a_signature_is_a_problem(bundle: Path, key: Key) -> None:
    from cutlass_aot.bundle.files import manifest_to_bytes
    from cutlass_aot.schema.bundles.catalog import FileReference
    from cutlass_aot.schema.encoding import digest

    path = key.sign(bundle)
    data = path.read_bytes()
    references = read_manifest(bundle)
    name = f"signatures/{key.id}.json"
    references[name] = FileReference(name, len(data), digest(data))
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))
    assert "a file that the catalog does not name" in {p.found for p in verify_bundle(bundle)}


def test_a_damaged_bundle_is_not_signed(bundle: Path, key: Key) -> None:
    (bundle / CATALOG_NAME).write_bytes(b"x")
    with pytest.raises(BundleError, match=r"is not sound: .*what is damaged is not signed"):
        sign_bundle(bundle, KeyFile(key.path, never))
    assert not (bundle / "signatures").exists()


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("group", "../../evil"), ("group", "a/b"), ("group", ""), ("group", ".."), ("group", "x" * 2000),
        ("name", "../small"), ("variant", "../x"), ("variant", "A"), ("hosts", "../x86_64"),
        ("targets", "a/b"),
    ],
)  # fmt: skip
def test_names_of_a_catalog_lead_nowhere_else(bundle: Path, key: Key, field: str, name: str) -> None:
    """They become parts of paths and of names of wheels when a bundle is split, packed or tuned."""
    catalog = read_catalog(bundle)
    if field == "group":
        groups = [catalog.groups[0]._replace(name=name), *catalog.groups[1:]]
        catalog = catalog._replace(groups=Groups.of(groups))
    else:
        catalog = catalog._replace(**{field: (name,) if field in ("hosts", "targets") else name})
    data = catalog.to_bytes()
    (bundle / CATALOG_NAME).write_bytes(data)
    references = read_manifest(bundle)
    references[CATALOG_NAME] = FileReference(CATALOG_NAME, len(data), digest(data))
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))
    assert "expected" in problems(bundle)[CATALOG_NAME]
    with pytest.raises(BundleError, match=r"is not sound: catalog\.msgpack.*found '"):
        sign_bundle(bundle, KeyFile(key.path, never))
    assert not (bundle / "signatures").exists()
    # The runtime refuses it too, at the latest when it looks for kernels in that group.
    with pytest.raises(CutlassAotError, match="expected"):
        list(read_catalog(bundle).groups)


def test_what_is_no_bundle_is_not_signed(tmp_path: Path, key: Key) -> None:
    (tmp_path / "x.whl").write_bytes(b"PK")
    with pytest.raises(BundleError, match=r"Not a directory; expected a bundle's directory \(sign first"):
        sign_bundle(tmp_path / "x.whl", KeyFile(key.path, never))
    with pytest.raises(BundleError, match=r"has no MANIFEST\.json"):
        sign_bundle(tmp_path, KeyFile(key.path, never))


def test_an_own_signature_that_is_not_right_any_more_is_replaced(bundle: Path, key: Key) -> None:
    key.sign(bundle).write_bytes(b"garbage")
    sign_bundle(bundle, KeyFile(key.path, never))
    assert look_at_bundle(bundle, keys_of(key)) == Findings([], [key.id])


def test_a_bundle_that_is_exchanged_meanwhile_is_not_said_to_be_signed(
    bundle: Path, tmp_path: Path, key: Key
) -> None:
    write_bundle(plan(tmp_path / "linked", version="0.2.0"), tmp_path / "later")
    if not exchange(bundle, tmp_path / "later"):
        pytest.skip("this file system cannot exchange two directories")
    signer = KeyFile(key.path, never)

    class Slow:
        public_key = signer.public_key

        def sign(self, message: bytes) -> bytes:
            exchange(bundle, tmp_path / "later")
            return signer.sign(message)

    with pytest.raises(BundleError, match="was replaced while it was signed"):
        sign_bundle(bundle, Slow())
    assert verify_bundle(bundle) == verify_bundle(tmp_path / "later") == []


def test_a_full_disk_leaves_the_bundle_as_it_was(
    bundle: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sign.os, "fsync", full)
    with pytest.raises(BundleError, match="No space left on device"):
        sign_bundle(bundle, KeyFile(key.path, never))
    assert list((bundle / "signatures").iterdir()) == []
    assert verify_bundle(bundle) == []


# -- bundles and wheels that carry them -------------------------------------------------------------------


def test_a_bundle_that_is_up_to_date_keeps_its_signatures(bundle: Path, tmp_path: Path, key: Key) -> None:
    signature = key.sign(bundle)
    outcome = write_bundle(plan(tmp_path / "linked"), bundle)
    assert not outcome
    assert bundle_is(bundle, outcome.catalog_sha256)
    assert signature.exists()


def test_a_bundle_that_is_written_anew_loses_its_signatures(bundle: Path, tmp_path: Path, key: Key) -> None:
    key.sign(bundle)
    assert write_bundle(plan(tmp_path / "linked", version="0.2.0"), bundle)
    assert not (bundle / "signatures").exists()
    assert verify_bundle(bundle) == []


@pytest.mark.parametrize("damage", ["garbage", "other", "link", "name"])
def test_a_folder_with_anything_but_signatures_is_not_up_to_date(
    bundle: Path, tmp_path: Path, key: Key, damage: str
) -> None:
    path = key.sign(bundle)
    if damage == "garbage":
        path.write_bytes(b"x")
    elif damage == "other":
        (bundle / "signatures" / "x").write_text("x")
    elif damage == "name":
        path.rename(path.with_name("0" * 16 + ".json"))
    else:
        path.rename(tmp_path / "outside")
        path.symlink_to(tmp_path / "outside")
    assert write_bundle(plan(tmp_path / "linked"), bundle)
    assert verify_bundle(bundle) == []


def test_too_many_are_not_up_to_date(bundle: Path, tmp_path: Path) -> None:
    for number in range(1, MAX_SIGNATURES + 2):
        make_key(tmp_path / "keys", number).sign(bundle)
    assert write_bundle(plan(tmp_path / "linked"), bundle)


def test_a_wheel_carries_signatures_and_is_verified_with_them(
    bundle: Path, tmp_path: Path, key: Key, other: Key
) -> None:
    key.sign(bundle)
    (wheel,) = build_wheels(bundle, tmp_path / "wheels")
    assert look_at(wheel, keys_of(key)) == Findings([], [key.id])
    findings = look_at(wheel, keys_of(other))
    assert [problem.path for problem in findings.problems] == ["cutlass_aot_bundle_small/bundle/signatures"]
    assert look_at(wheel, keys_of(key, other)).problems == []


def test_a_wheel_is_not_made_with_a_wrong_signature(bundle: Path, tmp_path: Path, key: Key) -> None:
    path = key.sign(bundle)
    path.write_bytes(key.signature(b"something else").to_bytes())
    with pytest.raises(BundleError, match="a signature of something else"):
        build_wheels(bundle, tmp_path / "wheels")


# -- a program that signs ---------------------------------------------------------------------------------


def program(folder: Path, body: str) -> str:
    """The command of a program that has the key of number 1 and the message."""
    path = folder / "signer with spaces.py"
    path.write_text(
        "import base64, sys, time\n"
        "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey\n"
        "message = sys.stdin.buffer.read()\n"
        "signature = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32).sign(message)\n"
        f"write = sys.stdout.buffer.write\n{body}\n"
    )
    return f"{sys.executable} '{path}'"


@pytest.mark.parametrize(
    "answer",
    ["signature", "signature.hex().encode() + b'\\n'", "signature.hex().upper().encode()",
     "base64.b64encode(signature)", "base64.encodebytes(signature)"],
)  # fmt: skip
def test_a_program_signs(bundle: Path, tmp_path: Path, key: Key, answer: str) -> None:
    command = program(tmp_path, f"write({answer})")
    sign_bundle(bundle, Command(command, read_public_key(key.public)))
    assert look_at_bundle(bundle, keys_of(key)) == Findings([], [key.id])
    assert (bundle / "signatures" / f"{key.id}.json").read_bytes() == key.signature(
        (bundle / MANIFEST_NAME).read_bytes()
    ).to_bytes()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("write(bytes(64))", "the signature is not right by public key"),
        ("write(signature[::-1])", "the signature is not right by public key"),
        ("write(signature[:63])", r"answered b.* \(63 bytes\): expected a signature"),
        ("write(b'error: no such key')", "answered b'error: no such key'"),
        ("write('\u0660'.encode() * 64)", r"\(128 bytes\): expected a signature"),
        ("", r"answered b'' \(0 bytes\)"),
        ("write(signature); sys.exit(3)", "failed with status 3: nothing was signed"),
        ("write(b'x' * 10_000_000)", "wrote more than 4096 bytes"),
        ("while True: write(b'x' * 4096)", "wrote more than 4096 bytes"),
    ],
)
def test_a_program_that_lies_or_fails_leaves_no_signature(
    bundle: Path, tmp_path: Path, key: Key, body: str, says: str
) -> None:
    with pytest.raises(SignatureError, match=says):
        sign_bundle(bundle, Command(program(tmp_path, body), read_public_key(key.public)))
    assert not (bundle / "signatures").exists()


@pytest.mark.parametrize(
    "body",
    ["time.sleep(600)", "write(signature); sys.stdout.close(); time.sleep(600)",
     "\nwhile True: write(b'x'); sys.stdout.flush(); time.sleep(0.05)"],
)  # fmt: skip
def test_a_program_that_hangs_is_ended(bundle: Path, tmp_path: Path, key: Key, body: str) -> None:
    started = time.monotonic()
    with pytest.raises(SignatureError, match=r"took longer than 1\.5 s to sign"):
        sign_bundle(bundle, Command(program(tmp_path, body), read_public_key(key.public), 1.5))
    assert time.monotonic() - started < SOON
    assert not (bundle / "signatures").exists()


def test_a_program_that_reads_nothing_is_asked_all_the_same(bundle: Path, key: Key) -> None:
    with pytest.raises(SignatureError, match="answered b''"):
        sign_bundle(bundle, Command("true", read_public_key(key.public)))


def test_there_is_no_shell(bundle: Path, tmp_path: Path, key: Key) -> None:
    public = read_public_key(key.public)
    for command in (
        f"true; touch {tmp_path}/made",
        f"$(touch {tmp_path}/made)",
        f"true | tee {tmp_path}/made",
    ):
        with pytest.raises(SignatureError):
            sign_bundle(bundle, Command(command, public))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "is empty"),
        ("'", "cannot be split into a program and arguments"),
        ("/none/such x", "cannot be started: No such file"),
    ],
)
def test_a_command_that_is_none(bundle: Path, key: Key, command: str, says: str) -> None:
    with pytest.raises(SignatureError, match=says):
        sign_bundle(bundle, Command(command, read_public_key(key.public)))


# -- the command line -------------------------------------------------------------------------------------


def test_the_commands(run, bundle: Path, tmp_path: Path) -> None:
    key = tmp_path / "release"
    status, out, _ = run("key", "new", key)
    assert status == 0
    (line,) = [line for line in out.splitlines() if "public key" in line]
    identity = line.split()[-1]
    assert run("verify", bundle, "--key", f"{key}.pub")[0] == 3
    status, out, _ = run("sign", bundle, "--key", key)
    assert (status, out) == (0, f"{bundle}/signatures/{identity}.json: signed\n")
    status, out, _ = run("verify", bundle, "--key", f"{key}.pub")
    assert (status, out) == (0, f"{bundle}: good, signed by {identity} ({key}.pub)\n")
    status, out, _ = run("verify", bundle)
    assert (status, out) == (0, f"{bundle}: good, signed by {identity}\n")
    status, out, _ = run("verify", bundle, "--json")
    assert json.loads(out) == {
        "path": str(bundle),
        "problems": [],
        "more_problems": 0,
        "signers": [identity],
        "terms": {identity: {"sequence": 0, "expires": ""}},
        "warnings": [],
    }
    assert run("key", "new", key)[0] == 1


def test_verify_tells_what_is_damaged_from_what_others_signed(
    run, bundle: Path, tmp_path: Path, key: Key, other: Key
) -> None:
    key.sign(bundle)
    (wheel,) = build_wheels(bundle, tmp_path / "wheels")
    for path in (bundle, wheel):
        assert run("verify", path, "--key", key.public)[0] == 0
        status, out, error = run("verify", path, "--key", other.public)
        assert (status, f"signatures by {key.id}; expected one by {other.id}" in error) == (3, True)
        assert out == f"{path}: 1 problem, signed by {key.id}\n"
    # A signature that the key did make, and that was damaged, is damage.
    damaged = other.sign(bundle)
    damaged.write_bytes(other.signature(b"something else").to_bytes())
    assert run("verify", bundle, "--key", other.public)[0] == 1
    damaged.unlink()
    (bundle / "more").write_text("x")
    assert run("verify", bundle, "--key", other.public)[0] == 1
    assert run("verify", bundle, "--key", key.public)[0] == 1


@pytest.mark.parametrize("name", ["", ".", "/", ".."])
def test_a_key_needs_a_name(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, error = run("key", "new", name)
    assert (status, "names no file for a key" in error) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_path_is_not_the_keys_of_the_current_directory(
    run, bundle: Path, tmp_path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    key.sign(bundle)
    monkeypatch.chdir(key.public.parent)
    for arguments in (
        ("verify", bundle, "--key", ""),
        ("bundle", "pull", "localhost:1/x:y", "-o", tmp_path / "out", "--key", ""),
        ("sign", bundle, "--key", ""),
        ("sign", bundle, "--command", "false", "--public-key", ""),
        ("wheel", bundle, "-o", tmp_path / "wheels", "--key", ""),
    ):
        status, _, error = run(*arguments)
        assert (status, "an empty path names no key" in error) == (2, True), arguments
    with pytest.raises(SignatureError, match="an empty path names no keys"):
        read_public_keys([""])
    assert [found.raw for found in read_public_keys(["."])] == [key.raw]
    with pytest.raises(SignatureError, match="an empty path names no keys"):
        open_bundle(bundle, keys="")


def test_a_command_of_another_signs(run, bundle: Path, tmp_path: Path, key: Key) -> None:
    command = program(tmp_path, "write(signature)")
    assert run("sign", bundle, "--command", command, "--public-key", key.public)[0] == 0
    assert run("verify", bundle, "--key", key.public)[0] == 0


def test_a_passphrase_comes_from_the_environment(
    run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTLASS_AOT_KEY_PASSPHRASE", "correct horse")
    assert run("key", "new", tmp_path / "release")[1].splitlines()[0].endswith("private key, protected")
    assert run("sign", bundle, "--key", tmp_path / "release")[0] == 0
    monkeypatch.setenv("CUTLASS_AOT_KEY_PASSPHRASE", "battery staple")
    status, _, error = run("sign", bundle, "--key", tmp_path / "release")
    assert (status, "its passphrase is another one" in error) == (1, True)
    monkeypatch.setenv("CUTLASS_AOT_KEY_PASSPHRASE", "")
    for arguments in (("sign", bundle, "--key", tmp_path / "release"), ("key", "new", tmp_path / "second")):
        status, _, error = run(*arguments)
        assert (status, "is set and empty" in error) == (1, True)
    assert not (tmp_path / "second").exists()
    monkeypatch.delenv("CUTLASS_AOT_KEY_PASSPHRASE")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    status, _, error = run("sign", bundle, "--key", tmp_path / "release")
    assert (status, "no terminal to ask at" in error) == (1, True)


def test_a_passphrase_is_asked_for_at_a_terminal(
    run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[tuple[str, bool]] = []

    def prompt(text: str, **how: object) -> str:
        requested.append((text, bool(how["hide_input"])))
        return "correct horse"

    monkeypatch.setattr(click, "prompt", prompt)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert run("key", "new", tmp_path / "release", "--passphrase")[0] == 0
    assert run("sign", bundle, "--key", tmp_path / "release")[0] == 0
    assert requested == [("Passphrase", True), (f"Passphrase of {tmp_path}/release", True)]
    assert b"ENCRYPTED" in (tmp_path / "release").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "expected one of --key and --command"),
        (("--key", "a", "--command", "b"), "expected one of --key and --command"),
        (("--command", "b"), "--command and --public-key go together"),
        (("--key", "a", "--public-key", "b"), "--command and --public-key go together"),
    ],
)
def test_wrong_use_exits_with_2(run, bundle: Path, arguments: tuple[str, ...], says: str) -> None:
    status, _, error = run("sign", bundle, *arguments)
    assert (status, says in error) == (2, True)


def test_a_store_is_not_signed(run, tmp_path: Path, key: Key) -> None:
    from cutlass_aot.store.store import Store

    Store(tmp_path / "store").close()
    status, _, error = run("verify", tmp_path / "store", "--key", key.public)
    assert (status, "has no signatures" in error) == (2, True)
    assert run("verify", tmp_path / "store")[0] == 0


def test_without_the_package_the_error_says_what_to_install(
    run, bundle: Path, key: Key, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_cryptography(monkeypatch)
    assert run("verify", bundle)[0] == 0
    for arguments in (
        ("sign", bundle, "--key", key.path),
        ("key", "new", tmp_path / "release"),
        ("verify", bundle, "--key", key.public),
    ):
        status, _, error = run(*arguments)
        assert status == 1
        assert "pip install 'cryptography>=38'" in error
    key.sign(bundle)
    # Nobody can say whether it is right, and nobody asked: its digests are checked, and that is said.
    says = "signatures not checked: checking a key or a signature needs the package cryptography"
    status, out, error = run("verify", bundle)
    assert (status, f"{bundle}: {says}" in error, "signed by" in out) == (0, True, False)
    assert json.loads(run("verify", bundle, "--json")[1])["warnings"][0].startswith(says)
    status, _, error = run("wheel", bundle, "-o", tmp_path / "wheels")
    assert (status, f"{bundle}: {says}" in error) == (0, True)
    (wheel,) = (tmp_path / "wheels").iterdir()
    status, _, error = run("verify", wheel)
    assert (status, f"{wheel}: {says}" in error) == (0, True)
    for path in (bundle, wheel):
        assert run("verify", path, "--key", key.public)[0] == 1
    (bundle / CATALOG_NAME).write_bytes(b"x")
    assert run("verify", bundle)[0] == 1
    # What is not a signature whatever it signs is told.
    (bundle / "signatures" / "README").write_text("x")
    assert "a file that is not a signature" in run("verify", bundle)[2]


def test_every_error_is_one_of_ours(bundle: Path, key: Key) -> None:
    for data in (b"", base64.b64encode(key.raw), b"-----BEGIN PRIVATE KEY-----"):
        key.path.write_bytes(data)
        with pytest.raises(CutlassAotError):
            KeyFile(key.path, never)
