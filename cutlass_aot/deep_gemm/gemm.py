"""DeepGEMM's GEMMs, by the kernels of bundles.

Names, arguments and defaults are those of DeepGEMM at 54e2261 (``csrc/apis/gemm.hpp``). Common to all:

- ``a`` and ``b`` of the ``fp8`` functions are pairs of values (f8e4m3) and scale factors (f32). A has a
  factor for each row and 128 of K, B one for 128 columns and 128 of K. Both values are contiguous along K.
  A's factors are copied unless those of all rows for one block of K lie together
  (:func:`~.layout.get_mn_major_tma_aligned_tensor`), B's unless they are contiguous along K.
- ``d`` is row-major and is written.
- ``recipe``, ``recipe_a`` and ``recipe_b`` have to say the granularity above, or be left out.
- ``compiled_dims``, ``disable_ue8m0_cast`` and ``expected_m_for_psum_layout`` make no difference: nothing is
  compiled, and factors stay f32. Nor does ``ensure_zero_padding``, as in DeepGEMM on sm_90a.
- Kernels come from the bundles that are open, the latest first, then from those that are installed: the first
  that has one for the operands is kept for operands of these element types and layouts on this GPU.

Raised by all: ``OperandError`` for operands that do not go together or arguments that no kernel honours,
``KernelNotFound`` if no bundle has a kernel, unless :mod:`cutlass_aot.policy` says otherwise, and whatever
else :meth:`cutlass_aot.Bundle.run` raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cutlass_aot.deep_gemm.utils.layout import BLOCK, ends_of_groups, get_mn_major_tma_aligned_tensor
from cutlass_aot.errors import (
    Incompatible,
    KernelNotFound,
    MisplacedOperand,
    OperandError,
    ParameterError,
)
from cutlass_aot.runtime import policy
from cutlass_aot.runtime.bundle_search import BundleSearch
from cutlass_aot.runtime.launching.tensors import describe_operand
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.selection.query import Computation
from cutlass_aot.schema.kernels.cost import ROWS_PER_EXPECTED
from cutlass_aot.schema.kernels.operands import MAX_EXTENT, OperandDescription, compact_strides, misplaced

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle
    from cutlass_aot.runtime.opened.kernel_handle import KernelHandle

__all__ = [
    "bf16_gemm_nn", "bf16_gemm_nt", "bf16_gemm_tn", "bf16_gemm_tt", "bf16_m_grouped_gemm_nt_masked",
    "fp8_fp4_gemm_nn", "fp8_fp4_gemm_nt", "fp8_fp4_gemm_tn", "fp8_fp4_gemm_tt", "fp8_gemm_nn", "fp8_gemm_nt",
    "fp8_gemm_tn", "fp8_gemm_tt", "fp8_m_grouped_gemm_nt_masked", "gemm_fp8_fp8_bf16_nt", "get_num_sms",
    "m_grouped_bf16_gemm_nn_contiguous", "m_grouped_bf16_gemm_nt_contiguous", "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_fp8_fp4_gemm_nn_contiguous", "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked", "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous", "m_grouped_gemm_fp8_fp8_bf16_nt_masked", "set_num_sms",
]  # fmt: skip

Scaled = tuple[Tensor, Tensor]
"""Values and their scale factors."""

Recipe = Sequence[int] | None

_SHAPES = {
    "gemm": (("m", "k"), ("n", "k"), ("m", "n")),
    "grouped_gemm": (("m", "k"), ("groups", "n", "k"), ("m", "n")),
    "masked_grouped_gemm": (("groups", "m", "k"), ("groups", "n", "k"), ("groups", "m", "n")),
}
"""Extents of a, b and d, by operation."""

_serving: dict[tuple[Any, ...], Bundle] = {}
"""The bundle that serves operands of one operation, element types, layouts and device."""

_expected: dict[tuple[Any, ...], KernelHandle] = {}
"""The kernel for groups in a matrix each, by what is served, the shape of B and the expected rows."""

_MOST_EXPECTED = 4096
"""Entries at which it is emptied: a server expects few numbers of rows."""

# -- dense --------------------------------------------------------------------------------------------------


def fp8_fp4_gemm_nt(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``d = a @ b.T``, or ``c + a @ b.T``.

    Args:
        a: (m, k) and (m, k / 128), rounded up.
        b: (n, k) and (n / 128, k / 128), rounded up.
        d: (m, n), bf16 or f32.
        c: as ``d``, and may be ``d``. The product is then computed into an f32 tensor, and added.
    """
    x, w, factors = _scaled(a, b, recipe, recipe_a, recipe_b)
    _dense(x, w, d, c, **factors)


