"""Keys of every type: one state per key, whatever it is made of, found again in every epoch."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, comparable, drain, rows_of

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAN, OTHER_NAN = float("nan"), -float("nan")
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False, None],
    "tinyint": [-128, 0, 127, None],
    "smallint": [-32768, 0, 32767, None],
    "int": [-(2**31), -1, 0, 2**31 - 1, None],
    "long": [-(2**63), -1, 0, 2**63 - 1, None],
    "float": [0.0, -0.0, NAN, OTHER_NAN, 1.5, float("inf"), None],
    "double": [0.0, -0.0, NAN, OTHER_NAN, 1e300, -float("inf"), None],
    "string": ["", "a", "A", "żółw", "a\x00b", "x" * 5000, None],
    "binary": [b"", b"\x00", b"\x00\x00", b"abc", None],
    "date": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31), None],
    "timestamp": [
        dt.datetime(1900, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 11, 20, 1, 2, 3, 456789, tzinfo=dt.UTC),
        None,
    ],
    "timestamp_ntz": [dt.datetime(1900, 1, 1), dt.datetime(2026, 3, 29, 2, 30), None],  # noqa: DTZ001
    "decimal(5,2)": [Decimal("-0.01"), Decimal("0.00"), Decimal("999.99"), None],
    "decimal(38,10)": [Decimal("-1234567890123456789012345678.0000000001"), Decimal(0), None],
}


def canonical(value: Any) -> Any:
    """Value that Spark groups by: one NaN, one zero."""
    return comparable(0.0 if isinstance(value, float) and value == 0 else value)


def test_keys_of_every_type_are_told_apart_and_found_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = [f"c{i} {kind}" for i, kind in enumerate(VALUES)]
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=", ".join([*columns, "v long"]))
    longest = max(map(len, VALUES.values()))
    rows = [
        (*(values[i % len(values)] for values in VALUES.values()), i + 1) for i in range(longest)
    ]
    inbox.put(rows, rows[::-1], rows)
    flow = gw.Flow("keys", num_key_groups=8)
    source = flow.source("rows", inbox.stream())
    sinks = []
    for i in range(len(VALUES)):
        by_type = source.key_by(f"c{i}").compute(name=f"by_{i}", total=gw.sum("v"), n=gw.count())
        sinks.append(gw.sinks.memory())
        flow.sink(f"by_{i}", by_type, sinks[i])
    whole_key = [f"c{i}" for i in range(len(VALUES))]
    all_keys = gw.sinks.memory()
    flow.sink("all", source.key_by(*whole_key).compute(name="all", n=gw.count()), all_keys)
    drain(flow, tmp_path / "ck")

    for i, sink in enumerate(sinks):
        total: Counter[Any] = Counter()
        number: Counter[Any] = Counter()
        for row in rows * 3:
            total[canonical(row[i])] += row[-1]
            number[canonical(row[i])] += 1
        found = {comparable(k): (t, n) for k, t, n in rows_of(sink.table())}
        assert found == {k: (total[k], number[k]) for k in total}, list(VALUES)[i]
    expected = {tuple(map(canonical, row[:-1])) for row in rows}
    assert {comparable(row) for row in rows_of(all_keys.table())} == {(*key, 3) for key in expected}


def test_a_key_of_several_columns_tells_nulls_in_different_places_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="a string, b int, v long")
    keys = [(None, 1), (None, None), ("x", None), ("x", 1), ("", None), ("", 1)]
    inbox.put([(*key, 1) for key in keys], [(*key, 10) for key in keys[::2]])
    flow = gw.Flow("several", num_key_groups=4)
    sink = gw.sinks.memory()
    source = flow.source("rows", inbox.stream())
    flow.sink("out", source.key_by("b", "a").compute(total=gw.sum("v")), sink)
    drain(flow, tmp_path / "ck")
    assert {(a, b): total for b, a, total in rows_of(sink.table())} == {
        key: 11 if i % 2 == 0 else 1 for i, key in enumerate(keys)
    }


def test_a_key_column_may_have_the_name_of_anything_inside(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = "state string, `a.b c` string, hash_0 long, int64_0 long, v long"
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=columns)
    inbox.put([("s", "d", 1, 2, 3), ("s", "e", 1, 2, 4)], [("s", "d", 1, 2, 30)])
    flow = gw.Flow("names", num_key_groups=4)
    source = flow.source("rows", inbox.stream())
    keyed = source.key_by("state", "a.b c", "hash_0", "int64_0")

    def add(key: tuple[Any, ...], rows: Any, total: list[int]) -> list[tuple[Any, ...]]:
        total.extend(rows.column("v"))
        return [(*key, sum(total))]

    computed, processed = gw.sinks.memory(), gw.sinks.memory()
    flow.sink("computed", keyed.compute(name="computed", total=gw.sum("v")), computed)
    output = "state string, `a.b c` string, hash_0 long, int64_0 long, total long"
    stream = keyed.process(add, state=list, output=output, name="processed")
    flow.sink("processed", stream, processed)
    drain(flow, tmp_path / "ck")
    expected = {("s", "d", 1, 2, 33), ("s", "e", 1, 2, 4)}
    assert set(rows_of(computed.table())) == expected
    assert set(rows_of(processed.table(["state", "a.b c", "hash_0", "int64_0"]))) == expected
