"""A Prometheus reads what a query exports, and answers what dashboard and alert rules ask.

It has the samples of twenty minutes of two queries: one that is well, and one that has every
trouble that there is an alert for. They are of a time past, so that nothing here depends on a
clock. A third query is scraped by HTTP.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from tests.support.prometheus_server import Prometheus, is_installed, prometheus
from tests.unit.ops.test_dashboards import (
    ALERTS,
    DEPLOY,
    EXPRESSIONS,
    exported,
)
from tests.unit.ops.test_metrics import PROGRESS

from godwit.model import events
from godwit.model.latency import LatencyHistogram
from godwit.ops.metrics import Metrics, MetricsServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not is_installed(), reason="needs prometheus and promtool")

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES = 20
END_S = (BEGIN + timedelta(minutes=MINUTES - 1)).timestamp()
_VARIABLES = {"$__rate_interval": "5m", "$job": "godwit", "$instance": ".+"}


def minute_of(metrics: Metrics, minute: int, *, well: bool) -> None:
    """Let a minute of a query pass, with one epoch."""
    at = BEGIN + timedelta(minutes=minute)
    common: dict[str, Any] = {"epoch": minute, "at_s": at.timestamp()}
    if well or minute < 8:
        suspended = 0 if well else 2
        progress = {"epoch": minute, "batchId": minute, "suspendedKeyGroups": suspended}
        metrics.add("progress", {**PROGRESS, **progress, "timestamp": at.isoformat()})
    latency = LatencyHistogram.of_us(np.array([20_000 if well else 90_000_000] * 100))
    metrics.add("latency", {"sources": {"orders": {"arrival": "seen", **latency.to_dict()}}})
    behind = 10 if well else 100_000 + 50_000 * minute
    source = {"description": "Kafka", "behind": behind, "metrics": {}}
    metrics.add("sources", {"batchId": minute, "sources": [source]})
    moved: dict[str, Any] = {**common, "migration": "m", "component": "totals", "moved": 1}
    load: dict[str, Any] = {
        "kind": "LoadMeasured",
        "load_distance": 0.1 if well else 0.9,
        "arrival_per_s": 9.0,
        "speeds": {"1": 0.5},
    }
    metrics.add("event", load)
    happened = [
        events.MigrationFinished(**moved),
        events.MigrationCancelled(**moved, reason="a test"),
        events.ScalingFinished(**common, executors=("0",), moved=0),
    ]
    if not well:
        happened += [
            events.EpochAborted(**common, reason="a test"),
            events.RowsLeftOut(**common, operator="hourly", late=3),
            events.RowsUnreadable(**common, source="orders", rows=2),
            events.DeletesWaited(**common, operator="latest", deletes=1),
            events.CallsFailed(**common, operator="p", function="f", calls=1, rows=2, error="E"),
            events.ScalingFailed(**common, wanted=4, reason="a test"),
        ]
    for event in happened:
        metrics.add("event", event.to_dict())


def samples_of(instance: str, *, well: bool) -> Iterator[str]:
    """Yield the samples of twenty scrapes of a query, as a Prometheus would keep them."""
    metrics, target = Metrics("delays"), f'job="godwit",instance="{instance}"'
    for minute in range(MINUTES):
        minute_of(metrics, minute, well=well)
        at_s = (BEGIN + timedelta(minutes=minute)).timestamp()
        for line in generate_latest(metrics.registry).decode().splitlines():  # type: ignore[no-untyped-call]
            sample = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if sample is not None:
                name, labels, value = sample.groups()
                yield f"{name}{{{target}{',' if labels else ''}{labels or ''}}} {value} {at_s}"
        yield f"up{{{target}}} {int(well)} {at_s}"  # which Prometheus adds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    lines = [*samples_of("well", well=True), *samples_of("ill", well=False), "# EOF\n"]
    with (
        MetricsServer("scraped", host="127.0.0.1", port=0) as scraped,
        prometheus(
            tmp_path_factory.mktemp("prometheus"),
            rules=DEPLOY / "prometheus/alerts.yaml",
            target=scraped.url.split("/")[2],
            backfill="\n".join(lines),
        ) as running,
    ):
        minute_of(scraped.recorder, 0, well=False)
        yield running


def plain(expression: str) -> str:
    """Put values instead of Grafana's variables."""
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def test_a_query_is_scraped_with_all_that_it_exports(server: Prometheus) -> None:
    until_s = time.monotonic() + 120
    known: set[str] = set()
    wanted = set(exported())
    while wanted - known and time.monotonic() < until_s:
        found = server.query('{job="godwit", __name__=~"godwit_.+"}')
        known = {series["metric"]["__name__"] for series in found}
        time.sleep(0.05)
    assert not wanted - known
    [up] = server.query('up{job="godwit"}')
    assert up["value"][1] == "1"


def test_the_alert_rules_are_loaded(server: Prometheus) -> None:
    [group] = server.get("rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in ALERTS]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_of_the_query_that_is_ill_alone(
    server: Prometheus, rule: dict[str, Any]
) -> None:
    found = server.query(rule["expr"], END_S)
    assert {series["metric"]["instance"] for series in found} == {"ill"}


@pytest.mark.parametrize(("where", "expression"), [(w, e) for w, e, _ in EXPRESSIONS])
def test_a_panel_of_the_dashboard_shows_something(
    server: Prometheus, where: str, expression: str
) -> None:
    assert server.query(plain(expression), END_S), where
