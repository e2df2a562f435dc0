"""Directories that grow in any order, read by any limits, with restarts: every row comes once.

Files turn up with modification times out of order, and some that were read are deleted. A reader
goes on by limits of rows and files, and now and then in a new process from its stored position. All
rows of all files come once, and those of a file in its order.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from tests.support.rounds import rounds

import godwit as gw

KINDS = ("parquet", "arrow", "csv", "json")
ADD = st.tuples(
    st.just("add"),
    st.sampled_from(["", "a/", "day=1/"]),
    st.integers(0, 12),  # rows
    st.integers(0, 5),  # modification time: many alike, and out of order
)
READ = st.tuples(
    st.just("read"),
    st.none() | st.integers(1, 9),  # rows at most
    st.integers(1, 4),  # parallelism
    st.booleans(),  # is it committed, or did the process die?
)
STEPS = st.lists(
    ADD
    | READ
    | st.tuples(st.just("restart"))
    | st.tuples(st.just("delete"), st.integers(0, 99))
    | st.tuples(st.just("end"), st.integers(1, 5)),
    max_size=14,
)


class Reader:
    """What an engine does with a source, and the directory that it reads."""

    def __init__(self, kind: str, root: Path, max_files: int | None) -> None:
        self.kind, self.root, self.max_files = kind, root, max_files
        self.written: dict[int, int] = {}  # file → rows
        self.paths: dict[int, Path] = {}
        self.seen: list[tuple[int, int]] = []  # of rows that are committed: file, number
        self.position: Any = None
        self.restart()

    def restart(self) -> None:
        make: Any = getattr(gw.sources, self.kind)
        schema = "file bigint, number bigint, word string"
        self.source = make(self.root, schema=schema, max_files_per_epoch=self.max_files)
        self.source.open(self.position)
        if self.position is None:
            self.position = self.stored(self.source.start())

    @staticmethod
    def stored(position: Any) -> Any:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(position))

    def add(self, directory: str, rows: int, at: int) -> None:
        number = len(self.written)
        path = self.root / directory / f"{(number * 7) % 10}-{number}.{self.kind}"
        path.parent.mkdir(exist_ok=True)
        hidden = path.with_name(f"_{path.name}")
        write(hidden, number, rows, self.kind)
        os.utime(hidden, (1_700_000_000 + at,) * 2)
        hidden.rename(path)
        self.written[number], self.paths[number] = rows, path

    def read(self, limit: int | None, parallelism: int, until: Any = None) -> Any:
        """Read an epoch; return the position after it and its rows."""
        after = self.stored(self.source.latest(self.position, limit=limit, until=until))
        splits = self.source.splits(self.position, after, parallelism)
        copy = pickle.loads(pickle.dumps(self.source))
        rows = [
            row
            for split in pickle.loads(pickle.dumps(splits))
            for batch in copy.read(split, ["number", "file"])
            for row in batch.to_pylist()
        ]
        assert limit is None or len(rows) <= limit
        assert [s.rows for s in splits if s.rows is not None] == [] or (
            sum(split.rows for split in splits) == len(rows)
        )
        return after, [(row["file"], row["number"]) for row in rows]

    def commit(self, after: Any, rows: list[tuple[int, int]]) -> None:
        self.position = after
        self.seen += rows
        self.source.committed(after)

    def delete(self, which: int) -> None:
        """Delete a file that was read to its end."""
        counts = {n: sum(file == n for file, _ in self.seen) for n in self.paths}
        over = [n for n in self.paths if counts[n] == self.written[n] > 0]
        if over:
            self.paths.pop(over[which % len(over)]).unlink()

    def read_to_end(self, limit: int) -> None:
        """Read what is there, as a query does that ends with it; what comes meanwhile waits."""
        end = self.source.end(self.position)
        there = {n for n in self.written if self.written[n]}
        self.add("", 3, 0)
        for _ in itertools.count():
            after, rows = self.read(limit, 2, until=end)
            if after == self.position:
                break
            self.commit(after, rows)
        assert {file for file, _ in self.seen} == there


def write(path: Path, file: int, rows: int, kind: str) -> None:
    values = [{"file": file, "number": n, "word": "x" * (n % 3)} for n in range(rows)]
    schema = pa.schema({"file": pa.int64(), "number": pa.int64(), "word": pa.string()})
    table = pa.Table.from_pylist(values, schema)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=4)
    elif kind == "arrow":
        with pa.ipc.new_file(path, schema) as writer:
            writer.write_table(table, max_chunksize=4)
    elif kind == "csv":
        lines = [f"{r['number']},{r['file']},{r['word']}" for r in values]
        path.write_text("\n".join(["number,file,word", *lines]))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in values))


@settings(max_examples=rounds(12, 60), deadline=None)
@given(kind=st.sampled_from(KINDS), max_files=st.none() | st.integers(1, 3), steps=STEPS)
def test_every_row_of_every_file_comes_once_and_in_order_within_its_file(
    kind: str, max_files: int | None, steps: list[tuple[Any, ...]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        reader = Reader(kind, Path(root), max_files)
        for step, *options in steps:
            if step == "add":
                reader.add(*options)
            elif step == "read":
                limit, parallelism, committed = options
                after, rows = reader.read(limit, parallelism)
                if committed:
                    reader.commit(after, rows)
                else:
                    reader.restart()
            elif step == "restart":
                reader.restart()
            elif step == "delete":
                reader.delete(*options)
            else:
                reader.read_to_end(*options)
        for _ in itertools.count():
            after, rows = reader.read(None, 3)
            if after == reader.position:
                break
            reader.commit(after, rows)
        for file, rows in reader.written.items():
            assert [n for f, n in reader.seen if f == file] == list(range(rows)), (file, rows)
