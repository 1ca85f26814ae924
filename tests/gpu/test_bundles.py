"""On a GPU: every kernel of the bundles that run here, and the blocks of the README and of the first steps.

    cutlass-aot build manifests/sm90.toml && python -m pytest -m gpu

Where no GPU is present these are skipped; results are recorded in docs/results/gpu-results.md.
"""

from __future__ import annotations

import re

import pytest

import cutlass_aot
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from tests.gpu.conftest import REPOSITORY

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["sm90", "portable", "sm100-dense"])
def test_every_kernel_computes_what_it_should(name, capability):
    from tools.check.gpu import main

    try:
        bundle = cutlass_aot.open(REPOSITORY / "build" / "bundles" / name)
    except BundleError as error:
        pytest.skip(str(error))
    if not runnable_targets(bundle.targets, capability):
        pytest.skip(f"{name} has nothing for compute capability {capability}")
    assert main([str(bundle.path)]) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_native_code_chooses_as_python_does(bundle, dtype, monkeypatch):
    torch = pytest.importorskip("torch")
    bundle = cutlass_aot.open(bundle.path)
    random = torch.Generator().manual_seed(5)

    def operands(m, n, k):
        a, b = (torch.randn(*shape, device="cuda").to(getattr(torch, dtype)) for shape in ((m, k), (n, k)))
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16 if "float8" in dtype else a.dtype)
        return a, b.T, out

    bundle.gemm(*operands(64, 128, 256))
    ((native,),) = (choices.values() for choices in bundle._dispatcher._native_choices.values())
    sought = []
    real = bundle._finder.best
    monkeypatch.setattr(bundle._finder, "best", lambda call: sought.append(call) or real(call))
    chosen = set()
    for _ in range(100):
        m = int(2 ** (12 * float(torch.rand((), generator=random))))
        n, k = (16 * int(item) for item in torch.randint(1, 200, (2,), generator=random))
        a, b, out = operands(m, n, k)
        choice = bundle.choose(a, b, out)
        if m > 1 and choice.tier != "tuned":
            # Of kernels that are expected to take as long, either may be taken.
            times = {item.kernel.digest: item.microseconds for item in choice.expected}
            taken = native.candidates.digest(native.fastest((1, m, n, k)))
            assert times[taken] == pytest.approx(choice.expected[0].microseconds, rel=1e-9)
            sought.clear()
            bundle.gemm(a, b, out)
            # Python launches a kernel the first time.
            assert taken not in chosen or not sought
            chosen.add(taken)
        bundle.gemm(a, b, out)
        expected = a.double() @ b.double()
        assert ((out.double() - expected).norm() / expected.norm()).item() < 2.0**-6
    assert len(chosen) > 5


def gpu_blocks(page: str) -> list[str]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return re.findall(r"^```python gpu\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def assert_is_product(names: dict[str, object], weight: str) -> None:
    x, w, out = names["x"], names[weight], names["out"]
    error = (out.double() - x.double() @ w.double().T).norm() / out.double().norm()
    assert error.item() < 2.0**-8


def test_the_readme_and_the_first_steps_run(capability, monkeypatch):
    bundle = cutlass_aot.open(REPOSITORY / "build" / "bundles" / "smoke")
    if not runnable_targets(bundle.targets, capability):
        pytest.skip(f"smoke has nothing for compute capability {capability}")
    monkeypatch.setattr(cutlass_aot, "open", lambda _: bundle)
    monkeypatch.setattr(cutlass_aot, "open_installed", lambda _: bundle)
    (block,) = gpu_blocks("README.md")
    names: dict[str, object] = {}
    exec(block, names)
    assert_is_product(names, "w")
    first, model = gpu_blocks("docs/guides/first-steps.md")
    names = {}
    exec(first, names)
    assert_is_product(names, "weight")
    exec(model, names)
    assert sum(type(layer).__name__ == "PrebuiltLinear" for layer in names["model"]) == 2
