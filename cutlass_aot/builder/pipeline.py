"""A whole build: the one module that composes the stages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cutlass_aot
from cutlass_aot.builder import compile as compiling
from cutlass_aot.builder import plan as planning
from cutlass_aot.builder import rank as ranking
from cutlass_aot.builder.events import Enumerating, Finished, Listener, Planned, Ranking, UpToDate
from cutlass_aot.builder.link_groups import link_groups, link_launchers
from cutlass_aot.builder.native.link import LinkToolchain
from cutlass_aot.builder.pool import Pool
from cutlass_aot.builder.records import Failure, PlannedKernel, Selection, Sources
from cutlass_aot.builder.toolchain import CompilerToolchain, detect_compiler, own_sources
from cutlass_aot.builder.tuned import check_planned, measured_rankings, read_tunings
from cutlass_aot.bundle.write import BundlePlan, Outcome, bundle_is, write_bundle
from cutlass_aot.errors import ManifestError
from cutlass_aot.generators.device import DeviceProfile, load_profile
from cutlass_aot.manifest.model import Manifest, device_text, load_manifest
from cutlass_aot.schema.artifact import Artifact
from cutlass_aot.schema.catalog import Needs
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.schema.tuning import Tuning
from cutlass_aot.store.store import Store


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build came to.

    Attributes:
        bundle: its directory.
        kernels: number of kernels asked for.
        compiled: how many were compiled now.
        failures: what failed; the bundle is written only if nothing did.
        written: whether the bundle's directory was written, False if it was up to date.
    """

    bundle: Path
    kernels: int
    compiled: int
    failures: tuple[Failure, ...]
    written: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a bundle is to be, apart from its kernels.

    Attributes:
        name: the bundle's name.
        version: version of its wheel.
        device: the device profiles of its kernels, in words.
        targets: GPU code targets.
        hosts: CPU architectures to link for.
        tuning: tuning files whose times the bundle is to have, by their names for an error.
    """

    name: str
    version: str
    device: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    tuning: Mapping[str, Tuning] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Tools:
    """What a build works with, looked up once."""

    sources: Sources
    compiler: CompilerToolchain
    linkers: Mapping[str, LinkToolchain] = field(default_factory=dict)

    @property
    def provenance(self) -> dict[str, str]:
        """What builds the kernels."""
        return {
            **self.compiler.versions,
            "cutlass-aot": cutlass_aot.__version__,
            "toolchain": self.compiler.fingerprint,
        }

    def pool(self, jobs: int, directory: Path, timeout: float) -> Pool:
        modules = sorted({m for g in self.sources.instances.values() for m in g.modules})
        return Pool(jobs, tuple(modules), directory, timeout, self.compiler.roots)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a manifest leads to."""

    manifest: Manifest
    devices: Mapping[str, DeviceProfile]
    model: ranking.Model | None
    tools: _Tools


def _inputs(manifest_path: Path, *, linkers: bool) -> _Inputs:
    manifest = load_manifest(manifest_path)
    with _naming(manifest_path):
        devices = {
            target: load_profile(name, manifest_path.parent) for target, name in manifest.devices.items()
        }
        sources = planning.load_sources(manifest)
        model = ranking.find_model(manifest, sources, devices)
        compiler = detect_compiler()
    found = {host: LinkToolchain.detect(host) for host in manifest.hosts} if linkers else {}
    return _Inputs(manifest, devices, model, _Tools(sources, compiler, found))


