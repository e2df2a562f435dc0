from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.chains import KeyGroupChain
from godwit.checkpoint.entries import BatchCache, EntryLayout, read_chain
from godwit.checkpoint.records import BlockRef, SegmentRef, SnapshotRef, StateId
from godwit.checkpoint.storage import CheckpointStorage, LocalStorage
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.store.changes import StateRows

# Users may name their columns as we do, and as we do not expect.
SCHEMA = StateSchema(
    pa.schema([("hash", pa.string()), ("row", pa.float64())]),
    pa.schema([("removed", pa.int64()), ("k0", pa.string())]),
)
LAYOUT = EntryLayout(name="op/state", schema=SCHEMA)

Entry = tuple[int, Any, Any, Any, Any, bool]


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(tmp_path)


def batch(entries: list[Entry], *, with_removed: bool = True) -> pa.RecordBatch:
    fields = [pa.field("hash", pa.int64()), *SCHEMA.keys, *SCHEMA.values]
    if with_removed:
        fields.append(pa.field("removed", pa.bool_()))
    columns = list(zip(*entries, strict=True)) or [()] * 6
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, fields, strict=False)],
        schema=pa.schema(fields),
    )


def write(storage: CheckpointStorage, content: pa.RecordBatch) -> BlockRef:
    with BlockWriter(storage, epoch=0, name="a", inline_limit_bytes=0) as writer:
        writer.add(encode_batch(content))
        return writer.close()[0]


def segment(storage: CheckpointStorage, epoch: int, *parts: list[Entry]) -> SegmentRef:
    ends = [sum(len(p) for p in parts[: i + 1]) for i in range(len(parts))]
    entries = [entry for part in parts for entry in part]
    return segment_ref(
        epoch=epoch,
        block=write(storage, batch(entries)),
        key_groups=tuple(range(len(parts))),
        row_ends=tuple(ends),
    )


def chain(
    *segments: SegmentRef, key_group: int = 0, snapshot: SnapshotRef | None = None
) -> KeyGroupChain:
    return KeyGroupChain(
        state=StateId("op", "state"),
        key_group=key_group,
        snapshot=snapshot,
        segments=segments,
        version=len(segments),
    )


def rows(state: StateRows) -> list[tuple[Any, ...]]:
    columns = [state.hashes.tolist()]
    columns += [column.to_pylist() for column in (*state.keys.columns, *state.values.columns)]
    return list(zip(*columns, strict=True))


def test_the_latest_entry_of_a_key_wins_and_removed_keys_are_gone(
    storage: CheckpointStorage,
) -> None:
    snapshot = snapshot_ref(
        key_group=0,
        rows=3,
        block=write(
            storage,
            batch(
                [(1, "a", 1.0, 10, "x", False), (1, "b", 1.0, 20, "y", False)],
                with_removed=False,
            ),
        ),
    )
    first = segment(storage, 1, [(1, "b", 1.0, 0, None, True), (5, "c", 2.0, 30, "z", False)])
    second = segment(
        storage, 2, [(5, "c", 2.0, 31, None, False), (1, "b", 1.0, 21, "again", False)]
    )
    assert rows(read_chain(storage, chain(first, second, snapshot=snapshot), LAYOUT)) == [
        (1, "a", 1.0, 10, "x"),
        (5, "c", 2.0, 31, None),
        (1, "b", 1.0, 21, "again"),
    ]
    assert len(rows(read_chain(storage, chain(first, snapshot=snapshot), LAYOUT))) == 2


def test_only_the_key_groups_own_rows_are_read(storage: CheckpointStorage) -> None:
    shared = segment(storage, 1, [(0, "a", 0.0, 1, "", False)], [], [(2, "b", 0.0, 2, "", False)])
    assert rows(read_chain(storage, chain(shared, key_group=2), LAYOUT)) == [(2, "b", 0.0, 2, "")]
    assert rows(read_chain(storage, chain(shared, key_group=1), LAYOUT)) == []


