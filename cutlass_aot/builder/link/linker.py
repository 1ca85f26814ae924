"""Link the native parts of a bundle for any host: libraries of kernels with our shim, and the launcher.

Both need only libtvm_ffi and the C library. Nothing of the linking machine is used: the compiler has the C
library of every host, and a library with the same names takes the place of libtvm_ffi.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cutlass_aot.builder import native
from cutlass_aot.builder.link.packages import distribution, license_text, module_file, package_file
from cutlass_aot.builder.native import GLIBC, TVM_FFI_SYMBOLS
from cutlass_aot.errors import LinkError, ToolchainError
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX, EXPORT_PREFIX, LAUNCHER_SYMBOLS
from cutlass_aot.schema.targets import HOSTS
from cutlass_aot.schema.words import few

_COMPILE_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
# The DSL's host code is not optimised yet: see builder/compile/export.py. It checks operands one after the
# other and gains nothing from vectors, which would only take the compiler longer.
_HOST_CODE_FLAGS = ("-O2", "-fno-vectorize", "-fno-slp-vectorize", "-g0", "-fPIC", "-Wno-override-module")
_HOST_FLAGS = {
    # Atomic operations as instructions: no linked library has the functions that choose between them at run
    # time.
    "aarch64": ("-mno-outline-atomics",),
    "x86_64": (),
}
_LINK_FLAGS = (
    "-shared",
    # Link only the shared C library and nothing of the compiler's own: a missing symbol is then an error. (It
    # also saves building those libraries, which is most of the first link's time.)
    "-nostdlib",
    "-lc",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,-z,defs",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,-z,noexecstack",
)
# The shim looks up functions of the driver at run time, the launcher those of Python.
_LIBRARIES = ("-ldl",)
# The shim learns the device of a launch from this call alone: see shim.c.
_KERNEL_FLAGS = ("-Wl,--wrap=TVMFFIEnvGetStream",)
_EXPORTS = f"{{ global: {EXPORT_PREFIX}*; {CODE_PREFIX}*; cutlass_aot_python_*; local: *; }};\n"
"""A version script for both kinds of library; check_library() then looks at what they export."""
_SHIM = (native.FOLDER / "shim.c", native.FOLDER / "conversions.c")
_LAUNCHER = tuple(native.FOLDER / name for name in ("launcher.c", "dispatch_cache.c", "select.c", "python.c"))
_HEADER = native.FOLDER / "arguments.h"
_TIMEOUT_SECONDS = 900
_ERROR_LINES = 20


@dataclass(frozen=True)
class LinkToolchain:
    """The tools that libraries are linked with, for one host.

    Attributes:
        host: CPU architecture of the machines that load the libraries.
        zig: the compiler and linker.
        includes: directories of the headers of CUDA and tvm-ffi.
        versions: package to version, of all of these and of what compresses libraries.
    """

    host: str
    zig: Path
    includes: tuple[Path, ...]
    versions: Mapping[str, str]

    @classmethod
    def detect(cls, host: str = "x86_64") -> LinkToolchain:
        """Find what is installed, without importing it."""
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
        packages = ("apache-tvm-ffi", "nvidia-cuda-crt", "nvidia-cuda-runtime", "zstandard", "ziglang")
        return cls(
            host=host,
            # Listing ziglang's files takes a while (there are 20,000): ask the import system instead.
            zig=module_file("ziglang", "ziglang", "zig"),
            includes=tuple(dict.fromkeys(headers)),
            versions={name: distribution(name).version for name in packages},
        )

    @property
    def tvm_ffi_version(self) -> str:
        """Version of apache-tvm-ffi that is linked against."""
        return self.versions["apache-tvm-ffi"]

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that determines a library's bytes besides its objects."""
        return digest(
            encode(
                {
                    "compile": (*_COMPILE_FLAGS, *_HOST_CODE_FLAGS, *_HOST_FLAGS[self.host]),
                    "exports": _EXPORTS,
                    "launcher": [digest(source.read_bytes()) for source in (*_LAUNCHER, _HEADER)],
                    "link": (*_LINK_FLAGS, *_LIBRARIES, *_KERNEL_FLAGS),
                    "shim": [digest(source.read_bytes()) for source in _SHIM],
                    "target": self._target,
                    "tvm_ffi": sorted(TVM_FFI_SYMBOLS),
                    "versions": dict(self.versions),
                }
            )
        )

    @property
    def _target(self) -> str:
        return f"{HOSTS[self.host]}.{GLIBC}"

    def compile(self, host_codes: Mapping[str, str], directory: Path, cache: Path) -> dict[str, Path]:
        """Compile the host code of kernels; returns the compiled file of each symbol.

        Equal text gives equal bytes on every machine, whatever is compiled with it.

        Args:
            host_codes: LLVM text (:class:`~cutlass_aot.builder.link.kernel_object.KernelObject`) by symbol.
            directory: takes the compiled files, named by symbol and host.
            cache: directory for the compiler's own cache. Sharing it between calls, even concurrent ones,
                saves seconds each.
        """
        if not host_codes:
            return {}
        for symbol in host_codes:
            if not (symbol.isascii() and symbol.isidentifier()):
                raise LinkError(f"{symbol!r} cannot be the name of a C function")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="host-code-", dir=cache) as folder:
            work = Path(folder)
            for symbol, text in host_codes.items():
                (work / f"{symbol}.ll").write_text(text, encoding="utf-8")
            # In a file: thousands of names do not fit on a command line.
            names = "\n".join(f"{symbol}.ll" for symbol in sorted(host_codes))
            (work / "inputs").write_text(names, encoding="ascii")
            flags = [*_HOST_CODE_FLAGS, *_HOST_FLAGS[self.host]]
            command = ["clang", "-target", HOSTS[self.host], *flags, "-c", "@inputs"]
            self._zig(command, work, cache, f"compiling the host code of {few(sorted(host_codes), 1)}")
            compiled = {}
            for symbol in host_codes:
                compiled[symbol] = directory / f"{symbol}-{self.host}.o"
                (work / f"{symbol}.o").replace(compiled[symbol])
        return compiled

    def link(self, compiled: Mapping[str, Path], output: Path, cache: Path) -> None:
        """Link kernels into one library. Equal files give equal bytes, in any order and on every machine.

        ``compiled`` is the result of :meth:`compile`, by the kernel's symbol (without ``__tvm_ffi_``);
        ``cache`` is as there. The library appears at ``output`` only when it is complete.
        """
        if not compiled:
            raise LinkError(f"{output.name}: there is nothing to link")
        symbols = sorted(compiled)
        shim = [self._object(source, cache) for source in _SHIM]
        inputs = {f"{n}-{symbol[:80]}.o": compiled[symbol] for n, symbol in enumerate(symbols)}
        shown = [prefix + symbol for prefix in (EXPORT_PREFIX, CODE_PREFIX) for symbol in symbols]
        inputs |= {path.name: path for path in shim}
        self._link(inputs, _KERNEL_FLAGS, shown, output, cache)

    def link_launcher(self, output: Path, cache: Path) -> None:
        """Link the launcher, which passes operands to kernels. Its bytes are always the same.

        It appears at ``output`` only when it is complete; ``cache`` is as for :meth:`compile`.
        """
        objects = [self._object(source, cache) for source in _LAUNCHER]
        self._link({path.name: path for path in objects}, (), LAUNCHER_SYMBOLS, output, cache)

    def _link(
        self,
        inputs: Mapping[str, Path],
        flags: Sequence[str],
        symbols: Sequence[str],
        output: Path,
        cache: Path,
    ) -> None:
        """Link files, under the names given, into a library that exports ``symbols`` alone."""
        # Imported here so that detect() can say what to install on a machine without the build side.
        from cutlass_aot.builder.link.check_library import check_library

        descriptor, beside = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
        os.close(descriptor)
        temporary = Path(beside)
        try:
            with tempfile.TemporaryDirectory(prefix="link-", dir=cache) as directory:
                work = Path(directory)
                # Short names: thousands of paths do not fit on a command line, and how to quote a path in a
                # response file is not documented.
                tvm_ffi = self._tvm_ffi(cache)
                for name, path in {**inputs, "libtvm_ffi.so": tvm_ffi}.items():
                    (work / name).symlink_to(path.absolute())
                (work / "inputs").write_text("\n".join([*inputs, "libtvm_ffi.so"]), encoding="utf-8")
                (work / "exports.map").write_text(_EXPORTS, encoding="utf-8")
                script = "-Wl,--version-script=exports.map"
                arguments = [*_LINK_FLAGS, *_LIBRARIES, *flags, script, "@inputs"]
                self._cc([*arguments, "-o", str(temporary.absolute())], work, cache, f"linking {output.name}")
            check_library(temporary, symbols, self.host)
            temporary.chmod(0o644)
            temporary.replace(output)
        finally:
            temporary.unlink(missing_ok=True)

    def _object(self, source: Path, cache: Path) -> Path:
        includes = [part for path in self.includes for part in ("-isystem", str(path))]
        arguments = [*_COMPILE_FLAGS, *includes, "-c", str(source)]
        return self._cached(f"{source.stem}-{self.fingerprint[:32]}.o", arguments, cache, source.name)

    def _tvm_ffi(self, cache: Path) -> Path:
        """A library to link against with those names of libtvm_ffi.so that are used."""
        source = "".join(f"void {symbol}(void) {{}}\n" for symbol in sorted(TVM_FFI_SYMBOLS))
        arguments = ["-shared", "-nostdlib", "-g0", "-Wl,-soname,libtvm_ffi.so", "source.c"]
        name = f"tvm_ffi-{self.fingerprint[:32]}.so"
        return self._cached(name, arguments, cache, "the names of libtvm_ffi.so", source)

    def _cached(self, name: str, arguments: Sequence[str], cache: Path, what: str, source: str = "") -> Path:
        """The compiler's output, from the cache if it is there; ``source`` is written to ``source.c``."""
        compiled = cache / name
        if not compiled.is_file():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="compile-", dir=cache) as work:
                made = Path(work) / name
                (Path(work) / "source.c").write_text(source, encoding="utf-8")
                self._cc([*arguments, "-o", name], Path(work), cache, f"compiling {what}")
                made.replace(compiled)
        return compiled

    def _cc(self, arguments: Sequence[str], work: Path, cache: Path, what: str) -> None:
        """Compile or link against the C library of the host."""
        self._zig(["cc", "-target", self._target, *_HOST_FLAGS[self.host], *arguments], work, cache, what)

    def _zig(self, arguments: Sequence[str], work: Path, cache: Path, what: str) -> None:
        caches = str((cache / "zig").absolute())
        # No other variables of the environment: some, such as CPATH, would change what is built.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "ZIG_GLOBAL_CACHE_DIR": caches,
            "ZIG_LOCAL_CACHE_DIR": caches,
        }
        try:
            done = subprocess.run(
                [str(self.zig), *arguments],
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
            raise LinkError(f"{what} failed (exit status {done.returncode}); its last words:\n{said}")

    def licenses(self) -> dict[str, bytes]:
        """Licences of what is linked in, by file name: only that of our shim and launcher.

        Nothing of the C library, of the compiler's own library or of CUDA is linked in.
        """
        return {"cutlass-aot.txt": license_text("cutlass-aot")}
