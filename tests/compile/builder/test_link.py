"""Libraries for each host: equal bytes from equal kernels, nothing shown or needed beyond, clear errors."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from elftools.elf.elffile import ELFFile

from cutlass_aot.builder.link import linker
from cutlass_aot.builder.link.check_library import check_library
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.builder.link.packages import module_file
from cutlass_aot.builder.native import TVM_FFI_SYMBOLS
from cutlass_aot.errors import LinkError, ToolchainError
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX, EXPORT_PREFIX
from cutlass_aot.schema.targets import HOSTS
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile

SLOT = "void *cutlass_aot_code_plain[2]; "
PLAIN = SLOT + "int __tvm_ffi_plain(void) { return 1; }"
PLAIN_LLVM = "define i32 @__tvm_ffi_plain() {\n  ret i32 1\n}\n"


def exported(symbols: Iterable[str]) -> list[str]:
    """The names under which a library shows its kernels and their slots."""
    return [prefix + symbol for symbol in symbols for prefix in (EXPORT_PREFIX, CODE_PREFIX)]


class Native(NamedTuple):
    """What is linked with for a host, and what is linked."""

    host: str
    toolchain: LinkToolchain
    texts: dict[str, str]
    compiled: dict[str, Path]


@pytest.fixture(scope="module", params=sorted(HOSTS))
def native(
    request: pytest.FixtureRequest,
    objects: dict[str, Path],
    cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Native:
    """The objects for each host."""
    toolchain = LinkToolchain.detect(request.param)
    texts = {symbol: KernelObject.from_bytes(path.read_bytes()).host_code for symbol, path in objects.items()}
    compiled = toolchain.compile(texts, tmp_path_factory.mktemp(request.param), cache)
    return Native(request.param, toolchain, texts, compiled)


@pytest.fixture
def plain_c(toolchain: LinkToolchain, cache: Path, tmp_path: Path) -> Callable[..., Path]:
    """Compile a piece of C with the pinned compiler: to an object, or with -shared to a library."""

    def compile_c(source: str, *flags: str, glibc: str = "2.28") -> Path:
        output = tmp_path / f"plain{len(list(tmp_path.iterdir()))}.o"
        caches = str(cache / "zig")
        target = f"x86_64-linux-gnu.{glibc}"
        kind = [] if "-shared" in flags else ["-c"]
        arguments = ["-target", target, "-O2", "-fPIC", "-x", "c", "-", *kind, *flags]
        subprocess.run(
            [str(toolchain.zig), "cc", *arguments, "-o", str(output)],
            input=source.encode(),
            env={"ZIG_GLOBAL_CACHE_DIR": caches, "ZIG_LOCAL_CACHE_DIR": caches},
            check=True,
        )
        return output

    return compile_c


def test_the_same_bytes_in_any_order_and_anywhere(native: Native, cache: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.so", tmp_path / "elsewhere" / "second.so"
    second.parent.mkdir()
    native.toolchain.link(native.compiled, first, cache)
    moved: dict[str, Path] = {}
    for symbol, path in reversed(native.compiled.items()):
        moved[symbol] = tmp_path / "elsewhere" / f"{len(moved)} moved.o"
        moved[symbol].write_bytes(path.read_bytes())
    other = tmp_path / "other cache"
    native.toolchain.link(moved, second, other)
    data = first.read_bytes()
    assert second.read_bytes() == data
    for path in (cache, other, tmp_path, native.toolchain.zig.parent, Path.cwd()):
        assert str(path).encode() not in data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "first.so", "other cache"]
    assert len(list(second.parent.iterdir())) == len(moved) + 1
    assert first.stat().st_mode & 0o777 == 0o644


def test_the_same_bytes_in_any_company(native: Native, cache: Path, tmp_path: Path) -> None:
    """Host code is compiled in batches, whose members depend on what is there when."""
    for number, batch in enumerate((sorted(native.texts)[:1], sorted(native.texts)[1:])):
        directory = tmp_path / f"batch {number}"
        directory.mkdir()
        texts = {symbol: native.texts[symbol] for symbol in reversed(batch)}
        again = native.toolchain.compile(texts, directory, tmp_path / f"cache {number}")
        assert sorted(again) == batch
        for symbol, path in again.items():
            assert path.read_bytes() == native.compiled[symbol].read_bytes()
            assert str(tmp_path).encode() not in path.read_bytes()
        assert sorted(directory.iterdir()) == sorted(again.values())
    assert native.toolchain.compile({}, tmp_path, cache) == {}


def test_the_symbols_that_an_object_tells_of_are_those_of_its_compiled_host_code(native: Native) -> None:
    for symbol, path in native.compiled.items():
        with path.open("rb") as stream:
            symbols = [
                item
                for item in ELFFile(stream).get_section_by_name(".symtab").iter_symbols()
                if item["st_info"]["bind"] != "STB_LOCAL"
            ]
        missing = {item.name for item in symbols if item["st_shndx"] == "SHN_UNDEF"}
        shown = {item.name for item in symbols} - missing
        undefined, defined = KernelObject(native.texts[symbol], b"").symbols()
        assert shown == defined == set(exported([symbol]))
        # What is not reached any more once it is optimised is not missing: the compiled code needs no more.
        assert missing <= undefined
        # Which device is current is not asked by one that takes addresses alone.
        unused = {"_cudaFuncSetAttribute", "printf", *(["_cudaGetDevice"] if "addressed" in symbol else [])}
        assert undefined - missing <= unused


def test_a_library_shows_its_kernels_and_slots_alone(native: Native, cache: Path, tmp_path: Path) -> None:
    library, host = tmp_path / "k.so", native.host
    native.toolchain.link(native.compiled, library, cache)
    check_library(library, exported(native.compiled), host)
    with pytest.raises(LinkError, match=r"missing: __tvm_ffi_absent, cutlass_aot_code_absent; .* none$"):
        check_library(library, exported([*native.compiled, "absent"]), host)
    gone = min(native.compiled)
    with pytest.raises(LinkError, match=f"none; not expected: __tvm_ffi_{gone}, cutlass_aot_code_{gone}$"):
        check_library(library, exported(sorted(native.compiled)[1:]), host)
    (other,) = HOSTS.keys() - {host}
    with pytest.raises(LinkError, match=r"k\.so: what was linked is for \w+; expected \w+"):
        check_library(library, exported(native.compiled), other)


def test_nothing_but_the_objects_and_the_shim_is_linked_in(
    native: Native, cache: Path, tmp_path: Path
) -> None:
    """What these leave undefined, libtvm_ffi or the C library defines: no licence but ours."""
    library = tmp_path / "k.so"
    native.toolchain.link(native.compiled, library, cache)
    (shim,) = cache.glob(f"shim-{native.toolchain.fingerprint[:32]}.o")
    defined: set[str] = set()
    undefined: set[str] = set()
    for path in (*native.compiled.values(), shim):
        with path.open("rb") as stream:
            for symbol in ELFFile(stream).get_section_by_name(".symtab").iter_symbols():
                missing = symbol["st_shndx"] == "SHN_UNDEF"
                (undefined if missing else defined).add(symbol.name)
    providers = provider_of_each(library)
    made_by_the_linker = {"", "_GLOBAL_OFFSET_TABLE_", "__real_TVMFFIEnvGetStream"}
    assert undefined - defined - providers.keys() <= made_by_the_linker
    assert {symbol for symbol, provider in providers.items() if provider is None} <= TVM_FFI_SYMBOLS
    of_the_c_library = {provider for provider in providers.values() if provider is not None}
    assert {provider.partition(".")[0].partition("-")[0] for provider in of_the_c_library} <= {
        "ld", "libc", "libdl",
    }  # fmt: skip
    licenses = native.toolchain.licenses()
    assert sorted(licenses) == ["cutlass-aot.txt"]
    assert b"Apache License" in licenses["cutlass-aot.txt"]


def provider_of_each(library: Path) -> dict[str, str | None]:
    """What a library leaves undefined; the library that each symbol's version is of, None without one."""
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        providers = {
            auxiliary["vna_other"]: version.name
            for version, auxiliaries in elf.get_section_by_name(".gnu.version_r").iter_versions()
            for auxiliary in auxiliaries
        }
        versions = elf.get_section_by_name(".gnu.version")
        return {
            symbol.name: providers.get(versions.get_symbol(number)["ndx"])
            for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols())
            if symbol.name and symbol["st_shndx"] == "SHN_UNDEF"
        }


