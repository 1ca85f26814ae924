"""Which GPU and kernels a tuning file is valid for, and the rankings of a bundle that follow from it.

All functions are pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import ACCEPTED, Rejected, Verdict
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.tuning.costs import FORMULA, Costs, derived
from cutlass_aot.schema.tuning.ranking import RankedProblem, RankedProblems, Ranking
from cutlass_aot.schema.tuning.tuning import FittedModel, TunedGroup, TunedProblem, Tuning

Objects = Mapping[str, tuple[Kernel, str | None]]
"""Kernel digest to the kernel and the digest of its object, which is None if it is not compiled."""

_SHOWN = 16
"""Digits of a digest in messages."""

FASTEST = 32
"""Kernels of a measured problem that a ranking has the times of. Of the others it says that they are slower,
which takes a bit each: they are not chosen, and the times of all make a bundle larger and slower to read.
With fewer, problems near a measured one are chosen for less well."""


def objects_of(entries: Iterable[KernelEntry]) -> Objects:
    """Kernels of a bundle, for checking tuning files."""
    return {entry.kernel.digest: (entry.kernel, entry.object_sha256) for entry in entries}


def applies(tuning: Tuning, gpu: str) -> Verdict:
    """Whether a tuning file is valid for a GPU model, named as the driver does."""
    if tuning.gpu == gpu:
        return ACCEPTED
    return Rejected(
        f"the tuning file was measured on {tuning.gpu!r}, expected {gpu!r}: times of one GPU model say "
        "nothing of another; measure on this one with cutlass-aot tune, into another file"
    )


def fits(
    tuning: Tuning, kernels: Objects, *, holder: str, advice: str, versions: Mapping[str, str] | None = None
) -> Verdict:
    """Whether every kernel of a tuning file is among ``kernels``, with the code that was measured.

    Of a kernel that is not compiled yet only the record is compared. Kernels that the file does not name are
    accepted, as they rank last, and so is another toolchain that gives the same objects.

    The reason of a refusal names the ``holder`` of the kernels (``bundle sm90``), the ``versions`` of what
    built them that differ from :attr:`Tuning.versions`, and the ``advice``.
    """
    for group in tuning.groups:
        for kernel in group.kernels:
            what = f"the tuning file has times of kernel {kernel.name}"
            found = kernels.get(kernel.digest)
            if found is None or found[0].group != group.digest:
                return Rejected(
                    f"{what} (digest {kernel.digest[:_SHOWN]}), which {holder} does not have: {advice}"
                )
            if found[1] not in (None, kernel.object_sha256):
                return Rejected(
                    f"{what} with object {kernel.object_sha256[:_SHOWN]}, expected object "
                    f"{str(found[1])[:_SHOWN]}, which {holder} has: other code has other times"
                    f"{_differences(tuning.versions, versions or {})}; {advice}"
                )
    return ACCEPTED


def of_present(tuning: Tuning, kernels: Objects) -> Tuning:
    """A tuning file without the kernels that are not among ``kernels``, and what is about them alone."""
    groups = []
    for group in tuning.groups:
        present = {
            kernel.digest: kernel
            for kernel in group.kernels
            if kernel.digest in kernels and kernels[kernel.digest][0].group == group.digest
        }
        if present:
            problems = (problem.among(present) for problem in group.problems)
            kept = tuple(problem for problem in problems if problem.kernels)
            groups.append(replace(group, kernels=tuple(present.values()), problems=kept))
    return replace(tuning, groups=tuple(groups))


def _differences(measured: Mapping[str, str], present: Mapping[str, str]) -> str:
    """The versions that differ, as text for a message."""
    names = [name for name in sorted(present) if present[name] != measured.get(name, present[name])]
    # The fingerprint differs whenever a package does, so it is only shown if nothing else differs.
    names = [name for name in names if name not in ("cutlass-aot", "toolchain")] or [
        name for name in names if name == "toolchain"
    ]
    return "".join(
        f"; it was measured with {name} {measured[name][:_SHOWN]}, expected {present[name][:_SHOWN]}"
        for name in names
    )


def rankings(tuning: Tuning, kernels: Objects, others: Iterable[Tuning] = ()) -> tuple[Ranking, ...]:
    """The rankings of a bundle from a tuning file: one for each group with a measured kernel or a model.

    ``kernels`` are those of the bundle. Those that the file does not name get constants of the cost model
    too: in groups that were measured, and in other groups of GEMMs for the same target, whose rankings have
    no problems. ``others`` are other tuning files, of this GPU model first, which may have measured such
    kernels. A group that was not measured takes the times of one whose kernels differ by element types of the
    same width alone.
    """
    driver = f", driver {tuning.driver}" if tuning.driver else ""
    origin = f"tuned {tuning.date} on {tuning.gpu}{driver}"
    groups = {group.digest: group for group in tuning.groups}
    members: dict[str, list[Kernel]] = {}
    for kernel, _ in kernels.values():
        members.setdefault(kernel.group, []).append(kernel)
    models = _Models(tuning, members, others)
    twins = _Twins(tuning.groups, members)
    found = []
    for digest in sorted(members.keys() | groups.keys()):
        group, own = groups.get(digest), members.get(digest, [])
        measured, measured_as = () if group is None else group.problems, ""
        if not any(problem.ranked for problem in measured):
            measured, measured_as = twins.problems(own)
        costs = models.costs(group, own)
        problems = RankedProblems(ranked(problem) for problem in measured if problem.ranked)
        if problems or costs:
            machine = tuning.machine if costs else None
            model = None if group is None else group.model
            accuracy = None if model is None else model.accuracy
            text = f"{origin} as {measured_as}" if measured_as else origin
            if accuracy is not None:
                text += f": {accuracy}"
            found.append(
                Ranking(digest, tuning.gpu, True, text, problems, machine, costs, measured_as=measured_as)
            )
    return tuple(found)


class _Twins:
    """The kernels of a tuning file by what they have in common with others of element types as wide."""

    def __init__(self, groups: Iterable[TunedGroup], members: Mapping[str, Sequence[Kernel]]) -> None:
        self._groups = [
            (group, {_twin(kernel): kernel.digest for kernel in members.get(group.digest, [])})
            for group in groups
        ]

    def problems(self, own: Sequence[Kernel]) -> tuple[tuple[TunedProblem, ...], str]:
        """The problems of the group with the most, with the ``own`` kernels in place of its, and its name."""
        best: tuple[tuple[TunedProblem, ...], str] = (), ""
        twins = [(_twin(kernel), kernel.digest) for kernel in own]
        for group, digests in self._groups:
            pairs = ((digests.get(twin), digest) for twin, digest in twins)
            names = {theirs: digest for theirs, digest in pairs if theirs is not None}
            problems = tuple(problem.renamed(names) for problem in group.problems) if names else ()
            measured = tuple(problem for problem in problems if problem.ranked)
            if len(measured) > len(best[0]):
                best = measured, group.name
        return best


def _twin(kernel: Kernel) -> tuple[object, ...]:
    """What two kernels have in common that differ by element types of the same width alone."""
    widths = tuple(
        (operand._replace(dtype=""), DTYPES[operand.dtype].bits if operand.dtype in DTYPES else operand.dtype)
        for operand in kernel.operands
    )
    return (
        *(kernel.operation, kernel.generator, kernel.target, kernel.accumulator, kernel.accumulation),
        *(widths, kernel.epilogue, kernel.parameters, kernel.design, kernel.constants),
    )


class _Models:
    """The cost models of a tuning file, for its groups and for others that they can speak for."""

    def __init__(
        self, tuning: Tuning, members: Mapping[str, Sequence[Kernel]], others: Iterable[Tuning]
    ) -> None:
        self._machine = tuning.machine
        # Of each target: the models with the kind of their sums, and constants by tiling and kind.
        self._models: dict[str, list[tuple[_Sums, FittedModel]]] = {}
        self._fitted: dict[_Key, Costs] = {}
        for file in (tuning, *others):
            for group in file.groups:
                own = members.get(group.digest)
                if group.model is None or not own:
                    continue
                sums, target = _Sums.of(own[0]), own[0].target
                if file.gpu == tuning.gpu:
                    self._models.setdefault(target, []).append((sums, group.model))
                known = {kernel.digest: kernel.costs for kernel in group.kernels}
                for kernel in own:
                    costs = known.get(kernel.digest)
                    if costs is not None:
                        self._fitted.setdefault(_key(kernel), costs.on(file.machine, tuning.machine))

    def costs(self, group: TunedGroup | None, members: Sequence[Kernel]) -> tuple[tuple[str, Costs], ...]:
        """The constants of a group's kernels: fitted, or those of a kernel alike, or by a regression.

        Kernels are alike if they have the same generator, operation, tiling and kind of sums; what was
        measured on this GPU model goes before what was measured on another and is scaled to it. The
        regression is that of the group, or else of a group with the same kind of sums, or else of any.
        Kernels with a cost formula of their author's are chosen by that unless their group was measured, or
        each has one alike.
        """
        if group is None and any(k.cost and _key(k) not in self._fitted for k in members):
            return ()
        fitted = () if group is None or group.model is None else group.kernels
        found = {kernel.digest: kernel.costs for kernel in fitted if kernel.costs is not None}
        for kernel in members:
            if kernel.digest in found or not Traffic.of(kernel.operands).of_gemm:
                continue
            sums, tiling = _Sums.of(kernel), Tiling.of(kernel)
            models = self._models.get(kernel.target, [])
            if group is not None and group.model is not None:
                models = [(sums, group.model)]
            if models:
                model = min(models, key=lambda item: item[0] != sums)[1]
                base = derived(tiling, sums.input_bits, kernel.target, self._machine)
                alike = self._fitted.get(_key(kernel))
                found[kernel.digest] = alike or model.regression.predict(tiling, base)
        return tuple(sorted(found.items()))


class _Sums(NamedTuple):
    """What kind of sums kernels compute: those of one kind take about as long with the same tiling.

    ``in_registers`` is true if registers add up what tensor cores summed of 128 of K; then results with an
    epilogue are stored otherwise than without, which takes longer: ``fused``.
    """

    input_bits: int
    in_registers: bool
    fused: bool

    @classmethod
    def of(cls, kernel: Kernel) -> "_Sums":
        """The kind of a kernel's sums."""
        factors = any(operand.name == "a_scale" for operand in kernel.operands)
        in_registers = factors or kernel.accumulation == EXACT
        bits = DTYPES[kernel.operands[0].dtype].bits
        return cls(bits, in_registers, in_registers and bool(kernel.epilogue))


