"""An asynchronous function gives what the plain one gives, whatever fails and moves meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

import godwit as gw

PROFILE = settings(derandomize=True, deadline=None, max_examples=rounds(3, 10), database=None)
ROW = st.tuples(st.sampled_from("abcdef"), st.integers(0, 9))
EVENT = st.sampled_from(["nothing", "kill", "migrate", "restart"])


def note(key: Any, rows: Any, states: Any) -> list[tuple[str, int, int]]:
    """What the function does once it has its answers."""
    emitted = []
    for row in rows:
        states.total.value += row.v
        states.seen.append(row.v)
        states.counts[row.v] = states.counts.get(row.v, 0) + 1
        emitted.append((key[0], states.total.value, states.counts[row.v] + len(states.seen)))
    if states.total.value > 25:
        rows.drop_state()
    return emitted


class Shaky:
    """A function whose attempts fail as told, some of them after they have changed the state."""

    def __init__(self, failures: list[int]) -> None:
        self.failures, self.attempts = failures, 0

    async def __call__(self, key: Any, rows: Any, states: Any) -> list[tuple[str, int, int]]:
        for _ in range(ord(key[0]) % 3):
            await asyncio.sleep(0)
        self.attempts += 1
        how = self.failures[self.attempts % len(self.failures)] if self.failures else 0
        if how == 1:
            raise ConnectionError
        emitted = note(key, rows, states)
        await asyncio.sleep(0)
        if how == 2:
            raise TimeoutError
        return emitted


def played(
    function: Any, epochs: list[list[tuple[str, int]]], happens: list[str], **options: Any
) -> list[Any]:
    flow = gw.Flow("lookups", num_key_groups=5)
    source = flow.source("rows", gw.testing.stream("k string, v long"))
    states: dict[str, Any] = {
        "total": gw.ValueState(int),
        "seen": gw.ListState(int),
        "counts": gw.MapState(int, int),
    }
    noted = source.key_by("k").process(
        function, state=states, output="k string, total long, n long", name="noted", **options
    )
    flow.sink("out", noted, gw.sinks.noop())
    run = gw.testing.cluster(flow, executors=2)
    every = []
    for rows, event in zip(epochs, happens, strict=False):
        out = run.epoch({"rows": [{"k": k, "v": v} for k, v in rows]})
        if "out" in out:
            every.append(sorted(map(tuple, map(dict.values, out["out"].to_pylist()))))
        if event == "kill":
            run.add(name := str(len(run.epochs) + 100))
            run.kill(next(e for e in run.executors if e != name))
        elif event == "migrate":
            run.migrate(max(run.executors), component="noted")
        elif event == "restart":
            run.restart(executors=2)
    tables = [run.state("noted", name).drop_columns(["key_group"]).to_pylist() for name in states]
    return [every, *(sorted(map(repr, table)) for table in tables)]


@PROFILE
@given(
    epochs=st.lists(st.lists(ROW, min_size=1, max_size=12), min_size=1, max_size=4),
    failures=st.lists(st.sampled_from([0, 0, 1, 2]), max_size=7).filter(lambda f: not f or 0 in f),
    happens=st.lists(EVENT, min_size=4, max_size=4),
    capacity=st.integers(1, 4),
)
def test_results_are_those_of_a_plain_function(
    epochs: list[list[tuple[str, int]]], failures: list[int], happens: list[str], capacity: int
) -> None:
    several = gw.types.Async(capacity=capacity, retries=50, backoff="0 seconds")
    asked = played(Shaky(failures), epochs, happens, asynchronous=several)
    assert asked == played(note, epochs, ["nothing"] * len(epochs))
