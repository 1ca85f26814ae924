"""Pack a bundle as wheels that install beside the runtime and need nothing of the build side.

There is a wheel for each host of the bundle, with its libraries and the GPU code, which is the same for all;
and, where the bundle is split by target, one for each host and target. What a wheel holds is a bundle: the
one that is packed, or a smaller one, which is verified, signed and opened by itself.

Formats: the binary distribution format of the Python Packaging Authority,
https://packaging.python.org/en/latest/specifications/binary-distribution-format/; bills of materials as PEP
770 has them.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cutlass_aot.bundle.apply_tuning import plan_of
from cutlass_aot.bundle.files import LICENSES, read_licenses
from cutlass_aot.bundle.replace import make_folders
from cutlass_aot.bundle.sbom import BILL_FOLDER, BILL_NAME, bill_of_wheel
from cutlass_aot.bundle.sign import Signer, sign_bundle
from cutlass_aot.bundle.wheel.metadata import (
    LICENSES_NAME,
    WheelNames,
    entry_points,
    licenses_text,
    metadata,
    package_init,
    wheel_file,
    wheel_names,
)
from cutlass_aot.bundle.wheel.split import by_target, for_host
from cutlass_aot.bundle.write import BundlePlan, write_bundle
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.signatures import examine, why_unchecked
from cutlass_aot.runtime.files.verified_read import (
    MAX_MANIFEST_BYTES,
    parse_manifest,
    read_bounded,
    read_catalog,
    read_file,
)
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, Catalog
from cutlass_aot.schema.bundles.signature import Signature

BUNDLE_FOLDER = "bundle"
"""Name of the bundle's directory in the wheel's package."""

_FIRST_SECOND = 315532800  # 1980-01-01 00:00 UTC, where a zip file's calendar begins
_LAST_SECOND = 4354819199  # 2107-12-31 23:59:59 UTC, where it ends
_COMPRESSION_LEVEL = 6
_COMPRESSED = ".zst"

_Date = tuple[int, int, int, int, int, int]


def build_wheels(
    bundle: Path, output: Path, *, split: bool = False, signer: Signer | None = None
) -> list[Path]:
    """Pack a bundle as wheels. Equal bundles and ``SOURCE_DATE_EPOCH`` give equal bytes.

    Args:
        bundle: the bundle's directory; it is verified first. Its signatures go along where all of it is
            packed as it is: a wheel for one host of several, or for one target, has a bundle of its own.
            Where the package ``cryptography`` is not there, they go along unchecked.
        output: directory for the wheels, made if it is not there.
        split: make a wheel for each GPU code target.
        signer: signs the bundle in each wheel; signatures by other keys that go along stay.

    Returns:
        The wheels' paths, sorted; wheels of these names are replaced. All are written before one is.

    Raises:
        BundleError: if the bundle is not sound, cannot be a wheel, or the disk refuses.
        SignatureError: if the signer gives no signature.
    """
    plan = plan_of(bundle)
    date = _date(os.environ.get("SOURCE_DATE_EPOCH"))
    made: list[Path] = []
    with _disk(output):
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=output) as name:
            folder = Path(name)
            for host in sorted(plan.hosts):
                for variant in by_target(plan) if split else [plan]:
                    packed = for_host(variant, host)
                    source = bundle
                    if packed is not plan:
                        source = _written(packed, folder)
                    elif signer is not None:
                        source = _copied(bundle, folder)
                    if signer is not None:
                        sign_bundle(source, signer)
                    made.append(_pack(source, folder, date))
            for path in made:
                path.replace(output / path.name)
    return sorted(output / path.name for path in made)


@contextmanager
def _disk(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or output
        raise BundleError(
            f"cannot write {where}: {error.strerror or error}; make room, or name another output"
        ) from error


def _written(plan: BundlePlan, folder: Path) -> Path:
    """Write the bundle of a wheel."""
    path = folder / f"{plan.variant or 'bundle'}-{plan.hosts[0]}"
    write_bundle(plan, path)
    return path


def _copied(bundle: Path, folder: Path) -> Path:
    """Copy a bundle that is packed whole, with its signatures: the wheel's gets one more, it does not."""
    manifest = read_bounded(bundle, MANIFEST_NAME, MAX_MANIFEST_BYTES)
    references = parse_manifest(manifest, str(bundle / MANIFEST_NAME))
    signatures = {signature.path: signature.to_bytes() for signature in _signatures(bundle, manifest)}
    path = folder / "bundle"
    make_folders(path, [*references, *signatures])
    for name, data in {MANIFEST_NAME: manifest, **signatures}.items():
        (path / name).write_bytes(data)
    for reference in references.values():
        (path / reference.path).write_bytes(read_file(bundle, reference))
    return path


def _pack(bundle: Path, folder: Path, date: _Date) -> Path:
    """A bundle for one host as a wheel in ``folder``."""
    catalog = read_catalog(bundle)
    names = wheel_names(catalog)
    with _archive(folder / names.file_name, names, date) as archive:
        archive.add(f"{names.package}/__init__.py", package_init(catalog))
        _add_bundle(archive, bundle, catalog, names)
    return folder / names.file_name


