"""``cutlass-aot tune``: measure the kernels of a bundle on the GPU at hand."""

from __future__ import annotations

import datetime
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cutlass_aot.cli.options import bundle_argument

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle
    from cutlass_aot.schema.shapes import ShapeList
    from cutlass_aot.schema.tuning import Tuning

_MAX_SHAPES_BYTES = 4 << 20
_FILTERS = {
    "group": "Name of a group, such as gemm-bf16.bf16.bf16-f32-tnt-sm_90a.",
    "dtypes": "Element types of the operands, such as bf16.bf16.bf16 or 'f8*'.",
    "layouts": "Layout letters of the operands, such as tnt.",
    "target": "GPU code target, such as sm_90a.",
}


def _filter_options(function: Any) -> Any:
    for name, meaning in reversed(_FILTERS.items()):
        function = click.option(f"--{name}", multiple=True, metavar="PATTERN", help=meaning)(function)
    return function


@click.command("tune")
@bundle_argument
@click.option(
    "--shapes",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="TOML file of problems: m = [...], and tables with nk = [[n, k], ...].",
)
@click.option("--gpu", type=click.IntRange(0), default=0, show_default=True, help="CUDA device ordinal.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Tuning file, gone on with if it is there.  [default: build/tuning/BUNDLE.GPU.json]",
)
@_filter_options
@click.option("--exhaustive", is_flag=True, help="Measure every kernel to the end, however slow it is.")
@click.option("--force", is_flag=True, help="Measure everything again.")
@click.option("--json", "as_json", is_flag=True, help="Print an event a line, as JSON.")
def command(
    bundle: Path,
    shapes: Path,
    gpu: int,
    output: Path | None,
    exhaustive: bool,
    force: bool,
    as_json: bool,
    **filters: tuple[str, ...],
) -> int:
    """Measure the kernels of BUNDLE on the GPU at hand, and write a tuning file.

    Every kernel's result is checked before its time counts. Results are kept as they come: the same command
    goes on where it was interrupted.
    """
    from cutlass_aot.cli.tune_report import JsonReport, PlainReport
    from cutlass_aot.runtime import device
    from cutlass_aot.runtime.bundle import open_bundle
    from cutlass_aot.schema.tuning import read_tuning, write_tuning
    from cutlass_aot.tuning.gpu import GpuBench, import_torch
    from cutlass_aot.tuning.search import Effort
    from cutlass_aot.tuning.session import plan, resumed, run

    problems = _read_shapes(shapes)
    opened = open_bundle(bundle)
    wanted = {name: list(patterns) for name, patterns in filters.items() if patterns}
    jobs, notes = plan(opened, wanted, problems.extents, device.compute_capability(gpu))
    for job in jobs:
        opened.require(job.kernels[0].target, gpu)
    torch = import_torch(gpu)
    tuning = _empty(opened, gpu, str(torch.__version__))
    path = output or Path("build/tuning") / f"{opened.name}.{_slug(tuning.gpu)}.json"
    if path.exists() and not force:
        tuning = resumed(read_tuning(path), tuning, opened)
    report = (JsonReport if as_json else PlainReport)(jobs, tuning.gpu)
    report.begin([*problems.notes, *notes])
    with GpuBench(torch, gpu, Effort(exhaustive=exhaustive)) as bench:
        tuning = replace(tuning, power_limit_watts=bench.clocks.power_limit_watts())
        try:
            run(
                jobs,
                tuning,
                bench,
                lambda found: write_tuning(found, path),
                report,
                time.monotonic,
                exhaustive=exhaustive,
            )
        except KeyboardInterrupt:
            click.echo(f"interrupted; {path} has what was measured, and the same command goes on", err=True)
            return 1
    report.end(path)
    return 1 if report.failures else 0


def _read_shapes(path: Path) -> ShapeList:
    from cutlass_aot.errors import ManifestError
    from cutlass_aot.schema.shapes import parse_shapes

    try:
        with path.open("rb") as file:
            data = file.read(_MAX_SHAPES_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MAX_SHAPES_BYTES:
        raise ManifestError(f"{path}: larger than {_MAX_SHAPES_BYTES} bytes: is it a list of problems?")
    return parse_shapes(data, str(path))


def _empty(bundle: Bundle, gpu: int, torch_version: str) -> Tuning:
    """A tuning of this machine without results."""
    from cutlass_aot import __version__
    from cutlass_aot.runtime import device, machine
    from cutlass_aot.schema.tuning import Tuning

    major, minor = device.compute_capability(gpu)
    cuda_major, cuda_minor = device.driver_version()
    versions = {
        "cutlass-aot": __version__,
        "torch": torch_version,
        "apache-tvm-ffi": machine.installed_version("apache-tvm-ffi") or "unknown",
        "toolchain": bundle.catalog.provenance.get("toolchain", "unknown"),
    }
    return Tuning(
        gpu=device.device_name(gpu),
        compute_capability=f"{major}.{minor}",
        driver=device.driver_release(),
        cuda=f"{cuda_major}.{cuda_minor}",
        power_limit_watts=None,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        bundle=f"{bundle.name} {bundle.version}",
        versions=dict(sorted(versions.items())),
    )


def _slug(model: str) -> str:
    """A GPU's model as part of a file's name: ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "gpu"
