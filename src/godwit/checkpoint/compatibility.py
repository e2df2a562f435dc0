"""Compatibility of what is stored with the program that reads it: the one comparison there is.

State, and rows that wait for an operator, are described (`StateDescription`): columns, what tells
entries apart, windows, and what else their meaning depends on.  What was written under one
description is read under another only if nothing differs by which it would mean something else;
columns are found by name, so their order makes no difference, and one that is new is empty.

An operator's own part is the values: results of aggregates, types of Python state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.checkpoint.evolution import differences, plain
from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from godwit.checkpoint.evolution import Columns, StateDescription

__all__ = [
    "changed_columns",
    "changed_meaning",
    "insist_on_compatible",
    "refuse",
]

_ORIGINS = "origins"
_START_EMPTY = (
    "Give the operator a name of its own, under which it starts empty, or undo the change."
)


def insist_on_compatible(
    subject: str,
    stored: StateDescription,
    today: StateDescription,
    *,
    found: Iterable[str] = (),
    remedy: str = _START_EMPTY,
    **context: Any,
) -> None:
    """Refuse state that would mean something else if it was read under today's description."""
    found = [*found, *changed_meaning(stored, today)]
    if (stored.codec == "arrow") != (today.codec == "arrow"):
        found.append(f"its state was written as {stored.codec} and is {today.codec}")
    elif stored.codec != "arrow" or stored.type is None:  # results are found by their own names
        found += changed_columns(stored.columns, today.columns, are_rows=stored.codec == "arrow")
    if found:
        raise refuse(f"The state of {subject}", found, remedy, **context)


def changed_meaning(stored: StateDescription, today: StateDescription) -> Iterator[str]:
    """Say by what entries, and rows on their way to them, mean something else than they did.

    Meanings that only one of the two descriptions has are not compared: an earlier version did not
    write them down, or there is nothing yet, or no more, that has them.
    """
    yield from differences("entries", stored.entries, today.entries)
    yield from differences("windows", _in_order(stored.windows), _in_order(today.windows))
    was, now = dict(stored.means), dict(today.means)
    yield from _exchanged(was.pop(_ORIGINS, None), now.pop(_ORIGINS, None))
    yield from _differences_in_both("", plain(was), plain(now))


def changed_columns(stored: Columns, today: Columns, *, are_rows: bool) -> Iterator[str]:
    """Say which columns would be read as something else.

    `are_rows`: whether they are columns of rows, which may have been renamed.
    """
    was, now = dict(stored), dict(today)
    for name, dtype in stored:
        if now.get(name, dtype) != dtype:
            yield f"column {name} was {dtype!r} and is {now[name]!r}"
    gone = [name for name in was if name not in now]
    added = [name for name in now if name not in was]
    if are_rows and gone and added:
        yield (
            f"column {', '.join(gone)} is gone and {', '.join(added)} is new (if it was renamed, "
            "give it its old name; else take away the one first, and add the other later)"
        )


def refuse(what: str, found: Iterable[str], remedy: str, **context: Any) -> CheckpointMismatchError:
    """Make the error that says every difference."""
    found = list(found)
    return CheckpointMismatchError(
        f"{what} in the checkpoint does not fit: {'; '.join(found)}.",
        remedy=remedy,
        **context,
        differences=found,
    )


def _differences_in_both(where: str, was: Any, now: Any) -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        for name in sorted(was.keys() & now.keys()):
            yield from _differences_in_both(f"{where} {name}".lstrip(), was[name], now[name])
    elif was != now:
        yield f"{where} was {was!r} and is {now!r}"


def _exchanged(was: Any, now: Any) -> Iterator[str]:
    """Say if what one side was made of is what the other one is made of now."""
    if not (was and now):
        return
    was, now = plain(was), plain(now)
    known = [
        name for name in was["left"] if all(name in of for of in (*was.values(), *now.values()))
    ]
    old, new = (
        [[of[side][name] for name in known] for side in ("left", "right")] for of in (was, now)
    )
    if old != new and old == new[::-1]:
        yield "left and right have changed places"


def _in_order(windows: Any) -> Any:
    """Windows by what they are: in which order a program names them makes no difference."""
    if not windows:
        return None
    bounds = ("length_us", "every_us", "offset_us", "gap_us")
    return sorted(windows, key=lambda window: [window.get(bound, -1) for bound in bounds])
