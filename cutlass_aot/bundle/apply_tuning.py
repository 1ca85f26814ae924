"""Put the times of a tuning file into a bundle: the same kernels in the same libraries, chosen better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cutlass_aot.bundle.files import read_licenses
from cutlass_aot.bundle.verify_directory import require_sound
from cutlass_aot.bundle.write import BundlePlan, GroupPlan, Outcome, PackedFile, write_bundle
from cutlass_aot.errors import TuningError
from cutlass_aot.runtime.files.verified_read import read_catalog, read_file, read_manifest
from cutlass_aot.schema.bundles.catalog import FileReference, GroupEntry
from cutlass_aot.schema.bundles.group_index import group_from_bytes
from cutlass_aot.schema.requests.request_index import requests_from_bytes
from cutlass_aot.schema.tuning.ranking import Ranking
from cutlass_aot.schema.tuning.tuned import fits, objects_of, rankings, sound
from cutlass_aot.schema.tuning.tuning import Tuning


def apply_tuning(bundle: Path, tuning: Tuning, output: Path) -> Outcome:
    """Write a bundle as ``bundle`` is, with the rankings of a tuning file. Equal inputs give equal bytes.

    Args:
        bundle: directory of a bundle; nothing in it is changed, unless it is the output too.
        tuning: the file.
        output: directory to write; see :func:`cutlass_aot.bundle.write.write_bundle`.

    Raises:
        TuningError: if the file has no times, times of other kernels or other code, or kernels that failed.
        BundleError: if there is no sound bundle, or the output cannot be written.
    """
    return write_bundle(with_tuning(plan_of(bundle), tuning), output)


def with_tuning(plan: BundlePlan, tuning: Tuning) -> BundlePlan:
    """A plan with the rankings of a tuning file.

    They take the place of those that were measured for the same groups on the same GPU model. Others stay:
    of other groups, of other models, and those that were modelled.

    Raises:
        TuningError: if the file has no times, times of other kernels or other code, or kernels that failed.
    """
    fit = fits(
        tuning,
        objects_of(entry for group in plan.groups for entry in group.entries),
        holder=f"bundle {plan.name}",
        advice="name the bundle that was measured, or measure this one with cutlass-aot tune",
        versions=plan.provenance,
    )
    fit = fit and sound(tuning)
    if not fit:
        raise TuningError(fit.reason)
    new = rankings(tuning)
    if not new:
        raise TuningError("the tuning file has no problem that was measured: there is nothing to apply")
    replaced = {(ranking.group, ranking.gpu, ranking.measured) for ranking in new}
    kept = [
        ranking for ranking in plan.rankings if (ranking.group, ranking.gpu, ranking.measured) not in replaced
    ]
    return replace(plan, rankings=(*kept, *new))


def plan_of(bundle: Path) -> BundlePlan:
    """What a bundle is made of, so that :func:`~cutlass_aot.bundle.write.write_bundle` gives it again.

    Every byte of it is verified. Its libraries are named where they lie, and verified again when they are
    copied.

    Raises:
        BundleError: if there is no bundle, or anything is wrong with it.
    """
    require_sound(bundle)
    catalog = read_catalog(bundle)
    references = read_manifest(bundle)
    return BundlePlan(
        name=catalog.name,
        version=catalog.version,
        device=catalog.device,
        targets=catalog.targets,
        hosts=catalog.hosts,
        requirements=catalog.requirements,
        provenance=catalog.provenance,
        groups=[_group(bundle, group) for group in catalog.groups],
        launchers={host: _packed(bundle, reference) for host, reference in catalog.launchers.items()},
        licenses=read_licenses(bundle, references),
        rankings=[
            Ranking.from_bytes(read_file(bundle, reference.file), reference.file.path)
            for group in catalog.groups
            for reference in group.rankings
        ],
        variant=catalog.variant,
    )


def _group(bundle: Path, group: GroupEntry) -> GroupPlan:
    requests = group.requests
    return GroupPlan(
        name=group.name,
        entries=tuple(group_from_bytes(read_file(bundle, group.child), group, group.child.path)),
        code=_packed(bundle, group.code),
        libraries={
            host: tuple(_packed(bundle, reference) for reference in references)
            for host, references in group.libraries.items()
        },
        requests=()
        if requests is None
        else tuple(requests_from_bytes(read_file(bundle, requests), group, requests.path)),
    )


def _packed(bundle: Path, reference: FileReference) -> PackedFile:
    name = Path(reference.path).name.removesuffix(".zst").removesuffix(".so")
    return PackedFile(name, bundle / reference.path, reference.sha256)
