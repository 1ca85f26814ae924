"""Decide which bundles this process loads: any, or only those signed by given keys.

Keys are required by the argument ``keys`` of :func:`cutlass_aot.open`, by :func:`trust` for the process, and
by the environment variable ``CUTLASS_AOT_TRUSTED_KEYS``. An argument and :func:`trust` both have to be
satisfied; if either is given, the variable is ignored, and the log says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cutlass_aot.errors import SignatureError, UntrustedBundle
from cutlass_aot.runtime.machine.process_lock import ProcessLock
from cutlass_aot.schema.named_tuple import NamedTuple

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
    """Keys of which one has to have signed a bundle; ``by`` says in words who requires it."""

    by: str
    keys: tuple[PublicKey, ...]


class _Opened(NamedTuple):
    """A directory that was opened; ``signers`` are the required keys that had signed it."""

    name: str
    path: Path
    signers: frozenset[PublicKey]

    def is_good_by(self, keys: Iterable[PublicKey]) -> bool:
        """Whether its signers are known to satisfy one of these keys."""
        return any(key.demands_no_more_than(signer) for key in keys for signer in self.signers)


class _Process:
    def __init__(self) -> None:
        self.lock = ProcessLock()
        # Never removed: a kernel may outlive its bundle, and mapped libraries are never unmapped.
        self.opened: dict[_Opened, None] = {}
        self.trusted: tuple[PublicKey, ...] = ()
        self.of_environment: tuple[PublicKey, ...] = ()
        self.said = False


_process = _Process()


def trust(*keys: str | os.PathLike[str]) -> None:
    """From now on, load only bundles in this process that one of these keys has signed.

    Call it before the first bundle is opened: kernels of a bundle can be held and launched even after the
    bundle itself was dropped. Further calls can only remove keys, and demand more of those that stay.

    Args:
        keys: files of public keys in PEM, or directories of which every file ``*.pub`` is one. A directory's
            ``policy.json`` says what is demanded of signatures by its keys, and its files ``*.revoked`` are
            keys that do not count.

    Raises:
        SignatureError: if there is no key, a file is not a key, or a key was not among those of an earlier
            call.
        UntrustedBundle: if a bundle was opened that was not checked against these keys. The keys are required
            from then on nevertheless.
    """
    from cutlass_aot.runtime.files.signatures import merged

    named = _read(keys, "cutlass_aot.trust")
    with _process.lock:
        earlier = {key.raw: key for key in _process.trusted}
        added = [key for key in named if earlier and key.raw not in earlier and not key.revoked]
        if not added:
            # What an earlier call demanded of a key's signatures is still demanded.
            named = merged([*named, *(earlier[key.raw] for key in named if key.raw in earlier)])
            # Before the check below: directories noted from now on are checked against these.
            _process.trusted = named
        opened = tuple(_process.opened)
    if added:
        raise SignatureError(
            f"cutlass_aot.trust was called before, without key {added[0]}: a second call can only take keys "
            "away; name all of them in the first"
        )
    for item in opened:
        if not item.is_good_by(named):
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
    """Record that this process has opened a directory, for :func:`trust` to check.

    Takes what was given to :func:`check`, and the signers that it returned. Returns the required keys that
    have signed the bundle, which differ from these if :func:`trust` was called in between.

    Raises:
        UntrustedBundle: if :func:`trust` was called in between, with keys of which none has signed it.
    """
    while True:
        item = _Opened(name, root, frozenset(signers))
        with _process.lock:
            # Either `trust` sees this entry, or it was called first and its keys are seen here.
            if not _process.trusted or item.is_good_by(_process.trusted):
                _process.opened[item] = None
                return signers
        signers = check(root, manifest, keys)


def read_once(keys: KeyFiles | None) -> tuple[PublicKey, ...] | None:
    """Read the keys that a caller gave, to open several bundles with them; None where none were given.

    An iterator gives them only once, and a file might hold another key the next time.
    """
    return None if keys is None else _read(keys, _ARGUMENT)


def required(keys: KeyFiles | None = None) -> list[Required]:
    """The requirements on the signatures of a bundle opened now; empty if there are none.

    ``keys`` is what the caller of ``open`` gave.
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
    """Refuse a bundle that no required key has signed; return the required keys that have signed it.

    The result is empty if no keys are required. Everything that is loaded later has to be verified against
    the very bytes that are given as ``manifest``. ``keys`` is what the caller of ``open`` gave.
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


def sequences(root: Path, manifest: bytes, keys: KeyFiles | None = None) -> dict[str, int]:
    """The sequence that each required key has signed which is not revoked, by the key's id.

    Keys that have not signed are left out. A signature may have expired since. Arguments are those of
    :func:`check`.
    """
    from cutlass_aot.runtime.files.signatures import merged, right_signature

    named = merged(key for demand in required(keys) for key in demand.keys)
    found = {key.id: right_signature(root, manifest, key) for key in named if not key.revoked}
    return {key: signature.sequence for key, signature in found.items() if signature}


def _read(given: object, by: str) -> tuple[PublicKey, ...]:
    """Read keys given as any accepted type; other types are refused, as a guess might trust the wrong key."""
    from cutlass_aot.runtime.files.signatures import PublicKey, merged, read_public_keys

    if isinstance(given, (str, os.PathLike)):
        given = [given]
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise SignatureError(f"{by} has {given!r}: {_EXPECTED}")
    found: list[PublicKey] = []
    for item in given:
        if isinstance(item, PublicKey):
            found.append(item)
        elif isinstance(item, (str, os.PathLike)):
            found += read_public_keys([item])
        else:
            raise SignatureError(f"{by} has {item!r}: {_EXPECTED}")
    if not found:
        raise SignatureError(f"{by} names no keys: expected at least one file of a public key")
    return merged(found)


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

    keys = {key.raw: key for key in demand.keys}
    seen = []
    for item in examine(root, manifest):
        if item.problem or item.signature is None:
            seen.append(f"{item.path} is not good: {item.problem}")
            continue
        key = keys.get(item.signature.public_key)
        why = key.why_not(item.signature) if key else ""
        seen.append(
            f"it is signed by {item.signature.key}" + (f", which does not count: {why}" if why else "")
        )
    return (
        f"bundle {root} is not signed by a key that is trusted: {'; '.join(seen) or 'it has no signature'}; "
        f"trusted by {demand.by}: {_listed(demand.keys)}; have its maker sign it with one of these "
        "(cutlass-aot sign), or trust the key of who made it"
    )


def _listed(keys: Iterable[PublicKey]) -> str:
    return ", ".join(map(str, keys))
