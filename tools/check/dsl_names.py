"""Write the table of the names that the installed DSL has, which `cutlass_aot.without_dsl` reads.

    python -m tools.check.dsl_names cutlass_aot/programs/without_dsl/names-4.8.1.json
    python -m tools.check.dsl_names --check cutlass_aot/programs/without_dsl/names-4.8.1.json

Every module of the DSL is imported, but those in `LEFT_OUT`. Of each name, the table says what kind of thing
it has and where its own module has it; of classes also their bases, the names of their members, and the
fields of dataclasses; of enumerations names and values; of numbers and words the value. Nothing of what the
DSL does is in it. Of the bindings of its compiler (`cutlass._mlir`) there are the names alone.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import functools
import importlib
import inspect
import json
import math
import operator
import pkgutil
import re
import sys
import textwrap
import types
import warnings
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from cutlass_aot.programs.describe.definitions import is_reachable_by_name, qualified_name, unwrapped
from cutlass_aot.programs.describe.values.functions import NO_ATTRIBUTES, name_in_dsl

LEFT_OUT = ("cutlass.jax", "cutlass.operators", "cutlass.kernels", "cutlass._mlir._mlir_libs")
"""Modules that are of other distributions or of extensions, or for frameworks that no program here uses."""
NAMED = re.compile(r"cutlass\._mlir\.dialects\._(?:\w+_enum_gen|nvvm_ops_gen)")
"""Modules of the bindings whose functions and enumerations programs have in requests, told by their names."""
INSPECTED = (
    "cutlass._mlir.dialects._nvvm_ops_gen:atomicrmw",
    "cutlass._mlir.dialects._nvvm_ops_gen:fmax",
    "cutlass._mlir.dialects._nvvm_ops_gen:fmin",
    "cutlass._mlir.dialects._nvvm_ops_gen:mul_packed_f32x2",
    "cutlass.cute._tvm_ffi_args_spec_converter:_convert_single_arg",
    "cutlass.cute.arch.nvvm_wrappers:mul_packed_f32x2",
    "cutlass.pipeline.sm100:PipelineTmaUmma.producer_acquire",
)
"""Functions whose parameters programs inspect, to tell releases of the DSL from each other."""
_BINDINGS = "cutlass._mlir"
_WORD = re.compile(r"[A-Za-z0-9_.+-]{0,48}")
_PLAIN = (bool, int, float, str, type(None))
_NOT_DECLARED = (
    "__repr__",
    "__init_subclass__",
    "__subclasshook__",
    "__annotate__",
    "__annotate_func__",
    "__reduce__",
    "__reduce_ex__",
)
_BY_DATACLASSES = ("__eq__", "__init__", "__replace__", "__setattr__", "__delattr__", "__hash__")
_BY_ENUM = (
    "__new__",
    "__init__",
    "_generate_next_value_",
    "__reduce_ex__",
    "__format__",
    "__dir__",
    "__hash__",
)


def is_the_dsls(name: str) -> bool:
    """Whether a module is of the DSL and in the table."""
    if not (name == "cutlass" or name.startswith("cutlass.")) or name.startswith(LEFT_OUT):
        return False
    if NAMED.fullmatch(name):
        return True
    return ".pyir_" not in name and not (is_of_bindings(name) and "._" in name.removeprefix(_BINDINGS))


def is_of_bindings(name: str) -> bool:
    """Whether a module binds the compiler."""
    return name == _BINDINGS or name.startswith(f"{_BINDINGS}.")


def modules() -> dict[str, types.ModuleType]:
    """Every module of the DSL that can be imported here, by name."""
    package = importlib.import_module("cutlass")
    importlib.import_module("cutlass.cute")
    for info in pkgutil.walk_packages(package.__path__, "cutlass.", onerror=lambda name: None):
        if is_the_dsls(info.name):
            try:
                importlib.import_module(info.name)
            except Exception as error:
                print(f"note: {info.name}: {type(error).__name__}: {error}", file=sys.stderr)
    return {name: module for name, module in sorted(sys.modules.items()) if module and is_the_dsls(name)}


def is_plain(value: Any) -> bool:
    """Whether a value is a finite number, a word, None, or a tuple of these."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    if isinstance(value, str) and not _WORD.fullmatch(value):
        return False  # Code, prose, or a path of this machine.
    return type(value) in _PLAIN and not (isinstance(value, float) and not math.isfinite(value))


def home(thing: Any) -> str:
    """`module:qualified.name` of a class or function, if its own module has it there; else empty."""
    result: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for part in getattr(thing, "__qualname__", "?").split("."):
        result = vars(result).get(part) if hasattr(result, "__dict__") else None
        result = getattr(result, "__func__", result)
    return f"{thing.__module__}:{thing.__qualname__}" if result is thing else ""


