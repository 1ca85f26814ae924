"""Small bundles and wheels that are much when they are unpacked or listed: see what verifying them takes.

    python -m tools.fuzz.expansion BUNDLE [--attack NAME]

BUNDLE is a sound bundle (the manifest ``smoke``), of which every attack changes a copy, with the digests made
right again. ``cutlass-aot verify`` runs on each in a process of its own. It has to refuse it, with exit
status 1 and no traceback, within five seconds and 537 MB. Prints a table in Markdown; exits with 1 if one
was not refused like that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from cutlass_aot.bundle.files import manifest_to_bytes
from cutlass_aot.bundle.sbom import BILL_FOLDER, BILL_NAME
from cutlass_aot.bundle.wheel.write import build_wheels, record_digest, record_to_text
from cutlass_aot.runtime.files.verified_read import read_catalog, read_file, read_manifest
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_NAME,
    MANIFEST_NAME,
    Catalog,
    FileReference,
    GroupEntry,
    Groups,
)
from cutlass_aot.schema.bundles.group_index import CodeSpan, group_from_bytes, group_to_bytes
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest
from tools.bench.command import markdown

SECONDS = 5.0
"""Most that one attack may take."""
MEMORY = 512 << 20
"""Most bytes of memory."""
GIVEN_UP = 60.0
"""Seconds after which the process is ended."""
_HUGE = 1 << 30
_LIBRARY = 1 << 26


@dataclass(frozen=True)
class Taken:
    """What verifying one thing took: exit status (None if it was given up), seconds, bytes, the last line."""

    status: int | None
    seconds: float
    memory: int
    said: str

    @property
    def wrong(self) -> str:
        """What is wrong with that; ``""`` if nothing is."""
        if self.status is None:
            return f"no end after {GIVEN_UP:.0f} s"
        if self.status != 1:
            return f"exit status {self.status}: {self.said}"
        if self.seconds > SECONDS or self.memory > MEMORY:
            return "too much"
        return ""


# ---- attacks: each changes a copy of a sound bundle, and returns what is to be verified ----


def undeclared_code(bundle: Path) -> Path:
    """Behind the code of the kernels comes a gigabyte of nothing."""
    zeros = _zeros(_HUGE - (1 << 24))
    codes = {group.code.path: zeros for group in read_catalog(bundle).groups}
    return _changed(bundle, codes)


def declared_code(bundle: Path) -> Path:
    """The same, and an index says that it is a kernel's."""
    changes = {}
    for group in read_catalog(bundle).groups:
        *entries, last = group_from_bytes(read_file(bundle, group.child), group, "index")
        span = CodeSpan(0, _HUGE - (1 << 24), "00" * 32)
        changes[group.child.path] = group_to_bytes([*entries, last._replace(code=span)])
        changes[group.code.path] = _zeros(span.size)
    return _changed(bundle, changes)


def many_libraries(bundle: Path) -> Path:
    """Two hundred libraries of 67.1 MB each, which are zeros."""
    zeros = compress(bytes(_LIBRARY), 1)

    def with_many(group: GroupEntry) -> GroupEntry:
        added = {
            host: (
                *own,
                *(FileReference(f"lib/{host}/{n}.so.zst", len(zeros), digest(zeros)) for n in range(200)),
            )
            for host, own in group.libraries.items()
        }
        return group._replace(libraries=added)

    hosts = read_catalog(bundle).hosts
    libraries = {f"lib/{host}/{n}.so.zst": zeros for host in hosts for n in range(200)}
    return _changed(bundle, libraries, with_many)


def one_index_many_times(bundle: Path) -> Path:
    """Two thousand groups that name the same index of two megabytes."""
    catalog = read_catalog(bundle)
    group = catalog.groups[0]
    child = group.child.path
    padding = group_to_bytes(list(group_from_bytes(read_file(bundle, group.child), group, "index")) * 500)
    reference = FileReference(child, len(padding), digest(padding))
    copies = [group._replace(name=f"{group.name}-{n}", child=reference) for n in range(2000)]
    made = catalog._replace(groups=Groups.of([*catalog.groups, *copies]))
    return _changed(bundle, {child: padding}, catalog=made)


