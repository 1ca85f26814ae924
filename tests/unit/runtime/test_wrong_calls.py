"""Calls on operands that are elsewhere, and calls with names that there are not: the error of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot import describe, policy
from cutlass_aot.errors import CutlassAotError, KernelNotFound, MisplacedOperand, OperandError, ParameterError
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.runtime import bundle_search
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.bundles import write_bundle
from tests.support.declared_kernels import scale_rows, tuned, without_parameters
from tests.support.kernels import gemm


def records() -> list[Kernel]:
    made = DeclaredGenerator(scale_rows).kernel({"n": 128, "fast": False}, "sm_90a")
    assert made is not None
    return [made, gemm(target="sm_90a")]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle of a GEMM and of a declared kernel, the only one there is, and an H200."""
    monkeypatch.delenv(policy.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(policy, "_process", policy._Process())
    opened = cutlass_aot.open(write_bundle(tmp_path / "small", records()))
    monkeypatch.setattr(bundle_search, "opened_bundles", lambda: [opened])
    monkeypatch.setattr(bundle_search, "located", list)
    monkeypatch.setattr(cuda_driver, "compute_capability", lambda ordinal: (9, 0))
    for made in (scale_rows, tuned, without_parameters):
        monkeypatch.setattr(made, "_functions", {})
        monkeypatch.setattr(made, "_calls", {})
    return opened


def rows(x: int, out: int) -> tuple[Any, ...]:
    """Operands of scale_rows on these devices."""
    return describe((4, 128), "bf16", device=x), describe((4, 128), "bf16", device=out), 2.0


def matrices(*devices: int) -> tuple[Any, ...]:
    """Operands of a GEMM on these devices."""
    a, b, out = devices
    return (
        describe((64, 64), "f16", device=a),
        describe((64, 64), "f16", strides=(1, 64), device=b),
        describe((64, 64), "f16", device=out),
    )


# -- operands that are elsewhere ----------------------------------------------------------------------------

ON_CPU = (
    r"^operand `{}` is on cpu: kernels run on CUDA devices; "
    r"move it to one, for example a torch tensor with \.cuda\(\)$"
)
ON_TWO = r"^operand `{}` is on GPU 1, and `{}` on GPU 0: a launch runs on one GPU; move them to the same one"


def ways(bundle: Bundle) -> list[Any]:
    """Every way to launch the declared kernel."""
    (kernel,) = bundle.kernels(operation="scale_rows")
    values = {"n": 128, "fast": False}
    return [
        lambda *operands: bundle.run("scale_rows", *operands, parameters=values),
        lambda *operands: bundle.find(*operands, operation="scale_rows", parameters=values),
        lambda *operands: bundle.choose(*operands, operation="scale_rows", parameters=values),
        scale_rows(n=128, fast=False),
        kernel.launch,
    ]


@pytest.mark.parametrize(("x", "out", "name"), [(-1, -1, "x"), (0, -1, "out"), (-1, 0, "x")])
def test_operands_on_the_cpu_give_one_error_however_a_kernel_is_called(
    bundle: Bundle, x: int, out: int, name: str
) -> None:
    for call in ways(bundle):
        with pytest.raises(MisplacedOperand, match=ON_CPU.format(name)):
            call(*rows(x, out))


def test_operands_on_two_gpus_give_one_error(bundle: Bundle) -> None:
    for call in ways(bundle):
        with pytest.raises(MisplacedOperand, match=ON_TWO.format("out", "x")):
            call(*rows(0, 1))


def test_the_error_is_both_a_wrong_operand_and_a_miss() -> None:
    assert issubclass(MisplacedOperand, OperandError)
    assert issubclass(MisplacedOperand, KernelNotFound)


def test_a_gemm_says_which_of_its_operands_is_elsewhere(bundle: Bundle) -> None:
    with pytest.raises(MisplacedOperand, match=ON_CPU.format("b")):
        bundle.gemm(*matrices(0, -1, 0))
    with pytest.raises(MisplacedOperand, match=ON_TWO.format("b", "a")):
        bundle.gemm(*matrices(0, 1, 0))


def test_an_operand_is_named_also_where_others_are_missing(bundle: Bundle) -> None:
    with pytest.raises(MisplacedOperand, match=ON_CPU.format("b")):
        bundle.find(*matrices(0, -1, 0)[:2])


def test_an_operand_by_name_is_named(bundle: Bundle) -> None:
    x, out, factor = rows(0, -1)
    with pytest.raises(MisplacedOperand, match=ON_CPU.format("out")):
        bundle.run("scale_rows", x, factor=factor, out=out, parameters={"n": 128, "fast": False})
    with pytest.raises(MisplacedOperand, match=ON_CPU.format("out")):
        scale_rows(n=128, fast=False)(factor=factor, out=rows(-1, -1)[1])


def test_arrays_of_numpy_are_on_the_cpu(bundle: Bundle) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros((64, 64), numpy.float16)
    with pytest.raises(MisplacedOperand, match=ON_CPU.format("a")):
        bundle.gemm(array, array.T, array)


@pytest.mark.parametrize(
    ("device", "said"),
    [(-8, "mps"), (-14, "xpu"), (-12, "a device that is not CUDA's"), (-77, "a device that")],
)
def test_another_device_is_named(bundle: Bundle, device: int, said: str) -> None:
    with pytest.raises(MisplacedOperand, match=f"operand `a` is on {said}"):
        bundle.gemm(*matrices(device, 0, 0))


@pytest.mark.parametrize(
    ("dtypes", "devices", "said"),
    [
        (("f16", "bf16", "f16"), (-1, -1, -1), ON_CPU.format("a")),
        (("bf16", "f16", "f16"), (0, -1, 0), ON_CPU.format("b")),
        (("bf16", "f16", "f16"), (0, 1, 0), ON_TWO.format("b", "a")),
        (("bf16", "f16", "f16"), (0, 0, 0), "operand `a` is unsupported: expected element type f16"),
    ],
)
def test_a_kernel_supports_with_the_reason_that_its_launch_gives(
    bundle: Bundle, dtypes: tuple[str, ...], devices: tuple[int, ...], said: str
) -> None:
    (kernel,) = bundle.kernels(operation="gemm")
    operands = [
        describe((64, 64), dtype, device=device) for dtype, device in zip(dtypes, devices, strict=True)
    ]
    verdict = kernel.supports(*operands)
    assert not verdict
    assert re.match(said, verdict.reason)
    error = kernel.failure(RuntimeError("refused"), operands)
    assert isinstance(error, MisplacedOperand) is ("unsupported" not in said)
    assert str(error).removeprefix(f"kernel {kernel.name}: ") == verdict.reason


def test_what_the_bundle_does_not_have_at_all_is_said_first(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound, match="has no kernel for operation 'scale'") as caught:
        bundle.run("scale", *rows(-1, -1))
    assert not isinstance(caught.value, MisplacedOperand)


# -- names that there are not -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positional", "named", "said"),
    [
        (
            (),
            {"n": 128, "fsat": False},
            r"kernel scale_rows: there is no parameter `fsat`; did you mean 'fast'\?: it takes n, fast$",
        ),
        ((128,), {}, r"kernel scale_rows: missing a required argument: 'fast': it takes n, fast$"),
        ((128, False, 3), {}, r"kernel scale_rows: too many positional arguments: it takes n, fast$"),
        (
            (128,),
            {"n": 128, "fast": True},
            r"kernel scale_rows: multiple values for argument 'n': it takes n, fast$",
        ),
    ],
)
def test_a_declared_kernel_says_which_parameters_it_takes(
    bundle: Bundle, positional: tuple[Any, ...], named: dict[str, Any], said: str
) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        scale_rows(*positional, **named)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, CutlassAotError)


