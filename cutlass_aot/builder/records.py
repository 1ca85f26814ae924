"""What the stages of a build hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.generators.protocol import Generator, Problem
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.schema.encoding import MALFORMED
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.requests.request import CompiledRequest
from cutlass_aot.schema.tuning.ranking import Ranking


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One question to a generator: all kernels of a problem on a target.

    Attributes:
        table: index of the manifest's table.
        generator: where the generator stands.
        problem: operands without extents.
        target: GPU code target.
    """

    table: int
    generator: GeneratorReference
    problem: Problem
    target: str

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.problem} on {self.target}"


@dataclass(frozen=True, slots=True)
class Sources:
    """The generators that a manifest uses.

    Attributes:
        references: where each stands, by name.
        instances: one of each, by name.
        versions: version and source digest of each, by name.
    """

    references: Mapping[str, GeneratorReference]
    instances: Mapping[str, Generator]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """One kernel of a plan.

    Attributes:
        kernel: the record.
        key: its key in the store.
        artifact: what the store has for it, or None if it is to be built.
        why: why it is to be built, or ``"present"``.
        failed: what it failed with before, with the same toolchain, or ``""``.
    """

    kernel: Kernel
    key: str
    artifact: Artifact | None
    why: str
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The kernels a manifest asks for.

    Attributes:
        kernels: by name.
        warnings: about what the manifest does not get.
        rankings: what a model says of their speed, at most one a group, by group.
        requests: of programs, by the digest of the kernel that answers each.
    """

    kernels: tuple[Kernel, ...]
    warnings: tuple[str, ...]
    rankings: tuple[Ranking, ...] = ()
    requests: Mapping[str, CompiledRequest] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return {
            "kernels": [kernel.to_record() for kernel in self.kernels],
            "warnings": list(self.warnings),
            "rankings": [ranking.to_bytes() for ranking in self.rankings],
            "requests": [item.to_record() for item in self.requests.values()],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Selection:
        """Read what :meth:`to_record` gave."""
        try:
            return cls(
                tuple(Kernel.from_record(kernel) for kernel in record["kernels"]),
                tuple(str(warning) for warning in record["warnings"]),
                tuple(Ranking.from_bytes(data, "a ranking of the plan") for data in record["rankings"]),
                {
                    item.request.kernel.digest: item
                    for item in map(CompiledRequest.from_record, record["requests"])
                },
            )
        except MALFORMED as error:
            raise CorruptFile(f"a selection is malformed: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Failure:
    """A kernel that did not compile.

    Attributes:
        kernel: its record.
        reason: one line.
        log: file with the compiler's own words.
        machine: whether the machine is to blame (memory, disk, time, a signal): it may compile next time.
        before: whether it failed in an earlier build, and was not compiled again.
    """

    kernel: Kernel
    reason: str
    log: Path
    machine: bool = False
    before: bool = False
