"""A query ends cleanly: at the end of a block, by a signal, or with a word if its session goes."""

from __future__ import annotations

import os
import signal
import threading
import time
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import EpochFailedError, InvalidFlowError
from godwit.runtime.run import QueryRun
from godwit.spark.platform import sessions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0


def flow_over(source: Any) -> gw.Flow:
    flow = gw.Flow("ending", num_key_groups=2)
    counts = flow.source("rows", source).key_by("value").compute(name="n", n=gw.count())
    flow.sink("out", counts, gw.sinks.noop())
    return flow


def frames(spark: SparkSession) -> Any:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()


def wait_for_epoch(query: gw.types.Query) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while query.status["committedEpoch"] < 0 and time.monotonic() < deadline:
        time.sleep(0.02)


def started(source: Any, checkpoint: Path, **options: Any) -> gw.types.Query:
    query = flow_over(source).start(checkpoint=checkpoint, **options)
    wait_for_epoch(query)
    return query


def last_event(checkpoint: Path) -> str:
    journal = read_tail(CheckpointStorage.open(checkpoint), 50)
    kinds: list[str] = [entry["event"]["kind"] for entry in journal if "event" in entry]
    return kinds[-1]


def test_a_block_stops_its_query_also_if_it_raises(spark: SparkSession, tmp_path: Path) -> None:
    rows = gw.sources.memory("value long", [(1,)])
    with started(rows, tmp_path / "ck", session=spark) as query:
        assert query.status["committedEpoch"] >= 0
    assert (query.isActive, query.exception()) == (False, None)
    assert last_event(tmp_path / "ck") == "QueryStopped"
    query = started(rows, tmp_path / "ck", session=spark)
    with pytest.raises(ZeroDivisionError), query:
        raise ZeroDivisionError
    assert (query.isActive, query.exception()) == (False, None)


def test_a_block_raises_the_error_of_its_query(spark: SparkSession, tmp_path: Path) -> None:
    rows = gw.sources.memory("value long", [(1,)])
    flow = gw.Flow("failing", num_key_groups=2)

    def fail(_key: tuple[int], _rows: Any, _state: Any) -> Any:
        raise ValueError("no")

    failing = flow.source("rows", rows).key_by("value").process(fail, state=int, output="v long")
    flow.sink("out", failing, gw.sinks.noop())
    deadline = time.monotonic() + PATIENCE_S
    query = flow.start(checkpoint=tmp_path, session=spark)
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(gw.errors.UserFunctionError, match="ValueError"), query:
        pass


@pytest.mark.parametrize(
    ("number", "raised", "reads"),
    [(signal.SIGINT, KeyboardInterrupt, "own"), (signal.SIGTERM, SystemExit, "spark")],
)
def test_a_signal_while_a_program_waits_stops_the_query(
    spark: SparkSession,
    tmp_path: Path,
    number: int,
    raised: type[BaseException],
    reads: str,
) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    source = frames(spark) if reads == "spark" else gw.sources.rate(200.0)
    options: Any = {} if reads == "spark" else {"session": spark}
    query = flow_over(source).start(
        checkpoint=tmp_path, trigger={"processingTime": "50 milliseconds"}, **options
    )
    waits = threading.Event()

    def ask() -> None:
        waits.wait(PATIENCE_S)
        wait_for_epoch(query)
        while signal.getsignal(number) in handlers:  # the main thread does not wait yet
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=ask, daemon=True).start()
    waits.set()
    with pytest.raises(raised):
        query.awaitTermination()
    assert (query.isActive, query.exception()) == (False, None)
    assert last_event(tmp_path) == "QueryStopped"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_a_session_that_was_stopped_is_refused_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, own = flow_over(frames(spark)), flow_over(gw.sources.memory("value long"))
    monkeypatch.setattr(sessions, "context_is_stopped", lambda _: True)
    calls: list[Callable[[], object]] = [
        flow.explain,
        lambda: flow.start(checkpoint=tmp_path / "ck"),
        lambda: own.start(checkpoint=tmp_path / "ck", session=spark),
        lambda: gw.read_state(spark, tmp_path / "ck", "n"),
    ]
    for call in calls:
        with pytest.raises(InvalidFlowError, match=r"was stopped. Create a new one"):
            call()
    assert not (tmp_path / "ck").exists()


def test_a_context_without_its_jvm_counts_as_stopped(spark: SparkSession) -> None:
    class Gone:
        _jsc = None

    class Dead:
        class _jsc:  # noqa: N801
            @staticmethod
            def sc() -> None:
                raise ConnectionRefusedError

    assert not sessions.context_is_stopped(spark.sparkContext)
    for context in (Gone(), Dead()):
        made: Any = context
        assert sessions.context_is_stopped(made)


@pytest.mark.parametrize("reads", ["own", "spark"])
def test_a_session_that_ends_first_is_named_as_the_cause(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """Every call of a stopped session raises something else; here, of a Python object that is gone.

    The session of the tests stays: what is asked of it says that it was stopped.
    """
    source = frames(spark) if reads == "spark" else gw.sources.rate(200.0)
    options: Any = {} if reads == "spark" else {"session": spark}
    query = started(source, tmp_path, **options)
    monkeypatch.setattr(sessions, "context_is_stopped", lambda _: True)

    def gone(*_: object) -> None:
        raise AttributeError("'NoneType' object has no attribute 'addJobTag'")

    monkeypatch.setattr(QueryRun, "check_lease", gone)
    with pytest.raises(EpochFailedError, match=r"its Spark session was stopped while"):
        query.awaitTermination(timeout=int(PATIENCE_S))
    assert "NoneType" not in "".join(event.describe() for event in query.events)


def test_more_executors_than_cores_are_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    flow = flow_over(gw.sources.memory("value long"))
    cores = spark.sparkContext.defaultParallelism
    with pytest.raises(InvalidFlowError, match=rf"executors={cores + 3}, and .* has {cores}\."):
        flow.start(checkpoint=tmp_path / "ck", session=spark, executors=cores + 3)
    assert not (tmp_path / "ck").exists()


@pytest.mark.parametrize(("form", "spelling"), [("NFC", "path"), ("NFD", "uri")])
def test_a_checkpoint_of_spark_sources_may_have_any_name(
    spark: SparkSession, tmp_path: Path, form: str, spelling: str
) -> None:
    place = tmp_path / unicodedata.normalize("NFC" if form == "NFC" else "NFD", "é 50%20+#?*[x]:%")
    checkpoint = place.as_uri() if spelling == "uri" else str(place)
    for _ in range(2):
        query = flow_over(frames(spark)).start(checkpoint=checkpoint, trigger={"once": True})
        query.awaitTermination()
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    assert (place / "spark" / "offsets" / "1").exists()
