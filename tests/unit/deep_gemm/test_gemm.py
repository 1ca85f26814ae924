"""DeepGEMM's functions through a bundle's real launcher, to kernels that compute on the host."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.errors import DeviceError, KernelNotFound, MisplacedOperand, OperandError, ParameterError
from cutlass_aot.runtime.bundle import Bundle, opened_bundles
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.policy import MissWarning
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from tests.support.bundles import write_bundle
from tests.support.kernels import gemm
from tests.support.paths import REPOSITORY
from tests.support.scaled_host import DENSE, GROUPS, write_scaled_bundle

torch = pytest.importorskip("torch")
from cutlass_aot import deep_gemm  # noqa: E402 - which needs torch
from cutlass_aot.deep_gemm import gemm as functions  # noqa: E402 - which needs torch

N, K = 144, 160
"""Extents with a partial block of factors along each."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory, launcher_library: bytes) -> dict[str, Any]:
    """A bundle of dense kernels and one of groups."""
    folder = tmp_path_factory.mktemp("bundles")
    return {
        name: write_scaled_bundle(folder / name, problems, launcher_library, name=name)
        for name, problems in (("dense", DENSE), ("groups", GROUPS))
    }


@pytest.fixture(autouse=True)
def nothing_open(monkeypatch: pytest.MonkeyPatch, claims: None) -> None:
    """No bundle of another test is open, and none is remembered."""
    monkeypatch.setattr(functions, "_serving", {})
    monkeypatch.setattr(functions, "_expected", {})
    monkeypatch.setattr("cutlass_aot.runtime.bundle_search.opened_bundles", lambda: _opened)
    monkeypatch.setattr("cutlass_aot.runtime.bundle_search.located", list)
    _opened.clear()


_opened: list[Bundle] = []


@pytest.fixture
def bundles(paths: dict[str, Any]) -> list[Bundle]:
    _opened[:] = [cutlass_aot.open(path) for path in paths.values()]
    return _opened


