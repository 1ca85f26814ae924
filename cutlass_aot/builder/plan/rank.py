"""Rank kernels by a heuristic for speed, and leave out those that ``keep`` does not keep."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from cutlass_aot.builder.compile.messages import Rank
from cutlass_aot.builder.compile.pool import Job, Pool, ask_generators
from cutlass_aot.builder.records import Selection, Sources
from cutlass_aot.errors import GeneratorError, ManifestError, ToolchainError
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.protocol import Heuristic, Problem, Ranked, Ranker
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.manifest.model import Manifest
from cutlass_aot.manifest.validation import unknown
from cutlass_aot.runtime.selection.cost_model import sort_key
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import extent_names, packed, supports
from cutlass_aot.schema.kernels.tiling import Traffic
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.tuning.ranking import GEMM_NAMES, Extents, RankedProblem, RankedProblems, Ranking

MAX_RANKED = 8
"""Most kernels that a ranking names for one problem: later ones would not be chosen anyway."""

_OPERANDS_OF_A_GEMM = 3  # a, b and out


@dataclass(frozen=True, slots=True)
class Model:
    """A manifest's heuristic.

    Attributes:
        heuristics: those with this name, by the generator that has them.
        gpus: target to the GPU model to rank for; targets whose GPU the heuristic does not know are missing.
        warnings: about the missing targets.
    """

    name: str
    heuristics: Mapping[str, Heuristic]
    gpus: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def packages(self) -> dict[str, str]:
        """Packages and versions that a ranking depends on."""
        return {item.package: item.version for item in self.heuristics.values()}


def find_model(manifest: Manifest, sources: Sources, devices: Mapping[str, DeviceProfile]) -> Model | None:
    """Resolve the manifest's heuristic; None if it names none."""
    settings = manifest.select
    if not settings.heuristics:
        return None
    offered = {
        name: generator.heuristics
        for name, generator in sources.instances.items()
        if isinstance(generator, Ranker)
    }
    found = {name: own[settings.heuristics] for name, own in offered.items() if settings.heuristics in own}
    if not found:
        names = sorted({name for own in offered.values() for name in own})
        if not names:
            raise ManifestError("select.heuristics: no generator of the manifest can rank its kernels")
        raise ManifestError(unknown("select.heuristics", settings.heuristics, names))
    if not devices:
        raise ManifestError(
            "bundle.device: missing, and select.heuristics ranks kernels for a GPU: name its profile"
        )
    known = {gpu: title for heuristic in found.values() for gpu, title in heuristic.gpus.items()}
    gpus, warnings = {}, []
    for target in manifest.targets:
        gpu, warning = _gpu(target, settings.gpus.get(target), devices[target], known, settings.heuristics)
        if gpu:
            gpus[target] = gpu
        else:
            warnings.append(warning)
    return Model(settings.heuristics, found, gpus, tuple(warnings))


def _gpu(
    target: str, requested: str | None, device: DeviceProfile, known: Mapping[str, str], heuristic: str
) -> tuple[str, str]:
    """The GPU model to rank for on a target; or ``""`` and a warning that says why there is none."""
    if requested is not None:
        if requested not in known:
            raise ManifestError(unknown(f"select.gpu.{target}", requested, sorted(known)))
        return requested, ""
    listed = ", ".join(f"{name} ({title})" for name, title in sorted(known.items()))
    named = [name for name, title in sorted(known.items()) if title == device.gpu]
    if not named:
        return (
            "",
            f"select: {target} is not ranked and stays whole: {heuristic} models {listed}, not {device.gpu}",
        )
    if not Target.parse(target).runs_on(device.compute_capability):
        capability = ".".join(map(str, device.compute_capability))
        raise ManifestError(
            f"select.gpu.{target}: missing, and the target's device profile {device.name!r} is of compute "
            f"capability {capability}, where {target} does not run; name the GPU to rank for: {listed}"
        )
    return named[0], ""


