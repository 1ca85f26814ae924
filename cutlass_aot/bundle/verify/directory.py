"""Check the files, indices, libraries and signatures in a bundle's directory; list all that is wrong."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cutlass_aot.bundle.elf import read_shared_object
from cutlass_aot.bundle.files import (
    LICENSES,
    MAX_LICENSE_BYTES,
    Listing,
    digest_beneath,
    list_files,
    manifest_to_bytes,
)
from cutlass_aot.bundle.glibc import needed_glibc
from cutlass_aot.bundle.plan import GroupPlan
from cutlass_aot.bundle.sbom import (
    BILL_FOLDER,
    BILL_NAME,
    code_of_requests,
    kernels_of_index,
    most_bytes,
    read_bill,
)
from cutlass_aot.bundle.verify.verified import VerifiedBundle, packed_file
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError, printable
from cutlass_aot.runtime.files.signatures import PublicKey, examine, why_expired, why_unchecked
from cutlass_aot.runtime.files.verified_read import (
    MAX_MANIFEST_BYTES,
    manifest_bytes,
    parse_manifest,
    read_bounded,
    read_file,
)
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_NAME,
    FILE_NAME,
    MANIFEST_NAME,
    MAX_INDEX_BYTES,
    MAX_LIBRARY_BYTES,
    Catalog,
    FileReference,
    GroupEntry,
    common_alignment,
)
from cutlass_aot.schema.bundles.group_index import CodeSpan, GroupIndex, KernelEntry, group_from_bytes
from cutlass_aot.schema.bundles.signature import SIGNATURES, Signature
from cutlass_aot.schema.bundles.tiling_table import TilingTable
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.compression import Unpacking, decompress, decompressed
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX, EXPORT_PREFIX, LAUNCHER_SYMBOLS
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.tiling import Tiling
from cutlass_aot.schema.requests.request import OPERATION, CompiledRequest
from cutlass_aot.schema.requests.request_index import requests_from_bytes
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.tuning.ranking import Ranking, holds_for
from cutlass_aot.schema.versions import major_minor
from cutlass_aot.schema.words import few

Parsed = TypeVar("Parsed")

ALLOWED_LIBRARIES = frozenset(
    {
        "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libm.so.6",
        "libpthread.so.0", "librt.so.1", "libtvm_ffi.so",
    }
)  # fmt: skip
"""What a bundle's library may need of the machine: tvm-ffi and the parts of glibc."""


MAX_PROBLEMS = 1000
"""Problems that are kept; what is beyond is counted."""

_MAX_TEXT = 2000  # characters of each part of a problem

MISSING = "missing"
"""What is found of a file that is not there."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, at ``path`` in a bundle or a wheel.

    What was read from there is made printable and short, since it goes to terminals and logs.
    """

    path: str
    found: str
    expected: str

    def __post_init__(self) -> None:
        for name in ("path", "found", "expected"):
            object.__setattr__(self, name, _short(getattr(self, name)))

    def __str__(self) -> str:
        found = self.found if self.found == MISSING else f"found {self.found}"
        return f"{self.path}: {found}; expected {self.expected}"


def in_short(problems: Sequence[Problem]) -> str:
    """The first problem, and how many more there are, for an error."""
    return few(problems, 1, separator="; ")


@dataclass(slots=True)
class Findings:
    """The result of verifying a bundle or a wheel.

    Attributes:
        problems: :data:`MAX_PROBLEMS` at most; add to them with :meth:`add`.
        more: how many problems there are beside those.
        signers: ids of the keys whose signatures are right, whether anybody trusts them or not.
        warnings: what was not checked, and why: sentences without a full stop.
        unsigned: whether one of the problems is that no required key has signed it.
        bundle: what was read; None without a readable catalog. Kernels and requests that could not be read
            are missing from its groups.
    """

    problems: list[Problem] = field(default_factory=list)
    signers: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unsigned: bool = False
    more: int = 0
    bundle: VerifiedBundle | None = field(default=None, compare=False, repr=False)

    @property
    def damaged(self) -> bool:
        """Whether there is a problem other than that no required key has signed it."""
        return len(self.problems) > self.unsigned

    def add(self, problems: Iterable[Problem]) -> None:
        """Add problems, and count those that are too many to keep."""
        for problem in problems:
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append(problem)
            else:
                self.more += 1


