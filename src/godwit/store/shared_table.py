"""The file behind a table of the local store: mapped, made whole, made anew.

An executor's Python processes share it without speaking to each other: whoever makes the file anew
puts the new one in the old one's place, and everybody else maps what is there now.

Invariants: under the lock nobody alive writes, so a key group that is marked as being written has
lost its writer, and goes; what was read counts only if the file is still whole afterwards, and was
not rewritten meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from godwit.model.errors import EpochFailedError
from godwit.store.index import slots_for
from godwit.store.room import capacity_for, room_for
from godwit.store.table_file import TableFile, blank_image, create_file, identity_of, open_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from godwit.store.image import TableImage, Upserts
    from godwit.store.schema import StateSchema

__all__ = ["KeyGroups", "SharedTable"]

T = TypeVar("T")
KeyGroups = npt.NDArray[np.int64]
_COPIED_ROWS = 1 << 17  # at a time, so that making a table anew takes little memory


class SharedTable:
    """What `godwit.store.table.StateTable` builds on, which says what the parameters are."""

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

    def _settle(self) -> None:
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
        """Versions as the file that is mapped has them; see `take_up`."""
        return self._image.versions[key_groups]

    def _mask(self, key_groups: KeyGroups) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self.num_key_groups, np.bool_)
        mask[key_groups] = True
        return mask

    def _guarded(self, work: Callable[[], T]) -> T:
        """Do `work`; if the file was damaged or cut short, see that nothing of it counts."""
        file, cause = self._file, None
        before = 0 if file is None else file.image.rewritten
        try:
            done = work()
        except IndexError as error:
            problem, cause = str(error), error
        else:
            problem = "its file was cut short"
            if file is None or (file.is_whole and file.image.rewritten == before):
                return done
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

    # -- made anew ----------------------------------------------------------------------------

    def _compact(self, image: TableImage, own: KeyGroups | None = None) -> None:
        """Leave dead rows behind, once they are a good part of the table.

        Where all that the table holds is the caller's `own`, nobody reads it, and it is rewritten
        where it lies: a new file's pages would all be touched for the first time.
        """
        if 2 * image.live >= image.used:
            return
        held = image.versions >= 0
        if own is None or image.live > _COPIED_ROWS or np.any(held & ~self._mask(own)):
            nothing = _nothing(image)
            self._publish(self._guarded(lambda: self._copied(nothing, None)))
            return
        alive = self._guarded(lambda: image.gather(image.rows_of(held)))
        image.marks[held] = 1
        image.rewrite(alive)
        image.marks[held] = 0

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
            kept = (source.versions >= 0) & (source.marks == 0)
            if left is not None:
                kept[left] = False
            rows = source.rows_of(kept)
            new.grow(room, slots_for(max(len(rows) + len(upserts.hashes), 1)))
            for first in range(0, len(rows), _COPIED_ROWS):
                new.image.copy_rows(source, rows[first : first + _COPIED_ROWS])
            new.image.versions[kept] = source.versions[kept]
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
