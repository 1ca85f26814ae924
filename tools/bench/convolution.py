"""Time the forward convolutions of a bundle against cuDNN: the table of docs/internals/convolution.md.

    cutlass-aot build manifests/convolution.toml
    python -m tools.bench.convolution build/bundles/convolution [--images 32]

It needs a GPU that runs the bundle, and torch. Layers are those of a residual network (ResNet-50), and two
large ones that are equal as GEMMs; bf16. One time is that of a graph of 20 launches, which take turns among
copies of the operands that together exceed the L2 cache; a figure is the median of 15, after 3 that warm up.
cuDNN chooses by measuring (``benchmark``).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cutlass_aot
from cutlass_aot.kernels.conv2d_fprop_plan import Convolution

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

LAUNCHES, WARM_UPS, REPLAYS = 20, 3, 15
OPERATION = "conv2d_fprop"
ANY_TILE = ((128, 128, 64), 1)


def median_seconds(torch: Any, calls: Sequence[Callable[[], object]]) -> float:
    """Of one call: a graph of calls that take turns, replayed."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in range(LAUNCHES):
            calls[launch % len(calls)]()
    times = []
    for _ in range(WARM_UPS + REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / LAUNCHES)
    return float(statistics.median(times[WARM_UPS:]))


def layer(torch: Any, bundle: Any, images: int, row: tuple[Any, ...]) -> tuple[float, dict[Any, float]]:
    """cuDNN's seconds for a layer, and those of the bundle's kernels by tile and blocks."""
    _, size, channels, filters, filter_shape, stride, padding = row
    geometry = (filter_shape, (stride, stride), (padding, padding), (1, 1))
    rows, columns = Convolution(*geometry, *ANY_TILE).outputs(size, size)
    elements = images * (size * size * channels + rows * columns * filters)
    copies = max(2, 3 * torch.cuda.get_device_properties(0).L2_cache_size // (2 * elements) + 1)
    operands = []
    for _ in range(copies):
        x = torch.randn(images, size, size, channels, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(filters, *filter_shape, channels, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(images, rows, columns, filters, device="cuda", dtype=torch.bfloat16)
        operands.append((x, weight, out))

    def cudnn(x: Any, weight: Any) -> Callable[[], object]:
        image, taps = x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
        return lambda: torch.nn.functional.conv2d(image, taps, None, stride, padding)

    theirs = median_seconds(torch, [cudnn(x, weight) for x, weight, _ in operands])
    ours = {}
    for kernel in bundle.kernels(operation=OPERATION):
        known = dict(kernel.kernel.parameters)
        wanted = dict(zip(("filter", "stride", "padding", "dilation"), geometry, strict=True))
        if known["dtype"] == "bf16" and all(known[name] == value for name, value in wanted.items()):
            calls = [lambda given=given, kernel=kernel: kernel.launch(*given) for given in operands]
            ours[known["tile_shape"], known["blocks_per_sm"]] = median_seconds(torch, calls)
    return theirs, ours


def main() -> None:
    """Print the table."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--images", type=int, default=32)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    bundle = cutlass_aot.open(arguments.bundle)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.images} images, bf16\n")
    print("| layer | H x W | C | K | cuDNN | ours | tile | blocks of an SM | TFLOP/s | cuDNN / ours |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ratios = []
    with torch.inference_mode():
        for row in LAYERS:
            name, size, channels, filters, (r, s), stride, padding = row
            theirs, ours = layer(torch, bundle, arguments.images, row)
            (tile, blocks), seconds = min(ours.items(), key=lambda item: item[1])
            convolution = Convolution((r, s), (stride,) * 2, (padding,) * 2, (1, 1), tile, blocks)
            rows, columns = convolution.outputs(size, size)
            work = 2 * arguments.images * rows * columns * filters * channels * r * s
            ratios.append(theirs / seconds)
            print(
                f"| {name} | {size} x {size} | {channels} | {filters} | {theirs * 1e6:.1f} µs | "
                f"{seconds * 1e6:.1f} µs | {'x'.join(map(str, tile))} | {blocks} | "
                f"{work / seconds / 1e12:.0f} | {ratios[-1]:.2f} |",
                flush=True,
            )
    print(f"\ngeometric mean of cuDNN / ours: {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
