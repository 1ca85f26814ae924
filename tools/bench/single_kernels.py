"""Kernels that are not GEMMs, timed alone: the parts ``kernels`` and ``convolution`` of tools/bench/gpu.py.

``kernels`` times the kernels of manifests/kernels.toml beside torch's own operations (eager, float32 where
they need it), and beside a copy by torch of as many bytes as have to be read and written at least, which is
what the memory gives. A CUDA graph has one launch, and each of 50 replays comes after a write that empties
the L2 cache.

``convolution`` times the forward convolutions of manifests/convolution.toml beside cuDNN, which chooses by
measuring (``benchmark``): layers of a residual network (ResNet-50), and two large ones that are equal as
GEMMs; bf16. A CUDA graph has 20 launches, which take turns among copies of the operands that together exceed
the L2 cache; it is replayed 15 times.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import cutlass_aot
from cutlass_aot.kernels.conv2d_fprop_plan import Convolution
from cutlass_aot.kernels.gather_reduce import gather_reduce
from cutlass_aot.kernels.rms_norm import rms_norm
from cutlass_aot.kernels.swiglu import swiglu_fp8
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from tools.bench.command import Result, Row, Table

WARM_UPS = 3
FLUSHED_BYTES = 256 << 20
"""More than the L2 cache of any GPU in use."""

LAYERS = (
    ("7x7 stem, 8 channels", 224, 8, 64, (7, 7), 2, 3),
    ("1x1", 56, 64, 256, (1, 1), 1, 0),
    ("3x3", 56, 64, 64, (3, 3), 1, 1),
    ("3x3, stride 2", 56, 128, 128, (3, 3), 2, 1),
    ("1x1, stride 2", 56, 256, 512, (1, 1), 2, 0),
    ("3x3", 28, 128, 128, (3, 3), 1, 1),
    ("3x3", 14, 256, 256, (3, 3), 1, 1),
    ("1x1", 14, 1024, 256, (1, 1), 1, 0),
    ("3x3", 7, 512, 512, (3, 3), 1, 1),
    ("1x1, deep", 56, 2304, 256, (1, 1), 1, 0),
    ("3x3, wide", 56, 256, 256, (3, 3), 1, 1),
)
"""Name, height and width, C, K, filter, stride, padding."""


def event_ms(action: Callable[[], object]) -> float:
    """Milliseconds between two CUDA events around an action."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    action()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def graph_seconds(
    calls: Sequence[Callable[[], object]], replays: int, before: Callable[[], object] = lambda: None
) -> float:
    """Seconds of one of some calls, which are captured in one CUDA graph: the median over replays.

    Args:
        calls: in the order of the graph.
        replays: that count, after a few that warm up.
        before: done before each replay, outside the time.
    """
    with torch.cuda.stream(torch.cuda.Stream()):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(WARM_UPS + replays):
        before()
        times.append(event_ms(graph.replay))
    return statistics.median(times[WARM_UPS:]) / 1e3 / len(calls)


# ---- kernels -----------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """What is timed: ours, torch's, and the bytes that either has to move."""

    name: str
    ours: Callable[[], Any]
    torchs: Callable[[], Any]
    moved: int