def lists_in_the_catalog(bundle: Path) -> Path:
    """A catalog of empty lists, of which each takes a byte."""
    return _raw_catalog(
        bundle, b"\xdd" + (16).to_bytes(4, "big") + (b"\xdd\x00\x0f\x00\x00" + b"\x90" * 0xF0000) * 16
    )


def large_catalog(bundle: Path) -> Path:
    """The same, ten times as large."""
    return _raw_catalog(
        bundle, b"\xdd" + (160).to_bytes(4, "big") + (b"\xdd\x00\x0f\x00\x00" + b"\x90" * 0xF0000) * 160
    )


def lists_in_the_bill(bundle: Path) -> Path:
    """A bill of materials of empty lists."""
    return _changed(bundle, {f"{BILL_FOLDER}/{BILL_NAME}": b"[" + b"[]," * 20_000_000 + b"0]"})


def long_manifest(bundle: Path) -> Path:
    """A manifest of 59 MB that lists what is not there."""
    return _listing(bundle, 450_000)


def manifest_as_long_as_it_may_be(bundle: Path) -> Path:
    """As many files that are not there as a manifest may list."""
    return _listing(bundle, 32_000)


def lists_in_the_manifest(bundle: Path) -> Path:
    """A manifest of empty lists, as long as one may be."""
    (bundle / MANIFEST_NAME).write_bytes(b"[" + b"[]," * 2_796_000 + b"0]")
    return bundle


def sparse_file(bundle: Path) -> Path:
    """A file of a terabyte that takes no room, in the place of a small one."""
    library = next(path for path in sorted(bundle.rglob("*.so.zst")))
    os.truncate(library, 1 << 40)
    return bundle


def many_files(bundle: Path) -> Path:
    """Seventy thousand files that nothing lists."""
    folder = bundle / "more"
    folder.mkdir()
    first = folder / "0"
    first.touch()
    for number in range(1, 70_000):
        if number % 60_000 == 0:  # A file system may allow no more links to one file.
            first = folder / f"first-{number}"
            first.touch()
        (folder / str(number)).hardlink_to(first)
    return bundle


def wheel_of_zeros(bundle: Path) -> Path:
    """Four files of almost a gigabyte each, in a wheel of four megabytes."""
    return _wheel(bundle, {f"zeros-{n}": _HUGE - (1 << 24) for n in range(4)})


def rows_in_record(bundle: Path) -> Path:
    """A RECORD of millions of empty rows."""
    return _wheel(
        bundle, {}, lambda name, data: data + b"\n" * 60_000_000 if name.endswith("/RECORD") else data
    )


def lines_in_metadata(bundle: Path) -> Path:
    """METADATA of millions of empty lines."""
    return _wheel(
        bundle, {}, lambda name, data: data + b"\n" * 60_000_000 if name.endswith("/METADATA") else data
    )


def entries_in_a_wheel(bundle: Path) -> Path:
    """As many empty files as the index of a zip file may list."""
    return _wheel(bundle, {f"{number}/\x7f": 0 for number in range(65_000)})


ATTACKS: Mapping[str, Callable[[Path], Path]] = {
    attack.__name__.replace("_", " "): attack
    for attack in (
        undeclared_code, declared_code, many_libraries, one_index_many_times, lists_in_the_catalog,
        large_catalog, lists_in_the_bill, long_manifest, manifest_as_long_as_it_may_be, lists_in_the_manifest,
        sparse_file, many_files, wheel_of_zeros, rows_in_record, lines_in_metadata, entries_in_a_wheel,
    )
}  # fmt: skip


def _zeros(size: int) -> bytes:
    """A frame of zeros, which says so: about 30,000 times smaller."""
    import zstandard

    maker = zstandard.ZstdCompressor(level=1, write_content_size=True).compressobj(size=size)
    block = bytes(1 << 20)
    return b"".join([*(maker.compress(block) for _ in range(size >> 20)), maker.flush()])


def _changed(
    bundle: Path,
    changes: Mapping[str, bytes],
    change: Callable[[GroupEntry], GroupEntry] = lambda group: group,
    catalog: Catalog | None = None,
) -> Path:
    """Write files of a bundle, and bring catalog and manifest up to date."""
    references = read_manifest(bundle)
    for path, data in changes.items():
        (bundle / path).parent.mkdir(exist_ok=True)
        (bundle / path).write_bytes(data)
        references[path] = FileReference(path, len(data), digest(data))
    whole = catalog or read_catalog(bundle)
    groups = [
        change(group)._replace(
            child=references[group.child.path],
            code=references[group.code.path],
        )
        for group in whole.groups
    ]
    return _resealed(bundle, references, whole._replace(groups=Groups.of(groups)).to_bytes())


