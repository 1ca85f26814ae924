"""Compatibility rules: each refusal says what was found and what is needed."""

from __future__ import annotations

import pytest

from cutlass_aot.runtime.compatibility import (
    check_driver,
    check_glibc,
    check_host,
    check_targets,
    check_tvm_ffi,
    runnable_targets,
)
from cutlass_aot.schema.catalog import Needs


def test_host() -> None:
    assert check_host(["aarch64", "x86_64"], "x86_64")
    assert check_host(["x86_64"], "aarch64").reason.startswith(
        "this machine is aarch64, the bundle has libraries for x86_64"
    )


@pytest.mark.parametrize(
    ("needed", "installed", "accepted"),
    [
        ("0.1.15", "0.1.15", True),
        ("0.1.15", "0.1.15.post2", True),
        ("0.1.15.post2", "0.1.15", True),
        ("0.1.15", "0.1.16", True),
        ("0.1.9", "0.1.15", True),
        ("0.1.15", "0.1.9", False),
        ("0.1.15", "0.1.2", False),
        ("0.1.15", "0.2.0", False),
        ("0.1.15", "1.1.15", False),
        ("0.1.15", None, False),
        ("0.1.15", "unknown", False),
    ],
)
def test_tvm_ffi(needed: str, installed: str | None, accepted: bool) -> None:
    verdict = check_tvm_ffi(needed, installed)
    assert bool(verdict) is accepted
    if not accepted:
        assert f"the bundle needs 0.1.x from {needed} on" in verdict.reason
        assert f'pip install "apache-tvm-ffi>={needed},<0.2"' in verdict.reason


@pytest.mark.parametrize(
    ("installed", "accepted"),
    [("2.28", True), ("2.36", True), ("2.9", False), ("2.17", False), ("3.0", True), (None, False)],
)
def test_glibc(installed: str | None, accepted: bool) -> None:
    assert bool(check_glibc("2.28", installed)) is accepted


@pytest.mark.parametrize(
    ("target", "runtime", "driver", "accepted"),
    [
        ("sm_90a", "13.0", (13, 0), True),
        ("sm_90a", "13.5", (13, 0), True),
        ("sm_90a", "13.0", (12, 9), False),
        ("sm_90a", "12.9", (12, 4), True),
        ("sm_100a", "12.9", (12, 4), False),
        ("sm_103a", "12.9", (12, 8), False),
        ("sm_103a", "12.9", (12, 9), True),
        ("sm_80", "12.0", (11, 8), False),
        ("sm_90a", "12.9", (13, 0), True),
    ],
)
def test_driver(target: str, runtime: str, driver: tuple[int, int], accepted: bool) -> None:
    verdict = check_driver(Needs(runtime, "0.1.15", "2.28"), target, driver)
    assert bool(verdict) is accepted
    if not accepted:
        assert f"the driver supports CUDA {driver[0]}.{driver[1]}" in verdict.reason


def test_targets_that_run_exact_first() -> None:
    targets = ["sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_86"]
    assert runnable_targets(targets, (9, 0)) == ["sm_90a"]
    assert runnable_targets(targets, (10, 0)) == ["sm_100a", "sm_100f"]
    assert runnable_targets(targets, (10, 3)) == ["sm_103a", "sm_103f", "sm_100f"]
    assert runnable_targets(targets, (8, 9)) == ["sm_86", "sm_80"]
    assert runnable_targets(targets, (12, 0)) == []


def test_no_target_names_the_gpu_the_bundle_and_the_way_out() -> None:
    assert check_targets(["sm_90a"], (9, 0), "GPU 0")
    reason = check_targets(["sm_90a", "sm_100a"], (8, 6), "GPU 0").reason
    assert "GPU 0 has compute capability 8.6" in reason
    assert "sm_90a, sm_100a" in reason
    assert "such as sm_86" in reason
