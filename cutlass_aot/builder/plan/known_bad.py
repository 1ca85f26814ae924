"""Kernels that must not be built with some version of the DSL: the table, and how it is applied."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from cutlass_aot.manifest.filters import DesignFilter
from cutlass_aot.manifest.known_bad import KnownBad
from cutlass_aot.schema.kernels.constraints import MAX_OPERANDS
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.versions import release

TABLE = (
    KnownBad(
        generator="cutlass.operators",
        design=(DesignFilter("family", ("TgvGemm",)),),
        capability=(10, 3),
        since="4.0",
        reason="TgvGemm has not been run on sm_103, where a kernel of sglang's with this name raised Xid 13",
        evidence="Seen on B300 by others, of another kernel: sglang's own TGV kernel with two blocks in a "
        "cluster and no barrier at its end, so that one may leave before the other has done with it (sglang "
        "issues 32907 and 34340, fixed by pull request 32954; pull request 34360 would have left the kernel "
        "out on sm_103). The package's has one block: its code for sm_103a has no instruction for clusters "
        "or other blocks, and as many instructions as for sm_100a. It is left out until someone has run it.",
    ),
    KnownBad(
        generator="cutlass.operators",
        design=(DesignFilter("family", ("PersistentDenseGemmEFC",)),),
        dtypes=(("*", "*", "f64"),),
        since="4.8",
        reason="the compiler cannot store an output of f64: can not handle acc/d type combination",
        evidence="Does not compile for sm_100a, sm_103a, sm_107a and sm_110a.",
    ),
    KnownBad(
        generator="cutlass.operators",
        design=(DesignFilter("family", ("PersistentDenseGemmEFC",)),),
        accumulator=("f16",),
        dtypes=tuple(("*", "*", out) for out in sorted(DTYPES) if out not in ("bf16", "f16", "f64")),
        since="4.8",
        reason="the compiler stores an accumulator of f16 as f16 or bf16 alone: can not handle acc/d type "
        "combination",
        evidence="Does not compile for sm_100a, sm_103a, sm_107a and sm_110a.",
    ),
    KnownBad(
        generator="cutlass.operators",
        design=(DesignFilter("family", ("PersistentDenseGemmEFC",)),),
        accumulator=("i32",),
        dtypes=(("*", "*", "f8*"),),
        since="4.8",
        reason="the compiler cannot turn an accumulator of i32 into FP8: NVVM backend compilation failed",
        evidence="Does not compile for sm_100a and sm_110a, the targets with integers.",
    ),
    # Mixed-input kernels convert u8 as they should.
    KnownBad(
        generator="cutlass.operators",
        dtypes=tuple(("u8", "u8", *("*",) * others) for others in range(1, MAX_OPERANDS - 1)),
        since="4.8",
        reason="the compiler multiplies u8 as if it were i8: elements from 128 on count as negative",
        evidence="The code says so: IGMMA.S8.S8 on sm_90a; on sm_100a and sm_110a, the instruction's "
        "descriptor is that of i8. tools/check/coverage.py found it. Not run with elements from 128 on.",
    ),
)
"""Each row says what was seen, and where: tools/check/known_bad.py compiles a kernel of each again.

Add a row with its source; remove one only after a run that shows the kernels to be good.
"""


def known_bad(kernel: Kernel, dsl_version: str, table: Sequence[KnownBad] = TABLE) -> str:
    """Why a kernel is known to be bad with a version of the DSL; ``""`` if it is not."""
    row = row_of(kernel, dsl_version, table)
    return row.reason if row else ""


def row_of(kernel: Kernel, dsl_version: str, table: Sequence[KnownBad]) -> KnownBad | None:
    """The first row of a table that applies to a kernel with a version of the DSL, None if none does."""
    target = Target.parse(kernel.target)
    design = dict(kernel.design)
    dtypes = tuple(operand.dtype for operand in kernel.operands)
    for row in table:
        if (
            kernel.generator == row.generator
            and (not row.targets or kernel.target in row.targets)
            and (row.capability is None or target.runs_on(row.capability))
            and (not row.dtypes or any(_match(dtypes, patterns) for patterns in row.dtypes))
            and (not row.accumulator or kernel.accumulator in row.accumulator)
            and (not row.layouts or any(fnmatchcase(kernel.layouts, pattern) for pattern in row.layouts))
            and all(design_filter.accepts(design) for design_filter in row.design)
            and in_force(row, dsl_version)
        ):
            return row
    return None


def in_force(row: KnownBad, dsl_version: str) -> bool:
    """Whether a row applies to a version of the DSL."""
    version = release(dsl_version)
    return not (row.since and version < release(row.since)) and not (
        row.until and release(row.until) <= version
    )


def _match(dtypes: Sequence[str], patterns: Sequence[str]) -> bool:
    return len(dtypes) == len(patterns) and all(map(fnmatchcase, dtypes, patterns))
