"""How a registry is spoken to: no answer is waited for for ever, and none but a blob's may be large."""

from __future__ import annotations

import io
import time
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from cutlass_aot.bundle.oci.manifest import MAX_OCI_MANIFEST_BYTES
from cutlass_aot.errors import RegistryError

MAX_ANSWER_BYTES = MAX_OCI_MANIFEST_BYTES
"""Of everything but blobs: manifests, tokens, errors."""

_CONNECT_SECONDS = 10.0
_RETRIES = 3
_BLOCK = 1 << 16
_PASSING = (429, 500, 502, 503, 504)


class Session(requests.Session):
    """Follows redirects without credentials for whoever is at their end.

    Requests' own would look there into ``.netrc``, and a registry could have any host's password sent to that
    host. The rest of the environment (proxies, certificates) counts as ever.
    """

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Take the registry's credentials out of a request that goes to another host, and put none in."""
        origin, target = response.request.url or "", prepared_request.url or ""
        if self.should_strip_auth(origin, target):
            prepared_request.headers.pop("Authorization", None)


class Bounded(HTTPAdapter):
    """Sends requests: no answer is waited for for ever, and none but a blob's may be large.

    The client's own requests for tokens go this way too.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        retry = Retry(
            total=_RETRIES,
            read=1,
            backoff_factor=0.5,
            status_forcelist=_PASSING,
            allowed_methods=("GET", "HEAD"),
            raise_on_status=False,
            # Hours, if the registry says so.
            respect_retry_after_header=False,
        )
        super().__init__(max_retries=retry)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send a request; see :class:`requests.adapters.HTTPAdapter`. The time-out is our own."""
        limits = (min(self._timeout, _CONNECT_SECONDS), self._timeout)
        answer = super().send(request, stream, limits, verify, cert, proxies)
        host = urlsplit(request.url or "").hostname or "the registry"
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            answer.close()
            raise RegistryError(
                f"{host} sends a compressed answer that was not asked for: expected the plain bytes; look at "
                "what stands before the registry"
            )
        if not stream or answer.is_redirect:
            answer.raw = _in_memory(answer.raw, MAX_ANSWER_BYTES, self._timeout, host)
        return answer


def _in_memory(raw: Any, limit: int, seconds: float, host: str) -> urllib3.HTTPResponse:
    """An answer with its text read, if that is short enough and comes in time."""
    data, end = bytearray(), time.monotonic() + seconds
    while block := raw.read1(_BLOCK, decode_content=False):
        data += block
        if len(data) > limit or time.monotonic() > end:
            raw.close()
            raise RegistryError(
                f"{host} gives an answer that does not end: expected at most {limit} bytes in {seconds:g} "
                "seconds"
            )
    raw.release_conn()
    return urllib3.HTTPResponse(
        body=io.BytesIO(data),
        headers=raw.headers,
        status=raw.status,
        preload_content=False,
        enforce_content_length=False,
    )
