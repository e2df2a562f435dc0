"""``process``: a Python function per key, with state, rows in order of arrival, and timers.

Invariant: a key's state after an epoch is what the function left, and depends on nothing but the
state before, the rows in order and the clock; the function may run again for the same epoch.

Columns are turned into Python values, and states into bytes and back, once for all keys, so that
a key costs little more than the call of the function.

Timers are in the key's entry, sorted, with the earliest in a column of its own, so that the lane
finds the keys whose timer is due by one scan of one column, without reading any entry.  The
expiry time of a key has a column, too.  Timers, state and output are committed together, so a
timer fires once.

Source: what ``transformWithState`` of Spark 4 has (timers per key of one time mode, time-to-live).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.columns.arrays import blob_bytes, boundaries_of, values_of
from godwit.columns.python_values import UTC, KeyRows, rows_as_tuples
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
from godwit.library.emitted import emitted_batch, emitted_or_undone
from godwit.library.initial_states import encoded_states, expiries_in, function_states, timers_in
from godwit.library.states.type_changes import blank_columns, upgrade_between
from godwit.model.errors import StateEncodingError
from godwit.model.frames import function_failed
from godwit.operators.failed_calls import FailedCalls
from godwit.operators.initial import stored_columns, with_keys
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput
from godwit.operators.timers import NO_TIMERS
from godwit.store.changes import EntryRange
from godwit.store.columns import StateSchema
from godwit.time.event_time import Due
from godwit.time.grid import END
from godwit.values.checks import UnencodableError, unreadable_remedy
from godwit.values.codec import (
    State,
    is_immutable,
    make_codec,
    make_state,
    state_type_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.columns.groups import Groups
    from godwit.columns.python_values import Columns
    from godwit.library.asynchronous_calls import AsyncCalls
    from godwit.library.states.stored import Entries
    from godwit.model.errors import UserFunctionError
    from godwit.operators.asynchronous import Async
    from godwit.operators.operator import Changed, EntryColumns, OperatorInput
    from godwit.operators.timers import TimerClock, Timing
    from godwit.time.event_time import EpochTime
    from godwit.values.codec import Codec
    from godwit.values.records import RowClass

_TIMERS: Final = "timers"
_DUE: Final = "due"
_EXPIRES: Final = "expires"


class DueColumn(NamedTuple):
    """A column of a state with the times at which entries are due."""

    state: str
    column: int  # position in an entry, key columns first
    until: int  # entries are due up to and including this time, in microseconds
    by_event: bool = False  # whether it is event time; else it is the driver's clock

    def due_at(self, time: int) -> Due:
        """Return `time`, a value of the column, as `Due` in event time or the driver's time."""
        return Due(event=time) if self.by_event else Due(clock=time)


def due_timers(state: str, column: int, clock: TimerClock, time: EpochTime) -> DueColumn:
    """Return the column, at position `column` of entries, that has every key's earliest timer."""
    return DueColumn(state, column, timer_times(clock, time)[1].due, by_event=clock == "event")


def next_due(
    columns: Iterable[DueColumn], data: OperatorInput, changed: Mapping[str, Changed]
) -> Due:
    """Return the next time at which a timer or expiry is due.

    If the epoch scanned all entries it is exact; else only `changed` entries count.
    """
    earliest = Due()
    for due_column in columns:
        if data.time.due:
            earliest |= due_column.due_at(
                data.states[due_column.state].min_after(due_column.column, due_column.until)
            )
        if due_column.state in changed:
            rows, _ = changed[due_column.state]
            times = values_of(rows.values.column(due_column.column - len(rows.keys.schema)))
            times = times if rows.removed is None else times[~rows.removed]
            earliest |= due_column.due_at(int(times.min(initial=END)))
    return earliest


def caller_for(calls: Calls, settings: Async | None) -> Calls | AsyncCalls:
    """Return the plain or asynchronous caller for a user's functions."""
    if settings is None:
        return calls
    from godwit.library.asynchronous_calls import AsyncCalls  # noqa: PLC0415  has an event loop

    return AsyncCalls(calls, settings)


