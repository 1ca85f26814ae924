"""``cutlass-aot tune``: measure the kernels of a bundle on the GPU at hand."""

from __future__ import annotations

import datetime
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from cutlass_aot.cli.options import (
    bundle_argument,
    filter_options,
    filters_given,
    gpu_number_option,
    plugin_option,
)
from cutlass_aot.cli.output.render import tell_unchecked
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import TuningError
from cutlass_aot.schema.words import few

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle
    from cutlass_aot.schema.kernels.constraints import Operands
    from cutlass_aot.schema.tuning.ranking import Extents
    from cutlass_aot.schema.tuning.shapes import ShapeList
    from cutlass_aot.schema.tuning.tuning import Tuning
    from cutlass_aot.tuning.reference_run import Reference
    from cutlass_aot.tuning.session import Job


@dataclass(frozen=True, slots=True)
class _Measurement:
    """What is to be measured, how, and where the results go.

    ``drawn`` is the number of problems to draw beside those of ``shapes``; none is begun after ``seconds``.
    """

    shapes: Path | None
    drawn: int
    seconds: float | None
    output: Path | None
    applied: Path | None
    plugins: tuple[str, ...]
    gpu: int
    filters: dict[str, list[str]]
    exhaustive: bool
    force: bool
    as_json: bool


@click.command("tune")
@bundle_argument
@click.option(
    "--shapes",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file of the problems to measure: m, and tables with nk = [[n, k], ...] or extents by name.",
)
@click.option(
    "--design",
    type=click.IntRange(1, 100_000),
    metavar="COUNT",
    help="Measure this many problems, drawn so that the cost model learns most; beside --shapes or alone.",
)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Begin no problem later than this.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Tuning file to write, or to go on with.  [default: build/tuning/BUNDLE.GPU.json]",
)
@click.option(
    "--apply",
    "applied",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Then write BUNDLE with the results in it to this directory, which may be BUNDLE itself.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Measure nothing: take the results for --apply from this tuning file. Needs no GPU.",
)
@click.option(
    "--fit",
    "fitted",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Measure nothing: fit the cost model anew to this tuning file, and write it. Needs no GPU.",
)
@plugin_option
@gpu_number_option
@filter_options(
    group="Name of a group, such as gemm-bf16.bf16.bf16-f32-tnt-sm_90a.",
    dtypes="Element types of the operands, such as bf16.bf16.bf16 or 'f8*'.",
    layouts="Layout letters of the operands, such as tnt.",
    target="GPU code target, such as sm_90a.",
)
@click.option("--exhaustive", is_flag=True, help="Measure every kernel to the end, however slow it is.")
@click.option("--force", is_flag=True, help="Measure everything again; the file is written anew.")
@click.option("--json", "as_json", is_flag=True, help="Print an event a line, as JSON.")
@click.pass_context
def command(
    context: click.Context,
    /,
    bundle: Path,
    shapes: Path | None,
    design: int | None,
    minutes: float | None,
    output: Path | None,
    applied: Path | None,
    source: Path | None,
    fitted: Path | None,
    plugins: tuple[str, ...],
    gpu: int,
    exhaustive: bool,
    force: bool,
    as_json: bool,
    **filters: tuple[str, ...],
) -> int:
    """Measure the kernels of BUNDLE on the GPU at hand, and write a tuning file.

    Every kernel's result is checked before its time counts. Results are kept as they come: the same command
    goes on where it was interrupted. At the end the cost model is fitted to them, by which problems that were
    not measured are chosen for. With --apply, all this is then put into a bundle, which chooses by it.

    \b
      cutlass-aot tune BUNDLE --shapes FILE                  measure
      cutlass-aot tune BUNDLE --design 200 --minutes 10      measure what teaches the cost model most
      cutlass-aot tune BUNDLE --shapes FILE --apply BUNDLE   measure, and use it
      cutlass-aot tune BUNDLE --from FILE --apply BUNDLE     use what was measured
    """
    if fitted is not None:
        _refuse_beside(context, "--fit", "fitted", "output", "as_json")
        return _fit(bundle, fitted, output or fitted, as_json)
    if source is not None:
        _refuse_beside(context, "--from", "source", "applied", "as_json")
        if applied is None:
            raise click.UsageError("--from needs --apply, the directory to write the bundle to.")
        return _apply(bundle, source, applied, as_json)
    if shapes is None and design is None:
        raise click.UsageError("Missing option '--shapes' or '--design': the problems to measure.")
    measurement = _Measurement(
        shapes=shapes, drawn=design or 0, seconds=None if minutes is None else 60 * minutes, output=output,
        applied=applied, plugins=plugins, gpu=gpu, filters=filters_given(filters), exhaustive=exhaustive,
        force=force, as_json=as_json,
    )  # fmt: skip
    try:
        return _measure(bundle, measurement)
    except KeyboardInterrupt:
        raise click.Abort("what was measured is kept, and the same command goes on from there") from None


