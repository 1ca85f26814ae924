"""One repository of an OCI registry, which is not trusted, through the client ``oras``.

``oras`` reads docker's config file and calls its credential helpers, asks for tokens, and knows the addresses
of https://github.com/opencontainers/distribution-spec/blob/main/spec.md. It has no time limits, sends a
password to whatever host a registry names for the login and a token to whatever host an upload leads to,
retries for two minutes, and reads whole answers into memory. Therefore every request goes through
:meth:`Registry.do_request` and :class:`_Session`, and :func:`_blocks` reads every answer.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from cutlass_aot.bundle.oci.artifact import MANIFEST_TYPE, MAX_OCI_MANIFEST_BYTES
from cutlass_aot.bundle.oci.deadline import Deadline, with_deadline
from cutlass_aot.bundle.oci.reference import DIGEST, Reference
from cutlass_aot.errors import CorruptFile, RegistryError, ToolchainError
from cutlass_aot.runtime.optional_packages import optional
from cutlass_aot.schema.bundles.catalog import FileReference
from cutlass_aot.schema.encoding import digest

for _module in ("urllib3", "requests", "oras", "oras.provider"):
    optional(_module, ToolchainError, "the client for registries")

import oras.auth  # noqa: E402 - of a release that is known to do
import oras.auth.utils  # noqa: E402
import oras.provider  # noqa: E402
import oras.utils  # noqa: E402
import requests  # noqa: E402
import urllib3  # noqa: E402
from requests.adapters import HTTPAdapter  # noqa: E402
from urllib3.util import Retry  # noqa: E402

SLOWEST = 1 << 14
"""Bytes a second; a slower transfer counts as hanging."""
MAX_ANSWER_BYTES = MAX_OCI_MANIFEST_BYTES
"""Most bytes of an answer that is not a blob: manifests, tokens, errors."""

_CONNECT_SECONDS = 10.0
_RETRIES = 3
_MAX_REDIRECTS = 5
_BLOCK = 1 << 18
_NO_ANSWER = (
    requests.exceptions.InvalidURL, requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError
)  # fmt: skip
_PORTS = {"http": 80, "https": 443}


class Registry(oras.provider.Registry):  # type: ignore[misc]
    """A repository of a registry; close its ``session`` at the end.

    Without ``plain_http`` it may lead to addresses of HTTPS only. Each request, with its redirects, its login
    and its repetitions, may take ``timeout`` seconds, and as many more as its blob takes at :data:`SLOWEST`.
    Credentials are sent to the registry and to ``login_hosts`` alone. Every method raises
    :class:`RegistryError` if the registry cannot be reached or refuses.
    """

    def __init__(
        self, reference: Reference, *, plain_http: bool, timeout: float, login_hosts: Sequence[str] = ()
    ) -> None:
        super().__init__(insecure=plain_http)
        # The client logs what registries answer.
        logging.getLogger("oras.logger").addHandler(logging.NullHandler())
        self._deadline = Deadline(timeout)
        self.session = _Session(reference.registry, self._deadline, plain_http, login_hosts)
        self._reference = reference
        self._repository = self.get_container(f"{reference.registry}/{reference.repository}")
        self.auth = self._login("token")

    def manifest(self) -> bytes:
        """The manifest that the reference names; its digest is checked where one is known."""
        url = f"{self.prefix}://{self._repository.manifest_url(self._reference.tag_or_digest)}"
        answer = self.do_request(url, headers={"Accept": MANIFEST_TYPE})
        data: bytes = self._expect(answer, 200, str(self._reference)).content
        found = f"sha256:{digest(data)}"
        expected = self._reference.digest or answer.headers.get("Docker-Content-Digest", "")
        if DIGEST.fullmatch(expected) and found != expected:
            raise CorruptFile(
                f"the manifest of {self._reference} has {found}, expected {expected}: it was altered on its "
                "way or in the registry; push the bundle again"
            )
        return data

    def fetch(self, blob: FileReference, what: str, write: Callable[[bytes], object]) -> None:
        """Give a blob to ``write`` in pieces; they are verified only once this has returned.

        Never more than the blob's size is written. Errors call it ``what``.
        """
        hasher, total = hashlib.sha256(), 0
        with (
            self.get_blob(self._repository, f"sha256:{blob.sha256}", stream=True) as answer,
            self._explained(),
        ):
            self._deadline.start(blob.size / SLOWEST)
            claimed = self._expect(answer, 200, what).headers.get("Content-Length", str(blob.size))
            if claimed != str(blob.size):
                raise CorruptFile(f"{what} has {claimed[:40]!a} bytes in the registry, expected {blob.size}")
            for block in _blocks(answer.raw, blob.size):
                total += len(block)
                if total > blob.size:
                    raise CorruptFile(f"{what} is longer than the {blob.size} bytes expected")
                hasher.update(block)
                write(block)
        if total != blob.size:
            raise RegistryError(f"{what} was cut off after {total} of {blob.size} bytes: pull again")
        if hasher.hexdigest() != blob.sha256:
            raise CorruptFile(
                f"{what} has SHA-256 {hasher.hexdigest()}, expected {blob.sha256}: it was altered on its way "
                "or in the registry; push the bundle again"
            )

    def upload(self, blob: FileReference, source: bytes | BinaryIO, what: str) -> bool:
        """Put a blob into the repository; False if it was there already.

        The client's ``upload_blob`` is not used: it reads the whole file into memory.
        """
        name = f"sha256:{blob.sha256}"
        if self.blob_exists({"digest": name}, self._repository):
            return False
        url = f"{self.prefix}://{self._repository.upload_blob_url()}"
        started = self._expect(self.do_request(url, "POST"), 202, what)
        with self._explained():
            place = urljoin(url, started.headers.get("Location", ""))
            url = oras.utils.append_url_params(place, {"digest": name})
        headers = {"Content-Type": "application/octet-stream"}
        # An empty file would be sent as an endless one.
        answer = self.do_request(url, "PUT", source if blob.size else b"", headers, size=blob.size)
        self._expect(answer, 201, what)
        return True

    def put_manifest(self, data: bytes) -> str:
        """Put a manifest under the tag, and return its digest."""
        url = f"{self.prefix}://{self._repository.manifest_url(self._reference.tag)}"
        answer = self.do_request(url, "PUT", data, {"Content-Type": MANIFEST_TYPE})
        self._expect(answer, 201, f"the manifest of {self._reference}")
        expected = f"sha256:{digest(data)}"
        kept: str = answer.headers.get("Docker-Content-Digest", expected)
        if kept != expected:
            raise RegistryError(
                f"{self._reference.registry} keeps {kept[:80]!a} for the manifest {expected}: expected "
                "the bytes that were pushed; use a registry that keeps OCI manifests"
            )
        return kept

    def do_request(
        self,
        url: str,
        method: str = "GET",
        data: bytes | BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
        json: None = None,
        stream: bool = False,
        *,
        size: int = 0,
    ) -> requests.Response:
        """Make a request, with credentials where the registry wants them. The client's methods call this.

        Only the registry's own host gets credentials: uploads may lead to other hosts. ``size`` is that of
        ``data`` where it is large.
        """
        self._deadline.start(size / SLOWEST)
        sent = dict(headers or {})
        with self._explained():
            own = urlsplit(url).netloc == self._reference.registry
            if own:
                sent.update(self.auth.get_auth_header())
            answer = self.session.request(method, url, headers=sent, data=data, stream=stream)
            # 401 also stands for an expired token, and some registries send 403 for one of another scope.
            if own and answer.status_code in (401, 403):
                renewed = self._authenticated(answer, sent)
                if renewed is not None:
                    answer.close()
                    if data is not None and not isinstance(data, bytes):
                        data.seek(0)
                    answer = self.session.request(method, url, headers=renewed, data=data, stream=stream)
            return answer

    def _authenticated(self, answer: requests.Response, headers: dict[str, str]) -> dict[str, str] | None:
        """The headers of a refused request with the credentials that it lacked; None if there are none."""
        if headers.get("Authorization", "").startswith("Basic "):
            return None
        if answer.headers.get("WWW-Authenticate", "").partition(" ")[0].lower() == "basic":
            login = self._login("basic")
            if not hasattr(login, "_basic_auth"):
                return None
            self.auth = login
            return {**headers, **login.get_auth_header()}
        realm = oras.auth.utils.parse_auth_header(answer.headers.get("WWW-Authenticate", "")).realm or ""
        if "://" in realm:
            # The client puts http:// before what does not begin with http, and would name a host file.
            self.session.get_adapter(realm)
        try:
            # Without refresh, a token that has expired would be sent again.
            renewed, changed = self.auth.authenticate_request(answer, dict(headers), refresh=True)
        except (RegistryError, *_NO_ANSWER):
            raise
        except Exception as error:
            raise RegistryError(
                f"{self._reference.registry} asks for a login in a way that is not understood "
                f"({type(error).__name__}): look with docker login or oras login"
            ) from None
        return dict(renewed) if changed else None

    def _login(self, kind: str) -> Any:
        """A login of the client, with the credentials for this registry in docker's config file."""
        login = oras.auth.get_auth_backend(kind, self.session, self.prefix == "http")
        folder = os.environ.get("DOCKER_CONFIG")
        try:
            login.load_configs(self._repository, [str(Path(folder) / "config.json")] if folder else None)
        except Exception as error:
            raise RegistryError(
                f"the credentials for {self._reference.registry} cannot be read from docker's config file or "
                f"its helper ({type(error).__name__}): log in again with docker login or oras login"
            ) from None
        return login

    def _expect(self, answer: requests.Response, status: int, what: str) -> requests.Response:
        """Return an answer if it has this status, else raise an error that shows nothing of its text."""
        code, registry = answer.status_code, self._reference.registry
        if code == status:
            return answer
        log_in = f"log in with docker login {registry} or oras login, as a user that may do this"
        problem, advice = {
            401: ("refuses access to", log_in),
            403: ("refuses access to", log_in),
            404: ("does not have", "look at the name, the tag and the digest"),
            413: ("takes nothing as large as", "ask for a higher limit"),
        }.get(code, ("fails on", "try again later, or look at its log"))
        raise RegistryError(f"{registry} {problem} {what} (status {code}): {advice}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn connection errors into ones that say what to do. They show no URL: some contain keys."""
        try:
            yield
        # The standard library raises a ValueError for an address such as http://[.
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            # The error after the last attempt wraps the reason why that attempt failed.
            reason = getattr(error.args[0] if error.args else None, "reason", error)
            silent = isinstance(reason, (requests.Timeout, urllib3.exceptions.TimeoutError))
            if isinstance(error, ValueError):
                problem = "leads to an address that cannot be read: look at its settings"
            elif isinstance(error, requests.exceptions.TooManyRedirects):
                problem = f"redirects more than {_MAX_REDIRECTS} times: look at its settings"
            elif isinstance(error, requests.exceptions.SSLError):
                problem = (
                    "has no certificate that is trusted here: for authorities of your own set "
                    "REQUESTS_CA_BUNDLE, for a registry without TLS give --plain-http"
                )
            elif self._deadline.passed:
                problem = (
                    f"has not answered in full within {self._deadline.seconds:.4g} seconds: try again later, "
                    "or allow more with --timeout"
                )
            elif silent and not isinstance(reason, urllib3.exceptions.NewConnectionError):
                problem = f"was silent for {self._deadline.silence:g} seconds: try again later"
            else:
                problem = (
                    f"cannot be reached, or broke the connection off ({type(error).__name__}): look at its "
                    "name, its port and the network"
                )
            raise RegistryError(f"{self._reference.registry} {problem}") from None


class _Session(requests.Session):
    """A session with bounds, which sends credentials to the registry and to ``login_hosts`` alone.

    Proxies and certificates of the environment are used.
    """

    def __init__(
        self, registry: str, deadline: Deadline, plain_http: bool, login_hosts: Sequence[str]
    ) -> None:
        super().__init__()
        self._registry = registry
        self._schemes = ("https", "http") if plain_http else ("https",)
        # The registry itself is spoken to by one scheme, a login elsewhere by any that is allowed.
        own = "http" if plain_http else "https"
        hosts = [(own, registry), *((scheme, host) for scheme in self._schemes for host in login_hosts)]
        self._trusted = {_place(f"{scheme}://{host}") for scheme, host in hosts}
        self.max_redirects = _MAX_REDIRECTS
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # Otherwise a password of .netrc would be sent in place of the client's.
        self.auth = lambda request: request
        # Compressed answers could unpack to anything.
        self.headers["Accept-Encoding"] = "identity"
        self.adapters.clear()
        for scheme in self._schemes:
            self.mount(f"{scheme}://", _Bounded(deadline))

    def get_adapter(self, url: str, *arguments: Any, **options: Any) -> Any:
        """What sends a request to ``url``; see :class:`requests.Session`."""
        scheme = urlsplit(url).scheme
        if scheme == "http" and scheme not in self._schemes:
            raise RegistryError(
                f"{self._registry} leads to an address that is not https: expected one, as --plain-http was "
                "not given; give it for a registry of your own network"
            )
        if scheme not in self._schemes:
            raise RegistryError(
                f"{self._registry} leads to an address {scheme[:20]!a}://, which is not followed: expected "
                f"{' or '.join(self._schemes)}; look at its settings, and at the proxies before it"
            )
        return super().get_adapter(url, *arguments, **options)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request, also the client's for tokens; see :class:`requests.Session`."""
        url = request.url or ""
        # An address that would not be followed anyway is refused as that.
        self.get_adapter(url)
        if "Authorization" in request.headers and _place(url) not in self._trusted:
            host = urlsplit(url).netloc[:200]
            raise RegistryError(
                f"{self._registry} wants the password sent to {host!a}, which is another host: nothing was "
                f"sent; if that is where its users log in, give --login-host {ascii(host)[1:-1]}"
            )
        return super().send(request, **options)

    def should_strip_auth(self, old_url: str, new_url: str) -> bool:
        """Whether credentials are left out where one address redirects to another: if the host differs."""
        return _place(old_url) != _place(new_url)

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove credentials from a request that is redirected to another host.

        The method of ``requests`` also adds what ``.netrc`` has for that host: a registry could have any
        host's password sent there.
        """
        if self.should_strip_auth(response.request.url or "", prepared_request.url or ""):
            prepared_request.headers.pop("Authorization", None)


def _place(url: str) -> tuple[str, int | None]:
    """Host and port of an address; for a port that there cannot be none, and nothing is sent there."""
    parts = urlsplit(url)
    try:
        return parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "", None


class _Bounded(HTTPAdapter):
    """Sends all requests, also the client's for tokens, with bounds; reads every answer except a blob's."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

        class Attempts(Retry):
            def sleep(self, *arguments: Any) -> None:
                if not deadline.passed:
                    super().sleep(*arguments)

        retry = Attempts(
            total=_RETRIES,
            read=1,
            backoff_factor=0.5,
            status_forcelist=(429, 500, 502, 503, 504),
            allowed_methods=("GET", "HEAD"),
            raise_on_status=False,
            # The registry could ask for hours.
            respect_retry_after_header=False,
        )
        super().__init__(max_retries=retry)

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        """The connections to a host or a proxy; see :class:`requests.adapters.HTTPAdapter`."""
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        if pool.ConnectionCls is type(pool).ConnectionCls:
            pool.ConnectionCls = with_deadline(pool.ConnectionCls, self._deadline)
        return pool

    def send(self, *arguments: Any, **options: Any) -> requests.Response:
        """Send a request; see :class:`requests.adapters.HTTPAdapter`."""
        silence = self._deadline.silence
        options["timeout"] = (min(silence, _CONNECT_SECONDS), silence)
        answer = super().send(*arguments, **options)
        host = urlsplit(answer.url).hostname or "the registry"
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            answer.close()
            raise RegistryError(
                f"{host} sends a compressed answer that was not requested: expected the plain bytes; look at "
                "the proxies before the registry"
            )
        if not options.get("stream") or answer.is_redirect:
            data = b"".join(_blocks(answer.raw, MAX_ANSWER_BYTES))
            if len(data) > MAX_ANSWER_BYTES:
                answer.close()
                raise RegistryError(
                    f"{host} gives an answer that does not end: expected at most {MAX_ANSWER_BYTES} bytes; "
                    "look at the name, and at the proxies before the registry"
                )
            answer.raw.release_conn()
            answer.raw = io.BytesIO(data)
        return answer


def _blocks(raw: Any, limit: int) -> Iterator[bytes]:
    """An answer in pieces, at most ``limit`` + 1 bytes."""
    left = limit + 1
    while left > 0 and (block := raw.read1(min(left, _BLOCK), decode_content=False)):
        left -= len(block)
        yield block
