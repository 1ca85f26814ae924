"""Artifacts to a bundle: link the libraries, write the directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cutlass_aot.builder.events import Listener
from cutlass_aot.builder.link_groups import library_keys, link_groups, link_launchers
from cutlass_aot.builder.native.link import LinkToolchain
from cutlass_aot.builder.plan import kernel_entries
from cutlass_aot.builder.recipe import Origins, Recipe
from cutlass_aot.builder.records import Selection
from cutlass_aot.builder.tuned import measured_rankings
from cutlass_aot.bundle.write import BundlePlan, Outcome, write_bundle
from cutlass_aot.schema.artifact import Artifact
from cutlass_aot.schema.catalog import Needs
from cutlass_aot.store.roots import set_root
from cutlass_aot.store.store import Store


def assemble(
    recipe: Recipe,
    selection: Selection,
    origins: Origins,
    linkers: Mapping[str, LinkToolchain],
    keys: Sequence[str],
    artifacts: Mapping[str, Artifact],
    store: Store,
    bundle: Path,
    tell: Listener,
) -> Outcome:
    """Put a bundle together from objects that the store has, and keep them there under the bundle's name.

    Args:
        recipe: what the bundle is to be.
        selection: its kernels.
        origins: what they come from.
        linkers: host to linker.
        keys: the kernels' keys, in their order.
        artifacts: by key, of every kernel.
        store: has the objects, and takes the libraries.
        bundle: the bundle's directory.
        tell: called with the events of linking.

    Raises:
        LinkError: if the linker fails.
        ManifestError: if a tuning file was measured with other kernels.
        BundleError: if the bundle cannot be written; what was there stays.
        StoreError: if an object is gone since it was planned.
    """
    entries = kernel_entries(selection.kernels, keys, artifacts, origins)
    measured = measured_rankings(recipe.tuning, entries, origins.provenance)
    first = linkers[recipe.hosts[0]]
    with store.workspace() as workspace:
        outcome = write_bundle(
            BundlePlan(
                name=recipe.name,
                version=recipe.version,
                device=recipe.device,
                targets=recipe.targets,
                hosts=recipe.hosts,
                needs=Needs(
                    cuda_runtime=first.cuda_runtime_version,
                    tvm_ffi=first.tvm_ffi_version,
                    glibc=first.glibc,
                ),
                provenance=origins.provenance,
                groups=link_groups(entries, linkers, store, workspace, tell),
                launchers=link_launchers(linkers, store, workspace),
                licenses=first.licenses(),
                rankings=(*selection.rankings, *measured),
            ),
            bundle,
        )
    libraries = library_keys(entries, linkers)
    references = [("kernel", key) for key in keys] + [("library", key) for key in libraries]
    set_root(store, recipe.name, references)
    return outcome
