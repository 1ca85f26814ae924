"""Kernels that are not GEMMs, timed alone: the parts ``kernels`` and ``convolution`` of tools/bench/gpu.py.

``kernels`` times the kernels of manifests/kernels.toml beside torch's own operations (eager, float32 where
they need it), beside quack's where it has them and is installed (quack-kernels), and beside a copy by torch
of as many bytes as have to be read and written at least, which is what the memory gives. A CUDA graph has one
launch, and each of 50 replays comes after a write that empties the L2 cache.

``designs`` times all designs of kernels that reduce rows in the same way, at other lengths: the fastest that
keeps rows in registers, the fastest that keeps them in shared memory, and what the cost formula chooses.

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
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

import cutlass_aot
from cutlass_aot.kernels.conv2d_fprop_plan import Convolution
from cutlass_aot.kernels.expert_rows import expert_rows
from cutlass_aot.kernels.gather_reduce import gather_reduce
from cutlass_aot.kernels.gather_rows import gather_rows
from cutlass_aot.kernels.layer_norm import layer_norm
from cutlass_aot.kernels.quantize import quantize_fp8
from cutlass_aot.kernels.rms_norm import fused_rms_norm, rms_norm, rms_norm_fp8
from cutlass_aot.kernels.softmax import softmax
from cutlass_aot.kernels.swiglu import fused_swiglu_fp8, swiglu_fp8
from cutlass_aot.kernels.top_k_gate import top_k_gate
from cutlass_aot.runtime.declared import PrebuiltFunction
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from tools.bench.command import Result, Row, Table

WARM_UPS = 3
REPLAYS = 50
FLUSHED_BYTES = 256 << 20
"""More than the L2 cache of any GPU in use."""

LENGTHS = (128, 2048, 4096, 7168, 16384)
SOFTMAX_LENGTHS = ((4096, "bf16"), (32768, "bf16"), (128256, "bf16"), (32768, "f32"))
"""Elements of rows at the sizes of large language models."""

DESIGN_LENGTHS = (3072, 8200, 12288, 20480, 28672)
DESIGN_SOFTMAX_LENGTHS = ((10000, "bf16"), (50304, "bf16"), (152064, "bf16"))
"""Elements of rows for which all designs are timed."""

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

    The calls also run on another stream, after all that the GPU was given before.

    Args:
        calls: in the order of the graph.
        replays: that count, after a few that warm up.
        before: done before each replay, outside the time.
    """
    # Operands are written on the current stream: indices of rows that are not there yet are any numbers.
    torch.cuda.synchronize()
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
    """What is timed: ours, torch's, quack's if it has it, and the bytes that each has to move."""

    name: str
    ours: Callable[[], Any]
    torchs: Callable[[], Any]
    moved: int
    quacks: Callable[[], Any] | None = None


def quack(module: str, name: str) -> Callable[..., Any] | None:
    """A function of quack; None if it, or the DSL that it imports, is not installed."""
    try:
        found: Callable[..., Any] = getattr(import_module(f"quack.{module}"), name)
    except ModuleNotFoundError:
        return None
    return found


def problems(rows: int) -> Iterator[Problem]:
    """One of each kernel, at the sizes of large language models."""
    yield from _row_problems(rows, LENGTHS, SOFTMAX_LENGTHS)
    yield from _expert_problems(rows)


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype)


def _moved(*tensors: torch.Tensor) -> int:
    """The bytes of tensors, each read or written once."""
    return sum(tensor.nbytes for tensor in tensors)


