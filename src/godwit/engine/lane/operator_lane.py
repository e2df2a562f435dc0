"""One operator on one lane in one epoch: bring state forward, process, write what changed.

*Apply on next*: what an epoch changes goes into the changelog; it enters the local store only when
a later epoch finds it committed.  So an attempt never meets the half-done work of another one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.columns.groups import Groups, group_rows
from godwit.engine.lane.hot_keys import hot_keys_of, hot_schema
from godwit.engine.lane.messages import KeyGroupLoad, OperatorReport
from godwit.engine.lane.named_states import run_states
from godwit.engine.lane.rows import LaneRows, arrived_rows
from godwit.engine.lane.sessions import settle_sessions
from godwit.engine.lane.settling import settle
from godwit.engine.lane.states import LaneStates
from godwit.engine.lane.timers import next_due, with_due_keys
from godwit.engine.lane.waiting import set_aside, with_waiting
from godwit.engine.lane.window_meter import WindowMeter
from godwit.engine.lane.windows import window_output
from godwit.engine.lane.wire import unpack_arrivals, unpack_rows
from godwit.model.errors import EpochFailedError
from godwit.operators.operator import Advance, MergeableOperator, Step
from godwit.operators.settling import SettlingOperator
from godwit.operators.states.operator import ProcessOfStates
from godwit.operators.timers import TimedProcess
from godwit.operators.windows.moments import Arrivals, Due
from godwit.operators.windows.operator import Entries, WindowedOperator
from godwit.operators.windows.sessions import SessionCompute
from godwit.store.changes import EntryRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.checkpoint.records import StateId
    from godwit.engine.lane.files import LaneFiles
    from godwit.engine.lane.lane import LaneOperator
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.lane.wire import Header, Payload
    from godwit.operators.states.operator import Ran
    from godwit.operators.windows.moments import OperatorTime
    from godwit.store.local_state import LocalState
    from godwit.store.local_store import LocalStore

__all__ = ["run_operator"]

KeyGroups = npt.NDArray[np.int64]


def run_operator(
    member: LaneOperator,
    instruction: EpochInstruction,
    arrived: Sequence[tuple[Header, Payload]],
    *,
    store: LocalStore,
    files: LaneFiles,
    report: LaneReport,
) -> pa.RecordBatch | None:
    """Process what arrived for one operator, in order of origin.

    Returns
    -------
    pyarrow.RecordBatch or None
        The output; ``None`` if there was nothing to do.
    """
    clock = _Clock(report.took_ms)
    operator, told = member.operator, instruction.operators[member.index]
    windowed = operator if isinstance(operator, WindowedOperator) else None
    closes = windowed is not None and windowed.closes(told.time)
    found = sum((unpack_arrivals(p) for h, p in arrived if h.is_arrivals), Arrivals())
    rows_in: dict[int, int] = {}
    for header, _ in arrived:
        rows_in[header.given] = rows_in.get(header.given, 0) + header.rows
    hot = hot_keys_of(unpack_rows(p, hot_schema(operator.keys)) for h, p in arrived if h.is_hot)
    arrived = [(h, p) for h, p in arrived if h.is_rows]
    num_key_groups = len(told.places)
    mine = told.places == report.place
    suspended = told.suspended
    rows = arrived_rows(
        operator,
        num_key_groups,
        arrived,
        partial=isinstance(operator, MergeableOperator)
        and bool(suspended.any() or told.resumed.any()),
    )
    touched = np.zeros(num_key_groups, np.bool_)
    touched[rows.key_groups] = True
    clock.lap("decode")

    lane = instruction.places[report.place].lane
    here = mine & ~suspended
    gone = None
    if windowed is not None:
        gone = EntryRange(column=windowed.pane_position, end=windowed.gone_before(told.time.closed))
    states = LaneStates.of(member, told, instruction, store, lane=lane, here=here, gone=gone)
    due = told.resumed & here
    everything = operator.complete or closes or told.time.due
    needed = here if everything else (touched & ~suspended) | due
    meter = WindowMeter(operator, told.time)
    with meter.writing():
        cold = states.bring_forward(needed, here)
    if cold.any() and operator.needs_state(told.time):
        raise _cold(operator.name, cold)
    clock.lap("apply")
    states.write_snapshots(cold, files, gone)
    clock.lap("snapshot")

    waits = suspended | cold
    resuming = np.flatnonzero(due & ~waits)
    # A key group that was to resume still waits, even if no row of this epoch is its own.
    waited = np.flatnonzero((touched | due) & waits)
    rows = set_aside(rows, waits, files)
    if resuming.size:
        rows = with_waiting(
            rows,
            resuming,
            told.waiting,
            member.waiting,
            instruction.storage,
            since=told.waiting_from,
        )
    clock.lap("wait")

    told_back = OperatorReport(
        operator=operator.name,
        rows_in=rows_in,
        load=KeyGroupLoad.none(),
        waited=waited.tolist(),
        consumed=resuming.tolist(),
        versions=states.versions(here),
        arrivals=found,
        next_due=Due(),
    )
    report.operators.append(told_back)
    if isinstance(operator, ProcessOfStates):
        if not (rows.batch.num_rows or told.time.due):
            return None
        done = run_states(
            operator,
            rows,
            told=told.time,
            states=states.locals,
            here=np.flatnonzero(here),
            files=files,
        )
        told_back.next_due = done.next_due
        clock.lap("states")
        if done.ran is None:
            return None
        told_back.load = _load(done.groups, done.cpu_ms, done.ran)
        return done.ran.output
    state, local = states.only
    advanced = None
    settles = isinstance(operator, SessionCompute | SettlingOperator)
    if settles:
        advanced = _settle(
            rows.numbered(instruction.epoch),
            meter=meter,
            told=told.time,
            state=state,
            local=local,
            here=np.flatnonzero(here),
            files=files,
        )
        clock.lap("windows")
    elif rows.batch.num_rows or told.time.due:
        rows = meter.spread(rows.numbered(instruction.epoch))
        advanced = _advance(
            rows,
            meter=meter,
            told=told.time,
            state=state,
            local=local,
            here=np.flatnonzero(here),
            files=files,
            clock=clock,
        )
    if advanced is not None:
        told_back.load = advanced.load
    told_back.windows = meter.work if settles else None
    told_back.twice, told_back.hot_keys = meter.twice, hot
    if isinstance(operator, TimedProcess):
        told_back.next_due = next_due(
            operator,
            told.time,
            local,
            np.flatnonzero(here),
            None if advanced is None else advanced.kept,
        )
    if windowed is not None and not settles:
        output = window_output(
            windowed,
            told.time,
            local,
            np.flatnonzero(here),
            groups=None if advanced is None else advanced.groups,
            changed=None if advanced is None else advanced.entries,
            meter=meter,
        )
        told_back.windows = meter.work
        clock.lap("windows")
        return output
    if operator.complete and isinstance(operator, MergeableOperator):
        output = _everything(operator, local, np.flatnonzero(here & ~waits), advanced)
        clock.lap("complete")
        return output
    return None if advanced is None else advanced.output


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Advanced:
    """What an epoch made of the keys it touched."""

    groups: Groups
    keys: pa.RecordBatch
    state: pa.RecordBatch
    removed: npt.NDArray[np.bool_] | None
    output: pa.RecordBatch
    load: KeyGroupLoad

    @property
    def kept(self) -> pa.RecordBatch:
        """State of the entries that are not gone."""
        if self.removed is None:
            return self.state
        return self.state.take(pa.array(np.flatnonzero(~self.removed)))

    @property
    def entries(self) -> Entries:
        """The entries that changed, as they are now."""
        return Entries(hashes=self.groups.hashes, keys=self.keys, values=self.state)


def _advance(
    rows: LaneRows,
    *,
    meter: WindowMeter,
    told: OperatorTime,
    state: StateId,
    local: LocalState,
    here: KeyGroups,
    files: LaneFiles,
    clock: _Clock,
) -> _Advanced | None:
    """Process rows, and what is due without any, and write what changed."""
    operator, cpu = rows.operator, time.process_time()
    keys, columns = rows.keys, rows.columns
    if isinstance(operator, TimedProcess):
        groups, keys = with_due_keys(operator, rows, told, local, here)
        if not groups.count:
            return None
    else:
        with meter.spreading():
            groups = rows.grouped(keys)
        keys = keys.take(pa.array(groups.first_row))
    if rows.partial:
        assert isinstance(operator, MergeableOperator), "only such operators get partial states"
        with meter.spreading():
            columns = operator.merge_partials(groups, columns)
    clock.lap("group")
    with meter.writing():
        known, prior = local.prior(keys, groups.key_groups)
    clock.lap("find")
    made = operator.advance(
        Step(
            groups=groups,
            keys=keys,
            rows=columns,
            partial=rows.partial,
            prior=prior,
            known=known,
            time=told,
        )
    )
    clock.lap("advance")
    changed = StateRows(hashes=groups.hashes, keys=keys, values=made.state, removed=made.removed)
    with meter.writing():
        files.changes(state, changed, groups.key_groups)
    meter.wrote(keys, groups.hashes)
    spent_ms = (time.process_time() - cpu) * 1e3
    load = _load(groups, spent_ms, made)
    clock.lap("changes")
    return _Advanced(
        groups=groups,
        keys=keys,
        state=made.state,
        removed=made.removed,
        output=made.output,
        load=load,
    )


def _settle(
    rows: LaneRows,
    *,
    meter: WindowMeter,
    told: OperatorTime,
    state: StateId,
    local: LocalState,
    here: KeyGroups,
    files: LaneFiles,
) -> _Advanced | None:
    """Let rows meet what is held, sessions or rows of another stream, and settle what is due."""
    operator, cpu = rows.operator, time.process_time()
    if isinstance(operator, SessionCompute):
        settled = settle_sessions(operator, rows, told, local, here)
    else:
        assert isinstance(operator, SettlingOperator), "no other operator settles"
        settled = settle(operator, rows, told, local, here, meter=meter)
    if settled is None:
        return None
    groups, changed, key_groups, output = settled
    if len(key_groups):
        files.changes(state, changed, key_groups)
    made = Advance(state=changed.values, removed=changed.removed, output=output)
    return _Advanced(
        groups=groups,
        keys=changed.keys,
        state=made.state,
        removed=made.removed,
        output=output,
        load=_load(groups, (time.process_time() - cpu) * 1e3, made),
    )


def _load(groups: Groups, cpu_ms: float, made: Advance | Ran) -> KeyGroupLoad:
    """Load per key group: the time measured for it, and its rows' share of the rest.

    The rest is work of the lane's own, which waits for nothing but a core: of it the CPU time
    counts, since how long it waits for one says nothing of the key group.
    """
    rows_of_key = np.diff(groups.starts)
    starts = np.flatnonzero(np.diff(groups.key_groups, prepend=-1))
    found = groups.key_groups[starts]
    rows, keys = np.add.reduceat(rows_of_key, starts), np.diff(np.append(starts, groups.count))
    own_ms = np.zeros(len(found)) if made.cpu_ms is None else made.cpu_ms
    shared_ms = rows * (max(cpu_ms - own_ms.sum(), 0.0) / max(rows.sum(), 1))
    return KeyGroupLoad(
        key_groups=found.astype(np.int64),
        rows=rows,
        keys=keys,
        cpu_ms=own_ms + shared_ms,
        busy_ms=shared_ms + (own_ms if made.busy_ms is None else made.busy_ms),
    )


def _cold(operator: str, cold: npt.NDArray[np.bool_]) -> EpochFailedError:
    return EpochFailedError(
        f"Operator {operator!r} has windows or timers that are due, but "
        f"{np.count_nonzero(cold)} key groups are not here.",
        remedy="The next attempt loads them.",
        operator=operator,
    )


def _everything(
    operator: MergeableOperator,
    local: LocalState,
    key_groups: KeyGroups,
    advanced: _Advanced | None,
) -> pa.RecordBatch:
    """Output of every key of this lane, changed in this epoch or not."""
    held = local.scan(key_groups)
    hashes, keys, values = held.hashes, held.keys, held.values
    if advanced is not None:
        hashes = np.concatenate([hashes, advanced.groups.hashes])
        keys = pa.concat_batches([keys, advanced.keys])
        values = pa.concat_batches([values, advanced.state])
    groups = group_rows(hashes, keys, local.num_key_groups)
    newest = pa.array(groups.order[groups.starts[1:] - 1])
    return operator.finish(keys.take(newest), values.take(newest))


class _Clock:
    """Adds up the time between laps, by phase."""

    def __init__(self, took_ms: dict[str, float]) -> None:
        self._took_ms, self._since = took_ms, time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap towards `phase`."""
        now = time.perf_counter()
        self._took_ms[phase] = self._took_ms.get(phase, 0.0) + (now - self._since) * 1e3
        self._since = now
