"""Operators that the CUTLASS Operator API chose, built into a bundle and had back from it, without a GPU."""

from __future__ import annotations

import pytest

import cutlass_aot
from cutlass_aot.errors import KernelNotFound, OperandError

ops = pytest.importorskip("cutlass.operators")
torch = pytest.importorskip("torch")

from cutlass_aot.operators import artifact, build  # noqa: E402

pytestmark = pytest.mark.compile

DEVICES = {"sm_90a": "h200", "sm_100a": "b200"}


def gemm_arguments(m=512, n=1024, k=2048, device="meta", dtype=torch.bfloat16):
    """The linear layer: B is the transposed weight."""
    return ops.GemmArguments(
        torch.zeros(m, k, dtype=dtype, device=device),
        torch.zeros(n, k, dtype=dtype, device=device).T,
        torch.zeros(m, n, dtype=dtype, device=device),
        accumulator_type=torch.float32,
    )


def choose(target, family, tile):
    """The first operator of a family with a tile, as a program might choose it."""
    found = ops.get_operators(
        gemm_arguments(),
        metadata_filter=lambda m: m.operator_class.__name__ == family and m.design.tile_shape[:2] == tile,
        target_sm=target,
    )
    return found[0]


@pytest.fixture(scope="module")
def chosen():
    return [
        choose("90a", "Sm90StaticPersistentGemmOperator", (128, 128)),
        choose("100a", "PersistentDenseGemmEFCOperator", (128, 128)),
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory, chosen):
    """A bundle of both."""
    root = tmp_path_factory.mktemp("operators")
    result = build(
        chosen,
        gemm_arguments(),
        name="chosen",
        device=DEVICES,
        targets=["90a", "100a"],
        out=root / "bundles",
        store=root / "store",
        jobs=1,
    )
    assert (result.kernels, result.compiled, result.written) == (2, 2, True)
    return root


def test_the_bundle_has_the_operators_and_verifies(root):
    from cutlass_aot.bundle.verify import verify_path

    bundle = cutlass_aot.open(root / "bundles" / "chosen")
    assert bundle.targets == ("sm_100a", "sm_90a")
    assert [kernel.design["family"] for kernel in bundle.kernels()] == [
        "PersistentDenseGemmEFC",
        "Sm90StaticPersistentGemm",
    ]
    assert verify_path(root / "bundles" / "chosen") == []


def test_a_second_build_compiles_nothing_and_a_manifest_finds_the_kernels(root, chosen, tmp_path):
    from tests.compile.test_build import command

    again = build(
        chosen, gemm_arguments(64, 64, 64), name="chosen", device=DEVICES, targets=["90a", "100a"],
        out=root / "bundles", store=root / "store",
    )  # fmt: skip
    assert (again.compiled, again.written) == (0, False)
    design = chosen[0].metadata.design
    cluster = "x".join(map(str, design.cluster_shape[:2]))
    (tmp_path / "same.toml").write_text(
        '[bundle]\nname = "same"\ntargets = ["sm_90a"]\ndevice = "h200"\n'
        '[[kernels]]\ngenerator = "cutlass.operators"\nab = "bf16"\n'
        f'family = "Sm90StaticPersistentGemm"\ntile = "128x128"\ncluster = "{cluster}"\n'
    )
    result = command("build", tmp_path / "same.toml", "--store", root / "store", "--out", tmp_path)
    assert "1 kernel, 0 compiled, written" in result.stdout, result.stderr


def test_artifacts_are_what_the_api_takes(root, chosen):
    bundle = cutlass_aot.open(root / "bundles" / "chosen")
    for operator, target in zip(chosen, ("90a", "100a"), strict=True):
        found = artifact(operator, gemm_arguments(), bundle, target_sm=target)
        assert isinstance(found, ops.CompiledArtifact)
        assert found.operator_obj is operator
        assert found.compiled_for == ops.TargetSm(target)
        assert found.compiled_obj.kernel.target == f"sm_{target}"
        same = artifact(operator, gemm_arguments(), bundle, target_sm=ops.TargetSm(target))
        assert same.compiled_obj.kernel.digest == found.compiled_obj.kernel.digest


def test_run_passes_the_operands_on_in_their_order(root, chosen):
    """On the CPU a call ends at our check of the operands, which names the first that is not on a GPU."""
    bundle = cutlass_aot.open(root / "bundles" / "chosen")
    args = gemm_arguments(device="cpu")
    for operator, target in zip(chosen, ("90a", "100a"), strict=True):
        found = artifact(operator, args, bundle, target_sm=target)
        with pytest.raises(OperandError, match="operand `a` is unsupported: expected a tensor on a CUDA"):
            operator.run(args, compiled_artifact=found)
        with pytest.raises(OperandError, match="expected 3 operands and a stream"):
            found.compiled_obj(args.A.tensor.runtime_tensor)


def test_run_launches_on_the_stream_that_is_given(root, chosen, monkeypatch):
    from cutlass_aot.runtime.handle import KernelHandle

    calls = []
    monkeypatch.setattr(KernelHandle, "launch", lambda self, *operands, **how: calls.append((operands, how)))
    bundle = cutlass_aot.open(root / "bundles" / "chosen")
    args = gemm_arguments()
    expected = [operand.tensor.runtime_tensor for operand in (args.A, args.B, args.out)]
    for operator, target in zip(chosen, ("90a", "100a"), strict=True):
        found = artifact(operator, args, bundle, target_sm=target)
        operator.run(args, compiled_artifact=found, stream=4711)
        operator.run(args, compiled_artifact=found)
        (given, how), (_, default) = calls
        assert all(mine is theirs for mine, theirs in zip(given, expected, strict=True))
        assert how == {"stream": 4711}
        assert int(default["stream"]) == 0
        calls.clear()


def test_what_the_bundle_has_not_is_named(root, chosen):
    bundle = cutlass_aot.open(root / "bundles" / "chosen")
    with pytest.raises(KernelNotFound, match="it is the target that is missing: asked for sm_103a"):
        artifact(chosen[1], gemm_arguments(), bundle, target_sm="103a")
    other = choose("90a", "Sm90StaticPersistentGemmOperator", (64, 128))
    with pytest.raises(KernelNotFound, match=r"it is the design that is missing.*instead of 64x128x64"):
        artifact(other, gemm_arguments(), bundle, target_sm="90a")
    args = gemm_arguments(dtype=torch.float16)
    (other, *_) = ops.get_operators(args, target_sm="90a")
    with pytest.raises(KernelNotFound, match="it is the operands that are missing"):
        artifact(other, args, bundle, target_sm="90a")
