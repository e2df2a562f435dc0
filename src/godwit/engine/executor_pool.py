"""The port of the pool of executors: a running flow gets executors, and gives them back.

Each call returns at once: it records the request. The view shows the outcome later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """State of the pool of executors."""

    pending: int = 0  # executors that were asked for, are not there yet and may still come
    # executors that the cluster can ever give this application; ``None`` where it does not say
    most: int | None = None
    # why executors can never be added or removed; empty where they can
    fixed: str = ""
    # why the last ones that were asked for do not come; empty where nothing was refused
    refused: str = ""
    # why the last ones that were given back are there all the same; empty where they are not
    not_returned: str = ""


class ExecutorPool(Protocol):
    """Adds and removes executors.

    An executor that comes joins the coordinator's view, one that is gone leaves it; the pool tells
    the controller nothing else.
    """

    @property
    def view(self) -> PoolView:
        """Present state of the pool, as a value."""

    def add(self, count: int) -> None:
        """Request `count` more executors from the cluster manager."""

    def remove(self, executors: Sequence[str]) -> None:
        """Return executors to the cluster, which own no key group any more."""
