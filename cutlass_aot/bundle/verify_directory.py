"""Hold a bundle's directory against everything it says of itself, and list all that is wrong."""

from __future__ import annotations

import io
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cutlass_aot.bundle.elf import read_shared_object
from cutlass_aot.bundle.files import digest_beneath, list_files, manifest_to_bytes
from cutlass_aot.bundle.glibc import needed_glibc
from cutlass_aot.bundle.sbom import (
    BILL_FOLDER,
    BILL_NAME,
    code_of_bill,
    code_of_requests,
    kernels_of_bill,
    kernels_of_index,
)
from cutlass_aot.bundle.write import FILE_NAME
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError
from cutlass_aot.runtime.files.signatures import PublicKey, examine, why_unchecked
from cutlass_aot.runtime.files.verified_read import (
    MAX_MANIFEST_BYTES,
    manifest_bytes,
    parse_manifest,
    read_bounded,
    read_file,
)
from cutlass_aot.schema.bundles.catalog import (
    BUNDLE_NAME,
    CATALOG_NAME,
    MANIFEST_NAME,
    MAX_FILE_BYTES,
    MAX_INDEX_BYTES,
    MAX_LIBRARY_BYTES,
    Catalog,
    FileReference,
    GroupEntry,
    RankingReference,
    common_alignment,
)
from cutlass_aot.schema.bundles.group_index import CodeSpan, GroupIndex, KernelEntry, group_from_bytes
from cutlass_aot.schema.bundles.signature import SIGNATURES
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.compression import decompress, decompressed
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX, EXPORT_PREFIX, LAUNCHER_SYMBOLS
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.requests.request import OPERATION, Request
from cutlass_aot.schema.requests.request_index import requests_from_bytes
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.tuning.ranking import Ranking, holds_for
from cutlass_aot.schema.versions import major_minor
from cutlass_aot.schema.words import few

ALLOWED_LIBRARIES = frozenset(
    {
        "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libm.so.6",
        "libpthread.so.0", "librt.so.1", "libtvm_ffi.so",
    }
)  # fmt: skip
"""What a bundle's library may need of the machine: tvm-ffi and the parts of glibc."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. What was read from the bundle is made printable.

    Attributes:
        path: where, in the bundle or the wheel.
        found: what is there.
        expected: what should be.
    """

    path: str
    found: str
    expected: str

    def __post_init__(self) -> None:
        # Names and texts of a foreign bundle go to terminals and logs.
        for name in ("path", "found", "expected"):
            object.__setattr__(self, name, _printable(getattr(self, name)))

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}; expected {self.expected}"


def in_short(problems: Sequence[Problem]) -> str:
    """The first of some problems, and how many more there are, for an error."""
    return few(problems, 1, separator="; ")


@dataclass(slots=True)
class Findings:
    """What a look at a bundle or a wheel brought.

    Attributes:
        problems: all that is wrong; empty if nothing is.
        signers: ids of the keys that have rightly signed it, whoever they are.
        warnings: what was not looked at, and why, in sentences without a full stop.
        unsigned: whether one of the problems is that none of the keys that were given has signed it.
    """

    problems: list[Problem] = field(default_factory=list)
    signers: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unsigned: bool = False

    @property
    def damaged(self) -> bool:
        """Whether anything is wrong but who has signed it."""
        return len(self.problems) > self.unsigned


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def verify_bundle(bundle: Path) -> list[Problem]:
    """Everything that is wrong with a bundle's directory; an empty list says that nothing is.

    Raises:
        BundleError: as :func:`look_at_bundle`, like the other errors.
    """
    return look_at_bundle(bundle).problems


def require_sound(bundle: Path) -> None:
    """Refuse what is not a bundle, and a bundle of which anything is wrong.

    Raises:
        BundleError: then, with the first of what is wrong.
    """
    with suppress(CorruptFile):
        # What is not a bundle at all is called that; what is wrong with a manifest is found with the rest.
        manifest_bytes(bundle)
    problems = verify_bundle(bundle)
    if problems:
        raise BundleError(
            f"the bundle {bundle} is damaged: {in_short(problems)}; cutlass-aot verify lists all; "
            "build or fetch it again"
        )


