"""What the generator has for random scaled, mixed-input and grouped problems; what the runtime takes then."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from math import lcm

import pytest

from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.runtime.selection import match
from cutlass_aot.runtime.selection.query import Computation
from cutlass_aot.schema.bundles.catalog import Groups
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import packed, supports
from tests.support.torch_bundles import group

pytestmark = pytest.mark.compile

TARGETS = ("sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_103f")
FOUR, SIX, EIGHT = {"f4e2m1"}, {"f6e2m3", "f6e3m2"}, {"f8e4m3", "f8e5m2"}
INTEGERS, HALVES = {"i8", "u8"}, {"f16", "bf16"}
MX = ScaleRequest("f8e8m0", 32)
COUNT = 240

_ENUMERATE = """
import json, sys
from cutlass_aot.generators.cutlass_operators import operands
from cutlass_aot.generators.cutlass_operators import CutlassOperators
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.codec import from_plain, to_plain

generator, profile = CutlassOperators(), load_profile("b200")
answers = []
for record, target in json.load(sys.stdin):
    kernels = generator.enumerate(from_plain(Problem, record, "a problem"), target, profile)
    kernels = [kernel for kernel in kernels if dict(kernel.design)["family"] in operands.FAMILIES]
    digests = {kernel.digest for kernel in kernels}
    groups = {kernel.group for kernel in kernels}
    answers.append([len(kernels), len(digests), len(groups), to_plain(kernels[0]) if kernels else None])
json.dump(answers, sys.stdout)
"""


def made_up(chance: random.Random) -> tuple[Problem, str]:
    """A problem that may well be one of these families', or be off by a little."""
    narrow = sorted(FOUR | SIX | EIGHT)
    kind = chance.choice(("block-scaled", "block-scaled", "mixed", "grouped"))
    layouts = chance.choice(("tnt", "tnt", "ttt", "nnt", "ntt", "tnn"))
    target = chance.choice(TARGETS)
    if kind == "block-scaled":
        scale = ScaleRequest(*chance.choice((MX, MX, ("f8e8m0", 16), ("f8e4m3", 16))))
        other = scale if chance.random() < 0.9 else chance.choice((None, ScaleRequest("f8e8m0", 64)))
        a = chance.choice(narrow)
        b = a if chance.random() < 0.4 else chance.choice(narrow)
        out = chance.choice(("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8"))
        accumulator = chance.choice(("f32", "f32", "f32", "f16"))
        return Problem("gemm", (a, b, out), layouts, accumulator, (scale, other)), target
    if kind == "mixed":
        a, b = chance.choice(("i4", "i4", "i8", "u8")), chance.choice(("f16", "bf16", "f8e4m3"))
        scale = ScaleRequest(b, chance.choice((32, 64, 128, 256, 512))) if a == "i4" else None
        if chance.random() < 0.1:
            scale = None if scale else ScaleRequest(b, 128)
        out, accumulator = chance.choice(("f32", "f16", "bf16", "i8")), chance.choice(("f32", "f32", "f16"))
        return Problem("gemm", (a, b, out), layouts, accumulator, (scale, None)), target
    a = chance.choice(("f16", "bf16", "f8e4m3", "f8e5m2", "f32", "i8"))
    b = a if chance.random() < 0.8 else "bf16"
    out = chance.choice(("f32", "f16", "bf16", "f8e4m3"))
    return Problem("grouped_gemm", (a, b, out), layouts, "f32"), target


def expected(problem: Problem, target: str) -> bool:
    """Whether there are kernels of these families: the pages' statement, apart from the generator."""
    (a, b, out), (a_scale, b_scale) = problem.dtypes, problem.scales
    floats = {"f32"} | HALVES
    if problem.operation == "grouped_gemm":
        pair = a == b and a in HALVES | EIGHT
        return pair and out in floats and problem.layouts == "tnt" and target not in ("sm_90a",)
    if a in INTEGERS | {"i4"}:
        scaled = a_scale is not None and a_scale.dtype == b and a_scale.block in (64, 128, 256, 512)
        if b not in HALVES or b_scale is not None or not (scaled if a == "i4" else a_scale is None):
            return False
        if problem.accumulator == "f16" and not (b == "f16" and out in HALVES):
            return False
        return out in floats and problem.layouts[2] == "t" and target != "sm_90a"
    if a_scale is None or a_scale != b_scale or problem.accumulator != "f32" or out not in floats | EIGHT:
        return False
    if (a in FOUR and problem.layouts[0] == "n") or (b in FOUR and problem.layouts[1] == "t"):
        return False
    fits = a_scale == MX or (a_scale.block == 16 and a in FOUR and b in FOUR)
    return fits and target in ("sm_100a", "sm_100f", "sm_103a")


