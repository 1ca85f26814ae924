"""What one kernel costs: the constants of the cost model (:mod:`cutlass_aot.runtime.selection.cost_model`).

Constants are fitted to measurements (:mod:`cutlass_aot.tuning.fit`), predicted from a kernel's design by the
regression of a fit, or, where nothing was measured, derived from the design and the GPU alone
(:class:`Derivation`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import exp, isfinite, log
from typing import Annotated, Any

from cutlass_aot.schema.codec import row, within
from cutlass_aot.schema.kernels.tiling import Tiling
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.targets import Target

FORMULA = 4
"""Version of the cost model's formula, by which constants are fitted: raise it with every change of
:mod:`cutlass_aot.runtime.selection.cost_model` that gives another time for the same constants."""

MAX_FORMULA = 1_000_000
"""Largest version that is read."""


@row
class Machine(NamedTuple):
    """What times of a kernel scale with from one GPU model to another.

    Attributes:
        sm_count: streaming multiprocessors (SMs).
        sm_mhz: their highest clock.
        memory_bandwidth: of the device memory, in GB/s.
    """

    sm_count: Annotated[int, within(1, 100_000)]
    sm_mhz: Annotated[int, within(1, 100_000)]
    memory_bandwidth: Annotated[int, within(1, 1_000_000)]


_TYPICAL = {
    8: Machine(108, 1410, 2039),
    9: Machine(132, 1980, 3352),
    10: Machine(148, 1965, 8000),
    11: Machine(20, 1575, 273),
    12: Machine(170, 2407, 1792),
}
"""A typical GPU of each major compute capability: A100, H100, B200, Thor, RTX 5090. The clocks are rough."""

_FLOPS = {8: 2048, 9: 4096, 10: 8192, 11: 8192, 12: 512}
"""Operations that an SM does in a clock on dense operands of 16 bits, by major compute capability: the
published peak of those GPUs over SMs and clock, as a power of two."""

_OF_AMPERE = "Sm80"
"""How families begin whose instructions are those of compute capability 8.0. A newer SM is taken to run them
at the rate of that one, which is half of what Hopper's own instructions have; it was not measured."""

_REACHED = 0.7
"""Share of the tensor cores' rate that kernels reach on an H200 where nothing else limits them."""

_LOADED = 32
"""Bytes of operands that an SM loads in a clock: the weight of loading against multiplying that orders the
measurements on an H200 well, and the same for all GPUs as nothing better is known."""


def typical_machine(target: str) -> Machine:
    """A typical GPU of a target, where no device is known."""
    return _TYPICAL.get(Target.parse(target).major, _TYPICAL[9])


_LEAST, _MOST = 1e-6, 1e6
"""Bounds of a constant that a fit gives; far from what is measured, and well within single precision."""

_LEAST_TAIL, _MOST_TAIL = 1e-3, 0.999
_LEAST_OVERLAP, _MOST_OVERLAP = 1.05, 16.0
_PLAUSIBLE = {"tail": (_LEAST_TAIL / 2, 1.0), "overlap": (1.0, 2 * _MOST_OVERLAP)}
"""Bounds, in a file, of the constants that have bounds of their own."""

_Cost = Annotated[float, within(_LEAST / 2, 2 * _MOST)]


