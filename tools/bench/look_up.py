"""Time of a look-up in a large catalog, as ``bundle.gemm`` makes it before a launch.

It is the part ``catalog`` of tools/bench/gpu.py, on a bundle that tools/bench/synthetic_bundle.py wrote with
the launcher of a real one. Operands are torch tensors on GPU 0. Where there is no GPU they are descriptions,
and what a driver says of an H100 is pretended.

In every group of the GPU's target kernels are looked up for two problems: at the first the group was not
read, at the second it was. Each round opens the bundle anew, with files that the operating system has in
memory. All operands are made before, and no garbage is collected meanwhile. Rounds of two kinds take turns:

in a row: one look-up follows the other, so that the processor's caches have the interpreter's code and data.
after other work: before each, more memory is read than those caches hold, as a program leaves them that has
    done something else. Such a look-up waits for memory most of the time.

All figures are medians over groups and rounds, without the first group of each round, which pays for what is
set up once for a bundle. Two figures of the machine stand beside them, and how often the thread lost its
processor, so that a slow machine is not taken for a slow look-up.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cutlass_aot
from cutlass_aot.errors import DeviceError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.opened import finder
from cutlass_aot.runtime.selection.query import Computation
from cutlass_aot.schema.bundles.catalog import GroupEntry
from cutlass_aot.schema.kernels.operands import OperandDescription
from cutlass_aot.schema.tuning.costs import typical_machine
from tools.bench.command import Result, Row
from tools.bench.process import timed

PROBLEMS = ((4096, 1024, 2048), (256, 8192, 512))
"""m, n and k for a group that was not read, and for the same group when it was."""

IN_A_ROW = "in a row"
KINDS = (IN_A_ROW, "after other work")
STATES = ("not read before", "read before")
GOAL = 200e-6
PRETENDED = (9, 0)
"""Compute capability where there is no GPU."""

_DTYPES = ("f16", "bf16", "f32")
# Written, or it would be one page of zeros.
_OTHER_WORK = b"\1" * (1 << 26)

Operands = Sequence[Sequence[Any]]
"""The operands of each of :data:`PROBLEMS`."""


@contextlib.contextmanager
def pretended_driver() -> Iterator[None]:
    """Within: the driver speaks of one H100."""
    facts = {
        "compute_capability": PRETENDED,
        "device_name": "NVIDIA H100 80GB HBM3",
        "driver_version": (13, 0),
        "machine": typical_machine("sm_90a"),
    }
    with contextlib.ExitStack() as stack:
        for name, value in facts.items():
            stack.enter_context(patch.object(cuda_driver, name, lambda *_, value=value: value))
        yield


def measured_groups(bundle: cutlass_aot.Bundle, capability: tuple[int, int]) -> list[GroupEntry]:
    """The groups of a GPU's target, of element types that each release of torch passes to native code."""
    target = "sm_{}{}".format(*capability)
    return [
        entry
        for entry in bundle.groups
        if entry.target.startswith(target)
        and not entry.epilogue
        and all(operand.dtype in _DTYPES for operand in entry.operands)
    ]


def operands_of(entry: GroupEntry, memory: Mapping[str, Any]) -> Operands:
    """Operands of a group: views of a flat tensor of each element type, or descriptions without one."""
    made = []
    for m, n, k in PROBLEMS:
        own: list[Any] = []
        for constraint, (rows, columns) in zip(entry.operands, ((m, k), (k, n), (m, n)), strict=True):
            row_major = constraint.contiguous == -1
            if memory:
                flat = memory[constraint.dtype][: rows * columns]
                own.append(flat.view(rows, columns) if row_major else flat.view(columns, rows).T)
            else:
                strides = (columns, 1) if row_major else (1, rows)
                own.append(OperandDescription(constraint.dtype, (rows, columns), strides, 1 << 40, 0))
        made.append(own)
    return made


