"""Events that a build reports; the listener decides what to show of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cutlass_aot.builder.records import Failure, PlannedKernel
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Enumerating:
    """The generators are being asked ``problems`` questions."""

    problems: int


@dataclass(frozen=True, slots=True)
class Importing:
    """The process that workers are forked from imports the DSL, which takes seconds."""


@dataclass(frozen=True, slots=True)
class Imported:
    """It has imported the DSL, after so many seconds; what was begun before goes on."""

    seconds: float


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
class Recording:
    """A program that is being run for a target has made more requests, or more of them have been compiled.

    ``requests`` counts the distinct requests so far, ``compiled`` those of them compiled now, and ``failed``
    those that did not compile.
    """

    command: str
    target: str
    requests: int
    compiled: int
    failed: int


@dataclass(frozen=True, slots=True)
class Ran:
    """A program has been run for a target.

    ``requests`` counts the distinct requests that compiled, ``compiled`` those of them compiled now, and
    ``failed`` those that did not compile.
    """

    command: str
    target: str
    requests: int
    compiled: int
    failed: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is made; compiling starts with the kernels that have no artifact.

    ``tables`` has the manifest's table that asks for a kernel, by its digest; kernels of programs have none.
    ``failed_before`` counts the kernels that failed in an earlier build and are not compiled again.
    """

    kernels: tuple[PlannedKernel, ...]
    warnings: tuple[str, ...]
    tables: Mapping[str, str] = field(default_factory=dict)
    failed_before: int = 0

    @property
    def missing(self) -> int:
        """How many kernels are to be compiled."""
        return sum(item.artifact is None for item in self.kernels) - self.failed_before


@dataclass(frozen=True, slots=True)
class UpToDate:
    """The bundle of ``kernels`` kernels exists, and nothing that it depends on has changed."""

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
    """All kernels are compiled; some of the ``libraries`` libraries are still to be linked."""

    libraries: int


@dataclass(frozen=True, slots=True)
class Linked:
    """A library was linked, or found in the store.

    ``library`` is the stem of its file's name, ``kernels`` and ``size`` count its kernels and bytes, and
    ``host`` is its CPU architecture. ``seconds`` is how long linking took; None if the store had it.
    """

    library: str
    kernels: int
    size: int
    seconds: float | None
    host: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth knowing that does not stop the build, such as a remote store that cannot be reached."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The build is over; ``written`` is whether the bundle's directory was written.

    ``kernels`` counts those requested, ``compiled`` those compiled now. If any ``failed``, no bundle was
    written.
    """

    bundle: Path
    kernels: int
    compiled: int
    failed: int
    written: bool


Event = (
    Enumerating | Importing | Imported | Ranking | Running | Recording | Ran | Planned | UpToDate | Started
    | Compiled | Shared | Failed | Linking | Linked | Notice | Finished
)  # fmt: skip
Listener = Callable[[Event], None]
"""Called with each event as it happens: in the builder's own thread, but a :class:`Notice` in any."""
