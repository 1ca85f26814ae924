"""Trace a declared kernel, and record what its code reads meanwhile.

:mod:`cutlass_aot.builder.check.undeclared` asks for it under different conditions, and compares.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import importlib
import json
import os
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cutlass_aot.kernels
from cutlass_aot.builder.compile.messages import Trace, Traced
from cutlass_aot.generators.compile_errors import explain
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.distributions import installed
from cutlass_aot.generators.registry import source_of
from cutlass_aot.programs.describe.distributions import deciding_origin_of

SYMBOL = "traced"
"""Name of the exported function: always the same, since it is part of an object's bytes."""

INSTALLED = ("site-packages", "dist-packages")
"""Folders that packages are installed in."""

_OF_THE_TOOLCHAIN = ("cutlass-aot", "nvidia-cutlass-dsl", "nvidia-cutlass-operators")
"""Distributions that are part of every key."""

_DATA = (bool, int, float, str)
_OF_THE_MAPPING = ("os", "_collections_abc", "collections.abc")


def trace(request: Trace) -> Traced:
    """Do what is requested; the process cannot be used for anything else afterwards."""
    os.chdir(request.folder)
    for name, value in request.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    reads: dict[str, str] = {}
    before = set(sys.modules)
    location = request.generator.location
    home = Home.of(location.partition(":")[0])
    _record_reads(reads, home)
    generator = request.generator.load()
    if not isinstance(generator, DeclaredGenerator):
        raise TypeError(f"{location} is not a declared kernel")
    declared = {name: importlib.import_module(name) for name in generator.modules}
    for place, value in request.globals.items():
        name, _, variable = place.partition(":")
        setattr(declared[name], variable, json.loads(value))
    combinations = list(generator.declared.combinations())
    objects = {
        str(position): _object(generator, combinations[position], request.target)
        for position in request.combinations
    }
    variables = {
        f"{name}:{variable}": json.dumps(value)
        for name, module in declared.items()
        for variable, value in _variables(module).items()
    }
    covered = {str(file) for name in generator.distributions for file in installed(name).files.values()}
    modules = sorted(
        name
        for name, module in list(sys.modules.items())
        if name not in generator.modules
        and (file := getattr(module, "__file__", None)) not in covered
        and home.has(file)
        and _has_code(module)
    )
    distributions = {
        origin.name
        for name, module in list(sys.modules.items())
        if name not in before
        and name not in generator.modules
        and (file := getattr(module, "__file__", None)) not in covered
        and not home.has(file)
        and _uses_the_dsl(module)
        and (origin := deciding_origin_of(module)) is not None
        and origin.name not in _OF_THE_TOOLCHAIN
    }
    return Traced(objects, reads, variables, tuple(modules), tuple(sorted(distributions)))


def _uses_the_dsl(module: types.ModuleType) -> bool:
    """Whether a module has the DSL, or anything of it, among its variables."""
    for value in list(vars(module).values()):
        home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(home, str) and home.partition(".")[0] == "cutlass":
            return True
    return False


def _object(generator: DeclaredGenerator, values: Mapping[str, Any], target: str) -> str:
    """Digest of a kernel's record and its object; if it cannot be compiled, a text that says so."""
    try:
        # Any numbers would do: they are the same in each trace.
        kernel = generator.kernel(values, target, load_profile("h200"))
        if kernel is None:
            return "no kernel"
        compiled = generator.compile(kernel)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "traced.o"
            compiled.export_to_c(str(path), function_name=SYMBOL, export_only_tvm_ffi_symbols=True)
            return hashlib.sha256(kernel.encoded() + path.read_bytes()).hexdigest()
    except Exception as error:  # Code of others, which the conditions of a trace may cause to fail.
        return explain(error)


class Home(NamedTuple):
    """The folder of a kernel's modules: an installed package, or where its package or module lies."""

    folder: Path

    @classmethod
    def of(cls, module: str) -> Home:
        """The home of a kernel that a module declares."""
        if module.startswith("cutlass_aot."):
            return cls(Path(cutlass_aot.kernels.__file__).parent)
        path = source_of(module)
        if path is None:
            raise ModuleNotFoundError(f"{module} has no source file")
        top = path.absolute().parents[module.count(".") + (path.name == "__init__.py")]
        installed = top.name in INSTALLED
        return cls(top / module.partition(".")[0] if installed else top)

    def has(self, file: str | None) -> bool:
        """Whether a source file is in the folder, and not in a Python environment inside it."""
        if file is None or not Path(file).absolute().is_relative_to(self.folder):
            return False
        return not set(INSTALLED) & set(Path(file).absolute().relative_to(self.folder).parts)


def _has_code(module: types.ModuleType) -> bool:
    """Whether a module has any code besides its docstring; a folder without ``__init__.py`` has none."""
    path = source_of(module.__name__)
    return path is not None and any(
        not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in ast.parse(path.read_bytes()).body
    )


def _record_reads(reads: dict[str, str], home: Home) -> None:
    """From now on, record each environment variable that these modules read, and where."""
    kind = type(os.environ)
    original = kind.__getitem__

    def getitem(self: Any, key: str) -> str:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") in _OF_THE_MAPPING:
            frame = frame.f_back
        if home.has(frame.f_code.co_filename):
            reads.setdefault(str(key), f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return str(original(self, key))

    kind.__getitem__ = getitem  # type: ignore[method-assign]


def _variables(module: types.ModuleType) -> dict[str, Any]:
    """Module-level variables with plain values that the module's functions read and that are not constants.

    A name in capitals that no function assigns is a constant: it depends only on the module's source, which
    is part of every key.
    """
    path = source_of(module.__name__)
    if path is None:
        return {}
    read: set[str] = set()
    assigned: set[str] = set()
    for code in _functions(compile(path.read_bytes(), str(path), "exec")):
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL":
                read.add(str(instruction.argval))
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                assigned.add(str(instruction.argval))
    return {
        name: value
        for name in sorted(read)
        if type(value := getattr(module, name, None)) in _DATA
        and not name.startswith("__")
        and (name != name.upper() or name in assigned)
    }


def _functions(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _functions(constant)
