"""The FP64 kernel through the real compiler and linker, and the compiled checks against `supports`.

Run as a script, this file is the process that compiles, or the one that calls a linked library: the DSL reads
its environment once, and a fabricated operand must never meet a GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.builder.compile.audit import inspect_object
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.generators.simt_f64_gemm.generator import TILE_SHAPES, SimtF64Gemm
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import (
    MAX_STRIDE_BYTES,
    OperandDescription,
    Verdict,
    describe,
    supports,
    writes_nothing,
)
from cutlass_aot.schema.targets import KNOWN_TARGETS
from tests.support.replace import replace

pytestmark = pytest.mark.compile

F64 = GeneratorReference("simt_f64_gemm", "cutlass_aot.generators.simt_f64_gemm.generator:SimtF64Gemm")
OPERATORS = GeneratorReference(
    "cutlass.operators", "cutlass_aot.generators.cutlass_operators:CutlassOperators"
)
LAYOUTS = tuple("".join(letters) for letters in product("tn", repeat=3))
REGISTERS_OF_A_MULTIPROCESSOR = 65536
CASES = 600
TARGETS = [target for target in KNOWN_TARGETS if not not_compiled([target], dsl_toolkit())]
"""Those that the installed libraries of the DSL compile for."""


@dataclass(frozen=True)
class Compiled:
    kernel: Kernel
    object_path: Path


# Compiling


def compile_all(
    folder: Path,
    reference: GeneratorReference,
    problems: Sequence[Problem],
    targets: Sequence[str],
    limit: int = 100,
) -> list[Compiled]:
    """Compile the first ``limit`` kernels of each problem for each target in a process of its own."""
    request = {
        "generator": [reference.name, reference.location],
        "problems": [[p.operation, p.dtypes, p.layouts, p.accumulator] for p in problems],
        "targets": list(targets),
        "limit": limit,
    }
    (folder / "request").write_bytes(encode(request))
    # For another architecture than any target's the DSL builds no engine, which would need a GPU.
    run_self("compile", folder, {"CUTE_DSL_ARCH": "sm_110a"})
    records = decode((folder / "kernels").read_bytes(), "kernels")
    kernels = [from_plain(Kernel, record, "a kernel record") for record in records]
    return [Compiled(kernel, folder / f"{kernel.symbol}.object") for kernel in kernels]


def run_self(mode: str, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, __file__, mode, str(folder)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _compile_main(folder: Path) -> None:
    request = decode((folder / "request").read_bytes(), "request")
    generator = GeneratorReference(*request["generator"]).load()
    device = load_profile("h200")
    kernels = []
    for (operation, dtypes, layouts, accumulator), target in product(request["problems"], request["targets"]):
        problem = Problem(operation, tuple(dtypes), layouts, accumulator)
        found = list(generator.enumerate(problem, target, device))
        kernels += found[: request["limit"]]
    for kernel in kernels:
        text = folder / f"{kernel.symbol}.ll"
        generator.compile(kernel).export_to_c(
            str(text), function_name=kernel.symbol, export_only_tvm_ffi_symbols=True
        )
        item = KernelObject.from_llvm(text.read_text(encoding="utf-8"), kernel.symbol)
        (folder / f"{kernel.symbol}.object").write_bytes(item.to_bytes())
    (folder / "kernels").write_bytes(encode([to_plain(kernel) for kernel in kernels]))


def f64_problem(layouts: str = "ttt") -> Problem:
    return Problem("gemm", ("f64", "f64", "f64"), layouts, "f64")


@pytest.fixture(scope="module")
def for_every_target(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    return compile_all(tmp_path_factory.mktemp("targets"), F64, [f64_problem()], TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target(for_every_target: list[Compiled], target: str) -> None:
    compiled = [item for item in for_every_target if item.kernel.target == target]
    assert len(compiled) == len(TILE_SHAPES)
    for item in compiled:
        facts = inspect_object(item.object_path.read_bytes()).facts
        assert facts.cubin_target == target
        assert facts.spill_bytes == 0
        rows, columns = dict(item.kernel.design)["tile_shape"]  # type: ignore[misc]
        # More registers, and a block of so many threads could not be launched.
        assert 0 < facts.registers <= REGISTERS_OF_A_MULTIPROCESSOR // (rows * columns)


@pytest.fixture(scope="module")
def f64_kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    folder = tmp_path_factory.mktemp("f64")
    return compile_all(folder, F64, [f64_problem(layouts) for layouts in LAYOUTS], ["sm_90a"])


@pytest.fixture(scope="module")
def f16_kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    # With another output type the operands demand different multiples, also of one shared extent.
    problems = [
        Problem("gemm", ("f16", "f16", out), layouts, "f32")
        for out, layouts in (("f16", "tnt"), ("f16", "ntn"), ("f32", "ttt"), ("f32", "nnn"))
    ]
    # Kernels of the SM80 family are not told what K is a multiple of; its compiled checks are.
    of_sm80 = [Problem("gemm", ("f16", "f16", "f16"), layouts, "f32") for layouts in ("nnt", "ttn", "nnn")]
    return [
        *compile_all(tmp_path_factory.mktemp("f16"), OPERATORS, problems, ["sm_90a"], limit=1),
        *compile_all(tmp_path_factory.mktemp("sm80"), OPERATORS, of_sm80, ["sm_80"], limit=1),
    ]


def test_all_layouts_are_kernels_of_their_own(f64_kernels: list[Compiled]) -> None:
    assert Counter(item.kernel.layouts for item in f64_kernels) == dict.fromkeys(LAYOUTS, 2)
    assert len({item.object_path.read_bytes() for item in f64_kernels}) == len(f64_kernels)


def test_the_same_record_gives_the_same_object(f64_kernels: list[Compiled], tmp_path: Path) -> None:
    again = compile_all(tmp_path, F64, [f64_problem("nnt")], ["sm_90a"])
    first = {item.kernel.symbol: item.object_path.read_bytes() for item in f64_kernels}
    for item in again:
        assert item.object_path.read_bytes() == first[item.kernel.symbol]


def test_a_record_that_was_not_enumerated_is_refused() -> None:
    kernel = next(iter(SimtF64Gemm().enumerate(f64_problem(), "sm_90a", load_profile("h200"))))
    other = replace(kernel, design=(("family", "SimtF64Gemm"), ("tile_shape", (64, 64))))
    script = (
        "import sys; from cutlass_aot.errors import GeneratorError\n"
        "from cutlass_aot.generators.simt_f64_gemm.generator import SimtF64Gemm\n"
        "from cutlass_aot.schema.kernels.kernel import Kernel\n"
        "from cutlass_aot.schema.codec import from_plain\n"
        "from cutlass_aot.schema.encoding import decode\n"
        "kernel = from_plain(Kernel, decode(sys.stdin.buffer.read(), 'stdin'), 'stdin')\n"
        "try: SimtF64Gemm().compile(kernel)\n"
        "except GeneratorError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=encode(to_plain(other)), capture_output=True, check=True
    )
    assert b"has no kernel gemm-f64.f64.f64-f64-ttt-sm_90a-SimtF64Gemm-64x64" in done.stdout


# Compiled checks against `supports`

BATCH_NAMES = ("L", "M", "N", "K")


def valid_operands(
    constraints: Sequence[OperandConstraint], chance: random.Random
) -> list[OperandDescription]:
    """Operands that fit: any extents, some of them 1, compact or padded, rank 2 or 3."""
    step = max(constraint.divisibility for constraint in constraints)
    sizes = {name: step * chance.choice((1, 1, 2, 3, 40)) for name in BATCH_NAMES}
    sizes["L"] = chance.choice((1, 1, 2, 5))
    contiguous = {constraint.extents[constraint.contiguous] for constraint in constraints}
    for name in sorted({"M", "N", "K"} - contiguous):
        sizes[name] = chance.choice((1, 7, 64, 129))
    rank = 2 if chance.random() < 0.2 else 3
    pad = step * chance.choice((0, 0, 1, 5))
    operands = []
    for constraint in constraints:
        shape = tuple(sizes[name] for name in constraint.extents)
        strides = [0, 0, 0]
        strides[constraint.contiguous] = 1
        other = -3 - constraint.contiguous
        strides[other] = shape[constraint.contiguous] + pad
        strides[0] = strides[other] * shape[other] + pad
        operands.append(
            OperandDescription(constraint.dtype, shape[3 - rank :], tuple(strides[3 - rank :]), 0, 0)
        )
    return operands


def _set(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _extent(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    mode = chance.randrange(len(operand.shape))
    return replace(operand, shape=_set(operand.shape, mode, chance.choice((1, 2, 4, 8, 12, 16, 2**31))))


def _stride(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    mode = chance.randrange(len(operand.strides))
    step = chance.choice((0, 1, 2, 3, 8, 520, 2**31, 2**33 + 8, 2**33 + 4, 2**41, -8))
    return replace(operand, strides=_set(operand.strides, mode, step))


def _lone_extent(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    """An extent of 1, under any stride: nothing is ever added for it."""
    mode = chance.randrange(len(operand.shape))
    return replace(
        operand,
        shape=_set(operand.shape, mode, 1),
        strides=_set(operand.strides, mode, chance.choice((0, 1, 3, 2**35 + 1))),
    )


def _repeat(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    """A mode that repeats its one slice: what broadcasting gives."""
    return replace(operand, strides=_set(operand.strides, chance.randrange(len(operand.strides)), 0))


def _swap(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    return replace(operand, strides=(*operand.strides[:-2], *reversed(operand.strides[-2:])))


def _empty(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    return replace(operand, shape=_set(operand.shape, chance.randrange(len(operand.shape)), 0))


def _address(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    return replace(operand, address=chance.choice((2, 4, 8, 16, 24, 64)))


def _dtype(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    # A tensor does not say that it is to be read as another type, as f32 is as TF32.
    return replace(
        operand, dtype=chance.choice(sorted(name for name, dtype in DTYPES.items() if not dtype.reads))
    )


def _device(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    return replace(operand, device=chance.choice((-1, 1)))


def _rank(operand: OperandDescription, chance: random.Random) -> OperandDescription:
    if chance.random() < 0.5:
        return replace(operand, shape=operand.shape[1:], strides=operand.strides[1:])
    return replace(operand, shape=(1, *operand.shape), strides=(8, *operand.strides))


MUTATIONS: tuple[Callable[[OperandDescription, random.Random], OperandDescription], ...] = (
    _extent, _extent, _stride, _stride, _lone_extent, _lone_extent, _repeat, _repeat, _swap, _empty, _address,
    _dtype, _device, _rank,
)  # fmt: skip


def random_operands(
    constraints: Sequence[OperandConstraint], chance: random.Random
) -> list[OperandDescription]:
    """Operands that fit, with up to two changes that may or may not matter."""
    operands = valid_operands(constraints, chance)
    for _ in range(chance.choice((0, 1, 1, 1, 2))):
        index = chance.randrange(len(operands))
        operands[index] = chance.choice(MUTATIONS)(operands[index], chance)
    if chance.random() < 0.15:
        # The same extent changed in every operand that has it, so that the operands still agree.
        name, value = chance.choice(BATCH_NAMES), chance.choice((0, 0, 0, 1, 4, 8, 2**31 - 8, 2**31))
        operands = [
            replace(operand, shape=_set(operand.shape, constraint.extents.index(name), value))
            if len(operand.shape) == 3 and name in constraint.extents
            else operand
            for constraint, operand in zip(constraints, operands, strict=True)
        ]
    return operands


STRICTER = {
    "zero extent": "expected extents of at least 1",
    "negative stride, or written elements coincide": "expected positive strides",
    "stride beyond the bound": f"expected strides up to {MAX_STRIDE_BYTES} bytes",
}
"""What `supports` refuses and compiled code lets pass, with the reason given: the whole list."""


def stricter(verdict: Verdict) -> str:
    """Which exception a refusal is, by the one reason that it gives; empty if it is none."""
    return next((name for name, reason in STRICTER.items() if reason in verdict.reason), "")


class _DLTensor(ctypes.Structure):
    """``DLTensor`` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    """``DLManagedTensor`` of dlpack.h."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def _fabricate(operand: OperandDescription, kept: list[Any]) -> Any:
    """A tensor without memory behind it. ``kept`` has to live as long as the tensor."""
    import tvm_ffi

    code, bits = DTYPES[operand.dtype].dlpack
    vector = ctypes.c_int64 * len(operand.shape)
    shape, strides = vector(*operand.shape), vector(*operand.strides)
    kind, ordinal = (1, 0) if operand.device == -1 else (2, operand.device or 0)
    tensor = _DLTensor(
        0x10000 + operand.address, kind, ordinal, len(operand.shape), code, bits, 1, shape, strides, 0
    )
    managed = _DLManagedTensor(tensor, None, None)
    kept += [shape, strides, managed]
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return tvm_ffi.from_dlpack(make(ctypes.addressof(managed), b"dltensor", None))


def _call_main(folder: Path) -> None:
    """Call every function of the library with its cases, and write what each came to."""
    import tvm_ffi

    library = tvm_ffi.load_module(str(folder / "library.so"))
    outcomes = []
    kept: list[Any] = []
    for symbol, cases in json.loads((folder / "cases.json").read_text()):
        function = library[symbol]
        for case in cases:
            operands = [OperandDescription(d, tuple(s), tuple(t), a, o) for d, s, t, a, o in case]
            try:
                function(*(_fabricate(operand, kept) for operand in operands))
                outcomes.append(["returned", ""])
            except Exception as error:
                outcomes.append([type(error).__name__, str(error).splitlines()[0]])
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


def call_all(
    folder: Path, compiled: Sequence[Compiled], cases: Sequence[Sequence[Sequence[OperandDescription]]]
) -> list[list[tuple[str, str]]]:
    """What each kernel's compiled function did with each of its cases: name of the error, and its text."""
    texts = {
        item.kernel.symbol: KernelObject.from_bytes(item.object_path.read_bytes()).host_code
        for item in compiled
    }
    toolchain = LinkToolchain.detect("x86_64")
    linkable = toolchain.compile(texts, folder, folder / "cache")
    toolchain.link(linkable, folder / "library.so", folder / "cache")
    request = [
        (
            item.kernel.symbol,
            [[[o.dtype, o.shape, o.strides, o.address, o.device] for o in case] for case in of_kernel],
        )
        for item, of_kernel in zip(compiled, cases, strict=True)
    ]
    (folder / "cases.json").write_text(json.dumps(request))
    run_self("call", folder, {})
    outcomes = iter(json.loads((folder / "outcomes.json").read_text()))
    return [[tuple(next(outcomes)) for _ in of_kernel] for of_kernel in cases]


