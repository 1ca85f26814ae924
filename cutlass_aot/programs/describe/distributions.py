"""Which distribution a module comes from, and a digest of the Python sources that it installed.

The files themselves are digested, not the distribution's list of hashes, so that an edit of an installed file
counts. Files are read once a process.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from cutlass_aot import errors
from cutlass_aot.errors import ToolchainError

NEUTRAL = frozenset(
    {
        "apache-tvm-ffi", "cuda-bindings", "cuda-core", "cuda-pathfinder", "cuda-python", "cupy", "einops",
        "jax", "jaxlib", "ml-dtypes", "mpmath", "numba", "numba-cuda", "numpy", "nvidia-cutlass-dsl",
        "packaging", "pluggy",
        "pytest", "scipy", "setuptools", "sympy", "torch", "torch-c-dlpack-ext", "tqdm", "triton",
        "typing-extensions",
    }
)  # fmt: skip
"""Distributions of frameworks and the DSL, whose code writes nothing into kernels. Every request has an entry
for the DSL; what another release of the others would change is in the arguments."""
_WITH_KERNELS = {
    "torch": ("torch/_inductor/kernel", "torch/_native", "torch/_vendor/quack"),
}
"""Folders of such distributions that have kernels of their own. Each is an origin of its name."""

DSL = "nvidia-cutlass-dsl"
_specs: dict[str, Any] = {}
"""``__spec__`` of the modules that were looked up, by which a reload is noticed: it makes a new one."""
_IN_PLACE_OF_THE_DSL = "cutlass_aot.programs.without_dsl"
OWN_FOLDER = f"{Path(errors.__file__).resolve().parent}/"
"""The folder of this package, whose code decides nothing about kernels."""


class Origin(NamedTuple):
    """Where a module comes from.

    Attributes:
        name: of the distribution, normalized as in PEP 503; for code that no distribution installed, of its
            outermost package or module; for kernels within a framework, of their folder.
        version: of the distribution, ``-`` without one.
        root: directory that ``files`` are relative to.
        files: Python sources, sorted.
    """

    name: str
    version: str
    root: str
    files: tuple[str, ...]

    @property
    def is_neutral(self) -> bool:
        """Whether its code decides nothing about kernels."""
        return self.name in NEUTRAL or self.name.startswith(f"{DSL}-")

    @property
    def fingerprint(self) -> str:
        """Version and digest of the sources, as in a request."""
        return f"{self.version} {_digest(self.root, self.files)[:32]}"


def joined(fingerprints: Iterable[str]) -> str:
    """The fingerprint of one or more origins of one name: a namespace package may have several folders."""
    found = sorted(set(fingerprints))
    if len(found) == 1:
        return found[0]
    version = found[0].partition(" ")[0]
    return f"{version} {hashlib.sha256(chr(0).join(found).encode()).hexdigest()[:32]}"


def origin_of(module: ModuleType) -> Origin | None:
    """Where a module comes from; None for the standard library and for modules without a file.

    Also None for ``__main__``, whose functions are described by their source, and for placeholders of the
    DSL, which has its own entry in a request.
    """
    file = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    if _specs.setdefault(module.__name__, spec) is not spec:
        # After a reload, the file may have changed.
        _specs[module.__name__] = spec
        _digest.cache_clear()
    if module.__name__ == "__main__" or not file or module.__name__.startswith(_IN_PLACE_OF_THE_DSL):
        return None
    return _origin_of_file(str(file), module.__name__)


def deciding_origin_of(module: ModuleType) -> Origin | None:
    """:func:`origin_of` a module whose code may decide kernels; None for other modules."""
    return _unless_neutral(origin_of(module))


def is_of_program(module: ModuleType) -> bool:
    """Whether a module is the program's script or of a package whose code may decide kernels."""
    return module.__name__ == "__main__" or deciding_origin_of(module) is not None


def deciding_origin_of_file(file: str) -> Origin | None:
    """As :func:`deciding_origin_of`, for a source file; its module is found among those imported."""
    name = _module_names(len(sys.modules)).get(file, "")
    return None if name == "__main__" else _unless_neutral(_origin_of_file(file, name or Path(file).stem))


def _unless_neutral(origin: Origin | None) -> Origin | None:
    return None if origin is None or origin.is_neutral else origin


def in_standard_library(file: str) -> bool:
    """Whether a file is of the standard library."""
    return (
        any(file.startswith(f"{folder}/") for folder in _standard_library()) and "/site-packages/" not in file
    )


@functools.lru_cache(maxsize=1)
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"]}
    return tuple(sorted(folders | {str(Path(folder).resolve()) for folder in folders}))


