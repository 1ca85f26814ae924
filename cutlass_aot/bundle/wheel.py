"""Pack a bundle as a wheel that installs beside the runtime and needs nothing of the build side.

Formats: the binary distribution format and core metadata specifications of the Python Packaging Authority,
https://packaging.python.org/en/latest/specifications/
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
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot import __version__
from cutlass_aot.bundle.contents import verify_bundle
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files import (
    MAX_MANIFEST_BYTES,
    parse_manifest,
    read_bounded,
    read_catalog,
    read_file,
)
from cutlass_aot.runtime.signatures import examine
from cutlass_aot.schema.catalog import BUNDLE_NAME, MANIFEST_NAME, Catalog
from cutlass_aot.schema.signature import Signature
from cutlass_aot.schema.versions import major_minor

ENTRY_POINT_GROUP = "cutlass_aot.bundles"
BUNDLE_FOLDER = "bundle"
"""Name of the bundle's directory in the wheel's package."""

_NUMBER = "(?:0|[1-9][0-9]*)"
_VERSION = re.compile(
    rf"(?:[1-9][0-9]*!)?{_NUMBER}(?:\.{_NUMBER})*(?:(?:a|b|rc){_NUMBER})?"
    rf"(?:\.post{_NUMBER})?(?:\.dev{_NUMBER})?(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?"
)
"""The normal form of a version. Source: version specifiers specification (PEP 440), "Normalization"."""

_GLIBC = re.compile(r"2\.[1-9][0-9]*")
_FIRST_SECOND = 315532800  # 1980-01-01 00:00 UTC, where a zip file's calendar begins
_LAST_SECOND = 4354819199  # 2107-12-31 23:59:59 UTC, where it ends
_COMPRESSION_LEVEL = 6

_Date = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class WheelNames:
    """Every name in a bundle's wheel.

    Attributes:
        distribution: project name, such as ``cutlass-aot-bundle-sm100-dense``.
        package: import name, such as ``cutlass_aot_bundle_sm100_dense``.
        dist_info: directory of the metadata.
        tag: compatibility tag, such as ``py3-none-manylinux_2_28_x86_64``.
        file_name: the wheel's own.
    """

    distribution: str
    package: str
    dist_info: str
    tag: str
    file_name: str


def wheel_names(catalog: Catalog) -> WheelNames:
    """The names that follow from a bundle's catalog.

    Raises:
        BundleError: if its name, version, hosts or glibc cannot be those of a wheel.
    """
    if not BUNDLE_NAME.fullmatch(catalog.name):
        raise BundleError(
            f"bundle name {catalog.name!r} cannot name a wheel: expected lower-case letters, digits, '.', "
            "'_' and '-', beginning and ending with a letter or a digit; change bundle.name in the manifest"
        )
    if not _VERSION.fullmatch(catalog.version):
        raise BundleError(
            f"bundle version {catalog.version!r} cannot be a wheel's: expected a normalised version such as "
            "1.2.0, 1.2rc1, 1.2.post1 or 1.2+cu13 (PEP 440); change bundle.version in the manifest"
        )
    if len(catalog.hosts) != 1:
        raise BundleError(
            f"bundle {catalog.name!r} has libraries for {', '.join(catalog.hosts) or 'no host'}, a wheel is "
            "for one host: build a bundle for each"
        )
    if not _GLIBC.fullmatch(catalog.needs.glibc):
        raise BundleError(
            f"bundle {catalog.name!r} was linked for glibc {catalog.needs.glibc!r}; expected a version "
            "such as 2.28: build it again"
        )
    # Names are compared in this form. Source: names and normalization specification (PEP 503).
    distribution = "cutlass-aot-bundle-" + re.sub(r"[-_.]+", "-", catalog.name)
    package = distribution.replace("-", "_")
    platform = f"manylinux_{catalog.needs.glibc.replace('.', '_')}_{catalog.hosts[0]}"
    tag = f"py3-none-{platform}"
    return WheelNames(
        distribution=distribution,
        package=package,
        dist_info=f"{package}-{catalog.version}.dist-info",
        tag=tag,
        file_name=f"{package}-{catalog.version}-{tag}.whl",
    )


def package_init(catalog: Catalog) -> bytes:
    """The package's only module: a docstring."""
    summary = f"Kernels of the cutlass-aot bundle {catalog.name}; see cutlass_aot.open_installed."
    return f'"""{summary}"""\n'.encode()


def entry_points(catalog: Catalog, names: WheelNames) -> bytes:
    """The file by which ``open_installed`` finds the bundle."""
    return f"[{ENTRY_POINT_GROUP}]\n{catalog.name} = {names.package}\n".encode()


