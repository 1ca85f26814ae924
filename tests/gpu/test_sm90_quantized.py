"""On a GPU: outputs that epilogues store with scales of blocks of columns, against torch.

cutlass-aot build manifests/sm90_quantized.toml; cutlass-aot build manifests/sm90_scaled.toml;
python -m pytest -m gpu

Operands are small whole numbers, so that sums are exact: where a formula has no approximated function,
scales and elements are compared bit by bit.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from tests.gpu.conftest import REPOSITORY, opened
from tests.gpu.test_sm90_scaled import MANY, SIZES
from tools.bench.experts import wide

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

SILU = "scale = max(abs(silu(accum))) / 448.0; D = silu(accum) / scale"
BIAS = (
    "scale = maximum(max(abs(accum + bias)), 0.0001) / 448.0; D = (accum + bias) / scale; "
    "amax = max(abs(accum + bias))"
)
MXFP8 = "scale = max(abs(accum)) / 448.0; D = accum / scale"
NVFP4 = "scale = max(abs(accum / whole)) / 6.0; D = accum / whole / scale"
GATED = "scale = max(abs(silu(gate) * accum)) / 448.0; D = silu(gate) * accum / scale"
SWIGLU = (
    "scale = max(abs(odd(accum) * silu(even(accum)))) / 448.0; D = odd(accum) * silu(even(accum)) / scale"
)
SWIGLU_AND_SQUARES = (
    "D = odd(accum) * silu(even(accum)); squares = sum((odd(accum) * silu(even(accum))) ** 2.0)"
)
GENERAL = (
    "D = accum * share + C; all = max(abs(accum * share + C)); by_column = sum(accum * share + C); "
    "by_row = max(accum * share + C)"
)

PROBLEMS = (
    (1, 1, 16, 64), (1, 7, 144, 128), (2, 333, 2064, 528), (1, 64, 4096, 1024), (3, 130, 64, 256),
    (1, 1000, 336, 512), (1, 3000, 2320, 144),
)  # fmt: skip
"""Batch, m, n, k: single rows, less than a block of columns, blocks that end behind the last column, batches;
at the end more tiles than fit at once."""

HALF_STEP, LEAST_STEP = 2.0**-4, 2.0**-10
"""Of f8e4m3: half of the distance to a neighbour, relative; below the normal numbers, absolute."""

F32_ERROR = 1e-4
"""What silu in f32 may lose, and sums of FP8 on tensor cores, relative to the largest of a block."""


@pytest.fixture(scope="module")
def bundle(capability):
    return opened("sm90-quantized", capability)


def whole_numbers(*shape: int) -> Any:
    return torch.randint(-4, 5, shape, device="cuda").float()


def operands(batch: int, m: int, n: int, k: int, dtype: Any) -> tuple[Any, Any, Any]:
    """A, the weights and their product in f64, with rows and blocks of zeros."""
    x, w = whole_numbers(batch, m, k), whole_numbers(batch, n, k)
    x[:, m // 2] = 0
    w[:, :16] = 0
    if n >= 384:
        w[:, 128:256] = 0
    # Blocks of different magnitudes.
    x *= (torch.arange(m, device="cuda") % 3 == 0).float()[:, None] + 1
    assert bool((x.abs() <= 8).all())
    # A zero without a sign, whatever order the products are added in.
    return x.to(dtype), w.to(dtype), x.double() @ w.double().transpose(1, 2) + 0.0


def largest_of_blocks(values: Any, columns: int) -> Any:
    """The largest magnitude of each row and block of columns; behind the last column there is nothing."""
    n = values.shape[-1]
    padded = torch.nn.functional.pad(values.abs(), (0, -n % columns))
    return padded.unflatten(-1, (-1, columns)).amax(-1)


def of_elements(scales: Any, columns: int, n: int) -> Any:
    return scales.repeat_interleave(columns, -1)[..., :n]


def columns_first(batch: int, m: int, blocks: int) -> Any:
    """A tensor (batch, m, blocks) whose columns are contiguous, with padding, of NaN."""
    return torch.full((batch, blocks, m + 3), math.nan, device="cuda")[..., :m].transpose(1, 2)


def same_bits(found: Any, expected: Any) -> bool:
    kind = {1: torch.uint8, 4: torch.int32}[found.element_size()]
    return bool(torch.equal(found.view(kind), expected.view(kind)))


def f32_quotient(x: Any, y: Any) -> Any:
    """The quotient as f32, correctly rounded: one of f64 has more than twice the bits."""
    return (x.double() / y).float()


def fp8(values: Any) -> Any:
    return values.clamp(-448, 448).to(torch.float8_e4m3fn)


def check_fp8(out: Any, scale: Any, x: Any, case: Any) -> None:
    """Whether FP8 with scales of 128 columns is as near to ``x``, in f64, as it can be."""
    largest, n = largest_of_blocks(x, 128), x.shape[-1]
    zeros = largest == 0
    assert bool((scale[zeros] == 2.0**-126).all()), case
    off = (scale.double() * 448 - largest).abs() - F32_ERROR * largest
    assert bool((off[~zeros] <= 0).all()), case
    step, value = of_elements(scale, 128, n).double(), out.double()
    bound = HALF_STEP * x.abs() + LEAST_STEP * step + F32_ERROR * of_elements(largest, 128, n)
    assert bool(((value * step - x).abs() <= (1 + 2.0**-7) * bound).all()), case
    # The largest of each block is the largest number that there is.
    assert bool((largest_of_blocks(value, 128)[~zeros] == 448).all()), case


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3"])
def test_every_kernel_with_fp8_and_scales_of_128_columns(bundle, dtype):
    kernels = bundle.kernels(dtypes=f"{dtype}.{dtype}.f8e4m3.f32", epilogue=SILU)
    assert len(kernels) > 3
    kind = torch.bfloat16 if dtype == "bf16" else torch.float8_e4m3fn
    for batch, m, n, k in PROBLEMS:
        a, w, product = operands(batch, m, n, k, kind)
        x = torch.nn.functional.silu(product)
        for kernel in kernels:
            case = kernel.name, batch, m, n, k
            found = []
            for _ in range(2):
                out = torch.full((batch, m, n), math.nan, device="cuda").to(torch.float8_e4m3fn)
                scale = columns_first(batch, m, -(-n // 128))
                kernel.launch(a, w.transpose(1, 2), out, scale)
                found.append((out, scale))
            (out, scale), (again, scale_again) = found
            assert same_bits(out, again), case
            assert same_bits(scale, scale_again), case
            assert bool((largest_of_blocks(x, 128) == 0).any()), case
            check_fp8(out, scale, x, case)


def test_every_kernel_with_a_bound_a_bias_and_the_largest_of_all(bundle):
    kernels = bundle.kernels(epilogue=BIAS)
    assert len(kernels) > 3
    for batch, m, n, k in PROBLEMS:
        a, w, product = operands(batch, m, n, k, torch.bfloat16)
        bias = torch.randint(-3, 4, (n,), device="cuda").float()
        bias[:16] = 0
        if n >= 384:
            bias[128:256] = 0
        x = (product + bias).float()
        scales = f32_quotient(largest_of_blocks(x, 128).clamp(min=1e-4), 448)
        expected = fp8(f32_quotient(x, of_elements(scales, 128, n)))
        for kernel in kernels:
            case = kernel.name, batch, m, n, k
            out = torch.full((batch, m, n), math.nan, device="cuda").to(torch.float8_e4m3fn)
            scale = torch.full((batch, m, -(-n // 128) + 3), math.nan, device="cuda")[..., :-3]
            amax = torch.full((1,), -math.inf, device="cuda")
            kernel.launch(a, w.transpose(1, 2), out, amax, bias.bfloat16(), scale)
            assert same_bits(scale, scales), case
            assert same_bits(out, expected), case
            assert float(amax) == float(x.abs().max()), case


def test_every_kernel_with_mxfp8(bundle):
    kernels = bundle.kernels(epilogue=MXFP8)
    assert len(kernels) > 10
    for batch, m, n, k in PROBLEMS:
        a, w, product = operands(batch, m, n, k, torch.bfloat16)
        x = product.float()
        mantissa, exponent = torch.frexp(f32_quotient(largest_of_blocks(x, 32), 448))
        # A power of two is half of the next one in frexp's words.
        codes = torch.where(mantissa == 0, 0, exponent - (mantissa == 0.5).int() + 127)
        scales = torch.ldexp(torch.ones_like(mantissa).double(), codes - 127)
        expected = fp8(f32_quotient(x, of_elements(scales, 32, n)))
        for kernel in kernels:
            case = kernel.name, batch, m, n, k
            out = torch.full((batch, m, n), math.nan, device="cuda").to(torch.float8_e4m3fn)
            memory = torch.full((batch, m, -(-n // 32) + 3), 0x55, device="cuda", dtype=torch.uint8)
            scale = memory[..., :-3]
            kernel.launch(a, w.transpose(1, 2), out, scale.view(torch.float8_e8m0fnu))
            assert torch.equal(scale.int(), codes.int()), case
            assert bool((memory[..., -3:] == 0x55).all()), case
            assert same_bits(out, expected), case


def test_every_kernel_with_nvfp4(bundle):
    kernels = bundle.kernels(epilogue=NVFP4)
    assert len(kernels) > 10
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device="cuda")
    borders = (numbers[1:] + numbers[:-1]) / 2
    for batch, m, n, k in PROBLEMS:
        n = -(-n // 32) * 32
        a, w, product = operands(batch, m, n, k, torch.bfloat16)
        whole = 4.0
        x = (product / whole).float()
        scales = fp8(f32_quotient(largest_of_blocks(x, 16), 6).clamp(min=2.0**-9))
        quotient = f32_quotient(x, of_elements(scales.double(), 16, n))
        # Of two neighbours, the one with an even code: the upper one behind an odd code.
        size = quotient.abs()[..., None]
        odd = torch.arange(7, device="cuda") % 2 == 1
        codes = ((size > borders) | ((size == borders) & odd)).sum(-1)
        codes = codes + 8 * torch.signbit(quotient)
        expected = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        for kernel in kernels:
            case = kernel.name, batch, m, n, k
            out = torch.full((batch, m, n // 2), 0x55, device="cuda", dtype=torch.uint8)
            scale = torch.full((batch, m, -(-n // 16)), math.nan, device="cuda").to(torch.float8_e4m3fn)
            kernel.launch(a, w.transpose(1, 2), out.view(torch.float4_e2m1fn_x2), scale, whole)
            assert same_bits(scale, scales), case
            assert torch.equal(out, expected), case


# ---- of kernels with scale factors, and of groups --------------------------------------------------------


def scaled_operands(m: int, n: int, k: int, a: tuple[int, ...], b: tuple[int, ...]) -> Any:
    """A, the weights, their factors, powers of two, and both as they are meant, in f64."""
    x, w = whole_numbers(*a, m, k), whole_numbers(*b, n, k)
    x[..., m // 2, :], w[..., :16, :] = 0, 0
    blocks = -(-k // 128)
    factors = [
        2.0 ** torch.randint(-1, 2, shape, device="cuda").float()
        for shape in ((*a, blocks, m + 3), (*b, -(-n // 128), blocks))
    ]
    factors[0] = factors[0][..., :m].transpose(-1, -2)
    x, w = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    return x, w, factors, wide(torch, x, factors[0]).double(), wide(torch, w, factors[1]).double()


def test_every_kernel_with_factors_into_fp8_with_scales(bundle):
    kernels = bundle.kernels(dtypes="f8e4m3.f8e4m3.f8e4m3.f32.f32.f32", operation="gemm", epilogue=SILU)
    assert len(kernels) > 3
    for batch, m, n, k in PROBLEMS:
        a, w, factors, wide_a, wide_w = scaled_operands(m, n, k, (batch,), (batch,))
        x = torch.nn.functional.silu(wide_a @ wide_w.transpose(1, 2))
        for kernel in kernels:
            out = torch.full((batch, m, n), math.nan, device="cuda").to(torch.float8_e4m3fn)
            scale = columns_first(batch, m, -(-n // 128))
            kernel.launch(a, w.transpose(1, 2), out, *factors, scale)
            check_fp8(out, scale, x, (kernel.name, batch, m, n, k))


def padded(values: Any, rows: int) -> Any:
    """With rows of NaN behind them."""
    return torch.nn.functional.pad(values, (0, 0, 0, rows), value=math.nan)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_kernel_of_groups_into_fp8_with_scales(bundle, sizes):
    n, k, behind, total = 2320 if sizes == MANY else 336, 592, 9, sum(sizes)
    ends = torch.tensor(sizes).cumsum(0).int().cuda()
    a, w, factors, wide_a, wide_w = scaled_operands(total + behind, n, k, (), (len(sizes),))
    gate = padded(torch.randint(-3, 4, (total, n), device="cuda").float(), behind).bfloat16()
    parts = zip(wide_a[:total].split(sizes), wide_w, strict=True)
    product = torch.cat([part @ weight.T for part, weight in parts])
    x = torch.nn.functional.silu(gate[:total].double()) * product
    kernels = bundle.kernels(operation="grouped_gemm", epilogue=GATED)
    assert len(kernels) > 3
    for kernel in kernels:
        out = torch.full((total + behind, n), math.nan, device="cuda").to(torch.float8_e4m3fn)
        scale = columns_first(1, total + behind, -(-n // 128))[0]
        kernel.launch(a, w.transpose(1, 2), out, *factors, gate, scale, ends)
        check_fp8(out[:total], scale[:total], x, kernel.name)
        assert bool(out[total:].float().isnan().all()), kernel.name
        assert bool(scale[total:].isnan().all()), kernel.name


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_kernel_of_groups_in_a_matrix_each_into_fp8_with_scales(bundle, sizes):
    n, k, most = 2320 if sizes == MANY else 208, 528, max(sizes) + 5
    counts = torch.tensor(sizes, device="cuda").int()
    a, w, factors, wide_a, wide_w = scaled_operands(most, n, k, (len(sizes),), (len(sizes),))
    gate = torch.randint(-3, 4, (len(sizes), most, n), device="cuda").bfloat16()
    for matrix, size in zip(gate, sizes, strict=True):
        matrix[size:] = math.nan
    kernels = bundle.kernels(operation="masked_grouped_gemm", epilogue=GATED)
    assert len(kernels) > 3
    for kernel in kernels:
        out = torch.full((len(sizes), most, n), math.nan, device="cuda").to(torch.float8_e4m3fn)
        scale = columns_first(len(sizes), most, -(-n // 128))
        kernel.launch(a, w.transpose(1, 2), out, *factors, gate, scale, counts)
        for group, size in enumerate(sizes):
            product = wide_a[group, :size] @ wide_w[group].T
            x = torch.nn.functional.silu(gate[group, :size].double()) * product
            check_fp8(out[group, :size], scale[group, :size], x, (kernel.name, group))
            assert bool(out[group, size:].float().isnan().all()), kernel.name
            assert bool(scale[group, size:].isnan().all()), kernel.name


class General:
    """Operands and outputs of :data:`GENERAL`, whose values are whole numbers or halves."""

    def __init__(self, rows: int, n: int, shape: tuple[int, ...]) -> None:
        self.share = 2.0 ** torch.randint(-1, 2, (rows,), device="cuda").float()
        self.C = torch.randint(-9, 10, (*shape, n), device="cuda").bfloat16()
        self.out = torch.full((*shape, n), math.nan, device="cuda").bfloat16()
        self.all = torch.full((1,), -math.inf, device="cuda")
        self.by_column = torch.zeros(n, device="cuda")
        self.by_row = torch.full((rows,), -math.inf, device="cuda")

    def operands(self) -> tuple[Any, ...]:
        return self.C, self.all, self.by_column, self.by_row, self.share

    def check(self, parts: Any, case: Any) -> None:
        """Against products of parts of the rows, each with its place in the output and its rows' numbers."""
        largest, by_column = -math.inf, torch.zeros_like(self.by_column).double()
        by_row = torch.full_like(self.by_row, -math.inf).double()
        untouched = torch.ones_like(self.out[..., 0], dtype=torch.bool)
        for place, rows, product in parts:
            x = product * self.share[rows].double()[:, None] + self.C[place].double()
            assert torch.equal(self.out[place], x.float().bfloat16()), case
            untouched[place] = False
            if x.numel():
                largest = max(largest, float(x.abs().max()))
                by_column += x.sum(0)
                by_row[rows] = torch.maximum(by_row[rows], x.amax(1))
        assert bool(self.out[untouched].isnan().all()), case
        assert float(self.all) == largest, case
        assert torch.equal(self.by_row.double(), by_row), case
        assert torch.equal(self.by_column.double(), by_column), case