def test_more_kernels_than_fit_on_a_command_line_are_linked(
    compiled: dict[str, Path], toolchain: LinkToolchain, cache: Path, tmp_path: Path
) -> None:
    directory = tmp_path.joinpath(*["long" * 60] * 4, 'a "quoted" \\name')
    directory.mkdir(parents=True)
    data = compiled["scale_sm_90a"].read_bytes()
    many = {}
    for index in range(2200):
        symbol = f"scale_{index:06}"
        many[symbol] = directory / f"{index}.o"
        many[symbol].write_bytes(data.replace(b"scale_sm_90a", symbol.encode()))
    assert sum(len(str(path)) for path in many.values()) > os.sysconf("SC_ARG_MAX")
    toolchain.link(many, tmp_path / "many.so", cache)
    check_library(tmp_path / "many.so", exported(many), "x86_64")


COMPILER = """#!/bin/sh
# A compiler that is quicker than a real one: it makes an empty file of each of its inputs.
for argument; do
    case "$argument" in @*) sed 's/[.]ll$/.o/' "${argument#@}" | tr '\\n' '\\0' | xargs -0 touch ;; esac
done
"""


def test_more_kernels_than_fit_on_a_command_line_are_compiled(
    toolchain: LinkToolchain, tmp_path: Path
) -> None:
    compiler = tmp_path / "zig"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    many = {f"{'kernel' * 40}_{index}": PLAIN_LLVM for index in range(9000)}
    assert sum(len(f"{symbol}.ll") for symbol in many) > os.sysconf("SC_ARG_MAX")
    (tmp_path / "out").mkdir()
    compiled = dataclasses.replace(toolchain, zig=compiler).compile(many, tmp_path / "out", tmp_path / "c")
    assert set(compiled.values()) == set((tmp_path / "out").iterdir())
    assert compiled.keys() == many.keys()


