"""Find files of installed packages without importing the packages."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from cutlass_aot.errors import ToolchainError
from cutlass_aot.runtime.machine.installation import command_for

_MAX_NOTICE_BYTES = 1 << 22
_TOLD = ("License-Expression", "License", "Author", "Author-email")
"""Fields of a package's metadata. Source: https://packaging.python.org/specifications/core-metadata."""


def distribution(package: str) -> metadata.Distribution:
    """An installed package."""
    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise ToolchainError(
            f"the package {package} is not installed, and the build side needs it; install it "
            f"with: {command_for('build')}"
        ) from None


def package_file(package: str, suffix: str) -> Path:
    """The file of a package whose path ends with ``/suffix``."""
    for entry in distribution(package).files or ():
        if entry.as_posix().endswith("/" + suffix):
            path = Path(str(entry.locate())).resolve()
            if path.is_file():
                return path
    raise _incomplete(package, suffix)


def module_file(package: str, module: str, suffix: str) -> Path:
    """A file under the directory of a package's top-level module.

    Faster for packages with very many files, whose list takes long to read.
    """
    distribution(package)
    spec = find_spec(module)
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(directory, suffix).resolve()
        if path.is_file():
            return path
    raise _incomplete(package, f"{module}/{suffix}")


def license_text(package: str) -> bytes:
    """The licence in a package's metadata."""
    for entry in sorted(distribution(package).files or (), key=str):
        if "licenses" in entry.parts and entry.stem.lower() == "license":
            path = Path(str(entry.locate()))
            if path.is_file():
                return path.read_bytes()
    raise _incomplete(package, "licence, which a bundle with a part of it has to carry")


def license_notices(package: str, version: str) -> bytes:
    """Every licence and notice of a package, one after the other; what its metadata says if it has none.

    Raises:
        ToolchainError: if this version is not installed.
    """
    found = distribution_of_code(package, version)
    texts: dict[str, bytes] = {}
    for entry in found.files or ():
        in_metadata = any(part.endswith(".dist-info") for part in entry.parts[:-1])
        if in_metadata and entry.name.upper().startswith(
            ("LICENSE", "LICENCE", "NOTICE", "AUTHORS", "COPYING")
        ):
            path = Path(str(entry.locate()))
            if path.is_file() and path.stat().st_size <= _MAX_NOTICE_BYTES:
                texts[entry.as_posix().partition("/")[2].removeprefix("licenses/")] = path.read_bytes()
    if not texts:
        said = [f"{name}: {value}" for name in _TOLD for value in found.metadata.get_all(name) or ()]
        return f"{package} {version} has no file of a licence; its metadata say\n\n".encode() + (
            "\n".join(said) or "nothing of one"
        ).encode("utf-8", "backslashreplace")
    return b"\n".join(f"==== {name} of {package}\n\n".encode() + text for name, text in sorted(texts.items()))


def distribution_of_code(package: str, version: str) -> metadata.Distribution:
    """An installed package that kernels were made from, which has to be of this version still.

    ``version`` may leave out which build of it, such as ``+cpu``.
    """
    try:
        found = metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError):
        found = None
    if found is None or version not in (found.version, found.version.partition("+")[0]):
        raise ToolchainError(
            f"a bundle with code of {package} {version} has to carry its licence, and "
            f"{found.version if found else 'no release'} is installed: install {package}=={version}"
        )
    return found


def _incomplete(package: str, missing: str) -> ToolchainError:
    return ToolchainError(
        f"the package {package} {distribution(package).version} came without its {missing}; "
        f"reinstall it with: {command_for('build', again=True)}"
    )
