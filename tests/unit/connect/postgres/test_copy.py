"""Every Arrow type comes out of PostgreSQL as it went in."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from tests.support.epoch_rows import EpochRows, context
from tests.support.postgres_sinks import opened

from godwit.connect.postgres.copy import csv_rows, postgres_type
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

UTC = dt.UTC


def naive(*fields: int) -> dt.datetime:
    """A local time of no zone."""
    return dt.datetime(*fields, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]  # fields are ints


CASES: list[Any] = [
    (pa.bool_(), "boolean", [True, False]),
    (pa.int8(), "smallint", [-128, 127]),
    (pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    (pa.int32(), "integer", [-(2**31), 2**31 - 1]),
    (pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    (pa.uint8(), "smallint", [0, 255]),
    (pa.uint16(), "integer", [0, 2**16 - 1]),
    (pa.uint32(), "bigint", [0, 2**32 - 1]),
    (pa.uint64(), "numeric(20,0)", [0, 2**64 - 1]),
    (pa.float16(), "real", [0.5, -2.0]),
    (pa.float32(), "real", [0.5, -math.inf]),
    (pa.float64(), "double precision", [0.1, 1e308, 5e-324, math.inf, -0.0]),
    (pa.decimal128(10, 2), "numeric(10,2)", [Decimal("-12345678.90"), Decimal("0.00")]),
    (pa.decimal128(5, -3), "numeric(8,0)", [Decimal("9.9999E+7"), Decimal(0)]),
    (pa.decimal256(60, 3), "numeric(60,3)", [Decimal(10) ** 56 + Decimal("0.001")]),
    (
        pa.string(),
        "text",
        ["", "a", "\\N", "\\.", 'say "hi", then\nleave\r\n', "żółw 🦆", "NULL", " ", "\t"],
    ),
    (pa.large_string(), "text", ["", "long"]),
    (pa.dictionary(pa.int32(), pa.string()), "text", ["a", "b", "a"]),
    (pa.binary(), "bytea", [b"", b"\x00\xff", b"\\x41", b'"']),
    (pa.large_binary(), "bytea", [b"abc"]),
    (pa.binary(2), "bytea", [b"ab", b"\x00\x00"]),
    (pa.date32(), "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.date64(), "date", [dt.date(1969, 12, 31)]),
    (pa.timestamp("us"), "timestamp", [naive(1, 1, 1), naive(2024, 2, 29, 1, 2, 3, 4)]),
    (pa.timestamp("s"), "timestamp", [naive(2024, 2, 29, 1, 2, 3)]),
    (
        pa.timestamp("us", "UTC"),
        "timestamptz",
        [dt.datetime(1883, 1, 1, tzinfo=UTC), dt.datetime(2024, 7, 1, 1, 2, 3, 4, UTC)],
    ),
    (
        pa.timestamp("us", "America/New_York"),
        "timestamptz",
        # Before 1883, New York was 4 h 56 min 2 s behind.
        [dt.datetime(1880, 1, 1, tzinfo=UTC), dt.datetime(2024, 7, 1, 1, 2, 3, 4, UTC)],
    ),
    (pa.time64("us"), "time", [dt.time(0), dt.time(23, 59, 59, 999_999)]),
    (pa.time32("s"), "time", [dt.time(12, 30)]),
    (pa.duration("us"), "interval", [dt.timedelta(days=-3, microseconds=7), dt.timedelta(0)]),
    (pa.list_(pa.int64()), "bigint[]", [[], [1], [1, None, 3]]),
    (pa.large_list(pa.bool_()), "boolean[]", [[True, None, False]]),
    (pa.list_(pa.int32(), 2), "integer[]", [[1, 2], [3, None]]),
    (
        pa.list_(pa.string()),
        "text[]",
        [[], [""], [None], ["NULL", "a,b", '"', "\\", "{}", " x "], ["żółw"]],
    ),
    (pa.list_(pa.binary()), "bytea[]", [[b"\x00", None, b"\\"]]),
    (pa.list_(pa.decimal128(5, 1)), "numeric(5,1)[]", [[Decimal("1.5"), None]]),
    (pa.list_(pa.float64()), "double precision[]", [[0.1, None, math.inf]]),
    (pa.list_(pa.date32()), "date[]", [[dt.date(2024, 1, 1), None]]),
    (pa.list_(pa.timestamp("us")), "timestamp[]", [[naive(2024, 1, 1, 2, 3), None]]),
    (
        pa.list_(pa.timestamp("us", "UTC")),
        "timestamptz[]",
        [[dt.datetime(2024, 1, 1, tzinfo=UTC), None]],
    ),
    (
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
        "jsonb",
        [[], [{"a": 1, "b": 'x"\n'}, {"a": None, "b": None}, None]],
    ),
    (pa.struct([("a", pa.list_(pa.int64()))]), "jsonb", [{"a": [1, 2]}, {"a": None}]),
    (pa.list_(pa.list_(pa.float64())), "jsonb", [[[0.5], None]]),
    (pa.map_(pa.string(), pa.int64()), "jsonb", [{}, {"k": 1, "l": None}]),
    (pa.list_(pa.list_(pa.int64())), "jsonb", [[[1], [2, 3]], [None]]),
]


def written_and_read(
    dsn: str, dtype: pa.DataType, values: Sequence[Any], created: str = ""
) -> list[tuple[Any, str]]:
    """Return `values` as read back from table ``target``, and the type of the column."""
    table = pa.table({"row": range(len(values)), "value": pa.array(values, dtype)})
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        if created:
            connection.execute(f'CREATE TABLE target ("row" bigint, value {created})'.encode())
        with opened(dsn, context(schema=table.schema, keys=())) as sink:
            sink.deliver(EpochRows(epoch=0, table=table, batch_rows=2))
        return connection.execute(
            """SELECT value, (SELECT format_type(atttypid, atttypmod) FROM pg_attribute
                              WHERE attrelid = 'target'::regclass AND attname = 'value')
               FROM target ORDER BY "row" """
        ).fetchall()


@pytest.mark.postgres
def test_values_come_out_as_they_went_in(postgres: str) -> None:
    """Those of every type, each in a column of its own."""
    expected = {
        f"c{number}": [*values, None, *values] for number, (_, _, values) in enumerate(CASES)
    }
    most = max(map(len, expected.values()))
    table = pa.table(
        {
            "row": range(most),
            **{
                name: pa.array([*expected[name], *[None] * (most - len(expected[name]))], dtype)
                for name, (dtype, _, _) in zip(expected, CASES, strict=True)
            },
        }
    )
    with opened(postgres, context(schema=table.schema, keys=())) as sink:
        sink.deliver(EpochRows(epoch=0, table=table, batch_rows=2))
    types = """SELECT attname, split_part(format_type(atttypid, atttypmod), '(', 1)
               FROM pg_attribute WHERE attrelid = 'target'::regclass"""
    with psycopg.connect(postgres) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        created: dict[str, str] = dict(connection.execute(types).fetchall())
        for name, (dtype, column, _) in zip(expected, CASES, strict=True):
            read = connection.execute(f'SELECT {name} FROM target ORDER BY "row"'.encode())
            values = [value for (value,) in read][: len(expected[name])]
            assert values == expected[name], dtype
            shown = connection.execute("SELECT %s::regtype::text", [column]).fetchone()
            assert shown is not None
            assert created[name].removesuffix("[]") == shown[0].removesuffix("[]"), dtype


@pytest.mark.postgres
def test_not_a_number_comes_out_as_such(postgres: str) -> None:
    ((value, _),) = written_and_read(postgres, pa.float64(), [math.nan])
    assert math.isnan(value)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("dtype", "created", "value", "expected"),
    [
        (pa.int16(), "bigint", 7, 7),
        (pa.int64(), "numeric", 7, Decimal(7)),
        (pa.float32(), "double precision", 0.5, 0.5),
        (pa.decimal128(5, 2), "numeric(9,4)", Decimal("1.25"), Decimal("1.2500")),
        (pa.string(), "varchar(10)", "x", "x"),
        (pa.string(), "uuid", str(uuid.UUID(int=5)), uuid.UUID(int=5)),
        (pa.string(), "jsonb", '{"a": 1}', {"a": 1}),
        (pa.struct([("a", pa.int64())]), "json", {"a": 1}, {"a": 1}),
        (pa.list_(pa.int32()), "bigint[]", [1], [1]),
    ],
)
def test_a_column_that_holds_every_value_is_used_as_it_is(
    postgres: str, dtype: pa.DataType, created: str, value: object, expected: object
) -> None:
    ((read, _),) = written_and_read(postgres, dtype, [value], created)
    assert read == expected


@pytest.mark.postgres
def test_nanoseconds_are_written_if_nothing_is_lost(postgres: str) -> None:
    moment = naive(2024, 1, 1)
    ((value, _),) = written_and_read(postgres, pa.timestamp("ns"), [moment])
    assert value == moment


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("dtype", "value"),
    [(pa.timestamp("ns"), 1), (pa.time64("ns"), 1), (pa.list_(pa.time64("ns")), [1])],
    ids=str,
)
def test_nanoseconds_that_would_be_lost_are_refused(
    postgres: str, dtype: pa.DataType, value: Any
) -> None:
    with pytest.raises(SinkError, match="would lose data"):
        written_and_read(postgres, dtype, [value])


@pytest.mark.postgres
def test_a_column_of_nothing_but_nulls_is_text(postgres: str) -> None:
    assert written_and_read(postgres, pa.null(), [None, None]) == [(None, "text")] * 2


def test_slices_are_written_as_what_they_show() -> None:
    values = pa.array([b"aa", b"b", None, b"cccc", b""])
    lists = pa.array([[1], [2, 3], None, [4, 5], []])
    assert csv_rows([values.slice(1, 3), lists.slice(1, 3)]) == (
        b'"\\x62","{""2"",""3""}"\n,\n"\\x63636363","{""4"",""5""}"\n'
    )


def test_the_type_of_a_list_is_that_of_its_elements() -> None:
    assert postgres_type(pa.list_(pa.int32())).accepted == ("_int4", "_int8", "_numeric")
