"""The stories of the migration protocol, order by order."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest

from godwit.migration import Bounds, LossPolicy, Policy, Strategy
from godwit.migration.messages import (
    Announce,
    Command,
    DropCopies,
    EndMigration,
    LanesRequested,
    MigrationOutcome,
    MigrationRequested,
    RunStarted,
    StartWarming,
    SwitchAssignment,
)
from godwit.migration.outcome import EpochOutcome
from godwit.migration.protocol import MigrationProtocol
from godwit.model import events
from godwit.model.assignment import Assignment
from godwit.model.errors import InvalidPlanError, MigrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

THIRD = Bounds(max_moves=2, max_lag=1)


def assignment(owners: str, executors: str = "ab") -> Assignment:
    """Key group i on the executor that letter i names; one lane each."""
    return Assignment(
        version=0,
        executors=tuple(executors),
        lanes=(1,) * len(executors),
        executor_of=np.array([executors.index(owner) for owner in owners], np.int32),
        lane_of=np.zeros(len(owners), np.int32),
    )


class Stream:
    """A protocol in the middle of a stream: epoch 10 is committed, all copies are at version 9."""

    def __init__(self, owners: str, executors: str = "ab", policy: Policy | None = None) -> None:
        self.protocol = MigrationProtocol(
            RunStarted(
                run_id="r",
                executors=dict.fromkeys(executors, 1),
                assignments={"sum": assignment(owners, executors)},
                committed=9,
            ),
            policy,
        )
        self.epoch = 9
        self.run_epoch()

    def start(self) -> tuple[Command, ...]:
        return self.protocol.begin_epoch(self.epoch + 1)

    def commit(self, waited: tuple[int, ...] = ()) -> tuple[Command, ...]:
        """Commit the running epoch; every lane reports the version it started from."""
        plan = self.running
        held: dict[str, dict[int, int]] = {}
        for g in set(range(plan.assignment.num_key_groups)) - plan.suspended:
            held.setdefault(plan.assignment.executor(g), {})[g] = self.epoch
        self.epoch += 1
        return self.protocol.commit_epoch(
            EpochOutcome(epoch=self.epoch, reach={"sum": held}, waited={"sum": waited})
        )

    def run_epoch(self, waited: tuple[int, ...] = ()) -> tuple[Command, ...]:
        self.running = self.protocol.next_epoch()["sum"]
        return self.start() + self.commit(waited)

    def open_epoch(self) -> tuple[Command, ...]:
        self.running = self.protocol.next_epoch()["sum"]
        return self.start()

    def request(
        self,
        owners: str,
        executors: str = "ab",
        *,
        strategy: Strategy = Strategy.LIVE,
        bounds: Bounds = THIRD,
        state_bytes: Mapping[int, int] | None = None,
    ) -> tuple[Command, ...]:
        return self.protocol.migrate(
            MigrationRequested(
                id="m",
                component="sum",
                target=assignment(owners, executors),
                strategy=strategy,
                bounds=bounds,
                state_bytes=state_bytes or {},
            )
        )

    def warmed(
        self, executor: str, attempt: int, versions: Mapping[int, int]
    ) -> tuple[Command, ...]:
        return self.protocol.warmed(warm(executor, tuple(versions), attempt), versions)

    def lose(self, executor: str) -> tuple[Command, ...]:
        return self.protocol.remove_executor(executor)


def switch(owners: str, executors: str = "ab") -> SwitchAssignment:
    return SwitchAssignment(component="sum", assignment=assignment(owners, executors))


def warm(executor: str, key_groups: tuple[int, ...], attempt: int) -> StartWarming:
    return StartWarming(
        component="sum", executor=executor, key_groups=key_groups, attempt=f"r/{attempt}"
    )


def drop(executor: str, *key_groups: int) -> DropCopies:
    return DropCopies(component="sum", executor=executor, key_groups=key_groups)


def suspend(*key_groups: int) -> Announce:
    return Announce(events.KeyGroupsSuspended, {"component": "sum", "key_groups": key_groups})


def resume(*key_groups: int) -> Announce:
    return Announce(events.KeyGroupsResumed, {"component": "sum", "key_groups": key_groups})


def load(*key_groups: int) -> Announce:
    return Announce(events.KeyGroupsLoaded, {"component": "sum", "key_groups": key_groups})


def hold(reason: str) -> Announce:
    return Announce(events.EpochsHeld, {"reason": reason})


RELEASE = Announce(events.EpochsReleased)


def end(moved: int, withdrawn: int = 0, reason: str = "") -> EndMigration:
    outcome = MigrationOutcome.FINISHED if moved or not withdrawn else MigrationOutcome.CANCELLED
    return EndMigration(
        id="m", component="sum", outcome=outcome, moved=moved, withdrawn=withdrawn, reason=reason
    )


# Live.


def test_a_live_migration_of_a_third_goes_in_mini_migrations() -> None:
    stream = Stream("aaaabbbbb", "abc")
    # b is fuller than a; after one move they are equal, and a has the smaller name.
    assert stream.request("aacabbcbc", "abc") == (warm("c", (2, 6), 1),)
    assert stream.run_epoch() == ()
    # Both switch together; room for the last one appears in the same step.
    assert stream.warmed("c", 1, {2: 11, 6: 11}) == (
        switch("aacabbcbb", "abc"),
        warm("c", (8,), 2),
    )
    assert stream.run_epoch() == (drop("a", 2), drop("b", 6))
    assert stream.warmed("c", 2, {8: 12}) == (switch("aacabbcbc", "abc"),)
    assert stream.run_epoch() == (drop("b", 8), end(moved=3))
    assert stream.protocol.view().components["sum"].migration is None


def test_the_order_of_a_plan_is_kept() -> None:
    protocol = Stream("aaaabbbbb", "abc").protocol
    target = assignment("aacabbcbc", "abc")
    # By load alone, 2 and 6 would go first.
    fact = MigrationRequested(id="m", component="sum", target=target, bounds=THIRD, order=(8, 2, 6))
    assert protocol.migrate(fact) == (warm("c", (2, 8), 1),)


def test_a_report_during_an_epoch_switches_at_its_end() -> None:
    stream = Stream("aabb")
    stream.request("abbb")
    stream.open_epoch()
    assert stream.warmed("b", 1, {1: 10}) == ()
    assert stream.commit() == (switch("abbb"),)


def test_a_report_during_an_epoch_that_aborts_switches_at_the_abort() -> None:
    stream = Stream("aabb")
    stream.request("abbb")
    stream.open_epoch()
    stream.warmed("b", 1, {1: 10})
    assert stream.protocol.abort_epoch(11) == (switch("abbb"),)


def test_a_copy_that_fell_behind_catches_up_in_another_round() -> None:
    stream = Stream("aabb")
    stream.request("abbb")
    stream.run_epoch()
    stream.run_epoch()
    assert stream.warmed("b", 1, {1: 10}) == (warm("b", (1,), 2),)
    assert stream.warmed("b", 2, {1: 12}) == (switch("abbb"),)


def test_a_copy_that_never_catches_up_is_loaded_after_the_last_round() -> None:
    stream = Stream("aabb")
    stream.request("abbb", bounds=Bounds(max_lag=0, max_rounds=2))
    stream.run_epoch()
    assert stream.warmed("b", 1, {1: 10}) == (warm("b", (1,), 2),)
    stream.run_epoch()
    assert stream.warmed("b", 2, {1: 11}) == (switch("abbb"), load(1))
    assert stream.protocol.next_epoch()["sum"].load == {1}
    stream.run_epoch()
    assert stream.protocol.next_epoch()["sum"].load == frozenset()


def test_a_part_of_an_attempt_switches_before_the_rest() -> None:
    stream = Stream("aabb")
    assert stream.request("bbbb") == (warm("b", (0, 1), 1),)
    assert stream.warmed("b", 1, {1: 10}) == (switch("abbb"),)
    assert stream.warmed("b", 1, {0: 10}) == (switch("bbbb"),)


def test_bytes_in_flight_are_bounded_and_the_too_large_move_alone() -> None:
    stream = Stream("aaabbb")
    sizes = {0: 4, 1: 6, 2: 99}
    bounds = Bounds(max_bytes=10, max_lag=1)
    assert stream.request("bbbbbb", bounds=bounds, state_bytes=sizes) == (warm("b", (0, 1), 1),)
    assert stream.warmed("b", 1, {0: 10}) == (switch("baabbb"),)
    assert stream.warmed("b", 1, {1: 10}) == (switch("bbabbb"), warm("b", (2,), 2))


def test_a_young_stream_switches_without_warming() -> None:
    protocol = MigrationProtocol(
        RunStarted(run_id="r", executors={"a": 1, "b": 1}, assignments={"sum": assignment("aaab")})
    )
    request = MigrationRequested(id="m", component="sum", target=assignment("abab"))
    assert protocol.migrate(request) == (switch("abab"),)


def test_a_plan_that_changes_nothing_ends_at_once() -> None:
    stream = Stream("aabb")
    assert stream.request("aabb") == (end(moved=0),)
    assert stream.protocol.view().begun_by_hand == {"sum": 1}


def test_a_plan_of_lanes_alone_switches_and_ends_with_the_next_commit() -> None:
    stream = Stream("aabb")
    wider = Assignment(
        version=0,
        executors=("a", "b"),
        lanes=(2, 1),
        executor_of=np.array([0, 0, 1, 1], np.int32),
        lane_of=np.array([1, 0, 0, 0], np.int32),
    )
    fact = MigrationRequested(id="m", component="sum", target=wider)
    assert stream.protocol.migrate(fact) == (SwitchAssignment(component="sum", assignment=wider),)
    assert stream.run_epoch() == (end(moved=0),)


def test_an_emptied_executor_leaves_the_assignment_with_its_last_key_group() -> None:
    stream = Stream("aab")
    stream.request("aaa", "a")
    assert stream.protocol.next_epoch()["sum"].assignment.executors == ("a", "b")
    assert stream.warmed("a", 1, {2: 10}) == (switch("aaa", "a"),)


def test_lanes_change_at_once_and_nothing_is_warmed() -> None:
    stream = Stream("aabb")
    orders = stream.protocol.change_lanes(
        LanesRequested(component="sum", lanes={"a": 2}, lane_of={1: 1})
    )
    assert [type(order) for order in orders] == [SwitchAssignment]
    changed = stream.protocol.next_epoch()["sum"].assignment
    assert changed.lanes == (2, 1)
    assert changed.lane_of.tolist() == [0, 1, 0, 0]


# Disruptive, stop the world.


def test_a_disruptive_migration_switches_everything_and_the_lanes_load() -> None:
    stream = Stream("aaaabb")
    orders = stream.request("bbaabb", strategy=Strategy.DISRUPTIVE, bounds=Bounds(max_moves=1))
    assert orders == (switch("bbaabb"), load(0, 1))
    assert stream.run_epoch() == (drop("a", 0, 1), end(moved=2))


def test_a_disruptive_migration_waits_for_the_running_epoch() -> None:
    stream = Stream("aabb")
    stream.open_epoch()
    assert stream.request("abbb", strategy=Strategy.DISRUPTIVE) == ()
    assert stream.commit() == (switch("abbb"), load(1))


def test_stop_the_world_flushes_moves_everything_and_resumes() -> None:
    stream = Stream("aaaabb")
    stream.open_epoch()
    reason = "migration m of sum moves everything first"
    assert stream.request("bbbabb", strategy=Strategy.STOP_THE_WORLD) == (hold(reason),)
    assert stream.commit() == (warm("b", (0, 1, 2), 1),)
    with pytest.raises(MigrationError, match=reason):
        stream.protocol.next_epoch()
    assert stream.warmed("b", 1, {0: 11, 2: 11}) == ()
    assert stream.warmed("b", 1, {1: 11}) == (switch("bbbabb"), RELEASE)
    assert stream.run_epoch() == (drop("a", 0, 1, 2), end(moved=3))


def test_stop_the_world_releases_epochs_when_its_destination_dies() -> None:
    stream = Stream("aabb", "abc")
    stream.request("aabc", "abc", strategy=Strategy.STOP_THE_WORLD)
    assert stream.lose("c") == (
        switch("aabb"),
        RELEASE,
    )
    assert stream.run_epoch() == (end(0, withdrawn=1, reason="executor c was lost"),)


# Losses.


def test_a_destination_that_dies_leaves_the_unswitched_where_they_are() -> None:
    stream = Stream("aaaa", "ab")
    stream.protocol.add_executor("c", 1)
    stream.request("bbca", "abc", bounds=Bounds(max_moves=3, max_lag=1))
    stream.warmed("c", 2, {2: 10})
    stream.run_epoch()
    # Key groups 0 and 1 were on their way to b; 2 has switched to c and is not concerned.
    assert stream.lose("b") == (switch("aaca", "ac"),)
    assert stream.run_epoch() == (end(1, withdrawn=2, reason="executor b was lost"),)


def test_a_destination_that_dies_after_the_switch_sends_back_what_the_source_still_holds() -> None:
    stream = Stream("aabb", "abc")
    stream.request("aabc", "abc")
    stream.warmed("c", 1, {3: 10})
    assert stream.lose("c") == (switch("aabb"),)
    assert stream.protocol.next_epoch()["sum"].suspended == frozenset()


def test_what_goes_back_to_its_source_need_not_be_loaded_any_more() -> None:
    stream = Stream("aabb", "abc")
    assert stream.request("aabc", "abc", strategy=Strategy.DISRUPTIVE)[-1] == load(3)
    assert stream.lose("c") == (switch("aabb"),)
    assert stream.protocol.next_epoch()["sum"].load == frozenset()


def test_what_lanes_report_of_an_executor_that_died_meanwhile_is_not_believed() -> None:
    stream = Stream("aabb")
    stream.open_epoch()
    stream.lose("b")
    stream.protocol.add_executor("b", 1)
    stream.commit()
    assert stream.warmed("a", 1, {2: 11, 3: 11}) == (resume(2, 3),)
    # The new b has never held key group 2, regardless of the old one's lanes told.
    assert stream.request("aaba") == (warm("b", (2,), 2), switch("aaaa"))


def test_a_source_that_dies_is_replaced_by_the_destination_under_way() -> None:
    stream = Stream("aabb", "abc")
    stream.request("aacb", "abc")
    assert stream.lose("b") == (switch("aacc", "ac"), suspend(2, 3), warm("c", (3,), 2))
    # The attempt that was ordered for the plan now serves the loss.
    assert stream.warmed("c", 1, {2: 10}) == (resume(2),)
    assert stream.warmed("c", 2, {3: 10}) == (resume(3),)
    assert stream.run_epoch() == (end(moved=1),)


def test_rows_of_lost_key_groups_wait_and_are_consumed_by_the_first_epoch_that_can() -> None:
    stream = Stream("aabb")
    assert stream.lose("b") == (switch("aaaa", "a"), suspend(2, 3), warm("a", (2, 3), 1))
    assert stream.run_epoch(waited=(2,)) == ()
    assert stream.run_epoch(waited=(2, 3)) == ()
    # Nothing has been processed since epoch 10, so a copy at 10 is fresh however late it is.
    assert stream.warmed("a", 1, {2: 10, 3: 10}) == (resume(2, 3),)
    assert stream.protocol.next_epoch()["sum"].consume == {2, 3}
    stream.open_epoch()
    stream.protocol.abort_epoch(13)
    assert stream.protocol.next_epoch()["sum"].consume == {2, 3}
    stream.run_epoch()
    assert stream.protocol.next_epoch()["sum"].consume == frozenset()


def test_what_waits_already_is_warmed_first() -> None:
    bounds = Bounds(max_moves=1)
    stream = Stream("aabb", policy=Policy(recovery=bounds))
    assert stream.lose("b")[-1] == warm("a", (2,), 1)
    stream.run_epoch(waited=(3,))
    stream.protocol.add_executor("c", 1)
    # 2 has to start over at c; 3, whose rows wait, goes first.
    assert stream.lose("a")[-1] == warm("c", (3,), 2)


def test_losses_may_be_loaded_instead() -> None:
    stream = Stream("aabb", policy=Policy(on_loss=LossPolicy.LOAD))
    assert stream.lose("b") == (switch("aaaa", "a"), load(2, 3))
    assert stream.protocol.next_epoch()["sum"].load == {2, 3}


def test_a_key_group_lost_in_an_epoch_that_commits_all_the_same_counts_as_processed() -> None:
    stream = Stream("aabb", policy=Policy(recovery=Bounds(max_lag=0)))
    stream.open_epoch()
    assert stream.lose("b")[:2] == (switch("aaaa", "a"), suspend(2, 3))
    stream.commit()
    # Epoch 11 ran for them, so a copy at 10 is too old now.
    assert stream.warmed("a", 1, {2: 10, 3: 11}) == (resume(3), warm("a", (2,), 2))


def test_planned_moves_wait_until_losses_have_recovered() -> None:
    stream = Stream("aabbcc", "abc")
    stream.lose("c")
    assert stream.request("bbbbab", "ab") == ()
    orders = stream.warmed("a", 1, {4: 10}) + stream.warmed("b", 2, {5: 10})
    assert orders == (resume(4), resume(5), warm("b", (0, 1), 3))


def test_no_executor_holds_epochs_until_one_comes() -> None:
    stream = Stream("aabb")
    stream.lose("a")
    assert stream.lose("b") == (hold("no executor is left"),)
    with pytest.raises(MigrationError, match="no executor is left"):
        stream.protocol.next_epoch()
    assert stream.protocol.add_executor("c", 1) == (
        switch("cccc", "c"),
        suspend(2, 3),
        warm("c", (0, 1, 2, 3), 2),
        RELEASE,
    )


def test_an_executor_that_comes_back_under_its_name_comes_back_empty() -> None:
    stream = Stream("aa", "a")
    stream.lose("a")
    orders = stream.protocol.add_executor("a", 1)
    assert orders == (suspend(0, 1), warm("a", (0, 1), 1), RELEASE)


def test_a_lane_that_finds_no_copy_makes_its_key_group_wait() -> None:
    stream = Stream("aabb")
    assert stream.run_epoch(waited=(1,)) == (suspend(1), warm("a", (1,), 1))
    assert stream.warmed("a", 1, {1: 11}) == (resume(1),)
    assert stream.protocol.next_epoch()["sum"].consume == {1}


def test_the_loss_of_an_unknown_executor_means_nothing() -> None:
    assert Stream("aabb").lose("z") == ()


# Reports that fail, fall silent, or come twice.


def test_silence_is_answered_by_another_attempt_with_more_patience() -> None:
    stream = Stream("aabb", policy=Policy(patience=2, max_attempts=3))
    stream.request("abbb")
    orders = [stream.run_epoch() for _ in range(14)]
    assert orders == [
        (),
        (warm("b", (1,), 2),),
        (),
        (),
        (),
        (warm("b", (1,), 3),),
        *[()] * 7,
        (drop("b", 1), end(0, withdrawn=1, reason="warming at b failed")),
    ]


def test_a_failure_is_tried_again_after_the_next_epoch() -> None:
    stream = Stream("aabb")
    stream.request("abbb")
    failed = warm("b", (1,), 1)
    assert stream.protocol.warming_failed(failed, "no room") == ()
    assert stream.run_epoch() == (warm("b", (1,), 2),)
    assert stream.protocol.warming_failed(failed, "no room") == ()
    assert stream.run_epoch() == ()


def test_a_move_that_is_given_up_says_why_its_copies_failed() -> None:
    stream = Stream("aabb", policy=Policy(max_attempts=1))
    stream.request("abbb")
    stream.protocol.warming_failed(warm("b", (1,), 1), "no room")
    assert stream.run_epoch() == (
        drop("b", 1),
        end(0, withdrawn=1, reason="warming at b failed: no room"),
    )


def test_a_suspended_key_group_whose_warming_fails_too_often_is_loaded() -> None:
    stream = Stream("ab", policy=Policy(patience=1, max_attempts=2))
    assert stream.lose("b")[-1] == warm("a", (1,), 1)
    assert stream.run_epoch() == (warm("a", (1,), 2),)
    assert stream.run_epoch() == ()
    assert stream.run_epoch() == (resume(1), load(1))


def test_time_passes_while_epochs_are_held() -> None:
    stream = Stream("aabb", policy=Policy(patience=2))
    stream.request("abbb", strategy=Strategy.STOP_THE_WORLD)
    assert stream.protocol.hold_epoch() == ()
    assert stream.protocol.hold_epoch() == (warm("b", (1,), 2),)


def test_a_stale_report_has_its_unwanted_copies_dropped() -> None:
    stream = Stream("aabb")
    stream.request("abbb")
    assert stream.protocol.cancel("m", "no need") == (
        drop("b", 1),
        EndMigration(
            id="m",
            component="sum",
            outcome=MigrationOutcome.CANCELLED,
            moved=0,
            withdrawn=1,
            reason="no need",
        ),
    )
    assert stream.warmed("b", 1, {1: 10}) == (drop("b", 1),)


def test_a_copy_of_an_older_attempt_at_the_same_place_counts() -> None:
    stream = Stream("aabb", policy=Policy(patience=1))
    stream.request("abbb")
    assert stream.run_epoch() == (warm("b", (1,), 2),)
    assert stream.warmed("b", 1, {1: 11}) == (switch("abbb"),)
    assert stream.warmed("b", 2, {1: 11}) == ()


def test_patience_is_of_seconds_and_not_of_epochs() -> None:
    stream = Stream("aabb", policy=Policy(patience=2, max_attempts=3))
    stream.request("abbb", strategy=Strategy.STOP_THE_WORLD)
    assert [stream.protocol.hold_epoch(0) for _ in range(1000)] == [()] * 1000
    assert stream.protocol.hold_epoch(5) == (warm("b", (1,), 2),)


def test_a_repeated_report_changes_nothing() -> None:
    stream = Stream("aabb")
    stream.request("abbb")
    stream.warmed("b", 1, {1: 10})
    before = stream.protocol.view()
    assert stream.warmed("b", 1, {1: 10}) == ()
    assert stream.protocol.view() == before


def test_a_report_of_an_earlier_run_is_not_believed() -> None:
    stream = Stream("aabb")
    stream.request("abbb")
    earlier = StartWarming(component="sum", executor="b", attempt="q/1", key_groups=(1,))
    assert stream.protocol.warmed(earlier, {1: 10}) == ()
    assert stream.protocol.next_epoch()["sum"].assignment == assignment("aabb")


# Starting on a checkpoint.


def test_a_run_that_resumes_loads_everything_and_replaces_what_is_gone() -> None:
    protocol = MigrationProtocol(
        RunStarted(
            run_id="r",
            executors={"b": 1, "c": 1},
            assignments={"sum": assignment("aabb")},
            committed=9,
            waiting={"sum": [3]},
            state_bytes={"sum": {0: 5, 1: 1}},
        )
    )
    assert protocol.opening == (switch("cbbb", "bc"), load(0, 1), load(2, 3))
    plan = protocol.next_epoch()["sum"]
    assert plan.load == {0, 1, 2, 3}
    assert plan.consume == {3}


def test_a_run_that_resumes_may_warm_in_the_background_instead() -> None:
    protocol = MigrationProtocol(
        RunStarted(
            run_id="r",
            executors={"a": 1, "b": 1},
            assignments={"sum": assignment("aabb")},
            committed=9,
        ),
        Policy(on_start=LossPolicy.SUSPEND),
    )
    assert protocol.opening == (suspend(0, 1, 2, 3), warm("a", (0, 1), 1), warm("b", (2, 3), 2))


def test_a_first_run_has_nothing_to_load() -> None:
    protocol = MigrationProtocol(
        RunStarted(run_id="r", executors={"a": 1}, assignments={"sum": assignment("aa", "a")})
    )
    assert protocol.opening == ()


def test_a_run_without_executors_waits_for_one() -> None:
    protocol = MigrationProtocol(
        RunStarted(
            run_id="r", executors={}, assignments={"sum": assignment("aa", "a")}, committed=9
        )
    )
    assert protocol.opening == (hold("no executor is left"),)
    orders = protocol.add_executor("a", 1)
    assert orders == (load(0, 1), RELEASE)


# Refusals.


def test_a_second_migration_of_a_component_is_refused_with_the_first_ones_name() -> None:
    stream = Stream("aabb")
    stream.request("abbb")
    before = stream.protocol.view()
    with pytest.raises(MigrationError, match=r"migration 'm' is under way\. Wait") as caught:
        stream.request("bbbb")
    assert caught.value.context == {"component": "sum", "migration": "m"}
    assert stream.protocol.view() == before
    assert pickle.loads(pickle.dumps(caught.value)).context == caught.value.context


def test_components_migrate_independently() -> None:
    both = {"count": assignment("aabb"), "sum": assignment("aabb")}
    protocol = MigrationProtocol(
        RunStarted(run_id="r", executors={"a": 1, "b": 1}, assignments=both, committed=9)
    )
    for name in both:
        target = assignment("abbb")
        orders = protocol.migrate(MigrationRequested(id=name, component=name, target=target))
        assert [type(order) for order in orders] == [StartWarming]
    components = protocol.view().components
    assert [components[name].migration for name in both] == ["count", "sum"]


def test_a_plan_onto_a_draining_executor_is_refused_and_one_under_way_is_cut_short() -> None:
    stream = Stream("aaab")
    stream.request("abbb")
    assert stream.protocol.drain("b") == (
        drop("b", 1, 2),
        end(0, withdrawn=2, reason="executor b is draining"),
    )
    with pytest.raises(InvalidPlanError, match="draining"):
        stream.request("aabb")


@pytest.mark.parametrize(
    ("tell", "text"),
    [
        (lambda p: p.commit_epoch(EpochOutcome(epoch=11)), r"11 was committed, but.*\(none\)"),
        (lambda p: p.abort_epoch(11), "Epoch 11 was aborted"),
        (lambda p: p.begin_epoch(10), "Epoch 10 is already committed"),
        (lambda p: p.cancel("x", ""), "no migration 'x'"),
        (
            lambda p: p.change_lanes(LanesRequested(component="max")),
            "no component 'max'. Components are sum",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    tell: Callable[[MigrationProtocol], object], text: str
) -> None:
    stream = Stream("aabb")
    before = stream.protocol.view()
    with pytest.raises(MigrationError, match=text):
        tell(stream.protocol)
    assert stream.protocol.view() == before


def test_no_epoch_starts_while_one_runs() -> None:
    stream = Stream("aabb")
    stream.open_epoch()
    with pytest.raises(MigrationError, match="epoch 11 runs"):
        stream.protocol.begin_epoch(12)


@pytest.mark.parametrize("bound", ["max_moves", "max_bytes", "max_lag", "max_rounds"])
def test_bounds_that_leave_no_room_are_refused_by_name(bound: str) -> None:
    with pytest.raises(InvalidPlanError, match=f"bound {bound} of a migration is -1"):
        Bounds(**{bound: -1})


@pytest.mark.parametrize("name", ["patience", "max_attempts"])
def test_a_policy_without_any_patience_is_refused(name: str) -> None:
    with pytest.raises(InvalidPlanError, match=f"{name} is 0"):
        Policy(**{name: 0})  # type: ignore[arg-type]  # the name is the parameter of the test
