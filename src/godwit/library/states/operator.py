"""``process`` with several named states, each read and written only where it is accessed.

Each state is a state of the operator's own in the checkpoint, with chains, copies and versions of
its own; timers are another one.  So states may be added, and one that is not touched by an epoch
is neither looked up nor written.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.checkpoint.records import StateId
from godwit.columns.python_values import UTC, rows_as_tuples
from godwit.library.calls import (
    CalledKey,
    Calls,
    KeysToCall,
    Meter,
    columns_of_rows,
    timer_times,
    without_garbage_collection,
    without_misfits,
)
from godwit.library.emitted import emitted_or_undone
from godwit.library.initial_states import (
    encoded_states,
    expiries_in,
    expiries_of_elements,
    function_states,
    timers_in,
)
from godwit.library.process import (
    DueColumn,
    caller_for,
    due_timers,
    next_due,
    packed_timers,
    timers_of,
)
from godwit.library.states.lists import stored_list
from godwit.library.states.maps import StoredMap
from godwit.library.states.stored import LaneKeys
from godwit.library.states.type_changes import blank_columns
from godwit.library.states.values import StoredValue
from godwit.operators.declared import (
    TIMERS,
    ListState,
    MapState,
    States,
    ValueState,
    item_types_of,
    ttl_us_of,
)
from godwit.operators.failed_calls import FailedCalls
from godwit.operators.initial import stored_columns, with_keys
from godwit.operators.operator import KeyedOperator, OperatorOutput
from godwit.operators.timers import NO_TIMERS
from godwit.store.changes import EntryRange, StateRows
from godwit.store.columns import StateSchema
from godwit.values.codec import make_codec, make_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.columns.groups import Groups
    from godwit.library.states.stored import Cells, Entries, Expired, StoredState
    from godwit.model.errors import UserFunctionError
    from godwit.operators.asynchronous import Async
    from godwit.operators.declared import Declared
    from godwit.operators.operator import Changed, EntryColumns, OperatorInput, StateView
    from godwit.operators.timers import Timing
    from godwit.time.event_time import EpochTime
    from godwit.values.records import RowClass

_DUE = 1
NOTHING_EXPIRED: Mapping[str, Expired] = MappingProxyType({})


class ProcessOfStates(KeyedOperator):
    """A user's function called per key, with several named states."""

    kind = "process"
    reads_touched = True

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,
        function: Callable[..., Iterable[Any] | None],
        states: Mapping[str, Declared],
        output: pa.Schema,
        timing: Timing = NO_TIMERS,
        zone: str = UTC,
        asynchronous: Async | None = None,
        tables: Collection[str] = (),  # noqa: ARG002  as of `ProcessOperator`
        row_class: RowClass | None = None,
        output_class: RowClass | None = None,
    ) -> None:
        self.name, self.inputs, self.output = name, inputs, output
        self.row_class, self.output_class = row_class, output_class
        self.schema = StateSchema(keys=keys, values=pa.schema([]))
        self.function, self.clock = function, timing.clock
        calls = Calls(name, function, timing)
        self._calls = caller_for(calls, asynchronous)
        self.zone, self.repeatable = zone, asynchronous is None
        self.stored = {
            state: _stored_layout(declared, state, operator=name, keys=keys)
            for state, declared in states.items()
        }
        self._timers = StateSchema(
            keys=keys,
            values=pa.schema([pa.field(TIMERS, pa.large_binary()), pa.field("due", pa.int64())]),
        )

    @property
    def states(self) -> tuple[StateId, ...]:
        """The timers' state, then the declared states."""
        timers = () if self.clock is None else (TIMERS,)
        return tuple(StateId(self.name, state) for state in (*timers, *sorted(self.stored)))

    def schema_of(self, state: str) -> StateSchema:
        return self._timers if state == TIMERS else self.stored[state].schema

    def describe_state(self, state: str = TIMERS) -> StateDescription:
        """Describe a declared state, or the timers, for the checkpoint."""
        if state != TIMERS:
            return self.stored[state].describe()
        return StateDescription(
            columns=columns_of(self._timers.values),
            codec="arrow",
            means={"clock of timers": self.clock},
        )

    def check_stored_state(
        self, state: str, stored: StateDescription, today: StateDescription
    ) -> None:
        """Refuse a stored state of another kind, or timers of another clock."""
        if state == TIMERS:
            super().check_stored_state(state, stored, today)
        else:
            self.stored[state].check_stored(stored)

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        """Return the upgrade of a declared state's values; timers never need one."""
        return None if state == TIMERS else self.stored[state].values_from(written)

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:
        return blank_columns(self.schema_of(state).values, count)

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return entries of a state: ``value`` of each key (of a list or a map: all of it)."""
        rows = with_keys(rows, self.schema.keys)
        keys = pa.RecordBatch.from_arrays(
            stored_columns(self.name, rows, self.schema.keys), schema=self.schema.keys
        )
        if state == TIMERS:
            timers = packed_timers(timers_in(self.name, rows))
            return keys, pa.RecordBatch.from_arrays(timers, schema=self._timers.values)
        stored, values = self.stored[state], self.initial_values(state, rows)
        key_tuples = rows_as_tuples(keys)
        if isinstance(stored, StoredValue):
            columns = [encoded_states(self.name, values, stored.codec, key_tuples.__getitem__)]
            if stored.ttl_us is not None:
                columns.append(expiries_in(self.name, rows))
            return keys, pa.RecordBatch.from_arrays(columns, schema=stored.schema.values)
        expiry_times = expiries_of_elements(self.name, rows) if stored.ttl_us is not None else None
        return stored.initial_entries(keys, key_tuples, values, expiry_times or [()] * len(values))

    def initial_values(self, state: str, rows: pa.RecordBatch) -> list[Any]:
        """Return the values of a state that initial rows have: of a list or a map, all of it."""
        stored = self.stored[state]
        whole = not isinstance(stored, StoredValue)
        return function_states(self.name, rows, stored.codec, whole=whole)

    # -- time ----------------------------------------------------------------------------------

    @property
    def has_timers(self) -> bool:
        return self.clock is not None or any(s.ttl_us is not None for s in self.stored.values())

    def _due_columns(self, time: EpochTime) -> list[DueColumn]:
        """Return the state columns with times of timers and of expiry, for this epoch."""
        columns = []
        if self.clock is not None:
            columns.append(due_timers(TIMERS, len(self.keys) + _DUE, self.clock, time))
        for name, stored in self.stored.items():
            if stored.expires_at is not None:
                column = len(stored.schema.keys) + stored.expires_at
                columns.append(DueColumn(name, column, time.clock))
        return columns

    # -- an epoch ------------------------------------------------------------------------------

    @without_garbage_collection()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the function for every key with rows, due timers or expired state."""
        fitting, misfits = without_misfits(self, data)
        return self._process_fitting_rows(fitting).with_failed(misfits)

    def _process_fitting_rows(self, data: OperatorInput) -> OperatorOutput:
        """Call the functions for rows that fit their class."""
        due_columns = self._due_columns(data.time)
        scanned = {
            due_column.state: data.states[due_column.state].scan(
                EntryRange(column=due_column.column, end=due_column.until + 1)
            )
            for due_column in (due_columns if data.time.due else ())
        }
        entries = [*scanned.values(), *self.called_without_rows(data)]
        groups, keys, groups_of_entries = data.grouped_with(len(self.hash_columns), entries)
        if not groups.count:
            return OperatorOutput(next_due=next_due(due_columns, data, {}))
        expired = {}
        for (state, due_column), groups_of_state in zip(
            scanned.items(), groups_of_entries, strict=False
        ):
            item_columns = due_column.keys.columns[len(self.keys) :]
            item_values = [column.to_pylist() for column in item_columns]
            parts = zip(*item_values, strict=True) if item_columns else [()] * len(groups_of_state)
            expired[state] = list(zip(groups_of_state, parts, strict=True))
        return self.process_keys(data, groups, keys, states=data.states, expired=expired)

    def called_without_rows(self, data: OperatorInput) -> Sequence[StateRows]:  # noqa: ARG002
        """Return entries of keys to call in an epoch whether they have rows or not."""
        return ()

    def process_keys(
        self,
        data: OperatorInput,
        groups: Groups,
        keys: pa.RecordBatch,  # of the groups
        *,
        states: Mapping[str, Entries],
        expired: Mapping[str, Expired] = NOTHING_EXPIRED,
        # called before the function is; to repeat it for a key that was restored, with `only`, its
        # number
        prepare: Callable[..., None] | None = None,
    ) -> OperatorOutput:
        """Call the functions for every key with rows or due timers; `keys`: key of each group.

        `states`, `expired`: state's name → look-up, expired entries. `prepare` may change states
        before: it gets the keys, and state's name → `Cells`.
        """
        time = data.time
        meter = Meter(groups.key_groups)
        tuples = rows_as_tuples(keys.select(self.keys.names))
        columns = columns_of_rows(self, data.rows, groups, tuples)
        lane = LaneKeys(
            keys=keys,
            tuples=tuples,
            hashes=groups.hashes,
            key_groups=groups.key_groups,
            rows=columns,
            starts=groups.starts.tolist(),
            clock=time.clock,
            failed=FailedCalls.of(self, data.rows, groups.order),
        )
        cells = {
            name: stored.cells(stored, lane, states[name], expired.get(name, ()))
            for name, stored in self.stored.items()
        }
        if prepare is not None:
            prepare(lane, cells)
        called = [CalledKey(timers) for timers in self._timers_of(lane, data.states)]
        has_timers = self.clock is not None
        timers_before = [list(key.timers) for key in called] if has_timers else []

        def restore(group: int) -> None:
            """Restore a key's states to what they were before its calls."""
            for state_cells in cells.values():
                state_cells.reset(group)
            if prepare is not None:
                prepare(lane, cells, only=group)

        output = self.call_keys(
            data, lane, cells=cells, called=called, meter=meter, groups=groups, restore=restore
        )
        changed: dict[str, Changed] = {}
        for name, state_cells in cells.items():
            written = state_cells.written()
            if written.groups:
                changed[name] = written.entries(lane)
        if has_timers:
            pairs = zip(called, timers_before, strict=True)
            changed_keys = np.flatnonzero([key.timers != timers for key, timers in pairs])
            if changed_keys.size:
                timers = [called[group].timers for group in changed_keys.tolist()]
                changed[TIMERS] = self._timers_written(lane, timers, changed_keys)
        return OperatorOutput(
            output=output,
            failed=None if lane.failed is None else lane.failed.to_batch(),
            groups=groups,
            changed=changed,
            next_due=next_due(self._due_columns(time), data, changed),
            cpu_ms=meter.cpu_ms,
            busy_ms=meter.busy_ms,
        )

    def call_keys(
        self,
        data: OperatorInput,
        lane: LaneKeys,
        *,
        cells: Mapping[str, Cells],  # state's name → its values of the lane's keys
        called: list[CalledKey],  # of each key; filled in
        meter: Meter,
        groups: Groups,
        restore: Callable[[int], None],  # of a key's states, so that its calls can be repeated
    ) -> pa.RecordBatch:
        """Call the functions for every key of a lane; return the rows that they emitted."""
        time, timers_before = data.time, [list(key.timers) for key in called]
        states_of_keys = [
            States(cells, group, key, self.name) for group, key in enumerate(lane.tuples)
        ]

        def renewed(group: int) -> States:
            """Return the states of a key after they were dropped."""
            states_of_keys[group]._drop_all()  # noqa: SLF001 - for operators alone
            return states_of_keys[group]

        def done(group: int) -> None:
            """Close the states of a key after its calls."""
            if called[group].dropped:
                states_of_keys[group]._drop_all()  # noqa: SLF001 - as above
            states_of_keys[group]._close()  # noqa: SLF001 - as above

        def reset(group: int) -> None:
            """Restore a key's states and timers before its calls are repeated."""
            states_of_keys[group]._close()  # noqa: SLF001 - as above
            restore(group)
            states_of_keys[group] = States(cells, group, lane.tuples[group], self.name)

        before, after = timer_times(self.clock, time)
        work = KeysToCall(
            keys=lane.tuples,
            columns=lane.rows,
            starts=lane.starts,
            called=called,
            before=before,
            after=after,
            moments=None if data.moments is None else data.moments[groups.order].tolist(),
            state_of=states_of_keys.__getitem__,
            renewed=renewed,
            done=done,
            reset=reset,
            named=data.named,
            failed=lane.failed,
        )
        emitted, ends = self._calls.run(work, meter)

        def undo(group: int, error: UserFunctionError) -> None:
            """Undo the calls for a key that emitted rows that do not fit."""
            work.undo(group, self.function, error, timers_before[group])

        undone = None if lane.failed is None else undo
        return emitted_or_undone(self, emitted, ends, lane.tuples, undone)

    def _timers_of(self, lane: LaneKeys, states: Mapping[str, StateView]) -> list[list[int]]:
        """Decode the timers of every key of the lane, in microseconds."""
        if self.clock is None:
            return [[] for _ in lane.tuples]
        known, values = states[TIMERS].find(lane.keys, lane.key_groups)
        return timers_of(values.column(0), known)

    def _timers_written(
        self, lane: LaneKeys, timers: list[list[int]], changed_keys: npt.NDArray[np.int64]
    ) -> Changed:
        """Return the entries to write for keys, given by number, whose timers differ."""
        removed = np.array([not key_timers for key_timers in timers], np.bool_)
        rows = StateRows(
            hashes=lane.hashes[changed_keys],
            keys=lane.keys.take(pa.array(changed_keys)),
            values=pa.RecordBatch.from_arrays(packed_timers(timers), schema=self._timers.values),
            removed=removed if removed.any() else None,
        )
        return rows, lane.key_groups[changed_keys]


def _stored_layout(declared: Declared, name: str, *, operator: str, keys: pa.Schema) -> StoredState:
    """Return the layout, as state entries, of a state that a user declared."""
    described_state = f"state {name!r} of operator {operator!r}"
    label = f"{operator}/{name}"
    options: dict[str, Any] = {
        "operator": operator,
        "name": name,
        "keys": keys,
        "ttl_us": ttl_us_of(declared, described_state),
        "upgrade": declared.upgrade,
    }
    if isinstance(declared, ValueState):
        make_state(label, declared.value_type)
        codec = make_codec(label, declared.codec, declared.value_type, declared.classes)
        return StoredValue(new=declared.value_type, codec=codec, **options)
    element_type = declared.element_type if isinstance(declared, ListState) else declared.value_type
    page_type: Any = list[element_type]  # type: ignore[valid-type]
    options["codec"] = make_codec(label, declared.codec, page_type, declared.classes)
    if isinstance(declared, ListState):
        return stored_list(**options)
    assert isinstance(declared, MapState), "declarations were checked"
    item_types = item_types_of(declared, f"{described_state[0].upper()}{described_state[1:]}")
    return StoredMap(by=item_types, is_tuple=item_types != (declared.key_type,), **options)