def kind_of(value: Any) -> tuple[str, Any]:
    """What a name has: a kind of the table, and what else the table says of it."""
    if isinstance(value, types.ModuleType):
        own = value.__name__ == "cutlass" or value.__name__.startswith("cutlass.")
        return ("module" if own else "foreign"), value.__name__
    if is_plain(value):
        return "constant", value
    if isinstance(value, enum.Enum):
        where = home(type(value))
        return ("member", f"{where}.{value.name}") if where and value.name else ("value", None)
    if isinstance(value, types.FunctionType):
        return kind_of_function(value)
    if isinstance(value, functools.partial) and (where := name_in_dsl(value)):
        return ("partial", where) if is_the_dsls(where.partition(":")[0]) else ("value", None)
    if isinstance(value, type):
        where = home(value)
        if not where:
            return "value", None
        if not is_the_dsls(value.__module__):
            return ("value", None) if value.__module__.startswith("cutlass") else ("foreign", where)
        return "class", where
    name = getattr(value, "_name", None)
    if name and type(value).__module__ == "typing" and getattr(sys.modules["typing"], name, None) is value:
        return "foreign", f"typing:{name}"
    if type(value).__module__ in ("typing", "types", "typing_extensions") and callable(value):
        return "annotation", None
    return "value", None


