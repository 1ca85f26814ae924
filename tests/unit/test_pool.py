"""Workers: what one does wrong stays with the kernel that made it do so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutlass_aot.builder import compile as compiling
from cutlass_aot.builder.plan import against_store, enumerations, kernel_keys, load_sources, select
from cutlass_aot.builder.pool import Job, Pool
from cutlass_aot.errors import GeneratorError, ToolchainError
from cutlass_aot.generators.device import load_profile
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.store.store import Store

MANIFEST = b"""
plugins = ["tests.unit.misbehaving"]
[bundle]
name = "test"
targets = ["sm_90a"]
device = "h200"
[[kernels]]
generator = "misbehaving"
ab = "f16"
"""


class Silent:
    def __init__(self):
        self.failures = []

    def compiled(self, kernel, seconds):
        raise AssertionError("nothing here compiles")

    def shared(self, kernel):
        raise AssertionError("nobody else builds")

    def failed(self, failure):
        self.failures.append(failure)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Compile one kernel of each kind of misbehaviour with two workers."""
    root = tmp_path_factory.mktemp("pool")
    manifest = parse_manifest(MANIFEST, root / "m.toml")
    sources = load_sources(manifest)
    store = Store(root / "store")
    report = Silent()
    modules = sources.instances["misbehaving"].modules
    with store.workspace() as workspace:
        with Pool(2, modules, workspace, timeout=60) as pool:
            answers = compiling.enumerate_kernels(pool, enumerations(manifest, sources), load_profile("h200"))
        selection = select(manifest, answers)
        planned = against_store(selection, kernel_keys(selection, sources, "toolchain"), store)
        with Pool(2, modules, workspace, timeout=2) as pool:
            _, failures = compiling.compile_missing(pool, planned, sources, store, workspace, report)
    return store, {dict(failure.kernel.design)["does"]: failure for failure in failures}, report


def test_every_kernel_fails_alone(outcome):
    _, failures, report = outcome
    assert sorted(failures) == ["crash", "exit", "foreign", "hang", "raise"]
    assert len(report.failures) == 5


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("crash", f"the compiler crashed (signal {int(signal.SIGABRT)})"),
        ("exit", "the compiler crashed (exit status 3)"),
        ("hang", "timed out after 2 s"),
        ("raise", "ValueError: no such instruction"),
    ],
)
def test_the_reason_says_what_happened(outcome, does, reason):
    assert outcome[1][does].reason == reason


def test_what_is_no_object_is_refused_by_the_audit(outcome):
    assert outcome[1]["foreign"].reason.startswith(("ArtifactError", "CorruptFile"))


@pytest.mark.parametrize("does", ["crash", "exit", "hang", "raise", "foreign"])
def test_the_log_keeps_the_compilers_words(outcome, does):
    text = outcome[1][does].log.read_text()
    assert f"about to {does}" in text
    if does == "raise":
        assert "Traceback" in text


def test_nothing_is_left_behind(outcome):
    store = outcome[0]
    assert list((store.root / "tmp").iterdir()) == []
    assert list((store.root / "locks").iterdir()) == []
    assert not (store.root / "blobs").exists()
    assert store.check() == []


def test_a_generator_that_raises_is_named(tmp_path):
    text = MANIFEST + b'accumulator = "f64"'
    manifest = parse_manifest(text, tmp_path / "m.toml")
    sources = load_sources(manifest)
    with (
        Pool(1, sources.instances["misbehaving"].modules, tmp_path) as pool,
        pytest.raises(GeneratorError, match=r"'misbehaving' failed on gemm.*cannot enumerate that"),
    ):
        compiling.enumerate_kernels(pool, enumerations(manifest, sources), load_profile("h200"))


def test_a_module_that_cannot_be_imported_is_named(tmp_path):
    with (
        Pool(1, ("no_such_module",), tmp_path) as pool,
        pytest.raises(ToolchainError, match="no_such_module"),
    ):
        list(pool.run([Job("x", "sm_90a", {})]))


def test_workers_end_when_the_builder_is_killed(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from cutlass_aot.builder.pool import Pool, Job\n"
        "from tests.unit.kernels import gemm\n"
        "kernel = gemm(design={'does': 'hang'}, generator='misbehaving')\n"
        "request = {'do': 'compile', 'generator': ['misbehaving', 'tests.unit.misbehaving:Misbehaving'],\n"
        f"    'kernel': kernel.to_record(), 'object': {str(tmp_path / 'x.o')!r}}}\n"
        f"pool = Pool(1, ('tests.unit.misbehaving',), pathlib.Path({str(tmp_path)!r}))\n"
        "worker = pool._new_worker('sm_90a')\n"
        "pool._start(worker, Job('x', 'sm_90a', request))\n"
        "print(worker.pid, worker.zygote.process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as builder:
        assert builder.stdout is not None
        worker, zygote = (int(word) for word in builder.stdout.readline().split())
        builder.kill()
    _wait_until_gone(zygote)
    _wait_until_gone(worker)


def _wait_until_gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
            # Without an init that reaps them, orphans stay as zombies: they run nothing any more.
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")
