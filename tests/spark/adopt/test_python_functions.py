"""Python UDFs between stateful operators give the rows of Spark, batch by batch, and its errors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator  # noqa: TC003  PySpark reads annotations
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as sf
from pyspark.sql.types import Row
from tests.adopted.lanes_here import lanes_here
from tests.support.long_tests import chosen
from tests.support.native import Case, Stream, compare_all, written

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

_COLUMNS = (
    "id int, k string, n int, l long, i tinyint, v double, f float, b boolean, m decimal(12,3), "
    "t timestamp, z timestamp_ntz, d date, x binary, a array<date>, s struct<p: int, q: timestamp>,"
    " w map<string, int>, e array<struct<p: string>>, j map<int, map<string, double>>, "
    "y array<double>"
)
_functions: Any = sf  # PySpark's types leave some out
_START = dt.datetime(2024, 3, 31, 0, 59)
_TIMED = "id int, k string, ts timestamp, n int, v double"


def _wide_row(number: int) -> tuple[Any, ...]:
    """Return a row with a value of every type; some are null."""
    moment = _START + dt.timedelta(minutes=number, microseconds=17 * number)
    values = (
        "abc"[number % 3] * (number % 4),
        number - 9,
        10**number - 5,
        number - 8,
        number / 7,
        number / 5,
        number % 2 == 0,
        Decimal(number * 317 - 2000) / 1000,
        moment,
        moment,
        moment.date() - dt.timedelta(days=number * 1000),
        bytes([0, 255, number]),
        [moment.date(), None][: number % 3],
        {"p": number, "q": moment},
        [(f"key {n * number}", n) for n in range(number)],
        [{"p": f"{number}"}, None],
        [(n - 3, [("inner", 0.5), (f"é{n}", None)]) for n in range(number % 7)],
        [0.1 * number, float("nan"), float("inf"), None],
    )
    return (number, *(None if (number + n) % 11 == 0 else v for n, v in enumerate(values)))


def _wide() -> dict[str, Stream]:
    rows = [_wide_row(number) for number in range(18)]
    return {"s": Stream(schema=_COLUMNS, batches=[rows[:7], rows[4:12], rows[10:]])}


def _timed() -> dict[str, Stream]:
    rows = [
        (n, "ab"[n % 2], _START + dt.timedelta(minutes=n), n % 5 if n % 6 else None, n / 2)
        for n in range(40)
    ]
    return {"s": Stream(schema=_TIMED, batches=[rows[:15], rows[10:25], rows[25:32], rows[32:]])}


def _between(s: DataFrame, *columns: Column) -> DataFrame:
    """Columns that are computed between two stateful operators."""
    return s.dropDuplicates(["id"]).select("id", *columns).dropDuplicates(["id"])


# -- values ----------------------------------------------------------------------------------------

_ODD: tuple[Any, ...] = (
    *(None, 0, 7, -(2**31), 2**40, 2**70, True, 1.5, -0.0, 1e20, float("nan"), float("inf")),
    *("text", "", "é", b"bytes", bytearray(b"ab"), Decimal("1.2345"), Decimal("-7E+2")),
    *([], [1, None, "x"], (1, 2.5), {}, {"k": 1, 2: None}, {"b": 1, "a": 2, "long key": 3}),
)
_TYPES = (
    *("tinyint", "int", "bigint", "float", "double", "boolean", "string", "binary"),
    *("decimal(10,2)", "array<int>", "map<string,int>", "map<int,string>", "array<string>"),
)


def _odd(values: tuple[Any, ...]) -> Callable[[int], Any]:
    """Return a function whose values are of many types, whatever it declares."""
    return lambda n: values[n % len(values)]


def _of_type(dtype: str) -> tuple[Any, ...]:
    """Return values that a function may return for a declared type."""
    if dtype == "string":
        return tuple(v for v in _ODD if not isinstance(v, bytes | bytearray | tuple))
    if dtype.startswith("map<int"):  # null is not a key
        texts = _of_type("string")
        return tuple({m * 37: texts[m] for m in range(n)} if n else None for n in range(19))
    return _of_type("string") if "string" in dtype else _ODD


def _pickled_results(s: DataFrame) -> DataFrame:
    """Whatever a pickled function returns, for every declared type."""
    numbered = s.select("id").withColumn("n", sf.explode(sf.sequence(sf.lit(0), sf.lit(1))))
    numbered = numbered.select((sf.col("id") + 18 * sf.col("n")).alias("id"))
    return _between(
        numbered,
        *(
            sf.udf(_odd(_of_type(dtype)), dtype, useArrow=False)("id").alias(f"c{n}")
            for n, dtype in enumerate(_TYPES)
        ),
    )


def _results(s: DataFrame, *, arrow: bool) -> DataFrame:
    """Results of nested types, of times and decimals."""
    functions = {
        "struct<p: int, q: string>": lambda n: (n, f"{n}") if n % 2 else {"q": "of a dict"},
        "struct<p: struct<d: date>, q: array<timestamp>>": lambda n: (
            Row(p=Row(d=dt.date(2024, 1, n)), q=[dt.datetime(2024, 1, n, 1), None]) if n else None
        ),
        "map<string, date>": lambda n: {f"{m} {n}": dt.date(1, 1, 1) for m in range(n)} or None,
        "map<int, array<double>>": lambda n: {m * 7 - 9: [m / 3, None] for m in range(n)},
        "timestamp": lambda n: dt.datetime(2024, 3, 31, 1, n, tzinfo=dt.UTC),
        "timestamp_ntz": lambda n: dt.datetime(1969, 12, 31, 23, 59, n, 5) if n else None,
        "date": lambda n: dt.date(9999, 12, n + 1),
        "decimal(20, 4)": lambda n: Decimal(n) / 7 if n % 3 else None,
        "interval day to second": lambda n: dt.timedelta(days=-n, microseconds=n),
        "binary": lambda n: bytes([n]),
        "array<array<string>>": lambda n: [[f"{n}"], [], None],
    }
    return _between(
        s,
        *(
            sf.udf(function, dtype, useArrow=arrow)("id").alias(f"c{number}")
            for number, (dtype, function) in enumerate(functions.items())
        ),
    )


def _shown(*values: Any) -> str:
    """Show the types and values of the arguments of a function."""
    return " ".join(f"{type(value).__name__} {value!r}" for value in values)


def _arguments(s: DataFrame, *, arrow: bool) -> DataFrame:
    """Arguments of every type, as the function sees them."""
    show = sf.udf(_shown, "string", useArrow=arrow)
    return _between(
        s,
        *(show(name).alias(f"shown_{name}") for name in s.columns),
        show(*s.columns).alias("all_of_them"),
    )


def _pandas(s: DataFrame) -> DataFrame:
    """Functions over pandas' and Arrow's columns, their iterators, and structs."""

    def added(v: pd.Series, n: pd.Series) -> pd.Series:
        return v + n

    def parts(s: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"p": s["p"] * 2, "q": s["q"].astype(str)})

    def cut(rows: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for k in rows:
            yield k.str.upper()

    def pair(rows: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for d, t in rows:
            yield pd.to_datetime(d) + (t - t.dt.normalize())

    def kind(column: pd.Series) -> pd.Series:
        return pd.Series([str(column.dtype)] * len(column))

    def doubled(v: pa.Array) -> pa.Array:
        return pc.multiply(v, 2)

    return _between(
        s,
        _functions.pandas_udf(added, "double")("v", "n").alias("added"),
        _functions.pandas_udf(added, "int")("n", n=sf.col("i")).alias("narrow"),
        _functions.pandas_udf(parts, "struct<p: int, q: string>")("s").alias("parts"),
        _functions.pandas_udf(cut, "string")("k").alias("cut"),
        _functions.pandas_udf(pair, "timestamp")("d", "t").alias("pair"),
        *(
            _functions.pandas_udf(kind, "string")(name).alias(f"kind_{name}")
            for name in ("id", "k", *"vtzdxa")
        ),
        _functions.arrow_udf(doubled, "double")("v").alias("doubled"),
    )


# -- queries ---------------------------------------------------------------------------------------


def _chained(s: DataFrame) -> DataFrame:
    """Functions of functions of both kinds, by name, without arguments, and of expressions."""
    add: Any = sf.udf(lambda x, y=0: None if x is None else x + (y or 0), "int", useArrow=False)
    wide = sf.udf(lambda x: x and x * 2.5, "double", useArrow=True)
    text = _functions.pandas_udf(lambda x: x.astype(str), "string")
    constant = sf.udf(lambda: 42, "int")
    counted = sf.udf(lambda: 1, "int", useArrow=True).asNondeterministic()
    n = sf.col("n")
    return (
        s.dropDuplicates(["id"])
        .select(
            "id",
            add(add(add(n, sf.lit(1)), n), n + 1).alias("c1"),
            add(add(n)).alias("c2"),
            add(y=n, x=sf.col("id")).alias("c3"),
            wide(add(n)).alias("c4"),
            text(wide(sf.coalesce(n, sf.lit(3))) + 1).alias("c5"),
            sf.when(n > 2, add(n)).otherwise(constant()).alias("c6"),
            (counted() + constant()).alias("c7"),
        )
        .where(add("c2") > 0)
        .dropDuplicates(["id"])
    )


def _having(s: DataFrame) -> DataFrame:
    """Functions of aggregates, as conditions on them, as keys and arguments of the next one."""
    even = sf.udf(lambda n: n is not None and n % 2 == 0, "boolean", useArrow=False)
    name = _functions.pandas_udf(lambda k: k + "!", "string")
    sums = (
        s.withWatermark("ts", "1 minute")
        .groupBy(sf.window("ts", "3 minutes"), name("k").alias("k"))
        .agg(sf.sum("n").alias("total"), even(sf.count("*")).alias("even"))
        .where(even("total") | sf.col("even"))
    )
    length = sf.udf(lambda w: (w.end - w.start).total_seconds(), "double", useArrow=False)
    return sums.groupBy(sf.window("window", "9 minutes"), name("k").alias("name")).agg(
        sf.sum(length("window")).alias("seconds"), sf.count("*").alias("c")
    )


def _joined(s: DataFrame) -> DataFrame:
    """Functions over both sides of a join, of one side, and of its result."""
    near = sf.udf(lambda a, b: abs(a - b) < 8, "boolean", useArrow=False)
    upper = sf.udf(lambda k: k.upper(), "string", useArrow=True)
    left = s.withWatermark("ts", "1 minute").select("ts", "k", "id", "v")
    right = left.select(*(sf.col(name).alias(f"r_{name}") for name in left.columns))
    return (
        left.join(
            right,
            (upper("k") == upper("r_k"))
            & sf.expr("r_ts BETWEEN ts AND ts + INTERVAL 5 MINUTES")
            & near("id", "r_id"),
        )
        .where(near("v", "r_v"))
        .select("k", "id", "r_id", upper(upper("k")).alias("u"))
        .dropDuplicates(["id", "r_id"])
    )


def _in_sql(s: DataFrame) -> DataFrame:
    """A function that is registered by name, in SQL."""
    spark = s.sparkSession
    spark.udf.register("tripled", lambda n: n and 3 * n, "int")
    s.withWatermark("ts", "1 minute").createOrReplaceTempView("of_python_functions")
    return spark.sql(
        "SELECT w, tripled(total) AS t, c FROM (SELECT window(window, '6 minutes') AS w, "
        "tripled(sum(total)) AS total, count(*) AS c FROM (SELECT window(ts, '2 minutes') window, "
        "sum(n) AS total FROM of_python_functions WHERE tripled(n) > 3 GROUP BY 1 "
        "HAVING tripled(count(*)) < 6) GROUP BY 1)"
    )


def _large(s: DataFrame) -> DataFrame:
    """Functions that refer to a broadcast variable, and to so much that Spark broadcasts them."""
    names = s.sparkSession.sparkContext.broadcast({n: f"name {n}" for n in range(10)})
    table = {n: f"{n:0300d}" for n in range(4000)}
    lookup = sf.udf(lambda n: names.value.get(n, "none"), "string", useArrow=False)
    large = sf.udf(lambda n: table.get(n, ""), "string", useArrow=False)
    return _between(s, lookup("n").alias("name"), sf.length(large("id")).alias("length"))


def _mapped(s: DataFrame) -> DataFrame:
    """Rows that a function over DataFrames, and one over Arrow batches, make of those."""

    def frames(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for rows in batches:
            yield rows[rows["n"] > 1].assign(n=rows["n"] * 2)[["n", "id", "ts"]]

    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            yield rows
            yield rows.slice(0, 0)
            yield rows.set_column(0, "n", pa.array([None] * rows.num_rows, pa.int64()))

    return (
        s.dropDuplicates(["id"])
        .mapInPandas(frames, "n long, id int, ts timestamp")
        .mapInArrow(twice, "n long, id int, ts timestamp")
        .dropDuplicates(["n", "id"])
    )


_QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], Callable[[], dict[str, Stream]]]] = {
    "values of any type that pickled functions return": (_pickled_results, _wide),
    "results of nested types and times, pickled": (lambda s: _results(s, arrow=False), _wide),
    "results of nested types and times, in Arrow": (lambda s: _results(s, arrow=True), _wide),
    "arguments of every type, pickled": (lambda s: _arguments(s, arrow=False), _wide),
    "arguments of every type, in Arrow": (lambda s: _arguments(s, arrow=True), _wide),
    "functions over columns": (_pandas, _wide),
    "functions of functions": (_chained, _timed),
    "functions of aggregates, and keys of the next": (_having, _timed),
    "functions in conditions of a join": (_joined, _timed),
    "functions in SQL": (_in_sql, _timed),
    "functions that refer to broadcast variables": (_large, _timed),
    "maps of rows": (_mapped, _timed),
}


_ONLY_LONG = frozenset(
    {
        "arguments of every type, in Arrow",
        "functions in SQL",
        "functions in conditions of a join",
        "functions of aggregates, and keys of the next",
        "results of nested types and times, in Arrow",
        "results of nested types and times, pickled",
    }
)


def _read(s: DataFrame) -> DataFrame:
    """Functions below the first stateful operator."""
    half = _functions.pandas_udf(lambda v: v / 2, "double")
    odd = sf.udf(lambda n: n % 2 == 1, "boolean", useArrow=False)
    return s.where(odd("id")).select("id", half("v").alias("half")).dropDuplicates(["id"])


def test_python_functions_give_the_rows_of_spark(spark: SparkSession) -> None:
    cases = {
        name: Case(build=build, streams=streams(), mode="append", parts=2)
        for name, (build, streams) in _QUERIES.items()
    }
    own = Case(build=_read, streams=_timed(), mode="append", parts=2, own_sources=True)
    cases["functions over own sources"] = own
    assert compare_all(spark, chosen(cases, only_long=_ONLY_LONG)) == {}


def _divided(n: int) -> int:
    return 1 // (n - 3)


@pytest.mark.parametrize("arrow", [False, True])
def test_the_error_of_a_function_fails_the_epoch_with_its_traceback(
    spark: SparkSession, tmp_path: Path, arrow: bool
) -> None:
    with written(spark, _timed()) as frames, lanes_here():
        query = _between(frames["s"], sf.udf(_divided, "int", useArrow=arrow)("id"))
        writer = gw.write_stream(query).outputMode("append").format("noop")
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        with pytest.raises(gw.errors.UserFunctionError, match="ZeroDivisionError") as caught:
            writer.start().awaitTermination()
    assert "in _divided\n    return 1 // (n - 3)" in caught.value.remedy


def test_functions_that_lanes_cannot_call_are_refused_with_the_reason(spark: SparkSession) -> None:
    total = spark.sparkContext.accumulator(0)
    decimals = sf.create_map(sf.col("n").cast("decimal(10,0)"), "n")
    refused: dict[str, Callable[[DataFrame], DataFrame]] = {
        "an accumulator": lambda s: _between(s, sf.udf(total.add, "int", useArrow=False)("n")),
        "Java hashes keys of type decimal": lambda s: _between(
            s, sf.udf(len, "int", useArrow=False)(decimals)
        ),
        "a struct with duplicate field names": lambda s: _between(
            s, sf.udf(lambda n: (n, n), "struct<a: int, a: int>", useArrow=False)("n")
        ),
        "barrier=True": lambda s: (
            s.dropDuplicates(["id"])
            .mapInPandas(lambda rows: rows, s.schema, barrier=True)
            .dropDuplicates(["id"])
        ),
    }
    with written(spark, _timed()) as frames:
        for reason, build in refused.items():
            with pytest.raises(gw.errors.UnsupportedQueryError, match=reason):
                gw.read_plan(build(frames["s"]), mode="append")
