"""What a benchmark ran on: machine, date and versions."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "cutlass-aot",
    "apache-tvm-ffi",
    "msgpack",
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-operators",
    "torch",
)


@dataclass(frozen=True)
class Machine:
    """Where and when a benchmark ran.

    Attributes:
        date: day, as YYYY-MM-DD, UTC.
        processor: model of the CPU, and how many this process may use.
        system: kernel and C library.
        gpu: model of GPU 0, and its driver; empty where there is none.
        versions: of Python and of the installed packages that matter.
    """

    date: str
    processor: str
    system: str
    gpu: str
    versions: dict[str, str]

    def markdown(self) -> str:
        """One paragraph."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        gpu = f"{self.gpu}; " if self.gpu else ""
        return f"{self.date}; {gpu}{self.processor}; {self.system}; {versions}."


def about() -> Machine:
    """Describe the machine, the day and the versions."""
    versions = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return Machine(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        processor=f"{_processor()}, {len(os.sched_getaffinity(0))} CPUs",
        system=f"{platform.system()}, {' '.join(platform.libc_ver())}",
        gpu=_gpu(),
        versions=versions,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpu() -> str:
    from cutlass_aot.errors import DeviceError
    from cutlass_aot.runtime.machine import cuda_driver

    try:
        major, minor = cuda_driver.driver_version()
        return f"{cuda_driver.device_name(0)}, driver {cuda_driver.driver_release()} (CUDA {major}.{minor})"
    except DeviceError:
        return ""
