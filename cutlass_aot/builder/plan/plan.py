"""From a manifest and generators to a list of kernels: what to build, what the store has, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from cutlass_aot.builder.inputs.file_digests import Files
from cutlass_aot.builder.key import key
from cutlass_aot.builder.plan.known_bad import TABLE, in_force, known_bad, row_of
from cutlass_aot.builder.plan.recipe import PlannedBundle
from cutlass_aot.builder.records import Enumeration, PlannedKernel, Selection, Sources, headline
from cutlass_aot.errors import CompileError, CorruptFile, GeneratorError, ManifestError
from cutlass_aot.generators.device_profiles import DeviceProfile, builtin_profiles, load_profile
from cutlass_aot.generators.gemm import with_sums
from cutlass_aot.generators.protocol import Generator, Problem, uses_device
from cutlass_aot.generators.registry import code_origins, find, import_plugin, version_of
from cutlass_aot.manifest.filters import DesignFilter, spread
from cutlass_aot.manifest.kernels import TABLE_KEYS, KernelTable
from cutlass_aot.manifest.known_bad import KnownBad
from cutlass_aot.manifest.model import Manifest
from cutlass_aot.schema.bundles.group_index import CodeSpan, KernelEntry
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.design import SHORT_NAMES, full_name
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import NUMBER
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, OUT, names_in
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import Target, target_meant
from cutlass_aot.schema.words import by_numbers, did_you_mean, few
from cutlass_aot.store.artifacts import read_artifact, read_failure
from cutlass_aot.store.store import Store


def load_sources(manifest: Manifest, files: Files | None = None) -> Sources:
    """Find the generators of a manifest, importing its plugins.

    ``files`` gives the digests of their sources; None reads them.
    """
    for module in manifest.plugins:
        import_plugin(module)
    sources = find_sources({table.generator for table in manifest.tables}, files)
    for table in manifest.tables:
        generator = sources.instances[table.generator]
        _check_table(table, generator)
        if uses_device(generator) and not manifest.devices:
            raise ManifestError(
                f"bundle.device: missing; {table.where} compiles numbers of a GPU in (generator "
                f"{generator.name!r}): name its device profile, one of {', '.join(builtin_profiles())}, or "
                "the path of a .toml file"
            )
    for index, row in enumerate(manifest.known_bad):
        generator = find(row.generator).load()
        _check_filters(row.design, generator, f"known_bad[{index}].design", ())
    return sources


def find_sources(names: Collection[str], files: Files | None = None) -> Sources:
    """Find generators by their names. ``files`` gives the digests of their sources; None reads them."""
    references = {name: find(name) for name in sorted(names)}
    instances = {name: reference.load() for name, reference in references.items()}
    file_digest = (files or Files()).digest
    versions = {name: version_of(instance, file_digest) for name, instance in instances.items()}
    code = {name: code_origins(instance) for name, instance in instances.items()}
    return Sources(references, instances, versions, code)


def _check_table(table: KernelTable, generator: Generator) -> None:
    if table.operation not in generator.operations:
        raise ManifestError(
            f"{table.where}.operation: generator {generator.name!r} has no {table.operation!r}: "
            f"expected one of {', '.join(generator.operations)}"
            + did_you_mean(table.operation, generator.operations)
        )
    possible = generator.targets(table.operation)
    for target in table.targets:
        if target not in possible:
            raise ManifestError(
                f"{table.where}: generator {generator.name!r} cannot serve target {target}: "
                f"expected some of {', '.join(possible)}{target_meant(target, possible)}; `targets` in this "
                "table says for which of the bundle's it makes kernels"
            )
    filters = (*table.filters, *(item for group in table.exclude for item in group))
    _check_filters(filters, generator, table.where, TABLE_KEYS)


def _check_filters(
    filters: Iterable[DesignFilter], generator: Generator, where: str, others: Sequence[str]
) -> None:
    """Refuse filters on properties that the generator's kernels do not have."""
    for design_filter in filters:
        if full_name(design_filter.written, generator.design) not in generator.design:
            short = {full: name for name, full in SHORT_NAMES.items()}
            known = [short.get(name, name) for name in generator.design]
            possible = f"one of {', '.join(others)}, or of" if others else "one of"
            raise ManifestError(
                f"{where}: unknown key {design_filter.written!r}: expected {possible} "
                f"the design of {generator.name!r}: {', '.join(known)}"
                + did_you_mean(design_filter.written, (*others, *known, *generator.design))
            )


