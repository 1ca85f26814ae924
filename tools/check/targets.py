"""What there is for Rubin, Thor and GB10, and what a few kernels of each family give.

    python -m tools.check.targets [MANIFEST] [--store DIR] [--out DIR] [-j JOBS]

Needs the build extra with the DSL's libraries for CUDA 13, no GPU. MANIFEST is ``manifests/targets.toml`` if
left out. Builds it, disassembles every object and compares its instructions with the record
(``tools/check/instructions.py``), and verifies the bundle with its libraries for each host. Prints Markdown:
kernels, tensor-core instructions, the most registers and spills, by target and family; then how many
operators of each family the package lists for each target, and how many of them have clusters that fit on the
device of the manifest. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

import click

import cutlass_aot
from cutlass_aot.builder.build import build
from cutlass_aot.builder.compile.cores import available_workers
from cutlass_aot.builder.settings import Settings
from cutlass_aot.bundle.verify.directory import verify_bundle
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.manifest.model import Manifest, load_manifest
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from tools.bench.command import markdown
from tools.bench.machine import about
from tools.check.catalogue import Progress, say
from tools.check.coverage import check_instructions
from tools.check.instructions import required

MANIFEST = Path("manifests/targets.toml")


def listed(manifest: Manifest) -> str:
    """How many operators the package lists by family and target, and how many have clusters that fit."""
    # No target of ours runs on this architecture: the DSL asks for no GPU.
    os.environ["CUTE_DSL_ARCH"] = "sm_90"
    from cutlass.operators import get_operators

    from cutlass_aot.generators.cutlass_operators import records

    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for target in manifest.targets:
        say(f"listing {target}")
        device = load_profile(manifest.devices[target])
        operators = get_operators(target_sm=target.removeprefix("sm_"))
        for name, those in (("", operators), (" that fit", records.launchable(operators, device))):
            for operator in those:
                counts[records.family(operator)][f"{target}{name}"] += 1
                counts["all"][f"{target}{name}"] += 1
    columns = [f"{target}{name}" for target in manifest.targets for name in ("", " that fit")]
    rows = [
        (family, *(f"{found[column]:,}" if found[column] else "" for column in columns))
        for family, found in sorted(counts.items(), key=lambda item: (item[0] == "all", item[0]))
    ]
    return markdown(("family", *columns), rows, right=len(columns))


def family_of(handle: KernelHandle) -> str:
    """The family of a kernel, or the operation of a declared one."""
    return str(handle.design.get("family", handle.kernel.operation))


def built(handles: list[KernelHandle]) -> str:
    """What was built, by family and target."""
    groups: dict[tuple[str, str], list[KernelHandle]] = defaultdict(list)
    for handle in handles:
        groups[handle.target, family_of(handle)].append(handle)
    rows = []
    for (target, family), own in sorted(groups.items()):
        instructions = sorted({str(required(handle.kernel) or "none") for handle in own})
        facts = [handle.facts for handle in own]
        registers, spills = max(item.registers for item in facts), max(item.spill_bytes for item in facts)
        rows.append((target, family, ", ".join(instructions), len(own), registers, spills))
    head = ("target", "family", "tensor-core instructions", "kernels", "registers, largest", "spills, B")
    return markdown(head, rows, right=3)


@click.command()
@click.argument("path", metavar="MANIFEST", type=click.Path(exists=True, path_type=Path), default=MANIFEST)
@click.option(
    "--store", type=click.Path(path_type=Path), default=Path("build/store"), help="Compiled kernels."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("build/bundles"), help="Takes the bundle."
)
@click.option("-j", "--jobs", type=click.IntRange(1), default=available_workers, help="Workers.")
def main(path: Path, store: Path, out: Path, jobs: int) -> None:
    """List what there is for a manifest's targets, build the manifest, and audit what it gives."""
    settings = Settings(store, jobs, 600.0, Progress())
    result = build(path, out, settings)
    wrong = [f"{failure.kernel.name}: {failure.reason}" for failure in result.failures]
    click.echo(f"{about().markdown()}\n")
    if not result.failures:
        bundle = cutlass_aot.open(result.bundle)
        handles = bundle.kernels()
        say(f"disassembling {len(handles)} kernels")
        with settings.open_store() as opened:
            wrong += check_instructions(handles, opened, jobs)[1]
        wrong += [str(problem) for problem in verify_bundle(result.bundle)]
        assemblers = sorted({handle.facts.ptxas_version for handle in handles})
        click.echo(
            f"{len(handles)} kernels for hosts {', '.join(bundle.catalog.hosts)}, code by ptxas "
            f"{', '.join(assemblers)}; the bundle needs a driver for CUDA "
            f"{bundle.catalog.requirements.cuda_driver}. Wrong: {len(wrong)}.\n\n{built(handles)}\n"
        )
    click.echo(listed(load_manifest(path)))
    for problem in wrong:
        say(f"wrong: {problem}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    try:
        main()
    except CutlassAotError as error:
        sys.exit(f"error: {error}")
