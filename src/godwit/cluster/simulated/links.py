"""Links: transfers that share up- and downlinks fairly, second by second.

Every place has an uplink and a downlink of some bandwidth.  Transfers that run at once get max-min
fair rates (none can get more without another, no faster one, getting less), which is what TCP
comes to on a network whose core is not the bottleneck.  Between two ends of transfers rates stand
still, so the time of every end is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray

__all__ = ["Links", "fair_rates"]

Name = TypeVar("Name")
_DONE_BYTES = 1e-6


def fair_rates(ends: np.ndarray, capacity: FloatArray) -> FloatArray:
    """Max-min fair rates by progressive filling: O(transfers · links).

    Parameters
    ----------
    ends
        Shape ``(n, 2)``: the two links that each transfer uses.
    capacity
        Shape ``(l,)``: bandwidth of each link.

    Returns
    -------
    ndarray
        Shape ``(n,)``: the rate of each transfer.

    Examples
    --------
    >>> fair_rates(np.array([[0, 2], [0, 3], [1, 3]]), np.array([1.0, 1.0, 1.0, 1.0])).tolist()
    [0.5, 0.5, 0.5]
    """
    rates = np.zeros(len(ends))
    free = np.ones(len(ends), np.bool_)
    left = capacity.astype(np.float64).copy()
    while free.any():
        users = np.bincount(ends[free].ravel(), minlength=len(left))
        share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        tightest = int(share.argmin())
        fixed = free & (ends == tightest).any(axis=1)
        rates[fixed] = share[tightest]
        left -= np.bincount(ends[fixed].ravel(), minlength=len(left)) * share[tightest]
        left = left.clip(min=0)
        free &= ~fixed
    return rates


@dataclass(slots=True, kw_only=True)
class _Flow(Generic[Name]):
    name: Name
    ends: tuple[int, int]
    left_bytes: float


class Links(Generic[Name]):
    """Transfers under way.

    Parameters
    ----------
    now_s
        The time to begin with.
    """

    def __init__(self, *, now_s: float = 0.0) -> None:
        self._link: dict[str, int] = {}
        self._capacity: list[float] = []
        self._flows: list[_Flow[Name]] = []
        self._rates: FloatArray | None = None  # while none begins and none ends
        self.now_s = now_s

    def connect(self, place: str, *, up_bytes_per_s: float, down_bytes_per_s: float) -> None:
        """Give a place its links.

        Raises
        ------
        InvalidProblemError
            If one of them carries nothing.
        """
        if not min(up_bytes_per_s, down_bytes_per_s) > 0:
            raise InvalidProblemError(
                f"The links of {place!r} carry {up_bytes_per_s} and {down_bytes_per_s} bytes/s.",
                remedy="Give every link a positive number of bytes per second.",
                field="bandwidth",
            )
        self._link[place] = len(self._capacity)
        self._capacity += [up_bytes_per_s, down_bytes_per_s]

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._flows)

    def start(self, name: Name, source: str, destination: str, size_bytes: float) -> None:
        """Begin a transfer, now."""
        ends = (self._link[source], self._link[destination] + 1)
        self._flows.append(_Flow(name=name, ends=ends, left_bytes=max(size_bytes, 0.0)))
        self._rates = None

    def stop(self, name: Name) -> None:
        """Break a transfer off."""
        self._flows = [flow for flow in self._flows if flow.name != name]
        self._rates = None

    def next_end_s(self) -> float:
        """When the next transfer ends, if nothing else begins; infinity if none is under way."""
        if not self._flows:
            return float("inf")
        left = np.array([flow.left_bytes for flow in self._flows])
        return self.now_s + float((left / self._fair_rates()).min())

    def advance(self, until_s: float) -> list[Name]:
        """Let time pass up to `until_s`, or to the next end if that comes first; return what ended.

        Those that end at the same time are returned together, in the order of their beginnings.
        """
        end_s = self.next_end_s()
        step = max(min(until_s, end_s) - self.now_s, 0.0)
        if self._flows:
            for flow, rate in zip(self._flows, self._fair_rates().tolist(), strict=True):
                flow.left_bytes -= rate * step
        self.now_s = max(self.now_s, min(until_s, end_s))
        ended = [f.name for f in self._flows if f.left_bytes <= _DONE_BYTES]
        if end_s <= until_s and not ended:  # rounding: the one that was to end has ended
            ended = [min(self._flows, key=lambda f: f.left_bytes).name]
        if ended:
            self._flows = [f for f in self._flows if f.name not in ended]
            self._rates = None
        return ended

    def _fair_rates(self) -> FloatArray:
        if self._rates is None:
            ends = np.array([flow.ends for flow in self._flows])
            self._rates = fair_rates(ends, np.array(self._capacity))
        return self._rates
