"""Map state: an entry per item, and a *listing* of the items for iteration.

The items' keys are key columns of the table, so an item is found like a key, and one call looks up
many.  Which items a function will access is not known before, but most of them are values in the
epoch's rows.  So if an item that was not read ahead is a value of some column, the values of that
column are read ahead for the next keys; and so is an item that was accessed for another key.

A hash table cannot list the items of a key.  The listing has them in insertion order, in pages of
64 with numbers without gaps, and a head with the number of items and the length of the listing.  A
removed item stays in the listing until the listing is twice as long as needed; then it is
rewritten.  So adding and removing items cost the same for any number of items, and the order is
that of a dict.
"""

from __future__ import annotations

import struct
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
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
from godwit.model.errors import UserFunctionError
from godwit.model.naming import RESERVED_PREFIX, type_name
from godwit.operators.declared import ITEM_TYPES
from godwit.time.grid import END
from godwit.values.codec import is_immutable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from godwit.library.states.stored import Expired, Looked

K = TypeVar("K")
V = TypeVar("V")

ITEM: Final = f"{RESERVED_PREFIX}_item"
LISTING: Final = "listing"
_ITEM_ENTRY: Final = -1
_MAX_SEEN_ITEMS: Final = 64
_MAX_TRIES: Final = 1000
"""Failed look-ups by row columns after which columns are no longer searched."""
_INT64: Final = range(-(2**63), 2**63)
_HEAD: Final = -2
_COUNTS: Final = struct.Struct("<qq")
_PAGE_ITEMS: Final = 64


class MapOfKey(OfKey, MutableMapping[K, V]):
    """Map of the present key in a state that `gw.MapState` declares.

    Godwit makes it: functions of ``process(..., state={...})`` get it as ``states.<name>``. It is a
    mutable mapping, with its items in the order in which they were added. It may be used only
    during the call that gets it.

    Examples
    --------
    >>> def count_by_origin(key, rows, states):
    ...     for row in rows:
    ...         states.origins[row.origin] = states.origins.get(row.origin, 0) + 1
    ...     return list(states.origins.items())
    >>> rows, declared = [{"origin": "JFK"}] * 2, {"origins": gw.MapState(str, int)}
    >>> gw.testing.process(count_by_origin, rows, state=declared).rows
    [('JFK', 2)]
    """

    __slots__ = ()

    def __getitem__(self, item: K) -> V:
        self._require_open()
        value: V = self._cells.read(self._group, item)
        return value

    def __setitem__(self, item: K, value: V) -> None:
        self._require_open()
        self._cells.assign(self._group, item, value)

    def __delitem__(self, item: K) -> None:
        self._require_open()
        self._cells.remove(self._group, item)

    def __contains__(self, item: object) -> bool:
        self._require_open()
        exists: bool = self._cells.is_there(self._group, item)
        return exists

    def __iter__(self) -> Iterator[K]:
        self._require_open()
        return iter(self._cells.items(self._group))

    def __len__(self) -> int:
        self._require_open()
        return len(self._cells.items(self._group))

    def __reversed__(self) -> Iterator[K]:
        self._require_open()
        yield from reversed(self._cells.items(self._group))

    def popitem(self) -> tuple[K, V]:
        """Remove the item that was added last, and return its key and value.

        Raises
        ------
        KeyError
            If the map is empty.

        Examples
        --------
        >>> def newest(key, rows, states):
        ...     return [states.origins.popitem()]
        >>> declared, before = {"origins": gw.MapState(str, int)}, {"origins": {"JFK": 1, "LGA": 2}}
        >>> gw.testing.process(newest, [{"delay": 5}], state=declared, before=before).rows
        [('LGA', 2)]
        """
        for item in reversed(self):
            return item, self.pop(item)
        raise KeyError("popitem(): the map is empty")

    def update(self, *others: Any, **items: Any) -> None:
        """Set many items; faster than one by one, because they are read together.

        Parameters
        ----------
        *others, **items
            As for ``dict.update``: a mapping, or pairs of key and value; and text keys by name.

        Examples
        --------
        >>> def last_of_each(key, rows, states):
        ...     states.delays.update((row.origin, row.delay) for row in rows)
        >>> rows, declared = [{"origin": "JFK", "delay": 5}], {"delays": gw.MapState(str, int)}
        >>> gw.testing.process(last_of_each, rows, state=declared).states
        {'delays': {'JFK': 5}}
        """
        new_items: dict[Any, Any] = dict(*others, **items)
        self._require_open()
        self._cells.expect(self._group, list(new_items))
        super().update(new_items)

    def __repr__(self) -> str:
        return f"MapOfKey({dict(self)!r})"


