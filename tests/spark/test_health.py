"""Health of a query: by its methods, its ports, and from its checkpoint."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.spark.streams import rows_of

import godwit as gw
from godwit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Door(gw.sinks.Sink):
    """Delivers once it is opened."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()
        self.rows: list[Any] = []

    def open(self, context: gw.sinks.SinkContext) -> None:
        """Need nothing."""

    def deliver(self, output: gw.sinks.EpochOutput) -> None:
        self.begun.set()
        assert self.opened.wait(120)
        self.rows += rows_of(output.dataframe())


def answer(url: str | None, path: str) -> tuple[int, dict[str, Any]]:
    """Return status and values of a port's answer, whatever path its URL has."""
    assert url is not None
    parts = urlsplit(url)
    try:
        with urllib.request.urlopen(f"http://{parts.netloc}{path}", timeout=60) as answered:
            return answered.status, json.load(answered)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_an_epoch_that_lasts_too_long_is_not_alive_and_ports_and_command_say_so(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Door()
    source = gw.sources.memory("k string, v long")
    flow = gw.Flow("watched", num_key_groups=4)
    keyed = flow.source("rows", source).key_by("k")
    flow.sink("out", keyed.compute(name="t", total=gw.sum("v")), sink)
    query = flow.start(
        checkpoint=tmp_path / "ck",
        session=spark,
        observability=gw.Observability(metrics_port=0, ui_port=0),
    )
    with query:
        source.add([{"k": "a", "v": 1}])
        assert sink.begun.wait(120)
        stuck = query.health(max_epoch_s=0.0)
        assert not stuck["alive"]
        assert not stuck["ready"]
        assert "has" in stuck["reasons"][0]
        assert query.health()["alive"]
        for url in (query.metrics_url, query.ui_url):
            status, values = answer(url, "/livez?max_epoch_s=0")
            assert (status, values["alive"]) == (503, False)
            assert answer(url, "/livez")[0] == 200
        assert main(["probe", "alive", str(query.metrics_url), "--max-epoch-s", "0"]) == 1
        assert "not alive: watched: " in capsys.readouterr().err

        sink.opened.set()
        query.processAllAvailable()
        assert query.health()["ready"]
        for url in (query.metrics_url, query.ui_url):
            assert answer(url, "/readyz?max_rows_behind=0&query=watched")[0] == 200
            assert answer(url, "/readyz?query=another")[0] == 503
            assert answer(url, "/readyz?max_rows_behind=many")[0] == 400
        metrics, page = str(query.metrics_url), str(query.ui_url)
        for where in (metrics, page, str(tmp_path / "ck")):
            assert main(["probe", "alive", where]) == 0
            # The journal of the checkpoint follows within seconds.
            deadline_s = time.monotonic() + 60
            while (ready := main(["probe", "ready", where, "--max-rows-behind", "0"])) != 0:
                assert time.monotonic() < deadline_s
                time.sleep(0.2)
            assert ready == 0
    assert not query.health()["ready"]
    assert main(["probe", "alive", metrics]) == 2
    assert main(["probe", "alive", str(tmp_path / "ck")]) == 1
    assert "not alive: the query has stopped" in capsys.readouterr().err
