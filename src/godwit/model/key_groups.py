"""Key groups: the fixed number of parts that a key space is split into by a stable hash.

A key group is the unit of state, of load statistics, of planning and of migration.  The papers
call it task (1), key group (2, 3), substream (4) and shard (5).

Values by key group are many, so they come as columns: `PerKeyGroup` (an integer for some of them),
`KeyGroupLoad` (their cost), `KeyGroupPairs` (traffic between two components).  Hot keys are found
by the work of single keys, which lanes measure (`KeyWork`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from godwit.model.errors import InvalidPlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEFAULT_NUM_KEY_GROUPS = 256
MAX_NUM_KEY_GROUPS = 32_768


def key_groups_of(hashes: npt.NDArray[np.int64], num_key_groups: int) -> npt.NDArray[np.int32]:
    """Return the key group of each hash: ``pmod(hash, num_key_groups)``, as Spark computes it.

    Examples
    --------
    >>> key_groups_of(np.array([5, -1]), 4).tolist()
    [1, 3]
    """
    if num_key_groups & (num_key_groups - 1) == 0:
        return (hashes & (num_key_groups - 1)).astype(np.int32)
    return np.mod(hashes, num_key_groups).astype(np.int32)


def key_group_mask(
    key_groups: Iterable[int] | npt.NDArray[np.integer], num_key_groups: int
) -> npt.NDArray[np.bool_]:
    """Return a mask of shape ``(num_key_groups,)`` that is true for these key groups."""
    if not isinstance(key_groups, np.ndarray):
        key_groups = np.fromiter(key_groups, np.int64)
    if len(key_groups) > num_key_groups:  # faster than to set a bit for each
        return np.bincount(key_groups, minlength=num_key_groups) > 0
    mask = np.zeros(num_key_groups, np.bool_)
    mask[key_groups] = True
    return mask


class PerKeyGroup(Mapping[int, int]):
    """Immutable map from key groups to integers; equals the same dict.

    A dict takes 0.1 µs a key group wherever it is made, sent, read or merged, which an epoch does
    several times for every operator; columns take a hundredth.

    `key_groups`: shape ``(n,)``: distinct, ascending.
    `numbers`: shape ``(n,)``.

    Examples
    --------
    >>> versions = PerKeyGroup(np.array([0, 3]), np.array([7, 9]))
    >>> versions[3], 1 in versions, versions == {0: 7, 3: 9}
    (9, False, True)
    """

    __slots__ = ("key_groups", "numbers")

    def __init__(
        self, key_groups: npt.NDArray[np.integer], numbers: npt.NDArray[np.integer]
    ) -> None:
        self.key_groups: npt.NDArray[np.int64] = key_groups.astype(np.int64, copy=False)
        self.numbers: npt.NDArray[np.int64] = numbers.astype(np.int64, copy=False)

    @classmethod
    def of(cls, mapping: Mapping[int, int]) -> PerKeyGroup:
        """Return a mapping of key groups to integers as columns."""
        if isinstance(mapping, PerKeyGroup):
            return mapping
        key_groups = np.fromiter(mapping.keys(), np.int64, len(mapping))
        numbers = np.fromiter(mapping.values(), np.int64, len(mapping))
        order = np.argsort(key_groups)
        return cls(key_groups[order], numbers[order])

    @classmethod
    def joined(cls, parts: Iterable[Mapping[int, int]]) -> PerKeyGroup:
        """Merge several mappings of key groups to integers; the later ones win."""
        columns = [cls.of(part) for part in parts]
        if len(columns) == 1:
            return columns[0]
        if not columns:
            return cls.of({})
        key_groups = np.concatenate([part.key_groups for part in columns])
        numbers = np.concatenate([part.numbers for part in columns])
        order = np.argsort(key_groups, kind="stable")
        key_groups, numbers = key_groups[order], numbers[order]
        last = np.append(key_groups[1:] != key_groups[:-1], np.ones(min(len(order), 1), np.bool_))
        return cls(key_groups[last], numbers[last])

    def __getitem__(self, key_group: int) -> int:
        index = int(np.searchsorted(self.key_groups, key_group))
        if index == len(self.key_groups) or self.key_groups[index] != key_group:
            raise KeyError(key_group)
        return int(self.numbers[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self.key_groups.tolist())

    def __len__(self) -> int:
        return len(self.key_groups)

    def __repr__(self) -> str:
        return f"PerKeyGroup({dict(self)})"

    def __reduce__(
        self,
    ) -> tuple[Callable[..., PerKeyGroup], tuple[bytes]]:
        return PerKeyGroup.unpacked, (self.packed(),)

    def packed(self) -> bytes:
        """Return both columns as bytes, for pickling."""
        return np.concatenate((self.key_groups, self.numbers)).tobytes()

    @classmethod
    def unpacked(cls, packed: bytes) -> PerKeyGroup:
        """Restore a map from the bytes that `packed` returned."""
        columns = np.frombuffer(packed, np.int64)
        half = len(columns) // 2
        return cls(columns[:half], columns[half:])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyGroupLoad:
    """Load of some key groups in one epoch or several, as columns of shape ``(n,)``."""

    key_groups: npt.NDArray[np.int64]  # those that were touched, ascending
    rows: npt.NDArray[np.int64]  # rows (or partial states) that came in
    keys: npt.NDArray[np.int64]  # distinct keys among them
    # CPU time, measured where it is spent: what the operator measured for the key group, and its
    # rows' share of what the lane did for all of them at once
    cpu_ms: npt.NDArray[np.float64]
    # Time that lanes were busy with each: CPU time and whatever they waited for meanwhile (a call,
    # a disk, a core). Where it is not measured CPU time stands for it.
    busy_ms: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    # bytes of state: snapshot and later changelog, which an empty copy reads from the checkpoint
    # to reach the committed version; empty if not measured
    state_bytes: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        if not len(self.busy_ms):
            object.__setattr__(self, "busy_ms", self.cpu_ms)

    def __reduce__(self) -> tuple[Callable[..., KeyGroupLoad], tuple[bytes]]:
        return KeyGroupLoad.unpacked, (self.packed(),)

    def packed(self) -> bytes:
        """Return all columns as bytes, for pickling.

        One is sent by every lane and operator in every epoch: pickling six arrays takes six times
        as long.
        """
        times = np.concatenate((self.cpu_ms, self.busy_ms)).view(np.int64)
        size = np.array([len(self.key_groups)])
        whole = (size, times, self.key_groups, self.rows, self.keys, self.state_bytes)
        return np.concatenate(whole).astype(np.int64, copy=False).tobytes()

    @classmethod
    def unpacked(cls, packed: bytes) -> KeyGroupLoad:
        """Restore the loads from the bytes that `packed` returned."""
        columns = np.frombuffer(packed, np.int64)
        size = int(columns[0])
        times, whole = columns[1 : 1 + 2 * size].view(np.float64), columns[1 + 2 * size :]
        return cls(
            key_groups=whole[:size],
            rows=whole[size : 2 * size],
            keys=whole[2 * size : 3 * size],
            state_bytes=whole[3 * size :],
            cpu_ms=times[:size],
            busy_ms=times[size:],
        )

    @property
    def busy_s(self) -> npt.NDArray[np.float64]:
        """Seconds that lanes were busy with each key group."""
        return self.busy_ms / 1e3

    @classmethod
    def total(cls, loads: Sequence[KeyGroupLoad]) -> KeyGroupLoad:
        """Sum loads; bytes of state are those of the last load that has them."""
        loaded = _concatenate_integers([load.key_groups for load in loads])
        size = 1 + int(loaded.max(initial=-1))
        is_touched = np.zeros(size, np.bool_)
        is_touched[loaded] = True

        def summed(name: str) -> npt.NDArray[np.float64]:
            values = _concatenate_integers([getattr(load, name) for load in loads])
            return np.bincount(loaded, values, size).astype(np.float64, copy=False)

        rows, keys = summed("rows").astype(np.int64), summed("keys").astype(np.int64)
        cpu_ms, busy_ms = summed("cpu_ms"), summed("busy_ms")
        state_bytes = np.zeros(size, np.int64)
        sized = [load for load in loads if len(load.state_bytes)]
        state_bytes[_concatenate_integers([load.key_groups for load in sized])] = (
            _concatenate_integers([load.state_bytes for load in sized])
        )
        key_groups = np.flatnonzero(is_touched)
        return cls(
            key_groups=key_groups,
            rows=rows[key_groups],
            keys=keys[key_groups],
            cpu_ms=cpu_ms[key_groups],
            busy_ms=busy_ms[key_groups],
            state_bytes=state_bytes[key_groups],
        )


def _concatenate_integers(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenate arrays; without any, return an empty one of integers."""
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


