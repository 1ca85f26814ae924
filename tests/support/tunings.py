"""Tuning files for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.tuning.costs import Machine
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.tuning import TunedGroup, TunedKernel, TunedProblem, Tuning

GPU = "NVIDIA H200"
PROBLEM = Extents(1, 512, 1024, 2048)


def tuned_kernel(entry: KernelEntry) -> TunedKernel:
    return TunedKernel(entry.kernel.digest, entry.object_sha256, entry.kernel.name)


def tuned_group(entries: Sequence[KernelEntry], problems: Sequence[TunedProblem] | None = None) -> TunedGroup:
    """What was measured of a group; if not given, one problem, whose best kernel is the last."""
    if problems is None:
        times = [(entry.kernel.digest, 10.0 + index) for index, entry in enumerate(reversed(entries))]
        problems = (TunedProblem(PROBLEM, tuple(times)),)
    return TunedGroup(
        entries[0].kernel.group,
        entries[0].kernel.group_name,
        tuple(sorted(map(tuned_kernel, entries), key=lambda kernel: (kernel.name, kernel.digest))),
        tuple(problems),
    )


def tuning(groups: Sequence[TunedGroup] = (), **changes: Any) -> Tuning:
    values: dict[str, Any] = {
        "gpu": GPU,
        "machine": Machine(132, 1980, 4917),
        "compute_capability": "9.0",
        "driver": "580.159.04",
        "cuda": "13.0",
        "power_limit_watts": 700.0,
        "date": "2026-11-21",
        "bundle": "small 0.1.0",
        "versions": {"cutlass-aot": "0.1.0", "nvidia-cutlass-dsl": "4.8.1", "torch": "2.13.0"},
        "groups": tuple(groups),
    }
    return Tuning(**{**values, **changes})
