"""What this machine has, lacks, can build and can run, as plain data.

It must answer where things are broken: with no GPU, no driver, no compiler and no build side. Nothing of the
build side is imported; of packages only the versions are read.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from cutlass_aot import __version__
from cutlass_aot.doctor.dependencies import differing, expected_versions
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled, toolkit_for
from cutlass_aot.doctor.environment import environment
from cutlass_aot.doctor.facts import facts_record, this_machine
from cutlass_aot.doctor.warnings import warnings
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.runtime.launching import unpacking
from cutlass_aot.runtime.machine import cuda_driver, host
from cutlass_aot.runtime.machine.compatibility import ANYTHING, Machine, decide
from cutlass_aot.runtime.machine.installation import command_for
from cutlass_aot.runtime.search_path import installed_bundles
from cutlass_aot.schema.targets import HOSTS, KNOWN_TARGETS

RUNTIME_PACKAGES = ("apache-tvm-ffi", "click", "msgpack", "zstandard")
BUILD_PACKAGES = (
    "jinja2",
    "nvidia-cuda-crt",
    "nvidia-cuda-runtime",
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-operators",
    "nvidia-matmul-heuristics",
    "rich",
    "torch",
    "ziglang",
)
"""What the extra ``build`` installs, beside those; a test holds it against pyproject.toml."""


def collect() -> dict[str, Any]:
    """Facts about this machine; every value is plain data, and what could not be told says why.

    Keys: ``cutlass_aot``, ``python``, ``host``, ``glibc``, ``libc``, ``packages`` (``runtime`` and ``build``:
    name to version or None), ``differing`` (packages of other versions than this release asks for),
    ``driver`` (``cuda`` and ``release``, or ``problem``), ``gpus`` (``devices``, or ``problem``),
    ``bundles``, ``without_bundles`` (of the search path: what is missing or holds none, and why),
    ``environment`` (each variable of this package that is set, with ``name``, ``value`` and
    ``problems``), ``unpacked`` (``directory``, ``held_bytes``, ``limit_bytes``, ``problem``: where unpacked
    GPU code is kept), ``build`` (``possible``, ``missing``, ``advice``, ``targets``,
    ``other_targets``: what has to be installed for those that the DSL here does not compile for,
    ``toolkit``: the CUDA version of its libraries, ``hosts``), ``run``
    (``possible``, ``problems``, ``targets``, ``warnings``), ``facts`` (what compatibility is decided by:
    :mod:`cutlass_aot.doctor.facts`).
    """
    packages = {
        "runtime": {name: host.installed_version(name) for name in RUNTIME_PACKAGES},
        "build": {name: host.installed_version(name) for name in BUILD_PACKAGES},
    }
    driver = _driver()
    gpus = _gpus()
    here = this_machine()
    installed = installed_bundles()
    return {
        "cutlass_aot": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "host": os.uname().machine,
        "glibc": host.glibc_version(),
        "libc": here.libc,
        "packages": packages,
        "differing": differing({**packages["runtime"], **packages["build"]}, expected_versions()),
        "driver": driver,
        "gpus": gpus,
        "bundles": [
            {
                "name": bundle.name,
                "version": bundle.version,
                "distribution": bundle.distribution,
                "path": str(bundle.path) if bundle.path else None,
                "problem": bundle.problem,
            }
            for bundle in installed
            if bundle.exists
        ],
        "without_bundles": [bundle.problem for bundle in installed if not bundle.exists],
        "environment": [
            {**variable._asdict(), "problems": list(variable.problems)} for variable in environment()
        ],
        "unpacked": _unpacked(),
        "build": _buildable(packages["build"]),
        "run": _runnable(packages["runtime"], driver, gpus, here),
        "facts": facts_record(here),
    }


def _unpacked() -> dict[str, Any]:
    found = unpacking.state()
    return {
        "directory": str(found.directory) if found.directory else None,
        "held_bytes": found.held,
        "limit_bytes": found.limit,
        "problem": found.problem,
    }


def _driver() -> dict[str, Any]:
    try:
        major, minor = cuda_driver.driver_version()
    except CutlassAotError as error:
        return {"problem": str(error)}
    if not major:
        return {"problem": "the driver answers no CUDA version: it is not loaded"}
    return {"cuda": f"{major}.{minor}", "release": cuda_driver.driver_release()}


def _gpus() -> dict[str, Any]:
    try:
        devices = []
        for ordinal in range(cuda_driver.device_count()):
            major, minor = cuda_driver.compute_capability(ordinal)
            devices.append(
                {
                    "ordinal": ordinal,
                    "name": cuda_driver.device_name(ordinal),
                    "compute_capability": f"{major}.{minor}",
                    "sm_count": cuda_driver.sm_count(ordinal),
                    "memory_bytes": cuda_driver.device_memory(ordinal),
                }
            )
    except CutlassAotError as error:
        return {"problem": str(error)}
    return {"devices": devices} if devices else {"problem": "there is no GPU that this process may use"}


def _buildable(packages: dict[str, str | None]) -> dict[str, Any]:
    missing = sorted(name for name, version in packages.items() if version is None)
    toolkit = dsl_toolkit()
    lacking = not_compiled(KNOWN_TARGETS, toolkit)
    return {
        "possible": not missing,
        "missing": missing,
        "advice": command_for("build"),
        "targets": [name for name in KNOWN_TARGETS if name not in lacking] if not missing else [],
        "other_targets": {name: toolkit_for(name) for name in lacking} if not missing else {},
        "toolkit": toolkit,
        "hosts": sorted(HOSTS) if not missing else [],
    }


def _runnable(
    packages: dict[str, str | None], driver: dict[str, Any], gpus: dict[str, Any], here: Machine
) -> dict[str, Any]:
    """Whether kernels of any target of this release can run here, and what is missing for a launch."""
    answer = decide(here, ANYTHING)
    missing = [
        f"{name} is not installed: pip install {name}"
        for name, version in sorted(packages.items())
        if version is None and name != "apache-tvm-ffi"
    ]
    # The driver's own message says more than that there is none.
    own = {"driver": driver.get("problem"), "gpus": gpus.get("problem")}
    reasons = [*answer.reasons, *(reason for gpu in answer.gpus for reason in gpu.reasons)]
    problems = missing + [own.get(reason.about) or str(reason) for reason in reasons]
    targets = {target for gpu in answer.gpus for target in gpu.targets}
    return {
        "possible": answer.accepted and not missing,
        "problems": list(dict.fromkeys(problems)),
        "targets": [name for name in KNOWN_TARGETS if name in targets],
        "warnings": warnings(here) if answer.accepted else [],
    }
