"""The device numbers of a request: those of a GPU that code generation may ask for."""

from __future__ import annotations

from cutlass_aot.errors import DeviceError
from cutlass_aot.generators.device_profiles import DeviceProfile, builtin_profiles, load_profile
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.targets import Target


def device_numbers(profile: DeviceProfile | int) -> dict[str, int]:
    """The numbers in a request, from a profile or, without one, from the SM count alone."""
    if isinstance(profile, int):
        return {"sm_count": profile}
    clusters = {f"max_active_clusters_{size}": count for size, count in profile.max_active_clusters.items()}
    return {"sm_count": profile.sm_count, **clusters}


def profile_of(target: str, sm_count: int | None = None) -> str:
    """The name of this package's profile for a target and SM count (None: any); ``""`` if there is none."""
    parsed = Target.parse(target)
    for name in builtin_profiles():
        profile = load_profile(name)
        same = profile.compute_capability == (parsed.major, parsed.minor)
        if same and sm_count in (None, profile.sm_count):
            return name
    return ""


def profile_at_hand(target: str) -> DeviceProfile | int:
    """The profile of GPU 0, or its SM count if this package has no profile for it.

    Without a GPU, where nothing is launched, the first profile for the target.
    """
    count = sm_count_at_hand()
    name = profile_of(target, count)
    if name:
        return load_profile(name)
    if count is None:
        raise DeviceError(
            f"there is no GPU, and no device profile for {target} comes with cutlass-aot: a program is "
            "captured on a GPU, and recorded without one by [[programs]] in a manifest"
        )
    return count


def sm_count_at_hand() -> int | None:
    """SM count of GPU 0; None without a GPU."""
    try:
        return cuda_driver.sm_count(0)
    except DeviceError:
        return None
