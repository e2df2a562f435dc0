"""Named states with ``merge=``: what is declared, how they are merged, and who is blamed."""

from __future__ import annotations

from dataclasses import replace
from operator import add
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.errors import (
    CheckpointMismatchError,
    InvalidFlowError,
    StateEncodingError,
    UserFunctionError,
)

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = "k string, v bigint"
HOT: list[dict[str, Any]] = [{"k": "hot", "v": n % 10} for n in range(60)]


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


def flow_of(function: Any = note, states: Any = None, **options: Any) -> gw.Flow:
    flow = gw.Flow("flow", num_key_groups=16)
    rows = flow.source("rows", gw.testing.stream(COLUMNS))
    states = states_of() if states is None else states
    output = "k string, n bigint"
    noted = rows.key_by("k").process(function, states=states, output=output, name="p", **options)
    flow.sink("out", noted, gw.sinks.memory())
    return flow


# -- what is declared


def test_all_states_are_merged_or_none() -> None:
    states = states_of(last=gw.ListState(int))
    with pytest.raises(InvalidFlowError, match="State 'last' of operator 'p' has no merge="):
        flow_of(states=states)


def test_a_merge_of_a_state_is_checked_and_the_state_named() -> None:
    told: str
    merge: Any
    for merge, told in (
        ("sum", "State 'total' of operator 'p' was given merge='sum', which cannot be called"),
        (lambda one: one, r"cannot be called as merge\(value, other\)"),
    ):
        with pytest.raises(InvalidFlowError, match=told):
            flow_of(states=states_of(total=gw.ValueState(int, merge=merge)))


def test_what_belongs_to_a_whole_key_is_refused_beside_merged_states() -> None:
    with pytest.raises(InvalidFlowError, match=r"has merge=, .* and timers="):
        flow_of(timers="processing", on_timer=lambda *_: None)
    states = states_of(total=gw.ValueState(int, ttl="1 hour", merge=add))
    with pytest.raises(InvalidFlowError, match="State 'total' of operator 'p' has merge= and ttl="):
        flow_of(states=states)
    with pytest.raises(InvalidFlowError, match=r"both states= and merge=.*say it in the decl"):
        flow_of(merge=add)


def test_names_of_states_of_parts_are_taken() -> None:
    states = states_of(parts_total=gw.ValueState(int, merge=add))
    with pytest.raises(
        InvalidFlowError, match="a state named 'parts_total', a name that merge= needs"
    ):
        flow_of(states=states)


def test_explain_says_by_what_each_state_is_merged(capsys: pytest.CaptureFixture[str]) -> None:
    flow_of().explain()
    told = " ".join(capsys.readouterr().out.split())
    assert "total (value of int, parts merged by add)" in told
    assert "__godwit" not in told


# -- how they are merged


def test_each_state_is_merged_by_its_own_function() -> None:
    with gw.testing.cluster(flow_of(), executors=2) as run:
        run.epoch({"rows": HOT[:20]})
        run.spread("p", "hot", left=3)
        run.epoch({"rows": HOT})
        parts = {row["part"] for row in run.state("p", state="total").to_pylist()}
        assert len(parts) == 4
        run.gather("p", "hot")
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
        run.epoch({"rows": HOT[:1]})  # the key goes on with what was merged
        (total,) = of_hot("total")
        assert int(total["state"]) == sum(every) + HOT[0]["v"]


def test_items_and_values_that_one_of_two_has_are_as_they_are() -> None:
    def apart(key: tuple[str], rows: Any, states: Any) -> None:
        for row in rows:
            states.times[row.v] = [row.v]
            if row.v == 7:
                states.total.value = 7

    never: Any = "nothing is in both"

    def refuse(_one: Any, _other: Any) -> Any:
        raise AssertionError(never)

    states = {
        "times": gw.MapState(int, list[int], merge=refuse),
        "total": gw.ValueState(int, merge=refuse),
    }
    rows = [{"k": "hot", "v": n} for n in range(10)]
    with gw.testing.cluster(flow_of(apart, states), executors=2) as run:
        run.epoch({"rows": [{"k": "hot", "v": 100}]})
        run.spread("p", "hot", left=3)
        run.epoch({"rows": rows})
        run.gather("p", "hot")
        run.epoch({"rows": [{"k": "cold", "v": 0}]})
        rows = [row for row in run.state("p", state="times").to_pylist() if row["k"] == "hot"]
        assert {row["item"]: row["state"] for row in rows} == {
            n: f"[{n}]" for n in [*range(10), 100]
        }
        assert [row["state"] for row in run.state("p", state="total").to_pylist()] == ["7"]


