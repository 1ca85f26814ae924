"""The policy on misses: where it comes from, what it counts, what it does; nothing is compiled here."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading
import types
import warnings

import pytest

import cutlass_aot
from cutlass_aot import policy
from cutlass_aot.errors import KernelNotFound, LaunchError, PolicyError, ToolchainError
from tests.support.bundles import designs, write_bundle


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv(policy.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(policy, "_process", policy._Process())


@pytest.fixture
def bundle(tmp_path):
    return cutlass_aot.open(write_bundle(tmp_path / "bundle", designs()))


def described(m=64, n=64, k=64, dtype="f16"):
    """Operands of a problem that the bundle has no kernel for: an output of another type."""
    a = cutlass_aot.describe((m, k), dtype)
    return a, cutlass_aot.describe((k, n), dtype, strides=(1, k)), cutlass_aot.describe((m, n), "f32")


def miss(bundle, *operands):
    with pytest.raises(KernelNotFound) as caught:
        bundle.gemm(*operands)
    return caught.value


# -- which policy -----------------------------------------------------------------------------------------


def test_the_default_is_required(bundle):
    assert policy.get() == "required"
    assert "expected element type f16, got f32" in str(miss(bundle, *described()))


def test_the_process_a_block_and_blocks_in_blocks():
    policy.set("warn")
    assert policy.get() == "warn"
    with policy.use("jit"):
        assert policy.get() == "jit"
        with policy.use("required"):
            assert policy.get() == "required"
        assert policy.get() == "jit"
    with pytest.raises(ZeroDivisionError), policy.use("jit"):
        raise ZeroDivisionError
    assert policy.get() == "warn"


def test_the_environment_decides_when_it_is_first_asked_and_nobody_else_did(monkeypatch):
    monkeypatch.setenv(policy.ENVIRONMENT_VARIABLE, "warn")
    assert policy.get() == "warn"
    monkeypatch.setenv(policy.ENVIRONMENT_VARIABLE, "jit")
    assert policy.get() == "warn"
    policy.set("required")
    assert policy.get() == "required"


def test_a_wrong_name_is_refused_where_it_is_used(monkeypatch, bundle):
    with pytest.raises(PolicyError, match="policy: expected one of required, warn, jit, got 'never'"):
        policy.set("never")
    with pytest.raises(PolicyError, match="got 'never'"), policy.use("never"):
        pass
    monkeypatch.setenv(policy.ENVIRONMENT_VARIABLE, "Jit")
    with pytest.raises(PolicyError, match="environment variable CUTLASS_AOT_POLICY: expected one of"):
        bundle.gemm(*described())


def test_threads_and_tasks_are_independent():
    inside, leave = threading.Barrier(2, timeout=10), threading.Barrier(2, timeout=10)
    seen = []

    def other():
        with policy.use("jit"):
            inside.wait()
            seen.append(policy.get())
            leave.wait()

    thread = threading.Thread(target=other)
    with policy.use("warn"):
        thread.start()
        inside.wait()
        seen.append(policy.get())
        leave.wait()
        thread.join()
    assert sorted(seen) == ["jit", "warn"]
    # A thread begins with the policy of the process, not with the block of whoever started it.
    with policy.use("warn"):
        thread = threading.Thread(target=lambda: seen.append(policy.get()))
        thread.start()
        thread.join()
    assert seen[-1] == "required"

    async def task(name):
        with policy.use(name):
            await asyncio.sleep(0.01)
            return policy.get()

    async def both():
        return await asyncio.gather(task("warn"), task("jit"))

    assert asyncio.run(both()) == ["warn", "jit"]
    assert contextvars.copy_context().run(policy.get) == "required"


# -- counting ---------------------------------------------------------------------------------------------


def test_each_miss_is_counted_and_logged_under_required_too(bundle, caplog):
    for _ in range(2):
        miss(bundle, *described())
    miss(bundle, *described(m=128))
    counts = policy.misses()
    assert sorted(counts.values()) == [1, 2]
    assert counts.total == 3
    (signature,) = [text for text, count in counts.items() if count == 2]
    assert signature.startswith(
        "gemm on f16 (64, 64) with strides (64, 1), f16 (64, 64) with strides (1, 64)"
    )
    records = [record for record in caplog.records if record.name == "cutlass_aot"]
    assert [record.levelno for record in records] == [logging.WARNING] * 3
    assert records[1].getMessage() == f"no kernel for {signature} (miss 2 of it, policy required)"
    counts.clear()
    assert policy.misses().total == 3
    policy.reset_misses()
    assert policy.misses() == {}
    assert policy.misses().total == 0


def test_a_hit_is_no_miss_and_neither_is_looking(bundle):
    a, b, _ = described()
    assert bundle.find(a, b, cutlass_aot.describe((64, 64), "f16"))
    with pytest.raises(KernelNotFound):
        bundle.find(*described())
    assert policy.misses().total == 0


def test_no_count_is_lost_under_threads(bundle):
    operands = [described(m=m) for m in (64, 128, 192)]

    def work():
        for index in range(60):
            miss(bundle, *operands[index % 3])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(policy.misses().values()) == [160, 160, 160]


def test_the_memory_for_counts_is_bounded(bundle, monkeypatch):
    monkeypatch.setattr(policy, "MAX_SIGNATURES", 2)
    for m in (64, 128, 192, 256, 64):
        miss(bundle, *described(m=m))
    assert sorted(policy.misses().values()) == [1, 2, 2]
    assert policy.misses()[policy.OTHERS] == 2


def test_a_forked_child_is_not_stopped_by_a_lock_of_its_parent():
    code = (
        "import os, threading\n"
        "from cutlass_aot import policy\n"
        "held = threading.Event()\n"
        "def hold():\n"
        "    with policy._process.lock:\n"
        "        held.set()\n"
        "        threading.Event().wait()\n"
        "threading.Thread(target=hold, daemon=True).start()\n"
        "held.wait()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(policy.misses().total)\n"
        "os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=20)


# -- warn -------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def gemm_tensors(torch, dtype, out, m=32, n=24, k=16, batch=()):
    a = torch.randn(*batch, m, k).to(dtype)
    b = torch.randn(*batch, n, k).to(dtype).mT
    return a, b, torch.zeros(*batch, m, n).to(out)


def close(torch, a, b, out):
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=0.07, atol=0.07)


def test_warn_computes_by_torch_and_warns_once_for_each_problem(bundle, torch):
    with policy.use("warn"):
        for m in (32, 64):
            a, b, out = gemm_tensors(torch, torch.float16, torch.float16, m=m)
            with pytest.warns(policy.MissWarning, match="computed by torch instead") as caught:
                bundle.gemm(a, b, out)
            assert caught[0].filename == __file__
            close(torch, a, b, out)
            out.zero_()
            bundle.gemm(a, b, out)
            close(torch, a, b, out)
    assert policy.misses().total == 4


def test_warn_minds_the_names_of_operands(bundle, torch):
    a, b, out = gemm_tensors(torch, torch.float16, torch.float16)
    before = a.clone()
    with policy.use("warn"), pytest.warns(policy.MissWarning):
        bundle.run("gemm", b, out, a=a)
    assert torch.equal(a, before)
    close(torch, a, b, out)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(
    ("dtype", "out"),
    [
        ("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32"),
        ("float8_e4m3fn", "bfloat16"), ("float8_e4m3fn", "float8_e5m2"), ("float64", "float64"),
    ],
)  # fmt: skip
def test_what_torch_does_not_store_as_it_is_goes_through_a_wider_type(bundle, torch, dtype, out, batch):
    a, b, result = gemm_tensors(torch, getattr(torch, dtype), getattr(torch, out), batch=batch)
    with policy.use("warn"), pytest.warns(policy.MissWarning):
        bundle.gemm(a, b, result)
    if out == "float8_e5m2":
        expected = (a.float() @ b.float()).to(result.dtype)
        assert torch.equal(result.view(torch.uint8), expected.view(torch.uint8))
    else:
        close(torch, a, b, result)


def test_a_slice_is_written_in_its_place(bundle, torch):
    a, b, _ = gemm_tensors(torch, torch.float32, torch.float32)
    padded = torch.zeros(32, 40)
    with policy.use("warn"), pytest.warns(policy.MissWarning):
        bundle.gemm(a, b, padded[:, 8:32])
    close(torch, a, b, padded[:, 8:32])
    assert not padded[:, :8].any()
    assert not padded[:, 32:].any()


def test_operands_that_fit_no_gemm_are_a_miss_and_not_broadcast_or_resized(bundle, torch):
    a, b, out = gemm_tensors(torch, torch.float32, torch.float32)
    with policy.use("warn"):
        for wrong in (
            (a, b, torch.zeros(5, 5)),
            (a, b, torch.zeros(32, 24, dtype=torch.int32)),
            (a.unsqueeze(0).expand(3, -1, -1), b, torch.zeros(3, 32, 24)),
            (a, a, out),
            (a.to(torch.int8), b.to(torch.int8), torch.zeros(32, 24, dtype=torch.int32)),
            described(),
            tuple(tensor.numpy() for tensor in (a, b, out)),
            (a.to("meta"), b.to("meta"), out.to("meta")),
        ):
            miss(bundle, *wrong)
    assert not out.any()


def test_a_warning_that_is_an_error_stays_one(bundle, torch):
    operands = gemm_tensors(torch, torch.float16, torch.float16)
    with policy.use("warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(policy.MissWarning):
                bundle.gemm(*operands)


def test_what_torch_refuses_is_an_error_with_the_miss_as_its_cause(bundle, torch, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no such multiplication")

    monkeypatch.setattr(torch, "matmul", refuse)
    with policy.use("warn"), pytest.raises(LaunchError, match="no such multiplication") as caught:
        bundle.gemm(*gemm_tensors(torch, torch.float16, torch.float16))
    assert isinstance(caught.value.__cause__, KernelNotFound)


# -- jit --------------------------------------------------------------------------------------------------


def test_jit_hands_the_problem_to_the_build_side(bundle, monkeypatch):
    calls = []
    module = types.ModuleType("cutlass_aot.builder.jit")
    module.gemm = lambda *arguments: calls.append(arguments)
    monkeypatch.setitem(sys.modules, "cutlass_aot.builder.jit", module)
    operands = described()
    with policy.use("jit"):
        bundle.gemm(*operands, stream=7, workspace="workspace")
    ((request, given, stream, workspace),) = calls
    assert (given, stream, workspace) == (operands, 7, "workspace")
    assert request.operands == operands
    assert policy.misses().total == 1


def test_what_goes_wrong_in_jit_has_the_miss_as_its_cause(bundle, monkeypatch):
    module = types.ModuleType("cutlass_aot.builder.jit")

    def gemm(*_):
        raise ToolchainError("no compiler")

    module.gemm = gemm
    monkeypatch.setitem(sys.modules, "cutlass_aot.builder.jit", module)
    with policy.use("jit"), pytest.raises(ToolchainError, match="no compiler") as caught:
        bundle.gemm(*described())
    assert isinstance(caught.value.__cause__, KernelNotFound)


WITHOUT_THE_DSL = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import cutlass_aot
from cutlass_aot import policy
bundle = cutlass_aot.open({path!r})
d = cutlass_aot.describe
operands = d((64, 64), "f16"), d((64, 64), "f16", strides=(1, 64)), d((64, 64), "f32")
try:
    bundle.gemm(*operands)
except cutlass_aot.KernelNotFound:
    assert "cutlass_aot.builder.jit" not in sys.modules
    assert "cutlass_aot.builder" not in sys.modules
else:
    raise SystemExit("no miss")
policy.set("jit")
try:
    bundle.gemm(*operands)
except cutlass_aot.ToolchainError as error:
    assert isinstance(error.__cause__, cutlass_aot.KernelNotFound), error.__cause__
    print(error)
assert policy.misses().total == 2
"""


def test_without_the_dsl_jit_says_what_is_missing_and_how_to_install_it(tmp_path):
    root = write_bundle(tmp_path / "bundle", designs())
    code = WITHOUT_THE_DSL.format(blocked=("cutlass", "torch"), path=str(root))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    absent = "No module named 'cutlass'"
    assert result.stdout.startswith(
        "policy jit has to compile a kernel, and this installation has no compiler: missing "
        f"nvidia-cutlass-dsl ({absent}), nvidia-cutlass-operators ({absent}), torch "
        "(No module named 'torch'). Install it with: pip install "
    )
    # Nor does torch compute it.
    assert "policy warn" not in result.stdout
    # Nobody has configured logging: the log's lines go nowhere, and not to standard error.
    assert result.stderr == ""