def enumerations(manifest: Manifest, sources: Sources) -> list[Enumeration]:
    """The questions to the generators, in the manifest's order."""
    return [
        Enumeration(
            table=index,
            generator=sources.references[table.generator],
            problem=problem,
            target=target,
        )
        for index, table in enumerate(manifest.tables)
        for dtypes, accumulator in table.combinations
        for layouts in table.layouts
        for scales in table.scales
        for target in table.targets
        for problem in dict.fromkeys(
            with_sums(
                Problem(table.operation, dtypes, layouts, accumulator, scales, table.epilogue),
                accumulation,
                target,
            )
            for accumulation in table.accumulations
        )
    ]


def select(
    manifest: Manifest,
    answers: Sequence[tuple[Enumeration, Sequence[Kernel]]],
    dsl_version: str,
    alternatives: Mapping[Enumeration, str] = MappingProxyType({}),
) -> Selection:
    """Apply each table's filters to what its generator enumerated; a kernel named twice counts once.

    ``alternatives`` says of questions without a kernel what their generator has instead.

    Kernels that the package or the manifest knows to be bad with this version of the DSL are left out, with a
    warning.
    """
    chosen: dict[str, Kernel] = {}
    tables: dict[str, str] = {}
    warnings: list[str] = []
    known = (*TABLE, *manifest.known_bad)
    hit: set[KnownBad] = set()
    for index, table in enumerate(manifest.tables):
        own = [(question, kernels) for question, kernels in answers if question.table == index]
        found = [kernel for _, kernels in own for kernel in kernels]
        kept = _filtered(table, found)
        if not kept:
            raise ManifestError(
                f"{table.where}: no kernel is left: " + _reason(table, own, found, alternatives)
            )
        rows = {kernel.digest: row for kernel in kept if (row := row_of(kernel, dsl_version, known))}
        hit.update(rows.values())
        bad = {kernel: row.reason for kernel, row in rows.items()}
        for why in sorted(set(bad.values())):
            count = sum(reason == why for reason in bad.values())
            warnings.append(f"{table.where}: {count} left out as known to be bad: {why}")
        kept = [kernel for kernel in kept if kernel.digest not in bad]
        if not kept:
            raise ManifestError(f"{table.where}: no kernel is left: {'; '.join(sorted(set(bad.values())))}")
        groups: dict[str, list[Kernel]] = {}
        for kernel in kept:
            groups.setdefault(kernel.group, []).append(kernel)
        for question, kernels in own:
            if not _filtered(table, kernels):
                why = "the generator has none" if not kernels else "the filters leave none"
                warnings.append(f"{table.where}: {question.name}: {why}")
        warnings += [f"{table.where}: {text}" for text in _matching_nothing(table, found)]
        for members in groups.values():
            members.sort(key=_design_order)
            limit = table.max_per_group or len(members)
            for position in spread(len(members), limit):
                chosen[members[position].digest] = members[position]
                tables.setdefault(members[position].digest, table.where)
    warnings += _undeclared_numbers(manifest)
    warnings += _scaled_without_quantizing(manifest)
    for index, row in enumerate(manifest.known_bad):
        if row not in hit and in_force(row, dsl_version):
            warnings.append(f"known_bad[{index}] leaves nothing out")
    kernels = sorted(chosen.values(), key=lambda kernel: kernel.name)
    return Selection(tuple(kernels), tuple(warnings), tables=tables)


def other_profiles(kernels: Iterable[Kernel], devices: Mapping[str, DeviceProfile]) -> list[str]:
    """Targets whose kernels have numbers compiled in of a GPU that does not run them, where the package has a
    profile of one that does, with other numbers.
    """
    warnings = []
    profiles = [load_profile(name) for name in builtin_profiles()]
    targets = {kernel.target for kernel in kernels if kernel.constants}
    # A generator may have constants of its own, and no device.
    for target in sorted(targets & devices.keys()):
        parsed, device = Target.parse(target), devices[target]
        fitting = [one for one in profiles if parsed.runs_on(one.compute_capability)]
        numbers = [(one.sm_count, one.max_active_clusters) for one in (device, *fitting)]
        if fitting and numbers[0] not in numbers[1:] and not parsed.runs_on(device.compute_capability):
            warnings.append(
                f"bundle.device: kernels for {target} are built for the number of multiprocessors of "
                f"{device.gpu}, which does not run them: expected {fitting[0].name}, as in "
                f'device = {{ {target} = "{fitting[0].name}" }}'
            )
    return warnings


