"""Threads for work that may hang: callers wait for a result only for a limited time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Task(Generic[Value]):
    """An action that a thread runs."""

    def __init__(self, action: Callable[[], Value]) -> None:
        self._action = action
        self._done = threading.Event()
        self._value: Value | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the action, and keep what it returns or raises."""
        try:
            self._value = self._action()
        except BaseException as error:
            self._error = error
        self._done.set()

    def result(self, seconds: float) -> Value:
        """Wait for the action; return what it returned, or raise what it raised.

        Raises:
            TimeoutError: if it has not ended after ``seconds``.
        """
        if not self._done.wait(seconds):
            raise TimeoutError(f"no answer within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class ThreadPool:
    """Up to ``size`` threads, started as they are needed.

    They are daemons: ``concurrent.futures`` would wait for them at the end of the process.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._started = 0
        self._tasks: queue.SimpleQueue[Task[object]] = queue.SimpleQueue()

    def begin(self, action: Callable[[], Value]) -> Task[Value]:
        """Have an action run by one of the threads."""
        task = Task(action)
        self._tasks.put(task)  # type: ignore[arg-type]
        if self._started < self._size:
            self._started += 1
            threading.Thread(target=self._work, daemon=True).start()
        return task

    def _work(self) -> None:
        while True:
            self._tasks.get().run()
