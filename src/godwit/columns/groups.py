"""Grouping rows by key, exactly, in arrival order, without a Python loop over rows.

Rows are sorted by the 64-bit hash of their key, then every row is compared with its group's first
row, column by column, so two keys that share a hash are still two groups.  Where keys repeat often,
numbering them is faster, and only the keys themselves are hashed and sorted: few by a hash table
(Arrow's dictionaries), many by a sort of a cheaper hash.  Groups come out ordered by key group,
then hash: the state of one key group is one slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import mask_of, numpy_type, values_of
from godwit.columns.group_kernels import (
    any_differs,
    count_and_place,
    number_words,
    sort_and_group,
)
from godwit.columns.hashing import hash_keys
from godwit.columns.python_values import python_values
from godwit.model.key_groups import key_groups_of
from godwit.store.columns import (
    fixed_width,
    take_rows,
    values_differ,
    word_at,
    words_anywhere,
    words_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SAMPLE = 8192
_STRIDE = 2_654_435_761  # between sampled rows: large, and unlike any period of the rows
_REPEATING = 0.9  # distinct keys per row of the sample: above, it needs a closer look
_LARGE_SAMPLE = 65_536
_MANY_ROWS = 4 * _LARGE_SAMPLE
_REPEATING_OF_MANY = 0.35  # distinct keys per row: above, a hash table does not help
UInt64Array = npt.NDArray[np.uint64]

_MIXING = np.uint64(0x9E3779B185EBCA87)
_SORTED_BY_RADIX = 2**16  # groups, whose numbers NumPy sorts by their bytes: ten times as fast
_FEW_NUMBERS = 4
_MAX_ROW_BITS = 28  # of a row's number in a word with its hash
_MAX_NUMBERED = 2**31
_MIN_SLOTS = 2**14  # of a hash table of values; it grows
_BLOCK = 8192  # keys compared at a time: their copies stay in the cache, three times as fast


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The rows of one batch, grouped by key.

    `order`: Shape ``(N,)``: rows ordered by group, and in arrival order within a group.
    `starts`: Shape ``(G + 1,)``, int64: rows of group g are ``order[starts[g]:starts[g + 1]]``.
    """

    count: int  # g, the number of groups
    of_row: npt.NDArray[np.int64]  # shape ``(N,)``: the group of each row
    # shape ``(G,)``: the first row (in arrival order) of each group
    first_row: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int64]  # shape ``(G,)``, int64: the key's hash
    # shape ``(G,)``, int32, ascending: ``pmod(hash, num_key_groups)``
    key_groups: npt.NDArray[np.int32]

    def apart(self) -> Groups:
        """Return groups of one row each, in the order of these groups."""
        of_row = np.empty(len(self.of_row), np.int64)
        of_row[self.order] = np.arange(len(of_row))
        group = self.of_row[self.order]
        return Groups(
            count=len(of_row),
            of_row=of_row,
            first_row=self.order,
            hashes=self.hashes[group],
            key_groups=self.key_groups[group],
        )

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """Row numbers, ordered by group, and by arrival within a group; computed on first use."""
        return stable_order(self.of_row, self.count)

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """Position in `order` where each group starts, and at last the number of rows."""
        sizes = np.bincount(self.of_row, minlength=self.count)
        return np.concatenate([[0], np.cumsum(sizes)])


