"""Compile a request, refuse it if its key does not cover the trace, and note how its function is called."""

from __future__ import annotations

import dataclasses
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cutlass_aot.errors import ArtifactError
from cutlass_aot.programs.describe.request import code_of
from cutlass_aot.programs.record.audit import Trace, check
from cutlass_aot.programs.without_tvm_ffi import compiling_with
from cutlass_aot.schema.requests.request import CallByName, Request, Value

_lock = threading.RLock()
"""Held during a compilation, which replaces parts of the DSL and of ``os.environ`` for all threads."""


def _renew_lock() -> None:
    """Replace the lock in a forked child: another thread of the parent may have held it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Compiled(NamedTuple):
    """The function of ``cute.compile``; ``call`` is None if it takes no arguments by name."""

    function: Any
    call: CallByName | None


def compile_watched(
    request: Request,
    compile: Callable[[], Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    known: Mapping[str, str],
    *,
    keep_unsound: Callable[[Exception], None] | None = None,
) -> Compiled:
    """Compile a request, which a call with these arguments (the callable first) and keywords made.

    Args:
        known: environment variables that say no more than the request's target does.
        keep_unsound: called with the error if the key does not cover the trace; None to raise it.
    """
    # The first trace of a process imports it, and with it asks finders of the program's own.
    importlib.import_module("cutlass.cute._tvm_ffi_args_spec_converter")
    # Before the trace, which replaces the code of the functions that it goes through.
    code = code_of(arguments, keywords)
    trace = Trace()
    with (
        _lock,
        _calling_conventions() as conventions,
        compiling_with(request, arguments, keywords),
        _without_line_numbers(),
        trace.watch(),
    ):
        function = compile()
    try:
        check(trace, code, request.code, known)
        spec = conventions.get(id(function))
        return Compiled(function, None if spec is None else _call(spec))
    except Exception as error:
        if keep_unsound is None:
            raise
        keep_unsound(error)
        return Compiled(function, None)


@contextmanager
def _calling_conventions() -> Iterator[dict[int, Mapping[str, Any]]]:
    """Within the block: collect the keywords with which the DSL wraps compiled functions, by their ``id``."""
    found: dict[int, Mapping[str, Any]] = {}
    provider: Any = importlib.import_module("cutlass.cutlass_dsl.tvm_ffi_provider")
    kind = provider.TVMFFIJitCompiledFunctionWithKwargs
    original = kind.__init__

    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        found[id(self)] = dict(keywords)
        original(self, *arguments, **keywords)

    kind.__init__ = made
    try:
        yield found
    finally:
        kind.__init__ = original


@contextmanager
def _without_line_numbers() -> Iterator[None]:
    """Within the block: compile without line numbers of the source, even if the program asks for them.

    They contain file paths of the compiling machine. The instructions are the same, so a request does not
    have this option.
    """
    kind: Any = importlib.import_module("cutlass.base_dsl.compiler").GenerateLineInfo
    # What is set meanwhile is kept: options that are made here may be read later.
    kind._value = property(lambda option: False, lambda option, value: vars(option).update(_value=value))
    try:
        yield
    finally:
        del kind._value


def _call(keywords: Mapping[str, Any]) -> CallByName:
    spec = keywords["kwargs_wrapper_spec"]
    own = spec.arg_names[len(spec.arg_names) - len(spec.arg_defaults) :]
    return CallByName(
        tuple(spec.arg_names),
        tuple(_default(name, value) for name, value in zip(own, spec.arg_defaults, strict=True)),
        tuple(spec.kwonly_names),
        {name: _default(name, value) for name, value in spec.kwonly_defaults.items()},
        tuple(keywords.get("map_dataclass_to_tuple") or ()),
    )


_STREAMS = ("CUstream", "cudaStream_t")
_DEFAULT_STREAMS = (0, 1, 2)
"""Handles that mean the same stream in every process: the default one, the legacy one, that of the thread."""


def _default(name: str, value: Any) -> Value:
    """A default value in a form that needs no DSL: numbers, text, None, and tuples of them.

    Compiled code takes named tuples and dataclasses field by field, and a stream by its handle.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = tuple(getattr(value, field.name) for field in dataclasses.fields(value))
    if type(value).__name__ in _STREAMS and int(value) in _DEFAULT_STREAMS:
        return int(value)
    if isinstance(value, (tuple, list)):
        return {"tuple": [_default(name, item) for item in value]}
    held = getattr(value, "value", None)
    if type(held) in (bool, int, float):
        return held
    raise ArtifactError(
        f"argument {name!r} has a default value of {type(value).__qualname__}, expected a number, text, "
        "None or a tuple of them: pass it at each call"
    )
