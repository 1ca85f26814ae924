"""A deadline over a whole exchange with a server: name, connection, request, status, headers and body.

A socket's own timeout begins again with each byte: a server that sends one now and then, or ``100 Continue``
for ever, would hold the client as long as it likes.
"""

from __future__ import annotations

import http.client
import io
import math
import socket
import time
from typing import Any

from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError


class Deadline:
    """The end of the exchange that is under way; ``silence`` is how many seconds the server may be silent."""

    def __init__(self, silence: float) -> None:
        self.silence = silence
        self.seconds = silence
        self._end = math.inf

    def start(self, more: float) -> None:
        """Begin an exchange, which may take ``more`` seconds than the server may be silent."""
        self.seconds = self.silence + more
        self._end = time.monotonic() + self.seconds

    @property
    def passed(self) -> bool:
        """Whether the exchange has taken too long."""
        return time.monotonic() >= self._end

    def left(self) -> float:
        """Seconds for the next step, at most ``silence``; a ``TimeoutError`` if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the exchange has taken too long")
        return min(left, self.silence)


class _Source(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        # Keeps the connection open until this is closed, as http.client expects.
        self._file = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left())
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Readable:
    """A socket as :class:`http.client.HTTPResponse` takes it."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Source(self._sock, self._deadline))


def with_deadline(kind: type[HTTPConnection], deadline: Deadline) -> type[HTTPConnection]:
    """A kind of connection that does nothing after the deadline; ``kind`` is that of HTTP or HTTPS."""

    class Response(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
            super().__init__(_Readable(sock, deadline), *arguments, **options)  # type: ignore[arg-type]

    class Connection(kind):  # type: ignore[misc, valid-type]
        response_class = Response

        def _new_conn(self) -> socket.socket:
            if kind._new_conn is not HTTPConnection._new_conn:
                # A proxy of another protocol, which connects in a way of its own.
                made: socket.socket = super()._new_conn()
                return made
            # urllib3 would give each address of a name the whole time, and a name can have thousands.
            try:
                places = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
            except socket.gaierror as error:
                raise NameResolutionError(self.host, self, error) from None
            problem: OSError = OSError("the name has no address")
            for family, sort, protocol, _, place in places:
                opened = socket.socket(family, sort, protocol)
                try:
                    for option in self.socket_options or ():
                        opened.setsockopt(*option)
                    opened.settimeout(min(deadline.left(), self.timeout))
                    opened.connect(place)
                    # Also for a TLS handshake, whose whole time it bounds.
                    opened.settimeout(deadline.left())
                except OSError as error:
                    opened.close()
                    problem = error
                    continue
                return opened
            if isinstance(problem, TimeoutError):
                raise ConnectTimeoutError(self, f"no connection to {self.host}") from problem
            raise NewConnectionError(self, f"no connection: {problem}") from problem

        def send(self, data: Any) -> None:
            if self.sock is not None:
                self.sock.settimeout(deadline.left())
            super().send(data)

    return Connection
