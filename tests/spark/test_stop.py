"""`Query.stop` ends within seconds, whenever and from wherever it is called."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.streams import Inbox, drain, rows_of

import godwit as gw
from godwit.model import events
from godwit.model.errors import StopTimeoutError
from godwit.runtime import lifecycle
from godwit.spark.stages import stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    return Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")


def totals(inbox: Inbox, sink: Any) -> gw.Flow:
    flow = gw.Flow(f"stopped-{inbox.directory.parent.name}", num_key_groups=4)
    stream = flow.source("rows", inbox.stream()).key_by("k").compute(name="t", total=gw.sum("v"))
    flow.sink("out", stream, sink)
    return flow


def ends(work: Callable[[], Any], within_s: float = PATIENCE_S) -> bool:
    """Return True if some work ends in time; run on a thread that is left behind if not."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(within_s)
    return not thread.is_alive()


def stopped_cleanly(query: gw.types.Query) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    return (query.isActive, query.exception()) == (False, None)


class Door(gw.sinks.Sink):
    """Keeps rows; calls `within` while an epoch is delivered."""

    def __init__(self, within: Callable[[int], None] = lambda _epoch: None) -> None:
        self.within = within
        self.rows: dict[int, list[Any]] = {}

    def open(self, context: gw.sinks.SinkContext) -> None:
        """Need nothing."""

    def deliver(self, output: gw.sinks.EpochOutput) -> None:
        self.rows[output.epoch] = rows_of(output.dataframe())
        self.within(output.epoch)


def resumes(inbox: Inbox, checkpoint: Path, total: int) -> bool:
    """Return True if the checkpoint continues as if nothing had been."""
    sink = Door()
    drain(totals(inbox, sink), checkpoint)
    return sink.rows[max(sink.rows)] == [("a", total)]


def test_between_two_epochs(inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox.put([("a", 1)], [("a", 2)], [("a", 3)])
    delivering, go_on = threading.Event(), threading.Event()

    def within(_epoch: int) -> None:
        delivering.set()
        assert go_on.wait(PATIENCE_S)

    query = totals(inbox, Door(within)).start(checkpoint=tmp_path / "ck")
    assert delivering.wait(PATIENCE_S)
    stop = StreamingQuery.stop

    def late(self: StreamingQuery) -> None:
        time.sleep(1.0)  # by now Spark wants to begin the next epoch
        stop(self)

    monkeypatch.setattr(StreamingQuery, "stop", late)
    threading.Timer(0.5, go_on.set).start()
    assert ends(query.stop)
    assert stopped_cleanly(query)
    assert resumes(inbox, tmp_path / "ck", 6)


def windowed(inbox: Inbox, sink: Any) -> gw.Flow:
    flow = gw.Flow(f"windowed-{inbox.directory.parent.name}", num_key_groups=4)
    rows = flow.source("rows", inbox.stream(), event_time="ts").key_by("k")
    flow.sink("out", rows.window(gw.tumbling("1 minute"), name="w").compute(n=gw.count()), sink)
    return flow


@pytest.mark.parametrize("trigger", [None, {"availableNow": True}])
def test_by_spark_s_own_handle_leaves_windows_open_for_the_next_run(
    spark: SparkSession, tmp_path: Path, trigger: Any
) -> None:
    """Only the end of the input closes windows that are open, where that is asked for."""
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, ts timestamp")
    inbox.put([("a", 1_000_000)], [("a", 20_000_000)])
    halted, delivered = threading.Event(), threading.Event()

    def within(_epoch: int) -> None:
        delivered.set()
        assert halted.wait(PATIENCE_S)

    first = Door(within)
    query = windowed(inbox, first).start(
        checkpoint=tmp_path / "ck", trigger=trigger, close_at_end=True
    )
    assert delivered.wait(PATIENCE_S)
    theirs = next(iter(spark.streams.active))
    stopping = threading.Thread(target=theirs.stop)
    stopping.start()
    while theirs.isActive:
        time.sleep(0.02)
    halted.set()
    stopping.join(PATIENCE_S)
    assert query.awaitTermination(int(PATIENCE_S)) is True
    assert stopped_cleanly(query)
    assert query.status["message"] == "Stopped"  # and no error of Spark's own thread

    inbox.put([("a", 30_000_000), ("a", 50_000_000)])
    again = Door()
    drain(windowed(inbox, again), tmp_path / "ck", close_at_end=True)
    assert not any(first.rows.values())
    assert [row[-1] for rows in again.rows.values() for row in rows] == [4]


def test_by_spark_s_own_handle_in_the_middle_of_an_epoch_is_no_failure(
    inbox: Inbox, tmp_path: Path
) -> None:
    inbox.put([("a", 1)])
    flow = gw.Flow("halted", num_key_groups=4)
    stream = flow.source("rows", inbox.stream()).key_by("k")
    done = stream.process(endless, state=dict, output="k string, n long", name="p")
    flow.sink("out", done, Door())
    query = flow.start(checkpoint=tmp_path / "ck")
    tracker = inbox.spark.sparkContext.statusTracker()
    deadline = time.monotonic() + PATIENCE_S
    while not tracker.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.05)
    theirs = next(iter(inbox.spark.streams.active))
    assert ends(theirs.stop)
    assert query.awaitTermination(int(PATIENCE_S)) is True
    assert stopped_cleanly(query)
    assert query.status["message"] == "Stopped"
    assert isinstance(query.events[-1], events.QueryStopped)