def test_keys_are_compared_by_bits_and_null_is_a_key(storage: CheckpointStorage) -> None:
    keys = [("a", 0.0), ("a", -0.0), ("a", math.nan), (None, None), ("a", None), (None, 0.0)]
    written = segment(storage, 1, [(0, *key, i, "", False) for i, key in enumerate(keys)])
    again = segment(storage, 2, [(0, *key, i + 100, "", False) for i, key in enumerate(keys)])
    found = read_chain(storage, chain(written, again), LAYOUT)
    assert found.values.column(0).to_pylist() == [100, 101, 102, 103, 104, 105]


def test_keys_that_share_a_hash_are_two_keys(storage: CheckpointStorage) -> None:
    both = segment(storage, 1, [(7, "a", 0.0, 1, "", False), (7, "b", 0.0, 2, "", False)])
    assert len(rows(read_chain(storage, chain(both, both), LAYOUT))) == 2


def test_no_segments_are_no_rows_of_the_right_types(storage: CheckpointStorage) -> None:
    empty = read_chain(storage, chain(), LAYOUT)
    assert (empty.keys.schema, empty.values.schema) == (SCHEMA.keys, SCHEMA.values)
    assert (len(empty.hashes), empty.keys.num_rows, empty.values.num_rows) == (0, 0, 0)


@pytest.mark.parametrize(
    ("dtype", "value", "other"),
    [
        (pa.bool_(), True, False),
        (pa.int8(), 1, -1),
        (pa.date32(), dt.date(2020, 1, 1), dt.date(2021, 1, 1)),
        (pa.timestamp("us"), dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)),  # noqa: DTZ001 - the type has no zone
        (pa.duration("us"), dt.timedelta(1), dt.timedelta(2)),
        (pa.decimal128(10, 2), Decimal("1.10"), Decimal("1.11")),
        (pa.binary(), b"", b"\0"),
        (pa.binary(2), b"ab", b"cd"),
        (pa.large_string(), "", "x"),
    ],
)
def test_every_type_of_key_is_told_apart(
    storage: CheckpointStorage, dtype: pa.DataType, value: Any, other: Any
) -> None:
    schema = StateSchema(pa.schema([("k", dtype)]), pa.schema([("v", pa.int64())]))
    content = pa.record_batch(
        [pa.array([0] * 5), pa.array([value, other, None, value, None], dtype), pa.array(range(5))],
        names=["hash", "k", "v"],
    )
    written = segment_ref(block=write(storage, content), key_groups=(0,), row_ends=(5,))
    found = read_chain(storage, chain(written, written), EntryLayout(name="op", schema=schema))
    assert found.keys.column(0).to_pylist() == [other, value, None]
    assert found.values.column(0).to_pylist() == [1, 3, 4]


def test_a_segment_that_key_groups_share_is_read_once(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = segment(storage, 1, *([(g, "a", 0.0, g, "", False)] for g in range(3)))
    reads: list[str] = []
    read = LocalStorage.read

    def spy(self: LocalStorage, path: str, offset: int = 0, length: int | None = None) -> object:
        reads.append(path)
        return read(self, path, offset, length)

    monkeypatch.setattr(LocalStorage, "read", spy)
    cache = BatchCache(storage)
    for g in range(3):
        found = read_chain(storage, chain(shared, key_group=g), LAYOUT, cache=cache)
        assert found.values.column(0).to_pylist() == [g]
    assert len(reads) == 1


def test_a_cache_keeps_no_more_than_it_may(storage: CheckpointStorage) -> None:
    first, second = (segment(storage, e, [(0, "a" * 500, 0.0, 1, "", False)]) for e in range(2))
    cache = BatchCache(storage, max_bytes=800)
    assert cache.read(first.block) is cache.read(first.block)
    held = cache.read(first.block)
    cache.read(second.block)
    assert cache.read(first.block) is not held
