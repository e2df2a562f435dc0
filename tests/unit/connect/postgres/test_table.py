"""A table that the rows do not fit is refused at open, with the statement that mends it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import SCHEMA, EpochRows, context, rows
from tests.support.postgres_sinks import execute, opened

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.sinks.sink import SinkContext

pytestmark = pytest.mark.postgres

NOT_NULL = pa.schema([pa.field("plane", pa.string(), nullable=False), SCHEMA.field("total")])


def open_and_close(dsn: str, ctx: SinkContext | None = None, **options: Any) -> None:
    with opened(dsn, ctx, **options):
        pass


def refusal(dsn: str, ctx: SinkContext | None = None, **options: Any) -> SinkError:
    with pytest.raises(SinkError) as caught:
        open_and_close(dsn, ctx, **options)
    return caught.value


def constraints(dsn: str) -> list[str]:
    found = execute(
        dsn,
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = 'target'::regclass ORDER BY 1",
    )
    return [definition for (definition,) in found]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [(SCHEMA, "UNIQUE NULLS NOT DISTINCT (plane)"), (NOT_NULL, "PRIMARY KEY (plane)")],
)
def test_a_table_created_for_upserts_has_one_row_a_key(
    postgres: str, schema: pa.Schema, expected: str
) -> None:
    open_and_close(postgres, context(schema=schema), mode="upsert")
    assert constraints(postgres) == [expected]


def test_a_table_created_for_appending_has_no_constraint(postgres: str) -> None:
    open_and_close(postgres)
    assert constraints(postgres) == []


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_that_the_sink_created_is_accepted_when_the_query_starts_again(
    postgres: str, mode: str
) -> None:
    open_and_close(postgres, mode=mode)
    open_and_close(postgres, mode=mode, create=False)


def test_odd_names_of_tables_and_columns_are_quoted(postgres: str) -> None:
    schema = pa.schema([('the "plane"', pa.string()), ("SELECT", pa.int64()), ("a b", pa.int64())])
    options = {"mode": "upsert", "keys": 'the "plane"'}
    with opened(
        postgres, context(schema=schema, keys=('the "plane"',)), '"Big ""Table"""', **options
    ) as sink:
        sink.deliver(EpochRows(epoch=0, table=pa.table([["x"], [1], [2]], schema=schema)))
    assert execute(postgres, 'SELECT * FROM "Big ""Table"""') == [("x", 1, 2)]


def test_an_absent_table_is_refused_with_its_statement_where_none_is_to_be_created(
    postgres: str,
) -> None:
    error = refusal(postgres, mode="upsert", create=False)
    assert "does not exist" in error.message
    statement = error.remedy.split("create=True: ")[1]
    execute(postgres, statement)
    open_and_close(postgres, mode="upsert", create=False)


MISFITS = [
    pytest.param("plane text", "has no column 'total'", id="a column is missing"),
    pytest.param("plane text, total integer", "type integer, which", id="too narrow"),
    pytest.param("plane text, total numeric(10)", r"type numeric\(10,0\)", id="too few digits"),
    pytest.param("plane text, total numeric(22,-2)", r"numeric\(22,-2\)", id="hundreds only"),
    pytest.param("plane name, total bigint", "type name, which", id="cuts off"),
    pytest.param("plane text, total text", "type text, which", id="another type"),
    pytest.param(
        "plane text, total bigint, day date NOT NULL", "value for column 'day'", id="not null"
    ),
]


@pytest.mark.parametrize(("columns", "message"), MISFITS)
def test_a_misfit_is_refused_and_the_statement_in_the_error_mends_it(
    postgres: str, columns: str, message: str
) -> None:
    execute(postgres, f"CREATE TABLE target ({columns})")
    error = refusal(postgres)
    assert error.context == {"sink": "by_plane", "table": "target"}
    assert re.search(message, error.message)
    execute(postgres, error.remedy.replace("TYPE bigint", "TYPE bigint USING total::bigint"))
    open_and_close(postgres)