def _short(text: str) -> str:
    if len(text) > _MAX_TEXT:
        text = f"{text[:_MAX_TEXT]}..."
    return printable(text)


def verify_bundle(bundle: Path) -> list[Problem]:
    """All problems of a bundle's directory; empty if there are none."""
    return look_at_bundle(bundle).problems


def require_sound(bundle: Path) -> VerifiedBundle:
    """Verify a bundle: raise if anything is wrong, else return what was read of it."""
    with suppress(CorruptFile):
        # This says so where there is no bundle at all; a damaged manifest is listed with the other problems.
        manifest_bytes(bundle)
    findings = look_at_bundle(bundle)
    if findings.problems or findings.bundle is None:
        raise BundleError(
            f"the bundle {bundle} is damaged: {in_short(findings.problems)}; cutlass-aot verify lists all; "
            "build or fetch it again"
        )
    return findings.bundle


def look_at_bundle(bundle: Path, keys: Sequence[PublicKey] = ()) -> Findings:
    """Check everything in a bundle's directory; each file is read once.

    Every file is checked against its size and digest in the manifest, the indices against each other, the
    symbols of each library against the kernels of its group, and signatures against the manifest. Files that
    no check needs whole are read in pieces. If ``keys`` are given, one of them must have signed the bundle.
    Without the package ``cryptography`` no signature can be checked: for a signed bundle that is a
    :class:`SignatureError` if ``keys`` are given, else a warning.
    """
    verification = _Verification(bundle)
    verification.run(keys)
    findings = verification.findings
    findings.problems.sort(key=lambda problem: (problem.path, problem.found))
    return findings


@dataclass(slots=True)
class _Expected:
    """What the groups that share a library expect of it; complete if all of their indices could be read."""

    host: str
    symbols: set[str] = field(default_factory=set)
    complete: bool = True
    same_host: bool = True

    def add(self, host: str, symbols: set[str] | None) -> None:
        self.same_host = self.same_host and host == self.host
        self.complete = self.complete and symbols is not None
        self.symbols |= symbols or set()


