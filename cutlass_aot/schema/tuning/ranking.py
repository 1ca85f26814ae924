"""Rankings: the kernels of a group by speed for each problem, measured on a GPU or modelled at build time.

A measured ranking also has the constants of the cost model that was fitted to the measurements, for every
kernel of the group.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence, Sized
from functools import cached_property
from itertools import accumulate, repeat
from math import inf, log2
from operator import lt
from typing import Any

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.schema.codec import check_lines, from_plain, row
from cutlass_aot.schema.encoding import MALFORMED, seal, shown, unseal
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.operands import extent_names
from cutlass_aot.schema.kernels.tiling import are_of_gemm
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.tuning.costs import FORMULA, MAX_FORMULA, Costs, Machine, check_costs

RANKING_KIND = "cutlass-aot ranking"
RANKING_SCHEMA = 7
MAX_EXTENT = 2**63 - 1
"""Of a problem; operands say how many bits their extents have (:attr:`~.OperandConstraint.max_extent`)."""

_COSTS = struct.Struct(f"<{len(Costs._fields)}f")
"""The constants of one kernel in the file, as IEEE 754 single precision."""

MOST_KERNELS = 1 << 16
"""Of a ranking: problems name kernels by positions of 16 bits."""

_COLUMNS = {"extents": "q", "counts": "I", "positions": "H", "seconds": "f", "slower": "B"}
"""What the file has of all problems, in their order, with the format of a number: batch, m, n and k; how many
kernels a problem has; the position of each of these; if they were measured, the time of each; and, a bit for
each kernel of the ranking, which were slower. Little-endian, the bit of the first kernel lowest."""

_ROW = struct.Struct("<4q")


@row
class Extents(NamedTuple):
    """Extents of a GEMM: ``batch`` products of (m, k) by (k, n)."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def by_name(self) -> dict[str | int, int]:
        """Extents by their names in operand constraints."""
        return {"L": self.batch, "M": self.m, "N": self.n, "K": self.k}

    def like(self, other: "Extents") -> "Extents":
        """Extents of another problem of the same operation, as it is to be named."""
        return other

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k}"
        return text if self.batch == 1 else f"{self.batch} of {text}"


MOST_NAMES = 4
"""Extents that tell problems of an operation apart."""


