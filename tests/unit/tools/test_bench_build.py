"""The benchmark of building: its pieces, and the figures it draws from what commands print."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cutlass_aot.manifest.model import load_manifest


def test_the_manifests_are_manifests(tmp_path):
    from tools.bench import build as bench_build

    for name, tables in (
        ("sixty", bench_build.SIXTY),
        ("plan", bench_build.TEN_THOUSAND),
        ("thousand", bench_build.THOUSAND),
    ):
        manifest = load_manifest(bench_build.manifest(tmp_path, name, tables))
        assert (manifest.name, len(manifest.tables)) == (name, len(tables))


def test_the_number_compiled_is_read_from_the_last_line():
    from tools.bench import build as bench_build

    text = "[3/5] something 2 compiled\nbuild/bundles/x: 1,024 kernels, 17 compiled, written\n"
    assert bench_build._compiled(text) == 17


def test_a_phase_within_another_counts_once():
    from tools.bench import profile_build

    clock = profile_build.Clock()

    class Compiler:
        def run(self):
            return sum(range(2_000_000))

    clock.wrap(Compiler, "run", "passes")
    assert clock.time("other", Compiler().run) == sum(range(2_000_000))
    assert clock.seconds["passes"] > 0
    assert clock.seconds["other"] < clock.seconds["passes"]


@pytest.mark.parametrize("setting", ["loop", "plain", "worker"])
def test_each_setting_is_a_set_of_environment_variables(setting):
    from tools.bench import profile_build

    variables = profile_build.variables(setting)
    assert ("CUTE_DSL_ARCH" in variables) is (setting != "loop")
    assert ("GLIBC_TUNABLES" in variables) is (setting == "worker")


def test_an_unknown_part_is_refused():
    result = subprocess.run(
        [sys.executable, "-m", "tools.bench.build", "--part", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "invalid choice: 'nothing'" in result.stderr
