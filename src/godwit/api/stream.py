"""Streams: what a user chains calls on.

A stream is an immutable value: each call returns a new one and changes nothing, so one stream may
feed any number of operators and sinks.  Mistakes that need no knowledge of columns are found
here, in the line that makes them; the others when the flow is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from godwit.api.call_checks import (
    check_formerly,
    check_function,
    check_keys,
    check_late,
    describe,
)
from godwit.api.calls import no_such_call
from godwit.api.keyed_stream import KeyedStream
from godwit.columns.types import SchemaLike, to_schema
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import default_name, type_name
from godwit.model.time_lengths import microseconds
from godwit.plan.nodes import (
    DropDuplicatesNode,
    MapNode,
    SourceNode,
    StreamNode,
    UnionNode,
    branches_of,
    sources_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.api.flow import LogicalFlow
    from godwit.model.time_lengths import Duration

__all__ = ["Stream"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stream:
    """Rows that flow: from a source, out of a map, or out of a keyed operator.

    `Flow.source` makes the first one; nobody calls this class.
    """

    flow: LogicalFlow
    node: StreamNode

    def __repr__(self) -> str:
        return f"<Stream of flow {self.flow.name!r}: {describe(self.node)}>"

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            raise no_such_call(name, f"A stream ({describe(self.node)})", keyed=False)

    @user_call
    def map(self, function: Callable[[Any], Any], *, schema: SchemaLike | None = None) -> Stream:
        """Transform the rows.

        Parameters
        ----------
        function
            Before a keyed operator: DataFrame to DataFrame, over the rows of one epoch; any Spark
            SQL that needs no state of its own. After one: Arrow table to Arrow table, over the
            rows that one lane emits in one epoch, in that lane.
        schema
            Columns that an Arrow function returns (see `godwit.columns.types.to_schema`). If left
            out, the function is called on a table without rows to find them.

        Raises
        ------
        InvalidFlowError
            If `function` cannot be called, a schema is given for a function over DataFrames, or
            the stream is a union of sources with operators.

        Examples
        --------
        >>> flights.map(lambda df: df.where("arr_delay is not null"))  # doctest: +SKIP
        """
        where = f"map on {describe(self.node)}"
        check_function(function, where, "map(lambda df: df.where(...))")
        of_sources = {isinstance(b.feed, SourceNode) for b in branches_of(self.node)}
        if len(of_sources) > 1:
            raise InvalidFlowError(
                f"{where} would get DataFrames of sources, and Arrow tables of operators.",
                remedy="Map each of the streams before union(...).",
            )
        if schema is not None and True in of_sources:
            raise InvalidFlowError(
                f"{where} was given a schema, but Spark knows the columns of a DataFrame.",
                remedy="Leave schema= out; it is for maps after a keyed operator.",
            )
        columns = None
        if schema is not None:
            columns = to_schema(schema, where=f"The schema of {where}")
        return Stream(self.flow, MapNode(upstream=self.node, function=function, schema=columns))

    @user_call
    def union(self, *others: Stream) -> Stream:
        """Take the rows of this stream and of others with the same columns for one stream.

        An operator on it has one state, whichever stream a row came by. Rows of one key keep the
        order that they have within each source; between sources there is none. By event time, the
        source that is furthest behind says what is over (see ``idle=`` of `Flow.source`).

        Parameters
        ----------
        *others
            Streams of this flow. Their columns must have the same names and types, in the same
            order; that is seen when the flow is explained or started.

        Raises
        ------
        InvalidFlowError
            If there is no other stream, one is something else, or one is of another flow.

        Examples
        --------
        >>> buses.union(trams, ferries).key_by("line")  # doctest: +SKIP
        """
        where = f"union on {describe(self.node)}"
        if not others:
            raise InvalidFlowError(
                f"{where} names no other stream.", remedy="Name one, as in buses.union(trams)."
            )
        for other in others:
            if not isinstance(other, Stream):
                raise InvalidFlowError(
                    f"{where} was given a value of type {type_name(other)}, not a stream.",
                    remedy="Give streams of this flow, before key_by(...); a DataFrame becomes one "
                    "by flow.source(name, dataframe).",
                )
            if other.flow is not self.flow:
                raise InvalidFlowError(
                    f"{where} of flow {self.flow.name!r} was given a stream of another flow, "
                    f"{other.flow.name!r}.",
                    remedy="Build all streams from sources of one flow.",
                    flow=self.flow.name,
                )
        nodes = (self.node, *(other.node for other in others))
        return Stream(self.flow, UnionNode(upstreams=nodes))

    @user_call
    def drop_duplicates(
        self,
        *columns: str,
        within: Duration | Literal["forever"] | None = None,
        late: Any = None,
        name: str | None = None,
        formerly: str | None = None,
    ) -> Stream:
        """Let the first row of each key through, as it arrives, and drop its duplicates.

        Parameters
        ----------
        *columns
            Rows that are equal in these are duplicates; nulls are values like any other.
        within
            Only those that happened at most this long before or after the row that came through.
            State is as long-lived; rows older than the watermark are left out and counted, since
            nobody knows any more whether they are duplicates. ``"forever"``: all of them, at the
            price of an entry of state for each key that ever came; needs no event time.
        late
            Sink of the rows that are left out: older than the watermark, too far ahead of the
            clock, or without an event time. They are counted in any case.
        name, formerly
            As of `KeyedStream.compute`.

        Returns
        -------
        Stream
            The same columns.

        Raises
        ------
        InvalidFlowError
            If no column is named, it is not said within which time, or there is nothing that could
            be late.

        Examples
        --------
        >>> orders.drop_duplicates("order_id", within="1 hour")  # doctest: +SKIP
        """
        where = f"drop_duplicates on {describe(self.node)}"
        keys = check_keys(columns, where, 'drop_duplicates("order_id", within="1 hour")')
        if within is None:
            raise InvalidFlowError(
                f"{where} does not say within which time rows are duplicates.",
                remedy='Give within="1 hour", say, of event time; or within="forever", which keeps '
                "an entry of state for each key that ever comes.",
            )
        check_late(late, where)
        if late is not None and within == "forever":
            raise InvalidFlowError(
                f"{where} was given late= together with within='forever', so that no row is late.",
                remedy='Leave late= out, or give a time, as in within="1 hour".',
            )
        named = name is not None
        if name is None:
            sources = [source.name for source in sources_of(self.node)]
            name = default_name(sources, "drop_duplicates", keys)
        check_formerly(name, formerly)
        return self.flow._operate(  # noqa: SLF001 - a flow and its streams are one module's worth
            DropDuplicatesNode(
                name=name,
                upstream=self.node,
                keys=keys,
                within_us=None
                if isinstance(within, str) and within == "forever"
                else microseconds(within, f"The time of operator {name!r}", least=1),
                late=late,
                formerly=formerly or "",
                named=named,
            )
        )

    @user_call
    def key_by(self, *columns: str) -> KeyedStream:
        """Say which columns make the key of the next operator.

        Nulls are values like any other: rows whose key is null have one key.

        Raises
        ------
        InvalidFlowError
            If there is no column, one is not text, or one comes twice.
        """
        keys = check_keys(columns, f"key_by on {describe(self.node)}", 'key_by("origin", "dest")')
        return KeyedStream(self.flow, self.node, keys)
