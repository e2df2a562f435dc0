"""``process(..., merge=)``: what is refused, what parts see, and what becomes of them when the flow
changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.adapt.policy import FlowEpoch, ManualOverrides
from godwit.adapt.spreading import SpreadHotKeys
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.entries import BatchCache
from godwit.checkpoint.storage import CheckpointStorage
from godwit.checkpoint.verification import verify
from godwit.cluster.local.run import LocalRows, LocalRun
from godwit.cluster.local.sources import lane_inputs
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.engine.event_time import EventTimes
from godwit.engine.settings import Lanes
from godwit.engine.state_view import view_state
from godwit.migration import ComponentView, EpochOutcome
from godwit.model.assignment import even_assignment
from godwit.model.errors import (
    CheckpointMismatchError,
    InvalidFlowError,
    InvalidPlanError,
    StateEncodingError,
    UserFunctionError,
)
from godwit.model.key_groups import KeyGroupLoad
from godwit.model.key_work import KeyWork, OperatorWork
from godwit.operators.merged import MergedProcess
from godwit.operators.spreading import WHOLE, Grid, HotKey, Spreads, hash_undivided, work_by_time
from godwit.operators.windows.event_time import EpochTime
from godwit.plan.explain import explain
from godwit.plan.grouping import regrouped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
HOT, COLD = hash_undivided(pa.record_batch({"k": ["hot", "cold"]})).tolist()
GRID = Grid(rows=2, columns=1, parts=(5, 6))


def count(key: tuple[str], rows: Any, state: Any) -> list[tuple[str, int]]:
    state.value += len(rows)
    return [(key[0], state.value)]


def add(state: int, other: int) -> int:
    return state + other


def declared(merge: Callable[..., Any] | None = add, **options: Any) -> LogicalFlow:
    flow = LogicalFlow("flow", 16)
    frame: Any = FakeDataFrame(SCHEMA)
    options = {"function": count, "state": int, "output": "k string, n bigint", **options}
    counts = flow.source("rows", frame).key_by("k").process(merge=merge, name="p", **options)
    flow.sink("out", counts, FakeSink())
    return flow


def merged() -> MergedProcess:
    flow = declared()
    operator = flow.compile(resolver(flow)).operator("p")
    assert isinstance(operator, MergedProcess)
    return operator


# -- what is declared


def test_what_belongs_to_a_whole_key_is_refused_beside_merge() -> None:
    for options in (
        {"ttl": "1 hour"},
        {"timers": "processing", "on_timer": lambda *_: None},
    ):
        with pytest.raises(InvalidFlowError, match=rf"has merge=, .* and {next(iter(options))}="):
            declared(**options)


def test_a_merge_that_cannot_be_called_with_two_states_is_refused() -> None:
    wrong: Any = "sum"
    with pytest.raises(InvalidFlowError, match="merge='sum', which cannot be called"):
        declared(wrong)
    with pytest.raises(InvalidFlowError, match=r"cannot be called as merge\(state, other\)"):
        declared(lambda one: one)


def test_explain_says_by_what_parts_are_merged() -> None:
    flow = declared()
    told = explain(flow.compile(resolver(flow)))
    assert "hot keys in parts, merged by add" in told
    assert "__godwit" not in told


def test_it_shares_no_component_with_operators_whose_rows_stay_in_their_lane() -> None:
    flow = declared()
    compiled = flow.compile(resolver(flow))
    assert [c.name for c in compiled.components] == ["p"]
    operator = compiled.operator("p")
    assert operator.keys.names == operator.user_keys.names == ["k"]
    assert operator.hash_columns.names == ["k", "__godwit_part"]


# -- rows on their way


def test_rows_of_hot_keys_are_dealt_by_their_values_and_others_stay() -> None:
    rows = pa.record_batch({"k": ["hot", "cold"] * 50, "v": list(range(100))})
    spreads = Spreads(keys={HOT: HotKey(key="", grids=(WHOLE, GRID))})
    arranged, left_out, _ = merged().arrange(rows, EpochTime(spreads=spreads))
    assert left_out is None
    assert arranged.schema.names == ["k", "__godwit_part", "v"]
    parts = arranged.column(1).to_pylist()
    assert set(parts[1::2]) == {None}
    assert set(parts[::2]) == {5, 6}
    assert 10 < parts.count(5) < 40
    turned = rows.take(pa.array(range(99, -1, -1)))
    again = merged().arrange(turned, EpochTime(spreads=spreads))[0]
    assert again.column(1).to_pylist() == parts[::-1]


# -- a checkpoint and flows that change


class Story:
    """A flow in one process, on one checkpoint."""

    def __init__(self, root: Path) -> None:
        self.storage = CheckpointStorage.open(str(root / "checkpoint"))
        self.root = root
        self.run: LocalRun

    def start(self, flow: LogicalFlow) -> LocalRun:
        self.run = LocalRun(
            flow.compile(resolver(flow)),
            self.storage,
            executors={"a": 2, "b": 1},
            settings=Lanes(local_dir=str(self.root / "local")),
        )
        return self.run

    def epoch(self, **rows: int) -> None:
        """Run an epoch of so many rows of each key."""
        keys = [key for key, number in rows.items() for _ in range(number)]
        table = pa.table({"k": keys, "v": pa.array(range(len(keys)), pa.int64())})
        given = lane_inputs(self.run.flow, {"rows": table}, partitions=2)
        self.run.epoch(LocalRows(rows=given))

    def order(self, grid: Grid) -> None:
        assert self.run.epochs.times.spreading["p"].order(HOT, '["hot"]', grid)

    def state(self) -> dict[tuple[str, int | None], int]:
        """Key and part → its count."""
        view = view_state(self.storage, "p", None, None)
        cache = BatchCache(self.storage)
        return {
            (row["k"], row.get("part")): json.loads(row["state"])
            for chain in view.chains
            for row in view.read(chain, cache).to_pylist()
        }


def test_merge_comes_and_goes_with_state_there_but_not_while_a_key_has_parts(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    story.start(declared(None))
    story.epoch(hot=10, cold=3)
    story.start(declared())
    story.order(GRID)
    story.epoch(hot=40, cold=3)
    state = story.state()
    assert state["hot", None] == 10
    assert state["hot", 5] + state["hot", 6] == 40
    assert state["cold", None] == 6
    with pytest.raises(CheckpointMismatchError, match=r"state of .*hot.* in several parts"):
        story.start(declared(None))
    story.start(declared())
    story.epoch(hot=4)
    assert sum(n for (key, _), n in story.state().items() if key == "hot") == 54
    story.order(WHOLE)
    story.epoch(cold=1)
    assert story.state() == {("hot", None): 54, ("cold", None): 7}
    assert not verify(story.storage).findings
    story.start(declared(None))
    story.epoch(hot=1)
    assert story.state() == {("hot", None): 55, ("cold", None): 7}


def test_parts_that_are_exchanged_for_others_are_merged(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start(declared())
    story.order(GRID)
    story.epoch(hot=40)
    story.order(Grid(rows=3, columns=1, parts=(7, 8, 9)))
    story.epoch(hot=30)
    state = story.state()
    assert state.pop(("hot", None)) == 40  # the first state that it ever had is one of a part
    assert set(state) == {("hot", 7), ("hot", 8), ("hot", 9)}
    assert sum(state.values()) == 30


def test_a_merge_that_fails_or_returns_nothing_fails_the_epoch_and_names_the_key(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)

    def fail(_state: int, _other: int) -> int:
        reason = "no"
        raise ValueError(reason)

    for wrong, told in ((fail, "no"), (lambda _state, _other: None, "returned nothing")):
        story = Story(tmp_path / told.replace(" ", "-"))
        story.start(declared(wrong))
        story.epoch(hot=5)
        story.order(GRID)
        story.epoch(hot=40)
        story.order(WHOLE)
        with pytest.raises(UserFunctionError, match=told) as caught:
            story.epoch(hot=1)
        assert "hot" in str(caught.value)
        assert sum(story.state().values()) == 45


def test_a_merge_that_returns_another_type_is_blamed_for_it(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.start(declared(lambda _state, _other: "much"))
    story.epoch(hot=5)
    story.order(GRID)
    story.epoch(hot=40)
    story.order(WHOLE)
    with pytest.raises(StateEncodingError, match=r"merge= of operator 'p', returned a str"):
        story.epoch(hot=1)
    assert sum(story.state().values()) == 45


def test_a_component_with_others_is_refused() -> None:
    flow = LogicalFlow("flow", 16)
    frame: Any = FakeDataFrame(SCHEMA)
    keyed = flow.source("rows", frame).key_by("k")
    totals = keyed.compute(total=gw.sum("v"), name="totals")
    output = "k string, n bigint"
    counts = keyed.process(count, state=int, output=output, merge=add, name="p")
    flow.sink("totals", totals, FakeSink())
    flow.sink("counts", counts, FakeSink())
    compiled = flow.compile(resolver(flow))
    with pytest.raises(InvalidPlanError, match="leave spread= or merge= out"):
        compiled.with_plan(regrouped(compiled, {"both": ["totals", "p"]}))


# -- what lanes measure


def test_the_time_of_a_key_group_is_shared_among_its_keys_by_rows() -> None:
    keys = pa.record_batch(
        {"k": ["a", "b", "b", "b"], "__godwit_part": pa.array([None, None, 3, None], pa.int32())}
    )
    hashes = hash_keys(keys)
    groups = group_rows(hashes, keys, 1)
    nothing = np.zeros(1)
    load = KeyGroupLoad(
        key_groups=np.array([0]), rows=np.array([4]), keys=np.array([3]), cpu_ms=nothing + 40
    )
    work = work_by_time(keys, groups, load)
    assert work.total == 40_000
    assert {(of.key, of.left) for of in work.keys} == {('["a"]', 10_000), ('["b"]', 30_000)}
    quiet = work_by_time(keys, groups, replace(load, cpu_ms=nothing + 4, busy_ms=nothing + 4))
    assert quiet.total == 4_000
    assert [(of.key, of.left) for of in quiet.keys] == [('["b"]', 1_000)]  # since it is in parts


def test_a_hot_key_of_a_function_gets_parts_where_time_says_so() -> None:
    flow = declared()
    compiled = flow.compile(resolver(flow))
    orders = EventTimes(compiled, None).spreading
    policy = SpreadHotKeys(
        orders,
        gw.Spreading(epochs=1, confirm=1),
        overrides=ManualOverrides(announce=lambda *_, **__: None),
    )
    plan = ComponentView(assignment=even_assignment(16, ["a", "b"], [2, 2]))
    hot = KeyWork(hash=HOT, key='["hot"]', left=60_000, right=0, pairs=0)
    work = {"p": OperatorWork(total=100_000, keys=(hot,))}
    outcome = EpochOutcome(epoch=0, batch=0, rows_in=10, key_work=work)
    policy.observe(FlowEpoch(outcome=outcome, flow=compiled, plans={"p": plan}))
    (proposal,) = policy.propose(0.0)
    grid = proposal.change.grid
    assert (proposal.change.key, grid.columns) == ('["hot"]', 1)
    assert grid.rows == 4
    assert 0 not in grid.parts
    assert "2.40 times the work of a lane" in proposal.reason


# -- in users' tests


def test_a_user_tries_a_merge_without_spark() -> None:
    flow = gw.Flow("flow", num_key_groups=16)
    rows = flow.source("rows", gw.testing.stream("k string, v bigint"))
    counts = rows.key_by("k").process(
        count, state=int, output="k string, n bigint", merge=add, name="p"
    )
    flow.sink("out", counts, gw.sinks.memory())
    given = [{"k": "hot", "v": n} for n in range(30)]
    with gw.testing.cluster(flow, executors=2) as run:
        run.spread("p", "hot", left=3)
        run.epoch({"rows": given})
        state = run.state("p").to_pylist()
        assert len({row["part"] for row in state}) == 3
        assert sum(int(row["state"]) for row in state) == 30
        with pytest.raises(InvalidPlanError, match="no process with merge="):
            run.spread("q", "hot", left=3)
        with pytest.raises(InvalidPlanError, match="right=2 parts, and is no join"):
            run.spread("p", "hot", left=1, right=2)
        run.gather("p", "hot")
        run.epoch({"rows": given})
        assert [(row["part"], row["state"]) for row in run.state("p").to_pylist()] == [(None, "60")]
