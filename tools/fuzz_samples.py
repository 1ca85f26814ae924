"""The readers that are fuzzed, each with valid files by the package's own writers, and how they are damaged.

A file that carries its own digests is sealed again after a change inside, so that what is behind the digests
is reached too.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from fuzz_mutate import bytes_of, claiming, elf_of, pack, text_of, to_json, tree_of

from cutlass_aot.builder.native.kernel_object import KernelObject
from cutlass_aot.builder.recipe import Origins, Recipe
from cutlass_aot.builder.records import Selection
from cutlass_aot.builder.shard import Shard, Share, read_shard, write_shard
from cutlass_aot.bundle.contents import verify_bundle
from cutlass_aot.bundle.elf import read_shared_object
from cutlass_aot.bundle.files import manifest_to_bytes
from cutlass_aot.bundle.oci.manifest import config_of, manifest_of, parse_config, parse_oci_manifest
from cutlass_aot.bundle.oci.push import files_of
from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.bundle.verify import verify_wheel
from cutlass_aot.bundle.wheel import build_wheel, record_digest, record_to_text
from cutlass_aot.errors import KernelNotFound
from cutlass_aot.generators.device import load_profile
from cutlass_aot.manifest.model import parse_manifest as parse_toml_manifest
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.facts import facts_record, parse_facts
from cutlass_aot.runtime.files import parse_manifest, read_catalog, read_file, read_manifest
from cutlass_aot.runtime.signatures import read_public_key
from cutlass_aot.schema.artifact import Artifact
from cutlass_aot.schema.catalog import CATALOG_NAME, MANIFEST_NAME, Catalog, FileReference
from cutlass_aot.schema.compression import compress, decompressed
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.epilogue import parse_epilogue
from cutlass_aot.schema.group_index import KernelEntry, group_from_bytes
from cutlass_aot.schema.operands import describe
from cutlass_aot.schema.ranking import Extents, RankedProblem, Ranking
from cutlass_aot.schema.shapes import parse_shapes
from cutlass_aot.schema.signature import Signature
from cutlass_aot.schema.tuning import TunedGroup, TunedKernel, TunedProblem, Tuning
from cutlass_aot.store.artifacts import keep_artifact, read_artifact
from cutlass_aot.store.blobs import opened
from cutlass_aot.store.durations import durations_problem, remember_durations
from cutlass_aot.store.records import Record
from cutlass_aot.store.roots import read_root, set_root
from cutlass_aot.store.store import Store

REPOSITORY = Path(__file__).resolve().parents[1]
_LIMIT = 1 << 20
"""Bytes that a compressed file of the test may hold."""
_KERNELS = 6
"""Kernels of a group that go into samples: small files, many of them a second."""


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads one kind of file.

    Attributes:
        name: what it is called in the table.
        make: gives one input, a damaged file.
        read: reads it; may return, or raise what the package raises on purpose. A list that is returned is
            that of what is wrong.
        weight: share of the inputs.
    """

    name: str
    make: Callable[[random.Random], bytes]
    read: Callable[[bytes], object]
    weight: int


