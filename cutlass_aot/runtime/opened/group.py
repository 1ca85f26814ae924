"""One group of an open bundle: its index, its library and its rankings, each loaded when first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutlass_aot.errors import CorruptFile, Incompatible
from cutlass_aot.runtime.files.verified_read import read_file
from cutlass_aot.runtime.launching import native
from cutlass_aot.runtime.launching.gpu_code import Code
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.selection.cost_model import Candidates
from cutlass_aot.runtime.selection.tiers import Ranked
from cutlass_aot.schema.bundles.catalog import GroupEntry, RankingReference
from cutlass_aot.schema.bundles.group_index import GroupIndex, LaunchFacts, group_from_bytes
from cutlass_aot.schema.kernels.constraints import (
    SWIZZLE_32X4X4,
    Extent,
    OperandConstraint,
    extent_of,
)
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.tiling import Traffic
from cutlass_aot.schema.tuning.ranking import Ranking, holds_for

if TYPE_CHECKING:
    from cutlass_aot.schema.requests.request_index import RequestIndex

# Flags of an operand in builder/native/launcher.c, and what stands in place of a rank in a relation.
_WRITTEN, _BATCH, _COMPACT, _SCALE, _TILED, _WIDE = 1, 2, 4, 8, 16, 32
_RELATION = -1


class Group:
    """A group's index, library and rankings.

    Args:
        root: the bundle.
        entry: the group's entry in the parent index.
        code: GPU code of its kernels.
        libraries: those with its host code for this machine's CPU architecture, empty if there are none.
        launcher: the bundle's launcher for this machine, None if there is none.
        require: called with a target and a device (None for no device) before anything is mapped; raises
            where it cannot run.
        rankings: whether its rankings are to be used.
    """

    def __init__(
        self,
        root: Path,
        entry: GroupEntry,
        code: Code,
        libraries: Sequence[Library],
        launcher: Library | None,
        require: Callable[[str, int | None], None],
        rankings: bool = True,
    ) -> None:
        self.entry = entry
        self.rankings = entry.rankings if rankings else ()
        self._root = root
        self._require = require
        self.launcher = launcher
        self._code = code
        self._libraries = tuple(libraries)
        # Filled without a lock, which a forked child could inherit held; two threads may read the same twice.
        self._index: GroupIndex | None = None
        self._requests: RequestIndex | None = None
        self._candidates: Candidates | None = None
        self._rankings: dict[RankingReference, Ranked] = {}

    @property
    def index(self) -> GroupIndex:
        """The group's kernels, in order of name; read once."""
        if self._index is None:
            entry = self.entry
            what = f"{self._root}/{entry.child.path}"
            index = group_from_bytes(read_file(self._root, entry.child), entry, what, verified=True)
            if len(index) != entry.kernel_count:
                raise CorruptFile(
                    f"{what} has {len(index)} kernels, the catalog says {entry.kernel_count}: "
                    "build the bundle again"
                )
            self._index = index
        return self._index

    @property
    def requests(self) -> RequestIndex:
        """The requests of a program that its kernels answer, in the order of the index; read once."""
        if self._requests is None:
            # Imported here: only kernels that answer requests need it.
            from cutlass_aot.schema.requests.request_index import requests_from_bytes

            reference = self.entry.requests
            if reference is None:
                raise CorruptFile(
                    f"{self._root}: group {self.entry.name} has no requests: build the bundle again"
                )
            data = read_file(self._root, reference)
            self._requests = requests_from_bytes(data, self.entry, str(self._root / reference.path))
        return self._requests

    @property
    def candidates(self) -> Candidates:
        """Candidates for a choice among its kernels; the order of the index decides between full equals."""
        if self._candidates is None:
            index, entry = self.index, self.entry
            traffic = Traffic.of(entry.operands)
            self._candidates = Candidates(index.tilings, index.digest, traffic, entry.target)
        return self._candidates

    def ranking(self, reference: RankingReference) -> Ranked:
        """One of the group's rankings, read once."""
        found = self._rankings.get(reference)
        if found is None:
            what = str(self._root / reference.file.path)
            ranking = Ranking.from_bytes(read_file(self._root, reference.file), what, verified=True)
            if (ranking.gpu, ranking.measured) != (reference.gpu, reference.measured):
                raise CorruptFile(
                    f"{what} is for {holds_for(ranking.gpu, ranking.measured)}, the catalog says "
                    f"{holds_for(reference.gpu, reference.measured)}: build the bundle again"
                )
            foreign = [digest for digest in ranking.kernels if self.index.position(digest) is None]
            if foreign:
                raise CorruptFile(
                    f"{what} ranks kernel {min(foreign)[:16]}, which group {self.entry.name} does not have: "
                    "build the bundle again"
                )
            found = self._rankings[reference] = Ranked(ranking)
        return found

    def compiled(self, position: int, device: int | None) -> Any:
        """The ``tvm_ffi.Function`` of a kernel's compiled code, whose operands always have a batch.

        ``position`` is that in the index. If ``device``, a CUDA ordinal, is None, no GPU is checked.
        """
        facts = self.index.launch_facts(position)
        return self._ready(facts, device).function(facts.symbol)

    def function(self, position: int, device: int) -> Any:
        """The native function that launches a kernel on operands with or without a batch."""
        facts = self.index.launch_facts(position)
        library = self._ready(facts, device)
        if self.launcher is None:
            raise self._foreign_host()
        address = library.address(facts.symbol)
        numbers = launcher_numbers(self.entry.operands)
        return native.function(self.launcher, "cutlass_aot_launcher")(address, *numbers)

    def require(self, device: int | None) -> None:
        """Refuse a device that cannot run the kernels; for None, a machine that cannot load them."""
        self._require(self.entry.target, device)

    def _ready(self, facts: LaunchFacts, device: int | None) -> Library:
        """The library of a kernel, after the kernel's GPU code was provided to it."""
        self.require(device)
        if not self._libraries:
            raise self._foreign_host()
        library = self._libraries[facts.library]
        library.provide(facts.symbol, partial(self._code.read, facts.code))
        return library

    def _foreign_host(self) -> Incompatible:
        return Incompatible(
            f"{self._root}: group {self.entry.name} has no library for this machine, only for "
            f"{', '.join(sorted(self.entry.libraries)) or 'no host'}"
        )


