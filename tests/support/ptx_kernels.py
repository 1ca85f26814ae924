"""Declared kernels run on the CPU: compiled to PTX in a process of its own, launched on arrays of NumPy.

The grid and the cluster are the test's to say: they are computed by the host's code, which is not run here.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from tests.support import ptx

# The DSL reads its environment when it is imported, and writes the PTX that it keeps into a folder.
_PROGRAM = """
import importlib, json, sys
from pathlib import Path
from cutlass_aot.generators.declared import DeclaredGenerator

folder, requests = Path(sys.argv[1]), json.loads(sys.argv[2])
for number, (module, name, values) in enumerate(requests):
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    generator = DeclaredGenerator(getattr(importlib.import_module(module), name))
    kernel = generator.kernel(values, "sm_90a")
    generator.compile(kernel)
    (made,) = folder.glob("cutlass_*.ptx")
    made.rename(folder / f"{number}.ptx")
    operands = [
        [item.is_none, item.is_number, list(item.extents), item.contiguous, item.compact]
        for item in kernel.operands
    ]
    (folder / f"{number}.json").write_text(json.dumps(operands))
"""


class Tensor(NamedTuple):
    """An operand as an array.

    Attributes:
        array: of as many modes as the operand has.
        written: whether the kernel writes it.
        gap: elements between its rows, or columns if those are contiguous.
        same_as: position of the operand whose memory this one is.
        extents: those that the kernel is given, if not the named ones of the declaration.
    """

    array: Any
    written: bool = False
    gap: int = 0
    same_as: int = -1
    extents: tuple[int, ...] = ()


class Kernel(NamedTuple):
    """A compiled kernel: its code, and of each operand what decides how it is passed."""

    program: ptx.Program
    operands: list[list[Any]]

    def launch(self, operands: Sequence[Any], grid: tuple[int, ...], cluster: int = 1) -> list[Any]:
        """Run it on tensors, numbers (f32) and None, in the order of the declaration.

        The grid has whole clusters of so many blocks. Returns the written arrays in their order.
        """
        memory = ptx.Memory()
        parameters, places = [], {}
        for position, (given, about) in enumerate(zip(operands, self.operands, strict=True)):
            is_none, is_number, extents, contiguous, compact = about
            assert is_none == (given is None)
            if is_none:
                continue
            if is_number:
                parameters.append(struct.pack("<f", given))
                continue
            array = numpy.moveaxis(given.array, contiguous, -1)
            padded = [(0, 0)] * array.ndim
            padded[-1] = (0, given.gap if array.ndim > 1 else 0)
            stored = numpy.pad(array, padded)
            if given.same_as >= 0:
                places[position] = (places[given.same_as][0], stored)
            else:
                places[position] = (memory.add(stored, given.written), stored)
            strides = numpy.moveaxis(numpy.empty(stored.shape, numpy.uint8), -1, contiguous).strides
            named = [
                size for size, name in zip(given.array.shape, extents, strict=True) if isinstance(name, str)
            ]
            free = [] if compact else [step for i, step in enumerate(strides) if i != array.ndim + contiguous]
            packed = struct.pack("<Q", places[position][0])
            packed += struct.pack(f"<{len(given.extents or named)}i", *(given.extents or named))
            if free:
                packed += bytes(-len(packed) % 8) + struct.pack(f"<{len(free)}q", *free)
            parameters.append(packed + bytes(-len(packed) % 8))
        ptx.run(self.program, memory, parameters, (*grid, 1, 1)[:3], cluster)
        found = []
        for position, given in enumerate(operands):
            if isinstance(given, Tensor) and given.written:
                contiguous = self.operands[position][3]
                stored = memory.read(*places[position])
                kept = stored[..., : stored.shape[-1] - given.gap] if given.array.ndim > 1 else stored
                found.append(numpy.moveaxis(kept, -1, contiguous))
        return found


def compile_kernels(folder: Path, requests: Sequence[tuple[str, str, dict[str, Any]]]) -> list[Kernel]:
    """Compile kernels for sm_90a.

    Args:
        folder: an empty folder for what is made.
        requests: of each its module, its name there, and the values of all its parameters.
    """
    kept = {"CUTE_DSL_ARCH": "sm_110a", "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": str(folder)}
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, folder, json.dumps(requests)],
        env={**os.environ, **kept, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [
        Kernel(
            ptx.parse((folder / f"{number}.ptx").read_text()),
            json.loads((folder / f"{number}.json").read_text()),
        )
        for number in range(len(requests))
    ]
