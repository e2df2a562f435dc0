"""The short cuts through Spark are taken where they can be, and nothing depends on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.spark.streams import Inbox, counted, drain

import godwit as gw
from godwit.engine.cluster import Executor
from godwit.spark.platform.executors import run_trial_epoch
from godwit.spark.stages import source_rows
from godwit.spark.stages.exchange import PythonStage, fetch, pair_with_locations, python_rdd
from godwit.spark.stages.source_rows import SourceRows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY_CONTEXT = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
)


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    made = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, at timestamp, v long")
    made.put(*([(f"k{i % 7}", 1_000_000 * i, i + epoch) for i in range(50)] for epoch in range(3)))
    return made


def flow_of(inbox: Inbox) -> gw.Flow:
    def mapped(frame: DataFrame) -> DataFrame:
        # What depends on the session's settings, a filter, and an exchange of Spark's own.
        hour = sf.date_format("at", "HH")
        return frame.where("v % 3 <> 0").withColumn("hour", hour).repartition(3, "hour")

    flow = gw.Flow("flow", num_key_groups=8)
    keyed = flow.source("rows", inbox.stream()).map(mapped).key_by("k", "hour")
    flow.sink("out", keyed.compute(name="t", total=gw.sum("v"), n=gw.count()), gw.sinks.memory())
    return flow


def test_rows_come_from_the_plan_of_the_micro_batch_and_are_the_same_without_it(
    inbox: Inbox, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    plan_of = source_rows._plan_of

    def noted(*arguments: Any) -> Any:
        plan = plan_of(*arguments)
        found.append(plan is not None)
        return plan

    monkeypatch.setattr(source_rows, "_plan_of", noted)
    drain(flow_of(inbox), tmp_path / "short")
    assert found == [True, True, True]
    monkeypatch.setattr(source_rows, "_plan_of", lambda *_: None)
    drain(flow_of(inbox), tmp_path / "long")
    short, long = (
        counted(tuple(row) for row in gw.read_state(spark, tmp_path / name, "t").collect())
        for name in ("short", "long")
    )
    assert short == long
    assert len(short) == 7


class Taken:
    """Lets the rows of small epochs be taken to the driver, as they are outside the tests.

    Attributes
    ----------
    few
        For each epoch, how many batches were taken; ``None`` where the rows went by an exchange.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, rows_at_most: int) -> None:
        self.few: list[int | None] = []
        take = SourceRows.fetch_few

        def taken(few_rows: SourceRows, rows: DataFrame, number: int) -> list[bytes] | None:
            few_rows._rows_at_most = rows_at_most
            batches = take(few_rows, rows, number)
            self.few.append(None if batches is None else len(batches))
            return batches

        monkeypatch.setattr(SourceRows, "few_expected", EXPECTED)
        monkeypatch.setattr(SourceRows, "fetch_few", taken)


EXPECTED = SourceRows.__dict__["few_expected"]


def test_rows_of_small_epochs_come_without_an_exchange_and_are_the_same(
    inbox: Inbox, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain(flow_of(inbox), tmp_path / "long")
    taken = Taken(monkeypatch, rows_at_most=1000)
    drain(flow_of(inbox), tmp_path / "short")
    assert taken.few[0] is None  # nothing is known of the first
    assert all(taken.few[1:])
    short, long = (
        counted(tuple(row) for row in gw.read_state(spark, tmp_path / name, "t").collect())
        for name in ("short", "long")
    )
    assert short == long


def test_an_epoch_that_is_larger_than_expected_goes_by_the_exchange_as_a_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, at timestamp, v long")
    sizes = (5, 40, 5, 6, 0, 7)
    inbox.put(*([(f"k{i % 7}", i, 3 * i + 1) for i in range(size)] for size in sizes))
    taken = Taken(monkeypatch, rows_at_most=20)
    drain(flow_of(inbox), tmp_path / "ck")
    assert [few is not None for few in taken.few] == [False, False, False, True, True, True]
    state = gw.read_state(spark, tmp_path / "ck", "t").collect()
    assert sum(row["n"] for row in state) == sum(sizes)


def test_operators_downstream_get_what_operators_without_an_exchange_before_them_made(
    inbox: Inbox, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flow() -> gw.Flow:
        made = gw.Flow("flow", num_key_groups=8)
        by_key = made.source("rows", inbox.stream()).key_by("k").compute(name="a", n=gw.count())
        sizes = by_key.key_by("n").compute(name="b", keys=gw.count())
        made.sink("out", sizes, gw.sinks.memory())
        return made

    drain(flow(), tmp_path / "long")
    taken = Taken(monkeypatch, rows_at_most=1000)
    drain(flow(), tmp_path / "short")
    assert all(taken.few[1:])
    short, long = (
        counted(tuple(row) for row in gw.read_state(spark, tmp_path / name, "b").collect())
        for name in ("short", "long")
    )
    assert short == long


def test_the_short_cut_to_the_logs_ends_once_the_query_has_started(
    inbox: Inbox, spark: SparkSession, tmp_path: Path
) -> None:
    query = flow_of(inbox).start(checkpoint=tmp_path / "ck")
    assert spark.conf.get(MANAGER, None) is None
    query.processAllAvailable()
    query.stop()
    inbox.put([("k1", 0, 1)])
    spark.conf.set(MANAGER, BY_CONTEXT)
    try:
        drain(flow_of(inbox), tmp_path / "ck")  # the two ways read each other's files
        assert spark.conf.get(MANAGER) == BY_CONTEXT
    finally:
        spark.conf.unset(MANAGER)
    for log in ("offsets", "commits"):
        names = {path.name for path in (tmp_path / "ck" / "spark" / log).iterdir()}
        assert {"0", "1", "2", "3"} <= names


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_every_core_of_a_new_executor_reads_a_partition_of_the_last_micro_batch(
    spark: SparkSession, partitions: int
) -> None:
    context = spark.sparkContext
    rows = spark.range(30).repartition(partitions)
    source = rows._jdf.toArrowBatchRdd()
    stage = PythonStage(
        pair_with_locations(source.toJavaRDD(), [None, None], context, count=partitions),
        lambda _core, items: [b"".join(items)],
    )
    came = fetch(python_rdd(stage, context), context)
    read = [b"".join(fetch(source, context)[i : i + 1]) for i in range(partitions)]
    assert came == [read[0], read[1 % partitions]]
    run_trial_epoch(Executor(name="1", lanes=2, location=None), source, context)
    run_trial_epoch(Executor(name="1", lanes=2, location=None), None, context)


def test_a_stage_of_python_tasks_takes_few_calls_to_the_jvm(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    source = spark.range(4).repartition(2)._jdf.toArrowBatchRdd()

    def run() -> list[bytes]:
        return fetch(
            python_rdd(PythonStage(source, lambda _, items: [bytes(len(list(items)))]), context),
            context,
        )

    expected = run()  # what is looked up once is there from here on
    calls: list[str] = []
    gateway: Any = context._gateway
    client = gateway._gateway_client
    send = client.send_command

    def counted_call(command: str, *arguments: Any, **named: Any) -> Any:
        if not command.startswith("m\n"):  # what Python lets go of
            calls.append(command)
        return send(command, *arguments, **named)

    monkeypatch.setattr(client, "send_command", counted_call)
    assert run() == expected
    assert len(calls) <= 12  # PySpark's own ``mapPartitions(...).collect()`` takes 37
