"""An instruction in parts says to each lane what the whole one says."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.checkpoint.records import BlockRef, SegmentRef, SnapshotRef, StateId
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.lane.messages import (
    EpochInstruction,
    InstructionParts,
    OperatorInstruction,
    StateInstruction,
)

if TYPE_CHECKING:
    from pathlib import Path

STATE = StateId("sums", "sums")
BLOCK = BlockRef(file="", offset=0, length=8, checksum=0, data=b"12345678")
MUCH = BlockRef(file="", offset=0, length=100_000, checksum=0, data=bytes(100_000))


def segment(
    *key_groups: int, epoch: int = 4, kind: str = "changes", block: BlockRef = BLOCK
) -> SegmentRef:
    return SegmentRef(
        operator="sums",
        state="sums" if kind == "changes" else "",
        flow=0,
        epoch=epoch,
        lane=0,
        kind="waiting" if kind == "waiting" else "changes",
        block=block,
        key_groups=key_groups,
        row_ends=tuple(range(1, len(key_groups) + 1)),
    )


def snapshot(key_group: int) -> SnapshotRef:
    return SnapshotRef(
        operator="sums",
        state="sums",
        flow=0,
        key_group=key_group,
        version=2,
        rows=1,
        block=BLOCK,
    )


def instruction_of(root: Path) -> EpochInstruction:
    """Executors a (two lanes), b and c, of which c owns key group 9 alone."""
    places = [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    masks = np.zeros((3, 64), np.bool_)
    masks[0, 3], masks[1, 1:], masks[2, 4] = True, True, True
    place_of = np.repeat(np.arange(3, dtype=np.int32), [2, 4, 58])
    place_of[9] = 3
    return EpochInstruction(
        epoch=5,
        flow=0,
        run_id="run",
        places=tuple(places),
        operators=(
            OperatorInstruction(
                level=1,
                places=place_of,
                states=(
                    StateInstruction(
                        state=STATE,
                        recorded_as=STATE,
                        floor=np.arange(64, dtype=np.int64) - 1,
                        segments=(segment(0, 1), segment(5, 6, epoch=3), segment(7, 8)),
                        snapshots={1: snapshot(1), 30: snapshot(30)},
                        to_snapshot=(2, 9, 40),
                    ),
                ),
                suspended=masks[0],
                load=masks[1],
                whole=masks[2],
                waiting=(segment(4, kind="waiting"), segment(3, 20, kind="waiting")),
                resumed=masks[2],
                waiting_from={4: 3},
            ),
        ),
        storage=CheckpointStorage.open(str(root)),
        local_dir=None,
        inline_bytes=100,
        compression=None,
    )


def test_a_lane_gets_what_concerns_key_groups_of_its_executor(tmp_path: Path) -> None:
    whole = instruction_of(tmp_path)
    parts = pickle.loads(pickle.dumps(InstructionParts.of(whole)))
    (own,) = parts.for_place(0).operators
    (state,) = own.states
    assert state.segments == (segment(0, 1), segment(5, 6, epoch=3))
    assert state.snapshots == {1: snapshot(1)}
    assert state.to_snapshot == (2,)
    assert own.waiting == (segment(4, kind="waiting"), segment(3, 20, kind="waiting"))
    (state,) = parts.for_place(2).operators[0].states
    assert state.segments == (segment(5, 6, epoch=3), segment(7, 8))
    assert state.to_snapshot == (40,)
    (own,) = parts.for_place(3).operators
    assert (own.states[0].segments, own.states[0].to_snapshot, own.waiting) == ((), (9,), ())
    assert parts.for_place(0) is parts.for_place(1)  # unpacked once


def test_routes_and_own_floors_are_those_of_the_whole(tmp_path: Path) -> None:
    whole = instruction_of(tmp_path)
    parts = pickle.loads(pickle.dumps(InstructionParts.of(whole)))
    assert parts.without_states.epoch == 5
    assert parts.without_states.places == whole.places
    (of_all,) = whole.operators
    for place in range(4):
        (own,) = parts.for_place(place).operators
        for name in ("places", "suspended", "load", "resumed"):
            packed, expected = getattr(own, name), getattr(of_all, name)
            assert packed.dtype == expected.dtype
            assert packed.tolist() == expected.tolist()
        assert own.waiting_from == {4: 3}
        executor, _ = whole.places[place]
        here = np.array([whole.places[p][0] == executor for p in of_all.places.tolist()])
        floor = own.states[0].floor
        assert floor[here].tolist() == of_all.states[0].floor[here].tolist()
        assert (floor[~here] > 64).all()  # nothing there is brought forward


def test_what_one_executor_is_sent_does_not_grow_with_what_others_wrote(tmp_path: Path) -> None:
    whole = instruction_of(tmp_path)
    (own,) = whole.operators
    much = segment(7, 8, block=MUCH)
    more = replace(
        whole,
        operators=(replace(own, states=(replace(own.states[0], segments=(much,)),)),),
    )
    parts = InstructionParts.of(more)
    assert len(pickle.dumps(parts.for_executor("a"))) < 10_000
    assert len(pickle.dumps(parts.for_executor("b"))) > 100_000
