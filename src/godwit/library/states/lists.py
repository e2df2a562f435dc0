"""List state: numbered pages of elements, and a head entry with the range of pages.

Appending reads the last page and writes it; a page is full with 64 elements or 4 KiB.  Elements
expire in the order in which they were added, so whole pages go from the front.  An element keeps
the time that it has, also if the time-to-live comes, goes or is another: a page may go that is
behind one which has none, and leaves a number without a page.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import numpy as np
import pyarrow as pa

from godwit.library.states.stored import (
    PAGE,
    Cells,
    LookAhead,
    OfKey,
    StoredState,
    Written,
    upgrade_each,
)
from godwit.time.grid import BEGINNING, END
from godwit.values.codec import is_immutable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.library.states.stored import Expired

T = TypeVar("T")

BOUNDS: Final = "bounds"
MOMENTS: Final = "moments"
"""Column that says when each element of a page expires; empty if none does."""
_HEAD: Final = -1
_BOUNDS: Final = struct.Struct("<qqq")
_FULL: Final = 64
_FULL_BYTES: Final = 4096
_MAX_PAGES: Final = 4096


class ListOfKey(OfKey, Sequence[T]):
    """List of the present key in a state that `gw.ListState` declares.

    Godwit makes it: functions of ``process(..., state={...})`` get it as ``states.<name>``. It is a
    sequence, whose elements can be appended, replaced as a whole, and cleared. It may be used only
    during the call that gets it.

    Examples
    --------
    >>> def remember(key, rows, states):
    ...     states.delays.extend(row.delay for row in rows)
    ...     return [(*key, len(states.delays))]
    >>> rows, declared = [{"delay": 5}, {"delay": 7}], {"delays": gw.ListState(int)}
    >>> gw.testing.process(remember, rows, key={"plane": "N1"}, state=declared).rows
    [('N1', 2)]
    """

    __slots__ = ()

    def append(self, element: T) -> None:
        """Append an element; reads and writes only the last page of the list (64 elements).

        Parameters
        ----------
        element
            A value of the type that `gw.ListState` declares; another one fails the epoch.

        Examples
        --------
        >>> def remember(key, rows, states):
        ...     for row in rows:
        ...         states.delays.append(row.delay)
        >>> declared = {"delays": gw.ListState(int)}
        >>> rows, before = [{"delay": 5}], {"delays": [3]}
        >>> gw.testing.process(remember, rows, state=declared, before=before).states
        {'delays': [3, 5]}
        """
        self.extend([element])

    def extend(self, elements: Iterable[T]) -> None:
        """Append several elements; reads and writes only the last pages of the list.

        Parameters
        ----------
        elements
            Values of the type that `gw.ListState` declares; another one fails the epoch.

        Examples
        --------
        >>> def remember(key, rows, states):
        ...     states.delays.extend(rows.column("delay"))
        >>> declared = {"delays": gw.ListState(int)}
        >>> gw.testing.process(remember, [{"delay": 5}, {"delay": 7}], state=declared).states
        {'delays': [5, 7]}
        """
        self._require_open()
        self._cells.extend(self._group, list(elements))

    def replace(self, elements: Iterable[T]) -> None:
        """Replace all elements of the list.

        Parameters
        ----------
        elements
            Values of the type that `gw.ListState` declares; without any, the list is cleared.

        Examples
        --------
        >>> def last_two(key, rows, states):
        ...     states.delays.replace([*states.delays, *rows.column("delay")][-2:])
        >>> rows, declared = [{"delay": 5}], {"delays": gw.ListState(int)}
        >>> gw.testing.process(last_two, rows, state=declared, before={"delays": [1, 2, 3]}).states
        {'delays': [3, 5]}
        """
        self._require_open()
        self._cells.replace(self._group, list(elements))

    def __len__(self) -> int:
        return len(self._whole_look_ahead())

    def __bool__(self) -> bool:
        self._require_open()
        exists: bool = self._cells.is_there(self._group)
        return exists

    def __iter__(self) -> Iterator[T]:
        return iter(self._whole_look_ahead())

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._whole_look_ahead()[index]

    def __eq__(self, other: object) -> bool:
        """Return whether another list has the same elements."""
        if isinstance(other, list | ListOfKey):
            return self._whole_look_ahead() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list, which may change

    def __repr__(self) -> str:
        return f"ListOfKey({self._whole_look_ahead()!r})"

    def _whole_look_ahead(self) -> list[T]:
        """Return all elements."""
        self._require_open()
        elements: list[T] = self._cells.read(self._group)
        return elements


@dataclass(slots=True)
class _Page:
    """One page of a list: elements, and the expiry of each."""

    elements: list[Any] = field(default_factory=list)
    expiries: list[int] = field(default_factory=list)
    before: bytes = b""  # as it was read; empty if it is new
    expires: int = BEGINNING  # nothing of it is left from then on
    changed: bool = False
    seen: bool = False


@dataclass(slots=True)
class _List:
    """List of one key: pages from `first` up to, not including, `after`."""

    first: int = 0
    after: int = 0
    latest: int = BEGINNING  # when the last of those that expire does
    was: tuple[int, int, int] = (0, 0, BEGINNING)  # first, after and latest as they were read
    pages: dict[int, _Page] = field(default_factory=dict)
    swept: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)  # pages of which nothing is left

    @classmethod
    def of(cls, bounds: bytes) -> _List:
        """Decode a list's head entry, which says which pages it has; empty bytes: an empty list."""
        if not bounds:
            return cls()
        first, after, latest = _BOUNDS.unpack(bounds)
        latest = BEGINNING if latest >= END else latest  # as written where nothing expired
        return cls(first=first, after=after, latest=latest, was=(first, after, latest))