class _Item:
    """An item of one key, as read and as changed."""

    __slots__ = ("before", "changed", "in_store", "read", "value", "visible")

    def __init__(self, before: bytes, *, in_store: bool) -> None:
        self.before, self.in_store = before, in_store
        self.visible = bool(before)
        self.value: Any = None
        self.read = self.changed = False


@dataclass(slots=True)
class _Map:
    """Map of one key: the items loaded so far, and changes."""

    # Those that were asked for, or are no more.
    items: dict[Any, _Item] = field(default_factory=dict)
    ahead: dict[Any, _Item] = field(default_factory=dict)  # those that were only looked up along
    # Those that were not there when they were assigned, in order.
    added: list[Any] = field(default_factory=list)
    # All that the listing had when it was read; ``None``: it was not.
    listed: list[Any] | None = None


class MapCells(Cells):
    """Maps of all keys of a lane in one epoch, with their changes."""

    stored: StoredMap
    cached: dict[int, _Map]
    handle = MapOfKey

    def start(self, num_keys: int) -> None:
        self._listings = _Listings(self)
        self._item_look_ahead, self._map_look_ahead, self._repeat_look_ahead = (
            LookAhead(num_keys) for _ in range(3)
        )
        self._seen_items: set[Any] = set()
        self._tries_left = _MAX_TRIES
        self._last_key_number = -1
        self._expiry_times: dict[tuple[int, Any], int] = {}  # key number, item → when it expires

    def sweep(self, expired: Expired) -> None:
        for group, (_, *parts) in expired:
            self._cached_map(group).items[self.stored.item(parts)] = _Item(b"", in_store=True)

    # -- what a function does ------------------------------------------------------------------

    def is_there(self, group: int, item: Any) -> bool:
        """Return whether the map of key number `group` has an item with the key `item`."""
        return self._find_item(group, item).visible

    def read(self, key_number: int, item: Any) -> Any:
        """Return the value of the item with the key `item`; raise `KeyError` if there is none."""
        cell = self._find_item(key_number, item)
        if not cell.visible:
            raise KeyError(item)
        if not (cell.read or cell.changed):
            ((cell.value,),) = self.stored.decoded(
                [cell.before], lambda _: (self.lane.tuples[key_number], f", item {item!r}")
            )
            cell.read = True
        return cell.value

    def assign(self, key_number: int, item: Any, value: Any) -> None:
        """Set the value of the item with the key `item`, in the map of a key."""
        cell = self._find_item(key_number, item)
        if not cell.visible:
            self.cached[key_number].added.append(item)
        cell.value, cell.changed, cell.visible = value, True, True

    def fill(self, group: int, value: Any, expiry_times: Sequence[int]) -> None:
        for item, of_item in dict(value).items():
            self.assign(group, item, of_item)
        self._expiry_times.update(
            ((group, i), m) for i, m in zip(value, expiry_times, strict=False)
        )

    def remove(self, key_number: int, item: Any) -> None:
        """Remove the item with the key `item`; raise `KeyError` if there is none."""
        cell = self._find_item(key_number, item)
        if not cell.visible:
            raise KeyError(item)
        cell.visible, cell.changed, cell.read = False, False, False

    def items(self, key_number: int) -> list[Any]:
        """Return the keys of all items of a map, in insertion order."""
        key_map = self._cached_map(key_number)
        if key_map.listed is None:
            self._load_whole(key_number)
        self._map_look_ahead.record_use()
        assert key_map.listed is not None, "it was loaded"
        all_items = _last_of_each([*key_map.listed, *key_map.added])
        return [item for item in all_items if self._find_item(key_number, item).visible]

    def drop(self, group: int) -> None:
        for item in self.items(group):
            self.remove(group, item)

    def expect(self, key_number: int, items: list[Any]) -> None:
        """Look up several items of a map in one read, before they are used."""
        of_key = self._cached_map(key_number)
        missing = [i for i in items if i not in of_key.items and i not in of_key.ahead]
        self._look_up_items([key_number] * len(missing), missing)

    # -- looking up ----------------------------------------------------------------------------

    def _cached_map(self, group: int) -> _Map:
        """Return the cached part of the map of key number `group`."""
        key_map = self.cached.get(group)
        if key_map is None:
            key_map = self.cached[group] = _Map()
        return key_map

    def _find_item(self, key_number: int, item: Any) -> _Item:
        """Return an item of a map, from the cache or looked up in the state."""
        key_map = self._cached_map(key_number)
        parts = self.stored.parts(item)
        cell = key_map.items.get(item)
        if cell is not None:
            return cell
        if item not in key_map.ahead:
            self._look_up_with_prefetch(key_number, item, parts)
        if self._last_key_number != key_number:
            self._item_look_ahead.record_use()
            self._repeat_look_ahead.record_use()
            self._last_key_number = key_number
        cell = key_map.items[item] = key_map.ahead.pop(item)
        return cell

    def _look_up_with_prefetch(self, key_number: int, item: Any, parts: tuple[Any, ...]) -> None:
        """Look up an item, and the items that the next keys' rows are likely to use.

        `parts`: the item's key columns.
        """
        columns = self._columns_with(key_number, parts) if self._tries_left else ()
        if columns:
            self._prefetch_items(key_number, columns)
            if item in self._cached_map(key_number).ahead:
                return
            # Its parts are in rows of the key, but not together in one.
        self._tries_left -= 1
        groups = range(key_number, key_number + 1)
        if item in self._seen_items:  # it was asked for of another key, too
            groups = self._repeat_look_ahead.keys(key_number)
        elif len(self._seen_items) < _MAX_SEEN_ITEMS:
            self._seen_items.add(item)
        self._look_up_items(list(groups), [item] * len(groups))

    def _columns_with(self, key_number: int, parts: tuple[Any, ...]) -> tuple[str, ...]:
        """Return the row columns that contain the item's key, to prefetch by; empty if none do."""
        rows, starts = self.lane.rows, self.lane.starts
        columns = []
        for part, field_ in zip(parts, self.stored.items, strict=True):
            for name in rows.sent if starts[key_number] < starts[key_number + 1] else ():
                values = (
                    rows.array(name).type,
                    rows[name][starts[key_number] : starts[key_number + 1]],
                )
                if _can_be_items(values[0], field_.type) and part in values[1]:
                    columns.append(name)
                    break
        return tuple(columns) if len(columns) == len(parts) else ()

    def _load_whole(self, group: int) -> None:
        """Read all items of the map of key number `group`, and of the next keys' maps."""
        groups = [
            number
            for number in self._map_look_ahead.keys(group)
            if self._cached_map(number).listed is None
        ]
        missing: list[tuple[int, Any]] = []
        for map_group, listed in zip(groups, self._listings.read(groups), strict=True):
            key_map = self.cached[map_group]
            key_map.listed = listed
            missing += [(map_group, item) for item in listed if item not in key_map.items]
        num_bytes = self._look_up_items(
            [number for number, _ in missing], [item for _, item in missing]
        )
        self._map_look_ahead.record_read(num_bytes)

    def _prefetch_items(self, key_number: int, item_columns: tuple[str, ...]) -> None:
        """Look up the items, with keys in the columns `item_columns`, of the next keys' rows."""
        ahead = self._item_look_ahead.keys(key_number)
        first, end = self.lane.starts[ahead.start], self.lane.starts[ahead.stop]
        sizes = np.diff(self.lane.starts[ahead.start : ahead.stop + 1])
        groups = np.repeat(np.arange(ahead.start, ahead.stop), sizes)
        columns = [
            self.lane.rows.array(name).slice(first, end - first).cast(field_.type)
            for name, field_ in zip(item_columns, self.stored.items, strict=True)
        ]
        names = [f"c{i}" for i in range(len(columns))]
        table = pa.table([pa.array(groups), *columns], names=["group", *names])
        table = table.group_by(["group", *names], use_threads=False).aggregate([]).drop_null()
        table = table.combine_chunks()
        columns = [table.column(name).combine_chunks() for name in names]
        looked = self._find_entries(table.column("group").to_numpy(), columns)
        items = zip(*(column.to_pylist() for column in columns), strict=True)
        self._cache_items(table.column("group").to_pylist(), map(self.stored.item, items), looked)
        self._item_look_ahead.record_read(looked.nbytes)

    def _look_up_items(self, key_numbers: list[int], items: list[Any]) -> int:
        """Look up items in the state, and cache them; return the number of bytes read.

        `key_numbers`: key number of each item.
        """
        if not key_numbers:
            return 0
        parts = zip(*map(self.stored.parts, items), strict=True)
        columns = [
            pa.array(values, field_.type)
            for values, field_ in zip(parts, self.stored.items, strict=True)
        ]
        looked = self._find_entries(np.array(key_numbers), columns)
        self._cache_items(key_numbers, items, looked)
        return looked.nbytes

    def _find_entries(self, key_numbers: npt.NDArray[np.int64], columns: list[pa.Array]) -> Looked:
        """Look up the entries of items by key number and the columns of the items' keys."""
        return self.look_up(key_numbers, pa.array(np.full(len(key_numbers), _ITEM_ENTRY)), *columns)

    def _cache_items(self, key_numbers: list[int], items: Any, looked: Looked) -> None:
        """Cache items that were looked up; an expired item counts as absent.

        `looked`: the entries found for them.
        """
        expiry_times, clock = looked.expiry_times(self.stored.expires_at), self.lane.clock
        for row, (group, item) in enumerate(zip(key_numbers, items, strict=True)):
            key_map = self._cached_map(group)
            if item not in key_map.items:
                in_store = looked.known[row]
                before = looked.blob(0, row) if in_store and expiry_times[row] > clock else b""
                key_map.ahead[item] = _Item(before, in_store=in_store)

    def _item_text(self, group: int, item: Any) -> str:
        """Return an item of a key as text, for errors."""
        return f"{self.key_text(group)}, item {item!r}"

    # -- changes to write -----------------------------------------------------------------------

    def written(self) -> Written:
        """Return the entries that the epoch changed: items, and pages of items' order."""
        written = self.new_written()
        possibly_changed: list[tuple[int, Any, _Item]] = []
        grown: list[_Grown] = []
        for group, key_map in self.cached.items():
            num_added = 0
            for item, cell in key_map.items.items():
                num_added += cell.visible - cell.in_store
                if cell.visible and (cell.changed or (cell.read and not is_immutable(cell.value))):
                    possibly_changed.append((group, item, cell))
                elif cell.in_store and not cell.visible:
                    written.remove(group, (_ITEM_ENTRY, *self.stored.parts(item)))
            added = [
                candidate
                for candidate in _last_of_each(key_map.added)
                if key_map.items[candidate].visible
            ]
            if num_added or added:
                grown.append(_Grown(group=group, more=num_added, added=added))
        blobs = self.stored.encoded(
            [[cell.value] for _, _, cell in possibly_changed],
            lambda index: self._item_text(*possibly_changed[index][:2]),
        )
        for (group, item, cell), blob in zip(possibly_changed, blobs, strict=True):
            expiry_columns: tuple[int, ...] = ()
            if self.stored.ttl_us is not None:
                expiry_columns = (self._expiry_times.get((group, item), self._expiry_us),)
            if cell.changed or blob != cell.before:
                entry_key = (_ITEM_ENTRY, *self.stored.parts(item))
                written.put(group, entry_key, blob, b"", *expiry_columns)
        if grown:
            self._listings.write(grown, written, self._existing_items)
        return written

    def _existing_items(self, key_number: int, items: list[Any]) -> list[Any]:
        """Return those of `items` that exist, even if they are expired and not deleted yet."""
        self.expect(key_number, items)
        key_map = self.cached[key_number]
        cells = [key_map.items.get(item) or key_map.ahead[item] for item in items]
        return [
            item
            for item, cell in zip(items, cells, strict=True)
            if cell.visible or (cell.in_store and item not in key_map.items)
        ]


