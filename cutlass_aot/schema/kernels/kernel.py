"""The kernel record: one fully specified kernel as plain data."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from cutlass_aot.schema.codec import AS_MAP, OMIT, Check, to_plain
from cutlass_aot.schema.encoding import digest, encode, encode_text, is_digest, join_map
from cutlass_aot.schema.kernels.accumulation import EXACT, Accumulation
from cutlass_aot.schema.kernels.artifact import symbol_of
from cutlass_aot.schema.kernels.constraints import OperandConstraint, Operands
from cutlass_aot.schema.kernels.design import NO_VALUES, DesignValue, Values
from cutlass_aot.schema.targets import Target

KEY_SCHEMA = 1
"""Version of what a key covers. Raise it when the meaning of a field changes."""


def _plain(values: Mapping[str, DesignValue]) -> tuple[tuple[str, DesignValue], ...]:
    return tuple(sorted(values.items()))


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: what it computes, on which operands, how, and for which target.

    Attributes:
        operation: what is computed, such as ``gemm``.
        generator: name of the generator that enumerated it and compiles it.
        operands: constraints, in the order of the call.
        accumulator: element type of the accumulator.
        epilogue: formula that is applied to the accumulator; ``""`` only converts it to the type of out.
        design: how it is computed (tile shape, cluster shape, scheduler, ...), sorted by name.
        target: GPU code target.
        constants: numbers from a device profile that are compiled in, sorted by name.
        workspace_bytes: bytes of device memory a launch needs beside its operands.
        parameters: what else decides the result, beside the operation and the operands, sorted by name.
        accumulation: whether sums are exact or fast; ``""`` where a computation has one kind of kernels. The
            digest covers ``exact`` alone: there were fast ones, and measurements of them, before.
        cost: formula of :mod:`~.cost` by which kernels of its group are chosen; ``""`` for none. It decides
            nothing of the code, and is not part of the digest.
    """

    operation: str
    generator: str
    operands: Operands
    accumulator: str
    epilogue: str
    design: Annotated[tuple[tuple[str, DesignValue], ...], AS_MAP]
    target: Annotated[str, Check(Target.parse)]
    constants: Annotated[tuple[tuple[str, int], ...], AS_MAP] = ()
    workspace_bytes: int = 0
    parameters: Annotated[Values, AS_MAP, OMIT] = NO_VALUES
    accumulation: Annotated[Accumulation, OMIT] = ""
    cost: Annotated[str, OMIT] = field(default="", compare=False)
    # Computed once, when first needed: a plan of ten thousand kernels reads each several times.
    _digest: str = field(default="", init=False, repr=False, compare=False)
    _encoded: bytes = field(default=b"", init=False, repr=False, compare=False)
    _name: str = field(default="", init=False, repr=False, compare=False)

    @classmethod
    def make(
        cls,
        *,
        operation: str,
        generator: str,
        operands: tuple[OperandConstraint, ...],
        accumulator: str,
        design: Mapping[str, DesignValue],
        target: str,
        epilogue: str = "",
        constants: Mapping[str, int] | None = None,
        workspace_bytes: int = 0,
        parameters: Mapping[str, DesignValue] | None = None,
        accumulation: Accumulation = "",
        cost: str = "",
        digest: str = "",
    ) -> "Kernel":
        """Build a record from mappings; a known ``digest`` saves computing it."""
        made = cls(
            operation=operation,
            generator=generator,
            operands=operands,
            accumulator=accumulator,
            epilogue=epilogue,
            design=_plain(design),
            target=target,
            constants=tuple(sorted((constants or {}).items())),
            workspace_bytes=workspace_bytes,
            parameters=Values.of(parameters or {}),
            accumulation=accumulation,
            cost=cost,
        )
        object.__setattr__(made, "_digest", digest)
        return made

    def encoded(self) -> bytes:
        """The canonical encoding of the record, joined from cached parts that kernels share."""
        if not self._encoded:
            parts = {
                **_encoded_operation(*self._function),
                "generator": encode_text(self.generator),
                "design": encode(dict(self.design)),
                "constants": encode(dict(self.constants)),
                "workspace_bytes": encode(self.workspace_bytes),
            }
            object.__setattr__(self, "_encoded", join_map(parts))
        return self._encoded

    @property
    def digest(self) -> str:
        """SHA-256 of the whole record, which identifies the kernel."""
        if not self._digest:
            value = digest(join_map({"schema": encode(KEY_SCHEMA), "kernel": self.encoded()}))
            object.__setattr__(self, "_digest", value)
        return self._digest

    @property
    def symbol(self) -> str:
        """Name of the compiled function, which is exported after :data:`~.artifact.EXPORT_PREFIX`."""
        return symbol_of(self.digest)

    @property
    def group(self) -> str:
        """Digest of what functionally equivalent kernels share: no design, constants or generator."""
        return _group(*self._function)

    @property
    def _function(self) -> "_Function":
        """The fields that :attr:`group` is the digest of."""
        return (
            self.operation, self.operands, self.accumulator, self.epilogue, self.target, self.parameters,
            self.accumulation,
        )  # fmt: skip

    @property
    def layouts(self) -> str:
        """Layout letters of the operands in order, such as ``tnt``."""
        return "".join(operand.layout for operand in self.operands)

    @property
    def group_name(self) -> str:
        """Readable name of the group, such as ``gemm-f16.f16.f16-f32-tnt-sm_90a``."""
        dtypes = ".".join(operand.dtype for operand in self.operands)
        exact = EXACT if self.accumulation == EXACT else ""
        parts = [self.operation, dtypes, self.accumulator, exact, self.layouts, self.target]
        parts = [part for part in parts if part]
        if self.epilogue:
            parts.append(digest(self.epilogue.encode())[:8])
        parts += [_design_word(name, value) for name, value in self.parameters]
        return "-".join(parts)

    @property
    def name(self) -> str:
        """Readable name, unique in practice: group, design and eight digits of the digest."""
        if not self._name:
            object.__setattr__(self, "_name", self._made_name())
        return self._name

    def _made_name(self) -> str:
        ordered = sorted(self.design, key=lambda item: (_position(item[0]), item[0]))
        design = "-".join(
            _design_word(name, value)
            for name, value in ordered
            # A digest is not readable, and the name ends with digits of one anyway.
            if value is not False and value != "" and not (isinstance(value, str) and is_digest(value))
        )
        return "-".join(filter(None, (self.group_name, design, self.digest[:8])))