NO_LOAD: Final = KeyGroupLoad.total(())
"""No key group was touched."""


def runs_of(value_of: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return values by key group as runs: first key group and value of each.

    An assignment of paper 1 (§3.1, §4.1) gives every executor one range of key groups: a handful of
    cuts say what 32,768 entries would.

    Examples
    --------
    >>> starts, values = runs_of(np.array([2, 2, 0, 0, 0, 1]))
    >>> starts.tolist(), values.tolist(), from_runs(starts, values, 6).tolist()
    ([0, 2, 5], [2, 0, 1], [2, 2, 0, 0, 0, 1])
    """
    changes = np.concatenate(([True], value_of[1:] != value_of[:-1]))
    starts = np.flatnonzero(changes).astype(np.int32)
    return starts, value_of[starts]


def from_runs(
    starts: npt.NDArray[np.int32], values: npt.NDArray[Any], num_key_groups: int
) -> npt.NDArray[Any]:
    """Return the value of every key group, shape ``(num_key_groups,)``; see `runs_of`."""
    return np.repeat(values, np.diff(starts, append=num_key_groups))


def pack(value_of: npt.NDArray[np.int32]) -> list[int] | dict[str, list[int]]:
    """Return an array with a value per key group as JSON: as runs if these are shorter."""
    starts, values = runs_of(value_of)
    if 4 * len(starts) > len(value_of):
        plain: list[int] = value_of.tolist()
        return plain
    return {"starts": starts.tolist(), "values": values.tolist()}


def unpack(packed: object, num_key_groups: int) -> npt.NDArray[np.int32]:
    """Return the array that `pack` encoded as JSON, shape ``(num_key_groups,)``.

    Raises `InvalidPlanError` if it is not valid for this number of key groups.
    """
    if not isinstance(packed, Mapping):
        return np.asarray(packed, np.int32)
    if not 1 <= num_key_groups <= MAX_NUM_KEY_GROUPS:
        raise InvalidPlanError(
            f"An assignment cannot have {num_key_groups} key groups.",
            remedy=f"There are 1 to {MAX_NUM_KEY_GROUPS}.",
        )
    starts, values = (np.array(packed.get(name, ()), np.int32) for name in ("starts", "values"))
    covered = (
        starts.ndim == 1
        and starts.shape == values.shape
        and len(starts) > 0
        and starts[0] == 0
        and bool((np.diff(starts) > 0).all())
        and int(starts[-1]) < num_key_groups
    )
    if not covered:
        raise InvalidPlanError(
            f"Intervals that start at {starts.tolist()[:10]} do not cover "
            f"{num_key_groups} key groups.",
            remedy="Begin at 0 and ascend; give one value for each.",
        )
    return from_runs(starts, values, num_key_groups)


OTHERS: Final = -1
"""Stands for all targets that have no entry of their own."""

_SHARE: Final = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyGroupPairs:
    """Rows from key groups of one component to those of another; rare pairs are merged.

    Between two components of m key groups there may be m² pairs, and where an operator sends to all
    key groups alike, which is the rule, none of them says anything.  What a planner can use is a
    key group that sends most of its rows to a few.  Invariant: of each sender at most eight pairs
    are kept, those that get an eighth of its rows or more; what it sends to all others is one
    number.  Sums over lanes and epochs lose nothing but which of the others it was.

    Shape ``(n,)`` each, ordered by source and target, each pair once.
    """

    source: npt.NDArray[np.int64]  # key group that sends
    target: npt.NDArray[np.int64]  # key group that receives, or `OTHERS`
    rows: npt.NDArray[np.float64]  # rows, or an estimate of them

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def counted(
        cls,
        source: npt.NDArray[np.integer],
        target: npt.NDArray[np.integer],
        rows: npt.NDArray[np.float64] | float = 1.0,
    ) -> KeyGroupPairs:
        """Return the number of rows of each pair of sending and receiving key group.

        Rare pairs are merged. `source`, `target`: shape ``(k,)``: of each row, or of entries to add
        up. `rows`: shape ``(k,)``: number of rows of each entry.
        """
        if not len(source):
            return NO_PAIRS
        first, width = int(target.min()), int(target.max()) - int(target.min()) + 1
        codes = source.astype(np.int64) * width + (target.astype(np.int64) - first)
        distinct, inverse = np.unique(codes, return_inverse=True)
        weights = np.broadcast_to(np.asarray(rows, np.float64), codes.shape)
        sums = np.bincount(inverse, weights).astype(np.float64)
        return _merge_rare(
            cls(source=distinct // width, target=distinct % width + first, rows=sums)
        )

    @classmethod
    def total(cls, parts: Sequence[KeyGroupPairs]) -> KeyGroupPairs:
        """Return the sums of the pairs of several lanes or epochs."""
        if not parts:
            return NO_PAIRS
        return cls.counted(
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.target for part in parts]),
            np.concatenate([part.rows for part in parts]),
        )

    def times(self, factor: float) -> KeyGroupPairs:
        """Return the same pairs with the numbers of rows multiplied by `factor`."""
        return KeyGroupPairs(source=self.source, target=self.target, rows=self.rows * factor)

    @property
    def known(self) -> KeyGroupPairs:
        """The pairs whose receiving key group is known (not `OTHERS`)."""
        is_known = self.target != OTHERS
        return KeyGroupPairs(
            source=self.source[is_known], target=self.target[is_known], rows=self.rows[is_known]
        )


def _merge_rare(pairs: KeyGroupPairs) -> KeyGroupPairs:
    """Return the pairs with those below an eighth of a sender's rows merged into one, `OTHERS`."""
    sent = np.bincount(pairs.source, pairs.rows)
    is_rare = (pairs.rows < sent[pairs.source] * _SHARE) & (pairs.target != OTHERS)
    if not is_rare.any():
        return pairs
    is_merged = is_rare | (pairs.target == OTHERS)
    merged_rows = np.bincount(pairs.source[is_merged], pairs.rows[is_merged])
    sources = np.unique(pairs.source[is_merged])
    source = np.concatenate([pairs.source[~is_merged], sources])
    target = np.concatenate([pairs.target[~is_merged], np.full(len(sources), OTHERS, np.int64)])
    rows = np.concatenate([pairs.rows[~is_merged], merged_rows[sources]])
    order = np.lexsort((target, source))
    return KeyGroupPairs(source=source[order], target=target[order], rows=rows[order])


NO_PAIRS: Final = KeyGroupPairs(
    source=np.empty(0, np.int64), target=np.empty(0, np.int64), rows=np.empty(0)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWork:
    """Work for one key in an epoch, all its parts together."""

    hash: int  # of its key columns
    key: str  # its values as JSON
    # left, right: rows that arrived and were stored, and rows of state that were read for them,
    # summed over the key's parts.  Of operators other than joins: `left` is microseconds.
    left: int
    right: int
    pairs: int

    @property
    def total(self) -> int:
        """Work of the key: number of rows and pairs of a join, else microseconds."""
        return self.left + self.right + self.pairs

    def __add__(self, other: KeyWork) -> KeyWork:
        """Add the work of another part, lane or epoch."""
        return replace(
            self,
            left=self.left + other.left,
            right=self.right + other.right,
            pairs=self.pairs + other.pairs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWork:
    """Work of an operator in a lane or an epoch, of which keys have most."""

    total: int = 0  # rows and pairs, or microseconds, of all keys
    keys: tuple[KeyWork, ...] = ()  # keys with much of it, and those that are spread

    def __add__(self, other: OperatorWork) -> OperatorWork:
        """Add the work of another lane or epoch."""
        return self.summed((self, other))

    @classmethod
    def summed(cls, works: Sequence[OperatorWork]) -> OperatorWork:
        """Return the sum of the work of several lanes or epochs, key by key."""
        return cls(
            total=sum(work.total for work in works),
            keys=summed(key for work in works for key in work.keys),
        )


def summed(works: Iterable[KeyWork]) -> tuple[KeyWork, ...]:
    """Return the sum of the work of equal keys, one entry per key, the most work first."""
    work_of_key: dict[int, KeyWork] = {}
    for work in works:
        work_of_key[work.hash] = work_of_key[work.hash] + work if work.hash in work_of_key else work
    return tuple(sorted(work_of_key.values(), key=lambda work: (-work.total, work.hash)))
