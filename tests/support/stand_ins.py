"""Stand-ins for bundles that pages use: their names, targets and hosts, and no code that runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.schema.bundles.catalog import VersionRequirements
from tests.unit.bundle.test_split import whole


def write_smoke(folder: Path) -> Path:
    """Write what stands for the bundle of manifests/smoke.toml: six kernels for each of two targets."""
    return write_stand_in(folder, "smoke", ("sm_100a", "sm_90a"), ("x86_64",))


def write_stand_in(folder: Path, name: str, targets: Sequence[str], hosts: Sequence[str]) -> Path:
    """Write a bundle where a build in ``folder`` would."""
    bundle = folder / "build" / "bundles" / name
    requirements = VersionRequirements(cuda_driver="12.0", tvm_ffi="0.1.15.post2", glibc="2.17")
    made = whole(
        folder, name=name, targets=tuple(targets), hosts=tuple(hosts), rankings=(), requirements=requirements
    )
    write_bundle(made, bundle)
    return bundle
