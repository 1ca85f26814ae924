"""The tuning file: what each kernel of a bundle took for each problem, on one GPU. JSON, one row a line.

It holds for the GPU model it was measured on, and for the very code that was measured: a kernel is named by
the digest of its record and by that of its object, because another compiler makes code of another speed
from the same record. :mod:`~cutlass_aot.schema.tuning.tuned` says what a file is good for.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, TuningError
from cutlass_aot.schema.encoding import MALFORMED, check_schema, is_digest, shown
from cutlass_aot.schema.kernels.operands import MAX_EXTENT
from cutlass_aot.schema.tuning.ranking import Extents

TUNING_KIND = "cutlass-aot tuning"
TUNING_SCHEMA = 1
MAX_TUNING_BYTES = 1 << 26
_EXPANDED_DEPTH = 4
"""Levels of the file that have a line an item: the file, its groups, a group, its kernels and problems."""

Times = tuple[tuple[str, float], ...]
"""Digest of a kernel and its time in microseconds."""


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel that was measured.

    Attributes:
        digest: of its record (:attr:`cutlass_aot.schema.kernels.kernel.Kernel.digest`).
        object_sha256: digest of the compiled object, which is what the time belongs to.
        name: readable name.
    """

    digest: str
    object_sha256: str
    name: str


@dataclass(frozen=True, slots=True)
class TunedProblem:
    """What was measured for one problem.

    Attributes:
        extents: of the problem.
        ranked: kernels that were measured to the end, best first.
        stopped: kernels that were dropped after a first look, being far behind; best first.
        failed: kernels that gave a wrong result or could not be launched, with the reason; by digest.
        sm_mhz: clock of the multiprocessors while it was measured, None if not known.
        memory_mhz: clock of the memory, likewise.
    """

    extents: Extents
    ranked: Times
    stopped: Times = ()
    failed: tuple[tuple[str, str], ...] = ()
    sm_mhz: int | None = None
    memory_mhz: int | None = None

    @property
    def kernels(self) -> frozenset[str]:
        """Digests of all kernels that were tried."""
        return frozenset(digest for digest, _ in (*self.ranked, *self.stopped, *self.failed))


@dataclass(frozen=True, slots=True)
class TunedGroup:
    """What was measured of one group.

    Attributes:
        digest: of the group (:attr:`cutlass_aot.schema.kernels.kernel.Kernel.group`).
        name: readable name.
        kernels: those that were tried, by name.
        problems: by extents, each once.
    """

    digest: str
    name: str
    kernels: tuple[TunedKernel, ...]
    problems: tuple[TunedProblem, ...]


@dataclass(frozen=True, slots=True)
class Tuning:
    """A tuning file.

    Attributes:
        gpu: model, as the driver names it.
        compute_capability: such as ``9.0``.
        driver: release of the driver, None if not known.
        cuda: CUDA version of the driver, such as ``13.0``.
        power_limit_watts: that the GPU was held to, None if not known.
        date: of the last measurement, such as ``2026-11-21``.
        bundle: name and version of the bundle, for a reader.
        versions: name to version, of what measured (``cutlass-aot``, ``torch``, ``apache-tvm-ffi``) and of
            what the kernels were built with (the compiler's packages, and ``toolchain``, its fingerprint).
        groups: by name.
    """

    gpu: str
    compute_capability: str
    driver: str | None
    cuda: str
    power_limit_watts: float | None
    date: str
    bundle: str
    versions: Mapping[str, str]
    groups: tuple[TunedGroup, ...] = ()

    def to_bytes(self) -> bytes:
        """The file: equal tunings give equal bytes."""
        groups = sorted(self.groups, key=lambda group: (group.name, group.digest))
        record = {
            "kind": TUNING_KIND,
            "schema": TUNING_SCHEMA,
            "gpu": self.gpu,
            "compute_capability": self.compute_capability,
            "driver": self.driver,
            "cuda": self.cuda,
            "power_limit_watts": self.power_limit_watts,
            # For a reader; they are in the problems, and taken from there.
            "clocks": {
                "sm_mhz": _spread([p.sm_mhz for group in groups for p in group.problems]),
                "memory_mhz": _spread([p.memory_mhz for group in groups for p in group.problems]),
            },
            "date": self.date,
            "bundle": self.bundle,
            "versions": dict(self.versions),
            "groups": [_group_record(group) for group in groups],
        }
        return (_rendered(record) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> Tuning:
        """Read what :meth:`to_bytes` gave.

        Raises:
            CorruptFile: if it is truncated, too large or malformed.
            SchemaTooNew: if a newer release wrote it.
        """
        record = _envelope(data, what)
        try:
            power = record["power_limit_watts"]
            tuning = cls(
                gpu=_text(record["gpu"]),
                compute_capability=_text(record["compute_capability"]),
                driver=None if record["driver"] is None else _text(record["driver"]),
                cuda=_text(record["cuda"]),
                power_limit_watts=None if power is None else _positive(power),
                date=_text(record["date"]),
                bundle=_text(record["bundle"]),
                versions={_text(name): _text(text) for name, text in sorted(record["versions"].items())},
                groups=tuple(_group(item) for item in record["groups"]),
            )
            _once([group.digest for group in tuning.groups], "group")
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}; {_AGAIN}") from None
        return tuning


_AGAIN = "fetch it again, or measure again with cutlass-aot tune --force"