def look_at_bundle(bundle: Path, keys: Sequence[PublicKey] = ()) -> Findings:
    """Hold everything in a bundle's directory against everything else.

    The manifest is read, every file is checked against its size and digest (in pieces, at bounded memory),
    the indices against each other, the symbols of each library against the kernels of its group, and
    signatures against the manifest. Without the package ``cryptography`` nobody can say whether a signature
    is right: where none is required, that is a warning.

    Args:
        bundle: the directory.
        keys: public keys of which one has to have signed it; none asks for no signature.

    Raises:
        BundleError: if the directory itself is missing or cannot be read.
        SignatureError: if keys are given, it is signed, and the package ``cryptography`` is not there.
    """
    findings = Findings()
    findings.problems = _problems(bundle, keys, findings)
    return findings


def _problems(bundle: Path, keys: Sequence[PublicKey], findings: Findings) -> list[Problem]:
    try:
        listing = list_files(bundle)
    except OSError as error:
        raise BundleError(f"the bundle {bundle} cannot be read: {error.filename}: {error.strerror}") from None
    problems = [Problem(path, "a symbolic link", "a plain file") for path in listing.links]
    problems += [Problem(path, "no regular file", "a plain file") for path in listing.special]
    try:
        data = read_bounded(bundle, MANIFEST_NAME, MAX_MANIFEST_BYTES)
        references = parse_manifest(data, MANIFEST_NAME)
    except CutlassAotError as error:
        return [*problems, Problem(MANIFEST_NAME, str(error), "the manifest of a bundle")]
    if data != manifest_to_bytes(references):
        problems.append(Problem(MANIFEST_NAME, "other bytes than its contents give", "its canonical form"))
    signatures = [path for path in listing.regular if path.startswith(f"{SIGNATURES}/")]
    problems += _signatures(bundle, data, keys, findings)
    known = {*references, *signatures, MANIFEST_NAME, *listing.links, *listing.special}
    problems += [
        Problem(path, "a file that the manifest does not list", "no such file")
        for path in listing.regular
        if path not in known
    ]
    broken = list(_broken_files(bundle, references, set(listing.regular)))
    problems += [problem for problem in broken if problem.path not in (*listing.links, *listing.special)]
    damaged = {problem.path for problem in broken}
    if CATALOG_NAME not in references:
        problems.append(Problem(CATALOG_NAME, "nothing in the manifest", "the catalog"))
    elif CATALOG_NAME not in damaged:
        problems += _catalog(bundle, references, damaged)
    return sorted(problems, key=lambda problem: (problem.path, problem.found))


def _signatures(
    bundle: Path, manifest: bytes, keys: Sequence[PublicKey], findings: Findings
) -> Iterator[Problem]:
    """What is wrong with a bundle's signatures; ``findings`` is told who has rightly signed."""
    signers = findings.signers
    raw = set()
    unchecked = "" if keys else why_unchecked()
    for item in examine(bundle, manifest, check=not unchecked):
        if item.problem or item.signature is None:
            yield Problem(
                item.path, item.problem, "signatures of this bundle alone: remove it, or sign again"
            )
        elif unchecked:
            findings.warnings = [unchecked]
        else:
            signers.append(item.signature.key)
            raw.add(item.signature.public_key)
    if keys and not any(key.raw in raw for key in keys):
        findings.unsigned = True
        found = f"signatures by {few(signers)}" if signers else "no right signature"
        yield Problem(SIGNATURES, found, f"one by {few(map(str, keys))}")


def _broken_files(
    bundle: Path, references: Mapping[str, FileReference], present: set[str]
) -> Iterator[Problem]:
    for path, reference in references.items():
        if not all(FILE_NAME.fullmatch(part) for part in path.split("/")):
            yield Problem(path, "a file name with other characters", "a plain file name")
            continue
        if path not in present:
            yield Problem(path, "nothing", f"a file of {reference.size} bytes")
            continue
        try:
            sha256, size = digest_beneath(bundle, path)
        except CutlassAotError as error:
            yield Problem(path, str(error), "a readable file")
            continue
        if size != reference.size:
            yield Problem(path, f"{size} bytes", f"{reference.size} bytes")
        elif sha256 != reference.sha256:
            yield Problem(path, f"SHA-256 {sha256}", f"SHA-256 {reference.sha256}")


