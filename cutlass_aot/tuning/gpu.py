"""Check and time kernels on a GPU, with torch for memory, events and graphs.

Every kernel of a problem runs once on operands whose product is known, and wrong ones are excluded. Each of
the others is captured in a CUDA graph that launches it on one set of operands after the other
(:mod:`cutlass_aot.tuning.rotation`), so that host time is not measured. The graphs are replayed between
events in the order that :mod:`cutlass_aot.tuning.search` asks for.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from cutlass_aot.errors import CutlassAotError, DeviceError, LaunchError, TuningError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.optional_packages import optional
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.tuning import TunedProblem
from cutlass_aot.schema.words import size
from cutlass_aot.tuning.clocks import Clocks
from cutlass_aot.tuning.reference import (
    Reference,
    fill,
    is_integer,
    poison,
    reference_dtype,
    scaled,
    tolerance,
)
from cutlass_aot.tuning.reference_run import Reference as OwnReference
from cutlass_aot.tuning.reference_run import run
from cutlass_aot.tuning.rotation import MOST_SETS, Place, Rotation, plan_rotation
from cutlass_aot.tuning.search import Effort, rank
from cutlass_aot.tuning.session import Job, Skipped

BATCH_SECONDS = 4e-4
"""What one batch of launches is to take: long beside the resolution of events, about half a microsecond."""

MOST_REPLAYS = 16
OUT = 2
"""Position of the output among the operands."""
WARM_UP_SECONDS = 0.5
SEED = 20_000

Operands = tuple[Any, ...]
"""a, b, out and scale factors."""


def import_torch(ordinal: int) -> Any:
    """Import torch; refuse one that cannot use a GPU."""
    torch = optional("torch", TuningError, "measuring on a GPU")
    if not torch.cuda.is_available() or ordinal >= torch.cuda.device_count():
        raise DeviceError(
            f"torch {torch.__version__} cannot use GPU {ordinal}: expected a build of torch with CUDA that "
            "suits the driver; python -m torch.utils.collect_env shows what it finds"
        )
    return torch


class GpuBench:
    """Measures on one GPU; a context manager, within which torch uses that GPU in full precision."""

    def __init__(self, torch: Any, ordinal: int, effort: Effort) -> None:
        self._torch = torch
        self._ordinal = ordinal
        self._effort = effort
        self._l2_bytes = cuda_driver.l2_bytes(ordinal)
        self.clocks = Clocks(cuda_driver.bus_id(ordinal))
        self._memory: Any = None
        self._warm = False
        self._loaded: set[str] = set()

    def __enter__(self) -> GpuBench:
        torch = self._torch
        self._precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        self._device = torch.device("cuda", self._ordinal)
        # A new stream: the legacy default stream cannot be captured.
        self._within = torch.cuda.stream(torch.cuda.Stream(self._device))
        self._within.__enter__()
        self.clocks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clocks.__exit__(kind, error, trace)
        self._within.__exit__(kind, error, trace)
        self._torch.set_float32_matmul_precision(self._precision)

    def measure(self, job: Job, extents: Extents) -> TunedProblem | Skipped:
        """Check and time all kernels of a job on one problem; see :class:`~.session.Bench`."""
        torch = self._torch
        try:
            return self._measured(job, extents)
        except torch.cuda.OutOfMemoryError:
            self._memory = None
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info(self._device)[0]
            return Skipped(f"its operands and their reference do not fit the {size(free)} of free memory")
        except NotImplementedError as error:
            return Skipped(f"this torch has no way to compute its reference: {error}".partition("\n")[0])
        except RuntimeError as error:
            message = str(error).strip().partition("\n")[0]
            raise DeviceError(
                f"the GPU failed while {job.name} was measured on {extents}: {message}; what was measured "
                "before is kept. CUDA_LAUNCH_BLOCKING=1 and --group tell which kernel it is"
            ) from error

    def _measured(self, job: Job, extents: Extents) -> TunedProblem:
        if not self._warm:
            self._warm_up()
        if job.reference is not None:
            return self._against_reference(job, job.reference, extents)
        group = job.kernels[0].group
        rotation = plan_rotation(group.operands, extents, self._l2_bytes)
        sets = self._operands(rotation, job, extents)
        if job.digest not in self._loaded:
            self._load(job, sets[0])
        failed, fastest = self._check(job, extents, rotation, sets)
        good = [index for index in range(len(job.kernels)) if index not in failed]
        clocks: list[tuple[int | None, int | None]] = []
        stopwatch = GraphStopwatch(
            self._torch,
            sets,
            self._flushed(rotation),
            fastest,
            lambda: clocks.append((self.clocks.sm_mhz(), self.clocks.memory_mhz())),
        )
        for index in good[:]:
            try:
                stopwatch.capture(index, job.kernels[index])
            except CutlassAotError as error:
                good.remove(index)
                failed[index] = f"cannot be captured in a CUDA graph: {error}"
        outcome = rank(good, stopwatch, time.perf_counter, self._effort)
        digests = [handle.digest for handle in job.kernels]
        return TunedProblem(
            extents,
            tuple((digests[index], _microseconds(seconds)) for index, seconds in outcome.ranked),
            tuple((digests[index], _microseconds(seconds)) for index, seconds in outcome.stopped),
            tuple(sorted((digests[index], reason) for index, reason in failed.items())),
            _median([sm for sm, _ in clocks]),
            _median([memory for _, memory in clocks]),
        )

    def _against_reference(self, job: Job, reference: OwnReference, extents: Extents) -> TunedProblem:
        """Check and time kernels of an operation that is not a GEMM, one after the other."""
        times: list[tuple[str, float]] = []
        failed: list[tuple[str, str]] = []
        for handle in job.kernels:
            try:
                outcome = run(self._torch, self._ordinal, handle, reference, extents.by_name)
            except LaunchError as error:
                failed.append((handle.digest, str(error)))
                continue
            if outcome.good:
                times.append((handle.digest, _microseconds(outcome.microseconds / 1e6)))
            else:
                reason = f"error {outcome.error:.2g}, expected at most {outcome.allowed:.2g}"
                failed.append((handle.digest, reason))
        return TunedProblem(
            extents,
            tuple(sorted(times, key=lambda item: (item[1], item[0]))),
            (),
            tuple(sorted(failed)),
            self.clocks.sm_mhz(),
            self.clocks.memory_mhz(),
        )

    def _warm_up(self) -> None:
        """Bring the clocks up from idling."""
        torch = self._torch
        matrix = torch.ones((4096, 4096), dtype=torch.float16, device=self._device)
        begin = time.perf_counter()
        while time.perf_counter() - begin < WARM_UP_SECONDS:
            for _ in range(20):
                torch.mm(matrix, matrix)
            torch.cuda.current_stream().synchronize()
        self._warm = True

    def _load(self, job: Job, operands: Operands) -> None:
        """Launch each kernel of a group once: the first launch loads it, which takes long."""
        for handle in job.kernels:
            # A refused launch is reported when it is checked.
            with contextlib.suppress(CutlassAotError):
                handle.launch(*operands)
        self._loaded.add(job.digest)

    def _operands(self, rotation: Rotation, job: Job, extents: Extents) -> list[Operands]:
        """Copies of the operands, one for each set; outputs are not initialised."""
        torch = self._torch
        needed = rotation.total_bytes + rotation.flush_bytes
        if self._memory is None or self._memory.numel() < needed:
            self._memory = None
            self._memory = torch.empty(needed, dtype=torch.uint8, device=self._device)
        constraints = job.kernels[0].group.operands
        torch.manual_seed(SEED)
        for position, place in enumerate(rotation.places):
            if position != OUT:
                fill(torch, self._lying(place), position, constraints, extents)
        first = self._memory[: rotation.set_bytes]
        for index in range(1, rotation.sets):
            begin = index * rotation.set_bytes
            self._memory[begin : begin + rotation.set_bytes].copy_(first)
        sets = []
        for index in range(rotation.sets):
            lying = [self._lying(place, index * rotation.set_bytes) for place in rotation.places]
            sets.append(
                tuple(
                    memory.transpose(1, 2) if place.transposed else memory
                    for memory, place in zip(lying, rotation.places, strict=True)
                )
            )
        return sets

    def _flushed(self, rotation: Rotation) -> Any:
        """Memory behind the sets to flush the cache with; None where that is not needed."""
        if not rotation.flush_bytes:
            return None
        return self._memory[rotation.total_bytes : rotation.total_bytes + rotation.flush_bytes]

    def _lying(self, place: Place, base: int = 0) -> Any:
        """A contiguous view of an operand's memory."""
        begin = base + place.offset
        dtype = getattr(self._torch, DTYPES[place.dtype].torch)
        return self._memory[begin : begin + place.bytes].view(dtype).view(place.memory)

    def _check(
        self, job: Job, extents: Extents, rotation: Rotation, sets: Sequence[Operands]
    ) -> tuple[dict[int, str], float]:
        """Compare each kernel's result with the reference.

        Returns the reasons by number of each wrong kernel, and the seconds of the fastest launch, which
        include the host's time where that is longer.
        """
        torch = self._torch
        constraints = job.kernels[0].group.operands
        accumulator = job.kernels[0].kernel.accumulator
        out = rotation.places[OUT]
        lying = self._lying(out)
        promoted = len(constraints) > OUT + 1 or job.kernels[0].kernel.accumulation == EXACT
        bound = tolerance(constraints, accumulator, extents, promoted=promoted)
        a, b = scaled(torch, sets[0], constraints, reference_dtype(constraints, extents))
        reference = Reference(torch, a, b, out, exact=is_integer(out.dtype))
        failed: dict[int, str] = {}
        launched: list[tuple[int, Any, Any, Any]] = []
        for index, handle in enumerate(job.kernels):
            poison(torch, lying)
            begin, end = _event(torch), _event(torch)
            try:
                begin.record()
                handle.launch(*sets[0])
                end.record()
            except CutlassAotError as error:
                failed[index] = str(error)
                continue
            launched.append((index, begin, end, reference.error(lying)))
        if not launched:
            return failed, BATCH_SECONDS
        # Synchronise once for all.
        errors = torch.stack([error for *_, error in launched]).tolist()
        fastest = math.inf
        for (index, begin, end, _), found in zip(launched, errors, strict=True):
            if not found <= bound:
                failed[index] = (
                    f"wrong result: an element is off by {found:.2e}, expected at most {bound:.2e}"
                    if not math.isnan(found)
                    else "wrong result: an element was not written, or is NaN"
                )
            else:
                fastest = min(fastest, begin.elapsed_time(end) / 1e3)
        return failed, fastest if math.isfinite(fastest) else BATCH_SECONDS


