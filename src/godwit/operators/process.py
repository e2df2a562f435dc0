"""``process``: any Python per key, with state, rows in order of arrival, and timers.

Invariant: a key's state after an epoch is what the function left, and depends on nothing but the
state before, the rows in order and the clock; the function may run again for the same epoch.

Columns are turned into Python values, and states into bytes and back, once for all keys, so that
a key costs little more than the call of the function.

Timers lie in the key's entry, sorted, with the earliest in a column of its own, so that the lane
finds the keys whose timer is due by one scan of one column, without reading any entry.  When a key
expires stands in a column, too.  Timers, state and output are committed together, so a timer fires
once.

Source: what ``transformWithState`` of Spark 4 has (timers per key of one time mode, time-to-live).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.columns.arrays import blob_bytes, boundaries_of, values_of
from godwit.columns.python_values import UTC, KeyRows, rows_as_tuples
from godwit.model.errors import StateEncodingError
from godwit.model.frames import function_failed
from godwit.operators.asynchronous import caller_for
from godwit.operators.calls import (
    CalledKey,
    Calls,
    KeysToCall,
    Meter,
    check_arguments,
    columns_of_rows,
    without_garbage_collection,
)
from godwit.operators.emitted import emitted_batch
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput
from godwit.operators.windows.event_time import Due
from godwit.operators.windows.grid import END
from godwit.store.changes import EntryRange
from godwit.store.columns import StateSchema
from godwit.values.changes import nothing_beside, upgrade_between
from godwit.values.checks import unreadable_remedy
from godwit.values.codec import State, UnencodableError, is_immutable, make_codec, make_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.columns.groups import Groups
    from godwit.columns.python_values import Columns
    from godwit.operators.asynchronous import Async
    from godwit.operators.calls import TimerClock
    from godwit.operators.operator import OperatorInput
    from godwit.operators.windows.event_time import EpochTime
    from godwit.values.records import RowClass

__all__ = [
    "KeyRows",
    "ProcessOperator",
    "State",
    "TimedProcess",
    "columns_beside_state",
    "packed_timers",
    "timers_of",
]

_TIMERS: Final = "timers"
_DUE: Final = "due"
_EXPIRES: Final = "expires"


class ProcessOperator(KeyedOperator):
    """A user's function called per key; see `KeyedOperator` for its methods."""

    kind = "process"

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,  # columns that the function sees
        function: Callable[..., Iterable[Any] | None],  # ``function(key, rows, state)``
        state_type: Any,  # called without arguments for the state of a new key
        output: pa.Schema,  # columns of the rows that the function returns; nothing is added
        codec: str = "msgpack",  # or ``"pickle"`` by name
        state_classes: Mapping[str, type] | Sequence[type] = (),  # besides those that it mentions
        state_upgrade: Callable[[Any], Any] | None = None,  # from an old state, as plain values
        zone: str = UTC,  # the session's, of datetimes without one that the function returns
        checked: bool = False,  # whether somebody else checks how the function can be called
        row_class: RowClass | None = None,  # of the rows that the function gets
        output_class: RowClass | None = None,  # of those that it returns
    ) -> None:
        if not checked:
            check_arguments(name, function)
        self.name, self.inputs, self.output, self.function = name, inputs, output, function
        self.schema = StateSchema(keys=keys, values=pa.schema({"state": pa.large_binary()}))
        self.zone, self._state_type, self._state_upgrade = zone, state_type, state_upgrade
        self.row_class, self.output_class = row_class, output_class
        self._codec = make_codec(name, codec, state_type, state_classes)
        self._is_immutable = is_immutable(make_state(name, state_type))

    @without_garbage_collection()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the function for every key."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        groups, key_columns = data.grouped(len(self.keys))
        known, prior = data.state.find(key_columns, groups.key_groups)
        keys = rows_as_tuples(key_columns)
        meter = Meter(groups.key_groups)
        states = self._decode_states(known, prior.column(0), keys)
        columns = columns_of_rows(self, data.rows, groups, keys)
        meter.add_by_bytes(prior.column(0))
        emitted, ends, removed = self._call_for_keys(columns, groups, keys, states, meter)
        output = emitted_batch(self, emitted, ends, keys)
        if self._is_immutable:
            states = [state.value for state in states]
        meter.skip()
        blobs, dropped = self._encode_states(states, removed, keys)
        written = pa.RecordBatch.from_arrays([blobs], schema=self.schema.values)
        meter.add_by_bytes(blobs)
        return OperatorOutput.of_groups(
            groups,
            key_columns,
            written,
            removed=dropped,
            output=output,
            cpu_ms=meter.cpu_ms,
            busy_ms=meter.busy_ms,
        )

    def _call_for_keys(
        self,
        columns: Columns,
        groups: Groups,
        keys: list[tuple[Any, ...]],
        states: list[Any],
        meter: Meter,
    ) -> tuple[list[Any], list[int], list[int]]:
        """Call the function for keys with rows.

        Return rows, row count after each key, removed keys.
        """
        function = self.function
        emitted: list[Any] = []
        ends: list[int] = []
        removed: list[int] = []
        starts = groups.starts.tolist()
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
            raise function_failed(self.name, self.function, keys[group], error) from error
        return emitted, ends, removed

    def describe_state(self, state: str = STATE) -> StateDescription:  # noqa: ARG002
        """Describe the state's type and codec for the checkpoint."""
        return StateDescription(
            columns=columns_of(self.schema.values),
            codec=self._codec.name,
            type=self._codec.describe(),
        )

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:  # noqa: ARG002
        """Return the upgrade: compatible changes of the type, others by ``state_upgrade``."""
        return upgrade_between(
            self.name, written, self.describe_state(), self._codec, self._state_upgrade
        )

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:  # noqa: ARG002
        """Return empty columns for what entries of an earlier schema lack."""
        return nothing_beside(self.schema.values, count)

    def _decode_states(
        self, known: npt.NDArray[np.bool_], blobs: pa.Array, keys: list[tuple[Any, ...]]
    ) -> list[Any]:
        """Decode the state of every key for the function."""
        there = np.flatnonzero(known)
        if len(there) < len(blobs):
            blobs = blobs.take(pa.array(there))
        edges = boundaries_of(blobs).tolist()
        data = blob_bytes(blobs).data
        try:
            states = self._codec.decode(
                [data[start:end] for start, end in itertools.pairwise(edges)]
            )
        except UnencodableError as error:
            key = keys[int(there[error.index])]
            raise StateEncodingError(
                f"Operator {self.name!r} cannot read its state of key {key!r} as "
                f"{_type_name(self._state_type)}: {error}.",
                remedy=unreadable_remedy(self.name, key, "the operator"),
                operator=self.name,
                key=key,
            ) from error
        if len(there) < len(keys):
            read = iter(states)
            new = self._state_type
            states = [next(read) if old else new() for old in known.tolist()]
        return [State(state) for state in states] if self._is_immutable else states

    def _new_state(self) -> Any:
        """Return the state of a new key for the function."""
        new = self._state_type()
        return State(new) if self._is_immutable else new

    def _encode_states(
        self, states: list[Any], removed: list[int], keys: list[tuple[Any, ...]]
    ) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
        """Encode states; also return which keys have their state removed, if any."""
        dropped = None
        kept: Sequence[int] = range(len(states))
        if removed:
            dropped = np.zeros(len(states), np.bool_)
            dropped[removed] = True
            kept = np.flatnonzero(~dropped).tolist()
            states = [states[group] for group in kept]
        try:
            blobs: list[bytes] = self._codec.encode(states)
        except UnencodableError as error:
            key = keys[kept[error.index]]
            state = states[error.index]
            raise StateEncodingError(
                f"Operator {self.name!r} cannot write its state of key {key!r}, of type "
                f"{_type_name(type(state))}, so that it comes back as what it is: {error}.",
                remedy="Keep values of the declared types in it, or change the declaration.",
                operator=self.name,
                key=key,
                type=_type_name(type(state)),
            ) from error
        if removed:
            kept_blobs = dict(zip(kept, blobs, strict=True))
            blobs = [kept_blobs.get(group, b"") for group in range(len(keys))]
        return pa.array(blobs, pa.large_binary()), dropped


