"""Random operands and epilogues of dense GEMM: our rules, the operators package's own word, the runtime."""

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
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import describe, packed, supports
from tests.support.paths import SUPPORT
from tests.support.torch_bundles import group

pytestmark = pytest.mark.compile

KINDS = [
    (Problem("gemm", ("bf16", "bf16", "bf16"), layouts, "f32"), "sm_100a")
    for layouts in ("tnt", "ttt", "nnt", "ntn")
] + [
    (Problem("gemm", ("f16", "f16", "f32"), "tnt", "f32"), "sm_90a"),
    (Problem("gemm", ("f8e4m3", "f8e4m3", "bf16"), "tnt", "f32"), "sm_100a"),
    (Problem("gemm", ("i8", "i8", "i32"), "tnn", "i32"), "sm_100a"),
]
OPERANDS = 500
FLOATS, INTEGERS = ("f16", "bf16", "f8e4m3", "f8e5m2"), ("i8", "u8")
TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_120a")
EPILOGUES = 120


def made_up_operands(chance: random.Random):
    """Three operands that may well be a GEMM's: padded, of a size of one, indivisible, or at odds."""
    problem, _ = chance.choice(KINDS)
    sizes = (1, 4, 8, 16, 24, 40, 64, 100, 128, 264)
    extents = {name: chance.choice(sizes[1:] if name == "L" else sizes) for name in "LMNK"}
    batched = chance.random() < 0.6
    made = []
    for dtype, letter, names in zip(problem.dtypes, problem.layouts, ("LMK", "LKN", "LMN"), strict=True):
        shape = [extents[name] for name in names]
        if chance.random() < 0.03:
            shape[chance.randrange(3)] += 8
        if chance.random() < 0.05:
            dtype = chance.choice((*FLOATS, "f32"))
        if chance.random() < 0.1:
            letter = chance.choice("tn")
        step = shape[2 if letter == "t" else 1] + chance.choice((0, 0, 0, 4, 8, 3))
        strides = [step * shape[1 if letter == "t" else 2] + chance.choice((0, 0, 16, 5)), step, 1]
        if letter == "n":
            strides[1:] = [1, step]
        whole = batched if chance.random() < 0.97 else not batched
        made.append((dtype, shape if whole else shape[1:], strides if whole else strides[1:]))
    return made


def plain_strides(operands):
    """The same with what the stride of a single row, column or matrix can be: nobody steps along it.

    The package looks at it; this package does not, and makes a fitting one before a launch.
    """
    return [
        (dtype, shape, [1024 if extent == 1 else step for extent, step in zip(shape, strides, strict=True)])
        for dtype, shape, strides in operands
    ]


FORMULAS = (
    ("D = relu(accum)", {}),
    ("D = alpha * accum + beta * C", {"C": {"extents": "MN", "dtype": "bf16"}}),
    ("D = accum + C", {"C": {"extents": "MN", "dtype": "i8", "layout": "n"}}),
    ("D = gelu(accum + bias) * w", {"bias": {"extents": "N"}, "w": {"extents": "M", "dtype": "f16"}}),
    ("D = accum; F = accum; s = sum(accum)", {"F": {"extents": "MN"}, "s": {"extents": "N"}}),
    ("D = accum; F = accum", {"F": {"extents": "MN", "transport": "sync_gmem_store", "dtype": "f8e4m3"}}),
    ("D = accum * v", {"v": {"extents": "N", "transport": "async_gmem_load"}}),
    ("D = accum * scale; top = max(accum)", {"scale": {"extents": "1"}, "top": {"extents": "1"}}),
)


def made_up_problem(chance: random.Random) -> tuple[Problem, str]:
    """A problem with an epilogue that may well have kernels."""
    a = chance.choice((*FLOATS, *INTEGERS, "f32", "tf32", "f4e2m1"))
    b = a if chance.random() < 0.9 else chance.choice(FLOATS)
    out = chance.choice(("f32", "bf16", "f16", "f8e4m3", "i32", "i8", "tf32"))
    usual = "i32" if a in INTEGERS else "f32"
    accumulator = chance.choice((usual, usual, usual, "f16"))
    layouts = chance.choice(("tnt", "tnt", "ttt", "nnn", "ttn"))
    scale = ScaleRequest("f8e8m0", 32) if chance.random() < 0.1 else None
    text, operands = chance.choice(FORMULAS)
    problem = Problem(
        "gemm", (a, b, out), layouts, accumulator, (scale, scale), parse_epilogue(text, operands)
    )
    return problem, chance.choice((*TARGETS, "sm_100a", "sm_100a", "sm_103a", "sm_103a"))


def expected(problem: Problem, target: str) -> bool:
    """Whether an epilogue can be had: the page's statement ("Where it runs"), apart from the generator."""
    a, b, out = problem.dtypes
    if a != b or problem.scales != (None, None) or out == "tf32":
        return False
    if a in INTEGERS:
        return problem.accumulator == "i32" and target == "sm_100a"
    on_it = target in ("sm_100a", "sm_100f", "sm_103a", "sm_103f")
    return a in FLOATS and problem.accumulator == "f32" and on_it


@pytest.fixture(scope="module")
def computation():
    chance = random.Random(7)
    return {
        "operands": [made_up_operands(chance) for _ in range(OPERANDS)],
        "problems": [made_up_problem(chance) for _ in range(EPILOGUES)],
    }


