"""NVIDIA's operator tests as a program: what they compile is recorded without a GPU and answered by a bundle.

``CHECKOUT`` is a checkout of github.com/NVIDIA/cutlass; the tests are in its folder ``operators/test``. They
are run twice for each target, on a machine without a GPU::

    python -m tools.check.operators ~/cutlass -o build/operators

First ``cutlass-aot build`` records what they compile and builds the bundle. Then they are run in another
process, and each call of ``cute.compile`` is looked up in the bundle. Nothing is computed there, so
comparisons of results pass, and tests of other things may fail.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROFILES = {"sm_90a": "h200", "sm_100a": "b200", "sm_103a": "gb300"}
_ADDRESS = re.compile(r"0x[0-9a-f]+|[0-9a-f]{12}")
_SHOWN = 160
_LEFT_OUT = ("test_gemm_jax.py", "test_notebooks.py")
_TESTS = ("integration", "unit/test_metadata.py")


def main() -> int:
    """Record, look up, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/NVIDIA/cutlass")
    parser.add_argument("--targets", nargs="+", choices=sorted(PROFILES), default=["sm_90a", "sm_100a"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at once")
    parser.add_argument("-k", dest="selected", default="", help="pytest's expression for the tests to run")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/operators"))
    parser.add_argument("--part", choices=["tests", "lookup"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = (options.checkout / "operators" / "test").resolve()
    if not folder.is_dir():
        parser.error(f"{folder} is not a folder: name a checkout of github.com/NVIDIA/cutlass")
    if options.part == "tests":
        run_tests(folder, options.selected)
        return 0
    if options.part == "lookup":
        (target,) = options.targets
        print(json.dumps(looked_up(folder, options.selected, options.output / "bundles/operators", target)))
        return 0
    output = options.output.resolve()
    build(options.checkout.resolve(), options.targets, options.selected, output, options.jobs)
    lookups = {}
    for target in options.targets:
        done = subprocess.run(
            [
                sys.executable, __file__, str(options.checkout), "--part", "lookup", "--targets", target,
                "-k", options.selected, "-o", str(output),
            ],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        lookups[target] = json.loads(done.stdout.splitlines()[-1])
    (output / "found.json").write_text(json.dumps(lookups, indent=1) + "\n")
    print(report(lookups))
    return 0


def build(checkout: Path, targets: Sequence[str], selected: str, output: Path, jobs: int) -> None:
    """Build the bundle of what the tests compile."""
    output.mkdir(parents=True, exist_ok=True)
    program = ["python", str(Path(__file__).resolve()), str(checkout), "--part", "tests"]
    program += ["-k", selected] if selected else []
    devices = ", ".join(f'{target} = "{PROFILES[target]}"' for target in targets)
    (output / "operators.toml").write_text(
        f'[bundle]\nname = "operators"\nversion = "0.1.0"\ntargets = {json.dumps(list(targets))}\n'
        f"device = {{ {devices} }}\n\n[[programs]]\nrun = {json.dumps(program)}\n"
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "cutlass_aot", "build", "operators.toml", "--store", "store",
            "--out", "bundles", "--jobs", str(jobs),
        ],
        cwd=output, check=False,
    )  # fmt: skip
    if not (output / "bundles/operators").is_dir():
        raise SystemExit(done.returncode)


def run_tests(folder: Path, selected: str) -> Counter[str]:
    """Run the tests in this process; gives how many of each outcome there were."""
    import pytest

    outcomes: Counter[str] = Counter()

    class Outcomes:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome == "skipped":
                outcomes[report.outcome] += 1

    sys.path.insert(0, str(folder))
    os.chdir(folder)
    # JAX has no fake tensors on a GPU that is not there, and notebooks are run in processes of their own.
    left_out = [f"--ignore={folder / 'integration' / name}" for name in _LEFT_OUT]
    words = ["-qq", "--no-header", "-p", "no:cacheprovider", "-W", "ignore", "--tb=line", "-k", selected]
    paths = [str(folder / name) for name in _TESTS]
    pytest.main([*words, "--rootdir", str(folder), *left_out, *paths], plugins=[Outcomes()])
    return outcomes


def looked_up(folder: Path, selected: str, bundle: Path, target: str) -> dict[str, Any]:
    """Run the tests; each compilation is looked up in the bundle and answered by nothing."""
    from cutlass_aot.errors import CutlassAotError
    from cutlass_aot.generators.device_profiles import load_profile
    from cutlass_aot.programs.record import pretend_gpu
    from cutlass_aot.programs.record.record import Nothing
    from cutlass_aot.programs.serve.explain import explain_miss
    from cutlass_aot.programs.serve.serve import Server, opened
    from cutlass_aot.programs.start.interception import Compile, Interception

    device = load_profile(PROFILES[target])
    os.environ.update(pretend_gpu.environment(device, target))
    pretend_gpu.install(device, target, fake_tensors=True)
    server = Server()
    server.bundles = (opened(bundle),)
    calls: list[dict[str, Any]] = []

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile) -> Any:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        call: dict[str, Any] = {"test": test, "request": "", "reason": ""}
        calls.append(call)
        try:
            request = server.request(compiler, arguments, keywords)
            call |= {"request": request.digest, "options": dict(request.options)}
            if server.find(request) is None:
                call["reason"] = explain_miss(request, server.bundles)
        except CutlassAotError as error:
            call["reason"] = str(error)
        return Nothing()

    Interception(answer).begin()
    outcomes = run_tests(folder, selected)
    recorded = sum(request.target == target for request in server.bundles[0].requests.requests())
    return {"calls": calls, "recorded": recorded, "outcomes": dict(outcomes)}


def report(lookups: Mapping[str, Any]) -> str:
    """The table, with the reasons for what was not answered."""
    lines = ["target   tests  calls  distinct  without TVM-FFI  recorded  answered"]
    reasons: Counter[str] = Counter()
    for target, one in lookups.items():
        calls = one["calls"]
        distinct = {call["request"] for call in calls if call["request"]}
        without = sum(call.get("options", {}).get("enable-tvm-ffi") is False for call in calls)
        answered = sum(not call["reason"] for call in calls)
        tests = sum(count for name, count in one["outcomes"].items() if name != "skipped")
        lines.append(
            f"{target:7}  {tests:5}  {len(calls):5}  {len(distinct):8}  {without:15}  {one['recorded']:8}  "
            f"{answered:8}"
        )
        reasons.update(
            f"{target}: {_ADDRESS.sub('...', call['reason'])[:_SHOWN]}" for call in calls if call["reason"]
        )
    lines += [f"{count:5} not answered, {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
