"""Intercept ``cute.compile``, and calls of ``@cute.jit`` functions without it: one function answers both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.call import direct_call, passed_at_each_call
from cutlass_aot.programs.start.after_import import AfterImport
from cutlass_aot.programs.without_tvm_ffi import are_on_the_cpu


@dataclass(frozen=True, slots=True)
class Compile:
    """The original ``cute.compile``, called as ``compile(*arguments, **keywords)``.

    Attributes:
        leave: called alike; does what the DSL would have done. Of a direct call that is all of it: the DSL
            traces and launches, and what is given takes any arguments and returns the call's result.
        direct: whether the program calls a ``@cute.jit`` function itself, and not ``cute.compile``.
    """

    compile: Callable[..., Any]
    leave: Callable[..., Any]
    direct: bool = False

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Compile anew."""
        return self.compile(*arguments, **keywords)


Answer = Callable[[Any, Sequence[Any], Mapping[str, Any], Compile], Any]
"""Called with the compiler (``cute.compile`` or ``cute.compile[...]``), its arguments and keywords, and the
original. Gives the compiled function, or what stands for it."""


class Interception:
    """Between :meth:`begin` and :meth:`end`, calls of ``cute.compile`` go to ``answer`` instead.

    So do direct calls of ``@cute.jit`` functions, which the DSL compiles when they are called: each is a call
    of ``cute.compile`` with the same arguments, whose result is called at once. Those whose arguments are
    numbers and tensors on the CPU go to the DSL: they are taken to launch no kernel.

    Nested calls, which are part of a compilation, and those by which the DSL's ``HardwareInfo`` asks the
    driver, still go to the compiler. The DSL is not imported for it.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._inside = threading.local()
        self._hook = AfterImport(
            {"cutlass.cute": self._stand_before_compile, "cutlass.base_dsl.dsl": self._stand_before_calls}
        )
        self._compiler: Any = None
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Intercept calls as soon as the compiler is imported."""
        self._hook.begin()

    def end(self) -> None:
        """Restore the compiler."""
        self._hook.end()
        for undo in self._undo:
            undo()

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Within the block, this thread's calls are part of a compilation."""
        self._inside.compiling = True
        try:
            yield
        finally:
            self._inside.compiling = False

    def _is_compiling(self) -> bool:
        return getattr(self._inside, "compiling", False)

    def _stand_before_compile(self, module: ModuleType) -> None:
        # A program may put an object of its own in its place.
        self._compiler = module.compile
        kind = type(module.compile)
        original = kind.__call__

        def call(compiler: Any, *arguments: Any, **keywords: Any) -> Any:
            def compile(*a: Any, **k: Any) -> Any:
                return original(compiler, *a, **k)

            if self._is_compiling() or _is_the_dsls_own(arguments):
                return compile(*arguments, **keywords)
            with self._compiling():
                return self._answer(compiler, arguments, keywords, Compile(compile, compile))

        kind.__call__ = call
        self._undo.append(lambda: setattr(kind, "__call__", original))

    def _stand_before_calls(self, module: ModuleType) -> None:
        kind = module.BaseDSL
        original = kind._func

        def call(dsl: Any, function: Any, *arguments: Any, **keywords: Any) -> Any:
            def run() -> Any:
                return original(dsl, function, *arguments, **keywords)

            def leave(*a: Any, **k: Any) -> Any:
                result = run()
                return lambda *passed, **named: result

            # The compiler, too, calls functions so.
            if self._is_compiling() or keywords.get("compile_only") or _is_tracing(module):
                return run()
            given = direct_call(function, arguments)
            try:
                passed, named = passed_at_each_call(given, keywords)
            except RequestError:
                passed, named = given[1:], keywords  # It makes no request: what is given takes any arguments.
            with self._compiling():
                if are_on_the_cpu((*passed, *named.values())):
                    return run()
                compiler = self._compiler
                compiled = self._answer(compiler, given, keywords, Compile(compiler, leave, direct=True))
            return compiled(*passed, **named)

        kind._func = call
        self._undo.append(lambda: setattr(kind, "_func", original))


def _is_tracing(module: ModuleType) -> bool:
    """Whether a call is part of a trace that nothing intercepted, such as one of the program's own."""
    # Without the DSL there are no traces, and these have no values.
    return isinstance(module.ir.Context.current, module.ir.Context) and (
        module.ir.InsertionPoint.current is not None
    )


def _is_the_dsls_own(arguments: Sequence[Any]) -> bool:
    """Whether it is the empty kernel that ``HardwareInfo`` compiles to count clusters."""
    owner = type(getattr(arguments[0], "__self__", None)) if arguments else None
    return (
        owner is not None
        and f"{owner.__module__}.{owner.__qualname__}" == "cutlass.utils.hardware_info.HardwareInfo"
    )
