"""Every aggregate through the real runtime gives what Spark's batch engine gives."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark's users know
from tests.spark.streams import Inbox, counted, drain, rows_of

import godwit as gw
from godwit.library.aggregates.expressions import Rows, parse_condition

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "k string, i int, v double, s string, d decimal(12,2), n long"
EPOCHS, ROWS, KEYS = 4, 300, 40


def generated(rng: random.Random) -> list[list[tuple[Any, ...]]]:
    """Epochs of rows with nulls everywhere; `n` counts them."""
    number = 0
    epochs = []
    for _ in range(EPOCHS):
        rows = []
        for _ in range(ROWS):
            key = rng.choice([None, *(f"k{j}" for j in range(KEYS))])
            i = None if rng.random() < 0.1 else rng.randrange(-50, 50)
            v = None if rng.random() < 0.1 else rng.choice([0.5, -0.25, 3.0, 1e9, rng.random()])
            s = None if rng.random() < 0.1 else rng.choice(["a", "b", "żółw", "", "zz"])
            d = None if rng.random() < 0.1 else Decimal(rng.randrange(-(10**6), 10**6)) / 100
            rows.append((key, i, v, s, d, number))
            number += 1
        epochs.append(rows)
    return epochs


def test_every_aggregate_gives_what_a_batch_over_all_rows_gives(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=COLUMNS)
    inbox.put(*generated(random.Random(7)))
    flow = gw.Flow("aggregates", num_key_groups=16)
    source = flow.source("rows", inbox.stream())
    exact = source.key_by("k").compute(
        name="exact",
        rows=gw.count(),
        counted=gw.count("v"),
        keys=gw.count("k"),
        sum_i=gw.sum("i"),
        sum_d=gw.sum("d"),
        min_i=gw.min("i"),
        max_v=gw.max("v"),
        min_s=gw.min("s"),
        max_s=gw.max("s"),
        max_d=gw.max("d"),
        mean_d=gw.mean("d"),
        first=gw.first("n"),
        last=gw.last("n"),
        first_s=gw.first("s", ignore_nulls=True),
        last_s=gw.last("s", ignore_nulls=True),
    )
    rounded = source.key_by("k").compute(
        name="rounded",
        sum_v=gw.sum("v"),
        mean_v=gw.mean("v"),
        mean_i=gw.mean("i"),
        variance=gw.variance("v"),
        population=gw.variance("v", population=True),
        stddev=gw.stddev("i"),
    )
    sets = source.key_by("k").compute(
        name="sets",
        distinct=gw.approx_distinct("n"),
        strings=gw.collect_set("s"),
        top=gw.top_k("i", 3),
        positive=gw.sum("n", where="i > 0 and v is not null"),
        values=gw.count_distinct("i"),
        numbers=gw.collect_list("n", 10_000),
        best=gw.max_by("n", "i", where="s = 'a'"),
        median=gw.approx_median("v"),
    )
    sinks = {"exact": gw.sinks.memory(), "rounded": gw.sinks.memory(), "sets": gw.sinks.memory()}
    for (name, sink), stream in zip(sinks.items(), (exact, rounded, sets), strict=True):
        flow.sink(name, stream, sink)
    query = drain(flow, tmp_path / "ck")
    assert [p["numInputRows"] for p in query.recentProgress] == [ROWS] * EPOCHS

    batch = inbox.batch()
    expected = batch.groupBy("k").agg(
        F.count("*"),
        F.count("v"),
        F.count("k"),
        F.sum("i"),
        F.sum("d"),
        F.min("i"),
        F.max("v"),
        F.min("s"),
        F.max("s"),
        F.max("d"),
        F.avg("d"),
        F.min("n"),
        F.max("n"),
        F.min_by("s", F.when(F.col("s").isNotNull(), F.col("n"))),
        F.max_by("s", F.when(F.col("s").isNotNull(), F.col("n"))),
    )
    assert counted(rows_of(sinks["exact"].table())) == counted(rows_of(expected))

    close = {
        row[0]: row[1:]
        for row in batch.groupBy("k")
        .agg(
            F.sum("v"),
            F.avg("v"),
            F.avg("i"),
            F.var_samp("v"),
            F.var_pop("v"),
            F.stddev_samp("i"),
        )
        .collect()
    }
    found = {row[0]: row[1:] for row in rows_of(sinks["rounded"].table())}
    assert found.keys() == close.keys()
    for key, values in found.items():
        for value, other in zip(values, close[key], strict=True):
            assert math.isclose(value, other, rel_tol=1e-9), (key, value, other)

    whole = {
        row["k"]: (row["n"], set(row["s"]), sorted(row["i"], reverse=True)[:3], row)
        for row in batch.groupBy("k")
        .agg(
            F.count_distinct("n").alias("n"),
            F.collect_set("s").alias("s"),
            F.collect_list("i").alias("i"),
            F.expr("sum(n) filter (where i > 0 and v is not null)").alias("positive"),
            F.count_distinct("i").alias("values"),
            F.sort_array(F.collect_list("n")).alias("numbers"),
            F.expr("max_by(n, struct(i, -n)) filter (where s = 'a' and i is not null)").alias(
                "best"
            ),
            F.percentile_approx("v", 0.5, 10_000).alias("median"),
        )
        .collect()
    }
    for key, distinct, strings, top, *more, median in rows_of(sinks["sets"].table()):
        count, expected_strings, expected_top, row = whole.pop(key)
        assert distinct == pytest.approx(count, rel=0.1)
        assert set(strings) == expected_strings
        assert top == expected_top
        assert more == [row["positive"], row["values"], row["numbers"], row["best"]]
        assert median == pytest.approx(row["median"], rel=0.01)
    assert not whole


def test_a_condition_holds_for_the_rows_for_which_it_holds_in_spark(spark: SparkSession) -> None:
    names = ["i", "v", "s", "d", "flag", "day"]
    day = dt.date(2026, 3, 29)
    rows = [
        (1, 0.5, "a", Decimal("1.50"), True, day),
        (-2, math.nan, "", Decimal("-2.00"), False, None),
        (None, None, None, None, None, day + dt.timedelta(1)),
        (3, math.inf, "it's", Decimal("3.00"), None, day),
        (2**31 - 1, -0.0, "b", Decimal("0.00"), True, None),
    ]
    frame = spark.createDataFrame(
        rows, "i int, v double, s string, d decimal(12,2), flag boolean, day date"
    )
    conditions = [
        *(
            "i > 1",
            "i >= 0.5",
            "not i < 2",
            "i in (1, 3)",
            "i not in (1, -2)",
            "i = d",
            "i = 99999",
        ),
        *("v > 1", "v >= 0", "v < 1", "v <= v", "v = 0", "v <> 0.5", "v = i", "v > d", "d > 1.499"),
        *("s = ''", "s > 'a'", "s is null", "s is not null and i > 0", "d < -1.5", "d <> 3"),
        *("flag", "not flag", "flag or i > 0", "flag = false", "not (flag and i > 0)"),
        *("day = '2026-03-29'", "day > '2026-03-29' or s = 'b'"),
    ]
    table = frame.toArrow()
    batch = table.combine_chunks().to_batches()[0]
    columns = dict(zip(names, batch.columns, strict=True))
    expected = frame.selectExpr(*(f"({c}) as c{n}" for n, c in enumerate(conditions))).toArrow()
    for condition, column in zip(conditions, expected.columns, strict=True):
        found = parse_condition(condition, "count").evaluate(Rows(columns=columns))
        assert found.to_pylist() == column.to_pylist(), condition


def test_rows_that_are_combined_at_the_source_and_rows_that_are_not_give_one_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Few keys are combined before the exchange, keys that hardly repeat are sent row by row.
    rng = random.Random(11)
    few = [(f"k{rng.randrange(3)}", rng.randrange(100)) for _ in range(3000)]
    many = [(f"k{rng.randrange(10**6)}", rng.randrange(100)) for _ in range(3000)]
    mixed = [*few[:1500], *many[:1500]]
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    inbox.put(few, many, mixed, few)
    flow = gw.Flow("combined", num_key_groups=8)
    sink = gw.sinks.memory()
    keyed = flow.source("rows", inbox.stream()).key_by("k")
    results = keyed.compute(total=gw.sum("v"), rows=gw.count(), first=gw.first("v"))
    flow.sink("out", results, sink)
    drain(flow, tmp_path / "ck")

    totals: dict[str, list[int]] = {}
    for key, value in [*few, *many, *mixed, *few]:
        total = totals.setdefault(key, [0, 0, value])
        total[0], total[1] = total[0] + value, total[1] + 1
    assert {k: v for k, *v in rows_of(sink.table())} == totals
