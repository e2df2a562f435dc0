"""The rules of the source contract, checked on a source: `gw.testing.check_source`.

Every rule is a function of its own that raises for the first thing it finds; the order is the one
in which an engine relies on them. All positions go through the encoding of commit records before
they are used, as after a restart.
"""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from godwit.model.errors import GodwitError, SourceError
from godwit.model.naming import error_line, type_name
from godwit.model.text import counted
from godwit.sources.source import Lag, Source, Split, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from godwit.sources.source import Position

_PARALLELISMS = (2, 3, 7)


def check_source(
    source: Source,
    *,
    add: Callable[[], object] | None = None,
    max_rows: int = 10_000,
    exact_limits: bool = True,
    ordered_within: str | None = None,
) -> None:
    """Check that a source class keeps the contract of `godwit.sources.Source`; for tests.

    Parameters
    ----------
    source
        A source that is not open, with rows to read. It is closed at the end of the check.
    add
        Function without arguments that makes more rows arrive, such as by writing a file. With it,
        the check covers that earlier splits still give the same rows, and that a position given as
        ``until`` is not exceeded.
    max_rows
        Approximate maximum number of rows to read.
    exact_limits
        ``True``: with ``limit`` the source must give exactly that many rows. ``False``, for a
        source that can divide its rows only at certain places: it must give at least one.
    ordered_within
        Column with the partition of a row, for a source that orders rows only within partitions: an
        epoch with a limit then reads the first rows of each partition. By default all rows must be
        in one order.

    Raises
    ------
    SourceError
        If a rule of the contract is broken; the message names the rule and what happened.

    Examples
    --------
    >>> source = gw.sources.memory("symbol string, price double")
    >>> source.add([("A", 9.5), ("B", 1.0)])
    >>> gw.testing.check_source(source, add=lambda: source.add([("C", 2.0)]))
    """
    if not isinstance(source, Source):
        raise SourceError(
            f"check_source got a value of type {type_name(source)}.",
            remedy="Derive the source from gw.sources.Source.",
        )
    _Check(source, add, max_rows, exact_limits, ordered_within).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Rows between two positions, read once."""

    begin: Position
    end: Position
    rows: pa.Table


class _Check:
    """One run of all rules."""

    def __init__(
        self,
        source: Source,
        add: Callable[[], object] | None,
        max_rows: int,
        exact_limits: bool,
        ordered_within: str | None,
    ) -> None:
        self._source, self._add = source, add
        self._max_rows, self._exact = max_rows, exact_limits
        self._within = ordered_within
        self._schema = pa.schema([])
        self._unopened = b""  # a copy that was never opened, pickled

    def run(self) -> None:
        """Check all rules of the contract of sources, and close the source in any case."""
        try:
            self._check_description()
            self._check_pickling()
            self._call_method("open", self._source.open, None)
            start = self._after_storage("start", self._call_method("start", self._source.start))
            first = self._read_sample(start)
            self._check_split_counts(first)
            self._check_repeated_reads(first)
            self._check_columns(first)
            self._check_limits(first)
            self._check_end(start)
            self._check_resume(first)
            self._check_reports(first)
        finally:
            self._source.close()
        self._check_closing()

    # -- rules ------------------------------------------------------------------------------------

    def _check_description(self) -> None:
        """Check the schema, identity and arrival time of the source before it is opened."""
        schema = self._call_method("schema", lambda: self._source.schema)
        if not isinstance(schema, pa.Schema):
            self._fail_rule(
                "schema", f"schema is a value of type {type_name(schema)}, not a pa.Schema"
            )
        if not schema.names or len(set(schema.names)) < len(schema.names):
            self._fail_rule(
                "schema", f"its columns are {schema.names}: there are none, or duplicates"
            )
        if not schema.equals(self._source.schema):
            self._fail_rule("schema", "a second call returns another schema")
        self._schema = schema
        identity = self._call_method("identity", lambda: self._source.identity)
        if not isinstance(identity, str) or not identity:
            self._fail_rule("identity", f"its identity is {identity!r}, not a string")
        if identity != self._source.identity:
            self._fail_rule("identity", "a second call returns another identity")
        arrival = self._source.arrival_time
        if arrival is not None and (
            arrival not in schema.names or not pa.types.is_timestamp(schema.field(arrival).type)
        ):
            self._fail_rule("arrival time", f"{arrival!r} is not a column of type timestamp")

    def _check_pickling(self) -> None:
        """Check that the source can be pickled, since executors get copies."""
        try:
            self._unopened = pickle.dumps(self._source)
            copy = pickle.loads(self._unopened)  # noqa: S301  pickled a line above
        except Exception as error:
            raise self._rule_error(
                "copies", f"it cannot be pickled: {error_line(error)}"
            ) from error
        if copy.identity != self._source.identity:
            self._fail_rule("identity", f"a pickled copy has another identity, {copy.identity!r}")
        if not copy.schema.equals(self._schema):
            self._fail_rule("schema", "a pickled copy has another schema")

    def _read_sample(self, start: Position) -> _Range:
        """Read the rows by which all rules are checked; raise if the source has no rows."""
        end = self._call_latest(start, limit=self._max_rows)
        rows = self._read_splits(self._source, self._call_splits(start, end, 1))
        if not rows.num_rows:
            self._fail_rule(
                "rows", "it has no rows to read from its start", "Give the source some rows."
            )
        return _Range(begin=start, end=end, rows=rows)

    def _check_split_counts(self, sample: _Range) -> None:
        """Check that any number of splits gives the same rows, in the same order."""
        for parallelism in _PARALLELISMS:
            splits = self._call_splits(sample.begin, sample.end, parallelism)
            rows = self._read_splits(self._source, splits)
            self._check_equal(
                "splits",
                sample.rows,
                rows,
                f"{len(splits)} splits give other rows than a single one",
            )
            for split in splits:
                self._check_split(split)
        none = self._call_splits(sample.end, sample.end, 2)
        if self._read_splits(self._source, none).num_rows:
            self._fail_rule("splits", "there are rows between a position and itself")

    def _check_split(self, split: Split) -> None:
        """Check the name, the number of rows and the size of a split."""
        if not split.what:
            self._fail_rule("splits", "a split has no name (what=) for errors and plans")
        if split.rows is not None:
            count = self._read_splits(self._source, [split]).num_rows
            if count > split.rows or (split.exact and count != split.rows):
                self._fail_rule(
                    "splits",
                    f"{split.what!r} declares {counted(split.rows, 'row')}, but returns {count}",
                    "Use exact=False if it may have fewer, or rows=None if their number is "
                    "unknown.",
                )
        if split.size_bytes is not None and split.size_bytes < 0:
            self._fail_rule("splits", f"{split.what!r} declares {split.size_bytes} bytes")

    def _check_repeated_reads(self, sample: _Range) -> None:
        """Check that a split gives the same rows again, in any order, in any copy."""
        splits = self._call_splits(sample.begin, sample.end, 3)
        try:
            shipped = pickle.loads(pickle.dumps(splits))  # noqa: S301  pickled right here
        except Exception as error:
            raise self._rule_error(
                "splits",
                f"they cannot be pickled: {error_line(error)}",
                "Put only picklable values into payload=.",
            ) from error
        for split, again in zip(splits, shipped, strict=True):
            rows = self._read_splits(self._source, [split])
            self._check_equal(
                "the rule", rows, self._read_splits(self._source, [split]), "read twice, differs"
            )
            self._check_equal(
                "the rule",
                rows,
                self._read_splits(self._pickled_copy(), [again]),
                "read by a pickled copy that was never opened, differs",
            )
        backwards = [self._read_splits(self._source, [split]) for split in reversed(splits)]
        rows = pa.concat_tables([*reversed(backwards), self._schema.empty_table()])
        self._check_equal(
            "the rule", sample.rows, rows, "splits read from the last to the first differ"
        )
        opened = pickle.loads(pickle.dumps(self._source))  # noqa: S301  pickled right here
        self._check_equal(
            "copies",
            sample.rows,
            self._read_splits(opened, splits),
            "a copy made while open differs",
        )

    def _check_columns(self, sample: _Range) -> None:
        """Check that `read` returns the requested columns, with unchanged values."""
        names = list(self._schema.names)
        asked = [names[::-1], *([name] for name in names)]
        splits = self._call_splits(sample.begin, sample.end, 1)
        for columns in asked:
            rows = self._read_splits(self._source, splits, columns)
            self._check_equal(
                "columns",
                sample.rows.select(columns),
                rows,
                f"a read of {columns} differs from that of all columns",
            )

    def _check_limits(self, sample: _Range) -> None:
        """Check that a limit makes an epoch smaller but not empty, with the same rows."""
        total = sample.rows.num_rows
        for limit in dict.fromkeys((1, max(1, total // 3))):
            end = self._call_latest(sample.begin, limit=limit, until=sample.end)
            splits = self._call_splits(sample.begin, end, 2)
            rows = self._read_splits(self._source, splits)
            # Where splits do not know their rows, a gap may be all that is within the limit.
            has_gap = end != sample.begin and any(not split.exact for split in splits)
            if not rows.num_rows and not has_gap:
                self._fail_rule(
                    "limits",
                    f"with {counted(total, 'row')}, a limit of {limit} gives none, so a query "
                    "would never advance",
                    "latest must advance by at least one row if there is one.",
                )
            if self._exact and rows.num_rows > limit:
                self._fail_rule(
                    "limits",
                    f"a limit of {limit} gives {counted(rows.num_rows, 'row')}",
                    "Cut the rows there, or set exact_limits=False.",
                )
            expected = self._sorted_rows(self._first_rows(sample.rows, rows))
            self._check_equal(
                "limits", expected, self._sorted_rows(rows), f"a limit of {limit} gives other rows"
            )
        self._check_ranges(sample, max(1, total // 4))

    def _first_rows(self, whole: pa.Table, part: pa.Table) -> pa.Table:
        """Return the first rows of `whole`: as many as `part` has, in their order."""
        if self._within is None:
            return whole.slice(0, part.num_rows)
        left = Counter(part.column(self._within).to_pylist())
        first = []
        for row, partition in enumerate(whole.column(self._within).to_pylist()):
            left[partition] -= 1
            if left[partition] >= 0:
                first.append(row)
        return whole.take(pa.array(first, pa.int64()))

    def _sorted_rows(self, rows: pa.Table) -> pa.Table:
        """Sort rows by their order in the source, which differs between sizes of epochs."""
        if self._within is None:
            return rows
        return rows.take(pc.sort_indices(rows.column(self._within)))  # which is stable

    def _check_ranges(self, sample: _Range, limit: int) -> None:
        """Read range after range with a limit; check that no row is lost or read twice."""
        position, steps = sample.begin, []
        for _ in range(self._max_rows + 1):
            after = self._call_latest(position, limit=limit, until=sample.end)
            if after == position:
                break
            for later, earlier in ((after, position), (after, after)):
                if self._call_method("precedes", self._source.precedes, later, earlier):
                    self._fail_rule("positions", f"latest goes back from {earlier!r} to {later!r}")
            steps.append(self._read_splits(self._source, self._call_splits(position, after, 2)))
            position = after
        rows = pa.concat_tables([*steps, self._schema.empty_table()])
        self._check_equal(
            "continuing",
            self._sorted_rows(sample.rows),
            self._sorted_rows(rows),
            "read epoch by epoch, rows differ from those of a single epoch",
        )
        if position != sample.end:
            self._fail_rule(
                "until",
                f"after reading to the end, the position is {position!r}, but the end is "
                f"{sample.end!r}",
                "Return a value equal to until= if it was reached.",
            )
        if self._call_latest(position, until=sample.end) != position:
            self._fail_rule("until", "latest goes beyond until=")

    def _check_end(self, start: Position) -> None:
        """Check that a range's end holds when more rows arrive, with the same rows before it."""
        end = self._after_storage("end", self._call_method("end", self._source.end, start))
        until = self._call_latest(start, limit=self._max_rows, until=end)
        before = self._read_splits(self._source, self._call_splits(start, until, 2))
        if self._add is not None:
            self._add()
            again = self._read_splits(self._source, self._call_splits(start, until, 3))
            self._check_equal(
                "the rule", before, again, "after more rows arrived, earlier ones differ"
            )
            limited = self._call_latest(start, limit=self._max_rows, until=end)
            if limited != until:
                self._fail_rule("until", "rows that arrived later are before an earlier end")
            self._check_new_rows(end)

    def _check_new_rows(self, end: Position) -> None:
        """Check that rows that arrive after the position `end` are found."""
        position = end
        for _ in range(self._max_rows):
            after = self._call_latest(position, limit=self._max_rows)
            if after == position:
                break
            if self._read_splits(self._source, self._call_splits(position, after, 2)).num_rows:
                return
            position = after
        self._fail_rule(
            "latest", "rows that were added after an end are not found by reading from it"
        )

    def _check_resume(self, sample: _Range) -> None:
        """Check that a copy of the source continues from a stored position, like a new process."""
        middle = self._call_latest(
            sample.begin, limit=max(1, sample.rows.num_rows // 2), until=sample.end
        )
        rest = self._read_splits(self._source, self._call_splits(middle, sample.end, 1))
        if not self._is_outside_process():
            return
        other = self._pickled_copy()
        try:
            self._call_method("open", other.open, self._after_storage("latest", middle))
            splits = self._call_method("splits", other.splits, middle, sample.end, 2)
            self._check_equal(
                "continuing",
                rest,
                self._read_splits(other, splits),
                "after a restart, the rows differ",
            )
            if other.latest(middle, limit=self._max_rows, until=sample.end) == middle != sample.end:
                self._fail_rule("continuing", "after a restart, latest finds nothing more to read")
        finally:
            other.close()

    def _is_outside_process(self) -> bool:
        """Return whether the source's rows are outside this process's memory."""
        probe = self._pickled_copy()
        try:
            probe.open(None)
            start = probe.start()
            return bool(probe.latest(start, limit=1) != start)
        finally:
            probe.close()

    def _check_reports(self, sample: _Range) -> None:
        """Check that `lag`, `describe` and `committed` take the range's begin and end position."""
        for position in (sample.begin, sample.end):
            lag = self._call_method("lag", self._source.lag, position)
            if not isinstance(lag, Lag):
                self._fail_rule("lag", f"it is a value of type {type_name(lag)}")
            if min(lag.rows or 0, lag.size_bytes or 0) < 0:
                self._fail_rule("lag", f"it is negative: {lag}")
            shown = self._call_method("describe", self._source.describe, position)
            if not isinstance(shown, dict):
                self._fail_rule(
                    "describe", f"it returns a value of type {type_name(shown)}, not a dict"
                )
            self._after_storage("describe", shown)
            for _ in range(2):  # again at a restart
                self._call_method("committed", self._source.committed, position)

    def _check_closing(self) -> None:
        """Check that closing twice, and closing a source never opened, does no harm."""
        self._call_method("close", self._source.close)
        self._call_method("close", self._pickled_copy().close)
        identity: Any = self._call_method("identity", lambda: self._source.identity)
        if not isinstance(identity, str):
            self._fail_rule("identity", "it no longer exists once the source is closed")

    # -- calls, checked ---------------------------------------------------------------------------

    def _pickled_copy(self) -> Any:
        """Return a copy of the source, made by pickling, that was never opened."""
        return pickle.loads(self._unopened)  # noqa: S301  pickled by this check

    def _call_latest(self, position: Position, **options: Any) -> Position:
        """Return the result of `Source.latest`; raise if the call changes its arguments."""
        before = pickle.dumps(position)
        result = self._call_method("latest", lambda: self._source.latest(position, **options))
        if pickle.dumps(position) != before:
            self._fail_rule("positions", "latest modifies its argument position")
        return self._after_storage("latest", result)

    def _after_storage(self, method: str, value: Any) -> Any:
        """Return a value as it is after being stored in a commit record and loaded.

        `method`: method that returned it, for errors.
        """
        try:
            stored = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
        except Exception as error:
            raise self._rule_error(
                "positions",
                f"{method} returns a value that cannot be stored: {error_line(error)}",
                "Use numbers, strings, bytes, None, and lists and dicts of them.",
            ) from error
        if stored != value:
            self._fail_rule(
                "positions",
                f"{method} returns {value!r}, which becomes {stored!r} when stored and loaded",
                "Use numbers, strings, bytes, None, and lists (not tuples) and dicts of them.",
            )
        return stored

    def _call_splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return the result of `Source.splits`; raise if it has values other than `Split`."""
        splits = self._call_method("splits", self._source.splits, begin, end, parallelism)
        for split in splits:
            if not isinstance(split, Split):
                self._fail_rule("splits", f"one of them is a value of type {type_name(split)}")
        return list(splits)

    def _read_splits(
        self, source: Source, splits: Iterable[Split], columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the rows of splits, read in order.

        Raise if columns or types are not as requested.
        """
        names = list(self._schema.names) if columns is None else list(columns)
        expected = pa.schema([(name, self._schema.field(name).type) for name in names])
        batches = []
        for split in splits:
            for batch in self._call_method("read", lambda s=split: list(source.read(s, names))):
                if isinstance(batch, Unreadable):
                    if batch.rows.schema != source.unreadable:
                        self._fail_rule(
                            "unreadable rows", "their columns differ from the declared ones"
                        )
                    continue
                if not isinstance(batch, pa.RecordBatch):
                    self._fail_rule(
                        "columns",
                        f"read yields a value of type {type_name(batch)}, not a RecordBatch",
                    )
                seen = pa.schema([(field.name, field.type) for field in batch.schema])
                if seen != expected:
                    self._fail_rule(
                        "columns",
                        f"for the columns {expected.names}, read yields\n"
                        f"{seen}\n"
                        "instead of\n"
                        f"{expected}",
                    )
                batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=expected))
        return pa.Table.from_batches(batches, schema=expected)

    def _check_equal(self, rule: str, expected: pa.Table, actual: pa.Table, what: str) -> None:
        """Raise the error of a broken rule if two tables have different rows; NaN equals NaN.

        `what`: subject of the error.
        """
        if expected.num_rows != actual.num_rows:
            rows = counted(expected.num_rows, "row")
            self._fail_rule(rule, f"{what} ({actual.num_rows} instead of {rows})")
        for name in expected.schema.names:
            left, right = expected.column(name), actual.column(name)
            if left.equals(right):
                continue
            pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
            for number, (row, other) in enumerate(pairs):
                if repr(row) != repr(other):
                    self._fail_rule(
                        rule, f"{what} (row {number}, column {name!r}: {other!r} for {row!r})"
                    )

    def _call_method(self, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a method of the source; an error that it raises names the method."""
        try:
            return function(*arguments)
        except GodwitError:
            raise
        except Exception as error:
            raise self._rule_error(
                method, f"{method} raised {error_line(error)}", "See the cause of this error."
            ) from error

    def _fail_rule(self, rule: str, what: str, remedy: str = "") -> None:
        """Raise the error that the source breaks a rule; `what`: how, as text."""
        raise self._rule_error(rule, what, remedy)

    def _rule_error(self, rule: str, what: str, remedy: str = "") -> SourceError:
        """Return the error that the source breaks a rule; `what`: how, as text."""
        return SourceError(
            f"{type(self._source).__name__} breaks the contract of sources ({rule}): {what}.",
            remedy=remedy or "godwit.sources.source states the contract.",
            rule=rule,
        )
