r"""Speeds of executors, estimated from the costs of the same key groups on different executors.

A machine may be slower than others, or become so; its key groups then look expensive, and a planner
that took their cost for their own would be wrong wherever it puts them.  Key groups that *are* dear
look the same, as long as they stay where they are.

So nothing but a key group compared with itself tells of speed.  With :math:`y` the logarithm of
what a key group costs in a period, relative to the usual cost of its rows and epochs in its
component, a key group that was on executor :math:`i` and is on :math:`j` (mostly, :math:`i = j`)
differs by

.. math:: y_{kj} - y_{ki} = s_j - s_i' + \varepsilon,

where :math:`s'` is how slow executors were in the period before, and :math:`s` how slow they are
now, in logarithms.  All key groups that went the same way are one measurement, their median, so
that a key of which rows have become dear changes nothing.  These measurements, and that speeds
change rarely but then by factors of two, are a linear model of :math:`(s', s)` with normal errors;
its estimate is the mean given both (a Kalman step; :math:`s'` is known from the steps before).

Period after period the same key groups are compared where they stay, and the errors of many
comparisons would add up to a difference.  So what noise explains there is taken for no change at
all; and errors of what did change an estimate are carried along.  A period in which a machine
became slow is a mixture.  So a change is measured again in the periods after it, each against the
period before the change, and the last one stands.

Invariants: executors that were never compared have speed 1 ("first assuming all nodes are
homogeneous, then measuring the actual effect of state migration": paper 2 §3); the median executor
has speed 1; differences that noise explains count as none, and so do planners that want equal
executors get them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.control.statistics import AssignmentPeriod, PeriodStatistics
    from godwit.placement.arrays import FloatArray

_SIGMA_SPEED = np.log(2.0)
"""Machines commonly differ, and change over time, by a factor of two."""
_SIGMA_KNOWN = np.log(2.0) / 2
"""Standard deviation of an estimate carried over from the previous period."""
_SIGMA_KEY = np.log(2.0)
"""Standard deviation of the change of one key group's cost between two periods."""
_SIGMA_NOISE = 0.1
"""Standard deviation of the cost per row between periods, beyond chance among the rows."""
_SIGMA_ROW = 0.5
"""Standard deviation of the cost of one row."""
_SIGMA_MACHINE = 0.05
"""The same for all rows of an executor, since machines have other work, too."""
_MEDIAN_ERROR = 1.2533
_NO_DIFFERENCE = np.log(1.15)
_ERRORS = 4.0
"""Standard errors within which an executor counts as equally fast."""
_CHANGE_PERIODS = 3
"""Number of consecutive periods that establish a change; the last one's speed is used."""
_CHANGED_LOG_SPEED = np.log(1.5)
"""Speeds that differ by more are different; others are two estimates of one speed."""
_NEW = 0.33
"""Weight of the latest period in the usual cost of a key group."""
_MAX_UNCERTAIN_KEY_GROUPS = 3
"""Max. number of key groups whose median is as uncertain as a single value."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Costs:
    """Costs of some of a component's key groups: columns, one entry for each."""

    key_group: npt.NDArray[np.int64]
    executor: npt.NDArray[np.object_]  # name of where each was; ``None``: it was not seen
    cost: FloatArray  # logarithm of measured over expected seconds
    variance: FloatArray


class _Differences(NamedTuple):
    """Differences in cost of key groups between two periods, one entry for each."""

    before: list[str]  # executors in the period before, and in this one
    now: list[str]
    apart: FloatArray
    variance: FloatArray


