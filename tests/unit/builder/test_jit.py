"""Which kernel policy ``jit`` compiles, and how it is called; generators and compilers are made up."""

from __future__ import annotations

import threading

import numpy
import pytest

import cutlass_aot
from cutlass_aot import policy
from cutlass_aot.builder import jit
from cutlass_aot.errors import CompileError, KernelNotFound, LaunchError, OperandError
from cutlass_aot.generators.sm90_gemm.generator import Sm90Gemm
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.selection.query import Query
from tests.support.bundles import ClaimsCuda, write_bundle
from tests.support.kernels import gemm

pytestmark = pytest.mark.filterwarnings("ignore::cutlass_aot.runtime.policy.MissWarning")

H200 = jit._Gpu(0, (9, 0), 132, "NVIDIA H200")


class Compiled:
    """What a compilation gives: it records its calls."""

    def __init__(self, kernel):
        self.kernel, self.calls = kernel, []

    def __call__(self, *arguments):
        self.calls.append([(tuple(tensor.shape), tuple(tensor.strides)) for tensor in arguments])


class Generator:
    """Kernels of two tiles, row-major, on two targets."""

    name = "some"
    operations = ("gemm",)

    def __init__(self, targets=("sm_80", "sm_90a"), compile=Compiled):
        self._targets, self._compile = targets, compile
        self.requested, self.compiled = [], []

    def targets(self, operation):
        return self._targets

    def enumerate(self, problem, target, profile):
        self.requested.append((problem, target, profile.name))
        if problem.dtypes != ("f16", "f16", "f16") or problem.accumulator != "f32":
            return
        for tile in ((64, 64), (128, 256)):
            design = {"family": "F", "tile_shape": tile}
            yield gemm(layouts=problem.layouts, target=target, design=design, generator=self.name)

    def compile(self, kernel):
        self.compiled.append(kernel)
        return self._compile(kernel)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("_chosen", "_compiled", "_enumerated"):
        monkeypatch.setattr(jit, name, {})
    monkeypatch.setattr(policy, "_process", policy._Process())
    monkeypatch.setattr(jit, "_require_compiler", lambda torch_computes: None)
    monkeypatch.setattr(jit, "dsl_version", lambda: "4.8.1")
    monkeypatch.setattr(cuda_driver, "compute_capability", lambda _: H200.capability)
    monkeypatch.setattr(cuda_driver, "sm_count", lambda _: H200.sm_count)
    monkeypatch.setattr(cuda_driver, "device_name", lambda _: H200.name)


@pytest.fixture
def use(monkeypatch):
    def use(*generators):
        class Reference:
            def __init__(self, generator):
                self.load = lambda: generator

        monkeypatch.setattr(jit, "references", lambda: {g.name: Reference(g) for g in generators})
        return generators[0]

    return use


def query(a, b, out, accumulator=None, accumulation="exact"):
    return Query("gemm", "", accumulator, (), "GPU 0", (a, b, out), accumulation=accumulation)


def linear(m=64, n=128, k=256, **how):
    d = cutlass_aot.describe
    return d((m, k), "f16", **how), d((k, n), "f16", strides=(1, k), **how), d((m, n), "f16", **how)


def test_the_best_target_and_the_default_order_decide(use):
    generator = use(Generator())
    small = jit.compiled_for(query(*linear(m=64, n=64)), H200).kernel
    large = jit.compiled_for(query(*linear(m=8192, n=8192)), H200).kernel
    assert (small.target, dict(small.design)["tile_shape"]) == ("sm_90a", (64, 64))
    assert (large.target, dict(large.design)["tile_shape"]) == ("sm_90a", (128, 256))
    # One question, whose answer is kept; nothing is asked of a target that comes later.
    assert generator.requested == [(jit.Problem("gemm", ("f16",) * 3, "tnt", "f32"), "sm_90a", "h200")]


def test_another_target_serves_where_the_best_one_has_nothing(use):
    use(Generator(targets=("sm_80",)))
    ampere = jit._Gpu(0, (8, 6), 84, "NVIDIA A10")
    assert jit.compiled_for(query(*linear()), ampere).kernel.target == "sm_80"
    with pytest.raises(KernelNotFound, match=r"no generator \(some\) has a kernel for gemm on f16"):
        jit.compiled_for(query(*linear()), H200)


def test_a_target_that_the_dsl_does_not_compile_for_is_left_out(use, monkeypatch):
    monkeypatch.setattr(jit, "dsl_toolkit", lambda: 12)
    rubin, thor = jit._Gpu(0, (10, 7), 224, "NVIDIA Rubin"), jit._Gpu(0, (11, 0), 20, "NVIDIA Thor")
    use(Generator(targets=("sm_107a", "sm_110a", "sm_100f")))
    assert jit.compiled_for(query(*linear()), rubin).kernel.target == "sm_100f"
    with pytest.raises(KernelNotFound, match=r"a DSL that compiles for sm_110a: pip install .*cu13"):
        jit.compiled_for(query(*linear()), thor)


def test_strides_give_the_layouts_and_an_extent_of_one_both(use):
    d = cutlass_aot.describe
    kernels = list(jit.problems_of(query(d((1, 64), "f16"), d((64, 8), "f16"), d((1, 8), "f16"))))
    assert [problem.layouts for problem in kernels] == ["ttt", "ttn", "ntt", "ntn"]
    assert list(jit.problems_of(query(*linear()))) == [jit.Problem("gemm", ("f16",) * 3, "tnt", "f32")]
    assert not list(jit.problems_of(query(d((8, 8), "f16", strides=(16, 2)), *linear()[1:])))
    (named,) = jit.problems_of(query(*linear(), accumulator="f16"))
    assert named.accumulator == "f16"


