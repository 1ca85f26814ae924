"""Readers of files and directories on a disk: a store, a shard, a wheel, a whole bundle."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack

from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.plan.recipe import Origins, PlannedBundle, Recipe
from cutlass_aot.builder.records import Selection
from cutlass_aot.builder.shard import Shard, Share, read_shard, write_shard
from cutlass_aot.bundle.files import manifest_to_bytes
from cutlass_aot.bundle.verify.directory import verify_bundle
from cutlass_aot.bundle.wheel.catalog import read_wheel_catalog
from cutlass_aot.bundle.wheel.verify import look_at_wheel
from cutlass_aot.bundle.wheel.write import build_wheels, record_digest, record_to_text
from cutlass_aot.errors import KernelNotFound
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.files.verified_read import read_catalog, read_manifest
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME, Catalog, FileReference
from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.bundles.signature import Signature
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.compression import compress, decompressed
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.operands import describe
from cutlass_aot.schema.requests.request import CallByName, CompiledRequest, Request
from cutlass_aot.schema.tuning.costs import Machine
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking
from cutlass_aot.schema.tuning.tuning import TunedGroup, TunedKernel, TunedProblem, Tuning
from cutlass_aot.store.artifacts import keep_artifact, read_artifact
from cutlass_aot.store.durations import durations_problem, remember_durations
from cutlass_aot.store.roots import read_root, set_root
from cutlass_aot.store.store import Store
from tools.fuzz.inputs import (
    Reader,
    bytes_maker,
    closed_body,
    json_maker,
    opened_body,
    sealed_maker,
    values_of,
)
from tools.fuzz.mutate import bytes_of, elf_of, pack, text_of, tree_of
from tools.torture import other_files


def sample_ranking(entries: Sequence[KernelEntry]) -> Ranking:
    digests = tuple(entry.kernel.digest for entry in entries)
    times = tuple(1e-6 * (number + 1) for number in range(len(digests)))
    problems = RankedProblems(
        RankedProblem(Extents(1, 64 * m, 128, 256), digests[:m], times[:m], frozenset(digests[m:]))
        for m in (1, 2, 3)
    )
    return Ranking(entries[0].kernel.group, "NVIDIA H200", True, "tuned for a test", problems)


def sample_requests() -> list[CompiledRequest]:
    extent = {"symbol": 0, "width": 32, "divisibility": 8}
    tensor = {
        "tensor": {"dtype": "cutlass:BFloat16", "space": "gmem", "shape": [extent, 64], "strides": [64, 1]}
    }
    return [
        CompiledRequest(
            Request(
                "ops.norm:Norm.__call__",
                {"object": "ops.norm:Norm", "fields": {"N": n, "scale": 0.5, "tile": {"tuple": [128, 64]}}},
                {"mX": tensor, "eps": {"dynamic": "float"}, "weight": None},
                {"opt-level": 3},
                "sm_90a",
                {"sm_count": 132},
                {"ops": "1.0 " + "ab" * 32},
                {"ops.norm:FAST": True},
            ),
            CallByName(("mX", "eps"), (1e-6,), ("weight",), {"weight": None}) if n == 64 else None,
        )
        for n in (64, 128)
    ]


def sample_tuning(entries: Sequence[KernelEntry]) -> Tuning:
    kernels = tuple(TunedKernel(e.kernel.digest, e.object_sha256, e.kernel.name) for e in entries)
    times = tuple((kernel.digest, 2.0 + number) for number, kernel in enumerate(kernels))
    problems = (
        TunedProblem(Extents(1, 64, 64, 64), times, sm_mhz=1980, memory_mhz=2619),
        TunedProblem(
            Extents(2, 64, 64, 64), times[:1], times[1:2], tuple((k, "is wrong") for k, _ in times[2:3])
        ),
    )
    group = TunedGroup(entries[0].kernel.group, entries[0].kernel.group_name, kernels, problems)
    versions = {"cutlass-aot": "0.1.0", "torch": "2.13.0"}
    return Tuning(
        "NVIDIA H200", Machine(132, 1980, 4917), "9.0", "580.1", "13.0", 700.0, "2026-11-21", "small 0.1.0",
        versions, (group,),
    )  # fmt: skip


def store_reader(entries: Sequence[KernelEntry], root: Path) -> Reader:
    """A store whose record, durations and root are damaged, or are something else than files."""
    store = Store(root)
    kernel, key = entries[0].kernel, "ab" * 32
    content = KernelObject(HOST_CODE, b"code").to_bytes()
    _keep(store, entries[0], key, content, root.parent / "object")
    set_root(store, "nightly", [("kernel", key)])
    remember_durations(store, {key: 1.0, "cd" * 32: 2.5})
    places = [store.record_path("kernel", key), root / "roots" / "nightly", root / "durations"]
    make_file = [sealed_maker([path.read_bytes()]) for path in places]

    def make(source: random.Random) -> bytes:
        at = source.randrange(len(places))
        if source.randrange(10) == 0:
            return bytes((at, source.randrange(len(other_files.KINDS))))
        return bytes((at,)) + make_file[at](source)

    def read(data: bytes) -> object:
        at = data[0] % len(places) if data else 0
        other_files.remove(places[at])
        if len(data) == 2:
            other_files.put(other_files.KINDS[data[1] % len(other_files.KINDS)], places[at])
        else:
            places[at].write_bytes(data[1:])
        if at == 0:
            artifact, why = read_artifact(store, key, kernel)
            return [] if artifact else [why]
        if at == 1:
            return [] if read_root(store, "nightly") else ["no root"]
        problem = durations_problem(store)
        return [problem] if problem else []

    return Reader("store", make, read, 3)


def _keep(store: Store, entry: KernelEntry, key: str, content: bytes, file: Path) -> Artifact:
    artifact = Artifact(digest(content), len(content), entry.facts, 0.5)
    file.write_bytes(content)
    keep_artifact(store, key, entry.kernel, artifact, file)
    return artifact


def shard_reader(entries: Sequence[KernelEntry], catalog: Catalog, root: Path) -> Reader:
    """A shard's record: the recipe, the kernels, what they come from."""
    root.mkdir()
    store = Store(root / "store")
    keys = tuple(digest(entry.kernel.digest.encode()) for entry in entries)
    artifacts = {
        key: _keep(store, entry, key, b"an object", root / "object")
        for key, entry in zip(keys, entries, strict=True)
    }
    versions = {"cutlass-aot": "0.1.0"}
    generators = {entry.kernel.generator: "1" for entry in entries}
    planned = PlannedBundle(
        Recipe(
            catalog.name,
            catalog.version,
            catalog.device,
            catalog.targets,
            catalog.hosts,
            {"t": sample_tuning(entries)},
        ),
        Selection(tuple(entry.kernel for entry in entries), ("a warning",), (sample_ranking(entries),)),
        Origins(generators, "ab" * 32, versions, "cd" * 32, dict.fromkeys(catalog.hosts, "ef" * 32)),
        keys,
    )
    shard = Shard(Share(1, 1), planned, root / "shard")
    write_shard(shard, artifacts, store)
    store.close()
    (path,) = (path for path in (shard.path / "records" / "shard").rglob("*") if path.is_file())
    made = sealed_maker([path.read_bytes()])

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_shard(shard.path)

    return Reader("shard", made, read, 2)


