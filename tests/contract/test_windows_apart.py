"""Windows whose key groups migrate instantly, smoothly and otherwise, against plain Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from tests.contract.windows_apart import History, WindowsApart, expected

from godwit.api.declarations import Identity
from godwit.checkpoint.commit_log import CommitLog
from godwit.migration import Strategy
from godwit.model.errors import (
    CheckpointError,
    CheckpointMismatchError,
    InvalidPlanError,
    MigrationError,
)
from godwit.model.events import KeyGroupsWarmed
from godwit.ops.edits import drop_operator, rename_operator
from godwit.plan.explain import UserNames
from godwit.runtime.placement import QueryPlacement

if TYPE_CHECKING:
    from pathlib import Path


def taken(run: WindowsApart, component: str = "w_second") -> set[int]:
    """Key groups whose rows a component takes."""
    return set(run.view.components[component].takes or ())


def turned(run: WindowsApart) -> History:
    """Let a stream run until its rows go to second slots."""
    history = History(run, 9)
    for _ in range(3):
        history.epoch(30)
    run.send("w", dict.fromkeys(range(16), "c"), Strategy.INSTANT)
    history.epoch(30)
    assert taken(run)
    return history


def test_an_instant_migration_moves_no_state_and_its_old_slot_is_free_again(
    tmp_path: Path,
) -> None:
    run = WindowsApart(tmp_path)
    history = History(run, 1)
    for _ in range(4):
        history.epoch(40)
    before = run.view.components["w"].assignment
    moved = [g for g in range(16) if before.executor(g) != "c"]
    migration = run.send("w", dict.fromkeys(moved, "c"), Strategy.INSTANT)
    view = run.view.components
    assert view["w_second"].takes == frozenset(moved)
    assert view["w"].assignment.executor_of.tolist() == before.executor_of.tolist()
    assert {view["w_second"].assignment.executor(g) for g in moved} == {"c"}
    assert not view["w_second"].transfers
    assert not any(isinstance(event, KeyGroupsWarmed) for event in run.events)
    history.epoch(40)
    ended = run.ended(migration)
    assert ended is not None
    assert ended.moved == len(moved)
    record = run.log.latest
    assert record is not None
    assert {slot[0]: slot[1] for slot in record.slots["w"]} == dict.fromkeys(moved, 1)
    written = {segment.operator: set(segment.key_groups) for segment in record.segments}
    assert written["w_second"] <= set(moved)
    assert not written["w"] & set(moved)
    twice = 0
    for _ in range(12):
        history.epoch(30)
        twice += sum(run.outcomes[-1].held_twice.values())
    assert twice > 0  # keys that both slots held, until their windows were over
    first = run.flow.operator("w").states[0]
    assert run.outcomes[-1].empty[first] >= set(moved)
    run.send("w_second", dict.fromkeys(moved[:3], "a"), Strategy.INSTANT)
    assert taken(run, "w") >= set(moved[:3])
    history.end()
    assert run.windows == expected(history.rows)


def test_users_see_one_component_and_move_its_key_groups_from_whichever_slot(
    tmp_path: Path,
) -> None:
    run = WindowsApart(tmp_path)
    history = History(run, 4)
    for _ in range(4):
        history.epoch(40)
    of_run = SimpleNamespace(
        coordinator=run.coordinator,
        controller=None,
        names=UserNames(run.flow.operators),
        state_bytes=lambda _: np.zeros(16, np.int64),
        carry_on=lambda: None,
    )
    placement = QueryPlacement("q", cast("Any", of_run))
    assert list(placement.assignments) == ["w"]
    assert placement.parts == ("w", "w_second", "w_windows")  # all of which have to leave executors
    before = placement.assignments["w"]
    moved = {g: "c" for g in range(8) if before.executor(g) != "c"}
    migration = placement._migrate(moved, component="w")
    history.epoch(40)
    assert migration.wait(0).moved == len(moved)
    owners = {g: before.executor(g) for g in range(16)} | moved
    assert {g: placement.assignments["w"].executor(g) for g in range(16)} == owners
    here = next(g for g in range(8, 16) if owners[g] != "b")
    both = {0: "a", here: "b"}  # the rows of one go to a second slot, of the other to a first one
    migration = placement._migrate(both, component="w")
    for _ in range(4):
        history.epoch(40)
    assert migration.wait(0).moved == 2
    now = placement.assignments["w"]
    assert {g: now.executor(g) for g in range(16)} == owners | both
    with pytest.raises(InvalidPlanError) as caught:
        placement._migrate({0: "a"}, component="w_third")
    assert caught.value.remedy == "Name one with component=: w."
    history.end()
    assert run.windows == expected(history.rows)


def test_a_smooth_migration_leaves_panes_that_have_begun_where_they_are(tmp_path: Path) -> None:
    run = WindowsApart(tmp_path)
    history = History(run, 2)
    for _ in range(4):
        history.epoch(40)
    at_b = set(run.view.components["w"].assignment.key_groups("b").tolist())
    run.send("w", dict.fromkeys(range(16), "b"), Strategy.SMOOTH)
    for _ in range(14):
        history.epoch(30)
        assert run.outcomes[-1].held_twice == {}  # no key of a pane is in both slots
    assert taken(run, "w") == at_b
    (of,) = [load for name, load in run.outcomes[-1].loads.items() if name == "w"]
    assert set(of.key_groups.tolist()) <= at_b
    history.end()
    assert run.windows == expected(history.rows)


def test_a_key_group_whose_other_slot_is_not_free_yet_migrates_live(tmp_path: Path) -> None:
    run = WindowsApart(tmp_path)
    history = History(run, 3)
    history.epoch(60)
    (g, *_) = run.outcomes[-1].loads["w"].key_groups.tolist()
    here = run.view.components["w"].assignment.executor(g)
    way, to = [name for name in "abc" if name != here]
    run.send("w", {g: way}, Strategy.INSTANT)
    history.epoch(5)
    assert taken(run) == {g}
    again = run.send("w_second", {g: to}, Strategy.INSTANT)
    for _ in range(3):
        history.epoch(2)
    assert taken(run) == {g}
    assert run.view.components["w_second"].assignment.executor(g) == to
    ended = run.ended(again)
    assert ended is not None
    assert (ended.moved, ended.withdrawn) == (1, 0)
    history.end()
    assert run.windows == expected(history.rows)


@pytest.mark.parametrize("when", ["planned", "staged", "committed"])
def test_a_driver_that_dies_in_the_epoch_of_an_instant_migration_goes_on(
    tmp_path: Path, when: Any
) -> None:
    run = WindowsApart(tmp_path)
    history = History(run, 4)
    for _ in range(3):
        history.epoch(40)
    run.send("w", dict.fromkeys(range(10), "c"), Strategy.INSTANT)
    turned = taken(run)
    assert turned
    history.epoch(40, when)
    run.start({"x": 1, "y": 2})
    takes = taken(run)
    assert takes == (turned if when == "committed" else set())
    for _ in range(3):
        history.epoch(40)
    history.end()
    assert run.windows == expected(history.rows)


def test_an_executor_that_dies_with_an_old_slot_costs_nothing_but_time(tmp_path: Path) -> None:
    run = WindowsApart(tmp_path)
    history = turned(run)
    run.see({"b": 1, "c": 1, "d": 1})
    history.epoch(40)
    history.end()
    assert run.windows == expected(history.rows)


def test_parts_that_are_put_together_merge_both_slots_and_do_not_migrate_so(tmp_path: Path) -> None:
    run = WindowsApart(tmp_path)
    history = History(run, 6)
    for _ in range(3):
        history.epoch(40)
    run.send("w", dict.fromkeys(range(9), "c"), Strategy.INSTANT)
    turned = taken(run)
    assert turned
    history.epoch(40)
    run.regroup({"w": ("w", "w_second", "w_windows")})
    run.settle()
    history.epoch(40)
    assert list(run.view.components) == ["w"]
    with pytest.raises(MigrationError, match="cannot migrate by strategy 'instant'"):
        run.send("w", {0: "b"}, Strategy.INSTANT)
    run.send("w", {0: "b", 1: "a"}, Strategy.LIVE)
    history.epoch(40)
    run.settle()
    run.regroup({"w": ("w",), "w_second": ("w_second",), "w_windows": ("w_windows",)})
    run.settle()
    history.epoch(40)
    assert taken(run) == turned
    history.end()
    assert run.windows == expected(history.rows)


def test_a_flow_without_slots_is_refused_while_they_hold_anything(tmp_path: Path) -> None:
    turned(WindowsApart(tmp_path))
    fused = WindowsApart(tmp_path, consolidate="together")
    with pytest.raises(CheckpointMismatchError, match="migrated without their state"):
        fused.start({"a": 1})


def go_on(history: History, run: WindowsApart) -> None:
    """Start another flow on the checkpoint of a stream."""
    run.take_over(history.run)
    history.run = run
    run.start({"a": 2, "b": 1, "c": 1})


def test_a_checkpoint_of_one_operator_goes_on_in_two_parts_of_another_name(tmp_path: Path) -> None:
    history = History(WindowsApart(tmp_path, consolidate="together"), 8)
    for _ in range(4):
        history.epoch(40)
    go_on(history, WindowsApart(tmp_path, name=Identity("renamed", formerly="w")))
    history.run.send("renamed", dict.fromkeys(range(16), "c"), Strategy.INSTANT)
    for _ in range(4):
        history.epoch(40)
    assert taken(history.run, "renamed_second")
    history.end()
    assert history.run.windows == expected(history.rows)


def test_slots_are_renamed_with_their_operator(tmp_path: Path) -> None:
    history = turned(WindowsApart(tmp_path))
    log = CommitLog.open_read_only(history.run.storage)
    with pytest.raises(CheckpointError, match="'w_second' is a part of 'w'"):
        rename_operator(log, "w_second", "other")
    rename_operator(log, "w", "middle")
    rename_operator(log, "middle", "renamed")
    go_on(history, WindowsApart(tmp_path, name="renamed"))
    assert taken(history.run, "renamed_second")
    history.end()
    assert history.run.windows == expected(history.rows)


def test_slots_are_dropped_with_their_operator(tmp_path: Path) -> None:
    history = turned(WindowsApart(tmp_path))
    drop_operator(CommitLog.open_read_only(history.run.storage), "w", reset=True)
    before, history.rows = history.run.windows, []
    go_on(history, WindowsApart(tmp_path))
    assert not taken(history.run)
    history.epoch(30)
    history.end()
    assert [w for w in history.run.windows if w not in before] == expected(history.rows)


def test_slots_of_an_operator_that_comes_back_are_known(tmp_path: Path) -> None:
    history = turned(WindowsApart(tmp_path))
    go_on(history, WindowsApart(tmp_path, name=Identity("other", starts_empty=True)))
    history.run.offer(history.run.batches[0].slice(0, 0))
    with pytest.raises(CheckpointMismatchError, match="migrated without their state"):
        WindowsApart(tmp_path, consolidate="together").start({"a": 1})
    go_on(history, WindowsApart(tmp_path))
    assert taken(history.run)
