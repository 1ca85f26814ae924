"""A whole build: the one module that composes the stages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cutlass_aot.builder import compile as compiling
from cutlass_aot.builder import plan as planning
from cutlass_aot.builder import rank as ranking
from cutlass_aot.builder.answer import Answer, keep_answer
from cutlass_aot.builder.events import Enumerating, Finished, Listener, Planned, Ranking, UpToDate
from cutlass_aot.builder.explain import explain, keep_parts
from cutlass_aot.builder.inputs import Inputs, Tools, load_inputs, load_tools, naming, remember_files
from cutlass_aot.builder.link_groups import link_groups, link_launchers
from cutlass_aot.builder.records import Failure, PlannedKernel, Selection
from cutlass_aot.builder.tuned import check_planned, measured_rankings, read_tunings
from cutlass_aot.bundle.write import BundlePlan, Outcome, bundle_is, write_bundle
from cutlass_aot.manifest.model import device_text
from cutlass_aot.runtime.files import read_manifest
from cutlass_aot.schema.artifact import Artifact
from cutlass_aot.schema.catalog import MANIFEST_NAME, Needs
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
class Settings:
    """Where and how to build; nothing of it decides what comes out.

    Attributes:
        store: directory of the store.
        jobs: workers at once.
        timeout: seconds one kernel may take.
        tell: called with every event.
    """

    store: Path
    jobs: int
    timeout: float
    tell: Listener


@dataclass(frozen=True, slots=True)
class Plan:
    """What a build would do.

    Attributes:
        selection: the kernels that the manifest asks for.
        kernels: each of them, with what the store has for it.
        difference: why the plan is not the one of the last build, in words; ``""`` if it is.
    """

    selection: Selection
    kernels: tuple[PlannedKernel, ...]
    difference: str


def make_plan(manifest_path: Path, settings: Settings) -> Plan:
    """Say what a build of this manifest would do. A store is read if there is one; none is made.

    Raises:
        CutlassAotError: for bad input; see the stages.
    """
    inputs = load_inputs(manifest_path, settings.store, linkers=False)
    # An empty directory is a store that no build has begun yet.
    path = settings.store
    begun = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    store = Store(path, create=False) if begun else None
    difference = explain(inputs, store)
    selection = planning.load_selection(store, inputs.plan_digest) if store else None
    if selection is None:
        selection = _enumerate(inputs, settings)
    with naming(manifest_path):
        check_planned(read_tunings(inputs.manifest), selection.kernels, inputs.tools.provenance)
    keys = planning.kernel_keys(selection, inputs.tools.sources, inputs.tools.compiler.fingerprint)
    return Plan(selection, tuple(planning.against_store(selection, keys, store)), difference)


def build(manifest_path: Path, output: Path, settings: Settings) -> BuildResult:
    """Build a manifest's bundle.

    Args:
        manifest_path: the manifest.
        output: directory under which the bundle's directory, named as the bundle, is put.
        settings: where and how.

    Raises:
        CutlassAotError: for bad input; see the stages. A kernel that fails is in the result instead.
    """
    inputs = load_inputs(manifest_path, settings.store, linkers=True)
    manifest, store = inputs.manifest, Store(settings.store)
    selection = _selection(inputs, store, settings)
    # A tuning file may turn out not to fit only when its kernels are compiled.
    with naming(manifest_path):
        recipe = Recipe(
            name=manifest.name,
            version=manifest.version,
            device=device_text(manifest.devices),
            targets=tuple(sorted(manifest.targets)),
            hosts=tuple(sorted(manifest.hosts)),
            tuning=read_tunings(manifest),
        )
        result = _bundle(recipe, selection, inputs.tools, store, output, settings)
    remember_files(settings.store, inputs.files)
    if not result.failures:
        answer = Answer(result.bundle, result.kernels)
        keep_answer(manifest_path, settings.store, answer, inputs.files.used, _made(result.bundle))
    return result


def _made(bundle: Path) -> dict[str, str]:
    """A bundle's files with their digests, by absolute path."""
    references = read_manifest(bundle)
    manifest = bundle / MANIFEST_NAME
    files = {str((bundle / path).absolute()): item.sha256 for path, item in references.items()}
    return files | {str(manifest.absolute()): digest(manifest.read_bytes())}


def build_kernels(recipe: Recipe, kernels: Iterable[Kernel], output: Path, settings: Settings) -> BuildResult:
    """Build a bundle of kernels that somebody else has chosen, from their records.

    Args:
        recipe: what the bundle is to be.
        kernels: records of registered generators; one named twice counts once.
        output: directory under which the bundle's directory, named as the bundle, is put.
        settings: where and how.

    Raises:
        CutlassAotError: for bad input; see the stages. A kernel that fails is in the result instead.
    """
    records = tuple(kernels)
    tools, files = load_tools({kernel.generator for kernel in records}, recipe.hosts, settings.store)
    selection = planning.given(records, tools.compiler.versions["nvidia-cutlass-dsl"])
    result = _bundle(recipe, selection, tools, Store(settings.store), output, settings)
    remember_files(settings.store, files)
    return result


def _bundle(
    recipe: Recipe, selection: Selection, tools: Tools, store: Store, output: Path, settings: Settings
) -> BuildResult:
    """Compile what the store lacks of a selection, link, write."""
    bundle, tell = output / recipe.name, settings.tell
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
        with (
            store.workspace() as workspace,
            tools.pool(settings.jobs, workspace, settings.timeout) as pool,
        ):
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


def _selection(inputs: Inputs, store: Store, settings: Settings) -> Selection:
    """The kernels that a manifest asks for: from an earlier plan if nothing it follows from has changed."""
    selection = planning.load_selection(store, inputs.plan_digest)
    if selection is None:
        selection = _enumerate(inputs, settings)
        planning.save_selection(store, inputs.plan_digest, selection)
    keep_parts(store, inputs)
    return selection


def _enumerate(inputs: Inputs, settings: Settings) -> Selection:
    tools = inputs.tools
    questions = planning.enumerations(inputs.manifest, tools.sources)
    settings.tell(Enumerating(len(questions)))
    with (
        tempfile.TemporaryDirectory(prefix="cutlass-aot-") as folder,
        tools.pool(settings.jobs, Path(folder), settings.timeout) as pool,
    ):
        answers = compiling.enumerate_kernels(pool, questions, inputs.devices)
        with naming(inputs.manifest.path):
            versions = tools.compiler.versions
            selection = planning.select(inputs.manifest, answers, versions["nvidia-cutlass-dsl"])
            if inputs.model is None:
                return selection
            settings.tell(Ranking(len(inputs.manifest.select.shapes.extents)))
            return ranking.rank(selection, inputs.manifest, inputs.model, tools.sources, inputs.devices, pool)


def _inputs_digest(recipe: Recipe, selection: Selection, tools: Tools, keys: Sequence[str]) -> str:
    return digest(
        encode(
            {
                "cutlass_aot": tools.own_sources,
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
    tools: Tools,
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
