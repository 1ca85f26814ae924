"""The request that a call of ``cute.compile`` makes; nothing is traced for it.

Arguments are bound to parameters, and told apart into those that are compiled in and those that are passed at
each call, by the rules of the DSL: what is annotated as ``Constexpr``, None, classes, and the instance of a
method are compiled in.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.code_slice import CodeSlice, Outdated, slice_of
from cutlass_aot.programs.describe.definitions import layers, qualified_name
from cutlass_aot.programs.describe.distributions import DSL, dsl_fingerprint, joined, origin_of_file
from cutlass_aot.programs.describe.values import Describer, Passed
from cutlass_aot.programs.without_tvm_ffi import OPTION as WITH_TVM_FFI
from cutlass_aot.schema.requests.request import MAX_REQUEST_BYTES, Request, Value

_OWN = f"{Path(__file__).resolve().parents[2]}/"
"""This package, which answers for the GPU and stands before ``cute.compile``: none of it is in a trace."""

_CONTROLS = ("options", "is_experimental", "compile_only", "no_cache", "no_jit_engine")
"""Keywords of ``cute.compile`` that are not arguments and change no code, or are looked at by themselves."""
_REFUSED_CONTROLS = {
    "trace_finalize_hooks": "functions that change what was traced",
    "compile_to_precompiled_mlir": "a module instead of a function",
    "pipeline": "a pipeline of its own for the compiler",
    "gpu_module_attrs": "attributes of its own for the compiler",
    "export_name": "a name of its own for what is compiled",
}
_REFUSED_OPTIONS = {
    "keep-ptx": "PTX", "keep-cubin": "a cubin", "keep-sass": "SASS", "device-target": "a device function",
    "host-target": "code for another host", "link-libraries": "libraries to link",
}  # fmt: skip
_OTHER_OPTIONS = ("dump-dir", "dump-ptx-path", "dump-cubin-path", "dump-sass-path", "generate-line-info")
"""Options that change no instruction. Line numbers are never compiled in, since they name files by path."""
_DEFAULT_SETTINGS = {"tolerate_m2m": True, "compiler_backend": "legacy"}
"""Settings of the DSL that are on or named if nothing is said; all others are off or empty."""
_NO_SETTINGS = frozenset({"arch", "enable_tvm_ffi", "shared_libs"})
"""Settings that a request has elsewhere, or that name files of the machine."""


class Surroundings(NamedTuple):
    """What a request follows from, beside its arguments.

    Attributes:
        device: target to :attr:`~cutlass_aot.schema.requests.request.Request.device`.
        given: environment variables that say no more than target and device do, with the values that say it.
        dsl: fingerprint of the DSL. Where it is not installed, the bundles know by which they were built.
    """

    device: Callable[[str], Mapping[str, int]]
    given: Callable[[str, Mapping[str, int]], Mapping[str, str]]
    dsl: Callable[[], str] = dsl_fingerprint


class Called(NamedTuple):
    """A call, taken apart as the DSL does.

    Attributes:
        function: the function that is traced.
        subject: what was passed to be compiled.
        name: of it, for the request.
        arguments: those of the function, without the instance.
        keywords: arguments by name.
        controls: keywords that are for ``cute.compile`` itself.
    """

    function: types.FunctionType
    subject: Any
    name: str
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    controls: Mapping[str, Any]
    bound: bool


def request_of(
    compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], surroundings: Surroundings
) -> Request:
    """The request of ``compiler(*arguments, **keywords)``.

    Args:
        compiler: ``cute.compile``, or ``cute.compile[...]``.
        arguments: the callable, then its arguments.
        keywords: arguments by name and options.
        surroundings: what else it follows from.
    """
    try:
        return _request_of(compiler, arguments, keywords, surroundings)
    except RequestError:
        raise
    except (
        Exception
    ) as error:  # Properties and comparisons of the program's own classes raise what they like.
        subject = arguments[0] if inspect.isroutine(arguments[0]) else type(arguments[0])
        raise RequestError(
            f"{qualified_name(subject)} could not be described: {type(error).__name__}: {error}"
        ) from error


def _request_of(
    compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], surroundings: Surroundings
) -> Request:
    called = _called(arguments, keywords)
    options, target = _options(compiler, called)
    describer = Describer()
    configuration = describer.argument(called.name, called.subject)
    describer.code.setdefault(id(called.function), called.function)
    describer.code |= {id(function): function for function in _patches().functions}
    described = dict(_arguments(describer, called))
    device = surroundings.device(target)
    given = surroundings.given(target, device)
    code = slice_of(describer.code)
    try:
        state = code.state(given)
    except Outdated:
        code = slice_of(describer.code, anew=True)
        state = code.state(given)
    request = Request(
        callable=called.name,
        configuration=configuration,
        arguments=described,
        options=options,
        target=target,
        device=device,
        code=dict(sorted({**_code(code), DSL: surroundings.dsl()}.items())),
        state=dict(sorted(state.items())),
    )
    try:
        size = len(request.encoded())
    except (TypeError, OverflowError) as error:
        raise RequestError(f"{called.name}: {error}") from None
    if size > MAX_REQUEST_BYTES:
        raise RequestError(
            f"{called.name}: its description has {size} bytes, expected at most {MAX_REQUEST_BYTES}"
        )
    return request


def _code(code: CodeSlice) -> dict[str, str]:
    """Fingerprints of a slice, and of what patches the DSL."""
    patches = _patches().code
    both = {**patches, **code.code}
    return both | {name: joined((patches[name], code.code[name])) for name in patches.keys() & code.code}


def code_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> CodeSlice:
    """The code that a call follows from, as :func:`request_of` finds it."""
    called = _called(arguments, keywords)
    describer = Describer()
    describer.argument(called.name, called.subject)
    describer.code.setdefault(id(called.function), called.function)
    describer.code |= {id(function): function for function in _patches().functions}
    for _ in _arguments(describer, called):
        pass
    return slice_of(describer.code)


def _called(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Called:
    if not arguments:
        raise RequestError("cute.compile was called without a function")
    subject, rest = arguments[0], list(arguments[1:])
    function: Any = subject
    bound = False
    if inspect.ismethod(subject):
        function, bound = subject.__func__, True
    elif not inspect.isfunction(subject):
        function, bound = getattr(type(subject), "__call__", None), True  # noqa: B004 - the function itself
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if not isinstance(function, types.FunctionType):
        raise RequestError(
            f"cute.compile was called with a {type(subject).__qualname__}, expected a function or an instance"
        )
    named = (
        subject if inspect.isfunction(subject) else function if inspect.ismethod(subject) else type(subject)
    )
    while hasattr(named, "__wrapped__"):
        named = named.__wrapped__
    name = qualified_name(named)
    for control, what in _REFUSED_CONTROLS.items():
        if keywords.get(control):
            raise RequestError(f"{name}: {control}: it asks for {what}")
    own = {
        key: value for key, value in keywords.items() if key not in _CONTROLS and key not in _REFUSED_CONTROLS
    }
    controls = {key: value for key, value in keywords.items() if key in _CONTROLS}
    return Called(function, subject, name, rest, own, controls, bound)


class _Parameter(NamedTuple):
    """A parameter, as far as its annotation decides what becomes of an argument.

    Attributes:
        constant: whether it is compiled in.
        is_class: whether a class is.
        has_extents: whether numbers in tuples are, as those of a shape.
        dtypes: types of the DSL that a number is converted to.
    """

    name: str
    constant: bool = False
    is_class: bool = True
    has_extents: bool = False
    dtypes: tuple[str, ...] = ()


class _Parameters(NamedTuple):
    """Parameters of a function.

    Attributes:
        positional: those that can be passed in order.
        rest: the name of ``*args``; ``""`` without.
        by_name: those that can be passed by name, in the order of the signature.
        more: the name of ``**kwargs``; ``""`` without.
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
    """Whether Python's numbers in a tuple that is annotated so are passed at each call.

    They are by ``tuple`` and ``tuple[int, ...]``, and not by the DSL's ``Shape`` and its like, which are
    unions of tuples. What is neither is taken for the latter: a key may have too much.
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


def _described(describer: Describer, parameter: _Parameter, value: Any) -> Value:
    passed = _passed(parameter, value)
    described = describer.argument(parameter.name, value, passed)
    if passed is Passed.CONSTANT or not parameter.dtypes:
        return described
    own = described if isinstance(described, dict) else {"value": described}
    return {**own, "as": list(parameter.dtypes)}


def _arguments(describer: Describer, called: Called) -> Iterator[tuple[str, Value]]:
    positional, rest, by_name, more = _parameters(called.function)
    own = positional[called.bound :]
    for index, value in enumerate(called.arguments):
        if index < len(own):
            parameter = own[index]
        elif rest:
            parameter = _Parameter(f"{rest}[{index - len(own)}]")
        else:
            raise RequestError(
                f"{called.name}: it takes {len(own)} arguments in order, got {len(called.arguments)}"
            )
        yield parameter.name, _described(describer, parameter, value)
    # In the order of the signature, in which the DSL passes them: not in that of the call.
    for name in sorted(called.keywords, key=lambda name: ([*by_name, name].index(name), name)):
        value = called.keywords[name]
        known = by_name.get(name)
        if known is None and not more:
            raise RequestError(f"{called.name}: it has no argument {name!r}")
        yield name, _described(describer, known or _Parameter(name), value)


def _passed(parameter: _Parameter, value: Any) -> Passed:
    if parameter.constant or value is None or (isinstance(value, type) and parameter.is_class):
        return Passed.CONSTANT
    return Passed.EXTENT if parameter.has_extents and type(value) in (tuple, list) else Passed.DYNAMIC


def _options(compiler: Any, called: Called) -> tuple[dict[str, Value], str]:
    """Options that differ from their defaults, and the GPU code target."""
    text = called.controls.get("options")
    if text is not None and not isinstance(text, str):
        raise RequestError(f"{called.name}: options: a {type(text).__name__}, expected text")
    own = _own_options(compiler._compile_options)
    if text:
        selectors = {
            key: value for key, value in own.items() if key in ("FrontendNext", "DisableCuteExtCompile")
        }
        own = {**_parsed(text), **selectors}
    else:
        own = dict(own)
    dsl = sys.modules["cutlass.base_dsl.dsl"].BaseDSL._get_dsl()
    settings = dsl.envar
    for name, what in _REFUSED_OPTIONS.items():
        if own.get(name):
            raise RequestError(f"{called.name}: options: it asks for {what}, which a bundle does not have")
    arch = str(own.pop("cubin-chip", "") or settings.arch)
    if not own.pop(WITH_TVM_FFI, False) and not settings.enable_tvm_ffi:
        own[WITH_TVM_FFI] = False
    for name in _OTHER_OPTIONS:
        own.pop(name, None)
    for entry in settings._ENV_VAR_SPEC:
        name = str(entry.key_name)
        if entry.affects_compile and name.lstrip("_") not in _NO_SETTINGS:
            value = getattr(settings, name)
            if value and value != _DEFAULT_SETTINGS.get(name):
                own[f"CUTE_DSL:{name}"] = value if isinstance(value, (bool, int, str)) else str(value)
    for name, default in _DEFAULT_SETTINGS.items():
        if not getattr(settings, name, default):
            own[f"CUTE_DSL:{name}"] = False
    return own, arch


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Mapping[str, Value]:
    compiler = sys.modules["cutlass.base_dsl.compiler"]
    try:
        return _own_options(compiler._parse_compile_options_from_str(text))
    except Exception as error:
        raise RequestError(f"options {text!r} cannot be read: {error}") from None


def _own_options(options: Any) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for kind, option in sorted(options.options.items(), key=lambda item: item[0].__name__):
        name = str(getattr(kind, "_cli_flag", None) or kind.__name__)
        name = "cubin-chip" if name == "gpu-arch" else name
        if option.value != kind._default:
            found[name] = option.value if type(option.value) in (bool, int, float, str) else str(option.value)
    selectors = sorted(getattr(options, "_debug_selectors", ()))
    return found | ({"debug": selectors} if selectors else {})


class _Patches(NamedTuple):
    """What others than the DSL have put into it: part of every trace."""

    functions: tuple[types.FunctionType, ...]
    code: Mapping[str, str]
    """Distributions and their fingerprints."""


def _patches() -> _Patches:
    return _patches_of(len(sys.modules))


@functools.lru_cache(maxsize=4)
def _patches_of(_modules: int) -> _Patches:
    package = sys.modules.get("cutlass")
    if package is None:
        return _Patches((), {})
    file = getattr(package, "__file__", None)
    # What stands for the DSL where it is not has no file, and is of this package.
    home = f"{Path(file).parent}/" if file else _OWN
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    functions: dict[int, types.FunctionType] = {}
    found: dict[str, set[str]] = {}
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if module is None or not (name == "cutlass" or name.startswith("cutlass.")):
            continue
        if not (getattr(module, "__file__", None) or home).startswith(home):
            continue  # Another distribution's, such as `cutlass.operators`.
        # A patch may be decorated by the DSL's, and may itself decorate what the DSL has.
        for function in (layer for own in _functions_of(module, seen) for layer in layers(own)):
            file = function.__code__.co_filename
            if file == main:
                raise RequestError(
                    f"{name}: the program's script has put {function.__qualname__} into it: move it into a "
                    "module of its own, so that its changes can be told"
                )
            if not file.startswith((home, _OWN, "<")):
                origin = origin_of_file(file)
                if origin is not None and not origin.is_neutral:
                    found.setdefault(origin.name, set()).add(origin.fingerprint)
                    functions[id(function)] = function
    return _Patches(tuple(functions.values()), {name: joined(items) for name, items in found.items()})


def _functions_of(module: types.ModuleType, seen: set[int]) -> Iterator[types.FunctionType]:
    """Functions that a module has, and those of its classes, but those that were seen in another module.

    The DSL's modules have a hundred thousand names, of most functions several.
    """
    for value in list(vars(module).values()):
        kind = type(value)
        if kind is types.FunctionType:
            if id(value) not in seen:
                seen.add(id(value))
                yield value
        elif isinstance(value, type) and id(value) not in seen:
            seen.add(id(value))
            if not value.__module__.startswith("cutlass"):
                continue
            for member in list(vars(value).values()):
                inner: Any = member
                if type(member) is property:
                    inner = member.fget
                elif type(member) in (staticmethod, classmethod):
                    inner = member.__func__
                if type(inner) is types.FunctionType:
                    yield inner
