"""Facts about GPUs and the doctor: what is missing is said, and nothing needs a GPU to be said."""

from __future__ import annotations

import json
import re
import types
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.errors import DeviceError
from cutlass_aot.manifest.toml import load_toml
from cutlass_aot.runtime import device, doctor, machine


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101


class FakeDriver(types.SimpleNamespace):
    """The driver's bindings on a machine with one H200."""

    CUdevice_attribute = types.SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="sms",
    )
    initialised = 0
    gpus = 1

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        self.initialised += 1
        return (Status.CUDA_SUCCESS if self.gpus else Status.CUDA_ERROR_NO_DEVICE,)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, 12090

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.gpus

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return (
            (Status.CUDA_SUCCESS, ordinal)
            if ordinal < self.gpus
            else (Status.CUDA_ERROR_INVALID_DEVICE, None)
        )

    def cuDeviceGetAttribute(self, attribute: str, gpu: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, {"major": 9, "minor": 0, "sms": 132}[attribute]

    def cuDeviceGetName(self, length: int, gpu: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, b"NVIDIA H200".ljust(length, b"\0")

    def cuDeviceTotalMem(self, gpu: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, 141 << 30


@pytest.fixture(autouse=True)
def forget() -> None:
    device._initialised.cache_clear()
    device._facts.cache_clear()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(device, "_bindings", lambda: fake)
    return fake


def test_facts_are_asked_once(driver: FakeDriver) -> None:
    for _ in range(3):
        assert device.compute_capability(0) == (9, 0)
        assert device.sm_count(0) == 132
        assert device.device_count() == 1
    assert driver.initialised == 1


def test_another_process_asks_again(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    device.compute_capability(0)
    monkeypatch.setattr("os.getpid", lambda: -1)
    device.compute_capability(0)
    assert driver.initialised == 2


def test_the_driver_version_needs_no_gpu(driver: FakeDriver) -> None:
    driver.gpus = 0
    assert device.driver_version() == (12, 9)
    assert driver.initialised == 0
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_NO_DEVICE to cuInit.*CUDA_VISIBLE_DEVICES"):
        device.device_count()


def test_a_gpu_that_is_not_there(driver: FakeDriver) -> None:
    with pytest.raises(
        DeviceError, match="CUDA_ERROR_INVALID_DEVICE to cuDeviceGet: there is no GPU of this number"
    ):
        device.compute_capability(5)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise RuntimeError("libcuda.so.1 not found")

    monkeypatch.setattr(
        device, "_bindings", lambda: types.SimpleNamespace(cuInit=refuse, cuDriverGetVersion=refuse)
    )
    monkeypatch.setattr(device, "DRIVER_LIBRARY", "libcuda-of-no-machine.so.1")
    for ask in (device.driver_version, device.device_count, lambda: device.compute_capability(0)):
        with pytest.raises(DeviceError) as caught:
            ask()
        assert str(caught.value) == (
            "there is no NVIDIA driver on this machine: libcuda-of-no-machine.so.1 was not found; "
            "install the GPU driver"
        )
        assert isinstance(caught.value.__cause__, RuntimeError)
    # Where there is a driver, the bindings' own words say more.
    monkeypatch.setattr(device, "DRIVER_LIBRARY", "libc.so.6")
    with pytest.raises(DeviceError, match=r"cannot be asked cuInit \(RuntimeError: .*not found\)"):
        device.device_count()


def test_doctor_on_a_machine_with_a_gpu(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: "1.0")
    report = doctor.collect()
    assert report["driver"]["cuda"] == "12.9"
    assert report["gpus"]["devices"] == [
        {
            "ordinal": 0,
            "name": "NVIDIA H200",
            "compute_capability": "9.0",
            "sm_count": 132,
            "memory_bytes": 141 << 30,
        }
    ]
    assert report["run"] == {"possible": True, "problems": [], "targets": ["sm_90a"]}
    assert report["build"]["possible"]


def test_doctor_on_a_machine_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise DeviceError("the package cuda-python cannot be imported")

    monkeypatch.setattr(device, "_bindings", missing)
    monkeypatch.setattr(machine, "installed_version", lambda name: None)
    report = doctor.collect()
    assert not report["build"]["possible"]
    assert report["build"]["missing"] == list(doctor.BUILD_PACKAGES)
    assert not report["run"]["possible"]
    assert "apache-tvm-ffi is not installed: pip install apache-tvm-ffi" in report["run"]["problems"]
    assert "the package cuda-python cannot be imported" in report["run"]["problems"]
    assert json.loads(json.dumps(report)) == report


def test_doctor_names_an_older_driver_by_what_it_runs(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (Status.CUDA_SUCCESS, 11040))
    assert doctor.collect()["run"]["targets"] == []


def test_doctor_here() -> None:
    report = doctor.collect()
    assert json.loads(json.dumps(report)) == report
    assert report["packages"]["runtime"]["msgpack"]


def test_doctor_knows_the_packages_of_the_project() -> None:
    project = load_toml(Path(__file__).parents[2] / "pyproject.toml")["project"]

    def names(requirements: list[str]) -> list[str]:
        return sorted(
            match.group()
            for requirement in requirements
            if ";" not in requirement and (match := re.match(r"[\w-]+", requirement))
        )

    assert names(project["dependencies"]) == list(doctor.RUNTIME_PACKAGES)
    assert names(project["optional-dependencies"]["build"]) == list(doctor.BUILD_PACKAGES)
