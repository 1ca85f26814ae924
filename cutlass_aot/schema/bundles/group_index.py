"""A group's own index: one row a kernel, from which its record is made when it is first needed.

What the kernels of a group share is in the catalog (:class:`~.GroupEntry`) only. The file is sealed msgpack::

    design      names that occur in a design
    provenance  what built the kernels, each combination once
    digests     of the kernels, in order of name
    rows        one a kernel, each encoded: generator, design (a value for each name, None for none),
                constants, workspace bytes, digest of the object, facts, position in provenance, GPU code
                (offset, size and digest in the group's code), position of its library among the group's
    tilings     what a choice among the kernels needs (:class:`.TilingTable`), and
    kinds       the kinds of tilings

A choice decodes none of the rows.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.bundles.catalog import MAX_FILE_BYTES, SCHEMA, GroupEntry
from cutlass_aot.schema.bundles.rows import BinaryDigest, Rows, rows_to_plain
from cutlass_aot.schema.bundles.tiling_table import TilingTable
from cutlass_aot.schema.codec import AS_ROW, check_lines, row, within
from cutlass_aot.schema.encoding import MALFORMED, seal, unseal
from cutlass_aot.schema.kernels.artifact import Facts, symbol_of
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.tiling import Tiling
from cutlass_aot.schema.named_tuple import NamedTuple

if TYPE_CHECKING:
    from cutlass_aot.schema.kernels.kernel import Kernel

GROUP_KIND = "cutlass-aot group"


@row
class CodeSpan(NamedTuple):
    """Offset and size in bytes of a kernel's GPU code in its group's unpacked code, and its digest."""

    offset: Annotated[int, within(0, MAX_FILE_BYTES)]
    size: Annotated[int, within(0, MAX_FILE_BYTES)]
    sha256: BinaryDigest


class KernelEntry(NamedTuple):
    """One kernel in a group's index.

    ``object_sha256`` is the digest of the object that was linked, ``provenance`` has the generator's version
    and the toolchain's fingerprint, and ``library`` is the position of its library among the group's.
    """

    kernel: "Kernel"
    object_sha256: str
    facts: Facts
    provenance: Mapping[str, str]
    code: CodeSpan
    library: int = 0


class LaunchFacts(NamedTuple):
    """What a launch needs to know of a kernel; without its record, which takes milliseconds to import.

    Attributes:
        symbol: name of the compiled function (:attr:`.Kernel.symbol`).
        workspace_bytes: bytes of device memory that a launch needs beside its operands.
        code: its GPU code.
        library: position of its library among the group's.
    """

    symbol: str
    workspace_bytes: int
    code: CodeSpan
    library: int


_Row = tuple[
    str, tuple[DesignValue | None, ...], Mapping[str, int], int,
    BinaryDigest, Annotated[Facts, AS_ROW], int, CodeSpan, int,
]  # fmt: skip


class GroupIndex(Rows[_Row, KernelEntry]):
    """The kernels of a group, by position; a malformed row raises CorruptFile when it is needed.

    Attributes:
        tilings: of the kernels.
    """

    def __init__(self, group: GroupEntry, body: Any, what: str) -> None:
        self._group = group
        self._launch_facts: dict[int, LaunchFacts] = {}
        # Decoded when a kernel's record is needed.
        self._names: tuple[str, ...] | None = None
        self._provenance: dict[int, Mapping[str, str]] = {}
        try:
            self._plain_names: list[Any] = body["design"]
            self._plain_provenance: list[Any] = body["provenance"]
            if not isinstance(self._plain_names, list) or not isinstance(self._plain_provenance, list):
                raise TypeError("expected lists")
            kinds = map(str, body["kinds"])
            self.tilings = TilingTable(body["tilings"], tuple(kinds), what)
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None
        super().__init__(body, _Row, what)
        if len(self.tilings) != len(self):
            raise CorruptFile(f"{what} is malformed: it does not have one tiling a kernel")

    def design(self, position: int) -> dict[str, DesignValue]:
        """A kernel's design, without making the record."""
        try:
            values = self._plain(position)[1]
            check_lines(*(value for value in values if isinstance(value, str)))
            return {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in zip(self._design_names(), values, strict=True)
                if value is not None
            }
        except MALFORMED as error:
            raise CorruptFile(f"{self._what} is malformed: {error!r}") from None

    def _design_names(self) -> tuple[str, ...]:
        if self._names is None:
            names = tuple(map(str, self._plain_names))
            check_lines(*names)
            self._names = names
        return self._names

    def _provenance_at(self, position: int) -> Mapping[str, str]:
        """What built some kernels; equal ones are one object."""
        found = self._provenance.get(position)
        if found is None:
            found = {str(key): str(text) for key, text in self._plain_provenance[position].items()}
            check_lines(*found, *found.values())
            self._provenance[position] = found
        return found

    def launch_facts(self, position: int) -> LaunchFacts:
        """What a launch of a kernel needs; decoded once."""
        found = self._launch_facts.get(position)
        if found is None:
            row = self._row(position)
            try:
                self._check(row)
            except MALFORMED as error:
                raise CorruptFile(f"{self._what} is malformed: {error!r}") from None
            found = self._launch_facts[position] = LaunchFacts(
                symbol_of(self.digest(position)), row[3], row[7], row[8]
            )
        return found

    def _check(self, row: _Row) -> None:
        """Refuse positions and extents that cannot be."""
        *_, provenance, code, library = row
        libraries = min(map(len, self._group.libraries.values()), default=1)
        if not 0 <= library < libraries:
            raise ValueError(f"library {library} of {libraries}")
        if not 0 <= provenance < len(self._plain_provenance):
            raise ValueError(f"provenance {provenance} of {len(self._plain_provenance)}")
        if code.offset + code.size > MAX_FILE_BYTES:
            raise ValueError(f"impossible GPU code: {code.size} bytes at {code.offset}")

    def _record(self, position: int, row: _Row) -> KernelEntry:
        # Imported here because choosing a kernel makes no record.
        from cutlass_aot.schema.kernels.kernel import Kernel

        generator, _, constants, workspace, sha256, facts, provenance, code, library = row
        self._check(row)
        check_lines(generator, *constants)
        group = self._group
        kernel = Kernel.make(
            operation=group.operation,
            generator=generator,
            operands=group.operands,
            accumulator=group.accumulator,
            epilogue=group.epilogue,
            design=self.design(position),
            target=group.target,
            constants=constants,
            workspace_bytes=workspace,
            parameters=dict(group.parameters),
            accumulation=group.accumulation,
            cost=group.cost,
            digest=self.digest(position),
        )
        return KernelEntry(kernel, sha256, facts, self._provenance_at(provenance), code, library)


