"""Instructions of lanes: places, key groups they own, chains that bring their state forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from godwit.checkpoint.chains import Chains
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.records import BlockRef, CommitRecord, SegmentRef, SnapshotRef, StateId
from godwit.engine.instructions import (
    operator_instruction,
    places_of,
    state_instruction,
)
from godwit.migration.state import ComponentView
from godwit.model.assignment import even_assignment
from godwit.model.key_groups import key_group_mask

if TYPE_CHECKING:
    from godwit.engine.lane.messages import Place

N = 4
STATE = StateId("totals", "state")
NONE: frozenset[int] = frozenset()


def plan(
    executors: dict[str, int], *, suspended: frozenset[int] = NONE, consume: frozenset[int] = NONE
) -> ComponentView:
    return ComponentView(
        assignment=even_assignment(N, [*executors], [*executors.values()]),
        suspended=suspended,
        load=frozenset({0}),
        waiting=consume,
    )


def places(*names: str) -> tuple[Place, ...]:
    return places_of({"totals": plan(dict.fromkeys(names, 1))})


def block(epoch: int) -> BlockRef:
    return BlockRef(file=f"blocks/{epoch:012d}-a-b.blk", offset=0, length=8, checksum=0)


def segment(epoch: int, *key_groups: int, waiting: bool = False) -> SegmentRef:
    return SegmentRef(
        operator="totals",
        state="" if waiting else "state",
        flow=0,
        epoch=epoch,
        lane=0,
        kind="waiting" if waiting else "changes",
        block=block(epoch),
        key_groups=key_groups,
        row_ends=tuple(range(1, len(key_groups) + 1)),
    )


@pytest.fixture
def chains() -> Chains:
    """Key groups 0 to 2 change in epochs 0 to 2; 0 has a snapshot at 1, and 3 has rows waiting."""
    chains = Chains(N)
    chains.upgrade(0, FlowVersion())
    snapshot = SnapshotRef(
        operator="totals", state="state", flow=0, key_group=0, version=1, rows=1, block=block(2)
    )
    for epoch, segments, snapshots in (
        (0, (segment(0, 0, 1), segment(0, 3, waiting=True)), ()),
        (1, (segment(1, 0, 2),), ()),
        (2, (segment(2, 0, 1), segment(2, 3, waiting=True)), (snapshot,)),
    ):
        chains.apply(CommitRecord(epoch=epoch, run_id="", segments=segments, snapshots=snapshots))
    return chains


def test_a_place_is_a_lane_that_owns_something_of_some_component_in_one_order() -> None:
    found = places_of({"b": plan({"10": 1, "2": 2}), "a": plan({"2": 1, "gone": 1})})
    assert found == (("2", 0), ("2", 1), ("10", 0), ("gone", 0))


def test_a_lane_without_a_key_group_is_no_place() -> None:
    assert len(places_of({"a": plan({"a": 8})})) == N


def test_an_operator_is_told_where_its_key_groups_are_and_which_wait(chains: Chains) -> None:
    told = operator_instruction(
        operator="totals",
        level=1,
        view=plan({"a": 1, "b": 1}, suspended=frozenset({1}), consume=frozenset({3})),
        places=places("a", "b"),
        chains=chains,
        states=[],
        always_load=False,
    )
    assert told.places.tolist() == [0, 1, 0, 1]
    assert told.suspended.tolist() == [False, True, False, False]
    assert told.load.tolist() == [True, False, False, False]
    assert told.resumed.tolist() == [False, False, False, True]
    assert [s.epoch for s in told.waiting] == [0, 2]


def test_an_operator_that_feeds_others_loads_whatever_is_not_suspended(chains: Chains) -> None:
    told = operator_instruction(
        operator="totals",
        level=1,
        view=plan({"a": 1}, suspended=frozenset({1})),
        places=places("a"),
        chains=chains,
        states=[],
        always_load=True,
    )
    assert told.load.tolist() == [True, False, True, True]
    assert told.waiting == ()


def test_what_is_held_is_brought_forward_by_segments_alone(chains: Chains) -> None:
    told = state_instruction(
        state=STATE,
        recorded_as=STATE,
        chains=chains,
        floor=np.array([1, 0, 1, -1]),
        needed=key_group_mask(range(N), N),
    )
    assert sorted(s.epoch for s in told.segments) == [2]
    assert told.snapshots == {}
    assert told.floor.tolist() == [1, 0, 1, -1]


def test_what_is_not_held_starts_from_its_snapshot(chains: Chains) -> None:
    floor = np.array([-1, -1, 1, -1])
    told = state_instruction(
        state=STATE,
        recorded_as=STATE,
        chains=chains,
        floor=floor,
        needed=key_group_mask([0], N),
        to_snapshot=[2],
    )
    assert {g: s.version for g, s in told.snapshots.items()} == {0: 1}
    assert [s.epoch for s in told.segments] == [2]
    assert told.to_snapshot == (2,)
    assert floor.tolist() == [-1, -1, 1, -1]  # the caller's own


def test_what_is_not_wanted_needs_nothing(chains: Chains) -> None:
    told = state_instruction(
        state=STATE,
        recorded_as=STATE,
        chains=chains,
        floor=np.full(N, -1),
        needed=key_group_mask([], N),
    )
    assert (told.segments, told.snapshots) == ((), {})
