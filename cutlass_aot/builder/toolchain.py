"""The installed compiler: its versions, and a fingerprint of its files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

import cutlass_aot
from cutlass_aot.builder.inputs.file_digests import Files
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled, toolkit_for
from cutlass_aot.errors import ToolchainError
from cutlass_aot.runtime.machine.installation import command_for
from cutlass_aot.schema.encoding import digest, encode

# Names of distributions whose files decide what code comes out. Some of the DSL's packages overwrite each
# other's files, so versions do not tell what is installed: files do.
COMPILER_PACKAGES = ("nvidia-cutlass-dsl", "nvidia-cutlass-operators")
_REQUIRED = ("nvidia-cutlass-dsl", "nvidia-cutlass-operators", "torch")
CODE_GENERATION = (
    "builder/compile/audit.py",
    "builder/compile/export.py",
    "builder/compile/fork_client.py",
    "builder/native/__init__.py",
    "builder/link/kernel_object.py",
    "builder/compile/worker.py",
    "builder/compile/fork_server.py",
    "schema/kernels/dtypes.py",
)
"""Our own modules that affect objects and their facts, whatever the generator."""
_OWN = Path(cutlass_aot.__file__).parent
_SKIPPED_SUFFIXES = (".pyc", ".pyo")
_SKIPPED_NAMES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


@dataclass(frozen=True)
class CompilerToolchain:
    """The installed compiler.

    Attributes:
        identity: everything that determines the compiled code, by readable names: versions of its packages
            and of the Python that traces kernels, the CUDA version of the DSL's libraries, digests of every
            installed file and of our own modules.
        versions: package to version.
        toolkit: major CUDA version of the DSL's libraries, whose assembler it is; None if not known.
        roots: directories that its packages are installed in.
    """

    identity: Mapping[str, str]
    versions: Mapping[str, str]
    roots: tuple[Path, ...]
    toolkit: int | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Digest of :attr:`identity`."""
        return digest(encode(self.identity))

    def require(self, targets: Iterable[str]) -> None:
        """Refuse targets that the DSL's assembler does not know."""
        for target in not_compiled(targets, self.toolkit):
            raise ToolchainError(
                f"the DSL compiles with the libraries for CUDA {self.toolkit} here, whose assembler does not "
                f"write code for {target}: {toolkit_for(target)}; of several, the DSL takes the newest that "
                "the machine's driver supports"
            )


def require_build_side() -> None:
    """Find the packages that compile kernels, without importing them.

    Raises:
        ToolchainError: if one is not installed.
    """
    missing = [name for name in _REQUIRED if not _installed(name)]
    if missing:
        raise ToolchainError(
            f"the build side is not installed: {', '.join(missing)} missing; "
            f"install it with: {command_for('build')}"
        )


def detect_compiler(files: Files | None = None) -> CompilerToolchain:
    """Find the DSL and the operators package and digest their files, without importing them.

    ``files`` gives the digests; None reads every file.
    """
    require_build_side()
    distributions = _compiler_distributions()
    files = files or Files()
    installed: dict[str, Path] = {}
    for name, distribution in distributions.items():
        installed |= {f"{name}/{path}": file for path, file in _files(name, distribution).items()}
    # hashlib releases the lock on large buffers: two threads read 250 MB twice as fast as one.
    with ThreadPoolExecutor(max_workers=4) as pool:
        digests = dict(zip(installed, pool.map(files.digest, installed.values()), strict=True))
    versions = {name: distribution.version for name, distribution in sorted(distributions.items())}
    toolkit = dsl_toolkit(versions)
    identity = {
        **versions,
        **({"CUDA of the DSL's libraries": str(toolkit)} if toolkit else {}),
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        **{f"file {name}": sha256 for name, sha256 in sorted(digests.items())},
        **{f"{name} of cutlass-aot": files.digest(_OWN / name) for name in CODE_GENERATION},
    }
    roots = sorted({Path(str(item.locate_file(""))).resolve() for item in distributions.values()})
    return CompilerToolchain(identity, versions, tuple(roots), toolkit)


def _compiler_distributions() -> dict[str, metadata.Distribution]:
    """The compiler's distributions by name; of two with the same name, the one that Python imports."""
    found: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(COMPILER_PACKAGES):
            # They come in the order of sys.path: a later one is shadowed.
            found.setdefault(name, distribution)
    return dict(sorted(found.items()))


def _files(name: str, distribution: metadata.Distribution) -> dict[str, Path]:
    """Installed files of a distribution that can affect the compiled code, by their path in it."""
    if '"editable": true' in (distribution.read_text("direct_url.json") or ""):
        raise ToolchainError(
            f"{name} {distribution.version} is an editable installation, whose files are not known: "
            "install its wheel with pip"
        )
    if not distribution.files:
        raise ToolchainError(
            f"{name} {distribution.version} does not say which files it installed (no RECORD), so that "
            "kernels could not be told apart when it changes: install its wheel with pip"
        )
    chosen = {}
    for entry in distribution.files:
        # Scripts outside site-packages carry the path of their interpreter.
        outside = entry.parts[0] == ".."
        skipped = entry.suffix in _SKIPPED_SUFFIXES or entry.name in _SKIPPED_NAMES
        if not outside and not skipped:
            chosen[entry.as_posix()] = Path(str(distribution.locate_file(entry)))
    return chosen


def own_sources(files: Files) -> dict[str, str]:
    """Digests of this package's own sources, which affect how a bundle is put together."""
    paths = sorted(path for suffix in ("py", "c", "toml") for path in _OWN.rglob(f"*.{suffix}"))
    return {path.relative_to(_OWN).as_posix(): files.digest(path) for path in paths}


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
