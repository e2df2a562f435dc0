"""``process`` with timers and state that expires.

Beside its state a key has timers, which are moments of one clock: event time (the watermark) or
the driver's clock.  They lie in the key's entry, sorted, with the earliest in a column of its own,
so that the lane finds the keys whose timer is due by one scan of one column, without reading any
entry.  When a key expires stands in a column, too.

In an epoch, per key: timers that are due, earliest first; then the rows; then what these have set
that is due already.  Timers, state and output are committed together, so a timer fires once.

Source: what ``transformWithState`` of Spark 4 has (timers per key of one time mode, time-to-live).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from godwit.columns.arrays import blob_bytes, boundaries_of, values_of
from godwit.columns.python_values import Columns, rows_as_tuples
from godwit.operators.firing import CalledKey, Calls, FiredTimer, TimedRows, Timers
from godwit.operators.operator import STATE, OperatorOutput
from godwit.operators.process import Meter, ProcessOperator, check_arguments, uncollected
from godwit.operators.windows.event_time import Due
from godwit.operators.windows.grid import END
from godwit.store.changes import EntryRange
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateDescription
    from godwit.operators.firing import TimerClock
    from godwit.operators.operator import OperatorInput
    from godwit.operators.windows.event_time import EpochTime

__all__ = ["FiredTimer", "TimedProcess", "TimedRows", "Timers", "packed", "shown", "timers_of"]

_TIMERS: Final = "timers"
_DUE: Final = "due"
_EXPIRES: Final = "expires"


class TimedProcess(ProcessOperator):
    """A function of the user with timers, state that expires, or both.

    Parameters
    ----------
    clock
        What timers go by; ``None``: there are none.
    on_timer
        ``on_timer(key, timer, state)``; returns an iterable of rows, or ``None``.
    ttl_us
        State is forgotten once its key was not touched for this long by the driver's clock.
    **options
        As of `ProcessOperator`.
    """

    def __init__(
        self,
        *,
        clock: TimerClock | None,
        on_timer: Callable[..., Iterable[Any] | None] | None,
        ttl_us: int | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if on_timer is not None:
            check_arguments(self.name, on_timer, "on_timer(key, timer, state)")
        self.clock, self._on_timer, self._ttl_us = clock, on_timer, ttl_us
        values = list(self.schema.values)
        if clock is not None:
            values += [pa.field(_TIMERS, pa.large_binary()), pa.field(_DUE, pa.int64())]
        if ttl_us is not None:
            values.append(pa.field(_EXPIRES, pa.int64()))
        self.schema = StateSchema(keys=self.schema.keys, values=pa.schema(values))

    @property
    def has_timers(self) -> bool:
        """Whether it keeps timers or expiries."""
        return True

    def _due_columns(self, time: EpochTime) -> dict[int, int]:
        """Position of a column of an entry, key columns first → what is due up to and including."""
        first = len(self.schema.keys)
        names = self.schema.values.names
        limits = {_DUE: self._now(time), _EXPIRES: time.clock}
        return {first + names.index(name): limits[name] for name in limits if name in names}

    def _due_of(self, column: int, moment: int) -> Due:
        """Put the earliest moment in one of those columns on the clock that it goes by."""
        by_event = (
            self.clock == "event"
            and self.schema.values.names[column - len(self.schema.keys)] == _DUE
        )
        return Due(event=moment) if by_event else Due(clock=moment)

    def _next_due(self, data: OperatorInput, changed: pa.RecordBatch | None) -> Due:
        """When something is due next: of all keys, if the epoch was to look; `changed`: state."""
        earliest = Due()
        first = len(self.schema.keys)
        for column, limit in self._due_columns(data.time).items():
            if data.time.due:
                earliest |= self._due_of(column, data.state.min_after(column, limit))
            if changed is not None and changed.num_rows:
                moments = values_of(changed.column(column - first))
                earliest |= self._due_of(column, int(moments.min()))
        return earliest

    def _now(self, time: EpochTime) -> int:
        return time.until if self.clock == "event" else time.clock

    def describe_state(self, state: str = STATE) -> StateDescription:  # noqa: ARG002
        """Describe the state as `ProcessOperator` does, and the clock of the timers."""
        described = super().describe_state()
        if self.clock is None:
            return described
        return msgspec.structs.replace(described, means={"clock of timers": self.clock})

    @uncollected()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the functions for every key that has rows, or something due."""
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
        states = self._read(known, prior.column(0), keys)
        meter.share(prior.column(0))
        found = [CalledKey(moments) for moments in timers_of(column.get(_TIMERS), in_store)]
        given: set[int] = set()

        def state_of(group: int) -> Any:
            if group in given:  # its state was dropped by a timer, and there are rows
                states[group] = self._new_state()
            given.add(group)
            return states[group]

        emitted, ends = Calls(self.name, self.function, self._on_timer, self.clock).run(
            keys,
            Columns(data.rows.values, self.inputs, groups.order),
            groups.starts.tolist(),
            found,
            now=self._now(time),
            meter=meter,
            state_of=state_of,
        )
        output = self._emitted(emitted, ends, keys)
        if self._is_immutable:
            states = [state.value for state in states]
        meter.skip()
        removed = [
            i
            for i, key in enumerate(found)
            if key.dropped or not (key.touched or key.moments or known[i])
        ]
        blobs, dropped = self._blobs(states, removed, keys)
        columns = [blobs]
        if self.clock is not None:
            columns += packed([key.moments for key in found])
        if expires is not None and self._ttl_us is not None:
            touched = np.array([key.touched for key in found], np.bool_)
            again = time.clock + self._ttl_us
            columns.append(pa.array(np.where(touched, again, expires)))
        meter.share(blobs)
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
    """Moments of the timers of every key.

    Parameters
    ----------
    blobs
        As `packed` makes them; ``None``: there are none.
    known
        Shape ``(n,)``: which keys have any.
    """
    if blobs is None:
        return [[] for _ in known]
    if blobs.null_count:
        blobs = blobs.fill_null(b"")
    boundaries = boundaries_of(blobs)
    edges = ((boundaries - boundaries[0]) // 8).tolist()
    data = blob_bytes(blobs)[boundaries[0] : boundaries[-1]]
    moments = np.frombuffer(data.tobytes(), "<i8").tolist()
    return [
        moments[edges[i] : edges[i + 1]] if there else [] for i, there in enumerate(known.tolist())
    ]


def shown(values: pa.RecordBatch) -> list[tuple[pa.Field, pa.Array]]:
    """Columns that stand beside the state, as people read them: moments, and null for none."""
    found = []
    moment = pa.timestamp("us", tz="UTC")
    names = values.schema.names
    if _TIMERS in names:
        blobs = values.column(names.index(_TIMERS)).to_pylist()
        lists = [np.frombuffer(blob or b"", "<i8").tolist() for blob in blobs]
        of_key = pa.list_(moment)
        found.append(
            (pa.field(_TIMERS, of_key), pa.array(lists, pa.list_(pa.int64())).cast(of_key))
        )
    if _EXPIRES in names:
        expires = values_of(values.column(names.index(_EXPIRES)))
        array = pa.array(expires, pa.int64(), mask=expires >= END).cast(moment)
        found.append((pa.field(_EXPIRES, moment), array))
    return found


def packed(moments: list[list[int]]) -> list[pa.Array]:
    """Timers of every key as bytes, and the earliest of each."""
    every = np.fromiter((moment for of_key in moments for moment in of_key), "<i8")
    edges = np.zeros(len(moments) + 1, np.int64)
    np.cumsum([8 * len(of_key) for of_key in moments], out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(every)]
    blobs = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(moments), buffers)
    earliest = [of_key[0] if of_key else END for of_key in moments]
    return [blobs, pa.array(earliest, pa.int64())]