class Speeds:
    """Estimator of executors' speeds, updated every period."""

    def __init__(self) -> None:
        self._measured_costs: dict[str, _Costs] = {}
        # executor → how slow it is, as a logarithm; covariances of the errors, in the same order
        self._log_slowness: dict[str, float] = {}
        self._errors: FloatArray = np.zeros((0, 0))
        self._periods_of_change = 0  # periods in a row that showed a change
        self._latest_speeds: Mapping[str, float] = {}
        self._executors_that_differed: frozenset[str] = frozenset()

    def update(self, statistics: PeriodStatistics, *, ended: bool = True) -> Mapping[str, float]:
        """Add a period, and return executor → speed; 1 for executors without measurements.

        `ended`: ``False`` returns speeds as if the period had ended now, and does not add it.
        """
        measured_executors: set[str] = set()
        measured: list[tuple[str, _Costs, int]] = []
        differences: list[_Differences] = []
        for name, component in sorted(statistics.components.items()):
            for costs in _relative_costs(component.by_assignment):
                measured_executors.update(costs.executor.tolist())
                differences.append(self._cost_changes(name, costs))
                measured.append((name, costs, len(component.in_bytes)))
        if not measured_executors:
            return {}
        log_slowness, errors, changing = self._estimate_slowness(
            sorted(measured_executors), differences
        )
        if ended:
            self._periods_of_change = self._periods_of_change + 1 if changing else 0
        if ended and self._periods_of_change % _CHANGE_PERIODS == 0:
            changed = {
                executor: log_slowness[executor] - self._log_slowness.get(executor, 0.0)
                for executor in measured_executors
            }
            self._log_slowness, self._errors = log_slowness, errors
            for name, costs, num_key_groups in measured:
                self._record_costs(name, costs, num_key_groups, changed)
        middle = float(np.median(list(log_slowness.values())))
        estimates: dict[str, float] = {}
        differing_executors: set[str] = set()
        for executor, variance in zip(log_slowness, errors.diagonal().tolist(), strict=True):
            log_difference = log_slowness[executor] - middle
            least_difference = max(_NO_DIFFERENCE, _ERRORS * math.sqrt(max(variance, 0.0)))
            speed = (
                1.0 if abs(log_difference) < least_difference else float(np.exp(-log_difference))
            )
            if speed != 1.0:
                differing_executors.add(executor)
                if (
                    ended
                    and abs(log_difference) < _SIGMA_SPEED
                    and executor not in self._executors_that_differed
                ):
                    speed = 1.0  # a small change must be seen twice
            estimates[executor] = (
                speed if changing else _smooth_speed(speed, self._latest_speeds.get(executor))
            )
        self._executors_that_differed = frozenset(differing_executors)
        self._latest_speeds = estimates
        return estimates

    def _cost_changes(self, name: str, costs: _Costs) -> _Differences:
        """Return each key group's difference in cost since it was last measured."""
        last = self._measured_costs.get(name)
        if last is None:
            return _Differences([], [], np.zeros(0), np.zeros(0))
        known = last.executor[costs.key_group] != None  # noqa: E711  entry by entry
        key_groups = costs.key_group[known]
        return _Differences(
            before=last.executor[key_groups].tolist(),
            now=costs.executor[known].tolist(),
            apart=costs.cost[known] - last.cost[key_groups],
            variance=costs.variance[known] + last.variance[key_groups],
        )

    def _record_costs(
        self, name: str, costs: _Costs, num_key_groups: int, changed: Mapping[str, float]
    ) -> None:
        """Record costs and executors of a component's key groups, to compare later periods with.

        The cost of a key group that stays is a moving average, so that errors of one period do not
        add up. `changed`: speeds of executors that changed.
        """
        if name not in self._measured_costs:
            self._measured_costs[name] = _Costs(
                key_group=np.arange(num_key_groups),
                executor=np.full(num_key_groups, None, object),
                cost=np.zeros(num_key_groups),
                variance=np.zeros(num_key_groups),
            )
        recorded, key_groups = self._measured_costs[name], costs.key_group
        log_slowdown = np.array([changed[executor] for executor in costs.executor.tolist()])
        is_comparable = (recorded.executor[key_groups] == costs.executor) & (
            np.abs(log_slowdown) < _CHANGED_LOG_SPEED
        )
        expected_cost = recorded.cost[key_groups] + log_slowdown
        recorded.cost[key_groups] = np.where(
            is_comparable, expected_cost + _NEW * (costs.cost - expected_cost), costs.cost
        )
        recorded.variance[key_groups] = np.where(
            is_comparable, np.minimum(recorded.variance[key_groups], costs.variance), costs.variance
        )
        recorded.executor[key_groups] = costs.executor

    def _estimate_slowness(
        self, here: list[str], differences: Sequence[_Differences]
    ) -> tuple[dict[str, float], FloatArray, bool]:
        """Estimate the slowness of the executors `here`, from former estimates and differences.

        Returns executor → slowness, the covariances of the errors, and whether an executor changed.
        """
        names = sorted({*here, *(name for part in differences for name in part.before)})
        index_of, num_executors = {name: index for index, name in enumerate(names)}, len(names)
        known_slowness = np.array([self._log_slowness.get(name, 0.0) for name in names])
        # The unknowns are deviations from `known_slowness`: of the previous period, then of this
        # one.
        prior = np.zeros((2 * num_executors, 2 * num_executors))
        diagonal = np.arange(num_executors)
        prior[diagonal, diagonal] = _SIGMA_KNOWN**-2 + _SIGMA_SPEED**-2
        prior[num_executors + diagonal, num_executors + diagonal] = _SIGMA_SPEED**-2
        prior[diagonal, num_executors + diagonal] = prior[num_executors + diagonal, diagonal] = -(
            _SIGMA_SPEED**-2
        )
        measured, noise, pull = (
            *np.zeros((2, 2 * num_executors, 2 * num_executors)),
            np.zeros(2 * num_executors),
        )
        changing = False
        median_differences = _median_differences(differences, index_of)
        stayed = [
            median_difference
            for executor_before, executor_now, median_difference, _ in median_differences
            if executor_before == executor_now
        ]
        # What a row costs as a rule rises with an executor that slows: all others look faster.
        common = float(np.median(stayed)) if len(stayed) > 2 else 0.0
        for executor_before, executor_now, median_difference, variance in median_differences:
            before_row, column = executor_before, num_executors + executor_now
            difference = median_difference - common
            _add_measured_difference(measured, before_row, column, 1 / variance)
            if executor_before == executor_now:
                if abs(difference) <= _ERRORS * math.sqrt(variance):
                    continue  # it is as fast as it was
                changing = True
            _add_measured_difference(noise, before_row, column, 1 / variance)
            residual = difference - (
                known_slowness[column - num_executors] - known_slowness[before_row]
            )
            pull[before_row] -= residual / variance
            pull[column] += residual / variance
        inverse = np.linalg.inv(prior + measured)
        slowness = known_slowness + (inverse @ pull)[num_executors:]
        # The errors of measurements, not of the assumption that machines are equal otherwise: of
        # these ones, and the rest of the earlier ones.
        known_by = (inverse @ measured)[num_executors:]
        weight_of_known = (
            np.eye(num_executors) - known_by[:, :num_executors] - known_by[:, num_executors:]
        )
        before_errors = np.zeros((num_executors, num_executors))
        former_rows = [row for row, name in enumerate(self._log_slowness) if name in index_of]
        known_rows = [index_of[name] for name in self._log_slowness if name in index_of]
        before_errors[np.ix_(known_rows, known_rows)] = self._errors[
            np.ix_(former_rows, former_rows)
        ]
        errors = (
            weight_of_known @ before_errors @ weight_of_known.T
            + inverse[num_executors:] @ noise @ inverse[num_executors:].T
        )
        rows_of_here = [index_of[name] for name in here]
        return (
            dict(zip(here, slowness[rows_of_here].tolist(), strict=True)),
            errors[np.ix_(rows_of_here, rows_of_here)],
            changing,
        )


