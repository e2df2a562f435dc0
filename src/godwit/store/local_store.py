"""The local store: all tables of one run on one executor, in one directory.

Invariants: the store is a cache; missing or damaged state is loaded from the checkpoint again.  A
table is one file, whose path follows from its number.  A writer holds the table's lock, one byte of
a lock file; the kernel releases the locks of a process that dies.

Each lane mostly writes a table of its own, so lanes do not wait for one another: a key group goes
into the table of the lane that first loads it here, and stays in this table even if another lane
processes it later.  Two tables may have one key group (after an obsolete attempt, or two copies);
the newer version counts, and either is the committed state at its version.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.model.errors import EpochFailedError
from godwit.store.changes import Changes, EntryRange, StateRows
from godwit.store.table import StateTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.store.columns import StateSchema

_SUFFIX = ".table"
_SPARE = 1 << 16
"""Number of the second table of lane 0."""
_MANY_KEYS = 1 << 17
"""Number of keys of a table above which others go to a second one; see `LocalState.spare_homes`."""


KeyGroups = npt.NDArray[np.int64]


class LocalState:
    """Copies of one state's key groups, in the local store at `root`.

    Cheap to construct; opened tables stay open. Create it in each process, after any fork. Tables
    that are damaged or have another schema are discarded. `versions`, `look_up`, `scan` and the
    other methods see a key group as of the last `refresh` that named it. `bases` are those of
    partial copies, which only `look_up` reads; -1 for whole ones (see `StateTable.fill`).
    `serials`: see `TableImage.serials`. `path`: directory of the tables; created when the first is
    written.
    """

    def __init__(
        self, root: str | Path, name: str, schema: StateSchema, num_key_groups: int
    ) -> None:
        self.schema, self.num_key_groups = schema, num_key_groups
        self.path = Path(root) / _file_name(name)
        self._fd: int | None = None  # of the file of locks
        self._close: weakref.finalize[[int], LocalState] | None = None
        self._tables: dict[int, StateTable] = {}
        self._table_of = np.full(num_key_groups, -1, np.int32)
        self.versions = np.full(num_key_groups, -1, np.int64)
        self.bases = np.full(num_key_groups, -1, np.int64)
        self.serials = np.full(num_key_groups, -1, np.int64)
        self._expired: EntryRange | None = None
        self._without = np.zeros(num_key_groups, np.bool_)

    def refresh(
        self, key_groups: KeyGroups, enough: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.int64]:
        """Find the newest local copy of each key group; drop damaged tables.

        `enough`: sufficient version of each key group; no newer one is searched for. Returns the
        version of each of `key_groups`, -1 without a local copy.
        """
        versions = np.full(len(key_groups), -1, np.int64)
        tables = np.full(len(key_groups), -1, np.int32)
        self.bases[key_groups] = -1
        missing = np.ones(len(key_groups), np.bool_)
        if enough is not None:
            known = self._table_of[key_groups]
            for number in np.flatnonzero(np.bincount(known[known >= 0])).tolist():
                self._find_in_table(number, key_groups, known == number, versions, tables)
            missing = versions < enough
        if missing.any():
            for number in self._table_numbers():
                self._find_in_table(number, key_groups, missing, versions, tables)
        self.versions[key_groups], self._table_of[key_groups] = versions, tables
        return versions

    def _find_in_table(
        self,
        number: int,
        key_groups: KeyGroups,
        which: npt.NDArray[np.bool_],
        versions: npt.NDArray[np.int64],
        tables: npt.NDArray[np.int32],
    ) -> None:
        """Update `versions` and `tables` of masked key groups that are newer in table `number`."""
        masked, table = np.flatnonzero(which), self._open_table(number)
        present = table.refresh(key_groups[masked])
        newer = present > versions[masked]
        some = masked[newer]
        versions[some], tables[some] = present[newer], number
        self._remember(key_groups[some], table)

    def _remember(self, key_groups: KeyGroups, table: StateTable) -> None:
        """Remember bases and serial numbers of key groups in a table."""
        self.bases[key_groups] = table.bases(key_groups)
        self.serials[key_groups] = table.serials(key_groups)

    def look_up(
        self, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Look up n keys; `key_groups`: shape ``(n,)``: the key group of each.

        Returns a mask, shape ``(n,)``, of keys that have state, and n rows of state columns, zero
        or empty for the others. Raises `EpochFailedError` if a table turns out to be damaged.
        """
        parts = list(self._by_table(self._table_of[key_groups]))
        if len(parts) == 1 and len(parts[0][1]) == keys.num_rows:
            table = parts[0][0]
            rows = table.find(keys)
            return rows >= 0, table.read(rows)
        known = np.zeros(keys.num_rows, np.bool_)
        nowhere = np.flatnonzero(self._table_of[key_groups] < 0)
        order, values = [nowhere], [self._new_table(0).read(np.full(len(nowhere), -1))]
        for table, which in parts:
            rows = table.find(keys.take(pa.array(which)))
            known[which] = rows >= 0
            order.append(which)
            values.append(table.read(rows))
        back = np.empty(keys.num_rows, np.int64)
        back[np.concatenate(order)] = np.arange(keys.num_rows)
        return known, pa.concat_batches(values).take(pa.array(back))

    def scan(self, key_groups: KeyGroups, entry_range: EntryRange | None = None) -> Changes:
        """Copy the entries of key groups: all, or those in a range of event time.

        `key_groups`: ascending. Key groups without a local copy are left out.
        """
        self._check_whole(key_groups)
        return Changes.concat(
            [
                table.scan(key_groups[which], entry_range)
                for table, which in self._by_table(self._table_of[key_groups])
            ]
            or [self._new_table(0).scan(np.empty(0, np.int64))]
        )

    def select(
        self,
        key_groups: KeyGroups,
        columns: Sequence[int],
        part: EntryRange,
        choose: Callable[[Sequence[npt.NDArray[np.int64]]], npt.NDArray[np.bool_]],
    ) -> StateRows:
        """Copy the entries in a range that `choose` picks.

        `choose` gets the values of `columns` (positions of 64-bit columns, key columns counted
        first) for the entries of all tables at once, and returns a mask of the entries to copy.
        """
        self._check_whole(key_groups)
        tables = [
            (table, key_groups[which])
            for table, which in self._by_table(self._table_of[key_groups])
        ] or [(self._new_table(0), key_groups[:0])]
        in_range = [table.rows_of(of_table, columns, part) for table, of_table in tables]
        parts = [values for _, values in in_range]
        chosen = choose([np.concatenate(column) for column in zip(*parts, strict=True)])
        ends = np.cumsum([len(rows) for rows, _ in in_range])[:-1]
        return StateRows.concat(
            [
                table.entries(rows[mask])
                for (table, _), (rows, _), mask in zip(
                    tables, in_range, np.split(chosen, ends), strict=True
                )
            ]
        )

    def copy_out(self, key_groups: KeyGroups) -> Iterator[Changes]:
        """Yield copies of whole key groups, while lanes may write them.

        `key_groups`: ascending. Key groups dropped meanwhile are left out.
        """
        for table, which in self._by_table(self._table_of[key_groups]):
            copied = table.copy_out(key_groups[which])
            if copied.key_groups.size:
                yield copied

    def state_bytes(self, key_groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Return the bytes of keys and state of each key group, without index and garbage."""
        sizes = np.zeros(len(key_groups), np.int64)
        for table, which in self._by_table(self._table_of[key_groups]):
            sizes[which] = table.state_bytes(key_groups[which])
        return sizes

    def apply(self, changes: Changes, homes: npt.NDArray[np.int32]) -> None:
        """Apply changes of committed epochs to key groups at the versions of the last `refresh`.

        `homes`: shape ``(num_key_groups,)``: number of the table for a new key group.

        Raises `EpochFailedError` if a key group was dropped since, and `StateEncodingError` if the
        batches do not fit the schema or one another, or are too large for one table.
        """
        before = self.versions[changes.key_groups]
        for number, mask in self._tables_to_change(changes, homes):
            self._open_table(number).apply(changes.where(mask), before[mask])
            self._record_written(changes.key_groups[mask], number)

    def replace(self, contents: Changes, homes: npt.NDArray[np.int32]) -> None:
        """Replace the entries of key groups by snapshots, unless a newer version is here.

        Raises `StorageFullError` or `StateEncodingError` as `apply` does; the table is then
        unchanged.
        """
        for number, mask in self._tables_to_change(contents, homes):
            self._open_table(number).replace(contents.where(mask))
            self._record_written(contents.key_groups[mask], number)

    def fill(
        self,
        key_groups: KeyGroups,
        epochs: npt.NDArray[np.int64],
        read: Callable[[KeyGroups], tuple[Changes, int]],
        homes: npt.NDArray[np.int32],
        *,
        complete: bool = False,
    ) -> None:
        """Add entries of keys that the tables lack; absent key groups become partial copies.

        `key_groups`, `epochs`, `complete`: see `StateTable.fill`. `read`: returns the entries of
        some of the key groups, and the number of keys for which to make room.
        """
        tables = self._table_of[key_groups]
        tables = np.where(tables < 0, homes[key_groups], tables)
        for number in np.flatnonzero(np.bincount(tables)).tolist():
            mask = tables == number
            some = key_groups[mask]
            self._open_table(number).fill(epochs[mask], *read(some), complete=complete)
            self._record_written(some, number)

    def spare_homes(self, homes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return tables for many keys that are to come: others than those that have many.

        To enlarge the index of a table takes 0.2 µs for each key that it has, all in one epoch.
        """
        used = [n for n in np.unique(homes).tolist() if self._open_table(n).live > _MANY_KEYS]
        return np.where(np.isin(homes, used), homes + _SPARE, homes)

    def drop(self, key_groups: KeyGroups) -> None:
        """Delete key groups from all tables; their space is reused later."""
        for number in self._table_numbers():
            self._open_table(number).drop(key_groups)
        self.versions[key_groups], self._table_of[key_groups] = -1, -1
        self.bases[key_groups] = -1

    def evict(self, key_groups: KeyGroups) -> None:
        """Remove the entries of key groups as of the last `refresh`; they become partial copies."""
        for table, which in self._by_table(self._table_of[key_groups]):
            table.evict(key_groups[which])
            self._remember(key_groups[which], table)

    def file_bytes(self, lane: int, lanes: int) -> int:
        """Return the bytes of the blocks of the files that one of an executor's lanes accounts for.

        Each file counts for one lane, also if it is of a lane that is gone.
        """
        size = 0
        for number in self._numbers_of(lane, lanes):
            with suppress(FileNotFoundError):
                size += 512 * (self.path / _name(number)).stat().st_blocks
        return size

    def bytes_per_key(self, lane: int, lanes: int) -> float:
        """Return the mean bytes of an entry in these files; 0 without any."""
        num_keys = sum(self._open_table(n).live for n in self._numbers_of(lane, lanes))
        return self.file_bytes(lane, lanes) / num_keys if num_keys else 0.0

    def _numbers_of(self, lane: int, lanes: int) -> list[int]:
        """Return the numbers of the tables that one of an executor's lanes accounts for."""
        return [n for n in self._table_numbers() if n % _SPARE % lanes == lane]

    def min_after(self, key_groups: KeyGroups, column: int, *, after: int) -> int:
        """Return the minimum above `after` in an integer column (key columns counted first)."""
        self._check_whole(key_groups)
        minima = [
            table.min_after(key_groups[which], column, after)
            for table, which in self._by_table(self._table_of[key_groups])
        ]
        return min(minima, default=2**61)

    def _check_whole(self, key_groups: KeyGroups) -> None:
        """Raise `EpochFailedError` for partial copies, which lack entries; see `fill`."""
        parts = key_groups[self.bases[key_groups] >= 0]
        if parts.size:
            raise EpochFailedError(
                f"All entries of {self.path.name!r} are to be read, and {len(parts)} key groups "
                f"from {int(parts[0])} on have only those of some keys in the local store.",
                remedy="This is an error in Godwit: please report it with this text.",
            )

    def expire(self, key_groups: KeyGroups, part: EntryRange) -> None:
        """Delete the entries of key groups that are in a range of event time.

        Best effort: entries that remain do no harm. Runs once per range and key group.
        """
        if part != self._expired:
            self._expired, self._without[:] = part, False
        key_groups = key_groups[~self._without[key_groups]]
        self._without[key_groups] = True
        for table, which in self._by_table(self._table_of[key_groups]):
            table.drop(key_groups[which], part)

    def _tables_to_change(
        self, changes: Changes, homes: npt.NDArray[np.int32]
    ) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """Yield the number of each table that changes, and a mask of its key groups that do."""
        tables = self._table_of[changes.key_groups]
        tables = np.where(tables < 0, homes[changes.key_groups], tables)
        for number in np.flatnonzero(np.bincount(tables)).tolist():
            yield number, tables == number

    def _record_written(self, key_groups: KeyGroups, number: int) -> None:
        """Remember that table `number` holds these key groups at the versions just written."""
        self._table_of[key_groups], table = number, self._open_table(number)
        self.versions[key_groups] = table.versions(key_groups)
        self._remember(key_groups, table)

    def _by_table(
        self, tables: npt.NDArray[np.int32]
    ) -> Iterator[tuple[StateTable, npt.NDArray[np.int64]]]:
        """Yield each table whose number is in `tables`, with the positions of that number."""
        for number in np.flatnonzero(np.bincount(tables + 1)[1:]).tolist():
            yield self._open_table(number), np.flatnonzero(tables == number)

    def _open_table(self, number: int) -> StateTable:
        """Return the table of a number, creating its Python object on first use."""
        table = self._tables.get(number)
        if table is None:
            table = self._tables[number] = self._new_table(number)
        return table

    def _new_table(self, number: int) -> StateTable:
        """Return a new table object; its file is created at the first write."""
        return StateTable(
            self.path / _name(number),
            self.schema,
            self.num_key_groups,
            lambda: self._lock_table(number),
        )

    def _table_numbers(self) -> list[int]:
        """Return the numbers of the tables that exist, ascending."""
        try:
            names = [path.stem for path in self.path.iterdir() if path.suffix == _SUFFIX]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    @contextmanager
    def _lock_table(self, number: int) -> Iterator[None]:
        """Context that locks a table against other writers on this executor."""
        fd = self._lock_file()
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, number)
        try:
            yield
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, number)

    def _lock_file(self) -> int:
        """Return the descriptor of the lock file; opened again if its directory was removed."""
        if self._fd is not None and os.fstat(self._fd).st_nlink:
            return self._fd
        if self._close is not None:  # the whole directory was removed, and the lock file with it
            self._close()
        self.path.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._close = weakref.finalize(self, os.close, self._fd)
        return self._fd


def _name(number: int) -> str:
    """Return the name of a table's file."""
    return f"{number:06d}{_SUFFIX}"


_MAX_NAME = 200  # file systems take names of up to 255 bytes


def _file_name(state: str) -> str:
    """Return a unique directory name for a state, valid on any file system."""
    name = "op=" + quote(state, safe="")
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.blake2b(state.encode(), digest_size=16).hexdigest()
    return f"{name[: _MAX_NAME - len(digest)]}#{digest}"
