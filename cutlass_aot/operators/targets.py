"""Which GPU code targets are meant: those that a caller names, or those of the GPU that operands are on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cutlass_aot.errors import OperandError
from cutlass_aot.runtime import device
from cutlass_aot.runtime.compatibility import runnable_targets
from cutlass_aot.runtime.operands import describe_operand
from cutlass_aot.schema.targets import KNOWN_TARGETS


def target_name(target: Any) -> str:
    """The name of a target here, such as ``sm_100a``.

    Args:
        target: ``"100a"``, ``"sm_100a"``, or a ``TargetSm`` of ``cutlass.operators``.

    Raises:
        OperandError: if it is none that kernels are built for.
    """
    name = f"sm_{str(target).removeprefix('sm_')}"
    if name not in KNOWN_TARGETS:
        raise OperandError(f"unknown target {str(target)!r}: expected one of {', '.join(KNOWN_TARGETS)}")
    return name


def targets_of_gpu(args: Any, among: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Targets that run on the GPU of the operands, best first, and how messages call that GPU.

    Args:
        args: ``GemmArguments`` with tensors on a GPU.
        among: targets to choose from.

    Raises:
        OperandError: if the operands are not on a GPU.
        DeviceError: if there is no driver.
    """
    try:
        ordinal = describe_operand(args.A.tensor.runtime_tensor).device
    except ValueError:
        # Made from a fake tensor of torch.
        ordinal = None
    if ordinal is None or ordinal < 0:
        raise OperandError(
            "the operands are not on a GPU, so that a target has to be named, such as 90a or 100a"
        )
    capability = device.compute_capability(ordinal)
    where = f"GPU {ordinal} with compute capability {capability[0]}.{capability[1]}"
    return tuple(runnable_targets(among, capability)), where
