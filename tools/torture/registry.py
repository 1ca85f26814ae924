"""Registries that answer slowly, for ever, or lead elsewhere: ``bundle pull`` ends in time and says why.

    python -m tools.torture.registry [--attack NAME]

Each attack is a server on this machine, which answers for 40 seconds at most. ``cutlass-aot bundle pull
--timeout 3`` has to end with exit status 1 and a sentence, within twice that time, without a password having
arrived where it does not belong. Prints a table in Markdown; exits with 1 if one pull did not end like that.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.torture.attacks import attack_command

TIMEOUT = 3.0
"""What ``--timeout`` says."""
_LONGEST = 40.0
_PASSWORD = "open-sesame"  # noqa: S105 - of nobody
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Answer = Callable[["Peer", socket.socket], None]


@dataclass
class Peer:
    """A server that gives every request the same answer; ``heard`` is what clients sent."""

    answer: Answer
    elsewhere: str = ""
    heard: list[bytes] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        """Listen until the end of the block, at the host and port that this gives."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.1)
            thread = threading.Thread(target=self._serve, args=(server,))
            thread.start()
            try:
                yield f"127.0.0.1:{server.getsockname()[1]}"
            finally:
                self.ended.set()
                thread.join()

    def _serve(self, server: socket.socket) -> None:
        clients = []
        while not self.ended.is_set():
            with contextlib.suppress(TimeoutError):
                client, _ = server.accept()
                clients.append(threading.Thread(target=self._talk, args=(client,)))
                clients[-1].start()
        for thread in clients:
            thread.join()

    def _talk(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(1)
            self.heard.append(client.recv(1 << 16))
            self.answer(self, client)

    def going_on(self, pause: float) -> Iterator[None]:
        """Until this has ended, with pauses."""
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end and not self.ended.wait(pause):
            yield


def _now_and_then(piece: bytes, before: bytes = b"", pause: float = 0.5) -> Answer:
    def answer(peer: Peer, client: socket.socket) -> None:
        client.sendall(before)
        for _ in peer.going_on(pause):
            client.sendall(piece)

    return answer


def _at_once(status: str, *headers: str) -> Answer:
    def answer(peer: Peer, client: socket.socket) -> None:
        filled = [header.replace("ELSEWHERE", peer.elsewhere) for header in headers]
        lines = [f"HTTP/1.1 {status}", *filled, "Content-Length: 0", "Connection: close", "", ""]
        client.sendall("\r\n".join(lines).encode())

    return answer


ATTACKS: Mapping[str, Answer] = {
    "silence": _now_and_then(b""),
    "status line, a byte at a time": _now_and_then(b"H"),
    "a header that does not end": _now_and_then(b"x", b"HTTP/1.1 200 OK\r\nX-Long: "),
    "100 Continue for ever": _now_and_then(_CONTINUE),
    "100 Continue for ever, without a pause": _now_and_then(_CONTINUE * 1000, pause=0),
    "the size of a chunk, a digit at a time": _now_and_then(b"0", _CHUNKED),
    "chunks of one byte": _now_and_then(b"1\r\nx\r\n", _CHUNKED),
    "trailers for ever": _now_and_then(b"X: y\r\n", _CHUNKED + b"0\r\n"),
    "a body, a byte at a time": _now_and_then(b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n"),
    "a body without an end": _now_and_then(b"x" * (1 << 16), b"HTTP/1.1 200 OK\r\n\r\n", pause=0),
    "a redirect to itself": _at_once("307 Temporary Redirect", "Location: /v2/"),
    "a redirect to a file": _at_once("307 Temporary Redirect", "Location: file:///etc/passwd"),
    "a redirect to another host": _at_once("307 Temporary Redirect", "Location: http://ELSEWHERE/"),
    "a redirect to no address": _at_once("307 Temporary Redirect", "Location: http://[/"),
    "a login at another host": _at_once(
        "401 Unauthorized", 'WWW-Authenticate: Bearer realm="http://ELSEWHERE/token",service="s"'
    ),
    "a login at a file": _at_once(
        "401 Unauthorized", 'WWW-Authenticate: Bearer realm="file:///etc/passwd",service="s"'
    ),
}


def attacked(answer: Answer, folder: Path) -> tuple[float, str, str]:
    """Pull from a registry that answers like this: seconds, what was said, and what is wrong with that."""
    thief = Peer(_at_once("200 OK"))
    peer = Peer(answer)
    with thief.listening() as elsewhere, peer.listening() as name:
        peer.elsewhere = elsewhere
        login = base64.b64encode(f"somebody:{_PASSWORD}".encode()).decode()
        (folder / "config.json").write_text(json.dumps({"auths": {name: {"auth": login}}}))
        proxies = {key for key in os.environ if key.lower().endswith("_proxy")}
        environment = {key: value for key, value in os.environ.items() if key not in proxies}
        started = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "cutlass_aot", "bundle", "pull", f"{name}/k/b:1", "--plain-http",
                 "--timeout", str(TIMEOUT), "-o", str(folder / "out")],
                env={**environment, "DOCKER_CONFIG": str(folder)},
                capture_output=True, text=True, check=False, timeout=_LONGEST,
            )  # fmt: skip
            status, said = done.returncode, done.stderr.strip()
        except subprocess.TimeoutExpired:
            status, said = None, "(no end)"
        seconds = time.monotonic() - started
    wrong = ""
    if status is None or seconds > 2 * TIMEOUT:
        wrong = "held"
    elif status != 1 or "Traceback" in said:
        wrong = f"exit status {status}"
    elif any(login.encode() in request for request in thief.heard):
        wrong = "the password was sent elsewhere"
    elif (folder / "out").exists():
        wrong = "something was left"
    return seconds, said.splitlines()[-1] if said else "", wrong


def met(name: str, folder: Path) -> tuple[float, str, list[str]]:
    """Seconds that a pull takes, what is wrong, and what was said."""
    seconds, said, wrong = attacked(ATTACKS[name], folder)
    return seconds, wrong, [re.sub(r"127\.0\.0\.1:[0-9]+", "HOST", said.removeprefix("error: "))]


if __name__ == "__main__":
    what = "Pull from registries that do not mean well."
    attack_command(what, ATTACKS, met, "ended", ["what was said"])()
