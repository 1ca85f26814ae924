"""The request record: one call of ``cute.compile`` that a program makes, as plain data.

A request consists of *values*: None, booleans, integers of 64 bits, floats, text, bytes, lists of values, and
maps from text to values. Anything else that a program passes is described by a map that names its kind
(:mod:`cutlass_aot.programs.describe.values.describer`)::

    {"tuple": [1, 2]}
    {"tensor": {"dtype": "cutlass.base_dsl.typing:BFloat16", "shape": [{"symbol": 0, ...}, 4096], ...}}
    {"object": "quack.rmsnorm:RMSNorm", "fields": {"N": 4096, "stage": 1, ...}}

1, 1.0 and true are different values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import AS_PAIRS, Check, from_plain, header, row, to_plain
from cutlass_aot.schema.encoding import MALFORMED, canonical, decode, digest, encode
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.requests.value_text import value_text
from cutlass_aot.schema.targets import Target

REQUEST_SCHEMA = 1
"""Version of what a request covers. Raise it when the meaning of a field changes."""

OPERATION = "cute.compile"
"""Operation of the kernels of requests."""

GENERATOR = "program"
"""Generator of the kernels of requests."""

MAX_REQUEST_BYTES = 1 << 20
"""Bytes of an encoded request."""

Value = Any
"""None, bool, int, float, str, bytes, a list of values, or a map from text to values."""

_Encodable = Annotated[Value, Check(canonical)]
"""A value that is checked when it is read, because its record is not encoded then."""

_NOT_IN_A_FILE_NAME = re.compile(r"[^A-Za-z0-9_.+-]")
_MAX_NAME = 120
_WITHIN = 4
"""Levels of nesting around a request in a file."""
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
        code: the code that decides the result: distribution, module or package to version and digest.
        state: variables that the code reads and its source does not decide: module-level values, by
            ``module:name``, and environment variables, by ``environment:NAME``.
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
        """Versions in :attr:`code`, without code that no distribution installed.

        A folder of a distribution, such as ``torch/_native``, stands for it.
        """
        versions = {
            name.partition("/")[0]: fingerprint.partition(" ")[0] for name, fingerprint in self.code.items()
        }
        return {name: version for name, version in versions.items() if version != "-"}

    def encoded(self) -> bytes:
        """The canonical encoding of the record.

        Raises:
            TypeError: for a value that has no encoding or is nested too deep for the request's files.
            OverflowError: for an integer of more than 64 bits.
        """
        if not self._encoded:
            object.__setattr__(self, "_encoded", encode(to_plain(self), within=_WITHIN))
        return self._encoded

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "Request":
        """Read what :meth:`encoded` gave."""
        if len(data) > MAX_REQUEST_BYTES:
            raise CorruptFile(f"{what} has {len(data)} bytes; a request has at most {MAX_REQUEST_BYTES}")
        request = from_plain(cls, decode(data, what), what)
        try:
            # Some values that can be decoded cannot be encoded, and the digest needs the encoding.
            request.encoded()
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None
        return request

    @property
    def digest(self) -> str:
        """SHA-256 of the encoded request, by which a bundle finds its kernel."""
        if not self._digest:
            object.__setattr__(self, "_digest", digest(self.encoded()))
        return self._digest

    @property
    def kernel(self) -> Kernel:
        """The request's kernel in a store and a bundle; kernels of one callable and target are a group."""
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
    """How a compiled function takes arguments by name, if its Python signature allows that.

    Attributes:
        names: positional arguments, in order.
        defaults: values of the last of ``names``.
        keyword_names: keyword-only arguments.
        keyword_defaults: name to default value of those that have one.
        dataclasses: arguments whose fields are passed one after the other.
    """

    names: tuple[str, ...]
    defaults: tuple[_Encodable, ...] = ()
    keyword_names: tuple[str, ...] = ()
    keyword_defaults: Mapping[str, _Encodable] = {}
    dataclasses: tuple[str, ...] = ()

    def validate(self) -> None:
        """Refuse a default or a dataclass that belongs to no argument."""
        known = {*self.names, *self.keyword_names}
        if len(self.defaults) > len(self.names) or not {*self.keyword_defaults, *self.dataclasses} <= known:
            raise ValueError("a default or a dataclass of no argument")


def default_value(value: Value) -> Any:
    """A default value of :class:`CallByName` as it is passed: a number, text, None, or a tuple of these.

    Any other value is a ValueError.
    """
    if isinstance(value, Mapping) and set(value) == {"tuple"} and isinstance(value["tuple"], list):
        return tuple(map(default_value, value["tuple"]))
    if value is not None and type(value) not in (bool, int, float, str):
        raise ValueError(f"{value_text(value)} is not a default value")
    return value


@row
class CompiledRequest(NamedTuple):
    """A request, and how its function takes arguments by name: None if all are positional only."""

    request: Request
    call: CallByName | None = None


class Difference(NamedTuple):
    """A value that differs between two requests, at a path such as ``arguments.mQ.tensor.dtype``, as text."""

    path: str
    found: str
    other: str


def differences(request: Request, other: Request) -> list[Difference]:
    """Every value that differs between two requests, in order of their paths."""
    pairs = zip(to_plain(request).items(), to_plain(other).values(), strict=True)
    found: list[Difference] = []
    for (name, ours), theirs in pairs:
        if name == "arguments":
            ours, theirs = dict(ours), dict(theirs)
            if list(ours) != list(theirs) and set(ours) == set(theirs):
                found.append(Difference(name, f"in order {', '.join(ours)}", f"in order {', '.join(theirs)}"))
        found += _differences(name, ours, theirs)
    return found


ABSENT = "nothing"
"""The text of a difference for a value that is in the other request alone."""

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
    """A value as text for messages, shortened."""
    if value is _ABSENT:
        return ABSENT
    text = value_text(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
