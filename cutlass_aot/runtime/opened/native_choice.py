"""The choice among kernels in native code, which the bundle's launcher has (``builder/native/select.c``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from struct import pack
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
        _doubles(chain.from_iterable(sorted(candidates.clusters(machine.sm_count).items()))),
        _doubles(
            (*constants.costs, *constants[1:])
            if isinstance(constants, Derivation)
            else chain.from_iterable(constants)
        ),
        _doubles(candidates.traffic[:3]),
        _integers(chain.from_iterable(measured)),
        _integers(chain.from_iterable(map(_rule, operands))) if is_plain(operands) else b"",
        ordinal,
    )


def is_plain(operands: Sequence[OperandConstraint]) -> bool:
    """Whether operands are those of a GEMM on whole matrices of elements of whole bytes, and nothing else."""
    return tuple(operand.extents for operand in operands) == _GEMM and all(
        operand.scale is None
        and not operand.compact
        and not operand.multiples
        and not DTYPES[operand.dtype].reads
        and DTYPES[operand.dtype].bits % 8 == 0
        for operand in operands
    )


def _rule(operand: OperandConstraint) -> tuple[int, ...]:
    code, bits = DTYPES[operand.dtype].dlpack
    return code, bits, -operand.contiguous, operand.divisibility, operand.alignment


def _doubles(numbers: Iterable[float]) -> bytes:
    found = tuple(numbers)
    return pack(f"={len(found)}d", *found)


def _integers(numbers: Iterable[int]) -> bytes:
    found = tuple(numbers)
    return pack(f"={len(found)}q", *found)
