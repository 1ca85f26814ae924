"""``cutlass-aot doctor``: what is installed, and what this machine can build and run."""

from __future__ import annotations

from typing import Any

import click

from cutlass_aot.cli.render import json_option, print_json
from cutlass_aot.words import size


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Say what is installed and what is missing, and what this machine can build and run.

    Works with no GPU, no compiler and no DSL, and imports none of them.
    """
    from cutlass_aot.runtime.doctor import collect

    facts = collect()
    if as_json:
        print_json(facts)
        return 0
    for title, lines in _sections(facts):
        click.echo(title)
        for line in lines:
            click.echo(f"  {line}")
    return 0


def _sections(facts: dict[str, Any]) -> list[tuple[str, list[str]]]:
    python = facts["python"]
    glibc = f"glibc {facts['glibc']}" if facts["glibc"] else "no glibc"
    machine = f"{facts['host']}, {glibc}, Python {python['version']} ({python['executable']})"
    sections = [
        ("machine", [machine, f"cutlass-aot {facts['cutlass_aot']}"]),
        ("runtime packages", _packages(facts["packages"]["runtime"])),
        ("build packages", _packages(facts["packages"]["build"])),
        ("driver", [_driver(facts["driver"])]),
        ("GPUs", ["none"] if facts["gpus"] == facts["driver"] else _gpus(facts["gpus"])),
        ("installed bundles", _bundles(facts["bundles"])),
    ]
    build, run = facts["build"], facts["run"]
    if build["possible"]:
        can_build = [f"yes: {' '.join(build['targets'])}, for hosts {' '.join(build['hosts'])}"]
    else:
        can_build = [f"no: {', '.join(build['missing'])} missing", f"install with: {build['advice']}"]
    if run["possible"]:
        can_run = [f"yes: kernels for {' '.join(run['targets'])}"]
    else:
        # What a section above has said in full is not said again.
        said = {facts[name]["problem"]: name for name in ("gpus", "driver") if "problem" in facts[name]}
        titles = {"driver": "see driver above", "gpus": "see GPUs above"}
        problems = [titles[said[text]] if text in said else text for text in run["problems"]]
        can_run = [f"no: {problem}" for problem in problems] or ["no: no known target runs here"]
    return [*sections, ("can build", can_build), ("can run", can_run)]


def _packages(packages: dict[str, str | None]) -> list[str]:
    width = max(len(name) for name in packages)
    return [f"{name:<{width}}  {version or 'missing'}" for name, version in sorted(packages.items())]


def _driver(driver: dict[str, Any]) -> str:
    if "problem" in driver:
        return str(driver["problem"])
    release = f" (release {driver['release']})" if driver.get("release") else ""
    return f"supports CUDA {driver['cuda']}{release}"


def _gpus(gpus: dict[str, Any]) -> list[str]:
    if "problem" in gpus:
        return [str(gpus["problem"])]
    return [
        f"{gpu['ordinal']}: {gpu['name']}, compute capability {gpu['compute_capability']}, "
        f"{gpu['sm_count']} multiprocessors, {size(gpu['memory_bytes'])}"
        for gpu in gpus["devices"]
    ]


def _bundles(bundles: list[dict[str, Any]]) -> list[str]:
    if not bundles:
        return ["none"]
    return [f"{item['name']} {item['version'] or '?'} ({item['path'] or 'not found'})" for item in bundles]
