"""Objects of NumPy and torch as values."""

from __future__ import annotations

import sys
from typing import Any

from cutlass_aot.programs.describe.values import dsl
from cutlass_aot.programs.describe.values.description import Description, Passed
from cutlass_aot.programs.describe.values.objects import an_object
from cutlass_aot.schema.requests.request import Value


def of_numpy(description: Description, value: Any, passed: Passed) -> Value:
    """A number or a dtype of NumPy."""
    if hasattr(value, "tobytes") and value.shape == ():
        return {"numpy": str(value.dtype), "bytes": value.tobytes()}
    if any(base.__qualname__ == "dtype" for base in type(value).__mro__):
        return {"numpy": str(value)}
    return an_object(description, value, passed)


def of_torch(description: Description, value: Any, passed: Passed) -> Value:
    """A tensor of torch, or a dtype, device, layout or memory format."""
    kind = type(value)
    if kind.__qualname__ in ("dtype", "device", "layout", "memory_format"):
        return {"torch": str(value)}
    if any(base.__qualname__ == "Tensor" for base in kind.__mro__):
        if passed is Passed.CONSTANT:
            description.refuse(
                "a live tensor, whose values would be compiled in: pass it as an argument instead"
            )
        # As the DSL adapts it.
        runtime = sys.modules["cutlass.cute.runtime"]
        return dsl.tensor(description, runtime.from_dlpack(value).mark_layout_dynamic(), passed)
    return an_object(description, value, passed)
