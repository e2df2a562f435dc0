"""Named states: their layout in entries, and their cells in one lane and epoch.

No entry of a state is read until the function accesses the state.  Then entries are looked up, and
only those that are accessed are decoded.  One look-up costs as much as a hundred, so the entries of
the next keys are read ahead (`LookAhead`).  At the end of the epoch the accessed entries are
encoded, and those that differ from the stored ones are written.

Invariant: the changes of a state in an epoch depend on the state before and on the function, not on
prefetched entries.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, check_compatible, columns_of
from godwit.columns.arrays import blob_bytes, boundaries_of, values_of
from godwit.columns.python_values import Columns, KeysOfRows
from godwit.library.states.type_changes import upgrade_between
from godwit.model.errors import StateEncodingError
from godwit.model.naming import RESERVED_PREFIX
from godwit.store.changes import StateRows
from godwit.store.columns import StateSchema
from godwit.time.grid import END
from godwit.values.checks import UnencodableError, unreadable_remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.operators.failed_calls import FailedCalls
    from godwit.values.codec import StateCodec

Expired: TypeAlias = "Sequence[tuple[int, tuple[Any, ...]]]"
"""Expired entries: number of the key, and the columns that identify an entry of a key."""
PAGE: Final = f"{RESERVED_PREFIX}_page"
EXPIRES: Final = "expires"
_LEAST_AHEAD: Final = 16
_MOST_AHEAD: Final = 8192
_MOST_BYTES: Final = 16 << 20


class StoredState:
    """Layout of one named state in entries of a table of its own. Picklable."""

    def __init__(
        self,
        *,
        cells: Callable[..., Cells],  # the kind of state
        operator: str,
        name: str,
        keys: pa.Schema,  # of the operator
        apart: Sequence[pa.Field],  # columns that tell the entries of a key apart
        columns: Sequence[pa.Field],  # state columns besides the encoded value and the expiry
        codec: StateCodec,
        ttl_us: int | None,
        upgrade: Callable[[Any], Any] | None,  # from values of an earlier type
    ) -> None:
        self.operator, self.name, self.codec, self.ttl_us = operator, name, codec, ttl_us
        self.cells, self.num_keys = cells, len(keys)
        expires = [] if ttl_us is None else [pa.field(EXPIRES, pa.int64())]
        self.schema = StateSchema(
            keys=pa.schema([*keys, *apart]),
            values=pa.schema([pa.field("state", pa.large_binary()), *columns, *expires]),
        )
        self._upgrade = upgrade

    @property
    def expires_at(self) -> int | None:
        """Position of the state column with expiry times; ``None`` if there is none."""
        return None if self.ttl_us is None else len(self.schema.values) - 1

    def describe(self) -> StateDescription:
        """Describe the schema of the state for the checkpoint."""
        return StateDescription(
            columns=columns_of(self.schema.values),
            codec=self.codec.name,
            type=self.codec.describe(),
            entries=columns_of(list(self.schema.keys)[self.num_keys :]),
        )

    def check_stored(self, stored: StateDescription) -> None:
        """Refuse a stored state of another kind; the error lists all differences."""
        check_compatible(
            f"state {self.name!r} of operator {self.operator!r}",
            stored,
            self.describe(),
            problems=["it was stored with timers"] if "timers" in dict(stored.columns) else (),
            remedy=(
                "Declare this state under a new name, under which it starts empty, and keep the "
                "old declaration."
            ),
            operator=self.operator,
            state=self.name,
        )

    def values_from(self, written: WrittenState) -> StateUpgrade | None:
        """Return the upgrade of stored values to the declared type; ``None`` if none is needed."""
        return upgrade_between(
            f"{self.operator}/{self.name}", written, self.describe(), self.codec, self._upgrade
        )

    def initial_entries(
        self,
        keys: pa.RecordBatch,
        tuples: list[tuple[Any, ...]],
        values: Sequence[Any],
        expiry_times: Sequence[Sequence[int]],
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the entries of lists or maps that a flow begins with.

        `keys`, `tuples`: key of each value. `expiry_times`: of its elements or items; where empty,
        a time-to-live begins now.
        """
        count = len(tuples)
        lane = LaneKeys(
            keys=keys,
            tuples=tuples,
            hashes=np.zeros(count, np.int64),
            key_groups=np.zeros(count, np.int32),
            rows=Columns(keys.slice(0, 0), pa.schema([]), [], KeysOfRows([], [], [0])),
            starts=[0] * (count + 1),
            clock=time.time_ns() // 1000,
        )
        cells = self.cells(self, lane, _NoEntries(self.schema.values), ())
        for key, (value, own) in enumerate(zip(values, expiry_times, strict=True)):
            cells.fill(key, value, own)
        entries, _ = cells.written().entries(lane)
        return entries.keys, entries.values

    def encoded(self, values: Sequence[Any], whose: Callable[[int], str]) -> list[bytes]:
        """Encode values to bytes; raise `StateEncodingError` if one fails.

        `whose`: returns, as text for errors, the key (and item) of value number i.
        """
        try:
            return self.codec.encode(values)
        except UnencodableError as error:
            raise StateEncodingError(
                f"Operator {self.operator!r} cannot write its state {self.name!r} of "
                f"{whose(error.index)} without loss: {error}.",
                remedy="Keep values of the declared type in it, or change the declaration.",
                operator=self.operator,
                state=self.name,
            ) from error

    def decoded(
        self, blobs: Sequence[bytes], whose: Callable[[int], tuple[tuple[Any, ...], str]]
    ) -> list[Any]:
        """Decode values from bytes; raise `StateEncodingError` if one fails.

        `whose`: returns, for errors, the key of value number i, and its item as text.
        """
        try:
            return self.codec.decode([memoryview(blob) for blob in blobs])
        except UnencodableError as error:
            key, where = whose(error.index)
            raise StateEncodingError(
                f"Operator {self.operator!r} cannot read its state {self.name!r} of key {key!r}"
                f"{where}: {error}.",
                remedy=unreadable_remedy(self.operator, key, "the state"),
                operator=self.operator,
                key=key,
                state=self.name,
            ) from error