def _undeclared_numbers(manifest: Manifest) -> list[str]:
    """Names that epilogues read and no table declares, which are numbers; each once with all its tables."""
    tables: dict[str, list[str]] = {}
    meant: dict[str, set[str]] = {}
    for table, document in zip(manifest.tables, manifest.document.get("kernels", ()), strict=True):
        declared = document.get("operands", {})
        for operand in table.epilogue.operands if table.epilogue else ():
            if operand.extents == NUMBER and operand.name not in declared:
                tables.setdefault(operand.name, []).append(table.where)
                meant.setdefault(operand.name, set()).update(declared, [ACCUMULATOR])
    return [
        f"{', '.join(where)}: `{name}` of the epilogue is declared nowhere: it is a number, passed by value; "
        f"operands = {{ {name} = {{}} }} says that this is meant{did_you_mean(name, meant[name])}"
        for name, where in tables.items()
    ]


def _scaled_without_quantizing(manifest: Manifest) -> list[str]:
    """Tables whose epilogue scales D by what it stores for each block of columns, and keep D in 16 bits or
    more: mostly they have forgotten ``out``, which is the type of A otherwise.
    """
    warnings = []
    for table in manifest.tables:
        if table.epilogue is None:
            continue
        read = next(names_in(item.expression) for item in table.epilogue.statements if item.name == OUT)
        scales = [item for item in table.epilogue.operands if item.block > 1 and item.name in read]
        outs = dict.fromkeys(dtypes[-1] for dtypes, _ in table.combinations)
        wide = [name for name in outs if DTYPES[name].is_float and DTYPES[name].bits >= 16]
        if scales and wide:
            warnings.append(
                f"{table.where}: D is scaled by `{scales[0].name}`, which has a value for each "
                f"{scales[0].block} columns, and stored as {' and '.join(wide)}: a quantised output needs "
                'its type, such as out = "f8e4m3"'
            )
    return warnings


def given(kernels: Iterable[Kernel], dsl_version: str) -> Selection:
    """The selection of kernels chosen by the caller; one named twice counts once."""
    chosen = {kernel.digest: kernel for kernel in kernels}
    for kernel in chosen.values():
        why = known_bad(kernel, dsl_version)
        if why:
            raise CompileError(
                f"{kernel.name} is known to be bad with nvidia-cutlass-dsl {dsl_version}: {why}; "
                "choose another one"
            )
    return Selection(tuple(sorted(chosen.values(), key=lambda kernel: kernel.name)), ())


def _filtered(table: KernelTable, kernels: Iterable[Kernel]) -> list[Kernel]:
    def accepted(kernel: Kernel) -> bool:
        design = dict(kernel.design + kernel.parameters)
        if not all(design_filter.accepts(design) for design_filter in table.filters):
            return False
        return not any(all(f.accepts(design) for f in group) for group in table.exclude)

    return [kernel for kernel in kernels if accepted(kernel)]


def _matching_nothing(table: KernelTable, found: Sequence[Kernel]) -> list[str]:
    """Values of filters and exclusions that match no kernel of the table; they may be misspelt."""
    designs = [dict(kernel.design + kernel.parameters) for kernel in found]
    texts = [
        f"{single} matches nothing"
        for item in table.filters
        for single in item.singles()
        if not any(single.accepts(design) for design in designs)
    ]
    texts += [
        f"exclude {', '.join(map(str, group))} leaves nothing out"
        for group in table.exclude
        if not any(all(item.accepts(design) for item in group) for design in designs)
    ]
    return texts


def _design_order(kernel: Kernel) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...], str]:
    """Sort key of a kernel by its design: words first, then shapes and numbers by value, then the name."""
    words = tuple(value for _, value in kernel.design if isinstance(value, str))
    numbers = tuple(
        value if isinstance(value, tuple) else (int(value),)
        for _, value in kernel.design
        if not isinstance(value, str)
    )
    return words, numbers, kernel.name


