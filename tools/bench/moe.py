"""An expert layer of DeepSeek-V3's size as one CUDA graph: from a bundle, by torch, and by DeepGEMM.

    python -m tools.bench.moe BUNDLE [--tokens 1 8 64 512 4096] [--experts 256] [--hidden 7168]
        [--inner 2048] [--without-others] [-o FILE]

Needs a GPU of compute capability 9.0, a torch that can use it, and the bundle of examples/moe/moe.toml, whose
layer is in examples/moe/layer.py. torch computes in bf16 with ``torch._grouped_mm``; DeepGEMM, where it can
be imported, in FP8 as the bundle does, with groups aligned as it demands. What is around their GEMMs is
compiled by torch.compile. Each is captured as a CUDA graph, and replays take turns; before each the L2 cache
is flushed. The table has the median time in microseconds, and how many times as fast the bundle is as each of
the others. Results are checked against f32 first, with the values that the FP8 weights stand for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cutlass_aot
from tools.bench.command import markdown
from tools.bench.experts import imported_deep_gemm

ROOT = Path(__file__).resolve().parents[2]
TOP_K, GROUPS, CHOSEN_GROUPS, SCALING = 8, 8, 4, 2.5
BOUND = 5e-2
"""Largest relative error (Frobenius norm) against f32, for activations that are rounded to FP8 twice."""
FLUSHED_BYTES = 256 << 20
REPLAYS = 30


def wide(weights: Any, expert: int) -> Any:
    """An expert's matrix in f32, of FP8 with factors."""
    factors = weights.factors[expert].repeat_interleave(128, 0).repeat_interleave(128, 1)
    return weights.values[expert].float() * factors


def chosen(torch: Any, logits: Any, bias: Any) -> tuple[Any, Any]:
    """Weights and experts of each token, as DeepSeek-V3 has it, by torch."""
    scores = logits.sigmoid()
    biased = scores + bias
    by_group = biased.view(len(logits), GROUPS, -1)
    groups = by_group.topk(2, -1).values.sum(-1).topk(CHOSEN_GROUPS, -1).indices
    allowed = torch.zeros(by_group.shape[:2], dtype=torch.bool, device=logits.device).scatter_(
        1, groups, True
    )
    experts = by_group.masked_fill(~allowed[..., None], -torch.inf).flatten(1).topk(TOP_K, -1).indices
    weights = scores.gather(1, experts)
    return weights / weights.sum(-1, keepdim=True) * SCALING, experts


def expected(torch: Any, x: Any, logits: Any, bias: Any, gate_up: Any, down: Any) -> Any:
    """The layer in f32, expert after expert."""
    weights, experts = chosen(torch, logits, bias)
    out = torch.zeros(x.shape, device=x.device)
    for expert in experts.unique().tolist():
        token, place = (experts == expert).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ gate_up(expert).T).chunk(2, -1)
        y = (torch.nn.functional.silu(gate) * up) @ down(expert).T
        out.index_add_(0, token, y * weights[token, place, None])
    return out


def by_torch(torch: Any, x: Any, logits: Any, bias: Any, gate_up: Any, down: Any) -> Callable[[], Any]:
    """The layer in bf16; ``gate_up`` and ``down`` are (experts, n, k)."""
    count = len(gate_up)

    @torch.compile  # type: ignore[untyped-decorator]
    def before(x: Any, logits: Any) -> Any:
        weights, experts = chosen(torch, logits, bias)
        ordered, place = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(ordered, torch.arange(count, device=x.device), right=True).int()
        token = place // TOP_K
        return x[token], ends, token, weights.flatten()[place]

    @torch.compile  # type: ignore[untyped-decorator]
    def between(both: Any) -> Any:
        gate, up = both.float().chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up).bfloat16()

    @torch.compile  # type: ignore[untyped-decorator]
    def after(y: Any, token: Any, weights: Any) -> Any:
        out = torch.zeros(x.shape, device=y.device)
        return out.index_add_(0, token, y.float() * weights[:, None]).bfloat16()

    def layer() -> Any:
        rows, ends, token, weights = before(x, logits)
        both = torch._grouped_mm(rows, gate_up.mT, offs=ends)
        return after(torch._grouped_mm(between(both), down.mT, offs=ends), token, weights)

    return layer