def upgrade_each(upgrade: Callable[[Any], Any], elements: Iterable[Any]) -> list[Any]:
    """Upgrade every element of a list's or map's page by the user's function."""
    return [upgrade(element) for element in elements]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneKeys:
    """Keys of one lane and epoch, in the order of the calls."""

    # keys, tuples: G keys, as columns and as Python values
    keys: pa.RecordBatch
    tuples: list[tuple[Any, ...]]
    # hashes, key_groups: shape ``(G,)``; key groups ascend
    hashes: npt.NDArray[np.int64]
    key_groups: npt.NDArray[np.int32]
    rows: Columns  # the epoch's rows, ordered by key
    starts: list[int]  # G + 1 numbers: where the rows of each key begin, and the end
    clock: int  # the driver's clock in microseconds
    failed: FailedCalls | None = None  # ``None``: a failed call stops the epoch


class LookAhead:
    """Adaptive number of keys to read ahead: more while they are used, fewer otherwise."""

    __slots__ = ("_count", "_most", "_size", "_used")

    def __init__(self, count: int) -> None:
        self._count, self._size, self._used, self._most = count, 0, 0, _MOST_AHEAD

    def record_use(self) -> None:
        """Count a key whose state was read ahead and then used."""
        self._used += 1

    def keys(self, first: int) -> range:
        """Return the numbers of the keys to read together, from the requested key on."""
        grows = 2 * self._used >= self._size
        size = max(self._size * 8 if grows else self._size // 8, _LEAST_AHEAD)
        self._size, self._used = max(min(size, self._most), 1), 0
        return range(first, min(first + self._size, self._count))

    def record_read(self, size_bytes: int) -> None:
        """Record the bytes of a read; fewer keys are read together if their states are large."""
        if size_bytes > _MOST_BYTES:
            self._most = max(self._size * _MOST_BYTES // size_bytes, 1)


class Looked:
    """Result of a look-up: which entries exist, and their columns, decoded on demand."""

    __slots__ = ("_blobs", "_values", "known")

    def __init__(self, known: npt.NDArray[np.bool_], values: pa.RecordBatch) -> None:
        self.known: list[bool] = known.tolist()
        self._values = values
        self._blobs: dict[int, tuple[list[int], memoryview]] = {}

    def blob(self, column: int, row: int) -> bytes:
        """Return the bytes in column number `column` of entry number `row`."""
        blobs = self._blobs.get(column)
        if blobs is None:
            array = self._values.column(column)
            if array.null_count:
                array = array.fill_null(b"")
            blobs = self._blobs[column] = boundaries_of(array).tolist(), blob_bytes(array).data
        edges, data = blobs
        return bytes(data[edges[row] : edges[row + 1]])

    def expiry_times(self, column: int | None) -> list[int]:
        """Return the expiry time of each entry, in column number `column`; ``None``: all `END`."""
        if column is None:
            return [END] * len(self.known)
        expiry_times: list[int] = values_of(self._values.column(column)).tolist()
        return expiry_times

    @property
    def nbytes(self) -> int:
        """Bytes that were read."""
        return int(self._values.nbytes)


@dataclass(slots=True, kw_only=True)
class Written:
    """Changes of one state in one epoch."""

    schema: StateSchema
    num_keys: int
    groups: list[int] = field(default_factory=list)
    apart: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[tuple[Any, ...] | None] = field(default_factory=list)

    def put(self, group: int, apart: tuple[Any, ...], *values: Any) -> None:
        """Record an entry to write, with the state columns `values`, for key number `group`.

        `apart`: the columns that tell entries of one key apart, such as the page of a list.
        """
        self.groups.append(group)
        self.apart.append(apart)
        self.values.append(values)

    def remove(self, group: int, apart: tuple[Any, ...]) -> None:
        """Record the deletion of an entry of key number `group`; `apart`: see `put`."""
        self.groups.append(group)
        self.apart.append(apart)
        self.values.append(None)

    def entries(self, lane: LaneKeys) -> tuple[StateRows, npt.NDArray[np.int32]]:
        """Return the entries to write, ordered by key group, and the key group of each."""
        null_values = tuple(
            b"" if pa.types.is_large_binary(field.type) else 0 for field in self.schema.values
        )
        removed = np.fromiter((values is None for values in self.values), np.bool_)
        rows = [null_values if values is None else values for values in self.values]
        groups = np.array(self.groups, np.int64)
        order = np.argsort(groups, kind="stable")
        indices, groups = pa.array(order), groups[order]
        key_columns = lane.keys.take(pa.array(groups)).columns
        item_columns = _to_columns(self.apart, list(self.schema.keys)[self.num_keys :])
        values = _to_columns(rows, list(self.schema.values))
        entries = StateRows(
            hashes=lane.hashes[groups],
            keys=pa.RecordBatch.from_arrays(
                [*key_columns, *(column.take(indices) for column in item_columns)],
                schema=self.schema.keys,
            ),
            values=pa.RecordBatch.from_arrays(
                [column.take(indices) for column in values], schema=self.schema.values
            ),
            removed=removed[order] if removed.any() else None,
        )
        return entries, lane.key_groups[groups]


def _to_columns(rows: Sequence[tuple[Any, ...]], fields: list[pa.Field]) -> list[pa.Array]:
    """Convert tuples of values to Arrow columns of the given fields."""
    if not rows:
        return [pa.array([], field.type) for field in fields]
    columns = zip(*rows, strict=True)
    return [pa.array(values, field.type) for values, field in zip(columns, fields, strict=False)]


class Entries(Protocol):
    """Look-up of the entries of one state by identity; see `StateView.find`."""

    def find(
        self, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Look up entries by key columns; return a mask of keys found, and their state columns."""


@dataclass(frozen=True, slots=True)
class _NoEntries:
    """Look-up in a state that is empty."""

    values: pa.Schema

    def find(
        self,
        keys: pa.RecordBatch,
        key_groups: npt.NDArray[np.integer],  # noqa: ARG002
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Return that no key has an entry."""
        count = keys.num_rows
        none = [pa.nulls(count, field.type) for field in self.values]
        return np.zeros(count, np.bool_), pa.RecordBatch.from_arrays(none, schema=self.values)


class Cells(ABC):
    """One named state for all keys of a lane in one epoch."""

    handle: ClassVar[Any]  # the class that functions read and write the state of a key by

    def __init__(
        self,
        stored: StoredState,
        lane: LaneKeys,
        state: Entries,
        expired: Expired,
    ) -> None:
        self.stored, self.lane, self._state, self._expired = stored, lane, state, expired
        # Expiry of the entries that are written in this epoch.
        self._expiry_us = END if stored.ttl_us is None else lane.clock + stored.ttl_us
        self.cached: dict[int, Any] = {}  # key number → its state, as read and as changed
        self.start(len(lane.tuples))
        self.sweep(expired)

    @abstractmethod
    def start(self, num_keys: int) -> None:
        """Create the caches for an epoch of `num_keys` keys; nothing is read yet."""

    @abstractmethod
    def drop(self, group: int) -> None:
        """Delete the state of key number `group`."""

    def fill(self, group: int, value: Any, expiry_times: Sequence[int]) -> None:
        """Set the whole state of key number `group`, which has none yet: a list or a map.

        `expiry_times`: of each element or item; empty: the usual time from now.
        """
        raise NotImplementedError

    def reset(self, group: int) -> None:
        """Reset the state of key number `group` to its value before the epoch."""
        self.cached.pop(group, None)
        self.sweep([entry for entry in self._expired if entry[0] == group])

    @abstractmethod
    def sweep(self, expired: Expired) -> None:
        """Mark expired entries for deletion, so that functions no longer see them."""

    @abstractmethod
    def written(self) -> Written:
        """Return the entries that the epoch changed or deleted."""

    def new_written(self) -> Written:
        """Return an empty record of changes, to which `written` adds entries."""
        return Written(schema=self.stored.schema, num_keys=self.stored.num_keys)

    def look_up(self, key_numbers: npt.NDArray[np.int64], *apart: pa.Array) -> Looked:
        """Look up entries by key number and the columns that identify an entry of a key.

        `apart`: these columns.
        """
        keys = self.lane.keys.take(pa.array(key_numbers))
        batch = pa.RecordBatch.from_arrays([*keys.columns, *apart], schema=self.stored.schema.keys)
        return Looked(*self._state.find(batch, self.lane.key_groups[key_numbers]))

    def key_text(self, group: int) -> str:
        """Return key number `group` as text, for errors."""
        return f"key {self.lane.tuples[group]!r}"


class OfKey:
    """State of one key as its function uses it; raises after the call has returned."""

    __slots__ = ("_cells", "_group", "_require_open")

    def __init__(self, cells: Any, group: int, insist: Callable[[], None]) -> None:
        self._cells, self._group, self._require_open = cells, group, insist

    def clear(self) -> None:
        """Remove the value, or all elements of the list, or all items of the map, of the key.

        Examples
        --------
        >>> def start_anew(key, rows, states):
        ...     states.delays.clear()
        >>> declared, before = {"delays": gw.ListState(int)}, {"delays": [1, 2]}
        >>> gw.testing.process(start_anew, [{"delay": 5}], state=declared, before=before).states
        {'delays': []}
        """
        self._require_open()
        self._cells.drop(self._group)
