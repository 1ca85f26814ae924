"""Runs the PTX of a kernel on the CPU: that of element-wise kernels and of reductions, without tensor cores.

All threads of a cluster go through the instructions together, as arrays of NumPy, and those that are behind
go first, so that branches meet again. What would be undefined on a GPU is an error: a shuffle or a ballot in
which a thread of the warp does not take part, a barrier that a thread has left aside, an access that is
misaligned or outside the buffers, a write into a buffer that is not the kernel's to write, and a write into
the shared memory of a block that may not have begun, or that may have ended.

Rounding is that of the instructions, but for approximations (``ex2.approx``, ``rsqrt.approx``,
``rcp.approx``), which are computed in double precision and rounded, and for ``fma``, which is rounded twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy

from tests.support.floats import e4m3_values, f32_bits, from_bf16, to_bf16, to_e4m3

WARP = 32
_GAP = 256
"""Bytes between buffers, which belong to none."""

_FIRST = 1 << 40
"""The address of the first buffer: one that does not fit into 32 bits."""

_WINDOW = 1 << 24
"""Addresses of a block's shared memory, as other blocks of its cluster see it: more than there is of it."""

_DYNAMIC = 192 << 10
"""Bytes of the shared memory whose size the launch says, where a kernel has some."""

_TOKEN = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_COMPARISONS = {
    "eq": numpy.equal, "ne": numpy.not_equal, "lt": numpy.less, "le": numpy.less_equal,
    "gt": numpy.greater, "ge": numpy.greater_equal,
}  # fmt: skip

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply, "div": numpy.divide,
    "min": numpy.fmin, "max": numpy.fmax, "neg": numpy.negative, "abs": numpy.abs,
    "mad": lambda a, b, c: a * b + c,
    "rcp": lambda a: 1.0 / a.astype(numpy.float64),
    "rsqrt": lambda a: 1.0 / numpy.sqrt(a.astype(numpy.float64)),
    "ex2": lambda a: numpy.exp2(a.astype(numpy.float64)),
    "and": numpy.bitwise_and, "or": numpy.bitwise_or, "xor": numpy.bitwise_xor, "not": numpy.invert,
    "shl": numpy.left_shift, "shr": numpy.right_shift,
    "popc": lambda a: sum(a >> numpy.uint32(bit) & 1 for bit in range(32)).astype(numpy.uint32),
}  # fmt: skip
"""Instructions that apply a function to their operands, whatever the type."""


class PtxError(Exception):
    """What a GPU would leave undefined, or an instruction that is not known here."""


class Instruction(NamedTuple):
    """One statement: its guard (a register, and the value that lets it pass), operation and operands."""

    guard: tuple[str, bool] | None
    operation: str
    operands: tuple[str, ...]
    text: str


class Program(NamedTuple):
    """A kernel: parameters with their sizes, shared variables with their offsets, threads, and code."""

    parameters: tuple[tuple[str, int], ...]
    shared: Mapping[str, int]
    threads: int
    code: tuple[Instruction, ...]
    labels: Mapping[str, int]


