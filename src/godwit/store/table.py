"""One file of the local store: the state of some key groups of one operator, each at its version.

Problem: every epoch, a lane finds the prior state of the keys it touches and brings in the changes
of the last committed epoch, for thousands of key groups.  With a table for each, the calls alone
would cost more than the work; here one call handles all key groups of a lane.

Invariants: what a table holds of a key group is exactly the state at its version.  A key group
whose writer was killed is dropped, and all of them if the file is damaged or was cut short; the
checkpoint brings them back.  Changes of an epoch enter once, whoever brings them and however often.
One lane at a time uses a key group; others may use other key groups of the same table meanwhile.
An attempt of a lane that should be dead may read nonsense, but writes nothing that its successor
does not.

An executor's Python processes share a table's file without speaking to each other: whoever makes it
anew puts the new one in the old one's place, and everybody else maps what is there now.  Under the
lock nobody alive writes, so a key group that is marked as being written has lost its writer, and
goes; what was read counts only if the file is still whole afterwards, and was not rewritten
meanwhile: else `EpochFailedError` is raised.

Source: "apply on next", so that an attempt never meets its own half-done work, and the store as a
cache of a committed version, are this project's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.model.errors import EpochFailedError
from godwit.store.changes import Changes, Contents
from godwit.store.index import slots_for
from godwit.store.table_file import (
    TableFile,
    blank_image,
    capacity_for,
    create_file,
    grown_room,
    identity_of,
    open_file,
    room_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from godwit.store.changes import EntryRange
    from godwit.store.columns import Rows, StateSchema
    from godwit.store.image import TableImage, Upserts

__all__ = ["StateTable"]

_T = TypeVar("_T")
KeyGroups = npt.NDArray[np.int64]
_COPIED_ROWS = 1 << 17  # at a time, so that making a table anew takes little memory


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

    @property
    def _image(self) -> TableImage:
        """The table, or an empty one where there is no file."""
        if self._file is None:
            return blank_image(self.schema, self.num_key_groups)
        return self._file.image

    def _map(self) -> bool:
        """Map the file that is there now; return whether it is whole."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self._file = None
            return True
        if self._file is None or identity_of(stat) != self._file.identity:
            opened = open_file(self._path, self.schema, self.num_key_groups)
            if opened is None or opened[0] is None:
                return opened is None and self._map()
            self._file = opened[0]
        return self._file.is_whole and not self._file.image.damaged

    def _drop_unfinished(self) -> None:
        """Under the lock: nobody alive writes, so what is marked or not whole goes."""
        if not self._map():
            self._discard()
        image = self._image
        if image.marks.any():
            if (image.versions[image.marks == 0] < 0).all():
                self._discard()
                return
            nothing = _nothing(image)
            self._publish(self._guarded(lambda: self._copied(nothing, None)))

    def _discard(self) -> None:
        self._path.unlink(missing_ok=True)
        self._file = None

    def _is_marked(self, key_groups: KeyGroups) -> bool:
        return bool(self._image.marks[key_groups].any())

    def versions(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Versions as the file that is mapped has them; see `refresh`."""
        return self._image.versions[key_groups]

    def _mask(self, key_groups: KeyGroups) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self.num_key_groups, np.bool_)
        mask[key_groups] = True
        return mask

    def _guarded(self, work: Callable[[], _T]) -> _T:
        """Do `work`; if the file was damaged or cut short, see that nothing of it counts."""
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
        """Look what the table holds by now; drop what is not whole.

        Returns the version of each of `key_groups`: -1 where the table does not hold it.
        """
        if not self._map() or self._is_marked(key_groups):
            with self._lock():  # whoever writes may be alive
                self._drop_unfinished()
        return self.versions(key_groups)

    def state_bytes(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Bytes of keys and state of each key group; what index and garbage take is not counted."""
        return self._image.state_bytes(key_groups)

    def find(self, keys: pa.RecordBatch) -> Rows:
        """Find the rows of distinct keys.

        Returns row of each key, -1 where it has no state.  Keys are compared value for value
        (floats by bits, null equal to null), never by hash alone.
        """
        image = self._image
        return self._guarded(
            lambda: image.live_only(image.search(image.encode_keys(keys), keys.num_rows)[0])
        )

    def read(self, rows: Rows) -> pa.RecordBatch:
        """Copy the state of `rows`, from `find`, out; zero or empty where a row is -1."""
        values = self._image.values
        return pa.RecordBatch.from_arrays(
            self._guarded(lambda: [column.decode(column.gather(rows)) for column in values]),
            schema=self.schema.values,
        )

    def scan(self, key_groups: KeyGroups, part: EntryRange | None = None) -> Contents:
        """Copy key groups out, ordered by key group; keys that were added earlier first.

        `part`: which of their entries; ``None`` for all.
        """
        image, schema = self._image, self.schema

        def gather() -> Upserts:
            rows = image.rows_of(self._mask(key_groups))
            gathered = image.gather(rows if part is None else part.rows_of(image, rows))
            order = np.argsort(gathered.key_groups, kind="stable")
            return gathered.take(order)

        all_ = self._guarded(gather)
        keys = [c.decode(e) for c, e in zip(image.keys, all_.keys, strict=True)]
        values = [c.decode(e) for c, e in zip(image.values, all_.values, strict=True)]
        return Contents(
            hashes=all_.hashes,
            key_groups=all_.key_groups,
            keys=pa.RecordBatch.from_arrays(keys, schema=schema.keys),
            values=pa.RecordBatch.from_arrays(values, schema=schema.values),
        )

    def copy_out(self, key_groups: KeyGroups) -> Changes:
        """Copy key groups that are held out whole, between two lanes' changes of them."""
        with self._lock():
            self._drop_unfinished()
            present = key_groups[self.versions(key_groups) >= 0]
            contents, versions = self.scan(present), self.versions(present)
        return Changes(
            key_groups=present,
            ends=np.searchsorted(contents.key_groups, present, side="right"),
            epochs=versions,
            hashes=contents.hashes,
            keys=contents.keys,
            values=contents.values,
        )

    def least(self, key_groups: KeyGroups, column: int, after: int) -> int:
        """Least value after `after` in a column of integers, key columns counted first."""
        image = self._image

        def search() -> int:
            rows = image.rows_of(self._mask(key_groups))
            values = image.columns[column].gather(rows).values.view(np.int64)
            return int(np.min(values, where=values > after, initial=2**61))

        return self._guarded(search)

    def apply(self, changes: Changes, before: npt.NDArray[np.int64]) -> None:
        """Bring in changes of committed epochs, where they are not in already.

        `changes`: one epoch's changes of each key group.  Epochs without any may be left out.
        Raises `EpochFailedError` if a key group was dropped since the last `refresh`, so that
        these changes have nothing to go on: refresh, and bring it forward from the checkpoint.
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
                    f"{int(changes.epochs[first])} cannot be brought in.",
                    remedy="The next attempt restores it from the checkpoint.",
                    path=str(self._path),
                    version=int(before[first]),
                    epoch=int(changes.epochs[first]),
                )
            self._bring_in(changes.where(changes.epochs > now))

    def replace(self, contents: Changes) -> None:
        """Hold exactly these rows of some key groups, where no newer version is in already.

        Raises `StorageFullError, StateEncodingError` as of `apply`; the table is as it was.
        """
        contents.check(self.schema, str(self._path))
        with self._lock():
            self._drop_unfinished()
            newer = contents.where(contents.epochs > self.versions(contents.key_groups))
            self._bring_in(newer, whole=True)

    def drop(self, key_groups: KeyGroups) -> None:
        """Forget key groups; their space is free once they are a good part of the table."""
        if not self._path.exists():
            return
        with self._lock():
            self._drop_unfinished()
            file = self._file
            present = key_groups[self.versions(key_groups) >= 0]
            if file is None or not present.size:
                return
            image = file.image
            image.marks[present] = 1
            self._guarded(lambda: image.remove(image.rows_of(self._mask(present))))
            image.versions[present] = -1
            image.marks[present] = 0
            if (image.versions < 0).all():
                self._discard()
            else:
                self._compact(image)

    def expire(self, key_groups: KeyGroups, part: EntryRange) -> None:
        """Forget a part of some key groups, which nobody else reads; their versions stay."""
        if not self._path.exists():
            return
        with self._lock():
            self._drop_unfinished()
            file = self._file
            present = key_groups[self.versions(key_groups) >= 0]
            if file is None or not present.size:
                return
            image = file.image
            rows = self._guarded(lambda: part.rows_of(image, image.rows_of(self._mask(present))))
            if not rows.size:
                return
            image.marks[present] = 1
            self._guarded(lambda: image.remove(rows))
            image.marks[present] = 0
            self._compact(image, own=present)

    # -- writing ------------------------------------------------------------------------------

    def _bring_in(self, changes: Changes, *, whole: bool = False) -> None:
        """Write changes; whole: in place of all that the table has of their key groups."""
        if changes.key_groups.size:
            self._guarded(lambda: self._write(changes, whole=whole))

    def _write(self, changes: Changes, *, whole: bool) -> None:
        image = self._image
        upserts, removals = changes.encode(image)
        if self._file is not None and self._put(
            self._file, changes, upserts, removals, whole=whole
        ):
            return
        rows, _ = image.search(upserts.keys, len(upserts.hashes))
        fresh = upserts.where(image.live_only(rows) < 0)
        new = self._copied(upserts, fresh, changes.key_groups if whole else None)
        try:
            written = self._put(new, changes, upserts, removals, whole=whole)
            assert written, "a new table has room for what it is made for"
        except BaseException:
            new.path.unlink(missing_ok=True)
            raise
        self._publish(new)

    def _put(
        self,
        file: TableFile,
        changes: Changes,
        upserts: Upserts,
        removals: Upserts | None,
        *,
        whole: bool,
    ) -> bool:
        """Write in place; return whether the table had, or could be given, the room."""
        image, key_groups = file.image, changes.key_groups
        rows, hits = image.search(upserts.keys, len(upserts.hashes))
        fresh = upserts.where(rows < 0)
        room = grown_room(image, upserts, fresh)
        if room is None:
            return False
        needed = image.used + (0 if fresh is None else len(fresh.hashes))
        file.grow(room, slots_for(needed + needed // 2) if 2 * needed > image.slots else 0)
        image.marks[key_groups] = 1
        if whole:
            present = key_groups[image.num_keys[key_groups] > 0]
            if present.size:
                image.remove(image.rows_of(self._mask(present)))
        if removals is not None:
            gone = image.live_only(image.search(removals.keys, len(removals.hashes))[0])
            image.remove(gone[gone >= 0])
        image.write(upserts, rows, hits, fresh)
        image.versions[key_groups] = changes.epochs
        image.marks[key_groups] = 0
        return True

    # -- made anew ----------------------------------------------------------------------------

    def _compact(self, image: TableImage, own: KeyGroups | None = None) -> None:
        """Leave dead rows behind, once they are a good part of the table.

        Where all that the table holds is the caller's `own`, nobody reads it, and it is rewritten
        where it lies: a new file's pages would all be touched for the first time.
        """
        if 2 * image.live >= image.used:
            return
        present = image.versions >= 0
        if own is None or image.live > _COPIED_ROWS or np.any(present & ~self._mask(own)):
            nothing = _nothing(image)
            self._publish(self._guarded(lambda: self._copied(nothing, None)))
            return
        alive = self._guarded(lambda: image.gather(image.rows_of(present)))
        image.marks[present] = 1
        image.rewrite(alive)
        image.marks[present] = 0

    def _copied(
        self, upserts: Upserts, fresh: Upserts | None, left: KeyGroups | None = None
    ) -> TableFile:
        """Copy what is alive into a new file with room for `upserts`, leaving key groups out."""
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
                new.image.copy_rows(source, rows[first : first + _COPIED_ROWS])
            new.image.versions[copied] = source.versions[copied]
        except BaseException:
            new.path.unlink(missing_ok=True)
            raise
        return new

    def _publish(self, file: TableFile) -> None:
        file.path.replace(self._path)
        self._file = file


def _nothing(image: TableImage) -> Upserts:
    """Return no rows."""
    none = np.empty(0, np.int64)
    return image.gather(none)
