"""The DSL's own objects as values: tensors, pointers, streams, numbers, symbolic extents and structures."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.definitions import qualified_name
from cutlass_aot.programs.describe.values.classes import a_class, class_name
from cutlass_aot.programs.describe.values.description import PLAIN, Description, Handler, Passed
from cutlass_aot.programs.describe.values.objects import own_fields
from cutlass_aot.programs.without_dsl.placeholders import Annotation, UnknownClass, is_unknown
from cutlass_aot.schema.requests.request import Value

_STRUCTURES = "cutlass.cute.core"
_ADDRESSES = ("_pointer", "_desc", "_c_pointer", "_c_pointers_cache")
"""Fields in which a pointer of the DSL holds its address, which compiled code takes at each call."""


@functools.lru_cache(maxsize=1)
def handlers() -> Mapping[type, Handler]:
    """Handlers of the DSL's own types. The DSL has been imported wherever there is such an object."""
    runtime: Any = sys.modules.get("cutlass.cute.runtime")
    typing: Any = sys.modules.get("cutlass.base_dsl.typing")
    if runtime is None or typing is None:
        raise RequestError("the DSL is not imported: describe requests from within its cute.compile")
    found: dict[type, Handler] = {
        runtime._FakeTensor: _fake_tensor,
        runtime._Tensor: tensor,
        runtime._Pointer: _pointer,
        runtime._FakeStream: _stream,
        sys.modules["cutlass.cute.typing"].SymInt: _symbol,
        typing.NumericMeta: lambda description, value, passed: {"type": qualified_name(value)},
    }
    compiler: Any = sys.modules.get("cutlass.base_dsl.compiler")
    if compiler is not None:
        found[compiler.CompileOptions] = _options
    structures = sys.modules.get(_STRUCTURES)
    if structures is not None:
        found |= {structures.struct: structure, structures.union: structure}
    found |= dict.fromkeys(_subclasses(typing.Numeric), _numeric)
    driver: Any = sys.modules.get("cuda.bindings.driver")
    if driver is not None:
        found[driver.CUstream] = lambda description, value, passed: {"stream": "CUstream"}
    return found


def _options(description: Description, value: Any, passed: Passed) -> Value:
    """Those of a compiler that a module keeps, as quack's does."""
    return {"options": changed_options(value)}


def changed_options(options: Any) -> dict[str, Value]:
    """The compile options that differ from the DSL's defaults, by their flags."""
    own: dict[str, Value] = {}
    for kind, option in sorted(options.options.items(), key=lambda item: item[0].__name__):
        name = str(getattr(kind, "_cli_flag", None) or kind.__name__)
        name = "cubin-chip" if name == "gpu-arch" else name
        if option.value != kind._default:
            own[name] = option.value if type(option.value) in (bool, int, float, str) else str(option.value)
    selectors = sorted(getattr(options, "_debug_selectors", ()))
    return own | ({"debug": selectors} if selectors else {})


def adapters_of(kind: type) -> Iterator[tuple[str, Any]]:
    """What the DSL makes of an argument of this class: the adapters that a program registered, by scope."""
    registry = sys.modules["cutlass.base_dsl.runtime.jit_arg_adapters"].JitArgAdapterRegistry
    for scope, known in {
        "": registry.jit_arg_adapter_registry,
        **registry.scoped_jit_arg_adapter_registries,
    }.items():
        if kind in known:
            yield scope, known[kind]
    for base in kind.__mro__:
        lazily = registry.lazy_jit_arg_adapter_registry.get(f"{base.__module__}.{base.__qualname__}")
        if lazily is not None and kind not in registry.jit_arg_adapter_registry:
            yield "", lazily
            return


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = type.__subclasses__(kind)
    return [kind, *(deeper for item in direct for deeper in _subclasses(item))]


def _dtype(value: Any) -> Value:
    return None if value is None else qualified_name(value)


def _extent(description: Description, value: Any) -> Value:
    if type(value) is int:
        return value
    if type(value) is tuple:
        return {"tuple": [_extent(description, item) for item in value]}
    return _symbol(description, value, Passed.DYNAMIC)


def _symbol(description: Description, value: Any, passed: Passed) -> Value:
    number = description.symbol(value)
    described = {"symbol": number, "width": value.width, "divisibility": value.divisibility}
    name = getattr(value, "symbol", None)
    return described | ({"name": str(name)} if name else {})


