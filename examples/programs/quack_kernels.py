"""quack's kernels as a model calls them: norms, softmax, cross-entropy, top-k and GEMMs, on small shapes.

It knows nothing of cutlass-aot. On a machine with a GPU, ``--check`` compares every result with torch, also
over numbers of rows beyond those that are run first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from cases import Case, Result, main
from quack.cross_entropy import cross_entropy_bwd, cross_entropy_fwd
from quack.gemm_interface import gemm, gemm_act, gemm_add, gemm_dact
from quack.rmsnorm import rmsnorm_bwd, rmsnorm_fwd
from quack.softmax import softmax_bwd, softmax_fwd
from quack.topk import topk_bwd, topk_fwd
from torch.nn import functional

DTYPES = (torch.bfloat16, torch.float16)
WIDTHS = (4096, 8192)
CLASSES = 32768
EXPERTS = 128
EPSILON = 1e-6
ROWS = (256, 1024)
OTHER_ROWS = (200, 900, 1000)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random operands."""
    return torch.randn(*shape, device="cuda", dtype=dtype)


def gradients(
    function: Callable[..., torch.Tensor], dout: torch.Tensor, *operands: torch.Tensor
) -> Callable[[int], torch.Tensor]:
    """What gives the gradient of an operand by its index, by torch in float32."""

    def of(index: int) -> torch.Tensor:
        wide = [operand.float().requires_grad_() for operand in operands]
        with torch.enable_grad():
            out = function(*wide)
        return torch.autograd.grad(out, wide[index], dout.float())[0]

    return of


def rms_norm(dtype: torch.dtype, width: int, residual: bool = False) -> Case:
    """RMSNorm and its backward; with a residual, of the sum, which is stored too."""

    def run(rows: int) -> list[Result]:
        x, dout = normal(rows, width, dtype=dtype), normal(rows, width, dtype=dtype)
        weight = normal(width)
        added = normal(rows, width, dtype=dtype) if residual else None
        out, total, rstd = rmsnorm_fwd(x, weight, residual=added, eps=EPSILON, store_rstd=True)

        def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return functional.rms_norm(x, (width,), weight, EPSILON)

        if residual:
            return [(out, lambda: forward(x.float() + added.float(), weight)), (total, lambda: x + added)]
        dx, dweight, *_ = rmsnorm_bwd(x, weight, dout, rstd)
        expected = gradients(forward, dout, x, weight)
        return [
            (out, lambda: forward(x.float(), weight)),
            (dx, lambda: expected(0)),
            (dweight, lambda: expected(1)),
        ]

    return run


def softmax(dtype: torch.dtype, width: int) -> Case:
    """Softmax and its backward."""

    def run(rows: int) -> list[Result]:
        x, dout = normal(rows, width, dtype=dtype), normal(rows, width, dtype=dtype)
        out = softmax_fwd(x)
        expected = gradients(lambda x: x.softmax(-1), dout, x)
        return [(out, lambda: x.float().softmax(-1)), (softmax_bwd(dout, out), lambda: expected(0))]

    return run


def cross_entropy(dtype: torch.dtype, classes: int) -> Case:
    """Cross-entropy and its backward."""

    def run(rows: int) -> list[Result]:
        x, dloss = normal(rows, classes, dtype=dtype), normal(rows)
        target = torch.randint(0, classes, (rows,), device="cuda")
        loss, lse = cross_entropy_fwd(x, target, return_lse=True)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(x, target, reduction="none")

        return [
            (loss, lambda: forward(x.float())),
            (cross_entropy_bwd(x, target, dloss, lse), lambda: gradients(forward, dloss, x)(0)),
        ]

    return run


def top_k(dtype: torch.dtype, width: int, k: int, weights: bool) -> Case:
    """The largest of each row, as a router takes them, and the backward; with ``weights``, their softmax."""

    def run(rows: int) -> list[Result]:
        x = normal(rows, width, dtype=dtype)
        values, indices = topk_fwd(x, k, softmax=weights)
        dvalues = normal(rows, k, dtype=dtype)
        dx = topk_bwd(dvalues, values if weights else None, indices, width, softmax=weights)

        def forward(x: torch.Tensor) -> torch.Tensor:
            chosen = x.gather(-1, indices.long())
            return chosen.softmax(-1) if weights else chosen

        def largest() -> torch.Tensor:
            found = x.float().topk(k, dim=-1).values
            return found.softmax(-1) if weights else found

        return [(values, largest), (dx, lambda: gradients(forward, dvalues, x)(0))]

    return run


