"""What a program calls in place of ``operator.compile``: the prebuilt kernel, or what the policy says."""

from __future__ import annotations

from typing import Any

from cutlass_aot.errors import KernelNotFound
from cutlass_aot.operators.prebuilt import artifact
from cutlass_aot.runtime import policy
from cutlass_aot.runtime.declared import bundles_at_hand


def compile(operator: Any, args: Any, *, target_sm: Any = None) -> Any:
    """The ``CompiledArtifact`` of an operator, out of the bundles that are open or installed.

    ::

        artifact = cutlass_aot.operators.compile(operator, args)      # was: operator.compile(args)
        operator.run(args, compiled_artifact=artifact)

    Args:
        operator: of ``cutlass.operators.get_operators``.
        args: its arguments; tensors on the ``meta`` device will do where ``target_sm`` is named.
        target_sm: exact GPU code target, such as ``"90a"``; None takes the operands' GPU.

    Raises:
        KernelNotFound: if no bundle has exactly this kernel, unless the policy is ``jit``, which compiles it.
        OperandError: if the operator does not support the arguments, or the target is not to be told.
        DeviceError: if the operands' GPU cannot be asked.
    """
    misses = []
    for bundle in bundles_at_hand():
        try:
            return artifact(operator, args, bundle, target_sm=target_sm)
        except KernelNotFound as miss:
            misses.append(f"{bundle.name} {bundle.version}: {miss}")
    name = operator.metadata.operator_name
    if policy.get() != "jit":
        tried = "; ".join(misses) or "no bundle is open or installed"
        raise KernelNotFound(f"no prebuilt kernel for {name}: {tried}. Build it in, or choose policy jit")
    compiled = operator.compile(args, target_sm=target_sm)
    policy.warn_once(name, f"no bundle has {name}, so that it was compiled (policy jit): build it into one")
    return compiled
