"""Facts about the table of one key group: versions, changes, and everything that may go wrong."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.key_tables import (
    BLOBS,
    COUNTS,
    OneKeyGroup,
    batch,
    contents,
    hashes_of,
    look_up,
    put,
)

from godwit.model.errors import EpochFailedError, StateEncodingError, StorageFullError
from godwit.store import table as tables
from godwit.store.changes import EntryRange
from godwit.store.columns import StateSchema
from godwit.store.image import TableImage
from godwit.store.key_hash import keyed_hashes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "000001.table"


def open_table(path: Path, schema: StateSchema = COUNTS) -> OneKeyGroup:
    def lock() -> AbstractContextManager[None]:
        path.parent.mkdir(parents=True, exist_ok=True)
        return nullcontext()

    return OneKeyGroup(path, schema, lock)


def test_a_table_without_a_file_is_empty_at_version_minus_one(path: Path) -> None:
    table = open_table(path)
    assert (table.version, table.num_keys, table.state_bytes) == (-1, 0, 0)
    assert look_up(table, ["a", "b"]) == [None, None]
    assert contents(table) == {}
    assert not path.exists()


def test_applied_changes_are_found_under_their_keys(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.5), "b": (2, 2.5)})
    put(table, 1, {"b": (3, 3.5), "c": (4, 4.5)})
    assert table.version == 1
    assert look_up(table, ["c", "x", "a", "b"]) == [(4, 4.5), None, (1, 1.5), (3, 3.5)]


def test_a_key_without_state_reads_as_zeros(path: Path) -> None:
    table = open_table(path)
    assert table.read(np.array([-1])).to_pylist() == [{"count": 0, "total": 0.0}]
    put(table, 0, {"a": (1, 1.5)})
    assert table.read(np.array([-1, 0])).to_pylist() == [
        {"count": 0, "total": 0.0},
        {"count": 1, "total": 1.5},
    ]


def test_an_epoch_enters_once(path: Path) -> None:
    table = open_table(path)
    put(table, 3, {"a": (1, 1.0)})
    for epoch in (3, 2, -1):
        put(table, epoch, {"a": (9, 9.0), "b": (9, 9.0)}, removed=["c"])
    assert contents(table) == {"a": (1, 1.0)}
    assert table.version == 3


def test_epochs_may_be_left_out_and_may_be_empty(path: Path) -> None:
    table = open_table(path)
    put(table, 5, {})
    assert (table.version, open_table(path).version) == (5, 5)
    put(table, 17, {"a": (1, 1.0)})
    put(table, 40, {})
    assert (table.version, contents(table)) == (40, {"a": (1, 1.0)})


def test_an_epoch_that_only_removes_from_an_empty_table_counts(path: Path) -> None:
    put(open_table(path), 2, {}, removed=["a"])
    assert open_table(path).version == 2


def test_removed_keys_are_gone_and_may_come_back(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.0), "b": (2, 2.0)})
    put(table, 1, {"c": (3, 3.0)}, removed=["a", "never there"])
    assert look_up(table, ["a", "b", "c"]) == [None, (2, 2.0), (3, 3.0)]
    put(table, 2, {"a": (4, 4.0)}, removed=["b", "a' "])
    assert contents(table) == {"a": (4, 4.0), "c": (3, 3.0)}
    put(table, 3, {}, removed=["a", "c"])
    assert (table.num_keys, table.state_bytes, contents(table)) == (0, 0, {})
    assert look_up(table, ["a"]) == [None]


def test_a_key_that_is_removed_twice_is_gone_once(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.0), "b": (2, 2.0)})
    put(table, 1, {}, removed=["a"])
    put(table, 2, {}, removed=["a"])
    assert (table.num_keys, table.state_bytes) == (1, 1 + 16)


def test_a_removed_key_may_come_back_in_the_epoch_that_makes_the_table_grow(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {f"k{i}": (i, 0.0) for i in range(30)})
    put(table, 1, {}, removed=["k3", "k4"])
    many = {f"l{i}": (i, 0.0) for i in range(100)}
    put(table, 2, {"k3": (33, 0.0), **many}, removed=["k5"])
    kept = {f"k{i}": (i, 0.0) for i in range(30) if i not in (4, 5)}
    assert contents(table) == kept | many | {"k3": (33, 0.0)}


def test_a_reopened_table_is_the_same_table(path: Path) -> None:
    put(open_table(path), 0, {f"k{i}": (i, 0.0) for i in range(100)})
    again = open_table(path)
    assert again.version == 0
    assert contents(again) == {f"k{i}": (i, 0.0) for i in range(100)}


def test_a_table_grows_and_keeps_what_it_held(path: Path) -> None:
    table, expected = open_table(path), {}
    for epoch in range(40):
        new = {f"{epoch}-{i}": (epoch, float(i)) for i in range(epoch * 7)}
        put(table, epoch, new)
        expected.update(new)
        assert table.num_keys == len(expected)
    assert contents(table) == expected
    keys = list(expected)[::3]
    assert look_up(table, keys) == [expected[key] for key in keys]


def test_dead_rows_do_not_outlive_growth(path: Path) -> None:
    table = open_table(path)
    for epoch in range(100):
        put(
            table,
            epoch,
            {(f"{epoch}-{i}"): (i, 0.0) for i in range(50)},
            removed=[f"{epoch - 1}-{i}" for i in range(50)],
        )
        assert table.num_keys == 50
    assert path.stat().st_blocks * 512 < 200_000  # 5,000 keys went through


def test_garbage_of_large_state_is_collected(path: Path) -> None:
    table = open_table(path, BLOBS)
    for epoch in range(60):
        put(table, epoch, {i: (bytes([epoch]) * (4000 + i),) for i in range(20)})
    assert contents(table) == {i: (bytes([59]) * (4000 + i),) for i in range(20)}
    assert table.state_bytes == sum(8 + 4000 + i for i in range(20))
    assert path.stat().st_blocks * 512 < 8 * 20 * 4020


def test_a_small_table_whose_state_changes_all_the_time_is_seldom_made_anew(path: Path) -> None:
    table = open_table(path, BLOBS)
    made = 0
    held = None
    for epoch in range(32):
        put(table, epoch, {key: (f"{key} at {epoch}".encode(),) for key in range(100)})
        made += table.table._image.identity != held
        held = table.table._image.identity
    assert made <= 4
    assert contents(table)[7] == (b"7 at 31",)


def test_keys_with_one_hash_are_different_keys(path: Path) -> None:
    table = open_table(path)
    one_hash = np.full(50, 123, np.int64)
    put(table, 0, {f"k{i}": (i, 0.0) for i in range(50)}, hashes=one_hash)
    removed = [f"k{i}" for i in range(25)]
    put(table, 1, {}, removed=removed, hashes=one_hash[:25])
    keys = batch(COUNTS.keys, [f"k{i}" for i in range(50)])
    assert (table.find(keys) >= 0).tolist() == [False] * 25 + [True] * 25
    put(table, 2, {f"k{i}": (i + 100, 0.0) for i in range(20, 70)}, hashes=one_hash)
    assert contents(table) == {f"k{i}": (i + 100, 0.0) for i in range(20, 70)}


def test_null_is_a_key_and_not_the_empty_string(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {None: (1, 1.0), "": (2, 2.0)})
    assert look_up(table, ["", None]) == [(2, 2.0), (1, 1.0)]
    put(table, 1, {}, removed=[None])
    assert contents(table) == {"": (2, 2.0)}


def test_state_may_be_null_and_cease_to_be(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (None, 1.0), "b": (2, None)})
    assert look_up(table, ["a", "b"]) == [(None, 1.0), (2, None)]
    put(table, 1, {"a": (1, None), "b": (2, 2.0)})
    assert look_up(table, ["b", "a"]) == [(2, 2.0), (1, None)]


def test_batches_may_be_slices(path: Path) -> None:
    table = open_table(path)
    keys = batch(COUNTS.keys, ["x", "a", None, "c", "y"]).slice(1, 3)
    values = batch(COUNTS.values, [9, 1, None, 3, 9], [9.0, 1.0, 2.0, None, 9.0]).slice(1, 3)
    removed = np.array([True, False, False, False, True])[1:4]
    table.apply(0, hashes_of(["x", "a", None, "c", "y"])[1:4], keys, values, removed)
    assert contents(table) == {"a": (1, 1.0), None: (None, 2.0), "c": (3, None)}


def test_replace_holds_exactly_the_snapshot(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.0), "b": (2, 2.0)})
    keys, values = batch(COUNTS.keys, ["b", "c"]), batch(COUNTS.values, [3, 4], [3.0, 4.0])
    table.replace(10, hashes_of(["b", "c"]), keys, values)
    assert (table.version, contents(table)) == (10, {"b": (3, 3.0), "c": (4, 4.0)})
    table.replace(9, hashes_of(["x", "y"]), batch(COUNTS.keys, ["x", "y"]), values)
    assert (open_table(path).version, contents(table)) == (10, {"b": (3, 3.0), "c": (4, 4.0)})


def test_a_snapshot_may_be_empty(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.0)})
    table.replace(1, hashes_of([]), batch(COUNTS.keys, []), batch(COUNTS.values, [], []))
    assert (open_table(path).version, contents(table)) == (1, {})


def test_scan_gives_hashes_that_find_its_keys(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {f"k{i}": (i, 0.0) for i in range(300)})
    put(table, 1, {}, removed=[f"k{i}" for i in range(0, 300, 2)])
    hashes, keys, values = table.scan()
    assert table.read(table.find(keys)).equals(values)
    assert hashes.tolist() == hashes_of(keys.column(0).to_pylist()).tolist()


def test_what_was_read_stays_as_it_was(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.0)})
    before, (_, _, values) = table.read(np.array([0])), table.scan()
    put(table, 1, {"a": (2, 2.0)})
    assert before.to_pylist() == values.to_pylist() == [{"count": 1, "total": 1.0}]


# What may go wrong.


def made_anew(table: OneKeyGroup, epoch: int) -> None:
    """Apply an epoch that leaves the table in another file."""
    before, refusals, real = table.table._image, [None], tables.room_in_place

    def grown_room(*arguments: Any) -> Any:
        return refusals.pop() if refusals else real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "room_in_place", grown_room)
        put(table, epoch, {"k0": (0, 0.0)})
    assert table.table._image is not before


def kill_while_writing(monkeypatch: pytest.MonkeyPatch, table: OneKeyGroup, epoch: int) -> None:
    """Let an apply stop half-way, as if its process had been killed."""

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TableImage, "_put_values", dies)
        with pytest.raises(KeyboardInterrupt):
            put(table, epoch, {"a": (9, 9.0), "new": (9, 9.0)})


def test_a_table_that_was_being_written_is_discarded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.0)})
    kill_while_writing(monkeypatch, table, 1)
    assert (open_table(path).version, path.exists()) == (-1, False)


def test_a_kill_during_growth_leaves_the_old_table(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(path)
    put(table, 0, {f"k{i}": (i, 0.0) for i in range(200)})
    put(table, 1, {}, removed=[f"k{i}" for i in range(199)])
    full = {f"l{i}": (i, 0.0) for i in range(100)}
    put(table, 2, full)  # nearly, and half of it dead
    kill_while_writing(monkeypatch, table, 3)
    again = open_table(path)
    assert (again.version, again.num_keys) == (2, 101)
    put(again, 3, {"new": (1, 1.0)})
    assert (again.version, again.num_keys) == (3, 102)


def test_changes_are_not_brought_into_a_table_that_was_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = open_table(path), open_table(path)
    put(table, 0, {"a": (1, 1.0)})
    other.refresh()
    kill_while_writing(monkeypatch, other, 1)
    with pytest.raises(EpochFailedError, match="was at version 0 and has been dropped") as caught:
        put(table, 1, {"a": (2, 2.0)})
    assert caught.value.context["version"] == 0
    assert table.version == -1
    put(table, 1, {"a": (2, 2.0)})  # after starting over
    assert contents(open_table(path)) == {"a": (2, 2.0)}


def test_a_full_disk_leaves_the_table_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, os.strerror(28))

    table = open_table(path)
    put(table, 0, {"a": (1, 1.0)})
    many = {f"k{i}": (i, 0.0) for i in range(1000)}
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StorageFullError):
            put(table, 1, many)
        counts = batch(COUNTS.values, *zip(*many.values(), strict=True))
        with pytest.raises(StorageFullError):
            table.replace(5, hashes_of(many), batch(COUNTS.keys, list(many)), counts)
    assert (table.version, contents(table)) == (0, {"a": (1, 1.0)})
    assert contents(open_table(path)) == {"a": (1, 1.0)}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    put(table, 1, many)
    assert table.num_keys == 1001


def test_an_attempt_that_should_be_dead_changes_nothing(path: Path) -> None:
    zombie = open_table(path)
    put(zombie, 0, {"a": (1, 1.0)})
    lane = open_table(path)
    put(lane, 1, {"a": (2, 2.0)})
    put(lane, 2, {"b": (3, 3.0)})
    put(zombie, 1, {"a": (2, 2.0)})
    put(zombie, 2, {"b": (3, 3.0)})
    assert (lane.version, contents(lane)) == (2, {"a": (2, 2.0), "b": (3, 3.0)})


def test_an_attempt_with_the_old_file_in_memory_changes_nothing(path: Path) -> None:
    zombie = open_table(path)
    put(zombie, 0, {"a": (1, 1.0)})
    old_rows = zombie.find(batch(COUNTS.keys, ["a"]))
    lane = open_table(path)
    made_anew(lane, 1)
    assert zombie.version == 0
    assert zombie.read(old_rows).to_pylist() == [{"count": 1, "total": 1.0}]
    put(zombie, 1, {"z": (9, 9.0)})
    assert (zombie.version, contents(zombie)) == (1, contents(lane))
    put(zombie, 2, {"a": (5, 5.0)})
    assert look_up(lane, ["a"]) == [(5, 5.0)]


def test_an_attempt_that_is_epochs_behind_does_not_turn_a_table_back(path: Path) -> None:
    zombie = open_table(path)
    put(zombie, 0, {"a": (1, 1.0)})
    lane = open_table(path)
    made_anew(lane, 1)
    put(lane, 2, {"k0": (7, 7.0)})
    put(zombie, 1, {"z": (9, 9.0)})
    assert (zombie.version, lane.version) == (2, 2)
    assert look_up(lane, ["k0"]) == [(7, 7.0)]


def counted(path: Path, keys: int) -> tuple[OneKeyGroup, EntryRange]:
    """A table of keys with counts from 0 on, and the first tenth but one of them."""
    table = open_table(path)
    put(table, 0, {f"k{i}": (i, 0.5) for i in range(keys)})
    return table, EntryRange(column=1, end=keys * 9 // 10)


def test_a_table_whose_entries_are_mostly_gone_goes_on_in_the_room_that_it_has(path: Path) -> None:
    table, gone = counted(path, 1000)
    put(table, 1, {f"k{i}": (i, 0.5) for i in range(0, 1000, 7)})
    inode, blocks = path.stat().st_ino, path.stat().st_blocks
    for epoch in range(2, 40):
        table.table.drop(np.array([5]), gone)
        expected = {f"k{i}": (i, 0.5) for i in range(900, 1000)}
        assert contents(table) == expected
        assert contents(open_table(path)) == expected
        put(table, epoch, {f"k{i}": (i, 0.5) for i in range(900)})
        assert table.num_keys == 1000
    assert (path.stat().st_ino, path.stat().st_blocks) == (inode, blocks)


def test_a_table_that_others_read_leaves_entries_behind_in_a_new_file(path: Path) -> None:
    other = OneKeyGroup(path, COUNTS, nullcontext, 6)
    table, gone = counted(path, 1000)
    put(other, 0, {"a": (1, 1.0)})
    rows = other.find(batch(COUNTS.keys, ["a"]))
    inode = path.stat().st_ino
    table.table.drop(np.array([5]), gone)
    assert path.stat().st_ino != inode
    assert other.read(rows).to_pylist() == [{"count": 1, "total": 1.0}]
    table.table.drop(np.array([5, 6]), EntryRange(column=1, end=1000))
    other.refresh()
    assert contents(table) == contents(other) == {}


def test_what_is_read_while_a_table_is_rewritten_does_not_count_and_is_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, gone = counted(path, 1000)
    zombie = open_table(path)
    search = TableImage.search

    def overtaken(*arguments: Any) -> Any:
        found = search(*arguments)
        monkeypatch.undo()
        table.table.drop(np.array([5]), gone)
        return found

    monkeypatch.setattr(TableImage, "search", overtaken)
    with pytest.raises(EpochFailedError, match="rewritten while it was read"):
        zombie.find(batch(COUNTS.keys, ["k1", "k999"]))
    assert look_up(zombie, ["k1", "k999"]) == [None, (999, 0.5)]
    assert table.num_keys == 100


def test_a_kill_while_a_table_is_rewritten_leaves_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, gone = counted(path, 1000)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TableImage, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            table.table.drop(np.array([5]), gone)
    again = open_table(path)
    assert (again.version, contents(again)) == (-1, {})


def test_a_table_notices_that_it_has_a_new_file(path: Path) -> None:
    reader, writer = open_table(path), open_table(path)
    put(writer, 0, {"a": (1, 1.0)})
    assert reader.version == -1
    reader.refresh()
    assert contents(reader) == {"a": (1, 1.0)}
    path.unlink()
    reader.refresh()
    assert (reader.version, contents(reader)) == (-1, {})


@pytest.mark.parametrize("size", [0, 40, 100, 1000, -1])
def test_a_file_cut_short_is_discarded(path: Path, size: int) -> None:
    put(open_table(path), 0, {"a": (1, 1.0)})
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    table = open_table(path)
    assert (table.version, path.exists()) == (-1, False)
    put(table, 1, {"b": (1, 1.0)})
    assert contents(open_table(path)) == {"b": (1, 1.0)}


def test_a_file_that_is_no_table_is_discarded(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"not a table" * 1000)
    assert (open_table(path).version, path.exists()) == (-1, False)


def test_a_table_of_another_schema_is_discarded(path: Path) -> None:
    put(open_table(path), 0, {"a": (1, 1.0)})
    assert (open_table(path, BLOBS).version, path.exists()) == (-1, False)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with few places, so that they are quickly written whole."""
    monkeypatch.setattr(tables, "_HEADROOM", 1)
    monkeypatch.setattr(tables, "_MIN_CAPACITY_ROWS", 1)
    monkeypatch.setattr(tables, "_MIN_CAPACITY_BYTES", 1)


