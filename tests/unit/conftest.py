"""What several tests share: a launcher, which is compiled once, and a GPU as its driver tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.errors import DeviceError
from cutlass_aot.runtime.launching import tensors
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.bundles.catalog import FileReference
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.tuning.costs import Machine
from tests.support.native import LAUNCHER, compile_files
from tests.support.replace import replace


@pytest.fixture(scope="session")
def launcher_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A bundle's real launcher, compiled once a session."""
    return compile_files(tmp_path_factory.mktemp("launcher"), "launcher", LAUNCHER)


@pytest.fixture
def launcher(tmp_path: Path, launcher_library: bytes) -> Library:
    """A launcher as an open bundle has it."""
    data = compress(launcher_library, 3)
    (tmp_path / "launcher.so.zst").write_bytes(data)
    return Library(tmp_path, FileReference("launcher.so.zst", len(data), digest(data)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """GPUs as the driver would describe them, ``count`` of a kind; tests change the facts."""
    facts: dict[str, Any] = {
        "capability": (9, 0), "driver": (13, 0), "sms": 132, "name": "NVIDIA H200", "count": 1,
        "mhz": 1980, "bandwidth": 4917,
    }  # fmt: skip

    def ask(fact: str) -> Any:
        def answer(ordinal: int = 0) -> Any:
            if not 0 <= ordinal < facts["count"]:
                raise DeviceError("there is no GPU of this number")
            return facts[fact]

        return answer

    monkeypatch.setattr(cuda_driver, "device_count", lambda: facts["count"])
    monkeypatch.setattr(cuda_driver, "compute_capability", ask("capability"))
    monkeypatch.setattr(cuda_driver, "driver_version", ask("driver"))
    monkeypatch.setattr(cuda_driver, "sm_count", ask("sms"))
    monkeypatch.setattr(cuda_driver, "device_name", ask("name"))
    monkeypatch.setattr(
        cuda_driver, "machine", lambda ordinal: Machine(ask("sms")(ordinal), facts["mhz"], facts["bandwidth"])
    )
    return facts


@pytest.fixture
def claims(gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's tensors are described as on GPU 0."""
    real = tensors._describe_torch

    def claimed(tensor: Any) -> Any:
        found = real(tensor)
        return found if found.device is None else replace(found, device=0)

    monkeypatch.setattr(tensors, "_describe_torch", claimed)
