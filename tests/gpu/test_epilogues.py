"""On a GPU: epilogues of the SM90 GEMM against torch in f64. The bundles are built here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.formula import CALLED
from tests.support.paths import REPOSITORY

torch = pytest.importorskip("torch")

from tests.support.epilogue_functions import ARGUMENTS, REFERENCES  # noqa: E402 (they import torch)
from tests.support.model_epilogues import MODEL_EPILOGUES  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("cutlass") is None, reason="the DSL is not installed"),
]

HEAD = """
[bundle]
name = "{name}"
targets = ["sm_90a"]
device = "h200"
"""
KERNEL = """
[[kernels]]
generator = "sm90_gemm"
ab = "bf16"
out = "{out}"
max_per_group = {kernels}
{more}
epilogue = '''
{text}
'''
"""

ROUNDING = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}
"""Largest relative error of rounding to an element type, where it is normal."""

SMALLEST = {"f32": 0.0, "bf16": 0.0, "f16": 2.0**-25, "f8e4m3": 2.0**-10, "f8e5m2": 2.0**-17}
"""Half of the smallest number that an element type tells from zero."""

F32_ERROR = 24 * 2.0**-24
"""How much f32 may lose: CUDA's documentation has 8 units in the last place for powers, 4 at most for what
else there is, and a function is composed of a few."""


@pytest.fixture(scope="module", autouse=True)
def hopper(capability: tuple[int, int]) -> None:
    if capability != (9, 0):
        pytest.skip(f"these are for compute capability 9.0, this is {capability}")


def built(folder: Path, name: str, tables: Iterator[str]) -> Any:
    """A bundle of such tables of a manifest."""
    (folder / f"{name}.toml").write_text(HEAD.format(name=name) + "".join(tables))
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", "build", f"{name}.toml", "--out", ".", "--store", "store"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return cutlass_aot.open(folder / name)


def kernel_table(
    text: str, out: str, operands: Mapping[str, Mapping[str, object]], more: str = "", kernels: int = 1
) -> str:
    lines = [KERNEL.format(text=text, out=out, more=more, kernels=kernels)]
    for name, entries in operands.items():
        lines.append(f"[kernels.operands.{name}]")
        lines += [f'{key} = "{value}"' for key, value in entries.items()]
    return "\n".join(lines) + "\n"


# ---- every function --------------------------------------------------------------------------------------


def written(name: str) -> str:
    """A function or an operator of accum, as text."""
    arguments = ["accum", *map(str, ARGUMENTS.get(name, (0.5, 2.0)))][: CALLED[name]]
    return f"{name}({', '.join(arguments)})" if name.isidentifier() else f" {name} ".join(arguments)


EACH = 9
"""Functions of one kernel, each with an output of its own."""

PARTS = [sorted(CALLED)[first : first + EACH] for first in range(0, len(CALLED), EACH)]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def tables() -> Iterator[str]:
        for dtype in ROUNDING:
            for names in PARTS:
                stored = {f"F{index}": {"extents": "MN", "dtype": dtype} for index in range(len(names))}
                text = "; ".join(
                    ["D = accum", *(f"F{index} = {written(name)}" for index, name in enumerate(names))]
                )
                yield kernel_table(text, "f32", stored, 'tile = "64x96x64"\ncluster = "1x1x1"')

    return built(tmp_path_factory.mktemp("functions"), "functions", tables())


@pytest.mark.parametrize("dtype", ROUNDING)
def test_every_function_is_torchs_in_f64(functions: Any, dtype: str) -> None:
    # A product with the identity is exact: the function's argument is known.
    size = 192
    values = torch.cat(
        [torch.linspace(-8, 8, 20000), torch.logspace(-6, 1.3, 8000), -torch.logspace(-6, 1.3, 8000)]
    )
    a = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(1))][: size * size]
    a = torch.nn.functional.pad(a, (0, size * size - len(a))).reshape(size, size).cuda().bfloat16()
    b = torch.eye(size, device="cuda").bfloat16()
    out = torch.empty(size, size, device="cuda")
    x = a.double()
    wrong = []
    for names in PARTS:
        stored = {
            f"F{index}": torch.full((size, size), float("nan"), device="cuda").to(
                getattr(torch, DTYPES[dtype].torch)
            )
            for index in range(len(names))
        }
        text = "; ".join(["D = accum", *(f"F{index} = {written(name)}" for index, name in enumerate(names))])
        functions.gemm(a, b.T, out, epilogue=text, **stored)
        torch.cuda.synchronize()
        assert torch.equal(out, a.float())
        for index, name in enumerate(names):
            others = ARGUMENTS.get(name, (0.5, 2.0))[: CALLED[name] - 1]
            expected = REFERENCES[name](x, *(torch.full_like(x, other) for other in others))
            found = stored[f"F{index}"].double()
            if dtype.startswith("f8"):
                most = torch.finfo(stored[f"F{index}"].dtype).max
                expected = expected.clamp(-most, most)
            elif dtype == "f16":
                expected = torch.where(expected.abs() < 65520, expected, expected.sign() * float("inf"))
            if name in ("round", "relu", "abs", "maximum", "minimum", "clamp", "where") or not name.isalpha():
                lost = 0.0 if name != "**" else F32_ERROR
            else:
                lost = F32_ERROR
            # Near a zero of the function, the argument's error decides, which is that of a sum with it.
            bound = ROUNDING[dtype] * expected.abs() + SMALLEST[dtype]
            bound = (1 + 2.0**-7) * bound + lost * (expected.abs() + x.abs().clamp(max=8) + 2.0**-20)
            same = (found - expected).abs() <= bound
            same |= found.isnan() & expected.isnan()
            same |= found == expected  # infinities
            if not bool(same.all()):
                place = int((~same).flatten().nonzero()[0])
                wrong.append(
                    f"{name}({float(x.flatten()[place])}): {float(found.flatten()[place])}, expected "
                    f"{float(expected.flatten()[place])}; {int((~same).sum())} of {size * size}"
                )
    assert not wrong, "\n".join(wrong)


# ---- every kind of operand, output and reduction, by every way of storing --------------------------------

KINDS: tuple[tuple[str, str, dict[str, dict[str, object]]], ...] = (
    (
        "t = accum * scale; D = t; by_column = sum(t); by_row = sum(t); all = sum(abs(accum))",
        "bf16",
        {"by_column": {"extents": "N"}, "by_row": {"extents": "M"}, "all": {"extents": "1"}},
    ),
    (
        "D = accum; by_column = max(accum); by_row = min(accum); all = max(abs(accum)); least = min(accum)",
        "f32",
        {
            "by_column": {"extents": "N"}, "by_row": {"extents": "M"}, "all": {"extents": "1"},
            "least": {"extents": "1"},
        },
    ),
    (
        "D = where(mask, accum * row * column, C); F = accum; positive = accum > 0; least = min(accum)",
        "f8e4m3",
        {
            "mask": {"extents": "MN", "dtype": "bool"}, "row": {"extents": "N1", "dtype": "bf16"},
            "column": {"extents": "M1"}, "C": {"extents": "MN", "dtype": "f8e5m2"},
            "F": {"extents": "MN", "dtype": "f8e5m2"}, "positive": {"extents": "MN", "dtype": "bool"},
            "least": {"extents": "N"},
        },
    ),
    (
        "D = clamp(round(accum * scale), -128, 127); F = accum * C; G = clamp(accum, 0, 255)",
        "i8",
        {
            "F": {"extents": "MN", "dtype": "i32"}, "C": {"extents": "MN", "dtype": "i32"},
            "G": {"extents": "MN", "dtype": "u8"}, "scale": {"extents": "1"},
        },
    ),
)  # fmt: skip

# Results stored from registers, by way of shared memory in lines of several widths, sums of a cluster,
# exchanged operands, persistent blocks.
DESIGNS = (
    ("64x96x64", "1x1x1"), ("128x144x64", "1x1x1"), ("128x200x64", "1x2x1"), ("64x16x128", "1x1x4"),
    ("64x96x64", "2x2x2"), ("8x64x128", "1x1x4"), ("72x64x64", "1x4x2"), ("120x64x64", "1x1x1"),
    ("96x192x64", "2x1x1"), ("152x192x64", "2x1x1"), ("128x160x64", "2x1x1"), ("192x144x64", "1x2x1"),
)  # fmt: skip


def test_every_kind_of_operand_and_reduction_by_every_way_of_storing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from tools.check.sm90_gemm import main

    def tables() -> Iterator[str]:
        for text, out, operands in KINDS:
            for tile, cluster in DESIGNS:
                yield kernel_table(text, out, operands, f'tile = "{tile}"\ncluster = "{cluster}"', kernels=2)

    bundle = built(tmp_path_factory.mktemp("kinds"), "kinds", tables())
    assert len(bundle.kernels()) >= len(KINDS) * 9
    assert main([str(bundle.path)]) == 0


# ---- epilogues of models ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    tables = (kernel_table(case.text, case.out, case.operands) for case in MODEL_EPILOGUES.values())
    return built(tmp_path_factory.mktemp("models"), "models", tables)


@pytest.mark.parametrize("name", MODEL_EPILOGUES)
def test_epilogues_of_models_are_torchs_in_f64(models: Any, name: str) -> None:
    case = MODEL_EPILOGUES[name]
    m, n, k = 200, 336, 128
    torch.manual_seed(0)
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (n, k)))
    a = a / k**0.5
    product = a.double() @ b.double().T
    (handle,) = models.find(
        *(cutlass_aot.describe((m, k), "bf16"), cutlass_aot.describe((k, n), "bf16", strides=(1, k))),
        cutlass_aot.describe((m, n), case.out), epilogue=case.text, target="sm_90a", **described(case, m, n),
    )[:1]  # fmt: skip
    shapes = {("L", "M", "N"): (m, n), ("N",): (n,), ("N", 1): (n, 1), ("M",): (m,), (1,): (1,)}
    given, exact = {}, {}
    for operand in handle.kernel.operands[3:]:
        if operand.is_number:
            given[operand.name], exact[operand.name] = 0.75, 0.75
        elif operand.written:
            value = torch.zeros(shapes[operand.extents], device="cuda")
            given[operand.name] = value.to(getattr(torch, DTYPES[operand.dtype].torch))
            if operand.name == "amax":
                given[operand.name].fill_(float("-inf"))
        else:
            value = torch.rand(shapes[operand.extents], device="cuda") + 0.5
            value = value > 1 if operand.dtype in ("bool", "u8") else value
            value = value.to(getattr(torch, DTYPES[operand.dtype].torch))
            given[operand.name] = value
            wide = value.double()
            exact[operand.name] = {("M",): wide.reshape(-1, 1), ("N", 1): wide.reshape(-1)}.get(
                operand.extents, wide
            )
    out = torch.zeros(m, n, device="cuda").to(getattr(torch, DTYPES[case.out].torch))
    models.gemm(a, b.T, out, epilogue=case.text, **given)
    expected = case.reference(
        product, **{key: torch.as_tensor(value, device="cuda") for key, value in exact.items()}
    )
    expected = expected if isinstance(expected, tuple) else (expected,)
    names = [operand.name for operand in handle.kernel.operands[3:] if operand.written]
    for found, value in zip((out, *(given[key] for key in names)), expected, strict=True):
        kind = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float8_e4m3fn: "f8e4m3"}.get(found.dtype)
        # An integer, or a bit, may be the next one where the last bits of a sum decide.
        bound = 1.0 if kind is None else (ROUNDING[kind] + 1e-5) * value.abs() + SMALLEST[kind] + 1e-5
        far = (found.double() - value).abs() > bound
        assert not bool(far.any()), f"{int(far.sum())} of {far.numel()}"
        if kind is None:
            assert float((found.double() != value).double().mean()) < 1e-3


def described(case: Any, m: int, n: int) -> dict[str, Any]:
    """Descriptions of the operands of an epilogue, as a query takes them."""
    from cutlass_aot.schema.kernels.epilogue import parse_epilogue

    sizes = {"M": m, "N": n}
    found: dict[str, Any] = {}
    for operand in parse_epilogue(case.text, case.operands).operands:
        shape = tuple(sizes.get(str(extent), 1) for extent in operand.extents if extent != "L")
        found[operand.name] = cutlass_aot.describe(shape, operand.dtype) if operand.extents else 0.75
    return found
