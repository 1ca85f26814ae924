"""A manifest's tuning files: read, and checked against what is planned and then against what was compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.model import Manifest
from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.tiling import Traffic
from cutlass_aot.schema.tuning.ranking import Ranking
from cutlass_aot.schema.tuning.tuned import Objects, objects_of, of_present, rankings_of_manifest
from cutlass_aot.schema.tuning.tuning import MAX_TUNING_BYTES, TunedGroup, Tuning
from cutlass_aot.schema.words import few


def read_tunings(manifest: Manifest) -> dict[str, Tuning]:
    """The tuning files that a manifest names, by their paths as written."""
    found = {}
    for name in manifest.select.tuning:
        path = manifest.path.parent / name
        try:
            with path.open("rb") as file:
                data = file.read(MAX_TUNING_BYTES + 1)
        except OSError as error:
            raise ManifestError(f"select.tuning: {name}: cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != manifest.select.inputs[name]:
            # The bundle's record has the digest of the earlier bytes.
            raise ManifestError(f"select.tuning: {name}: changed while the manifest was read: build again")
        found[name] = Tuning.from_bytes(data, str(path))
    return found


def check_planned(
    tunings: Mapping[str, Tuning], kernels: Iterable[Kernel], versions: Mapping[str, str]
) -> list[str]:
    """Refuse tuning files that are seen not to fit the plan, before anything is compiled.

    Returns:
        For each file that has times of other kernels too, which are left out, how many these are; and groups
        of GEMMs that have times and no cost model, as the file of an interrupted measurement has.
    """
    planned: Objects = {kernel.digest: (kernel, None) for kernel in kernels}
    rankings_of_manifest(tunings, planned, versions)
    notes = []
    for name, tuning in tunings.items():
        present = of_present(tuning, planned)
        there, used = (sum(len(group.kernels) for group in found.groups) for found in (tuning, present))
        if used < there:
            notes.append(
                f"select.tuning: {name}: {there - used} of the {there} kernels that it has times of are not "
                "in this build: they are left out"
            )
        unfitted = [group.name for group in present.groups if _lacks_model(group, planned)]
        if unfitted:
            notes.append(
                f"select.tuning: {name}: no cost model is fitted to the times of {few(unfitted, 2)}: "
                "problems that were not measured are chosen for without them; fit it with cutlass-aot tune "
                "BUNDLE --fit and this file, where BUNDLE is the one that was measured"
            )
    return notes


def _lacks_model(group: TunedGroup, planned: Objects) -> bool:
    """Whether a cost model could be fitted to a group's times, and none was."""
    if group.model is not None or not any(problem.ranked for problem in group.problems):
        return False
    kernel, _ = planned[group.kernels[0].digest]
    return Traffic.of(kernel.operands).of_gemm


def measured_rankings(
    tunings: Mapping[str, Tuning], entries: Sequence[KernelEntry], versions: Mapping[str, str]
) -> tuple[Ranking, ...]:
    """The rankings that the files give of the kernels as they were compiled."""
    return rankings_of_manifest(tunings, objects_of(entries), versions)
