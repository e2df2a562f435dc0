"""Named states of one lane in one epoch: what is looked up, what is touched, and what is written.

Nothing of a state is read until the function touches it; then entries are looked up, and only
those that are touched are decoded.  One look-up costs as much as a hundred, so the keys whose turn
is next are looked up along (`LookAhead`).  In the end what was touched is encoded, and what differs
from what was read is written.

Invariant: what an epoch writes of a state depends on what it was and on what the function did, not
on what was looked up along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.columns.arrays import blob_bytes, boundaries_of, values_of
from godwit.operators.windows.grid import END

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from godwit.columns.python_values import Columns
    from godwit.operators.operator import StateView
    from godwit.operators.states.stored import StoredState
    from godwit.store.columns import StateSchema

__all__ = ["Cells", "Expired", "LaneKeys", "LookAhead", "Looked", "Written"]

_LEAST_AHEAD: Final = 16
_MOST_AHEAD: Final = 8192
_MOST_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneKeys:
    """The keys of one lane and epoch, in the order in which the function is called for them."""

    # keys, tuples: G keys, as columns and as Python values
    keys: pa.RecordBatch
    tuples: list[tuple[Any, ...]]
    # hashes, key_groups: shape ``(G,)``; key groups ascend
    hashes: npt.NDArray[np.int64]
    key_groups: npt.NDArray[np.int32]
    rows: Columns  # the epoch's rows, ordered by key
    starts: list[int]  # G + 1 numbers: where the rows of each key begin, and the end
    clock: int  # the driver's clock in microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Entries of one state whose time has come."""

    entries: StateRows  # n of them
    groups: list[int]  # shape ``(n,)``: which of the lane's keys each is of


class LookAhead:
    """How many keys to look up together: more as long as they are wanted, few when they are not.

    Parameters
    ----------
    count
        Number of keys.
    """

    __slots__ = ("_count", "_most", "_size", "_used")

    def __init__(self, count: int) -> None:
        self._count, self._size, self._used, self._most = count, 0, 0, _MOST_AHEAD

    def use(self) -> None:
        """Take note that a key wanted what was looked up."""
        self._used += 1

    def keys(self, first: int) -> range:
        """Keys to look up, from the one that is wanted now."""
        grows = 2 * self._used >= self._size
        size = max(self._size * 8 if grows else self._size // 8, _LEAST_AHEAD)
        self._size, self._used = max(min(size, self._most), 1), 0
        return range(first, min(first + self._size, self._count))

    def took(self, size_bytes: int) -> None:
        """Take note of how much was read, so that few large states are looked up together."""
        if size_bytes > _MOST_BYTES:
            self._most = max(self._size * _MOST_BYTES // size_bytes, 1)


class Looked:
    """Entries that were looked up, taken apart only where they are wanted.

    Parameters
    ----------
    known
        Shape ``(n,)``: which of them are there.
    values
        n rows of state columns.
    """

    __slots__ = ("_blobs", "_values", "known")

    def __init__(self, known: npt.NDArray[np.bool_], values: pa.RecordBatch) -> None:
        self.known: list[bool] = known.tolist()
        self._values = values
        self._blobs: dict[int, tuple[list[int], memoryview]] = {}

    def blob(self, column: int, row: int) -> bytes:
        """Bytes of one of them in a column."""
        found = self._blobs.get(column)
        if found is None:
            array = self._values.column(column)
            if array.null_count:
                array = array.fill_null(b"")
            found = boundaries_of(array).tolist(), blob_bytes(array).data
            self._blobs[column] = found
        edges, data = found
        return bytes(data[edges[row] : edges[row + 1]])

    def moments(self, column: int | None) -> list[int]:
        """Moments in a column; `END` of all if there is no such column."""
        if column is None:
            return [END] * len(self.known)
        moments: list[int] = values_of(self._values.column(column)).tolist()
        return moments

    @property
    def nbytes(self) -> int:
        """How much was read."""
        return int(self._values.nbytes)


@dataclass(slots=True, kw_only=True)
class Written:
    """Entries of one state that an epoch changes, as they are found."""

    schema: StateSchema
    num_keys: int
    groups: list[int] = field(default_factory=list)
    apart: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[tuple[Any, ...] | None] = field(default_factory=list)

    def put(self, group: int, apart: tuple[Any, ...], *values: Any) -> None:
        """Write an entry."""
        self.groups.append(group)
        self.apart.append(apart)
        self.values.append(values)

    def remove(self, group: int, apart: tuple[Any, ...]) -> None:
        """Remove an entry."""
        self.groups.append(group)
        self.apart.append(apart)
        self.values.append(None)

    def entries(self, lane: LaneKeys) -> tuple[StateRows, npt.NDArray[np.int32]]:
        """Give them in the order of key groups, and the key group of each."""
        blank = tuple(b"" if pa.types.is_large_binary(f.type) else 0 for f in self.schema.values)
        removed = np.fromiter((values is None for values in self.values), np.bool_)
        given = [blank if values is None else values for values in self.values]
        groups = np.array(self.groups, np.int64)
        order = np.argsort(groups, kind="stable")
        taken, groups = pa.array(order), groups[order]
        own = lane.keys.take(pa.array(groups)).columns
        apart = _columns(self.apart, list(self.schema.keys)[self.num_keys :])
        values = _columns(given, list(self.schema.values))
        rows = StateRows(
            hashes=lane.hashes[groups],
            keys=pa.RecordBatch.from_arrays(
                [*own, *(column.take(taken) for column in apart)], schema=self.schema.keys
            ),
            values=pa.RecordBatch.from_arrays(
                [column.take(taken) for column in values], schema=self.schema.values
            ),
            removed=removed[order] if removed.any() else None,
        )
        return rows, lane.key_groups[groups]


def _columns(rows: Sequence[tuple[Any, ...]], fields: list[pa.Field]) -> list[pa.Array]:
    if not rows:
        return [pa.array([], field.type) for field in fields]
    columns = zip(*rows, strict=True)
    return [pa.array(values, field.type) for values, field in zip(columns, fields, strict=False)]


class Cells(ABC):
    """One named state of the keys of one lane in one epoch.

    Parameters
    ----------
    stored
        The state.
    lane, state
        As of `StoredState.begin`.
    """

    def __init__(self, stored: StoredState, lane: LaneKeys, state: StateView) -> None:
        self.stored, self.lane, self._state = stored, lane, state
        self._again = stored.again(lane.clock)

    @abstractmethod
    def of_key(self, group: int, insist: Callable[[], None]) -> Any:
        """Give the user's function what it reads and writes the state of a key by.

        Parameters
        ----------
        group
            Which key.
        insist
            Raises once the function has returned.
        """

    @abstractmethod
    def forget(self, group: int) -> None:
        """Drop the state of a key."""

    @abstractmethod
    def written(self) -> Written:
        """Give what the epoch changed."""

    def new_written(self) -> Written:
        """Begin to gather what the epoch changed."""
        return Written(schema=self.stored.schema, num_keys=self.stored.num_keys)

    def look_up(self, groups: npt.NDArray[np.int64], *apart: pa.Array) -> Looked:
        """Find entries by key and by what tells them apart."""
        keys = self.lane.keys.take(pa.array(groups))
        batch = pa.RecordBatch.from_arrays([*keys.columns, *apart], schema=self.stored.schema.keys)
        return Looked(*self._state.find(batch, self.lane.key_groups[groups]))

    def key(self, group: int) -> str:
        """Name a key in messages."""
        return f"key {self.lane.tuples[group]!r}"
