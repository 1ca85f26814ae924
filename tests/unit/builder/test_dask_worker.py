"""What a worker of dask knows of its machine stays true: sources change, processes die, remotes refuse."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

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
from cutlass_aot.builder.records import headline
from cutlass_aot.builder.toolchain import CompilerToolchain
from cutlass_aot.generators.registry import GeneratorReference, version_of
from cutlass_aot.schema.kernels.artifact import Artifact
from tests.support.kernels import gemm
from tests.support.synthetic import FACTS

PLUGIN = """
from pathlib import Path
from cutlass_aot.generators.registry import register
from tests.support.misbehaving import Misbehaving

@register
class Live(Misbehaving):
    name = "live"
    version = "{version}"
    modules = ("live_plugin",)
    distributions = {distributions}

    def compile(self, kernel):
        does = dict(kernel.design)["does"]
        if does.startswith("/"):
            Path(does).write_text("another compiler")
        raise ValueError("compiled by {version}")
"""


class Machine:
    """A machine with a compiler of one file and a plugin, and what a builder asks of it."""

    def __init__(self, folder):
        self.compiler = folder / "compiler.bin"
        self.compiler.write_text("a compiler")
        self.plugin = folder / "live_plugin.py"
        self.folder = folder
        self.install("1")

    def install(self, version, distributions=()):
        self.distributions = distributions
        self.plugin.write_text(PLUGIN.format(version=version, distributions=distributions))

    def detect(self, files):
        return CompilerToolchain({"file": files.digest(self.compiler)}, {}, ())

    def request(self, **changes):
        version = self.plugin.read_text().partition('version = "')[2].partition('"')[0]
        own = {"name": "live", "version": version, "modules": ("live_plugin",)}
        generator = type("Live", (), {**own, "distributions": self.distributions})
        request = CompileRemotely(
            name="k",
            key="0" * 64,
            compile=Compile(
                GeneratorReference("live", "live_plugin:Live"),
                gemm(design={"does": "raise"}, generator="live"),
                str(self.folder / "x.o"),
            ),
            remote=None,
            modules=("live_plugin",),
            timeout=30.0,
            toolchain=CompilerToolchain(
                {"file": hashlib.sha256(self.compiler.read_bytes()).hexdigest()}, {}, ()
            ).fingerprint,
            generator_version=version_of(
                generator, lambda path: hashlib.sha256(path.read_bytes()).hexdigest()
            ),
        )
        return replace(request, **changes)

    def ask(self, request=None, **changes):
        data = compile_on_worker(to_bytes(replace(request or self.request(), **changes)))
        return from_bytes(data, CompiledRemotely, Refused)


def fork_server():
    return dask_worker._local.bench._pool._fork_server.process


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Machine(tmp_path)
    monkeypatch.setattr(dask_worker, "detect_compiler", made.detect)
    yield made
    bench = getattr(dask_worker._local, "bench", None)
    if bench is not None:
        bench.end()
        dask_worker._local.bench = None
    sys.modules.pop("live_plugin", None)


def test_a_plugin_that_changes_under_a_living_worker_is_noticed(machine):
    old = machine.request()
    assert headline(machine.ask(old).error) == "ValueError: compiled by 1"
    first = fork_server()
    assert headline(machine.ask(old, timeout=20.0).error) == "ValueError: compiled by 1"
    assert fork_server() is first
    machine.install("2.0")
    assert "its generator version is 2.0+" in machine.ask(old).reason
    assert "its generator version is 2.0+" in machine.ask(old, timeout=21.0).reason
    assert headline(machine.ask().error) == "ValueError: compiled by 2.0"
    assert first.poll() is not None


def test_a_distribution_that_changes_under_a_living_worker_is_noticed(machine):
    files = {
        "live_kit/__init__.py": "",
        "live_kit-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: live-kit\nVersion: 1.0\n",
        "live_kit-1.0.dist-info/RECORD": "live_kit/__init__.py,,\n",
    }
    for name, text in files.items():
        (machine.folder / name).parent.mkdir(exist_ok=True)
        (machine.folder / name).write_text(text)
    machine.install("1", ("live-kit",))
    old = machine.request()
    assert headline(machine.ask(old).error) == "ValueError: compiled by 1"
    (machine.folder / "live_kit" / "__init__.py").write_text("# another")
    assert "its generator version is 1+" in machine.ask(old).reason
    assert headline(machine.ask().error) == "ValueError: compiled by 1"
    machine.install("1", ("another-kit",))
    assert "distribution 'another-kit' is not installed" in machine.ask(old).reason


def test_a_compiler_that_changes_under_a_living_worker_is_noticed(machine):
    old = machine.request()
    assert headline(machine.ask(old).error) == "ValueError: compiled by 1"
    machine.compiler.write_text("another")
    assert "its toolchain is" in machine.ask(old).reason
    assert headline(machine.ask().error) == "ValueError: compiled by 1"


def test_what_was_compiled_while_the_compiler_changed_is_not_handed_out(machine):
    request = machine.request()
    kernel = gemm(design={"does": str(machine.compiler)}, generator="live")
    compile = replace(request.compile, kernel=kernel)
    assert "its toolchain is" in machine.ask(request, compile=compile).reason


def test_a_process_that_was_killed_is_started_again(machine):
    machine.ask()
    for _ in range(2):
        fork_server().kill()
        fork_server().wait()
        time.sleep(0.2)
        assert headline(machine.ask().error) == "ValueError: compiled by 1"


def test_a_machine_that_cannot_start_processes_fails_kernels_and_refuses_nothing(machine, monkeypatch):
    begun = []

    def no_process(*_arguments, **_options):
        begun.append(1)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("cutlass_aot.builder.compile.fork_client.subprocess.Popen", no_process)
    answer = machine.ask()
    assert answer.machine
    assert "Cannot allocate memory" in answer.error
    assert len(begun) == 2


def test_a_machine_without_room_fails_kernels_and_refuses_nothing(machine, monkeypatch):
    def no_folder(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dask_worker, "temporary_folder", no_folder)
    request = machine.request(remote=f"file://{machine.folder}/remote")
    answer = machine.ask(request, compile=replace(request.compile, object="/nowhere/x.o"))
    assert answer.machine
    assert "No space left on device" in answer.error


def test_an_update_of_cutlass_aot_asks_for_a_new_worker(machine, monkeypatch):
    machine.ask()
    dask_worker._local.bench.end()
    dask_worker._local.bench = None
    monkeypatch.setitem(dask_worker._own, "fork_client", "0" * 64)
    assert "updated since this dask worker began: restart it" in machine.ask().reason


def test_a_module_that_is_not_installed_is_refused(machine):
    assert "it has no module elsewhere" in machine.ask(modules=("elsewhere",)).reason


def test_an_idle_pool_ends_and_begins_again(machine, monkeypatch):
    monkeypatch.setattr(dask_worker, "_IDLE_SECONDS", 0.1)
    machine.ask()
    first = dask_worker._local.bench
    for _ in range(100):
        if first._pool._fork_server is None:
            break
        time.sleep(0.05)
    assert first._pool._fork_server is None
    assert headline(machine.ask().error) == "ValueError: compiled by 1"
    assert dask_worker._local.bench is first


def test_threads_compile_each_on_its_own(machine):
    answers = []

    def ask():
        answers.append(headline(machine.ask(request).error))
        dask_worker._local.bench.end()

    request = machine.request()
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["ValueError: compiled by 1"] * 3


def test_a_remote_that_takes_nothing_is_a_failure_of_the_machine(machine, monkeypatch):
    def compiled(request):
        Path(request.compile.object).write_bytes(b"an object")
        sha256 = hashlib.sha256(b"an object").hexdigest()
        return CompiledRemotely(Artifact(sha256, 9, FACTS, 1.0), log="words")

    monkeypatch.setattr(dask_worker, "_run", compiled)
    machine.compiler.with_name("taken").write_text("a file where the remote store should be")
    request = machine.request(remote=f"file://{machine.folder}/taken/remote")
    answer = machine.ask(request, compile=replace(request.compile, object="/nowhere/x.o"))
    assert answer.machine
    assert answer.error.startswith("compiled, and not put into file://")
    assert answer.log == "words"
    assert not answer.pushed
