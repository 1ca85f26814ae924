"""The tuning file: what each kernel of a bundle took for each problem, on one GPU. JSON, one row a line.

It holds for the GPU model it was measured on, and for the very code that was measured: a kernel is named by
the digest of its record and by that of its object, because another compiler makes code of another speed
from the same record. :mod:`~cutlass_aot.schema.tuning.tuned` says what a file is good for.
"""

import json
import math
import os
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from cutlass_aot.errors import CorruptFile, TuningError
from cutlass_aot.schema.codec import (
    OMIT,
    Check,
    Codec,
    Digest,
    Form,
    Key,
    codec_of,
    from_plain,
    header,
    to_plain,
    within,
)
from cutlass_aot.schema.encoding import decode_json, shown
from cutlass_aot.schema.kernels.operands import MAX_EXTENT
from cutlass_aot.schema.tuning.ranking import Extents

TUNING_KIND = "cutlass-aot tuning"
TUNING_SCHEMA = 1
MAX_TUNING_BYTES = 1 << 26
_EXPANDED_DEPTH = 4
"""Levels of the file that have a line an item: the file, its groups, a group, its kernels and problems."""


def _check_positive(value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"expected a number above 0, found {value!r}")


def _check_order(times: "Times") -> None:
    if any(second[1] < first[1] for first, second in pairwise(times)):
        raise ValueError("times are not in order, best first")


def _check_extents(extents: Extents) -> None:
    if not all(1 <= extent <= MAX_EXTENT for extent in extents):
        raise ValueError(f"expected whole numbers from 1 to {MAX_EXTENT}, found {extents}")


def _check_once(items: list[Any], what: str) -> None:
    if len(set(items)) != len(items):
        raise ValueError(f"a {what} is there twice")


Positive = Annotated[float, Check(_check_positive)]
Clock = Annotated[int, within(1, 1_000_000)]
"""In MHz."""

Times = tuple[tuple[Digest, Positive], ...]
"""Digest of a kernel and its time in microseconds."""


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel that was measured.

    Attributes:
        digest: of its record (:attr:`cutlass_aot.schema.kernels.kernel.Kernel.digest`).
        object_sha256: digest of the compiled object, which is what the time belongs to.
        name: readable name.
    """

    digest: Digest
    object_sha256: Digest
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

    extents: Annotated[Extents, Check(_check_extents)]
    ranked: Annotated[Times, Key("microseconds"), Check(_check_order)]
    stopped: Annotated[Times, OMIT, Check(_check_order)] = ()
    failed: Annotated[tuple[tuple[Digest, str], ...], OMIT] = ()
    sm_mhz: Annotated[Clock | None, OMIT] = None
    memory_mhz: Annotated[Clock | None, OMIT] = None

    @property
    def kernels(self) -> frozenset[str]:
        """Digests of all kernels that were tried."""
        return frozenset(digest for digest, _ in (*self.ranked, *self.stopped, *self.failed))

    def validate(self) -> None:
        """Raise ValueError for a kernel that is there twice."""
        digests = [digest for digest, _ in (*self.ranked, *self.stopped, *self.failed)]
        _check_once(digests, "kernel of a problem")


@dataclass(frozen=True, slots=True)
class TunedGroup:
    """What was measured of one group.

    Attributes:
        digest: of the group (:attr:`cutlass_aot.schema.kernels.kernel.Kernel.group`).
        name: readable name.
        kernels: those that were tried, by name.
        problems: by extents, each once.
    """

    digest: Digest
    name: str
    kernels: tuple[TunedKernel, ...]
    problems: tuple[TunedProblem, ...]

    def validate(self) -> None:
        """Raise ValueError for a kernel or a problem that is there twice."""
        _check_once([kernel.digest for kernel in self.kernels], "kernel")
        _check_once([problem.extents for problem in self.problems], "problem")


_COLUMNS = ("microseconds", "stopped", "failed")
"""What a problem says of kernels: each by its position in the group's list."""


def _with_positions(cls: Any) -> Codec:
    """Groups whose problems name kernels by their positions; everything in order."""
    codec = codec_of(cls)

    def read(data: Any, what: str) -> TunedGroup:
        digests = [kernel["digest"] for kernel in data["kernels"]]
        problems = [
            problem
            | {
                column: [[_at(digests, position), value] for position, value in problem[column]]
                for column in _COLUMNS
                if column in problem
            }
            for problem in data["problems"]
        ]
        group: TunedGroup = codec.read({**data, "problems": problems}, what)
        return group

    def write(group: TunedGroup) -> dict[str, Any]:
        kernels = sorted(group.kernels, key=lambda kernel: (kernel.name, kernel.digest))
        problems = sorted(group.problems, key=lambda problem: problem.extents)
        plain: dict[str, Any] = codec.to_plain(
            replace(group, kernels=tuple(kernels), problems=tuple(problems))
        )
        positions = {kernel.digest: index for index, kernel in enumerate(kernels)}
        for problem in plain["problems"]:
            for column in _COLUMNS:
                if column in problem:
                    problem[column] = [[positions[digest], value] for digest, value in problem[column]]
            if "failed" in problem:
                problem["failed"].sort()
        return plain

    return Codec(read, write, codec.plain)


def _at(digests: list[Any], position: Any) -> Any:
    if type(position) is not int or not 0 <= position < len(digests):
        raise ValueError(f"expected a whole number from 0 to {len(digests) - 1}, found {shown(position)}")
    return digests[position]


@header(TUNING_SCHEMA, TUNING_KIND)
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
    power_limit_watts: Positive | None
    date: str
    bundle: str
    versions: Mapping[str, str]
    groups: tuple[Annotated[TunedGroup, Form(_with_positions)], ...] = ()

    def validate(self) -> None:
        """Raise ValueError for a group that is there twice."""
        _check_once([group.digest for group in self.groups], "group")

    def to_bytes(self) -> bytes:
        """The file: equal tunings give equal bytes."""
        groups = sorted(self.groups, key=lambda group: (group.name, group.digest))
        problems = [problem for group in groups for problem in group.problems]
        # For a reader; they are in the problems, and taken from there.
        clocks = {
            "sm_mhz": _spread([problem.sm_mhz for problem in problems]),
            "memory_mhz": _spread([problem.memory_mhz for problem in problems]),
        }
        record = to_plain(replace(self, groups=tuple(groups)))
        return (_rendered({**record, "clocks": clocks}) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "Tuning":
        """Read what :meth:`to_bytes` gave.

        Raises:
            CorruptFile: if it is truncated, too large or malformed.
            SchemaTooNew: if a newer release wrote it.
        """
        if len(data) > MAX_TUNING_BYTES:
            raise CorruptFile(f"{what} is larger than {MAX_TUNING_BYTES} bytes: expected a tuning file")
        record = decode_json(data, what, _AGAIN)
        if isinstance(record, dict):
            record.pop("clocks", None)
        return from_plain(cls, record, what, _AGAIN)


_AGAIN = "fetch it again, or measure again with cutlass-aot tune --force"


def read_tuning(path: Path) -> Tuning:
    """Read a tuning file of at most 64 MiB.

    Raises:
        TuningError: if it is missing or unreadable.
        CorruptFile: if it is not a tuning file, or damaged.
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
