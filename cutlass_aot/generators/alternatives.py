"""Why a generator has no kernel for a problem: which change of one thing would give some.

It runs in a worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import has_fast_sums
from cutlass_aot.generators.protocol import Generator, Problem, ScaleRequest
from cutlass_aot.generators.registry import references
from cutlass_aot.manifest.kernels import DEFAULT_ACCUMULATORS
from cutlass_aot.schema.kernels.accumulation import EXACT, FAST
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import BLOCKS, MATRIX, NUMBER, Epilogue, EpilogueOperand
from cutlass_aot.schema.kernels.epilogue import DTYPES as EPILOGUE_DTYPES
from cutlass_aot.schema.kernels.formula import OUT, canonical_text, names_in
from cutlass_aot.schema.words import few

_PACKAGE = __name__.partition(".")[0]
_ACCUMULATORS = ("f32", "f16", "f64", "i32")
_SCALES = (ScaleRequest("f8e8m0", 32), ScaleRequest("f8e4m3", 16))
_SCALES_OF_BLOCKS = ScaleRequest("f32", 128), ScaleRequest("f32", 128, across=128)
"""Of a and of b."""
_PLAIN_LAYOUTS = "tnt"


class _Change(NamedTuple):
    """A problem that differs in one thing; ``words`` says in which, with ``{}`` for ``value``."""

    words: str
    value: str
    problem: Problem
    target: str


def alternatives(generator: Generator, problem: Problem, target: str, device: DeviceProfile) -> str:
    """What a generator has instead of nothing, such as ``it has some with f16, bf16 or f32 as `out```.

    Generators of this package that have kernels for the problem are named too.
    """
    others = [repr(name) for name in _generators_of(problem, target, device) if name != generator.name]
    words = _of_this(generator, problem, target, device)
    have = "has" if len(others) == 1 else "have"
    return f"{words}; {' and '.join(others)} {have} kernels for it" if others else words


def _generators_of(problem: Problem, target: str, device: DeviceProfile) -> Iterator[str]:
    """Names of the generators of this package that have kernels for a problem."""
    for name, reference in sorted(references().items()):
        # Those of other packages are loaded only where a manifest names them.
        if reference.location.startswith(f"{_PACKAGE}."):
            with contextlib.suppress(Exception):
                other = reference.load()
                if target in other.targets(problem.operation) and _has(other, problem, target, device):
                    yield name


def _has(generator: Generator, problem: Problem, target: str, device: DeviceProfile) -> bool:
    """Whether a generator has a kernel; what it raises counts as none, as it is not made for all of this."""
    with contextlib.suppress(Exception):
        return next(iter(generator.enumerate(problem, target, device)), None) is not None
    return False


def _of_this(generator: Generator, problem: Problem, target: str, device: DeviceProfile) -> str:
    """What the generator has.

    Each element type, layout, scale factor and part of the epilogue is changed by itself. If no single change
    helps, the same is tried without epilogue and scale factors in the usual layouts; then all element types
    at once.
    """

    def has(change: _Change) -> bool:
        return _has(generator, change.problem, change.target, device)

    targets = generator.targets(problem.operation)
    if found := _phrases(_changes(problem, target, targets), has):
        return f"it has some {found}"
    plain = replace(problem, epilogue=None, scales=(None, None))
    if len(problem.layouts) == len(_PLAIN_LAYOUTS):
        plain = replace(plain, layouts=_PLAIN_LAYOUTS)
    if plain != problem and (found := _phrases(_changes(plain, target, targets), has)):
        return f"it has some for `{plain}` {found}"
    if found := _phrases(_of_one_type(plain, target), has):
        return f"it has some {found}"
    return "another element type, layout, scale factor, epilogue or target alone gives none either"


def _phrases(changes: Iterator[_Change], has: Callable[[_Change], bool]) -> str:
    by_words: dict[str, list[str]] = {}
    for change in changes:
        # Both operands are of other types only where that of one does not suffice.
        if change.words == _BOTH and any(words in by_words for words in map(_AS.format, "{}ab", "ab{}")):
            continue
        if has(change):
            by_words.setdefault(change.words, []).append(change.value)
    return ", or ".join(words.format(_either(values)) for words, values in by_words.items())


_BOTH = "with {} as `a` and `b`"
_AS = "with {{}} as `{}`"


def _either(values: list[str]) -> str:
    if len(values) > 6:
        return few(values, 6)
    return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))


def _changes(problem: Problem, target: str, targets: tuple[str, ...]) -> Iterator[_Change]:
    """Every problem that differs in one thing; the thing that is nearest to the end of a call first."""

    def changed(words: str, value: str = "", **fields: object) -> _Change:
        return _Change(words, value, replace(problem, **fields), target)  # type: ignore[arg-type]

    if problem.epilogue is not None:
        for words, value, epilogue in _epilogues(problem.epilogue):
            yield changed(words, value, epilogue=epilogue)
        yield changed("without the epilogue", epilogue=None)
    dtypes = problem.dtypes
    for index, name in zip(range(len(dtypes) - 1, -1, -1), _names(len(dtypes)), strict=True):
        for dtype in DTYPES:
            if dtype != dtypes[index]:
                others = (*dtypes[:index], dtype, *dtypes[index + 1 :])
                yield changed(_AS.format(name), dtype, dtypes=others)
    for accumulator in _ACCUMULATORS if problem.accumulator else ():
        if accumulator != problem.accumulator:
            yield changed("with accumulator {}", accumulator, accumulator=accumulator)
    if has_fast_sums(problem, target):
        other = FAST if problem.accumulation == EXACT else EXACT
        yield changed('with accumulation = "{}"', other, accumulation=other)
    for letters in product("tn", repeat=len(problem.layouts)):
        if (layouts := "".join(letters)) != problem.layouts:
            yield changed("with layouts {}", layouts, layouts=layouts)
    yield from _scaled(problem, target)
    if len(dtypes) > 1:
        for dtype in DTYPES:
            yield changed(_BOTH, dtype, dtypes=(dtype, dtype, *dtypes[2:]))
    for other_target in targets:
        if other_target != target:
            yield _Change("for {}", other_target, problem, other_target)
    if dtypes:
        yield changed("without operands that are named", dtypes=(), layouts="", accumulator="")


def _of_one_type(problem: Problem, target: str) -> Iterator[_Change]:
    """Problems all of whose operands have one type; those of a GEMM where none are named."""
    count = len(problem.dtypes) or len(_PLAIN_LAYOUTS)
    for layouts in (problem.layouts,) if problem.dtypes else (_PLAIN_LAYOUTS, "t" * count):
        for dtype in DTYPES:
            accumulator = DEFAULT_ACCUMULATORS.get(dtype, "f32")
            words = f"with all operands of {{}} and accumulator {accumulator}, layouts {layouts}"
            dtypes = (dtype,) * count
            other = replace(problem, dtypes=dtypes, layouts=layouts, accumulator=accumulator)
            yield _Change(words, dtype, other, target)


def _names(count: int) -> list[str]:
    """Names of a problem's operands, the last first."""
    known = ["out", "b", "a"] if count == 3 else []
    return known or [f"operand {index + 1}" for index in range(count - 1, -1, -1)]