def test_a_parameter_of_tuning_is_not_for_the_caller(bundle: Bundle) -> None:
    with pytest.raises(
        ParameterError, match="`threads` is a parameter of tuning, which a call does not name"
    ):
        tuned(dtype="f32", threads=128)
    with pytest.raises(ParameterError, match=r"kernel without_parameters: .*: it takes no parameters"):
        without_parameters(3)


def test_an_operand_by_a_wrong_name_is_refused_with_the_right_ones(bundle: Bundle) -> None:
    x, out, factor = rows(0, 0)
    said = (
        r"kernel scale_rows: expected operands x, out, factor, stream and workspace, .*; did you mean '{}'\?"
    )
    with pytest.raises(ParameterError, match=said.format("factor")):
        scale_rows(n=128, fast=False)(x, out, factr=factor)
    with pytest.raises(ParameterError, match=said.format("stream")):
        scale_rows(n=128, fast=False)(x, out, factor, strem=3)


@pytest.mark.parametrize("call", ["run", "find", "choose", "explain", "gemm"])
def test_a_misspelt_parameter_of_a_bundle_is_named_with_what_is_meant(bundle: Bundle, call: str) -> None:
    operation = ("gemm",) if call == "run" else ()
    said = (
        r"small: gemm has no parameter or operand `acumulator`; did you mean 'accumulator'\?: "
        r"its operands are a, b, out, and the call takes "
    )
    with pytest.raises(ParameterError, match=said) as caught:
        getattr(bundle, call)(*operation, *matrices(0, 0, 0), acumulator="f32")
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("call", "named", "meant"),
    [
        ("run", {"paramters": {"n": 128}}, "parameters"),
        ("run", {"strem": 7}, "stream"),
        ("choose", {"targt": "sm_90a"}, "target"),
        ("find", {"oeration": "gemm"}, "operation"),
        ("gemm", {"epilog": "relu"}, "epilogue"),
    ],
)
def test_every_parameter_of_a_bundle_is_known(
    bundle: Bundle, call: str, named: dict[str, Any], meant: str
) -> None:
    operation = ("gemm",) if call == "run" else ()
    with pytest.raises(ParameterError, match=rf"did you mean '{meant}'\?"):
        getattr(bundle, call)(*operation, *matrices(0, 0, 0), **named)