def _refuse_beside(context: click.Context, mode: str, *allowed: str) -> None:
    """Refuse parameters other than the ``allowed`` beside --fit or --from, which would ignore them."""
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in context.params:  # In the order of the command line.
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in ("bundle", *allowed):
            raise click.UsageError(f"{flags[name]} does not go with {mode}, which measures nothing.")


def _fit(bundle: Path, source: Path, output: Path, as_json: bool) -> int:
    """Fit the cost model anew to the tuning file ``source``."""
    from cutlass_aot.runtime.bundle import open_bundle
    from cutlass_aot.schema.tuning.tuned import fits, objects_of
    from cutlass_aot.schema.tuning.tuning import read_tuning

    opened = open_bundle(bundle, check=False)
    tuning = read_tuning(source)
    fit = fits(
        tuning,
        objects_of(handle.entry for handle in opened.kernels()),
        holder=f"bundle {opened.name}",
        advice="name the bundle that was measured",
        versions=opened.catalog.provenance,
    )
    if not fit:
        raise TuningError(f"{source}: {fit.reason}")
    _write_fitted(tuning, opened, output, as_json)
    return 0


def _write_fitted(tuning: Tuning, bundle: Bundle, path: Path, as_json: bool) -> Tuning:
    """Fit the cost model to a tuning, and write it to the tuning file ``path``."""
    from cutlass_aot.cli.output.tune_report import tell_fitted
    from cutlass_aot.schema.tuning.tuning import write_tuning
    from cutlass_aot.tuning.fit import fit_tuning

    tuning = fit_tuning(tuning, (handle.kernel for handle in bundle.kernels()))
    write_tuning(tuning, path)
    tell_fitted(tuning, path, as_json=as_json)
    return tuning


def _apply(bundle: Path, source: Path, applied: Path, as_json: bool) -> int:
    """Write the bundle with the results of the tuning file ``source``."""
    from cutlass_aot.bundle.apply_tuning import apply_tuning
    from cutlass_aot.cli.output.tune_report import tell_applied
    from cutlass_aot.schema.tuning.costs import FORMULA
    from cutlass_aot.schema.tuning.tuning import read_tuning

    tuning = read_tuning(source)
    tell_unchecked(bundle)
    try:
        outcome = apply_tuning(bundle, tuning, applied)
    except TuningError as error:
        raise TuningError(f"{source}: {error}") from None
    tell_applied(tuning, applied, outcome.written, as_json=as_json)
    # No cost model is fitted to what is not a GEMM.
    unfitted = [g.name for g in tuning.groups if g.model is None and g.name.startswith("gemm-")]
    if unfitted:
        say(
            f"{source}: no cost model of formula {FORMULA} was fitted to the times of {few(unfitted)}: "
            "problems without times are chosen for by other groups' constants or derived ones; "
            f"cutlass-aot tune {bundle} --fit {source} fits it",
            err=True,
        )
    return 0


def _measure(bundle: Path, measurement: _Measurement) -> int:
    """Measure, write the times and the cost model, and apply them if that was requested."""
    from cutlass_aot.bundle.apply_tuning import with_tuning
    from cutlass_aot.bundle.replace import check_output
    from cutlass_aot.bundle.verify.directory import require_sound
    from cutlass_aot.bundle.write import write_bundle
    from cutlass_aot.cli.output.tune_report import tell_applied
    from cutlass_aot.manifest.toml import read_bytes
    from cutlass_aot.runtime.bundle import open_bundle
    from cutlass_aot.schema.tuning.shapes import ShapeList, parse_shapes

    shapes, applied = measurement.shapes, measurement.applied
    listed = ShapeList((), ()) if shapes is None else parse_shapes(read_bytes(shapes), str(shapes))
    opened = open_bundle(bundle)
    jobs, notes = _jobs(opened, listed, measurement)
    made_of = None
    if applied is not None:
        # Refuses before measuring what could not be written after it.
        made_of = require_sound(bundle).plan()
        tell_unchecked(bundle)
        check_output(applied)
    tuning, path, failures = _session(opened, jobs, notes, measurement)
    tuning = _write_fitted(tuning, opened, path, measurement.as_json)
    if made_of is not None and applied is not None:
        outcome = write_bundle(with_tuning(made_of, tuning), applied)
        tell_applied(tuning, applied, outcome.written, as_json=measurement.as_json)
    return 1 if failures else 0


