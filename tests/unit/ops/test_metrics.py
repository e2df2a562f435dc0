"""Metrics say what the journal says, in Prometheus' words, on a port that closes with the query."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.model.events import DeletesWaited, RowsLeftOut, RowsUnreadable
from godwit.model.latency import LatencyHistogram
from godwit.ops.figures import METRICS
from godwit.ops.metrics import Metrics, MetricsServer
from godwit.runtime.settings import Observability

PROGRESS: dict[str, Any] = {
    "epoch": 7,
    "batchId": 7,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "numInputRows": 1000,
    "numOutputRows": 10,
    "crossedBytes": 5,
    "durationMs": {"plan": 20.0, "stages": 200.0, "epoch": 250.0},
    "laneMs": {"apply": 30.0},
    "requests": {"epoch": {"list": 1, "put": 5}, "beside": {"put": 2}},
    "changelogBytes": 4096,
    "snapshotBytes": 100,
    "unreadStateBytes": 6,
    "stateTableBytes": 70,
    "evictedKeyGroups": 8,
    "fetchedKeys": 9,
    "waitingKeyGroups": 1,
    "suspendedKeyGroups": 2,
    "inFlightKeyGroups": 3,
    "plannedMoves": 4,
    "keyGroups": {"a": {"0": 16, "1": 16}, "b": {"0": 8}},
    "executors": {
        "0": {"lanes": 2, "draining": False, "cpuMs": 200.0, "busyMs": 300.0},
        "1": {"lanes": 1, "draining": True, "cpuMs": 100.0, "busyMs": 100.0},
    },
}
KAFKA: dict[str, Any] = {"description": 'Kafka "x"\n\\', "behind": 12, "metrics": {}}
SILENT: dict[str, Any] = {"description": "files", "behind": None, "metrics": {}}


@pytest.fixture
def server() -> Any:
    with MetricsServer("delays", host="127.0.0.1", port=0) as opened:
        yield opened


def fetched(url: str, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (s.name, tuple(s.labels.values())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_latencies_are_a_histogram_of_rows_for_each_source(server: MetricsServer) -> None:
    for ages_us in ([20_000, 400_000, 7_000_000], [400_000, 90_000_000]):
        histogram = LatencyHistogram.of_us(np.array(ages_us))
        server.recorder.add(
            "latency", {"sources": {"orders": {"arrival": "seen", **histogram.to_dict()}}}
        )
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        text = fetched(server.url, accept)[1]
        assert 'godwit_latency_seconds_bucket{arrival="seen",le="+Inf",source="orders"} 5.0' in text
    seen = {
        s.labels["le"]: s.value
        for family in text_string_to_metric_families(fetched(server.url)[1])
        for s in family.samples
        if s.name == "godwit_latency_seconds_bucket"
    }
    assert [seen[le] for le in ("0.01", "0.025", "0.5", "10.0", "60.0", "300.0")] == [
        *(0, 1, 3, 4, 4, 5)
    ]
    assert samples(fetched(server.url)[1])[
        "godwit_latency_seconds_sum", ("seen", "orders")
    ] == pytest.approx(97.82)


def test_an_epoch_s_figures_are_counted_in_base_units(server: MetricsServer) -> None:
    for _ in range(2):
        server.recorder.add("progress", PROGRESS)
    server.recorder.add("outcome", {"epoch": 7})
    server.recorder.flush()
    seen = samples(fetched(server.url)[1])
    for name, labels, value in (
        ("godwit_last_epoch", (), 7),
        ("godwit_last_epoch_end_time_seconds", (), 1767225600.25),
        ("godwit_epochs_total", (), 2),
        ("godwit_epoch_seconds_count", (), 2),
        ("godwit_epoch_seconds_sum", (), 0.5),
        ("godwit_epoch_seconds_bucket", ("0.25",), 2),
        ("godwit_epoch_seconds_bucket", ("0.1",), 0),
        ("godwit_epoch_phase_seconds_total", ("stages",), 0.4),
        ("godwit_lane_seconds_total", ("apply",), 0.06),
        ("godwit_rows_in_total", (), 2000),
        ("godwit_rows_out_total", (), 20),
        ("godwit_changelog_bytes_total", (), 8192),
        ("godwit_snapshot_bytes_total", (), 200),
        ("godwit_storage_requests_total", ("put", "epoch"), 10),
        ("godwit_storage_requests_total", ("put", "beside"), 4),
        ("godwit_crossed_bytes_total", (), 10),
        ("godwit_state_unread_bytes", (), 6),
        ("godwit_state_table_bytes", (), 70),
        ("godwit_state_evictions_total", (), 16),
        ("godwit_state_fetched_keys_total", (), 18),
        ("godwit_key_groups_waiting", (), 1),
        ("godwit_key_groups_suspended", (), 2),
        ("godwit_key_groups_in_flight", (), 3),
        ("godwit_key_groups_planned", (), 4),
        ("godwit_executor_cpu_seconds_total", ("0",), 0.4),
        ("godwit_executor_busy_seconds_total", ("0",), 0.6),
        ("godwit_executor_load_seconds", ("0",), 0.3),
        ("godwit_executor_lanes", ("1",), 1),
        ("godwit_executor_key_groups", ("0",), 24),
        ("godwit_query_info", ("delays",), 1),
    ):
        assert seen[name, labels] == pytest.approx(value), name
    assert ("godwit_epoch_phase_seconds_total", ("epoch",)) not in seen


def test_events_and_lag_are_counted(server: MetricsServer) -> None:
    for kind, more in (
        ("EpochAborted", {}),
        ("MigrationStarted", {}),
        ("MigrationFinished", {"moved": 5}),
        ("MigrationCancelled", {"moved": 1}),
        ("ScaledOut", {}),
        ("ScaledOut", {}),
        ("LoadMeasured", {"load_distance": 0.3, "arrival_per_s": 9.0, "speeds": {"1": 0.5}}),
        ("LoadMeasured", {"load_distance": 0.2, "arrival_per_s": 8.0, "speeds": {"2": 0.4}}),
    ):
        server.recorder.add("event", {"kind": kind, **more})
    server.recorder.add("sources", {"batchId": 1, "sources": [KAFKA, SILENT]})
    seen = samples(fetched(server.url)[1])
    assert seen["godwit_epochs_aborted_total", ()] == 1
    assert seen["godwit_migrations_started_total", ()] == 1
    assert seen["godwit_migrations_finished_total", ()] == 1
    assert seen["godwit_migrations_cancelled_total", ()] == 1
    assert seen["godwit_key_groups_moved_total", ()] == 6
    assert seen["godwit_decisions_total", ("ScaledOut",)] == 2
    assert ("godwit_decisions_total", ("LoadMeasured",)) not in seen
    assert seen["godwit_events_total", ("LoadMeasured",)] == 2
    assert seen["godwit_load_distance_ratio", ()] == 0.2
    assert seen["godwit_arrival_rows_per_second", ()] == 8.0
    speeds = {labels: v for (name, labels), v in seen.items() if "speed_ratio" in name}
    assert speeds == {("2",): 0.4}
    behind = [key for key in seen if key[0] == "godwit_source_offsets_behind"]
    assert behind == [("godwit_source_offsets_behind", ('0 Kafka "x"\n\\',))]


def test_rows_that_are_left_out_are_counted_by_operator_and_reason(server: MetricsServer) -> None:
    event = RowsLeftOut(epoch=3, at_s=1.0, operator="hourly", late=3, untimed=2)
    for _ in range(2):
        server.recorder.add("event", event.to_dict())
    seen = samples(fetched(server.url)[1])
    left_out = {labels: n for (name, labels), n in seen.items() if name.endswith("left_out_total")}
    assert left_out == {("hourly", "late"): 6, ("hourly", "ahead"): 0, ("hourly", "untimed"): 4}


def test_rows_that_a_source_could_not_read_are_counted(server: MetricsServer) -> None:
    event = RowsUnreadable(epoch=3, at_s=1.0, source="flights", rows=3, sink="flights_unreadable")
    for _ in range(2):
        server.recorder.add("event", event.to_dict())
    seen = samples(fetched(server.url)[1])
    assert seen["godwit_rows_unreadable_total", ("flights",)] == 6


def test_deletes_that_wait_are_counted(server: MetricsServer) -> None:
    event = DeletesWaited(epoch=3, at_s=1.0, operator="sums", deletes=2)
    for _ in range(2):
        server.recorder.add("event", event.to_dict())
    assert samples(fetched(server.url)[1])["godwit_deletes_waited_total", ("sums",)] == 4


def test_a_source_whose_name_is_no_text_keeps_nothing_from_being_read(
    server: MetricsServer,
) -> None:
    source = {**KAFKA, "description": "files in \ud800"}
    server.recorder.add("sources", {"batchId": 1, "sources": [source]})
    seen = samples(fetched(server.url)[1])
    assert ("godwit_source_offsets_behind", ("0 files in \\ud800",)) in seen


def test_an_executor_that_is_gone_is_no_longer_shown(server: MetricsServer) -> None:
    server.recorder.add("progress", PROGRESS)
    alone = {"0": PROGRESS["executors"]["0"]}
    server.recorder.add("progress", {**PROGRESS, "executors": alone})
    seen = samples(fetched(server.url)[1])
    assert [labels for name, labels in seen if name == "godwit_executor_lanes"] == [("0",)]
    quiet = {
        **PROGRESS,
        "batchId": None,
        "executors": {"0": {"lanes": 2, "cpuMs": 0.0, "busyMs": 0.0}},
    }
    server.recorder.add("progress", quiet)
    seen = samples(fetched(server.url)[1])
    assert seen["godwit_executor_load_seconds", ("0",)] == 0.3


def test_both_formats_are_served_to_those_who_ask(server: MetricsServer) -> None:
    server.recorder.add("progress", PROGRESS)
    kind, text = fetched(server.url, "text/plain;version=0.0.4")
    assert kind.startswith("text/plain; version=0.0.4")
    assert {f.name for f in text_string_to_metric_families(text)} >= {"godwit_rows_in"}
    kind, text = fetched(server.url, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert {f.name for f in open_metrics(text)}  # type: ignore[no-untyped-call]  # theirs == set(METRICS)


def test_a_port_that_is_taken_is_refused_by_name_and_free_again_once_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InvalidFlowError, match=rf"127\.0\.0\.1:{port}: the port is in use"
        ) as caught:
            MetricsServer("b", host="127.0.0.1", port=port)
        assert caught.value.context == {"port": port}
    first = MetricsServer("b", host="127.0.0.1", port=port)
    first.close()
    first.close()
    with pytest.raises(urllib.error.URLError):
        fetched(first.url)
    MetricsServer("b", host="127.0.0.1", port=port).close()


def test_queries_of_a_process_share_a_port_and_their_series_have_their_name(
    server: MetricsServer,
) -> None:
    port = int(server.url.split(":")[2].split("/")[0])
    server.recorder.add("progress", PROGRESS)
    assert samples(fetched(server.url)[1])["godwit_rows_in_total", ()] == 1000
    with MetricsServer("visits", host="127.0.0.1", port=port) as other:
        assert other.url == server.url
        other.recorder.add("progress", {**PROGRESS, "numInputRows": 7})
        text = fetched(server.url)[1]
        seen = samples(text)
        assert seen["godwit_rows_in_total", ("delays",)] == 1000
        assert seen["godwit_rows_in_total", ("visits",)] == 7
        assert text.count("# TYPE godwit_rows_in_total ") == 1
    seen = samples(fetched(server.url)[1])
    assert seen["godwit_rows_in_total", ("delays",)] == 1000
    assert ("godwit_rows_in_total", ("visits",)) not in seen


@pytest.mark.parametrize("host", ["999.1.1.1", "no such host", "x" * 300, "203.0.113.7"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(InvalidFlowError, match="Metrics cannot be served at"):
        MetricsServer("a", host=host, port=0)


def test_only_this_machine_can_reach_it_by_default() -> None:
    assert Observability().metrics_host == "127.0.0.1"
    assert Observability().metrics_port is None


@pytest.mark.parametrize("port", [-1, 2**16, True, "9090", 1.5])
@pytest.mark.parametrize("setting", ["metrics_port", "ui_port"])
def test_a_port_that_is_none_is_refused(setting: str, port: Any) -> None:
    with pytest.raises(InvalidFlowError, match=setting):
        Observability(**{setting: port})


def test_a_reader_that_talks_nonsense_or_nothing_keeps_no_other_from_reading(
    server: MetricsServer,
) -> None:
    port = int(server.url.split(":")[2].split("/")[0])
    with (
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)) as rude,
    ):
        rude.sendall(b"\x00\xff\r\n\r\n")
        assert "godwit_query_info" in fetched(server.url)[1]


def test_however_many_readers_say_nothing_one_that_reads_is_served(server: MetricsServer) -> None:
    """Each of them used to take a thread and a descriptor, for ever."""
    port = int(server.url.split(":")[2].split("/")[0])
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    try:
        assert "godwit_query_info" in fetched(server.url)[1]
        until_s = time.monotonic() + 60
        while threading.active_count() > before + 8 and time.monotonic() < until_s:
            time.sleep(0.01)
        assert threading.active_count() <= before + 8
        assert len(server._port.server._server._connected_since_s) <= 8
        assert silent[0].recv(1) == b""  # it has made room
    finally:
        for connection in silent:
            connection.close()


def test_a_reader_that_says_a_byte_now_and_then_is_given_up() -> None:
    with MetricsServer("a", host="127.0.0.1", port=0) as server:
        server._port.server._server._max_request_s = 0.1
        port = int(server.url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"G")
            slow.settimeout(60)
            assert slow.recv(1) == b""
        assert "godwit_query_info" in fetched(server.url)[1]


def test_what_cannot_be_counted_changes_no_metric_twice() -> None:
    metrics = Metrics("a")
    with pytest.raises(KeyError):
        metrics.add("progress", MappingProxyType({}))


def test_every_metric_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/guide/metrics.md").read_text()
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == set(METRICS)


def test_what_a_scaling_by_hand_moved_counts_once() -> None:
    metrics = Metrics("a")
    ended = events.MigrationFinished(at_s=1.0, epoch=3, migration="m", component="totals", moved=5)
    scaled = events.ScalingFinished(at_s=1.0, epoch=3, executors=("0", "1"), moved=5)
    for event in (ended, scaled):
        metrics.add("event", event.to_dict())
    assert metrics.registry.get_sample_value("godwit_key_groups_moved_total") == 5
