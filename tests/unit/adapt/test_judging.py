"""Verdicts on scaling decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.adapt.test_scaling import situation

from godwit.adapt.judging import Judge
from godwit.adapt.latency_model import StageLoad
from godwit.adapt.scaling import WantedExecutors
from godwit.model import events

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
            self.judge.look(at, answer(measured), steady=True)
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
    assert bool(judged.judge.why_not_again()) == (verdict == "no help")


def test_a_verdict_waits_until_the_stream_is_steady_with_the_executors_of_the_decision() -> None:
    judged = out().after(3.9, executors=3)
    judged.judge.look(situation(executors=4), answer(3.9), steady=False)
    assert not judged.said
    assert judged.after(3.9).said


def test_a_cure_that_did_not_help_is_not_taken_again_until_the_situation_is_another() -> None:
    judged = out().after(3.9)
    assert "4 executors brought 3.9 where 1 was expected" in judged.judge.why_not_again()
    judged.after(3.9, periods=30)
    assert judged.judge.why_not_again()
    judged.after(9.0, periods=1, arrival_per_s=6000.0)
    assert not judged.judge.why_not_again()


def test_it_may_be_taken_again_once_there_are_fewer_executors() -> None:
    assert not out().after(3.9).after(4.0, periods=1, executors=3).judge.why_not_again()


def test_the_reason_names_the_key_group_that_holds_the_stream_up() -> None:
    heavy = StageLoad(loads=np.array([0.8, 0.1]), component="sums", key_group=17)
    judged = out().after(3.9, stages=(heavy,))
    assert "key group 17 of 'sums' alone fills" in judged.said[0].reason


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
        assert not judged.judge.why_not_again()


def test_a_restart_remembers_what_did_not_help() -> None:
    (said,) = out().after(3.9).said
    again = Judged()
    again.judge.recall(said)
    assert again.judge.why_not_again() == said.reason


def test_models_that_expect_nothing_are_not_judged() -> None:
    judged = Judged()
    plain = WantedExecutors(executors=4, comfortable=4, reason="")
    judged.judge.decided("out", 2, 4, plain, situation())
    judged.after(3.9)
    assert not judged.said
