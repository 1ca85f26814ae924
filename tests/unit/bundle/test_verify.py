"""Verification finds every kind of damage, all of it, and never trusts what it reads."""

from __future__ import annotations

import hashlib
import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutlass_aot.bundle import files as bundle_files
from cutlass_aot.bundle.files import manifest_to_bytes
from cutlass_aot.bundle.verify.directory import Findings, Problem, look_at_bundle, verify_bundle
from cutlass_aot.bundle.verify.path import CHECKERS, Checker
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.files import verified_read
from cutlass_aot.runtime.files.verified_read import read_catalog, read_manifest
from cutlass_aot.schema import compression
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_KIND,
    CATALOG_NAME,
    MANIFEST_NAME,
    SCHEMA,
    Catalog,
    FileReference,
    Groups,
)
from cutlass_aot.schema.bundles.group_index import GROUP_KIND, CodeSpan, group_from_bytes, group_to_bytes
from cutlass_aot.schema.bundles.tiling_table import TilingTable
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest, seal, unseal
from cutlass_aot.schema.kernels.artifact import LAUNCHER_SYMBOLS
from cutlass_aot.schema.kernels.tiling import Tiling
from cutlass_aot.schema.tuning.ranking import (
    RANKING_KIND,
    RANKING_SCHEMA,
    Extents,
    RankedProblem,
    RankedProblems,
)
from tests.support.kernels import gemm
from tests.support.replace import replace
from tests.support.synthetic import entry, exports, kernels, plan, ranking, shared_object
from tests.support.unreadable import unreadable
from tests.support.verifying import verify_path


@pytest.fixture
def bundle(tmp_path):
    write_bundle(plan(tmp_path / "linked"), tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    write_bundle(plan(folder / "linked"), folder / "small")
    return folder / "small"


def rewrite(bundle, path, data):
    """Replace a file so that every digest of it is right: only its meaning can be wrong."""
    (bundle / path).write_bytes(data)
    reference = FileReference(path, len(data), digest(data))

    def updated(old):
        return reference if old.path == path else old

    references = read_manifest(bundle)
    references[path] = reference
    if path != CATALOG_NAME:
        catalog = Catalog.from_bytes((bundle / CATALOG_NAME).read_bytes(), CATALOG_NAME)
        groups = [
            replace(
                group,
                child=updated(group.child),
                code=updated(group.code),
                libraries={host: tuple(map(updated, own)) for host, own in group.libraries.items()},
                rankings=tuple(item._replace(file=updated(item.file)) for item in group.rankings),
            )
            for group in catalog.groups
        ]
        launchers = {host: updated(library) for host, library in catalog.launchers.items()}
        parent = replace(catalog, launchers=launchers, groups=Groups.of(groups)).to_bytes()
        (bundle / CATALOG_NAME).write_bytes(parent)
        references[CATALOG_NAME] = FileReference(CATALOG_NAME, len(parent), digest(parent))
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))


def change_group(bundle, **changes):
    """Change what the catalog says of the group that has a ranking."""
    groups = read_catalog(bundle).groups
    (ranked,) = (group for group in groups if group.rankings)
    changed = replace(ranked, **{name: change(ranked) for name, change in changes.items()})
    change_catalog(bundle, groups=Groups.of([changed if group is ranked else group for group in groups]))


def change_catalog(bundle, **changes):
    catalog = replace(read_catalog(bundle), **changes)
    rewrite(bundle, CATALOG_NAME, catalog.to_bytes())


def files(bundle):
    return sorted(p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file())


def test_a_sound_bundle_has_no_problems(bundle):
    assert verify_bundle(bundle) == []
    assert verify_path(bundle) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_found_wherever_it_is(shared, data):
    path = data.draw(st.sampled_from(files(shared)))
    good = (shared / path).read_bytes()
    at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    bad = bytearray(good)
    bad[at] ^= 1 << bit
    (shared / path).write_bytes(bad)
    try:
        problems = verify_bundle(shared)
        assert problems
        if path != MANIFEST_NAME:
            assert path in {problem.path for problem in problems}
    finally:
        (shared / path).write_bytes(good)


