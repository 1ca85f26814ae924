"""Bring operands into a form that a bundle has kernels for: another layout, or padding with zeros.

Gradients need this: their operands may have a layout that no kernel of the bundle takes, and their k may not
be a multiple of what kernels demand. Zeros along k add nothing to a sum; rows and columns that are added to
the output are cut off again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from cutlass_aot.errors import KernelNotFound
from cutlass_aot.runtime.launching.tensors import describe_operand
from cutlass_aot.schema.bundles.catalog import GroupEntry
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.operands import OperandDescription, supports

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle

MAX_REMEMBERED = 4096
"""Most cached answers for a bundle; when there are more, all are dropped."""

_ADDRESSES = 128
"""Bytes; addresses are distinguished modulo this number."""

_WIDER = {"f16": "f32", "bf16": "f32"}
"""Outputs that may be computed in another element type and rounded to theirs afterwards."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The copies that bring operands into the form of a kernel; None for an operand that is used itself.

    ``out`` is computed into and then copied to the output.
    """

    a: OperandDescription | None
    b: OperandDescription | None
    out: OperandDescription | None


_fits: WeakKeyDictionary[Bundle, dict[Any, Fit | None]] = WeakKeyDictionary()


def fit(
    bundle: Bundle, a: Tensor, b: Tensor, out: Tensor, accumulator: str | None, *, copy_b: bool = True
) -> Fit | None:
    """The cheapest way to bring operands into a form that the bundle has a kernel for; None if there is none.

    The operands are (m, k), (k, n) and (m, n), or each with a batch first. ``accumulator`` None means any.
    Unless ``copy_b``, only a may be copied.
    """
    known = _fits.setdefault(bundle, {})
    key = (_like(a), _like(b), _like(out), accumulator, copy_b)
    if key in known:
        # Another thread may have cleared the dictionary meanwhile.
        with suppress(KeyError):
            return known[key]
    described = (describe_operand(a), describe_operand(b), describe_operand(out))
    found = find_fit(bundle, *described, accumulator, copy_b=copy_b)
    if len(known) >= MAX_REMEMBERED:
        known.clear()
    known[key] = found
    return found


def _like(tensor: Tensor) -> Any:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr() % _ADDRESSES, tensor.device


def find_fit(
    bundle: Bundle,
    a: OperandDescription,
    b: OperandDescription,
    out: OperandDescription,
    accumulator: str | None,
    *,
    copy_b: bool = True,
) -> Fit | None:
    """As :func:`fit`, for descriptions; the answer is not cached."""
    candidates = dict.fromkeys(_candidates(bundle, a, b, out, copy_b))
    for candidate in sorted(candidates, key=lambda found: _cost(found, out)):
        operands = candidate.a or a, candidate.b or b, candidate.out or out
        # Without a device: the bundle itself checks which of the remaining groups run on it.
        anywhere = [operand._replace(device=None) for operand in operands]
        if any(
            supports(group.operands, anywhere)
            for group in _groups(bundle, *operands)
            if accumulator in (None, group.accumulator)
        ):
            with suppress(KernelNotFound):
                bundle.choose(*operands, accumulator=accumulator)
                return candidate
    return None


def _groups(bundle: Bundle, *operands: OperandDescription) -> Sequence[GroupEntry]:
    found = bundle.groups.with_dtypes("gemm", [operand.dtype for operand in operands])
    return [group for group in found if not group.epilogue]


def _candidates(
    bundle: Bundle, a: OperandDescription, b: OperandDescription, out: OperandDescription, copy_b: bool
) -> Iterator[Fit]:
    """Possible layouts of the operands: each as it is, row-major or column-major, with and without zeros."""
    layouts = ("", "t", "n")
    dtypes = (out.dtype, _WIDER[out.dtype]) if copy_b and out.dtype in _WIDER else (out.dtype,)
    for dtype in dtypes:
        groups = _groups(bundle, a, b, out._replace(dtype=dtype))
        # Extents that are multiples of this satisfy every group.
        multiple = math.lcm(1, *(operand.divisibility for group in groups for operand in group.operands))
        for layout_a, layout_b in itertools.product(layouts, layouts if copy_b else ("",)):
            for step in (1, multiple) if copy_b and multiple > 1 else (1,):
                m, n, k = (_up(extent, step) for extent in (out.shape[-2], out.shape[-1], a.shape[-1]))
                left = _laid_out(a, layout_a, m if layout_a == "n" else a.shape[-2], k)
                right = _laid_out(b, layout_b, k, n)
                target = _laid_out(out, "t", left.shape[-2], n, dtype)
                if (not layout_a and left.shape != a.shape) or (not layout_b and right.shape != b.shape):
                    continue
                in_place = target.shape == out.shape and dtype == out.dtype
                yield Fit(
                    left if layout_a else None,
                    right if layout_b else None,
                    None if in_place else target,
                )


def _up(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


def _laid_out(
    operand: OperandDescription, layout: str, rows: int, columns: int, dtype: str = ""
) -> OperandDescription:
    """A compact copy of an operand with this layout and these extents."""
    shape = (*operand.shape[:-2], rows, columns)
    strides = (1, rows) if layout == "n" else (columns, 1)
    batch = (rows * columns,) if len(shape) == 3 else ()
    return OperandDescription(dtype or operand.dtype, shape, (*batch, *strides), 0, operand.device)


def _cost(candidate: Fit, out: OperandDescription) -> int:
    """Bytes that are written for the copies."""
    copies = [copy for copy in (candidate.a, candidate.b, candidate.out) if copy is not None]
    moved = sum(math.prod(copy.shape) * DTYPES[copy.dtype].bytes for copy in copies)
    return moved + (0 if candidate.out is None else math.prod(out.shape) * DTYPES[out.dtype].bytes)


def compute_fitted(
    bundle: Bundle,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    accumulator: str | None,
    *,
    purpose: str,
    copy_b: bool = True,
) -> None:
    """Compute ``out = a @ b`` for non-empty operands, with the copies that the bundle's kernels need.

    Arguments are those of :func:`fit`; ``purpose`` says in errors what the product is for.
    """
    found = fit(bundle, a, b, out, accumulator, copy_b=copy_b)
    if found is None:
        try:
            # No way to compute it: counted as a miss and left to the policy, as any other.
            bundle.gemm(a, b, out, accumulator=accumulator)
        except KernelNotFound as error:
            raise KernelNotFound(
                f"no kernel for the {purpose}, {tuple(a.shape)} x {tuple(b.shape)}, in any layout that a "
                f"copy of {'the operands' if copy_b else 'x'} could have: {error}"
            ) from error
        return
    target = out
    if found.out is not None:
        dtype = getattr(torch, DTYPES[found.out.dtype].torch)
        target = torch.empty(found.out.shape, dtype=dtype, device=out.device)
    bundle.gemm(_copied(a, found.a), _copied(b, found.b), target, accumulator=accumulator)
    if target is not out:
        out.copy_(target[..., : out.shape[-2], : out.shape[-1]])


def _copied(tensor: Tensor, layout: OperandDescription | None) -> Tensor:
    if layout is None:
        return tensor
    memory = torch.empty_strided(layout.shape, layout.strides, dtype=tensor.dtype, device=tensor.device)
    if layout.shape == tuple(tensor.shape):
        return memory.copy_(tensor)
    memory.zero_()
    memory[..., : tensor.shape[-2], : tensor.shape[-1]].copy_(tensor)
    return memory
