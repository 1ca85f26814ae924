"""The kernel record: one fully specified instance, as plain data."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeGuard

from cutlass_aot.schema.codec import AS_MAP, OMIT, Check, row, to_plain
from cutlass_aot.schema.encoding import digest, encode, encode_text, is_digest, join_map
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.targets import Target

KEY_SCHEMA = 1
"""Version of what a key covers. Raise it when the meaning of a field changes."""

OBJECT_SCHEMA = 3
"""Version of what compiling a kernel leaves. 2: host code as text for every host, and GPU code. 3: the text
is not optimised for the CPU that compiled it."""

EXPORT_PREFIX = "__tvm_ffi_"
"""What the exported symbol of a compiled function begins with: TVM-FFI's calling convention."""

CODE_PREFIX = "cutlass_aot_code_"
"""What the exported slot of a compiled function begins with: it takes address and size of its GPU code."""

LAUNCHER_SYMBOLS = (
    f"{EXPORT_PREFIX}cutlass_aot_dispatch_cache",
    f"{EXPORT_PREFIX}cutlass_aot_launcher",
    "cutlass_aot_fast_path",
    "cutlass_aot_open_fast_path",
)
"""What a bundle's launcher exports; see ``launcher.c`` and ``fast_path.c`` in ``builder/native``."""

LAYOUT_LETTERS = {-1: "t", -2: "n", 0: "s"}
"""Letters of ``cutlass.operators``: t is row-major (last mode contiguous), n column-major; s is a number."""

BATCH = "L"
"""Name of the one extent that a caller's tensor may lack: the batch of a GEMM, of one matrix then."""

ANY_SHAPE = ("*",)
"""Extents of a compact operand of which the number of elements matters, not the shape."""

MAX_RANK = 8
"""Modes of an operand; ``MAX_RANK`` of ``builder/native/launcher.c``."""

CALL_NAMES = ("accumulator", "epilogue", "gpu", "operation", "parameters", "stream", "target", "workspace")
"""Names that a call has for other things than operands."""

MAX_OPERANDS = 16
"""Operands of a kernel; ``MAX_OPERANDS`` of ``builder/native/launcher.c``."""

DesignValue = str | int | float | bool | tuple[int, ...]


