"""How migrations and regroupings ended, for whoever asks afterwards; not for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["MAX_ENDS", "forget_oldest"]

MAX_ENDS: Final = 10_000
"""A controller may begin a migration every few seconds, for months."""


def forget_oldest(ends: MutableMapping[str, Any]) -> None:
    """Keep the last `MAX_ENDS` entries, in the order in which they came."""
    while len(ends) > MAX_ENDS:
        del ends[next(iter(ends))]
