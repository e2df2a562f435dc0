"""Calls of a user's function per key, with timers and rows in order, and their cost.

In an epoch, for each key: first the due timers, earliest first; then the rows; then the timers that
these calls have set and that are due already.  Or first the rows, and then all due timers.  Or, of
rows in order of event time, timers and rows by their times: see `godwit.library.in_order`.
"""

from __future__ import annotations

import contextlib
import gc
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import boundaries_of
from godwit.columns.python_values import LAST, Columns, KeyRows, KeysOfRows, datetime_of
from godwit.model.errors import UserFunctionError
from godwit.model.frames import function_failed
from godwit.operators.failed_calls import FailedCalls, is_divertible
from godwit.operators.timers import NO_TIMERS, FiredTimer, TimedRows, Timers, Timing
from godwit.values.records import MisfitError, hint_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from godwit.columns.groups import Groups
    from godwit.operators.operator import KeyedOperator, OperatorInput
    from godwit.operators.timers import TimerClock
    from godwit.store.changes import StateRows
    from godwit.time.event_time import EpochTime
    from godwit.values.records import RowClass


_MAX_FIRED: Final = 10_000


def columns_of_rows(
    operator: KeyedOperator, rows: StateRows, groups: Groups, keys: list[tuple[Any, ...]]
) -> Columns:
    """Return an epoch's rows, ordered by key, as the function reads them; raise if one misfits.

    `groups`: the key of each row; `keys`: the keys as Python values.
    """
    row_class = operator.row_class
    keys_of_rows = KeysOfRows(operator.user_keys.names, keys, groups.starts.tolist())
    if row_class is None:
        columns = Columns(rows.values, operator.inputs, groups.order, keys_of_rows)
        return columns.read_by(operator.function)
    names = rows.values.schema.names
    arrays = [
        (rows.values if name in names else rows.keys).column(name) for name in row_class.names
    ]
    read = Columns(
        pa.RecordBatch.from_arrays(arrays, names=row_class.names),
        operator.inputs,
        groups.order,
        keys_of_rows,
        row_class,
    )
    try:
        for name, column in zip(row_class.names, arrays, strict=True):
            if not row_class.admits_all(name, column):
                read[name]  # which raises, and not in the function
    except MisfitError as error:
        key = keys[int(np.searchsorted(groups.starts, error.index, side="right")) - 1]
        field = row_class.field(error.column)
        raise UserFunctionError(
            f"Operator {operator.name!r}: a row of key {key!r} does not fit "
            f"{row_class.cls.__qualname__}.{field.name}, which is {hint_text(field.hint)}: "
            f"{error.reason}.",
            remedy=(
                f"Filter such rows out in an earlier map, or declare the field as {field.name}: "
                f"{error.admitting or f'{hint_text(field.hint)} | None'}."
            ),
            operator=operator.name,
            key=key,
            column=field.name,
        ) from error
    return read


def without_misfits(
    operator: KeyedOperator, data: OperatorInput
) -> tuple[OperatorInput, pa.RecordBatch | None]:
    """Split off the rows of an operator's input that do not fit its row class.

    They are left in, for `columns_of_rows` to raise, if the operator does not divert errors.
    """
    row_class, failed = operator.row_class, FailedCalls.of(operator, data.rows)
    if failed is None or row_class is None:
        return data, None
    count = len(data.rows.hashes)
    fits = np.ones(count, np.bool_)
    names = data.rows.values.schema.names
    for name in row_class.names:
        column = (data.rows.values if name in names else data.rows.keys).column(name)
        if (
            row_class.admits_all(name, column)
            or _first_misfit_error(row_class, name, column) is None
        ):
            continue
        for row in np.flatnonzero(fits).tolist():
            error = _first_misfit_error(row_class, name, column.slice(row, 1))
            if error is not None:
                fits[row] = False
                failed.add(operator.function, error, (row, row + 1))
    if fits.all():
        return data, None
    rows = data.rows.take(np.flatnonzero(fits))
    times = None if data.moments is None else data.moments[fits]
    return replace(data, rows=rows, moments=times), failed.to_batch()


def _first_misfit_error(row_class: RowClass, name: str, column: pa.Array) -> ValueError | None:
    """Return the error about the first value of a column that a field does not admit, if any."""
    try:
        row_class.values(name, column)
    except MisfitError as error:
        hint = hint_text(row_class.field(name).hint)
        return ValueError(
            f"the row does not fit {row_class.cls.__qualname__}.{name}, which is {hint}: "
            f"{error.reason}"
        )
    return None


