"""Latencies of rows, as histograms of fixed logarithmic buckets.

Buckets are the same for everybody, so histograms of epochs, sources and runs are merged by adding
counts, and a merged one is what all rows together would have given.  Every power of two of
microseconds has 64 buckets of equal width, which the bits of a 32-bit float say without a
logarithm: a bucket's middle is within 0.8 % of all that is in it.  A quantile is the middle of the
bucket that has it, so it is off by as much; by 2 % at most where rows were counted by their age and
then aged together (`LatencyHistogram.later`).

Invariant: number and greatest are exact, and so is the sum where every row was looked at; no row is
counted twice.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

_HALVINGS: Final = 6  # buckets of an octave, as a power of two
_WIDTH: Final = 1 << _HALVINGS
_SHIFT: Final = 23 - _HALVINGS  # bits of a 32-bit float's mantissa that tell no bucket
_ONE: Final = int(np.float32(1).view(np.int32)) >> _SHIFT
_LAST: Final = 63 * _WIDTH  # of the greatest length of time in microseconds that 64 bits hold
_HEAD: Final = struct.Struct("<qddI")
MAX_TRACES: Final = 16
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencyHistogram:
    """Numbers of rows by latency."""

    # buckets, counts: shape ``(n,)``: buckets that have rows, ascending, and how many they have
    buckets: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sum_s: float = 0.0  # of the latencies of all rows
    max_s: float = 0.0
    ahead: int = 0  # rows that seem to have arrived later than now; they count as arriving now
    # W3C trace contexts (`traceparent`) of some of the rows, at most `MAX_TRACES`
    traces: tuple[str, ...] = ()

    # -- made of rows -----------------------------------------------------------------------------

    @classmethod
    def of_us(
        cls,
        ages_us: npt.NDArray[np.int64],
        *,
        rows: int | None = None,
        max_us: int = 0,
    ) -> Self:
        """Return the histogram of rows with these ages in microseconds.

        `rows`: number of rows of which these are a sample; ``None``: these are all. `max_us`:
        greatest age of the rows, where the sample may lack it.
        """
        if not len(ages_us):
            return cls()
        each = 1.0 if rows is None else rows / len(ages_us)
        ahead = 0
        if int(ages_us.min()) < 0:
            ahead = int(np.count_nonzero(ages_us < 0))
            ages_us = ages_us.clip(min=0)
        counts = np.bincount(_bucket_of_duration(ages_us))
        if each != 1:
            counts = np.diff(np.rint(np.cumsum(counts) * each), prepend=0).astype(np.int64)
        return cls._from_counts(
            counts,
            sum_s=each * float(ages_us.sum(dtype=np.float64)) / 1e6,
            max_s=max(int(ages_us.max()), max_us) / 1e6,
            ahead=round(each * ahead),
        )

    @classmethod
    def spread(cls, pieces: npt.NDArray[np.float64]) -> Self:
        """Return the histogram of rows whose latencies are spread evenly over intervals.

        `pieces`: shape ``(n, 3)``: number of rows, least and greatest latency in seconds.
        """
        pieces = pieces[pieces[:, 0] > 0]
        total = round(float(pieces[:, 0].sum()))
        if not total:
            return cls()
        rows = pieces[:, 0]
        ahead = rows[pieces[:, 1] < 0].sum()
        least_us, most_us = (pieces[:, 1:].clip(min=0) * 1e6).T
        first, last = _bucket_of_duration(np.array([least_us.min(), most_us.max()])).tolist()
        ends_us = _lower_us(np.arange(first + 1, last + 2))
        # Shape ``(n, buckets)``: share of each stretch that lies below the end of each bucket.
        long = np.maximum(most_us - least_us, 1e-3)
        below = ((ends_us - least_us[:, None]) / long[:, None]).clip(0, 1)
        reached = np.rint(rows @ below * (total / rows.sum()))
        reached[-1] = total
        counts = np.zeros(last + 1, np.int64)
        counts[first:] = np.diff(reached, prepend=0)
        return cls._from_counts(
            counts,
            sum_s=float(rows @ (least_us + most_us)) / 2e6,
            max_s=float(most_us.max()) / 1e6,
            ahead=round(float(ahead)),
        )

    @classmethod
    def _from_counts(cls, counts: npt.NDArray[np.int64], **sums: Any) -> Self:
        """Return a histogram from the counts of all buckets; `sums`: its other fields."""
        buckets = np.flatnonzero(counts)
        return cls(buckets=buckets, counts=counts[buckets].astype(np.int64), **sums)

    @classmethod
    def merged(cls, histograms: Iterable[LatencyHistogram]) -> Self:
        """Return the histogram of the rows of several histograms."""
        parts = [part for part in histograms if part.rows]
        if not parts:
            return cls()
        if len(parts) == 1:
            (only,) = parts
            return cls(
                buckets=only.buckets,
                counts=only.counts,
                sum_s=only.sum_s,
                max_s=only.max_s,
                ahead=only.ahead,
                traces=only.traces,
            )
        counts = np.zeros(max(int(part.buckets[-1]) for part in parts) + 1, np.int64)
        for part in parts:
            counts[part.buckets] += part.counts
        return cls._from_counts(
            counts,
            sum_s=math.fsum(part.sum_s for part in parts),
            max_s=max(part.max_s for part in parts),
            ahead=sum(part.ahead for part in parts),
            traces=_some_of_each([part.traces for part in parts]),
        )

    def later(self, by_s: float) -> LatencyHistogram:
        """Return the histogram with every latency increased by `by_s` seconds."""
        if not self.rows:
            return self
        counts = np.bincount(
            _bucket_of_duration(_middle_us(self.buckets) + max(by_s, 0.0) * 1e6), self.counts
        ).astype(np.int64)
        return self._from_counts(
            counts,
            sum_s=self.sum_s + max(by_s, 0.0) * self.rows,
            max_s=self.max_s + max(by_s, 0.0),
            ahead=self.ahead,
            traces=self.traces,
        )

    # -- figures ----------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.counts.sum())

    @property
    def mean_s(self) -> float:
        """Mean latency; 0 without rows."""
        return self.sum_s / max(self.rows, 1)

    def quantile_s(self, share: float) -> float:
        """Return the latency that `share` of the rows do not exceed; 0 without rows."""
        return self._quantiles_s((share,))[0]

    def _quantiles_s(self, shares: Iterable[float]) -> list[float]:
        """Return the latency for each of some shares of the rows."""
        if not self.rows:
            return [0.0 for _ in shares]
        reached = np.cumsum(self.counts)
        wanted = [math.ceil(share * int(reached[-1]) - 1e-9) for share in shares]
        index = np.searchsorted(reached, wanted).clip(max=len(reached) - 1)
        quantiles: list[float] = np.minimum(
            _middle_us(self.buckets[index]) / 1e6, self.max_s
        ).tolist()
        return quantiles

    def below(self, bounds_s: Iterable[float]) -> list[int]:
        """Return, for each bound in seconds, the number of rows with at most that latency.

        A bucket counts by its middle.
        """
        reached = np.concatenate(([0], np.cumsum(self.counts)))
        middles_s = _middle_us(self.buckets) / 1e6
        return [int(reached[np.searchsorted(middles_s, bound, "right")]) for bound in bounds_s]

    def figures_ms(self) -> dict[str, float]:
        """Return p50, p95, p99, max and mean in milliseconds, by these names.

        Empty without rows.
        """
        if not self.rows:
            return {}
        figures = dict(zip(_QUANTILES, self._quantiles_s(_QUANTILES.values()), strict=True))
        figures |= {"max": self.max_s, "mean": self.mean_s}
        return {name: round(seconds * 1e3, 1) for name, seconds in figures.items()}

    # -- as plain values and bytes ----------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the histogram as plain values for the journal."""
        return {
            "sum_s": round(self.sum_s, 6),
            "max_s": round(self.max_s, 6),
            "ahead": self.ahead,
            "buckets": self.buckets.tolist(),
            "counts": self.counts.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore a histogram from what `to_dict` returned."""
        return cls(
            buckets=np.array(values["buckets"], np.int64),
            counts=np.array(values["counts"], np.int64),
            sum_s=float(values["sum_s"]),
            max_s=float(values["max_s"]),
            ahead=int(values["ahead"]),
        )

    def to_bytes(self) -> bytes:
        """Return the histogram as bytes."""
        head = _HEAD.pack(self.ahead, self.sum_s, self.max_s, len(self.buckets))
        both = self.buckets.astype("<i8").tobytes() + self.counts.astype("<i8").tobytes()
        return head + both + "\n".join(self.traces).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Restore a histogram from what `to_bytes` returned."""
        ahead, sum_s, max_s, count = _HEAD.unpack_from(data)
        both = np.frombuffer(data, "<i8", 2 * count, _HEAD.size).astype(np.int64)
        traces = bytes(data[_HEAD.size + both.nbytes :]).decode()
        return cls(
            buckets=both[:count],
            counts=both[count:],
            sum_s=sum_s,
            max_s=max_s,
            ahead=ahead,
            traces=tuple(traces.split("\n")) if traces else (),
        )


def _some_of_each(several: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return trace contexts of several histograms, in turn, each once."""
    rounds = zip_longest(*several)
    distinct = dict.fromkeys(trace for turn in rounds for trace in turn if trace is not None)
    return tuple(distinct)[:MAX_TRACES]


def _bucket_of_duration(us: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the bucket of each duration in microseconds: 0 below 1 µs, then 64 per doubling."""
    bits = us.astype(np.float32).view(np.int32) >> _SHIFT
    buckets: npt.NDArray[np.int64] = np.clip(bits - (_ONE - 1), 0, _LAST)
    return buckets


def _lower_us(buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the lower bound of each bucket, in microseconds."""
    octave, part = np.divmod(buckets - 1, _WIDTH)
    lower: npt.NDArray[np.float64] = np.where(buckets, np.ldexp(1 + part / _WIDTH, octave), 0.0)
    return lower


def _middle_us(buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the middle of each bucket in microseconds, used for all its durations."""
    middle: npt.NDArray[np.float64] = (_lower_us(buckets) + _lower_us(buckets + 1)) / 2
    return np.where(buckets, middle, 0.0)
