"""Values and rows that a PostgreSQL server chokes on: each is written, or set aside by itself."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import EpochRows, context, rows
from tests.support.postgres_sinks import execute, opened

from godwit.connect.postgres import sink as postgres_sink
from godwit.connect.postgres.copy import csv_rows
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from godwit.plan.staging import Rejections

pytestmark = pytest.mark.postgres

TEXTS = [
    *("", " ", "\\.", "x\n\\.\ny", "\\.\n", "\r", "\r\n", "a\rb", '"', '""', "'", "NULL", "null"),
    *("\\N", "\\", ",", "\t", "\x01", "\x7f", "\u2028", "\ufeff", "\U0001f426", "{}", "{", "$$"),
    *("%s", "\\x00", "NaN", "()", "e\u0301"),
]
FLOATS = [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, 2**53 + 1.0]


def deliver(
    dsn: str, table: pa.Table, *, mode: Any = "append", **changes: Any
) -> list[tuple[dict[str, Any], str]]:
    """Deliver an epoch as committed; return the rows that were diverted, and why."""
    diverted: list[tuple[dict[str, Any], str]] = []

    def divert(found: pa.RecordBatch, rejections: Rejections) -> None:
        diverted.extend(zip(found.to_pylist(), rejections.reasons, strict=True))

    with opened(dsn, context(schema=table.schema, **changes), mode=mode) as sink:
        sink.deliver(EpochRows(epoch=0, table=table, batch_rows=7, on_divert=divert))
    return diverted


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.string(), TEXTS),
        (pa.list_(pa.string()), [*([text] for text in TEXTS), TEXTS, [], [None]]),
        (pa.struct([("text", pa.string())]), [{"text": text} for text in TEXTS]),
        (pa.binary(), [text.encode() for text in TEXTS]),
        (pa.map_(pa.string(), pa.int64()), [{text: 1} for text in TEXTS]),
        (pa.float64(), FLOATS),
        (pa.float32(), [0.5, 1e-45, math.inf, -0.0]),
        (pa.list_(pa.float64()), [FLOATS]),
    ],
    ids=str,
)
def test_odd_values_come_out_as_they_went_in(
    postgres: str, dtype: pa.DataType, values: list[Any]
) -> None:
    # One column, so that a value may be alone on its line.
    table = pa.table({"value": pa.array(values, dtype)})
    assert deliver(postgres, table, keys=()) == []
    found = [value for (value,) in execute(postgres, "SELECT value FROM target")]
    assert len(found) == len(values)
    assert sorted(map(repr, found)) == sorted(map(repr, values))


POISON = {
    "deferred unique": [
        "ALTER TABLE target ADD UNIQUE (plane) DEFERRABLE INITIALLY DEFERRED",
        "INSERT INTO target VALUES ('bad', 0)",
    ],
    "deferred reference": [
        "CREATE TABLE known (plane text PRIMARY KEY)",
        "INSERT INTO known SELECT 'N' || n FROM generate_series(0, 9) n",
        "ALTER TABLE target ADD FOREIGN KEY (plane) REFERENCES known DEFERRABLE INITIALLY DEFERRED",
    ],
    "deferred trigger": [
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON target DEFERRABLE INITIALLY DEFERRED "  # noqa: ISC004
        "FOR EACH ROW EXECUTE FUNCTION refuse('P0001')"
    ],
    **{
        f"trigger with {code}": [
            "CREATE TRIGGER early BEFORE INSERT ON target "  # noqa: ISC004
            f"FOR EACH ROW EXECUTE FUNCTION refuse('{code}')"
        ]
        for code in ("P0001", "UE001", "XX000", "42501", "0A000", "55000")
    },
    "domain": [
        "CREATE DOMAIN plane AS text CHECK (VALUE <> 'bad')",
        "ALTER TABLE target ALTER plane TYPE plane",
    ],
    "computed column": [
        "ALTER TABLE target ADD ratio bigint GENERATED ALWAYS AS (1000 / (666 - total)) STORED"
    ],
    "index of an expression": ["CREATE INDEX ON target ((1000 / (666 - total)))"],
    "exclusion": [
        "ALTER TABLE target ADD EXCLUDE USING gist (int8range(total, total, '[]') WITH &&)",
        "INSERT INTO target VALUES ('N0', 666)",
    ],
    "no partition": [
        "DROP TABLE target",
        "CREATE TABLE target (plane text NOT NULL, total bigint) PARTITION BY LIST (plane)",
        "CREATE TABLE first PARTITION OF target FOR VALUES IN ('N0','N1','N2','N3','N4')",
        "CREATE TABLE second PARTITION OF target FOR VALUES IN ('N5','N6','N7','N8','N9')",
    ],
}
CREATE = [
    "CREATE TABLE target (plane text NOT NULL, total bigint)",
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.plane = 'bad' "  # noqa: ISC004
    "THEN RAISE EXCEPTION 'it is bad' USING ERRCODE = TG_ARGV[0]; END IF; RETURN NEW; END $$",
]


@pytest.mark.parametrize("name", list(POISON))
def test_a_row_that_the_server_refuses_is_set_aside_by_itself_whatever_it_says(
    postgres: str, name: str
) -> None:
    execute(postgres, *CREATE, *POISON[name])
    before = execute(postgres, "SELECT count(*) FROM target")[0][0]
    epoch = rows(0, *((f"N{n}", n) for n in range(6)), ("bad", 666), ("N6", 6), ("N7", 7))
    diverted = deliver(postgres, epoch.table)
    assert [row["plane"] for row, _ in diverted] == ["bad"]
    assert diverted[0][1].startswith("the server reports: ")
    assert execute(postgres, "SELECT count(*) FROM target")[0][0] == before + 8


def test_a_key_that_is_too_large_for_an_index_is_set_aside(postgres: str) -> None:
    big = "".join(chr(0x4E00 + (n * 7919) % 20000) for n in range(20_000))
    diverted = deliver(postgres, rows(0, ("N1", 1), (big, 2), ("N3", 3)).table, mode="upsert")
    assert [row["total"] for row, _ in diverted] == [2]


def test_row_security_refuses_rows_of_upserts_and_tables_of_copies(postgres: str) -> None:
    # Roles are of the whole server, so the owner is made to obey.
    execute(
        postgres,
        *CREATE,
        "ALTER TABLE target ADD UNIQUE (plane)",
        "DROP ROLE IF EXISTS godwit_writer",
        "CREATE ROLE godwit_writer LOGIN",
        "DO $$ BEGIN EXECUTE format('GRANT ALL ON SCHEMA %I TO godwit_writer', current_schema()); "
        "END $$",
        "ALTER TABLE target OWNER TO godwit_writer",
        "ALTER TABLE target ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE target FORCE ROW LEVEL SECURITY",
        "CREATE POLICY good ON target USING (true) WITH CHECK (plane <> 'bad')",
    )
    dsn = postgres.replace("user=postgres", "user=godwit_writer")
    try:
        epoch = rows(0, ("N1", 1), ("bad", 2), ("N3", 3))
        with pytest.raises(SinkError, match="row-level security") as caught:
            deliver(dsn, epoch.table)
        assert 'mode="upsert"' in caught.value.remedy
        diverted = deliver(dsn, epoch.table, mode="upsert")
        assert [row["plane"] for row, _ in diverted] == ["bad"]
    finally:
        execute(postgres, "DROP OWNED BY godwit_writer", "DROP ROLE godwit_writer")


@pytest.mark.parametrize("code", ["53100", "57P01", "08006"])
def test_what_is_not_about_a_row_sets_no_row_aside(postgres: str, code: str) -> None:
    execute(
        postgres,
        CREATE[0],
        "CREATE FUNCTION refuse_all() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'no room' USING ERRCODE = TG_ARGV[0]; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH STATEMENT "
        f"EXECUTE FUNCTION refuse_all('{code}')",
    )
    with pytest.raises(SinkError, match="no room"):
        deliver(postgres, rows(0, ("N1", 1)).table)


@pytest.mark.parametrize("code", ["42501", "P0001"])
def test_a_statement_that_fails_without_rows_sets_no_row_aside(postgres: str, code: str) -> None:
    test_what_is_not_about_a_row_sets_no_row_aside(postgres, code)


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        (pa.array([1000, 1001, None], pa.time64("ns")), [1]),
        (pa.array([1000, 1001, None], pa.duration("ns")), [1]),
        (pa.array([1, 2**62, None], pa.duration("s")), [1]),
        (pa.array([[1000], [1001]], pa.list_(pa.time64("ns"))), [1]),
        (
            pa.array(
                [[("a", 1), ("b", 2)], [("a", 1), ("a", 2)], None], pa.map_("string", "int64")
            ),
            [1],
        ),
        (
            pa.array([[[("a", 1)]], [[("a", 1), ("a", 2)]]], pa.list_(pa.map_("string", "int64"))),
            [1],
        ),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_values_that_no_text_stands_for_are_found_before_they_are_committed(
    postgres: str, values: pa.Array, bad: list[int]
) -> None:
    table = pa.table({"plane": [f"N{n}" for n in range(len(values))], "value": values})
    with opened(postgres, context(schema=table.schema)) as sink:
        found = sink.row_check()(*table.to_batches())
        assert found is not None
        assert found.rows.tolist() == bad
        kept = table.take(pa.array([n for n in range(len(values)) if n not in bad]))
        sink.deliver(EpochRows(epoch=0, table=kept))
    assert execute(postgres, "SELECT count(*) FROM target") == [(len(values) - 1,)]


def test_wide_rows_are_copied_in_small_parts(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []

    def measured(columns: Any) -> bytes:
        text = csv_rows(columns)
        sizes.append((len(columns[0]), len(text)))
        return text

    monkeypatch.setattr(postgres_sink, "csv_rows", measured)
    monkeypatch.setattr(postgres_sink, "_COPIED_BYTES", 10_000)
    texts = ["x" * 3000] * 10 + ["y" * 50_000] + ["z"] * 100
    epoch = rows(0, *((text, n) for n, text in enumerate(texts)))
    with opened(postgres) as sink:
        sink.deliver(replace(epoch, batch_rows=1000))
    assert sum(count for count, _ in sizes) == 111
    assert all(size < 12_000 or count == 1 for count, size in sizes)
    assert execute(postgres, "SELECT total FROM target") == [(n,) for n in range(111)]


def test_dates_of_a_zone_far_from_utc_are_instants(postgres: str) -> None:
    last = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    table = pa.table(
        {
            "plane": ["a"],
            "at": pa.array(
                [{"x": last}], pa.struct([("x", pa.timestamp("us", "Pacific/Kiritimati"))])
            ),
        }
    )
    assert deliver(postgres, table) == []
    assert execute(postgres, "SELECT at ->> 'x' FROM target") == [("9999-12-31T23:59:59Z",)]


@pytest.mark.parametrize("keys", [pa.bool_(), pa.decimal128(5, 2), pa.list_(pa.int64())], ids=str)
def test_maps_whose_keys_name_no_fields_are_refused_at_open(
    postgres: str, keys: pa.DataType
) -> None:
    values = pa.array([], pa.list_(pa.struct([("m", pa.map_(keys, pa.int64()))])))
    with pytest.raises(SinkError, match=r"'value' as JSON, which cannot represent a map"):
        deliver(postgres, pa.table({"plane": pa.array([], pa.string()), "value": values}))


def test_lengths_and_times_of_day_in_nanoseconds_are_written_as_json(postgres: str) -> None:
    kinds = pa.struct([("d", pa.duration("ns")), ("t", pa.time64("ns"))])
    table = pa.table({"plane": ["N1"], "value": pa.array([{"d": 1_500_000, "t": 2_000}], kinds)})
    assert deliver(postgres, table) == []
    assert execute(postgres, "SELECT value FROM target") == [
        ({"d": "PT0.0015S", "t": "00:00:00.000002"},)
    ]


def test_a_row_that_cannot_be_written_as_text_is_set_aside(postgres: str) -> None:
    twice = pa.array([[("a", 1)], [("a", 1), ("a", 2)], []], pa.map_("string", "int64"))
    table = pa.table({"plane": ["N1", "bad", "N3"], "value": twice})
    ((row, reason),) = deliver(postgres, table)  # as if another run had staged it
    assert row["plane"] == "bad"
    assert reason.startswith("cannot be written as text: ")
    assert execute(postgres, "SELECT plane FROM target") == [("N1",), ("N3",)]