@pytest.mark.parametrize(
    "columns",
    [
        "plane text, total bigint, loaded timestamptz NOT NULL DEFAULT now()",
        "plane text, total bigint, id bigint GENERATED ALWAYS AS IDENTITY",
        "plane varchar(20), total numeric(21,2), note text",
        "total bigint, plane text",
    ],
)
def test_columns_that_fill_themselves_do_no_harm(postgres: str, columns: str) -> None:
    execute(postgres, f"CREATE TABLE target ({columns})")
    with opened(postgres) as sink:
        sink.deliver(rows(0, ("N1", 1)))
    assert execute(postgres, "SELECT plane, total FROM target") == [("N1", 1)]


def test_a_computed_column_is_refused(postgres: str) -> None:
    execute(
        postgres,
        "CREATE TABLE target (plane text, total bigint GENERATED ALWAYS AS (length(plane)) STORED)",
    )
    assert "computes column 'total' itself" in refusal(postgres).message


def test_an_enumeration_takes_strings(postgres: str) -> None:
    execute(
        postgres,
        "CREATE TYPE plane AS ENUM ('N1', 'N2')",
        "CREATE TABLE target (plane plane, total bigint)",
    )
    open_and_close(postgres)


def test_a_domain_is_what_it_is_made_of(postgres: str) -> None:
    execute(
        postgres,
        "CREATE DOMAIN short AS integer CHECK (value > 0)",
        "CREATE TABLE target (plane text, total short)",
    )
    assert "column 'total' of type short" in refusal(postgres).message


def test_a_timestamp_column_that_would_round_is_refused(postgres: str) -> None:
    schema = pa.schema([("plane", pa.string()), ("at", pa.timestamp("us"))])
    execute(postgres, "CREATE TABLE target (plane text, at timestamp(3))")
    assert "timestamp(3)" in refusal(postgres, context(schema=schema)).message


@pytest.mark.parametrize(
    ("dtype", "column"),
    [(pa.decimal128(9, 4), "numeric(9,2)[]"), (pa.timestamp("us"), "timestamp(3)[]")],
)
def test_an_array_column_whose_elements_would_be_rounded_is_refused(
    postgres: str, dtype: pa.DataType, column: str
) -> None:
    schema = pa.schema([("plane", pa.string()), ("each", pa.list_(dtype))])
    execute(postgres, f"CREATE TABLE target (plane text, each {column})")
    error = refusal(postgres, context(schema=schema))
    assert "has column 'each' of type" in error.message
    execute(postgres, error.remedy)
    open_and_close(postgres, context(schema=schema))


@pytest.mark.parametrize("length", [63, 64])
def test_names_that_the_server_would_cut_off_are_refused(postgres: str, length: int) -> None:
    column = "ż" * 31 + "c" * (length - 62)
    schema = pa.schema([("plane", pa.string()), (column, pa.int64())])
    for table, names in (("target", schema), ("t" * length, SCHEMA)):
        sink = gw.sinks.postgres(postgres, table)
        try:
            if length > 63:
                with pytest.raises(SinkError, match="longer than the server's limit of 63 bytes"):
                    sink.open(context(schema=names))
            else:
                for _ in range(2):  # the second time it finds what it created
                    sink.open(context(schema=names))
        finally:
            sink.close()


