"""Known packages: the environment variables that tell them their GPU and turn their kernel caches off.

A package that calls ``cute.compile`` often has its own cache of compiled kernels. A hit there never reaches
``cute.compile``, so that nothing would be recorded or answered.

Another package adds its own description by an entry point::

    [project.entry-points."cutlass_aot.programs"]
    my_kernels = "my_kernels.aot:PACKAGE"

where ``PACKAGE`` is a :class:`ProgramPackage`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import ModuleType
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.entry_points import PROGRAMS
from cutlass_aot.schema.targets import Target


@dataclass(frozen=True, slots=True)
class ProgramPackage:
    """The environment variables that a package reads.

    Attributes:
        name: of the distribution.
        target: environment variable to its value, in which ``{target}`` stands for the target
            (``sm_90a``), ``{major}``, ``{minor}`` and ``{suffix}`` for its parts (9, 0, a) and
            ``{sm_count}`` for the number of multiprocessors.
        caches_off: environment variable to the value that turns a cache of compiled kernels off, or what
            needs the cache.
        cache_switches: ``module:NAME`` of every module-level boolean that such a variable is read into
            when the module is imported, or ``module:NAME.NAME`` of what only a cache that is on has. Empty
            where the package reads its variable at every call.
    """

    name: str
    target: Mapping[str, str] = field(default_factory=dict)
    caches_off: Mapping[str, str] = field(default_factory=dict)
    cache_switches: tuple[str, ...] = ()


KNOWN_PACKAGES = (
    ProgramPackage(
        "flash-attn-4",
        target={
            "FLASH_ATTENTION_ARCH": "sm_{major}{minor}",
            "FLASH_ATTENTION_NUM_SMS": "{sm_count}",
        },
        # Read when the module is imported. The caches themselves are made when flash_attn.cute.interface is.
        caches_off={"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"},
        cache_switches=("flash_attn.cute.cache_utils:CUTE_DSL_CACHE_ENABLED",),
    ),
    ProgramPackage(
        "quack-kernels",
        target={"QUACK_ARCH": "{major}{minor}"},
        # The environment is read when the module is imported, the module's variable at every call. torch has
        # a copy.
        caches_off={"QUACK_CACHE_ENABLED": "0"},
        cache_switches=("quack.cache:CACHE_ENABLED", "torch._vendor.quack.cache:CACHE_ENABLED"),
    ),
    ProgramPackage(
        "flashinfer-python",
        target={"FLASHINFER_CUDA_ARCH_LIST": "{major}.{minor}{suffix}"},
        caches_off={
            # It is read at every call.
            "FLASHINFER_CUTE_DSL_DISABLE_CACHE": "1",
            # Its block-sparse attention has a copy of FlashAttention-4's cache.
            "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0",
        },
        cache_switches=("flashinfer.cute_dsl.sparse.bsa_utils.cache_utils:CUTE_DSL_CACHE_ENABLED",),
    ),
    # FlashInfer has a copy of it. Its autotuning needs the cache, and a GPU to measure on.
    ProgramPackage("b12x", caches_off={"B12X_COMPILE_DISK_CACHE": "0", "B12X_AUTOTUNE": "0"}),
    ProgramPackage(
        "sglang",
        caches_off={"SGLANG_CUTE_AOT_CACHE_DIR": ""},
        # The caches are made when their modules are imported. What is off has no directory.
        cache_switches=(
            "sglang.kernels.ops.attention.flash_attn.cute.interface:"
            "_flash_attn_fwd.compile_cache._cache_path_source",
            "sglang.kernels.ops.attention.kda_decode_mtp:_DSPARK_COMPILED._cache_path_source",
        ),
    ),
    # Both are read at every call.
    ProgramPackage("nvidia-cudnn-frontend", caches_off={"CUDNN_FRONTEND_DISABLE_COMPILED_CACHE": "1"}),
)
"""Read from the sources of flash-attn-4 4.0.0b36, quack-kernels 0.6.5, flashinfer-python 0.7.2, b12x 1.5.1,
sglang 0.5.23 and nvidia-cudnn-frontend 1.32.0."""


def packages() -> tuple[ProgramPackage, ...]:
    """Every known package, sorted by name. One of an entry point replaces one of the same name above."""
    found = {package.name: package for package in KNOWN_PACKAGES}
    claimed: dict[str, str] = {}
    entry_points = metadata.entry_points(group=PROGRAMS)
    for entry_point in sorted(entry_points, key=lambda item: (item.name, item.value)):
        what = f"entry point {entry_point.name!r} of group {PROGRAMS!r} ({entry_point.value})"
        try:
            package = entry_point.load()
        except Exception as error:
            raise ManifestError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
        if not isinstance(package, ProgramPackage):
            raise ManifestError(f"{what} gives {type(package).__name__}, expected a ProgramPackage")
        if claimed.setdefault(package.name, entry_point.value) != entry_point.value:
            raise ManifestError(
                f"{what} describes {package.name}, which {claimed[package.name]} describes too: "
                "uninstall one of the two packages"
            )
        found[package.name] = package
    return tuple(package for _, package in sorted(found.items()))


def cache_environment() -> dict[str, str]:
    """The environment variables that turn the packages' own kernel caches off."""
    return {name: value for package in packages() for name, value in sorted(package.caches_off.items())}


def target_environment(target: str, sm_count: int) -> dict[str, str]:
    """The environment variables that tell the DSL and the packages their target; ValueError if it is none."""
    parsed = Target.parse(target)
    values = {"target": target, "sm_count": sm_count, **parsed._asdict()}
    environment = {"CUTE_DSL_ARCH": target}
    for package in packages():
        for name, template in sorted(package.target.items()):
            try:
                environment[name] = template.format_map(values)
            except (KeyError, ValueError, IndexError) as error:
                raise ManifestError(
                    f"{package.name}: {name} is {template!r}, expected text with "
                    f"{', '.join(f'{{{known}}}' for known in values)} alone ({error!r})"
                ) from None
    return environment


def caches_left_on(modules: Mapping[str, ModuleType] | None = None) -> list[str]:
    """The switches, as ``module:NAME``, of caches that are on because their package was imported too early.

    ``modules`` are those of this process if left out.
    """
    imported = sys.modules if modules is None else modules
    found = []
    for package in packages():
        for switch in package.cache_switches:
            module, _, names = switch.partition(":")
            value: Any = imported.get(module)
            for name in names.split("."):
                value = getattr(value, name, None)
            if value:
                found.append(switch)
    return found


def known_variables(target: str, numbers: Mapping[str, int]) -> dict[str, str]:
    """The environment variables that tell packages their target and turn their caches off."""
    return dict(_known_variables(target, numbers["sm_count"]))


@functools.lru_cache(maxsize=16)
def _known_variables(target: str, sm_count: int) -> Mapping[str, str]:
    # Every request needs it, and looking for entry points takes milliseconds.
    return {**cache_environment(), **target_environment(target, sm_count)}
