"""A tensor whose memory is to be read as another element type: FP4, FP6 or FP8 kept as bytes, TF32."""

from __future__ import annotations

from typing import Any

from cutlass_aot.runtime.launching.tensors import View


def view_as(tensor: Any, dtype: str) -> View:
    """Say what the memory of a tensor holds, where its own element type does not.

    ::

        weights = cutlass_aot.view_as(packed_bytes, "f4e2m1")     # (n, k / 2) u8: an operand of (n, k)
        a = cutlass_aot.view_as(a_f32, "tf32")                    # the same memory, read as TF32

    Of types below eight bits the first element stands in the lowest bits. The contiguous extent counts
    elements: bytes hold two of ``f4e2m1`` or ``i4``, three bytes four of ``f6e2m3`` or ``f6e3m2``.

    Args:
        tensor: a torch tensor or another object of the DLPack protocol, of whole bytes an element.
        dtype: element type to read.

    Raises:
        OperandError: for an unknown element type, or memory that does not hold whole elements of it.
    """
    made = View(tensor, dtype)
    # Looked at now, so that a mistake is found where it is made, and at each use, as the tensor then is.
    _ = made.description
    return made