def test_every_file_truncated_missing_or_replaced_by_a_link_is_found(bundle, tmp_path):
    for path in files(bundle):
        good = (bundle / path).read_bytes()
        for damage in ("truncated", "empty", "missing", "link", "fifo"):
            (bundle / path).unlink()
            if damage in ("truncated", "empty"):
                (bundle / path).write_bytes(good[:-1] if damage == "truncated" else b"")
            elif damage == "link":
                # The very bytes, but outside: a bundle that was copied would lose them.
                (tmp_path / "outside").write_bytes(good)
                (bundle / path).symlink_to(tmp_path / "outside")
            elif damage == "fifo":
                os.mkfifo(bundle / path)
            assert path in {problem.path for problem in verify_bundle(bundle)}, (path, damage)
            (bundle / path).unlink(missing_ok=True)
            (bundle / path).write_bytes(good)
    assert verify_bundle(bundle) == []


def test_extra_files_are_found(bundle):
    (bundle / "lib" / "x86_64" / "other.so").write_bytes(b"")
    (bundle / "README").write_text("x")
    assert [problem.path for problem in verify_bundle(bundle)] == ["README", "lib/x86_64/other.so"]


def test_a_name_that_is_no_text_is_found(bundle):
    (bundle / os.fsdecode(b"lib/\xff.so")).write_bytes(b"")
    (problem,) = verify_bundle(bundle)
    assert problem.path == "lib/\\xff.so"


def test_a_linked_folder_is_found(bundle, tmp_path):
    (bundle / "lib").rename(tmp_path / "elsewhere")
    (bundle / "lib").symlink_to(tmp_path / "elsewhere")
    assert Problem("lib", "a symbolic link", "a plain file") in verify_bundle(bundle)


def test_all_problems_are_listed(bundle):
    child, library = sorted((bundle / "groups").iterdir())[0], sorted((bundle / "lib/x86_64").iterdir())[1]
    child.write_bytes(child.read_bytes() + b"x")
    library.unlink()
    (bundle / "extra").write_text("x")
    found = {problem.path for problem in verify_bundle(bundle)}
    assert found == {f"groups/{child.name}", f"lib/x86_64/{library.name}", "extra"}


def test_a_manifest_in_another_form_is_found(bundle):
    path = bundle / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text())))
    (problem,) = verify_bundle(bundle)
    assert problem.expected == "its canonical form"


@pytest.mark.parametrize(
    "entry",
    [None, {}, {"size": -1, "sha256": "0" * 64}, {"size": 1, "sha256": "0"},
     {"size": True, "sha256": "0" * 64}, {"size": 1, "sha256": "G" * 64}],
)  # fmt: skip
def test_a_manifest_with_an_entry_without_a_valid_size_and_digest_is_found(bundle, entry):
    path = bundle / MANIFEST_NAME
    body = json.loads(path.read_text())
    body["files"]["x"] = entry
    path.write_text(json.dumps(body))
    (problem,) = verify_bundle(bundle)
    assert problem.path == MANIFEST_NAME
    assert "the entry of 'x' has no valid size and SHA-256" in problem.found


def test_an_index_of_an_older_release_is_found_with_what_to_do(bundle):
    path, _ = child_of(bundle)
    rewrite(bundle, path, seal(GROUP_KIND, 1, {}))
    problems = [problem for problem in verify_bundle(bundle) if problem.path == path]
    assert [problem.found for problem in problems] == [
        f"{path} has schema version 1, which this cutlass-aot no longer reads: "
        f"build it again, with version {SCHEMA}"
    ]


def test_tilings_of_other_kernels_are_found(bundle):
    path, entries = child_of(bundle)
    body = unseal((bundle / path).read_bytes(), GROUP_KIND, SCHEMA, "child")
    other = TilingTable.of([Tiling.of(entry.kernel)._replace(block_m=7) for entry in entries])
    rewrite(bundle, path, seal(GROUP_KIND, SCHEMA, {**body, "tilings": other.rows}))
    problems = [problem for problem in verify_bundle(bundle) if problem.path == path]
    assert [problem.found for problem in problems] == ["tilings that are not those of its kernels"]


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "lib/\ud800.so", "lib/a\nb.so"])
def test_a_manifest_with_an_unsafe_path_is_found(bundle, path):
    references = read_manifest(bundle)
    references[path] = FileReference(path, 1, "0" * 64)
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))
    problems = verify_bundle(bundle)
    assert problems
    assert all(problem.path.isprintable() for problem in problems)


