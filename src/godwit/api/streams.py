"""Streams: what a user chains calls on, from a source to the sinks.

A stream is an immutable value: each call returns a new one and changes nothing, so one stream may
feed any number of operators and sinks.  A stream of a source or an operator is a `Stream`; keyed
(`KeyedStream`) it has operators, and in windows (`WindowedStream`) those over event time.  What a
call adds to the flow, and which mistakes it refuses, is in `godwit.api.nodes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from godwit.api.names import no_such_call
from godwit.api.nodes import (
    check_aggregate,
    check_formerly,
    check_function,
    check_keys,
    check_late,
    compute_node,
    describe,
    join_newest_node,
    join_node,
    process_node,
)
from godwit.columns.types import SchemaLike, to_schema
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import (
    default_name,
    did_you_mean,
    function_name,
    is_one_of,
    listing,
    results_name,
    type_name,
)
from godwit.model.time_lengths import microseconds
from godwit.operators.windows.rows import RowWindows
from godwit.operators.windows.spec import Hopping, Session, WindowSpec, grid_of
from godwit.plan.nodes import (
    ComputeNode,
    DropDuplicatesNode,
    MapNode,
    SourceNode,
    StreamNode,
    UnionNode,
    WindowedNode,
    branches_of,
    sources_of,
)
from godwit.plan.output_time import check_output_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.api.nodes import OwningFlow
    from godwit.model.time_lengths import Duration
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.firing import TimerClock
    from godwit.operators.joins.sides import How
    from godwit.operators.states.declared import Declared
    from godwit.plan.nodes import Codec, OperatorNode

__all__ = ["KeyedStream", "Stream", "WindowedStream"]

_SHARES: Final[dict[str, bool | None]] = {"measured": None, "always": True, "never": False}
_CONSOLIDATES: Final = ("together", "apart", "measured")


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
        return _operate(
            self.flow,
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
            ),
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
        return _operate(
            self.flow, compute_node(self, aggregates, name=name, output=output, formerly=formerly)
        )

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
        formerly: str | None = None,
    ) -> Stream:
        """Run a function of your own over the rows of each key, in arrival order.

        Parameters
        ----------
        function
            Called as ``function(key, rows, state)`` once per epoch for every key that has rows;
            returns the rows to emit, or ``None``. See `godwit.operators.process`.
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
        formerly
            Name that the operator had in the checkpoint; it keeps its state under the new one.

        Raises
        ------
        InvalidFlowError
            If the function cannot be called, state or output are left out, the codec is not known,
            a declaration will not do, or the operator's name is taken.
        """
        return _operate(
            self.flow,
            process_node(
                self,
                function,
                state=state,
                states=states,
                output=output,
                name=name,
                codec=codec,
                state_classes=state_classes,
                state_upgrade=state_upgrade,
                timers=timers,
                on_timer=on_timer,
                ttl=ttl,
                event_time=event_time,
                slack=slack,
                formerly=formerly,
            ),
        )

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
        """Say which windows of event time the next operator works on.

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
        return WindowedStream.of(
            self,
            windows,
            time=time,
            output=output,
            late=late,
            share=share,
            consolidate=consolidate,
            allowed_lateness=allowed_lateness,
            length_as=length_as,
            name=name,
            formerly=formerly,
        )

    @user_call
    def join(
        self,
        other: KeyedStream,
        *,
        between: tuple[Duration, Duration],
        how: How = "inner",
        suffix: str | None = None,
        late: Any = None,
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
        return _operate(
            self.flow,
            join_node(
                self,
                other,
                between=between,
                how=how,
                suffix=suffix,
                late=late,
                name=name,
                formerly=formerly,
            ),
        )

    @user_call
    def join_newest(
        self,
        other: KeyedStream,
        *,
        within: Duration | None = None,
        how: Literal["left", "inner"] = "left",
        suffix: str | None = None,
        late: Any = None,
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
        return _operate(
            self.flow,
            join_newest_node(
                self,
                other,
                within=within,
                how=how,
                suffix=suffix,
                late=late,
                name=name,
                formerly=formerly,
            ),
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class WindowedStream:
    """A keyed stream in windows; `KeyedStream.window` makes it."""

    keyed: KeyedStream
    windows: tuple[WindowSpec | RowWindows, ...]
    time: str | None
    update: bool
    late: Any
    share: bool | None
    consolidate: Literal["together", "apart", "measured"]
    lateness_us: int
    length_as: str | None
    name: str | None
    formerly: str | None

    @classmethod
    def of(
        cls,
        keyed: KeyedStream,
        windows: tuple[WindowSpec | RowWindows, ...],
        *,
        time: str | None,
        output: Literal["append", "update"],
        late: Any,
        share: Literal["measured", "always", "never"],
        consolidate: Literal["together", "apart", "measured"],
        allowed_lateness: Duration,
        length_as: str | None,
        name: str | None,
        formerly: str | None,
    ) -> WindowedStream:
        """Check what `KeyedStream.window` was given."""
        where = f"window by {listing(keyed.keys)} on {describe(keyed.node)}"
        if not windows:
            raise InvalidFlowError(
                f"{where} names no window.",
                remedy='Name at least one, as in window(gw.tumbling("1 hour")).',
            )
        for spec in windows:
            if not isinstance(spec, Hopping | Session | RowWindows):
                raise InvalidFlowError(
                    f"{where} was given a value of type {type_name(spec)}.",
                    remedy='Give windows, as in window(gw.hopping("6 hours", every="1 hour")).',
                )
        if any(isinstance(spec, RowWindows) for spec in windows):
            _check_rows(
                where, windows, time=time, output=output, late=late, share=share,
                consolidate=consolidate, allowed_lateness=allowed_lateness, length_as=length_as,
            )  # fmt: skip
        sessions = [spec for spec in windows if isinstance(spec, Session)]
        if sessions and len(windows) > 1:
            raise InvalidFlowError(
                f"{where} has a session beside other windows.",
                remedy="Call window(...) twice on the keyed stream, and give each result a name.",
            )
        if not sessions and not isinstance(windows[0], RowWindows):
            grid_of([spec for spec in windows if isinstance(spec, Hopping)], where)
        if not is_one_of(output, ("append", "update")):
            raise InvalidFlowError(
                f"{where} has output={output!r}.",
                remedy=f"{did_you_mean(str(output), ['append', 'update'])}Give 'append' (a window "
                "comes out when it is over) or 'update' (whenever it grows).",
            )
        if sessions and output == "update":
            raise InvalidFlowError(
                f"{where} has a session and output='update'.",
                remedy="Two sessions may become one, so what came out would have to be taken back; "
                "leave output= out.",
            )
        if share not in _SHARES:
            raise InvalidFlowError(
                f"{where} has share={share!r}.",
                remedy=f"{did_you_mean(str(share), list(_SHARES))}Give 'always' (windows that "
                "overlap share panes), 'never' (each has a state of its own) or 'measured'.",
            )
        if share == "never" and output == "update":
            raise InvalidFlowError(
                f"{where} has share='never' and output='update'.",
                remedy="Windows that come out as they grow are made of panes; leave share= out.",
            )
        if not is_one_of(consolidate, _CONSOLIDATES):
            raise InvalidFlowError(
                f"{where} has consolidate={consolidate!r}.",
                remedy=f"{did_you_mean(str(consolidate), _CONSOLIDATES)}Give 'together' (one "
                "operator), 'apart' (two, of which the first can be migrated without moving "
                "state) or 'measured' (two, in one component or apart as costs say).",
            )
        counted = any(isinstance(spec, Hopping) and spec.calendar for spec in windows)
        if counted and (share == "never" or consolidate != "together"):
            raise InvalidFlowError(
                f"{where} has windows of a calendar, and "
                + (f"share={share!r}." if share == "never" else f"consolidate={consolidate!r}."),
                remedy="Windows of local days and months always share panes, and are consolidated "
                "where these are; leave the option out.",
            )
        if consolidate != "together" and (sessions or output == "update"):
            raise InvalidFlowError(
                f"{where} has consolidate={consolidate!r} and "
                + ("a session." if sessions else "output='update'."),
                remedy="Only windows of fixed lengths that come out once, when they are over, are "
                "made of partial states; leave consolidate= out.",
            )
        lateness_us = microseconds(allowed_lateness, f"The allowed lateness of {where}", least=0)
        if lateness_us and (sessions or share == "never" or consolidate != "together"):
            raise InvalidFlowError(
                f"{where} has allowed_lateness={allowed_lateness!r} and "
                + (
                    "a session."
                    if sessions
                    else f"share={share!r}."
                    if share == "never"
                    else f"consolidate={consolidate!r}."
                ),
                remedy="Only windows of fixed lengths that share panes, and are consolidated where "
                "these are, can come out again; give the source more slack= instead, or leave the "
                "other option out.",
            )
        if sessions and length_as is not None:
            raise InvalidFlowError(
                f"{where} has length_as={length_as!r} and a session, which has no length of its "
                "own.",
                remedy="Leave length_as= out.",
            )
        for option, value in (("time", time), ("name", name), ("length_as", length_as)):
            if value is not None and not isinstance(value, str):
                raise InvalidFlowError(
                    f"{where} was given a value of type {type_name(value)} for {option}=.",
                    remedy=f"Give {option}= as text.",
                )
        check_late(late, where)
        return cls(
            keyed=keyed,
            windows=windows,
            time=time,
            update=output == "update",
            late=late,
            share=_SHARES[share],
            consolidate=consolidate,
            lateness_us=lateness_us,
            length_as=length_as,
            name=name,
            formerly=formerly,
        )

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
        if isinstance(self.windows[0], RowWindows):
            raise InvalidFlowError(
                f"process on {self._what()}: windows of rows have aggregates only.",
                remedy="Call compute, or keep the last rows in a state of your own, as in "
                "key_by(...).process(function, state=...).",
            )
        action = function_name(function)
        name = self._operator_name("process" if action == "<lambda>" else action)
        if self.update:
            raise InvalidFlowError(
                f"Operator {name!r} has a function, and output='update'.",
                remedy="A function is called when its window is over: leave output= of window out.",
                operator=name,
            )
        if self.consolidate != "together":
            raise InvalidFlowError(
                f"Operator {name!r} has a function, and consolidate={self.consolidate!r}.",
                remedy="A function needs all rows of its window, and nothing says how to merge "
                "what it would make of some: leave consolidate= of window out.",
                operator=name,
            )
        if self.lateness_us or self.length_as is not None:
            option = "allowed_lateness" if self.lateness_us else "length_as"
            raise InvalidFlowError(
                f"Operator {name!r} has a function, and {option}=.",
                remedy="It is of windows that compute(...) makes: leave it out of window(...); the "
                "function is given its window's bounds, and slack= of the source waits for rows.",
                operator=name,
            )
        if output is None:
            raise InvalidFlowError(
                f"Operator {name!r} has no output columns.",
                remedy='Say what the function emits, as in output="symbol string, price double".',
                operator=name,
            )
        columns = to_schema(output, where=f"The output of operator {name!r}")
        column, slack_us = check_output_time(name, columns, event_time, slack)
        return self._operate(
            name,
            aggregates={},
            function=function,
            output=columns,
            event_time=column,
            slack_us=slack_us,
        )

    def _operate(self, name: str, **values: Any) -> Stream:
        check_formerly(name, self.formerly)
        values |= {
            "name": name,
            "upstream": self.keyed.node,
            "keys": self.keyed.keys,
            "formerly": self.formerly or "",
            "named": self.name is not None,
        }
        node: ComputeNode | WindowedNode
        if isinstance(self.windows[0], RowWindows):
            node = ComputeNode(windows=self.windows[0], complete=False, **values)
        else:
            node = WindowedNode(
                windows=tuple(w for w in self.windows if not isinstance(w, RowWindows)),
                time=self.time,
                update=self.update,
                late=self.late,
                share=self.share,
                consolidate=self.consolidate,
                lateness_us=self.lateness_us,
                length_as=self.length_as,
                **values,
            )
        return _operate(self.keyed.flow, node)

    def _operator_name(self, action: str) -> str:
        if self.name is not None:
            return self.name
        windows = str(self.windows[0]).replace(" ", "_")
        if len(self.windows) > 1:
            windows += f"_and_{len(self.windows) - 1}_more"
        sources = [source.name for source in sources_of(self.keyed.node)]
        return default_name(sources, f"{action}_{windows}", self.keyed.keys)

    def _what(self) -> str:
        windows = ", ".join(map(str, self.windows))
        return f"{describe(self.keyed.node)} by {', '.join(self.keyed.keys)}, {windows}"


def _check_rows(where: str, windows: Sequence[WindowSpec | RowWindows], **options: Any) -> None:
    """Refuse what windows of rows cannot have: others beside them, and options of event time."""
    if len(windows) > 1:
        raise InvalidFlowError(
            f"{where} has windows of rows beside other windows.",
            remedy="Call window(...) twice on the keyed stream, and give each result a name.",
        )
    defaults = {
        "output": "append",
        "share": "measured",
        "consolidate": "together",
        "allowed_lateness": "0 seconds",
    }
    for option, value in options.items():
        if value != defaults.get(option):
            raise InvalidFlowError(
                f"{where} has windows of rows and {option}={value!r}.",
                remedy="Windows of rows know no event time, and come out when their last row has "
                f"come; leave {option}= out.",
            )


def _operate(flow: OwningFlow, node: OperatorNode) -> Stream:
    """Add a keyed operator to the flow, and return the stream that comes out of it."""
    flow._add_operator(node)  # noqa: SLF001  of a flow, for its streams alone
    return Stream(flow, node)
