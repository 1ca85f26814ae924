"""The instructions of kernels. ``nvdisasm`` takes half a second to begin: it is given many at once."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from elftools.elf.elffile import ELFFile

from cutlass_aot.builder.compile.audit import cubins_of, inspect_object
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.packages import package_file
from cutlass_aot.schema.encoding import digest

_BYTES = 16
"""Of an instruction, since Volta."""
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+([^;]*;)", re.MULTILINE)
_known: dict[str, str] = {}


def listing(data: bytes) -> str:
    """The instructions of an object, see :func:`listings`."""
    return listings([data])[0]


def listings(objects: Sequence[bytes]) -> list[str]:
    """The instructions of objects, a line for each with its place in the object's code.

    They are those of :func:`tools.check.instructions.disassemble`, which names labels where these have
    addresses, and adds notes. What was asked for before is remembered.
    """
    names = [digest(data) for data in objects]
    targets: dict[str, dict[str, bytes]] = {}
    for name, data in zip(names, objects, strict=True):
        if name not in _known:
            targets.setdefault(inspect_object(data).facts.cubin_target, {})[name] = _code(data)
    for target, codes in targets.items():
        instructions = _instructions(target, b"".join(codes.values()))
        for name, code in codes.items():
            count = len(code) // _BYTES
            own, instructions = instructions[:count], instructions[count:]
            _known[name] = "\n".join(f"/*{at * _BYTES:04x}*/  {line}" for at, line in enumerate(own))
    return [_known[name] for name in names]


def _code(data: bytes) -> bytes:
    """The code of an object's kernels."""
    return b"".join(
        section.data()
        for cubin in cubins_of(KernelObject.from_bytes(data).gpu_code)
        for section in ELFFile(io.BytesIO(cubin.code)).iter_sections()
        if section.name.startswith(".text.")
    )


def _instructions(target: str, code: bytes) -> list[str]:
    with TemporaryDirectory() as folder:
        file = Path(folder, "code")
        file.write_bytes(code)
        done = subprocess.run(
            [
                str(package_file("nvidia-cuda-nvdisasm", "bin/nvdisasm")),
                "--binary", target.replace("sm_", "SM"), str(file),
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = _INSTRUCTION.findall(done.stdout)
    assert len(found) * _BYTES == len(code)
    return found
