"""Where the rows of tokens go when they are sorted by expert, declared; see ``expert_rows_kernel``."""

from __future__ import annotations

from typing import Any

from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand


@kernel(
    name="expert_rows",
    params={"k": [1, 2, 4, 6, 8]},
    modules=["cutlass_aot.kernels.expert_rows_kernel"],
)
def expert_rows(k: int) -> Any:
    """The end of each expert's rows, the row of each choice, and the token of each row.

    Args:
        k: experts a token.
    """
    from cutlass_aot.kernels.expert_rows_kernel import expert_rows

    return (
        expert_rows,
        [
            Operand("index", "i32", ("T", k), compact=True),
            Operand("offsets", "i32", ("E",), written=True),
            Operand("destination", "i32", ("T", k), written=True, compact=True),
            Operand("source", "i32", (f"{k} * T" if k > 1 else "T",), written=True),
        ],
    )
