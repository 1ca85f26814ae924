"""On a GPU: random operands. What is launched is right and writes its output alone; the rest is refused.

cutlass-aot build manifests/sm90.toml && python -m pytest -m gpu tests/gpu/test_fuzz.py
"""

from __future__ import annotations

import random

import pytest

from cutlass_aot.errors import KernelNotFound, OperandError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

EXTENTS = [*(1, 8, 16, 24, 64, 72, 128, 136, 200, 264) * 3, 2, 7, 63]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8]
POISON = 7.0


class Operands:
    """a, b and out in larger buffers: with gaps, offsets, broadcast batches, and at times what is wrong."""

    def __init__(self, dice: random.Random) -> None:
        batch = dice.choice([None, None, 1, 2, 3])
        m, n, k = (dice.choice(EXTENTS) for _ in range(3))
        a_type = dice.choice(DTYPES[:2]) if dice.random() < 0.85 else dice.choice(DTYPES)
        out_type = a_type if dice.random() < 0.8 else dice.choice(DTYPES)
        b_type = a_type if dice.random() < 0.95 else dice.choice(DTYPES)
        wrong_k = k + 8 if dice.random() < 0.05 else k
        self.a, _ = self.operand(dice, batch, m, k, a_type, column_major=dice.random() < 0.05)
        self.b, _ = self.operand(dice, batch, wrong_k, n, b_type, column_major=dice.random() < 0.8)
        self.out, self.buffer = self.operand(
            dice, batch, m, n, out_type, column_major=dice.random() < 0.05, written=True
        )
        if dice.random() < 0.03:
            self.a = self.a.cpu()
        if dice.random() < 0.03:
            self.out = self.out[..., :0, :]

    @staticmethod
    def operand(dice, batch, rows, columns, dtype, *, column_major=False, written=False):
        outer, inner = (columns, rows) if column_major else (rows, columns)
        gap = dice.choice([0, 0, 0, 0, 0, 8, 8, 16, 16, 24, 1])
        step = inner + gap
        offset = dice.choice([0, 0, 0, 0, 0, 8, 8, 64, 64, 16, 1])
        strides = (1, step) if column_major else (step, 1)
        layers = batch or 1
        size = (offset + layers * outer * step + 64,)
        if written:
            buffer = torch.full(size, POISON, device="cuda").to(dtype)
        else:
            buffer = torch.randint(-3, 4, size, device="cuda").to(dtype)
        if batch is None:
            view = buffer.as_strided((rows, columns), strides, offset)
        else:
            apart = 0 if not written and dice.random() < 0.2 else outer * step
            view = buffer.as_strided((batch, rows, columns), (apart, *strides), offset)
        return view, buffer

    def product(self):
        return self.a.double() @ self.b.double()

    def outside(self):
        """Elements of the output's buffer that the output does not have."""
        mask = torch.ones_like(self.buffer, dtype=torch.bool)
        mask.as_strided(self.out.shape, self.out.stride(), self.out.storage_offset()).fill_(False)
        return self.buffer[mask]


@pytest.mark.parametrize("seed", range(8))
def test_random_operands_are_served_rightly_or_refused(bundle, seed):
    dice = random.Random(seed)
    torch.manual_seed(seed)
    served = 0
    for _ in range(150):
        operands = Operands(dice)
        a, b, out = operands.a, operands.b, operands.out
        verdicts = [verdict for _, verdict in bundle.explain(a, b, out)]
        try:
            bundle.gemm(a, b, out)
        except (OperandError, KernelNotFound):
            assert not any(verdicts)
            continue
        assert any(verdicts)
        served += 1
        # Small integers: sums are exact in f32, and rounded once.
        expected = operands.product().to(out.dtype)
        assert torch.equal(out, expected)
        assert bool((operands.outside() == POISON).all())
    torch.cuda.synchronize()
    assert served >= 20


def test_kernels_refuse_what_they_do_not_support(bundle):
    dice = random.Random(99)
    kernels = bundle.kernels(dtypes="bf16.bf16.bf16", layouts="tnt")
    refused = 0
    for _ in range(200):
        operands = Operands(dice)
        kernel = dice.choice(kernels)
        supported = kernel.supports(operands.a, operands.b, operands.out)
        if not supported:
            with pytest.raises(OperandError) as caught:
                kernel.launch(operands.a, operands.b, operands.out)
            # Where operands are is told first: it is the same for every kernel.
            misplaced = any(
                operand.device.type != "cuda" for operand in (operands.a, operands.b, operands.out)
            )
            assert ("is on cpu: kernels run on" if misplaced else supported.reason) in str(caught.value)
            refused += 1
            continue
        kernel.launch(operands.a, operands.b, operands.out)
        assert torch.equal(operands.out, operands.product().to(operands.out.dtype))
        assert bool((operands.outside() == POISON).all())
    torch.cuda.synchronize()
    assert refused >= 50
