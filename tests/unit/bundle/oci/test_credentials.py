"""Credentials reach the registry that they are for, and nobody else."""

from __future__ import annotations

import pytest

pytest.importorskip("oras")

from cutlass_aot.bundle.oci import registry
from cutlass_aot.bundle.oci.push import push_bundle
from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.errors import (
    RegistryError,
    RegistryNameError,
)
from tests.support.oci import do_pull, refused, tree
from tests.support.registries import (
    PASSWORD,
    TOKEN,
    USER,
    fake_registry,
    log_in,
)


def test_a_password_in_a_name_is_not_repeated():
    with pytest.raises(RegistryNameError) as raised:
        Reference.parse(f"{USER}:{PASSWORD}@r.org/small:1")
    assert PASSWORD not in str(raised.value)


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
    opened = registry.Registry(Reference.parse("r.example.org/small:1"), plain_http=False, timeout=30)
    assert opened.session.trust_env


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
    requested = iter(range(1000))
    fake.fault = lambda request: (
        "/blobs/" in request.path and next(requested) == 3 and not request._challenge()
    )
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
    requested = Reference.parse("r.example.org/small:1")
    log_in(tmp_path / "docker", "r.example.org")
    opened = registry.Registry(requested, plain_http=False, timeout=30)
    with fake_registry() as thief, opened.session:
        answer = registry.requests.Response()
        answer.status_code = 401
        answer.headers["WWW-Authenticate"] = f'Bearer realm="http://{thief.name}/token",service="s"'
        monkeypatch.setattr(opened.session, "send", answering(opened.session.send, answer))
        with pytest.raises(RegistryError, match="an address that is not https"):
            opened.manifest()
        assert thief.requests == []


def answering(send, answer):
    def sent(request, **options):
        return answer if request.url.startswith("https://r.example.org/") else send(request, **options)

    return sent


@pytest.fixture
def elsewhere(fake, tmp_path):
    """A host that the registry names for the login; it gives tokens to whoever has the password."""
    with fake_registry() as other:
        fake.login = "bearer"
        log_in(tmp_path / "docker", fake.name)

        def challenged(request):
            realm = f"http://{other.name}/token"
            return not request._may() and not request.answer(
                401, WWW_Authenticate=f'Bearer realm="{realm}",service="s",scope="repository:k:pull"'
            )

        fake.fault = challenged
        yield other


def test_another_host_that_a_registry_names_for_the_login_gets_no_password(fake, there, elsewhere):
    message = refused(
        fake, there, RegistryError, rf"wants the password sent to '{elsewhere.name}', .*--login-host"
    )
    assert elsewhere.requests == []
    assert PASSWORD not in message


def test_a_host_for_the_login_can_be_named(fake, there, bundle, elsewhere):
    do_pull(fake, there, login_hosts=[elsewhere.name])
    assert tree(there) == tree(bundle)
    assert any("Authorization" in headers for headers in elsewhere.headers)


@pytest.mark.parametrize("options", [{}, {"login_hosts": ["127.0.0.1:1", "localhost"]}])
def test_another_port_of_the_registrys_host_is_another_host(fake, there, elsewhere, options):
    """A port may be another user's."""
    with pytest.raises(RegistryError, match="which is another host"):
        do_pull(fake, there, **options)
    assert elsewhere.requests == []


def test_a_token_without_a_password_may_come_from_another_host(fake, there, bundle, elsewhere, tmp_path):
    """As from public registries; there is nothing to lose."""
    (tmp_path / "docker" / "config.json").unlink()
    elsewhere.fault = lambda request: not request.answer(200, f'{{"token": "{TOKEN}"}}'.encode())
    do_pull(fake, there)
    assert tree(there) == tree(bundle)
    assert not any("Authorization" in headers for headers in elsewhere.headers)


def test_a_redirect_of_the_login_loses_the_password(fake, there, bundle, tmp_path):
    with fake_registry() as thief:
        fake.login = "bearer"
        log_in(tmp_path / "docker", fake.name)
        fake.fault = lambda request: (
            request.path.startswith("/token")
            and not request.answer(307, Location=f"http://{thief.name}{request.path}")
        )
        refused(fake, there, RegistryError, r"refuses access .*\(status 401\)")
        assert thief.requests
        assert not any("Authorization" in headers for headers in thief.headers)


@pytest.mark.parametrize("logged_in", [True, False])
def test_a_login_at_a_file_is_refused(fake, there, tmp_path, logged_in):
    if logged_in:
        log_in(tmp_path / "docker", fake.name)
    fake.fault = lambda request: (
        not request.answer(401, WWW_Authenticate='Bearer realm="file:///etc/passwd",service="s"')
    )
    refused(fake, there, RegistryError, "leads to an address 'file'://")
