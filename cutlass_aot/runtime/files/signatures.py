"""Read public keys and signatures, and check them against a bundle's manifest.

The package ``cryptography`` is imported only when a key is read or a signature verified.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, CutlassAotError, SignatureError
from cutlass_aot.runtime.files.verified_read import read_bounded
from cutlass_aot.runtime.optional_packages import optional
from cutlass_aot.schema.bundles.signature import (
    MAX_SIGNATURE_FILE,
    MAX_SIGNATURES,
    SIGNATURES,
    Signature,
    TrustPolicy,
    is_signature_path,
    key_id,
    signature_path,
    signed_message,
)

KEY_SUFFIX = ".pub"
"""Suffix of keys in a directory of public keys."""

REVOKED_SUFFIX = ".revoked"
"""Suffix of public keys in such a directory that do not count any more, wherever else they are named."""

POLICY_NAME = "policy.json"
"""File in such a directory that says what is demanded of signatures by its keys (:class:`.TrustPolicy`)."""

MAX_KEY_FILE = 1 << 16
"""Most bytes that are read of a key file."""

_PEM = b"-----BEGIN "
"""Beginning of each item in a PEM file. Source: RFC 7468, section 2."""

_PURPOSE = "checking a key or a signature"
_SERIALIZATION = "cryptography.hazmat.primitives.serialization"

NO_POLICY = TrustPolicy()


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key: its 32 bytes, and the file that it was read from; and what is demanded of its signatures.

    Attributes:
        policy: of the directory that it was read from.
        revoked: the file that says that it does not count any more; ``""`` for none.
    """

    raw: bytes
    source: str
    policy: TrustPolicy = NO_POLICY
    revoked: str = ""

    @property
    def id(self) -> str:
        """The name by which messages and signature files refer to it."""
        return key_id(self.raw)

    def __str__(self) -> str:
        return f"{self.id} ({self.source})"

    def demands_no_more_than(self, other: PublicKey) -> bool:
        """Whether each signature that counts by ``other`` counts by this one."""
        own, others = self.policy, other.policy
        return (
            self.raw == other.raw
            and not self.revoked
            and own.minimum_sequence <= others.minimum_sequence
            and own.require_expiry <= others.require_expiry
        )

    def why_not(self, signature: Signature) -> str:
        """Why a right signature by this key does not count; ``""`` if it does."""
        terms, policy = signature.terms, self.policy
        if self.revoked:
            return f"{self.revoked} revokes the key"
        if expired := why_expired(signature):
            return expired
        if terms.sequence < policy.minimum_sequence:
            return (
                f"it has sequence {terms.sequence}, {POLICY_NAME} beside the key demands "
                f"{policy.minimum_sequence} or more: an older bundle"
            )
        if policy.require_expiry and not terms.expires:
            return f"it does not expire, which {POLICY_NAME} beside the key demands"
        return ""


def why_expired(signature: Signature) -> str:
    """Why a signature is too old to count; ``""`` if it is not."""
    return (
        f"it was good until {signature.expires}" if signature.expires and today() > signature.expires else ""
    )


