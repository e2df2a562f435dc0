r"""Latency of rows by the number of executors: a model, corrected by measurements.

Rows wait for epochs.  Epochs begin :math:`I` apart: the trigger's interval, or their own length
where that is more.  A row waits half of that for the next one to begin and the whole epoch for its
end, :math:`E[T] = I / 2 + T`.  Where epochs get no more rows than fit into a certain time, longer
ones cannot keep up (`Topology.longest_epoch_s`).  An epoch takes its fixed part :math:`F` and,
stage after stage, as long as the busiest lane needs for the rows that came meanwhile:

.. math:: T = F + (\rho + \sigma) I, \quad \rho(n) = u \sum_{\text{stages}} \max\Big(w_1,
    \frac{\sum_g w_g}{L}, \max_{k \ge 1} \sum_{g = k L - k + 1}^{k L + 1} w_g \Big).

:math:`w_g` are the key groups of all operators of a stage, heaviest first, as shares of a lane that
they keep busy, since a lane serves all operators of its places; :math:`L` is the number of lanes.
No assignment has less on its busiest lane than the maximum: the heaviest key group, an even share,
or the lightest :math:`k + 1` of the first :math:`k L + 1`, since one lane owns that number of
these. Where lanes have few key groups each, the last counts: six on five lanes are as slow as ten.
How much more it has in fact, :math:`u`, is measured.  :math:`\sigma` is the share of the time that
rows take outside the lanes, in a sink, a map or the driver (`godwit.control.outside_lanes`).

Where rows do not wait for epochs, all lanes together are one queue M/M/k.

What the model lacks is learnt while the stream runs (`Learning`): by number of executors, the fixed
part of an epoch, which may grow with them, :math:`u`, and measured over predicted latency.
Costs are those of any period in which nothing moved, also while what a step left behind is worked
off; latency is that of steady ones alone, beside what the model says with the costs of the same
period.  All are smoothed; for a number that was never seen, the nearest that was stands.

Epochs of a start are slow: processes compile what they run.  As long as those of one number of
executors become quicker from period to period, the last measurement counts, and it is dropped
once there is another number of executors, which would look cheaper beside it than it is.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.cores.core_allocation import QueueingNetwork, allocate_all_cores
from godwit.control.situation import Learned, nearest
from godwit.engine.row_limit import longest_epoch_s

if TYPE_CHECKING:
    from godwit.control.situation import ScalingSituation
    from godwit.placement.arrays import FloatArray

_MAX_REMEMBERED = 32
"""Max. number of executor counts with stored measurements, the most recent ones."""
_NEW = 0.5
"""Weight of a new measurement in the moving average."""
_RATIO = (0.25, 8.0)
"""Bounds of measured over predicted latency."""
_UNEVENNESS = (1.0, 2.0)
_START_COST_RATIO = 0.8
"""Ratio to the previous fixed cost below which epochs are still speeding up after a start."""


class Learning:
    """Smoothed measurements of steady periods."""

    def __init__(self) -> None:
        self._fixed_ms_of: OrderedDict[int, float] = OrderedDict()
        self._ratio_of: OrderedDict[int, float] = OrderedDict()
        self._unevenness_of: OrderedDict[int, float] = OrderedDict()
        self._seen_once: tuple[int, float] | None = None  # unevenness of a number seen but once
        self._starting_executors: int | None = (
            None  # number whose epochs were still becoming quicker
        )

    @property
    def learned(self) -> Learned:
        """Measurements so far, as input of the model."""
        return Learned(
            fixed_s=dict(self._fixed_ms_of),
            ratio=dict(self._ratio_of),
            unevenness=dict(self._unevenness_of),
        )

    def note_costs(self, situation: ScalingSituation) -> None:
        """Add the costs of epochs in a period in which no key group or executor moved."""
        executors = situation.executors
        if executors < 1 or not situation.epoch_s:
            return
        self._note_fixed(executors, situation.fixed_s)
        unevenness = _lane_unevenness(situation)
        if unevenness is not None:
            self._note_unevenness(executors, unevenness)

    def _note_unevenness(self, executors: int, unevenness: float) -> None:
        """Add the unevenness of lanes, except the first after the number of executors changed.

        Lanes of executors that have just joined are not balanced yet, and their unevenness then
        would count for similar numbers for ever, once there is another number.
        """
        first = executors not in self._unevenness_of and bool(self._unevenness_of)
        if first and (self._seen_once is None or self._seen_once[0] != executors):
            self._seen_once = executors, unevenness
            return
        self._seen_once = None
        _update_average(self._unevenness_of, executors, unevenness)

    def _note_fixed(self, executors: int, fixed_s: float) -> None:
        """Add the fixed seconds of an epoch; drop those measured while a run starts slowly."""
        starts = not self._fixed_ms_of
        if self._starting_executors is not None and self._starting_executors != executors:
            self._fixed_ms_of.pop(self._starting_executors, None)
        if fixed_s < _START_COST_RATIO * self._fixed_ms_of.get(executors, 0.0):
            starts = True
            del self._fixed_ms_of[executors]
        self._starting_executors = executors if starts else None
        _update_average(self._fixed_ms_of, executors, fixed_s)

    def note_latency(self, situation: ScalingSituation) -> None:
        """Add the measured latency of a steady period that follows a steady one."""
        executors = situation.executors
        if executors < 1 or not situation.epoch_s:
            return
        unevenness = _lane_unevenness(situation)
        costs = Learned(
            fixed_s={executors: situation.fixed_s},
            unevenness=self._unevenness_of if unevenness is None else {executors: unevenness},
        )
        expected_s = modelled_latency_s(situation, executors, costs)
        measured_s = situation.latency.mean_s
        if situation.latency.rows and measured_s > 0 and 0 < expected_s < math.inf:
            _update_average(
                self._ratio_of, executors, float(np.clip(measured_s / expected_s, *_RATIO))
            )


def _update_average(known: OrderedDict[int, float], executors: int, value: float) -> None:
    """Update the moving average of a number of executors; forget the oldest number."""
    before = known.pop(executors, value)
    known[executors] = before + _NEW * (value - before)
    if len(known) > _MAX_REMEMBERED:
        known.popitem(last=False)


def _lane_unevenness(situation: ScalingSituation) -> float | None:
    """Return the ratio of the busiest lane's load to the lowest possible; ``None`` if unknown."""
    least = least_busy(situation, situation.executors)
    if not situation.busiest or least <= 0:
        return None
    return float(np.clip(situation.busiest / least, *_UNEVENNESS))


