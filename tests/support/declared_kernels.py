"""Kernels that tests declare; what they return is made up, and no DSL is needed."""

from __future__ import annotations

from typing import Any

from cutlass_aot import Operand, kernel

CALLS: list[dict[str, Any]] = []


def compute(*_: Any) -> None:
    """Stands for a ``@cute.jit`` function."""


@kernel(name="scale_rows", params={"n": [64, 128], "fast": [False, True]}, targets=["sm_90a", "sm_100a"])
def scale_rows(n: int, fast: bool) -> Any:
    """Scales the rows of a matrix."""
    CALLS.append({"n": n, "fast": fast})
    if fast and n == 64:
        return None
    return (
        compute,
        [
            Operand("x", "bf16", ("T", n), alignment=16, divisibility=8),
            Operand("out", "bf16", ("T", n), written=True),
            Operand("factor", "f32", ()),
        ],
        (n,),
    )


@kernel(name="tiled", params={"tile": [32, 64], "stages": [2, 3]})
def tiled(tile: int, stages: int) -> Any:
    """Parameters that have the short names of a GEMM's design."""
    return compute, [Operand("out", "f32", ("N", tile), written=True)], (stages,)


@kernel(
    name="tuned",
    params={"dtype": ["f32", "bf16"]},
    tuning={"threads": [128, 256], "wide": [False, True]},
    cost="ceil(N / threads / sm_count) * (threads + 64) - wide",
    targets=["sm_90a"],
)
def tuned(dtype: str, threads: int, wide: bool) -> Any:
    """Parameters of which a caller names the first alone; there is none that is wide and has few threads."""
    if wide and threads < 256:
        return None
    operands = [Operand("x", dtype, ("N",)), Operand("out", dtype, ("N",), written=True)]
    return compute, operands, (threads, wide)


@kernel(name="without_parameters")
def without_parameters() -> Any:
    return compute, [Operand("out", "f32", ("N",), written=True)]


def copy(x: Any, out: Any, threads: int, stream: Any) -> None: ...


@kernel(
    name="wrong_answers",
    params={
        "how": [
            "text",
            "no_operands",
            "twice",
            "unwritten",
            "not_operands",
            "a_number",
            "a_word",
            "few",
            "many",
            "unknown_type",
        ],
    },
)
def wrong_answers(how: str) -> Any:
    out = Operand("out", "f32", ("N",), written=True)
    return {
        "text": "nothing",
        "no_operands": (compute, []),
        "twice": (compute, [out, out]),
        "unwritten": (compute, [Operand("x", "f32", ("N",))]),
        "not_operands": (compute, ["x"]),
        "a_number": (compute, [out], (4)),
        "a_word": (compute, [out], "fast"),
        "few": (copy, [out], (4,)),
        "many": (copy, [Operand("x", "f32", ("N",)), out], (4, 8)),
        "unknown_type": (compute, [Operand("out", "bf17", ("N",), written=True)]),
    }[how]


def takes_scale(scale: int) -> None: ...
def takes_out(out: int) -> None: ...
def takes_targets(targets: int) -> None: ...
def takes_group(group: int) -> None: ...
def takes_name(name: int) -> None: ...