def problems(rows: int) -> Iterator[Problem]:
    """One of each kernel, at the sizes of large language models."""
    random = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    empty = partial(torch.empty, device="cuda")
    for n in (4096, 14336):
        x = random(rows, 2 * n)
        out, scale = empty(rows, n, dtype=torch.float8_e4m3fn), empty(rows, n // 128)
        yield Problem(
            f"swiglu_fp8 n={n} T={rows}",
            partial(swiglu_fp8(n=n, dtype="f8e4m3"), x, out, scale),
            partial(_torch_swiglu, x),
            x.nbytes + out.nbytes + scale.nbytes,
        )
    for k in (2, 8):
        expert_out, out = random(rows * k, 7168), empty(rows, 7168, dtype=torch.bfloat16)
        index = torch.randperm(rows * k, device="cuda").reshape(rows, k).int()
        weight = torch.rand(rows, k, device="cuda")
        yield Problem(
            f"gather_reduce k={k} N=7168 T={rows}",
            partial(gather_reduce(k=k, dtype="bf16"), expert_out, index, weight, out),
            partial(_torch_gather_reduce, expert_out, index.long(), weight),
            expert_out.nbytes + index.nbytes + weight.nbytes + out.nbytes,
        )
    for n in (4096, 7168):
        x, gain = random(rows, n), random(n)
        out = torch.empty_like(x)
        yield Problem(
            f"rms_norm n={n} T={rows}",
            partial(rms_norm(n=n, dtype="bf16"), x, gain, out, 1e-5),
            partial(torch.nn.functional.rms_norm, x, (n,), gain, 1e-5),
            x.nbytes + gain.nbytes + out.nbytes,
        )


def _torch_swiglu(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.float().chunk(2, dim=1)
    y = (torch.nn.functional.silu(gate) * up).unflatten(1, (-1, 128))
    scale = y.abs().amax(dim=2, keepdim=True).clamp(min=2.0**-100) / 448
    return (y / scale).to(torch.float8_e4m3fn).flatten(1), scale


def _torch_gather_reduce(expert_out: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (expert_out[index].float() * weight[:, :, None]).sum(dim=1).to(expert_out.dtype)


def part_kernels(arguments: argparse.Namespace, path: Path) -> Result:
    """Time every problem for each number of rows."""
    # Held: declared functions find it because it is open.
    bundle = cutlass_aot.open(path)
    torch.manual_seed(0)
    flushed = torch.empty(FLUSHED_BYTES, device="cuda", dtype=torch.uint8)
    numbers = {}
    for problem in itertools.chain.from_iterable(map(problems, arguments.rows)):
        half = torch.empty(problem.moved // 2, device="cuda", dtype=torch.uint8)
        copy = partial(torch.empty_like(half).copy_, half)
        times = [graph_seconds([call], 50, flushed.zero_) for call in (problem.ours, problem.torchs, copy)]
        numbers[problem.name] = {
            **dict(zip(("ours", "torch", "copy"), times, strict=True)),
            "bytes": problem.moved,
        }
    rows = [
        (
            name, f"{own['ours'] * 1e6:.1f}", f"{own['bytes'] / own['ours'] * 1e-9:.0f}",
            f"{own['torch'] * 1e6:.1f}", f"{own['copy'] * 1e6:.1f}", f"{own['copy'] / own['ours']:.2f}",
        )
        for name, own in numbers.items()
    ]  # fmt: skip
    head = ("problem", "ours, µs", "GB/s", "torch, µs", "copy, µs", "of a copy")
    return Result([], numbers, [Table(f"Kernels of {bundle.name}", head, rows)])


# ---- convolution -------------------------------------------------------------------------------------------


def layer_times(bundle: Any, images: int, row: tuple[Any, ...]) -> tuple[float, dict[Convolution, float]]:
    """cuDNN's seconds for a layer, and those of the bundle's kernels for it."""
    _, size, channels, filters, filter_shape, stride, padding = row
    geometry = (filter_shape, (stride, stride), (padding, padding), (1, 1))
    names = ("filter", "stride", "padding", "dilation")
    # The size of the output is the same with any tile.
    rows, columns = Convolution(*geometry, (128, 128, 64), 1).outputs(size, size)
    elements = images * (size * size * channels + rows * columns * filters)
    copies = max(2, 3 * torch.cuda.get_device_properties(0).L2_cache_size // (2 * elements) + 1)
    random = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    operands = [
        (
            random(images, size, size, channels),
            random(filters, *filter_shape, channels),
            torch.empty(images, rows, columns, filters, device="cuda", dtype=torch.bfloat16),
        )
        for _ in range(copies)
    ]

    def seconds(launch: Callable[..., object]) -> float:
        calls = itertools.islice(itertools.cycle([partial(launch, *given) for given in operands]), 20)
        return graph_seconds(list(calls), 15)

    def cudnn(x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor) -> None:
        image, taps = x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
        torch.nn.functional.conv2d(image, taps, None, stride, padding)

    ours = {}
    target = runnable_targets(bundle.targets, torch.cuda.get_device_capability())[0]
    for kernel in bundle.kernels(operation="conv2d_fprop", target=target):
        known = dict(kernel.kernel.parameters)
        if known["dtype"] == "bf16" and tuple(known[name] for name in names) == geometry:
            design = Convolution(*geometry, known["tile_shape"], known["blocks_per_sm"])
            ours[design] = seconds(kernel.launch)
    if not ours:
        raise RuntimeError(f"bundle {bundle.name} has no bf16 convolution of {geometry}")
    return seconds(cudnn), ours


def part_convolution(arguments: argparse.Namespace, path: Path) -> Result:
    """Time the fastest kernel of each layer against cuDNN."""
    torch.backends.cudnn.benchmark = True
    bundle, images = cutlass_aot.open(path), arguments.images
    rows, numbers, ratios = [], [], []
    with torch.inference_mode():
        for row in LAYERS:
            name, size, channels, filters, (r, s), _, _ = row
            theirs, ours = layer_times(bundle, images, row)
            design, best = min(ours.items(), key=lambda item: item[1])
            heights, widths = design.outputs(size, size)
            work = 2 * images * heights * widths * filters * channels * r * s
            ratios.append(theirs / best)
            numbers.append({"layer": name, "size": size, "cudnn": theirs, "ours": best})
            rows.append(
                (
                    name, f"{size} x {size}", f"{channels}", f"{filters}", f"{theirs * 1e6:.1f} µs",
                    f"{best * 1e6:.1f} µs", "x".join(map(str, design.tile)), f"{design.blocks}",
                    f"{work / best / 1e12:.0f}", f"{ratios[-1]:.2f}",
                )
            )  # fmt: skip
    head = (
        "layer", "H x W", "C", "K", "cuDNN", "ours", "tile", "blocks of an SM", "TFLOP/s", "cuDNN / ours",
    )  # fmt: skip
    mean = statistics.geometric_mean(ratios)
    return Result(
        [Row(f"speed of convolutions, {images} images, bf16, cuDNN as 1", f"{mean:.2f}")],
        {"layers": numbers},
        [Table("Convolutions", head, rows)],
    )
