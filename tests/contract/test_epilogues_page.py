"""docs/reference/epilogues.md: its manifest is built, its Python is run, its names are all there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.schema.kernels.epilogue import _KEYS, _OF_THE_CALL, DTYPES, EXTENTS, MAX_DECLARED, TRANSPORTS
from cutlass_aot.schema.kernels.formula import FUNCTIONS, MAX_NODES, MAX_TEXT, REDUCTIONS
from tests.support.commands import run_commands
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "reference" / "epilogues.md").read_text(encoding="utf-8")


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return found


def test_every_name_and_limit_is_documented():
    named = [*FUNCTIONS, *REDUCTIONS, *_KEYS, *_OF_THE_CALL, *TRANSPORTS]
    assert [name for name in named if not re.search(rf'`"?{name}"?`', TEXT)] == []
    assert [name for name in EXTENTS if name != "LMN" and f'`"{name}"`' not in TEXT] == []
    assert ", ".join(DTYPES) in TEXT
    for limit in (f"{MAX_TEXT} characters", f"{MAX_NODES} operations", f"{MAX_DECLARED} operands"):
        assert limit in TEXT


def test_the_manifest_means_what_the_page_says():
    (table,) = parse_manifest(block("toml").encode(), Path("docs/reference/epilogues.md")).tables
    assert table.epilogue is not None
    assert f"# {table.epilogue.formula}\n" in block("python")
    numbers = [operand.name for operand in table.epilogue.operands if not operand.extents]
    assert numbers == ["alpha", "beta"]


def test_the_manifest_of_a_quantised_output_selects_kernels(tmp_path):
    (tmp_path / "quantized.toml").write_text(block("toml blocks"))
    (said,) = run_commands([f"cutlass-aot plan {tmp_path}/quantized.toml --store {tmp_path}/store"])
    assert re.search(r"^ +[1-9][0-9]*  gemm-bf16\.bf16\.f8e4m3\.f32-", said, re.MULTILINE)
    assert re.search(r"^[1-9][0-9]* kernels: ", said, re.MULTILINE)


@pytest.mark.compile
def test_the_manifest_is_built_and_the_call_is_found(tmp_path):
    (tmp_path / "epilogues.toml").write_text(block("toml"))
    (said,) = run_commands(
        [f"cutlass-aot build {tmp_path}/epilogues.toml --store {tmp_path}/store --out {tmp_path}"]
    )
    assert "epilogues: 2 kernels" in said
    python = block("python").replace("build/bundles/epilogues", f"{tmp_path}/epilogues")
    result = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    promised = re.search(r"^# (D = .*)$", python, re.MULTILINE)
    assert promised is not None
    assert result.stdout.strip() == promised.group(1)
