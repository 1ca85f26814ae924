"""What a trace is said to have run: its own code, not what happens beside it."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from cutlass_aot.programs.record.audit import Trace


def traced() -> None:
    os.environ.get("TRACED")


def of_another_thread() -> None:
    os.environ.get("ANOTHER")


def of_a_collection(phase: str, information: dict[str, int]) -> None:
    pass


class Finalized:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        pass


def test_code_and_variables_of_the_trace() -> None:
    trace = Trace()
    with trace.watch():
        traced()
    of_another_thread()
    assert traced.__code__ in trace.code
    assert of_another_thread.__code__ not in trace.code
    assert trace.variables == {"TRACED": __file__}


def test_each_trace_sees_code_that_an_earlier_one_has_seen() -> None:
    for _ in range(3):
        trace = Trace()
        with trace.watch():
            traced()
        assert traced.__code__ in trace.code


def test_another_thread_is_not_the_trace() -> None:
    trace = Trace()
    go, done = threading.Event(), threading.Event()

    def beside() -> None:
        go.wait()
        of_another_thread()
        done.set()

    thread = threading.Thread(target=beside)
    thread.start()
    with trace.watch():
        go.set()
        done.wait()
        traced()
    thread.join()
    assert of_another_thread.__code__ not in trace.code
    assert traced.__code__ in trace.code
    assert trace.variables == {"TRACED": __file__}


def test_a_collection_of_garbage_is_not_the_trace(request: pytest.FixtureRequest) -> None:
    gc.callbacks.append(of_a_collection)
    request.addfinalizer(lambda: gc.callbacks.remove(of_a_collection))
    callbacks = list(gc.callbacks)
    trace = Trace()
    with trace.watch():
        Finalized()
        assert gc.collect() >= 1
        traced()
    assert of_a_collection.__code__ not in trace.code
    assert Finalized.__del__.__code__ not in trace.code
    assert traced.__code__ in trace.code
    assert gc.callbacks == callbacks
