"""Simple sinks: driver's memory, user's function, console, none.

A user's function gets a DataFrame, whose rows stay on the executors, or an Arrow table.
"""

from __future__ import annotations

import logging
import threading
import traceback
from itertools import islice
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from godwit.columns.signed import UNCHANGED
from godwit.model.errors import GodwitError, SinkError, UserFunctionError
from godwit.model.frames import user_class
from godwit.model.naming import function_name
from godwit.model.signatures import awaiting_hint, check_signature, passed_on_hint
from godwit.model.text import table, text_block
from godwit.sinks.changes import rows_of_table
from godwit.sinks.rows import (
    cast_batches,
    column_names,
    instants_in_utc,
    last_of_each_key,
    require_columns,
)
from godwit.sinks.sink import EpochOutput, Sink, SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from godwit.checkpoint.ownership import HistoryPoint

_SHOWN = 20
_logger = logging.getLogger("godwit")


@user_class
class MemorySink(Sink):
    """Sink for tests and notebooks that stores all rows in the driver's memory.

    Make one by `gw.sinks.memory`, and read it while the query runs or afterwards: `table` returns
    the current result, `epochs` the rows of each epoch.

    Examples
    --------
    >>> results = gw.sinks.memory()
    >>> results.epochs
    mappingproxy({})
    """

    _MEANT: ClassVar = dict.fromkeys(
        ("rows", "collect", "to_pandas", "toPandas", "to_pylist", "df", "results", "count"),
        "table(), the rows as a pyarrow.Table",
    )

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self._epochs: dict[int, pa.Table] = {}
        self._points: dict[int, HistoryPoint] = {}
        self._lock = threading.Lock()
        self._context: SinkContext | None = None

    def __repr__(self) -> str:
        rows = sum(table.num_rows for table in self.epochs.values())
        return f"<memory sink: {rows} rows of {len(self.epochs)} epochs>"

    def _repr_html_(self) -> str:
        """Return the first rows of the result as HTML, for notebooks."""
        if self._context is None:
            return text_block(repr(self))
        result = self.table()
        shown = result.slice(0, _SHOWN)
        note = f", the first {_SHOWN}" if result.num_rows > _SHOWN else ""
        rows = zip(*(column.to_pylist() for column in shown.columns), strict=True)
        return table(f"{result.num_rows} rows{note}", result.schema.names, rows)

    def open(self, context: SinkContext) -> None:
        """Set the columns of the query; drop stored rows of another query or of other columns."""
        with self._lock:
            if self._context is not None:
                was_ours = self._context.query_id == context.query_id
                self._epochs = self._matching_rows(context.schema) if was_ours else {}
            self._context = context
        self._refresh_view()

    def deliver(self, output: EpochOutput) -> None:
        """Store the rows of an epoch, unless it is stored already.

        An epoch with the same number but of another history of commits, as after a start from a
        backup, replaces the stored rows of this and later epochs.
        """
        if output.epoch in self._epochs and self._points.get(output.epoch) == output.point:
            return
        context = self._require_context()
        batches = list(cast_batches(output, context.schema, context.name))
        rows = pa.Table.from_batches(batches, schema=context.schema)
        with self._lock:
            if output.epoch in self._epochs:
                earlier = {e: rows for e, rows in self._epochs.items() if e < output.epoch}
                _logger.warning(
                    "Memory sink %r: epochs %d to %d were of another history of the query, and "
                    "are dropped.",
                    context.name,
                    output.epoch,
                    max(self._epochs),
                )
                self._epochs = earlier
            self._epochs[output.epoch] = rows
            self._points[output.epoch] = output.point
        self._refresh_view()

    @property
    def epochs(self) -> Mapping[int, pa.Table]:
        """Read-only mapping of epoch → its rows, in order of epochs.

        Examples
        --------
        >>> gw.sinks.memory().epochs
        mappingproxy({})
        """
        with self._lock:
            return MappingProxyType(dict(sorted(self._epochs.items())))

    def table(self, keys: str | Sequence[str] | None = None) -> pa.Table:
        """Return the current result: the newest row of every key, or of every window of a key.

        With ``output="complete"`` these are the rows of the newest epoch. Rows that functions or
        joins emitted have no key that identifies them, so without `keys` all of them are returned.
        Of changes and upserts it is the table that they make, without the column ``change``.

        Parameters
        ----------
        keys
            Columns that identify a row, of which only the newest is returned; by default the key
            columns, and the window.

        Raises
        ------
        SinkError
            If no query has opened the sink yet, or one of `keys` is not a column.

        Examples
        --------
        >>> try:
        ...     gw.sinks.memory().table()
        ... except gw.errors.SinkError as error:
        ...     print(error.message)
        This memory sink belongs to no query yet.
        """
        context = self._require_context()
        tables = list(self.epochs.values())
        if context.complete:
            tables = tables[-1:]
        rows = pa.concat_tables([context.schema.empty_table(), *tables])
        if context.kind != "rows" and not context.complete:
            identifying = context.table_keys if keys is None else column_names(keys)
            require_columns(context, identifying, "keys")
            if context.kind == "changes" or (
                identifying and UNCHANGED.name not in rows.schema.names
            ):
                return rows_of_table(rows, identifying if context.kind == "upserts" else None)
        if keys is None and () in context.unique_keys and not context.complete:
            return rows.slice(max(rows.num_rows - 1, 0))  # the result of a whole stream is one row
        default = () if context.complete else next(iter(context.unique_keys), ())
        key_columns = default if keys is None else column_names(keys)
        require_columns(context, key_columns, "keys")
        if not key_columns:
            return rows
        return rows.filter(pa.array(last_of_each_key(rows.select(list(key_columns)))))

    def _matching_rows(self, schema: pa.Schema) -> dict[int, pa.Table]:
        """Return epoch → stored rows in the time zone of `schema`; none if their columns differ."""
        if instants_in_utc(self._require_context().schema) != instants_in_utc(schema):
            return {}
        return {epoch: rows.cast(schema) for epoch, rows in self._epochs.items()}

    def _require_context(self) -> SinkContext:
        """Return the context of the query; raise if no query has opened the sink."""
        if self._context is None:
            raise SinkError(
                "This memory sink belongs to no query yet.",
                remedy="Give it to flow.sink(...) and start the flow, then read the table.",
            )
        return self._context

    def _refresh_view(self) -> None:
        """Update the sink's temporary view of the rows, if it has one; raise if that fails."""
        if self._name is None:
            return
        context = self._require_context()
        try:
            context.views.show(self._name, self.table())
        except Exception as error:
            raise SinkError(
                f"Memory sink {context.name!r} cannot keep view {self._name!r}: {error}.",
                remedy="Choose a plain identifier for the view and columns of types that Spark "
                "has, or leave the name out.",
                sink=context.name,
            ) from error


