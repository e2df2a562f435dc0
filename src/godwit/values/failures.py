"""What cannot be written or read: a value, and the state that it is part of."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["UnencodableError", "UnheldError", "each", "unreadable_remedy"]


class UnheldError(Exception):
    """A value cannot be state."""


class UnencodableError(Exception):
    """A state cannot be written or read."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index  # position of the state


def each(function: Callable[[Any], Any], values: Sequence[Any], first: int = 0) -> list[Any]:
    """Apply a function to each; says which one failed."""
    done = []
    for index, value in enumerate(values, first):
        try:
            done.append(function(value))
        except UnheldError as error:
            raise UnencodableError(index, str(error)) from error
        except Exception as error:
            raise UnencodableError(index, f"{type(error).__name__}: {error}") from error
    return done


def unreadable_remedy(operator: str, key: tuple[Any, ...], what: str) -> str:
    """Say what to do about a state that cannot be read.

    `what`: what may get a new name.
    """
    return (
        "State written by an earlier version of the program fits if fields were only added, with "
        f"defaults; otherwise give {what} a new name, or forget this key's state alone: stop the "
        f"query and run godwit checkpoint drop CHECKPOINT {operator} --key {quote(repr(key))}."
    )
