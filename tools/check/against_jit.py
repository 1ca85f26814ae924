"""Compile kernels drawn at random, and compare their code with what the package compiles just in time.

    python -m tools.check.against_jit [--scaled 40] [--sm80 80] [--seed 0] [-o FILE] [--before FILE]

Needs the build extra, no GPU. Block-scaled kernels are those for MXFP8, MXFP4, FP8 with MXFP4, and NVFP4 on
``sm_100a`` and ``sm_103a``; SM80 kernels those of every layout, on every target that the DSL's libraries
compile for. Each is compiled by our generator, as for a bundle, and by ``operator.compile`` of
nvidia-cutlass-operators with the same operator, target and number of clusters. What is disassembled is
counted: all instructions, and those of the loop that multiplies.

Prints Markdown: a row for each kernel. ``-o`` writes our numbers as JSON; given as ``--before`` to another
run with the same seed, they are a column of its table. Exits with 1 if any of our loops is longer, or is as
long in longer code. "The same" are those with the same instructions in the same order.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from cutlass_aot.builder.compile.export import export
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.generators.device_profiles import profile_for
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import KNOWN_TARGETS
from tools.bench.command import markdown
from tools.bench.machine import about
from tools.check.catalogue import say
from tools.check.instructions import Code, code_of, disassemble

SCALED_TARGETS = ("sm_100a", "sm_103a")
LAYOUTS = tuple("".join(letters) for letters in itertools.product("tn", repeat=3))
_EXTENTS = {"L": 2, "M": 512, "N": 1024, "K": 2048}
"""Multiples of whatever a kernel asks for; compiled code takes others too."""


class Kind(NamedTuple):
    """What block-scaled kernels multiply: element types, some of them for a and b, and scale factors."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    scale: ScaleRequest


_FP8 = (("f8e4m3", "f8e4m3"), ("f8e4m3", "f8e5m2"), ("f8e5m2", "f8e4m3"), ("f8e5m2", "f8e5m2"))
_FP4 = "f4e2m1"
KINDS = (
    Kind("MXFP8", _FP8, ScaleRequest("f8e8m0", 32)),
    Kind("MXFP4", ((_FP4, _FP4),), ScaleRequest("f8e8m0", 32)),
    Kind("FP8, MXFP4", (("f8e4m3", _FP4), (_FP4, "f8e5m2")), ScaleRequest("f8e8m0", 32)),
    Kind("NVFP4", ((_FP4, _FP4),), ScaleRequest("f8e4m3", 16)),
)


class Compared(NamedTuple):
    """A kernel and its code: compiled for a bundle, and just in time."""

    what: str
    kernel: Kernel
    ours: Code
    theirs: Code

    @property
    def is_longer(self) -> bool:
        """Whether ours is the worse one."""
        return lengths(self.ours) > lengths(self.theirs)


def lengths(code: Code) -> list[int]:
    """Instructions of the loop and of all code: that by which code is better or worse."""
    return [code.loop, len(code.instructions)]


def scaled(count: int, chance: random.Random) -> Iterator[tuple[str, Problem, Kernel]]:
    """Block-scaled kernels: of each kind and target in turn, else at random."""
    from cutlass_aot.generators.cutlass_operators import block_scaled

    for kind, target in itertools.islice(itertools.cycle(itertools.product(KINDS, SCALED_TARGETS)), count):
        a, b = chance.choice(kind.pairs)
        out = chance.choice(("bf16", "f16", "f32", "f8e4m3"))
        # FP4 lies along K.
        fits = [
            layouts
            for layouts in LAYOUTS
            if (a != _FP4 or layouts[0] == "t") and (b != _FP4 or layouts[1] == "n")
        ]
        problem = Problem("gemm", (a, b, out), chance.choice(fits), "f32", (kind.scale, kind.scale))
        kernels = list(block_scaled.enumerate_kernels(problem, target, profile_for(target)))
        yield kind.name, problem, chance.choice(kernels)


