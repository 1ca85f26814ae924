"""Test the toolchain: build one small kernel with every step of a build, in a temporary store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from cutlass_aot.builder import events
from cutlass_aot.builder.build import build_kernels
from cutlass_aot.builder.events import Event
from cutlass_aot.builder.plan.recipe import Recipe
from cutlass_aot.builder.settings import Settings
from cutlass_aot.bundle.unpack import unpack_bundle
from cutlass_aot.errors import CompileError, CutlassAotError, LinkError
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.simt_f64_gemm.generator import SimtF64Gemm
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.runtime.machine.installation import command_for
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import DEFAULT_HOSTS, HOSTS

TARGET, PROFILE = "sm_90a", "h200"
_LOAD_SECONDS = 120
_LOG_LINES = 30

# In a process of its own, which a broken library may crash. Only loading the library is timed: importing
# tvm_ffi imports torch.
_LOAD = """
import sys, time, tvm_ffi
begin = time.monotonic()
tvm_ffi.load_module(sys.argv[1])[sys.argv[2]]
print(time.monotonic() - begin)
"""

_ADVICE = {
    "find": "install what is missing: {install}",
    "import": "the DSL cannot be imported; install it again: {install}",
    "compile": "the DSL is installed and does not compile; install what this release pins: {install}",
    "link": "install ziglang, nvidia-cuda-runtime, nvidia-cuda-crt and apache-tvm-ffi again: {install}",
    "slow": "the machine is busy, or the compiler hangs: --timeout gives it more seconds",
    "load": "the library was built and this machine cannot load it: see the C library above (glibc 2.17 or "
    "newer is needed), and install apache-tvm-ffi again",
}


@dataclass(frozen=True, slots=True)
class ToolchainTest:
    """The result of a test.

    Attributes:
        kernel: name of the kernel that was built.
        seconds: how long each step that worked took, in order: ``find`` the packages and digest their files,
            ``import`` the DSL, ``compile``, ``link`` and write the bundle, ``load``.
        failed: the step that failed; ``""`` if none did.
        problem: the error's message.
        advice: what to do about it.
    """

    kernel: str
    seconds: dict[str, float]
    failed: str = ""
    problem: str = ""
    advice: str = ""


@dataclass(slots=True)
class _Clock:
    """Measures the steps by the build's events."""

    begin: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)
    step: str = "find"

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.Planned):
            self._next("import")
        elif isinstance(event, events.Compiled):
            waited = time.monotonic() - self.begin
            self.seconds["import"] = max(0.0, waited - event.artifact.seconds)
            self.seconds["compile"] = event.artifact.seconds
            self.begin, self.step = time.monotonic(), "link"
        elif isinstance(event, events.Failed):
            self.step = "compile"
        elif isinstance(event, events.Finished) and not event.failed:
            self._next("load")

    def _next(self, step: str) -> None:
        now = time.monotonic()
        self.seconds[self.step] = now - self.begin
        self.begin, self.step = now, step


def run_toolchain_test(*, timeout: float) -> ToolchainTest:
    """Compile, audit, link and load one kernel, as a build does, and keep nothing.

    ``timeout`` is how many seconds compiling may take.
    """
    kernel = smallest_kernel()
    clock = _Clock()
    with temporary_folder() as folder:
        try:
            bundle = _build(kernel, folder, timeout, clock)
            if os.uname().machine in HOSTS:
                clock.seconds["load"] = _load(bundle, kernel)
        except CutlassAotError as error:
            advice = _ADVICE["slow" if str(error).startswith("timed out") else clock.step]
            advice = advice.format(install=command_for("build", again=True))
            return ToolchainTest(kernel.name, clock.seconds, clock.step, str(error), advice)
    return ToolchainTest(kernel.name, clock.seconds)


def smallest_kernel() -> Kernel:
    """The kernel of this package that compiles fastest."""
    problem = Problem("gemm", ("f64", "f64", "f64"), "tnt", "f64")
    return next(iter(SimtF64Gemm().enumerate(problem, TARGET, load_profile(PROFILE, Path()))))


def _build(kernel: Kernel, folder: Path, timeout: float, clock: _Clock) -> Path:
    machine = os.uname().machine
    hosts = (machine,) if machine in HOSTS else DEFAULT_HOSTS
    recipe = Recipe("toolchain-test", "0", PROFILE, (kernel.target,), hosts)
    settings = Settings(folder / "store", 1, timeout, clock)
    result = build_kernels(recipe, [kernel], folder / "bundles", settings)
    for failure in result.failures:
        # The log names its kernel above the first empty line.
        _, _, words = failure.log.read_text("utf-8", "replace").partition("\n\n")
        lines = words.rstrip().splitlines()[-_LOG_LINES:]
        raise CompileError("\n".join([failure.headline, *(f"  {line}" for line in lines)]))
    return result.bundle


def _load(bundle: Path, kernel: Kernel) -> float:
    """Seconds taken to load the kernel's library and find its function."""
    plain = bundle.with_name("plain")
    (unpacked,) = unpack_bundle(bundle, plain)
    library = plain / unpacked["libraries"][os.uname().machine]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, str(library), kernel.symbol],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LinkError(f"loading the library took longer than {_LOAD_SECONDS} s") from None
    if done.returncode:
        raise LinkError(
            f"the process that loads the library ended with {done.returncode}: {done.stderr.strip()}"
        )
    return float(done.stdout)
