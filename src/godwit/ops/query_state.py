"""Look-ups in the state of a running query, as of its last committed epoch.

A copy of the key groups that are asked for is kept in a local store on the driver, as an executor
keeps one, and brought forward by the changelog of the epochs since the last look.  So a look-up
needs no Spark job and no lane, and is right while key groups move, executors are lost and rows
wait: the checkpoint is the state, wherever copies of it are.

Invariant: all rows of one call are of one committed epoch, which `QueryState.epoch` tells.  All
changes that the copies lack are collected for all states of a call under one hold of the log's
lock, together with the commit record, which says which panes have expired by then.

States that are stored in parts are put together by their operator: the slots of two-phase windows
by its aggregates, the parts of hot keys by its ``merge=``.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.checkpoint.collection import reading_while_collected
from godwit.checkpoint.hydration import catch_up_copies, rows_of_segment
from godwit.checkpoint.records import StateId
from godwit.columns.hashing import canonical_keys
from godwit.columns.python_values import python_values
from godwit.library.parts import merged_parts
from godwit.library.windows.two_phase import ComputePart, merge_slots
from godwit.model.errors import EpochCollectedError, EpochFailedError, InvalidInputError
from godwit.model.frames import user_class
from godwit.model.key_groups import key_group_mask, key_groups_of
from godwit.model.naming import listing
from godwit.operators.declared import part_state_of
from godwit.operators.hot_keys import PART, hash_undivided
from godwit.operators.slots import Slots
from godwit.ops.asked_keys import AskedKeys, groups_of_keys, is_among, one_batch
from godwit.ops.state_view import NoStateError, shown_at, view_state, with_null_part
from godwit.store.changes import StateRows
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import CommitRecord, SegmentRef
    from godwit.engine.flow_epochs import FlowRun
    from godwit.operators.operator import KeyedOperator
    from godwit.ops.state_view import StateReader

_ATTEMPTS: Final = 5  # files that a look-up is about to read may be collected
_AT_ONCE: Final = 16  # key groups of a scan
_READ_BYTES: Final = 32 * 2**20  # of segments that are kept
EPOCH: Final = b"godwit.epoch"
"""Key of a table's metadata with the epoch of its rows."""


