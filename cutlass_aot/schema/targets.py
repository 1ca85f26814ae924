"""Names of GPU code targets and hosts, and which GPUs and drivers run code of a target.

Each generator declares the targets that it compiles for.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

_TARGET = re.compile(r"sm_(\d{2,3})([af]?)", re.ASCII)

KNOWN_TARGETS = (
    "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_120a",
)  # fmt: skip
"""Targets that a manifest may name: those that DSL 4.8 compiles for and that are deployed."""

HOSTS = {"aarch64": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}
"""CPU architectures that a bundle can be linked for, with the compiler triple of each."""

DEFAULT_HOSTS = ("x86_64",)
"""Default hosts of a bundle, which do not depend on the machine that builds it."""


class Target(NamedTuple):
    """A GPU code target such as ``sm_100a``, which is major 10, minor 0, suffix ``"a"``.

    Suffix ``""`` runs on the same major from this minor on, ``"f"`` on the family, which is the same major
    from this minor on, and ``"a"`` on exactly this compute capability.
    Source: CUDA Programming Guide, "Feature Set Compiler Targets".
    """

    major: int
    minor: int
    suffix: str

    @classmethod
    @cache
    def parse(cls, name: str) -> "Target":
        """Parse a name such as ``sm_90a``; ValueError for anything else."""
        match = _TARGET.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is not a target such as sm_90a, sm_100a or sm_100f")
        number = int(match.group(1))
        return cls(number // 10, number % 10, match.group(2))

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"

    @property
    def number(self) -> int:
        """Compute capability as one number, ``100`` for 10.0."""
        return self.major * 10 + self.minor

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a cubin of this target runs on a GPU of this compute capability."""
        own = (self.major, self.minor)
        # A cubin for a Tegra GPU runs on that one only, and a Tegra GPU runs no other cubins.
        # Source: CUDA C++ Programming Guide, "Binary Compatibility".
        if self.suffix == "a" or not _TEGRA.isdisjoint((own, capability)):
            return own == capability
        return self.major == capability[0] and self.minor <= capability[1]

    @property
    def kind(self) -> str:
        """Which GPUs run its cubins: ``architecture-specific``, ``family`` or ``portable``."""
        return {"a": "architecture-specific", "f": "family", "": "portable"}[self.suffix]

    def preference(self, capability: tuple[int, int]) -> tuple[int, int]:
        """Sort key of targets that run: exact, then family, then portable; nearest minor first."""
        return ("af".index(self.suffix) if self.suffix else 2, capability[1] - self.minor)


_FIRST_CUDA = (
    (80, (11, 0)), (86, (11, 1)), (89, (11, 8)), (90, (11, 8)), (100, (12, 8)), (101, (12, 8)),
    (103, (12, 9)), (110, (13, 0)), (120, (12, 8)), (121, (12, 9)),
)  # fmt: skip
"""Compute capability as one number, and the first CUDA version whose driver supports it."""

_OLDER = (70, 75, 87)
"""Further compute capabilities of GPUs: V100, T4, Orin. Source: as of :mod:`cutlass_aot.schema.drivers`."""

_WRITTEN = re.compile(r"(?:sm|compute)?[_ -]?(\d{1,2})[.]?(\d)([af]?)", re.ASCII | re.IGNORECASE)


def target_meant(found: object, known: Iterable[str]) -> str:
    """The end of a message about a target that is none of the known: which of them may be meant instead.

    Other letters of one number look alike, and a misspelt number does; but GPUs of another number, such as
    sm_120a beside sm_100a, run other code. Those that run on the GPU are named then, also for its model.
    """
    from cutlass_aot.schema.drivers import compute_capability_of
    from cutlass_aot.schema.words import did_you_mean

    names = list(known)
    match = _WRITTEN.fullmatch(found) if isinstance(found, str) else None
    capability = (int(match[1]), int(match[2])) if match else compute_capability_of(str(found))
    alike = [name for name in names if capability == Target.parse(name)[:2]]
    if match and alike:
        return f"; did you mean {' or '.join(map(repr, alike))}?"
    if capability is None or 10 * capability[0] + capability[1] not in (*_OLDER, *dict(_FIRST_CUDA)):
        return did_you_mean(found, names)
    running = [name for name in names if Target.parse(name).runs_on(capability)]
    verb = "run" if len(running) > 1 else "runs"
    where = f"on GPUs of compute capability {capability[0]}.{capability[1]}"
    return f"; {' and '.join(running) or 'none of these'} {verb} {where}"


_FAMILIES_SINCE = (12, 9)
_TEGRA = frozenset({(8, 7)})


def minimum_cuda(target: Target) -> tuple[int, int]:
    """The first CUDA version whose driver runs cubins of ``target``.

    A target that is not in the table has that of the next older one.

    Source: CUDA release notes (Ampere 11.0 and 11.1, Ada and Hopper 11.8, sm_100 and sm_120 12.8, sm_103,
    sm_121 and targets of families 12.9, sm_110 13.0).
    """
    known = [cuda for number, cuda in _FIRST_CUDA if number <= target.number]
    first = known[-1] if known else _FIRST_CUDA[0][1]
    return max(first, _FAMILIES_SINCE) if target.suffix == "f" else first