class ForeachSink(Sink):
    """Calls a function with every committed epoch, in order (see `godwit.sinks.foreach`)."""

    rows_are: ClassVar[str] = "a DataFrame"

    def __init__(self, fn: Callable[[Any, int], object]) -> None:
        if not callable(fn):
            raise SinkError(
                f"The foreach sink was given {fn!r}, which cannot be called.",
                remedy=f"Give a function of {self.rows_are} and an epoch.",
            )
        check_signature("The foreach sink", fn, "function(rows, epoch)", error=SinkError)
        self._fn = fn

    def __repr__(self) -> str:
        return f"<foreach sink: {function_name(self._fn)}>"

    def open(self, context: SinkContext) -> None:
        self._name, self._schema = context.name, context.schema

    def argument_of(self, output: EpochOutput) -> Any:
        """Return an epoch's rows as the user's function takes them: a DataFrame."""
        return output.dataframe()

    def number_of(self, output: EpochOutput) -> int:
        """Return the number that the user's function takes: the epoch's."""
        return output.epoch

    def deliver(self, output: EpochOutput) -> None:
        """Call the user's function with the epoch's rows and number.

        Raises `UserFunctionError`, with the traceback, if the function raises.
        """
        rows = self.argument_of(output)
        try:
            result = self._fn(rows, self.number_of(output))
        except GodwitError:
            raise
        except Exception as error:
            name = getattr(self._fn, "__qualname__", repr(self._fn))
            hint = passed_on_hint(self._fn, error, "function(rows, epoch)")
            raise UserFunctionError(
                f"Foreach sink {self._name!r}: function {name} raised {type(error).__name__} on "
                f"epoch {output.epoch}: {error}.",
                remedy="Correct the function and start the query again; the epoch will come again."
                f"{hint}\n{''.join(traceback.format_exception(error))}",
                sink=self._name,
                epoch=output.epoch,
            ) from error
        if hint := awaiting_hint(result, is_plain=True):
            raise UserFunctionError(
                f"Foreach sink {self._name!r}: function {function_name(self._fn)!r} returned a "
                f"{type(result).__name__}, which is never awaited.",
                remedy=hint.rstrip(),
                sink=self._name,
                epoch=output.epoch,
            )