def rank(
    selection: Selection,
    manifest: Manifest,
    model: Model,
    sources: Sources,
    devices: Mapping[str, DeviceProfile],
    pool: Pool,
) -> Selection:
    """Rank a selection's kernels, and leave out those that the manifest's ``keep`` does not keep."""
    for heuristic in model.heuristics.values():
        _check_installed(heuristic)
    shapes = manifest.select.shapes
    requests, warnings = requests_of(selection.kernels, shapes.extents, model, sources.references)
    answers = ask_generators(pool, [Job(f"the ranking of {_name(item)}", item) for item in requests], Ranked)
    for request, answer in zip(requests, answers, strict=True):
        check_answer(request, answer)
    keep, listed = manifest.select.keep, len(shapes.extents)
    warnings = [*shapes.notes, *warnings]
    return choose(selection, requests, answers, model, devices, keep, listed, warnings)


def _check_installed(heuristic: Heuristic) -> None:
    try:
        installed = metadata.version(heuristic.package)
    except metadata.PackageNotFoundError:
        installed = "none"
    if installed != heuristic.version:
        raise ToolchainError(
            f"[select] needs {heuristic.package} {heuristic.version}, found {installed}: install it with "
            f"pip install '{heuristic.package}=={heuristic.version}'"
        )


def requests_of(
    kernels: Iterable[Kernel],
    shapes: Sequence[Extents],
    model: Model,
    references: Mapping[str, GeneratorReference],
) -> tuple[list[Rank], list[str]]:
    """A request for each group that can be ranked, ordered by group name, and warnings about the others."""
    groups: dict[str, dict[str, list[Kernel]]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.group, {}).setdefault(kernel.generator, []).append(kernel)
    requests = []
    warnings = set()
    for by_generator in groups.values():
        able = sorted(set(by_generator) & set(model.heuristics))
        for name in sorted(set(by_generator) - set(model.heuristics)):
            warnings.add(f"select: generator {name!r} has no heuristic {model.name!r}: its kernels stay")
        if not able:
            continue
        members = by_generator[able[0]]
        first = members[0]
        if first.target not in model.gpus:
            continue
        accepted = supported(first.operands, shapes)
        if len(able) > 1:
            why = f"the rankings of {' and '.join(able)} cannot be compared"
        elif not accepted:
            why = f"it supports none of {len(shapes)} shapes"
        else:
            # The operands that an epilogue adds are the same throughout a group.
            count = _OPERANDS_OF_A_GEMM if first.epilogue else len(first.operands)
            dtypes = tuple(operand.dtype for operand in first.operands[:count])
            problem = Problem(
                first.operation, dtypes, first.layouts[:count], first.accumulator,
                accumulation=first.accumulation or EXACT,
            )  # fmt: skip
            gpu = model.gpus[first.target]
            reference = references[able[0]]
            requests.append(Rank(reference, problem, first.target, tuple(members), accepted, model.name, gpu))
            continue
        warnings.add(f"select: {first.group_name} is not ranked and stays whole: {why}")
    return sorted(requests, key=lambda item: (_name(item), item.kernels[0].group)), sorted(warnings)


def supported(operands: Sequence[OperandConstraint], shapes: Iterable[Extents]) -> tuple[Extents, ...]:
    """The shapes that kernels with these operands accept, packed; empty if the operation is not a GEMM."""
    if not Traffic.of(operands).of_gemm or not set(extent_names(operands)) <= {*GEMM_NAMES}:
        return ()
    return tuple(shape for shape in shapes if supports(operands, packed(operands, shape.by_name)))


def _name(request: Rank) -> str:
    """The name of a request's group."""
    return request.kernels[0].group_name


def check_answer(request: Rank, answer: Ranked) -> None:
    """Refuse an answer that does not fit its request."""
    own = {kernel.digest for kernel in request.kernels}
    sound = len(answer.problems) == len(request.shapes) and answer.modelled <= own
    for problem in answer.problems:
        digests = [digest for equal in problem for digest in equal]
        named_once = len(set(digests)) == len(digests)
        sound = sound and named_once and answer.modelled.issuperset(digests) and all(problem)
    if not sound:
        raise GeneratorError(
            f"generator {request.generator.name!r} ranked {_name(request)} wrongly: expected an answer to "
            f"each of {len(request.shapes)} problems that names kernels of the request, each once, all "
            "modelled"
        )