def test_a_loaded_library_says_what_is_wrong_with_the_machine(
    objects: dict[str, Path],
    compiled: dict[str, Path],
    toolchain: LinkToolchain,
    cache: Path,
    tmp_path: Path,
) -> None:
    """The machine's own driver, or none: an error from the shim, and a clean end also after dlclose."""
    toolchain.link({"spread_sm_90a": compiled["spread_sm_90a"]}, tmp_path / "k.so", cache)
    program = (
        "import _ctypes, ctypes, sys\n"
        "from pathlib import Path\n"
        "from cutlass_aot.builder.link.kernel_object import KernelObject\n"
        "from tests.compile.builder.test_shim import Kernel\n"
        "tvm_ffi = ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)\n"
        "code = KernelObject.from_bytes(Path(sys.argv[3]).read_bytes()).gpu_code\n"
        "kernel = Kernel(Path(sys.argv[1]), code)\n"
        "failed = kernel.launch_status(0)\n"
        "error = ctypes.c_void_p()\n"
        "tvm_ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(error))\n"
        # A 24-byte object header, then kind and message, each an address and a length.
        "words = (ctypes.c_uint64 * 7).from_address(error.value)\n"
        "print(failed, ctypes.string_at(words[5], words[6]).decode())\n"
        "_ctypes.dlclose(kernel.library._handle)\n"
    )
    arguments = [tmp_path / "k.so", tvm_ffi_library(), objects["spread_sm_90a"]]
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("-1 cannot load the kernel on device 0: "), done.stdout
    assert "libcuda.so.1" in done.stdout or "CUDA_ERROR_NO_DEVICE" in done.stdout, done.stdout


def tvm_ffi_library() -> Path:
    """The library that programs have loaded."""
    return module_file("apache-tvm-ffi", "tvm_ffi", "lib/libtvm_ffi.so")


def test_what_is_linked_against_is_what_libtvm_ffi_has() -> None:
    with tvm_ffi_library().open("rb") as stream:
        symbols = ELFFile(stream).get_section_by_name(".dynsym").iter_symbols()
        exported_by_it = {
            symbol.name
            for symbol in symbols
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        }
    assert exported_by_it >= TVM_FFI_SYMBOLS


