"""Drawn histories of a Delta table: what a reader has added up equals the table, row by row."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow.parquet import filters_to_expression
from tests.support.delta_logs import commit, deletion_vector, field, make_table, vector_on_disk
from tests.support.rounds import rounds

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.sources import Source

Row = tuple[Any, ...]
NAMES = ["id", "part", "v"]
FILTERS: list[Any] = [None, None, [("v", "<", 5)], [("part", "in", ["a", "e=f"]), ("id", ">", 3)]]
FILTERS += [[[("part", "=", "b c/d")], [("v", ">=", 8)]], [("part", "not in", ["a"])]]
PARTS = ["a", "b c/d", None, "é%20", "e=f"]
SEEDS = range(rounds(4, 200))


class History:
    """A table that a seed's transactions change; some of them only maintain it."""

    def __init__(self, path: Path, draw: random.Random) -> None:
        self.path, self._draw, self._next, self._columns = str(path), draw, 0, 0
        self.feed, self.partitioned = draw.random() < 0.5, draw.random() < 0.5
        # The library writes statistics of the first columns only, and may be asked for none.
        properties = {"delta.enableChangeDataFeed": str(self.feed).lower()}
        if draw.random() < 0.2:
            properties["delta.dataSkippingNumIndexedCols"] = "0"
        write_deltalake(
            self.path,
            self.rows(draw.randint(0, 12)),
            partition_by=["part"] if self.partitioned else None,
            configuration=properties,
        )

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def rows(self, count: int) -> pa.Table:
        ids = list(range(self._next, self._next + count))
        self._next += count
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "part": pa.array([self._draw.choice(PARTS) for _ in ids], pa.string()),
                "v": pa.array([self._draw.randint(0, 9) for _ in ids], pa.int64()),
            }
        )

    def append(self) -> None:
        rows = self.rows(self._draw.randint(1, 8))
        write_deltalake(self.path, rows, mode="append", schema_mode="merge")

    def add_column(self) -> None:
        self._columns += 1
        rows = self.rows(2)
        rows = rows.append_column(f"c{self._columns}", pa.array([1, None], pa.int64()))
        write_deltalake(self.path, rows, mode="append", schema_mode="merge")

    def overwrite(self) -> None:
        write_deltalake(self.path, self.rows(3), mode="overwrite", schema_mode="merge")

    def delete(self) -> None:
        self.table.delete(self._predicate())

    def update(self) -> None:
        updates = {"v": "v + 1"} if self._draw.random() < 0.7 else {"part": "'a'"}
        self.table.update(updates=updates, predicate=self._predicate())

    def merge(self) -> None:
        new = self.rows(2)
        ids = [self._draw.randrange(self._next) for _ in range(2)]
        ids = [ids[0], ids[0] + 1 if len(set(ids)) < 2 else ids[1]]
        source = new.set_column(0, "id", pa.array([*ids[:1], self._next + 1], pa.int64()))
        self._next += 2
        (
            self.table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
            .when_matched_update({"v": "s.v"}, predicate="t.v < 7")
            .when_matched_delete(predicate="t.v >= 7")
            .when_not_matched_insert({"id": "s.id", "part": "s.part", "v": "s.v"})
            .execute()
        )

    def compact(self) -> None:
        self.table.optimize.compact()

    def z_order(self) -> None:
        self.table.optimize.z_order(["v"])

    def checkpoint(self) -> None:
        self.table.create_checkpoint()

    def restore(self) -> None:
        newest = self.table.version()
        if newest:
            self.table.restore(self._draw.randrange(max(newest - 3, 0), newest))

    def vacuum(self) -> None:
        self.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def _predicate(self) -> str:
        draw = self._draw
        choices = [f"v = {draw.randint(0, 9)}", f"id % 3 = {draw.randint(0, 2)}", "part = 'a'"]
        return draw.choice([*choices, f"id < {draw.randint(0, max(self._next, 1))}"])

    def contents(self, version: int | None = None, filters: Any = None) -> Counter[Row] | None:
        """The rows of a version; ``None`` if some of its files were vacuumed."""
        try:
            table = DeltaTable(self.path, version=version).to_pyarrow_table(columns=NAMES)
        except FileNotFoundError:
            return None
        if filters is not None:
            table = table.filter(filters_to_expression(filters))
        return Counter(zip(*table.to_pydict().values(), strict=True))


