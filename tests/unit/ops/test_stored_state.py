"""Look-ups in a checkpoint answer what the query itself would, of its last committed epoch."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.errors import InvalidInputError
from godwit.ops.page.stored_state import StoredStates
from godwit.ops.query_state import EPOCH, QueryState
from godwit.ops.state_view import NoStateError, UnknownStateError

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


class Clock:
    """A clock that the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1  # every look-up looks at the checkpoint
        return self.now_s


def stored(run: Any) -> StoredStates:
    return StoredStates(run._driver.log.storage, now_s=Clock())


def visit(_: Any, rows: Any, states: Any) -> Iterator[tuple[int]]:
    for row in rows:
        states.seen[row.v] = states.seen.get(row.v, 0) + 1
    states.count.value = len(states.seen)
    yield (len(states.seen),)


def several_operators() -> gw.Flow:
    """A flow with an operator of each kind of state."""
    flow = gw.Flow("asked", num_key_groups=16)
    columns = "k string, x double, v bigint, ts timestamp"
    rows = flow.source("rows", gw.sources.memory(columns), event_time="ts")
    keyed = rows.key_by("k")
    total = gw.sum("v")
    results = {
        "t": keyed.compute(name="t", n=gw.count(), total=total),
        "by_k": rows.key_by("k", "x", partition_by="k").compute(name="by_k", total=total),
        "w": keyed.window(gw.tumbling("10 minutes"), name="w").compute(n=gw.count()),
        "p": keyed.process(
            visit,
            name="p",
            output="n int",
            state={"seen": gw.MapState(int, int), "count": gw.ValueState(int)},
        ),
        "all": rows.key_by().compute(name="all", n=gw.count()),
    }
    for name, result in results.items():
        flow.sink(name, result, gw.sinks.noop())
    return flow


STATES = {"t": None, "by_k": None, "w": None, "p": "seen", "all": None}


def as_text(table: Any) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def test_answers_are_those_of_the_query_over_moves_losses_restarts_and_expiry() -> None:
    drawn = random.Random(7)
    run = gw.testing.cluster(several_operators(), executors=3)
    asked = stored(run)
    with pytest.raises(NoStateError):
        asked.state("t").scan()
    for epoch in range(8):
        rows = [
            {
                "k": drawn.choice(["a", "b", "ab", None]),
                "x": drawn.choice([0.0, -0.0, float("nan"), 1.5]),
                "v": drawn.randrange(4),
                "ts": DAY + (epoch * 4 + drawn.randrange(9)) * MINUTE,
            }
            for _ in range(drawn.randrange(1, 20))
        ]
        run.epoch({"rows": rows})
        match epoch % 4:
            case 0:
                run.add(f"new{epoch}")
                run.kill(drawn.choice(sorted(run.executors)))
            case 1:
                run.restart(executors=drawn.randrange(1, 4))
        for operator, state in STATES.items():
            query = QueryState(run._driver, operator, state)
            ours = asked.state(operator, state)
            every = ours.scan()
            assert as_text(every) == as_text(query.scan()), operator
            assert every.schema.metadata == {EPOCH: str(run._driver.log.latest_epoch).encode()}
            if not len(query.keys):
                continue
            keys: list[tuple[Any, ...]] = [(drawn.choice(["a", "b", "", None]),)]
            if operator == "by_k":
                keys = [(*keys[0], x) for x in (0.0, float("nan"), 7.0)]
            assert as_text(ours.get_many(keys)) == as_text(query.get_many(keys)), (operator, keys)
            assert as_text(ours.scan(keys[0][:1])) == as_text(query.scan(keys[0][:1])), operator
        assert asked.state("t").scan(limit=2).num_rows == min(2, asked.state("t").scan().num_rows)
    both = asked.together({name: asked.state(name) for name in ("t", "w")})
    assert both.get_tables({"t": "a", "w": "a"})["t"].num_rows == 1
    assert both.epoch == run._driver.log.latest_epoch
    with pytest.raises(UnknownStateError, match="no operator 'x'"):
        asked.state("x").scan()
    with pytest.raises(InvalidInputError, match="does not fit the state of 't'"):
        asked.state("t").get_many([("a", "b")])
    both_ways: list[Any] = [asked.state("t"), QueryState(run._driver, "t", None)]
    for state in both_ways:
        with pytest.raises(InvalidInputError, match="has more values than the state of 't'"):
            state.scan(("a", "b"))
        with pytest.raises(InvalidInputError, match="has the limit -1"):
            state.scan(limit=-1)


def test_one_look_at_the_checkpoint_serves_half_a_second_and_one_epoch_all_of_a_request() -> None:
    run = gw.testing.cluster(several_operators())
    row = {"k": "a", "x": 1.0, "v": 1, "ts": DAY}
    run.epoch({"rows": [row]})
    now = [0.0]
    asked = StoredStates(run._driver.log.storage, now_s=lambda: now[0])
    t = asked.state("t")

    def count() -> int:
        return int(t.get_many(["a"])["n"][0].as_py())

    assert count() == 1
    run.epoch({"rows": [row]})
    now[0] = 0.4
    assert count() == 1
    now[0] = 0.6
    assert count() == 2
    # The files of the epoch that was opened last are collected by and by.
    for _ in range(12):
        run.epoch({"rows": [row]})
    assert count() in {2, 14}
    assert asked.state("p", "count").get_many(["a"]).num_rows == 1
    now[0] = 2.0
    assert count() == 14


def test_what_is_kept_of_an_epoch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.ops.page.stored_state._SHOWN_BYTES", 200)
    run = gw.testing.cluster(several_operators())
    run.epoch({"rows": [{"k": f"k{i}", "x": 1.0, "v": 1, "ts": DAY} for i in range(200)]})
    asked = stored(run)
    assert asked.state("t").scan().num_rows == 200
    assert asked._epoch is not None
    assert len(asked._epoch._shown) < 8
    assert asked._epoch._bytes == sum(rows.nbytes for rows in asked._epoch._shown.values())
    assert asked.state("t").get_many([f"k{i}" for i in range(0, 300, 3)]).num_rows == 67
