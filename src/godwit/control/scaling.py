r"""Scaling models: rules for the number of executors.

A model (`ScalingModel`) is a pure function of the situation, as the plan would leave it; it may say
anything at any time.  `godwit.control.pace` follows it at a pace that the stream can afford.

The latency of rows by the number of executors is `godwit.control.latency_model`.

Rows that sources hold back (`ScalingSituation.backlog_rows`) wait besides, for as long as there are
any.  They are to be worked off within a set time, so they are added to the arrival rate for
which the target is to be met; otherwise a stream that just keeps up would stay behind permanently.

Invariant: a target that no number of executors meets asks for no more of them than still make a
difference (the knee of the curve), however far away the target is.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from godwit.control.latency_model import busy_curve, busy_share, latency_curve, why_no_faster
from godwit.engine.row_limit import longest_epoch_s
from godwit.model.errors import InvalidControlError
from godwit.model.frames import user_call
from godwit.model.signatures import check_signature
from godwit.placement.metrics import wanted_executors
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.control.situation import ScalingSituation
    from godwit.model.latency import LatencyHistogram
    from godwit.placement.arrays import FloatArray
    from godwit.time.durations import Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedExecutors:
    """Required number of executors.

    Raises `InvalidControlError` if a number of executors is none, a reason no text, or what it
    rests on no numbers.
    """

    executors: int  # fewer are too few
    # more are too many: between the two nothing changes, so that noise changes nothing
    comfortable: int
    reason: str  # in a few words
    # what it rests on: name (with its unit) → value
    numbers: Mapping[str, float] = field(default_factory=dict)
    unattainable: str = ""  # why even `executors` will not do; empty where they do
    # how many to ask for where there are too few, such that noise asks for no more soon after;
    # ``None``: halfway between the two
    aim: int | None = None
    # fewest that suffice by measurements; once a stream at rest has said so several times in
    # a row, which tells it from noise, more are too many. ``None``: `comfortable` alone counts
    sufficient: int | None = None
    # the same without the backlog, so once it is worked off; ``None``: there is none
    sufficient_without_backlog: int | None = None
    # rows that `aim` counts on to be worked off besides, where it does
    waiting_rows: float = 0.0
    # the figure that the model goes by: as measured, what it is to be at most, and as predicted
    # with 1, 2, … executors. Decisions are judged by it, if it is given
    measured: float | None = None
    latest: float | None = None  # as measured in the last epoch, which a period's hides
    target: float = 0.0
    curve: tuple[float, ...] = ()

    def expects(self, executors: int) -> float | None:
        """Return the figure predicted for a number of executors; ``None`` without a prediction."""
        return self.curve[executors - 1] if 1 <= executors <= len(self.curve) else None

    def __post_init__(self) -> None:
        counts = self.executors, self.comfortable, self.aim, self.sufficient
        for count in (*counts, self.sufficient_without_backlog):
            if count is not None:
                checked_count(count)
        for name in ("reason", "unattainable"):
            if not isinstance(getattr(self, name), str):
                raise _invalid_answer(name, getattr(self, name), "a text")
        try:
            plain = {str(name): float(value) for name, value in self.numbers.items()}
        except (AttributeError, TypeError, ValueError):
            raise _invalid_answer(
                "numbers", self.numbers, "a mapping of names to numbers"
            ) from None
        object.__setattr__(self, "numbers", plain)


def _invalid_answer(name: str, value: Any, wanted: str) -> InvalidControlError:
    """Return the error that a field of a scaling model's answer is not valid; `wanted`: as text."""
    return InvalidControlError(
        f"A scaling model returned {value!r} as its {name}.", remedy=f"Give {wanted}."
    )


def backlog_to_come(situation: ScalingSituation) -> float:
    """Return the sources' backlog, in rows, when executors requested now start to work.

    It grows by the rows that the busiest lane cannot process until they join and the current epoch
    ends.
    """
    rows = float(situation.backlog_rows or 0)
    busy = busy_share(situation, max(situation.executors, 1), situation.learned)
    busy += situation.outside
    if busy <= 1:
        return rows
    grows_per_s = situation.arrival_per_s * (1 - 1 / busy)
    return rows + grows_per_s * (situation.lead_s + situation.epoch_s)


