"""Rankings: the kernels of a group by speed for each problem, measured on a GPU or modelled at build time."""

from collections.abc import Collection
from math import inf
from typing import Any, NamedTuple

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import row
from cutlass_aot.schema.encoding import MALFORMED, seal, unseal

RANKING_KIND = "cutlass-aot ranking"
RANKING_SCHEMA = 1
MAX_EXTENT = 2**63 - 1


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
    """

    group: str
    gpu: str
    measured: bool
    origin: str
    problems: tuple[RankedProblem, ...]

    def to_bytes(self) -> bytes:
        """The file in a bundle. Digests are written once; problems name kernels by position in that list."""
        digests = sorted({digest for problem in self.problems for digest in problem.kernels})
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
            return cls(
                group=str(body["group"]),
                gpu=str(body["gpu"]),
                measured=measured,
                origin=str(body["origin"]),
                problems=problems,
            )
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None


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


def without(problem: RankedProblem, kernels: Collection[str]) -> RankedProblem | None:
    """A problem without these kernels, None if no kernel remains."""
    kept = [position for position, digest in enumerate(problem.kernels) if digest not in kernels]
    if not kept:
        return None
    return RankedProblem(
        problem.extents,
        tuple(problem.kernels[position] for position in kept),
        tuple(problem.seconds[position] for position in kept) if problem.seconds else (),
    )
