"""What a checkpoint keeps of an operator's windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from godwit.checkpoint.evolution import columns_of
from godwit.operators.windows.calendar import Calendar, CalendarGrid
from godwit.operators.windows.grid import PaneGrid, TimeWindow

if TYPE_CHECKING:
    from godwit.checkpoint.evolution import StateDescription
    from godwit.operators.windows.operator import EventTimeOperator

__all__ = ["describe_windows", "gone_before", "windows_of"]


def describe_windows(
    of_values: StateDescription, operator: EventTimeOperator, windows: list[dict[str, Any]]
) -> StateDescription:
    """Add to what is said of the state columns what tells entries apart, and what they mean."""
    return msgspec.structs.replace(
        of_values,
        entries=columns_of(list(operator.schema.keys)[len(operator.keys) :]),
        windows=windows,
        means=operator.means,
    )


def gone_before(described: StateDescription, closed: int) -> int | None:
    """Panes before this moment are of no window that ends after `closed`; both in microseconds.

    ``None`` for state that is not made of panes.
    """
    panes = [window for window in described.windows or () if "length_us" in window]
    if not panes:
        return None
    extents = ("length_us", "every_us", "offset_us")
    windows = [TimeWindow(**{name: window[name] for name in extents}) for window in panes]
    closed -= panes[0].get("lateness_us", 0)
    calendar = panes[0].get("calendar")
    if calendar is None:
        return PaneGrid.of(*windows).first_open(closed)
    return CalendarGrid.of_calendar(Calendar(**calendar), *windows).first_open(closed)


def windows_of(grid: PaneGrid, lateness_us: int = 0) -> list[dict[str, Any]]:
    """Describe the windows of a grid, and how long they take rows that are late."""
    more: dict[str, Any] = {"lateness_us": lateness_us} if lateness_us else {}
    if isinstance(grid, CalendarGrid):
        more["calendar"] = {"unit": grid.calendar.unit, "zone": grid.calendar.zone}
    return [
        {"length_us": w.length_us, "every_us": w.every_us, "offset_us": w.offset_us, **more}
        for w in grid.windows
    ]