def wheel_readers(bundle: Path, root: Path) -> list[Reader]:
    """A wheel, and its catalog: the archive's bytes, or a file in it changed with RECORD made right again."""
    (wheel,) = build_wheels(bundle, root)
    sample = wheel.read_bytes()
    with zipfile.ZipFile(io.BytesIO(sample)) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist()}
    small = [name for name, data in files.items() if len(data) < 1 << 16]
    record = next(name for name in files if name.endswith("/RECORD"))

    def make(source: random.Random) -> bytes:
        if source.randrange(20) == 0:
            return sample
        if source.randrange(3):
            # The index at the end is what decides: changed more often than the files.
            tail = len(sample) - min(source.choice((100, 2000, len(sample))), len(sample))
            return sample[:tail] + bytes_of(source, sample[tail:], sample[:2000])
        name = source.choice(small)
        changed = {**files, name: bytes_of(source, files[name], files[record])}
        if source.randrange(4) == 0:
            changed[source.choice(("../evil", "a\\b", "x" * 300, f"{name}/below", "é", name + " "))] = b"new"
        if name != record:
            rows = [
                (path, record_digest(_sha256(data)), len(data))
                for path, data in changed.items()
                if path != record
            ]
            changed[record] = record_to_text([*rows, (record, "", "")]).encode()
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path, data in changed.items():
                archive.writestr(zipfile.ZipInfo(path), data)
        return out.getvalue()

    def read(data: bytes) -> object:
        wheel.write_bytes(data)
        return look_at_wheel(wheel).problems

    def read_catalog_alone(data: bytes) -> None:
        wheel.write_bytes(data)
        read_wheel_catalog(wheel)

    return [
        Reader("wheel", make, read, 2),
        Reader("catalog of a wheel", make, read_catalog_alone, 2),
        Reader("wheel with gaps", lambda source: _with_gap(source, sample), _refusing(sample, read), 1),
    ]


