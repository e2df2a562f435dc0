"""History, then live rows, as one source: `gw.sources.sequence`.

A position says which of the two sources is being read.  The end of the first one is looked up when
a query begins, and so is the start of the second one; both are in every position of the first part,
so a restart changes neither.  An epoch reads rows of one source.

A row is read from one source only: with ``cut=`` the first source gives the rows for which the
condition is true, and the second one all others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.signed import CHANGE, UNCHANGED
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import listing, type_name
from godwit.sources.source import Lag, Source, Split, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.sources.source import Position

_OLD, _NEW = 0, 1
_FILLED: Final = {CHANGE.name: 1, UNCHANGED.name: None}  # no scalars, which load pandas


@user_call
def sequence(
    old: Source, new: Source, *, cut: tuple[str, Any] | pc.Expression | None = None
) -> Source:
    """Read history from one source, then live rows from another, as one source.

    Parameters
    ----------
    old
        Source that is read first, up to the end that it has when a new query begins; rows that it
        gets later are not read.
    new
        Source that is read then, from its start when the query began. It has the same columns, of
        the same types. If it has changes or upserts, `old` may have plain rows, which are inserted.
    cut
        Boundary, if both sources have some of the same rows: a column and a value, as in
        ``("offset", 1200)``, or a condition such as ``pc.field("ts") < moment`` of
        ``pyarrow.compute``. Rows of `old` are read if the column is less than the value (if the
        condition is true), rows of `new` if it is not, or null. `old` must have all rows before the
        cut when the query begins. ``None``: all rows of both.

    Raises
    ------
    InvalidFlowError
        If the columns, kinds or options of the sources differ, or `cut` does not fit the columns.

    Examples
    --------
    >>> history = gw.sources.memory("id long", [(1,), (2,), (3,)], name="history")
    >>> live = gw.sources.memory("id long", [(3,), (4,)], name="live")
    >>> flow = gw.Flow("ids")
    >>> ids = flow.source("ids", gw.sources.sequence(history, live, cut=("id", 3)))
    >>> flow.sink("ids", ids, gw.sinks.noop())
    >>> gw.testing.run(flow).rows("ids")["id"].to_pylist()
    [1, 2, 3, 4]
    """
    return SequenceSource(old, new, cut)


class SequenceSource(Source):
    """Rows of one source up to its end, then those of another (see `godwit.connect.sequence`)."""

    def __init__(self, old: Source, new: Source, cut: object) -> None:
        for name, source in (("old", old), ("new", new)):
            if not isinstance(source, Source):
                raise InvalidFlowError(
                    f"A sequence of sources has {name}= of type {type_name(source)}.",
                    remedy="Give two sources of gw.sources.",
                )
        if old is new:
            raise InvalidFlowError(
                f"A sequence of sources has the source {old.identity!r} twice.",
                remedy="Make two sources.",
            )
        self._sources = (old, new)
        self._schema = new.schema
        self._fits = _check_fit(old, new)
        self.kind, self.arrival_time = new.kind, new.arrival_time
        self.table_keys = new.table_keys or old.table_keys
        self.unreadable = new.unreadable or old.unreadable
        self.rejects = new.rejects or old.rejects
        self._cut_text = ""
        self._conditions: tuple[pc.Expression | None, pc.Expression | None] = (None, None)
        if cut is not None:
            self._cut_text, self._conditions = _conditions(cut, self._schema)
        self._start: Position | None = None

    def __repr__(self) -> str:
        return f"<{self.identity}>"

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind the sink; copies read splits only."""
        return {**self.__dict__, "rejects": None}

    @property
    def parts(self) -> tuple[Source, ...]:
        """Sources that are no sequences themselves."""
        parts = [getattr(source, "parts", (source,)) for source in self._sources]
        return (*parts[0], *parts[1])

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.datasets))

    @property
    def schema(self) -> pa.Schema:
        """Columns of the second source."""
        return self._schema

    @property
    def identity(self) -> str:
        """Both sources, and the cut between them."""
        old, new = self._sources
        cut = f" (cut at {self._cut_text})" if self._cut_text else ""
        return f"{old.identity}, then {new.identity}{cut}"

    # -- positions --------------------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """Open the sources that are still to be read."""
        old, new = self._sources
        self._start = None
        if position is not None:
            if position["part"] == _OLD:
                old.open(position["position"])
                new.open(position["new"])
            else:
                new.open(position["position"])
            return
        old.open(None)
        new.open(None)
        begin = old.start()
        self._start = self._in_old(begin, old.end(begin), new.start())

    def start(self) -> Position:
        if self._start is None:
            self.open(None)
        return self._start

    def _in_old(self, position: Position, end: Position, new: Position) -> Position:
        """Return a position in the first source; at its end, the start of the second one."""
        if position == end:
            return {"part": _NEW, "position": new}
        return {"part": _OLD, "position": position, "end": end, "new": new}

    def precedes(self, position: Position, other: Position) -> bool:
        if position["part"] != other["part"]:
            return bool(position["part"] < other["part"])
        source = self._sources[position["part"]]
        return source.precedes(position["position"], other["position"])

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after an epoch, in the source that `position` is in or the next."""
        old, new = self._sources
        begin = position["position"]
        if position["part"] == _OLD:
            end = position["end"]
            is_inside = until is not None and until["part"] == _OLD
            bound = until["position"] if until is not None and is_inside else end
            reached = old.latest(begin, limit=limit, until=bound)
            if reached != begin:
                return self._in_old(reached, end, position["new"])
            if is_inside:
                return position
            begin = position["new"]
        bound = None if until is None else until["position"]
        reached = new.latest(begin, limit=limit, until=bound)
        return position if reached == begin else {"part": _NEW, "position": reached}

    def end(self, position: Position) -> Position:
        new = self._sources[_NEW]
        if position["part"] == _OLD:
            return {"part": _NEW, "position": new.end(position["new"])}
        end = new.end(position["position"])
        return position if end == position["position"] else {"part": _NEW, "position": end}

    # -- rows -------------------------------------------------------------------------------------

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Divide the rows between two positions into splits of the sources that have them."""
        first = begin["position"]
        splits: list[tuple[int, Split]] = []
        if begin["part"] == _OLD:
            last = end["position"] if end["part"] == _OLD else begin["end"]
            parts = self._sources[_OLD].splits(first, last, parallelism)
            splits += [(_OLD, split) for split in parts]
            first = begin["new"]
        if end["part"] == _NEW:
            parts = self._sources[_NEW].splits(first, end["position"], parallelism)
            splits += [(_NEW, split) for split in parts]
        return [
            replace(
                split,
                payload=(part, split),
                exact=split.exact and self._conditions[part] is None,
            )
            for part, split in splits
        ]

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Unreadable]:
        """Yield the rows of a split that the cut leaves to its source."""
        part, inner = split.payload
        source, condition = self._sources[part], self._conditions[part]
        read_names = columns
        if condition is not None:  # a condition does not say which columns it reads
            read_names = self._schema.names
        missing_names = self._fits if part == _OLD else ()
        schema = pa.schema([self._schema.field(name) for name in read_names])
        for batch in source.read(inner, [name for name in read_names if name not in missing_names]):
            if isinstance(batch, Unreadable):
                yield batch
                continue
            rows = _with_columns(batch, schema) if missing_names else batch
            if condition is None:
                yield rows
                continue
            chosen = pa.Table.from_batches([rows]).filter(condition).select(list(columns))
            yield from chosen.to_batches()

    # -- reports ----------------------------------------------------------------------------------

    def lag(self, position: Position) -> Lag:
        old, new = self._sources
        if position["part"] == _NEW:
            return new.lag(position["position"])
        lags = (old.lag(position["position"]), new.lag(position["new"]))
        oldest = [lag.oldest_us for lag in lags if lag.oldest_us is not None]
        return Lag(
            rows=_total([lag.rows for lag in lags]),
            size_bytes=_total([lag.size_bytes for lag in lags]),
            oldest_us=min(oldest, default=None),
        )

    def committed(self, position: Position) -> None:
        self._sources[position["part"]].committed(position["position"])

    def take_reports(self) -> list[str]:
        return [report for source in self._sources for report in source.take_reports()]

    def describe(self, position: Position) -> dict[str, Any]:
        source = self._sources[position["part"]]
        return {"reads": source.identity, **source.describe(position["position"])}

    def close(self) -> None:
        """Close both sources."""
        for source in self._sources:
            source.close()