class OwnExtents(Extents):
    """Extents of an operation that is not a GEMM, under its own names, of which there are at most four.

    They stand in the places of m, n, k and batch, in the order of their names in the operands, and are equal
    to such extents of a GEMM. :func:`problem_of` makes those of a kernel.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, extents: Mapping[str, int]) -> "OwnExtents":
        """Extents by name; those beyond the fourth are left out."""
        m, n, k, batch = (*list(extents.values())[:MOST_NAMES], 1, 1, 1, 1)[:MOST_NAMES]
        made = cls(batch, m, n, k)
        made.names = tuple(extents)[:MOST_NAMES]
        return made

    @property
    def by_name(self) -> dict[str | int, int]:
        """Extents by their names in operand constraints."""
        return dict(zip(self.names, (self.m, self.n, self.k, self.batch), strict=False))

    def like(self, other: Extents) -> Extents:
        """Extents of another problem of the same operation, as it is to be named."""
        places = (other.m, other.n, other.k, other.batch)
        return OwnExtents.of(dict(zip(self.names, places, strict=False)))

    def __str__(self) -> str:
        return ", ".join(f"{name} = {extent}" for name, extent in self.by_name.items())


GEMM_NAMES = ("L", "M", "N", "K")
"""Names of :class:`Extents` in operand constraints, in its order."""


def problem_names(operands: Sequence[OperandConstraint]) -> tuple[str, ...]:
    """Names of the extents that tell apart the problems of kernels with these operands.

    They are those of a GEMM where the cost model knows the operands as those of one.
    """
    return GEMM_NAMES if are_of_gemm(operands) else tuple(extent_names(operands)[:MOST_NAMES])


def problem_of(operands: Sequence[OperandConstraint], extents: Mapping[str, int]) -> Extents:
    """The problem of these extents by name, as rankings of kernels with these operands have it.

    Whoever measures and whoever looks up a time asks here. A name of a GEMM that the operands do not have is
    1.
    """
    if are_of_gemm(operands):
        return Extents(*map(extents.get, GEMM_NAMES, repeat(1)))
    return OwnExtents.of({name: extents[name] for name in extent_names(operands)})


class RankedProblem(NamedTuple):
    """The kernels of one group for one problem, best first; kernels that are not listed rank last.

    ``kernels`` has the digests (:attr:`~.Kernel.digest`) of at least one. ``seconds`` has the measured time
    of each, ascending, or is empty where nothing was measured. ``slower`` has the kernels that were measured
    too, and took longer than each of these.
    """

    extents: Extents
    kernels: tuple[str, ...]
    seconds: tuple[float, ...] = ()
    slower: frozenset[str] = frozenset()


class Columns(NamedTuple):
    """The problems of a file, each decoded when it is needed: a process's first launch waits for the file.

    Attributes:
        extents: of the problems, as the file has them.
        ends: of each problem, how many kernels it and those before it have.
        positions: of the kernels, among ``digests``; see :data:`_COLUMNS`.
        seconds: their times; empty where nothing was measured.
        slower: the kernels that were slower; empty where nothing was measured.
        digests: of the kernels that the positions and bits mean.
    """

    extents: bytes
    ends: Sequence[int]
    positions: bytes
    seconds: bytes
    slower: bytes
    digests: Sequence[str]

    @classmethod
    def of(cls, body: Mapping[str, bytes], measured: bool, digests: Sequence[str]) -> "Columns":
        """Check the sizes of the columns; ValueError, TypeError or KeyError if they are malformed."""
        columns = [body[name] for name in _COLUMNS]
        if not set(map(type, columns)) <= {bytes}:
            raise TypeError("a column of the problems is not bytes")
        extents, counts, positions, seconds, slower = columns
        count = len(extents) // _ROW.size
        if (len(extents), len(counts)) != (_ROW.size * count, 4 * count):
            raise ValueError("the problems have other numbers of extents and of counts")
        ends = list(accumulate(struct.unpack(f"<{count}I", counts)))
        total = ends[-1] if ends else 0
        if len(positions) != 2 * total or len(seconds) != (4 * total if measured else 0):
            raise ValueError("the problems have other numbers of kernels, positions and times")
        if len(slower) != (count * _bytes_of_bits(digests) if measured else 0):
            raise ValueError("the problems have other numbers of bits than of kernels")
        return cls(extents, ends, positions, seconds, slower, digests)

    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The extents of all problems; ValueError if they are malformed."""
        rows = tuple(_ROW.iter_unpack(self.extents))
        if rows and min(map(min, rows)) < 1:
            raise ValueError("an extent of a problem is below 1")
        if not all(map(lt, rows, rows[1:])):
            raise ValueError("problems are not in order, or one is ranked twice")
        return rows

    def number(self, extents: tuple[int, ...]) -> int | None:
        """The number of the problem of these extents, None if there is none."""
        if max(extents) > MAX_EXTENT:
            return None
        row = _ROW.pack(*extents)
        at = self.extents.find(row)
        while at % _ROW.size and at > 0:
            # What looks like a row begins within one.
            at = self.extents.find(row, at + 1)
        return None if at < 0 else at // _ROW.size

    def problem(self, number: int, extents: Extents) -> RankedProblem:
        """Decode a problem; ValueError or IndexError if it is malformed."""
        start, end = self.ends[number - 1] if number else 0, self.ends[number]
        places = struct.unpack_from(f"<{end - start}H", self.positions, 2 * start)
        times = struct.unpack_from(f"<{end - start}f", self.seconds, 4 * start) if self.seconds else ()
        if not places or len(set(places)) != len(places):
            raise ValueError(f"the problem {extents} has no kernels, or one twice")
        if not all(0 < time < inf for time in times) or list(times) != sorted(times):
            raise ValueError(f"the times of the problem {extents} are impossible, or not in order")
        kernels = tuple(self.digests[place] for place in places)
        width = _bytes_of_bits(self.digests) if self.slower else 0
        bits = int.from_bytes(self.slower[width * number : width * (number + 1)], "little")
        slower = frozenset(digest for place, digest in enumerate(self.digests) if bits >> place & 1)
        if bits >> len(self.digests) or not slower.isdisjoint(kernels):
            raise ValueError(f"a slower kernel of the problem {extents} is none, or has a time")
        return RankedProblem(extents, kernels, times, slower)


def _packed(
    problems: Sequence[RankedProblem], position: Mapping[str, int], measured: bool
) -> dict[str, bytes]:
    """The columns of problems; ``position`` has that of each kernel by its digest."""
    width = _bytes_of_bits(position) if measured else 0
    columns: tuple[Sequence[float], ...] = (
        [extent for problem in problems for extent in problem.extents],
        [len(problem.kernels) for problem in problems],
        [position[digest] for problem in problems for digest in problem.kernels],
        [seconds for problem in problems for seconds in problem.seconds],
        b"".join(
            sum(1 << position[digest] for digest in problem.slower).to_bytes(width, "little")
            for problem in problems
        ),
    )
    return {
        name: struct.pack(f"<{len(column)}{form}", *column)
        for (name, form), column in zip(_COLUMNS.items(), columns, strict=True)
    }


