"""Operators as records, found in a bundle or put into one; no DSL is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutlass_aot
import cutlass_aot.operators
from cutlass_aot import policy
from cutlass_aot.errors import CompileError, GeneratorError, KernelNotFound, ManifestError, OperandError
from cutlass_aot.generators.cutlass_operators import records
from cutlass_aot.generators.device import load_profile
from cutlass_aot.operators import PrebuiltFunction, build, find_kernel
from cutlass_aot.operators.targets import target_name, targets_of_gpu
from cutlass_aot.runtime import declared, device
from cutlass_aot.runtime.installed import InstalledBundle
from tests.unit.bundles import write_bundle
from tests.unit.operators import (
    BlockScaledGemmOperator,
    CLCDynamicPersistentTileSchedulerMetadata,
    PersistentDenseGemmEFCOperator,
    PersistentDenseGemmOperator,
    Sm80TensorOpGemmOperator,
    Sm90StaticPersistentGemmOperator,
    StaticPersistentTileSchedulerMetadata,
    arguments,
)

META = cutlass_aot.describe((64, 64), "f16")


def record(operator, target="sm_90a", profile="h200"):
    return records.record(operator, target, load_profile(profile))


def test_an_operator_is_a_record_with_every_value_of_its_design():
    operator = PersistentDenseGemmOperator(
        dtypes=("bf16", "bf16", "f32"),
        layouts="ntt",
        tile_shape=(256, 128, 64),
        cluster_shape=(2, 1, 1),
        use_2cta_mma=True,
        use_tma_store=False,
        tile_scheduler=StaticPersistentTileSchedulerMetadata(),
    )
    kernel = record(operator, "sm_100a", "b200")
    assert dict(kernel.design) == {
        "family": "PersistentDenseGemm",
        "tile_shape": (256, 128, 64),
        "cluster_shape": (2, 1, 1),
        "use_2cta_mma": True,
        "use_tma_store": False,
        "tile_scheduler": "static",
    }
    assert (kernel.generator, kernel.target, kernel.accumulator) == ("cutlass.operators", "sm_100a", "f32")
    assert kernel.layouts == "ntt"
    assert [(o.dtype, o.divisibility, o.alignment, o.written) for o in kernel.operands] == [
        ("bf16", 8, 16, False), ("bf16", 8, 16, False), ("f32", 4, 16, True),
    ]  # fmt: skip
    assert dict(kernel.constants) == {"max_active_clusters_2": load_profile("b200").active_clusters(2)}


def test_a_dynamic_scheduler_compiles_no_number_of_the_device_in():
    operator = PersistentDenseGemmOperator(tile_scheduler=CLCDynamicPersistentTileSchedulerMetadata())
    assert record(operator, "sm_100a", "b200").constants == ()


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (BlockScaledGemmOperator(), "BlockScaledGemmOperator is none of the families PersistentDenseGemm,"),
        (PersistentDenseGemmEFCOperator(epilogue=object()), "it has an epilogue of the package's own"),
        (
            Sm80TensorOpGemmOperator(code_tile=(128, 128, 32)),
            r"its metadata says tile \(128, 128, 64\), its code has \(128, 128, 32\)",
        ),
    ],
)
def test_what_no_bundle_can_have_is_refused_with_its_reason(tmp_path, operator, reason):
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [record(Sm90StaticPersistentGemmOperator())]))
    with pytest.raises(KernelNotFound, match=f"bundle small has no kernel for operator cutedsl.*: {reason}"):
        find_kernel(operator, arguments(META), bundle, target_sm="90a")
    with pytest.raises(GeneratorError, match=f"cannot be put into a bundle: {reason}"):
        build([operator], arguments(META), name="some", device="h200", targets="90a")


def test_operands_that_bundles_do_not_know_are_refused():
    operator = Sm90StaticPersistentGemmOperator(layouts="tn?")
    with pytest.raises(GeneratorError, match="expected dense operands, row- or column-major"):
        records.problem_of(operator)


@pytest.fixture
def bundle(tmp_path):
    kernels = [
        record(Sm90StaticPersistentGemmOperator(tile_shape=(128, 128, 64))),
        record(Sm90StaticPersistentGemmOperator(tile_shape=(64, 256, 64), cluster_shape=(2, 1, 1))),
        record(Sm90StaticPersistentGemmOperator(dtypes=("bf16",) * 3)),
        record(PersistentDenseGemmOperator(layouts="ttt"), "sm_100a"),
    ]
    return cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))


@pytest.mark.parametrize("target", ["90a", "sm_90a"])
def test_an_operator_is_found_by_operands_design_and_target(bundle, target):
    operator = Sm90StaticPersistentGemmOperator(tile_shape=(64, 256, 64), cluster_shape=(2, 1, 1))
    kernel = find_kernel(operator, arguments(META), bundle, target_sm=target)
    assert kernel.kernel == record(operator)


def test_the_device_profile_does_not_matter_for_finding(bundle):
    kernel = find_kernel(Sm90StaticPersistentGemmOperator(), arguments(META), bundle, target_sm="90a")
    assert kernel.kernel.constants
    assert kernel.kernel.constants != record(Sm90StaticPersistentGemmOperator(), profile="b200").constants


def test_a_missing_design_is_named_with_the_nearest(bundle):
    operator = Sm90StaticPersistentGemmOperator(tile_shape=(64, 256, 64))
    with pytest.raises(KernelNotFound) as caught:
        find_kernel(operator, arguments(META), bundle, target_sm="90a")
    text = str(caught.value)
    assert "it is the design that is missing, cluster_shape 1x1x1, family Sm90StaticPersistentGemm" in text
    assert "Nearest of 2 is gemm-f16.f16.f16-f32-tnt-sm_90a-Sm90StaticPersistentGemm-" in text
    assert text.endswith(
        ("cluster_shape 2x1x1 instead of 1x1x1", "tile_shape 128x128x64 instead of 64x256x64")
    )


def test_missing_operands_are_named_with_the_nearest(bundle):
    operator = Sm90StaticPersistentGemmOperator(dtypes=("bf16", "bf16", "f32"))
    with pytest.raises(KernelNotFound) as caught:
        find_kernel(operator, arguments(META), bundle, target_sm="90a")
    assert (
        "it is the operands that are missing: asked for bf16.bf16.f32 tnt with accumulator f32, extents in "
        "multiples of 8.8.4; nearest for sm_90a is bf16.bf16.bf16 tnt with accumulator f32"
    ) in str(caught.value)


def test_a_missing_target_is_named_with_those_there_are(bundle):
    operator = Sm90StaticPersistentGemmOperator()
    with pytest.raises(KernelNotFound, match="asked for sm_100a, kernels with these operands are for sm_90a"):
        find_kernel(operator, arguments(META), bundle, target_sm="100a")
    with pytest.raises(KernelNotFound, match="asked for sm_120a, kernels with these operands are for sm_90a"):
        find_kernel(operator, arguments(META), bundle, target_sm="120a")
    other = Sm90StaticPersistentGemmOperator(dtypes=("i8", "i8", "i32"), accumulator="i32")
    with pytest.raises(KernelNotFound, match="asked for sm_120a, kernels are for sm_100a, sm_90a"):
        find_kernel(other, arguments(META), bundle, target_sm="120a")


def test_the_target_is_that_of_the_gpu_where_none_is_named(bundle, monkeypatch):
    monkeypatch.setattr(device, "compute_capability", lambda ordinal: (9, 0) if ordinal == 1 else (10, 0))
    on_gpu = arguments(cutlass_aot.describe((64, 64), "f16", device=1))
    operator = Sm90StaticPersistentGemmOperator()
    assert find_kernel(operator, on_gpu, bundle).target == "sm_90a"
    elsewhere = arguments(cutlass_aot.describe((64, 64), "f16", device=0))
    with pytest.raises(KernelNotFound, match=r"asked for GPU 0 with compute capability 10\.0, kernels"):
        find_kernel(operator, elsewhere, bundle)
    assert targets_of_gpu(on_gpu, ["sm_100a", "sm_80", "sm_90a"])[0] == ("sm_90a",)


def test_without_a_gpu_the_target_has_to_be_named(bundle):
    with pytest.raises(OperandError, match="a target has to be named"):
        find_kernel(Sm90StaticPersistentGemmOperator(), arguments(META), bundle)
    with pytest.raises(OperandError, match="unknown target '90': expected one of sm_80"):
        target_name("90")


def test_arguments_that_an_operator_does_not_serve_are_refused_in_its_words(bundle):
    with pytest.raises(OperandError, match="does not support the arguments: Expected element type Float16"):
        find_kernel(
            Sm90StaticPersistentGemmOperator(), arguments(META, supported=False), bundle, target_sm="90a"
        )
    with pytest.raises(KernelNotFound, match="the arguments have an epilogue"):
        find_kernel(
            Sm90StaticPersistentGemmOperator(), arguments(META, epilogue=object()), bundle, target_sm="90a"
        )


# -- in place of operator.compile ---------------------------------------------------------------------------


@pytest.fixture
def at_hand(monkeypatch):
    """Bundles that are open; installed is one that cannot be opened. No policy, and no misses yet."""
    opened = []
    broken = InstalledBundle("broken", "1", "d", "p", Path("no such folder"))
    monkeypatch.delenv(policy.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(policy, "_process", policy._Process())
    monkeypatch.setattr(declared, "opened_bundles", lambda: opened)
    monkeypatch.setattr(declared, "located", lambda: [broken])
    return opened


def test_a_miss_of_an_operator_is_counted_logged_and_names_every_bundle(bundle, at_hand, caplog):
    at_hand.append(bundle)
    operator = Sm90StaticPersistentGemmOperator(tile_shape=(64, 256, 64))
    with pytest.raises(KernelNotFound) as caught:
        cutlass_aot.operators.compile(operator, arguments(META), target_sm="90a")
    assert "no prebuilt kernel for cutedsl.Sm90" in str(caught.value)
    assert "small 0.1.0: bundle small has no kernel" in str(caught.value)
    assert "installed bundle broken 1 cannot be opened: " in str(caught.value)
    assert policy.misses() == {"cutedsl.Sm90StaticPersistentGemmOperator on sm_90a": 1}
    assert "no kernel for cutedsl.Sm90StaticPersistentGemmOperator on sm_90a (miss 1 of it" in caplog.text


def test_policy_jit_compiles_an_operator_that_no_bundle_has(at_hand, monkeypatch):
    operator = Sm90StaticPersistentGemmOperator()
    monkeypatch.setattr(operator, "compile", lambda args, target_sm: ("compiled", target_sm), raising=False)
    with policy.use("jit"), pytest.warns(policy.MissWarning, match="no bundle has cutedsl"):
        compiled = cutlass_aot.operators.compile(operator, arguments(META), target_sm="90a")
    assert compiled == ("compiled", "90a")
    assert policy.misses().total == 1


class Launches:
    """In place of a kernel's handle: what it was launched with."""

    def __init__(self, kernel):
        self.kernel, self.name, self.design = kernel, kernel.name, dict(kernel.design)
        self.calls = []

    def launch(self, *operands, stream=None, workspace=None):
        self.calls.append((operands, stream))