def _catalog(bundle: Path, references: Mapping[str, FileReference], damaged: set[str]) -> Iterator[Problem]:
    try:
        catalog = Catalog.from_bytes(_index(bundle, references[CATALOG_NAME]), CATALOG_NAME)
    except CutlassAotError as error:
        yield Problem(CATALOG_NAME, str(error), "a catalog that this release reads")
        return
    try:
        groups = tuple(catalog.groups)
    except CutlassAotError as error:
        yield Problem(CATALOG_NAME, str(error), "a catalog that this release reads")
        return
    yield from _parent(catalog)
    files = [reference for group in groups for reference in group.files]
    files += catalog.launchers.values()
    for reference in dict.fromkeys(files):
        if references.get(reference.path) != reference:
            yield Problem(
                reference.path,
                "another size or digest in the manifest than in the catalog",
                "the same in both",
            )
    sound = {
        reference.path
        for reference in files
        if references.get(reference.path) == reference and reference.path not in damaged
    }
    entries: list[KernelEntry] | None = []
    requests: list[Request] | None = []
    libraries: dict[FileReference, _Expected] = {}
    codes: dict[FileReference, dict[CodeSpan, str]] = {}
    for group in groups:
        index = (yield from _group(bundle, group, sound)) if group.child.path in sound else None
        entries = None if entries is None or index is None else [*entries, *index]
        if group.requests is not None or group.operation == OPERATION:
            answered = yield from _requests(bundle, group, index, sound)
            requests = None if requests is None or answered is None else [*requests, *answered]
        spans = codes.setdefault(group.code, {})
        for entry in index or ():
            spans.setdefault(entry.code, f"{group.child.path}: {entry.kernel.name}")
        for host, references_of_host in group.libraries.items():
            for number, reference in enumerate(references_of_host):
                symbols = None if index is None else _symbols(index, number)
                libraries.setdefault(reference, _Expected(host)).add(host, symbols)
    for host, reference in catalog.launchers.items():
        libraries.setdefault(reference, _Expected(host)).add(host, set(LAUNCHER_SYMBOLS))
    for reference, expected in sorted(libraries.items(), key=lambda item: item[0].path):
        if reference.path in sound:
            yield from _library(bundle, reference, expected, catalog.requirements.glibc)
    for reference, spans in sorted(codes.items(), key=lambda item: item[0].path):
        if reference.path in sound:
            yield from _code(bundle, reference, spans)
    bill = references.get(f"{BILL_FOLDER}/{BILL_NAME}")
    if bill is not None and bill.path not in damaged and entries is not None and requests is not None:
        yield from _bill(bundle, bill, entries, requests)
    used = {CATALOG_NAME, f"{BILL_FOLDER}/{BILL_NAME}", *(reference.path for reference in files)}
    for path in references:
        if path not in used and not path.startswith("licenses/"):
            yield Problem(path, "a file that the catalog does not name", "no such file")


def _bill(
    bundle: Path, reference: FileReference, entries: Sequence[KernelEntry], requests: Sequence[Request]
) -> Iterator[Problem]:
    """Hold the bill of materials against the indices and the requests of all groups."""
    try:
        data = _index(bundle, reference)
        listed, code = kernels_of_bill(data, reference.path), code_of_bill(data, reference.path)
    except CutlassAotError as error:
        yield Problem(reference.path, str(error), "a bill of materials that this release reads")
        return
    different = sorted(name for name, *_ in listed ^ kernels_of_index(entries))
    if different:
        yield Problem(
            reference.path, f"other kernels than in the indices: {few(different)}", "the bundle's kernels"
        )
    different = sorted({item.name for item in code ^ code_of_requests(requests)})
    if different:
        yield Problem(
            reference.path, f"other code than in the requests: {few(different)}", "the requests' code"
        )


def _symbols(index: GroupIndex, library: int) -> set[str]:
    """What one of a group's libraries exports for it."""
    own = [entry.kernel.symbol for entry in index if entry.library == library]
    return {prefix + symbol for prefix in (EXPORT_PREFIX, CODE_PREFIX) for symbol in own}


def _index(bundle: Path, reference: FileReference) -> bytes:
    if reference.size > MAX_INDEX_BYTES:
        raise BundleError(f"it has {reference.size} bytes, an index has at most {MAX_INDEX_BYTES}")
    return read_file(bundle, reference)


