"""Element types: their names here, in DLPack, in torch and in the DSL."""

from cutlass_aot.schema.named_tuple import NamedTuple


class DType(NamedTuple):
    """One element type.

    Attributes:
        name: name in manifests, records and messages.
        dlpack: DLPack type code and bits (dlpack.h, ``DLDataTypeCode``).
        torch: attribute of the ``torch`` module, ``""`` if torch has no such type.
        dsl: attribute of the DSL's ``cutlass`` module, and so its name in ``cutlass.operators``.
        torch_packs: elements in one element of the torch type.
        reads: name of the type that its data is stored as; ``""`` if that is itself.
    """

    name: str
    bits: int
    dlpack: tuple[int, int]
    torch: str
    dsl: str
    torch_packs: int = 1
    reads: str = ""

    @property
    def is_float(self) -> bool:
        """Whether it is a floating type."""
        return "f" in self.name

    @property
    def bytes(self) -> int:
        """Width in bytes; ValueError if it is not a whole number."""
        if self.bits % 8:
            raise ValueError(f"an element of {self.name} has {self.bits} bits, no whole number of bytes")
        return self.bits // 8


_ALL = (
    DType("f64", 64, (2, 64), "float64", "Float64"),
    DType("f32", 32, (2, 32), "float32", "Float32"),
    # Its data is f32, which tensor cores round to ten bits of mantissa: another operation than on f32.
    DType("tf32", 32, (2, 32), "float32", "Float32", reads="f32"),
    DType("f16", 16, (2, 16), "float16", "Float16"),
    DType("bf16", 16, (4, 16), "bfloat16", "BFloat16"),
    DType("f8e4m3", 8, (10, 8), "float8_e4m3fn", "Float8E4M3FN"),
    DType("f8e5m2", 8, (12, 8), "float8_e5m2", "Float8E5M2"),
    DType("f8e8m0", 8, (14, 8), "float8_e8m0fnu", "Float8E8M0FNU"),
    DType("f6e2m3", 6, (15, 6), "", "Float6E2M3FN"),
    DType("f6e3m2", 6, (16, 6), "", "Float6E3M2FN"),
    DType("f4e2m1", 4, (17, 4), "float4_e2m1fn_x2", "Float4E2M1FN", torch_packs=2),
    DType("i64", 64, (0, 64), "int64", "Int64"),
    DType("i32", 32, (0, 32), "int32", "Int32"),
    DType("i8", 8, (0, 8), "int8", "Int8"),
    DType("u8", 8, (1, 8), "uint8", "Uint8"),
    # A byte that is 0 or 1.
    DType("bool", 8, (6, 8), "bool", "Boolean"),
    DType("i4", 4, (0, 4), "", "Int4"),
)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in _ALL}
"""Element types by name: floating types widest first, then integers."""

BY_TORCH: dict[str, str] = {dtype.torch: dtype.name for dtype in _ALL if dtype.torch and not dtype.reads}
"""Names by those of ``torch``, without types that are stored as another (``reads``)."""

BY_DLPACK: dict[tuple[int, int], str] = {dtype.dlpack: dtype.name for dtype in _ALL if not dtype.reads}
"""Names by DLPack type code and bits, without types that are stored as another."""

BY_DSL: dict[str, str] = {dtype.dsl: dtype.name for dtype in _ALL if not dtype.reads}
"""Names by those of the DSL, without types that are stored as another."""
