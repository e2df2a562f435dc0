"""One file of the local store: the state of some key groups of one operator, each at a version.

Invariants: the entries of a key group in a table are exactly the state at the key group's version.
If the writer of a key group was killed, the key group is dropped; if a file is damaged or cut
short, all its key groups are; the checkpoint has them.  The changes of an epoch are applied once,
although several processes may bring them.  A key group is used by one lane at a time, while other
lanes use other key groups of the table.  An obsolete attempt of a lane may read inconsistent rows,
but writes only rows that its successor writes too.

The Python processes of an executor share a table's file without messages.  A process that rebuilds
a table replaces the file; the others then map the new file.  Writers hold a lock: a key group that
is marked as being written while the lock is free has lost its writer, and is dropped.  A read
counts only if the file is whole afterwards and was not rewritten meanwhile; else
`EpochFailedError` is raised.

*Room*: a table without room grows in place, unless with its garbage it would be larger than a new
one; then live rows are copied to a new file.  Either way the work is a constant factor of the
rows written since the last time.  Files are sparse and keep the size that they were created with.
Blocks are allocated before they are written, so a full disk raises an error and no signal.

Source: "apply on next" (an attempt never meets its own half-done work), and the store as a cache of
a committed version, are the project's own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import ge
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.model.errors import EpochFailedError, StateEncodingError
from godwit.store.changes import Changes, StateRows
from godwit.store.columns import is_variable_width
from godwit.store.image import blank_image, create_file, identity_of, open_file
from godwit.store.index import slots_for
from godwit.store.layout import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from godwit.store.changes import EntryRange
    from godwit.store.columns import Column, Encoded, Rows, StateSchema
    from godwit.store.image import Search, TableImage, Upserts
    from godwit.store.layout import Capacity

_T = TypeVar("_T")
KeyGroups = npt.NDArray[np.int64]
_COPIED_ROWS = 1 << 17  # at a time, so that rebuilding a table takes little memory


class StateTable:
    """State of some key groups of one operator, in one file.

    Row numbers are valid until the next `refresh`, `apply`, `replace` or `drop`.  Use from one
    thread at a time.

    `lock`: gives this process exclusive write access to the table among those of the executor.
    """

    def __init__(
        self,
        path: Path,
        schema: StateSchema,
        num_key_groups: int,
        lock: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.schema, self.num_key_groups = schema, num_key_groups
        self._path, self._lock = path, lock
        self._new_path = path.with_suffix(".new")  # file that will replace the table's
        self._blank = blank_image(schema, num_key_groups)
        self._image = self._blank  # the mapped table, or an empty one if there is no file

    def _map_file(self) -> bool:
        """Map the current file at the table's path; return true if it is intact."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._image = self._blank
            return True
        if identity_of(status) != self._image.identity:
            try:
                image = open_file(self._path, self.schema, self.num_key_groups)
            except FileNotFoundError:  # gone meanwhile
                return self._map_file()
            self._image = image or self._blank
            if image is None:
                return False
        return self._image.is_whole and not self._image.damaged

    def _drop_unfinished(self) -> None:
        """Delete key groups whose last write was interrupted, or a damaged file; under the lock."""
        if not self._map_file():
            self._discard()
        image = self._image
        if image.marks.any():
            if (image.versions[image.marks == 0] < 0).all():
                self._discard()
                return
            self._move_live()

    def _discard(self) -> None:
        """Delete the table's file; its state is in the checkpoint."""
        self._path.unlink(missing_ok=True)
        self._image = self._blank

    def versions(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Return the versions of key groups in the mapped file, -1 where absent; see `refresh`."""
        return self._image.versions[key_groups]

    def bases(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Return the bases of key groups in the mapped file, -1 where whole; see `fill`."""
        return self._image.bases[key_groups]

    def serials(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Return the serial numbers of key groups; see `TableImage.serials`."""
        return self._image.serials[key_groups]

    def _mask(self, key_groups: KeyGroups) -> npt.NDArray[np.bool_]:
        """Return a mask over all key groups that is set for these."""
        mask = np.zeros(self.num_key_groups, np.bool_)
        mask[key_groups] = True
        return mask

    def _rows_in(
        self, image: TableImage, key_groups: KeyGroups, part: EntryRange | None = None
    ) -> Rows:
        """Return live rows of key groups, oldest first: all, or only a range of event time."""
        rows = image.rows_of(self._mask(key_groups))
        return rows if part is None else part.rows_of(image, rows)

    def _guarded(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`; raise if the file was damaged or rewritten meanwhile."""
        image, cause = self._image, None
        before = image.rewritten
        try:
            result = work()
        except IndexError as error:
            problem, cause = str(error), error
        else:
            problem = "its file was cut short"
            if image.is_whole and image.rewritten == before:
                return result
        if image.rewritten != before:
            raise EpochFailedError(
                f"Table {self._path} was rewritten while it was read.",
                remedy="Another attempt processes these key groups now; this attempt is obsolete.",
                path=str(self._path),
            )
        if cause is not None and image is not self._blank:
            image.damaged = True
        raise EpochFailedError(
            f"Table {self._path} is damaged: {problem}",
            remedy="It is discarded; the next attempt restores it from the checkpoint.",
            path=str(self._path),
        ) from cause

    def refresh(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Map the current file, drop damaged parts, and return key groups' versions (-1: none)."""
        if not self._map_file() or self._image.marks[key_groups].any():
            with self._lock():  # the writer may be alive
                self._drop_unfinished()
        return self.versions(key_groups)

    @property
    def live(self) -> int:
        """Number of keys."""
        self._map_file()
        return self._image.live

    def state_bytes(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Return the bytes of keys and state of each key group, without index and garbage."""
        return self._image.state_bytes(key_groups)

    def find(self, keys: pa.RecordBatch) -> Rows:
        """Return the row of each distinct key; -1 for a key without state.

        Keys are compared by value (floats by bits, null equal to null), never by hash alone.
        """
        image = self._image
        return self._guarded(lambda: image.find(keys))

    def read(self, rows: Rows) -> pa.RecordBatch:
        """Copy the state of rows that `find` returned; zero or empty where a row is -1."""
        values = self._image.values
        encoded = self._guarded(lambda: [column.gather(rows) for column in values])
        return _decoded(values, encoded, self.schema.values)

    def scan(self, key_groups: KeyGroups, entry_range: EntryRange | None = None) -> Changes:
        """Copy the entries of key groups (ascending), or of a range of event time; older first."""
        image = self._image
        rows = self._guarded(lambda: image.gather(self._rows_in(image, key_groups, entry_range)))
        rows = rows.take(np.argsort(rows.key_groups, kind="stable"))
        return Changes(
            key_groups=key_groups,
            ends=np.searchsorted(rows.key_groups, key_groups, side="right"),
            epochs=self.versions(key_groups),
            rows=self._decoded_rows(rows, image),
        )

    def copy_out(self, key_groups: KeyGroups) -> Changes:
        """Copy whole key groups under the lock, so between two writes; leave out partial ones."""
        with self._lock():
            self._drop_unfinished()
            whole = (self.versions(key_groups) >= 0) & (self.bases(key_groups) < 0)
            return self.scan(key_groups[whole])

    def rows_of(
        self, key_groups: KeyGroups, columns: Sequence[int], part: EntryRange
    ) -> tuple[Rows, list[npt.NDArray[np.int64]]]:
        """Return row numbers of the entries in a range, and their values in 64-bit `columns`."""
        image = self._image

        def gather() -> tuple[Rows, list[npt.NDArray[np.int64]]]:
            """Find the rows of the range, and read the columns."""
            rows = self._rows_in(image, key_groups, part)
            values = (image.columns[column].gather(rows).values for column in columns)
            return rows, [of_rows.view(np.int64) for of_rows in values]

        return self._guarded(gather)

    def entries(self, rows: Rows) -> StateRows:
        """Copy the entries in the given rows of the table."""
        image = self._image
        return self._decoded_rows(self._guarded(lambda: image.gather(rows)), image)

    def _decoded_rows(self, rows: Upserts, image: TableImage) -> StateRows:
        """Decode rows that were gathered from an image."""
        return StateRows(
            hashes=rows.hashes,
            keys=_decoded(image.keys, rows.keys, self.schema.keys),
            values=_decoded(image.values, rows.values, self.schema.values),
        )

    def min_after(self, key_groups: KeyGroups, column: int, after: int) -> int:
        """Return the minimum above `after` in an integer column (key columns counted first)."""
        image = self._image

        def search() -> int:
            """Find the minimum among the rows of the key groups."""
            rows = self._rows_in(image, key_groups)
            values = image.columns[column].gather(rows).values.view(np.int64)
            return int(np.min(values, where=values > after, initial=2**61))

        return self._guarded(search)

    def apply(self, changes: Changes, before: npt.NDArray[np.int64]) -> None:
        """Apply changes of committed epochs that are not applied yet.

        `changes`: one epoch's changes of each key group. Epochs without changes may be left out.
        `before`: versions as of the last `refresh`. Raises `EpochFailedError` if a key group was
        dropped since, so that changes cannot be applied: refresh, and load it from the checkpoint.
        Raises `StateEncodingError` if the batches do not fit the schema, or one another, or are too
        large for one table.
        """
        changes.check(self.schema, str(self._path))
        with self._lock():
            self._drop_unfinished()
            now = self.versions(changes.key_groups)
            lost = np.flatnonzero(now < before)
            if lost.size:
                first = int(lost[0])
                raise EpochFailedError(
                    f"Key group {int(changes.key_groups[first])} in table {self._path} was at "
                    f"version {int(before[first])} and has been dropped since; changes of epoch "
                    f"{int(changes.epochs[first])} cannot be applied.",
                    remedy="The next attempt restores it from the checkpoint.",
                    path=str(self._path),
                    version=int(before[first]),
                    epoch=int(changes.epochs[first]),
                )
            self._write(changes.where(changes.epochs > now))

    def replace(self, contents: Changes) -> None:
        """Replace key groups by snapshots, unless a newer version is here.

        Raises `StorageFullError` and `StateEncodingError` as `apply` does; the table is unchanged.
        """
        contents.check(self.schema, str(self._path))
        with self._lock():
            self._drop_unfinished()
            newer = contents.where(contents.epochs > self.versions(contents.key_groups))
            self._write(newer, whole=True)

    def fill(
        self, epochs: npt.NDArray[np.int64], entries: Changes, num_keys: int, *, complete: bool
    ) -> None:
        """Add entries of keys that have no entry here.

        `epochs`: committed version of the entries of each key group. An absent key group becomes a
        partial copy at this version, its base; one that is whole, or whose base is later, is left
        as it is. `num_keys`: for which there will be room. `complete`: they are all entries, by
        which partial copies become whole; absent key groups are left out.
        """
        entries.check(self.schema, str(self._path))
        key_groups = entries.key_groups
        with self._lock():
            self._drop_unfinished()
            before, bases = self.versions(key_groups), self.bases(key_groups)
            fits = (bases >= 0) & (epochs >= bases)
            if not complete:
                absent = before < 0
                fits |= absent
                before[absent] = bases[absent] = epochs[absent]
            some = replace(entries, epochs=before).where(fits)
            if some.key_groups.size:
                self._guarded(partial(self._add_missing, some, bases[fits], num_keys))
            if complete:
                self._image.bases[some.key_groups] = -1

    def _add_missing(self, changes: Changes, bases: npt.NDArray[np.int64], num_keys: int) -> None:
        """Write the entries of keys that have none; `bases`: of the key groups, afterwards."""
        image = self._image
        keys = image.encode_keys(changes.rows.keys)
        rows, hashes, ends = image.search(keys, len(changes.rows.hashes))
        missing = np.flatnonzero(image.live_only(rows) < 0)
        if missing.size or (image.versions[changes.key_groups] < 0).any():
            searched = rows[missing], hashes[missing], ends[missing]
            some = changes.at(missing)
            self._write_guarded(some, bases=bases, searched=searched, num_keys=num_keys)

    def drop(self, key_groups: KeyGroups, part: EntryRange | None = None) -> None:
        """Delete key groups, or a range of their entries.

        The space is freed once more than half of the table's rows are removed. If only a range is
        deleted, the versions stay.
        """
        if not self._path.exists():
            return
        with self._lock():
            self._drop_unfinished()
            image = self._image
            present = key_groups[self.versions(key_groups) >= 0]
            if not present.size:
                return
            rows = self._guarded(lambda: self._rows_in(image, present, part))
            if part is not None and not rows.size:
                return
            image.marks[present] = 1
            self._guarded(lambda: image.remove(rows))
            if part is None:
                image.versions[present], image.bases[present] = -1, -1
            image.marks[present] = 0
            if (image.versions < 0).all():
                self._discard()
            else:
                self._compact(image, own=None if part is None else present)

    def evict(self, key_groups: KeyGroups) -> None:
        """Remove the entries of key groups, which become partial copies at their versions.

        The checkpoint has the entries. The table gets a new file, without blocks for them.
        """
        if not self._path.exists():
            return
        with self._lock():
            self._drop_unfinished()
            present = key_groups[self.versions(key_groups) >= 0]
            if present.size:
                nothing = self._image.gather(np.empty(0, np.int64))
                copy = partial(self._copy_live, nothing, None, evicted=present)
                self._publish(self._guarded(copy))

    # -- writing ------------------------------------------------------------------------------

    def _write(self, changes: Changes, *, whole: bool = False) -> None:
        """Write changes; `whole`: they replace all entries of their key groups."""
        if changes.key_groups.size:
            self._guarded(lambda: self._write_guarded(changes, whole=whole))

    def _write_guarded(
        self,
        changes: Changes,
        *,
        whole: bool = False,
        bases: npt.NDArray[np.int64] | None = None,
        searched: Search | None = None,
        num_keys: int = 0,
    ) -> None:
        """Write changes in place, or to a larger copy of the file.

        `whole`, `bases`, `searched`, `num_keys`: see `_write_in_place`.
        """
        image = self._image
        upserts, removals = changes.encode(image)
        if image is not self._blank and self._write_in_place(
            image,
            changes,
            upserts,
            removals,
            whole=whole,
            bases=bases,
            searched=searched,
            num_keys=num_keys,
        ):
            return
        rows = image.search(upserts.keys, len(upserts.hashes))[0]
        fresh = upserts.where(image.live_only(rows) < 0)
        new = self._copy_live(upserts, fresh, changes.key_groups if whole else None, num_keys)
        try:
            written = self._write_in_place(
                new, changes, upserts, removals, whole=whole, bases=bases
            )
            assert written, "a new table has room for the changes"
        except BaseException:
            self._new_path.unlink(missing_ok=True)
            raise
        self._publish(new)

    def _write_in_place(
        self,
        image: TableImage,
        changes: Changes,
        upserts: Upserts,
        removals: Upserts | None,
        *,
        whole: bool,
        bases: npt.NDArray[np.int64] | None,
        searched: Search | None = None,
        num_keys: int = 0,
    ) -> bool:
        """Write changes to a mapped file, growing it; return ``False`` if it cannot grow enough.

        `whole`: the changes replace all entries of their key groups. `bases`: of the key groups
        from now on; ``None``: whole ones stay whole. `searched`: result of a search for the keys,
        if there was one. `num_keys`: for which an index that grows has slots.
        """
        key_groups = changes.key_groups
        if searched is None:
            searched = image.recall(changes.rows.keys)
        if searched is None or removals is not None:
            searched = image.search(upserts.keys, len(upserts.hashes))
        rows, hashes, ends = searched
        fresh = upserts.where(rows < 0)
        room = room_in_place(image, upserts, fresh)
        if room is None:
            return False
        extent, needed = image.extent, image.used + (0 if fresh is None else len(fresh.hashes))
        wanted = max(needed + needed // 2, min(num_keys, image.layout.capacity[0] - 1))
        image.grow(room, slots_for(wanted) if 2 * needed > image.slots else 0)
        image.grow_index(needed)
        image.marks[key_groups] = 1
        image.renew(key_groups[image.versions[key_groups] < 0])
        if whole:
            present = key_groups[image.num_keys[key_groups] > 0]
            if present.size:
                image.remove(image.rows_of(self._mask(present)))
            image.bases[key_groups] = -1
        if removals is not None:
            gone = image.live_only(image.search(removals.keys, len(removals.hashes))[0])
            image.remove(gone[gone >= 0])
            # An older version still has the removed keys.
            lost = np.isin(key_groups, removals.key_groups) & (image.bases[key_groups] >= 0)
            image.bases[key_groups[lost]] = changes.epochs[lost]
        if bases is not None:
            image.bases[key_groups] = bases
        image.write(upserts, fresh, rows, hashes, ends if image.extent == extent else None)
        image.versions[key_groups] = changes.epochs
        image.marks[key_groups] = 0
        return True

    # -- rewriting ----------------------------------------------------------------------------

    def _compact(self, image: TableImage, own: KeyGroups | None = None) -> None:
        """Rewrite the table if more than half of its rows are removed.

        If it has only the caller's key groups (`own`), no other process reads it, and it is
        rewritten in place: the first touch of a new file's pages is expensive.
        """
        if 2 * image.live >= image.used:
            return
        present = image.versions >= 0
        is_large = image.live > _COPIED_ROWS or image.grows_in_steps
        if own is None or is_large or np.any(present & ~self._mask(own)):
            self._move_live()
            return
        alive = self._guarded(lambda: image.gather(image.rows_of(present)))
        image.marks[present] = 1
        image.rewrite(alive)
        image.marks[present] = 0

    def _copy_live(
        self,
        upserts: Upserts,
        fresh: Upserts | None,
        left: KeyGroups | None = None,
        num_keys: int = 0,
        *,
        evicted: KeyGroups | None = None,
    ) -> TableImage:
        """Copy live rows, except key groups `left`, to a new file with room for `upserts`.

        `num_keys`: for which the file has places, without blocks. `evicted`: key groups that become
        partial copies without entries.
        """
        source = self._image
        copied = (source.versions >= 0) & (source.marks == 0)
        if left is not None:
            copied[left] = False
        stays = copied.copy()
        if evicted is None:
            rows = source.rows_of(copied)
            room = room_for(source, upserts, fresh)
        else:
            stays[evicted] = False
            rows = source.rows_of(stays)
            room, num_keys = self._room_of(rows), source.used
        new = create_file(
            self._new_path,
            self.schema,
            self.num_key_groups,
            capacity_for(room, num_keys),
            room,
        )
        try:
            new.grow(room, slots_for(max(len(rows) + len(upserts.hashes), 1)))
            for first in range(0, len(rows), _COPIED_ROWS):
                new.append(source.gather(rows[first : first + _COPIED_ROWS]))
            new.versions[copied] = source.versions[copied]
            new.bases[copied] = source.bases[copied]
            new.serials[copied] = source.serials[copied]
            if evicted is not None:
                new.bases[evicted] = new.versions[evicted]
                new.renew(evicted)
        except BaseException:
            self._new_path.unlink(missing_ok=True)
            raise
        return new

    def _room_of(self, rows: Rows) -> Capacity:
        """Return the room that a new file needs for some of the table's rows."""
        image, sizes = self._image, np.zeros(len(self._image.columns), np.int64)
        for first in range(0, len(rows), _COPIED_ROWS):
            part = image.gather(rows[first : first + _COPIED_ROWS])
            sizes += [column.heap_bytes() for column in (*part.keys, *part.values)]
        return _room(image, len(rows), len(rows), 0, [(size, 0) for size in sizes.tolist()])

    def _move_live(self) -> None:
        """Replace the table's file by a new one that has only the live rows."""
        nothing = self._image.gather(np.empty(0, np.int64))
        self._publish(self._guarded(lambda: self._copy_live(nothing, None)))

    def _publish(self, image: TableImage) -> None:
        """Replace the table's file by the file of `image`, for all processes."""
        self._new_path.replace(self._path)
        self._image = image


def _decoded(
    columns: Sequence[Column], encoded: Sequence[Encoded], schema: pa.Schema
) -> pa.RecordBatch:
    """Decode the encoded values of columns to a batch of a schema."""
    pairs = zip(columns, encoded, strict=True)
    return pa.RecordBatch.from_arrays(
        [column.decode(values) for column, values in pairs], schema=schema
    )


# -- capacity -----------------------------------------------------------------------------

_MIN_ROWS = 256
_MIN_CAPACITY_ROWS = 1 << 20
_MIN_CAPACITY_BYTES = 1 << 26
_HEADROOM = 16  # places in a file, which is sparse, per place that has blocks
_LARGE_ROWS = 1 << 18  # from which on a file has this capacity, since copying it takes long:
_LARGE_CAPACITY_ROWS = 1 << 28
_SPARE_EPOCHS = 16  # epochs with as many changes for which a new table has room
_SPARE_ENTRIES = 8192
_SPARE_BYTES = 128 * 2**10
_MIN_HEAP_BYTES = 4096
_MAX_ENTRIES = (1 << 32) - 2
_MAX_HEAP_BYTES = 1 << 42
_MAX_EXPECTED_BYTES = 1 << 36  # by the number of keys, since the first may have far more than most


def room_in_place(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> Capacity | None:
    """Return the room that the table needs to take `upserts` in place: the present one or more.

    ``None`` if a new file is needed. `fresh`: the part of `upserts` whose keys have no row yet.
    """
    needed = [image.used + (0 if fresh is None else len(fresh.hashes))]
    for number, (entries, heap) in enumerate(_needed_entries_and_heap(image, upserts, fresh)):
        used_entries, used_bytes, _ = image.entries(number)
        needed += (used_entries + entries, used_bytes + heap)
    room = image.room
    if _is_sufficient(room, needed):
        return room
    new, (max_rows, *max_places) = room_for(image, upserts, fresh), image.layout.capacity
    if not _is_sufficient(new, needed) or not _is_sufficient((max_rows - 1, *max_places), new):
        return None
    return tuple(map(max, room, new))


def room_for(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> Capacity:
    """Return the room that a new file needs for live rows and `upserts`.

    Raises `StateEncodingError` if one table cannot hold the keys, or the bytes of a column.
    """
    rows = image.live + (0 if fresh is None else len(fresh.hashes))
    added = [heap for _, heap in _needed_entries_and_heap(image, upserts, fresh)]
    sizes = [(image.entries(number)[2] + heap, heap) for number, heap in enumerate(added)]
    return _room(image, rows, image.live + len(upserts.hashes), len(upserts.hashes), sizes)


def _room(
    image: TableImage, rows: int, alive: int, changed: int, sizes: Sequence[tuple[int, int]]
) -> Capacity:
    """Return the room for a number of rows.

    `alive`: versions of state to keep. `changed`: of them, those that an epoch writes. `sizes`: for
    each column, the bytes of its entries, and of those that an epoch writes.
    """
    _check_limit(rows, MAX_ROWS, "keys")
    _check_limit(2 * alive, _MAX_ENTRIES, "versions of state")
    spare = min(_SPARE_EPOCHS * changed, _SPARE_ENTRIES)
    entries = min(max(3 * alive, alive + spare) + _MIN_ROWS, _MAX_ENTRIES)
    room = [min(max(rows + rows // 2, _MIN_ROWS), MAX_ROWS)]
    for number, (needed, added) in enumerate(sizes):
        column = image.columns[number]
        _check_limit(needed, _MAX_HEAP_BYTES, "bytes in one column")
        if not is_variable_width(column.dtype):
            room += (0, 0)
        elif number < len(image.keys):
            room += (0, max(needed + needed // 2, _MIN_HEAP_BYTES))
        else:
            spare_bytes = max(2 * needed, min(_SPARE_EPOCHS * added, _SPARE_BYTES))
            room += (entries, max(needed + spare_bytes, _MIN_HEAP_BYTES))
    return tuple(room)


def capacity_for(room: Capacity, num_keys: int = 0) -> Capacity:
    """Return the capacity of a new sparse file: a multiple of `room`, to grow into.

    `num_keys`: expected number of keys, for which it suffices too, unless values are large.
    """
    if room[0] >= _LARGE_ROWS:
        num_keys = max(num_keys, _LARGE_CAPACITY_ROWS // 2)
    headroom = max(_HEADROOM, 2 * num_keys // room[0])
    rows = min(max(headroom * room[0], _MIN_CAPACITY_ROWS), MAX_ROWS)
    capacity = [rows + 1]
    for entries, heap in zip(room[1::2], room[2::2], strict=True):
        capacity.append(min(max(headroom * entries, rows), _MAX_ENTRIES) if entries else 0)
        expected = max(min(headroom * heap, _MAX_EXPECTED_BYTES), _HEADROOM * heap)
        capacity.append(max(expected, _MIN_CAPACITY_BYTES) if heap else 0)
    return tuple(capacity)


def _needed_entries_and_heap(
    image: TableImage, upserts: Upserts, fresh: Upserts | None
) -> list[tuple[int, int]]:
    """Return, for each column, the numbers of entries and of bytes that `upserts` add.

    `fresh`: the part of `upserts` whose keys have no row yet, if any.
    """
    keys = [0] * len(image.keys) if fresh is None else [k.heap_bytes() for k in fresh.keys]
    count = len(upserts.hashes)
    return [(0, size) for size in keys] + [
        (count if is_variable_width(column.dtype) else 0, encoded.heap_bytes())
        for column, encoded in zip(image.values, upserts.values, strict=True)
    ]


def _is_sufficient(room: Sequence[int], needed: Sequence[int]) -> bool:
    """Return true if the capacity `room` is at least `needed`."""
    return all(map(ge, room, needed))


def _check_limit(needed: int, limit: int, unit: str) -> None:
    """Raise `StateEncodingError` if the `needed` number of `unit` exceeds `limit`."""
    if needed > limit:
        raise StateEncodingError(
            f"One lane's table would hold {needed} {unit}; the local store holds at most {limit}.",
            remedy="Spread the key groups over more lanes.",
            needed=needed,
            limit=limit,
        )
