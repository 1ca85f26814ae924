"""On a GPU with the package nvidia-cutlass-operators: its own way to run an operator, with prebuilt kernels.

cutlass-aot build manifests/sm90.toml && python -m pytest -m gpu tests/gpu/test_operators.py
"""

from __future__ import annotations

import pytest

from cutlass_aot.errors import KernelNotFound, OperandError

ops = pytest.importorskip("cutlass.operators")
torch = pytest.importorskip("torch")

from cutlass_aot.operators import artifact  # noqa: E402

pytestmark = pytest.mark.gpu


def operands(m, n, k, dtype=torch.bfloat16, batch=()):
    a = torch.randn(*batch, m, k, device="cuda").to(dtype)
    b = torch.randn(*batch, n, k, device="cuda").to(dtype).mT
    return a, b, torch.zeros(*batch, m, n, dtype=dtype, device="cuda")


def served(bundle, args):
    """The operators for the arguments that the bundle has, with their artifacts."""
    found = []
    for operator in ops.get_operators(args, target_sm="90a"):
        try:
            found.append((operator, artifact(operator, args, bundle)))
        except KernelNotFound:
            continue
    assert found
    return found


def check(a, b, out):
    expected = a.double() @ b.double()
    error = (out.double() - expected).norm() / expected.norm()
    assert error.item() < 2.0**-7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_every_operator_that_the_bundle_has_runs(bundle, dtype, batch):
    a, b, out = operands(384, 512, 256, dtype, batch)
    args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
    for operator, compiled in served(bundle, args):
        out.zero_()
        operator.run(args, compiled_artifact=compiled)
        torch.cuda.synchronize()
        check(a, b, out)


def test_one_artifact_serves_other_extents_and_nothing_is_compiled(bundle, monkeypatch):
    first = ops.GemmArguments(*operands(256, 256, 256), accumulator_type=torch.float32)
    (operator, compiled), *_ = served(bundle, first)
    monkeypatch.setattr(type(operator), "_compile", lambda *_, **__: pytest.fail("something was compiled"))
    for m, n, k in ((1, 512, 1024), (77, 264, 72), (4096, 1024, 512)):
        a, b, out = operands(m, n, k)
        args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
        operator.run(args, compiled_artifact=compiled, assume_supported_args=True)
        torch.cuda.synchronize()
        check(a, b, out)


def test_the_stream_that_is_given_is_launched_on(bundle):
    a, b, out = operands(512, 512, 512)
    args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
    operator, compiled = served(bundle, args)[0]
    operator.run(args, compiled_artifact=compiled)
    # The sum too: loading its kernel later would take longer than the sleep.
    assert out.sum().item()
    out.zero_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    operator.run(args, compiled_artifact=compiled, stream=stream)
    # Only a launch behind the sleep leaves the output as it was for now.
    assert not out.sum().item()
    stream.synchronize()
    check(a, b, out)


def test_a_graph_captures_a_run_on_its_stream(bundle):
    a, b, out = operands(512, 512, 512)
    args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
    operator, compiled = served(bundle, args)[0]
    operator.run(args, compiled_artifact=compiled)
    torch.cuda.synchronize()
    out.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operator.run(args, compiled_artifact=compiled, stream=torch.cuda.current_stream())
    graph.replay()
    torch.cuda.synchronize()
    check(a, b, out)


def test_operands_elsewhere_are_refused(bundle):
    args = ops.GemmArguments(*operands(256, 256, 256), accumulator_type=torch.float32)
    _, compiled = served(bundle, args)[0]
    host = [tensor.cpu() for tensor in operands(256, 256, 256)]
    with pytest.raises(OperandError, match="expected a tensor on a CUDA device"):
        compiled.compiled_obj(*host, torch.cuda.current_stream())
