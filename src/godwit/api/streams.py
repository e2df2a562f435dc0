"""Streams: what a user chains calls on, from a source to the sinks.

A stream is an immutable value: each call returns a new one and changes nothing, so one stream may
feed any number of operators and sinks.  A stream of a source or an operator is a `Stream`; keyed
(`KeyedStream`) it has operators, and in windows (`WindowedStream`) those over event time.  What a
call refuses at once is in `godwit.api.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from godwit.api.checks import (
    check_aggregate,
    check_formerly,
    check_function,
    check_keys,
    check_late,
    check_not_results,
    check_one_of,
    check_plain,
    check_process,
    check_results,
    check_same_flow,
    check_state_classes,
    check_suffix,
    check_table_names,
    check_timers,
    check_window_function,
    check_windows,
    checked_spread,
    describe,
    interval_of,
    operator_fields,
    read_output,
    warn_of_rebinding,
)
from godwit.api.names import no_such_call
from godwit.checkpoint.records import BROADCAST
from godwit.columns.types import SchemaLike, to_schema
from godwit.model.durations import microseconds
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import (
    check_column_names,
    default_name,
    function_name,
    listing,
    results_name,
    type_name,
)
from godwit.operators.asynchronous import settings_for
from godwit.operators.states.declared import check_states
from godwit.operators.states.operator import States
from godwit.operators.windows.rows import RowWindows
from godwit.plan.nodes import (
    ComputeNode,
    DropDuplicatesNode,
    JoinNode,
    MapNode,
    ProcessNode,
    SourceNode,
    StreamNode,
    TableNode,
    UnionNode,
    WindowedNode,
    branches_of,
    sources_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from godwit.model.durations import Duration
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.asynchronous import Async
    from godwit.operators.calls import TimerClock
    from godwit.operators.joins.sides import How
    from godwit.operators.states.declared import Declared
    from godwit.operators.windows.spec import WindowSpec
    from godwit.plan.nodes import Codec, OperatorNode


class OwningFlow(Protocol):
    """The flow that streams belong to, as far as streams use it."""

    name: str

    def _add_operator(self, node: OperatorNode) -> None: ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stream:
    """Rows that flow: from a source, out of a map, or out of a keyed operator.

    `Flow.source` makes the first one; nobody calls this class.
    """

    flow: OwningFlow
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
            On a source that is a DataFrame, before a keyed operator: DataFrame to DataFrame, over
            the rows of one epoch; any Spark SQL that needs no state of its own. On a source of
            Godwit's own: Arrow table to Arrow table, over some of an epoch's rows, in order. After
            a keyed operator: the same, over the rows that one lane emits in one epoch, in that
            lane.
        schema
            Columns that an Arrow function returns (see `godwit.columns.types.to_schema`). If left
            out, the function is called on a table without rows to find them.

        Raises
        ------
        InvalidFlowError
            If `function` cannot be called, a schema is given for a function over DataFrames, or
            the stream unites DataFrames with what has Arrow tables.

        Examples
        --------
        >>> flights.map(lambda df: df.where("arr_delay is not null"))  # doctest: +SKIP
        """
        where = f"map on {describe(self.node)}"
        check_function(function, where, "map(lambda df: df.where(...))")
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
            check_same_flow(self.flow, other.flow, where)
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
        """Keep the first row of each key, in order of arrival, and drop its duplicates.

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
        options = operator_fields(self.node, keys, name, "drop_duplicates", formerly)
        within_us = None
        if not (isinstance(within, str) and within == "forever"):  # a Series has no truth
            within_us = microseconds(within, f"The time of operator {options['name']!r}", least=1)
        return _operate(self.flow, DropDuplicatesNode(within_us=within_us, late=late, **options))

    @user_call
    def key_by(self, *columns: str) -> KeyedStream:
        """Key the stream by columns, for the next operator.

        Nulls are values like any other: rows whose key is null have one key.

        Raises
        ------
        InvalidFlowError
            If there is no column, one is not text, or one comes twice.
        """
        keys = check_keys(columns, f"key_by on {describe(self.node)}", 'key_by("origin", "dest")')
        return KeyedStream(self.flow, self.node, keys)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeyedStream:
    """A stream whose rows have a key; `Stream.key_by` makes it."""

    flow: OwningFlow
    node: StreamNode
    keys: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"<KeyedStream of flow {self.flow.name!r}: {describe(self.node)} "
            f"by {', '.join(self.keys)}>"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            where = f"A keyed stream ({describe(self.node)} by {', '.join(self.keys)})"
            raise no_such_call(name, where, keyed=True)

    @user_call
    def compute(
        self,
        *,
        name: str | None = None,
        output: Literal["update", "complete"] = "update",
        formerly: str | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Aggregate all rows of each key so far.

        Parameters
        ----------
        name
            The operator's name, by which its state is found again. Default: the source, the
            results and the key, such as ``flights_total_by_tailnum``.
        output
            ``"update"``: an epoch emits the keys that it changed. ``"complete"``: every epoch
            emits all keys, which costs time in proportion to them.
        formerly
            Name that the operator had in the checkpoint; it keeps its state under the new one.
        **aggregates
            Name of a result column → aggregate, as in ``total=gw.sum("arr_delay")``.

        Returns
        -------
        Stream
            The key columns, then one column per aggregate.

        Raises
        ------
        InvalidFlowError
            If there is no aggregate, one is something else, a result has the name of a key column
            or a reserved one, or the operator's name is taken.
        """
        where = self._where("compute")
        check_not_results(where, name=name, output=output, formerly=formerly)
        if not aggregates:
            raise InvalidFlowError(
                f"{where} has no aggregates.",
                remedy="Name a result, as in compute(flights=gw.count()).",
            )
        options = self._named(name, results_name(aggregates), formerly)
        check_results(options["name"], self.keys, aggregates, output)
        check_column_names([*self.keys, *aggregates], f"Operator {options['name']!r}")
        node = ComputeNode(aggregates=dict(aggregates), complete=output == "complete", **options)
        return _operate(self.flow, node)

    @user_call
    def process(
        self,
        function: Callable[..., Any],
        *,
        state: Any = None,
        states: Mapping[str, Declared] | None = None,
        output: SchemaLike | None = None,
        name: str | None = None,
        codec: Codec = "msgpack",
        state_classes: Mapping[str, type] | Sequence[type] = (),
        state_upgrade: Callable[[Any], Any] | None = None,
        timers: TimerClock | None = None,
        on_timer: Callable[..., Any] | None = None,
        ttl: Duration | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
        asynchronous: Async | None = None,
        broadcast: Mapping[str, KeyedStream] | None = None,
        formerly: str | None = None,
    ) -> Stream:
        """Run a function of your own over the rows of each key, in arrival order.

        Parameters
        ----------
        function
            Called as ``function(key, rows, state)`` once per epoch for every key that has rows;
            returns the rows to emit, or ``None``. See `godwit.operators.process`. Of an ``async
            def`` the calls for several keys run side by side, those for one key in order.
        state
            Type of the state of one key; a new key starts with ``state()``.
        states
            Several states in place of one: name → `godwit.ValueState`, `godwit.ListState` or
            `godwit.MapState`. The function is called with `godwit.States`, and each is read and
            written only where the function touches it.
        output
            Columns of the rows that it emits (see `godwit.columns.types.to_schema`).
        name
            The operator's name, by which its state is found again. Default: the source, the
            function and the key, such as ``orders_clear_market_by_symbol``.
        codec
            How state is written: ``"msgpack"``, or ``"pickle"`` for what that cannot hold. Reading
            pickled state runs code, so only open such a checkpoint if you trust it.
        state_classes
            Classes (dataclasses, `msgspec.Struct`, named tuples, enumerations) that state may hold
            besides those that its type mentions: a subclass in ``list[Base]``, anything in a plain
            ``dict``. A mapping gives them names of their own, by which state finds them again.
        state_upgrade
            Called with the old state of a key, as plain values (a dict for a class), and returns
            the new one; for state that was written when its type was another and that does not fit
            as it is.
        timers
            Clock that the key's timers go by: ``"event"``, the watermark, or ``"processing"``, the
            driver's clock. The function sets them by ``rows.timers`` (`godwit.Timers`).
        on_timer
            Called as ``on_timer(key, timer, state)`` for every timer that is due
            (`godwit.FiredTimer`); returns the rows to emit, or ``None``.
        ttl
            State is forgotten once its key was not touched for this long by the driver's clock.
        event_time
            Column of the output that operators behind take for event time, unless they name
            another.
        slack
            How far behind the watermark that column may be: by default 0, which is right of rows
            that are emitted as they come. A function that keeps rows and emits them later, from a
            timer say, has to allow for that.
        asynchronous
            For an ``async def``: how many keys at once, time-out, retries, and what is kept between
            epochs (`godwit.Async`).
        broadcast
            Name → keyed stream of a source, whose newest row of each key every lane has: a small
            table of rates or rules. Functions get it by that name, as a read-only mapping of keys
            (tuples, if of several columns) to the other columns.
        formerly
            Name that the operator had in the checkpoint; it keeps its state under the new one.

        Raises
        ------
        InvalidFlowError
            If the function cannot be called, state or output are left out, the codec is not known,
            a declaration will not do, or the operator's name is taken.
        """
        where = self._where("process")
        check_function(function, where, "process(clear_market, state=..., output=...)")
        options = self._named(name, _action(function), formerly)
        name = options["name"]
        if states is not None:
            states = check_states(name, states, state=state, state_upgrade=state_upgrade, ttl=ttl)
        check_process(name, States if states else state, codec, state_upgrade)
        columns, column, slack_us = read_output(name, output, event_time, slack)
        check_state_classes(name, state_classes)
        check_timers(name, timers, on_timer)
        functions = (function, *(() if on_timer is None else (on_timer,)))
        for called in functions:
            warn_of_rebinding(name, called, stacklevel=3)  # of the line that calls process
        asynchronous = settings_for(name, asynchronous, functions)
        resources = () if asynchronous is None else asynchronous.resources
        tables = self._tables(name, broadcast, taken=(*resources, *(states or ())))
        lives = f"The time-to-live of operator {name!r}"
        node = ProcessNode(
            function=function,
            state_type=state,
            states=states or {},
            output=columns,
            event_time=column,
            slack_us=slack_us,
            codec=codec,
            state_classes=state_classes,
            state_upgrade=state_upgrade,
            timers=timers,
            on_timer=on_timer,
            ttl_us=None if ttl is None else microseconds(ttl, lives, least=1),
            asynchronous=asynchronous,
            tables=tables,
            **options,
        )
        return _operate(self.flow, node)

    def _tables(self, name: str, broadcast: Any, *, taken: Collection[str]) -> dict[str, TableNode]:
        """Read the tables of an operator's functions, or refuse what is none."""
        if broadcast is None:
            return {}
        example = 'as in broadcast={"rates": rates.key_by("currency")}'
        check_table_names(name, broadcast, example)
        tables = {}
        for table, stream in broadcast.items():
            what = f"Operator {name!r} was given, for its table {table!r},"
            if not isinstance(stream, KeyedStream):
                raise InvalidFlowError(
                    f"{what} a value of type {type_name(stream)}.",
                    remedy=f"Give a stream, and say which columns are its key, {example}.",
                    operator=name,
                )
            check_same_flow(self.flow, stream.flow, f"Table {table!r} of operator {name!r}")
            if not all(isinstance(b.feed, SourceNode) for b in branches_of(stream.node)):
                raise InvalidFlowError(
                    f"{what} {describe(stream.node)}, and only rows of sources are broadcast.",
                    remedy="Map the source in place of computing, or join with what the operator "
                    "emits, by key.",
                    operator=name,
                )
            if table in taken or f"{BROADCAST}{table}" in taken:
                raise InvalidFlowError(
                    f"Operator {name!r} has a table and a state, or a resource, of one name, "
                    f"{table!r}.",
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
        name: str | None = None,
        formerly: str | None = None,
    ) -> WindowedStream:
        """Assign rows to windows of event time, for the next operator.

        Parameters
        ----------
        *windows
            ``gw.tumbling(...)``, ``gw.hopping(...)``, several of them at once, or one
            ``gw.session(...)`` or ``gw.rows(...)``.
        time
            Column that holds the event time. Default: that of the source; after windows, the end
            of the window.
        output
            ``"append"``: a window comes out once, when the watermark has passed its end.
            ``"update"``: a window comes out in every epoch in which it grows.
        late
            Sink of the rows that are left out: too late for every window, too far ahead of the
            clock, or without an event time. They are counted in any case.
        share
            Whether windows that overlap share panes (``"always"``), have a state each
            (``"never"``), or either, as costs come out while the query runs.
        consolidate
            ``"together"``: one operator keeps panes and merges them into windows. ``"apart"``: it
            is two, of two components, between which there is an exchange. ``"measured"``: it is
            two, which begin in one component and part, and come together again, as costs come out
            while the query runs (see `gw.Adaptation`). Only for `compute`.
        allowed_lateness
            How long, by the watermark, a window that has come out still takes rows, as in Flink: it
            comes out again in every epoch that brings some, so its sink should replace rows by key
            and window. Its state is kept as much longer. ``slack=`` of the source waits instead,
            before a window comes out once. Only for `compute` of windows of fixed lengths.
        length_as
            Name of a column of text, behind ``window_end``, that says how long a row's window is,
            such as ``"1 hour"``: tells several windows apart. Only for `compute`.
        name, formerly
            As of `compute`; they stand here so that results may have any name.

        Raises
        ------
        InvalidFlowError
            If there is no window, a session comes with others, or an option will not do.

        Examples
        --------
        >>> hourly = flights.key_by("origin").window(gw.tumbling("1 hour"))  # doctest: +SKIP
        >>> hourly.compute(mean=gw.mean("arr_delay"), flights=gw.count())  # doctest: +SKIP
        """
        lateness_us = check_windows(
            self._where("window"),
            windows,
            time=time,
            output=output,
            late=late,
            share=share,
            consolidate=consolidate,
            allowed_lateness=allowed_lateness,
            length_as=length_as,
            name=name,
        )
        # Name and aggregates or function are those of the next call.
        options: dict[str, Any] = {"name": "", "upstream": self.node, "keys": self.keys}
        options |= {"named": name is not None, "aggregates": {}}
        node: ComputeNode | WindowedNode
        if isinstance(windows[0], RowWindows):
            node = ComputeNode(windows=windows[0], complete=False, **options)
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
        return WindowedStream(self, windows, node, name, formerly)

    @user_call
    def join(
        self,
        other: KeyedStream,
        *,
        between: tuple[Duration, Duration],
        how: How = "inner",
        suffix: str | None = None,
        late: Any = None,
        spread: int | None = None,
        name: str | None = None,
        formerly: str | None = None,
    ) -> Stream:
        """Join with rows of another keyed stream that happened within an interval.

        A pair comes out as the second of its rows arrives. A row that met none comes out, where
        `how` says so, once the watermark has passed all that it could meet; so long is it kept.

        Parameters
        ----------
        other
            The right stream, keyed by as many columns of the same types. Null keys equal nothing.
        between
            How long after a row of the left one of the right happens, at least and at most; both
            count. Negative for before: ``("-10 minutes", "1 hour")``.
        how
            ``"inner"``, ``"left"``, ``"right"`` or ``"full"``: whose rows come out that met none,
            with nulls in place of the other's columns.
        suffix
            Put behind names of the right that the left has too.
        late
            Sink of the rows of either side that are left out: older than the watermark, too far
            ahead of the clock, or without an event time. They are counted in any case.
        spread
            Into how many parts, from 2 to 256, the rows of a hot key may be divided, so that
            several lanes join them; of an inner join. Which keys are hot is found as the stream
            runs (``gw.Adaptation(spreading=gw.Spreading())``), or said by
            ``query.hot_keys.spread(...)``. By default all rows of a key go to one lane. A join that
            has state gets no `spread`, and does not lose it.
        name, formerly
            As of `compute`.

        Returns
        -------
        Stream
            The key columns, the other columns of the left, those of the right. Its event time is
            that of the left, unless ``window(..., time=...)`` names another column.

        Raises
        ------
        InvalidFlowError
            If this is no keyed stream of the flow, or an option will not do.

        Examples
        --------
        >>> orders.key_by("id").join(
        ...     payments.key_by("order"), between=("0 seconds", "1 hour"), how="left"
        ... )  # doctest: +SKIP
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
            formerly=formerly,
        )
        if spread is not None and how != "inner":
            raise InvalidFlowError(
                f"{self._where('join')} has spread={spread} and how={how!r}: where a row may meet "
                "others in several parts, none of them can tell that it met none.",
                remedy="Leave spread= out, or let it be an inner join.",
            )
        node = JoinNode(between_us=interval_of(between, self._where("join")), **options)
        return _operate(self.flow, node)

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
        name: str | None = None,
        formerly: str | None = None,
    ) -> Stream:
        """Join every row with the newest row of another keyed stream, as of when it happened.

        That is the row of the same key that happened last, at the same moment at the latest; of
        several at one moment the one that arrived last. A row comes out once the watermark has
        passed it, since only then is it known.

        Parameters
        ----------
        other
            The right stream, keyed by as many columns of the same types. Null keys equal nothing.
        within
            How much older the row of the right may be. Without it the newest row of each key is
            kept for good.
        how
            ``"left"``: rows for which there is none come out with nulls. ``"inner"``: they do not.
        suffix, late, name, formerly
            As of `join`.
        spread
            Into how many parts, from 2 to 256, rows of the left of every key are divided, so that
            several lanes join them; rows of the right go to all parts. Worth it where the left has
            hot keys, and the right few rows.

        Returns
        -------
        Stream
            The key columns, the other columns of the left, those of the right.

        Raises
        ------
        InvalidFlowError
            As of `join`.

        Examples
        --------
        >>> flights.key_by("origin").join_newest(weather.key_by("origin"))  # doctest: +SKIP
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
            formerly=formerly,
        )
        if within is not None:
            bound = f"within= of {self._where('join_newest')}"
            options["within_us"] = microseconds(within, bound, least=0)
        return _operate(self.flow, JoinNode(**options))

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
        name: str | None,
        formerly: str | None,
    ) -> dict[str, Any]:
        """Check the options that both joins have, and return them as fields of the node."""
        where = self._where(action)
        if not isinstance(other, KeyedStream):
            raise InvalidFlowError(
                f"{where} was given a value of type {type_name(other)}, not a keyed stream.",
                remedy='Key the other stream too, as in orders.key_by("id").join('
                'payments.key_by("order"), ...); a table that does not stream is joined in a map.',
            )
        check_same_flow(self.flow, other.flow, where)
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
            **self._named(name, f"{action}_{sources}", formerly),
        }

    def _where(self, action: str) -> str:
        """Name a call on this stream, for messages."""
        return f"{action} by {listing(self.keys)} on {describe(self.node)}"

    def _named(self, name: str | None, action: str, formerly: str | None) -> dict[str, Any]:
        """Fields that nodes of all operators have: name, former names, key."""
        return operator_fields(self.node, self.keys, name, action, formerly)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WindowedStream:
    """A keyed stream in windows; `KeyedStream.window` makes it."""

    keyed: KeyedStream
    windows: tuple[WindowSpec | RowWindows, ...]
    node: ComputeNode | WindowedNode  # of the operator to be, without its name and results
    name: str | None
    formerly: str | None

    def __repr__(self) -> str:
        return f"<WindowedStream of {self.keyed!r}: {', '.join(map(str, self.windows))}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_call(name, f"A windowed stream ({self._what()})", keyed=True)

    @user_call
    def compute(self, **aggregates: Aggregate) -> Stream:
        """Aggregate the rows of each key and window.

        Parameters
        ----------
        **aggregates
            Name of a result column → aggregate, as in ``total=gw.sum("arr_delay")``.

        Returns
        -------
        Stream
            The key columns, ``window_start`` (in the window) and ``window_end`` (not in it any
            more), or ``window_number`` of windows of rows (which of the key's windows, from 0),
            then one column per aggregate.

        Raises
        ------
        InvalidFlowError
            If there is no aggregate, one is something else, a result has the name of another
            column, or the operator's name is taken.
        """
        if not aggregates:
            raise InvalidFlowError(
                f"compute on {self._what()} has no aggregates.",
                remedy="Name a result, as in compute(flights=gw.count()).",
            )
        name = self._operator_name(results_name(aggregates))
        for result, aggregate in aggregates.items():
            check_aggregate(aggregate, result, name)
        return self._operate(name, aggregates=dict(aggregates))

    @user_call
    def process(
        self,
        function: Callable[..., Any],
        *,
        output: SchemaLike | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
    ) -> Stream:
        """Run a function of your own over the rows of each key and window, once it is over.

        Parameters
        ----------
        function
            Called as ``function(key, rows, window)`` with the tuple of key values, the rows
            (`godwit.KeyRows`) in order of arrival, those of a session in order of event time, and
            the `godwit.Window`; returns the rows to emit, or ``None``.
        output
            Columns of the rows that it emits (see `godwit.columns.types.to_schema`).
        event_time
            Column of the output that operators behind take for event time, unless they name
            another.
        slack
            How far behind the watermark that column may be. By default as much as the longest
            window is long, which what lies in a window never exceeds; of a window's end, it may be
            0. Sessions may be of any length, so it has to be said of what they emit.

        Raises
        ------
        InvalidFlowError
            If the function cannot be called, windows are to come out as they grow, the output is
            left out, or the operator's name is taken.
        """
        check_function(function, f"process on {self._what()}", "process(rank, output=...)")
        check_plain(function, f"process on {self._what()}")
        node = self.node
        if isinstance(node, ComputeNode):
            raise InvalidFlowError(
                f"process on {self._what()}: windows of rows have aggregates only.",
                remedy="Call compute, or keep the last rows in a state of your own, as in "
                "key_by(...).process(function, state=...).",
            )
        name = self._operator_name(_action(function))
        check_window_function(name, node)
        columns, column, slack_us = read_output(name, output, event_time, slack)
        return self._operate(
            name, function=function, output=columns, event_time=column, slack_us=slack_us
        )

    def _operate(self, name: str, **values: Any) -> Stream:
        """Add the operator with its name and results, and return its stream."""
        check_formerly(name, self.formerly)
        node = replace(self.node, name=name, formerly=self.formerly or "", **values)
        return _operate(self.keyed.flow, node)

    def _operator_name(self, action: str) -> str:
        """Return the operator's name: the user's, or one of what it does and its windows."""
        if self.name is not None:
            return self.name
        windows = str(self.windows[0]).replace(" ", "_")
        if len(self.windows) > 1:
            windows += f"_and_{len(self.windows) - 1}_more"
        sources = [source.name for source in sources_of(self.keyed.node)]
        return default_name(sources, f"{action}_{windows}", self.keyed.keys)

    def _what(self) -> str:
        """Describe the stream and its windows, for messages."""
        windows = ", ".join(map(str, self.windows))
        return f"{describe(self.keyed.node)} by {', '.join(self.keyed.keys)}, {windows}"


def _operate(flow: OwningFlow, node: OperatorNode) -> Stream:
    """Add a keyed operator to the flow, and return the stream that comes out of it."""
    flow._add_operator(node)  # noqa: SLF001  of a flow, for its streams alone
    return Stream(flow, node)


def _action(function: Callable[..., Any]) -> str:
    """Name what an operator does after its function."""
    name = function_name(function)
    return "process" if name == "<lambda>" else name
