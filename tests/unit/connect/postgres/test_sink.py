"""Delivery to a real PostgreSQL server: once each, whatever breaks and whoever else delivers."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pyarrow as pa
import pytest
from tests.support.epoch_rows import SCHEMA, Committed, EpochRows, context, point, rows
from tests.support.postgres_sinks import execute, opened

import godwit as gw
from godwit.connect.postgres import copy as postgres_copy
from godwit.connect.postgres import sink as postgres_sink
from godwit.model.errors import SinkError
from godwit.sinks.target_sink import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.connect.postgres.sink import PostgresSink
    from godwit.plan.staging import Rejections

pytestmark = pytest.mark.postgres

EPOCHS = [
    rows(0, ("N1", 1), ("N2", 2), (None, 3)),
    rows(1, ("N1", 10), ("N3", 30), ("N1", 11), (None, None)),
]
APPENDED = [(None, 3), (None, None), ("N1", 1), ("N1", 10), ("N1", 11), ("N2", 2), ("N3", 30)]
UPSERTED = [(None, None), ("N1", 11), ("N2", 2), ("N3", 30)]
REPLACED = [(None, None), ("N1", 10), ("N1", 11), ("N3", 30)]


def table(dsn: str, name: str = "target") -> list[tuple[Any, ...]]:
    statement = f"SELECT plane, total FROM {name} ORDER BY plane NULLS FIRST, total"
    return execute(dsn, statement)


def test_a_column_that_others_add_while_it_runs_keeps_its_values(postgres: str) -> None:
    with opened(postgres, mode="upsert") as sink:
        sink.deliver(rows(0, ("N1", 1)))
        with psycopg.connect(postgres) as connection:
            connection.execute("ALTER TABLE target ADD COLUMN note text")
            connection.execute("UPDATE target SET note = 'theirs'")
        sink.deliver(rows(1, ("N1", 10)))
    assert execute(postgres, "SELECT plane, total, note FROM target") == [("N1", 10, "theirs")]


def test_a_complete_epoch_may_be_upserted(postgres: str) -> None:
    with opened(postgres, context(complete=True), mode="upsert") as sink:
        for epoch in EPOCHS:
            sink.deliver(epoch)
    assert table(postgres) == [(None, None), ("N1", 11), ("N3", 30)]


def test_rows_that_are_all_key_are_kept_once(postgres: str) -> None:
    with opened(postgres, context(keys=("plane", "total")), mode="upsert") as sink:
        sink.deliver(rows(0, ("N1", 1), ("N1", 1)))
        sink.deliver(rows(1, ("N1", 1), ("N1", 2)))
    assert table(postgres) == [("N1", 1), ("N1", 2)]


@pytest.mark.parametrize("whole", [False, True])
def test_an_epoch_of_an_older_flow_is_what_it_was_then(postgres: str, *, whole: bool) -> None:
    with opened(postgres, context(complete=not whole)) as sink:
        sink.deliver(EPOCHS[0])
        sink.deliver(replace(EPOCHS[1], complete=whole))
    assert table(postgres) == (REPLACED if whole else APPENDED)


def test_a_large_epoch_is_copied_in_parts(postgres: str) -> None:
    many = 150_000
    planes, totals = [f"N{i % 1000}" for i in range(many)], list(range(many))
    large = EpochRows(
        epoch=0,
        table=pa.table({"plane": planes, "total": totals}, schema=SCHEMA),
        batch_rows=many,
    )
    with opened(postgres) as sink:
        sink.deliver(large)
    with opened(postgres, context(name="newest"), "newest", mode="upsert") as sink:
        sink.deliver(large)
    total = many * (many - 1) // 2
    assert execute(postgres, "SELECT count(*), sum(total) FROM target") == [(many, total)]
    newest = sum(range(many - 1000, many))
    assert execute(postgres, "SELECT count(*), sum(total) FROM newest") == [(1000, newest)]


@pytest.mark.parametrize(("copied", "splits"), [(2_000, False), (2**40, True)])
def test_rows_of_more_bytes_than_arrow_joins_are_copied_in_parts(
    postgres: str, monkeypatch: pytest.MonkeyPatch, copied: int, *, splits: bool
) -> None:
    limit, too_large = 10_000, []  # instead of 2 GiB

    def csv_rows(columns: Sequence[pa.Array]) -> bytes:
        text = postgres_copy.csv_rows(columns)
        if len(text) > limit:
            too_large.append(len(columns[0]))
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return text

    monkeypatch.setattr(postgres_sink, "csv_rows", csv_rows)
    monkeypatch.setattr(postgres_sink, "_COPIED_BYTES", copied)
    schema = pa.schema([("plane", pa.string()), ("legs", pa.list_(pa.string()))])
    names = [f"N{number}" for number in range(40)]
    wide = pa.table([names, [["x" * 90] * 10] * 40], schema=schema)
    with opened(postgres, context(schema=schema)) as sink:
        sink.deliver(EpochRows(epoch=0, table=wide, batch_rows=40))  # and refuses no row
    assert execute(postgres, "SELECT count(*), min(array_length(legs, 1)) FROM target") == [
        (40, 10)
    ]
    assert bool(too_large) == splits


def test_a_column_may_have_the_name_of_the_row_numbers(postgres: str) -> None:
    schema = pa.schema([("plane", pa.string()), ("godwit_row", pa.int64())])
    numbers = EpochRows(epoch=0, table=pa.table([["N1", "N1"], [7, 6]], schema=schema))
    with opened(postgres, context(schema=schema), mode="upsert") as sink:
        sink.deliver(numbers)
    assert execute(postgres, "SELECT plane, godwit_row FROM target") == [("N1", 6)]


@pytest.mark.parametrize(("set_to", "used"), [("off", "on"), ("local", "local"), ("on", "on")])
def test_a_commit_is_durable_whatever_the_server_is_set_to(
    postgres: str, set_to: str, used: str
) -> None:
    with opened(f"{postgres}\\ -csynchronous_commit={set_to}") as sink:
        assert sink._connection is not None
        assert sink._connection.execute("SHOW synchronous_commit").fetchone() == (used,)


def test_two_queries_append_to_one_table(postgres: str) -> None:
    with (
        opened(postgres, context(query_id="one")) as one,
        opened(postgres, context(query_id="two")) as two,
    ):
        for sink in (one, two, one):
            sink.deliver(rows(0, ("N1", 1)))
    assert table(postgres) == [("N1", 1), ("N1", 1)]
    recorded = execute(postgres, "SELECT query_id, sink, epoch FROM godwit_epochs ORDER BY 1")
    assert recorded == [("one", "by_plane", 0), ("two", "by_plane", 0)]


# --- whose epochs they are ------------------------------------------------------------------


def test_a_table_says_which_epoch_of_which_history_it_got_last(postgres: str) -> None:
    with opened(postgres) as sink:
        assert sink.last_delivered() is None
        sink.deliver(EPOCHS[0])
        sink.deliver(rows(1))
    with opened(postgres) as again:
        assert again.last_delivered() == point(1)


def test_another_table_of_the_schema_gets_its_epochs_and_the_first_one_keeps_them(
    postgres: str,
) -> None:
    for name in ("target", "other", "target"):
        with opened(postgres, None, name) as sink:
            sink.deliver(EPOCHS[0])
    assert len(table(postgres)) == len(table(postgres, "other")) == 3


def test_a_table_that_was_moved_or_renamed_does_not_get_its_epochs_again(postgres: str) -> None:
    ((schema,),) = execute(postgres, "SELECT current_schema()")
    moved = f"{schema}_moved"
    with opened(postgres) as sink:
        sink.deliver(EPOCHS[0])
    execute(postgres, f"CREATE SCHEMA {moved}")
    execute(postgres, f"ALTER TABLE target SET SCHEMA {moved}")
    with opened(postgres, None, f"{moved}.target") as sink:
        sink.deliver(EPOCHS[0])
    execute(postgres, f"ALTER TABLE {moved}.target RENAME TO planes")
    with opened(postgres, None, f"{moved}.planes") as sink:
        sink.deliver(EPOCHS[0])
        sink.deliver(EPOCHS[1])
    assert table(postgres, f"{moved}.planes") == APPENDED
    assert execute(postgres, f"SELECT target, epoch FROM {moved}.godwit_epochs") == [("planes", 1)]
    assert execute(postgres, "SELECT * FROM godwit_epochs") == []
    execute(postgres, f"DROP SCHEMA {moved} CASCADE")


def test_a_table_in_the_place_of_one_that_was_renamed_is_another_one(postgres: str) -> None:
    with opened(postgres) as sink:
        sink.deliver(EPOCHS[0])
    execute(postgres, "ALTER TABLE target RENAME TO planes")
    for name in ("target", "planes"):
        with opened(postgres, None, name) as sink:
            sink.deliver(EPOCHS[0])
    assert len(table(postgres)) == len(table(postgres, "planes")) == 3


def test_a_table_that_was_restored_from_a_dump_is_known_by_its_name(postgres: str) -> None:
    with opened(postgres) as sink:
        sink.deliver(EPOCHS[0])
    execute(postgres, "CREATE TABLE dumped AS TABLE target")
    execute(postgres, "DROP TABLE target")
    execute(postgres, "ALTER TABLE dumped RENAME TO target")
    with opened(postgres) as sink:
        sink.deliver(EPOCHS[0])
    assert len(table(postgres)) == 3


def test_a_table_is_known_whatever_the_search_path(postgres: str) -> None:
    ((schema,),) = execute(postgres, "SELECT current_schema()")
    with opened(postgres) as sink:
        sink.deliver(EPOCHS[0])
    execute(postgres, f"CREATE SCHEMA {schema}_before")
    longer = f"{postgres.replace(schema, f'{schema}_before,{schema}')}"
    with opened(longer) as sink:
        sink.deliver(EPOCHS[0])
    assert len(table(postgres)) == 3
    execute(postgres, f"DROP SCHEMA {schema}_before CASCADE")


def test_a_server_that_went_back_during_a_run_is_noticed(postgres: str) -> None:
    with opened(postgres) as sink:
        for number in range(3):
            sink.deliver(rows(number, ("N1", number)))
        execute(postgres, "DELETE FROM target WHERE total > 0")
        execute(postgres, "UPDATE godwit_epochs SET epoch = 0")
        with pytest.raises(SinkError, match="has epochs up to 0, and epochs up to 2 were"):
            sink.deliver(rows(3, ("N1", 3)))
    assert table(postgres) == [("N1", 0)]


def test_a_whole_result_is_rolled_back_by_writing_it_anew(postgres: str) -> None:
    with opened(postgres, context(complete=True)) as sink:
        for number in range(5):
            sink.deliver(rows(number, ("N1", number)))
        assert sink.cannot_roll_back() is None
        sink.roll_back(Committed(latest_epoch=2), -1)
        sink.deliver(rows(2, ("N1", 2)))
    assert table(postgres) == [("N1", 2)]


def test_tables_that_cannot_be_rolled_back_say_why(postgres: str) -> None:
    with opened(postgres, table="upserted", mode="upsert") as sink:
        assert "were replaced" in str(sink.cannot_roll_back())
    with opened(postgres, table="appended") as sink:
        assert "epoch_column=" in str(sink.cannot_roll_back())
    with opened(postgres, table="shared", epoch_column="n") as sink:
        sink.deliver(EPOCHS[0])
        assert sink.cannot_roll_back() is None
        with opened(postgres, context(query_id="q"), "shared", epoch_column="n") as other:
            other.deliver(EPOCHS[0])
        assert "other writers also write to the table" in str(sink.cannot_roll_back())


def test_an_epoch_column_is_for_rows_that_stay_and_is_no_column_of_theirs(postgres: str) -> None:
    with pytest.raises(SinkError, match="has no effect if rows are replaced"):
        gw.sinks.postgres(postgres, "target", mode="upsert", epoch_column="n")
    with (
        pytest.raises(SinkError, match="the rows have a column of that name"),
        opened(postgres, epoch_column="total"),
    ):
        pass


# --- crashes --------------------------------------------------------------------------------


class CrashError(Exception):
    """The driver dies here."""


class Faults:
    """Counts the steps of a delivery and fails at one of them."""

    def __init__(self) -> None:
        self.fail_at = -1
        self.error: Callable[[], Exception] = CrashError
        self.steps: list[str] = []

    def reach(self, step: str) -> None:
        self.steps.append(step)
        if len(self.steps) - 1 == self.fail_at:
            raise self.error()

    def connection(self) -> type[psycopg.Connection[Any]]:
        faults = self

        class FaultyCursor(psycopg.Cursor[Any]):
            def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Self:  # type: ignore[override]  # one of its overloads
                text = statement if isinstance(statement, str) else statement.as_string()
                faults.reach(f"before {text[:12]}")
                result = super().execute(statement, *args, **kwargs)
                faults.reach(f"after {text[:12]}")
                return result

            @contextmanager
            def copy(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
                faults.reach("before COPY")
                with super().copy(*args, **kwargs) as copy:
                    yield copy
                    faults.reach("before the end of COPY")
                faults.reach("after COPY")

        class FaultyConnection(psycopg.Connection[Any]):
            @contextmanager
            def transaction(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
                faults.reach("before BEGIN")
                with super().transaction(*args, **kwargs) as transaction:
                    yield transaction
                    faults.reach("before COMMIT")
                faults.reach("after COMMIT")

            @classmethod
            def connect(cls, *args: Any, **kwargs: Any) -> Any:
                return super().connect(*args, cursor_factory=FaultyCursor, **kwargs)

        return FaultyConnection


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    faults = Faults()
    monkeypatch.setattr(psycopg, "connect", faults.connection().connect)
    return faults


MODES = [
    pytest.param({"mode": "append"}, False, APPENDED, id="append"),
    pytest.param({"mode": "upsert"}, False, UPSERTED, id="upsert"),
    pytest.param({"mode": "append"}, True, REPLACED, id="complete"),
]


@pytest.mark.parametrize(("options", "complete", "expected"), MODES)
def test_a_crash_at_any_step_of_a_delivery_neither_loses_nor_doubles_rows(
    postgres: str,
    faults: Faults,
    options: dict[str, str],
    complete: bool,
    expected: list[tuple[Any, ...]],
) -> None:
    for step in count():
        name = f"target_{step}"
        ctx = context(query_id=name, complete=complete)
        faults.fail_at = -1
        with opened(postgres, ctx, name, **options) as sink:
            sink.deliver(EPOCHS[0])
            before = table(postgres, name)
            faults.steps, faults.fail_at = [], step
            try:
                sink.deliver(EPOCHS[1])
            except CrashError:
                committed = faults.steps[-1] == "after COMMIT"
                assert table(postgres, name) == (expected if committed else before), faults.steps
            else:
                break
        faults.fail_at = -1
        with opened(postgres, ctx, name, **options) as restarted:
            restarted.deliver(EPOCHS[1])
        assert table(postgres, name) == expected, f"crash at step {step}: {faults.steps}"
    assert {"after COPY", "before COMMIT", "after COMMIT"} <= set(faults.steps)


@pytest.mark.parametrize(("options", "complete", "expected"), MODES)
def test_a_connection_that_breaks_at_any_step_is_opened_anew(
    postgres: str,
    faults: Faults,
    options: dict[str, str],
    complete: bool,
    expected: list[tuple[Any, ...]],
) -> None:
    faults.error = lambda: psycopg.OperationalError("the connection is lost")
    for step in count():
        name = f"target_{step}"
        faults.fail_at = -1
        ctx = context(query_id=name, complete=complete)
        with opened(postgres, ctx, name, **options) as sink:
            sink.deliver(EPOCHS[0])
            faults.steps, faults.fail_at = [], step
            sink.deliver(EPOCHS[1])
        assert table(postgres, name) == expected, f"lost at step {step}: {faults.steps}"
        if len(faults.steps) <= step:
            break


@pytest.mark.parametrize(
    "error", [psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure]
)
def test_a_transaction_that_another_one_stands_against_is_repeated(
    postgres: str, faults: Faults, error: type[psycopg.Error]
) -> None:
    faults.error = lambda: error("the server ends one of two that wait for each other")
    waits: list[float] = []
    with opened(postgres, mode="upsert") as sink:
        sink._retry_policy = RetryPolicy(sleep=waits.append)
        sink.deliver(EPOCHS[0])
        faults.steps, faults.fail_at = [], 0
        # Each attempt but the fourth fails at one step more than the one before.
        reach = faults.reach

        def fail_again(step: str) -> None:
            try:
                reach(step)
            except psycopg.Error:
                faults.steps, faults.fail_at = [], (len(waits) + 1) * 4 if len(waits) < 2 else -1
                raise

        faults.reach = fail_again  # type: ignore[method-assign]
        sink.deliver(EPOCHS[1])
    assert (table(postgres), len(waits)) == (UPSERTED, 3)


def terminate_writers(dsn: str) -> None:
    execute(
        dsn,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'the_sink'",
    )


def test_a_connection_closed_by_the_server_between_epochs_is_opened_anew(postgres: str) -> None:
    with opened(f"{postgres} application_name=the_sink") as sink:
        sink.deliver(EPOCHS[0])
        terminate_writers(postgres)
        sink.deliver(EPOCHS[1])
    assert table(postgres) == APPENDED


def test_a_connection_closed_by_the_server_during_the_copy_is_opened_anew(postgres: str) -> None:
    cut = iter([True])

    def cut_once(_: int) -> None:
        if next(cut, False):
            terminate_writers(postgres)

    with opened(f"{postgres} application_name=the_sink") as sink:
        sink.deliver(EPOCHS[0])
        sink.deliver(EpochRows(epoch=1, table=EPOCHS[1].table, on_batch=cut_once))
    assert table(postgres) == APPENDED


def test_a_connection_that_breaks_every_time_is_an_error(postgres: str) -> None:
    with opened(f"{postgres} application_name=the_sink") as sink:
        broken = EpochRows(
            epoch=0, table=EPOCHS[0].table, on_batch=lambda _: terminate_writers(postgres)
        )
        with pytest.raises(SinkError, match="epoch 0 cannot be written") as caught:
            sink.deliver(broken)
        assert caught.value.context["epoch"] == 0
        assert table(postgres) == []


@pytest.mark.parametrize("first_fails", [False, True])
def test_of_two_deliveries_of_one_epoch_at_the_same_time_one_counts(
    postgres: str, first_fails: bool
) -> None:
    copying, finish, seen = threading.Event(), threading.Event(), []

    def hold(batch: int) -> None:
        if batch == 1:
            copying.set()
            assert finish.wait(60)
            if first_fails:
                raise CrashError

    def deliver(sink: PostgresSink, epoch: EpochRows) -> None:
        try:
            sink.deliver(epoch)
        except CrashError:
            seen.append("crash")

    with opened(postgres) as first, opened(postgres) as second:
        held = EpochRows(epoch=0, table=EPOCHS[0].table, on_batch=hold)
        threads = [threading.Thread(target=deliver, args=(first, held))]
        threads[0].start()
        assert copying.wait(60)
        threads.append(threading.Thread(target=deliver, args=(second, EPOCHS[0])))
        threads[1].start()
        threads[1].join(0.2)
        assert threads[1].is_alive(), "the second delivery must wait for the first"
        finish.set()
        for thread in threads:
            thread.join(60)
    assert seen == (["crash"] if first_fails else [])
    assert table(postgres) == [(None, 3), ("N1", 1), ("N2", 2)]


def test_queries_that_upsert_the_same_keys_at_once_do_not_lock_each_other_out(
    postgres: str,
) -> None:
    planes = [f"N{i}" for i in range(300)]

    def deliver(number: int, sink: PostgresSink) -> None:
        order = planes if number % 2 else planes[::-1]
        for epoch in range(5):
            sink.deliver(rows(epoch, *((plane, number) for plane in order)))

    sinks = [gw.sinks.postgres(postgres, "target", mode="upsert") for _ in range(3)]
    for number, sink in enumerate(sinks):
        sink.open(context(query_id=str(number)))
    threads = [threading.Thread(target=deliver, args=pair) for pair in enumerate(sinks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for sink in sinks:
        sink.close()
    assert execute(postgres, "SELECT count(*) FROM target") == [(300,)]
    assert execute(postgres, "SELECT min(epoch), count(*) FROM godwit_epochs") == [(4, 3)]


# --- errors ---------------------------------------------------------------------------------


def test_a_value_that_the_server_refuses_is_an_error_that_names_the_row(postgres: str) -> None:
    with opened(postgres) as sink:
        with pytest.raises(SinkError, match=r"N.x00.*the server reports: .*0x00"):
            sink.deliver(rows(3, ("N\0", 1)))
        sink.deliver(rows(4, ("N1", 1)))
    assert table(postgres) == [("N1", 1)]


def test_a_server_that_cannot_be_reached_is_an_error_at_open(tmp_path: object) -> None:
    sink = gw.sinks.postgres(f"host={tmp_path} dbname=none", "target")
    with pytest.raises(SinkError, match="cannot be opened"):
        sink.open(context())


def test_the_connection_may_be_given_as_a_mapping(postgres: str) -> None:
    parameters = psycopg.conninfo.conninfo_to_dict(postgres)
    ((schema,),) = execute(postgres, "SELECT current_schema()")
    with opened(parameters, None, f"{schema}.target") as sink:
        sink.deliver(rows(0, ("N1", 1)))
    assert table(postgres) == [("N1", 1)]


def test_epochs_are_recorded_in_the_schema_of_the_table(postgres: str) -> None:
    execute(postgres, "CREATE SCHEMA results")
    with opened(postgres, None, "results.target") as sink:
        sink.deliver(EPOCHS[0])
    assert execute(postgres, "SELECT epoch FROM results.godwit_epochs") == [(0,)]
    execute(postgres, "DROP SCHEMA results CASCADE")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "t", "mode": "replace"}, "mode 'replace'"),
        ({"table": "t", "keys": ["plane"]}, "keys mean nothing"),
        ({"table": "a.b.c"}, "is not a valid table name"),
        ({"table": ""}, "is not a valid table name"),
        ({"table": "a."}, "is not a valid table name"),
        ({"table": "godwit_stage"}, "a name that the sink uses internally"),
        ({"table": "public.godwit_epochs"}, "a name that the sink uses internally"),
    ],
)
def test_options_that_are_never_right_are_refused_at_once(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(SinkError, match=message):
        gw.sinks.postgres("", **arguments)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_names_may_hold_any_character(postgres: str, mode: str) -> None:
    name = '100%s {of} "it"'
    quoted = name.replace('"', '""')
    execute(postgres, f'CREATE SCHEMA "{quoted}"')
    schema = pa.schema([("pla%ne", pa.string()), ("to {tal} %(x)s", pa.int64())])
    ctx = context(schema=schema, keys=("pla%ne",))
    epoch = EpochRows(epoch=0, table=pa.table([["a"], [1]], schema=schema))
    with opened(postgres, ctx, f'"{quoted}".50% `t`', mode=mode) as sink:
        sink.deliver(epoch)
        sink.deliver(epoch)
    assert execute(postgres, f'SELECT * FROM "{quoted}"."50% `t`"') == [("a", 1)]
    execute(postgres, f'DROP SCHEMA "{quoted}" CASCADE')


@pytest.mark.parametrize("name", ["t\0", "a\0.t"])
def test_a_name_with_a_zero_byte_names_no_table(name: str) -> None:
    with pytest.raises(SinkError, match="is not a valid table name"):
        gw.sinks.postgres("", name)


def test_rows_that_no_column_takes_are_found_before_they_are_committed(postgres: str) -> None:
    execute(postgres, "CREATE TYPE size AS ENUM ('small', 'large')")
    execute(
        postgres,
        "CREATE TABLE target (plane varchar(3) NOT NULL, size size, day date, note jsonb)",
    )
    schema = pa.schema(
        [
            ("plane", pa.string()),
            ("size", pa.string()),
            ("day", pa.date32()),
            ("note", pa.list_(pa.struct([("text", pa.string())]))),
        ]
    )
    table = pa.table(
        {
            "plane": ["N1", None, "N123", "N2", "N3", "N4"],
            "size": ["small", "small", "large", "huge", None, None],
            "day": pa.array([0, 0, 0, 0, 10**7, 0], pa.date32()),
            "note": [[], [], [], [], [], [{"text": "\0"}]],
        },
        schema=schema,
    )
    with opened(postgres, context(schema=schema)) as sink:
        found = sink.row_check()(table.combine_chunks().to_batches()[0])
        sink.deliver(EpochRows(epoch=0, table=table.slice(0, 1)))
    assert found is not None
    assert found.rows.tolist() == [1, 2, 3, 4, 5]
    columns = [reason.split("'")[1] for reason in found.reasons]
    assert columns == ["plane", "plane", "size", "day", "note"]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_only_the_server_refuses_are_diverted_and_the_others_written(
    postgres: str, mode: str
) -> None:
    execute(
        postgres,
        "CREATE TABLE target (plane text UNIQUE NOT NULL, total bigint CHECK (total < 100))",
    )
    diverted: list[tuple[dict[str, Any], str]] = []

    def divert(found: pa.RecordBatch, rejections: Rejections) -> None:
        diverted.extend(zip(found.to_pylist(), rejections.reasons, strict=True))

    epoch = rows(0, *((f"N{n}", 500 if n in {3, 7} else n) for n in range(10)))
    with opened(postgres, mode=mode) as sink:
        sink.deliver(replace(epoch, on_divert=divert))
        sink.deliver(epoch)
    assert [total for _, total in table(postgres)] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert [row["plane"] for row, _ in diverted] == ["N3", "N7"]
    assert all("violates check constraint" in reason for _, reason in diverted)


def test_a_row_that_nobody_takes_leaves_nothing_of_its_epoch(postgres: str) -> None:
    execute(postgres, "CREATE TABLE target (plane text, total bigint CHECK (total < 100))")
    with opened(postgres) as sink:
        for _ in range(2):
            with pytest.raises(SinkError, match=r"'N2'.*violates check constraint"):
                sink.deliver(rows(0, ("N1", 1), ("N2", 200)))
            assert table(postgres) == []
        execute(postgres, "ALTER TABLE target DROP CONSTRAINT target_total_check")
        sink.deliver(rows(0, ("N1", 1), ("N2", 200)))
    assert table(postgres) == [("N1", 1), ("N2", 200)]
