"""Say why a build plans again: the first of its inputs that differs from the last build's."""

from __future__ import annotations

from typing import NamedTuple

from cutlass_aot.builder.inputs.inputs import Inputs, Parts
from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import digest
from cutlass_aot.store.roots import Reference
from cutlass_aot.store.store import Store

_DIGEST_LENGTH = 64


class _Kept(NamedTuple):
    """The inputs of the last build, in the store."""

    parts: Parts


def explain(inputs: Inputs, store: Store | None) -> str:
    """Why a build of these inputs plans again, in words; ``""`` if it does not."""
    if store is None:
        return "there is no store yet"
    before = _kept_parts(store, inputs)
    if before is None:
        return f"the store knows no earlier build of a bundle named {inputs.manifest.name!r}"
    difference = first_difference(before, inputs.parts)
    if difference or store.get_record("plan", inputs.plan_digest) is not None:
        return difference
    return "the store has lost the plan of the last build"


def first_difference(before: Parts, now: Parts) -> str:
    """The first difference in words, section by section in the order of ``now``; ``""`` if there is none."""
    for section, values in now.items():
        old = before.get(section, {})
        # What comes first decides: a package's version is named before its files.
        for name in (*values, *(name for name in old if name not in values)):
            if old.get(name) != values.get(name):
                return f"{section}: {_change(name, old.get(name), values.get(name))}"
    return ""


def _change(name: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{name} is new"
    if new is None:
        return f"{name} is gone"
    if len(old) == len(new) == _DIGEST_LENGTH:
        return f"{name} has changed"
    return f"{name} was {old}, is {new}"


def keep_parts(store: Store, inputs: Inputs) -> None:
    """Keep a build's inputs, so that the next one can say what has changed."""
    if _kept_parts(store, inputs) != inputs.parts:
        store.put_record(*parts_reference(inputs), to_plain(_Kept(inputs.parts)))


def parts_reference(inputs: Inputs) -> Reference:
    """Kind and key of the record that :func:`keep_parts` keeps."""
    return "inputs", digest(inputs.manifest.name.encode())


def _kept_parts(store: Store, inputs: Inputs) -> Parts | None:
    try:
        return from_plain(_Kept, store.get_record(*parts_reference(inputs)), "the inputs of a build").parts
    except CorruptFile:
        return None