@contextmanager
def _naming(manifest_path: Path) -> Iterator[None]:
    """Have the errors of a manifest begin with its path, at whatever stage it turns out to be wrong."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(f"{manifest_path}: {error}") from None


def make_plan(
    manifest_path: Path, store_path: Path, *, jobs: int, timeout: float, tell: Listener
) -> tuple[Selection, list[PlannedKernel]]:
    """Say what a build of this manifest would do. A store is read if there is one; none is made.

    Raises:
        CutlassAotError: for bad input; see the stages.
    """
    inputs = _inputs(manifest_path, linkers=False)
    # An empty directory is a store that no build has begun yet.
    begun = store_path.exists() and not (store_path.is_dir() and not any(store_path.iterdir()))
    store = Store(store_path, create=False) if begun else None
    plan = _plan_digest(inputs)
    selection = planning.load_selection(store, plan) if store else None
    if selection is None:
        selection = _enumerate(inputs, jobs, timeout, tell)
    with _naming(manifest_path):
        check_planned(read_tunings(inputs.manifest), selection.kernels, inputs.tools.provenance)
    keys = planning.kernel_keys(selection, inputs.tools.sources, inputs.tools.compiler.fingerprint)
    return selection, planning.against_store(selection, keys, store)


def build(
    manifest_path: Path,
    store_path: Path,
    output: Path,
    *,
    jobs: int,
    timeout: float,
    tell: Listener,
) -> BuildResult:
    """Build a manifest's bundle.

    Args:
        manifest_path: the manifest.
        store_path: directory of the store.
        output: directory under which the bundle's directory, named as the bundle, is put.
        jobs: workers at once.
        timeout: seconds one kernel may take.
        tell: called with every event.

    Raises:
        CutlassAotError: for bad input; see the stages. A kernel that fails is in the result instead.
    """
    inputs = _inputs(manifest_path, linkers=True)
    manifest, store = inputs.manifest, Store(store_path)
    selection = _selection(inputs, store, jobs, timeout, tell)
    # A tuning file may turn out not to fit only when its kernels are compiled.
    with _naming(manifest_path):
        recipe = Recipe(
            name=manifest.name,
            version=manifest.version,
            device=device_text(manifest.devices),
            targets=tuple(sorted(manifest.targets)),
            hosts=tuple(sorted(manifest.hosts)),
            tuning=read_tunings(manifest),
        )
        return _bundle(recipe, selection, inputs.tools, store, output, jobs, timeout, tell)


def build_kernels(
    recipe: Recipe,
    kernels: Iterable[Kernel],
    store_path: Path,
    output: Path,
    *,
    jobs: int,
    timeout: float,
    tell: Listener,
) -> BuildResult:
    """Build a bundle of kernels that somebody else has chosen, from their records.

    Args:
        recipe: what the bundle is to be.
        kernels: records of registered generators; one named twice counts once.
        store_path: directory of the store.
        output: directory under which the bundle's directory, named as the bundle, is put.
        jobs: workers at once.
        timeout: seconds one kernel may take.
        tell: called with every event.

    Raises:
        CutlassAotError: for bad input; see the stages. A kernel that fails is in the result instead.
    """
    compiler = detect_compiler()
    selection = planning.given(kernels, compiler.versions["nvidia-cutlass-dsl"])
    sources = planning.find_sources({kernel.generator for kernel in selection.kernels})
    tools = _Tools(sources, compiler, {host: LinkToolchain.detect(host) for host in recipe.hosts})
    return _bundle(recipe, selection, tools, Store(store_path), output, jobs, timeout, tell)


def _bundle(
    recipe: Recipe,
    selection: Selection,
    tools: _Tools,
    store: Store,
    output: Path,
    jobs: int,
    timeout: float,
    tell: Listener,
) -> BuildResult:
    """Compile what the store lacks of a selection, link, write."""
    bundle = output / recipe.name
    keys = planning.kernel_keys(selection, tools.sources, tools.compiler.fingerprint)
    inputs_digest = _inputs_digest(recipe, selection, tools, keys)
    known = store.get_record("bundle", inputs_digest)
    if isinstance(known, dict) and bundle_is(bundle, str(known.get("catalog_sha256"))):
        tell(UpToDate(len(keys)))
        return _finish(BuildResult(bundle, len(keys), 0, (), False), tell)

    check_planned(recipe.tuning, selection.kernels, tools.provenance)
    planned = planning.against_store(selection, keys, store)
    missing = [item for item in planned if item.artifact is None]
    tell(Planned(tuple(planned), selection.remarks))
    artifacts = {item.key: item.artifact for item in planned if item.artifact is not None}
    failures: list[Failure] = []
    compiled = 0
    if missing:
        with store.workspace() as workspace, tools.pool(jobs, workspace, timeout) as pool:
            done = compiling.compile_missing(pool, missing, tools.sources, store, workspace, tell)
        artifacts.update(done.artifacts)
        failures, compiled = done.failures, done.compiled
    if failures:
        return _finish(BuildResult(bundle, len(keys), compiled, tuple(failures), False), tell)

    outcome = _write(recipe, selection, tools, store, bundle, keys, artifacts, tell)
    store.put_record("bundle", inputs_digest, {"catalog_sha256": outcome.catalog_sha256})
    return _finish(BuildResult(bundle, len(keys), compiled, (), outcome.written), tell)


def _finish(result: BuildResult, tell: Listener) -> BuildResult:
    tell(Finished(result.bundle, result.kernels, result.compiled, len(result.failures), result.written))
    return result


def _selection(inputs: _Inputs, store: Store, jobs: int, timeout: float, tell: Listener) -> Selection:
    """The kernels that a manifest asks for: from an earlier plan if nothing it follows from has changed."""
    plan = _plan_digest(inputs)
    selection = planning.load_selection(store, plan)
    if selection is None:
        selection = _enumerate(inputs, jobs, timeout, tell)
        planning.save_selection(store, plan, selection)
    return selection


def _plan_digest(inputs: _Inputs) -> str:
    packages = inputs.model.packages if inputs.model else None
    return planning.plan_digest(
        inputs.manifest, inputs.devices, inputs.tools.sources, inputs.tools.compiler.fingerprint, packages
    )


def _enumerate(inputs: _Inputs, jobs: int, timeout: float, tell: Listener) -> Selection:
    questions = planning.enumerations(inputs.manifest, inputs.tools.sources)
    tell(Enumerating(len(questions)))
    with (
        tempfile.TemporaryDirectory(prefix="cutlass-aot-") as folder,
        inputs.tools.pool(jobs, Path(folder), timeout) as pool,
    ):
        answers = compiling.enumerate_kernels(pool, questions, inputs.devices)
        with _naming(inputs.manifest.path):
            versions = inputs.tools.compiler.versions
            selection = planning.select(inputs.manifest, answers, versions["nvidia-cutlass-dsl"])
            if inputs.model is None:
                return selection
            tell(Ranking(len(inputs.manifest.select.shapes.extents)))
            return ranking.rank(
                selection, inputs.manifest, inputs.model, inputs.tools.sources, inputs.devices, pool
            )


def _inputs_digest(recipe: Recipe, selection: Selection, tools: _Tools, keys: Sequence[str]) -> str:
    return digest(
        encode(
            {
                "cutlass_aot": own_sources(),
                "name": recipe.name,
                "version": recipe.version,
                "device": recipe.device,
                "targets": recipe.targets,
                "keys": sorted(keys),
                "rankings": [digest(item.to_bytes()) for item in selection.rankings],
                "tuning": [digest(recipe.tuning[name].to_bytes()) for name in sorted(recipe.tuning)],
                "linkers": {host: linker.fingerprint for host, linker in tools.linkers.items()},
                "versions": tools.compiler.versions,
            }
        )
    )


def _write(
    recipe: Recipe,
    selection: Selection,
    tools: _Tools,
    store: Store,
    bundle: Path,
    keys: Sequence[str],
    artifacts: Mapping[str, Artifact],
    tell: Listener,
) -> Outcome:
    entries = planning.kernel_entries(
        selection.kernels, keys, artifacts, tools.sources, tools.compiler.fingerprint
    )
    measured = measured_rankings(recipe.tuning, entries, tools.provenance)
    first = tools.linkers[recipe.hosts[0]]
    with store.workspace() as workspace:
        groups = link_groups(entries, tools.linkers, store, workspace, tell)
        return write_bundle(
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
                provenance=tools.provenance,
                groups=groups,
                launchers=link_launchers(tools.linkers, store, workspace),
                licenses=first.licenses(),
                rankings=(*selection.rankings, *measured),
            ),
            bundle,
        )
