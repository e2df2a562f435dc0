"""Correction of a scaling model that calls too few executors sufficient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.control.test_scaling import situation

from godwit.control.model_error import ModelError
from godwit.control.scaling import WantedExecutors
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Sequence

CURVE = (9.0, 4.0, 2.0, 1.5, 1.2)


class Corrected:
    """A correction of four executors' figures, of which 1.5 is predicted and 2 is the target."""

    def __init__(self) -> None:
        self.announced: list[events.ModelCorrected] = []
        self.error = ModelError(self.hear)

    def hear(self, kind: type[events.Event], **values: Any) -> None:
        event = kind(epoch=0, at_s=0.0, **values)
        assert isinstance(event, events.ModelCorrected)
        self.announced.append(event)

    def after(self, *measured: float | None, resizing: bool = False, **changed: Any) -> Corrected:
        for figure in measured:
            answer = WantedExecutors(
                executors=4, comfortable=4, reason="", measured=figure, target=2.0, curve=CURVE
            )
            self.error.update(situation(**changed), answer, resizing=resizing)
        return self


def test_two_missed_periods_that_the_model_calls_met_correct_it_by_the_last_error() -> None:
    corrected = Corrected().after(1.5, 2.5)
    assert corrected.error.factor == 1
    assert corrected.after(2.4).error.factor == pytest.approx(1.6)
    (event,) = corrected.announced
    assert (event.executors, event.measured, event.predicted) == (4, 2.4, 1.5)
    assert "corrected by 1.60" in event.describe()
    assert corrected.error.corrected(situation()).learned.ratio_at(7) == pytest.approx(1.6)


def test_two_periods_at_the_edge_of_the_target_that_were_not_predicted_correct_it_too() -> None:
    assert Corrected().after(1.6, 1.85, 1.9).announced


@pytest.mark.parametrize(
    "measured",
    [
        (1.5, 2.4, 1.7, 2.4),  # one period
        (8.0, 6.0, 4.0, 2.1),  # a step that is worked off
        (1.5, 1.64, 1.64, 1.64),  # no more than noise, far from the target
        (2.4, 2.4),  # of the first, nothing is known before
        (2.4, None, 2.4, 2.4),
    ],
)
def test_what_may_pass_corrects_nothing(measured: Sequence[float | None]) -> None:
    assert not Corrected().after(*measured).announced


@pytest.mark.parametrize("changed", [{"resizing": True}, {"backlog_rows": 10_000}])
def test_periods_of_a_step_that_is_worked_off_correct_nothing(changed: dict[str, Any]) -> None:
    assert not Corrected().after(1.5, 2.4, 2.4, 2.4, **changed).announced


def test_a_model_that_says_itself_that_the_target_is_missed_is_not_corrected() -> None:
    assert not Corrected().after(4.5, 4.5, 4.5, executors=2).announced


def test_the_correction_follows_later_errors_and_ends_with_them() -> None:
    corrected = Corrected().after(2.7, 2.7, 2.7)
    assert corrected.error.factor == pytest.approx(1.8)
    assert corrected.after(1.8).error.factor == pytest.approx(1.8)  # it falls, and tells nothing
    assert corrected.after(1.8).error.factor == pytest.approx(1.5)
    corrected.after(*[1.5] * 5)
    assert corrected.error.factor == 1
    assert [event.factor for event in corrected.announced] == [pytest.approx(1.8), 1]
    assert "right again" in corrected.announced[-1].describe()


def test_half_of_the_correction_stays_at_another_rate() -> None:
    corrected = Corrected().after(2.7, 2.7, 2.7)
    assert corrected.after(1.5, arrival_per_s=2000.0).error.factor == pytest.approx(1.4)