def waiting_to_come(situation: ScalingSituation, rest_s: float) -> float:
    """Return the excess waiting rows when executors requested now start to work.

    At rest an epoch has the rows of at most `rest_s`.  Epochs are played from now on: each takes
    the rows that wait, up to the limit for overloaded streams; the others stay with the sources.
    """
    longest_s = longest_epoch_s(situation.longest_epoch_s, situation.fixed_s)
    rate, trigger_s = situation.arrival_per_s, situation.trigger_s
    if not situation.waits_for_epochs or math.isinf(longest_s) or rate <= 0:
        return backlog_to_come(situation)
    busy = busy_share(situation, max(situation.executors, 1), situation.learned)
    busy += situation.outside
    # In seconds of arrivals.
    waiting_s = (situation.backlog_rows or 0) / rate + max(situation.epoch_s, trigger_s)
    left_s = situation.lead_s
    while left_s > 0:
        took_s = situation.fixed_s + busy * waiting_s
        if took_s >= longest_s:
            waiting_s += left_s * (1 - (longest_s - situation.fixed_s) / (busy * longest_s))
            break
        before_s, waiting_s = waiting_s, max(took_s, trigger_s)
        left_s -= waiting_s
        if waiting_s == before_s:
            break
    return rate * max(waiting_s - max(rest_s, trigger_s), 0.0)


def catching_up(
    situation: ScalingSituation, within_s: float, backlog: float | None = None
) -> ScalingSituation:
    """Return the situation at an arrival rate that includes working off the backlog.

    `within_s`: time to work it off. `backlog`: its rows; by default `backlog_to_come`.
    """
    if backlog is None:
        backlog = backlog_to_come(situation)
    if not backlog or situation.arrival_per_s <= 0:
        return situation
    return at_rate(situation, situation.arrival_per_s + backlog / within_s)


def at_rate(situation: ScalingSituation, arrival_per_s: float) -> ScalingSituation:
    """Return the situation at another arrival rate."""
    if situation.arrival_per_s <= 0:
        return situation
    more = arrival_per_s / situation.arrival_per_s
    return replace(
        situation,
        offered=situation.offered * more,
        arrival_per_s=arrival_per_s,
        stages=tuple(stage.scaled(more) for stage in situation.stages),
        stations={
            name: replace(station, arrival_per_s=station.arrival_per_s * more)
            for name, station in situation.stations.items()
        },
    )


class ScalingModel(Protocol):
    """Port: a rule for the number of executors."""

    @property
    def name(self) -> str:
        """Name of the scaling model, for events."""

    @property
    def paced(self) -> bool:
        """True if answers are estimates, subject to hysteresis; false if they apply at once."""

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:
        """Return the number of executors that a situation needs."""


def checked_count(count: Any) -> int:
    """Return a number of executors; raise `InvalidControlError` if it is not valid."""
    try:
        number = operator.index(count)
    except TypeError:
        number = 0
    if number < 1 or isinstance(count, bool):
        raise InvalidControlError(
            f"The number of executors is {count!r}.", remedy="Give a whole number of at least 1."
        )
    return number


_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """See `utilisation`."""

    target: float
    slack: float
    catch_up_s: float
    name: str = "utilisation"
    paced: bool = True

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:
        """Return the number of executors that keeps lanes busy for the target share."""
        behind = catching_up(situation, self.catch_up_s)

        def fewest(offered: float, target: float) -> int:
            """Minimum number of executors at a target utilisation, for this offered load."""
            return max(1, math.ceil(offered / (situation.lanes * target) - _ROUNDING))

        busy = situation.offered / (situation.lanes * max(situation.executors, 1))
        numbers = {"utilisation": busy, "offered_lanes": situation.offered}
        if situation.backlog_rows:
            numbers["backlog_rows"] = situation.backlog_rows
        return WantedExecutors(
            executors=fewest(situation.offered, self.target),
            comfortable=fewest(behind.offered, self.target * (1 - self.slack)),
            reason=f"lanes should be busy for {self.target:.0%} of the time",
            numbers=numbers,
            aim=fewest(situation.offered, self.target * math.sqrt(1 - self.slack)),
        )


