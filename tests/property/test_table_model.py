"""A table of the local store does what a dictionary does, through everything that happens to it.

The model is a dictionary from key to state and the epoch it is at.  Keys of all types come with
hashes that are well spread, few, or all equal; tables grow, are reopened, are replaced from
snapshots, and are killed while being written.
"""

from __future__ import annotations

import math
import shutil
import struct
import tempfile
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from godwit.model.errors import StorageFullError
from godwit.state.image import TableImage
from godwit.state.local_store import LocalStore
from godwit.state.schema import StateSchema

if TYPE_CHECKING:
    from godwit.state.table import KeyGroupTable

Key = tuple[Any, ...]
State = tuple[Any, ...]

# Few values of each type, so that keys meet again; edges of the type among them.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int32(): [-(2**31), 0, 2**31 - 1],
    pa.int64(): [*range(60), -(2**63), 2**63 - 1],
    pa.float32(): [0.0, -0.0, 1.5, math.inf],
    pa.float64(): [0.0, -0.0, 0.1, math.nan, -math.inf],
    pa.date32(): [date(1970, 1, 1), date(2024, 2, 29)],
    pa.timestamp("us", tz="UTC"): [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)],
    pa.decimal128(20, 2): [Decimal("0.00"), Decimal("-0.01"), Decimal("9" * 18 + ".99")],
    pa.string(): ["", "a", "aa", "é", "the same long beginning 1", "the same long beginning 2"],
    pa.binary(): [b"", b"\0", b"\0\0", b"x" * 3000],
    pa.large_binary(): [b"", b"y" * 100],
}
TYPES = list(VALUES)


