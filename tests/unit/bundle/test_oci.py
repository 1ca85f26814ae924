"""Bundles in registries: what is pushed comes back, and nothing that a registry does harms what is there."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import sys
import time
from dataclasses import replace

import pytest

pytest.importorskip("oras")

from cutlass_aot.bundle.oci import manifest as oci_manifest
from cutlass_aot.bundle.oci import pull, registry, transport
from cutlass_aot.bundle.oci.manifest import ARTIFACT_TYPE, CONFIG_TYPE, TITLE
from cutlass_aot.bundle.oci.pull import pull_bundle
from cutlass_aot.bundle.oci.push import push_bundle
from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.bundle.verify_directory import verify_bundle
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import (
    BundleError,
    CorruptFile,
    CutlassAotError,
    RegistryError,
    RegistryNameError,
    SignatureError,
    ToolchainError,
    UntrustedBundle,
)
from cutlass_aot.runtime.files import trust
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME
from tests.support.registries import (
    PASSWORD,
    TOKEN,
    USER,
    fake_registry,
    log_in,
    real_registry,
    real_registry_program,
)
from tests.support.signing import without_cryptography
from tests.support.synthetic import plan


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """No credentials but a test's own, and no waiting between attempts."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(transport, "_RETRIES", 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two bundles, written once."""
    folder = tmp_path_factory.mktemp("made")
    write_bundle(plan(folder / "linked"), folder / "small")
    write_bundle(replace(plan(folder / "older"), version="0.0.1"), folder / "earlier")
    return folder


@pytest.fixture
def bundle(made, tmp_path):
    return shutil.copytree(made / "small", tmp_path / "made" / "small")


@pytest.fixture
def fake():
    with fake_registry() as server:
        yield server


@pytest.fixture(scope="module")
def pushed(made):
    """What a registry holds after a push."""
    with fake_registry() as server:
        push_bundle(made / "small", f"{server.name}/k/small:1", plain_http=True)
    return server


@pytest.fixture
def there(made, pushed, tmp_path, fake):
    """A bundle pushed as ``1`` to a fake registry, and an older one at the output."""
    fake.blobs.update(pushed.blobs)
    fake.manifests.update(pushed.manifests)
    return shutil.copytree(made / "earlier", tmp_path / "out" / "small")


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def left_behind(out):
    return [path.name for path in out.parent.iterdir() if path.name not in (out.name, f".{out.name}.lock")]


def do_pull(fake, out, asked=":1", **options):
    return pull_bundle(f"{fake.name}/k/small{asked}", out, plain_http=True, **options)


def refused(fake, out, error, match, asked=":1", **options):
    """A pull that fails: what is there stays, and nothing else is left. Gives the message."""
    before = tree(out)
    with pytest.raises(error) as raised:
        do_pull(fake, out, asked, **options)
    assert re.search(match, str(raised.value)), raised.value
    assert tree(out) == before
    assert left_behind(out) == []
    return str(raised.value)


def on_blob(fake, name, answer):
    """Have ``answer`` called for the blob of a file of the bundle."""
    layers = json.loads(fake.manifests["1"])["layers"]
    digest = next(layer["digest"] for layer in layers if layer["annotations"][TITLE] == name)

    def fault(request):
        if request.command != "GET" or not request.path.endswith(digest):
            return False
        answer(request, fake.blobs[digest])
        return True

    fake.fault = fault


def change_manifest(fake, change):
    body = json.loads(fake.manifests["1"])
    change(body)
    return fake.put("1", body)


def test_what_is_pushed_comes_back(fake, bundle, tmp_path):
    pushed = push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert pushed.uploaded == pushed.blobs == len(fake.blobs)
    out = tmp_path / "out" / "small"
    pulled = do_pull(fake, out)
    assert pulled.written
    assert pulled.name == pushed.name
    assert pulled.files == len(tree(bundle))
    assert tree(out) == tree(bundle)
    assert verify_bundle(out) == []
    assert left_behind(out) == []
    assert {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()} == {0o644}


def test_a_second_push_sends_nothing_and_a_second_pull_fetches_two_small_files(fake, bundle, tmp_path):
    push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True).uploaded == 0
    do_pull(fake, tmp_path / "out")
    fake.requests.clear()
    assert not do_pull(fake, tmp_path / "out").written
    assert len(fake.requests) == 2


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


