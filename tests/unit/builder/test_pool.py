"""Workers: what one does wrong stays with the kernel that made it do so."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cutlass_aot.builder.compile import compile as compiling
from cutlass_aot.builder.compile import pool as pool_module
from cutlass_aot.builder.compile.messages import Compile, Forked, send
from cutlass_aot.builder.compile.pool import Job, Pool
from cutlass_aot.builder.events import Failed, Started
from cutlass_aot.builder.inputs.inputs import load_inputs
from cutlass_aot.builder.plan.plan import against_store, enumerations, kernel_keys, load_sources, select
from cutlass_aot.builder.records import headline
from cutlass_aot.errors import GeneratorError, ToolchainError
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.store.maintenance.check import check
from cutlass_aot.store.store import Store
from tests.support.kernels import gemm
from tests.support.paths import REPOSITORY

RAISED = "ValueError: no such instruction"
MISBEHAVING = GeneratorReference("misbehaving", "tests.support.misbehaving:Misbehaving")
MANIFEST = b"""
plugins = ["tests.support.misbehaving"]
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
        self.started = []
        self.failures = []

    def __call__(self, event):
        if isinstance(event, Started):
            self.started.append(event.kernel)
            return
        assert isinstance(event, Failed), "nothing here compiles, and nobody else builds"
        self.failures.append(event.failure)


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
        with Pool(2, modules, timeout=60) as pool:
            answers = compiling.enumerate_kernels(
                pool, enumerations(manifest, sources), {"sm_90a": load_profile("h200")}
            )
        selection = select(manifest, answers, "4.8.1")
        planned = against_store(selection, kernel_keys(selection, sources.versions, "toolchain"), store)
        with Pool(2, modules, timeout=2) as pool:
            done = compiling.compile_missing(pool, planned, sources, store, workspace, report, {})
    return store, {dict(failure.kernel.design)["does"]: failure for failure in done.failures}, report


def test_every_kernel_fails_alone(outcome):
    _, failures, report = outcome
    assert sorted(failures) == ["crash", "exit", "foreign", "hang", "raise"]
    assert len(report.failures) == 5
    assert sorted(kernel.digest for kernel in report.started) == sorted(
        failure.kernel.digest for failure in report.failures
    )


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("crash", f"the compiler crashed (signal {int(signal.SIGABRT)})"),
        ("exit", "the compiler crashed (exit status 3)"),
        ("hang", "timed out after 2 s"),
        ("raise", RAISED),
    ],
)
def test_the_reason_says_what_happened(outcome, does, reason):
    assert outcome[1][does].headline == reason


@pytest.mark.parametrize(
    ("does", "machine"),
    [("crash", True), ("hang", True), ("exit", False), ("raise", False), ("foreign", False)],
)
def test_a_failure_that_may_not_come_again_is_machine_failure(outcome, does, machine):
    assert outcome[1][does].machine is machine


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
    assert list(check(store)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('accumulator = "f64"', r"'misbehaving' failed on gemm.*cannot enumerate that"),
        ('accumulator = "i32"', r"'misbehaving' failed on gemm.*set has no canonical encoding"),
        (
            'accumulator = "u8"',
            r"equal records twice: whatever tells two kernels apart has to be in their `design`",
        ),
        ('accumulator = "bf16"', r"does not declare colour in its `design`"),
        (
            'accumulator = "f16"',
            r"answered gemm f16.f16.f16 accumulator f16 tnt on sm_90a with a kernel for something else",
        ),
        (
            'a_scale = { dtype = "f16", block = 32 }',
            r"answered gemm .* a_scale f16 x 32 on sm_90a with a kernel for something else",
        ),
    ],
)
def test_a_generator_that_answers_wrong_is_named(tmp_path, line, message):
    text = MANIFEST + line.encode()
    manifest = parse_manifest(text, tmp_path / "m.toml")
    sources = load_sources(manifest)
    with (
        Pool(1, sources.instances["misbehaving"].modules) as pool,
        pytest.raises(GeneratorError, match=message),
    ):
        compiling.enumerate_kernels(pool, enumerations(manifest, sources), {"sm_90a": load_profile("h200")})


def job(does, tmp_path):
    kernel = gemm(design={"does": does}, generator="misbehaving")
    return Job(does, Compile(MISBEHAVING, kernel, str(tmp_path / "x.o")))


def pool_of(size, **options):
    return Pool(size, ("tests.support.misbehaving",), **options)