def one_round(
    path: Path, operands: Sequence[Operands], kind: str, seconds: Mapping[str, list[float]]
) -> None:
    """Open the bundle and look kernels up in each group."""
    # Of the finder alone: the bundle's kernels are stand-ins, which cannot be launched.
    opened, computation = finder.Finder(cutlass_aot.open(path).directory), Computation("gemm")

    def look_up(given: Sequence[Any]) -> Any:
        return opened.best(opened.prepare(computation, given))

    for place, problems in enumerate(operands):
        for state, given in zip(STATES, problems, strict=True):
            if kind != IN_A_ROW:
                _OTHER_WORK.count(0)
            took, _ = timed(partial(look_up, given))
            if place:
                seconds[state].append(took)


def of_machine(path: Path) -> dict[str, float]:
    """Seconds of a hundred turns of a loop, and of a file of a few kilobytes; medians."""

    def loop() -> None:
        found: dict[int, str] = {}
        for number in range(100):
            found[number] = str(number)

    def file() -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.read(descriptor, 1 << 16)
        os.close(descriptor)

    return {call.__name__: statistics.median(timed(call)[0] for _turn in range(500)) for call in (loop, file)}


def measured(path: Path, rounds: int) -> Result:
    """Look kernels up in a synthetic bundle, on this machine's GPU or without one."""
    memory: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        try:
            capability, where = cuda_driver.compute_capability(0), "on a GPU"
        except DeviceError:
            stack.enter_context(pretended_driver())
            capability, where = PRETENDED, "without a GPU"
        else:
            import torch

            most = max(max(m * k, k * n, m * n) for m, n, k in PROBLEMS)
            types = (torch.float16, torch.bfloat16, torch.float32)
            memory = {
                name: torch.empty(most, device="cuda", dtype=dtype)
                for name, dtype in zip(_DTYPES, types, strict=True)
            }
        bundle = cutlass_aot.open(path)
        groups = measured_groups(bundle, capability)
        if len(groups) < 2:
            raise SystemExit(f"{path} has no groups for compute capability {capability}")
        operands = [operands_of(entry, memory) for entry in groups]
        machine = of_machine(path / groups[0].child.path)
        times: dict[str, dict[str, list[float]]] = {kind: {state: [] for state in STATES} for kind in KINDS}
        before = resource.getrusage(resource.RUSAGE_THREAD)
        gc.collect()
        gc.disable()
        try:
            # The first round of all imports what is imported when it is first needed.
            one_round(path, operands, IN_A_ROW, {state: [] for state in STATES})
            for _turn, kind in product(range(rounds), KINDS):
                one_round(path, operands, kind, times[kind])
        finally:
            gc.enable()
        after = resource.getrusage(resource.RUSAGE_THREAD)
    machine["switches"] = after.ru_nivcsw - before.ru_nivcsw
    machine["faults"] = after.ru_minflt - before.ru_minflt
    numbers = {kind: {state: statistics.median(own) for state, own in times[kind].items()} for kind in KINDS}
    count = sum(entry.kernel_count for entry in bundle.groups)
    members = statistics.median(entry.kernel_count for entry in groups)
    what = f"look a kernel up {where}, {count:,} in {len(bundle.groups)} groups, here of {members:.0f}"
    rows = []
    for kind, state in product(KINDS, STATES):
        whole = numbers[kind][state]
        row = Row(f"{what}: {state}, {kind}", f"{whole * 1e6:.0f} µs")
        rows.append(row._replace(goal="≤ 200 µs", met=whole <= GOAL) if kind == IN_A_ROW else row)
    meanwhile = (
        f"before, {machine['loop'] * 1e6:.1f} µs for a loop of 100 turns, {machine['file'] * 1e6:.1f} µs for "
        f"opening, reading and closing an index; meanwhile, {machine['switches']:.0f} times without its "
        f"processor, {machine['faults']:.0f} page faults"
    )
    rows.append(Row("of this machine", meanwhile))
    return Result(rows, {**numbers, "machine": machine, "groups": len(groups)})
