"""Pack a bundle as wheels that install beside the runtime and need nothing of the build side.

There is a wheel for each host of the bundle, with the host's libraries and the GPU code, which is the same
for all; where the bundle is split by target, one for each host and target. Each wheel has a complete bundle:
the one that is packed, or a smaller one, which is verified, signed and opened by itself.

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
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cutlass_aot.bundle.files import LICENSES
from cutlass_aot.bundle.replace import create
from cutlass_aot.bundle.sbom import BILL_FOLDER, BILL_NAME, bill_of_wheel
from cutlass_aot.bundle.sign import Signer, check_count, signature_of
from cutlass_aot.bundle.verify.directory import require_sound
from cutlass_aot.bundle.verify.verified import VerifiedBundle
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
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.runtime.files.verified_read import read_file
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from cutlass_aot.schema.bundles.signature import NO_TERMS, Signature, Terms

BUNDLE_FOLDER = "bundle"
"""Name of the bundle's directory in the wheel's package."""

_FIRST_SECOND = 315532800  # 1980-01-01 00:00 UTC, where a zip file's calendar begins
_LAST_SECOND = 4354819199  # 2107-12-31 23:59:59 UTC, where it ends
_COMPRESSION_LEVEL = 6
_COMPRESSED = ".zst"

_Date = tuple[int, int, int, int, int, int]


def build_wheels(
    bundle: Path,
    output: Path,
    *,
    split: bool = False,
    signer: Signer | None = None,
    terms: Terms = NO_TERMS,
) -> list[Path]:
    """Pack a bundle as wheels in the directory ``output``, and return their paths, sorted.

    The bundle is verified first. Equal bundles and ``SOURCE_DATE_EPOCH`` give equal bytes. Wheels of the same
    names are replaced, after all new ones are written.

    Args:
        bundle: the bundle's directory. Its signatures are packed only where the wheel has the whole bundle: a
            wheel for one host of several, or for one target, has a bundle of its own. Without the package
            ``cryptography`` they are packed unchecked.
        split: make a wheel for each GPU code target.
        signer: signs the bundle in each wheel, under these ``terms``; signatures by other keys stay.
    """
    whole = require_sound(bundle)
    date = _date(os.environ.get("SOURCE_DATE_EPOCH"))
    with _disk(output):
        output.mkdir(parents=True, exist_ok=True)
        with temporary_folder(beside=output / "wheels") as folder:
            made = [_pack(item, signer, terms, folder, date) for item in _bundles(whole, split, folder)]
            for path in made:
                path.replace(output / path.name)
    return sorted(output / path.name for path in made)


@contextmanager
def _disk(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BundleError(
            f"cannot write wheels to {output}: {error.strerror or error}; check permissions and free space, "
            "or name another output"
        ) from error


def _bundles(whole: VerifiedBundle, split: bool, folder: Path) -> Iterator[VerifiedBundle]:
    """The bundle of each wheel: the whole one, or smaller ones, which are written to ``folder``."""
    hosts = whole.catalog.hosts
    if len(hosts) == 1 and (not split or len({group.target for group in whole.catalog.groups}) == 1):
        yield whole
        return
    plan = whole.plan()
    for host in hosts:
        for variant in by_target(plan) if split else [plan]:
            name = f"{variant.variant or 'bundle'}-{host}"
            yield write_bundle(for_host(variant, host), folder / name).bundle


def _pack(bundle: VerifiedBundle, signer: Signer | None, terms: Terms, folder: Path, date: _Date) -> Path:
    """A bundle for one host as a wheel in ``folder``."""
    names = wheel_names(bundle.catalog)
    signatures = {signature.path: signature for signature in bundle.signatures}
    if signer is not None:
        signature = signature_of(bundle.manifest, signer, terms)
        signatures[signature.path] = signature
        check_count(signatures)
    path = folder / names.file_name
    with create(path) as file, zipfile.ZipFile(file, "w") as zip_file:
        archive = _Archive(zip_file, date)
        archive.add(f"{names.package}/__init__.py", package_init(bundle.catalog))
        _add_bundle(archive, bundle, [signatures[name] for name in sorted(signatures)], names)
        archive.add_record(f"{names.dist_info}/RECORD")
    return path


def _add_bundle(
    archive: _Archive, bundle: VerifiedBundle, signatures: Sequence[Signature], names: WheelNames
) -> None:
    catalog = bundle.catalog
    folder = f"{names.package}/{BUNDLE_FOLDER}"
    archive.add(f"{folder}/{MANIFEST_NAME}", bundle.manifest)
    licenses: dict[str, bytes] = {}
    for path, reference in sorted(bundle.references.items()):
        # Checked against its digest again, as the bundle may have changed since it was verified.
        data = read_file(bundle.directory, reference)
        archive.add(f"{folder}/{path}", data, reference.sha256)
        if path.startswith(f"{LICENSES}/"):
            licenses[path.removeprefix(f"{LICENSES}/")] = data
    for signature in signatures:
        archive.add(f"{folder}/{signature.path}", signature.to_bytes())
    about = {
        "METADATA": metadata(catalog, names, bool(licenses)),
        "WHEEL": wheel_file(names),
        "entry_points.txt": entry_points(catalog, names),
    }
    if licenses:
        about[f"{LICENSES}/{LICENSES_NAME}"] = licenses_text(licenses)
    bill = bundle.references.get(f"{BILL_FOLDER}/{BILL_NAME}")
    if bill is not None:
        # The kernels are listed in the bundle's own bill, to which the wheel's only refers.
        where = f"../../{folder}/{bill.path}"
        about[f"sboms/{BILL_NAME}"] = bill_of_wheel(
            catalog, names.distribution, where, bill.sha256, bundle.requests, licenses
        )
    for path, data in sorted(about.items()):
        archive.add(f"{names.dist_info}/{path}", data)


class _Archive:
    """A wheel that is being written; ``date`` is the date of all its files."""

    def __init__(self, archive: zipfile.ZipFile, date: _Date) -> None:
        self._archive = archive
        self._date = date
        self.rows: list[tuple[str, str, int | str]] = []

    def add(self, path: str, data: bytes, sha256: str = "") -> None:
        """Add a file, whose digest may be known already; RECORD will list it."""
        self._put(path, data)
        digest = bytes.fromhex(sha256) if sha256 else hashlib.sha256(data).digest()
        self.rows.append((path, record_digest(digest), len(data)))

    def add_record(self, record: str) -> None:
        """Add RECORD, the last file."""
        self._put(record, record_to_text([*self.rows, (record, "", "")]).encode())

    def _put(self, path: str, data: bytes) -> None:
        info = zipfile.ZipInfo(path, self._date)
        info.create_system = 3  # Unix, so that the mode counts
        info.external_attr = 0o100644 << 16
        # What is compressed already would only grow.
        method = zipfile.ZIP_STORED if path.endswith(_COMPRESSED) else zipfile.ZIP_DEFLATED
        self._archive.writestr(info, data, method, _COMPRESSION_LEVEL)


def record_to_text(rows: Iterable[Sequence[str | int]]) -> str:
    """RECORD's canonical text for these rows of path, digest and size."""
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
