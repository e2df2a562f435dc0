"""One file of the local store: the state of some key groups of one operator, each at a version.

Invariants: the entries of a key group in a table are exactly the state at the key group's version.
If the writer of a key group was killed, the key group is dropped; if a file is damaged or cut
short, all its key groups are; the checkpoint has them.  The changes of an epoch are applied once,
however often and by whichever process they are brought.  A key group is used by one lane at a time,
while others use other key groups of the table.  An attempt of a lane that should be dead may read
nonsense, but writes nothing that its successor does not write.

The Python processes of an executor share a table's file without messages.  A process that rebuilds
a table replaces the file; the others then map the new file.  Writers hold a lock: a key group that
is marked as being written while the lock is free has lost its writer, and is dropped.  A read
counts only if the file is whole afterwards and was not rewritten meanwhile; else
`EpochFailedError` is raised.

*Room*: a table without room grows in place, unless with its garbage it would be larger than a new
one; then live rows are copied to a new file.  Either way the work is a constant factor of what was
written since the last time.  Files are sparse and keep the size that they were created with.
Blocks are allocated before they are written, so a full disk raises an error and no signal.

Source: "apply on next" (an attempt never meets its own half-done work), and the store as a cache of
a committed version, are this project's own.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.model.errors import (
    EpochFailedError,
    LocalStoreError,
    StateEncodingError,
    StorageFullError,
)
from godwit.store.changes import Changes
from godwit.store.columns import is_variable_width
from godwit.store.image import TableImage
from godwit.store.index import slots_for
from godwit.store.layout import MAX_ROWS, Capacity, capacity_in, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from godwit.store.changes import EntryRange
    from godwit.store.columns import Column, Encoded, Rows, StateSchema
    from godwit.store.image import Upserts
    from godwit.store.index import UInt64Array

_T = TypeVar("_T")
KeyGroups = npt.NDArray[np.int64]
_REMEMBERED_ROWS = 1 << 20  # of the last search, until what it found is changed
_COPIED_ROWS = 1 << 17  # at a time, so that making a table anew takes little memory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A search of the index, and its result: good for as long as no row was added.

    An epoch's changes are applied in the next one, to the keys that it has looked up.
    """

    keys: pa.RecordBatch
    file: weakref.ref[TableFile]  # which may be gone: then nothing keeps its blocks
    extent: tuple[int, ...]  # of the index when it was searched
    found: tuple[Rows, UInt64Array, Rows]  # see `TableImage.search`

    def cached_for(
        self, keys: pa.RecordBatch, file: TableFile
    ) -> tuple[Rows, UInt64Array, Rows] | None:
        """Return the cached result of a search for these keys; ``None`` if it may be outdated."""
        if file is not self.file() or file.image.extent != self.extent:
            return None
        # Arrow compares floats by value, tables by their bits.
        same = all(
            ours.equals(theirs) and not pa.types.is_floating(ours.type)
            for ours, theirs in zip(self.keys.columns, keys.columns, strict=True)
        )
        return self.found if same else None


