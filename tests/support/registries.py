"""Registries for tests: one in this process that misbehaves on demand, and a real one where there is one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.paths import REPOSITORY

FETCHED = REPOSITORY / "build" / "docker-registry"
"""Where `make registry` puts the distribution's."""
USER, PASSWORD, TOKEN = "somebody", "open-sesame", "a-token-that-nobody-may-see"
PASSWORD_HASH = "$2b$04$051yhpisII7X3efvHB2qZOp20fwmupEEUaseFbQck8CyjYEHkBcNi"
"""The password by bcrypt, as the real registry wants it."""


class FakeRegistry(ThreadingHTTPServer):
    """A registry in memory, on this machine alone.

    Attributes:
        blobs: digest to bytes.
        manifests: tag or digest to bytes.
        requests: method and path of each request, in order.
        headers: what came with each request.
        login: how it wants to be logged into: nothing, ``"basic"`` or ``"bearer"``.
        fault: asked first, with the request; true if it has answered itself.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.login = ""
        self.fault: Callable[[_Handler], bool] = lambda request: False

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is nothing to report."""

    def put(self, tag: str, manifest: dict[str, Any] | bytes) -> str:
        """Keep a manifest, and give its digest."""
        data = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.manifests[tag] = self.manifests[digest] = data
        return digest

    def fetched(self) -> list[str]:
        """Digests of the blobs that were asked for."""
        return [
            path.rpartition("/")[2] for method, path in self.requests if method == "GET" and "/blobs/" in path
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeRegistry

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"Content-Length": str(len(data)), **names}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_request(self) -> None:
        server = self.server
        server.requests.append((self.command, self.path))
        server.headers.append(dict(self.headers))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if server.fault(self):
            return
        path = urlsplit(self.path).path
        if path == "/token":
            self._token()
        elif not self._may():
            self._challenge()
        elif "/blobs/uploads" in path:
            self._upload(body)
        elif "/blobs/" in path:
            self._have(server.blobs.get(path.rpartition("/")[2]))
        elif self.command == "PUT":
            digest = server.put(path.rpartition("/")[2], body)
            self.answer(201, Docker_Content_Digest=digest)
        else:
            data = server.manifests.get(path.rpartition("/")[2])
            digest = "sha256:" + hashlib.sha256(data or b"").hexdigest()
            self._have(data, Docker_Content_Digest=digest)

    do_GET = do_HEAD = do_PUT = do_POST = handle_request

    def _have(self, data: bytes | None, **headers: str) -> None:
        if data is None:
            self.answer(404)
        else:
            self.answer(200, data, **headers)

    def _upload(self, body: bytes) -> None:
        if self.command == "POST":
            self.answer(202, Location=f"{urlsplit(self.path).path}session?state={TOKEN}")
            return
        digest = parse_qs(urlsplit(self.path).query)["digest"][0]
        if digest != f"sha256:{hashlib.sha256(body).hexdigest()}":
            self.answer(400)
            return
        self.server.blobs[digest] = body
        self.answer(201)

    def _may(self) -> bool:
        given = self.headers.get("Authorization", "")
        if self.server.login == "basic":
            return given == f"Basic {_basic()}"
        return not self.server.login or given == f"Bearer {TOKEN}"

    def _challenge(self) -> None:
        if self.server.login == "basic":
            self.answer(401, WWW_Authenticate='Basic realm="a registry"')
        else:
            realm = f"http://{self.server.name}/token"
            self.answer(401, WWW_Authenticate=f'Bearer realm="{realm}",service="s",scope="repository:k:pull"')

    def _token(self) -> None:
        if self.headers.get("Authorization") == f"Basic {_basic()}":
            self.answer(200, json.dumps({"token": TOKEN}).encode())
        else:
            self.answer(401)


def _basic() -> str:
    return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def log_in(folder: Path, registry: str, password: str = PASSWORD) -> None:
    """Write docker's config file, as docker login does."""
    folder.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """A registry that listens until the end of the block."""
    with FakeRegistry() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def real_registry_program() -> str | None:
    """The distribution's registry: on PATH, or where `make registry` put it."""
    own = FETCHED / "usr" / "bin" / "docker-registry"
    return shutil.which("docker-registry") or (str(own) if os.access(own, os.X_OK) else None)


@contextmanager
def real_registry(program: str, folder: Path, *, login: bool = False) -> Iterator[str]:
    """The distribution's registry, listening on this machine alone; its host and port.

    With ``login`` it knows :data:`USER` with :data:`PASSWORD`, and nobody else.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir()
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if login:
        (folder / "users").write_text(f"{USER}:{PASSWORD_HASH}\n")
        config["auth"] = {"htpasswd": {"realm": "a registry", "path": str(folder / "users")}}
    # JSON is YAML.
    (folder / "config.yml").write_text(json.dumps(config))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end and server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"the registry does not start: {(folder / 'log').read_text()}")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
