"""Can a bundle be used on this machine? Pure rules over facts; a refusal says what was found and needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cutlass_aot.schema.catalog import Catalog, Needs
from cutlass_aot.schema.operands import ACCEPTED, Rejected, Verdict
from cutlass_aot.schema.targets import Target, minimum_cuda
from cutlass_aot.schema.versions import major_minor, release


def check_host(hosts: Sequence[str], machine: str) -> Verdict:
    """Whether a bundle has libraries for a CPU architecture (as ``uname -m`` names it)."""
    if machine in hosts:
        return ACCEPTED
    return Rejected(
        f"this machine is {machine}, the bundle has libraries for {', '.join(hosts) or 'no host'}: "
        f"build it with {machine} among its hosts"
    )


def check_tvm_ffi(needed: str, installed: str | None) -> Verdict:
    """Whether the installed apache-tvm-ffi has the ABI that a bundle was linked against.

    The ABI changed within 0.1.x, so that major and minor have to agree, and an older patch is refused.
    """
    major, minor = major_minor(needed)
    wanted = f"the bundle needs {major}.{minor}.x from {needed} on"
    advice = f'pip install "apache-tvm-ffi>={needed},<{major}.{minor + 1}"'
    if installed is None:
        return Rejected(f"apache-tvm-ffi is not installed, {wanted}: {advice}")
    try:
        found = release(installed)
    except ValueError:
        return Rejected(f"apache-tvm-ffi has the unreadable version {installed!r}, {wanted}: {advice}")
    if major_minor(installed) != (major, minor) or found < release(needed):
        return Rejected(f"apache-tvm-ffi {installed} is installed, {wanted}: {advice}")
    return ACCEPTED


def check_glibc(needed: str, installed: str | None) -> Verdict:
    """Whether the C library is a glibc at least as new as the one that a bundle was linked for."""
    if installed is None:
        return Rejected(f"the C library is not glibc, the bundle needs glibc {needed} or newer")
    if release(installed) < release(needed):
        return Rejected(
            f"glibc {installed} is installed, the bundle needs {needed} or newer: "
            "build it for an older glibc, or use a newer system"
        )
    return ACCEPTED


def check_machine(catalog: Catalog, *, machine: str, tvm_ffi: str | None, glibc: str | None) -> Verdict:
    """Everything that can be told without a GPU; the first refusal."""
    for verdict in (
        check_host(catalog.hosts, machine),
        check_tvm_ffi(catalog.needs.tvm_ffi, tvm_ffi),
        check_glibc(catalog.needs.glibc, glibc),
    ):
        if not verdict:
            return verdict
    return ACCEPTED


def check_driver(needs: Needs, target: str, driver_cuda: tuple[int, int]) -> Verdict:
    """Whether a driver runs the bundle's CUDA runtime and cubins of ``target``.

    Args:
        needs: of the bundle. The CUDA runtime that is linked in runs on any driver of its major version
            or a newer one (CUDA minor version compatibility).
        target: GPU code target, such as ``sm_90a``.
        driver_cuda: CUDA version of the driver.
    """
    runtime_major = major_minor(needs.cuda_driver)[0]
    wanted = max(minimum_cuda(Target.parse(target)), (runtime_major, 0))
    if driver_cuda >= wanted:
        return ACCEPTED
    return Rejected(
        f"the driver supports CUDA {driver_cuda[0]}.{driver_cuda[1]}, {target} cubins with CUDA runtime "
        f"{needs.cuda_driver} need CUDA {wanted[0]}.{wanted[1]} or newer: upgrade the GPU driver"
    )


def runnable_targets(targets: Iterable[str], capability: tuple[int, int]) -> list[str]:
    """Targets whose cubins run on a GPU of this compute capability: exact, then family, then portable."""
    parsed = {name: Target.parse(name) for name in targets}
    return sorted(
        (name for name, target in parsed.items() if target.runs_on(capability)),
        key=lambda name: (parsed[name].preference(capability), name),
    )


def check_targets(targets: Sequence[str], capability: tuple[int, int], gpu: str) -> Verdict:
    """Whether any target of a bundle runs on a GPU; ``gpu`` names it in the reason."""
    if runnable_targets(targets, capability):
        return ACCEPTED
    major, minor = capability
    return Rejected(
        f"{gpu} has compute capability {major}.{minor}, the bundle has kernels for "
        f"{', '.join(targets) or 'no target'}: build it with a target such as "
        f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    )
