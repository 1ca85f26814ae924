"""How long kernels took to compile, so that a build can begin with the slowest. Only a hint."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping

from cutlass_aot.errors import CorruptFile, SchemaTooNew, StoreError
from cutlass_aot.schema.encoding import seal, unseal
from cutlass_aot.store.files import publish, read
from cutlass_aot.store.layout import DIGEST, DURATIONS_NAME, SCHEMA
from cutlass_aot.store.store import Store

MOST = 50_000
"""Most kernels that are remembered; the quickest, which matter least, are dropped first."""

_KIND = "cutlass-aot durations"
_MAX_BYTES = 1 << 23


def durations(store: Store) -> dict[str, float]:
    """Seconds by :attr:`~.Kernel.digest`, whatever compiled it; empty if they cannot be read."""
    try:
        return _read(store)
    except (CorruptFile, SchemaTooNew, StoreError):
        return {}


def remember_durations(store: Store, seconds: Mapping[str, float]) -> None:
    """Add or replace durations, in seconds by the kernel's digest; values that are none are left out.

    If two builders race, the durations of one of them are lost.
    """
    known = durations(store)
    known.update({name: float(value) for name, value in seconds.items() if _is_duration(name, value)})
    longest = sorted(known.items(), key=lambda item: (-item[1], item[0]))[:MOST]
    publish(seal(_KIND, SCHEMA, dict(longest)), store.root / DURATIONS_NAME, store=store.root)


def durations_problem(store: Store) -> str | None:
    """What is wrong with the file; None if nothing is, or a newer release wrote it."""
    try:
        _read(store)
    except SchemaTooNew:
        return None
    except CorruptFile as error:
        return str(error)
    except StoreError as error:
        # Other errors do not say that the file is damaged.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno != errno.EIO:
            raise
        return str(error)
    return None


def _read(store: Store) -> dict[str, float]:
    data = read(store.root / DURATIONS_NAME, _MAX_BYTES)
    if data is None:
        return {}
    body = unseal(data, _KIND, SCHEMA, "it")
    if not isinstance(body, dict) or not all(_is_duration(*item) for item in body.items()):
        raise CorruptFile("it holds something else than seconds by digests")
    return body


def _is_duration(name: object, seconds: object) -> bool:
    return (
        isinstance(name, str)
        and DIGEST.fullmatch(name) is not None
        and isinstance(seconds, float | int)
        and not isinstance(seconds, bool)
        and math.isfinite(seconds)
        and seconds >= 0
    )
