"""The environment variables of this package as they are set here, and what cannot work about each."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from cutlass_aot.doctor.bundle import diagnose, find_bundles
from cutlass_aot.doctor.facts import this_machine
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.runtime import policy
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.launching import unpacking
from cutlass_aot.runtime.search_path import installed_bundles

PREFIX = "CUTLASS_AOT_"
HIDDEN = frozenset({"CUTLASS_AOT_KEY_PASSPHRASE"})
"""Variables whose values are never printed."""


class Variable(NamedTuple):
    """A variable that is set. ``problems`` are sentences without a full stop: what cannot work, and why."""

    name: str
    value: str
    problems: tuple[str, ...]


def environment() -> list[Variable]:
    """Every variable of this package that is set, in the order of their names.

    One that this package does not read is a problem, as it may be misspelt.
    """
    return [
        Variable(name, "(set)" if name in HIDDEN and value else value, tuple(_problems(name, value)))
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIX)
    ]


def _problems(name: str, value: str) -> list[str]:
    check = CHECKS.get(name)
    if check is None:
        alike = difflib.get_close_matches(name, CHECKS, 1)
        meant = f"did you mean {alike[0]}?" if alike else f"expected one of {', '.join(sorted(CHECKS))}"
        return [f"nothing reads this variable: {meant}"]
    try:
        return check(value)
    except CutlassAotError as error:
        return [str(error)]


def _search_path(value: str) -> list[str]:
    found = installed_bundles() if value else []
    return [item.problem for item in found if item.problem and not item.announced]


def _cache(value: str) -> list[str]:
    if not value:
        return []
    if not Path(value).is_absolute():
        return ["expected an absolute path: each process takes this one from the directory that it is in"]
    state = unpacking.state()
    return [state.problem] if state.problem else []


def _cache_bytes(value: str) -> list[str]:
    good = not value or unpacking.limit_of(value) is not None
    return [] if good else [f"expected a number of bytes; {unpacking.DEFAULT_LIMIT} are used"]


def _trusted_keys(_: str) -> list[str]:
    trust.required()
    return []


def _passphrase(value: str) -> list[str]:
    return [] if value else ["it is set and empty: set a passphrase, or unset it"]


def _policy(value: str) -> list[str]:
    if value:
        with policy.use(value):
            pass
    return []


def _serve(value: str) -> list[str]:
    problems = []
    for name in filter(None, value.split(os.pathsep)):
        try:
            found = diagnose(find_bundles(name), this_machine(), here=True)
        except CutlassAotError as error:
            problems.append(str(error))
            continue
        if not found["accepted"]:
            parts = [part for answer in found["bundles"] for part in (answer, *answer["gpus"])]
            first = next(reason["problem"] for part in parts for reason in part["reasons"])
            problems.append(f"{name} cannot be used here: {first}; cutlass-aot doctor {name} says more")
    return problems


def _program(value: str) -> list[str]:
    if Path(value).is_file():
        return []
    return [f"cutlass-aot sets it for programs that it runs, and there is no plan {value!r}: unset it"]


CHECKS: Mapping[str, Callable[[str], list[str]]] = {
    "CUTLASS_AOT_BUNDLE_PATH": _search_path,
    "CUTLASS_AOT_CACHE": _cache,
    "CUTLASS_AOT_CACHE_BYTES": _cache_bytes,
    "CUTLASS_AOT_KEY_PASSPHRASE": _passphrase,
    "CUTLASS_AOT_POLICY": _policy,
    "CUTLASS_AOT_PROGRAM": _program,
    "CUTLASS_AOT_SERVE": _serve,
    "CUTLASS_AOT_TRUSTED_KEYS": _trusted_keys,
}
"""What is wrong with the value of each variable that this package reads; errors are problems, too."""
