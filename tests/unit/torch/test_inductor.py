"""Products under inductor: called directly, also from its cache, and otherwise through the dispatcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.torch import inductor
from tests.support import torch_bundles

torch = pytest.importorskip("torch")
aot = pytest.importorskip("cutlass_aot.torch")

PROGRAM = """
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
import cutlass_aot.torch as aot
from tests.support import torch_bundles

handle = aot.register(torch_bundles.bundle())

def products(x, weight, b, bias):
    hidden = aot.linear(x, weight, bundle=handle)
    biased = torch.ops.cutlass_aot.linear(hidden, b.T, bias, handle)
    return aot.mm(biased.view(-1, 32), b.T, bundle=handle)

torch.manual_seed(0)
x, weight, b, bias = torch.randn(3, 5, 64), torch.randn(128, 64), torch.randn(128, 32), torch.randn(32)
with torch.no_grad():
    compiled = torch.compile(products, fullgraph=True, dynamic=True)
    for x in (x, torch.randn(7, 4, 64)):
        torch.testing.assert_close(compiled(x, weight, b, bias), products(x, weight, b, bias))
hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
print("from the cache" if hits else "compiled")
"""


def run(folder: Path, program: str) -> tuple[str, str]:
    """What a program prints, and the Python code that inductor wrote for it."""
    # A folder of its own, in which what another run compiled is found.
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": os.fspath(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, "\n".join(path.read_text() for path in sorted(folder.rglob("*.py")))


def test_products_are_called_directly_and_found_again_in_the_cache(tmp_path: Path) -> None:
    printed, code = run(tmp_path, PROGRAM)
    assert printed == "compiled\n"
    # Code that another process loads imports what it calls.
    assert "from cutlass_aot.torch import inductor as cutlass_aot_inductor\n" in code
    assert code.count("cutlass_aot_inductor.linear(") == 1
    assert code.count("cutlass_aot_inductor.mm(") == 1
    # With a bias it goes through the dispatcher.
    assert code.count("torch.ops.cutlass_aot.linear.default(") == 1
    assert run(tmp_path, PROGRAM)[0] == "from the cache\n"


def test_another_interface_of_inductor_leaves_products_to_the_dispatcher(tmp_path: Path) -> None:
    without = "import torch._inductor.ir as ir\nir.ExternKernelOut = None\n"
    printed, code = run(tmp_path, without + PROGRAM)
    assert printed == "compiled\n"
    assert "cutlass_aot_inductor" not in code
    assert code.count("torch.ops.cutlass_aot.linear.default(") == 2


def test_a_program_without_inductor_does_not_load_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(*arguments: Any) -> None:
        raise AssertionError("inductor is not in use")

    monkeypatch.setattr(inductor, "_registered", False)
    monkeypatch.setattr(inductor, "_register", register)
    monkeypatch.delitem(sys.modules, "torch._inductor.lowering", raising=False)
    handle = aot.register(torch_bundles.bundle())
    fake = torch.ops.cutlass_aot.linear(
        torch.empty(3, 64, device="meta"), torch.empty(8, 64, device="meta"), None, handle
    )
    assert fake.shape == (3, 8)
