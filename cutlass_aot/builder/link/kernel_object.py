"""The object of one compiled kernel: its host code as LLVM text for any host, and its GPU code.

The DSL exports host code as LLVM text that holds the GPU code, a fat binary, as one constant. That constant
is taken out and replaced by an exported slot, ``{pointer, size}``, which the loader of the library fills
before the first launch (``shim.c``). The ``target`` lines, which name the host, are removed too, so that the
same text can be compiled for any.

A kernel object is canonical msgpack::

    kind, schema
    host_code    the text
    gpu_code     the fat binary
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from cutlass_aot.errors import ArtifactError, CorruptFile
from cutlass_aot.schema.codec import from_plain, header, to_plain
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX

KIND = "cutlass-aot kernel object"
SCHEMA = 1
MAX_OBJECT_BYTES = 256 << 20

_FATBIN = r"P\EDU\BA"
"""The magic number of a fat binary, as LLVM writes it in a text."""
# A name with other characters than these is quoted.
_NAME = r'@(?:[-\w.$]+|"[^"]*")'
_CONSTANT = re.compile(
    rf'^({_NAME}) = [\w ]*\bconstant \[(\d+) x i8\] c"({re.escape(_FATBIN)}[^"]*)"[^\n]*$', re.MULTILINE
)
# Functions of the CUDA runtime by which host code loads and launches, as the DSL names them (``shim.c``).
_LAUNCHES = re.compile(r"@_cuda(?:LibraryLoadData|LaunchKernelEx)\b")
_TARGET = re.compile(r"^target (?:datalayout|triple) = .*\n", re.MULTILINE)
_FUNCTION = re.compile(rf"^(define|declare) ([^\n]*?)({_NAME})\(", re.MULTILINE)
_VARIABLE = re.compile(rf"^({_NAME}) = ([\w ()\"]*?)\b(global|constant|alias|ifunc) ", re.MULTILINE)
# The DSL's launch configuration, laid out as cudaLaunchConfig_t: grid, block, dynamic shared memory, ...
_CONFIGURATION = "{ [3 x i32], [3 x i32], i64, ptr, ptr, i32 }"
_LAUNCH = re.compile(
    rf"(%\d+) = getelementptr (?:inbounds )?{re.escape(_CONFIGURATION)}, ptr %\d+, i32 0, "
    r"i32 (1, i32 [012]|2)\n\s*store i(?:32|64) (-?\d+|%\d+), ptr \1,"
)
_HIDDEN = frozenset({"internal", "private", "hidden", "available_externally", "appending"})
_EXTERNAL = frozenset({"external", "extern_weak"})


class LaunchNumbers(NamedTuple):
    """What host code launches a kernel with; None for what is known at the call only.

    ``block`` has the threads along x, y and z, ``dynamic_bytes`` counts shared memory beside the static.
    """

    block: tuple[int, int, int] | None
    dynamic_bytes: int | None


class NoGpuCode(ArtifactError):
    """What was compiled is host code alone."""


@header(SCHEMA, KIND)
class KernelObject(NamedTuple):
    """One compiled kernel: LLVM text, and a fat binary with one or more cubins of one target."""

    host_code: str
    gpu_code: bytes

    def to_bytes(self) -> bytes:
        """The object's file. Equal objects give equal bytes."""
        return encode(to_plain(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> KernelObject:
        """Read what :meth:`to_bytes` gave."""
        if len(data) > MAX_OBJECT_BYTES:
            raise CorruptFile(f"the object has {len(data)} bytes; at most {MAX_OBJECT_BYTES} are read")
        return from_plain(cls, decode(data, "the object"), "the object")

    @classmethod
    def from_llvm(cls, text: str, symbol: str) -> KernelObject:
        """Separate host and GPU code in LLVM text that ``export_to_c`` writes to a file ending in ``.ll``.

        The slot is named after the kernel's ``symbol``. NoGpuCode is raised if the text launches nothing.
        """
        found = _CONSTANT.findall(text)
        if not found and f"@__tvm_ffi_{symbol}(" in text and not _LAUNCHES.search(text):
            raise NoGpuCode(f"{symbol}: it launches no kernel, so that there is nothing to prebuild")
        if len(found) != 1:
            raise ArtifactError(
                f"{symbol}: its host code holds {len(found)} fat binaries of GPU code; expected one: "
                "a kernel is one function that launches GPU code of one module"
            )
        name, size, escaped = found[0]
        gpu_code = _bytes(escaped)
        if len(gpu_code) != int(size):
            raise ArtifactError(
                f"{symbol}: its GPU code has {len(gpu_code)} bytes; its host code says {size}: "
                "the DSL writes text in another way than the one that is known"
            )
        slot = f"@{CODE_PREFIX}{symbol}"
        text = _CONSTANT.sub(f"{slot} = global [2 x i64] zeroinitializer, align 8", text)
        text = re.sub(rf"{re.escape(name)}(?![-\w.$])", slot, text)
        return cls(_TARGET.sub("", text), gpu_code)

    def launches(self) -> tuple[LaunchNumbers, ...]:
        """The launches of the host code, in its order; none if it is written in a way that is not known."""
        found: list[dict[str, int | None]] = []
        for _, place, value in _LAUNCH.findall(self.host_code):
            if not found or place in found[-1]:
                found.append({})
            found[-1][place] = None if value.startswith("%") else int(value)
        made = []
        for launch in found:
            x, y, z = (launch.get(f"1, i32 {mode}") for mode in range(3))
            block = None if x is None or y is None or z is None else (x, y, z)
            made.append(LaunchNumbers(block, launch.get("2")))
        return tuple(made)

    def symbols(self) -> tuple[frozenset[str], frozenset[str]]:
        """The symbols that the host code leaves undefined, and those that it defines and exports.

        Neither includes LLVM's own names, which begin with ``llvm.``, or names declared but not used.
        """
        undefined: set[str] = set()
        defined: set[str] = set()
        used = Counter(re.findall(_NAME, self.host_code))
        for kind, words, name in _FUNCTION.findall(self.host_code):
            if kind == "declare":
                if used[name] > 1:
                    undefined.add(_unquoted(name))
            elif not _HIDDEN & set(words.split()):
                defined.add(_unquoted(name))
        for name, words, _ in _VARIABLE.findall(self.host_code):
            if _EXTERNAL & set(words.split()):
                undefined.add(_unquoted(name))
            elif not _HIDDEN & set(words.split()):
                defined.add(_unquoted(name))
        own = {name for name in undefined | defined if name.startswith("llvm.")}
        return frozenset(undefined - own), frozenset(defined - own)


def _unquoted(name: str) -> str:
    return name[1:].strip('"')


def _bytes(escaped: str) -> bytes:
    """The bytes of an LLVM string, in which a backslash precedes another one or two hexadecimal digits.

    Source: LLVM Language Reference, "String constants".
    """
    return (
        escaped.replace("\\\\", "\\5C")
        .replace("\\", "\\x")
        .encode("ascii")
        .decode("unicode_escape")
        .encode("latin-1")
    )
