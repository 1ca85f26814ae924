"""Whose bundles this process loads: those of anybody, or those that given keys have signed.

Keys are required by the argument ``keys`` of :func:`cutlass_aot.open`, by :func:`trust` for the process, and
by the environment variable ``CUTLASS_AOT_TRUSTED_KEYS``. An argument and :func:`trust` both have to be
satisfied; where there is either, the variable does not count, and the log says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cutlass_aot.errors import SignatureError, UntrustedBundle
from cutlass_aot.runtime.machine.process_lock import ProcessLock

if TYPE_CHECKING:
    from cutlass_aot.runtime.files.signatures import PublicKey

ENVIRONMENT_VARIABLE = "CUTLASS_AOT_TRUSTED_KEYS"
"""Files and directories of public keys, with ``os.pathsep`` between them.

Read when a bundle is opened. Once it has named keys, they are required as long as the process lives, whatever
becomes of the variable.
"""

KeyFiles = str | os.PathLike[str] | Iterable["str | os.PathLike[str] | PublicKey"]
"""Files and directories of public keys, or keys that were read: see :func:`read_once`."""

_ARGUMENT = "the argument `keys`"
_EXPECTED = "expected files or directories of public keys, as text or as paths"


class Required(NamedTuple):
    """Keys of which one has to have signed a bundle.

    Attributes:
        by: who requires that, in words.
        keys: at least one.
    """

    by: str
    keys: tuple[PublicKey, ...]


class _Opened(NamedTuple):
    """A directory that was opened.

    Attributes:
        name: of the bundle.
        path: of the directory.
        signers: the required keys that had signed it, each as its 32 bytes.
    """

    name: str
    path: Path
    signers: frozenset[bytes]


class _Process:
    """What this process requires, and what it has opened."""

    def __init__(self) -> None:
        self.lock = ProcessLock()
        # For good: a kernel may be held where its bundle is not, and what was mapped is never unmapped.
        self.opened: dict[_Opened, None] = {}
        self.trusted: tuple[PublicKey, ...] = ()
        self.of_environment: tuple[PublicKey, ...] = ()
        self.said = False


_process = _Process()


def trust(*keys: str | os.PathLike[str]) -> None:
    """From now on, load nothing in this process but bundles that one of these keys has signed.

    Call it before the first bundle is opened: one that was opened may have been dropped, and its kernels be
    held and launched nevertheless. Called again, it can only take keys away.

    Args:
        keys: files of public keys in PEM, and directories, of which every file ``*.pub`` is one.

    Raises:
        SignatureError: if there is no key, or a file is none; or for a key that an earlier call did not name.
        UntrustedBundle: if a bundle was opened that was not checked against these keys. They are
            required from then on nevertheless.
    """
    named = _read(keys, "cutlass_aot.trust")
    with _process.lock:
        before = {key.raw for key in _process.trusted}
        added = [key for key in named if before and key.raw not in before]
        if not added:
            # Whoever notes a directory later looks at these.
            _process.trusted = named
        opened = tuple(_process.opened)
    if added:
        raise SignatureError(
            f"cutlass_aot.trust was called before, without key {added[0]}: a second call can only take keys "
            "away; name all of them in the first"
        )
    good = {key.raw for key in named}
    for item in opened:
        if not item.signers & good:
            raise UntrustedBundle(
                f"bundle {item.name} ({item.path}) was opened already, and not checked against "
                f"{_listed(named)}: call cutlass_aot.trust before a bundle is opened"
            )


def note_opened(
    name: str,
    root: Path,
    manifest: bytes,
    signers: tuple[PublicKey, ...],
    keys: KeyFiles | None = None,
) -> tuple[PublicKey, ...]:
    """Count a directory among those that this process has opened, for :func:`trust` to look at.

    Args:
        name: of the bundle.
        root: as :func:`check` had it, like the others.
        manifest: likewise.
        signers: what :func:`check` gave.
        keys: what the caller of ``open`` gave.

    Returns:
        The required keys that have signed it: others, if :func:`trust` was called since the check.

    Raises:
        UntrustedBundle: if :func:`trust` was called since, with keys of which none has signed it.
        SignatureError: as for :func:`check`.
    """
    while True:
        raw = frozenset(key.raw for key in signers)
        with _process.lock:
            # Either `trust` sees what is noted, or it came first, and its keys are seen here.
            if not _process.trusted or not raw.isdisjoint(key.raw for key in _process.trusted):
                _process.opened[_Opened(name, root, raw)] = None
                return signers
        signers = check(root, manifest, keys)


def read_once(keys: KeyFiles | None) -> tuple[PublicKey, ...] | None:
    """The keys that a caller gave, for who opens several bundles with them; None where none were given.

    An iterator has them once, and a file might have another key the next time.

    Raises:
        SignatureError: if they cannot be read, or there is none.
    """
    return None if keys is None else _read(keys, _ARGUMENT)


def required(keys: KeyFiles | None = None) -> list[Required]:
    """Whose signatures a bundle that is opened now needs; empty if nobody requires any.

    Args:
        keys: what the caller of ``open`` gave.

    Raises:
        SignatureError: if keys are required that cannot be read, or a list of them is empty.
    """
    found = []
    if keys is not None:
        found.append(Required(_ARGUMENT, _read(keys, _ARGUMENT)))
    if _process.trusted:
        found.append(Required("cutlass_aot.trust", _process.trusted))
    if not found:
        of_environment = _of_environment()
        return [Required(ENVIRONMENT_VARIABLE, of_environment)] if of_environment else []
    if (ENVIRONMENT_VARIABLE in os.environ or _process.of_environment) and not _process.said:
        import logging

        _process.said = True
        logging.getLogger("cutlass_aot").warning(
            "the keys of %s do not count where %s names others", ENVIRONMENT_VARIABLE, found[0].by
        )
    return found


def check(root: Path, manifest: bytes, keys: KeyFiles | None = None) -> tuple[PublicKey, ...]:
    """Refuse a bundle that nobody who is trusted has signed.

    Args:
        root: the bundle.
        manifest: the bytes of its manifest, from which everything that is loaded has to follow.
        keys: what the caller of ``open`` gave.

    Returns:
        The required keys that have signed it; empty if none are required.

    Raises:
        UntrustedBundle: if keys are required and none of them has signed it.
        SignatureError: if keys are required that cannot be read, or ``cryptography`` is not there.
    """
    demands = required(keys)
    if not demands:
        return ()
    from cutlass_aot.runtime.files.signatures import signers

    good: dict[bytes, PublicKey] = {}
    for demand in demands:
        signed = signers(root, manifest, demand.keys)
        if not signed:
            raise UntrustedBundle(_refusal(root, manifest, demand))
        good.update((key.raw, key) for key in signed)
    return tuple(good.values())


def _read(given: object, by: str) -> tuple[PublicKey, ...]:
    """Whatever was given as keys: who is trusted is no place to guess what a value of another type means."""
    from cutlass_aot.runtime.files.signatures import PublicKey, read_public_keys

    if isinstance(given, (str, os.PathLike)):
        given = [given]
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise SignatureError(f"{by} has {given!r}: {_EXPECTED}")
    found: dict[bytes, PublicKey] = {}
    for item in given:
        if isinstance(item, PublicKey):
            found.setdefault(item.raw, item)
        elif isinstance(item, (str, os.PathLike)):
            found.update((key.raw, key) for key in read_public_keys([item]) if key.raw not in found)
        else:
            raise SignatureError(f"{by} has {item!r}: {_EXPECTED}")
    if not found:
        raise SignatureError(f"{by} names no keys: expected at least one file of a public key")
    return tuple(found.values())


def _of_environment() -> tuple[PublicKey, ...]:
    if not _process.of_environment:
        text = os.environ.get(ENVIRONMENT_VARIABLE)
        if text is None:
            return ()
        files = [part for part in text.split(os.pathsep) if part]
        if not files:
            raise SignatureError(
                f"{ENVIRONMENT_VARIABLE} is set and empty: name files or directories of public keys, "
                "or unset it to load bundles that nobody has signed"
            )
        _process.of_environment = _read(files, ENVIRONMENT_VARIABLE)
    return _process.of_environment


def _refusal(root: Path, manifest: bytes, demand: Required) -> str:
    from cutlass_aot.runtime.files.signatures import examine

    seen = []
    for item in examine(root, manifest):
        if item.problem or item.signature is None:
            seen.append(f"{item.path} is not good: {item.problem}")
        else:
            seen.append(f"it is signed by {item.signature.key}")
    return (
        f"bundle {root} is not signed by a key that is trusted: {'; '.join(seen) or 'it has no signature'}; "
        f"trusted by {demand.by}: {_listed(demand.keys)}; have its maker sign it with one of these "
        "(cutlass-aot sign), or trust the key of who made it"
    )


def _listed(keys: Iterable[PublicKey]) -> str:
    return ", ".join(map(str, keys))
