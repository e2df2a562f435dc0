"""Maps before an operator: what Spark SQL may do there, and what is refused, and how."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit
from tests.spark.streams import Inbox, counted, drain, rows_of

import godwit as gw
from godwit.model.errors import InvalidFlowError, UserFunctionError
from godwit.spark.start import compile_flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    Map = Callable[[DataFrame], DataFrame]

pytestmark = pytest.mark.spark


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    made = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long, ts timestamp")
    made.put([("a", 1, None), ("b", 2, None)], [("a", 3, None), ("c", 4, None)])
    return made


def mapped(inbox: Inbox, function: Map, sink: Any = None) -> gw.Flow:
    flow = gw.Flow("flow", num_key_groups=4)
    stream = flow.source("rows", inbox.stream()).map(function)
    flow.sink("out", stream.key_by("k").compute(n=gw.count()), sink or gw.sinks.noop())
    return flow


def test_tables_that_do_not_stream_can_be_joined_with_and_looked_up_in(
    spark: SparkSession, inbox: Inbox, tmp_path: Path
) -> None:
    names = spark.createDataFrame(
        [("a", "Ada"), ("b", "Bob"), ("b", "Ben")], "k string, name string"
    )
    least = spark.createDataFrame([(2,)], "v long")

    def named(rows: DataFrame) -> DataFrame:
        known = rows.join(F.broadcast(names), "k", "left").join(least, "v", "left_anti")
        return known.withColumn("part", F.explode(F.array(F.lit(1), F.lit(2))))

    flow = gw.Flow("flow", num_key_groups=4)
    sink = gw.sinks.memory()
    stream = flow.source("rows", inbox.stream()).map(named).key_by("name").compute(n=gw.count())
    flow.sink("out", stream, sink)
    drain(flow, tmp_path / "ck")
    assert counted(rows_of(sink.table())) == counted([("Ada", 4), (None, 2)])


@pytest.mark.parametrize(
    ("function", "anew"),
    [
        (lambda d: d.filter("v > 1").select("ts", "k"), False),
        (lambda d: d.withColumn("part", F.explode(F.array(F.lit(1), F.lit(2)))), False),
        (lambda d: d.repartition(2).withColumnRenamed("v", "w"), False),
        (lambda d: d.join(d.sparkSession.range(3), d.v == F.col("id"), "left"), False),
        (lambda d: d.withColumn("ts", F.col("ts") + F.expr("interval 9 hours")), True),
        (lambda d: d.mapInArrow(lambda batches: batches, d.schema), True),
        (lambda d: d.union(d.withColumn("ts", F.col("ts") + F.expr("interval 9 hours"))), True),
        (lambda d: d.drop("ts").withColumn("ts", F.timestamp_micros("v")), True),
    ],
)
def test_a_map_that_computes_the_event_time_anew_has_a_watermark_of_its_own(
    inbox: Inbox, function: Map, anew: bool
) -> None:
    flow = gw.Flow("flow", num_key_groups=4)
    source = flow.source("rows", inbox.stream(), event_time="ts")
    windows = source.key_by("k").window(gw.tumbling("1 hour"), name="raw").compute(n=gw.count())
    flow.sink("out", windows, gw.sinks.noop())
    mapped = source.map(function).map(lambda d: d.filter("k > ''")).key_by("k")
    flow.sink("other", mapped.compute(name="mapped", n=gw.count()), gw.sinks.noop())
    found = compile_flow(flow, inbox.spark).watermarks
    assert found == ((("rows",), ("rows/mapped",)) if anew else (("rows",),))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda d: d.groupBy("k").count(), r"aggregates \(groupBy.*key_by\(\.\.\.\)\.compute"),
        (lambda d: d.agg(F.sum("v").alias("k")), "aggregates"),
        (lambda d: d.dropDuplicates(["k"]), r"removes duplicates.*Spark would keep that state"),
        (lambda d: d.distinct(), "removes duplicates"),
        (lambda d: d.limit(3), r"counts rows .*left out for ever.*maxFilesPerTrigger"),
        (lambda d: d.orderBy("v"), "sorts"),
        (
            lambda d: d.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy("v"))),
            r"window functions.*rows of one epoch only.*process",
        ),
        (lambda d: d.join(d.select("k", "ts"), "k"), r"joins two streams.*join_newest"),
        (lambda d: d.withWatermark("ts", "1 minute"), r"sets a watermark.*Remove withWatermark"),
        (lambda d: d.groupBy("k").applyInPandas(lambda p: p, "k string"), "works on groups of row"),
        (lambda d: d.exceptAll(d.limit(0)), "counts rows|compares its rows"),
        (lambda d: d.sample(0.5), "what Spark cannot do with a stream: Sampling is not supported"),
    ],
)
def test_what_would_need_state_is_refused_before_anything_runs(
    inbox: Inbox, tmp_path: Path, function: Map, told: str
) -> None:
    flow = mapped(inbox, function)
    with pytest.raises(InvalidFlowError, match=rf"Map '<lambda>' on source 'rows' .*{told}"):
        flow.explain()
    with pytest.raises(InvalidFlowError, match=told):
        flow.start(checkpoint=tmp_path / "ck")
    assert not (tmp_path / "ck").exists()


def test_the_same_is_refused_of_a_source_in_the_line_that_names_it(inbox: Inbox) -> None:
    flow = gw.Flow("flow")
    with pytest.raises(InvalidFlowError, match="Source 'rows' aggregates"):
        flow.source("rows", inbox.stream().groupBy("k").count())
    with pytest.raises(InvalidFlowError, match="Source 'rows' sets a watermark"):
        flow.source("rows", inbox.stream().withWatermark("ts", "1 minute"))
    flow.source("rows", inbox.stream().where("v > 1"))


def test_a_map_must_return_what_streams(spark: SparkSession, inbox: Inbox) -> None:
    table = spark.createDataFrame([("a",)], "k string")
    with pytest.raises(InvalidFlowError, match=r"'<lambda>'.* a DataFrame that is not streaming"):
        mapped(inbox, lambda _: table).explain()


def test_an_exit_in_a_map_is_an_error_that_says_so(inbox: Inbox, tmp_path: Path) -> None:
    with pytest.raises(InvalidFlowError, match=r"raised SystemExit: 3\..*query\.stop\(\)"):
        mapped(inbox, lambda _: sys.exit(3)).explain()

    def leave(table: Any) -> Any:
        if table.num_rows:
            sys.exit(4)
        return table

    flow = gw.Flow("flow", num_key_groups=4)
    counts = flow.source("rows", inbox.stream()).key_by("k").compute(n=gw.count())
    flow.sink("out", counts.map(leave), gw.sinks.memory())
    with pytest.raises(UserFunctionError, match=r"'leave' after .* raised SystemExit: 4") as caught:
        drain(flow, tmp_path / "ck")
    assert caught.value.__cause__ is None
    package = Path(gw.__file__).parent
    ours = [entry for entry in caught.traceback if Path(entry.path).is_relative_to(package)]
    assert len(ours) == 1
    lines = str(caught.value).splitlines()
    assert len(lines) < 8
    assert sum('File "' in line for line in lines) == 1


def test_an_error_of_spark_in_a_map_is_told_in_two_lines(
    inbox: Inbox, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidFlowError, match=r"Map '<lambda>' .*UNRESOLVED_COLUMN.*'k', 'v'"):
        mapped(inbox, lambda d: d.where(F.col("gone") > 1)).explain()
    assert capfd.readouterr().err == ""


def test_two_sessions_are_not_mixed(spark: SparkSession, inbox: Inbox) -> None:
    flow = gw.Flow("flow")
    flow.source("rows", inbox.stream())
    flow.source("more", inbox.stream())
    other = Inbox(spark=spark.newSession(), directory=inbox.directory, columns=inbox.columns)
    with pytest.raises(InvalidFlowError, match="'rows' and 'others' come from two Spark sessions"):
        flow.source("others", other.stream())


def test_an_interval_that_spark_cannot_read_is_refused_before_the_checkpoint_is_touched(
    inbox: Inbox, tmp_path: Path
) -> None:
    flow = mapped(inbox, lambda d: d)
    with pytest.raises(InvalidFlowError, match=r"cannot read '1 sekond'.* such as .*\"1 second\""):
        flow.start(checkpoint=tmp_path / "ck", trigger={"processingTime": "1 sekond"})
    assert not (tmp_path / "ck").exists()
