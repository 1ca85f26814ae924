"""Pick kernels of a bundle by what they are: filters for a listing, and one kernel by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.handle import KernelHandle
from cutlass_aot.schema.catalog import GroupEntry
from cutlass_aot.schema.design import full_name, matches
from cutlass_aot.schema.kernel import DesignValue

Filters = Mapping[str, "str | Sequence[str]"]

_OF_GROUP: Mapping[str, Callable[[GroupEntry], str]] = {
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
GENERAL_FILTERS = tuple(sorted({*_OF_GROUP, *_OF_KERNEL}))
"""Filters that every kernel has; all others are names in a design."""


def group_matches(group: GroupEntry, filters: Filters) -> bool:
    """Whether a group passes the filters that speak of groups, so that its index is worth reading."""
    return all(
        _any(patterns, _OF_GROUP[name](group)) for name, patterns in filters.items() if name in _OF_GROUP
    )


def matching(handles: Sequence[KernelHandle], filters: Filters) -> list[KernelHandle]:
    """Kernels, of groups that match, that pass the other filters too.

    Raises:
        BundleError: for a filter that none of them has.
    """
    wanted = {full_name(name): patterns for name, patterns in filters.items() if name not in _OF_GROUP}
    known = {name for handle in handles for name in handle.design}
    for name in sorted(wanted):
        if handles and name not in known and name not in _OF_KERNEL:
            raise BundleError(
                f"unknown filter {name!r}: expected one of {', '.join(GENERAL_FILTERS)}, or of the design: "
                f"{', '.join(sorted(known))}"
            )
    return [handle for handle in handles if _kernel_matches(handle, wanted)]


def _kernel_matches(handle: KernelHandle, filters: Filters) -> bool:
    design = handle.design
    for name, patterns in filters.items():
        if name in _OF_KERNEL:
            if not _any(patterns, _OF_KERNEL[name](handle)):
                return False
        elif name not in design or not _any_value(patterns, design[name]):
            return False
    return True


def _any(patterns: str | Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in _several(patterns))


def _any_value(patterns: str | Sequence[str], value: DesignValue) -> bool:
    return any(matches(pattern, value) for pattern in _several(patterns))


def _several(patterns: str | Sequence[str]) -> Sequence[str]:
    return (patterns,) if isinstance(patterns, str) else patterns


def by_name(bundle: str, handles: Sequence[KernelHandle], name: str) -> KernelHandle:
    """One kernel by its name, or by the beginning of its name or digest.

    Raises:
        BundleError: if there is none, or more than one.
    """
    for handle in handles:
        if name in (handle.name, handle.digest):
            return handle
    found = [
        handle
        for handle in handles
        if name and (handle.name.startswith(name) or handle.digest.startswith(name.lower()))
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise BundleError(
            f"bundle {bundle} has no kernel whose name or digest begins with {name!r}: "
            "cutlass-aot ls shows what it has"
        )
    shown = ", ".join(handle.name for handle in found[:5])
    raise BundleError(
        f"{name!r} is the beginning of {len(found)} kernels of bundle {bundle} ({shown}"
        f"{', ...' if len(found) > 5 else ''}): give more of the name or of the digest"
    )
