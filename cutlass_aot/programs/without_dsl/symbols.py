"""The DSL's symbolic extents, which stand for values that are known at each call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cutlass_aot.programs.without_dsl.placeholders import by_name


class SymInt:
    """A symbolic extent, a multiple of its divisibility."""

    def __init__(self, width: int = 32, *, divisibility: int = 1, symbol: str | None = None) -> None:
        if width not in (32, 64):
            raise ValueError(f"Unsupported width: {width}")
        self._width, self._divisibility, self._symbol = width, divisibility, symbol

    width = property(lambda self: self._width)
    divisibility = property(lambda self: self._divisibility)
    symbol = property(lambda self: self._symbol)

    def _values(self) -> tuple[Any, ...]:
        return self._width, self._divisibility, self._symbol

    def __hash__(self) -> int:
        return hash(self._values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymInt) and self._values() == other._values()

    def __repr__(self) -> str:
        name = "" if self._symbol is None else f"{self._symbol} "
        width = "" if self._width == 32 else f"i{self._width} "
        return f"{name}?{{{width}div={self._divisibility}}}"

    def __mul__(self, other: Any) -> Any:
        width, divisibility = _parts(self, other)
        return SymInt(width, divisibility=self._divisibility * divisibility)

    __rmul__ = __mul__

    def __mod__(self, other: Any) -> Any:
        width, divisibility = _parts(self, other)
        if self._divisibility % divisibility == 0:
            return 0
        return SymInt(width, divisibility=math.gcd(self._divisibility, divisibility))

    def __rmod__(self, other: Any) -> Any:
        return other % self._divisibility if isinstance(other, int) else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        width, divisibility = _parts(self, other)
        exact = isinstance(other, int) and self._divisibility % divisibility == 0
        return SymInt(width, divisibility=self._divisibility // divisibility if exact else 1)


def _parts(symbol: Any, other: Any) -> tuple[int, int]:
    if isinstance(other, int):
        return symbol.width, other
    if isinstance(other, SymInt):
        return max(symbol.width, other.width), other.divisibility
    raise TypeError(f"a symbolic extent was computed with a {type(other).__qualname__}")


def sym_int(width: int = 32, *, divisibility: int = 1, symbol: str | None = None) -> SymInt:
    """A symbolic extent of 32 or 64 bits."""
    return SymInt(width, divisibility=divisibility, symbol=symbol)


def sym_int32(divisibility: int = 1, symbol: str | None = None) -> SymInt:
    """A symbolic extent of 32 bits."""
    return SymInt(32, divisibility=divisibility, symbol=symbol)


def sym_int64(divisibility: int = 1, symbol: str | None = None) -> SymInt:
    """A symbolic extent of 64 bits."""
    return SymInt(64, divisibility=divisibility, symbol=symbol)


def symbols() -> Mapping[str, Any]:
    """``SymInt`` and the functions that make one."""
    return by_name(SymInt, sym_int, sym_int32, sym_int64)
