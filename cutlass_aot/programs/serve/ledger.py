"""What became of a program's requests: answered, missed, and which requests of its bundles nobody made."""

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
"""Of the file of a ledger."""

_SECONDS = 0.45
_SECONDS_A_BYTE = 1.64e-5


def estimated_seconds(code_bytes: int) -> float:
    """About how long the DSL takes to compile a kernel with this much GPU code, in bytes.

    A bundle does not say how long its kernels took, as it would be another one each time it is built. The
    line is fitted to the 120 kernels of ``manifests/quack.toml``, each compiled on one core. For all kernels
    of a target together it gives 0.8 to 1.2 times what was measured there, 1.0 to 1.1 times for FlashInfer's
    and 0.5 to 0.6 times for FlashAttention-4's (``tools/bench/programs.py --part table``).
    """
    return _SECONDS + _SECONDS_A_BYTE * code_bytes


@dataclass(slots=True)
class Entry:
    """One request.

    Attributes:
        callable: what was to be compiled; ``""`` for what could not be described.
        target: GPU code target.
        bundle: what answered it, ``""`` if nothing ever did.
        count: how often it was made.
        seconds: looking it up, all times that it was answered together.
        saved: seconds that compiling it would have taken once in each process, by estimate; 0 for a miss.
        missed: how often nothing answered it. Another process may have had an answer, or a later time.
        compiling: seconds that it took to compile, all times that it was missed together.
        reason: why nothing answered it.
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
    """Requests of a program, by their digests.

    Attributes:
        entries: what was requested; what could not be described stands under the reason.
        unused: digests of requests that the bundles have and nobody made.
    """

    entries: Annotated[dict[str, Entry], Key("requests")] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False)

    def answered(self, request: Request, bundle: str, code_bytes: int, seconds: float) -> None:
        """Count an answer, which took ``seconds``; ``code_bytes`` is the size of its GPU code."""
        with self._lock:
            entry = self.entries.setdefault(request.digest, Entry(request.callable, request.target))
            entry.bundle = bundle
            entry.saved = estimated_seconds(code_bytes)
            entry.count += 1
            entry.seconds += seconds

    def missed(self, request: Request | None, reason: str, seconds: float) -> None:
        """Count a request that no bundle answered; ``seconds`` is what compiling it took."""
        with self._lock:
            name, target = (request.callable, request.target) if request is not None else ("", "")
            key = request.digest if request is not None else reason
            entry = self.entries.setdefault(key, Entry(name, target))
            entry.count += 1
            entry.missed += 1
            entry.compiling += seconds
            entry.reason = reason

    def with_unused(self, held: Iterable[str]) -> Ledger:
        """A copy that knows which requests the bundles hold."""
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
        """Plain data for JSON, with times of six decimals."""
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
