"""Warnings about a machine, which do not decide whether it can run a bundle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cutlass_aot.runtime.machine.compatibility import (
    Driver,
    Gpu,
    Machine,
    driver_cuda,
    text_of,
    upgrade_to,
    version_of,
)
from cutlass_aot.schema.drivers import compute_capability_of, cuda_of_driver
from cutlass_aot.schema.versions import release

NATIVE_TORCH = "2.10"
"""First torch whose tensors and current stream tvm-ffi reads without help (``__dlpack_c_exchange_api__``)."""

_CUDA_BUILD = re.compile(r"cu(\d+)(\d)", re.ASCII)


def warnings(machine: Machine) -> list[str]:
    """Warnings about a machine: sentences without a full stop."""
    return [*_driver(machine.driver), *_models(machine.gpus or ()), *_torch(machine)]


def _driver(driver: Driver | None) -> Iterator[str]:
    if driver is None or driver.cuda is None or version_of(driver.release or "") is None:
        return
    least = cuda_of_driver(driver.release or "")
    if least is not None and driver.cuda < least:
        yield (
            f"driver release {driver.release} supports CUDA {text_of(least)}, but the libcuda.so.1 that is "
            f"loaded says {text_of(driver.cuda)}, which decides: another one stands in its place"
        )


def _models(gpus: Sequence[Gpu]) -> Iterator[str]:
    for gpu in dict.fromkeys(gpus):
        model = compute_capability_of(gpu.name)
        if gpu.capability is not None and model is not None and model != gpu.capability:
            yield (
                f"{gpu.name} is given compute capability {text_of(gpu.capability)}, which decides; "
                f"models of that name have {text_of(model)}"
            )


def _torch(machine: Machine) -> Iterator[str]:
    """What torch, which is optional, cannot do although the bundle itself runs."""
    if machine.torch is None:
        return
    local = machine.torch.partition("+")[2]
    # Such as 2.11.0+cu130, as torch's own index names its builds.
    named = _CUDA_BUILD.fullmatch(local)
    built_for = machine.torch_cuda or (f"{named[1]}.{named[2]}" if named else "")
    version, cuda = version_of(built_for), driver_cuda(machine.driver)
    # A CUDA runtime runs with any driver of its major version. Source: CUDA Compatibility, "Minor Version".
    if version is not None and cuda is not None and version[0] > cuda[0]:
        yield (
            f"torch {machine.torch} is built for CUDA {built_for} and finds no GPU with a driver for CUDA "
            f"{text_of(cuda)}: install one built for CUDA {cuda[0]}, or {upgrade_to((version[0], 0))}"
        )
    elif version is None and local == "cpu":
        yield f"torch {machine.torch} is built without CUDA: its tensors cannot be operands on a GPU"
    own = version_of(machine.torch)
    if own is not None and own < release(NATIVE_TORCH):
        yield (
            f"torch {machine.torch} is older than {NATIVE_TORCH}, from which on tvm-ffi takes its tensors "
            "and its stream natively: pip install torch-c-dlpack-ext, or the first import compiles that"
        )
