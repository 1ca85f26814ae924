"""The benchmark of building, with a few kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.support.paths import REPOSITORY


def test_memory_an_idle_build_and_the_stores_size_are_measured(tmp_path):
    output = tmp_path / "build.json"
    command = [
        sys.executable, "-m", "tools.bench.build", "--part", "thousand", "--small",
        "--repeat", "1", "--store", tmp_path / "kept", "-o", output,
    ]  # fmt: skip
    result = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    record = json.loads(output.read_text())
    part = record["parts"]["thousand"]
    numbers = part["numbers"]
    assert numbers["kernels"] == numbers["compiled"] > 1
    assert 0.1e9 < numbers["peak_bytes"] < 1.2e9
    assert 0 < numbers["size"] < numbers["objects"]
    assert min(numbers["imports"], numbers["nothing"], numbers["seconds"]) > 0
    assert len(part["rows"]) == 3
