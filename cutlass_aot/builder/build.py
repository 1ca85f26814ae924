"""A whole build: the one module that composes the stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import cutlass_aot
from cutlass_aot.builder import events
from cutlass_aot.builder.assemble import assemble
from cutlass_aot.builder.compile import compile as compiling
from cutlass_aot.builder.compile.compile import Compilation
from cutlass_aot.builder.compile.cores import available_workers
from cutlass_aot.builder.compile.pool import Executor, Pool
from cutlass_aot.builder.events import Event, Listener
from cutlass_aot.builder.inputs.explain import explain, keep_parts, parts_reference
from cutlass_aot.builder.inputs.file_digests import Files
from cutlass_aot.builder.inputs.inputs import Inputs, Tools, load_inputs, load_tools, naming, remember_files
from cutlass_aot.builder.inputs.up_to_date import UpToDateBundle, remember_build
from cutlass_aot.builder.link.libraries import Libraries
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.builder.plan import plan as planning
from cutlass_aot.builder.plan import rank as ranking
from cutlass_aot.builder.plan.recipe import Origins, PlannedBundle, Recipe
from cutlass_aot.builder.plan.tuned import check_planned, read_tunings
from cutlass_aot.builder.programs.record import (
    Program,
    Recorded,
    known_recording,
    merged,
    programs_of,
    record_programs,
    warnings,
)
from cutlass_aot.builder.programs.recordings import take_recordings
from cutlass_aot.builder.records import Failure, PlannedKernel, Selection
from cutlass_aot.builder.settings import Settings
from cutlass_aot.builder.shard import (
    Shard,
    Share,
    check_shard_output,
    check_whole,
    read_shard,
    take_artifacts,
    write_shard,
)
from cutlass_aot.builder.toolchain import own_sources
from cutlass_aot.bundle.replace import check_folder, check_output
from cutlass_aot.bundle.write import bundle_is
from cutlass_aot.errors import CorruptFile, CutlassAotError, ToolchainError
from cutlass_aot.manifest.model import device_text
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.runtime.files.verified_read import read_manifest
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.store.files import reported
from cutlass_aot.store.layout import ROOTS
from cutlass_aot.store.roots import Reference, keep_root, set_root
from cutlass_aot.store.store import Store


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build; a bundle is written only if nothing failed.

    ``kernels`` counts those requested, ``compiled`` those compiled now. ``written`` is False also if the
    bundle was up to date; ``catalog_sha256`` is ``""`` if there is no catalog. For a shard, ``bundle`` is the
    shard's directory.
    """

    bundle: Path
    kernels: int
    compiled: int
    failures: tuple[Failure, ...]
    written: bool
    catalog_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a build would do.

    ``difference`` says why the plan is not that of the last build, ``""`` if it is; ``runs`` names the
    programs that would be run, each with the reason. They may ask for further kernels.
    """

    selection: Selection
    kernels: tuple[PlannedKernel, ...]
    difference: str
    runs: tuple[str, ...]


def make_plan(manifest_path: Path, settings: Settings) -> Plan:
    """Say what a build of this manifest would do. Reads the store if there is one, and creates none."""
    inputs = load_inputs(manifest_path, settings.store, linkers=False)
    with _store_to_read(settings) as store:
        return _plan(inputs, store, settings)


def with_requests(selection: Selection, recorded: Sequence[Recorded]) -> Selection:
    """Add the requests of programs to a selection; their kernels come after those of the generators."""
    requests = merged(recorded)
    kernels = sorted((item.request.kernel for item in requests.values()), key=lambda kernel: kernel.name)
    return replace(
        selection,
        kernels=(*selection.kernels, *kernels),
        warnings=(*selection.warnings, *warnings(recorded)),
        requests=requests,
    )


@contextmanager
def _store_to_read(settings: Settings) -> Iterator[Store | None]:
    """The store if it is not empty; else a temporary one if there are upstream stores; else None."""
    path = settings.store
    begun = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if begun:
        with settings.open_store() as store:
            yield store
    elif settings.upstream or settings.remote:
        with temporary_folder() as folder, settings.open_store(folder) as store:
            yield store
    else:
        yield None


def _plan(inputs: Inputs, store: Store | None, settings: Settings) -> Plan:
    difference = explain(inputs, store)
    selection = planning.load_selection(store, inputs.plan_digest) if store else None
    if selection is None:
        with inputs.tools.pool(settings.jobs, settings.timeout, settings.tell) as pool:
            selection = _enumerate(inputs, settings, pool)
    known = {program: known_recording(program, inputs, store) for program in programs_of(inputs)}
    recorded = take_recordings(inputs, None)
    recorded += [Recorded(program, found) for program, (found, _) in known.items() if found is not None]
    selection = with_requests(selection, recorded)
    runs = tuple(f"{program} would be run: {why}" for program, (_, why) in known.items() if why)
    with naming(inputs.manifest.path):
        tunings, provenance = read_tunings(inputs.manifest), inputs.tools.origins.provenance
        for note in check_planned(tunings, selection.kernels, provenance):
            settings.tell(events.Notice(note))
    origins = inputs.tools.origins
    keys = planning.kernel_keys(selection, origins.generators, origins.toolchain)
    return Plan(selection, tuple(planning.against_store(selection, keys, store)), difference, runs)


def build(manifest_path: Path, output: Path, settings: Settings, share: Share | None = None) -> BuildResult:
    """Build a manifest's bundle in a directory of the bundle's name under ``output``.

    With a ``share``, compile that part of the kernels and write a shard instead.
    """
    inputs = load_inputs(manifest_path, settings.store, linkers=True)
    manifest = inputs.manifest
    target = output / (manifest.name if share is None else share.directory(manifest.name))
    if not os.path.lexists(target):
        # Before programs are run, which takes longest. One that is there may turn out to be up to date.
        (check_output if share is None else check_shard_output)(target)
    # naming() covers compilation too: only then may it turn out that a tuning file does not fit.
    with (
        inputs.tools.pool(settings.jobs, settings.timeout, settings.tell) as pool,
        naming(manifest_path),
        _store_for(inputs, settings, pool) as (store, selection),
    ):
        recorded = [*take_recordings(inputs, store), *record_programs(inputs, store, settings)]
        selection = with_requests(selection, recorded)
        recipe = Recipe(
            name=manifest.name,
            version=manifest.version,
            device=device_text(manifest.devices),
            targets=tuple(sorted(manifest.targets)),
            hosts=tuple(sorted(manifest.hosts)),
            tuning=read_tunings(manifest),
        )
        runs = {("recording", item.recording.name) for item in recorded if isinstance(item.program, Program)}
        planned_by = (("plan", inputs.plan_digest), parts_reference(inputs), *sorted(runs))
        failed = tuple(failure for item in recorded for failure in item.failures)
        fresh = sum(item.compiled for item in recorded)
        planned = _planned(recipe, selection, inputs.tools)
        making = _Making(planned, inputs.tools, store, settings, pool, planned_by, failed, fresh)
        result = making.bundle(output) if share is None else making.shard(output, share)
    remember_files(settings.store, inputs.files)
    made = _made(result, settings.store)
    if made:
        built = UpToDateBundle(result.bundle, result.kernels)
        used, packages = inputs.files.used, inputs.packages
        remember_build(manifest_path, settings.store, built, used, packages, made)
    return result


def _made(result: BuildResult, store: Path) -> dict[str, str]:
    """Digests of a bundle's files, and of its root in the store, by absolute path.

    Empty if there is no bundle, or another build has replaced it meanwhile.
    """
    if not result.catalog_sha256:
        return {}
    manifest, root = result.bundle / MANIFEST_NAME, store / ROOTS / result.bundle.name
    try:
        references = read_manifest(result.bundle)
        if references[CATALOG_NAME].sha256 != result.catalog_sha256:
            return {}
        made = {result.bundle / path: item.sha256 for path, item in references.items()}
        made |= {path: digest(path.read_bytes()) for path in (manifest, root)}
    except (OSError, CutlassAotError):
        return {}
    return {str(path.absolute()): sha256 for path, sha256 in made.items()}


def build_kernels(recipe: Recipe, kernels: Iterable[Kernel], output: Path, settings: Settings) -> BuildResult:
    """Build a bundle of kernels that the caller has chosen; a kernel named twice counts once.

    The kernels are records of registered generators. The bundle goes into a directory of its name under
    ``output``.
    """
    records = tuple(kernels)
    return build_chosen(
        recipe, {kernel.generator for kernel in records}, lambda _pool, _tools: records, output, settings
    )


def build_chosen(
    recipe: Recipe,
    generators: set[str],
    choose: Callable[[Pool, Tools], Iterable[Kernel]],
    output: Path,
    settings: Settings,
) -> BuildResult:
    """Build a bundle of kernels of some generators; ``choose`` names them, by the pool that compiles them."""
    tools, files = load_tools(generators, recipe.hosts, settings.store)
    tools.compiler.require(recipe.targets)
    with settings.open_store() as store, tools.pool(settings.jobs, settings.timeout, settings.tell) as pool:
        selection = planning.given(choose(pool, tools), tools.compiler.versions["nvidia-cutlass-dsl"])
        planned = _planned(recipe, selection, tools)
        result = _Making(planned, tools, store, settings, pool).bundle(output)
    remember_files(settings.store, files)
    return result


def _planned(recipe: Recipe, selection: Selection, tools: Tools) -> PlannedBundle:
    origins = tools.origins
    keys = planning.kernel_keys(selection, origins.generators, origins.toolchain)
    return PlannedBundle(recipe, selection, origins, keys)


def merge(paths: Sequence[Path], output: Path, store_path: Path, tell: Listener) -> BuildResult:
    """Put all shards of one bundle, in any order, together; nothing is compiled, and no DSL is needed.

    The bundle goes into a directory of its name under ``output``, objects and libraries also into the store.
    """
    shards = [read_shard(path) for path in paths]
    check_whole(shards)
    planned, recipe = shards[0].planned, shards[0].planned.recipe
    linkers = {host: LinkToolchain.detect(host) for host in recipe.hosts}
    _check_same_builder(planned.origins, linkers)
    bundle = output / recipe.name
    check_output(bundle)
    store = Store(store_path)
    kernels = planned.selection.kernels
    with (
        store.workspace() as workspace,
        Libraries(kernels, linkers, store, workspace, tell, available_workers()) as libraries,
    ):
        artifacts: dict[str, Artifact] = {}
        for shard in shards:
            artifacts |= take_artifacts(shard, store, libraries.add)
        outcome, references = assemble(planned, artifacts, libraries, linkers[recipe.hosts[0]], bundle)
        set_root(store, recipe.name, references)
    result = BuildResult(bundle, len(kernels), 0, (), outcome.written, outcome.catalog_sha256)
    return _finish(result, tell)


def _check_same_builder(origins: Origins, linkers: Mapping[str, LinkToolchain]) -> None:
    """Refuse to link if this package or the linkers are not those of the machines that built the shards."""
    theirs = {**origins.linkers, "cutlass-aot": origins.own_sources}
    ours = {host: linker.fingerprint for host, linker in linkers.items()}
    ours["cutlass-aot"] = digest(encode(own_sources(Files())))
    if ours != theirs:
        versions = {name: version for linker in linkers.values() for name, version in linker.versions.items()}
        listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        raise ToolchainError(
            f"the shards were built by another cutlass-aot than this one ({cutlass_aot.__version__}), or "
            f"beside other packages than {listed}: install what the machines of the shards have"
        )


class _Built(NamedTuple):
    """The store's record of a bundle, by the digest of its plan.

    ``references`` names the records of the store that the bundle is made of.
    """

    catalog_sha256: str
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class _Making:
    """One bundle while it is built.

    Attributes:
        planned_by: records that the bundle's root keeps besides those it is made of, so that the next build
            need not plan.
        failed: requests of programs that did not compile.
        recorded: how many requests of programs were compiled for it.
    """

    planned: PlannedBundle
    tools: Tools
    store: Store
    settings: Settings
    pool: Pool
    planned_by: tuple[Reference, ...] = ()
    failed: tuple[Failure, ...] = ()
    recorded: int = 0

    def bundle(self, output: Path) -> BuildResult:
        """Compile what the store lacks, link the libraries and write the bundle."""
        planned, recipe, tell = self.planned, self.planned.recipe, self.settings.tell
        bundle, name, count = output / recipe.name, planned.digest, len(planned.keys)
        try:
            before = from_plain(_Built, self.store.get_record("bundle", name), "a bundle's record")
        except CorruptFile:
            before = _Built("", ())
        if not self.failed and not self.settings.whole and bundle_is(bundle, before.catalog_sha256):
            # Another manifest's bundle of this name may have taken the root.
            keep_root(self.store, recipe.name, [*before.references, *self.planned_by])
            tell(events.UpToDate(count))
            return _finish(BuildResult(bundle, count, 0, (), False, before.catalog_sha256), tell)
        check_output(bundle)
        linkers, jobs = self.tools.linkers, self.settings.jobs
        # From here on, garbage collection keeps what this build publishes or uses: see Store.workspace.
        with (
            self.store.workspace() as workspace,
            Libraries(planned.selection.kernels, linkers, self.store, workspace, tell, jobs) as libraries,
        ):
            done = self._compile(workspace, libraries.add)
            if done.failures:
                kernels = count + len(self.failed)
                return _finish(BuildResult(bundle, kernels, done.compiled, done.failures, False), tell)
            linker = linkers[recipe.hosts[0]]
            outcome, made_of = assemble(planned, done.artifacts, libraries, linker, bundle)
            built = _Built(outcome.catalog_sha256, (*made_of, ("bundle", name)))
            self.store.put_record("bundle", name, to_plain(built))
            set_root(self.store, recipe.name, [*built.references, *self.planned_by])
        result = BuildResult(bundle, count, done.compiled, (), outcome.written, outcome.catalog_sha256)
        return _finish(result, tell)

    def shard(self, output: Path, share: Share) -> BuildResult:
        """Compile what the store lacks of a share, and write the shard."""
        keys = share.of(self.planned.keys)
        path = output / share.directory(self.planned.recipe.name)
        check_shard_output(path)
        with self.store.workspace() as workspace:
            done = self._compile(workspace, required=keys)
            if not done.failures:
                write_shard(Shard(share, self.planned, path), done.artifacts, self.store)
                set_root(self.store, path.name, [("kernel", key) for key in sorted(keys)])
        kernels = len(keys) + len(self.failed)
        result = BuildResult(path, kernels, done.compiled, done.failures, not done.failures)
        return _finish(result, self.settings.tell)

    def _compile(
        self,
        workspace: Path,
        add: Callable[[Kernel, str, bool], None] = lambda _kernel, _object, _fresh: None,
        required: frozenset[str] | None = None,
    ) -> Compilation:
        """Get the artifacts of the kernels whose keys are ``required`` (None for all), and the failures.

        ``add`` is called for every object as soon as the store has it, and told whether it is new there.
        """
        settings, tools = self.settings, self.tools

        def tell(event: Event) -> None:
            settings.tell(event)
            if isinstance(event, (events.Compiled, events.Shared)):
                add(event.kernel, event.artifact.object_sha256, True)

        selection = self.planned.selection
        for note in check_planned(self.planned.recipe.tuning, selection.kernels, tools.origins.provenance):
            settings.tell(events.Notice(note))
        planned = planning.against_store(selection, self.planned.keys, self.store)
        if required is not None:
            planned = [item for item in planned if item.key in required]
        before = 0 if settings.retry else sum(bool(item.failed) for item in planned)
        settings.tell(events.Planned(tuple(planned), selection.warnings, selection.tables, before))
        artifacts = {item.key: item.artifact for item in planned if item.artifact is not None}
        for item in planned:
            if item.artifact is not None:
                add(item.kernel, item.artifact.object_sha256, False)
        for failure in self.failed:
            settings.tell(events.Failed(failure))
        failures = self.failed if settings.retry else (*self._failed_before(planned), *self.failed)
        planned = [item for item in planned if settings.retry or not item.failed]
        if len(artifacts) == len(planned):
            return Compilation(artifacts, failures, self.recorded)
        try:
            with self._executor() as executor:
                done = compiling.compile_missing(
                    executor, planned, tools.sources, self.store, workspace, tell, tools.origins.versions
                )
        except BaseException:
            # Workers that still write into the workspace would keep it from being removed.
            self.pool.end()
            raise
        # Idle workers would keep gigabytes while libraries are linked.
        self.pool.end()
        return Compilation(
            artifacts | done.artifacts, (*failures, *done.failures), self.recorded + done.compiled
        )

    def _executor(self) -> AbstractContextManager[Executor]:
        """What compiles: workers of this machine, or of a dask scheduler."""
        settings, tools = self.settings, self.tools
        if settings.scheduler is None:
            return nullcontext(self.pool)
        # Imported here because dask is an extra.
        from cutlass_aot.builder.compile.dask_executor import DaskExecutor

        # No worker of this machine is needed any more.
        self.pool.end()
        return DaskExecutor(
            address=settings.scheduler,
            modules=tools.modules,
            toolchain=tools.compiler.fingerprint,
            versions=tools.sources.versions,
            timeout=settings.timeout,
            store=self.store,
            remote=None if settings.remote_read_only else settings.remote,
        )

    def _failed_before(self, planned: Sequence[PlannedKernel]) -> tuple[Failure, ...]:
        """Kernels that failed to compile before with the same toolchain, and so would fail again."""
        log = self.store.log_path
        failures = [
            Failure(item.kernel, item.failed, log(item.key), before=True) for item in planned if item.failed
        ]
        for failure in failures:
            self.settings.tell(events.Failed(failure))
        return tuple(failures)


def _finish(result: BuildResult, tell: Listener) -> BuildResult:
    failed = len(result.failures)
    tell(events.Finished(result.bundle, result.kernels, result.compiled, failed, result.written))
    return result


@contextmanager
def _store_for(inputs: Inputs, settings: Settings, pool: Pool) -> Iterator[tuple[Store, Selection]]:
    """The store, and the kernels that a manifest asks for.

    They are taken from an earlier plan if all its inputs are unchanged. A store that is not there yet is made
    once the manifest is accepted.
    """
    planned = None
    if not os.path.lexists(settings.store) and not settings.upstream and settings.remote is None:
        with reported("open the store", settings.store):
            check_folder(settings.store.absolute())
        planned = _enumerate(inputs, settings, pool)
    with settings.open_store() as store:
        selection = planned or planning.load_selection(store, inputs.plan_digest)
        if selection is None:
            selection = planned = _enumerate(inputs, settings, pool)
        if planned is not None:
            planning.save_selection(store, inputs.plan_digest, selection)
        keep_parts(store, inputs)
        yield store, selection


def _enumerate(inputs: Inputs, settings: Settings, pool: Pool) -> Selection:
    tools = inputs.tools
    if not inputs.manifest.tables:
        return Selection((), ())
    questions = planning.enumerations(inputs.manifest, tools.sources)
    settings.tell(events.Enumerating(len(questions)))
    answers = compiling.enumerate_kernels(pool, questions, inputs.devices)
    alternatives = compiling.find_alternatives(pool, answers, inputs.devices)
    with naming(inputs.manifest.path):
        versions = tools.compiler.versions
        selection = planning.select(inputs.manifest, answers, versions["nvidia-cutlass-dsl"], alternatives)
        others = planning.other_profiles(selection.kernels, inputs.devices)
        selection = replace(selection, warnings=(*selection.warnings, *others))
        if inputs.model is None:
            return selection
        settings.tell(events.Ranking(len(inputs.manifest.select.shapes.extents)))
        return ranking.rank(selection, inputs.manifest, inputs.model, tools.sources, inputs.devices, pool)
