"""``process`` with several named states: each read and written only where the function touches it.

The function is called as with a single state, ``function(key, rows, states)``, and reaches each by
its name::

    def note(key, rows, states):
        states.rides.value += len(rows)
        for row in rows:
            states.recent.append(row.fare)
            states.per_zone[row.zone] = states.per_zone.get(row.zone, 0) + 1

Each state is a state of the operator's own in the checkpoint, with chains, copies and versions of
its own; timers are another one.  So states may be added, and one that is not touched by an epoch
is neither looked up nor written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import values_of
from godwit.columns.python_values import UTC, Columns, rows_as_tuples
from godwit.operators.emitted import Emitted
from godwit.operators.firing import CalledKey, Calls
from godwit.operators.operator import KeyedOperator, OperatorOutput
from godwit.operators.process import Meter, check_arguments, uncollected
from godwit.operators.states.cells import Expired, LaneKeys
from godwit.operators.states.declared import (
    TIMERS,
    ListState,
    MapState,
    ValueState,
    item_types_of,
    ttl_us_of,
)
from godwit.operators.states.lists import StoredList
from godwit.operators.states.maps import StoredMap
from godwit.operators.states.of_key import States
from godwit.operators.states.values import StoredValue
from godwit.operators.timers import packed, timers_of
from godwit.operators.windows.event_time import Due
from godwit.store.changes import EntryRange
from godwit.store.columns import StateSchema
from godwit.values.changes import nothing_beside
from godwit.values.codec import make_codec, make_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.operators.firing import TimerClock
    from godwit.operators.operator import Changed, OperatorInput, StateView
    from godwit.operators.states.declared import Declared
    from godwit.operators.states.stored import StoredState
    from godwit.operators.windows.event_time import EpochTime

__all__ = ["DueColumn", "ProcessOfStates"]

_DUE = 1


class DueColumn(NamedTuple):
    """A column of moments of one state.

    Attributes
    ----------
    state
        Name of the state.
    column
        Position in an entry, key columns first.
    until
        What is due, up to and including this moment.
    by_event
        Whether it is event time; else it is the driver's clock.
    """

    state: str
    column: int
    until: int
    by_event: bool

    def due_of(self, moment: int) -> Due:
        """Say of its earliest moment which clock it goes by."""
        return Due(event=moment) if self.by_event else Due(clock=moment)


class ProcessOfStates(KeyedOperator):
    """A function of the user, called per key, with several named states.

    Parameters
    ----------
    name, keys, inputs, function, output, codec, state_classes, zone
        As of `godwit.operators.process.ProcessOperator`.
    states
        Name → declaration.
    clock, on_timer
        As of `godwit.operators.timers.TimedProcess`.

    Raises
    ------
    InvalidFlowError, StateEncodingError
        As of `ProcessOperator`.
    """

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,
        function: Callable[..., Iterable[Any] | None],
        states: Mapping[str, Declared],
        output: pa.Schema,
        codec: str = "msgpack",
        state_classes: Mapping[str, type] | Sequence[type] = (),
        clock: TimerClock | None = None,
        on_timer: Callable[..., Iterable[Any] | None] | None = None,
        zone: str = UTC,
    ) -> None:
        check_arguments(name, function, "function(key, rows, states)")
        if on_timer is not None:
            check_arguments(name, on_timer, "on_timer(key, timer, states)")
        self.name, self.inputs, self.output = name, inputs, output
        self.schema = StateSchema(keys=keys, values=pa.schema([]))
        self.function, self._on_timer, self.clock = function, on_timer, clock
        self._zone = zone
        self.stored = {
            state: _stored(
                declared, state, operator=name, keys=keys, codec=codec, classes=state_classes
            )
            for state, declared in states.items()
        }
        self._timers = StateSchema(
            keys=keys,
            values=pa.schema([pa.field(TIMERS, pa.large_binary()), pa.field("due", pa.int64())]),
        )

    @property
    def kind(self) -> str:
        """The call that makes one."""
        return "process"

    @property
    def states(self) -> tuple[StateId, ...]:
        """Its states, in an order that does not depend on that of the declaration."""
        timers = () if self.clock is None else (TIMERS,)
        return tuple(StateId(self.name, state) for state in (*timers, *sorted(self.stored)))

    def schema_of(self, state: str) -> StateSchema:
        """Columns of one of them."""
        return self._timers if state == TIMERS else self.stored[state].schema

    def describe_state(self, state: str = TIMERS) -> StateDescription:
        """Describe one of them."""
        if state != TIMERS:
            return self.stored[state].describe()
        return StateDescription(
            columns=columns_of(self._timers.values),
            codec="arrow",
            means={"clock of timers": self.clock},
        )

    def insist_on_state(
        self, state: str, stored: StateDescription, today: StateDescription
    ) -> None:
        """Refuse a state of another kind, or timers of another clock.

        Raises
        ------
        CheckpointMismatchError
            Says every difference.
        """
        if state == TIMERS:
            super().insist_on_state(state, stored, today)
        else:
            self.stored[state].insist_on(stored)

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        """Say how values of one of them become today's.

        Raises
        ------
        CheckpointMismatchError
            If they cannot.
        """
        return None if state == TIMERS else self.stored[state].values_from(written)

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:
        """Give what lies beside the values of one of them, where nothing did."""
        return nothing_beside(self.schema_of(state).values, count)

    # -- moments -------------------------------------------------------------------------------

    @property
    def has_timers(self) -> bool:
        """Whether it has timers, or a state that expires."""
        return self.clock is not None or any(s.ttl_us is not None for s in self.stored.values())

    def _due_columns(self, time: EpochTime) -> list[DueColumn]:
        """Columns of moments at which there is something to do."""
        found = []
        if self.clock is not None:
            by_event = self.clock == "event"
            found.append(
                DueColumn(TIMERS, len(self.keys) + _DUE, self._now(time), by_event=by_event)
            )
        for name, stored in self.stored.items():
            if stored.expires_at is not None:
                column = len(stored.schema.keys) + stored.expires_at
                found.append(DueColumn(name, column, time.clock, by_event=False))
        return found

    def _now(self, time: EpochTime) -> int:
        return time.until if self.clock == "event" else time.clock

    # -- an epoch ------------------------------------------------------------------------------

    @uncollected()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the function for every key that has rows, timers or expiries."""
        time = data.time
        entries = {
            due.state: data.states[due.state].scan(EntryRange(column=due.column, end=due.until + 1))
            for due in (self._due_columns(time) if time.due else ())
        }
        groups, keys, of_entries = data.grouped_with(len(self.keys), list(entries.values()))
        if not groups.count:
            return OperatorOutput(next_due=self._next_due(data, {}))
        expired = {
            state: Expired(entries=some, groups=of)
            for (state, some), of in zip(entries.items(), of_entries, strict=True)
            if state in self.stored
        }
        meter = Meter(groups.key_groups)
        columns = Columns(data.rows.values, self.inputs, groups.order)
        lane = LaneKeys(
            keys=keys,
            tuples=rows_as_tuples(keys),
            hashes=groups.hashes,
            key_groups=groups.key_groups,
            rows=columns,
            starts=groups.starts.tolist(),
            clock=time.clock,
        )
        cells = {
            name: stored.begin(lane, data.states[name], expired.get(name))
            for name, stored in self.stored.items()
        }
        of_keys = [States(cells, group, key, self.name) for group, key in enumerate(lane.tuples)]
        timers = self._timers_of(lane, data.states)
        before = [list(moments) for moments in timers]
        found = [CalledKey(moments) for moments in timers]
        given: set[int] = set()

        def state_of(group: int) -> States:
            if group in given:  # dropped by a timer, and there are rows
                of_keys[group]._forget()  # noqa: SLF001 - for operators alone
            given.add(group)
            return of_keys[group]

        def done(group: int) -> None:
            if found[group].dropped:
                of_keys[group]._forget()  # noqa: SLF001 - as above
            of_keys[group]._close()  # noqa: SLF001 - as above

        emitted, ends = Calls(self.name, self.function, self._on_timer, self.clock).run(
            lane.tuples,
            columns,
            lane.starts,
            found,
            now=self._now(time),
            meter=meter,
            state_of=state_of,
            done=done,
        )
        output = Emitted(
            rows=emitted,
            ends=ends,
            keys=lane.tuples,
            schema=self.output,
            operator=self.name,
            zone=self._zone,
        ).to_batch()
        changed: dict[str, Changed] = {}
        for name, of_state in cells.items():
            written = of_state.written()
            if written.groups:
                changed[name] = written.entries(lane)
        if self.clock is not None:
            moments = [key.moments for key in found]
            differ = np.flatnonzero([now != was for now, was in zip(moments, before, strict=True)])
            if differ.size:
                changed[TIMERS] = self._timers_written(lane, moments, differ)
        return OperatorOutput(
            output=output,
            groups=groups,
            changed=changed,
            next_due=self._next_due(data, changed),
            cpu_ms=meter.cpu_ms,
            busy_ms=meter.busy_ms,
        )

    def _timers_of(self, lane: LaneKeys, states: Mapping[str, StateView]) -> list[list[int]]:
        """Moments of the timers of every key."""
        if self.clock is None:
            return [[] for _ in lane.tuples]
        known, values = states[TIMERS].find(lane.keys, lane.key_groups)
        return timers_of(values.column(0), known)

    def _timers_written(
        self, lane: LaneKeys, moments: list[list[int]], differ: npt.NDArray[np.int64]
    ) -> Changed:
        some = [moments[group] for group in differ.tolist()]
        removed = np.array([not of_key for of_key in some], np.bool_)
        rows = StateRows(
            hashes=lane.hashes[differ],
            keys=lane.keys.take(pa.array(differ)),
            values=pa.RecordBatch.from_arrays(packed(some), schema=self._timers.values),
            removed=removed if removed.any() else None,
        )
        return rows, lane.key_groups[differ]

    def _next_due(self, data: OperatorInput, changed: Mapping[str, Changed]) -> Due:
        """When something is due next: of what changed, and of all keys if the epoch was to look."""
        earliest = Due()
        for due in self._due_columns(data.time):
            if data.time.due:
                state = data.states[due.state]
                earliest |= due.due_of(state.min_after(due.column, due.until))
            if due.state not in changed:
                continue
            rows, _ = changed[due.state]
            moments = values_of(rows.values.column(due.column - len(rows.keys.schema)))
            if rows.removed is not None:
                moments = moments[~rows.removed]
            if len(moments):
                earliest |= due.due_of(int(moments.min()))
        return earliest


def _stored(
    declared: Declared,
    name: str,
    *,
    operator: str,
    keys: pa.Schema,
    codec: str,
    classes: Mapping[str, type] | Sequence[type],
) -> StoredState:
    where = f"State {name!r} of operator {operator!r}"
    label = f"{operator}/{name}"
    options: dict[str, Any] = {
        "operator": operator,
        "name": name,
        "keys": keys,
        "ttl_us": ttl_us_of(declared, where),
        "upgrade": declared.upgrade,
    }
    if isinstance(declared, ValueState):
        make_state(label, declared.of)
        written = make_codec(label, codec, declared.of, classes)
        return StoredValue(new=declared.of, codec=written, **options)
    page: Any = list[declared.of]  # type: ignore[name-defined]
    options["codec"] = make_codec(label, codec, page, classes)
    if isinstance(declared, ListState):
        return StoredList(**options)
    assert isinstance(declared, MapState), "declarations were checked"
    by = item_types_of(declared, where)
    return StoredMap(by=by, is_tuple=by != (declared.by,), **options)