class _Verification:
    """The verification of one bundle's directory; problems are added to ``findings``."""

    def __init__(self, bundle: Path) -> None:
        self.findings = Findings()
        self._bundle = bundle
        self._references: dict[str, FileReference] = {}
        self._unread: set[str] = set()
        """Files whose bytes are not checked yet."""
        self._parsed_files: set[str] = set()
        self._unpacking = Unpacking(0)
        self._bad: set[str] = set()
        """Files that are not what the manifest says."""

    def run(self, keys: Sequence[PublicKey]) -> None:
        try:
            listing = list_files(self._bundle)
        except OSError as error:
            raise BundleError(
                f"the bundle {self._bundle} cannot be read: {error.filename}: {error.strerror}"
            ) from None
        for path in listing.links:
            self._problem(path, "a symbolic link", "a plain file")
        for path in listing.special:
            self._problem(path, "no regular file", "a plain file")
        try:
            manifest = read_bounded(self._bundle, MANIFEST_NAME, MAX_MANIFEST_BYTES)
            self._references = parse_manifest(manifest, MANIFEST_NAME)
        except CutlassAotError as error:
            self._problem(MANIFEST_NAME, str(error), "the manifest of a bundle")
            return
        self._unpacking = Unpacking(sum(reference.size for reference in self._references.values()))
        if manifest != manifest_to_bytes(self._references):
            self._problem(MANIFEST_NAME, "other bytes than its contents give", "its canonical form")
        signatures = self._signatures(manifest, keys)
        for path in sorted({*listing.regular} - {*self._references, MANIFEST_NAME}):
            if not path.startswith(f"{SIGNATURES}/"):
                self._problem(path, "a file that the manifest does not list", "no such file")
        self._look_for_files(listing)
        if CATALOG_NAME in self._references:
            self._catalog(manifest, signatures)
        else:
            self._problem(CATALOG_NAME, "nothing in the manifest", "the catalog")
        for path in sorted(self._unread):
            self._check(self._references[path])

    def _problem(self, path: str, found: str, expected: str) -> None:
        self.findings.add([Problem(path, found, expected)])

    # --- files

    def _bad_file(self, path: str, found: str, expected: str) -> None:
        self._bad.add(path)
        self._problem(path, found, expected)

    def _look_for_files(self, listing: Listing) -> None:
        present, reported = set(listing.regular), {*listing.links, *listing.special}
        for path, reference in self._references.items():
            if path in reported:
                self._bad.add(path)
            elif not all(FILE_NAME.fullmatch(part) for part in path.split("/")):
                self._bad_file(path, "a file name with other characters", "a plain file name")
            elif path not in present:
                self._bad_file(path, MISSING, f"a file of {reference.size} bytes")
            else:
                self._unread.add(path)

    def _check(self, reference: FileReference, what_else: str = "") -> None:
        """Read a file in pieces and report what is wrong with it: ``what_else`` if its digest is right."""
        path = reference.path
        self._unread.discard(path)
        try:
            sha256, size = digest_beneath(self._bundle, path, reference.size)
        except CutlassAotError as error:
            self._bad_file(path, str(error), "a readable file")
            return
        if size != reference.size:
            self._bad_file(path, f"{size} bytes", f"{reference.size} bytes")
        elif sha256 != reference.sha256:
            self._bad_file(path, f"SHA-256 {sha256}", f"SHA-256 {reference.sha256}")
        elif what_else:
            self._bad_file(path, what_else, "a readable file")

    def _is_sound(self, reference: FileReference) -> bool:
        """Whether the manifest has the same reference and no problem of the file is known."""
        return reference.path not in self._bad and self._references.get(reference.path) == reference

    def _read(self, reference: FileReference) -> bytes | None:
        """The verified bytes of a file; None, with a problem reported, if the manifest says otherwise."""
        if not self._is_sound(reference):
            return None
        try:
            data = read_file(self._bundle, reference)
        except CutlassAotError as error:
            self._check(reference, str(error))
            return None
        self._unread.discard(reference.path)
        return data

    def _parsed(
        self,
        reference: FileReference,
        parse: Callable[[bytes, str], Parsed],
        expected: str,
        most: int = MAX_INDEX_BYTES,
    ) -> Parsed | None:
        """A file of ``most`` bytes, read by ``parse(data, path)``; None, and a problem, if it cannot be read.

        Each file is read for one purpose alone, so that what all of this takes is bounded by their sizes.
        """
        path = reference.path
        if path in self._parsed_files:
            self._problem(path, "a second place that names it in the catalog", "one place for each index")
            return None
        self._parsed_files.add(path)
        if reference.size > most and self._is_sound(reference):
            self._problem(path, f"it has {reference.size} bytes, expected at most {most}", expected)
            return None
        data = self._read(reference)
        try:
            return None if data is None else parse(data, path)
        except CutlassAotError as error:
            self._problem(path, str(error), expected)
            return None

    # --- what the files say

    def _signatures(self, manifest: bytes, keys: Sequence[PublicKey]) -> tuple[Signature, ...]:
        findings = self.findings
        signatures = []
        unchecked = "" if keys else why_unchecked()
        for item in examine(self._bundle, manifest, check=not unchecked):
            if item.problem or item.signature is None:
                expected = "signatures of this bundle alone: remove it, or sign again"
                self._problem(item.path, item.problem, expected)
            else:
                signatures.append(item.signature)
        if not unchecked:
            findings.signers = [signature.key for signature in signatures]
        elif signatures:
            findings.warnings = [unchecked]
        known = {key.raw: key for key in keys}
        # Why each does not count; "" for one that does.
        reasons = {
            signature.key: known[signature.public_key].why_not(signature)
            for signature in signatures
            if signature.public_key in known
        }
        if keys and "" not in reasons.values():
            findings.unsigned = True
            said = (
                f"{signature.key}" + (f" ({reasons[signature.key]})" if signature.key in reasons else "")
                for signature in signatures
            )
            found = f"signatures by {few(said)}" if signatures else "no right signature"
            self._problem(SIGNATURES, found, f"one by {few(map(str, keys))}")
        for signature in signatures:
            if (expired := why_expired(signature)) and signature.key not in reasons:
                findings.warnings.append(f"the signature by {signature.key} has expired: {expired}")
        return tuple(signatures)

    def _catalog(self, manifest: bytes, signatures: tuple[Signature, ...]) -> None:
        reference = self._references[CATALOG_NAME]
        catalog = self._parsed(reference, _whole_catalog, "a catalog that this release reads")
        if catalog is None:
            return
        self._parent(catalog)
        files = [reference for group in catalog.groups for reference in group.files]
        files += catalog.launchers.values()
        for reference in dict.fromkeys(files):
            if self._references.get(reference.path) != reference:
                found = "another size or digest in the manifest than in the catalog"
                self._problem(reference.path, found, "the same in both")
        groups: list[GroupPlan] = []
        rankings: list[Ranking] = []
        libraries: dict[FileReference, _Expected] = {}
        codes: dict[FileReference, dict[CodeSpan, str] | None] = {}
        complete = True
        for group in catalog.groups:
            entries = self._kernels(group)
            rankings += self._rankings(group, entries)
            requests = self._requests(group, entries)
            complete = complete and entries is not None and requests is not None
            groups.append(
                GroupPlan(
                    group.name,
                    entries or (),
                    packed_file(self._bundle, group.code),
                    {
                        host: tuple(packed_file(self._bundle, reference) for reference in references)
                        for host, references in group.libraries.items()
                    },
                    requests or (),
                )
            )
            spans = codes.setdefault(group.code, {})
            if entries is None:
                codes[group.code] = None
            elif spans is not None:
                for entry in entries:
                    spans.setdefault(entry.code, f"{group.child.path}: {entry.kernel.name}")
            symbols = None if entries is None else _symbols(entries)
            for host, references in group.libraries.items():
                for number, reference in enumerate(references):
                    own = None if symbols is None else symbols.get(number, set())
                    libraries.setdefault(reference, _Expected(host)).add(host, own)
        for host, reference in catalog.launchers.items():
            libraries.setdefault(reference, _Expected(host)).add(host, set(LAUNCHER_SYMBOLS))
        for reference, expected in sorted(libraries.items(), key=lambda item: item[0].path):
            self._library(reference, expected, catalog.requirements.glibc)
        for reference, parts in sorted(codes.items(), key=lambda item: item[0].path):
            # Without all indices it is not known how much it should unpack to: its bytes are checked alone.
            if parts is not None:
                self._code(reference, parts)
        bill = self._references.get(f"{BILL_FOLDER}/{BILL_NAME}")
        if bill is not None and complete:
            self._bill(bill, groups)
        used = {CATALOG_NAME, f"{BILL_FOLDER}/{BILL_NAME}", *(reference.path for reference in files)}
        for path, reference in self._references.items():
            if path.startswith(f"{LICENSES}/"):
                if reference.size > MAX_LICENSE_BYTES:
                    self._problem(
                        path, f"{reference.size} bytes", f"a licence of {MAX_LICENSE_BYTES} at most"
                    )
            elif path not in used:
                self._problem(path, "a file that the catalog does not name", "no such file")
        self.findings.bundle = VerifiedBundle(
            self._bundle, manifest, self._references, catalog, tuple(groups), tuple(rankings), signatures
        )

    def _parent(self, catalog: Catalog) -> None:
        """Check the catalog against itself."""
        for target in catalog.targets:
            if not _is_target(target):
                self._problem(CATALOG_NAME, f"target {target!r}", "such a target as sm_100a")
        for what, values in (
            ("targets", list(catalog.targets)),
            ("hosts", list(catalog.hosts)),
            ("groups", [group.name for group in catalog.groups]),
        ):
            if not values or values != sorted(set(values)):
                self._problem(CATALOG_NAME, f"{what} {few(values)}", "at least one, sorted, each once")
        if sorted(catalog.launchers) != list(catalog.hosts):
            found = few(sorted(catalog.launchers))
            self._problem(CATALOG_NAME, f"launchers for {found}", f"for {few(catalog.hosts)}")
        alignment = common_alignment(catalog.groups)
        if catalog.alignment != alignment:
            self._problem(CATALOG_NAME, f"alignment {catalog.alignment}", f"{alignment}, its operands' own")
        for group in catalog.groups:
            where = f"{CATALOG_NAME}: group {group.name}"
            if group.target not in catalog.targets:
                self._problem(where, f"target {group.target}", f"one of {', '.join(catalog.targets)}")
            if sorted(group.libraries) != list(catalog.hosts):
                found = f"libraries for {few(sorted(group.libraries))}"
                self._problem(where, found, f"for {few(catalog.hosts)}")

    def _kernels(self, group: GroupEntry) -> tuple[KernelEntry, ...] | None:
        path = group.child.path

        def parse(data: bytes, what: str) -> tuple[GroupIndex, tuple[KernelEntry, ...]]:
            index = group_from_bytes(data, group, what)
            return index, tuple(index)

        parsed = self._parsed(group.child, parse, "an index that this release reads")
        if parsed is None:
            return None
        index, entries = parsed
        if len(entries) != group.kernel_count or not entries:
            self._problem(path, f"{len(entries)} kernels", f"{group.kernel_count}, and at least one")
        if len({entry.kernel.symbol for entry in entries}) != len(entries):
            self._problem(path, "a kernel twice", "each kernel once")
        if index.tilings != TilingTable.of([Tiling.of(entry.kernel) for entry in entries]):
            self._problem(path, "tilings that are not those of its kernels", "those of their designs")
        for entry in entries:
            try:
                found = from_plain(Kernel, to_plain(entry.kernel), "a kernel record").digest
            except (CutlassAotError, TypeError) as error:
                self._problem(path, str(error), "records of kernels that this release reads")
                continue
            if found != entry.kernel.digest:
                where = f"{path}: {entry.kernel.name}"
                self._problem(where, f"digest {entry.kernel.digest}", f"{found}, its record's")
        return entries

    def _rankings(self, group: GroupEntry, entries: Sequence[KernelEntry] | None) -> list[Ranking]:
        """Check a group's rankings against its kernels; none are returned if these could not be read."""
        if entries is None:
            return []
        rankings = []
        digests = {entry.kernel.digest for entry in entries} if group.rankings else set()
        for gpu, measured, reference in group.rankings:
            path = reference.path
            ranking = self._parsed(reference, _ranking, "a ranking that this release reads")
            if ranking is None:
                continue
            rankings.append(ranking)
            if (ranking.gpu, ranking.measured) != (gpu, measured):
                found = f"a ranking for {holds_for(ranking.gpu, ranking.measured)}"
                self._problem(path, found, f"one for {holds_for(gpu, measured)}, as the catalog says")
            if entries and ranking.group != entries[0].kernel.group:
                self._problem(path, f"a ranking of group {ranking.group}", f"one of {group.name}")
            unknown = sorted(ranking.kernels - digests)
            if unknown:
                self._problem(path, f"kernels {few(unknown)}", f"kernels of {group.name} alone")
        return rankings

    def _requests(
        self, group: GroupEntry, entries: Sequence[KernelEntry] | None
    ) -> tuple[CompiledRequest, ...] | None:
        """Check a group's requests against its kernels and return them; None if they cannot be read."""
        reference = group.requests
        if reference is None and group.operation != OPERATION:
            return ()
        if reference is None or group.operation != OPERATION:
            which = "no" if reference is None else "the"
            found = f"{which} requests of kernels of operation {group.operation}"
            expected = f"requests of kernels of operation {OPERATION} alone"
            self._problem(f"{CATALOG_NAME}: group {group.name}", found, expected)
            return None
        requests = self._parsed(
            reference,
            lambda data, what: tuple(requests_from_bytes(data, group, what)),
            "requests that this release reads",
        )
        # A number of kernels other than the catalog's is reported already.
        for position, (compiled, entry) in enumerate(zip(requests or (), entries or (), strict=False)):
            request, kernel = compiled.request, entry.kernel.digest
            if request.kernel.digest != kernel:
                self._problem(
                    f"{reference.path}: request {position} of {request.callable}",
                    f"the request of kernel {request.kernel.digest}",
                    f"that of {kernel}, which the group's index has there",
                )
        return requests

    def _bill(self, reference: FileReference, groups: Sequence[GroupPlan]) -> None:
        """Check the bill of materials against the indices and the requests of all groups."""
        listed = sum(len(group.entries) + len(group.requests) for group in groups)
        expected = "a bill of materials that this release reads"
        bill = self._parsed(reference, read_bill, expected, most_bytes(listed))
        if bill is None:
            return
        kernels = kernels_of_index(entry for group in groups for entry in group.entries)
        different = sorted(name for name, *_ in bill.kernels ^ kernels)
        if different:
            found = f"other kernels than in the indices: {few(different)}"
            self._problem(reference.path, found, "the bundle's kernels")
        for path in sorted(bill.licenses - self._references.keys()):
            self._problem(path, "nothing in the manifest", "the licence of what is in the bundle")
        code = code_of_requests(compiled.request for group in groups for compiled in group.requests)
        different = sorted({item.name for item in bill.code ^ code})
        if different:
            found = f"other code than in the requests: {few(different)}"
            self._problem(reference.path, found, "the requests' code")

    def _code(self, reference: FileReference, spans: Mapping[CodeSpan, str]) -> None:
        """Unpack GPU code, and check every kernel's part against its digest."""
        data = self._read(reference)
        if data is None:
            return
        held, start, end = bytearray(), 0, 0
        whole = max((span.offset + span.size for span in spans), default=0)
        try:
            self._unpacking.take(whole)
            # Piece by piece: the code of a large group need not fit into memory.
            pieces = decompress(io.BytesIO(data), whole)
            for span, where in sorted(spans.items()):
                place = f"({span.size} bytes at {span.offset} of {reference.path})"
                if span.offset < end:
                    # Not looked at: each of very many kernels could have all of a large file.
                    found = f"GPU code {place} that begins in another's"
                    self._problem(where, found, "code of its own")
                    continue
                end = span.offset + span.size
                while True:
                    passed = min(max(span.offset - start, 0), len(held))
                    del held[:passed]
                    start += passed
                    if start + len(held) >= end or not (piece := next(pieces, b"")):
                        break
                    held += piece
                with memoryview(held) as view, view[: span.size] as part:
                    found = digest(part) if start == span.offset else "none"
                if found != span.sha256:
                    self._problem(where, f"GPU code of SHA-256 {found} {place}", f"SHA-256 {span.sha256}")
            for _ in pieces:
                pass
        except CutlassAotError as error:
            self._problem(reference.path, str(error), "GPU code as one zstd frame")

    def _library(self, reference: FileReference, expected: _Expected, glibc: str) -> None:
        path, host = reference.path, expected.host
        data = self._read(reference)
        if data is None:
            return
        if not expected.same_host:
            self._problem(path, "a library for several hosts in the catalog", "one for each host")
        try:
            unpacked = decompressed(data, self._unpacking.bound(MAX_LIBRARY_BYTES))
            self._unpacking.take(len(unpacked))
            library = read_shared_object(unpacked, path)
        except CutlassAotError as error:
            self._problem(path, str(error), f"a shared library for {host}")
            return
        if library.host != host:
            self._problem(path, f"a library for {library.host}", f"one for {host}")
        missing, extra = expected.symbols - library.exported, library.exported - expected.symbols
        if missing:
            self._problem(path, f"no symbol {few(sorted(missing))}", "one for each kernel of its groups")
        if extra and expected.complete:
            found = f"the symbol {few(sorted(extra))}"
            self._problem(path, found, "none beside those of its groups' kernels")
        foreign = sorted(set(library.needed) - ALLOWED_LIBRARIES)
        if foreign:
            self._problem(path, f"a need for {few(foreign)}", "none beside libtvm_ffi.so and glibc")
        try:
            major, minor = needed_glibc(library, path)
        except BundleError as error:
            self._problem(path, str(error), "versions of glibc's symbols alone")
            return
        if (major, minor) > major_minor(glibc):
            found = f"symbols of glibc {major}.{minor}"
            self._problem(path, found, f"none newer than {glibc}, which is promised")


def _whole_catalog(data: bytes, what: str) -> Catalog:
    """A catalog with all groups decoded, so that a malformed group raises here."""
    catalog = Catalog.from_bytes(data, what)
    tuple(catalog.groups)
    return catalog


def _symbols(entries: Iterable[KernelEntry]) -> dict[int, set[str]]:
    """The symbols that each library exports for a group's kernels, by the library's number."""
    found: dict[int, set[str]] = {}
    for entry in entries:
        own = found.setdefault(entry.library, set())
        own.update(prefix + entry.kernel.symbol for prefix in (EXPORT_PREFIX, CODE_PREFIX))
    return found


def _is_target(name: str) -> bool:
    try:
        return str(Target.parse(name)) == name
    except ValueError:
        return False


def _ranking(data: bytes, what: str) -> Ranking:
    """A ranking, of which every problem is sound."""
    ranking = Ranking.from_bytes(data, what)
    list(ranking.problems)
    return ranking
