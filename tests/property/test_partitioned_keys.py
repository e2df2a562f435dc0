"""Operators by (area, user) that are placed by area give what they give when placed by both.

Of every kind of operator, one by two columns and one behind it by the first of them share a
component, while key groups migrate, executors die and the driver starts again; rows are counted
that are sent from one to the other.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.long_tests import chosen

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.api.streams import KeyedStream
    from godwit.migration.outcome import EpochOutcome

COLUMNS = "area string, user int, ts timestamp, v long"
NOW = "2024-05-01 00:00"
AREAS = ["north", "south", "east", "west", None, "", "ä"]
EMITTED = "area string, user int, n long"


def each(key: Any, rows: Any, state: dict[str, int]) -> Any:
    for _ in rows:
        state["n"] = state.get("n", 0) + 1
        yield *key, state["n"]


def named(key: Any, rows: Any, states: Any) -> Any:
    for row in rows:
        states.seen[row.v] = True
        yield *key, len(states.seen)


def wound(key: Any, rows: Any, state: dict[str, int]) -> None:
    for row in rows:
        rows.timers.set(row.ts + dt.timedelta(minutes=5))


def rung(key: Any, timer: Any, state: dict[str, int]) -> Any:
    yield *key, int(timer.time.timestamp()) // 60


def with_table(key: Any, rows: Any, state: dict[str, int], names: Any) -> Any:
    yield from each(key, rows, state)


def whole(key: Any, rows: Any, window: Any) -> Any:
    yield *key, len(list(rows))


@dataclass
class Counted:
    n: int = 0


def number(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
    counts = np.bincount(key_of_row, minlength=states.num_rows)
    more = pa.array(states["n"].to_numpy() + counts)
    new = states.set_column(states.schema.get_field_index("n"), "n", more)
    return new, new


def stated(by: KeyedStream) -> list[str] | None:
    """Return the columns that place rows, as a call takes them."""
    return None if by.partition_by is None else [*(by.partition_by or by.keys)]


HOUR, TEN = gw.tumbling("1 hour"), gw.hopping("1 hour", every="10 minutes")
KINDS: dict[str, Any] = {
    "compute": lambda _, by: by.compute(name="a", n=gw.count()),
    "complete": lambda _, by: by.compute(name="a", output="complete", n=gw.count()),
    "process": lambda _, by: by.process(each, state=dict, output=EMITTED, name="a"),
    "states": lambda _, by: by.process(
        named, state={"seen": gw.MapState(int, bool)}, output=EMITTED, name="a"
    ),
    "batch": lambda _, by: by.process_batch(number, state=Counted, output=EMITTED, name="a"),
    "timers": lambda _, by: by.process(
        wound, state=dict, timers=gw.types.OnTimer(rung, clock="event"), output=EMITTED, name="a"
    ),
    "rows": lambda _, by: by.window(gw.rows(6, every=2), name="a").compute(n=gw.count()),
    "tumbling": lambda _, by: by.window(HOUR, name="a").compute(n=gw.count()),
    "hopping": lambda _, by: by.window(TEN, name="a").compute(n=gw.count()),
    "apart": lambda _, by: by.window(TEN, consolidate="measured", name="a").compute(n=gw.count()),
    "session": lambda _, by: by.window(gw.session("5 minutes"), name="a").compute(n=gw.count()),
    "whole": lambda _, by: by.window(HOUR, name="a").process(whole, output=EMITTED),
    "join": lambda _, by: by.join(
        by, between=("0 seconds", "9 minutes"), how="left", suffix="_r", name="a"
    ),
    "newest": lambda _, by: by.join_newest(by, suffix="_r", name="a"),
    "duplicates": lambda rows, by: rows.drop_duplicates(
        "area", "user", within="20 minutes", partition_by=stated(by), name="a"
    ),
}
CHOSEN = chosen(KINDS, only_long=["complete", "tumbling"])
MEETING = {"join", "newest", "duplicates"}
"""Kinds whose rows are those of the source."""
ONCE = {"timers", "rows", "tumbling", "hopping", "apart", "session", "whole", *MEETING}
"""Kinds whose rows do not depend on where epochs begin."""


def flow_of(kind: str, key_groups: int, *, partition_by: Any) -> gw.Flow:
    """One operator of a kind by area and user, and one behind it by area."""
    flow = gw.Flow("areas", num_key_groups=key_groups)
    rows = flow.source("rows", gw.testing.stream(COLUMNS), event_time="ts", slack="1 minute")
    made = KINDS[kind](rows, rows.key_by("area", "user", partition_by=partition_by))
    results = {"most": gw.max("v" if kind in MEETING else "n")}
    if kind in ONCE:
        results["rows"] = gw.count()
    after = made.key_by("area").compute(name="b", **results)
    flow.sink("users", made, gw.sinks.noop())
    flow.sink("areas", after, gw.sinks.noop())
    return flow


def drawn_rows(rng: random.Random, epoch: int) -> list[dict[str, Any]]:
    return [
        {
            "area": rng.choice(AREAS),
            "user": rng.randrange(9),
            "ts": f"2024-05-01 {epoch // 3:02}:{(20 * epoch + rng.randrange(20)) % 60:02}",
            "v": rng.randrange(50),
        }
        for _ in range(40)
    ]


def results(played: Any, kind: str) -> tuple[Any, Any]:
    """Return what came out: all rows, or the last of each key where epochs make a difference."""
    users, areas = (
        [tuple(row.values()) for row in table.to_pylist()]
        for table in (played.rows("users"), played.current("areas"))
    )
    if kind in ONCE:
        return Counter(users), Counter(areas)
    last: dict[Any, int] = {}
    for *key, n in users:
        last[tuple(key)] = max(n, last.get(tuple(key), 0))
    return last, Counter(areas)


def sent(epochs: Sequence[EpochOutcome]) -> int:
    """Count the rows that went through an exchange between operators."""
    return sum(sum(t.rows) for epoch in epochs for t in epoch.traffic.values())


@cache
def undisturbed(kind: str) -> tuple[list[list[dict[str, Any]]], tuple[Any, Any]]:
    """Return epochs, and what comes out of them where each row is sent on."""
    rng = random.Random(kind)
    epochs = [drawn_rows(rng, epoch) for epoch in range(5)]
    flow = flow_of(kind, 16, partition_by=None)
    run = gw.testing.run(flow, {"rows": epochs}, now=NOW, close_at_end=True)
    assert sent(run.epochs) > 0
    return epochs, results(run, kind)


@pytest.mark.parametrize(("kind", "key_groups"), [*zip(CHOSEN, itertools.cycle([12, 64]))])
def test_placed_by_area_is_what_placed_by_both_is(kind: str, key_groups: int) -> None:
    rng = random.Random(f"{kind} {key_groups}")
    epochs, expected = undisturbed(kind)
    one = flow_of(kind, key_groups, partition_by="area")
    names = [operator.name for operator in one.compiled().operators]
    with gw.testing.cluster(one, executors=3, now=NOW, components={"one": names}) as played:
        for number, rows in enumerate(epochs):
            trouble = rng.choice(["migrate", "kill", "restart", "none"])
            if trouble == "migrate":
                executor = rng.choice(sorted(played.executors))
                played.migrate(
                    dict.fromkeys(rng.sample(range(key_groups), 6), executor), component="one"
                )
            elif trouble == "kill":
                played.kill(rng.choice(sorted(played.executors)))
                played.add(f"new-{number}")
            elif trouble == "restart" and number:
                played.restart()
            played.epoch({"rows": rows})
        played.end_input()
        assert results(played, kind) == expected
        assert played.flow.levels == 1
        assert sent(played.epochs) == 0
        assert sum(rows for o in played.epochs for rows, _ in o.streams.values()) > 0


@pytest.mark.parametrize("kind", CHOSEN)
def test_state_that_is_partitioned_anew_is_the_same_state(kind: str) -> None:
    rng = random.Random(kind)
    epochs, expected = undisturbed(kind)
    ways = {"both": ["area", "user"], "area": "area", "user": "user"}
    flows = {by: flow_of(kind, 16, partition_by=placed) for by, placed in ways.items()}
    before = "both"
    with gw.testing.cluster(flows["both"], executors=2, now=NOW) as played:
        for rows in epochs:
            by = rng.choice([*ways])
            held = entries_of(played)
            played.restart(flows[by], repartition=True)
            assert entries_of(played) == held
            if by != before and held:
                changed = [e for e in played.events if isinstance(e, gw.events.FlowChanged)]
                assert "a is partitioned anew" in changed[-1].results
            before = by
            played.epoch({"rows": rows})
        played.end_input()
        assert results(played, kind) == expected


@pytest.mark.parametrize("kind", CHOSEN)
def test_a_running_stream_is_partitioned_anew_at_any_moment_of_it(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rng = random.Random(f"running {kind}")
    epochs, expected = undisturbed(kind)
    flow = flow_of(kind, 16, partition_by=None)
    commit, waited = CommitLog.commit, 0
    policy = gw.migration.Policy(recovery=gw.migration.Bounds(max_lag=0))
    with gw.testing.cluster(flow, executors=2, now=NOW, policy=policy) as played:
        for number, rows in enumerate(epochs):
            if number % 3 == 1:  # the next change comes while rows of this epoch wait
                lose_without_copies(played, {"rows": rows}, f"new-{number}", monkeypatch)
                waited += played._driver.view.waiting
                continue
            held = entries_of(played)
            to = {"a": rng.choice([None, "area", ["user"], ["user", "area"]])}
            dies = rng.choice([None, "before", "after"]) if number else None
            if dies is None:
                played.components.repartition(to)
            else:

                def crashed(log: CommitLog, record: Any, dies: str = dies) -> Any:
                    if dies == "after":
                        commit(log, record)
                    raise SystemError("the driver is gone")

                monkeypatch.setattr(CommitLog, "commit", crashed)
                with suppress(
                    gw.errors.EpochFailedError
                ):  # unless these are the columns that place it
                    played.components.repartition(to)
                monkeypatch.setattr(CommitLog, "commit", commit)
            assert entries_of(played) == held
            if dies is not None:
                played.restart()
            played._driver.copies_held = False
            if rng.random() < 0.5:
                played.kill(rng.choice(sorted(played.executors)))
                played.add(f"new-{number}")
            played.epoch({"rows": rows})
        played._driver.copies_held = False
        played.end_input()
        assert results(played, kind) == expected
    assert waited


def lose_without_copies(
    played: Any, rows: Any, newcomer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run an epoch whose rows wait where an executor was, as copies of its state are held up."""
    played._driver.copies_held = True
    lost = played.placement.assignments[played.flow.component_of("a").name].executor(0)
    played.add(newcomer)
    played.kill(lost)
    with monkeypatch.context() as patch:
        patch.setattr(played._driver, "run_until_idle", lambda: ())
        played._play(rows)


def entries_of(played: Any) -> dict[str, Counter[str]]:
    """Return the entries of all states of the operator, without their key groups."""
    operators = [o for o in played.flow.operators if o.name == "a" or o.part_of == "a"]
    found = {}
    for state in (state for operator in operators for state in operator.states):
        table = played.state(state.operator, state.state)
        if table.num_rows:
            rows = table.drop_columns("key_group").to_pylist()
            found[str(state)] = Counter(map(repr, rows))
    return found
