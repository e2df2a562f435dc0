"""Hot keys of an operator, spread over several lanes by a grid of parts.

All rows of a key go to one lane, which a hot key can overload.  So a hot key may have a *grid* of
parts, each with a key group, and hence a lane, of its own.  An operator declares how many parts a
key may have (`KeyedOperator.max_parts`), assigns rows to parts (`KeyedOperator.arrange`), and says
what happens to parts that a key leaves.  The instruction and the commit record name the spread
keys.  A part is one more hashed column, so the rest of the engine does not know of parts.

*If states can be merged* (`godwit.library.parts`), the grid has one column, rows are
divided among its rows, and the states of parts that a key leaves are merged at once.

*In a join*, a row of the left goes to all parts in one row of the grid, chosen by a hash of its
values; a row of the right goes to all parts in one column.  Row and column cross in exactly one
part, so each pair meets exactly once.  With one column, the left is divided and the right copied to
all parts (fragment and replicate), which suits a large side beside a small one; a square copies
both sides, each less often.

*The grid of a join changes without moving state.*  From some epoch on rows are stored in a new
grid, of other parts.  Rows in the former grid stay until the watermark has passed all rows that
they can match; until then new rows also go there, as *probes*, which match stored rows and are not
stored.

Invariant of joins: of two rows that match, the first is stored in one grid.  The second goes to
that grid too, to be stored or as a probe, and no other grid has the first.  So the two meet in one
part, once, whatever epochs, lanes and wait buffers they pass, since a part sees its rows in order.

Source: the fragment-and-replicate join (Epstein, Stonebraker, Wong, 1978) and its grid, the join
matrix (Stamos, Young, 1993; Okcan, Riedewald, "1-Bucket-Theta", 2011), applied to hot keys alone;
changes as in smooth migration, Madsen et al. (Enorm) §4.5: old state ends where it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from godwit.checkpoint.records import Grid, HotKey
from godwit.columns.arrays import mask_of
from godwit.columns.hashing import canonical_keys, hash_int32, hash_keys, is_hashable
from godwit.columns.python_values import python_values
from godwit.model.key_groups import KeyWork, OperatorWork, key_groups_of, summed
from godwit.model.naming import RESERVED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.columns.groups import Groups
    from godwit.model.key_groups import KeyGroupLoad

PART: Final = f"{RESERVED_PREFIX}_part"
"""Column that says which part of its key a row goes to; hashed like a key column."""
MAX_PARTS: Final = 256
"""Parts that a key may have at most."""

IntArray = npt.NDArray[np.int64]


WHOLE: Final = Grid(rows=1, columns=1, parts=(0,))
"""The grid of a key that is not spread."""


def parts_of_rows(grid: Grid, side: int, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """Return the parts of a grid to which rows of a side are sent, shape ``(rows, copies)``.

    `values`: shape ``(rows,)``: hash of each row, which decides its part.
    """
    cells = np.array(grid.parts, np.int32).reshape(grid.rows, grid.columns)
    lines = cells if side == 0 else cells.T
    chosen: npt.NDArray[np.int32] = lines[(values % np.uint64(len(lines))).astype(np.intp)]
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """Keys of one operator that are spread, in one epoch; picklable."""

    keys: Mapping[int, HotKey] = field(default_factory=dict)  # by their hashes

    @classmethod
    def of(cls, *hot_keys: HotKey) -> Spreads:
        """Return these hot keys of one operator, such as those of a commit record."""
        return cls(keys={hot_key.hash: hot_key for hot_key in hot_keys})

    def recorded(self) -> tuple[HotKey, ...]:
        """Return the hot keys as a commit record stores them."""
        return tuple(self.keys[key_hash] for key_hash in sorted(self.keys))

    def grid_of(self, key_hash: int) -> Grid:
        """Return the present division of a key into parts, to which new rows go."""
        known = self.keys.get(key_hash)
        return WHOLE if known is None else known.grid

    def is_changing(self, key_hash: int) -> bool:
        """Return whether parts of a former division of a key still hold rows."""
        known = self.keys.get(key_hash)
        return known is not None and len(known.grids) > 1

    def with_grid(self, key_hash: int, key: str, grid: Grid, retired_at: int) -> Spreads:
        """Return the hot keys with a new grid (division into parts) of one key, if it may change.

        Unchanged as long as a former grid holds rows. `key`: the key as JSON. `retired_at`:
        watermark at which no earlier row of the key can match a new row.
        """
        current = self.grid_of(key_hash)
        if self.is_changing(key_hash) or set(current.parts) & set(grid.parts):
            return self
        changed = HotKey(hash=key_hash, key=key, grids=(replace(current, over=retired_at), grid))
        return Spreads.of(*self.keys.values(), changed)

    def expired_at(self, closed: int) -> Spreads:
        """Return the hot keys without former grids whose rows expired by watermark `closed`."""
        remaining = (
            replace(
                hot_key,
                grids=(
                    *(key_group for key_group in hot_key.grids[:-1] if key_group.over > closed),
                    hot_key.grid,
                ),
            )
            for hot_key in self.keys.values()
        )
        return Spreads.of(*(hot_key for hot_key in remaining if hot_key.grids != (WHOLE,)))

    @property
    def current(self) -> Spreads:
        """Hot keys with the present division into parts only, without former ones."""
        return Spreads.of(*(replace(key, grids=key.grids[-1:]) for key in self.keys.values()))

    @property
    def former_parts(self) -> dict[int, tuple[int, ...]]:
        """Hash of a hot key → its former parts that still hold rows, except 0 (undivided)."""
        left = {
            key_hash: tuple(part for grid in hot_key.grids[:-1] for part in grid.parts if part)
            for key_hash, hot_key in self.keys.items()
        }
        return {key_hash: parts for key_hash, parts in left.items() if parts}

    def former_key_groups(self, num_key_groups: int) -> list[int]:
        """Return the key groups, ascending, of the `former_parts` of all keys."""
        key_groups = [
            key_group_of_part(key_hash, np.array(parts, np.int64), num_key_groups)
            for key_hash, parts in self.former_parts.items()
        ]
        return sorted({int(key_group) for groups in key_groups for key_group in groups})

    def route_rows(
        self, hashes: IntArray, side: int, rows: pa.RecordBatch
    ) -> tuple[IntArray, npt.NDArray[np.int32], npt.NDArray[np.bool_]] | None:
        """Return copies of rows to send: row numbers (ascending), their parts, a mask of probes.

        A probe is only matched in its part, and not stored.

        `hashes`: shape ``(N,)``: hash of each row's key. `side`: side of all rows. `rows`: N rows,
        whose values decide the part of a hot key's rows.

        Returns ``None`` if no key is divided: every row goes to part 0.
        """
        hot_hashes = np.array(sorted(self.keys), np.int64)
        is_hot = np.isin(hashes, hot_hashes)
        if not is_hot.any():
            return None
        other_rows = np.flatnonzero(~is_hot)
        sent_rows, parts = [other_rows], [np.zeros(len(other_rows), np.int32)]
        probes = [np.zeros(len(other_rows), np.bool_)]
        for key_hash in np.unique(hashes[is_hot]).tolist():
            rows_of_key = np.flatnonzero(hashes == key_hash)
            values = _hashes_of_values(rows.take(pa.array(rows_of_key)))
            for grid in (grids := self.keys[key_hash].grids):
                targets = parts_of_rows(grid, side, values)
                sent_rows.append(np.repeat(rows_of_key, targets.shape[1]))
                parts.append(targets.ravel())
                probes.append(np.full(targets.size, grid is not grids[-1]))
        row_numbers = np.concatenate(sent_rows)
        order = np.argsort(row_numbers, kind="stable")
        return row_numbers[order], np.concatenate(parts)[order], np.concatenate(probes)[order]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenSpread:
    """The same grid for all keys, from the start on: the left divided, the right copied."""

    parts: int

    def route_rows(
        self, hashes: IntArray, side: int, rows: pa.RecordBatch
    ) -> tuple[IntArray, npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Divide the rows of every key evenly among all parts; see `Spreads.route_rows`."""
        grid = Grid(rows=self.parts, columns=1, parts=tuple(range(self.parts)))
        values = np.zeros(len(hashes), np.uint64) if side else _hashes_of_values(rows)
        targets = parts_of_rows(grid, side, values)
        row = np.repeat(np.arange(len(hashes)), targets.shape[1])
        return row, targets.ravel(), np.zeros(len(row), np.bool_)


