"""``process`` with merged parts of hot keys, of one state (``merge=``) or of several named ones.

What is refused, what parts see, how they are merged, and what becomes of them when flows change.
"""

from __future__ import annotations

from dataclasses import replace
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.records import Grid, HotKey
from godwit.checkpoint.storage import CheckpointStorage
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.control.policy import ManualOverrides
from godwit.control.spreading import SpreadHotKeys
from godwit.engine.event_time import EventTimes
from godwit.engine.policies import FlowEpoch
from godwit.migration.outcome import EpochOutcome
from godwit.migration.state import ComponentView
from godwit.model.assignment import even_assignment
from godwit.model.errors import (
    CheckpointMismatchError,
    InvalidFlowError,
    InvalidPlanError,
    StateEncodingError,
    UserFunctionError,
)
from godwit.model.key_groups import KeyGroupLoad, KeyWork, OperatorWork
from godwit.operators.hot_keys import WHOLE, Spreads, hash_undivided, work_by_time
from godwit.ops.verification import verify
from godwit.plan.grouping import regrouped
from godwit.time.event_time import EpochTime

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.plan.compiled import CompiledFlow

COLUMNS = "k string, v bigint"
OUTPUT = "k string, n bigint"
SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
HASH = int(hash_undivided(pa.record_batch({"k": ["hot"]}))[0])
HOT: list[dict[str, Any]] = [{"k": "hot", "v": n % 10} for n in range(60)]
KINDS = pytest.mark.parametrize("named", [False, True], ids=["one state", "named states"])


def count(key: tuple[str], rows: Any, state: Any) -> list[tuple[str, int]]:
    state.value += len(rows)
    return [(key[0], state.value)]


def count_by_name(key: tuple[str], rows: Any, states: Any) -> list[tuple[str, int]]:
    return count(key, rows, states.state)


def note(key: tuple[str], rows: Any, states: Any) -> list[tuple[str, int]]:
    states.total.value += sum(row.v for row in rows)
    states.last.extend(row.v for row in rows)
    for row in rows:
        states.times[row.v] = states.times.get(row.v, 0) + 1
    return [(key[0], states.total.value)]


def states_of(**changed: Any) -> dict[str, Any]:
    return {
        "total": gw.ValueState(int, merge=add),
        "last": gw.ListState(int, merge=lambda some, others: sorted([*some, *others])[-5:]),
        "times": gw.MapState(int, int, merge=add),
    } | changed


def flow_of(function: Any = note, **options: Any) -> gw.Flow:
    flow = gw.Flow("flow", num_key_groups=16)
    keyed = flow.source("rows", gw.testing.stream(COLUMNS)).key_by("k")
    options.setdefault("state", states_of())
    processed = keyed.process(function, output=OUTPUT, name="p", **options)
    flow.sink("out", processed, gw.sinks.memory())
    return flow


def counting(*, named: bool, merge: Any = add, **options: Any) -> gw.Flow:
    """A flow that counts rows per key, in one state or in a named one."""
    if named:
        return flow_of(count_by_name, state={"state": gw.ValueState(int, merge=merge)}, **options)
    return flow_of(count, **{"state": gw.ValueState(int, merge=merge), **options})


def compiled() -> CompiledFlow:
    flow = LogicalFlow("flow", 16)
    frame: Any = FakeDataFrame(SCHEMA)
    keyed = flow.source("rows", frame).key_by("k")
    flow.sink("totals", keyed.compute(total=gw.sum("v"), name="totals"), FakeSink())
    counts = keyed.process(count, state=gw.ValueState(int, merge=add), output=OUTPUT, name="p")
    flow.sink("out", counts, FakeSink())
    return flow.compile(resolver(flow))


def epoch(run: Any, **rows: int) -> dict[tuple[str, int | None], int]:
    """Run an epoch of so many rows of each key; return key and part → count in the state."""
    given = [{"k": key, "v": n} for key, number in rows.items() for n in range(number)]
    run.epoch({"rows": given})
    return counts_of(run)


def counts_of(run: Any) -> dict[tuple[str, int | None], int]:
    found = run.state("p", state="state").to_pylist()
    return {(row["k"], row.get("part")): int(row["state"]) for row in found}


# -- what is declared


