"""Requests for tests, such as a program makes of ``cute.compile``."""

from __future__ import annotations

from typing import Any

from cutlass_aot.schema.requests.request import CallByName, CompiledRequest, Request

TENSOR = {
    "tensor": {
        "dtype": "cutlass.base_dsl.typing:BFloat16",
        "space": "gmem",
        "alignment": 16,
        "strides_32": False,
        "shape": [{"symbol": 0, "width": 32, "divisibility": 8}, 4096],
        "strides": [4096, 1],
    }
}


def request(**changes: Any) -> Request:
    """A request of a normalisation, with some fields changed."""
    values: dict[str, Any] = {
        "callable": "ops.norm:Norm.__call__",
        "configuration": {"object": "ops.norm:Norm", "fields": {"N": 4096, "stages": 1}},
        "arguments": {
            "mX": TENSOR,
            "weight": None,
            "eps": {"dynamic": "float"},
            "stream": {"stream": "environment"},
        },
        "options": {"opt-level": 3},
        "target": "sm_90a",
        "device": {"sm_count": 132},
        "code": {
            "ops": "1.2.0 " + "ab" * 32,
            "model": "- " + "cd" * 32,
            "nvidia-cutlass-dsl": "4.8.1 " + "ef" * 32,
        },
        "state": {"environment:OPS_FAST": None, "ops.norm:UNROLL": 4},
    }  # fmt: skip
    return Request(**{**values, **changes})


def compiled(call: CallByName | None = None, **changes: Any) -> CompiledRequest:
    """The same, and how its compiled function is called."""
    return CompiledRequest(request(**changes), call)