def best_first(
    tied: Iterable[Sequence[str]], kernels: Mapping[str, Kernel], shape: Extents, sm_count: int
) -> tuple[str, ...]:
    """The first kernel in the default order of each set that a heuristic rates equally.

    Naming the others of the set would crowd out other designs, which the heuristic rates no higher.
    """
    return tuple(min(equal, key=lambda digest: sort_key(kernels[digest], shape, sm_count)) for equal in tied)


def choose(
    selection: Selection,
    requests: Sequence[Rank],
    answers: Sequence[Ranked],
    model: Model,
    devices: Mapping[str, DeviceProfile],
    keep: int | None,
    listed: int,
    warnings: Sequence[str] = (),
) -> Selection:
    """Add the rankings to a selection, and leave out kernels not among the best ``keep`` of any problem.

    The manifest lists ``listed`` problems, of which a request has those that its kernels support. A kernel
    that the heuristic does not model is kept, since nothing says that it is slow.
    """
    left_out: set[str] = set()
    rankings: list[Ranking] = []
    told = [*model.warnings, *warnings]
    for request, answer in zip(requests, answers, strict=True):
        kernels = {kernel.digest: kernel for kernel in request.kernels}
        sms = devices[request.target].sm_count
        best = {
            shape: best_first(tied, kernels, shape, sms)
            for shape, tied in zip(request.shapes, answer.problems, strict=True)
            if tied
        }
        if not best:
            why = answer.reason or "the heuristic gives no reason"
            told.append(f"select: {_name(request)} is not ranked and stays whole: {why}")
            continue
        unwanted: frozenset[str] = frozenset()
        if keep is not None:
            unwanted = answer.modelled.difference(*(ranked[:keep] for ranked in best.values()))
        left_out |= unwanted
        heuristic = model.heuristics[request.generator.name]
        problems = RankedProblems(
            RankedProblem(shape, tuple(digest for digest in ranked if digest not in unwanted)[:MAX_RANKED])
            for shape, ranked in sorted(best.items())
        )
        origin = f"{heuristic.title} {heuristic.version} for {request.gpu}"
        rankings.append(Ranking(request.kernels[0].group, request.gpu, False, origin, problems))
        summary = _summary(request, answer, listed, len(best), keep, unwanted)
        told.append(f"select: {_name(request)}: {summary}")
    if keep is not None and not rankings:
        raise ManifestError(
            "select.keep: no kernel can be ranked, so none is known to be best: " + "; ".join(told)
        )
    return Selection(
        kernels=tuple(kernel for kernel in selection.kernels if kernel.digest not in left_out),
        warnings=(*selection.warnings, *told),
        rankings=tuple(sorted(rankings, key=lambda ranking: ranking.group)),
        tables=selection.tables,
    )


def _summary(
    request: Rank, answer: Ranked, listed: int, ranked: int, keep: int | None, unwanted: Container[str]
) -> str:
    """The result for one group, in words."""
    words = f"{ranked} of {listed} shapes ranked for {request.gpu}"
    reasons = []
    if listed > len(request.shapes):
        reasons.append(f"{listed - len(request.shapes)} not divisible as its operands have to be")
    if ranked < len(request.shapes):
        reasons.append(f"{len(request.shapes) - ranked} without answer: {answer.reason or 'no reason given'}")
    if reasons:
        words += f" ({'; '.join(reasons)})"
    if keep is not None:
        stay = [kernel for kernel in request.kernels if kernel.digest not in unwanted]
        words += (
            f"; the best {keep} of each shape keep {len(stay)} of {len(request.kernels)} kernels, "
            f"{len(request.kernels) - len(stay)} left out"
        )
        others = [kernel for kernel in stay if kernel.digest not in answer.modelled]
        if others:
            families = sorted({str(dict(kernel.design).get("family", "others")) for kernel in others})
            words += f"; kept though not modelled: {len(others)} ({', '.join(families)})"
    return words
