"""``cutlass-aot doctor``: what is installed, what this machine can build, and whether it can run a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cutlass_aot.cli.options import json_option
from cutlass_aot.cli.output.render import print_json, prose
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import ExitCode
from cutlass_aot.schema.words import size

_STEPS = {
    "find": "find the packages, digest their files",
    "import": "import the DSL",
    "compile": "compile a kernel",
    "link": "link, write a bundle",
    "load": "load the library",
}


@click.command("doctor")
@click.argument("bundle", required=False)
@click.option(
    "--facts",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="With BUNDLE: answer for the machine that a file describes; - for standard input.",
)
@click.option(
    "--facts-out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the facts of this machine for --facts, as JSON.",
)
@click.option("--build", "with_build", is_flag=True, help="Compile, link and load one small kernel, too.")
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="With --build: seconds that the kernel may take.",
)
@json_option
def command(
    bundle: str | None,
    facts: Path | None,
    facts_out: Path | None,
    with_build: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Say what is installed and what is missing, and what this machine can build and run.

    With BUNDLE, a directory, a wheel, or the name of an installed bundle, say whether it can be used on this
    machine, or on the one of --facts, with which target on each GPU, and if not why; the exit status is 1 if
    it cannot.

    Works with no GPU, no compiler and no DSL, and imports none of them. With --build, a worker imports the
    DSL. The exit status is 1 if something that was asked for cannot be had: a toolchain that works, for
    --build; what a CUTLASS_AOT_ variable names, such as bundles to serve, keys or a policy.
    """
    if facts is not None and bundle is None:
        raise click.UsageError("--facts needs a BUNDLE to decide on.")
    if bundle is not None and (with_build or facts_out is not None):
        raise click.UsageError("--build and --facts-out are for this machine alone: give no BUNDLE.")
    if bundle is not None:
        return _decide(bundle, facts, as_json)
    if facts_out is not None:
        _write_facts(facts_out)
        return 0
    return _report(with_build, timeout, as_json)


def _decide(name: str, facts: Path | None, as_json: bool) -> int:
    from cutlass_aot.cli.output.diagnosis import answer_lines
    from cutlass_aot.doctor.bundle import diagnose, find_bundles
    from cutlass_aot.doctor.facts import read_facts, this_machine

    here = facts is None
    found = diagnose(find_bundles(name), this_machine() if facts is None else read_facts(facts), here=here)
    if as_json:
        print_json(found)
    else:
        for line in answer_lines(found):
            say(line)
    return 0 if found["accepted"] else 1


def _write_facts(path: Path) -> None:
    from cutlass_aot.doctor.facts import facts_record, this_machine
    from cutlass_aot.errors import FactsError

    text = json.dumps(facts_record(this_machine()), indent=2, sort_keys=True)
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise FactsError(f"{path} cannot be written: {error.strerror}") from None
    say(f"{path}: facts of this machine, for cutlass-aot doctor BUNDLE --facts {path}")


def _report(with_build: bool, timeout: float, as_json: bool) -> int:
    from cutlass_aot.doctor.machine import collect

    facts = collect()
    if with_build:
        facts["toolchain_test"] = _run_toolchain_test(timeout)
    if as_json:
        print_json(facts)
    else:
        for title, lines in _sections(facts):
            say(title)
            for line in lines:
                say(*prose(f"  {line}", 6))
    broken = with_build and facts["toolchain_test"]["failed"]
    unusable = any(variable["problems"] for variable in facts["environment"])
    return ExitCode.FAILED if broken or unusable else ExitCode.GOOD


def _run_toolchain_test(timeout: float) -> dict[str, Any]:
    """Build one small kernel; its result as plain data, also if the build side cannot be imported."""
    try:
        from cutlass_aot.builder.check.toolchain_test import run_toolchain_test
    except ImportError as error:
        from cutlass_aot.runtime.machine.installation import command_for

        advice = f"install what is missing: {command_for('build')}"
        return {"kernel": None, "seconds": {}, "failed": "find", "problem": str(error), "advice": advice}
    found = asdict(run_toolchain_test(timeout=timeout))
    return {**found, "seconds": {step: round(value, 4) for step, value in found["seconds"].items()}}