def test_every_kernel_with_factors_and_any_epilogue(bundle):
    kernels = bundle.kernels(operation="gemm", epilogue=GENERAL)
    assert len(kernels) > 15
    for batch, m, n, k in PROBLEMS:
        a, w, factors, wide_a, wide_w = scaled_operands(m, n, k, (batch,), (batch,))
        products = wide_a @ wide_w.transpose(1, 2)
        for kernel in kernels:
            general = General(m, n, (batch, m))
            kernel.launch(a, w.transpose(1, 2), general.out, *factors, *general.operands())
            parts = [(index, slice(None), products[index]) for index in range(batch)]
            general.check(parts, (kernel.name, batch, m, n, k))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_kernel_of_groups_and_any_epilogue(bundle, sizes):
    n, k, behind, total = 2312 if sizes == MANY else 328, 592, 9, sum(sizes)
    ends = torch.tensor(sizes).cumsum(0).int().cuda()
    a, w = whole_numbers(total + behind, k), whole_numbers(len(sizes), n, k)
    parts, first = [], 0
    for size, weight in zip(sizes, w, strict=True):
        rows = slice(first, first + size)
        parts.append((rows, rows, a[rows].double() @ weight.double().T))
        first += size
    kernels = bundle.kernels(operation="grouped_gemm", epilogue=GENERAL)
    assert len(kernels) > 5
    for kernel in kernels:
        general = General(total + behind, n, (total + behind,))
        general.C[total:], general.share[total:] = math.nan, math.nan
        operands = a.bfloat16(), w.bfloat16().transpose(1, 2), general.out
        kernel.launch(*operands, *general.operands(), ends)
        general.check(parts, kernel.name)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_kernel_of_groups_in_a_matrix_each_and_any_epilogue(bundle, sizes):
    n, k, most = 2312 if sizes == MANY else 200, 528, max(sizes) + 5
    counts = torch.tensor(sizes, device="cuda").int()
    a, w = whole_numbers(len(sizes), most, k), whole_numbers(len(sizes), n, k)
    parts = [
        ((group, slice(size)), slice(size), a[group, :size].double() @ w[group].double().T)
        for group, size in enumerate(sizes)
    ]
    kernels = bundle.kernels(operation="masked_grouped_gemm", epilogue=GENERAL)
    assert len(kernels) > 5
    for kernel in kernels:
        general = General(most, n, (len(sizes), most))
        for matrix, size in zip(general.C, sizes, strict=True):
            matrix[size:] = math.nan
        general.share[max(sizes) :] = math.nan
        operands = a.bfloat16(), w.bfloat16().transpose(1, 2), general.out
        kernel.launch(*operands, *general.operands(), counts)
        general.check(parts, kernel.name)


