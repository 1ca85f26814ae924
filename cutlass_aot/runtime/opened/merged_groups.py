"""The groups of an open bundle, in whatever directories they lie: one list, and what is shadowed in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cutlass_aot.runtime.opened.bundle_directory import Part
from cutlass_aot.runtime.opened.precedence import Contender, shadows
from cutlass_aot.schema.bundles.catalog import FileReference, GroupEntry


class Shadowed(NamedTuple):
    """A group that is not asked, because another directory has it too.

    Attributes:
        entry: the group.
        part: where it lies.
        by: the directory whose group is asked instead.
        reason: why.
    """

    entry: GroupEntry
    part: Part
    by: Part
    reason: str


class MergedGroups(Sequence[GroupEntry]):
    """The groups of several directories as if they were one catalog's; each group is there once.

    Groups are the same if their kernels are functionally equivalent and for one target. Which of them is
    asked is said by :func:`~.shadows`. Groups are decoded when they are looked
    up, as a catalog's own are.

    Args:
        parts: the directories, at least one.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self._owners: dict[FileReference, Part] = {}
        self._by_signature: dict[str, tuple[GroupEntry, ...]] = {}
        self._all: tuple[GroupEntry, ...] | None = None

    def part_of(self, entry: GroupEntry) -> Part:
        """The directory of one of these groups."""
        return self._parts[0] if len(self._parts) == 1 else self._owners[entry.child]

    def with_signature(self, word: str) -> tuple[GroupEntry, ...]:
        """Those with a :func:`~.catalog.signature`, by name; the others are not decoded."""
        if len(self._parts) == 1:
            return self._parts[0].catalog.groups.with_signature(word)
        found = self._by_signature.get(word)
        if found is None:
            everything = [
                (entry, part) for part in self._parts for entry in part.catalog.groups.with_signature(word)
            ]
            found = self._by_signature[word] = self._seen(everything)
        return found

    def with_dtypes(self, operation: str, dtypes: Sequence[str]) -> tuple[GroupEntry, ...]:
        """Those of one operation and element types, whatever their layouts and target."""
        return self._seen(
            (entry, part)
            for part in self._parts
            for entry in part.catalog.groups.with_dtypes(operation, dtypes)
        )

    def of_operation(self, operation: str, target: str) -> tuple[GroupEntry, ...]:
        """Those of one operation and target, whatever their operands."""
        return self._seen(
            (entry, part)
            for part in self._parts
            for entry in part.catalog.groups.of_operation(operation, target)
        )

    def shadowed(self) -> list[Shadowed]:
        """Groups that are not asked; all groups are decoded for it."""
        found = []
        for same in _alike((entry, part) for part in self._parts for entry in part.catalog.groups):
            asked, by = _asked(same)
            for entry, part in same:
                if part is not by:
                    reason = shadows(contender(asked, by), contender(entry, part))
                    found.append(Shadowed(entry, part, by, reason))
        return found

    def __len__(self) -> int:
        return len(self._parts[0].catalog.groups) if len(self._parts) == 1 else len(self._entries())

    def __getitem__(self, index: Any) -> Any:
        return self._entries()[index]

    def _entries(self) -> Sequence[GroupEntry]:
        if len(self._parts) == 1:
            return self._parts[0].catalog.groups
        if self._all is None:
            everything = [(entry, part) for part in self._parts for entry in part.catalog.groups]
            self._all = self._seen(everything)
        return self._all

    def _seen(self, everything: Iterable[tuple[GroupEntry, Part]]) -> tuple[GroupEntry, ...]:
        """Of groups that are the same, the one that is asked; by name."""
        if len(self._parts) == 1:
            return tuple(entry for entry, _ in everything)
        found = []
        for same in _alike(everything):
            entry, part = _asked(same)
            self._owners[entry.child] = part
            found.append(entry)
        return tuple(sorted(found, key=lambda entry: (entry.name, entry.child)))


def _alike(everything: Iterable[tuple[GroupEntry, Part]]) -> list[list[tuple[GroupEntry, Part]]]:
    """Groups by what they compute: those that are the same together."""
    found: dict[Any, list[tuple[GroupEntry, Part]]] = {}
    for entry, part in everything:
        # What makes kernels functionally equivalent: Kernel.group, which the parent index does not have.
        how: tuple[Any, ...] = entry.accumulator, entry.epilogue, entry.target, entry.parameters
        if entry.requests is not None:
            # Kernels of a program are not equivalent: only an equal group takes the place of another one.
            how = (*how, entry.child.sha256)
        found.setdefault((entry.operation, entry.operands, how), []).append((entry, part))
    return list(found.values())


def _asked(same: Sequence[tuple[GroupEntry, Part]]) -> tuple[GroupEntry, Part]:
    best = same[0]
    for other in same[1:]:
        if shadows(contender(*other), contender(*best)):
            best = other
    return best


def contender(entry: GroupEntry, part: Part) -> Contender:
    """What the rule of precedence looks at of a group in a directory."""
    return Contender(
        loadable=os.uname().machine in entry.libraries,
        place=part.place,
        version=part.catalog.version,
        measured=any(ranking.measured for ranking in entry.rankings),
        name=part.catalog.name,
        path=os.fspath(part.path),
    )
