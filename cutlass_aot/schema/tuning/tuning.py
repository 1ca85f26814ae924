"""The tuning file: the time of each kernel of a bundle for each problem on one GPU, as JSON, a row a line.

It is valid for the GPU model and the code that were measured. A kernel is named by the digest of its record
and by that of its object, because another compiler makes code of another speed from the same record.
:mod:`~cutlass_aot.schema.tuning.tuned` checks whether a file is valid.
"""

import json
import math
import os
import statistics
import tempfile
from collections.abc import Container, Mapping, Sequence
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
from cutlass_aot.schema.tuning.costs import FORMULA, MAX_FORMULA, Costs, Machine, Regression
from cutlass_aot.schema.tuning.ranking import MAX_EXTENT, Extents

TUNING_KIND = "cutlass-aot tuning"
TUNING_SCHEMA = 4
MAX_TUNING_BYTES = 1 << 26
_EXPANDED_DEPTH = 4
"""Levels of the JSON with one item a line: the file, its groups, a group, its kernels and problems."""


def _check_order(times: "Times") -> None:
    if any(second[1] < first[1] for first, second in pairwise(times)):
        raise ValueError("times are not in order, best first")


def _check_extents(extents: Extents) -> None:
    if not all(1 <= extent <= MAX_EXTENT for extent in extents):
        raise ValueError(f"expected whole numbers from 1 to {MAX_EXTENT}, found {extents}")


def _check_once(items: list[Any], what: str) -> None:
    if len(set(items)) != len(items):
        raise ValueError(f"a {what} is there twice")


Positive = Annotated[float, within(1e-6, 1e12)]
Clock = Annotated[int, within(1, 1_000_000)]
"""In MHz."""

Formula = Annotated[int, within(1, MAX_FORMULA)]

Times = tuple[tuple[Digest, Positive], ...]
"""Digest of a kernel and its time in microseconds."""


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel that was measured.

    ``digest`` is that of its record (:attr:`cutlass_aot.schema.kernels.kernel.Kernel.digest`),
    ``object_sha256`` that of the measured code, and ``costs`` are the constants of the cost model that were
    fitted to its times.
    """

    digest: Digest
    object_sha256: Digest
    name: str
    costs: Annotated[Costs | None, OMIT] = None


@dataclass(frozen=True, slots=True)
class TunedProblem:
    """The measurements of one problem.

    Attributes:
        ranked: kernels that were measured to the end, best first.
        stopped: kernels whose measurement was stopped early because they were far slower; best first.
        failed: kernels that gave a wrong result or could not be launched, with the reason; by digest.
        sm_mhz: clock of the multiprocessors during the measurement, None if not known.
        memory_mhz: clock of the memory, None if not known.
    """

    extents: Annotated[Extents, Check(_check_extents)]
    ranked: Annotated[Times, Key("microseconds"), Check(_check_order)]
    stopped: Annotated[Times, OMIT, Check(_check_order)] = ()
    failed: Annotated[tuple[tuple[Digest, str], ...], OMIT] = ()
    sm_mhz: Annotated[Clock | None, OMIT] = None
    memory_mhz: Annotated[Clock | None, OMIT] = None

    @property
    def kernels(self) -> frozenset[str]:
        """Digests of all kernels that were tried, failed ones too."""
        return frozenset(digest for digest, _ in (*self.ranked, *self.stopped, *self.failed))

    def among(self, digests: Container[str]) -> "TunedProblem":
        """The measurements of some kernels alone."""
        return self.renamed({digest: digest for digest in self.kernels if digest in digests})

    def renamed(self, names: Mapping[str, str]) -> "TunedProblem":
        """The measurements of some kernels alone, under other digests by their own."""
        ranked, stopped = (
            tuple((names[digest], time) for digest, time in times if digest in names)
            for times in (self.ranked, self.stopped)
        )
        failed = tuple((names[digest], reason) for digest, reason in self.failed if digest in names)
        return replace(self, ranked=ranked, stopped=stopped, failed=failed)

    def validate(self) -> None:
        """Refuse a kernel that occurs twice."""
        digests = [digest for digest, _ in (*self.ranked, *self.stopped, *self.failed)]
        _check_once(digests, "kernel of a problem")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How well fits of the cost model choose on problems whose (n, k) they did not know.

    Attributes:
        problems: on which they were tried.
        folds: fits, each without one part of the (n, k).
        mean: geometric mean of the regret, the time of the kernel taken over that of the fastest.
        p95: the regret that 95% of the problems do not exceed.
        worst: the highest regret.
    """

    problems: int
    folds: int
    mean: float
    p95: float
    worst: float

    @classmethod
    def of(cls, regrets: Sequence[float], folds: int) -> "Accuracy":
        """The accuracy by the regret at each problem, of which there is at least one."""
        ordered = sorted(regrets)
        return cls(
            problems=len(ordered),
            folds=folds,
            mean=round(math.exp(math.fsum(map(math.log, ordered)) / len(ordered)), 4),
            p95=round(ordered[math.ceil(0.95 * len(ordered)) - 1], 4),
            worst=round(ordered[-1], 4),
        )

    def __str__(self) -> str:
        return (
            f"regret {self.mean:.3f}, 95% of the problems below {self.p95:.2f}, at worst {self.worst:.2f}, "
            f"on {self.problems} problems whose n and k were left out"
        )


