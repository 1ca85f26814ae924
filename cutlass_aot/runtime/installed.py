"""Open what is at hand as one bundle: parts that belong together, several bundles, and what is left out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cutlass_aot.errors import BundleError, CutlassAotError, UntrustedBundle
from cutlass_aot.runtime.bundle import Bundle, note_opened
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.opened.bundle_directory import Part, open_part
from cutlass_aot.runtime.opened.report import LeftOut, Missing, Report, Unusable, report_of
from cutlass_aot.runtime.search_path import FOLDER, InstalledBundle, located
from cutlass_aot.schema.bundles.catalog import Catalog
from cutlass_aot.schema.versions import order


def open_installed(
    name: str | None = None,
    version: str | None = None,
    *,
    check: bool = True,
    paths: Iterable[str | os.PathLike[str]] = (),
    keys: trust.KeyFiles | None = None,
) -> Bundle:
    """Open bundles that were installed as wheels, or lie in directories of the search path, as one.

    All parts of one name and version add up to one bundle. Of several versions of a name, the one that comes
    first on the search path is opened, then the newest. Where bundles of several names have the same group,
    see :func:`~.shadows`. What cannot be used is left out, unless nothing is
    left; :meth:`cutlass_aot.Bundle.report` has it with the reasons.

    Args:
        name: of the bundle; None for all of them together.
        version: of the bundle; None for the newest.
        check: see :func:`cutlass_aot.open`.
        paths: directories that are searched before those of ``CUTLASS_AOT_BUNDLE_PATH``, see
            :mod:`~cutlass_aot.runtime.search_path`.
        keys: see :func:`cutlass_aot.open`; of each directory. They are read once.

    Raises:
        BundleError: if there is none of that name and version, with what is at hand, or none can be used, for
            several reasons.
        CorruptFile: if it is truncated, altered or foreign.
        SchemaTooNew: if a newer release wrote it.
        Incompatible: if this machine cannot load it.
        UntrustedBundle: if keys are required and none of them has signed it; or if there is none of that name
            and version, and a directory that nobody who is trusted has signed, which may be it.
        SignatureError: if keys are required and cannot be read, or the package ``cryptography`` is not there.
    """
    gathered = _gather(located(paths), name, version, check, trust.read_once(keys))
    if not gathered.parts:
        raise _nothing(name, version, gathered)
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

    Raises:
        CorruptFile: if the index of a group is malformed.
    """
    gathered = _gather(located(paths), name, version, True, None)
    return report_of(gathered.parts, gathered.left_out)


def open_found(item: InstalledBundle, keys: trust.KeyFiles | None = None) -> Part:
    """Open what a search found, and hold its catalog against what announced it.

    A signature is of the catalog, not of a wheel's metadata: with another name or version there, a bundle
    that was rightly signed would be taken for another one.

    Args:
        item: as :func:`~cutlass_aot.runtime.search_path.located` has it.
        keys: see :func:`cutlass_aot.open`.

    Raises:
        BundleError: if there is nothing to open, or it is another bundle than was announced.
        CorruptFile: as :func:`~cutlass_aot.runtime.opened.bundle_directory.open_part`, like the others.
        SchemaTooNew: likewise.
        UntrustedBundle: likewise.
        SignatureError: likewise.
    """
    if item.problem:
        raise BundleError(item.problem)
    if item.path is None:
        raise BundleError(
            f"bundle {item.name!r} is installed by {item.distribution}, but package {item.package} has no "
            f"folder {FOLDER!r}: install the wheel again"
        )
    part = open_part(item.path, place=item.place, keys=keys)
    catalog = part.catalog
    if item.announced and (item.name, item.version) != (catalog.name, catalog.version):
        raise BundleError(
            f"{item.path} is bundle {catalog.name} {catalog.version}, but "
            f"{item.distribution or item.package} announces {item.name} {item.version}: "
            "expected its own name and version; pack it with cutlass-aot wheel, or get it again from who "
            "made the bundle"
        )
    return part


class _Gathered(NamedTuple):
    """What there is.

    Attributes:
        parts: what is opened.
        left_out: what is not.
        names: names and versions of all that is at hand, as far as they are known.
        errors: of what was asked for and cannot be used.
        unnamed: errors of what may be what was asked for: its name could not be read.
    """

    parts: list[Part]
    left_out: LeftOut
    names: list[tuple[str, str]]
    errors: list[CutlassAotError]
    unnamed: list[CutlassAotError]