@dataclass(slots=True)
class CalledKey:
    """State of the calls for one key."""

    timers: list[int]  # the times that they are set to, ascending
    touched: bool = False
    dropped: bool = False
    # numbers, from 1, of calls that failed and are left out; ``None``: a failed call stops all
    left_out: Collection[int] | None = None
    calls: int = 0  # calls so far, including those that are left out, where some may be

    def restart(self, timers: list[int]) -> None:
        """Reset the key, with these timers, to its state before the first call."""
        self.timers, self.touched, self.dropped = list(timers), False, False
        self.calls = 0

    def leaves_out_call(self) -> bool:
        """Count the next call, and return whether it is skipped because it failed before."""
        assert self.left_out is not None, "calls may be left out"
        self.calls += 1
        return self.calls in self.left_out

    def is_due(self, due: int) -> bool:
        """Return whether a timer is set to a time up to `due`."""
        return bool(self.timers) and self.timers[0] <= due and not self.dropped

    def after_call(self, dropped: bool) -> None:
        """Record the end of a call; if it `dropped` the key's state, delete its timers too."""
        self.dropped = dropped
        if dropped:
            self.timers.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysToCall:
    """The keys of one lane and epoch, and what their functions are called with."""

    keys: list[tuple[Any, ...]]
    columns: Columns  # rows, ordered by key
    starts: list[int]  # where the rows of each key begin
    called: list[CalledKey]  # of each key; filled in
    before: TimerTime  # until the key's rows have been processed
    after: TimerTime  # and after them: another time only at the end of the input
    # event time of each row, ordered as the rows are, where timers fire between rows
    moments: list[int] | None = None
    state_of: Callable[[int], Any]  # state of a key
    renewed: Callable[[int], Any]  # its state after a timer has dropped it, and there are rows
    done: Callable[[int], None] = lambda _: None  # called after the last call for a key
    # Restores a key's state from before the epoch, so that its call can be repeated.
    reset: Callable[[int], None] = lambda _: None
    # Arguments passed by name, beside key, rows and state.
    named: Mapping[str, Any] = field(default_factory=dict)
    failed: FailedCalls | None = None  # ``None``: a failed call stops the epoch

    def divert(self, group: int, call: Call, error: BaseException, timers: list[int]) -> None:
        """Restore a key before its calls are repeated without this one, which failed.

        `timers`: the key's, before the epoch.
        """
        assert self.failed is not None
        key_calls, argument, span = self.called[group], call.argument, (0, 0)
        if isinstance(argument, KeyRows):
            span = argument._start, argument._stop  # noqa: SLF001 - for operators alone
        self.failed.add(call.function, error, span, self.keys[group], group)
        key_calls.left_out = {*(key_calls.left_out or ()), key_calls.calls}
        self.reset(group)
        key_calls.restart(timers)

    def undo(self, group: int, function: Any, error: BaseException, timers: list[int]) -> None:
        """Undo all calls for a key; its due timers are removed, and its rows diverted.

        `timers`: the key's, before the epoch.
        """
        assert self.failed is not None
        self.failed.forget(group)
        span = self.starts[group], self.starts[group + 1]
        self.failed.add(function, error, span, self.keys[group], group)
        self.reset(group)
        self.called[group].restart([time for time in timers if time > self.after.due])


class TimerTime(NamedTuple):
    """Time by the clock of the timers, in microseconds."""

    now: int
    due: int  # timers up to and including this time are due


