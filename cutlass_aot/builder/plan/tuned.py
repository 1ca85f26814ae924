"""A manifest's tuning files: read, and checked against what is planned and then against what was compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.model import Manifest
from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.tuning.ranking import Ranking
from cutlass_aot.schema.tuning.tuned import Objects, objects_of, of_present, rankings_of_manifest
from cutlass_aot.schema.tuning.tuning import MAX_TUNING_BYTES, Tuning


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
        For each file that has times of other kernels too, which are left out, how many these are.
    """
    planned: Objects = {kernel.digest: (kernel, None) for kernel in kernels}
    rankings_of_manifest(tunings, planned, versions)
    notes = []
    for name, tuning in tunings.items():
        there, used = (
            sum(len(group.kernels) for group in found.groups)
            for found in (tuning, of_present(tuning, planned))
        )
        if used < there:
            notes.append(
                f"select.tuning: {name}: {there - used} of the {there} kernels that it has times of are not "
                "in this build: they are left out"
            )
    return notes


def measured_rankings(
    tunings: Mapping[str, Tuning], entries: Sequence[KernelEntry], versions: Mapping[str, str]
) -> tuple[Ranking, ...]:
    """The rankings that the files give of the kernels as they were compiled."""
    return rankings_of_manifest(tunings, objects_of(entries), versions)