def _row_problems(
    rows: int, lengths: Sequence[int], softmax_lengths: Sequence[tuple[int, str]]
) -> Iterator[Problem]:
    """Normalisations and softmax of rows of so many elements."""
    normalised, softmaxed = quack("rmsnorm", "rmsnorm_fwd"), quack("softmax", "softmax_fwd")
    for n in lengths:
        x, gain, residual = _random(rows, n), _random(n), _random(rows, n)
        out, total = torch.empty_like(x), torch.empty_like(x)
        norm = partial(torch.nn.functional.rms_norm, x, (n,), gain, 1e-5)
        theirs = normalised and partial(normalised, x, gain, eps=1e-5)
        forms: list[int | str] = ["any", n] if n in (128, 2048, 4096, 7168) else ["any"]
        for form in forms:
            yield Problem(
                f"rms_norm n={n}{' compiled in' if form == n else ''} T={rows}",
                partial(rms_norm(n=form, dtype="bf16"), x, gain, out, 1e-5),
                norm, _moved(x, gain, out), theirs,
            )  # fmt: skip
        yield Problem(
            f"fused_rms_norm n={n} T={rows}",
            partial(
                fused_rms_norm(dtype="bf16", weight="bf16", residual=True),
                x, residual, gain, out, total, 1e-5,
            ),
            partial(_torch_add_norm, x, residual, gain),
            _moved(x, residual, gain, out, total),
            normalised and partial(normalised, x, gain, residual=residual, eps=1e-5),
        )  # fmt: skip
        quantised, scale = _empty(rows, n, dtype=torch.float8_e4m3fn), _empty(n // 128, rows).T
        to_fp8 = rms_norm_fp8(
            dtype="bf16", weight="bf16", residual=False, out_dtype="f8e4m3", scales="columns"
        )
        yield Problem(
            f"rms_norm_fp8 n={n} T={rows}",
            partial(to_fp8, x, None, gain, quantised, None, scale, 1e-5),
            partial(_quantised, norm),
            _moved(x, gain, quantised, scale),
        )
        bias = _random(n)
        yield Problem(
            f"layer_norm n={n} T={rows}",
            partial(layer_norm(dtype="bf16", weight="bf16", bias=True), x, gain, bias, out, 1e-5),
            partial(torch.nn.functional.layer_norm, x, (n,), gain, bias, 1e-5),
            _moved(x, gain, bias, out),
        )
    for n, name in softmax_lengths:
        x = _random(rows, n, dtype=torch.bfloat16 if name == "bf16" else torch.float32)
        out = torch.empty_like(x)
        yield Problem(
            f"softmax {name} n={n} T={rows}",
            partial(softmax(dtype=name), x, out),
            partial(torch.softmax, x, -1),
            _moved(x, out),
            softmaxed and partial(softmaxed, x),
        )


def _expert_problems(rows: int) -> Iterator[Problem]:
    """What is between the GEMMs of a mixture-of-experts layer."""
    for n in (2048, 4096, 14336):
        x, out = _random(rows, 2 * n), _empty(rows, n, dtype=torch.float8_e4m3fn)
        scale, columns = _empty(rows, n // 128), _empty(n // 128, rows).T
        moved = _moved(x, out, scale)
        for form in ("any", n):
            yield Problem(
                f"swiglu_fp8 n={n}{' compiled in' if form == n else ''} T={rows}",
                partial(swiglu_fp8(n=form, dtype="f8e4m3"), x, out, scale),
                partial(_torch_swiglu, x),
                moved,
            )
        for gate in ("halves", "alternating"):
            function = fused_swiglu_fp8(
                dtype="bf16", gate=gate, out_dtype="f8e4m3", scales="columns", masked=False
            )
            yield Problem(
                f"fused_swiglu_fp8 {gate} n={n} T={rows}",
                partial(function, x, out, columns, None),
                partial(_torch_swiglu, x),
                moved,
            )
    x, out, scale = _random(rows, 7168), _empty(rows, 7168, dtype=torch.float8_e4m3fn), _empty(rows, 56)
    yield Problem(
        f"quantize_fp8 n=7168 T={rows}",
        partial(quantize_fp8(dtype="bf16", out_dtype="f8e4m3", scales="rows"), x, out, scale),
        partial(_quantised, lambda: x),
        _moved(x, out, scale),
    )
    for k in (2, 8):
        expert_out, out = _random(rows * k, 7168), _empty(rows, 7168, dtype=torch.bfloat16)
        index = torch.randperm(rows * k, device="cuda").reshape(rows, k).int()
        weight = torch.rand(rows, k, device="cuda")
        yield Problem(
            f"gather_reduce k={k} N=7168 T={rows}",
            partial(gather_reduce(k=k, dtype="bf16"), expert_out, index, weight, out),
            partial(_torch_gather_reduce, expert_out, index.long(), weight),
            _moved(expert_out, index, weight, out),
        )
    logits, weight = _random(rows, 256, dtype=torch.float32), _empty(rows, 8)
    index = _empty(rows, 8, dtype=torch.int32)
    gate_of = top_k_gate(
        experts=256, k=8, dtype="f32", scoring="softmax", bias=False, normalised=True, groups="none"
    )
    yield Problem(
        f"top_k_gate experts=256 k=8 T={rows}",
        partial(gate_of, logits, None, weight, index, 1.0),
        partial(_torch_gate, logits),
        _moved(logits, weight, index),
    )
    index = torch.randint(256, (rows, 8), device="cuda", dtype=torch.int32)
    offsets, destination = _empty(256, dtype=torch.int32), torch.empty_like(index)
    source = _empty(rows * 8, dtype=torch.int32)
    yield Problem(
        f"expert_rows E=256 k=8 T={rows}",
        partial(expert_rows(k=8), index, offsets, destination, source),
        partial(_torch_expert_rows, index),
        _moved(index, offsets, destination, source),
    )
    x, scale = _random(rows, 7168).to(torch.float8_e4m3fn), _empty(rows, 56)
    out, out_scale = _empty(rows * 8, 7168, dtype=torch.float8_e4m3fn), _empty(56, rows * 8).T
    source = (torch.randperm(rows * 8, device="cuda") // 8).int()
    yield Problem(
        f"gather_rows f8e4m3 n=7168 T={rows} k=8",
        partial(gather_rows(dtype="f8e4m3", scales="rows"), x, scale, source, out, out_scale),
        partial(_torch_gather_rows, x, scale, source.long()),
        _moved(x, scale, source, out, out_scale),
    )


def _quantised(function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    y = function().float().unflatten(1, (-1, 128))
    scale = y.abs().amax(dim=2, keepdim=True).clamp(min=2.0**-100) / 448
    return (y / scale).to(torch.float8_e4m3fn).flatten(1), scale


def _torch_swiglu(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.float().chunk(2, dim=1)
    return _quantised(lambda: torch.nn.functional.silu(gate) * up)


def _torch_add_norm(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return torch.nn.functional.rms_norm(total, (total.shape[1],), gain, 1e-5), total


def _torch_gather_reduce(expert_out: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (expert_out[index].float() * weight[:, :, None]).sum(dim=1).to(expert_out.dtype)


def _torch_gate(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weight, index = logits.softmax(dim=1).topk(8)
    return weight / weight.sum(dim=1, keepdim=True), index


def _torch_expert_rows(index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    order = index.flatten().sort(stable=True).indices
    destination = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device="cuda"))
    return torch.zeros(256, device="cuda").index_add_(
        0, index.flatten(), torch.ones(len(order), device="cuda")
    ).cumsum(0), destination, order // 8  # fmt: skip


def _torch_gather_rows(
    x: torch.Tensor, scale: torch.Tensor, source: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.view(torch.uint8)[source], scale[source].T.contiguous()


def part_kernels(arguments: argparse.Namespace, path: Path) -> Result:
    """Time every problem for each number of rows."""
    # Held: declared functions find it because it is open.
    bundle = cutlass_aot.open(path)
    torch.manual_seed(0)
    flushed = torch.empty(FLUSHED_BYTES, device="cuda", dtype=torch.uint8)
    numbers, rows = {}, []
    for problem in itertools.chain.from_iterable(map(problems, arguments.rows)):
        half = torch.empty(problem.moved // 2, device="cuda", dtype=torch.uint8)
        calls: dict[str, Callable[[], object]] = {
            "ours": problem.ours,
            "torch": problem.torchs,
            "copy": partial(torch.empty_like(half).copy_, half),
        }
        if problem.quacks is not None:
            calls["quack"] = problem.quacks
        own = {name: graph_seconds([call], REPLAYS, flushed.zero_) for name, call in calls.items()}
        numbers[problem.name] = {**own, "bytes": problem.moved}
        rows.append(
            (
                problem.name, f"{own['ours'] * 1e6:.1f}", f"{problem.moved / own['ours'] * 1e-9:.0f}",
                f"{own['torch'] * 1e6:.1f}", f"{own['quack'] * 1e6:.1f}" if "quack" in own else "",
                f"{own['copy'] * 1e6:.1f}", f"{own['copy'] / own['ours']:.2f}",
            )
        )  # fmt: skip
    head = ("problem", "ours, µs", "GB/s", "torch, µs", "quack, µs", "copy, µs", "of a copy")
    return Result([], numbers, [Table(f"Kernels of {bundle.name}", head, rows)])


def part_designs(arguments: argparse.Namespace, path: Path) -> Result:
    """Time every design of kernels that reduce rows, for each number of rows."""
    bundle = cutlass_aot.open(path)
    torch.manual_seed(0)
    flushed = torch.empty(FLUSHED_BYTES, device="cuda", dtype=torch.uint8)
    numbers, rows, regrets = {}, [], []
    made = (_row_problems(rows, DESIGN_LENGTHS, DESIGN_SOFTMAX_LENGTHS) for rows in arguments.rows)
    for problem in itertools.chain.from_iterable(made):
        assert isinstance(problem.ours, partial)
        assert isinstance(problem.ours.func, PrebuiltFunction)
        function, operands = problem.ours.func, problem.ours.args
        kernels = [k for k in function.kernels() if "staged" in k.design and k.supports(*operands)]
        targets = runnable_targets({k.target for k in kernels}, torch.cuda.get_device_capability())[:1]
        kernels = [k for k in kernels if k.target in targets]
        if not kernels:
            continue
        times = {
            kernel: graph_seconds([partial(kernel.launch, *operands)], REPLAYS, flushed.zero_)
            for kernel in kernels
        }
        chosen = graph_seconds([problem.ours], REPLAYS, flushed.zero_)
        fastest = [
            min((time for kernel, time in times.items() if kernel.design["staged"] is staged), default=None)
            for staged in (False, True)
        ]
        best = min(times.values())
        regrets.append(chosen / best)
        numbers[problem.name] = {"chosen": chosen} | {kernel.name: time for kernel, time in times.items()}
        cells = [f"{time * 1e6:.1f}" if time else "" for time in (*fastest, chosen)]
        rows.append((problem.name, *cells, f"{chosen / best:.2f}"))
    head = ("problem", "in registers, µs", "in shared memory, µs", "chosen, µs", "over the fastest")
    if not regrets:
        raise SystemExit(
            f"{bundle.name} has no designs of kernels that reduce rows: build manifests/kernels.toml"
        )
    mean = statistics.geometric_mean(regrets)
    measured = f"{mean:.3f} in the geometric mean, {max(regrets):.2f} at most, {len(regrets)} problems"
    title = f"Designs of {bundle.name}"
    return Result([Row("the chosen design over the fastest", measured)], numbers, [Table(title, head, rows)])


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
