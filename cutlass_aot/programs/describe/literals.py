"""Values that the source of a module gives by a literal, and which the source therefore decides."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path
from typing import Any

_NO_LITERAL = object()


def is_as_written(label: str, value: Any) -> bool:
    """Whether a value is what the source of its module says by a literal, so that the source decides it.

    Args:
        label: module and name of what holds the value, ``module:name`` or ``module:Class.name``.
        value: what it holds now.
    """
    module, _, name = label.partition(":")
    literal = _literal(module, name)
    return literal is not _NO_LITERAL and type(literal) is type(value) and repr(literal) == repr(value)


@functools.lru_cache(maxsize=8192)
def _literal(module: str, name: str) -> Any:
    """What the source of a module assigns to a name of it or of a class, once and by a literal."""
    if module == "__main__":
        return _NO_LITERAL  # Of a script, the request has its functions' source alone.
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