def kind_of_function(value: types.FunctionType) -> tuple[str, Any]:
    """A function: in the table by its name if requests describe it by its name and nothing else."""
    if not value.__module__.startswith("cutlass"):
        where = home(value)
        return ("foreign", where) if where else ("value", None)
    inner = unwrapped(value)
    if not isinstance(inner, types.FunctionType) or not is_reachable_by_name(inner):
        return "value", None
    if any(not name.startswith(NO_ATTRIBUTES) for name in vars(inner) | vars(value)):
        return "value", None
    return "function", qualified_name(inner)


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Members that the source of a class declares, without those that Python adds."""
    skipped = {*_NOT_DECLARED}
    if "__dataclass_fields__" in vars(kind):
        skipped |= {*_BY_DATACLASSES} - {
            name for name, item in vars(kind).items()
            if getattr(item, "__code__", None) and item.__code__.co_filename != "<string>"
        }  # fmt: skip
    if issubclass(kind, enum.Enum):
        skipped |= {*_BY_ENUM, *kind.__members__}
    for name, member in sorted(vars(kind).items()):
        code = isinstance(getattr(member, "__func__", member), types.FunctionType) or isinstance(
            member, property
        )
        if issubclass(kind, enum.Enum) and name.startswith("_") and name.endswith("_") and name != "__str__":
            continue
        if name in skipped or name.startswith(
            ("_abc_", "_member_", "_value2member", "_hashable", "_unhashable")
        ):
            continue
        if code or not name.startswith("__"):
            yield name, member


def class_of(kind: type) -> dict[str, Any]:
    """What the table has of a class."""
    result: dict[str, Any] = {"bases": [base_of(base) for base in kind.__bases__ if base is not object]}
    if issubclass(kind, enum.Enum):
        result["enum"] = {
            name: ([member.value] if is_plain(member.value) else []) if member.name == name else member.name
            for name, member in kind.__members__.items()
        }
    elif type(kind).__module__ in ("abc", "typing"):
        result["meta"] = "protocol" if getattr(kind, "_is_protocol", False) else "abstract"
    elif type(kind) is not type:
        result["meta"] = home(type(kind)) or "unknown"
    if "__dataclass_fields__" in vars(kind):
        given = vars(kind)["__dataclass_params__"]
        result["dataclass"] = {"frozen": given.frozen, "eq": given.eq, "order": given.order}
        own = vars(kind).get("__annotations__", {})
        result["fields"] = [field_of(item) for item in dataclasses.fields(kind) if item.name in own]
        names = {item.name for item in dataclasses.fields(kind)}
        if only_checks(vars(kind).get("__post_init__")):
            result["checked"] = True
    else:
        names = set()
    for name, member in members_of(kind):
        if name in names:
            continue
        inner = getattr(member, "__func__", member)
        if isinstance(inner, (types.FunctionType, functools.partialmethod)):
            result.setdefault("functions", []).append(name)
        elif isinstance(member, (property, functools.cached_property, types.MemberDescriptorType)):
            result.setdefault("properties", []).append(name)
        else:
            sort, more = kind_of(member)
            if sort == "constant":
                result.setdefault("constants", {})[name] = more
            elif sort == "class" and more.startswith(f"{kind.__module__}:{kind.__qualname__}."):
                result.setdefault("classes", []).append(name)
            else:
                result.setdefault("values", []).append(name)
    return result


def only_checks(function: Any) -> bool:
    """Whether a ``__post_init__`` only looks at fields: it sets nothing, and calls no method of its own."""
    if not isinstance(function, types.FunctionType):
        return False
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.startswith("self.") or called in ("setattr", "object.__setattr__", "vars"):
                return False
    return True


def default_of(value: Any, absent: bool) -> list[Any] | None:
    """A default in a list; an empty one if there is none, and None if its value is not plain."""
    return [] if absent else [value] if is_plain(value) else None


def field_of(item: dataclasses.Field[Any]) -> list[Any]:
    """Name, type, whether it is a parameter, whether by name alone, and the default if it is plain.

    In place of the default there may be the name of the class, one of Python's own, that makes it.
    """
    absent = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    factory: Any = item.default_factory
    name = getattr(factory, "__name__", "")
    default = name if vars(builtins).get(name) is factory else default_of(item.default, absent)
    text = item.type if isinstance(item.type, str) else str(item.type)
    return [item.name, text, item.init, bool(item.kw_only), default]


def base_of(kind: type) -> str:
    """A base class, by its place; empty if that is not in the table."""
    where = home(kind)
    return (
        where if where and (is_the_dsls(kind.__module__) or not kind.__module__.startswith("cutlass")) else ""
    )


def everything_in(module: types.ModuleType) -> dict[str, Any]:
    """What a module has, also what it makes or imports on first use."""
    names = {*vars(module), *dir(module), *getattr(module, "__all__", ())}
    later = vars(module).get("__getattr__")
    if isinstance(later, types.FunctionType):
        # The names that it answers to are in its code, or in a dictionary beside it.
        names |= {text for text in later.__code__.co_consts if isinstance(text, str) and text.isidentifier()}
        for name in later.__code__.co_names:
            known = vars(module).get(name)
            names |= (
                {key for key in known if isinstance(key, str)}
                if isinstance(known, (dict, set, tuple))
                else set()
            )
    result = {}
    for name in sorted(names):
        if not name.startswith("__") or name == "__version__":
            value = getattr(module, name, _ABSENT)
            if value is not _ABSENT:
                result[name] = value
    return result


_ABSENT = object()


def is_told_by_name(value: Any) -> bool:
    """Whether a value is a function or an enumeration."""
    return isinstance(value, (types.FunctionType, enum.EnumMeta))


def module_of(name: str, module: types.ModuleType) -> dict[str, Any]:
    """What the table has of a module."""
    result: dict[str, Any] = {}
    listed: dict[str, list[str]] = {}
    elsewhere: dict[str, list[str]] = {}
    for attribute, value in everything_in(module).items():
        kind, more = kind_of(value)
        where, _, qualified = str(more).partition(":")
        if is_of_bindings(name) and NAMED.fullmatch(where) and is_told_by_name(value):
            pass
        elif NAMED.fullmatch(name):
            continue
        elif kind != "module" and (is_of_bindings(name) or (kind == "value" and isinstance(value, type))):
            kind, more = ("class" if isinstance(value, type) else "value"), f"{name}:{attribute}"
        where, _, qualified = str(more).partition(":")
        if kind in ("class", "function") and qualified == attribute:
            if where == name:
                listed.setdefault("classes" if kind == "class" else "functions", []).append(attribute)
            else:
                elsewhere.setdefault(f"{kind} {where}", []).append(attribute)
        elif kind == "module" and more == f"{name}.{attribute}":
            listed.setdefault("modules", []).append(attribute)
        elif kind in ("value", "annotation"):
            listed.setdefault(f"{kind}s", []).append(attribute)
        elif kind == "constant":
            result.setdefault("constants", {})[attribute] = more
        else:
            result.setdefault("others", {})[attribute] = [kind, more]
    result |= {kind: " ".join(names) for kind, names in listed.items()}
    if elsewhere:
        result["from"] = {where: " ".join(names) for where, names in elsewhere.items()}
    if hasattr(module, "__all__"):
        result["all"] = " ".join(module.__all__)
    return result


def options_of() -> list[list[Any]]:
    """Compile options: class, name in keys, flag, kind of value, default, whether left out if absent."""
    compiler = sys.modules["cutlass.base_dsl.compiler"]
    return [
        [
            kind.__name__,
            kind._option_name,
            kind._cli_flag,
            kind._value_kind,
            kind._default,
            kind._suppress_when_absent,
        ]
        for kind in compiler._OPTION_REGISTRY
    ]


def settings_of() -> list[str]:
    """Environment variables by which the DSL decides what it compiles."""
    settings = sys.modules["cutlass.base_dsl.dsl"].BaseDSL._get_dsl().envar
    return sorted(
        f"{settings.prefix}_{entry.source}"
        for entry in settings._ENV_VAR_SPEC
        if entry.affects_compile and isinstance(entry.source, str)
    )


def wrappers_of() -> dict[str, Any]:
    """What the functions read that the DSL's decorators make: by it, programs tell one function from another.

    Of each decorator, the module of the function, the variables that it closes over, and the names that it
    reads from its module.
    """
    cute = sys.modules["cutlass.cute"]
    decorators = {
        "cute.jit": cute.jit,
        "cute.kernel": cute.kernel,
        "dsl_user_op": sys.modules["cutlass"].dsl_user_op,
    }
    result = {}
    for name, decorate in decorators.items():

        def inner() -> None:
            pass

        made = decorate(inner)
        cells = dict(zip(made.__code__.co_freevars, made.__closure__, strict=True))
        closure = {key: ["function"] if cell.cell_contents is inner else ["constant", cell.cell_contents]
                   for key, cell in cells.items()}  # fmt: skip
        read = inspect.getclosurevars(made).globals
        names = {
            key: wrapper_name(value)
            for key, value in sorted(read.items())
            if key not in cells and key != "__name__"
        }
        result[name] = {"module": made.__globals__["__name__"], "closure": closure, "names": names}
    return result


def wrapper_name(value: Any) -> list[Any]:
    """What a name holds that a decorator's function reads."""
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, (type, types.FunctionType)):
        kind = "class" if isinstance(value, type) else "function"
        return [kind, f"{value.__module__}:{value.__qualname__}"]
    return ["constant", value] if is_plain(value) else ["value", None]


