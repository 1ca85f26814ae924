"""One flipped byte of any file, in a signed bundle and in its wheel, is found by ``verify``.

What a process does about it when it loads such a bundle is in ``test_trust.py``.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutlass_aot.bundle.replace import TOP_LEVEL
from cutlass_aot.bundle.verify.directory import Findings
from cutlass_aot.bundle.verify.path import look_at
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.runtime.files.signatures import read_public_keys
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from tests.support.flips import files_of, flipped, positions
from tests.support.replace import replace
from tests.support.signing import Key, make_key
from tests.support.synthetic import plan, request_group
from tests.support.verifying import verify_path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return make_key(tmp_path_factory.mktemp("keys"), 1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    folder = tmp_path_factory.mktemp("tampering")
    made = plan(folder / "linked")
    made = replace(made, groups=(*made.groups, request_group(folder / "linked")))
    write_bundle(made, folder / "small")
    key.sign(folder / "small")
    return folder / "small"


@pytest.fixture(scope="module")
def wheel(bundle: Path) -> Path:
    (wheel,) = build_wheels(bundle, bundle.parent / "wheels")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def test_every_kind_of_file_is_there_and_all_are_good(bundle: Path, wheel: Path, key: Key) -> None:
    keys = read_public_keys([key.public])
    assert {path.partition("/")[0] for path in files_of(bundle)} == TOP_LEVEL
    for path in (bundle, wheel):
        assert look_at(path, keys) == Findings([], [key.id])


def test_a_flipped_byte_of_every_file_of_a_bundle_is_found(bundle: Path, key: Key) -> None:
    keys = read_public_keys([key.public])
    for path in files_of(bundle):
        good = (bundle / path).read_bytes()
        try:
            for position in positions(len(good)):
                (bundle / path).write_bytes(flipped(good, position, position % 8))
                findings = look_at(bundle, keys)
                assert findings.problems, (path, position)
                if path == MANIFEST_NAME or path.startswith("signatures/"):
                    assert findings.signers == []
                else:
                    assert path in {problem.path for problem in findings.problems}
        finally:
            (bundle / path).write_bytes(good)


def test_every_byte_of_a_signature_counts(bundle: Path, key: Key) -> None:
    path = bundle / "signatures" / f"{key.id}.json"
    good = path.read_bytes()
    try:
        for position in range(len(good)):
            path.write_bytes(flipped(good, position, position % 8))
            findings = look_at(bundle)
            assert findings.signers == [], position
            assert [problem.path for problem in findings.problems] == [f"signatures/{key.id}.json"]
    finally:
        path.write_bytes(good)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_of_the_archive_is_found_or_changes_no_file(
    wheel: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """A zip file has bytes that mean nothing to who unpacks it, such as dates."""
    good = wheel.read_bytes()
    at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    bad = tmp_path / wheel.name
    bad.write_bytes(flipped(good, at, bit))
    if not verify_path(bad):
        assert contents(bad) == contents(wheel)


def test_a_byte_of_a_wheel_with_all_its_checksums_made_to_fit_breaks_the_signature(
    wheel: Path, tmp_path: Path, key: Key
) -> None:
    """Whoever can rewrite everything but has no key: the manifest in turn is what was signed."""
    from tests.unit.bundle.test_wheel import rewritten as made_to_fit

    files = contents(wheel)
    (record,) = (path for path in files if path.endswith("/RECORD"))
    (manifest,) = (path for path in files if path.endswith(f"/{MANIFEST_NAME}"))
    for position in positions(len(files[manifest])):
        changed = {**files, manifest: flipped(files[manifest], position, 0)}
        findings = look_at(made_to_fit(tmp_path / "wheel", changed, record), read_public_keys([key.public]))
        assert findings.signers == []
        assert any(problem.path.startswith(f"{manifest.partition('/')[0]}/") for problem in findings.problems)


RANGE = re.compile(rb"(?<=Requires-Dist: cutlass-aot)>=.*(?=\n)")
GENERATOR = re.compile(rb"(?<=Generator: cutlass-aot ).*(?=\n)")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("METADATA", rb"(?=Requires-Dist: )", b"Requires-Dist: evil-package\n"),
        ("METADATA", rb"(?=Requires-Dist: )", b"Requires-Dist: cutlass-aot-bundle-small\n"),
        ("METADATA", rb"Requires-Dist: apache-tvm-ffi.*\n", b""),
        ("METADATA", rb"(?<=apache-tvm-ffi)>=.*(?=\n)", b">=0.0.1"),
        ("METADATA", RANGE.pattern, b">=0.0,<0.1"),
        ("METADATA", RANGE.pattern, b""),
        ("METADATA", RANGE.pattern, b" @ https://example.org/x.whl"),
        ("METADATA", rb"(?=Requires-Python)", b"Provides-Extra: x\n"),
        ("METADATA", rb"(?=Requires-Python)", b"Home-page: https://example.org\n"),
        ("METADATA", rb"(?<=Requires-Python: >=3.10)", b" "),
        ("METADATA", rb"(?<=Summary: )", b"better "),
        ("METADATA", rb"\Z", b"More of it at https://example.org\n"),
        ("METADATA", rb"\Z", b"\n"),
        ("METADATA", rb"\n", b"\r\n"),
        ("WHEEL", rb"\Z", b"Build: 1\n"),
        ("WHEEL", rb"\Z", b"Tag: py3-none-any\n"),
        ("WHEEL", rb"(?<=Root-Is-Purelib: )false", b"true"),
        ("WHEEL", rb"(?<=Wheel-Version: 1.)0", b"1"),
        ("WHEEL", GENERATOR.pattern, b"9.9.9"),
        ("WHEEL", GENERATOR.pattern, b"9" * 5000),
        ("WHEEL", rb"Generator: cutlass-aot", b"Generator: other"),
        ("WHEEL", rb"(?<=Generator: cutlass-aot )", b"v"),
        ("entry_points.txt", rb"\Z", b"\n[console_scripts]\nx = os:system\n"),
        ("entry_points.txt", rb"(?<=small = )", b"evil_"),
        ("licenses/LICENSES.txt", rb"\Z", b"\n"),
        ("sboms/bundle.cdx.json", rb"\Z", b"\n"),
    ],
)
def test_what_stands_around_a_signed_bundle_is_what_follows_from_it(
    wheel: Path, tmp_path: Path, key: Key, name: str, old: bytes, new: bytes
) -> None:
    """An installer goes by it, and no signature has it: RECORD, made to fit, does not help."""
    from tests.unit.bundle.test_wheel import rewritten as made_to_fit

    files = contents(wheel)
    (record,) = (path for path in files if path.endswith("/RECORD"))
    path = f"{record.removesuffix('/RECORD')}/{name}"
    changed = re.sub(old, lambda _: new, files[path])
    assert changed != files[path]
    altered = made_to_fit(tmp_path / "wheel", {**files, path: changed}, record)
    findings = look_at(altered, read_public_keys([key.public]))
    # Whose release is another, METADATA has to be that release's too.
    allowed = {path, path.replace("WHEEL", "METADATA")}
    assert findings.problems
    assert {problem.path for problem in findings.problems} <= allowed


@pytest.mark.parametrize("release", [b"0.1.7", b"2.13rc1", b"1.0+local"])
def test_another_release_of_this_package_may_have_packed_a_wheel(
    wheel: Path, tmp_path: Path, key: Key, release: bytes
) -> None:
    from tests.unit.bundle.test_wheel import rewritten as made_to_fit

    files = contents(wheel)
    (record,) = (path for path in files if path.endswith("/RECORD"))
    major, minor = map(int, re.findall(rb"[0-9]+", release)[:2])
    share = b">=%d.%d,<%d.%d" % (major, minor, major, minor + 1)
    for name, pattern, text in (("METADATA", RANGE, share), ("WHEEL", GENERATOR, release)):
        path = f"{record.removesuffix('/RECORD')}/{name}"
        assert pattern.search(files[path])
        files[path] = pattern.sub(text, files[path])
    altered = made_to_fit(tmp_path / "wheel", files, record)
    assert look_at(altered, read_public_keys([key.public])) == Findings([], [key.id])
