"""Counts of a program's requests, answered and missed, and the requests in its bundles that nobody made."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from cutlass_aot.schema.codec import Key, from_plain, to_plain
from cutlass_aot.schema.encoding import decode_json
from cutlass_aot.schema.requests.request import Request

MAX_BYTES = 1 << 26
"""Largest file of a ledger that is read."""

_SECONDS = 0.45
_SECONDS_A_BYTE = 1.64e-5


def estimated_seconds(code_bytes: int) -> float:
    """About how many seconds the DSL takes to compile a kernel with this many bytes of GPU code.

    A bundle has no compile times, with which each build of it would differ. The line is fitted to the 120
    kernels of ``manifests/quack.toml``, each compiled on one core. For all kernels of a target together it
    gives 0.8 to 1.2 times the measured time there, 1.0 to 1.1 times for FlashInfer's and 0.5 to 0.6 times for
    FlashAttention-4's (``tools/bench/programs.py --part table``).
    """
    return _SECONDS + _SECONDS_A_BYTE * code_bytes


@dataclass(slots=True)
class Entry:
    """One request.

    Attributes:
        callable: what was to be compiled; ``""`` for what could not be described.
        bundle: the bundle that answered it, ``""`` if none ever did.
        seconds: total time to look it up when it was answered.
        saved: estimated seconds to compile it once in each process; 0 for a miss.
        missed: how often nothing answered it; it may have been answered in another process, or later.
        compiling: total seconds to compile it when it was missed.
    """

    callable: str
    target: str
    bundle: str = ""
    count: int = 0
    seconds: float = 0.0
    saved: float = 0.0
    missed: int = 0
    compiling: float = 0.0
    reason: str = ""


@dataclass(slots=True)
class Ledger:
    """The requests of a program, by their digests, or by the reason where they could not be described.

    ``unused`` are digests of requests that the bundles have and nobody made.
    """

    entries: Annotated[dict[str, Entry], Key("requests")] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False)

    def answered(self, request: Request, bundle: str, code_bytes: int, seconds: float) -> None:
        """Count an answer that took ``seconds`` to find; ``code_bytes`` is the size of its GPU code."""
        with self._lock:
            entry = self.entries.setdefault(request.digest, Entry(request.callable, request.target))
            entry.bundle = bundle
            entry.saved = estimated_seconds(code_bytes)
            entry.count += 1
            entry.seconds += seconds

    def has_missed(self, request: Request | None, reason: str) -> bool:
        """Whether :meth:`missed` counted the request before."""
        with self._lock:
            entry = self.entries.get(_key(request, reason))
            return entry is not None and entry.missed > 0

    def missed(self, request: Request | None, reason: str, seconds: float) -> None:
        """Count a request that no bundle answered and that took ``seconds`` to compile."""
        with self._lock:
            name, target = (request.callable, request.target) if request is not None else ("", "")
            key = _key(request, reason)
            entry = self.entries.setdefault(key, Entry(name, target))
            entry.count += 1
            entry.missed += 1
            entry.compiling += seconds
            entry.reason = reason

    def with_unused(self, held: Iterable[str]) -> Ledger:
        """A copy with ``unused``, given the digests that the bundles hold."""
        with self._lock:
            return Ledger(dict(self.entries), tuple(sorted(set(held) - set(self.entries))))

    def merge(self, other: Ledger) -> None:
        """Take in the ledger of another process of the program."""
        unused = set(self.unused) & set(other.unused) if self.entries or self.unused else set(other.unused)
        for key, theirs in other.entries.items():
            ours = self.entries.setdefault(key, Entry(theirs.callable, theirs.target))
            ours.bundle = theirs.bundle or ours.bundle
            ours.reason = theirs.reason or ours.reason
            ours.count += theirs.count
            ours.seconds += theirs.seconds
            ours.saved += theirs.saved
            ours.missed += theirs.missed
            ours.compiling += theirs.compiling
        self.unused = tuple(sorted(unused - set(self.entries)))

    def to_record(self) -> dict[str, Any]:
        """Plain data for JSON, with times rounded."""
        rounded = {
            key: replace(
                entry, seconds=round(entry.seconds, 6), saved=round(entry.saved, 1),
                compiling=round(entry.compiling, 6),
            )
            for key, entry in sorted(self.entries.items())
        }  # fmt: skip
        record: dict[str, Any] = to_plain(Ledger(rounded, self.unused))
        return record

    def to_bytes(self) -> bytes:
        """The file of a ledger: JSON."""
        return (json.dumps(self.to_record(), indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> Ledger:
        """Read what :meth:`to_bytes` gave."""
        return from_plain(cls, decode_json(data, what), what)


def _key(request: Request | None, reason: str) -> str:
    return request.digest if request is not None else reason
