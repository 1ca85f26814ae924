"""On a GPU: random operands. What is launched is right and writes its output alone; the rest is refused.

cutlass-aot build manifests/sm90.toml && cutlass-aot build manifests/sm90_scaled.toml &&
python -m pytest -m gpu tests/gpu/test_fuzz.py
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from cutlass_aot.errors import KernelNotFound, OperandError
from tests.gpu.conftest import opened
from tools.bench.experts import wide

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


@pytest.fixture(scope="module")
def scaled(capability):
    return opened("sm90-scaled", capability)


class Experts:
    """Operands of FP8 with or without scale factors, or of groups: some wrong, with small whole numbers.

    Factors are powers of two, so that sums are exact in f32, and rounded once.
    """

    def __init__(self, dice: random.Random) -> None:
        self.operation = dice.choice(["gemm", "grouped_gemm", "masked_grouped_gemm"])
        groups = dice.choice([1, 2, 3, 5, 40]) if self.operation != "gemm" else 1
        self.narrow = self.operation == "gemm" or dice.random() < 0.6
        self.factors = self.narrow and (self.operation != "gemm" or dice.random() < 0.7)
        n = dice.choice([8, 16, 128, 136, 264, 520, 7 if dice.random() < 0.2 else 64])
        k = dice.choice([16, 128, 144, 512, 528, 24 if dice.random() < 0.2 else 256])
        sizes = [dice.choice([0, 1, 5, 63, 64, 65, 100, 128, 200]) for _ in range(groups)]
        self.sizes = torch.tensor(sizes, device="cuda").int()
        m = max(1, sum(sizes) if self.operation == "grouped_gemm" else max(sizes)) + dice.choice([0, 0, 3])
        kind = torch.float8_e4m3fn if self.narrow else dice.choice([torch.bfloat16, torch.float16])
        of_a = [groups] if self.operation == "masked_grouped_gemm" else []
        of_b = [groups] if self.operation != "gemm" else []
        wide_out = self.operation == "gemm" and dice.random() < 0.3
        out_kind = torch.float32 if wide_out else torch.bfloat16 if self.narrow else kind
        gap = dice.choice([0, 0, 0, 16, 1])
        self.a = self.matrix([*of_a, m, k], kind, gap)
        self.b = self.matrix([*of_b, n, k], kind, dice.choice([0, 0, 16])).mT
        self.out = self.matrix([*of_a, m, n], out_kind, dice.choice([0, 0, 8, 1]))
        self.out.fill_(POISON)
        self.named: dict[str, Any] = {}
        if self.factors:
            blocks = -(-k // 128)
            memory = torch.randint(-1, 2, (*of_a, blocks, m + dice.choice([0, 1, 4])), device="cuda")
            of_rows = memory.float().exp2()[..., :m].mT
            if dice.random() < 0.1:
                of_rows = of_rows.contiguous()
            of_blocks = torch.randint(-1, 2, (*of_b, -(-n // 128), blocks), device="cuda").float().exp2()
            self.named = {"a_scale": of_rows, "b_scale": of_blocks}
        if self.operation == "grouped_gemm":
            self.named["offsets"] = self.sizes.cumsum(0).int()
        elif self.operation == "masked_grouped_gemm":
            self.named["rows"] = self.sizes

    @staticmethod
    def matrix(shape: list[int], kind: Any, gap: int) -> Any:
        *outer, columns = shape
        return torch.randint(-2, 3, (*outer, columns + gap), device="cuda").to(kind)[..., :columns]

    def launch(self, bundle: Any) -> None:
        bundle.run(self.operation, self.a, self.b, self.out, **self.named)

    def expected(self) -> Any:
        """The output, with what was there before where no group has a row."""
        a, b = self.a.float(), self.b.mT.float()
        if self.factors:
            a, b = wide(torch, a, self.named["a_scale"]), wide(torch, b, self.named["b_scale"])
        found = torch.full_like(self.out, POISON)
        first = 0
        for group, size in enumerate(self.sizes.tolist()):
            if self.operation == "gemm":
                found[:] = (a.double() @ b.double().T).to(found.dtype)
            elif self.operation == "grouped_gemm":
                found[first : first + size] = (a[first : first + size].double() @ b[group].double().T).to(
                    found.dtype
                )
            else:
                found[group, :size] = (a[group, :size].double() @ b[group].double().T).to(found.dtype)
            first += size
        return found


@pytest.mark.parametrize("seed", range(8))
def test_random_scaled_and_grouped_operands_are_served_rightly_or_refused(scaled, seed):
    dice = random.Random(seed)
    torch.manual_seed(seed)
    served = {"gemm": 0, "grouped_gemm": 0, "masked_grouped_gemm": 0}
    refused = 0
    for _ in range(120):
        experts = Experts(dice)
        before = experts.out.clone()
        try:
            experts.launch(scaled)
        except (OperandError, KernelNotFound):
            assert torch.equal(experts.out, before)
            refused += 1
            continue
        served[experts.operation] += 1
        assert torch.equal(experts.out, experts.expected()), experts.operation
    torch.cuda.synchronize()
    assert min(served.values()) >= 10
    assert refused >= 5


@pytest.mark.parametrize("seed", range(4))
def test_a_graph_of_groups_is_replayed_with_other_rows(scaled, seed):
    dice = random.Random(100 + seed)
    torch.manual_seed(seed)
    captured = 0
    while captured < 4:
        experts = Experts(dice)
        try:
            experts.launch(scaled)
        except (OperandError, KernelNotFound):
            continue
        if experts.operation == "gemm":
            continue
        captured += 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            experts.launch(scaled)
        for _ in range(3):
            # As many rows at most, otherwise spread over the groups.
            order = torch.randperm(len(experts.sizes), device="cuda")
            experts.sizes.copy_(experts.sizes[order] // dice.choice([1, 2]))
            if experts.operation == "grouped_gemm":
                experts.named["offsets"].copy_(experts.sizes.cumsum(0))
            experts.out.fill_(POISON)
            graph.replay()
            assert torch.equal(experts.out, experts.expected()), experts.operation
