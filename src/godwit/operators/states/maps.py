"""A map for each key: an entry for each item, and a *listing* of the items for who wants them all.

What tells items apart are columns of the table, so an item is found as a key is, and a look-up of
many is one call; what items there are, says the listing (`godwit.operators.states.listing`).

Which items a function will ask for is not known before; mostly they stand in the rows.  So when
one that was not looked up is a value of some column, what that column holds is looked up for the
keys whose turn is next too; and so is an item that was asked for of another key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.model.errors import UserFunctionError
from godwit.model.naming import RESERVED_PREFIX, type_name
from godwit.operators.states.cells import Cells, Expired, LookAhead, Written
from godwit.operators.states.declared import ITEM_TYPES
from godwit.operators.states.listing import Grown, Listings, last_of_each
from godwit.operators.states.lists import each
from godwit.operators.states.of_key import MapOfKey
from godwit.operators.states.stored import PAGE, StoredState
from godwit.values.codec import is_immutable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from godwit.operators.operator import StateView
    from godwit.operators.states.cells import LaneKeys, Looked

__all__ = ["ITEM", "LISTING", "StoredMap"]

ITEM: Final = f"{RESERVED_PREFIX}_item"
LISTING: Final = "listing"
_ITEM_ENTRY: Final = -1
_MOST_SINGLE: Final = 64
_MOST_TRIES: Final = 1000
"""So often the columns are searched in vain, until they are left alone."""
_INT64: Final = range(-(2**63), 2**63)


class StoredMap(StoredState):
    """How maps lie in entries.

    Parameters
    ----------
    by
        Types of the parts that items are found by.
    is_tuple
        Whether they are given as a tuple.
    **options
        As of `StoredState`.
    """

    def __init__(
        self,
        *,
        by: tuple[type, ...],
        is_tuple: bool,
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
            apart=[pa.field(PAGE, pa.int64()), *self.items],
            columns=[pa.field(LISTING, pa.large_binary())],
            upgrade=None if upgrade is None else each(upgrade),
            **options,
        )

    def begin(self, lane: LaneKeys, held: StateView, expired: Expired | None) -> MapCells:
        """Take up an epoch."""
        return MapCells(self, lane, held, expired)

    def parts(self, item: Any) -> tuple[Any, ...]:
        """Take apart what an item is found by.

        Raises
        ------
        UserFunctionError
            If it is not of the declared type.
        """
        parts = item if self.is_tuple else (item,)
        if (
            type(parts) is not tuple
            or len(parts) != len(self.by)
            or any(type(part) is not by for part, by in zip(parts, self.by, strict=True))
            or any(type(part) is int and part not in _INT64 for part in parts)
        ):
            by = ", ".join(part.__name__ for part in self.by)
            raise UserFunctionError(
                f"State {self.name!r} of operator {self.operator!r} is a map by "
                f"{f'tuple[{by}]' if self.is_tuple else by}, and was asked for {item!r:.200}, of "
                f"type {type_name(item)}.",
                remedy="Ask for what it is declared for; whole numbers have 64 bits.",
                operator=self.operator,
                state=self.name,
            )
        return parts

    def item(self, parts: Sequence[Any]) -> Any:
        """Put together what an item is found by."""
        return tuple(parts) if self.is_tuple else parts[0]


class _Item:
    """An item of one key: as it was read, and as it is."""

    __slots__ = ("before", "changed", "read", "there", "value", "visible")

    def __init__(self, before: bytes, *, there: bool) -> None:
        self.before, self.there = before, there
        self.visible = bool(before)
        self.value: Any = None
        self.read = self.changed = False


@dataclass(slots=True)
class _Map:
    """What is known of the map of one key."""

    # Those that were asked for, or are no more.
    items: dict[Any, _Item] = field(default_factory=dict)
    ahead: dict[Any, _Item] = field(default_factory=dict)  # those that were only looked up along
    # Those that were not there when they were assigned, in order.
    added: list[Any] = field(default_factory=list)
    # All that the listing had when it was read; ``None``: it was not.
    listed: list[Any] | None = None


class MapCells(Cells):
    """Maps of the keys of one lane in one epoch."""

    stored: StoredMap

    def __init__(
        self, stored: StoredMap, lane: LaneKeys, held: StateView, expired: Expired | None
    ) -> None:
        super().__init__(stored, lane, held)
        self._listings = Listings(self)
        self._maps: dict[int, _Map] = {}
        count = len(lane.tuples)
        self._ahead, self._whole, self._singles = (LookAhead(count) for _ in range(3))
        self._single: set[Any] = set()
        self._tries = _MOST_TRIES
        self._used = -1
        if expired is not None and expired.groups:
            columns = expired.entries.keys.columns[stored.num_keys + 1 :]
            items = zip(*(column.to_pylist() for column in columns), strict=True)
            for group, parts in zip(expired.groups, items, strict=True):
                self._map(group).items[stored.item(parts)] = _Item(b"", there=True)

    def of_key(self, group: int, insist: Callable[[], None]) -> MapOfKey[Any, Any]:
        """Give the map of a key."""
        return MapOfKey(self, group, insist)

    # -- what a function does ------------------------------------------------------------------

    def is_there(self, group: int, item: Any) -> bool:
        """Whether a key has an item."""
        return self._item(group, item).visible

    def read(self, group: int, item: Any) -> Any:
        """Value of an item; raises KeyError if there is none."""
        found = self._item(group, item)
        if not found.visible:
            raise KeyError(item)
        if not (found.read or found.changed):
            ((found.value,),) = self.stored.decoded(
                [found.before], lambda _: (self.lane.tuples[group], f", item {item!r}")
            )
            found.read = True
        return found.value

    def assign(self, group: int, item: Any, value: Any) -> None:
        """Set an item."""
        found = self._item(group, item)
        if not found.visible:
            self._maps[group].added.append(item)
        found.value, found.changed, found.visible = value, True, True

    def remove(self, group: int, item: Any) -> None:
        """Remove an item; raises KeyError if there is none."""
        found = self._item(group, item)
        if not found.visible:
            raise KeyError(item)
        found.visible, found.changed, found.read = False, False, False

    def items(self, group: int) -> list[Any]:
        """Find what a key's items are found by, in the order in which they were added."""
        of_key = self._map(group)
        if of_key.listed is None:
            self._load_whole(group)
        self._whole.use()
        assert of_key.listed is not None, "it was loaded"
        every = last_of_each([*of_key.listed, *of_key.added])
        return [item for item in every if self._item(group, item).visible]

    def forget(self, group: int) -> None:
        """Drop the map of a key."""
        for item in self.items(group):
            self.remove(group, item)

    def expect(self, group: int, items: list[Any]) -> None:
        """Look up items of a key that are about to be asked for."""
        of_key = self._map(group)
        missing = [i for i in items if i not in of_key.items and i not in of_key.ahead]
        self._look_up_items([group] * len(missing), missing)

    # -- looking up ----------------------------------------------------------------------------

    def _map(self, group: int) -> _Map:
        found = self._maps.get(group)
        if found is None:
            found = self._maps[group] = _Map()
        return found

    def _item(self, group: int, item: Any) -> _Item:
        of_key = self._map(group)
        parts = self.stored.parts(item)
        found = of_key.items.get(item)
        if found is not None:
            return found
        if item not in of_key.ahead:
            self._look(group, item, parts)
        if self._used != group:
            self._ahead.use()
            self._singles.use()
            self._used = group
        found = of_key.items[item] = of_key.ahead.pop(item)
        return found

    def _look(self, group: int, item: Any, parts: tuple[Any, ...]) -> None:
        """Look up an item that was not, and what else is likely to be asked for."""
        columns = self._columns_with(group, parts) if self._tries else ()
        if columns:
            self._look_ahead(group, columns)
            return
        self._tries -= 1
        groups = range(group, group + 1)
        if item in self._single:  # it was asked for of another key, too
            groups = self._singles.keys(group)
        elif len(self._single) < _MOST_SINGLE:
            self._single.add(item)
        self._look_up_items(list(groups), [item] * len(groups))

    def _columns_with(self, group: int, parts: tuple[Any, ...]) -> tuple[str, ...]:
        """Find the columns of the key's rows that hold what was asked for; none if some do not."""
        rows, starts = self.lane.rows, self.lane.starts
        found = []
        for part, field_ in zip(parts, self.stored.items, strict=True):
            for name in rows.names if starts[group] < starts[group + 1] else ():
                values = rows.array(name).type, rows[name][starts[group] : starts[group + 1]]
                if _holds(values[0], field_.type) and part in values[1]:
                    found.append(name)
                    break
        return tuple(found) if len(found) == len(parts) else ()

    def _load_whole(self, group: int) -> None:
        """Read the whole map of a key, and of those whose turn is next."""
        groups = [g for g in self._whole.keys(group) if self._map(g).listed is None]
        missing: list[tuple[int, Any]] = []
        for of_group, listed in zip(groups, self._listings.read(groups), strict=True):
            of_key = self._maps[of_group]
            of_key.listed = listed
            missing += [(of_group, item) for item in listed if item not in of_key.items]
        took = self._look_up_items([g for g, _ in missing], [item for _, item in missing])
        self._whole.took(took)

    def _look_ahead(self, group: int, of: tuple[str, ...]) -> None:
        """Look up what the rows of the next keys name."""
        ahead = self._ahead.keys(group)
        first, end = self.lane.starts[ahead.start], self.lane.starts[ahead.stop]
        sizes = np.diff(self.lane.starts[ahead.start : ahead.stop + 1])
        groups = np.repeat(np.arange(ahead.start, ahead.stop), sizes)
        columns = [
            self.lane.rows.array(name).slice(first, end - first).cast(field_.type)
            for name, field_ in zip(of, self.stored.items, strict=True)
        ]
        names = [f"c{i}" for i in range(len(columns))]
        table = pa.table([pa.array(groups), *columns], names=["group", *names])
        table = table.group_by(["group", *names], use_threads=False).aggregate([]).drop_null()
        table = table.combine_chunks()
        columns = [table.column(name).combine_chunks() for name in names]
        looked = self._find(table.column("group").to_numpy(), columns)
        items = zip(*(column.to_pylist() for column in columns), strict=True)
        self._take(table.column("group").to_pylist(), map(self.stored.item, items), looked)
        self._ahead.took(looked.nbytes)

    def _look_up_items(self, groups: list[int], items: list[Any]) -> int:
        """Look items up, and keep them until they are asked for; says how much was read."""
        if not groups:
            return 0
        parts = zip(*map(self.stored.parts, items), strict=True)
        columns = [
            pa.array(values, field_.type)
            for values, field_ in zip(parts, self.stored.items, strict=True)
        ]
        looked = self._find(np.array(groups), columns)
        self._take(groups, items, looked)
        return looked.nbytes

    def _find(self, groups: npt.NDArray[np.int64], columns: list[pa.Array]) -> Looked:
        return self.look_up(groups, pa.array(np.full(len(groups), _ITEM_ENTRY)), *columns)

    def _take(self, groups: list[int], items: Any, looked: Looked) -> None:
        moments, clock = looked.moments(self.stored.expires_at), self.lane.clock
        for row, (group, item) in enumerate(zip(groups, items, strict=True)):
            of_key = self._map(group)
            if item not in of_key.items:
                there = looked.known[row]
                before = looked.blob(0, row) if there and moments[row] > clock else b""
                of_key.ahead[item] = _Item(before, there=there)

    def _whose(self, group: int, item: Any) -> str:
        return f"{self.key(group)}, item {item!r}"

    # -- what is written -----------------------------------------------------------------------

    def written(self) -> Written:
        """Give the items that differ from what was read, those that are gone, and the listing."""
        written = self.new_written()
        maybe: list[tuple[int, Any, _Item]] = []
        grown: list[Grown] = []
        for group, of_key in self._maps.items():
            more = 0
            for item, cell in of_key.items.items():
                more += cell.visible - cell.there
                if cell.visible and (cell.changed or (cell.read and not is_immutable(cell.value))):
                    maybe.append((group, item, cell))
                elif cell.there and not cell.visible:
                    written.remove(group, (_ITEM_ENTRY, *self.stored.parts(item)))
            added = [i for i in last_of_each(of_key.added) if of_key.items[i].visible]
            if more or added:
                grown.append(Grown(group=group, more=more, added=added))
        blobs = self.stored.encoded(
            [[cell.value] for _, _, cell in maybe],
            lambda index: self._whose(*maybe[index][:2]),
        )
        again = () if self.stored.ttl_us is None else (self._again,)
        for (group, item, cell), blob in zip(maybe, blobs, strict=True):
            if cell.changed or blob != cell.before:
                apart = (_ITEM_ENTRY, *self.stored.parts(item))
                written.put(group, apart, blob, b"", *again)
        if grown:
            self._listings.write(grown, written, self._that_are_there)
        return written

    def _that_are_there(self, group: int, items: list[Any]) -> list[Any]:
        """Those of some items that are kept, visible or not yet swept."""
        of_key = self._maps[group]
        missing = [i for i in items if i not in of_key.items and i not in of_key.ahead]
        self._look_up_items([group] * len(missing), missing)
        cells = [of_key.items.get(item) or of_key.ahead[item] for item in items]
        return [
            item
            for item, cell in zip(items, cells, strict=True)
            if cell.visible or (cell.there and item not in of_key.items)
        ]


def _holds(dtype: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of some type may name items of another."""
    if pa.types.is_int64(wanted):
        return bool(pa.types.is_integer(dtype) and dtype != pa.uint64())
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))
    if pa.types.is_binary(wanted):
        return bool(pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype))
    return bool(dtype == wanted)