def _check_fit(old: Source, new: Source) -> tuple[str, ...]:
    """Raise if two sources do not have the same rows; return columns that the first one lacks.

    A first source of plain rows may lack the columns of changes: its rows are inserted.
    """
    where = f"The sources {old.identity!r} and {new.identity!r}"
    missing_names: tuple[str, ...] = ()
    if old.kind != new.kind:
        if old.kind != "rows":
            raise InvalidFlowError(
                f"{where} are a sequence of {old.kind} and {new.kind}.",
                remedy="Let both have the same kind of rows, or the first one plain rows.",
            )
        missing_names = tuple(name for name in _FILLED if name in new.schema.names)
    differences = []
    types = {field.name: field.type for field in new.schema}
    for field in old.schema:
        new_type = types.pop(field.name, None)
        if new_type is None or field.name in missing_names or not new_type.equals(field.type):
            differences.append(f"{field.name} ({field.type}, then {new_type or 'missing'})")
    differences += [
        f"{name} (missing, then {dtype})"
        for name, dtype in types.items()
        if name not in missing_names
    ]
    if differences:
        raise InvalidFlowError(
            f"{where} have other columns: {', '.join(differences)}.",
            remedy="Choose the same columns, with the same types, in both: by columns= of a table, "
            "include= or schema=.",
        )
    for name in ("unreadable", "rejects", "table_keys"):
        old_value, new_value = getattr(old, name), getattr(new, name)
        if old_value and new_value and old_value != new_value:
            raise InvalidFlowError(
                f"{where} do not agree in {name}.",
                remedy='Give both the same rejects= and keys=, or on_bad="refuse" to one of them.',
            )
    return missing_names


