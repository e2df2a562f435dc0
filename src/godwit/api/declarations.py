"""Values that say more than a bare argument: `Identity` of an operator, `Output`, `OnTimer`.

Most calls give such an argument as a text or a schema, or leave it out. One value has all options
that a user chooses together.

A type checker finds whether the class of the rows, the type of the state, the class of the output
and the functions of a call of ``process`` agree. `O` has a bound, so that a function that emits
instances of one class where another was said has no solution: what the two have in common is not a
class of rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    overload,
)

from godwit.model.frames import user_class

if TYPE_CHECKING:
    from godwit.columns.types import SchemaLike
    from godwit.operators.timers import FiredTimer, TimerClock, TimerOrder
    from godwit.time.durations import Duration


class Fields(Protocol):
    """An instance of a class with declared fields: a dataclass, or a `msgspec.Struct`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Row: TypeAlias = Fields | tuple[Any, ...] | list[Any] | dict[str, Any]

R = TypeVar("R")
"""Class of the rows."""
S = TypeVar("S")
"""Type of the state."""
O = TypeVar("O", bound=Row)  # noqa: E741
"""Class of the output; without one, rows as tuples, lists or dicts."""
E = TypeVar("E", bound=Row, covariant=True)  # noqa: PLC0105
"""Class of the output, in a declaration."""
A = TypeVar("A", contravariant=True)  # noqa: PLC0105
"""State, as a function gets it, in a declaration."""

Emitted: TypeAlias = Iterable[O] | Awaitable[Iterable[O] | None] | AsyncIterable[O] | None
"""Result of a function, asynchronous or not."""

TableFunction: TypeAlias = Callable[[Any, Any, Any], Any]
"""A function of `process_batch`: its tables are of several libraries."""


@user_class
@dataclass(frozen=True, slots=True)
class Identity:
    """Name of an operator, and what becomes of state in the checkpoint: ``compute(name=...)``.

    Attributes
    ----------
    name
        The operator's name, under which its state is stored; by default the name that the operator
        has without `Identity`.
    formerly
        Former name, under which the checkpoint has the operator's state; for renaming it.
    starts_empty
        The operator may start without state although the state of an operator that was removed
        stays behind in the checkpoint. By default such a start is refused, since the operator may
        be a renamed one. Without effect on an operator that has state.

    Examples
    --------
    >>> renamed = gw.types.Identity("by_tail", formerly="by_plane")
    >>> flights.key_by("plane").compute(total=gw.sum("delay"), name=renamed)
    <Stream of flow 'delays': operator 'by_tail'>
    """

    name: str | None = None
    _: KW_ONLY
    formerly: str | None = None
    starts_empty: bool = False


@user_class
@dataclass(frozen=True, slots=True)
class Output(Generic[E]):
    """Columns of the rows that a function emits, with their event time: ``process(output=...)``.

    Attributes
    ----------
    columns
        Columns of the emitted rows, as text such as ``"plane string, seen timestamp"``, a dict of
        column name → type, an Arrow schema or a PySpark ``StructType``; or a class of the rows.
    event_time
        Column that is the event time for operators downstream, unless they name another. By default
        the column with the name of the source's event time, if there is one.
    slack
        Maximum time by which `event_time` of an emitted row is behind the watermark; rows further
        behind are late downstream. After `KeyedStream.process` 0 by default, which suits a function
        that emits rows in the epoch in which they arrive; a function that stores rows and emits
        them later, such as from a timer, needs more. After a window by default the length of the
        longest window, which suits any time within a window (0 suits the window's end); required
        over sessions, which have no maximum length.

    Notes
    -----
    Event times of results, and how far these may be behind the watermark:

    - windows and sessions by ``compute``: ``window_end``; 0
    - windows, by another column or a function: the column of `event_time` or of ``time=``; `slack`,
      by default the longest window
    - sessions, by another column or a function: the column of `event_time`; `slack`, required
    - ``process`` of a keyed stream: the column of `event_time`, else that of the source; `slack`
    - ``join``: that of the left row; as far as the interval of the join reaches
    - ``drop_duplicates``: that of the row; 0
    - ``join_newest``, the time of the right row: the column of ``time=``; ``within=``, required

    A flow is refused if Godwit cannot bound how far results may be behind the watermark.

    Examples
    --------
    >>> columns = "plane string, landed timestamp"
    >>> gw.types.Output(columns, event_time="landed", slack="1 hour").slack
    '1 hour'
    """

    _MEANT: ClassVar = {"output": "columns", "schema": "columns", "time": "event_time"}

    columns: type[E] | SchemaLike
    _: KW_ONLY
    event_time: str | None = None
    slack: Duration | None = None

    if TYPE_CHECKING:  # columns without a class are of any class

        @overload
        def __init__(
            self, columns: type[E], *, event_time: str | None = None, slack: Duration | None = None
        ) -> None: ...
        @overload
        def __init__(
            self: Output[Any],
            columns: SchemaLike,
            *,
            event_time: str | None = None,
            slack: Duration | None = None,
        ) -> None: ...
        def __init__(self, columns: Any, **options: Any) -> None: ...


@user_class
@dataclass(frozen=True, slots=True)
class OnTimer(Generic[A, E]):
    """Function that is called when a timer is due, and the timers' clock: ``process(timers=...)``.

    Attributes
    ----------
    function
        Called as ``function(key, timer, state)`` with every timer that is due
        (`godwit.types.FiredTimer`), earliest first; returns the rows to emit, or ``None``.
    clock
        Clock by which timers fire: ``"event"``: the watermark; ``"processing"``: the driver's
        clock.
    order
        Order of timers and rows in an epoch: ``"before_rows"``, the default, or ``"after_rows"``,
        as Spark's ``transformWithState`` has it. With both, results may depend on how rows are
        divided into epochs.

    Examples
    --------
    >>> def remind(key, rows, state):
    ...     rows.timers.set(rows.timers.now + dt.timedelta(hours=1))
    >>> def idle(key, timer, state):
    ...     return [(*key, "idle")]
    >>> rows, timers = [{"delay": 5}], gw.types.OnTimer(idle, clock="processing")
    >>> gw.testing.process(remind, rows, state=dict, timers=timers).timers
    [datetime.datetime(1970, 1, 1, 1, 0, tzinfo=datetime.timezone.utc)]
    """

    _MEANT: ClassVar = {"on_timer": "function", "timers": "clock", "timer_order": "order"}

    function: (
        Callable[[tuple[Any, ...], FiredTimer, A], Emitted[E]]
        | Callable[Concatenate[tuple[Any, ...], FiredTimer, A, ...], Emitted[E]]  # with `broadcast`
    )
    _: KW_ONLY
    clock: TimerClock
    order: TimerOrder | None = None


class ProcessOptions(TypedDict, total=False):
    """Options of ``process`` whose types depend on nothing else."""

    name: str | Identity | None
    order: Literal["arrival", "event_time"]
    late: Any
