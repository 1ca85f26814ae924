"""Measure the layout of checkouts of this project, side by side: the tables of docs/internals/layout.md.

    python -m tools.check.layout BEFORE BEFORE_BUNDLE [AFTER AFTER_BUNDLE] [--tests BEFORE.time [AFTER.time]]

A checkout is a directory with ``cutlass_aot`` in it; its bundle is one that it built of
``manifests/smoke.toml``. What is counted:

- import depth of the runtime: steps of the longest chain of imports within ``cutlass_aot/runtime``;
- import cycles: sets of modules of the package that import each other, in functions and for types, too;
- fullest folder: the one with the most files and folders in it, without ``__init__.py``;
- first use: what a process imports of this package to open the bundle and choose a kernel for a GEMM;
- tests: minutes of a whole run and of all its processes, from what ``/usr/bin/time -p -o FILE make test``
  wrote.

A second table has the lines of each folder.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.bench.command import markdown

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


def main(words: Sequence[str] | None = None) -> None:
    """Print a row for each measure and a column for each checkout, then the lines of each folder."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("places", nargs="+", type=Path, metavar="CHECKOUT BUNDLE", help="one or two")
    parser.add_argument("--tests", nargs="+", type=Path, default=[], metavar="FILE", help="one a checkout")
    arguments = parser.parse_args(words)
    if len(arguments.places) not in (2, 4):
        parser.error(f"expected CHECKOUT BUNDLE once or twice, got {len(arguments.places)} paths")
    checkouts = [path.resolve() for path in arguments.places[::2]]
    places = list(zip(checkouts, (path.resolve() for path in arguments.places[1::2]), strict=True))
    if arguments.tests and len(arguments.tests) != len(places):
        parser.error(f"expected a file of --tests for each of {len(places)} checkouts")
    columns = [measures(checkout, bundle) for checkout, bundle in places]
    # In turns, so that a busy machine counts for both.
    turns = [[first_use(*place)[0] for place in places] for _ in range(REPEAT)]
    for column, times in zip(columns, zip(*turns, strict=True), strict=True):
        column["first use: milliseconds, the median"] = f"{statistics.median(times):.1f}"
    for column, path in zip(columns, arguments.tests, strict=False):
        column["tests: minutes, CPU minutes"] = test_minutes(path.read_text(encoding="utf-8"))
    print_table("", columns)
    print()
    print_table("lines", [folder_lines(checkout) for checkout in checkouts])


def print_table(title: str, columns: Sequence[Mapping[str, str]]) -> None:
    """Print a row for each name that a column has."""
    names = dict.fromkeys(name for column in columns for name in column)
    lines = [(name, *(column.get(name, "") for column in columns)) for name in names]
    print(markdown((title, "before", "after")[: 1 + len(columns)], lines, right=len(columns)))


def test_minutes(text: str) -> str:
    """Minutes of a run and of all its processes, from what ``time -p`` wrote."""
    seconds = {name: float(value) for name, value in map(str.split, text.splitlines()[-3:])}
    return f"{seconds['real'] / 60:.1f}, {(seconds['user'] + seconds['sys']) / 60:.1f}"


def folder_lines(checkout: Path) -> dict[str, str]:
    """Lines of Python and C of the package's folders, of its own modules, of tests and of tools."""
    lines: Counter[str] = Counter()
    for top in ("cutlass_aot", "tests", "tools"):
        for path in sorted((checkout / top).rglob("*")):
            if path.suffix in (".py", ".c"):
                folder = path.relative_to(checkout).parts[:2] if path.parent != checkout / top else (top,)
                lines["/".join(folder)] += len(path.read_text(encoding="utf-8").splitlines())
    return {folder: f"{count:,}" for folder, count in sorted(lines.items())}


def measures(checkout: Path, bundle: Path) -> dict[str, str]:
    """Every measure of a checkout, by its name."""
    package = checkout / "cutlass_aot"
    sources = {_module(path, checkout): path for path in sorted(package.rglob("*.py"))}
    trees = {name: ast.parse(path.read_bytes()) for name, path in sources.items()}
    lines = {name: len(path.read_text().splitlines()) for name, path in sources.items()}
    graph = {name: imports(name, tree, trees) for name, tree in trees.items()}
    runtime = {name for name in trees if name.startswith("cutlass_aot.runtime")}
    longest = max(lines, key=lambda name: lines[name])
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
        "import depth of the runtime": f"{import_depth({name: graph[name] & runtime for name in runtime})}",
        "import cycles": f"{len(cycles(graph))}",
        "fullest folder": "{}: {}".format(*fullest(package)),
        "fullest folder of the tools": "{}: {}".format(*fullest(checkout / "tools")),
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
    result: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                result.add(inner if inner in modules else node.module)
    return {module for module in result if module in modules and module != name}


def cycles(graph: Graph) -> list[set[str]]:
    """Sets of more than one module of which each reaches the others."""
    reached = {name: _reach(graph, name) for name in graph}
    result: list[set[str]] = []
    for name in sorted(graph):
        together = {other for other in reached[name] if name in reached[other]}
        if len(together) > 1 and together not in result:
            result.append(together)
    return result


def _reach(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def import_depth(graph: Graph) -> int:
    """Steps of the longest chain of imports; the modules of a cycle count as one."""
    cycle_of = {name: min(cycle) for cycle in cycles(graph) for name in cycle}
    joined: dict[str, set[str]] = {}
    for name, targets in graph.items():
        own = cycle_of.get(name, name)
        others = {cycle_of.get(target, target) for target in targets} - {own}
        joined.setdefault(own, set()).update(others)

    @functools.cache
    def height(name: str) -> int:
        return max((1 + height(other) for other in joined[name]), default=0)

    return max(map(height, joined), default=0)


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
    main()
