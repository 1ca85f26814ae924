"""Is a linked library what was asked for? What it exports, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from cutlass_aot.builder.native import GLIBC
from cutlass_aot.errors import LinkError
from cutlass_aot.schema.versions import release

# What glibc 2.28 is made of (later ones have the threads and dl parts in libc.so.6, and keep the names).
_LOADERS = {"aarch64": "ld-linux-aarch64.so.1", "x86_64": "ld-linux-x86-64.so.2"}
_NEEDED = frozenset(
    {
        "libc.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "libtvm_ffi.so",
    }
)
_MACHINES = {"aarch64": "EM_AARCH64", "x86_64": "EM_X86_64"}
_GLIBC_VERSION = re.compile(r"^GLIBC_(\d+(?:\.\d+)*)$")


def check_library(path: Path, symbols: Sequence[str], host: str) -> None:
    """Check that a linked library shows its functions alone, and loads on the machines it is meant for.

    Args:
        path: the library.
        symbols: what it is to export.
        host: CPU architecture that it is for.

    Raises:
        LinkError: if it is for another host, exports anything else or less, needs other libraries or a newer
            C library, or says where to look for libraries.
    """
    try:
        with path.open("rb") as stream:
            elf = ELFFile(stream)
            machine = elf["e_machine"]
            exported, needed, paths, versions = _dynamic_facts(elf)
    except (ELFError, OSError, ValueError, KeyError, UnicodeError) as error:
        raise LinkError(f"{path.name}: what was linked cannot be read back: {error}") from None
    if machine != _MACHINES[host]:
        raise LinkError(f"{path.name}: what was linked is for {machine}; expected {_MACHINES[host]}")
    expected = set(symbols)
    if exported != expected:
        raise LinkError(
            f"{path.name}: exported symbols are not those asked for; missing: "
            f"{_shown(expected - exported)}; not expected: {_shown(exported - expected)}"
        )
    allowed = _NEEDED | {_LOADERS[host]}
    if needed - allowed:
        raise LinkError(
            f"{path.name}: needs {_shown(needed - allowed)}; expected nothing but {_shown(allowed)}"
        )
    if paths:
        raise LinkError(f"{path.name}: carries library search paths: {_shown(paths)}")
    newer = {v for v in versions if release(v) > release(GLIBC)}
    if newer:
        raise LinkError(f"{path.name}: needs glibc {_shown(newer)}; expected at most {GLIBC}")


def _dynamic_facts(elf: ELFFile) -> tuple[set[str], set[str], set[str], set[str]]:
    """Exported symbols, needed libraries, search paths and glibc versions of a library."""
    exported: set[str] = set()
    needed: set[str] = set()
    paths: set[str] = set()
    versions: set[str] = set()
    for section in elf.iter_sections():
        kind = section["sh_type"]
        if kind == "SHT_DYNSYM":
            exported.update(
                symbol.name
                for symbol in section.iter_symbols()
                if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
            )
        elif kind == "SHT_DYNAMIC":
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.add(tag.needed)
                elif tag.entry.d_tag == "DT_RPATH":
                    paths.add(tag.rpath)
                elif tag.entry.d_tag == "DT_RUNPATH":
                    paths.add(tag.runpath)
        elif kind == "SHT_GNU_verneed":
            for _, auxiliaries in section.iter_versions():
                for auxiliary in auxiliaries:
                    match = _GLIBC_VERSION.match(auxiliary.name)
                    if match is not None:
                        versions.add(match.group(1))
    return exported, needed, paths, versions


def _shown(names: set[str] | frozenset[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return ", ".join(shown[:8]) + more if shown else "none"
