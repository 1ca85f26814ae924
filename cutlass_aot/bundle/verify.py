"""Verify a bundle, a wheel or whatever else a path may be; list everything that is wrong."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import os
import stat
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from cutlass_aot.bundle.contents import Findings, Problem, look_at_bundle, verify_bundle
from cutlass_aot.bundle.wheel import (
    BUNDLE_FOLDER,
    WheelNames,
    entry_points,
    package_init,
    record_digest,
    record_to_text,
    wheel_names,
)
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError
from cutlass_aot.runtime.files import read_catalog
from cutlass_aot.runtime.signatures import PublicKey
from cutlass_aot.schema.catalog import (
    CATALOG_NAME,
    MANIFEST_NAME,
    MAX_FILE_BYTES,
    Catalog,
    check_relative,
)

__all__ = [
    "CHECKERS",
    "Checker",
    "Findings",
    "Problem",
    "look_at",
    "verify_bundle",
    "verify_path",
    "verify_wheel",
]

MAX_WHEEL_BYTES = 4 << 30
MAX_METADATA_BYTES = 1 << 26
_READ_BYTES = 1 << 20
# What the standard library's reader raises for archives that were truncated, altered or made to harm.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OverflowError,
    RuntimeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checker:
    """One kind of thing that can be verified.

    Attributes:
        kind: what it is called.
        looks_like: how one is recognised, in words, for the error that lists what was expected.
        recognises: whether a path is one, by what can be seen without reading it.
        look_at: says what is wrong with it, and who has signed it; given keys, of which one has to have.
    """

    kind: str
    looks_like: str
    recognises: Callable[[Path], bool]
    look_at: Callable[[Path, Sequence[PublicKey]], Findings]


def verify_wheel(wheel: Path) -> list[Problem]:
    """Everything that is wrong with a bundle's wheel; an empty list says that nothing is.

    Raises:
        BundleError: as :func:`look_at_wheel`, like the other errors.
    """
    return look_at_wheel(wheel).problems


def look_at_wheel(wheel: Path, keys: Sequence[PublicKey] = ()) -> Findings:
    """Hold everything in a bundle's wheel against everything else.

    Names, sizes and RECORD are checked before the bundle inside is unpacked into a private temporary
    directory and verified; what stands around it has to be what :func:`build_wheel` writes.

    Args:
        wheel: the file.
        keys: public keys of which one has to have signed the bundle; none asks for no signature.

    Raises:
        BundleError: if the wheel cannot be read, or the temporary directory cannot be written.
        SignatureError: if it is signed, and the package ``cryptography`` is not there.
    """
    try:
        with wheel.open("rb") as file, tempfile.TemporaryDirectory(prefix="cutlass-aot-") as folder:
            try:
                archive = zipfile.ZipFile(file)
            except _ZIP_ERRORS as error:
                return Findings([Problem(wheel.name, f"no readable zip file ({error})", "a wheel")])
            with archive:
                findings = Findings(list(_entries(archive, os.fstat(file.fileno()).st_size)))
                if not findings.problems:
                    findings.problems = list(
                        _contents(archive, wheel.name, Path(folder), keys, findings.signers)
                    )
                return findings
    except OSError as error:
        # A seek to an offset that the archive made up.
        if error.errno == errno.EINVAL:
            return Findings([Problem(wheel.name, "a zip index that points outside the file", "a wheel")])
        raise BundleError(
            f"cannot verify {wheel}: {error.filename or wheel}: {error.strerror or error}"
        ) from error


def _entries(archive: zipfile.ZipFile, size: int) -> Iterator[Problem]:
    """What is wrong with the archive's list of files: nothing of it is read before this is clean.

    Args:
        archive: the wheel.
        size: bytes of its file.
    """
    infos = archive.infolist()
    counts = Counter(info.filename for info in infos)
    for name, count in sorted(counts.items()):
        if count > 1:
            yield Problem(name, f"{count} entries of this name", "one")
        try:
            check_relative(name)
        except CorruptFile as error:
            yield Problem(name, str(error), "a path in the wheel")
            continue
        parts = name.split("/")
        if not all(part.isprintable() and part.isascii() for part in parts):
            yield Problem(name, "a name with other characters", "printable ASCII")
        if any("/".join(parts[:length]) in counts for length in range(1, len(parts))):
            yield Problem(name, "a file below what is a file itself", "a directory above it")
    for info in infos:
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield Problem(info.filename, f"file mode {mode:#o}", "a plain file")
        if info.flag_bits & 1 or info.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            yield Problem(info.filename, "encryption or odd compression", "stored or deflated")
        # The archive's reader takes room for what an entry claims before it looks whether it is there.
        if info.header_offset + info.compress_size > size:
            yield Problem(info.filename, f"{info.compress_size} bytes in the zip", f"part of its {size}")
        if info.file_size > MAX_FILE_BYTES:
            yield Problem(info.filename, f"{info.file_size} bytes unpacked", f"at most {MAX_FILE_BYTES}")
    total = sum(info.file_size for info in infos)
    if total > MAX_WHEEL_BYTES:
        yield Problem("the wheel", f"{total} bytes unpacked", f"at most {MAX_WHEEL_BYTES}")


def _contents(
    archive: zipfile.ZipFile, file_name: str, folder: Path, keys: Sequence[PublicKey], signers: list[str]
) -> Iterator[Problem]:
    sizes = {info.filename: info.file_size for info in archive.infolist()}
    records = [name for name in sizes if name.count("/") == 1 and name.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        yield Problem(file_name, f"{len(records)} files *.dist-info/RECORD", "one")
        return
    manifests = [name for name in sizes if name.endswith(f"/{BUNDLE_FOLDER}/{MANIFEST_NAME}")]
    if len(manifests) != 1 or manifests[0].count("/") != 2:
        yield Problem(file_name, f"{len(manifests)} bundles", f"one, in PACKAGE/{BUNDLE_FOLDER}")
        return
    root = manifests[0].removesuffix(MANIFEST_NAME)
    digests: dict[str, str] = {}
    for name in sorted(sizes):
        within = name.removeprefix(root) if name.startswith(root) else None
        try:
            digests[name] = _read(archive, name, folder / within if within else None)
        except _ZIP_ERRORS as error:
            yield Problem(name, f"unreadable data ({error})", "a file as the zip's index says")
    yield from _record(archive, records[0], sizes, digests)
    inside = look_at_bundle(folder, keys)
    signers += inside.signers
    for problem in inside.problems:
        yield Problem(f"{root}{problem.path}", problem.found, problem.expected)
    try:
        catalog = read_catalog(folder)
        names = wheel_names(catalog)
    except CutlassAotError as error:
        yield Problem(f"{root}{CATALOG_NAME}", str(error), "a bundle that can be a wheel")
        return
    yield from _surroundings(archive, file_name, catalog, names, set(sizes))


def _read(archive: zipfile.ZipFile, name: str, target: Path | None) -> str:
    """Digest of one file, in RECORD's form; its bytes go to ``target`` if there is one.

    The archive's reader stops at the size that its index gives, which was bounded before.
    """
    hasher = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(archive.open(name))
        output = None
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(target.open("xb"))
        while block := source.read(_READ_BYTES):
            hasher.update(block)
            if output is not None:
                output.write(block)
    return record_digest(hasher.digest())


def _record(
    archive: zipfile.ZipFile, record: str, sizes: Mapping[str, int], digests: Mapping[str, str]
) -> Iterator[Problem]:
    try:
        text = _text(archive, record)
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (csv.Error, CorruptFile) as error:
        yield Problem(record, str(error), "rows of path, digest and size")
        return
    if text != record_to_text(rows):
        yield Problem(record, "other bytes than its rows give", "its canonical form")
    listed: set[str] = set()
    for row in rows:
        if len(row) != 3 or row[0] in listed:
            yield Problem(record, f"the row {row!r}", "a path, digest and size, each path once")
            continue
        path, digest, size = row
        listed.add(path)
        if path not in sizes:
            yield Problem(path, "nothing", "the file that RECORD lists")
        elif path == record:
            if digest or size:
                yield Problem(record, "its own digest or size", "neither")
        elif size != str(sizes[path]):
            yield Problem(path, f"{sizes[path]} bytes", f"{size!r}, as RECORD says")
        # What could not be read is a problem already.
        elif path in digests and digest != digests[path]:
            yield Problem(path, digests[path], f"{digest}, as RECORD says")
    for path in sorted(set(sizes) - listed):
        yield Problem(path, "a file that RECORD does not list", "no such file")


def _text(archive: zipfile.ZipFile, name: str) -> str:
    """A small text of the wheel.

    Raises:
        CorruptFile: if it is large, or no text, or cannot be unpacked.
    """
    try:
        size = archive.getinfo(name).file_size
        if size > MAX_METADATA_BYTES:
            raise CorruptFile(f"{size} bytes, more than {MAX_METADATA_BYTES}")
        return archive.read(name).decode()
    except KeyError:
        raise CorruptFile("no such file") from None
    except _ZIP_ERRORS as error:
        raise CorruptFile(f"unreadable data ({error})") from None


def _surroundings(
    archive: zipfile.ZipFile, file_name: str, catalog: Catalog, names: WheelNames, files: set[str]
) -> Iterator[Problem]:
    """What stands around the bundle: an install runs or trusts it, so nothing foreign is let pass."""
    if file_name != names.file_name:
        yield Problem(file_name, "this file name", f"{names.file_name}, as the catalog says")
    package, dist_info = f"{names.package}/", f"{names.dist_info}/"
    exact = {
        f"{package}__init__.py": package_init(catalog).decode(),
        f"{dist_info}entry_points.txt": entry_points(catalog, names).decode(),
    }
    headers = {
        f"{dist_info}METADATA": {"Name": names.distribution, "Version": catalog.version},
        f"{dist_info}WHEEL": {"Tag": names.tag, "Root-Is-Purelib": "false"},
    }
    for path in sorted({*exact, *headers}):
        try:
            text = _text(archive, path)
        except CorruptFile as error:
            yield Problem(path, str(error), "a file that every bundle's wheel has")
            continue
        if path in exact and text != exact[path]:
            yield Problem(path, repr(text[:200]), repr(exact[path]))
        message = Parser().parsestr(text, headersonly=True)
        for name, expected in headers.get(path, {}).items():
            if message.get_all(name) != [expected]:
                yield Problem(path, f"{name} {message.get_all(name)}", f"{expected!r}")
    allowed = (f"{package}{BUNDLE_FOLDER}/", f"{dist_info}licenses/")
    for path in sorted(files - {*exact, *headers, f"{dist_info}RECORD"}):
        if not path.startswith(allowed):
            yield Problem(path, "a file that is no part of a bundle's wheel", "no such file")


CHECKERS = (
    Checker(
        kind="bundle",
        looks_like=f"a directory with {MANIFEST_NAME} or {CATALOG_NAME}",
        recognises=lambda path: any((path / name).is_file() for name in (MANIFEST_NAME, CATALOG_NAME)),
        look_at=look_at_bundle,
    ),
    Checker(
        kind="wheel",
        looks_like="a file *.whl",
        recognises=lambda path: path.suffix == ".whl" and path.is_file(),
        look_at=look_at_wheel,
    ),
)
"""What this layer can verify. The command line adds a store's checker to it."""


