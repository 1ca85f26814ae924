"""What becomes of a build whose dask cluster fails it; a made-up client stands for the cluster."""

from __future__ import annotations

from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest

from cutlass_aot.builder.compile import dask_executor
from cutlass_aot.builder.compile.dask_executor import DaskExecutor
from cutlass_aot.builder.compile.messages import Compile, CompiledRemotely, to_bytes
from cutlass_aot.builder.compile.pool import Job
from cutlass_aot.errors import ExecutorError
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.schema.kernels.artifact import Artifact
from tests.support.kernels import gemm
from tests.support.synthetic import FACTS

pytest.importorskip("distributed")

ARTIFACT = Artifact("0" * 64, 1, FACTS, 1.0)
ANSWER = to_bytes(CompiledRemotely(ARTIFACT))


class Future:
    def __init__(self, status):
        self.status = status

    def done(self):
        return True

    def release(self):
        pass

    def exception(self):
        return ValueError("cannot begin")

    def result(self):
        if self.status == "finished":
            return ANSWER
        raise AssertionError(self.status)


class Forgotten(Future):
    """Finished when asked, and cancelled when its result is fetched."""

    def result(self):
        raise CancelledError


class Client:
    """Gives futures as told, the last one again and again; raises what it is told to at one of its calls."""

    def __init__(self, *futures, raises_at="", error=None):
        self.futures = list(futures) or [Future("finished")]
        self.raises_at = raises_at
        self.error = error or OSError("connection closed")
        self.submitted = 0

    def _call(self, name):
        if name == self.raises_at:
            raise self.error

    def nthreads(self):
        self._call("nthreads")
        return {"tcp://worker": 1}

    def submit(self, *_arguments, **_options):
        self._call("submit")
        self.submitted += 1
        return self.futures.pop(0) if len(self.futures) > 1 else type(self.futures[0])(self.futures[0].status)

    def cancel(self, _futures, force):
        self._call("cancel")

    def close(self, timeout):
        self._call("close")


def run(client, count=1):
    request = Compile(GeneratorReference("g", "x"), gemm(), "x.o")
    jobs = [Job(f"k{index}", request, tag=SimpleNamespace(key=str(index))) for index in range(count)]
    executor = DaskExecutor("tcp://node:1", (), "t", {"g": "1"}, 30.0, None)
    executor._client = client
    try:
        return list(executor.run(jobs))
    finally:
        executor.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(dask_executor, "_POLL_SECONDS", 0.01)


@pytest.mark.parametrize("call", ["nthreads", "submit"])
@pytest.mark.parametrize("error", [OSError("closed"), TimeoutError("late"), RuntimeError("no client")])
def test_a_scheduler_that_dies_is_named(call, error):
    with pytest.raises(ExecutorError, match=r"the dask scheduler tcp://node:1 is gone: .*build again"):
        run(Client(raises_at=call, error=error))


@pytest.mark.parametrize("call", ["cancel", "close"])
def test_a_scheduler_that_dies_at_the_end_is_not_missed(call):
    assert [result.answer for result in run(Client(raises_at=call))] == [ARTIFACT]


@pytest.mark.parametrize("lost", [Future("cancelled"), Future("lost"), Forgotten("finished")])
def test_what_a_restarted_cluster_has_lost_is_submitted_again(lost):
    client = Client(lost, Future("finished"))
    results = run(client, count=2)
    assert sorted(result.job.name for result in results) == ["k0", "k1"]
    assert all(result.answer == ARTIFACT for result in results)
    assert client.submitted == 3


def test_what_is_lost_again_and_again_is_machine_failure():
    client = Client(Future("lost"))
    (result,) = run(client)
    assert result.machine
    assert result.error == "the dask cluster lost it 4 times"
    assert client.submitted == 4


def test_a_worker_of_other_code_ends_the_build():
    with pytest.raises(ExecutorError, match=r"could not begin with k0.*the same cutlass-aot"):
        run(Client(Future("error")))