@row
class Costs(NamedTuple):
    """The constants of one kernel on one GPU; times in microseconds.

    Attributes:
        launch: time of a launch that computes nothing.
        tile: time that a block takes for a tile beside its steps: to begin, to add up and to store.
        step: time of a step along K with all SMs at work, without what pairing, sharing and misalignment add.
        crowding: exponent by which a step is faster when few SMs are at work.
        pairing: by how much a step takes longer, as a share, where both SMs of a pair are at work.
        sharing: the same where two blocks are on an SM.
        misalignment: what loading a whole tile takes, as a share of a step, where rows along K are not a
            multiple of 32 bytes; the longer of the two counts.
        within_line: what loading takes where rows along K are a multiple of 32 bytes but not of 128, as a
            share of ``misalignment``.
        tail: weight of whole waves against the share of the GPU that clusters fill, from 0 to 1.
        bandwidth: GB/s of reading operands and writing the output.
        emptiness: bytes of the device memory for each byte that tiles have beyond the operands.
        partial_sectors: bytes read that each byte of the output counts for in addition, where its rows are
            not a multiple of 32 bytes.
        partial_lines: the same where they are a multiple of 32 bytes but not of 128.
        overlap: how far computing and reading overlap: 1 is not at all, many is entirely.
        unevenness: by how much moving operands takes longer, as a share of what the SMs with the most blocks
            have to do beyond the average.
    """

    launch: _Cost
    tile: _Cost
    step: _Cost
    crowding: _Cost
    pairing: _Cost
    sharing: _Cost
    misalignment: _Cost
    within_line: _Cost
    tail: Annotated[float, within(*_PLAUSIBLE["tail"])]
    bandwidth: _Cost
    emptiness: _Cost
    partial_sectors: _Cost
    partial_lines: _Cost
    overlap: Annotated[float, within(*_PLAUSIBLE["overlap"])]
    unevenness: _Cost

    def on(self, measured: Machine, present: Machine) -> "Costs":
        """These constants, measured on one GPU, scaled to another by their clocks and bandwidths."""
        if measured == present:
            return self
        clock = measured.sm_mhz / present.sm_mhz
        return self._replace(
            tile=self.tile * clock,
            step=self.step * clock,
            bandwidth=self.bandwidth * present.memory_bandwidth / measured.memory_bandwidth,
        )


def check_costs(kernels: Sequence[Costs]) -> None:
    """Refuse constants of kernels (ValueError) for which no time can be estimated."""
    for name, column in zip(Costs._fields, zip(*kernels, strict=True), strict=False):
        least, most = _PLAUSIBLE.get(name, (_LEAST / 2, 2 * _MOST))
        # min() and max() can pass over a NaN, depending on its place; a sum cannot.
        if not (isfinite(sum(column)) and least <= min(column) and max(column) <= most):
            raise ValueError(
                f"impossible constants of the cost model: {name} from {min(column)} to {max(column)}"
            )


class Derivation(NamedTuple):
    """What the constants of kernels of which nothing was measured are derived by, on one GPU.

    Attributes:
        costs: those of a kernel whose blocks do not share their sums, without a step.
        shared_tile: ``tile`` of one whose blocks do.
        multiply: microseconds that a step takes for each of its multiply-adds.
        load: microseconds that it takes for each element that it loads.
    """

    costs: Costs
    shared_tile: float
    multiply: float
    load: float

    def of(self, tiling: Tiling) -> Costs:
        """The constants of a kernel."""
        block_m, block_n, depth = tiling.block_m, tiling.block_n, tiling.depth
        launch, tile, _, *others = self.costs
        step = self.multiply * block_m * block_n * depth + self.load * (block_m + block_n) * depth
        return Costs(launch, self.shared_tile if tiling.split > 1 else tile, step, *others)


def is_of_ampere(kind: str) -> bool:
    """Whether kernels of a :attr:`.Tiling.kind` have the instructions of compute capability 8.0."""
    return kind.startswith(_OF_AMPERE)


@lru_cache(maxsize=64)
def derivation(input_bits: int, target: str, machine: Machine, *, of_ampere: bool = False) -> Derivation:
    """How constants are derived for kernels of a target, of which nothing was measured.

    A step is its multiply-adds at the tensor cores' rate, and then the loading of its operands. The rest are
    round numbers of the order that a fit on an H200 gives. ``tools/check/selection.py`` prints how well they
    order what was measured there.
    """
    major = Target.parse(target).major
    flops = _FLOPS.get(major, _FLOPS[9])
    if of_ampere:
        flops = min(flops, _FLOPS[8])
    rate = _REACHED * flops * (16 / input_bits if input_bits <= 32 else 1 / 16)
    pairing, tile = 0.3, 1980 / machine.sm_mhz
    costs = Costs(
        launch=1.0,
        tile=2 * tile,
        step=0.0,
        crowding=0.2,
        pairing=pairing,
        sharing=0.9,
        misalignment=1.2,
        within_line=0.5,
        tail=0.9,
        bandwidth=0.8 * machine.memory_bandwidth,
        emptiness=0.5,
        partial_sectors=1.0,
        partial_lines=0.2,
        overlap=2.0,
        unevenness=0.4,
    )
    clock = 1 / machine.sm_mhz / (1 + pairing)
    return Derivation(costs, 3 * tile, 2 / rate * clock, input_bits / 8 / _LOADED * clock)


