"""An attempt at an epoch, as values: its batch, what each component does, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.migration import ComponentTraffic, EpochOutcome, KeyGroupLoad

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from godwit.cluster.simulated.components import Routed
    from godwit.cluster.simulated.holdings import Holdings
    from godwit.cluster.simulated.workload import Batch
    from godwit.migration import EpochPlan
    from godwit.planning.arrays import BoolArray, FloatArray

__all__ = ["ComponentWork", "EpochWork", "outcome_of", "slowest_lane_ms"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentWork:
    """What one component does in an epoch; vectors have one entry per key group."""

    plan: EpochPlan  # how it runs
    # runs, consumes, loads, waits: Key groups that run; those of them that process what waits;
    # those that their lanes load first; those whose rows go to the wait buffer, or stay there
    runs: BoolArray
    consumes: BoolArray
    loads: BoolArray
    waits: BoolArray
    # new, processed, keys: Rows that come in, rows that are processed (those that waited among
    # them), distinct keys
    new: np.ndarray
    processed: np.ndarray
    keys: FloatArray
    cpu_ms: FloatArray  # what they cost on the executor where they run
    moved_bytes: FloatArray  # what lanes read to bring state forward
    routed: Routed | None  # what came from operators upstream; ``None`` for what the source feeds

    @property
    def used(self) -> BoolArray:
        """Key groups whose state a lane has at hand: they process rows, or are loaded."""
        used: BoolArray = (self.processed > 0) | (self.runs & self.loads)
        return used


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochWork:
    """What an attempt at an epoch would do."""

    epoch: int  # epoch, batch: Which, and of which rows
    batch: Batch
    components: Mapping[str, ComponentWork]  # component → its part, upstream first
    took_s: float  # from its start to its commit
    lane_ms: float  # what all lanes together compute

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


def outcome_of(
    work: EpochWork,  # work, holdings: What it did, and the state after it
    holdings: Mapping[str, Holdings],
    *,
    sinks: Collection[str],  # components that nobody is downstream of: what they process goes out
    changelog_bytes: int,  # changelog_bytes, snapshot_bytes: What was written
    snapshot_bytes: int,
) -> EpochOutcome:
    """Say what a committed epoch did."""
    traffic, loads, waited, reach = {}, {}, {}, {}
    for name, part in work.components.items():
        assignment = part.plan.assignment
        touched = np.flatnonzero(part.processed)
        loads[name] = KeyGroupLoad(
            key_groups=touched,
            rows=part.processed[touched],
            keys=np.maximum(1, np.rint(part.keys[touched])).astype(np.int64),
            cpu_ms=part.cpu_ms[touched],
            state_bytes=holdings[name].state_bytes[touched].astype(np.int64),
        )
        waits = np.flatnonzero(part.waits)
        if len(waits):
            waited[name] = tuple(waits.tolist())
        used = np.flatnonzero(part.used)
        reach[name] = {
            executor: dict.fromkeys(
                used[assignment.executor_of[used] == at].tolist(), work.epoch - 1
            )
            for at, executor in enumerate(assignment.executors)
        }
        if part.routed is not None:
            sent = np.flatnonzero(part.routed.rows)
            traffic[name] = ComponentTraffic(
                key_groups=tuple(sent.tolist()),
                rows=tuple(part.routed.rows[sent].tolist()),
                size_bytes=tuple(np.rint(part.routed.size_bytes[sent]).astype(int).tolist()),
                crossed_bytes=int(part.routed.crossed_bytes),
                pairs=part.routed.pairs,
            )
    return EpochOutcome(
        epoch=work.epoch,
        batch=work.batch.number,
        rows_in=work.batch.rows,
        rows_out=int(sum(p.processed.sum() for n, p in work.components.items() if n in sinks)),
        loads=loads,
        traffic=traffic,
        waited=waited,
        reach=reach,
        changelog_bytes=changelog_bytes,
        snapshot_bytes=snapshot_bytes,
        lane_ms={"lane": work.lane_ms},
    )
