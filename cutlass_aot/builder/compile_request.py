"""Compile one request of a program, in a fork of the program's process: trace, export, audit."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.builder.audit import audit, inspect_object
from cutlass_aot.builder.export import export
from cutlass_aot.errors import ArtifactError
from cutlass_aot.programs.audit import Trace, check
from cutlass_aot.programs.record import known_variables
from cutlass_aot.programs.request import code_of
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.request import CallByName, Request, Value


def compile_request(
    request: Request,
    compile: Callable[[], Any],
    call: tuple[Any, Sequence[Any], Mapping[str, Any]],
    path: Path,
) -> dict[str, Any]:
    """Compile, export and audit; the object goes to a file.

    Args:
        request: what is compiled.
        compile: compiles it.
        call: compiler, arguments and keywords of the call that made the request.
        path: takes the object.

    Returns:
        What else is known of it, as plain data.

    Raises:
        RequestError: if the trace did what the request does not name.
        ArtifactError: if the object is not what was asked for.
        Exception: whatever the compiler raises.
    """
    start = time.monotonic()
    # Before the trace, which replaces the code of the functions that it goes through.
    code = code_of(call[1], call[2])
    trace = Trace()
    with _calling_conventions() as conventions, trace.watch():
        compiled = compile()
    check(trace, code, request.code, known_variables(request.target, request.device))
    kernel = request.kernel
    if not hasattr(compiled, "export_to_c"):
        raise ArtifactError(f"cute.compile gave a {type(compiled).__name__}, which cannot be exported")
    item = export(compiled, kernel.symbol, path.with_suffix(".ll"))
    data = item.to_bytes()
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    seconds = time.monotonic() - start
    inspection = inspect_object(data)
    audit(inspection, kernel.target, kernel.symbol)
    new.replace(path)
    convention = conventions.get(id(compiled))
    return {
        "sha256": digest(data),
        "size": len(data),
        "facts": inspection.facts.to_record(),
        "seconds": seconds,
        "call": None if convention is None else convention.to_record(),
    }


@contextlib.contextmanager
def _calling_conventions() -> Iterator[dict[int, CallByName]]:
    """Within the block: how each function that is compiled takes arguments by name, as the DSL tells its
    wrapper."""
    found: dict[int, CallByName] = {}
    provider: Any = importlib.import_module("cutlass.cutlass_dsl.tvm_ffi_provider")
    kind = provider.TVMFFIJitCompiledFunctionWithKwargs
    original = kind.__init__

    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        spec = keywords["kwargs_wrapper_spec"]
        own = spec.arg_names[len(spec.arg_names) - len(spec.arg_defaults) :]
        found[id(self)] = CallByName(
            tuple(spec.arg_names),
            tuple(_default(name, value) for name, value in zip(own, spec.arg_defaults, strict=True)),
            tuple(spec.kwonly_names),
            {name: _default(name, value) for name, value in spec.kwonly_defaults.items()},
            tuple(keywords.get("map_dataclass_to_tuple") or ()),
        )  # fmt: skip
        original(self, *arguments, **keywords)

    kind.__init__ = made
    try:
        yield found
    finally:
        kind.__init__ = original


def _default(name: str, value: Any) -> Value:
    """A default value as a runtime without the DSL can give it: numbers, text, None, and tuples of them.

    Compiled code takes named tuples and dataclasses field by field.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = tuple(getattr(value, field.name) for field in dataclasses.fields(value))
    if isinstance(value, (tuple, list)):
        return {"tuple": [_default(name, item) for item in value]}
    held = getattr(value, "value", None)
    if type(held) in (bool, int, float):
        return held
    raise ArtifactError(
        f"argument {name!r} has a default value of {type(value).__qualname__}, expected a number, text, None or "
        "a tuple of them: pass it at each call"
    )
