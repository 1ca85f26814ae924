"""Launch the kernel cached for operands like these; else find one, launch it and cache the choice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutlass_aot.errors import CutlassAotError, KernelNotFound
from cutlass_aot.runtime.launching import native
from cutlass_aot.runtime.launching.call import call, requires_gradient, without_gradients
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.launching.tensors import (
    common_device,
    describe_operand,
    exported,
    exports,
    is_torch,
    linear_as_gemm,
    native_classes,
    to_ffi,
)
from cutlass_aot.runtime.opened.finder import Finder, NativeChoice
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.selection.match import order_for
from cutlass_aot.runtime.selection.query import Computation

MAX_REMEMBERED = 65536
"""Most choices in one dispatch cache; when there are more, all of them are dropped."""


GEMM = Computation("gemm")
"""A GEMM with nothing besides."""


class Dispatcher:
    """Launches the kernels of a bundle: a dispatch cache in native code for each computation, and a finder.

    Args:
        finder: finds a kernel where no cache has one.
        launcher: the bundle's; None if it has none for this machine.
        alignment: addresses affect the match only modulo so many bytes.
    """

    def __init__(self, finder: Finder, launcher: Library | None, alignment: int) -> None:
        self._finder = finder
        self._launcher = launcher
        self._alignment = alignment
        self._caches: dict[Computation, Any] = {}
        # The native functions gemm and linear, by name.
        self._plain: dict[str, Any] = {}
        # Classes whose instances native code takes directly; empty before the first launch on one.
        self._native: frozenset[type] = frozenset()
        # By the computation, element types, devices and layouts.
        self._native_choices: dict[tuple[Any, ...], NativeChoice | None] = {}
        # The framework's function that tells whether gradients are recorded.
        self._gradients: Any = None

    def native_gemm(self, fallback: Callable[..., None]) -> Any:
        """An object that is called like ``fallback``: ``out = a @ b`` on (a, b, out).

        It launches what the dispatch cache has, without running Python code; otherwise it calls
        ``fallback``.
        """
        return self._native_function("gemm", fallback, self._raise)

    def native_linear(self, fallback: Callable[..., None]) -> Any:
        """Like :meth:`native_gemm`: ``out = x @ weight.T`` on (x, weight, out)."""
        return self._native_function(
            "linear",
            fallback,
            lambda error, operands: self._raise(error, linear_as_gemm(*operands)),
        )

    def _native_function(self, name: str, fallback: Callable[..., None], failed: Callable[..., None]) -> Any:
        if self._launcher is None:
            return fallback
        try:
            made = native.with_fallback(self._launcher, fallback, failed)
        except CutlassAotError:
            # The fallback raises this too, but reports wrong operands first.
            return fallback
        self._plain[name] = made
        cache = self._caches.get(GEMM)
        if cache is not None:
            self._assign(self._launcher, name, cache)
        return made

    def _assign(self, launcher: Library, name: str, cache: Any) -> None:
        """Have one of the native functions launch from a dispatch cache."""
        function = cache if name == "gemm" else native.function(launcher, "cutlass_aot_linear")(cache)
        native.assign(launcher, self._plain[name], function)

    def run(
        self,
        computation: Computation,
        operands: Sequence[Any],
        named: Mapping[str, Any],
        stream: Any,
        workspace: Any,
    ) -> None:
        """Launch on operands; see :meth:`cutlass_aot.Bundle.run`."""
        given = in_order(computation, operands, named)
        taken = self._native
        if stream is None and taken and all(type(item) in taken or type(item) is float for item in given):
            cache = self._caches.get(computation)
            if cache is not None and (
                self._fast_path(cache, given, computation) or self._choose_and_launch(computation, given)
            ):
                return
        self._find_and_launch(computation, given, stream, workspace)

    def _fast_path(self, cache: Any, operands: Sequence[Any], computation: Computation) -> bool:
        """Launch what a dispatch cache has for operands that native code takes directly; False if nothing."""
        if self._gradients() and requires_gradient(operands):
            return False
        try:
            return cache(*operands) is None
        except Exception as error:
            # If torch does not export an element type, the path below can still describe it.
            if all(not is_torch(operand) or exports(operand) for operand in operands):
                raise self._failure(error, operands, computation) from error
            return False

    def _choose_and_launch(self, computation: Computation, operands: Sequence[Any]) -> bool:
        """Launch what native code chooses for a problem that is not in a cache; False if it does not choose.

        Native code takes the operands directly.
        """
        choice = self._native_choices.get(_like(computation, operands))
        if choice is None or (self._gradients() and requires_gradient(operands)):
            return False
        number: int = choice.function(*operands)
        kernel = choice.kernels[number] if number >= 0 else None
        if kernel is None or kernel.workspace_bytes:
            return False
        kernel.launch(*operands)
        self._remember(kernel, operands, computation, choice.ordinal)
        return True

    def _find_and_launch(
        self, computation: Computation, operands: Sequence[Any], stream: Any, workspace: Any
    ) -> None:
        """Serve a problem that is not in a cache, or operands that the fast path does not take."""
        operands = without_gradients(_names(computation, len(operands)), operands)
        descriptions = tuple(describe_operand(operand) for operand in operands)
        remembered = computation.reading(operands)
        cache = self._caches.get(remembered)
        if cache is not None:
            try:
                if call(cache, operands, common_device(descriptions), stream) is None:
                    return
            except Exception as error:
                raise self._failure(error, operands, computation) from error
        prepared = self._finder.prepare(computation, descriptions)
        try:
            kernel = self._finder.best(prepared)
        except KernelNotFound as error:
            from cutlass_aot.runtime.policy import on_miss

            on_miss(error, prepared.query, operands, stream, workspace)
            return
        order = order_for(kernel.group, prepared.query)
        given = [operands[index] for index in order]
        kernel.launch_on(prepared.ordinal, given, stream, workspace)
        # The cache can only launch kernels without a workspace, with operands in the order of the call.
        if not kernel.workspace_bytes and order == tuple(range(len(operands))):
            self._remember(kernel, operands, remembered, prepared.ordinal)
            if len(operands) == 3 and all(map(exported, operands)):
                like = _like(computation, operands)
                if like not in self._native_choices:
                    self._native_choices[like] = self._finder.native_choice(prepared)

    def _remember(
        self, kernel: KernelHandle, operands: Sequence[Any], computation: Computation, ordinal: int
    ) -> None:
        """Have the dispatch cache launch this kernel for operands like these."""
        launcher = self._launcher
        if launcher is None:
            return
        cache = self._caches.get(computation)
        if cache is None:
            cache = native.function(launcher, "cutlass_aot_dispatch_cache")(self._alignment)
            cache = self._caches.setdefault(computation, cache)
            if computation == GEMM:
                for name in tuple(self._plain):
                    self._assign(launcher, name, cache)
        # Without a stream: the memory is not read, so no stream has to wait.
        seen = (item if exported(item) else to_ffi(item) for item in operands)
        if cache(*seen, kernel.native_function(ordinal)) > MAX_REMEMBERED:
            # Only dropped here: other threads may be calling it.
            self._caches.pop(computation, None)
        if not self._native and any(map(is_torch, operands)):
            self._gradients = sys.modules["torch"].is_grad_enabled
            self._native = native_classes()

    def _raise(self, error: BaseException, operands: Sequence[Any]) -> None:
        """Raise what the caller of a plain GEMM is to see of an error of native code."""
        if not isinstance(error, Exception):
            # A KeyboardInterrupt, say, while native code took the operands.
            raise error
        raise self._failure(error, operands, GEMM) from error

    def _failure(
        self, error: Exception, operands: Sequence[Any], computation: Computation
    ) -> CutlassAotError:
        try:
            prepared = self._finder.prepare(computation, operands)
            kernel = self._finder.best(prepared)
            order = order_for(kernel.group, prepared.query)
            return kernel.failure(error, [operands[index] for index in order])
        except CutlassAotError as found:
            return found


def in_order(computation: Computation, operands: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The operands of a call, those given by name last, in order of their names."""
    return (*operands, *(named[name] for name in computation.names)) if named else tuple(operands)


def _like(computation: Computation, operands: Sequence[Any]) -> tuple[Any, ...]:
    """What decides where operands are computed and by which group, as far as a glance tells."""
    return (computation, *map(_glance, operands))


def _glance(operand: Any) -> tuple[Any, ...] | None:
    if type(operand) is float or not operand.dim():
        return None
    return operand.dtype, operand.get_device(), operand.stride(-1) == 1


def _names(computation: Computation, count: int) -> list[str]:
    """Names of a call's operands for messages."""
    unnamed = count - len(computation.names)
    usual = (
        ("a", "b", "out") if computation.operation == "gemm" and unnamed == 3 else map(str, range(unnamed))
    )
    return [*usual, *computation.names]
