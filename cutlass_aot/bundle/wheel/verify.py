"""Verify a wheel: its zip, its RECORD, the bundle in it, and every file around the bundle."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cutlass_aot.bundle.files import LICENSES, read_licenses
from cutlass_aot.bundle.sbom import BILL_FOLDER, BILL_NAME, bill_of_wheel
from cutlass_aot.bundle.verify.directory import Findings, Problem, look_at_bundle
from cutlass_aot.bundle.verify.verified import VerifiedBundle
from cutlass_aot.bundle.wheel.catalog import ZIP_ERRORS, check_directory
from cutlass_aot.bundle.wheel.metadata import (
    LICENSES_NAME,
    WheelNames,
    entry_points,
    licenses_text,
    metadata,
    package_init,
    release_of,
    wheel_file,
    wheel_names,
)
from cutlass_aot.bundle.wheel.write import BUNDLE_FOLDER
from cutlass_aot.bundle.wheel.zip_reader import (
    digest_of,
    entry_problems,
    layout_problems,
    record_problems,
    text_of,
)
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError
from cutlass_aot.runtime.files.signatures import PublicKey
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME, Catalog

_SHOWN = 200  # characters of a line that differs from the expected one
_MUCH = 1 << 16  # characters that a text has beyond the expected one, so that it is not looked at by line


def look_at_wheel(wheel: Path, keys: Sequence[PublicKey] = ()) -> Findings:
    """Verify a bundle's wheel; ``keys`` and errors are those of :func:`.look_at_bundle`.

    Names and sizes are checked before anything is unpacked, into a private temporary directory. Then RECORD
    is checked, and the bundle verified; the files around it must be what
    :func:`~cutlass_aot.bundle.wheel.write.build_wheels` writes.
    """
    try:
        with wheel.open("rb") as file, temporary_folder() as folder:
            try:
                check_directory(file, wheel)
                archive = zipfile.ZipFile(file)
            except (CorruptFile, *ZIP_ERRORS) as error:
                return Findings([Problem(wheel.name, f"no readable zip file ({error})", "a wheel")])
            with archive:
                findings = Findings()
                findings.add(entry_problems(archive, os.fstat(file.fileno()).st_size))
                if not findings.problems:
                    findings.add(layout_problems(archive, file))
                if not findings.problems:
                    findings.add(_contents(archive, wheel.name, folder, keys, findings))
                return findings
    except OSError as error:
        # From a seek to an impossible offset that the archive names.
        if error.errno == errno.EINVAL:
            return Findings([Problem(wheel.name, "a zip index that points outside the file", "a wheel")])
        raise BundleError(
            f"cannot verify {wheel}: {error.filename or wheel}: {error.strerror or error}"
        ) from error


def _contents(
    archive: zipfile.ZipFile, file_name: str, folder: Path, keys: Sequence[PublicKey], findings: Findings
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
            digests[name] = digest_of(archive, name, folder / within if within else None)
        except ZIP_ERRORS as error:
            yield Problem(name, f"unreadable data ({error})", "a file as the zip's index says")
    yield from record_problems(archive, records[0], sizes, digests)
    inside = look_at_bundle(folder, keys)
    findings.signers += inside.signers
    findings.warnings += inside.warnings
    findings.unsigned = inside.unsigned
    findings.more += inside.more
    findings.bundle = inside.bundle
    for problem in inside.problems:
        yield Problem(f"{root}{problem.path}", problem.found, problem.expected)
    if inside.bundle is None:
        return
    try:
        names = wheel_names(inside.bundle.catalog)
    except CutlassAotError as error:
        yield Problem(f"{root}{CATALOG_NAME}", str(error), "a bundle that can be a wheel")
        return
    about = _from_bundle(inside.bundle, names)
    yield from _surroundings(archive, file_name, inside.bundle.catalog, names, set(sizes), about)


def _from_bundle(bundle: VerifiedBundle, names: WheelNames) -> dict[str, str]:
    """Texts of the wheel's metadata that follow from files of the bundle: bill of materials and licences."""
    try:
        licenses = read_licenses(bundle.directory, bundle.references)
    except CutlassAotError:
        # Reported as a problem of the bundle already.
        return {}
    found: dict[str, str] = {}
    if licenses:
        text = licenses_text(licenses).decode("utf-8", "replace")
        found[f"{names.dist_info}/{LICENSES}/{LICENSES_NAME}"] = text
    bill = bundle.references.get(f"{BILL_FOLDER}/{BILL_NAME}")
    if bill is not None:
        where = f"../../{names.package}/{BUNDLE_FOLDER}/{bill.path}"
        made = bill_of_wheel(
            bundle.catalog, names.distribution, where, bill.sha256, bundle.requests, licenses
        )
        found[f"{names.dist_info}/sboms/{BILL_NAME}"] = made.decode()
    return found


def _surroundings(
    archive: zipfile.ZipFile,
    file_name: str,
    catalog: Catalog,
    names: WheelNames,
    files: set[str],
    about: Mapping[str, str],
) -> Iterator[Problem]:
    """Check the files around the bundle, because an install runs or trusts them.

    They follow from the bundle, to the byte, except for the release of this package that packed it. Without
    this check, somebody who has no key could add any file to the wheel of a signed bundle.
    """
    if file_name != names.file_name:
        yield Problem(file_name, "this file name", f"{names.file_name}, as the catalog says")
    package, dist_info = f"{names.package}/", f"{names.dist_info}/"
    wheel = ""
    with contextlib.suppress(CorruptFile):
        # If it cannot be read, that is reported below.
        wheel = text_of(archive, f"{dist_info}WHEEL")
    release = release_of(wheel)
    licensed = f"{dist_info}{LICENSES}/{LICENSES_NAME}" in about
    try:
        described = metadata(catalog, names, licensed, release)
    except (CutlassAotError, ValueError) as error:
        yield Problem(f"{package}{BUNDLE_FOLDER}/{CATALOG_NAME}", str(error), "a bundle that can be a wheel")
        return
    exact = {
        f"{package}__init__.py": package_init(catalog).decode(),
        f"{dist_info}METADATA": described.decode(),
        f"{dist_info}WHEEL": wheel_file(names, release).decode(),
        f"{dist_info}entry_points.txt": entry_points(catalog, names).decode(),
        **about,
    }
    for path, expected in sorted(exact.items()):
        try:
            text = text_of(archive, path)
        except CorruptFile as error:
            yield Problem(path, str(error), "a file that every bundle's wheel has")
            continue
        yield from _differences(path, text, expected)
    for path in sorted(files - {*exact, f"{dist_info}RECORD"}):
        if not path.startswith(f"{package}{BUNDLE_FOLDER}/"):
            yield Problem(path, "a file that is not part of a bundle's wheel", "no such file")


def _differences(path: str, text: str, expected: str) -> Iterator[Problem]:
    """The first line in which a text differs from the expected one, if there is one."""
    if text == expected:
        return
    if len(text) > len(expected) + _MUCH:
        yield Problem(path, f"{len(text)} characters", f"{len(expected)}, as the bundle says")
        return
    lines = itertools.zip_longest(text.split("\n"), expected.split("\n"))
    number, pair = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
    there, right = ("the end" if line is None else repr(line[:_SHOWN]) for line in pair)
    yield Problem(path, f"{there} in line {number}", right)
