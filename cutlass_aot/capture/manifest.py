"""The manifest of what a capture has found."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cutlass_aot.capture.found import Found, Sighting
from cutlass_aot.errors import ManifestError
from cutlass_aot.generators.device import builtin_profiles, load_profile
from cutlass_aot.generators.protocol import ScaleRequest
from cutlass_aot.generators.registry import find
from cutlass_aot.manifest.keys import unknown
from cutlass_aot.manifest.model import check_name
from cutlass_aot.schema.epilogue import EXTENTS, Epilogue
from cutlass_aot.schema.kernel import DesignValue
from cutlass_aot.schema.targets import KNOWN_TARGETS, Target

NO_PROFILE = "name-a-device-profile"
"""Stands for a device profile that nobody has named: no build accepts it."""

NO_TARGET = "name-a-target"
"""Stands for a target that nobody has named: no build accepts it."""

Tables = dict[Sighting, set[str]]
"""Kernels without their own target, to the targets that they are built for."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def manifest_text(
    found: Found, name: str, targets: Sequence[str] = (), devices: Mapping[str, str] | None = None
) -> str:
    """A manifest that builds what was found; what it cannot express stands in comments at its top.

    Where no target is known, or no device profile of one, a placeholder stands for it, with a comment: a
    build refuses it and says what is expected.

    Args:
        found: of a capture.
        name: of the bundle.
        targets: GPU code targets; those that the program compiled for if none is given.
        devices: device profiles by target; of other targets, one that comes with this package.

    Raises:
        ManifestError: if nothing was found that is for one of the targets, or a name is wrong.
    """
    check_wishes(name, targets, devices or {})
    if not found.kernels:
        raise ManifestError("nothing was found that a manifest could name" + _listed(found.others))
    wanted = targets_of(found, targets)
    tables, left_out = _sorted_out(found.kernels, wanted)
    notes = {**found.others, **left_out}
    if not tables:
        raise ManifestError(f"nothing that was found is for {', '.join(wanted)}" + _listed(notes))
    lines = ["# What a program compiled, found by `cutlass-aot capture`."]
    if notes:
        lines += ["#", "# Not expressed:"]
        lines += [f"#   {_line(other)}: {_line(reason)}" for other, reason in sorted(notes.items())]
    plugins = sorted({kernel.plugin for kernel in tables if kernel.plugin})
    lines += [f"plugins = {_value(plugins)}"] if plugins else []
    lines += ["", "[bundle]", f"name = {_value(name)}", 'version = "0.1.0"', *_targets(wanted, devices or {})]
    for kernel, its_targets in sorted(tables.items(), key=str):
        lines += ["", *_table(kernel, tuple(sorted(its_targets)))]
    return "\n".join(lines) + "\n"


def check_wishes(
    name: str, targets: Sequence[str], devices: Mapping[str, str], folder: Path = Path()
) -> None:
    """What can be refused before anything was found.

    Args:
        name: of the bundle.
        targets: GPU code targets.
        devices: device profiles by target.
        folder: where the manifest is to lie: relative paths of device profiles start there.

    Raises:
        ManifestError: if one of them is none.
    """
    check_name(name)
    for target in (*targets, *devices):
        if target not in KNOWN_TARGETS:
            raise ManifestError(unknown("target", target, KNOWN_TARGETS))
    for target, device in devices.items():
        if targets and target not in targets:
            raise ManifestError(f"device: {target} is none of the targets {', '.join(targets)}")
        load_profile(device, folder)


def targets_of(found: Found, targets: Sequence[str]) -> tuple[str, ...]:
    """Targets of a manifest: those that are named, else those that the program compiled for; maybe none."""
    compiled_for = {kernel.target for kernel in found.kernels}
    return tuple(dict.fromkeys(targets)) or tuple(sorted(compiled_for & set(KNOWN_TARGETS)))


def left_out(found: Found, targets: Sequence[str] = ()) -> dict[str, str]:
    """Kernels that were found and are for none of the targets, in words, to the reason."""
    return _sorted_out(found.kernels, targets_of(found, targets))[1]


def profile_of(target: str) -> str:
    """The device profile that comes with this package for a target's GPUs; ``""`` if there is none."""
    parsed = Target.parse(target)
    for name in builtin_profiles():
        if load_profile(name).compute_capability == (parsed.major, parsed.minor):
            return name
    return ""


def write_manifest(text: str, path: Path) -> None:
    """Write a manifest at once: a reader sees what was there before, or all of the new one.

    Raises:
        ManifestError: if the disk refuses; what was there stays.
    """
    staging = None
    try:
        descriptor, staging = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            # A path of the program may hold bytes that are no text.
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(descriptor)
        Path(staging).replace(path)
        staging = None
    except OSError as error:
        raise ManifestError(f"{path}: the manifest cannot be written: {error.strerror or error}") from error
    finally:
        if staging is not None:
            Path(staging).unlink(missing_ok=True)


