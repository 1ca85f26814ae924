"""The module that stands in the place of DeepGEMM, as the guide writes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytest.importorskip("torch")

# What vLLM and SGLang do: look whether the package is there, import it, take names of it and of its parts.
PROGRAM = """
import importlib, importlib.util
assert importlib.util.find_spec("deep_gemm") is not None
module = importlib.import_module("deep_gemm")
from deep_gemm import fp8_gemm_nt, fp8_m_grouped_gemm_nt_masked, m_grouped_fp8_gemm_nt_contiguous
from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor
import cutlass_aot.deep_gemm
assert module is cutlass_aot.deep_gemm
assert fp8_gemm_nt is cutlass_aot.deep_gemm.fp8_gemm_nt
assert getattr(module, "fp8_mqa_logits", None) is None
"""


def test_a_module_of_its_name_stands_in_its_place(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "guides" / "deep-gemm.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"<<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "deep_gemm.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
