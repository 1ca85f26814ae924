"""Device profiles: numbers of a GPU model that static schedulers compile in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.toml import load_toml
from cutlass_aot.schema.codec import Codec, Form, codec_of
from cutlass_aot.schema.drivers import compute_capability_of, models_named
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.words import did_you_mean

CLUSTER_SIZES = (1, 2, 4, 8, 16)


def _by_text(_: Any) -> Codec:
    """Codec of a map from whole numbers to whole numbers; the stored keys are text."""
    inner = codec_of(Mapping[str, int])

    def read(data: Any, what: str) -> dict[int, int]:
        return {int(size): count for size, count in inner.read(data, what).items()}

    return Codec(read, lambda counts: {str(size): count for size, count in counts.items()}, inner.plain)


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One GPU model, as far as code generation depends on it.

    The numbers bound the grid of a persistent kernel: a wrong one costs speed, never correctness, except
    zero, which can hang a kernel and is refused.

    Attributes:
        name: name in manifests, such as ``b200``.
        gpu: full name of the model.
        max_active_clusters: cluster size in blocks to the number of such clusters that run at once. A size
            that is missing is too large for the device.
        measured: whether the table was read off the device, or derived.
        source: where the numbers come from.
    """

    name: str
    gpu: str
    compute_capability: tuple[int, int]
    sm_count: int
    max_active_clusters: Annotated[Mapping[int, int], Form(_by_text)]
    measured: bool
    source: str

    def active_clusters(self, cluster_size: int) -> int:
        """Clusters of ``cluster_size`` blocks that run at once."""
        try:
            return self.max_active_clusters[cluster_size]
        except KeyError:
            known = ", ".join(str(size) for size in sorted(self.max_active_clusters))
            raise ManifestError(
                f"device profile {self.name!r} has no max_active_clusters for clusters of "
                f"{cluster_size} blocks (it has {known}): add the value, or filter on `cluster` if they "
                "do not fit on the device"
            ) from None


_FIELDS = {field.name for field in fields(DeviceProfile)}


def builtin_profiles() -> tuple[str, ...]:
    """Names of the profiles that come with the package, sorted."""
    folder = resources.files("cutlass_aot.generators") / "devices"
    return tuple(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")))


def load_profile(name: str, base: Path | None = None) -> DeviceProfile:
    """A built-in profile by name, or that of a file whose name ends in ``.toml``, relative to ``base``."""
    if name.endswith(".toml"):
        path = (base or Path()) / name
        return _parse(load_toml(path), str(name))
    known = builtin_profiles()
    if name not in known:
        raise ManifestError(
            f"bundle.device: unknown device profile {name!r}: expected one of {', '.join(known)}, or the "
            f"path of a .toml file{_meant(name)}"
        )
    return _builtin(name)


def profile_for(target: str) -> DeviceProfile:
    """A built-in profile of a GPU that runs code of a target; where there is none, of any GPU."""
    parsed = Target.parse(target)
    profiles = [_builtin(name) for name in builtin_profiles()]
    fitting = [profile for profile in profiles if parsed.runs_on(profile.compute_capability)]
    return (fitting or profiles)[0]


def _meant(name: str) -> str:
    """The end of a message about a profile that is not there: the one of this model, or of one alike."""
    profiles = [_builtin(profile) for profile in builtin_profiles()]
    capability = compute_capability_of(name)
    own = [profile.name for profile in profiles if models_named(name, [profile.gpu])]
    alike = [profile.name for profile in profiles if profile.compute_capability == capability]
    if own or capability is None:
        return did_you_mean(own[0] if own else name, builtin_profiles())
    have = f"{' and '.join(alike)} {'has' if len(alike) == 1 else 'have'}"
    return f"; {have} its compute capability, and may be taken for it" if alike else ""


def _builtin(name: str) -> DeviceProfile:
    resource = resources.files("cutlass_aot.generators") / "devices" / f"{name}.toml"
    with resources.as_file(resource) as path:
        return _parse(load_toml(path), name)


def _parse(table: Mapping[str, Any], what: str) -> DeviceProfile:
    missing, unknown = sorted(_FIELDS - table.keys()), sorted(table.keys() - _FIELDS)
    if missing or unknown:
        raise ManifestError(
            f"device profile {what}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}; "
            f"a profile has exactly the fields {', '.join(sorted(_FIELDS))}"
        )

    def positive(value: Any, field: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ManifestError(
                f"device profile {what}: {field} is {value!r}, expected a whole number of at least 1 "
                "(zero has made kernels hang)"
            )
        return value

    clusters = table["max_active_clusters"]
    sizes = [str(size) for size in CLUSTER_SIZES]
    if not isinstance(clusters, dict) or not clusters or set(clusters) != set(sizes[: len(clusters)]):
        raise ManifestError(
            f"device profile {what}: max_active_clusters needs a value for each of the cluster sizes "
            f"{', '.join(sizes)}, up to the largest that fits on the device"
        )
    if not isinstance(table["measured"], bool):
        raise ManifestError(f"device profile {what}: measured is true or false")
    capability = str(table["compute_capability"]).split(".")
    if len(capability) != 2 or not all(part.isdigit() for part in capability):
        raise ManifestError(f'device profile {what}: compute_capability is text such as "10.0"')
    return DeviceProfile(
        name=str(table["name"]),
        gpu=str(table["gpu"]),
        compute_capability=(int(capability[0]), int(capability[1])),
        sm_count=positive(table["sm_count"], "sm_count"),
        max_active_clusters={
            int(size): positive(value, f"max_active_clusters.{size}")
            for size, value in sorted(clusters.items(), key=lambda item: int(item[0]))
        },
        measured=table["measured"],
        source=str(table["source"]),
    )
