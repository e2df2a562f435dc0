"""What a checkpoint keeps of an operator's windows, and whether they are still the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from godwit.dataflow.windows.grid import TimeWindow
from godwit.model.errors import CheckpointMismatchError
from godwit.state.evolution import columns_of, differences

if TYPE_CHECKING:
    from godwit.dataflow.windows.grid import PaneGrid
    from godwit.dataflow.windows.operator import WindowedOperator
    from godwit.state.evolution import StateDescription

__all__ = ["describe_windows", "gone_before", "insist_on_windows", "windows_of"]


def describe_windows(
    of_values: StateDescription, operator: WindowedOperator, windows: list[dict[str, Any]]
) -> StateDescription:
    """Add to what is said of the state columns what tells entries apart, and the windows."""
    return msgspec.structs.replace(
        of_values,
        entries=columns_of(list(operator.schema.keys)[len(operator.keys) :]),
        windows=windows,
    )


def insist_on_windows(
    operator: WindowedOperator, stored: StateDescription, windows: list[dict[str, Any]]
) -> None:
    """Refuse state of other windows.

    Panes that the old windows did not need any more are gone, so new ones would come out short.

    Raises
    ------
    CheckpointMismatchError
        Says every difference.
    """
    found = list(differences("windows", _in_order(stored.windows), _in_order(windows)))
    entries = columns_of(list(operator.schema.keys)[len(operator.keys) :])
    found += list(differences("entries", stored.entries, entries))
    if found:
        raise CheckpointMismatchError(
            f"The state of operator {operator.name!r} in the checkpoint does not fit: its windows "
            f"have changed ({'; '.join(found)}).",
            remedy="Give the operator a name of its own, under which it starts empty, or undo the "
            "change.",
            operator=operator.name,
            differences=found,
        )


def _in_order(windows: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Windows by what they are: in which order a program names them makes no difference."""
    if windows is None:
        return None
    bounds = ("length_us", "every_us", "offset_us")
    return sorted(windows, key=lambda window: [window.get(bound, -1) for bound in bounds])


def gone_before(described: StateDescription, closed: int) -> int | None:
    """Panes before this moment are of no window that ends after `closed`; both in microseconds.

    ``None`` for state that is not made of panes.
    """
    panes = [window for window in described.windows or () if "length_us" in window]
    return min((TimeWindow(**window).first_open(closed) for window in panes), default=None)


def windows_of(grid: PaneGrid) -> list[dict[str, Any]]:
    """Describe the windows of a grid."""
    return [
        {"length_us": w.length_us, "every_us": w.every_us, "offset_us": w.offset_us}
        for w in grid.windows
    ]