@pytest.mark.parametrize(
    "options",
    [
        {"state": gw.ValueState(int, merge=add, ttl="1 hour")},
        {"timers": gw.types.OnTimer(lambda *_: None, clock="processing")},
    ],
)
def test_what_belongs_to_a_whole_key_is_refused_beside_merge(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidFlowError, match=r"has merge=.* and (timers|ttl)="):
        counting(named=False, **options)


def test_what_belongs_to_a_whole_key_is_refused_beside_merged_states() -> None:
    with pytest.raises(InvalidFlowError, match=r"has merge=, .* and timers="):
        flow_of(timers=gw.types.OnTimer(lambda *_: None, clock="processing"))
    states = states_of(total=gw.ValueState(int, ttl="1 hour", merge=add))
    with pytest.raises(InvalidFlowError, match="State 'total' of operator 'p' has merge= and ttl="):
        flow_of(state=states)


def test_all_states_are_merged_or_none() -> None:
    with pytest.raises(InvalidFlowError, match="State 'last' of operator 'p' has no merge="):
        flow_of(state=states_of(last=gw.ListState(int)))


@pytest.mark.parametrize(
    ("merge", "told", "told_of_state"),
    [
        ("sum", "merge='sum', which cannot be called", "State 'state' of operator 'p' was given "),
        (lambda one: one, r"cannot be called as merge\(", r"\(value, other\)"),
    ],
)
def test_a_merge_that_cannot_be_called_with_two_states_is_refused(
    merge: Any, told: str, told_of_state: str
) -> None:
    with pytest.raises(InvalidFlowError, match=told):
        counting(named=False, merge=merge)
    with pytest.raises(InvalidFlowError, match=told_of_state):
        counting(named=True, merge=merge)