def _targets(wanted: Sequence[str], devices: Mapping[str, str]) -> list[str]:
    """The lines of a manifest's targets and device profiles."""
    if not wanted:
        return [
            "# The program compiled nothing itself, so that no target is known: name some, such as sm_90a,",
            f"# and for each a device profile: {', '.join(builtin_profiles())}, or the path of a .toml file.",
            f"targets = {_value([NO_TARGET])}",
            f"device = {_value(NO_PROFILE)}",
        ]
    profiles = {target: devices.get(target) or profile_of(target) or NO_PROFILE for target in wanted}
    missing = [target for target in wanted if profiles[target] == NO_PROFILE]
    lines = [f"targets = {_value(list(wanted))}"]
    if missing:
        lines.append(
            f"# No device profile for {', '.join(missing)} is at hand: name the path of a .toml file."
        )
    inner = ", ".join(f"{target} = {_value(profile)}" for target, profile in profiles.items())
    return [*lines, f"device = {{ {inner} }}"]


def _sorted_out(kernels: Iterable[Sighting], wanted: Sequence[str]) -> tuple[Tables, dict[str, str]]:
    """Kernels with their targets, and those that are for none of ``wanted``, with the reason.

    A kernel's targets are those that it was compiled for, or all that it is declared for, or those that its
    generator serves. Without any target wanted, all are in, and none is named.
    """
    tables: Tables = {}
    others: Tables = {}
    for kernel in kernels:
        if kernel.target:
            served = {kernel.target}
        else:
            # Only generators that come with this package leave it to be asked.
            served = set(kernel.targets or find(kernel.generator).load().targets(kernel.problem.operation))
        chosen = served & set(wanted)
        place = tables if chosen or not wanted else others
        place.setdefault(kernel._replace(target=""), set()).update(chosen or served if wanted else ())
    reasons = {
        _words(kernel): f"it is for {', '.join(sorted(served))}, not for {', '.join(wanted)}"
        for kernel, served in others.items()
        if kernel not in tables
    }
    return tables, reasons


def _words(kernel: Sighting) -> str:
    """A kernel in words for a note."""
    traits = ", ".join(f"{name} {_filter(value)}" for name, value in kernel.traits)
    return f"{kernel.generator}: {kernel.problem}{', ' if traits else ''}{traits}"


def _table(kernel: Sighting, targets: tuple[str, ...]) -> list[str]:
    problem = kernel.problem
    lines = [
        "[[kernels]]",
        f"generator = {_value(kernel.generator)}",
        f"operation = {_value(problem.operation)}",
    ]
    lines += [f"targets = {_value(list(targets))}"] if targets else []
    if problem.dtypes:
        lines += [
            f"dtypes = {_value([list(problem.dtypes)])}",
            f"accumulator = {_value(problem.accumulator)}",
            f"layouts = {_value([problem.layouts])}",
        ]
    for name, scale in zip(("a_scale", "b_scale"), problem.scales, strict=True):
        lines += [f"{name} = {_scale(scale)}"] if scale is not None else []
    lines += [f"{_key(name)} = {_value(_filter(value))}" for name, value in kernel.traits]
    if problem.epilogue is not None:
        lines += _epilogue(problem.epilogue)
    return lines


def _scale(scale: ScaleRequest) -> str:
    return f"{{ dtype = {_value(scale.dtype)}, block = {scale.block} }}"


def _epilogue(epilogue: Epilogue) -> list[str]:
    words = {extents: word for word, extents in EXTENTS.items()}
    lines = [f"epilogue = {_value(epilogue.formula)}", "[kernels.operands]"]
    for operand in epilogue.operands:
        entries = {"dtype": operand.dtype, "extents": words[operand.extents]}
        entries |= {"layout": operand.layout} if operand.layout else {}
        entries |= {"transport": operand.transport} if operand.transport else {}
        inner = ", ".join(f"{key} = {_value(value)}" for key, value in entries.items())
        lines.append(f"{operand.name} = {{ {inner} }}")
    return lines


def _filter(value: DesignValue) -> str | int | bool:
    """A design value as a filter that accepts this one alone."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, str):
        # A filter's text is a pattern, in which brackets make a character stand for itself.
        return re.sub(r"([*?\[])", r"[\1]", value)
    return str(value) if isinstance(value, float) else value


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: object) -> str:
    # JSON's text, numbers, booleans and lists are TOML's too, but for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _line(text: str) -> str:
    """Text in one line of a comment, which may hold no control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _listed(notes: Mapping[str, str]) -> str:
    return "".join(f"\n  {_line(other)}: {_line(reason)}" for other, reason in sorted(notes.items()))
