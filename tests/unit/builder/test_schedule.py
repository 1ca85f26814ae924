"""The order in which kernels are compiled."""

from __future__ import annotations

import random
import time

import pytest

from cutlass_aot.builder.compile.failures import is_machine_failure, reason_of
from cutlass_aot.builder.compile.messages import WorkerFailure
from cutlass_aot.builder.compile.schedule import Job, Queue, expected_seconds
from tests.support.kernels import gemm


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


def by_the_rule(waiting, workers, known, taken):
    """The job to take next, found by looking at every one that waits."""
    groups = {}
    for job in waiting:
        groups.setdefault(job.group, []).append(job)
    longest = max(groups.values(), key=lambda group: group[0].seconds)
    if longest[0].seconds < sum(job.seconds for job in waiting) / workers:
        own = [group for name, group in groups.items() if name in known]
        if own:
            longest = max(own, key=lambda group: group[0].seconds)
        else:
            free = [group for name, group in groups.items() if name not in taken] or list(groups.values())
            longest = max(free, key=lambda group: sum(job.seconds for job in group))
    return longest[0]


@pytest.mark.parametrize("seed", range(60))
def test_the_order_is_the_rules(seed):
    draw = random.Random(seed)
    names = [f"g{index}" for index in range(draw.choice([1, 3, 12]))]
    every = [
        Job(str(index), {}, group=draw.choice(names), seconds=draw.choice([0.5, 1.0, 2.0, 8.0]))
        for index in range(60)
    ]
    workers = draw.choice([1, 2, 5])
    queue = Queue(every, workers)
    order = {}
    for job in sorted(every, key=lambda job: -job.seconds):
        order.setdefault(job.group, len(order))
    # Of equal groups the one whose longest job was the longest at the beginning, of equal jobs the first.
    waiting = sorted(sorted(every, key=lambda job: -job.seconds), key=lambda job: order[job.group])
    while waiting:
        known = set(draw.sample(names, draw.randint(0, len(names))))
        taken = set(draw.sample(names, draw.randint(0, len(names))))
        expected = by_the_rule(waiting, workers, known, taken)
        assert queue.take(known, taken) is expected
        waiting.remove(expected)
        assert len(queue) == len(waiting)
    assert queue.take(set()) is None


@pytest.mark.parametrize("groups", [1, 20_000])
def test_twenty_thousand_jobs_are_taken_at_once(groups):
    every = [Job(str(index), {}, group=str(index % groups)) for index in range(20_000)]
    queue = Queue(every, 16)
    start = time.process_time()
    while queue.take({"0"}, {"1"}):
        pass
    assert time.process_time() - start < 5


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
    ("failure", "log", "reason"),
    [
        (WorkerFailure(timed_out=30), "", "timed out after 30 s"),
        (WorkerFailure(signal=9), "", "the compiler crashed (signal 9)"),
        (WorkerFailure(signal=11), "", "the compiler crashed (signal 11)"),
        (WorkerFailure(raised=("MemoryError", "Exception"), message="MemoryError: "), "", "MemoryError: "),
        (WorkerFailure(raised=("FileNotFoundError", "OSError"), message="gone"), "", "gone"),
        (
            WorkerFailure(status=1),
            "x\nLLVM ERROR: Cannot allocate memory",
            "the compiler crashed (exit status 1)",
        ),
        (WorkerFailure(raised=("RuntimeError",), message="std::bad_alloc"), "", "std::bad_alloc"),
        *(
            (WorkerFailure(raised=("RuntimeError", "Exception"), message=message), "", message)
            for message in (
                "LLVM ERROR: out of memory",
                "fork: Cannot allocate memory",
                "virtual memory exhausted: Cannot allocate memory",
                "virtual memory exhausted",
                "LLVM ERROR: IO failure on output stream: No space left on device",
            )
        ),
    ],
)
def test_what_the_machine_did_is_tried_again(failure, log, reason):
    assert reason_of(failure) == reason
    assert is_machine_failure(failure, log)


@pytest.mark.parametrize(
    "failure",
    [
        WorkerFailure(status=3),
        WorkerFailure(raised=("ValueError", "Exception"), message="ValueError: no such instruction"),
        WorkerFailure(raised=("ArtifactError", "CutlassAotError"), message="ArtifactError: no GPU code"),
        WorkerFailure(
            raised=("DSLRuntimeError", "Exception"),
            message="ptxas fatal: (C7600) Register allocation failed with register count of '64'",
        ),
        WorkerFailure(raised=("GeneratorError",), message="TMEM allocation failed: 640 columns asked of 512"),
        WorkerFailure(raised=("GeneratorError",), message="out of shared memory: 300 KB asked of 227 KB"),
        WorkerFailure(raised=("GeneratorError",), message="tensor memory exhausted"),
    ],
)
def test_what_the_kernel_did_is_not(failure):
    assert not is_machine_failure(failure, "ptxas fatal: unresolved symbol")