class Call(NamedTuple):
    """One call of a user's function."""

    function: Callable[..., Any]
    argument: Any  # rows, or a timer
    state: Any

    def text(self, named: Iterable[str]) -> str:
        """Return the call as text for errors; `named`: arguments by keyword."""
        what = "timer" if isinstance(self.argument, FiredTimer) else "rows"
        arguments = ["key", what, "state", *(f"{name}={name}" for name in named)]
        return f"function({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls an operator's functions for the keys of one epoch."""

    operator: str
    function: Callable[..., Any]
    timing: Timing = NO_TIMERS

    def run(self, work: KeysToCall, meter: Meter) -> tuple[list[Any], list[int]]:
        """Call the functions for every key; return emitted rows, and their total after each key."""
        emitted: list[Any] = []
        ends: list[int] = []
        begin = 0
        for end in meter.ends:
            for group in range(begin, end):
                if work.failed is not None:
                    emitted += self._call_or_divert(work, group)
                else:
                    for call in self.of_key(work, group):
                        emitted += self._call_function(call, work.keys[group], work.named)
                ends.append(len(emitted))
                work.done(group)
            begin = end
            meter.end_key_group()
        return emitted, ends

    def _call_or_divert(self, work: KeysToCall, group: int) -> list[Any]:
        """Run all calls for key number `group`, without those that fail and are diverted."""
        key, key_calls = work.keys[group], work.called[group]
        timers, key_calls.left_out = list(key_calls.timers), ()
        while True:
            emitted: list[Any] = []
            for call in self.of_key(work, group):
                try:
                    emitted += self._call_function(call, key, work.named)
                except UserFunctionError as error:
                    if error.__cause__ is None or not is_divertible(error.__cause__):
                        raise
                    work.divert(group, call, error.__cause__, timers)
                    break
            else:
                return emitted

    def _call_function(
        self, call: Call, key: tuple[Any, ...], named: Mapping[str, Any]
    ) -> list[Any]:
        """Call a user's function, and return the emitted rows; an error names the key."""
        try:
            result = call.function(key, call.argument, call.state, **named)
            return [] if result is None else list(result)
        except BaseException as error:
            raise function_failed(
                self.operator, call.function, key, error, called=call.text(named)
            ) from error

    def of_key(self, work: KeysToCall, group: int) -> Iterator[Call]:
        """Yield the calls for key number `group` in order; each is completed before the next."""
        key_calls, state = work.called[group], work.state_of(group)
        timers = Timers(key_calls.timers, work.before.now)
        first, last = work.starts[group], work.starts[group + 1]
        if work.moments is not None:
            for begin, end in _runs_of_equal_times(work.moments, first, last):
                time_us = work.moments[begin]
                yield from self._timer_calls(work, group, state, timers, due=time_us - 1)
                timers._now = time_us  # noqa: SLF001 - for operators alone
                state = yield from self._row_call(work, group, state, timers, span=(begin, end))
            yield from self._timer_calls(work, group, state, timers, due=work.before.due)
        else:
            if self.timing.order == "before_rows" and key_calls.is_due(work.before.due):
                yield from self._timer_calls(work, group, state, timers, due=work.before.due)
            if first < last:
                state = yield from self._row_call(work, group, state, timers, span=(first, last))
        timers._now = work.after.now  # noqa: SLF001 - for operators alone
        now, due = work.after
        if key_calls.is_due(due):
            yield from self._timer_calls(work, group, state, timers, due=due, now=now)

    def _row_call(
        self, work: KeysToCall, group: int, state: Any, timers: Timers, *, span: tuple[int, int]
    ) -> Generator[Call, None, Any]:
        """Yield the call for a span of rows of a key; return the key's state for later calls."""
        key_calls = work.called[group]
        if key_calls.left_out is not None and key_calls.leaves_out_call():
            return state
        if key_calls.dropped:
            state = work.renewed(group)
        rows = (
            KeyRows(work.columns, *span)
            if self.timing.clock is None
            else TimedRows(work.columns, *span, timers)
        )
        key_calls.touched = True
        yield Call(self.function, rows, state)
        key_calls.after_call(rows._dropped)  # noqa: SLF001 - for operators alone
        return state

    def _timer_calls(
        self,
        work: KeysToCall,
        group: int,
        state: Any,
        timers: Timers,
        *,
        due: int,
        now: int | None = None,
    ) -> Iterator[Call]:
        """Yield the calls for timers of a key up to `due`, earliest first.

        Raises if they do not end. `now`: time of the clock; ``None``: that of each timer where
        timers fire between rows, else as it is.
        """
        key, key_calls = work.keys[group], work.called[group]
        max_fired = _MAX_FIRED + len(key_calls.timers)  # those that are set already may be many
        fired_so_far = 0
        while key_calls.is_due(due):
            fired_so_far += 1
            if fired_so_far > max_fired:
                raise UserFunctionError(
                    f"Operator {self.operator!r}: timers of key {key!r} fired {_MAX_FIRED} "
                    "times in one epoch, each time set for a time that had passed.",
                    remedy=(
                        "Set timers after timers.now, or return if there is nothing to do. At "
                        "the end of the input (close_at_end=True) every event-time timer is "
                        "due: set none if timers.now is in the year 9999."
                    ),
                    operator=self.operator,
                    key=key,
                )
            time_us = key_calls.timers.pop(0)
            if key_calls.left_out is not None and key_calls.leaves_out_call():
                continue
            if work.moments is not None and now is None:
                timers._now = time_us  # noqa: SLF001 - for operators alone
            fired = FiredTimer(datetime_of(time_us), timers)
            key_calls.touched = True
            assert self.timing.on_timer is not None, "timers have a function"
            yield Call(self.timing.on_timer, fired, state)
            key_calls.after_call(fired._dropped)  # noqa: SLF001 - for operators alone