def group_to_bytes(entries: Sequence[KernelEntry]) -> bytes:
    """The file of a group's kernels, in the order given."""
    names = sorted({name for entry in entries for name, _ in entry.kernel.design})
    provenance = sorted({tuple(sorted(entry.provenance.items())) for entry in entries})
    rows: list[_Row] = []
    for entry in entries:
        kernel, design = entry.kernel, dict(entry.kernel.design)
        rows.append(
            (
                kernel.generator,
                tuple(design.get(name) for name in names),
                dict(kernel.constants),
                kernel.workspace_bytes,
                entry.object_sha256,
                entry.facts,
                provenance.index(tuple(sorted(entry.provenance.items()))),
                entry.code,
                entry.library,
            )
        )
    tilings = TilingTable.of([Tiling.of(entry.kernel) for entry in entries])
    body = {
        "design": names,
        "provenance": [dict(item) for item in provenance],
        "tilings": tilings.rows,
        "kinds": list(tilings.kinds),
        **rows_to_plain(_Row, [entry.kernel.digest for entry in entries], rows),
    }
    return seal(GROUP_KIND, SCHEMA, body)


def group_from_bytes(data: bytes, group: GroupEntry, what: str, *, verified: bool = False) -> GroupIndex:
    """Read what :func:`group_to_bytes` gave; ``verified`` as :func:`~.encoding.unseal` has it."""
    return GroupIndex(group, unseal(data, GROUP_KIND, SCHEMA, what, verified=verified), what)