def _jobs(bundle: Bundle, listed: ShapeList, measurement: _Measurement) -> tuple[list[Job], list[str]]:
    """The groups to measure, each with its problems, and notes on what is left out."""
    from cutlass_aot.runtime.machine import cuda_driver
    from cutlass_aot.schema.kernels.operands import extent_names
    from cutlass_aot.schema.tuning.ranking import problem_of
    from cutlass_aot.tuning.design import design
    from cutlass_aot.tuning.rotation import is_gemm
    from cutlass_aot.tuning.session import plan, unfitting

    def problems(operands: Operands) -> list[Extents]:
        if is_gemm(operands):
            return list(dict.fromkeys((*listed.extents, *design(operands, measurement.drawn))))
        names = {*extent_names(operands)}
        return [problem_of(operands, own) for own in listed.own if own.keys() == names]

    references = _references(bundle, measurement.plugins)
    capability = cuda_driver.compute_capability(measurement.gpu)
    jobs, notes = plan(bundle, measurement.filters, problems, capability, references)
    for job in jobs:
        bundle.require(job.kernels[0].target, measurement.gpu)
    unfit = [f"{measurement.shapes}: {note}" for note in unfitting(listed.own, bundle)]
    return jobs, [*listed.notes, *unfit, *notes]


def _session(
    bundle: Bundle, jobs: list[Job], notes: list[str], measurement: _Measurement
) -> tuple[Tuning, Path, bool]:
    """Measure what the tuning file lacks: its contents now, its path, and whether a kernel failed."""
    from cutlass_aot.cli.output.tune_report import JsonReport, PlainReport
    from cutlass_aot.schema.tuning.tuning import read_tuning, write_tuning
    from cutlass_aot.tuning.fit import import_numpy
    from cutlass_aot.tuning.gpu import GpuBench, import_torch
    from cutlass_aot.tuning.search import Effort
    from cutlass_aot.tuning.session import resumed, run

    gpu, exhaustive = measurement.gpu, measurement.exhaustive
    torch = import_torch(gpu)
    import_numpy()
    tuning = _empty(bundle, gpu, str(torch.__version__))
    path = measurement.output or Path("build/tuning") / f"{bundle.name}.{_slug(tuning.gpu)}.json"
    if path.exists() and not measurement.force:
        try:
            tuning = resumed(read_tuning(path), tuning, bundle)
        except TuningError as error:
            raise TuningError(f"{path}: {error}") from None
    report = (JsonReport if measurement.as_json else PlainReport)(jobs, tuning.gpu)
    report.begin(notes)
    try:
        with GpuBench(torch, gpu, Effort(exhaustive=exhaustive)) as bench:
            tuning = run(
                jobs,
                replace(tuning, power_limit_watts=bench.clocks.power_limit_watts()),
                bench,
                lambda found: write_tuning(found, path),
                report,
                time.monotonic,
                exhaustive=exhaustive,
                seconds=measurement.seconds,
            )
    finally:
        report.close()
    report.end(path)
    return tuning, path, bool(report.failures)


def _references(bundle: Bundle, plugins: tuple[str, ...]) -> dict[str, Reference]:
    """Functions that compute what the bundle's operations do, of declared kernels that are installed here."""
    from cutlass_aot.generators.registry import import_plugin, references

    for plugin in plugins:
        import_plugin(plugin)
    operations = {group.operation for group in bundle.groups} - {"gemm"}
    known = {name: reference for name, reference in references().items() if name in operations}
    found = {name: getattr(reference.load(), "reference", None) for name, reference in known.items()}
    return {name: function for name, function in found.items() if function is not None}


def _empty(bundle: Bundle, gpu: int, torch_version: str) -> Tuning:
    """A tuning of this machine without results."""
    from cutlass_aot import __version__
    from cutlass_aot.runtime.machine import cuda_driver, host
    from cutlass_aot.schema.tuning.tuning import Tuning

    major, minor = cuda_driver.compute_capability(gpu)
    cuda_major, cuda_minor = cuda_driver.driver_version()
    versions = {
        **bundle.catalog.provenance,
        "cutlass-aot": __version__,
        "torch": torch_version,
        "apache-tvm-ffi": host.installed_version("apache-tvm-ffi") or "unknown",
    }
    return Tuning(
        gpu=cuda_driver.device_name(gpu),
        machine=cuda_driver.machine(gpu),
        compute_capability=f"{major}.{minor}",
        driver=cuda_driver.driver_release(),
        cuda=f"{cuda_major}.{cuda_minor}",
        power_limit_watts=None,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        bundle=f"{bundle.name} {bundle.version}",
        versions=dict(sorted(versions.items())),
    )


def _slug(model: str) -> str:
    """A GPU's model as part of a file's name: ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "gpu"
