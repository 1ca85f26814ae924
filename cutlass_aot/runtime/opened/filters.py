"""Select kernels of a bundle: filters for a listing, and one kernel by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from cutlass_aot.errors import BundleError, ParameterError
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.bundles.catalog import GroupEntry
from cutlass_aot.schema.kernels.design import DesignValue, full_name, matches
from cutlass_aot.schema.words import by_numbers, did_you_mean, few

Filters = Mapping[str, "str | Sequence[str]"]

_OF_GROUP: Mapping[str, Callable[[GroupEntry], str]] = {
    "accumulation": lambda group: group.accumulation,
    "accumulator": lambda group: group.accumulator,
    "dtypes": lambda group: ".".join(operand.dtype for operand in group.operands),
    "epilogue": lambda group: group.epilogue,
    "group": lambda group: group.name,
    "layouts": lambda group: group.layouts,
    "operation": lambda group: group.operation,
    "target": lambda group: group.target,
}
_OF_KERNEL: Mapping[str, Callable[[KernelHandle], str]] = {
    "generator": lambda handle: handle.kernel.generator,
    "name": lambda handle: handle.name,
}
_FIRST = ("family", "tile_shape", "cluster_shape", "fallback_cluster_shape")
"""Design values by which a listing is sorted first."""

GENERAL_FILTERS = tuple(sorted({*_OF_GROUP, *_OF_KERNEL}))
"""Filters that apply to every kernel; all others are names of design values or parameters."""


def group_matches(group: GroupEntry, filters: Filters) -> bool:
    """Whether a group passes the filters on properties of groups; only then its index is read."""
    return all(
        _any(patterns, _OF_GROUP[name](group)) for name, patterns in filters.items() if name in _OF_GROUP
    )


def parameters_match(group: GroupEntry, filters: Filters) -> bool:
    """Whether a group of a declared kernel has parameters that pass the filters, by their names."""
    found = dict(group.parameters)
    return all(name in found and _any_value(patterns, found[name]) for name, patterns in filters.items())


def value_of(group: GroupEntry, name: str) -> str:
    """The value of a group that a filter on properties of groups is matched against."""
    return _OF_GROUP[name](group)


def matching(handles: Sequence[KernelHandle], filters: Filters) -> list[KernelHandle]:
    """Kernels, of groups that match, that pass the other filters too; in the order of a listing."""
    of_kernels = {name: patterns for name, patterns in filters.items() if name not in _OF_GROUP}
    if handles:
        _check_names(handles, of_kernels)
    return sorted((handle for handle in handles if _kernel_matches(handle, of_kernels)), key=_position)


def values(handles: Sequence[KernelHandle], name: str) -> list[str]:
    """The values that a filter can select among these kernels, each once; numbers in order of size."""
    if name in _OF_GROUP:
        return sorted({_OF_GROUP[name](handle.group) for handle in handles}, key=by_numbers)
    if name in _OF_KERNEL:
        return sorted({_OF_KERNEL[name](handle) for handle in handles}, key=by_numbers)
    _check_names(handles, (name,))
    # By type too: True == 1, but they are different values.
    described = [_described(handle) for handle in handles]
    each = [names[full] for names in described if (full := full_name(name, names)) in names]
    found = {(type(value), value) for value in each}
    return [text_of(value) for _, value in sorted(found, key=lambda item: _comparable(item[1]))]


def _check_names(handles: Sequence[KernelHandle], names: Iterable[str]) -> None:
    known = {name for handle in handles for name in _described(handle)}
    for name in sorted(names):
        if full_name(name, known) not in known and name not in _OF_KERNEL:
            raise ParameterError(
                f"unknown filter {name!r}: expected one of {', '.join(GENERAL_FILTERS)}, or of the design "
                f"and the parameters: {', '.join(sorted(known))}"
                + did_you_mean(name, (*GENERAL_FILTERS, *known))
            )


def _described(handle: KernelHandle) -> Mapping[str, DesignValue]:
    parameters = handle.group.parameters
    return {**handle.design, **dict(parameters)} if parameters else handle.design


def _position(handle: KernelHandle) -> tuple[Any, ...]:
    design = _described(handle)
    first = [_comparable(design[name]) if name in design else () for name in _FIRST]
    rest = [(name, _comparable(design[name])) for name in sorted(design) if name not in _FIRST]
    return handle.group.name, first, rest, handle.name


def _comparable(value: DesignValue) -> tuple[Any, ...]:
    """A design value as a sort key: numbers and shapes by size, and apart from text."""
    if isinstance(value, str):
        return (1, value)
    return (0, *value) if isinstance(value, tuple) else (0, value)


def text_of(value: DesignValue) -> str:
    """A value of a design or a parameter, as a filter names it."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kernel_matches(handle: KernelHandle, filters: Filters) -> bool:
    design = _described(handle)
    for name, patterns in filters.items():
        if name in _OF_KERNEL:
            if not _any(patterns, _OF_KERNEL[name](handle)):
                return False
        else:
            full = full_name(name, design)
            if full not in design or not _any_value(patterns, design[full]):
                return False
    return True


def _any(patterns: str | Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in _several(patterns))


def _any_value(patterns: str | Sequence[str], value: DesignValue) -> bool:
    return any(matches(pattern, value) for pattern in _several(patterns))


def _several(patterns: str | Sequence[str]) -> Sequence[str]:
    return (patterns,) if isinstance(patterns, str) else patterns


def _is_meant(handle: KernelHandle, name: str) -> bool:
    # `ls` prints the name of a group, and below it what follows that in the names of its kernels.
    own = handle.name.removeprefix(f"{handle.group.name}-")
    if handle.name.startswith(name) or own.startswith(name):
        return True
    if handle.digest.startswith(name.lower()):
        return True
    return handle.group.requests is not None and str(handle.design["request"]).startswith(name.lower())


def by_name(bundle: str, handles: Sequence[KernelHandle], name: str) -> KernelHandle:
    """The kernel whose name, with or without its group's, or whose or whose request's digest begins so."""
    for handle in handles:
        if name in (handle.name, handle.digest):
            return handle
    # Two groups may both have the kernel of one request.
    found = list({handle.digest: handle for handle in handles if name and _is_meant(handle, name)}.values())
    if len(found) == 1:
        return found[0]
    if not found:
        # Compared with as much of each name as was given.
        meant = did_you_mean(name, {handle.name[: len(name)] for handle in handles})
        raise BundleError(
            f"bundle {bundle} has no kernel whose name or digest begins with {name!r}: cutlass-aot ls shows "
            f"what it has{meant}"
        )
    shown = few((handle.name for handle in found), 5)
    raise BundleError(
        f"{name!r} is the beginning of {len(found)} kernels of bundle {bundle} ({shown}): "
        "give more of the name or of the digest"
    )
