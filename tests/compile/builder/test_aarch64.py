"""Libraries for aarch64 under emulation: loaded, every symbol looked up, called, and compared with x86-64's.

What runs them is fetched by ``make emulator``; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import tvm_ffi
from elftools.elf.elffile import ELFFile

import cutlass_aot
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled
from cutlass_aot.runtime.launching.gpu_code import Code
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.bundles.catalog import MAX_FILE_BYTES, FileReference
from cutlass_aot.schema.compression import decompressed
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX, EXPORT_PREFIX, LAUNCHER_SYMBOLS
from tests.compile.builder.test_build import command
from tests.support.calls import commands, good_commands, operands
from tests.support.cubins import parameter_sizes
from tests.support.paths import C_SOURCES, REPOSITORY, SUPPORT
from tools.check.emulator import DIRECTORY, emulated, emulator, present

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="aarch64 is emulated on x86_64 alone"),
    pytest.mark.skipif(
        present(DIRECTORY) is None, reason="there is no emulator for aarch64: run make emulator"
    ),
]

HOSTS = ("x86_64", "aarch64")
GLIBC = "2.28"

MANIFEST = """
[bundle]
name = "hosts"
targets = TARGETS
hosts = ["x86_64", "aarch64"]
device = DEVICES

[[kernels]]
generator = "simt_f64_gemm"
targets = ["sm_80"]
ab = "f64"
tile = "16x16"

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_90a"]
ab = "bf16"
tile = "128x128"
cluster = "2x1"
max_per_group = 1

[[kernels]]
generator = "cutlass.operators"
family = "PersistentDenseGemm"
targets = ["sm_100a"]
ab = "f16"
out = "f32"
tile = "128x128"
cluster = "1x1"
max_per_group = 2

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_121a"]
ab = "bf16"
max_per_group = 1
"""
DEVICES = {"sm_80": "h200", "sm_90a": "h200", "sm_100a": "b200", "sm_121a": "gb10"}
if not not_compiled(["sm_107a", "sm_110a"], dsl_toolkit()):
    DEVICES |= {"sm_107a": "rubin", "sm_110a": "thor"}
    MANIFEST += """
[[kernels]]
generator = "cutlass.operators"
targets = ["sm_110a"]
ab = "bf16"
family = "PersistentDenseGemm"
max_per_group = 1

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_107a"]
ab = "f8e4m3"
out = "bf16"
family = "Sm107DenseGemm"
max_per_group = 1
"""
_PAIRS = ", ".join(f'{target} = "{name}"' for target, name in DEVICES.items())
MANIFEST = MANIFEST.replace("TARGETS", str(list(DEVICES))).replace("DEVICES", f"{{ {_PAIRS} }}")


@dataclass(frozen=True)
class Host:
    """How programs are run for a CPU architecture.

    Attributes:
        program: the first words of a command that runs a program.
        python: those of one that runs Python.
        libtvm_ffi: the library, from that architecture's wheel.
        packages: where Python finds what the runtime needs; empty where it is installed.
    """

    name: str
    program: tuple[str, ...]
    python: tuple[str, ...]
    libtvm_ffi: Path
    packages: str

    def run(self, words: Sequence[object], answers: str = "", **environment: str) -> str:
        """What a program prints; it has to end well."""
        return _run([*self.program, *map(str, words)], answers, environment)

    def run_python(self, *words: object, **environment: str) -> str:
        """What Python prints; it has to end well."""
        path = os.pathsep.join(part for part in (self.packages, os.fspath(REPOSITORY)) if part)
        command = [*self.python, *map(str, words)]
        return _run(command, "", {"PYTHONPATH": path, **environment})


def _run(words: list[str], answers: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        words,
        input=answers,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def hosts() -> tuple[Host, Host]:
    """This machine, and the emulated one."""
    site = DIRECTORY / "site"
    own = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    return (
        Host("x86_64", (), (sys.executable,), own, ""),
        Host(
            "aarch64",
            tuple(emulator(DIRECTORY)),
            tuple(emulated(DIRECTORY)),
            site / "tvm_ffi" / "lib" / "libtvm_ffi.so",
            os.fspath(site),
        ),
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few kernels of every kind, for both hosts."""
    root = tmp_path_factory.mktemp("hosts")
    (root / "hosts.toml").write_text(MANIFEST, encoding="utf-8")
    result = command("build", root / "hosts.toml", "--store", root / "store", "--out", root)
    assert result.returncode == 0, result.stderr
    return root / "hosts"


