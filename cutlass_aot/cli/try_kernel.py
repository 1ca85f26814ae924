"""``cutlass-aot try``: compile one kernel in seconds; on a machine with a GPU, check it and time it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cutlass_aot.builder import events
from cutlass_aot.cli.options import (
    extent_option,
    extents_given,
    gpu_number_option,
    json_option,
    pairs_given,
    plugin_option,
)
from cutlass_aot.cli.output.operand_lines import operand_lines
from cutlass_aot.cli.output.render import print_json, prose
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import DeviceError
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.kernels.accumulation import ACCUMULATIONS, EXACT, RequestedAccumulation
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.words import plural, size

if TYPE_CHECKING:
    from cutlass_aot.builder.events import Event
    from cutlass_aot.builder.try_kernel import TriedKernel
    from cutlass_aot.generators.protocol import Generator
    from cutlass_aot.schema.kernels.kernel import Kernel
    from cutlass_aot.tuning.reference_run import Outcome


@click.command("try")
@click.argument("kernel")
@plugin_option
@click.option(
    "--target", help="GPU code target; the best for the GPU at hand, or the kernel's first, if left out."
)
@click.option(
    "--where",
    multiple=True,
    metavar="NAME=PATTERN",
    help="A parameter or a name in the design, such as threads=256; the first kernel that matches is taken.",
)
@extent_option
@click.option("--operation", help="What is computed, for a generator of several operations.")
@click.option(
    "--dtypes", default="", help="Element types of the operands, where a manifest names them: f32.f32.f32."
)
@click.option("--layouts", default="", help="Layout letters of the operands, such as ttt.")
@click.option(
    "--accumulator",
    default="",
    help="Element type of the accumulator; with --dtypes that of a manifest if left out, mostly f32.",
)
@click.option(
    "--accumulation",
    type=click.Choice(ACCUMULATIONS),
    default=EXACT,
    show_default=True,
    help="Sums of FP8 on sm_90a.",
)
@gpu_number_option
@click.option("--no-run", is_flag=True, help="Compile alone, also where there is a GPU.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds it may take."
)
@json_option
def command(
    kernel: str,
    plugins: tuple[str, ...],
    target: str | None,
    where: tuple[str, ...],
    extents: tuple[str, ...],
    operation: str | None,
    dtypes: str,
    layouts: str,
    accumulator: str,
    accumulation: RequestedAccumulation,
    gpu: int,
    no_run: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Compile one kernel: its registers, spills, shared memory and occupancy, or why it does not compile.

    KERNEL is the name of a declared kernel or a generator, or the file that declares it, such as
    axpy_kernels/declared.py, which need not be installed (FILE.py:NAME if there are several). Where there is
    a GPU that runs it and torch, it is compared with its reference function, if it has one, and timed; exit
    status 1 if its result is wrong. Nothing is kept.

    \b
      cutlass-aot try axpy
      cutlass-aot try axpy_kernels/declared.py --where threads=128 --target sm_90a
      cutlass-aot try axpy --extent N=1000000
    """
    from cutlass_aot.builder.try_kernel import target_for, try_kernel
    from cutlass_aot.generators.protocol import Problem
    from cutlass_aot.generators.registry import import_plugin, named
    from cutlass_aot.manifest.filters import DesignFilter
    from cutlass_aot.manifest.kernels import DEFAULT_ACCUMULATORS
    from cutlass_aot.tuning.reference_run import usual_extents

    began = time.monotonic()
    filters = [DesignFilter(name, (pattern,)) for name, pattern in pairs_given(where, "--where")]
    sizes = extents_given(extents)
    for plugin in plugins:
        import_plugin(plugin)
    reference = named(kernel)
    generator = reference.load()
    capability, missing = _capability(gpu)
    if no_run:
        missing = "not asked for"
    operation = operation or generator.operations[0]
    chosen = target_for(generator, operation, target, capability)
    why = "" if target else _why(generator.targets(operation), chosen, gpu, capability)
    named_dtypes = tuple(filter(None, dtypes.split(".")))
    if named_dtypes and not accumulator:
        accumulator = DEFAULT_ACCUMULATORS.get(named_dtypes[0], "f32")
    problem = Problem(operation, named_dtypes, layouts, accumulator, accumulation=accumulation)
    with temporary_folder("try") as folder:
        tell = _ignore if as_json else _tell

        def extents_of(kernel: Kernel) -> Mapping[str | int, int]:
            # Before it is compiled, and where nothing runs: a name that the kernel does not have is refused.
            return usual_extents(kernel.operands, sizes)

        tried = try_kernel(reference, problem, chosen, filters, folder, tell, extents_of, timeout=timeout)
        seconds = time.monotonic() - began
        named_extents = extents_of(tried.kernel)
        outcome: Outcome | None = None
        if capability is not None and not no_run:
            if not as_json:
                say(f"running it on GPU {gpu}", err=True)
            outcome, missing = _run(tried, generator, named_extents, gpu, capability)
    if as_json:
        print_json(_record(tried, seconds, outcome, missing, named_extents))
    else:
        for name, text in _lines(tried, why, seconds, outcome, missing, generator, gpu, named_extents):
            line = f"{name:<15}{text}"
            say(*prose(line, 17) if name in ("operands", "", "target") else [line])
        for problem_text in tried.problems:
            say(f"error: {problem_text}", err=True)
    return 1 if tried.problems or (outcome is not None and not outcome.good) else 0


