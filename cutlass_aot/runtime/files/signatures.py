"""Public keys and signatures: read, and checked against a bundle's manifest.

The package ``cryptography`` is imported when a key is read or a signature verified, and at no other time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, CutlassAotError, SignatureError
from cutlass_aot.runtime.files.verified_read import read_bounded
from cutlass_aot.schema.bundles.signature import (
    MAX_SIGNATURE_FILE,
    MAX_SIGNATURES,
    SIGNATURES,
    Signature,
    is_signature_path,
    key_id,
    signature_path,
    signed_message,
)

KEY_SUFFIX = ".pub"
"""Of the files that are keys in a directory of public keys."""

MAX_KEY_FILE = 1 << 16
"""Bytes of a key's file that are read at most."""

_PEM = b"-----BEGIN "
"""What each thing in a file in PEM begins with. Source: RFC 7468, section 2."""

_NEEDED = (
    "keys and signatures need the package cryptography, which cannot be imported here ({}): "
    "pip install 'cutlass-aot[sign]'"
)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key.

    Attributes:
        raw: its 32 bytes.
        source: the file that it was read from.
    """

    raw: bytes
    source: str

    @property
    def id(self) -> str:
        """How it is called."""
        return key_id(self.raw)

    def __str__(self) -> str:
        return f"{self.id} ({self.source})"


@dataclass(frozen=True, slots=True)
class Examined:
    """A file in a bundle's folder of signatures, after a look at it.

    Attributes:
        path: where it is in the bundle.
        signature: what it says; None if it cannot be read.
        problem: what is wrong with it; empty for a right signature of this bundle, and for one that was not
            to be checked.
    """

    path: str
    signature: Signature | None
    problem: str


def ed25519() -> Any:
    """The module of ``cryptography`` that has the algorithm."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519 as module
    except ImportError as error:
        raise SignatureError(_NEEDED.format(error)) from None
    return module


def why_unchecked() -> str:
    """Why no signature can be checked here; empty where they can be."""
    try:
        ed25519()
    except SignatureError as error:
        return f"signatures not checked: {error}"
    return ""


def serialization() -> Any:
    """The module of ``cryptography`` that reads and writes keys."""
    try:
        from cryptography.hazmat.primitives import serialization as module
    except ImportError as error:
        raise SignatureError(_NEEDED.format(error)) from None
    return module


def read_key_file(path: Path) -> bytes:
    """The bytes of a key's file."""
    try:
        # Non-blocking, or opening a FIFO would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as file:
            data = file.read(MAX_KEY_FILE + 1) or b""
    except OSError as error:
        raise SignatureError(f"key {path} cannot be read: {error.strerror or error}") from None
    # A path with a NUL, or with what has no bytes in the file system's encoding.
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
        # The first of them would count, and the others would seem to.
        raise SignatureError(
            f"{path} holds {data.count(_PEM)} keys or other things in PEM, expected one public key a file: "
            f"give each a file of its own, in a directory as *{KEY_SUFFIX} if there are many"
        )
    try:
        key = serialization().load_pem_public_key(data)
    # It raises errors of its own for algorithms that it does not know.
    except Exception as error:
        raise SignatureError(f"{path} is not a public key in PEM: {error}") from None
    if not isinstance(key, module.Ed25519PublicKey):
        raise SignatureError(f"{path} is a {type(key).__name__}: expected a public key of Ed25519")
    return PublicKey(key.public_bytes_raw(), os.fspath(path))


def read_public_keys(paths: Iterable[str | os.PathLike[str]]) -> tuple[PublicKey, ...]:
    """Read public keys, each once, in order.

    Args:
        paths: files, and directories, of which every file ``*.pub`` is a key.
    """
    found: dict[bytes, PublicKey] = {}
    for given in paths:
        if not os.fspath(given):
            # What pathlib takes for the current directory, with whatever keys lie there.
            raise SignatureError(
                "an empty path names no keys: expected a file or a directory of public keys (is a variable "
                "unset?)"
            )
        path = Path(given)
        try:
            files = sorted(inner for inner in path.iterdir() if inner.suffix == KEY_SUFFIX)
        except NotADirectoryError:
            files = [path]
        except OSError as error:
            raise SignatureError(f"keys {path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise SignatureError(f"{os.fspath(path)!r} cannot be the path of keys: {error}") from None
        if not files:
            raise SignatureError(f"{path} has no public keys: expected files *{KEY_SUFFIX}")
        for file in files:
            key = read_public_key(file)
            found.setdefault(key.raw, key)
    return tuple(found.values())


def is_right(signature: Signature, manifest: bytes) -> bool:
    """Whether a signature is by the key that it names, and of the bundle with this manifest."""
    return verifies(signature.public_key, signature.signature, signed_message(manifest))


def verifies(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the key made the signature of the message; all as raw bytes."""
    module = ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        module.Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_signature(root: Path, path: str) -> Signature:
    """Read a signature's file of a bundle; whether it is right is another question.

    Args:
        root: the bundle.
        path: of the file in it.
    """
    signature = Signature.from_bytes(read_bounded(root, path, MAX_SIGNATURE_FILE), path)
    if signature.path != path:
        raise CorruptFile(f"{path} is by key {signature.key}: expected it as {signature.path}")
    return signature


def is_signed(root: Path) -> bool:
    """Whether a bundle has signatures; whose, and whether they are good, is not looked at."""
    try:
        return (root / SIGNATURES).is_dir()
    except OSError:
        # Whoever reads the bundle says why it cannot be looked at.
        return False


def examine(root: Path, manifest: bytes, *, check: bool = True) -> list[Examined]:
    """Look at every file in a bundle's folder of signatures, at :data:`MAX_SIGNATURES` of them at most.

    Args:
        root: the bundle.
        manifest: the bytes of its manifest that count.
        check: whether to hold signatures against the manifest; else only what they look like is looked at.

    Returns:
        By path; what is wrong with the folder itself stands under its name.
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

    Their own files alone are read: what else is in the folder of signatures can neither help nor harm.
    """
    return tuple(key for key in keys if _has_signed(root, manifest, key))


def _has_signed(root: Path, manifest: bytes, key: PublicKey) -> bool:
    try:
        signature = read_signature(root, signature_path(key.id))
    except CutlassAotError:
        return False
    return signature.public_key == key.raw and is_right(signature, manifest)