def _fake_tensor(description: Description, value: Any, passed: Passed) -> Value:
    return {
        "tensor": {
            "dtype": _dtype(value.element_type),
            "space": str(value.memspace),
            "alignment": value._typed_tensor.assumed_align,
            "strides_32": bool(value._use_32bit_stride),
            "shape": [_extent(description, item) for item in value.shape],
            "strides": [_extent(description, item) for item in value.stride],
        }
    }


def tensor(description: Description, value: Any, passed: Passed) -> Value:
    """A tensor of a framework: its dtype, alignment and layout decide what the DSL compiles."""
    dtype, alignment, layout = value.__cache_key__
    described: dict[str, Value] = {
        "dtype": _dtype(dtype), "alignment": alignment, "layout": str(layout),
        "strides_32": bool(value._use_32bit_stride),
    }  # fmt: skip
    ffi = getattr(value, "_tvm_ffi_tensor", None)
    if ffi is not None:
        described |= {"device": str(ffi.device.type), "passed_as": str(ffi.dtype)}
    return {"tensor": described}


def _pointer(description: Description, value: Any, passed: Passed) -> Value:
    _refuse_constant(description, passed)
    dtype, space = _dtype(value.dtype), str(value.memspace)
    return {"pointer": {"dtype": dtype, "space": space, "alignment": value._assumed_align}}


def own_pointer(description: Description, value: Any, passed: Passed) -> Value:
    """A program's own class of pointers; most are copies of the DSL's, with the same field names."""
    _refuse_constant(description, passed)
    fields = description.fields(
        {
            name: item
            for name, item in own_fields(value).items()
            if name not in _ADDRESSES or not _is_address(item)
        }
    )
    return {
        "object": class_name(description, type(value)),
        "fields": fields,
        "dtype": _dtype(value.dtype),
        "space": str(value.memspace),
    }


def _refuse_constant(description: Description, passed: Passed) -> None:
    if passed is Passed.CONSTANT:
        description.refuse("a pointer, whose address would be compiled in: pass it as an argument instead")


def _is_address(value: Any) -> bool:
    """Whether a field of a pointer holds only the address, or nothing yet."""
    if isinstance(value, list):
        return all(map(_is_address, value))
    return value is None or type(value) is int or isinstance(value, (ctypes._SimpleCData, ctypes._Pointer))


def _stream(description: Description, value: Any, passed: Passed) -> Value:
    return {"stream": "environment" if getattr(value, "use_tvm_ffi_env_stream", False) else "argument"}


def _numeric(description: Description, value: Any, passed: Passed) -> Value:
    name = qualified_name(type(value))
    if passed in (Passed.DYNAMIC, Passed.EXTENT):
        return {"dynamic": name}
    if type(value.value) not in PLAIN:
        description.refuse(f"a {name} whose value is not known before the trace")
    return {"number": name, "value": value.value}


def structure(description: Description, value: Any, passed: Passed) -> Value:
    """A result of ``cute.struct``: the types of its fields, in their order."""
    fields = value._annotations.items()
    return {"structure": [[name, _field_type(description, kind)] for name, kind in fields]}


def _field_type(description: Description, kind: Any) -> Value:
    if isinstance(kind, Annotation):
        return [kind.name, *(_field_type(description, item) for item in kind.arguments)]
    name = type(kind).__qualname__
    if type(kind).__module__ == _STRUCTURES and name.startswith("struct._") and name.endswith("Meta"):
        # `MemRange[dtype, size]` and `Align[dtype, alignment]`.
        count = kind._align if hasattr(kind, "_align") else kind._size
        short = name.removeprefix("struct._").removesuffix("Meta")
        return [short, _field_type(description, kind._dtype), count]
    return description.value(kind)


def unknown(description: Description, value: Any, passed: Passed) -> Value:
    """A placeholder: refused."""
    description.refuse(f"{value!r}: without the DSL it cannot be described")


def derived_class(description: Description, value: UnknownClass, passed: Passed) -> Value:
    """A class that is derived from a placeholder."""
    if is_unknown(value):
        description.refuse(f"{value.__module__}.{value.__qualname__}: without the DSL it cannot be described")
    return a_class(description, value)
