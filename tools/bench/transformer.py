"""A transformer block with its linear layers by a bundle's kernels, beside the block as torch has it.

It is the part ``transformer`` of tools/bench/gpu.py.

The block has random weights in bf16: RMSNorm, grouped-query attention by torch's own
scaled_dot_product_attention, RMSNorm, SwiGLU. Both sides have the same weights; the linear layers of one are
swapped by cutlass_aot.torch.replace_linear.

Prefill is one sequence, causal. Decode is one new token of each of so many sequences, with their earlier keys
and values in a cache. Each runs in eager mode, and compiled by inductor in its default mode and with CUDA
graphs ("reduce-overhead"). The two sides take turns, so that both see the same clocks; a time is the median
over the rounds of CUDA events around some calls, for each new token.

The error of an element is its difference to stock torch in eager mode, relative to the element's magnitude
plus the root mean square of all; the largest has to be below 2^-5, since the two sides round different sums
to bf16 at each of seven layers. The part fails if one is not, or if a module of the DSL was imported.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlass_aot
import cutlass_aot.torch as aot
from tools.bench.command import Result, Table
from tools.bench.single_kernels import event_ms

TOLERANCE = 2.0**-5
PREFILL = (2048,)
DECODE = (1, 16, 64)
MODES = ("eager", "default", "reduce-overhead")
DSL = frozenset(("cutlass", "nvidia_cutlass_dsl"))
"""Top-level modules of the DSL."""

MINIMUM_MS = 5.0
"""Calls between two events take at least this long together: an event itself has a resolution."""


@dataclass(frozen=True)
class Config:
    """Sizes of a block."""

    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    intermediate: int = 14336

    @property
    def head(self) -> int:
        """Size of one head."""
        return self.hidden // self.heads


class Block(nn.Module):  # type: ignore[misc]
    """One block: attention and SwiGLU, each with a norm before it and around it a residual connection."""

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__()
        self.config = config
        options["bias"] = False
        self.attention_norm = nn.RMSNorm(config.hidden, eps=1e-5, **_without_bias(options))
        self.query = nn.Linear(config.hidden, config.heads * config.head, **options)
        self.key = nn.Linear(config.hidden, config.kv_heads * config.head, **options)
        self.value = nn.Linear(config.hidden, config.kv_heads * config.head, **options)
        self.attention_out = nn.Linear(config.heads * config.head, config.hidden, **options)
        self.mlp_norm = nn.RMSNorm(config.hidden, eps=1e-5, **_without_bias(options))
        self.gate = nn.Linear(config.hidden, config.intermediate, **options)
        self.up = nn.Linear(config.hidden, config.intermediate, **options)
        self.down = nn.Linear(config.intermediate, config.hidden, **options)
        self.keys: Tensor | None
        self.values: Tensor | None
        self.register_buffer("keys", None)
        self.register_buffer("values", None)

    def set_cache(self, keys: Tensor | None, values: Tensor | None) -> None:
        """Keep earlier keys and values, (batch, kv_heads, context + 1, head) with room for the new token."""
        self.keys, self.values = keys, values

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, hidden) to the same: causal, or, with a cache, one token after those in it."""
        batch, tokens, _ = x.shape
        hidden = self.attention_norm(x)
        query, key, value = (
            layer(hidden).view(batch, tokens, -1, self.config.head).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        cached = self.keys is not None and self.values is not None
        if self.keys is not None and self.values is not None:
            self.keys[:, :, -1:] = key
            self.values[:, :, -1:] = value
            key, value = self.keys, self.values
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=not cached, enable_gqa=True
        )
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, tokens, -1))
        hidden = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))


def _without_bias(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "bias"}


@dataclass(frozen=True)
class Timing:
    """One line of the table.

    Attributes:
        phase: prefill or decode.
        tokens: new tokens of a call.
        mode: of :data:`MODES`.
        stock: microseconds for each token, None where this could not run.
        ours: likewise.
        error: the largest, see the module's description.
        note: why it could not run.
    """

    phase: str
    tokens: int
    mode: str
    stock: float | None = None
    ours: float | None = None
    error: float | None = None
    note: str = ""


def largest_error(ours: Tensor, stock: Tensor) -> float:
    """The largest error of an element; see the module's description."""
    expected = stock.double()
    size = expected.abs() + expected.square().mean().sqrt()
    return float(((ours.double() - expected).abs() / size).max().item())


