"""The port where Prometheus reads a query's metrics: opened when asked for, closed with the query.

Nothing else of the process can be reached by it, and it is bound to the loopback address unless the
user says otherwise: figures of a stream are nobody else's.

Whoever connects and says nothing, or a byte now and then, takes a thread and a descriptor of the
driver's, of which an epoch needs some too. So there are never more than a few connections, each for
some seconds: the oldest makes room for one that comes, and a reader that comes later is served.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from godwit.cluster.spark.observe.metrics import Metrics
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["MetricsServer"]

_MAX_CONNECTIONS = 8
_MAX_SECONDS = 10.0
_logger = logging.getLogger("godwit")


class _Handler(WSGIRequestHandler):
    """Answers one request, and logs none."""

    timeout = _MAX_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name it has there
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """A few connections at a time, each for some seconds."""

    daemon_threads = True
    request_queue_size = 64  # of those that only wait to be accepted

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        self._changing = threading.Lock()
        self._since_s: dict[socket.socket, float] = {}
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            while len(self._since_s) >= _MAX_CONNECTIONS:
                self._end(next(iter(self._since_s)))  # in the order in which they came
            self._since_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that take too long; called twice a second."""
        late_s = time.monotonic() - _MAX_SECONDS
        with self._changing:
            for request in [r for r, since_s in self._since_s.items() if since_s < late_s]:
                self._end(request)

    def close_request(self, request: Any) -> None:
        with self._changing:
            self._since_s.pop(request, None)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log that a reader was given up, and not on standard error: that is no fault of ours."""
        _logger.debug("A reader of metrics at %s was given up", client_address)

    def close(self) -> None:
        """End everything."""
        self.shutdown()
        self.server_close()
        with self._changing:
            for request in list(self._since_s):
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        """End a connection; its thread, which waits for it, closes it."""
        del self._since_s[request]
        with suppress(OSError):  # the other side was first
            request.shutdown(socket.SHUT_RDWR)


class MetricsServer:
    """Serves a query's metrics, in the format that the reader asks for.

    Parameters
    ----------
    flow
        Name of the flow.
    host, port
        Where to listen; port 0 takes any that is free.

    Attributes
    ----------
    metrics
        What is served.
    url
        Where.

    Raises
    ------
    InvalidFlowError
        If the port is taken, or there is no such address.
    """

    def __init__(self, flow: str, *, host: str, port: int) -> None:
        self.metrics = Metrics(flow)
        try:
            self._server = _Server(host, port, self.metrics.registry)
        except (OSError, UnicodeError) as error:
            raise _refused(host, port, error) from error
        bound = self._server.server_port
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{bound}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="godwit-metrics", daemon=True
        )
        self._thread.start()
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the port; again does nothing."""
        if self._open:
            self._open = False
            self._server.close()
            self._thread.join()


def _refused(host: str, port: int, error: Exception) -> InvalidFlowError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return InvalidFlowError(
            f"Metrics cannot be served at {host}:{port}: the port is taken.",
            remedy="Give another metrics_port, or 0 for any that is free (query.metrics_url says "
            "which it became).",
            port=port,
        )
    return InvalidFlowError(
        f"Metrics cannot be served at {host}:{port}: {getattr(error, 'strerror', None) or error}.",
        remedy="Give a metrics_host of this machine, and a port that you may open (above 1023).",
        port=port,
    )
