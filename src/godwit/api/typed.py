"""Types of ``process`` for a type checker: rows, state and output that belong together.

The class of the rows, the type of the state and the class of the output are said once, as arguments
of the call; a checker finds whether the function and the one for timers agree.

`O` has a bound, so that a function that emits instances of one class where another was said has no
solution: what the two have in common is not a class of rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

__all__ = ["Emitted", "Fields", "O", "R", "S", "TableFunction"]


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
