"""What a build tells while it goes: a record an event. Who listens decides what to show of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.builder.records import Failure, PlannedKernel
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Enumerating:
    """The generators are being asked ``problems`` questions."""

    problems: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """The heuristic is being asked which kernels are the fastest for ``shapes`` shapes."""

    shapes: int


@dataclass(frozen=True, slots=True)
class Running:
    """A program is being run, to record what it compiles."""

    command: str
    target: str


@dataclass(frozen=True, slots=True)
class Ran:
    """A program has been run.

    Attributes:
        command: what was run.
        target: for which target.
        requests: how many distinct requests it made that compile.
        compiled: how many of them were compiled now.
        failed: how many others did not compile.
    """

    command: str
    target: str
    requests: int
    compiled: int
    failed: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is made; compiling starts with the kernels that have no artifact."""

    kernels: tuple[PlannedKernel, ...]
    warnings: tuple[str, ...]

    @property
    def missing(self) -> int:
        """How many kernels the store lacks."""
        return sum(item.artifact is None for item in self.kernels)


@dataclass(frozen=True, slots=True)
class UpToDate:
    """The bundle of ``kernels`` kernels is there already and nothing it follows from has changed."""

    kernels: int


@dataclass(frozen=True, slots=True)
class Started:
    """A worker has begun to compile a kernel."""

    kernel: Kernel


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel was compiled and stored."""

    kernel: Kernel
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class Shared:
    """Another builder has stored a kernel that this one was about to compile."""

    kernel: Kernel
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class Failed:
    """A kernel failed; the others go on."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Linking:
    """Everything is compiled; of so many ``libraries`` in all, some are still to be linked."""

    libraries: int


@dataclass(frozen=True, slots=True)
class Linked:
    """A library is there.

    Attributes:
        library: stem of its file.
        kernels: how many it holds.
        size: its bytes.
        seconds: how long linking took; None if the store had it.
        host: CPU architecture that it is for.
    """

    library: str
    kernels: int
    size: int
    seconds: float | None
    host: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth knowing that stops nothing, such as a remote store that cannot be reached."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The build is over.

    Attributes:
        bundle: the bundle's directory.
        kernels: number of kernels requested.
        compiled: how many were compiled now.
        failed: how many failed; no bundle was written if any did.
        written: whether the bundle's directory was written.
    """

    bundle: Path
    kernels: int
    compiled: int
    failed: int
    written: bool


Event = (
    Enumerating | Ranking | Running | Ran | Planned | UpToDate | Started | Compiled | Shared | Failed
    | Linking | Linked | Notice | Finished
)  # fmt: skip
Listener = Callable[[Event], None]
"""Called with each event as it happens: in the builder's own thread, but a :class:`Notice` in any."""
