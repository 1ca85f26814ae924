"""``cute.compile``, its options and settings, and the DSL's decorators, as far as requests describe them.

``cute.compile`` itself only raises: :func:`cutlass_aot.serve` intercepts it and answers from a bundle.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import re
import shlex
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from cutlass_aot.errors import DeviceError
from cutlass_aot.programs.without_dsl import names
from cutlass_aot.programs.without_dsl.finder import find
from cutlass_aot.programs.without_dsl.placeholders import Unknown, by_name, refuse, unknown_class
from cutlass_aot.programs.without_dsl.placeholders import function as stand_in_function
from cutlass_aot.runtime.machine import cuda_driver

_COMPILER = "cutlass.base_dsl.compiler"
_ARCH_VARIABLE = "CUTE_DSL_ARCH"
_TVM_FFI_VARIABLE = "CUTE_DSL_ENABLE_TVM_FFI"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_ADAPTERS = "cutlass.base_dsl.runtime.jit_arg_adapters:JitArgAdapterRegistry"
_NO_GPU = (10, 0)
"""The compute capability that the DSL assumes without a GPU."""
_FLAGS: Mapping[str, Mapping[str, Any]] = {
    "bool": {"action": "store_true"}, "int": {"nargs": "?", "type": int},
}  # fmt: skip
"""How the text of an option is read, by the kind of its value."""
_NOT_A_FLAG = re.compile(r"(?:--)?(?:warnings|remarks|iket|debug|diagnostic)\b")


class CompileOption:
    """A compile option with its value."""

    _option_name: str | None = None
    _cli_flag: str | None = None
    _default: Any = ""

    def __init__(self, val: Any = True) -> None:
        self.value = _checked(type(self).__name__, val)

    def serialize(self) -> str:
        """The option as text, by which packages tell what they compiled before."""
        return "" if self._option_name is None else f"{self._option_name}={self.value}"


class BooleanCompileOption(CompileOption):
    """An option that is on or off."""


@functools.lru_cache(maxsize=1)
def _kinds() -> Mapping[str, type[CompileOption]]:
    """The classes of the compile options in the table, by their names."""
    found: dict[str, type[CompileOption]] = {}
    for option in names.options():
        base = BooleanCompileOption if option.kind == "bool" else CompileOption
        members = {"_option_name": option.option_name, "_cli_flag": option.flag, "_default": option.default}
        found[option.class_name] = type(option.class_name, (base,), {**members, "__module__": _COMPILER})
    return found


class CompileOptions:
    """The options of a compiler, by their classes."""

    enable_tvm_ffi = property(lambda self: self.options[_kinds()["EnableTVMFFI"]].value)

    def __init__(self, given: Any = None) -> None:
        self.options = {kind: kind(kind._default) for kind in _kinds().values()}
        for option in given if isinstance(given, tuple) else () if given is None else (given,):
            if isinstance(option, type) and issubclass(option, BooleanCompileOption):
                option = option(True)
            if type(option) not in self.options:
                refuse(f"the compile option {option!r} was passed")
            self.options[type(option)] = option


class CompileCallable:
    """``cute.compile``, and what ``cute.compile[...]`` gives."""

    def __init__(self, given: Any = None) -> None:
        self._compile_options = CompileOptions(given)

    def __getitem__(self, given: Any) -> CompileCallable:
        return CompileCallable(given)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Refuse: only a bundle answers."""
        refuse("cute.compile was called, and no bundle answered")


def _parse_compile_options_from_str(text: str) -> Any:
    words = _words(text)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=True, exit_on_error=True)
    for option in names.options():
        if option.flag is None:
            continue
        default = argparse.SUPPRESS if option.is_left_out else option.default
        kind = _FLAGS.get(option.kind, {})
        parser.add_argument(f"--{option.flag}", dest=option.class_name, default=default, **kind)
    try:
        found = vars(parser.parse_args(words))
    except SystemExit:
        raise ValueError(f"it is malformed: {text!r}") from None
    parsed = CompileOptions()
    for name, value in found.items():
        parsed.options[_kinds()[name]].value = _checked(name, value)
    return parsed


def options() -> Mapping[str, Any]:
    """Compile options and ``cute.compile``'s class."""
    return by_name(
        *_kinds().values(), CompileOption, BooleanCompileOption, CompileOptions, CompileCallable,
        _parse_compile_options_from_str,
    )  # fmt: skip