def _gather(
    found: Sequence[InstalledBundle],
    name: str | None,
    version: str | None,
    check: bool,
    keys: trust.KeyFiles | None,
) -> _Gathered:
    def asked(its_name: str, its_version: str | None) -> bool:
        return name in (None, its_name) and version in (None, its_version)

    opened: list[Part] = []
    unusable: list[Unusable] = []
    refused: list[Catalog] = []
    names: list[tuple[str, str]] = []
    errors: list[CutlassAotError] = []
    unnamed: list[CutlassAotError] = []
    for item in found:
        # Of a wheel whose version is not known the name decides.
        if item.announced and not asked(item.name, item.version or version):
            names.append((item.name, item.version))
            continue
        try:
            part = open_found(item, keys)
        except CutlassAotError as error:
            where = str(item.path or item.package)
            unusable.append(Unusable(item.name, item.version, "", where, str(error)))
            (errors if item.announced or name is None else unnamed).append(error)
            continue
        catalog = part.catalog
        names.append((catalog.name, catalog.version))
        if not asked(catalog.name, catalog.version):
            continue
        try:
            if check:
                part.check_machine()
        except CutlassAotError as error:
            path = str(part.path)
            unusable.append(Unusable(catalog.name, catalog.version, catalog.part, path, str(error)))
            refused.append(catalog)
            errors.append(error)
            continue
        opened.append(part)
    parts, older = _newest(opened)
    # In order of the search path: the first stands for the bundle where one directory has to.
    parts.sort(key=lambda part: (part.place, part.catalog.name, str(part.path)))
    left_out = LeftOut(tuple(older), tuple(unusable), tuple(_missing(parts, refused)))
    return _Gathered(parts, left_out, names, errors, unnamed)


def _newest(opened: Sequence[Part]) -> tuple[list[Part], list[tuple[Part, Part, str]]]:
    """Of each name the version to take, and the others with what is taken instead and why."""
    chosen: dict[str, Part] = {}
    for part in opened:
        best = chosen.get(part.catalog.name)
        if best is None or _before(part, best):
            chosen[part.catalog.name] = part
    kept, older = [], []
    for part in opened:
        best = chosen[part.catalog.name]
        if order(part.catalog.version) == order(best.catalog.version):
            kept.append(part)
            continue
        reason = "it comes earlier on the search path" if best.place < part.place else "it is newer"
        older.append((part, best, reason))
    return kept, older


def _before(one: Part, other: Part) -> bool:
    if one.place != other.place:
        return one.place < other.place
    return order(one.catalog.version) > order(other.catalog.version)


def _missing(parts: Sequence[Part], refused: Sequence[Catalog]) -> list[Missing]:
    """Parts that those at hand speak of, and that are not; ``refused`` are those that are, and unusable."""
    present: dict[tuple[str, str], set[str]] = {}
    wanted: dict[tuple[str, str], set[str]] = {}
    for part in parts:
        key = part.catalog.name, part.catalog.version
        present.setdefault(key, set()).add(part.catalog.part)
        wanted.setdefault(key, set()).update(part.catalog.parts)
    unusable = {(catalog.name, catalog.version, catalog.part) for catalog in refused}
    return [
        Missing(name, version, part)
        for (name, version), names in sorted(wanted.items())
        # A whole bundle of that name and version has them all.
        if "" not in present[name, version]
        for part in sorted(names - present[name, version])
        if (name, version, part) not in unusable
    ]


def _nothing(name: str | None, version: str | None, gathered: _Gathered) -> CutlassAotError:
    """Why there is nothing to open."""
    if len(gathered.errors) == 1:
        return gathered.errors[0]
    if gathered.errors:
        reasons = "; ".join(map(str, gathered.errors))
        made = f"none of the {len(gathered.errors)} bundles at hand can be used: {reasons}"
        kinds = {type(error) for error in gathered.errors}
        return kinds.pop()(made) if len(kinds) == 1 else BundleError(made)
    names = sorted(dict.fromkeys(gathered.names), key=lambda item: (item[0], order(item[1])))
    listed = ", ".join(" ".join(item).rstrip() for item in names)
    problems = "".join(f"; {error}" for error in gathered.unnamed)
    wanted = f"bundle {f'{name} {version or str()}'.rstrip()!r} is not" if name else "no bundle is"
    untrusted = any(isinstance(error, UntrustedBundle) for error in gathered.unnamed)
    return (UntrustedBundle if untrusted else BundleError)(
        f"{wanted} installed: installed are {listed or 'no bundles'}; install its wheel, or open a directory "
        f"with cutlass_aot.open{problems}"
    )
