"""The local store does what dictionaries do, through everything that happens to it.

The model has, for each key group, a dictionary from key to state and the epoch it is at.  Keys of
all types come with hashes that are well spread, few, or all equal; key groups are in one or several
tables, grow, are reopened, replaced from snapshots, dropped, forget a range of entries, and lose
what was being written when their writer was killed, and no more than that.
"""

from __future__ import annotations

import math
import shutil
import struct
import tempfile
import zlib
from datetime import UTC, date, datetime, timedelta
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
    rule,
    run_state_machine_as_test,
)
from tests.support.index_steps import index_grows_in_steps_of_two
from tests.support.rounds import rounds

from godwit.model.errors import StorageFullError
from godwit.store.changes import Changes, EntryRange, StateRows
from godwit.store.columns import StateSchema
from godwit.store.image import TableImage
from godwit.store.index import HashIndex
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from collections.abc import Iterable

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


NUM_KEY_GROUPS = 4
ALL = np.arange(NUM_KEY_GROUPS)


class StoreMachine(RuleBasedStateMachine):
    """Some key groups beside as many dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="godwit-"))
        self.epochs = np.full(NUM_KEY_GROUPS, -1, np.int64)
        self.models: list[dict[Key, tuple[Key, State]]] = [{} for _ in ALL]
        self.patch = pytest.MonkeyPatch()

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.root)

    @initialize(
        keys=st.lists(st.sampled_from(TYPES), min_size=1, max_size=3),
        values=st.lists(st.sampled_from(TYPES), min_size=1, max_size=3),
        distinct_hashes=st.sampled_from([1, 3, 2**60]),
        tables=st.sampled_from([1, 1, 3]),
        in_steps=st.booleans(),
        moments=st.sampled_from([True, True, False]),
    )
    def start(
        self,
        keys: list[pa.DataType],
        values: list[pa.DataType],
        distinct_hashes: int,
        tables: int,
        *,
        in_steps: bool,
        moments: bool,
    ) -> None:
        if in_steps:
            index_grows_in_steps_of_two(self.patch)
        keys = [*keys, pa.int64()] if moments else keys
        self.types = keys, values
        self.distinct_hashes = distinct_hashes
        self.homes = ALL.astype(np.int32) % tables
        self.schema = StateSchema(
            pa.schema([(f"k{i}", t) for i, t in enumerate(keys)]),
            pa.schema([(f"v{i}", t) for i, t in enumerate(values)]),
        )
        self.reopen()

    @rule()
    def reopen(self) -> None:
        self.state = LocalState(self.root, "operator", self.schema, NUM_KEY_GROUPS)

    def hash_of(self, key: Key) -> int:
        text = repr(bits(key)).encode()
        mixed = (zlib.crc32(text) << 32 | zlib.crc32(text[::-1])) % self.distinct_hashes
        return mixed - (1 << 59)

    def group_of(self, key: Key) -> int:
        return self.hash_of(key) % NUM_KEY_GROUPS

    def draw(self, data: st.DataObject, max_size: int) -> list[tuple[Key, State]]:
        """Draw keys, each once, with states, ordered by key group."""
        pairs = st.tuples(rows_of(self.types[0]), rows_of(self.types[1]))
        drawn = data.draw(st.lists(pairs, max_size=max_size, unique_by=lambda pair: bits(pair[0])))
        return sorted(drawn, key=lambda pair: self.group_of(pair[0]))

    def changes(
        self,
        pairs: list[tuple[Key, State]],
        groups: Iterable[int],
        epochs: npt.NDArray[np.int64],
        removed: npt.NDArray[np.bool_] | None = None,
    ) -> Changes:
        """Rows of `groups`, which are all that `pairs` belong to, and maybe more."""
        chosen = np.array(sorted(groups), np.int64)
        keys = [key for key, _ in pairs]
        of_rows = [self.group_of(key) for key in keys]
        return Changes(
            key_groups=chosen,
            ends=np.searchsorted(of_rows, chosen, side="right").astype(np.int64),
            epochs=epochs[chosen],
            rows=StateRows(
                hashes=np.array([self.hash_of(key) for key in keys], np.int64),
                keys=batch_of(self.schema.keys, keys),
                values=batch_of(self.schema.values, [state for _, state in pairs]),
                removed=removed,
            ),
        )

    def drawn_changes(
        self, data: st.DataObject, ahead: int, max_size: int = 12
    ) -> tuple[list[tuple[Key, State]], Changes]:
        """Draw one epoch's changes of some key groups, or of all of them."""
        pairs = self.draw(data, max_size)
        groups = {self.group_of(key) for key, _ in pairs}
        groups |= set(data.draw(st.lists(st.sampled_from(ALL.tolist()), max_size=2)))
        removed = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=len(pairs))))
        mask = None if removed is None else np.array(removed[: len(pairs)], np.bool_)
        return pairs, self.changes(pairs, groups, self.epochs + ahead, mask)

    def apply(self, changes: Changes) -> None:
        self.state.refresh(changes.key_groups)
        self.state.apply(changes, self.homes)

    def note(self, pairs: list[tuple[Key, State]], changes: Changes) -> None:
        """Do to the models what was done to the store."""
        self.epochs[changes.key_groups] = changes.epochs
        for i, (key, state) in enumerate(pairs):
            model = self.models[self.group_of(key)]
            if changes.rows.removed is not None and changes.rows.removed[i]:
                model.pop(bits(key), None)
            else:
                model[bits(key)] = (key, state)

    @rule(data=st.data(), ahead=st.integers(1, 3), many=st.booleans())
    def apply_some_epoch(self, data: st.DataObject, ahead: int, *, many: bool) -> None:
        self.apply_an_epoch(data, ahead, many=many)

    def apply_an_epoch(self, data: st.DataObject, ahead: int, *, many: bool) -> None:
        pairs, changes = self.drawn_changes(data, ahead, 150 if many else 12)
        self.apply(changes)
        self.note(pairs, changes)

    @rule(data=st.data(), ago=st.integers(0, 3))
    def apply_an_old_epoch_again(self, data: st.DataObject, ago: int) -> None:
        self.apply(self.drawn_changes(data, -ago)[1])

    @rule(data=st.data(), ahead=st.integers(-1, 5))
    def replace_from_snapshots(self, data: st.DataObject, ahead: int) -> None:
        pairs = self.draw(data, 40)
        groups = {self.group_of(key) for key, _ in pairs} | {2}
        contents = self.changes(pairs, groups, self.epochs + ahead)
        self.state.refresh(contents.key_groups)
        self.state.replace(contents, self.homes)
        if ahead > 0:
            for group in groups:
                self.models[group] = {}
            self.note(pairs, contents)

    @rule(group=st.sampled_from(ALL.tolist()))
    def drop(self, group: int) -> None:
        self.state.drop(np.array([group]))
        self.epochs[group] = -1
        self.models[group] = {}

    @rule(
        data=st.data(),
        groups=st.sampled_from([ALL.tolist(), ALL.tolist(), [1], [0, 2, 3]]),
        killed_at=st.sampled_from([None, None, None, None, "remove", "write"]),
    )
    def expire(self, data: st.DataObject, groups: list[int], killed_at: str | None) -> None:
        types = [*self.types[0], *self.types[1]]
        timed = [i for i, t in enumerate(types) if t == pa.int64() or pa.types.is_timestamp(t)]
        if not timed:
            return
        self.apply_an_epoch(data, 1, many=True)
        column = data.draw(st.sampled_from(timed))
        entries = [entry for model in self.models for entry in model.values()]
        moments = sorted(self.moment((*key, *state)[column]) for key, state in entries)
        # Of most of the entries that there are, or of any.
        end = data.draw(st.sampled_from([*moments[len(moments) // 2 :], 1, 2**62]))
        part, chosen = EntryRange(column=column, end=end), np.array(sorted(groups), np.int64)
        self.reopen()
        self.state.refresh(ALL)
        with self.patch.context() as patch:
            if killed_at is not None:
                patch.setattr(TableImage, killed_at, self.dies)
            try:
                self.state.expire(chosen, part)
            except KeyboardInterrupt:
                killed = True
            else:
                killed = False
        if killed:
            self.reopen()
            found = self.state.refresh(ALL)
            for group in np.flatnonzero(found != self.epochs).tolist():
                assert group in groups
                self.epochs[group], self.models[group] = -1, {}
            self.state.expire(chosen, part)  # of what is left, some may still have it
        for group in groups:
            self.models[group] = {
                name: (key, state)
                for name, (key, state) in self.models[group].items()
                if self.moment((*key, *state)[column]) >= end
            }

    @staticmethod
    def moment(value: Any) -> int:
        """Stored value of an integer or an event time."""
        if isinstance(value, datetime):
            return int((value - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
        return value or 0

    @staticmethod
    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    @staticmethod
    def moves_half(image: TableImage, slots: int, moved: int, until: int) -> None:
        smaller = image.index_slots(slots // 2)
        HashIndex(image.index_slots(slots)).copy_from(smaller, moved, (moved + until) // 2)
        raise KeyboardInterrupt

    @rule(
        data=st.data(),
        at=st.sampled_from(["remove", "write", "_put_values", "enlarge_index", "_move_entries"]),
    )
    def kill_while_writing(self, data: st.DataObject, at: str) -> None:
        pairs, changes = self.drawn_changes(data, 1, 12 if at != "_move_entries" else 60)

        with self.patch.context() as patch:
            patch.setattr(TableImage, at, self.moves_half if at == "_move_entries" else self.dies)
            try:
                self.apply(changes)
            except KeyboardInterrupt:
                pass
            else:
                self.note(pairs, changes)
                return
        self.reopen()
        self.notice_what_a_kill_left(pairs, changes)

    def notice_what_a_kill_left(self, pairs: list[tuple[Key, State]], changes: Changes) -> None:
        """Each key group is as it was, or (those being written) gone or as it was to become."""
        found = self.state.refresh(ALL)
        done = np.isin(ALL, changes.key_groups)
        for group in ALL[~done].tolist():
            assert found[group] == self.epochs[group]
        became = self.epochs.copy()
        became[changes.key_groups] = changes.epochs
        for group in ALL[done].tolist():
            if found[group] == -1 != self.epochs[group]:
                self.epochs[group], self.models[group] = -1, {}
            elif found[group] != self.epochs[group]:  # another table than the one that was killed
                assert found[group] == became[group]
                mask = changes.key_groups == group
                mine = [pair for pair in pairs if self.group_of(pair[0]) == group]
                self.note(mine, changes.where(mask))

    @rule(data=st.data())
    def run_out_of_space(self, data: st.DataObject) -> None:
        pairs, changes = self.drawn_changes(data, 1, 60)

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with self.patch.context() as patch:
            patch.setattr("os.posix_fallocate", full)
            try:
                self.apply(changes)
            except StorageFullError:
                self.notice_what_a_kill_left(pairs, changes)
                return
        self.note(pairs, changes)

    @invariant()
    def versions_agree(self) -> None:
        assert self.state.refresh(ALL).tolist() == self.epochs.tolist()

    @invariant()
    def contents_agree(self) -> None:
        self.state.refresh(ALL)
        found = self.state.scan(ALL)
        names = rows_in(found.rows.keys)
        models = {name: entry for model in self.models for name, entry in model.items()}
        expected = {name: bits(state) for name, (_, state) in models.items()}
        assert len(set(names)) == len(names)
        assert dict(zip(names, rows_in(found.rows.values), strict=True)) == expected
        assert found.rows.hashes.tolist() == [self.hash_of(models[name][0]) for name in names]
        groups = np.repeat(found.key_groups, np.diff(found.ends, prepend=0)).tolist()
        assert groups == [self.group_of(models[name][0]) for name in names]

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        models = {name: entry for model in self.models for name, entry in model.items()}
        asked = [key for key, _ in self.draw(data, 30)]
        names = {bits(key) for key in asked}
        asked += [key for name, (key, _) in models.items() if name not in names]
        groups = np.array([self.group_of(key) for key in asked], np.int64)
        self.state.refresh(ALL)
        known, values = self.state.look_up(batch_of(self.schema.keys, asked), groups)
        assert known.tolist() == [bits(key) in models for key in asked]
        for key, is_known, state in zip(asked, known, rows_in(values), strict=True):
            if is_known:
                assert state == bits(models[bits(key)][1])

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
        self.state.refresh(ALL)
        assert self.state.state_bytes(ALL).tolist() == [
            sum(
                size(dtype, value)
                for key, state in model.values()
                for dtype, value in zip(types, key + state, strict=True)
            )
            for model in self.models
        ]


def test_the_store_does_what_dictionaries_do() -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=rounds(6, 24),
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
        ),
    )
