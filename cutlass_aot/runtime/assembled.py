"""Open what is at hand as one bundle: parts that belong together, several bundles, and what is left out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cutlass_aot.errors import BundleError, CutlassAotError
from cutlass_aot.runtime.bundle import Bundle, note_opened
from cutlass_aot.runtime.installed import FOLDER, InstalledBundle, installed_bundles
from cutlass_aot.runtime.part import Part, open_part
from cutlass_aot.runtime.report import LeftOut, Missing, Report, Unusable, report_of
from cutlass_aot.runtime.trust import KeyFiles
from cutlass_aot.schema.versions import order


def open_installed(
    name: str | None = None,
    version: str | None = None,
    *,
    check: bool = True,
    paths: Iterable[str | os.PathLike[str]] = (),
    keys: KeyFiles | None = None,
) -> Bundle:
    """Open bundles that were installed as wheels, or lie in directories of the search path, as one.

    All parts of one name and version add up to one bundle. Of several versions of a name, the one that comes
    first on the search path is opened, then the newest. Where bundles of several names have the same group,
    see :func:`~cutlass_aot.runtime.shadowing.shadows`. What cannot be used is left out, unless nothing is
    left; :meth:`cutlass_aot.Bundle.report` has it with the reasons.

    Args:
        name: of the bundle; None for all of them together.
        version: of the bundle; None for the newest.
        check: see :func:`cutlass_aot.open`.
        paths: directories that are searched before those of ``CUTLASS_AOT_BUNDLE_PATH``, see
            :mod:`~cutlass_aot.runtime.installed`.
        keys: see :func:`cutlass_aot.open`; of each directory.

    Raises:
        BundleError: if there is none of that name and version, with what is at hand, or none can be used, for
            several reasons.
        CorruptFile: if it is truncated, altered or foreign.
        SchemaTooNew: if a newer release wrote it.
        Incompatible: if this machine cannot load it.
        UntrustedBundle: if keys are required and none of them has signed it.
        SignatureError: if keys are required and cannot be read, or the package ``cryptography`` is not there.
    """
    found = installed_bundles(paths)
    gathered = _gather(found, name, version, check, keys)
    if not gathered.parts:
        raise _nothing(found, name, version, gathered)
    parts = gathered.parts
    names = dict.fromkeys(part.catalog.name for part in parts)
    versions = {part.catalog.name: part.catalog.version for part in parts}
    bundle = Bundle(parts, "+".join(names), "+".join(versions[item] for item in names), gathered.left_out)
    return note_opened(bundle)


def installed_report(
    name: str | None = None,
    version: str | None = None,
    *,
    paths: Iterable[str | os.PathLike[str]] = (),
) -> Report:
    """What :func:`open_installed` would open, and what it would leave out; empty if there is nothing.

    Args:
        name: see :func:`open_installed`, like the others.
        version: likewise.
        paths: likewise.
    """
    gathered = _gather(installed_bundles(paths), name, version, True, None)
    return report_of(gathered.parts, gathered.left_out)


class _Opened(NamedTuple):
    """A bundle at hand, read."""

    found: InstalledBundle
    part: Part


class _Gathered(NamedTuple):
    """What is opened, what is not, and the errors of those that cannot be."""

    parts: list[Part]
    left_out: LeftOut
    errors: list[CutlassAotError]


def _gather(
    found: Sequence[InstalledBundle],
    name: str | None,
    version: str | None,
    check: bool,
    keys: KeyFiles | None,
) -> _Gathered:
    opened: list[_Opened] = []
    unusable: list[Unusable] = []
    errors: list[CutlassAotError] = []
    for item in found:
        unknown = bool(item.problem)
        if not unknown and (name not in (None, item.name) or version not in (None, item.version)):
            continue
        try:
            opened.append(_Opened(item, _open(item, check, keys)))
        except CutlassAotError as error:
            unusable.append(Unusable(item.name, item.version, str(item.path or item.package), str(error)))
            # One whose name is not known is reported, and is not what was asked for.
            if not unknown or name is None:
                errors.append(error)
    kept, older = _newest(opened)
    # In order of the search path: the first stands for the bundle where one directory has to.
    kept.sort(key=lambda item: (item.found.place, item.found.name, str(item.found.path)))
    parts = [item.part for item in kept]
    left_out = LeftOut(tuple(older), tuple(unusable), tuple(_missing(parts)))
    return _Gathered(parts, left_out, errors)


def _open(item: InstalledBundle, check: bool, keys: KeyFiles | None) -> Part:
    if item.problem and item.path is not None and not item.path.exists():
        raise BundleError(item.problem)
    if item.path is None:
        raise BundleError(
            f"bundle {item.name!r} is installed by {item.distribution}, but package {item.package} has no "
            f"folder {FOLDER!r}: install the wheel again"
        )
    part = open_part(item.path, place=item.place, keys=keys)
    if check:
        part.check_machine()
    return part


def _newest(opened: Sequence[_Opened]) -> tuple[list[_Opened], list[tuple[Part, Part, str]]]:
    """Of each name the version to take, and the others with what is taken instead and why."""
    chosen: dict[str, _Opened] = {}
    for item in opened:
        best = chosen.get(item.found.name)
        if best is None or _before(item, best):
            chosen[item.found.name] = item
    kept, older = [], []
    for item in opened:
        best = chosen[item.found.name]
        if order(item.found.version) == order(best.found.version):
            kept.append(item)
            continue
        earlier = best.found.place < item.found.place
        reason = "it comes earlier on the search path" if earlier else "it is newer"
        older.append((item.part, best.part, reason))
    return kept, older


def _before(one: _Opened, other: _Opened) -> bool:
    mine, theirs = one.found, other.found
    if mine.place != theirs.place:
        return mine.place < theirs.place
    return order(mine.version) > order(theirs.version)


def _missing(parts: Sequence[Part]) -> list[Missing]:
    """Parts that those at hand speak of, and that are not."""
    present: dict[tuple[str, str], set[str]] = {}
    wanted: dict[tuple[str, str], set[str]] = {}
    for part in parts:
        key = part.catalog.name, part.catalog.version
        present.setdefault(key, set()).add(part.catalog.part)
        wanted.setdefault(key, set()).update(part.catalog.parts)
    return [
        Missing(name, version, part)
        for (name, version), names in sorted(wanted.items())
        # A whole bundle of that name and version has them all.
        if "" not in present[name, version]
        for part in sorted(names - present[name, version])
    ]


def _nothing(
    found: Sequence[InstalledBundle], name: str | None, version: str | None, gathered: _Gathered
) -> CutlassAotError:
    """Why there is nothing to open."""
    if len(gathered.errors) == 1:
        return gathered.errors[0]
    if gathered.errors:
        reasons = "; ".join(map(str, gathered.errors))
        made = f"none of the {len(gathered.errors)} bundles at hand can be used: {reasons}"
        kinds = {type(error) for error in gathered.errors}
        return kinds.pop()(made) if len(kinds) == 1 else BundleError(made)
    listed = ", ".join(dict.fromkeys(f"{item.name} {item.version}" for item in found if not item.problem))
    problems = "".join(f"; {item.problem}" for item in found if item.problem)
    wanted = f"bundle {f'{name} {version or str()}'.rstrip()!r} is not" if name else "no bundle is"
    return BundleError(
        f"{wanted} installed: installed are {listed or 'no bundles'}; install its wheel, or open a directory "
        f"with cutlass_aot.open{problems}"
    )
