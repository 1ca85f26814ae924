"""The benchmark scripts: a synthetic bundle, figures from fresh processes, the report on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import cutlass_aot
from tests.support.paths import REPOSITORY

KERNELS = 6000


def script(name, *words):
    return subprocess.run(
        [sys.executable, "-m", f"tools.bench.{name}", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "synthetic"
    result = script("synthetic_bundle", path, "--kernels", KERNELS)
    assert result.returncode == 0, result.stderr
    return path


def test_the_synthetic_bundle_has_the_kernels_asked_for(synthetic):
    bundle = cutlass_aot.open(synthetic, check=False)
    counts = [group.count for group in bundle.groups]
    assert sum(counts) == KERNELS
    assert len(counts) == 704
    assert set(bundle.targets) == {"sm_80", "sm_90a", "sm_100a", "sm_103a"}
    a = cutlass_aot.describe((64, 128), "f8e4m3")
    b = cutlass_aot.describe((128, 256), "f8e4m3", strides=(1, 128))
    out = cutlass_aot.describe((64, 256), "bf16")
    found = bundle.find(a, b, out, target="sm_103a")
    assert {kernel.group.layouts for kernel in found} == {"tnt"}
    assert len(found) == found[0].group.count


def test_the_same_number_of_kernels_gives_the_same_bytes(synthetic, tmp_path):
    script("synthetic_bundle", tmp_path / "again", "--kernels", KERNELS)
    assert (tmp_path / "again" / "MANIFEST.json").read_bytes() == (synthetic / "MANIFEST.json").read_bytes()


@pytest.mark.parametrize("kernels", [10, 10_000_000])
def test_an_impossible_number_of_kernels_is_refused(kernels, tmp_path):
    result = script("synthetic_bundle", tmp_path / "never", "--kernels", kernels)
    assert result.returncode != 0
    assert "ValueError" in result.stderr
    assert not (tmp_path / "never").exists()


def test_a_catalog_is_measured_and_reported(synthetic, tmp_path):
    output = tmp_path / "cpu.json"
    result = script("cpu", "--part", "catalog", "--synthetic", synthetic, "--repeat", 1, "-o", output)
    assert result.returncode == 0, result.stderr
    numbers = json.loads(output.read_text())["numbers"]["catalog"]
    assert (numbers["kernels"], numbers["groups"]) == (KERNELS, 704)
    assert 0 < numbers["warm"] < numbers["first"] < 1
    assert f"open a catalog of {KERNELS:,} kernels in 704 groups" in result.stdout
    report = script("gpu", "--report", output)
    assert report.returncode == 0, report.stderr
    table = result.stdout.partition("\n\n")[2]
    assert table in report.stdout


def test_a_part_that_fails_says_so_and_leaves_the_others(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "MANIFEST.json").write_text("{}")
    result = script("cpu", "--part", "catalog", "--synthetic", broken, "--repeat", 1)
    assert result.returncode == 1
    assert "| `--part catalog` | not measured: cutlass_aot.errors.CorruptFile" in result.stdout


def test_a_report_on_another_file_is_refused(tmp_path):
    other = tmp_path / "other.json"
    other.write_text("[]")
    result = script("gpu", "--report", other)
    assert result.returncode != 0
    assert "expected what the -o of a benchmark wrote" in result.stderr


def test_without_the_dsl_its_rows_say_so(synthetic, monkeypatch):
    from tools.bench import cpu as bench_cpu

    monkeypatch.setattr(bench_cpu, "has_operators", lambda: False)
    (row,), numbers = bench_cpu.find_first(1, synthetic)
    assert row.measured.endswith(" ms; DSL not installed")
    assert row.met is None
    assert numbers["ours"]["find"] > 0


def test_host_times_take_turns_and_drain_first():
    from tools.bench import gpu as bench_gpu

    log = []
    calls = {"a": lambda: log.append("a"), "b": lambda: log.append("b")}
    times = bench_gpu.host_times(calls, 2, 3, lambda: log.append("drained"))
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}
    batches = "".join(log).split("drained")
    assert batches == ["", "aaa", "bbb", "bbb", "aaa", "aaa", "bbb", ""]


def test_the_table_of_problems():
    from tools.bench.report import problem_table

    item = {
        "dtype": "bf16", "kind": "listed", "m": 16, "n": 64, "k": 128, "tier": "tuned",
        "gemm": 2e-6, "best": 1e-6, "cublas": 3e-6, "untuned": 4e-6,
    }  # fmt: skip
    assert problem_table([item]).splitlines()[-1] == (
        "| bf16 | listed | 16 x 64 x 128 | tuned | 2.0 | 1.0 | 3.0 | 4.0 | 0.50 | 1.50 |"
    )
