"""How long kernels are expected to compile, from how long they and others took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from cutlass_aot.schema.kernels.kernel import Kernel


def expected_seconds(
    kernels: Sequence[Kernel], durations: Mapping[str, float], others: Iterable[Kernel] = ()
) -> list[float]:
    """Seconds for each kernel: remembered, or the mean of its family on its target, or the longest there is.

    What nothing is known of may take any time, so that it counts as the longest and starts first.

    Args:
        kernels: to compile.
        durations: seconds that kernels took before, by digest.
        others: more kernels, whose durations tell of families too.
    """
    seen: dict[tuple[str, str, str], list[float]] = {}
    for kernel in (*kernels, *others):
        if kernel.digest in durations:
            seen.setdefault(_kind(kernel), []).append(durations[kernel.digest])
    means = {kind: fmean(values) for kind, values in seen.items()}
    longest = max(durations.values(), default=1.0)
    return [durations.get(kernel.digest, means.get(_kind(kernel), longest)) for kernel in kernels]


def _kind(kernel: Kernel) -> tuple[str, str, str]:
    return kernel.generator, str(dict(kernel.design).get("family", "")), kernel.target