def _words(text: str) -> list[str]:
    """The words of an options text, split as the DSL splits them."""
    words = shlex.split(text)
    for index, word in enumerate(words):
        if _NOT_A_FLAG.match(word) and not (index and words[index - 1].startswith("--")):
            refuse(f"the compile option {word!r} was passed")
        if index and words[index - 1] == "--ptxas-options":
            words[index] = f"'{word}'"  # So that its hyphen begins no flag. The quotes stay in the value.
    return words


def _checked(name: str, value: Any) -> Any:
    """The value of an option; ValueError if the DSL would refuse it."""
    if name == "OptLevel" and not (isinstance(value, int) and 0 <= value <= 3):
        raise ValueError(f"opt-level {value} is none of 0, 1, 2 and 3")
    if name == "GPUArch" and value:
        return find("cutlass.base_dsl.enums:Arch")[value].name
    return value


class Settings:
    """The DSL's settings, from the environment."""

    prefix = "CUTE_DSL"

    @property
    def arch(self) -> str:
        """GPU code target, of the environment or of GPU 0."""
        given = os.environ.get(_ARCH_VARIABLE)
        if given:
            return given
        try:
            major, minor = cuda_driver.compute_capability(0)
        except DeviceError:
            major, minor = _NO_GPU
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def enable_tvm_ffi(self) -> bool:
        """Whether everything is compiled with TVM-FFI."""
        given = os.environ.get(_TVM_FFI_VARIABLE, "").strip().lower()
        if given and given not in _TRUE + _FALSE:
            refuse(f"{_TVM_FFI_VARIABLE}={given} was set")
        return given in _TRUE

    @property
    def _ENV_VAR_SPEC(self) -> tuple[Any, ...]:
        """Empty; refuses if an environment variable is set that decides what is compiled."""
        for name in names.settings():
            if name not in (_ARCH_VARIABLE, _TVM_FFI_VARIABLE) and os.environ.get(name, "").strip():
                refuse(f"the environment variable {name} was set")
        return ()


_settings = Settings()


def _decorator(word: str) -> Callable[..., Any]:
    """A decorator of the DSL. Decorated functions raise when called, unless calls of them are intercepted.

    Requests use their ``__wrapped__``.
    """

    def decorate(*given: Any, **options: Any) -> Any:
        if len(given) == 1 and callable(given[0]) and not options:
            return _wrapped(given[0], word)
        return lambda function: _wrapped(function, word)

    decorate.__name__ = decorate.__qualname__ = word
    return decorate


def _wrapped(function: Any, word: str) -> Any:
    """Wrap a function in one that closes over and reads what the DSL's wrapper does.

    Programs that digest their functions, as quack does, digest these names too.
    """
    called: Any = functools.wraps(function)(_maker(word)(function))
    if word in ("cute.jit", "cute.kernel"):
        called.set_name_prefix = _set_name_prefix
    return called


def _set_name_prefix(*arguments: Any, **keywords: Any) -> None:
    """Do nothing: no request has the prefix."""


@functools.lru_cache(maxsize=3)
def _maker(word: str) -> Callable[[Any], Any]:
    known = names.wrapper(word)
    variables: dict[str, Any] = {name: _named(kind, what) for name, (kind, what) in known.names.items()}
    variables["__name__"] = known.module
    function = next(name for name, (kind, *_) in known.closure.items() if kind == "function")
    constants = {name: what[0] for name, (kind, *what) in known.closure.items() if kind == "constant"}
    called = "_call" if word == "cute.jit" else "_refuse_call"
    # Its only names beside the DSL's are builtins.
    text = f"""
def outer({", ".join([function, *constants])}):
    def wrapper(*args, **kwargs):
        return __import__({__name__!r}, fromlist=("",)).{called}({function}, *args, **kwargs)
        {"; ".join([*constants, *known.names]) or "pass"}
    return wrapper
"""
    code = compile(text, names.file_of(known.module), "exec")
    exec(code, variables)  # noqa: S102 - of the text above
    outer = variables.pop("outer")
    return lambda inner: outer(inner, **constants)


