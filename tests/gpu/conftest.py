"""What tests on a GPU share: the bundle of manifests/sm90.toml, where there is a GPU that runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutlass_aot
from cutlass_aot.errors import BundleError, DeviceError
from cutlass_aot.runtime import device
from cutlass_aot.runtime.compatibility import runnable_targets

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def capability():
    try:
        return device.compute_capability(0)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def bundle(capability):
    """The bundle sm90."""
    try:
        found = cutlass_aot.open(REPOSITORY / "build" / "bundles" / "sm90")
    except BundleError as error:
        pytest.skip(str(error))
    if not runnable_targets(found.targets, capability):
        pytest.skip(f"sm90 has nothing for compute capability {capability}")
    return found
