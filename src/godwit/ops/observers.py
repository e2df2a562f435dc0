"""Ports for observing a running query, the entry points ``godwit.observers``.

The modules behind the ports are imported when the settings of a query ask for them.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.ops.lineage import Lineage
    from godwit.ops.metrics import MetricsServer
    from godwit.ops.page.live_page import PageServer
    from godwit.ops.telemetry import Telemetry
    from godwit.plan.compiled import CompiledFlow
    from godwit.runtime.settings import Options


def open_metrics(flow: CompiledFlow, options: Options) -> MetricsServer:
    """Open the port of the metrics; raise `InvalidFlowError` if it cannot be opened."""
    with _naming_missing_extra("Metrics", "metrics", "prometheus_client", "prometheus-client"):
        from godwit.ops.metrics import MetricsServer  # noqa: PLC0415  an extra
    port = options.observability.metrics_port or 0
    return MetricsServer(
        flow.name,
        host=options.observability.metrics_host,
        port=port,
        query=options.name or flow.name,
    )


def open_opentelemetry(flow: CompiledFlow, options: Options) -> Telemetry:  # noqa: ARG001  a port
    """Start exporting metrics and spans; raise `InvalidFlowError` if that is not possible."""
    with _naming_missing_extra(
        "OpenTelemetry", "opentelemetry", "opentelemetry", "opentelemetry-sdk"
    ):
        from godwit.ops.telemetry import Telemetry  # noqa: PLC0415  an extra

        return Telemetry(flow.name)


def open_openlineage(flow: CompiledFlow, options: Options) -> Lineage:
    """Start sending OpenLineage events; raise `InvalidFlowError` if that is not possible."""
    with _naming_missing_extra("OpenLineage", "openlineage", "openlineage", "openlineage-python"):
        from godwit.ops.lineage import Lineage  # noqa: PLC0415  an extra
    try:
        return Lineage(flow, options.name or flow.name)
    except Exception as error:
        raise InvalidFlowError(
            f"The OpenLineage client cannot be configured: {error}",
            remedy="Check OPENLINEAGE_URL, OPENLINEAGE_CONFIG and openlineage.yml.",
        ) from error


@contextlib.contextmanager
def _naming_missing_extra(what: str, extra: str, module: str, package: str) -> Iterator[None]:
    """Context that says how to install `package` if its `module` is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        raise InvalidFlowError(
            f"{what} needs the package {package}, which is not installed.",
            remedy=f"pip install 'godwit-streams[{extra}]', or start without observability=.",
        ) from None


def open_page(flow: CompiledFlow, options: Options) -> PageServer:
    """Open the port of the live page; raise `InvalidFlowError` if it cannot be opened."""
    from godwit.ops.page.live_page import PageServer, is_loopback  # noqa: PLC0415  few need it

    host = options.observability.ui_host
    return PageServer(
        CheckpointStorage.open(options.checkpoint, access=options.checkpointing.access),
        flow=flow.name,
        host=host,
        port=options.observability.ui_port or 0,
        token="" if is_loopback(host) else secrets.token_urlsafe(24),
        query=options.name or flow.name,
    )
