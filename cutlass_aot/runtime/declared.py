"""Kernels of one's own: the decorator that declares one, and the prebuilt function that calling it returns.

The build calls the decorated function to compile the kernel (:mod:`cutlass_aot.generators.declared`); a
program that launches the kernel never does.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from types import FunctionType
from typing import TYPE_CHECKING, Any

from cutlass_aot.errors import (
    DeclarationError,
    GeneratorError,
    KernelNotFound,
    MisplacedOperand,
    OperandError,
    ParameterError,
)
from cutlass_aot.runtime import policy
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.bundle_search import BundleSearch
from cutlass_aot.runtime.launching.tensors import common_device, describe_operand, is_torch
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.selection.query import Parameters
from cutlass_aot.schema.kernels.design import DesignValue, is_value
from cutlass_aot.schema.kernels.operands import misplaced
from cutlass_aot.schema.targets import KNOWN_TARGETS, Target, target_meant
from cutlass_aot.schema.words import did_you_mean, few

if TYPE_CHECKING:
    from cutlass_aot.runtime.opened.kernel_handle import Launch

MAX_COMBINATIONS = 4096
"""Most combinations of parameter values."""

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_EXACT = (0, 0)
"""The preference of a target that matches the GPU exactly; none is better."""
# Characters that file names may have: a bundle's file names include the parameters.
_TEXT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_declared: dict[str, DeclaredKernel] = {}


def kernel(
    name: str,
    *,
    params: Mapping[str, Sequence[DesignValue]] | None = None,
    tuning: Mapping[str, Sequence[DesignValue]] | None = None,
    cost: str = "",
    targets: Sequence[str] | None = None,
    available: Callable[[str, Parameters], bool] | None = None,
    modules: Sequence[str] = (),
    distributions: Sequence[str] = (),
    device: bool = False,
    version: str = "1",
) -> Callable[[Callable[..., Any]], DeclaredKernel]:
    """Declare a kernel of one's own; decorates the function that says how to compile it.

    The function takes the parameters and returns ``(callable, operands)`` or ``(callable, operands,
    values)``: the ``@cute.jit`` callable, its operands (:class:`cutlass_aot.Operand`) in the order of the
    call, and values to compile in. The callable takes the operands, then the values, then the stream. If the
    function returns None, there is no kernel for these parameters. It imports the DSL, and modules that need
    the DSL, in its body, because the declaration is also imported where there is no DSL.

    Args:
        name: of the kernel, and also of its generator and its operation.
        params: the parameters that a caller names, which decide what is computed, with the values that a
            build may ask for.
        tuning: the parameters after them, which decide how fast it is and nothing else, with their values. A
            call names none of these: of the kernels that differ in them, one is chosen for each problem. What
            is compiled depends on ``params`` and ``tuning`` and on nothing else.
        cost: formula by which it is chosen where no times were measured, the least first, such as
            ``"ceil(N / threads / sm_count)"``. It is over names of extents, over parameters that are numbers,
            and over ``sm_count``, ``sm_mhz`` and ``memory_bandwidth`` (GB/s) of the GPU, with + - * /,
            ``ceil``, ``exp``, ``log2``, ``maximum`` and ``minimum``.
        targets: GPU code targets it can be built for; all known ones if left out.
        available: whether there is a kernel for a target and for values of all parameters by name, such as a
            design that needs clusters; there is one for all of them if left out.
        modules: further modules whose source the compiled code depends on, above all the one that the body
            imports.
        distributions: installed distributions, such as ``"flash-attn-4"``, all of whose files the compiled
            code depends on.
        device: whether the code depends on numbers of the GPU that the DSL's ``HardwareInfo`` gives. The
            manifest's device profile answers it then, and its numbers become part of the kernel's record.
        version: to be raised when equal parameters should give other code although no module changed.

    Raises:
        DeclarationError: if the declaration is wrong, or the name is taken.
    """
    caller = sys._getframe(1)
    place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    given: object = name
    if not isinstance(given, str):
        advice = '; write @cutlass_aot.kernel("NAME", ...) above the function' if callable(given) else ""
        raise DeclarationError(f"a kernel ({place}): expected its name as text, got {given!r}{advice}")

    def declare(function: Callable[..., Any]) -> DeclaredKernel:
        made = DeclaredKernel(
            function,
            place,
            name=name,
            params={} if params is None else params,
            tuning={} if tuning is None else tuning,
            cost=cost,
            targets=KNOWN_TARGETS if targets is None else targets,
            available=available,
            modules=modules,
            distributions=distributions,
            device=device,
            version=version,
        )
        known = _declared.get(name)
        if known is not None and known.location != made.location:
            raise made.refusal(f"its name is taken by {known.location} ({known.place}): give it another one")
        _declared[name] = made
        return made

    return declare


def declared_kernels() -> Mapping[str, DeclaredKernel]:
    """Every kernel declared by a module that was imported, by name."""
    return dict(_declared)


class DeclaredKernel:
    """A kernel of one's own; made by :func:`cutlass_aot.kernel`. Calling it returns the prebuilt function."""

    def __init__(
        self,
        function: Callable[..., Any],
        place: str,
        *,
        name: str,
        params: Mapping[str, Sequence[DesignValue]],
        tuning: Mapping[str, Sequence[DesignValue]],
        cost: str,
        targets: Sequence[str],
        available: Callable[[str, Parameters], bool] | None,
        modules: Sequence[str],
        distributions: Sequence[str],
        device: bool,
        version: str,
    ) -> None:
        """``place`` is the declaration's file and line, for messages; see :func:`cutlass_aot.kernel`."""
        self.name = name
        self.place = place
        self.params = self._values("params", params)
        self.tuning = self._values("tuning", tuning)
        # On one line: it stands in records, whose texts have no line breaks.
        self.cost = " ".join(cost.split()) if isinstance(cost, str) else cost
        self.targets = self._names("targets", targets)
        self.available = available
        self.modules = self._names("modules", modules)
        self.distributions = self._names("distributions", distributions)
        self.device = device
        self.version = version
        self.function = function
        self.reference_function: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__
        # By parameter values, and also by each form of call that was made with them.
        self._functions: dict[tuple[Any, ...], PrebuiltFunction] = {}
        self._calls: dict[tuple[Any, ...], PrebuiltFunction] = {}
        self._check()

    @property
    def location(self) -> str:
        """Where it is defined, ``module:name``."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def __repr__(self) -> str:
        return f"<DeclaredKernel {self.name} of {self.location}>"

    def __call__(self, *positional: Any, **named: Any) -> PrebuiltFunction:
        """The prebuilt function for these parameters, from the bundles that are open or installed.

        Takes ``params`` as the decorated function does; equal parameters give the same function.

        Raises:
            ParameterError: if these are not the parameters; it is a TypeError too.
            GeneratorError: if a parameter cannot have this value.
            KernelNotFound: under the policies ``required`` and ``warn``, if no bundle that is open or
                installed has a kernel for them on any GPU; names installed bundles that cannot be opened.
        """
        # With types: True == 1, but they are different values.
        called = (positional, *map(type, positional), *((k, type(v), v) for k, v in named.items()))
        try:
            found = self._calls.get(called)
        except TypeError:
            # Unhashable, so not a parameter; refused below.
            found = None
        if found is None:
            bound = self._bound(positional, named)
            values: dict[str, DesignValue] = {}
            for key, value in bound.items():
                if problem := _problem(value):
                    raise GeneratorError(f"kernel {self.name}: parameter {key} = {value!r}: {problem}")
                values[key] = value
            function = tuple((type(value), value) for value in values.values())
            found = self._functions.setdefault(function, PrebuiltFunction(self, values))
            self._calls[called] = found
        found.require()
        return found

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Say what the kernel computes; decorates a function on torch tensors, and returns it.

        It takes the operands in their order, as they are before a launch, and returns those that the kernel
        writes: one, or a tuple in their order. ``cutlass-aot try`` compares the kernel with it.
        """
        self.reference_function = function
        return function

    def combinations(self, params: Parameters | None = None) -> Iterator[dict[str, DesignValue]]:
        """Every combination of the declared values of all parameters; with ``params``, of those of tuning."""
        declared = {**self.params, **self.tuning}
        if params is not None:
            declared |= {key: (value,) for key, value in params.items()}
        for values in product(*declared.values()):
            yield dict(zip(declared, values, strict=True))

    def _signature(self) -> inspect.Signature:
        """How it is called: as the function, without the parameters of tuning."""
        signature = inspect.signature(self.function)
        parameters = signature.parameters.values()
        return signature.replace(parameters=[item for item in parameters if item.name not in self.tuning])

    def _bound(self, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a call by name."""
        try:
            return self._signature().bind(*positional, **named).arguments
        except TypeError as error:
            found = str(error)
        strange = next((name for name in named if name not in self.params), "")
        if strange:
            found = f"there is no parameter `{strange}`"
        hint = did_you_mean(strange, self.params)
        if strange in self.tuning:
            found, hint = f"`{strange}` is a parameter of tuning, which a call does not name", ""
        raise ParameterError(
            f"kernel {self.name}: {found}{hint}: it takes {', '.join(self.params) or 'no parameters'}"
        )

    def call_text(self, values: Parameters) -> str:
        """A call with these parameters, as messages show it: ``swiglu_fp8(n=4096)``."""
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"

    def _check(self) -> None:
        """Refuse a declaration that a build could not repeat from its record alone."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name == "gemm":
            raise self.refusal(
                f"the name {self.name!r}: expected lower-case letters, digits and underscores, and not `gemm`"
            )
        function = self.function
        if not isinstance(function, FunctionType) or not function.__qualname__.isidentifier():
            raise self.refusal(
                "expected a function at the top level of a module: a build imports it from there by its name"
            )
        if function.__closure__:
            cells = ", ".join(function.__code__.co_freevars)
            raise self.refusal(f"it takes {cells} from a closure: declare them under `params`")
        parameters = inspect.signature(function).parameters.values()
        for parameter in parameters:
            if parameter.default is not parameter.empty:
                raise self.refusal(
                    f"`{parameter.name}` has a default value, which no record would have: list its values "
                    "under `params` and leave out the default"
                )
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise self.refusal(f"`*{parameter.name}`: expected parameters with names")
        if [parameter.name for parameter in parameters] != [*self.params, *self.tuning]:
            tuned = f" and `tuning` ({', '.join(self.tuning)})" if self.tuning else ""
            raise self.refusal(
                f"it takes ({', '.join(parameter.name for parameter in parameters)}), `params` declares "
                f"({', '.join(self.params)}){tuned}: expected the same names in the same order"
            )
        if not isinstance(self.cost, str):
            raise self.refusal(f"cost {self.cost!r}: expected a formula as text")
        if self.available is not None and not callable(self.available):
            raise self.refusal(
                f"available {self.available!r}: expected a function of a target and of the parameters by name"
            )
        count = 1
        for where, declared in (("params", self.params), ("tuning", self.tuning)):
            for key, values in declared.items():
                for value in values:
                    if problem := _problem(value):
                        raise self.refusal(f"parameter {key} = {value!r}: {problem}")
                typed = {(type(value), value) for value in values}
                if not values or len(typed) != len(values):
                    raise self.refusal(f"{where}[{key!r}]: expected a list of values, each once")
                count *= len(values)
        if count > MAX_COMBINATIONS:
            raise self.refusal(f"{count} combinations of parameters; expected at most {MAX_COMBINATIONS}")
        for target in self.targets:
            if target not in KNOWN_TARGETS:
                raise self.refusal(
                    f"unknown target {target!r}: expected some of {', '.join(KNOWN_TARGETS)}"
                    + target_meant(target, KNOWN_TARGETS)
                )
        if not self.targets:
            raise self.refusal(f"no targets: expected some of {', '.join(KNOWN_TARGETS)}")

    def _values(
        self, where: str, given: Mapping[str, Sequence[DesignValue]]
    ) -> dict[str, tuple[DesignValue, ...]]:
        """Lists of values by names; a text alone would be taken for a list of its letters."""
        if not isinstance(given, Mapping):
            raise self.refusal(f"`{where}`: expected lists of values by names, got {given!r}")
        for key, values in given.items():
            if not isinstance(key, str) or not _is_list(values):
                raise self.refusal(f"{where}[{key!r}]: expected a list of values, got {values!r}")
        return {key: tuple(values) for key, values in given.items()}

    def _names(self, what: str, names: Sequence[str]) -> tuple[str, ...]:
        """Names in a list; a text alone would be taken for a list of its letters."""
        if not _is_list(names) or not all(isinstance(name, str) and name for name in names):
            raise self.refusal(f"`{what}`: expected a list of names, got {names!r}")
        return tuple(names)

    def refusal(self, problem: str, values: Parameters | None = None) -> DeclarationError:
        """The error for a wrong declaration, which ``values`` of its parameters may have shown."""
        called = repr(self.name) if values is None else self.call_text(values)
        return DeclarationError(f"kernel {called} ({self.place}): {problem}")


class PrebuiltFunction:
    """A declared kernel with its parameters, called like the compiled function.

    The kernel is looked up at the first call on each GPU, and kept for that GPU. Where there are several,
    which differ in parameters of tuning, the bundle that has them chooses one for each problem.
    """

    def __init__(self, declared: DeclaredKernel, values: Parameters) -> None:
        self.declared = declared
        self.values = dict(values)
        # By GPU: the launch of a prebuilt kernel, or of one compiled under policy jit, and the operands'
        # names.
        self._launches: dict[int, tuple[Launch, tuple[str, ...]]] = {}
        # Whether any bundle was found to have a kernel, for any GPU.
        self._known = False

    def __repr__(self) -> str:
        return f"<PrebuiltFunction {self.declared.call_text(self.values)}>"

    def __call__(self, *operands: Any, stream: Any = None, workspace: Any = None, **named: Any) -> None:
        """Launch it on tensors of one GPU, and numbers where the kernel takes numbers.

        Args:
            operands: in the order of the declaration.
            stream: see :attr:`cutlass_aot.KernelHandle.launch`.
            workspace: see :attr:`cutlass_aot.KernelHandle.launch`.
            named: operands by name, those that are not given in order.

        Raises:
            KernelNotFound: if no bundle has the kernel for the operands' GPU, unless the policy is ``jit``.
            MisplacedOperand: if the operands are not on one GPU.
            ParameterError: if operands are missing, or there are none of the names given.
            OperandError: if the kernel does not support the operands. Of several kernels that differ in
                tuning, that none supports them is KernelNotFound.
            CutlassAotError: see :attr:`cutlass_aot.KernelHandle.launch`.
        """
        ordinal = _ordinal_of((*operands, *named.values()) if named else operands)
        if ordinal < 0:
            raise self._without_gpu(operands, named)
        found = self._launches.get(ordinal)
        if found is None:
            found = self._launches.setdefault(ordinal, self._find(ordinal))
        launch, names = found
        given = self._ordered(names, operands, named) if named else operands
        launch(*given, stream=stream, workspace=workspace)

    def kernels(self) -> list[KernelHandle]:
        """The kernels for these parameters, of every target, in the bundles that are open or installed.

        Installed bundles that cannot be opened are skipped.
        """
        return [kernel for bundle in BundleSearch() for kernel in self._kernels_of(bundle)]

    def require(self) -> None:
        """Raise :class:`KernelNotFound` if no bundle has a kernel, unless the policy is to compile one."""
        if self._known or self._launches or policy.get() == "jit":
            return
        search = BundleSearch()
        self._known = any(self._kernels_of(bundle) for bundle in search)
        if not self._known:
            policy.on_declared_miss(self._missing("any GPU", search), self.declared, self.values, -1)

    def _find(self, ordinal: int) -> tuple[Launch, tuple[str, ...]]:
        capability = cuda_driver.compute_capability(ordinal)
        search = BundleSearch()
        best: tuple[tuple[int, int], Bundle, list[KernelHandle]] | None = None
        for bundle in search:
            kernels = self._kernels_of(bundle)
            for target in runnable_targets({kernel.target for kernel in kernels}, capability)[:1]:
                preference = Target.parse(target).preference(capability)
                if best is None or preference < best[0]:
                    best = preference, bundle, [kernel for kernel in kernels if kernel.target == target]
            if best is not None and best[0] == _EXACT:
                break
        if best is not None:
            _, bundle, (first, *others) = best
            names = tuple(operand.name for operand in first.group.operands)
            if not others:
                return first.launch, names
            return partial(bundle.run, self.declared.name, parameters=self.values), names
        where = f"GPU {ordinal}, compute capability {capability[0]}.{capability[1]},"
        return policy.on_declared_miss(self._missing(where, search), self.declared, self.values, ordinal)

    def _kernels_of(self, bundle: Bundle) -> list[KernelHandle]:
        return bundle.kernels_of(self.declared.name, self.values)

    def _without_gpu(self, operands: Sequence[Any], named: Mapping[str, Any]) -> OperandError:
        """The error for operands of which none is on a GPU."""
        known = next((kernel.group.operands for kernel in self.kernels()), ())
        places = [operand.name for operand in known] or list(map(str, range(len(operands))))
        names = [*places[: len(operands)], *named]
        descriptions = [describe_operand(operand) for operand in (*operands, *named.values())]
        if len(names) == len(descriptions) and (problem := misplaced(names, descriptions)):
            return MisplacedOperand(problem)
        return OperandError(f"kernel {self.declared.name}: there is no operand on a GPU to launch on")

    def _missing(self, where: str, search: BundleSearch) -> KernelNotFound:
        bundles = ", ".join(search.seen) or "none"
        missing = (
            f"no kernel {self.declared.call_text(self.values)} for {where} in the bundles that are open or "
            f"installed ({bundles})"
        )
        problems = "".join(f"; {problem}" for problem in search.problems)
        undeclared = [
            f"{key} is {value!r}, declared with {few(map(repr, self.declared.params[key]), 12)}"
            for key, value in self.values.items()
            if not any(type(value) is type(one) and value == one for one in self.declared.params[key])
        ]
        if undeclared:
            return KernelNotFound(
                f"{missing}: {'; '.join(undeclared)}: a build makes kernels of declared values alone"
                + problems
            )
        return KernelNotFound(
            f"{missing}: {self._present(search)}open one that has it with cutlass_aot.open"
            f"{', or choose policy jit' if policy.has_compiler() else ''}{problems}"
        )

    def _present(self, search: BundleSearch) -> str:
        """The parameters that the bundles do have it with; ``""`` if they have none of it."""
        present = [
            f"parameters={dict(group.parameters)}"
            for bundle in search
            for group in bundle.groups
            if group.operation == self.declared.name and group.requests is None
        ]
        return f"they have it with {few(dict.fromkeys(present), 6)}; " if present else ""

    def _ordered(
        self, names: Sequence[str], operands: Sequence[Any], named: Mapping[str, Any]
    ) -> Sequence[Any]:
        rest = names[len(operands) :]
        if set(rest) != set(named):
            strange = next((name for name in named if name not in names), "")
            raise ParameterError(
                f"kernel {self.declared.name}: expected operands {', '.join(names)}, stream and "
                f"workspace, got {len(operands)} in order and {', '.join(named)} by name"
                f"{did_you_mean(strange, (*names, 'stream', 'workspace'))}"
            )
        return [*operands, *(named[name] for name in rest)]


def _ordinal_of(operands: Sequence[Any]) -> int:
    """The GPU of the first operand that is on one; -1 if none is."""
    for operand in operands:
        if is_torch(operand):
            if operand.is_cuda:
                ordinal: int = operand.get_device()
                return ordinal
        elif not isinstance(operand, (int, float)):
            ordinal = common_device([describe_operand(operand)])
            if ordinal >= 0:
                return ordinal
    return -1


def _is_list(given: object) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


def _problem(value: object) -> str:
    """Why a record cannot have a parameter of this value; ``""`` if it can."""
    if not is_value(value):
        return "expected text, a number, true or false, or a tuple of whole numbers"
    if isinstance(value, str) and not _TEXT.fullmatch(value):
        return (
            "expected text of letters, digits, '_', '.' and '-', at most 64 of them: it becomes part of file "
            "names"
        )
    return ""