@user_class
class QueryState:
    """State of an operator of a running query, to look up while it runs.

    ``query.state("by_plane")`` makes one; keep it, since it keeps the key groups that were asked
    for. All answers are of the last committed epoch, and have the columns of `godwit.read_state`
    without ``key_group``. Methods may be called from several threads.

    States that are stored in parts, of divided hot keys or of windows in two phases, are put
    together. Copies are small files in the temporary directory of the driver.

    Examples
    --------
    >>> totals = query.state("by_plane")
    >>> totals.get("N1")["plane"]
    'N1'
    """

    def __init__(self, run: FlowRun, operator: str, state: str | None = None) -> None:
        self._run, self._name, self._state = run, operator, state
        self._what = repr(operator)
        self._operator = run.flow.operator(operator)
        self._keys = self._operator.user_keys
        self._asked = AskedKeys(self._keys, self._what)
        self._lock = threading.RLock()
        self._directory = tempfile.mkdtemp(prefix="godwit-state-")
        self._close = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._opened: _Opened | None = None
        self._placed: tuple[pa.RecordBatch | None, Any] = (None, None)  # keys and their key groups
        self._answered = threading.local()

    def __repr__(self) -> str:
        return f"<state of {self._what}>"

    @property
    def epoch(self) -> int:
        """Number of the committed epoch of the last answer that the calling thread got.

        The last committed one before there is any. Tables also have it in their schema's metadata,
        as ``godwit.epoch``.

        Examples
        --------
        >>> query.state("by_plane").epoch >= 0
        True
        """
        return int(getattr(self._answered, "epoch", self._run.epochs.log.latest_epoch))

    @property
    def keys(self) -> pa.Schema:
        """Key columns, in the order of the values of a key.

        Examples
        --------
        >>> query.state("by_plane").keys.names
        ['plane']
        """
        return self._keys

    @property
    def schema(self) -> pa.Schema:
        """Columns of the answers; the key columns alone before there is any state.

        Examples
        --------
        >>> query.state("by_plane").schema.names
        ['plane', 'total']
        """
        with self._lock:
            if self._opened is None:
                self._open()
            return self._schema

    @property
    def _schema(self) -> pa.Schema:
        """Columns of the answers, as far as they are known."""
        return self._keys if self._opened is None else self._opened.schema

    def get(self, key: Any) -> Any:
        """Return the state of one key.

        Parameters
        ----------
        key
            Value of the key column; of several, a tuple in their order, or a dict.

        Returns
        -------
        dict or list of dict or None
            Name of a column → value; ``None``: the key has no state. A list, if a key may have
            several entries: panes of windows, items of maps, pages of lists, rows of joins. A time
            before the year 1 or after 9999 is the number that Arrow stores for it.

        Raises
        ------
        InvalidInputError
            If the key does not fit the key columns.

        Examples
        --------
        >>> query.state("by_plane").get("N1")["plane"]
        'N1'
        """
        with self._lock:
            return self._of_key(self._look_up(self._asked.table([key])))

    def get_many(self, keys: Sequence[Any]) -> pa.Table:
        """Return the state of several keys, each once; keys without state are left out.

        Parameters
        ----------
        keys
            Keys, each as `get` takes it.

        Examples
        --------
        >>> query.state("by_plane").get_many(["N1", "N2"]).num_rows
        2
        """
        return self._look_up(self._asked.table(keys))

    def join(self, rows: Any) -> pa.Table:
        """Return rows with the state of their keys: a left join.

        Parameters
        ----------
        rows
            An Arrow table, a pandas DataFrame or a list of dicts, with the key columns.

        Returns
        -------
        pyarrow.Table
            All columns of `rows`, then those of the state, null for keys without state. A row
            comes several times if its key has several entries.

        Raises
        ------
        InvalidInputError
            If key columns are missing or have other types.

        Examples
        --------
        >>> query.state("by_plane").join([{"plane": "N2"}, {"plane": "N3"}]).num_rows
        2
        """
        table = rows if isinstance(rows, pa.Table) else _as_table(rows)
        keys = self._keys.names
        missing = [name for name in keys if name not in table.column_names]
        if missing:
            raise InvalidInputError(
                f"The rows to join with the state of {self._what} lack {listing(missing)}.",
                remedy=f"Its key columns are {listing(keys)}.",
            )
        try:
            row_keys = table.select(keys).cast(self._keys)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInputError(
                f"Key columns of the rows to join do not fit the state of {self._what}: {error}.",
                remedy=f"Cast them to {', '.join(f'{f.name} {f.type}' for f in self._keys)}.",
            ) from error
        other_names = [name for name in table.column_names if name not in keys]
        canonical_row_keys = canonical_keys(one_batch(row_keys))
        entries = self._look_up(pa.Table.from_batches([canonical_row_keys]))
        common_names = [name for name in other_names if name in entries.column_names]
        if common_names:
            raise InvalidInputError(
                f"The rows to join and the state of {self._what} both have "
                f"{listing(common_names)}.",
                remedy="Rename the columns of the rows.",
            )
        row_groups, entry_groups = (
            groups_of_keys(canonical_row_keys, one_batch(entries.select(keys)))
            if keys
            else (np.zeros(table.num_rows, np.int64), np.zeros(entries.num_rows, np.int64))
        )
        left, right = _pairs(row_groups, entry_groups)
        joined = table.take(pa.array(left))
        for name in keys:
            joined = joined.set_column(
                joined.column_names.index(name),
                self._keys.field(name),
                row_keys.column(name).take(left),
            )
        entry_columns = entries.drop_columns(keys).take(pa.array(right, mask=right < 0))
        for field, column in zip(entry_columns.schema, entry_columns.columns, strict=True):
            joined = joined.append_column(field, column)
        return joined.replace_schema_metadata(entries.schema.metadata)

    def scan(self, prefix: Any = (), *, limit: int | None = None) -> pa.Table:
        """Return the state of all keys, or of those that begin with a prefix.

        Parameters
        ----------
        prefix
            Value of the first key column, or a tuple of values of the first ones. Of the last one
            given, if it is text or binary, all values that begin with it. All key groups are read.
        limit
            Maximum number of rows; which ones is not defined. ``None``: all, in memory.

        Raises
        ------
        InvalidInputError
            If the prefix has more values than there are key columns, or they do not fit.

        Examples
        --------
        >>> query.state("by_plane").scan("N", limit=1).num_rows
        1
        """
        values = self._asked.check_scan(prefix, limit)
        with self._lock:
            record = _catch_up_copies([(self, None)])
            return self._scanned(record, values, limit)

    def close(self) -> None:
        """Delete the copies of key groups; a later call creates new ones.

        Examples
        --------
        >>> query.state("by_plane").close()
        """
        with self._lock:
            self._opened = None
            shutil.rmtree(self._directory, ignore_errors=True)

    # -- answers ------------------------------------------------------------------------------

    def _look_up(self, keys: pa.Table) -> pa.Table:
        """Return the entries of keys, each once."""
        batch = canonical_keys(one_batch(keys))
        if batch.num_rows > 1 and self._keys.names:
            (groups,) = groups_of_keys(batch)
            batch = batch.take(pa.array(np.sort(np.unique(groups, return_index=True)[1])))
        with self._lock:
            return self._answer(_catch_up_copies([(self, batch)]), batch)

    def _of_key(self, entries: pa.Table) -> Any:
        """Return the entries of one key, as `get` does."""
        rows = _as_dicts(entries)
        if self._opened is not None and self._opened.has_entries:
            return rows
        return rows[0] if rows else None

    def _answer(self, record: CommitRecord | None, keys: pa.RecordBatch) -> pa.Table:
        """Return the entries of keys, which the copies have as of the epoch of `record`."""
        opened = self._opened
        if opened is None or record is None:
            return self._table([], record)
        if not self._keys.names:
            batches = [*opened.scan(record)]
        elif not keys.num_rows:
            batches = []
        elif opened.finds:
            batches = [opened.find(record, keys, self._key_groups(keys))]
        elif self._operator.keys.names == self._keys.names:
            batches = [opened.entries(record, np.unique(self._key_groups(keys)), keys)]
        else:
            batches = [opened.only(batch, keys) for batch in opened.scan(record)]
        return self._table(batches, record)

    def _scanned(
        self, record: CommitRecord | None, values: tuple[Any, ...], limit: int | None
    ) -> pa.Table:
        """Return at most `limit` entries whose keys begin with values."""
        batches: list[pa.RecordBatch] = []
        rows = 0
        for batch in () if self._opened is None or record is None else self._opened.scan(record):
            chosen = self._asked.begin_with(batch, values)
            batches.append(chosen if limit is None else chosen.slice(0, limit - rows))
            rows += batches[-1].num_rows
            if limit is not None and rows >= limit:
                break
        return self._table(batches, record)

    def _table(self, batches: list[pa.RecordBatch], record: CommitRecord | None) -> pa.Table:
        """Return batches as an answer, with its epoch in the metadata, and remember the epoch."""
        self._answered.epoch = epoch = -1 if record is None else record.epoch
        table = pa.Table.from_batches(batches, self._schema)
        return table.replace_schema_metadata({EPOCH: str(epoch)})

    def _key_groups(self, keys: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the key group of each key."""
        if self._placed[0] is not keys:  # asked twice for the keys of a look-up
            count, hashed = self._run.epochs.log.chains.num_key_groups, keys
            if PART in self._operator.hash_columns.names:
                hashed = with_null_part(keys, len(self._keys))
            key_groups = key_groups_of(self._operator.hash_of(hashed, count), count)
            self._placed = keys, key_groups.astype(np.int64)
        placed: npt.NDArray[np.int64] = self._placed[1]
        return placed

    # -- copies of key groups -----------------------------------------------------------------

    def _open(self) -> None:
        """Read the state's description in the checkpoint; discard copies with other columns."""
        self._operator = self._run.flow.operator(self._name)
        log = self._run.epochs.log
        before, self._opened = self._opened, None
        self._placed = None, None
        with suppress(NoStateError):
            view = view_state(log.storage, self._name, None, self._state)
            states = _stored_states(self._operator, view.state)
            if len(states) > 1:
                layouts = {s: self._run.epochs.instructor.layout_of(s) for s in states}
                view = view.of_whole_keys(self._operator.schema_of(view.state.state))
            else:
                layouts = {view.state: view.layouts[view.state]}
            copies = {s: _Copy(self._directory, s, layouts[s], log) for s in states}
            if before is not None and not before.continues_in(copies, log):
                shutil.rmtree(self._directory, ignore_errors=True)
            self._opened = _Opened(log=log, view=view, copies=copies, operator=self._operator)

    def _wanted(self, keys: pa.RecordBatch | None) -> npt.NDArray[np.int64]:
        """Return the key groups with the entries of keys; all if ``None``, and for joins."""
        if keys is None or not self._keys.names or self._operator.keys.names != self._keys.names:
            return np.arange(self._run.epochs.log.chains.num_key_groups, dtype=np.int64)
        return np.unique(self._key_groups(keys))


@user_class
class QueryStates:
    """States of several operators of a running query, whose answers are of one epoch.

    ``query.states("by_plane", "by_airport")`` makes one.

    Examples
    --------
    >>> both = query.states("by_plane")
    >>> both.get({"by_plane": "N1"})["by_plane"]["plane"]
    'N1'
    """

    def __init__(self, states: Mapping[str, QueryState]) -> None:
        self._states = dict(states)
        self._answered = threading.local()

    def __repr__(self) -> str:
        return f"<states of {listing(self._states)}>"

    @property
    def epoch(self) -> int:
        """Number of the committed epoch of the last answer that the calling thread got.

        Examples
        --------
        >>> query.states("by_plane").epoch >= 0
        True
        """
        epochs = [state.epoch for state in self._states.values()]
        return int(getattr(self._answered, "epoch", min(epochs, default=-1)))

    def get(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of one key of each operator, all of the same epoch.

        Parameters
        ----------
        keys
            Name of an operator → key, as `QueryState.get` takes it.

        Returns
        -------
        dict
            Name of an operator → what `QueryState.get` returns.

        Raises
        ------
        InvalidInputError
            If an operator is not among those of this object, or a key does not fit.

        Examples
        --------
        >>> list(query.states("by_plane").get({"by_plane": "N1"}))
        ['by_plane']
        """
        tables = self.get_tables(keys)
        return {name: self._states[name]._of_key(table) for name, table in tables.items()}  # noqa: SLF001

    def get_tables(self, keys: Mapping[str, Any]) -> dict[str, pa.Table]:
        """Return the entries of one key of each operator as tables, all of the same epoch.

        Parameters
        ----------
        keys
            Name of an operator → key, as `QueryState.get` takes it.

        Raises
        ------
        InvalidInputError
            If an operator is not among those of this object, or a key does not fit.

        Examples
        --------
        >>> query.states("by_plane").get_tables({"by_plane": "N1"})["by_plane"].num_rows
        1
        """
        unknown = [name for name in keys if name not in self._states]
        if unknown:
            raise InvalidInputError(
                f"These states do not include {listing(unknown)}.",
                remedy=f"They are those of {listing(self._states)}.",
            )
        # In one order in all threads, so that none waits for another that waits for it.
        asked = {name: self._states[name] for name in sorted(keys)}
        tables = {name: state._asked.table([keys[name]]) for name, state in asked.items()}  # noqa: SLF001
        batches = {name: canonical_keys(one_batch(table)) for name, table in tables.items()}
        with ExitStack() as locked:
            for state in asked.values():
                locked.enter_context(state._lock)  # noqa: SLF001
            record = _catch_up_copies([(state, batches[name]) for name, state in asked.items()])
            self._answered.epoch = -1 if record is None else record.epoch
            return {name: asked[name]._answer(record, batches[name]) for name in keys}  # noqa: SLF001


def _stored_states(operator: KeyedOperator, state: StateId) -> tuple[StateId, ...]:
    """Return the states with the entries of `state`: its own, then that of parts or other slot."""
    parts, role = part_state_of(state.state), operator.two_phase
    if parts in operator.part_states:
        return state, StateId(operator.name, parts)
    if role is not None and role.slot is not None:
        return state, StateId(role.second, state.state)
    return (state,)


class _Copy:
    """Copies on the driver of one stored state's key groups."""

    def __init__(self, root: str, state: StateId, layout: EntryLayout, log: CommitLog) -> None:
        self.state, self.layout, self.storage = state, layout, log.storage
        count = log.chains.num_key_groups
        self.local = LocalState(root, str(state), layout.schema, count)
        self.local.refresh(np.arange(count, dtype=np.int64))
        # Entries of the newest segments: each is read for many key groups, one after the other.
        self._read: dict[tuple[int, int], StateRows] = {}

    def missing(self, chains: Any, key_groups: npt.NDArray[np.int64]) -> _Missing:
        """Return the entries that the copies lack; the caller holds the log's lock."""
        needed = key_group_mask(key_groups, self.local.num_key_groups)
        floor = self.local.versions.copy()
        segments, chains_of_groups = chains.segments_since(self.state, floor, needed)
        return _Missing(wanted=needed, floor=floor, segments=segments, chains=chains_of_groups)

    def apply(self, missing: _Missing) -> None:
        """Bring the copies forward."""
        chains, floor = missing.chains, missing.floor
        if not missing.segments and not chains:
            return
        snapshots = {
            key_group: c.snapshot for key_group, c in chains.items() if c.snapshot is not None
        }
        floor[list(snapshots)] = -1
        catch_up_copies(
            self.local,
            missing.wanted,
            layout=self.layout,
            storage=self.storage,
            segments=missing.segments,
            snapshots=snapshots,
            floor=floor,
            load=np.zeros(self.local.num_key_groups, np.bool_),
            recover=lambda _: {},
            homes=np.zeros(self.local.num_key_groups, np.int32),
            read=self._rows_of,
        )

    def _rows_of(self, segment: SegmentRef) -> StateRows:
        """Return the entries of a segment, from memory if it was read lately."""
        key = segment.epoch, segment.lane
        rows = self._read.get(key)
        if rows is None:
            self._read[key] = rows = rows_of_segment(self.storage, self.layout, segment)
            while sum(map(_num_bytes, self._read.values())) > _READ_BYTES:
                del self._read[next(iter(self._read))]  # the oldest
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """Segments and snapshots that bring copies of key groups to one epoch."""

    wanted: npt.NDArray[np.bool_]
    floor: npt.NDArray[np.int64]  # versions of the copies
    segments: list[SegmentRef]
    chains: dict[int, KeyGroupChain]

    @property
    def flows(self) -> set[int]:
        """Numbers of the flow versions that wrote them."""
        snapshots = [c.snapshot for c in self.chains.values() if c.snapshot is not None]
        return {*(s.flow for s in self.segments), *(s.flow for s in snapshots)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """An open state: its copies, and how users see its entries."""

    log: CommitLog
    view: StateReader
    operator: KeyedOperator
    copies: dict[StateId, _Copy]  # first the state's own, then the other part's

    @property
    def schema(self) -> pa.Schema:
        """Columns of `gw.read_state` without the key group, which is the first."""
        return pa.schema(list(self.view.schema)[1:])

    @property
    def _own(self) -> _Copy:
        return self.copies[self.view.state]

    @property
    def has_entries(self) -> bool:
        """True if a key may have several entries of the state."""
        return bool(self._own.layout.schema.keys.names != self.operator.keys.names)

    @property
    def finds(self) -> bool:
        """True if an entry is found by its key columns alone."""
        return (
            len(self.copies) == 1 and not self.has_entries and PART not in self.operator.keys.names
        )

    def continues_in(self, copies: Mapping[StateId, _Copy], log: CommitLog) -> bool:
        """Return whether copies of key groups fit other layouts."""
        return self.log is log and all(
            state in self.copies and self.copies[state].layout.schema == copy.layout.schema
            for state, copy in copies.items()
        )

    def missing(self, key_groups: npt.NDArray[np.int64]) -> list[tuple[_Copy, _Missing]]:
        """Return what the copies lack of whole keys in key groups; the caller locks the log."""
        return [
            (copy, copy.missing(self.log.chains, self._key_groups_of(copy, key_groups)))
            for copy in self.copies.values()
        ]

    def _key_groups_of(self, copy: _Copy, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the key groups of a copy with the entries of whole keys in key groups `wanted`.

        All, of parts of hot keys, each of which has a key group of its own; they are few.
        """
        is_of_parts = copy.state.state in self.operator.part_states
        return np.arange(copy.local.num_key_groups, dtype=np.int64) if is_of_parts else wanted

    def find(
        self, record: CommitRecord, keys: pa.RecordBatch, key_groups: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        """Return the entries of keys, which have one each; `key_groups`: of each."""
        is_stored, values = self._own.local.look_up(keys, key_groups)
        stored = pa.array(np.flatnonzero(is_stored))
        rows = StateRows(
            hashes=np.zeros(len(stored), np.int64),
            keys=keys.take(stored),
            values=values.take(stored),
        )
        return self._shown(record, rows)

    def scan(self, record: CommitRecord) -> Iterator[pa.RecordBatch]:
        """Yield all entries."""
        every = np.arange(self.log.chains.num_key_groups, dtype=np.int64)
        for first in range(0, len(every), _AT_ONCE):
            yield self.entries(record, every[first : first + _AT_ONCE])

    def entries(
        self,
        record: CommitRecord,
        key_groups: npt.NDArray[np.int64],
        keys: pa.RecordBatch | None = None,
    ) -> pa.RecordBatch:
        """Return the entries in key groups: all, or those of keys; parts are put together."""
        first_copy, *other_copies = self.copies.values()
        rows = _rows_of(first_copy.local.scan(key_groups).rows, keys)
        if not other_copies:
            return self._shown(record, rows)
        (other_copy,) = other_copies
        local, names = other_copy.local, self.operator.keys.names
        other_rows = _rows_of(local.scan(self._key_groups_of(other_copy, key_groups)).rows, keys)
        count = self.log.chains.num_key_groups
        operator: Any = self.operator
        if isinstance(operator, ComputePart):
            slots = Slots.of(record.slots.get(operator.name, ()), count)
            all_rows = rows.followed_by(other_rows)
            slot = np.repeat(np.array([0, 1], np.int8), [len(rows.hashes), len(other_rows.hashes)])
            active = slots.active[key_groups_of(all_rows.hashes, count)]
            return self._shown(record, merge_slots(operator, all_rows, slot, active))
        homes = key_groups_of(hash_undivided(other_rows.keys.select(names)), count)
        other_rows = other_rows.take(np.flatnonzero(np.isin(homes, key_groups)))
        return self._shown(
            record, merged_parts(operator, self.view.state.state, rows, other_rows, count)
        )

    def only(self, batch: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the shown entries of keys."""
        own = batch.select(keys.schema.names)
        return batch.filter(pa.array(is_among(own, keys)))

    def _shown(self, record: CommitRecord, rows: StateRows) -> pa.RecordBatch:
        """Return entries as users see them."""
        batch = shown_at(self.view, record, rows)
        return pa.RecordBatch.from_arrays(batch.columns[1:], schema=self.schema)


def _catch_up_copies(
    asked: Sequence[tuple[QueryState, pa.RecordBatch | None]],
) -> CommitRecord | None:
    """Bring the copies of states to the last committed epoch, and return its record.

    `asked`: the states, which the caller has locked, and the keys whose key groups are needed;
    ``None``: all.
    """
    for attempt in range(_ATTEMPTS):
        try:
            record, missing = _missing(asked)
            for copy, part in missing:
                with reading_while_collected(copy.storage):
                    copy.apply(part)
        except EpochCollectedError:
            if attempt == _ATTEMPTS - 1:
                raise
        except EpochFailedError:  # copies are damaged or were deleted
            if attempt == _ATTEMPTS - 1:
                raise
            for state, _ in asked:
                state.close()
        else:
            return record
    raise AssertionError("unreachable")


def _missing(
    requests: Sequence[tuple[QueryState, pa.RecordBatch | None]],
) -> tuple[CommitRecord | None, list[tuple[_Copy, _Missing]]]:
    """Return the last commit record, and what the copies of states lack to its epoch."""
    without_state: set[int] = set()  # numbers of states that were opened, and have no entries
    while True:
        wanted_groups = [state._wanted(keys) for state, keys in requests]  # noqa: SLF001
        outdated: list[int] = []
        missing: list[tuple[_Copy, _Missing]] = []
        log = requests[0][0]._run.epochs.log  # noqa: SLF001
        with log.lock:
            record = log.latest
            for number, (state, _) in enumerate(requests):
                opened = state._opened  # noqa: SLF001
                if opened is None and number in without_state:
                    continue
                if opened is None or opened.log is not log:
                    outdated.append(number)
                    continue
                parts = opened.missing(wanted_groups[number])
                missing += parts
                # The layouts of one state are those of the flow versions that had written it.
                if len(parts) == 1 and not parts[0][1].flows <= parts[0][0].layout.former.keys():
                    state.close()
                    outdated.append(number)
        if not outdated:
            return record, missing
        for number in outdated:
            requests[number][0]._open()  # noqa: SLF001
            without_state.add(number)


def _num_bytes(rows: StateRows) -> int:
    """Return the size of entries in memory."""
    return int(rows.keys.nbytes + rows.values.nbytes)


def _rows_of(rows: StateRows, keys: pa.RecordBatch | None) -> StateRows:
    """Return the entries of keys, or all."""
    if keys is None:
        return rows
    own = rows.keys.select(keys.schema.names)
    return rows.take(np.flatnonzero(is_among(own, keys)))


def _pairs(
    row_groups: npt.NDArray[np.int64], entry_groups: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a left join of rows with entries by the numbers of their keys, as positions of both.

    The position of the entry is -1 for a row without any.
    """
    order = np.argsort(entry_groups, kind="stable")
    counts = np.bincount(entry_groups, minlength=int(row_groups.max(initial=-1)) + 1)
    starts = np.cumsum(counts) - counts
    sizes = np.maximum(counts[row_groups], 1)
    left = np.repeat(np.arange(len(row_groups)), sizes)
    match_number = np.arange(len(left)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    right = np.full(len(left), -1, np.int64)
    has_match = counts[row_groups][left] > 0
    right[has_match] = order[(starts[row_groups][left] + match_number)[has_match]]
    return left, right


def _as_dicts(entries: pa.Table) -> list[dict[str, Any]]:
    """Return rows as Python values; a time that no datetime holds is Arrow's number."""
    try:
        rows: list[dict[str, Any]] = entries.to_pylist()
    except OverflowError:
        columns = [python_values(column.combine_chunks()) for column in entries.columns]
        return [
            dict(zip(entries.column_names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    return rows


def _as_table(rows: Any) -> pa.Table:
    """Return rows as an Arrow table, with the types that their values have."""
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    return pa.Table.from_pylist(rows) if isinstance(rows, list) else pa.Table.from_pandas(rows)
