"""A flow over sources of its own gives what an undisturbed run gives, whatever happens to it.

Sources grow while the flow runs; epochs are as large as the sources' limits say; executors die and
come, key groups move, an epoch fails half-way, and the run starts again from its checkpoint, with
sources made anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.number_source import Numbers
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import SourceError


def shifted(table: pa.Table) -> pa.Table:
    return table.set_column(1, "number", pc.add(table["number"], 1000))


def running(key: Any, rows: Any, state: Any) -> Any:
    """Emit the sum so far with every row: order counts."""
    total = state.get("total", 0)
    for row in rows:
        total = (total * 3 + row.number) % 1_000_003
        yield key[0], row.number, total
    state["total"] = total


def built(left: Any, right: Numbers) -> gw.Flow:
    flow = gw.Flow("both", num_key_groups=8)
    first = flow.source("left", left)
    second = flow.source("right", right)
    totals = (
        first.union(second.map(shifted))
        .key_by("key")
        .compute(name="totals", n=gw.count(), total=gw.sum("number"))
    )
    flow.sink("totals", totals, gw.sinks.noop())
    ordered = first.key_by("key").process(
        running, name="ordered", state=dict, output="key string, number long, total long"
    )
    flow.sink("ordered", ordered, gw.sinks.noop())
    return flow


@dataclass
class Sources:
    """What the sources have, whoever reads it."""

    counts: list[int] = field(default_factory=lambda: [0, 0])
    limits: tuple[int | None, int | None] = (None, None)

    def made(self) -> list[Numbers]:
        return [
            Numbers(count, name=name, most=most)
            for count, name, most in zip(self.counts, ("x", "y"), self.limits, strict=True)
        ]


def by_key(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["key"])


STEP = st.one_of(
    st.tuples(st.just("grow"), st.tuples(st.integers(0, 30), st.integers(0, 30))),
    st.tuples(st.just("epoch"), st.none()),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("move"), st.integers(0, 3)),
    st.tuples(st.just("fail"), st.integers(0, 1)),
    st.tuples(st.just("restart"), st.integers(1, 3)),
)


@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=rounds(8, 30),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    limits=st.tuples(*[st.one_of(st.none(), st.integers(1, 25))] * 2),
    steps=st.lists(STEP, min_size=1, max_size=8),
)
def test_nothing_is_lost_or_doubled(
    limits: tuple[int | None, int | None], steps: list[tuple[str, Any]]
) -> None:
    sources = Sources(limits=limits)
    made = sources.made()
    with gw.testing.cluster(built(*made), executors=2) as run:
        for number, (step, value) in enumerate(steps):
            executors = sorted(run.executors)
            if step == "grow":
                sources.counts = [a + b for a, b in zip(sources.counts, value, strict=True)]
                for source, count in zip(made, sources.counts, strict=True):
                    source.count = count
            elif step == "epoch":
                run.epoch()
            elif step == "kill":
                run.add(f"new-{number}")
                run.kill(executors[value % len(executors)])
            elif step == "move":
                run.migrate(executors[value % len(executors)], component="totals")
            elif step == "fail":
                made[value].fails["splits"] = OSError("gone")
                made[value].count = sources.counts[value] = sources.counts[value] + 3
                try:
                    run.epoch()
                except SourceError:
                    made[value].fails.clear()
            else:
                made = sources.made()
                run.restart(built(*made), executors=value)
        for source in made:
            source.fails.clear()
        while run.epoch():
            pass
        undisturbed = gw.testing.run(built(*Sources(counts=sources.counts).made()))
        for sink in ("totals", "ordered"):
            state = "totals" if sink == "totals" else "ordered"
            ours, theirs = run.state(state).to_pylist(), undisturbed.state(state).to_pylist()
            assert by_key(ours) == by_key(theirs)
        rows = [r.rows("ordered").to_pylist() for r in (run, undisturbed)]
        for key in "abc":
            of_key = [[row for row in of if row["key"] == key] for of in rows]
            assert of_key[0] == of_key[1]


def row_of(source: Numbers, number: int) -> dict[str, Any]:
    return {"key": source.key_of(number), "number": number, "ts": None}


MIXED_STEP = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 30)),
    st.tuples(st.just("give"), st.integers(1, 30)),
    st.tuples(st.just("epoch"), st.none()),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("move"), st.integers(0, 3)),
    st.tuples(st.just("fail"), st.integers(1, 5)),
    st.tuples(st.just("restart"), st.integers(1, 3)),
)


@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=rounds(7, 25),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    limit=st.one_of(st.none(), st.integers(1, 25)),
    steps=st.lists(MIXED_STEP, min_size=1, max_size=8),
)
def test_nothing_is_lost_or_doubled_where_rows_come_with_a_dataframe_too(
    limit: int | None, steps: list[tuple[str, Any]]
) -> None:
    def flow_of(own: Numbers) -> gw.Flow:
        return built(gw.testing.stream("key string, number long, ts timestamp"), own)

    own, grown, came = Numbers(name="y", most=limit), 0, 0
    with gw.testing.cluster(flow_of(own), executors=2) as run:
        for number, (step, value) in enumerate(steps):
            executors = sorted(run.executors)
            if step == "grow":
                grown = own.count = grown + value
            elif step in {"give", "fail"}:
                rows = [row_of(own, n) for n in range(came, came + value)]
                if step == "fail":  # nothing of such an epoch counts, so the rows come again
                    own.fails["splits"], own.count = OSError("gone"), grown + 1
                    with pytest.raises(SourceError):
                        run.epoch({"left": rows})
                    own.fails.clear()
                    grown += 1
                run.epoch({"left": rows})
                came += value
            elif step == "epoch":
                run.epoch()
            elif step == "kill":
                run.add(f"new-{number}")
                run.kill(executors[value % len(executors)])
            elif step == "move":
                run.migrate(executors[value % len(executors)], component="totals")
            else:
                own = Numbers(grown, name="y", most=limit)
                run.restart(flow_of(own), executors=value)
        while run.epoch():
            pass
        undisturbed = gw.testing.run(built(Numbers(came, name="x"), Numbers(grown, name="y")))
        for state in ("totals", "ordered"):
            ours, theirs = run.state(state).to_pylist(), undisturbed.state(state).to_pylist()
            assert by_key(ours) == by_key(theirs)
