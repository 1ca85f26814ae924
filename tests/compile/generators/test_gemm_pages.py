"""The pages of GEMMs: manifests are built, code runs as far as it can.

What needs a GPU of the SM100 family is compiled as Python and no more; that its operands find a kernel is
shown by the pages' own descriptions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.manifest.model import parse_manifest
from tests.compile.builder.test_build import command
from tests.support.forks import Forks
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile

PAGES = ("dense-gemm", "block-scaled-gemm", "mixed-input-gemm", "grouped-gemm", "grouped-gemm sm_90a")
"""Names of pages, each with the word by which its blocks are told from others of the page."""


def blocks(page: str, kind: str) -> list[str]:
    name, *word = page.split()
    text = (REPOSITORY / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{' '.join([kind, *word])}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def torch():
    """A process that has torch, where a warning is an error."""
    process = Forks("import warnings; warnings.simplefilter('error'); import torch")
    yield process
    process.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with what the manifests of all pages build, in one bundle: each build imports the DSL.

    Every table of kernels names the targets that its page's bundle has.
    """
    folder = tmp_path_factory.mktemp("pages")
    tables, devices, names = [], {}, []
    for page in PAGES:
        (text,) = blocks(page, "toml")
        manifest = parse_manifest(text.encode(), folder / "page.toml")
        head, *kernels = re.split(r"^\[\[kernels\]\].*\n", text, flags=re.MULTILINE)
        assert head.startswith("[bundle]\n")
        assert len(kernels) == len(manifest.tables) > 0
        assert "targets" not in "".join(kernels)
        names.append(manifest.name)
        devices |= {target: manifest.devices[target] for target in manifest.targets}
        own = f"[[kernels]]\ntargets = {json.dumps(manifest.targets)}\n"
        tables += [own + table for table in kernels]
    device = ", ".join(f'{target} = "{name}"' for target, name in devices.items())
    (folder / "pages.toml").write_text(
        f'[bundle]\nname = "pages"\nversion = "0.1.0"\ntargets = {json.dumps([*devices])}\n'
        f"device = {{ {device} }}\n\n" + "".join(tables)
    )
    bundles = folder / "build" / "bundles"
    result = command("build", folder / "pages.toml", "--store", folder / "store", "--out", bundles)
    assert result.returncode == 0, result.stderr
    for name in names:
        shutil.copytree(bundles / "pages", bundles / name)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_its_manifest_is_built_and_its_descriptions_find_kernels(page, built):
    (manifest,) = blocks(page, "toml")
    name = parse_manifest(manifest.encode(), built / "page.toml").name
    assert f'open("build/bundles/{name}")' in "".join(blocks(page, "python gpu"))
    (find,) = blocks(page, "python find")
    found = run(find, built).split()
    assert found
    target = "sm_90a" if page.endswith("sm_90a") else "sm_103a"
    assert all(f"-{target}-" in kernel for kernel in found)


@pytest.mark.parametrize("page", PAGES)
def test_its_code_runs_up_to_the_launch(page, torch):
    (prepared,) = blocks(page, "python")
    (launch,) = blocks(page, "python gpu")
    compile(launch, page, "exec")
    torch.run(prepared)


def test_quantised_operands_are_near_what_was_quantised(torch):
    (prepared,) = blocks("block-scaled-gemm", "python")
    check = """
from torch.nn.functional import cosine_similarity
exact = (x @ w.T).flatten()
assert cosine_similarity(mx_reference.flatten(), exact, dim=0) > 0.99
nv = reference(
    narrow.decode(narrow.unpack(nv_x, "f4e2m1"), "f4e2m1"), nv_x_scale,
    narrow.decode(narrow.unpack(nv_w, "f4e2m1"), "f4e2m1"), nv_w_scale, 16,
)
assert cosine_similarity(nv.flatten(), exact, dim=0) > 0.95
"""
    torch.run(prepared + check)
    (prepared,) = blocks("grouped-gemm sm_90a", "python")
    check = """
both = (tokens, token_factors, exact_tokens), (weights, weight_factors, exact_weights)
for narrow, factors, exact in both:
    height = narrow.shape[-2] // factors.shape[-2]
    spread = factors.repeat_interleave(128, -1).repeat_interleave(height, -2)
    torch.testing.assert_close(narrow.float() * spread, exact)
    assert float(narrow.float().abs().max()) == 448
assert token_factors.stride() == (1, tokens.shape[0])
"""
    torch.run(prepared + check)
    (prepared,) = blocks("mixed-input-gemm", "python")
    check = """
exact = (w @ x.float().T).flatten()
assert torch.nn.functional.cosine_similarity(reference.flatten(), exact, dim=0) > 0.98
"""
    torch.run(prepared + check)
