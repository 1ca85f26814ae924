"""The manifest of what a capture has found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from cutlass_aot.capture.found import Found, Sighting
from cutlass_aot.errors import ManifestError
from cutlass_aot.generators.device import builtin_profiles, load_profile
from cutlass_aot.generators.protocol import ScaleRequest
from cutlass_aot.generators.registry import find
from cutlass_aot.manifest.model import check_name
from cutlass_aot.schema.epilogue import EXTENTS, Epilogue
from cutlass_aot.schema.kernel import DesignValue
from cutlass_aot.schema.targets import Target


def manifest_text(found: Found, name: str, targets: Sequence[str] = ()) -> str:
    """A manifest that builds what was found; what it cannot express stands in comments at its top.

    Args:
        found: of a capture.
        name: of the bundle.
        targets: GPU code targets; those that the program compiled for if none is given.

    Raises:
        ManifestError: if nothing was found, or no target is known.
    """
    check_name(name)
    if not found.kernels:
        raise ManifestError("nothing was found that a manifest could name" + _reasons(found))
    wanted = tuple(targets) or tuple(sorted({kernel.target for kernel in found.kernels if kernel.target}))
    if not wanted:
        raise ManifestError(
            "the program compiled nothing itself, so that no target is known: name one, such as sm_90a"
        )
    lines = ["# What a program compiled, found by `cutlass-aot capture`."]
    if found.others:
        lines += ["#", "# Not expressed:"]
        lines += [f"#   {other}: {reason}" for other, reason in sorted(found.others.items())]
    plugins = sorted({kernel.plugin for kernel in found.kernels if kernel.plugin})
    lines += [f"plugins = {_value(plugins)}"] if plugins else []
    lines += [
        "",
        "[bundle]",
        f"name = {_value(name)}",
        'version = "0.1.0"',
        f"targets = {_value(list(wanted))}",
        "device = { " + ", ".join(f"{target} = {_value(profile_of(target))}" for target in wanted) + " }",
    ]
    for kernel in sorted(_merged(found.kernels, wanted), key=str):
        lines += ["", *_table(*kernel)]
    return "\n".join(lines) + "\n"


def profile_of(target: str) -> str:
    """The device profile that comes with this package for a target's GPUs.

    Raises:
        ManifestError: if there is none.
    """
    parsed = Target.parse(target)
    for name in builtin_profiles():
        if load_profile(name).compute_capability == (parsed.major, parsed.minor):
            return name
    raise ManifestError(f"no device profile for {target}: write one, and name it under `device`")


def _merged(kernels: Iterable[Sighting], wanted: Sequence[str]) -> list[tuple[Sighting, tuple[str, ...]]]:
    """Kernels with their targets: those that it was compiled for, or all that its generator serves."""
    targets: dict[Sighting, set[str]] = {}
    for kernel in kernels:
        served = find(kernel.generator).load().targets(kernel.problem.operation)
        own = {kernel.target} if kernel.target in wanted else set(wanted) if not kernel.target else set()
        targets.setdefault(kernel._replace(target=""), set()).update(own & set(served))
    return [(kernel, tuple(sorted(found))) for kernel, found in targets.items() if found]


def _table(kernel: Sighting, targets: tuple[str, ...]) -> list[str]:
    problem = kernel.problem
    lines = [
        "[[kernels]]",
        f"generator = {_value(kernel.generator)}",
        f"operation = {_value(problem.operation)}",
        f"targets = {_value(list(targets))}",
    ]
    if problem.dtypes:
        lines += [
            f"dtypes = {_value([list(problem.dtypes)])}",
            f"accumulator = {_value(problem.accumulator)}",
            f"layouts = {_value([problem.layouts])}",
        ]
    for name, scale in zip(("a_scale", "b_scale"), problem.scales, strict=True):
        lines += [f"{name} = {_scale(scale)}"] if scale is not None else []
    lines += [f"{name} = {_value(_filter(value))}" for name, value in kernel.traits]
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
    return str(value) if isinstance(value, float) else value


def _value(value: object) -> str:
    # JSON's text, numbers, booleans and lists are TOML's too.
    return json.dumps(value, ensure_ascii=False)


def _reasons(found: Found) -> str:
    return "".join(f"\n  {other}: {reason}" for other, reason in sorted(found.others.items()))
