"""Operators of the CUTLASS Operator API as a program: recorded without a GPU, answered in another process."""

from __future__ import annotations

import shutil

import pytest

from tests.compile.programs.test_programs import PROGRAMS, cutlass_aot, served
from tests.support.packages import installed

pytestmark = [pytest.mark.compile, installed("nvidia-cutlass-operators")]
MANIFEST = """\
[bundle]
name = "own"
version = "0.1.0"
targets = ["sm_100a"]
device = "b200"

[[programs]]
run = ["python", "app.py"]
"""
# The program imports its operators, as programs do: what a script defines itself may be reached by a table.
APP = "import own_operator\nown_operator.main()\n"


def test_own_operators_and_epilogues_are_recorded_and_answered_with_tvm_ffi_and_without(tmp_path):
    shutil.copy(PROGRAMS / "own_operator.py", tmp_path)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "own.toml").write_text(MANIFEST)
    printed = cutlass_aot("build", "own.toml", "--store", "store", "--out", "bundles", folder=tmp_path)
    assert "5 requests, 5 compiled" in printed
    found = served(tmp_path, "bundles/own", "sm_100a", "b200", "app.py")
    assert found["refused"] == []
    own, efc = found["answered"][-4:], found["answered"][:-4]
    assert own == ["own_operator:Gemm"] * 4
    assert [name.rpartition(":")[2] for name in efc] == ["PersistentDenseGemmEFCKernel"]
    changed = (tmp_path / "own_operator.py").read_text().replace("relu(accum + C)", "relu(accum) + C")
    (tmp_path / "own_operator.py").write_text(changed)
    assert served(tmp_path, "bundles/own", "sm_100a", "b200", "app.py")["answered"] == []
