"""Look-ups in the states of a checkpoint, without the program that wrote it.

All that is known of an operator is what the checkpoint says of it, so states that are stored in
parts are answered as `godwit.read_state` has them: parts of hot keys and slots of two-phase windows
are rows of their own.

Invariant: all rows of one answer are of one committed epoch, the last one at a look at the
checkpoint that is at most `_LOOK_S` old.  Rows that were read stay in memory until the next epoch,
up to a bound.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import BatchCache
from godwit.checkpoint.framing import numbers_in
from godwit.checkpoint.ownership import stored_identity
from godwit.checkpoint.records import COMMITS
from godwit.columns.hashing import canonical_keys, hash_keys, hash_placed
from godwit.columns.types import visible_names
from godwit.model.errors import EpochCollectedError
from godwit.model.key_groups import key_groups_of
from godwit.operators.hot_keys import PART
from godwit.ops.asked_keys import AskedKeys, is_among, one_batch
from godwit.ops.query_state import EPOCH
from godwit.ops.state_view import view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.ops.state_view import StateReader

T = TypeVar("T")

_LOOK_S: Final = 0.5
_ATTEMPTS: Final = 5  # files that a look-up is about to read may be collected
_SHOWN_BYTES: Final = 64 * 2**20  # of key groups that are kept as rows
_BLOCK_BYTES: Final = 64 * 2**20  # of blocks that are kept, which key groups share


class StoredStates:
    """States of a checkpoint's operators at its last committed epoch; for several threads."""

    def __init__(
        self, storage: CheckpointStorage, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage, self._now_s = storage, now_s
        self._lock = threading.Lock()
        self._epoch: _Epoch | None = None
        self._known: tuple[int, Any] = (-1, None)  # number of the epoch, and the identity
        self._looked_s = -_LOOK_S

    def state(self, operator: str, state: str | None = None) -> CheckpointedState:
        """Return the state of an operator; the first look-up raises if there is none."""
        return CheckpointedState(self, operator, state)

    def together(self, states: Mapping[str, CheckpointedState]) -> StoredTogether:
        """Return the states of several operators, whose answers are of one epoch."""
        return StoredTogether(self, states)

    def at_latest(self, answer: Callable[[_Epoch], T]) -> T:
        """Return an answer at the last committed epoch; repeated if its files are collected."""
        with self._lock:
            for attempt in range(_ATTEMPTS):
                try:
                    return answer(self._latest())
                except EpochCollectedError:
                    self._epoch = None
                    if attempt == _ATTEMPTS - 1:
                        raise
        raise AssertionError("unreachable")

    def _latest(self) -> _Epoch:
        """Return the last committed epoch; looks at the checkpoint only now and then."""
        now_s = self._now_s()
        if self._epoch is None or now_s - self._looked_s >= _LOOK_S:
            # A start that takes epochs back changes the identity, so a number is one epoch.
            latest = max(numbers_in(self._storage, COMMITS), default=-1)
            known = latest, stored_identity(self._storage)
            if self._epoch is None or known != self._known:
                self._epoch = _Epoch(CommitLog.open_read_only(self._storage))
            self._known, self._looked_s = known, now_s
        return self._epoch


class CheckpointedState:
    """State of an operator in a checkpoint: `QueryState` without a query."""

    def __init__(self, states: StoredStates, operator: str, state: str | None) -> None:
        self._states, self.which = states, (operator, state)

    @property
    def keys(self) -> pa.Schema:
        """Key columns, in the order of the values of a key."""
        return self._states.at_latest(lambda epoch: epoch.opened(self.which).keys.schema)

    def get_many(self, keys: Sequence[Any]) -> pa.Table:
        """Return the entries of keys, each once; see `QueryState.get_many`."""
        return self._states.at_latest(lambda epoch: epoch.opened(self.which).get_many(keys))

    def scan(self, prefix: Any = (), *, limit: int | None = None) -> pa.Table:
        """Return the entries of all keys, or those that begin so; see `QueryState.scan`."""
        return self._states.at_latest(lambda epoch: epoch.opened(self.which).scan(prefix, limit))

    def close(self) -> None:
        """No-op: the state is only in memory."""


class StoredTogether:
    """States of several operators in a checkpoint; `epoch` is that of the last answer."""

    def __init__(self, states: StoredStates, asked: Mapping[str, CheckpointedState]) -> None:
        self._states, self._asked = states, asked
        self.epoch = -1

    def get_tables(self, keys: Mapping[str, Any]) -> dict[str, pa.Table]:
        """Return the entries of one key of each operator; see `QueryStates.get_tables`."""

        def answer(epoch: _Epoch) -> tuple[int, dict[str, pa.Table]]:
            """Return the number of an epoch, and the entries."""
            opened = {name: epoch.opened(self._asked[name].which) for name in keys}
            return epoch.log.latest_epoch, {n: opened[n].get_many([keys[n]]) for n in keys}

        self.epoch, tables = self._states.at_latest(answer)
        return tables


class _Epoch:
    """Rows and blocks of one epoch, up to a bound; used by one thread at a time."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self._blocks = BatchCache(log.storage, max_bytes=_BLOCK_BYTES)
        self._opened: dict[tuple[str, str | None], _OpenedState] = {}
        # number of a chain of a state → rows of its key group, the last used last
        self._shown: OrderedDict[tuple[str, str, int], pa.RecordBatch] = OrderedDict()
        self._bytes = 0

    def opened(self, which: tuple[str, str | None]) -> _OpenedState:
        """Return the state of an operator; raise as `godwit.read_state` does."""
        if which not in self._opened:
            self._opened[which] = _OpenedState(self, *which)
        return self._opened[which]

    def rows_of(self, view: StateReader, chain: int) -> pa.RecordBatch:
        """Return the rows of a key group, without its number."""
        key = (view.state.operator, view.state.state, chain)
        if (rows := self._shown.get(key)) is not None:
            self._shown.move_to_end(key)
            return rows
        batch = view.read(view.chains[chain], self._blocks)
        fields = list(view.schema)[1:]
        rows = self._shown[key] = pa.RecordBatch.from_arrays(
            batch.columns[1:], schema=pa.schema(fields)
        )
        self._bytes += rows.nbytes
        while self._bytes > _SHOWN_BYTES and len(self._shown) > 1:
            self._bytes -= self._shown.popitem(last=False)[1].nbytes
        return rows


class _OpenedState:
    """State of one operator at one epoch."""

    def __init__(self, epoch: _Epoch, operator: str, state: str | None) -> None:
        self._epoch, log = epoch, epoch.log
        self._view = view = view_of(log, operator, None, state)
        described = log.version(log.chains.flow).operator(operator)
        assert described is not None, "the view belongs to that operator"
        names = [name for name, _ in described.keys]
        fields = [view.schema.field(n) for n in visible_names(names) if n != PART]
        self.keys = AskedKeys(pa.schema(fields), repr(operator))
        # Parts of one key are in key groups of their own.
        self._scattered = view.in_parts or PART in names
        self._partition_by = described.partition_by

    def get_many(self, keys: Sequence[Any]) -> pa.Table:
        """Return the entries of keys, each once."""
        requested_keys = canonical_keys(one_batch(self.keys.table(keys)))
        key_groups = (
            None
            if self._scattered or not len(self.keys.schema)
            else self._key_groups(requested_keys)
        )
        return self._table(
            batch.filter(
                pa.array(is_among(batch.select(requested_keys.schema.names), requested_keys))
            )
            if len(self.keys.schema)
            else batch
            for batch in self._batches(key_groups)
        )

    def scan(self, prefix: Any, limit: int | None) -> pa.Table:
        """Return at most `limit` entries whose keys begin with values."""
        values = self.keys.check_scan(prefix, limit)

        def chosen() -> Iterator[pa.RecordBatch]:
            """Yield the entries, until there are enough."""
            left = limit
            for batch in self._batches(None):
                rows = self.keys.begin_with(batch, values)
                yield rows if left is None else rows.slice(0, left)
                if left is not None and (left := left - rows.num_rows) <= 0:
                    return

        return self._table(chosen())

    def _key_groups(self, keys: pa.RecordBatch) -> set[int]:
        """Return the key groups of keys."""
        count = self._epoch.log.chains.num_key_groups
        by = self._partition_by
        hashes = hash_placed(keys, by, count) if by else hash_keys(keys)
        return set(np.unique(key_groups_of(hashes, count)).tolist())

    def _batches(self, wanted: set[int] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of key groups; ``None``: of all."""
        for number, chain in enumerate(self._view.chains):
            if wanted is None or chain.key_group in wanted:
                yield self._epoch.rows_of(self._view, number)

    def _table(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return batches as an answer, with its epoch in the metadata."""
        schema = pa.schema(list(self._view.schema)[1:])
        table = pa.Table.from_batches(batches, schema)
        return table.replace_schema_metadata({EPOCH: str(self._epoch.log.latest_epoch)})