@pytest.mark.parametrize(
    ("operator", "passed"),
    [
        (Sm90StaticPersistentGemmOperator(), ("a", "b", "out", "stream")),
        (PersistentDenseGemmEFCOperator(), ("a", "b", "stream", "out")),
    ],
)
def test_a_prebuilt_function_takes_the_stream_where_the_family_passes_it(operator, passed):
    handle = Launches(record(operator))
    function = PrebuiltFunction(handle)
    function(*passed)
    assert handle.calls == [(("a", "b", "out"), "stream")]
    with pytest.raises(OperandError, match="expected 3 operands and a stream as"):
        function("a", "b", "out")


# -- building ---------------------------------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch):
    """What a build would be of, without one."""
    from cutlass_aot.builder import pipeline

    calls = []

    def build_kernels(recipe, kernels, out, settings):
        calls.append((recipe, kernels))
        return pipeline.BuildResult(out / recipe.name, len(kernels), 0, (), True)

    monkeypatch.setattr(pipeline, "build_kernels", build_kernels)
    return calls


def test_each_operator_is_built_for_all_targets_that_it_runs_on(built):
    hopper = Sm90StaticPersistentGemmOperator()
    blackwell = PersistentDenseGemmOperator(targets=("100a", "103a"))
    devices = {"sm_90a": "h200", "sm_100a": "b200", "sm_103a": "gb300"}
    result = build(
        [hopper, blackwell], arguments(META), name="mine", device=devices, targets=["103a", "90a", "sm_100a"]
    )
    ((recipe, kernels),) = built
    assert [(kernel.target, dict(kernel.design)["family"]) for kernel in kernels] == [
        ("sm_90a", "Sm90StaticPersistentGemm"),
        ("sm_100a", "PersistentDenseGemm"),
        ("sm_103a", "PersistentDenseGemm"),
    ]
    assert dict(kernels[0].constants) == {"max_active_clusters_1": load_profile("h200").active_clusters(1)}
    assert (recipe.name, recipe.version, recipe.hosts) == ("mine", "0.1.0", ("x86_64",))
    assert recipe.device == "sm_100a b200, sm_103a gb300, sm_90a h200"
    assert result.bundle.name == "mine"