def least_busy(situation: ScalingSituation, executors: int) -> float:
    """Return the busy share of the busiest of `executors` executors' lanes, if spread best."""
    lanes = max(int(executors * situation.cores), 1)
    speed = situation.lanes / situation.cores
    return sum(stage.busiest(lanes, speed) for stage in situation.stages)


def busy_share(situation: ScalingSituation, executors: int, learned: Learned) -> float:
    """Predict the busy share of the busiest lane of `executors` executors.

    Loads are taken to be as uneven as they were measured to be (`learned`).
    """
    if not situation.stages:
        return situation.offered * situation.evenness / (executors * situation.lanes)
    least, known_unevenness = least_busy(situation, executors), learned.unevenness
    if not known_unevenness:
        return least
    # Where key groups divide worse among lanes than they did where it was measured, few lanes have
    # the most, and what all of them differ by is hidden behind it.
    near = nearest(known_unevenness, executors)
    usual_share = min(least, least_busy(situation, near) * near / executors)
    return max(least, usual_share * learned.unevenness_at(executors, situation.cores))


def modelled_latency_s(situation: ScalingSituation, executors: int, learned: Learned) -> float:
    """Return the modelled mean latency in seconds; infinite if executors cannot keep up."""
    busy = busy_share(situation, executors, learned)
    if situation.waits_for_epochs:
        busy += situation.outside
    if busy >= 1:
        return math.inf
    if situation.waits_for_epochs:
        fixed_s, trigger_s = learned.fixed_at(executors, situation.fixed_s), situation.trigger_s
        took_s = fixed_s + busy * trigger_s
        if took_s > trigger_s:
            took_s = fixed_s / (1 - busy)
        if took_s > longest_epoch_s(situation.longest_epoch_s, fixed_s):
            return math.inf  # so long an epoch does not get all rows that came meanwhile
        return max(took_s, trigger_s) / 2 + took_s
    stations = [s for s in situation.stations.values() if s.arrival_per_s and s.service_per_s]
    if not stations or situation.arrival_per_s <= 0:
        return 0.0
    arrival_per_s = sum(s.arrival_per_s for s in stations)
    needed = sum(s.arrival_per_s / s.service_per_s for s in stations)
    network = QueueingNetwork(
        arrival_per_s=np.array([arrival_per_s]),
        service_per_s=np.array([arrival_per_s / needed]),
        input_per_s=situation.arrival_per_s,
    )
    lanes = max(int(executors * situation.lanes), 1)
    return allocate_all_cores(network, lanes).latency_s


