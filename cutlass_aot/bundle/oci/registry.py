"""One repository of an OCI registry, through the client ``oras``: asked for blobs and manifests, not trusted.

The client gives credentials (docker's config file, its helpers, tokens) and requests' session. What it lacks
is here: an answer that never comes, never ends or leads to plain HTTP is an error, in seconds. Requests as of
https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

import oras.auth
import oras.auth.utils
import oras.container
import oras.utils
import requests
import urllib3

from cutlass_aot.bundle.oci.client import TIMEOUT
from cutlass_aot.bundle.oci.manifest import MANIFEST_TYPE
from cutlass_aot.bundle.oci.reference import DIGEST, Reference
from cutlass_aot.bundle.oci.transport import Bounded, Session
from cutlass_aot.errors import CorruptFile, RegistryError
from cutlass_aot.schema.bundles.catalog import FileReference

SLOWEST = 1 << 14
"""Bytes a second; what comes slower counts as hanging."""

_MAX_REDIRECTS = 5
_BLOCK = 1 << 18
_NO_HTTPS = (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL)
_NO_ANSWER = (*_NO_HTTPS, requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError)


class Registry:
    """A repository of a registry.

    Args:
        reference: what names it.
        plain_http: whether it is spoken to by plain HTTP; otherwise nothing is, whatever it answers.
        timeout: seconds that it may be silent.

    Raises:
        RegistryError: if docker's config file cannot be used.
    """

    def __init__(self, reference: Reference, *, plain_http: bool = False, timeout: float = TIMEOUT) -> None:
        self._reference = reference
        self._timeout = timeout
        self._scheme = "http" if plain_http else "https"
        self._session = Session()
        self._session.max_redirects = _MAX_REDIRECTS
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # Or a password of .netrc would be sent in place of the client's; redirects do without it too.
        self._session.auth = lambda request: request
        # Compressed answers could unpack to anything.
        self._session.headers["Accept-Encoding"] = "identity"
        if not plain_http:
            del self._session.adapters["http://"]
        for prefix in list(self._session.adapters):
            self._session.mount(prefix, Bounded(timeout))
        # The client logs what registries answer.
        logging.getLogger("oras.logger").addHandler(logging.NullHandler())
        self._tokens = self._login("token")
        self._basic: Any = None

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def _login(self, kind: str) -> Any:
        """A login of the client, with the credentials that docker's config file has for this registry."""
        login = oras.auth.get_auth_backend(kind, self._session, self._scheme == "http")
        container = oras.container.Container(f"{self._reference.registry}/{self._reference.repository}")
        folder = os.environ.get("DOCKER_CONFIG")
        own = str(Path(folder) / "config.json") if folder else None
        try:
            login.load_configs(container, [own] if own and Path(own).exists() else None)
        except Exception as error:
            raise RegistryError(
                f"the credentials for {self._reference.registry} cannot be read from docker's config file or "
                f"its helper ({type(error).__name__}): log in again with docker login or oras login"
            ) from None
        return login

    def manifest(self) -> bytes:
        """The bytes of the manifest that was asked for, with its digest checked where it is known.

        Raises:
            RegistryError: if it is not there, or the registry cannot be asked.
            CorruptFile: if it has another digest.
        """
        asked = self._reference.asked
        with self._asked("GET", f"manifests/{asked}", headers={"Accept": MANIFEST_TYPE}) as answer:
            if answer.status_code != 200:
                raise self._refused(answer, str(self._reference))
            data: bytes = answer.content
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
        expected = self._reference.digest or answer.headers.get("Docker-Content-Digest", "")
        if DIGEST.fullmatch(expected) and found != expected:
            raise CorruptFile(
                f"the manifest of {self._reference} has {found}, expected {expected}: it was altered on its "
                "way or in the registry"
            )
        return data

    def fetch(self, blob: FileReference, what: str, write: Callable[[bytes], object]) -> None:
        """Read a blob in pieces and hand each on. What was handed on is good only once this has returned.

        Args:
            blob: its size and digest; no byte more is read.
            what: how to call it in an error.
            write: called with each piece.

        Raises:
            RegistryError: if it is not there, cut off or too slow, or the registry cannot be asked.
            CorruptFile: if its size or digest is another.
        """
        with self._asked("GET", f"blobs/sha256:{blob.sha256}", stream=True) as answer:
            if answer.status_code != 200:
                raise self._refused(answer, what)
            claimed = answer.headers.get("Content-Length", str(blob.size))
            if claimed != str(blob.size):
                raise CorruptFile(f"{what} has {claimed[:40]!a} bytes in the registry, expected {blob.size}")
            hasher, total = hashlib.sha256(), 0
            for block in self._blocks(answer.raw, blob.size, what):
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

    def _blocks(self, raw: Any, size: int, what: str) -> Iterator[bytes]:
        """Pieces of an answer, one byte more than ``size`` at most, as long as they come fast enough."""
        end = time.monotonic() + self._timeout + size / SLOWEST
        left = size + 1
        while left > 0:
            # What is there, not all that is asked for: a trickle must not hold this loop up.
            block = raw.read1(min(left, _BLOCK), decode_content=False)
            if not block:
                return
            left -= len(block)
            yield block
            if time.monotonic() > end:
                raise RegistryError(
                    f"{what} came at less than {SLOWEST} bytes a second: pull again when the registry is "
                    "faster"
                )

    def has(self, blob: FileReference) -> bool:
        """Whether a blob is in the repository.

        Raises:
            RegistryError: if the registry cannot be asked.
        """
        with self._asked("HEAD", f"blobs/sha256:{blob.sha256}") as answer:
            if answer.status_code not in (200, 404):
                raise self._refused(answer, f"the repository of {self._reference}")
            return bool(answer.status_code == 200)

    def upload(self, blob: FileReference, source: BinaryIO, what: str) -> None:
        """Put a blob into the repository.

        Args:
            blob: its size and digest, which the registry holds it against.
            source: a file, or bytes in memory, read once.
            what: how to call it in an error.

        Raises:
            RegistryError: if the registry refuses it, or cannot be asked.
        """
        with self._asked("POST", "blobs/uploads/") as answer:
            place = answer.headers.get("Location", "")
            if answer.status_code != 202 or not place:
                raise self._refused(answer, what)
        place = urljoin(self._url("blobs/uploads/"), place)
        target = oras.utils.append_url_params(place, {"digest": f"sha256:{blob.sha256}"})
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        # An empty file would be sent as an endless one.
        body = source if blob.size else b""
        with self._asked("PUT", target, headers=headers, body=body) as answer:
            if answer.status_code != 201:
                raise self._refused(answer, what)

    def put_manifest(self, data: bytes) -> str:
        """Put a manifest under the tag, and give its digest.

        Raises:
            RegistryError: if the registry refuses it, or keeps another.
        """
        headers = {"Content-Type": MANIFEST_TYPE}
        path = f"manifests/{self._reference.tag}"
        with self._asked("PUT", path, headers=headers, body=data) as answer:
            if answer.status_code != 201:
                raise self._refused(answer, f"the manifest of {self._reference}")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        kept = answer.headers.get("Docker-Content-Digest", digest)
        if kept != digest:
            raise RegistryError(
                f"{self._reference.registry} keeps {kept[:80]!a} for the manifest {digest}: expected "
                "the bytes that were pushed; use a registry that keeps OCI manifests"
            )
        return digest

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self._reference.registry}/v2/{self._reference.repository}/{path}"

    @contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | BinaryIO | None = None,
        stream: bool = False,
    ) -> Iterator[requests.Response]:
        """An answer, asked for with credentials where the registry wants them; closed at the end.

        What goes wrong in what is done with the answer (a connection that breaks) is told the same way.
        """
        url = path if "://" in path else self._url(path)
        try:
            answer = self._answer(method, url, dict(headers or {}), body, stream)
            try:
                yield answer
            finally:
                answer.close()
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise self._failed(error) from None

    def _answer(
        self, method: str, url: str, headers: dict[str, str], body: bytes | BinaryIO | None, stream: bool
    ) -> requests.Response:
        # Where a registry sends an upload elsewhere, its credentials are nobody's business there.
        own = urlsplit(url).netloc == self._reference.registry
        if own:
            headers.update((self._basic or self._tokens).get_auth_header())
        answer = self._session.request(method, url, headers=headers, data=body, stream=stream)
        # 401 for a token that has expired too, 403 by registries for one of another scope.
        if not own or answer.status_code not in (401, 403) or not self._authenticate(answer, headers):
            return answer
        answer.close()
        if body is not None and not isinstance(body, bytes):
            body.seek(0)
        return self._session.request(method, url, headers=headers, data=body, stream=stream)

    def _authenticate(self, answer: requests.Response, headers: dict[str, str]) -> bool:
        """Put into ``headers`` what a refused request lacked, if there is any."""
        challenge = answer.headers.get("WWW-Authenticate", "")
        if self._basic is not None or not challenge:
            return False
        if challenge.partition(" ")[0].lower() == "basic":
            basic = self._login("basic")
            if not hasattr(basic, "_basic_auth"):
                return False
            self._basic = basic
            headers.update(basic.get_auth_header())
            return True
        try:
            renewed, changed = self._tokens.authenticate_request(answer, headers, refresh=True)
        except (RegistryError, *_NO_ANSWER):
            raise
        except Exception as error:
            raise RegistryError(
                f"{self._reference.registry} asks for a login in a way that is not understood "
                f"({type(error).__name__}): look with docker login or oras login"
            ) from None
        headers.update(renewed)
        return bool(changed)

    def _refused(self, answer: requests.Response, what: str) -> RegistryError:
        """What to raise for an answer that is none of those expected. Nothing of its text is shown."""
        code, registry = answer.status_code, self._reference.registry
        if code in (401, 403):
            return RegistryError(
                f"{registry} refuses access to {what} (status {code}): log in with docker login {registry} "
                "or oras login, as a user that may do this"
            )
        if code == 404:
            return RegistryError(
                f"{what} is not in {registry} (status 404): look at the name, the tag and the digest"
            )
        if code == 413:
            return RegistryError(
                f"{registry} takes nothing as large as {what} (status 413): ask for a higher limit"
            )
        return RegistryError(f"{registry} answers {code} for {what}: try again later, or look at its log")

    def _failed(self, error: Exception) -> RegistryError:
        """What to raise for a request that had no answer. No URL is shown: some hold keys."""
        registry = self._reference.registry
        if isinstance(error, _NO_HTTPS):
            return RegistryError(
                f"{registry} leads to an address that is not https: expected one, as --plain-http was not "
                "given; give it for a registry of your own network"
            )
        if isinstance(error, requests.exceptions.TooManyRedirects):
            return RegistryError(
                f"{registry} redirects more than {_MAX_REDIRECTS} times: look at its settings"
            )
        if isinstance(error, requests.exceptions.SSLError):
            return RegistryError(
                f"{registry} has no certificate that is trusted here: expected one; for authorities of your "
                "own set REQUESTS_CA_BUNDLE, for a registry without TLS give --plain-http"
            )
        # After the last attempt the client gives what each of them ended in.
        reason = getattr(error.args[0] if error.args else None, "reason", error)
        nobody = isinstance(reason, urllib3.exceptions.NewConnectionError)
        if isinstance(reason, (requests.Timeout, urllib3.exceptions.TimeoutError)) and not nobody:
            return RegistryError(f"{registry} was silent for {self._timeout:g} seconds: try again later")
        return RegistryError(
            f"{registry} cannot be reached, or broke the connection off ({type(error).__name__}): look at "
            "its name, its port and the network"
        )