def _parent(catalog: Catalog) -> Iterator[Problem]:
    """What the parent says, checked against itself."""
    if not BUNDLE_NAME.fullmatch(catalog.name):
        yield Problem(CATALOG_NAME, f"bundle name {catalog.name!r}", "such a name as sm100-dense")
    for target in catalog.targets:
        if not _is_target(target):
            yield Problem(CATALOG_NAME, f"target {target!r}", "such a target as sm_100a")
    names = [group.name for group in catalog.groups]
    for what, values in (
        ("targets", list(catalog.targets)),
        ("hosts", list(catalog.hosts)),
        ("groups", names),
    ):
        if not values or values != sorted(set(values)):
            yield Problem(CATALOG_NAME, f"{what} {few(values)}", "at least one, sorted, each once")
    if sorted(catalog.launchers) != list(catalog.hosts):
        found = few(sorted(catalog.launchers))
        yield Problem(CATALOG_NAME, f"launchers for {found}", f"for {few(catalog.hosts)}")
    if catalog.alignment != common_alignment(catalog.groups):
        alignment = common_alignment(catalog.groups)
        yield Problem(CATALOG_NAME, f"alignment {catalog.alignment}", f"{alignment}, its operands' own")
    for group in catalog.groups:
        where = f"{CATALOG_NAME}: group {group.name}"
        if group.target not in catalog.targets:
            yield Problem(where, f"target {group.target}", f"one of {', '.join(catalog.targets)}")
        if sorted(group.libraries) != list(catalog.hosts):
            yield Problem(
                where,
                f"libraries for {few(sorted(group.libraries))}",
                f"for {few(catalog.hosts)}",
            )


def _is_target(name: str) -> bool:
    try:
        return str(Target.parse(name)) == name
    except ValueError:
        return False


@dataclass(slots=True)
class _Expected:
    """What the groups that share a library expect of it; complete if the indices of all of them are sound."""

    host: str
    symbols: set[str] = field(default_factory=set)
    complete: bool = True
    same_host: bool = True

    def add(self, host: str, symbols: set[str] | None) -> None:
        self.same_host = self.same_host and host == self.host
        self.complete = self.complete and symbols is not None
        self.symbols |= symbols or set()


def _group(bundle: Path, group: GroupEntry, sound: set[str]) -> Generator[Problem, None, GroupIndex | None]:
    """Check a group's index and rankings; gives the index, None if it cannot be read."""
    try:
        index = group_from_bytes(_index(bundle, group.child), group, group.child.path)
        entries = tuple(index)
    except CutlassAotError as error:
        yield Problem(group.child.path, str(error), "an index that this release reads")
        return None
    path = group.child.path
    if len(entries) != group.count or not entries:
        yield Problem(path, f"{len(entries)} kernels", f"{group.count}, and at least one")
    if len({entry.kernel.symbol for entry in entries}) != len(entries):
        yield Problem(path, "a kernel twice", "each kernel once")
    for entry in entries:
        try:
            found = from_plain(Kernel, to_plain(entry.kernel), "a kernel record").digest
        except (CutlassAotError, TypeError) as error:
            yield Problem(path, str(error), "records of kernels that this release reads")
            continue
        if found != entry.kernel.digest:
            yield Problem(
                f"{path}: {entry.kernel.name}", f"digest {entry.kernel.digest}", f"{found}, its record's"
            )
    for reference in group.rankings:
        if reference.file.path in sound:
            yield from _ranking(bundle, group, reference, entries)
    return index


def _ranking(
    bundle: Path, group: GroupEntry, reference: RankingReference, entries: Sequence[KernelEntry]
) -> Iterator[Problem]:
    path = reference.file.path
    try:
        ranking = Ranking.from_bytes(_index(bundle, reference.file), path)
    except CutlassAotError as error:
        yield Problem(path, str(error), "a ranking that this release reads")
        return
    if (ranking.gpu, ranking.measured) != (reference.gpu, reference.measured):
        yield Problem(
            path,
            f"a ranking for {holds_for(ranking.gpu, ranking.measured)}",
            f"one for {holds_for(reference.gpu, reference.measured)}, as the catalog says",
        )
    if entries and ranking.group != entries[0].kernel.group:
        yield Problem(path, f"a ranking of group {ranking.group}", f"one of {group.name}")
    named = {digest for problem in ranking.problems for digest in problem.kernels}
    unknown = sorted(named - {entry.kernel.digest for entry in entries})
    if unknown:
        yield Problem(path, f"kernels {few(unknown)}", f"kernels of {group.name} alone")


