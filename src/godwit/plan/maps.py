"""The user's maps: over DataFrames on rows of Spark's, over Arrow tables on all others.

Spark knows the columns of a DataFrame.  Rows of Godwit's own sources, and what keyed operators
emit, are Arrow tables.  A lane must know the columns of an Arrow map's result before there are any
rows, so such a map has a schema: the one the user gave, or what the function makes of a table
without rows.  Every result is held against it, so a function that answers differently for some rows
fails there and not downstream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.columns.types import plain_schema
from godwit.model.errors import GodwitError, InvalidFlowError, UserFunctionError
from godwit.model.frames import user_traceback
from godwit.model.naming import check_column_names, error_line, function_name, listing, type_name
from godwit.model.signatures import awaiting_hint, passed_on_hint
from godwit.operators.failed_calls import MAX_SEARCH_CALLS, FailedCalls, is_divertible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # a function may have no hash
class ArrowMap:
    """A user's function over Arrow tables, with the columns of its result."""

    feed: str  # keyed operator whose output it maps, or source whose rows
    is_source: bool = False  # it is a source
    function: Callable[[pa.Table], pa.Table]
    schema: pa.Schema  # columns of the result
    failures_to: str = ""  # sink of the rows for which it fails; empty: an error stops the epoch

    @property
    def name(self) -> str:
        """Name of the user's function."""
        return function_name(self.function)

    def apply_or_divert(
        self, table: pa.Table, divert: Callable[[ArrowMap, pa.RecordBatch], object]
    ) -> pa.Table:
        """Return the map's rows as `apply` does; `divert` gets rows for which it fails, if any.

        Tables are parts of an epoch's rows that the user does not choose: so, if the function fails
        for a table, it is called for both halves of it, until it fails for single rows, or
        `MAX_SEARCH_CALLS` calls were made. `divert` gets the columns `failed_calls.FAILED`.
        """
        if not self.failures_to:
            return self.apply(table)
        try:
            return self.apply(table)
        except UserFunctionError as error:
            _check_divertible(error)
        failed, calls = FailedCalls(self.feed, table), 1
        parts: list[pa.Table] = []
        spans = [(0, table.num_rows // 2), (table.num_rows // 2, table.num_rows)]
        while spans:
            first, end = spans.pop(0)
            if first == end:
                continue
            calls += 1
            try:
                parts.append(self.apply(table.slice(first, end - first)))
            except UserFunctionError as error:
                _check_divertible(error)
                middle = (first + end) // 2
                if end - first > 1 and calls < MAX_SEARCH_CALLS:
                    spans[:0] = [(first, middle), (middle, end)]
                else:
                    failed.add(self.function, error.__cause__ or error, (first, end))
        diverted = failed.to_batch()
        if diverted is not None:
            divert(self, diverted)
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def apply(self, table: pa.Table) -> pa.Table:
        """Call the user's function; return its rows with exactly the columns of `schema`.

        Columns may come back in another order, and in types that cast to the right ones without
        loss.
        """
        where = f"Map {self.name!r} {_position_text(self.feed, self.is_source)}"
        context = _error_context(self.function, self.feed, self.is_source)
        try:
            result = self.function(table)
        except (Exception, SystemExit) as error:
            text = user_traceback(error)
            raise UserFunctionError(
                f"{where} raised {_error_text(error)}.",
                remedy=f"Correct the function{_exit_hint(error)}."
                f"{passed_on_hint(self.function, error, 'map(rows)')} Its traceback is:\n{text}",
                **context,
            ) from error
        if not isinstance(result, pa.Table):
            raise UserFunctionError(
                f"{where} returned a value of type {type_name(result)}.",
                remedy=f"{awaiting_hint(result, is_plain=True)}Return a pyarrow.Table.",
                **context,
            )
        if sorted(result.column_names) != sorted(self.schema.names):
            raise UserFunctionError(
                f"{where} returned columns {listing(result.column_names)} where "
                f"{listing(self.schema.names)} were expected.",
                remedy="Return the same columns for all rows, or give map the schema it returns "
                "(schema=).",
                **context,
            )
        try:
            return result.select(self.schema.names).cast(self.schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise UserFunctionError(
                f"{where} returned {_one_line(result.schema)}, which does not become "
                f"{_one_line(self.schema)}: {error}.",
                remedy="Return the same types for all rows, or give map the schema it returns "
                "(schema=).",
                **context,
            ) from error


def _check_divertible(error: UserFunctionError) -> None:
    """Raise the error of a map's call unless it may be about the rows of the call."""
    if error.__cause__ is not None and not is_divertible(error.__cause__):
        raise error


def bind_map(
    function: Callable[[pa.Table], pa.Table],
    *,
    feed: str,
    inputs: pa.Schema,
    schema: pa.Schema | None,
    is_source: bool = False,
    failures_to: str = "",
) -> ArrowMap:
    """Return a map over Arrow tables, with the columns of its result.

    Without a `schema`, the columns are found by calling it on a table of `inputs` without rows.
    `feed`: name of the operator (`is_source`: of the source) before the map. `failures_to`: sink of
    the rows for which it fails.
    """
    if schema is None:
        where = f"The map {function_name(function)!r} {_position_text(feed, is_source)}"
        schema = _infer_schema(function, where, _error_context(function, feed, is_source), inputs)
    check_column_names(schema.names, f"The result of the map {function_name(function)!r}")
    return ArrowMap(
        feed=feed,
        is_source=is_source,
        function=function,
        schema=plain_schema(schema),
        failures_to=failures_to,
    )


def _position_text(feed: str, is_source: bool) -> str:
    """Return the text, for errors, that says which source or operator is before a map."""
    return f"on source {feed!r}" if is_source else f"after operator {feed!r}"


def _error_context(function: Callable[..., object], feed: str, is_source: bool) -> dict[str, str]:
    """Return the fields of errors about a map: its function, and `feed` as in `bind_map`."""
    kind = "source" if is_source else "operator"
    return {kind: feed, "function": function_name(function)}


def map_dataframe(
    source: str, maps: Iterable[Callable[[DataFrame], DataFrame]], dataframe: DataFrame
) -> DataFrame:
    """Return the DataFrame of a source, or of one epoch of it, after its maps.

    Errors name the map.
    """
    for function in maps:
        where = f"Map {function_name(function)!r} on source {source!r}"
        context = _error_context(function, source, is_source=True)
        try:
            result: object = function(dataframe)
        except (Exception, SystemExit) as error:
            if isinstance(error, GodwitError):  # of a stand-in
                raise InvalidFlowError(
                    f"{where}: {error.message}", remedy=error.remedy, **context
                ) from error
            raise InvalidFlowError(
                f"{where} raised {error_line(error)}.",
                remedy=f"Correct the map{_exit_hint(error)}; it gets a DataFrame of columns "
                f"{listing(dataframe.columns)}.",
                **context,
            ) from error
        if not isinstance(result, type(dataframe)):
            raise InvalidFlowError(
                f"{where} returned a value of type {type_name(result)}.",
                remedy=f"{awaiting_hint(result, is_plain=True)}A map before a keyed operator "
                "gets a DataFrame and returns one.",
                **context,
            )
        if dataframe.isStreaming and not result.isStreaming:
            raise InvalidFlowError(
                f"{where} returned a DataFrame that is not streaming.",
                remedy="Return a DataFrame made from the streaming one that it gets.",
                **context,
            )
        dataframe = result
    return dataframe


def _infer_schema(
    function: Callable[[pa.Table], pa.Table],
    where: str,
    context: dict[str, str],
    inputs: pa.Schema,
) -> pa.Schema:
    """Return a map's columns, found by calling the function on a table without rows.

    `where`: the map, for errors. `context`: their fields.
    """
    remedy = (
        "Make it work on a table without rows, or give the columns it returns, as in "
        'map(fn, schema="symbol string, price double").'
    )
    try:
        result = function(inputs.empty_table())
    except (Exception, SystemExit) as error:
        raise InvalidFlowError(
            f"{where} raised {type(error).__name__} on an empty table of columns "
            f"{_one_line(inputs)}: {error}.",
            remedy=remedy,
            **context,
        ) from error
    if not isinstance(result, pa.Table):
        raise InvalidFlowError(
            f"{where} returned a value of type {type_name(result)}.",
            remedy="On a source of Godwit's own, and after a keyed operator, a map gets a "
            "pyarrow.Table and returns one; maps over DataFrames, of sources that are DataFrames, "
            "come before key_by.",
            **context,
        )
    if result.num_columns == 0:
        raise InvalidFlowError(f"{where} returned no columns.", remedy=remedy, **context)
    for field in result.schema:
        if pa.types.is_null(field.type):
            raise InvalidFlowError(
                f"{where} left the type of its column {field.name!r} open on an empty table.",
                remedy='Give the columns it returns, as in map(fn, schema="symbol string, price '
                'double").',
                **context,
            )
    return result.schema


def _error_text(error: BaseException) -> str:
    """Return the type and text of the error that a user's map raised."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _exit_hint(error: BaseException) -> str:
    """Return a hint for errors if the user's map called ``sys.exit``; else empty."""
    return (
        " (query.stop() ends a query, and not sys.exit())" if isinstance(error, SystemExit) else ""
    )


def _one_line(schema: pa.Schema) -> str:
    """Return the columns of a schema on one line."""
    return "(" + ", ".join(f"{field.name} {field.type}" for field in schema) + ")"
