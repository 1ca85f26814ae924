"""Link the native parts of a bundle: libraries of kernels with our shim, and the launcher.

Either needs libtvm_ffi and the C library alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cutlass_aot.builder.native import GLIBC
from cutlass_aot.builder.native.packages import (
    distribution,
    license_text,
    module_file,
    package_file,
)
from cutlass_aot.errors import LinkError, ToolchainError
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.kernel import EXPORT_PREFIX, LAUNCHER_SYMBOLS
from cutlass_aot.schema.targets import HOSTS

_COMPILE_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
_LINK_FLAGS = (
    "-shared",
    # Of the C library take the shared part alone, and of the compiler's own library nothing: what is missing
    # then is an error. (It also saves building them, most of the first link's time.)
    "-nostdlib",
    "-lc",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,-z,defs",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,-z,noexecstack",
)
# Objects say which device a launch is for through this function alone: see shim.c.
_KERNEL_FLAGS = ("-Wl,--wrap=TVMFFIEnvGetStream",)
_LAUNCHER_FLAGS = ("-ldl",)
_EXPORTS = f"{{ global: {EXPORT_PREFIX}*; cutlass_aot_*short_way; local: *; }};\n"
"""A version script for libraries of either kind; what they export is looked at afterwards."""
_SHIM = Path(__file__).with_name("shim.c")
_LAUNCHER = tuple(Path(__file__).with_name(name) for name in ("launcher.c", "short_way.c"))
_CUDART_VERSION = re.compile(r"^#define\s+CUDART_VERSION\s+(\d+)\s*$", re.MULTILINE)
_TIMEOUT_SECONDS = 900
_ERROR_LINES = 20


@dataclass(frozen=True)
class LinkToolchain:
    """What libraries are linked with, for one host.

    Attributes:
        host: CPU architecture of the machines that load the libraries.
        zig: the compiler and linker.
        includes: directories of the headers of CUDA and of tvm-ffi.
        cudart: the static CUDA runtime.
        tvm_ffi: ``libtvm_ffi.so``; linked against, not linked in.
        versions: package to version, of everything above.
        cuda_runtime_version: version of the CUDA runtime that is linked in, such as ``13.0``.
    """

    host: str
    zig: Path
    includes: tuple[Path, ...]
    cudart: Path
    tvm_ffi: Path
    versions: Mapping[str, str]
    cuda_runtime_version: str

    @classmethod
    def detect(cls, host: str = "x86_64") -> LinkToolchain:
        """Find what is installed; none of it is imported.

        Raises:
            ToolchainError: if a package is missing or incomplete, or ``host`` is not supported.
        """
        if host not in HOSTS:
            raise ToolchainError(
                f"libraries for host {host!r} cannot be linked; expected one of {', '.join(HOSTS)}"
            )
        cuda_header = package_file("nvidia-cuda-runtime", "include/cuda_runtime_api.h")
        crt_header = package_file("nvidia-cuda-crt", "include/crt/host_defines.h")
        ffi_header = module_file("apache-tvm-ffi", "tvm_ffi", "include/tvm/ffi/c_api.h")
        dlpack_header = module_file("apache-tvm-ffi", "tvm_ffi", "include/dlpack/dlpack.h")
        headers = (
            cuda_header.parent,
            crt_header.parent.parent,
            ffi_header.parent.parent.parent,
            dlpack_header.parent.parent,
        )
        packages = ("apache-tvm-ffi", "nvidia-cuda-crt", "nvidia-cuda-runtime", "ziglang")
        return cls(
            host=host,
            # Listing ziglang's files takes a while (there are 20,000): ask the import system instead.
            zig=module_file("ziglang", "ziglang", "zig"),
            includes=tuple(dict.fromkeys(headers)),
            cudart=package_file("nvidia-cuda-runtime", "lib/libcudart_static.a"),
            tvm_ffi=module_file("apache-tvm-ffi", "tvm_ffi", "lib/libtvm_ffi.so"),
            versions={name: distribution(name).version for name in packages},
            cuda_runtime_version=_runtime_version(cuda_header),
        )

    @property
    def tvm_ffi_version(self) -> str:
        """Version of apache-tvm-ffi that is linked against."""
        return self.versions["apache-tvm-ffi"]

    @property
    def glibc(self) -> str:
        """Version of the C library that is linked for."""
        return GLIBC

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that decides a library's bytes besides its objects."""
        return digest(
            encode(
                {
                    "compile": _COMPILE_FLAGS,
                    "cudart": digest(self.cudart.read_bytes()),
                    "exports": _EXPORTS,
                    "launcher": [digest(source.read_bytes()) for source in _LAUNCHER],
                    "link": (*_LINK_FLAGS, *_KERNEL_FLAGS, *_LAUNCHER_FLAGS),
                    "shim": digest(_SHIM.read_bytes()),
                    "target": self._target,
                    "versions": dict(self.versions),
                }
            )
        )

    @property
    def _target(self) -> str:
        return f"{HOSTS[self.host]}.{GLIBC}"

    def link(self, objects: Sequence[tuple[str, Path]], output: Path, cache: Path) -> None:
        """Link objects into one library. Equal objects give equal bytes, in any order and anywhere.

        Args:
            objects: pairs of a kernel's symbol (without ``__tvm_ffi_``) and its object file.
            output: where the library goes; it is complete when it appears there.
            cache: directory that the compiler may keep what it built in. Sharing it between calls, also
                concurrent ones, saves seconds each.

        Raises:
            LinkError: if the linker fails, or what it made is not what was asked for.
        """
        ordered = sorted(objects)
        symbols = [symbol for symbol, _ in ordered]
        if not ordered:
            raise LinkError(f"{output.name}: there are no objects to link")
        if len(set(symbols)) != len(symbols):
            twice = sorted({symbol for symbol in symbols if symbols.count(symbol) > 1})
            raise LinkError(f"{output.name}: symbols given more than once: {', '.join(twice)}")
        for symbol in symbols:
            if not (symbol.isascii() and symbol.isidentifier()):
                raise LinkError(f"{output.name}: {symbol!r} cannot be the name of a C function")
        shim = self._object(_SHIM, cache)
        inputs = {f"{n}-{symbol[:80]}.o": path for n, (symbol, path) in enumerate(ordered)}
        inputs |= {path.name: path for path in (shim, self.cudart, self.tvm_ffi)}
        self._link(inputs, _KERNEL_FLAGS, [EXPORT_PREFIX + symbol for symbol in symbols], output, cache)

    def link_launcher(self, output: Path, cache: Path) -> None:
        """Link the launcher: what gives operands to kernels. Always the same bytes.

        Args:
            output: where the library goes; it is complete when it appears there.
            cache: as for :meth:`link`.

        Raises:
            LinkError: if the compiler or the linker fails.
        """
        objects = [self._object(source, cache) for source in _LAUNCHER]
        inputs = {path.name: path for path in (*objects, self.tvm_ffi)}
        self._link(inputs, _LAUNCHER_FLAGS, LAUNCHER_SYMBOLS, output, cache)

    def _link(
        self,
        inputs: Mapping[str, Path],
        flags: Sequence[str],
        symbols: Sequence[str],
        output: Path,
        cache: Path,
    ) -> None:
        """Link files under the names given into a library that shows ``symbols`` alone."""
        # Here, so that a machine without the build side is told what to install, by detect().
        from cutlass_aot.builder.native.library import check_library

        descriptor, beside = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
        os.close(descriptor)
        temporary = Path(beside)
        try:
            with tempfile.TemporaryDirectory(prefix="link-", dir=cache) as directory:
                work = Path(directory)
                # Short names for everything: thousands of paths do not fit on a command line, and how to
                # quote one in a response file is not written down anywhere.
                for name, path in inputs.items():
                    (work / name).symlink_to(path.absolute())
                (work / "inputs").write_text("\n".join(inputs), encoding="utf-8")
                (work / "exports.map").write_text(_EXPORTS, encoding="utf-8")
                arguments = [*_LINK_FLAGS, *flags, "-Wl,--version-script=exports.map", "@inputs"]
                self._zig(arguments, temporary, work, cache, f"linking {output.name}")
            check_library(temporary, symbols)
            temporary.chmod(0o644)
            temporary.replace(output)
        finally:
            temporary.unlink(missing_ok=True)

    def _object(self, source: Path, cache: Path) -> Path:
        """A compiled source file of ours, from the cache if it is there."""
        cache.mkdir(parents=True, exist_ok=True)
        compiled = cache / f"{source.stem}-{self.fingerprint[:32]}.o"
        if compiled.is_file():
            return compiled
        with tempfile.TemporaryDirectory(prefix="compile-", dir=cache) as work:
            made = Path(work) / "made.o"
            includes = [part for path in self.includes for part in ("-isystem", str(path))]
            arguments = [*_COMPILE_FLAGS, *includes, "-c", str(source)]
            self._zig(arguments, made, Path(work), cache, f"compiling {source.name}")
            made.replace(compiled)
        return compiled

    def _zig(self, arguments: Sequence[str], output: Path, work: Path, cache: Path, what: str) -> None:
        caches = str((cache / "zig").absolute())
        # Nothing else of the environment: variables such as CPATH would change what is built.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "ZIG_GLOBAL_CACHE_DIR": caches,
            "ZIG_LOCAL_CACHE_DIR": caches,
        }
        command = [str(self.zig), "cc", "-target", self._target, *arguments]
        try:
            done = subprocess.run(
                [*command, "-o", str(output.absolute())],
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LinkError(f"{what} failed: {error}; is the package ziglang complete?") from None
        if done.returncode != 0:
            words = (done.stderr + done.stdout).decode("utf-8", "replace").strip().splitlines()
            said = "\n".join(words[-_ERROR_LINES:]) or "nothing (it crashed: is the disk full?)"
            raise LinkError(
                f"{what} failed (exit status {done.returncode}); the linker's last words:\n{said}"
            )

    def licenses(self) -> dict[str, bytes]:
        """Licences of what is linked in, by file name: our shim and launcher, and NVIDIA's CUDA runtime.

        Nothing of the C library or of the compiler's own library is linked in.

        Raises:
            ToolchainError: if a package came without its licence.
        """
        return {
            "cutlass-aot.txt": license_text("cutlass-aot"),
            "nvidia-cuda-runtime.txt": license_text("nvidia-cuda-runtime"),
        }


def _runtime_version(header: Path) -> str:
    """``CUDART_VERSION`` of the headers: 1000 times the major plus 10 times the minor version."""
    match = _CUDART_VERSION.search(header.read_text(encoding="utf-8", errors="replace"))
    if match is None:
        raise ToolchainError(f"{header.name} of nvidia-cuda-runtime does not say CUDART_VERSION")
    number = int(match.group(1))
    return f"{number // 1000}.{number % 1000 // 10}"
