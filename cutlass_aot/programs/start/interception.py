"""Stand before ``cute.compile``: whatever a program compiles by it goes through one function first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from cutlass_aot.programs.start.after_import import AfterImport

Compile = Callable[..., Any]
"""The compilation that would have been, with the same arguments: ``compile(*arguments, **keywords)``."""

Answer = Callable[[Any, Sequence[Any], Mapping[str, Any], Compile], Any]
"""Called with the compiler (``cute.compile``, or ``cute.compile[...]``), its arguments and keywords, and the
compilation."""


class Interception:
    """Between :meth:`begin` and :meth:`end`, calls of ``cute.compile`` go to a function instead.

    Calls from within such a call, which are part of the compilation, and those by which the DSL's
    ``HardwareInfo`` asks the driver, go to the compiler as ever. The DSL is not imported for it.

    Args:
        answer: called in place of the compiler.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._inside = threading.local()
        self._hook = AfterImport({"cutlass.cute": self._stand_before})
        self._undo: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Stand before the compiler, as soon as it is there."""
        self._hook.begin()

    def end(self) -> None:
        """Leave everything as it was."""
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
    """Whether it is the empty kernel by which ``HardwareInfo`` has the driver count clusters."""
    owner = type(getattr(arguments[0], "__self__", None)) if arguments else None
    return (
        owner is not None
        and f"{owner.__module__}.{owner.__qualname__}" == "cutlass.utils.hardware_info.HardwareInfo"
    )
