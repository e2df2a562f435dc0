"""`godwit why`: stories of a surge, a skew, a straggler, a quiet stream, a slow sink, a refusal.

The texts are what a user reads, so they stand here as they are printed.
"""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checkpoints import write_checkpoint
from tests.support.journal_story import event, write

from godwit.model import events
from godwit.ops.run_state import RunState, reduced
from godwit.ops.why import add_why_arguments, why_text

if TYPE_CHECKING:
    from pathlib import Path


def load(after_s: float, rate: float, **more: Any) -> dict[str, Any]:
    """A statistics period of ten seconds, at whose end the measurements are announced."""
    values: dict[str, Any] = {
        "period_s": 10.0, "epochs": 10, "missing": 0, "arrival_per_s": rate, "epoch_s": 0.8,
        "bottleneck": "time", "usage": {"time": 0.6}, "load_distance": 0.04,
        "load_index": {"0": 0.62, "1": 0.6}, "latency_ms": {"mean": 1100.0},
        "held_up_by": "executors", "held_up": 0.6, "arrival_error": 0.02,
    }  # fmt: skip
    return event(events.LoadMeasured, after_s=after_s, **(values | more))


LATENCY: dict[str, Any] = {"target_s": 2.0, "predicted_s": 4.1, "expected_s": 1.4}
SURGE = (
    load(10, 2400),
    load(20, 2450),
    load(24, 7300, held_up=1.0, latency_ms={"mean": 3200.0}),
    event(
        events.ScaledOut, after_s=24, before=4, wanted=9, numbers=LATENCY,
        reason="rows should take at most 2 s",
    ),
    load(34, 7280),
    event(
        events.DecisionJudged, after_s=34, before=4, wanted=9, verdict="helped", expected=1.4,
        measured=1.3, target=2.0, arrival_per_s=7300.0, reason="the target is met",
    ),
)  # fmt: skip
MOVES: dict[str, Any] = {
    "migrations": {"count": "control-1"}, "planner": "milp", "moves": 27, "state_bytes": 17 << 20,
    "draining": 0, "gain_s": 98.0, "cost_s": 0.16, "distance_before": 1.26, "distance_after": 0.01,
}  # fmt: skip
JUDGED: dict[str, Any] = {
    "components": ("count",), "before": 1.26, "expected": 0.01, "verdict": "helped",
}  # fmt: skip
SKEW = (
    load(10, 2400),
    load(20, 2400, load_distance=1.26, load_index={"0": 0.9, "1": 0.2}),
    event(events.RebalancingStarted, after_s=20, **MOVES),
    event(
        events.RebalancingJudged, after_s=40, **JUDGED, measured=0.04,
        reason="the load is as balanced as expected",
    ),
)  # fmt: skip
STRAGGLER = (
    load(10, 2400),
    load(
        20, 2400, load_distance=1.26, load_index={"0": 0.9, "1": 0.2}, speeds={"0": 0.34},
        arrival_error=0.0,
    ),
    event(events.RebalancingStarted, after_s=20, **MOVES),
)  # fmt: skip
QUIET = tuple(load(10 * n, 2400 + 10 * (n % 3)) for n in range(1, 7))
SINK: dict[str, Any] = {
    "held_up_by": "sink 'table'", "held_up": 0.98, "latency_ms": {"mean": 3143.0},
}  # fmt: skip
SLOW_SINK = (
    load(10, 700, **SINK),
    load(20, 700, **SINK),
    event(
        events.ScalingRefused, after_s=20, before=1, wanted=3, numbers=LATENCY,
        reason="a row takes 3 ms outside the lanes, 98% of the time at this rate: more "
        "executors do not reduce that",
    ),
)  # fmt: skip
REFUSAL = (
    load(10, 2400),
    event(
        events.ScalingRefused, after_s=10, before=4, wanted=6, numbers=LATENCY,
        reason="this cluster has no pool",
    ),
    event(events.PlannerFailed, after_s=11, planner="mine", reason="it has not returned"),
)  # fmt: skip

STORIES = {
    "surge": (
        SURGE,
        """\
scaled out from 4 to 9 executors: rows should take at most 2 s
  seen      7,300 rows/s arrived (2,450 in the period before); executors took 100% of the time;
            executor 0 was the busiest (62%; load distance 4%); a row took 3.2 s
  noise     for 2 periods (20 s) 2,400 to 2,450 rows/s and load distances up to 4% changed nothing;
            by chance a period's rate strays by ±4%
  expected  1.4 s for a row with 9 executors; the target is 2 s
  came      1.3, helped: the target is met

since then  nothing had to change
  seen      7,280 rows/s arrived; executors took 60% of the time; executor 0 was the busiest (62%;
            load distance 4%); a row took 1.1 s""",
    ),
    "skew": (
        SKEW,
        """\
moved 27 key groups of count (17.0 MiB of state)
  seen      2,400 rows/s arrived; executors took 60% of the time; executor 0 was the busiest (90%;
            load distance 126%); a row took 1.1 s
  noise     for 1 period (10 s) 2,400 rows/s and load distances up to 4% changed nothing; by chance
            a period's rate strays by ±4%
  expected  a load distance of 1% instead of 126%, which saves 98 s for 0.16 s of copying
  came      a load distance of 4%, helped: the load is as balanced as expected""",
    ),
    "straggler": (
        STRAGGLER,
        """\
moved 27 key groups of count (17.0 MiB of state)
  seen      2,400 rows/s arrived; executors took 60% of the time; executor 0 was the busiest (90%;
            load distance 126%); executors differed: 0 at 0.34 of the speed; a row took 1.1 s
  noise     for 1 period (10 s) 2,400 rows/s and load distances up to 4% changed nothing
  expected  a load distance of 1% instead of 126%, which saves 98 s for 0.16 s of copying""",
    ),
    "quiet": (
        QUIET,
        """\
so far      nothing had to change
  seen      2,400 rows/s arrived; executors took 60% of the time; executor 0 was the busiest (62%;
            load distance 4%); a row took 1.1 s
  noise     for 5 periods (50 s) 2,400 to 2,420 rows/s and load distances up to 4% changed nothing;
            by chance a period's rate strays by ±4%""",
    ),
    "slow sink": (
        SLOW_SINK,
        """\
stayed at 1 executor, though 3 were wanted: a row takes 3 ms outside the lanes, 98% of
            the time at this rate: more executors do not reduce that
  seen      700 rows/s arrived; sink 'table' took 98% of the time; executor 0 was the busiest (62%;
            load distance 4%); a row took 3.14 s
  noise     for 1 period (10 s) 700 rows/s and load distances up to 4% changed nothing; by chance a
            period's rate strays by ±4%
  better    more executors do not help a sink: make its target faster, write less to it, or give it
            larger epochs by a longer trigger""",
    ),
    "refusal": (
        REFUSAL,
        """\
stayed at 4 executors, though 6 were wanted: this cluster has no pool
  seen      2,400 rows/s arrived; executors took 60% of the time; executor 0 was the busiest (62%;
            load distance 4%); a row took 1.1 s""",
    ),
}


