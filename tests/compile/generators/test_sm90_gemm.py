"""Kernels of the SM90 GEMM through the real compiler, and what their code shows.

Run as a script, this file is the process that compiles: the DSL reads its environment once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cutlass_aot.builder.compile.audit import inspect_object
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.sm90_gemm.generator import SCALES, Sm90Gemm, plan_of
from cutlass_aot.generators.sm90_gemm.plan import LOADING_REGISTERS, THREADS
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.listings import listing, listings
from tests.support.replace import replace

pytestmark = pytest.mark.compile

EPILOGUE = parse_epilogue(
    "D = relu(alpha * accum + C) * scale; F = gelu(accum + bias)",
    {
        "C": {"dtype": "bf16", "extents": "MN"},
        "F": {"dtype": "f32", "extents": "MN"},
        "bias": {"dtype": "bf16", "extents": "N"},
        "scale": {"dtype": "f32", "extents": "M"},
    },
)
REDUCTIONS = parse_epilogue(
    "t = where(mask, accum * scale, softplus(accum)); D = clamp(t, -448, 448); positive = t > 0; "
    "rows = sum(t); columns = min(t); amax = max(abs(t))",
    {
        "mask": {"dtype": "bool", "extents": "MN"},
        "positive": {"dtype": "bool", "extents": "MN"},
        "scale": {"dtype": "bf16", "extents": "N1"},
        "rows": {"extents": "M"},
        "columns": {"extents": "N"},
        "amax": {"extents": "1"},
    },
)
SCALED_ROWS = parse_epilogue(
    "D = accum * scale_a * scale_b",
    {"scale_a": {"dtype": "f32", "extents": "M"}, "scale_b": {"dtype": "f32", "extents": "N"}},
)
SWIGLU = parse_epilogue("D = silu(even(accum)) * odd(accum)", {})
FP8 = ("f8e4m3", "f8e4m3", "bf16")
QUANTIZED = {
    "f8e4m3": (
        "x = silu(accum + bias); scale = max(abs(x)) / 448; D = x / scale",
        {"scale": {"extents": "MN/128", "layout": "n"}, "bias": {"extents": "N"}},
    ),
    "f4e2m1": (
        "x = accum / whole; scale = max(abs(x)) / 6; D = x / scale",
        {"scale": {"extents": "MN/16", "dtype": "f8e4m3"}},
    ),
    "bf16": (
        "scale = max(abs(accum)) / 448; D = accum / scale",
        {"scale": {"extents": "MN/32", "dtype": "f8e8m0"}},
    ),
}


def quantized(out: str) -> Problem:
    """A GEMM with a scale for each block of columns."""
    return Problem("gemm", ("bf16", "bf16", out), "tnt", "f32", epilogue=parse_epilogue(*QUANTIZED[out]))


PING_PONG = "ping-pong"
CASES = (
    # Exchanged operands, a sum over a cluster, two blocks a multiprocessor.
    (Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32"), "8x64x128", "1x1x8", False),
    # A width that is not a multiple of 16: results go through shared memory.
    (Problem("gemm", ("f16", "f16", "f16"), "tnt", "f32"), "256x136x64", "1x2x1", False),
    # Blocks of a cluster load 26 rows each of what they share: no whole swizzled groups of eight.
    (Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32"), "104x64x64", "1x4x1", False),
    # Three warp groups, which exchange what they store.
    (Problem("gemm", ("f16", "f16", "f16"), "tnt", "f32"), "88x192x64", "2x1x1", False),
    (Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32"), "200x192x64", "1x1x1", True),
    # Registers handed over; operands shared by multicast.
    (Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32"), "144x256x64", "2x1x1", True),
    (Problem("gemm", ("f16", "f16", "f32"), "tnt", "f32"), "128x144x64", "1x1x1", True),
    (Problem("gemm", ("bf16", "bf16", "bf16"), "ttt", "f32"), "160x256x64", "1x2x1", True),
    (Problem("gemm", FP8, "tnt", "f32", accumulation="fast"), "192x112x128", "1x1x1", True),
    (
        Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32", epilogue=EPILOGUE),
        "128x224x64", "2x1x1", True,
    ),
    # Results that stay f32 beside the sums of three warp groups; with an exchange, in shared memory.
    (Problem("gemm", ("f16", "f16", "f32"), "tnt", "f32"), "152x192x64", "2x1x1", False),
    (
        Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32", epilogue=EPILOGUE),
        "192x144x64", "1x2x1", True,
    ),
    # Reductions, and an output of FP8: from registers, and from the shared memory of a cluster.
    (
        Problem("gemm", ("bf16", "bf16", "f8e4m3"), "tnt", "f32", epilogue=REDUCTIONS),
        "128x144x64", "1x1x1", True,
    ),
    (
        Problem(
            "gemm", ("f8e4m3", "f8e4m3", "f8e4m3"), "tnt", "f32", epilogue=REDUCTIONS, accumulation="fast"
        ),
        "8x64x256", "1x1x4", False,
    ),
    # Scales of blocks of columns: of a persistent kernel, and others.
    (quantized("f8e4m3"), "128x128x64", "1x1x1", True),
    (quantized("f4e2m1"), "192x144x64", "1x2x1", True),
    (quantized("bf16"), "64x96x64", "1x1x1", False),
    # Scale factors: products of two tiles along K at once; twice 64 rows one after the other, and three warp
    # groups, of which TMA stores the results; two blocks a multiprocessor that hand over registers; few rows.
    (Problem("gemm", FP8, "tnt", "f32", scales=SCALES), "128x128x128", "1x1x1", False),
    (Problem("gemm", FP8, "tnt", "f32", scales=SCALES), "256x128x128", "1x1x1", True),
    (Problem("gemm", FP8, "tnt", "f32", scales=SCALES), "192x128x128", "1x1x1", True),
    (Problem("gemm", FP8, "tnt", "f32", scales=SCALES), "64x192x128", "1x1x1", False),
    (Problem("gemm", FP8, "tnt", "f32", scales=SCALES), "16x64x128", "1x1x4", False),
    # Exact sums without factors, the same; with an epilogue; with results that stay f32; of groups.
    (Problem("gemm", FP8, "tnt", "f32"), "128x128x128", "1x1x1", False),
    (Problem("gemm", FP8, "tnt", "f32"), "256x128x128", "1x1x1", True),
    (Problem("gemm", FP8, "tnt", "f32", epilogue=SCALED_ROWS), "64x192x128", "1x1x1", False),
    (Problem("gemm", FP8, "tnt", "f32", epilogue=SCALED_ROWS), "256x128x128", "1x1x1", True),
    (Problem("gemm", ("f8e4m3", "f8e4m3", "f32"), "tnt", "f32"), "192x128x128", "1x1x1", True),
    (Problem("gemm", FP8, "tnt", "f32"), "8x64x128", "1x1x4", False),
    (Problem("grouped_gemm", FP8, "tnt", "f32"), "128x128x128", "1x1x1", True),
    # Groups, one after the other and in a matrix each.
    (Problem("grouped_gemm", ("bf16", "bf16", "bf16"), "tnt", "f32"), "128x256x64", "1x1x1", True),
    (Problem("grouped_gemm", ("f16", "f16", "f16"), "tnt", "f32"), "128x192x64", "1x1x1", True),
    (Problem("grouped_gemm", ("f16", "f16", "f16"), "tnt", "f32"), "152x256x64", "1x1x1", True),
    (Problem("masked_grouped_gemm", FP8, "tnt", "f32", scales=SCALES), "16x128x128", "1x1x1", True),
    (Problem("grouped_gemm", FP8, "tnt", "f32", scales=SCALES), "128x160x128", "1x1x1", True),
    # The same with epilogues: operands and outputs of groups; scales from sums with scale factors.
    (
        Problem("grouped_gemm", ("bf16", "bf16", "bf16"), "tnt", "f32", epilogue=EPILOGUE),
        "96x256x64", "1x1x1", True,
    ),
    (
        Problem("masked_grouped_gemm", FP8, "tnt", "f32", scales=SCALES, epilogue=EPILOGUE),
        "16x128x128", "1x1x1", True,
    ),
    (
        replace(quantized("f8e4m3"), dtypes=("f8e4m3",) * 3, scales=SCALES),
        "128x128x128", "1x1x1", False,
    ),
    # Gate and value that alternate: from registers, and from shared memory.
    (
        Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32", epilogue=SWIGLU),
        "128x192x64", "1x1x1", True,
    ),
    (Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32", epilogue=SWIGLU), "8x64x128", "1x1x4", False),
    # Two warp groups that take turns: with exchanged operands of a cluster, 128 rows each, of groups,
    # and with scales of blocks.
    (Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32"), "152x128x64", "1x2x1", PING_PONG),
    (Problem("gemm", FP8, "tnt", "f32", accumulation="fast"), "128x160x128", "1x1x1", PING_PONG),
    (
        Problem("grouped_gemm", ("bf16", "bf16", "bf16"), "tnt", "f32", epilogue=EPILOGUE),
        "64x256x64", "1x1x1", PING_PONG,
    ),
    (quantized("f8e4m3"), "64x256x64", "1x1x1", PING_PONG),
)  # fmt: skip


def chosen() -> list[Kernel]:
    device = load_profile("h200")
    found = []
    for problem, tile, cluster, kind in CASES:
        expected = {
            "tile_shape": tuple(map(int, tile.split("x"))),
            "cluster_shape": tuple(map(int, cluster.split("x"))),
            "persistent": bool(kind),
        }
        found += [
            kernel
            for kernel in Sm90Gemm().enumerate(problem, "sm_90a", device)
            if expected.items() <= dict(kernel.design).items()
            and plan_of(kernel).ping_pong == (kind == PING_PONG)
        ][:1]
    return found


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Kernel, bytes]]:
    folder = tmp_path_factory.mktemp("sm90")
    kernels = chosen()
    assert len(kernels) == len(CASES)
    (folder / "kernels").write_bytes(encode([to_plain(kernel) for kernel in kernels]))
    # With another architecture than the target's the DSL builds no engine that would need a GPU.
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "CUTE_DSL_ARCH": "sm_80"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    compiled = [(folder / f"{kernel.symbol}.object").read_bytes() for kernel in kernels]
    listings(compiled)  # tests ask for them one by one
    return list(zip(kernels, compiled, strict=True))


def test_no_sum_is_spilled_and_a_block_has_its_registers(objects: list[tuple[Kernel, bytes]]) -> None:
    for kernel, data in objects:
        facts = inspect_object(data).facts
        assert facts.cubin_target == "sm_90a"
        # A few places are kept over the loop along K; a sum that is would cost its speed.
        assert facts.spill_bytes <= 64, kernel.name
        # Four parts of a multiprocessor have 16384 registers each, and a warp lives in one.
        plan = plan_of(kernel)
        warps = -(-plan.threads // 32 * plan.blocks // 4)
        assert 0 < facts.registers <= 16384 // (32 * warps), kernel.name
        if plan.hands_over:
            # With fewer, the warps that compute would wait for registers for ever.
            needed = LOADING_REGISTERS + plan.all_warp_groups * plan.computing_registers
            assert facts.registers * plan.threads >= THREADS * needed, kernel.name


def test_tensor_cores_are_fed_by_tma_and_never_wait_for_one_instruction(
    objects: list[tuple[Kernel, bytes]],
) -> None:
    for kernel, data in objects:
        plan = plan_of(kernel)
        code = Counter(
            re.findall(
                r"\b([HQ]GMMA|UTMALDG|WARPGROUP\.ARRIVE|WARPGROUP\.DEPBAR|FADD|FFMA|LDGSTS)\b",
                listing(data),
            )
        )
        fp8 = kernel.operands[0].dtype == "f8e4m3"
        depth = 32 if fp8 else 16
        rows = plan.tile[0] // (64 * plan.warp_groups)
        instructions, tile = code["QGMMA" if fp8 else "HGMMA"], plan.tile[2] // depth
        assert code["UTMALDG"] >= 2
        if plan.promoted:
            # Sums are added after each tile: one wait for each time that a tile, or 64 rows of it, is begun.
            assert instructions % (rows * tile) == 0, kernel.name
            assert code["WARPGROUP.ARRIVE"] == instructions // tile, kernel.name
            assert code["WARPGROUP.DEPBAR"] == instructions // tile, kernel.name
            # One instruction adds each sum to that of the tiles before, scaled or not.
            sums = instructions // tile * plan.tile[1] // 2
            if plan.scaled:
                assert code["FFMA"] >= sums, kernel.name
                assert code["LDGSTS"], kernel.name
            else:
                # Those of several blocks are added once more.
                vectors = plan.vector * -(-plan.totals // plan.vector)
                assert sums <= code["FADD"] <= sums + (plan.split - 1) * vectors, kernel.name
                assert not code["FFMA"] + code["LDGSTS"], kernel.name
            continue
        assert instructions == rows * tile, kernel.name
        # One for a whole tile, and one wait in the loop and one after it: where the assembler cannot keep
        # instructions in flight, it writes one of each for every instruction.
        assert code["WARPGROUP.ARRIVE"] == 1, kernel.name
        assert code["WARPGROUP.DEPBAR"] == 2, kernel.name


def test_warp_groups_that_take_turns_begin_when_the_other_has_ended_its_main_loop(
    objects: list[tuple[Kernel, bytes]],
) -> None:
    turns = [(kernel, data) for kernel, data in objects if plan_of(kernel).ping_pong]
    assert len(turns) == 4
    for kernel, data in turns:
        code = re.findall(r"\b(BAR\.SYNC|BAR\.ARV|WARPGROUP\.DEPBAR\.LE gsb0, 0x[01])", listing(data))
        # The first arrival lets the first warp group begin; before it, all threads have met.
        begin = code.index("BAR.ARV")
        wait, drained = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0"
        # The other begins while this one's last instructions are in flight.
        assert code[begin + 1 : begin + 5] == ["BAR.SYNC", wait, "BAR.ARV", drained], kernel.name


def test_tma_stores_what_persistent_blocks_of_scaled_and_grouped_kernels_compute(
    objects: list[tuple[Kernel, bytes]],
) -> None:
    by_tma = 0
    for kernel, data in objects:
        plan = plan_of(kernel)
        code = Counter(re.findall(r"\b(UTMASTG|STG|STSM)\b", listing(data)))
        boxes = plan.tile[0] // (64 * plan.warp_groups) * plan.tile[1] // plan.box_columns
        assert code["UTMASTG"] == (boxes if plan.by_tma else 0), kernel.name
        # Rows at the end of a group are stored from registers; without groups there is nothing else.
        assert (code["STG"] > 0) == (plan.groups or not plan.by_tma), kernel.name
        by_tma += plan.by_tma
    assert by_tma == 7


def test_factors_are_loaded_in_few_instructions(objects: list[tuple[Kernel, bytes]]) -> None:
    """The warp that loads them has some 500 cycles for a tile along K, and the others wait for it."""
    for kernel, data in objects:
        plan = plan_of(kernel)
        if not plan.scaled:
            continue
        lines = re.findall(r"/\*[0-9a-f]{4,5}\*/\s+([^;]*);", listing(data))
        arrivals = [index for index, line in enumerate(lines) if "ARRIVES.LDGSTSBAR" in line]
        # A loop for 16 bytes at once and one for four: from the wait for an empty stage to the arrival.
        assert len(arrivals) == 2, kernel.name
        for index, wide in zip(arrivals, (True, False), strict=True):
            begin = max(at for at in range(index) if "SYNCS.PHASECHK" in lines[at])
            loop = lines[begin:index]
            loads = [line for line in loop if "LDGSTS" in line]
            turns = -(-plan.factors[0] // (128 if wide else 32))
            assert len(loads) == turns + 1, (kernel.name, loads)
            assert len(loop) <= 30 + 4 * len(loads), (kernel.name, len(loop))


def test_reductions_are_atomic_operations_after_exchanges_in_a_warp(
    objects: list[tuple[Kernel, bytes]],
) -> None:
    reduced = [(kernel, data) for kernel, data in objects if "amax" in kernel.epilogue]
    assert len(reduced) == 2
    for kernel, data in reduced:
        code = listing(data)
        for operation in ("ADD.F32", "MIN", "MAX"):
            assert re.search(rf"\bREDG?\.E\.{operation}", code), (kernel.name, operation)
        assert "F2FP.SATFINITE.E4M3.F32.PACK_AB" in code, kernel.name
        assert "SHFL.BFLY" in code


def test_scales_of_blocks_are_exchanged_within_a_warp_and_stored_once(
    objects: list[tuple[Kernel, bytes]],
) -> None:
    scaled = [(kernel, data) for kernel, data in objects if plan_of(kernel).scale_columns > 1]
    assert len(scaled) == len(QUANTIZED) + 2
    for kernel, data in scaled:
        plan, code = plan_of(kernel), listing(data)
        assert not re.search(r"[*]/\s+(@!?U?P\d+ )?(RED|REDG|ATOM|ATOMG)\b", code), kernel.name
        # A thread has a fourth of each of its blocks, and four neighbours of a row at a time.
        blocks = plan.totals * 4 // plan.scale_columns
        assert len(re.findall(r"\bSHFL\.BFLY\b", code)) == plan.totals // 2 + 2 * blocks, kernel.name
        assert len(re.findall(r"\bSTG\b", code)) == plan.totals // 4 + blocks, kernel.name


def test_what_two_columns_have_in_common_is_computed_once(objects: list[tuple[Kernel, bytes]]) -> None:
    halved = [(kernel, data) for kernel, data in objects if kernel.epilogue == SWIGLU.formula]
    assert len(halved) == 2
    for kernel, data in halved:
        plan, code = plan_of(kernel), listing(data)
        # A sigmoid for each two sums of a thread; of those of four blocks, it has four neighbours at most.
        sums = plan.totals if plan.direct else plan.vector
        assert len(re.findall(r"\bMUFU\.EX2\b", code)) == sums // 2, kernel.name


def _compile_main(folder: Path) -> None:
    for record in decode((folder / "kernels").read_bytes(), "kernels"):
        kernel = from_plain(Kernel, record, "a kernel record")
        text = folder / f"{kernel.symbol}.ll"
        Sm90Gemm().compile(kernel).export_to_c(
            str(text), function_name=kernel.symbol, export_only_tvm_ffi_symbols=True
        )
        item = KernelObject.from_llvm(text.read_text(encoding="utf-8"), kernel.symbol)
        (folder / f"{kernel.symbol}.object").write_bytes(item.to_bytes())


if __name__ == "__main__":
    _compile_main(Path(sys.argv[1]))
