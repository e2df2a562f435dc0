"""The state of one key group of one operator, at one committed version, on this executor.

Problem: every epoch, a lane finds the prior state of the keys it touches and brings in the changes
of the last committed epoch, for hundreds of key groups, each in microseconds.

Invariants: a table holds exactly the state at `version`; a table that may not (its process was
killed while writing, its file is damaged or of another schema) is discarded and starts over at
version -1, from where the checkpoint brings it forward.  Changes of an epoch enter once, whoever
brings them and however often.  One lane at a time uses a key group; an attempt of that lane that
should be dead may read nonsense, but writes nothing that its successor does not.

Source: "apply on next", so that an attempt never meets its own half-done work, and the store as a
cache of a committed version, are this project's own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.model.errors import EpochFailedError, StateEncodingError
from godwit.state.image import Hashes, TableImage, Upserts
from godwit.state.table_file import FileIdentity, blank_image, create_file, identity_of, map_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from godwit.state.column import Rows
    from godwit.state.schema import StateSchema

__all__ = ["KeyGroupTable"]

T = TypeVar("T")


class KeyGroupTable:
    """State of one key group of one operator; get one from `LocalStore.table`.

    Row numbers are good until the next `apply`, `replace` or `LocalStore.table` of this key group.
    Use from one thread at a time.

    Parameters
    ----------
    path
        File of the table; need not exist.
    schema
        Key columns and state columns.  Batches are matched to it by position.
    lock
        Makes this process, of all on this executor, the only one to write the table.
    """

    def __init__(
        self, path: Path, schema: StateSchema, lock: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.schema = schema
        self._path = path
        self._lock = lock
        self._image = blank_image(schema)
        self._identity: FileIdentity | None = None
        self.refresh()

    @property
    def version(self) -> int:
        """Epoch whose changes are in; -1 if nothing is."""
        return self._image.version

    @property
    def num_keys(self) -> int:
        """Number of keys that have state."""
        return self._image.num_keys

    @property
    def state_bytes(self) -> int:
        """Bytes of keys and state; what the index and garbage take is not counted."""
        return self._image.state_bytes

    def refresh(self) -> None:
        """Look whether the table has another file by now, and discard it if it is not whole."""
        if not self._map():
            with self._lock():  # it may be dirty because somebody alive is writing
                self._map_or_discard()

    def find(self, hashes: Hashes, keys: pa.RecordBatch) -> Rows:
        """Find the rows of keys.

        Parameters
        ----------
        hashes
            Shape ``(n,)``, int64: hash of each key.
        keys
            n distinct keys.

        Returns
        -------
        ndarray of int64
            Shape ``(n,)``: row of each key, -1 where it has no state.  Keys are compared value for
            value (floats by bits, null equal to null), never by hash alone.

        Raises
        ------
        EpochFailedError
            If the file turns out to be damaged.
        """
        image = self._image
        self._check(hashes, keys, self.schema.keys)
        if not image.num_keys:
            return np.full(len(hashes), -1, np.int64)
        found = self._guarded(lambda: image.search(hashes, image.encode_keys(keys))[0])
        return image.live_only(found)

    def read(self, rows: Rows) -> pa.RecordBatch:
        """Copy the state of `rows` out; zero or empty where a row is -1.

        Parameters
        ----------
        rows
            Shape ``(n,)``, int64, from `find`.

        Returns
        -------
        pyarrow.RecordBatch
            n rows of state columns.

        Raises
        ------
        EpochFailedError
            If the file turns out to be damaged.
        """
        values = self._image.values
        return pa.RecordBatch.from_arrays(
            self._guarded(lambda: [column.decode(column.gather(rows)) for column in values]),
            schema=self.schema.values,
        )

    def scan(self) -> tuple[Hashes, pa.RecordBatch, pa.RecordBatch]:
        """Copy the whole table out.

        Returns
        -------
        hashes, keys, values
            One row a key, keys that were added earlier first.

        Raises
        ------
        EpochFailedError
            If the file turns out to be damaged.
        """
        image, schema = self._image, self.schema
        all_ = self._guarded(lambda: image.gather(image.live_rows()))
        keys = [c.decode(e) for c, e in zip(image.keys, all_.keys, strict=True)]
        values = [c.decode(e) for c, e in zip(image.values, all_.values, strict=True)]
        return (
            all_.hashes,
            pa.RecordBatch.from_arrays(keys, schema=schema.keys),
            pa.RecordBatch.from_arrays(values, schema=schema.values),
        )

    def apply(
        self,
        epoch: int,
        hashes: Hashes,
        keys: pa.RecordBatch,
        values: pa.RecordBatch,
        removed: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Bring in the changes of one committed epoch; nothing if they are in already.

        Parameters
        ----------
        epoch
            The epoch, which becomes the version.  Epochs without changes may be left out.
        hashes
            Shape ``(n,)``, int64: hash of each key.
        keys
            n distinct keys.
        values
            n rows of state columns: the new state of each key.
        removed
            Shape ``(n,)``: keys that have no state any more (their row of `values` is ignored).

        Raises
        ------
        StorageFullError
            If there is no room; the table is as it was.
        EpochFailedError
            If the table was discarded since it was last opened, so these changes have nothing to
            go on.  Open it again and bring it forward from the checkpoint.
        StateEncodingError
            If the batches do not fit the schema, or one another, or are too large for one table.
        """
        before = self.version
        if epoch <= before:
            return
        if removed is not None and len(removed) != len(hashes):
            raise self._mismatch(len(hashes), f"{len(removed)} flags of removal")
        with self._writing(hashes, keys, values):
            if self.version < before:
                raise EpochFailedError(
                    f"Table {self._path} was at version {before} and has been discarded since; "
                    f"changes of epoch {epoch} cannot be brought in.",
                    remedy="The next attempt restores it from the checkpoint.",
                    path=str(self._path),
                    version=before,
                    epoch=epoch,
                )
            if epoch > self.version:
                self._guarded(lambda: self._apply(epoch, hashes, keys, values, removed))

    def replace(
        self, epoch: int, hashes: Hashes, keys: pa.RecordBatch, values: pa.RecordBatch
    ) -> None:
        """Hold exactly these rows, the whole state as of `epoch`; nothing if that is in already.

        Parameters
        ----------
        epoch
            Version of the rows.
        hashes, keys, values
            As of `apply`.

        Raises
        ------
        StorageFullError, StateEncodingError
            As of `apply`; the table is as it was.
        """
        with self._writing(hashes, keys, values):
            if epoch <= self.version:
                return
            blank = blank_image(self.schema)
            rows = Upserts(
                hashes=hashes, keys=blank.encode_keys(keys), values=blank.encode_values(values)
            )
            image, identity = self._create(blank, rows, rows)
            image.fill(rows)
            image.version = epoch
            self._publish(image, identity)

    def _apply(
        self,
        epoch: int,
        hashes: Hashes,
        keys: pa.RecordBatch,
        values: pa.RecordBatch,
        removed: npt.NDArray[np.bool_] | None,
    ) -> None:
        image = self._image
        upserts = Upserts(
            hashes=hashes, keys=image.encode_keys(keys), values=image.encode_values(values)
        )
        goes: Upserts | None = None
        if removed is not None and removed.any():
            goes = upserts.take(np.flatnonzero(removed))
            upserts = upserts.take(np.flatnonzero(~removed))
        rows, at = image.search(upserts.hashes, upserts.keys)
        fresh = _where(upserts, rows < 0)
        identity = None
        if self._identity is None or not image.fits(upserts, fresh):
            fresh = _where(upserts, image.live_only(rows) < 0)  # the dead are left behind
            grown, identity = self._create(image, upserts, fresh)
            grown.fill(image.gather(image.live_rows()))
            image = grown
            rows, at = image.search(upserts.hashes, upserts.keys)
        else:
            image.dirty = True
        if goes is not None:
            gone = image.live_only(image.search(goes.hashes, goes.keys)[0])
            image.remove(gone[gone >= 0])
        image.write(upserts, rows, at, fresh)
        image.version = epoch
        if identity is None:
            image.dirty = False
        else:
            self._publish(image, identity)

    def _create(
        self, image: TableImage, upserts: Upserts, fresh: Upserts | None
    ) -> tuple[TableImage, FileIdentity]:
        capacity = image.capacity_with(upserts, fresh)
        return create_file(self._path.with_suffix(".new"), self.schema, capacity)

    def _publish(self, image: TableImage, identity: FileIdentity) -> None:
        self._path.with_suffix(".new").replace(self._path)
        self._image, self._identity = image, identity

    @contextmanager
    def _writing(
        self, hashes: Hashes, keys: pa.RecordBatch, values: pa.RecordBatch
    ) -> Iterator[None]:
        self._check(hashes, keys, self.schema.keys)
        self._check(hashes, values, self.schema.values)
        with self._lock():
            self._map_or_discard()
            yield

    def _map(self) -> bool:
        """Map the file that is there now; return whether the table is whole and clean."""
        try:
            identity = identity_of(self._path.stat())
        except FileNotFoundError:
            if self._identity is not None:
                self._image, self._identity = blank_image(self.schema), None
            return True
        if identity != self._identity:
            mapped = map_file(self._path, self.schema)
            if mapped is None or mapped[0] is None:
                return mapped is None and self._map()
            self._image, self._identity = mapped[0], mapped[1]
        return not self._image.dirty

    def _map_or_discard(self) -> None:
        if not self._map():
            self._path.unlink(missing_ok=True)
            self._image, self._identity = blank_image(self.schema), None

    def _guarded(self, work: Callable[[], T]) -> T:
        """Do `work`; if a damaged file leads it astray, see that nobody uses the file again."""
        try:
            return work()
        except IndexError as error:
            self._image.dirty = True
            raise EpochFailedError(
                f"Table {self._path} is damaged: {error}",
                remedy="It is discarded; the next attempt restores it from the checkpoint.",
                path=str(self._path),
            ) from error

    def _check(self, hashes: Hashes, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        if batch.num_columns != len(schema) or batch.num_rows != len(hashes):
            found = f"{batch.num_rows} rows of {batch.num_columns} columns"
            raise self._mismatch(len(hashes), f"{found} (expected: {', '.join(schema.names)})")

    def _mismatch(self, hashes: int, found: str) -> StateEncodingError:
        return StateEncodingError(
            f"{hashes} hashes come with {found} for table {self._path}.",
            remedy="Pass one row, with every column of the schema, for each hash.",
            path=str(self._path),
        )


def _where(upserts: Upserts, mask: npt.NDArray[np.bool_]) -> Upserts | None:
    """Return the rows of `upserts` where `mask` is set, if any."""
    which = np.flatnonzero(mask)
    if not which.size:
        return None
    return upserts if which.size == mask.size else upserts.take(which)
