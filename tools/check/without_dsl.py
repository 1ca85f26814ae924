"""Compare the requests that programs make with the DSL and without it: every digest has to be the same.

    python -m tools.check.without_dsl examples/programs/fa4.py examples/programs/quack_kernels.py

Each program runs without a GPU and compiles nothing: once for each target as it is, and once with the package
`cutlass_aot.without_dsl` in the place of the DSL. Prints a table, and under it every request that differs or
that one of the two runs did not make, with the values that differ. Needs the DSL and the programs' packages.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from cutlass_aot.errors import CutlassAotError, RequestError
from cutlass_aot.generators.device_profiles import profile_for
from cutlass_aot.programs.describe.profiles import device_numbers
from cutlass_aot.programs.describe.request import Surroundings, request_of
from cutlass_aot.programs.record import pretend_gpu
from cutlass_aot.programs.record.record import Nothing
from cutlass_aot.programs.start.interception import Interception
from cutlass_aot.programs.start.packages import known_variables
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.requests.request import Request, differences

_TARGETS = ("sm_90a", "sm_100a")
_SHOWN = 6


class Collected(NamedTuple):
    """The requests of a run of a program.

    Attributes:
        requests: by digest.
        refused: why others could not be described.
        status: of the process; 0 if the program came to its end.
        output: what the program printed.
    """

    requests: dict[str, Request]
    refused: list[str]
    status: int
    output: str

    @property
    def fingerprint(self) -> str:
        """The DSL's, as the requests have it."""
        return next(iter(self.requests.values())).code["nvidia-cutlass-dsl"]


def collected(program: Path, target: str, fingerprint: str = "", arguments: Sequence[str] = ()) -> Collected:
    """Run a program in a process of its own, and collect its requests.

    Args:
        program: its file.
        target: GPU code target that it sees a GPU of.
        fingerprint: of the DSL, to run the program without it; with it if left out.
        arguments: of the program.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "requests"
        plan = {"program": str(program), "target": target, "fingerprint": fingerprint, "output": str(output)}
        command = [sys.executable, __file__, "--collect", json.dumps(plan), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        answer = (
            decode(output.read_bytes(), "requests") if output.exists() else {"requests": [], "refused": []}
        )
    requests = [from_plain(Request, record, "a request") for record in answer["requests"]]
    return Collected(
        {request.digest: request for request in requests}, list(answer["refused"]), done.returncode,
        done.stdout + done.stderr,
    )  # fmt: skip


def collect(plan: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Run a program in this process, and write its requests into a file."""
    program, target = Path(plan["program"]), str(plan["target"])
    profile = profile_for(target)
    os.environ.update(pretend_gpu.environment(profile, target))
    surroundings = Surroundings(lambda target: device_numbers(profile), known_variables)
    if plan["fingerprint"]:
        from cutlass_aot import without_dsl

        fingerprint = str(plan["fingerprint"])
        without_dsl.activate(fingerprint)
        surroundings = surroundings._replace(dsl=lambda: fingerprint)
    pretend_gpu.install(profile, target, fake_tensors=True)
    requests: dict[str, Any] = {}
    refused: dict[str, None] = {}

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Any) -> Nothing:
        try:
            request = request_of(compiler, arguments, keywords, surroundings)
            requests[request.digest] = to_plain(request)
        except RequestError as error:
            if os.environ.get("TRACE_REFUSED"):
                traceback.print_exc()
            refused[str(error)] = None
        return Nothing()

    Interception(answer).begin()
    sys.argv = [str(program), *arguments]
    sys.path[0] = str(program.parent)
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        made = {"requests": list(requests.values()), "refused": list(refused)}
        Path(plan["output"]).write_bytes(encode(made))


def compared(without: Collected, expected: Collected) -> list[str]:
    """What differs between two runs, in words: nothing if every digest is the same."""
    lines = []
    for digest, request in expected.requests.items():
        if digest in without.requests:
            continue
        others = [
            other
            for other in without.requests.values()
            if other.callable == request.callable and other.digest not in expected.requests
        ]
        near = min((differences(other, request) for other in others), key=len, default=None)
        what = f"{request.callable} ({digest[:12]})"
        if near is None:
            lines.append(f"{what}: not requested")
        else:
            lines.append(f"{what}: {'; '.join(map(str, near[:_SHOWN]))}")
    lines += [f"{item.callable} ({key[:12]}): requested without the DSL alone"
              for key, item in without.requests.items() if key not in expected.requests]  # fmt: skip
    return lines + [f"refused: {reason}" for reason in without.refused if reason not in expected.refused]


@click.command(help=__doc__)
@click.argument("programs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--target", "targets", multiple=True, type=click.Choice(_TARGETS))
@click.option("--verbose", is_flag=True, help="Show what the programs print without the DSL.")
def main(programs: Sequence[Path], targets: Sequence[str], verbose: bool) -> None:
    total: list[str] = []
    print("| program | target | requests | equal without the DSL | others | refused |")
    print("|---|---|--:|--:|--:|--:|")
    for program in programs:
        for target in targets or _TARGETS:
            expected = collected(program, target)
            if not expected.requests:
                raise CutlassAotError(f"{program} made no request:\n{expected.output}")
            without = collected(program, target, expected.fingerprint)
            equal = len(without.requests.keys() & expected.requests.keys())
            others = len(without.requests.keys() - expected.requests.keys())
            print(
                f"| {program.stem} | {target} | {len(expected.requests)} | {equal} | {others} "
                f"| {len(without.refused)} |",
                flush=True,
            )
            lines = compared(without, expected)
            if without.status != expected.status:
                lines.append(f"the program ended with status {without.status}, not {expected.status}")
            total += [f"{program.stem}, {target}: {line}" for line in lines]
            if verbose:
                total.append(without.output)
    print("\n".join(["", *total]))
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--collect"]:
        collect(json.loads(sys.argv[2]), sys.argv[3:])
    else:
        main()
