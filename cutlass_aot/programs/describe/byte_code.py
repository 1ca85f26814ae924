"""What byte code says: its names and texts, the modules that it imports, whether it returns a value."""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

_BY_TEXT = {"globals", "vars", "getattr", "attrgetter"}
"""Functions by which code reads variables and attributes whose names it has as texts."""


@functools.lru_cache(maxsize=65536)
def names_in(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Global names and attributes, and texts, of code and the functions inside it."""
    names, texts = set(code.co_names), set[str]()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_names, inner_texts = names_in(constant)
            names.update(inner_names)
            texts.update(inner_texts)
        elif isinstance(constant, str):
            texts.add(constant)
        elif isinstance(constant, (tuple, frozenset)):
            texts.update(item for item in constant if isinstance(item, str))
    if _BY_TEXT & names:
        names.update(text for text in texts if text.isidentifier())
    return tuple(sorted(names)), tuple(sorted(texts))


@functools.lru_cache(maxsize=65536)
def imported_by(code: types.CodeType) -> frozenset[tuple[int, str]]:
    """Level and name of the modules that code and the functions inside it import."""
    found: set[tuple[int, str]] = set()
    if dis.opmap["IMPORT_NAME"] in code.co_code[::2]:
        before: list[Any] = [None, None]
        for item in dis.get_instructions(code):
            # The two instructions before it load the level and the list of names.
            if item.opname == "IMPORT_NAME" and isinstance(before[0], int):
                level, listed = before
                found.add((level, item.argval))
                # Each listed name may be a submodule.
                home = f"{item.argval}." if item.argval else ""
                found.update((level, f"{home}{name}") for name in listed or () if name != "*")
            before = [before[1], item.argval]
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(found.union(*map(imported_by, inner)))


def returns_a_value(code: types.CodeType) -> bool:
    """Whether code has a ``return`` of anything but None as a constant."""
    before = None
    for item in dis.get_instructions(code):
        # What jumps to it returns something else than the instruction before it.
        constant = item.opname == "RETURN_CONST" or (
            before == ("LOAD_CONST", None) and not item.is_jump_target
        )
        if item.opname in ("RETURN_VALUE", "RETURN_CONST") and not (constant and item.argval is None):
            return True
        before = (item.opname, item.argval)
    return False


@functools.lru_cache(maxsize=4096)
def rebound_by(code: types.CodeType) -> frozenset[str]:
    """Variables of an outer function that code assigns to (``nonlocal``)."""
    stored = {item.argval for item in dis.get_instructions(code) if item.opname == "STORE_DEREF"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            stored |= rebound_by(constant)
    return frozenset(stored)