def readers(bundle: Path, folder: Path) -> list[Reader]:
    """All readers, with samples from a bundle.

    Args:
        bundle: the directory of a sound bundle, of a few kernels.
        folder: an empty directory, better in memory, for those that read files and directories.
    """
    catalog = read_catalog(bundle)
    group = min(catalog.groups, key=lambda item: (item.count == 1, item.count, item.name))
    entries = list(group_from_bytes(read_file(bundle, group.child), group, "sample"))[:_KERNELS]
    ranking = _ranking(entries)
    tuning = _tuning(entries)
    objects = [KernelObject(_HOST_CODE, b"\x50\xed\x55\xba" + bytes(range(200))), KernelObject("", b"")]
    config = config_of(catalog)
    libraries = [
        decompressed(read_file(bundle, reference), 1 << 30)
        for reference in read_manifest(bundle).values()
        if reference.path.endswith(".so.zst")
    ]
    smallest = sorted(libraries, key=len)[:2]
    packed = [compress(item, level) for item in (smallest[0][:5000], bytes(50_000), b"") for level in (1, 19)]
    texts = [path.read_bytes() for path in sorted((REPOSITORY / "manifests").glob("*.toml"))]
    profiles = [path.read_bytes() for path in sorted((REPOSITORY / "cutlass_aot/devices").glob("*.toml"))]
    child = read_file(bundle, group.child)

    def decode_catalog(data: bytes) -> None:
        found = Catalog.from_bytes(data, "catalog")
        for item in found.groups:
            found.groups.with_signature(item.signature)

    def decode_group(data: bytes) -> None:
        index = group_from_bytes(data, group, "index")
        index.position("0" * 64)
        list(index.columns(("tile_shape", "family")))
        for position in range(len(index)):
            index.digest(position)
            str(index[position].kernel.name)

    def decode_object(data: bytes) -> None:
        KernelObject.from_bytes(data).symbols()

    def reference(data: bytes) -> None:
        Reference.parse(data.decode("utf-8", "replace"))

    def profile(data: bytes) -> None:
        (folder / "device.toml").write_bytes(data)
        load_profile("device.toml", folder)

    def public_key(data: bytes) -> None:
        (folder / "key.pub").write_bytes(data)
        read_public_key(folder / "key.pub")

    record = Record("kernel", "ab" * 32, {"kernel": entries[0].kernel.to_record(), "size": 7}, {"cd" * 32: 7})
    catalog_file = (bundle / CATALOG_NAME).read_bytes()
    return [
        Reader("catalog", _sealed([catalog_file]), decode_catalog, 8),
        Reader("group index", _sealed([child]), decode_group, 8),
        Reader("ranking", _sealed([ranking.to_bytes()]), lambda data: Ranking.from_bytes(data, "it"), 12),
        Reader(
            "bundle manifest",
            _json([(bundle / MANIFEST_NAME).read_bytes()]),
            lambda d: parse_manifest(d, "it"),
            8,
        ),
        Reader("tuning file", _json([tuning.to_bytes()]), lambda data: Tuning.from_bytes(data, "it"), 10),
        Reader(
            "store record",
            _sealed([record.to_bytes()]),
            lambda d: Record.from_bytes(d, "kernel", "ab" * 32, "it"),
            8,
        ),
        Reader("signature", _signature, lambda d: Signature.from_bytes(d, "it"), 6),
        Reader("public key", _bytes([_KEY], text_of), public_key, 3),
        Reader("kernel object", _packed([item.to_bytes() for item in objects]), decode_object, 8),
        Reader("compressed file", _compressed(packed), _decompressed, 8),
        Reader("shared library", _bytes(smallest, elf_of), lambda d: read_shared_object(d, "it"), 10),
        Reader(
            "manifest TOML",
            _bytes(texts, text_of),
            lambda d: parse_toml_manifest(d, Path("/nowhere/m.toml")),
            2,
        ),
        Reader("shapes TOML", _bytes([_SHAPES], text_of), lambda d: parse_shapes(d, "it"), 5),
        Reader("device profile", _bytes(profiles, text_of), profile, 3),
        Reader("facts of a machine", _bytes([_FACTS], text_of), lambda d: parse_facts(d, "it"), 4),
        Reader(
            "facts in JSON",
            _json([json.dumps(facts_record(parse_facts(_FACTS, "it"))).encode()]),
            lambda d: parse_facts(d, "it"),
            4,
        ),
        Reader("epilogue formula", _bytes(_FORMULAS, text_of), lambda d: _formula(d), 5),
        Reader(
            "OCI manifest",
            _json([manifest_of(files_of(bundle), config)]),
            lambda d: parse_oci_manifest(d, "it"),
            8,
        ),
        Reader("OCI config", _json([config]), lambda data: parse_config(data, "it"), 4),
        Reader(
            "registry name",
            _bytes([b"localhost:5000/a/b_c:v1.0@sha256:" + b"0a" * 32], text_of),
            reference,
            4,
        ),
        _store_reader(entries, folder / "store"),
        _shard_reader(entries, catalog, folder / "shard"),
        _wheel_reader(bundle, folder / "wheel"),
        _bundle_reader(bundle, folder / "bundle"),
    ]