def test_arguments_can_be_one_for_each_operator(built):
    operators = [Sm90StaticPersistentGemmOperator(), Sm90StaticPersistentGemmOperator(dtypes=("bf16",) * 3)]
    build(operators, [arguments(META)] * 2, name="mine", device="h200", targets="90a")
    assert len(built[0][1]) == 2
    with pytest.raises(OperandError, match="got 2 operators and 1 arguments"):
        build(operators, [arguments(META)], name="mine", device="h200", targets="90a")
    with pytest.raises(OperandError, match="got 0 operators"):
        build([], arguments(META), name="mine", device="h200", targets="90a")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"name": "Mine"}, ManifestError, "'Mine' is not a name"),
        ({"version": "one"}, ManifestError, "'one' is not a version"),
        ({"device": "h100x"}, ManifestError, "unknown device profile 'h100x'"),
        ({"device": {"sm_100a": "b200"}}, ManifestError, "no device profile for target sm_90a"),
        ({"targets": "100a"}, OperandError, "does not serve its arguments: sm_100a: Operator cannot be"),
        ({"targets": ["90a", "100a"]}, OperandError, "none of the operators runs on sm_100a"),
        ({"targets": "90"}, OperandError, "unknown target"),
        ({"targets": None}, OperandError, "a target has to be named"),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_built(built, changes, error, message):
    wish = {"name": "mine", "device": "h200", "targets": "90a", **changes}
    with pytest.raises(error, match=message):
        build([Sm90StaticPersistentGemmOperator()], arguments(META), **wish)
    assert built == []


