"""Output of ``cutlass-aot doctor BUNDLE``: short lines for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from cutlass_aot.schema.versions import release
from cutlass_aot.schema.words import by_numbers

WIDTH = 80


def answer_lines(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    """Lines for what :func:`cutlass_aot.doctor.bundle.diagnose` gives."""
    yield "machine"
    yield from _machine(diagnosis["facts"])
    for bundle in diagnosis["bundles"]:
        yield f"bundle {bundle['name']} {bundle['version']}"
        targets = _listed(sorted(bundle["targets"], key=by_numbers))
        yield from _wrapped(f"kernels for {targets}; hosts {_listed(bundle['hosts'])}")
        requirements = bundle["needs"]
        yield from _wrapped(f"needs apache-tvm-ffi {requirements['tvm_ffi']}, glibc {requirements['glibc']}")
        yield from _drivers(bundle["drivers"])
        yield "can run"
        yield from _verdict(bundle)
    if diagnosis["warnings"]:
        yield "warnings"
        for warning in diagnosis["warnings"]:
            yield from _wrapped(warning)


def _drivers(drivers: Mapping[str, Mapping[str, str | None]]) -> Iterator[str]:
    """A line for each driver that a target needs, the oldest first."""
    by_cuda: dict[str, list[str]] = {}
    for target, driver in drivers.items():
        by_cuda.setdefault(str(driver["cuda"]), []).append(target)
    for cuda, targets in sorted(by_cuda.items(), key=lambda item: release(item[0])):
        first = drivers[targets[0]]["release"]
        known = f", release {first} or newer" if first else ""
        only = f", for {_listed(targets)}" if len(by_cuda) > 1 else ""
        yield from _wrapped(f"needs a driver for CUDA {cuda}{known}{only}")


def _machine(facts: Mapping[str, Any]) -> Iterator[str]:
    parts = [
        facts["host"],
        facts.get("libc") or "no known C library",
        f"apache-tvm-ffi {facts['tvm_ffi']}" if "tvm_ffi" in facts else "no apache-tvm-ffi",
    ]
    parts += [f"Python {facts['python']}"] if "python" in facts else []
    parts += [f"torch {facts['torch']}"] if "torch" in facts else []
    yield from _wrapped(", ".join(parts))
    driver = facts.get("driver")
    if driver is None:
        yield "  no driver"
    else:
        said = [f"supports CUDA {driver['cuda']}"] if "cuda" in driver else []
        said += [f"release {driver['release']}"] if "release" in driver else []
        yield from _wrapped(f"driver: {', '.join(said)}")
    if not facts["gpus"]:
        yield "  no GPU"
    for first, last, gpu in _runs(facts["gpus"]):
        capability = gpu.get("compute_capability")
        detail = f", compute capability {capability}" if capability else ""
        yield from _wrapped(f"{_numbers(first, last)}: {gpu['name']}{detail}")


def _verdict(bundle: Mapping[str, Any]) -> Iterator[str]:
    gpus = bundle["gpus"]
    if bundle["accepted"]:
        served = sum(gpu["target"] is not None for gpu in gpus)
        yield "  yes" if served == len(gpus) else f"  yes, on {served} of {len(gpus)} GPUs"
        yield "  (its files are taken to be whole: cutlass-aot verify reads them)"
    for reason in bundle["reasons"]:
        yield from _refusal("no", reason)
    for first, last, gpu in _runs(gpus):
        numbers = _numbers(first, last)
        if gpu["target"] is not None:
            yield from _wrapped(f"{numbers}: {gpu['target']} ({gpu['kind']})")
        for reason in gpu["reasons"]:
            yield from _refusal(f"{numbers}: no", reason)


def _refusal(who: str, reason: Mapping[str, str]) -> Iterator[str]:
    yield from _wrapped(f"{who}: {reason['problem']}")
    yield from _wrapped(f"next: {reason['advice']}", 4)


def _runs(gpus: Sequence[Any]) -> Iterator[tuple[int, int, Any]]:
    """First and last number of each run of equal GPUs, and the GPU."""
    for _, group in groupby(enumerate(gpus), key=lambda item: item[1]):
        members = list(group)
        yield members[0][0], members[-1][0], members[0][1]


def _numbers(first: int, last: int) -> str:
    return f"GPU {first}" if first == last else f"GPUs {first} to {last}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _wrapped(text: str, indent: int = 2) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
