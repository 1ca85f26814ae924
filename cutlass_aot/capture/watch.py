"""Watch what a program compiles: operators, declared kernels, and whatever else ``cute.compile`` is given.

The DSL and the operators package have no hook for it: while a watch is on, it stands before a function of
each. It imports neither of them; where the program does later, it learns of it.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from cutlass_aot.capture.found import Found, Sighting
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.generators.cutlass_operators import records
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.runtime import declared
from cutlass_aot.runtime.asked import Parameters
from cutlass_aot.runtime.declared import DeclaredKernel
from cutlass_aot.schema.kernel import Kernel

_OPERATORS = "cutlass.operators.base"
_DSL = "cutlass.cute"
_JIT = "cutlass_aot.jit"


class Watch:
    """Writes down what this process compiles between :meth:`begin` and :meth:`end`.

    Args:
        changed: called when something new was found.
    """

    def __init__(self, changed: Callable[[Found], None] = lambda found: None) -> None:
        self.found = Found()
        self._changed = changed
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

    def _watch_operators(self, module: ModuleType) -> None:
        self._replace(module.Operator, "compile", self._operator)

    def _watch_dsl(self, module: ModuleType) -> None:
        self._replace(type(module.compile), "__call__", self._compile)

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
                compiled_for = artifact.compiled_for
            finally:
                # Also what does not compile here, for lack of a GPU say.
                if outermost:
                    self._see_operator(operator, compiled_for)
        return artifact

    def _see_operator(self, operator: Any, compiled_for: Any) -> None:
        target = "" if compiled_for is None else f"sm_{str(compiled_for).removeprefix('sm_')}"
        name = str(operator.metadata.operator_name)
        try:
            reason = records.refusal(operator)
            if not reason:
                problem, traits = records.problem_of(operator), records.design(operator)
                self._see(Sighting(records.GENERATOR, problem, tuple(sorted(traits.items())), target))
        except CutlassAotError as error:
            reason = str(error)
        if reason:
            self._see_other(f"{name} on {target or 'the GPU'}", reason)

    def _record(self, original: Callable[..., Any], kernel: Kernel, *more: Any, **named: Any) -> Any:
        """Policy jit compiles a kernel of a generator."""
        with self._outermost() as outermost:
            compiled = original(kernel, *more, **named)
        if outermost and kernel.generator not in declared.declared_kernels():
            # Policy jit compiles plain GEMMs.
            dtypes = tuple(operand.dtype for operand in kernel.operands)
            problem = Problem(kernel.operation, dtypes, kernel.layouts, kernel.accumulator)
            self._see(Sighting(kernel.generator, problem, kernel.design, kernel.target))
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
            self._see_other(
                _place(arguments[0]), "compiled by cute.compile: declare it with cutlass_aot.kernel"
            )
        return compiled

    # -- what is seen -----------------------------------------------------------------------------------

    def _see_declared(self, kernel: DeclaredKernel, values: Parameters) -> None:
        module = kernel.function.__module__
        if module == "__main__":
            self._see_other(
                kernel.call_text(values),
                "declared in the program itself: move it to a module that a build can import",
            )
            return
        builtin = module.startswith("cutlass_aot.")
        problem = Problem(kernel.name, (), "", "")
        traits = tuple(sorted(values.items()))
        self._see(Sighting(kernel.name, problem, traits, plugin="" if builtin else module))

    def _see(self, sighting: Sighting) -> None:
        if sighting not in self.found.kernels:
            self.found.kernels[sighting] = None
            self._changed(self.found)

    def _see_other(self, name: str, reason: str) -> None:
        if name not in self.found.others:
            self.found.others[name] = reason
            self._changed(self.found)

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
