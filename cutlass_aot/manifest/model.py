"""A whole manifest: the ``[bundle]`` table, and the tables that the modules beside this one read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.kernels import KernelTable, parse_kernels
from cutlass_aot.manifest.known_bad import KnownBad, parse_known_bad
from cutlass_aot.manifest.programs import ProgramTable, RecordingTable, parse_programs, parse_recordings
from cutlass_aot.manifest.select import SelectSettings, parse_select
from cutlass_aot.manifest.toml import parse_toml, read_bytes
from cutlass_aot.manifest.validation import known, strings, text, words
from cutlass_aot.schema.bundles.catalog import BUNDLE_NAME
from cutlass_aot.schema.targets import DEFAULT_HOSTS, HOSTS, KNOWN_TARGETS, target_meant
from cutlass_aot.schema.versions import release

TOP_KEYS = ("bundle", "kernels", "known_bad", "plugins", "programs", "recordings", "select")
BUNDLE_KEYS = ("name", "version", "targets", "hosts", "device")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole manifest.

    ``version`` follows PEP 440; ``targets`` are as written; ``devices`` maps each target to its device
    profile, and is empty if there are none; ``plugins`` are modules to import for their generators;
    ``document``, the parsed TOML, is part of the plan's digest.
    """

    path: Path
    name: str
    version: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    devices: Mapping[str, str]
    plugins: tuple[str, ...]
    tables: tuple[KernelTable, ...]
    programs: tuple[ProgramTable, ...]
    recordings: tuple[RecordingTable, ...]
    select: SelectSettings
    known_bad: tuple[KnownBad, ...]
    document: Mapping[str, Any] = field(repr=False)


def device_text(devices: Mapping[str, str]) -> str:
    """Device profiles in words: the name of the only one, or each target with its own."""
    names = sorted(set(devices.values()))
    if len(names) == 1:
        return names[0]
    return ", ".join(f"{target} {name}" for target, name in sorted(devices.items()))


def check_name(name: str) -> str:
    """A name, which is refused if no bundle can have it."""
    if not BUNDLE_NAME.fullmatch(name):
        raise ManifestError(
            f"bundle.name: {name!r} is not a name: lower-case letters, digits, and '.', '_', '-' between them"
        )
    return name


def check_version(version: str) -> str:
    """A version, which is refused if it is none of a bundle (PEP 440)."""
    if not _VERSION.fullmatch(version):
        raise ManifestError(f"bundle.version: {version!r} is not a version such as 1.2.0")
    release(version)
    return version


def load_manifest(path: Path) -> Manifest:
    """Read a manifest."""
    return parse_manifest(read_bytes(path), path)


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """Parse a manifest's bytes; ``path`` is for messages and relative names."""
    try:
        return _parse(parse_toml(data, str(path)), path)
    except ManifestError as error:
        message = str(error)
        raise ManifestError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _parse(document: dict[str, Any], path: Path) -> Manifest:
    known(document, TOP_KEYS, "the top level", dict.fromkeys(BUNDLE_KEYS, "into [bundle]"))
    bundle = document.get("bundle")
    if not isinstance(bundle, dict):
        raise ManifestError("[bundle] is missing: it names the bundle, its version and its targets")
    known(bundle, BUNDLE_KEYS, "[bundle]", dict.fromkeys(TOP_KEYS, "above [bundle], at the top level"))
    name = check_name(text(bundle, "name", "bundle"))
    version = check_version(text(bundle, "version", "bundle", "0.1.0"))
    targets = words(bundle, "targets", "bundle", KNOWN_TARGETS, meant=target_meant)
    hosts = words(bundle, "hosts", "bundle", tuple(HOSTS), DEFAULT_HOSTS)
    programs = parse_programs(document.get("programs", []), targets)
    recordings = parse_recordings(document.get("recordings", []))
    tables = parse_kernels(document.get("kernels", [] if programs or recordings else None), targets)
    return Manifest(
        path=path,
        name=name,
        version=version,
        targets=targets,
        hosts=hosts,
        devices=_devices(bundle, targets) if programs or "device" in bundle else {},
        plugins=tuple(strings(document, "plugins", "", ())),
        tables=tables,
        programs=programs,
        recordings=recordings,
        select=parse_select(document["select"], targets, path.parent)
        if "select" in document
        else SelectSettings(),
        known_bad=parse_known_bad(document.get("known_bad", [])),
        document=document,
    )


def _devices(bundle: dict[str, Any], targets: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(bundle.get("device"), dict):
        return dict.fromkeys(targets, text(bundle, "device", "bundle"))
    table = bundle["device"]
    for target in table:
        if target in KNOWN_TARGETS and target not in targets:
            raise ManifestError(
                f"bundle.device names {target}, which is not among bundle.targets ({', '.join(targets)}): "
                "remove it here, or add it there"
            )
    known(table, targets, "bundle.device")
    return {target: text(table, target, "bundle.device") for target in targets}