def by_deep_gemm(
    torch: Any, library: Any, x: Any, logits: Any, bias: Any, gate_up: Any, down: Any
) -> Callable[[], Any]:
    """The layer in FP8; each group begins at a multiple of the rows that DeepGEMM demands."""
    count, aligned = len(gate_up.values), library.get_mk_alignment_for_contiguous_layout()
    # As many rows as there can be: graphs have fixed shapes.
    rows = -(-(len(x) * TOP_K + min(count, len(x) * TOP_K) * (aligned - 1)) // aligned) * aligned

    def rounded(values: Any) -> tuple[Any, Any]:
        pieces = values.float().unflatten(-1, (-1, 128))
        factors = pieces.abs().amax(-1).clamp(1e-4) / 448
        narrow = (pieces / factors[..., None]).flatten(-2).to(torch.float8_e4m3fn)
        return narrow, factors.T.contiguous().T

    @torch.compile  # type: ignore[untyped-decorator]
    def before(x: Any, logits: Any) -> Any:
        weights, experts = chosen(torch, logits, bias)
        ordered, place = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(ordered, torch.arange(count, device=x.device), right=True)
        sizes = ends.diff(prepend=ends.new_zeros(1))
        starts = ((sizes + aligned - 1) // aligned * aligned).cumsum(0)
        begin = torch.cat([starts.new_zeros(1), starts[:-1]])
        row = torch.arange(len(ordered), device=x.device) - (ends - sizes)[ordered] + begin[ordered]
        source = torch.zeros(rows, dtype=torch.long, device=x.device).scatter_(0, row, place // TOP_K)
        of_row = torch.full((rows,), -1, dtype=torch.int32, device=x.device)
        of_row = of_row.scatter_(0, row, ordered.int())
        return *rounded(x[source]), of_row, row, place // TOP_K, weights.flatten()[place]

    @torch.compile  # type: ignore[untyped-decorator]
    def between(both: Any) -> Any:
        gate, up = both.float().chunk(2, -1)
        return rounded(torch.nn.functional.silu(gate) * up)

    @torch.compile  # type: ignore[untyped-decorator]
    def after(y: Any, row: Any, token: Any, weights: Any) -> Any:
        out = torch.zeros(x.shape, device=y.device)
        return out.index_add_(0, token, y[row].float() * weights[:, None]).bfloat16()

    def layer() -> Any:
        narrow, factors, of_row, row, token, weights = before(x, logits)
        both = torch.empty(rows, gate_up.values.shape[1], dtype=torch.bfloat16, device=x.device)
        multiply = library.m_grouped_fp8_gemm_nt_contiguous
        multiply((narrow, factors), (gate_up.values, gate_up.factors), both, of_row)
        y = torch.empty(rows, down.values.shape[1], dtype=torch.bfloat16, device=x.device)
        multiply(between(both), (down.values, down.factors), y, of_row)
        return after(y, row, token, weights)

    return layer


def captured(torch: Any, layer: Callable[[], Any]) -> tuple[Any, Any]:
    """A graph of a layer, and its output."""
    # Operands are written on the current stream.
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer()
    return graph, out


def times(torch: Any, graphs: dict[str, Any], flushed: Any) -> dict[str, float]:
    """Median time of a replay, in microseconds."""
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(REPLAYS):
        for name, graph in graphs.items():
            flushed.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            found[name].append(begin.elapsed_time(end) * 1e3)
    return {name: statistics.median(each) for name, each in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 512, 4096])
    parser.add_argument(
        "--experts", type=int, choices=(256, 512), default=256, help="as many as the bundle's top_k_gate has"
    )
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--inner", type=int, default=2048)
    parser.add_argument("--without-others", action="store_true", help="time the bundle alone")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no GPU: torch has none, or is a build without CUDA", file=sys.stderr)
        return 1
    sys.path.insert(0, str(ROOT / "examples" / "moe"))
    from layer import ExpertLayer, Weights  # type: ignore[import-not-found]

    torch.manual_seed(0)
    experts, hidden, inner = arguments.experts, arguments.hidden, arguments.inner

    def weights(n: int, k: int) -> Any:
        """A few different matrices, repeated, which takes less time to make."""
        some = Weights.of(torch.randn(8, n, k, device="cuda") / k**0.5)
        return Weights(*(part.repeat(experts // 8, 1, 1) for part in (some.values, some.factors)))

    gate_up, down = weights(2 * inner, hidden), weights(hidden, inner)
    bias = torch.randn(experts, device="cuda") * 0.1
    layer = ExpertLayer(cutlass_aot.open(arguments.bundle), gate_up, down, bias, SCALING)
    library = None
    if not arguments.without_others:
        library = imported_deep_gemm()
        half = [
            torch.stack([wide(part, expert).bfloat16() for expert in range(experts)])
            for part in (gate_up, down)
        ]
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    record, wrong = [], 0
    for tokens in arguments.tokens:
        x = torch.randn(tokens, hidden, device="cuda").bfloat16()
        logits = torch.randn(tokens, experts, device="cuda")
        layers: dict[str, Callable[[], Any]] = {"bundle": partial(layer, x, logits)}
        if not arguments.without_others:
            layers["torch, bf16"] = by_torch(torch, x, logits, bias, *half)
        if library is not None:
            layers["DeepGEMM"] = by_deep_gemm(torch, library, x, logits, bias, gate_up, down)
        right = expected(torch, x, logits, bias, partial(wide, gate_up), partial(wide, down))
        graphs = {}
        for name, each in layers.items():
            graphs[name], out = captured(torch, each)
            graphs[name].replay()
            error = float((out.float() - right).norm() / right.norm())
            if not error <= BOUND:
                print(f"WRONG: {tokens} tokens: {name}: relative error {error:.2e}")
                wrong += 1
        record.append({"tokens": tokens, "microseconds": times(torch, graphs, flushed)})
    names = list(record[0]["microseconds"])
    rows = [
        [
            str(item["tokens"]),
            *(f"{item['microseconds'][name]:.1f}" for name in names),
            *(f"{item['microseconds'][name] / item['microseconds']['bundle']:.2f}" for name in names[1:]),
        ]
        for item in record
    ]
    print(markdown(("tokens", *names, *(f"{name} / bundle" for name in names[1:])), rows))
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
