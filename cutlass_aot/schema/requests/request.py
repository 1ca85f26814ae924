"""The request record: one call of ``cute.compile`` that a program makes, as plain data.

Everything that a request holds is a *value*: None, a boolean, an integer of 64 bits, a float, text or bytes,
which stand for themselves, a list, or a map from text to values. Whatever else a program passes is described
by a map that names its kind (:mod:`cutlass_aot.programs.describe.values.describer`)::

    {"tuple": [1, 2]}
    {"tensor": {"dtype": "cutlass.base_dsl.typing:BFloat16", "shape": [{"symbol": 0, ...}, 4096], ...}}
    {"object": "quack.rmsnorm:RMSNorm", "fields": {"N": 4096, "stage": 1, ...}}

Integers, floats and booleans stay apart: 1, 1.0 and true are three values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import AS_PAIRS, Check, from_plain, header, row, to_plain
from cutlass_aot.schema.encoding import MALFORMED, canonical, decode, digest, encode
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.requests.value_text import value_text
from cutlass_aot.schema.targets import Target

REQUEST_SCHEMA = 1
"""Version of what a request covers. Raise it when the meaning of a field changes."""

OPERATION = "cute.compile"
"""Operation of the kernels that requests stand for."""

GENERATOR = "program"
"""Generator of the kernels that requests stand for."""

MAX_REQUEST_BYTES = 1 << 20
"""Largest encoded request."""

Value = Any
"""None, bool, int, float, str, bytes, a list of values, or a map from text to values."""

_Encodable = Annotated[Value, Check(canonical)]
"""A value of a record whose encoding is not made when it is read."""

_NOT_IN_A_FILE_NAME = re.compile(r"[^A-Za-z0-9_.+-]")
_MAX_NAME = 120
_WITHIN = 4
"""Levels of a file around a request."""
_MAX_SHOWN = 120


@header(REQUEST_SCHEMA)
@dataclass(frozen=True, slots=True)
class Request:
    """One call of ``cute.compile``.

    Attributes:
        callable: what is compiled, ``module:qualified.name`` of a function or of an instance's class.
        configuration: the value of the function or of the instance.
        arguments: name to value of every argument, in the order of the call.
        options: compile options that differ from their defaults.
        target: GPU code target, such as ``sm_90a``.
        device: numbers of the GPU that code generation may ask for, such as ``sm_count``.
        code: the code that it follows from: distribution, module or package to its version and digest.
        state: variables that the code reads and that no file decides: module-level values that functions
            read, by ``module:name``, and environment variables, by ``environment:NAME``.
    """

    callable: str
    configuration: Value
    arguments: Annotated[Mapping[str, Value], AS_PAIRS]
    options: Mapping[str, Value]
    target: Annotated[str, Check(Target.parse)]
    device: Mapping[str, int]
    code: Mapping[str, str]
    state: Mapping[str, Value]
    _encoded: bytes = field(default=b"", init=False, repr=False, compare=False)
    _digest: str = field(default="", init=False, repr=False, compare=False)

    @property
    def distributions(self) -> dict[str, str]:
        """The versions of the distributions whose code it follows from; code that none installed has none."""
        versions = {name: fingerprint.partition(" ")[0] for name, fingerprint in self.code.items()}
        return {name: version for name, version in versions.items() if version != "-"}

    def encoded(self) -> bytes:
        """The canonical encoding of the record.

        Raises:
            TypeError: for a value that has no encoding, or is nested too deep for the files that hold it.
            OverflowError: for an integer of more than 64 bits.
        """
        if not self._encoded:
            object.__setattr__(self, "_encoded", encode(to_plain(self), within=_WITHIN))
        return self._encoded

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "Request":
        """Read what :meth:`encoded` gave.

        Raises:
            CorruptFile: if it is truncated, altered or too large.
            SchemaTooNew: if a newer release wrote it.
        """
        if len(data) > MAX_REQUEST_BYTES:
            raise CorruptFile(f"{what} has {len(data)} bytes; a request has at most {MAX_REQUEST_BYTES}")
        request = from_plain(cls, decode(data, what), what)
        try:
            # Its digest is that of its encoding, which not everything has that can be decoded.
            request.encoded()
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None
        return request

    @property
    def digest(self) -> str:
        """SHA-256 of the encoded request: what a bundle answers it by."""
        if not self._digest:
            object.__setattr__(self, "_digest", digest(self.encoded()))
        return self._digest

    @property
    def kernel(self) -> Kernel:
        """The kernel that stands for it in a store and in a bundle; kernels of one callable and target are a
        group."""
        name = _NOT_IN_A_FILE_NAME.sub("_", self.callable.replace(":", "."))[-_MAX_NAME:].lstrip("._-")
        return Kernel.make(
            operation=OPERATION,
            generator=GENERATOR,
            operands=(),
            accumulator="",
            design={"request": self.digest},
            target=self.target,
            parameters={"callable": name},
        )


@row
class CallByName(NamedTuple):
    """How a compiled function takes arguments by name, where its Python signature lets a caller do so.

    Attributes:
        names: of the arguments in order.
        defaults: values of the last of them.
        keyword_names: of arguments that are passed by name alone.
        keyword_defaults: name to default value of those that have one.
        dataclasses: names of the arguments whose fields are passed one after the other.
    """

    names: tuple[str, ...]
    defaults: tuple[_Encodable, ...] = ()
    keyword_names: tuple[str, ...] = ()
    keyword_defaults: Mapping[str, _Encodable] = {}
    dataclasses: tuple[str, ...] = ()

    def validate(self) -> None:
        """Raise ValueError for a default or a dataclass of no argument."""
        known = {*self.names, *self.keyword_names}
        if len(self.defaults) > len(self.names) or not {*self.keyword_defaults, *self.dataclasses} <= known:
            raise ValueError("a default or a dataclass of no argument")


def default_value(value: Value) -> Any:
    """A default value of :class:`CallByName` as it is passed: numbers, text, None, and tuples of them.

    Raises:
        ValueError: for another value.
    """
    if isinstance(value, Mapping) and set(value) == {"tuple"} and isinstance(value["tuple"], list):
        return tuple(map(default_value, value["tuple"]))
    if value is not None and type(value) not in (bool, int, float, str):
        raise ValueError(f"{value_text(value)} is not a default value")
    return value


@row
class CompiledRequest(NamedTuple):
    """A request with what its kernel's record does not say of the compiled function.

    Attributes:
        request: the request.
        call: how arguments are passed by name; None for a function that takes them in order alone.
    """

    request: Request
    call: CallByName | None = None


class Difference(NamedTuple):
    """One value that differs between two requests.

    Attributes:
        path: where, such as ``arguments.mQ.tensor.dtype``.
        found: value of the first, in words.
        other: value of the second, in words.
    """

    path: str
    found: str
    other: str


def differences(request: Request, other: Request) -> list[Difference]:
    """Every value that two requests do not share, in order of their paths."""
    pairs = zip(to_plain(request).items(), to_plain(other).values(), strict=True)
    found: list[Difference] = []
    for (name, ours), theirs in pairs:
        if name == "arguments":
            ours, theirs = dict(ours), dict(theirs)
            if list(ours) != list(theirs) and set(ours) == set(theirs):
                found.append(Difference(name, f"in order {', '.join(ours)}", f"in order {', '.join(theirs)}"))
        found += _differences(name, ours, theirs)
    return found


_ABSENT = object()


def _differences(path: str, ours: Any, theirs: Any) -> Iterator[Difference]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted({*ours, *theirs}):
            yield from _differences(f"{path}.{name}", ours.get(name, _ABSENT), theirs.get(name, _ABSENT))
    elif isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(ours) == len(theirs):
        for index, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            yield from _differences(f"{path}[{index}]", one, two)
    elif type(ours) is not type(theirs) or repr(ours) != repr(theirs):  # 0.0 and -0.0 are equal.
        yield Difference(path, _shortened(ours), _shortened(theirs))


def _shortened(value: Value) -> str:
    """A value in words, for messages."""
    if value is _ABSENT:
        return "nothing"
    text = value_text(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
