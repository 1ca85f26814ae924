"""GPU code targets and the hosts that load them: what runs where, in one place."""

from __future__ import annotations

import re
from typing import NamedTuple

_TARGET = re.compile(r"sm_(\d{2,3})([af]?)", re.ASCII)

KNOWN_TARGETS = (
    "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_120a",
)  # fmt: skip
"""Targets that a manifest may name: what the DSL 4.8 compiles for, and somebody deploys on."""

HOSTS = {"aarch64": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}
"""CPU architectures a bundle can be linked for, with the compiler triple of each."""

DEFAULT_HOSTS = ("x86_64",)
"""What a bundle is linked for if nothing is said: the same on whatever machine it is built."""


class Target(NamedTuple):
    """A GPU code target such as ``sm_100a``.

    Attributes:
        major: major compute capability.
        minor: minor compute capability.
        suffix: ``""`` runs on the same major from this minor on; ``"f"`` on the family, which is the same
            major from this minor on; ``"a"`` on exactly this compute capability.
            Source: CUDA Programming Guide, "Feature Set Compiler Targets".
    """

    major: int
    minor: int
    suffix: str

    @classmethod
    def parse(cls, name: str) -> Target:
        """Parse ``sm_90a`` and the like.

        Raises:
            ValueError: for anything else.
        """
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
        if self.suffix == "a":
            return (self.major, self.minor) == capability
        return self.major == capability[0] and self.minor <= capability[1]

    def preference(self, capability: tuple[int, int]) -> tuple[int, int]:
        """Sort key among targets that run: exact, then family, then portable; nearest minor first."""
        return ("af".index(self.suffix) if self.suffix else 2, capability[1] - self.minor)


def minimum_cuda(target: Target) -> tuple[int, int]:
    """The first CUDA version whose driver runs cubins of ``target``.

    Source: CUDA release notes (Ampere 11.0, Ada and Hopper 11.8, sm_100/sm_120 12.8, sm_103 12.9).
    """
    if target.major >= 10:
        return (12, 9) if target.number == 103 or target.suffix == "f" else (12, 8)
    if target.number >= 89:
        return (11, 8)
    return (11, 1) if target.number == 86 else (11, 0)