def test_a_file_that_nothing_uses_is_found(bundle):
    references = read_manifest(bundle)
    (bundle / "lib/x86_64/orphan.so").write_bytes(b"x")
    references["lib/x86_64/orphan.so"] = FileReference("lib/x86_64/orphan.so", 1, digest(b"x"))
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))
    assert [problem.found for problem in verify_bundle(bundle)] == ["a file that the catalog does not name"]


def child_of(bundle, index=0):
    group = read_catalog(bundle).groups[index]
    return group.child.path, list(group_from_bytes((bundle / group.child.path).read_bytes(), group, "child"))


def test_children_are_held_against_the_parent(bundle):
    path, entries = child_of(bundle)
    rewrite(bundle, path, group_to_bytes(tuple(entries[:-1])))
    found = [str(problem) for problem in verify_bundle(bundle)]
    assert any("found 2 kernels; expected 3" in text for text in found)
    # The library still shows the kernel that the child has lost.
    assert any("none beside those of its groups' kernels" in text for text in found)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtypes": ("f8e4m3",) * 3},
        {"accumulator": "f16"},
        {"target": "sm_100a"},
        {"epilogue": "relu"},
        {"operation": "conv"},
    ],
)
def test_a_kernel_of_another_group_is_found(bundle, changes):
    path, entries = child_of(bundle)
    foreign = gemm(**changes)
    rewrite(bundle, path, group_to_bytes((*entries[:-1], entry(foreign))))
    found = {(problem.path.partition(":")[0], problem.found) for problem in verify_bundle(bundle)}
    # Its record is made of what the parent says of the group: that gives another digest than its own.
    assert (path, f"digest {foreign.digest}") in found


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulator": "f16"},
        {"epilogue": "relu"},
        {"operation": "conv"},
        {"operands": tuple(replace(item, divisibility=1) for item in kernels()[0].operands)},
    ],
)
def test_a_group_that_the_parent_tells_wrongly_is_found(bundle, changes):
    change_group(bundle, **{name: lambda group, value=value: value for name, value in changes.items()})
    digests = {kernel.digest for kernel in kernels()}
    found = {problem.found for problem in verify_bundle(bundle)}
    assert {f"digest {digest}" for digest in digests} <= found


@pytest.mark.parametrize("field", ["design", "constants", "workspace_bytes", "generator"])
def test_a_row_that_is_not_what_its_digest_says_is_found(bundle, field):
    path, entries = child_of(bundle)
    changed = {
        "design": (("family", "G"), ("tile_shape", (1, 2, 3))),
        "constants": (("sm_count", 1),),
        "workspace_bytes": 7,
        "generator": "another",
    }
    # replace() would make a record with a digest of its own.
    wrong = replace(entries[0].kernel, **{field: changed[field]})
    object.__setattr__(wrong, "_digest", entries[0].kernel.digest)
    rewrite(bundle, path, group_to_bytes((entries[0]._replace(kernel=wrong), *entries[1:])))
    problem, *_ = verify_bundle(bundle)
    assert problem.path.startswith(f"{path}: ")
    assert problem.found == f"digest {entries[0].kernel.digest}"
    assert problem.expected.endswith(", its record's")
    assert "digest" not in problem.expected


def test_a_kernel_twice_is_found(bundle):
    path, entries = child_of(bundle)
    rewrite(bundle, path, group_to_bytes((*entries[:2], entries[0])))
    assert any(problem.found == "a kernel twice" for problem in verify_bundle(bundle))


@pytest.mark.parametrize(
    ("library", "says"),
    [
        ({"exported": [], "machine": 62}, "no symbol"),
        ({"machine": 183}, "a library for aarch64"),
        ({"extra": ["system"]}, "the symbol system"),
        ({"needed": ["libcutlass_dsl.so"]}, "a need for libcutlass_dsl.so"),
        ({"bytes": b"\x7fELF"}, "not a sound shared library"),
    ],
)
def test_libraries_are_held_against_the_kernels(bundle, library, says):
    group = read_catalog(bundle).groups[0]
    _, entries = child_of(bundle)
    symbols = exports([e.kernel for e in entries])
    data = library.get("bytes") or shared_object(
        [*library.get("exported", symbols), *library.get("extra", [])],
        machine=library.get("machine", 62),
        needed=library.get("needed", ["libc.so.6"]),
    )
    rewrite(bundle, group.libraries["x86_64"][0].path, compress(data, 3))
    (problem,) = verify_bundle(bundle)
    assert problem.path == group.libraries["x86_64"][0].path
    assert says in problem.found


