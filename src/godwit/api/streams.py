"""Streams: the values that users chain calls on, from a source to the sinks.

A stream is an immutable value: each call returns a new one and changes nothing, so one stream may
feed any number of operators and sinks. The rows of a source or an operator are a `Stream`.
``key_by`` makes it a `KeyedStream`, which has the stateful operators; ``window`` makes that a
`WindowedStream`, which has those over windows. The checks that a call makes at once are in
`godwit.api.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from godwit.api.checks import (
    all_results,
    check_aggregate,
    check_function,
    check_join_of_tables,
    check_keys,
    check_late,
    check_merge,
    check_not_results,
    check_on_missing,
    check_one_of,
    check_order,
    check_partition_by,
    check_results,
    check_same_flow,
    check_suffix,
    check_table_names,
    check_window_function,
    check_windows,
    checked_spread,
    describe,
    identity_fields,
    identity_of,
    interval_of,
    operator_fields,
    read_output,
    read_state_columns,
    timing_of,
)
from godwit.api.functions import check_annotations, holds_values, warn_of_rebinding
from godwit.api.names import no_such_call, no_such_item
from godwit.checkpoint.records import BROADCAST
from godwit.columns.types import SchemaLike, to_schema
from godwit.model import plugins
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import (
    check_column_names,
    default_name,
    function_name,
    keys_text,
    listing,
    results_name,
    type_name,
)
from godwit.model.signatures import ROLE_NAMES, check_signature
from godwit.operators.asynchronous import settings_for
from godwit.operators.declared import CALLED, FRAMES, States, declared_states
from godwit.operators.window_specs import RowWindows
from godwit.plan.feedback import FeedbackSource
from godwit.plan.nodes import (
    ComputeNode,
    DropDuplicatesNode,
    JoinNode,
    KindNode,
    LatestNode,
    MapNode,
    ProcessNode,
    SourceNode,
    StreamNode,
    TableNode,
    UnionNode,
    WindowedNode,
    branches_of,
    kind_of,
    sources_of,
)
from godwit.time.durations import microseconds
from godwit.values.records import row_class

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Unpack

    from godwit.api.declarations import (
        Emitted,
        Identity,
        O,
        OnTimer,
        Output,
        ProcessOptions,
        R,
        S,
        TableFunction,
    )
    from godwit.api.flow import LogicalFlow
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.asynchronous import Async
    from godwit.operators.declared import DeclaredState, Frames, ValueState
    from godwit.operators.timers import TimedRows
    from godwit.operators.window_specs import WindowSpec
    from godwit.plan.nodes import How, OnMissing, OperatorNode
    from godwit.time.durations import Duration
    from godwit.values.codec import State


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stream:
    """Rows without a key: the rows of a source, the result of maps, or the output of an operator.

    Godwit makes it: `Flow.source`, `Flow.feedback` and the methods of streams return streams. A
    stream never changes; each call returns a new one, so one stream may have several readers.

    Examples
    --------
    >>> flights
    <Stream of flow 'delays': source 'flights'>
    >>> flights.key_by("plane").compute(total=gw.sum("delay"))
    <Stream of flow 'delays': operator 'flights_total_by_plane'>
    """

    flow: LogicalFlow
    node: StreamNode

    def __repr__(self) -> str:
        return f"<Stream of flow {self.flow.name!r}: {describe(self.node)}>"

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            raise no_such_call(name, f"A stream ({describe(self.node)})", keyed=False)

        def __getitem__(self, item: object) -> Any:
            raise no_such_item(item, f"A stream ({describe(self.node)})")

    @user_call
    def map(self, function: Callable[[Any], Any], *, schema: SchemaLike | None = None) -> Stream:
        """Transform the rows of each epoch by a function without state.

        Parameters
        ----------
        function
            Takes rows and returns the rows in their place, in one of three forms. If the stream
            comes from a streaming DataFrame and no keyed operator: a DataFrame of one epoch's rows;
            any stateless Spark SQL is possible. If it comes from a source of Godwit's own
            (``gw.sources``): a ``pyarrow.Table`` with a part of an epoch's rows, in order. After a
            keyed operator: a ``pyarrow.Table`` with the rows that one lane (parallel task of the
            operator) emits in one epoch.
        schema
            Columns that a function over Arrow tables returns: an Arrow schema, a dict of column
            name → type, text such as ``"symbol string, price double"``, or a PySpark
            ``StructType``. By default the function is called on an empty table to find them. Not
            for functions over DataFrames.

        Returns
        -------
        Stream
            The rows that the function returns.

        Raises
        ------
        InvalidFlowError
            If `function` is not callable, a schema is given for a function over DataFrames, or the
            stream is a union of rows in DataFrames with rows in Arrow tables.

        Examples
        --------
        >>> late = by_plane.map(lambda rows: rows.filter(pa.compute.field("total") > 10))
        >>> flow.sink("late", late, gw.sinks.noop())
        >>> gw.testing.run(flow, {"flights": ROWS}).rows("late").to_pylist()
        [{'plane': 'N1', 'total': 29}]
        """
        where = f"map on {describe(self.node)}"
        check_function(function, where, "map(lambda df: df.where(...))")
        check_signature(where, function, "map(rows)")
        on_tables = {branch.has_arrow_maps for branch in branches_of(self.node)}
        if len(on_tables) > 1:
            raise InvalidFlowError(
                f"{where} would get DataFrames of sources, and Arrow tables of operators or of "
                "Godwit's own sources.",
                remedy="Map each of the streams before union(...).",
            )
        if schema is not None and False in on_tables:
            raise InvalidFlowError(
                f"{where} was given a schema, but Spark knows the columns of a DataFrame.",
                remedy="Leave schema= out; it is for maps after a keyed operator, or on a source "
                "of Godwit's own.",
            )
        columns = None if schema is None else to_schema(schema, where=f"The schema of {where}")
        return Stream(self.flow, MapNode(upstream=self.node, function=function, schema=columns))

    @user_call
    def union(self, *others: Stream) -> Stream:
        """Merge this stream with others of the same columns.

        An operator on the result keeps one state per key for the rows of all streams. Rows of one
        key stay in the order of their source; between sources there is no order. The watermark of
        the result is the lowest of the streams' watermarks, idle sources excepted (see ``idle=`` of
        `Flow.source`).

        Parameters
        ----------
        *others
            Streams of this flow. Their columns must have the same names and types, in the same
            order; that is checked when the flow is explained or started.

        Returns
        -------
        Stream
            The rows of all streams, for ``key_by``, ``map``, ``drop_duplicates`` or a sink.

        Raises
        ------
        InvalidFlowError
            If no other stream is given, an argument is not a `Stream`, or a stream belongs to
            another flow.

        Examples
        --------
        >>> more = flow.source("more", gw.testing.stream(COLUMNS), event_time="ts")
        >>> flights.union(more).key_by("plane")
        <KeyedStream of flow 'delays': the union of source 'flights' and source 'more' by plane>
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
            check_same_flow(self.flow, other.flow, where)
        nodes = (self.node, *(other.node for other in others))
        return Stream(self.flow, UnionNode(upstreams=nodes))

    @user_call
    def as_changes(self) -> Stream:
        """Take the rows for changes of a table, by the sign in their column ``change``.

        Returns
        -------
        Stream
            The same rows. Operators that take changes subtract rows whose ``change`` is -1;
            starting the flow with others after this stream is refused.

        Raises
        ------
        InvalidFlowError
            When the flow is explained or started: if there is no column ``change`` of type tinyint
            (int8).

        Examples
        --------
        >>> orders = flow.source("orders", gw.testing.stream("id long, amount long, change byte"))
        >>> orders.as_changes().key_by("id").compute(amount=gw.sum("amount"))
        <Stream of flow 'delays': operator 'orders_amount_by_id'>
        """
        return Stream(self.flow, KindNode(upstream=self.node, emits="changes"))

    @user_call
    def as_upserts(self) -> Stream:
        """Take the rows for upserts and deletes by key, by the sign in their column ``change``.

        A row whose ``change`` is 1 replaces the row of its key; one with -1 deletes it, and may
        have no values but its key. ``key_by(...).latest()`` makes changes of upserts.

        Returns
        -------
        Stream
            The same rows. Starting the flow with operators after this stream that do not take
            upserts is refused.

        Raises
        ------
        InvalidFlowError
            When the flow is explained or started: if there is no column ``change`` of type tinyint
            (int8).

        Examples
        --------
        >>> orders = flow.source("orders", gw.testing.stream("id long, amount long, change byte"))
        >>> orders.as_upserts().key_by("id").latest()
        <Stream of flow 'delays': operator 'orders_latest_by_id'>
        """
        return Stream(self.flow, KindNode(upstream=self.node, emits="upserts"))

    @user_call
    def as_rows(self) -> Stream:
        """Take changes for rows: the sign becomes a column ``change`` like any other.

        Returns
        -------
        Stream
            The same rows; for any operator. Rows whose ``change`` is -1 are processed like others.

        Examples
        --------
        >>> per_plane = flights.key_by("plane").compute(flights=gw.count(), output="changes")
        >>> per_plane.as_rows().key_by("flights").compute(updates=gw.count())
        <Stream of flow 'delays': operator 'flights_updates_by_flights'>
        """
        if kind_of(self.node) == "rows":
            return self
        return Stream(self.flow, KindNode(upstream=self.node, emits="rows"))

    @user_call
    def feed_back_to(self, loop: Stream) -> None:
        """Send the rows back to a feedback loop: they are rows of `loop` in the next epoch.

        Parameters
        ----------
        loop
            The stream that ``flow.feedback(...)`` returned, before any map. It must be upstream of
            this stream, and have the same columns, in any order; both are checked when the flow is
            explained or started.

        Raises
        ------
        InvalidFlowError
            If `loop` is not a loop, belongs to another flow, or already has a stream that is fed
            back to it; or if there is no keyed operator between a source and this stream.

        Examples
        --------
        >>> def one_less(key, rows, state):
        ...     return [(*key, row.left - 1) for row in rows if row.left]
        >>> flow, columns = gw.Flow("countdown"), "name string, left long"
        >>> loop = flow.feedback("again", columns)
        >>> all_rows = flow.source("rows", gw.testing.stream(columns)).union(loop)
        >>> left = all_rows.key_by("name").process(one_less, state=int, output=columns)
        >>> left.feed_back_to(loop)
        >>> flow.sink("left", left, gw.sinks.noop())
        >>> played = gw.testing.run(flow, {"rows": [{"name": "a", "left": 3}]})
        >>> played.rows("left")["left"].to_pylist()
        [2, 1, 0]
        """
        where = f"feed_back_to on {describe(self.node)}"
        node = loop.node if isinstance(loop, Stream) else None
        if not isinstance(node, SourceNode) or not isinstance(node.own, FeedbackSource):
            given_text = (
                describe(node) if node is not None else f"a value of type {type_name(loop)}"
            )
            raise InvalidFlowError(
                f"{where} was given {given_text}, which is not a loop.",
                remedy="Give it what flow.feedback(name, schema) returned, before any map.",
            )
        check_same_flow(self.flow, loop.flow, where)
        unworked = [b.feed for b in branches_of(self.node) if isinstance(b.feed, SourceNode)]
        if unworked:
            raise InvalidFlowError(
                f"{where}: no keyed operator has worked on the rows of {unworked[0].name!r}.",
                remedy="Feed back what an operator emits, as in "
                "stream.key_by(...).process(...).feed_back_to(loop).",
                source=unworked[0].name,
            )
        self.flow._feed_back(self.node, node)  # noqa: SLF001  the flow's own streams call it

    @user_call
    def drop_duplicates(
        self,
        *columns: str,
        within: Duration | Literal["forever"] | None = None,
        late: Any = None,
        partition_by: str | Sequence[str] | None = None,
        on_missing: OnMissing = "refuse",
        name: str | Identity | None = None,
    ) -> Stream:
        """Keep the first row of each key, in order of arrival, and drop its duplicates.

        Parameters
        ----------
        *columns
            Key columns: rows with equal values in all of them are duplicates; two nulls are equal.
        within
            Required: a length of event time, or ``"forever"``. With a length, a row is a duplicate
            if its event time differs by at most that from the event time of the row that was kept.
            State is removed after that time; rows older than the watermark are left out and
            counted, since the state that would tell whether they are duplicates is removed. With
            ``"forever"`` all later rows of a key are duplicates; that needs no event time, and
            keeps an entry of state for every key forever.
        late
            Sink of the rows that are left out: older than the watermark, too far ahead of the
            clock, or without an event time. They are counted in any case.
        partition_by
            Some of `columns`, whose hash selects the key group of a row; with the same default as
            in `key_by`.
        on_missing
            If a delete of changes has no row; see `KeyedStream.compute`.
        name
            The operator's name, under which its state is stored; `godwit.types.Identity` to rename
            the operator or to let it start empty. By default made of the source and the columns,
            such as ``flights_drop_duplicates_by_plane``.

        Returns
        -------
        Stream
            The rows that were kept, with the same columns.

        Raises
        ------
        InvalidFlowError
            If no column is named, `within` is left out, or `late` is given with
            ``within="forever"``, where no row can be late.

        Examples
        --------
        >>> once = of_rows.drop_duplicates("plane", "delay", within="1 hour")
        >>> delays.sink("once", once, gw.sinks.noop())
        >>> gw.testing.run(delays, {"flights": ROWS}).rows("once")["delay"].to_pylist()
        [5, 12, None]
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
        check_on_missing(where, on_missing)
        partition_columns = check_partition_by(partition_by, keys, where)
        options = operator_fields(
            self.node, keys, name, "drop_duplicates", partition_by=partition_columns
        )
        options["on_missing"] = on_missing
        within_us = None
        if not (isinstance(within, str) and within == "forever"):  # a Series has no truth
            within_us = microseconds(within, f"The time of operator {options['name']!r}", least=1)
        return add_to_flow(self.flow, DropDuplicatesNode(within_us=within_us, late=late, **options))

    @user_call
    def key_by(self, *columns: str, partition_by: str | Sequence[str] | None = None) -> KeyedStream:
        """Group the rows by key columns; the stateful operators are methods of the result.

        Null is a key value like any other: all rows whose key is null share one key.

        Parameters
        ----------
        *columns
            Names of the key columns. Their types are checked when the flow is explained or started.
            Without any, all rows are one group, as in ``df.groupBy().agg(...)`` of Spark: results
            have no key columns, and functions get the key ``()``. One lane (parallel task) has that
            group; `compute` sends it partial results only, and a function gets every row.
        partition_by
            Some of the key columns, whose hash selects the key group of a row (the unit that moves
            between executors). For example, an operator keyed by area and user with
            ``partition_by="area"`` can run in the same tasks as an operator keyed by area, without
            a shuffle between them; then one lane processes all users of an area. By default the
            columns that the checkpoint stores for this operator. For a new operator: all key
            columns, unless
            ``gw.control.Adaptation(fusion=gw.control.Fusion(by="attributes"))`` chooses fewer.

        Returns
        -------
        KeyedStream
            The rows, grouped by `columns`.

        Raises
        ------
        InvalidFlowError
            If a name is not text, a column is named twice, or `partition_by` names a column that is
            not a key column.

        Examples
        --------
        >>> flights.key_by("origin", "plane", partition_by="origin")
        <KeyedStream of flow 'delays': source 'flights' by origin, plane, partitioned by origin>
        >>> flights.key_by().compute(delay=gw.mean("delay"), flights=gw.count())
        <Stream of flow 'delays': operator 'flights_delay_flights_of_all'>
        """
        where = f"key_by on {describe(self.node)}"
        keys = check_keys(columns, where, 'key_by("origin", "dest")') if columns else ()
        partition_columns = check_partition_by(partition_by, keys, where)
        return KeyedStream(self.flow, self.node, keys, partition_columns)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeyedStream:
    """A stream whose rows are grouped by key columns.

    Godwit makes it: `Stream.key_by` returns it. Its methods add stateful operators to the flow, and
    return their output: `compute`, `process`, `process_batch`, `window` (then `compute` or
    `process`), `join` and `join_newest`.

    Examples
    --------
    >>> flights.key_by("plane", "origin")
    <KeyedStream of flow 'delays': source 'flights' by plane, origin>
    """

    flow: LogicalFlow
    node: StreamNode
    keys: tuple[str, ...]
    # key columns that place rows; empty: all of them do, ``None``: not stated
    partition_by: tuple[str, ...] | None = None

    if TYPE_CHECKING:  # `godwit.adopt.keyed_calls` has them, with all parameters

        def transform_with_state(
            self, processor: Any, *, output: SchemaLike, **options: Any
        ) -> Stream:
            """Call a ``StatefulProcessor`` written for Spark's ``transformWithState``."""

        def apply_in_pandas_with_state(
            self, function: Callable[..., Any], *, output: SchemaLike, state: Any, **options: Any
        ) -> Stream:
            """Call a function written for Spark's ``applyInPandasWithState``."""

    def __repr__(self) -> str:
        placed = f", partitioned by {', '.join(self.partition_by)}" if self.partition_by else ""
        return (
            f"<KeyedStream of flow {self.flow.name!r}: {describe(self.node)} "
            f"{keys_text(self.keys)}{placed}>"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and name in plugins.names("keyed_calls"):
                return partial(plugins.load("keyed_calls", name), self)
            where = f"A keyed stream ({describe(self.node)} {keys_text(self.keys)})"
            raise no_such_call(name, where, keyed=True)

        def __getitem__(self, item: object) -> Any:
            raise no_such_item(item, f"A keyed stream ({describe(self.node)})")

    @user_call
    def compute(
        self,
        results: Mapping[str, Aggregate] | None = None,
        /,
        *,
        name: str | Identity | None = None,
        output: Literal["update", "complete", "changes"] = "update",
        on_missing: OnMissing = "refuse",
        **aggregates: Aggregate,
    ) -> Stream:
        """Aggregate all rows of each key since the first epoch, without windows.

        Parameters
        ----------
        results
            Results by name, as keyword arguments give them: for those with the name of an option,
            as in ``compute({"name": gw.last("name")})``.
        name
            The operator's name, under which its state is stored; `godwit.types.Identity` to rename
            the operator or to let it start empty. By default made of the source, the results and
            the key, such as ``flights_total_by_tailnum``. If a change of the results changes this
            default, pass ``gw.types.Identity(formerly=...)`` with the old name to continue with the
            stored state.
        output
            ``"update"``: an epoch emits one row for each key that it changed. ``"complete"``: every
            epoch emits one row for every key, which takes time in proportion to their number.
            ``"changes"``: for each key whose result changed, an epoch emits two rows: the former
            result with -1 in the additional column ``change``, and the new one with 1, so that
            another operator can aggregate results. A new key has no former result. Over changes,
            ``"update"`` emits upserts: the last result with ``change`` -1 for a key that has no
            rows left, and the new one with 1 for the others.
        on_missing
            Over changes, the action for a delete whose row is not in the table: ``"refuse"`` fails
            the epoch; with ``"wait"`` the delete waits for its row, which does not count then, and
            a key with more deletes than rows has no result; the event ``DeletesWaited`` counts
            them. The changes of one epoch may come in any order.
        **aggregates
            Name of a result column → aggregate, as in ``total=gw.sum("arr_delay")``.

        Returns
        -------
        Stream
            The key columns, then one column per aggregate.

        Raises
        ------
        InvalidFlowError
            If no aggregate is given, a value is not an aggregate, a result has the name of a key
            column or a reserved name, or another operator has the same name.

        Examples
        --------
        >>> worst = of_rows.key_by("origin").compute(worst=gw.max("delay"), flights=gw.count())
        >>> delays.sink("worst", worst, gw.sinks.noop())
        >>> gw.testing.run(delays, {"flights": ROWS[:3]}).rows("worst").to_pylist()
        [{'origin': 'LGA', 'worst': 12, 'flights': 1}, {'origin': 'JFK', 'worst': 12, 'flights': 2}]
        """
        where = self._call_text("compute")
        check_not_results(where, name=identity_of(name).name, output=output, on_missing=on_missing)
        aggregates = all_results(where, results, aggregates)
        if not aggregates:
            raise InvalidFlowError(
                f"{where} has no aggregates.",
                remedy="Name a result, as in compute(flights=gw.count()).",
            )
        options = self._node_fields(name, results_name(aggregates))
        check_results(options["name"], self.keys, aggregates, output)
        check_on_missing(f"Operator {options['name']!r}", on_missing)
        check_column_names([*self.keys, *aggregates], f"Operator {options['name']!r}")
        node = ComputeNode(
            aggregates=dict(aggregates), mode=output, on_missing=on_missing, **options
        )
        return add_to_flow(self.flow, node)

    @user_call
    def latest(
        self,
        *,
        order_by: str | None = None,
        on_missing: OnMissing = "refuse",
        name: str | Identity | None = None,
    ) -> Stream:
        """Keep the newest row of each key as a table, and emit its changes.

        Parameters
        ----------
        order_by
            Column whose greatest value has the newest row, such as a version or a log position;
            older rows that come later are left out. A row without a value is newer than those
            before it, but in changes older than all others. By default the row that arrives last is
            the newest.
        on_missing
            If a delete of changes has no row; see `compute`.
        name
            The operator's name, under which its state is stored; `godwit.types.Identity` to rename
            the operator or to let it start empty. By default made of the source and the key, such
            as ``orders_latest_by_id``.

        Returns
        -------
        Stream
            Changes, for ``compute`` and sinks: the former row of a key with ``change`` -1, the new
            one with 1. The stream may have rows, each of which replaces the row of its key, or
            upserts and deletes (`Stream.as_upserts`, `gw.formats.debezium`). State is one row for
            each key; with `order_by` also the version of each deleted key. Of changes, it is the
            newest row of each key that is in the table, and if that is deleted the one before it;
            state is all rows of the table then.

        Raises
        ------
        InvalidFlowError
            If there is no key. If the column does not exist, or a column's type cannot be stored,
            when the flow is explained or started.

        Examples
        --------
        >>> newest = of_rows.key_by("plane").latest()
        >>> delays.sink("newest", newest, gw.sinks.noop())
        >>> gw.testing.run(delays, {"flights": ROWS}).rows("newest")["change"].to_pylist()
        [1]
        """
        if not self.keys:
            raise InvalidFlowError(
                f"{self._call_text('latest')} has no key.",
                remedy='Name the key of the table, as in key_by("id").latest().',
            )
        if order_by is not None and (not isinstance(order_by, str) or order_by in self.keys):
            raise InvalidFlowError(
                f"{self._call_text('latest')} was given order_by={order_by!r}.",
                remedy="Name a column other than the key columns, as text.",
            )
        check_on_missing(self._call_text("latest"), on_missing)
        options = self._node_fields(name, "latest")
        node = LatestNode(order_by=order_by, on_missing=on_missing, **options)
        return add_to_flow(self.flow, node)

    @overload
    def process(
        self,
        function: Callable[[tuple[Any, ...], TimedRows[R], State[S]], Emitted[O]],
        *,
        state: type[S] | ValueState[S],
        output: type[O] | Output[O] | SchemaLike,
        row: type[R] | None = None,
        timers: OnTimer[State[S], O] | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Stream: ...
    @overload
    def process(
        self,
        function: Callable[[tuple[Any, ...], TimedRows[R], S], Emitted[O]],
        *,
        state: type[S] | ValueState[S],
        output: type[O] | Output[O] | SchemaLike,
        row: type[R] | None = None,
        timers: OnTimer[S, O] | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Stream: ...
    @overload
    def process(
        self,
        function: Callable[[tuple[Any, ...], TimedRows[R], States], Emitted[O]],
        *,
        state: Mapping[str, DeclaredState],
        output: type[O] | Output[O] | SchemaLike,
        row: type[R] | None = None,
        timers: OnTimer[States, O] | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Stream: ...
    @overload
    def process(
        self,
        function: Callable[..., Emitted[O]],
        *,
        broadcast: Mapping[str, KeyedStream],
        state: type[Any] | ValueState[Any] | Mapping[str, DeclaredState],
        output: type[O] | Output[O] | SchemaLike,
        row: type[Any] | None = None,
        timers: OnTimer[Any, O] | None = None,
        asynchronous: Async | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Stream: ...
    @overload
    def process(
        self,
        function: Callable[..., Emitted[O]],
        *,
        asynchronous: Async | None,
        state: type[Any] | ValueState[Any] | Mapping[str, DeclaredState],
        output: type[O] | Output[O] | SchemaLike,
        row: type[Any] | None = None,
        timers: OnTimer[Any, O] | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Stream: ...
    @user_call
    def process(
        self,
        function: Callable[..., Any],
        *,
        state: type[Any] | ValueState[Any] | Mapping[str, DeclaredState] | None = None,
        output: type[Any] | Output[Any] | SchemaLike | None = None,
        row: type[Any] | None = None,
        name: str | Identity | None = None,
        timers: OnTimer[Any, Any] | None = None,
        order: Literal["arrival", "event_time"] = "arrival",
        late: Any = None,
        asynchronous: Async | None = None,
        broadcast: Mapping[str, KeyedStream] | None = None,
    ) -> Stream:
        """Call a Python function for each key, with its rows in arrival order and its state.

        Parameters
        ----------
        function
            Called as ``function(key, rows, state)`` once per epoch for every key that has rows: a
            tuple of the key's values, the rows (`godwit.types.KeyRows`) and the state, which it may
            change in place. Returns an iterable of rows to emit (tuples in the order of `output`,
            or dicts), or ``None`` for none. An ``async def`` function runs for several keys at
            once; its calls for one key run one after the other.
        state
            Required: type of the state of one key, as in ``state=dict``; a new key starts with
            ``state()``. If the type cannot be changed in place, as an ``int`` or a tuple, the
            function gets a `godwit.types.State`, and assigns to ``state.value``. Or the type with
            options, such as a time-to-live: ``gw.ValueState(dict, ttl="30 days")``. Or several
            named states: a dict of name → `godwit.ValueState`, `godwit.ListState` or
            `godwit.MapState`. The function then gets a `godwit.types.States` instead of the state;
            a named state is read and written only if the function uses it.
        output
            Required: columns of the emitted rows, as text such as ``"plane string, seen long"``, a
            dict of column name → type, an Arrow schema or a PySpark ``StructType``. Or a class (a
            dataclass, `msgspec.Struct` or named tuple): its fields are the columns, and the
            function emits its instances. Or a `godwit.types.Output`, which names the event time of
            the emitted rows too.
        row
            A class of the same kinds, such as ``Order``: the function gets its instances as rows
            (``godwit.types.KeyRows[Order]``). Its fields must be columns of the stream, and may
            include key columns; other columns are not sent to the function. By default rows are
            named tuples of all columns, those of the key last.
        name
            The operator's name, under which its state is stored; `godwit.types.Identity` to rename
            the operator or to let it start empty. By default made of the source, the function and
            the key, such as ``orders_clear_market_by_symbol``.
        timers
            Function that is called when a timer is due, and the timers' clock, as in
            ``gw.types.OnTimer(remind, clock="event")``. The function of the rows sets timers for
            its key by ``rows.timers`` (`godwit.types.Timers`).
        order
            ``"arrival"``: the function is called once in an epoch, with rows in order of arrival.
            ``"event_time"``: rows wait until the watermark is past them; the function is then
            called once for the rows of each event time, in order, and event-time timers fire
            between these calls. The results then depend neither on the order of arrival nor on
            epochs. Needs the event time of the source; rows that are late are left out.
        late
            Sink of the rows that are left out with ``order="event_time"``, as for `window`.
        asynchronous
            For an ``async def`` function: number of keys at once, time-out, retries, and resources
            that are kept between epochs (`godwit.types.Async`).
        broadcast
            Name → keyed stream of a source: a small table, such as rates or rules, of which every
            lane has the newest row of each key. The functions get each table as a keyword argument
            of its name: a read-only mapping from the key (a tuple if it has several columns) to the
            other columns.

        Returns
        -------
        Stream
            The emitted rows.

        Raises
        ------
        InvalidFlowError
            If the function is not callable, state or output are left out or not valid, options
            contradict each other, or another operator has the same name.

        Notes
        -----
        Types of fields of the classes of `row` and `output`, and of their columns:

        - ``bool``, ``int``, ``float``, ``str``, ``bytes``: boolean, bigint, double, string, binary
        - ``date``, ``datetime``, ``timedelta``, ``Decimal``: date, timestamp, interval,
          ``decimal(38, 18)``
        - an enumeration or ``Literal[...]`` of text or of whole numbers: string, bigint
        - ``list[T]``, ``tuple[T, ...]``, ``set[T]``: ``array<T>``
        - another dataclass or ``msgspec.Struct``: ``struct<...>``
        - ``T | None``: the column of ``T``, which may be null
        - ``Annotated[Decimal, "decimal(10, 2)"]``, ``Annotated[int, "int"]``: the type in the
          annotation

        A field of ``row=`` accepts columns of the same kind with any width; a ``float`` field also
        integers.

        Examples
        --------
        >>> def count(key, rows, seen: gw.types.State[int]):
        ...     seen.value += len(rows)
        ...     return [(*key, seen.value)]
        >>> by_plane = of_rows.key_by("plane")
        >>> seen = by_plane.process(count, state=int, output="plane string, seen long")
        >>> delays.sink("seen", seen, gw.sinks.noop())
        >>> gw.testing.run(delays, {"flights": ROWS}, epochs=2).rows("seen").to_pylist()
        [{'plane': 'N1', 'seen': 2}, {'plane': 'N1', 'seen': 4}]
        """
        where = self._call_text("process")
        check_function(function, where, "process(clear_market, state=..., output=...)")
        check_late(late, where)
        options = self._node_fields(name, _action_name(function))
        operator: str = options["name"]
        single, states = declared_states(operator, state)
        emitted = read_output(operator, output)
        of_rows = (
            None if row is None else row_class(row, f"The class of rows of operator {operator!r}")
        )
        timing = timing_of(operator, timers)
        on_timer = timing.on_timer
        state_type = States if single is None else single.value_type
        functions = (function, *(() if on_timer is None else (on_timer,)))
        for called in functions:
            check_annotations(
                operator,
                called,
                keys=self.keys,
                row=row,
                state=state_type,
                has_timers=on_timer is not None,
                for_timers=called is not function,
            )
        in_order = check_order(operator, order, late=late, timers=timers, states=states)
        declared = states if single is None else {"": single}
        merges = [each.merge for each in declared.values() if each.merge is not None]
        for called in (*functions, *merges):
            warn_of_rebinding(operator, called, stacklevel=3)  # of the line that calls process
        asynchronous = settings_for(operator, asynchronous, functions)
        resources = () if asynchronous is None else asynchronous.resources
        tables = self._checked_tables(operator, broadcast, used_names=(*resources, *states))
        of_key = "states" if states else "state"
        for called, argument in zip(functions, ("rows", "timer"), strict=False):
            check_signature(
                f"Operator {operator!r}",
                called,
                f"{'on_timer' if called is on_timer else 'function'}(key, {argument}, {of_key})",
                named=(*tables, *resources),
                meant={"key": self.keys, of_key: ROLE_NAMES if holds_values(state_type) else ()},
                awaited=asynchronous is not None,
                operator=operator,
            )
        others: dict[str, object] = {
            "timers": timers,
            "asynchronous": asynchronous,
            "broadcast": broadcast,
            "order": order if in_order else None,
        }
        check_merge(operator, declared, others)
        node = ProcessNode(
            function=function,
            state=single,
            states=states,
            timing=timing,
            in_order=in_order,
            late=late,
            asynchronous=asynchronous,
            tables=tables,
            row_class=of_rows,
            **emitted,
            **options,
        )
        return add_to_flow(self.flow, node)

    @user_call
    def process_batch(
        self,
        function: TableFunction,
        *,
        state: SchemaLike | type[Any] | None = None,
        output: SchemaLike | type[Any] | Output[Any] | None = None,
        frames: Frames = "arrow",
        name: str | Identity | None = None,
    ) -> Stream:
        """Call a Python function once per lane and epoch, with the rows and states of many keys.

        Parameters
        ----------
        function
            Called as ``function(rows, states, key_of_row)``. `rows`: table of the lane's rows of
            the epoch, in order of arrival, key columns first. `states`: table with one row for each
            key that has rows, key columns first, then the columns of `state`. `key_of_row`: NumPy
            array with the number of the row in `states` for each row of `rows`. It returns
            ``(output, states)`` or ``(output, states, dropped)``. `output`: table of the rows to
            emit, or ``None`` for none. `states`: table of the new states, with the key columns, or
            without them in the order of the argument; keys that are left out keep their state, and
            ``None`` keeps all. `dropped`: an array of booleans, one for each row of the argument
            `states`: true deletes the state of that key.
        state
            Required: columns of the state of one key, in any of the forms of `output`; a new key
            has nulls. Or a class (a dataclass, `msgspec.Struct` or named tuple) whose fields are
            the columns; a new key has the class's default values.
        output
            Required: columns of the emitted rows, as text such as ``"plane string, n long"``, a
            dict of column name → type, an Arrow schema or a PySpark ``StructType``; or a class
            whose fields are the columns. Or a `godwit.types.Output`, which names the event time of
            the emitted rows too.
        frames
            Kind of the tables that the function gets: ``"arrow"`` (`pyarrow.Table`), ``"pandas"``
            (DataFrames with Arrow types) or ``"polars"``. It may return tables of any kind.
        name
            The operator's name, under which its state is stored; `godwit.types.Identity` to rename
            the operator or to let it start empty. By default made of the source, the function and
            the key, such as ``flights_number_by_plane``.

        Returns
        -------
        Stream
            The emitted rows.

        Raises
        ------
        InvalidFlowError
            If the function cannot be called, state or output are left out, or the operator's name
            is taken.

        Notes
        -----
        Which keys are passed together changes from epoch to epoch, so the result of a key may
        depend only on its own rows and its own state.

        Examples
        --------
        >>> def number(rows, states, key_of_row):
        ...     counts = pa.array(np.bincount(key_of_row))
        ...     new = states.set_column(1, "n", pc.add(states["n"], counts))
        ...     return new, new
        >>> import numpy as np, pyarrow.compute as pc
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Count:
        ...     n: int = 0
        >>> keyed = flights.key_by("plane")
        >>> keyed.process_batch(number, state=Count, output="plane string, n long")
        <Stream of flow 'delays': operator 'flights_number_by_plane'>
        """
        where = self._call_text("process_batch")
        check_function(function, where, "process_batch(add_up, state=..., output=...)")
        options = self._node_fields(name, _action_name(function))
        operator: str = options["name"]
        check_signature(f"Operator {operator!r}", function, CALLED, operator=operator)
        remedy = f"Give one of {listing(FRAMES)}."
        check_one_of(f"Operator {operator!r}", "frames", frames, FRAMES, remedy, operator=operator)
        emitted = read_output(operator, output)
        node = ProcessNode(
            function=function,
            columns=read_state_columns(operator, state),
            frames=frames,
            **emitted,
            **options,
        )
        return add_to_flow(self.flow, node)

    def _checked_tables(
        self, name: str, broadcast: Any, *, used_names: Collection[str]
    ) -> dict[str, TableNode]:
        """Return name → broadcast table of the operator `name`; empty if `broadcast` is ``None``.

        Raise unless each is a keyed source of the flow, and none has one of the `used_names`.
        """
        if broadcast is None:
            return {}
        example = 'as in broadcast={"rates": rates.key_by("currency")}'
        check_table_names(name, broadcast, example)
        tables = {}
        for table, stream in broadcast.items():
            what = f"Operator {name!r}, broadcast table {table!r}, was given"
            if not isinstance(stream, KeyedStream):
                raise InvalidFlowError(
                    f"{what} a value of type {type_name(stream)}.",
                    remedy=f"Give a keyed stream, {example}.",
                    operator=name,
                )
            check_same_flow(self.flow, stream.flow, f"Table {table!r} of operator {name!r}")
            if not stream.keys:
                raise InvalidFlowError(
                    f"{what} a stream without key columns.",
                    remedy=f"Key it by the columns that rows are looked up by, {example}.",
                    operator=name,
                )
            if stream.partition_by:
                raise InvalidFlowError(
                    f"{what} a stream with partition_by=, but every lane has the whole table.",
                    remedy="Leave partition_by= out of its key_by.",
                    operator=name,
                )
            if not all(isinstance(b.feed, SourceNode) for b in branches_of(stream.node)):
                raise InvalidFlowError(
                    f"{what} {describe(stream.node)}, but only rows of sources can be broadcast.",
                    remedy="Map the source instead of computing, or join with what the operator "
                    "emits, by key.",
                    operator=name,
                )
            if table in used_names or f"{BROADCAST}{table}" in used_names:
                raise InvalidFlowError(
                    f"Operator {name!r} has a broadcast table {table!r}, and a state or a resource "
                    "of the same name.",
                    remedy="Give one of the two another name.",
                    operator=name,
                )
            tables[table] = TableNode(stream=stream.node, keys=stream.keys)
        return tables

    @user_call
    def window(
        self,
        *windows: WindowSpec | RowWindows,
        time: str | None = None,
        output: Literal["append", "update"] = "append",
        late: Any = None,
        share: Literal["measured", "always", "never"] = "measured",
        consolidate: Literal["together", "apart", "measured"] = "together",
        allowed_lateness: Duration = "0 seconds",
        length_as: str | None = None,
        name: str | Identity | None = None,
    ) -> WindowedStream:
        """Assign rows to windows; call `compute` or `process` on the result.

        Parameters
        ----------
        *windows
            ``gw.tumbling(...)`` or ``gw.hopping(...)``, or several of these at once; or one
            ``gw.session(...)``; or one ``gw.rows(...)``, which counts rows and needs no event time.
        time
            Column with the event time. By default the event time of the source; for the output of
            another window operator, the end of the window.
        output
            ``"append"``: a window is emitted once, when the watermark has passed its end.
            ``"update"``: a window is emitted in every epoch that adds rows to it.
        late
            Sink of the rows that are left out: too late for every window, too far ahead of the
            driver's clock, or without an event time. They are counted with and without it.
        share
            State of overlapping windows. ``"always"``: each row is added to one pane (a slice of
            time), and windows are merged from their panes. ``"never"``: each window has a state of
            its own, to which its rows are added. ``"measured"``: whichever of the two costs less,
            as measured while the query runs.
        consolidate
            ``"together"``: one operator stores panes and merges them into windows. ``"apart"``: two
            operators with a shuffle between them, which costs more per row; but a key group changes
            its executor without copying state. ``"measured"``: starts as ``"together"`` runs, and
            is separated and joined again by measured costs (see `gw.control.Splitting`). Only for
            `compute`.
        allowed_lateness
            As in Flink: a window that was emitted still takes late rows until the watermark is this
            far past its end, and is emitted again in every epoch that has such rows; so use a sink
            that replaces rows by key and window. The window's state is stored for that time too. In
            contrast, ``slack=`` of the source delays the watermark, and thereby the first result.
            Only for `compute` over tumbling and hopping windows.
        length_as
            Name of a text column to add after ``window_end``, with the length of the row's window,
            such as ``"1 hour"``; it tells the results of several windows apart. Only for `compute`.
        name
            The operator's name, under which its state is stored; `godwit.types.Identity` to rename
            the operator or to let it start empty. By default made of the source, the results, the
            windows and the key, such as ``flights_n_tumbling_1_hour_by_origin``.

        Returns
        -------
        WindowedStream
            The stream with its windows; nothing is added to the flow before `compute` or `process`.

        Raises
        ------
        InvalidFlowError
            If no window is given, a session or ``gw.rows`` is given together with other windows, or
            an option has a wrong value.

        Examples
        --------
        >>> hourly = of_rows.key_by("plane").window(gw.tumbling("1 hour")).compute(n=gw.count())
        >>> delays.sink("hourly", hourly, gw.sinks.noop())
        >>> played = gw.testing.run(delays, {"flights": ROWS}, close_at_end=True)
        >>> [(row["window_start"].hour, row["n"]) for row in played.rows("hourly").to_pylist()]
        [(8, 1), (9, 1), (10, 1), (11, 1)]
        """
        identity = identity_of(name)
        given_options = {"time": time, "output": output, "late": late, "share": share}
        given_options |= {"consolidate": consolidate, "length_as": length_as, "name": identity.name}
        given_options["allowed_lateness"] = allowed_lateness
        lateness_us = check_windows(self._call_text("window"), windows, given_options)
        # Name and aggregates or function are those of the next call.
        options: dict[str, Any] = {"name": "", "upstream": self.node, "keys": self.keys}
        options |= {"partition_by": self.partition_by, "aggregates": {}}
        node: ComputeNode | WindowedNode
        if isinstance(windows[0], RowWindows):
            node = ComputeNode(windows=windows[0], **options)
        else:
            node = WindowedNode(
                windows=tuple(spec for spec in windows if not isinstance(spec, RowWindows)),
                time=time,
                update=output == "update",
                late=late,
                share={"measured": None, "always": True, "never": False}[share],
                consolidate=consolidate,
                lateness_us=lateness_us,
                length_as=length_as,
                **options,
            )
        return WindowedStream(self, windows, node, identity)

    @user_call
    def join(
        self,
        other: KeyedStream,
        *,
        between: tuple[Duration, Duration] | None = None,
        how: How = "inner",
        suffix: str | None = None,
        late: Any = None,
        spread: int | None = None,
        on_missing: OnMissing = "refuse",
        name: str | Identity | None = None,
    ) -> Stream:
        """Join with another keyed stream by key, and an interval of event time unless they change.

        A pair is emitted in the epoch in which the second of its rows arrives. Each row is kept as
        state until the watermark has passed all rows that it can match; an unmatched row of an
        outer join is emitted then.

        Parameters
        ----------
        other
            The right stream, keyed by as many columns of the same types. Null keys match nothing.
        between
            Minimum and maximum, both inclusive, of the right row's event time less the left row's.
            ``("-10 minutes", "1 hour")``: from 10 minutes before the left row to 1 hour after it.
            Required for rows. Left out for changes, which are joined by key alone, as tables; then
            the result is the changes of the joined rows, and state has the live rows of both. If
            one side has rows, they are taken for a table to which rows are only added.
        how
            ``"inner"``, ``"left"``, ``"right"`` or ``"full"``, as in SQL: unmatched rows of the
            named side, or of both, are emitted with nulls in the other side's columns.
        suffix
            Text that is appended to the names of right columns that the left has too. Required if
            there are such columns besides the key columns.
        late
            Sink of the rows of either side that are left out: older than the watermark, too far
            ahead of the clock, or without an event time. They are counted in any case.
        spread
            Maximum number of parts, 2 to 256, that the rows of a hot key may be divided into, so
            that several lanes (parallel tasks) join them. Only for inner joins. Keys are divided
            while the query runs, by ``gw.control.Adaptation(spreading=gw.control.Spreading())`` or
            by ``query.hot_keys.spread(...)``. By default all rows of a key go to one lane. It
            cannot be added to or removed from a join that has state in the checkpoint.
        on_missing
            If a delete of changes has no row; see `compute`.
        name
            The operator's name, under which its state is stored; `godwit.types.Identity` to rename
            the operator or to let it start empty. By default made of both sources and the key, such
            as ``flights_join_landings_by_plane``.

        Returns
        -------
        Stream
            The key columns (with the names of the left), the other columns of the left, then those
            of the right. Its event time is the left row's, unless ``window(..., time=...)`` names
            another column.

        Raises
        ------
        InvalidFlowError
            If `other` is not a keyed stream of the same flow, or an option has a wrong value. If
            the key types differ or columns have the same name, when the flow is explained or
            started.

        Examples
        --------
        >>> columns = "plane string, landed timestamp"
        >>> landings = flow.source("landings", gw.testing.stream(columns), event_time="landed")
        >>> flights.key_by("plane").join(
        ...     landings.key_by("plane"), between=("0 hours", "12 hours"), how="left", name="flown"
        ... )
        <Stream of flow 'delays': operator 'flown'>
        """
        options = self._join_options(
            "join",
            other,
            ("inner", "left", "right", "full"),
            how=how,
            suffix=suffix,
            late=late,
            spread=spread,
            name=name,
        )
        if spread is not None and how != "inner":
            raise InvalidFlowError(
                f"{self._call_text('join')} has spread={spread} and how={how!r}, but no part of "
                "a divided key can tell that a row has no match in any other.",
                remedy='Leave spread= out, or join with how="inner".',
            )
        where = self._call_text("join")
        if between is None:
            check_join_of_tables(
                where, (kind_of(self.node), kind_of(other.node)), late=late, spread=spread
            )
            check_on_missing(where, on_missing)
            node = JoinNode(of_tables=True, on_missing=on_missing, **options)
            return add_to_flow(self.flow, node)
        return add_to_flow(self.flow, JoinNode(between_us=interval_of(between, where), **options))

    @user_call
    def join_newest(
        self,
        other: KeyedStream,
        *,
        within: Duration | None = None,
        how: Literal["left", "inner"] = "left",
        suffix: str | None = None,
        late: Any = None,
        spread: int | None = None,
        name: str | Identity | None = None,
    ) -> Stream:
        """Join every row with another stream's newest row as of its event time (as-of join).

        The match is the right row of the same key with the latest event time that is not after the
        left row's; of several with that event time, the one that arrived last. A row is emitted
        once the watermark has passed its event time, since until then a newer match may arrive.

        Parameters
        ----------
        other
            The right stream, keyed by as many columns of the same types. Null keys match nothing.
        within
            Maximum age of the right row, relative to the left row. By default there is none, and
            the newest right row of each key is stored forever.
        how
            ``"left"``: left rows without a match are emitted with nulls in the right columns.
            ``"inner"``: they are not emitted.
        suffix, late
            As for `join`.
        spread
            Number of parts, 2 to 256, that the left rows of every key are divided into, so that
            several lanes (parallel tasks) join them; right rows are copied to all parts. Useful if
            the left has hot keys and the right has few rows. By default all rows of a key go to one
            lane.
        name
            The operator's name, under which its state is stored; `godwit.types.Identity` to rename
            the operator or to let it start empty. By default made of both sources and the key, such
            as ``flights_join_newest_weather_by_origin``.

        Returns
        -------
        Stream
            The key columns (with the names of the left), the other columns of the left, then those
            of the right. Its event time is the left row's.

        Raises
        ------
        InvalidFlowError
            If `other` is not a keyed stream of the same flow, or an option has a wrong value. If
            the key types differ or columns have the same name, when the flow is explained or
            started.

        Examples
        --------
        >>> columns = "origin string, wind double, at timestamp"
        >>> weather = flow.source("weather", gw.testing.stream(columns), event_time="at")
        >>> by_origin = weather.key_by("origin")
        >>> flights.key_by("origin").join_newest(by_origin, within="2 hours", name="windy")
        <Stream of flow 'delays': operator 'windy'>
        """
        options = self._join_options(
            "join_newest",
            other,
            ("left", "inner"),
            how=how,
            suffix=suffix,
            late=late,
            spread=spread,
            name=name,
        )
        if within is not None:
            bound = f"within= of {self._call_text('join_newest')}"
            options["within_us"] = microseconds(within, bound, least=0)
        return add_to_flow(self.flow, JoinNode(**options))

    def _join_options(
        self,
        action: str,
        other: Any,
        known: Sequence[How],
        *,
        how: How,
        suffix: str | None,
        late: Any,
        spread: int | None,
        name: str | Identity | None,
    ) -> dict[str, Any]:
        """Return the checked options of a join as fields of its node.

        `known`: valid kinds of join.
        """
        where = self._call_text(action)
        if not isinstance(other, KeyedStream):
            raise InvalidFlowError(
                f"{where} was given a value of type {type_name(other)}, not a keyed stream.",
                remedy='Key the other stream too, as in orders.key_by("id").join('
                'payments.key_by("order"), ...); a table that does not stream is joined in a map.',
            )
        check_same_flow(self.flow, other.flow, where)
        if not (self.keys and other.keys):
            raise InvalidFlowError(
                f"{where}: a stream without key columns cannot be joined, since every row "
                "would meet all rows.",
                remedy="Key both streams by the columns that are equal in rows that match.",
            )
        partition_positions = [
            [side.keys.index(column) for column in side.partition_by or side.keys]
            for side in (self, other)
        ]
        if len(self.keys) == len(other.keys) and partition_positions[0] != partition_positions[1]:
            raise InvalidFlowError(
                f"{where} places rows of the left by {listing(self.partition_by or self.keys)} and "
                f"those of the right by {listing(other.partition_by or other.keys)}.",
                remedy="Give both key_by calls a partition_by= that names columns which are equal "
                "in the join, in the same order; or give it to neither.",
            )
        check_one_of(where, "how", how, known, f"Give {listing(known)}.")
        check_suffix(suffix, where)
        check_late(late, where)
        sources = "_and_".join(source.name for source in sources_of(other.node))
        return {
            "right": other.node,
            "right_keys": other.keys,
            "how": how,
            "suffix": suffix,
            "late": late,
            "spread": 0 if spread is None else checked_spread(spread, where),
            **self._node_fields(name, f"{action}_{sources}"),
        }

    def _call_text(self, action: str) -> str:
        """Return a call of a method (`action`) of this stream as text for errors."""
        by = f" by {listing(self.keys)}" if self.keys else ""
        return f"{action}{by} on {describe(self.node)}"

    def _node_fields(self, name: str | Identity | None, action: str) -> dict[str, Any]:
        """Return the fields that all nodes of operators have, such as name and keys."""
        return operator_fields(self.node, self.keys, name, action, partition_by=self.partition_by)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WindowedStream:
    """A keyed stream divided into windows.

    Godwit makes it: `KeyedStream.window` returns it. `compute` aggregates the rows of each key and
    window; `process` calls a function with them.

    Examples
    --------
    >>> flights.key_by("origin").window(gw.tumbling("1 hour")).compute(n=gw.count())
    <Stream of flow 'delays': operator 'flights_n_tumbling_1_hour_by_origin'>
    """

    keyed: KeyedStream
    windows: tuple[WindowSpec | RowWindows, ...]
    node: ComputeNode | WindowedNode  # of the operator to be, without its name and results
    identity: Identity

    def __repr__(self) -> str:
        return f"<WindowedStream of {self.keyed!r}: {', '.join(map(str, self.windows))}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_call(name, f"A windowed stream ({self._text_for_errors()})", keyed=True)

        def __getitem__(self, item: object) -> Any:
            raise no_such_item(item, f"A windowed stream ({self._text_for_errors()})")

    @user_call
    def compute(
        self, results: Mapping[str, Aggregate] | None = None, /, **aggregates: Aggregate
    ) -> Stream:
        """Aggregate the rows of each key and window.

        Parameters
        ----------
        results
            Results by name, as keyword arguments give them.
        **aggregates
            Name of a result column → aggregate, as in ``total=gw.sum("arr_delay")``.

        Returns
        -------
        Stream
            The key columns; ``window_start`` (inclusive) and ``window_end`` (exclusive), or for
            windows of rows ``window_number`` (number of the window within its key, from 0); the
            column `length_as` of `window`, if there is one; then one column per aggregate.

        Raises
        ------
        InvalidFlowError
            If no aggregate is given, a value is not an aggregate, a result has the name of another
            column, or another operator has the same name.

        Examples
        --------
        >>> both = gw.tumbling("1 hour"), gw.tumbling("1 day")
        >>> windowed = flights.key_by("plane").window(*both, length_as="length", name="delays")
        >>> windowed.compute(flights=gw.count(), delay=gw.mean("delay"))
        <Stream of flow 'delays': operator 'delays'>
        """
        aggregates = all_results(f"compute on {self._text_for_errors()}", results, aggregates)
        if not aggregates:
            raise InvalidFlowError(
                f"compute on {self._text_for_errors()} has no aggregates.",
                remedy="Name a result, as in compute(flights=gw.count()).",
            )
        options = self._identity_fields(results_name(aggregates))
        for result, aggregate in aggregates.items():
            check_aggregate(aggregate, result, options["name"])
        return self._add_to_flow(**options, aggregates=dict(aggregates))

    @user_call
    def process(
        self,
        function: Callable[..., Any],
        *,
        output: SchemaLike | type[Any] | Output[Any] | None = None,
    ) -> Stream:
        """Call a Python function for each key and window, with its rows, when the window ends.

        Parameters
        ----------
        function
            Called as ``function(key, rows, window)`` with the tuple of key values, the rows
            (`godwit.types.KeyRows`) and the `godwit.types.Window`; returns an iterable of rows to
            emit (tuples in the order of `output`, or dicts), or ``None`` for none. The rows of a
            window are in order of arrival, those of a session in order of event time.
        output
            Required: columns of the emitted rows, as text such as ``"plane string, day date"``, a
            dict of column name → type, an Arrow schema or a PySpark ``StructType``. Or a class (a
            dataclass, `msgspec.Struct` or named tuple): its fields are the columns, and the
            function emits its instances. Or a `godwit.types.Output`, which names the event time of
            the emitted rows too.

        Returns
        -------
        Stream
            The emitted rows.

        Raises
        ------
        InvalidFlowError
            If the function is not callable, the windows have ``output="update"`` or count rows,
            `output` is left out, or another operator has the same name.

        Examples
        --------
        >>> def longest(key, rows, window):
        ...     return [(*key, window.start, max(rows.column("origin")))]
        >>> daily = of_rows.key_by("plane").window(gw.tumbling("1 day"))
        >>> last = daily.process(longest, output="plane string, day timestamp, last string")
        >>> delays.sink("last", last, gw.sinks.noop())
        >>> played = gw.testing.run(delays, {"flights": ROWS}, close_at_end=True)
        >>> played.rows("last")["last"].to_pylist()
        ['LGA']
        """
        check_function(
            function, f"process on {self._text_for_errors()}", "process(rank, output=...)"
        )
        node = self.node
        if isinstance(node, ComputeNode):
            raise InvalidFlowError(
                f"process on {self._text_for_errors()}: windows of rows support only aggregates.",
                remedy="Call compute, or keep the last rows in a state of your own, as in "
                "key_by(...).process(function, state=...).",
            )
        options = self._identity_fields(_action_name(function))
        name = options["name"]
        check_window_function(name, node)
        check_signature(
            f"Operator {name!r}",
            function,
            "function(key, rows, window)",
            meant={"key": node.keys},
            operator=name,
        )
        return self._add_to_flow(**options, function=function, **read_output(name, output))

    def _add_to_flow(self, **values: Any) -> Stream:
        """Add the operator of the windows to the flow; return the stream of its output.

        `values`: further fields of the operator's node.
        """
        return add_to_flow(self.keyed.flow, replace(self.node, **values))

    def _identity_fields(self, action: str) -> dict[str, Any]:
        """Return the fields of the node that say which operator it is; `action`: of its name."""
        windows = str(self.windows[0]).replace(" ", "_")
        if len(self.windows) > 1:
            windows += f"_and_{len(self.windows) - 1}_more"
        sources = [source.name for source in sources_of(self.keyed.node)]
        default = default_name(sources, f"{action}_{windows}", self.keyed.keys)
        return identity_fields(self.identity, default)

    def _text_for_errors(self) -> str:
        """Return the stream and its windows as text for errors."""
        windows = ", ".join(map(str, self.windows))
        return f"{describe(self.keyed.node)} {keys_text(self.keyed.keys)}, {windows}"


def add_to_flow(flow: LogicalFlow, node: OperatorNode) -> Stream:
    """Add a keyed operator to the flow, and return the stream of its output."""
    flow._add_operator(node)  # noqa: SLF001  of a flow, for its streams alone
    return Stream(flow, node)


def _action_name(function: Callable[..., Any]) -> str:
    """Return the name of an operator's function, which is part of the operator's default name."""
    name = function_name(function)
    return "process" if name == "<lambda>" else name