def test_a_name_that_is_like_no_other_is_a_miss_if_it_may_be_an_operand(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound, match="expected 3 operands"):
        bundle.gemm(*matrices(0, 0, 0), C=describe((64, 64), "f16", device=0))
    with pytest.raises(ParameterError, match="no parameter or operand `verbose`: its operands are a, b, out"):
        bundle.gemm(*matrices(0, 0, 0), verbose=True)


def test_a_gemm_and_a_linear_layer_say_which_operand_is_missing(bundle: Bundle) -> None:
    a, b, out = matrices(0, 0, 0)
    with pytest.raises(ParameterError, match="gemm: expected operands a, b, out, got no `out`"):
        bundle.gemm(a, b)
    with pytest.raises(
        ParameterError, match=r"gemm has no parameter or operand `oute`; did you mean 'out'\?"
    ):
        bundle.gemm(a, b, oute=out)
    with pytest.raises(ParameterError, match="gemm: expected operands a, b, out, got 4 in order"):
        bundle.gemm(a, b, out, out)
    with pytest.raises(ParameterError, match="linear: expected operands x, weight, out, got no `weight`"):
        bundle.linear(a, out=out)  # type: ignore[call-arg]
    with pytest.raises(
        ParameterError, match="linear has no parameter or operand `epilogue`: its operands are"
    ):
        bundle.linear(a, b, out, epilogue="relu")  # type: ignore[call-arg]


def test_the_operands_of_a_gemm_may_all_be_named(bundle: Bundle) -> None:
    a, b, out = matrices(0, -1, 0)
    with pytest.raises(MisplacedOperand, match=ON_CPU.format("b")):
        bundle.gemm(out=out, b=b, a=a)


def test_a_launch_takes_its_operands_in_order(bundle: Bundle) -> None:
    (kernel,) = bundle.kernels(operation="gemm")
    said = (
        rf"the launch of kernel {kernel.name} has no parameter `strem`; did you mean 'stream'\?: "
        r"it takes the operands a, b, out in this order, and stream and workspace by name"
    )
    with pytest.raises(ParameterError, match=said):
        kernel.launch(*matrices(0, 0, 0), strem=7)  # type: ignore[call-arg]


def test_parameters_that_no_kernel_has_are_named(bundle: Bundle) -> None:
    said = (
        r"it has kernels of scale_rows with parameters=.*; there is no parameter `fats`; "
        r"did you mean 'fast'\?: name one"
    )
    with pytest.raises(KernelNotFound, match=said):
        bundle.run("scale_rows", *rows(0, 0), parameters={"n": 128, "fats": False})
    for wrong in ("n", [("n", 128)], {1: 2}):
        with pytest.raises(OperandError, match="parameters: expected values by their names"):
            bundle.run("scale_rows", *rows(0, 0), parameters=wrong)  # type: ignore[arg-type]