def _bytes_of_bits(digests: Sized) -> int:
    """Bytes of a problem in the column of slower kernels."""
    return (len(digests) + 7) // 8


class RankedProblems(Sequence[RankedProblem]):
    """The problems of a ranking in order of their extents; those of a file are decoded when they are needed.

    Args:
        problems: no two have the same extents.
        encoded: those of a file, in place of ``problems``.
        what: names the file in errors.
    """

    def __init__(
        self,
        problems: Iterable[RankedProblem] = (),
        encoded: Columns | None = None,
        what: str = "ranking",
    ) -> None:
        self._decoded: dict[tuple[int, ...], RankedProblem] = {own.extents: own for own in problems}
        self._encoded = encoded
        self._what = what

    @cached_property
    def extents(self) -> tuple[tuple[int, ...], ...]:
        """Batch, m, n and k of each; CorruptFile if they are malformed."""
        if self._encoded is None:
            return tuple(sorted(self._decoded))
        try:
            return self._encoded.rows()
        except ValueError as error:
            raise CorruptFile(f"{self._what} is malformed: {error!r}") from None

    @cached_property
    def logarithms(self) -> tuple[tuple[float, ...], ...]:
        """Logarithms of the extents of each to base 2; CorruptFile if they are malformed."""
        return tuple(tuple(map(log2, extents)) for extents in self.extents)

    @property
    def columns(self) -> Columns:
        """The problems as a file has them; those of no file are encoded anew each time."""
        if self._encoded is not None:
            return self._encoded
        problems, digests = list(self), sorted(self.kernels)
        position = {digest: index for index, digest in enumerate(digests)}
        measured = any(problem.seconds for problem in problems)
        return Columns.of(_packed(problems, position, measured), measured, digests)

    @property
    def kernels(self) -> frozenset[str]:
        """Digests of the kernels that the problems can name."""
        named = (
            digest for problem in self._decoded.values() for digest in (*problem.kernels, *problem.slower)
        )
        return frozenset((*(self._encoded.digests if self._encoded is not None else ()), *named))

    def find(self, extents: tuple[int, ...]) -> RankedProblem | None:
        """The problem of these extents, None if there is none; CorruptFile if it is malformed."""
        found = self._decoded.get(extents)
        number = None if found is not None or self._encoded is None else self._encoded.number(extents)
        if self._encoded is not None and number is not None:
            try:
                found = self._decoded[extents] = self._encoded.problem(number, Extents(*extents))
            except MALFORMED as error:
                raise CorruptFile(f"{self._what} is malformed: {error!r}") from None
        return found

    def __len__(self) -> int:
        return len(self.extents if self._encoded is None else self._encoded.ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.find(extents) for extents in self.extents[index]]
        return self.find(self.extents[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankedProblems) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self.extents)