@user_call
def utilisation(
    target: float = 0.7, *, slack: float = 0.2, catch_up: Duration = "1 minute"
) -> Utilisation:
    """Scale so that lanes (task slots) are busy for at most a target share of their time.

    Pass the result as ``gw.Control(scaling=...)``.

    Parameters
    ----------
    target
        Target share of a lane's time, above 0 and at most 1, at the measured arrival rate.
    slack
        Executors are removed only if the remaining lanes would be busy for at most ``target * (1 -
        slack)`` of their time.
    catch_up
        Executors are removed only if the remaining ones could also work off the sources' backlog
        within this time, as text or a timedelta, and none while it grows or becomes smaller. A
        backlog alone adds no executors.

    Raises
    ------
    InvalidControlError
        If a share is out of range, or `catch_up` is not a duration.

    Examples
    --------
    >>> gw.Control(planner="albic", scaling=gw.control.utilisation(0.6)).scaling_model
    Utilisation(target=0.6, slack=0.2, catch_up_s=60.0, name='utilisation', paced=True)
    """
    if not isinstance(target, int | float) or not 0 < target <= 1:
        raise InvalidControlError(
            f"The target utilisation is {target!r}.",
            remedy="Give a share above 0 and at most 1, such as 0.7.",
            target=target,
        )
    check_slack(slack)
    return Utilisation(
        target=target,
        slack=slack,
        catch_up_s=seconds(catch_up, "The time to catch up"),
    )


def check_slack(slack: float) -> None:
    """Raise `InvalidControlError` if a slack is not a share from 0 to below 1."""
    if not isinstance(slack, int | float) or not 0 <= slack < 1:
        raise InvalidControlError(
            f"The slack is {slack!r}.",
            remedy="Give a share that is at least 0 and below 1, such as 0.2.",
            slack=slack,
        )


_MAX_RATIO = 10.0
"""Max. ratio of a quantile to the mean; its inverse is the minimum."""
_ROWS_OF_RATIO = 100
"""Min. number of rows for measuring that ratio."""


_KNEE, _FLAT = 1.25, 1.1
"""Latency over the best that can be had at which more executors are not worth asking for, and at
which some may go: what lies between is the knee of the curve."""
_NEARLY_FLAT = math.sqrt(_KNEE * _FLAT)
"""The ratio that is aimed at, between the two, so that noise does not cause another request."""


_SOON_S = 3.0
"""Time in which a small backlog is worked off: the rest of 15 s after a step, once it is known,
and executors have joined and have their key groups."""
_CATCH_UP_SHARE = 0.5
"""Time in which other backlogs are worked off, as a share of the time in which they arrived."""


RESERVE = 1.04
"""Factor on the arrival rate at which sufficient executors must still meet the target.

Where lanes are busy, a little noise in the load changes the latency by much, elsewhere by little.
"""


_KEEPS_UP = sys.float_info.max
"""A finite latency."""


