"""Which of several bundles that have the same group is asked for it: one pure rule, and its reason."""

from __future__ import annotations

from typing import NamedTuple

from cutlass_aot.schema.versions import order


class Contender(NamedTuple):
    """What the rule looks at.

    Attributes:
        loadable: whether it has libraries for this machine's CPU architecture.
        place: where on the search path the bundle was found, 0 first.
        version: of the bundle.
        measured: whether it has measured times of the group.
        name: of the bundle.
        path: its directory, which decides where nothing else does.
    """

    loadable: bool
    place: int
    version: str
    measured: bool
    name: str
    path: str


def shadows(one: Contender, other: Contender) -> str:
    """Why ``one`` is asked and ``other`` is not, ``""`` if it is the other way round.

    What this machine can load comes first (where nobody has the machine checked, other hosts' libraries are
    at hand too), then what stands earlier on the search path, then the newer version, then what was measured,
    then the name, then the directory's path. A whole order: of any number, one is asked.
    """
    if one.loadable != other.loadable:
        return "it has libraries for this host" if one.loadable else ""
    if one.place != other.place:
        return "it comes earlier on the search path" if one.place < other.place else ""
    mine, theirs = order(one.version), order(other.version)
    if mine != theirs:
        return f"{one.version} is newer than {other.version}" if mine > theirs else ""
    if one.measured != other.measured:
        return "it has measured times" if one.measured else ""
    if one.name != other.name:
        return "its name comes first" if one.name < other.name else ""
    return "its path comes first" if one.path < other.path else ""
