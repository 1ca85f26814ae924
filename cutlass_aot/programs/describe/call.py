"""A call of ``cute.compile``, taken apart by the rules of the DSL.

Arguments are bound to parameters. Those annotated as ``Constexpr``, None, classes, and the instance of a
method are compiled in; the others are passed at each call.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_origin

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.definitions import qualified_name
from cutlass_aot.programs.describe.values.description import Description, Passed
from cutlass_aot.schema.requests.request import Value

_CONTROLS = ("options", "is_experimental", "compile_only", "no_cache", "no_jit_engine")
"""Keywords of ``cute.compile`` that are not arguments. ``options`` is described separately, the others change
no code."""
_REFUSED_CONTROLS = {
    "trace_finalize_hooks": "functions that change what was traced",
    "compile_to_precompiled_mlir": "a module instead of a function",
    "pipeline": "a pipeline of its own for the compiler",
    "gpu_module_attrs": "attributes of its own for the compiler",
    "export_name": "a name of its own for what is compiled",
}


class Call(NamedTuple):
    """A call, taken apart.

    Attributes:
        function: the function that is traced.
        subject: the object that was passed to be compiled: a function, a method or an instance.
        arguments: those of the function, without the instance.
        controls: keywords that are for ``cute.compile`` itself.
        bound: whether the function's first parameter is the instance.
    """

    function: types.FunctionType
    subject: Any
    name: str
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    controls: Mapping[str, Any]
    bound: bool


def call_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
    """Take a call apart: ``arguments`` begin with the callable, ``keywords`` include options."""
    if not arguments:
        raise RequestError("cute.compile was called without a function")
    subject, *rest = arguments
    function: Any = subject
    if inspect.ismethod(subject):
        function = subject.__func__
    elif not inspect.isfunction(subject):
        function = getattr(type(subject), "__call__", None)  # noqa: B004 - the function itself
    function = _innermost(function)
    if not isinstance(function, types.FunctionType):
        raise RequestError(
            f"cute.compile was called with a {type(subject).__qualname__}, expected a function or an instance"
        )
    is_function = inspect.isfunction(subject)
    is_named = is_function or inspect.ismethod(subject)
    name = qualified_name(function if is_named else _innermost(type(subject)))
    for control, what in _REFUSED_CONTROLS.items():
        if keywords.get(control):
            raise RequestError(f"{name}: {control}: it asks for {what}")
    own = {
        key: value for key, value in keywords.items() if key not in _CONTROLS and key not in _REFUSED_CONTROLS
    }
    controls = {key: value for key, value in keywords.items() if key in _CONTROLS}
    return Call(function, subject, name, rest, own, controls, bound=not is_function)


def direct_call(function: types.FunctionType, arguments: Sequence[Any]) -> Sequence[Any]:
    """The arguments of the ``cute.compile`` that a call of a ``@cute.jit`` function stands for.

    The DSL passes a method its instance as any other argument, and knows it by its name.
    """
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    if arguments and parameters[:1] == ("self",):
        return types.MethodType(function, arguments[0]), *arguments[1:]
    return function, *arguments


def passed_at_each_call(
    arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Of the arguments of ``cute.compile`` that came with a callable, those that its function takes."""
    return passed_values(call_of(arguments, keywords))