class ProcessOperator(KeyedOperator):
    """A user's function called per key; see `KeyedOperator` for its methods."""

    kind = "process"
    reads_touched = True

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,  # columns that the function sees
        function: Callable[..., Iterable[Any] | None],  # ``function(key, rows, state)``
        state_type: Any,  # called without arguments for the state of a new key
        output: pa.Schema,  # columns of the rows that the function returns; nothing is added
        codec: Codec = "msgpack",  # or ``"pickle"`` by name
        state_classes: Mapping[str, type] | Sequence[type] = (),  # besides those that it mentions
        state_upgrade: Callable[[Any], Any] | None = None,  # from an old state, as plain values
        timing: Timing = NO_TIMERS,
        ttl_us: int | None = None,  # untouched for so long by the driver's clock, state is deleted
        asynchronous: Async | None = None,  # of functions that are
        tables: Collection[str] = (),  # what functions get by name
        zone: str = UTC,  # the session's, of datetimes without one that the function returns
        row_class: RowClass | None = None,  # of the rows that the function gets
        output_class: RowClass | None = None,  # of those that it returns
    ) -> None:
        clock = timing.clock
        calls = Calls(name, function, timing)
        self._calls = caller_for(calls, asynchronous)
        # Whether there are calls for rows alone, which cost less.
        self._by_rows = not (clock or ttl_us or asynchronous or tables)
        self.name, self.inputs, self.output, self.function = name, inputs, output, function
        self.clock, self._ttl_us, self.repeatable = clock, ttl_us, asynchronous is None
        values = [pa.field(STATE, pa.large_binary())]
        if clock is not None:
            values += [pa.field(_TIMERS, pa.large_binary()), pa.field(_DUE, pa.int64())]
        if ttl_us is not None:
            values.append(pa.field(_EXPIRES, pa.int64()))
        self.schema = StateSchema(keys=keys, values=pa.schema(values))
        self.zone, self._state_type, self._state_upgrade = zone, state_type, state_upgrade
        self.row_class, self.output_class = row_class, output_class
        self._codec = make_codec(name, codec, state_type, state_classes)
        self._is_immutable = is_immutable(make_state(name, state_type))

    @property
    def has_timers(self) -> bool:
        """True if the operator has timers, or state that expires."""
        return self.clock is not None or self._ttl_us is not None

    def _due_columns(self, time: EpochTime) -> list[DueColumn]:
        """Return the state columns with the times of timers and of expiry."""
        first, names = len(self.schema.keys), self.schema.values.names
        columns = []
        if self.clock is not None:
            columns.append(due_timers(STATE, first + names.index(_DUE), self.clock, time))
        if self._ttl_us is not None:
            columns.append(DueColumn(STATE, first + names.index(_EXPIRES), time.clock))
        return columns

    @without_garbage_collection()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the functions for every key with rows, due timers or expired state."""
        fitting, misfits = without_misfits(self, data)
        return self._process_fitting_rows(fitting).with_failed(misfits)

    def _process_fitting_rows(self, data: OperatorInput) -> OperatorOutput:
        """Call the functions for rows that fit their class."""
        due = self._due_columns(data.time)
        if data.time.due and due:
            parts = [EntryRange(column=timers.column, end=timers.until + 1) for timers in due]
            entries = [data.state.scan(part) for part in parts]
            groups, keys, _ = data.grouped_with(len(self.keys), entries)
        elif len(data.rows.hashes):
            groups, keys = data.grouped(len(self.keys))
        else:
            return OperatorOutput()
        output = OperatorOutput()
        if groups.count:
            output = self.process_keys(data, groups, keys, states=data.states)
        return replace(output, next_due=next_due(due, data, output.changed))

    def process_keys(
        self,
        data: OperatorInput,
        groups: Groups,
        identities: pa.RecordBatch,  # of the groups
        *,
        states: Mapping[str, Entries],
        # called with the keys' states, a mask of those that are not new, and the keys; to repeat it
        # for a key that was restored, also with `only`, its number
        prepare: Callable[..., None] | None = None,
    ) -> OperatorOutput:
        """Call the functions for every key; `identities`: key columns of each group.

        `prepare` may change states before: it gets each key's state, a mask of stored ones, and the
        keys.
        """
        time = data.time
        in_store, prior = states[STATE].find(identities, groups.key_groups)
        keys = rows_as_tuples(identities.select(self.keys.names))
        meter = Meter(groups.key_groups)
        known, column = in_store, dict(zip(self.schema.values.names, prior.columns, strict=True))
        if self._ttl_us is not None:
            known = known & (values_of(column[_EXPIRES]) > time.clock)
        of_keys = self._decode_states(known, prior.column(0), keys)
        columns = columns_of_rows(self, data.rows, groups, keys)
        meter.add_by_bytes(prior.column(0))
        if prepare is not None:
            prepare(of_keys, known, keys)
        starts, failed = groups.starts.tolist(), FailedCalls.of(self, data.rows, groups.order)
        called: list[CalledKey] = []
        if self._by_rows and data.moments is None and failed is None:
            emitted, ends, removed = self._call_by_rows(columns, starts, keys, of_keys, meter)
            output = emitted_batch(self, emitted, ends, keys)
        else:
            timers = column.get(_TIMERS)
            called = [CalledKey(of_key) for of_key in timers_of(timers, in_store)]

            def renewed(group: int) -> Any:
                """Return a new state of a key whose state was dropped."""
                new = self._state_type()
                of_keys[group] = State(new) if self._is_immutable else new
                return of_keys[group]

            def reset(group: int) -> None:
                """Restore a key's state and timers before its calls are repeated."""
                only = slice(group, group + 1)
                blobs = prior.column(0).slice(group, 1)
                of_keys[only] = self._decode_states(known[only], blobs, keys[only])
                if prepare is not None:
                    prepare(of_keys, known, keys, only=group)

            before, after = timer_times(self.clock, time)
            work = KeysToCall(
                keys=keys,
                columns=columns,
                starts=starts,
                called=called,
                before=before,
                after=after,
                moments=None if data.moments is None else data.moments[groups.order].tolist(),
                state_of=of_keys.__getitem__,
                renewed=renewed,
                reset=reset,
                named=data.named,
                failed=failed,
            )
            emitted, ends = self._calls.run(work, meter)

            def undo(group: int, error: UserFunctionError) -> None:
                """Undo the calls for a key that emitted rows that do not fit."""
                of_key = None if timers is None else timers.slice(group, 1)
                (timers_before,) = timers_of(of_key, in_store[group : group + 1])
                work.undo(group, self.function, error, timers_before)

            output = emitted_or_undone(self, emitted, ends, keys, None if failed is None else undo)
            removed = [
                i
                for i, key in enumerate(called)
                if key.dropped
                # A key without a call may have got the states of its parts.
                or not (key.touched or key.timers or known[i] or prepare is not None)
            ]
        if self._is_immutable:
            of_keys = [state.value for state in of_keys]
        meter.skip()
        blobs, dropped = self._encode_states(of_keys, removed, keys)
        written = [blobs]
        if self.clock is not None:
            written += packed_timers([key.timers for key in called])
        if self._ttl_us is not None:
            touched = np.array([key.touched for key in called], np.bool_)
            # Of an expired state only timers are left, and these do not expire.
            expires = np.where(known, values_of(column[_EXPIRES]), END)
            written.append(pa.array(np.where(touched, time.clock + self._ttl_us, expires)))
        meter.add_by_bytes(blobs)
        return OperatorOutput.of_groups(
            groups,
            identities,
            pa.RecordBatch.from_arrays(written, schema=self.schema.values),
            removed=dropped,
            output=output,
            failed=None if failed is None else failed.to_batch(),
            cpu_ms=meter.cpu_ms,
            busy_ms=meter.busy_ms,
        )

    def _call_by_rows(
        self,
        columns: Columns,
        starts: list[int],
        keys: list[tuple[Any, ...]],
        states: list[Any],
        meter: Meter,
    ) -> tuple[list[Any], list[int], list[int]]:
        """Call the user's function for keys with rows, if no timers or expiry can be due.

        Returns the emitted rows, their count after each key, and positions of keys to delete.
        """
        function = self.function
        emitted: list[Any] = []
        ends: list[int] = []
        removed: list[int] = []
        group = begin = 0
        try:
            for end in meter.ends:
                for group in range(begin, end):
                    if starts[group] == starts[group + 1]:
                        ends.append(len(emitted))
                        continue
                    rows = KeyRows(columns, starts[group], starts[group + 1])
                    result = function(keys[group], rows, states[group])
                    if result is not None:
                        emitted.extend(result)
                    ends.append(len(emitted))
                    if rows._dropped:  # noqa: SLF001 - for this module alone
                        removed.append(group)
                begin = end
                meter.end_key_group()
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt, which would take the executor's Python with
            # them and say nothing.
            raise function_failed(
                self.name, function, keys[group], error, called="function(key, rows, state)"
            ) from error
        return emitted, ends, removed

    def describe_state(self, state: str = STATE) -> StateDescription:  # noqa: ARG002
        """Describe the state's type and codec, and the clock of its timers, for the checkpoint."""
        described = StateDescription(
            columns=columns_of(self.schema.values),
            codec=self._codec.name,
            type=self._codec.describe(),
        )
        if self.clock is None:
            return described
        return msgspec.structs.replace(described, means={"clock of timers": self.clock})

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:  # noqa: ARG002
        """Return the upgrade of states of a former type; ``None`` if none is needed."""
        return upgrade_between(
            self.name, written, self.describe_state(), self._codec, self._state_upgrade
        )

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:  # noqa: ARG002
        return blank_columns(self.schema.values, count)

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:  # noqa: ARG002
        """Return entries for states in ``value`` or ``state``, with ``timers`` and ``expires``."""
        rows = with_keys(rows, self.schema.keys)
        keys = pa.RecordBatch.from_arrays(
            stored_columns(self.name, rows, self.schema.keys), schema=self.schema.keys
        )
        states = function_states(self.name, rows, self._codec)
        values = [
            encoded_states(self.name, states, self._codec, lambda row: rows_as_tuples(keys)[row])
        ]
        if self.clock is not None:
            values += packed_timers(timers_in(self.name, rows))
        if self._ttl_us is not None:
            values.append(expiries_in(self.name, rows))
        return keys, pa.RecordBatch.from_arrays(values, schema=self.schema.values)

    def _decode_states(
        self, known: npt.NDArray[np.bool_], blobs: pa.Array, keys: list[tuple[Any, ...]]
    ) -> list[Any]:
        """Decode each key's state, or raise; a key that is not `known` gets a new state."""
        stored = np.flatnonzero(known)
        if len(stored) < len(blobs):
            blobs = blobs.take(pa.array(stored))
        boundaries = boundaries_of(blobs).tolist()
        data = blob_bytes(blobs).data
        try:
            states = self._codec.decode(
                [data[start:end] for start, end in itertools.pairwise(boundaries)]
            )
        except UnencodableError as error:
            key = keys[int(stored[error.index])]
            raise StateEncodingError(
                f"Operator {self.name!r} cannot read its state of key {key!r} as "
                f"{state_type_name(self._state_type)}: {error}.",
                remedy=unreadable_remedy(self.name, key, "the operator"),
                operator=self.name,
                key=key,
            ) from error
        if len(stored) < len(keys):
            decoded = iter(states)
            new_state = self._state_type
            states = [next(decoded) if is_stored else new_state() for is_stored in known.tolist()]
        return [State(state) for state in states] if self._is_immutable else states

    def _encode_states(
        self, states: list[Any], removed: list[int], keys: list[tuple[Any, ...]]
    ) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
        """Encode the keys' states, or raise; also return a mask of deleted ones, if any.

        `removed`: positions of these keys.
        """
        dropped = None
        staying: Sequence[int] = range(len(states))
        if removed:
            dropped = np.zeros(len(states), np.bool_)
            dropped[removed] = True
            staying = np.flatnonzero(~dropped).tolist()
            states = [states[group] for group in staying]
        try:
            blobs: list[bytes] = self._codec.encode(states)
        except UnencodableError as error:
            key = keys[staying[error.index]]
            state = states[error.index]
            raise StateEncodingError(
                f"Operator {self.name!r} cannot write its state of key {key!r}, of type "
                f"{state_type_name(type(state))}, without loss: {error}.",
                remedy="Keep values of the declared types in it, or change the declaration.",
                operator=self.name,
                key=key,
                type=state_type_name(type(state)),
            ) from error
        if removed:
            kept_blobs = dict(zip(staying, blobs, strict=True))
            blobs = [kept_blobs.get(group, b"") for group in range(len(keys))]
        return pa.array(blobs, pa.large_binary()), dropped