def test_failed_kernels_are_an_error_that_names_them(monkeypatch, tmp_path):
    from cutlass_aot.builder import pipeline
    from cutlass_aot.builder.records import Failure

    def build_kernels(recipe, kernels, out, settings):
        failure = Failure(kernels[0], "the compiler crashed (signal 6)", tmp_path / "log.txt")
        return pipeline.BuildResult(out / recipe.name, 1, 0, (failure,), False)

    monkeypatch.setattr(pipeline, "build_kernels", build_kernels)
    with pytest.raises(CompileError, match=r"1 of 1 kernels failed.*\n.*signal 6\) \(log: .*log.txt\)"):
        build([Sm90StaticPersistentGemmOperator()], arguments(META), name="m", device="h200", targets="90a")


def test_a_kernel_that_is_known_to_be_bad_is_not_built():
    from cutlass_aot.builder.plan import given

    kernel = record(PersistentDenseGemmOperator(), "sm_103a", "gb300")
    bad = cutlass_aot.schema.kernel.Kernel.make(
        operation="gemm", generator="cutlass.operators", operands=kernel.operands, accumulator="f32",
        design={"family": "TgvGemm", "tile_shape": (64, 8, 128)}, target="sm_103a",
    )  # fmt: skip
    assert given([kernel, kernel], "4.8.1").kernels == (kernel,)
    with pytest.raises(CompileError, match=r"known to be bad with nvidia-cutlass-dsl 4.8.1: .*Xid 13"):
        given([kernel, bad], "4.8.1")