def time_in_turns(functions: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Milliseconds of a call of each function, on the current CUDA stream; they take turns."""

    def timed(function: Callable[[], Any], calls: int) -> float:
        return event_ms(lambda: [function() for _ in range(calls)]) / calls

    for function in functions:
        timed(function, 3)
    calls = [max(1, round(MINIMUM_MS / timed(function, 3))) for function in functions]
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for position, function in enumerate(functions):
            times[position].append(timed(function, calls[position]))
    return [statistics.median(own) for own in times]


def compiled(block: Block, mode: str) -> Callable[[Tensor], Tensor]:
    """The block as a function, in one of the modes."""
    if mode == "eager":
        return block
    inner = torch.compile(block, mode=mode, fullgraph=True, dynamic=False)

    def call(x: Tensor) -> Tensor:
        # What a CUDA graph gave before may be overwritten now.
        torch.compiler.cudagraph_mark_step_begin()
        result: Tensor = inner(x)
        return result

    return call


def measure(stock: Block, ours: Block, x: Tensor, phase: str, mode: str, rounds: int) -> Timing:
    """One line of the table."""
    tokens = x.shape[0] * x.shape[1]
    if mode != "eager" and importlib.util.find_spec("triton") is None:
        return Timing(phase, tokens, mode, note="inductor needs triton, which is not installed")
    torch.compiler.reset()
    expected = stock(x).clone()
    first = compiled(stock, mode)
    try:
        first(x)
    except Exception as failure:
        if mode == "eager":
            raise
        # Not for want of our kernels: this side has none.
        reason = str(failure).strip().splitlines() or [""]
        return Timing(phase, tokens, mode, note=f"stock torch cannot: {type(failure).__name__}: {reason[0]}")
    second = compiled(ours, mode)
    for _ in range(3):
        first(x)
        result = second(x).clone()
    error = largest_error(result, expected)
    ms, our_ms = time_in_turns([lambda: first(x), lambda: second(x)], rounds)
    return Timing(phase, tokens, mode, 1000 * ms / tokens, 1000 * our_ms / tokens, error)


def table(rows: Sequence[Timing]) -> Table:
    """The results."""
    head = ("phase", "new tokens", "mode", "stock, µs/token", "ours, µs/token", "stock / ours", "worst error")
    lines = []
    for row in rows:
        if row.stock is None or row.ours is None or row.error is None:
            cells = ["—", row.note, "—", "—"]
        else:
            cells = [
                f"{row.stock:.3f}", f"{row.ours:.3f}", f"{row.stock / row.ours:.2f}", f"{row.error:.1e}",
            ]  # fmt: skip
        lines.append((row.phase, str(row.tokens), row.mode, *cells))
    return Table("A transformer block", head, lines)


def make_block(config: Config, **options: Any) -> Block:
    """A block with random weights, each layer's output about as large as its input."""
    block = Block(config, **options)
    block.requires_grad_(False).eval()
    for parameter in block.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    return block


def measure_all(bundle: cutlass_aot.Bundle, context: int, rounds: int) -> list[Timing]:
    """Every line of the table, on the current GPU."""
    torch.manual_seed(0)
    config = Config()
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    stock = make_block(config, **options)
    ours = copy.deepcopy(stock)
    report = aot.replace_linear(ours, bundle)
    print(report, file=sys.stderr)
    if report.refused:
        raise RuntimeError(f"bundle {bundle.name} does not serve all linear layers of the block")
    problems = [("prefill", 1, tokens) for tokens in PREFILL] + [("decode", batch, 1) for batch in DECODE]
    rows = []
    for phase, batch, tokens in problems:
        x = torch.randn(batch, tokens, config.hidden, **options)
        for block in (stock, ours):
            block.set_cache(None, None)
        if phase == "decode":
            shape = (batch, config.kv_heads, context + 1, config.head)
            keys, values = torch.randn(shape, **options), torch.randn(shape, **options)
            stock.set_cache(keys, values)
            ours.set_cache(keys.clone(), values.clone())
        for mode in MODES:
            rows.append(measure(stock, ours, x, phase, mode, rounds))
            print(rows[-1], file=sys.stderr)
    return rows


def failures(rows: Sequence[Timing]) -> list[str]:
    """What the results should not have shown."""
    wrong = [
        f"{row.phase} of {row.tokens} tokens, {row.mode}: error {row.error:.1e} is over {TOLERANCE:.1e}"
        for row in rows
        # NaN too.
        if row.error is not None and not row.error <= TOLERANCE
    ]
    imported = sorted({name.partition(".")[0] for name in sys.modules} & DSL)
    return wrong + [f"the DSL was imported: {name}" for name in imported]


@torch.no_grad()  # type: ignore[untyped-decorator]
def part_transformer(arguments: argparse.Namespace, path: Path) -> Result:
    """Measure the block; fails if a result is wrong."""
    rows = measure_all(cutlass_aot.open(path), arguments.context, arguments.rounds)
    wrong = failures(rows)
    if wrong:
        raise RuntimeError("; ".join(wrong))
    return Result([], {"timings": [asdict(row) for row in rows]}, [table(rows)])