_Key = tuple[str, str, str, Tiling, _Sums]


def _key(kernel: Kernel) -> _Key:
    """What kernels that take as long have in common."""
    return kernel.target, kernel.generator, kernel.operation, Tiling.of(kernel), _Sums.of(kernel)


def ranked(problem: TunedProblem) -> RankedProblem:
    """The fastest kernels with their times, also of those that were stopped early, and which were slower."""
    last = problem.ranked[-1][1]
    # A stopped measurement is shorter, and its time may be below that of the last ranked kernel.
    dropped = [(digest, max(found, last)) for digest, found in problem.stopped]
    times = sorted((*problem.ranked, *dropped), key=lambda item: item[1])
    return RankedProblem(
        problem.extents,
        tuple(digest for digest, _ in times[:FASTEST]),
        tuple(microseconds / 1e6 for _, microseconds in times[:FASTEST]),
        frozenset(digest for digest, _ in times[FASTEST:]),
    )


def sound(tuning: Tuning) -> Verdict:
    """Whether every measured kernel worked; one that did not must not be chosen."""
    for group in tuning.groups:
        names = {kernel.digest: kernel.name for kernel in group.kernels}
        for problem in group.problems:
            for digest, reason in problem.failed:
                return Rejected(
                    f"kernel {names[digest]} failed at {problem.extents} ({reason}), expected kernels that "
                    "work: leave it out of the manifest (exclude), build, and measure again"
                )
    return ACCEPTED


