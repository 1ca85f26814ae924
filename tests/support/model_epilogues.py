"""Epilogues that models use, each as a formula and by torch. Those that cannot be written stand at the end.

Each name says what it is and who has it. A reference takes the product and the operands in f64, vectors along
M as columns, and gives the outputs: D, then the others by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

OWN = torch.nn.functional
Operands = Mapping[str, Mapping[str, object]]


class ModelEpilogue(NamedTuple):
    """One epilogue.

    Attributes:
        text: the formula.
        operands: as in a manifest.
        reference: of the product and the operands by name; a tensor, or a tuple of them.
        out: element type of D.
    """

    text: str
    reference: Callable[..., Any]
    operands: Operands = MappingProxyType({})
    out: str = "bf16"


ROW, COLUMN, MATRIX, MASK = (
    {"extents": "N", "dtype": "bf16"}, {"extents": "M"}, {"extents": "MN", "dtype": "bf16"},
    {"extents": "MN", "dtype": "bool"},
)  # fmt: skip
STORED = {"extents": "MN", "dtype": "f32"}
GELU = "0.5 * {0} * (1 + erf({0} * 0.70710678))"
"""torch.nn.functional.gelu with approximate="none"."""

MODEL_EPILOGUES: Mapping[str, ModelEpilogue] = {
    "bias": ModelEpilogue("D = accum + bias", lambda x, bias: x + bias, {"bias": ROW}),
    "bias and relu": ModelEpilogue(
        "D = relu(accum + bias)", lambda x, bias: (x + bias).relu(), {"bias": ROW}
    ),
    "gelu by tanh (GPT-2)": ModelEpilogue(
        "D = gelu(accum + bias)", lambda x, bias: OWN.gelu(x + bias, approximate="tanh"), {"bias": ROW}
    ),
    "gelu (BERT, ViT)": ModelEpilogue(
        f"t = accum + bias; D = {GELU.format('t')}", lambda x, bias: OWN.gelu(x + bias), {"bias": ROW}
    ),
    "quick gelu (CLIP)": ModelEpilogue(
        "D = accum * sigmoid(1.702 * accum)", lambda x: x * (1.702 * x).sigmoid()
    ),
    "silu": ModelEpilogue("D = silu(accum)", OWN.silu),
    "SwiGLU, the gate from another GEMM (Llama)": ModelEpilogue(
        "D = silu(gate) * accum", lambda x, gate: OWN.silu(gate) * x, {"gate": MATRIX}
    ),
    "GeGLU by tanh (Gemma)": ModelEpilogue(
        "D = gelu(gate) * accum", lambda x, gate: OWN.gelu(gate, approximate="tanh") * x, {"gate": MATRIX}
    ),
    "GeGLU (T5 1.1)": ModelEpilogue(
        f"D = {GELU.format('gate')} * accum", lambda x, gate: OWN.gelu(gate) * x, {"gate": MATRIX}
    ),
    "ReGLU": ModelEpilogue("D = relu(gate) * accum", lambda x, gate: gate.relu() * x, {"gate": MATRIX}),
    "clamped SwiGLU (gpt-oss)": ModelEpilogue(
        "g = minimum(gate, 7); D = g * sigmoid(1.702 * g) * (clamp(accum, -7, 7) + 1)",
        lambda x, gate: gate.clamp(max=7) * (1.702 * gate.clamp(max=7)).sigmoid() * (x.clamp(-7, 7) + 1),
        {"gate": MATRIX},
    ),
    "squared relu (Primer, Nemotron)": ModelEpilogue("D = relu(accum) ** 2", lambda x: x.relu() ** 2),
    "leaky relu": ModelEpilogue(
        "D = where(accum > 0, accum, 0.01 * accum)", lambda x: OWN.leaky_relu(x, 0.01)
    ),
    "elu": ModelEpilogue("D = where(accum > 0, accum, exp(accum) - 1)", OWN.elu),
    "softplus with a bias (Mamba's time step)": ModelEpilogue(
        "D = softplus(accum + bias)", lambda x, bias: torch.logaddexp(x + bias, 0 * x), {"bias": ROW}
    ),
    "mish (YOLOv4)": ModelEpilogue("D = accum * tanh(softplus(accum))", OWN.mish),
    "hardswish (MobileNetV3)": ModelEpilogue("D = hardswish(accum)", OWN.hardswish),
    "snake (BigVGAN)": ModelEpilogue(
        "D = accum + sin(alpha * accum) ** 2 / alpha",
        lambda x, alpha: x + (alpha * x).sin() ** 2 / alpha,
        {"alpha": {"extents": "N"}},
    ),
    "soft cap (Gemma 2)": ModelEpilogue(
        "D = cap * tanh(accum / cap)", lambda x, cap: cap * (x / cap).tanh(), {"cap": {}}
    ),
    "sigmoid gating (Qwen3-Next's attention)": ModelEpilogue(
        "D = sigmoid(accum) * attended", lambda x, attended: x.sigmoid() * attended, {"attended": MATRIX}
    ),
    "router scores with a bias (DeepSeek-V3)": ModelEpilogue(
        "D = sigmoid(accum); biased = D + bias",
        lambda x, bias: (x.sigmoid(), x.sigmoid() + bias),
        {"bias": {"extents": "N"}, "biased": STORED},
        out="f32",
    ),
    "bias and residual": ModelEpilogue(
        "D = accum + bias + C", lambda x, bias, C: x + bias + C, {"bias": ROW, "C": MATRIX}
    ),
    "layer scale and residual (CaiT, DINOv2)": ModelEpilogue(
        "D = C + scale * (accum + bias)",
        lambda x, scale, bias, C: C + scale * (x + bias),
        {"scale": ROW, "bias": ROW, "C": MATRIX},
    ),
    "residual, gated for each token (DiT)": ModelEpilogue(
        "D = C + gate * accum", lambda x, gate, C: C + gate * x, {"gate": MATRIX, "C": MATRIX}
    ),
    "residual with the sum of squares for an RMSNorm": ModelEpilogue(
        "D = accum + C; squares = sum(D ** 2)",
        lambda x, C: (x + C, ((x + C) ** 2).sum(-1)),
        {"C": MATRIX, "squares": COLUMN},
    ),
    "residual with the moments for a LayerNorm": ModelEpilogue(
        "D = accum + C; first = sum(D); second = sum(D * D)",
        lambda x, C: (x + C, (x + C).sum(-1), ((x + C) ** 2).sum(-1)),
        {"C": MATRIX, "first": COLUMN, "second": COLUMN},
    ),
    "RMSNorm of the input, by its sum of squares": ModelEpilogue(
        "D = accum * rsqrt(squares / width + 1e-6)",
        lambda x, squares, width: x * (squares / width + 1e-6).rsqrt(),
        {"squares": COLUMN, "width": {}},
    ),
    "dropout by a mask": ModelEpilogue(
        "D = where(mask, accum * scale, 0)",
        lambda x, mask, scale: torch.where(mask != 0, x * scale, 0.0),
        {"mask": MASK, "scale": {}},
    ),
    "dropout by a mask of bytes, with a residual": ModelEpilogue(
        "D = C + mask * accum * scale",
        lambda x, C, mask, scale: C + mask * x * scale,
        {"mask": {"extents": "MN", "dtype": "u8"}, "C": MATRIX, "scale": {}},
    ),
    "masked scores": ModelEpilogue(
        "D = where(mask, accum * scale, -1e30)",
        lambda x, mask, scale: torch.where(mask != 0, x * scale, -1e30),
        {"mask": MASK, "scale": {}},
    ),
    "causal scores with a linear bias (ALiBi)": ModelEpilogue(
        "D = where(key <= query, accum * scale + slope * (key - query), -1e30)",
        lambda x, key, query, scale, slope: torch.where(
            key <= query, x * scale + slope * (key - query), -1e30
        ),
        {"key": {"extents": "N"}, "query": {"extents": "M"}, "scale": {}, "slope": {}},
    ),
    "numerators of a softmax, with their sums": ModelEpilogue(
        "D = exp(accum * scale - most); total = sum(D)",
        lambda x, scale, most: ((x * scale - most).exp(), (x * scale - most).exp().sum(-1)),
        {"scale": {}, "most": COLUMN, "total": COLUMN},
    ),
    "a logarithm of probabilities": ModelEpilogue(
        "D = accum - log(total)", lambda x, total: x - total.log(), {"total": COLUMN}, out="f32"
    ),
    "scales of rows and columns (FP8, INT8)": ModelEpilogue(
        "D = accum * rows * columns",
        lambda x, rows, columns: x * rows * columns,
        {"rows": COLUMN, "columns": {"extents": "N"}},
    ),
    "FP8 by a scale, with the largest magnitude": ModelEpilogue(
        "D = clamp(accum * scale, -448, 448); amax = max(abs(accum))",
        lambda x, scale: ((x * scale).clamp(-448, 448), x.abs().max().reshape(1)),
        {"scale": {"extents": "1"}, "amax": {"extents": "1"}},
        out="f8e4m3",
    ),
    "SwiGLU into FP8": ModelEpilogue(
        "D = silu(gate) * accum * scale",
        lambda x, gate, scale: (OWN.silu(gate) * x * scale).clamp(-448, 448),
        {"gate": MATRIX, "scale": {}},
        out="f8e4m3",
    ),
    "INT8 by a scale (SmoothQuant)": ModelEpilogue(
        "D = clamp(round(accum * scale), -128, 127)",
        lambda x, scale: (x * scale).round().clamp(-128, 127),
        {"scale": {"extents": "N"}},
        out="i8",
    ),
    "relu that keeps its mask for the backward pass": ModelEpilogue(
        "D = relu(accum); positive = accum > 0",
        lambda x: (x.relu(), (x > 0).double()),
        {"positive": {"extents": "MN", "dtype": "bool"}},
    ),
    "backward pass of gelu": ModelEpilogue(
        "D = accum * (0.5 * (1 + erf(x * 0.70710678)) + x * 0.39894228 * exp(-0.5 * x * x))",
        lambda a, x: (
            a * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * (-x * x / 2).exp() / math.sqrt(2 * math.pi))
        ),
        {"x": MATRIX},
    ),
    "backward pass of silu": ModelEpilogue(
        "s = sigmoid(x); D = accum * s * (1 + x * (1 - s))",
        lambda a, x: a * x.sigmoid() * (1 + x * (1 - x.sigmoid())),
        {"x": MATRIX},
    ),
    "gradient of a bias": ModelEpilogue(
        "D = accum; db = sum(accum)", lambda x: (x, x.sum(0)), {"db": {"extents": "N"}}
    ),
    "alpha and beta (BLAS, Muon)": ModelEpilogue(
        "D = alpha * accum + beta * C",
        lambda x, alpha, beta, C: alpha * x + beta * C,
        {"alpha": {}, "beta": {}, "C": MATRIX},
    ),
    "rotary embedding (GPT-J, DeepSeek)": ModelEpilogue(
        "D = accum * cosine + rotate_every_two(accum) * sine",
        lambda x, cosine, sine: (
            x * cosine + torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape) * sine
        ),
        {"cosine": {"extents": "MN"}, "sine": {"extents": "MN"}},
    ),
    "scale and shift by a table's columns": ModelEpilogue(
        "D = accum * cosine + sine",
        lambda x, cosine, sine: x * cosine + sine,
        {"cosine": {"extents": "N1"}, "sine": {"extents": "N1"}},
    ),
}
"""Those that can be written, by name."""

NOT_WRITABLE: Mapping[str, str] = {
    "top-k of the router": "a result is of a whole row",
}
"""Those that cannot, by name, and why; docs/reference/epilogues.md says so."""
