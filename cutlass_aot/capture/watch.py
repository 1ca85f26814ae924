"""Watch what a program compiles: operators, declared kernels, and whatever else ``cute.compile`` is given.

The DSL and the operators package have no hook for it: while a watch is on, it stands before a function of
each. It imports neither of them; where the program does later, it learns of it.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from cutlass_aot.capture import sightings
from cutlass_aot.capture.found import Found, Sighting
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.generators.protocol import Generator
from cutlass_aot.runtime import declared
from cutlass_aot.runtime.asked import Parameters
from cutlass_aot.runtime.declared import DeclaredKernel
from cutlass_aot.runtime.process_lock import ProcessLock
from cutlass_aot.schema.kernel import Kernel

_OPERATORS = "cutlass.operators.base"
_DSL = "cutlass.cute"
_JIT = "cutlass_aot.jit"


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """What goes wrong in watching is told in one line, and never raised into the program."""

    @functools.wraps(method)
    def harmless(self: Watch, *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception as error:
            self._tell(error)

    return harmless


class Watch:
    """Writes down what this process compiles between :meth:`begin` and :meth:`end`.

    Args:
        changed: called when something new was found, in one thread at a time.
    """

    def __init__(self, changed: Callable[[Found], None] = lambda found: None) -> None:
        self.found = Found()
        self._changed = changed
        self._lock = ProcessLock()
        self._told: set[str] = set()
        self._inside = threading.local()
        self._undo: list[Callable[[], None]] = []
        self._finder = _AfterImport(
            {_OPERATORS: self._watch_operators, _DSL: self._watch_dsl, _JIT: self._watch_jit}
        )

    def begin(self) -> None:
        """Begin to watch."""
        self._replace(DeclaredKernel, "__call__", self._asked)
        sys.meta_path.insert(0, self._finder)
        for name, seen in self._finder.wanted.items():
            module = sys.modules.get(name)
            if module is not None:
                seen(module)

    def end(self) -> None:
        """Put everything back."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        while self._undo:
            self._undo.pop()()

    @_harmless
    def _watch_operators(self, module: ModuleType) -> None:
        self._replace(module.Operator, "compile", self._operator)

    @_harmless
    def _watch_dsl(self, module: ModuleType) -> None:
        self._replace(type(module.compile), "__call__", self._compile)

    @_harmless
    def _watch_jit(self, module: ModuleType) -> None:
        self._replace(module, "compile_record", self._record)

    def _replace(self, owner: Any, name: str, watched: Callable[..., Any]) -> None:
        original = owner.__dict__[name]

        def stand_in(*arguments: Any, **named: Any) -> Any:
            return watched(original, *arguments, **named)

        setattr(owner, name, stand_in)
        self._undo.append(lambda: setattr(owner, name, original))

    # -- what stands before each function ---------------------------------------------------------------

    def _operator(
        self, original: Callable[..., Any], operator: Any, args: Any, target_sm: Any = None, **named: Any
    ) -> Any:
        compiled_for = target_sm
        with self._outermost() as outermost:
            try:
                artifact = original(operator, args, target_sm, **named)
                compiled_for = getattr(artifact, "compiled_for", target_sm)
            finally:
                # Also what does not compile here, for lack of a GPU say.
                if outermost:
                    self._see_operator(operator, compiled_for)
        return artifact

    def _record(
        self, original: Callable[..., Any], kernel: Kernel, generator: Any, *more: Any, **named: Any
    ) -> Any:
        """Policy jit compiles a kernel of a generator."""
        with self._outermost() as outermost:
            compiled = original(kernel, generator, *more, **named)
        if outermost:
            self._see_record(kernel, generator)
        return compiled

    def _asked(self, original: Callable[..., Any], kernel: DeclaredKernel, *more: Any, **named: Any) -> Any:
        """The program asks for the function of a declared kernel."""
        found = original(kernel, *more, **named)
        self._see_declared(kernel, found.values)
        return found

    def _compile(self, original: Callable[..., Any], compiler: Any, *arguments: Any, **named: Any) -> Any:
        with self._outermost() as outermost:
            compiled = original(compiler, *arguments, **named)
        if outermost and arguments:
            self._see_function(arguments[0])
        return compiled

    # -- what is seen -----------------------------------------------------------------------------------

    @_harmless
    def _see_operator(self, operator: Any, compiled_for: Any) -> None:
        where = sightings.target_text(compiled_for) or "the GPU"
        name = f"{operator.metadata.operator_name} on {where}"
        self._see(name, lambda: sightings.of_operator(operator, compiled_for))

    @_harmless
    def _see_record(self, kernel: Kernel, generator: Generator) -> None:
        own = declared.declared_kernels().get(kernel.generator)
        if own is not None:
            self._see_declared(own, dict(kernel.parameters), kernel.target)
            return
        # Whoever compiles by policy jit has imported it.
        from cutlass_aot.generators.registry import plugin_of

        self._see(kernel.name, lambda: sightings.of_record(kernel, plugin_of(generator)))

    @_harmless
    def _see_declared(self, kernel: DeclaredKernel, values: Parameters, target: str = "") -> None:
        self._see(kernel.call_text(values), lambda: sightings.of_declared(kernel, values, target))

    @_harmless
    def _see_function(self, function: Any) -> None:
        reason = "compiled by cute.compile: declare it with cutlass_aot.kernel"
        self._keep(self.found.others, _place(function), reason)

    def _see(self, name: str, look: Callable[[], Sighting]) -> None:
        try:
            sighting = look()
        except CutlassAotError as error:
            self._keep(self.found.others, name, str(error))
        else:
            self._keep(self.found.kernels, sighting, None)

    def _keep(self, found: dict[Any, Any], what: Any, value: Any) -> None:
        with self._lock:
            if what not in found:
                found[what] = value
                self._changed(self.found)

    def _tell(self, error: Exception) -> None:
        """One line about what went wrong, the first time that it does."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        # Standard error may be closed, and nothing here is worth the program.
        with suppress(Exception):
            if text not in self._told:
                self._told.add(text)
                print(f"cutlass-aot capture: not all is written down: {text}", file=sys.stderr)

    @contextmanager
    def _outermost(self) -> Iterator[bool]:
        """Whether this is no part of another compilation that is watched, in this thread."""
        depth = getattr(self._inside, "depth", 0)
        self._inside.depth = depth + 1
        try:
            yield depth == 0
        finally:
            self._inside.depth = depth


def _place(function: Any) -> str:
    """A function by its name, its file and its line."""
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__"):
        function = type(function)
    name = getattr(function, "__qualname__", repr(function))
    try:
        file, (_, line) = inspect.getsourcefile(function), inspect.getsourcelines(function)
    except (OSError, TypeError):
        return f"{function.__module__}.{name}"
    return f"{name} ({Path(file or '?').name}, line {line})"


class _AfterImport:
    """A finder that finds nothing itself: it has functions called with modules that were imported."""

    def __init__(self, wanted: dict[str, Callable[[ModuleType], None]]) -> None:
        self.wanted = wanted
        self._finding: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.wanted or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.wanted[name])  # type: ignore[assignment]
        return spec


class _Loader:
    """A loader that calls a function with the module it has executed; all else is the other loader's."""

    def __init__(self, loader: Any, seen: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._seen = seen

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._seen(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
