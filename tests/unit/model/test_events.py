"""The events that users see."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest

from godwit.model import events
from godwit.model.errors import GodwitError
from godwit.model.events import Event, event_from_dict

ONE_OF_EACH: tuple[Event, ...] = (
    events.QueryStarted(epoch=-1, at_s=1.0, name="delays"),
    events.FlowChanged(
        epoch=4,
        at_s=1.0,
        added=("a",),
        removed=("b",),
        renamed={"c": "d"},
        results=("d.n starts empty",),
    ),
    events.QueryStopped(epoch=4, at_s=1.0, name="delays"),
    events.QueryFailed(epoch=4, at_s=1.0, name="delays", error="a sink is full"),
    events.EpochCommitted(
        epoch=4, at_s=1.0, rows_in=10, rows_out=1, duration_ms=12.4, watermarks={"flights": 77}
    ),
    events.EpochAborted(epoch=4, at_s=1.0, reason="an executor died"),
    events.EpochsHeld(epoch=4, at_s=1.0, reason="no executor is left"),
    events.EpochsReleased(epoch=4, at_s=1.0),
    events.ExecutorAdded(epoch=4, at_s=1.0, executor="3", lanes=1),
    events.ExecutorDraining(epoch=4, at_s=1.0, executor="3"),
    events.ExecutorLost(epoch=4, at_s=1.0, executor="3", reason="killed"),
    events.ExecutorKept(epoch=4, at_s=1.0, executor="3"),
    events.ExecutorRemoved(epoch=4, at_s=1.0, executor="3"),
    events.ExecutorsRequested(epoch=4, at_s=1.0, count=2, total=4),
    events.ExecutorsMissing(epoch=4, at_s=1.0, count=1, reason="none came within 60 s"),
    events.ScalingStarted(epoch=4, at_s=1.0, before=2, wanted=4),
    events.ScalingFinished(epoch=4, at_s=1.0, executors=("1", "2", "3", "4"), moved=5),
    events.ScalingFailed(epoch=4, at_s=1.0, wanted=4, reason="the query has stopped"),
    events.MigrationStarted(
        epoch=4,
        at_s=1.0,
        migration="m1",
        component="sum",
        strategy="live",
        moves=3,
        state_bytes=2048,
    ),
    events.MigrationFinished(epoch=4, at_s=1.0, migration="m1", component="sum", moved=3),
    events.MigrationCancelled(
        epoch=4, at_s=1.0, migration="m1", component="sum", reason="d was lost", withdrawn=2
    ),
    events.WarmingStarted(epoch=4, at_s=1.0, component="sum", executor="3", key_groups=(1, 2)),
    events.PeerTransferFailed(
        epoch=4, at_s=1.0, component="sum", executor="3", source="1", key_groups=(2,), reason="gone"
    ),
    events.KeyGroupsWarmed(epoch=4, at_s=1.0, component="sum", executor="3", key_groups=(1,)),
    events.AssignmentSwitched(epoch=4, at_s=1.0, component="sum", version=9, key_groups=(1,)),
    events.KeyGroupsSuspended(epoch=4, at_s=1.0, component="sum", key_groups=(1,)),
    events.KeyGroupsResumed(epoch=4, at_s=1.0, component="sum", key_groups=tuple(range(20))),
    events.KeyGroupsLoaded(epoch=4, at_s=1.0, component="sum", key_groups=(1,)),
    events.FilesCollected(epoch=4, at_s=1.0, files=1, freed_bytes=3 * 2**30),
    events.RowsLeftOut(
        epoch=4, at_s=1.0, operator="hourly", late=2, untimed=1, no_slack=("a", "b")
    ),
    events.RowsUnreadable(epoch=4, at_s=1.0, source="flights", rows=3),
    events.FeedbackPaused(epoch=4, at_s=1.0, loop="steps", rounds=1000, rows=3),
    events.BackgroundFailed(epoch=4, at_s=1.0, what="watching executors", error="KeyError: 'x'"),
    events.ResidentLanesStarted(epoch=4, at_s=1.0, lanes=2, took_ms=310.4),
    events.ResidentLanesEnded(epoch=4, at_s=1.0, reason="the query ends"),
    events.ResidentLanesFailed(epoch=4, at_s=1.0, reason="it is gone", pause_s=2.0),
    events.ListenerFailed(
        epoch=4, at_s=1.0, listener="page", error="KeyError: 'x'", heard="EpochCommitted"
    ),
    events.LoadMeasured(
        epoch=4,
        at_s=1.0,
        period_s=10.0,
        epochs=20,
        missing=1,
        arrival_per_s=1200.0,
        epoch_s=0.4,
        bottleneck="time",
        usage={"time": 0.5},
        load_distance=0.3,
        load_index={"a": 0.5},
        speeds={"b": 0.33},
    ),
    events.RebalancingStarted(
        epoch=4,
        at_s=1.0,
        migrations={"sum": "control-1"},
        planner="milp",
        moves=3,
        state_bytes=2048,
        draining=1,
        distance_before=0.5,
        distance_after=0.01,
        gain_s=4.0,
        cost_s=0.5,
    ),
    events.MigrationsPlanned(
        epoch=4,
        at_s=1.0,
        components=("sum",),
        executors=(3, 4),
        cuts=((4, 13), (4, 6, 13)),
        moved_bytes=(4096.0, 2048.0),
        reason="it is the first plan",
    ),
    events.LanesBalanced(
        epoch=4,
        at_s=1.0,
        component="sum",
        key_groups=2,
        executors=("a",),
        imbalance_before=1.8,
        imbalance_after=1.1,
    ),
    events.ScaledOut(
        epoch=4, at_s=1.0, before=2, wanted=4, reason="too slow", numbers={"latency_s": 9.5}
    ),
    events.ScaledIn(epoch=4, at_s=1.0, before=4, wanted=3, executors=("d",), reason="little to do"),
    events.ScalingRefused(epoch=4, at_s=1.0, before=4, wanted=6, reason="4 is the limit"),
    events.DecisionJudged(
        epoch=4,
        at_s=1.0,
        before=2,
        wanted=4,
        verdict="no help",
        expected=0.5,
        measured=1.5,
        target=0.8,
        arrival_per_s=1000.0,
        reason="key group 17 alone fills 0.8 of a lane",
    ),
    events.RebalancingJudged(
        epoch=4,
        at_s=1.0,
        components=("sums",),
        verdict="helped",
        before=0.5,
        expected=0.02,
        measured=0.03,
        reason="executors are as even as expected",
    ),
    events.ForecastJudged(
        epoch=4,
        at_s=1.0,
        used=True,
        reason="it is better than a constant rate",
        period_s=86400.0,
        error=100.0,
        error_as_now=900.0,
        lead_s=50.0,
    ),
    events.ExecutorsReturned(epoch=4, at_s=1.0, executors=("d",)),
    events.DecisionSkipped(
        epoch=4, at_s=1.0, what="balancing of sum", reason="the load is even enough"
    ),
    events.PlannerFailed(epoch=4, at_s=1.0, planner="mine", reason="it raised KeyError: 1"),
    events.PlanAbandoned(epoch=4, at_s=1.0, component="sum", reason="executor d is gone"),
    events.RegroupingStarted(
        epoch=4,
        at_s=1.0,
        regrouping="r1",
        components={"row": "first, second"},
        moves=3,
        state_bytes=2048,
        reason="first → second is 40 % of all rows",
    ),
    events.ComponentsRegrouped(epoch=4, at_s=1.0, regrouping="r1", components={"a": "a", "b": "b"}),
    events.OperatorsRepartitioned(
        epoch=4,
        at_s=1.0,
        before={"users": "area, user", "trips": "area"},
        after={"users": "area", "trips": "car"},
        reason="asked for",
        paused_ms=412.3,
    ),
    events.PartitioningCompared(
        epoch=4,
        at_s=1.0,
        operator="users",
        downstream="areas",
        columns=("area",),
        chosen=False,
        reason="'area' has 50 values, and 8 lanes need 128",
        imbalance=1.12,
    ),
    events.LayoutsCompared(
        epoch=4,
        at_s=1.0,
        operator="hourly",
        layout="combined",
        cheaper="split",
        epochs=16,
        split_ms=20.04,
        combined_ms=31.0,
        split_latency_ms=0.0,
        combined_latency_ms=812.0,
        max_latency_ms=500.0,
        numbers={"migrated_key_groups": 12},
    ),
    events.RegroupingCancelled(
        epoch=4, at_s=1.0, regrouping="r1", components={"a": "a"}, reason="second thoughts"
    ),
    events.ManualOverrideRespected(epoch=4, at_s=1.0, what="migration of sum", until_s=61.0),
    events.WindowStateChosen(
        epoch=4,
        at_s=1.0,
        operator="hourly",
        duplicated=True,
        reason="12.0 ms of CPU with panes and 4.0 ms without",
        numbers={"shared_ms": 12.0, "duplicated_ms": 4.0},
    ),
    events.HotKeySpread(
        epoch=4,
        at_s=1.0,
        operator="transfers",
        key='["central"]',
        rows=4,
        columns=1,
        reason="it has 3.1 times the work of a lane",
        numbers={"share": 3.1},
    ),
)


def test_every_kind_is_tried_here() -> None:
    kinds = {name for name in events.__all__ if name not in {"Event", "event_from_dict"}}
    assert {type(event).__name__ for event in ONE_OF_EACH} == kinds


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_an_event_survives_json_and_pickle_and_is_told_in_one_line(event: Event) -> None:
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    assert pickle.loads(pickle.dumps(event)) == event
    assert event.describe()
    assert "\n" not in event.describe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.epoch = 5  # type: ignore[misc]  # that it cannot be set is what is tested


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (events.QueryStarted, "query delays started"),
        (events.EpochCommitted, "epoch 4 committed: 10 rows in, 1 out, 12 ms"),
        (events.ExecutorAdded, "executor 3 added with 1 lane"),
        (events.ExecutorLost, "executor 3 lost: killed"),
        (events.MigrationStarted, "migration m1 of sum started (live): 3 key groups, 2.0 KiB"),
        (
            events.MigrationCancelled,
            "migration m1 of sum cancelled: d was lost (0 moved, 2 withdrawn)",
        ),
        (events.WarmingStarted, "sum: warming key groups 1, 2 at 3"),
        (events.KeyGroupsResumed, "sum: key groups 0, 1, 2, 3, 4, 5, 6, 7, … 20 in all resumed"),
        (events.FilesCollected, "1 file collected, 3.0 GiB freed"),
        (
            events.RowsLeftOut,
            (
                "operator hourly left out in epoch 4: 2 rows late, 1 row without an event time; "
                "the watermark of a, b has no slack, so rows out of order may be late: give "
                'flow.source(..., slack="10 minutes")'
            ),
        ),
        (
            events.RowsUnreadable,
            "source flights could not read 3 rows in epoch 4; they are left out",
        ),
        (
            events.FeedbackPaused,
            (
                "the loop steps pauses after 1000 rounds without other rows; 3 rows in it go on "
                "with the next epoch that has others"
            ),
        ),
        (events.BackgroundFailed, "watching executors failed: KeyError: 'x'"),
        (events.ResidentLanesStarted, "2 resident lanes ready after 310 ms"),
        (events.ResidentLanesEnded, "resident lanes ended: the query ends"),
        (
            events.ResidentLanesFailed,
            (
                "resident lanes failed: it is gone; epochs run as Spark jobs, and lanes are "
                "started again after 2 s"
            ),
        ),
        (events.ListenerFailed, "listener page failed on EpochCommitted: KeyError: 'x'"),
        (
            events.RebalancingStarted,
            (
                "rebalancing sum by milp: 3 key groups, 1 of them off draining executors, "
                "2.0 KiB, load distance 50.0% to 1.0%, gains 4.00 s for 0.50 s"
            ),
        ),
        (
            events.ScaledOut,
            "scaling out, 2 more executors for 4: too slow (latency_s 9.5)",
        ),
        (
            events.RegroupingStarted,
            (
                "regrouping r1 started (row of first, second): 3 key groups to move, 2.0 KiB, "
                "since first → second is 40 % of all rows"
            ),
        ),
        (events.ComponentsRegrouped, "components regrouped (r1): a of a; b of b"),
        (
            events.OperatorsRepartitioned,
            (
                "users is placed by area in place of area, user; trips is placed by car in place "
                "of area (asked for); no epoch ran for 412 ms"
            ),
        ),
        (
            events.PartitioningCompared,
            (
                "placing users by area, as areas: the busiest lane has 1.12 of the mean; not "
                "chosen ('area' has 50 values, and 8 lanes need 128)"
            ),
        ),
        (
            events.LayoutsCompared,
            (
                "hourly is combined and split would be better: over 16 epochs split 20.0 ms of "
                "CPU, combined 31.0 ms; migrations take 0 ms split, 812 ms combined of 500 ms "
                "allowed"
            ),
        ),
        (events.RegroupingCancelled, "regrouping r1 cancelled: second thoughts"),
        (
            events.ManualOverrideRespected,
            "migration of sum was decided by hand, left alone for 60 s",
        ),
        (
            events.WindowStateChosen,
            (
                "windows of hourly have states of their own: 12.0 ms of CPU with panes and 4.0 ms "
                "without"
            ),
        ),
        (
            events.HotKeySpread,
            (
                'key ["central"] of transfers is spread over 4 parts: it has 3.1 times the work '
                "of a lane"
            ),
        ),
    ],
)
def test_lines_read_like_sentences(kind: type[Event], line: str) -> None:
    (event,) = (event for event in ONE_OF_EACH if type(event) is kind)
    assert event.describe() == line


def test_a_switch_of_lanes_alone_says_so() -> None:
    event = events.AssignmentSwitched(epoch=0, at_s=0.0, component="sum", version=2)
    assert event.describe() == "sum: assignment 2 changes lanes only"


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(GodwitError, match="no event of kind 'Nonsense'"):
        event_from_dict({"kind": "Nonsense", "epoch": 0, "at_s": 0.0})
