r"""Speeds of executors, estimated from the cost of the same kind of work here and there.

A machine may be slower than others, or become so; its key groups then look expensive, and a planner
that took their cost for their own would be wrong wherever it puts them.

The model: with :math:`u_k` what a row of key group :math:`k` costs on a standard executor, relative
to what its component's rows cost, and :math:`s_{it}` how slow executor :math:`i` is in period
:math:`t`, the measured cost is :math:`y_{kit} = u_k + s_{it} + \varepsilon`, all in logarithms.
Both are unknown and small unless shown otherwise: :math:`u_k \sim N(0, \sigma_u^2)`, as much as
key groups of one executor differ; :math:`s_{it} \sim N(0, \sigma_s^2)`;
:math:`\varepsilon \sim N(0, \sigma_\varepsilon^2)`.  So an executor all of whose key groups are
dear counts as slow, a dear key group among cheap ones as dear, and a key group that stays dear
wherever it moves clears the executors it was on.

Invariant: the median executor has speed 1; differences that noise explains count as none.

Source: paper 2 §3 (capacities "inferred at runtime, by first assuming all nodes are homogeneous,
then measuring the actual effect of state migration"); the estimate is that of a mixed model with
crossed effects (Henderson 1975), in which the two are estimated in turns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.adapt.statistics import AssignmentPeriod, PeriodStatistics
    from godwit.planning.arrays import FloatArray

_SIGMA_SPEED = np.log(2.0)
"""Machines differ by a factor of two as a matter of course."""
_SIGMA_NOISE = 0.2
"""Deviation of the cost of a row of one key group from period to period."""
_SIGMA_KEY = (0.1, 2.0)
"""Least and most that key groups of one component are taken to differ by."""
_NO_DIFFERENCE = np.log(1.15)
_ERRORS = 2.0
"""Standard errors within which an executor counts as fast as the others."""
_CHANGED = np.log(1.5)
"""A speed that differs by more is another one; by less, two estimates of the same."""
_PERIODS = 4
_TURNS = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Costs:
    """Measured costs of one period: columns, one entry for each key group and executor."""

    names: tuple[str, ...]
    key_group: npt.NDArray[np.int64]  # numbered over all components
    executor: npt.NDArray[np.int64]  # index into `names`
    cost: FloatArray  # logarithm of measured over expected seconds


class Speeds:
    """Estimates executors' speeds, period after period."""

    def __init__(self) -> None:
        self._periods: deque[_Costs] = deque(maxlen=_PERIODS)
        self._first: dict[str, int] = {}
        self._size = 0
        self._latest: Mapping[str, float] = {}

    def update(self, statistics: PeriodStatistics) -> Mapping[str, float]:
        """Add a period, and return executor → speed; 1 for those without measurements."""
        self._periods.append(self._costs(statistics))
        estimates = self._estimate()
        self._latest = {e: _settled(speed, self._latest.get(e)) for e, speed in estimates.items()}
        return self._latest

    def _costs(self, statistics: PeriodStatistics) -> _Costs:
        """Relative cost of every key group on every executor that it was on."""
        number: dict[str, int] = {}
        columns: list[tuple[npt.NDArray[Any], ...]] = []
        for name, component in sorted(statistics.components.items()):
            if name not in self._first:
                self._first[name] = self._size
                self._size += len(component.in_bytes)
            for span, (touched, cost) in zip(
                component.by_assignment, _relative_costs(component.by_assignment), strict=True
            ):
                of = np.array(
                    [number.setdefault(e, len(number)) for e in span.assignment.executors]
                )[span.assignment.executor_of[touched]]
                columns.append((touched + self._first[name], of, cost))
        if not columns:
            nothing = np.empty(0, np.int64)
            return _Costs(names=(), key_group=nothing, executor=nothing, cost=np.empty(0))
        key_group, executor, cost = (np.concatenate(c) for c in zip(*columns, strict=True))
        return _Costs(
            names=tuple(number),
            key_group=key_group.astype(np.int64),
            executor=executor.astype(np.int64),
            cost=cost,
        )

    def _estimate(self) -> Mapping[str, float]:
        """Executor → speed, from the costs of the last periods."""
        latest = self._periods[-1]
        offsets = np.cumsum([0, *(len(p.names) for p in self._periods)])
        key_group = np.concatenate([p.key_group for p in self._periods])
        executor = np.concatenate(
            [p.executor + at for p, at in zip(self._periods, offsets.tolist(), strict=False)]
        )
        cost = np.concatenate([p.cost for p in self._periods])
        if not latest.cost.size:
            return {}
        slow, error = _take_turns(key_group, executor, cost, self._size, int(offsets[-1]))
        slow, error = slow[offsets[-2] :], error[offsets[-2] :]
        slow = slow - np.median(slow)
        slow[np.abs(slow) < np.maximum(_NO_DIFFERENCE, _ERRORS * error)] = 0.0
        return dict(zip(latest.names, np.exp(-slow).tolist(), strict=True))


