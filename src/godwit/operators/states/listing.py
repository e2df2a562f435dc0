"""Listings of maps: what items a key has, in the order in which they were added.

A hash table cannot say what items a key has; the listing does, in pages of 64 under numbers without
gaps, and an entry that says how many items there are, and how long the listing is.  An item that is
removed stays in the listing until that is twice as long as it should be; then it is written anew.
So adding and removing cost the same however many items there are, and order is that of a dict.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from godwit.operators.windows.grid import END

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.operators.states.cells import Looked, Written
    from godwit.operators.states.maps import MapCells

__all__ = ["Grown", "Listings", "last_of_each"]

_HEAD: Final = -2
_COUNTS: Final = struct.Struct("<qq")
_PAGE_ITEMS: Final = 64


@dataclass(slots=True, kw_only=True)
class Grown:
    """A key whose map has other items than before."""

    group: int
    more: int  # how many more it has
    added: list[Any]  # those that go to the end of the listing
    # there, listed: items that there are then, and length of the listing
    there: int = 0
    listed: int = 0

    @property
    def is_too_long(self) -> bool:
        """Whether most of the listing would be of items that are gone."""
        long = self.listed + len(self.added) > 2 * self.there + _PAGE_ITEMS
        return self.there > 0 and long


class Listings:
    """Listings of the maps of one lane in one epoch.

    Parameters
    ----------
    cells
        The maps.
    """

    __slots__ = ("_cells", "_no_item", "_stored")

    def __init__(self, cells: MapCells) -> None:
        self._cells, self._stored = cells, cells.stored
        self._no_item: tuple[None, ...] = (None,) * len(cells.stored.items)

    def read(self, groups: list[int]) -> list[list[Any]]:
        """All that is listed of some keys."""
        heads = self._heads(groups)
        pages = [range(_pages(listed)) for _, listed in heads]
        of_group = [group for group, some in zip(groups, pages, strict=True) for _ in some]
        looked = self._find(of_group, [page for some in pages for page in some])
        found: list[list[Any]] = []
        row = 0
        for some in pages:
            items: list[Any] = []
            for _ in some:
                items += self._unpacked(looked.blob(1, row))
                row += 1
            found.append(items)
        return found

    def write(
        self,
        grown: list[Grown],
        written: Written,
        kept: Callable[[int, list[Any]], list[Any]],
    ) -> None:
        """Bring listings up to date.

        Parameters
        ----------
        grown
            Keys whose maps have other items than before.
        written
            Takes the entries.
        kept
            Gives those of some items of a key that there still are.
        """
        for one, (there, listed) in zip(
            grown, self._heads([one.group for one in grown]), strict=True
        ):
            one.there, one.listed = there + one.more, listed
        whole = {one.group: one for one in grown if one.is_too_long}
        for one, items in zip(whole.values(), self.read(list(whole)), strict=True):
            every = kept(one.group, last_of_each([*items, *one.added]))
            self._put_pages(one, 0, every, written)
        going_on = [one for one in grown if one.there and one.added and one.group not in whole]
        pages = [one.listed // _PAGE_ITEMS for one in going_on]
        looked = self._find([one.group for one in going_on], pages)
        for row, (one, page) in enumerate(zip(going_on, pages, strict=True)):
            begun = self._unpacked(looked.blob(1, row))
            self._put_pages(one, page, [*begun, *one.added], written)
        for one in grown:
            if one.there:
                self._put_page(one.group, _HEAD, _COUNTS.pack(one.there, one.listed), written)
            else:
                for number in (_HEAD, *range(_pages(one.listed))):
                    written.remove(one.group, (number, *self._no_item))

    def _heads(self, groups: list[int]) -> list[tuple[int, int]]:
        """Items that are there, and length of the listing, of some keys."""
        looked = self._find(groups, [_HEAD] * len(groups))
        return [
            _COUNTS.unpack(looked.blob(1, row)) if known else (0, 0)
            for row, known in enumerate(looked.known)
        ]

    def _find(self, groups: list[int], pages: list[int]) -> Looked:
        none = [pa.nulls(len(groups), field.type) for field in self._stored.items]
        return self._cells.look_up(np.array(groups, np.int64), pa.array(pages, pa.int64()), *none)

    def _unpacked(self, blob: bytes) -> list[Any]:
        items: list[Any] = msgspec.msgpack.decode(blob, type=self._stored.page) if blob else []
        return items

    def _put_pages(self, one: Grown, first: int, items: list[Any], written: Written) -> None:
        """Write a listing from a page on, and let go of what it had behind."""
        for begin in range(0, len(items), _PAGE_ITEMS):
            packed = msgspec.msgpack.encode(items[begin : begin + _PAGE_ITEMS])
            self._put_page(one.group, first + begin // _PAGE_ITEMS, packed, written)
        for number in range(first + _pages(len(items)), _pages(one.listed)):
            written.remove(one.group, (number, *self._no_item))
        one.listed = first * _PAGE_ITEMS + len(items)

    def _put_page(self, group: int, number: int, packed: bytes, written: Written) -> None:
        forever = () if self._stored.ttl_us is None else (END,)
        written.put(group, (number, *self._no_item), b"", packed, *forever)


def last_of_each(items: list[Any]) -> list[Any]:
    """Items once each, where they come last."""
    return list(dict.fromkeys(reversed(items)))[::-1]


def _pages(listed: int) -> int:
    return -(-listed // _PAGE_ITEMS)
