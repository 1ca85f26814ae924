"""Records that the stages of a build pass to each other."""

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
    """One question to a generator: all kernels for a problem on a GPU target.

    The problem's operands have no extents. ``table`` is the index of the manifest's table that asks.
    """

    table: int
    generator: GeneratorReference
    problem: Problem
    target: str

    @property
    def name(self) -> str:
        """The question as messages name it."""
        return f"{self.problem} on {self.target}"


@dataclass(frozen=True, slots=True)
class Sources:
    """The generators that a manifest uses, by name: how to import each, an instance, and its version.

    A version contains the digest of the sources. ``code`` has the distributions whose code is in its kernels.
    """

    references: Mapping[str, GeneratorReference]
    instances: Mapping[str, Generator]
    versions: Mapping[str, str]
    code: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """One kernel of a plan.

    Attributes:
        key: the kernel's key in the store.
        artifact: what the store has for it; None if it is to be built.
        why: why it is to be built, or ``"present"``.
        failed: why it failed to compile before with the same toolchain, or ``""``.
    """

    kernel: Kernel
    key: str
    artifact: Artifact | None
    why: str
    failed: str = ""


def _by_kernel(_: Any) -> Codec:
    """Encode requests as a list: each names its kernel, whose digest is the key."""
    codec = codec_of(tuple[CompiledRequest, ...])

    def read(data: Any, what: str) -> dict[str, CompiledRequest]:
        return {item.request.kernel.digest: item for item in codec.read(data, what)}

    return Codec(read, lambda requests: codec.to_plain(requests.values()), codec.plain)


@dataclass(frozen=True, slots=True)
class Selection:
    """The kernels that a manifest asks for.

    Attributes:
        kernels: those of generators by name, then those of programs by name.
        warnings: about what the manifest does not get.
        rankings: the heuristic's, at most one for a group, ordered by group.
        requests: of programs, by the digest of the kernel that serves each.
        tables: of the manifest, by the digest of a kernel that one asks for: the first, as errors name it.
    """

    kernels: tuple[Kernel, ...]
    warnings: tuple[str, ...]
    rankings: tuple[Annotated[Ranking, AS_FILE], ...] = ()
    requests: Annotated[Mapping[str, CompiledRequest], Form(_by_kernel)] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A kernel that did not compile.

    Attributes:
        reason: a line that says what, and often further lines: where in the kernel's source, and advice.
        log: file with the compiler's output.
        machine: whether the machine is to blame (memory, disk, time, a signal): it may compile next time.
        before: whether it failed in an earlier build and was not compiled again.
    """

    kernel: Kernel
    reason: str
    log: Path
    machine: bool = False
    before: bool = False

    @property
    def common_reason(self) -> str:
        """The reason without the kernel's own symbol: equal for kernels that fail alike."""
        return self.reason.replace(self.kernel.symbol, "")

    @property
    def headline(self) -> str:
        """The reason's first line."""
        return headline(self.reason)

    @property
    def detail(self) -> str:
        """The reason's further lines: where in the kernel's source, and the compiler's advice."""
        return self.reason.strip().partition("\n")[2]


def headline(reason: str) -> str:
    """The first line of a reason."""
    return reason.strip().partition("\n")[0].rstrip()
