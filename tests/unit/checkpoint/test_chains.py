from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint.chains import Chains, rows_of
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.framing import decode_record, encode_record
from godwit.checkpoint.records import (
    BlockRef,
    CommitRecord,
    Manifest,
    SegmentRef,
    SnapshotRef,
    StateId,
    manifest_path,
)
from godwit.model.errors import CheckpointError

STATE = StateId("op", "state")


def block(length: int = 100, data: bytes = b"") -> BlockRef:
    return BlockRef(
        file="blocks/000000000000-x-ab.blk", offset=0, length=length, checksum=0, data=data
    )


def segment(
    epoch: int, *key_groups: int, kind: str = "changes", lane: int = 0, data: bytes = b""
) -> SegmentRef:
    return segment_ref(
        state="state" if kind == "changes" else "",
        epoch=epoch,
        lane=lane,
        kind=kind,
        block=block(data=data),
        key_groups=key_groups,
        row_ends=tuple(range(1, len(key_groups) + 1)),
    )


def snapshot(key_group: int, version: int, length: int = 500) -> SnapshotRef:
    return snapshot_ref(key_group=key_group, version=version, block=block(length))


def record(
    epoch: int,
    *segments: SegmentRef,
    snapshots: tuple[SnapshotRef, ...] = (),
    consumed: tuple[int, ...] = (),
) -> CommitRecord:
    return CommitRecord(
        epoch=epoch,
        run_id="r",
        segments=segments,
        snapshots=snapshots,
        consumed={"op": list(consumed)} if consumed else {},
    )


def chains_after(*records: CommitRecord) -> Chains:
    chains = Chains(4)
    chains.upgrade(0, FlowVersion())
    for each in records:
        chains.check(each)
        chains.apply(each)
    return chains


def epochs(segments: tuple[SegmentRef, ...]) -> list[int]:
    return [s.epoch for s in segments]


def test_rows_of_a_key_group_lie_between_two_ends() -> None:
    three = segment_ref(block=block(), key_groups=(1, 4, 6), row_ends=(3, 3, 10))
    assert [rows_of(three, g) for g in (1, 4, 6, 5)] == [(0, 3), (3, 3), (3, 10), (0, 0)]


def test_a_key_group_that_nobody_wrote_has_an_empty_chain() -> None:
    chain = chains_after(record(0)).chain(STATE, 2)
    assert (chain.snapshot, chain.segments, chain.version) == (None, (), -1)


def test_asking_for_an_operator_does_not_make_it_exist() -> None:
    chains = Chains(4)
    chains.chain(StateId("typo", "state"), 0)
    chains.versions(StateId("typo", "state"))
    assert chains.states == ()


def test_the_version_is_the_last_epoch_with_changes() -> None:
    chains = chains_after(record(0, segment(0, 1)), record(1, segment(1, 1, 2)), record(2))
    assert chains.epoch == 2
    assert chains.versions(STATE).tolist() == [-1, 1, 1, -1]
    assert epochs(chains.chain(STATE, 1).segments) == [0, 1]
    assert epochs(chains.chain(STATE, 2).segments) == [1]


def test_since_gives_only_what_is_missing() -> None:
    chains = chains_after(*(record(e, segment(e, 1)) for e in range(4)))
    assert epochs(chains.chain_since(STATE, 1, 1).segments) == [2, 3]
    assert epochs(chains.chain_since(STATE, 1, 3).segments) == []
    assert epochs(chains.chain_since(STATE, 1, -1).segments) == [0, 1, 2, 3]


def test_a_snapshot_takes_the_place_of_the_segments_it_covers() -> None:
    chains = chains_after(
        record(0, segment(0, 1, 2)),
        record(1, segment(1, 1, 2)),
        record(2, segment(2, 1, 2), snapshots=(snapshot(1, 1),)),
    )
    chain = chains.chain(STATE, 1)
    assert chain.snapshot == snapshot(1, 1)
    assert epochs(chain.segments) == [2]
    assert chain.version == 2
    assert epochs(chains.chain(STATE, 2).segments) == [0, 1, 2]


def test_a_table_that_is_not_behind_the_snapshot_does_not_start_again_from_it() -> None:
    chains = chains_after(
        record(0, segment(0, 1)),
        record(1),
        record(2, segment(2, 1), snapshots=(snapshot(1, 1),)),
    )
    # Nothing changed in epoch 1: a table at version 0 holds all that the snapshot does.
    assert chains.chain_since(STATE, 1, 0).snapshot is None
    assert epochs(chains.chain_since(STATE, 1, 0).segments) == [2]
    assert chains.chain_since(STATE, 1, -1).snapshot is not None


