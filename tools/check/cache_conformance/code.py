"""The code of a compiled function, without the names that the DSL gives to what is in it.

The DSL writes the values of arguments into the names of kernels and host functions
(``kernel_..._20_1_0``), even of those that the code does not use, so that two objects can differ in their
names alone. What is compared is what runs: of the GPU code each section but names, symbols and notes,
of the host code the LLVM text, in which names are numbered in the order in which they appear.
"""

from __future__ import annotations

import re
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from cutlass_aot.builder.compile.audit import cubins_of
from cutlass_aot.builder.compile.export import export
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.bundle.elf import read_sections

_NAMES_ONLY = (".symtab", ".strtab", ".shstrtab", ".debug", ".nv_debug", ".note", ".nv.merc.debug")
_GLOBAL = re.compile(r'@(?:[-\w.$]+|"[^"]*")')
_TEXT_SIZE = re.compile(r"\[\d+ x i8\]")
_SYMBOL = "conformance"


def code_without_names(compiled: Any) -> bytes:
    """What a compiled function runs, on the GPU and on the host; equal if nothing but names differs."""
    with tempfile.TemporaryDirectory() as folder:
        return without_names(export(compiled, _SYMBOL, Path(folder, "code.ll")))


def without_names(item: KernelObject) -> bytes:
    """The same of an exported object."""
    sections, kernels = [], set()
    for cubin in cubins_of(item.gpu_code):
        found = read_sections(cubin.code, "the cubin").sections
        own = {part.name.removeprefix(".text.") for part in found if part.name.startswith(".text.")}
        kernels.update(own)
        sections.append(f"sm_{cubin.number}{cubin.suffix}".encode())
        for part in found:
            if not part.name.startswith(_NAMES_ONLY):
                kind = _replaced(part.name, own)
                sections.append(f"\n{kind} {part.size}\n".encode() + part.content)
    host = _replaced(item.host_code, kernels)
    # A text that holds a name is as long as the name.
    host = _TEXT_SIZE.sub("[? x i8]", host)
    numbers = count()
    known: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        if match[0] not in known:
            known[match[0]] = f"@{next(numbers)}"
        return known[match[0]]

    return _GLOBAL.sub(numbered, host).encode() + b"\0" + b"".join(sections)


def _replaced(text: str, names: set[str]) -> str:
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "KERNEL")
    return text
