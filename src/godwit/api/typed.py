"""Types of ``process`` for a type checker: rows, state and output that belong together.

The class of the rows, the type of the state and the class of the output are said once, as arguments
of the call; a checker finds whether the function, the one for timers and ``merge=`` agree.

`O` has a bound, so that a function that emits instances of one class where another was said has no
solution: what the two have in common is not a class of rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypedDict, TypeVar

if TYPE_CHECKING:
    from godwit.operators.calls import TimerClock, TimerOrder
    from godwit.plan.nodes import Codec
    from godwit.time.durations import Duration

__all__ = ["Emitted", "O", "ProcessOptions", "R", "S", "TableFunction"]


class Fields(Protocol):
    """An instance of a class with declared fields: a dataclass, or a `msgspec.Struct`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R")
"""Class of the rows."""
S = TypeVar("S")
"""Type of the state."""
O = TypeVar("O", bound=Fields | tuple[Any, ...] | list[Any] | dict[str, Any])  # noqa: E741
"""Class of the output; without one, rows as tuples, lists or dicts."""

Emitted: TypeAlias = Iterable[O] | Awaitable[Iterable[O] | None] | AsyncIterable[O] | None
"""Result of a function, asynchronous or not."""

TableFunction: TypeAlias = Callable[[Any, Any, Any], Any]
"""A function of `process_batch`: its tables are of several libraries."""


class ProcessOptions(TypedDict, total=False):
    """Options of ``process`` whose types depend on nothing else."""

    name: str | None
    codec: Codec
    state_classes: Mapping[str, type] | Sequence[type]
    state_upgrade: Callable[[Any], Any] | None
    timers: TimerClock | None
    timer_order: TimerOrder | None
    order: Literal["arrival", "event_time"]
    late: Any
    ttl: Duration | None
    event_time: str | None
    slack: Duration | None
    formerly: str | None
    starts_empty: bool