def _tell(event: Event) -> None:
    """Say on standard error what takes seconds."""
    if isinstance(event, events.Importing):
        say("importing the DSL", err=True)
    elif isinstance(event, events.Started):
        say(f"compiling {event.kernel.name}", err=True)


def _ignore(event: Event) -> None:
    """Say nothing."""


def _capability(gpu: int) -> tuple[tuple[int, int] | None, str]:
    """The compute capability of a GPU; None if there is none, with the reason."""
    from cutlass_aot.runtime.machine import cuda_driver

    try:
        return cuda_driver.compute_capability(gpu), ""
    except DeviceError as error:
        return None, str(error)


def _why(targets: Sequence[str], chosen: str, gpu: int, capability: tuple[int, int] | None) -> str:
    """Why a target was taken that nobody asked for, to be said after its name."""
    if len(targets) == 1:
        return ", the only one of the kernel"
    if capability is not None and Target.parse(chosen).runs_on(capability):
        return f", the best one for GPU {gpu}"
    none = "no GPU here" if capability is None else f"GPU {gpu} runs none"
    return f", the first of {', '.join(targets)} ({none}); --target names another"


def _run(
    tried: TriedKernel,
    generator: Generator,
    extents: Mapping[str | int, int],
    gpu: int,
    capability: tuple[int, int],
) -> tuple[Outcome | None, str]:
    """What a run on the GPU gave; None if it was not run, with the reason."""
    from cutlass_aot.errors import TuningError
    from cutlass_aot.runtime.bundle import open_bundle
    from cutlass_aot.tuning.gpu import import_torch
    from cutlass_aot.tuning.reference_run import run

    if tried.problems:
        return None, "not with what is wrong with it"
    if not Target.parse(tried.kernel.target).runs_on(capability):
        return None, f"GPU {gpu} has compute capability {capability[0]}.{capability[1]} and cannot run it"
    try:
        torch = import_torch(gpu)
    except (TuningError, DeviceError) as error:
        return None, str(error)
    (handle,) = open_bundle(tried.bundle).kernels()
    sizes_used = _sizes(extents) or "its operands"
    try:
        with torch.cuda.device(gpu):
            return run(torch, gpu, handle, getattr(generator, "reference", None), extents), ""
    except torch.cuda.OutOfMemoryError:
        raise TuningError(
            f"the operands at {sizes_used} and their reference do not fit the free memory of GPU {gpu}: name "
            "smaller extents with --extent"
        ) from None
    except NotImplementedError as error:
        raise TuningError(f"this torch has no way to compute the reference: {_first_line(error)}") from error
    except RuntimeError as error:
        raise DeviceError(
            f"GPU {gpu} failed while {handle.name} ran at {sizes_used}: {_first_line(error)}; "
            "CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer tell where"
        ) from error


