"""Put operators that a program has chosen into a bundle, through the same stages as a manifest's kernels."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutlass_aot.errors import CompileError, GeneratorError, ManifestError, OperandError
from cutlass_aot.generators.cutlass_operators import records
from cutlass_aot.generators.device import DeviceProfile, load_profile
from cutlass_aot.manifest.model import check_name, check_version, device_text
from cutlass_aot.operators.targets import target_name, targets_of_gpu
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.schema.targets import DEFAULT_HOSTS, HOSTS, KNOWN_TARGETS

if TYPE_CHECKING:
    from cutlass_aot.builder.events import Event, Listener
    from cutlass_aot.builder.pipeline import BuildResult


def build(
    operators: Iterable[Any],
    args: Any,
    *,
    name: str,
    device: str | Mapping[str, str],
    targets: Any = None,
    hosts: Sequence[str] = DEFAULT_HOSTS,
    out: str | PathLike[str] = "build/bundles",
    store: str | PathLike[str] = "build/store",
    version: str = "0.1.0",
    jobs: int | None = None,
    timeout: float = 600.0,
    tell: Listener | None = None,
) -> BuildResult:
    """Build a bundle of operators; compiled in worker processes, without a GPU.

    What the store has is not compiled again, and what is compiled here a manifest's build finds there.

    Args:
        operators: of ``cutlass.operators.get_operators``.
        args: ``GemmArguments`` that all of them serve, or a list with one for each. Tensors on the ``meta``
            device will do: their memory is not looked at, and extents are not compiled in.
        name: the bundle's name.
        device: device profile for static schedulers, as in a manifest: ``"b200"``, the path of a ``.toml``
            file, or a table by target, ``{"sm_90a": "h200", "sm_100a": "b200"}``.
        targets: one GPU code target or several, such as ``["90a", "100a"]``. Each operator is built for all
            of them that it runs on. None is the target of the GPU that its operands are on.
        hosts: CPU architectures to link for, as in a manifest.
        out: directory under which the bundle's directory, named as the bundle, is put.
        store: directory of compiled kernels.
        version: version of the bundle's wheel.
        jobs: kernels compiled at once; None for as many as cores and memory
            allow.
        timeout: seconds one kernel may take.
        tell: called with every event of ``cutlass_aot.builder.events``; None writes to the logger
            ``cutlass_aot``.

    Returns:
        What was built; ``bundle`` is the directory to open.

    Raises:
        CompileError: if kernels did not compile, or are known to be bad; no bundle is written then.
        GeneratorError: if an operator is not one that a bundle can have.
        ManifestError: for a wrong name, version or device profile.
        OperandError: for wrong targets or hosts, or an operator that serves its arguments on none of them.
        ToolchainError: if the build side is not installed.
    """
    from cutlass_aot.builder.cores import available_workers
    from cutlass_aot.builder.pipeline import build_kernels
    from cutlass_aot.builder.recipe import Recipe
    from cutlass_aot.builder.settings import Settings

    check_name(name)
    check_version(version)
    kernels = _records(list(operators), args, device, targets)
    devices = {kernel.target: _profile_name(device, kernel.target) for kernel in kernels}
    unknown = sorted(set(hosts) - set(HOSTS))
    if unknown or not hosts:
        raise OperandError(f"hosts: expected some of {', '.join(HOSTS)}, got {', '.join(unknown) or 'none'}")
    recipe = Recipe(name, version, device_text(devices), tuple(sorted(devices)), tuple(sorted(set(hosts))))
    result = build_kernels(
        recipe,
        kernels,
        Path(out),
        Settings(Path(store), available_workers() if jobs is None else jobs, timeout, tell or _log),
    )
    if result.failures:
        lines = [
            f"{failure.kernel.name}: {failure.reason} (log: {failure.log})" for failure in result.failures
        ]
        raise CompileError(
            f"{len(result.failures)} of {result.kernels} kernels failed, so that no bundle was written; what "
            "compiled is in the store:\n" + "\n".join(lines)
        )
    return result


def _records(
    operators: Sequence[Any], args: Any, device: str | Mapping[str, str], targets: Any
) -> list[Kernel]:
    """The record of each operator for each of its targets."""
    each = list(args) if isinstance(args, (list, tuple)) else [args] * len(operators)
    if not operators or len(each) != len(operators):
        raise OperandError(
            f"expected one or more operators, and arguments for all or for each of them, got "
            f"{len(operators)} operators and {len(each)} arguments"
        )
    named = None if targets is None else _named(targets)
    profiles: dict[str, DeviceProfile] = {}
    kernels = []
    for operator, arguments in zip(operators, each, strict=True):
        reason = records.refusal(operator)
        if getattr(arguments, "epilogue", None) is not None:
            reason = reason or "its arguments have an epilogue: write it in a manifest, as a formula"
        if reason:
            raise GeneratorError(f"{operator.metadata.operator_name} cannot be put into a bundle: {reason}")
        for target in _targets_of(operator, arguments, named):
            if target not in profiles:
                profiles[target] = load_profile(_profile_name(device, target))
            kernels.append(records.record(operator, target, profiles[target]))
    unused = [target for target in named or () if target not in profiles]
    if unused:
        raise OperandError(
            f"none of the operators runs on {', '.join(unused)}: leave it out, or choose others"
        )
    return kernels


def _named(targets: Any) -> tuple[str, ...]:
    several = targets if isinstance(targets, (list, tuple, set, frozenset)) else [targets]
    return tuple(sorted({target_name(target) for target in several}))


def _targets_of(operator: Any, args: Any, named: tuple[str, ...] | None) -> list[str]:
    """Targets to build one operator for: those of the named ones that it runs on, or that of its GPU."""
    if named is None:
        candidates: tuple[str, ...] = targets_of_gpu(args, KNOWN_TARGETS)[0][:1]
    else:
        candidates = named
    answers = {target: operator.supports(args, target.removeprefix("sm_")) for target in candidates}
    found = [target for target, status in answers.items() if status]
    if not found:
        reasons = "; ".join(f"{target}: {status.error}" for target, status in answers.items())
        raise OperandError(f"{operator.metadata.operator_name} does not serve its arguments: {reasons}")
    return found


def _profile_name(device: str | Mapping[str, str], target: str) -> str:
    if isinstance(device, str):
        return device
    if target not in device:
        raise ManifestError(
            f"device: no device profile for target {target}: expected one for each, got "
            f"{', '.join(sorted(device)) or 'none'}"
        )
    return device[target]


def _log(event: Event) -> None:
    """Write how a build goes to the logger ``cutlass_aot``."""
    from cutlass_aot.builder import events

    log = logging.getLogger("cutlass_aot")
    if isinstance(event, events.Planned):
        log.info("%d kernels to build, %d present", event.missing, len(event.kernels) - event.missing)
    elif isinstance(event, events.Compiled):
        log.info("compiled %s in %.1f s", event.kernel.name, event.artifact.seconds)
    elif isinstance(event, events.Shared):
        log.info("another builder compiled %s", event.kernel.name)
    elif isinstance(event, events.Failed):
        failure = event.failure
        log.error("%s failed: %s (log: %s)", failure.kernel.name, failure.reason, failure.log)
    elif isinstance(event, events.Linking):
        log.info("linking %d libraries", event.libraries)
    elif isinstance(event, events.Notice):
        log.warning("%s", event.text)