def with_batch(operands: Sequence[OperandDescription]) -> list[OperandDescription]:
    """Rank-2 operands as a launch passes them: a batch of one. Operands of several ranks stay as they are."""
    if any(len(operand.shape) != 2 for operand in operands):
        return list(operands)
    return [
        replace(
            operand,
            shape=(1, *operand.shape),
            strides=(max(1, *operand.shape) * max(1, *operand.strides), *operand.strides),
        )
        for operand in operands
    ]


@pytest.mark.parametrize("source", ["f64_kernels", "f16_kernels"])
def test_supports_agrees_with_compiled_checks(
    source: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    compiled: list[Compiled] = request.getfixturevalue(source)
    per_kernel = CASES // len(compiled)
    chance = random.Random(20)
    cases = [[random_operands(item.kernel.operands, chance) for _ in range(per_kernel)] for item in compiled]
    outcomes = call_all(tmp_path, compiled, [[with_batch(case) for case in some] for some in cases])
    seen: Counter[str] = Counter()
    disagreements = []
    for item, some, results in zip(compiled, cases, outcomes, strict=True):
        constraints = item.kernel.operands
        for case, (error, text) in zip(some, results, strict=True):
            verdict = supports(constraints, case)
            # What passes the compiled checks goes on to CUDA, which is not there.
            assert error in ("TypeError", "ValueError", "RuntimeError"), (error, text)
            passed = error == "RuntimeError"
            if verdict and writes_nothing(constraints, case):
                # Compiled code is not called.
                seen["nothing written"] += 1
            elif bool(verdict) == passed:
                seen["accepted" if passed else "rejected"] += 1
            elif passed and stricter(verdict):
                seen[stricter(verdict)] += 1
            else:
                disagreements.append((item.kernel.name, case, verdict, error, text))
    assert not disagreements, "\n\n".join(map(str, disagreements[:10]))
    # The cases say something only if there are many of each kind.
    assert seen["accepted"] > CASES // 5, seen
    assert seen["rejected"] > CASES // 5, seen
    assert seen.keys() >= {*STRICTER, "nothing written"}, seen


def test_compiled_code_refuses_what_the_record_forbids(f64_kernels: list[Compiled], tmp_path: Path) -> None:
    """Each refusal by name, so that a test fails if the random one above ever loses a kind of case."""
    item = next(item for item in f64_kernels if item.kernel.layouts == "ttt")
    a, b, out = (describe(shape, "f64") for shape in ((2, 33, 17), (2, 17, 40), (2, 33, 40)))
    named: dict[str, tuple[list[OperandDescription], str, str]] = {
        "compact": ([a, b, out], "RuntimeError", ""),
        "padded rows": (
            [describe(a.shape, "f64", strides=(33 * 21 + 5, 21, 1)), b, out], "RuntimeError", "",
        ),
        "broadcast batch": ([describe(a.shape, "f64", strides=(0, 17, 1)), b, out], "RuntimeError", ""),
        "stride above 2^32": (
            [describe(a.shape, "f64", strides=(2**40, 2**33, 1)), b, out], "RuntimeError", "",
        ),
        "K differs": ([a, describe((2, 18, 40), "f64"), out], "ValueError", "b.shape[1]"),
        "batch differs": ([a, b, describe((3, 33, 40), "f64")], "ValueError", "shape[0]"),
        "column-major": ([describe(a.shape, "f64", strides=(561, 1, 33)), b, out], "ValueError", "stride"),
        "half a double off": ([replace(a, address=4), b, out], "ValueError", "lignment"),
        "element type": ([describe(a.shape, "f32"), b, out], "ValueError", "float64"),
        "on the CPU": ([replace(a, device=-1), b, out], "ValueError", "cuda"),
        "three of four": ([a, b], "TypeError", "parameters"),
        "extent beyond 32 bits": (
            [describe((2, 2**31, 17), "f64"), b, describe((2, 2**31, 40), "f64")], "ValueError", "int32",
        ),
    }  # fmt: skip
    (outcomes,) = call_all(tmp_path, [item], [[case for case, _, _ in named.values()]])
    for (name, (_, expected, part)), (error, text) in zip(named.items(), outcomes, strict=True):
        assert error == expected, (name, error, text)
        assert part in text, (name, text)


if __name__ == "__main__":
    {"compile": _compile_main, "call": _call_main}[sys.argv[1]](Path(sys.argv[2]))
