"""Registry of generators: decorators for code, entry points for packages, plugins for a manifest."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from cutlass_aot.errors import GeneratorError, ManifestError
from cutlass_aot.generators.compile_errors import explain
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.declaring_files import declaring_files, files_of_name
from cutlass_aot.generators.distributions import installed
from cutlass_aot.generators.protocol import Generator
from cutlass_aot.runtime.declared import DeclaredKernel, declared_kernels
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.entry_points import GENERATORS
from cutlass_aot.schema.words import did_you_mean, few

_registered: dict[str, type[Generator]] = {}


def _file_digest(path: Path) -> str:
    return digest(path.read_bytes())


GeneratorClass = TypeVar("GeneratorClass", bound=type[Generator])


def register(generator: GeneratorClass) -> GeneratorClass:
    """Class decorator: make a generator known under its ``name``, which no other may have."""
    _check(generator, f"{generator.__module__}:{generator.__qualname__}")
    known = _registered.get(generator.name)
    if known is not None and (known.__module__, known.__qualname__) != (
        generator.__module__,
        generator.__qualname__,
    ):
        raise GeneratorError(
            f"generator name {generator.name!r} is taken by {known.__module__}:{known.__qualname__}; "
            f"give {generator.__module__}:{generator.__qualname__} another one"
        )
    _registered[generator.name] = generator
    return generator


@dataclass(frozen=True, slots=True)
class GeneratorReference:
    """Where a generator's class is defined, as text that crosses a process boundary: ``module:Class``."""

    name: str
    location: str

    def load(self) -> Generator:
        """Import the class and make an instance."""
        found = self.resolve()
        if isinstance(found, DeclaredKernel):
            return DeclaredGenerator(found)
        _check(found, self.location)
        generator: Generator = found()  # type: ignore[operator]
        return generator

    def resolve(self) -> object:
        """Import the class or declared kernel."""
        module_name, _, class_name = self.location.partition(":")
        try:
            had_dsl = "cutlass" in sys.modules
            found: object = importlib.import_module(module_name)
            if not had_dsl and "cutlass" in sys.modules:
                raise _brings_dsl(module_name, f"generator {self.name!r}")
            for part in class_name.split("."):
                found = getattr(found, part)
        except GeneratorError:
            raise
        except Exception as error:
            raise GeneratorError(
                f"generator {self.name!r}: {self.location} cannot be imported: {explain(error)}"
            ) from error
        return found


def import_plugin(module: str) -> None:
    """Import a plugin module, which has to register a generator and must not import the DSL."""
    before = set(_known())
    loaded, brings_dsl = _import_plugin(module)
    if set(_known()) == before and not _declared_in(module):
        path = Path(loaded.__file__ or "")
        raise GeneratorError(
            f"plugin {module!r} ({path}) registers no generator: {_elsewhere(path)}decorate its class with "
            "cutlass_aot.generators.registry.register, or a function with cutlass_aot.kernel"
        )
    if brings_dsl:
        raise _brings_dsl(module, f"plugin {module!r}")


def _import_plugin(module: str) -> tuple[ModuleType, bool]:
    """Import a module of a user's; also says whether that has imported the DSL."""
    had_dsl = "cutlass" in sys.modules
    try:
        loaded = importlib.import_module(module)
    except GeneratorError:
        raise
    except Exception as error:
        raise GeneratorError(f"plugin {module!r} cannot be imported: {explain(error)}") from error
    return loaded, not had_dsl and "cutlass" in sys.modules


def _brings_dsl(module: str, what: str) -> GeneratorError:
    return GeneratorError(
        f"{what}: {module} imports the DSL at module level: move `import cutlass` into a module that "
        "enumerate() or compile() imports, so that queries stay light"
    )


def _elsewhere(path: Path) -> str:
    """Which files beside one declare a kernel, for the message about one that does not; ``""`` for none."""
    found = declaring_files(path)
    return f"{few(found)} {'does' if len(found) == 1 else 'do'}; " if found else ""