@pytest.fixture(scope="module")
def handles(bundle: Path) -> tuple[KernelHandle, ...]:
    return tuple(cutlass_aot.open(bundle).kernels())


@dataclass(frozen=True)
class Unpacked:
    """What a bundle has, as files that a program can open."""

    launchers: Mapping[str, Path]
    libraries: Mapping[tuple[str, str], Path]
    """By host and digest of the kernel."""
    codes: Mapping[str, Path]
    """By digest of the kernel."""


@pytest.fixture(scope="module")
def unpacked(
    bundle: Path, handles: Sequence[KernelHandle], tmp_path_factory: pytest.TempPathFactory
) -> Unpacked:
    root = tmp_path_factory.mktemp("unpacked")

    def unpack(reference: FileReference) -> Path:
        file = root / reference.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(decompressed((bundle / reference.path).read_bytes(), MAX_FILE_BYTES))
        return file

    libraries, codes = {}, {}
    for handle in handles:
        entry = handle.entry
        codes[handle.digest] = root / f"{handle.digest}.fatbin"
        codes[handle.digest].write_bytes(Code(bundle, handle.group.code).read(entry.code))
        for host in HOSTS:
            libraries[host, handle.digest] = unpack(handle.group.libraries[host][entry.library])
    launchers = json.loads((bundle / "MANIFEST.json").read_text(encoding="utf-8"))["files"]
    found = {host: f"lib/{host}/launcher.so.zst" for host in HOSTS}
    assert set(found.values()) <= set(launchers)
    return Unpacked(
        {host: unpack(FileReference(path, 0, "")) for host, path in found.items()}, libraries, codes
    )