def test_a_variant_of_a_bundle_says_which(fake, tmp_path):
    write_bundle(replace(plan(tmp_path / "linked"), variant="sm90a"), tmp_path / "part")
    push_bundle(tmp_path / "part", f"{fake.name}/k/small:1", plain_http=True)
    config = json.loads(fake.blobs[json.loads(fake.manifests["1"])["config"]["digest"]])
    assert config["variant"] == "sm90a"
    do_pull(fake, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "part")


def test_a_damaged_bundle_is_not_pushed(fake, bundle):
    (bundle / CATALOG_NAME).write_bytes(b"other")
    with pytest.raises(BundleError, match=r"is damaged: catalog\.msgpack"):
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert fake.requests == []


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
    assert Reference.parse(f"r.example.org/small@{digest}").asked == digest
    assert Reference.parse(f"r.example.org/small:1@{digest}").asked == digest
    assert str(Reference.parse(f"r.example.org/small:1@{digest}")) == f"r.example.org/small:1@{digest}"


def test_a_password_in_a_name_is_not_repeated():
    with pytest.raises(RegistryNameError) as raised:
        Reference.parse(f"{USER}:{PASSWORD}@r.org/small:1")
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize("name", ["r.org/small", "r.org/small@sha256:" + "0" * 64])
def test_a_push_needs_a_tag(bundle, name):
    with pytest.raises(RegistryNameError, match="expected registry/repository:tag"):
        push_bundle(bundle, name)


def test_a_pull_needs_a_tag_or_a_digest(tmp_path):
    with pytest.raises(RegistryNameError, match="neither a tag nor a digest"):
        pull_bundle("r.org/small", tmp_path)


def test_by_digest_it_is_what_was_pushed(fake, there, bundle):
    digest = "sha256:" + hashlib.sha256(fake.manifests["1"]).hexdigest()
    fake.manifests[digest] = fake.manifests[digest].replace(b"sha256", b"sha257", 1)
    refused(fake, there, CorruptFile, "it was altered", f"@{digest}")
    fake.put("1", fake.manifests["1"])
    assert do_pull(fake, there, f"@{digest}").name.endswith(digest)
    assert tree(there) == tree(bundle)


def test_a_manifest_that_is_not_what_the_registry_says_is_refused(fake, there):
    fake.manifests["1"] += b" "
    fake.fault = lambda request: (
        request.path.endswith("/manifests/1")
        and not request.answer(200, fake.manifests["1"], Docker_Content_Digest="sha256:" + "0" * 64)
    )
    refused(fake, there, CorruptFile, "it was altered")


LIBRARY = "lib/x86_64/launcher.so.zst"


def flipped(request, data):
    request.answer(200, data[:100] + bytes((data[100] ^ 1,)) + data[101:])


def shortened(request, data):
    request.answer(200, data[:-1])


def lengthened(request, data):
    request.answer(200, data + b"\0")


def cut_off(request, data):
    request.send_response(200)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data[:50])
    request.close_connection = True


def cut_off_without_a_length(request, data):
    request.send_response(200)
    request.send_header("Connection", "close")
    request.end_headers()
    request.wfile.write(data[:50])
    request.close_connection = True


def endless(request, data):
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    for _ in range(100_000):
        request.wfile.write(b"400\r\n" + b"\0" * 1024 + b"\r\n")


def compressed(request, data):
    request.answer(200, gzip.compress(data), Content_Encoding="gzip")


def redirected_to_a_file(request, data):
    request.answer(307, Location="file:///etc/passwd")


def redirected_for_ever(request, data):
    request.answer(307, Location=request.path)


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (flipped, CorruptFile, "has SHA-256 .*, expected"),
        (shortened, CorruptFile, r"bytes in the registry, expected \d+"),
        (lengthened, CorruptFile, r"bytes in the registry, expected \d+"),
        (cut_off, RegistryError, "broke the connection off"),
        (cut_off_without_a_length, RegistryError, r"was cut off after 50 of \d+ bytes"),
        (endless, CorruptFile, r"is longer than the \d+ bytes expected"),
        (compressed, RegistryError, "a compressed answer that was not asked for"),
        (redirected_to_a_file, RegistryError, "leads to an address"),
        (redirected_for_ever, RegistryError, "redirects more than 5 times"),
        (lambda request, data: request.answer(404), RegistryError, r"is not in .* \(status 404\)"),
        (lambda request, data: request.answer(500), RegistryError, "answers 500"),
        (lambda request, data: request.answer(503, Retry_After="3600"), RegistryError, "answers 503"),
    ],
)
@pytest.mark.parametrize("name", [LIBRARY, MANIFEST_NAME])
def test_a_blob_that_is_not_what_it_should_be(fake, there, name, answer, error, match):
    started = time.monotonic()
    on_blob(fake, name, answer)
    refused(fake, there, error, match)
    assert time.monotonic() - started < 10


