"""Facts about indexes that are made before a lane needs them, in files of the local store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.key_tables import NUM_KEY_GROUPS, group_of
from tests.unit.checkpoint.test_partial_copies import KEYS, counts_of, filled, new_store, none

from godwit.checkpoint import partial_copies, stored_index
from godwit.checkpoint.blocks import read_batch
from godwit.checkpoint.stored_index import PreparedIndex
from godwit.model.errors import CorruptCheckpointError, StorageFullError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.checkpoint.test_partial_copies import History

    from godwit.checkpoint.records import BlockRef

INDEX = "prepared.npz"


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[BlockRef]:
    """The blocks that a lane verifies."""
    refs = list["BlockRef"]()

    def reading(storage: Any, ref: BlockRef) -> Any:
        refs.append(ref)
        return read_batch(storage, ref)

    monkeypatch.setattr("godwit.checkpoint.entries.read_batch", reading)
    return refs


def prepared(root: Path) -> History:
    """A history whose key groups are indexed for the local store."""
    history = filled(root)
    history.write_snapshot(group_of(KEYS[0]))
    history.commit({KEYS[0]: 7})
    history.prepare(new_store(root / "local"))
    return history


def index_of(root: Path) -> Path:
    (path,) = (root / "local").rglob(INDEX)
    return path


def check(history: History, root: Path) -> None:
    """Check that a lane which fetches keys reads what is committed."""
    local = new_store(root / "local")
    history.bring(local, KEYS, none())
    assert (local.bases >= 0).any()
    assert counts_of(local, KEYS) == history.truth


def test_blocks_are_verified_once_and_the_index_goes_with_the_last_partial_copy(
    tmp_path: Path, verified: list[BlockRef]
) -> None:
    history = prepared(tmp_path)
    assert len(verified) == 4
    verified.clear()
    local = new_store(tmp_path / "local")
    history.bring(local, KEYS, none())
    assert counts_of(local, KEYS) == history.truth
    assert not verified
    assert index_of(tmp_path).exists()
    while (local.bases >= 0).any():
        history.bring(local, KEYS, local.versions.copy())
    assert not list((tmp_path / "local").rglob(INDEX))


def test_changes_after_the_index_are_read_too(tmp_path: Path, verified: list[BlockRef]) -> None:
    history = prepared(tmp_path)
    verified.clear()
    history.commit({KEYS[0]: 8, KEYS[1]: None})
    check(history, tmp_path)
    assert [ref.file for ref in verified] == [history.segments[-1].block.file]


def test_a_key_that_was_removed_before_a_newer_snapshot_stays_removed(tmp_path: Path) -> None:
    history = prepared(tmp_path)
    history.commit({KEYS[0]: None})
    history.write_snapshot(group_of(KEYS[0]))
    check(history, tmp_path)
    assert KEYS[0] not in history.truth


def test_an_index_of_other_key_groups_serves_those_that_it_has(tmp_path: Path) -> None:
    history = filled(tmp_path)
    history.prepare(new_store(tmp_path / "local"), range(0, NUM_KEY_GROUPS, 3))
    check(history, tmp_path)


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_that_has_changed_since_is_verified_again(tmp_path: Path, same_size: bool) -> None:
    history = prepared(tmp_path)
    path = tmp_path / "checkpoint" / history.segments[1].block.file
    sound = path.read_bytes()
    damaged = bytes([sound[0] ^ 1]) + sound[1:]
    path.write_bytes(damaged if same_size else sound[:64])
    os.utime(path, ns=(1, 1))  # however coarse the file system's clock is
    with pytest.raises(CorruptCheckpointError, match=path.name):
        check(history, tmp_path)
    path.write_bytes(sound)
    check(history, tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-100], lambda d: d[:200] + b"x" + d[201:], lambda _: b""]
)
def test_a_damaged_index_is_not_used(tmp_path: Path, damage: Any) -> None:
    history, path = prepared(tmp_path), index_of(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert PreparedIndex.load(path.parent) is None
    check(history, tmp_path)


def test_a_damaged_block_is_not_indexed(tmp_path: Path) -> None:
    history = filled(tmp_path)
    path = tmp_path / "checkpoint" / history.segments[1].block.file
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(CorruptCheckpointError, match=path.name):
        history.prepare(new_store(tmp_path / "local"))
    path.write_bytes(sound)
    check(history, tmp_path)


def test_a_writer_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = filled(tmp_path)

    def fail(file: Any, **_: Any) -> None:
        file.write(b"begun")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.savez", fail)
    with pytest.raises(StorageFullError):
        history.prepare(new_store(tmp_path / "local"))
    assert not [path for path in (tmp_path / "local").rglob("*") if path.is_file()]
    monkeypatch.undo()
    check(history, tmp_path)


def test_nothing_is_indexed_that_lanes_have_read_meanwhile(tmp_path: Path) -> None:
    history = filled(tmp_path)
    history.bring(new_store(tmp_path / "local"), None, none())
    history.prepare(new_store(tmp_path / "local"))
    assert not list((tmp_path / "local").rglob(INDEX))


def test_an_index_that_is_late_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, save = filled(tmp_path), PreparedIndex.save

    def late(index: PreparedIndex, directory: Path) -> None:
        history.bring(new_store(tmp_path / "local"), None, none())
        save(index, directory)

    monkeypatch.setattr(PreparedIndex, "save", late)
    history.prepare(new_store(tmp_path / "local"))
    assert not list((tmp_path / "local").rglob(INDEX))


def test_an_index_is_dropped_with_copies_unless_others_are_partial(tmp_path: Path) -> None:
    history = prepared(tmp_path)
    local = new_store(tmp_path / "local")
    history.bring(local, KEYS, none())
    some = np.flatnonzero(local.bases >= 0)
    partial_copies.drop(new_store(tmp_path / "local"), some[:1])
    assert index_of(tmp_path).exists()
    partial_copies.drop(new_store(tmp_path / "local"), some)
    assert not list((tmp_path / "local").rglob(INDEX))


def test_codes_are_mapped_where_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.checkpoint.stored_index._MIN_BYTES", 1)
    built, place = list[bool](), stored_index.in_mapped_file

    def placed(codes: Any, directory: Path | None) -> Any:
        built.append(directory is not None)
        return place(codes, directory)

    monkeypatch.setattr(stored_index, "in_mapped_file", placed)
    history = prepared(tmp_path)
    assert built
    assert all(built)
    index = PreparedIndex.load(index_of(tmp_path).parent, tmp_path)
    assert index is not None
    assert index.parts
    assert not any(part.run.codes.flags.writeable for part in index.parts)
    local = new_store(tmp_path / "local")
    history.bring(local, KEYS, none(), bound=1 << 30)
    assert counts_of(local, KEYS) == history.truth


def test_an_attempt_that_fails_trusts_blocks_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, local = prepared(tmp_path), new_store(tmp_path / "local")

    def fail(*_: Any, **__: Any) -> None:
        raise StorageFullError("The disk is full.")

    monkeypatch.setattr(local, "fill", fail)
    with pytest.raises(StorageFullError):
        history.bring(local, KEYS, none())
    assert partial_copies._known[local].blocks.verified is None


def test_what_another_machine_may_delete_is_not_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = filled(tmp_path)
    monkeypatch.setattr("godwit.checkpoint.storage.is_on_own_disk", lambda _: False)
    history.prepare(new_store(tmp_path / "local"))
    monkeypatch.setattr(partial_copies, "_MAX_BLOCKS", 1)
    monkeypatch.setattr("godwit.checkpoint.storage.is_on_own_disk", lambda _: True)
    history.prepare(new_store(tmp_path / "local"))
    assert not list((tmp_path / "local").rglob(INDEX))