def read_tuning(path: Path) -> Tuning:
    """Read a tuning file of at most 64 MiB.

    Raises:
        TuningError: if it is missing or unreadable.
        CorruptFile: if it is no tuning file, or damaged.
        SchemaTooNew: if a newer release wrote it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TUNING_BYTES + 1)
    except OSError as error:
        raise TuningError(f"{path}: the tuning file cannot be read: {error.strerror}") from None
    return Tuning.from_bytes(data, str(path))


def write_tuning(tuning: Tuning, path: Path) -> None:
    """Write a tuning file, at once: a reader sees what was there before, or all of the new one.

    Raises:
        TuningError: if the disk refuses; what was there stays.
    """
    staging = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, staging = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(tuning.to_bytes())
            file.flush()
            os.fsync(descriptor)
        Path(staging).replace(path)
        staging = None
    except OSError as error:
        raise TuningError(f"{path}: the tuning file cannot be written: {error.strerror}") from error
    finally:
        if staging is not None:
            Path(staging).unlink(missing_ok=True)


# -- writing ------------------------------------------------------------------------------------------------


def _group_record(group: TunedGroup) -> dict[str, Any]:
    kernels = sorted(group.kernels, key=lambda kernel: (kernel.name, kernel.digest))
    position = {kernel.digest: index for index, kernel in enumerate(kernels)}
    return {
        "digest": group.digest,
        "name": group.name,
        "kernels": [
            {"digest": kernel.digest, "object_sha256": kernel.object_sha256, "name": kernel.name}
            for kernel in kernels
        ],
        "problems": [
            _problem_record(problem, position)
            for problem in sorted(group.problems, key=lambda problem: problem.extents)
        ],
    }


def _problem_record(problem: TunedProblem, position: Mapping[str, int]) -> dict[str, Any]:
    """Kernels by their position in the group's list; what is empty or not known is left out."""
    extents = problem.extents
    record: dict[str, Any] = {
        "extents": [extents.batch, extents.m, extents.n, extents.k],
        "microseconds": [[position[digest], time] for digest, time in problem.ranked],
    }
    if problem.stopped:
        record["stopped"] = [[position[digest], time] for digest, time in problem.stopped]
    if problem.failed:
        record["failed"] = sorted([position[digest], reason] for digest, reason in problem.failed)
    if problem.sm_mhz is not None:
        record["sm_mhz"] = problem.sm_mhz
    if problem.memory_mhz is not None:
        record["memory_mhz"] = problem.memory_mhz
    return record


def _spread(clocks: list[int | None]) -> dict[str, int] | None:
    known = [clock for clock in clocks if clock is not None]
    if not known:
        return None
    return {"min": min(known), "median": statistics.median_low(known), "max": max(known)}


def _rendered(value: Any, depth: int = 0) -> str:
    """JSON with sorted keys: a line an item in the outer levels, compact within."""
    if depth == _EXPANDED_DEPTH or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    outer, inner = " " * depth, " " * (depth + 1)
    if isinstance(value, list):
        items = [inner + _rendered(item, depth + 1) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{outer}]"
    items = [f"{inner}{json.dumps(key)}: {_rendered(value[key], depth + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(items) + f"\n{outer}}}"


# -- reading ------------------------------------------------------------------------------------------------


def _envelope(data: bytes, what: str) -> dict[str, Any]:
    if len(data) > MAX_TUNING_BYTES:
        raise CorruptFile(f"{what} is larger than {MAX_TUNING_BYTES} bytes: expected a tuning file")
    try:
        record = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{what} is not readable JSON ({error}): {_AGAIN}") from None
    if not isinstance(record, dict) or record.get("kind") != TUNING_KIND:
        found = record.get("kind") if isinstance(record, dict) else type(record).__name__
        raise CorruptFile(
            f"{what} is not a tuning file (found kind {shown(found)}, expected {TUNING_KIND!r})"
        )
    check_schema(record.get("schema"), TUNING_SCHEMA, what)
    return record


def _group(record: Any) -> TunedGroup:
    kernels = tuple(
        TunedKernel(_digest(item["digest"]), _digest(item["object_sha256"]), _text(item["name"]))
        for item in record["kernels"]
    )
    _once([kernel.digest for kernel in kernels], "kernel")
    digests = [kernel.digest for kernel in kernels]
    problems = tuple(_problem(item, digests) for item in record["problems"])
    _once([problem.extents for problem in problems], "problem")
    return TunedGroup(_digest(record["digest"]), _text(record["name"]), kernels, problems)


def _problem(record: Any, digests: list[str]) -> TunedProblem:
    batch, m, n, k = (_whole(extent, MAX_EXTENT) for extent in record["extents"])
    problem = TunedProblem(
        Extents(batch, m, n, k),
        _times(record["microseconds"], digests),
        _times(record.get("stopped", []), digests),
        tuple((_at(digests, position), _text(reason)) for position, reason in record.get("failed", [])),
        _clock(record.get("sm_mhz")),
        _clock(record.get("memory_mhz")),
    )
    _once(
        [digest for digest, _ in (*problem.ranked, *problem.stopped, *problem.failed)], "kernel of a problem"
    )
    return problem


def _times(record: Any, digests: list[str]) -> Times:
    times = tuple((_at(digests, position), _positive(time)) for position, time in record)
    if any(second[1] < first[1] for first, second in pairwise(times)):
        raise ValueError("times are not in order, best first")
    return times


def _at(digests: list[str], position: Any) -> str:
    return digests[_whole(position, len(digests) - 1, least=0)]


def _clock(value: Any) -> int | None:
    return None if value is None else _whole(value, 1_000_000)


def _whole(value: Any, most: int, *, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"expected a whole number from {least} to {most}, found {value!r}")
    return value


def _positive(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"expected a number, found {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"expected a number above 0, found {value!r}")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {value!r}")
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise ValueError(f"expected a SHA-256 in hexadecimal, found {value!r}")
    return value


def _once(items: list[Any], what: str) -> None:
    if len(set(items)) != len(items):
        raise ValueError(f"a {what} is there twice")
