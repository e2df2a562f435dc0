"""Hot keys of joins are found, spread over lanes and gathered; results stay what they are."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.storage import CheckpointStorage
from godwit.control.operators import OperatorPolicies
from godwit.control.planners.spreading import SidesOfKey, choose_shape
from godwit.control.policy import ManualOverrides, PolicyLoop
from godwit.control.spreading import SpreadHotKeys, spreading_of
from godwit.engine.policies import FlowEpoch
from godwit.engine.settings import Lanes
from godwit.local import LocalRun, lane_inputs, staged_rows
from godwit.migration.outcome import EpochOutcome
from godwit.migration.state import ComponentView
from godwit.model import events
from godwit.model.assignment import even_assignment
from godwit.model.errors import (
    CheckpointMismatchError,
    InvalidFlowError,
    InvalidPlanError,
    MigrationError,
)
from godwit.model.key_groups import KeyWork, OperatorWork
from godwit.operators.hot_key_orders import SpreadKeyOver, parts_for, place_parts
from godwit.operators.hot_keys import WHOLE, key_group_of_part
from godwit.runtime.hot_keys import QueryHotKeys
from godwit.runtime.run import QueryRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from godwit.engine.policies import Proposal
    from godwit.operators.hot_key_orders import SpreadOrders
    from godwit.plan.compiled import CompiledFlow

S = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema({"k": pa.string(), "ts": TIME, "v": pa.int64()})
SETTINGS = gw.control.Spreading(epochs=2, confirm=2)
HOT = 7_777_777


def joined(spread: int | None = 4) -> CompiledFlow:
    flow = LogicalFlow("flow", 32)
    frames: list[Any] = [FakeDataFrame(SCHEMA), FakeDataFrame(SCHEMA)]
    left, right = (
        flow.source(name, frame, event_time="ts", slack="1 second")
        for name, frame in zip(("left", "right"), frames, strict=True)
    )
    pairs = left.key_by("k").join(
        right.key_by("k"), between=("0 seconds", "2 seconds"), suffix="_r", spread=spread, name="j"
    )
    flow.sink("out", pairs, FakeSink())
    return flow.compile(resolver(flow))


def epoch_of(flow: CompiledFlow, works: dict[int, tuple[int, int, int]], total: int) -> FlowEpoch:
    """Make an epoch of a join with work for some keys: rows of the left and right, and pairs."""
    plan = ComponentView(assignment=even_assignment(32, ["a", "b"], [2, 2]))
    keys = tuple(
        KeyWork(hash=h, key=f'["{h}"]', left=left, right=right, pairs=pairs)
        for h, (left, right, pairs) in works.items()
    )
    work = {"j": OperatorWork(total=total, keys=keys)}
    outcome = EpochOutcome(epoch=0, batch=0, rows_in=10, key_work=work)
    return FlowEpoch(outcome=outcome, took_s=0.0, flow=flow, component_views={"j": plan})


class Deciding:
    """The policy alone, on epochs that it is told of."""

    def __init__(self) -> None:
        from godwit.engine.event_time import EventTimes

        self.flow = joined()
        self.orders: SpreadOrders = EventTimes(self.flow, None).spreading["j"]
        self.overrides = ManualOverrides(announce=lambda *_, **__: None)
        self.policy = SpreadHotKeys({"j": self.orders}, SETTINGS, overrides=self.overrides)

    def after(self, epochs: int, total: int, **works: tuple[int, int, int]) -> Proposal | None:
        of = {int(name[1:]): work for name, work in works.items()}
        for _ in range(epochs):
            self.policy.observe(epoch_of(self.flow, of, total))
        return next(iter(self.policy.propose(0.0)), None)

    def carry_out(self, change: SpreadKeyOver) -> None:
        assert self.orders.order(change.hash, change.key, change.grid)
        self.orders.committed(self.orders.apply(self.orders.spreads, 0).expired_at(10 * S))


def test_a_key_with_more_than_a_lanes_share_is_spread_once_evaluations_agree() -> None:
    deciding = Deciding()
    assert deciding.after(2, 10_000, _7=(5000, 100, 400)) is None
    proposal = deciding.after(2, 10_000, _7=(5000, 100, 400))
    assert proposal is not None
    assert (proposal.change.hash, proposal.change.key) == (7, '["7"]')
    assert (proposal.change.grid.rows, proposal.change.grid.columns) == (4, 1)
    assert proposal.gain > 10 * proposal.cost > 0
    assert "2.20 times the average work of a lane" in proposal.reason


def test_sides_with_as_many_rows_are_both_divided() -> None:
    deciding = Deciding()
    proposal = deciding.after(4, 10_000, _7=(3000, 3000, 0))
    assert proposal is not None
    assert (proposal.change.grid.rows, proposal.change.grid.columns) == (2, 2)


def test_what_is_no_lanes_share_or_little_at_all_stays_as_it_is() -> None:
    assert Deciding().after(8, 10_000, _7=(2000, 100, 300)) is None
    assert Deciding().after(8, 100, _7=(90, 0, 0)) is None


def test_a_key_that_cools_is_gathered_and_one_between_the_bounds_is_not() -> None:
    deciding = Deciding()
    proposal = deciding.after(4, 10_000, _7=(5000, 0, 400))
    assert proposal is not None
    deciding.policy.answered(proposal)
    deciding.carry_out(proposal.change)
    assert deciding.after(4, 10_000, _7=(2000, 0, 0)) is None
    proposal = deciding.after(4, 10_000)
    assert proposal is not None
    assert proposal.change.grid == WHOLE


def test_what_was_decided_by_hand_is_left_alone() -> None:
    deciding = Deciding()
    deciding.overrides.record(["hot keys of j"], 0.0)
    assert deciding.after(8, 10_000, _7=(5000, 100, 400)) is None


def test_parts_lie_in_different_lanes_those_with_least_to_do() -> None:
    assignment = even_assignment(32, ["a", "b"], [2, 2])
    busy = {
        g: 10.0 for g in range(32) if (assignment.executor_of[g], assignment.lane_of[g]) == (1, 1)
    }
    for count, lanes in ((2, 2), (3, 3), (4, 4), (8, 4)):
        parts = parts_for(HOT, count, taken=WHOLE, assignment=assignment, cpu_ms=busy, share=0.01)
        groups = key_group_of_part(HOT, np.array(parts), 32)
        used = set(zip(assignment.executor_of[groups], assignment.lane_of[groups], strict=True))
        assert len(set(parts)) == count
        assert 0 not in parts
        if count < 4:
            assert len(used) == lanes
            assert (1, 1) not in used


def test_shapes_are_those_of_least_work_or_least_parts() -> None:
    one_sided = SidesOfKey(left=1000, right=0, pairs=0)
    assert choose_shape(one_sided, max_parts=16, goal=300) == (4, 1)
    assert choose_shape(SidesOfKey(left=0, right=1000, pairs=0), max_parts=3, goal=1) == (1, 3)
    assert choose_shape(SidesOfKey(left=10, right=10, pairs=900), max_parts=9, goal=1) == (3, 3)
    assert choose_shape(one_sided, max_parts=1, goal=1) == (1, 1)
    assert place_parts(np.array([0, 1]), np.zeros(2), 5, 1.0) == [0, 1]


def test_settings_that_will_not_do_are_refused() -> None:
    wrong: Any = {"spread_above": 0.2}
    with pytest.raises(InvalidFlowError, match=r"gather_below=0\.25"):
        gw.control.Spreading(**wrong)
    with pytest.raises(InvalidFlowError, match=r"epochs of gw\.control\.Spreading is 0"):
        gw.control.Spreading(epochs=0)
    assert spreading_of(joined(None), None) is None
    with pytest.raises(InvalidFlowError, match="has no effect"):
        spreading_of(joined(None), SETTINGS)


# -- the whole of it, in one process


class SpreadJoin:
    """A join in one process, with the policy, and the pairs that there should be."""

    def __init__(self, root: Path, *, spread: int | None = 4) -> None:
        self.flow = joined(spread)
        self.storage = CheckpointStorage.open(str(root / "checkpoint"))
        self.settings = Lanes(local_dir=str(root / "local"))
        self.events: list[events.Event] = []
        self.rng, self.second = np.random.default_rng(3), 0
        self.rows: dict[str, list[tuple[str, int, int]]] = {"left": [], "right": []}
        self.found: Counter[tuple[Any, ...]] = Counter()
        self.lanes: list[float] = []
        self.start()

    def start(self) -> None:
        """Start anew from the checkpoint, with empty stores."""
        self.run = LocalRun(
            self.flow,
            self.storage,
            executors={"a": 2, "b": 2},
            settings=self.settings,
            emit=self.events.append,
        )
        times = self.run.epochs.times
        self.coordinator = self.run.coordinator
        overrides = ManualOverrides(announce=self.coordinator.announce)
        self.policies = OperatorPolicies(
            self.run.flow,
            [SpreadHotKeys(times.spreading, SETTINGS, overrides=overrides)],
            loop=PolicyLoop(overrides, announce=self.coordinator.announce),
            coordinator=self.coordinator,
            log=self.run.log,
            meters={},
            spreading=times.spreading,
        )
        self.spreading = times.spreading

    def epoch(self, share: float, count: int = 3000) -> None:
        """Run an epoch of two seconds, in which one key has a share of the rows."""
        given = {}
        for name, number in (("left", count), ("right", count // 4)):
            keys = np.where(
                self.rng.random(number) < share,
                "hot",
                self.rng.integers(0, 4000, number).astype(str),
            )
            moments = self.second * S + self.rng.integers(0, 2 * S, number)
            rows = list(zip(keys.tolist(), moments.tolist(), range(number), strict=True))
            self.rows[name] += rows
            columns = [
                pa.array(column, f.type)
                for column, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ]
            given[name] = pa.Table.from_arrays(columns, schema=SCHEMA)
        self.second += 2
        self.observe(self.run.epoch(lane_inputs(self.run.flow, given, partitions=3)))

    def observe(self, outcome: EpochOutcome) -> None:
        self.hot = outcome.hot_keys
        component_views: Any = self.run.view.components
        load = outcome.loads["j"]
        assignment = component_views["j"].assignment
        place = assignment.executor_of * 2 + assignment.lane_of
        rows = np.bincount(place[load.key_groups], load.rows, minlength=4)
        self.lanes.append(float(rows.max() / max(rows.sum(), 1)))
        record = self.run.log.latest
        assert record is not None
        for batch in staged_rows(record, self.storage).get("out", []):
            values = [
                (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
                for c in batch.columns
            ]
            self.found.update(zip(*values, strict=True))
        epoch = FlowEpoch(
            outcome=outcome,
            component_views=component_views,
            took_s=0.0,
            at_s=time.time(),
            flow=self.run.flow,
        )
        self.policies.observe(epoch)

    @property
    def pairs(self) -> Counter[tuple[Any, ...]]:
        """All pairs there are, by a nested loop over rows of equal keys."""
        others: dict[str, list[tuple[int, int]]] = {}
        for key, moment, value in self.rows["right"]:
            others.setdefault(key, []).append((moment, value))
        return Counter(
            (key, moment, value, at, other)
            for key, moment, value in self.rows["left"]
            for at, other in others.get(key, ())
            if 0 <= at - moment <= 2 * S
        )

    def told(self) -> list[tuple[str, int, int]]:
        return [
            (event.key, event.rows, event.columns)
            for event in self.events
            if isinstance(event, events.HotKeySpread)
        ]


def test_a_hot_key_is_spread_and_gathered_and_all_pairs_come_out_once(tmp_path: Path) -> None:
    story = SpreadJoin(tmp_path)
    for _ in range(5):
        story.epoch(0.5, 500)
    ((key, share),) = story.hot["j"].items()
    assert key == '["hot"]'
    assert share > 0.5
    assert story.told() == [('["hot"]', 4, 1)]
    crowded = max(story.lanes)
    for _ in range(4):
        story.epoch(0.5, 500)
    assert story.lanes[-1] < 0.7 * crowded
    story.run.set_executors({"a": 2, "c": 2})  # b is gone, with what it held
    story.epoch(0.5, 500)
    story.start()
    (spread,) = story.spreading["j"].spreads.keys.values()
    assert (spread.key, spread.grid.rows) == ('["hot"]', 4)
    for _ in range(9):
        story.epoch(0.0, 500)
    assert story.told() == [('["hot"]', 4, 1), ('["hot"]', 1, 1)]
    for outcome in story.run.run_until_idle():
        story.observe(outcome)
    assert not story.spreading["j"].spreads.keys
    assert story.found == story.pairs


def test_a_key_is_spread_by_hand(tmp_path: Path) -> None:
    story = SpreadJoin(tmp_path)
    run: Any = story
    run.coordinator, run.policies, run.view = story.coordinator, story.policies, story.run.view
    run.manual_change, run.divide = story.policies.manual_change, partial(QueryRun.divide, run)
    hot_keys = QueryHotKeys(run)
    story.epoch(0.5, 400)
    hot_keys.spread("j", "hot", left=2, right=2)
    with pytest.raises(
        MigrationError, match=r'change of key \["hot"\] of operator \'j\' is under way'
    ):
        hot_keys.gather("j", "hot")
    assert dict(hot_keys["j"]) == {}
    for _ in range(3):
        story.epoch(0.5, 400)
    assert dict(hot_keys["j"]) == {'["hot"]': (2, 2)}
    hot_keys.gather("j", "hot")
    for _ in range(3):
        story.epoch(0.5, 400)
    assert dict(hot_keys["j"]) == {}
    assert story.found == story.pairs
    respected = [e for e in story.events if isinstance(e, events.ManualOverrideRespected)]
    assert [event.what for event in respected] == ["hot keys of j"] * 2
    assert len(hot_keys) == 1
    spread, gather = hot_keys.spread, hot_keys.gather
    refused("no join 'k' with spread=", lambda: spread("k", "hot", left=2))
    refused("left=5 and right=1", lambda: spread("j", "hot", left=5))
    refused("left=1 and right=1", lambda: spread("j", "hot"))
    refused("2 values", lambda: spread("j", ("hot", 1), left=2))
    refused("is not a key of operator 'j'", lambda: spread("j", 7.5, left=2))
    refused("is not spread", lambda: gather("j", "cold"))


def refused(told: str, call: Callable[[], None]) -> None:
    with pytest.raises(InvalidPlanError) as caught:
        call()
    assert told in str(caught.value)


def test_a_join_with_state_is_not_given_parts_later(tmp_path: Path) -> None:
    story = SpreadJoin(tmp_path, spread=None)
    story.epoch(0.5, 40)
    story.flow = joined()
    with pytest.raises(CheckpointMismatchError, match="operator 'j': it had no spread="):
        story.start()