# -- how inputs are made -------------------------------------------------------------------------------------


def _bytes(
    samples: Sequence[bytes], damage: Callable[[random.Random, bytes, bytes], bytes]
) -> Callable[[random.Random], bytes]:
    def make(source: random.Random) -> bytes:
        return damage(source, source.choice(samples), source.choice(samples))

    return make


def _json(samples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    trees = [json.loads(sample) for sample in samples]
    parts = [part for tree in trees for part in _parts(tree)]

    def make(source: random.Random) -> bytes:
        at = source.randrange(len(samples))
        if source.randrange(4) == 0:
            return bytes_of(source, samples[at], source.choice(samples))
        return to_json(source, tree_of(source, trees[at], parts))

    return make


def _packed(samples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    trees = [msgpack.unpackb(sample) for sample in samples]

    def make(source: random.Random) -> bytes:
        at = source.randrange(len(samples))
        if source.randrange(4) == 0:
            return bytes_of(source, samples[at], source.choice(samples))
        return pack(tree_of(source, trees[at], _HOST_WORDS))

    return make


def _sealed(samples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Of files in an envelope: the envelope itself, the bytes in it, or its contents changed and sealed."""
    envelopes = [msgpack.unpackb(sample) for sample in samples]
    bodies = [_opened(envelope["body"]) for envelope in envelopes]
    parts = [part for body in bodies for part in _parts(body)]

    def make(source: random.Random) -> bytes:
        at = source.randrange(len(samples))
        kind = source.randrange(8)
        if kind == 0:
            return bytes_of(source, samples[at], source.choice(samples))
        if kind == 1:
            return pack(tree_of(source, envelopes[at], parts))
        if kind == 2:
            body = bytes_of(source, envelopes[at]["body"], envelopes[at]["body"])
            if source.randrange(20) == 0:
                body = claiming(source)
        else:
            body = _closed(tree_of(source, bodies[at], parts))
        return pack({**envelopes[at], "body": body, "sha256": digest(body)})

    return make


class _Nested(dict[str, Any]):
    """A map that stands in its file as bytes of its own."""


def _opened(data: bytes) -> Any:
    """A body as a tree, with what is encoded once more inside (a catalog's groups) opened too."""
    body = msgpack.unpackb(data)
    if isinstance(body, dict) and isinstance(body.get("groups"), dict):
        body["groups"] = {
            word: [{"": msgpack.unpackb(item)} for item in items] for word, items in body["groups"].items()
        }
    return body


def _closed(body: Any) -> bytes:
    groups = body.get("groups") if isinstance(body, dict) else None
    if isinstance(groups, dict):
        closed = {
            word: [pack(item[""]) if isinstance(item, dict) and "" in item else item for item in items]
            if isinstance(items, list)
            else items
            for word, items in groups.items()
        }
        body = {**body, "groups": closed}
    return pack(body)


def _parts(tree: Any) -> list[Any]:
    """Values inside a tree, to be put elsewhere."""
    found: list[Any] = []
    level = [tree]
    while level and len(found) < 200:
        level = [
            item
            for value in level
            for item in (
                value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            )
        ]
        found += level[:60]
    return found


def _signature(source: random.Random) -> bytes:
    """Most changes of a signature's file are found at once, by its canonical form: some keep to that."""
    made = Signature(source.randbytes(32), source.randbytes(64)).to_bytes()
    if source.randrange(4) == 0:
        return made
    if source.randrange(4) == 0:
        return bytes_of(source, made, made)
    return _json([made])(source)


def _compressed(samples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    def make(source: random.Random) -> bytes:
        if source.randrange(3):
            return bytes_of(source, source.choice(samples), source.choice(samples))
        # A frame that is right, of much or of little.
        content = bytes_of(source, b"code" * 20, b"")
        content *= source.choice((1, 100, max((4 << 20) // (len(content) + 1), 1)))
        return compress(content, 1) + source.choice((b"", b"", b"x"))

    return make


# -- readers that take a few lines ---------------------------------------------------------------------------


def _decompressed(data: bytes) -> None:
    content = decompressed(data, _LIMIT)
    opened(data, digest(content), len(content))


def _formula(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    parse_epilogue(
        text, {name: {"extents": "MN", "dtype": "bf16"} for name in ("C", "F", "bias") if name in text}
    )


def _ranking(entries: Sequence[KernelEntry]) -> Ranking:
    digests = tuple(entry.kernel.digest for entry in entries)
    times = tuple(1e-6 * (number + 1) for number in range(len(digests)))
    problems = tuple(RankedProblem(Extents(1, 64 * m, 128, 256), digests, times) for m in (1, 2, 3))
    return Ranking(entries[0].kernel.group, "NVIDIA H200", True, "tuned for a test", problems)


def _tuning(entries: Sequence[KernelEntry]) -> Tuning:
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
        "NVIDIA H200", "9.0", "580.1", "13.0", 700.0, "2026-11-21", "small 0.1.0", versions, (group,)
    )


def _store_reader(entries: Sequence[KernelEntry], root: Path) -> Reader:
    """A store whose record, durations and root are damaged."""
    store = Store(root)
    kernel, key = entries[0].kernel, "ab" * 32
    content = KernelObject(_HOST_CODE, b"code").to_bytes()
    _keep(store, entries[0], key, content, root.parent / "object")
    set_root(store, "nightly", [("kernel", key)])
    remember_durations(store, {key: 1.0, "cd" * 32: 2.5})
    places = [store.record_path("kernel", key), root / "roots" / "nightly", root / "durations"]
    make_file = [_sealed([path.read_bytes()]) for path in places]

    def make(source: random.Random) -> bytes:
        at = source.randrange(len(places))
        return bytes((at,)) + make_file[at](source)

    def read(data: bytes) -> object:
        at = data[0] % len(places) if data else 0
        places[at].write_bytes(data[1:])
        if at == 0:
            found, why = read_artifact(store, key, kernel)
            return [] if found else [why]
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


def _shard_reader(entries: Sequence[KernelEntry], catalog: Catalog, root: Path) -> Reader:
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
    shard = Shard(
        Share(1, 1),
        Recipe(
            catalog.name,
            catalog.version,
            catalog.device,
            catalog.targets,
            catalog.hosts,
            {"t": _tuning(entries)},
        ),
        Selection(tuple(entry.kernel for entry in entries), ("a remark",), (_ranking(entries),)),
        Origins(generators, "ab" * 32, versions, "cd" * 32, dict.fromkeys(catalog.hosts, "ef" * 32)),
        keys,
        root / "shard",
    )
    write_shard(shard, artifacts, store)
    store.close()
    (path,) = (path for path in (shard.path / "records" / "shard").rglob("*") if path.is_file())
    made = _sealed([path.read_bytes()])

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_shard(shard.path)

    return Reader("shard", made, read, 2)


def _wheel_reader(bundle: Path, root: Path) -> Reader:
    """A wheel: the archive's bytes, or a file in it changed with RECORD made right again."""
    wheel = build_wheel(bundle, root)
    sample = wheel.read_bytes()
    with zipfile.ZipFile(io.BytesIO(sample)) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist()}
    small = [name for name, data in files.items() if len(data) < 1 << 16]
    record = next(name for name in files if name.endswith("/RECORD"))

    def make(source: random.Random) -> bytes:
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
        return verify_wheel(wheel)

    return Reader("wheel", make, read, 2)


def _sha256(data: bytes) -> bytes:
    return bytes.fromhex(digest(data))


def _bundle_reader(bundle: Path, root: Path) -> Reader:
    """A whole bundle: one file changed and all digests made right again, then verified, opened and listed."""
    shutil.copytree(bundle, root)
    references = read_manifest(bundle)
    contents = {path: (bundle / path).read_bytes() for path in references}
    small = [path for path, data in contents.items() if len(data) < 1 << 16]
    envelope = msgpack.unpackb(contents[CATALOG_NAME])
    body = _opened(envelope["body"])
    inside = {path: _inside(path, contents[path]) for path in small if path != CATALOG_NAME}
    manifest = (bundle / MANIFEST_NAME).read_bytes()
    made_up = Signature(bytes(32), bytes(64))
    sign = _json([made_up.to_bytes()])
    dtypes = [operand.dtype for operand in read_catalog(bundle).groups[0].operands]
    operands = [describe((512, 512), dtype) for dtype in dtypes]
    dirty: set[str] = set()

    def make(source: random.Random) -> bytes:
        changed: dict[str, bytes] = {}
        tree = body
        if source.randrange(4) == 0:
            tree = tree_of(source, body, _parts(body))
        else:
            path = source.choice(list(inside))
            changed[path] = inside[path](source)
            tree = _referring(body, FileReference(path, len(changed[path]), digest(changed[path])))
        added: dict[str, bytes] = {}
        if source.randrange(5) == 0:
            place = source.choice(("lib/x", "signatures/a.json", "licenses/b", "evil", made_up.path))
            added[place] = source.choice((b"new", sign(source), made_up.to_bytes()))
        packed = _closed(tree)
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


def _inside(path: str, data: bytes) -> Callable[[random.Random], bytes]:
    """How a file of a bundle is changed: sealed, compressed or plain."""
    if path.endswith(".msgpack"):
        return _sealed([data])
    if path.endswith(".zst"):
        content = decompressed(data, 1 << 30)
        damage = elf_of if content[:4] == b"\x7fELF" else bytes_of

        def make(source: random.Random) -> bytes:
            if source.randrange(3) == 0:
                return bytes_of(source, data, data)
            return compress(damage(source, content, content), 1)

        return make
    return _bytes([data], text_of)


def _referring(tree: Any, reference: FileReference) -> Any:
    """A tree with the references to one file brought up to date."""
    if isinstance(tree, dict):
        if tree.get("path") == reference.path:
            return reference.to_record()
        return {key: _referring(item, reference) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_referring(item, reference) for item in tree]
    return tree


_KEY = b"""-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""
_FACTS = b"""host = "aarch64"
libc = "glibc 2.39"
python = "3.12.3"
tvm_ffi = "0.1.15.post2"
torch_cuda = "13.0"

[driver]
cuda = "13.0"
release = "580.126.09"

[[gpus]]
name = "NVIDIA GB300"
compute_capability = "10.3"
"""
_SHAPES = b"""
m = [1, 16, 4096]

[layers]
nk = [[4096, 7168], [2112, 7168]]
batch = 4
m = 32

[grouped]
groups = 8
nk = [[4096, 4096]]
"""
_FORMULAS = (
    b"D = alpha * accum + beta * C", b"F = accum + bias; D = relu(F)", b"D = sum(accum)", b"D = accum",
    b"T = silu(accum * 2.0); D = T / (1 + exp(-T)); F = maximum(T, 0.5e3)",
)  # fmt: skip
_HOST_CODE = r"""
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
_HOST_WORDS = [
    "@" * 3000, "define " + "@a" * 3000, '@"' * 3000, "@a = " + "constant " * 2000, "declare " + "x " * 4000,
    "\n@a = global" * 500, 'define @"' + "a" * 5000, "@a = " + "(" * 4000 + " global ", _HOST_CODE * 20,
]  # fmt: skip
