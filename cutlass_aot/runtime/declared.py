"""Kernels of one's own: the decorator that declares one, and the prebuilt function that a call of it gives.

A declared kernel is to a function that compiles once and remembers what a bundle is to the compiler: the
build calls the function (:mod:`cutlass_aot.generators.declared`), a program that launches does not.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import FunctionType
from typing import Any

from cutlass_aot.errors import CutlassAotError, GeneratorError, KernelNotFound, OperandError
from cutlass_aot.runtime import device, policy
from cutlass_aot.runtime.bundle import Bundle, open_bundle, opened_bundles
from cutlass_aot.runtime.compatibility import runnable_targets
from cutlass_aot.runtime.handle import KernelHandle, Launch
from cutlass_aot.runtime.installed import installed_bundles
from cutlass_aot.runtime.operands import common_device, describe_operand, is_torch
from cutlass_aot.schema.dtypes import DTYPES
from cutlass_aot.schema.kernel import DesignValue
from cutlass_aot.schema.targets import KNOWN_TARGETS

MAX_COMBINATIONS = 4096
"""Most values of all parameters together."""

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_declared: dict[str, DeclaredKernel] = {}
_installed: dict[Path, Bundle | None] = {}


def kernel(
    name: str,
    *,
    params: Mapping[str, Sequence[DesignValue]] | None = None,
    targets: Sequence[str] | None = None,
    modules: Sequence[str] = (),
    version: str = "1",
    accumulator: str = "f32",
) -> Callable[[Callable[..., Any]], DeclaredKernel]:
    """Declare a kernel of one's own: decorates the function that says how to compile it.

    The function takes the parameters and returns the ``@cute.jit`` callable and its operands
    (:class:`cutlass_aot.Operand`) in the order of the call, and, where the callable takes more, values to
    compile in: ``(callable, operands)`` or ``(callable, operands, values)``. The callable takes the operands,
    then the values, then the stream. None instead says that there is no kernel for these parameters. The
    function imports the DSL, and modules that do, in its body: what declares a kernel is imported where there
    is no DSL.

    Args:
        name: of the kernel, which is also the name of its generator and of its operation.
        params: every parameter of the function with the values that a build may ask for. All of them change
            what is compiled, nothing else may.
        targets: GPU code targets it can be built for; every known one if left out.
        modules: further modules whose source decides the code, above all the one that the body imports.
        version: to be raised when equal parameters are to give other code although no module changed.
        accumulator: element type it computes in; stands in the record.

    Raises:
        GeneratorError: if the declaration is wrong, or the name is taken.
    """

    def declare(function: Callable[..., Any]) -> DeclaredKernel:
        made = DeclaredKernel(
            function,
            name=name,
            params={key: tuple(values) for key, values in (params or {}).items()},
            targets=KNOWN_TARGETS if targets is None else tuple(targets),
            modules=tuple(modules),
            version=version,
            accumulator=accumulator,
        )
        known = _declared.get(name)
        if known is not None and known.location != made.location:
            raise GeneratorError(
                f"kernel name {name!r} is taken by {known.location}; give {made.location} another one"
            )
        _declared[name] = made
        return made

    return declare


def declared_kernels() -> Mapping[str, DeclaredKernel]:
    """Every kernel declared by a module that was imported, by name."""
    return dict(_declared)


class DeclaredKernel:
    """A kernel of one's own; made by :func:`cutlass_aot.kernel`. Calling it gives the prebuilt function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        params: Mapping[str, tuple[DesignValue, ...]],
        targets: tuple[str, ...],
        modules: tuple[str, ...],
        version: str,
        accumulator: str,
    ) -> None:
        self.name = name
        self.params = params
        self.targets = targets
        self.modules = modules
        self.version = version
        self.accumulator = accumulator
        self.function = function
        self.__doc__ = function.__doc__
        self._functions: dict[tuple[Any, ...], PrebuiltFunction] = {}
        self._check()

    @property
    def location(self) -> str:
        """Where it stands, ``module:name``."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def __repr__(self) -> str:
        return f"<DeclaredKernel {self.name} of {self.location}>"

    def __call__(self, *positional: Any, **named: Any) -> PrebuiltFunction:
        """The prebuilt function for these parameters, out of the bundles that are open or installed.

        What a call gave is remembered: the same parameters give the same function.

        Args:
            positional: values of the parameters, as the decorated function takes them.
            named: likewise.

        Raises:
            TypeError: if these are not the parameters.
            KernelNotFound: under policy ``required`` and ``warn``, if no bundle that is open or installed has
                a kernel for them, for whatever GPU.
            CutlassAotError: if an installed bundle cannot be read.
        """
        bound = inspect.signature(self.function).bind(*positional, **named).arguments
        values = {
            key: tuple(value) if isinstance(value, list) else _checked(self.name, key, value)
            for key, value in bound.items()
        }
        # True and 1 are equal, and two values.
        key = tuple((type(value), value) for value in values.values())
        found = self._functions.get(key)
        if found is None:
            found = self._functions.setdefault(key, PrebuiltFunction(self, values))
        found.require()
        return found

    def combinations(self) -> Iterator[dict[str, DesignValue]]:
        """Every combination of the parameters' declared values."""
        for values in product(*self.params.values()):
            yield dict(zip(self.params, values, strict=True))

    def call_text(self, values: Mapping[str, DesignValue]) -> str:
        """A call with these parameters, in words for messages: ``swiglu_fp8(n=4096)``."""
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"

    def _check(self) -> None:
        """Refuse a declaration that a build could not repeat from its record alone."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name == "gemm":
            raise self._refusal(
                f"the name {self.name!r}: expected lower-case letters, digits and underscores, and not `gemm`"
            )
        function = self.function
        if not isinstance(function, FunctionType) or not function.__qualname__.isidentifier():
            raise self._refusal(
                "expected a function at the top level of a module: a build imports it from there by its name"
            )
        if function.__closure__:
            cells = ", ".join(function.__code__.co_freevars)
            raise self._refusal(f"it takes {cells} from a closure: declare them under `params`")
        parameters = inspect.signature(function).parameters.values()
        for parameter in parameters:
            if parameter.default is not parameter.empty:
                raise self._refusal(
                    f"`{parameter.name}` has a default value, which no record would have: list its values "
                    "under `params` and leave out the default"
                )
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise self._refusal(f"`*{parameter.name}`: expected parameters with names")
        if [parameter.name for parameter in parameters] != list(self.params):
            raise self._refusal(
                f"it takes ({', '.join(parameter.name for parameter in parameters)}), `params` declares "
                f"({', '.join(self.params)}): expected the same names in the same order"
            )
        count = 1
        for key, values in self.params.items():
            for value in values:
                _checked(self.name, key, value)
            typed = {(type(value), value) for value in values}
            if not values or len(typed) != len(values):
                raise self._refusal(f"params[{key!r}]: expected a list of values, each once")
            count *= len(values)
        if count > MAX_COMBINATIONS:
            raise self._refusal(f"{count} combinations of parameters; expected at most {MAX_COMBINATIONS}")
        for target in self.targets:
            if target not in KNOWN_TARGETS:
                raise self._refusal(f"unknown target {target!r}: expected some of {', '.join(KNOWN_TARGETS)}")
        if not self.targets:
            raise self._refusal(f"no targets: expected some of {', '.join(KNOWN_TARGETS)}")
        if self.accumulator not in DTYPES:
            raise self._refusal(
                f"unknown accumulator {self.accumulator!r}: expected one of {', '.join(DTYPES)}"
            )

    def _refusal(self, problem: str) -> GeneratorError:
        return GeneratorError(f"kernel {self.name!r} ({self.location}): {problem}")


class PrebuiltFunction:
    """A declared kernel with its parameters; launches it as a compiled function would be called.

    It looks for its kernel at the first call on a GPU, and keeps it for that GPU.
    """

    def __init__(self, declared: DeclaredKernel, values: Mapping[str, DesignValue]) -> None:
        self.declared = declared
        self.values = dict(values)
        # A prebuilt kernel's launch, or what the policy jit made, by GPU.
        self._launches: dict[int, Launch] = {}
        self._names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<PrebuiltFunction {self.declared.call_text(self.values)}>"

    def __call__(self, *operands: Any, stream: Any = None, workspace: Any = None, **named: Any) -> None:
        """Launch it on tensors of one GPU, and numbers where the kernel takes some.

        Args:
            operands: in the order of the declaration.
            stream: see :attr:`cutlass_aot.KernelHandle.launch`.
            workspace: likewise.
            named: operands by their names, those that are not given in order.

        Raises:
            KernelNotFound: if no bundle has the kernel for the operands' GPU, unless the policy is ``jit``.
            OperandError: if the operands are on no GPU, or the kernel does not support them.
            CutlassAotError: see :attr:`cutlass_aot.KernelHandle.launch`.
        """
        ordinal = _ordinal_of((*operands, *named.values()))
        launch = self._launches.get(ordinal)
        if launch is None:
            launch = self._launches.setdefault(ordinal, self._find(ordinal))
        if named:
            operands = self._ordered(operands, named)
        launch(*operands, stream=stream, workspace=workspace)

    def kernels(self) -> list[KernelHandle]:
        """The kernels for these parameters, of every target, in the bundles that are open or installed.

        Raises:
            CutlassAotError: if an installed bundle cannot be read.
        """
        return [handle for bundle in _bundles() for handle in self._of_bundle(bundle)]

    def require(self) -> None:
        """Refuse parameters that no bundle has a kernel for, unless the policy is to compile one.

        Raises:
            KernelNotFound: then.
        """
        if not self._launches and policy.get() != "jit" and not self.kernels():
            raise policy.counted(self._missing("any GPU"), self.declared.call_text(self.values))

    def _find(self, ordinal: int) -> Launch:
        capability = device.compute_capability(ordinal)
        handles = self.kernels()
        for target in runnable_targets(tuple({handle.target for handle in handles}), capability):
            handle = next(handle for handle in handles if handle.target == target)
            self._names = tuple(operand.name for operand in handle.group.operands)
            return handle.launch
        error = self._missing(f"GPU {ordinal}, compute capability {capability[0]}.{capability[1]}")
        launch: Launch
        launch, self._names = policy.on_declared_miss(error, self.declared, self.values, ordinal)
        return launch

    def _of_bundle(self, bundle: Bundle) -> list[KernelHandle]:
        # No filters of a listing: their values are patterns, in which 4096 is also "4096".
        return [
            handle for handle in bundle.of_operation(self.declared.name) if _same(handle.design, self.values)
        ]

    def _missing(self, where: str) -> KernelNotFound:
        bundles = [f"{bundle.name} {bundle.version}" for bundle in _bundles()]
        return KernelNotFound(
            f"no kernel {self.declared.call_text(self.values)} for {where} in the bundles that are open or "
            f"installed ({', '.join(bundles) or 'none'}): open one that has it with cutlass_aot.open, or "
            "choose policy jit"
        )

    def _ordered(self, operands: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        rest = self._names[len(operands) :]
        if set(rest) != set(named):
            raise OperandError(
                f"{self.declared.name}: expected operands {', '.join(self._names)}, got {len(operands)} in "
                f"order and {', '.join(named)} by name"
            )
        return [*operands, *(named[name] for name in rest)]


def _bundles() -> Iterator[Bundle]:
    """Bundles that are open, the latest first, then those installed that are not open already."""
    seen = set()
    for bundle in opened_bundles():
        seen.add(bundle.path.absolute())
        yield bundle
    for found in installed_bundles():
        if found.path is None or found.path.absolute() in seen:
            continue
        if found.path not in _installed:
            _installed[found.path] = open_bundle(found.path)
        bundle_or_none = _installed[found.path]
        if bundle_or_none is not None:
            yield bundle_or_none


def _same(design: Mapping[str, DesignValue], values: Mapping[str, DesignValue]) -> bool:
    """Whether a design is these parameters; true and 1 are two values."""
    return design.keys() == values.keys() and all(
        design[key] == value and type(design[key]) is type(value) for key, value in values.items()
    )


def _ordinal_of(operands: Sequence[Any]) -> int:
    for operand in operands:
        if is_torch(operand):
            if operand.is_cuda:
                ordinal: int = operand.get_device()
                return ordinal
        elif not isinstance(operand, (int, float)):
            ordinal = common_device([describe_operand(operand)])
            if ordinal >= 0:
                return ordinal
    raise OperandError("there is no operand on a GPU to launch on")


def _checked(name: str, key: str, value: Any) -> DesignValue:
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return value
    if isinstance(value, bool | int | str) and value != "":
        return value
    raise GeneratorError(
        f"kernel {name!r}: parameter {key} = {value!r}: expected text, a whole number, true or false, or a "
        "tuple of whole numbers; pass other numbers as operands"
    )


__all__ = ["CutlassAotError", "DeclaredKernel", "PrebuiltFunction", "declared_kernels", "kernel"]
