"""The examples of CuTe DSL as programs: which of them are recorded and built without a GPU.

``CHECKOUT`` is a checkout of github.com/NVIDIA/cutlass; the examples are in ``examples/python/CuTeDSL``::

    python -m tools.check.examples ~/cutlass cute/hopper cute/blackwell -o build/examples

Each script that can be run is built into a bundle by ``cutlass-aot build``, with ``--skip_ref_check`` where
it has that option. Those over several GPUs are left out. It prints a line for each that is not built, with
the end of what the build said, and then how many of each folder are.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tools.bench.command import markdown

PROFILES = {
    "sm_80": "a100.toml",
    "sm_90a": "h200",
    "sm_100a": "b200",
    "sm_103a": "gb300",
    "sm_120a": "rtx.toml",
}
"""The device profile of each target. Those of files are written here, with what an example may ask."""

_PROFILE = """name = "{name}"
gpu = "{gpu}"
compute_capability = "{capability}"
sm_count = {sm_count}
measured = false
source = "NVIDIA's data sheet"

[max_active_clusters]
1 = {sm_count}
"""
_FILES = {
    "a100.toml": {"name": "a100", "gpu": "NVIDIA A100", "capability": "8.0", "sm_count": 108},
    "rtx.toml": {"name": "rtx", "gpu": "NVIDIA RTX PRO 6000", "capability": "12.0", "sm_count": 188},
}
_SECONDS = 300
_SHOWN = 200


def target_of(script: Path) -> str:
    """The target of an example, by the folder or the name that it has."""
    text = script.as_posix().rpartition("CuTeDSL/")[2]
    for part, target in (
        ("hopper", "sm_90a"),
        ("ampere", "sm_80"),
        ("geforce", "sm_120a"),
        ("sm103", "sm_103a"),
    ):
        if part in text:
            return target
    return "sm_100a"


def manifest_of(script: Path) -> str:
    """The manifest that builds an example."""
    target = target_of(script)
    options = ["--skip_ref_check"] if "--skip_ref_check" in script.read_text() else []
    run = json.dumps(["python", str(script), *options])
    return (
        f'[bundle]\nname = "example"\nversion = "1.0.0"\ntargets = ["{target}"]\n'
        f'device = "{PROFILES[target]}"\n\n[[programs]]\nrun = {run}\n'
    )


def build(script: Path, folder: Path, name: str) -> str:
    """Build an example; why it could not be, or ``""``."""
    manifest = folder / f"{name}.toml"
    manifest.write_text(manifest_of(script))
    command = [sys.executable, "-m", "cutlass_aot", "build", manifest, "--store", folder / "store"]
    with subprocess.Popen(
        [*map(str, command), "-o", str(folder / "bundles" / name)],
        env={**os.environ, "PYTHONPATH": str(script.parent)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            _, said = process.communicate(timeout=_SECONDS)
        except BaseException as error:
            # With the program that it records.
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"took more than {_SECONDS} seconds"
    return "" if process.returncode == 0 else " ".join(said.split())[-_SHOWN:]


def main() -> None:
    """Build the examples of some folders, and print what was built."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/NVIDIA/cutlass")
    parser.add_argument("folders", nargs="+", help="of examples/python/CuTeDSL")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/examples"))
    options = parser.parse_args()
    root = (options.checkout / "examples" / "python" / "CuTeDSL").resolve()
    if not root.is_dir():
        parser.error(f"{root} is not a folder: name a checkout of github.com/NVIDIA/cutlass")
    for folder in options.folders:
        if not (root / folder).is_dir():
            parser.error(f"{folder} is not a folder of {root}")
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    for name, numbers in _FILES.items():
        (output / name).write_text(_PROFILE.format_map(numbers))
    built, all_of = Counter[str](), Counter[str]()
    for folder in options.folders:
        for script in sorted((root / folder).rglob("*.py")):
            name = script.relative_to(root).with_suffix("").as_posix()
            if "__main__" not in script.read_text() or "distributed" in name:
                continue
            reason = build(script, output, name.replace("/", "-").replace("_", "-"))
            all_of[folder] += 1
            built[folder] += not reason
            if reason:
                print(f"{name}: {reason}", flush=True)
    rows = [(folder, str(all_of[folder]), str(built[folder])) for folder in options.folders]
    print(markdown(("folder", "examples", "built"), rows))


if __name__ == "__main__":
    main()
