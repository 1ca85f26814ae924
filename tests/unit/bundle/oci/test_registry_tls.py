"""A registry with TLS: pushes and pulls, and deadlines for what comes through TLS and for TLS itself."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
import time

import pytest

pytest.importorskip("oras")
pytest.importorskip("cryptography")

from cutlass_aot.bundle.oci.pull import pull_bundle
from cutlass_aot.bundle.oci.push import push_bundle
from cutlass_aot.errors import RegistryError
from tests.support.clock import SOON
from tests.support.oci import tree
from tests.support.registries import FakeRegistry


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    (folder / "certificate").write_bytes(made.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key").write_bytes(private)
    return folder


@pytest.fixture
def secure(certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate / "certificate"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate", certificate / "key")

    class Secure(FakeRegistry):
        def get_request(self):
            connection, address = super().get_request()
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    with Secure() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


def test_what_is_pushed_comes_back(secure, bundle, tmp_path):
    push_bundle(bundle, f"{secure.name}/k/small:1", timeout=20)
    pull_bundle(f"{secure.name}/k/small:1", tmp_path / "out", timeout=20)
    assert tree(tmp_path / "out") == tree(bundle)


def test_an_answer_that_drips(secure, tmp_path):
    def drip(request):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            request.wfile.write(b"H")
            time.sleep(0.05)
        return True

    secure.fault = drip
    started = time.monotonic()
    with pytest.raises(RegistryError, match="has not answered in full within 1 seconds"):
        pull_bundle(f"{secure.name}/k/small:1", tmp_path / "out", timeout=1)
    assert time.monotonic() - started < SOON


def test_a_handshake_that_drips(tmp_path):
    ended = threading.Event()

    def drip(server):
        clients = []
        while not ended.is_set():
            try:
                clients.append(server.accept()[0])
                # The beginning of a record of 16.4 KB.
                clients[-1].sendall(b"\x16\x03\x03\x40\x00")
            except TimeoutError:
                pass
            for client in clients:
                try:
                    client.sendall(b"\0")
                except OSError:
                    continue
        for client in clients:
            client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        started = time.monotonic()
        with pytest.raises(RegistryError, match="has not answered in full within 1 seconds"):
            pull_bundle(f"127.0.0.1:{server.getsockname()[1]}/k/small:1", tmp_path / "out", timeout=1)
        assert time.monotonic() - started < SOON
        ended.set()
        thread.join()
