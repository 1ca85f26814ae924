"""What tests on a GPU share: bundles that were built beforehand, where there is a GPU that runs them."""

from __future__ import annotations

import pytest

import cutlass_aot
from cutlass_aot.errors import BundleError, DeviceError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="session")
def capability():
    try:
        return cuda_driver.compute_capability(0)
    except DeviceError as error:
        pytest.skip(str(error))


def opened(name, capability):
    """A bundle that was built beforehand, if this GPU runs it."""
    try:
        found = cutlass_aot.open(REPOSITORY / "build" / "bundles" / name)
    except BundleError as error:
        pytest.skip(str(error))
    if not runnable_targets(found.targets, capability):
        pytest.skip(f"{name} has nothing for compute capability {capability}")
    return found


@pytest.fixture(scope="session")
def bundle(capability):
    """The bundle sm90."""
    return opened("sm90", capability)


@pytest.fixture(scope="session")
def smoke(capability):
    """The bundle smoke."""
    return opened("smoke", capability)
