"""Libraries: equal bytes from equal objects, nothing shown or needed that should not be, clear errors."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from cutlass_aot.builder.native import link
from cutlass_aot.builder.native.kernel_object import KernelObject
from cutlass_aot.builder.native.library import check_library
from cutlass_aot.builder.native.link import LinkToolchain
from cutlass_aot.errors import LinkError, ToolchainError
from tests.compile.test_shim import KERNEL

pytestmark = pytest.mark.compile

PLAIN = "int __tvm_ffi_plain(void) { return 1; } long cutlass_aot_code_plain[2];"
HOSTS = ["aarch64", "x86_64"]


def exported(symbols):
    """The names under which a library exports its kernels, and the slots for their GPU code."""
    return [prefix + symbol for symbol in symbols for prefix in ("__tvm_ffi_", "cutlass_aot_code_")]


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


def host_codes(objects: dict[str, Path]) -> dict[str, str]:
    """The LLVM text of kernel objects."""
    return {symbol: KernelObject.from_bytes(path.read_bytes()).host_code for symbol, path in objects.items()}


@pytest.mark.parametrize("host", HOSTS)
def test_the_same_bytes_in_any_order_and_anywhere(
    objects: dict[str, Path], host: str, cache: Path, tmp_path: Path
) -> None:
    toolchain = LinkToolchain.detect(host)
    first, second = tmp_path / "first.so", tmp_path / "elsewhere" / "second.so"
    for name in ("compiled", "elsewhere", "elsewhere/one by one"):
        (tmp_path / name).mkdir()
    texts = host_codes(objects)
    compiled = toolchain.compile(texts, tmp_path / "compiled", cache)
    assert sorted(compiled) == sorted(objects)
    toolchain.link(compiled, first, cache)
    other = tmp_path / "other cache"
    moved: dict[str, Path] = {}
    for name in reversed(texts):
        moved |= toolchain.compile({name: texts[name]}, tmp_path / "elsewhere" / "one by one", other)
    toolchain.link(moved, second, other)
    data = first.read_bytes()
    assert second.read_bytes() == data
    for path in (cache, other, tmp_path, toolchain.zig.parent, Path.cwd()):
        assert str(path).encode() not in data
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "compiled",
        "elsewhere",
        "first.so",
        "other cache",
    ]
    assert len(list((tmp_path / "compiled").iterdir())) == len(objects)
    assert first.stat().st_mode & 0o777 == 0o644


def test_a_library_shows_its_kernels_alone(
    compiled: dict[str, Path], toolchain: LinkToolchain, cache: Path, tmp_path: Path
) -> None:
    library = tmp_path / "k.so"
    toolchain.link(compiled, library, cache)
    check_library(library, exported(compiled), "x86_64")
    with pytest.raises(LinkError, match=r"missing: __tvm_ffi_absent, cutlass_aot_code_absent; .* none"):
        check_library(library, exported([*compiled, "absent"]), "x86_64")
    gone = sorted(compiled)[0]
    with pytest.raises(LinkError, match=f"none; not expected: __tvm_ffi_{gone}, cutlass_aot_code_{gone}$"):
        check_library(library, exported(sorted(compiled)[1:]), "x86_64")
    with pytest.raises(LinkError, match="is for EM_X86_64; expected EM_AARCH64"):
        check_library(library, exported(compiled), "aarch64")


@pytest.mark.parametrize("host", HOSTS)
def test_nothing_but_the_host_code_and_the_shim_is_linked_in(
    objects: dict[str, Path], host: str, cache: Path, tmp_path: Path
) -> None:
    """What these leave undefined, one of them or a shared library defines: no further licences."""
    toolchain = LinkToolchain.detect(host)
    library = tmp_path / "k.so"
    own_cache = tmp_path / "cache"  # with one shim alone
    (tmp_path / "compiled").mkdir()
    compiled = toolchain.compile(host_codes(objects), tmp_path / "compiled", cache)
    toolchain.link(compiled, library, own_cache)
    (shim,) = own_cache.glob("shim-*.o")
    defined: set[str] = set()
    undefined: set[str] = set()
    for path in [*compiled.values(), shim]:
        with path.open("rb") as stream:
            symbols = list(ELFFile(stream).get_section_by_name(".symtab").iter_symbols())
        for symbol in symbols:
            missing = symbol["st_shndx"] == "SHN_UNDEF"
            (undefined if missing else defined).add(symbol.name)
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        shared = {
            s.name for s in elf.get_section_by_name(".dynsym").iter_symbols() if s["st_shndx"] == "SHN_UNDEF"
        }
        tags = elf.get_section_by_name(".dynamic").iter_tags()
        needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
    made_by_the_linker = {"_GLOBAL_OFFSET_TABLE_", "__real_TVMFFIEnvGetStream"}
    assert undefined - defined - shared <= made_by_the_linker
    assert not [name for name in shared if name.startswith("cu")]
    assert needed - {"ld-linux-x86-64.so.2"} == {"libtvm_ffi.so", "libc.so.6", "libdl.so.2"}
    licenses = toolchain.licenses()
    assert sorted(licenses) == ["cutlass-aot.txt"]
    assert b"Apache License" in licenses["cutlass-aot.txt"]


def test_more_objects_than_fit_on_a_command_line(
    compiled: dict[str, Path], toolchain: LinkToolchain, cache: Path, tmp_path: Path
) -> None:
    directory = tmp_path.joinpath(*["long" * 60] * 4, 'a "quoted" \\name')
    directory.mkdir(parents=True)
    data = compiled["scale_sm_90a"].read_bytes()
    many = {}
    for index in range(2200):
        symbol = f"scale_{index:06}"
        many[symbol] = directory / f"{index}.o"
        many[symbol].write_bytes(data.replace(b"_scale_sm_90a\0", f"_{symbol}\0".encode()))
    assert sum(len(str(path)) for path in many.values()) > os.sysconf("SC_ARG_MAX")
    toolchain.link(many, tmp_path / "many.so", cache)
    check_library(tmp_path / "many.so", exported(many), "x86_64")


def test_a_loaded_library_says_what_is_wrong_with_the_machine(
    compiled: dict[str, Path], toolchain: LinkToolchain, cache: Path, tmp_path: Path
) -> None:
    """With any driver or none, and no GPU: an error from the shim, and a clean end also after dlclose."""
    toolchain.link({KERNEL: compiled[KERNEL]}, tmp_path / "k.so", cache)
    program = (
        "import _ctypes, ctypes, sys\n"
        "from pathlib import Path\n"
        "import tvm_ffi.libinfo\n"
        "from tests.compile.test_shim import Kernel\n"
        "tvm_ffi = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi(), mode=ctypes.RTLD_GLOBAL)\n"
        "kernel = Kernel(Path(sys.argv[1]), None)\n"
        "failed = kernel.launch_status(0)\n"
        "error = ctypes.c_void_p()\n"
        "tvm_ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(error))\n"
        # A 24-byte object header, then kind and message, each an address and a length.
        "words = (ctypes.c_uint64 * 7).from_address(error.value)\n"
        "print(failed, ctypes.string_at(words[5], words[6]).decode())\n"
        "_ctypes.dlclose(kernel.library._handle)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "k.so")],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("-1 cannot load the kernel on device 0: "), done.stdout
    assert "there is no NVIDIA driver" in done.stdout or "CUDA_ERROR_NO_DEVICE" in done.stdout


def test_errors_are_the_linkers_own_words(
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
    with pytest.raises(LinkError, match="there is nothing to link"):
        toolchain.link({}, out / "k.so", cache)
    with pytest.raises(LinkError, match="missing: __tvm_ffi_other, cutlass_aot_code_other; not expec"):
        toolchain.link({"other": plain}, out / "k.so", cache)
    assert list(out.iterdir()) == []


def test_what_cannot_be_compiled_is_said(toolchain: LinkToolchain, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"'\.\./plain' cannot be the name of a C function"):
        toolchain.compile({"../plain": ""}, tmp_path, cache)
    with pytest.raises(LinkError, match=r"compiling the host code of k\.ll failed .*\n(.*\n)*.*expected"):
        toolchain.compile({"k": "no LLVM text"}, tmp_path, cache)
    assert list(tmp_path.iterdir()) == []


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
            "long cutlass_aot_code_plain[2];"
            "double acos(double); double __tvm_ffi_plain(double x) { return acos(x); }",
            ["-lm"],
            "2.28",
            "needs libm.so.6; expected nothing but ld-linux-x86-64.so.2, libc.so.6, libdl.so.2",
        ),
        (
            "long cutlass_aot_code_plain[2];"
            "unsigned arc4random(void); unsigned __tvm_ffi_plain(void) { return arc4random(); }",
            [],
            "2.36",
            "needs glibc 2.36; expected at most 2.28",
        ),
    ],
)
def test_libraries_that_would_not_load_everywhere_are_refused(
    plain_c: Callable[..., Path], source: str, flags: list[str], glibc: str, message: str
) -> None:
    with pytest.raises(LinkError, match=message):
        check_library(plain_c(source, "-shared", "-lc", *flags, glibc=glibc), exported(["plain"]), "x86_64")


def test_what_is_no_library_is_refused(
    tmp_path: Path, plain_c: Callable[..., Path], toolchain: LinkToolchain
) -> None:
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
    same = LinkToolchain.detect("x86_64")
    assert same.fingerprint == toolchain.fingerprint
    seen = {toolchain.fingerprint}

    def must_differ(changed: LinkToolchain) -> None:
        assert changed.fingerprint not in seen
        seen.add(changed.fingerprint)

    for package in toolchain.versions:
        must_differ(dataclasses.replace(toolchain, versions={**toolchain.versions, package: "0.0.1"}))
    must_differ(LinkToolchain.detect("aarch64"))
    # Where something is installed does not decide anything.
    assert dataclasses.replace(toolchain, zig=tmp_path / "zig").fingerprint == toolchain.fingerprint
    shim = tmp_path / "shim.c"
    shim.write_bytes(link._SHIM.read_bytes() + b"\n")
    with monkeypatch.context() as patch:
        patch.setattr(link, "_SHIM", shim)
        must_differ(dataclasses.replace(toolchain))
    for name in ("_LINK_FLAGS", "_COMPILE_FLAGS", "_HOST_CODE_FLAGS"):
        with monkeypatch.context() as patch:
            patch.setattr(link, name, (*getattr(link, name), "-g"))
            must_differ(dataclasses.replace(toolchain))
    with monkeypatch.context() as patch:
        patch.setattr(link, "GLIBC", "2.31")
        must_differ(dataclasses.replace(toolchain))


def test_versions_are_those_installed(toolchain: LinkToolchain) -> None:
    assert toolchain.tvm_ffi_version == metadata.version("apache-tvm-ffi")
    assert toolchain.glibc == "2.28"


@pytest.mark.parametrize("package", ["apache-tvm-ffi", "nvidia-cuda-crt", "nvidia-cuda-runtime", "ziglang"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.distribution

    def without(name: str) -> metadata.Distribution:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", without)
    with pytest.raises(ToolchainError, match=rf"{package} is not .*pip install 'cutlass-aot\[build\]'"):
        LinkToolchain.detect("x86_64")


def test_an_incomplete_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Packages such as dask bring importlib_metadata, which puts classes of its own in place of Python's.
    kind = type(metadata.distribution("nvidia-cuda-runtime"))
    real = inspect.getattr_static(kind, "files")

    def some(distribution: metadata.Distribution) -> list[metadata.PackagePath]:
        files = real.__get__(distribution) or ()
        return [path for path in files if path.name != "cuda_runtime_api.h"]

    monkeypatch.setattr(kind, "files", property(some))
    with pytest.raises(ToolchainError, match=r"nvidia-cuda-runtime 13.* without its include/cuda_runt"):
        LinkToolchain.detect("x86_64")


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(ToolchainError, match=r"host 'riscv64' cannot be .* one of aarch64, x86_64"):
        LinkToolchain.detect("riscv64")


def test_detection_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from cutlass_aot.builder.native.link import LinkToolchain\n"
        "LinkToolchain.detect().fingerprint\n"
        "print(sorted({'torch', 'tvm_ffi', 'ziglang', 'cutlass', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
