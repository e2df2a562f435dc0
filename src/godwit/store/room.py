"""How much room a table gets: when it grows in place, and when it is made anew without garbage.

Rows and keys get half as much again as they need, so that a growing table asks for blocks seldom.
State of varying length gets thrice, since every change leaves garbage behind, and small tables more
than that.  A table that runs out of room grows in place, unless with its garbage it would be larger
than a new one: then what is alive is copied into a new file.  Either way the work is a constant
factor of what was written since the last time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.errors import StateEncodingError
from godwit.store.layout import MAX_ROWS, Capacity
from godwit.store.schema import is_variable_width

if TYPE_CHECKING:
    from godwit.store.image import TableImage, Upserts

__all__ = ["capacity_for", "grown_room", "room_for"]

_MIN_ROWS = 256
_MIN_CAPACITY_ROWS = 1 << 20
_MIN_CAPACITY_BYTES = 1 << 26
_HEADROOM = 16  # places in a file, which is sparse, per place that has blocks
_SPARE_EPOCHS = 16  # changes like these that a table has room for
_SPARE_ENTRIES = 8192
_SPARE_BYTES = 128 * 2**10
_MIN_HEAP_BYTES = 4096
_MAX_ENTRIES = (1 << 32) - 2
_MAX_HEAP_BYTES = 1 << 42


def grown_room(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> Capacity | None:
    """Room in which a table takes `upserts`, of which `fresh` have no row yet.

    Returns what the table has, or more; ``None`` where it is to be made anew.
    """
    columns = []
    for number, (entries, heap) in enumerate(_added(image, upserts, fresh)):
        held_entries, held, _ = image.entries(number)
        columns.append((held_entries + entries, held + heap))
    rows = image.used + (0 if fresh is None else len(fresh.hashes))
    needed_room, room = Capacity(rows=rows, columns=tuple(columns)), image.room
    if _covers(room, needed_room):
        return room
    new = room_for(image, upserts, fresh)
    if not _covers(new, needed_room) or not _covers(image.layout.capacity, new, spare_rows=1):
        return None
    pairs = zip(room.columns, new.columns, strict=True)
    return Capacity(
        rows=max(room.rows, new.rows),
        columns=tuple((max(a, c), max(b, d)) for (a, b), (c, d) in pairs),
    )


def room_for(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> Capacity:
    """Room of a new table for what is alive and `upserts`, of which `fresh` are not alive.

    Raises `StateEncodingError` if a table can hold that many keys, or so many bytes in a column, at
    no size.
    """
    rows = image.live + (0 if fresh is None else len(fresh.hashes))
    _check_limit(rows, MAX_ROWS, "keys")
    alive = image.live + len(upserts.hashes)
    _check_limit(2 * alive, _MAX_ENTRIES, "versions of state")
    spare = min(_SPARE_EPOCHS * len(upserts.hashes), _SPARE_ENTRIES)
    entries = min(max(3 * alive, alive + spare) + _MIN_ROWS, _MAX_ENTRIES)
    columns = []
    for number, (_, added) in enumerate(_added(image, upserts, fresh)):
        column, needed = image.columns[number], image.entries(number)[2] + added
        _check_limit(needed, _MAX_HEAP_BYTES, "bytes in one column")
        if not is_variable_width(column.dtype):
            columns.append((0, 0))
        elif number < len(image.keys):
            columns.append((0, max(needed + needed // 2, _MIN_HEAP_BYTES)))
        else:
            spare_bytes = max(2 * needed, min(_SPARE_EPOCHS * added, _SPARE_BYTES))
            columns.append((entries, max(needed + spare_bytes, _MIN_HEAP_BYTES)))
    return Capacity(rows=min(max(rows + rows // 2, _MIN_ROWS), MAX_ROWS), columns=tuple(columns))


def capacity_for(room: Capacity) -> Capacity:
    """Places of a new file that is to have `room`."""
    rows = min(max(_HEADROOM * room.rows, _MIN_CAPACITY_ROWS), MAX_ROWS)
    return Capacity(
        rows=rows + 1,
        columns=tuple(
            (
                min(max(_HEADROOM * entries, rows), _MAX_ENTRIES) if entries else 0,
                max(_HEADROOM * heap, _MIN_CAPACITY_BYTES) if heap else 0,
            )
            for entries, heap in room.columns
        ),
    )


def _added(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> list[tuple[int, int]]:
    """Entries (of variable-width state) and bytes that each column gets."""
    keys = [0] * len(image.keys) if fresh is None else [k.heap_bytes() for k in fresh.keys]
    count = len(upserts.hashes)
    return [(0, size) for size in keys] + [
        (count if is_variable_width(column.dtype) else 0, encoded.heap_bytes())
        for column, encoded in zip(image.values, upserts.values, strict=True)
    ]


def _covers(room: Capacity, needed: Capacity, *, spare_rows: int = 0) -> bool:
    return room.rows >= needed.rows + spare_rows and all(
        entries >= needed_entries and heap >= needed_heap
        for (entries, heap), (needed_entries, needed_heap) in zip(
            room.columns, needed.columns, strict=True
        )
    )


def _check_limit(needed: int, limit: int, what: str) -> None:
    if needed > limit:
        raise StateEncodingError(
            f"One lane's table would hold {needed} {what}; the local store holds at most {limit}.",
            remedy="Spread the key groups over more lanes.",
            needed=needed,
            limit=limit,
        )
