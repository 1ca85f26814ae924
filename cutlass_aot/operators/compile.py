"""What a program calls in place of ``operator.compile``: the prebuilt kernel, or what the policy says."""

from __future__ import annotations

from typing import Any

from cutlass_aot.errors import KernelNotFound
from cutlass_aot.operators.prebuilt import artifact
from cutlass_aot.operators.targets import target_name
from cutlass_aot.runtime import policy
from cutlass_aot.runtime.declared import BundlesAtHand


def compile(operator: Any, args: Any, *, target_sm: Any = None) -> Any:
    """The ``CompiledArtifact`` of an operator, out of the bundles that are open or installed.

    ::

        artifact = cutlass_aot.operators.compile(operator, args)      # was: operator.compile(args)
        operator.run(args, compiled_artifact=artifact)

    Args:
        operator: of ``cutlass.operators.get_operators``.
        args: its arguments; tensors on the ``meta`` device will do where ``target_sm`` is named.
        target_sm: exact GPU code target, such as ``"90a"``; None takes the operands' GPU.

    A miss is counted and written to the log as any other. An installed bundle that cannot be opened is passed
    over, and named where no other has the kernel.

    Raises:
        KernelNotFound: if no bundle has exactly this kernel, unless the policy is ``jit``, which compiles it.
        OperandError: if the operator does not support the arguments, or the target is not to be told.
        DeviceError: if the operands' GPU cannot be asked.
    """
    misses = []
    at_hand = BundlesAtHand()
    for bundle in at_hand:
        try:
            return artifact(operator, args, bundle, target_sm=target_sm)
        except KernelNotFound as miss:
            misses.append(f"{bundle.name} {bundle.version}: {miss}")
    name = operator.metadata.operator_name
    tried = "; ".join([*misses, *at_hand.problems]) or "no bundle is open or installed"
    policy.on_operator_miss(
        KernelNotFound(f"no prebuilt kernel for {name}: {tried}. Build it in, or choose policy jit"),
        f"{name} on {'its GPU' if target_sm is None else target_name(target_sm)}",
    )
    compiled = operator.compile(args, target_sm=target_sm)
    policy.warn_once(name, f"no bundle has {name}, so that it was compiled (policy jit): build it into one")
    return compiled