def group_rows(
    hashes: npt.NDArray[np.int64],
    keys: pa.RecordBatch,
    num_key_groups: int,
    num_hashed: int | None = None,
) -> Groups:
    """Group rows by key.

    `hashes`: shape ``(N,)``: 64-bit hash of each row's key.
    `keys`: N rows of key columns. Nulls are values like any other; floats are compared by bits (NaN
    and -0.0 are made canonical before they come here).
    `num_hashed`: how many of the key columns, from the first, the hash is of; ``None`` for all.
    Rows of one hash that differ in the others (in their pane, say) are many, so those have a hash
    too.

    Groups are ordered by key group, then hash (signed), then, for different keys that share a hash,
    first arrival.

    Examples
    --------
    >>> keys = pa.record_batch({"k": ["a", "b", "a"]})
    >>> groups = group_rows(np.array([7, 6, 7]), keys, 4)
    >>> groups.of_row.tolist(), groups.first_row.tolist(), groups.key_groups.tolist()
    ([1, 0, 1], [1, 0], [2, 3])
    """
    count = len(hashes)
    search = _hash_all_columns(hashes, keys, num_hashed, num_key_groups)
    if (compiled := _groups_by_hash(hashes, search, keys, num_key_groups)) is not None:
        return compiled
    order, begins = _order_by_key_group_and_hash(hashes, search, num_key_groups)
    group_of_ordered: npt.NDArray[np.int64] = np.cumsum(begins, dtype=np.int64)
    group_of_ordered -= 1
    starts = np.append(np.flatnonzero(begins), count)

    first_row = order[starts[:-1]]
    repeated = np.flatnonzero(~begins)
    if len(repeated):
        others = order[repeated]
        differing = _rows_that_differ(keys, others, first_row[group_of_ordered[repeated]])
        if len(differing):
            group_of_ordered, order = _split_shared_hashes(
                keys, group_of_ordered, order, others[differing]
            )
            begins = np.append(True, group_of_ordered[1:] != group_of_ordered[:-1])
            starts = np.append(np.flatnonzero(begins), count)
            first_row = order[starts[:-1]]

    of_row = np.empty(count, np.int64)
    of_row[order] = group_of_ordered
    return _sorted_groups(hashes, num_key_groups, (order, of_row, first_row, starts))


def _sorted_groups(
    hashes: npt.NDArray[np.int64],  # of rows
    num_key_groups: int,
    ordered: tuple[npt.NDArray[np.int64], ...],
) -> Groups:
    """Return groups of which order, group of each row, first rows and starts are known."""
    order, of_row, first_row, starts = ordered
    group_hashes = hashes[first_row]
    groups = Groups(
        count=len(first_row),
        of_row=of_row,
        first_row=first_row,
        hashes=group_hashes,
        key_groups=key_groups_of(group_hashes, num_key_groups),
    )
    vars(groups).update(order=order, starts=starts)
    return groups


def group_repeating_rows(
    keys: pa.RecordBatch,
    num_key_groups: int,
    num_hashed: int | None = None,
    hashes: npt.NDArray[np.int64] | None = None,  # shape ``(N,)``: of the rows' keys, where known
    *,
    hash_of: Callable[[pa.RecordBatch], npt.NDArray[np.int64]] | None = None,
) -> Groups | None:
    """Group rows if keys seem to repeat; ``None`` if they do not.

    `hash_of`: hashes rows of `keys`, if not by their first `num_hashed` columns.
    """
    columns = [_float_bits(column) for column in keys.columns]
    if not all(_has_dictionaries(column.type) for column in columns):
        return None
    few = _repeat_in_sample(columns, in_lane=hashes is not None)
    # Where hashes are known, a sort of them takes less time than a sort of cheaper ones.
    if not few and (hashes is not None or not _repeat_overall(columns, keys.num_rows)):
        return None
    numbers, first_row = _number_keys(columns, many=not few)
    distinct = take_rows(keys, first_row)
    if hashes is not None:
        hashes = hashes[first_row]
    elif hash_of is not None:
        hashes = hash_of(distinct)
    else:
        hashes = hash_keys(distinct.select(list(range(num_hashed or keys.num_columns))))
    search = _hash_all_columns(hashes, distinct, num_hashed, num_key_groups)
    order = _order_of_distinct(hashes, search, num_key_groups)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    hashes = hashes[order]
    return Groups(
        count=len(order),
        of_row=place[numbers],
        first_row=first_row[order],
        hashes=hashes,
        key_groups=key_groups_of(hashes, num_key_groups),
    )


def _order_of_distinct(
    hashes: npt.NDArray[np.int64], search: npt.NDArray[np.int64], num_key_groups: int
) -> npt.NDArray[np.int64]:
    """Order keys by the key group of `hashes`, then `search`, then number."""
    ordered = _sorted_by_hash(search, num_key_groups)
    if ordered is not None and len(ordered[2]) == len(search):
        return ordered[0]
    return _order_by_key_group_and_hash(hashes, search, num_key_groups)[0]