def _declared_in(module: str) -> list[GeneratorReference]:
    """Generators that a module defines itself."""
    return [
        GeneratorReference(name, location)
        for name, location in _known().items()
        if location.partition(":")[0] == module
    ]


def references() -> dict[str, GeneratorReference]:
    """Every known generator by name, sorted: entry points of installed packages, then registered classes."""
    found: dict[str, GeneratorReference] = {}
    for entry_point in sorted(
        metadata.entry_points(group=GENERATORS), key=lambda item: (item.name, item.value)
    ):
        known = found.get(entry_point.name)
        if known is not None and known.location != entry_point.value:
            raise GeneratorError(
                f"generator name {entry_point.name!r} is claimed by {known.location} and by "
                f"{entry_point.value}: uninstall one of the two packages"
            )
        found[entry_point.name] = GeneratorReference(entry_point.name, entry_point.value)
    for name, location in _known().items():
        known = found.setdefault(name, GeneratorReference(name, location))
        if known.location != location and _own_location(known.resolve()) != location:
            raise GeneratorError(
                f"generator name {name!r} of {location} is taken by {known.location}: give it another one"
            )
    return dict(sorted(found.items()))


def _own_location(found: object) -> str:
    """Where a class or a declared kernel is defined; an entry point may name a module that imports it."""
    if isinstance(found, DeclaredKernel):
        return found.location
    return f"{getattr(found, '__module__', '')}:{getattr(found, '__qualname__', '')}"


def _known() -> dict[str, str]:
    """Name to location of each generator that a decorator has registered."""
    found = {name: f"{cls.__module__}:{cls.__qualname__}" for name, cls in _registered.items()}
    for name, declared in declared_kernels().items():
        if name in found:
            raise GeneratorError(
                f"kernel name {name!r} of {declared.location} is taken by generator {found[name]}: give it "
                "another one"
            )
        found[name] = declared.location
    return found


def find(name: str) -> GeneratorReference:
    """The reference of one generator.

    The error for an unknown name says which file of the working directory may be meant, or lists the known
    ones.
    """
    known = references()
    if name not in known:
        if files := files_of_name(name.rstrip("/"), Path()):
            declares = "declares" if len(files) == 1 else "declare"
            raise ManifestError(
                f"no installed package has a generator {name!r}, but {few(files)} {declares} kernels: "
                f"`try` and `check` take {files[0]} itself; to build, {_for_build(files[0])}"
            )
        raise ManifestError(
            f"unknown generator or declared kernel {name!r}: expected one of {', '.join(known)}; a package "
            f"registers one through the entry-point group {GENERATORS!r}, a module through `plugins` in the "
            "manifest or --plugin, a file as FILE.py to `try` and `check`" + did_you_mean(name, known)
        )
    return known[name]


def _for_build(file: Path) -> str:
    """How a manifest can have the kernels that a file declares."""
    for folder in file.resolve().parents:
        if (folder / "pyproject.toml").is_file():
            return f"install it with: python -m pip install --editable {os.path.relpath(folder)}"
    return "name its module under `plugins` in the manifest"


def named(kernel: str) -> GeneratorReference:
    """The generator of this name, or that a file declares.

    A file is ``PATH.py``, or ``PATH.py:NAME`` if it declares several; it need not be installed.
    """
    name, _, own_name = kernel.partition(".py:") if ".py:" in kernel else (kernel, "", "")
    path = Path(name if name.endswith(".py") else f"{name}.py")
    if not own_name and not kernel.endswith(".py"):
        return find(kernel)
    if not path.is_file():
        raise GeneratorError(f"{path}: no such file: expected one that declares a kernel, or a kernel's name")
    path = path.resolve()
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    # First, so that what is meant is this file and not an installed copy.
    sys.path.insert(0, str(root))
    loaded = set(sys.modules)
    _, brings_dsl = _import_plugin(module)
    declared = _declared_in(module)
    if not declared and own_name not in _known():
        imported = [item for item in references().values() if _module(item) in sys.modules.keys() - loaded]
        names = ", ".join(f"{item.name} ({item.location})" for item in imported)
        others = f" itself, and imports {names}: " if names else f": {_elsewhere(path)}"
        raise GeneratorError(
            f"{path} declares no kernel{others}expected the file that declares one, or the name of a kernel"
        )
    if brings_dsl:
        raise _brings_dsl(module, str(path))
    if own_name:
        return find(own_name)
    if len(declared) != 1:
        names = ", ".join(item.name for item in declared)
        raise GeneratorError(f"{path} declares {names}: name one, such as {kernel}:{declared[0].name}")
    return declared[0]


