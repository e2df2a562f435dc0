"""Value state: one entry per key, as for an operator with a single state."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from godwit.library.states.stored import Cells, LookAhead, OfKey, StoredState, Written
from godwit.values.checks import UnencodableError
from godwit.values.codec import HoldsValue, is_immutable

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.library.states.stored import Expired

T = TypeVar("T")

_UNREAD = object()
_NONE = object()


class ValueOfKey(OfKey, HoldsValue, Generic[T]):
    """Value of the present key in a state that `gw.ValueState` declares.

    Godwit makes it: functions of ``process(..., state={...})`` get it as ``states.<name>``. It may
    be used only during the call that gets it.

    Attributes
    ----------
    value
        The value, or a new one if the key has none; assign to it, or change it in place.
    exists
        True if the key has a value.

    Examples
    --------
    >>> def total(key, rows, states):
    ...     states.total.value = (states.total.value or 0) + sum(row.delay for row in rows)
    ...     return [(*key, states.total.value)]
    >>> rows, declared = [{"delay": 5}, {"delay": 7}], {"total": gw.ValueState(int)}
    >>> gw.testing.process(total, rows, key={"plane": "N1"}, state=declared).rows
    [('N1', 12)]
    """

    __slots__ = ()

    @property
    def value(self) -> T:
        """Value of the present key; a new one if it has none. Assign to it to change the state.

        Examples
        --------
        >>> def count(key, rows, states):
        ...     states.seen.value += len(rows)
        >>> declared = {"seen": gw.ValueState(int)}
        >>> gw.testing.process(count, [{"delay": 5}], state=declared, before={"seen": 2}).states
        {'seen': 3}
        """
        self._require_open()
        value: T = self._cells.read(self._group)
        return value

    @value.setter
    def value(self, value: T) -> None:
        self._require_open()
        self._cells.assign(self._group, value)

    @property
    def exists(self) -> bool:
        """True if the present key has a value in this state, false for a new key.

        Examples
        --------
        >>> def is_new(key, rows, states):
        ...     return [not states.seen.exists]
        >>> gw.testing.process(is_new, [{"delay": 5}], state={"seen": gw.ValueState(int)}).rows
        [True]
        """
        self._require_open()
        exists: bool = self._cells.exists(self._group)
        return exists

    def __repr__(self) -> str:
        return f"ValueOfKey({self.value!r})" if self.exists else "ValueOfKey()"


class _Cell:
    """Value of one key, as read and as changed."""

    __slots__ = ("before", "decoded", "in_store", "is_new", "value", "was_set")

    def __init__(self, before: bytes, *, in_store: bool) -> None:
        self.before = before
        self.decoded: Any = _UNREAD  # the stored value, if it was decoded with others
        self.in_store = in_store  # also if expired
        self.value: Any = _UNREAD if before else _NONE
        self.is_new = self.was_set = False


class ValueCells(Cells):
    """Values of all keys of a lane in one epoch, with their changes."""

    stored: StoredValue
    cached: dict[int, _Cell]
    handle = ValueOfKey

    def start(self, num_keys: int) -> None:
        self._look_ahead = LookAhead(num_keys)
        self._looked_up: dict[int, _Cell] = {}
        self._undecoded: list[_Cell] = []  # of the last look-up

    def sweep(self, expired: Expired) -> None:
        self.cached.update((group, _Cell(b"", in_store=True)) for group, _ in expired)

    def _prefetched_cell(self, group: int) -> _Cell:
        """Return the cached value of key number `group`; the next keys' values are read with it."""
        cell = self.cached.get(group)
        if cell is None:
            if group not in self._looked_up:
                self._look_up_with_prefetch(group)
            self._look_ahead.record_use()
            cell = self.cached[group] = self._looked_up.pop(group)
        return cell

    def _look_up_with_prefetch(self, group: int) -> None:
        """Look up the value of key number `group`, and those of the keys after it."""
        groups = self._look_ahead.keys(group)
        looked = self.look_up(np.arange(groups.start, groups.stop))
        expiry_times = looked.expiry_times(self.stored.expires_at)
        self._looked_up = {
            key: _Cell(
                looked.blob(0, row) if known and expiry_times[row] > self.lane.clock else b"",
                in_store=known,
            )
            for row, (key, known) in enumerate(zip(groups, looked.known, strict=True))
        }
        self._undecoded = [cell for cell in self._looked_up.values() if cell.before]
        self._look_ahead.record_read(looked.nbytes)

    def _stored_value(self, group: int, cell: _Cell) -> Any:
        """Return the stored value of a key; values that were looked up with it are decoded too.

        A value that cannot be decoded is an error only for the key that it is read for.
        """
        if cell.decoded is _UNREAD and self._undecoded:
            undecoded, self._undecoded = self._undecoded, []
            with contextlib.suppress(UnencodableError):
                values = self.stored.codec.decode(
                    [memoryview(undecoded_cell.before) for undecoded_cell in undecoded]
                )
                for undecoded_cell, value in zip(undecoded, values, strict=True):
                    undecoded_cell.decoded = value
        if cell.decoded is _UNREAD:
            (value,) = self.stored.decoded([cell.before], lambda _: (self.lane.tuples[group], ""))
            return value
        return cell.decoded

    def value_or_none(self, group: int) -> Any:
        """Return the value of key number `group`; ``None`` if it has none."""
        cell = self.cached.get(group)
        if cell is None:
            cell = self._prefetched_cell(group)
        if cell.value is _UNREAD:
            cell.value = (
                self._stored_value(group, cell) if cell.decoded is _UNREAD else cell.decoded
            )
        elif cell.value is _NONE or (cell.is_new and not self.exists(group)):
            return None
        return cell.value

    def exists(self, group: int) -> bool:
        """Return whether key number `group` has a value."""
        cell = self._prefetched_cell(group)
        if cell.is_new:  # it counts once it was changed
            (blob,) = self.stored.encoded([cell.value], lambda _: self.key_text(group))
            return blob != self._initial_value()
        return cell.value is not _NONE

    def read(self, group: int) -> Any:
        """Return the value of key number `group`; a new value if it has none."""
        cell = self._prefetched_cell(group)
        if cell.value is _UNREAD:
            cell.value = self._stored_value(group, cell)
        elif cell.value is _NONE:
            cell.value, cell.is_new = self.stored.new(), True
        return cell.value

    def assign(self, group: int, value: Any) -> None:
        """Set the value of key number `group`."""
        cell = self.cached.get(group) or self._prefetched_cell(group)
        cell.value, cell.was_set, cell.is_new = value, True, False

    def drop(self, group: int) -> None:
        cell = self._prefetched_cell(group)
        cell.value, cell.was_set, cell.is_new = _NONE, False, False

    def written(self) -> Written:
        written = self.new_written()
        possibly_changed: list[int] = []
        for group, cell in self.cached.items():
            if cell.value is _NONE:
                if cell.in_store:
                    written.remove(group, ())
            elif cell.value is not _UNREAD and (cell.was_set or not is_immutable(cell.value)):
                possibly_changed.append(group)
            elif cell.is_new and cell.in_store:
                written.remove(group, ())  # it had expired, and the new one was only looked at
        values = [self.cached[group].value for group in possibly_changed]
        blobs = self.stored.encoded(values, lambda index: self.key_text(possibly_changed[index]))
        expiry_columns = () if self.stored.ttl_us is None else (self._expiry_us,)
        initial_value = (
            self._initial_value()
            if any(self.cached[group].is_new for group in possibly_changed)
            else b""
        )
        for group, blob in zip(possibly_changed, blobs, strict=True):
            cell = self.cached[group]
            if cell.was_set or blob != (initial_value if cell.is_new else cell.before):
                written.put(group, (), blob, *expiry_columns)
            elif cell.is_new and cell.in_store:
                written.remove(group, ())
        return written

    def _initial_value(self) -> bytes:
        """Return the encoded value that a new key begins with."""
        (blob,) = self.stored.encoded([self.stored.new()], lambda _: "a new key")
        return blob


class StoredValue(StoredState):
    """Layout of a `gw.ValueState` in its state table: one entry (table row) per key."""

    def __init__(self, *, new: Callable[[], Any], **options: Any) -> None:
        super().__init__(cells=ValueCells, apart=(), columns=(), **options)
        self.new = new  # makes the value of a new key