def _repeat_in_sample(columns: list[pa.Array], *, in_lane: bool) -> bool:
    """Return whether keys repeat in a small sample, so that a hash table of them pays off."""
    parts = [column.slice(0, _SAMPLE) for column in columns]
    if in_lane and len(columns[0]) > _SAMPLE:  # where rows of one key are near one another
        rows = pa.array(np.arange(_SAMPLE) * _STRIDE % len(columns[0]))
        parts = [column.take(rows) for column in columns]
    sample, shown = _number_keys(parts)
    return len(sample) > 0 and len(shown) < _REPEATING * len(sample) + 1


def _repeat_overall(columns: list[pa.Array], count: int) -> bool:
    """Return whether keys are estimated to repeat so often that numbering them by a sort pays.

    The number of keys that a sample lacks is estimated from those that it has once and twice (Chao,
    Nonparametric Estimation of the Number of Classes in a Population, 1984): if many occur once and
    few twice, keys hardly repeat, however often some others do.
    """
    if count < _MANY_ROWS:
        return False
    sample, shown = _number_keys([column.slice(0, _LARGE_SAMPLE) for column in columns], many=True)
    times = np.bincount(sample)
    once, twice = int((times == 1).sum()), int((times == 2).sum())
    return len(shown) + once**2 / (2 * max(twice, 1)) < _REPEATING_OF_MANY * count


def _has_dictionaries(dtype: pa.DataType) -> bool:
    """Return whether Arrow can dictionary-encode values of a type."""
    return numpy_type(dtype) is not None or pa.types.is_string(dtype) or pa.types.is_binary(dtype)


