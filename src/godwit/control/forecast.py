r"""Forecast of a periodic load, so that executors are requested before they are needed.

Executors take time to come.  Where the load has a period, such as a day with its night, the rate at
which they will be needed is known by then: the forecast for a time :math:`t` is the median of the
rates at :math:`t - P, t - 2P, \dots`, the *seasonal naive* forecast made robust against days that
were unlike the others (Hyndman and Athanasopoulos, "Forecasting: principles and practice", 3rd ed.,
§5.2).  The period :math:`P` is given, or found by autocorrelation.

Invariants: a forecast is a hint, and bounded.  It never asks for fewer executors than the measured
load does, nor for more than the limits allow; it is silent before there are two periods of history;
and over the last period it is compared, bin by bin, with what really came and with the forecast
that everything stays as it is.  If it was not clearly better than that, it is not used, which is an
event.

Rates are kept in bins whose width doubles when there are too many of them, so that days cost a few
kilobytes, in memory and in what the next run continues from (`godwit.control.memory`).
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from godwit.model import events
from godwit.model.errors import InvalidControlError
from godwit.model.frames import user_class
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.control.policy import Announce
    from godwit.control.scaling import WantedExecutors
    from godwit.control.statistics import PeriodStatistics
    from godwit.placement.arrays import FloatArray
    from godwit.time.durations import Duration

_BINS: Final = 1024
_WIDEST_S: Final = 1800.0
"""Max. width of a bin; up to it, bins are merged in pairs, then the oldest are dropped."""
_MAX_PAST_PERIODS: Final = 7
"""Max. number of periods whose median is the forecast."""
_MIN_PERIODS: Final = 2
"""Min. number of periods of history."""
_MIN_BINS_PER_PERIOD: Final = 8
"""Min. number of bins, and of the controller's periods, in a period of the load."""
_SEASONAL: Final = 0.5
"""Min. autocorrelation of a periodic load."""
_MAX_ERROR_RATIO: Final = 0.8
"""Error over that of the forecast that all stays as it is, below which a forecast is used; it
is dropped again at an error of 1."""
_FIRST_LEAD_S: Final = 30.0
"""Time that executors take to join, until it is measured."""
_NEW_LEAD_WEIGHT: Final = 0.5
"""Weight of a new measurement of time in the moving average."""


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Settings for forecasting a load that repeats, so that executors are ready before it rises.

    Pass it as ``gw.Control(scaling=..., forecast=...)``. Executors are requested for the median of
    the arrival rates at the same time of earlier periods of the load. A forecast never leads to
    fewer executors than the measured load needs, or to more than ``max_executors``. It is used only
    after two periods of the load, and as long as its error over the last one is clearly smaller
    than that of assuming a constant rate; the event `godwit.events.ForecastJudged` reports when
    that changes.

    Attributes
    ----------
    period
        Time after which the load repeats, as in ``"1 day"``; at least eight statistics periods of
        the controller. ``None``: it is detected.
    lead
        Time by which executors are requested before they are needed, as in ``"2 minutes"``.
        ``None``: the measured time until executors join, plus two statistics periods for moving key
        groups.

    Raises
    ------
    InvalidControlError
        If a setting is not a duration.

    Examples
    --------
    >>> gw.control.Forecast(period="1 day").period_s
    86400.0
    """

    period: Duration | None = None
    lead: Duration | None = None

    def __post_init__(self) -> None:
        for name in ("period", "lead"):
            if getattr(self, name) is not None:
                seconds(getattr(self, name), f"The setting {name} of the forecast")

    @property
    def period_s(self) -> float | None:
        """The setting `period` in seconds: time after which the load repeats; ``None``: detected.

        Examples
        --------
        >>> gw.control.Forecast(period="1 hour").period_s
        3600.0
        """
        return None if self.period is None else seconds(self.period, "The period of the forecast")

    @property
    def lead_s(self) -> float | None:
        """The setting `lead` in seconds: time before the need at which executors are requested.

        ``None``: it is measured.

        Examples
        --------
        >>> gw.control.Forecast(lead="2 minutes").lead_s
        120.0
        """
        return None if self.lead is None else seconds(self.lead, "The lead of the forecast")

    def check(self, statistics_period_s: float) -> None:
        """Check that `period` is long enough for the controller; `gw.Control` calls it.

        Parameters
        ----------
        statistics_period_s
            Statistics period of the controller, in seconds; `period` must have at least eight.

        Raises
        ------
        InvalidControlError
            If it has fewer.

        Examples
        --------
        >>> try:
        ...     gw.control.Forecast(period="1 minute").check(10.0)
        ... except gw.errors.InvalidControlError as error:
        ...     print(error.remedy)
        Give a period of at least 80 s, or a shorter period of the controller.
        """
        shortest_s = _MIN_BINS_PER_PERIOD * statistics_period_s
        if self.period_s is not None and self.period_s < shortest_s:
            raise InvalidControlError(
                f"A load that repeats every {self.period_s:g} s cannot be forecast by a "
                f"controller that decides every {statistics_period_s:g} s.",
                remedy=f"Give a period of at least {shortest_s:g} s, or a shorter period of the "
                "controller.",
                period=self.period_s,
            )


class RateHistory:
    """Arrival rates in bins of equal width, oldest first; NaN in bins without measurements."""

    def __init__(self, width_s: float) -> None:
        self.width_s = width_s
        self.first = 0  # number of the first bin, counted in widths since time 0
        self._rows: FloatArray = np.empty(0)
        self._observed_s: FloatArray = np.empty(0)

    def add(self, from_s: float, to_s: float, rows: float) -> None:
        """Add rows that arrived evenly between two times, in order of time."""
        if not 0 <= to_s - from_s < math.inf or to_s <= from_s:
            return
        low, high = int(from_s // self.width_s), int(to_s // self.width_s)
        if not len(self._rows):
            self.first = low
        if low < self.first or high - low >= _BINS:
            return  # a clock that was set back, or a gap beyond all that is kept
        self._extend_bins(high)
        edges = np.arange(low, high + 2) * self.width_s
        part = np.diff(edges.clip(from_s, to_s))
        bins = slice(low - self.first, high - self.first + 1)
        if low < self.first:
            return
        self._rows[bins] += rows * part / (to_s - from_s)
        self._observed_s[bins] += part
        while len(self._rows) > _BINS and self.width_s < _WIDEST_S:
            self._merge_bin_pairs()
        if len(self._rows) > _BINS:
            self._drop_bins(len(self._rows) - _BINS)

    def _extend_bins(self, last: int) -> None:
        """Append empty bins up to number `last`.

        Start again after a gap longer than the history.
        """
        more = last - self.first + 1 - len(self._rows)
        if more > 2 * _BINS:
            self.first, more = last, 1
            self._rows = self._observed_s = np.empty(0)
        if more > 0:
            self._rows = np.concatenate((self._rows, np.zeros(more)))
            self._observed_s = np.concatenate((self._observed_s, np.zeros(more)))

    def _merge_bin_pairs(self) -> None:
        """Merge every two consecutive bins into one of twice the width."""
        ahead, size = self.first % 2, len(self._rows)
        shape = (ahead, (ahead + size) % 2)
        self._rows = np.pad(self._rows, shape).reshape(-1, 2).sum(axis=1)
        self._observed_s = np.pad(self._observed_s, shape).reshape(-1, 2).sum(axis=1)
        self.first //= 2
        self.width_s *= 2

    def _drop_bins(self, count: int) -> None:
        """Drop the oldest `count` bins."""
        self._rows, self._observed_s = self._rows[count:], self._observed_s[count:]
        self.first += count

    @property
    def rates(self) -> FloatArray:
        """Arrival rate of every bin, in rows a second; NaN if less than half of it was observed."""
        seen = self._observed_s >= 0.5 * self.width_s
        return np.where(seen, self._rows / np.maximum(self._observed_s, 1e-9), np.nan)

    @property
    def span_s(self) -> float:
        """Length of the history in seconds."""
        return len(self._rows) * self.width_s

    def to_dict(self) -> dict[str, Any]:
        """Return the history as plain values for the journal, with rates to half a percent."""
        rates = self.rates
        steps = np.where(np.isnan(rates), 0, 1 + np.rint(np.log2(1 + np.nan_to_num(rates)) * 128))
        packed = zlib.compress(steps.astype("<u2").tobytes())
        return {
            "width_s": self.width_s,
            "first": self.first,
            "rates": base64.b64encode(packed).decode(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RateHistory | None:
        """Restore a history from the values of `to_dict`, up to rounding.

        ``None`` if they are not valid.
        """
        try:
            history = cls(float(values["width_s"]))
            history.first = int(values["first"])
            packed = base64.b64decode(values["rates"])
            steps = np.frombuffer(zlib.decompressobj().decompress(packed, 2 * _BINS), "<u2")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, zlib.error):
            return None
        if not 0 < history.width_s < math.inf or history.first < 0:
            return None
        history._observed_s = np.where(steps > 0, history.width_s, 0.0)
        history._rows = (np.exp2((steps - 1.0) / 128) - 1).clip(min=0) * history._observed_s
        return history


@dataclass(frozen=True, slots=True, kw_only=True)
class _Season:
    """A period of the load, and the accuracy of its forecast."""

    bins: float  # length of the period
    error: float  # mean deviation of forecasts from what came, over the last period
    as_now: float  # the same of forecasts that all stays as it is

    @property
    def relative_error(self) -> float:
        """Error of the forecast over that of a constant rate; infinite if the latter is 0."""
        return self.error / self.as_now if self.as_now > 0 else math.inf


def seasonal_forecast(rates: FloatArray, position: float, period: float) -> float:
    """Return the median of the rates at the same time of earlier periods; NaN if there are none.

    `position` and `period` are in bins; rates between two bins are interpolated.
    """
    times = position - period * np.arange(1, _MAX_PAST_PERIODS + 1)
    times = times[(times >= 0) & (times <= len(rates) - 1)]
    if not len(times):
        return math.nan
    low = np.floor(times).astype(int)
    part = times - low
    values = rates[low] * (1 - part) + rates[np.minimum(low + 1, len(rates) - 1)] * part
    values = np.where(part == 0, rates[low], values)
    known_rates = values[~np.isnan(values)]
    return float(np.median(known_rates)) if len(known_rates) else math.nan


def detect_period(rates: FloatArray) -> float | None:
    """Return the period of the rates in bins, by autocorrelation; ``None`` if there is none.

    Lags are up to half of the history, so that the history has at least two periods.
    """
    is_known = ~np.isnan(rates)
    if is_known.sum() < _MIN_PERIODS * _MIN_BINS_PER_PERIOD:
        return None
    centred = np.where(is_known, rates - np.nanmean(rates), 0.0)
    size = 2 * len(rates)
    spectrum = np.abs(np.fft.rfft(centred, size)) ** 2
    pairs = np.fft.irfft(np.abs(np.fft.rfft(is_known.astype(float), size)) ** 2, size)
    half = len(rates) // _MIN_PERIODS
    # The variance is over all pairs, so that long lags, of which there are fewer, do not stray up.
    lags = np.fft.irfft(spectrum, size)[: half + 2] / np.maximum(pairs[: half + 2], 1.0)
    if lags[0] <= 0:
        return None
    correlation = lags / lags[0]
    inner = correlation[1:-1]
    peaks = 1 + np.flatnonzero((inner >= correlation[:-2]) & (inner > correlation[2:]))
    peaks = peaks[(peaks >= _MIN_BINS_PER_PERIOD) & (correlation[peaks] >= _SEASONAL)]
    if not len(peaks):
        return None
    # The first that is nearly as high as the highest: its multiples are as high by chance.
    best = float(correlation[peaks].max())
    first = int(peaks[correlation[peaks] >= 0.9 * best][0])
    left, peak, right = correlation[first - 1 : first + 2]
    curvature = left - 2 * peak + right
    return first + (0.5 * (left - right) / curvature if curvature < 0 else 0.0)


def evaluate_forecast(rates: FloatArray, period: float, lead: int) -> _Season:
    """Compare forecasts made `lead` bins ahead, for the last period, with the measured rates."""
    first = max(len(rates) - round(period), math.ceil(period))
    errors = []
    for now in range(first, len(rates)):
        # Only rates up to `lead` bins before are used, as by the seasonal forecast.
        forecast = seasonal_forecast(rates[: max(now - lead, 0)], float(now), period)
        values = forecast, rates[max(now - lead, 0)], rates[now]
        if not any(map(math.isnan, values)):
            errors.append((abs(forecast - rates[now]), abs(values[1] - rates[now])))
    if len(errors) < _MIN_BINS_PER_PERIOD:
        return _Season(bins=period, error=math.inf, as_now=0.0)
    error, error_of_present_rate = np.mean(errors, axis=0).tolist()
    return _Season(bins=period, error=error, as_now=error_of_present_rate)


class Forecaster:
    """Forecasts the arrival rate of one stream, while forecasts are accurate enough."""

    def __init__(
        self,
        settings: Forecast,
        *,
        statistics_period_s: float,
        announce: Announce,
        remembered: RateHistory | None = None,  # by the run before
        came_s: float = 0.0,  # time that executors took to come, as that run knew; 0: not known
    ) -> None:
        self._settings, self._period_s, self._announce = settings, statistics_period_s, announce
        self.history = remembered or RateHistory(statistics_period_s)
        self.came_s = came_s
        self._executors_asked_s: float | None = None
        self._executors: frozenset[str] = frozenset()
        self._backlog_rows: int | None = None
        self._announced_reason = ""
        self._season: _Season | None = None
        self._is_used = False

    @property
    def lead_s(self) -> float:
        """Lead time in seconds: executors are requested this long before they are needed."""
        if self._settings.lead_s is not None:
            return self._settings.lead_s
        return (self.came_s or _FIRST_LEAD_S) + 2 * self._period_s

    def measure_lead(self, executors: frozenset[str], pending: int, now_s: float) -> None:
        """Measure the time from a request of executors until they have joined.

        `executors`: those there now. `pending`: number requested that have not joined.
        """
        came = executors - self._executors
        self._executors = executors
        if came and self._executors_asked_s is not None:
            took_s = now_s - self._executors_asked_s
            self.came_s = took_s if not self.came_s else (
                self.came_s + _NEW_LEAD_WEIGHT * (took_s - self.came_s)
            )  # fmt: skip
        if not pending:
            self._executors_asked_s = None
        elif self._executors_asked_s is None:
            self._executors_asked_s = now_s

    def observe(self, period: PeriodStatistics) -> None:
        """Add the rows that arrived in a statistics period, and evaluate the forecast."""
        rows = period.rows
        if period.backlog_rows is not None:
            rows += period.backlog_rows - (self._backlog_rows or 0)
            self._backlog_rows = period.backlog_rows
        bins = self.history.first, len(self.history.rates)
        self.history.add(period.began_s, period.ended_s, max(rows, 0.0))
        if bins != (self.history.first, len(self.history.rates)):
            self._evaluate_forecasts()

    def _evaluate_forecasts(self) -> None:
        """Detect the period of the rates, and decide whether to use forecasts."""
        history, given_s = self.history, self._settings.period_s
        rates = history.rates[:-1]  # the last bin continues
        period = detect_period(rates) if given_s is None else given_s / history.width_s
        if period is None or len(rates) < _MIN_PERIODS * period:
            self._season = None
            needed = "" if period is None else f" of {period * history.width_s:.6g} s"
            self._announce_use(
                used=False,
                reason=f"the history is shorter than two periods{needed}"
                if given_s is not None
                else "no period of the load was observed twice",
            )
            return
        lead = max(1, math.ceil(self.lead_s / history.width_s))
        self._season = season = evaluate_forecast(rates, period, lead)
        if season.relative_error < (1.0 if self._is_used else _MAX_ERROR_RATIO):
            self._announce_use(used=True, reason="it is more accurate than a constant rate")
        else:
            self._announce_use(used=False, reason="it is not more accurate than a constant rate")

    def _announce_use(self, *, used: bool, reason: str) -> None:
        """Record and announce (once per reason) whether forecasts are `used` from now on."""
        self._is_used = used
        if reason == self._announced_reason:
            return
        self._announced_reason, season = reason, self._season
        known = season is not None and math.isfinite(season.error)
        self._announce(
            events.ForecastJudged,
            used=used,
            period_s=None if season is None else season.bins * self.history.width_s,
            error=season.error if season is not None and known else None,
            error_as_now=season.as_now if season is not None and known else None,
            lead_s=self.lead_s,
            reason=reason,
        )

    def expected_per_s(self, now_s: float) -> float | None:
        """Return the highest rate forecast within the lead time; ``None``: no forecast."""
        season = self._season
        if season is None or not self._is_used:
            return None
        history = self.history
        rates, width_s = history.rates[:-1], history.width_s
        # Bins are known by their middles.
        first = now_s / width_s - history.first - 0.5
        ahead = np.arange(first, first + self.lead_s / width_s + 1)
        expected = [seasonal_forecast(rates, float(position), season.bins) for position in ahead]
        known = [rate for rate in expected if not math.isnan(rate)]
        return max(known, default=None)


def raise_to_forecast(
    wanted: WantedExecutors, ahead: WantedExecutors, expected_per_s: float
) -> WantedExecutors:
    """Return the answer `wanted`, raised to the executors that the forecast load needs.

    `ahead`: the scaling model's answer for the forecast arrival rate `expected_per_s`.
    """
    comfortable = max(wanted.comfortable, ahead.comfortable)
    sufficient = None
    if wanted.sufficient is not None and ahead.sufficient is not None:
        sufficient = max(wanted.sufficient, ahead.sufficient)
    if ahead.executors <= wanted.executors:
        return replace(wanted, comfortable=comfortable, sufficient=sufficient)
    return replace(
        wanted,
        executors=ahead.executors,
        comfortable=comfortable,
        sufficient=sufficient,
        aim=max((aim for aim in (ahead.aim, wanted.aim) if aim is not None), default=None),
        reason=f"{wanted.reason}, also at the forecast rate of {expected_per_s:.4g} rows/s",
        numbers={**wanted.numbers, "expected_per_s": expected_per_s},
    )