@pytest.mark.parametrize(
    ("library", "says"),
    [
        ({"exported": LAUNCHER_SYMBOLS[1:]}, "no symbol __tvm_ffi_cutlass_aot_dispatch_cache"),
        ({"machine": 183}, "a library for aarch64"),
        ({"extra": ["__tvm_ffi_system"]}, "the symbol __tvm_ffi_system"),
        ({"needed": ["libcudart.so.13"]}, "a need for libcudart.so.13"),
        ({"bytes": b"\x7fELF"}, "not a sound shared library"),
    ],
)
def test_the_launcher_is_held_against_what_the_runtime_asks_of_it(bundle, library, says):
    data = library.get("bytes") or shared_object(
        [*library.get("exported", LAUNCHER_SYMBOLS), *library.get("extra", [])],
        machine=library.get("machine", 62),
        needed=library.get("needed", ["libc.so.6"]),
    )
    rewrite(bundle, "lib/x86_64/launcher.so.zst", compress(data, 3))
    (problem,) = verify_bundle(bundle)
    assert problem.path == "lib/x86_64/launcher.so.zst"
    assert says in problem.found


def test_a_library_of_kernels_is_no_launcher(bundle):
    library = read_catalog(bundle).groups[0].libraries["x86_64"][0]
    change_catalog(bundle, launchers={"x86_64": library})
    problems = {(problem.path, problem.found[:36]) for problem in verify_bundle(bundle)}
    assert (library.path, "no symbol __tvm_ffi_cutlass_aot_disp") in problems
    assert ("lib/x86_64/launcher.so.zst", "a file that the catalog does not nam") in problems


def ranking_path(bundle):
    (path,) = (bundle / "rankings").iterdir()
    return path.relative_to(bundle).as_posix()


def problem_with(*digests):
    times = tuple(1e-6 * (position + 1) for position in range(len(digests)))
    return RankedProblems([RankedProblem(Extents(1, 64, 64, 64), digests, times)])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"problems": problem_with("ab" * 32)}, f"kernels {'ab' * 32}"),
        ({"problems": problem_with(kernels(dtypes=("bf16",) * 3)[0].digest)}, "kernels "),
        ({"group": kernels(dtypes=("bf16",) * 3)[0].group}, "a ranking of group "),
        ({"gpu": "NVIDIA B200"}, "a ranking for NVIDIA B200, measured"),
        ({"measured": False, "problems": RankedProblems([])}, "a ranking for NVIDIA H200, modelled"),
    ],
)
def test_rankings_are_held_against_the_group_and_the_catalog(bundle, changed, says):
    rewrite(bundle, ranking_path(bundle), ranking(kernels(), **changed).to_bytes())
    (problem,) = verify_bundle(bundle)
    assert problem.path == ranking_path(bundle)
    assert problem.found.startswith(says)