def test_a_registry_that_fails_once_is_asked_again(fake, there, bundle):
    failures = iter([True])
    fake.fault = lambda request: next(failures, False) and not request.answer(503)
    do_pull(fake, there)
    assert tree(there) == tree(bundle)


def test_a_registry_that_is_silent(fake, there):
    on_blob(fake, LIBRARY, lambda request, data: time.sleep(3))
    started = time.monotonic()
    refused(fake, there, RegistryError, r"was silent for 0\.3 seconds", timeout=0.3)
    assert time.monotonic() - started < 3


def test_a_registry_that_is_silent_in_the_middle(fake, there):
    def stuck(request, data):
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data[:50])
        time.sleep(3)

    on_blob(fake, LIBRARY, stuck)
    refused(fake, there, RegistryError, r"was silent for 0\.3 seconds", timeout=0.3)


@pytest.mark.parametrize("what", ["blob", "manifest"])
def test_a_registry_that_trickles(fake, there, monkeypatch, what):
    monkeypatch.setattr(registry, "SLOWEST", 1 << 30)

    def trickle(request, data):
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        for byte in data:
            request.wfile.write(bytes((byte,)))
            time.sleep(0.02)

    if what == "blob":
        on_blob(fake, LIBRARY, trickle)
    else:
        fake.fault = lambda request: (
            "/manifests/" in request.path and not trickle(request, fake.manifests["1"])
        )
    started = time.monotonic()
    refused(fake, there, RegistryError, "bytes a second|does not end", timeout=0.5)
    assert time.monotonic() - started < 3


def test_a_manifest_that_does_not_end(fake, there):
    fake.fault = lambda request: "/manifests/" in request.path and not endless(request, b"")
    refused(fake, there, RegistryError, "an answer that does not end")


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
        (lambda body: body.update(mediaType="application/vnd.oci.image.index.v1"), RegistryError, "type"),
        (lambda body: body.update(schemaVersion=1), RegistryError, "of media type"),
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
    refused(fake, there, CutlassAotError, "JSON|not a bundle|of media type")


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
    monkeypatch.setattr(oci_manifest, "MAX_BUNDLE_BYTES", 1000)
    refused(fake, there, CorruptFile, "bytes together, expected at most 1000")
    assert fake.fetched() == []


def test_a_disk_without_room_is_noticed_before(fake, there, monkeypatch):
    monkeypatch.setattr(pull.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1000, 990, 10))
    refused(fake, there, RegistryError, "10 are free")
    assert len(fake.fetched()) == 1