def derived(tiling: Tiling, input_bits: int, target: str, machine: Machine) -> Costs:
    """Constants for a kernel of which nothing was measured."""
    return derivation(input_bits, target, machine, of_ampere=is_of_ampere(tiling.kind)).of(tiling)


# -- regression ---------------------------------------------------------------------------------------------

FEATURES = 6


def features(tiling: Tiling) -> tuple[float, ...]:
    """What the constants of kernels of one kind differ by: logarithms of extents of the tiling."""
    return (
        log(tiling.block_m * tiling.block_n / 8192),
        log((tiling.block_m + tiling.block_n) / 192),
        log(tiling.block_m / tiling.block_n),
        log(tiling.depth / 64),
        log(tiling.blocks),
        log(tiling.split),
    )


def to_logarithms(costs: Costs) -> list[float]:
    """Constants on scales without bounds, on which they are fitted."""
    return [scale(value) for (scale, _), value in zip(_SCALES, costs, strict=True)]


def from_logarithms(values: Sequence[float]) -> Costs:
    """The inverse of :func:`to_logarithms`, within the bounds of what a file may have."""
    # e^50 is beyond every bound.
    bounded = [min(max(value, -50.0), 50.0) for value in values]
    found = [unscale(value) for (_, unscale), value in zip(_SCALES, bounded, strict=True)]
    found = [min(max(value, least), most) for value, (least, most) in zip(found, _BOUNDS, strict=True)]
    # Five digits: a fit gives no more, and the files that hold them are read by people.
    return Costs(*(float(f"{value:.5g}") for value in found))


def _logit(value: float) -> float:
    return log(value / (1 - value))


def _logistic(value: float) -> float:
    return 1 / (1 + exp(-value))


_LOGARITHM = (log, exp)
_SCALES: tuple[Any, ...] = tuple(
    {
        "tail": (_logit, _logistic),
        "overlap": (lambda value: log(value - 1), lambda value: 1 + exp(value)),
    }.get(name, _LOGARITHM)
    for name in Costs._fields
)

_BOUNDS = tuple(
    {"tail": (_LEAST_TAIL, _MOST_TAIL), "overlap": (_LEAST_OVERLAP, _MOST_OVERLAP)}.get(name, (_LEAST, _MOST))
    for name in Costs._fields
)

_Numbers = tuple[float, ...]


class Regression(NamedTuple):
    """The constants of a kernel by its design, as differences of their logarithms from :func:`derived`.

    Attributes:
        kinds: difference by :attr:`Tiling.kind`, a number for each constant.
        others: difference for kernels of other kinds.
        slopes: for each constant, what each of :func:`features` adds.
    """

    kinds: Mapping[str, _Numbers]
    others: _Numbers
    slopes: tuple[_Numbers, ...]

    def validate(self) -> None:
        """Refuse another number of constants or features."""
        for numbers in (*self.kinds.values(), self.others, self.slopes):
            if len(numbers) != len(Costs._fields):
                raise ValueError(f"expected {len(Costs._fields)} numbers, found {len(numbers)}")
        if any(len(slopes) != FEATURES for slopes in self.slopes):
            raise ValueError(f"expected {FEATURES} slopes of each constant")
        if not all(abs(n) < 50 for ns in (*self.kinds.values(), self.others, *self.slopes) for n in ns):
            raise ValueError("a number is impossible")

    def differences(self, tiling: Tiling) -> list[float]:
        """What it says of a kernel, for each constant."""
        measured = features(tiling)
        return [
            offset + sum(slope * feature for slope, feature in zip(slopes, measured, strict=True))
            for offset, slopes in zip(self.kinds.get(tiling.kind, self.others), self.slopes, strict=True)
        ]

    def predict(self, tiling: Tiling, base: Costs) -> Costs:
        """The constants of a kernel; ``base`` are those of :func:`derived`."""
        return from_logarithms(
            [
                value + difference
                for value, difference in zip(to_logarithms(base), self.differences(tiling), strict=True)
            ]
        )