@pytest.mark.parametrize("target", ["hopper", "sm_90x", ""])
def test_a_target_that_is_none_is_found_in_the_kernels_too(bundle, target):
    change_group(bundle, target=lambda group: target)
    problems = verify_bundle(bundle)
    assert any(problem.expected == "records of kernels that this release reads" for problem in problems)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def changed_somewhere(value, draw):
    """The value with one thing in it replaced by junk."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: changed_somewhere(value[key], draw)}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], changed_somewhere(value[at], draw), *value[at + 1 :]]
    return draw(JUNK)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_a_sealed_file_says_verification_answers(shared, data):
    """Digests are right, contents are anything: problems or none, never another error."""
    path, kind, schema = data.draw(
        st.sampled_from(
            [
                (CATALOG_NAME, CATALOG_KIND, SCHEMA),
                (child_of(shared, 1)[0], GROUP_KIND, SCHEMA),
                (ranking_path(shared), RANKING_KIND, RANKING_SCHEMA),
            ]
        )
    )
    before = {name: (shared / name).read_bytes() for name in (path, CATALOG_NAME, MANIFEST_NAME)}
    body = changed_somewhere(unseal(before[path], kind, schema, path), data.draw)
    try:
        rewrite(shared, path, seal(kind, schema, body))
        assert isinstance(verify_bundle(shared), list)
    finally:
        for name, content in before.items():
            (shared / name).write_bytes(content)
    assert verify_bundle(shared) == []


def test_a_ranking_that_the_catalog_tells_wrongly_is_found(bundle):
    change_group(bundle, rankings=lambda group: (group.rankings[0]._replace(gpu="NVIDIA B200"),))
    (problem,) = verify_bundle(bundle)
    assert problem.expected == "one for NVIDIA B200, measured, as the catalog says"


def test_a_file_that_is_no_ranking_is_found(bundle):
    path = ranking_path(bundle)
    rewrite(bundle, path, (bundle / read_catalog(bundle).groups[0].child.path).read_bytes())
    (problem,) = verify_bundle(bundle)
    assert problem.path == path
    assert "is not a 'cutlass-aot ranking' file" in problem.found


def test_a_ranking_that_no_group_names_is_found(bundle):
    path = ranking_path(bundle)
    change_group(bundle, rankings=lambda group: ())
    assert verify_bundle(bundle) == [Problem(path, "a file that the catalog does not name", "no such file")]


def test_a_group_that_is_kept_under_another_signature_is_found(bundle):
    catalog = read_catalog(bundle)
    records = dict(catalog.groups.records)
    (first, one), (second, other) = records.items()
    change_catalog(bundle, groups=Groups({first: other, second: one}, "catalog"))
    (problem,) = verify_bundle(bundle)
    assert problem.path == CATALOG_NAME
    assert f"keeps a group of {second} under '{first}'" in problem.found


@pytest.mark.parametrize("record", [b"", b"\x80", b"\xc1", b"\x93\x01\x02\x03"])
def test_a_group_of_the_catalog_that_is_malformed_is_found(bundle, record):
    records = {word: list(found) for word, found in read_catalog(bundle).groups.records.items()}
    next(iter(records.values()))[0] = record
    change_catalog(bundle, groups=Groups(records, "catalog"))
    (problem,) = verify_bundle(bundle)
    assert problem.path == CATALOG_NAME
    assert problem.expected == "a catalog that this release reads"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "Small/.."}, "'Small/..'"),
        ({"targets": ("sm_100a",)}, "target sm_90a"),
        ({"targets": ("sm_90a", "sm_90a\n")}, "'sm_90a\\n'"),
        ({"hosts": ("aarch64",)}, "libraries for x86_64"),
        ({"hosts": ("aarch64",)}, "launchers for x86_64"),
        ({"launchers": {}}, "launchers for none"),
        ({"groups": Groups.of(())}, "groups none"),
        ({"alignment": 8}, "alignment 8"),
        ({"alignment": 32}, "alignment 32"),
    ],
)
def test_a_parent_that_contradicts_itself_is_found(bundle, changes, says):
    change_catalog(bundle, **changes)
    assert any(says in problem.found for problem in verify_bundle(bundle))


def test_another_size_in_the_catalog_than_in_the_manifest_is_found(bundle):
    groups = read_catalog(bundle).groups
    wrong = replace(groups[0], child=groups[0].child._replace(size=groups[0].child.size + 1))
    change = replace(read_catalog(bundle), groups=Groups.of([wrong, *groups[1:]]))
    rewrite(bundle, CATALOG_NAME, change.to_bytes())
    assert any("another size or digest" in problem.found for problem in verify_bundle(bundle))


def test_a_child_that_is_no_index_is_found(bundle):
    path, _ = child_of(bundle)
    rewrite(bundle, path, b"\x80")
    assert any(problem.path == path for problem in verify_bundle(bundle))


def code_as_long_as(bundle, sizes):
    """The code of a group's kernels is zeros, of these sizes and one after the other."""
    path, entries = child_of(bundle)
    group = next(found for found in read_catalog(bundle).groups if found.child.path == path)
    offset, made = 0, []
    for found, size in zip(kernels_in_order(entries), sizes, strict=True):
        span = CodeSpan(offset, size, hashlib.sha256(bytes(size)).hexdigest())
        made.append(replace(found, code=span))
        offset += size
    rewrite(bundle, path, group_to_bytes(made))
    rewrite(bundle, group.code.path, compress(bytes(offset), 3))
    return group, made