def test_a_timestamp_with_a_zone_needs_a_column_with_one(postgres: str) -> None:
    schema = pa.schema([("plane", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    execute(postgres, "CREATE TABLE target (plane text, at timestamp)")
    assert "TYPE timestamptz" in refusal(postgres, context(schema=schema)).remedy


def test_a_view_is_refused(postgres: str) -> None:
    execute(postgres, "CREATE VIEW target AS SELECT 'a' AS plane, 1::bigint AS total")
    assert "is not a table" in refusal(postgres).message


@pytest.fixture
def as_reader(postgres: str) -> Iterator[str]:
    """Yield the connection string of a role that may do nothing yet."""
    execute(postgres, "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN")
    yield postgres.replace("user=postgres", "user=reader")
    execute(postgres, "DROP OWNED BY reader", "DROP ROLE reader")


def test_a_user_who_may_not_write_is_refused_with_the_grant(postgres: str, as_reader: str) -> None:
    ((schema,),) = execute(postgres, "SELECT current_schema()")
    execute(
        postgres,
        f"GRANT ALL ON SCHEMA {schema} TO reader",
        "CREATE TABLE target (plane text UNIQUE NULLS NOT DISTINCT, total bigint)",
    )
    error = refusal(as_reader, context(complete=True), mode="upsert")
    assert "table target cannot be written by reader" in error.message
    execute(postgres, error.remedy)
    open_and_close(as_reader, context(complete=True), mode="upsert")


def test_a_user_needs_no_right_to_create_where_all_tables_are_there(
    postgres: str, as_reader: str
) -> None:
    ((schema,),) = execute(postgres, "SELECT current_schema()")
    open_and_close(postgres)
    execute(
        postgres,
        f"GRANT USAGE ON SCHEMA {schema} TO reader",
        "GRANT INSERT ON target TO reader",
    )
    error = refusal(as_reader)
    needed = f'table target needs table "{schema}"."godwit_epochs", which cannot be written'
    assert needed in error.message
    execute(postgres, error.remedy)
    with opened(as_reader) as sink:
        sink.deliver(rows(0, ("N1", 1)))
    assert execute(postgres, "SELECT * FROM target") == [("N1", 1)]


def test_a_user_who_may_not_create_temporary_tables_cannot_upsert(
    postgres: str, as_reader: str
) -> None:
    ((schema,),) = execute(postgres, "SELECT current_schema()")
    open_and_close(postgres, mode="upsert")
    execute(
        postgres,
        f"GRANT USAGE ON SCHEMA {schema} TO reader",
        "GRANT ALL ON target, godwit_epochs TO reader",
        "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC",
    )
    try:
        error = refusal(as_reader, mode="upsert")
        assert "may not create temporary tables" in error.message
        execute(postgres, error.remedy)
        open_and_close(as_reader, mode="upsert")
    finally:
        execute(postgres, "GRANT TEMPORARY ON DATABASE postgres TO PUBLIC")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT 1", "has no unique constraint"),
        ("ALTER TABLE target ADD UNIQUE NULLS NOT DISTINCT (plane, total)", "no unique"),
        ("CREATE UNIQUE INDEX ON target (plane) WHERE total > 0", "that is of some rows only"),
        ("CREATE UNIQUE INDEX ON target (lower(plane))", "no unique constraint"),
        ("ALTER TABLE target ADD UNIQUE (plane) DEFERRABLE", "that is deferrable, with"),
        (
            "ALTER TABLE target ADD UNIQUE (plane) DEFERRABLE INITIALLY DEFERRED",
            "that is deferrable, with",
        ),
        ("ALTER TABLE target ADD UNIQUE (plane)", "allows duplicate null keys"),
        (
            """
            CREATE COLLATION alike (provider = icu, locale = 'und', deterministic = false);
            ALTER TABLE target ALTER plane TYPE text COLLATE alike, ADD UNIQUE (plane)
            """,
            "treats different texts as equal",
        ),
    ],
)
def test_upserts_need_a_unique_constraint_on_the_keys_that_sees_nulls(
    postgres: str, statement: str, message: str
) -> None:
    execute(postgres, "CREATE TABLE target (plane text, total bigint)", statement)
    error = refusal(postgres, mode="upsert")
    assert message in error.message
    execute(postgres, error.remedy.split(";")[0])
    open_and_close(postgres, mode="upsert")


@pytest.mark.parametrize(
    "constraint",
    [
        "UNIQUE NULLS NOT DISTINCT (total, plane)",
        "PRIMARY KEY (plane, total)",
    ],
)
def test_the_order_of_key_columns_in_the_constraint_does_not_matter(
    postgres: str, constraint: str
) -> None:
    execute(postgres, f"CREATE TABLE target (plane text, total bigint, {constraint})")
    open_and_close(postgres, mode="upsert", keys=["plane", "total"])


def test_columns_carried_along_in_the_index_are_no_keys(postgres: str) -> None:
    execute(
        postgres,
        "CREATE TABLE target (plane text NOT NULL, total bigint)",
        "CREATE UNIQUE INDEX ON target (plane) INCLUDE (total)",
    )
    open_and_close(postgres, mode="upsert")


def test_a_null_key_that_the_table_forbids_is_an_error_of_its_epoch(postgres: str) -> None:
    execute(postgres, "CREATE TABLE target (plane text PRIMARY KEY, total bigint)")
    with (
        opened(postgres, mode="upsert") as sink,
        pytest.raises(SinkError, match="null value in column"),
    ):
        sink.deliver(rows(0, (None, 1)))


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        ((), {}, "no columns identify its rows"),
        (("plane",), {"keys": ["tail"]}, "keys names 'tail', which the rows do not have"),
        (("plane",), {"keys": "total_"}, "keys names 'total_'"),
    ],
)
def test_keys_that_are_no_columns_are_refused_before_the_server_is_asked(
    keys: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    error = refusal("host=/nowhere", context(keys=keys), mode="upsert", **options)
    assert message in error.message


NAMES = ["Mixed t", "select", "100%s", "a%%b", 'say "t"', "a.b", "caf\u00e9 \U0001f426", "o'k"]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("name", NAMES)
def test_tables_and_columns_of_any_name_are_written(postgres: str, name: str, mode: Any) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    schema = pa.schema([(f"{name} k", pa.string()), (name, pa.int64())])
    execute(postgres, f'CREATE TABLE {quoted} ({quoted[:-1]} k" text, {quoted} bigint)')
    if mode == "upsert":
        execute(postgres, f'ALTER TABLE {quoted} ADD UNIQUE NULLS NOT DISTINCT ({quoted[:-1]} k")')
    ctx = context(schema=schema, keys=(schema.names[0],))
    options = {"mode": mode} if mode == "upsert" else {"mode": mode, "epoch_column": None}
    with opened(postgres, ctx, table=quoted, **options) as sink:
        sink.row_check()
        for epoch in range(2):
            table = pa.table([["a", "b"], [epoch, 2]], schema=schema)
            sink.deliver(EpochRows(epoch=epoch, table=table))
    found = sorted(execute(postgres, f"SELECT * FROM {quoted}"))
    once = [("a", 1), ("b", 2)]
    assert found == (once if mode == "upsert" else sorted([*once, ("a", 0), ("b", 2)]))
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema"
    assert execute(postgres, tables) == [(2,)]  # with godwit_epochs


def test_a_table_with_a_quoted_name_is_created_under_it(postgres: str) -> None:
    [(schema,)] = execute(postgres, "SELECT current_schema")
    with opened(postgres, table=f'{schema}."Mixed ""t"""') as sink:
        sink.deliver(rows(0, ("N1", 1)))
    assert execute(postgres, 'SELECT * FROM "Mixed ""t"""') == [("N1", 1)]


@pytest.mark.parametrize(
    ("statement", "mode", "message", "remedy"),
    [
        (
            "ALTER TABLE target ADD CONSTRAINT late UNIQUE (plane) DEFERRABLE",
            "upsert",
            "that is deferrable, with",
            'DROP CONSTRAINT "late"',
        ),
        (
            "CREATE RULE r AS ON UPDATE TO target DO ALSO NOTHING",
            "upsert",
            "has a rule ON INSERT or UPDATE",
            "DROP RULE",
        ),
        (
            "CREATE RULE r AS ON INSERT TO target DO INSTEAD NOTHING",
            "upsert",
            "has a rule ON INSERT or UPDATE",
            "DROP RULE",
        ),
        (
            "CREATE RULE r AS ON DELETE TO target DO INSTEAD NOTHING",
            "complete",
            "has a rule ON DELETE",
            "DROP RULE",
        ),
    ],
)
def test_what_would_stop_or_swallow_the_first_epoch_is_refused_at_the_start(
    postgres: str, statement: str, mode: str, message: str, remedy: str
) -> None:
    options = {"mode": "upsert"} if mode == "upsert" else {}
    ctx = context(complete=mode == "complete")
    execute(postgres, "CREATE TABLE target (plane text PRIMARY KEY, total bigint)", statement)
    error = refusal(postgres, ctx, **options)
    assert message in error.message
    assert remedy in error.remedy
    execute(postgres, error.remedy.split(";")[0])
    with opened(postgres, ctx, **options) as sink:
        sink.deliver(rows(0, ("N1", 1)))
    assert execute(postgres, "SELECT plane, total FROM target") == [("N1", 1)]


def test_a_partitioned_table_needs_a_partition(postgres: str) -> None:
    execute(postgres, "CREATE TABLE target (plane text, total bigint) PARTITION BY LIST (plane)")
    assert "is partitioned, but has no partition" in refusal(postgres).message
    execute(postgres, "CREATE TABLE other PARTITION OF target DEFAULT")
    open_and_close(postgres)