def _fitted_today(tuning: Tuning) -> Verdict:
    """Whether its cost models are of the formula that kernels are chosen by."""
    for group in tuning.groups:
        if group.other_formula is not None:
            return Rejected(
                f"the cost model of group {group.name} was fitted to formula {group.other_formula}, "
                f"expected {FORMULA}: leave the file out of the manifest, build, and fit it anew with "
                "cutlass-aot tune BUNDLE --fit FILE"
            )
    return ACCEPTED


def rankings_of_manifest(
    files: Mapping[str, Tuning], kernels: Objects, versions: Mapping[str, str]
) -> tuple[Ranking, ...]:
    """The rankings from the tuning files (by path as written) that a manifest names in ``[select] tuning``.

    Call it before anything is compiled, to refuse early a file that is of no use, and again when the objects
    are known. Times of kernels that the manifest does not select are left out. ManifestError if a file has
    no others, or times of other code than is built, or no times, or if two files have times of one group on
    one GPU model.
    """
    found: dict[tuple[str, str], tuple[str, Ranking]] = {}
    present = {name: of_present(tuning, kernels) for name, tuning in files.items()}
    for name, tuning in present.items():
        # A file without any of the kernels is refused with the name of one.
        verdict = fits(
            tuning if tuning.groups else files[name],
            kernels,
            holder="this build",
            advice="leave the file out of the manifest, build, measure the bundle with cutlass-aot tune, and "
            "put the new file into the manifest",
            versions=versions,
        )
        verdict = verdict and sound(tuning) and _fitted_today(tuning)
        if not verdict:
            raise ManifestError(f"select.tuning: {name}: {verdict.reason}")
        others = [other for other in present.values() if other is not tuning]
        own = rankings(tuning, kernels, sorted(others, key=lambda other: other.gpu != tuning.gpu))
        if not own:
            raise ManifestError(f"select.tuning: {name}: no problem was measured: leave the file out")
        for ranking in own:
            other, known = found.setdefault((ranking.group, ranking.gpu), (name, ranking))
            if ranking.precedence > known.precedence:
                found[ranking.group, ranking.gpu] = name, ranking
            elif other != name and ranking.problems and not ranking.measured_as:
                groups = {group.digest: group.name for group in tuning.groups}
                raise ManifestError(
                    f"select.tuning: {other} and {name} both have times of group {groups[ranking.group]} on "
                    f"{ranking.gpu}, expected them in one file: leave one out, or measure them together with "
                    "cutlass-aot tune -o"
                )
    return tuple(found[key][1] for key in sorted(found))
