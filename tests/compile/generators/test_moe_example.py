"""The example of an expert layer: its bundle has a kernel for each launch, for any number of tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.declared import PrebuiltFunction
from cutlass_aot.schema.codec import from_plain
from cutlass_aot.schema.encoding import decode
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.bundles import write_bundle
from tests.support.paths import REPOSITORY

torch = pytest.importorskip("torch")
from examples.moe import layer as example  # noqa: E402 - which needs torch

pytestmark = pytest.mark.compile

# A process of its own: what declares a kernel calls for the DSL to enumerate it.
PROGRAM = """
import sys
from pathlib import Path
from cutlass_aot.builder.plan.plan import enumerations, load_sources, select
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.manifest.model import load_manifest
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.encoding import encode

manifest = load_manifest(Path(sys.argv[1]))
sources, device = load_sources(manifest), load_profile("h200")
answers = [
    (each, list(sources.instances[each.generator.name].enumerate(each.problem, each.target, device)))
    for each in enumerations(manifest, sources)
]
kernels = select(manifest, answers, "").kernels
sys.stdout.buffer.write(encode([to_plain(kernel) for kernel in kernels]))
"""

EXPERTS = 256
DTYPES = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.int32: "i32", torch.float8_e4m3fn: "f8e4m3",
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Records of the manifest's kernels, without their code."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, REPOSITORY / "examples" / "moe" / "moe.toml"],
        env={**os.environ, "CUTE_DSL_ARCH": "sm_110a", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    kernels = [from_plain(Kernel, plain, "a kernel") for plain in decode(done.stdout, "kernels")]
    return cutlass_aot.open(write_bundle(tmp_path_factory.mktemp("moe") / "moe", kernels))


def described(operand: Any) -> Any:
    """A tensor of the host as one of a GPU; anything else as it is."""
    if not isinstance(operand, torch.Tensor):
        return operand
    return cutlass_aot.describe(tuple(operand.shape), DTYPES[operand.dtype], strides=operand.stride())


@pytest.mark.parametrize("tokens", [1, 7, 1500])
@pytest.mark.parametrize(("hidden", "inner"), [(7168, 2048), (1024, 384)])
def test_each_launch_finds_a_kernel(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tokens: int, hidden: int, inner: int
) -> None:
    found = []

    def prebuilt(self: PrebuiltFunction, *operands: Any, **named: Any) -> None:
        name, given = self.declared.name, map(described, operands)
        found.append(bundle.choose(*given, operation=name, parameters=self.values, target="sm_90a"))

    def run(self: Bundle, operation: str, *operands: Any, **named: Any) -> None:
        given = {name: described(operand) for name, operand in named.items()}
        found.append(self.choose(*map(described, operands), operation=operation, target="sm_90a", **given))

    monkeypatch.setattr(PrebuiltFunction, "__call__", prebuilt)
    monkeypatch.setattr(Bundle, "run", run)

    def weights(n: int, k: int) -> Any:
        return example.Weights(
            torch.empty(EXPERTS, n, k, dtype=torch.float8_e4m3fn), torch.empty(EXPERTS, n // 128, k // 128)
        )

    gate_up, down = weights(2 * inner, hidden), weights(hidden, inner)
    layer = example.ExpertLayer(bundle, gate_up, down, torch.empty(EXPERTS))
    out = layer(torch.empty(tokens, hidden, dtype=torch.bfloat16), torch.empty(tokens, EXPERTS))
    assert (out.shape, out.dtype) == ((tokens, hidden), torch.bfloat16)
    assert [choice.kernel.kernel.operation for choice in found] == [
        "top_k_gate", "expert_rows", "quantize_fp8", "gather_rows",
        "grouped_gemm", "fused_swiglu_fp8", "grouped_gemm", "gather_reduce",
    ]  # fmt: skip