@pytest.mark.parametrize(
    ("state", "returned", "told"),
    [
        ("total", None, "state 'total'.* nothing"),
        ("total", "much", "merge=. returned"),
        ("last", 5, "merge=. returned"),
        ("times", 0.5, "item .*merge=. returned"),
    ],
)
def test_a_merge_that_returns_something_else_is_blamed_for_it(
    state: str, returned: Any, told: str
) -> None:
    def wrong(_one: Any, _other: Any) -> Any:
        return returned

    declared = replace(states_of()[state], merge=wrong)
    with gw.testing.cluster(flow_of(states=states_of(**{state: declared})), executors=2) as run:
        run.epoch({"rows": HOT})
        run.spread("p", "hot", left=2)
        run.epoch({"rows": HOT})
        run.gather("p", "hot")
        with pytest.raises((UserFunctionError, StateEncodingError), match=told) as caught:
            run.epoch({"rows": HOT})
        assert "'hot'" in str(caught.value)
        assert "wrong" in str(caught.value)


# -- a checkpoint and flows that change


def test_merge_of_named_states_comes_and_goes_but_not_while_a_key_has_parts(
    tmp_path: Path,
) -> None:
    kept = str(tmp_path / "checkpoint")
    without = {
        "total": gw.ValueState(int),
        "last": gw.ListState(int),
        "times": gw.MapState(int, int),
    }
    every = 0

    def epoch(run: Any, rows: list[dict[str, Any]]) -> None:
        nonlocal every
        run.epoch({"rows": rows})
        every += len(rows)
        totals = run.state("p", state="times").to_pylist()
        assert sum(int(row["state"]) for row in totals) == every

    with gw.testing.cluster(flow_of(states=without), executors=2, checkpoint=kept) as run:
        epoch(run, HOT[:10])
    with gw.testing.cluster(flow_of(), executors=2, checkpoint=kept) as run:
        run.spread("p", "hot", left=2)
        epoch(run, HOT)
    with (
        pytest.raises(CheckpointMismatchError, match=r"state of .*hot.* in several parts"),
        gw.testing.cluster(flow_of(states=without), executors=2, checkpoint=kept),
    ):
        pass
    with gw.testing.cluster(flow_of(), executors=2, checkpoint=kept) as run:
        run.gather("p", "hot")
        epoch(run, HOT[:1])
    with gw.testing.cluster(flow_of(states=without), executors=2, checkpoint=kept) as run:
        epoch(run, HOT[:5])


def test_parts_of_a_single_state_are_those_of_the_named_state_that_it_becomes(
    tmp_path: Path,
) -> None:
    kept = str(tmp_path / "checkpoint")

    def count(_key: tuple[str], rows: Any, state: Any) -> None:
        state.value += len(rows)

    def count_by_name(_key: tuple[str], rows: Any, states: Any) -> None:
        states.state.value += len(rows)

    single = gw.Flow("flow", num_key_groups=16)
    keyed = single.source("rows", gw.testing.stream(COLUMNS)).key_by("k")
    output = "k string, n bigint"
    counted = keyed.process(count, state=int, output=output, name="p", merge=add)
    single.sink("out", counted, gw.sinks.memory())
    with gw.testing.cluster(single, executors=2, checkpoint=kept) as run:
        run.spread("p", "hot", left=2)
        run.epoch({"rows": HOT})
    named = flow_of(count_by_name, {"state": gw.ValueState(int, merge=add)})
    with gw.testing.cluster(named, executors=2, checkpoint=kept) as run:
        run.gather("p", "hot")
        run.epoch({"rows": HOT})
        (row,) = run.state("p").to_pylist()
        assert (row["part"], row["state"]) == (None, str(2 * len(HOT)))