@pytest.mark.usefixtures("small_files")
def test_a_damaged_index_is_an_error_once_and_then_an_empty_table(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {f"k{i}": (i, 0.0) for i in range(20)})
    image = table.table._image
    slots = image.index_slots(image.slots)
    assert np.count_nonzero(slots) == 20
    slots[slots > 0] |= np.uint64(0xFFFF_0000)  # rows that are not there
    with pytest.raises(EpochFailedError, match="is damaged") as caught:
        look_up(open_table(path), [f"k{i}" for i in range(20)])
    assert caught.value.context == {"path": str(path)}
    assert open_table(path).version == -1


@pytest.mark.usefixtures("small_files")
def test_damage_anywhere_is_no_crash(path: Path) -> None:
    schema = StateSchema(pa.schema([("key", pa.string())]), pa.schema([("state", pa.binary())]))
    put(open_table(path, schema), 0, {f"key {i}": (b"x" * i,) for i in range(30)})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    keys = [f"key {i}" for i in range(0, 60, 2)]
    for _ in range(150):
        content = np.frombuffer(whole, np.uint8).copy()
        first = rng.integers(0, len(content) - 64)
        content[first : first + rng.integers(1, 64)] = rng.integers(0, 256)
        path.write_bytes(content.tobytes())
        table = open_table(path, schema)
        hashes, batch_ = hashes_of(keys), batch(schema.keys, keys)
        try:
            table.read(table.find(batch_))
            table.scan()
            table.apply(1, hashes, batch_, batch(schema.values, [b"new"] * 30))
        except EpochFailedError:
            assert open_table(path, schema).version == -1