def _add_measured_difference(matrix: FloatArray, i: int, j: int, weight: float) -> None:
    """Add a weighted measurement of unknown i minus unknown j to a least-squares matrix."""
    matrix[i, i] += weight
    matrix[j, j] += weight
    matrix[i, j] -= weight
    matrix[j, i] -= weight


def _median_differences(
    differences: Sequence[_Differences], number: Mapping[str, int]
) -> list[tuple[int, int, float, float]]:
    """Return, for each pair of executors before and now, the median difference and its variance.

    In order of the executors' numbers.
    """
    before = np.array(
        [number[executor] for part in differences for executor in part.before], np.int64
    )
    now = np.array([number[executor] for part in differences for executor in part.now], np.int64)
    order = np.lexsort((now, before))  # which keeps the order of equal ones
    before, now = before[order], now[order]
    values = np.concatenate([part.apart for part in differences])[order]
    variances = np.concatenate([part.variance for part in differences])[order]
    first = np.flatnonzero((np.diff(before, prepend=-1) != 0) | (np.diff(now, prepend=-1) != 0))
    return [
        (
            int(before[start]),
            int(now[start]),
            *_median_with_variance(values[start:end], variances[start:end]),
        )
        for start, end in pairwise([*first.tolist(), len(order)])
    ]


