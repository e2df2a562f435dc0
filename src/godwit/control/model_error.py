"""Correction of a scaling model that predicts that the target is met while it is missed.

Problem: a model is corrected at rest (`godwit.control.latency_model`).  A stream that never comes
to rest, such as one whose key groups shift all the time, is slower than the model says for as long
as that lasts; the model calls its executors sufficient, so none is requested.

The rule: the model is wrong where, in two periods in a row, the measured figure is above nine
tenths of the target and a tenth above a prediction that meets it.  Its figures are then multiplied
by the last error, measured over predicted.  Each later period updates the factor by half; below
1.05 it ends.  A period counts if it can be compared with the one before: the same executors, all of
them present, and about the same rate, without a backlog or a figure that falls, as both do while a
step is worked off.  Where the rate changes by a quarter, half of the factor's excess stays.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.model import events

if TYPE_CHECKING:
    from godwit.control.policy import Announce
    from godwit.control.scaling import WantedExecutors
    from godwit.control.situation import ScalingSituation

_NEAR = 0.9
"""Ratio of a figure to the target above which it is close to it."""
_WRONG = 1.1
"""Min. error of a wrong prediction."""
_IN_A_ROW = 2
"""Number of consecutive periods that show that the model is wrong."""
_SAME_RATE = 1.25
"""Max. ratio of the arrival rates of periods that are compared."""
_FALLS = 0.95
"""Ratio to the previous period's figure below which a figure is falling."""
_BEHIND = 0.25
"""Ratio of the backlog to an epoch's rows above which a backlog is being worked off."""
_NEW = 0.5
"""Weight of a new error in the moving average."""
_NONE = 1.05
"""Factor below which the model is not corrected."""
_MOST = 8.0
"""Max. error that is used."""


class ModelError:
    """Ratio of a measured figure to a scaling model's, while the stream is not steady."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self.factor = 1.0
        self._before: ScalingSituation | None = None
        self._before_figure = 0.0
        self._wrong = 0  # last periods in a row in which the model was wrong

    def update(
        self, situation: ScalingSituation, wanted: WantedExecutors, *, resizing: bool
    ) -> bool:
        """Add a period; return whether the correction begins with it.

        `wanted`: the model's answer without this correction. `resizing`: executors come or go.
        """
        situation_before, figure = self._before, wanted.measured
        self._before = None if resizing or figure is None else situation
        if situation_before is not None and _differ(
            situation_before.arrival_per_s, situation.arrival_per_s
        ):
            self._correct(1 + (self.factor - 1) * _NEW, situation, wanted)
            situation_before = None
        predicted = wanted.expects(situation.executors)
        is_behind = (situation.backlog_rows or 0) > (
            _BEHIND * situation.arrival_per_s * situation.epoch_s
        )
        is_comparable = (
            situation_before is not None
            and self._before is not None
            and situation_before.executors == situation.executors
            and not is_behind
            and (figure or 0.0) >= _FALLS * self._before_figure
            and predicted is not None
            and 0 < predicted < math.inf
        )
        self._before_figure = figure or 0.0
        if not is_comparable or figure is None or predicted is None:
            self._wrong = 0
            return False
        error = min(max(figure / predicted, 1.0), _MOST)
        if self.factor > 1:
            self._correct(self.factor + _NEW * (error - self.factor), situation, wanted)
            return False
        is_wrong = predicted <= wanted.target and figure > _NEAR * wanted.target and error >= _WRONG
        self._wrong = self._wrong + 1 if is_wrong else 0
        if self._wrong < _IN_A_ROW:
            return False
        self._correct(error, situation, wanted)
        return True

    def _correct(self, factor: float, situation: ScalingSituation, wanted: WantedExecutors) -> None:
        """Correct the model by a factor from now on; announce that this begins or ends."""
        before, self.factor = self.factor, factor if factor >= _NONE else 1.0
        if (before > 1) != (self.factor > 1):
            self._announce(
                events.ModelCorrected,
                factor=self.factor,
                executors=situation.executors,
                measured=wanted.measured,
                predicted=wanted.expects(situation.executors),
                target=wanted.target,
            )

    def corrected(self, situation: ScalingSituation) -> ScalingSituation:
        """Return the situation with the measurements so far and the current factor."""
        return replace(situation, learned=replace(situation.learned, error=self.factor))


def _differ(before: float, now: float) -> bool:
    """Return whether periods of these arrival rates cannot be compared."""
    return max(before, now) > _SAME_RATE * min(before, now)