def endless(key: tuple[str], rows: Any, state: dict[str, int]) -> Iterable[tuple[str, int]]:
    time.sleep(600)
    yield key[0], len(list(rows))


def test_during_an_epoch_that_does_not_end(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_GRACE_S", 0.5)
    inbox.put([("a", 1)])
    flow = gw.Flow("endless", num_key_groups=4)
    stream = flow.source("rows", inbox.stream()).key_by("k")
    done = stream.process(endless, state=dict, output="k string, n long", name="p")
    flow.sink("out", done, Door())
    query = flow.start(checkpoint=tmp_path / "ck")
    tracker = inbox.spark.sparkContext.statusTracker()
    deadline = time.monotonic() + PATIENCE_S
    while not tracker.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ends(query.stop)
    assert stopped_cleanly(query)
    assert query.status["message"] == "Stopped"


@pytest.mark.parametrize("whose", ["ours", "spark"])
def test_while_epochs_are_held(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    inbox.put([("a", 1)])
    query = totals(inbox, Door()).start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    monkeypatch.setattr(
        "godwit.spark.background_copies.BackgroundCopies._warm", lambda *_: None
    )  # never
    query.migrate(dict.fromkeys(range(4), "local-1"), strategy="stop_the_world")
    inbox.put([("a", 2)])
    theirs = next(iter(inbox.spark.streams.active))
    while not theirs.status["isDataAvailable"]:
        time.sleep(0.02)
    assert ends(query.stop if whose == "ours" else theirs.stop)
    assert stopped_cleanly(query)
    assert resumes(inbox, tmp_path / "ck", 3)


def test_from_a_listener(inbox: Inbox, tmp_path: Path) -> None:
    inbox.put([("a", 1)], [("a", 2)])
    query = totals(inbox, Door()).start(checkpoint=tmp_path / "ck")
    returned = threading.Event()

    def listen(event: events.Event) -> None:
        if isinstance(event, events.EpochCommitted):
            query.stop()
            returned.set()

    query.add_listener(listen)
    inbox.put([("a", 3)])
    assert returned.wait(PATIENCE_S)
    assert stopped_cleanly(query)
    assert resumes(inbox, tmp_path / "ck", 6)


def test_from_the_thread_that_carries_out_the_epoch(inbox: Inbox, tmp_path: Path) -> None:
    inbox.put([("a", 1)], [("a", 2)])
    returned = threading.Event()

    def within(_epoch: int) -> None:
        query.stop()
        returned.set()

    sink = Door(lambda _epoch: None)
    query = totals(inbox, sink).start(checkpoint=tmp_path / "ck")
    sink.within = within
    inbox.put([("a", 3)])
    assert returned.wait(PATIENCE_S)
    assert query.awaitTermination(int(PATIENCE_S)) is True
    assert stopped_cleanly(query)
    assert resumes(inbox, tmp_path / "ck", 6)


def test_from_a_thread_that_an_epoch_waits_for(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_GRACE_S", 0.5)
    monkeypatch.setattr(lifecycle, "_DRIVER_S", 1.0)
    inbox.put([("a", 1)])
    returned = threading.Event()

    def stop() -> None:
        with pytest.raises(StopTimeoutError, match="still being carried out"):
            query.stop()
        returned.set()

    def within(_epoch: int) -> None:
        thread = threading.Thread(target=stop)
        thread.start()
        thread.join()

    sink = Door()
    query = totals(inbox, sink).start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    sink.within = within
    inbox.put([("a", 2)])
    assert returned.wait(PATIENCE_S)
    assert stopped_cleanly(query)
    assert resumes(inbox, tmp_path / "ck", 3)


def test_twice_and_from_many_threads_at_once(inbox: Inbox, tmp_path: Path) -> None:
    inbox.put([("a", 1)], [("a", 2)])
    query = totals(inbox, Door()).start(checkpoint=tmp_path / "ck")
    threads = [threading.Thread(target=query.stop, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert stopped_cleanly(query)
    assert ends(query.stop)
    assert sum(isinstance(e, events.QueryStopped) for e in query.events) == 1
    assert resumes(inbox, tmp_path / "ck", 3)


def test_jobs_that_ctrl_c_cancels_are_done_again(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark cancels all jobs of the application on it, whatever the main thread waits for."""
    context = inbox.spark.sparkContext
    interrupted: list[str] = []

    def job_that_is_cancelled(where: str) -> None:
        if where not in interrupted:
            interrupted.append(where)
            threading.Thread(target=cancel).start()
            inbox.spark.range(10**14).selectExpr("sum(hash(id))").collect()

    def cancel() -> None:
        while not context.statusTracker().getActiveJobsIds():
            time.sleep(0.01)
        context.cancelAllJobs()

    def run_stages(*args: Any, **options: Any) -> Any:
        job_that_is_cancelled("stages")
        return stages.run_stages(*args, **options)

    monkeypatch.setattr("godwit.spark.cluster.run_stages", run_stages)
    inbox.put([("a", 1)])
    sink = Door(lambda _epoch: job_that_is_cancelled("delivery"))
    query = totals(inbox, sink).start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    assert interrupted == ["stages", "delivery"]
    assert sink.rows == {0: [("a", 1)]}
    (aborted,) = (e for e in query.events if isinstance(e, events.EpochAborted))
    assert "all jobs of the application were cancelled" in aborted.describe()
    query.stop()
