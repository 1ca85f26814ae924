"""The readers that are fuzzed, each with valid files by the package's own writers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.bundle.elf import read_shared_object
from cutlass_aot.bundle.oci.artifact import config_of, manifest_of, parse_config, parse_oci_manifest
from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.bundle.sbom import bill_of_materials, read_bill
from cutlass_aot.bundle.verify.directory import require_sound
from cutlass_aot.cli.output.request_lines import request_lines
from cutlass_aot.doctor.facts import facts_record, parse_facts
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.manifest.model import parse_manifest as parse_toml_manifest
from cutlass_aot.runtime.files.signatures import read_public_key
from cutlass_aot.runtime.files.verified_read import parse_manifest, read_catalog, read_file, read_manifest
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME, Catalog
from cutlass_aot.schema.bundles.group_index import group_from_bytes
from cutlass_aot.schema.bundles.signature import Signature, TrustPolicy
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.compression import compress, decompressed
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.requests.request import OPERATION, Request, differences
from cutlass_aot.schema.requests.request_index import requests_from_bytes, requests_to_bytes
from cutlass_aot.schema.tuning.ranking import Ranking
from cutlass_aot.schema.tuning.shapes import parse_shapes
from cutlass_aot.schema.tuning.tuning import Tuning
from cutlass_aot.store.blobs import opened
from cutlass_aot.store.record import Record
from tools.fuzz.inputs import Reader, bytes_maker, compressed_maker, json_maker, packed_maker, sealed_maker
from tools.fuzz.mutate import bytes_of, elf_of, text_of
from tools.fuzz.places import (
    HOST_CODE,
    bundle_places_reader,
    bundle_reader,
    sample_ranking,
    sample_requests,
    sample_tuning,
    shard_reader,
    store_reader,
    wheel_readers,
)

REPOSITORY = Path(__file__).resolve().parents[2]
_LIMIT = 1 << 20
"""Bytes that a compressed file of the test may hold."""
_KERNELS = 6
"""Kernels of a group that go into samples: small files, many of them a second."""


def readers(bundle: Path, folder: Path) -> list[Reader]:
    """All readers, with samples from a bundle.

    Args:
        bundle: the directory of a sound bundle, of a few kernels.
        folder: an empty directory, better in memory, for those that read files and directories.
    """
    catalog = read_catalog(bundle)
    group = min(catalog.groups, key=lambda item: (item.kernel_count == 1, item.kernel_count, item.name))
    entries = list(group_from_bytes(read_file(bundle, group.child), group, "sample"))[:_KERNELS]
    ranking = sample_ranking(entries)
    tuning = sample_tuning(entries)
    samples = sample_requests()
    requested = group._replace(operation=OPERATION, kernel_count=len(samples))
    objects = [KernelObject(HOST_CODE, b"\x50\xed\x55\xba" + bytes(range(200))), KernelObject("", b"")]
    config = config_of(catalog)
    libraries = [
        decompressed(read_file(bundle, reference), 1 << 30)
        for reference in read_manifest(bundle).values()
        if reference.path.endswith(".so.zst")
    ]
    smallest = sorted(libraries, key=len)[:2]
    packed = [compress(item, level) for item in (smallest[0][:5000], bytes(50_000), b"") for level in (1, 19)]
    texts = [path.read_bytes() for path in sorted((REPOSITORY / "manifests").glob("*.toml"))]
    profiles = [
        path.read_bytes() for path in sorted((REPOSITORY / "cutlass_aot/generators/devices").glob("*.toml"))
    ]
    child = read_file(bundle, group.child)

    def decode_catalog(data: bytes) -> None:
        catalog = Catalog.from_bytes(data, "catalog")
        for item in catalog.groups:
            catalog.groups.with_signature(item.signature)

    def decode_group(data: bytes) -> None:
        index = group_from_bytes(data, group, "index")
        index.position("0" * 64)
        index.tilings.tilings()
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

    def decode_requests(data: bytes) -> None:
        index = requests_from_bytes(data, requested, "requests")
        index.position("0" * 64)
        for position in range(len(index)):
            index.digest(position)
            str(request_lines(index[position]))

    def decode_request(data: bytes) -> None:
        decoded = Request.from_bytes(data, "request")
        str(decoded.kernel.name)
        differences(decoded, samples[0].request)

    record = Record("kernel", "ab" * 32, {"kernel": to_plain(entries[0].kernel), "size": 7}, {"cd" * 32: 7})
    catalog_file = (bundle / CATALOG_NAME).read_bytes()

    def it(read: Callable[[bytes, str], object]) -> Callable[[bytes], object]:
        return lambda data: read(data, "it")

    bill = bill_of_materials(catalog, entries)
    hosts = packed_maker([item.to_bytes() for item in objects], _HOST_WORDS)
    return [
        Reader("catalog", sealed_maker([catalog_file]), decode_catalog, 8),
        Reader("group index", sealed_maker([child]), decode_group, 8),
        Reader("requests of a group", sealed_maker([requests_to_bytes(samples)]), decode_requests, 8),
        Reader("request", packed_maker([item.request.encoded() for item in samples], []), decode_request, 6),
        Reader("ranking", sealed_maker([ranking.to_bytes()]), it(Ranking.from_bytes), 12),
        Reader(
            "bundle manifest",
            json_maker([(bundle / MANIFEST_NAME).read_bytes()]),
            it(parse_manifest),
            8,
        ),
        Reader("tuning file", json_maker([tuning.to_bytes()]), it(Tuning.from_bytes), 10),
        Reader(
            "store record",
            sealed_maker([record.to_bytes()]),
            lambda d: Record.from_bytes(d, "kernel", "ab" * 32, "it"),
            8,
        ),
        Reader("signature", _signature, it(Signature.from_bytes), 6),
        Reader("trust policy", json_maker([_POLICY]), it(TrustPolicy.from_bytes), 3),
        Reader("public key", bytes_maker([_KEY], text_of), public_key, 3),
        Reader("kernel object", hosts, decode_object, 8),
        Reader("compressed file", compressed_maker(packed), _decompressed, 8),
        Reader("shared library", bytes_maker(smallest, elf_of), it(read_shared_object), 10),
        Reader(
            "manifest TOML",
            bytes_maker(texts, text_of),
            lambda d: parse_toml_manifest(d, Path("/nowhere/m.toml")),
            2,
        ),
        Reader("shapes TOML", bytes_maker([_SHAPES], text_of), it(parse_shapes), 5),
        Reader("device profile", bytes_maker(profiles, text_of), profile, 3),
        Reader("facts of a machine", bytes_maker([_FACTS], text_of), it(parse_facts), 4),
        Reader(
            "facts in JSON",
            json_maker([json.dumps(facts_record(parse_facts(_FACTS, "it"))).encode()]),
            it(parse_facts),
            4,
        ),
        Reader("epilogue formula", bytes_maker(_FORMULAS, text_of), _formula, 5),
        Reader(
            "OCI manifest",
            json_maker([manifest_of(require_sound(bundle).files, config)]),
            it(parse_oci_manifest),
            8,
        ),
        Reader("OCI config", json_maker([config]), it(parse_config), 4),
        Reader(
            "registry name",
            bytes_maker([b"localhost:5000/a/b_c:v1.0@sha256:" + b"0a" * 32], text_of),
            reference,
            4,
        ),
        Reader("bill of materials", json_maker([bill]), it(read_bill), 4),
        store_reader(entries, folder / "store"),
        shard_reader(entries, catalog, folder / "shard"),
        *wheel_readers(bundle, folder / "wheel"),
        bundle_reader(bundle, folder / "bundle"),
        bundle_places_reader(bundle, folder / "places"),
    ]


def _decompressed(data: bytes) -> None:
    content = decompressed(data, _LIMIT)
    opened(data, digest(content), len(content))


def _formula(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    parse_epilogue(
        text, {name: {"extents": "MN", "dtype": "bf16"} for name in ("C", "F", "bias") if name in text}
    )


def _signature(source: random.Random) -> bytes:
    """Most changes of a signature's file are detected at once, by its canonical form: some keep to that."""
    made = Signature(
        source.randbytes(32),
        source.randbytes(64),
        sequence=source.randrange(9),
        expires=source.choice(("", "2027-06-30")),
    ).to_bytes()
    if source.randrange(4) == 0:
        return made
    if source.randrange(4) == 0:
        return bytes_of(source, made, made)
    return json_maker([made])(source)


_KEY = b"""-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""
_POLICY = (
    b"""{"schema": 1, "kind": "cutlass-aot trust policy", "minimum_sequence": 7, "require_expiry": true}"""
)
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
    b"D = where(accum >= 0.5, clamp(accum, -1, x) ** 3, rotate_every_two(-accum)) * (x != 0)",
)  # fmt: skip
_HOST_WORDS = [
    "@" * 3000, "define " + "@a" * 3000, '@"' * 3000, "@a = " + "constant " * 2000, "declare " + "x " * 4000,
    "\n@a = global" * 500, 'define @"' + "a" * 5000, "@a = " + "(" * 4000 + " global ", HOST_CODE * 20,
]  # fmt: skip