@pytest.fixture(scope="module")
def answers(computation):
    script = SUPPORT / "dense_answers.py"
    question = {
        "kinds": [[to_plain(problem), target] for problem, target in KINDS],
        "operands": [plain_strides(operands) for operands in computation["operands"]],
        "problems": [[to_plain(problem), target] for problem, target in computation["problems"]],
    }
    repository = os.fspath(script.parents[2])
    done = subprocess.run(
        [sys.executable, os.fspath(script)],
        input=json.dumps(question),
        env={**os.environ, "CUTE_DSL_ARCH": "sm_80", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": repository},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_package_takes_what_we_take_and_we_refuse_what_it_refuses(computation, answers):
    """Apart from one thing: compiled code also demands a divisible contiguous extent, so we do."""
    kernels = [from_plain(Kernel, record, "a kernel record") for record in answers["kernels"]]
    groups = Groups.of([group(kernel) for kernel in {kernel.group: kernel for kernel in kernels}.values()])
    accepted = refused = narrower = 0
    for made, verdicts in zip(computation["operands"], answers["operands"], strict=True):
        operands = [describe(shape, dtype, strides=strides) for dtype, shape, strides in made]
        for kernel, theirs in zip(kernels, verdicts, strict=True):
            whole = all(
                operand.shape[constraint.contiguous] % constraint.divisibility == 0
                for constraint, operand in zip(kernel.operands, operands, strict=True)
            )
            verdict = supports(kernel.operands, operands)
            assert bool(verdict) == (theirs and whole), (kernel.name, made, theirs, verdict.reason)
            assert verdict or verdict.reason
            query = Computation.of("gemm", None, kernel.accumulator, None, {}).query(
                (kernel.target,), "here", tuple(operands)
            )
            found = {entry.name for entry in match.serving(groups, query, kernel.target)}
            assert (kernel.group_name in found) == bool(verdict)
            accepted, refused = accepted + bool(verdict), refused + (not verdict)
            narrower += theirs and not whole
    assert min(accepted, refused, narrower) > 20


def test_there_are_epilogues_where_the_page_says_so_and_nowhere_else(computation, answers):
    seen = {True: 0, False: 0}
    for (problem, target), answer in zip(computation["problems"], answers["enumerated"], strict=True):
        kernels, digests, groups, _ = answer
        assert (kernels > 0) == expected(problem, target), (str(problem), target, kernels)
        assert kernels == digests
        moved = any(operand.transport for operand in problem.epilogue.operands)
        # Kernels that move whole tiles differ in what they are tiles of, and so in what they take.
        assert (groups > 1) == (moved and kernels > 0) or groups == (1 if kernels else 0)
        seen[kernels > 0] += 1
    assert min(seen.values()) > 20


def test_operands_of_an_epilogue_are_found_and_others_are_refused_with_a_reason(answers):
    chance = random.Random(8)
    kernels = [
        from_plain(Kernel, record, "a kernel record") for *_, record in answers["enumerated"] if record
    ]
    groups = Groups.of([group(kernel) for kernel in {kernel.group: kernel for kernel in kernels}.values()])
    accepted = refused = 0
    for kernel in kernels:
        for _ in range(8):
            sizes = (1, 5, 8, 16, 32, 64, 100, 128, 256, 1024)
            extents = {name: chance.choice(sizes) for name in "LMNK"}
            if chance.random() < 0.5:
                del extents["L"]
            operands = packed(kernel.operands, extents)
            verdict = supports(kernel.operands, operands)
            fits = all(extents.get(name, 1) % multiple == 0 for name, multiple in multiples(kernel).items())
            assert bool(verdict) == fits, (kernel.name, extents, verdict.reason)
            assert fits or "divisible by" in verdict.reason
            accepted, refused = accepted + fits, refused + (not fits)
            named = dict(zip([operand.name for operand in kernel.operands], operands, strict=True))
            first = [named.pop(name) for name in ("a", "b", "out")]
            computation = Computation.of("gemm", kernel.epilogue, kernel.accumulator, None, named)
            given = (*first, *(named[name] for name in computation.names))
            found = {
                entry.name
                for entry in match.serving(
                    groups, computation.query((kernel.target,), "here", given), kernel.target
                )
            }
            assert (kernel.group_name in found) == fits
            # One operand more, or one of another size, is another epilogue's, or nobody's.
            more = Computation.of("gemm", kernel.epilogue, kernel.accumulator, None, {**named, "other": 1})
            query = more.query((kernel.target,), "here", (*given, describe((), "f32")))
            assert not match.serving(groups, query, kernel.target)
    assert min(accepted, refused) > 50


def multiples(kernel: Kernel) -> dict[str, int]:
    """What extents are multiples of, by the page: 16 bytes of matrices, whole tiles where it is not TMA."""
    found = dict.fromkeys("MNK", 1)
    design = dict(kernel.design)
    (tile_m, tile_n, _), (cluster_m, cluster_n, _) = design["tile_shape"], design["cluster_shape"]
    moved = dict(word.split("=") for word in str(design.get("transports", "")).split(",") if word)
    tiles = {"M": tile_m * cluster_m // (2 if design["use_2cta_mma"] else 1), "N": tile_n * cluster_n}
    for operand in kernel.operands:
        if len(operand.extents) == 3:
            name = operand.extents[operand.contiguous]
            found[name] = lcm(found[name], 128 // DTYPES[operand.dtype].bits)
        for name in operand.extents if operand.name in moved else ():
            found[name] = lcm(found.get(name, 1), tiles.get(name, 1))
    return found