def _module(reference: GeneratorReference) -> str:
    """The module that a generator is defined in."""
    return reference.location.partition(":")[0]


def source_digests(generator: Generator, file_digest: Callable[[Path], str] = _file_digest) -> dict[str, str]:
    """Module to the digest of its source file, for each of a generator's ``modules``."""
    found = {}
    for module in generator.modules:
        path = source_of(module)
        if path is None:
            raise GeneratorError(
                f"generator {generator.name!r}: module {module!r} of its `modules` has no source file"
            )
        found[module] = file_digest(path)
    return found


def distribution_digests(
    generator: Generator, file_digest: Callable[[Path], str] = _file_digest
) -> dict[str, str]:
    """``DISTRIBUTION/PATH`` to the digest of that file, for all files of a generator's ``distributions``."""
    found: dict[str, str] = {}
    for name in distributions_of(generator):
        try:
            distribution = installed(name)
        except GeneratorError as error:
            raise GeneratorError(f"generator {generator.name!r}: {error}") from None
        if distribution.record is not None:
            # Not a source itself; it is looked at so that another list of files is noticed.
            file_digest(distribution.record)
        found |= {f"{name}/{path}": file_digest(file) for path, file in distribution.files.items()}
    return found


def distributions_of(generator: Generator) -> tuple[str, ...]:
    """Installed distributions all of whose files a generator's code depends on."""
    return tuple(getattr(generator, "distributions", ()))


def code_origins(generator: Generator) -> dict[str, str]:
    """Distributions whose code is in a generator's kernels, with their versions.

    They are its ``distributions``, and the one that has its entry point.
    """
    owners = (
        item.dist.name
        for item in metadata.entry_points(group=GENERATORS, name=generator.name)
        if item.dist is not None
    )
    return {name: metadata.version(name) for name in sorted({*distributions_of(generator), *owners})}


def source_of(module: str) -> Path | None:
    """The source file of a module; None if it has none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin)


def package_folders(modules: Iterable[str]) -> set[str]:
    """Folders of the packages that contain these modules; a namespace package can have several."""
    found: set[str] = set()
    for module in modules:
        package = module.rpartition(".")[0]
        while package:
            try:
                spec = importlib.util.find_spec(package)
            except (ImportError, ValueError):
                spec = None
            found.update((spec.submodule_search_locations or ()) if spec else ())
            package = package.rpartition(".")[0]
    return found


def version_of(generator: Generator, file_digest: Callable[[Path], str] = _file_digest) -> str:
    """A generator's version with the digest of its source files: both are part of a kernel's key."""
    sources = source_digests(generator, file_digest) | distribution_digests(generator, file_digest)
    return f"{generator.version}+{digest(encode(sources))[:16]}"


def _check(candidate: object, location: str) -> None:
    missing = [
        name
        for name in (
            "name", "version", "operations", "modules", "design", "targets", "enumerate", "compile",
        )
        if not hasattr(candidate, name)
    ]  # fmt: skip
    if not isinstance(candidate, type) or missing:
        raise GeneratorError(
            f"{location} is not a generator: it lacks {', '.join(missing) or 'being a class'}; "
            "see cutlass_aot.generators.protocol.Generator"
        )