def key_group_of_part(
    key_hash: int, parts: IntArray, num_key_groups: int, *, hashes_whole: bool = True
) -> npt.NDArray[np.int32]:
    """Return the key group of each part of a key.

    `key_hash`: of the key without a part. A row's hash is that of its key columns and, as one more
    column, the number of its part. Without `hashes_whole`, part 0 (the undivided key) is null
    there, which leaves the hash as it is.
    """
    seeds = np.full(len(parts), key_hash, np.int64).view(np.uint64)
    hashes = hash_int32(parts.astype(np.int32), seeds).view(np.int64)
    if not hashes_whole:
        hashes = np.where(parts == 0, key_hash, hashes)
    return key_groups_of(hashes, num_key_groups)


def hash_undivided(keys: pa.RecordBatch) -> IntArray:
    """Hash the key columns without the part; hot keys are identified by this hash."""
    return hash_keys(canonical_keys(keys))


def _hashes_of_values(rows: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Hash each row by all its columns of hashable types.

    Nothing else decides: a sender that runs again, and meets its rows in another order, must divide
    them as it did the first time.
    """
    columns = [field.name for field in rows.schema if is_hashable(field.type)]
    hashes = hash_keys(canonical_keys(rows.select(columns))).view(np.uint64)
    return hashes >> np.uint64(20)


# -- what lanes measure, by which keys are found hot


_MIN_SHARE: Final = 0.05  # of a lane's work: of twenty keys at most
_MIN_TIME_US: Final = 10_000  # of a lane in an epoch; below it no key is named


def measure_work(
    keys: pa.RecordBatch,  # n rows: key columns of each key and part, without the part
    is_part: npt.NDArray[np.bool_],  # shape ``(n,)``: whether the key is spread
    left: IntArray,  # shape ``(n,)``, as the next two: rows of the left; see `KeyWork`
    right: IntArray,
    pairs: IntArray,
    *,
    row_of: IntArray | None = None,  # shape ``(n,)``: row of each key in `keys`; ``None``: the same
    named: npt.NDArray[np.bool_] | None = None,  # shape ``(n,)``: mask of the keys to return
    hash_of: Callable[[pa.RecordBatch], IntArray] = hash_undivided,
) -> OperatorWork:
    """Return a lane's work: in total, and of keys with at least 5 % of it or divided into parts.

    Work is a number of rows and pairs. `named`: mask of the keys to return instead.
    """
    work_of_key = left + right + pairs
    total = int(work_of_key.sum())
    if not total:
        return OperatorWork()
    chosen = np.flatnonzero(
        (work_of_key >= _MIN_SHARE * total) | is_part if named is None else named
    )
    chosen_keys = keys.take(pa.array(chosen if row_of is None else row_of[chosen]))
    return OperatorWork(
        total=total,
        keys=summed(
            KeyWork(hash=key_hash, key=key, left=l_, right=r, pairs=p)
            for key_hash, key, l_, r, p in zip(
                hash_of(chosen_keys).tolist(),
                keys_as_json(chosen_keys),
                left[chosen].tolist(),
                right[chosen].tolist(),
                pairs[chosen].tolist(),
                strict=True,
            )
        ),
    )


def work_by_time(
    keys: pa.RecordBatch,  # N rows: key columns of the rows that came, and their part, if any
    groups: Groups,  # of the rows, and of others behind them
    load: KeyGroupLoad,  # what each key group took
    *,
    hash_of: Callable[[pa.RecordBatch], IntArray] = hash_undivided,  # that a key is known by
) -> OperatorWork:
    """Return a lane's work per key: the measured time of key groups, divided by rows.

    Used to find hot keys. Keys are returned only for a lane with some work.
    """
    rows = np.diff(groups.starts)
    group_position = np.searchsorted(load.key_groups, groups.key_groups)
    rows_of_group = np.bincount(group_position, rows, minlength=len(load.key_groups))
    per_row = load.busy_ms * 1e3 / np.maximum(rows_of_group, 1)
    work_of_key = (rows * per_row[group_position]).astype(np.int64)
    with_rows = np.flatnonzero(rows)
    work_of_key, first = work_of_key[with_rows], groups.first_row[with_rows]
    is_part = np.zeros(len(with_rows), np.bool_)
    if PART in keys.schema.names:
        mask = mask_of(keys.column(PART).take(pa.array(first)))
        is_part[:] = True if mask is None else mask
        keys = keys.drop_columns(PART)
    no_work = np.zeros(len(with_rows), np.int64)
    is_named = is_part if work_of_key.sum() < _MIN_TIME_US else None
    return measure_work(
        keys, is_part, work_of_key, no_work, no_work, row_of=first, named=is_named, hash_of=hash_of
    )


def keys_as_json(keys: pa.RecordBatch) -> list[str]:
    """Return the values of each key as JSON, for people."""
    rows = zip(*map(python_values, keys.columns), strict=True)
    return [json.dumps(list(row), default=str) for row in rows]
