"""Facts about bringing many key groups forward at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support.key_tables import (
    COUNTS,
    NUM_KEY_GROUPS,
    batch,
    group_of,
    hashes_of,
    held,
    state_in,
)
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.chains import KeyGroupChain
from godwit.checkpoint.entries import EntryLayout, pack_entries
from godwit.checkpoint.hydration import catch_up_copies
from godwit.checkpoint.records import BlockRef, SegmentRef, SnapshotRef, StateId
from godwit.checkpoint.storage import CheckpointStorage
from godwit.store.changes import StateRows
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pytest

STATE = StateId("op", "state")
GROUPS = list(range(NUM_KEY_GROUPS))
KEYS = {g: [f"k{i}" for i in range(2000) if group_of(f"k{i}") == g][:3] for g in GROUPS}


def block_of(entries: Sequence[tuple[str, int | None]]) -> BlockRef:
    """Write entries, in which None stands for a removal, as they travel in a commit record."""
    keys = [key for key, _ in entries]
    counts = [0 if count is None else count for _, count in entries]
    gone = np.array([count is None for _, count in entries], np.bool_)
    rows = StateRows(
        hashes=hashes_of(keys),
        keys=batch(COUNTS.keys, keys),
        values=batch(COUNTS.values, counts, [float(c) for c in counts]),
        removed=gone if gone.any() else None,
    )
    with BlockWriter(CheckpointStorage.open("unused"), epoch=0, name="x") as writer:
        writer.add(encode_batch(pack_entries(rows)))
        (ref,) = writer.close()
    return ref


def segment(epoch: int, changed: Mapping[str, int | None], lane: int = 0) -> SegmentRef:
    entries = sorted(changed.items(), key=lambda entry: group_of(entry[0]))
    groups, counts = np.unique([group_of(key) for key, _ in entries], return_counts=True)
    return segment_ref(
        epoch=epoch,
        lane=lane,
        block=block_of(entries),
        key_groups=tuple(groups.tolist()),
        row_ends=tuple(np.cumsum(counts).tolist()),
    )


def snapshot(key_group: int, version: int, count: int) -> SnapshotRef:
    return snapshot_ref(
        key_group=key_group,
        version=version,
        rows=3,
        block=block_of([(key, count) for key in KEYS[key_group]]),
    )


def bring(
    local: LocalState,
    segments: Sequence[SegmentRef],
    needed: Any,
    keep_up: Any = None,
    *,
    snapshots: Mapping[int, SnapshotRef] | None = None,
    floor: int | Mapping[int, int] = -1,
    chains: Mapping[int, KeyGroupChain] | None = None,
) -> Any:
    """Bring copies forward; key groups in `chains` may be loaded."""
    given = floor if isinstance(floor, int) else 0
    floors = np.full(NUM_KEY_GROUPS, given, np.int64)
    if not isinstance(floor, int):
        floors[list(floor)] = list(floor.values())

    def recover(key_groups: Sequence[int]) -> Mapping[int, KeyGroupChain]:
        assert chains is not None
        return {g: chains[g] for g in key_groups}

    short, _ = catch_up_copies(
        local,
        needed,
        keep_up,
        layout=EntryLayout(name="op", schema=COUNTS),
        storage=CheckpointStorage.open("unused"),
        segments=segments,
        snapshots=snapshots or {},
        floor=floors,
        load=mask(*(chains or ())),
        recover=recover,
        homes=np.zeros(NUM_KEY_GROUPS, np.int32),
    )
    return short


def mask(*key_groups: int) -> Any:
    found = np.zeros(NUM_KEY_GROUPS, np.bool_)
    found[list(key_groups)] = True
    return found


def counts_of(local: LocalState) -> dict[str, int]:
    return {key: row[0] for key, row in held(local).items()}


def test_segments_of_different_key_groups_enter_by_one_call_whatever_their_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    apply = LocalState.apply

    def counted(*arguments: Any) -> None:
        calls.append(1)
        apply(*arguments)

    monkeypatch.setattr(LocalState, "apply", counted)
    segments = [segment(g // 2, dict.fromkeys(KEYS[g], g), lane=g % 2) for g in GROUPS]
    local = state_in(tmp_path)
    assert not bring(local, segments, mask(*GROUPS)).any()
    assert len(calls) == 1
    assert counts_of(local) == {key: g for g in GROUPS for key in KEYS[g]}
    assert local.versions.tolist() == [g // 2 for g in GROUPS]


def test_changes_of_one_key_group_enter_in_order_of_epochs(tmp_path: Path) -> None:
    a, b, c = KEYS[3]
    segments = [
        segment(7, {a: 7, b: None}),
        segment(2, {a: 2, b: 2, c: 2, KEYS[5][0]: 2}),
        segment(4, {a: 4, KEYS[5][0]: None}),
    ]
    local = state_in(tmp_path)
    bring(local, segments, mask(3, 5))
    assert counts_of(local) == {a: 7, c: 2}
    assert local.versions[[3, 5]].tolist() == [7, 4]


def test_what_is_in_already_does_not_enter_again(tmp_path: Path) -> None:
    (a, *_), first = KEYS[3], {KEYS[3][0]: 1}
    bring(state_in(tmp_path), [segment(0, first)], mask(3))
    local, segments = state_in(tmp_path), [segment(0, {a: 99}), segment(1, {a: 2})]
    assert not bring(local, segments, mask(3), floor=0).any()
    assert counts_of(local) == {a: 2}


def test_only_what_is_asked_for_is_brought_forward(tmp_path: Path) -> None:
    both = {key: 1 for g in (3, 5) for key in KEYS[g]}
    local = state_in(tmp_path)
    bring(local, [segment(0, both)], mask(5))
    assert counts_of(local) == dict.fromkeys(KEYS[5], 1)


def test_a_snapshot_takes_the_place_of_what_is_older_and_segments_follow(tmp_path: Path) -> None:
    a, b, c = KEYS[3]
    old = {key: 1 for g in (3, 5) for key in KEYS[g]}
    local = state_in(tmp_path)
    bring(local, [segment(0, old)], mask(3, 5))
    bring(
        local,
        [segment(2, {a: 98}), segment(9, {a: 9, b: None})],
        mask(3, 5),
        snapshots={3: snapshot(3, 6, 6), 5: snapshot(5, 6, 6)},
    )
    assert counts_of(local) == {a: 9, c: 6, **dict.fromkeys(KEYS[5], 6)}


def test_what_is_short_of_the_floor_is_left_cold_or_loaded(tmp_path: Path) -> None:
    (a, *_) = KEYS[3]
    chain = KeyGroupChain(
        state=STATE,
        key_group=3,
        snapshot=snapshot(3, 4, 4),
        segments=(segment(5, {a: 5}),),
        version=5,
    )
    tail = [segment(8, {a: 8, KEYS[5][0]: 8})]
    cold = bring(state_in(tmp_path / "a"), tail, mask(3, 5), floor=5)
    assert np.flatnonzero(cold).tolist() == [3, 5]
    local = state_in(tmp_path / "b")
    assert not bring(local, tail, mask(3, 5), floor={3: 5, 5: -1}, chains={3: chain}).any()
    assert counts_of(local) == {**dict.fromkeys(KEYS[3], 4), a: 5, KEYS[5][0]: 8}


def test_idle_key_groups_keep_up_and_none_is_restored_for_it(tmp_path: Path) -> None:
    here = {key: 1 for g in (3, 5) for key in KEYS[g]}
    local = state_in(tmp_path)
    bring(local, [segment(0, here)], mask(3, 5))
    segments = [
        segment(1, {KEYS[8][0]: 1, KEYS[5][0]: 2}),  # 8 is not here, and was changed long ago
        segment(4, {KEYS[9][0]: 4, KEYS[3][0]: 4}),  # 9 is not here, but it is new
    ]
    bring(
        local,
        segments,
        mask(),
        mask(*GROUPS),
        snapshots={7: snapshot(7, 3, 3)},
        floor={3: 0, 5: 0, 7: -1, 8: -1, 9: -1},
    )
    assert local.versions[[3, 5, 7, 8, 9]].tolist() == [4, 1, -1, -1, 4]
