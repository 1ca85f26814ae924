"""Make keys, and sign bundles by a private key's file or by a program that has the key."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import secrets
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from cutlass_aot.bundle.verify.directory import in_short, look_at_bundle
from cutlass_aot.errors import BundleError, SignatureError
from cutlass_aot.runtime.files.signatures import (
    KEY_SUFFIX,
    PublicKey,
    ed25519,
    raw_bytes,
    read_key_file,
    serialization,
    verifies,
)
from cutlass_aot.runtime.files.verified_read import manifest_bytes
from cutlass_aot.schema.bundles.signature import (
    MAX_SIGNATURES,
    NO_TERMS,
    SIGNATURE_BYTES,
    SIGNATURES,
    Signature,
    Terms,
    key_id,
    signature_path,
    signed_message,
)

COMMAND_SECONDS = 60.0
"""Default time limit of a signing program."""

MAX_ANSWER = 4096
"""Most bytes that a signing program may write."""

_MAX_PASSPHRASE = 1023
"""Most bytes that the package ``cryptography`` takes."""

_PROTECTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_PUBLIC = b"-----BEGIN PUBLIC KEY-----"
_PRIVATE = b" PRIVATE KEY-----"


class Signer(Protocol):
    """Signs messages by one private key."""

    @property
    def public_key(self) -> bytes:
        """The key that verifies the signatures, 32 raw bytes."""

    def sign(self, message: bytes) -> bytes:
        """The signature of a message, 64 raw bytes; a :class:`SignatureError` if it cannot be made."""


class KeyFile:
    """Signs by a private key of Ed25519 in a PEM file (PKCS #8).

    ``passphrase`` is called only if the key is protected by one. A file that is not such a key, and a
    passphrase that is wrong or not UTF-8, are a :class:`SignatureError`.
    """

    def __init__(self, path: Path, passphrase: Callable[[], str]) -> None:
        self._key = _read_private_key(path, passphrase)

    @property
    def public_key(self) -> bytes:
        """32 raw bytes."""
        return raw_bytes(self._key.public_key())

    def sign(self, message: bytes) -> bytes:
        """The signature of a message, 64 raw bytes."""
        signature: bytes = self._key.sign(message)
        return signature


class Command:
    """Signs by a program, such as one of a hardware module or of a key service.

    It gets the message on its standard input, and writes the signature to its standard output: 64 raw bytes,
    or those in hexadecimal or base64. ``command`` is the program and its arguments, quoted as for a shell,
    but started without one; it may take ``seconds``.
    """

    def __init__(self, command: str, public_key: PublicKey, seconds: float = COMMAND_SECONDS) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise SignatureError(
                f"{command!r} cannot be split into a program and arguments: {error}"
            ) from None
        if not self._arguments:
            raise SignatureError("the signing command is empty: expected a program and its arguments")
        self._public_key = public_key
        self._seconds = seconds

    @property
    def public_key(self) -> bytes:
        """32 raw bytes."""
        return self._public_key.raw

    def sign(self, message: bytes) -> bytes:
        """The signature of a message, 64 raw bytes; a :class:`SignatureError` if the program gives none."""
        answer = self._answer(message)
        found = _decoded(answer)
        if found is None:
            raise SignatureError(
                f"{self._arguments[0]} answered {answer[:40]!r} ({len(answer)} bytes): expected a signature, "
                f"{SIGNATURE_BYTES} raw bytes or the same in hexadecimal or base64"
            )
        return found

    def _answer(self, message: bytes) -> bytes:
        program = self._arguments[0]
        deadline = time.monotonic() + self._seconds
        late = f"{program} took longer than {self._seconds:g} s to sign: see why, or allow more (--timeout)"
        try:
            # Its standard error is not captured: it may ask the user something.
            process = subprocess.Popen(
                self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            raise SignatureError(f"{program} cannot be started: {error.strerror or error}") from None
        with process:
            try:
                assert process.stdin is not None  # noqa: S101 - for types
                assert process.stdout is not None  # noqa: S101
                with contextlib.suppress(BrokenPipeError):
                    # The message is smaller than a pipe's buffer, so this does not block.
                    process.stdin.write(message)
                process.stdin.close()
                answer = _read_until(process.stdout.fileno(), deadline)
                if answer is None:
                    raise SignatureError(late)
                if len(answer) > MAX_ANSWER:
                    raise SignatureError(
                        f"{program} wrote more than {MAX_ANSWER} bytes: expected a signature alone"
                    )
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise SignatureError(late) from None
            finally:
                if process.poll() is None:
                    process.kill()
        if status:
            raise SignatureError(f"{program} failed with status {status}: nothing was signed")
        return answer


def sign_bundle(bundle: Path, signer: Signer, terms: Terms = NO_TERMS) -> Path:
    """Sign a bundle, under these terms, and return the path of the signature's file.

    The bundle is verified first, and the signature before it is written. It replaces one by the same key;
    others stay. Equal bundles, keys and terms give equal files. A bundle that is replaced meanwhile, or that
    already has :data:`MAX_SIGNATURES` signatures by other keys, is a :class:`BundleError`.
    """
    path = signature_path(key_id(signer.public_key))
    # Held open: if a build exchanges the bundle meanwhile, the signature goes into the old one.
    try:
        folder = os.open(bundle, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BundleError(
            f"{bundle} cannot be signed: {error.strerror or error}; expected a bundle's directory "
            "(sign first, then pack the wheel)"
        ) from None
    try:
        findings = look_at_bundle(bundle)
        problems = [problem for problem in findings.problems if problem.path != path]
        if problems or findings.bundle is None:
            # This says so where there is no bundle at all.
            manifest_bytes(bundle)
            raise BundleError(f"{bundle} is not sound: {in_short(problems)}; what is damaged is not signed")
        signature = signature_of(findings.bundle.manifest, signer, terms)
        if not os.path.samestat(os.fstat(folder), bundle.stat()):
            raise _replaced(bundle)
        _write(folder, signature)
        if not os.path.samestat(os.fstat(folder), bundle.stat()):
            raise _replaced(bundle)
    except OSError as error:
        raise BundleError(f"cannot sign {bundle}: {error.strerror or error}") from error
    finally:
        os.close(folder)
    return bundle / path


def signature_of(manifest: bytes, signer: Signer, terms: Terms = NO_TERMS) -> Signature:
    """Sign the bundle with this manifest; a signature that is not right is a :class:`SignatureError`."""
    key, message = signer.public_key, signed_message(manifest, terms)
    signature = Signature(key, signer.sign(message), sequence=terms.sequence, expires=terms.expires)
    if not verifies(key, signature.signature, message):
        raise SignatureError(
            f"the signature is not right by public key {signature.key}: the signer has another key, or "
            "signs something else than the bytes on its standard input; nothing was written"
        )
    return signature


def check_count(paths: Collection[str]) -> None:
    """Refuse more signatures than a bundle may have."""
    if len(paths) > MAX_SIGNATURES:
        raise BundleError(f"the bundle has {MAX_SIGNATURES} signatures already: remove one first")


def _replaced(bundle: Path) -> BundleError:
    return BundleError(f"{bundle} was replaced while it was signed: look at what is there now, and sign that")


def new_key(path: Path, passphrase: str | None = None) -> PublicKey:
    """Make a private key that only its owner can read, and the public key beside it, ``PATH.pub``.

    Both are in PEM: PKCS #8 and SubjectPublicKeyInfo (RFC 8410). Without a passphrase the private key is
    unprotected. No file is overwritten: one that exists is a :class:`SignatureError`.
    """
    if path.name in ("", ".."):
        raise SignatureError(
            f"{os.fspath(path)!r} names no file for a key: expected one, such as keys/release"
        )
    formats = serialization()
    key = ed25519().Ed25519PrivateKey.generate()
    protection = (
        formats.NoEncryption()
        if passphrase is None
        else formats.BestAvailableEncryption(_passphrase_bytes(passphrase))
    )
    private = key.private_bytes(formats.Encoding.PEM, formats.PrivateFormat.PKCS8, protection)
    public = key.public_key().public_bytes(formats.Encoding.PEM, formats.PublicFormat.SubjectPublicKeyInfo)
    beside = path.with_name(path.name + KEY_SUFFIX)
    made_key = PublicKey(raw_bytes(key.public_key()), os.fspath(beside))
    made: list[Path] = []
    try:
        for file, data, mode in ((path, private, 0o600), (beside, public, 0o644)):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            made.append(file)
            with os.fdopen(descriptor, "wb") as output:
                # The process's umask must not change the mode.
                os.fchmod(descriptor, mode)
                output.write(data)
                output.flush()
                os.fsync(descriptor)
    except OSError as error:
        for file in made:
            file.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            what = "is there already; a key is never overwritten: name another file"
        else:
            what = f"{error.strerror or error}; check permissions and free space, or name another file"
        raise SignatureError(f"{error.filename or path}: {what}") from None
    return made_key


def _read_private_key(path: Path, passphrase: Callable[[], str]) -> Any:
    data = read_key_file(path)
    if _PUBLIC in data and _PRIVATE not in data:
        raise SignatureError(f"{path} is a public key, expected the private one that belongs to it")
    module = ed25519()
    password = _passphrase_bytes(passphrase()) if _PROTECTED in data else None
    try:
        key = serialization().load_pem_private_key(data, password)
    # The package raises errors of its own for algorithms that it does not know.
    except Exception as error:
        reason = "its passphrase is another one, or it is damaged" if password is not None else error
        raise SignatureError(f"{path} cannot be read as a private key in PEM: {reason}") from None
    if not isinstance(key, module.Ed25519PrivateKey):
        raise SignatureError(f"{path} is a {type(key).__name__}: expected a private key of Ed25519")
    return key


def _passphrase_bytes(passphrase: str) -> bytes:
    try:
        data = passphrase.encode()
    except UnicodeEncodeError:
        # Not from the error, whose text shows the passphrase.
        raise SignatureError("the passphrase is not text in UTF-8: expected one that is") from None
    if not 0 < len(data) <= _MAX_PASSPHRASE:
        raise SignatureError(
            f"the passphrase has {len(data)} bytes: expected 1 to {_MAX_PASSPHRASE}; choose another"
        )
    return data


def _read_until(descriptor: int, deadline: float) -> bytes | None:
    """A program's output, at most twice :data:`MAX_ANSWER` bytes; None if it is late."""
    answer = b""
    while len(answer) <= MAX_ANSWER:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        block = os.read(descriptor, MAX_ANSWER)
        if not block:
            break
        answer += block
    return answer


def _decoded(answer: bytes) -> bytes | None:
    """The signature in an answer, raw, in hexadecimal or in base64; None if there is none."""
    if len(answer) == SIGNATURE_BYTES:
        return answer
    text = b"".join(answer.split())
    with contextlib.suppress(ValueError, binascii.Error):
        found = (
            bytes.fromhex(text.decode("ascii"))
            if len(text) == 2 * SIGNATURE_BYTES
            else base64.b64decode(text, validate=True)
        )
        if len(found) == SIGNATURE_BYTES:
            return found
    return None


def _write(folder: int, signature: Signature) -> None:
    """Put a signature into a bundle by a rename: a reader sees the old file or all of the new one."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(SIGNATURES, 0o755, dir_fd=folder)
    inner = os.open(SIGNATURES, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        name = os.path.basename(signature.path)  # noqa: PTH119 - a path in the bundle
        there = os.listdir(inner)  # noqa: PTH208 - of a descriptor
        check_count({*there, name})
        temporary = f".{name}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o644, dir_fd=inner)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o644)
                file.write(signature.to_bytes())
                file.flush()
                os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=inner, dst_dir_fd=inner)
        except BaseException:
            os.unlink(temporary, dir_fd=inner)
            raise
        os.fsync(inner)
        os.fsync(folder)
    finally:
        os.close(inner)
