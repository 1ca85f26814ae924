"""Measure the layout of checkouts of this project, side by side: the table of docs/internals/layout.md.

    python -m tools.check.layout BEFORE BEFORE_BUNDLE AFTER AFTER_BUNDLE

A checkout is a directory with ``cutlass_aot`` in it; its bundle is one that it built of
``manifests/smoke.toml``. What is counted:

- floors of the runtime: modules on the longest chain of imports within ``cutlass_aot/runtime``, less one;
- circles: sets of modules of the package that import each other, in functions and for types, too;
- rooms: files and folders in the fullest folder of the package, without ``__init__.py``;
- first use: what a process imports of this package to open the bundle and choose a kernel for a GEMM.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Graph = Mapping[str, set[str]]

FIRST_USE = """
import sys, time
began = time.perf_counter()
import cutlass_aot
bundle = cutlass_aot.open({bundle!r}, check=False)
describe = cutlass_aot.describe
operands = describe((64, 64), "f16"), describe((64, 64), "f16", strides=(1, 64)), describe((64, 64), "f16")
try:
    bundle.choose(*operands, target=bundle.targets[0])
except cutlass_aot.KernelNotFound:
    pass
ms = (time.perf_counter() - began) * 1000
modules = sys.modules.items()
files = [module.__file__ for name, module in modules if name.split(".")[0] == "cutlass_aot"]
import json
print(json.dumps([ms, files]))
"""
REPEAT = 25


def main(words: Sequence[str]) -> None:
    """Print a row for each measure and a column for each checkout."""
    places = [
        (Path(checkout).resolve(), Path(bundle).resolve())
        for checkout, bundle in zip(words[::2], words[1::2], strict=True)
    ]
    columns = [measures(checkout, bundle) for checkout, bundle in places]
    # In turns, so that a busy machine counts for both.
    turns = [[first_use(*place)[0] for place in places] for _ in range(REPEAT)]
    for column, times in zip(columns, zip(*turns, strict=True), strict=True):
        column["first use: milliseconds, the median"] = f"{statistics.median(times):.1f}"
    print("| |" + "".join(f" {name} |" for name in ("before", "after")[: len(columns)]))
    print("|---|" + "--:|" * len(columns))
    for name in columns[0]:
        print(f"| {name} |" + "".join(f" {column[name]} |" for column in columns))


def measures(checkout: Path, bundle: Path) -> dict[str, str]:
    """Every measure of a checkout, by its name."""
    package = checkout / "cutlass_aot"
    sources = {_module(path, checkout): path for path in sorted(package.rglob("*.py"))}
    trees = {name: ast.parse(path.read_bytes()) for name, path in sources.items()}
    lines = {name: len(path.read_text().splitlines()) for name, path in sources.items()}
    graph = {name: imports(name, tree, trees) for name, tree in trees.items()}
    runtime = {name for name in trees if name.startswith("cutlass_aot.runtime")}
    longest = max(lines, key=lambda name: lines[name])
    folder, rooms = fullest(package)
    _, files = first_use(checkout, bundle)
    statements = sum(
        isinstance(node, (ast.Import, ast.ImportFrom)) for tree in trees.values() for node in ast.walk(tree)
    )
    documents = [*(checkout / "docs").rglob("*.md")]
    return {
        "Python files of the package": f"{len(sources)}",
        "lines of the package": f"{sum(lines.values()):,}",
        "import statements": f"{statements:,}",
        "public names (`cutlass_aot.__all__`)": f"{public_names(trees['cutlass_aot'])}",
        "floors of the runtime": f"{floors({name: graph[name] & runtime for name in runtime})}",
        "circles of imports": f"{len(circles(graph))}",
        "fullest folder": f"{folder}: {rooms}",
        "longest module": f"{longest.removeprefix('cutlass_aot.')}: {lines[longest]}",
        "first use: modules of this package": f"{len(files)}",
        "first use: lines of these": f"{sum(len(Path(file).read_text().splitlines()) for file in files):,}",
        "lines of the README": f"{len((checkout / 'README.md').read_text().splitlines())}",
        "documents (pages, lines)": f"{len(documents)}, "
        f"{sum(len(path.read_text().splitlines()) for path in documents):,}",
        "tests (files, lines)": _tests(checkout),
    }


def _tests(checkout: Path) -> str:
    paths = [*(checkout / "tests").rglob("*.py")]
    return f"{len(paths)}, {sum(len(path.read_text().splitlines()) for path in paths):,}"


def _module(path: Path, checkout: Path) -> str:
    return ".".join(path.relative_to(checkout).with_suffix("").parts).removesuffix(".__init__")


def imports(name: str, tree: ast.Module, modules: Mapping[str, object]) -> set[str]:
    """Modules of the package that a module imports: in functions, and for types, too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    return {module for module in found if module in modules and module != name}


def circles(graph: Graph) -> list[set[str]]:
    """Sets of more than one module of which each reaches the others."""
    reached = {name: _reach(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in sorted(graph):
        together = {other for other in reached[name] if name in reached[other]}
        if len(together) > 1 and together not in found:
            found.append(together)
    return found


def _reach(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def floors(graph: Graph) -> int:
    """Steps of the longest chain of imports; the modules of a circle stand on one floor."""
    circle_of = {name: min(circle) for circle in circles(graph) for name in circle}
    joined: dict[str, set[str]] = {}
    for name, targets in graph.items():
        own = circle_of.get(name, name)
        others = {circle_of.get(target, target) for target in targets} - {own}
        joined.setdefault(own, set()).update(others)

    @functools.cache
    def height(name: str) -> int:
        return max((1 + height(other) for other in joined[name]), default=0)

    return max(map(height, joined))


def fullest(package: Path) -> tuple[str, int]:
    """The folder with the most files and folders in it."""
    counts = {
        str(folder.relative_to(package.parent)): sum(
            (item.suffix == ".py" and item.name != "__init__.py")
            or (item.is_dir() and any(item.rglob("*.py")))
            for item in folder.iterdir()
        )
        for folder in (package, *(path for path in package.rglob("*") if path.is_dir()))
    }
    return max(counts.items(), key=lambda item: item[1])


def public_names(tree: ast.Module) -> int:
    """Names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return len(ast.literal_eval(node.value))
    return 0


def first_use(checkout: Path, bundle: Path) -> tuple[float, list[str]]:
    """Milliseconds of a first use in a fresh process, and this package's files that it imports."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    # Modules are compiled once, as where they are installed.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE.format(bundle=str(bundle))],
        capture_output=True, text=True, check=True, env=environment, cwd=checkout,
    )  # fmt: skip
    ms, files = json.loads(done.stdout)
    return ms, [file for file in files if file]


if __name__ == "__main__":
    main(sys.argv[1:])