def _sections(facts: dict[str, Any]) -> list[tuple[str, list[str]]]:
    python = facts["python"]
    machine = (
        f"{facts['host']}, {facts['libc'] or 'no glibc'}, Python {python['version']} ({python['executable']})"
    )
    sections = [
        ("machine", [machine, f"cutlass-aot {facts['cutlass_aot']}"]),
        ("runtime packages", _packages(facts["packages"]["runtime"], facts["differing"])),
        ("build packages", _packages(facts["packages"]["build"], facts["differing"])),
        ("driver", [_driver(facts["driver"])]),
        ("GPUs", ["none"] if facts["gpus"] == facts["driver"] else _gpus(facts["gpus"])),
        ("installed bundles", _bundles(facts["bundles"], facts["without_bundles"])),
        ("environment", list(_environment(facts["environment"]))),
        ("unpacked GPU code", [_unpacked(facts["unpacked"])]),
    ]
    build, run = facts["build"], facts["run"]
    if build["possible"]:
        can_build = [f"yes: {' '.join(build['targets'])}, for hosts {' '.join(build['hosts'])}"]
        for advice in dict.fromkeys(build["other_targets"].values()):
            others = " ".join(name for name, what in build["other_targets"].items() if what == advice)
            can_build.append(f"not {others}, with the DSL's libraries for CUDA {build['toolkit']}: {advice}")
        if facts["differing"]:
            others = ", ".join(item["package"] for item in facts["differing"])
            can_build.append(
                f"untested with these versions: {others}; install those that are asked for with:"
            )
            can_build.append(build["advice"])
    else:
        can_build = [f"no: {', '.join(build['missing'])} missing", f"install with: {build['advice']}"]
    if run["possible"]:
        can_run = [f"yes: kernels for {' '.join(run['targets'])}", *run["warnings"]]
    else:
        # What a section above has said in full is not said again.
        titles = {"gpus": "see GPUs above", "driver": "see driver above"}
        said = {facts[name].get("problem"): title for name, title in titles.items()}
        problems = [said.get(problem, problem) for problem in run["problems"]]
        can_run = [f"no: {problem}" for problem in problems] or ["no: no known target runs here"]
    sections += [("can build", can_build), ("can run", can_run)]
    if "toolchain_test" in facts:
        sections.append(("build", _toolchain_test(facts["toolchain_test"])))
    return sections


def _toolchain_test(test: dict[str, Any]) -> list[str]:
    lines = [
        f"{_STEPS[step]:<38}{seconds:>8.{1 if seconds >= 0.1 else 4}f} s"
        for step, seconds in test["seconds"].items()
    ]
    if not test["failed"]:
        return [*lines, f"good: {test['kernel']}"]
    reason, *rest = test["problem"].splitlines() or ["no reason given"]
    return [
        *lines,
        f"failed: {_STEPS[test['failed']]}: {reason}",
        *(f"  {line}" for line in rest),
        test["advice"],
    ]


def _packages(packages: dict[str, str | None], differing: list[dict[str, str]]) -> list[str]:
    width = max(len(name) for name in packages)
    expected = {item["package"]: f"  (this release asks for {item['expected']})" for item in differing}
    return [
        f"{name:<{width}}  {version or 'missing'}{expected.get(name, '')}"
        for name, version in sorted(packages.items())
    ]


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


def _environment(variables: list[dict[str, Any]]) -> Iterator[str]:
    for variable in variables:
        yield f"{variable['name']}={variable['value']}"
        yield from (f"  cannot be used: {problem}" for problem in variable["problems"])
    if not variables:
        yield "none of its variables is set"


def _unpacked(unpacked: dict[str, Any]) -> str:
    if unpacked["problem"]:
        kept = f"what is not in {unpacked['directory']}, " if unpacked["held_bytes"] else ""
        return f"{kept}in memory, each process its own: {unpacked['problem']}"
    held, limit = size(unpacked["held_bytes"]), size(unpacked["limit_bytes"])
    return f"in {unpacked['directory']}: {held} of at most {limit}"


def _bundles(bundles: list[dict[str, Any]], without: list[str]) -> list[str]:
    found = [
        f"{item['name']} {item['version'] or '?'} ({item['path'] or 'not found'})"
        + (f": {item['problem']}" if item["problem"] else "")
        for item in bundles
    ]
    return [*(found or ["none"]), *(f"no bundle: {problem}" for problem in without)]