def test_a_snapshot_written_in_the_background_keeps_the_segments_after_it() -> None:
    chains = chains_after(
        *(record(e, segment(e, 1)) for e in range(3)),
        record(3, segment(3, 1), snapshots=(snapshot(1, 1),)),
    )
    assert epochs(chains.chain(STATE, 1).segments) == [2, 3]
    assert chains.chain_since(STATE, 1, 1).snapshot is None
    assert chains.chain_since(STATE, 1, 0).snapshot is not None


def test_an_older_snapshot_does_not_replace_a_newer_one() -> None:
    chains = chains_after(
        record(0, segment(0, 1)),
        record(1, segment(1, 1)),
        record(2, snapshots=(snapshot(1, 1),)),
        record(3, snapshots=(snapshot(1, 0),)),
    )
    assert chains.chain(STATE, 1).snapshot == snapshot(1, 1)


def test_a_snapshot_of_state_that_no_epoch_wrote_is_needed_by_everybody() -> None:
    chains = chains_after(record(0), record(1, snapshots=(snapshot(1, 0),)))
    assert chains.chain_since(STATE, 1, -1).snapshot == snapshot(1, 0)
    assert chains.chain(STATE, 1).version == 0


def test_rows_wait_until_they_are_consumed_and_postpone_the_version() -> None:
    chains = chains_after(
        record(0, segment(0, 1)),
        record(1, segment(1, 1, kind="waiting")),
        record(2, segment(2, 1, kind="waiting")),
    )
    assert chains.chain(STATE, 1).version == 0
    assert epochs(chains.waiting_rows_of("op", 1)) == [1, 2]
    assert chains.waiting_key_groups("op") == [1]
    later = record(3, segment(3, 1), consumed=(1,))
    chains.check(later)
    chains.apply(later)
    assert chains.waiting_rows_of("op", 1) == ()
    assert chains.chain(STATE, 1).version == 3
    assert epochs(chains.chain(STATE, 1).segments) == [0, 3]


def test_bytes_are_shared_out_by_rows() -> None:
    chains = chains_after(
        record(0, segment(0, 0, 1, 2, 3)),
        record(1, segment(1, 1), snapshots=(snapshot(2, 0, length=70),)),
    )
    assert chains.chains_of(STATE).changelog_bytes.tolist() == [25, 125, 0, 25]
    assert chains.chains_of(STATE).snapshot_bytes.tolist() == [0, 0, 70, 0]
    assert chains.chains_of(STATE).num_segments.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (record(2), "the next one is 1"),
        (record(1, segment(0, 1)), "is of epoch 0"),
        (record(1, segment(1, 2, 1)), "in order"),
        (record(1, segment(1, 4)), "does not exist"),
        (record(1, segment(1, 1), segment(1, 1, lane=1)), "two segments change key group 1"),
        (record(1, segment(1, 3)), "rows of epoch 0 wait"),
        (record(1, consumed=(4,)), "key group 4 of 'op' does not exist"),
        (record(1, snapshots=(snapshot(9, 0),)), "key group 9 of 'op/state' does not exist"),
        (msgspec.structs.replace(record(1), flow=1), "of flow version 1 but"),
        (
            record(1, msgspec.structs.replace(segment(1, 0), flow=3)),
            "written under flow version 3, not 0",
        ),
        (record(1, snapshots=(snapshot(1, 2),)), "has version 2"),
        (
            record(1, msgspec.structs.replace(segment(1, 0, 1), row_ends=(2, 1))),
            "go backwards",
        ),
        (record(1, msgspec.structs.replace(segment(1, 0, 1), row_ends=(2,))), "1 ends of rows"),
    ],
)
def test_a_record_that_cannot_be_next_is_refused(wrong: CommitRecord, message: str) -> None:
    chains = chains_after(record(0, segment(0, 3, kind="waiting")))
    with pytest.raises(CheckpointError, match=message):
        chains.check(wrong)


def test_a_manifest_holds_everything() -> None:
    chains = chains_after(
        record(0, segment(0, 0, 1, 2)),
        record(1, segment(1, 0, 1), segment(1, 3, kind="waiting", lane=1)),
        record(2, segment(2, 0), snapshots=(snapshot(0, 1), snapshot(2, 1))),
        record(3, segment(3, 3), consumed=(3,)),
        record(4, segment(4, 2, 3, kind="waiting")),
    )
    manifest = decode_record(encode_record(chains.manifest()), Manifest, path=manifest_path(4))
    restored = Chains.restore(manifest)
    assert restored.epoch == 4
    assert restored.manifest() == chains.manifest()
    for key_group in range(4):
        for version in range(-1, 5):
            expected = chains.chain_since(STATE, key_group, version)
            assert restored.chain_since(STATE, key_group, version) == expected
    for figures in ("version", "snapshot_bytes", "changelog_bytes", "num_segments"):
        now, before = (getattr(of.chains_of(STATE), figures).tolist() for of in (restored, chains))
        assert now == before