def fp8_fp4_gemm_nn(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``d = a @ b``: ``b``, (k, n), and its factors are transposes of :func:`fp8_fp4_gemm_nt`'s."""
    fp8_fp4_gemm_nt(a, _transposed("b", b), d, c, recipe, recipe_a, recipe_b)


def fp8_fp4_gemm_tn(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``d = a.T @ b``: both, (k, m) and (k, n), are transposes of :func:`fp8_fp4_gemm_nt`'s."""
    fp8_fp4_gemm_nt(_transposed("a", a), _transposed("b", b), d, c, recipe, recipe_a, recipe_b)


def fp8_fp4_gemm_tt(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``d = a.T @ b.T``: ``a``, (k, m), and its factors are transposes of :func:`fp8_fp4_gemm_nt`'s."""
    fp8_fp4_gemm_nt(_transposed("a", a), b, d, c, recipe, recipe_a, recipe_b)


def bf16_gemm_nt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "nk") -> None:
    """``d = a @ b.T``, or ``c + a @ b.T``, of bf16 (m, k) and (n, k); ``d`` and ``c`` as for FP8."""
    _dense(a, b, d, c)


def bf16_gemm_nn(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "nk") -> None:
    """``d = a @ b``: ``b`` is (k, n); otherwise :func:`bf16_gemm_nt`."""
    _dense(a, _matrix_transposed(b), d, c)


def bf16_gemm_tn(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "mn") -> None:
    """``d = a.T @ b``: ``a`` is (k, m) and ``b`` (k, n); otherwise :func:`bf16_gemm_nt`."""
    _dense(_matrix_transposed(a), _matrix_transposed(b), d, c)


def bf16_gemm_tt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "mn") -> None:
    """``d = a.T @ b.T``: ``a`` is (k, m); otherwise :func:`bf16_gemm_nt`."""
    _dense(_matrix_transposed(a), b, d, c)


# -- groups -------------------------------------------------------------------------------------------------


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    grouped_layout: Tensor,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
) -> None:
    """``d[i] = a[i] @ b[g].T`` for each row i of group g; groups lie one after the other.

    Nothing is read from the GPU, so that a CUDA graph may be replayed with another ``grouped_layout``.

    Args:
        a: (m, k) and (m, k / 128), rounded up.
        b: (groups, n, k) and (groups, n / 128, k / 128), rounded up.
        d: (m, n), bf16. Rows of no group may be written too.
        grouped_layout: (m,) i32, the group of each row in ascending order, -1 for none; the first of as many
            rows as :func:`~.layout.get_mk_alignment_for_contiguous_layout` says tells whose they all are.
            With ``use_psum_layout`` (groups,) i32, the end of each group; groups may then begin anywhere.
        use_psum_layout: what ``grouped_layout`` is.
    """
    x, w, factors = _scaled(a, b, recipe, recipe_a, recipe_b)
    _contiguous(x, w, d, grouped_layout, use_psum_layout, **factors)


def m_grouped_fp8_fp4_gemm_nn_contiguous(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    grouped_layout: Tensor,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
) -> None:
    """The same for ``b`` (groups, k, n) and factors that are transposes of those above."""
    x, w, factors = _scaled(a, _transposed("b", b), recipe, recipe_a, recipe_b)
    _contiguous(x, w, d, grouped_layout, use_psum_layout, **factors)


