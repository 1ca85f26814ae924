"""Kernels that compile and are known to be bad: a table by DSL version, and the one rule that reads it."""

from __future__ import annotations

from dataclasses import dataclass

from cutlass_aot.manifest.filters import DesignFilter
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.versions import release


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Kernels that must not be built.

    Attributes:
        generator: name of their generator.
        design: filters that all accept them.
        capability: compute capability of the GPUs they are bad on; every target that runs there is left out.
        since: first version of the DSL that they are bad with.
        until: first version of the DSL that they are good with again, or ``""`` if none is known.
        reason: what happens, and who reported it.
    """

    generator: str
    design: tuple[DesignFilter, ...]
    capability: tuple[int, int]
    since: str
    until: str
    reason: str


TABLE = (
    KnownBad(
        generator="cutlass.operators",
        design=(DesignFilter.make("family", ["TgvGemm"]),),
        capability=(10, 3),
        since="4.0",
        until="",
        reason="TgvGemm on sm_103 has raised device errors (Xid 13), sglang pull request 34360",
    ),
)
"""Everything known so far. Add a row with its source; take none away without a run that shows it good."""


def known_bad(kernel: Kernel, dsl_version: str, table: tuple[KnownBad, ...] = TABLE) -> str:
    """Why a kernel is known to be bad with a version of the DSL, or ``""``."""
    version = release(dsl_version)
    target = Target.parse(kernel.target)
    design = dict(kernel.design)
    for row in table:
        if (
            kernel.generator == row.generator
            and target.runs_on(row.capability)
            and release(row.since) <= version
            and not (row.until and release(row.until) <= version)
            and all(design_filter.accepts(design) for design_filter in row.design)
        ):
            return row.reason
    return ""