def test_gpu_code_is_read_in_pieces(bundle, monkeypatch):
    import tracemalloc

    monkeypatch.setattr(compression, "MOST_SMALL", 1 << 30)
    code_as_long_as(bundle, [64 << 20, 64 << 20, 64 << 20])
    tracemalloc.start()
    try:
        assert {problem.path for problem in verify_bundle(bundle)} == {"sbom/bundle.cdx.json"}
        # One kernel's code, and its copy for the digest.
        assert tracemalloc.get_traced_memory()[1] < 160 << 20
    finally:
        tracemalloc.stop()


def test_code_that_no_kernel_has_is_not_unpacked(bundle):
    group, entries = child_of(bundle)
    group = next(found for found in read_catalog(bundle).groups if found.child.path == group)
    code = b"".join(f"GPU code of {e.kernel.digest}".encode() for e in kernels_in_order(entries))
    rewrite(bundle, group.code.path, compress(code + bytes(256 << 20), 3))
    (problem,) = verify_bundle(bundle)
    assert (problem.path, problem.found) == (group.code.path, f"it holds more than {len(code)} bytes")


def test_all_that_is_unpacked_is_bounded_by_the_sizes_of_the_files(bundle):
    """Though each file is one that a bundle may have."""
    group, _ = code_as_long_as(bundle, [8 << 20, 8 << 20, 8 << 20])
    found = {problem.path: problem.found for problem in verify_bundle(bundle)}
    assert re.fullmatch(
        r"it and what was unpacked before it hold more than \d+ bytes", found[group.code.path]
    )


def test_libraries_count_too(bundle):
    library = next(path for path in files(bundle) if path.endswith("launcher.so.zst"))
    rewrite(bundle, library, compress(bytes(60 << 20), 3))
    found = {problem.path: problem.found for problem in verify_bundle(bundle)}
    assert re.fullmatch(r"it holds more than \d+ bytes", found[library])


def test_kernels_that_share_parts_of_their_code_are_found(bundle):
    """Each of very many could have all of a large file, which would be hashed for each."""
    group, made = code_as_long_as(bundle, [1 << 20, 1 << 20, 1 << 20])
    shared = [replace(item, code=item.code._replace(offset=0)) for item in made]
    shared[1] = replace(shared[1], code=CodeSpan(0, 2 << 20, hashlib.sha256(bytes(2 << 20)).hexdigest()))
    rewrite(bundle, group.child.path, group_to_bytes(shared))
    rewrite(bundle, group.code.path, compress(bytes(2 << 20), 3))
    found = [problem.found for problem in verify_bundle(bundle) if problem.path.startswith("groups/")]
    assert [text for text in found if "begins in another's" in text]


def test_an_index_is_read_for_one_group_alone(bundle):
    """A catalog could name a large one thousands of times."""
    first, second = read_catalog(bundle).groups
    change_catalog(bundle, groups=Groups.of([first, replace(second, child=first.child)]))
    found = [problem for problem in verify_bundle(bundle) if problem.path == first.child.path]
    assert any(problem.expected == "one place for each index" for problem in found)


