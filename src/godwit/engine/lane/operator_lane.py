"""One operator on one lane in one epoch: bring state forward, process, write what changed.

*Apply on next*: what an epoch changes goes into the changelog; it enters the local store only when
a later epoch finds it committed.  So an attempt never meets the half-done work of another one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.engine.lane.hot_keys import hot_keys_of, hot_schema
from godwit.engine.lane.messages import KeyGroupLoad, OperatorReport
from godwit.engine.lane.rows import arrived_rows
from godwit.engine.lane.states import LaneStates
from godwit.engine.lane.waiting import set_aside, with_waiting
from godwit.engine.lane.wire import unpack_arrivals, unpack_rows
from godwit.model.errors import EpochFailedError
from godwit.operators.operator import OperatorInput
from godwit.operators.windows.event_time import Arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from godwit.engine.lane.files import LaneFiles
    from godwit.engine.lane.lane import LaneOperator
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.lane.wire import Header, Payload
    from godwit.operators.operator import OperatorOutput
    from godwit.store.local_store import LocalStore

__all__ = ["run_operator"]


def run_operator(
    member: LaneOperator,
    instruction: EpochInstruction,
    arrived: Sequence[tuple[Header, Payload]],
    *,
    store: LocalStore,
    files: LaneFiles,
    report: LaneReport,
) -> pa.RecordBatch | None:
    """Process what arrived for one operator, in order of origin; gives its output, if any."""
    clock = _Clock(report.took_ms)
    operator, own = member.operator, instruction.operators[member.index]
    arrivals = sum((unpack_arrivals(p) for h, p in arrived if h.is_arrivals), Arrivals())
    rows_in: dict[int, int] = {}
    for header, _ in arrived:
        rows_in[header.given] = rows_in.get(header.given, 0) + header.rows
    hot = hot_keys_of(unpack_rows(p, hot_schema(operator.keys)) for h, p in arrived if h.is_hot)
    num_key_groups = len(own.places)
    suspended = own.suspended
    rows = arrived_rows(
        operator,
        num_key_groups,
        [(h, p) for h, p in arrived if h.is_rows],
        partial=operator.partials is not None and bool(suspended.any() or own.resumed.any()),
    )
    touched = np.zeros(num_key_groups, np.bool_)
    touched[rows.key_groups] = True
    clock.lap("decode")

    lane = instruction.places[report.place].lane
    here = (own.places == report.place) & ~suspended
    gone = operator.gone(own.time.closed)
    states = LaneStates.of(member, own, instruction, store, lane=lane, here=here, gone=gone)
    resumes = own.resumed & here
    needed = here if operator.reads_all(own.time) else (touched & ~suspended) | resumes
    cpu = time.process_time()
    cold = states.bring_forward(needed, here)
    applying_ms = (time.process_time() - cpu) * 1e3
    if cold.any() and operator.needs_state(own.time):
        raise EpochFailedError(
            f"Operator {operator.name!r} has windows or timers that are due, but "
            f"{np.count_nonzero(cold)} key groups are not here.",
            remedy="The next attempt loads them.",
            operator=operator.name,
        )
    clock.lap("apply")
    states.write_snapshots(cold, files, gone)
    clock.lap("snapshot")

    waits = suspended | cold
    resuming = np.flatnonzero(resumes & ~waits)
    # A key group that was to resume still waits, even if no row of this epoch is its own.
    waited = np.flatnonzero((touched | resumes) & waits)
    rows = set_aside(rows, waits, files)
    if resuming.size:
        rows = with_waiting(
            rows,
            resuming,
            own.waiting,
            member.waiting,
            instruction.storage,
            since=own.waiting_from,
        )
    clock.lap("wait")

    own_report = OperatorReport(
        operator=operator.name,
        rows_in=rows_in,
        load=KeyGroupLoad.none(),
        waited=waited.tolist(),
        consumed=resuming.tolist(),
        versions=states.versions(here),
        arrivals=arrivals,
        hot_keys=hot,
    )
    report.operators.append(own_report)
    cpu = time.process_time()
    done = operator.process(
        OperatorInput(
            rows=rows.entries,
            is_partial=rows.partial,
            states=states.views(np.flatnonzero(here & ~waits)),
            time=own.time,
            epoch=instruction.epoch,
            num_key_groups=num_key_groups,
        )
    )
    clock.lap("process")
    written = time.process_time()
    for state in states.hydrations:
        if state.state in done.changed:
            files.changes(state, *done.changed[state.state])
    now = time.process_time()
    own_report.load = _load(done, (now - cpu) * 1e3 - done.closing_ms)
    own_report.next_due, own_report.twice = done.next_due, done.duplicate_partials
    if done.windows is not None:  # entries are brought forward and written by the lane
        lane_ms = applying_ms + (now - written) * 1e3
        own_report.windows = replace(done.windows, write_ms=done.windows.write_ms + lane_ms)
    clock.lap("changes")
    return done.output


def _load(done: OperatorOutput, cpu_ms: float) -> KeyGroupLoad:
    """Load per key group: the time measured for it, and its rows' share of the rest.

    The rest is work of the lane's own, which waits for nothing but a core: of it the CPU time
    counts, since how long it waits for one says nothing of the key group.
    """
    groups = done.groups
    if groups is None:
        return KeyGroupLoad.none()
    rows_of_key = np.diff(groups.starts)
    starts = np.flatnonzero(np.diff(groups.key_groups, prepend=-1))
    key_groups = groups.key_groups[starts]
    rows, keys = np.add.reduceat(rows_of_key, starts), np.diff(np.append(starts, groups.count))
    own_ms: npt.NDArray[np.float64] = (
        np.zeros(len(key_groups)) if done.cpu_ms is None else done.cpu_ms
    )
    shared_ms = rows * (max(cpu_ms - own_ms.sum(), 0.0) / max(rows.sum(), 1))
    return KeyGroupLoad(
        key_groups=key_groups.astype(np.int64),
        rows=rows,
        keys=keys,
        cpu_ms=own_ms + shared_ms,
        busy_ms=shared_ms + (own_ms if done.busy_ms is None else done.busy_ms),
    )


class _Clock:
    """Adds up the time between laps, by phase."""

    def __init__(self, took_ms: dict[str, float]) -> None:
        self._took_ms, self._since = took_ms, time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap towards `phase`."""
        now = time.perf_counter()
        self._took_ms[phase] = self._took_ms.get(phase, 0.0) + (now - self._since) * 1e3
        self._since = now
