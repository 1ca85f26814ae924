"""tools/check/reproducible.py in its short form: two builds are the same, and what is not is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.compile


# A generator whose code depends on the time zone, as none may.
PLUGIN = """
import os
from dataclasses import replace

from cutlass_aot.generators.registry import register
from cutlass_aot.generators.simt_f64_gemm.generator import SimtF64Gemm


@register
class Zoned(SimtF64Gemm):
    name = "zoned"

    def enumerate(self, problem, target, device):
        for kernel in super().enumerate(problem, target, device):
            yield replace(kernel, generator=self.name)

    def compile(self, kernel):
        design = kernel.design
        if os.environ["TZ"] == "UTC":
            design = tuple((name, (32, 32) if name == "tile_shape" else value) for name, value in design)
        return super().compile(replace(kernel, generator=SimtF64Gemm.name, design=design))
"""


def check(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "tools.check.reproducible", "--builds", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **variables},
    )


def test_two_builds_in_different_surroundings_are_the_same():
    result = check()
    assert result.returncode == 0, result.stderr
    first, second = ([cell.strip() for cell in line.split("|")] for line in result.stdout.splitlines()[2:4])
    # Bundle and wheel at the end; before them whatever can be chosen was chosen differently.
    assert first[-3:] == second[-3:]
    assert all(re.fullmatch("[0-9a-f]{16}", text) for text in first[-3:-1])
    where = slice(1, -5)
    alike = [one for one, other in zip(first[where], second[where], strict=True) if one == other]
    assert alike == ["no"], "both were not interrupted"


def test_a_kernel_that_depends_on_the_surroundings_is_found(tmp_path):
    (tmp_path / "zoned_plugin.py").write_text(PLUGIN)
    manifest = tmp_path / "zoned.toml"
    manifest.write_text(
        'plugins = ["zoned_plugin"]\n[bundle]\nname = "zoned"\ntargets = ["sm_80"]\ndevice = "h200"\n'
        '[[kernels]]\ngenerator = "zoned"\nab = "f64"\ntile = "16x16"\n'
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    result = check("--manifest", manifest, PYTHONPATH=path)
    assert result.returncode == 1, result.stdout
    assert "build 2 differs from the first in MANIFEST.json: 644 " in result.stderr