@pytest.mark.parametrize("cut", [1, 5000, 100_000])
def test_a_file_cut_short_while_it_is_mapped_is_never_believed(path: Path, cut: int) -> None:
    table = open_table(path)
    put(table, 0, {f"k{i}": (i, 0.0) for i in range(20)})
    os.truncate(path, path.stat().st_size - cut)
    for use in (
        lambda: look_up(table, ["k1", "absent"]),
        lambda: table.read(np.array([1])),
        table.scan,
    ):
        with pytest.raises(EpochFailedError, match="its file was cut short"):
            use()
    table.refresh()
    assert (table.version, path.exists()) == (-1, False)


def test_changes_are_not_brought_into_a_file_that_was_cut_short(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.0)})
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(EpochFailedError, match="was at version 0 and has been dropped"):
        put(table, 1, {"a": (2, 2.0)})
    assert open_table(path).version == -1


def test_growth_does_not_give_a_file_its_size_back(path: Path) -> None:
    table = open_table(path)
    put(table, 0, {"a": (1, 1.0)})
    image = table.table._image
    size = path.stat().st_size
    os.truncate(path, 4096)
    image.allocate(image.layout.extents(image.room, image.layout.capacity))
    assert path.stat().st_size < size


def test_keys_that_were_built_to_share_a_hash_are_found_as_fast_as_others(path: Path) -> None:
    table = open_table(path)
    shared = np.full(5000, 42, np.int64)
    put(table, 0, {f"k{i}": (i, 0.0) for i in range(5000)}, hashes=shared)
    image = table.table._image
    slots = image.index_slots(image.slots)
    used = np.flatnonzero(slots)
    runs = np.diff(np.flatnonzero(np.diff(np.concatenate(([-2], used))) != 1), append=len(used))
    assert runs.max() < 50  # slots that a search may have to pass
    assert look_up(table, ["k7", "k4999", "x"]) == [(7, 0.0), (4999, 0.0), None]