def linear(dtype: torch.dtype, n: int, k: int) -> Case:
    """A linear layer: the product, with a bias, and added to something."""

    def run(rows: int) -> list[Result]:
        # As torch.nn.Linear keeps its weight.
        x, weight = normal(rows, k, dtype=dtype), normal(n, k, dtype=dtype) / k**0.5
        bias, added = normal(n, dtype=dtype), normal(rows, n, dtype=dtype)

        def product() -> torch.Tensor:
            return x.float() @ weight.float().T

        return [
            (gemm(x, weight.T, tuned=False), product),
            (gemm(x, weight.T, bias=bias, tuned=False), lambda: product() + bias),
            (gemm_add(x, weight.T, added, tuned=False), lambda: product() + added),
        ]

    return run


def activated(dtype: torch.dtype, n: int, k: int, name: str) -> Case:
    """A linear layer with an activation, and its backward."""
    functions = {
        "relu": functional.relu,
        "relu_sq": lambda x: functional.relu(x).square(),
        "silu": functional.silu,
        "gelu_tanh_approx": partial(functional.gelu, approximate="tanh"),
    }
    function = functions[name]

    def run(rows: int) -> list[Result]:
        x, weight = normal(rows, k, dtype=dtype), normal(n, k, dtype=dtype) / k**0.5
        before, out = gemm_act(x, weight.T, activation=name, tuned=False)
        dout, back = normal(rows, k, dtype=dtype), normal(n, k, dtype=dtype) / k**0.5
        dx, again = gemm_dact(dout, back.T, before, activation=name, tuned=False)

        def expected() -> torch.Tensor:
            return gradients(function, dout.float() @ back.float().T, before)(0)

        return [
            (out, lambda: function(x.float() @ weight.float().T)),
            (dx, expected),
            (again, lambda: function(before.float())),
        ]

    return run


def gated(dtype: torch.dtype, n: int, k: int, name: str) -> Case:
    """The first half of a gated feed-forward layer: gates are in even columns, their values in odd ones."""
    functions = {"swiglu": functional.silu, "geglu": partial(functional.gelu, approximate="tanh")}
    function = functions[name]

    def run(rows: int) -> list[Result]:
        x, weight = normal(rows, k, dtype=dtype), normal(2 * n, k, dtype=dtype) / k**0.5
        _, out = gemm_act(x, weight.T, activation=name, store_preact=False, tuned=False)

        def expected() -> torch.Tensor:
            product = x.float() @ weight.float().T
            return function(product[:, ::2]) * product[:, 1::2]

        return [(out, expected)]

    return run


def cases() -> Iterator[tuple[str, Case]]:
    """Name and function of every case."""
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for width in WIDTHS:
            yield f"RMSNorm, {name}, {width}", rms_norm(dtype, width)
            yield f"RMSNorm, residual, {name}, {width}", rms_norm(dtype, width, residual=True)
            yield f"softmax, {name}, {width}", softmax(dtype, width)
        yield f"cross-entropy, {name}, {CLASSES}", cross_entropy(dtype, CLASSES)
        for weights in (False, True):
            yield f"top-k, {name}, softmax {weights}", top_k(dtype, EXPERTS, 8, weights)
        yield f"GEMM, {name}", linear(dtype, 4096, 1024)
        for activation in ("relu", "relu_sq", "silu", "gelu_tanh_approx"):
            yield f"GEMM, {activation}, {name}", activated(dtype, 4096, 1024, activation)
        for activation in ("swiglu", "geglu"):
            yield f"GEMM, {activation}, {name}", gated(dtype, 4096, 1024, activation)


if __name__ == "__main__":
    main(__doc__, cases(), ROWS, OTHER_ROWS)