def build_wheel(bundle: Path, output: Path) -> Path:
    """Pack a bundle as a wheel. Equal bundles and ``SOURCE_DATE_EPOCH`` give equal bytes.

    Args:
        bundle: the bundle's directory; it is verified first. Its signatures go along.
        output: directory for the wheel, made if it is not there.

    Returns:
        The wheel's path; a wheel of that name is replaced.

    Raises:
        BundleError: if the bundle is not sound, cannot be a wheel, or the disk refuses.
        SignatureError: if it is signed, and the package ``cryptography`` is not there.
    """
    problems = verify_bundle(bundle)
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise BundleError(
            f"{bundle} is not sound: {problems[0]}{more}; see `cutlass-aot verify`, and build it again"
        )
    catalog = read_catalog(bundle)
    names = wheel_names(catalog)
    date = _date(os.environ.get("SOURCE_DATE_EPOCH"))
    temporary: Path | None = None
    try:
        output.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".wheel-", dir=output)
        temporary = Path(name)
        with os.fdopen(descriptor, "w+b") as file:
            _write(file, bundle, catalog, names, date)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        temporary.replace(output / names.file_name)
    except OSError as error:
        raise BundleError(
            f"cannot write {output / names.file_name}: {error.strerror or error}; "
            "make room, or name another output"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return output / names.file_name


def _write(file: io.BufferedRandom, bundle: Path, catalog: Catalog, names: WheelNames, date: _Date) -> None:
    manifest = read_bounded(bundle, MANIFEST_NAME, MAX_MANIFEST_BYTES)
    references = parse_manifest(manifest, str(bundle / MANIFEST_NAME))
    folder = f"{names.package}/{BUNDLE_FOLDER}"
    licenses = [path for path in references if path.startswith("licenses/")]
    rows: list[tuple[str, str, int | str]] = []
    with zipfile.ZipFile(file, "w") as archive:

        def add(path: str, data: bytes) -> None:
            info = zipfile.ZipInfo(path, date)
            info.create_system = 3  # Unix, so that the mode counts
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, _COMPRESSION_LEVEL)
            rows.append((path, record_digest(hashlib.sha256(data).digest()), len(data)))

        add(f"{names.package}/__init__.py", package_init(catalog))
        add(f"{folder}/{MANIFEST_NAME}", manifest)
        for path, reference in sorted(references.items()):
            # Held against its digest once more: the bundle may have changed since it was verified.
            add(f"{folder}/{path}", read_file(bundle, reference))
        for signature in _signatures(bundle, manifest):
            add(f"{folder}/{signature.path}", signature.to_bytes())
        metadata = {
            "METADATA": _metadata(catalog, names, licenses),
            "WHEEL": _wheel(names),
            "entry_points.txt": entry_points(catalog, names),
            **{path: read_file(bundle, references[path]) for path in licenses},
        }
        for path, data in sorted(metadata.items()):
            add(f"{names.dist_info}/{path}", data)
        record = f"{names.dist_info}/RECORD"
        add(record, record_to_text([*rows, (record, "", "")]).encode())


def _signatures(bundle: Path, manifest: bytes) -> Iterator[Signature]:
    """A bundle's signatures, each held against the manifest that is packed."""
    for item in examine(bundle, manifest):
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


def _metadata(catalog: Catalog, names: WheelNames, licenses: list[str]) -> bytes:
    count = sum(group.count for group in catalog.groups)
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {names.distribution}",
        f"Version: {catalog.version}",
        f"Summary: cutlass-aot bundle {catalog.name}: {count} kernels for {' '.join(catalog.targets)}",
        # No License-Expression: whose kernels these are, the manifest does not say. The texts are here.
        *(f"License-File: {path.removeprefix('licenses/')}" for path in licenses),
        "Requires-Python: >=3.10",
        f"Requires-Dist: cutlass-aot{_same_minor(__version__, from_minor=True)}",
        f"Requires-Dist: apache-tvm-ffi{_same_minor(catalog.needs.tvm_ffi)}",
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _wheel(names: WheelNames) -> bytes:
    return (
        f"Wheel-Version: 1.0\nGenerator: cutlass-aot {__version__}\n"
        f"Root-Is-Purelib: false\nTag: {names.tag}\n"
    ).encode()


def _same_minor(version: str, *, from_minor: bool = False) -> str:
    """Version specifier for what shares the minor version, from its beginning or from ``version`` on."""
    if not _VERSION.fullmatch(version):
        raise BundleError(f"{version!r} is not a version: expected one such as 0.1.15; build again")
    major, minor = major_minor(version)
    # A local version cannot be compared with. Source: PEP 440, "Inclusive ordered comparison".
    first = f"{major}.{minor}" if from_minor else version.split("+")[0]
    return f">={first},<{major}.{minor + 1}"


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
