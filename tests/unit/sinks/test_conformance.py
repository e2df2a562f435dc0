"""One suite for every sink whose target keeps epochs: what their contract promises, by the rows."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples.sqlite.godwit_sqlite import to_table
from tests.support.epoch_rows import Committed, EpochRows, context, point, rows
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import SinkError
from godwit.sinks.continuity import Position, Way, continue_delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from godwit.columns.signed import Kind
    from godwit.sinks.sink import Sink, SinkContext

deltalake = pytest.importorskip("deltalake", reason="one of the targets")
pytest.importorskip("psycopg", reason="one of the targets")
pytest.importorskip("pyiceberg", reason="one of the targets")
sqlalchemy = pytest.importorskip("sqlalchemy", reason="one of the targets")


@dataclass(frozen=True, slots=True)
class Target:
    """A place of a kind of target: how sinks on it are made, and how its rows are read."""

    make: Callable[..., Sink]
    read: Callable[[], pa.Table]
    keeps_results: bool = False  # a whole result comes beside the one before, not in its place
    insert: Callable[[pa.Table], None] | None = None  # rows of another writer
    sinks: list[Sink] = field(default_factory=list)

    def opened(self, ctx: SinkContext | None = None, **options: Any) -> Sink:
        self.sinks.append(sink := self.make(**options))
        sink.open(ctx or context())
        return sink

    def delivered(self, *epochs: EpochRows) -> Sink:
        sink = self.opened()
        for epoch in epochs:
            sink.deliver(epoch)
        return sink

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return ordered(self.read())


def _parquet(path: Path) -> Target:
    def read() -> pa.Table:
        files = path.glob("epoch=*/*.parquet")
        return pa.concat_tables([rows(0).table, *(pq.ParquetFile(file).read() for file in files)])

    return Target(partial(gw.sinks.parquet, path), read, keeps_results=True)


def _delta(path: Path) -> Target:

    def read() -> pa.Table:
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
        return pa.table(query.execute("SELECT plane, total FROM t"))

    def insert(theirs: pa.Table) -> None:
        deltalake.write_deltalake(path, theirs, mode="append")

    return Target(partial(gw.sinks.delta, path), read, insert=insert)


def _iceberg(path: Path) -> Target:
    from pyiceberg.catalog import load_catalog

    name = "delays.by_plane"
    catalog = {"type": "sql", "uri": f"sqlite:///{path}/c.db", "warehouse": f"file://{path}"}

    def read() -> pa.Table:
        with closing(load_catalog("default", **catalog)) as there:
            return there.load_table(name).scan().to_arrow()

    def insert(theirs: pa.Table) -> None:
        with closing(load_catalog("default", **catalog)) as there:
            there.load_table(name).append(theirs)

    return Target(partial(gw.sinks.iceberg, name, catalog=catalog), read, insert=insert)


def _postgres(dsn: str) -> Target:
    from tests.support.postgres_sinks import execute

    def read() -> pa.Table:
        return rows(0, *execute(dsn, "SELECT plane, total FROM target")).table

    def make(**options: Any) -> Sink:
        return gw.sinks.postgres(dsn, "target", **(options or {"epoch_column": "n"}))

    def insert(theirs: pa.Table) -> None:
        of_epochs = "attrelid = 'target'::regclass AND attname = 'n'"
        [(counts_epochs,)] = execute(dsn, f"SELECT count(*) FROM pg_attribute WHERE {of_epochs}")
        for plane, total in zip(*(column.to_pylist() for column in theirs.columns), strict=True):
            values = f"{'NULL' if plane is None else repr(plane)}, {total}"
            # Others may count something in the column for epochs, too.
            execute(dsn, f"INSERT INTO target VALUES ({values}{', 99' if counts_epochs else ''})")

    return Target(make, read, insert=insert)


def _sqlite(path: Path) -> Target:
    def read() -> pa.Table:
        with closing(sqlite3.connect(path / "totals.db")) as database:
            return rows(0, *database.execute("SELECT plane, total FROM rows")).table

    return Target(partial(to_table, str(path / "totals.db"), "rows"), read, keeps_results=True)


def _sql(place: Any) -> Target:
    url = place if isinstance(place, str) else f"sqlite:///{place}/t.db"

    def read() -> pa.Table:
        engine = sqlalchemy.create_engine(url)
        with engine.connect() as connection:
            table = connection.execute(sqlalchemy.text("SELECT plane, total FROM target")).all()
        engine.dispose()
        return rows(0, *(tuple(row) for row in table)).table

    return Target(partial(gw.sinks.sql, url, "target"), read)


TARGETS: dict[str, Callable[[Any], Target]] = {
    "parquet": _parquet,
    "delta": _delta,
    "iceberg": _iceberg,
    "postgres": _postgres,
    "sqlite": _sqlite,
}
KNOWING_ALL = [name for name in TARGETS if name != "postgres"]  # which knows its last epoch only
UPSERTING = ("delta", "iceberg", "postgres")
SERVERS = {"postgres": "postgres", "mariadb": "mariadb"}
MORE = {"sql": _sql, "mariadb": _sql}
CHECKED = [
    *(pytest.param(name, "append", "rows", id=f"{name}-append") for name in TARGETS | MORE),
    *(
        pytest.param(name, "complete", "rows", id=f"{name}-complete")
        for name in ("delta", "iceberg", "postgres", "sql")
    ),
    *(
        pytest.param(name, "upsert", kind, id=f"{name}-upsert-{kind}")
        for name, kind in [
            *itertools.product((*UPSERTING, "sql"), ("rows", "changes")),
            *itertools.product(("postgres", "mariadb"), ("upserts",)),
        ]
    ),
]
EPOCHS = [
    rows(0, ("N1", 1), ("N2", 2), (None, 3)),
    rows(1, ("N1", 10), ("N3", 30), ("N1", 11), (None, None), ("N3", 31)),
    rows(2, ("N2", 20), ("N4", 40)),
    rows(3, ("N3", 32)),
]
FORK = [replace(epoch, history="fork") for epoch in EPOCHS]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    make = (TARGETS | MORE)[request.param]
    server = SERVERS.get(request.param)
    target = make(request.getfixturevalue(server) if server else tmp_path)
    yield target
    for sink in target.sinks:
        sink.close()


@pytest.fixture(params=[name for name in TARGETS if name in UPSERTING])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """Yield a target to which others write, too."""
    make = (TARGETS | MORE)[request.param]
    server = SERVERS.get(request.param)
    target = make(request.getfixturevalue(server) if server else tmp_path)
    yield target
    for sink in target.sinks:
        sink.close()


def ordered(table: pa.Table) -> list[tuple[Any, ...]]:
    pairs = zip(*(table.column(name).to_pylist() for name in ("plane", "total")), strict=True)
    return sorted(pairs, key=lambda row: (row[0] or "", row[1] or 0))


def expected(*epochs: int) -> list[tuple[Any, ...]]:
    return ordered(pa.concat_tables([rows(0).table, *(EPOCHS[n].table for n in epochs)]))


def go_on(sink: Sink, committed: Committed, way: Way = "refuse", before: int = -1) -> str | None:
    position = Position(before=before, stays=True, copied=False)
    return continue_delivery(sink, "by_plane", committed, position, way)


@pytest.mark.parametrize(("target", "mode", "kind"), CHECKED, indirect=["target"])
def test_epochs_are_there_once_however_often_they_come_and_wherever_the_process_dies(
    target: Target, mode: Literal["append", "upsert", "complete"], kind: Kind
) -> None:
    def make() -> Sink:
        return target.make(mode="upsert") if mode == "upsert" else target.make()

    is_slow = type(make()).__module__.split(".")[2] in {"delta", "iceberg"} or "maria" in repr(
        make()
    )
    gw.testing.check_sink(
        make,
        target.read,
        mode=mode,
        kind=kind,
        columns=("plane", "total"),
        null_keys=mode != "upsert" or "sinks.sql" not in repr(make()),
        epochs=2 if is_slow else rounds(3, 4),
        crashes=rounds(2, 3) if is_slow else rounds(4, 6),
    )


def test_a_whole_result_without_rows_is_empty(target: Target) -> None:
    sink = target.opened(context(complete=True))
    for epoch in [EPOCHS[0], rows(1)]:
        sink.deliver(epoch)
    assert target.rows == (expected(0) if target.keeps_results else [])


def test_a_renamed_sink_goes_on_where_it_wrote(target: Target) -> None:
    target.delivered(EPOCHS[0])
    renamed = target.opened(context(name="planes", writer="by_plane"))
    for epoch in EPOCHS[:2]:
        renamed.deliver(epoch)
    assert target.rows == expected(0, 1)


def test_epochs_that_the_checkpoint_lacks_are_refused_and_taken_back(target: Target) -> None:
    target.delivered(*EPOCHS)
    sink = target.opened()
    with pytest.raises(SinkError, match="epochs up to 3, and the checkpoint ends with epoch 1"):
        go_on(sink, Committed(latest_epoch=1))
    assert "rolled back to epoch 1" in str(go_on(sink, Committed(latest_epoch=1), "roll_back"))
    assert target.rows == expected(0, 1)
    assert sink.last_delivered() == point(1)
    sink.deliver(EPOCHS[2])
    assert target.rows == expected(0, 1, 2)
    assert target.opened().last_delivered() == point(2)


def test_epochs_of_another_history_are_taken_back_and_made_anew(target: Target) -> None:
    target.delivered(*FORK)
    sink = target.opened()
    committed = Committed(latest_epoch=2, parted={"fork": 1})
    with pytest.raises(SinkError, match="epochs up to 3 of another history"):
        go_on(sink, committed)
    go_on(sink, committed, "roll_back")
    sink.deliver(EPOCHS[2])
    assert target.rows == expected(0, 1, 2)


def test_a_target_that_would_lack_epochs_is_not_rolled_back(target: Target) -> None:
    target.delivered(*FORK[:3])
    sink = target.opened()
    with pytest.raises(
        SinkError, match="epochs up to 1 were delivered to it and are not delivered again"
    ):
        sink.roll_back(Committed(latest_epoch=2, parted={"fork": 0}), 1)
    assert target.rows == expected(0, 1, 2)


@pytest.mark.parametrize("target", KNOWING_ALL, indirect=True)
def test_of_which_nothing_is_shared_nothing_stays(target: Target) -> None:
    target.delivered(*FORK[:2])
    sink = target.opened()
    go_on(sink, Committed(latest_epoch=0), "roll_back")
    assert target.rows == []
    sink.deliver(EPOCHS[0])
    assert target.rows == expected(0)


def test_a_new_writer_goes_on_beside_what_is_there(target: Target) -> None:
    sink = target.delivered(*FORK[:2])
    sink.continue_after(point(2))
    for epoch in EPOCHS[1:]:
        sink.deliver(epoch)
    assert target.rows == expected(0, 1, 3)
    assert target.opened().last_delivered() == point(3)


OTHERS = [(None, 7), ("N0", 1), ("N0", 1), ("N25", 5), ("zz", -1)]  # keys of no epoch, one twice


def _with_rows_of_others(target: Target, **options: Any) -> tuple[Sink, list[tuple[Any, ...]]]:
    """Return an open sink whose target has two epochs, and rows of another writer between."""
    assert target.insert is not None
    first, second = EPOCHS[0].table.slice(0, 2), EPOCHS[2].table
    sink = target.opened(**options)
    sink.deliver(EpochRows(epoch=0, table=first))
    # A constraint, as PostgreSQL's upserts need, lets no key come twice.
    theirs = sorted(set(OTHERS), key=str) if is_unique(target, options) else OTHERS
    target.insert(rows(0, *theirs).table)
    sink.deliver(EpochRows(epoch=1, table=second))
    return sink, theirs


def is_unique(target: Target, options: dict[str, Any]) -> bool:
    return bool(options) and "postgres" in repr(target.sinks[0])


def _sorted(pairs: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(pairs, key=lambda pair: (str(pair[0]), str(pair[1])))


def test_appended_epochs_leave_rows_of_others(shared: Target) -> None:
    _, theirs = _with_rows_of_others(shared)
    ours = [("N1", 1), ("N2", 2), ("N2", 20), ("N4", 40)]
    assert _sorted(shared.rows) == _sorted([*theirs, *ours])


def test_upserts_leave_rows_of_others_whose_keys_are_not_in_the_epoch(shared: Target) -> None:
    _, theirs = _with_rows_of_others(shared, mode="upsert")
    assert _sorted(shared.rows) == _sorted([*theirs, ("N1", 1), ("N2", 20), ("N4", 40)])


def test_a_complete_result_replaces_rows_of_others(shared: Target) -> None:
    sink = shared.opened(replace(context(), complete=True))
    sink.deliver(EPOCHS[0])
    assert shared.insert is not None
    shared.insert(rows(0, *OTHERS).table)
    sink.deliver(EPOCHS[2])
    assert _sorted(shared.rows) == [("N2", 20), ("N4", 40)]


def test_a_roll_back_leaves_rows_of_others_or_is_refused(shared: Target) -> None:
    sink, theirs = _with_rows_of_others(shared)
    before = shared.rows
    try:
        sink.roll_back(Committed(latest_epoch=0), -1)
    except SinkError as error:
        assert "written by another writer" in str(error)  # noqa: PT017  one of two is right
        assert shared.rows == before
    else:
        assert _sorted(shared.rows) == _sorted([*theirs, ("N1", 1), ("N2", 2)])


def test_a_new_writer_leaves_all_rows(shared: Target) -> None:
    sink, _ = _with_rows_of_others(shared)
    before = shared.rows
    sink.continue_after(point(5))
    assert shared.rows == before