class TimedProcess(ProcessOperator):
    """A user's function with timers, state that expires, tables, or calls that are awaited."""

    def __init__(
        self,
        *,
        clock: TimerClock | None,  # what timers go by; None: there are none
        on_timer: Callable[..., Iterable[Any] | None] | None,  # ``on_timer(key, timer, state)``
        ttl_us: int | None,  # state is forgotten after this long by the driver's clock, untouched
        asynchronous: Async | None = None,  # of functions that are
        tables: Collection[str] = (),  # what functions get by name
        **options: Any,  # of `ProcessOperator`
    ) -> None:
        super().__init__(**options, checked=True)
        self.clock, self._ttl_us, self.repeatable = clock, ttl_us, asynchronous is None
        self._calls = caller_for(
            Calls(self.name, self.function, on_timer, clock),
            asynchronous,
            state="state",
            tables=tables,
        )
        values = list(self.schema.values)
        if clock is not None:
            values += [pa.field(_TIMERS, pa.large_binary()), pa.field(_DUE, pa.int64())]
        if ttl_us is not None:
            values.append(pa.field(_EXPIRES, pa.int64()))
        self.schema = StateSchema(keys=self.schema.keys, values=pa.schema(values))

    @property
    def has_timers(self) -> bool:
        """True: the operator has timers, or state that expires."""
        return self.clock is not None or self._ttl_us is not None

    def _due_columns(self, time: EpochTime) -> dict[int, int]:
        """Return number of a due column → time up to which its entries are due."""
        first = len(self.schema.keys)
        names = self.schema.values.names
        limits = {_DUE: self._now(time), _EXPIRES: time.clock}
        return {first + names.index(name): limits[name] for name in limits if name in names}

    def _earliest_due(self, column: int, at: int) -> Due:
        """Return the earliest time in a due column, on its clock."""
        name = self.schema.values.names[column - len(self.schema.keys)]
        return Due(event=at) if self.clock == "event" and name == _DUE else Due(clock=at)

    def _next_due(self, data: OperatorInput, changed: pa.RecordBatch | None) -> Due:
        """Return the next due time: of `changed` keys, or of all if the epoch scanned them."""
        earliest = Due()
        first = len(self.schema.keys)
        for column, limit in self._due_columns(data.time).items():
            if data.time.due:
                earliest |= self._earliest_due(column, data.state.min_after(column, limit))
            if changed is not None and changed.num_rows:
                times = values_of(changed.column(column - first))
                earliest |= self._earliest_due(column, int(times.min()))
        return earliest

    def _now(self, time: EpochTime) -> int:
        """Time by the operator's clock at the end of the epoch, in microseconds."""
        return time.timers_until if self.clock == "event" else time.clock

    def describe_state(self, state: str = STATE) -> StateDescription:  # noqa: ARG002
        """Describe the state, and say whether timers go by event time or processing time."""
        described = super().describe_state()
        if self.clock is None:
            return described
        return msgspec.structs.replace(described, means={"clock of timers": self.clock})

    @without_garbage_collection()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the functions for every key with rows, due timers or expired state."""
        time = data.time
        due = self._due_columns(time).items() if time.due else ()
        entries = [data.state.scan(EntryRange(column=c, end=limit + 1)) for c, limit in due]
        groups, key_columns, _ = data.grouped_with(len(self.keys), entries)
        if not groups.count:
            return OperatorOutput(next_due=self._next_due(data, None))
        in_store, prior = data.state.find(key_columns, groups.key_groups)
        keys = rows_as_tuples(key_columns)
        meter = Meter(groups.key_groups)
        known, expires = in_store, None
        column = dict(zip(self.schema.values.names, prior.columns, strict=True))
        if self._ttl_us is not None:
            expires = np.where(known, values_of(column[_EXPIRES]), END)
            known = known & (expires > time.clock)
        states = self._decode_states(known, prior.column(0), keys)
        columns_read = columns_of_rows(self, data.rows, groups, keys)
        meter.add_by_bytes(prior.column(0))
        called = [CalledKey(timers) for timers in timers_of(column.get(_TIMERS), in_store)]
        begun: set[int] = set()

        def state_of(group: int) -> Any:
            """Decode the state of a key when its first call needs it."""
            if group in begun:  # its state was dropped by a timer, and there are rows
                states[group] = self._new_state()
            begun.add(group)
            return states[group]

        def reset(group: int) -> None:
            """Restore a key's state and timers before its calls are repeated."""
            begun.discard(group)
            one = slice(group, group + 1)
            states[one] = self._decode_states(
                known[one], prior.column(0).slice(group, 1), keys[one]
            )

        work = KeysToCall(
            keys=keys,
            columns=columns_read,
            starts=groups.starts.tolist(),
            called=called,
            now=time.until if self.clock == "event" else time.clock,
            until=self._now(time),
            state_of=state_of,
            reset=reset,
            named=data.named,
        )
        emitted, ends = self._calls.run(work, meter)
        output = emitted_batch(self, emitted, ends, keys)
        if self._is_immutable:
            states = [state.value for state in states]
        meter.skip()
        removed = [
            i
            for i, key in enumerate(called)
            if key.dropped or not (key.touched or key.timers or known[i])
        ]
        blobs, dropped = self._encode_states(states, removed, keys)
        columns = [blobs]
        if self.clock is not None:
            columns += packed_timers([key.timers for key in called])
        if expires is not None and self._ttl_us is not None:
            touched = np.array([key.touched for key in called], np.bool_)
            again = time.clock + self._ttl_us
            columns.append(pa.array(np.where(touched, again, expires)))
        meter.add_by_bytes(blobs)
        written = pa.RecordBatch.from_arrays(columns, schema=self.schema.values)
        stays = written if dropped is None else written.take(pa.array(np.flatnonzero(~dropped)))
        return OperatorOutput.of_groups(
            groups,
            key_columns,
            written,
            removed=dropped,
            output=output,
            next_due=self._next_due(data, stays),
            cpu_ms=meter.cpu_ms,
            busy_ms=meter.busy_ms,
        )