def test_errors_are_the_tools_own_words(
    toolchain: LinkToolchain, cache: Path, tmp_path: Path, plain_c: Callable[..., Path]
) -> None:
    needy = plain_c("void nowhere_defined(void); int __tvm_ffi_n(void) { nowhere_defined(); return 0; }")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(LinkError, match=r"linking k\.so failed .*\n(.*\n)*.*nowhere_defined"):
        toolchain.link({"n": needy}, out / "k.so", cache)
    foreign = tmp_path / "foreign.o"
    foreign.write_bytes(b"not an object")
    with pytest.raises(LinkError, match=r"linking k\.so failed"):
        toolchain.link({"n": foreign}, out / "k.so", cache)
    plain = plain_c(PLAIN)
    with pytest.raises(LinkError, match=r"multiply defined|duplicate symbol"):
        toolchain.link({"plain": plain, "again": plain_c(PLAIN)}, out / "k.so", cache)
    with pytest.raises(LinkError, match=r"k\.so: there is nothing to link"):
        toolchain.link({}, out / "k.so", cache)
    with pytest.raises(LinkError, match=r"missing: __tvm_ffi_other, .*; not expected: __tvm_ffi_plain, "):
        toolchain.link({"other": plain}, out / "k.so", cache)
    assert list(out.iterdir()) == []


def test_errors_of_the_compiler_are_its_own_words(native: Native, cache: Path, tmp_path: Path) -> None:
    toolchain, out = native.toolchain, tmp_path / "out"
    out.mkdir()
    words = r"compiling the host code of a and 1 more failed \(exit status 1\); its last words:\n(.*\n)*"
    with pytest.raises(LinkError, match=words + r"b\.ll:2:.*use of undefined value '%nowhere'"):
        toolchain.compile({"a": PLAIN_LLVM, "b": PLAIN_LLVM.replace("1\n", "%nowhere\n")}, out, cache)
    with pytest.raises(LinkError, match=r"compiling the host code of a failed .*\n(.*\n)*.*error: "):
        toolchain.compile({"a": "no LLVM text"}, out, cache)
    for symbol in ("../plain", "two words", "@inputs", "ä", ""):
        with pytest.raises(LinkError, match="cannot be the name of a C function"):
            toolchain.compile({symbol: PLAIN_LLVM}, out, cache)
    absent = dataclasses.replace(toolchain, zig=tmp_path / "absent")
    with pytest.raises(
        LinkError, match=r"host code of a failed: .*absent.*; is the package ziglang complete"
    ):
        absent.compile({"a": PLAIN_LLVM}, out, cache)
    assert list(out.iterdir()) == []


def test_a_failed_link_leaves_the_library_that_was_there(
    toolchain: LinkToolchain, cache: Path, tmp_path: Path, plain_c: Callable[..., Path]
) -> None:
    library = tmp_path / "k.so"
    toolchain.link({"plain": plain_c(PLAIN)}, library, cache)
    before = library.read_bytes()
    with pytest.raises(LinkError):
        toolchain.link({"other": plain_c(PLAIN)}, library, cache)
    assert library.read_bytes() == before


@pytest.mark.parametrize(
    ("source", "flags", "glibc", "message"),
    [
        (PLAIN + " int other(void) { return 2; }", [], "2.28", "not expected: other$"),
        (PLAIN, ["-Wl,-rpath,/somewhere"], "2.28", "search paths: /somewhere$"),
        (
            SLOT + "int logout(const char *); int __tvm_ffi_plain(const char *x) { return logout(x); }",
            ["-lutil"],
            "2.28",
            "needs libutil.so.1; expected nothing but ld-linux-x86-64.so.2, libc.so.6, libdl.so.2",
        ),
        (
            SLOT + "unsigned arc4random(void); unsigned __tvm_ffi_plain(void) { return arc4random(); }",
            [],
            "2.36",
            "needs glibc 2.36; expected at most 2.28",
        ),
    ],
)
def test_libraries_that_would_not_load_everywhere_are_refused(
    plain_c: Callable[..., Path], source: str, flags: list[str], glibc: str, message: str
) -> None:
    library = plain_c(source, "-shared", "-lc", *flags, glibc=glibc)
    with pytest.raises(LinkError, match=message):
        check_library(library, exported(["plain"]), "x86_64")


def test_what_is_no_library_is_refused(tmp_path: Path, plain_c: Callable[..., Path]) -> None:
    with pytest.raises(LinkError, match=r"absent\.so: what was linked cannot be read back"):
        check_library(tmp_path / "absent.so", ["k"], "x86_64")
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(LinkError, match=r"text\.so: what was linked cannot be read back"):
        check_library(tmp_path / "text.so", ["k"], "x86_64")
    whole = plain_c(PLAIN, "-shared").read_bytes()
    for length in range(0, len(whole), 64):
        (tmp_path / "truncated.so").write_bytes(whole[:length])
        with pytest.raises(LinkError):
            check_library(tmp_path / "truncated.so", exported(["plain"]), "x86_64")


