"""What tests read of GPU code."""

from __future__ import annotations

import io
import struct

from elftools.elf.elffile import ELFFile


def parameter_sizes(code: bytes) -> list[int]:
    """Bytes of a GPU function's parameters: attribute 0x17 of ``.nv.info``, see builder/compile/audit.py."""
    sizes = {}
    elf = ELFFile(io.BytesIO(code[code.index(b"\x7fELF") :]))
    (section,) = (section for section in elf.iter_sections() if section.name.startswith(".nv.info."))
    data, position = section.data(), 0
    while position < len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, position)
        position += 4
        if attribute == 0x17:
            _, ordinal, _, flags = struct.unpack_from("<IHHI", data, position)
            sizes[ordinal] = flags >> 18
        position += value if form == 4 else 0
    return [sizes[ordinal] for ordinal in range(len(sizes))]
