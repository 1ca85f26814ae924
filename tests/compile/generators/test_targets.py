"""The table of targets says what the installed DSL says, and a few kernels for the newest of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import cutlass_aot
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled
from cutlass_aot.schema.targets import HARDWARE, KNOWN_TARGETS, targets_with
from tests.compile.builder.test_build import command

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("no_gpu")]

ASK = """
import json, sys
import cutlass
from cutlass.base_dsl.enums import Arch
from cutlass.cute.nvgpu import tcgen05, warp
from cutlass.cutlass_dsl.cutlass import SMEM_CAPACITY_MAP
from cutlass.operators.mma import BlackwellTcgen05Mma, HopperWgmma, RubinTcgen05Mma

classes = {
    "tcgen05": tcgen05.MmaF16BF16Op,
    "tcgen05_scaled": tcgen05.MmaMXF8Op,
    "tcgen05_rubin": tcgen05.SM107MmaFP8Op,
    "mma_scaled": warp.MmaMXF8Op,
}
json.dump({
    "features": {name: [arch.name for arch in kind.admissible_archs] for name, kind in classes.items()},
    "known": [arch.name for arch in Arch],
    "shared": SMEM_CAPACITY_MAP,
    "package": {
        kind.__name__: [str(target) for target in kind.supported_targets()]
        for kind in (BlackwellTcgen05Mma, HopperWgmma, RubinTcgen05Mma)
    },
}, sys.stdout)
"""


def test_the_table_is_that_of_the_dsl() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "CUTE_DSL_ARCH": "sm_90"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert set(KNOWN_TARGETS) <= set(said["known"])
    for feature, archs in said["features"].items():
        assert targets_with(feature) == tuple(name for name in KNOWN_TARGETS if name in archs), feature
    for name, hardware in HARDWARE.items():
        assert said["shared"][name.rstrip("af")] == hardware.sm.block_bytes, name
    assert said["package"] == {
        "BlackwellTcgen05Mma": ["100f", "110f"], "HopperWgmma": ["90a"], "RubinTcgen05Mma": ["107f"],
    }  # fmt: skip


SM_121 = """
[[kernels]]
generator = "cutlass.operators"
targets = ["sm_121a"]
ab = "bf16"
max_per_group = 1

[[kernels]]
generator = "rms_norm"
operation = "rms_norm"
targets = ["sm_121a"]
n = 4096
dtype = "bf16"
"""
BLACKWELL = """
[[kernels]]
generator = "cutlass.operators"
targets = ["sm_107a", "sm_110a"]
ab = "f8e4m3"
out = "bf16"
family = "PersistentDenseGemm"
max_per_group = 1

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_107a"]
ab = "f8e4m3"
out = "bf16"
scale = { dtype = "f8e8m0", block = 32 }
family = "Sm107DenseBlockScaledGemm"
max_per_group = 2
"""


def test_kernels_are_built_for_both_hosts(tmp_path) -> None:
    targets = [name for name in ("sm_107a", "sm_110a", "sm_121a") if not not_compiled([name], dsl_toolkit())]
    devices = {"sm_107a": "rubin", "sm_110a": "thor", "sm_121a": "gb10"}
    text = f'[bundle]\nname = "newest"\ntargets = {targets}\nhosts = ["x86_64", "aarch64"]\n[bundle.device]\n'
    text += "".join(f'{name} = "{devices[name]}"\n' for name in targets) + SM_121
    (tmp_path / "newest.toml").write_text(text + (BLACKWELL if "sm_107a" in targets else ""))
    result = command("build", tmp_path / "newest.toml", "--store", tmp_path / "store", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    with_checks = command("verify", tmp_path / "newest")
    assert with_checks.returncode == 0, with_checks.stderr
    bundle = cutlass_aot.open(tmp_path / "newest")
    assert bundle.catalog.hosts == ("aarch64", "x86_64")
    assert {handle.facts.cubin_target for handle in bundle.kernels()} == set(targets)
    # No kernel for Thor has clusters of more blocks than fit there.
    for handle in bundle.kernels(target="sm_110a"):
        rows, columns, _ = handle.design["cluster_shape"]
        assert rows * columns <= 8


def test_a_target_that_the_assembler_does_not_know_is_refused(tmp_path) -> None:
    if not not_compiled(["sm_107a"], dsl_toolkit()):
        pytest.skip("the DSL's libraries for CUDA 13 are installed")
    (tmp_path / "rubin.toml").write_text(
        '[bundle]\nname = "r"\ntargets = ["sm_107a"]\n[[kernels]]\ngenerator = "simt_f64_gemm"\nab = "f64"\n'
    )
    result = command("build", tmp_path / "rubin.toml", "--store", tmp_path / "store", "--out", tmp_path)
    assert result.returncode == 1
    assert "the DSL compiles with the libraries for CUDA 12 here" in result.stderr
    assert 'pip install "nvidia-cutlass-dsl[cu13]' in result.stderr