def _scaled(problem: Problem, target: str) -> Iterator[_Change]:
    for both in (True, False):
        words = "with {} for both operands" if both else "with {} for `a`"
        for scale in _SCALES:
            scales = (scale, scale if both else None)
            if scales != problem.scales and problem.dtypes:
                value = f"factors {scale.dtype} of {scale.block} elements"
                yield _Change(words, value, replace(problem, scales=scales), target)
    if problem.scales != _SCALES_OF_BLOCKS and problem.dtypes:
        of_a, of_b = _SCALES_OF_BLOCKS
        value = (
            f"factors {of_a.dtype} of {of_a.block} elements for `a` and {of_b.across} x {of_b.block} for `b`"
        )
        yield _Change("with {}", value, replace(problem, scales=_SCALES_OF_BLOCKS), target)
    if problem.scales != (None, None):
        yield _Change("without scale factors", "", replace(problem, scales=(None, None)), target)


def _epilogues(epilogue: Epilogue) -> Iterator[tuple[str, str, Epilogue]]:
    """Epilogues that differ in one operand, or lack one output; last, one of numbers alone."""
    statements = epilogue.statements
    for left_out in statements:
        if left_out.name == OUT:
            continue
        rest = [statement for statement in statements if statement is not left_out]
        read = frozenset[str]().union(*(names_in(statement.expression) for statement in rest))
        used = read.union(statement.name for statement in rest)
        # What others read is a number there, where it is not computed.
        operands = tuple(
            EpilogueOperand(operand.name, "f32", NUMBER) if operand.name == left_out.name else operand
            for operand in epilogue.operands
            if operand.name in used
        )
        words = f"with `{left_out.name}` as a number" if left_out.name in read else f"without `{left_out}`"
        yield f"{words} in the epilogue", "", Epilogue(canonical_text(rest), operands)
    for extents, columns in BLOCKS.items() if epilogue.block > 1 else ():
        if columns != epilogue.block:
            operands = tuple(
                replace(operand, extents=extents) if operand.block > 1 else operand
                for operand in epilogue.operands
            )
            yield "with scales of {} columns", str(columns), replace(epilogue, operands=operands)
    for index, operand in enumerate(epilogue.operands):

        def other(index: int = index, **fields: object) -> Epilogue:
            made = replace(epilogue.operands[index], **fields)  # type: ignore[arg-type]
            return replace(
                epilogue, operands=(*epilogue.operands[:index], made, *epilogue.operands[index + 1 :])
            )

        for dtype in EPILOGUE_DTYPES if operand.extents else ():
            if dtype != operand.dtype:
                yield _AS.format(operand.name), dtype, other(dtype=dtype)
        if operand.extents == MATRIX:
            for layout in "tn":
                if layout != operand.layout:
                    yield f"with `{operand.name}` in layout {{}}", layout, other(layout=layout)
        if operand.extents and not operand.written:
            number = other(extents=NUMBER, dtype="f32", layout="", transport="")
            yield f"with `{operand.name}` as a number", "", number
        if operand.transport:
            yield f"with `{operand.name}` moved by tma", "", other(transport="")
    if sum(operand.extents != NUMBER for operand in epilogue.operands) > 1:
        (out,) = (statement for statement in statements if statement.name == OUT)
        read = names_in(out.expression)
        numbers = tuple(
            EpilogueOperand(operand.name, "f32", NUMBER)
            for operand in epilogue.operands
            if operand.name in read
        )
        yield "with numbers alone in the epilogue", "", Epilogue(canonical_text([out]), numbers)