def _runs_of_equal_times(moments: list[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of runs of equal event times among the rows from `first` to `last`."""
    begin = first
    while begin < last:
        end = begin + 1
        while end < last and moments[end] == moments[begin]:
            end += 1
        yield begin, end
        begin = end


class Meter:
    """CPU and elapsed time per key group of a user's functions.

    What the function takes is measured between one key group and the next; reading and writing
    of states, done for all keys at once, are shared out by bytes.
    """

    def __init__(self, key_groups: npt.NDArray[np.int32]) -> None:
        _, self._first_positions = np.unique(key_groups, return_index=True)
        self.ends: list[int] = np.append(self._first_positions, len(key_groups))[1:].tolist()
        self._lap_clocks: list[npt.NDArray[np.float64]] = []
        self._shared_s = np.zeros((2, len(self._first_positions)))
        self._lap_start = _cpu_and_elapsed_s()

    def end_key_group(self) -> None:
        """Attribute the time since the last call of the meter to the key group that just ended."""
        now = _cpu_and_elapsed_s()
        self._lap_clocks.append(now - self._lap_start)
        self._lap_start = now

    def skip(self) -> None:
        """Attribute the time since the last call of the meter to no key group."""
        self._lap_start = _cpu_and_elapsed_s()

    def add_concurrent(
        self, cpu_s: npt.NDArray[np.float64], busy_s: npt.NDArray[np.float64]
    ) -> None:
        """Record the CPU and elapsed seconds of each key's calls, which ran concurrently."""
        self._lap_clocks = list(
            np.add.reduceat(np.stack([cpu_s, busy_s]), self._first_positions, axis=1).T
        )
        self._lap_start = _cpu_and_elapsed_s()

    def add_by_bytes(self, blobs: pa.Array) -> None:
        """Divide the time since the last call among key groups, by bytes of states (`blobs`)."""
        now = _cpu_and_elapsed_s()
        sizes = np.diff(boundaries_of(blobs)) + 1.0
        weights = np.add.reduceat(sizes, self._first_positions) if len(sizes) else sizes
        self._shared_s += np.outer(now - self._lap_start, weights / weights.sum())
        self._lap_start = now

    @property
    def cpu_ms(self) -> npt.NDArray[np.float64]:
        """Milliseconds of CPU per key group."""
        return self._time_per_key_group(0)

    @property
    def busy_ms(self) -> npt.NDArray[np.float64]:
        """Elapsed milliseconds per key group."""
        return self._time_per_key_group(1)

    def _time_per_key_group(self, clock: int) -> npt.NDArray[np.float64]:
        """Return milliseconds per key group by one clock (0: CPU time, 1: elapsed time)."""
        laps = np.array([lap[clock] for lap in self._lap_clocks])
        spent: npt.NDArray[np.float64] = self._shared_s[clock] + laps
        return spent * 1e3


def _cpu_and_elapsed_s() -> npt.NDArray[np.float64]:
    """Return the CPU time of this thread and the elapsed time, in seconds."""
    return np.array([time.thread_time(), time.perf_counter()])


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Context that suspends Python's garbage collection of reference cycles.

    Hundreds of thousands of states and rows would start it again and again; it frees nothing, and
    takes more than half of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def timer_times(clock: TimerClock | None, time: EpochTime) -> tuple[TimerTime, TimerTime]:
    """Return the time of timers before a key's rows, and after them."""
    if clock == "event":
        before = TimerTime(now=time.until, due=time.until - 1)
        return before, TimerTime(now=LAST, due=LAST) if time.ended else before
    by_clock = TimerTime(now=time.clock, due=time.clock)
    return by_clock, by_clock