# ---- of an output with half as many columns --------------------------------------------------------------


def swiglu(product: Any) -> Any:
    return torch.nn.functional.silu(product[..., ::2]) * product[..., 1::2]


def halved(n: int) -> int:
    """Columns of sums of which a row of FP8 results has whole 16 bytes."""
    return -(-n // 32) * 32


def test_every_kernel_with_half_as_many_columns(bundle):
    kernels = bundle.kernels(epilogue=SWIGLU_AND_SQUARES)
    assert len(kernels) > 15
    for batch, m, n, k in PROBLEMS:
        a, w, product = operands(batch, m, n, k, torch.bfloat16)
        x = swiglu(product)
        squares = (x**2).sum((0, 2))
        for kernel in kernels:
            case = kernel.name, batch, m, n, k
            memory = torch.full((batch, m, n // 2 + 8), math.nan, device="cuda").bfloat16()
            found = torch.zeros(m, device="cuda")
            kernel.launch(a, w.transpose(1, 2), memory[..., :-8], found)
            off = (memory[..., :-8].double() - x).abs()
            assert bool((off <= (2.0**-8 + F32_ERROR) * x.abs() + 1e-6).all()), case
            assert bool(memory[..., -8:].isnan().all()), case
            assert bool(((found.double() - squares).abs() <= F32_ERROR * squares).all()), case


def test_every_kernel_with_half_as_many_columns_of_fp8(bundle):
    kernels = bundle.kernels(dtypes="bf16.bf16.f8e4m3.f32", operation="gemm", epilogue=SWIGLU)
    assert len(kernels) > 1
    for batch, m, n, k in PROBLEMS:
        n = halved(n)
        a, w, product = operands(batch, m, n, k, torch.bfloat16)
        for kernel in kernels:
            out = torch.full((batch, m, n // 2), math.nan, device="cuda").to(torch.float8_e4m3fn)
            scale = columns_first(batch, m, -(-n // 256))
            kernel.launch(a, w.transpose(1, 2), out, scale)
            check_fp8(out, scale, swiglu(product), (kernel.name, batch, m, n, k))


def test_every_kernel_with_factors_and_half_as_many_columns_of_mxfp8(bundle):
    kernels = bundle.kernels(dtypes="f8e4m3.f8e4m3.f8e4m3.f32.f32.f8e8m0", epilogue=SWIGLU)
    assert len(kernels) > 3
    for batch, m, n, k in PROBLEMS:
        n = halved(n)
        a, w, factors, wide_a, wide_w = scaled_operands(m, n, k, (batch,), (batch,))
        x = swiglu(wide_a @ wide_w.transpose(1, 2))
        largest = largest_of_blocks(x, 32)
        for kernel in kernels:
            case = kernel.name, batch, m, n, k
            out = torch.full((batch, m, n // 2), math.nan, device="cuda").to(torch.float8_e4m3fn)
            codes = torch.full((batch, m, -(-n // 64)), 0x55, device="cuda", dtype=torch.uint8)
            kernel.launch(a, w.transpose(1, 2), out, *factors, codes.view(torch.float8_e8m0fnu))
            scale = torch.ldexp(torch.ones_like(largest), codes.int() - 127)
            # The smallest power of two that is not below, where the last bits of f32 do not decide.
            assert bool((scale * 448 >= largest * (1 - F32_ERROR)).all()), case
            bound = largest.clamp(min=448 * 2.0**-127) * (2 * (1 + F32_ERROR))
            assert bool((scale * 448 < bound).all()), case
            step, value = of_elements(scale, 32, n // 2), out.double()
            bound = HALF_STEP * x.abs() + LEAST_STEP * step + F32_ERROR * of_elements(largest, 32, n // 2)
            assert bool(((value * step - x).abs() <= (1 + 2.0**-7) * bound).all()), case


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_kernel_of_groups_with_half_as_many_columns(bundle, sizes):
    n, k, behind, total = 2336 if sizes == MANY else 352, 592, 9, sum(sizes)
    ends = torch.tensor(sizes).cumsum(0).int().cuda()
    a, w = whole_numbers(total + behind, k), whole_numbers(len(sizes), n, k)
    parts = zip(a[:total].double().split(sizes), w.double(), strict=True)
    x = swiglu(torch.cat([part @ weight.T for part, weight in parts]))
    kernels = bundle.kernels(operation="grouped_gemm", epilogue=SWIGLU)
    assert kernels
    for kernel in kernels:
        out = torch.full((total + behind, n // 2), math.nan, device="cuda").to(torch.float8_e4m3fn)
        scale = columns_first(1, total + behind, -(-n // 256))[0]
        kernel.launch(a.bfloat16(), w.bfloat16().transpose(1, 2), out, scale, ends)
        check_fp8(out[:total], scale[:total], x, kernel.name)
        assert bool(out[total:].float().isnan().all()), kernel.name
        assert bool(scale[total:].isnan().all()), kernel.name


def test_one_output_is_the_next_ones_operand(bundle, capability):
    """Also along a K that 128 does not divide."""
    scaled = opened("sm90-scaled", capability)
    for m, n, k, columns in ((300, 2112, 1024, 512), (33, 4096, 512, 264)):
        x, w = (torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (n, k)))
        out = torch.empty(m, n, device="cuda", dtype=torch.float8_e4m3fn)
        scale = columns_first(1, m, -(-n // 128))[0]
        bundle.gemm(x, w.T, out, scale=scale, epilogue=SILU)
        second = torch.rand(columns, n, device="cuda").sub_(0.5).to(torch.float8_e4m3fn)
        factors = torch.rand(-(-columns // 128), -(-n // 128), device="cuda") + 0.5
        result = torch.empty(m, columns, device="cuda", dtype=torch.bfloat16)
        scaled.gemm(out, second.T, result, a_scale=scale, b_scale=factors)
        expected = wide(torch, out, scale).double() @ wide(torch, second, factors).double().T
        assert float((result.double() - expected).norm() / expected.norm()) < 4e-3
        # And as near to what is not quantised as FP8 lets it be.
        exact = torch.nn.functional.silu(x.double() @ w.double().T) @ wide(torch, second, factors).double().T
        assert float((result.double() - exact).norm() / exact.norm()) < 4e-2


def test_the_page_runs(bundle, monkeypatch):
    page = (REPOSITORY / "docs" / "reference" / "epilogues.md").read_text()
    (block,) = re.findall(r"^```python gpu blocks\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    exec(block, names)
    expected = torch.nn.functional.silu(names["x"].double() @ names["weight"].double().T)
    found = names["out"].double() * of_elements(names["scale"], 128, names["n"])
    assert float((found - expected).norm() / expected.norm()) < 4e-2