def _reason(
    table: KernelTable,
    own: Sequence[tuple[Enumeration, Sequence[Kernel]]],
    found: Sequence[Kernel],
    alternatives: Mapping[Enumeration, str],
) -> str:
    if not found:
        texts = [
            f"{question.name}{f': {alternatives[question]}' if question in alternatives else ''}"
            for question, _ in own
        ]
        return f"generator {table.generator!r} has none for {few(texts, 4, separator='; ')}"
    left = list(found)
    for design_filter in table.filters:
        matching = [
            kernel for kernel in left if design_filter.accepts(dict(kernel.design + kernel.parameters))
        ]
        if not matching:
            return f"{design_filter} matches nothing; " + _occurring(design_filter, left)
        left = matching
    return f"`exclude` leaves none of {len(left)}"


def _occurring(design_filter: DesignFilter, kernels: Sequence[Kernel]) -> str:
    values = set()
    for kernel in kernels:
        described = dict(kernel.design + kernel.parameters)
        value = described.get(full_name(design_filter.written, described))
        if value is not None:
            values.add("x".join(map(str, value)) if isinstance(value, tuple) else str(value))
    if not values:
        return f"no kernel that is left has {full_name(design_filter.written)!r}"
    meant = "".join(dict.fromkeys(did_you_mean(value, values) for value in design_filter.values))
    return f"what is left has {few(sorted(values, key=by_numbers), 12)}{meant}"


def load_selection(store: Store, plan: str) -> Selection | None:
    """The selection of an earlier plan with this digest, None if the store has none."""
    body = store.get_record("plan", plan)
    if body is None:
        return None
    try:
        return from_plain(Selection, body, "a selection")
    except CorruptFile:
        return None


def save_selection(store: Store, plan: str, selection: Selection) -> None:
    """Keep a selection, so that the next build of the same manifest need not ask the generators."""
    store.put_record("plan", plan, to_plain(selection))


def against_store(selection: Selection, keys: Sequence[str], store: Store | None) -> list[PlannedKernel]:
    """Say of each kernel whether the store has it. An artifact counts only if its object verifies."""
    if store is not None:
        store.prefetch("kernel", keys)
    planned = []
    for kernel, kernel_key in zip(selection.kernels, keys, strict=True):
        artifact, why = read_artifact(store, kernel_key, kernel)
        failure = read_failure(store, kernel_key) if store and artifact is None else None
        if failure is not None:
            why = f"failed before with this toolchain: {headline(failure.reason)}"
        planned.append(PlannedKernel(kernel, kernel_key, artifact, why, failure.reason if failure else ""))
    return planned


def kernel_keys(selection: Selection, versions: Mapping[str, str], toolchain: str) -> tuple[str, ...]:
    """The key of each kernel in the store.

    ``versions`` are the generators', by name; ``toolchain`` is the compiler's fingerprint.
    """
    keys = []
    for kernel in selection.kernels:
        version = versions.get(kernel.generator)
        if version is None:
            raise GeneratorError(
                f"{kernel.name}: enumerated under generator {kernel.generator!r}, which the manifest does "
                "not name: a generator writes its own name into its kernels"
            )
        keys.append(key(kernel, version, toolchain))
    return tuple(keys)


def kernel_entries(
    planned: PlannedBundle,
    artifacts: Mapping[str, Artifact],
    packed: Callable[[Kernel], tuple[CodeSpan, int]],
) -> list[KernelEntry]:
    """The catalog entries of a bundle's kernels.

    ``artifacts`` are by key; ``packed`` says where a kernel's GPU code is, and which of its group's libraries
    has its host code.
    """
    return [
        KernelEntry(
            kernel=kernel,
            object_sha256=artifacts[kernel_key].object_sha256,
            facts=artifacts[kernel_key].facts,
            provenance={
                "generator": kernel.generator,
                "generator_version": planned.origins.generators[kernel.generator],
                "toolchain": planned.origins.toolchain,
            },
            code=span,
            library=library,
        )
        for kernel, kernel_key in zip(planned.selection.kernels, planned.keys, strict=True)
        for span, library in (packed(kernel),)
    ]
