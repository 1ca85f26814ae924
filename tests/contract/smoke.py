"""A stand-in for the bundle of manifests/smoke.toml, which pages use: its name and targets, and no code."""

from __future__ import annotations

from pathlib import Path

from cutlass_aot.bundle.write import write_bundle
from tests.unit.synthetic import group, kernels, plan

TARGETS = ("sm_100a", "sm_90a")


def write_smoke(folder: Path) -> Path:
    """Write it where a build in ``folder`` would; there are three kernels for each of the targets."""
    linked = folder / "linked"
    linked.mkdir(parents=True, exist_ok=True)
    bundle = folder / "build" / "bundles" / "smoke"
    needs = plan(folder / "plan").needs._replace(glibc="2.17")
    groups = tuple(group(linked, kernels(target=target)) for target in TARGETS)
    made = plan(linked, name="smoke", groups=groups, targets=TARGETS, rankings=(), needs=needs)
    write_bundle(made, bundle)
    return bundle
