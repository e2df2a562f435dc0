"""Ports of a running query for those who watch it, as ``godwit.observers`` names them.

The modules behind the ports are imported when the settings of a query ask for them.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from godwit.ops.metrics import MetricsServer
    from godwit.ops.page.live_page import PageServer
    from godwit.runtime.settings import Options


def open_metrics(flow: str, options: Options) -> MetricsServer:
    """Open the port of the metrics; raise `InvalidFlowError` if it cannot be opened."""
    try:
        from godwit.ops.metrics import MetricsServer  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("prometheus_client"):
            raise
        raise InvalidFlowError(
            "Metrics need the package prometheus-client, which is not installed.",
            remedy="pip install 'godwit-streams[metrics]', or start without observability=.",
        ) from None
    port = options.observability.metrics_port or 0
    return MetricsServer(flow, host=options.observability.metrics_host, port=port)


def open_page(flow: str, options: Options) -> PageServer:
    """Open the port of the live page; raise `InvalidFlowError` if it cannot be opened."""
    from godwit.ops.page.live_page import PageServer, is_loopback  # noqa: PLC0415  few need it

    host = options.observability.ui_host
    return PageServer(
        CheckpointStorage.open(options.checkpoint, access=options.checkpointing.access),
        flow=flow,
        host=host,
        port=options.observability.ui_port or 0,
        token="" if is_loopback(host) else secrets.token_urlsafe(24),
    )
