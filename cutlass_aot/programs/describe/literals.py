"""Values that are literals in the source of their module, which therefore decides them."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path
from typing import Any

_NO_LITERAL = object()


def is_as_written(label: str, value: Any) -> bool:
    """Whether a value equals the literal in the source for ``module:name`` or ``module:Class.name``."""
    module, _, name = label.partition(":")
    literal = _literal(module, name)
    return literal is not _NO_LITERAL and type(literal) is type(value) and repr(literal) == repr(value)


@functools.lru_cache(maxsize=8192)
def _literal(module: str, name: str) -> Any:
    """The literal that a module's source assigns to a name, if it does so exactly once."""
    if module == "__main__":
        return _NO_LITERAL  # A request has only the source of a script's functions.
    *classes, attribute = name.split(".")
    body = _text(module)
    if re.search(rf"^\s+global\b.*\b{re.escape(attribute)}\b", body, re.MULTILINE):
        return _NO_LITERAL
    indent = ""
    for owner in classes:
        begun = re.search(
            rf"^{indent}class {re.escape(owner)}\b.*:[^\n]*\n((?:{indent}[ \t]+.*\n|[ \t]*\n|[ \t]*#.*\n)*)",
            body,
            re.MULTILINE,
        )
        if begun is None:
            return _NO_LITERAL
        body = begun[1]
        first = re.search(r"^([ \t]+)\S", body, re.MULTILINE)
        indent = first[1] if first else ""
    found = re.findall(
        rf"^{indent}{re.escape(attribute)}[ \t]*(?::[^=\n]*)?=(?!=)[ \t]*(.+)$", body, re.MULTILINE
    )
    if len(found) != 1:
        return _NO_LITERAL
    try:
        return ast.literal_eval(found[0].strip())
    except (ValueError, SyntaxError, MemoryError, TypeError):
        return _NO_LITERAL


@functools.lru_cache(maxsize=1024)
def _text(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return Path(file).read_text(encoding="utf-8") if file else ""
    except (OSError, UnicodeDecodeError):
        return ""
