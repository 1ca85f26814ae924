"""Rankings: the kernels of a group by speed for each problem, measured on a GPU or modelled at build time.

A measured ranking also has the constants of the cost model that was fitted to the measurements, for every
kernel of the group.
"""

import struct
from math import inf
from typing import Any, NamedTuple

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import from_plain, row
from cutlass_aot.schema.encoding import MALFORMED, seal, unseal
from cutlass_aot.schema.tuning.costs import Costs, Machine, check_costs

RANKING_KIND = "cutlass-aot ranking"
RANKING_SCHEMA = 2
MAX_EXTENT = 2**63 - 1
_COSTS = struct.Struct(f"<{len(Costs._fields)}f")
"""The constants of one kernel in the file, as IEEE 754 single precision."""


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

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k}"
        return text if self.batch == 1 else f"{self.batch} of {text}"


class RankedProblem(NamedTuple):
    """The kernels of one group for one problem, best first; kernels that are not listed rank last.

    ``kernels`` has the digests (:attr:`~.Kernel.digest`) of at least one. ``seconds`` has the measured time
    of each, ascending, or is empty where nothing was measured.
    """

    extents: Extents
    kernels: tuple[str, ...]
    seconds: tuple[float, ...] = ()


class Ranking(NamedTuple):
    """The speed of one group's kernels on one GPU model.

    Attributes:
        group: digest of the group (:attr:`cutlass_aot.schema.kernels.kernel.Kernel.group`).
        gpu: model of the GPU; as the driver names it (``NVIDIA H200``), if measured.
        measured: measured on that GPU, else modelled at build time.
        origin: text for a reader, such as ``tuned 2026-11-21, driver 580.159.04``.
        problems: no two with the same extents.
        machine: the GPU's multiprocessors, clock and bandwidth; None if no cost model was fitted.
        costs: the constants of each kernel of the group by its digest, sorted; empty without a cost model.
    """

    group: str
    gpu: str
    measured: bool
    origin: str
    problems: tuple[RankedProblem, ...]
    machine: Machine | None = None
    costs: tuple[tuple[str, Costs], ...] = ()

    @property
    def kernels(self) -> frozenset[str]:
        """Digests of all kernels that it names."""
        named = (digest for problem in self.problems for digest in problem.kernels)
        return frozenset((*named, *(digest for digest, _ in self.costs)))

    def to_bytes(self) -> bytes:
        """The file in a bundle. Digests are written once; problems name kernels by position in that list."""
        digests = sorted(self.kernels)
        position = {digest: index for index, digest in enumerate(digests)}
        body = {
            "group": self.group,
            "gpu": self.gpu,
            "measured": self.measured,
            "origin": self.origin,
            "kernels": digests,
            "problems": [
                [
                    [p.extents.batch, p.extents.m, p.extents.n, p.extents.k],
                    [position[digest] for digest in p.kernels],
                    list(p.seconds),
                ]
                for p in sorted(self.problems, key=lambda problem: problem.extents)
            ],
            "machine": None if self.machine is None else list(self.machine),
            "costs": b"".join(_COSTS.pack(*costs) for _, costs in self.costs),
        }
        return seal(RANKING_KIND, RANKING_SCHEMA, body)

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "Ranking":
        """Read what :meth:`to_bytes` gave."""
        body = unseal(data, RANKING_KIND, RANKING_SCHEMA, what)
        try:
            digests = [str(digest) for digest in body["kernels"]]
            measured = bool(body["measured"])
            problems = tuple(_problem(record, digests, measured) for record in body["problems"])
            if len({problem.extents for problem in problems}) != len(problems):
                raise ValueError("a problem is ranked twice")
            machine = None if body["machine"] is None else from_plain(Machine, body["machine"], what)
            costs = _costs(body["costs"], digests)
            if bool(costs) != (machine is not None):
                raise ValueError("a cost model without a GPU, or a GPU without one")
            return cls(
                group=str(body["group"]),
                gpu=str(body["gpu"]),
                measured=measured,
                origin=str(body["origin"]),
                problems=problems,
                machine=machine,
                costs=costs,
            )
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None


def _costs(data: bytes, digests: list[str]) -> tuple[tuple[str, Costs], ...]:
    if len(data) not in (0, len(digests) * _COSTS.size):
        raise ValueError("not as many constants as kernels")
    found = tuple(Costs(*numbers) for numbers in _COSTS.iter_unpack(data))
    for costs in found:
        check_costs(costs)
    return tuple(zip(digests, found, strict=True)) if found else ()


def _problem(record: Any, digests: list[str], measured: bool) -> RankedProblem:
    (batch, m, n, k), positions, seconds = record
    extents = (int(batch), int(m), int(n), int(k))
    if not positions or min(positions) < 0 or not all(0 < extent <= MAX_EXTENT for extent in extents):
        raise ValueError("a problem has no kernels, or impossible extents")
    if len(seconds) != (len(positions) if measured else 0):
        raise ValueError("kernels and times differ in number")
    times = tuple(float(second) for second in seconds)
    if not all(0 < time < inf for time in times) or list(times) != sorted(times):
        raise ValueError("times are impossible, or not in order")
    kernels = tuple(digests[position] for position in positions)
    if len(set(kernels)) != len(kernels):
        raise ValueError("a kernel is ranked twice")
    return RankedProblem(Extents(*extents), kernels, times)


def holds_for(gpu: str, measured: bool) -> str:
    """The GPU model of a ranking and whether it was measured, as text."""
    return f"{gpu}, {'measured' if measured else 'modelled'}"