def _sizes(extents: Mapping[str | int, int]) -> str:
    return ", ".join(f"{name} = {extent}" for name, extent in extents.items())


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _lines(
    tried: TriedKernel,
    why: str,
    seconds: float,
    outcome: Outcome | None,
    missing: str,
    generator: Generator,
    gpu: int,
    extents: Mapping[str | int, int],
) -> list[tuple[str, str]]:
    facts, dynamic, filled = tried.facts, tried.dynamic_bytes, tried.occupancy
    more = f"; the first of {tried.matching} that match" if tried.matching > 1 else ""
    shared = f"{size(facts.shared_memory_bytes)} static, "
    shared += "what is known at the call" if dynamic is None else f"{size(dynamic)} dynamic"
    whole = f"{seconds:.1f} s in all, of which importing the DSL took {tried.import_seconds:.1f} s"
    lines = [
        ("kernel", tried.kernel.name + more),
        *operand_lines(tried.kernel.operands),
        ("target", tried.kernel.target + why),
        ("compiled in", f"{tried.seconds:.1f} s; {whole}"),
        ("registers", f"{facts.registers} a thread"),
        ("spills", f"{size(facts.spill_bytes)} a thread" if facts.spill_bytes else "none"),
        ("shared memory", shared),
        ("block", plural(tried.threads, "thread") if tried.threads else "known at the call"),
    ]
    if filled is not None:
        share = 100 * filled.warps / filled.most_warps
        warps = f"{filled.warps} of {filled.most_warps} warps ({share:.0f} %)"
        lines.append(
            ("occupancy", f"{plural(filled.blocks, 'block')} an SM, {warps}, limited by {filled.limit}")
        )
    else:
        lines.append(("occupancy", "known at the call"))
    if outcome is None:
        lines.append(("run", f"no: {missing.partition(':')[0]}"))
        return lines
    if extents:
        lines.append(("extents", _sizes(extents)))
    if outcome.error is None:
        lines.append(("error", f"not known: {generator.name} declares no reference function"))
    else:
        verdict = "good" if outcome.good else "WRONG"
        lines.append(("error", f"{outcome.error:.2g}, {verdict}: rounding explains {outcome.allowed:.2g}"))
    from cutlass_aot.runtime.machine import cuda_driver

    peak = cuda_driver.machine(gpu).memory_bandwidth
    rate = outcome.gigabytes_per_second
    lines.append(
        (
            "time",
            f"{outcome.microseconds:.1f} µs on {cuda_driver.device_name(gpu)}: {outcome.megabytes:.1f} MB at "
            f"{rate:.0f} GB/s, {100 * rate / peak:.0f} % of the memory's {peak}",
        )
    )
    return lines


def _record(
    tried: TriedKernel,
    seconds: float,
    outcome: Outcome | None,
    missing: str,
    extents: Mapping[str | int, int],
) -> dict[str, Any]:
    filled = tried.occupancy
    return {
        "kernel": tried.kernel.name,
        "target": tried.kernel.target,
        "operands": [to_plain(operand) for operand in tried.kernel.operands],
        "matching": tried.matching,
        "seconds": round(tried.seconds, 3),
        "import_seconds": round(tried.import_seconds, 3),
        "total_seconds": round(seconds, 3),
        "registers": tried.facts.registers,
        "spill_bytes": tried.facts.spill_bytes,
        "shared_memory_bytes": tried.facts.shared_memory_bytes,
        "dynamic_shared_memory_bytes": tried.dynamic_bytes,
        "threads": tried.threads,
        "occupancy": None if filled is None else filled._asdict(),
        "problems": tried.problems,
        "run": None
        if outcome is None
        else {
            **outcome._asdict(),
            "extents": {str(name): extent for name, extent in extents.items()},
            "good": outcome.good,
            "gigabytes_per_second": outcome.gigabytes_per_second,
        },
        "not_run": missing,
    }
