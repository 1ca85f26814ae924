"""Layouts of scale factors, and of groups that lie one after the other, as kernels for sm_90a take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutlass_aot.deep_gemm.utils.math import align, ceil_div
from cutlass_aot.errors import OperandError

__all__ = [
    "get_k_alignment_for_contiguous_layout",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_tensor",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "set_mk_alignment_for_contiguous_layout",
    "transform_sf_into_required_layout",
]

_TMA_BYTES = 16
_HOPPER_ALIGNMENT = 128
BLOCK = 128
"""Elements of K, and columns of B, that share a factor."""

_alignment = _HOPPER_ALIGNMENT


def get_mk_alignment_for_contiguous_layout() -> int:
    """Rows at whose multiples a group begins; see :func:`set_mk_alignment_for_contiguous_layout`."""
    return _alignment


get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Say at multiples of how many rows groups begin, in this process; 128 unless it was called.

    Kernels take groups that begin anywhere. The number says which rows ``grouped_layout`` is read for.
    """
    global _alignment
    if not isinstance(new_value, int) or new_value < 1:
        raise OperandError(f"expected an alignment of 1 row or more, got {new_value!r}")
    _alignment = new_value


def get_theoretical_mk_alignment_for_contiguous_layout(expected_m: int | None = None) -> int:
    """The alignment that DeepGEMM has on sm_90a whatever the number of rows: 128."""
    return _HOPPER_ALIGNMENT


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """``x`` elements of ``element_size`` bytes, rounded up to a multiple of 16 bytes, in elements."""
    return align(x, _TMA_BYTES // element_size)


def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """Scale factors with those of all rows for one block of K together.

    Args:
        sf: (mn, blocks) or (groups, mn, blocks), f32.

    Returns:
        The same values with strides (1, mn rounded up to a multiple of four), and groups without gaps. ``sf``
        itself if it lies so.

    Raises:
        OperandError: for another rank or element type.
    """
    if sf.dtype != torch.float32 or sf.dim() not in (2, 3):
        raise OperandError(
            "scale factors: expected (mn, blocks) or (groups, mn, blocks) of torch.float32, got "
            f"{tuple(sf.shape)} of {sf.dtype}; factors packed as UE8M0 are for sm_100"
        )
    *groups, mn, blocks = sf.shape
    step = get_tma_aligned_size(mn, sf.element_size())
    strides = (*(blocks * step for _ in groups), 1, step)
    if sf.stride() == strides:
        return sf
    return sf.new_empty_strided(sf.shape, strides).copy_(sf)


def transform_sf_into_required_layout(
    sf: Tensor,
    mn: int,
    k: int,
    recipe: Sequence[int],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Tensor | None = None,
) -> Tensor:
    """Scale factors in the layout that the GEMMs take without a copy.

    Args:
        sf: (mn / granularity, k / 128), rounded up, or with groups first; f32.
        mn: rows of what is scaled.
        k: columns of what is scaled.
        recipe: (1, 128, 128), of which ``is_sfa`` says whether A's granularity is meant or B's; or the
            granularity itself along rows and K, (1, 128) or (128, 128).
        num_groups: extent of the groups; None if there are none.
        is_sfa: for a recipe of three numbers.
        disable_ue8m0_cast: makes no difference: factors stay f32 on sm_90a.
        psum_layout: makes no difference on sm_90a.

    Returns:
        A's factors as by :func:`get_mn_major_tma_aligned_tensor`; B's as they are.

    Raises:
        OperandError: for another recipe, shape or element type.
    """
    granularity = tuple(recipe)
    if len(granularity) == 3:
        if is_sfa is None:
            raise OperandError(f"recipe {granularity}: expected is_sfa, which says whether A or B is meant")
        granularity = (granularity[0 if is_sfa else 1], granularity[2])
    if granularity not in ((1, BLOCK), (BLOCK, BLOCK)):
        raise OperandError(
            f"recipe {tuple(recipe)}: expected a factor for 1 x 128 or for 128 x 128 elements, which "
            "kernels for sm_90a take"
        )
    groups = () if num_groups is None else (num_groups,)
    shape = (*groups, ceil_div(mn, granularity[0]), ceil_div(k, BLOCK))
    if sf.dtype != torch.float32 or tuple(sf.shape) != shape:
        raise OperandError(
            f"scale factors: expected {shape} of torch.float32, got {tuple(sf.shape)} of {sf.dtype}"
        )
    return get_mn_major_tma_aligned_tensor(sf) if granularity[0] == 1 else sf


def ends_of_groups(grouped_layout: Tensor, groups: int) -> Tensor:
    """The end of each group's rows, from the group of each row: what ``grouped_gemm`` takes as ``offsets``.

    Computed on the tensor's device without synchronisation, so that a CUDA graph computes it anew.

    Args:
        grouped_layout: (m,) i32: the group of each row in ascending order, -1 or any other number that no
            group has for none. Groups begin at multiples of :func:`get_mk_alignment_for_contiguous_layout`,
            so that the first of so many rows tells whose they are.
        groups: number of groups.

    Returns:
        (groups,) i32. Rows of none that follow a group up to the alignment are counted as its own.
    """
    blocks = grouped_layout[::_alignment]
    # -1, for none, becomes a number behind those of all groups.
    blocks = blocks.masked_fill(blocks < 0, groups)
    device = grouped_layout.device
    behind = (len(blocks) + 1) * _alignment
    ends = torch.arange(_alignment, behind, _alignment, dtype=torch.int32, device=device)
    numbers = torch.arange(groups, dtype=torch.int32, device=device).unsqueeze(1)
    return ((blocks <= numbers) * ends).amax(1)
