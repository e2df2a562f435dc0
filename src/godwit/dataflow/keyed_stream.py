"""Keyed streams: what is computed per key.

Mistakes that need no knowledge of columns are found here, in the line that makes them; the others
when the flow is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from godwit.dataflow.call_checks import (
    check_aggregate,
    check_formerly,
    check_function,
    check_timers,
    describe,
)
from godwit.dataflow.calls import no_such_call
from godwit.dataflow.frames import user_call
from godwit.dataflow.naming import (
    check_column_names,
    default_name,
    did_you_mean,
    function_name,
    listing,
    type_name,
)
from godwit.dataflow.nodes import (
    Codec,
    ComputeNode,
    ProcessNode,
    StreamNode,
    sources_of,
)
from godwit.dataflow.types import SchemaLike, to_schema
from godwit.dataflow.windowed_stream import WindowedStream
from godwit.dataflow.windows.durations import microseconds
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.dataflow.aggregates import Aggregate
    from godwit.dataflow.flow import LogicalFlow
    from godwit.dataflow.nodes import TimerClock
    from godwit.dataflow.stream import Stream
    from godwit.dataflow.windows.durations import Duration
    from godwit.dataflow.windows.spec import WindowSpec

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
        self._check_not_results(name=name, output=output, formerly=formerly)
        if not aggregates:
            raise InvalidFlowError(
                f"compute by {listing(self.keys)} on {describe(self.node)} has no aggregates.",
                remedy="Name a result, as in compute(flights=gw.count()).",
            )
        action = "_".join(aggregates)
        if len(aggregates) > 3:
            action = "_".join([*list(aggregates)[:2], f"{len(aggregates) - 2}_more"])
        named, name = name is not None, self._operator_name(name, action)
        check_formerly(name, formerly)
        if output not in ("update", "complete"):
            raise InvalidFlowError(
                f"Operator {name!r} has output={output!r}.",
                remedy=f"{did_you_mean(str(output), ['update', 'complete'])}Give 'update' (keys "
                "that changed) or 'complete' (all keys).",
                operator=name,
            )
        for result, aggregate in aggregates.items():
            if result in self.keys:
                raise InvalidFlowError(
                    f"Operator {name!r} has a result {result!r}, which is the name of a key "
                    "column too.",
                    remedy="Give the result another name; key columns are in the output anyway.",
                    operator=name,
                    column=result,
                )
            check_aggregate(aggregate, result, name)
        check_column_names([*self.keys, *aggregates], f"Operator {name!r}")
        return self.flow._operate(  # noqa: SLF001 - a flow and its streams are one module's worth
            ComputeNode(
                name=name,
                upstream=self.node,
                keys=self.keys,
                aggregates=dict(aggregates),
                complete=output == "complete",
                formerly=formerly or "",
                named=named,
            )
        )

    @user_call
    def process(
        self,
        function: Callable[..., Any],
        *,
        state: Any = None,
        output: SchemaLike | None = None,
        name: str | None = None,
        codec: Codec = "msgpack",
        state_classes: Mapping[str, type] | Sequence[type] = (),
        state_upgrade: Callable[[Any], Any] | None = None,
        timers: TimerClock | None = None,
        on_timer: Callable[..., Any] | None = None,
        ttl: Duration | None = None,
        formerly: str | None = None,
    ) -> Stream:
        """Run a function of your own over the rows of each key, in arrival order.

        Parameters
        ----------
        function
            Called as ``function(key, rows, state)`` once per epoch for every key that has rows;
            returns the rows to emit, or ``None``. See `godwit.dataflow.process`.
        state
            Type of the state of one key; a new key starts with ``state()``.
        output
            Columns of the rows that it emits (see `godwit.dataflow.types.to_schema`).
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
        formerly
            Name that the operator had in the checkpoint; it keeps its state under the new one.

        Raises
        ------
        InvalidFlowError
            If the function cannot be called, state or output are left out, the codec is not known,
            or the operator's name is taken.
        """
        where = f"process by {listing(self.keys)} on {describe(self.node)}"
        check_function(function, where, "process(clear_market, state=..., output=...)")
        action = function_name(function)
        named = name is not None
        name = self._operator_name(name, "process" if action == "<lambda>" else action)
        check_formerly(name, formerly)
        if not callable(state):
            raise InvalidFlowError(
                f"Operator {name!r} has no type of state, but {state!r}."
                if state is not None
                else f"Operator {name!r} has no type of state.",
                remedy="Give a class that can be made without arguments, as in state=OrderBook or "
                "state=dict.",
                operator=name,
            )
        if output is None:
            raise InvalidFlowError(
                f"Operator {name!r} has no output columns.",
                remedy='Say what the function emits, as in output="symbol string, price double".',
                operator=name,
            )
        if codec not in ("msgpack", "pickle"):
            raise InvalidFlowError(
                f"Operator {name!r} has codec={codec!r}.",
                remedy=f"{did_you_mean(str(codec), ['msgpack', 'pickle'])}Give 'msgpack' or, for "
                "state that it cannot hold, 'pickle'.",
                operator=name,
            )
        if state_upgrade is not None and not callable(state_upgrade):
            raise InvalidFlowError(
                f"Operator {name!r} was given state_upgrade={state_upgrade!r}, which cannot be "
                "called.",
                remedy="Give a function that gets the old state as plain values and returns one "
                "of today's.",
                operator=name,
            )
        check_timers(name, timers, on_timer)
        return self.flow._operate(  # noqa: SLF001 - a flow and its streams are one module's worth
            ProcessNode(
                name=name,
                upstream=self.node,
                keys=self.keys,
                function=function,
                state_type=state,
                output=to_schema(output, where=f"The output of operator {name!r}"),
                codec=codec,
                state_classes=state_classes,
                state_upgrade=state_upgrade,
                timers=timers,
                on_timer=on_timer,
                ttl_us=None
                if ttl is None
                else microseconds(ttl, f"The time-to-live of operator {name!r}", least=1),
                formerly=formerly or "",
                named=named,
            )
        )

    @user_call
    def window(
        self,
        *windows: WindowSpec,
        time: str | None = None,
        output: Literal["append", "update"] = "append",
        late: Any = None,
        name: str | None = None,
        formerly: str | None = None,
    ) -> WindowedStream:
        """Say which windows of event time the next operator works on.

        Parameters
        ----------
        *windows
            ``gw.tumbling(...)``, ``gw.hopping(...)``, several of them at once, or one
            ``gw.session(...)``.
        time
            Column that holds the event time. Default: that of the source; after windows, the end
            of the window.
        output
            ``"append"``: a window comes out once, when the watermark has passed its end.
            ``"update"``: a window comes out in every epoch in which it grows.
        late
            Sink of the rows that are left out: too late for every window, too far ahead of the
            clock, or without an event time. They are counted in any case.
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
            self, windows, time=time, output=output, late=late, name=name, formerly=formerly
        )

    def _operator_name(self, name: str | None, action: str) -> str:
        if name is not None:
            return name
        return default_name([s.name for s in sources_of(self.node)], action, self.keys)

    def _check_not_results(self, **options: object) -> None:
        for option, value in options.items():
            if value is not None and not isinstance(value, str):
                given = "an aggregate" if hasattr(value, "bind") else type_name(value)
                raise InvalidFlowError(
                    f"compute by {listing(self.keys)} on {describe(self.node)} was given "
                    f"{given} for {option}=.",
                    remedy=f"{option}= is an option of compute and takes text; a result cannot be "
                    f"called {option!r}, so choose another name for it.",
                )