class ForeachTableSink(ForeachSink):
    """Calls a function with every epoch as an Arrow table (see `godwit.sinks.foreach_table`)."""

    rows_are = "an Arrow table"

    def argument_of(self, output: EpochOutput) -> pa.Table:
        """Return an epoch's rows as the user's function takes them: an Arrow table."""
        return pa.Table.from_batches(
            cast_batches(output, self._schema, self._name), schema=self._schema
        )


class ConsoleSink(Sink):
    """Prints a table of each epoch's first rows on the driver (see `godwit.sinks.console`)."""

    def __init__(self, limit: int = 20, *, file: IO[str] | None = None) -> None:
        if limit < 0:
            raise SinkError(
                f"The console sink cannot print {limit} rows.", remedy="Give a limit of 0 or more."
            )
        self._limit = limit
        self._file = file

    def __repr__(self) -> str:
        return f"<console sink: {self._limit} rows of each epoch>"

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._printed = -1
        # Standard output is looked up now: it may have been redirected since the flow was built.
        from rich.console import Console  # noqa: PLC0415  rich is optional

        self._console = Console(file=self._file)

    def deliver(self, output: EpochOutput) -> None:
        """Print the first rows of the epoch, unless this run has printed it."""
        from rich.table import Table  # noqa: PLC0415  rich is optional
        from rich.text import Text  # noqa: PLC0415

        if output.epoch <= self._printed:
            return
        # Text, here and in the cells: rich would take [brackets] in a str for markup.
        title = Text(f"{self._context.name}, epoch {output.epoch}, {output.num_rows:,} rows")
        table = Table()
        for field in output.schema:
            table.add_column(
                Text(field.name), justify="right" if _is_number(field.type) else "left"
            )
        for row in islice(_row_tuples(output), self._limit):
            table.add_row(*(Text("null" if value is None else str(value)) for value in row))
        self._console.print(title, table, sep="\n")
        hidden = output.num_rows - self._limit
        if hidden > 0:
            self._console.print(f"and {hidden:,} more")
        self._printed = output.epoch


class NoopSink(Sink):
    """Discards all rows, which are not staged either."""

    def __repr__(self) -> str:
        return "<noop sink>"

    @property
    def wants_rows(self) -> bool:
        """False: lanes need not store the rows, which are discarded."""
        return False

    def open(self, context: SinkContext) -> None:
        """No-op: any columns are accepted."""

    def deliver(self, output: EpochOutput) -> None:
        """No-op: lanes have discarded the rows."""


def _row_tuples(output: EpochOutput) -> Iterator[tuple[object, ...]]:
    """Yield an epoch's rows as tuples of Python values, converted in small parts."""
    for batch in output.batches():
        for start in range(0, batch.num_rows, 100):
            part = batch.slice(start, 100)
            yield from zip(*(column.to_pylist() for column in part.columns), strict=True)


def _is_number(dtype: pa.DataType) -> bool:
    """Return whether values of a type are numbers."""
    return bool(
        pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)
    )
