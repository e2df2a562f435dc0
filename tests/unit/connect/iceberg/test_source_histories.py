"""Drawn histories of an Iceberg table: what a reader has added up equals the table, row by row."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from operator import eq, ge, gt, lt
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.types import LongType
from tests.support.iceberg_tables import (
    catalog_in,
    commit_deletes,
    compact,
    local_path,
    properties_of,
)
from tests.support.rounds import rounds

import godwit as gw
from godwit.connect.iceberg.files import all_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyiceberg.table import Table

    from godwit.sources import Source

SEEDS = range(rounds(3, 200))
PARTS = ["a", "b c/d", None, "é%20", "e=f"]
FILTERS: list[Any] = [None, None, [("v", "<", 5)], [("part", "in", ["a", "e=f"]), ("id", ">", 3)]]
FILTERS += [[[("part", "=", "b c/d")], [("v", ">=", 8)]], [("part", "not in", ["a"])]]
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match")
Row = frozenset[tuple[int, Any]]  # field ids and values that are not null


class History:
    """A table that a seed's transactions change; some of them only maintain it."""

    def __init__(self, path: Path, draw: random.Random) -> None:
        self._draw, self._next, self._columns, self.schema_version = draw, 0, 0, 0
        self.catalog = catalog_in(path)
        fields = [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("part", pa.string()),
            pa.field("v", pa.int32()),
            pa.field("s", pa.struct([("x", pa.int64())])),
        ]
        # The library cannot split files by null lists and maps; see the tests of the sink.
        table = self.catalog.create_table("shop.orders", pa.schema(fields))
        self._deletes: list[Any] = []
        if draw.random() < 0.5:
            self._partition(table)
        self.vectors = draw.random() < 0.5
        self.append()

    @property
    def table(self) -> Table:
        return self.catalog.load_table("shop.orders")

    def _partition(self, table: Table) -> None:
        with table.update_spec() as update:
            update.add_field(self.name_of(2), "identity", f"p{table.metadata.last_partition_id}")

    def rows(self, ids: list[int] | None = None) -> pa.Table:
        if ids is None:
            count = self._draw.randint(1, 8)
            ids = list(range(self._next, self._next + count))
            self._next += count
        draw, table = self._draw, self.table
        values: dict[int, list[Any]] = {
            1: ids,
            2: [draw.choice(PARTS) for _ in ids],
            3: [draw.choice([None, *range(10)]) for _ in ids],
            4: [draw.choice([None, {"x": draw.randint(0, 9)}]) for _ in ids],
        }
        schema = table.schema().as_arrow()
        columns = []
        for field, arrow in zip(table.schema().fields, schema, strict=True):
            drawn = [draw.choice([None, 1, 2]) for _ in ids]
            rows = values.get(field.field_id, drawn)
            if field.field_id == 4:
                name = arrow.type.field(0).name
                rows = [None if row is None else {name: row["x"]} for row in rows]
            columns.append(pa.array(rows, arrow.type))
        return pa.Table.from_arrays(columns, schema=schema)

    # -- transactions that change rows

    def append(self) -> None:
        self.table.append(self.rows())

    def overwrite(self) -> None:
        self.table.overwrite(self.rows(), self._predicate())

    def delete(self) -> None:
        self.table.delete(self._predicate())

    def upsert(self) -> None:
        ids = sorted({self._draw.randrange(self._next + 2) for _ in range(4)})
        self._next += 2
        table = self.table
        if table.spec().fields or len(table.schemas()) > 1:
            return  # the library compares nulls in partitions, and rows of older schemas
        table.upsert(self.rows(ids), join_cols=["id"])

    def delete_rows(self) -> None:
        """Delete rows by position, in files of one partition spec or several."""
        table = self.table
        files = [f for f in all_files(table) if f.record_count]
        if not files or len(self.alive(table)) < 1:
            return
        chosen = self._draw.sample(files, min(len(files), 2))
        deleted = {
            f.file_path: self._draw.sample(
                range(f.record_count), self._draw.randint(1, f.record_count)
            )
            for f in chosen
        }
        commit_deletes(table, deleted, files=chosen, kind="vector" if self.vectors else "position")

    def roll_back(self) -> None:
        table = self.table
        ancestors = [s for s in self.ancestors(table)[1:4]]  # noqa: C416
        if ancestors:
            number = self._draw.choice(ancestors)
            table.manage_snapshots().rollback_to_snapshot(number).commit()

    # -- transactions that do not

    def compact(self) -> None:
        table = self.table
        files = all_files(table)
        compact(table, self._draw.sample(files, self._draw.randint(0, len(files))))

    def nothing(self) -> None:
        self.table.append(self.rows([]))

    def expire(self, reader: Reader) -> None:
        """Expire snapshots that the reader has read, and those before them."""
        table, seen = self.table, reader.snapshot
        ancestors = self.ancestors(table)
        if seen not in ancestors:
            return
        old = ancestors[ancestors.index(seen) + 1 :]
        chosen = [number for number in old if self._draw.random() < 0.7]
        if chosen:
            before = table.metadata
            table.maintenance.expire_snapshots().by_ids(chosen).commit()
            for number in chosen:
                snapshot = before.snapshot_by_id(number)
                assert snapshot is not None
                local_path(snapshot.manifest_list).unlink()

    def add_column(self) -> None:
        self._columns += 1
        with self.table.update_schema() as update:
            update.add_column(f"c{self._columns}", LongType())
        self._columns_changed()

    def rename(self) -> None:
        number = self._draw.choice([1, 2, 3, 5])
        name = self.name_of(number)
        if name is not None:
            with self.table.update_schema() as update:
                update.rename_column(name, f"{name.rsplit('.', 1)[-1]}x")
            self._columns_changed()

    def move(self) -> None:
        names = [field.name for field in self.table.schema().fields]
        with self.table.update_schema() as update:
            update.move_first(self._draw.choice(names))

    def promote(self) -> None:
        with self.table.update_schema() as update:
            update.update_column(self.name_of(3), LongType())
        self._columns_changed()

    def partition(self) -> None:
        table = self.table
        if table.spec().fields:
            with table.update_spec() as update:
                update.remove_field(table.spec().fields[0].name)
        else:
            self._partition(table)

    def _columns_changed(self) -> None:
        self.schema_version += 1

    def _predicate(self) -> str:
        draw, key, value = self._draw, self.name_of(1), self.name_of(3)
        number = draw.randint(0, 9)
        choices = [f"{value} = {number}", f"{key} < {draw.randint(0, max(self._next, 1))}"]
        return draw.choice([*choices, f"{key} = {draw.randint(0, max(self._next, 1))}"])

    def name_of(self, number: int) -> Any:
        return self.table.schema().find_column_name(number)

    def ancestors(self, table: Table) -> list[int]:
        numbers, number = [], table.metadata.current_snapshot_id
        while number is not None and (snapshot := table.metadata.snapshot_by_id(number)):
            numbers.append(number)
            number = snapshot.parent_snapshot_id
        return numbers

    def alive(self, table: Table) -> pa.Table:
        return table.scan().to_arrow()

    def contents(self, number: int | None, keeps: Callable[[dict[str, Any]], bool]) -> Any:
        """The rows of a snapshot, by field ids; ``None`` if the snapshot has expired."""
        table = self.table
        if number is not None and table.metadata.snapshot_by_id(number) is None:
            return None
        # The library reads a snapshot with its own schema: names differ, ids do not.
        scan = table.scan(snapshot_id=number)
        ids = {field.name: field.field_id for field in scan.projection().fields}
        rows = scan.to_arrow().to_pylist()
        return Counter(row for row in (row_of(r, ids) for r in rows) if keeps(dict_of(row)))