def test_fast_sums_are_compiled_where_they_are_permitted(use):
    use(Sm90Gemm())
    a, b, out = linear()
    operands = a._replace(dtype="f8e4m3"), b._replace(dtype="f8e4m3"), out._replace(dtype="bf16")
    for accumulation in ("exact", "fast"):
        chosen = jit._choose(query(*operands, accumulation=accumulation), H200)[0]
        assert chosen.accumulation == accumulation
        # Everything else has one kind of sums.
        assert jit._choose(query(a, b, out, accumulation=accumulation), H200)[0].accumulation == ""


def test_what_no_kernel_demands_is_a_miss_too(use):
    use(Generator())
    with pytest.raises(KernelNotFound, match="either: change the operands, or choose policy warn"):
        jit.compiled_for(query(*linear(k=255)), H200)
    with pytest.raises(KernelNotFound):
        jit.compiled_for(query(*linear(), accumulator="f64"), H200)


def test_a_kernel_known_to_be_bad_is_not_compiled(use, monkeypatch):
    use(Generator())
    monkeypatch.setattr(jit, "known_bad", lambda kernel, _: dict(kernel.design)["tile_shape"] == (64, 64))
    chosen = jit.compiled_for(query(*linear(m=64, n=64)), H200)
    assert dict(chosen.kernel.design)["tile_shape"] == (128, 256)


def test_a_kernel_is_compiled_once_and_warned_of_once(use, caplog):
    generator = use(Generator())
    with pytest.warns(policy.MissWarning, match=r"was compiled in .* s \(policy jit\): build it into the"):
        first = jit.compiled_for(query(*linear()), H200)
    # Other extents, the same kernel.
    assert jit.compiled_for(query(*linear(m=65)), H200) is first
    threads = [
        threading.Thread(target=jit.compiled_for, args=(query(*linear(m=m)), H200)) for m in range(66, 90)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert generator.compiled == [first.kernel]
    lines = [record.getMessage() for record in caplog.records if record.name == "cutlass_aot"]
    assert [line.startswith(f"policy jit compiled {first.kernel.name} in") for line in lines] == [True]


def fails(kernel):
    raise ValueError("ptxas says no")


class WithoutEngine(Compiled):
    engine = None


@pytest.mark.parametrize(
    ("compile", "message"),
    [(fails, "does not compile: ValueError: ptxas says no"), (WithoutEngine, "unset CUTE_DSL_ARCH")],
)
def test_a_kernel_that_cannot_be_compiled_or_called_is_an_error(use, compile, message):
    use(Generator(compile=compile))
    with pytest.raises(CompileError, match=message):
        jit.compiled_for(query(*linear()), H200)


@pytest.mark.parametrize(
    ("name", "gpu", "count"),
    [
        ("h200", H200, 30),
        ("h100", jit._Gpu(0, (9, 0), 132, "NVIDIA GH200 480GB"), 30),
        ("NVIDIA H20-78", jit._Gpu(0, (9, 0), 78, "NVIDIA H20"), 19),
    ],
)
def test_the_device_profile_is_a_known_one_or_derived(name, gpu, count):
    profile = jit.profile_of(gpu.capability, gpu.sm_count, gpu.name)
    assert (profile.name, profile.sm_count) == (name, gpu.sm_count)
    assert profile.active_clusters(4) == count
    assert min(jit.profile_of((9, 0), 3, "tiny").max_active_clusters.values()) == 1


# -- calling ----------------------------------------------------------------------------------------------


def arrays(m=64, n=128, k=256):
    a, b = numpy.zeros((m, k), "f2"), numpy.zeros((n, k), "f2").T
    return [ClaimsCuda(array, "f16") for array in (a, b, numpy.zeros((m, n), "f2"))]


@pytest.fixture
def bundle(tmp_path):
    kernels = [gemm(dtypes=("bf16",) * 3)]
    return cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))


def test_a_miss_of_a_bundle_is_compiled_and_called_with_the_batch_first(use, bundle):
    use(Generator())
    operands = arrays()
    with policy.use("jit"):
        bundle.gemm(*operands, stream=0)
        bundle.gemm(*operands, stream=0)
    ((_, compiled),) = jit._compiled.items()
    shapes = [
        ((1, 64, 256), (64 * 256, 256, 1)),
        ((1, 256, 128), (128 * 256, 1, 256)),
        ((1, 64, 128), (64 * 128, 128, 1)),
    ]
    assert compiled.function.calls == [shapes, shapes]
    assert policy.misses().total == 2
    # The producers were asked to order their work before the stream that is launched on.
    assert all(1 in operand.streams for operand in operands)


def test_an_extent_of_one_gets_a_stride_that_a_descriptor_can_have(use, bundle):
    use(Generator())
    a = numpy.zeros((3, 256), "f2")[::2][:1]
    operands = [ClaimsCuda(a, "f16"), *arrays(m=1)[1:]]
    with policy.use("jit"):
        bundle.gemm(*operands)
    ((_, compiled),) = jit._compiled.items()
    assert compiled.function.calls[0][0] == ((1, 1, 256), (256, 256, 1))


def test_operands_on_no_gpu_are_not_compiled_for(use, bundle):
    generator = use(Generator())
    with policy.use("jit"), pytest.raises(OperandError, match="they are on none") as caught:
        bundle.gemm(*linear())
    assert isinstance(caught.value.__cause__, KernelNotFound)
    assert not generator.compiled


def test_what_compiled_code_refuses_names_the_kernel_and_the_operand(use, bundle):
    def refuses(kernel):
        def function(*_):
            raise ValueError("Mismatched b.shape[1] on argument #1")

        return function

    use(Generator(compile=refuses))
    with policy.use("jit"), pytest.raises(LaunchError, match=r"kernel gemm-f16.* on operand `b`"):
        bundle.gemm(*arrays())
