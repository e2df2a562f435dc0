"""A component of several operators is as far as the one that is furthest behind."""

from __future__ import annotations

from godwit.checkpoint.chains import Chains
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.records import BlockRef, CommitRecord, SegmentRef, StateId
from godwit.engine.outcomes import completeness_of_copies
from godwit.migration.copies import Copies

ONE, TWO = StateId("one", "state"), StateId("two", "state")


def changed(state: StateId, epoch: int, *key_groups: int) -> SegmentRef:
    return SegmentRef(
        operator=state.operator,
        state=state.state,
        flow=0,
        epoch=epoch,
        lane=0,
        kind="changes",
        block=BlockRef(file="blocks/x.blk", offset=0, length=1, checksum=0),
        key_groups=key_groups,
        row_ends=tuple(range(1, len(key_groups) + 1)),
    )


def chains() -> Chains:
    """Key group 0 of both changed in epoch 1; 1 of `ONE` only; 2 of neither."""
    made = Chains(3)
    made.upgrade(0, FlowVersion())
    made.apply(CommitRecord(epoch=0, run_id="r", segments=(changed(ONE, 0, 0), changed(TWO, 0, 0))))
    made.apply(
        CommitRecord(epoch=1, run_id="r", segments=(changed(ONE, 1, 0, 1), changed(TWO, 1, 0)))
    )
    return made


def reach(copies: Copies, reported: dict[StateId, dict[int, int]]) -> dict[int, int]:
    """Reach of the copies at ``a`` after a report of it."""
    return dict(completeness_of_copies([ONE, TWO], {"a": reported}, chains(), copies).get("a", {}))


def test_what_is_held_of_one_operator_is_not_held_of_another() -> None:
    copies = Copies({"one": [ONE], "two": [TWO]})
    copies.record_versions("a", ONE, {0: 1, 1: 1})
    assert copies.versions("a", TWO, 3).tolist() == [-1, -1, -1]
    copies.forget_copies("two", "a", [0])
    assert copies.versions("a", ONE, 3).tolist() == [1, 1, -1]


def test_the_version_of_a_component_is_the_lowest_of_its_states() -> None:
    copies = Copies()
    assert reach(copies, {ONE: {0: 1}, TWO: {0: 0}}) == {0: 0}
    assert reach(copies, {ONE: {0: 1}, TWO: {0: 1}}) == {0: 1}


def test_what_was_reported_before_counts_for_a_state_that_is_not_reported_now() -> None:
    copies = Copies()
    assert reach(copies, {ONE: {0: 1}}) == {0: -1}
    copies.record_versions("a", TWO, {0: 1})
    assert reach(copies, {ONE: {0: 1}}) == {0: 1}


def test_a_state_that_misses_nothing_does_not_hold_the_others_back() -> None:
    assert reach(Copies(), {ONE: {1: 1, 2: -1}}) == {1: 1, 2: -1}
