"""A whole build: the one module that composes the stages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import cutlass_aot
from cutlass_aot.builder import compile as compiling
from cutlass_aot.builder import plan as planning
from cutlass_aot.builder import rank as ranking
from cutlass_aot.builder.link_groups import link_groups, link_launchers
from cutlass_aot.builder.native.link import LinkToolchain
from cutlass_aot.builder.pool import Pool
from cutlass_aot.builder.records import Failure, PlannedKernel, Selection, Sources
from cutlass_aot.builder.toolchain import CompilerToolchain, detect_compiler, own_sources
from cutlass_aot.bundle.write import BundlePlan, Outcome, bundle_is, write_bundle
from cutlass_aot.errors import ManifestError
from cutlass_aot.generators.device import DeviceProfile, load_profile
from cutlass_aot.manifest.model import Manifest, load_manifest
from cutlass_aot.schema.artifact import Artifact
from cutlass_aot.schema.catalog import Needs
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.store.store import Store


class Report(compiling.Progress, Protocol):
    """What is told of a build as it goes."""

    def enumerating(self, questions: int) -> None:
        """The generators are being asked."""

    def ranking(self, shapes: int) -> None:
        """The heuristic is being asked which kernels are the fastest for so many shapes."""

    def planned(self, to_build: int, present: int, remarks: Sequence[str]) -> None:
        """The plan is made; compiling starts."""

    def linking(self, groups: int) -> None:
        """All kernels are there; libraries are being linked."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build came to.

    Attributes:
        bundle: its directory.
        kernels: number of kernels the manifest asks for.
        compiled: how many were compiled now.
        failures: what failed; the bundle is written only if nothing did.
        written: whether the bundle's directory was written, False if it was up to date.
    """

    bundle: Path
    kernels: int
    compiled: int
    failures: tuple[Failure, ...]
    written: bool


@dataclass(slots=True)
class _Inputs:
    """What a build starts from, looked up once."""

    manifest: Manifest
    devices: Mapping[str, DeviceProfile]
    sources: Sources
    model: ranking.Model | None
    compiler: CompilerToolchain
    linkers: Mapping[str, LinkToolchain] = field(default_factory=dict)

    def pool(self, jobs: int, directory: Path, timeout: float) -> Pool:
        modules = sorted({m for g in self.sources.instances.values() for m in g.modules})
        return Pool(jobs, tuple(modules), directory, timeout, self.compiler.roots)


def _inputs(manifest_path: Path) -> _Inputs:
    manifest = load_manifest(manifest_path)
    with _naming(manifest_path):
        devices = {
            target: load_profile(name, manifest_path.parent) for target, name in manifest.devices.items()
        }
        sources = planning.load_sources(manifest)
        model = ranking.find_model(manifest, sources, devices)
        return _Inputs(manifest, devices, sources, model, detect_compiler())


@contextmanager
def _naming(manifest_path: Path) -> Iterator[None]:
    """Have the errors of a manifest begin with its path, at whatever stage it turns out to be wrong."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(f"{manifest_path}: {error}") from None


def make_plan(
    manifest_path: Path, store_path: Path, *, jobs: int, timeout: float, report: Report
) -> tuple[Selection, list[PlannedKernel]]:
    """Say what a build of this manifest would do. A store is read if there is one; none is made.

    Raises:
        CutlassAotError: for bad input; see the stages.
    """
    inputs = _inputs(manifest_path)
    # An empty directory is a store that no build has begun yet.
    begun = store_path.exists() and not (store_path.is_dir() and not any(store_path.iterdir()))
    store = Store(store_path, create=False) if begun else None
    plan = _plan_digest(inputs)
    selection = planning.load_selection(store, plan) if store else None
    if selection is None:
        selection = _enumerate(inputs, jobs, timeout, report)
    keys = planning.kernel_keys(selection, inputs.sources, inputs.compiler.fingerprint)
    return selection, planning.against_store(selection, keys, store)