def _settled(speed: float, before: float | None) -> float:
    """Average a speed with the last estimate, unless it has changed for good."""
    if before is None or 1.0 in (speed, before) or abs(np.log(speed / before)) > _CHANGED:
        return speed
    return float(np.sqrt(speed * before))


def _relative_costs(
    by_assignment: tuple[AssignmentPeriod, ...],
) -> list[tuple[npt.NDArray[np.int64], FloatArray]]:
    """Per assignment period: key groups with load, and log(measured / expected cost) of each.

    Expected is what its epochs and its rows cost in this component as a rule: a key group costs
    something whenever it is touched, so few rows are dearer each than many.
    """
    epochs = np.concatenate([s.epochs for s in by_assignment])
    rows = np.concatenate([s.rows for s in by_assignment])
    busy_s = np.concatenate([s.busy_s for s in by_assignment])
    shown = (rows > 0) & (busy_s > 0)
    expected = np.ones_like(busy_s)
    if shown.any():
        # Relative errors count, so that the heaviest key groups do not decide alone.
        weight = 1.0 / busy_s[shown]
        a, b = epochs[shown] * weight, rows[shown] * weight
        aa, ab, bb, ay, by = a @ a, a @ b, b @ b, a.sum(), b.sum()
        determinant = aa * bb - ab * ab
        per_epoch = per_row = -1.0
        if determinant > 1e-9 * aa * bb:
            per_epoch = (bb * ay - ab * by) / determinant
            per_row = (aa * by - ab * ay) / determinant
        if min(per_epoch, per_row) < 0:
            per_epoch, per_row = 0.0, by / bb
        expected = per_epoch * epochs + per_row * rows
    estimates, at = [], 0
    for span in by_assignment:
        mine = slice(at, at + len(span.rows))
        touched = np.flatnonzero(shown[mine])
        estimates.append((touched, np.log(busy_s[mine][touched] / expected[mine][touched])))
        at += len(span.rows)
    return estimates


def _take_turns(
    key_group: npt.NDArray[np.int64],
    executor: npt.NDArray[np.int64],
    cost: FloatArray,
    num_key_groups: int,
    num_executors: int,
) -> tuple[FloatArray, FloatArray]:
    """Estimate slowness per executor (logarithm) and its error, in turns with key groups' costs."""
    on = np.bincount(executor, minlength=num_executors)
    of = np.bincount(key_group, minlength=num_key_groups)
    middle = np.bincount(executor, cost, num_executors) / np.maximum(on, 1)
    spread = float(np.sqrt(np.mean((cost - middle[executor]) ** 2)))
    sigma_key = float(np.clip(spread, *_SIGMA_KEY))
    noise, prior = _SIGMA_NOISE**-2, _SIGMA_SPEED**-2
    alone = sigma_key**-2
    # Begun from the executors' means, not from nothing: what all of an executor's key groups share
    # is more likely its own, and taking turns is slow to shift it from them.
    slow = middle * (on / (on + (sigma_key / _SIGMA_SPEED) ** 2))
    for _ in range(_TURNS):
        dear = noise * np.bincount(key_group, cost - slow[executor], num_key_groups)
        dear /= alone + noise * of
        slow = noise * np.bincount(executor, cost - dear[key_group], num_executors)
        slow /= prior + noise * on
    return slow, sigma_key / np.sqrt(np.maximum(on, 1))
