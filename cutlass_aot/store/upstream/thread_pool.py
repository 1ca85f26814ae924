"""Threads for work that may hang: nobody waits for them longer than agreed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Task(Generic[Value]):
    """Something that a thread does."""

    def __init__(self, action: Callable[[], Value]) -> None:
        self._action = action
        self._done = threading.Event()
        self._value: Value | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it."""
        try:
            self._value = self._action()
        except BaseException as error:
            self._error = error
        self._done.set()

    def result(self, seconds: float) -> Value:
        """What came of it.

        Raises:
            TimeoutError: if it takes longer to come.
            BaseException: what it raised.
        """
        if not self._done.wait(seconds):
            raise TimeoutError(f"no answer within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class ThreadPool:
    """Some threads, started as they are needed.

    They are daemons: ``concurrent.futures`` would wait for them at the end of the process.

    Args:
        size: how many at most.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._started = 0
        self._tasks: queue.SimpleQueue[Task[object]] = queue.SimpleQueue()

    def begin(self, action: Callable[[], Value]) -> Task[Value]:
        """Have something done."""
        task = Task(action)
        self._tasks.put(task)  # type: ignore[arg-type]
        if self._started < self._size:
            self._started += 1
            threading.Thread(target=self._work, daemon=True).start()
        return task

    def _work(self) -> None:
        while True:
            self._tasks.get().run()
