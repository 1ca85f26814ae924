"""The kernel record: one fully specified instance, as plain data."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.dtypes import DTYPES
from cutlass_aot.schema.encoding import digest, encode, encode_text, join_map
from cutlass_aot.schema.targets import Target

KEY_SCHEMA = 1
"""Version of what a key covers. Raise it when the meaning of a field changes."""

EXPORT_PREFIX = "__tvm_ffi_"
"""What the exported symbol of a compiled function begins with: TVM-FFI's calling convention."""

LAUNCHER_SYMBOLS = (
    f"{EXPORT_PREFIX}cutlass_aot_chooser",
    f"{EXPORT_PREFIX}cutlass_aot_launcher",
    "cutlass_aot_open_short_way",
    "cutlass_aot_short_way",
)
"""What a bundle's launcher exports; see ``launcher.c`` and ``short_way.c`` in ``builder/native``."""

LAYOUT_LETTERS = {-1: "t", -2: "n"}
"""Letters of ``cutlass.operators``: t is row-major (last mode contiguous), n column-major."""

DesignValue = str | int | bool | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OperandConstraint:
    """What a kernel demands of one operand.

    Attributes:
        name: the caller's name for it, such as ``a``.
        dtype: element type (:data:`~cutlass_aot.schema.dtypes.DTYPES`).
        extents: one name a mode, outermost first, such as ``("L", "M", "K")``. Extents of one name are
            equal across operands. The first mode is the batch; a tensor without it counts as a batch of one.
        contiguous: the mode with stride 1, counted from the end (-1 is row-major, -2 column-major).
        divisibility: elements; the contiguous extent and every other stride are multiples of it.
        alignment: bytes; the data pointer is a multiple of it.
        written: whether the kernel writes it.
    """

    name: str
    dtype: str
    extents: tuple[str, ...]
    contiguous: int
    divisibility: int
    alignment: int
    written: bool = False

    @property
    def layout(self) -> str:
        """Layout letter, as in ``cutlass.operators``."""
        return LAYOUT_LETTERS[self.contiguous]

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "extents": self.extents,
            # Of exactly these types: equal constraints give equal bytes.
            "contiguous": int(self.contiguous),
            "divisibility": int(self.divisibility),
            "alignment": int(self.alignment),
            "written": bool(self.written),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> OperandConstraint:
        """Read what :meth:`to_record` gave."""
        constraint = cls(
            name=str(record["name"]),
            dtype=str(record["dtype"]),
            extents=tuple(str(extent) for extent in record["extents"]),
            contiguous=int(record["contiguous"]),
            divisibility=int(record["divisibility"]),
            alignment=int(record["alignment"]),
            written=bool(record["written"]),
        )
        if constraint.dtype not in DTYPES or constraint.contiguous not in LAYOUT_LETTERS:
            raise ValueError(f"operand {constraint.name!r} has an unknown dtype or layout")
        if constraint.divisibility < 1 or constraint.alignment < 1 or len(constraint.extents) < 2:
            raise ValueError(f"operand {constraint.name!r} has impossible constraints")
        return constraint


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
    """

    operation: str
    generator: str
    operands: tuple[OperandConstraint, ...]
    accumulator: str
    epilogue: str
    design: tuple[tuple[str, DesignValue], ...]
    target: str
    constants: tuple[tuple[str, int], ...] = ()
    workspace_bytes: int = 0
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
        digest: str = "",
    ) -> Kernel:
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
        )
        object.__setattr__(made, "_digest", digest)
        return made

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return {
            "operation": self.operation,
            "generator": self.generator,
            "operands": [operand.to_record() for operand in self.operands],
            "accumulator": self.accumulator,
            "epilogue": self.epilogue,
            "design": dict(self.design),
            "target": self.target,
            "constants": dict(self.constants),
            "workspace_bytes": self.workspace_bytes,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Kernel:
        """Read what :meth:`to_record` gave.

        Raises:
            CorruptFile: if a field is missing or of the wrong kind.
        """
        try:
            design = {
                str(name): tuple(value) if isinstance(value, list) else value
                for name, value in record["design"].items()
            }
            Target.parse(record["target"])
            return cls.make(
                operation=str(record["operation"]),
                generator=str(record["generator"]),
                operands=tuple(OperandConstraint.from_record(item) for item in record["operands"]),
                accumulator=str(record["accumulator"]),
                epilogue=str(record["epilogue"]),
                design=design,
                target=str(record["target"]),
                constants={str(name): int(value) for name, value in record["constants"].items()},
                workspace_bytes=int(record["workspace_bytes"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CorruptFile(f"a kernel record is malformed: {error!r}") from None

    def encoded(self) -> bytes:
        """The canonical encoding of :meth:`to_record`, from parts that kernels share."""
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
    def _function(self) -> tuple[str, tuple[OperandConstraint, ...], str, str, str]:
        """What is computed, on what, for which target."""
        return self.operation, self.operands, self.accumulator, self.epilogue, self.target

    @property
    def layouts(self) -> str:
        """Layout letters of the operands in order, such as ``tnt``."""
        return "".join(operand.layout for operand in self.operands)

    @property
    def group_name(self) -> str:
        """Readable name of the group, such as ``gemm-f16.f16.f16-f32-tnt-sm_90a``."""
        dtypes = ".".join(operand.dtype for operand in self.operands)
        parts = [self.operation, dtypes, self.accumulator, self.layouts, self.target]
        if self.epilogue:
            parts.append(digest(self.epilogue.encode())[:8])
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
            _design_word(name, value) for name, value in ordered if value is not False and value != ""
        )
        return f"{self.group_name}-{design}-{self.digest[:8]}"


@functools.lru_cache(maxsize=1024)
def _encoded_operation(
    operation: str, operands: tuple[OperandConstraint, ...], accumulator: str, epilogue: str, target: str
) -> dict[str, bytes]:
    """Kernels come by the hundred with what :attr:`Kernel._function` says in common."""
    return {
        "operation": encode(operation),
        "operands": encode([operand.to_record() for operand in operands]),
        "accumulator": encode(accumulator),
        "epilogue": encode(epilogue),
        "target": encode(target),
    }


@functools.lru_cache(maxsize=1024)
def _group(
    operation: str, operands: tuple[OperandConstraint, ...], accumulator: str, epilogue: str, target: str
) -> str:
    return digest(join_map(_encoded_operation(operation, operands, accumulator, epilogue, target)))


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
            }
        )
    )