def launcher_numbers(operands: Sequence[OperandConstraint]) -> list[int]:
    """The requirements on the operands, as numbers in the format of ``builder/native/launcher.c``.

    Those of each operand in turn, then the relations between extents.
    """
    places = {operand.name: index for index, operand in enumerate(operands)}
    numbers = []
    for operand in operands:
        if operand.is_none:
            numbers += [0] * 3 + [1] + [0] * 5
            continue
        flags = _WRITTEN * operand.written | _BATCH * operand.has_batch | _COMPACT * operand.compact
        flags |= _WIDE * (operand.extent_bits == 64)
        of = along = block = 0
        if operand.scale is not None:
            scaled = operands[places[operand.scale.of]]
            flags |= _SCALE | _TILED * (operand.scale.swizzle == SWIZZLE_32X4X4)
            of, block = places[scaled.name], operand.scale.block
            along = len(scaled.extents) - scaled.extents.index(operand.scale.along)
        numbers += [
            len(operand.extents),
            -operand.contiguous,
            operand.divisibility,
            DTYPES[operand.dtype].bits,
            DTYPES[operand.dtype].dlpack[0],
            flags,
            of,
            along,
            block,
        ]
    return [*numbers, *_relations(operands)]


def _relations(operands: Sequence[OperandConstraint]) -> list[int]:
    """Each extent that follows from a named one, beside an extent that tells the named one.

    That is the named extent itself, or, where no operand has it, the first exact relation to it. The factor
    of a quotient is minus its divisor. Extents that are written alike are for compiled code to compare.
    """
    found: dict[str, dict[Extent, tuple[int, int, int, int]]] = {}
    for position, operand in enumerate(operands):
        for mode, text in enumerate(operand.extents):
            extent = extent_of(text) if isinstance(text, str) else None
            if extent is not None:
                factor = -extent.divisor if extent.is_quotient else extent.factor
                place = (position, len(operand.extents) - mode, factor, extent.offset)
                found.setdefault(extent.name, {}).setdefault(extent, place)
    numbers: list[int] = []
    for name, places in found.items():
        base = places.pop(Extent(1, name, 0), None) or next(
            place for extent, place in places.items() if not extent.is_quotient
        )
        for place in places.values():
            numbers += [_RELATION, *place, *base]
    return numbers
