"""Capture: what a program compiles becomes a manifest, whose bundle it then runs with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.capture import Found, capture
from cutlass_aot.capture.manifest import manifest_text

pytest.importorskip("cutlass.operators")

PROGRAM = """
import sys
import torch
import cutlass.operators
import cutlass_aot, cutlass_aot.operators

bundle = cutlass_aot.open(sys.argv[1]) if len(sys.argv) > 1 else None

from cutlass_aot.kernels.rms_norm import rms_norm

a = torch.empty(512, 1024, device="meta", dtype=torch.bfloat16)
b = torch.empty(2048, 1024, device="meta", dtype=torch.bfloat16).t()
out = torch.empty(512, 2048, device="meta", dtype=torch.bfloat16)
args = cutlass.operators.GemmArguments(a, b, out, torch.float32)
operators = cutlass.operators.get_operators(args, target_sm="100a")
# The dynamic scheduler asks no GPU for its size.
chosen = [
    operator
    for operator in operators
    if type(operator).__name__ == "PersistentDenseGemmOperator"
    and type(operator.metadata.design.tile_scheduler).__name__.startswith("CLC")
]
for operator in (chosen[0], chosen[-1]):
    artifact = cutlass_aot.operators.compile(operator, args, target_sm="100a")
    print(type(artifact.compiled_obj).__name__)
print(rms_norm(n=4096, dtype="bf16"))
"""

UNDECLARED = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_tensor

@cute.jit
def forgotten(x: cute.Tensor):
    pass

cute.compile(forgotten, make_fake_tensor(cutlass.Float32, (4,), (1,)))
"""


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUTE_DSL_ARCH": "sm_80", **environment},
    )


def test_a_program_is_captured_built_and_run_with_what_was_built(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM + UNDECLARED)
    manifest = tmp_path / "app.toml"
    captured = run(
        "-m", "cutlass_aot", "capture", "-o", manifest, "--name", "app", "--", sys.executable,
        tmp_path / "app.py",
    )  # fmt: skip
    assert captured.returncode == 0, captured.stderr
    assert f"{manifest}: 3 kernels" in captured.stdout
    text = manifest.read_text()
    assert text.count("[[kernels]]") == 3
    assert "#   forgotten (app.py, line" in text

    out, store = tmp_path / "bundles", tmp_path / "store"
    built = run("-m", "cutlass_aot", "build", manifest, "--out", out, "--store", store)
    assert built.returncode == 0, built.stderr
    assert len(cutlass_aot.open(out / "app").kernels()) == 3

    (tmp_path / "app.py").write_text(PROGRAM)
    ran = run(tmp_path / "app.py", out / "app", CUTLASS_AOT_POLICY="required")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("PrebuiltFunction") == 3
    without = run(tmp_path / "app.py", CUTLASS_AOT_POLICY="required")
    assert without.returncode != 0
    assert "no prebuilt kernel for" in without.stderr


def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise SystemExit(3)")
    captured = run(
        "-m", "cutlass_aot", "capture", "-o", tmp_path / "m", "--", sys.executable, tmp_path / "app.py"
    )
    assert captured.returncode == 1
    assert "the program ended with status 3, and nothing was found" in captured.stderr
    assert not (tmp_path / "m").exists()
    missing = run("-m", "cutlass_aot", "capture", "--", tmp_path / "no such program")
    assert missing.returncode == 2
    assert "cannot be run: No such file" in missing.stderr


def test_a_block_is_watched_and_then_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlass_aot.kernels.rms_norm import rms_norm
    from cutlass_aot.runtime.declared import DeclaredKernel

    monkeypatch.setenv("CUTLASS_AOT_POLICY", "jit")
    before = DeclaredKernel.__call__
    with cutlass_aot.policy.use("jit"), capture() as found:
        rms_norm(n=2048, dtype="bf16")
        rms_norm(n=2048, dtype="bf16")
    assert DeclaredKernel.__call__ is before
    with cutlass_aot.policy.use("jit"):
        rms_norm(n=4096, dtype="bf16")
    text = manifest_text(found, "block", ["sm_90a", "sm_103a"])
    assert text.count("[[kernels]]") == 1
    assert "n = 2048" in text
    assert 'device = { sm_90a = "h200", sm_103a = "gb300" }' in text
    assert "no target is known: name some" in manifest_text(found, "block")