def _median_with_variance(apart: FloatArray, variances: FloatArray) -> tuple[float, float]:
    """Return the median of differences, and its variance."""
    count, middle = len(apart), _median(apart)
    spread = 1.4826 * _median(np.abs(apart - middle))
    variance = _MEDIAN_ERROR**2 * max(float(variances.mean()), spread**2) / count
    if count < _MAX_UNCERTAIN_KEY_GROUPS:
        variance += _SIGMA_KEY**2 / count
    return middle, variance + 2 * _SIGMA_MACHINE**2


def _median(values: FloatArray) -> float:
    """Return the median; faster than `np.median` for few values."""
    ascending, count = np.sort(values), len(values)
    return float(ascending[(count - 1) // 2] + ascending[count // 2]) / 2


def changed_speed(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Return whether an executor has a different speed than in the period before."""
    both = before.keys() & now.keys()
    return any(abs(math.log(now[e] / before[e])) > _CHANGED_LOG_SPEED for e in both)


def _smooth_speed(speed: float, before: float | None) -> float:
    """Return the average of a measured speed and its last estimate.

    After a jump, the measurement.
    """
    if before is None or 1.0 in (speed, before) or abs(np.log(speed / before)) > _CHANGED_LOG_SPEED:
        return speed
    return float(np.sqrt(speed * before))


def _relative_costs(
    by_assignment: tuple[AssignmentPeriod, ...],
) -> list[_Costs]:
    """Return, for each assignment period, measured over expected cost of key groups with load.

    The expected cost of a key group is by its epochs and its rows: each epoch in which it has rows
    costs something, so that few rows are more expensive each than many.
    """
    epochs = np.concatenate([assignment_period.epochs for assignment_period in by_assignment])
    rows = np.concatenate([assignment_period.rows for assignment_period in by_assignment])
    busy_s = np.concatenate([assignment_period.busy_s for assignment_period in by_assignment])
    has_load = (rows > 0) & (busy_s > 0)
    expected = np.ones_like(busy_s)
    if has_load.any():
        # Relative errors count, so that the heaviest key groups do not decide alone.
        weight = 1.0 / busy_s[has_load]
        a, b = epochs[has_load] * weight, rows[has_load] * weight
        aa, ab, bb, ay, by = a @ a, a @ b, b @ b, a.sum(), b.sum()
        determinant = aa * bb - ab * ab
        per_epoch = per_row = -1.0
        if determinant > 1e-9 * aa * bb:
            per_epoch = (bb * ay - ab * by) / determinant
            per_row = (aa * by - ab * ay) / determinant
        if min(per_epoch, per_row) < 0:
            per_epoch, per_row = 0.0, by / bb
        expected = per_epoch * epochs + per_row * rows
    estimates, start = [], 0
    for span in by_assignment:
        own_rows = slice(start, start + len(span.rows))
        key_groups = np.flatnonzero(has_load[own_rows])
        relative = np.log(busy_s[own_rows][key_groups] / expected[own_rows][key_groups])
        variance = _SIGMA_NOISE**2 + _SIGMA_ROW**2 / rows[own_rows][key_groups]
        names = np.array(span.assignment.executors, object)
        estimates.append(
            _Costs(
                key_group=key_groups,
                executor=names[span.assignment.executor_of[key_groups]],
                cost=relative,
                variance=variance,
            )
        )
        start += len(span.rows)
    return estimates
