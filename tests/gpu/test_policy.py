"""On a GPU: problems that a bundle has no kernel for, computed by torch and by a kernel compiled in process.

cutlass-aot build manifests/smoke.toml && python -m pytest -m gpu tests/gpu/test_policy.py
"""

from __future__ import annotations

import threading

import pytest

from cutlass_aot import policy
from cutlass_aot.errors import KernelNotFound

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv(policy.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(policy, "_process", policy._Process())


def operands(m=384, n=512, k=256, dtype=torch.float16, out=torch.float16, batch=()):
    """FP16: the bundle has BF16 and FP64."""
    a = torch.randn(*batch, m, k, device="cuda").to(dtype)
    b = torch.randn(*batch, n, k, device="cuda").to(dtype).mT
    return a, b, torch.zeros(*batch, m, n, dtype=out, device="cuda")


def check(a, b, out, tolerance=2.0**-7):
    expected = a.double() @ b.double()
    assert ((out.double() - expected).norm() / expected.norm()).item() < tolerance


def test_required_launches_nothing(smoke):
    a, b, out = operands()
    with pytest.raises(KernelNotFound):
        smoke.gemm(a, b, out)
    assert not out.any()
    assert policy.misses().total == 1


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(
    ("dtype", "out"), [("float16", "float16"), ("float16", "float32"), ("float8_e4m3fn", "float16")]
)
def test_warn_computes_by_torch(smoke, dtype, out, batch):
    a, b, result = operands(dtype=getattr(torch, dtype), out=getattr(torch, out), batch=batch)
    with policy.use("warn"), pytest.warns(policy.MissWarning):
        smoke.gemm(a, b, result)
    torch.cuda.synchronize()
    check(a, b, result)


def on_a_sleeping_stream(smoke, how):
    """Call on a stream that sleeps: the output is written when it is done, and not before."""
    a, b, out = operands()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    smoke.gemm(a, b, out, stream=how(stream))
    assert not out.any().item()
    stream.synchronize()
    check(a, b, out)


@pytest.mark.filterwarnings("ignore::cutlass_aot.runtime.policy.MissWarning")
@pytest.mark.parametrize("how", [lambda stream: stream, lambda stream: stream.cuda_stream])
def test_warn_computes_on_the_stream_that_is_given(smoke, how):
    with policy.use("warn"):
        smoke.gemm(*operands())
        torch.cuda.synchronize()
        on_a_sleeping_stream(smoke, how)


@pytest.fixture
def compiler(monkeypatch):
    """The DSL, with nothing compiled yet."""
    pytest.importorskip("cutlass.operators")
    from cutlass_aot.builder import jit

    for name in ("_chosen", "_compiled"):
        monkeypatch.setattr(jit, name, {})


# The compiler's own warnings are not ours to fix.
compiling = pytest.mark.filterwarnings("ignore")


@compiling
@pytest.mark.parametrize(
    ("dtype", "out", "batch"),
    [
        ("float16", "float16", ()), ("float16", "float16", (3,)), ("float16", "float32", ()),
        ("float64", "float64", (2,)),
    ],
)  # fmt: skip
def test_jit_compiles_and_computes(smoke, compiler, dtype, out, batch):
    # FP64 with a column-major A: the bundle has the layout of a linear layer alone.
    a, b, result = operands(dtype=getattr(torch, dtype), out=getattr(torch, out), batch=batch)
    if dtype == "float64":
        a = a.mT.contiguous().mT
    with policy.use("jit"), pytest.warns(policy.MissWarning, match="was compiled in"):
        smoke.gemm(a, b, result)
    torch.cuda.synchronize()
    check(a, b, result)
    result.zero_()
    with policy.use("jit"):
        smoke.gemm(a, b, result)
    torch.cuda.synchronize()
    check(a, b, result)
    assert policy.misses().total == 2


@compiling
def test_jit_launches_on_the_stream_that_is_given(smoke, compiler):
    with policy.use("jit"):
        smoke.gemm(*operands())
        torch.cuda.synchronize()
        on_a_sleeping_stream(smoke, lambda stream: stream)


@compiling
def test_jit_from_several_threads(smoke, compiler):
    problems = [operands(m=64 * (index + 1)) for index in range(8)]
    failures = []

    def work(a, b, out):
        try:
            with policy.use("jit"):
                smoke.gemm(a, b, out)
        except Exception as error:
            failures.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=problem) for problem in problems]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    torch.cuda.synchronize()
    for problem in problems:
        check(*problem)