def bits(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Compare floats by their bits."""
    return tuple(struct.pack("<d", v) if isinstance(v, float) else v for v in row)


def rows_of(types: list[pa.DataType]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(st.sampled_from([None, *VALUES[t]]) for t in types))


def batch_of(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Record batch whose columns start in the middle of their buffers, as slices do."""
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    padded = [pa.concat_arrays([c.slice(0, 1), c]).slice(1) for c in columns] if rows else columns
    return pa.RecordBatch.from_arrays(padded, schema=schema)


def rows_in(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [bits(row) for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


class TableMachine(RuleBasedStateMachine):
    """One table beside one dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="godwit-"))
        self.epoch = -1
        self.model: dict[Key, tuple[Key, State]] = {}
        self.patch = pytest.MonkeyPatch()

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.root)

    @initialize(
        keys=st.lists(st.sampled_from(TYPES), min_size=1, max_size=3),
        values=st.lists(st.sampled_from(TYPES), min_size=1, max_size=3),
        distinct_hashes=st.sampled_from([1, 3, 2**60]),
    )
    def start(
        self, keys: list[pa.DataType], values: list[pa.DataType], distinct_hashes: int
    ) -> None:
        self.types = keys, values
        self.distinct_hashes = distinct_hashes
        self.schema = StateSchema(
            pa.schema([(f"k{i}", t) for i, t in enumerate(keys)]),
            pa.schema([(f"v{i}", t) for i, t in enumerate(values)]),
        )
        self.reopen()

    @property
    def table(self) -> KeyGroupTable:
        return self.store.table("operator", 5, self.schema)

    def hashes(self, keys: list[Key]) -> npt.NDArray[np.int64]:
        def hash_of(key: Key) -> int:
            text = repr(bits(key)).encode()
            mixed = (zlib.crc32(text) << 32 | zlib.crc32(text[::-1])) % self.distinct_hashes
            return mixed - (1 << 59)

        return np.array([hash_of(key) for key in keys], np.int64)

    def draw(self, data: st.DataObject, max_size: int) -> list[tuple[Key, State]]:
        """Draw keys, each once, with states."""
        pairs = st.tuples(rows_of(self.types[0]), rows_of(self.types[1]))
        return data.draw(st.lists(pairs, max_size=max_size, unique_by=lambda pair: bits(pair[0])))

    def change(self, data: st.DataObject, max_size: int = 12) -> dict[str, Any]:
        """Draw one epoch's changes."""
        pairs = self.draw(data, max_size)
        keys = [key for key, _ in pairs]
        removed = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=len(pairs))))
        mask = None if removed is None else np.array(removed[: len(pairs)], np.bool_)
        return {
            "hashes": self.hashes(keys),
            "keys": batch_of(self.schema.keys, keys),
            "values": batch_of(self.schema.values, [state for _, state in pairs]),
            "removed": mask,
            "pairs": pairs,
        }

    def apply(self, epoch: int, change: dict[str, Any]) -> None:
        arguments = {name: value for name, value in change.items() if name != "pairs"}
        self.table.apply(epoch, **arguments)

    def note(self, epoch: int, change: dict[str, Any]) -> None:
        """Do to the model what was done to the table."""
        self.epoch = epoch
        for i, (key, state) in enumerate(change["pairs"]):
            if change["removed"] is not None and change["removed"][i]:
                self.model.pop(bits(key), None)
            else:
                self.model[bits(key)] = (key, state)

    @rule(data=st.data(), skipped=st.integers(0, 2))
    def apply_an_epoch(self, data: st.DataObject, skipped: int) -> None:
        change, epoch = self.change(data), self.epoch + 1 + skipped
        self.apply(epoch, change)
        self.note(epoch, change)

    @rule(data=st.data())
    def apply_many_keys(self, data: st.DataObject) -> None:
        change = self.change(data, max_size=150)
        self.apply(self.epoch + 1, change)
        self.note(self.epoch + 1, change)

    @rule(data=st.data(), ago=st.integers(0, 3))
    def apply_an_old_epoch_again(self, data: st.DataObject, ago: int) -> None:
        self.apply(self.epoch - ago, self.change(data))

    @rule()
    def reopen(self) -> None:
        self.store = LocalStore(self.root)

    @rule(data=st.data(), ahead=st.integers(-1, 5))
    def replace_from_a_snapshot(self, data: st.DataObject, ahead: int) -> None:
        pairs = self.draw(data, 40)
        keys, states = [key for key, _ in pairs], [state for _, state in pairs]
        self.table.replace(
            self.epoch + ahead,
            self.hashes(keys),
            batch_of(self.schema.keys, keys),
            batch_of(self.schema.values, states),
        )
        if ahead > 0:
            self.epoch += ahead
            self.model = {bits(key): (key, state) for key, state in pairs}

    @precondition(lambda self: self.epoch >= 0)
    @rule(data=st.data(), at=st.sampled_from(["remove", "write", "_put_values"]))
    def kill_while_writing(self, data: st.DataObject, at: str) -> None:
        change = self.change(data)
        before = [(key, state) for key, state in self.model.values()]

        def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        with self.patch.context() as patch:
            patch.setattr(TableImage, at, dies)
            try:
                self.apply(self.epoch + 1, change)
            except KeyboardInterrupt:
                pass
            else:
                self.note(self.epoch + 1, change)
                return
        self.reopen()
        assert self.table.version in {-1, self.epoch}  # a file that was growing is as it was
        if self.table.version == -1:
            keys, states = [key for key, _ in before], [state for _, state in before]
            self.table.replace(
                self.epoch,
                self.hashes(keys),
                batch_of(self.schema.keys, keys),
                batch_of(self.schema.values, states),
            )

    @rule(data=st.data())
    def run_out_of_space(self, data: st.DataObject) -> None:
        change = self.change(data, max_size=60)

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with self.patch.context() as patch:
            patch.setattr("os.posix_fallocate", full)
            try:
                self.apply(self.epoch + 1, change)
            except StorageFullError:
                return
        self.note(self.epoch + 1, change)

    @invariant()
    def versions_agree(self) -> None:
        assert self.table.version == self.epoch
        expected = {} if self.epoch < 0 else {5: self.epoch}
        assert self.store.versions("operator") == expected

    @invariant()
    def contents_agree(self) -> None:
        hashes, keys, values = self.table.scan()
        expected = {name: bits(state) for name, (_, state) in self.model.items()}
        found = rows_in(keys)
        assert len(set(found)) == len(found) == self.table.num_keys
        assert dict(zip(found, rows_in(values), strict=True)) == expected
        assert hashes.tolist() == self.hashes([self.model[name][0] for name in found]).tolist()

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        asked = [key for key, _ in self.draw(data, 30)]
        names = {bits(key) for key in asked}
        asked += [key for name, (key, _) in self.model.items() if name not in names]
        rows = self.table.find(self.hashes(asked), batch_of(self.schema.keys, asked))
        assert (rows >= 0).tolist() == [bits(key) in self.model for key in asked]
        states = rows_in(self.table.read(rows))
        for key, row, state in zip(asked, rows, states, strict=True):
            if row >= 0:
                assert state == bits(self.model[bits(key)][1])

    @invariant()
    def bytes_agree(self) -> None:
        def size(dtype: pa.DataType, value: Any) -> int:
            if pa.types.is_boolean(dtype):
                return 1
            if not isinstance(value, (str, bytes)) and value is not None:
                return int(dtype.bit_width) // 8
            if value is None:
                try:
                    return int(dtype.bit_width) // 8
                except ValueError:
                    return 0
            return len(value.encode() if isinstance(value, str) else value)

        types = self.types[0] + self.types[1]
        assert self.table.state_bytes == sum(
            size(dtype, value)
            for key, state in self.model.values()
            for dtype, value in zip(types, key + state, strict=True)
        )


def test_a_table_does_what_a_dictionary_does() -> None:
    run_state_machine_as_test(
        TableMachine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=40,
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
        ),
    )
