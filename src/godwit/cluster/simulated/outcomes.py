"""What a simulated epoch did, in the words of the real one: `godwit.migration.EpochOutcome`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.migration import ComponentLoad, ComponentTraffic, EpochOutcome

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from godwit.cluster.simulated.epoch_work import EpochWork
    from godwit.cluster.simulated.holdings import Holdings

__all__ = ["outcome_of"]


def outcome_of(
    work: EpochWork,
    holdings: Mapping[str, Holdings],
    *,
    sinks: Collection[str],
    changelog_bytes: int,
    snapshot_bytes: int,
) -> EpochOutcome:
    """Say what a committed epoch did.

    Parameters
    ----------
    work, holdings
        What it did, and the state after it.
    sinks
        Components that nobody is downstream of: what they process goes out.
    changelog_bytes, snapshot_bytes
        What was written.
    """
    traffic, loads, waited, reach = {}, {}, {}, {}
    for name, part in work.components.items():
        assignment = part.plan.assignment
        touched = np.flatnonzero(part.processed)
        loads[name] = ComponentLoad(
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
