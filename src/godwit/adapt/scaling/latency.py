r"""As few executors as keep the mean latency of a row under a target.

Problem: how the time from a row's arrival to the end of its processing depends on the number of
executors, before they are there.

The model has two parts.  Processing is the queueing network of paper 5 §4.1: every component a
station M/M/k with its measured arrival and service rates, the lanes allocated greedily, best first
(`godwit.planning.cores.core_allocation`).  Waiting for epochs is ours: an epoch of length
:math:`T` takes its fixed part :math:`F` and a share :math:`\rho` of itself for rows that arrived in
a time as long, where :math:`\rho` is how busy the busiest executor's lanes are; so
:math:`T = F / (1 - \rho)`, and a row waits half an epoch for the next one to begin and a whole one
for its end.  Together

.. math:: E[T](n) = \frac{1}{\lambda_0} \sum_j \lambda_j E[T_j](k_j) + 1.5\,\frac{F}{1 - \rho(n)}.

Rows that sources hold back (`Situation.backlog_rows`) wait besides, for as long as there are any.
They are to be worked off within a set time, so they count as so many more rows a second for which
the target is to be met; otherwise a stream that just keeps up would stay behind for good.

Invariant: both parts fall with every executor, so the fewest that meet the target are found by
halving.  What they fall to with ever more executors is the best that can be had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.adapt.durations import seconds
from godwit.adapt.scaling.model import Wanted, catching_up
from godwit.adapt.scaling.utilisation import check_slack
from godwit.model.frames import user_call
from godwit.planning.cores.core_allocation import CoreAllocationProblem, plan_core_allocation
from godwit.planning.cores.queueing import QueueingNetwork

if TYPE_CHECKING:
    from godwit.adapt.durations import Duration
    from godwit.adapt.scaling.model import Situation

__all__ = ["Latency", "latency", "predicted_latency_s"]

_EPOCHS_WAITED = 1.5


def predicted_latency_s(situation: Situation, executors: int) -> float:
    """Mean latency of a row with so many executors; infinite where they cannot keep up."""
    lanes = executors * situation.lanes
    busy = situation.offered * situation.evenness / lanes
    if busy >= 1:
        return float("inf")
    waiting_s = 0.0
    if situation.waits_for_epochs:
        waiting_s = _EPOCHS_WAITED * situation.fixed_s / (1 - busy)
    stations = [s for s in situation.stations.values() if s.arrival_per_s and s.service_per_s]
    if not stations or situation.arrival_per_s <= 0:
        return waiting_s
    network = QueueingNetwork(
        arrival_per_s=np.array([s.arrival_per_s for s in stations]),
        service_per_s=np.array([s.service_per_s for s in stations]),
        input_per_s=situation.arrival_per_s,
    )
    allocated = plan_core_allocation(
        CoreAllocationProblem(
            network=network,
            # Out of reach, so that all lanes are given to whom they serve best.
            latency_target_s=float(np.finfo(np.float64).tiny),
            available_cores=max(int(lanes), 1),
        )
    )
    return waiting_s + allocated.latency_s


def _fewest(situation: Situation, target_s: float) -> int | None:
    """Fewest executors that meet the target within the limits, or ``None``."""
    low, high = 1, situation.most
    if predicted_latency_s(situation, high) > target_s:
        return None
    while low < high:
        middle = (low + high) // 2
        if predicted_latency_s(situation, middle) <= target_s:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """See `latency`."""

    target_s: float
    slack: float
    catch_up_s: float
    name: str = "latency"
    paced: bool = True

    def wanted(self, situation: Situation) -> Wanted:
        """See `ScalingModel.wanted`."""
        numbers = {
            "target_s": self.target_s,
            "arrival_per_s": situation.arrival_per_s,
            "epoch_s": situation.epoch_s,
        }
        if situation.backlog_rows:
            numbers["backlog_rows"] = situation.backlog_rows
        situation = catching_up(situation, self.catch_up_s)
        predicted_s = predicted_latency_s(situation, max(situation.executors, 1))
        if np.isfinite(predicted_s):
            numbers["predicted_s"] = predicted_s
        reason = f"rows should take at most {self.target_s:g} s"
        fewest = _fewest(situation, self.target_s)
        if fewest is None:
            return self._best(situation, reason, numbers)
        safe = _fewest(situation, self.target_s * (1 - self.slack))
        aim = _fewest(situation, self.target_s * (1 - self.slack) ** 0.5)
        return Wanted(
            executors=fewest,
            comfortable=situation.most if safe is None else safe,
            reason=reason,
            numbers=numbers,
            aim=aim,
        )

    def _best(self, situation: Situation, reason: str, numbers: dict[str, float]) -> Wanted:
        """Out of reach: as many executors as still make a difference."""
        best_s = predicted_latency_s(situation, situation.most)
        if np.isfinite(best_s):
            numbers["best_s"] = best_s
            nearly = _fewest(situation, best_s * 1.05) or situation.most
            why = (
                f"the target of {self.target_s:g} s is out of reach: {situation.most} executors "
                f"come to {best_s:.3g} s, {nearly} to within 5 % of that"
            )
        else:
            nearly = situation.most
            why = (
                f"the target of {self.target_s:g} s is out of reach: {situation.most} executors "
                f"cannot keep up with {situation.arrival_per_s:.4g} rows/s"
            )
        return Wanted(
            executors=nearly, comfortable=nearly, reason=reason, numbers=numbers, unattainable=why
        )


@user_call
def latency(target: Duration, *, slack: float = 0.2, catch_up: Duration = 60.0) -> Latency:
    """Scale so that rows take a set time on average, from their arrival to their epoch's commit.

    Parameters
    ----------
    target
        Such as ``"2 seconds"``, or a number of seconds.
    slack
        Executors go only if the rest would stay under the target by this share of it.
    catch_up
        Time within which rows that sources hold back are to be worked off.

    Raises
    ------
    InvalidControlError
        If the target or `catch_up` is no time.
    """
    check_slack(slack)
    return Latency(
        target_s=seconds(target, "The latency target"),
        slack=slack,
        catch_up_s=seconds(catch_up, "The time to catch up"),
    )
