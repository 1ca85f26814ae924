"""GEMMs of a bundle inside ``jax.jit``, through jax-tvm-ffi. Import it where JAX is used.

The kernel is chosen while JAX traces, from shapes and element types, and only its name is compiled in. At run
time XLA calls it on its own stream and with its own buffers, also for the result.
"""

from __future__ import annotations

from typing import Any

from cutlass_aot.errors import DeviceError, OperandError
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.launching.dlpack import view
from cutlass_aot.runtime.machine.process_lock import ProcessLock
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.optional_packages import optional
from cutlass_aot.schema.kernels.accumulation import EXACT, RequestedAccumulation
from cutlass_aot.schema.kernels.dtypes import BY_TORCH
from cutlass_aot.schema.kernels.operands import OperandDescription, describe

for _module in ("jax", "jax_tvm_ffi"):
    optional(_module, ImportError, "cutlass_aot.jax, which runs on Python 3.11 or newer,")

import jax  # noqa: E402 - of a release that is known to do
import jax.numpy as jnp  # noqa: E402
import jax_tvm_ffi  # noqa: E402
import tvm_ffi  # noqa: E402

__all__ = ["gemm"]

_PLATFORM = "gpu"

_lock = ProcessLock()
_registered: dict[tuple[str, str], Any] = {}


def gemm(
    a: Any,
    b: Any,
    *,
    bundle: Bundle,
    out_dtype: Any = None,
    accumulator: str | None = None,
    accumulation: RequestedAccumulation = EXACT,
    b_transposed: bool = False,
    target: str | None = None,
) -> Any:
    """Compute ``a @ b`` by the bundle's best kernel for it; inside ``jax.jit`` or not.

    JAX's arrays are row-major, so kernels are needed for the layouts ``ttt``, or, with ``b_transposed``,
    ``tnt`` (a linear layer).

    Args:
        a: (m, k), or (batch, m, k).
        b: (k, n), or (batch, k, n); with ``b_transposed`` (n, k), or (batch, n, k).
        bundle: an open bundle.
        out_dtype: element type of the result; None for that of ``a``.
        accumulator: see :meth:`cutlass_aot.Bundle.find`.
        accumulation: see :meth:`cutlass_aot.Bundle.find`.
        b_transposed: compute ``a @ b.T``, without a copy; ``b`` then has the form of a linear layer's weight.
        target: exact name of a GPU code target, to trace on a machine without the GPU; None takes the best
            for GPU 0.

    Returns:
        (m, n), or (batch, m, n); zeros without a kernel where an extent is 0.

    Raises:
        KernelNotFound: if the bundle has no kernel for the operands.
        OperandError: if an operand has another rank or an element type that bundles do not know.
        Incompatible: if nothing of the bundle runs on the GPU.
        DeviceError: if no target is named and there is no GPU.
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.ndim not in (2, 3) or b.ndim != a.ndim:
        raise OperandError(
            f"expected matrices, both with a batch first or both without, got {a.shape}, {b.shape}"
        )
    dtype = jnp.dtype(a.dtype if out_dtype is None else out_dtype)
    columns = b.shape[-2] if b_transposed else b.shape[-1]
    out = jax.ShapeDtypeStruct((*a.shape[:-1], columns), dtype)
    device = 0 if target is None else None
    inner = b.shape[-1] if b_transposed else b.shape[-2]
    if (*a.shape[:-2], a.shape[-1]) == (*b.shape[:-2], inner) and 0 in (*out.shape, inner):
        # Empty, or empty sums: no kernel takes an extent of 0.
        return jnp.zeros(out.shape, dtype)
    operands = (
        _description(a, "a", device),
        _transposed(_description(b, "b", device)) if b_transposed else _description(b, "b", device),
        _description(out, "out", device),
    )
    try:
        kernel = bundle.choose(
            *operands, accumulator=accumulator, accumulation=accumulation, target=target
        ).kernel
    except DeviceError as error:
        raise DeviceError(f"{error}; to trace for a GPU that is not here, name its target") from error
    return jax.ffi.ffi_call(_target(kernel, b_transposed), out)(a, b)


def _description(array: Any, name: str, device: int | None) -> OperandDescription:
    dtype = BY_TORCH.get(str(array.dtype))
    if dtype is None:
        raise OperandError(
            f"operand `{name}`: element type {array.dtype} is not supported: expected one of "
            f"{', '.join(BY_TORCH.values())}"
        )
    # XLA aligns its buffers by more than any kernel demands; compiled code checks it.
    return describe(array.shape, dtype, device=device)


def _transposed(operand: OperandDescription) -> OperandDescription:
    *batch, rows, columns = operand.shape
    *steps, row, column = operand.strides
    return describe(
        (*batch, columns, rows), operand.dtype, strides=(*steps, column, row), device=operand.device
    )


def _target(kernel: KernelHandle, b_transposed: bool) -> str:
    """The name under which XLA knows a kernel, which is registered at the first call."""
    # The same for equal code of any bundle: XLA accepts a name only once, and keeps it in its cache.
    entry = kernel.entry
    name = f"{entry.kernel.symbol}_{entry.object_sha256[:16]}{'_b_transposed' if b_transposed else ''}"
    with _lock:
        if (_PLATFORM, name) not in _registered:
            function = tvm_ffi.convert(_Call(kernel, b_transposed))
            # Owned tensors, because views of them are made.
            jax_tvm_ffi.register_ffi_target(name, function, platform=_PLATFORM, pass_owned_tensor=True)
            _registered[_PLATFORM, name] = function
    return name


class _Call:
    """The function that XLA calls with the buffers of a, b and the result; loads the kernel when called."""

    def __init__(self, kernel: KernelHandle, b_transposed: bool) -> None:
        self._kernel = kernel
        self._b_transposed = b_transposed

    def __call__(self, a: Any, b: Any, out: Any) -> None:
        if self._b_transposed:
            *batch, rows, columns = b.shape
            *steps, row, column = b.strides
            dtype = self._kernel.kernel.operands[1].dtype
            b = view(b, (*batch, columns, rows), (*steps, column, row), dtype)
        try:
            # On XLA's stream: jax-tvm-ffi has set it in tvm_ffi's environment.
            self._kernel.native_function(a.__dlpack_device__()[1])(a, b, out)
        except Exception as error:
            raise self._kernel.failure(error, (a, b, out)) from error
