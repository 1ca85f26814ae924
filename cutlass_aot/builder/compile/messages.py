"""What travels between a builder and the processes that work for it: a record for each request and reply.

===============  =================================  ==================================================
to               request                            reply
===============  =================================  ==================================================
the fork server  its command line                   :class:`Imported`
                 :class:`Fork`, with a descriptor   :class:`Forked`
                 :class:`Reap`                      :class:`Reaped`
a worker         :class:`Enumerate`                 :class:`Reply` with :class:`Enumerated`
                 :class:`FindAlternatives`          :class:`Reply` with :class:`Alternatives`
                 :class:`Rank`                      :class:`Reply` with ``Ranked``
                 :class:`Compile`                   :class:`Reply` with ``Artifact``
                 :class:`FindVersion`               :class:`Reply` with :class:`Version`
                 :class:`Trace`                     :class:`Reply` with :class:`Traced`
a dask worker    :class:`CompileRemotely`           :class:`CompiledRemotely` or :class:`Refused`
===============  =================================  ==================================================

Where an exception is raised, a :class:`WorkerFailure` is the reply. :mod:`~cutlass_aot.schema.codec` writes
and reads a message as a map from the name of its class to its fields, in msgpack; on a socket, its length
stands before it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.protocol import Problem, Ranked
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.schema.codec import OMIT, codec_of, from_plain
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.tuning.ranking import Extents

_LENGTH = struct.Struct("<I")
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Imported:
    """What the fork server has imported: this package's file, the modules' sources, and the DSL.

    ``sources`` maps a module to the SHA-256 of its source file. ``dsl`` is the DSL's file; None if no module
    has imported it.
    """

    dsl: str | None
    package: str
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a worker. The message is followed by one byte that carries the descriptor of the worker's channel.

    ``log`` is the file that takes what the worker prints, from its latest request on.
    """

    log: str


@dataclass(frozen=True, slots=True)
class Forked:
    """A worker runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class Reap:
    """Wait for a worker's end."""

    pid: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """A worker's exit status, negative for a signal."""

    status: int


@dataclass(frozen=True, slots=True)
class Enumerate:
    """Name every kernel for a problem on a target."""

    generator: GeneratorReference
    problem: Problem
    target: str
    device: DeviceProfile | None