def test_no_two_tables_find_rows_by_the_same_hash(tmp_path: Path) -> None:
    tables = [open_table(tmp_path / f"{i}.table") for i in range(2)]
    for table in tables:
        put(table, 0, {"a": (1, 1.0)})
    first, second = (table.table._image for table in tables)
    keys = first.encode_keys(batch(COUNTS.keys, ["a"]))
    assert keyed_hashes(keys, 1, first._secret) != keyed_hashes(keys, 1, second._secret)


@pytest.mark.parametrize(
    ("hashes", "keys", "values", "removed"),
    [(3, 2, 2, None), (2, 3, 2, None), (2, 2, 3, None), (2, 2, 2, 3), (2, 2, 2, 1)],
)
def test_batches_that_do_not_match_are_refused(
    path: Path, hashes: int, keys: int, values: int, removed: int | None
) -> None:
    table = open_table(path)
    with pytest.raises(StateEncodingError, match=r"hashes come with .* Pass one row"):
        table.apply(
            0,
            np.arange(hashes),
            batch(COUNTS.keys, ["k"] * keys),
            batch(COUNTS.values, [1] * values, [1.0] * values),
            None if removed is None else np.zeros(removed, np.bool_),
        )
    assert table.version == -1


def test_a_missing_column_is_refused(path: Path) -> None:
    with pytest.raises(StateEncodingError, match=r"1 rows of 2 columns .expected: key."):
        open_table(path).apply(
            0, np.arange(1), batch(COUNTS.values, [1], [1.0]), batch(COUNTS.values, [1], [1.0])
        )


def test_errors_on_the_way_to_a_disk_are_not_damage(path: Path) -> None:
    table = open_table(path)
    with pytest.raises(pa.ArrowInvalid):
        table.apply(
            0,
            hashes_of(["a"]),
            pa.record_batch([pa.array(["a"])], names=["key"]),
            pa.record_batch([pa.array(["not a number"]), pa.array([1.0])], names=["c", "t"]),
        )
    assert (table.version, path.exists()) == (-1, False)
