"""The loop keeps its promises on random histories, whoever plans; many more by command."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.tests.histories.drawing import BASELINES, PLANNED_BY, TROUBLES, draw
from lab.tests.histories.playing import play
from lab.tests.histories.steady import FIRST_S, draw_steady, moved, play_steady
from tests.support.rounds import rounds

from godwit.model import events
from godwit_lab.simulator import Keys, Machine, Rate, SimulatedCluster

# Solvers take seconds for what the others plan in milliseconds.
SLOW = {"albic", "milp", "mtm", "simple_ssm"}


def _is_quick(trouble: str, planner: str) -> bool:
    """True for one pair in three, in which every trouble and every planner is."""
    if planner in SLOW:
        return trouble == "shift"
    return (TROUBLES.index(trouble) + PLANNED_BY.index(planner)) % 3 == 0


def _is_played(trouble: str, planner: str) -> bool:
    """True for a pair that campaigns play: another third; of slow planners, every fourth."""
    number = TROUBLES.index(trouble)
    if planner in SLOW:
        return number % rounds(4, 2) == 0
    return (number + PLANNED_BY.index(planner)) % 3 <= rounds(1, 2)


@pytest.mark.parametrize(
    ("trouble", "planner"),
    [
        pytest.param(t, p, marks=[] if _is_quick(t, p) else [pytest.mark.campaign])
        for t in TROUBLES
        for p in PLANNED_BY
        if _is_quick(t, p) or _is_played(t, p)  # the others by command
    ],
)
def test_every_promise_is_kept(trouble: str, planner: str) -> None:
    seed = TROUBLES.index(trouble) * len(PLANNED_BY) + PLANNED_BY.index(planner)
    played = play(draw(seed))
    assert (played.drawn.planner, played.drawn.trouble) == (planner, trouble)
    assert not played.faults, f"python -m lab.tests.histories --only {seed}"


@pytest.mark.parametrize(
    "seed",
    [
        160,
        321,
        969,
        1485,
        1608,
        1754,
        2584,
        3096,
        3994,
        4685,
        6630,
        7124,
        7843,
        8869,
        8980,
        9070,
        9627,
        34494,
        48508,
        61071,
    ],
)
def test_promises_that_were_broken_once_are_kept(seed: int) -> None:
    """Stragglers, everything at once, migrations that outlast periods, or the rows."""
    assert not play(draw(seed)).faults, f"python -m lab.tests.histories --only {seed}"


@pytest.mark.parametrize("planner", BASELINES)
def test_a_baseline_stops_neither_the_stream_nor_the_loop(planner: str) -> None:
    """It may balance badly, but every row is processed once and migrations end."""
    faults = play(draw(TROUBLES.index("shift"), (planner,))).faults
    assert not [f for f in faults if "Traceback" in f or "wait" in f or "in flight" in f]


def test_equal_seeds_give_equal_histories() -> None:
    one, same = (play(draw(4)).simulation.history for _ in range(2))
    assert [e.describe() for e in one.events] == [e.describe() for e in same.events]


@pytest.mark.parametrize("seed", range(rounds(2, 3)))
def test_steady_input_moves_nothing_once_it_is_even(seed: int) -> None:
    """Few rows a period, of unequal cost: 500 streams of an hour by ``--steady 500``."""
    played = play_steady(draw_steady(seed, minutes=8.0))
    assert moved(played, FIRST_S) == 0


def test_truly_even_input_of_few_dear_rows_moves_nothing_at_all() -> None:
    """50 rows a second of 80 ms: chance makes executors differ by a tenth in every period."""
    drawn = draw_steady(0, minutes=4.0)
    even = replace(
        drawn.scenario,
        components=(replace(drawn.scenario.components[0], key_groups=128, row_ms=80.0),),
        cluster=SimulatedCluster(machines=(Machine(cores=2),) * 4),
        rate=Rate(rows_per_s=50.0),
        keys=Keys(number=100_000, zipf=0.0),
    )
    played = play_steady(replace(drawn, scenario=even, spread=0.0, busy=0.0))
    assert not played.history.of_kind(events.RebalancingStarted)