def timers_of(blobs: pa.Array | None, known: npt.NDArray[np.bool_]) -> list[list[int]]:
    """Decode the timers of each key, in microseconds; a key that is not `known` has none."""
    if blobs is None:
        return [[] for _ in known]
    if blobs.null_count:
        blobs = blobs.fill_null(b"")
    boundaries = boundaries_of(blobs)
    edges = ((boundaries - boundaries[0]) // 8).tolist()
    data = blob_bytes(blobs)[boundaries[0] : boundaries[-1]]
    times = np.frombuffer(data.tobytes(), "<i8").tolist()
    return [
        times[edges[i] : edges[i + 1]] if has_timers else []
        for i, has_timers in enumerate(known.tolist())
    ]


def columns_beside_state(values: pa.RecordBatch) -> list[tuple[pa.Field, pa.Array]]:
    """Return timers and expiry of entries as readable columns: timestamps, null for none."""
    columns = []
    time_type = pa.timestamp("us", tz="UTC")
    names = values.schema.names
    if _TIMERS in names:
        blobs = values.column(names.index(_TIMERS)).to_pylist()
        lists = [np.frombuffer(blob or b"", "<i8").tolist() for blob in blobs]
        list_type = pa.list_(time_type)
        columns.append(
            (pa.field(_TIMERS, list_type), pa.array(lists, pa.list_(pa.int64())).cast(list_type))
        )
    if _EXPIRES in names:
        expires = values_of(values.column(names.index(_EXPIRES)))
        array = pa.array(expires, pa.int64(), mask=expires >= END).cast(time_type)
        columns.append((pa.field(_EXPIRES, time_type), array))
    return columns


def packed_timers(timers: list[list[int]]) -> list[pa.Array]:
    """Encode the timers of every key; return two columns: all timers, and the earliest."""
    times = np.fromiter((time for key_timers in timers for time in key_timers), "<i8")
    boundaries = np.zeros(len(timers) + 1, np.int64)
    np.cumsum([8 * len(key_timers) for key_timers in timers], out=boundaries[1:])
    buffers = [None, pa.py_buffer(boundaries), pa.py_buffer(times)]
    blobs = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(timers), buffers)
    earliest = [key_timers[0] if key_timers else END for key_timers in timers]
    return [blobs, pa.array(earliest, pa.int64())]