class Values(tuple[tuple[str, DesignValue], ...]):
    """Values by name, in order of their names; equal if types and bits are: 1, 1.0 and True are three."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Mapping[str, DesignValue]) -> "Values":
        """Values from a mapping."""
        return cls(sorted(values.items()))

    def _bytes(self) -> bytes:
        return encode([list(item) for item in self]) if self else b""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self._bytes() == other._bytes()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._bytes())


NO_VALUES = Values()


@row
@dataclass(frozen=True, slots=True)
class Scale:
    """What makes an operand the scale factors of another one.

    Each factor belongs to ``block`` elements of that operand which follow each other along one extent, for
    each index of its other extents. With R rows (all extents but the batch and the scaled one) of
    F = ceil(extent / block) factors:

    - ``""``: R x F factors, row by row, a batch after the other.
    - ``"32x4x4"``: what tensor cores of SM100 read: tiles of 128 rows x 4 factors, row-major over the rounded
      up matrix; the factor of row r and column c of a tile stands at ``(r % 32) * 16 + (r // 32) * 4 + c``.
      Source: cuBLAS documentation, "1D Block Scaling Factors Layout".
    - ``"columns"``: F x R factors, those of all rows for the first block, then for the second, a batch after
      the other. They are loaded 16 bytes at a time: R of them fill a multiple of 16 bytes, and the extent is
      a multiple of ``block``.

    Attributes:
        of: name of the operand that is scaled.
        block: elements that share a factor.
        along: name of the extent that blocks run along.
        swizzle: how the factors lie in memory.
    """

    of: str
    block: int
    along: str = "K"
    swizzle: str = ""

    def count(self, batch: int, rows: int, extent: int) -> int:
        """Number of factors for ``batch`` matrices of ``rows`` x ``extent`` elements."""
        factors = -(-extent // self.block)
        if self.swizzle == SWIZZLE_32X4X4:
            return batch * (-(-rows // 128) * 128) * (-(-factors // 4) * 4)
        return batch * rows * factors

    def multiples(self, extents: Sequence[str | int], dtype: str) -> dict[str, int]:
        """What extents of the scaled operand are multiples of, by name.

        Args:
            extents: of the scaled operand.
            dtype: element type of the factors.
        """
        if self.swizzle != SWIZZLE_COLUMNS:
            return {}
        rows = 16 * 8 // DTYPES[dtype].bits
        names = [extent for extent in extents if isinstance(extent, str) and extent != BATCH]
        return {name: self.block if name == self.along else rows for name in names}


SWIZZLE_32X4X4 = "32x4x4"
SWIZZLE_COLUMNS = "columns"
SWIZZLES = ("", SWIZZLE_32X4X4, SWIZZLE_COLUMNS)
"""Layouts of scale factors in memory, see :class:`Scale`."""


@dataclass(frozen=True, slots=True)
class OperandConstraint:
    """What a kernel demands of one operand.

    Shapes are those of elements, also where several share a byte.

    Attributes:
        name: the caller's name for it, such as ``a``.
        dtype: element type (:data:`~cutlass_aot.schema.kernels.dtypes.DTYPES`).
        extents: a name or a fixed number for each mode, outermost first, such as ``("L", "M", "K")``.
            Extents of one name are equal across operands. Where the first is :data:`BATCH`, a tensor without
            that mode counts as a batch of one. Empty for a number, which is passed by value;
            :data:`ANY_SHAPE` for scale factors.
        contiguous: the mode with stride 1, counted from the end (-1 is row-major, -2 column-major); 0 for a
            number.
        divisibility: elements; the contiguous extent and every other stride are multiples of it.
        alignment: bytes; the data pointer is a multiple of it.
        written: whether the kernel writes it.
        compact: whether its elements lie without gaps: the other modes' strides follow from the extents,
            innermost first.
        scale: what it scales, if it holds scale factors.
        multiples: for each extent, what it is a multiple of, where the kernel moves whole tiles of the
            operand without looking where it ends; empty for one that knows.
    """

    name: str
    dtype: str
    extents: tuple[str | int, ...]
    contiguous: int
    divisibility: int
    alignment: int
    written: bool = False
    compact: Annotated[bool, OMIT] = False
    scale: Annotated[Scale | None, OMIT] = None
    multiples: Annotated[tuple[int, ...], OMIT] = ()

    @property
    def layout(self) -> str:
        """Layout letter, as in ``cutlass.operators``."""
        return LAYOUT_LETTERS[self.contiguous]

    @property
    def is_number(self) -> bool:
        """Whether it is passed by value."""
        return not self.extents

    @property
    def has_batch(self) -> bool:
        """Whether the first mode may be missing."""
        return self.extents[:1] == (BATCH,)

    def validate(self) -> None:
        """Raise ValueError for an impossible one."""
        if problem := self.problem():
            raise ValueError(f"operand {self.name!r} has {problem}")

    def problem(self) -> str:
        """What is impossible about it; ``""`` for a sound constraint."""
        rank = len(self.extents)
        if self.dtype not in DTYPES:
            return f"an unknown element type {self.dtype!r}"
        if (
            self.contiguous not in LAYOUT_LETTERS
            or -self.contiguous > rank
            or (rank > 0) != (self.contiguous < 0)
        ):
            return f"an impossible layout: mode {self.contiguous} of {rank}"
        if self.divisibility < 1 or self.alignment < 1 or rank > MAX_RANK:
            return "impossible constraints"
        if any(isinstance(extent, int) and extent < 1 for extent in self.extents):
            return f"impossible extents {self.extents}"
        if self.multiples and (len(self.multiples) != rank or min(self.multiples) < 1):
            return f"impossible multiples {self.multiples}"
        if self.scale is not None and (
            self.scale.block < 1 or self.scale.swizzle not in SWIZZLES or self.extents != ANY_SHAPE
        ):
            return f"impossible scale factors {self.scale}"
        return ""


def _check_operands(operands: tuple[OperandConstraint, ...]) -> None:
    """Raise ValueError for operands that do not belong together."""
    extents = {operand.name: operand.extents for operand in operands}
    # A kernel of a program has none: its compiled code knows what it is called with.
    if len(operands) > MAX_OPERANDS or len(extents) != len(operands):
        raise ValueError(f"expected at most {MAX_OPERANDS} operands of different names, got {len(operands)}")
    for operand in operands:
        scale = operand.scale
        scaled = extents.get(scale.of, ()) if scale is not None else ()
        if scale is not None and (scale.along not in scaled or scaled == ANY_SHAPE):
            raise ValueError(
                f"operand {operand.name!r} scales {scale.of!r} along {scale.along}: there is none"
            )


Operands = Annotated[tuple[OperandConstraint, ...], Check(_check_operands)]
"""The operands of a kernel."""


def is_value(value: object) -> TypeGuard[DesignValue]:
    """Whether it is one that a design or a parameter can have."""
    if isinstance(value, tuple):
        return all(type(item) is int for item in value)
    return type(value) in (bool, int, float, str) and value == value


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
        epilogue: what is done to the accumulator before it is stored; ``""`` stores it converted.
        design: how it is computed (tile shape, cluster shape, scheduler, ...), sorted by name.
        target: GPU code target.
        constants: numbers from a device profile that are compiled in, sorted by name.
        workspace_bytes: bytes of device memory a launch needs beside its operands.
        parameters: what is computed, where the operation and the operands leave it open, sorted by name.
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
    # Worked out when first asked for: a plan of ten thousand kernels asks for each several times.
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
        digest: str = "",
    ) -> "Kernel":
        """Build a record from mappings; ``digest`` where it is known, to save computing it."""
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
        )
        object.__setattr__(made, "_digest", digest)
        return made

    def encoded(self) -> bytes:
        """The canonical encoding of the record, from parts that kernels share."""
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
        """SHA-256 of the whole record; it names the kernel wherever a name must be unique."""
        if not self._digest:
            value = digest(join_map({"schema": encode(KEY_SCHEMA), "kernel": self.encoded()}))
            object.__setattr__(self, "_digest", value)
        return self._digest

    @property
    def symbol(self) -> str:
        """Name of the compiled function; with :data:`EXPORT_PREFIX` before it, the exported symbol."""
        return f"cutlass_aot_{self.digest[:24]}"

    @property
    def group(self) -> str:
        """Digest of what makes kernels functionally equivalent: all but design, constants and generator."""
        return _group(*self._function)

    @property
    def _function(self) -> "_Function":
        """What is computed, on what, for which target."""
        return (
            self.operation, self.operands, self.accumulator, self.epilogue, self.target, self.parameters,
        )  # fmt: skip

    @property
    def layouts(self) -> str:
        """Layout letters of the operands in order, such as ``tnt``."""
        return "".join(operand.layout for operand in self.operands)

    @property
    def group_name(self) -> str:
        """Readable name of the group, such as ``gemm-f16.f16.f16-f32-tnt-sm_90a``."""
        dtypes = ".".join(operand.dtype for operand in self.operands)
        parts = [self.operation, dtypes, self.accumulator, self.layouts, self.target]
        parts = [part for part in parts if part]
        if self.epilogue:
            parts.append(digest(self.epilogue.encode())[:8])
        parts += [_design_word(name, value) for name, value in self.parameters]
        return "-".join(parts)

    @property
    def name(self) -> str:
        """Readable name that is unique in practice: group, design and eight digits of the digest."""
        if not self._name:
            object.__setattr__(self, "_name", self._made_name())
        return self._name

    def _made_name(self) -> str:
        ordered = sorted(self.design, key=lambda item: (_position(item[0]), item[0]))
        design = "-".join(
            _design_word(name, value)
            for name, value in ordered
            # A digest tells a reader nothing, and the name ends with digits of one.
            if value is not False and value != "" and not (isinstance(value, str) and is_digest(value))
        )
        return "-".join(filter(None, (self.group_name, design, self.digest[:8])))


_Function = tuple[str, tuple[OperandConstraint, ...], str, str, str, Values]


@functools.lru_cache(maxsize=1024)
def _encoded_operation(
    operation: str,
    operands: tuple[OperandConstraint, ...],
    accumulator: str,
    epilogue: str,
    target: str,
    parameters: Values,
) -> dict[str, bytes]:
    """Kernels come by the hundred with what :attr:`Kernel._function` says in common."""
    parts = {
        "operation": encode(operation),
        "operands": encode([to_plain(operand) for operand in operands]),
        "accumulator": encode(accumulator),
        "epilogue": encode(epilogue),
        "target": encode(target),
    }
    if parameters:
        parts["parameters"] = encode(dict(parameters))
    return parts


@functools.lru_cache(maxsize=1024)
def _group(*function: Any) -> str:
    return digest(join_map(_encoded_operation(*function)))


def _position(name: str) -> int:
    """Where a design value stands in a kernel's name: what tells kernels apart most comes first."""
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


def key(kernel: Kernel, generator_version: str, toolchain: str) -> str:
    """The kernel's key in a store: everything that can change the object's bytes.

    Args:
        kernel: the whole record.
        generator_version: version and source digest of its generator.
        toolchain: fingerprint of the installed compiler.
    """
    return digest(
        join_map(
            {
                "schema": encode(KEY_SCHEMA),
                "kernel": kernel.encoded(),
                "generator_version": encode_text(generator_version),
                "toolchain": encode_text(toolchain),
                "object": encode(OBJECT_SCHEMA),
            }
        )
    )