def build(
    manifest_path: Path,
    store_path: Path,
    output: Path,
    *,
    jobs: int,
    timeout: float,
    report: Report,
) -> BuildResult:
    """Build a manifest's bundle.

    Args:
        manifest_path: the manifest.
        store_path: directory of the store.
        output: directory under which the bundle's directory, named as the bundle, is put.
        jobs: workers at once.
        timeout: seconds one kernel may take.
        report: told as it goes.

    Raises:
        CutlassAotError: for bad input; see the stages. A kernel that fails is in the result instead.
    """
    inputs = _inputs(manifest_path)
    inputs.linkers = {host: LinkToolchain.detect(host) for host in inputs.manifest.hosts}
    store = Store(store_path)
    bundle = output / inputs.manifest.name
    selection = _selection(inputs, store, jobs, timeout, report)
    keys = planning.kernel_keys(selection, inputs.sources, inputs.compiler.fingerprint)

    inputs_digest = _inputs_digest(inputs, selection, keys)
    known = store.get_record("bundle", inputs_digest)
    if isinstance(known, dict) and bundle_is(bundle, str(known.get("catalog_sha256"))):
        report.planned(0, len(keys), selection.remarks)
        return BuildResult(bundle, len(keys), 0, (), False)

    planned = planning.against_store(selection, keys, store)
    missing = [item for item in planned if item.artifact is None]
    report.planned(len(missing), len(planned) - len(missing), selection.remarks)
    artifacts = {item.key: item.artifact for item in planned if item.artifact is not None}
    failures: list[Failure] = []
    compiled = 0
    if missing:
        with store.workspace() as workspace, inputs.pool(jobs, workspace, timeout) as pool:
            done = compiling.compile_missing(pool, missing, inputs.sources, store, workspace, report)
        artifacts.update(done.artifacts)
        failures, compiled = done.failures, done.compiled
    if failures:
        return BuildResult(bundle, len(keys), compiled, tuple(failures), False)

    outcome = _write(inputs, store, bundle, selection, keys, artifacts, report)
    store.put_record("bundle", inputs_digest, {"catalog_sha256": outcome.catalog_sha256})
    return BuildResult(bundle, len(keys), compiled, (), outcome.written)


def _selection(inputs: _Inputs, store: Store, jobs: int, timeout: float, report: Report) -> Selection:
    """The kernels that a manifest asks for: from an earlier plan if nothing it follows from has changed."""
    plan = _plan_digest(inputs)
    selection = planning.load_selection(store, plan)
    if selection is None:
        selection = _enumerate(inputs, jobs, timeout, report)
        planning.save_selection(store, plan, selection)
    return selection


def _plan_digest(inputs: _Inputs) -> str:
    packages = inputs.model.packages if inputs.model else None
    return planning.plan_digest(
        inputs.manifest, inputs.devices, inputs.sources, inputs.compiler.fingerprint, packages
    )


def _enumerate(inputs: _Inputs, jobs: int, timeout: float, report: Report) -> Selection:
    questions = planning.enumerations(inputs.manifest, inputs.sources)
    report.enumerating(len(questions))
    with (
        tempfile.TemporaryDirectory(prefix="cutlass-aot-") as folder,
        inputs.pool(jobs, Path(folder), timeout) as pool,
    ):
        answers = compiling.enumerate_kernels(pool, questions, inputs.devices)
        with _naming(inputs.manifest.path):
            versions = inputs.compiler.versions
            selection = planning.select(inputs.manifest, answers, versions["nvidia-cutlass-dsl"])
            if inputs.model is None:
                return selection
            report.ranking(len(inputs.manifest.select.shapes.extents))
            return ranking.rank(
                selection, inputs.manifest, inputs.model, inputs.sources, inputs.devices, pool
            )


def _inputs_digest(inputs: _Inputs, selection: Selection, keys: Sequence[str]) -> str:
    manifest = inputs.manifest
    return digest(
        encode(
            {
                "cutlass_aot": own_sources(),
                "name": manifest.name,
                "version": manifest.version,
                "device": manifest.device_text,
                "targets": sorted(manifest.targets),
                "keys": sorted(keys),
                "rankings": [digest(item.to_bytes()) for item in selection.rankings],
                "tuning": [manifest.select.inputs[name] for name in manifest.select.tuning],
                "linkers": {host: linker.fingerprint for host, linker in inputs.linkers.items()},
                "versions": inputs.compiler.versions,
            }
        )
    )


def _write(
    inputs: _Inputs,
    store: Store,
    bundle: Path,
    selection: Selection,
    keys: Sequence[str],
    artifacts: Mapping[str, Artifact],
    report: Report,
) -> Outcome:
    manifest = inputs.manifest
    entries = planning.kernel_entries(
        selection.kernels, keys, artifacts, inputs.sources, inputs.compiler.fingerprint
    )
    first = inputs.linkers[manifest.hosts[0]]
    with store.workspace() as workspace:
        groups = link_groups(entries, inputs.linkers, store, workspace, report.linking)
        return write_bundle(
            BundlePlan(
                name=manifest.name,
                version=manifest.version,
                device=manifest.device_text,
                targets=tuple(sorted(manifest.targets)),
                hosts=tuple(sorted(manifest.hosts)),
                needs=Needs(
                    cuda_runtime=first.cuda_runtime_version,
                    tvm_ffi=first.tvm_ffi_version,
                    glibc=first.glibc,
                ),
                provenance={
                    **inputs.compiler.versions,
                    "cutlass-aot": cutlass_aot.__version__,
                    "toolchain": inputs.compiler.fingerprint,
                },
                groups=groups,
                launchers=link_launchers(inputs.linkers, store, workspace),
                licenses=first.licenses(),
                rankings=selection.rankings,
            ),
            bundle,
        )