def test_what_is_found_survives_a_file() -> None:
    with cutlass_aot.policy.use("jit"), capture() as found:
        from cutlass_aot.kernels.rms_norm import rms_norm

        rms_norm(n=512, dtype="f16")
    found.others["x"] = "y"
    again = Found.from_bytes(found.to_bytes(), "a file")
    assert again == found


def test_a_kernel_of_the_programs_own_is_built_where_its_module_can_be_imported(tmp_path: Path) -> None:
    package = Path(__file__).resolve().parents[1] / "fixtures" / "axpy_package"
    path = os.pathsep.join([str(package), str(Path(cutlass_aot.__file__).parents[1])])
    (tmp_path / "app.py").write_text(
        "from axpy_kernels.declared import axpy\naxpy(dtype='f32', threads=128)\n"
    )
    manifest = tmp_path / "app.toml"
    captured = run(
        "-m", "cutlass_aot", "capture", "-o", manifest, "--name", "app", "--target", "sm_90a", "--",
        sys.executable, tmp_path / "app.py", PYTHONPATH=path,
    )  # fmt: skip
    assert captured.returncode == 0, captured.stderr
    build = (
        "-m", "cutlass_aot", "build", manifest, "--out", tmp_path / "out", "--store", tmp_path / "store",
    )  # fmt: skip
    refused = run(*build, PYTHONPATH=path.split(os.pathsep)[1])
    assert refused.returncode != 0
    assert "plugin 'axpy_kernels.declared' cannot be imported" in refused.stderr
    built = run(*build, PYTHONPATH=path)
    assert built.returncode == 0, built.stderr
    (kernel,) = cutlass_aot.open(tmp_path / "out" / "app").kernels()
    assert dict(kernel.kernel.parameters) == {"dtype": "f32", "threads": 128}


@pytest.fixture(scope="module")
def operators() -> list[Any]:
    """Everything that the operators package lists for sm_100a."""
    import cutlass.operators

    return list(cutlass.operators.get_operators(target_sm="100a"))


@pytest.mark.parametrize(
    ("family", "operation", "scaled"),
    [
        ("PersistentDenseBlockScaledGemm", "gemm", True),
        ("MixedInputGemm", "gemm", True),
        ("ContiguousOffset2D3DGemmDense", "grouped_gemm", False),
    ],
)
def test_an_operator_of_any_family_is_sighted_as_the_kernel_that_a_manifest_selects(
    family: str, operation: str, scaled: bool, operators: list[Any]
) -> None:
    """What is seen of an operator leads to one kernel of the generator: the same one."""
    from cutlass_aot.capture import sightings
    from cutlass_aot.generators.cutlass_operators import CutlassOperators, operands
    from cutlass_aot.generators.device import load_profile
    from cutlass_aot.manifest.model import parse_manifest

    made = next(
        operator
        for operator in operators
        if type(operator).__name__ == f"{family}Operator"
        and getattr(operator.metadata, "epilogue", None) is None
    )
    sighting = sightings.of_operator(made, "100a")
    assert sighting.problem.operation == operation
    assert (sighting.problem.scales != (None, None)) is scaled
    text = manifest_text(Found({sighting: None}), "x")
    (table,) = parse_manifest(text.encode(), Path("m.toml")).tables
    kernels = [
        kernel
        for kernel in CutlassOperators().enumerate(sighting.problem, "sm_100a", load_profile("b200"))
        if all(accepts.accepts(dict(kernel.design)) for accepts in table.filters)
    ]
    (kernel,) = kernels
    assert dict(kernel.design) == operands.design(made)
    ((dtypes, accumulator),) = table.combinations
    assert (dtypes, accumulator, table.layouts) == (
        sighting.problem.dtypes, sighting.problem.accumulator, (sighting.problem.layouts,),
    )  # fmt: skip
