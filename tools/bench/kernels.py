"""Time the kernels that are not GEMMs on the present GPU, beside torch and beside a plain copy.

    python -m tools.bench.kernels [BUNDLE] [--rows 1,64,1024,8192] [--json FILE]

Needs torch, a GPU and the bundle of manifests/kernels.toml; no DSL. For each problem: the median time of 50
replays of a CUDA graph with one launch in it, each after a write that empties the L2 cache; the bytes that
have to be read and written at least, over that time; the time of torch's own operations (eager, float32 where
they need it), likewise; and that of a copy of as many bytes by torch, which is what the memory gives.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import cutlass_aot
from cutlass_aot.kernels.gather_reduce import gather_reduce
from cutlass_aot.kernels.rms_norm import rms_norm
from cutlass_aot.kernels.swiglu import swiglu_fp8
from cutlass_aot.runtime.machine.host import installed_version

LAUNCHES = 50
FLUSHED_BYTES = 256 << 20
"""More than the L2 cache of any GPU in use."""


class Problem(NamedTuple):
    """What is timed: ours, torch's, and the bytes that either has to move."""

    name: str
    ours: Callable[[], Any]
    torchs: Callable[[], Any]
    moved: int


def problems(rows: int) -> list[Problem]:
    """One of each kernel, at the sizes of large language models."""
    found = []
    for n in (4096, 14336):
        x = torch.randn(rows, 2 * n, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(rows, n, device="cuda", dtype=torch.float8_e4m3fn)
        scale = torch.empty(rows, n // 128, device="cuda")
        found.append(
            Problem(
                f"swiglu_fp8 n={n} T={rows}",
                _bound(swiglu_fp8(n=n, dtype="f8e4m3"), x, out, scale),
                _bound(_torch_swiglu, x),
                x.nbytes + out.nbytes + scale.nbytes,
            )
        )
    for k in (2, 8):
        expert_out = torch.randn(rows * k, 7168, device="cuda", dtype=torch.bfloat16)
        index = torch.randperm(rows * k, device="cuda").reshape(rows, k).int()
        weight = torch.rand(rows, k, device="cuda")
        out = torch.empty(rows, 7168, device="cuda", dtype=torch.bfloat16)
        found.append(
            Problem(
                f"gather_reduce k={k} N=7168 T={rows}",
                _bound(gather_reduce(k=k, dtype="bf16"), expert_out, index, weight, out),
                _bound(_torch_gather_reduce, expert_out, index.long(), weight),
                expert_out.nbytes + index.nbytes + weight.nbytes + out.nbytes,
            )
        )
    for n in (4096, 7168):
        x = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
        gain = torch.randn(n, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(x)
        found.append(
            Problem(
                f"rms_norm n={n} T={rows}",
                _bound(rms_norm(n=n, dtype="bf16"), x, gain, out, 1e-5),
                _bound(torch.nn.functional.rms_norm, x, (n,), gain, 1e-5),
                x.nbytes + gain.nbytes + out.nbytes,
            )
        )
    return found


def _bound(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _torch_swiglu(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.float().chunk(2, dim=1)
    y = (torch.nn.functional.silu(gate) * up).unflatten(1, (-1, 128))
    scale = y.abs().amax(dim=2, keepdim=True).clamp(min=2.0**-100) / 448
    return (y / scale).to(torch.float8_e4m3fn).flatten(1), scale


def _torch_gather_reduce(expert_out: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (expert_out[index].float() * weight[:, :, None]).sum(dim=1).to(expert_out.dtype)


def seconds(work: Callable[[], Any], flushed: torch.Tensor) -> float:
    """Median time of one run of ``work`` out of a CUDA graph, with a cold L2 cache."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(LAUNCHES):
        flushed.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return float(statistics.median(times))


def main(arguments: list[str] | None = None) -> int:
    """Print one line a problem; see the module's description."""
    parser = argparse.ArgumentParser(description="Time the kernels that are not GEMMs.")
    parser.add_argument("bundle", nargs="?", default="build/bundles/kernels")
    parser.add_argument("--rows", default="1,64,1024,8192", help="rows T, separated by commas")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    # Held: declared functions find it because it is open.
    bundle = cutlass_aot.open(chosen.bundle)
    torch.manual_seed(0)
    flushed = torch.empty(FLUSHED_BYTES, device="cuda", dtype=torch.uint8)
    print(f"{torch.cuda.get_device_name()}, torch {installed_version('torch')}, bundle {bundle.name}")
    print(f"{'problem':36} {'ours µs':>9} {'GB/s':>7} {'torch µs':>9} {'copy µs':>9} {'of a copy':>9}")
    lines = []
    for rows in map(int, chosen.rows.split(",")):
        for problem in problems(rows):
            half = torch.empty(problem.moved // 2, device="cuda", dtype=torch.uint8)
            ours, torchs, copy = (
                seconds(work, flushed)
                for work in (problem.ours, problem.torchs, _bound(torch.empty_like(half).copy_, half))
            )
            lines.append(
                {"problem": problem.name, "ours": ours, "torch": torchs, "copy": copy, "bytes": problem.moved}
            )
            print(
                f"{problem.name:36} {ours * 1e6:9.1f} {problem.moved / ours * 1e-9:7.0f} {torchs * 1e6:9.1f} "
                f"{copy * 1e6:9.1f} {copy / ours:9.2f}"
            )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
