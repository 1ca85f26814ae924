"""Arithmetic of the DSL's that programs do with Python's integers before anything is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlass_aot.programs.without_dsl.placeholders import by_name, refuse


def integers() -> Mapping[str, Any]:
    """``ceil_div`` and ``round_up``."""

    def checked(name: str, *values: Any) -> None:
        if not all(type(value) is int for value in values) or values[1] < 1:
            refuse(f"cutlass.cute.{name} of {', '.join(map(repr, values))} was called")

    def ceil_div(input: int, tiler: int) -> int:
        checked("ceil_div", input, tiler)
        return -(-input // tiler)

    def round_up(a: int, b: int) -> int:
        checked("round_up", a, b)
        return -(-a // b) * b

    return by_name(ceil_div, round_up)
