"""Check a trace against the key of its request: the code it ran, and the environment variables it read.

A request finds the code it follows from by name, before the trace (:mod:`~.code_slice`). A trace may reach
further code, through ``getattr`` or a table of modules. Such a request is refused when it is recorded, so
that no bundle has a kernel whose key says too little.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.code_slice import CodeSlice
from cutlass_aot.programs.describe.definitions import is_defined_at, source_lines
from cutlass_aot.programs.describe.distributions import (
    OWN_FOLDER,
    deciding_origin_of_file,
    in_standard_library,
)

_TOOLS = (4, 3, 5, 2, 1, 0)
"""Tool numbers of ``sys.monitoring``, first those that are not reserved for debuggers or profilers."""


class Trace:
    """The code that a trace ran, and the environment variables it read, with the file that read each."""

    def __init__(self) -> None:
        self.code: set[CodeType] = set()
        self.variables: dict[str, str] = {}
        self._collecting = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Within the block: note the code and environment variables of this thread."""
        environment = os.environ
        kind = type(environment)
        original = kind.__getitem__
        thread = threading.get_ident()

        def read(variables: Any, name: str) -> str:
            if variables is environment and not self._collecting and threading.get_ident() == thread:
                self.variables.setdefault(name, _reader())
            return original(variables, name)

        kind.__getitem__ = read  # type: ignore[method-assign]
        try:
            with self._without_collections(), self._watch_code():
                yield
        finally:
            kind.__getitem__ = original  # type: ignore[method-assign]

    @contextmanager
    def _without_collections(self) -> Iterator[None]:
        """Within the block: leave out code that garbage collection runs, which may happen anywhere.

        It runs finalizers and other packages' callbacks, between this package's first and last callback.
        """

        def begin(phase: str, information: Mapping[str, int]) -> None:
            if phase == "start":
                self._collecting = True

        def end(phase: str, information: Mapping[str, int]) -> None:
            if phase == "stop":
                self._collecting = False

        gc.callbacks.insert(0, begin)
        gc.callbacks.append(end)
        try:
            yield
        finally:
            gc.callbacks.remove(begin)
            gc.callbacks.remove(end)
            self._collecting = False

    @contextmanager
    def _watch_code(self) -> Iterator[None]:
        monitoring = getattr(sys, "monitoring", None)
        if monitoring is not None:
            thread = threading.get_ident()

            # Events come from all threads. DISABLE ends those of a code object after the first.
            def started(code: CodeType, _offset: int) -> Any:
                if self._collecting or threading.get_ident() != thread:
                    return None
                self.code.add(code)
                return monitoring.DISABLE

            tool = next((number for number in _TOOLS if monitoring.get_tool(number) is None), None)
            if tool is None:
                raise RequestError("every number of sys.monitoring is in use: end a debugger or a profiler")
            monitoring.use_tool_id(tool, "cutlass-aot")
            try:
                monitoring.register_callback(tool, monitoring.events.PY_START, started)
                monitoring.set_events(tool, monitoring.events.PY_START)
                # Enables code again that an earlier trace has disabled.
                monitoring.restart_events()
                yield
            finally:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)
            return
        add = self.code.add

        def called(frame: FrameType, event: str, argument: Any) -> None:
            if not self._collecting:
                add(frame.f_code)

        before = sys.gettrace()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)


def _reader() -> str:
    """The file of the innermost caller outside the standard library; ``""`` if there is none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (
        in_standard_library(frame.f_code.co_filename) or frame.f_code.co_filename.startswith("<")
    ):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def check(trace: Trace, code: CodeSlice, keyed: Iterable[str], known: Mapping[str, Any]) -> None:
    """Refuse a trace that ran code, or read variables, which its request does not cover.

    ``keyed`` are the distributions and modules that the request names, ``known`` environment variables that
    say no more than its target does.
    """
    names = {*code.code, *keyed}
    followed = _followed(trace, code)
    for item in sorted(trace.code, key=lambda item: (item.co_filename, item.co_firstlineno)):
        file, line = item.co_filename, item.co_firstlineno
        if _decides_nothing(file):
            continue
        if not item.co_flags & CO_OPTIMIZED:  # The body of a module or of a class.
            origin = deciding_origin_of_file(file)
            if origin is not None and origin.name not in names:
                raise RequestError(
                    f"compiling imported {file}, which does not follow from the kernel's code, so that an "
                    "edit of it would go unnoticed: import it by name in the kernel's module"
                )
        elif item not in followed:
            raise RequestError(
                f"compiling ran {item.co_name} ({file}, line {line}), which does not follow from the "
                "kernel's code, so that an edit of it would go unnoticed: it was reached by getattr, or was "
                "put where it is as the program ran; import it by name in the kernel's module"
            )
    for item in trace.code:
        if item in code.memories:
            raise RequestError(
                f"compiling ran {code.memories[item]} ({item.co_filename}, line {item.co_firstlineno}), "
                "which holds more than plain values: call the function that it decorates, or pass what it "
                "holds as an argument"
            )
    for name, file in sorted(trace.variables.items()):
        if name not in code.variables and name not in known and not _decides_nothing(file):
            raise RequestError(
                f"compiling read the environment variable {name} ({file}), which the kernel's code does not "
                "name: read it by os.environ.get with its name written out, in the function that uses it"
            )


def _followed(trace: Trace, code: CodeSlice) -> set[CodeType]:
    """The traced code that is of functions which the request names."""
    lines: dict[str, set[int]] = {}
    names: dict[str, set[str]] = {}
    for thing in code.followed.values():
        if isinstance(thing, FunctionType):
            file = thing.__code__.co_filename
            lines.setdefault(file, set()).update(_lines(thing))
            names.setdefault(file, set()).update(_names(thing.__code__))

    def is_followed(item: CodeType) -> bool:
        file = item.co_filename
        if item.co_firstlineno in lines.get(file, ()):
            return True
        # The DSL numbers the lines of a rewritten closure from 1.
        return item.co_name in names.get(file, ()) and not is_defined_at(
            file, item.co_name, item.co_firstlineno
        )

    found: set[CodeType] = set()
    work = [item for item in trace.code if is_followed(item)]
    while work:
        item = work.pop()
        if item not in found:
            found.add(item)
            # Inner functions that the DSL has rewritten have line numbers of no function.
            work.extend(constant for constant in item.co_consts if isinstance(constant, CodeType))
    return found


def _lines(function: FunctionType) -> Iterable[int]:
    if function.__code__.co_name != "<lambda>":
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            return source_lines(function)
    return (function.__code__.co_firstlineno,)


def _names(code: CodeType) -> Iterator[str]:
    """The names of a function and of those within it."""
    yield code.co_name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _decides_nothing(file: str) -> bool:
    """Whether a file's code decides no kernels: it is of the DSL, a framework or this package."""
    if file.startswith(("<", OWN_FOLDER)) or in_standard_library(file):
        return True
    package = getattr(sys.modules.get("cutlass"), "__file__", None)
    if package and file.startswith(f"{Path(package).parent}/") and "/cutlass/operators/" not in file:
        return True
    if file == getattr(sys.modules.get("__main__"), "__file__", None):
        return False
    return deciding_origin_of_file(file) is None
