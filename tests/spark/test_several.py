"""Several flows in one Spark session: they share ports, and each ends by itself."""

from __future__ import annotations

import logging
import socket
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import ScalingError, UserFunctionError
from godwit.ops.requests import DONE, end_query
from godwit.spark.platform.executor_pool import SparkScheduler

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def flow_of(name: str, source: Any) -> gw.Flow:
    def counted(key: Any, rows: Any, seen: dict[str, int]) -> Any:
        if key[0] < 0:
            raise ValueError(name)
        seen["n"] = seen.get("n", 0) + len(list(rows))
        yield key[0], seen["n"]

    flow = gw.Flow(name, num_key_groups=4)
    rows = flow.source("rows", source).key_by("k")
    flow.sink(
        "out",
        rows.process(counted, name="p", state=dict, output="k long, n long"),
        gw.sinks.noop(),
    )
    return flow


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answered:
        text: str = answered.read().decode()
    return text


def test_flows_share_ports_and_the_end_of_one_leaves_the_others(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        ports = one.getsockname()[1], other.getsockname()[1]
    shown = gw.Observability(metrics_port=ports[0], ui_port=ports[1])
    sources = {name: gw.sources.memory("k long") for name in "abc"}
    queries = {
        name: flow_of(name, source).start(
            checkpoint=tmp_path / name, session=spark, observability=shown
        )
        for name, source in sources.items()
    }
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            gw.await_all(queries.values())
        except gw.errors.GodwitError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    try:
        waiting.start()
        for name, query in queries.items():
            sources[name].add([{"k": k} for k in range(5)])
            query.processAllAvailable()
        metrics = f"http://127.0.0.1:{ports[0]}"
        text = read(f"{metrics}/metrics")
        assert {n for n in "abc" if f'godwit_query_info{{flow="{n}",query="{n}"}}' in text} == {
            *"abc"
        }, text[:2000]
        listing = read(f"http://127.0.0.1:{ports[1]}/list")
        for name, path in {"a": "/", "b": "/1/", "c": "/2/"}.items():
            assert f'<a href="{path}">{name}</a>' in listing
        assert "<title>" in read(str(queries["c"].ui_url))

        sources["b"].add([{"k": -1}])
        with pytest.raises(UserFunctionError):
            queries["b"].awaitTermination()
        storage = CheckpointStorage.open(tmp_path / "a")
        assert end_query(storage, "stop", lambda _: None, timeout_s=120) == DONE
        sources["c"].add([{"k": 7}])
        queries["c"].processAllAvailable()
        assert [query.isActive for query in queries.values()] == [False, False, True]
        assert '"c"' in read(f"{metrics}/readyz?query=c")
        with pytest.raises(ScalingError, match="query 'c' runs on the same executors"):
            SparkScheduler(spark.sparkContext, "a").give_back([])
        queries["c"].stop()
        waiting.join(120)
        assert not waiting.is_alive()
        assert isinstance(errors[0], UserFunctionError)
        failed = [r for r in caplog.records if r.levelno == logging.ERROR and r.name == "godwit"]
        assert any("Query 'b' failed" in record.getMessage() for record in failed)
        with pytest.raises(urllib.error.URLError):
            read(f"{metrics}/metrics")
    finally:
        for query in queries.values():
            query.stop()