def _number_keys(
    columns: list[pa.Array], *, many: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Assign numbers to distinct keys; return each row's, and the first row of each.

    `many`: sorting the many distinct keys takes less time than a hash table.
    """
    known: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
    for column in columns:
        if known is not None and _is_constant(column):
            continue  # such as the pane, of rows of one time: it distinguishes nothing
        numbers, first_row = _number_values(column, many=many)
        if known is not None:
            numbers, first_row = _number_values(
                pa.array(known[0] * len(first_row) + numbers), many=many
            )
        known = numbers, first_row
    assert known is not None, "an operator has key columns"
    return known


def _is_constant(column: pa.Array) -> bool:
    """Return whether all values of a column are certainly equal, by a quick check."""
    if column.null_count or not len(column) or numpy_type(column.type) is None:
        return len(column) > 0 and column.null_count == len(column)
    values = values_of(column)
    return bool(values[0] == values[-1] and (values == values[0]).all())


def _number_values(
    column: pa.Array, *, many: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Assign numbers to the distinct values of a column.

    Returns each row's number, and the first row of each number; `many`: see `_number_keys`.
    Integers take less time than text, in a hash table and in a sort, so values are first mixed to
    integers. Values of one number are then compared; if two values were mixed to one integer, the
    column is numbered without mixing.
    """
    if (numbered := _number_compiled(column)) is not None:
        return numbered
    words = _words_of_values(column)
    if words:
        mixed = _mix_words(words, evenly=many)
        numbers, first_row = (
            _number_by_sort(mixed)
            if many
            else _number_by_hash_table(pa.array(mixed.view(np.int64)))
        )
        # Of a table's numbers one word follows from the mix and the others.
        compared = words if many else words[:-1]
        if not any((word.take(first_row).take(numbers) != word).any() for word in compared):
            return numbers, first_row
    return _number_by_hash_table(column)


def _words_of_values(column: pa.Array) -> list[UInt64Array]:
    """Return the 64-bit words of each value of a fixed-width column; none for other columns."""
    values = fixed_width(column)
    if values is not None and values.dtype.itemsize >= 8:
        # Read several times: copies that lie together and aligned are worth their price.
        return [
            word_at(values, first, width).copy() for first, width in words_in(values.dtype.itemsize)
        ]
    if column.null_count or numpy_type(column.type) is None or column.type.bit_width != 64:
        return []
    return [values_of(column).view(np.uint64)]


def _mix_words(words: list[UInt64Array], *, evenly: bool) -> UInt64Array:
    """Return a hash of the words of each value; values that differ only in the last word differ.

    `evenly`: the upper half of the bits depends on all words.
    """
    mixed = words[0].copy()
    for word in words[1:]:
        mixed *= _MIXING
        mixed ^= mixed >> np.uint64(29)
        mixed ^= word
    if evenly:
        mixed *= _MIXING
        mixed ^= mixed >> np.uint64(32)
        mixed *= _MIXING
    return mixed


def mix_rows(columns: Sequence[pa.Array]) -> tuple[UInt64Array, bool]:
    """Return a cheap hash of each row, and whether it is of all columns.

    It is not of columns with nulls, nor of values other than 64-bit words; there must be another.
    """
    words = [[] if column.null_count else _words_of_values(column) for column in columns]
    mixed = _mix_words([word for of_column in words for word in of_column], evenly=True)
    return mixed, all(words)


def _number_by_hash_table(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Assign numbers to the distinct values of a column, null included, in order of appearance.

    Returns each row's number, and the first row of each number.
    """
    encoded = column.dictionary_encode(null_encoding="encode")
    numbers = values_of(encoded.indices)
    return numbers.astype(np.int64), _first_rows(numbers)


def _number_by_sort(mixed: UInt64Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Assign numbers to the distinct hashes by a sort of their upper bits.

    Returns each row's number, and the first row of each number.
    """
    row_bits = np.uint64(max(len(mixed) - 1, 0).bit_length())
    row_mask = (np.uint64(1) << row_bits) - np.uint64(1)
    packed = mixed & ~row_mask
    packed |= np.arange(len(mixed), dtype=np.uint64)
    packed.sort()
    order = (packed & row_mask).view(np.int64)
    packed >>= row_bits
    begins = np.ones(len(packed), np.bool_)
    np.not_equal(packed[1:], packed[:-1], out=begins[1:])
    numbers = np.empty(len(packed), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return numbers, order[begins]


def _first_rows(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the first row of each number; numbers ascend in order of first appearance."""
    return np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=np.int32(-1)))


def _hash_all_columns(
    hashes: npt.NDArray[np.int64],
    keys: pa.RecordBatch,
    num_hashed: int | None,
    num_key_groups: int,
) -> npt.NDArray[np.int64]:
    """Return hashes of all key columns, from hashes of the first; bits of the key group stay."""
    others = [
        number
        for number in range(
            keys.num_columns if num_hashed is None else num_hashed, keys.num_columns
        )
        if not _is_constant(keys.column(number))
    ]
    if not others:
        return hashes
    return hashes ^ (hash_keys(keys.select(others)) << (num_key_groups - 1).bit_length())


def _order_by_key_group_and_hash(
    hashes: npt.NDArray[np.int64], search: npt.NDArray[np.int64], num_key_groups: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Order rows by the key group of `hashes`, then `search`, then arrival.

    Returns the row numbers, and a mask of those whose `search` differs from that of the row before.
    """
    bits = num_key_groups.bit_length() - 1
    if num_key_groups != 1 << bits:
        return _with_beginnings(search, np.lexsort((search, key_groups_of(hashes, num_key_groups))))
    sortable = search.view(np.uint64) ^ np.uint64(1 << 63)
    if bits:
        # The key group is the hash's lowest bits: rotated to the top, one sort orders by both.
        high = sortable >> np.uint64(bits)
        sortable <<= np.uint64(64 - bits)
        sortable |= high
    # Rows as the lowest bits of numbers make a plain sort (three times as fast as argsort)
    # yield the order, and arrival order within equal hashes, at the price of as many hash bits.
    row_bits = np.uint64(max(len(search) - 1, 0).bit_length())
    row_mask = (np.uint64(1) << row_bits) - np.uint64(1)
    packed = sortable & ~row_mask
    packed |= np.arange(len(search), dtype=np.uint64)
    packed.sort()
    order = (packed & row_mask).view(np.int64)
    packed >>= row_bits
    begins = np.ones(len(packed), np.bool_)
    np.not_equal(packed[1:], packed[:-1], out=begins[1:])
    # Whole hashes are compared only where the upper bits are equal, since rows are far apart.
    alike = np.flatnonzero(~begins)
    if np.any(search[order[alike]] != search[order[alike - 1]]):
        return _with_beginnings(search, np.argsort(sortable, kind="stable"))
    return order, begins


def _with_beginnings(
    search: npt.NDArray[np.int64], order: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return `order`, and a mask of the rows whose `search` differs from that of the row before."""
    ordered = search[order]
    begins = np.ones(len(order), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return order, begins


def _rows_that_differ(
    keys: pa.RecordBatch, rows: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the positions i at which the keys of ``rows[i]`` and ``others[i]`` differ."""
    values_differ = np.zeros(len(rows), np.bool_)
    for column in keys.columns:
        if numpy_type(column.type) is not None:
            values = values_of(column)
            if pa.types.is_floating(column.type):
                values = values.view(f"i{values.itemsize}")
            different = values[rows] != values[others]
        elif pa.types.is_null(column.type):
            continue
        else:
            different = _values_differ(column, rows, others)
        mask = mask_of(column)
        if mask is not None:
            left_mask, right_mask = mask[rows], mask[others]
            different = (different & left_mask & right_mask) | (left_mask != right_mask)
        values_differ |= different
    return np.flatnonzero(values_differ)


def _values_differ(
    column: pa.Array, rows: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return a mask: where the values at ``rows[i]`` and ``others[i]`` differ and none is null."""
    # To check an offset takes a hundredth of the time that Arrow takes to copy a value.
    same_width = fixed_width(column) if 32 * len(rows) >= len(column) else None
    if same_width is not None:
        return values_differ(same_width, rows, others)
    unequal = np.empty(len(rows), np.bool_)
    for first in range(0, len(rows), _BLOCK):
        block = slice(first, first + _BLOCK)
        left, right = column.take(pa.array(rows[block])), column.take(pa.array(others[block]))
        unequal[block] = values_of(pc.not_equal(left, right).fill_null(False))
    return unequal


def _split_shared_hashes(
    keys: pa.RecordBatch,
    group_of_ordered: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    differing: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split groups of one hash by key; needed only if the 64-bit hashes of two keys collide.

    Returns the group of each ordered row, and the order of rows, with each key a group of its own.
    """
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    shared = np.unique(group_of_ordered[position[differing]])
    affected = np.flatnonzero(np.isin(group_of_ordered, shared))
    rows = order[affected]
    columns = [python_values(_float_bits(column.take(pa.array(rows)))) for column in keys.columns]
    rank = np.zeros(len(order), np.int64)
    ranks: dict[tuple[Any, ...], int] = {}
    for place, key in zip(affected.tolist(), zip(*columns, strict=True), strict=True):
        rank[place] = ranks.setdefault((group_of_ordered[place], *key), len(ranks))
    resorted = np.lexsort((rank, group_of_ordered))
    group, rank = group_of_ordered[resorted], rank[resorted]
    begins = np.append(True, (group[1:] != group[:-1]) | (rank[1:] != rank[:-1]))
    return np.cumsum(begins) - 1, order[resorted]


def stable_order(numbers: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """Return the positions of integers below `count` in ascending order; equal ones stay in order.

    Examples
    --------
    >>> stable_order(np.array([1, 0, 1]), 2).tolist()
    [1, 0, 2]
    """
    if not len(numbers):
        return np.empty(0, np.int64)
    if count <= _FEW_NUMBERS:  # a search for each takes less time than a sort
        return np.concatenate([np.flatnonzero(numbers == number) for number in range(count)])
    if (order_all := count_and_place.ready(len(numbers))) is not None:
        order, ends = np.empty(len(numbers), np.int64), np.zeros(count, np.int64)
        if order_all(numbers.astype(np.int64, copy=False), ends, order, False):
            return order
    if count <= _SORTED_BY_RADIX:
        narrow = np.uint8 if count <= 1 << 8 else np.uint16
        return np.argsort(numbers.astype(narrow), kind="stable")
    return np.argsort(numbers, kind="stable")


def places_by_number(numbers: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64] | None:
    """Return the place of each position in `stable_order`; ``None`` without machine code."""
    if (place_all := count_and_place.ready(len(numbers))) is None:
        return None
    places, ends = np.empty(len(numbers), np.int64), np.zeros(count, np.int64)
    fits = place_all(numbers.astype(np.int64, copy=False), ends, places, True)
    return places if fits else None


def _float_bits(column: pa.Array) -> pa.Array:
    """Return floats as integers of the same bits, so that NaNs compare as equal keys."""
    if pa.types.is_floating(column.type):
        return column.view(f"int{column.type.bit_width}")
    return column


# -- the same, compiled (`godwit.columns.group_kernels`)


def _groups_by_hash(
    hashes: npt.NDArray[np.int64],
    search: npt.NDArray[np.int64],
    keys: pa.RecordBatch,
    num_key_groups: int,
) -> Groups | None:
    """Group rows by machine code; ``None`` without it, or if two keys share a hash."""
    if (ordered := _sorted_by_hash(search, num_key_groups)) is None:
        return None
    groups = _sorted_groups(hashes, num_key_groups, ordered)
    if groups.count < len(search) and _differ_from_first(keys, groups):
        return None
    return groups


def _sorted_by_hash(
    search: npt.NDArray[np.int64], num_key_groups: int
) -> tuple[npt.NDArray[np.int64], ...] | None:
    """Return what `sort_and_group` writes; ``None`` without machine code, or if it gives up."""
    count, bits = len(search), num_key_groups.bit_length() - 1
    row_bits = max(count - 1, 1).bit_length()
    if num_key_groups != 1 << bits or not count or row_bits > _MAX_ROW_BITS:
        return None
    if (sort := sort_and_group.ready(count)) is None:
        return None
    order, of_row = np.empty(count, np.uint64), np.empty(count, np.int64)
    first_row, starts = np.empty(count, np.int64), np.empty(count + 1, np.int64)
    groups = sort(search, bits, row_bits, order, of_row, first_row, starts)
    if groups < 0:
        return None
    return order.view(np.int64), of_row, first_row[:groups], starts[: groups + 1]


def _differ_from_first(keys: pa.RecordBatch, groups: Groups) -> bool:
    """Return whether the key of a row differs from that of its group's first row."""
    others = []
    for number, column in enumerate(keys.columns):
        values, differ = _fixed_bytes(column), any_differs.ready(len(column))
        if values is None or differ is None:
            others.append(number)
        elif differ(words_anywhere(values[0]), values[1], groups.order, groups.starts):
            return True
    if not others:
        return False
    first = groups.first_row[groups.of_row]
    rows = np.flatnonzero(first != np.arange(len(first)))
    return len(_rows_that_differ(keys.select(others), rows, first[rows])) > 0


def _number_compiled(
    column: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Assign numbers to the distinct values of a fixed-width column; ``None`` without machine code.

    Returns each row's number, in order of first appearance, and the first row of each number.
    """
    number = number_words.ready(len(column))
    values = _fixed_bytes(column) if number is not None else None
    if number is None or values is None or len(column) > _MAX_NUMBERED:
        return None
    (data, width), count = values, len(column)
    words, row, known = words_anywhere(data), 0, 0
    numbers, first_row = np.empty(count, np.int64), np.empty(count, np.int64)
    copies = np.empty(count * -(-width // 8), np.uint64)
    slots = _MIN_SLOTS
    while True:
        table = np.zeros(slots, np.uint32)
        row = number(words, width, row, known, numbers, first_row, copies, table)
        if row < 0:
            return None
        if row == count:
            return numbers, first_row[: numbers.max(initial=-1) + 1].copy()
        known, slots = slots // 2, 2 * slots


def _fixed_bytes(column: pa.Array) -> tuple[npt.NDArray[np.uint8], int] | None:
    """Return the bytes of values of one length, 8 or more, one after another, and the length."""
    values: npt.NDArray[Any] | None = fixed_width(column)
    if values is None and not column.null_count and numpy_type(column.type) is not None:
        values = values_of(column)
    if values is None or values.dtype.itemsize < 8:
        return None
    return values.view(np.uint8), values.dtype.itemsize
