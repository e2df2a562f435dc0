"""Verdicts on scaling decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.unit.control.test_scaling import situation

from godwit.control.cost_benefit import SelectedMoves
from godwit.control.interfaces import MeasuredProblem
from godwit.control.judging import BalanceJudge, Judge
from godwit.control.planning import Planned
from godwit.control.scaling import WantedExecutors
from godwit.control.situation import StageLoad
from godwit.control.statistics import Statistics
from godwit.engine.policies import CommittedEpoch, Topology
from godwit.migration.outcome import EpochOutcome
from godwit.migration.state import ComponentView
from godwit.model import events
from godwit.model.assignment import even_assignment
from godwit.model.key_groups import KeyGroupLoad
from godwit.placement import Problem

if TYPE_CHECKING:
    from godwit.control.statistics import PeriodStatistics
    from godwit.model.assignment import Assignment

CURVE = (9.0, 4.0, 2.0, 1.0, 0.8)


def answer(measured: float | None, *, target: float = 0.9) -> WantedExecutors:
    return WantedExecutors(
        executors=4, comfortable=5, reason="", measured=measured, target=target, curve=CURVE
    )


class Judged:
    """A judge, and what it said."""

    def __init__(self) -> None:
        self.said: list[events.DecisionJudged] = []
        self.judge = Judge(self.hear)

    def hear(self, kind: type[events.Event], **values: Any) -> None:
        event = kind(epoch=0, at_s=0.0, **values)
        assert isinstance(event, events.DecisionJudged)
        self.said.append(event)

    def after(
        self, measured: float, *, periods: int = 1, executors: int = 4, **changed: Any
    ) -> Judged:
        for _ in range(periods):
            at = situation(executors=executors, **changed)
            self.judge.judge_if_steady(at, answer(measured), steady=True)
        return self


def out(before: int = 2, wanted: int = 4) -> Judged:
    judged = Judged()
    judged.judge.decided("out", before, wanted, answer(4.0), situation(executors=before))
    return judged


@pytest.mark.parametrize(
    ("measured", "verdict"), [(0.85, "helped"), (1.3, "helped"), (3.0, "helped"), (3.9, "no help")]
)
def test_more_executors_have_helped_if_a_part_of_the_gain_came(
    measured: float, verdict: str
) -> None:
    judged = out().after(measured)
    (said,) = judged.said
    assert (said.verdict, said.expected, said.measured) == (verdict, 1.0, measured)
    assert bool(judged.judge.no_help_reason()) == (verdict == "no help")


def test_a_verdict_waits_until_the_stream_is_steady_with_the_executors_of_the_decision() -> None:
    judged = out().after(3.9, executors=3)
    judged.judge.judge_if_steady(situation(executors=4), answer(3.9), steady=False)
    assert not judged.said
    assert judged.after(3.9).said


def test_a_cure_that_did_not_help_is_not_taken_again_until_the_situation_is_another() -> None:
    judged = out().after(3.9)
    assert "4 executors gave 3.9, but 1 was expected" in judged.judge.no_help_reason()
    judged.after(3.9, periods=30)
    assert judged.judge.no_help_reason()
    judged.after(9.0, periods=1, arrival_per_s=6000.0)
    assert not judged.judge.no_help_reason()


def test_a_decision_made_early_in_a_step_is_not_blamed_for_the_rest_of_it() -> None:
    judged = out().after(3.9, arrival_per_s=1.2 * 4000.0)
    assert judged.said[0].verdict == "overtaken"
    assert not judged.judge.no_help_reason()
    assert out().after(3.9, arrival_per_s=0.8 * 4000.0).said[0].verdict == "no help"


def test_a_rate_that_rose_for_a_moment_leaves_the_verdict_to_the_stream_at_rest() -> None:
    judged = out()
    more = situation(executors=4, arrival_per_s=1.12 * 4000.0)
    judged.judge.judge_if_steady(more, answer(3.9), steady=False)
    assert judged.after(3.9).said[0].verdict == "no help"


def test_it_may_be_taken_again_once_there_are_fewer_executors() -> None:
    assert not out().after(3.9).after(4.0, periods=1, executors=3).judge.no_help_reason()


def test_the_reason_names_the_key_group_that_holds_the_stream_up() -> None:
    heavy = StageLoad(loads=np.array([0.8, 0.1]), component="sums", key_group=17)
    judged = out().after(3.9, stages=(heavy,))
    assert "key group 17 of 'sums' alone needs" in judged.said[0].reason
    named = out().after(3.9, stages=(replace(heavy, key='["hot"]').scaled(2.0),))
    assert 'of a lane, mostly with key ["hot"]: ' in named.said[0].reason


def test_a_decision_that_is_overtaken_is_not_judged() -> None:
    judged = out().after(3.9, periods=1, arrival_per_s=9000.0)
    assert [(e.verdict, e.measured) for e in judged.said] == [("overtaken", None)]
    again = out()
    again.judge.decided("out", 4, 5, answer(1.0), situation())
    assert [e.reason for e in again.said] == ["another decision was made"]
    late = out().after(3.9, periods=11, executors=3)
    assert [e.verdict for e in late.said] == ["overtaken"]


def test_fewer_executors_are_judged_by_what_was_expected_of_them() -> None:
    for measured, verdict in ((2.2, "helped"), (3.5, "no help")):
        judged = Judged()
        judged.judge.decided("in", 4, 3, answer(1.0), situation())
        judged.after(measured, executors=3)
        assert [e.verdict for e in judged.said] == [verdict]
        assert not judged.judge.no_help_reason()


def test_a_restart_remembers_what_did_not_help() -> None:
    (said,) = out().after(3.9).said
    again = Judged()
    again.judge.recall(said)
    assert again.judge.no_help_reason() == said.reason


def test_models_that_expect_nothing_are_not_judged() -> None:
    judged = Judged()
    plain = WantedExecutors(executors=4, comfortable=4, reason="")
    judged.judge.decided("out", 2, 4, plain, situation())
    judged.after(3.9)
    assert not judged.said


# -- moves of key groups --------------------------------------------------------------------------

EVEN = even_assignment(4, ["a", "b"], [1, 1])  # a: 0, 2; b: 1, 3


def planned(expected: float = 0.0) -> Planned:
    """A plan of one component that was to bring a load distance of a half down."""
    problem = Problem(
        executors=("a", "b"),
        load=np.full(4, 0.25),
        state_bytes=np.zeros(4),
        current=EVEN.executor_of,
        resources=("time",),
    )
    nothing = np.empty(0, np.int32)
    selected = SelectedMoves(
        assignment=problem.current, order=nothing, distance_before=0.5, distance_after=expected,
        relief=0.0, gain_s=0.0, cost_s=0.0, moved_bytes=0.0,
    )  # fmt: skip
    measured = MeasuredProblem(
        problem=problem, parts={"sum": slice(0, 4)}, rows_per_s=np.ones(4),
        link_bytes_per_s=1.0, held_bytes=np.zeros(4), variance=None,
    )  # fmt: skip
    return Planned(measured=measured, assignment=problem.current, selected=selected, planner="milp")


def period(*busy_ms: float, rows: int = 10_000, assignment: Assignment = EVEN) -> PeriodStatistics:
    """One in which lanes were busy for so long with each of four key groups."""
    statistics = Statistics(Topology(stages=(("sum",),)), 0.0, {})
    for number, at in enumerate((EVEN, assignment)):
        load = KeyGroupLoad(
            key_groups=np.arange(4), rows=np.full(4, rows), keys=np.full(4, 1),
            cpu_ms=np.array(busy_ms), state_bytes=np.zeros(4, np.int64),
        )  # fmt: skip
        outcome = EpochOutcome(epoch=number, batch=number, rows_in=4 * rows, loads={"sum": load})
        component_views = {"sum": ComponentView(assignment=at)}
        statistics.observe(
            CommittedEpoch(outcome=outcome, component_views=component_views, took_s=1.0), 1.0
        )
    return statistics.close(2.0)


class Balanced:
    """A judge of moves, and what it said."""

    def __init__(self) -> None:
        self.said: list[events.RebalancingJudged] = []
        self.judge = BalanceJudge(self.hear)
        self.judge.decided(planned())

    def hear(self, kind: type[events.Event], **values: Any) -> None:
        event = kind(epoch=0, at_s=0.0, **values)
        assert isinstance(event, events.RebalancingJudged)
        self.said.append(event)


@pytest.mark.parametrize(
    ("busy_ms", "verdict", "measured"),
    [
        ((250.0, 250.0, 250.0, 250.0), "helped", 0.0),
        ((350.0, 250.0, 350.0, 250.0), "helped", 1 / 6),  # a part of the gain came
        ((300.0, 100.0, 300.0, 100.0), "no help", 0.5),
    ],
)
def test_moves_have_helped_if_executors_are_as_even_as_expected_or_a_part_of_it(
    busy_ms: tuple[float, ...], verdict: str, measured: float
) -> None:
    balanced = Balanced()
    balanced.judge.judge_ended([planned()], period(*busy_ms), set())
    (said,) = balanced.said
    assert (said.verdict, said.before, said.expected) == (verdict, 0.5, 0.0)
    assert said.measured == pytest.approx(measured)
    balanced.judge.judge_ended([planned()], period(*busy_ms), set())
    assert len(balanced.said) == 1


def test_what_so_few_rows_differ_by_chance_is_no_failure() -> None:
    balanced = Balanced()
    balanced.judge.judge_ended([planned()], period(300.0, 100.0, 300.0, 100.0, rows=4), set())
    assert balanced.said[0].verdict == "helped"


def test_nothing_is_judged_while_key_groups_move_nor_of_a_period_in_which_they_did() -> None:
    balanced = Balanced()
    balanced.judge.judge_ended([planned()], period(1.0, 1.0, 1.0, 1.0), {"sum"})
    moved = replace(
        EVEN, version=1, lane_of=EVEN.lane_of, executor_of=EVEN.executor_of[::-1].copy()
    )
    balanced.judge.judge_ended([planned()], period(1.0, 1.0, 1.0, 1.0, assignment=moved), set())
    assert not balanced.said


def test_moves_are_overtaken_by_others_by_other_executors_and_by_time() -> None:
    others, executors, time = Balanced(), Balanced(), Balanced()
    others.judge.decided(planned())
    executors.judge.judge_ended([], period(1.0, 1.0, 1.0, 1.0), set())
    for _ in range(11):
        time.judge.judge_ended([planned()], period(1.0, 1.0, 1.0, 1.0), {"sum"})
    for balanced in (others, executors, time):
        assert [said.verdict for said in balanced.said] == ["overtaken"]
    given_up = Balanced()
    given_up.judge.abandoned("sum")
    given_up.judge.judge_ended([planned()], period(1.0, 1.0, 1.0, 1.0), set())
    assert not given_up.said