@dataclass(frozen=True, slots=True)
class FittedModel:
    """What a fit says beside the constants of each kernel.

    Attributes:
        regression: gives the constants of other kernels.
        accuracy: None for too few problems.
        formula: the :data:`~.costs.FORMULA` that was fitted.
    """

    regression: Regression
    accuracy: Annotated[Accuracy | None, OMIT] = None
    formula: Annotated[int, within(FORMULA, FORMULA)] = FORMULA


@dataclass(frozen=True, slots=True)
class TunedGroup:
    """The measurements of one group, whose digest is :attr:`cutlass_aot.schema.kernels.kernel.Kernel.group`.

    The file has the kernels in order of their names and the problems in order of their extents. ``model`` is
    the cost model fitted to them, None if none was. ``other_formula`` is the formula of a cost model that the
    file has, where it is not that of today: its constants may be others, and are not read.
    """

    digest: Digest
    name: str
    kernels: tuple[TunedKernel, ...]
    problems: tuple[TunedProblem, ...]
    model: Annotated[FittedModel | None, OMIT] = None
    other_formula: Annotated[Formula | None, OMIT] = None

    def validate(self) -> None:
        """Refuse no kernels, what occurs twice, and a model without the constants of a kernel."""
        if not self.kernels:
            raise ValueError("a group without kernels")
        if self.model is not None and any(kernel.costs is None for kernel in self.kernels):
            raise ValueError("a kernel has no costs, though a model was fitted")
        if self.other_formula is not None and (self.model is not None or self.other_formula == FORMULA):
            raise ValueError("a cost model of another formula beside one of today's, or of today's")
        _check_once([kernel.digest for kernel in self.kernels], "kernel")
        _check_once([problem.extents for problem in self.problems], "problem")


_COLUMNS = ("microseconds", "stopped", "failed")
"""Fields of a problem that name kernels, in the file by position in the group's list."""


def _with_positions(cls: Any) -> Codec:
    """A codec of groups whose problems name kernels by position; kernels and problems are written sorted."""
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
        machine: its multiprocessors, clock and memory bandwidth.
        compute_capability: such as ``9.0``.
        driver: release of the driver, None if not known.
        cuda: CUDA version of the driver, such as ``13.0``.
        power_limit_watts: power limit of the GPU, None if not known.
        date: of the last measurement, such as ``2026-11-21``.
        bundle: name and version of the bundle, for a reader.
        versions: name to version of what measured (``cutlass-aot``, ``torch``, ``apache-tvm-ffi``) and what
            built the kernels (the compiler's packages, and ``toolchain``, its fingerprint).
    """

    gpu: str
    machine: Machine
    compute_capability: str
    driver: str | None
    cuda: str
    power_limit_watts: Positive | None
    date: str
    bundle: str
    versions: Mapping[str, str]
    groups: tuple[Annotated[TunedGroup, Form(_with_positions)], ...] = ()

    def validate(self) -> None:
        """Refuse a group that occurs twice."""
        _check_once([group.digest for group in self.groups], "group")

    def to_bytes(self) -> bytes:
        """The file. Equal tunings give equal bytes."""
        groups = sorted(self.groups, key=lambda group: (group.name, group.digest))
        problems = [problem for group in groups for problem in group.problems]
        # For a person; from_bytes ignores it, because each problem has its own clocks.
        clocks = {
            "sm_mhz": _spread([problem.sm_mhz for problem in problems]),
            "memory_mhz": _spread([problem.memory_mhz for problem in problems]),
        }
        record = to_plain(replace(self, groups=tuple(groups)))
        return (_rendered({**record, "clocks": clocks}) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "Tuning":
        """Read what :meth:`to_bytes` gave."""
        if len(data) > MAX_TUNING_BYTES:
            raise CorruptFile(f"{what} is larger than {MAX_TUNING_BYTES} bytes: expected a tuning file")
        record = decode_json(data, what, _AGAIN)
        if isinstance(record, dict):
            record.pop("clocks", None)
            for group in _items(record, "groups"):
                _drop_other_model(group)
        return from_plain(cls, record, what, _AGAIN)


def _drop_other_model(group: dict[str, Any]) -> None:
    """Take constants of another formula than today's out of the plain data of a group.

    Without a model, nothing says of which formula a kernel's constants are.
    """
    model = group.get("model")
    if isinstance(model, dict):
        # Files from before it was written have the first.
        formula = model.get("formula", 1)
        if formula == FORMULA or type(formula) is not int or not 1 <= formula <= MAX_FORMULA:
            return  # To be read, or to be refused.
        del group["model"]
        group["other_formula"] = formula
    for kernel in _items(group, "kernels"):
        kernel.pop("costs", None)


def _items(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The maps in a list of untrusted plain data."""
    found = record.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


_AGAIN = "fetch it again, or measure again with cutlass-aot tune --force"


def read_tuning(path: Path) -> Tuning:
    """Read a tuning file of at most 67.1 MB; TuningError if it is missing or unreadable."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TUNING_BYTES + 1)
    except OSError as error:
        raise TuningError(f"{path}: the tuning file cannot be read: {error.strerror}") from None
    return Tuning.from_bytes(data, str(path))


def write_tuning(tuning: Tuning, path: Path) -> None:
    """Write a tuning file atomically; if it cannot be written (TuningError), the old file stays."""
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
    """JSON with sorted keys: one item a line in the outer levels, inner levels on one line."""
    if depth == _EXPANDED_DEPTH or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    outer, inner = " " * depth, " " * (depth + 1)
    if isinstance(value, list):
        items = [inner + _rendered(item, depth + 1) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{outer}]"
    items = [f"{inner}{json.dumps(key)}: {_rendered(value[key], depth + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(items) + f"\n{outer}}}"
