"""An HTTP server with bounded connections and times, for metrics and the live page.

A silent connection takes a thread and a descriptor of the process, so there are never more than a
few connections, each for a bounded time.  If there are too many, one is closed for a new one: one
that has not asked yet, or one that was answered for long, such as a stream of events.  While all
others are being answered, a new one waits.
"""

from __future__ import annotations

import errno
import io
import logging
import socket
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_SILENT_S: Final = 10.0
"""Time after which an idle connection is closed."""
_TO_ASK_S: Final = 0.2
"""Time that a connection has to ask, and _SILENT_S to be answered, before it may make room."""
_PIECE_BYTES: Final = 2**14
"""The time limit is that of one call that sends, so a slow reader needs short ones."""
_logger = logging.getLogger("godwit")


class _Failures(io.StringIO):
    """Logger of errors in interrupted answers."""

    def write(self, said: str) -> int:
        """Log a text at debug level: usually it says that a reader has disconnected."""
        _logger.debug("An answer was interrupted: %s", said)
        return len(said)


class _Handler(WSGIRequestHandler):
    """Handler of one request, without logging."""

    timeout = _SILENT_S

    def parse_request(self) -> bool:
        """Read a request, and start its time limit; ``False`` if it is not valid."""
        parsed = super().parse_request()
        if parsed:
            self.server.give_time(self.connection)  # type: ignore[attr-defined]
        return parsed

    def get_stderr(self) -> io.StringIO:
        """Return the file that errors are written to."""
        return _Failures()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name it has there
        """No-op: requests are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """The server; `BoundedServer` has its thread."""

    daemon_threads = True
    request_queue_size = 64  # of those that only wait to be accepted

    def __init__(self, host: str, port: int, *, max_connections: int, max_s: float) -> None:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        self._max_connections, self._max_request_s = max_connections, max_s
        self._changing, self._closing = threading.Condition(), False
        self._connected_since_s: dict[socket.socket, float] = {}
        self._safe_until_s: dict[socket.socket, float] = {}  # then it may be ended for another
        super().__init__((str(address[0]), port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread, when a slot is free."""
        with self._changing:
            while len(self._connected_since_s) >= self._max_connections and not self._closing:
                first = min(self._connected_since_s, key=self._safe_until_s.__getitem__)
                wait_s = self._safe_until_s[first] - time.monotonic()
                if wait_s <= 0:
                    self._shut_connection_down(first)
                else:
                    self._changing.wait(wait_s)
            self._connected_since_s[request] = time.monotonic()
            self._safe_until_s[request] = self._connected_since_s[request] + _TO_ASK_S
        super().process_request(request, client_address)

    def give_time(self, request: socket.socket) -> None:
        """Let a connection be answered before it is ended for another."""
        with self._changing:
            if request in self._connected_since_s:
                self._safe_until_s[request] = time.monotonic() + _SILENT_S

    def service_actions(self) -> None:
        """End connections that take too long; called twice a second."""
        late_s = time.monotonic() - self._max_request_s
        with self._changing:
            for request in [
                r for r, since_s in self._connected_since_s.items() if since_s < late_s
            ]:
                self._shut_connection_down(request)

    def close_request(self, request: Any) -> None:
        """Close a connection, and remove it from the list of open ones."""
        with self._changing:
            self._connected_since_s.pop(request, None)
            self._safe_until_s.pop(request, None)
            self._changing.notify()
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log a broken connection at debug level."""
        _logger.debug("A connection from %s was dropped", client_address)

    def close(self) -> None:
        """Stop serving, and end all connections."""
        with self._changing:
            self._closing = True
            self._changing.notify()
        self.shutdown()
        self.server_close()
        with self._changing:
            for request in list(self._connected_since_s):
                self._shut_connection_down(request)

    def _shut_connection_down(self, request: socket.socket) -> None:
        """Shut a connection down; its thread closes it."""
        del self._connected_since_s[request], self._safe_until_s[request]
        with suppress(OSError):  # the other side was first
            request.shutdown(socket.SHUT_RDWR)


def _in_pieces(app: WSGIApplication) -> WSGIApplication:
    """Return an application whose answers are sent in small pieces, for slow readers."""

    def pieces(body: Iterable[bytes]) -> Iterator[bytes]:
        try:
            for part in body:
                for start in range(0, len(part), _PIECE_BYTES):
                    yield part[start : start + _PIECE_BYTES]
        finally:
            if hasattr(body, "close"):
                body.close()

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return pieces(app(environ, start_response))

    return answer


class BoundedServer:
    """Serves a WSGI application on a thread of its own.

    `port`: 0 takes any that is free. `max_s`: how long a connection may last. Raises `OSError` or
    `UnicodeError` if the address cannot be had.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        host: str,
        port: int,
        name: str,
        max_connections: int = 8,
        max_s: float = _SILENT_S,
    ) -> None:
        self._server = _Server(host, port, max_connections=max_connections, max_s=max_s)
        self._server.set_app(_in_pieces(app))
        self.port = self._server.server_port
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"  # where
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)
        self._thread.start()
        self._open = True

    def close(self) -> None:
        """Close the port; idempotent."""
        if self._open:
            self._open = False
            self._server.close()
            self._thread.join()


def serving_error(
    what: str,
    host: str,
    port: int,
    error: Exception,
    *,
    setting: str = "",  # beginning of the names of the settings of host and port
) -> InvalidFlowError:
    """Return the error that something (`what`) cannot be served at an address."""
    text = f"{getattr(error, 'strerror', None) or error}"
    remedy = f"Give a {setting}host of this machine, and a port that you can open (above 1023)."
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        text, remedy = (
            "the port is in use",
            f"Give another {setting}port, or 0 for any free port.",
        )
    return InvalidFlowError(
        f"{what} cannot be served at {host}:{port}: {text}.", remedy=remedy, port=port
    )