@pytest.fixture(scope="module")
def native(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The program that calls kernels, and a folder with the recording driver, for each host."""
    toolchain = LinkToolchain.detect()
    root = tmp_path_factory.mktemp("native")
    includes = [part for path in toolchain.includes for part in ("-isystem", str(path))]
    flags = ["-std=gnu11", "-O1", "-g0", "-Wall", "-Wextra", "-Werror", *includes]
    caches = {name: str(cache / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    for host in HOSTS:
        (root / host).mkdir()
        compiler = [str(toolchain.zig), "cc", "-target", f"{host}-linux-gnu.{GLIBC}", *flags]
        program = [str(C_SOURCES / "call_kernel.c"), "-ldl", "-o", str(root / host / "call_kernel")]
        _run([*compiler, *program], "", caches)
        driver = [str(C_SOURCES / "recording_driver.c"), "-o", str(root / host / "libcuda.so.1")]
        shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-nostdlib", "-lc", "-Wl,-soname,libcuda.so.1"]
        _run([*compiler, *shared, *driver], "", caches)
    return {host: root / host for host in HOSTS}


Answers = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture(scope="module")
def answers(hosts: Sequence[Host], unpacked: Unpacked, native: Mapping[str, Path]) -> Answers:
    """Give the program commands for a kernel's library, on both hosts; the lines that each prints."""

    def ask(digest: str, lines: Sequence[str], driver: bool = False) -> tuple[list[str], list[str]]:
        first, second = (
            host.run(
                [
                    native[host.name] / "call_kernel",
                    host.libtvm_ffi,
                    unpacked.launchers[host.name],
                    unpacked.libraries[host.name, digest],
                ],
                "".join(f"{line}\n" for line in lines),
                # Nothing of this machine's, were there a GPU.
                LD_LIBRARY_PATH=os.fspath(native[host.name]) if driver else "",
                CUDA_VISIBLE_DEVICES="",
            ).splitlines()
            for host in hosts
        )
        return first, second

    return ask


def exported(library: Path) -> list[str]:
    """Names that a library defines for others."""
    with library.open("rb") as stream:
        symbols = ELFFile(stream).get_section_by_name(".dynsym").iter_symbols()
        return sorted(s.name for s in symbols if s.name and s["st_shndx"] != "SHN_UNDEF")


def machine(library: Path) -> str:
    with library.open("rb") as stream:
        return str(ELFFile(stream)["e_machine"])


def test_every_symbol_is_found(handles: Sequence[KernelHandle], unpacked: Unpacked, answers: Answers) -> None:
    """The loader has resolved what the library needs by then: it is opened with RTLD_NOW."""
    for handle in handles:
        mine, other = (unpacked.libraries[host, handle.digest] for host in HOSTS)
        assert (machine(mine), machine(other)) == ("EM_X86_64", "EM_AARCH64")
        names = exported(other)
        assert names == exported(mine)
        assert {prefix + handle.kernel.symbol for prefix in (EXPORT_PREFIX, CODE_PREFIX)} <= set(names)
        launcher = exported(unpacked.launchers["aarch64"])
        assert launcher == sorted(LAUNCHER_SYMBOLS) == exported(unpacked.launchers["x86_64"])
        lines = [f"find library {name}" for name in names] + [f"find launcher {name}" for name in launcher]
        found = answers(handle.digest, [*lines, "find library absent", "find launcher absent"])
        assert found == tuple([*["found"] * len(lines), "missing", "missing"] for _ in HOSTS)


# What is wrong, as tests/support/calls.py names it, and what is said of it.
SAID = {
    "no arguments": ("TypeError", "Expects 3 parameters|expected 3 operands, got 0"),
    "one argument less": ("TypeError", "Expects 3 parameters|expected 3 operands, got 2"),
    "one argument more": ("TypeError", "Expects 3 parameters"),
    "a number": ("TypeError", "expected Tensor$"),
    "element type": ("ValueError", r"expected dtype=\w+$"),
    "another rank": ("ValueError", "expected ndim=3$|expected a batch in all operands or in none, got 4$"),
    "extent": ("ValueError", r"expected to match (a|b)\.shape\[\d\]$"),
    "divisibility": ("ValueError", r"expected to be divisible by \d+$"),
    "layout": ("ValueError", "expected to be 1$"),
    "in host memory": ("ValueError", "expected device_type=cuda$"),
    "all in host memory": ("ValueError", "expected device_type=cuda$"),
    "on another GPU": ("ValueError", r"expected to match a\.device\.index$"),
    "alignment": ("ValueError", r"expected data alignment=\d+ bytes$"),
    "on a GPU too many": ("RuntimeError", "device 64: devices 0 to 63 are supported$"),
    "without a batch in one": ("ValueError", "expected a batch in all operands or in none, got 3$"),
    "empty": ("ValueError", r"#0: expected extents from 1 to 2\^31 - 1, got 0$"),
    "too long": ("ValueError", r"#0: expected extents from 1 to 2\^31 - 1, got 2147483648$"),
    "backwards": ("ValueError", r"#0: expected positive strides, got -\d+$"),
    "written twice": ("ValueError", "#2: expected positive strides, got 0$"),
    "far apart": ("ValueError", r"#0: expected strides below 2\^40 bytes, got 1125899906842624$"),
}


def test_what_is_wrong_is_said_in_the_same_words(handles: Sequence[KernelHandle], answers: Answers) -> None:
    for handle in handles:
        labelled = commands(handle.kernel)
        mine, other = answers(handle.digest, [line for _, line in labelled])
        assert len(mine) == len(labelled)
        labels = [label for label, _ in labelled]
        assert dict(zip(labels, other, strict=True)) == dict(zip(labels, mine, strict=True))
        seen = set()
        for label, answer in zip(labels, other, strict=True):
            *_, problem = label.split(": ")
            what = next(known for known in (problem, problem.split()[0]) if known in SAID)
            kind, words = SAID[what]
            assert answer.startswith(f"{kind}: "), (label, answer)
            assert re.search(words, answer), (label, answer)
            seen.add(what)
        assert seen >= set(SAID) - {"divisibility"}


def test_without_a_driver_both_say_so(
    handles: Sequence[KernelHandle], answers: Answers, no_gpu: None
) -> None:
    for handle in handles:
        lines = [line for _, line in good_commands(handle.kernel)]
        mine, other = answers(handle.digest, lines)
        assert mine == other
        assert len(other) == len(lines)
        assert all("there is no NVIDIA driver: libcuda.so.1 cannot be loaded" in answer for answer in other)


def split_at(end: str, lines: Sequence[str]) -> list[list[str]]:
    """The lines before each that says ``end``."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == end:
            parts.append([])
        else:
            parts[-1].append(line)
    assert parts.pop() == []
    return parts


def written(first: Sequence[str], second: Sequence[str]) -> Iterator[str]:
    """Lines of two runs, ``..`` where they differ: bytes of parameters that nobody wrote."""
    for one, other in zip(first, second, strict=True):
        if not one.startswith(" parameter "):
            assert one == other
        pairs = zip(re.findall("..?", one), re.findall("..?", other), strict=True)
        yield "".join(mine if mine == its else ".." for mine, its in pairs)


def test_the_driver_is_asked_for_the_same_launches(
    handles: Sequence[KernelHandle], unpacked: Unpacked, answers: Answers
) -> None:
    """Grid, block, shared memory, attributes and parameters, TMA descriptors among them, to the byte."""
    for handle in handles:
        code = unpacked.codes[handle.digest]
        sizes = parameter_sizes(code.read_bytes())
        labelled = good_commands(handle.kernel)
        calls = [line for _, line in labelled]
        # The stack is filled in two ways: what differs then was not written.
        patterned = [line for call in calls for byte in (0x55, 0xAA) for line in (f"stack {byte}", call)]
        lines = [
            "set COMPUTE_CAPABILITY 10.0",
            calls[0],
            f"code {CODE_PREFIX}{handle.kernel.symbol} {code}",
            calls[0],
            f"set PARAMETER_SIZES {','.join(map(str, sizes))}",
            *patterned,
        ]
        mine, other = answers(handle.digest, lines, driver=True)
        first_launch = mine.index("good") + 1
        assert mine[:first_launch] == other[:first_launch]
        assert "its GPU code was not provided" in mine[0]
        assert sum(line.startswith("kernel ") for line in mine[:first_launch]) == 1
        assert f"load {code.stat().st_size} bytes" in "\n".join(mine[:first_launch])
        masked = []
        for lines_of_host in (mine, other):
            launches = split_at("good", lines_of_host[first_launch:])
            assert len(launches) == 2 * len(calls)
            pairs = zip(launches[::2], launches[1::2], strict=True)
            masked.append([list(written(*pair)) for pair in pairs])
        assert masked[0] == masked[1]
        for launch in masked[1]:
            text = "\n".join(launch)
            for given in operands(handle.kernel):
                assert struct.pack("<Q", given.address).hex() in text
            # Half of a TMA descriptor, and padding, are left as they were.
            assert text.count("..") < sum(sizes) * 0.6


def test_python_does_with_a_bundle_what_it_does_elsewhere(
    hosts: Sequence[Host],
    bundle: Path,
    native: Mapping[str, Path],
    handles: Sequence[KernelHandle],
    tmp_path: Path,
) -> None:
    """Found, explained, unpacked, mapped, launched, refused: by CPython for aarch64."""
    mine, other = (
        host.run_python(
            SUPPORT / "use_bundle.py",
            bundle,
            LD_LIBRARY_PATH=os.fspath(native[host.name]),
            COMPUTE_CAPABILITY="10.0",
            CUTLASS_AOT_CACHE=os.fspath(tmp_path / host.name),
        )
        for host in hosts
    )
    assert other == mine
    lines = other.splitlines()
    assert [line for line in lines if line in {handle.name for handle in handles}] == [
        h.name for h in handles
    ]
    assert sum(line.startswith("launch ") for line in lines) == len(handles)
    for refusal in ("one operand less", "an extent", "a number"):
        assert sum(line.startswith(f"{refusal}: ") for line in lines) == len(handles)
    assert sum(line.startswith("another GPU: Incompatible: ") for line in lines) == len(DEVICES)


def test_the_commands_of_a_user_of_aarch64(hosts: Sequence[Host], bundle: Path, no_gpu: None) -> None:
    mine, other = (host.run_python("-m", "cutlass_aot", "verify", bundle) for host in hosts)
    assert other == mine
    facts = json.loads(hosts[1].run_python("-m", "cutlass_aot", "doctor", "--json"))
    assert facts["host"] == "aarch64"
    assert facts["run"]["possible"] is False
    assert facts["run"]["problems"] == [facts["driver"]["problem"]]
    assert "no NVIDIA driver" in facts["driver"]["problem"]
