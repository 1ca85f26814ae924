"""Dense GEMMs of the CUTLASS Operator API: ranking by the package's own heuristics, inside a worker."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cutlass.operators
from cutlass.operators.heuristics.nvmatmul import _provider

from cutlass_aot.generators.cutlass_operators.epilogue_records import TRANSPORTS
from cutlass_aot.generators.cutlass_operators.worker import gemm_arguments, operators_of
from cutlass_aot.generators.protocol import Problem, Ranked
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.tuning.ranking import Extents

MODELLED_FAMILIES = (
    "PersistentDenseGemm",
    "PersistentDenseGemmEFC",
    "PersistentDenseGemmPreferredCluster",
)
"""Families that nvMatmulHeuristics models: persistent SM100 kernels. It has no low-latency kernels (TgvGemm),
and the package ranks no kernel that was written for an older GPU."""


def rank_kernels(
    problem: Problem,
    target: str,
    kernels: Sequence[Kernel],
    shapes: Sequence[Extents],
    *,
    heuristic: str,
    gpu: str,
) -> Ranked:
    """Rank ``kernels`` for each of ``shapes``; see :class:`cutlass_aot.generators.protocol.Ranker`."""
    modelled = [kernel for kernel in kernels if dict(kernel.design)["family"] in MODELLED_FAMILIES]
    # Asked for these families alone: the package takes tensors, which some dtypes of the others do not have.
    known = operators_of(problem, target) if modelled else {}
    # The package's operators are the same whatever transports an epilogue has.
    plain = {
        kernel.digest: tuple(item for item in kernel.design if item[0] != TRANSPORTS) for kernel in modelled
    }
    candidates = {digest: known[design] for digest, design in plain.items() if design in known}
    if not candidates:
        reason = f"{heuristic} models {', '.join(MODELLED_FAMILIES)} alone"
        return Ranked(frozenset(), tuple(() for _ in shapes), reason)
    digests = {id(operator): digest for digest, operator in candidates.items()}
    designs = {kernel.digest: dict(kernel.design) for kernel in kernels}
    ranker = cutlass.operators.get_heuristic(heuristic)(gpu=gpu)
    problems: list[tuple[tuple[str, ...], ...]] = []
    reasons = []
    with _supported_configurations():
        for shape in shapes:
            sizes = {"L": shape.batch, "M": shape.m, "N": shape.n, "K": shape.k}
            try:
                # Without a limit: it bounds how many configurations the model is asked for, and the few best
                # may be ones that the package has no kernel for.
                ranked = ranker.rank(gemm_arguments(problem, sizes), list(candidates.values()))
            except (KeyError, TypeError, ValueError) as error:
                # No word for an element type, or no configuration that any kernel has.
                problems.append(())
                reasons.append(str(error.args[0] if error.args else error).partition(". ")[0].rstrip("."))
            else:
                problems.append(_tied([digests[id(operator)] for operator in ranked], designs))
    return Ranked(frozenset(candidates), tuple(problems), reasons[0] if reasons else "")


def _tied(digests: Sequence[str], designs: dict[str, dict[str, DesignValue]]) -> tuple[tuple[str, ...], ...]:
    """Group the kernels that the model cannot tell apart, in the order of the first of each group."""
    together: dict[tuple[Any, ...], list[str]] = {}
    for digest in digests:
        design = designs[digest]
        seen = design["tile_shape"], design["cluster_shape"], design["use_2cta_mma"]
        together.setdefault(seen, []).append(digest)
    return tuple(tuple(group) for group in together.values())


@contextmanager
def _supported_configurations() -> Iterator[None]:
    """In this context, configurations without a valid predicted time are dropped before kernels are matched.

    The model gives those that it does not support a time of zero or not a number, which the package believes.
    """
    saved = _provider.MatmulHeuristics.get_configs

    def supported(self: Any, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
        found = saved(self, *arguments, **options)
        return [config for config in found if _is_time(config["estimated_runtime"])]

    _provider.MatmulHeuristics.get_configs = supported
    try:
        yield
    finally:
        _provider.MatmulHeuristics.get_configs = saved


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0