def m_grouped_fp8_fp4_gemm_nt_masked(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    masked_m: Tensor,
    expected_m: int,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``d[g, i] = a[g, i] @ b[g].T`` for the first ``masked_m[g]`` rows of each group; no others are written.

    Args:
        a: (groups, m, k) and (groups, m, k / 128), rounded up.
        b: (groups, n, k) and (groups, n / 128, k / 128), rounded up.
        d: (groups, m, n), bf16.
        masked_m: (groups,) i32, read on the GPU.
        expected_m: rows that a group has in the mean, by which a kernel is chosen; 0 if nothing is known.
    """
    x, w, factors = _scaled(a, b, recipe, recipe_a, recipe_b)
    _masked(x, w, d, masked_m, expected_m, **factors)


def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    grouped_layout: Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
) -> None:
    """:func:`m_grouped_fp8_fp4_gemm_nt_contiguous` for bf16, without factors."""
    _contiguous(a, b, d, grouped_layout, use_psum_layout)


def m_grouped_bf16_gemm_nn_contiguous(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    grouped_layout: Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
) -> None:
    """:func:`m_grouped_fp8_fp4_gemm_nn_contiguous` for bf16, without factors."""
    _contiguous(a, _matrix_transposed(b), d, grouped_layout, use_psum_layout)


def m_grouped_bf16_gemm_nt_masked(
    a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """:func:`m_grouped_fp8_fp4_gemm_nt_masked` for bf16, without factors."""
    _masked(a, b, d, masked_m, expected_m)


# DeepGEMM has each of these under a second name, and earlier releases had others, which callers look for.
fp8_gemm_nt = gemm_fp8_fp8_bf16_nt = fp8_fp4_gemm_nt
fp8_gemm_nn = fp8_fp4_gemm_nn
fp8_gemm_tn = fp8_fp4_gemm_tn
fp8_gemm_tt = fp8_fp4_gemm_tt
m_grouped_fp8_gemm_nt_contiguous = m_grouped_fp8_fp4_gemm_nt_contiguous
m_grouped_gemm_fp8_fp8_bf16_nt_contiguous = m_grouped_fp8_fp4_gemm_nt_contiguous
m_grouped_fp8_gemm_nn_contiguous = m_grouped_fp8_fp4_gemm_nn_contiguous
m_grouped_fp8_gemm_nt_masked = fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked
m_grouped_gemm_fp8_fp8_bf16_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked
bf16_m_grouped_gemm_nt_masked = m_grouped_bf16_gemm_nt_masked

# -- the GPU ------------------------------------------------------------------------------------------------


def get_num_sms() -> int:
    """Multiprocessors that a kernel may use: all of the current GPU's.

    Raises:
        DeviceError: if there is no GPU.
    """
    return cuda_driver.sm_count(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)


def set_num_sms(new_num_sms: int) -> None:
    """Accept all of the current GPU's multiprocessors, or 0, which means the same.

    Raises:
        OperandError: for another number, which no prebuilt kernel would keep to.
        DeviceError: if there is no GPU.
    """
    if new_num_sms not in (0, get_num_sms()):
        raise OperandError(
            f"set_num_sms: expected 0 or {get_num_sms()}, got {new_num_sms}: prebuilt kernels use every "
            "multiprocessor; switch off the overlap with communication for which some are to stay free"
        )


# -- how it is done -----------------------------------------------------------------------------------------


def _scaled(
    a: Scaled, b: Scaled, recipe: Recipe, recipe_a: Recipe, recipe_b: Recipe
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The values of both operands, and their factors as kernels take them."""
    recipes = recipe, recipe_a, recipe_b
    given = tuple(tuple(each) if isinstance(each, Sequence) else each for each in recipes)
    whole, sides = (1, BLOCK, BLOCK), ((1, BLOCK), (BLOCK, BLOCK))
    known = all(each is None or isinstance(each, tuple) for each in given)
    if not known or given[0] not in (None, whole) or given[1:] not in ((None, None), sides):
        raise OperandError(
            f"expected recipe {whole}, or recipe_a {sides[0]} and recipe_b {sides[1]}, which is what kernels "
            f"for sm_90a have, got {', '.join(map(str, recipes))}"
        )
    (x, x_factors), (w, w_factors) = _pair("a", a), _pair("b", b)
    if x_factors.stride(-2) != 1 and x_factors.shape[-2] != 1:
        x_factors = get_mn_major_tma_aligned_tensor(x_factors)
    if w_factors.stride(-1) != 1 and w_factors.shape[-1] != 1:
        # Of a transposed pair.
        w_factors = w_factors.contiguous()
    return x, w, {"a_scale": x_factors, "b_scale": w_factors}


def _pair(name: str, given: Scaled) -> Scaled:
    if (
        not isinstance(given, (tuple, list))
        or len(given) != 2
        or not all(isinstance(part, Tensor) for part in given)
        or given[1].dim() not in (2, 3)
    ):
        raise OperandError(
            f"`{name}`: expected a pair of values and scale factors, such as per_token_cast_to_fp8 gives"
        )
    values, factors = given
    if factors.dtype != torch.float32:
        raise OperandError(
            f"scale factors of `{name}`: expected torch.float32, got {factors.dtype}; factors packed as "
            "UE8M0 are for sm_100"
        )
    return values, factors


def _transposed(name: str, given: Scaled) -> Scaled:
    values, factors = _pair(name, given)
    return _matrix_transposed(values), factors.mT


def _matrix_transposed(given: Tensor) -> Tensor:
    # Anything else is refused where the shapes of all operands are checked.
    return given.mT if isinstance(given, Tensor) and given.dim() > 1 else given


def _check_shapes(operation: str, a: Tensor, b: Tensor, d: Tensor) -> None:
    """Refuse operands that do not go together; ``b`` is (n, k), or (groups, n, k)."""
    operands, shapes = (a, b, d), _SHAPES[operation]
    extents: dict[str, int] = {}
    for operand, names in zip(operands, shapes, strict=True):
        if (
            not isinstance(operand, Tensor)
            or operand.dim() != len(names)
            or any(extents.setdefault(*pair) != pair[1] for pair in zip(names, operand.shape, strict=True))
        ):
            expected = ", ".join(f"({', '.join(names)})" for names in shapes)
            got = ", ".join(
                str(tuple(item.shape)) if isinstance(item, Tensor) else type(item).__name__
                for item in operands
            )
            raise OperandError(f"expected a, b and d, once transposed, of shapes {expected}, got {got}")


def _check_tensor(expected: str, given: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(given, Tensor) or tuple(given.shape) != shape or given.dtype != dtype:
        got = f"{tuple(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
        raise OperandError(f"{expected}, {shape} of {dtype}, got {got}")


def _dense(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None, **factors: Tensor) -> None:
    """``d = a @ b.T``, plus ``c``."""
    _check_shapes("gemm", a, b, d)
    if c is not None:
        _check_tensor("c: expected shape and element type of d", c, tuple(d.shape), d.dtype)
    if not d.numel():
        return
    if not a.shape[-1]:
        # An empty sum: no kernel takes k = 0.
        if c is None:
            d.zero_()
        else:
            d.copy_(c)
    elif c is None:
        _run("gemm", a, b, d, **factors)
    else:
        product = torch.empty(d.shape, dtype=torch.float32, device=d.device)
        _run("gemm", a, b, product, **factors)
        torch.add(product, c, out=d)


def _contiguous(
    a: Tensor, b: Tensor, d: Tensor, grouped_layout: Tensor, use_psum_layout: bool, **factors: Tensor
) -> None:
    _check_shapes("grouped_gemm", a, b, d)
    groups, rows = b.shape[0], a.shape[0]
    what = "the end of each group" if use_psum_layout else "the group of each row"
    expected = (groups if use_psum_layout else rows,)
    _check_tensor(f"grouped_layout: expected {what}", grouped_layout, expected, torch.int32)
    if rows:
        offsets = grouped_layout if use_psum_layout else ends_of_groups(grouped_layout, groups)
        _run("grouped_gemm", a, b, d, **factors, offsets=offsets)


def _masked(a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int, **factors: Tensor) -> None:
    _check_shapes("masked_grouped_gemm", a, b, d)
    expected = min(int(expected_m or 0), a.shape[1], MAX_EXTENT // ROWS_PER_EXPECTED // 2)
    _run("masked_grouped_gemm", a, b, d, expected, **factors, rows=masked_m)


def _run(operation: str, a: Tensor, w: Tensor, d: Tensor, expected_m: int = 0, **named: Tensor) -> None:
    """Launch the kernel of the first bundle that has one; ``w`` is B as (n, k), or (groups, n, k).

    With ``expected_m`` it is chosen for so many rows in each group's matrix, instead of for those of a.
    """
    b = w.mT
    key = (operation, a.dtype, d.dtype, a.stride(-1) == 1, b.stride(-2) == 1, d.device, len(named))
    bundle = _serving.get(key)
    if bundle is None:
        search, reasons = BundleSearch(), []
        for found in search:
            try:
                found.choose(a, b, d, operation=operation, **named)
            except MisplacedOperand:
                raise
            except (KernelNotFound, Incompatible, ParameterError) as error:
                # A bundle may have operands of similar names, which it says are meant.
                reasons.append(str(error))
            else:
                bundle = _serving[key] = found
                break
        else:
            _miss(operation, (a, b, d), named, [*reasons, *search.problems])
            return
    if expected_m > 0:
        # What it does not take, the bundle may, or it says why not, as the policy wants it.
        with contextlib.suppress(KernelNotFound, OperandError):
            _expecting(expected_m, key, bundle, a, b, d, named).launch(a, b, d, *named.values())
            return
    bundle.run(operation, a, b, d, **named)


def _expecting(
    expected_m: int,
    key: tuple[Any, ...],
    bundle: Bundle,
    a: Tensor,
    b: Tensor,
    d: Tensor,
    named: dict[str, Tensor],
) -> KernelHandle:
    """The kernel for groups in a matrix each that have so many rows in the mean."""
    # Eight numbers for each power of two: a kernel is chosen anew for few of those that a server expects.
    step = 1 << max(expected_m.bit_length() - 4, 0)
    rows = -(-expected_m // step) * step
    own = (key, b.shape, rows)
    kernel = _expected.get(own)
    if kernel is None:
        of_rows = {
            name: _with_rows(operand, rows * ROWS_PER_EXPECTED)
            for name, operand in {"a": a, "d": d, **named}.items()
            if name in ("a", "d", "a_scale")
        }
        others: dict[str, Any] = {name: of_rows.get(name, operand) for name, operand in named.items()}
        kernel = bundle.choose(of_rows["a"], b, of_rows["d"], operation=key[0], **others).kernel
        if len(_expected) >= _MOST_EXPECTED:
            _expected.clear()
        _expected[own] = kernel
    return kernel


def _with_rows(operand: Tensor, rows: int) -> OperandDescription:
    """An operand (groups, m, columns) as if it had so many rows."""
    there = describe_operand(operand)
    groups, _, columns = there.shape
    shape = groups, rows, columns
    strides = compact_strides(shape, -1 if there.strides[-1] == 1 else -2)
    return there._replace(shape=shape, strides=strides, address=0)


def _miss(
    operation: str, operands: tuple[Tensor, ...], named: dict[str, Tensor], reasons: Sequence[str]
) -> None:
    """Do what the policy says where no bundle has a kernel; ``reasons`` are those of each bundle."""
    computation = Computation.of(operation, None, None, None, named)
    given = (*operands, *(named[name] for name in computation.names))
    descriptions = tuple(map(describe_operand, given))
    if problem := misplaced(("a", "b", "d", *computation.names), descriptions):
        raise MisplacedOperand(problem)
    query = computation.query((), f"GPU {descriptions[0].device}", descriptions)
    manifest = "sm90" if operation == "gemm" and not named else "sm90_scaled"
    wheel = f"cutlass-aot-bundle-{manifest.replace('_', '-')}"
    error = KernelNotFound(
        f"{'; '.join(reasons) or 'no bundle is open or installed'}. Build manifests/{manifest}.toml, and "
        f"open the bundle with cutlass_aot.open or install its wheel, {wheel}; it is for {query}"
    )
    policy.on_miss(error, query, given, None, None)