def test_names_of_states_of_parts_are_taken() -> None:
    states = states_of(parts_total=gw.ValueState(int, merge=add))
    with pytest.raises(
        InvalidFlowError, match="a state named 'parts_total', a name that merge= needs"
    ):
        flow_of(state=states)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        (False, "hot keys in parts, merged by add"),
        (True, "state (value of int, parts merged by add"),
    ],
)
def test_explain_says_by_what_parts_are_merged(
    named: bool, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counting(named=named).explain()
    text = " ".join(capsys.readouterr().out.split())
    assert told in text
    assert "__godwit" not in text


def test_it_shares_no_component_with_operators_whose_rows_stay_in_their_lane() -> None:
    flow = compiled()
    assert sorted(c.name for c in flow.components) == ["p", "totals"]
    operator = flow.operator("p")
    assert operator.keys.names == operator.user_keys.names == ["k"]
    assert operator.hash_columns.names == ["k", "__godwit_part"]
    with pytest.raises(InvalidPlanError, match="leave spread= or merge= out"):
        flow.with_plan(regrouped(flow, {"both": ["totals", "p"]}))


# -- rows on their way


def test_rows_of_hot_keys_are_dealt_by_their_values_and_others_stay() -> None:
    operator = compiled().operator("p")
    rows = pa.record_batch({"k": ["hot", "cold"] * 50, "v": list(range(100))})
    grid = Grid(rows=2, columns=1, parts=(5, 6))
    spreads = Spreads.of(HotKey(hash=HASH, key="", grids=(WHOLE, grid)))
    arranged, left_out, _ = operator.arrange(rows, EpochTime(spreads=spreads))
    assert left_out is None
    assert arranged.schema.names == ["k", "__godwit_part", "v"]
    parts = arranged.column(1).to_pylist()
    assert set(parts[1::2]) == {None}
    assert set(parts[::2]) == {5, 6}
    assert 10 < parts.count(5) < 40
    turned = rows.take(pa.array(range(99, -1, -1)))
    again = operator.arrange(turned, EpochTime(spreads=spreads))[0]
    assert again.column(1).to_pylist() == parts[::-1]


# -- how states are merged


@KINDS
def test_merge_comes_and_goes_with_state_there_but_not_while_a_key_has_parts(
    tmp_path: Path, named: bool
) -> None:
    where = str(tmp_path / "checkpoint")
    with_merge, without = counting(named=named), counting(named=named, merge=None)
    options: dict[str, Any] = {"executors": 2, "checkpoint": where}
    with gw.testing.cluster(without, **options) as run:
        assert epoch(run, hot=10, cold=3) == {("hot", None): 10, ("cold", None): 3}
    with gw.testing.cluster(with_merge, **options) as run:
        run.hot_keys.spread("p", "hot", left=2)
        state = epoch(run, hot=40, cold=3)
        assert (state.pop(("hot", None)), state.pop(("cold", None))) == (10, 6)
        assert (len(state), sum(state.values())) == (2, 40)
    with (
        pytest.raises(CheckpointMismatchError, match=r"state of .*hot.* in several parts"),
        gw.testing.cluster(without, **options),
    ):
        pass
    with gw.testing.cluster(with_merge, **options) as run:
        assert sum(epoch(run, hot=4).values()) == 54 + 6
        run.hot_keys.gather("p", "hot")
        assert epoch(run, cold=1) == {("hot", None): 54, ("cold", None): 7}
    assert not verify(CheckpointStorage.open(where)).findings
    with gw.testing.cluster(without, **options) as run:
        assert epoch(run, hot=1) == {("hot", None): 55, ("cold", None): 7}


@KINDS
def test_parts_that_are_exchanged_for_others_are_merged(named: bool) -> None:
    with gw.testing.cluster(counting(named=named), executors=2) as run:
        run.hot_keys.spread("p", "hot", left=2)
        before = epoch(run, hot=40)
        assert len(before) == 2
        run.hot_keys.spread("p", "hot", left=3)
        state = epoch(run, hot=30)
        assert state.pop(("hot", None)) == 40  # the first state that it ever had is one of a part
        assert not state.keys() & before.keys()
        assert (len(state), sum(state.values())) == (3, 30)


def test_each_state_is_merged_by_its_own_function() -> None:
    with gw.testing.cluster(flow_of(), executors=2) as run:
        run.epoch({"rows": HOT[:20]})
        run.hot_keys.spread("p", "hot", left=3)
        run.epoch({"rows": HOT})
        parts = {row["part"] for row in run.state("p", state="total").to_pylist()}
        assert len(parts) == 4
        run.hot_keys.gather("p", "hot")
        run.epoch({"rows": [{"k": "cold", "v": 0}]})
        whole = {"k": "hot", "part": None}

        def of_hot(state: str) -> list[dict[str, Any]]:
            rows = run.state("p", state=state).to_pylist()
            return [row for row in rows if row.items() >= whole.items()]

        (total,) = of_hot("total")
        every = [row["v"] for row in [*HOT[:20], *HOT]]
        assert int(total["state"]) == sum(every)
        times = {row["item"]: int(row["state"]) for row in of_hot("times")}
        assert times == {value: every.count(value) for value in set(every)}
        (last,) = of_hot("last")
        assert last["state"] == "[9,9,9,9,9]"
        run.epoch({"rows": HOT[:1]})  # the key continues with what was merged
        (total,) = of_hot("total")
        assert int(total["state"]) == sum(every) + HOT[0]["v"]


def test_items_and_values_that_one_of_two_has_are_as_they_are() -> None:
    def apart(key: tuple[str], rows: Any, states: Any) -> None:
        for row in rows:
            states.times[row.v] = [row.v]
            if row.v == 7:
                states.total.value = 7

    def refuse(_one: Any, _other: Any) -> Any:
        raise AssertionError("nothing is in both")

    states = {
        "times": gw.MapState(int, list[int], merge=refuse),
        "total": gw.ValueState(int, merge=refuse),
    }
    rows = [{"k": "hot", "v": n} for n in range(10)]
    with gw.testing.cluster(flow_of(apart, state=states), executors=2) as run:
        run.epoch({"rows": [{"k": "hot", "v": 100}]})
        run.hot_keys.spread("p", "hot", left=3)
        run.epoch({"rows": rows})
        run.hot_keys.gather("p", "hot")
        run.epoch({"rows": [{"k": "cold", "v": 0}]})
        rows = [row for row in run.state("p", state="times").to_pylist() if row["k"] == "hot"]
        assert {row["item"]: row["state"] for row in rows} == {
            n: f"[{n}]" for n in [*range(10), 100]
        }
        assert [row["state"] for row in run.state("p", state="total").to_pylist()] == ["7"]


def no(_state: Any, _other: Any) -> Any:
    raise ValueError("no")


def much(_state: Any, _other: Any) -> Any:
    return "much"


def nothing(_state: Any, _other: Any) -> Any:
    return None


@KINDS
@pytest.mark.parametrize(
    ("merge", "error", "told"),
    [
        (no, UserFunctionError, r"'no' of operator 'p' raised ValueError for key \('hot',\): no"),
        (nothing, UserFunctionError, r"^nothing, given as merge= of .*returned nothing for.*'hot'"),
        (much, StateEncodingError, r"much.*merge=.* returned.*|merge= of operator 'p', returned a"),
    ],
)
def test_a_merge_that_fails_or_returns_something_else_is_blamed_for_it(
    named: bool, merge: Any, error: type[gw.errors.GodwitError], told: str
) -> None:
    with gw.testing.cluster(counting(named=named, merge=merge), executors=2) as run:
        epoch(run, hot=5)
        run.hot_keys.spread("p", "hot", left=2)
        epoch(run, hot=40)
        run.hot_keys.gather("p", "hot")
        with pytest.raises(error, match=told) as caught:
            epoch(run, hot=1)
        assert "'hot'" in str(caught.value)
        assert sum(counts_of(run).values()) == 45


@pytest.mark.parametrize(("state", "returned"), [("last", 5), ("times", 0.5)])
def test_a_merge_of_lists_or_items_that_returns_something_else_is_blamed_for_it(
    state: str, returned: Any
) -> None:
    declared = replace(states_of()[state], merge=lambda _one, _other: returned)
    states = states_of(**{state: declared})
    with gw.testing.cluster(flow_of(state=states), executors=2) as run:
        run.epoch({"rows": HOT})
        run.hot_keys.spread("p", "hot", left=2)
        run.epoch({"rows": HOT})
        run.hot_keys.gather("p", "hot")
        told = "item .*merge=. returned" if state == "times" else "merge=. returned"
        with pytest.raises(StateEncodingError, match=told) as caught:
            run.epoch({"rows": HOT})
        assert "'hot'" in str(caught.value)
        assert "lambda" in str(caught.value)


def test_parts_of_a_single_state_are_those_of_the_named_state_that_it_becomes(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"executors": 2, "checkpoint": str(tmp_path / "checkpoint")}
    with gw.testing.cluster(counting(named=False), **options) as run:
        run.hot_keys.spread("p", "hot", left=2)
        assert len(epoch(run, hot=60)) == 2
    with gw.testing.cluster(counting(named=True), **options) as run:
        run.hot_keys.gather("p", "hot")
        assert epoch(run, hot=60) == {("hot", None): 120}


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
    flow = compiled()
    orders = EventTimes(flow, None).spreading
    policy = SpreadHotKeys(
        orders,
        gw.control.Spreading(epochs=1, confirm=1),
        overrides=ManualOverrides(announce=lambda *_, **__: None),
    )
    plan = ComponentView(assignment=even_assignment(16, ["a", "b"], [2, 2]))
    hot = KeyWork(hash=HASH, key='["hot"]', left=60_000, right=0, pairs=0)
    work = {"p": OperatorWork(total=100_000, keys=(hot,))}
    outcome = EpochOutcome(epoch=0, batch=0, rows_in=10, key_work=work)
    policy.observe(FlowEpoch(outcome=outcome, took_s=0.0, flow=flow, component_views={"p": plan}))
    (proposal,) = policy.propose(0.0)
    grid = proposal.change.grid
    assert (proposal.change.key, grid.columns) == ('["hot"]', 1)
    assert grid.rows == 4
    assert 0 not in grid.parts
    assert "2.40 times the average work of a lane" in proposal.reason


# -- in users' tests


def test_a_user_spreads_a_key_only_where_parts_are_declared() -> None:
    with gw.testing.cluster(counting(named=False), executors=2) as run:
        with pytest.raises(InvalidPlanError, match="no process with merge="):
            run.hot_keys.spread("q", "hot", left=3)
        with pytest.raises(InvalidPlanError, match="right=2 parts: it is not a join"):
            run.hot_keys.spread("p", "hot", left=1, right=2)
