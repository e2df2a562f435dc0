"""Keyed streams whose rows are gathered in windows of event time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from godwit.api.call_checks import (
    check_aggregate,
    check_formerly,
    check_function,
    check_late,
    describe,
)
from godwit.api.calls import no_such_call
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
from godwit.plan.nodes import ComputeNode, WindowedNode, sources_of
from godwit.plan.output_time import check_output_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.api.keyed_stream import KeyedStream
    from godwit.api.stream import Stream
    from godwit.model.time_lengths import Duration
    from godwit.operators.aggregates import Aggregate

__all__ = ["WindowedStream"]

_SHARES: Final[dict[str, bool | None]] = {"measured": None, "always": True, "never": False}
_CONSOLIDATES: Final = ("together", "apart", "measured")


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
        return self.keyed.flow._operate(node)  # noqa: SLF001 - a flow and its streams are one module's worth

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