@functools.lru_cache(maxsize=2)
def _module_names(_count: int) -> dict[str, str]:
    """File to module name; the count of modules is the cache key, so that imports renew it."""
    return {
        file: name
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and name != "__mp_main__"
    }


@functools.lru_cache(maxsize=4096)
def _origin_of_file(file: str, module: str) -> Origin | None:
    if in_standard_library(file):
        return None
    for folder in sys.path:
        if folder and file.startswith(f"{folder}/"):
            owner = _owner(folder, file[len(folder) + 1 :])
            if owner is not None:
                return owner
    return _local(file, module)


def _local(file: str, module: str) -> Origin:
    """The origin of code that no distribution installed: its outermost package, or the file alone."""
    path = Path(file)
    parts = module.split(".")
    place = path.parent if path.stem == "__init__" else path.with_suffix("")
    steps = len(parts) - (path.stem != "__init__")
    # A generated file may be loaded as part of a package that is elsewhere.
    if steps <= 0 or list(place.parts[-len(parts) :]) != parts:
        return Origin(module, "-", str(path.parent), (path.name,))
    top = path.parents[steps - 1]
    files = tuple(sorted(item.relative_to(top.parent).as_posix() for item in top.rglob("*.py")))
    return Origin(parts[0], "-", str(top.parent), files)


@functools.lru_cache(maxsize=4096)
def _owner(root: str, path: str) -> Origin | None:
    """The distribution whose ``RECORD`` lists a file, by its path from ``root``, a folder of ``sys.path``."""
    line = f"{path},".encode()
    for folder, record in _records(root):
        if record.startswith(line) or b"\n" + line in record:
            found = _installed(root, folder)
            for own in _WITH_KERNELS.get(found.name, ()):
                if path.startswith(f"{own}/"):
                    return _of_folder(found, own)
            return found
    return None


def _of_folder(origin: Origin, folder: str) -> Origin:
    """Part of a distribution. Its builds, such as ``2.13.0+cpu``, have the same sources."""
    files = tuple(file for file in origin.files if file.startswith(f"{folder}/"))
    return Origin(folder, origin.version.partition("+")[0], origin.root, files)


@functools.lru_cache(maxsize=64)
def _records(root: str) -> tuple[tuple[str, bytes], ...]:
    """The distributions in a directory with their ``RECORD``, in bytes because it can be megabytes."""
    found = []
    for folder in sorted(Path(root).glob("*.dist-info")):
        try:
            found.append((folder.name, (folder / "RECORD").read_bytes()))
        except OSError:
            continue
    return tuple(found)


@functools.lru_cache(maxsize=256)
def _installed(root: str, folder: str) -> Origin:
    name, _, version = folder.removesuffix(".dist-info").rpartition("-")
    record = dict(_records(root))[folder].decode("utf-8", "surrogateescape")
    rows = (line.split(",", 1)[0].strip('"') for line in record.splitlines())
    files = tuple(sorted(row for row in rows if row.endswith(".py") and not row.startswith("../")))
    return Origin(name.lower().replace("_", "-").replace(".", "-"), version, root, files)


def dsl_fingerprint() -> str:
    """Version and digest of the imported DSL, as in a request."""
    return dsl_origin().fingerprint


def dsl_origin() -> Origin:
    """The DSL: its version, and the Python sources of the package ``cutlass`` from all its distributions.

    Two of them install files of the same names, so that neither ``RECORD`` says which are there.
    """
    package = sys.modules.get("cutlass")
    if package is None or not package.__file__:
        raise ToolchainError("the DSL is not imported; expected the package cutlass of nvidia-cutlass-dsl")
    return _dsl(str(Path(package.__file__).parent))


@functools.lru_cache(maxsize=2)
def _dsl(folder: str) -> Origin:
    try:
        version = metadata.version(DSL)
    except metadata.PackageNotFoundError:
        raise ToolchainError(f"no distribution {DSL} is installed: pip install {DSL}") from None
    files = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*.py"))
    # `cutlass.operators` is of another distribution. `_cutlass_ir_version`, which names the build of the
    # libraries, differs between the wheels for two versions of Python.
    foreign = ("operators/", "jax/", "_mlir/_mlir_libs/_cutlass_ir_version")
    own = sorted(file for file in files if not file.startswith(foreign))
    return Origin(DSL, version, folder, tuple(own))


@functools.lru_cache(maxsize=256)
def _digest(root: str, files: Iterable[str]) -> str:
    hasher = hashlib.sha256()
    for name in files:
        try:
            data = Path(root, name).read_bytes()
        except OSError:
            data = b"\0missing"
        hasher.update(f"{name}\0{len(data)}\0".encode())
        hasher.update(data)
    return hasher.hexdigest()
