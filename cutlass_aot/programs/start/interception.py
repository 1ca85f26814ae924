"""Intercept ``cute.compile``: a program's calls of it go to one function instead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from cutlass_aot.programs.start.after_import import AfterImport

Compile = Callable[..., Any]
"""The original ``cute.compile``, called as ``compile(*arguments, **keywords)``."""

Answer = Callable[[Any, Sequence[Any], Mapping[str, Any], Compile], Any]
"""Called with the compiler (``cute.compile`` or ``cute.compile[...]``), its arguments and keywords, and the
original."""


class Interception:
    """Between :meth:`begin` and :meth:`end`, calls of ``cute.compile`` go to ``answer`` instead.

    Nested calls, which are part of a compilation, and those by which the DSL's ``HardwareInfo`` asks the
    driver, still go to the compiler. The DSL is not imported for it.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._inside = threading.local()
        self._hook = AfterImport({"cutlass.cute": self._stand_before})
        self._undo: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Intercept calls as soon as the compiler is imported."""
        self._hook.begin()

    def end(self) -> None:
        """Restore the compiler."""
        self._hook.end()
        self._undo()

    def _stand_before(self, module: ModuleType) -> None:
        kind = type(module.compile)
        original = kind.__call__

        def call(compiler: Any, *arguments: Any, **keywords: Any) -> Any:
            if getattr(self._inside, "compiling", False) or _is_the_dsls_own(arguments):
                return original(compiler, *arguments, **keywords)
            self._inside.compiling = True
            try:
                return self._answer(
                    compiler, arguments, keywords, lambda *a, **k: original(compiler, *a, **k)
                )
            finally:
                self._inside.compiling = False

        kind.__call__ = call
        self._undo = lambda: setattr(kind, "__call__", original)


def _is_the_dsls_own(arguments: Sequence[Any]) -> bool:
    """Whether it is the empty kernel that ``HardwareInfo`` compiles to count clusters."""
    owner = type(getattr(arguments[0], "__self__", None)) if arguments else None
    return (
        owner is not None
        and f"{owner.__module__}.{owner.__qualname__}" == "cutlass.utils.hardware_info.HardwareInfo"
    )
