"""Epilogues of block-scaled and grouped GEMMs of the CUTLASS Operator API: compilation, in a worker.

Their kernel classes take a function of elements, which can read numbers of the call alone. Two things stand
in its way, and are gone round here: it is given the sums already rounded to the output's element type, and
nothing hands its numbers to the GPU. The sums are kept in f32, and the numbers travel with the parameters of
the tile scheduler.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values

from cutlass_aot.generators import dsl
from cutlass_aot.generators.cutlass_operators.epilogue_records import epilogue_of
from cutlass_aot.generators.protocol import CompiledFunction
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, evaluate
from cutlass_aot.schema.kernels.kernel import Kernel

_AS_TYPE = cute.TensorSSA.to


def compile_kernel(
    kernel: Kernel, function: Any, arguments: Sequence[Any], numbers: Sequence[Any], implementation: Any
) -> CompiledFunction:
    """Compile a kernel with its epilogue, if it has one.

    ``function`` takes ``arguments``, an :class:`Elementwise` or None, the epilogue's ``numbers`` and the
    stream. ``implementation`` is the package's kernel.
    """
    if not kernel.epilogue:
        return dsl.compile_for(kernel.target, function, *arguments, None, dsl.environment_stream())
    epilogue = Elementwise(kernel, implementation)
    with epilogue.sums_in_f32():
        return dsl.compile_for(
            kernel.target, function, *arguments, epilogue, *numbers, dsl.environment_stream()
        )


class Elementwise:
    """A formula as the package's kernels call it: a function of sums in f32.

    Attributes:
        implementation: the package's kernel, which takes it.
    """

    def __init__(self, kernel: Kernel, implementation: Any) -> None:
        epilogue = epilogue_of(kernel)
        (self._statement,) = epilogue.statements
        self._names = [operand.name for operand in epilogue.operands]
        (out,) = (operand for operand in kernel.operands if operand.name == "out")
        self._out = dsl.dsl_dtype(out.dtype)
        self._given: Sequence[Any] = ()
        self._in_kernel: Sequence[Any] | None = None
        # The package's object is one for all problems; its grid comes with the parameters of the scheduler.
        self.implementation = copy.copy(implementation)
        self.implementation._compute_grid = self._compute_grid
        self._package_grid = implementation._compute_grid

    def take(self, numbers: Sequence[Any]) -> None:
        """Take the numbers of the call, in the order of their names, on the host."""
        self._given, self._in_kernel = numbers, None

    def __call__(self, sums: Any) -> Any:
        """The output's elements for some sums."""
        numbers = self._in_kernel or ()
        values = {
            name: cute.full_like(sums, number) for name, number in zip(self._names, numbers, strict=True)
        }
        values[ACCUMULATOR] = sums
        found = evaluate(
            self._statement.expression,
            values,
            dsl.EPILOGUE_FUNCTIONS,
            lambda number: cute.full_like(sums, number),
        )
        return _AS_TYPE(found, self._out)

    def arrived(self, numbers: Sequence[Any]) -> None:
        """Keep the numbers as the kernel has them at its beginning, where all of it can use them."""
        if self._in_kernel is None:
            self._in_kernel = numbers

    def _compute_grid(self, *arguments: Any) -> tuple[Any, Any]:
        parameters, grid = self._package_grid(*arguments)
        return _Parameters(parameters, self._given, self) if self._given else parameters, grid

    @contextmanager
    def sums_in_f32(self) -> Iterator[None]:
        """In this context, sums of f32 are not rounded to the output's element type."""

        def to(value: Any, dtype: Any, *others: Any, **named: Any) -> Any:
            if dtype is self._out and value.dtype is cutlass.Float32:
                return value
            return _AS_TYPE(value, dtype, *others, **named)

        cute.TensorSSA.to = to
        try:
            yield
        finally:
            cute.TensorSSA.to = _AS_TYPE


class _Parameters:
    """Parameters of a tile scheduler, and the numbers of an epilogue on their way into the kernel."""

    def __init__(self, parameters: Any, numbers: Sequence[Any], epilogue: Elementwise) -> None:
        self._parameters = parameters
        self._numbers = numbers
        self._epilogue = epilogue

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the parameters: the DSL checks it against the kernel's annotation."""
        return type(self._parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameters, name)

    def __extract_mlir_values__(self) -> list[Any]:
        numbers = (value for number in self._numbers for value in extract_mlir_values(number))
        return [*extract_mlir_values(self._parameters), *numbers]

    def __new_from_mlir_values__(self, values: Sequence[Any]) -> _Parameters:
        first = len(values) - len(self._numbers)
        numbers = [
            new_from_mlir_values(number, [value])
            for number, value in zip(self._numbers, values[first:], strict=True)
        ]
        self._epilogue.arrived(numbers)
        return _Parameters(new_from_mlir_values(self._parameters, values[:first]), numbers, self._epilogue)
