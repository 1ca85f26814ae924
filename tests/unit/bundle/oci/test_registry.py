"""The client: whatever a registry answers, it ends in time with an error, and what is there stays."""

from __future__ import annotations

import gzip
import socket
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
from tests.support.clock import SOON
from tests.support.oci import LIBRARY, do_pull, endless, on_blob, refused, tree
from tests.support.registries import (
    TOKEN,
    log_in,
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


def redirected_to(place):
    return lambda request, data: request.answer(307, Location=place)


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
        (
            redirected_to("file:///etc/passwd"),
            RegistryError,
            "leads to an address 'file'://, which is not followed",
        ),
        (redirected_for_ever, RegistryError, "redirects more than 5 times"),
        (
            lambda request, data: request.answer(307, Location="http://a:99999/"),
            RegistryError,
            "cannot be read",
        ),
        (lambda request, data: request.answer(307, Location="http://[/"), RegistryError, "cannot be read"),
        (
            lambda request, data: request.answer(307, Location=f"http://{'a' * 99}.b/"),
            RegistryError,
            "cannot be read|cannot be reached",
        ),
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
    assert time.monotonic() - started < SOON


def test_a_registry_that_fails_once_is_tried_again(fake, there, bundle):
    failures = iter([True])
    fake.fault = lambda request: next(failures, False) and not request.answer(503)
    do_pull(fake, there)
    assert tree(there) == tree(bundle)


def test_a_registry_that_is_silent(fake, there):
    on_blob(fake, LIBRARY, lambda request, data: time.sleep(60))
    started = time.monotonic()
    refused(fake, there, RegistryError, r"has not answered in full within 0\.3 seconds", timeout=0.3)
    assert time.monotonic() - started < SOON


def test_a_registry_that_is_silent_in_the_middle(fake, there, monkeypatch):
    monkeypatch.setattr(registry, "SLOWEST", 1 << 8)

    def stuck(request, data):
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data[:50])
        time.sleep(60)

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
    refused(fake, there, RegistryError, "has not answered in full within", timeout=0.5)
    assert time.monotonic() - started < SOON


def _now_and_then(piece, before=b""):
    """A peer that sends a piece every 50 ms, for a minute."""

    def answer(request, data=b""):
        request.wfile.write(before)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            request.wfile.write(piece)
            time.sleep(0.05)

    return answer


def _flood(piece):
    def answer(request, data=b""):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            request.wfile.write(piece * 100)

    return answer


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_now_and_then(b"H"), id="status line"),
        pytest.param(_now_and_then(b"x", b"HTTP/1.1 200 OK\r\nX-Long: "), id="headers"),
        pytest.param(_now_and_then(b"HTTP/1.1 100 Continue\r\n\r\n"), id="100 Continue"),
        pytest.param(_flood(b"HTTP/1.1 100 Continue\r\n\r\n"), id="100 Continue without a pause"),
        pytest.param(_now_and_then(b"0", CHUNKED), id="size of a chunk"),
        pytest.param(_now_and_then(b"1\r\nx\r\n", CHUNKED), id="chunks"),
        pytest.param(_now_and_then(b"X: y\r\n", CHUNKED + b"0\r\n"), id="trailers"),
        pytest.param(_flood(CHUNKED[:-2] + b"X: y\r\n"), id="headers without a pause"),
    ],
)
@pytest.mark.parametrize("what", ["/manifests/", "/blobs/", "/token"])
def test_a_registry_that_sends_something_now_and_then_for_ever(
    fake, there, tmp_path, monkeypatch, answer, what
):
    monkeypatch.setattr(registry, "SLOWEST", 1 << 30)
    if what == "/token":
        fake.login = "bearer"
        log_in(tmp_path / "docker", fake.name)
    fake.fault = lambda request: what in request.path and not answer(request)
    started = time.monotonic()
    refused(fake, there, RegistryError, "has not answered in full within|broke the connection", timeout=0.5)
    assert time.monotonic() - started < SOON


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_push_that_is_answered_for_ever(fake, bundle, method):
    answer = _now_and_then(b"HTTP/1.1 100 Continue\r\n\r\n")
    fake.fault = lambda request: request.command == method and not answer(request)
    started = time.monotonic()
    with pytest.raises(RegistryError, match="has not answered in full within"):
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True, timeout=0.5)
    assert time.monotonic() - started < SOON


def test_a_name_with_many_addresses_where_nobody_answers(there, monkeypatch):
    """Addresses share the time: each has no whole timeout of its own."""

    def resolved(host, port, *arguments, **options):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", 9)) for n in range(2, 202)]

    class Slow(socket.socket):
        def connect(self, address):
            time.sleep(min(self.gettimeout(), 0.2))
            raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(socket, "socket", Slow)
    started = time.monotonic()
    with pytest.raises(RegistryError, match="has not answered in full within 1 seconds"):
        pull_bundle("many.example.org/k/small:1", there, plain_http=True, timeout=1)
    assert time.monotonic() - started < SOON


def test_a_manifest_that_does_not_end(fake, there):
    fake.fault = lambda request: "/manifests/" in request.path and not endless(request, b"")
    refused(fake, there, RegistryError, "an answer that does not end")


def test_nobody_there(there):
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9 cannot be reached"):
        pull_bundle("127.0.0.1:9/k/small:1", there, plain_http=True)


def test_a_port_that_there_cannot_be(there):
    with pytest.raises(RegistryError, match="leads to an address that cannot be read"):
        pull_bundle("r.example.org:99999/k/small:1", there, plain_http=True, login_hosts=["a:99999"])


def test_a_registry_without_tls_has_to_be_requested(fake, there):
    with pytest.raises(RegistryError, match="give --plain-http"):
        pull_bundle(f"{fake.name}/k/small:1", there)


@pytest.mark.parametrize("place", ["http://[/x", "file:///tmp/x", "http://a:99999/"])
def test_an_upload_to_an_address_that_is_none(fake, bundle, place):
    fake.fault = lambda request: request.command == "POST" and not request.answer(202, Location=place)
    with pytest.raises(RegistryError, match=r"cannot be read|an address 'file'://, which is not followed"):
        push_bundle(bundle, f"{fake.name}/k/small:1", plain_http=True)


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
