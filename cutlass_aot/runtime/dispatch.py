"""Launch by the best kernel there is, and remember the choice for like operands in native code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cutlass_aot.errors import CutlassAotError, KernelNotFound
from cutlass_aot.runtime.launching.call import call, requires_gradient, without_gradients
from cutlass_aot.runtime.launching.tensors import (
    common_device,
    describe_operand,
    exports,
    is_torch,
    native_classes,
    to_ffi,
)
from cutlass_aot.runtime.opened.finder import Search
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.selection import match
from cutlass_aot.runtime.selection.query import Asked

MAX_REMEMBERED = 65536
"""Choices that are remembered of one kind of call; all of them are forgotten when there are more."""


class Choosers:
    """The launch path of a bundle: what remembers choices, and what makes them.

    Args:
        search: finds the bundle's kernels.
        alignment: bytes; addresses matter to what serves an operand modulo this number.

    Attributes:
        native: classes whose instances native code takes as they are; empty before the first launch on one.
        plain: what remembers the choices of plain GEMMs, by accumulator.
    """

    def __init__(self, search: Search, alignment: int) -> None:
        self._search = search
        self._alignment = alignment
        self._by_call: dict[Asked, Any] = {}
        self.plain: dict[str | None, Any] = {}
        self.native: frozenset[type] = frozenset()
        # The framework's word on whether gradients are recorded.
        self._gradients: Any = None

    def run(
        self,
        asked: Asked,
        operands: Sequence[Any],
        named: Mapping[str, Any],
        stream: Any,
        workspace: Any,
    ) -> None:
        """Launch on operands; see :meth:`cutlass_aot.Bundle.run`."""
        given = in_order(asked, operands, named)
        native = self.native
        if stream is None and native and all(type(item) in native or type(item) is float for item in given):
            chooser = self._by_call.get(asked)
            if chooser is not None and self.short(chooser, given, asked):
                return
        self._choose_and_launch(asked, given, stream, workspace)

    def short(self, chooser: Any, operands: Sequence[Any], asked: Asked | str | None) -> bool:
        """Launch what is remembered for operands that native code takes as they are; False if nothing is.

        Args:
            chooser: what remembers.
            operands: tensors of torch, and numbers.
            asked: what for; an accumulator, or None, for a plain GEMM.
        """
        if self._gradients() and requires_gradient(operands):
            return False
        try:
            return chooser(*operands) is None
        except Exception as error:
            # torch may not export one of the element types; the long way knows how to.
            if all(not is_torch(operand) or exports(operand) for operand in operands):
                made = asked if isinstance(asked, Asked) else Asked("gemm", accumulator=asked)
                raise self._failure(error, operands, made) from error
            return False

    def _choose_and_launch(self, asked: Asked, operands: Sequence[Any], stream: Any, workspace: Any) -> None:
        """A problem not seen before, or operands that the short way above does not serve."""
        operands = without_gradients(_names(asked, len(operands)), operands)
        descriptions = tuple(describe_operand(operand) for operand in operands)
        ordinal = common_device(descriptions)
        remembered = asked.reading(operands)
        chooser = self._by_call.get(remembered)
        if chooser is not None:
            try:
                if call(chooser, operands, ordinal, stream) is None:
                    return
            except Exception as error:
                raise self._failure(error, operands, asked) from error
        request, _ = self._search.request(asked, descriptions)
        try:
            kernel = self._search.best(request, ordinal).kernel
        except KernelNotFound as error:
            from cutlass_aot.runtime.policy import on_miss

            on_miss(error, request, operands, stream, workspace)
            return
        order = match.order_for(kernel.group, request)
        kernel.launch(*(operands[index] for index in order), stream=stream, workspace=workspace)
        # Whoever calls a remembered choice has no workspace for it, and gives the operands in their order.
        if not kernel.workspace_bytes and order == tuple(range(len(operands))):
            self._remember(kernel, operands, remembered, ordinal)

    def _remember(self, kernel: KernelHandle, operands: Sequence[Any], asked: Asked, ordinal: int) -> None:
        """Teach the chooser that this kernel is for operands like these."""
        launcher = self._search.group(kernel.group).launcher
        if launcher is None:
            return
        chooser = self._by_call.get(asked)
        if chooser is None:
            chooser = launcher.function("cutlass_aot_chooser")(self._alignment)
            chooser = self._by_call.setdefault(asked, chooser)
            if asked == Asked("gemm", accumulator=asked.accumulator):
                self.plain[asked.accumulator] = chooser
        # They are only looked at: no stream has to wait for another.
        seen = (item if is_torch(item) and exports(item) else to_ffi(item) for item in operands)
        if chooser(*seen, kernel.native_function(ordinal)) > MAX_REMEMBERED:
            # Others may be calling it: it goes when the last of them is done.
            self._by_call.pop(asked, None)
            if self.plain.get(asked.accumulator) is chooser:
                del self.plain[asked.accumulator]
        if not self.native and any(map(is_torch, operands)):
            self._gradients = sys.modules["torch"].is_grad_enabled
            self.native = native_classes()

    def _failure(self, error: Exception, operands: Sequence[Any], asked: Asked) -> CutlassAotError:
        """Our error for one that a remembered choice raised."""
        try:
            request, ordinal = self._search.request(asked, operands)
            kernel = self._search.best(request, ordinal).kernel
            order = match.order_for(kernel.group, request)
            return kernel.failure(error, [operands[index] for index in order])
        except CutlassAotError as found:
            return found


def in_order(asked: Asked, operands: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The operands of a call, those given by name last, in order of their names."""
    return (*operands, *(named[name] for name in asked.names)) if named else tuple(operands)


def _names(asked: Asked, count: int) -> list[str]:
    """Names of a call's operands for messages."""
    unnamed = count - len(asked.names)
    usual = ("a", "b", "out") if asked.operation == "gemm" and unnamed == 3 else map(str, range(unnamed))
    return [*usual, *asked.names]
