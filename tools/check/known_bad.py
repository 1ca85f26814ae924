"""Compile a kernel of each row of the table of known-bad kernels, and say what is seen.

    python -m tools.check.known_bad [--target sm_103a ...]

Needs the build extra, no GPU; for sm_107a and sm_110a, the DSL's libraries for CUDA 13. The table is in
``cutlass_aot/builder/plan/known_bad.py``. Prints, for each row and target that has kernels of it: the
compiler's error, or how many instructions the code has, those of the tensor cores and whether they are of the
record's element types, and those for clusters and other blocks.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from cutlass_aot.builder.compile.export import export
from cutlass_aot.builder.plan.known_bad import TABLE, row_of
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled
from cutlass_aot.errors import ArtifactError, CutlassAotError
from cutlass_aot.generators.compile_errors import explain
from cutlass_aot.generators.device_profiles import profile_for
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.manifest.known_bad import KnownBad
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import KNOWN_TARGETS
from tools.bench.command import markdown
from tools.bench.machine import about
from tools.check.instructions import audit_instructions, disassemble, found

_PROBLEMS = (
    Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32"),
    Problem("gemm", ("bf16", "bf16", "f64"), "tnt", "f32"),
    Problem("gemm", ("f16", "f16", "f32"), "tnt", "f16"),
    Problem("gemm", ("i8", "i8", "f8e4m3"), "tnt", "i32"),
    Problem("gemm", ("u8", "u8", "i32"), "tnt", "i32"),
)
"""One with kernels of each row, in the table's order."""

_ELSEWHERE = re.compile(r"\b[A-Z0-9_.]*(?:2CTA|MULTICAST|CGA|MAPA)[A-Z0-9_.]*")
"""Instructions for clusters, and for other blocks of one."""


def kernel_of(row: KnownBad, problem: Problem, target: str) -> Kernel | None:
    """The first kernel of the generator on a target that the row applies to, None if it has none."""
    from cutlass_aot.generators.cutlass_operators.worker import enumerate_kernels

    version = row.since or "0"
    kernels = enumerate_kernels(problem, target, profile_for(target))
    return next((kernel for kernel in kernels if row_of(kernel, version, (row,))), None)


def seen(kernel: Kernel) -> str:
    """What compiling a kernel gives, in words."""
    from cutlass_aot.generators.cutlass_operators.worker import compile_kernel

    try:
        with tempfile.TemporaryDirectory() as folder:
            data = export(compile_kernel(kernel), kernel.symbol, Path(folder) / "kernel.ll").to_bytes()
    except Exception as error:
        return f"does not compile: {' '.join(explain(error).split())[:200]}"
    assembly = disassemble(data)
    words = [f"{len(re.findall(r'^ *[/][*][0-9a-f]+[*][/]', assembly, re.MULTILINE))} instructions"]
    words += [f"{count} {name}" for name, count in found(assembly).items()]
    # Names of Hopper's say the element types; newer ones have a descriptor.
    words += sorted(set(re.findall(r"\b[A-Z]GMMA[.][.\w]+", assembly)))
    try:
        audit_instructions(kernel, assembly)
    except ArtifactError as error:
        words.append(str(error).removeprefix(f"{kernel.name}: "))
    others = sorted(set(_ELSEWHERE.findall(assembly)))
    return ", ".join([*words, f"for clusters {', '.join(others) or 'none'}"])


def rows(targets: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Reason, target and what is seen, for each row of the table and target."""
    for row, problem in zip(TABLE, _PROBLEMS, strict=True):
        for target in targets:
            kernel = kernel_of(row, problem, target)
            if kernel is not None:
                yield row.reason, target, seen(kernel)


@click.command()
@click.option("--target", "targets", multiple=True, type=click.Choice(KNOWN_TARGETS), help="Not all of them.")
def main(targets: tuple[str, ...]) -> None:
    """Compile a kernel of each row of the table of known-bad kernels, and say what is seen."""
    # No target of ours runs on this architecture: the DSL makes no engine, and asks for no GPU.
    os.environ["CUTE_DSL_ARCH"] = "sm_90"
    chosen = targets or tuple(name for name in KNOWN_TARGETS if not not_compiled([name], dsl_toolkit()))
    click.echo(f"{about().markdown()} Libraries of the DSL for CUDA {dsl_toolkit()}.\n")
    click.echo(markdown(("reason", "target", "what is seen"), list(rows(chosen))))


if __name__ == "__main__":
    try:
        main()
    except CutlassAotError as error:
        sys.exit(f"error: {error}")
