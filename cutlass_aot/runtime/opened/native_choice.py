"""The choice among kernels in native code, which the bundle's launcher has (``builder/native/select.c``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from cutlass_aot.runtime.launching import native
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.selection.cost_model import Candidates
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.tuning.costs import Costs, Derivation, Machine
from cutlass_aot.schema.tuning.ranking import Extents

_GEMM = (("L", "M", "K"), ("L", "K", "N"), ("L", "M", "N"))


@lru_cache(maxsize=16)
def select(launcher: Library) -> Any:
    """The launcher's function that :func:`make` takes."""
    return native.function(launcher, "cutlass_aot_select")


def make(
    select: Callable[..., Any],
    candidates: Candidates,
    constants: Sequence[Costs] | Derivation,
    machine: Machine,
    measured: Iterable[Extents],
    operands: Sequence[OperandConstraint],
    ordinal: int,
) -> Any:
    """The native function that chooses among candidates on a GPU.

    It takes batch, m, n and k; or three tensors. It returns the number of the candidate with the least
    estimated time, and for tensors -1 if it cannot tell whether the kernels support them, or if the problem
    was ``measured``. ``select`` is the launcher's function of that name, ``operands`` are the kernels'
    constraints, ``ordinal`` is the GPU's.
    """
    return select(
        candidates.table.rows,
        _doubles(chain.from_iterable(candidates.clusters(machine.sm_count).items())),
        _doubles(
            (*constants.costs, *constants[1:])
            if isinstance(constants, Derivation)
            else chain.from_iterable(constants)
        ),
        _doubles(candidates.traffic[:3]),
        _integers(chain.from_iterable(measured)),
        _integers(_rules(operands)),
        ordinal,
    )


def is_plain(operands: Sequence[OperandConstraint]) -> bool:
    """Whether operands are those of a GEMM on whole matrices of elements of whole bytes, and nothing else."""
    return bool(_rules(operands))


def _rules(operands: Sequence[OperandConstraint]) -> list[int]:
    """What native code has to know of each operand; nothing if they are not plain (:func:`is_plain`)."""
    rules: list[int] = []
    if len(operands) != len(_GEMM):
        return rules
    for operand, expected in zip(operands, _GEMM, strict=True):
        _, dtype, extents, contiguous, divisibility, alignment, _, compact, scale, multiples, _ = operand
        if extents != expected or compact or multiples or scale is not None:
            return []
        _, bits, (code, _), _, _, _, reads = DTYPES[dtype]
        if reads or bits % 8:
            return []
        rules += (code, bits, -contiguous, divisibility, alignment)
    return rules


def _doubles(numbers: Iterable[float]) -> bytes:
    return array("d", numbers).tobytes()


def _integers(numbers: Iterable[int]) -> bytes:
    return array("q", numbers).tobytes()
