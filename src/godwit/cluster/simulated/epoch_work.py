"""An attempt at an epoch, as values: its batch, each component's part, what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.cluster.simulated.routing import Routed
    from godwit.migration import EpochPlan
    from godwit.planning.arrays import BoolArray, FloatArray

__all__ = ["Batch", "ComponentWork", "EpochWork", "slowest_lane_ms"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Source rows of an epoch.

    Attributes
    ----------
    number
        Of the micro-batch; ``None``: an epoch without input.
    first, last
        Rows ``first <= r < last`` of the source.
    phase
        Frequencies that they were drawn with.
    arrived
        When, as `godwit.cluster.simulated.arrivals.Arrivals.pieces` says.
    rows_of
        Component that the source feeds → rows for each of its key groups; left out: none.
    """

    number: int | None
    first: int
    last: int
    phase: int
    arrived: FloatArray
    rows_of: Mapping[str, np.ndarray]

    @property
    def rows(self) -> int:
        """How many."""
        return self.last - self.first


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentWork:
    """What one component does in an epoch; vectors have one entry per key group.

    Attributes
    ----------
    plan
        How it runs.
    runs, consumes, loads, waits
        Key groups that run; those of them that process what waits; those that their lanes load
        first; those whose rows go to the wait buffer, or stay there.
    new, processed, keys
        Rows that come in, rows that are processed (those that waited among them), distinct keys.
    cpu_ms
        What they cost on the executor where they run.
    moved_bytes
        What lanes read to bring state forward.
    routed
        What came from operators upstream; ``None`` for what the source feeds.
    """

    plan: EpochPlan
    runs: BoolArray
    consumes: BoolArray
    loads: BoolArray
    waits: BoolArray
    new: np.ndarray
    processed: np.ndarray
    keys: FloatArray
    cpu_ms: FloatArray
    moved_bytes: FloatArray
    routed: Routed | None

    @property
    def used(self) -> BoolArray:
        """Key groups whose state a lane has at hand: they process rows, or are loaded."""
        used: BoolArray = (self.processed > 0) | (self.runs & self.loads)
        return used


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochWork:
    """What an attempt at an epoch would do.

    Attributes
    ----------
    epoch, batch
        Which, and of which rows.
    components
        Component → its part, upstream first.
    took_s
        From its start to its commit.
    lane_ms
        What all lanes together compute.
    """

    epoch: int
    batch: Batch
    components: Mapping[str, ComponentWork]
    took_s: float
    lane_ms: float

    @property
    def used(self) -> frozenset[str]:
        """Executors that lanes run on: those that own anything."""
        return frozenset(
            work.plan.assignment.executors[at]
            for work in self.components.values()
            for at in np.unique(work.plan.assignment.executor_of).tolist()
        )


def slowest_lane_ms(
    parts: Sequence[ComponentWork], cores: Mapping[str, int]
) -> tuple[float, float]:
    """Milliseconds of the level's slowest lane, and of all of its lanes together.

    Lanes with the same number on an executor are one task for all components of a level. Where an
    executor has more lanes than cores it cannot end before its cores have done all of the work.
    """
    names = list(cores)
    width = max(max(part.plan.assignment.lanes) for part in parts)
    ms = np.zeros(len(names) * width)
    for part in parts:
        assignment = part.plan.assignment
        row = np.array([names.index(name) for name in assignment.executors])
        lane = row[assignment.executor_of] * width + assignment.lane_of
        ms += np.bincount(lane, weights=part.cpu_ms, minlength=len(ms))
    lanes = ms.reshape(len(names), width)
    shared = lanes.sum(axis=1) / np.array(list(cores.values()))
    return float(max(lanes.max(), shared.max())), float(ms.sum())