@dataclass(frozen=True, slots=True)
class Enumerated:
    """Every kernel for a problem; ``design`` has the names that the generator declares in its ``design``."""

    kernels: tuple[Kernel, ...]
    design: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindAlternatives:
    """Say what a generator has instead of nothing for a problem on a target."""

    generator: GeneratorReference
    problem: Problem
    target: str
    device: DeviceProfile | None


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What :func:`cutlass_aot.generators.alternatives.alternatives` gives."""

    words: str


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank kernels; see :meth:`cutlass_aot.generators.protocol.Ranker.rank`."""

    generator: GeneratorReference
    problem: Problem
    target: str
    kernels: tuple[Kernel, ...]
    shapes: tuple[Extents, ...]
    heuristic: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile a kernel into the file ``object``."""

    generator: GeneratorReference
    kernel: Kernel
    object: str


@dataclass(frozen=True, slots=True)
class FindVersion:
    """Say which version of a generator was imported, from the digests of its source files."""

    generator: GeneratorReference
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Version:
    """A generator's version, which contains the digest of its sources.

    ``read`` are the files of its distributions, with their digests.
    """

    version: str
    read: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """Compile some combinations of a declared kernel's parameters, and record what its code reads meanwhile.

    Attributes:
        combinations: positions among those declared, in the order to compile them in.
        globals: ``module:name`` to the value to set, as JSON, which has numbers of any size.
        environment: variables to set; None removes one.
        folder: the working directory.
    """

    generator: GeneratorReference
    target: str
    combinations: tuple[int, ...]
    globals: Mapping[str, str]
    environment: Mapping[str, str | None]
    folder: str


@dataclass(frozen=True, slots=True)
class Traced:
    """The result of a trace. The kernel's modules are those of its :class:`~.trace.Home`.

    Attributes:
        objects: position of a combination to the digest of the record and the object, or to the error.
        reads: environment variables that the kernel's modules read, with the place.
        globals: ``module:name`` to the value, as JSON, of every variable that functions of declared modules
            read.
        modules: the kernel's modules that were imported and are not declared.
        distributions: others whose modules were imported, use the DSL and are not declared.
    """

    objects: Mapping[str, str]
    reads: Mapping[str, str]
    globals: Mapping[str, str]
    modules: tuple[str, ...]
    distributions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """How a request ended without a result.

    Attributes:
        timed_out: seconds after which the worker was killed; 0 if it was not.
        signal: the signal that ended the worker; 0 if none did.
        status: the exit status of a worker that ended itself; 0 if it did not.
        raised: names of the exception's class and its bases, the class first; empty if nothing was raised.
        message: the exception's text.
    """

    timed_out: Annotated[float, OMIT] = 0.0
    signal: Annotated[int, OMIT] = 0
    status: Annotated[int, OMIT] = 0
    raised: Annotated[tuple[str, ...], OMIT] = ()
    message: Annotated[str, OMIT] = ""


Request = Enumerate | FindAlternatives | Rank | Compile | FindVersion | Trace
"""A request to a worker."""

Answer = Enumerated | Alternatives | Ranked | Artifact | Version | Traced
"""A worker's answer, one class for each class of request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's reply; ``peak_bytes`` is the most memory that the worker has held so far."""

    result: Answer | WorkerFailure
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class CompileRemotely:
    """Compile a kernel on another machine.

    Attributes:
        key: the kernel's key in the store.
        compile: the request to a worker there; its ``object`` is a path of the builder's machine.
        remote: URL of the store that takes the object where that path is not visible; None if it has to be.
        modules: what the worker has to import.
        timeout: seconds it may take.
        toolchain: the compiler's fingerprint, which that machine must have.
        generator_version: the version that that machine must have.
    """

    name: str
    key: str
    compile: Compile
    remote: str | None
    modules: tuple[str, ...]
    timeout: float
    toolchain: str
    generator_version: str


@dataclass(frozen=True, slots=True)
class CompiledRemotely:
    """The result of compiling on another machine.

    Attributes:
        artifact: None if the kernel failed.
        error: why it failed, or ``""``.
        log: what the compiler printed.
        machine: whether the failure is the machine's.
        pushed: whether the object is in the remote store instead of its file.
    """

    artifact: Artifact | None
    error: str = ""
    log: str = ""
    machine: bool = False
    pushed: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a dask worker did not begin."""

    reason: str


_Message: Any = (
    Imported | Fork | Forked | Reap | Reaped | Enumerate | FindAlternatives | Rank | Compile | FindVersion
    | Trace | Reply | WorkerFailure | CompileRemotely | CompiledRemotely | Refused
)  # fmt: skip


def to_bytes(message: Any) -> bytes:
    """Encode a message; raises TypeError or OverflowError if a value has no encoding."""
    return encode(codec_of(_Message).to_plain(message))


def from_bytes(data: bytes, *expected: type) -> Any:
    """Read what :func:`to_bytes` gave; raises CorruptFile if it is not a message of the expected classes."""
    names = " or ".join(kind.__name__ for kind in expected)
    what = f"a message where {names} was expected"
    advice = "have the same cutlass-aot on both sides"
    message = from_plain(_Message, decode(data, what), what, advice)
    if not isinstance(message, expected):
        raise CorruptFile(f"found a message {type(message).__name__}, expected {names}: {advice}")
    return message


def send(channel: socket.socket, message: Any) -> None:
    """Send one message; raises OSError if the other side is gone."""
    data = to_bytes(message)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket, *expected: type) -> Any:
    """Receive a message of the expected classes; None if the other side closes the channel, even midway."""
    header = _exactly(channel, _LENGTH.size)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    data = _exactly(channel, length) if length <= _MAX_BYTES else None
    return None if data is None else from_bytes(data, *expected)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            chunk = channel.recv(min(count - len(data), 1 << 20))
        except (ConnectionResetError, BrokenPipeError):
            return None
        if not chunk:
            return None
        data += chunk
    return bytes(data)