def predicted_latency_s(situation: ScalingSituation, executors: int) -> float:
    """Return the modelled mean latency in seconds, corrected by measurements; may be infinite."""
    learned = situation.learned
    return learned.ratio_at(executors) * modelled_latency_s(situation, executors, learned)


def latency_curve(situation: ScalingSituation) -> FloatArray:
    """Return the predicted mean latency in seconds with 1, 2, … executors."""
    return np.array([predicted_latency_s(situation, n) for n in range(1, situation.most + 1)])


def busy_curve(situation: ScalingSituation) -> FloatArray:
    """Return the busy share of lanes with 1, 2, … executors.

    In the busiest lanes and outside the lanes; above 1: rows come faster than they are processed.
    """
    learned, numbers = situation.learned, range(1, situation.most + 1)
    return np.array([busy_share(situation, n, learned) for n in numbers]) + situation.outside


def why_no_faster(situation: ScalingSituation, executors: int) -> str:
    """Return the bottleneck, as text, that more executors would not remove; empty if unknown."""
    lanes = max(int(executors * situation.cores), 1)
    speed = situation.lanes / situation.cores
    for stage in sorted(situation.stages, key=lambda s: -s.heaviest):
        heavy = stage.heaviest / speed
        if heavy >= _LIMITING_LOAD and heavy >= stage.busiest(lanes, speed) * (1 - 1e-9):
            most = f", mostly with key {stage.key}" if stage.key else ""
            return (
                f"key group {stage.key_group} of {stage.component!r} alone needs {heavy:.2g} of "
                f"a lane{most}: more executors do not help; spread its keys over more key "
                "groups, make its heaviest key finer, or divide it by merge= or spread="
            )
    if not situation.waits_for_epochs:
        return ""
    fixed_s = situation.learned.fixed_at(executors, situation.fixed_s)
    if situation.outside >= _LIMITING_LOAD:
        return (
            f"a row takes {situation.per_row_s * 1e3:.2g} ms outside the lanes, "
            f"{situation.outside:.0%} of the time at this rate{_slowest_part(situation)}: more "
            "executors do not reduce that"
        )
    if situation.trigger_s > fixed_s:
        return (
            f"epochs begin only every {situation.trigger_s:g} s, and a row waits half of that "
            "for the next one: use a shorter trigger"
        )
    return (
        f"an epoch takes at least {fixed_s:.2g} s{_slowest_part(situation)}, and a row waits for "
        "one and a half epochs"
    )


def _slowest_part(situation: ScalingSituation) -> str:
    """Return the phase or sink with most of an epoch's time outside the lanes, as a clause."""
    outside_s = situation.outside_s
    if not outside_s:
        return ""
    part = max(outside_s, key=lambda name: outside_s[name])
    return (
        f", {outside_s[part]:.2g} of {sum(outside_s.values()):.2g} s of an epoch for "
        f"{_PARTS.get(part, part)}"
    )


_PARTS = {
    "plan": "planning on the driver",
    "stages": "reading and exchanging rows",
    "commit": "the commit",
}
"""Phase of an epoch → its work outside the lanes, as text."""
_LIMITING_LOAD = 0.2
"""Min. load at which a key group is reported as the bottleneck."""
