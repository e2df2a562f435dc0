"""Stand-ins for streaming DataFrames, so that flows can be explained and tested without Spark.

Maps before the first keyed operator run on DataFrames.  A stand-in does what needs no more than
names of columns; everything else needs a Spark session, and is done by one where it is there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from godwit.columns.types import to_schema
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import did_you_mean, listing
from godwit.plan.maps import map_dataframe

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    import pyarrow as pa

    from godwit.columns.types import SchemaLike

_WAYS_OUT = (
    "Start a Spark session before (SparkSession.builder.getOrCreate()), which then runs it; or do "
    "it behind a keyed operator, where maps get Arrow tables; or test the map by itself, and play "
    "the flow on rows as it leaves them."
)


class NeedsSessionError(InvalidFlowError, AttributeError):
    """A map called a method of a stand-in that needs a Spark session."""


class StandIn:
    """Stand-in for a streaming DataFrame: its columns, and during a test the rows of one epoch.

    Maps may call `select`, `drop` and `withColumnRenamed` on it, with names of columns.
    """

    isStreaming = True  # noqa: N815  PySpark's name

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __repr__(self) -> str:
        return f"StandIn({', '.join(f'{f.name} {f.type}' for f in self.schema)})"

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the columns."""
        return self.table.schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def select(self, *columns: Any) -> Self:
        """Return the rows with only these columns, given by name."""
        return type(self)(
            self.table.select([self._checked_name(column, "select") for column in columns])
        )

    def drop(self, *columns: Any) -> Self:
        """Return the rows without these columns; raise for columns not given by name."""
        for column in columns:
            if not isinstance(column, str):
                raise _needs_session_error("drop with a Column")
        return type(self)(self.table.select([name for name in self.columns if name not in columns]))

    def withColumnRenamed(self, existing: str, new: str) -> Self:  # noqa: N802  PySpark's name
        """Return the rows with the column `existing` renamed to `new`."""
        names = [new if name == existing else name for name in self.columns]
        return type(self)(self.table.rename_columns(names))

    def _checked_name(self, column: Any, call: str) -> str:
        """Return the name of a column; raise if it is unknown or no text. `call`: for the error."""
        if not isinstance(column, str) or column == "*":
            raise _needs_session_error(f"{call} with a Column")
        if column not in self.columns:
            raise InvalidFlowError(
                f"There is no column {column!r} to {call}.",
                remedy=f"{did_you_mean(column, self.columns)}The columns are "
                f"{listing(self.columns)}.",
                column=column,
            )
        return column

    def __getitem__(self, name: Any) -> Any:
        raise _needs_session_error(f"a Column ({name!r})")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _needs_session_error(name)


def _needs_session_error(what: str) -> NeedsSessionError:
    """Return the error that a call (`what`, as text) needs a Spark session."""
    return NeedsSessionError(
        f"A stand-in for a DataFrame cannot do {what}: that needs Spark.", remedy=_WAYS_OUT
    )


@user_call
def stream(schema: SchemaLike) -> Any:
    """Make a stand-in for a streaming DataFrame, for ``flow.source`` in tests without Spark.

    Parameters
    ----------
    schema
        Columns: text such as ``"symbol string, price double"``, a dict of column name → type, an
        Arrow schema or a PySpark ``StructType``.

    Returns
    -------
    StandIn
        It has columns and no rows. A flow over it can be explained and tested by `gw.testing.run`,
        but not started.

    Raises
    ------
    InvalidFlowError
        If the schema is not valid.

    Examples
    --------
    >>> planes = gw.Flow("planes").source("planes", gw.testing.stream("plane string, seats int"))
    >>> planes.key_by("plane").compute(seats=gw.last("seats"))
    <Stream of flow 'planes': operator 'planes_seats_by_plane'>
    """
    return StandIn(to_schema(schema, where="The schema of a stream").empty_table())


def is_stand_in(dataframe: object) -> TypeGuard[StandIn]:
    """Return whether a source's DataFrame is a stand-in."""
    return isinstance(dataframe, StandIn)


def map_rows(
    source: str, maps: tuple[Callable[[Any], Any], ...], dataframe: Any, table: pa.Table
) -> pa.Table:
    """Return the rows of an epoch after a source's DataFrame maps.

    `dataframe`: the source's: a stand-in, or a DataFrame, whose session runs the maps.
    """
    if not maps:
        return table
    if not is_stand_in(dataframe):
        return _apply_maps(source, maps, dataframe.sparkSession.createDataFrame(table)).toArrow()
    try:
        return _apply_maps(source, maps, StandIn(table)).table
    except InvalidFlowError as error:
        session = _active_session()
        if session is None:
            raise
        try:
            return _apply_maps(source, maps, session.createDataFrame(table)).toArrow()
        except InvalidFlowError:
            cause = error.__cause__
            if isinstance(cause, InvalidFlowError) and not isinstance(cause, NeedsSessionError):
                # A mistake that needs no session to see has one answer, with and without it.
                raise error from cause
            raise


def _apply_maps(source: str, maps: tuple[Callable[[Any], Any], ...], frame: Any) -> Any:
    """Return a frame after a source's maps; an error of a map that needs Spark has remedies."""
    try:
        return map_dataframe(source, maps, frame)
    except InvalidFlowError as error:
        cause = error.__cause__
        # Without a session, pyspark.sql.functions raise whatever they raise.
        if cause is None or isinstance(cause, InvalidFlowError) or not is_stand_in(frame):
            raise
        raise InvalidFlowError(
            error.message, remedy=f"If it needs Spark: {_WAYS_OUT}", **error.context
        ) from cause


def _active_session() -> Any:
    """Return the active Spark session; ``None`` if there is none. Does not import Spark."""
    sql = sys.modules.get("pyspark.sql")
    return None if sql is None else sql.SparkSession.getActiveSession()