def _min_executors(curve: FloatArray, target_s: float) -> int | None:
    """Return the fewest executors whose latency is at most the target; ``None`` if no number does.

    `curve`: latency with 1, 2, … executors.
    """
    met = np.flatnonzero(curve <= target_s)
    return int(met[0]) + 1 if len(met) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """See `latency`."""

    target_s: float
    slack: float
    catch_up_s: float
    quantile: float | None = None  # that is to meet the target; ``None``: the mean
    name: str = "latency"
    paced: bool = True

    def measured_s(self, latency: LatencyHistogram) -> float:
        """Return the mean or quantile of measured latencies, which has to meet the target."""
        return latency.mean_s if self.quantile is None else latency.quantile_s(self.quantile)

    def _quantile_ratio(self, situation: ScalingSituation) -> float:
        """Return the ratio of the latency's quantile to its mean, measured in the last periods."""
        recent = situation.recent_latency
        if self.quantile is None or recent.rows < _ROWS_OF_RATIO or recent.mean_s <= 0:
            return 1.0
        return min(max(self.measured_s(recent) / recent.mean_s, 1 / _MAX_RATIO), _MAX_RATIO)

    def _soon_s(self, situation: ScalingSituation, waiting: float) -> float:
        """Return the seconds within which requested executors should process the `waiting` rows.

        Half as long as its rows took to arrive: that takes three times the executors at most. But
        no sooner than `_SOON_S`, and no later than half of the time to catch up; nor if it takes
        executors longer to get key groups.
        """
        if not situation.fills_at_once:
            return self.catch_up_s / 2
        lies_s = waiting / max(situation.arrival_per_s, 1e-9)
        return min(max(_CATCH_UP_SHARE * lies_s, _SOON_S), self.catch_up_s / 2)

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:
        """Return the fewest executors whose predicted latency meets the target."""
        numbers = {
            "target_s": self.target_s,
            "arrival_per_s": situation.arrival_per_s,
            "epoch_s": situation.epoch_s,
        }
        if situation.backlog_rows:
            numbers["backlog_rows"] = situation.backlog_rows
        if situation.latency.rows:
            numbers["measured_s"] = self.measured_s(situation.latency)
        ratio, latest = self._quantile_ratio(situation), situation.latest_latency
        # Where epochs follow each other at once, rows take one and a half of them in the mean.
        waiting = waiting_to_come(situation, self.target_s / 1.5)
        sooner = catching_up(situation, self._soon_s(situation, waiting), waiting)
        loaded = at_rate(situation, RESERVE * situation.arrival_per_s)
        situation = catching_up(situation, self.catch_up_s)
        curve = ratio * latency_curve(situation)
        have = min(max(situation.executors, 1), situation.most)
        if np.isfinite(curve[have - 1]):
            numbers["predicted_s"] = float(curve[have - 1])
        numbers["corrected_by"] = situation.learned.ratio_at(have)
        figure: dict[str, Any] = {
            "measured": numbers.get("measured_s"),
            "latest": None if not latest.rows else self.measured_s(latest),
            "target": self.target_s,
            "curve": tuple(curve.tolist()),
        }
        quantile_text = "" if self.quantile is None else f"{self.quantile:.6g} of "
        if self.quantile is not None:
            numbers |= {"quantile": self.quantile, "ratio_to_mean": ratio}
        reason = f"{quantile_text}rows should take at most {self.target_s:g} s"
        fewest = _min_executors(curve, self.target_s)
        if fewest is None:
            return self._best_effort(situation, curve, reason, numbers, figure)
        best = int(np.argmin(curve)) + 1
        reserved, more = (
            latency_curve(at_rate(situation, factor * situation.arrival_per_s))
            for factor in (RESERVE, 1 + self.slack)
        )
        sufficient = _min_executors(ratio * reserved, self.target_s)
        aim = _min_executors(curve, self.target_s * (1 - self.slack) ** 0.5)
        comfortable = _min_executors(curve, self.target_s * (1 - self.slack)) or best
        # Who meets the target easily may be unable to keep up with a little more load.
        aim = max(aim or 0, sufficient or best)
        # Where no number would, because rows take their time outside the lanes, none helps.
        comfortable = max(comfortable, _min_executors(more, _KEEPS_UP) or 0)
        without_backlog = None
        if sooner is not situation:
            without_backlog = _min_executors(ratio * latency_curve(loaded), self.target_s)
            # Who just works a backlog off in time would soon be asked for one more by noise; and
            # the target is missed until it is worked off.
            soon = _min_executors(ratio * latency_curve(sooner), self.target_s)
            if soon is None:  # as quickly as any number nearly can
                busy = busy_curve(sooner)
                soon = _min_executors(busy, _FLAT * float(busy.min()))
            aim = max(aim, soon or best)
            comfortable = max(comfortable, aim)
        return WantedExecutors(
            executors=fewest,
            comfortable=comfortable,
            reason=reason,
            numbers=numbers,
            aim=aim,
            sufficient=sufficient,
            sufficient_without_backlog=without_backlog,
            waiting_rows=waiting,
            **figure,
        )

    def _best_effort(
        self,
        situation: ScalingSituation,
        curve: FloatArray,
        reason: str,
        numbers: dict[str, float],
        figure: dict[str, Any],
    ) -> WantedExecutors:
        """Return the answer if no number of executors meets the target: those that still help.

        `curve`: predicted latency with 1, 2, … executors; `figure`: further fields of the answer.
        """
        best_s, most = float(curve.min()), situation.most
        named = f"the target of {self.target_s:g} s"
        if np.isfinite(best_s):
            numbers["best_s"] = best_s
            at_least, nearly, enough = (
                _min_executors(curve, best_s * times) or most
                for times in (_KNEE, _NEARLY_FLAT, _FLAT)
            )
            said = (
                f"{named} is unreachable: {most} executors achieve {best_s:.3g} s, {nearly} are "
                f"within {_NEARLY_FLAT - 1:.0%} of that"
            )
        else:
            lanes = busy_curve(situation)
            at_least, nearly, enough = (
                _min_executors(lanes, float(lanes.min()) * times) or most
                for times in (1.02, 1.01, 1.0)
            )
            said = (
                f"{named} is unreachable: {most} executors cannot keep up with "
                f"{numbers['arrival_per_s']:.4g} rows/s"
            )
        why = why_no_faster(situation, at_least)
        return WantedExecutors(
            executors=at_least,
            comfortable=max(enough, at_least),
            aim=nearly,
            reason=reason,
            numbers=numbers,
            unattainable=f"{said}; {why}" if why else said,
            **figure,
        )


