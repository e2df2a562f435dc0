"""The rules of the sink contract, checked on a sink: `gw.testing.check_sink`.

Epochs of drawn rows are delivered to a real target, whose rows are compared with those that a dict
or a list has. The process "dies" at steps of a delivery: an exception that nothing catches is
raised at a line of the sink's own package, the sink is thrown away, and another one continues as a
start does. Every step is a line, so a crash may be before and after the commit of the target, and
between rows and epoch number, wherever the sink writes them.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import random
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import pyarrow as pa

from godwit.checkpoint.ownership import HistoryPoint
from godwit.columns.signed import CHANGE
from godwit.model.errors import SinkError
from godwit.model.naming import type_name
from godwit.sinks.sink import Sink, SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

    from godwit.checkpoint.ownership import Relation
    from godwit.columns.signed import Kind
    from godwit.plan.staging import Rejections, WrittenFile

    Row: TypeAlias = tuple[Any, ...]
    Line: TypeAlias = tuple[str, int]  # of a file

_QUERY: Final = "check_sink"
_HISTORY: Final = "history"


def check_sink(
    make: Callable[[], Sink],
    read: Callable[[], pa.Table | Sequence[Mapping[str, Any]]],
    *,
    mode: Literal["append", "upsert", "complete"] = "append",
    kind: Kind = "rows",
    columns: tuple[str, str] = ("k", "n"),
    is_atomic: bool = True,
    null_keys: bool = False,
    epochs: int = 6,
    crashes: int | None = None,
    seed: int = 0,
) -> None:
    """Check that a sink class keeps the contract of `gw.sinks.Sink`; for tests.

    Epochs with two columns, a text as the key and an integer, are delivered, some of them twice, by
    the same sink and by others, and the process dies at steps of deliveries. Then the target is
    rolled back and continued, if it can be.

    Parameters
    ----------
    make
        Function without arguments that returns a sink which is not open, always on the same target.
        The target has no rows before the first sink is opened.
    read
        Function without arguments that returns the target's rows, in any order, with these columns
        and perhaps others.
    mode
        What the sink does: ``"append"`` adds rows, ``"upsert"`` replaces the row of each key, and
        in ``"complete"`` an epoch replaces all rows.
    kind
        ``"changes"`` or ``"upserts"``: rows with a sign, for a sink that deletes by key.
    columns
        Names of the columns with the text and the integer.
    is_atomic
        ``False``: readers may see parts of an epoch until it is delivered.
    null_keys
        ``True``: the key is sometimes null.
    epochs
        Number of epochs that are delivered without a crash.
    crashes
        Maximum number of deliveries in which the process dies. ``None``: once at each line of the
        sink's package that deliveries execute.
    seed
        Seed of the rows, and of the steps at which the process dies.

    Raises
    ------
    SinkError
        If a rule of the contract is broken; the message names the rule and what happened.

    Examples
    --------
    >>> results = gw.sinks.memory()
    >>> gw.testing.check_sink(lambda: results, results.table, mode="upsert")
    """
    keys = [*"abcd", None] if null_keys else [*"abcde"]
    rng = random.Random(seed)  # noqa: S311
    check = _Check(make, read, mode=mode, kind=kind, rng=rng, keys=keys, columns=columns)
    try:
        with _frozen_heap():
            check.run(epochs, crashes, is_atomic=is_atomic)
    finally:
        check.close()


@contextlib.contextmanager
def _frozen_heap() -> Iterator[None]:
    """Exclude existing objects from garbage collection, which runs after each crash."""
    freezes = not gc.get_freeze_count()  # else the process wants its objects to stay so
    gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()


class _CrashError(BaseException):
    """Simulated death of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """Output of an epoch, in small batches (see `godwit.sinks.sink.EpochOutput`)."""

    epoch: int
    table: pa.Table
    point: HistoryPoint
    fails_after: int | None = None  # this number of batches, as if the checkpoint was damaged
    complete: bool | None = None

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(self.table.to_batches(max_chunksize=2)):
            if number == self.fails_after:
                raise SinkError("The checkpoint is damaged.", remedy="Mend it.")
            yield batch

    def files(self) -> Sequence[WrittenFile]:
        return ()

    def dataframe(self) -> Any:
        raise SinkError("check_sink has no Spark.", remedy="Use the rows of batches().")

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        if len(rejections.rows):
            raise SinkError(
                f"The sink refused {rows.take(pa.array(rejections.rows)).to_pylist()}.",
                remedy="Every target must accept texts and integers.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    """Epochs of a checkpoint, all of the same history (see `godwit.sinks.sink.CommittedEpochs`)."""

    latest_epoch: int

    @property
    def retained_epochs(self) -> range:
        return range(self.latest_epoch + 1)

    def point(self, epoch: int) -> HistoryPoint:
        return _point(epoch)

    def relation(self, point: HistoryPoint) -> Relation:
        return "ahead" if point.epoch > self.latest_epoch else "shared"

    def last_shared_epoch(self, point: HistoryPoint) -> int:
        return min(point.epoch, self.latest_epoch)


class _Views:
    """Views that ignore what they are shown."""

    def show(self, name: str, rows: pa.Table) -> None:
        """Do nothing."""


class _Check:
    """One run of all rules on one target."""

    def __init__(
        self,
        make: Callable[[], Sink],
        read: Callable[[], pa.Table | Sequence[Mapping[str, Any]]],
        *,
        mode: str,
        kind: Kind,
        rng: random.Random,
        keys: list[str | None],
        columns: tuple[str, str],
    ) -> None:
        self._make, self._read, self._mode, self._rng, self._keys = make, read, mode, rng, keys
        signed, key = kind != "rows", columns[:1]
        schema = pa.schema([(columns[0], pa.string()), (columns[1], pa.int64())])
        self._columns = columns
        self._context = SinkContext(
            name="checked",
            writer="checked",
            flow="check_sink",
            query_id=_QUERY,
            schema=schema.append(CHANGE) if signed else schema,
            keys=key,
            unique_keys=() if signed else (key,),
            mapped=False,
            complete=mode == "complete",
            views=_Views(),
            kind=kind,
            table_keys=key if signed else (),
        )
        self._states: list[list[Row]] = []  # the rows after each epoch
        self._sinks: list[Sink] = []
        self._lines: Counter[Line] = Counter()  # that a delivery executes, and how often at most
        self._sink: Sink

    def run(self, epochs: int, crashes: int | None, *, is_atomic: bool) -> None:
        """Check all rules of the contract of sinks."""
        self._reopen()
        if self._sink.keeps_epochs and self._sink.last_delivered() is not None:
            self._fail("last_delivered", "a new target already has an epoch")
        for _ in range(epochs):
            self._deliver_repeatedly(self._next_epoch())
        self._crash_everywhere(crashes, is_atomic=is_atomic)
        self._deliver_beside_another()
        self._roll_back()
        self._continue()
        self._share()

    def close(self) -> None:
        """Close all sinks."""
        for sink in self._sinks:
            sink.close()

    # -- rules ------------------------------------------------------------------------------------

    def _deliver_repeatedly(self, epoch: _Epoch) -> None:
        """Deliver an epoch, perhaps repeatedly by this sink or another, or an earlier epoch."""
        self._deliver(epoch)
        self._check_rows(epoch.epoch, "delivered once")
        if self._rng.random() < 0.5:
            self._sink.deliver(epoch)
            self._check_rows(epoch.epoch, "delivered twice by one sink")
        if self._rng.random() < 0.5:
            self._sink.close()
            self._reopen()
            self._check_last(epoch.epoch)
            self._sink.deliver(epoch)
            self._check_rows(epoch.epoch, "delivered twice, by another sink after a restart")

    def _crash_everywhere(self, crashes: int | None, *, is_atomic: bool) -> None:
        """Crash once at each line that deliveries execute, in random order, or at some of them."""
        lines: list[Line] = []
        done: set[Line] = set()
        for number in itertools.count():
            lines = lines or [line for line in self._lines if line not in done]
            if not lines or number == crashes:
                return
            line = lines.pop(self._rng.randrange(len(lines)))
            done.add(line)
            self._crash(self._next_epoch(may_be_empty=False), line, is_atomic=is_atomic)

    def _crash(self, epoch: _Epoch, line: Line, *, is_atomic: bool) -> None:
        """Deliver an epoch, crash at a line, and continue as after a restart.

        Instead of it, rows cannot be read from the checkpoint, sometimes.
        """
        number, output = epoch.epoch, epoch
        steps = _Steps(type(self._sink), line, self._rng.randint(1, self._lines[line]))
        where = "after a crash {}"
        if self._rng.random() < 0.1:
            output = replace(epoch, fails_after=self._rng.randrange(-(-epoch.num_rows // 2)))
            where, steps = "after rows that could not be read", _Steps(type(self._sink))
        try:
            self._deliver(output, steps)
        except _CrashError:
            pass
        except SinkError as error:
            if output is epoch or "is damaged" not in str(error):
                raise
        self._forget_sink()
        self._reopen()
        where = where.format(steps.place)
        rows, before, after = self._rows(), self._state(number - 1), self._state(number)
        if is_atomic and rows not in (before, after):
            self._fail(
                "one step",
                f"{where} the target has {rows}, which are neither all rows of the epoch nor none",
            )
        if self._sink.keeps_epochs:
            point = self._sink.last_delivered()
            last = -1 if point is None else point.epoch
            if last == number and rows != after:
                self._fail("one step", f"{where} the target has epoch {number} without its rows")
            if is_atomic and last < number and rows == after != before:
                self._fail(
                    "one step", f"{where} the target has rows of epoch {number}, but not the epoch"
                )
        self._sink.deliver(epoch)
        self._check_rows(number, f"delivered again {where}")

    def _deliver(self, epoch: _Epoch, steps: _Steps | None = None) -> None:
        """Deliver an epoch, and record which lines that executes, and how often."""
        steps = steps or _Steps(type(self._sink))
        try:
            with steps:
                self._sink.deliver(epoch)
        finally:
            for line, count in steps.counts.items():
                self._lines[line] = max(self._lines[line], count)

    def _forget_sink(self) -> None:
        """Close the connections of a sink that has crashed, as the end of its process does."""
        with contextlib.suppress(Exception):
            self._sink.close()
        self._sinks.remove(self._sink)
        del self._sink
        gc.collect()  # of a transaction that the crash left open

    def _deliver_beside_another(self) -> None:
        """Deliver an epoch by another sink first; the earlier sink may fail, but must not write."""
        stale = self._sink
        self._reopen()
        epoch = self._next_epoch()
        self._sink.deliver(epoch)
        with contextlib.suppress(SinkError):
            stale.deliver(epoch)
        self._check_rows(epoch.epoch, "delivered by two sinks that were opened before")

    def _roll_back(self) -> None:
        """Roll the target back by two epochs, if it supports that."""
        self._reopen()
        if not self._sink.keeps_epochs or self._sink.cannot_roll_back() is not None:
            return
        for _ in range(2):
            self._sink.deliver(self._next_epoch())
        latest = len(self._states) - 3
        self._reopen()
        point = self._sink.last_delivered()
        if point is None or point.epoch <= latest:  # the epochs had no rows
            return
        self._sink.roll_back(_Committed(latest_epoch=latest), -1)
        del self._states[latest + 1 :]
        if self._mode != "complete":  # whose next delivery replaces all rows
            self._check_rows(latest, "rolled back")
            self._check_last(latest)
        self._reopen()
        epoch = self._next_epoch()
        self._sink.deliver(epoch)
        self._check_rows(epoch.epoch, "delivered after a roll-back")

    def _continue(self) -> None:
        """Continue after an epoch that was not delivered, which leaves the rows as they are."""
        self._reopen()
        if not self._sink.keeps_epochs:
            return
        self._states += [self._states[-1]] * 3  # epochs that the target does not get
        number = len(self._states) - 1
        self._sink.continue_after(_point(number))
        self._check_rows(number, "continued after a later epoch")
        self._reopen()
        point = self._sink.last_delivered()
        if point is None or point.epoch != number:
            self._fail("continue_after", f"the last epoch is {point}, not {number}")
        skipped = self._next_epoch()
        self._states.pop()
        self._sink.deliver(replace(skipped, epoch=number, point=_point(number)))
        self._check_rows(number, "delivered although the sink continued after it")
        epoch = self._next_epoch()
        self._sink.deliver(epoch)
        self._check_rows(epoch.epoch, "delivered after the sink continued")

    def _share(self) -> None:
        """Deliver epochs by other sinks of the query, and of another query.

        A target may be for one sink: then `open` refuses the others, or the start does, since the
        target has an epoch already.
        """
        others = {
            "another sink": replace(self._context, writer="other"),
            "another query": replace(self._context, query_id="other query"),
        }
        for who, context in others.items():
            sink = self._make()
            if self._mode == "complete" or sink is self._sink:  # as a sink that is a table itself
                return
            try:
                sink.open(context)
            except SinkError:
                continue
            self._sinks.append(sink)
            if sink.keeps_epochs and sink.last_delivered() is not None:
                continue
            drawn = self._next_epoch(may_be_empty=False)
            point = replace(_point(0), query_id=context.query_id, history=f"{_HISTORY} of {who}")
            sink.deliver(replace(drawn, epoch=0, point=point))
            self._check_rows(drawn.epoch, f"the first of {who}")

    # -- rows -------------------------------------------------------------------------------------

    def _next_epoch(self, *, may_be_empty: bool = True) -> _Epoch:
        """Draw the rows of the next epoch, and compute the rows after it."""
        rng, number = self._rng, len(self._states)
        kind = self._context.kind
        before: dict[Any, Any] = dict(self._state(number - 1)) if self._mode == "upsert" else {}
        rows: list[Row] = []
        for _ in range(rng.choice([0, 1, 2, 5, 9] if may_be_empty else [2, 5, 9])):
            key, value = rng.choice(self._keys), rng.choice([None, rng.randrange(100)])
            if kind != "rows" and key in before and (kind == "changes" or rng.random() < 0.4):
                former = before.pop(key)
                rows.append((key, former if kind == "changes" else None, -1))
                if kind == "upserts" or rng.random() < 0.4:
                    continue
            before[key] = value
            rows.append((key, value, 1))
        names = self._context.schema.names
        named = [dict(zip(names, row, strict=False)) for row in rows]
        table = pa.Table.from_pylist(named, schema=self._context.schema)
        state = [row[:2] for row in rows]
        if self._mode == "upsert":
            state = list(before.items())
        elif self._mode == "append":
            state += self._state(number - 1)
        self._states.append(_sorted(state))
        return _Epoch(epoch=number, table=table, point=_point(number))

    def _state(self, epoch: int) -> list[Row]:
        """Return the rows after an epoch; none before the first."""
        return self._states[epoch] if epoch >= 0 else []

    def _rows(self) -> list[Row]:
        """Return the target's rows, sorted."""
        rows = self._read()
        named = rows.to_pylist() if isinstance(rows, pa.Table) else rows
        return _sorted(tuple(row[name] for name in self._columns) for row in named)

    def _reopen(self) -> None:
        """Open another sink, as after a restart."""
        sink = self._make()
        if not isinstance(sink, Sink):
            raise SinkError(
                f"The function passed to check_sink returns a value of type {type_name(sink)}.",
                remedy="Derive the sink from gw.sinks.Sink.",
            )
        sink.check_columns(self._context)
        sink.open(self._context)
        self._sink = sink
        self._sinks.append(sink)

    def _check_last(self, epoch: int) -> None:
        """Raise unless an epoch is the target's last one; empty epochs may be missing."""
        if not self._sink.keeps_epochs:
            return
        point = self._sink.last_delivered()
        last = -1 if point is None else point.epoch
        written = epoch
        while written > 0 and self._state(written) == self._state(written - 1):
            written -= 1
        if not (written <= last <= epoch) and not (last == -1 and not self._state(epoch)):
            self._fail("last_delivered", f"it is {last} after epoch {epoch} was delivered")
        if point is not None and point.digest and point != _point(last):
            self._fail("last_delivered", f"it is {point}, which differs from the delivered epoch")

    def _check_rows(self, epoch: int, how: str) -> None:
        """Raise unless the target has the rows of all epochs up to one; `how`: as text."""
        rows, expected = self._rows(), self._state(epoch)
        if rows != expected:
            more, fewer = Counter(rows), Counter(expected)
            self._fail(
                "rows",
                f"at epoch {epoch}, {how}, the target lacks {list((fewer - more).elements())} "
                f"and has the extra rows {list((more - fewer).elements())}",
            )

    def _fail(self, rule: str, what: str) -> None:
        """Raise the error that the sink breaks a rule; `what`: how, as text."""
        raise SinkError(
            f"{type(self._sink).__name__} breaks the contract of sinks ({rule}): {what}.",
            remedy="gw.sinks.Sink states the contract. The same seed draws the same rows.",
            rule=rule,
        )


class _Steps:
    """Context that counts the executed lines of a class's package, and may crash at one.

    `line`: at which it raises `_CrashError`, when it is reached for the `turn`th time; ``None``:
    it only counts.
    """

    def __init__(self, kind: type[Sink], line: Line | None = None, turn: int = 1) -> None:
        module = sys.modules[kind.__module__]
        # A notebook has no file; each cell is one to its functions.
        cell = inspect.unwrap(kind.deliver).__code__.co_filename
        file = Path(getattr(module, "__file__", None) or cell)
        self._place = str(file.parent if module.__package__ else file)
        self._line, self._turn = line, turn
        self.counts: Counter[Line] = Counter()
        self.place = "after the delivery"

    def __enter__(self) -> Self:
        self._former = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._former)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG002
        """Trace the lines of functions of the package."""
        file = frame.f_code.co_filename
        return self._count if file.startswith(self._place) and file != __file__ else None

    def _count(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG002
        """Count a line, or crash there."""
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            self.counts[line] += 1
            if line == self._line and self.counts[line] == self._turn:
                self.place = f"at {Path(line[0]).name}:{line[1]}, in {frame.f_code.co_name}"
                raise _CrashError
        return self._count


def _point(epoch: int) -> HistoryPoint:
    """Return an epoch of the check's history."""
    return HistoryPoint(query_id=_QUERY, history=_HISTORY, epoch=epoch, digest=f"d{epoch}")


def _sorted(rows: Iterable[Row]) -> list[Row]:
    """Return sorted rows; nulls are allowed."""
    return sorted(rows, key=lambda row: tuple((value is not None, value) for value in row))
