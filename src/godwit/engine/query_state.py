"""Look-ups in the state of a running query, as of its last committed epoch.

A copy of the key groups that are asked for is kept in a local store on the driver, as an executor
keeps one, and brought forward by the changelog of the epochs since the last look.  So a look-up
needs no Spark job and no lane, and is right while key groups move, executors are lost and rows
wait: the checkpoint is the state, wherever copies of it are.

Invariant: all rows of one call are of one committed epoch, which `QueryState.epoch` tells.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.collection import reading_while_collected
from godwit.checkpoint.hydration import bring_forward
from godwit.columns.hashing import canonical_keys
from godwit.engine.state_view import NoStateError, shown_at, view_state
from godwit.model.errors import EpochCollectedError, InvalidInputError
from godwit.model.frames import user_class
from godwit.model.key_groups import key_group_mask, key_groups_of
from godwit.model.naming import listing
from godwit.store.changes import StateRows
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.engine.state_view import StateReader
    from godwit.operators.operator import KeyedOperator

_ATTEMPTS: Final = 5  # files that a look-up is about to read may be collected
_AT_ONCE: Final = 16  # key groups of a scan


@user_class
class QueryState:
    """State of an operator of a running query, to look up while it runs.

    ``query.state("by_plane")`` makes one; keep it, since it keeps the key groups that were asked
    for. All answers are of the last committed epoch, and have the columns of `godwit.read_state`
    without ``key_group``. Methods may be called from several threads.

    Examples
    --------
    >>> totals = query.state("by_plane")
    >>> totals.get("N1")["plane"]
    'N1'
    """

    def __init__(
        self, log: CommitLog, operator: KeyedOperator, state: str | None, what: str
    ) -> None:
        self._log, self._operator, self._name, self._what = log, operator, state, what
        self._lock = threading.RLock()
        self._directory = tempfile.mkdtemp(prefix="godwit-state-")
        self._close = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._view: StateReader | None = None
        self._local: LocalState | None = None
        self._epoch = log.latest_epoch
        self._keys = operator.user_keys

    def __repr__(self) -> str:
        return f"<state of {self._what}>"

    @property
    def epoch(self) -> int:
        """Number of the committed epoch that the last answer is of.

        Examples
        --------
        >>> query.state("by_plane").epoch >= 0
        True
        """
        return self._epoch

    @property
    def schema(self) -> pa.Schema:
        """Columns of the answers; the key columns alone before there is any state.

        Examples
        --------
        >>> query.state("by_plane").schema.names
        ['plane', 'total']
        """
        with self._lock:
            view = self._opened()
            return self._keys if view is None else _without_group(view.schema)

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
            several entries: panes of windows, items of maps, pages of lists, rows of joins.

        Raises
        ------
        InvalidInputError
            If the key does not fit the key columns.

        Examples
        --------
        >>> query.state("by_plane").get("N1")["plane"]
        'N1'
        """
        rows = self._look_up(self._key_table([key])).to_pylist()
        if self._has_entries:
            return rows
        return rows[0] if rows else None

    def get_many(self, keys: Sequence[Any]) -> pa.Table:
        """Return the state of several keys; keys without state are left out.

        Parameters
        ----------
        keys
            Keys, each as `get` takes it.

        Examples
        --------
        >>> query.state("by_plane").get_many(["N1", "N2"]).num_rows
        2
        """
        return self._look_up(self._key_table(keys))

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
            known = table.select(keys).cast(self._keys)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInputError(
                f"Key columns of the rows to join do not fit the state of {self._what}: {error}.",
                remedy=f"Cast them to {', '.join(f'{f.name} {f.type}' for f in self._keys)}.",
            ) from error
        found_rows = self._look_up(known.group_by(keys).aggregate([]).cast(self._keys))
        numbered = table.append_column("__godwit_row", pa.array(range(table.num_rows)))
        for name in keys:
            place = numbered.column_names.index(name)
            numbered = numbered.set_column(place, name, known.column(name))
        others = [name for name in table.column_names if name not in keys]
        clash = [name for name in others if name in found_rows.column_names]
        if clash:
            raise InvalidInputError(
                f"The rows to join and the state of {self._what} both have {listing(clash)}.",
                remedy="Rename the columns of the rows.",
            )
        joined = numbered.join(found_rows, keys, join_type="left outer")
        return joined.sort_by("__godwit_row").drop_columns(["__godwit_row"])

    def scan(self, prefix: Any = (), *, limit: int | None = None) -> pa.Table:
        """Return the state of all keys, or of those that begin with a prefix.

        Parameters
        ----------
        prefix
            Value of the first key column, or a tuple of values of the first ones. Of the last one
            given, if it is text, all values that begin with it. All key groups are read for it,
            unless the whole key is given.
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
        values = prefix if isinstance(prefix, tuple) else (prefix,)
        if len(values) > len(self._keys):
            raise InvalidInputError(
                f"The prefix {prefix!r} has more values than the state of {self._what} has key "
                "columns.",
                remedy=f"Its key columns are {listing(self._keys.names)}.",
            )
        batches: list[pa.RecordBatch] = []
        rows = 0
        with self._lock:
            for batch in self._scan():
                chosen = self._begin_with(batch, values)
                batches.append(chosen if limit is None else chosen.slice(0, limit - rows))
                rows += batches[-1].num_rows
                if limit is not None and rows >= limit:
                    break
            return pa.Table.from_batches(batches, self.schema)

    def close(self) -> None:
        """Delete the copies of key groups; a later call makes new ones.

        Examples
        --------
        >>> query.state("by_plane").close()
        """
        with self._lock:
            self._view = self._local = None
            shutil.rmtree(self._directory, ignore_errors=True)

    # -- keys ---------------------------------------------------------------------------------

    def _key_table(self, keys: Sequence[Any]) -> pa.Table:
        """Return keys as a table of the key columns."""
        names = self._keys.names
        rows = []
        for key in keys:
            values = key if isinstance(key, tuple) else (key,)
            if isinstance(key, Mapping):
                values = tuple(key[name] for name in names) if key.keys() == {*names} else ()
            if len(values) != len(names):
                raise InvalidInputError(
                    f"The key {key!r} is not one of the state of {self._what}, whose key columns "
                    f"are {listing(names)}.",
                    remedy="Pass a tuple of one value for each, in this order, or a dict.",
                )
            rows.append(values)
        columns = [
            self._array(column, field)
            for column, field in zip(zip(*rows, strict=True), self._keys, strict=True)
        ]
        return pa.Table.from_arrays(columns or [[]] * len(names), schema=self._keys)

    def _array(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        """Return values of a key column as an array; raise if they are of another type."""
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(
                f"A key of the state of {self._what} has a value that column {field.name!r}, of "
                f"type {field.type}, cannot hold: {error}.",
                remedy="Pass values of the key's types.",
            ) from error

    @property
    def _has_entries(self) -> bool:
        """Whether a key may have several entries of the state."""
        view = self._opened()
        return view is not None and _stored(view).keys.names != self._operator.keys.names

    def _begin_with(self, batch: pa.RecordBatch, values: tuple[Any, ...]) -> pa.RecordBatch:
        """Return the rows whose first key columns have these values, or begin with the last."""
        for place, value in enumerate(values):
            column, dtype = batch.column(place), self._keys.field(place).type
            if place == len(values) - 1 and isinstance(value, str) and _is_text(dtype):
                mask = pc.starts_with(column, value)
            else:
                (key,) = self._array([value], self._keys.field(place))
                mask = pc.equal(column, key) if key.is_valid else column.is_null()
            batch = batch.filter(mask)
        return batch

    # -- copies of key groups -----------------------------------------------------------------

    def _look_up(self, keys: pa.Table) -> pa.Table:
        """Return the entries of keys."""
        with self._lock:
            view = self._opened()
            if view is None or not keys.num_rows:
                return self.schema.empty_table()
            (batch,) = keys.combine_chunks().to_batches()
            batch = canonical_keys(batch)
            if self._operator.keys.names != self._keys.names:
                return self._filtered(self._scan(), batch)
            key_groups = key_groups_of(
                self._operator.hash_of(batch, self._log.identity.num_key_groups),
                self._log.identity.num_key_groups,
            )
            wanted = np.unique(key_groups).astype(np.int64)
            local = self._brought_forward(wanted)
            if _stored(view).keys.names != self._keys.names:
                return self._filtered(iter([self._entries(wanted)]), batch)
            known, values = local.look_up(batch, key_groups)
            some = pa.array(np.flatnonzero(known))
            rows = StateRows(
                hashes=np.zeros(len(some), np.int64),
                keys=batch.take(some),
                values=values.take(some),
            )
            return pa.Table.from_batches([self._shown(rows)], self.schema)

    def _filtered(self, batches: Iterator[pa.RecordBatch], keys: pa.RecordBatch) -> pa.Table:
        """Return the rows of batches whose key is among `keys`."""
        wanted = {tuple(key.values()) for key in keys.to_pylist()}
        chosen = []
        for batch in batches:
            columns = batch.select(self._keys.names).to_pylist()
            mask = [tuple(key.values()) in wanted for key in columns]
            chosen.append(batch.filter(pa.array(mask, pa.bool_())))
        return pa.Table.from_batches(chosen, self.schema)

    def _scan(self) -> Iterator[pa.RecordBatch]:
        """Yield the entries of all key groups, of one epoch."""
        if self._opened() is None:
            return
        every = np.arange(self._log.identity.num_key_groups, dtype=np.int64)
        self._brought_forward(every)
        for first in range(0, len(every), _AT_ONCE):
            yield self._entries(every[first : first + _AT_ONCE])

    def _entries(self, key_groups: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return all entries of key groups whose copies were brought forward."""
        assert self._local is not None, "it was brought forward"
        return self._shown(self._local.scan(key_groups).rows)

    def _shown(self, rows: StateRows) -> pa.RecordBatch:
        """Return entries as users see them."""
        assert self._view is not None, "it was opened"
        batch = shown_at(self._view, self._log, rows)
        return pa.RecordBatch.from_arrays(
            batch.columns[1:], schema=_without_group(self._view.schema)
        )

    def _opened(self) -> StateReader | None:
        """Return the reader of the state; ``None``: there is none yet."""
        if self._view is None:
            with suppress(NoStateError):
                self._open()
        return self._view

    def _open(self) -> None:
        """Read what the checkpoint says of the state; discard copies with other columns."""
        view = view_state(self._log.storage, self._operator.name, None, self._name)
        if view.in_parts or len({chain.state for chain in view.chains}) > 1:
            raise InvalidInputError(
                f"The state of {self._what} is divided into parts, of hot keys or of windows in "
                "two phases, which look-ups cannot put together.",
                remedy="Read it by gw.read_state(...).",
            )
        self._view, stored = view, _stored(view)
        if self._local is None or self._local.schema != stored:
            shutil.rmtree(self._directory, ignore_errors=True)
            name, count = str(view.chains[0].state), self._log.identity.num_key_groups
            self._local = LocalState(self._directory, name, stored, count)

    def _brought_forward(self, key_groups: npt.NDArray[np.int64]) -> LocalState:
        """Bring the copies of key groups to the last committed epoch."""
        for attempt in range(_ATTEMPTS):
            try:
                with reading_while_collected(self._log.storage):
                    return self._bring_forward(key_groups)
            except EpochCollectedError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _bring_forward(self, key_groups: npt.NDArray[np.int64]) -> LocalState:
        """Apply what the checkpoint has beyond the copies of key groups."""
        view, local = self._view, self._local
        assert view is not None, "it was opened"
        assert local is not None, "it was opened"
        state = view.chains[0].state
        wanted = key_group_mask(key_groups, local.num_key_groups)
        local.refresh(key_groups)
        with self._log.lock:
            epoch = self._log.latest_epoch
            floor = local.versions.copy()
            segments, chains = self._log.chains.segments_since(state, floor, wanted)
        snapshots = {g: c.snapshot for g, c in chains.items() if c.snapshot is not None}
        floor[list(snapshots)] = -1
        written = {segment.flow for segment in segments} | {s.flow for s in snapshots.values()}
        if not written <= view.layouts[state].former.keys():  # of a later version of the flow
            self._open()
            return self._bring_forward(key_groups)
        bring_forward(
            local,
            wanted,
            layout=view.layouts[state],
            storage=self._log.storage,
            segments=segments,
            snapshots=snapshots,
            floor=floor,
            load=np.zeros(local.num_key_groups, np.bool_),
            recover=lambda _: {},
            homes=np.zeros(local.num_key_groups, np.int32),
        )
        self._epoch = epoch
        return local


def _stored(view: StateReader) -> Any:
    """Return the stored columns of a state."""
    return next(iter(view.layouts.values())).schema


def _without_group(schema: pa.Schema) -> pa.Schema:
    """Return the columns of `gw.read_state` without the key group, which is the first."""
    return pa.schema(list(schema)[1:])


def _is_text(dtype: pa.DataType) -> bool:
    """Return whether values of a type are text."""
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _as_table(rows: Any) -> pa.Table:
    """Return rows as an Arrow table, with the types that their values have."""
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    return pa.Table.from_pylist(rows) if isinstance(rows, list) else pa.Table.from_pandas(rows)