class Ranking(NamedTuple):
    """The speed of one group's kernels on one GPU model.

    Attributes:
        group: digest of the group (:attr:`cutlass_aot.schema.kernels.kernel.Kernel.group`).
        gpu: model of the GPU; as the driver names it (``NVIDIA H200``), if measured.
        measured: measured on that GPU, else modelled at build time.
        origin: text for a reader, such as ``tuned 2026-11-21 on NVIDIA H200``, and how well the cost model
            chooses.
        problems: a time for each kernel that a problem names if measured, else none.
        machine: the GPU's multiprocessors, clock and bandwidth; None if no cost model was fitted.
        costs: the constants of each kernel of the group by its digest, sorted; empty without a cost model.
        formula: the :data:`~.costs.FORMULA` that the constants are of. Those of another are not read: the
            times count alone, as if no cost model had been fitted, and ``origin`` says so.
        measured_as: name of the group whose kernels were measured in place of these, which differ from them
            by element types of the same width; ``""`` if these were measured.
    """

    group: str
    gpu: str
    measured: bool
    origin: str
    problems: RankedProblems
    machine: Machine | None = None
    costs: tuple[tuple[str, Costs], ...] = ()
    formula: int = FORMULA
    measured_as: str = ""

    @property
    def precedence(self) -> int:
        """Of two for a group and a GPU model: own times go before times of others, these before constants."""
        return 0 if not self.problems else 1 if self.measured_as else 2

    @property
    def kernels(self) -> frozenset[str]:
        """Digests of all kernels that it names."""
        return self.problems.kernels.union(digest for digest, _ in self.costs)

    def to_bytes(self) -> bytes:
        """The file in a bundle. Digests are written once; problems name kernels by position in that list.

        BundleError if there are too many kernels, or not a time for each kernel of a problem.
        """
        digests = sorted(self.kernels)
        if len(digests) > MOST_KERNELS:
            raise BundleError(
                f"the ranking of group {self.group[:12]} for {self.gpu} has {len(digests)} kernels, expected "
                f"at most {MOST_KERNELS}: split the group, e.g. with a cap in the manifest"
            )
        position = {digest: index for index, digest in enumerate(digests)}
        body = {
            "group": self.group,
            "gpu": self.gpu,
            "measured": self.measured,
            "origin": self.origin,
            "kernels": digests,
            "problems": self._checked_columns(position),
            "machine": None if self.machine is None else list(self.machine),
            "costs": b"".join(_COSTS.pack(*costs) for _, costs in self.costs),
            "formula": self.formula,
            "measured_as": self.measured_as,
        }
        return seal(RANKING_KIND, RANKING_SCHEMA, body)

    def _checked_columns(self, position: Mapping[str, int]) -> dict[str, bytes]:
        """The columns of the problems; positions of kernels by digest."""
        for problem in self.problems:
            timed = len(problem.kernels) if self.measured else 0
            if len(problem.seconds) != timed or (problem.slower and not timed):
                raise BundleError(
                    f"the ranking of group {self.group[:12]} for {self.gpu}: {problem.extents} has other "
                    "numbers of kernels and times"
                )
            if not problem.kernels or not problem.slower.isdisjoint(problem.kernels):
                raise BundleError(
                    f"the ranking of group {self.group[:12]} for {self.gpu}: {problem.extents} has no "
                    "kernel, or one that is among the slower ones too"
                )
        return _packed(self.problems, position, self.measured)

    @classmethod
    def from_bytes(cls, data: bytes, what: str, *, verified: bool = False) -> "Ranking":
        """Read what :meth:`to_bytes` gave, or CorruptFile. A malformed problem is refused when it is needed.

        Of data that were ``verified`` as a whole, the digest is not computed again.
        """
        body = unseal(data, RANKING_KIND, RANKING_SCHEMA, what, verified=verified)
        try:
            digests = _digests(body["kernels"])
            measured = bool(body["measured"])
            machine = None if body["machine"] is None else from_plain(Machine, body["machine"], what)
            formula, origin = _formula(body["formula"]), str(body["origin"])
            if machine is None or formula == FORMULA:
                costs = _costs(body["costs"], digests)
            else:
                # Not decoded either: another formula may have other constants.
                machine, costs = None, ()
                origin += f"; its cost model is of formula {formula} and not used: this release has {FORMULA}"
            if bool(costs) != (machine is not None):
                raise ValueError("a cost model without a GPU, or a GPU without one")
            check_lines(str(body["gpu"]), str(body["origin"]), str(body["measured_as"]))
            return cls(
                group=str(body["group"]),
                gpu=str(body["gpu"]),
                measured=measured,
                origin=origin,
                problems=RankedProblems((), Columns.of(body["problems"], measured, digests), what),
                machine=machine,
                costs=costs,
                formula=formula,
                measured_as=str(body["measured_as"]),
            )
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None


def _formula(given: Any) -> int:
    if type(given) is not int or not 1 <= given <= MAX_FORMULA:
        raise ValueError(f"formula {shown(given)}")
    return given


def _digests(given: Any) -> list[str]:
    digests = [bytes.fromhex(digest).hex() for digest in given]
    if digests != sorted(set(digests)):
        raise ValueError("digests are not in order, or one is there twice")
    return digests


def _costs(data: bytes, digests: list[str]) -> tuple[tuple[str, Costs], ...]:
    if len(data) not in (0, len(digests) * _COSTS.size):
        raise ValueError("not as many constants as kernels")
    found = tuple(map(Costs._make, _COSTS.iter_unpack(data)))
    check_costs(found)
    return tuple(zip(digests, found, strict=True)) if found else ()


def holds_for(gpu: str, measured: bool) -> str:
    """The GPU model of a ranking and whether it was measured, as text."""
    return f"{gpu}, {'measured' if measured else 'modelled'}"