def test_a_disk_that_is_full_after_all(fake, there, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(pull, "create", full)
    refused(fake, there, BundleError, "No space left on device.* pull again")


@pytest.fixture
def key(tmp_path):
    """A private key; its public one is beside it."""
    pytest.importorskip("cryptography")
    from cutlass_aot.bundle.sign import new_key

    (tmp_path / "keys").mkdir()
    for name in ("ours", "other"):
        new_key(tmp_path / "keys" / f"{name}.pem")
    return tmp_path / "keys" / "ours.pem"


def sign(bundle, key):
    from cutlass_aot.bundle.sign import KeyFile, sign_bundle

    sign_bundle(bundle, KeyFile(key, lambda: ""))


def public(key, name="ours"):
    (found,) = (path for path in key.parent.iterdir() if path.name.startswith(name) and path.suffix == ".pub")
    return found


def test_signatures_go_along(fake, bundle, tmp_path, key):
    sign(bundle, key)
    push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    do_pull(fake, tmp_path / "out", keys=[public(key)])
    assert tree(tmp_path / "out") == tree(bundle)
    assert any(path.startswith("signatures/") for path in tree(bundle))
    assert not do_pull(fake, tmp_path / "out", keys=[public(key)]).written
    # Unsigned since: another bundle, though its manifest is the same.
    shutil.rmtree(bundle / "signatures")
    push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert do_pull(fake, tmp_path / "out").written
    assert tree(tmp_path / "out") == tree(bundle)


@pytest.mark.parametrize("signed", [False, True])
def test_what_nobody_trusted_has_signed_is_refused_before_anything_large_is_fetched(
    fake, there, bundle, key, signed
):
    if signed:
        sign(bundle, key)
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    fake.requests.clear()
    message = refused(fake, there, UntrustedBundle, "signed", keys=[public(key, "other")])
    assert f"{fake.name}/k/small:1" in message
    assert "staging" not in message
    assert len(fake.fetched()) == 1 + signed
    # Also one that is there already.
    do_pull(fake, there)
    refused(fake, there, UntrustedBundle, "signed", keys=[public(key, "other")])


def test_the_keys_that_programs_require_count_too(fake, there, key, monkeypatch):
    monkeypatch.setenv("CUTLASS_AOT_TRUSTED_KEYS", str(public(key)))
    monkeypatch.setattr(trust, "_process", trust._Process())
    refused(fake, there, UntrustedBundle, "CUTLASS_AOT_TRUSTED_KEYS")


def test_a_key_that_cannot_be_read_is_told_first(fake, there, key):
    refused(fake, there, SignatureError, "cannot be read", keys=[key.parent / "none.pub"])
    assert fake.requests == []


def test_an_interrupt_leaves_nothing(fake, there, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry.Registry, "fetch", interrupt)
    refused(fake, there, KeyboardInterrupt, "")


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


def test_other_clients_write_the_bundle(fake, there, bundle, tmp_path):
    """By the titles alone."""
    client = pytest.importorskip("oras.client").OrasClient(insecure=True)
    client.pull(target=f"{fake.name}/k/small:1", outdir=str(tmp_path / "other"))
    assert tree(tmp_path / "other") == tree(bundle)


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
    refused(fake, there, CorruptFile, "is no sound bundle")


def test_what_is_no_bundle_is_not_replaced(fake, there, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(BundleError, match=r"a directory that holds 'letter\.txt'"):
        do_pull(fake, tmp_path / "mine")
    assert tree(tmp_path / "mine") == {"letter.txt": b"dear"}


def test_blobs_may_lie_on_another_host_which_sees_no_password(fake, there, bundle, tmp_path):
    with fake_registry() as storage:
        storage.blobs = dict(fake.blobs)
        fake.login = "basic"
        log_in(tmp_path / "docker", fake.name)
        elsewhere = f"http://localhost:{storage.server_address[1]}"
        fake.fault = lambda request: (
            "/blobs/" in request.path
            and not request.answer(307, Location=f"{elsewhere}{request.path}?key={TOKEN}")
        )
        do_pull(fake, there)
        assert storage.headers
        assert not any("Authorization" in headers for headers in storage.headers)
    assert tree(there) == tree(bundle)


@pytest.mark.parametrize("path", ["/manifests/", "/blobs/", "/token"])
def test_passwords_for_other_hosts_stay_in_netrc(fake, there, bundle, tmp_path, monkeypatch, path):
    """A registry cannot have them sent by a redirect; what else is in the environment counts."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine localhost login {USER} password {PASSWORD}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    fake.login = "bearer"
    log_in(tmp_path / "docker", fake.name)
    with fake_registry() as other:
        other.blobs, other.manifests = dict(fake.blobs), dict(fake.manifests)
        elsewhere = f"http://localhost:{other.server_address[1]}"
        fake.fault = lambda request: (
            path in request.path and not request.answer(307, Location=f"{elsewhere}{request.path}")
        )
        if path == "/token":
            # There is nothing to be had without a password, which is not given.
            refused(fake, there, RegistryError, r"refuses access .*\(status 401\)")
        else:
            do_pull(fake, there)
            assert tree(there) == tree(bundle)
        assert other.headers
        assert not any("Authorization" in headers for headers in other.headers)
    with registry.Registry(Reference.parse("r.example.org/small:1")) as opened:
        assert opened._session.trust_env


def test_uploads_may_go_to_another_host_which_sees_no_password(fake, bundle, tmp_path):
    with fake_registry() as storage:
        fake.login = "basic"
        log_in(tmp_path / "docker", fake.name)
        elsewhere = f"http://{storage.name}/v2/k/small/blobs/uploads/x"
        fake.fault = lambda request: (
            request.command == "POST" and request._may() and not request.answer(202, Location=elsewhere)
        )
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
        assert len(storage.blobs) == len(tree(bundle)) + 1
        assert not any("Authorization" in headers for headers in storage.headers)


@pytest.mark.parametrize("login", ["basic", "bearer"])
def test_credentials_are_dockers(fake, bundle, tmp_path, login):
    fake.login = login
    log_in(tmp_path / "docker", fake.name)
    push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    do_pull(fake, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(bundle)


@pytest.mark.parametrize("login", ["basic", "bearer"])
@pytest.mark.parametrize("password", [None, "a-wrong-password"])
def test_without_the_right_password(fake, there, bundle, tmp_path, login, password, capfd):
    fake.login = login
    if password:
        log_in(tmp_path / "docker", fake.name, password)
    message = refused(fake, there, RegistryError, r"refuses access .*\(status 401\): log in")
    with pytest.raises(RegistryError, match=r"\(status 401\)") as raised:
        push_bundle(bundle, f"{fake.name}/k/small:2", plain_http=True)
    assert "2" not in fake.manifests
    for text in (message, str(raised.value), *capfd.readouterr()):
        assert not any(secret in text for secret in (PASSWORD, "a-wrong-password", TOKEN))


def test_a_token_that_expires_is_renewed(fake, there, bundle, tmp_path):
    fake.login = "bearer"
    log_in(tmp_path / "docker", fake.name)
    asked = iter(range(1000))
    fake.fault = lambda request: "/blobs/" in request.path and next(asked) == 3 and not request._challenge()
    do_pull(fake, there)
    assert tree(there) == tree(bundle)


def test_a_refusal_is_told(fake, there):
    fake.fault = lambda request: not request.answer(403)
    refused(fake, there, RegistryError, r"refuses access .*\(status 403\)")


def test_a_docker_config_that_cannot_be_read(fake, there, tmp_path):
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(f'{{"auths": {PASSWORD}')
    message = refused(fake, there, RegistryError, "credentials for .* cannot be read")
    assert PASSWORD not in message


def test_a_password_is_never_sent_without_tls(bundle, tmp_path, monkeypatch):
    """A registry with TLS that asks for the login at an address without."""
    asked = Reference.parse("r.example.org/small:1")
    log_in(tmp_path / "docker", "r.example.org")
    with fake_registry() as thief, registry.Registry(asked) as opened:
        answer = transport.requests.Response()
        answer.status_code = 401
        answer.headers["WWW-Authenticate"] = f'Bearer realm="http://{thief.name}/token",service="s"'
        monkeypatch.setattr(opened._session, "send", answering(opened._session.send, answer))
        with pytest.raises(RegistryError, match="an address that is not https"):
            opened.manifest()
        assert thief.requests == []


def answering(send, answer):
    def sent(request, **options):
        return answer if request.url.startswith("https://r.example.org/") else send(request, **options)

    return sent


def test_nobody_there(there):
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9 cannot be reached"):
        pull_bundle("127.0.0.1:9/k/small:1", there, plain_http=True)


def test_a_registry_without_tls_needs_to_be_asked_for(fake, there):
    with pytest.raises(RegistryError, match="give --plain-http"):
        pull_bundle(f"{fake.name}/k/small:1", there)


@pytest.mark.parametrize("status", [400, 404, 413, 500])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_push_that_is_refused(fake, bundle, method, status):
    fake.fault = lambda request: request.command == method and not request.answer(status, TOKEN.encode())
    with pytest.raises(RegistryError, match=rf"\(status {status}\)|answers {status}") as raised:
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert TOKEN not in str(raised.value)
    assert fake.manifests == {}


def test_a_registry_that_keeps_another_manifest(fake, bundle):
    fake.fault = lambda request: (
        "/manifests/" in request.path and not request.answer(201, Docker_Content_Digest="sha256:" + "0" * 64)
    )
    with pytest.raises(RegistryError, match="expected the bytes that were pushed"):
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)


def test_more_files_than_a_manifest_has_room_for(fake, bundle, monkeypatch):
    monkeypatch.setattr(oci_manifest, "MAX_OCI_MANIFEST_BYTES", 1000)
    with pytest.raises(RegistryError, match="registries take 1000: build several bundles"):
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert fake.requests == []


def test_without_the_client_it_says_what_to_install(bundle, monkeypatch):
    monkeypatch.delitem(sys.modules, "cutlass_aot.bundle.oci.registry")
    monkeypatch.setitem(sys.modules, "oras", None)
    with pytest.raises(ToolchainError, match=r"pip install 'cutlass-aot\[oci\]'"):
        push_bundle(bundle, "r.example.org/small:1")


def test_the_commands(fake, bundle, tmp_path, capsys):
    for arguments, status in (
        (["push", str(bundle), f"{fake.name}/k/small:1", "--plain-http"], 0),
        (["pull", f"{fake.name}/k/small:1", "-o", str(tmp_path / "out"), "--plain-http"], 0),
        (["pull", f"{fake.name}/k/small:1", "-o", str(tmp_path / "out"), "--plain-http", "--json"], 0),
        (["pull", f"{fake.name}/k/small:2", "-o", str(tmp_path / "out"), "--plain-http"], 1),
        (["pull", "small", "-o", str(tmp_path / "out")], 2),
    ):
        with pytest.raises(SystemExit) as raised:
            main(["bundle", *arguments])
        assert raised.value.code == status
    printed = capsys.readouterr()
    name = f"{fake.name}/k/small@sha256:{hashlib.sha256(fake.manifests['1']).hexdigest()}"
    first, second, *rest = printed.out.splitlines()
    count = len(tree(bundle))
    assert first == f"{name}: {count + 1} blobs, {count + 1} of them new"
    assert second.startswith(f"{tmp_path / 'out'}: {count} files, ")
    assert json.loads("\n".join(rest))["written"] is False
    assert "(status 404)" in printed.err
    assert "small@" not in printed.err


def test_signatures_that_nobody_can_check_are_told(fake, bundle, tmp_path, key, capsys, monkeypatch):
    sign(bundle, key)
    without_cryptography(monkeypatch)
    for arguments, path in (
        (["push", str(bundle), f"{fake.name}/k/small:2"], bundle),
        (["pull", f"{fake.name}/k/small:2", "-o", str(tmp_path / "out")], tmp_path / "out"),
    ):
        with pytest.raises(SystemExit) as raised:
            main(["bundle", *arguments, "--plain-http"])
        error = capsys.readouterr().err
        assert (raised.value.code, error.count(f"{path}: signatures not checked: ")) == (0, 1)


@pytest.fixture
def program():
    found = real_registry_program()
    if found is None:
        pytest.skip(
            "no docker-registry: install the distribution's, or `make registry` (Debian, needs no root)"
        )
    return found


def test_a_real_registry_that_wants_a_login(program, bundle, tmp_path):
    with real_registry(program, tmp_path / "registry", login=True) as host:
        name = f"{host}/team/small:1.0"
        with pytest.raises(RegistryError, match=r"refuses access .*\(status 401\)"):
            push_bundle(bundle, name, plain_http=True)
        log_in(tmp_path / "docker", host, "a-wrong-password")
        with pytest.raises(RegistryError, match=r"refuses access .*\(status 401\)"):
            push_bundle(bundle, name, plain_http=True)
        log_in(tmp_path / "docker", host)
        pushed = push_bundle(bundle, name, plain_http=True)
        assert pull_bundle(name, tmp_path / "out", plain_http=True).name == pushed.name
        assert tree(tmp_path / "out") == tree(bundle)


def test_a_real_registry(program, bundle, tmp_path):
    with real_registry(program, tmp_path / "registry") as host:
        pushed = push_bundle(bundle, f"{host}/team/small:1.0", plain_http=True)
        assert push_bundle(bundle, f"{host}/team/small:latest", plain_http=True).uploaded == 0
        for number, asked in enumerate((f"{host}/team/small:1.0", f"{host}/team/small:latest", pushed.name)):
            out = tmp_path / f"out{number}"
            assert pull_bundle(asked, out, plain_http=True).name == pushed.name
            assert tree(out) == tree(bundle)
        with pytest.raises(RegistryError, match="status 404"):
            pull_bundle(f"{host}/team/small:2.0", tmp_path / "none", plain_http=True)
        # On the registry's disk: found out by it or by us, and never put in place.
        blobs = [path for path in (tmp_path / "registry" / "data").rglob("data") if path.stat().st_size > 30]
        damaged = next(path for path in blobs if path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd")
        data = bytearray(damaged.read_bytes())
        data[20] ^= 1
        damaged.write_bytes(data)
        with pytest.raises(CorruptFile, match="SHA-256"):
            pull_bundle(pushed.name, tmp_path / "none", plain_http=True)
        assert not (tmp_path / "none").exists()
