"""Epilogues that models use can be written, and the generators have kernels of them."""

from __future__ import annotations

import pytest

from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.sm90_gemm.generator import Sm90Gemm
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.kernels.formula import OUT, evaluate
from tests.support.epilogue_functions import REFERENCES
from tests.support.model_epilogues import MODEL_EPILOGUES
from tests.support.paths import REPOSITORY

torch = pytest.importorskip("torch")

M, N = 8, 16
SHAPES = {("L", "M", "N"): (M, N), ("N",): (N,), ("N", 1): (N,), ("M",): (M, 1), (1,): (1,), (): ()}
REDUCED = {("N",): (0,), ("M",): (1,), (1,): (0, 1)}


@pytest.mark.parametrize("name", MODEL_EPILOGUES)
def test_the_formula_is_what_torch_computes(name):
    case = MODEL_EPILOGUES[name]
    torch.manual_seed(0)
    epilogue = parse_epilogue(case.text, case.operands)
    product = torch.randn(M, N, dtype=torch.float64)
    given = {}
    for operand in epilogue.operands:
        if not operand.written:
            value = torch.rand(SHAPES[operand.extents], dtype=torch.float64) + 0.5
            given[operand.name] = (value > 1).double() if operand.dtype in ("bool", "u8") else value
    expected = case.reference(product, **given)
    expected = expected if isinstance(expected, tuple) else (expected,)
    extents = {operand.name: operand.extents for operand in epilogue.operands}
    for statement, value in zip(epilogue.statements, expected, strict=True):
        found = evaluate(
            statement.expression,
            {"accum": product, **given},
            REFERENCES,
            lambda x: torch.full_like(product, x),
        ).expand(M, N)
        if statement.reduction:
            reduce = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[statement.reduction]
            found = reduce(found, dim=REDUCED[extents[statement.name]])
        if statement.name == OUT and case.out == "f8e4m3":
            found = found.clamp(-448, 448)
        torch.testing.assert_close(found.reshape(value.shape), value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", MODEL_EPILOGUES)
def test_there_are_kernels_for_hopper(name):
    case = MODEL_EPILOGUES[name]
    problem = Problem(
        "gemm", ("bf16", "bf16", case.out), "tnt", "f32", epilogue=parse_epilogue(case.text, case.operands)
    )
    assert len(list(Sm90Gemm().enumerate(problem, "sm_90a", load_profile("h200")))) > 50


def test_the_page_has_every_one():
    page = (REPOSITORY / "docs" / "reference" / "epilogues.md").read_text(encoding="utf-8")
    assert f"{len(MODEL_EPILOGUES)} epilogues" in page