def test_the_fingerprint_differs_on_what_decides_the_bytes(
    toolchain: LinkToolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LinkToolchain.detect("x86_64").fingerprint == toolchain.fingerprint
    # Where something is installed does not decide anything.
    moved = dataclasses.replace(toolchain, zig=tmp_path / "zig", includes=(tmp_path,))
    assert moved.fingerprint == toolchain.fingerprint
    seen = {toolchain.fingerprint}

    def must_differ(changed: LinkToolchain) -> None:
        assert changed.fingerprint not in seen
        seen.add(changed.fingerprint)

    must_differ(LinkToolchain.detect("aarch64"))
    for package in toolchain.versions:
        must_differ(dataclasses.replace(toolchain, versions={**toolchain.versions, package: "0.0.1"}))
    shim = tmp_path / "shim.c"
    first, *others = linker._SHIM
    shim.write_bytes(first.read_bytes() + b"\n")
    with monkeypatch.context() as patch:
        patch.setattr(linker, "_SHIM", (shim, *others))
        must_differ(dataclasses.replace(toolchain))
    header = tmp_path / "arguments.h"
    header.write_bytes(linker._HEADER.read_bytes() + b"\n")
    with monkeypatch.context() as patch:
        patch.setattr(linker, "_HEADER", header)
        must_differ(dataclasses.replace(toolchain))
    for number, source in enumerate(linker._LAUNCHER):
        changed = tmp_path / source.name
        changed.write_bytes(source.read_bytes() + b"\n")
        sources = list(linker._LAUNCHER)
        sources[number] = changed
        with monkeypatch.context() as patch:
            patch.setattr(linker, "_LAUNCHER", tuple(sources))
            must_differ(dataclasses.replace(toolchain))
    flags = ("_COMPILE_FLAGS", "_HOST_CODE_FLAGS", "_LINK_FLAGS", "_LIBRARIES", "_KERNEL_FLAGS")
    changes = {name: (*getattr(linker, name), f"-D{name}") for name in flags}
    changes["_HOST_FLAGS"] = {**linker._HOST_FLAGS, "x86_64": ("-mno-sse4",)}
    changes["_EXPORTS"] = "{ global: *; };"
    changes["GLIBC"] = "2.31"
    changes["TVM_FFI_SYMBOLS"] = TVM_FFI_SYMBOLS | {"TVMFFIAnother"}
    for name, value in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(linker, name, value)
            must_differ(dataclasses.replace(toolchain))


def test_versions_are_those_installed(toolchain: LinkToolchain) -> None:
    assert toolchain.tvm_ffi_version == metadata.version("apache-tvm-ffi")
    for package, version in toolchain.versions.items():
        assert version == metadata.version(package)


@pytest.mark.parametrize("package", ["apache-tvm-ffi", "nvidia-cuda-crt", "nvidia-cuda-runtime", "ziglang"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.distribution

    def without(name: str) -> metadata.Distribution:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", without)
    with pytest.raises(ToolchainError, match=rf"{package} is not .*pip install .*\[build\]'"):
        LinkToolchain.detect("x86_64")


@pytest.mark.parametrize(
    ("package", "missing"),
    [
        ("nvidia-cuda-runtime", "include/cuda_runtime_api.h"),
        ("nvidia-cuda-crt", "include/crt/host_defines.h"),
    ],
)
def test_an_incomplete_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str, missing: str) -> None:
    # Packages such as dask bring importlib_metadata, which puts classes of its own in place of Python's.
    kind = type(metadata.distribution(package))
    real = inspect.getattr_static(kind, "files")

    def some(distribution: metadata.Distribution) -> list[metadata.PackagePath]:
        files = real.__get__(distribution) or ()
        return [path for path in files if not path.as_posix().endswith(f"/{missing}")]

    monkeypatch.setattr(kind, "files", property(some))
    with pytest.raises(ToolchainError, match=rf"{package} 13.* without its {missing}; reinstall"):
        LinkToolchain.detect("x86_64")


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(
        ToolchainError, match="host 'riscv64' cannot be linked; expected one of aarch64, x86_64"
    ):
        LinkToolchain.detect("riscv64")


def test_detection_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from cutlass_aot.builder.link.linker import LinkToolchain\n"
        "LinkToolchain.detect().fingerprint\n"
        "print(sorted({'torch', 'tvm_ffi', 'ziglang', 'cutlass', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
