"""Write a bundle's directory from artifacts and libraries, with the records of what it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cutlass_aot.builder.link.libraries import Libraries
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.builder.link.packages import license_notices
from cutlass_aot.builder.native import CUDA_DRIVER
from cutlass_aot.builder.plan.plan import kernel_entries
from cutlass_aot.builder.plan.recipe import PlannedBundle
from cutlass_aot.builder.plan.tuned import measured_rankings
from cutlass_aot.builder.records import Selection
from cutlass_aot.bundle.glibc import glibc_of
from cutlass_aot.bundle.plan import BundlePlan, GroupPlan
from cutlass_aot.bundle.write import Outcome, write_bundle
from cutlass_aot.programs.describe.distributions import DSL
from cutlass_aot.schema.bundles.catalog import VersionRequirements
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.versions import major_minor
from cutlass_aot.store.roots import Reference


def assemble(
    planned: PlannedBundle,
    artifacts: Mapping[str, Artifact],
    libraries: Libraries,
    linker: LinkToolchain,
    bundle: Path,
) -> tuple[Outcome, list[Reference]]:
    """Write a bundle to the directory ``bundle``, and return the store's records that it is made of.

    ``artifacts`` are those of every kernel, by key. ``linker`` is that of one of the hosts: it says which
    tvm-ffi the libraries need.
    """
    recipe, selection, origins = planned.recipe, planned.selection, planned.origins
    entries = kernel_entries(planned, artifacts, libraries.entry)
    measured = measured_rankings(recipe.tuning, entries, origins.provenance)
    groups = [_with_requests(group, selection) for group in libraries.groups(entries)]
    launchers = libraries.launchers()
    code = _code_origins(planned)
    linked = [
        *launchers.values(),
        *(file for group in groups for own in group.libraries.values() for file in own),
    ]
    outcome = write_bundle(
        BundlePlan(
            name=recipe.name,
            version=recipe.version,
            device=recipe.device,
            targets=recipe.targets,
            hosts=recipe.hosts,
            requirements=VersionRequirements(
                cuda_driver=cuda_driver_for(artifacts.values()),
                tvm_ffi=linker.tvm_ffi_version,
                glibc=glibc_of(file.path for file in linked),
            ),
            provenance={**linker.versions, **_of_generators(planned), **origins.provenance},
            groups=groups,
            launchers=launchers,
            licenses={
                **{f"{name}.txt": license_notices(name, version) for name, version in sorted(code.items())},
                **linker.licenses(),
            },
            rankings=(*selection.rankings, *measured),
        ),
        bundle,
    )
    kernels = [("kernel", key) for key in planned.keys]
    return outcome, kernels + [("library", key) for key in libraries.store_keys()]


def cuda_driver_for(artifacts: Iterable[Artifact]) -> str:
    """The lowest CUDA version of a driver for the shim's functions, and for what the assemblers have written.

    Code of a toolkit runs with drivers from the first release of its major version on. Source: NVIDIA's "CUDA
    Compatibility", "Minor Version Compatibility".
    """
    majors = {major_minor(artifact.facts.ptxas_version)[0] for artifact in artifacts}
    return max([CUDA_DRIVER, *(f"{major}.0" for major in majors)], key=major_minor)


def _with_requests(group: GroupPlan, selection: Selection) -> GroupPlan:
    """A group of kernels for programs, with the requests that they serve."""
    own = [selection.requests.get(entry.kernel.digest) for entry in group.entries]
    return replace(group, requests=tuple(item for item in own if item is not None))


def _of_generators(planned: PlannedBundle) -> dict[str, str]:
    """Distributions whose code is in the kernels of generators, with their versions."""
    used = {kernel.generator for kernel in planned.selection.kernels}
    code = planned.origins.code
    return {name: version for generator in used for name, version in code.get(generator, {}).items()}


def _code_origins(planned: PlannedBundle) -> dict[str, str]:
    """Distributions whose code was compiled into the bundle, with their versions: it carries their notices.

    The DSL is not among them: its licence is about the compiler, not about what it writes.
    """
    requests = planned.selection.requests.values()
    found = _of_generators(planned)
    found |= {name: version for item in requests for name, version in item.request.distributions.items()}
    return {name: version for name, version in found.items() if name not in (DSL, "cutlass-aot")}