def test_problems_are_counted_beyond_those_that_are_kept(bundle, capsys):
    references = read_manifest(bundle)
    for number in range(1500):
        references[f"licenses/{number}"] = FileReference(f"licenses/{number}", 1, "0" * 64)
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))
    findings = look_at_bundle(bundle)
    assert (len(findings.problems), findings.more) == (1000, 500)
    with pytest.raises(SystemExit, match="1"):
        main(["verify", str(bundle)])
    out, err = capsys.readouterr()
    assert "and 500 more problems" in err
    assert "1500 problems" in out
    with pytest.raises(SystemExit, match="1"):
        main(["verify", str(bundle), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (len(told["problems"]), told["more_problems"]) == (1000, 500)


def test_a_problem_is_short(bundle):
    problem = Problem("a" * 10_000, "b" * 10_000, "c")
    assert len(str(problem)) < 5000


def test_a_file_that_is_too_large_is_not_read(bundle):
    """One of a terabyte, which takes no room on the disk."""
    library = next(path for path in files(bundle) if path.endswith("launcher.so.zst"))
    os.truncate(bundle / library, 1 << 40)
    (problem,) = verify_bundle(bundle)
    assert (problem.path, problem.found) == (library, f"{1 << 40} bytes")


def test_a_manifest_lists_no_more_files_than_a_bundle_has(bundle, monkeypatch):
    monkeypatch.setattr(verified_read, "MAX_FILES", 5)
    (problem,) = verify_bundle(bundle)
    assert re.search(r"lists \d+ files, a bundle has at most 5", problem.found)


def test_a_directory_with_very_many_files_is_no_bundle(bundle, monkeypatch):
    monkeypatch.setattr(bundle_files, "MAX_ENTRIES", 5)
    with pytest.raises(CorruptFile, match="holds more than 5 files"):
        verify_bundle(bundle)


@pytest.mark.parametrize(
    ("name", "most"), [("licenses/long.txt", 1 << 22), ("sbom/bundle.cdx.json", 1 << 20)]
)
def test_texts_have_a_size_that_fits_what_they_say(bundle, name, most):
    rewrite(bundle, name, b" " * (2 * most))
    found = {problem.path: str(problem) for problem in verify_bundle(bundle)}
    assert str(2 * most) in found[name]


def kernels_in_order(entries):
    """Entries as their code lies in the pack."""
    return sorted(entries, key=lambda found: found.code.offset)


@pytest.mark.parametrize("damage", ["altered", "short", "no frame", "two frames", "exchanged"])
def test_gpu_code_is_held_against_the_kernels(bundle, damage):
    path, entries = child_of(bundle)
    group = next(found for found in read_catalog(bundle).groups if found.child.path == path)
    code = b"".join(f"GPU code of {e.kernel.digest}".encode() for e in kernels_in_order(entries))
    first = entries[0].code.size
    data = {
        "altered": compress(code[:-1] + b"!", 3),
        "short": compress(code[:-1], 3),
        "no frame": code,
        "two frames": compress(code, 3) * 2,
        "exchanged": compress(code[first:] + code[:first], 3),
    }[damage]
    rewrite(bundle, group.code.path, data)
    problems = verify_bundle(bundle)
    assert problems
    where = group.code.path if "frame" in damage else path
    assert all(problem.path.startswith(where) for problem in problems)
    assert len(problems) == (len(entries) if damage == "exchanged" else 1)


def test_what_is_nothing_known_is_an_error_that_says_what_was_expected(tmp_path):
    (tmp_path / "foreign.zip").write_bytes(b"PK")
    for path, says in (
        (tmp_path / "absent", "nothing is there"),
        (tmp_path, "another directory"),
        (tmp_path / "foreign.zip", "another file"),
    ):
        with pytest.raises(BundleError, match=f"{says}; expected one of: bundle: .*; wheel: "):
            verify_path(path)


def test_what_cannot_be_looked_at_is_an_error_that_says_so(tmp_path, capsys):
    for path, says in (
        (tmp_path / ("n" * 300), "File name too long"),
        (tmp_path / "a\0b", "there can be no such path"),
    ):
        with pytest.raises(BundleError, match=f"{says}.*; expected one of: bundle: "):
            verify_path(path)
    with unreadable(tmp_path) as locked:
        for inner in (locked, locked / "sub", locked / "sub.whl"):
            with pytest.raises(BundleError, match=r"it cannot be read \(Permission denied\); expected"):
                verify_path(inner)
            for arguments in (["verify"], ["ls"], ["doctor"]):
                with pytest.raises(SystemExit) as caught:
                    main([*arguments, str(inner)])
                assert (caught.value.code, "Permission denied" in capsys.readouterr().err) == (1, True)


def test_another_checker_can_be_plugged_in(tmp_path):
    found = [Problem("blobs", "x", "y")]
    store = Checker(
        "store",
        "a directory with records",
        lambda p: (p / "records").is_dir(),
        lambda p, keys: Findings(found),
    )
    (tmp_path / "records").mkdir()
    assert verify_path(tmp_path, (*CHECKERS, store)) == found
    with pytest.raises(BundleError, match="store: a directory with records"):
        verify_path(tmp_path / "records", (*CHECKERS, store))


def test_a_bundle_that_lost_its_manifest_is_still_taken_for_one(bundle):
    (bundle / MANIFEST_NAME).unlink()
    assert [problem.path for problem in verify_path(bundle)] == [MANIFEST_NAME]


def test_a_problem_reads_as_a_sentence():
    assert str(Problem("lib/a.so", "12 bytes", "13 bytes")) == "lib/a.so: found 12 bytes; expected 13 bytes"


def test_the_fixture_has_kernels_to_lose():
    assert len({kernel.symbol for kernel in kernels()}) == 3
