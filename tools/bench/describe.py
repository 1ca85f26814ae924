"""Measure how long it takes to describe what a program asks ``cute.compile`` for, and to digest it.

    python -m tools.bench.describe examples/programs/fa4.py [--target sm_90a] [--repeat 5]

The program runs without a GPU and compiles nothing. Each of its requests is described as often as
``--repeat`` says, after a first time, in which the sources that it follows from are read. Prints a table in
Markdown. Needs the DSL and the program's packages.
"""

from __future__ import annotations

import os
import runpy
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cutlass_aot.errors import RequestError
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.programs.describe.profiles import device_numbers
from cutlass_aot.programs.describe.request import Surroundings, request_of
from cutlass_aot.programs.record import pretend_gpu
from cutlass_aot.programs.record.record import Nothing
from cutlass_aot.programs.start.interception import Interception
from cutlass_aot.programs.start.packages import cache_environment, known_variables

_PROFILES = {"sm_90a": "h200", "sm_100a": "b200"}


@click.command(help=__doc__)
@click.argument("program", type=click.Path(exists=True, path_type=Path))
@click.option("--target", type=click.Choice(list(_PROFILES)), default="sm_90a", show_default=True)
@click.option("--repeat", default=5, show_default=True)
def main(program: Path, target: str, repeat: int) -> None:
    profile = load_profile(_PROFILES[target])
    os.environ.update({**pretend_gpu.environment(profile, target), **cache_environment()})
    pretend_gpu.install(profile, target, fake_tensors=True)
    surroundings = Surroundings(lambda target: device_numbers(profile), known_variables)
    first: list[float] = []
    again: list[float] = []
    digests: set[str] = set()
    sizes: list[int] = []
    refused = 0

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Any) -> Nothing:
        nonlocal refused
        try:
            for index in range(repeat + 1):
                start = time.perf_counter()
                request = request_of(compiler, arguments, keywords, surroundings)
                digest = request.digest
                (again if index else first).append((time.perf_counter() - start) * 1e3)
            digests.add(digest)
            sizes.append(len(request.encoded()))
        except RequestError as error:
            print(f"refused: {error}", file=sys.stderr)
            refused += 1
        return Nothing()

    Interception(answer).begin()
    sys.argv = [str(program)]
    sys.path[0] = str(program.parent)
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        print("\n| requests | distinct | refused | first | median | max | largest |")
        print("|--:|--:|--:|--:|--:|--:|--:|")
        times = f"{first[0]:.0f} ms | {statistics.median(again):.2f} ms | {max(again):.2f} ms"
        print(f"| {len(first)} | {len(digests)} | {refused} | {times} | {max(sizes)} bytes |")


if __name__ == "__main__":
    main()
