"""A value for each key: one entry, as of an operator with a single state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.operators.states.cells import Cells, Expired, LookAhead, Written
from godwit.operators.states.of_key import ValueOfKey
from godwit.operators.states.stored import StoredState
from godwit.values.codec import is_immutable

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.operators.operator import StateView
    from godwit.operators.states.cells import LaneKeys

__all__ = ["StoredValue"]

_UNREAD = object()
_NONE = object()


class StoredValue(StoredState):
    """How values lie in entries.

    Parameters
    ----------
    new
        Makes the value of a key that has none.
    **options
        As of `StoredState`.
    """

    def __init__(self, *, new: Callable[[], Any], **options: Any) -> None:
        super().__init__(apart=(), columns=(), **options)
        self.new = new

    def begin(self, lane: LaneKeys, held: StateView, expired: Expired | None) -> ValueCells:
        """Take up an epoch."""
        return ValueCells(self, lane, held, expired)


class _Cell:
    """The value of one key: as it was read, and as it is."""

    __slots__ = ("before", "is_new", "there", "value", "was_set")

    def __init__(self, before: bytes, *, there: bool) -> None:
        self.before = before
        self.there = there  # in the store, if it has expired too
        self.value: Any = _UNREAD if before else _NONE
        self.is_new = self.was_set = False


class ValueCells(Cells):
    """Values of the keys of one lane in one epoch."""

    stored: StoredValue

    def __init__(
        self,
        stored: StoredValue,
        lane: LaneKeys,
        held: StateView,
        expired: Expired | None,
    ) -> None:
        super().__init__(stored, lane, held)
        self._ahead = LookAhead(len(lane.tuples))
        self._found: dict[int, _Cell] = {}
        self._cells: dict[int, _Cell] = {}
        for group in () if expired is None else expired.groups:
            self._cells[group] = _Cell(b"", there=True)

    def of_key(self, group: int, insist: Callable[[], None]) -> ValueOfKey[Any]:
        """Give the value of a key."""
        return ValueOfKey(self, group, insist)

    def _cell(self, group: int) -> _Cell:
        cell = self._cells.get(group)
        if cell is None:
            if group not in self._found:
                self._look(group)
            self._ahead.use()
            cell = self._cells[group] = self._found.pop(group)
        return cell

    def _look(self, group: int) -> None:
        groups = self._ahead.keys(group)
        looked = self.look_up(np.arange(groups.start, groups.stop))
        moments = looked.moments(self.stored.expires_at)
        self._found = {
            key: _Cell(
                looked.blob(0, row) if known and moments[row] > self.lane.clock else b"",
                there=known,
            )
            for row, (key, known) in enumerate(zip(groups, looked.known, strict=True))
        }
        self._ahead.took(looked.nbytes)

    def exists(self, group: int) -> bool:
        """Whether a key has one."""
        cell = self._cell(group)
        if cell.is_new:  # it counts once it was changed
            (blob,) = self.stored.encoded([cell.value], lambda _: self.key(group))
            return blob != self._new()
        return cell.value is not _NONE

    def read(self, group: int) -> Any:
        """Value of a key, a new one if it has none."""
        cell = self._cell(group)
        if cell.value is _UNREAD:
            (cell.value,) = self.stored.decoded(
                [cell.before], lambda _: (self.lane.tuples[group], "")
            )
        elif cell.value is _NONE:
            cell.value, cell.is_new = self.stored.new(), True
        return cell.value

    def assign(self, group: int, value: Any) -> None:
        """Set the value of a key."""
        cell = self._cell(group)
        cell.value, cell.was_set, cell.is_new = value, True, False

    def forget(self, group: int) -> None:
        """Drop the value of a key."""
        cell = self._cell(group)
        cell.value, cell.was_set, cell.is_new = _NONE, False, False

    def written(self) -> Written:
        """Give the values that differ from what was read, and those that are gone."""
        written = self.new_written()
        maybe: list[int] = []
        for group, cell in self._cells.items():
            if cell.value is _NONE:
                if cell.there:
                    written.remove(group, ())
            elif cell.value is not _UNREAD and (cell.was_set or not is_immutable(cell.value)):
                maybe.append(group)
            elif cell.is_new and cell.there:
                written.remove(group, ())  # it had expired, and the new one was only looked at
        values = [self._cells[group].value for group in maybe]
        blobs = self.stored.encoded(values, lambda index: self.key(maybe[index]))
        new = self._new() if any(self._cells[group].is_new for group in maybe) else b""
        for group, blob in zip(maybe, blobs, strict=True):
            cell = self._cells[group]
            if cell.was_set or blob != (new if cell.is_new else cell.before):
                written.put(group, (), blob, *self._moment())
            elif cell.is_new and cell.there:
                written.remove(group, ())
        return written

    def _new(self) -> bytes:
        (blob,) = self.stored.encoded([self.stored.new()], lambda _: "a new key")
        return blob

    def _moment(self) -> tuple[int, ...]:
        return () if self.stored.ttl_us is None else (self._again,)