def _requests(
    bundle: Path, group: GroupEntry, index: GroupIndex | None, sound: Collection[str]
) -> Generator[Problem, None, list[Request] | None]:
    """Hold the requests of a group against its kernels; returns the requests, None if they cannot be read."""
    reference = group.requests
    if reference is None or group.operation != OPERATION:
        found = f"{'no' if reference is None else 'the'} requests of kernels of operation {group.operation}"
        expected = f"requests of kernels of operation {OPERATION} alone"
        yield Problem(f"{CATALOG_NAME}: group {group.name}", found, expected)
        return None
    if reference.path not in sound:
        return None
    try:
        requests = [
            compiled.request
            for compiled in requests_from_bytes(_index(bundle, reference), group, reference.path)
        ]
    except CutlassAotError as error:
        yield Problem(reference.path, str(error), "requests that this release reads")
        return None
    if index is None:
        return requests
    # Another number of kernels than the catalog says is a problem already.
    for position, request in enumerate(requests[: len(index)]):
        kernel = index.digest(position)
        if request.kernel.digest != kernel:
            yield Problem(
                f"{reference.path}: request {position} of {request.callable}",
                f"the request of kernel {request.kernel.digest}",
                f"that of {kernel}, which the group's index has there",
            )
    return requests


def _code(bundle: Path, reference: FileReference, spans: Mapping[CodeSpan, str]) -> Iterator[Problem]:
    """Unpack GPU code, and hold that of every kernel against its digest."""
    held, start = bytearray(), 0
    try:
        # Piece by piece: what a large group's kernels come to need not fit into memory.
        pieces = decompress(io.BytesIO(read_file(bundle, reference)), MAX_FILE_BYTES)
        for span, where in sorted(spans.items()):
            while True:
                passed = min(max(span.offset - start, 0), len(held))
                del held[:passed]
                start += passed
                if start + len(held) >= span.offset + span.size or not (piece := next(pieces, b"")):
                    break
                held += piece
            # Of a span that begins before another's end some bytes are gone: it has no digest.
            found = digest(bytes(held[: span.size])) if start == span.offset else "none"
            if found != span.sha256:
                what = f"GPU code of SHA-256 {found} ({span.size} bytes at {span.offset} of {reference.path})"
                yield Problem(where, what, f"SHA-256 {span.sha256}")
        for _ in pieces:
            pass
    except CutlassAotError as error:
        yield Problem(reference.path, str(error), "GPU code as one zstd frame")


def _library(bundle: Path, reference: FileReference, expected: _Expected, glibc: str) -> Iterator[Problem]:
    path, host = reference.path, expected.host
    if not expected.same_host:
        yield Problem(path, "a library for several hosts in the catalog", "one for each host")
    try:
        library = read_shared_object(decompressed(read_file(bundle, reference), MAX_LIBRARY_BYTES), path)
    except CutlassAotError as error:
        yield Problem(path, str(error), f"a shared library for {host}")
        return
    if library.host != host:
        yield Problem(path, f"a library for {library.host}", f"one for {host}")
    missing, extra = expected.symbols - library.exported, library.exported - expected.symbols
    if missing:
        yield Problem(path, f"no symbol {few(sorted(missing))}", "one for each kernel of its groups")
    if extra and expected.complete:
        yield Problem(path, f"the symbol {few(sorted(extra))}", "none beside those of its groups' kernels")
    foreign = sorted(set(library.needed) - ALLOWED_LIBRARIES)
    if foreign:
        yield Problem(path, f"a need for {few(foreign)}", "none beside libtvm_ffi.so and glibc")
    try:
        major, minor = needed_glibc(library, path)
    except BundleError as error:
        yield Problem(path, str(error), "versions of glibc's symbols alone")
        return
    if (major, minor) > major_minor(glibc):
        yield Problem(
            path, f"symbols of glibc {major}.{minor}", f"none newer than {glibc}, which is promised"
        )