def _resealed(bundle: Path, references: dict[str, FileReference], catalog: bytes) -> Path:
    (bundle / CATALOG_NAME).write_bytes(catalog)
    references[CATALOG_NAME] = FileReference(CATALOG_NAME, len(catalog), digest(catalog))
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))
    return bundle


def _raw_catalog(bundle: Path, data: bytes) -> Path:
    return _resealed(bundle, read_manifest(bundle), data)


def _listing(bundle: Path, count: int) -> Path:
    references = read_manifest(bundle)
    paths = (f"licenses/{number}" for number in range(count))
    references.update((path, FileReference(path, 1, "0" * 64)) for path in paths)
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))
    return bundle


def _wheel(
    bundle: Path, zeros: Mapping[str, int], change: Callable[[str, bytes], bytes] = lambda name, data: data
) -> Path:
    """The bundle's wheel with files of zeros, by their sizes, and others changed; RECORD lists all."""
    (wheel,) = build_wheels(bundle, bundle.parent / "wheels")
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist()}
    record = next(name for name in files if name.endswith("/RECORD"))
    del files[record]
    files = {name: change(name, data) for name, data in files.items()}
    rows: list[tuple[str, str, int | str]] = [
        (name, record_digest(bytes.fromhex(digest(data))), len(data)) for name, data in files.items()
    ]
    rows += [(name, "sha256=0", size) for name, size in zeros.items()]
    files[record] = change(record, record_to_text([*rows, (record, "", "")]).encode())
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        block = bytes(1 << 20)
        for name, size in zeros.items():
            with (
                archive.open(zipfile.ZipInfo(name), "w")
                if not size
                else archive.open(_deflated(name), "w") as file
            ):
                for _ in range(size >> 20):
                    file.write(block)
    return wheel


def _deflated(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


# ---- verifying ----


def verify(path: Path) -> Taken:
    """Verify something in a process of its own."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _VERIFY, str(path)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            code: int | None = process.wait(GIVEN_UP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        output.seek(0)
        *lines, last = output.read().decode("utf-8", "replace").splitlines() or [""]
    seconds = time.monotonic() - started
    peak = re.fullmatch(r"VmHWM:\s*([0-9]+) kB", last)
    if any(line.startswith("Traceback") for line in lines):
        code = -1
    return Taken(code, seconds, int(peak[1]) << 10 if peak else 0, lines[-1] if lines else last)


_VERIFY = """
import sys
from cutlass_aot.cli import main
try:
    sys.exit(main(["verify", sys.argv[1]]))
finally:
    # The kernel's count of this process alone; that of wait4 has the parent's memory too.
    sys.stdout.flush()
    print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM")), end="", file=sys.stderr)
"""


def run(bundle: Path, names: Iterable[str]) -> dict[str, tuple[int, Taken]]:
    """The attacks of these names: bytes of what was verified, and what that took."""
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="expansion-") as folder:
            made = ATTACKS[name](shutil.copytree(bundle, Path(folder, "bundle")))
            files = [made] if made.is_file() else [item for item in made.rglob("*") if item.is_file()]
            size = sum(
                item.stat().st_blocks << 9 if item.stat().st_size > 1 << 36 else item.stat().st_size
                for item in files
            )
            found[name] = size, verify(made)
    return found


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--attack", "names", multiple=True, type=click.Choice(list(ATTACKS)), help="This one; repeatable."
)
def main(bundle: Path, names: tuple[str, ...]) -> None:
    """Verify small things that are much when they are unpacked or listed."""
    found = run(bundle, names or ATTACKS)
    rows = [
        (name, f"{size:,}", f"{taken.seconds:.1f}", f"{taken.memory / 1e6:.0f}", taken.wrong or "refused")
        for name, (size, taken) in found.items()
    ]
    click.echo(markdown(("attack", "bytes", "seconds", "MB", ""), rows))
    if any(taken.wrong for _, taken in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