@pytest.fixture
def launched(bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Operation, operands and named operands of each launch."""
    seen: list[tuple[Any, ...]] = []
    real = Bundle.run

    def run(self: Bundle, operation: str, *operands: Any, **named: Any) -> None:
        seen.append((operation, *operands, named))
        real(self, operation, *operands, **named)

    monkeypatch.setattr(Bundle, "run", run)
    return seen


def rows(*shape: int) -> tuple[Any, Any]:
    """A, with a factor for each row and 128 of K, as a cast gives it."""
    values, factors = deep_gemm.per_token_cast_to_fp8(torch.randn(*shape).flatten(0, -2), use_ue8m0=False)
    return values.view(shape), factors.view(*shape[:-1], -1)


def weights(*shape: int) -> tuple[Any, Any]:
    """B as (..., n, k), with a factor for each 128 x 128."""
    *groups, n, k = shape
    cast = [
        deep_gemm.per_block_cast_to_fp8(torch.randn(n, k), use_ue8m0=False)
        for _ in range(groups[0] if groups else 1)
    ]
    values, factors = (torch.stack(item) for item in zip(*cast, strict=True))
    return (values, factors) if groups else (values[0], factors[0])


def wide(pair: tuple[Any, Any], block: int = 1) -> Any:
    """The numbers that values and factors stand for, in f64."""
    values, factors = pair
    factors = factors.double().repeat_interleave(block, -2).repeat_interleave(128, -1)
    return values.double() * factors[..., : values.shape[-2], : values.shape[-1]]


def close(found: Any, expected: Any) -> None:
    bound = 4e-3 if found.dtype == torch.bfloat16 else 1e-6
    assert (found.double() - expected).norm() <= bound * expected.norm()


def empty(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.full(shape, torch.nan, dtype=dtype)


# -- dense --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 7, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fp8(launched: list[Any], m: int, dtype: Any) -> None:
    a, b, d = rows(m, K), weights(N, K), empty(m, N, dtype=dtype)
    assert deep_gemm.fp8_gemm_nt(a, b, d) is None
    close(d, wide(a) @ wide(b, 128).T)
    ((operation, x, w, out, named),) = launched
    assert operation == "gemm"
    assert [item.data_ptr() for item in (x, w, out)] == [item.data_ptr() for item in (a[0], b[0], d)]
    assert named["b_scale"] is b[1]


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_factors_that_lie_as_kernels_take_them_are_not_copied(launched: list[Any], padding: int) -> None:
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    factors = torch.zeros(2, 9 + padding).T[:9].copy_(a[1])
    deep_gemm.fp8_gemm_nt((a[0], factors), b, d)
    close(d, wide(a) @ wide(b, 128).T)
    assert launched[0][-1]["a_scale"] is factors
    one = (a[0][:1], a[1][:1])
    deep_gemm.fp8_gemm_nt(one, b, d[:1])
    assert launched[1][-1]["a_scale"] is one[1]


@pytest.mark.parametrize("name", ["fp8_gemm_nn", "fp8_gemm_tn", "fp8_gemm_tt"])
def test_fp8_of_transposed_operands(launched: list[Any], name: str) -> None:
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    given = [
        tuple(part.T for part in pair) if letter == transposed else pair
        for pair, letter, transposed in zip((a, b), name[-2:], "tn", strict=True)
    ]
    getattr(deep_gemm, name)(*given, d)
    close(d, wide(a) @ wide(b, 128).T)
    assert launched[0][2].data_ptr() == b[0].data_ptr()
    assert launched[0][-1]["b_scale"].data_ptr() == b[1].data_ptr()


def test_factors_of_b_that_are_contiguous_along_n_are_copied(launched: list[Any]) -> None:
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    deep_gemm.fp8_gemm_nn(a, (b[0].T, b[1].T.contiguous()), d)
    close(d, wide(a) @ wide(b, 128).T)
    assert launched[0][-1]["b_scale"].stride() == b[1].stride()


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bf16(bundles: list[Bundle], layout: str, dtype: Any) -> None:
    a, b, d = torch.randn(16, 64).bfloat16(), torch.randn(48, 64).bfloat16(), empty(16, 48, dtype=dtype)
    given = [a.T if layout[0] == "t" else a, b.T if layout[1] == "n" else b]
    getattr(deep_gemm, f"bf16_gemm_{layout}")(*given, d)
    close(d, a.double() @ b.double().T)


def test_bf16_of_a_contiguous_along_n(bundles: list[Bundle]) -> None:
    a, b, d = torch.randn(16, 64).bfloat16(), torch.randn(64, 48).bfloat16(), empty(16, 48)
    deep_gemm.bf16_gemm_nn(a, b, d)
    close(d, a.double() @ b.double())
    with pytest.raises(KernelNotFound, match="operand `a` is unsupported: expected row-major"):
        deep_gemm.bf16_gemm_tn(a.T.contiguous(), b, d)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("same", [False, True])
def test_accumulation(bundles: list[Bundle], dtype: Any, same: bool) -> None:
    a, b, d = rows(9, K), weights(N, K), (32 * torch.randn(9, N)).to(dtype)
    c = d if same else d.clone()
    expected = c.double() + wide(a) @ wide(b, 128).T
    deep_gemm.fp8_gemm_nt(a, b, d, c=c)
    close(d, expected)
    x, w = a[0].bfloat16(), b[0].bfloat16()
    expected = c.double() + x.double() @ w.double().T
    deep_gemm.bf16_gemm_nt(x, w, d, c)
    close(d, expected)


def test_nothing_to_compute_needs_no_kernel() -> None:
    a, b, d = rows(4, K), weights(N, K), empty(4, N)
    deep_gemm.fp8_gemm_nt((a[0][:0], a[1][:0]), b, d[:0])
    c = torch.ones_like(d)
    deep_gemm.bf16_gemm_nt(d[:, :0], torch.ones(N, 0).bfloat16(), d, c)
    assert torch.equal(d, c)
    deep_gemm.bf16_gemm_nt(d[:, :0], torch.ones(N, 0).bfloat16(), d)
    assert not d.any()
    layout = torch.zeros(0, dtype=torch.int32)
    b = weights(2, N, K)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a[0][:0], a[1][:0]), b, d[:0], layout)


# -- groups -------------------------------------------------------------------------------------------------

SIZES = ([100, 0, 37, 163], [0, 0, 128], [1], [0, 129, 0, 0], [0, 0])


def aligned(sizes: list[int], alignment: int, behind: int = 0) -> tuple[Any, list[slice]]:
    """The group of each row, and the rows of each group; ``behind`` further rows are of none."""
    layout, places = [], []
    for group, size in enumerate(sizes):
        places.append(slice(len(layout), len(layout) + size))
        layout += [group] * size + [-1] * (-size % alignment)
    return torch.tensor([*layout, *[-1] * behind], dtype=torch.int32), places


def check_groups(
    function: Callable[..., None], sizes: list[int], layout: Any, places: list[slice], bf16: bool, **how: Any
) -> Any:
    total = how.pop("total", len(layout))
    a, b, d = rows(total, K), weights(len(sizes), N, K), empty(total, N)
    expected = wide(a), wide(b, 128)
    if bf16:
        a, b = a[0].bfloat16(), b[0].bfloat16()
        expected = a.double(), b.double()
    function(a, b, d, layout, **how)
    for x, w, place in zip(itertools.repeat(expected[0]), expected[1], places, strict=False):
        close(d[place], x[place] @ w.T)
    return d


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("alignment", [128, 64])
@pytest.mark.parametrize("bf16", [False, True])
def test_groups_by_the_group_of_each_row(
    bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch, sizes: list[int], alignment: int, bf16: bool
) -> None:
    monkeypatch.setattr(deep_gemm.utils.layout, "_alignment", 128)
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    assert deep_gemm.get_m_alignment_for_contiguous_layout() == alignment
    layout, places = aligned(sizes, alignment, 2 * alignment)
    name = "bf16" if bf16 else "fp8"
    function = getattr(deep_gemm, f"m_grouped_{name}_gemm_nt_contiguous")
    d = check_groups(function, sizes, layout, places, bf16)
    # Rows behind the last group, of which a caller may have many, are not computed.
    assert d[-2 * alignment :].isnan().all()


@pytest.mark.parametrize("bf16", [False, True])
def test_groups_by_their_ends(launched: list[Any], bf16: bool) -> None:
    sizes = [100, 0, 37, 163]
    _, places = aligned(sizes, 128)
    ends = torch.tensor([place.stop for place in places], dtype=torch.int32)
    function = getattr(deep_gemm, f"m_grouped_{'bf16' if bf16 else 'fp8'}_gemm_nt_contiguous")
    how = {"use_psum_layout": True, "expected_m_for_psum_layout": 100, "total": 540}
    check_groups(function, sizes, ends, places, bf16, **how)
    assert launched[0][-1]["offsets"] is ends


def test_groups_with_transposed_weights(bundles: list[Bundle]) -> None:
    sizes = [5, 130]
    layout, places = aligned(sizes, 128)
    for name, bf16 in (("fp8", False), ("bf16", True)):
        function = getattr(deep_gemm, f"m_grouped_{name}_gemm_nn_contiguous")

        def transposed(a: Any, b: Any, *rest: Any, function: Any = function, bf16: bool = bf16) -> None:
            function(a, b.mT if bf16 else tuple(part.mT for part in b), *rest)

        check_groups(transposed, sizes, layout, places, bf16)


@pytest.mark.parametrize("expected_m", [0, 8])
@pytest.mark.parametrize("bf16", [False, True])
def test_groups_in_a_matrix_each(bundles: list[Bundle], bf16: bool, expected_m: int) -> None:
    counts = torch.tensor([5, 0, 12], dtype=torch.int32)
    a, b, d = rows(3, 12, K), weights(3, N, K), empty(3, 12, N)
    expected = wide(a) @ wide(b, 128).mT
    if bf16:
        a, b = a[0].bfloat16(), b[0].bfloat16()
        expected = a.double() @ b.double().mT
        deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d, counts, expected_m)
    else:
        # As SGLang calls it.
        deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, counts, expected_m)
    for group, count in enumerate(counts.tolist()):
        close(d[group, :count], expected[group, :count])
        assert d[group, count:].isnan().all()


def test_a_kernel_is_chosen_by_the_rows_that_are_expected(bundles: list[Bundle]) -> None:
    counts = torch.tensor([5, 7], dtype=torch.int32)
    a, b, d = rows(2, 6000, 32), weights(2, N, 32), empty(2, 6000, N)
    found = []
    for expected_m in (5, 6, 6000, 1 << 40):
        deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, counts, expected_m)
        for group, count in enumerate(counts.tolist()):
            close(d[group, :count], (wide(a)[group] @ wide(b, 128)[group].T)[:count])
        *_, kernel = functions._expected.values()
        found.append(dict(kernel.design)["tile_shape"])
    assert found[0] == found[1] < found[2]
    # There are no more than 6,000.
    assert len(functions._expected) == 3


@pytest.mark.parametrize("expected_m", [None, 2.0, -1])
def test_an_expectation_that_is_none_is_no_reason_to_refuse(bundles: list[Bundle], expected_m: Any) -> None:
    a, b, d = rows(1, 9, K), weights(1, N, K), empty(1, 9, N)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, torch.tensor([9], dtype=torch.int32), expected_m)
    close(d[0], wide(a)[0] @ wide(b, 128)[0].T)


def test_calls_of_vllm(bundles: list[Bundle]) -> None:
    """Every keyword that it passes."""
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    deep_gemm.fp8_gemm_nt(a, b, d, disable_ue8m0_cast=True)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
        rows(128, K), weights(1, N, K), empty(128, N), torch.zeros(128).int(), disable_ue8m0_cast=False
    )
    deep_gemm.fp8_m_grouped_gemm_nt_masked(
        rows(1, 9, K), weights(1, N, K), d[None], torch.ones(1).int(), 9, disable_ue8m0_cast=True
    )
    for recipes in ({"recipe": (1, 128, 128)}, {"recipe_a": [1, 128], "recipe_b": [128, 128]}):
        deep_gemm.fp8_gemm_nt(a, b, d, compiled_dims="mnk", **recipes)
        close(d, wide(a) @ wide(b, 128).T)


def test_the_guide(paths: dict[str, Any]) -> None:
    """What it shows, with operands on the host and small extents."""
    page = (REPOSITORY / "docs" / "guides" / "deep-gemm.md").read_text()
    (block,) = re.findall(r"^```python gpu\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for shown, here in (
        ('"build/bundles/sm90-scaled"', repr(str(paths["dense"]))),
        ("300, 2112, 7168", "9, 144, 160"),
        ('device="cuda"', 'device="cpu"'),
    ):
        assert shown in block
        block = block.replace(shown, here)
    names: dict[str, Any] = {}
    # It keeps its bundle open itself.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cutlass_aot.runtime.bundle_search.opened_bundles", opened_bundles)
        exec(block, names)
    close(names["d"], wide(names["a"]) @ wide(names["b"], 128).T)


# -- which bundle -------------------------------------------------------------------------------------------


def test_each_operation_takes_the_first_bundle_that_has_it(
    bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, launcher_library: bytes
) -> None:
    dense, groups = bundles
    ran: list[Bundle] = []
    real = Bundle.run

    def run(self: Bundle, *operands: Any, **named: Any) -> None:
        ran.append(self)
        real(self, *operands, **named)

    monkeypatch.setattr(Bundle, "run", run)
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    for _ in range(2):
        deep_gemm.fp8_gemm_nt(a, b, d)
        deep_gemm.fp8_m_grouped_gemm_nt_masked(
            rows(1, 9, K), weights(1, N, K), d[None], torch.ones(1).int(), 0
        )
    assert ran == [dense, groups] * 2
    # Remembered: another bundle that is opened takes over nothing but what none served yet.
    other = cutlass_aot.open(write_scaled_bundle(tmp_path / "other", DENSE, launcher_library, name="other"))
    bundles.insert(0, other)
    deep_gemm.fp8_gemm_nt(a, b, d)
    deep_gemm.fp8_gemm_nt(a, b, d.float())
    assert ran[4:] == [dense, other]


def test_a_bundle_with_operands_of_similar_names_does_not_end_the_search(
    paths: dict[str, Any], tmp_path: Path
) -> None:
    plain = tuple(gemm(("bf16", "bf16", "bf16")).operands)
    scale = OperandConstraint("scale", "f32", (), 0, 1, 4)
    other = gemm(operands=(*plain, scale), epilogue="D = accum * scale")
    _opened[:] = [
        cutlass_aot.open(path) for path in (write_bundle(tmp_path / "other", [other]), paths["dense"])
    ]
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    with pytest.raises(ParameterError, match="did you mean"):
        _opened[0].choose(a[0], b[0].T, d, a_scale=a[1], b_scale=b[1])
    deep_gemm.fp8_gemm_nt(a, b, d)
    close(d, wide(a) @ wide(b, 128).T)


def test_without_a_bundle_it_says_what_to_build(paths: dict[str, Any]) -> None:
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    advice = (
        "Build manifests/sm90_scaled.toml, and open the bundle with cutlass_aot.open or install its wheel, "
        "cutlass-aot-bundle-sm90-scaled; it is for gemm on"
    )
    with pytest.raises(KernelNotFound, match=f"no bundle is open or installed. {advice}"):
        deep_gemm.fp8_gemm_nt(a, b, d)
    with pytest.raises(KernelNotFound, match=r"Build manifests/sm90\.toml"):
        deep_gemm.bf16_gemm_nt(a[0].bfloat16(), b[0].bfloat16(), d)
    _opened.append(cutlass_aot.open(paths["groups"]))
    with pytest.raises(KernelNotFound, match=f"bundle groups has no kernel for operation 'gemm'.*{advice}"):
        deep_gemm.fp8_gemm_nt(a, b, d)


def test_a_policy_applies_where_there_is_no_kernel() -> None:
    a, b, d = torch.randn(16, 64).bfloat16(), torch.randn(48, 64).bfloat16(), empty(16, 48)
    cutlass_aot.policy.reset_misses()
    with cutlass_aot.policy.use("warn"), pytest.warns(MissWarning, match="computed by torch instead"):
        deep_gemm.bf16_gemm_nt(a, b, d)
    close(d, a.double() @ b.double().T)
    assert cutlass_aot.policy.misses().total == 1


# -- what is refused ----------------------------------------------------------------------------------------


def test_other_granularities_are_refused(bundles: list[Bundle]) -> None:
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    for recipes in (
        {"recipe": (1, 1, 128)},
        {"recipe": (1, 128, 32)},
        {"recipe_a": (1, 128)},
        {"recipe_a": (1, 32), "recipe_b": (128, 128)},
        {"recipe": 5},
        {"recipe_a": 128, "recipe_b": 128},
        {"recipe_a": (1, 128), "recipe_b": torch.ones(2)},
    ):
        with pytest.raises(OperandError, match=r"expected recipe \(1, 128, 128\), or recipe_a"):
            deep_gemm.fp8_gemm_nt(a, b, d, **recipes)


def test_wrong_operands_are_refused(bundles: list[Bundle]) -> None:
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    with pytest.raises(OperandError, match="`a`: expected a pair of values and scale factors"):
        deep_gemm.fp8_gemm_nt(a[0], b, d)
    with pytest.raises(OperandError, match=r"factors of `b`: expected .*float32, got .*int32"):
        deep_gemm.fp8_gemm_nt(a, (b[0], b[1].int()), d)
    with pytest.raises(OperandError, match="c: expected shape and element type of d"):
        deep_gemm.fp8_gemm_nt(a, b, d, c=d.float())
    with pytest.raises(KernelNotFound, match="`b_scale` is unsupported: expected extent N / 128 = 2"):
        deep_gemm.fp8_gemm_nt(a, (b[0], b[1][:1]), d)
    with pytest.raises(KernelNotFound, match="`b` is unsupported: expected column-major"):
        deep_gemm.fp8_gemm_nn(a, (b[0].T.contiguous(), b[1].T), d)
    grouped = rows(128, K), weights(2, N, K), empty(128, N)
    for layout, how, expected in (
        (torch.zeros(127).int(), {}, r"the group of each row, \(128,\) of torch.int32"),
        (torch.zeros(128).long(), {}, r"got \(128,\) of torch.int64"),
        (torch.zeros(128).int(), {"use_psum_layout": True}, r"the end of each group, \(2,\)"),
    ):
        with pytest.raises(OperandError, match=expected):
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous(*grouped, layout, **how)


def test_shapes_that_do_not_go_together_are_refused(bundles: list[Bundle]) -> None:
    def bf16(*shape: int) -> Any:
        return torch.ones(shape).bfloat16()

    dense = r"shapes \(m, k\), \(n, k\), \(m, n\), got "
    d = bf16(4, 8)
    for a, b, got in (
        # Nothing is computed from these, but d may not be overwritten.
        (bf16(3, 0), bf16(7, 9), r"\(3, 0\), \(7, 9\), \(4, 8\)"),
        (bf16(3, 0), bf16(8, 0), r"\(3, 0\), \(8, 0\), \(4, 8\)"),
        (bf16(4, 0), bf16(8, 16), r"\(4, 0\), \(8, 16\), \(4, 8\)"),
        (bf16(4, 16), bf16(7, 16), r"\(4, 16\), \(7, 16\), \(4, 8\)"),
        (bf16(4, 16), bf16(16), r"\(4, 16\), \(16,\), \(4, 8\)"),
    ):
        for c in (None, d):
            with pytest.raises(OperandError, match=dense + got):
                deep_gemm.bf16_gemm_nt(a, b, d, c)
    assert (d == 1).all()
    with pytest.raises(OperandError, match=dense):
        deep_gemm.bf16_gemm_nt(bf16(3, 16), bf16(8, 16), d[:0])
    with pytest.raises(OperandError, match=dense):
        deep_gemm.bf16_gemm_nn(bf16(4, 16), bf16(16), d)
    with pytest.raises(OperandError, match=dense):
        deep_gemm.fp8_gemm_nt(rows(3, K), weights(8, K), d[:0])
    grouped = r"shapes \(m, k\), \(groups, n, k\), \(m, n\), got \(0, 16\), \(2, 8, 16\), \(4, 8\)"
    with pytest.raises(OperandError, match=grouped):
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(bf16(0, 16), bf16(2, 8, 16), d, torch.zeros(0).int())
    masked = r"shapes \(groups, m, k\), \(groups, n, k\), \(groups, m, n\), got \(3, 4, 16\), \(2, 8, 16\)"
    with pytest.raises(OperandError, match=masked):
        deep_gemm.m_grouped_bf16_gemm_nt_masked(
            bf16(3, 4, 16), bf16(2, 8, 16), bf16(3, 4, 8), torch.ones(3).int(), 4
        )


@pytest.mark.parametrize("wrong", [None, 1.0, torch.tensor(1.0)], ids=["none", "number", "rank 0"])
def test_what_is_no_tensor_or_has_no_rank_is_refused(bundles: list[Bundle], wrong: Any) -> None:
    a, b, d = rows(9, K), weights(N, K), empty(9, N)
    x, w, layout = a[0].bfloat16(), b[0].bfloat16(), torch.zeros(9, dtype=torch.int32)
    one_a, one_b = (tuple(part[None] for part in pair) for pair in (a, b))
    fp8_dense = [getattr(deep_gemm, f"fp8_gemm_{layout}") for layout in ("nt", "nn", "tn", "tt")]
    bf16_dense = [getattr(deep_gemm, f"bf16_gemm_{layout}") for layout in ("nt", "nn", "tn", "tt")]
    for function, right, last in (
        *((function, (a, b, d), ()) for function in fp8_dense),
        *((function, (x, w, d), ()) for function in bf16_dense),
        (deep_gemm.m_grouped_fp8_gemm_nt_contiguous, (a, one_b, d), (layout,)),
        (deep_gemm.m_grouped_fp8_gemm_nn_contiguous, (a, one_b, d), (layout,)),
        (deep_gemm.m_grouped_fp8_gemm_nt_masked, (one_a, one_b, d[None]), (layout[:1], 9)),
        (deep_gemm.m_grouped_bf16_gemm_nt_contiguous, (x, w[None], d), (layout,)),
        (deep_gemm.m_grouped_bf16_gemm_nn_contiguous, (x, w[None], d), (layout,)),
        (deep_gemm.m_grouped_bf16_gemm_nt_masked, (x[None], w[None], d[None]), (layout[:1], 9)),
    ):
        for place in range(3):
            given: list[Any] = list(right)
            given[place] = wrong
            with pytest.raises(OperandError):
                function(*given, *last)
    for pair in ((wrong, b[1]), (b[0], wrong), (b[0],), b[0]):
        with pytest.raises(OperandError):
            deep_gemm.fp8_gemm_nt(a, pair, d)
    if wrong is not None:
        with pytest.raises(OperandError, match="c: expected shape and element type of d"):
            deep_gemm.fp8_gemm_nt(a, b, d, wrong)
    with pytest.raises(OperandError, match="the group of each row"):
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, one_b, d, wrong)
    with pytest.raises((OperandError, KernelNotFound)):
        deep_gemm.m_grouped_bf16_gemm_nt_masked(x[None], w[None], d[None], wrong, 9)


def test_operands_that_are_on_no_gpu_are_refused(bundles: list[Bundle], monkeypatch: Any) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("cutlass_aot.runtime.bundle_search.opened_bundles", lambda: bundles)
    a, b = torch.randn(16, 64).bfloat16(), torch.randn(48, 64).bfloat16()
    with pytest.raises(MisplacedOperand, match="operand `a` is on cpu"):
        deep_gemm.bf16_gemm_nt(a, b, empty(16, 48))


def test_multiprocessors(gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert deep_gemm.get_num_sms() == 132
    deep_gemm.set_num_sms(132)
    deep_gemm.set_num_sms(0)
    with pytest.raises(OperandError, match="expected 0 or 132, got 100: prebuilt kernels use every"):
        deep_gemm.set_num_sms(100)

    def absent(ordinal: int) -> int:
        raise DeviceError("there is no NVIDIA driver on this machine")

    monkeypatch.setattr(cuda_driver, "sm_count", absent)
    with pytest.raises(DeviceError):
        deep_gemm.get_num_sms()