class GraphStopwatch:
    """Times kernels on one problem by replaying CUDA graphs of their launches between events.

    Uses torch's current stream, which must allow capture. Each launch takes the next of the sets.

    Args:
        flush: memory to write over before each batch; None if the sets together exceed the L2 cache.
        fastest: about how many seconds the fastest kernel takes.
        waiting: called once a round while the GPU works.
    """

    def __init__(
        self,
        torch: Any,
        sets: Sequence[Operands],
        flush: Any,
        fastest: float,
        waiting: Callable[[], None],
    ) -> None:
        self._torch = torch
        self._sets = sets
        self._flush = flush
        self._waiting = waiting
        self._graphs: dict[int, Any] = {}
        self._events: dict[int, tuple[Any, Any]] = {}
        self._replays = 1
        # Whole turns of the rotation, so that no replay begins with the set that the last one ended with.
        turn = len(sets)
        turns = round(BATCH_SECONDS / (turn * fastest)) if flush is None else 1
        self._launches = turn * max(1, min(turns, MOST_SETS // turn))

    def capture(self, index: int, handle: KernelHandle) -> None:
        """Capture launches of a kernel, which becomes candidate ``index``, and replay them once."""
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for number in range(self._launches):
                handle.launch(*self._sets[number % len(self._sets)])
        except CutlassAotError:
            _abandon(graph)
            raise
        graph.capture_end()
        # The first replay uploads the graph.
        graph.replay()
        self._graphs[index] = graph
        self._events[index] = (_event(torch), _event(torch))

    def time(self, candidates: Sequence[int]) -> Sequence[float]:
        """Time a batch of each candidate; see :class:`cutlass_aot.tuning.search.Stopwatch`."""
        if candidates:
            # On an idle GPU the first batch would be given the time that its launch takes on the host.
            self._graphs[candidates[0]].replay()
        for index in candidates:
            begin, end = self._events[index]
            if self._flush is not None:
                self._flush.fill_(0xFF)
            begin.record()
            for _ in range(self._replays):
                self._graphs[index].replay()
            end.record()
        self._waiting()
        self._torch.cuda.current_stream().synchronize()
        launches = self._launches * self._replays
        found = []
        for index in candidates:
            begin, end = self._events[index]
            found.append(begin.elapsed_time(end) / 1e3 / launches)
        if self._flush is None:
            replays = math.ceil(BATCH_SECONDS / (self._launches * min(found)))
            self._replays = max(1, min(replays, MOST_REPLAYS))
        return found


def _abandon(graph: Any) -> None:
    """End a capture that failed, ignoring further errors: the first one is the reason."""
    try:
        graph.capture_end()
    except RuntimeError:
        return


def _event(torch: Any) -> Any:
    return torch.cuda.Event(enable_timing=True)


def _microseconds(seconds: float) -> float:
    """Microseconds with three decimals, and never 0."""
    return max(round(seconds * 1e6, 3), 0.001)


def _median(clocks: Sequence[int | None]) -> int | None:
    known = [clock for clock in clocks if clock is not None]
    return statistics.median_low(known) if known else None