def _conditions(cut: object, schema: pa.Schema) -> tuple[str, tuple[pc.Expression, pc.Expression]]:
    """Return the text of a cut, and the conditions for rows of the first and second source."""
    match cut:
        case pc.Expression():
            is_old, text = cut, str(cut)
        case (str(column), None):
            raise InvalidFlowError(
                f"A sequence of sources is cut at {column!r} = None, and no row is before that.",
                remedy="Give the first value of live rows, or leave cut= out.",
            )
        case (str(column), value):
            if column not in schema.names:
                raise InvalidFlowError(
                    f"A sequence of sources is cut at column {column!r}, and its columns are "
                    f"{listing(schema.names)}.",
                    remedy="Name one of the columns.",
                )
            is_old, text = pc.field(column) < pc.scalar(value), f"{column} {value!r}"
        case _:
            raise InvalidFlowError(
                f"A sequence of sources has cut={cut!r}.",
                remedy='Give a column and a value, as in ("offset", 1200), or a condition of '
                "pyarrow.compute.",
            )
    try:
        is_old = pc.coalesce(is_old, pc.scalar(False))
        # Without a row, kernels that do not fit the types are not called.
        nulls = [pa.nulls(1, field.type) for field in schema]
        pa.table(nulls, names=schema.names).filter(is_old)
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        raise InvalidFlowError(
            f"A sequence of sources has a cut= that does not fit its columns: "
            f"{str(error).splitlines()[0].removesuffix('.')}.",
            remedy="Compare columns with values of their type, such as times with a datetime that "
            "has a time zone.",
        ) from error
    return text, (is_old, ~is_old)


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of changes that they lack: they are inserted."""
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index >= 0:
            columns.append(batch.column(index))
        else:
            scalar = pa.scalar(_FILLED[field.name], field.type)
            columns.append(pa.repeat(scalar, batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _total(numbers: Sequence[int | None]) -> int | None:
    """Return a sum; ``None`` if a number is unknown."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
