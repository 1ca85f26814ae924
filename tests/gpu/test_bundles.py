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
