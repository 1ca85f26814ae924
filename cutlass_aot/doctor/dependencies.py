"""Compare installed packages with the versions that this release requires, from metadata alone."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from cutlass_aot.schema.versions import release

DISTRIBUTION = "cutlass-aot"
# Name, extras, versions, marker: "torch>=2.11 ; extra == 'build'".
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_BUILD_MARKER = re.compile(r"""\s*extra\s*==\s*['"]build['"]\s*""")
_CLAUSE = re.compile(r"\s*(==|>=|<)\s*([^\s,]+)\s*")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {">=": operator.ge, "<": operator.lt}


def expected_versions() -> dict[str, str]:
    """Package to the versions that this release asks for, such as ``>=13.0,<14``, with the extra ``build``.

    Empty where cutlass-aot runs from its sources without being installed. What a marker other than the extra
    limits to some machines is left out.
    """
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    found = {}
    for requirement in requirements:
        match = _REQUIREMENT.fullmatch(requirement.strip())
        if match is not None and (not match[3] or _BUILD_MARKER.fullmatch(match[3])):
            found[match[1].lower().replace("_", "-")] = match[2].replace(" ", "")
    return dict(sorted(found.items()))


def satisfies(version: str, expected: str) -> bool:
    """Whether an installed version, such as ``2.13.0+cpu``, satisfies the clauses that are expected.

    They are ``==``, ``>=`` and ``<`` with commas between; ``""`` accepts any version. Anything else raises
    :class:`ValueError`.
    """
    for clause in filter(None, expected.split(",")):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise ValueError(f"{clause!r} is not a version clause of ==, >= or <")
        if match[1] == "==":
            # Equal except for a local part, such as +cpu: 4.8.1.post1 is not 4.8.1.
            if version.partition("+")[0] != match[2]:
                return False
        elif not _COMPARE[match[1]](release(version), release(match[2])):
            return False
    return True


def differing(installed: Mapping[str, str | None], expected: Mapping[str, str]) -> list[dict[str, str]]:
    """Installed packages whose versions are not those required, as plain data.

    Keys of each: ``package``, ``installed``, ``expected``. Packages that are missing are not among them.
    """
    found = []
    for name, version in sorted(installed.items()):
        required = expected.get(name, "")
        try:
            good = version is None or satisfies(version, required)
        except ValueError:
            good = False
        if not good:
            found.append({"package": name, "installed": str(version), "expected": required})
    return found