_Function = tuple[str, tuple[OperandConstraint, ...], str, str, str, Values, Accumulation]


@functools.lru_cache(maxsize=1024)
def _encoded_operation(
    operation: str,
    operands: tuple[OperandConstraint, ...],
    accumulator: str,
    epilogue: str,
    target: str,
    parameters: Values,
    accumulation: Accumulation,
) -> dict[str, bytes]:
    """The encodings of :attr:`Kernel._function`, cached because hundreds of kernels share them."""
    parts = {
        "operation": encode(operation),
        "operands": encode([to_plain(operand) for operand in operands]),
        "accumulator": encode(accumulator),
        "epilogue": encode(epilogue),
        "target": encode(target),
    }
    if parameters:
        parts["parameters"] = encode(dict(parameters))
    if accumulation == EXACT:
        parts["accumulation"] = encode(accumulation)
    return parts


@functools.lru_cache(maxsize=1024)
def _group(*function: Any) -> str:
    return digest(join_map(_encoded_operation(*function)))


def _position(name: str) -> int:
    """Position of a design value in a kernel's name: those that differ most between kernels come first."""
    first = ("family", "tile_shape", "cluster_shape", "fallback_cluster_shape")
    return first.index(name) if name in first else len(first)


def _design_word(name: str, value: DesignValue) -> str:
    if isinstance(value, tuple):
        shape = "x".join(str(extent) for extent in value)
        return (
            shape
            if name == "tile_shape"
            else f"{name.removesuffix('_cluster_shape').removesuffix('_shape')}{shape}"
        )
    if value is True:
        return name.removeprefix("use_")
    return str(value) if isinstance(value, str) else f"{name}{value}"
