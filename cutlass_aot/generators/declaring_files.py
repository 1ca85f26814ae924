"""Which files of a package declare kernels or register generators: found in their text, importing none."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

_MAX_FILES = 1000
_MAX_NAME = 100
_MAX_BYTES = 1 << 20
_DECLARING = {"cutlass_aot": "kernel", "cutlass_aot.generators.registry": "register"}
"""Functions that declare, by the module that has them."""


def declaring_files(path: Path) -> list[Path]:
    """Files that declare a kernel, of the package that a file is in, or of the folder if it is in none."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    top = root / path.relative_to(root).parts[0]
    files = sorted(top.rglob("*.py")) if top.is_dir() else sorted(path.parent.glob("*.py"))
    return [file for file in files[:_MAX_FILES] if file != path and _declares(file)]


def files_of_name(name: str, folder: Path) -> list[Path]:
    """Files in a folder that declare a kernel and may be meant by a name that no installed package has.

    The file or the folder of this name, the folder that ``cutlass-aot new`` writes for it, or else a file in
    the folder itself that has the name in it.
    """
    if not name or len(name) > _MAX_NAME:
        return []
    file = folder / f"{name}.py"
    if file.is_file():
        return [file] if _declares(file) else []
    found: list[Path] = []
    for place in (folder / name, folder / f"{name}_kernels"):
        # A package within its project, which may have a folder `src`.
        inside = itertools.chain.from_iterable(place.glob(f"{'*/' * depth}*.py") for depth in range(3))
        found += sorted(itertools.islice(inside, _MAX_FILES))
    word = re.compile(rb"\b" + re.escape(name.encode("utf-8", "replace")) + rb"\b")
    return [item for item in found if _declares(item)] or [
        item
        for item in itertools.islice(sorted(folder.glob("*.py")), _MAX_FILES)
        if _declares(item) and word.search(item.read_bytes())
    ]


def _declares(file: Path) -> bool:
    """Whether a file calls one of the functions that declare, by any name that it gives them."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            return False
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name in _DECLARING:
                    names.add(f"{item.asname or item.name}.{_DECLARING[item.name]}")
        elif isinstance(node, ast.ImportFrom):
            for item in node.names:
                if _DECLARING.get(node.module or "") == item.name:
                    names.add(item.asname or item.name)
                inner = f"{node.module}.{item.name}"
                if inner in _DECLARING:
                    names.add(f"{item.asname or item.name}.{_DECLARING[inner]}")
    # A class is registered without a call: by the name alone.
    return any(
        isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in names for node in ast.walk(tree)
    )
