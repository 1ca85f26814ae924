"""Kernels that must not be built with some version of the DSL: a table, and the one rule that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from cutlass_aot.manifest.filters import DesignFilter
from cutlass_aot.manifest.known_bad import KnownBad
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.versions import release

TABLE = (
    KnownBad(
        generator="cutlass.operators",
        design=(DesignFilter.make("family", ["TgvGemm"]),),
        capability=(10, 3),
        since="4.0",
        reason="TgvGemm on sm_103 has raised device errors (Xid 13), sglang pull request 34360",
    ),
)
"""What is known so far. Add a row with its source; take none away without a run that shows it good."""


def known_bad(kernel: Kernel, dsl_version: str, table: Sequence[KnownBad] = TABLE) -> str:
    """Why a kernel is known to be bad with a version of the DSL, or ``""``."""
    version = release(dsl_version)
    target = Target.parse(kernel.target)
    design = dict(kernel.design)
    dtypes = tuple(operand.dtype for operand in kernel.operands)
    for row in table:
        if (
            kernel.generator == row.generator
            and (not row.targets or kernel.target in row.targets)
            and (row.capability is None or target.runs_on(row.capability))
            and (not row.dtypes or any(_match(dtypes, patterns) for patterns in row.dtypes))
            and (not row.layouts or any(fnmatchcase(kernel.layouts, pattern) for pattern in row.layouts))
            and not (row.since and version < release(row.since))
            and not (row.until and release(row.until) <= version)
            and all(design_filter.accepts(design) for design_filter in row.design)
        ):
            return row.reason
    return ""


def _match(dtypes: Sequence[str], patterns: Sequence[str]) -> bool:
    return len(dtypes) == len(patterns) and all(map(fnmatchcase, dtypes, patterns))