def _refusing(sample: bytes, read: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """A reader that has to find something wrong with whatever is not the sample."""

    def refuses(data: bytes) -> object:
        problems = read(data)
        assert bool(problems) == (data != sample), f"{len(data)} bytes: {problems}"
        return problems

    return refuses


def _with_gap(source: random.Random, sample: bytes) -> bytes:
    """A wheel with something that its index does not list; every other byte and offset is right.

    Format: the index's entries, and the record at its end (APPNOTE.TXT of PKWARE, 4.3.12 and 4.3.16).
    """
    if source.randrange(8) == 0:
        return sample
    (size, start) = struct.unpack_from("<II", sample, len(sample) - 10)
    index, end = sample[start : start + size], sample[-22:]
    with zipfile.ZipFile(io.BytesIO(sample)) as archive:
        offsets = [info.header_offset for info in archive.infolist()]
    hidden = io.BytesIO()
    with zipfile.ZipFile(hidden, "w") as archive:
        archive.writestr(zipfile.ZipInfo("evil.pth"), b"import evil\n")
    entry = hidden.getvalue()[: hidden.getvalue().index(b"PK\1\2")]
    added = source.choice((entry, b"\0", b"#!/bin/sh\n", source.randbytes(40), sample[: offsets[1]]))
    kind = source.randrange(4)
    if kind == 0:
        # Within a header: what one installer reads differs from what another does.
        at = source.choice(offsets) + source.choice((*range(8, 26), 30))
        return sample[:at] + bytes((sample[at] ^ 1 << source.randrange(8),)) + sample[at + 1 :]
    if kind == 1:
        return sample[:-2] + struct.pack("<H", len(added)) + added
    if kind == 2:
        return sample + added
    gap = source.choice((*offsets, start))
    moved, at = b"", 0
    while at < len(index):
        name, extra, comment = struct.unpack_from("<HHH", index, at + 28)
        (offset,) = struct.unpack_from("<I", index, at + 42)
        offset += len(added) if offset >= gap else 0
        length = 46 + name + extra + comment
        moved += index[at : at + 42] + struct.pack("<I", offset) + index[at + 46 : at + length]
        at += length
    end = end[:16] + struct.pack("<I", start + len(added)) + end[20:]
    return sample[:gap] + added + sample[gap:start] + moved + end


def _sha256(data: bytes) -> bytes:
    return bytes.fromhex(digest(data))


def bundle_reader(bundle: Path, root: Path) -> Reader:
    """A whole bundle: one file changed and all digests made right again, then verified, opened and listed."""
    shutil.copytree(bundle, root)
    references = read_manifest(bundle)
    contents = {path: (bundle / path).read_bytes() for path in references}
    small = [path for path, data in contents.items() if len(data) < 1 << 16]
    envelope = msgpack.unpackb(contents[CATALOG_NAME])
    body = opened_body(envelope["body"])
    inside = {path: _inside(path, contents[path]) for path in small if path != CATALOG_NAME}
    manifest = (bundle / MANIFEST_NAME).read_bytes()
    made_up = Signature(bytes(32), bytes(64))
    sign = json_maker([made_up.to_bytes()])
    dtypes = [operand.dtype for operand in read_catalog(bundle).groups[0].operands]
    operands = [describe((512, 512), dtype) for dtype in dtypes]
    dirty: set[str] = set()

    def make(source: random.Random) -> bytes:
        changed: dict[str, bytes] = {}
        tree = body
        if source.randrange(4) == 0:
            tree = tree_of(source, body, values_of(body))
        else:
            path = source.choice(list(inside))
            changed[path] = inside[path](source)
            tree = _referring(body, FileReference(path, len(changed[path]), digest(changed[path])))
        added: dict[str, bytes] = {}
        if source.randrange(5) == 0:
            place = source.choice(("lib/x", "signatures/a.json", "licenses/b", "evil", made_up.path))
            added[place] = source.choice((b"new", sign(source), made_up.to_bytes()))
        packed = closed_body(tree)
        changed[CATALOG_NAME] = pack({**envelope, "body": packed, "sha256": digest(packed)})
        listed = {**references, **{p: FileReference(p, len(d), digest(d)) for p, d in changed.items()}}
        changed[MANIFEST_NAME] = manifest_to_bytes(listed)
        return pack({**changed, **added})

    def read(data: bytes) -> object:
        for path in dirty:
            if path in contents:
                (root / path).write_bytes(contents[path])
            else:
                (root / path).unlink()
        dirty.clear()
        (root / MANIFEST_NAME).write_bytes(manifest)
        for path, changed in msgpack.unpackb(data).items():
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_bytes(changed)
            if path != MANIFEST_NAME:
                dirty.add(path)
        problems = verify_bundle(root)
        opened = open_bundle(root, check=False)
        for kernel in opened.kernels():
            str(kernel)
        with contextlib.suppress(KernelNotFound):
            opened.find(*operands)
            opened.choose(*operands, target=opened.targets[0], gpu="NVIDIA H200")
        return problems

    return Reader("bundle", make, read, 2)


def bundle_places_reader(bundle: Path, root: Path) -> Reader:
    """A bundle with something else than a file in the place of one of its files."""
    shutil.copytree(bundle, root)
    paths = [*sorted(read_manifest(bundle)), MANIFEST_NAME]
    dirty: set[str] = set()

    def make(source: random.Random) -> bytes:
        kind = source.randrange(len(other_files.KINDS) + 1)
        return bytes((source.randrange(min(len(paths), 256)), kind))

    def read(data: bytes) -> object:
        for path in dirty:
            other_files.remove(root / path)
            shutil.copy(bundle / path, root / path)
        dirty.clear()
        path, kind = paths[data[0] % len(paths)], data[1] % (len(other_files.KINDS) + 1)
        if kind < len(other_files.KINDS):
            dirty.add(path)
            other_files.put(other_files.KINDS[kind], root / path)
        problems = verify_bundle(root)
        assert bool(problems) == bool(dirty), f"{path}, {other_files.KINDS[kind]}: {problems}"
        return problems

    return Reader("other files in a bundle", make, read, 1)


def _inside(path: str, data: bytes) -> Callable[[random.Random], bytes]:
    """How a file of a bundle is changed: sealed, compressed or plain."""
    if path.endswith(".msgpack"):
        return sealed_maker([data])
    if path.endswith(".zst"):
        content = decompressed(data, 1 << 30)
        damage = elf_of if content[:4] == b"\x7fELF" else bytes_of

        def make(source: random.Random) -> bytes:
            if source.randrange(3) == 0:
                return bytes_of(source, data, data)
            return compress(damage(source, content, content), 1)

        return make
    return bytes_maker([data], text_of)


def _referring(tree: Any, reference: FileReference) -> Any:
    """A tree with the references to one file brought up to date."""
    if isinstance(tree, dict):
        if tree.get("path") == reference.path:
            return to_plain(reference)
        return {key: _referring(item, reference) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_referring(item, reference) for item in tree]
    return tree


HOST_CODE = r"""
@cutlass_aot_code_k = global [2 x i64] zeroinitializer, align 8
@"quoted name" = internal constant [3 x i8] c"a\00b"
@shown = constant i32 7
@far = external global ptr
declare i32 @_cudaLaunchKernelEx(ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define internal void @hidden(ptr %0) {
  ret void
}
define i32 @__tvm_ffi_k(ptr %0, ptr %1, i32 %2, ptr %3) {
  ret i32 0
}
"""
