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
    calendars = [window.get("calendar") for window in panes]
    windows = [
        TimeWindow(**{name: value for name, value in window.items() if name != "calendar"})
        for window in panes
    ]
    if calendars[0] is None:
        return PaneGrid.of(*windows).first_open(closed)
    return CalendarGrid.of_calendar(Calendar(**calendars[0]), *windows).first_open(closed)


def windows_of(grid: PaneGrid) -> list[dict[str, Any]]:
    """Describe the windows of a grid."""
    counted = {}
    if isinstance(grid, CalendarGrid):
        counted = {"calendar": {"unit": grid.calendar.unit, "zone": grid.calendar.zone}}
    return [
        {"length_us": w.length_us, "every_us": w.every_us, "offset_us": w.offset_us, **counted}
        for w in grid.windows
    ]