def parameters_of(where: str) -> list[list[Any]]:
    """Name, kind and default of each parameter of a function."""
    module, _, name = where.partition(":")
    signature = inspect.signature(operator.attrgetter(name)(sys.modules[module]))
    return [
        [item.name, int(item.kind), default_of(item.default, item.default is inspect.Parameter.empty)]
        for item in signature.parameters.values()
    ]


def table() -> dict[str, Any]:
    """The whole table."""
    warnings.simplefilter("ignore")
    result = modules()
    kinds: dict[str, type] = {}
    work = [
        item
        for module in result.values()
        for item in everything_in(module).values()
        if isinstance(item, type)
    ]
    while work:
        kind = work.pop()
        where, home_module = home(kind), kind.__module__
        if (
            where
            and where not in kinds
            and is_the_dsls(home_module)
            and (not is_of_bindings(home_module) or (NAMED.fullmatch(home_module) and is_told_by_name(kind)))
        ):
            kinds[where] = kind
            work += [*kind.__bases__, type(kind)]
            work += [value for value in vars(kind).values() if isinstance(value, type)]
    return {
        "release": metadata.version("nvidia-cutlass-dsl"),
        "left out": list(LEFT_OUT),
        "options": options_of(),
        "settings": settings_of(),
        "cuda": [sys.modules["cutlass"].CUDA_VERSION.major, sys.modules["cutlass"].CUDA_VERSION.minor],
        "wrappers": wrappers_of(),
        "tensor memory": [
            dict(sys.modules["cutlass.cute.arch.tmem"].TMEM_MIN_ALLOC_COLUMNS_MAP),
            dict(sys.modules["cutlass.cute.arch.tmem"].TMEM_MAX_ALLOC_COLUMNS_MAP),
        ],
        "shared memory": dict(sys.modules["cutlass.cutlass_dsl.cutlass"].SMEM_CAPACITY_MAP),
        "parameters": {where: parameters_of(where) for where in INSPECTED},
        "modules": {name: module_of(name, module) for name, module in result.items()},
        "classes": {where: class_of(kind) for where, kind in sorted(kinds.items())},
    }


def encoded(result: Mapping[str, Any]) -> str:
    """The table as text: a line for each module and class, so that what changes can be read."""
    lines = []
    for part, value in result.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"{json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
            lines.append(f"{json.dumps(part)}: {{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(part)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


@click.command(help=__doc__)
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--check", is_flag=True, help="Write nothing, and fail if the file is another.")
def main(output: Path, check: bool) -> None:
    text = encoded(table())
    if not check:
        output.write_text(text, encoding="utf-8")
    elif output.read_text(encoding="utf-8") != text:
        raise click.ClickException(f"{output} is not of the DSL that is installed: write it again")


if __name__ == "__main__":
    main()
