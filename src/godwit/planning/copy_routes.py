"""Where the copies that a plan needs would come from, and how long that would take.

A plan says which key groups move; whether their state comes from the checkpoint or from executors
that hold it is chosen when it is carried out, by what either way delivered of late.  What would be
chosen now is a value, made by whoever carries plans out, so that a preview can show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CopyRoute", "busiest_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRoute:
    """What would come from one place to another."""

    component: str  # whose key groups
    # the executor that would send; ``None`` for the checkpoint; the destination itself where copies
    # are there already and are only brought forward
    source: str | None
    destination: str  # the executor that would hold the copies
    key_groups: tuple[int, ...]  # which, as the component numbers them
    size_bytes: float  # state that would come
    # what this way delivered of late; ``None`` where nothing was measured
    bytes_per_s: float | None = None
    why: str = ""  # why from there; empty where there is nothing to choose

    def takes_s(self, assumed_bytes_per_s: float) -> float:
        """Seconds, at the measured rate or, where there is none, at an assumed one."""
        return self.size_bytes / (self.bytes_per_s or assumed_bytes_per_s)


def busiest_s(routes: Iterable[CopyRoute], assumed_bytes_per_s: float) -> float:
    """Seconds that the busiest up- or downlink needs, all of them working at the same time.

    Reading the checkpoint keeps only the reader's downlink busy.

    `routes`: what is to come from where. `assumed_bytes_per_s`: rate of ways that were never
    measured.

    Examples
    --------
    >>> far = CopyRoute(
    ...     component="c", source=None, destination="a", key_groups=(0,), size_bytes=6.0
    ... )
    >>> near = CopyRoute(
    ...     component="c",
    ...     source="b",
    ...     destination="a",
    ...     key_groups=(1,),
    ...     size_bytes=8.0,
    ...     bytes_per_s=4.0,
    ... )
    >>> busiest_s([far, near], 2.0)
    5.0
    """
    sends: dict[str, float] = {}
    receives: dict[str, float] = {}
    for route in routes:
        takes_s = route.takes_s(assumed_bytes_per_s)
        receives[route.destination] = receives.get(route.destination, 0.0) + takes_s
        if route.source is not None:
            sends[route.source] = sends.get(route.source, 0.0) + takes_s
    return max([*sends.values(), *receives.values()], default=0.0)
