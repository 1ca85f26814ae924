"""SwiGLU into FP8 with scales as the epilogue of a GEMM for sm_90a, against a kernel after the GEMM.

    python -m tools.bench.epilogues QUANTIZED KERNELS GEMMS... [--launches 20]

Needs a GPU of compute capability 9.0, a torch that can use it, and the bundles of
manifests/sm90_quantized.toml and manifests/kernels.toml (with kernels for sm_90a), and those of
manifests/sm90.toml and manifests/sm90_scaled.toml for the GEMMs.

Rows of the weights alternate: the gate's and the value's. With an epilogue, one kernel stores half as many
columns in FP8, with a scale for each row and 128 of them. Without, a GEMM stores all in bf16, which
``fused_swiglu_fp8`` reads. Times are taken as by :mod:`tools.bench.experts`, which says how: from the start
of the first kernel to the end of the last. Results of both are compared first.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import cutlass_aot
from cutlass_aot.kernels.swiglu import fused_swiglu_fp8
from tools.bench.command import markdown
from tools.bench.experts import FLUSHED_BYTES, Case, relative_error, times

SWIGLU = "x = silu(even(accum)) * odd(accum); scale = max(abs(x)) / 448; D = x / scale"
ROWS = (1, 16, 128, 1024, 8192)
DENSE = ((28672, 4096), (8192, 2048))
"""Rows of the weights, gate and value, and k, of dense layers."""

GROUPS = ((8, 4096, 7168), (32, 3072, 2048))
"""Groups, rows of the weights of each, and k."""

BOUND = 2e-2
"""Largest relative error (Frobenius norm) of one against the other: rounding to bf16 between the two kernels
takes a few hundredths of the elements to a neighbour in FP8."""


class Cases:
    """Makes problems, for bundles with the epilogue, and of GEMMs without one."""

    def __init__(self, torch: Any, quantized: Any, gemms: list[Any]) -> None:
        self._torch = torch
        self._quantized = quantized
        self._gemms = gemms
        self._swiglu = fused_swiglu_fp8(
            dtype="bf16", gate="alternating", out_dtype="f8e4m3", scales="columns", masked=False
        )

    def all(self) -> Iterator[Case]:
        """One problem after the other."""
        for (n, k), m in product(DENSE, ROWS):
            yield self._made("gemm", m, n, k, 0)
        for (groups, n, k), m in product(GROUPS, ROWS[1:]):
            yield self._made("grouped_gemm", m, n, k, groups)

    def _made(self, operation: str, m: int, n: int, k: int, groups: int) -> Case:
        """One problem: ``m`` rows, in ``groups`` of equal size if there are any."""
        torch = self._torch
        device = {"device": "cuda"}
        x = torch.rand((m, k), **device).mul_(2).sub_(1).bfloat16()
        shape = (groups, n, k) if groups else (n, k)
        weights = torch.rand(shape, **device).mul_(2).sub_(1).bfloat16().transpose(-1, -2)
        more = []
        if groups:
            more = [(torch.arange(1, groups + 1, **device) * m // groups).int()]
        both = torch.empty((m, n), dtype=torch.bfloat16, **device)
        found, scales = {}, {}
        for name in ("epilogue", "two kernels"):
            found[name] = torch.empty((m, n // 2), dtype=torch.float8_e4m3fn, **device)
            # Columns of scales begin at multiples of 16 bytes, as the next GEMM takes them.
            scales[name] = torch.zeros((n // 256, -(-m // 4) * 4), **device)[:, :m].T
        fused = partial(
            self._quantized.run,
            operation,
            x,
            weights,
            found["epilogue"],
            *more,
            epilogue=SWIGLU,
            scale=scales["epilogue"],
        )
        bundle = next(b for b in self._gemms if b.kernels(operation=operation, dtypes="bf16.bf16.bf16*"))
        gemm = partial(bundle.run, operation, x, weights, both, *more)
        swiglu = partial(self._swiglu, both, found["two kernels"], scales["two kernels"], None)

        def two_kernels() -> None:
            gemm()
            swiglu()

        two_kernels()
        blocks = scales["two kernels"].repeat_interleave(128, 1)
        expected = found["two kernels"].float() * blocks
        name = f"{f'{groups} groups, ' if groups else ''}{m} x {n} x {k}"

        def error(out: Any) -> float:
            return relative_error(out.float() * scales["epilogue"].repeat_interleave(128, 1), expected)

        launches: dict[str, Callable[[], object]] = {
            "epilogue": fused,
            "two kernels": two_kernels,
            "GEMM alone": gemm,
        }
        return Case(name, 2.0 * m * n * k, launches, {"epilogue": found["epilogue"]}, error)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("quantized", type=Path)
    parser.add_argument("kernels", type=Path)
    parser.add_argument("gemms", type=Path, nargs="+")
    parser.add_argument("--launches", type=int, default=20)
    arguments = parser.parse_args()
    import torch

    torch.manual_seed(0)
    # The declared kernel takes its code from whatever bundle is open.
    quantized, _, *gemms = map(cutlass_aot.open, (arguments.quantized, arguments.kernels, *arguments.gemms))
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows, ratios, wrong = [], [], 0
    for case in Cases(torch, quantized, gemms).all():
        case.launches["epilogue"]()
        error = case.check(case.outputs["epilogue"])
        if not error <= BOUND:
            print(f"WRONG: {case.name}: relative error {error:.2e}", file=sys.stderr)
            wrong += 1
        taken = times(torch, case, flushed, arguments.launches)
        ratios.append(taken["two kernels"] / taken["epilogue"])
        rows.append([case.name, *(f"{taken[name]:.1f}" for name in case.launches), f"{ratios[-1]:.2f}"])
        del case
        torch.cuda.empty_cache()
    print(markdown(("problem", "epilogue, us", "two kernels", "GEMM alone", "times as fast"), rows))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"The epilogue is {mean:.2f} times as fast in the geometric mean, {min(ratios):.2f} at least.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
