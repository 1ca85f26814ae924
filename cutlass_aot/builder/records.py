"""What the stages of a build hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cutlass_aot.generators.protocol import Generator, Problem
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.schema.codec import AS_FILE, Codec, Form, codec_of
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


def _by_kernel(_: Any) -> Codec:
    """Requests, which tell the kernels that they are of."""
    codec = codec_of(tuple[CompiledRequest, ...])

    def read(data: Any, what: str) -> dict[str, CompiledRequest]:
        return {item.request.kernel.digest: item for item in codec.read(data, what)}

    return Codec(read, lambda requests: codec.to_plain(requests.values()), codec.plain)


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
    rankings: tuple[Annotated[Ranking, AS_FILE], ...] = ()
    requests: Annotated[Mapping[str, CompiledRequest], Form(_by_kernel)] = field(default_factory=dict)


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
