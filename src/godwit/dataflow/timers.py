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

import bisect
import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from godwit.dataflow.arrays import blob_bytes, boundaries_of, values_of
from godwit.dataflow.emitted import Emitted
from godwit.dataflow.faults import function_failed
from godwit.dataflow.key_rows import Columns, KeyRows, rows_as_tuples
from godwit.dataflow.process import Meter, ProcessOperator, check_arguments
from godwit.dataflow.windows.grid import BEGINNING, END
from godwit.dataflow.windows.moments import Due
from godwit.model.errors import CheckpointMismatchError, UserFunctionError
from godwit.state.schema import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from godwit.dataflow.nodes import TimerClock
    from godwit.dataflow.operator import Advance, Step
    from godwit.dataflow.windows.moments import OperatorTime
    from godwit.state.evolution import StateDescription, StateUpgrade

__all__ = ["FiredTimer", "TimedProcess", "TimedRows", "Timers", "shown"]

_TIMERS: Final = "timers"
_DUE: Final = "due"
_EXPIRES: Final = "expires"
_MOST_FIRED: Final = 10_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


class Timers:
    """Timers of one key, in one epoch."""

    __slots__ = ("_moments", "_now")

    def __init__(self, moments: list[int], now: int) -> None:
        self._moments, self._now = moments, now

    @property
    def now(self) -> dt.datetime | None:
        """The clock: the watermark, or the driver's clock; ``None`` before there is a watermark."""
        return None if self._now <= BEGINNING else _datetime(self._now)

    def set(self, at: dt.datetime) -> None:
        """Fire at a moment; one that has passed fires in this epoch, after the rows.

        A timer that is set twice fires once. A datetime without a time zone is in UTC.
        """
        moment = _microseconds(at)
        place = bisect.bisect_left(self._moments, moment)
        if place == len(self._moments) or self._moments[place] != moment:
            self._moments.insert(place, moment)

    def cancel(self, at: dt.datetime) -> bool:
        """Do not fire at that moment; says whether there was such a timer."""
        moment = _microseconds(at)
        place = bisect.bisect_left(self._moments, moment)
        found = place < len(self._moments) and self._moments[place] == moment
        if found:
            del self._moments[place]
        return found

    def list(self) -> list[dt.datetime]:
        """Moments at which the key has timers, earliest first."""
        return [_datetime(moment) for moment in self._moments]


class TimedRows(KeyRows):
    """The rows of one key in one epoch, and its timers.

    Attributes
    ----------
    timers
        The key's timers.
    """

    __slots__ = ("timers",)

    def __init__(self, columns: Columns, start: int, stop: int, timers: Timers) -> None:
        super().__init__(columns, start, stop)
        self.timers = timers


@dataclass(slots=True)
class FiredTimer:
    """A timer that has fired.

    Attributes
    ----------
    at
        The moment it was set to.
    timers
        The key's other timers.
    """

    at: dt.datetime
    timers: Timers
    _dropped: bool = False

    def drop_state(self) -> None:
        """Forget the key's state and timers once the function has returned."""
        self._dropped = True