def today() -> str:
    """The day in UTC, such as ``2026-11-24``."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def merged(keys: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    """The keys, each once; of one that is named several times, all that is demanded."""
    found: dict[bytes, PublicKey] = {}
    for key in keys:
        other = found.get(key.raw, key)
        policy = TrustPolicy(
            max(key.policy.minimum_sequence, other.policy.minimum_sequence),
            key.policy.require_expiry or other.policy.require_expiry,
        )
        found[key.raw] = replace(other, policy=policy, revoked=other.revoked or key.revoked)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Examined:
    """A file in a bundle's folder of signatures, examined; ``signature`` is None if it cannot be read.

    ``problem`` is empty for a valid signature of this bundle, and for one that was not checked.
    """

    path: str
    signature: Signature | None
    problem: str


def ed25519() -> Any:
    """The module of ``cryptography`` that implements Ed25519."""
    return optional("cryptography.hazmat.primitives.asymmetric.ed25519", SignatureError, _PURPOSE)


def why_unchecked() -> str:
    """Why signatures cannot be checked here; empty if they can."""
    try:
        ed25519()
    except SignatureError as error:
        return f"signatures not checked: {error}"
    return ""


def serialization() -> Any:
    """The module of ``cryptography`` that reads and writes keys."""
    return optional(_SERIALIZATION, SignatureError, _PURPOSE)


def raw_bytes(public_key: Any) -> bytes:
    """The 32 bytes of a public key of ``cryptography``."""
    formats = serialization()
    raw: bytes = public_key.public_bytes(formats.Encoding.Raw, formats.PublicFormat.Raw)
    return raw


def read_key_file(path: Path) -> bytes:
    """Read a file of a public or a private key."""
    try:
        # Non-blocking, or opening a FIFO would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as file:
            data = file.read(MAX_KEY_FILE + 1) or b""
    except OSError as error:
        raise SignatureError(f"key {path} cannot be read: {error.strerror or error}") from None
    # A path with a NUL, or one that the file system's encoding cannot express.
    except ValueError as error:
        raise SignatureError(f"{os.fspath(path)!r} cannot be the path of a key: {error}") from None
    if len(data) > MAX_KEY_FILE:
        raise SignatureError(f"key {path} is larger than {MAX_KEY_FILE} bytes: expected a key in PEM")
    return data


def read_public_key(path: Path) -> PublicKey:
    """Read a public key in PEM (SubjectPublicKeyInfo, RFC 8410)."""
    data = read_key_file(path)
    module = ed25519()
    if b"PRIVATE KEY" in data:
        raise SignatureError(
            f"{path} is a private key, expected a public one: `cutlass-aot key new` writes it beside the "
            f"private key, as NAME{KEY_SUFFIX}; a private key belongs on no machine that loads bundles"
        )
    if data.count(_PEM) > 1:
        # Only the first would count, though the others would seem to.
        raise SignatureError(
            f"{path} holds {data.count(_PEM)} keys or other things in PEM, expected one public key a file: "
            f"give each a file of its own, in a directory as *{KEY_SUFFIX} if there are many"
        )
    try:
        key = serialization().load_pem_public_key(data)
    # cryptography has its own exception classes for unknown algorithms.
    except Exception as error:
        raise SignatureError(f"{path} is not a public key in PEM: {error}") from None
    if not isinstance(key, module.Ed25519PublicKey):
        raise SignatureError(f"{path} is a {type(key).__name__}: expected a public key of Ed25519")
    return PublicKey(raw_bytes(key), os.fspath(path))


def read_public_keys(paths: Iterable[str | os.PathLike[str]]) -> tuple[PublicKey, ...]:
    """Read public keys, each once, in order: from files, and from every ``*.pub`` file of directories.

    A directory's ``policy.json`` is of its keys. Its files ``*.revoked`` are keys too, which do not count.
    """
    found: list[PublicKey] = []
    for given in paths:
        if not os.fspath(given):
            # pathlib would take it for the current directory, whose keys nobody chose to trust.
            raise SignatureError(
                "an empty path names no keys: expected a file or a directory of public keys (is a variable "
                "unset?)"
            )
        path = Path(given)
        try:
            inside = sorted(path.iterdir())
        except NotADirectoryError:
            found.append(read_public_key(path))
            continue
        except OSError as error:
            raise SignatureError(f"keys {path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise SignatureError(f"{os.fspath(path)!r} cannot be the path of keys: {error}") from None
        files = [file for file in inside if file.suffix == KEY_SUFFIX]
        if not files:
            raise SignatureError(f"{path} has no public keys: expected files *{KEY_SUFFIX}")
        policy = _policy(path / POLICY_NAME) if path / POLICY_NAME in inside else NO_POLICY
        found += (replace(read_public_key(file), policy=policy) for file in files)
        revoked = (read_public_key(file) for file in inside if file.suffix == REVOKED_SUFFIX)
        found += (replace(key, revoked=key.source) for key in revoked)
    return merged(found)


def _policy(path: Path) -> TrustPolicy:
    try:
        return TrustPolicy.from_bytes(read_key_file(path), str(path))
    except CorruptFile as error:
        raise SignatureError(str(error)) from None


def is_right(signature: Signature, manifest: bytes) -> bool:
    """Whether a signature was made by the key that it names, for the bundle with this manifest."""
    return verifies(signature.public_key, signature.signature, signed_message(manifest, signature.terms))


def verifies(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the key made the signature of the message; all as raw bytes."""
    module = ed25519()
    invalid = optional("cryptography.exceptions", SignatureError, _PURPOSE).InvalidSignature
    try:
        module.Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (invalid, ValueError):
        return False
    return True


def read_signature(root: Path, path: str) -> Signature:
    """Read a signature file, given by its path in the bundle; the signature is not verified."""
    signature = Signature.from_bytes(read_bounded(root, path, MAX_SIGNATURE_FILE), path)
    if signature.path != path:
        raise CorruptFile(f"{path} is by key {signature.key}: expected it as {signature.path}")
    return signature


def is_signed(root: Path) -> bool:
    """Whether a bundle has signatures; they are neither read nor verified."""
    try:
        return (root / SIGNATURES).is_dir()
    except OSError:
        # Reading the bundle reports why.
        return False


def examine(root: Path, manifest: bytes, *, check: bool = True) -> list[Examined]:
    """Examine the files in a bundle's folder of signatures, at most :data:`MAX_SIGNATURES` of them, by path.

    With ``check`` False only their form is checked, not the signatures. A problem with the folder itself is
    listed under the folder's name.
    """
    try:
        folder = os.open(
            root / SIGNATURES, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Examined(SIGNATURES, None, f"no readable directory ({error.strerror})")]
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(os.fsencode(entry.name).decode("utf-8", "backslashreplace"))
                if len(names) > MAX_SIGNATURES:
                    return [Examined(SIGNATURES, None, f"more than {MAX_SIGNATURES} files")]
    except OSError as error:
        return [Examined(SIGNATURES, None, f"no readable directory ({error.strerror})")]
    finally:
        os.close(folder)
    return [_examined(root, f"{SIGNATURES}/{name}", manifest, check) for name in sorted(names)]


def _examined(root: Path, path: str, manifest: bytes, check: bool) -> Examined:
    if not is_signature_path(path):
        return Examined(path, None, "a file that is not a signature")
    try:
        signature = read_signature(root, path)
    except CutlassAotError as error:
        return Examined(path, None, str(error))
    right = not check or is_right(signature, manifest)
    return Examined(path, signature, "" if right else "a signature of something else, or an altered one")


def signers(root: Path, manifest: bytes, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
    """Those of the keys that have signed the bundle with this manifest.

    Only the files of these keys are read, so that no other file in the folder of signatures has any effect.
    """
    found = ((key, right_signature(root, manifest, key)) for key in keys)
    return tuple(key for key, signature in found if signature and not key.why_not(signature))


def right_signature(root: Path, manifest: bytes, key: PublicKey) -> Signature | None:
    """The signature that the key made of the bundle with this manifest, whether it counts or not."""
    try:
        signature = read_signature(root, signature_path(key.id))
    except CutlassAotError:
        return None
    right = signature.public_key == key.raw and is_right(signature, manifest)
    return signature if right else None
