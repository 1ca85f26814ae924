"""Rankings: the kernels of a group by speed for each problem, measured on a GPU or modelled at build time.

A measured ranking also has the constants of the cost model that was fitted to the measurements, for every
kernel of the group.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from math import inf
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
RANKING_SCHEMA = 5
MAX_EXTENT = 2**63 - 1
"""Of a problem; operands say how many bits their extents have (:attr:`~.OperandConstraint.max_extent`)."""

_COSTS = struct.Struct(f"<{len(Costs._fields)}f")
"""The constants of one kernel in the file, as IEEE 754 single precision."""

MOST_KERNELS = 1 << 16
"""Of a ranking: problems name kernels by positions of 16 bits."""


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
    of each, ascending, or is empty where nothing was measured.
    """

    extents: Extents
    kernels: tuple[str, ...]
    seconds: tuple[float, ...] = ()


class RankedProblems(Sequence[RankedProblem]):
    """The problems of a ranking in order of their extents; those of a file are decoded when they are needed.

    Args:
        decoded: problems by extents.
        encoded: others by extents: positions of kernels (16 bits each) and times in seconds (IEEE 754 single
            precision), both little-endian.
        digests: of the kernels that the positions mean.
        what: names the file in errors.
    """

    def __init__(
        self,
        decoded: Mapping[Extents, RankedProblem],
        encoded: Mapping[Extents, tuple[bytes, bytes]] | None = None,
        digests: Sequence[str] = (),
        what: str = "ranking",
    ) -> None:
        self._decoded = dict(decoded)
        self._encoded = dict(encoded or {})
        self._digests = digests
        self._what = what
        self.extents = tuple(sorted({*self._decoded, *self._encoded}))

    @classmethod
    def of(cls, problems: Iterable[RankedProblem]) -> "RankedProblems":
        """Problems as they are given; no two have the same extents."""
        return cls({problem.extents: problem for problem in problems})

    @property
    def kernels(self) -> frozenset[str]:
        """Digests of the kernels that the problems can name."""
        named = (digest for problem in self._decoded.values() for digest in problem.kernels)
        return frozenset((*self._digests, *named))

    def find(self, extents: Extents) -> RankedProblem | None:
        """The problem of these extents, None if there is none; CorruptFile if it is malformed."""
        found = self._decoded.get(extents)
        if found is None and (columns := self._encoded.get(extents)) is not None:
            try:
                found = self._decoded[extents] = _problem(extents, *columns, self._digests)
            except MALFORMED as error:
                raise CorruptFile(f"{self._what} is malformed: {error!r}") from None
        return found

    def __len__(self) -> int:
        return len(self.extents)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.find(extents) for extents in self.extents[index]]
        return self.find(self.extents[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankedProblems) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self.extents)


def _problem(extents: Extents, positions: bytes, seconds: bytes, digests: Sequence[str]) -> RankedProblem:
    places = [place for (place,) in struct.iter_unpack("<H", positions)]
    times = tuple(time for (time,) in struct.iter_unpack("<f", seconds))
    if not places or len(set(places)) != len(places):
        raise ValueError(f"the problem {extents} has no kernels, or one twice")
    if not all(0 < time < inf for time in times) or list(times) != sorted(times):
        raise ValueError(f"the times of the problem {extents} are impossible, or not in order")
    return RankedProblem(extents, tuple(digests[place] for place in places), times)


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
    """

    group: str
    gpu: str
    measured: bool
    origin: str
    problems: RankedProblems
    machine: Machine | None = None
    costs: tuple[tuple[str, Costs], ...] = ()
    formula: int = FORMULA

    @property
    def kernels(self) -> frozenset[str]:
        """Digests of all kernels that it names."""
        return self.problems.kernels.union(digest for digest, _ in self.costs)

    def to_bytes(self) -> bytes:
        """The file in a bundle. Digests are written once; problems name kernels by position in that list.

        BundleError if there are too many kernels.
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
            "problems": [
                [
                    list(problem.extents),
                    struct.pack(f"<{len(problem.kernels)}H", *map(position.__getitem__, problem.kernels)),
                    struct.pack(f"<{len(problem.seconds)}f", *problem.seconds),
                ]
                for problem in self.problems
            ],
            "machine": None if self.machine is None else list(self.machine),
            "costs": b"".join(_COSTS.pack(*costs) for _, costs in self.costs),
            "formula": self.formula,
        }
        return seal(RANKING_KIND, RANKING_SCHEMA, body)

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "Ranking":
        """Read what :meth:`to_bytes` gave. A malformed problem is refused when it is needed."""
        body = unseal(data, RANKING_KIND, RANKING_SCHEMA, what)
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
            check_lines(str(body["gpu"]), str(body["origin"]))
            return cls(
                group=str(body["group"]),
                gpu=str(body["gpu"]),
                measured=measured,
                origin=origin,
                problems=RankedProblems({}, _encoded(body["problems"], measured), digests, what),
                machine=machine,
                costs=costs,
                formula=formula,
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


def _encoded(rows: Any, measured: bool) -> dict[Extents, tuple[bytes, bytes]]:
    """Positions and times by extents; ValueError or TypeError if they are malformed."""
    # By columns, since a process's first launch waits for all problems.
    extents, positions, seconds = zip(*rows, strict=True) if rows else ((), (), ())
    if not set(map(len, extents)) <= {4}:
        raise ValueError("the extents of a problem are not four")
    numbers = list(chain.from_iterable(extents))
    sound = set(map(type, numbers)) <= {int}
    if numbers and not (sound and 0 < min(numbers) <= max(numbers) <= MAX_EXTENT):
        raise ValueError(f"an extent of a problem is not an integer from 1 to {MAX_EXTENT}")
    if not set(map(type, positions + seconds)) <= {bytes}:
        raise ValueError("positions or times are not bytes")
    if any(len(column) % 2 for column in positions):
        raise ValueError("a problem has half of a position")
    if list(map(len, seconds)) != [2 * len(column) if measured else 0 for column in positions]:
        raise ValueError("a problem has other numbers of kernels and times")
    # By the constructor of tuples: that of named tuples is slower, and counts the values, as was done above.
    found = dict(
        zip(map(partial(tuple.__new__, Extents), extents), zip(positions, seconds, strict=True), strict=True)
    )
    if len(found) != len(rows):
        raise ValueError("a problem is ranked twice")
    return found


def _costs(data: bytes, digests: list[str]) -> tuple[tuple[str, Costs], ...]:
    if len(data) not in (0, len(digests) * _COSTS.size):
        raise ValueError("not as many constants as kernels")
    found = tuple(Costs(*numbers) for numbers in _COSTS.iter_unpack(data))
    for costs in found:
        check_costs(costs)
    return tuple(zip(digests, found, strict=True)) if found else ()


def holds_for(gpu: str, measured: bool) -> str:
    """The GPU model of a ranking and whether it was measured, as text."""
    return f"{gpu}, {'measured' if measured else 'modelled'}"
