"""Decide whether a bundle can be used on a machine, with every reason: pure functions over facts.

:func:`decide` is the only such rule: bundles use it for the machine they are on, and ``cutlass-aot doctor``
for this machine or another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cutlass_aot.schema.bundles.catalog import Catalog, VersionRequirements
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.targets import HOSTS, KNOWN_TARGETS, Target, minimum_cuda
from cutlass_aot.schema.versions import is_version, major_minor, order, release, without_post

MINIMUM_PYTHON = "3.10"
"""Oldest Python of this package."""

GLIBC, MUSL = "glibc", "musl"


class Gpu(NamedTuple):
    """A GPU, as its driver describes it.

    ``name`` is that of its model. ``capability`` is None if the model's name should decide it.
    """

    name: str
    capability: tuple[int, int] | None = None


class Driver(NamedTuple):
    """An NVIDIA driver, by the newest CUDA version that it reports, its release (``580.159.04``), or both."""

    cuda: tuple[int, int] | None = None
    release: str | None = None


class Machine(NamedTuple):
    """The facts about a machine that decide.

    Attributes:
        host: CPU architecture, as ``uname -m`` names it.
        libc: the C library, such as ``glibc 2.36`` or ``musl``; None if it is another.
        tvm_ffi: version of apache-tvm-ffi; None if it is not installed.
        python: version of Python; None, which refuses nothing, if it is not known.
        torch: version of torch; None, which refuses nothing, if it is not installed.
        torch_cuda: CUDA version that torch was built for; None if it is not known, or for none.
        driver: None if there is none.
        gpus: those that a process may use; None if they do not matter.
    """

    host: str
    libc: str | None
    tvm_ffi: str | None
    python: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    driver: Driver | None = None
    gpus: tuple[Gpu, ...] | None = None


class Requirements(NamedTuple):
    """What a bundle needs: targets and hosts of which it has some, and lowest versions.

    ``name`` is what reasons call it.
    """

    targets: Sequence[str]
    hosts: Sequence[str]
    versions: VersionRequirements
    name: str = "the bundle"

    @classmethod
    def of(cls, catalog: Catalog) -> Requirements:
        """The requirements of a bundle, from its catalog."""
        return cls(catalog.targets, catalog.hosts, catalog.requirements)


ANYTHING = Requirements(
    KNOWN_TARGETS,
    tuple(HOSTS),
    VersionRequirements(cuda_driver="12.0", tvm_ffi="0.1.15", glibc="2.17"),
    "a bundle",
)
"""Everything that this release can build, to ask what a machine could use."""


class Reason(NamedTuple):
    """Why something cannot be used: the problem, a sentence without a full stop, and advice.

    ``about`` is the fact that is the reason: ``host``, ``libc``, ``tvm_ffi``, ``python``, ``driver``,
    ``gpus``, or ``gpu`` for a single GPU.
    """

    about: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.problem}: {self.advice}"


class GpuAnswer(NamedTuple):
    """The targets that run on one GPU with the machine's driver, best first: exact, family, portable.

    ``reasons`` says why there are none; empty if there are.
    """

    gpu: Gpu
    targets: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def target(self) -> str | None:
        """The best target that runs on it; None if none does."""
        return self.targets[0] if self.targets else None


class Answer(NamedTuple):
    """Whether something can be used on a machine.

    ``reasons`` are those against the machine as a whole. ``gpus`` are in the order of the facts, and empty if
    GPUs do not matter.
    """

    reasons: tuple[Reason, ...]
    gpus: tuple[GpuAnswer, ...]

    @property
    def accepted(self) -> bool:
        """Whether nothing refuses the machine, and at least one of its GPUs has a target."""
        return not self.reasons and (not self.gpus or any(gpu.targets for gpu in self.gpus))

    @property
    def why(self) -> str:
        """All reasons in one line; empty if there are none."""
        found = [*self.reasons, *(reason for gpu in self.gpus for reason in gpu.reasons)]
        return "; ".join(dict.fromkeys(map(str, found)))


def decide(machine: Machine, requirements: Requirements) -> Answer:
    """Decide whether a bundle can be used on a machine and on which GPUs; if not, give every reason.

    Nothing is looked up on the machine that this runs on. Versions compare as numbers, and one that cannot be
    read is a reason.
    """
    reasons = [
        *_host(machine.host, requirements),
        *_tvm_ffi(machine.tvm_ffi, requirements),
        *_libc(machine.libc, requirements),
        *_python(machine.python),
    ]
    if machine.gpus is None:
        return Answer(tuple(reasons), ())
    cuda = driver_cuda(machine.driver)
    reasons += _driver(machine, cuda, requirements)
    # Without a driver no GPU is visible, and the driver is the reason.
    if not machine.gpus and machine.driver is not None:
        problem = "there is no GPU that a process may use"
        reasons.append(Reason("gpus", problem, "see nvidia-smi, and CUDA_VISIBLE_DEVICES"))
    gpus = tuple(_gpu(gpu, cuda, requirements) for gpu in machine.gpus)
    return Answer(tuple(reasons), gpus)


def runnable_targets(targets: Iterable[str], capability: tuple[int, int]) -> list[str]:
    """Targets whose cubins run on a GPU of this compute capability: exact, then family, then portable.

    Names of unknown targets are left out.
    """
    parsed = {}
    for name in targets:
        with contextlib.suppress(ValueError):
            parsed[name] = Target.parse(name)
    return sorted(
        (name for name, target in parsed.items() if target.runs_on(capability)),
        key=lambda name: (parsed[name].preference(capability), name),
    )


def driver_cuda(driver: Driver | None) -> tuple[int, int] | None:
    """Newest CUDA version of a driver: what it reports, else by its release; None if neither is known."""
    if driver is None:
        return None
    if driver.cuda is not None:
        return driver.cuda
    from cutlass_aot.schema.drivers import cuda_of_driver

    try:
        return cuda_of_driver(driver.release or "")
    except ValueError:
        return None


def _host(found: str, requirements: Requirements) -> Iterator[Reason]:
    if found not in requirements.hosts:
        hosts = ", ".join(requirements.hosts) or "no host"
        problem = f"this machine is {found}, {requirements.name} has libraries for {hosts}"
        advice = f"build it with {found} among its hosts"
        if found not in HOSTS:
            advice = f"use a machine of {' or '.join(HOSTS)}"
        yield Reason("host", problem, advice)


def _tvm_ffi(found: str | None, requirements: Requirements) -> Iterator[Reason]:
    """The ABI changed within 0.1.x, so major and minor have to agree, and an older release is refused."""
    needed = without_post(requirements.versions.tvm_ffi)
    major, minor = major_minor(needed)
    range_ = f"{requirements.name} needs {major}.{minor}.x from {needed} on"
    advice = f'pip install "apache-tvm-ffi>={needed},<{major}.{minor + 1}"'
    if found is None:
        yield Reason("tvm_ffi", f"apache-tvm-ffi is not installed, {range_}", advice)
        return
    if not is_version(found):
        yield Reason("tvm_ffi", f"apache-tvm-ffi has the unreadable version {found!r}, {range_}", advice)
    elif major_minor(found) != (major, minor) or order(found) < order(needed):
        yield Reason("tvm_ffi", f"apache-tvm-ffi {found} is installed, {range_}", advice)


def _libc(found: str | None, requirements: Requirements) -> Iterator[Reason]:
    needed = requirements.versions.glibc
    name, _, text = (found or "").partition(" ")
    required = f"{requirements.name} needs glibc {needed} or newer"
    if name != GLIBC:
        problem = "the C library is not glibc" if name != MUSL else "the C library is musl"
        advice = "use a system with glibc, such as Debian, Ubuntu or Red Hat"
        yield Reason("libc", f"{problem}, {required}", advice)
        return
    version = version_of(text)
    if version is None:
        yield Reason("libc", f"glibc has the unreadable version {text!r}, {required}", "see ldd --version")
    elif version < release(needed):
        yield Reason(
            "libc",
            f"glibc {text} is installed, {requirements.name} needs {needed} or newer",
            "build it for an older glibc, or use a newer system",
        )


def _python(found: str | None) -> Iterator[Reason]:
    if found is None:
        return
    version = version_of(found)
    if version is None or version < release(MINIMUM_PYTHON):
        problem = f"Python {found} is installed, cutlass-aot needs {MINIMUM_PYTHON} or newer"
        yield Reason("python", problem, "use a newer Python")


def _driver(machine: Machine, cuda: tuple[int, int] | None, requirements: Requirements) -> Iterator[Reason]:
    if cuda is not None and cuda >= major_minor(requirements.versions.cuda_driver):
        return
    by_target = cuda_by_target(requirements)
    running = [runnable_targets(by_target, c) for c in map(_capability, machine.gpus or ()) if c]
    known = [min(by_target[name] for name in targets) for targets in running if targets]
    lowest = max(known) if known else min(by_target.values())
    required = f"{requirements.name} needs one for CUDA {text_of(lowest)} or newer"
    # Where nobody knows which GPU there is, each target says what it needs.
    more = {} if known else {name: other for name, other in by_target.items() if other > lowest}
    if more:
        required += f" ({', '.join(f'{text_of(other)} for {name}' for name, other in more.items())})"
    if machine.driver is None:
        problem = f"there is no NVIDIA driver, {required}"
    elif cuda is not None:
        problem = f"{_supports(cuda)}, {required}"
    else:
        problem = (
            f"the driver (release {machine.driver.release}) is for no CUDA version that is known, {required}"
        )
    advice = upgrade_to(lowest, "upgrade" if machine.driver else "install")
    if more:
        advice += f" for {_with(by_target, lowest)}"
        advice += "".join(
            f", {_release(cuda)} for {_with(by_target, cuda)}" for cuda in sorted({*more.values()})
        )
    yield Reason("driver", problem, advice)


def _with(by_target: Mapping[str, tuple[int, int]], cuda: tuple[int, int]) -> str:
    """The targets that need this CUDA version."""
    *others, last = (name for name, other in by_target.items() if other == cuda)
    return f"{', '.join(others)} and {last}" if others else last


def _release(cuda: tuple[int, int]) -> str:
    """The first driver for a CUDA version as text, or the version where no driver for it is known."""
    from cutlass_aot.schema.drivers import first_driver

    return first_driver(cuda) or f"one for CUDA {text_of(cuda)}"


def _gpu(gpu: Gpu, cuda: tuple[int, int] | None, requirements: Requirements) -> GpuAnswer:
    capability = _capability(gpu)
    if capability is None:
        problem = f"the compute capability of {gpu.name} is not known"
        return GpuAnswer(gpu, (), (Reason("gpu", problem, "add compute_capability to its facts"),))
    running = runnable_targets(requirements.targets, capability)
    if not running:
        return GpuAnswer(gpu, (), (_no_target(gpu.name, capability, requirements),))
    # Without a driver the machine as a whole is refused, not its GPUs.
    known = [name for name in running if cuda is None or minimum_cuda(Target.parse(name)) <= cuda]
    if cuda is None or known:
        return GpuAnswer(gpu, tuple(known), ())
    # A driver that is new enough for one of them will do.
    nearest, lowest = _nearest(running)
    problem = f"{_supports(cuda)}, {nearest} cubins for {gpu.name} need CUDA {text_of(lowest)} or newer"
    lowest = max(lowest, major_minor(requirements.versions.cuda_driver))
    return GpuAnswer(gpu, (), (Reason("driver", problem, upgrade_to(lowest)),))


def cuda_by_target(requirements: Requirements) -> dict[str, tuple[int, int]]:
    """The CUDA version that a driver has to support, for each target by its name, sorted.

    A target that is not known, and a bundle of none, have that of the functions which the libraries call.
    """
    own = major_minor(requirements.versions.cuda_driver)
    found = {}
    for name in sorted(requirements.targets) or [""]:
        found[name] = own
        with contextlib.suppress(ValueError):
            found[name] = max(own, minimum_cuda(Target.parse(name)))
    return found


def _nearest(targets: Sequence[str]) -> tuple[str, tuple[int, int]]:
    """The first of the targets that need the oldest driver, and the CUDA version needed."""
    return min(((name, minimum_cuda(Target.parse(name))) for name in targets), key=lambda item: item[1])


def _no_target(name: str, capability: tuple[int, int], requirements: Requirements) -> Reason:
    problem = (
        f"{name} has compute capability {text_of(capability)}, {requirements.name} has kernels for "
        f"{', '.join(requirements.targets) or 'no target'}"
    )
    buildable = runnable_targets(KNOWN_TARGETS, capability)
    advice = f"build it with a target such as {buildable[0]}" if buildable else "use another GPU"
    return Reason("gpu", problem if buildable else f"{problem}, and this release builds none for it", advice)


def _capability(gpu: Gpu) -> tuple[int, int] | None:
    if gpu.capability is not None:
        return gpu.capability
    from cutlass_aot.schema.drivers import compute_capability_of

    return compute_capability_of(gpu.name)


def _supports(cuda: tuple[int, int]) -> str:
    return f"the driver supports CUDA {text_of(cuda)}"


def upgrade_to(cuda: tuple[int, int], what: str = "upgrade") -> str:
    """Advice on getting a driver for a CUDA version; ``what`` is ``upgrade`` or ``install``."""
    from cutlass_aot.schema.drivers import first_driver

    first = first_driver(cuda)
    to = "to" if what == "upgrade" else "release"
    return f"{what} the GPU driver, {to} {first} or newer" if first else f"{what} the GPU driver"


def text_of(version: tuple[int, int]) -> str:
    """A version as text, such as ``12.8``."""
    return f"{version[0]}.{version[1]}"


def version_of(text: str) -> tuple[int, ...] | None:
    """The numbers of a version; None if the text is not a version."""
    try:
        return release(text)
    except ValueError:
        return None