class StateTable:
    """State of some key groups of one operator, in one file.

    Row numbers are good until the next `refresh`, `apply`, `replace` or `drop`.  Use from one
    thread at a time.

    `lock`: makes this process, of all on this executor, the only one to write the table.
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
        self._file: TableFile | None = None
        self._last_search: _Search | None = None

    @property
    def _image(self) -> TableImage:
        """The mapped table, or an empty one if there is no file."""
        if self._file is None:
            return blank_image(self.schema, self.num_key_groups)
        return self._file.image

    def _map_file(self) -> bool:
        """Map the file that is at the table's path now; return whether it is intact."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._file = None
            return True
        if self._file is None or identity_of(status) != self._file.identity:
            try:
                self._file = open_file(self._path, self.schema, self.num_key_groups)
            except FileNotFoundError:  # gone meanwhile
                return self._map_file()
            if self._file is None:
                return False
        return self._file.is_whole and not self._file.image.damaged

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
        self._file = None

    def versions(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Return the versions of key groups in the mapped file, -1 where absent; see `refresh`."""
        return self._image.versions[key_groups]

    def _mask(self, key_groups: KeyGroups) -> npt.NDArray[np.bool_]:
        """Return a mask over all key groups that is set for these."""
        mask = np.zeros(self.num_key_groups, np.bool_)
        mask[key_groups] = True
        return mask

    def _rows_in(
        self, image: TableImage, key_groups: KeyGroups, part: EntryRange | None = None
    ) -> Rows:
        """Return live rows of key groups, oldest first: all, or those in a range of event time."""
        rows = image.rows_of(self._mask(key_groups))
        return rows if part is None else part.rows_of(image, rows)

    def _guarded(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`; raise if the file was damaged or rewritten meanwhile."""
        file, cause = self._file, None
        before = 0 if file is None else file.image.rewritten
        try:
            result = work()
        except IndexError as error:
            problem, cause = str(error), error
        else:
            problem = "its file was cut short"
            if file is None or (file.is_whole and file.image.rewritten == before):
                return result
        if file is not None and file.image.rewritten != before:
            raise EpochFailedError(
                f"Table {self._path} was rewritten while it was read.",
                remedy="Another attempt has these key groups by now, and this one does not count.",
                path=str(self._path),
            )
        if file is not None and cause is not None:
            file.image.damaged = True
        raise EpochFailedError(
            f"Table {self._path} is damaged: {problem}",
            remedy="It is discarded; the next attempt restores it from the checkpoint.",
            path=str(self._path),
        ) from cause

    def refresh(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Map the current file, drop damaged parts, and return key groups' versions (-1: none)."""
        if not self._map_file() or self._image.marks[key_groups].any():
            with self._lock():  # whoever writes may be alive
                self._drop_unfinished()
        return self.versions(key_groups)

    def state_bytes(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Return the bytes of keys and state of each key group, without index and garbage."""
        return self._image.state_bytes(key_groups)

    def find(self, keys: pa.RecordBatch) -> Rows:
        """Return the row of each distinct key; -1 for a key without state.

        Keys are compared value for value (floats by bits, null equal to null), never by hash alone.
        """
        image, file, extent = self._image, self._file, self._image.extent
        found = self._guarded(lambda: image.search(image.encode_keys(keys), keys.num_rows))
        self._last_search = None
        if file is not None and keys.num_rows <= _REMEMBERED_ROWS:
            self._last_search = _Search(
                keys=keys, file=weakref.ref(file), extent=extent, found=found
            )
        return image.live_only(found[0])

    def read(self, rows: Rows) -> pa.RecordBatch:
        """Copy the state of rows that `find` returned; zero or empty where a row is -1."""
        values = self._image.values
        encoded = self._guarded(lambda: [column.gather(rows) for column in values])
        return _decoded(values, encoded, self.schema.values)

    def scan(self, key_groups: KeyGroups, entry_range: EntryRange | None = None) -> Changes:
        """Copy the entries of key groups (ascending), or of a range of event time; older first."""
        image, schema = self._image, self.schema
        rows = self._guarded(lambda: image.gather(self._rows_in(image, key_groups, entry_range)))
        rows = rows.take(np.argsort(rows.key_groups, kind="stable"))
        return Changes(
            key_groups=key_groups,
            ends=np.searchsorted(rows.key_groups, key_groups, side="right"),
            epochs=self.versions(key_groups),
            hashes=rows.hashes,
            keys=_decoded(image.keys, rows.keys, schema.keys),
            values=_decoded(image.values, rows.values, schema.values),
        )

    def copy_out(self, key_groups: KeyGroups) -> Changes:
        """Copy whole key groups under the lock, so between two writes."""
        with self._lock():
            self._drop_unfinished()
            return self.scan(key_groups[self.versions(key_groups) >= 0])

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

    def entries(self, rows: Rows) -> tuple[npt.NDArray[np.int64], pa.RecordBatch, pa.RecordBatch]:
        """Copy the given rows of the table: hashes, key columns and state columns."""
        image, schema = self._image, self.schema
        gathered = self._guarded(lambda: image.gather(rows))
        keys = _decoded(image.keys, gathered.keys, schema.keys)
        return gathered.hashes, keys, _decoded(image.values, gathered.values, schema.values)

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
        Raises `EpochFailedError` if a key group was dropped since the last `refresh`, so that
        changes cannot be applied: refresh, and load it from the checkpoint. Raises
        `StateEncodingError` if the batches do not fit the schema, or one another, or are too large
        for one table.
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

        Raises `StorageFullError, StateEncodingError` as of `apply`; the table is as it was.
        """
        contents.check(self.schema, str(self._path))
        with self._lock():
            self._drop_unfinished()
            newer = contents.where(contents.epochs > self.versions(contents.key_groups))
            self._write(newer, whole=True)

    def drop(self, key_groups: KeyGroups, part: EntryRange | None = None) -> None:
        """Delete key groups, or a range of their entries.

        The space is freed once the removed rows are a good part of the table. If only a range is
        deleted, the versions stay.
        """
        if not self._path.exists():
            return
        with self._lock():
            self._drop_unfinished()
            file = self._file
            present = key_groups[self.versions(key_groups) >= 0]
            if file is None or not present.size:
                return
            image = file.image

            rows = self._guarded(lambda: self._rows_in(image, present, part))
            if part is not None and not rows.size:
                return
            image.marks[present] = 1
            self._guarded(lambda: image.remove(rows))
            if part is None:
                image.versions[present] = -1
            image.marks[present] = 0
            if (image.versions < 0).all():
                self._discard()
            else:
                self._compact(image, own=None if part is None else present)

    # -- writing ------------------------------------------------------------------------------

    def _write(self, changes: Changes, *, whole: bool = False) -> None:
        """Write changes; `whole`: they replace all entries of their key groups."""
        if changes.key_groups.size:
            self._guarded(lambda: self._write_guarded(changes, whole=whole))

    def _write_guarded(self, changes: Changes, *, whole: bool) -> None:
        """Apply changes in place, or in a larger copy of the file if there is no room."""
        image = self._image
        upserts, removals = changes.encode(image)
        if self._file is not None and self._write_in_place(
            self._file, changes, upserts, removals, whole=whole
        ):
            return
        rows = image.search(upserts.keys, len(upserts.hashes))[0]
        fresh = upserts.where(image.live_only(rows) < 0)
        new = self._copy_live(upserts, fresh, changes.key_groups if whole else None)
        try:
            written = self._write_in_place(new, changes, upserts, removals, whole=whole)
            assert written, "a new table has room for what it is made for"
        except BaseException:
            new.path.unlink(missing_ok=True)
            raise
        self._publish(new)

    def _write_in_place(
        self,
        file: TableFile,
        changes: Changes,
        upserts: Upserts,
        removals: Upserts | None,
        *,
        whole: bool,
    ) -> bool:
        """Write changes to the mapped file, growing it; return ``False`` if it cannot grow enough.

        `whole`: see `_write_guarded`.
        """
        image, key_groups = file.image, changes.key_groups
        last, self._last_search = self._last_search, None
        found = None
        if last is not None and removals is None:
            found = last.cached_for(changes.keys, file)
        rows, hashes, at = found or image.search(upserts.keys, len(upserts.hashes))
        fresh = upserts.where(rows < 0)
        room = room_in_place(image, upserts, fresh)
        if room is None:
            return False
        slots, needed = image.slots, image.used + (0 if fresh is None else len(fresh.hashes))
        file.grow(room, slots_for(needed + needed // 2) if 2 * needed > image.slots else 0)
        image.marks[key_groups] = 1
        if whole:
            present = key_groups[image.num_keys[key_groups] > 0]
            if present.size:
                image.remove(image.rows_of(self._mask(present)))
        if removals is not None:
            gone = image.live_only(image.search(removals.keys, len(removals.hashes))[0])
            image.remove(gone[gone >= 0])
        image.write(upserts, fresh, rows, hashes, at if image.slots == slots else None)
        image.versions[key_groups] = changes.epochs
        image.marks[key_groups] = 0
        return True

    # -- made anew ----------------------------------------------------------------------------

    def _compact(self, image: TableImage, own: KeyGroups | None = None) -> None:
        """Rewrite the table if more than half of its rows are removed.

        If it has only the caller's key groups (`own`), it is rewritten in place, since nobody else
        reads it then: all pages of a new file would be touched for the first time.
        """
        if 2 * image.live >= image.used:
            return
        present = image.versions >= 0
        if own is None or image.live > _COPIED_ROWS or np.any(present & ~self._mask(own)):
            self._move_live()
            return
        alive = self._guarded(lambda: image.gather(image.rows_of(present)))
        image.marks[present] = 1
        image.rewrite(alive)
        image.marks[present] = 0

    def _copy_live(
        self, upserts: Upserts, fresh: Upserts | None, left: KeyGroups | None = None
    ) -> TableFile:
        """Copy live rows, but for key groups `left`, to a new file with room for `upserts`."""
        source = self._image
        room = room_for(source, upserts, fresh)
        new = create_file(
            self._path.with_suffix(".new"),
            self.schema,
            self.num_key_groups,
            capacity_for(room),
            room,
        )
        try:
            copied = (source.versions >= 0) & (source.marks == 0)
            if left is not None:
                copied[left] = False
            rows = source.rows_of(copied)
            new.grow(room, slots_for(max(len(rows) + len(upserts.hashes), 1)))
            for first in range(0, len(rows), _COPIED_ROWS):
                new.image.append(source.gather(rows[first : first + _COPIED_ROWS]))
            new.image.versions[copied] = source.versions[copied]
        except BaseException:
            new.path.unlink(missing_ok=True)
            raise
        return new

    def _move_live(self) -> None:
        """Replace the table's file by a new one that has only the live rows."""
        nothing = self._image.gather(np.empty(0, np.int64))
        self._publish(self._guarded(lambda: self._copy_live(nothing, None)))

    def _publish(self, file: TableFile) -> None:
        """Replace the table's file by the new file `file`, for all processes."""
        file.path.replace(self._path)
        self._file = file


def _decoded(
    columns: Sequence[Column], encoded: Sequence[Encoded], schema: pa.Schema
) -> pa.RecordBatch:
    """Decode the encoded values of columns to a batch of a schema."""
    pairs = zip(columns, encoded, strict=True)
    return pa.RecordBatch.from_arrays([column.decode(of) for column, of in pairs], schema=schema)


# -- the file ------------------------------------------------------------------------------

FileIdentity = tuple[int, int]
"""Device and inode: two files at one path differ in it while either of them is mapped."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FEWEST_SLOTS = 512


@lru_cache(maxsize=256)
def blank_image(schema: StateSchema, num_key_groups: int) -> TableImage:
    """Return an empty table without a file or room; it is shared, and never written."""
    columns = ((0, 0),) * len(schema.keys) + ((2, 0),) * len(schema.values)
    capacity = Capacity(rows=1, columns=columns)
    memory = bytearray(layout_of(schema, num_key_groups, capacity).file_bytes)
    image = TableImage(schema, num_key_groups, memory, capacity, secret=(0, 0))
    image.enlarge_index(2)
    return image


class TableFile:
    """The mapped file of a table."""

    def __init__(self, path: Path, fd: int, image: TableImage) -> None:
        self.path, self.image = path, image
        self.identity = identity_of(os.fstat(fd))  # which file it is
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)

    @property
    def is_whole(self) -> bool:
        """True if the file still has its full size."""
        return os.fstat(self._fd).st_size == self.image.layout.file_bytes

    def grow(self, room: Capacity, slots: int) -> None:
        """Allocate blocks for `room`, and enlarge the index to at least `slots` slots."""
        image = self.image
        if room != image.room:
            self.allocate(image.layout.extents(image.room, room))
            image.room = room
        if slots > image.slots:
            self.allocate([image.layout.index_extent(slots)])
            image.enlarge_index(slots)

    def allocate(self, extents: Iterable[tuple[int, int]]) -> None:
        """Allocate blocks of the file for each start and length, in bytes."""
        at = needed = 0
        try:
            for start, length in extents:
                at, needed = start, length
                os.posix_fallocate(self._fd, at, needed)
        except OSError as error:
            raise _storage_full(error, self.path, needed) from error


def create_file(
    path: Path, schema: StateSchema, num_key_groups: int, capacity: Capacity, room: Capacity
) -> TableFile:
    """Create the file of an empty table, and map it.

    `capacity`: size of the sparse file. `room`: part of it that blocks are allocated for.
    """
    layout = layout_of(schema, num_key_groups, capacity)
    slots = min(_FEWEST_SLOTS, layout.slots)
    # Before anything is mapped: on a tmpfs even reading a place without a block takes one.
    extents = [*layout.fixed_extents(), *layout.extents(None, room), layout.index_extent(slots)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What a killed process left here may still be mapped by nobody but it: never reuse it.
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, layout.file_bytes)
            for start, length in extents:
                os.posix_fallocate(fd, start, length)
            memory = mmap.mmap(fd, layout.file_bytes)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise _storage_full(error, path, sum(length for _, length in extents)) from error
    secret = tuple(int.from_bytes(os.urandom(8), "little") >> 1 for _ in range(2))
    image = TableImage(schema, num_key_groups, memory, capacity, secret=(secret[0], secret[1]))
    image.room = room
    image.enlarge_index(slots)
    return TableFile(path, fd, image)


def open_file(path: Path, schema: StateSchema, num_key_groups: int) -> TableFile | None:
    """Map the file at `path`; ``None`` if it is no intact table of `schema`.

    Raises `FileNotFoundError` if there is no file, and `LocalStoreError` if there is something
    else, such as a directory.
    """
    try:
        # A pipe would make an open wait without O_NONBLOCK, which means nothing for files.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_file() and not path.is_symlink():
            raise
        raise _not_a_file_error(path) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_file_error(path)
        image = _map_descriptor(fd, status.st_size, schema, num_key_groups)
        return None if image is None else TableFile(path, os.dup(fd), image)
    finally:
        os.close(fd)


def _not_a_file_error(path: Path) -> LocalStoreError:
    """Return the error that a table's path holds something else than a file."""
    return LocalStoreError(
        f"The local store expects a table at {path}, and something else than a file is there.",
        remedy="Somebody put it there while the query was running: remove it. State is in the "
        "checkpoint and is restored from it.",
        path=str(path),
    )


def _map_descriptor(
    fd: int, size: int, schema: StateSchema, num_key_groups: int
) -> TableImage | None:
    """Map an open file of `size` bytes; ``None`` if it is no intact table of that schema."""
    if size == 0:
        return None
    memory = mmap.mmap(fd, size)
    capacity = capacity_in(memory, schema, num_key_groups)
    if capacity is None:
        return None
    try:
        return TableImage(schema, num_key_groups, memory, capacity)
    except pa.ArrowInvalid:  # offsets of entries lead out of the file
        return None


def identity_of(status: os.stat_result) -> FileIdentity:
    """Return the identity of a file, which differs from that of a later file at the same path."""
    return status.st_dev, status.st_ino


def _storage_full(error: OSError, path: Path, size: int) -> OSError | StorageFullError:
    """Return `StorageFullError` if an error of the file system means a full disk, else `error`."""
    if error.errno not in _FULL:
        return error
    return StorageFullError(
        f"The local store needs {size} bytes for {path}, and there is no room for them.",
        remedy="Free space there, or put the local store on a larger file system.",
        path=str(path),
        needed_bytes=size,
    )


# -- its room ------------------------------------------------------------------------------

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


def room_in_place(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> Capacity | None:
    """Return the room that the table needs to take `upserts` in place: the present one or more.

    ``None`` if a new file is needed. `fresh`: the part of `upserts` whose keys have no row yet.
    """
    columns = []
    for number, (entries, heap) in enumerate(_needed_places(image, upserts, fresh)):
        used_entries, used_bytes, _ = image.entries(number)
        columns.append((used_entries + entries, used_bytes + heap))
    rows = image.used + (0 if fresh is None else len(fresh.hashes))
    needed_room, room = Capacity(rows=rows, columns=tuple(columns)), image.room
    if _is_sufficient(room, needed_room):
        return room
    new = room_for(image, upserts, fresh)
    if not _is_sufficient(new, needed_room) or not _is_sufficient(
        image.layout.capacity, new, spare_rows=1
    ):
        return None
    pairs = zip(room.columns, new.columns, strict=True)
    return Capacity(
        rows=max(room.rows, new.rows),
        columns=tuple((max(a, c), max(b, d)) for (a, b), (c, d) in pairs),
    )


def room_for(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> Capacity:
    """Return the room that a new file needs for live rows and `upserts`.

    Raises `StateEncodingError` if no table can hold that many keys, or that many bytes in a column.
    """
    rows = image.live + (0 if fresh is None else len(fresh.hashes))
    _check_limit(rows, MAX_ROWS, "keys")
    alive = image.live + len(upserts.hashes)
    _check_limit(2 * alive, _MAX_ENTRIES, "versions of state")
    spare = min(_SPARE_EPOCHS * len(upserts.hashes), _SPARE_ENTRIES)
    entries = min(max(3 * alive, alive + spare) + _MIN_ROWS, _MAX_ENTRIES)
    columns = []
    for number, (_, added) in enumerate(_needed_places(image, upserts, fresh)):
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
    """Return the capacity of a new sparse file: that of `room`, with many spare places."""
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


def _needed_places(
    image: TableImage, upserts: Upserts, fresh: Upserts | None
) -> list[tuple[int, int]]:
    """Return, for each column, the numbers of entries and of bytes that `upserts` add."""
    keys = [0] * len(image.keys) if fresh is None else [k.heap_bytes() for k in fresh.keys]
    count = len(upserts.hashes)
    return [(0, size) for size in keys] + [
        (count if is_variable_width(column.dtype) else 0, encoded.heap_bytes())
        for column, encoded in zip(image.values, upserts.values, strict=True)
    ]


def _is_sufficient(room: Capacity, needed: Capacity, *, spare_rows: int = 0) -> bool:
    """Return whether the capacity `room` is at least `needed`, with `spare_rows` rows to spare."""
    return room.rows >= needed.rows + spare_rows and all(
        entries >= needed_entries and heap >= needed_heap
        for (entries, heap), (needed_entries, needed_heap) in zip(
            room.columns, needed.columns, strict=True
        )
    )


def _check_limit(needed: int, limit: int, what: str) -> None:
    """Raise `StateEncodingError` if the `needed` number of `what` exceeds `limit`."""
    if needed > limit:
        raise StateEncodingError(
            f"One lane's table would hold {needed} {what}; the local store holds at most {limit}.",
            remedy="Spread the key groups over more lanes.",
            needed=needed,
            limit=limit,
        )