def test_the_environment_and_the_current_directory_do_not_reach_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("ANYTHING", "1")
    monkeypatch.chdir(tmp_path)
    for name in ("socket.py", "signal.py", "cutlass_aot"):
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("raise SystemError")
    with pool_of(1) as pool:
        (result,) = pool.run([job("environment", tmp_path)])
    words = result.error.split()
    assert result.error.startswith("ValueError: ")
    assert not {"CUTE_DSL_LINEINFO", "PYTHONPATH", "ANYTHING"} & set(words)
    assert {"PATH", "CUTE_DSL_ARCH"} <= set(words)
    assert str(tmp_path) not in words


def test_the_compiler_keeps_no_cache_in_a_directory_that_others_know(tmp_path, monkeypatch):
    """Its default is $TMPDIR/$USER/cutlass_python_cache, which another user can make first."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "of the user"))
    with pool_of(1) as pool:
        (result,) = pool.run([job("cache", tmp_path)])
        folder, off = result.error.removeprefix("ValueError: ").split("\n")[0].split()
        assert off == "1"
        private = Path(folder).parent
        assert stat.S_IMODE(private.parent.stat().st_mode) == 0o700
    assert not private.exists()


@pytest.mark.compile
def test_importing_the_dsl_makes_no_directory_that_others_know(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Pool(1, ("cutlass.cute", "tests.support.misbehaving")) as pool:
        assert list(pool.run([job("raise", tmp_path)]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("does", ["memory", "disk", "linker"])
def test_a_machine_without_memory_or_disk_is_to_blame(tmp_path, does):
    with pool_of(1) as pool:
        (result,) = pool.run([job(does, tmp_path)])
    assert result.error
    assert result.machine


def test_a_worker_with_too_much_memory_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "MAX_RESIDENT_BYTES", 1)
    with pool_of(1) as pool:
        list(pool.run([job("raise", tmp_path), job("raise", tmp_path)]))
        assert pool._started == 2
        assert pool._workers == []


def test_what_another_builder_has_locked_is_compiled_in_the_end(tmp_path):
    admitted = []

    def admit(next_job, now):
        admitted.append((next_job.name, now))
        return True if now or next_job.name == "raise" else None

    with pool_of(1, timeout=0.5) as pool:
        start = time.monotonic()
        results = [result.job.name for result in pool.run([job("undecodable", tmp_path)], admit)]
        waited = time.monotonic() - start
    assert results == ["undecodable"]
    assert admitted[0] == ("undecodable", False)
    assert admitted[-1] == ("undecodable", True)
    assert 0.5 < waited < 30


def test_what_another_builder_has_locked_comes_after_all_else(tmp_path):
    locked = {"undecodable"}

    def admit(next_job, now):
        return None if next_job.name in locked and not now else True

    with pool_of(1) as pool:
        order = []
        for result in pool.run([job("undecodable", tmp_path), job("raise", tmp_path)], admit):
            order.append(result.job.name)
            locked.clear()
    assert order == ["raise", "undecodable"]


def test_what_has_ended_can_be_used_again(tmp_path):
    with pool_of(1) as pool:
        list(pool.run([job("raise", tmp_path)]))
        process = pool._fork_server.process
        pool.end()
        assert process.poll() is not None
        (result,) = pool.run([job("raise", tmp_path)])
    assert headline(result.error) == RAISED


def test_an_idle_worker_that_dies_is_replaced(tmp_path):
    with pool_of(1) as pool:
        (first,) = pool.run([job("raise", tmp_path)])
        (worker,) = pool._workers
        os.kill(worker.pid, signal.SIGKILL)
        _wait_until_gone(worker.pid)
        (second,) = pool.run([job("raise", tmp_path)])
    assert headline(first.error) == headline(second.error) == RAISED


def test_a_worker_whose_channel_somebody_else_holds_ends_in_time(tmp_path):
    with pool_of(1, timeout=1) as pool:
        list(pool.run([job("raise", tmp_path)]))
        start = time.monotonic()
        forked, after = pool.run([job("fork", tmp_path), job("raise", tmp_path)])
    assert time.monotonic() - start < 20
    assert forked.error == f"the compiler crashed (signal {int(signal.SIGABRT)})"
    assert headline(after.error) == RAISED


def test_a_builder_may_have_many_files_open(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"no process may have more than {hard} files open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open())
        pool = stack.enter_context(pool_of(1))
        first, second = pool.run([job("raise", tmp_path), job("raise", tmp_path)])
    assert headline(first.error) == headline(second.error) == RAISED


def test_sources_that_changed_while_the_build_ran_are_refused(tmp_path):
    module = "tests.support.misbehaving"
    digest = hashlib.sha256((REPOSITORY / "tests" / "support" / "misbehaving.py").read_bytes()).hexdigest()
    with pool_of(1, sources={module: digest}) as pool:
        (result,) = pool.run([job("raise", tmp_path)])
    assert headline(result.error) == RAISED
    with (
        pool_of(1, sources={module: "0" * 64}) as pool,
        pytest.raises(ToolchainError, match=f"{module} changed while the build ran: build again"),
    ):
        list(pool.run([job("raise", tmp_path)]))


def test_a_build_tells_its_pool_what_its_keys_come_from(tmp_path):
    (tmp_path / "m.toml").write_bytes(MANIFEST)
    tools = load_inputs(tmp_path / "m.toml", tmp_path / "store", linkers=False).tools
    digest = hashlib.sha256((REPOSITORY / "tests" / "support" / "misbehaving.py").read_bytes()).hexdigest()
    assert tools.pool(1, 1.0, lambda _event: None).sources == {"tests.support.misbehaving": digest}


def test_a_dead_fork_server_is_an_error_with_a_reason(tmp_path):
    with pool_of(1) as pool:
        list(pool.run([job("raise", tmp_path)]))
        fork_server = pool._fork_server
        fork_server.process.kill()
        fork_server.process.wait()
        _wait_until_gone(pool._workers[0].pid)
        with pytest.raises(ToolchainError, match=r"forks workers died \(exit status -9"):
            list(pool.run([job("raise", tmp_path)]))


def test_a_reply_of_another_shape_fails_its_job(tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = pool_module._Worker(1, ours, tmp_path / "log", job("raise", tmp_path))
        send(theirs, Forked(1))
        result = pool_of(1)._finish(worker)
    assert result.answer is None
    assert result.error.startswith("found a message Forked, expected Reply")
    assert not result.machine


def test_an_error_that_has_no_encoding_keeps_its_reason(tmp_path):
    with pool_of(1) as pool:
        (result,) = pool.run([job("undecodable", tmp_path)])
    assert headline(result.error) == r"ValueError: no file \udcff"


def test_a_builder_and_workers_of_different_code_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("cutlass_aot.__file__", str(tmp_path / "cutlass_aot" / "__init__.py"))
    with (
        pool_of(1) as pool,
        pytest.raises(ToolchainError, match="kept under the keys of other code"),
    ):
        list(pool.run([job("raise", tmp_path)]))


def test_a_dsl_from_elsewhere_is_refused(tmp_path):
    (tmp_path / "cutlass.py").write_text("")
    code = (
        "import pathlib, sys\n"
        "from cutlass_aot.builder.compile.pool import Job, Pool\n"
        f"root = pathlib.Path({str(tmp_path)!r})\n"
        "with Pool(1, ('cutlass',), dsl_roots=(root / 'installed',)) as pool:\n"
        "    list(pool.run([Job('x', None)]))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(REPOSITORY)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the DSL was imported from" in result.stderr.splitlines()[-1]


def test_a_module_that_cannot_be_imported_is_named(tmp_path):
    with (
        Pool(1, ("no_such_module",)) as pool,
        pytest.raises(ToolchainError, match="no_such_module"),
    ):
        list(pool.run([Job("x", None)]))


@pytest.mark.parametrize("stopped", [False, True])
def test_workers_end_when_the_builder_is_killed_and_its_folder_goes_with_the_next(
    tmp_path, monkeypatch, stopped
):
    """Also those that are stopped, which see no channel close."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = (
        "import sys, pathlib, time\n"
        f"sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from cutlass_aot.builder.compile.pool import Pool\n"
        "from tests.unit.builder.test_pool import job\n"
        "pool = Pool(1, ('tests.support.misbehaving',))\n"
        "worker = pool._new_worker()\n"
        f"pool._start(worker, job('hang', pathlib.Path({str(tmp_path)!r})))\n"
        "while not worker.log.exists(): time.sleep(0.01)\n"
        "print(worker.pid, pool._fork_server.process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as builder:
        assert builder.stdout is not None
        worker, fork_server = (int(word) for word in builder.stdout.readline().split())
        for pid in (builder.pid, fork_server, worker) if stopped else ():
            os.kill(pid, signal.SIGSTOP)
        builder.kill()
    try:
        _wait_until_gone(fork_server)
        _wait_until_gone(worker)
    finally:
        for pid in (fork_server, worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    (left,) = tmp_path.glob("cutlass-aot-*")
    # One that was made a moment ago may not be locked yet, and stays.
    os.utime(left, (1, 1))
    with pool_of(1) as pool:
        list(pool.run([job("raise", tmp_path)]))
    assert list(tmp_path.glob("cutlass-aot-*")) == []


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
