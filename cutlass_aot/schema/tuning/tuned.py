"""What a tuning file is good for: the GPU and the very kernels it was measured on, as a bundle's rankings.

Pure functions, which take the kernels at hand as a mapping (:data:`Objects`).
"""

from collections.abc import Iterable, Mapping

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.kernels.operands import ACCEPTED, Rejected, Verdict
from cutlass_aot.schema.tuning.ranking import RankedProblem, Ranking
from cutlass_aot.schema.tuning.tuning import TunedProblem, Tuning

Objects = Mapping[str, tuple[str, str | None]]
"""Digest of a kernel's record to its group's digest and its object's, None if it is not compiled yet."""

_SHOWN = 16
"""Digits of a digest that a reader is shown."""


def objects_of(entries: Iterable[KernelEntry]) -> Objects:
    """Kernels of a bundle, to hold tuning files against."""
    return {entry.kernel.digest: (entry.kernel.group, entry.object_sha256) for entry in entries}


def applies(tuning: Tuning, gpu: str) -> Verdict:
    """Whether a tuning file holds for a GPU model, as the driver names it."""
    if tuning.gpu == gpu:
        return ACCEPTED
    return Rejected(
        f"the tuning file was measured on {tuning.gpu!r}, expected {gpu!r}: times of one GPU model say "
        "nothing of another; measure on this one with cutlass-aot tune, into another file"
    )


def fits(
    tuning: Tuning, kernels: Objects, *, holder: str, advice: str, versions: Mapping[str, str] | None = None
) -> Verdict:
    """Whether every kernel of a tuning file is among those at hand, with the code that was measured.

    Kernels that the file does not name are no reason to refuse: they rank behind. Neither is another
    toolchain that gives the same objects.

    Args:
        tuning: the file.
        kernels: those at hand; one that is not compiled yet is checked against its record alone.
        holder: who has them, for the reason: ``bundle sm90``.
        advice: what to do, for the reason.
        versions: of what they were built with, as in :attr:`Tuning.versions`; those that differ are named.
    """
    for group in tuning.groups:
        for kernel in group.kernels:
            what = f"the tuning file has times of kernel {kernel.name}"
            found = kernels.get(kernel.digest)
            if found is None or found[0] != group.digest:
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


def _differences(measured: Mapping[str, str], present: Mapping[str, str]) -> str:
    """Versions of what the code comes from, on both sides."""
    names = [name for name in sorted(present) if present[name] != measured.get(name, present[name])]
    # The fingerprint differs whenever a package does: it tells something only where it stands alone.
    names = [name for name in names if name not in ("cutlass-aot", "toolchain")] or [
        name for name in names if name == "toolchain"
    ]
    return "".join(
        f"; it was measured with {name} {measured[name][:_SHOWN]}, expected {present[name][:_SHOWN]}"
        for name in names
    )


def rankings(tuning: Tuning) -> tuple[Ranking, ...]:
    """What a bundle keeps of a tuning file: one ranking for each group in which anything was ranked."""
    driver = f", driver {tuning.driver}" if tuning.driver else ""
    origin = f"tuned {tuning.date} on {tuning.gpu}{driver}"
    found = []
    for group in tuning.groups:
        problems = tuple(_ranked(problem) for problem in group.problems if problem.ranked)
        if problems:
            found.append(Ranking(group.digest, tuning.gpu, True, origin, problems))
    return tuple(found)


def _ranked(problem: TunedProblem) -> RankedProblem:
    """What was measured to the end, best first, then what was dropped after a first look."""
    last = problem.ranked[-1][1]
    # A first look is shorter: it may have found less than the last of the others took.
    dropped = [(digest, max(found, last)) for digest, found in problem.stopped]
    times = sorted((*problem.ranked, *dropped), key=lambda item: item[1])
    return RankedProblem(
        problem.extents,
        tuple(digest for digest, _ in times),
        tuple(microseconds / 1e6 for _, microseconds in times),
    )


def sound(tuning: Tuning) -> Verdict:
    """Whether every kernel that was measured gave right results: one that did not must not be chosen."""
    for group in tuning.groups:
        names = {kernel.digest: kernel.name for kernel in group.kernels}
        for problem in group.problems:
            for digest, reason in problem.failed:
                return Rejected(
                    f"kernel {names[digest]} failed at {problem.extents} ({reason}), expected kernels that "
                    "work: leave it out of the manifest (exclude), build, and measure again"
                )
    return ACCEPTED


def rankings_of_manifest(
    files: Mapping[str, Tuning], kernels: Objects, versions: Mapping[str, str]
) -> tuple[Ranking, ...]:
    """What a build keeps of the tuning files that its manifest names in ``[select] tuning``.

    To be called twice: before anything is compiled, where a kernel that the manifest does not select is
    refused at once, and again when the objects are known.

    Args:
        files: tuning files by their paths as the manifest writes them.
        kernels: those that the manifest selects.
        versions: packages and ``toolchain`` of the build.

    Raises:
        ManifestError: if a file has times of a kernel that the manifest does not select, or of other code
            than is built now, or no times at all; or if two have times of one group on one GPU model.
    """
    found: dict[tuple[str, str], tuple[str, Ranking]] = {}
    for name, tuning in files.items():
        verdict = fits(
            tuning,
            kernels,
            holder="this build",
            advice="leave the file out of the manifest, build, measure the bundle with cutlass-aot tune, and "
            "put the new file into the manifest",
            versions=versions,
        )
        verdict = verdict and sound(tuning)
        if not verdict:
            raise ManifestError(f"select.tuning: {name}: {verdict.reason}")
        own = rankings(tuning)
        if not own:
            raise ManifestError(f"select.tuning: {name}: no problem was measured: leave the file out")
        for ranking in own:
            other, _ = found.setdefault((ranking.group, ranking.gpu), (name, ranking))
            if other != name:
                groups = {group.digest: group.name for group in tuning.groups}
                raise ManifestError(
                    f"select.tuning: {other} and {name} both have times of group {groups[ranking.group]} on "
                    f"{ranking.gpu}, expected them in one file: leave one out, or measure them together with "
                    "cutlass-aot tune -o"
                )
    return tuple(found[key][1] for key in sorted(found))