def row_of(row: Mapping[str, Any], ids: Mapping[str, int]) -> Row:
    """A row by field ids."""
    values = {ids[name]: value for name, value in row.items() if name in ids}
    if isinstance(struct := values.get(4), dict):
        values[4] = next(iter(struct.values()))
    return frozenset((number, value) for number, value in values.items() if value is not None)


def dict_of(row: Row) -> dict[str, Any]:
    names = {1: "id", 2: "part", 3: "v"}
    return {names[number]: value for number, value in row if number in names}


def holds(filters: Any, row: Mapping[str, Any]) -> bool:
    """Whether filters hold for a row, as Arrow compares: a null is not in a list."""
    if filters is None:
        return True
    groups = [filters] if isinstance(filters[0], tuple) else filters
    return any(
        all(_holds(name, operator, value, row) for name, operator, value in group)
        for group in groups
    )


def _holds(name: str, operator: str, value: Any, row: Mapping[str, Any]) -> bool:
    actual = row.get(name)
    if operator == "not in":
        return actual not in value
    if actual is None:
        return False
    if operator == "in":
        return actual in value
    return bool({"<": lt, ">": gt, ">=": ge, "=": eq}[operator](actual, value))


class Reader:
    """A query that reads a source epoch by epoch, and is killed and restarted now and then."""

    def __init__(self, draw: random.Random, history: History, **options: Any) -> None:
        self._draw, self._history, self._options = draw, history, options
        self._filters = options.pop("filters", None)
        self.position: Any = None
        self.rows: Counter[Row] = Counter()
        self.source: Source
        self.restart()

    @property
    def snapshot(self) -> int | None:
        """The snapshot that is read to its end; ``None`` within one."""
        number = self.position["snapshot"]
        return number if "part" not in self.position else None

    def restart(self) -> None:
        ids = {"id": 1, "part": 2, "v": 3}

        def renamed(filters: Any) -> Any:
            if isinstance(filters, tuple):
                return (self._history.name_of(ids[filters[0]]), *filters[1:])
            return filters and [renamed(part) for part in filters]

        self.source = gw.sources.iceberg(
            "shop.orders", filters=renamed(self._filters), **self._options
        )
        self.ids = {f.name: f.field_id for f in self._history.table.schema().fields}
        self._version = self._history.schema_version
        assert self.source.schema.names
        self.source.open(self.position)
        if self.position is None:
            self.position = self.source.start()

    def epoch(self) -> bool:
        """Read one epoch; return whether there was one."""
        draw = self._draw
        if self._version != self._history.schema_version:
            self.restart()
        limit = draw.choice([None, 1, 3, 10])
        until = self.source.end(self.position) if draw.random() < 0.3 else None
        end = self.source.latest(self.position, limit=limit, until=until)
        if end == self.position:
            return False
        assert not self.source.precedes(end, self.position)
        splits = self.source.splits(self.position, end, draw.choice([1, 2, 5]))
        if draw.random() < 0.2:  # killed before the commit
            self.restart()
            return True
        copy = pickle.loads(pickle.dumps(self.source))
        for split in pickle.loads(pickle.dumps(splits)):
            count = 0
            for batch in copy.read(split, self.source.schema.names):
                count += batch.num_rows
                for row in batch.to_pylist():
                    self.rows[row_of(row, self.ids)] += row.get("change", 1)
            assert count == split.rows if split.exact else count <= split.rows
        self.position = msgspec.msgpack.decode(msgspec.msgpack.encode(end))
        if draw.random() < 0.2:
            self.restart()
        return True

    def catch_up(self) -> None:
        for _ in range(1_000):
            if not self.epoch() and self.source.latest(self.position) == self.position:
                return
        raise AssertionError("no end")

    def check(self) -> None:
        """Compare the rows with those of the snapshot that was read to its end."""
        if self.snapshot is not None:
            expected = self._history.contents(self.snapshot, lambda row: holds(self._filters, row))
            assert expected in (None, +self.rows)
        assert self.snapshot is None or min(self.rows.values(), default=0) >= 0


