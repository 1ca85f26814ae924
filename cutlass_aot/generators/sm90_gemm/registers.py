"""Values in registers that the compiler takes for unknown ones, which keeps it from moving or keeping them.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op


def settled(value: Any) -> Any:
    """A sum as it is here, for the compiler an unknown one.

    To the compiler, the instruction that waits for the tensor cores has nothing to do with their results: it
    moves the conversion of a result before the wait. The assembler sees that, and makes every tensor-core
    instruction wait for the one before.
    """
    return unknown(value, cutlass.Float32, "=f,0")


@dsl_user_op  # type: ignore[untyped-decorator]
def unknown(value: Any, dtype: Any, registers: str, *, loc: Any = None, ip: Any = None) -> Any:
    """A value that the compiler takes for a new one, where this stands; it emits no code."""
    return dtype(
        llvm.inline_asm(
            dtype.mlir_type,
            [dtype(value).ir_value(loc=loc, ip=ip)],
            "",
            registers,
            has_side_effects=True,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            loc=loc,
            ip=ip,
        )
    )