def timers_of(blobs: pa.Array | None, known: npt.NDArray[np.bool_]) -> list[list[int]]:
    """Decode the timers of every known key."""
    if blobs is None:
        return [[] for _ in known]
    if blobs.null_count:
        blobs = blobs.fill_null(b"")
    boundaries = boundaries_of(blobs)
    edges = ((boundaries - boundaries[0]) // 8).tolist()
    data = blob_bytes(blobs)[boundaries[0] : boundaries[-1]]
    times = np.frombuffer(data.tobytes(), "<i8").tolist()
    return [
        times[edges[i] : edges[i + 1]] if there else [] for i, there in enumerate(known.tolist())
    ]


def columns_beside_state(values: pa.RecordBatch) -> list[tuple[pa.Field, pa.Array]]:
    """Return timers and expiry as readable columns: timestamps, null for none."""
    columns = []
    moment = pa.timestamp("us", tz="UTC")
    names = values.schema.names
    if _TIMERS in names:
        blobs = values.column(names.index(_TIMERS)).to_pylist()
        lists = [np.frombuffer(blob or b"", "<i8").tolist() for blob in blobs]
        of_key = pa.list_(moment)
        columns.append(
            (pa.field(_TIMERS, of_key), pa.array(lists, pa.list_(pa.int64())).cast(of_key))
        )
    if _EXPIRES in names:
        expires = values_of(values.column(names.index(_EXPIRES)))
        array = pa.array(expires, pa.int64(), mask=expires >= END).cast(moment)
        columns.append((pa.field(_EXPIRES, moment), array))
    return columns


def packed_timers(timers: list[list[int]]) -> list[pa.Array]:
    """Encode the timers of every key, with the earliest of each."""
    times = np.fromiter((at for of_key in timers for at in of_key), "<i8")
    edges = np.zeros(len(timers) + 1, np.int64)
    np.cumsum([8 * len(of_key) for of_key in timers], out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(times)]
    blobs = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(timers), buffers)
    earliest = [of_key[0] if of_key else END for of_key in timers]
    return [blobs, pa.array(earliest, pa.int64())]


def _type_name(state_type: Any) -> str:
    """Name a state's type for messages."""
    return getattr(state_type, "__qualname__", None) or repr(state_type)