class ListCells(Cells):
    """Lists of all keys of a lane in one epoch, with their changes."""

    cached: dict[int, _List]
    handle = ListOfKey

    def start(self, num_keys: int) -> None:
        self._head_look_ahead, self._last_page_look_ahead, self._whole_look_ahead = (
            LookAhead(num_keys) for _ in range(3)
        )
        self._looked_up: dict[int, _List] = {}

    def sweep(self, expired: Expired) -> None:
        if expired:
            self._read_heads(np.unique([group for group, _ in expired]))
            self.cached.update(self._looked_up)
            self._looked_up = {}
            for group, (page,) in expired:
                self.cached[group].swept.add(page)

    def _read_heads(self, key_numbers: Any) -> None:
        """Read the head entries of the lists of keys, given by number, in one look-up."""
        looked = self.look_up(key_numbers, pa.array(np.full(len(key_numbers), _HEAD)))
        self._looked_up = {
            key: _List.of(looked.blob(1, row) if known else b"")
            for row, (key, known) in enumerate(zip(key_numbers.tolist(), looked.known, strict=True))
        }
        self._head_look_ahead.record_read(looked.nbytes)

    def _prefetched_list(self, group: int) -> _List:
        """Return the list of key number `group`; the next keys' lists are read at the same time."""
        key_list = self.cached.get(group)
        if key_list is None:
            if group not in self._looked_up:
                ahead = self._head_look_ahead.keys(group)
                self._read_heads(np.arange(ahead.start, ahead.stop))
            self._head_look_ahead.record_use()
            key_list = self.cached[group] = self._looked_up.pop(group)
        return key_list

    def _load_pages(self, group: int, *, everything: bool) -> None:
        """Read the last page (`everything`: all pages) of a key's and of the next keys' lists."""
        look_ahead = self._whole_look_ahead if everything else self._last_page_look_ahead
        if not self._unread_pages(self._prefetched_list(group), everything=everything):
            return
        key_numbers: list[int] = []
        pages: list[int] = []
        for key in look_ahead.keys(group):
            key_list = self.cached.get(key) or self._looked_up.get(key)
            if key_list is None or (key_numbers and len(key_numbers) > _MAX_PAGES):
                break
            missing = self._unread_pages(key_list, everything=everything)
            key_numbers += [key] * len(missing)
            pages += missing
        looked = self.look_up(np.array(key_numbers), pa.array(pages, pa.int64()))
        expires = looked.expiry_times(self.stored.expires_at)
        blobs = [looked.blob(0, row) if known else b"" for row, known in enumerate(looked.known)]
        stored = [row for row, blob in enumerate(blobs) if blob]
        decoded = iter(
            self.stored.decoded(
                [blobs[row] for row in stored],
                lambda index: (self.lane.tuples[key_numbers[stored[index]]], ""),
            )
        )
        for row, (key, page) in enumerate(zip(key_numbers, pages, strict=True)):
            key_list = self.cached.get(key) or self._looked_up[key]
            if not looked.known[row]:
                key_list.pages[page] = _Page()
                continue
            elements = next(decoded) if blobs[row] else []
            expiries = [END] * len(elements)
            if packed := looked.blob(2, row):
                expiries = np.frombuffer(packed, "<i8").tolist()
            key_list.pages[page] = _Page(elements, expiries, blobs[row], expires[row])
        look_ahead.record_read(looked.nbytes)

    def _unread_pages(self, key_list: _List, *, everything: bool) -> list[int]:
        """Return the numbers of unread pages: the last page, or with `everything` any page."""
        first = key_list.first if everything else max(key_list.after - 1, key_list.first)
        return [page for page in range(first, key_list.after) if page not in key_list.pages]

    def is_there(self, group: int) -> bool:
        """Return whether the list of key number `group` has elements."""
        key_list = self._prefetched_list(group)
        if key_list.first == key_list.after:
            return False
        return (
            self._never_expires(key_list)
            or key_list.latest > self.lane.clock
            or bool(self.read(group))
        )

    def _never_expires(self, key_list: _List) -> bool:
        """Return whether the list has never had a time-to-live, so that no element expires."""
        return self.stored.ttl_us is None and key_list.latest <= BEGINNING

    def read(self, group: int) -> list[Any]:
        """Return the elements of the list of key number `group`."""
        key_list = self._prefetched_list(group)
        self._load_pages(group, everything=True)
        self._whole_look_ahead.record_use()
        pages = [key_list.pages[number] for number in range(key_list.first, key_list.after)]
        for page in pages:
            page.seen = True
        if self._never_expires(key_list):
            return [element for page in pages for element in page.elements]
        return [
            element
            for page in pages
            for element, moment in zip(page.elements, page.expiries, strict=True)
            if moment > self.lane.clock
        ]

    def extend(self, group: int, elements: list[Any]) -> None:
        """Append elements to the list of key number `group`."""
        key_list = self._prefetched_list(group)
        if not elements:
            return
        page = None
        if key_list.first < key_list.after:
            self._load_pages(group, everything=False)
            self._last_page_look_ahead.record_use()
            page = key_list.pages[key_list.after - 1]
        if self.stored.ttl_us is not None:
            key_list.latest = max(key_list.latest, self._expiry_us)
        begin = 0
        while begin < len(elements):
            if page is None or len(page.elements) >= _FULL or len(page.before) >= _FULL_BYTES:
                page = key_list.pages[key_list.after] = _Page()
                key_list.after += 1
            more = elements[begin : begin + _FULL - len(page.elements)]
            page.elements += more
            page.expiries += [self._expiry_us] * len(more)
            page.expires = max(page.expires, key_list.latest)
            page.changed = True
            begin += len(more)

    def fill(self, group: int, value: Any, expiry_times: Sequence[int]) -> None:
        previous_us = self._expiry_us
        begin = 0
        for expiry_us, run in itertools.groupby(expiry_times):
            end = begin + len(list(run))
            self._expiry_us = expiry_us
            self.extend(group, value[begin:end])
            begin = end
        self._expiry_us = previous_us
        self.extend(group, value[begin:])

    def replace(self, group: int, elements: list[Any]) -> None:
        """Replace all elements of the list of key number `group`."""
        self.drop(group)
        self.extend(group, elements)

    def drop(self, group: int) -> None:
        key_list = self._prefetched_list(group)
        key_list.first = key_list.after = 0
        key_list.pages = {}
        key_list.swept.clear()
        key_list.gone.clear()

    def written(self) -> Written:
        """Return the entries that the epoch changed: pages of lists, and their head entries."""
        written = self.new_written()
        pages: list[tuple[int, int, _Page]] = []
        for group, key_list in self.cached.items():
            self._drop_swept(key_list)
            for number in range(*key_list.was[:2]):
                if not key_list.first <= number < key_list.after or number in key_list.gone:
                    written.remove(group, (number,))
            for number, page in key_list.pages.items():
                if key_list.first <= number < key_list.after and (
                    page.changed or _may_differ(page)
                ):
                    pages.append((group, number, page))
            bounds = (key_list.first, key_list.after, key_list.latest)
            if key_list.first < key_list.after:
                if bounds != key_list.was:
                    written.put(
                        group, (_HEAD,), b"", _BOUNDS.pack(*bounds), *self._expiry_columns([], END)
                    )
            elif key_list.was[0] < key_list.was[1]:
                written.remove(group, (_HEAD,))
        blobs = self.stored.encoded(
            [page.elements for _, _, page in pages], lambda index: self.key_text(pages[index][0])
        )
        for (group, number, page), blob in zip(pages, blobs, strict=True):
            if page.changed or blob != page.before:
                expiry_columns = self._expiry_columns(page.expiries, page.expires)
                written.put(group, (number,), blob, b"", *expiry_columns)
        return written

    def _expiry_columns(self, expiries: list[int], expires: int) -> tuple[Any, ...]:
        """Return a page's packed expiry times of elements, and with a TTL its own expiry."""
        packed = b""
        if any(moment < END for moment in expiries):
            packed = np.array(expiries, "<i8").tobytes()
        return (packed,) if self.stored.ttl_us is None else (packed, expires)

    def _drop_swept(self, key_list: _List) -> None:
        """Delete the pages of a list whose elements have all expired."""
        for number in key_list.swept:
            page = key_list.pages.get(number)
            if page is None or page.expires <= self.lane.clock:  # nothing was added to it
                key_list.pages.pop(number, None)
                key_list.gone.add(number)
        while key_list.first in key_list.gone and key_list.first < key_list.after:
            key_list.first += 1


def _may_differ(page: _Page) -> bool:
    """Return whether a page's elements may have been mutated in place since they were read."""
    if not page.seen:
        return False
    of_type = {type(element): element for element in page.elements}
    return not all(map(is_immutable, of_type.values()))


def stored_list(*, upgrade: Callable[[Any], Any] | None, **options: Any) -> StoredState:
    """Return the layout of a list as state entries: numbered pages, and a head."""
    return StoredState(
        cells=ListCells,
        apart=[pa.field(PAGE, pa.int64())],
        columns=[pa.field(BOUNDS, pa.large_binary()), pa.field(MOMENTS, pa.large_binary())],
        upgrade=None if upgrade is None else partial(upgrade_each, upgrade),
        **options,
    )