def verify_path(path: Path, checkers: Sequence[Checker] = CHECKERS) -> list[Problem]:
    """Verify whatever ``path`` is; an empty list says that nothing is wrong with it.

    Args:
        path: a bundle, a wheel, or what another of ``checkers`` recognises.
        checkers: as for :func:`look_at`.

    Raises:
        BundleError: as :func:`look_at`, like the other errors.
    """
    return look_at(path, (), checkers).problems


def look_at(path: Path, keys: Sequence[PublicKey] = (), checkers: Sequence[Checker] = CHECKERS) -> Findings:
    """Verify whatever ``path`` is, and say who has signed it.

    Args:
        path: a bundle, a wheel, or what another of ``checkers`` recognises.
        keys: public keys of which one has to have signed it; none asks for no signature.
        checkers: asked in order; the first that recognises ``path`` verifies it.

    Raises:
        BundleError: if none does, or if it cannot be read at all.
        SignatureError: if it is signed, and the package ``cryptography`` is not there.
    """
    for checker in checkers:
        if checker.recognises(path):
            return checker.look_at(path, keys)
    found = "nothing is there"
    if path.exists():
        found = "it is another directory" if path.is_dir() else "it is another file"
    expected = "; ".join(f"{checker.kind}: {checker.looks_like}" for checker in checkers)
    raise BundleError(f"{path} cannot be verified: {found}; expected one of: {expected}")
