"""The client: whatever a registry answers, it ends in time with an error, and what is there stays."""

from __future__ import annotations

import gzip
import time

import pytest

pytest.importorskip("oras")

from cutlass_aot.bundle.oci import registry
from cutlass_aot.bundle.oci.pull import pull_bundle
from cutlass_aot.bundle.oci.push import push_bundle
from cutlass_aot.errors import (
    CorruptFile,
    RegistryError,
)
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from tests.support.oci import LIBRARY, do_pull, endless, on_blob, refused, tree
from tests.support.registries import (
    TOKEN,
)


def test_a_manifest_that_is_not_what_the_registry_says_is_refused(fake, there):
    fake.manifests["1"] += b" "
    fake.fault = lambda request: (
        request.path.endswith("/manifests/1")
        and not request.answer(200, fake.manifests["1"], Docker_Content_Digest="sha256:" + "0" * 64)
    )
    refused(fake, there, CorruptFile, "it was altered")


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
        (compressed, RegistryError, "a compressed answer that was not requested"),
        (redirected_to_a_file, RegistryError, "leads to an address"),
        (redirected_for_ever, RegistryError, "redirects more than 5 times"),
        (lambda request, data: request.answer(404), RegistryError, r"does not have .* \(status 404\)"),
        (lambda request, data: request.answer(500), RegistryError, "status 500"),
        (lambda request, data: request.answer(503, Retry_After="3600"), RegistryError, "status 503"),
    ],
)
@pytest.mark.parametrize("name", [LIBRARY, MANIFEST_NAME])
def test_a_blob_that_is_not_what_it_should_be(fake, there, name, answer, error, match):
    started = time.monotonic()
    on_blob(fake, name, answer)
    refused(fake, there, error, match)
    assert time.monotonic() - started < 10


def test_a_registry_that_fails_once_is_tried_again(fake, there, bundle):
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
    refused(fake, there, RegistryError, "has not arrived within", timeout=0.5)
    assert time.monotonic() - started < 3


def test_a_manifest_that_does_not_end(fake, there):
    fake.fault = lambda request: "/manifests/" in request.path and not endless(request, b"")
    refused(fake, there, RegistryError, "an answer that does not end")


def test_nobody_there(there):
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9 cannot be reached"):
        pull_bundle("127.0.0.1:9/k/small:1", there, plain_http=True)


def test_a_registry_without_tls_has_to_be_requested(fake, there):
    with pytest.raises(RegistryError, match="give --plain-http"):
        pull_bundle(f"{fake.name}/k/small:1", there)


@pytest.mark.parametrize("status", [400, 404, 413, 500])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_push_that_is_refused(fake, bundle, method, status):
    fake.fault = lambda request: request.command == method and not request.answer(status, TOKEN.encode())
    with pytest.raises(RegistryError, match=rf"\(status {status}\)") as raised:
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
    assert TOKEN not in str(raised.value)
    assert fake.manifests == {}


def test_a_registry_that_keeps_another_manifest(fake, bundle):
    fake.fault = lambda request: (
        "/manifests/" in request.path and not request.answer(201, Docker_Content_Digest="sha256:" + "0" * 64)
    )
    with pytest.raises(RegistryError, match="expected the bytes that were pushed"):
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)