@user_call
def latency(
    target: Duration,
    *,
    quantile: float | None = None,
    slack: float = 0.2,
    catch_up: Duration = "1 minute",
) -> Latency:
    """Scale so that the latency of rows, from arrival to their epoch's commit, meets a target.

    Pass the result as ``gw.Control(scaling=...)``.

    Parameters
    ----------
    target
        The latency, as text such as ``"2 seconds"`` or a timedelta.
    quantile
        Share of the rows that have to meet the target, such as 0.99; ``None``: the mean latency has
        to. A model predicts the mean; a quantile is predicted as the mean times the ratio of
        quantile to mean in the last periods, which is taken as at most 10.
    slack
        Executors are removed only if the latency with the remaining ones is predicted to be at most
        ``target * (1 - slack)``, and they would keep up with ``1 + slack`` times the rows; or if
        periods at rest show that fewer suffice.
    catch_up
        Time within which the sources' backlog has to be worked off, in the same forms: rows that
        are available but not read yet.

    Raises
    ------
    InvalidControlError
        If the target or `catch_up` is not a duration, or the quantile is not between 0 and 1.

    Notes
    -----
    A model predicts the latency of a row as its wait for the epoch plus the time of the epoch: a
    fixed cost, the time of the busiest lane, and the time per row outside the lanes, such as that
    of a sink. If no allowed number of executors meets the
    target, the controller requests the smallest number whose latency is within 17 % of the best
    possible one, and an event names the reason: one key group, the trigger, or the phase or sink
    that takes most of an epoch.

    The field ``numbers`` of ``ScaledOut``, ``ScaledIn`` and ``ScalingRefused`` has the predicted
    latency with the present number of executors (``predicted_s``) and after the decision
    (``expected_s``), and the measured one (``measured_s``); with ``quantile=``, of that quantile.
    ``LoadMeasured`` has the latencies of every period (``latency_ms``). The model is corrected
    while the stream runs (``corrected_by``), from *steady* periods, in which nothing moves and
    rates and epoch times change by less than a quarter.

    Executors are removed only if two consecutive periods show that fewer are enough, and the
    measured latency meets the target in both; those requested only for a backlog go after the first
    period without one. Between the loads at which executors are added and removed lies a range
    (``slack`` of the scaling model), at whose middle the controller aims. No other decision is
    reversed within ``cool_down`` (three periods), and no more executors are requested while some
    are still to join, unless the arrival rate, or the one that is foreseen, has risen by a quarter.
    If the load rises while executors are being emptied, these are kept first, except those that you
    drain by hand.

    The model uses the rate at which rows *arrive*, by the backlog that sources report. For file
    sources of Spark the controller lists the directories, and estimates rows from the bytes of new
    files; if ``pyarrow.fs`` cannot list them, set ``maxFilesPerTrigger`` above the usual number.

    ``gw.control.latency`` requests more executors if a backlog would not be worked off within
    ``catch_up`` (a minute). ``gw.control.utilisation`` removes an executor only if the others could
    work off a backlog within ``catch_up``.

    A period's arrival rate has a standard error, measured from what rows stray by between epochs.
    The number of executors changes only if all rates that this error leaves possible ask for it.
    What one period cannot tell, up to 64 periods together may: with ±50 % noise, a rate that is 10
    % higher is told from noise after some minutes.

    - Between two changes of the rate, noise alone causes a decision with a probability of at most 5
      % on either side, however long the stream runs.
    - A backlog, or a target that is missed in two consecutive periods, is answered whatever the
      noise. If the standard error is below 4 %, nothing is tested.

    Examples
    --------
    >>> gw.Control(planner="albic", scaling=gw.control.latency("2 seconds")).scaling_model
    Latency(target_s=2.0, slack=0.2, catch_up_s=60.0, quantile=None, name='latency',
    paced=True)
    """
    check_slack(slack)
    if quantile is not None and (
        isinstance(quantile, bool) or not isinstance(quantile, int | float) or not 0 < quantile < 1
    ):
        raise InvalidControlError(
            f"The quantile of a latency target is {quantile!r}.",
            remedy="Give a share of the rows above 0 and below 1, such as 0.99; without "
            "quantile=, the target applies to the mean.",
            quantile=quantile,
        )
    return Latency(
        quantile=None if quantile is None else float(quantile),
        target_s=seconds(target, "The latency target"),
        slack=slack,
        catch_up_s=seconds(catch_up, "The time to catch up"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRange:
    """See `load_range`.

    Paper 4 §3 gives every executor a load in [v, u]: ``⌈2w/(u + v)⌉`` of them hold the load w, and
    the range says when that number changes. The planner ``elb`` brings each load into the range.
    """

    low: float
    high: float
    name: str = "load_range"
    paced: bool = True

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:
        """Return the current number of executors if the mean load is in the range, else a new one.

        The new number puts the mean load in the middle of the range.
        """
        load = situation.offered / situation.lanes
        fewest = max(1, math.ceil(load / self.high - _ROUNDING))
        most = max(fewest, math.floor(load / self.low + _ROUNDING))
        middle = min(max(wanted_executors(load, self.low, self.high), fewest), most)
        return WantedExecutors(
            executors=fewest,
            comfortable=middle if situation.executors > most else most,
            aim=middle,
            reason=f"the mean load should be within {self.low:.0%} and {self.high:.0%}",
            numbers={"mean_load": load / max(situation.executors, 1)},
        )


@user_call
def load_range(low: float = 0.4, high: float = 0.8) -> LoadRange:
    """Scale so that the mean load of executors stays within a range (paper 4 §3).

    Pass the result as ``gw.Control(scaling=...)``. If the mean leaves the range, the number of
    executors changes so that the mean is in its middle. With ``planner="elb"`` the load of every
    executor stays within such a range.

    Parameters
    ----------
    low, high
        Minimum and maximum share of their time that lanes are busy; above 0, at most 1.

    Raises
    ------
    InvalidControlError
        If they are not two increasing shares above 0 and at most 1.

    Examples
    --------
    >>> gw.control.load_range(0.4, 0.8).high
    0.8
    """
    numbers = all(isinstance(value, int | float) for value in (low, high))
    if not numbers or not 0 < low < high <= 1:
        raise InvalidControlError(
            f"The load range is {low!r} to {high!r}.",
            remedy="Give two shares with 0 < low < high ≤ 1, such as 0.4 and 0.8.",
            low=low,
            high=high,
        )
    return LoadRange(low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """See `fixed`."""

    executors: int
    name: str = "fixed"
    paced: bool = False

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:  # noqa: ARG002
        """Return the fixed number of executors."""
        count = self.executors
        return WantedExecutors(
            executors=count, comfortable=count, reason=f"the number is fixed at {count}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """See `scripted`."""

    steps: tuple[tuple[float, int], ...]
    name: str = "scripted"
    paced: bool = False

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:
        """Return the number of executors that the script has for the current time."""
        passed_s = situation.now_s - situation.started_s
        count = situation.executors
        for since_s, executors in self.steps:
            if since_s <= passed_s:
                count = executors
        return WantedExecutors(
            executors=count,
            comfortable=count,
            reason=f"the script has {count} at this time",
            numbers={"passed_s": passed_s},
        )

    def to_come(self, passed_s: float) -> tuple[int, ...]:
        """Return the script's number of executors `passed_s` after the start, and later steps."""
        over = sum(since_s <= passed_s for since_s, _ in self.steps)
        return tuple(count for _, count in self.steps[max(over - 1, 0) :])


@user_call
def fixed(executors: int) -> Fixed:
    """Keep a fixed number of executors; a lost one is replaced.

    Pass the result as ``gw.Control(scaling=...)``.

    Parameters
    ----------
    executors
        The number, at least 1.

    Raises
    ------
    InvalidControlError
        If it is not an integer, or less than 1.

    Examples
    --------
    >>> gw.Control(planner="albic", scaling=gw.control.fixed(4)).scaling_model
    Fixed(executors=4, name='fixed', paced=False)
    """
    return Fixed(executors=checked_count(executors))


@user_call
def scripted(steps: Mapping[Duration | Literal[0], int]) -> Scripted:
    """Set the number of executors by a schedule, from the start of the run.

    Pass the result as ``gw.Control(scaling=...)``.

    Parameters
    ----------
    steps
        Time since the start → number of executors from then on, as in ``{0: 2, "1 minute": 4}``. A
        time is text or a timedelta, or 0.

    Raises
    ------
    InvalidControlError
        If `steps` is empty, a time is not a duration, or a number is not an integer above 0.

    Examples
    --------
    >>> gw.control.scripted({"0 seconds": 2, "10 minutes": 4})
    Scripted(steps=((0.0, 2), (600.0, 4)), name='scripted', paced=False)
    """
    if not isinstance(steps, Mapping) or not steps:
        raise InvalidControlError(
            f"The script for the number of executors is {steps!r}.",
            remedy='Give steps, as in gw.control.scripted({0: 2, "1 minute": 4}).',
        )
    read = {
        seconds("0 seconds" if since == 0 else since, "A step of the script", least_s=0.0): (
            checked_count(count)
        )
        for since, count in steps.items()
    }
    return Scripted(steps=tuple(sorted(read.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom:
    """See `custom`."""

    function: Callable[[ScalingSituation], int | WantedExecutors]
    name: str
    paced: bool = True

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:
        """Return the checked answer of the user's function."""
        said = self.function(situation)
        if isinstance(said, WantedExecutors):
            return said
        count = checked_count(said)
        return WantedExecutors(
            executors=count, comfortable=count, reason=f"{self.name} says {count}"
        )


def custom(
    function: Callable[[ScalingSituation], int | WantedExecutors], *, name: str = ""
) -> Custom:
    """Return a scaling model that calls the user's function for the number of executors.

    It gets the situation once a period and returns a number, or `WantedExecutors` with reasons.
    """
    check_signature(
        "The rule for the number of executors", function, "scaling(load)", error=InvalidControlError
    )
    return Custom(function=function, name=name or getattr(function, "__name__", "scaling function"))
