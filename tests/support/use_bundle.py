"""What a user's Python does with a bundle, printed: test_aarch64.py runs it on two hosts.

    use_bundle.py BUNDLE

It needs what the runtime needs, and the recording driver. GPUs are said to be those that kernels are for.
"""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import cutlass_aot
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.operands import OperandDescription, describe
from tests.support.bundles import ClaimsCuda

M, N, K = 128, 256, 192
EXTENTS = {"a": (M, K), "b": (K, N), "out": (M, N)}


def descriptions(kernel: KernelHandle, **extents: tuple[int, int]) -> list[OperandDescription]:
    """Operands that a kernel takes, without a batch, but for the extents that are given."""
    made = []
    for operand in kernel.group.operands:
        rows, columns = {**EXTENTS, **extents}[operand.name]
        strides = (1, rows) if operand.layout == "n" else (columns, 1)
        made.append(describe((rows, columns), operand.dtype, strides=strides))
    return made


def tensors(described: list[OperandDescription]) -> list[ClaimsCuda]:
    """DLPack tensors on GPU 0, at addresses that nothing looks at."""
    made = []
    for position, of in enumerate(described, 1):
        size = DTYPES[of.dtype].bytes
        array = SimpleNamespace(
            shape=of.shape,
            ndim=len(of.shape),
            strides=tuple(stride * size for stride in of.strides),
            itemsize=size,
            ctypes=SimpleNamespace(data=position << 32),
        )
        made.append(ClaimsCuda(array, of.dtype))
    return made


def refused(what: str, call: Any, *operands: Any) -> None:
    """Print the error of a call that has to fail."""
    try:
        call(*operands)
    except cutlass_aot.CutlassAotError as error:
        print(f"{what}: {type(error).__name__}: {error}")
    else:
        raise AssertionError(f"{what}: accepted")


def main() -> None:
    bundle = cutlass_aot.open(sys.argv[1])
    targets: set[str] = set()
    for kernel in bundle.kernels():
        print(kernel.name, flush=True)
        accumulator, target = kernel.kernel.accumulator, kernel.target
        described = descriptions(kernel)
        found = bundle.find(*described, accumulator=accumulator, target=target)
        assert kernel.digest in [one.digest for one in found]
        print(bundle.explain(*described, accumulator=accumulator, target=target))

        operands = tensors(described)
        if target not in targets:  # a bundle asks once
            cuda_driver.compute_capability = lambda _: (7, 0)
            refused("another GPU", kernel.launch, *operands)
            targets.add(target)

        # The library is unpacked, verified, mapped and given GPU code; the driver is called.
        major, minor = re.fullmatch(r"sm_(\d+)(\d)[af]?", target).groups()
        cuda_driver.compute_capability = lambda _, found=(int(major), int(minor)): found
        kernel.launch(*operands)
        kernel.compiled_function(0)
        refused("one operand less", kernel.launch, *operands[:-1])
        refused("an extent", kernel.launch, *tensors(descriptions(kernel, a=(M, K + 8))))
        refused("a number", kernel.launch, *operands[:-1], 1.5)


if __name__ == "__main__":
    main()
