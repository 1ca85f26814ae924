"""Facts of a build that its events do not have: the manifest and the installed versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot import __version__
from cutlass_aot.doctor.machine import BUILD_PACKAGES, RUNTIME_PACKAGES
from cutlass_aot.manifest.model import device_text, load_manifest
from cutlass_aot.runtime.machine.host import installed_version


@dataclass(frozen=True, slots=True)
class About:
    """The manifest, and what it is built with.

    ``manifest`` is its file's name without the directory, ``version`` that of the wheel, and ``versions`` has
    every package that takes part in building.
    """

    manifest: str
    bundle: str
    version: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    device: str
    versions: Mapping[str, str]


def about_build(manifest_path: Path) -> About:
    """Read a manifest for a page about its build; nothing of the build side is imported."""
    manifest = load_manifest(manifest_path)
    packages = {name: installed_version(name) for name in sorted({*BUILD_PACKAGES, *RUNTIME_PACKAGES})}
    return About(
        manifest=manifest_path.name,
        bundle=manifest.name,
        version=manifest.version,
        targets=tuple(sorted(manifest.targets)),
        hosts=tuple(sorted(manifest.hosts)),
        device=device_text(manifest.devices),
        versions={
            "cutlass-aot": __version__,
            "Python": platform.python_version(),
            **{name: version for name, version in packages.items() if version is not None},
        },
    )
