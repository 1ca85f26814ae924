"""Find, explain, choose and the refusals of an open bundle; no GPU, the driver's answers are given."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot import describe
from cutlass_aot.errors import (
    BundleError,
    CorruptFile,
    DeviceError,
    Incompatible,
    KernelNotFound,
    OperandError,
    ParameterError,
)
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.machine import host
from cutlass_aot.runtime.opened import filters as listing
from cutlass_aot.runtime.selection.match import usual_accumulator
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, Groups
from cutlass_aot.schema.bundles.group_index import group_to_bytes
from tests.support import bundles
from tests.support.bundles import REQUIREMENTS, designs, write_bundle
from tests.support.kernels import gemm
from tests.support.native import compile_c
from tests.support.replace import replace

F16 = ("f16", "f16", "f16")


def operands(
    m: int = 512, n: int = 512, k: int = 512, dtype: str = "f16", out: str = "", **where: Any
) -> tuple:
    """Descriptions in the layout tnt."""
    return (
        describe((m, k), dtype, **where),
        describe((k, n), dtype, strides=(1, k), **where),
        describe((m, n), out or dtype, **where),
    )


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    kernels = [
        *designs(),
        *designs(target="sm_100a"),
        *designs(dtypes=("bf16", "bf16", "bf16")),
        *designs(accumulator="f16"),
        *designs(dtypes=("i8", "i8", "i32"), accumulator="i32"),
    ]
    return cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))


def test_describes_itself(bundle: Bundle) -> None:
    assert repr(bundle) == "<Bundle small 0.1.0: 15 kernels, sm_100a, sm_90a>"
    assert [len(bundle.kernels(group=group.name)) for group in bundle.groups] == [3] * 5


# -- find -------------------------------------------------------------------------------------------------


def test_find_by_description_looks_at_every_target(bundle: Bundle) -> None:
    found = bundle.find(*operands())
    assert [kernel.target for kernel in found] == ["sm_100a"] * 3 + ["sm_90a"] * 3
    assert all(kernel.supports(*operands()) for kernel in found)


def test_find_for_a_named_target(bundle: Bundle) -> None:
    assert {kernel.target for kernel in bundle.find(*operands(), target="sm_90a")} == {"sm_90a"}
    with pytest.raises(KernelNotFound, match="target sm_120a"):
        bundle.find(*operands(), target="sm_120a")


def test_a_target_that_the_bundle_lacks_is_said_with_those_it_has(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound) as caught:
        bundle.find(*operands(), target="sm_90")
    assert str(caught.value) == (
        "bundle small has nothing for target sm_90: it has kernels for sm_100a, sm_90a, "
        "and a target is an exact name"
    )


@pytest.mark.parametrize("target", ["", "90", "sm90a", "sm_90x", "hopper", "sm_90a ", 90])
def test_text_that_is_no_target(bundle: Bundle, target: Any) -> None:
    for ask in (bundle.find, bundle.explain):
        with pytest.raises(OperandError, match=r"target: expected a name such as sm_90a, .* got "):
            ask(*operands(), target=target)


def test_one_kernel_is_one_kernel(tmp_path: Path) -> None:
    bundle = cutlass_aot.open(write_bundle(tmp_path / "one", designs(((64, 128),))))
    assert str(bundle.explain(*operands())).endswith(": supported, 1 kernel")
    assert repr(bundle) == "<Bundle small 0.1.0: 1 kernel, sm_90a>"


def test_find_on_a_gpu_takes_what_runs_there(bundle: Bundle, gpu: dict[str, Any]) -> None:
    assert {kernel.target for kernel in bundle.find(*operands(device=0))} == {"sm_90a"}
    gpu["capability"] = (10, 0)
    fresh = cutlass_aot.open(bundle.path)
    assert {kernel.target for kernel in fresh.find(*operands(device=0))} == {"sm_100a"}


def test_find_prefers_the_exact_target_and_falls_back_to_the_family(
    tmp_path: Path, gpu: dict[str, Any]
) -> None:
    gpu["capability"] = (10, 3)
    kernels = [
        *designs(target="sm_100f"),
        *designs(target="sm_103a"),
        *designs(target="sm_100f", dtypes=("bf16",) * 3),
    ]
    bundle = cutlass_aot.open(write_bundle(tmp_path / "b", kernels))
    assert {kernel.target for kernel in bundle.find(*operands(device=0))} == {"sm_103a"}
    assert {kernel.target for kernel in bundle.find(*operands(device=0, dtype="bf16"))} == {"sm_100f"}


def test_find_puts_the_best_first_by_problem(bundle: Bundle, gpu: dict[str, Any]) -> None:
    small = bundle.find(*operands(64, 1024, device=0))[0]
    large = bundle.find(*operands(8192, 8192, device=0))[0]
    assert small.design["tile_shape"] == (64, 128, 64)
    assert large.design["tile_shape"] == (128, 256, 64)


def test_accumulator_left_open_takes_the_usual_one(bundle: Bundle) -> None:
    assert {kernel.kernel.accumulator for kernel in bundle.find(*operands())} == {"f32"}
    assert {kernel.kernel.accumulator for kernel in bundle.find(*operands(), accumulator="f16")} == {"f16"}
    assert {kernel.kernel.accumulator for kernel in bundle.find(*operands(dtype="i8", out="i32"))} == {"i32"}


def test_accumulator_left_open_takes_another_where_the_usual_is_missing(tmp_path: Path) -> None:
    bundle = cutlass_aot.open(write_bundle(tmp_path / "b", designs(accumulator="f16")))
    assert {kernel.kernel.accumulator for kernel in bundle.find(*operands())} == {"f16"}


@pytest.mark.parametrize(
    ("out", "accumulator"),
    [("f64", "f64"), ("f32", "f32"), ("bf16", "f32"), ("f8e4m3", "f32"), ("i32", "i32"), ("u8", "i32")],
)  # fmt: skip
def test_the_usual_accumulator(out: str, accumulator: str) -> None:
    assert usual_accumulator(out) == accumulator


def test_batched_and_plain_operands_find_the_same(bundle: Bundle) -> None:
    a, b, out = operands()
    batched = (
        describe((1, 512, 512), "f16"),
        describe((1, 512, 512), "f16", strides=(512 * 512, 1, 512)),
        describe((1, 512, 512), "f16"),
    )
    assert [k.name for k in bundle.find(a, b, out)] == [k.name for k in bundle.find(*batched)]


def test_nothing_fits_says_what_was_asked_and_what_is_nearest(bundle: Bundle) -> None:
    a, b, out = operands()
    with pytest.raises(KernelNotFound) as raised:
        bundle.find(a, replace(b, strides=(512, 1)), out)
    message = str(raised.value)
    assert "gemm on f16 (512, 512) with strides (512, 1)" in message
    assert "accumulator any" in message
    assert "Nearest is gemm-f16.f16.f16-f16-tnt-sm_90a: operand `b` is unsupported" in message


def test_another_accumulator_is_the_nearest_miss(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound, match="expected accumulator i32, got f32"):
        bundle.find(*operands(dtype="i8", out="i32"), accumulator="f32")


def test_wrong_number_of_operands(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound, match=r"expected 3 operands \(a, b, out\), got 2"):
        bundle.find(*operands()[:2])
    with pytest.raises(KernelNotFound, match=r"expected 3 operands \(a, b, out\), got 0"):
        bundle.find()


def test_operands_on_the_host_find_nothing(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound, match="is on cpu: kernels run on CUDA devices"):
        bundle.find(*operands(device=-1))


def test_something_that_is_no_tensor(bundle: Bundle) -> None:
    with pytest.raises(OperandError, match=r"expected a torch tensor, .* got builtins\.list"):
        bundle.find([1.0], [2.0], [3.0])


def test_another_operation_and_epilogue(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound, match="has no kernel for operation 'conv': it has gemm"):
        bundle.find(*operands(), operation="conv")
    with pytest.raises(KernelNotFound, match="expected epilogue '', got 'relu'"):
        bundle.find(*operands(), epilogue="relu")


def test_kernels_with_an_epilogue_are_found_by_it(tmp_path: Path) -> None:
    bundle = cutlass_aot.open(write_bundle(tmp_path / "b", [*designs(), *designs(epilogue="relu(acc)")]))
    assert {k.kernel.epilogue for k in bundle.find(*operands(), epilogue="relu(acc)")} == {"relu(acc)"}
    assert {k.kernel.epilogue for k in bundle.find(*operands())} == {""}


# -- explain ----------------------------------------------------------------------------------------------


def test_explain_has_every_group_nearest_first(bundle: Bundle) -> None:
    explanation = bundle.explain(*operands())
    assert [bool(verdict) for _, verdict in explanation] == [True, True, True, False, False]
    assert len(explanation) == len(bundle.groups)
    lines = str(explanation).splitlines()
    assert lines[0] == "gemm-f16.f16.f16-f16-tnt-sm_90a: supported, 3 kernels"
    assert any("expected element type bf16, got f16" in line for line in lines)


def test_explain_ranks_a_mendable_operand_above_another_dtype(bundle: Bundle) -> None:
    a, b, out = operands(k=516)
    first, verdict = bundle.explain(a, b, out, accumulator="f32")[0]
    assert first.operands[0].dtype == "f16"
    assert "expected extent K divisible by 8, got 516" in verdict.reason


def test_explain_on_a_gpu_names_what_runs_elsewhere(bundle: Bundle, gpu: dict[str, Any]) -> None:
    reasons = {group.name: verdict.reason for group, verdict in bundle.explain(*operands(device=0))}
    assert reasons["gemm-f16.f16.f16-f32-tnt-sm_100a"] == (
        "built for sm_100a, asked for GPU 0 with compute capability 9.0"
    )


def test_explain_answers_where_nothing_runs(bundle: Bundle, gpu: dict[str, Any]) -> None:
    gpu["capability"] = (8, 0)
    assert all("compute capability 8.0" in v.reason for _, v in bundle.explain(*operands(device=0)))


# -- compatibility ----------------------------------------------------------------------------------------


def test_a_gpu_without_a_target_is_refused_with_both(bundle: Bundle, gpu: dict[str, Any]) -> None:
    gpu["capability"] = (12, 0)
    with pytest.raises(Incompatible, match=r"GPU 0 has compute capability 12\.0.*sm_100a, sm_90a.*sm_120a"):
        bundle.find(*operands(device=0))


def test_an_older_driver_is_refused(bundle: Bundle, gpu: dict[str, Any]) -> None:
    gpu["driver"] = (11, 8)
    with pytest.raises(
        Incompatible,
        match=r"the driver supports CUDA 11\.8.*CUDA 12\.0 or newer: upgrade the GPU driver, to 525",
    ):
        bundle.find(*operands(device=0))


def test_every_reason_is_said(bundle: Bundle, gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.update(driver=(11, 8), capability=(8, 0))
    monkeypatch.setattr(host, "glibc_version", lambda: "2.17")
    with pytest.raises(Incompatible) as caught:
        cutlass_aot.open(bundle.path, check=False).find(*operands(device=0))
    for piece in ("glibc 2.17", "the driver supports CUDA 11.8", "GPU 0 has compute capability 8.0"):
        assert piece in str(caught.value)


def test_a_device_that_is_not_there(bundle: Bundle, gpu: dict[str, Any]) -> None:
    with pytest.raises(DeviceError, match="no GPU of this number"):
        bundle.find(*operands(device=3))


def test_another_host_is_refused_at_open(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", designs(), hosts=("riscv64",))
    with pytest.raises(Incompatible, match=r"this machine is \w+, the bundle has libraries for riscv64"):
        cutlass_aot.open(root)


@pytest.mark.parametrize("needed", ["0.1.99", "0.2.0", "0.0.9", "1.1.15"])
def test_another_tvm_ffi_is_refused_at_open(tmp_path: Path, needed: str) -> None:
    root = write_bundle(tmp_path / "b", designs(), requirements=REQUIREMENTS._replace(tvm_ffi=needed))
    with pytest.raises(Incompatible, match=rf"is installed, the bundle needs .*{needed}"):
        cutlass_aot.open(root)


def test_a_post_release_of_tvm_ffi_counts_as_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_bundle(tmp_path / "b", designs(), requirements=REQUIREMENTS._replace(tvm_ffi="0.1.15.post2"))
    for installed in ("0.1.15", "0.1.15.post1", "0.1.15.post3"):
        monkeypatch.setattr(host, "installed_version", {"apache-tvm-ffi": installed}.get)
        assert len(cutlass_aot.open(root).kernels()) == 3
    monkeypatch.setattr(host, "installed_version", {"apache-tvm-ffi": "0.1.14.post3"}.get)
    with pytest.raises(Incompatible, match=r"the bundle needs 0\.1\.x from 0\.1\.15 on"):
        cutlass_aot.open(root)


def test_a_newer_glibc_is_refused_at_open(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", designs(), requirements=REQUIREMENTS._replace(glibc="9.1"))
    with pytest.raises(Incompatible, match=r"the bundle needs (glibc )?9\.1 or newer"):
        cutlass_aot.open(root)


def test_a_bundle_for_elsewhere_can_be_looked_at_and_is_refused_later(
    tmp_path: Path, gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "installed_version", lambda name: None)
    root = write_bundle(tmp_path / "b", designs())
    with pytest.raises(Incompatible, match="apache-tvm-ffi is not installed"):
        cutlass_aot.open(root)
    bundle = cutlass_aot.open(root, check=False)
    assert len(bundle.kernels()) == 3
    with pytest.raises(Incompatible, match="apache-tvm-ffi is not installed"):
        bundle.require("sm_90a", 0)


# -- listing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({}, 15),
        ({"target": "sm_90a"}, 12),
        ({"target": "sm_9*", "accumulator": "f16"}, 3),
        ({"dtypes": "i8.*"}, 3),
        ({"dtypes": ["i8.*", "bf16.*"]}, 6),
        ({"layouts": "tnt"}, 15),
        ({"layouts": "ttt"}, 0),
        ({"tile": "128x128"}, 5),
        ({"tile_shape": "128x*"}, 10),
        ({"tile_shape": ("64x128x64", "128x256")}, 10),
        ({"use_2cta_mma": "false", "family": "F"}, 15),
        ({"use_2cta_mma": "true"}, 0),
        ({"generator": "cutlass.*", "operation": "gemm", "epilogue": ""}, 15),
        ({"name": "gemm-bf16*"}, 3),
    ],
)
def test_filters(bundle: Bundle, filters: dict[str, Any], count: int) -> None:
    assert len(bundle.kernels(**filters)) == count


def test_a_listing_is_sorted_by_numbers_not_by_text(tmp_path: Path) -> None:
    shapes = [((256, 64), (1, 1)), ((64, 64), (16, 1)), ((64, 64), (2, 1)), ((128, 8), (4, 1))]
    kernels = [
        gemm(design={"cluster_shape": cluster, "family": "F", "num_smem_stages": stages, "tile_shape": tile})
        for tile, cluster in shapes
        for stages in (10, 9)
    ]
    kernels.append(gemm(design={"family": "E", "tile_shape": (512, 512)}))
    bundle = cutlass_aot.open(write_bundle(tmp_path / "b", kernels))
    found = [
        (design["tile_shape"], design.get("cluster_shape"), design.get("num_smem_stages"))
        for design in (kernel.design for kernel in bundle.kernels())
    ]
    assert found[0] == ((512, 512), None, None)
    assert found[1:] == [(*shape, stages) for shape in sorted(shapes) for stages in (9, 10)]
    assert listing.values(bundle.kernels(), "stages") == ["9", "10"]
    assert listing.values(bundle.kernels(), "cluster") == ["1x1", "2x1", "4x1", "16x1"]


def test_the_values_that_a_filter_can_have(bundle: Bundle) -> None:
    kernels = bundle.kernels()
    assert listing.values(kernels, "target") == ["sm_90a", "sm_100a"]
    assert listing.values(kernels, "generator") == ["cutlass.operators"]
    assert listing.values(kernels, "use_2cta_mma") == ["false"]
    for name in ("accumulator", "dtypes", "layouts", "tile_shape", "family", "name"):
        for value in listing.values(kernels, name):
            assert bundle.kernels(**{name: value})
    with pytest.raises(ParameterError, match="unknown filter 'tyle'"):
        listing.values(kernels, "tyle")


def test_an_unknown_filter(bundle: Bundle) -> None:
    with pytest.raises(ParameterError, match=r"unknown filter 'tyle'.*accumulator.*tile_shape"):
        bundle.kernels(tyle="128x128")


def test_a_kernel_by_name_digest_and_their_beginnings(bundle: Bundle) -> None:
    expected = bundle.kernels()[4]
    # What `ls` prints below the name of the group.
    own = expected.name.removeprefix(f"{expected.group.name}-")
    for name in (expected.name, expected.digest, expected.digest[:10], expected.name[:-1], own, own[:-1]):
        assert bundle.kernel(name).digest == expected.digest


def test_a_kernel_that_is_ambiguous_or_unknown(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="beginning of 15 kernels"):
        bundle.kernel("gemm")
    with pytest.raises(BundleError, match="no kernel whose name or digest begins with 'xyz'"):
        bundle.kernel("xyz")
    with pytest.raises(BundleError, match="begins with ''"):
        bundle.kernel("")


# -- threads ----------------------------------------------------------------------------------------------


def test_many_threads_get_equal_kernels(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlass_aot.runtime.opened import group

    reads: list[str] = []
    real = group.read_file

    def counted(root: Path, reference: Any) -> bytes:
        reads.append(reference.path)
        return real(root, reference)

    monkeypatch.setattr(group, "read_file", counted)
    start = threading.Barrier(8)
    results: list[Any] = []

    def work() -> None:
        start.wait()
        results.append([kernel.entry for kernel in bundle.find(*operands())])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(result == results[0] for result in results)
    # Without a lock, threads that meet may decode the same twice; afterwards nothing is read again.
    assert len(set(reads)) == 2
    reads.clear()
    assert [kernel.entry for kernel in bundle.find(*operands())] == results[0]
    assert reads == []


# -- launching on descriptions ----------------------------------------------------------------------------


def test_descriptions_cannot_be_launched_on(bundle: Bundle) -> None:
    kernel = bundle.find(*operands())[0]
    with pytest.raises(OperandError, match="operand `a` is a description without memory"):
        kernel.launch(*operands())
    with pytest.raises(OperandError, match="description without memory"):
        bundle.gemm(*operands())


def test_launch_says_why_operands_are_not_supported(bundle: Bundle) -> None:
    kernel = bundle.find(*operands())[0]
    with pytest.raises(OperandError, match="operand `a` is unsupported: expected element type f16, got bf16"):
        kernel.launch(*operands(dtype="bf16"))


def with_child(root: Path, data: bytes) -> Path:
    """The bundle with another index in its only group, all digests right."""
    catalog = cutlass_aot.open(root).catalog
    (group,) = catalog.groups
    changed = replace(group, child=bundles.put(root, group.child.path, data))
    parent = replace(catalog, groups=Groups.of([changed])).to_bytes()
    index = bundles.put(root, CATALOG_NAME, parent)
    bundles.write_manifest(root, [*changed.files, *catalog.launchers.values(), index])
    return root


def test_a_kernel_of_another_group_in_a_child_cannot_be_launched(tmp_path: Path, gpu: dict[str, Any]) -> None:
    kernels = [gemm(), gemm(design={"family": "G"})]
    root = write_bundle(
        tmp_path / "b", kernels, libraries={kernels[0].group_name: compile_c(tmp_path, "empty", "")}
    )
    foreign = gemm(dtypes=("bf16",) * 3)
    with_child(root, group_to_bytes((bundles.entry(kernels[0]), bundles.entry(foreign))))
    # Its row is taken for one of this group; the library has no code under its name.
    handle = cutlass_aot.open(root).kernel(foreign.digest)
    assert handle.kernel.operands == kernels[0].operands
    with pytest.raises(
        CorruptFile, match=f"has no symbol cutlass_aot_code_{foreign.symbol}.*do not belong together"
    ):
        handle.compiled_function(0)


def test_another_number_of_kernels_than_the_parent_says_is_noticed(tmp_path: Path) -> None:
    root = with_child(
        write_bundle(tmp_path / "b", designs()), group_to_bytes(list(map(bundles.entry, designs()[:2])))
    )
    with pytest.raises(CorruptFile, match="has 2 kernels, the catalog says 3: build the bundle again"):
        cutlass_aot.open(root).kernels()
