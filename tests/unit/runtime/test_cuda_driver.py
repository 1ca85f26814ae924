"""Facts about GPUs and the doctor: what is missing is said, and nothing needs a GPU to be said."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from cutlass_aot.doctor import machine as doctor
from cutlass_aot.errors import DeviceError
from cutlass_aot.manifest.toml import load_toml
from cutlass_aot.runtime.machine import cuda_driver, host
from tests.support.paths import REPOSITORY

INVALID_DEVICE, NO_DEVICE = 101, 100


class FakeDriver:
    """The driver's library on a machine with one H200; pointers are what ``ctypes.byref`` gives."""

    initialised = 0
    gpus = 1
    version = 12090

    def cuInit(self, flags: int) -> int:
        self.initialised += 1
        return 0 if self.gpus else NO_DEVICE

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 0

    def cuDeviceGet(self, gpu: Any, ordinal: int) -> int:
        gpu._obj.value = ordinal
        return 0 if ordinal < self.gpus else INVALID_DEVICE

    def cuDeviceGetAttribute(self, value: Any, attribute: int, gpu: ctypes.c_int) -> int:
        value._obj.value = {16: 132, 38: 60 << 20, 75: 9, 76: 0}[attribute]
        return 0

    def cuDeviceGetName(self, name: Any, length: int, gpu: ctypes.c_int) -> int:
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetPCIBusId(self, name: Any, length: int, gpu: ctypes.c_int) -> int:
        name.value = b"0000:1b:00.0"
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, gpu: ctypes.c_int) -> int:
        size._obj.value = 141 << 30
        return 0

    def cuGetErrorName(self, status: int, name: Any) -> int:
        names = {NO_DEVICE: b"CUDA_ERROR_NO_DEVICE", INVALID_DEVICE: b"CUDA_ERROR_INVALID_DEVICE"}
        if status not in names:
            return 1
        name._obj.value = names[status]
        return 0


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """No test knows what the driver of another has said."""
    remembered = (cuda_driver._library, cuda_driver._initialise, cuda_driver._facts)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(cuda_driver, "_library", lambda: fake)
    return fake


def test_facts_are_asked_once(driver: FakeDriver) -> None:
    for _ in range(3):
        assert cuda_driver.compute_capability(0) == (9, 0)
        assert cuda_driver.sm_count(0) == 132
        assert cuda_driver.device_count() == 1
    assert driver.initialised == 1


def test_another_process_asks_again(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_driver.compute_capability(0)
    monkeypatch.setattr("os.getpid", lambda: -1)
    cuda_driver.compute_capability(0)
    assert driver.initialised == 2


def test_the_driver_version_needs_no_gpu(driver: FakeDriver) -> None:
    driver.gpus = 0
    assert cuda_driver.driver_version() == (12, 9)
    assert driver.initialised == 0
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_NO_DEVICE to cuInit.*CUDA_VISIBLE_DEVICES"):
        cuda_driver.device_count()


def test_a_gpu_that_is_not_there(driver: FakeDriver) -> None:
    with pytest.raises(
        DeviceError, match="CUDA_ERROR_INVALID_DEVICE to cuDeviceGet: there is no GPU of this number"
    ):
        cuda_driver.compute_capability(5)


def test_other_facts(driver: FakeDriver) -> None:
    assert cuda_driver.device_name(0) == "NVIDIA H200"
    assert cuda_driver.bus_id(0) == "0000:1b:00.0"
    assert cuda_driver.device_memory(0) == 141 << 30
    assert cuda_driver.l2_bytes(0) == 60 << 20


def test_what_the_driver_has_no_name_for(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuInit", lambda flags: 4321)
    with pytest.raises(DeviceError, match="answered error 4321 to cuInit: see nvidia-smi"):
        cuda_driver.device_count()


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "DRIVER_LIBRARY", "libcuda-of-no-machine.so.1")
    for ask in (
        cuda_driver.driver_version,
        cuda_driver.device_count,
        lambda: cuda_driver.compute_capability(0),
    ):
        with pytest.raises(
            DeviceError,
            match=r"no NVIDIA driver on this machine: libcuda-of-no-machine\.so\.1 cannot be loaded",
        ) as caught:
            ask()
        assert isinstance(caught.value.__cause__, OSError)


def test_a_driver_that_lacks_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "DRIVER_LIBRARY", "libc.so.6")
    with pytest.raises(DeviceError, match="the GPU driver has no cuInit: install a newer driver"):
        cuda_driver.device_count()


def test_doctor_on_a_machine_with_a_gpu(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"apache-tvm-ffi": "0.1.15", "torch": "2.11.0+cu130"}
    monkeypatch.setattr(host, "installed_version", lambda name: versions.get(name, "1.0"))
    monkeypatch.setattr(host, "torch_cuda", lambda: "13.0")
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
    warning = report["run"].pop("warnings")
    assert "torch 2.11.0+cu130 is built for CUDA 13.0 and finds no GPU" in warning[0]
    assert report["run"] == {"possible": True, "problems": [], "targets": ["sm_90a"]}
    assert report["build"]["possible"]


def test_doctor_on_a_machine_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise DeviceError("there is no NVIDIA driver on this machine")

    monkeypatch.setattr(cuda_driver, "_library", missing)
    monkeypatch.setattr(host, "installed_version", lambda name: None)
    report = doctor.collect()
    assert not report["build"]["possible"]
    assert report["build"]["missing"] == list(doctor.BUILD_PACKAGES)
    assert not report["run"]["possible"]
    problems = report["run"]["problems"]
    assert "msgpack is not installed: pip install msgpack" in problems
    assert any(
        problem.startswith("apache-tvm-ffi is not installed, a bundle needs 0.1.x") for problem in problems
    )
    assert "there is no NVIDIA driver on this machine" in report["run"]["problems"]
    assert json.loads(json.dumps(report)) == report


def test_doctor_names_an_older_driver_by_what_it_runs(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.version = 11040
    assert doctor.collect()["run"]["targets"] == []


def test_doctor_asks_the_rule_that_a_bundle_asks(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "glibc_version", lambda: "2.12")
    run = doctor.collect()["run"]
    assert not run["possible"]
    assert run["targets"] == ["sm_90a"]
    assert any(text.startswith("glibc 2.12 is installed, a bundle needs 2.17") for text in run["problems"])


def test_doctor_here() -> None:
    report = doctor.collect()
    assert json.loads(json.dumps(report)) == report
    assert report["packages"]["runtime"]["msgpack"]


def test_doctor_knows_the_packages_of_the_project() -> None:
    project = load_toml(REPOSITORY / "pyproject.toml")["project"]

    def names(requirements: list[str]) -> list[str]:
        return sorted(
            match.group()
            for requirement in requirements
            if ";" not in requirement and (match := re.match(r"[\w-]+", requirement))
        )

    assert names(project["dependencies"]) == list(doctor.RUNTIME_PACKAGES)
    # The build side pins some of them more narrowly.
    build = set(names(project["optional-dependencies"]["build"])) - set(doctor.RUNTIME_PACKAGES)
    assert sorted(build) == list(doctor.BUILD_PACKAGES)