def state_of(entries: tuple[dict[str, Any], ...]) -> RunState:
    state = RunState()
    for entry in entries:
        state = reduced(state, json.loads(json.dumps(entry)))
    return state


@pytest.mark.parametrize("name", STORIES)
def test_a_story_reads_as_it_should(name: str) -> None:
    entries, expected = STORIES[name]
    text = why_text(state_of(entries), 9)
    without_times = text if expected.startswith("so far") else text[12:]
    assert without_times[: len(expected)] == expected


def test_a_decision_that_brought_nothing_names_what_would() -> None:
    held_up = load(34, 7280, held_up_by="driver", held_up=0.95)
    judged = event(
        events.DecisionJudged, before=4, wanted=9, verdict="no help", expected=1.4, measured=3.9,
        target=2.0, arrival_per_s=7300.0, reason="the target is missed",
    )  # fmt: skip
    story = state_of((*SURGE[:4], held_up, judged)).decisions[-1].story
    assert "longer trigger" in story.better
    assert story.came == "3.9, no help: the target is missed"


def test_journals_of_versions_that_measured_no_bottleneck_say_nothing_of_one() -> None:
    older = [json.loads(json.dumps(entry)) for entry in SURGE]
    for entry in older:
        for name in ("held_up_by", "held_up", "arrival_error"):
            entry["event"].pop(name, None)
    older[-1]["event"] |= {"verdict": "no help", "measured": 3.9}
    story = state_of(tuple(older)).decisions[-1].story
    assert "; 60% of time was used; " in story.seen
    assert story.noise.endswith("changed nothing")
    assert story.came == "3.9, no help: the target is met"
    assert story.better == ""


def test_an_idle_executor_and_an_error_of_nothing_are_not_shown_and_long_reasons_are() -> None:
    idle = load(20, 2000, load_distance=0.14, load_index={"0": 0.001, "1": 0.0}, arrival_error=1e-4)
    reason = "Executors can be neither added nor removed. " * 9
    refused = event(
        events.ScalingRefused, after_s=21, before=2, wanted=1, reason=reason, numbers={}
    )
    story = state_of((load(10, 2000), idle, refused)).decisions[-1].story
    assert story.decided == f"stayed at 2 executors, though 1 was wanted: {reason}"
    assert "busiest" not in story.seen
    assert "±" not in story.noise


def test_a_decision_of_another_day_than_the_last_entry_has_its_date() -> None:
    state = state_of((*SURGE[:4], load(3 * 24 * 3600.0, 2400)))
    decided = datetime.fromtimestamp(state.decisions[0].at_s).astimezone()
    assert why_text(state, 1).startswith(f"{decided:%m-%d %H:%M} scaled out from 4 to 9")


def test_forged_figures_break_no_story() -> None:
    forged = load(10, 1e300, held_up_by="sink\x1b[31m", latency_ms={"mean": "x"})
    for entry in (forged, load(10, -1.0, load_index={}), {"event": {"kind": "LoadMeasured"}}):
        text = why_text(state_of((entry, SURGE[3])), 1)
        assert "\x1b" not in text


def run(*texts: str) -> int:
    """Run the command, as the command line does."""
    parser = argparse.ArgumentParser()
    add_why_arguments(parser)
    args = parser.parse_args(texts)
    status: int = args.run(args)
    return status


def test_the_command_tells_the_last_decisions_as_text_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ck"
    lanes = event(
        events.LanesBalanced, after_s=50, component="count", key_groups=1, executors=("0",),
        imbalance_before=1.2, imbalance_after=1.0,
    )  # fmt: skip
    write(write_checkpoint(path, name="delays", epochs=1), [*SURGE, *SKEW, lanes])
    assert run(str(path), "--last", "1") == 0
    out = capsys.readouterr().out
    assert out.startswith("(1 earlier decision: --last 2)\n")
    assert "moved 27 key groups" in out
    assert "other lanes" not in out
    assert run(str(path), "--json", "--all") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [decision["kind"] for decision in printed["decisions"]] == [
        "ScaledOut", "RebalancingStarted", "LanesBalanced",
    ]  # fmt: skip
    assert printed["decisions"][0]["came"] == "1.3, helped: the target is met"
    assert printed["held_up_by"] == "executors"
    assert printed["since"] is None  # no period ended after the last decision