def test_a_segment_is_in_a_manifest_once_and_not_at_all_when_nobody_needs_it() -> None:
    chains = chains_after(
        record(0, segment(0, 0, 1)),
        record(1, segment(1, 0, 1)),
        record(2, snapshots=(snapshot(0, 0), snapshot(1, 0))),
    )
    assert epochs(chains.manifest().states[0].segments) == [1]


def test_inline_bytes_of_old_epochs_are_forgotten_and_the_rest_kept() -> None:
    chains = chains_after(
        record(0, segment(0, 0, 1, data=b"old")), record(1, segment(1, 0, data=b"new"))
    )
    chains.forget_inline_bytes(before=1)
    old, new = chains.chain(STATE, 0).segments
    assert (old.block.data, new.block.data) == (b"", b"new")
    assert chains.chain(STATE, 1).segments[0] is old


def test_states_of_one_operator_have_chains_of_their_own() -> None:
    panes = msgspec.structs.replace(segment(0, 1), state="panes")
    chains = chains_after(record(0, segment(0, 1), panes), record(1, segment(1, 1)))
    assert chains.versions(STATE).tolist() == [-1, 1, -1, -1]
    assert chains.versions(StateId("op", "panes")).tolist() == [-1, 0, -1, -1]
    assert chains.states == (StateId("op", "panes"), STATE)


def test_a_flow_version_renames_and_drops_state_and_waiting_rows_at_once() -> None:
    def of(operator: str, written: SegmentRef) -> SegmentRef:
        return msgspec.structs.replace(written, operator=operator)

    chains = chains_after(
        record(0, of("a", segment(0, 1)), of("b", segment(0, 2)), of("c", segment(0, 3))),
        record(1, of("a", segment(1, 0, kind="waiting")), of("c", segment(1, 0, kind="waiting"))),
    )
    chains.upgrade(1, FlowVersion(previous=0, renamed={"a": "b", "b": "a"}, dropped=("c",)))
    assert chains.states == (StateId("a", "state"), StateId("b", "state"))
    assert chains.versions(StateId("b", "state")).tolist() == [-1, 0, -1, -1]
    assert chains.versions(StateId("a", "state")).tolist() == [-1, -1, 0, -1]
    assert (chains.waiting_key_groups("b"), chains.waiting_key_groups("c")) == ([0], [])
    restored = Chains.restore(
        decode_record(encode_record(chains.manifest()), Manifest, path=manifest_path(1))
    )
    assert restored.manifest() == chains.manifest()
    # What was written keeps the name that it was written under.
    assert restored.segments(StateId("b", "state"))[0].operator == "a"


@pytest.mark.parametrize("seed", range(6))
def test_the_tail_of_many_key_groups_is_what_their_chains_say(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.checkpoint.chains._RECENT_EPOCHS", 4)
    rng = np.random.default_rng(seed)
    chains = Chains(8)
    chains.upgrade(0, FlowVersion())
    for epoch in range(40):
        touched = np.flatnonzero(rng.random(8) < 0.4).tolist()
        segments = [
            segment(epoch, *part, lane=lane)
            for lane, part in enumerate((touched[::2], touched[1::2]))
            if part
        ]
        snapshots = [
            snapshot(g, epoch - 1)
            for g in range(8)
            if epoch and rng.random() < 0.05 and chains.versions(STATE)[g] >= 0
        ]
        chains.apply(record(epoch, *segments, snapshots=tuple(snapshots)))
        if epoch % 7 == 0:
            chains.forget_inline_bytes(before=epoch - 3)
        if epoch == 25:
            chains = Chains.restore(chains.manifest())
        floor = np.maximum(rng.integers(-1, epoch + 1, 8), np.where(rng.random(8) < 0.3, -1, 0))
        wanted = rng.random(8) < 0.7
        found, apart = chains.segments_since(STATE, floor, wanted)
        behind = np.flatnonzero((chains.versions(STATE) > floor) & wanted).tolist()
        expected = {
            (s.epoch, s.lane)
            for g in behind
            for s in chains.chain_since(STATE, g, int(floor[g])).segments
        }
        assert {(s.epoch, s.lane) for s in found} == expected
        assert len(found) == len(expected)
        for g in behind:
            assert (g in apart) or chains.chain_since(STATE, g, int(floor[g])).snapshot is None