@dataclass(slots=True)
class _Key:
    """What becomes of one key in an epoch."""

    moments: list[int]
    touched: bool = False
    dropped: bool = False
    fired: int = 0

    def drop_if(self, dropped: bool) -> None:
        """Forget the key, timers and all, or take note that it is in use."""
        self.dropped = dropped
        if dropped:
            self.moments.clear()


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

    def is_due(self, due: Due, told: OperatorTime) -> bool:
        """Whether the earliest of its timers and expiries are due in an epoch."""
        return due.event <= told.until or due.clock <= told.clock

    def due_columns(self, told: OperatorTime) -> dict[int, int]:
        """Position of a column of an entry, key columns first → what is due up to and including."""
        first = len(self.schema.keys)
        names = self.schema.values.names
        limits = {_DUE: self._now(told), _EXPIRES: told.clock}
        return {first + names.index(name): limits[name] for name in limits if name in names}

    def due_of(self, column: int, moment: int) -> Due:
        """Say of the earliest moment in one of those columns which clock it goes by."""
        by_event = (
            self.clock == "event"
            and self.schema.values.names[column - len(self.schema.keys)] == _DUE
        )
        return Due(event=moment) if by_event else Due(clock=moment)

    def _now(self, told: OperatorTime) -> int:
        return told.until if self.clock == "event" else told.clock

    def describe_state(self) -> StateDescription:
        """Say of the state what `ProcessOperator` does, and which clock the timers go by."""
        described = super().describe_state()
        if self.clock is None:
            return described
        return msgspec.structs.replace(described, windows=[{"clock": self.clock}])

    def upgrade_from(self, stored: StateDescription) -> StateUpgrade | None:
        """As of `ProcessOperator`; timers must go by the clock that they were set by.

        Raises
        ------
        CheckpointMismatchError
            If they do not, or the state does not fit.
        """
        was = next((part.get("clock") for part in stored.windows or ()), None)
        if None not in (was, self.clock) and was != self.clock:
            raise CheckpointMismatchError(
                f"Operator {self.name!r} has timers={self.clock!r}, but those in the checkpoint "
                f"were set by timers={was!r}: their moments would mean something else.",
                remedy="Undo the change, or give the operator a name of its own, under which it "
                "starts empty.",
                operator=self.name,
                differences=[f"timers: {was} → {self.clock}"],
            )
        return super().upgrade_from(stored)

    def _advance(self, step: Step) -> Advance:
        keys = rows_as_tuples(step.keys)
        meter = Meter(step.groups.key_groups)
        known, expires = step.known, None
        if self._ttl_us is not None:
            expires = np.where(known, values_of(self._column(step, _EXPIRES)), END)
            known = known & (expires > step.time.clock)
        states = self._read(replace(step, known=known), keys)
        meter.share(step.prior.column(0))
        found = [_Key(moments) for moments in self._timers(step)]
        emitted, ends = self._fire_and_call(step, keys, states, found, meter)
        output = Emitted(
            rows=emitted, ends=ends, keys=keys, schema=self.output, operator=self.name
        ).to_batch()
        if self._held:
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
            columns += _packed([key.moments for key in found])
        if expires is not None and self._ttl_us is not None:
            touched = np.array([key.touched for key in found], np.bool_)
            again = step.time.clock + self._ttl_us
            columns.append(pa.array(np.where(touched, again, expires)))
        meter.share(blobs)
        return self._made(
            pa.RecordBatch.from_arrays(columns, schema=self.schema.values), dropped, output, meter
        )

    def _fire_and_call(
        self,
        step: Step,
        keys: list[tuple[Any, ...]],
        states: list[Any],
        found: list[_Key],
        meter: Meter,
    ) -> tuple[list[Any], list[int]]:
        """Call the functions for every key: rows, and how many there were after each key."""
        groups, now = step.groups, self._now(step.time)
        columns = Columns(step.rows, self.inputs, groups.order)
        starts = groups.starts.tolist()
        emitted: list[Any] = []
        ends: list[int] = []
        begin = 0
        for end in meter.ends:
            for group in range(begin, end):
                key, of_key = keys[group], found[group]
                timers = Timers(of_key.moments, now)
                emitted += self._fire(key, states[group], of_key, timers, now)
                first, last = starts[group], starts[group + 1]
                if first < last:
                    if of_key.dropped:
                        states[group] = self._new_state()
                    rows = TimedRows(columns, first, last, timers)
                    of_key.touched = True
                    emitted += self._called(self._function, key, rows, states[group])
                    of_key.drop_if(rows._dropped)  # noqa: SLF001 - for operators alone
                    emitted += self._fire(key, states[group], of_key, timers, now)
                ends.append(len(emitted))
            begin = end
            meter.lap()
        return emitted, ends

    def _fire(
        self, key: tuple[Any, ...], state: Any, of_key: _Key, timers: Timers, now: int
    ) -> list[Any]:
        emitted: list[Any] = []
        while of_key.moments and of_key.moments[0] <= now and not of_key.dropped:
            of_key.fired += 1
            if of_key.fired > _MOST_FIRED:
                raise UserFunctionError(
                    f"Operator {self.name!r}: timers of key {key!r} fired {_MOST_FIRED} times in "
                    "one epoch, each at a moment that has passed.",
                    remedy="Set timers after timers.now, or return where there is nothing to do.",
                    operator=self.name,
                    key=key,
                )
            fired = FiredTimer(_datetime(of_key.moments.pop(0)), timers)
            of_key.touched = True
            assert self._on_timer is not None, "an operator with timers has a function for them"
            emitted += self._called(self._on_timer, key, fired, state)
            of_key.drop_if(fired._dropped)  # noqa: SLF001 - for operators alone
        return emitted

    def _called(
        self, function: Callable[..., Any], key: tuple[Any, ...], what: Any, state: Any
    ) -> list[Any]:
        try:
            result = function(key, what, state)
            return [] if result is None else list(result)
        except BaseException as error:
            raise function_failed(self.name, function, key, error) from error

    def _column(self, step: Step, name: str) -> pa.Array:
        return step.prior.column(self.schema.values.get_field_index(name))

    def _timers(self, step: Step) -> list[list[int]]:
        """Moments of the timers of every key."""
        if self.clock is None:
            return [[] for _ in range(step.groups.count)]
        blobs = self._column(step, _TIMERS)
        if blobs.null_count:
            blobs = blobs.fill_null(b"")
        boundaries = boundaries_of(blobs)
        edges = ((boundaries - boundaries[0]) // 8).tolist()
        data = blob_bytes(blobs)[boundaries[0] : boundaries[-1]]
        moments = np.frombuffer(data.tobytes(), "<i8").tolist()
        return [
            moments[edges[i] : edges[i + 1]] if known else []
            for i, known in enumerate(step.known.tolist())
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


def _packed(moments: list[list[int]]) -> list[pa.Array]:
    """Timers of every key as bytes, and the earliest of each."""
    every = np.fromiter((moment for of_key in moments for moment in of_key), "<i8")
    edges = np.zeros(len(moments) + 1, np.int64)
    np.cumsum([8 * len(of_key) for of_key in moments], out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(every)]
    blobs = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(moments), buffers)
    earliest = [of_key[0] if of_key else END for of_key in moments]
    return [blobs, pa.array(earliest, pa.int64())]


def _datetime(moment: int) -> dt.datetime:
    return _EPOCH + moment * _MICROSECOND


def _microseconds(at: dt.datetime) -> int:
    if not isinstance(at, dt.datetime) or at != at:  # noqa: PLR0124 - pandas' NaT is a datetime
        msg = f"a timer is set to a datetime, not to {at!r}"
        raise TypeError(msg)
    if at.tzinfo is None:
        at = at.replace(tzinfo=dt.UTC)
    return (at - _EPOCH) // _MICROSECOND
