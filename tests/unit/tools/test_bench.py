"""The benchmark scripts: a synthetic bundle, figures from fresh processes, the report on them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cutlass_aot
from tests.support.paths import REPOSITORY
from tests.support.synthetic import packed

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
    counts = [group.kernel_count for group in bundle.groups]
    assert sum(counts) == KERNELS
    assert len(counts) == 704
    assert set(bundle.targets) == {"sm_80", "sm_90a", "sm_100a", "sm_103a"}
    a = cutlass_aot.describe((64, 128), "f8e4m3")
    b = cutlass_aot.describe((128, 256), "f8e4m3", strides=(1, 128))
    out = cutlass_aot.describe((64, 256), "bf16")
    found = bundle.find(a, b, out, target="sm_103a")
    assert {kernel.group.layouts for kernel in found} == {"tnt"}
    assert len(found) == found[0].group.kernel_count


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
    numbers = json.loads(output.read_text())["parts"]["catalog"]["numbers"]
    assert (numbers["kernels"], numbers["groups"]) == (KERNELS, 704)
    assert f"open a catalog of {KERNELS:,} kernels in 704 groups" in result.stdout
    report = script("gpu", "--report", output)
    assert report.returncode == 0, report.stderr
    table = result.stdout.partition("\n\n")[2]
    assert table in report.stdout


def test_a_look_up_is_measured_in_groups_that_were_read_and_that_were_not(
    launcher_library, tmp_path, monkeypatch
):
    from tools.bench import look_up, synthetic_bundle

    made = packed(tmp_path, "launcher", "so.zst", launcher_library)
    monkeypatch.setattr(synthetic_bundle, "launcher_of", lambda _: made)
    synthetic_bundle.write_synthetic(KERNELS, tmp_path / "synthetic", tmp_path)
    result = look_up.measured(tmp_path / "synthetic", 1)
    for kind in look_up.KINDS:
        assert min(result.numbers[kind][state] for state in look_up.STATES) > 0
    assert [row.what.rpartition(": ")[2] for row in result.rows if row.goal] == [
        "not read before, in a row",
        "read before, in a row",
    ]


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
    (row,), numbers, _ = bench_cpu.find_first(1, synthetic)
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


def test_every_part_on_a_gpu_is_found_without_one():
    pytest.importorskip("torch")
    from tools.bench import gpu as bench_gpu

    help_text = script("gpu", "--help").stdout
    for name in bench_gpu.PARTS:
        assert f"\n{name}: " in help_text
        assert bench_gpu.parsed(["--part", name]).part == [name]
        result = script("gpu", "--part", name)
        assert (result.returncode, "there is no GPU" in result.stderr) == (1, True)
    for module, name in [
        ("throughput", "throughput"), ("throughput", "families"), ("single_kernels", "kernels"),
        ("single_kernels", "designs"), ("single_kernels", "convolution"), ("transformer", "transformer"),
    ]:  # fmt: skip
        assert callable(getattr(importlib.import_module(f"tools.bench.{module}"), f"part_{name}"))


def test_a_part_opens_the_bundle_of_its_kernels_unless_one_is_named():
    from tools.bench import gpu as bench_gpu

    assert bench_gpu.bundle_of(bench_gpu.parsed([]), "kernels") == bench_gpu.BUNDLES / "kernels"
    assert bench_gpu.bundle_of(bench_gpu.parsed(["mine"]), "kernels") == Path("mine")


def test_memory_is_the_largest_of_the_processes_that_a_fork_server_forks():
    from tools.bench import process as bench_process

    code = (
        "import os, sys, time\n"
        "child = os.fork()\n"
        "if child == 0:\n    memory = bytearray(100_000_000)\n    time.sleep(30)\n    os._exit(0)\n"
        "print(child, flush=True)\nsys.stdin.read()\n"
        "os.kill(child, 9)\n# cutlass_aot.builder.compile.fork_server\n"
    )
    with (
        bench_process.MemoryWatch() as watch,
        subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as fork_server,
    ):
        assert fork_server.stdout is not None
        child = int(fork_server.stdout.readline())
        found = bench_process.forked_workers(os.getpid())
        assert child in found
        assert fork_server.pid not in found
        assert bench_process.forked_workers(child) == []
        deadline = time.monotonic() + 30
        while watch.largest_bytes < 100_000_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        fork_server.communicate("")
    assert 100_000_000 < watch.largest_bytes < 200_000_000
    assert watch.workers >= 1
    assert bench_process.status_bytes("VmHWM", 2**30) == 0
