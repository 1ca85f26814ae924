"""Read a wheel's zip file, which is not trusted, within bounds.

Format: PKWARE's APPNOTE.TXT. The size of the zip's index is bounded before it is read, by
:func:`~cutlass_aot.bundle.wheel.catalog.check_directory`; its entries are checked before anything is
unpacked.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import itertools
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from cutlass_aot.bundle.verify.directory import MISSING, Problem
from cutlass_aot.bundle.wheel.catalog import END, ZIP_ERRORS
from cutlass_aot.bundle.wheel.write import record_digest, record_to_text
from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.bundles.catalog import MAX_FILE_BYTES, check_relative
from cutlass_aot.schema.compression import Unpacking

MAX_METADATA_BYTES = 1 << 23
MAX_NAME_BYTES = 1024
"""Of a file's path in a wheel; paths in a bundle's wheel are much shorter."""
MAX_NAME_PARTS = 32
_READ_BYTES = 1 << 20
_SHOWN = 64  # characters of a name that is too long
_HEADER = struct.Struct("<4s5H3L2H")
"""Before a file: signature, version, flags, method, time, date, CRC, sizes, lengths of name and more."""
_LISTED_BYTES = 46  # of a file in the index, without its name
_UTF8 = 0x800  # the flag of a name in UTF-8
_MOST_DEFLATED = 1032  # bytes that one byte of deflate can stand for, at most (zlib's technical details)


def entry_problems(archive: zipfile.ZipFile, size: int) -> Iterator[Problem]:
    """Problems of the archive's list of files; no file is read unless there are none.

    ``size`` is that of the wheel in bytes.
    """
    infos = archive.infolist()
    counts = Counter(info.filename for info in infos)
    for name, count in sorted(counts.items()):
        # Checked first, because all prefixes of a name are looked up below, and a name may have 64 KB.
        if len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES or name.count("/") >= MAX_NAME_PARTS:
            found = f"a name of {len(name)} characters and {name.count('/') + 1} parts"
            expected = f"at most {MAX_NAME_BYTES} bytes and {MAX_NAME_PARTS} parts"
            yield Problem(f"{name[:_SHOWN]}...", found, expected)
            continue
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
        if info.flag_bits & ~_UTF8 or info.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            yield Problem(info.filename, "encryption, a stream or odd compression", "stored or deflated")
            continue
        # The archive's reader allocates what an entry claims before it finds out whether the file has it.
        if info.header_offset + info.compress_size > size:
            yield Problem(info.filename, f"{info.compress_size} bytes in the zip", f"at most its {size}")
            continue
        most = info.compress_size * (_MOST_DEFLATED if info.compress_type == zipfile.ZIP_DEFLATED else 1)
        if info.file_size > MAX_FILE_BYTES:
            yield Problem(info.filename, f"{info.file_size} bytes unpacked", f"at most {MAX_FILE_BYTES}")
        elif info.file_size > most:
            yield Problem(
                info.filename,
                f"{info.file_size} bytes unpacked of {info.compress_size} packed",
                f"at most {most}",
            )
    try:
        Unpacking(size).take(sum(info.file_size for info in infos))
    except CorruptFile as error:
        yield Problem("the wheel", str(error), "files that are compressed as a bundle's can be")


def layout_problems(archive: zipfile.ZipFile, file: BinaryIO) -> Iterator[Problem]:
    """The first thing in a zip file that is not one of the files that its index lists; at most one problem.

    Some installers read a zip file from its front, others by its index. So the files lie one after the other
    from the first byte on, each with a header that says what the index says, then the index, then its end.
    """
    infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    names = [info.filename.encode() for info in infos]
    size = file.seek(0, 2)
    length = sum(_LISTED_BYTES + len(name) for name in names)
    index = size - END.size - length
    file.seek(max(size - END.size, 0))
    count, end = len(infos), file.read()
    if len(end) != END.size or END.unpack(end) != (b"PK\x05\x06", 0, 0, count, count, length, index, 0):
        yield Problem(
            "the wheel",
            "a comment, or bytes around the zip's index",
            f"the index of its {count} files at byte {index}, and its end at {size - END.size}",
        )
        return
    at = 0
    for info, name in zip(infos, names, strict=True):
        if info.header_offset != at:
            yield Problem(
                info.filename, f"an entry at byte {info.header_offset}", f"at {at}, behind the last"
            )
            return
        file.seek(at)
        if file.read(_HEADER.size + len(name)) != _header(info, name):
            yield Problem(info.filename, "another header before the file than in the index", "equal ones")
            return
        at += _HEADER.size + len(name) + info.compress_size
    if at != index:
        yield Problem("the wheel", f"{index - at} bytes between its files and their index", "none")


def _header(info: zipfile.ZipInfo, name: bytes) -> bytes:
    """The header that a file has if it agrees with the index, and has no further fields."""
    year, month, day, hour, minute, second = info.date_time
    time, date = hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day
    version, flags, method = info.extract_version, info.flag_bits, info.compress_type
    sizes = info.compress_size, info.file_size
    header = _HEADER.pack(b"PK\x03\x04", version, flags, method, time, date, info.CRC, *sizes, len(name), 0)
    return header + name


def digest_of(archive: zipfile.ZipFile, name: str, target: Path | None) -> str:
    """Digest of one file, in RECORD's form; its bytes are written to ``target`` if there is one.

    The archive's reader stops at the size in the index, which :func:`entry_problems` has bounded.
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


def text_of(archive: zipfile.ZipFile, name: str) -> str:
    """A small text of the wheel; a :class:`CorruptFile` if it is large, no text, or cannot be unpacked."""
    try:
        size = archive.getinfo(name).file_size
        if size > MAX_METADATA_BYTES:
            raise CorruptFile(f"{size} bytes, more than {MAX_METADATA_BYTES}")
        return archive.read(name).decode()
    except KeyError:
        raise CorruptFile("no such file") from None
    except ZIP_ERRORS as error:
        raise CorruptFile(f"unreadable data ({error})") from None


def record_problems(
    archive: zipfile.ZipFile, record: str, sizes: Mapping[str, int], digests: Mapping[str, str]
) -> Iterator[Problem]:
    """Problems of RECORD, whose path is ``record``.

    ``sizes`` are those of all files; ``digests`` those of files that could be read, as RECORD writes them.
    """
    try:
        text = text_of(archive, record)
        # One more than there can be is enough to find that there are too many.
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = list(itertools.islice(lines, len(sizes) + 1))
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
            yield Problem(path, MISSING, "the file that RECORD lists")
        elif path == record:
            if digest or size:
                yield Problem(record, "its own digest or size", "neither")
        elif size != str(sizes[path]):
            yield Problem(path, f"{sizes[path]} bytes", f"{size!r}, as RECORD says")
        # A file that could not be read is reported already.
        elif path in digests and digest != digests[path]:
            yield Problem(path, digests[path], f"{digest}, as RECORD says")
    for path in sorted(set(sizes) - listed):
        yield Problem(path, "a file that RECORD does not list", "no such file")