class Reader:
    """A query that reads a source epoch by epoch, and is killed and restarted now and then."""

    exact = True  # limits

    def __init__(self, draw: random.Random, **options: Any) -> None:
        self._draw, self._options = draw, options
        self.position: Any = None
        self.rows: Counter[Row] = Counter()
        self.source: Source
        self.restart()

    def restart(self) -> None:
        self.source = gw.sources.delta(**self._options)
        self.source.open(self.position)
        if self.position is None:
            self.position = self.source.start()

    def epoch(self) -> bool:
        """Read one epoch; return whether there was one."""
        try:
            return self._epoch()
        except gw.errors.SourceError as error:
            if "drops column" not in error.message:  # a restore to before it was added
                raise
            self.restart()
            return True

    def _epoch(self) -> bool:
        draw = self._draw
        limit = draw.choice([None, 1, 3, 10])
        until = None
        if draw.random() < 0.5:  # an end, or where a smaller epoch would end
            until = self.source.end(self.position)
            if draw.random() < 0.5:
                until = self.source.latest(self.position, limit=draw.randint(1, 9))
        end = self.source.latest(self.position, limit=limit, until=until)
        assert until is None or not self.source.precedes(until, end)
        if end == self.position:
            return False
        assert self.source.precedes(self.position, end)
        splits = self.source.splits(self.position, end, draw.choice([1, 2, 5]))
        if draw.random() < 0.2:  # killed before the commit
            self.restart()
            return True
        copy = pickle.loads(pickle.dumps(self.source))
        batches = [
            batch for split in splits for batch in copy.read(split, self.source.schema.names)
        ]
        count = sum(batch.num_rows for batch in batches)
        reached = self.source.latest(self.position, until=end)
        assert reached == end
        is_exact = not self._options.get("whole_versions") and self.exact
        assert limit is None or count <= limit or not is_exact
        for batch in batches:
            for row in batch.to_pylist():
                self.rows[tuple(row[name] for name in NAMES)] += row.get("change", 1)
        self.position = end
        if draw.random() < 0.2:
            self.restart()
        return True

    def catch_up(self) -> None:
        for _ in range(1_000):
            if not self.epoch() and self.source.latest(self.position) == self.position:
                return
        raise AssertionError("no end")


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_add_up_to_the_table(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    history = History(tmp_path / "t", draw)
    kinds = [
        *[history.append, history.delete, history.update, history.merge] * 3,
        *[history.compact, history.z_order, history.checkpoint, history.restore],
        *[history.vacuum, history.add_column, history.overwrite],
    ]
    filters = draw.choice(FILTERS)
    reader = Reader(
        draw,
        path=history.path,
        changes=True,
        filters=filters,
        whole_versions=draw.random() < 0.3,
        max_files_per_epoch=draw.choice([None, None, 1, 3]),
    )
    for _ in range(draw.randint(8, 20)):
        change = draw.choice(kinds)
        if change == history.vacuum:
            reader.catch_up()
        try:
            change()
        except (deltalake.exceptions.DeltaError, OSError) as error:
            # Files of older versions are gone, or the library cannot write its own partition.
            if change != history.restore:
                raise AssertionError(change) from error
        for _ in range(draw.randint(0, 3)):
            reader.epoch()
        place = reader.source.describe(reader.position)
        if set(place) == {"version"}:
            assert history.contents(place["version"], filters) in (None, +reader.rows), place
            assert min(reader.rows.values(), default=0) >= 0
    reader.catch_up()
    assert {row: n for row, n in reader.rows.items() if n} == history.contents(None, filters)


@pytest.mark.parametrize("seed", SEEDS)
def test_appended_rows_come_once_beside_maintenance(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    history = History(tmp_path / "t", draw)
    kinds = [*[history.append] * 5, history.compact, history.z_order, history.checkpoint]
    kinds += [history.vacuum, history.add_column]
    reader = Reader(draw, path=history.path)
    for _ in range(draw.randint(8, 20)):
        change = draw.choice(kinds)
        if change == history.vacuum:
            reader.catch_up()
        change()
        for _ in range(draw.randint(0, 3)):
            reader.epoch()
    reader.catch_up()
    assert reader.rows == history.contents()


@pytest.mark.parametrize("seed", SEEDS)
def test_deletion_vectors_add_up_to_the_table(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    fields = [field("id", "long"), field("part", "string"), field("v", "long")]
    make_table(tmp_path, fields, reader_features=["deletionVectors"], partition_by=["part"])
    files: dict[str, dict[str, Any]] = {}
    rows: dict[str, list[Row]] = {}
    deleted: dict[str, set[int]] = {}
    reader = Reader(draw, path=str(tmp_path), changes=True, version=0)
    reader.exact = False  # what a deletion vector deletes is not divided
    after: list[Counter[Row]] = [Counter()]

    def add(path: str) -> dict[str, Any]:
        files[path].pop("deletionVector", None)
        files[path] = {**files[path], **vector_of(deleted[path], draw, tmp_path)}
        return {"add": files[path]}

    for number in range(draw.randint(5, 15)):
        actions: list[dict[str, Any]] = []
        for path in draw.sample(sorted(deleted), min(len(deleted), draw.randint(0, 2))):
            count, former = len(rows[path]), deleted[path]
            changed = former if draw.random() < 0.7 else set[int]()
            changed = changed | set(draw.sample(range(count), draw.randint(0, count)))
            if changed == former:
                continue
            actions.append({"remove": dict(files[path])})
            deleted[path] = changed
            if draw.random() < 0.2:
                del deleted[path]
            else:
                actions.append(add(path))
        if not actions or draw.random() < 0.5:
            path, part = f"{number}.parquet", draw.choice(["a", "b", None])
            count = draw.randint(1, 9)
            rows[path] = [(number * 100 + n, part, n) for n in range(count)]
            table = pa.table({"id": [row[0] for row in rows[path]], "v": list(range(count))})
            pq.write_table(table, tmp_path / path, row_group_size=draw.randint(1, 9))
            stats = {"stats": f'{{"numRecords": {count}}}'} if draw.random() < 0.7 else {}
            files[path] = {"path": path, "partitionValues": {"part": part}, "dataChange": True}
            files[path] |= {"size": (tmp_path / path).stat().st_size, "modificationTime": number}
            files[path] |= stats
            deleted[path] = set()
            actions.append(add(path))
        draw.shuffle(actions)
        commit(tmp_path, actions)
        after.append(Counter())
        for path, gone in deleted.items():
            after[-1].update(row for n, row in enumerate(rows[path]) if n not in gone)
        for _ in range(draw.randint(0, 2)):
            reader.epoch()
        place = reader.source.describe(reader.position)
        if set(place) == {"version"}:
            assert after[place["version"]] == +reader.rows, place
    reader.catch_up()
    assert {row: n for row, n in reader.rows.items() if n} == after[-1]
    theirs = QueryBuilder().register("t", DeltaTable(str(tmp_path)))
    table = pa.table(theirs.execute("select id, part, v from t")).to_pydict()
    assert Counter(zip(*table.values(), strict=True)) == after[-1]


def vector_of(gone: set[int], draw: random.Random, path: Path) -> dict[str, Any]:
    """The deletion vector of some rows, in the log or in a file; nothing if there are none."""
    if not gone:
        return {}
    vector = deletion_vector(sorted(gone))
    return {"deletionVector": vector_on_disk(path, vector) if draw.random() < 0.5 else vector}
