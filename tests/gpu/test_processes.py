"""On a GPU: threads, forked and spawned processes, several GPUs; and what launching leaves behind.

cutlass-aot build manifests/sm90.toml && python -m pytest -m gpu tests/gpu/test_processes.py
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

CHECKED_GEMM = """
    import multiprocessing, os, sys
    import cutlass_aot

    def gemm(path, device=0, bundle=None):
        import torch
        bundle = bundle or cutlass_aot.open(path)
        a = torch.randn(96, 256, device=f"cuda:{device}", dtype=torch.bfloat16)
        weight = torch.randn(128, 256, device=f"cuda:{device}", dtype=torch.bfloat16)
        out = torch.empty(96, 128, device=f"cuda:{device}", dtype=torch.bfloat16)
        bundle.gemm(a, weight.T, out)
        bundle.gemm(a, weight.T, out)
        exact = a.double() @ weight.double().T
        assert ((out.double() - exact).norm() / exact.norm()).item() < 2.0**-8
"""


def in_a_fresh_process(body: str, *arguments: str) -> str:
    program = textwrap.dedent(CHECKED_GEMM) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_threads_share_a_bundle_and_its_choices(bundle):
    problems = [(8 * (i + 1), 64 * (i % 5 + 1), 128) for i in range(40)]
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        try:
            generator = torch.Generator("cuda").manual_seed(seed)
            stream = torch.cuda.Stream()
            start.wait()
            with torch.cuda.stream(stream):
                for m, n, k in problems * 3:
                    a = torch.randn(m, k, device="cuda", generator=generator).bfloat16()
                    weight = torch.randn(n, k, device="cuda", generator=generator).bfloat16()
                    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
                    bundle.gemm(a, weight.T, out)
                    exact = a.double() @ weight.double().T
                    assert ((out.double() - exact).norm() / exact.norm()).item() < 2.0**-8
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_thread_without_a_context_launches_and_has_none_afterwards(bundle):
    a = torch.randn(96, 256, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(128, 256, device="cuda", dtype=torch.bfloat16)
    out = torch.zeros(96, 128, device="cuda", dtype=torch.bfloat16)
    kernel = bundle.find(a, weight.T, out)[0]
    kernel.launch(a, weight.T, torch.empty_like(out))
    torch.cuda.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    seen = []

    def context():
        current = ctypes.c_void_p()
        assert driver.cuCtxGetCurrent(ctypes.byref(current)) == 0
        return current.value

    def work():
        seen.append(context())
        for _ in range(2):
            kernel.launch(a, weight_t, out)
            seen.append(context())

    weight_t = weight.T
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert seen == [None, None, None]
    exact = a.double() @ weight.double().T
    assert ((out.double() - exact).norm() / exact.norm()).item() < 2.0**-8


def test_a_child_of_a_process_that_has_not_launched(bundle):
    said = in_a_fresh_process(
        """
        bundle = cutlass_aot.open(sys.argv[1])
        described = cutlass_aot.describe
        bundle.choose(described((96, 256), "bf16"), described((256, 128), "bf16", strides=(1, 256)),
                      described((96, 128), "bf16"))
        child = os.fork()
        if not child:
            gemm(None, bundle=bundle)
            print("launched", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
        str(bundle.path),
    )
    assert said == "launched\n"


def test_a_child_of_a_process_that_has_launched_is_told_so(bundle):
    said = in_a_fresh_process(
        """
        bundle = cutlass_aot.open(sys.argv[1])
        gemm(None, bundle=bundle)
        kernel = bundle.kernels(dtypes="bf16.bf16.bf16", layouts="tnt")[0]
        import torch
        a, b, out = (torch.empty(8, 8, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        child = os.fork()
        if not child:
            for launch in (kernel.launch, bundle.gemm):
                try:
                    launch(a, b.T, out)
                except cutlass_aot.DeviceError as error:
                    print(type(error).__name__, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
        str(bundle.path),
    )
    assert said == "DeviceError\nDeviceError\n"


def test_spawned_processes_launch(bundle, tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        textwrap.dedent(CHECKED_GEMM)
        + textwrap.dedent(
            """
            if __name__ == "__main__":
                gemm(sys.argv[1])
                context = multiprocessing.get_context("spawn")
                children = [context.Process(target=gemm, args=(sys.argv[1],)) for _ in range(2)]
                for child in children:
                    child.start()
                for child in children:
                    child.join()
                assert [child.exitcode for child in children] == [0, 0]
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script, bundle.path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_gpu_has_its_own_choice_and_the_others_are_left_alone(bundle):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    in_a_fresh_process(
        """
        from cuda.bindings import driver

        def has_context(ordinal):
            status, device = driver.cuDeviceGet(ordinal)
            status, _, active = driver.cuDevicePrimaryCtxGetState(device)
            return bool(active)

        import torch
        bundle = cutlass_aot.open(sys.argv[1])
        gemm(None, 1, bundle)
        assert has_context(1) and not has_context(0)
        gemm(None, 0, bundle)
        gemm(None, 1, bundle)
        assert has_context(0)
        """,
        str(bundle.path),
    )
