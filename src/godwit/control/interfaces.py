"""Interfaces of the controller: coordinator, pool of executors, clock, planners.

Every call returns at once: it records the request, and the result appears later in the
coordinator's view.  An invalid request raises a `GodwitError`; the controller reports it as an
event and continues.  The controller is driven by one thread at a time; it needs no
lock of the coordinator's while the controller thinks, since all that it reads are values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.engine.policies import CommittedEpoch
    from godwit.model.latency import LatencyHistogram
    from godwit.placement import Problem
    from godwit.placement.arrays import FloatArray

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredProblem:
    """A planner's problem, and the components that its key groups belong to."""

    problem: Problem  # key groups are numbered component after component
    parts: Mapping[str, slice]  # component → its key groups, in that order
    rows_per_s: FloatArray  # shape ``(m,)``: rows that reach each key group
    link_bytes_per_s: float  # what a load of 1 on the network stands for
    # shape ``(m,)``: state of each key group, also of those that would move without it
    held_bytes: FloatArray
    # shape ``(m,)``: variance of each key group's measured load on the bottleneck resource;
    # ``None``: it is exact
    variance: FloatArray | None = None

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the problem's components, in the order of their key groups."""
        return tuple(self.parts)


class Clock(Protocol):
    """Time, real or virtual."""

    def now_s(self) -> float:
        """Return the current time in seconds, which never runs backwards."""


class PlannerRunner(Protocol):
    """Runner of a planner or a scaling model, which may be the user's function."""

    def __call__(self, plan: Callable[[], T], *, time_limit_s: float) -> T:
        """Call `plan`; return its result, or raise its error.

        Raises `TimeoutError` if it has not returned after `time_limit_s` seconds of real time,
        which may be infinite.
        """


class Driven(Protocol):
    """Interface of a controller to the thread that drives it between epochs."""

    def begun(self, rows: int, backlog_rows: int | None) -> None:
        """Record that an epoch began with `rows` rows, and sources had `backlog_rows` more rows."""

    def observe(self, epoch: CommittedEpoch) -> None:
        """Record a committed epoch."""

    def delivered(self, latency: LatencyHistogram, spent_s: Mapping[str, float]) -> None:
        """Record the row latencies and the phases of an epoch that was delivered to sinks.

        `spent_s`: phase or sink → seconds, until the next epoch could begin.
        """

    def step(self) -> None:
        """Make decisions, and carry them out through the controller's interfaces."""
