"""The order in which kernels are compiled."""

from __future__ import annotations

import pytest

from cutlass_aot.builder.durations import expected_seconds
from cutlass_aot.builder.failures import Trouble, is_the_machines
from cutlass_aot.builder.schedule import Job, Queue
from tests.unit.kernels import gemm


def jobs(**groups):
    return [
        Job(f"{group}{index}", {}, group=group, seconds=seconds)
        for group, durations in groups.items()
        for index, seconds in enumerate(durations)
    ]


def take_all(queue, known=()):
    found = []
    while (job := queue.take(known)) is not None:
        found.append(job.name)
    return found


def test_the_longest_of_a_group_comes_first_and_equals_keep_their_order():
    assert take_all(Queue(jobs(a=[1, 3, 2, 3]), 1)) == ["a1", "a3", "a2", "a0"]


def test_a_worker_stays_with_the_group_it_knows():
    queue = Queue(jobs(a=[1] * 10, b=[2] * 10), 2)
    assert queue.take({"a"}).group == "a"
    assert queue.take({"b"}).group == "b"
    assert queue.take({"a", "b"}).group == "b"


def test_a_new_worker_takes_the_group_with_most_work_that_nobody_is_at():
    queue = Queue(jobs(a=[1] * 10, b=[1] * 5, c=[1] * 7), 2)
    assert queue.take(set()).group == "a"
    assert queue.take(set(), {"a"}).group == "c"
    assert queue.take(set(), {"a", "b", "c"}).group == "a"


def test_a_job_that_would_delay_the_end_goes_first():
    queue = Queue(jobs(a=[1] * 10, b=[20]), 2)
    assert queue.take({"a"}).name == "b0"


def test_near_the_end_the_longest_goes_first():
    queue = Queue(jobs(a=[1], b=[3]), 2)
    assert queue.take({"a"}).name == "b0"
    assert queue.take({"a"}).name == "a0"
    assert queue.take({"a"}) is None


def test_every_job_is_taken_once():
    every = jobs(a=[1, 2], b=[3], c=[0.5] * 4)
    queue = Queue(every, 3)
    assert len(queue) == 7
    assert sorted(take_all(queue, {"c"})) == sorted(job.name for job in every)
    assert len(queue) == 0


def test_expected_seconds_are_remembered_or_those_of_the_family_or_the_longest():
    kernels = [
        gemm(design={"family": "x", "n": 1}),
        gemm(design={"family": "x", "n": 2}),
        gemm(design={"family": "x", "n": 3}),
        gemm(design={"family": "y", "n": 1}),
    ]
    durations = {kernels[0].digest: 2.0, kernels[1].digest: 4.0}
    assert expected_seconds(kernels, durations) == [2, 4, 3, 4]
    assert expected_seconds(kernels[2:], durations, kernels[:2]) == [3, 4]
    assert expected_seconds(kernels, {}) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("trouble", "log", "reason"),
    [
        (Trouble(timed_out=30), "", "timed out after 30 s"),
        (Trouble(signal=9), "", "the compiler crashed (signal 9)"),
        (Trouble(signal=11), "", "the compiler crashed (signal 11)"),
        (Trouble(raised=("MemoryError", "Exception"), message="MemoryError: "), "", "MemoryError: "),
        (Trouble(raised=("FileNotFoundError", "OSError"), message="gone"), "", "gone"),
        (Trouble(status=1), "x\nLLVM ERROR: Cannot allocate memory", "the compiler crashed (exit status 1)"),
        (Trouble(raised=("RuntimeError",), message="std::bad_alloc"), "", "std::bad_alloc"),
    ],
)
def test_what_the_machine_did_is_tried_again(trouble, log, reason):
    assert trouble.reason == reason
    assert is_the_machines(trouble, log)


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(status=3),
        Trouble(raised=("ValueError", "Exception"), message="ValueError: no such instruction"),
        Trouble(raised=("ArtifactError", "CutlassAotError"), message="ArtifactError: no GPU code"),
    ],
)
def test_what_the_kernel_did_is_not(trouble):
    assert not is_the_machines(trouble, "ptxas fatal: unresolved symbol")