def parse(text: str) -> Program:
    """Parse a file with one kernel."""
    text = re.sub(r"//[^\n]*", "", text)
    # A loop around a wait is one instruction.
    text = re.sub(
        r"\{[^{}]*mbarrier\.try_wait\.parity\.shared\.b64 P1, (\[[^]]*\]), 0, [^{}]*\}",
        r"mbarrier.wait.shared.b64 \1;",
        text,
    )
    head, _, body = text.partition("\n{\n")
    sizes = {"b8": 1, "b16": 2, "b32": 4, "f32": 4, "u32": 4, "b64": 8, "u64": 8, "s32": 4}
    parameters = []
    for kind, name, count in re.findall(r"\.param (?:\.align \d+ )?\.(\w+) (\w+)(?:\[(\d+)\])?", head):
        parameters.append((name, sizes[kind] * int(count or 1)))
    threads = re.search(r"\.reqntid (\d+)", head)
    if threads is None:
        raise PtxError("the kernel does not say how many threads it has")
    shared: dict[str, int] = {}
    used = 0
    variable = r"\.shared \.align (\d+) \.(\w+) ([\w$]+)(?:\[(\d+)\])?;"
    for alignment, kind, name, count in re.findall(variable, text):
        used = -(-used // int(alignment)) * int(alignment)
        shared[name] = used
        used += sizes[kind] * int(count or 1)
    for alignment, name in re.findall(r"\.extern \.shared \.align (\d+) \.b8 (\w+)\[\];", text):
        shared[name] = -(-used // int(alignment)) * int(alignment)
        used = shared[name] + _DYNAMIC
    shared[""] = used
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in re.split(r";|(?<=:)\s", re.sub(r"^\s*[{}]\s*$", "", body, flags=re.M)):
        line = (
            " ".join(statement.split()).strip("{} ") if "%" not in statement else " ".join(statement.split())
        )
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
            continue
        if not line or line.startswith("."):
            continue
        guard = None
        if line.startswith("@"):
            register, _, line = line[1:].partition(" ")
            guard = (register.lstrip("!"), not register.startswith("!"))
        operation, _, rest = line.partition(" ")
        code.append(Instruction(guard, operation, tuple(_TOKEN.findall(rest)), line))
    return Program(tuple(parameters), shared, int(threads[1]), tuple(code), labels)


class Memory:
    """Buffers at made-up addresses; the arrays are copied in, and copied back by :meth:`read`."""

    def __init__(self) -> None:
        self.bytes = numpy.zeros(0, numpy.uint8)
        self.readable = numpy.zeros(0, bool)
        self.writable = numpy.zeros(0, bool)

    def add(self, array: Any, written: bool) -> int:
        """Copy a buffer in; its address."""
        raw = numpy.frombuffer(array.tobytes(), numpy.uint8)
        start = -(-len(self.bytes) // _GAP) * _GAP + _GAP
        size = start + len(raw) + _GAP
        for name, value in (("bytes", raw), ("readable", True), ("writable", written)):
            old = getattr(self, name)
            grown = numpy.zeros(size, old.dtype)
            grown[: len(old)] = old
            grown[start : start + len(raw)] = value
            setattr(self, name, grown)
        return _FIRST + start

    def read(self, address: int, array: Any) -> Any:
        """A buffer as an array like the one that was added."""
        start = address - _FIRST
        raw = self.bytes[start : start + array.nbytes].tobytes()
        return numpy.frombuffer(raw, array.dtype).reshape(array.shape).copy()


def run(
    program: Program,
    memory: Memory,
    parameters: Sequence[bytes],
    grid: tuple[int, int, int],
    cluster: int = 1,
) -> None:
    """Run every cluster of a grid, one after the other.

    Args:
        program: the kernel.
        memory: global memory, which it reads and writes.
        parameters: the bytes of each parameter.
        grid: blocks along x, y and z.
        cluster: blocks of a cluster, along x.

    Raises:
        PtxError: for what a GPU would leave undefined, and for unknown instructions.
    """
    given = {}
    for (name, size), value in zip(program.parameters, parameters, strict=True):
        if len(value) != size:
            raise PtxError(f"parameter {name}: expected {size} bytes, got {len(value)}")
        given[name] = value
    if grid[0] % cluster:
        raise PtxError(f"expected a grid of whole clusters of {cluster} blocks, got {grid[0]} along x")
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(0, grid[0], cluster):
                _Cluster(program, memory, given, (x, y, z), grid, cluster).run()


def _names(text: str) -> list[str]:
    """The registers of a vector, or the one that stands alone."""
    return text.strip("{}").replace(",", " ").split()


class _Cluster:
    """The threads of a cluster: their registers, shared memory, and the instruction that each is at."""

    def __init__(
        self,
        program: Program,
        memory: Memory,
        parameters: Mapping[str, bytes],
        place: tuple[int, int, int],
        grid: tuple[int, int, int],
        blocks: int,
    ) -> None:
        self.program, self.memory, self.parameters = program, memory, parameters
        self.count = program.threads * blocks
        every = numpy.arange(self.count, dtype=numpy.uint32)
        self.rank = every // numpy.uint32(program.threads)
        self.registers: dict[str, Any] = {
            "%tid.x": every % numpy.uint32(program.threads), "%cluster_ctarank": self.rank,
            "%laneid": every % numpy.uint32(program.threads) % numpy.uint32(WARP),
        }  # fmt: skip
        for axis, letter in enumerate("xyz"):
            self.registers[f"%ctaid.{letter}"] = self._all(place[axis])
            self.registers[f"%nctaid.{letter}"] = self._all(grid[axis])
        self.registers["%ctaid.x"] = self.registers["%ctaid.x"] + self.rank
        self.shared = numpy.zeros(blocks * program.shared[""], numpy.uint8)
        self.place = numpy.zeros(self.count, numpy.int64)
        self.active = numpy.ones(self.count, bool)
        # Of each thread: whether it waits at the cluster's barrier, whether it was there, and whether other
        # blocks have written into its shared memory since it waited for them.
        self.arrived, self.met, self.unseen = (numpy.zeros(self.count, bool) for _ in range(3))
        # Of each barrier in shared memory, by its place: threads that have to arrive, and bytes that have to.
        self.barriers: dict[int, list[int]] = {}
        # Of each barrier, bulk copies that nobody has waited for: where to, where from, and what was there.
        self.copies: dict[int, list[tuple[Any, Any, Any]]] = {}
        # Of each byte of shared memory the number of the barrier that a copy of it completes at, or 0; and of
        # each such barrier and each thread, whether it has waited there.
        self.copied_at = numpy.zeros(len(self.shared), numpy.int32)
        self.numbers: dict[int, int] = {}
        self.waited = numpy.ones((1, self.count), bool)

    def _all(self, value: int, dtype: Any = numpy.uint32) -> Any:
        return numpy.full(self.count, value, dtype)

    def run(self) -> None:
        """Until every thread has returned."""
        code = self.program.code
        with numpy.errstate(all="ignore"):
            while (now := int(self.place.min())) < len(code):
                self.active = self.place == now
                instruction = code[now]
                taken = self.active
                if instruction.guard is not None:
                    register, expected = instruction.guard
                    taken = self.active & (self.registers[register] == expected)
                self.place[self.active] += 1
                kind = instruction.operation.split(".")[0]
                if kind == "ret":
                    if self.copies:
                        raise PtxError("a thread leaves while a copy is on its way")
                    if (self.unseen | self.arrived)[taken].any():
                        raise PtxError("a thread leaves before it has waited for other blocks")
                    self.place[taken] = len(code)
                elif kind == "bra":
                    self.place[taken] = self.program.labels[instruction.operands[0]]
                else:
                    self._execute(kind, instruction, taken)

    def _execute(self, kind: str, instruction: Instruction, taken: Any) -> None:
        handler: Callable[..., Any] | None = getattr(self, f"_{kind}", None)
        if kind in _FUNCTIONS:
            handler = partial(self._compute, kind)
        if handler is None:
            raise PtxError(f"unknown instruction: {instruction.text}")
        try:
            handler(instruction.operation.split(".")[1:], instruction.operands, taken)
        except PtxError as error:
            raise PtxError(f"{instruction.text}: {error}") from None

    # ---- operands ----

    def _value(self, text: str, bits: int = 32) -> Any:
        """An operand as an array of unsigned integers, or of booleans."""
        if text.startswith("%"):
            return self.registers[text]
        dtype = {16: numpy.uint16, 32: numpy.uint32, 64: numpy.uint64}[bits]
        if text.startswith("0f"):
            return self._all(int(text[2:], 16), dtype)
        if text in self.program.shared:
            return self._all(self.program.shared[text], dtype)
        return self._all(int(text.rstrip("U"), 0) & ((1 << bits) - 1), dtype)

    def _signed(self, text: str, bits: int) -> Any:
        return self._value(text, bits).view({16: numpy.int16, 32: numpy.int32, 64: numpy.int64}[bits])

    def _float(self, text: str) -> Any:
        return self._value(text).view(numpy.float32)

    def _set(self, name: str, value: Any, taken: Any) -> None:
        if name == "_":
            return
        old = self.registers.get(name)
        if taken.all():
            self.registers[name] = value
        else:
            self.registers[name] = numpy.where(taken, value, numpy.zeros_like(value) if old is None else old)

    def _addresses(self, text: str) -> Any:
        base, _, offset = text.strip("[]").partition("+")
        wide = self._value(base, 64).astype(numpy.int64)
        return wide + int(offset or 0)

    # ---- memory ----

    def _ld(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        bits, count = int(kinds[-1][1:]), int(kinds[-2][1:]) if kinds[-2] in ("v2", "v4") else 1
        names = _names(operands[0])
        dtype = {16: numpy.uint16, 32: numpy.uint32, 64: numpy.uint64}[bits]
        if kinds[0] == "param":
            name, _, offset = operands[1].strip("[]").partition("+")
            found = numpy.frombuffer(self.parameters[name], dtype, count, int(offset or 0))
            for register, value in zip(names, found, strict=True):
                self._set(register, self._all(int(value), dtype), taken)
            return
        source, places = self._places(kinds[0], operands[1], bits // 8 * count, taken, False)
        for i, register in enumerate(names):
            raw = source[places[:, None] + numpy.arange(i * bits // 8, (i + 1) * bits // 8)]
            value = numpy.zeros(self.count, dtype)
            value[taken] = raw.view(dtype)[:, 0]
            self._set(register, value, taken)

    def _st(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        bits, count = int(kinds[-1][1:]), int(kinds[-2][1:]) if kinds[-2] in ("v2", "v4") else 1
        names = _names(operands[1])
        if kinds[0] == "async":
            kinds = kinds[1:]
            _, barriers = self._places(kinds[0], operands[2], 8, taken, True)
            for place in barriers.tolist():
                if place not in self.barriers:
                    raise PtxError("there is no barrier for what is stored")
                self.barriers[place][1] -= bits // 8 * count
                self.unseen |= self.rank == place // self.program.shared[""]
        target, places = self._places(kinds[0], operands[0], bits // 8 * count, taken, True)
        for i, register in enumerate(names):
            # A byte lies in a register of 16 bits.
            value = self._value(register, max(bits, 16))[taken].astype(f"u{bits // 8}")
            raw = numpy.ascontiguousarray(value).view(numpy.uint8)
            columns = numpy.arange(i * bits // 8, (i + 1) * bits // 8)
            target[places[:, None] + columns] = raw.reshape(len(places), bits // 8)

    def _cp(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        """A bulk copy from global memory into the shared memory of the thread's own block."""
        if kinds[:4] != ["async", "bulk", "shared::cluster", "global"]:
            raise PtxError("unknown copy")
        target, places = self._places("shared", operands[0], 16, taken, True)
        source, starts = self._places("global", operands[1], 16, taken, False)
        _, barriers = self._places("shared", operands[3], 8, taken, True)
        sizes = self._value(operands[2])[taken]
        end = (places // self.program.shared[""] + 1) * self.program.shared[""]
        if (sizes % 16).any() or not sizes.all() or (places + sizes > end).any():
            raise PtxError("a copy of part of 16 bytes, of none, or beyond shared memory")
        for place, start, size, barrier in zip(places, starts, sizes, barriers.tolist(), strict=True):
            if not self.memory.readable[start : start + size].all():
                raise PtxError("a read outside the buffers")
            if barrier not in self.barriers:
                raise PtxError("there is no barrier for what is copied")
            self.barriers[barrier][1] -= int(size)
            # It is there when somebody has waited, and not before.
            there = source[start : start + size]
            self.copies.setdefault(barrier, []).append((target[place : place + size], there, there.copy()))
            if barrier not in self.numbers:
                self.numbers[barrier] = len(self.waited)
                self.waited = numpy.vstack([self.waited, numpy.zeros(self.count, bool)])
            self.copied_at[place : place + size] = self.numbers[barrier]

    def _prefetch(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        self._places(kinds[0], operands[0], 1, taken, False)

    def _places(self, space: str, text: str, size: int, taken: Any, write: bool) -> tuple[Any, Any]:
        """The bytes that an access of the taken threads starts at, in a space's array."""
        places = self._addresses(text)[taken]
        if (places % size).any():
            raise PtxError(f"an address is not a multiple of {size}")
        if space.startswith("shared"):
            rank = self.rank[taken].astype(numpy.int64)
            if space == "shared::cluster":
                if not self.met[taken].all():
                    raise PtxError("a block of the cluster may not have begun")
                rank, places = places // _WINDOW - 1, places % _WINDOW
            own = self.program.shared[""]
            if ((rank < 0) | (rank * own >= len(self.shared)) | (places < 0) | (places + size > own)).any():
                raise PtxError("an access outside shared memory")
            found = rank * own + places
            numbers = self.copied_at[found]
            if numbers.any() and not self.waited[numbers, numpy.flatnonzero(taken)].all():
                raise PtxError("a thread has not waited for the copy of what it reads or writes")
            return self.shared, found
        places = places - _FIRST
        allowed = self.memory.writable if write else self.memory.readable
        if ((places < 0) | (places + size > len(allowed))).any():
            raise PtxError("an access outside all buffers")
        if not allowed[places[:, None] + numpy.arange(size)].all():
            raise PtxError("a write outside what is written" if write else "a read outside the buffers")
        return self.memory.bytes, places

    # ---- threads together ----

    def _whole_warps(self, taken: Any) -> None:
        warps = taken.reshape(-1, WARP)
        if (warps.any(axis=1) != warps.all(axis=1)).any():
            raise PtxError("a part of a warp does not take part")

    def _shfl(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        """Source: PTX ISA, "shfl.sync": lanes of a segment, whose bounds are in the last of the operands."""
        self._whole_warps(taken)
        if self._signed(operands[4], 32).min() != -1:
            raise PtxError("a shuffle over a part of a warp is not known")
        lane = numpy.arange(self.count) % WARP
        other = self._value(operands[2]).astype(numpy.int64) % WARP
        clamp = self._value(operands[3]).astype(numpy.int64)
        segment, bound = clamp >> 8 & WARP - 1, clamp & WARP - 1
        last = lane & segment | bound & ~segment
        if kinds[1] == "up":
            source, known = lane - other, lane - other >= last
        elif kinds[1] == "bfly":
            source, known = lane ^ other, lane ^ other <= last
        elif kinds[1] == "idx":
            source = lane & segment | other & ~segment
            known = source <= last
        else:
            raise PtxError("unknown shuffle")
        source = numpy.where(known, source, lane)
        value = self._value(operands[1])
        self._set(operands[0].split("|")[0], value[numpy.arange(self.count) // WARP * WARP + source], taken)

    def _vote(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        self._whole_warps(taken)
        bits = self.registers[operands[1]].reshape(-1, WARP).astype(numpy.uint64)
        words = (bits << numpy.arange(WARP, dtype=numpy.uint64)).sum(axis=1).astype(numpy.uint32)
        self._set(operands[0], numpy.repeat(words, WARP), taken)

    def _redux(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        self._whole_warps(taken)
        if self._signed(operands[2], 32).min() != -1:
            raise PtxError("a reduction over a part of a warp is not known")
        lanes = self._typed(operands[1], kinds[2]).reshape(-1, WARP)
        reduced = {"max": lanes.max, "min": lanes.min}[kinds[1]](axis=1)
        self._set(operands[0], numpy.repeat(reduced, WARP).view(numpy.uint32), taken)

    def _bar(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        if kinds[0] == "warp":
            self._whole_warps(taken)
            return
        blocks = taken.reshape(-1, self.program.threads)
        if (blocks.any(axis=1) != blocks.all(axis=1)).any():
            raise PtxError("a thread is not at the barrier")

    def _barrier(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        """The barrier of a cluster."""
        if (self.arrived != (kinds[1] == "wait"))[taken].any():
            raise PtxError("a thread has to arrive once before it waits")
        if kinds[1] == "arrive":
            self.arrived |= taken
        elif not taken.all():
            raise PtxError("a thread is not at the barrier")
        else:
            self.arrived[:], self.met[:] = False, True

    def _mbarrier(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        """A barrier in shared memory, for one phase."""
        name = next(operand for operand in operands if operand.startswith("["))
        _, places = self._places("shared", name, 8, taken, True)
        # Threads to arrive or bytes to expect, where the instruction says some.
        counts = self._value(operands[-1])[taken] if kinds[0] != "wait" else places
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            if kinds[0] == "init":
                self.barriers[place] = [count, 0]
                continue
            barrier = self.barriers.get(place)
            if barrier is None or (kinds[0] == "arrive" and not barrier[0]):
                raise PtxError("a barrier has to be made before each of its phases")
            if kinds[0] == "arrive":
                barrier[0] -= 1
                barrier[1] += count
            elif barrier != [0, 0]:
                # Threads that are behind go first: nobody is left to arrive.
                raise PtxError(f"a barrier waits for {barrier[0]} threads and {barrier[1]} bytes for ever")
            else:
                for target, source, copied in self.copies.pop(place, ()):
                    if (source != copied).any():
                        raise PtxError("what is copied was overwritten before the copy was waited for")
                    target[:] = copied
        if kinds[0] == "wait":
            self.unseen &= ~taken
            threads = numpy.flatnonzero(taken)
            for thread, place in zip(threads.tolist(), places.tolist(), strict=True):
                if place in self.numbers:
                    self.waited[self.numbers[place], thread] = True

    def _fence(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        """Nothing: threads see what others did."""

    def _mapa(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        window = (self._value(operands[2]) + numpy.uint32(1)) * numpy.uint32(_WINDOW)
        self._set(operands[0], window + self._value(operands[1]), taken)

    # ---- registers ----

    def _mov(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        bits = int(kinds[-1][1:])
        target, source = operands
        if target.startswith("{"):
            low, high = _names(target)
            whole = self._value(source, bits)
            halves = whole.view(f"u{whole.itemsize // 2}").reshape(-1, 2)
            self._set(low, halves[:, 0].copy(), taken)
            self._set(high, halves[:, 1].copy(), taken)
        elif source.startswith("{"):
            halves = numpy.stack([self._value(name, bits // 2) for name in _names(source)], axis=1)
            self._set(target, halves.view(f"u{bits // 8}")[:, 0], taken)
        else:
            self._set(target, self._value(source, bits), taken)

    def _cvt(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        target, *sources = operands
        to, of = kinds[-2], kinds[-1]
        if (to, of) == ("f16x2", "e4m3x2"):
            pair = self._value(sources[0], 16)
            high, low = (e4m3_values()[pair >> shift & 255].astype(numpy.float16) for shift in (8, 0))
            value = high.view(numpy.uint16).astype(numpy.uint32) << 16 | low.view(numpy.uint16)
        elif to in ("bf16x2", "f16x2", "e4m3x2"):
            high, low = (self._float(source) for source in sources[:2])
            if to == "e4m3x2":
                value = (to_e4m3(high) << 8 | to_e4m3(low)).astype(numpy.uint16)
            elif to == "bf16x2":
                value = to_bf16(high).astype(numpy.uint32) << 16 | to_bf16(low)
            else:
                halves = [
                    half.astype(numpy.float16).view(numpy.uint16).astype(numpy.uint32) for half in (high, low)
                ]
                value = halves[0] << 16 | halves[1]
        elif (to, of) == ("f32", "bf16"):
            value = f32_bits(from_bf16(self._value(sources[0], 16)))
        elif (to, of) == ("f32", "f16"):
            value = f32_bits(self._value(sources[0], 16).view(numpy.float16).astype(numpy.float32))
        elif (to, of) == ("bf16", "f32"):
            value = to_bf16(self._float(sources[0]))
        elif (to, of) == ("f32", "s32"):
            value = f32_bits(self._signed(sources[0], 32).astype(numpy.float32))
        elif to[0] in "us" and of[0] in "us":
            width, wide = int(of[1:]), int(to[1:])
            # A byte lies in a register of 16 bits.
            raw = self._value(sources[0], width).astype(f"u{width // 8}")
            raw = (raw.view(f"i{width // 8}") if of[0] == "s" else raw).astype(numpy.int64)
            value = raw.view(numpy.uint64).astype(
                {16: numpy.uint16, 32: numpy.uint32, 64: numpy.uint64}[wide]
            )
        else:
            raise PtxError("unknown conversion")
        self._set(target, value, taken)

    def _setp(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        name, kind = kinds[0], kinds[-1]
        compare = _COMPARISONS[name]
        self._set(operands[0], compare(*(self._typed(source, kind) for source in operands[1:])), taken)

    def _typed(self, text: str, kind: str) -> Any:
        if kind == "f32":
            return self._float(text)
        bits = int(kind[1:])
        return self._signed(text, bits) if kind[0] == "s" else self._value(text, bits)

    def _selp(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        bits = int(kinds[-1][1:])
        yes, no = (self._value(operand, bits) for operand in operands[1:3])
        self._set(operands[0], numpy.where(self.registers[operands[3]], yes, no), taken)

    def _compute(self, name: str, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        """An instruction that applies a function of NumPy to operands of one type."""
        kind, sources = kinds[-1], operands[1:]
        function = _FUNCTIONS[name]
        if kind == "pred":
            found = function(*(self.registers[source] for source in sources))
        elif kind == "f32":
            found = f32_bits(function(*map(self._float, sources)))
        elif kind == "f32x2":
            pairs = (self._value(source, 64).view(numpy.float32) for source in sources)
            found = function(*pairs).astype(numpy.float32).view(numpy.uint64)
        elif kind == "bf16x2":
            halves = (from_bf16(self._value(source).view(numpy.uint16)) for source in sources)
            found = to_bf16(function(*halves)).view(numpy.uint32)
        elif kind == "f16x2":
            found = function(*(self._value(source).view(numpy.float16) for source in sources)).view(
                numpy.uint32
            )
        elif name in ("shl", "shr"):
            value = self._typed(sources[0], kind)
            found = function(value, self._value(sources[1]).astype(value.dtype))
        elif name == "div":
            values = [self._typed(source, kind) for source in sources]
            # Of 32 bits: a quotient in double precision does not round up to a whole number.
            found = numpy.trunc(function(*values)).astype(values[0].dtype)
        elif kinds[0] == "hi" and kind[1:] in ("16", "32"):
            whole = function(*(self._typed(source, kind).astype(numpy.int64) for source in sources))
            found = (whole >> int(kind[1:])).astype(f"i{int(kind[1:]) // 8}")
        elif kinds[0] == "hi":
            raise PtxError("the high half of a product of this type is not known")
        elif kinds[0] == "wide":
            found = function(*(self._typed(source, kind).astype(numpy.int64) for source in sources))
        else:
            found = function(*(self._typed(source, kind) for source in sources))
        unsigned = found if found.dtype == bool else found.view(f"u{found.itemsize}")
        self._set(operands[0], unsigned, taken)

    def _fma(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        if kinds[-1] == "bf16":
            a, b = (from_bf16(self._value(source, 16)) for source in operands[1:3])
        else:
            a, b = (self._float(source) for source in operands[1:3])
        exact = a.astype(numpy.float64) * b.astype(numpy.float64) + self._float(operands[3])
        self._set(operands[0], f32_bits(exact.astype(numpy.float32)), taken)

    def _prmt(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        left, right, choice = (self._value(source).astype(numpy.uint64) for source in operands[1:])
        both = right << numpy.uint64(32) | left
        found = self._all(0, numpy.uint64)
        for i in range(4):
            digit = choice >> numpy.uint64(4 * i) & numpy.uint64(15)
            if (digit > 7).any():
                raise PtxError("a permutation with signs")
            found |= (both >> digit * numpy.uint64(8) & numpy.uint64(255)) << numpy.uint64(8 * i)
        self._set(operands[0], found.astype(numpy.uint32), taken)

    def _bfi(self, kinds: list[str], operands: tuple[str, ...], taken: Any) -> None:
        start, length = int(operands[3]), int(operands[4])
        mask = numpy.uint32(((1 << length) - 1) << start)
        value = self._value(operands[1]) << numpy.uint32(start) & mask
        self._set(operands[0], value | (self._value(operands[2]) & ~mask), taken)