def _call(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """Where a function is called that the DSL would compile now."""
    return find("cutlass.base_dsl.dsl:BaseDSL")._func(None, function, *arguments, **keywords)


def _refuse_call(function: Any, *arguments: Any, **keywords: Any) -> None:
    refuse(f"{function.__module__}.{function.__qualname__}, which a trace calls, was called")


def _named(kind: str, what: Any) -> Any:
    """The value of a name that a wrapper reads; a placeholder if the table has no such name."""
    if kind == "constant":
        return names.as_tuples(what)
    if kind == "module":
        return importlib.import_module(what)
    if kind == "value":
        return Unknown(what or "a value of the DSL's")
    module, _, name = what.partition(":")
    if names.is_module(module) and name in names.names_of(module):
        return find(what)
    return stand_in_function(what) if kind == "function" else unknown_class(what)


def dsl() -> Mapping[str, Any]:
    """``BaseDSL``, which has the settings."""
    return by_name(_dsl_class("cutlass.base_dsl.dsl", "BaseDSL"))


def cute_dsl() -> Mapping[str, Any]:
    """``CuTeDSL``, which has the decorators."""
    return by_name(_dsl_class("cutlass.cutlass_dsl.cutlass", "CuTeDSL"))


def _arch() -> Any:
    return find("cutlass.base_dsl.enums:Arch")[_settings.arch]


class _Dsl(type):
    def __getattr__(cls, name: str) -> Any:
        where = f"{cls.__module__}:{cls.__qualname__}"
        known = names.class_entry(where) or {}
        if name in known.get("functions", ()):
            return stand_in_function(f"{where}.{name}")
        if name in known.get("values", ()):
            return Unknown(f"{where.replace(':', '.')}.{name}")
        if name.startswith("__"):
            raise AttributeError(name)
        return refuse(f"{where.replace(':', '.')}.{name} was requested")

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        refuse(f"{cls.__module__}.{cls.__qualname__} was called")


def _func(_: Any, function: Any, *arguments: Any, **keywords: Any) -> None:
    refuse(f"{function.__module__}.{function.__qualname__} was called, and no bundle answered")


def _dsl_class(module: str, name: str) -> type:
    instance = SimpleNamespace(envar=_settings, get_arch_enum=_arch)
    members = {
        "__module__": module,
        "_get_dsl": staticmethod(lambda: instance),
        "_func": _func,
        "jit": staticmethod(_decorator("cute.jit")),
        "kernel": staticmethod(_decorator("cute.kernel")),
    }
    return _Dsl(name, (), members)


def cute() -> Mapping[str, Any]:
    """``cute.compile``, and the names of ``cutlass.cute`` that programs call while they are imported."""
    return {
        "compile": find(f"{_COMPILER}:CompileCallable")(),
        "jit": _decorator("cute.jit"),
        "kernel": _decorator("cute.kernel"),
        "register_jit_arg_adapter": find(_ADAPTERS).register_jit_arg_adapter,
    }


def experimental() -> Mapping[str, Any]:
    """The compiler and the decorators of ``cutlass.cute.experimental``."""
    return {
        "compile": find(f"{_COMPILER}:CompileCallable")(),
        "jit": _decorator("cute.jit"),
        "kernel": _decorator("cute.kernel"),
    }


def adapters() -> Mapping[str, Any]:
    """The registry of argument adapters: requests have those of their arguments' classes."""

    class JitArgAdapterRegistry:
        jit_arg_adapter_registry: ClassVar[dict[type, Any]] = {}
        scoped_jit_arg_adapter_registries: ClassVar[dict[str, dict[type, Any]]] = {}
        lazy_jit_arg_adapter_registry: ClassVar[dict[str, Any]] = {}

        @classmethod
        def register_jit_arg_adapter(
            cls, python_type: Any = None, *, scope: str | None = None, lazy: bool = False
        ) -> Callable[[Any], Any]:
            def register(adapter: Any) -> Any:
                known: dict[Any, Any] = cls.jit_arg_adapter_registry
                if lazy:
                    known = cls.lazy_jit_arg_adapter_registry
                elif scope is not None:
                    known = cls.scoped_jit_arg_adapter_registries.setdefault(scope, {})
                known[python_type] = adapter
                return adapter

            return register

    return by_name(JitArgAdapterRegistry)


def operations() -> Mapping[str, Any]:
    """The decorator of functions that a trace calls."""
    return {"dsl_user_op": _decorator("dsl_user_op")}


def expressions() -> Mapping[str, Any]:
    """``const_expr``, which marks an expression as one of Python's: outside of a trace, all are."""

    def const_expr(expression: Any) -> Any:
        if type(expression) not in (bool, int, float, str, type(None)):
            refuse(f"const_expr of a {type(expression).__qualname__} was called")
        return expression

    return by_name(const_expr)


def arguments() -> Mapping[str, Any]:
    """``JitArguments``, with which programs measure kernels."""

    class JitArguments:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.args, self.kwargs = args, kwargs
            self.references: list[Any] = []

        def add_to_scope(self, references: Any) -> None:
            self.references.extend(references)

    return by_name(JitArguments)
