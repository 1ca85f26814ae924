"""Reading a bundle: bad files give the right error, and nothing outside the bundle is read."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import cutlass_aot
from cutlass_aot.bundle.verify.directory import verify_bundle
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError, SchemaTooNew
from cutlass_aot.runtime.files.verified_read import open_beneath, read_bounded, read_manifest
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_KIND,
    CATALOG_NAME,
    MANIFEST_NAME,
    MAX_INDEX_BYTES,
    SCHEMA,
    FileReference,
    Groups,
    RankingReference,
)
from cutlass_aot.schema.bundles.group_index import GROUP_KIND
from cutlass_aot.schema.encoding import digest, seal
from tests.support.bundles import HOST, designs, write_bundle
from tests.support.replace import replace
from tests.support.unreadable import unreadable


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle", [*designs(), *designs(dtypes=("bf16",) * 3)])


def rewrite(root: Path, change: Callable[[dict], None]) -> None:
    path = root / MANIFEST_NAME
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def relist(root: Path, path: str, data: bytes) -> None:
    (root / path).write_bytes(data)
    rewrite(root, lambda body: body["files"].update({path: {"sha256": digest(data), "size": len(data)}}))


def child(root: Path) -> Path:
    return sorted((root / "groups").iterdir())[0]


def test_open_reads_the_index_alone(bundle: Path) -> None:
    for path in [*bundle.glob("groups/*"), *bundle.glob("lib/*/*")]:
        path.unlink()
    opened = cutlass_aot.open(bundle)
    assert [group.kernel_count for group in opened.groups] == [3, 3]
    with pytest.raises(BundleError, match=r"groups/.*is missing: the bundle is incomplete"):
        opened.kernels()


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such directory"):
        cutlass_aot.open(tmp_path / "none")


def test_a_file_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"PK")
    with pytest.raises(BundleError, match=r"not a directory.*open_installed"):
        cutlass_aot.open(tmp_path / "x.whl")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 300, "cannot be read: File name too long"),
        ("a\0b", r"a\\x00b' cannot be the path of a file: embedded null"),
        ("\ud800", r"\\ud800' cannot be the path of a file: 'utf-8' codec"),
    ],
)
def test_what_can_be_no_path_is_no_bundle(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        cutlass_aot.open(tmp_path / name)


def test_a_directory_that_must_not_be_looked_into(tmp_path: Path) -> None:
    with unreadable(tmp_path) as folder:
        for path in (folder, folder / "bundle"):
            with pytest.raises(BundleError, match=r"unreadable\S* cannot be read: Permission denied"):
                cutlass_aot.open(path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_for_want_of_a_descriptor_the_limit_is_named(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*arguments: object, **named: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(BundleError, match=r"[Tt]oo many open files.*: raise the limit \(ulimit -n"):
        cutlass_aot.open(bundle)


def test_a_directory_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"has no MANIFEST\.json"):
        cutlass_aot.open(tmp_path)


@pytest.mark.parametrize("name", [MANIFEST_NAME, CATALOG_NAME])
def test_truncated(bundle: Path, name: str) -> None:
    data = (bundle / name).read_bytes()
    for length in (0, 1, len(data) // 2, len(data) - 1):
        (bundle / name).write_bytes(data[:length])
        with pytest.raises(CorruptFile, match=f"{name}.*(truncated|again)"):
            cutlass_aot.open(bundle)


def test_any_flipped_bit_of_the_index_is_noticed(bundle: Path) -> None:
    data = (bundle / CATALOG_NAME).read_bytes()
    chance = random.Random(1)
    for _ in range(50):
        position = chance.randrange(len(data))
        changed = bytearray(data)
        changed[position] ^= 1 << chance.randrange(8)
        (bundle / CATALOG_NAME).write_bytes(changed)
        with pytest.raises(CorruptFile, match="altered"):
            cutlass_aot.open(bundle)


def test_a_flipped_bit_of_the_manifest_never_changes_what_is_opened(bundle: Path) -> None:
    data = (bundle / MANIFEST_NAME).read_bytes()
    catalog = (bundle / CATALOG_NAME).read_bytes()
    chance = random.Random(2)
    for _ in range(100):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (bundle / MANIFEST_NAME).write_bytes(changed)
        try:
            opened = cutlass_aot.open(bundle)
        except (CorruptFile, SchemaTooNew):
            continue
        # What is left are the entries of other files: the catalog has their digests, too.
        assert opened.catalog.to_bytes() == catalog
        assert len(opened.kernels()) == 6
        assert verify_bundle(bundle)


def test_a_child_that_was_altered(bundle: Path) -> None:
    path = child(bundle)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match=rf"{path.name} has SHA-256 .* altered"):
        cutlass_aot.open(bundle).kernels()


def test_a_child_that_grew(bundle: Path) -> None:
    path = child(bundle)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CorruptFile, match="is larger than"):
        cutlass_aot.open(bundle).kernels()


@pytest.mark.parametrize("body", [b"[]", b'{"kind": "something else"}', b"\xff\xfe", b"[" * 100_000, b"{}"])
def test_a_foreign_manifest(bundle: Path, body: bytes) -> None:
    (bundle / MANIFEST_NAME).write_bytes(body)
    with pytest.raises(CorruptFile, match=r"MANIFEST\.json"):
        cutlass_aot.open(bundle)


def test_a_foreign_catalog(bundle: Path) -> None:
    relist(bundle, CATALOG_NAME, seal(GROUP_KIND, SCHEMA, {}))
    with pytest.raises(CorruptFile, match=rf"is not a '{CATALOG_KIND}' file"):
        cutlass_aot.open(bundle)


def test_a_newer_manifest(bundle: Path) -> None:
    rewrite(bundle, lambda body: body.update(schema=SCHEMA + 1))
    with pytest.raises(SchemaTooNew, match=f"schema version {SCHEMA + 1}, .* reads up to {SCHEMA}: upgrade"):
        cutlass_aot.open(bundle)


def test_a_newer_catalog(bundle: Path) -> None:
    relist(bundle, CATALOG_NAME, seal(CATALOG_KIND, SCHEMA + 1, {}))
    with pytest.raises(SchemaTooNew, match=f"schema version {SCHEMA + 1}"):
        cutlass_aot.open(bundle)


def test_an_older_catalog_is_refused_with_what_to_do(bundle: Path) -> None:
    relist(bundle, CATALOG_NAME, seal(CATALOG_KIND, 1, {}))
    with pytest.raises(
        CorruptFile,
        match=r"catalog\.msgpack has schema version 1, which this cutlass-aot no longer reads: "
        f"build it again, with version {SCHEMA}",
    ):
        cutlass_aot.open(bundle)


def test_an_older_bundle_is_refused_with_what_to_do(bundle: Path) -> None:
    # As a release with schema 1 wrote it: manifest and catalog.
    relist(bundle, CATALOG_NAME, seal(CATALOG_KIND, 1, {"groups": []}))
    rewrite(bundle, lambda body: body.update(schema=1))
    with pytest.raises(CorruptFile, match="no longer reads: build it again"):
        cutlass_aot.open(bundle)


@pytest.mark.parametrize("schema", [0, True, "1", None, 1.0])
def test_a_schema_version_that_is_none(bundle: Path, schema: object) -> None:
    rewrite(bundle, lambda body: body.update(schema=schema))
    with pytest.raises(CorruptFile, match="no valid schema version"):
        cutlass_aot.open(bundle)


@pytest.mark.parametrize(
    "entry",
    [None, {}, {"size": -1, "sha256": "0" * 64}, {"size": 1, "sha256": "0"},
     {"size": True, "sha256": "0" * 64}, {"size": 1 << 40, "sha256": "0" * 64},
     {"size": 1, "sha256": "G" * 64}],
)  # fmt: skip
def test_an_entry_without_a_valid_size_and_digest(bundle: Path, entry: object) -> None:
    rewrite(bundle, lambda body: body["files"].update({"x": entry}))
    with pytest.raises(CorruptFile, match="'x' has no valid size and SHA-256"):
        read_manifest(bundle)
    rewrite(bundle, lambda body: body["files"].update({CATALOG_NAME: entry}))
    with pytest.raises(CorruptFile, match=f"'{CATALOG_NAME}' has no valid size and SHA-256"):
        cutlass_aot.open(bundle)


def test_a_catalog_that_is_larger_than_any_index(bundle: Path) -> None:
    size = MAX_INDEX_BYTES + 1
    rewrite(bundle, lambda body: body["files"][CATALOG_NAME].update(size=size))
    with pytest.raises(CorruptFile, match=rf"catalog\.msgpack: impossible size {size}"):
        cutlass_aot.open(bundle)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a\\b", "a\0b", ""])
def test_a_path_that_leads_out(bundle: Path, path: str) -> None:
    catalog = cutlass_aot.open(bundle).catalog
    rewrite(bundle, lambda body: body["files"].update({path: {"size": 0, "sha256": digest(b"")}}))
    with pytest.raises(CorruptFile, match="leads out of the bundle"):
        read_manifest(bundle)
    with pytest.raises(CorruptFile, match="leads out of the bundle"):
        open_beneath(bundle, path)
    # Nor in the catalog, which alone says what is read after opening.
    outside = FileReference(path, 0, digest(b""))
    for wrong in (
        replace(catalog, launchers={HOST: outside}),
        replace(catalog, groups=Groups.of([replace(catalog.groups[0], child=outside)])),
        replace(catalog, groups=Groups.of([replace(catalog.groups[0], libraries={HOST: (outside,)})])),
        replace(catalog, groups=Groups.of([replace(catalog.groups[0], code=outside)])),
        replace(
            catalog,
            groups=Groups.of(
                [replace(catalog.groups[0], rankings=(RankingReference("NVIDIA H200", True, outside),))]
            ),
        ),
    ):
        relist(bundle, CATALOG_NAME, wrong.to_bytes())
        with pytest.raises(CorruptFile, match="leads out of the bundle"):
            cutlass_aot.open(bundle).kernels()


@pytest.mark.parametrize("change", [{"size": 1}, {"sha256": "0" * 64}])
def test_opening_holds_files_against_the_catalog_and_verify_against_both(
    bundle: Path, change: dict[str, object]
) -> None:
    name = f"groups/{child(bundle).name}"
    rewrite(bundle, lambda body: body["files"][name].update(change))
    assert len(cutlass_aot.open(bundle).kernels()) == 6
    assert any("another size or digest" in problem.found for problem in verify_bundle(bundle))


def test_a_manifest_without_a_catalog(bundle: Path) -> None:
    rewrite(bundle, lambda body: body["files"].pop(CATALOG_NAME))
    with pytest.raises(CorruptFile, match="does not list catalog"):
        cutlass_aot.open(bundle)


def test_a_file_that_is_a_link_is_not_read(bundle: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (bundle / CATALOG_NAME).rename(outside)
    (bundle / CATALOG_NAME).symlink_to(outside)
    with pytest.raises(CorruptFile, match="symbolic link"):
        cutlass_aot.open(bundle)


def test_a_folder_that_is_a_link_is_not_entered(bundle: Path, tmp_path: Path) -> None:
    (bundle / "groups").rename(tmp_path / "groups")
    (bundle / "groups").symlink_to(tmp_path / "groups")
    with pytest.raises(CorruptFile, match="symbolic link"):
        cutlass_aot.open(bundle).kernels()


def test_the_bundle_itself_may_be_reached_through_a_link(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(bundle)
    assert len(cutlass_aot.open(tmp_path / "current").kernels()) == 6


def test_a_fifo_is_refused_at_once(bundle: Path) -> None:
    (bundle / CATALOG_NAME).unlink()
    os.mkfifo(bundle / CATALOG_NAME)
    with pytest.raises(CorruptFile, match="not a regular file"):
        cutlass_aot.open(bundle)


def test_reading_is_bounded(bundle: Path) -> None:
    (bundle / "large").write_bytes(b"x" * 1000)
    assert len(read_bounded(bundle, "large", 1000)) == 1000
    with pytest.raises(CorruptFile, match="larger than the 999 bytes"):
        read_bounded(bundle, "large", 999)


def test_no_descriptor_is_left_open(bundle: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for _ in range(5):
        read_manifest(bundle)
        for path in ("none", "groups/none", "groups/none/none", "groups"):
            with pytest.raises(CutlassAotError):
                read_bounded(bundle, path, 10)
    assert count() == before