def sm80(count: int, chance: random.Random) -> Iterator[tuple[str, Problem, Kernel]]:
    """SM80 kernels: each layout in turn, each with as many different targets as there are; else at random."""
    from cutlass_aot.generators.cutlass_operators import worker

    targets = [target for target in KNOWN_TARGETS if not not_compiled([target], dsl_toolkit())]
    chance.shuffle(targets)
    for turn in range(count):
        layouts, target = LAYOUTS[turn % len(LAYOUTS)], targets[turn // len(LAYOUTS) % len(targets)]
        ab = chance.choice(("f16", "bf16"))
        problem = Problem("gemm", (ab, ab, chance.choice(("f16", "bf16"))), layouts, "f32")
        kernels = worker.enumerate_kernels(problem, target, profile_for(target))
        (kernel,) = (found for found in kernels if dict(found.design)["family"] == "Sm80TensorOpGemm")
        yield "SM80", problem, kernel


def just_in_time(problem: Problem, kernel: Kernel) -> Any:
    """The function that the package compiles for a kernel's operator."""
    from cutlass_aot.generators import hardware
    from cutlass_aot.generators.cutlass_operators import block_scaled, catalogue, worker

    target = kernel.target.removeprefix("sm_")
    if problem.scales == (None, None):
        operator = catalogue.chosen(worker.operators_of(problem, kernel.target), kernel)
        return operator.compile(worker.gemm_arguments(problem), target_sm=target).compiled_obj
    operator = catalogue.chosen(block_scaled.operators_of(problem, kernel.target), kernel)
    with hardware.answered(dict(kernel.constants), "its record is of another device"):
        return operator.compile(_scaled_arguments(problem), target_sm=target).compiled_obj


def _scaled_arguments(problem: Problem) -> Any:
    """The package's arguments, on tensors without memory."""
    import torch
    from cutlass.operators import GemmArguments, ScaledOperand, ScaleMode, ScaleSwizzleMode

    from cutlass_aot import scales

    def tensor(dtype: str, shape: Sequence[int], letter: str = "t") -> Any:
        element = DTYPES[dtype]
        *outer, rows, columns = shape if letter == "t" else (*shape[:-2], shape[-1], shape[-2])
        made = torch.empty(
            *outer, rows, columns // element.torch_packs, dtype=getattr(torch, element.torch), device="meta"
        )
        return made if letter == "t" else made.transpose(-1, -2)

    def operand(position: int, rows: str) -> Any:
        extents = ("L", rows, "K") if position == 0 else ("L", "K", rows)
        shape = [_EXTENTS[name] for name in extents]
        request = problem.scales[position]
        assert request is not None
        factors = scales.count(_EXTENTS[rows], _EXTENTS["K"], request.block, batch=_EXTENTS["L"])
        return ScaledOperand(
            tensor(problem.dtypes[position], shape, problem.layouts[position]),
            torch.empty(factors, dtype=getattr(torch, DTYPES[request.dtype].torch), device="meta"),
            ScaleMode.Blockwise1x16 if request.block == 16 else ScaleMode.Blockwise1x32,
            ScaleSwizzleMode.Swizzle32x4x4,
        )

    out = tensor(problem.dtypes[2], [_EXTENTS[name] for name in "LMN"], problem.layouts[2])
    return GemmArguments(operand(0, "M"), operand(1, "N"), out, accumulator_type=torch.float32)


def code_of_function(function: Any, symbol: str) -> Code:
    """The GPU code of a compiled function."""
    with tempfile.TemporaryDirectory() as folder:
        return code_of(disassemble(export(function, symbol, Path(folder) / "kernel.ll").to_bytes()))


def compared(what: str, problem: Problem, kernel: Kernel) -> Compared:
    """Compile a kernel both ways."""
    from cutlass_aot.generators.cutlass_operators import worker

    ours = code_of_function(worker.compile_kernel(kernel), kernel.symbol)
    return Compared(what, kernel, ours, code_of_function(just_in_time(problem, kernel), kernel.symbol))


def table(found: Sequence[Compared], before: Mapping[str, list[int]]) -> str:
    """A row for each kernel: instructions just in time, ours before where that is known, and now."""
    rows = []
    for what, kernel, ours, theirs in found:
        design = dict(kernel.design)
        shapes = ("x".join(map(str, cast(Any, design[name]))) for name in ("tile_shape", "cluster_shape"))
        dtypes = ".".join(operand.dtype for operand in kernel.operands[:3])
        all_three = lengths(theirs), before.get(kernel.name, ["", ""]), lengths(ours)
        whole, loop = ([one[which] for one in all_three] for which in (1, 0))
        rows.append((what, dtypes, kernel.layouts[:3], kernel.target, *shapes, *whole, *loop))
    head = ("kind", "a.b.out", "layouts", "target", "tile", "cluster")
    numbers = [f"{which}: {whose}" for which in ("all", "loop") for whose in ("JIT", "before", "now")]
    return markdown((*head, *numbers), rows, right=6)


def summary(found: Sequence[Compared], before: Mapping[str, list[int]]) -> str:
    """How many are longer, the same to the instruction, and neither, for each kind."""
    rows = []
    for what in dict.fromkeys(one.what for one in found):
        these = [one for one in found if one.what == what]
        known = [one for one in these if one.kernel.name in before]
        was = sum(before[one.kernel.name] > lengths(one.theirs) for one in known)
        same = sum(one.ours == one.theirs for one in these)
        longer = sum(one.is_longer for one in these)
        shorter = sum(lengths(one.ours) < lengths(one.theirs) for one in these)
        rows.append((what, len(these), was if known else "", longer, same, shorter))
    return markdown(("kind", "kernels", "longer before", "longer now", "the same", "shorter"), rows, right=5)


@click.command()
@click.option("--scaled", "scaled_count", default=40, show_default=True, help="Block-scaled kernels.")
@click.option("--sm80", "sm80_count", default=80, show_default=True, help="SM80 kernels.")
@click.option("--seed", default=0, show_default=True)
@click.option("-o", "output", type=click.Path(path_type=Path), help="Write our numbers as JSON.")
@click.option("--before", type=click.Path(path_type=Path, exists=True), help="What another run wrote.")
def main(scaled_count: int, sm80_count: int, seed: int, output: Path | None, before: Path | None) -> None:
    """Compare the machine code of kernels with what the operators package compiles just in time."""
    # No target of ours runs on this architecture: the DSL makes no engine, and asks for no GPU.
    os.environ["CUTE_DSL_ARCH"] = "sm_90"
    chance = random.Random(seed)  # noqa: S311
    drawn = [*scaled(scaled_count, chance), *sm80(sm80_count, chance)]
    found = []
    for number, (what, problem, kernel) in enumerate(drawn, 1):
        say(f"{number} of {len(drawn)}: {kernel.name}")
        found.append(compared(what, problem, kernel))
    known = json.loads(before.read_text("utf-8")) if before else {}
    if output:
        output.write_text(
            json.dumps({one.kernel.name: lengths(one.ours) for one in found}, indent=1) + "\n", "utf-8"
        )
    click.echo(f"{about().markdown()} Libraries of the DSL for CUDA {dsl_toolkit()}.\n")
    click.echo(f"{summary(found, known)}\n\n{table(found, known)}")
    sys.exit(1 if any(one.is_longer for one in found) else 0)


if __name__ == "__main__":
    try:
        main()
    except CutlassAotError as error:
        sys.exit(f"error: {error}")
