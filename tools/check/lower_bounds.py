"""Install requirements of pyproject.toml at their lower bounds, and run the tests that use them.

``python -m tools.check.lower_bounds`` makes an environment of this Python for each set of requirements, each
at the release that its bound names, with what those need, and prints a table for
``docs/results/lower-bounds.md``. It takes minutes and a package index: run it when a bound changes.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
_RUNNER = ("pytest", "pytest-xdist", "hypothesis", "jsonschema", "filelock", "pyelftools", "packaging")
"""What runs the tests, of any release: it is of the development of the package alone."""


class Case(NamedTuple):
    """What is installed together at its bounds, beside the runtime side, and the tests that use it."""

    extras: tuple[str, ...]
    tests: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    """Names of more requirements, of any table."""


CASES = (
    Case(
        (),
        (
            "tests/unit/bundle/test_verify.py",
            "tests/unit/bundle/test_wheel.py",
            "tests/unit/runtime/test_search_path.py",
        ),
    ),
    Case(("sign",), ("tests/unit/bundle/test_sign.py", "tests/unit/runtime/test_trust.py")),
    Case(("tune",), ("tests/unit/tuning/test_fit.py",)),
    Case(("remote",), ("tests/unit/store/test_upstream.py",)),
    Case(("oci", "sign"), ("tests/unit/bundle/oci",)),
    Case(("dask",), ("tests/unit/builder/test_dask_executor.py",)),
    Case(("jax",), ("tests/unit/runtime/test_jax.py",)),
    Case(
        (),
        ("tests/unit/cli/test_progress.py", "tests/unit/cli/test_report_page.py"),
        requirements=("jinja2", "rich"),
    ),
)


def tables() -> dict[str, list[Requirement]]:
    """The requirements of pyproject.toml: those of the runtime side under ``""``, and each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(text) for text in own] for name, own in found.items()}


def at_bound(requirement: Requirement) -> str | None:
    """The requirement at its lower bound, such as ``click==8.1``; None if it is not for this Python."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    bounds = [item.version for item in requirement.specifier if item.operator in (">=", "==")]
    (bound,) = bounds
    return f"{requirement.name}{extras}=={bound}"


def requirements(case: Case) -> list[Requirement]:
    """What a case installs, without what those need."""
    own = tables()
    found = [item for name in ("", *case.extras) for item in own[name]]
    for name in case.requirements:
        found.append(next(item for table in own.values() for item in table if item.name == name))
    return found


def run(case: Case, folder: Path) -> tuple[list[str], str]:
    """Install and test; returns what was installed, and the last line of the tests."""
    installed = [text for item in requirements(case) if (text := at_bound(item)) is not None]
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = os.fspath(folder / "bin/python")
    install = [python, "-m", "pip", "install", "--quiet", *installed, *_RUNNER]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return installed, (errors or ["not installed"])[0]
    test = [
        python,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not compile and not gpu",
        "-p",
        "no:cacheprovider",
        *case.tests,
    ]
    done = subprocess.run(test, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(line, file=sys.stderr)
    result = (
        re.sub(r" in [0-9.]+s.*", "", lines[-1]).strip("= ") if lines else f"exit status {done.returncode}"
    )
    return installed, result


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the cases with this extra or requirement alone")
    given = parser.parse_args(arguments)
    print(f"Python {platform.python_version()}, {platform.machine()}\n")
    print("| installed | tests | result |\n|---|---|---|", flush=True)
    failed = False
    for case in CASES:
        if given.only is not None and given.only not in (*case.extras, *case.requirements):
            continue
        with tempfile.TemporaryDirectory() as folder:
            installed, result = run(case, Path(folder) / "env")
        failed = failed or "passed" not in result or "failed" in result or "error" in result
        print(f"| {', '.join(installed)} | {', '.join(case.tests)} | {result} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
