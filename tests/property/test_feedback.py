"""A flow with a loop gives what a program without streams gives, whatever happens on the way.

Rows arrive while others go round; executors die and come, key groups move, an epoch fails at any of
its steps, and the run starts again from its checkpoint: no row goes round twice, and none is lost.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.loop_flows import (
    closure_flow,
    closure_of,
    countdown_flow,
    counted_down,
    counts_in,
)
from tests.support.rounds import rounds

import godwit as gw

if TYPE_CHECKING:
    from godwit.engine.loop import EpochLoop

EPOCH_STEPS = ("planned", "staged", "delivered", "committed")


class DiedError(Exception):
    """The driver is gone."""


STEP = st.one_of(
    st.tuples(st.just("rows"), st.integers(1, 6)),
    st.tuples(st.just("round"), st.integers(1, 3)),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("move"), st.integers(0, 3)),
    st.tuples(st.just("die"), st.sampled_from(EPOCH_STEPS)),
    st.tuples(st.just("restart"), st.integers(1, 3)),
)
OFTEN = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=rounds(6, 25),
    suppress_health_check=[HealthCheck.too_slow],
)


def play(build: Any, component: str, source: str, draw: Any, steps: list[tuple[str, Any]]) -> Any:
    """Play a history; return the run once its loop is dry."""
    flow = build()
    with gw.testing.cluster(flow, executors=2) as run:
        for number, (step, value) in enumerate(steps):
            executors = sorted(run.executors)
            if step == "rows":
                run.epoch({source: draw(value)})
            elif step == "round":
                run.go_round(value)
            elif step == "kill":
                run.add(f"new-{number}")
                run.kill(executors[value % len(executors)])
            elif step == "move":
                run.migrate(executors[value % len(executors)], component=component)
            elif step == "die":
                _die(run, value)
                run.restart(build())
            else:
                run.restart(build(), executors=value)
        run.go_round()
        assert run.go_round() == {}, "the loop is dry"
    return run


def _die(run: Any, at: str) -> None:
    """Begin a round and die at one of its steps, if anything waits."""

    def die(step: str, _epoch: int) -> None:
        if step == at:
            raise DiedError

    loop: EpochLoop[Any] = run._driver.loop  # whoever dies tells nobody
    loop.at_step = die
    with contextlib.suppress(DiedError):
        run.go_round(1)


@OFTEN
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=40, max_size=40),
    steps=st.lists(STEP, min_size=2, max_size=9),
)
def test_every_row_goes_round_as_often_as_it_says(
    rows: list[tuple[str, int]], steps: list[tuple[str, Any]]
) -> None:
    pending, taken = list(rows), []

    def draw(count: int) -> list[dict[str, Any]]:
        found = [pending.pop() for _ in range(min(count, len(pending)))]
        taken.extend(found)
        return [{"key": key, "left": left} for key, left in found]

    columns = gw.testing.stream("key string, left long")
    run = play(lambda: countdown_flow(columns, gw.sinks.noop()), "down", "rows", draw, steps)
    if not taken:
        return
    assert counts_in(run) == counted_down(taken)


@OFTEN
@given(
    edges=st.lists(st.tuples(*[st.integers(0, 7)] * 2), min_size=1, max_size=24),
    steps=st.lists(STEP, min_size=2, max_size=9),
)
def test_the_closure_of_a_graph_is_that_of_a_search(
    edges: list[tuple[int, int]], steps: list[tuple[str, Any]]
) -> None:
    pending, taken = list(edges), []

    def draw(count: int) -> list[dict[str, Any]]:
        found = [pending.pop() for _ in range(min(count, len(pending)))]
        taken.extend(found)
        return [{"node": node, "origin": None, "target": target} for node, target in found]

    columns = gw.testing.stream("node long, origin long, target long")
    run = play(lambda: closure_flow(columns, gw.sinks.noop()), "reach", "edges", draw, steps)
    pairs = [(row["origin"], row["node"]) for row in run.rows("pairs").to_pylist()]
    assert set(pairs) == closure_of(taken)
