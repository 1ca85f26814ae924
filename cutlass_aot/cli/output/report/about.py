"""Facts of a build that its events do not have: the manifest and the installed versions."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cutlass_aot import __version__
from cutlass_aot.doctor.machine import BUILD_PACKAGES, RUNTIME_PACKAGES
from cutlass_aot.manifest.model import device_text, load_manifest
from cutlass_aot.runtime.machine.host import installed_version
from cutlass_aot.schema.words import plural


@dataclass(frozen=True, slots=True)
class About:
    """The manifest, and what it is built with.

    ``manifest`` is its file's name without the directory, ``version`` that of the wheel, and ``versions`` has
    every package that takes part in building. ``date`` is when the build began, ``commit`` the one of the
    repository that has the manifest, ``""`` without one, and ``machine`` the host that builds.
    """

    manifest: str
    bundle: str
    version: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    device: str
    versions: Mapping[str, str]
    date: str = ""
    commit: str = ""
    machine: str = ""


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
        date=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
        commit=_commit(manifest_path),
        machine=f"{platform.node()}, {platform.machine()}, {plural(os.cpu_count() or 1, 'CPU')}",
        versions={
            "cutlass-aot": __version__,
            "Python": platform.python_version(),
            **{name: version for name, version in packages.items() if version is not None},
        },
    )


def _commit(manifest: Path) -> str:
    """The commit of the repository that a manifest is in, and whether files were changed since."""
    folder = str(manifest.absolute().parent)
    head = _git(folder, "rev-parse", "HEAD").strip()
    changed = head and _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{head}, and files were changed since" if changed else head


def _git(folder: str, *arguments: str) -> str:
    """What git prints; ``""`` if it is not installed, or the folder is in no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""
