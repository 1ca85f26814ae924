"""What an open bundle consists of, and what was left out of it with the reasons: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cutlass_aot.runtime.opened.bundle_directory import Part
from cutlass_aot.runtime.opened.merged_groups import MergedGroups
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.words import plural


class Unusable(NamedTuple):
    """A bundle, or a part of one, that is at hand and cannot be used.

    Attributes:
        name: of the bundle; of its directory, if it could not be read.
        version: of the bundle; ``""`` if it could not be read.
        part: which part of the bundle it is; ``""`` for a whole one, and if it could not be read.
        path: its directory, or the package that lacks one.
        reason: why, with what to do.
    """

    name: str
    version: str
    part: str
    path: str
    reason: str


class Missing(NamedTuple):
    """A part that other parts of its bundle speak of, and that is not at hand; nor is it an unusable one."""

    name: str
    version: str
    part: str


class LeftOut(NamedTuple):
    """What is at hand and not opened.

    Attributes:
        older: of a bundle that is there in another version: its directory, that of the one which is
            taken, and why.
        unusable: what cannot be used.
        missing: parts that are not there.
    """

    older: tuple[tuple[Part, Part, str], ...] = ()
    unusable: tuple[Unusable, ...] = ()
    missing: tuple[Missing, ...] = ()


class Used(NamedTuple):
    """A directory that a bundle consists of.

    Attributes:
        name: of the bundle.
        version: of the bundle.
        part: which part of the bundle it is; ``""`` for a whole one.
        path: the directory.
        targets: GPU code targets it has kernels for.
        hosts: CPU architectures it has libraries for.
        groups: how many groups it has.
        kernels: how many kernels.
    """

    name: str
    version: str
    part: str
    path: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    groups: int
    kernels: int


class Shadowed(NamedTuple):
    """Groups that are at hand and not asked.

    Attributes:
        name: of the bundle that has them.
        version: of that bundle.
        path: its directory.
        by: the directory that is asked instead.
        reason: why.
        groups: names of the groups.
    """

    name: str
    version: str
    path: str
    by: str
    reason: str
    groups: tuple[str, ...]


class Report(NamedTuple):
    """What a bundle consists of, and what was left out; ``str`` gives a line for each.

    Attributes:
        used: its directories, in the order of the search path.
        shadowed: groups of which another directory's are taken.
        unusable: what cannot be used.
        missing: parts that are not at hand.
    """

    used: tuple[Used, ...]
    shadowed: tuple[Shadowed, ...]
    unusable: tuple[Unusable, ...]
    missing: tuple[Missing, ...]

    def to_record(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        record: dict[str, Any] = to_plain(self)
        return record

    def __str__(self) -> str:
        lines = [
            f"{_title(item.name, item.version, item.part)}: {item.kernels} kernels in {item.groups} groups "
            f"for {', '.join(item.targets)} ({item.path})"
            for item in self.used
        ]
        lines += [
            f"shadowed: {plural(len(item.groups), 'group')} of {_title(item.name, item.version)} "
            f"({item.path}) by {item.by}: {item.reason}"
            for item in self.shadowed
        ]
        lines += [
            f"unusable: {_title(item.name, item.version, item.part)} ({item.path}): {item.reason}"
            for item in self.unusable
        ]
        lines += [
            f"missing: {_title(item.name, item.version, item.part)} is not installed" for item in self.missing
        ]
        return "\n".join(lines)


def _title(name: str, version: str, part: str = "") -> str:
    return " ".join(filter(None, (name, version, f"part {part}" if part else "")))


def report_of(parts: Sequence[Part], left_out: LeftOut) -> Report:
    """What consists of these directories, and was left out of it; the groups of all of them are decoded.

    Raises:
        CorruptFile: if the index of one is malformed.
    """
    shadowed = [
        _shadowed(older, newer, reason, tuple(group.name for group in older.catalog.groups))
        for older, newer, reason in left_out.older
    ]
    by_reason: dict[tuple[Part, Part, str], list[str]] = {}
    for group in MergedGroups(parts).shadowed() if len(parts) > 1 else ():
        by_reason.setdefault((group.part, group.by, group.reason), []).append(group.entry.name)
    shadowed += [_shadowed(*key, tuple(sorted(names))) for key, names in by_reason.items()]
    return Report(
        used=tuple(
            Used(
                part.catalog.name,
                part.catalog.version,
                part.catalog.part,
                str(part.path),
                part.catalog.targets,
                part.catalog.hosts,
                len(part.catalog.groups),
                sum(group.count for group in part.catalog.groups),
            )
            for part in parts
        ),
        shadowed=tuple(sorted(shadowed)),
        unusable=tuple(sorted(left_out.unusable)),
        missing=tuple(sorted(left_out.missing)),
    )


def _shadowed(part: Part, by: Part, reason: str, groups: tuple[str, ...]) -> Shadowed:
    return Shadowed(part.catalog.name, part.catalog.version, str(part.path), str(by.path), reason, groups)
