"""A build on the workers of a dask scheduler: the same bundle, also when a worker dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from cutlass_aot.builder.build import make_plan
from cutlass_aot.builder.compile import dask_worker
from cutlass_aot.builder.compile.dask_worker import compile_on_worker
from cutlass_aot.builder.compile.messages import (
    Compile,
    CompiledRemotely,
    CompileRemotely,
    Refused,
    from_bytes,
    to_bytes,
)
from cutlass_aot.builder.inputs.inputs import load_inputs
from cutlass_aot.builder.settings import Settings
from cutlass_aot.store.store import Store
from tests.compile.builder.test_build import command, contents

pytest.importorskip("distributed")
pytestmark = pytest.mark.compile


@contextmanager
def process(*arguments, **options):
    """A process in a session of its own, of which nothing is left at the end."""
    started = subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler, two workers, and the scheduler's address."""
    folder = tmp_path_factory.mktemp("dask")
    found = folder / "scheduler.json"
    own = ("--no-dashboard", "--scheduler-file", found)
    with process("distributed.cli.dask_scheduler", "--port", 0, "--host", "127.0.0.1", *own):
        until = time.monotonic() + 60
        while not found.exists() and time.monotonic() < until:
            time.sleep(0.1)
        address = json.loads(found.read_text())["address"]
        arguments = ("--nthreads", 1, "--no-nanny", "--no-dashboard", "--local-directory", folder)
        worker = ("distributed.cli.dask_worker", address, *arguments)
        with process(*worker) as first, process(*worker):
            yield address, first


@pytest.fixture
def manifest(many):
    return many / "m.toml"


def test_a_worker_that_dies_has_its_kernels_done_elsewhere(cluster, manifest, many, tmp_path):
    address, first = cluster
    arguments = ("--executor", "dask", "--scheduler", address, "--out", tmp_path / "o", "--json")
    events = []
    with subprocess.Popen(
        [sys.executable, "-m", "cutlass_aot", "build", str(manifest), "--store", str(tmp_path / "s"),
         *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    ) as build:  # fmt: skip
        for line in build.stdout:
            events.append(json.loads(line))
            if [event["event"] for event in events].count("compiled") == 1 and first.poll() is None:
                first.kill()
    assert build.returncode == 0
    compiled = [event for event in events if event["event"] == "compiled"]
    assert len(compiled) == len({event["kernel"] for event in compiled}) == 5
    assert first.poll() == -signal.SIGKILL
    # As one machine builds it.
    assert contents(tmp_path / "o" / "many") == contents(many / "out" / "many")


@pytest.fixture
def request_(manifest, many, tmp_path):
    """What a worker is asked for one of the kernels, into a directory that it does not see."""
    settings = Settings(many / "store", 1, 120, print)
    inputs = load_inputs(manifest, settings.store, linkers=False)
    planned = make_plan(manifest, settings).kernels[0]
    kernel, key = planned.kernel, planned.key
    reference = inputs.tools.sources.references[kernel.generator]
    return CompileRemotely(
        name=kernel.name,
        key=key,
        compile=Compile(reference, kernel, str(tmp_path / "nowhere" / "x.o")),
        remote=f"file://{tmp_path}/remote",
        modules=inputs.tools.modules,
        timeout=120.0,
        toolchain=inputs.tools.compiler.fingerprint,
        generator_version=inputs.tools.sources.versions[kernel.generator],
    )


@pytest.fixture
def bench_ended():
    """What a worker keeps to compile in ends with the test, not after minutes of idleness."""
    yield
    bench = getattr(dask_worker._local, "bench", None)
    if bench is not None:
        bench.end()


@pytest.mark.usefixtures("bench_ended")
def test_a_worker_that_does_not_share_the_store_puts_objects_into_the_remote(request_, tmp_path):
    def ask(**changes):
        data = compile_on_worker(to_bytes(replace(request_, **changes)))
        return from_bytes(data, CompiledRemotely, Refused)

    answer = ask()
    assert answer.error == ""
    assert answer.pushed
    remote = Store(tmp_path / "remote", create=False)
    assert remote.get_record("kernel", request_.key)["sha256"] == answer.artifact.object_sha256
    assert remote.get_blob(answer.artifact.object_sha256)
    assert "has to be a directory that all machines share" in ask(remote=None).reason
    assert "install the same cutlass-aot" in ask(toolchain="0" * 64).reason
    assert "its generator version is" in ask(generator_version="1+0").reason


def test_a_scheduler_that_is_not_there_is_named(manifest, tmp_path):
    done = command(
        "build", manifest, "--store", tmp_path / "s", "--out", tmp_path / "o",
        "--executor", "dask", "--scheduler", "tcp://127.0.0.1:9",
    )  # fmt: skip
    assert done.returncode == 1
    assert "the dask scheduler tcp://127.0.0.1:9 cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