@dataclass(slots=True, kw_only=True)
class _Grown:
    """Items added to and removed from one key's map."""

    group: int
    more: int  # how many more it has
    added: list[Any]  # those that go to the end of the listing
    count: int = 0  # items of the map after the change
    listed: int = 0  # length of the listing

    @property
    def is_too_long(self) -> bool:
        """True if a listing consists mostly of removed items."""
        long = self.listed + len(self.added) > 2 * self.count + _PAGE_ITEMS
        return self.count > 0 and long


class _Listings:
    """Listings of all maps of a lane in one epoch."""

    __slots__ = ("_cells", "_no_item", "_stored")

    def __init__(self, cells: MapCells) -> None:
        self._cells, self._stored = cells, cells.stored
        self._no_item: tuple[None, ...] = (None,) * len(cells.stored.items)

    def read(self, key_numbers: list[int]) -> list[list[Any]]:
        """Read the listing of each map: its items in insertion order, perhaps with removed ones."""
        heads = self._read_heads(key_numbers)
        pages = [range(_num_pages(listed)) for _, listed in heads]
        group_of_page = [
            group
            for group, page_numbers in zip(key_numbers, pages, strict=True)
            for _ in page_numbers
        ]
        looked = self._find_entries(
            group_of_page, [page for page_numbers in pages for page in page_numbers]
        )
        blobs = (looked.blob(1, row) for row in range(len(group_of_page)))
        return [
            [item for _ in page_numbers for item in self._decode_page(next(blobs))]
            for page_numbers in pages
        ]

    def write(
        self,
        grown: list[_Grown],
        written: Written,
        filter_items: Callable[[int, list[Any]], list[Any]],
    ) -> None:
        """Write the listings of maps that changed; `kept` returns those items that still exist."""
        for listing, (count, listed) in zip(
            grown, self._read_heads([listing.group for listing in grown]), strict=True
        ):
            listing.count, listing.listed = count + listing.more, listed
        too_long = {listing.group: listing for listing in grown if listing.is_too_long}
        for listing, items in zip(too_long.values(), self.read(list(too_long)), strict=True):
            all_items = filter_items(listing.group, _last_of_each([*items, *listing.added]))
            self._put_pages(listing, 0, all_items, written)
        appended = [
            listing
            for listing in grown
            if listing.count and listing.added and listing.group not in too_long
        ]
        pages = [listing.listed // _PAGE_ITEMS for listing in appended]
        looked = self._find_entries([listing.group for listing in appended], pages)
        for row, (listing, page) in enumerate(zip(appended, pages, strict=True)):
            page_items = self._decode_page(looked.blob(1, row))
            self._put_pages(listing, page, [*page_items, *listing.added], written)
        for listing in grown:
            if listing.count:
                self._put_page(
                    listing.group, _HEAD, _COUNTS.pack(listing.count, listing.listed), written
                )
            else:
                for number in (_HEAD, *range(_num_pages(listing.listed))):
                    written.remove(listing.group, (number, *self._no_item))

    def _read_heads(self, key_numbers: list[int]) -> list[tuple[int, int]]:
        """Return each map's number of items, and the length of its listing (see `read`)."""
        looked = self._find_entries(key_numbers, [_HEAD] * len(key_numbers))
        return [
            _COUNTS.unpack(looked.blob(1, row)) if known else (0, 0)
            for row, known in enumerate(looked.known)
        ]

    def _find_entries(self, key_numbers: list[int], pages: list[int]) -> Looked:
        """Look up pages of listings by key number and page number."""
        none = [pa.nulls(len(key_numbers), field.type) for field in self._stored.items]
        return self._cells.look_up(
            np.array(key_numbers, np.int64), pa.array(pages, pa.int64()), *none
        )

    def _decode_page(self, blob: bytes) -> list[Any]:
        """Decode the items of one page of a listing."""
        items: list[Any] = msgspec.msgpack.decode(blob, type=self._stored.page) if blob else []
        return items

    def _put_pages(self, listing: _Grown, first: int, items: list[Any], written: Written) -> None:
        """Write items to the pages of a listing from `first` on; delete the pages after them."""
        for begin in range(0, len(items), _PAGE_ITEMS):
            packed = msgspec.msgpack.encode(items[begin : begin + _PAGE_ITEMS])
            self._put_page(listing.group, first + begin // _PAGE_ITEMS, packed, written)
        for number in range(first + _num_pages(len(items)), _num_pages(listing.listed)):
            written.remove(listing.group, (number, *self._no_item))
        listing.listed = first * _PAGE_ITEMS + len(items)

    def _put_page(self, group: int, number: int, packed: bytes, written: Written) -> None:
        """Write one page, encoded as `packed`, of the listing of key number `group`."""
        forever = () if self._stored.ttl_us is None else (END,)
        written.put(group, (number, *self._no_item), b"", packed, *forever)


class StoredMap(StoredState):
    """Layout of a map in entries: items by their parts, and pages of the listing."""

    def __init__(
        self,
        *,
        by: tuple[type, ...],  # types of the parts that items are found by
        is_tuple: bool,  # whether functions give them as a tuple
        upgrade: Callable[[Any], Any] | None,
        **options: Any,
    ) -> None:
        names = [f"{ITEM}_{i}" for i in range(len(by))] if is_tuple else [ITEM]
        self.items = [
            pa.field(name, ITEM_TYPES[part]) for name, part in zip(names, by, strict=True)
        ]
        self.by, self.is_tuple = by, is_tuple
        item: Any = tuple[by] if is_tuple else by[0]  # type: ignore[valid-type]
        self.page: Any = list[item]
        super().__init__(
            cells=MapCells,
            apart=[pa.field(PAGE, pa.int64()), *self.items],
            columns=[pa.field(LISTING, pa.large_binary())],
            upgrade=None if upgrade is None else partial(upgrade_each, upgrade),
            **options,
        )

    def parts(self, item: Any) -> tuple[Any, ...]:
        """Return a map item's key as the values of its columns; refuse a wrong type."""
        parts = item if self.is_tuple else (item,)
        if (
            type(parts) is not tuple
            or len(parts) != len(self.by)
            or any(
                type(part) is not part_type for part, part_type in zip(parts, self.by, strict=True)
            )
            or any(type(part) is int and part not in _INT64 for part in parts)
        ):
            part_type = ", ".join(part.__name__ for part in self.by)
            raise UserFunctionError(
                f"State {self.name!r} of operator {self.operator!r} is a map with "
                f"keys of type {f'tuple[{part_type}]' if self.is_tuple else part_type}; "
                f"the key {item!r:.200} is of type {type_name(item)}.",
                remedy="Use keys of the declared type; an integer has at most 64 bits.",
                operator=self.operator,
                state=self.name,
            )
        return parts

    def item(self, parts: Sequence[Any]) -> Any:
        """Return the key of a map item from the values of its columns."""
        return tuple(parts) if self.is_tuple else parts[0]


def _can_be_items(dtype: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of type `dtype` can be keys of a map whose key type is `wanted`."""
    if pa.types.is_int64(wanted):
        return bool(pa.types.is_integer(dtype) and dtype != pa.uint64())
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))
    if pa.types.is_binary(wanted):
        return bool(pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype))
    return bool(dtype == wanted)


def _last_of_each(items: list[Any]) -> list[Any]:
    """Return the distinct items, in order of their last occurrence."""
    return list(dict.fromkeys(reversed(items)))[::-1]


def _num_pages(listed: int) -> int:
    """Return the number of pages that a listing of `listed` items fills."""
    return -(-listed // _PAGE_ITEMS)