def play(history: History, reader: Reader, kinds: list[Any], draw: random.Random) -> None:
    """Draw transactions, with epochs of the reader between them."""
    for _ in range(draw.randint(8, 20)):
        kind = draw.choice(kinds)
        if kind == history.expire:
            history.expire(reader)
        else:
            kind()
        for _ in range(draw.randint(0, 3)):
            reader.epoch()
        reader.check()
    reader.catch_up()
    reader.check()
    assert reader.snapshot == history.table.metadata.current_snapshot_id


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_add_up_to_the_table(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    history = History(tmp_path, draw)
    kinds = [
        *[history.append, history.delete, history.overwrite, history.upsert] * 2,
        *[history.delete_rows] * 3,
        *[history.compact, history.nothing, history.roll_back, history.expire],
        *[history.add_column, history.rename, history.move, history.promote, history.partition],
    ]
    reader = Reader(
        draw,
        history,
        catalog=properties_of(tmp_path),
        changes=True,
        filters=draw.choice(FILTERS),
        whole_snapshots=draw.random() < 0.3,
        max_files_per_epoch=draw.choice([None, None, 1, 3]),
    )
    play(history, reader, kinds, draw)


@pytest.mark.parametrize("seed", SEEDS)
def test_appended_rows_come_once_beside_maintenance(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    history = History(tmp_path, draw)
    kinds = [*[history.append] * 5, history.compact, history.nothing, history.expire]
    kinds += [history.add_column, history.rename, history.promote, history.partition]
    reader = Reader(draw, history, catalog=properties_of(tmp_path), filters=draw.choice(FILTERS))
    play(history, reader, kinds, draw)
