"""Keyed streams: what is computed per key, as users write it.

What a call adds to the flow, and which mistakes it refuses, is in `godwit.api.keyed_nodes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from godwit.api.call_checks import describe
from godwit.api.calls import no_such_call
from godwit.api.keyed_nodes import compute_node, join_newest_node, join_node, process_node
from godwit.api.windowed_stream import WindowedStream
from godwit.model.frames import user_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.api.flow import LogicalFlow
    from godwit.api.stream import Stream
    from godwit.columns.types import SchemaLike
    from godwit.model.time_lengths import Duration
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.firing import TimerClock
    from godwit.operators.joins.sides import How
    from godwit.operators.states.declared import Declared
    from godwit.operators.windows.rows import RowWindows
    from godwit.operators.windows.spec import WindowSpec
    from godwit.plan.nodes import Codec, OperatorNode, StreamNode

__all__ = ["KeyedStream"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeyedStream:
    """A stream whose rows have a key; `Stream.key_by` makes it."""

    flow: LogicalFlow
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
        return self._operate(
            compute_node(self, aggregates, name=name, output=output, formerly=formerly)
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
        return self._operate(
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
            )
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
        return self._operate(
            join_node(
                self,
                other,
                between=between,
                how=how,
                suffix=suffix,
                late=late,
                name=name,
                formerly=formerly,
            )
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
        return self._operate(
            join_newest_node(
                self,
                other,
                within=within,
                how=how,
                suffix=suffix,
                late=late,
                name=name,
                formerly=formerly,
            )
        )

    def _operate(self, node: OperatorNode) -> Stream:
        return self.flow._operate(node)  # noqa: SLF001 - a flow and its streams are one module's worth
