"""Element types: their names here, in DLPack, in torch and in the DSL."""

from __future__ import annotations

from typing import NamedTuple


class DType(NamedTuple):
    """One element type.

    Attributes:
        name: the name used in manifests, records and messages.
        bits: width in bits.
        dlpack: DLPack type code and bits (dlpack.h, ``DLDataTypeCode``).
        torch: attribute of the ``torch`` module.
        dsl: attribute of the DSL's ``cutlass`` module, and so its name in ``cutlass.operators``.
    """

    name: str
    bits: int
    dlpack: tuple[int, int]
    torch: str
    dsl: str

    @property
    def bytes(self) -> int:
        """Width in bytes."""
        return self.bits // 8


_ALL = (
    DType("f64", 64, (2, 64), "float64", "Float64"),
    DType("f32", 32, (2, 32), "float32", "Float32"),
    DType("f16", 16, (2, 16), "float16", "Float16"),
    DType("bf16", 16, (4, 16), "bfloat16", "BFloat16"),
    DType("f8e4m3", 8, (10, 8), "float8_e4m3fn", "Float8E4M3FN"),
    DType("f8e5m2", 8, (12, 8), "float8_e5m2", "Float8E5M2"),
    DType("i32", 32, (0, 32), "int32", "Int32"),
    DType("i8", 8, (0, 8), "int8", "Int8"),
    DType("u8", 8, (1, 8), "uint8", "Uint8"),
)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in _ALL}
"""Every known element type by name, widest first."""
