"""The choice among kernels in native code, which the bundle's launcher has (``builder/native/select.c``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.runtime.launching import native
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.selection.cost_model import Candidates
from cutlass_aot.runtime.selection.tiers import Constants, Ranked
from cutlass_aot.schema.kernels.constraints import OperandConstraint, are_plain_gemm
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.tuning.costs import Derivation, Machine
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblems

_TRAFFIC, _RULES = Struct("=3d"), Struct("=15q")
"""What ``builder/native/select.c`` takes of each, where its number is known."""

_NO_KERNEL = 0xFFFFFFFF
"""In place of a number, for a kernel that is not among the candidates."""


class NativeChoice(NamedTuple):
    """Chooses among candidates in native code, for plain GEMMs on one GPU.

    Attributes:
        launch: the native function. For three tensors it launches the candidate with the least expected time
            and returns what launched it, or the candidate's number if it has not learnt to launch it. It
            returns -1 if it cannot tell whether the kernels support the tensors, or if the problem was
            measured. By other arguments it does what the methods say.
        candidates: the kernels.
    """

    launch: Any
    candidates: Candidates

    def fastest(self, extents: Extents) -> int:
        """The number of the candidate with the least expected time."""
        number: int = self.launch(*extents)
        return number

    def learn(self, digest: str, launch: Any) -> None:
        """Have a kernel launched by this native function where it is chosen, if it is a candidate."""
        digests = self.candidates.digests
        if digest in digests:
            self.launch(digests.index(digest), launch)


@lru_cache(maxsize=16)
def select(launcher: Library) -> Any:
    """The launcher's function that :func:`make` takes."""
    return native.function(launcher, "cutlass_aot_select")


def make(
    select: Callable[..., Any],
    candidates: Candidates,
    constants: Constants,
    machine: Machine,
    measured: Ranked | None,
    operands: Sequence[OperandConstraint],
    ordinal: int,
) -> NativeChoice:
    """The choice among candidates on a GPU.

    ``select`` is the launcher's function of that name, ``measured`` has the times of this model of GPU,
    ``operands`` are the kernels' constraints, ``ordinal`` is the GPU's.
    """
    rows = (constants.costs, constants[1:]) if isinstance(constants, Derivation) else constants
    problems = [] if measured is None else measured.problems_by_group()
    correcting = None if measured is None else measured.correcting(machine)
    arguments = (
        candidates.table.rows,
        array("d", chain.from_iterable(candidates.clusters(machine.sm_count).items())).tobytes(),
        array("d", chain.from_iterable(rows)).tobytes(),
        _TRAFFIC.pack(*candidates.traffic[:3]),
        b"".join(own.columns.extents for own in problems),
        *(_times(correcting, candidates) if correcting else (b"", b"", b"", b"")),
        _rules(operands),
        ordinal,
    )
    try:
        launch = select(*arguments)
    except ValueError as error:
        # Native code alone has checked the tilings and the times.
        raise CorruptFile(f"kernels cannot be chosen among ({error}): build the bundle again") from None
    return NativeChoice(launch, candidates)


def _times(problems: RankedProblems, candidates: Candidates) -> tuple[bytes, bytes, bytes, bytes]:
    """What ``select.c`` takes as ends, positions, seconds and numbers."""
    columns = problems.columns
    numbers = {digest: number for number, digest in enumerate(candidates.digests)}
    kernels = (numbers.get(digest, _NO_KERNEL) for digest in columns.digests)
    return (
        array("I", columns.ends).tobytes(),
        columns.positions,
        columns.seconds,
        array("I", kernels).tobytes(),
    )


def is_plain(operands: Sequence[OperandConstraint]) -> bool:
    """Whether operands are those of a GEMM on whole matrices of elements of whole bytes, and nothing else."""
    return bool(_rules(operands))


def _rules(operands: Sequence[OperandConstraint]) -> bytes:
    """What native code has to know of each operand; nothing if they are not plain (:func:`is_plain`)."""
    if not are_plain_gemm(operands):
        return b""
    rules: list[int] = []
    for operand in operands:
        _, dtype, _, contiguous, divisibility, alignment, _, compact, scale, multiples, _ = operand
        if compact or multiples or scale is not None:
            return b""
        _, bits, (code, _), _, _, _, reads = DTYPES[dtype]
        if reads or bits % 8:
            return b""
        rules += (code, bits, -contiguous, divisibility, alignment)
    return _RULES.pack(*rules)