def passed_values(call: Call) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call that are not annotated as ``Constexpr``, in order and by name."""
    parameters = _parameters(call.function)
    own = parameters.positional[call.bound :]
    constant = {parameter.name for parameter in parameters.by_name.values() if parameter.constant}
    return (
        [
            value
            for index, value in enumerate(call.arguments)
            if index >= len(own) or own[index].name not in constant
        ],
        {name: value for name, value in call.keywords.items() if name not in constant},
    )


def _innermost(thing: Any) -> Any:
    """The function or class within all decorators."""
    while hasattr(thing, "__wrapped__"):
        thing = thing.__wrapped__
    return thing


class _Parameter(NamedTuple):
    """A parameter, and what its annotation decides of an argument.

    Attributes:
        constant: whether the argument is compiled in.
        is_class: whether it is compiled in if it is a class.
        has_extents: whether numbers in a tuple are compiled in, as in a shape.
        dtypes: types of the DSL that a number is converted to.
    """

    name: str
    constant: bool = False
    is_class: bool = True
    has_extents: bool = False
    dtypes: tuple[str, ...] = ()


class _Parameters(NamedTuple):
    """Parameters of a function, ``by_name`` in the order of the signature.

    ``rest`` is the name of ``*args`` and ``more`` that of ``**kwargs``, each ``""`` if there is none.
    """

    positional: tuple[_Parameter, ...]
    rest: str
    by_name: Mapping[str, _Parameter]
    more: str


# Weakly: a function may hold tensors.
_known_parameters: weakref.WeakKeyDictionary[types.FunctionType, _Parameters] = weakref.WeakKeyDictionary()


def _parameters(function: Any) -> _Parameters:
    known = _known_parameters.get(function)
    if known is None:
        known = _known_parameters[function] = _parameters_of(function)
    return known


def _parameters_of(function: Any) -> _Parameters:
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception as error:
        raise RequestError(
            f"{qualified_name(function)}: its annotations cannot be evaluated: {error}"
        ) from None
    positional: list[_Parameter] = []
    by_name, rest, more = {}, "", ""
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        free = annotation is parameter.empty or get_origin(annotation) is type
        own = _Parameter(
            parameter.name,
            _is_constexpr(annotation),
            free,
            annotation is not parameter.empty and not _passes_numbers(annotation),
            tuple(_dtypes(annotation)),
        )
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = parameter.name
        elif parameter.kind is parameter.VAR_KEYWORD:
            more = parameter.name
        else:
            by_name[parameter.name] = own
            if parameter.kind is not parameter.KEYWORD_ONLY:
                positional.append(own)
    return _Parameters(tuple(positional), rest, by_name, more)


def _is_constexpr(annotation: Any) -> bool:
    constexpr = sys.modules["cutlass"].Constexpr
    return get_origin(annotation) is constexpr or (
        isinstance(annotation, type) and issubclass(annotation, constexpr)
    )


def _passes_numbers(annotation: Any) -> bool:
    """Whether Python's numbers in a tuple with this annotation are passed at each call.

    They are for ``tuple`` and ``tuple[int, ...]``. With the DSL's ``Shape`` and the like, which are unions of
    tuples, they are compiled in. Unknown annotations count as the latter: a key may say more than is needed.
    """
    if annotation in (tuple, list, typing.Tuple, typing.List, int, float, bool):  # noqa: UP006
        return True
    origin, inner = get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        some = [item for item in inner if item is not type(None)]
        return len(some) == 1 and _passes_numbers(some[0])
    if origin in (tuple, list):
        return all(item is Ellipsis or _passes_numbers(item) for item in inner)
    return isinstance(annotation, sys.modules["cutlass.base_dsl.typing"].NumericMeta)


def _dtypes(annotation: Any) -> Iterator[str]:
    if isinstance(annotation, sys.modules["cutlass.base_dsl.typing"].NumericMeta):
        yield qualified_name(annotation)
    for item in typing.get_args(annotation):
        yield from _dtypes(item)


def _described(description: Description, parameter: _Parameter, value: Any) -> Value:
    passed = _passed(parameter, value)
    described = description.argument(parameter.name, value, passed)
    if passed is Passed.CONSTANT or not parameter.dtypes:
        return described
    own = described if isinstance(described, dict) else {"value": described}
    return {**own, "as": list(parameter.dtypes)}


def described_arguments(description: Description, call: Call) -> Iterator[tuple[str, Value]]:
    """The arguments of a call by name, described as the DSL passes them."""
    positional, rest, by_name, more = _parameters(call.function)
    own = positional[call.bound :]
    for index, value in enumerate(call.arguments):
        if index < len(own):
            parameter = own[index]
        elif rest:
            parameter = _Parameter(f"{rest}[{index - len(own)}]")
        else:
            raise RequestError(
                f"{call.name}: it takes {len(own)} arguments in order, got {len(call.arguments)}"
            )
        yield parameter.name, _described(description, parameter, value)
    # The DSL passes them in the order of the signature, not of the call.
    for name in sorted(call.keywords, key=lambda name: ([*by_name, name].index(name), name)):
        value = call.keywords[name]
        known = by_name.get(name)
        if known is None and not more:
            raise RequestError(f"{call.name}: it has no argument {name!r}")
        yield name, _described(description, known or _Parameter(name), value)


def _passed(parameter: _Parameter, value: Any) -> Passed:
    if parameter.constant or value is None or (isinstance(value, type) and parameter.is_class):
        return Passed.CONSTANT
    return Passed.EXTENT if parameter.has_extents and type(value) in (tuple, list) else Passed.DYNAMIC
