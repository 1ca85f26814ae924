"""Names, OCI manifests and configs: what is written, and what is refused of an untrusted one."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

pytest.importorskip("oras")

from cutlass_aot.bundle.oci import artifact
from cutlass_aot.bundle.oci.artifact import ARTIFACT_TYPE, CONFIG_TYPE, TITLE
from cutlass_aot.bundle.oci.push import push_bundle
from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.errors import (
    CorruptFile,
    CutlassAotError,
    RegistryError,
    RegistryNameError,
)
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME
from tests.support.oci import (
    LIBRARY,
    change_manifest,
    do_pull,
    refused,
    tree,
)
from tests.support.replace import replace
from tests.support.synthetic import plan


def test_equal_bundles_have_equal_digests(fake, bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "elsewhere" / "other-name")
    first = push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    second = push_bundle(tmp_path / "elsewhere" / "other-name", f"{fake.name}/k/small:2", plain_http=True)
    assert first.name == second.name
    assert first.name.endswith("@sha256:" + hashlib.sha256(fake.manifests["1"]).hexdigest())
    assert "created" not in fake.manifests["1"].decode()


def test_a_manifest_says_what_its_files_are(fake, bundle):
    push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    body = json.loads(fake.manifests["1"])
    assert (body["artifactType"], body["config"]["mediaType"]) == (ARTIFACT_TYPE, CONFIG_TYPE)
    config = json.loads(fake.blobs[body["config"]["digest"]])
    assert (config["name"], config["targets"], config["hosts"]) == ("small", ["sm_90a"], ["x86_64"])
    types = {layer["annotations"][TITLE]: layer["mediaType"] for layer in body["layers"]}
    assert set(types) == set(tree(bundle))
    assert types[MANIFEST_NAME].endswith(".manifest.v1+json")
    assert types[CATALOG_NAME].endswith(".catalog.v1")
    assert "application/vnd.cutlass-aot.bundle.library.v1" in types.values()
    bills = {path for path, kind in types.items() if kind == "application/vnd.cyclonedx+json"}
    assert bills == {"sbom/bundle.cdx.json"}
    own = {kind for path, kind in types.items() if path not in bills}
    assert all(kind.startswith("application/vnd.cutlass-aot.bundle.") for kind in own)


def test_a_part_of_a_bundle_says_which(fake, tmp_path):
    write_bundle(replace(plan(tmp_path / "linked"), variant="sm90a"), tmp_path / "variant")
    push_bundle(tmp_path / "variant", f"{fake.name}/k/small:1", plain_http=True)
    config = json.loads(fake.blobs[json.loads(fake.manifests["1"])["config"]["digest"]])
    assert config["variant"] == "sm90a"
    do_pull(fake, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "variant")


@pytest.mark.parametrize(
    "name",
    [
        "small:1", "/small:1", "localhost/small:1", "r.org/Small:1", "r.org/small:", "r.org/small:a b",
        "r.org/a//b:1", "r.org/../small:1", "r.org/small@sha256:12", "r.org/small@md5:" + "0" * 64, "https://r.org/small:1",
        "r.org:port/small:1", "r.org/small:1\n", "r.org/small:" + "a" * 129, "-r.org/small:1", "",
        "r.org/" + "a/" * 300 + "a:1",
    ],
)  # fmt: skip
def test_other_names_are_refused(name):
    with pytest.raises(RegistryNameError, match="names nothing in a registry"):
        Reference.parse(name)


def test_names():
    assert Reference.parse("localhost:5000/a/b_c/d--e:v1.0_x") == Reference(
        "localhost:5000", "a/b_c/d--e", "v1.0_x", ""
    )
    digest = "sha256:" + "0a" * 32
    assert Reference.parse(f"r.example.org/small@{digest}").tag_or_digest == digest
    assert Reference.parse(f"r.example.org/small:1@{digest}").tag_or_digest == digest
    assert str(Reference.parse(f"r.example.org/small:1@{digest}")) == f"r.example.org/small:1@{digest}"


def layers(change):
    """A change of the layer of the launcher."""

    def apply(body):
        for layer in body["layers"]:
            if layer["annotations"][TITLE] == LIBRARY:
                change(layer)

    return apply


def titled(path):
    return layers(lambda layer: layer["annotations"].update({TITLE: path}))


def drop(path):
    def apply(body):
        body["layers"] = [layer for layer in body["layers"] if layer["annotations"][TITLE] != path]

    return apply


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (titled("../../evil"), CorruptFile, "leads out of the bundle"),
        (titled("/etc/evil"), CorruptFile, "leads out of the bundle"),
        (titled("lib/x86_64/../../../evil"), CorruptFile, "leads out of the bundle"),
        (titled("lib\\evil"), CorruptFile, "leads out of the bundle"),
        (titled("lib/\x1b[2J"), CorruptFile, "leads out of the bundle"),
        (titled("lib/x86_64/other.so.zst"), CorruptFile, "expected"),
        (titled(CATALOG_NAME), CorruptFile, "twice"),
        (titled(7), CorruptFile, "without a title"),
        (layers(lambda layer: layer.pop("annotations")), CorruptFile, "without a title"),
        (layers(lambda layer: layer.update(size=1)), CorruptFile, f"is 1 bytes with .* by {MANIFEST_NAME}"),
        (layers(lambda layer: layer.update(size=-1)), CorruptFile, "as its size"),
        (layers(lambda layer: layer.update(size=True)), CorruptFile, "as its size"),
        (layers(lambda layer: layer.update(size=1 << 62)), CorruptFile, "as its size"),
        (layers(lambda layer: layer.update(size="7")), CorruptFile, "as its size"),
        (layers(lambda layer: layer.update(digest="sha256:" + "0" * 64)), CorruptFile, f"by {MANIFEST_NAME}"),
        (layers(lambda layer: layer.update(digest="md5:00")), CorruptFile, "no SHA-256"),
        (layers(lambda layer: layer.update(digest="sha256:../x")), CorruptFile, "no SHA-256"),
        (drop(LIBRARY), CorruptFile, f"is nothing, expected .* by {MANIFEST_NAME}"),
        (drop(MANIFEST_NAME), CorruptFile, f"has no layer {MANIFEST_NAME}"),
        (drop(CATALOG_NAME), CorruptFile, f"has no layer {CATALOG_NAME}"),
        (lambda body: body.update(layers={}), CorruptFile, "lists no layers"),
        (lambda body: body["layers"].append(7), CorruptFile, "without a title"),
        (lambda body: body["config"].pop("size"), CorruptFile, "its config has None as its size"),
        (lambda body: body["config"].update(size=1 << 30), CorruptFile, "its config has 1073741824"),
        (lambda body: body.update(artifactType="text/plain"), RegistryError, "not a bundle"),
        (lambda body: body.update(mediaType="application/vnd.oci.image.index.v1"), RegistryError, "index"),
        (lambda body: body.update(schemaVersion=1), RegistryError, "schemaVersion 1"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_no_bundles(fake, there, change, error, match):
    change_manifest(fake, change)
    refused(fake, there, error, match)
    # MANIFEST.json at most: nothing large before all is looked at.
    assert len(fake.fetched()) <= 1


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"7", b'{"schemaVersion": 2, "config": 1}']
)
def test_a_manifest_that_cannot_be_read(fake, there, data):
    fake.put("1", data)
    refused(fake, there, CutlassAotError, "JSON|not a bundle")


def test_too_many_signatures_and_too_many_bytes(fake, there, monkeypatch):
    whole = fake.manifests["1"]

    def add(body):
        size, digest = 10, "sha256:" + "0" * 64
        body["layers"] += [
            {"size": size, "digest": digest, "annotations": {TITLE: f"signatures/{number}.json"}}
            for number in range(65)
        ]

    change_manifest(fake, add)
    refused(fake, there, CorruptFile, "has 65 signatures, expected at most 64")
    fake.put("1", whole)
    monkeypatch.setattr(artifact, "MAX_BUNDLE_BYTES", 1000)
    refused(fake, there, CorruptFile, "bytes together, expected at most 1000")
    assert fake.fetched() == []


def test_a_config_that_says_something_else(fake, there):
    body = json.loads(fake.manifests["1"])
    config = json.loads(fake.blobs[body["config"]["digest"]])
    config["name"] = "other"
    data = json.dumps(config).encode()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    fake.blobs[digest] = data
    change_manifest(fake, lambda body: body["config"].update(digest=digest, size=len(data)))
    refused(fake, there, CorruptFile, "the config says name 'other', the bundle has 'small'")


def test_what_the_oras_tool_pushes_is_pulled(fake, there, bundle):
    """Its config is empty, and it adds a time."""

    def change(body):
        fake.blobs["sha256:" + hashlib.sha256(b"{}").hexdigest()] = b"{}"
        body["config"] = {
            "mediaType": "application/vnd.oci.empty.v1+json",
            "size": 2,
            "digest": "sha256:" + hashlib.sha256(b"{}").hexdigest(),
        }
        body["annotations"] = {"org.opencontainers.image.created": "2026-11-21T00:00:00Z"}

    change_manifest(fake, change)
    do_pull(fake, there)
    assert tree(there) == tree(bundle)


def test_files_that_agree_and_are_no_bundle(fake, there):
    """All digests are right, and the library is none: found by the look at the whole."""
    body = json.loads(fake.manifests["1"])
    data = b"not a library"
    new = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    fake.blobs["sha256:" + new["sha256"]] = data
    titles = {layer["annotations"][TITLE]: layer for layer in body["layers"]}
    manifest = json.loads(fake.blobs[titles[MANIFEST_NAME]["digest"]])
    manifest["files"][LIBRARY] = new
    text = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
    fake.blobs["sha256:" + hashlib.sha256(text).hexdigest()] = text
    titles[MANIFEST_NAME].update(size=len(text), digest="sha256:" + hashlib.sha256(text).hexdigest())
    titles[LIBRARY].update(size=len(data), digest="sha256:" + new["sha256"])
    fake.put("1", body)
    refused(fake, there, CorruptFile, "is not a sound bundle")


def test_more_files_than_a_manifest_has_room_for(fake, bundle, monkeypatch):
    monkeypatch.setattr(artifact, "MAX_OCI_MANIFEST_BYTES", 1000)
    with pytest.raises(RegistryError, match="registries take 1000: build several bundles"):
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert fake.requests == []