@pytest.fixture(scope="module")
def answered():
    chance = random.Random(5)
    problems = [made_up(chance) for _ in range(COUNT)]
    done = subprocess.run(
        [sys.executable, "-c", _ENUMERATE],
        input=json.dumps([[to_plain(problem), target] for problem, target in problems]),
        env={**os.environ, "CUTE_DSL_ARCH": "sm_80", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return list(zip(problems, json.loads(done.stdout), strict=True))


def test_there_are_kernels_where_the_pages_say_so_and_nowhere_else(answered):
    seen = set()
    for (problem, target), (kernels, digests, groups, _) in answered:
        assert (kernels > 0) == expected(problem, target), (str(problem), target, kernels)
        assert kernels == digests
        assert groups == (1 if kernels else 0)
        seen.add((problem.operation, problem.scales != (None, None), kernels > 0))
    assert len(seen) == 6  # some of each: a grouped one has no scale factors


def test_operands_of_a_record_are_found_and_others_are_refused_with_a_reason(answered):
    chance = random.Random(6)
    kernels = [from_plain(Kernel, record, "a kernel record") for _, (_, _, _, record) in answered if record]
    groups = Groups.of([group(kernel) for kernel in {kernel.group: kernel for kernel in kernels}.values()])
    accepted = refused = 0
    for kernel in kernels:
        for _ in range(8):
            extents = {
                name: chance.choice((1, 8, 24, 32, 64, 128, 136, 264, 320, 512, 1000, 1024))
                for name in "MNKGL"
            }
            if chance.random() < 0.5:
                del extents["L"]
            operands = packed(kernel.operands, extents)
            verdict = supports(kernel.operands, operands)
            fits = all(extents[name] % multiple == 0 for name, multiple in multiples(kernel).items())
            assert bool(verdict) == fits, (kernel.name, extents, verdict.reason)
            assert fits or "divisible by" in verdict.reason
            accepted, refused = accepted + fits, refused + (not fits)
            named = dict(zip([operand.name for operand in kernel.operands], operands, strict=True))
            first = [named.pop(name) for name in ("a", "b", "out")]
            computation = Computation.of(kernel.operation, None, kernel.accumulator, None, named)
            request = computation.query(
                (kernel.target,), "here", (*first, *(named[name] for name in computation.names))
            )
            found = {entry.name for entry in match.serving(groups, request, kernel.target)}
            assert (kernel.group_name in found) == fits
    assert min(accepted, refused) > 50


def multiples(kernel: Kernel) -> dict[str, int]:
    """What extents are multiples of, by the pages."""
    found = dict.fromkeys("MNKG", 1)
    a, b, out = kernel.operands[:3]
    mixed = DTYPES[a.dtype].bits != DTYPES[b.dtype].bits
    scales = [operand.scale for operand in kernel.operands if operand.scale is not None]
    for operand in (a, b, out):
        bits = DTYPES[operand.dtype].bits
        spread = operand is not out and (bits == 6 or (bits == 4 and mixed)) and len(scales) == 2
        name = operand.extents[operand.contiguous]
        found[name] = lcm(found[name], 128 if spread else 128 // bits)
    if len(scales) == 1:
        found["K"], found["M"] = lcm(found["K"], scales[0].block), lcm(found["M"], 8)
    return found


def test_problems_travel_to_workers(answered):
    for (problem, _), _ in answered:
        assert from_plain(Problem, json.loads(json.dumps(to_plain(problem))), "a problem") == problem
