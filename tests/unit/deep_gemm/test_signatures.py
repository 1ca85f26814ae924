"""Names, parameters and defaults beside those of DeepGEMM.

Source of the table: deepseek-ai/DeepGEMM at 54e2261, ``csrc/apis/gemm.hpp``, ``csrc/apis/layout.hpp``,
``csrc/apis/runtime.hpp``, ``deep_gemm/__init__.py``, ``deep_gemm/utils`` and ``deep_gemm/testing``.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

_FP8 = (
    "a, b, d, c=None, recipe=None, recipe_a=None, recipe_b=None, compiled_dims='{}', disable_ue8m0_cast=False"
)
_BF16 = "a, b, d, c=None, compiled_dims='{}'"
_FP8_GROUPS = (
    "a, b, d, grouped_layout, recipe=None, recipe_a=None, recipe_b=None, compiled_dims='nk', "
    "disable_ue8m0_cast=False, use_psum_layout=False, ensure_zero_padding=True"
)
_BF16_GROUPS = "a, b, d, grouped_layout, compiled_dims='nk', use_psum_layout=False, ensure_zero_padding=True"
_EXPECTED_M = ", expected_m_for_psum_layout=None"
_FP8_MASKED = (
    "a, b, d, masked_m, expected_m, recipe=None, recipe_a=None, recipe_b=None, compiled_dims='nk', "
    "disable_ue8m0_cast=False"
)

SIGNATURES = {
    **{
        f"{name}_gemm_{layout}": _FP8.format(dims)
        for name in ("fp8", "fp8_fp4")
        for layout, dims in (("nt", "nk"), ("nn", "nk"), ("tn", "mn"), ("tt", "mn"))
    },
    **{
        f"bf16_gemm_{layout}": _BF16.format(dims)
        for layout, dims in (("nt", "nk"), ("nn", "nk"), ("tn", "mn"), ("tt", "mn"))
    },
    "m_grouped_fp8_gemm_nt_contiguous": _FP8_GROUPS + _EXPECTED_M,
    "m_grouped_fp8_fp4_gemm_nt_contiguous": _FP8_GROUPS + _EXPECTED_M,
    "m_grouped_fp8_gemm_nn_contiguous": _FP8_GROUPS,
    "m_grouped_fp8_fp4_gemm_nn_contiguous": _FP8_GROUPS,
    "m_grouped_fp8_gemm_nt_masked": _FP8_MASKED,
    "m_grouped_fp8_fp4_gemm_nt_masked": _FP8_MASKED,
    "fp8_m_grouped_gemm_nt_masked": _FP8_MASKED,
    "m_grouped_bf16_gemm_nt_contiguous": _BF16_GROUPS + _EXPECTED_M,
    "m_grouped_bf16_gemm_nn_contiguous": _BF16_GROUPS,
    "m_grouped_bf16_gemm_nt_masked": "a, b, d, masked_m, expected_m, compiled_dims='nk'",
    "bf16_m_grouped_gemm_nt_masked": "a, b, d, masked_m, expected_m, compiled_dims='nk'",
    "transform_sf_into_required_layout": (
        "sf, mn, k, recipe, num_groups=None, is_sfa=None, disable_ue8m0_cast=False, psum_layout=None"
    ),
    "get_theoretical_mk_alignment_for_contiguous_layout": "expected_m=None",
    "get_mk_alignment_for_contiguous_layout": "",
    "get_m_alignment_for_contiguous_layout": "",
    "get_k_alignment_for_contiguous_layout": "",
    "get_num_sms": "",
    "ceil_div": "x, y",
    "align": "x, y",
    "ceil_to_ue8m0": "x",
    "per_token_cast_to_fp8": "x, use_ue8m0, gran_k=128, use_packed_ue8m0=False",
    "per_channel_cast_to_fp8": "x, use_ue8m0, gran_k=128",
    "per_block_cast_to_fp8": "x, use_ue8m0, gran_k=128",
    "testing.calc_diff": "x, y",
}
"""Of functions whose parameters have names."""

COUNTS = {
    "set_num_sms": 1,
    "set_mk_alignment_for_contiguous_layout": 1,
    "get_tma_aligned_size": 2,
    "get_mn_major_tma_aligned_tensor": 1,
}
"""How many parameters others have."""

EARLIER = {
    "gemm_fp8_fp8_bf16_nt": "fp8_gemm_nt",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous": "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked": "m_grouped_fp8_gemm_nt_masked",
}
"""Names of DeepGEMM before 2.0, which vLLM looks for: their first parameters are the same."""


def find(name: str) -> Any:
    found = importlib.import_module("cutlass_aot.deep_gemm")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def text(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters(name: str) -> None:
    assert text(find(name)) == SIGNATURES[name]


def test_parameters_without_names() -> None:
    assert {name: len(inspect.signature(find(name)).parameters) for name in COUNTS} == COUNTS


def test_earlier_names() -> None:
    for name, current in EARLIER.items():
        assert find(name) is find(current)


def test_every_function_is_in_the_table() -> None:
    module = importlib.import_module("cutlass_aot.deep_gemm")
    functions = {name for name in dir(module) if inspect.isfunction(getattr(module, name))}
    assert functions == {*SIGNATURES, *COUNTS, *EARLIER} - {"testing.calc_diff"}


@pytest.mark.parametrize("module", ["utils", "utils.layout", "utils.math", "testing"])
def test_modules_that_callers_import_from(module: str) -> None:
    importlib.import_module(f"cutlass_aot.deep_gemm.{module}")


def test_importing_it_imports_neither_the_dsl_nor_the_build_side() -> None:
    program = (
        "import sys, cutlass_aot.deep_gemm\n"
        "print(*[name for name in sys.modules if name.split('.')[0] in ('cutlass', 'tvm_ffi')\n"
        "        or name.startswith(('cutlass_aot.builder', 'cutlass_aot.generators'))])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
