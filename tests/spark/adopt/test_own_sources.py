"""Adopted queries over own sources give the rows that Spark gives, batch by batch."""

from __future__ import annotations

import datetime as dt
import os
import random
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf
from tests.adopted.agreed import check_with_spark, comparison
from tests.adopted.scans import compare, line_of_csv, line_of_json
from tests.support.long_tests import chosen
from tests.support.native import Case, Stream, compare_all

import godwit as gw
from godwit.adopt.explain import explained
from godwit.model.errors import CheckpointMismatchError, GodwitError, UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from godwit.adopt.writer import StreamWriter

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)
_COLUMNS = "k string, ts timestamp, v double, id string, n int, d decimal(10, 2), day date"


def _rows(draw: random.Random, batch: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch, some of which are late."""
    seconds = (300 * batch + draw.randint(0, 600) for _ in range(20))
    return [
        (
            draw.choice(["a", "b", "c", None]),
            _START + dt.timedelta(seconds=second, microseconds=draw.randint(0, 999_999)),
            draw.choice([1.5, 2.0, None, -3.25, float("nan")]),
            draw.choice("xyz"),
            draw.choice([1, 2, 3, None]),
            draw.choice([None, Decimal("1.25"), Decimal("-7.50")]),
            draw.choice([None, dt.date(2024, 2, 29)]),
        )
        for second in seconds
    ]


def _input(seed: int = 1) -> Stream:
    draw = random.Random(seed)
    return Stream(schema=_COLUMNS, batches=[_rows(draw, batch) for batch in range(4)])


def _values(draw: random.Random) -> tuple[Any, ...]:
    """Draw a row of values that JSON has."""
    return (
        draw.choice(["a", "b", "\u00fc\n", None]),
        draw.choice([1, 2, 2**60, -7, None]),
        draw.choice([0.1, -1e300, 3.0, None]),
        draw.choice([True, False, None]),
        draw.choice([Decimal("1.25"), Decimal("-7.50"), None]),
        draw.choice([dt.date(2024, 2, 29), None]),
    )


def _windows(s: DataFrame) -> DataFrame:
    """Windows that overlap, with a filtered count, and columns of the window."""
    window = sf.window("ts", "5 minutes", "150 seconds")
    results = (sf.sum("v").alias("t"), sf.expr("count(n) FILTER (WHERE n > 1)").alias("c"))
    return (
        s.withWatermark("ts", "2 minutes")
        .groupBy(window, "k")
        .agg(*results)
        .select("k", "window.start", "window", "t", "c")
    )


_QUERIES: dict[str, tuple[Callable[..., DataFrame], str]] = {
    "without state": (
        lambda s: s.where("n > 1").select("k", (sf.col("n") + 1).alias("m"), "ts", "d", "day", "v"),
        "append",
    ),
    "per key": (
        lambda s: (
            s.where("id <> 'x'")
            .groupBy("k", sf.col("n") % 2)
            .agg(sf.sum("v"), sf.avg("n"), sf.max("id"), sf.sum("d"), sf.max("day"))
        ),
        "update",
    ),
    "without columns": (lambda s: s.groupBy().count(), "complete"),
    "no row at all": (lambda s: s.where("1 = 0").groupBy("k").count(), "update"),
    "windows": (_windows, "append"),
    "windows that grow": (_windows, "update"),
    "filters above the watermark": (
        lambda s: (
            s.withWatermark("ts", "2 minutes")
            .where("ts < '2024-01-01 00:12:00'")
            .groupBy(sf.window("ts", "5 minutes"))
            .count()
        ),
        "append",
    ),
    "filters below the watermark": (
        lambda s: (
            s.where("k = 'a'")
            .withWatermark("ts", "1 minutes")
            .groupBy(sf.window("ts", "1 minutes"), "k")
            .count()
        ),
        "append",
    ),
    "sessions": (
        lambda s: (
            s.withWatermark("ts", "1 minutes")
            .groupBy(sf.session_window("ts", "30 seconds"), "k")
            .agg(sf.count("*").alias("c"), sf.sum("v"), sf.max("n"))
            .select("k", "session_window.end", "c", "session_window")
        ),
        "append",
    ),
    "duplicates": (
        lambda s: s.withWatermark("ts", "1 minutes").dropDuplicatesWithinWatermark(["id", "k"]),
        "append",
    ),
    "a union": (
        lambda s, other: (
            s.select("k", "n").union(other.where("n > 1").select("id", "n")).groupBy("k").count()
        ),
        "update",
    ),
    "a join": (
        lambda s, other: (
            s.withWatermark("ts", "1 minutes")
            .select("k", "ts", "n")
            .join(
                other.withWatermark("ts", "2 minutes").selectExpr("k k2", "ts ts2", "v"),
                sf.expr("k = k2 AND ts2 BETWEEN ts AND ts + interval 1 minute"),
                "leftOuter",
            )
        ),
        "append",
    ),
}


_ONLY_LONG = ("windows that grow", "filters above the watermark", "sessions", "duplicates")
"""Queries that read their input as others do, and differ by what is made of it."""


def test_own_sources_give_the_batches_that_spark_gives(spark: SparkSession) -> None:
    cases = {}
    for name, (build, mode) in chosen(_QUERIES, only_long=_ONLY_LONG).items():
        streams = {"s": _input()}
        if name in {"a union", "a join"}:
            streams["other"] = _input(2)
        cases[name] = Case(build=build, streams=streams, mode=mode, parts=2, own_sources=True)
    draw = random.Random(3)
    texts = Stream(
        schema="k string, n bigint, v double, b boolean, d decimal(10, 2), day date",
        batches=[[_values(draw) for _ in range(20)] for _ in range(3)],
        file_format="json",
    )
    cases["JSON"] = Case(
        build=lambda s: (
            s.where("b or n > 2").groupBy("k").agg(sf.sum("n"), sf.max("v"), sf.sum("d"))
        ),
        streams={"s": texts},
        mode="update",
        own_sources=True,
    )
    assert not compare_all(spark, cases)


def _write(place: Path, name: str, number: int, content: str | pa.Table) -> None:
    """Write a file that is newer than those of lower numbers."""
    file = place / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        file.write_bytes(content.encode())
    else:
        pq.write_table(content, file)
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


_CSV = 'k,n,d\na,1,1.5\r\n\nb,x,2\n"c,\\"d",3,\n"e ""f""",4\n'
_JSON = (
    '{"k": "a", "n": 1, "t": "2024-01-01T00:00:00Z"}\nno JSON\n{"k": 2, "n": "x"}\n'
    '{"n": 5, "o": {"x": 1}}\n{"k": "c", "n": 5'
)

_LINES = '\ufeffa 2024-2-29 b\r\n\n\u00e9 2023-02-29 "x, y"\rc 2024\r\rd\n  e\n'


def _scans(reader: Any, place: Path) -> dict[str, DataFrame]:
    """Return streams over files that have more than plain columns."""
    nested = "s struct<x: bigint, z: int>, l array<bigint>, m map<string, bigint>"
    return {
        "partitions": reader("a string, n bigint, day string")
        .parquet(str(place / "days"))
        .where("day > 0")
        .select("k", "day", "n"),
        "CSV": reader("k string, n int, d double").option("header", True).csv(str(place / "*.csv")),
        "CSV with two quotes for one": reader("k string, n int, d double")
        .options(header=True, escape='"')
        .csv(str(place / "quotes")),
        "JSON": reader("k string, n int, t timestamp, o struct<x: int>")
        .json(str(place / "json"))
        .select("k", "n", "t", "o.x", "dt"),
        "JSON without bad lines": reader("k string, n string")
        .option("mode", "DROPMALFORMED")
        .json(str(place / "json"))
        .select("n"),
        "lines": reader("line string, dt date").text(str(place / "lines")),
        "dates of lines": reader("line string")
        .text(str(place / "lines"))
        .selectExpr("explode(split(line, ' ')) AS word")
        .selectExpr("word", "try_cast(word AS date) AS day"),
        "numbers of lines": reader("value string")
        .text(str(place / "lines"))
        .withColumn("one", sf.lit(1))
        .select("one"),
        "directories of JSON": reader("k string, dt date").json(str(place / "json")).select("dt"),
        "directories of lines": reader("line string, dt date")
        .text(str(place / "lines"))
        .select("dt"),
        "nested": reader(nested).parquet(str(place / "nested")).select("s", "l", "m", "s.x"),
    }


def test_texts_partitions_patterns_and_nested_columns_are_read_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    for n in range(3):
        rows = pa.table({"a": ["p", "q"], "n": pa.array([n, None], pa.int64())})
        _write(tmp_path, f"days/day=0{n}/k=x%20y/{n}.parquet", n, rows)
        _write(tmp_path, f"{n}.csv", n, _CSV)
        _write(tmp_path, f"quotes/{n}.csv", n, 'k,n,d\n"e, ""f""",4\n"""g""",5,1.5\n')
        _write(tmp_path, f"json/dt=2024-01-0{n + 1}/{n}.json", n, _JSON)
        _write(tmp_path, f"lines/dt=2024-01-0{n + 1}/{n}.txt", n, _LINES[n:])
        maps = pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64()))
        structs = [{"x": n, "y": "a"}, None, {"x": 2, "y": "b"}]
        table = pa.table({"s": structs, "l": [[1, n], [], None], "m": maps})
        _write(tmp_path, f"nested/{n}.parquet", n, table)

    def reader(schema: str) -> Any:
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)

    files = {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))
    }

    def compare_scans(name: str) -> None:
        """Compare a stream of `_scans`, batch by batch."""
        frame = _scans(reader, tmp_path)[name]

        def batches(writer: Any) -> list[str]:
            rows: list[str] = []

            def collect(batch: DataFrame, number: int) -> None:
                rows.extend(sorted(f"{number} {tuple(row)!r}" for row in batch.collect()))

            every = writer.foreachBatch(collect).trigger(availableNow=True)
            checkpoint = str(tmp_path / f"checkpoint-{type(writer).__name__}-{name}")
            every.option("checkpointLocation", checkpoint).start().awaitTermination()
            return rows

        compared = comparison(frame, _scans, files)
        own = batches(gw.write_stream(frame).own_sources())
        assert len(own) > 2, name
        check_with_spark(compared, own, lambda: batches(frame.writeStream), f"scan {name}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(compare_scans, _scans(reader, tmp_path)))


def test_a_file_that_spark_reads_otherwise_fails_by_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = pa.table({"a": ["p"]})
    _write(tmp_path, "days/day=1/0.parquet", 0, table)
    _write(tmp_path, "csv/0.csv", 0, "12:30")
    _write(tmp_path, "any/0.csv", 0, "1")
    (tmp_path / "any/more.csv").mkdir()
    days = spark.readStream.schema("a string, day int").parquet(str(tmp_path / "days"))
    times = spark.readStream.schema("t timestamp").csv(str(tmp_path / "csv"))
    any_files = spark.readStream.schema("n int").csv(str(tmp_path / "any/*.csv"))
    _write(tmp_path, "days/day=x/1.parquet", 1, table)
    for frame, reason in (
        (days, "day=x/1.parquet' has day=x, which is not int32"),
        (times, "0.csv' cannot be read: it is unknown whether Spark accepts '12:30'"),
        (any_files, "matches the directory"),
    ):
        query = gw.write_stream(frame).own_sources().format("noop").trigger(availableNow=True)
        with pytest.raises((GodwitError, StreamingQueryException), match=reason):
            query.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
        shutil.rmtree(tmp_path / "c", ignore_errors=True)


@pytest.mark.parametrize(
    ("name", "mode", "line", "doubled"),
    [
        ("csv", "PERMISSIVE", line_of_csv, False),
        ("csv", "PERMISSIVE", line_of_csv, True),
        ("json", "PERMISSIVE", line_of_json, False),
        ("json", "DROPMALFORMED", line_of_json, False),
    ],
)
def test_drawn_lines_of_texts_have_the_rows_that_spark_reads(
    spark: SparkSession, name: str, mode: str, line: Callable[[random.Random], str], doubled: bool
) -> None:
    draw = random.Random(name)
    compared = compare(spark, name, mode, [line(draw) for _ in range(400)], doubled=doubled)
    assert not compared.different
    assert compared.lines - compared.refused.total() > 100


def _rows_in(spark: SparkSession, path: Path, schema: str = "k string, n bigint") -> Any:
    """Return the reader of a directory with a file of two rows."""
    path.mkdir(exist_ok=True)
    table = pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    pq.write_table(table, path / "0.parquet")
    return spark.readStream.schema(schema).format("parquet")


def _counted(writer: StreamWriter, path: Path) -> list[tuple[Any, ...]]:
    """Run a writer's query to the end of its input; return the rows of all batches."""
    rows: list[tuple[Any, ...]] = []

    def collect(batch: DataFrame, _number: int) -> None:
        rows.extend(map(tuple, batch.collect()))

    writer = writer.outputMode("update").foreachBatch(collect).trigger(availableNow=True)
    writer.option("checkpointLocation", str(path)).start().awaitTermination()
    return sorted(rows)


def test_what_own_sources_do_not_read_as_spark_does_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = str(tmp_path / "in")

    def reader(**options: Any) -> Any:
        return _rows_in(spark, tmp_path / "in").options(**options)

    plain = reader().load(place)
    (tmp_path / "days/day=1").mkdir(parents=True)
    pq.write_table(pa.table({"k": ["a"]}), tmp_path / "days/day=1/0.parquet")
    by_day = spark.readStream.schema("k string, day double").parquet(str(tmp_path / "days"))
    table = spark.createDataFrame([("a", 1)], "k string, m int")
    refused = {
        "the option maxBytesPerTrigger is '1g'": reader(maxBytesPerTrigger="1g").load(place),
        "unsupported option 'maxfileage'": reader(maxFileAge="1d").load(place),
        "unsupported option 'cleansource'": reader(cleanSource="delete").load(place),
        "unsupported option 'recursivefilelookup'": reader(recursiveFileLookup=True).load(place),
        r"pathGlobFilter '\[ab\]\*'": reader(pathGlobFilter="[ab]*").load(place),
        "its path is a pattern with wildcards": reader().load(f"{place[:-1]}[i]n"),
        "its path is a pattern, and it also has": (
            reader(pathGlobFilter="*.parquet").load(f"{place}/*")
        ),
        "'day' of its directories is of type double": by_day,
        "JSON values of the column 'n', of type timestamp": (
            spark.readStream.schema("n timestamp_ntz").json(place)
        ),
        "CSV values of the column 'n', of type float": (
            spark.readStream.schema("n float").csv(place)
        ),
        "its column '_corrupt_record'": spark.readStream.schema("_corrupt_record string").csv(
            place
        ),
        "unsupported option 'multiline'": reader(multiLine=True).format("csv").load(place),
        "escape character is '!'": reader(escape="!").format("csv").load(place),
        "unsupported option 'dateformat'": reader(dateFormat="d.M.y").format("csv").load(place),
        "lines that mode 'dropmalformed' drops": (
            reader(mode="DROPMALFORMED").format("csv").load(place)
        ),
        "the format 'orc'": spark.readStream.schema("k string").orc(place),
        "each file is one value": spark.readStream.text(place, wholetext=True),
        "lines of text are one column": spark.readStream.schema("n int").text(place),
        "no own source for 'rate'": spark.readStream.format("rate").load(),
        "reads it twice": plain.union(plain),
        "rows of several inputs": plain.join(table, "k"),
        "a nondeterministic value": plain.select("k", sf.rand()),
        "the current time": plain.select("k", sf.current_timestamp()),
    }
    wrong = {}
    for reason, frame in refused.items():
        try:
            gw.write_stream(frame).own_sources().option("checkpointLocation", place + "-c").start()
        except UnsupportedQueryError as error:
            text = str(error)
            if not re.search(reason, text) or "Omit own_sources()" not in text:
                wrong[reason] = text
        else:
            wrong[reason] = "not refused"
    assert not wrong
    assert not (tmp_path / "in-c").exists()
    with pytest.raises(UnsupportedQueryError, match="a different kind of position"):
        gw.write_stream(plain).own_sources().from_spark_checkpoint("old").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start()


def test_explain_says_which_scans_can_be_own_sources(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "in")
    counts = _rows_in(spark, tmp_path / "in").load(place).groupBy("k").count()
    assert f"own_sources(): would read Parquet files in {place}" in explained(counts, mode="update")
    other = _rows_in(spark, tmp_path / "in").option("maxFileAge", "1d").load(place)
    text = explained(other.groupBy("k").count(), mode="update")
    assert "own_sources(): not possible: " in text
    assert "'maxfileage'" in text


def test_a_checkpoint_goes_on_with_the_kind_of_sources_that_it_began_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    counts = _rows_in(spark, tmp_path / "in").load(str(tmp_path / "in")).groupBy("k").count()
    own, frames = tmp_path / "own", tmp_path / "frames"
    assert _counted(gw.write_stream(counts).own_sources(), own) == [("a", 1), ("b", 1)]
    assert _counted(gw.write_stream(counts), frames) == [("a", 1), ("b", 1)]
    pq.write_table(
        pa.table({"k": ["a"], "n": pa.array([3], pa.int64())}), tmp_path / "in/1.parquet"
    )
    with pytest.raises(CheckpointMismatchError, match="reads DataFrames"):
        _counted(gw.write_stream(counts), own)
    with pytest.raises(CheckpointMismatchError, match="reads sources of Godwit's own"):
        _counted(gw.write_stream(counts).own_sources(), frames)
    assert _counted(gw.write_stream(counts).own_sources(), own) == [("a", 2)]
    assert _counted(gw.write_stream(counts), frames) == [("a", 2)]
