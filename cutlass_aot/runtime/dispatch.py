"""Launch the kernel that native code remembers or chooses for operands; else find one, to be remembered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cutlass_aot.errors import CutlassAotError, KernelNotFound, ParameterError
from cutlass_aot.runtime.launching import native
from cutlass_aot.runtime.launching.call import call, requires_gradient, without_gradients
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.launching.native import DispatchCache, NativeAttribute
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
from cutlass_aot.runtime.opened.finder import Finder, NamedOperands, PreparedCall
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.opened.native_choice import NativeChoice
from cutlass_aot.runtime.selection.match import order_for
from cutlass_aot.runtime.selection.query import Computation
from cutlass_aot.schema.kernels.accumulation import EXACT, RequestedAccumulation

if TYPE_CHECKING:
    from typing import Protocol

    class Gemm(Protocol):
        """How :attr:`cutlass_aot.Bundle.gemm` is called."""

        def __call__(
            self,
            a: Any,
            b: Any,
            out: Any,
            *,
            accumulator: str | None = None,
            accumulation: RequestedAccumulation = EXACT,
            epilogue: str | None = None,
            stream: Any = None,
            workspace: Any = None,
            **named: Any,
        ) -> None:
            """See :attr:`cutlass_aot.Bundle.gemm`."""

    class Linear(Protocol):
        """How :attr:`cutlass_aot.Bundle.linear` is called."""

        def __call__(
            self,
            x: Any,
            weight: Any,
            out: Any,
            *,
            accumulator: str | None = None,
            accumulation: RequestedAccumulation = EXACT,
            stream: Any = None,
            workspace: Any = None,
        ) -> None:
            """See :attr:`cutlass_aot.Bundle.linear`."""


MAX_REMEMBERED = 65536
"""Most choices in one dispatch cache; when there are more, all of them are dropped."""


GEMM = Computation("gemm")
"""A GEMM with nothing besides."""

RUNNING = ("accumulation", "accumulator", "epilogue", "parameters", "stream", "workspace")
"""What :meth:`cutlass_aot.Bundle.run` takes by name besides operands."""

_GEMM_OPTIONS = ("accumulation", "accumulator", "epilogue", "stream", "workspace")
_LINEAR_OPTIONS = ("accumulation", "accumulator", "stream", "workspace")


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
        self._caches: dict[Computation, DispatchCache] = {}
        # Classes whose instances native code takes directly; empty before the first launch on one.
        self._direct: frozenset[type] = frozenset()
        # Of each computation, by element types, devices and layouts.
        self._native_choices: dict[Computation, dict[tuple[Any, ...], NativeChoice | None]] = {}
        # The framework's function that tells whether gradients are recorded.
        self._gradients: Any = None

    @NativeAttribute
    def gemm(self) -> Gemm:
        """Launch a GEMM; see :attr:`cutlass_aot.Bundle.gemm`."""
        made: Gemm = self._native_function(self._gemm, self._raise)
        self._assign(self._caches.get(GEMM), gemm=made)
        return made

    @NativeAttribute
    def linear(self) -> Linear:
        """Launch a linear layer; see :attr:`cutlass_aot.Bundle.linear`."""

        def failed(error: BaseException, operands: Sequence[Any]) -> None:
            self._raise(error, linear_as_gemm(*operands))

        made: Linear = self._native_function(self._linear, failed)
        self._assign(self._caches.get(GEMM), linear=made)
        return made

    def _native_function(self, fallback: Callable[..., None], failed: Callable[..., None]) -> Any:
        """An object that launches what a dispatch cache has, and calls ``fallback`` otherwise."""
        if self._launcher is None:
            return fallback
        try:
            return native.with_fallback(self._launcher, fallback, failed)
        except CutlassAotError:
            # The fallback raises this too, but reports wrong operands first.
            return fallback

    def _assign(
        self, cache: DispatchCache | None, *, gemm: Gemm | None = None, linear: Linear | None = None
    ) -> None:
        """Have objects launch from the dispatch cache of plain GEMMs, if there is one."""
        launcher = self._launcher
        if launcher is None or cache is None:
            return
        if gemm is not None:
            native.assign(launcher, gemm, cache.launch)
        if linear is not None:
            native.assign(launcher, linear, native.function(launcher, "cutlass_aot_linear")(cache.launch))

    def _gemm(
        self,
        /,
        *operands: Any,
        accumulator: str | None = None,
        accumulation: RequestedAccumulation = EXACT,
        epilogue: str | None = None,
        stream: Any = None,
        workspace: Any = None,
        **named: Any,
    ) -> None:
        """Serve a GEMM that native code does not take."""
        if len(operands) != 3:
            operands = _bound("gemm", ("a", "b", "out"), operands, named)
        computation = Computation.of("gemm", epilogue, accumulator, None, named, accumulation)
        self.run(computation, operands, named, _GEMM_OPTIONS, stream, workspace)

    def _linear(
        self,
        /,
        *operands: Any,
        accumulator: str | None = None,
        accumulation: RequestedAccumulation = EXACT,
        stream: Any = None,
        workspace: Any = None,
        **named: Any,
    ) -> None:
        """Serve a linear layer that native code does not take."""
        if named or len(operands) != 3:
            operands = _bound("linear", ("x", "weight", "out"), operands, named)
        if named:
            raise _no_parameter("linear", next(iter(named)), ("x", "weight", "out"), _LINEAR_OPTIONS)
        x, weight, out = operands
        x, weight, out = without_gradients(("x", "weight", "out"), (x, weight, out))
        operands = linear_as_gemm(x, weight, out)
        self._gemm(
            *operands, accumulator=accumulator, accumulation=accumulation, stream=stream, workspace=workspace
        )

    def run(
        self,
        computation: Computation,
        operands: Sequence[Any],
        named: Mapping[str, Any],
        options: Sequence[str],
        stream: Any,
        workspace: Any,
    ) -> None:
        """Launch on operands; see :meth:`cutlass_aot.Bundle.run`, which has ``options`` by name."""
        given = in_order(computation, operands, named)
        direct = self._direct
        if stream is None and direct and all(type(item) in direct or type(item) is float for item in given):
            cache = self._caches.get(computation)
            if cache is not None and self._fast_path(cache, given, computation):
                return
        # What was launched before has no wrong names.
        with NamedOperands(self._finder, computation.operation, named, options):
            self._find_and_launch(computation, given, stream, workspace)

    def _fast_path(self, cache: DispatchCache, operands: Sequence[Any], computation: Computation) -> bool:
        """Launch what native code has or chooses for operands that it takes directly; False if nothing."""
        if self._gradients() and requires_gradient(operands):
            return False
        try:
            return cache.launch(*operands) is None
        except Exception as error:
            # If torch does not export an element type, the path below can still describe it.
            if all(not is_torch(operand) or exports(operand) for operand in operands):
                raise self._failure(error, operands, computation) from error
            return False

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
                if call(cache.launch, operands, common_device(descriptions), stream) is None:
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
        if not kernel.launch_on(prepared.ordinal, given, stream, workspace):
            # Each call on operands without elements comes here.
            return
        # The cache can only launch kernels without a workspace, with operands in the order of the call.
        if not kernel.workspace_bytes and order == tuple(range(len(operands))):
            self._remember(kernel, operands, remembered, prepared)

    def _remember(
        self, kernel: KernelHandle, operands: Sequence[Any], computation: Computation, prepared: PreparedCall
    ) -> None:
        """Have native code launch this kernel for operands like these, and where it chooses it for others."""
        launcher = self._launcher
        if launcher is None:
            return
        cache = self._caches.get(computation) or self._make_cache(launcher, computation)
        launch = kernel.native_function(prepared.ordinal)
        # Without a stream: the memory is not read, so no stream has to wait.
        seen = (item if exported(item) else to_ffi(item) for item in operands)
        if cache.remember(seen, launch) > MAX_REMEMBERED:
            # Only dropped here: other threads may be calling it.
            self._caches.pop(computation, None)
        if not self._direct and any(map(is_torch, operands)):
            self._gradients = sys.modules["torch"].is_grad_enabled
            self._direct = native_classes()
        choice = self._native_choice(cache, computation, prepared)
        if choice is not None:
            choice.learn(kernel.digest, launch)

    def _make_cache(self, launcher: Library, computation: Computation) -> DispatchCache:
        """A new dispatch cache, which asks the native choices that are known."""
        # Before the choices are read, so that one which another thread makes meanwhile is not lost.
        cache = self._caches.setdefault(computation, DispatchCache(launcher, self._alignment))
        for choice in tuple(self._native_choices.setdefault(computation, {}).values()):
            if choice is not None:
                cache.add_selection(choice.launch)
        if computation == GEMM:
            self._assign(cache, gemm=self.gemm, linear=self.linear)
        return cache

    def _native_choice(
        self, cache: DispatchCache, computation: Computation, prepared: PreparedCall
    ) -> NativeChoice | None:
        """What chooses in native code for operands like these, which the cache asks from now on."""
        choices, operands = self._native_choices[computation], prepared.query.operands
        if any(extent < 2 for of in operands for extent in of.shape[-2:]):
            # Such a matrix may be of either layout: native code does not choose for it.
            return None
        # What decides where operands are computed and by which group, as far as a glance tells.
        like = tuple((of.dtype, of.device, of.strides[-1:] == (1,)) for of in operands)
        if like not in choices:
            choices[like] = made = self._finder.native_choice(prepared)
            if made is not None:
                self._caches.get(computation, cache).add_selection(made.launch)
        return choices[like]

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


def _bound(
    function: str, names: Sequence[str], operands: Sequence[Any], named: dict[str, Any]
) -> tuple[Any, ...]:
    """All operands of a call in their order; those that were given by name are taken out of ``named``."""
    missing = [name for name in names[len(operands) :] if name not in named]
    if len(operands) > len(names) or missing:
        options = _LINEAR_OPTIONS if function == "linear" else _GEMM_OPTIONS
        from cutlass_aot.schema.words import did_you_mean

        for name in named:
            if name not in names and did_you_mean(name, (*names, *options)):
                raise _no_parameter(function, name, names, options)
        found = f"no `{missing[0]}`" if missing else f"{len(operands)} in order"
        raise ParameterError(f"{function}: expected operands {', '.join(names)}, got {found}")
    return (*operands, *(named.pop(name) for name in names[len(operands) :]))


def _no_parameter(
    function: str, name: str, operands: Sequence[str], options: Sequence[str]
) -> ParameterError:
    from cutlass_aot.schema.words import did_you_mean

    return ParameterError(
        f"{function} has no parameter or operand `{name}`{did_you_mean(name, (*operands, *options))}: its "
        f"operands are {', '.join(operands)}, and the call takes {', '.join(options)}"
    )


def in_order(computation: Computation, operands: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The operands of a call, those given by name last, in order of their names."""
    return (*operands, *(named[name] for name in computation.names)) if named else tuple(operands)


def _names(computation: Computation, count: int) -> list[str]:
    """Names of a call's operands for messages."""
    unnamed = count - len(computation.names)
    usual = (
        ("a", "b", "out") if computation.operation == "gemm" and unnamed == 3 else map(str, range(unnamed))
    )
    return [*usual, *computation.names]
