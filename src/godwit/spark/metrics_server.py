"""The port where Prometheus reads a query's metrics: opened when asked for, closed with the query.

Nothing else of the process can be reached by it, and it is bound to the loopback address unless the
user says otherwise: figures of a stream are nobody else's.
"""

from __future__ import annotations

import errno
from typing import Self

from prometheus_client import start_http_server

from godwit.model.errors import InvalidFlowError
from godwit.spark.metrics import Metrics

__all__ = ["MetricsServer"]


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
            self._server, self._thread = start_http_server(
                port, host, registry=self.metrics.registry
            )
        except (OSError, UnicodeError) as error:
            raise _refused(host, port, error) from error
        bound = self._server.server_port
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{bound}/metrics"
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the port; again does nothing."""
        if self._open:
            self._open = False
            self._server.shutdown()
            self._server.server_close()
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