def _add_bundle(archive: _Archive, bundle: Path, catalog: Catalog, names: WheelNames) -> None:
    manifest = read_bounded(bundle, MANIFEST_NAME, MAX_MANIFEST_BYTES)
    references = parse_manifest(manifest, str(bundle / MANIFEST_NAME))
    folder = f"{names.package}/{BUNDLE_FOLDER}"
    archive.add(f"{folder}/{MANIFEST_NAME}", manifest)
    for path, reference in sorted(references.items()):
        # Checked against its digest, which RECORD has too: the bundle may have changed since it was verified.
        archive.add(f"{folder}/{path}", read_file(bundle, reference), reference.sha256)
    for signature in _signatures(bundle, manifest):
        archive.add(f"{folder}/{signature.path}", signature.to_bytes())
    licenses = read_licenses(bundle, references)
    about = {
        "METADATA": metadata(catalog, names, bool(licenses)),
        "WHEEL": wheel_file(names),
        "entry_points.txt": entry_points(catalog, names),
    }
    if licenses:
        about[f"{LICENSES}/{LICENSES_NAME}"] = licenses_text(licenses)
    bill = references.get(f"{BILL_FOLDER}/{BILL_NAME}")
    if bill is not None:
        # The kernels stand in the bundle's own bill, which is not packed twice.
        where = f"../../{folder}/{bill.path}"
        about[f"sboms/{BILL_NAME}"] = bill_of_wheel(catalog, names.distribution, where, bill.sha256)
    for path, data in sorted(about.items()):
        archive.add(f"{names.dist_info}/{path}", data)


class _Archive:
    """A wheel in the making.

    Args:
        archive: the zip file.
        date: of all files.
    """

    def __init__(self, archive: zipfile.ZipFile, date: _Date) -> None:
        self._archive = archive
        self._date = date
        self.rows: list[tuple[str, str, int | str]] = []

    def add(self, path: str, data: bytes, sha256: str = "") -> None:
        """Add a file, whose digest may be known already; RECORD will list it."""
        self._put(path, data)
        digest = bytes.fromhex(sha256) if sha256 else hashlib.sha256(data).digest()
        self.rows.append((path, record_digest(digest), len(data)))

    def close(self, record: str) -> None:
        """Add RECORD, the last file."""
        self._put(record, record_to_text([*self.rows, (record, "", "")]).encode())

    def _put(self, path: str, data: bytes) -> None:
        info = zipfile.ZipInfo(path, self._date)
        info.create_system = 3  # Unix, so that the mode counts
        info.external_attr = 0o100644 << 16
        # What is compressed already would only grow.
        method = zipfile.ZIP_STORED if path.endswith(_COMPRESSED) else zipfile.ZIP_DEFLATED
        self._archive.writestr(info, data, method, _COMPRESSION_LEVEL)


@contextmanager
def _archive(path: Path, names: WheelNames, date: _Date) -> Iterator[_Archive]:
    with path.open("xb") as file:
        # The process's umask must not show in a wheel.
        os.fchmod(file.fileno(), 0o644)
        with zipfile.ZipFile(file, "w") as archive:
            made = _Archive(archive, date)
            yield made
            made.close(f"{names.dist_info}/RECORD")
        _synchronise(file)


def _synchronise(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _signatures(bundle: Path, manifest: bytes) -> Iterator[Signature]:
    """A bundle's signatures, each checked against the manifest that is packed, where that can be done."""
    for item in examine(bundle, manifest, check=not why_unchecked()):
        if item.problem or item.signature is None:
            raise BundleError(f"{bundle}: {item.path}: {item.problem}; remove it, or sign the bundle again")
        yield item.signature


def record_to_text(rows: Iterable[Sequence[str | int]]) -> str:
    """RECORD's text; the only one for these rows of path, digest and size."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def record_digest(sha256: bytes) -> str:
    """A digest as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).rstrip(b"=").decode()


def _date(epoch: str | None) -> _Date:
    """A zip entry's date from ``SOURCE_DATE_EPOCH``: https://reproducible-builds.org/specs/source-date-epoch/"""
    if epoch is None:
        return (1980, 1, 1, 0, 0, 0)
    if not re.fullmatch(r"-?[0-9]{1,20}", epoch) or int(epoch) > _LAST_SECOND:
        raise BundleError(
            f"SOURCE_DATE_EPOCH is {epoch!r}: expected whole seconds since 1970, up to {_LAST_SECOND} "
            "(the end of 2107, which is the last a zip file can say); correct it or unset it"
        )
    moment = time.gmtime(max(int(epoch), _FIRST_SECOND))
    return (
        moment.tm_year, moment.tm_mon, moment.tm_mday, moment.tm_hour, moment.tm_min, moment.tm_sec,
    )  # fmt: skip
