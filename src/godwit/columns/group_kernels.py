"""Compiled loops that group rows: by a sort of hashes, or by a hash table of the values.

Rows are sorted by buckets of the upper bits of their hashes, each so small that it stays in the
cache while its rows are sorted and numbered.  Values that repeat are numbered by a hash table with
linear probing, which grows with the distinct ones.

Invariants: each gives what the NumPy code beside its call gives, and gives up, so that NumPy does
it, where hashes are so alike that it would take more than linear time.  All positions are computed
from the lengths of the arrays, or checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from godwit.store.compiled import kernel, read_only

UInt64Array = npt.NDArray[np.uint64]

_ONE = np.uint64(1)
_MIXING = np.uint64(0x9E3779B185EBCA87)
_BUCKET_BITS = 9  # rows of a bucket, which is sorted in the cache
_MAX_BUCKET_BITS = 12  # buckets that are written at the same time
_AT_ONCE = 256  # rows of which one array is read before the next: memory answers at once

_INT64S, _WORDS = read_only("int64"), read_only("uint64", anywhere=True)


@kernel(f"int64({_INT64S}, int64, int64, uint64[::1]{', int64[::1]' * 3})")
def sort_and_group(  # noqa: PLR0917  kernels take no names
    search: npt.NDArray[np.int64],  # shape ``(N,)``
    key_group_bits: int,
    row_bits: int,  # N is at most two to this power
    order: UInt64Array,  # this and the next two: shape ``(N,)``, to be written
    of_row: npt.NDArray[np.int64],
    first_row: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],  # shape ``(N + 1,)``, to be written
) -> int:
    """Order rows by key group, `search` and arrival; return the number of groups.

    Writes what `Groups` says.  Rows whose `search` differs only in its last bits may be in one
    group.  Returns -1 if too many hashes are nearly equal.
    """
    count, sign = len(search), np.uint64(1 << 63)
    if not len(order) == len(of_row) == len(first_row) == len(starts) - 1 == count:
        return -1
    right, left = np.uint64(key_group_bits), np.uint64(63 - key_group_bits)
    row_shift = np.uint64(row_bits)
    row_mask = (_ONE << row_shift) - _ONE
    bucket_bits = max(min(row_bits - _BUCKET_BITS, _MAX_BUCKET_BITS), 1)
    bucket_shift, drop = np.uint64(64 - bucket_bits), np.uint64(bucket_bits)
    ends = np.zeros(1 << bucket_bits, np.int64)
    for row in range(count):
        word = np.uint64(search[row]) ^ sign
        word = word >> right | (word << _ONE) << left
        ends[word >> bucket_shift] += 1
    largest = total = 0
    for bucket in range(len(ends)):
        size = ends[bucket]
        largest = max(largest, size)
        ends[bucket] = total
        total += size
    for row in range(count):
        word = np.uint64(search[row]) ^ sign
        word = word >> right | (word << _ONE) << left
        place = ends[word >> bucket_shift]
        ends[word >> bucket_shift] = place + 1
        order[place] = (word << drop) & ~row_mask | np.uint64(row)
    # `order` has hashes and rows by bucket, `ends` the end of each. Within one, rows are ordered
    # by the next bits, then by insertion.
    ordered, places = np.empty(largest, np.uint64), np.empty(2 * largest + 2, np.int64)
    groups: Any = 0
    start: Any = 0
    moves_left = 64 * count
    for end in ends:
        size = end - start
        if not size:
            continue
        digits = 1
        while 1 << digits < size:
            digits += 1
        shift = np.uint64(64 - digits)
        for digit in range(1 << digits):
            places[digit] = 0
        for position in range(start, end):
            places[order[position] >> shift] += 1
        total = 0
        for digit in range(1 << digits):
            size_of_digit = places[digit]
            places[digit] = total
            total += size_of_digit
        for position in range(start, end):
            word = order[position]
            ordered[places[word >> shift]] = word
            places[word >> shift] += 1
        for position in range(1, size):
            word, back = ordered[position], position
            while back > 0 and ordered[back - 1] > word:
                ordered[back] = ordered[back - 1]
                back -= 1
                moves_left -= 1
            ordered[back] = word
            if moves_left < 0:
                return -1
        before = ~(ordered[0] >> row_shift)
        for position in range(size):
            word = ordered[position] >> row_shift
            ordered_row = np.int64(ordered[position] & row_mask)
            # Without a branch: the next row writes again, unless this one has begun a group.
            first_row[groups], starts[groups] = ordered_row, start + position
            groups += word != before
            before = word
            order[start + position], of_row[ordered_row] = np.uint64(ordered_row), groups - 1
        start = end
    starts[groups] = count
    return int(groups)


@kernel(f"boolean({_WORDS}, int64, {_INT64S}, {_INT64S})")
def any_differs(
    words: UInt64Array,  # the 8 bytes at each offset of N values, one after another
    width: int,  # of each value, at least 8
    order: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
) -> bool:
    """Return whether a value differs from the first of its group; see `Groups`."""
    count, stride, last = len(order), np.uint64(width), np.uint64(width - 8)
    if width < 8 or len(words) < count * width - 7 or starts[-1] != count:
        return True
    firsts, others = np.empty(_AT_ONCE, np.uint64), np.empty(_AT_ONCE, np.uint64)
    group, pairs, differing = -1, 0, np.uint64(0)
    for position in range(count):
        # Without a branch: the next row writes again, unless this one is a pair.
        begins = position == starts[group + 1]
        group += begins
        row, first = order[position], order[starts[group]]
        if not (0 <= row < count and 0 <= first < count):
            return True
        firsts[pairs], others[pairs] = np.uint64(first) * stride, np.uint64(row) * stride
        pairs += not begins
        if pairs == _AT_ONCE or position + 1 == count:
            for pair in range(pairs):
                place, other, offset = firsts[pair], others[pair], np.uint64(0)
                while offset < last:
                    differing |= words[place + offset] ^ words[other + offset]
                    offset += np.uint64(8)
                differing |= words[place + last] ^ words[other + last]
            if differing:
                return True
            pairs = 0
    return False


@kernel(f"int64({_WORDS}{', int64' * 3}, int64[::1], int64[::1], uint64[::1], uint32[::1])")
def number_words(  # noqa: PLR0917  kernels take no names, and call no functions
    words: UInt64Array,  # the 8 bytes at each offset of N values, one after another
    width: int,  # of each value, at least 8
    row: int,  # to continue at
    distinct: int,  # values that are known from the rows before
    numbers: npt.NDArray[np.int64],  # this and the next: shape ``(N,)``, to be written
    first_row: npt.NDArray[np.int64],
    copies: UInt64Array,  # the words of each distinct value; together: they stay in the cache
    table: npt.NDArray[np.uint32],  # zeros; as many as a power of two
) -> int:
    """Assign numbers to distinct values, as they appear, until half of the table is used.

    Returns the row to continue at, with a larger table; -1 if searches take too long.
    """
    count, most, each = len(numbers), len(table) // 2, (width + 7) // 8
    if width < 8 or len(words) < count * width - 7 or len(first_row) != count or most < 1:
        return -1
    if len(copies) < count * each or not 0 <= distinct <= min(row, most):
        return -1
    # Unsigned, since Numba lets indexes below 0 count from the end.
    stride, last, eight = np.uint64(width), np.uint64(width - 8), np.uint64(8)
    rest = np.uint64(each - 1)  # words of a copy before the last one
    half, fold = np.uint64(32), np.uint64(29)
    bits, mask = np.uint64(0), np.uint64(len(table) - 1)
    while _ONE << bits < np.uint64(len(table)):
        bits += _ONE
    # A slot has lower bits of a mix, its tag, above the number plus 1, which has as many bits as
    # the number of a slot; upper bits are the home.
    shift, tags = np.uint64(64) - bits, np.uint64(2**32 - 1) & ~mask
    probes_left = 16 * count + 1024
    for known in range(distinct):
        copy = np.uint64(known) * (rest + _ONE)
        mixed = copies[copy + rest] * _MIXING
        for word in range(rest):
            mixed = ((mixed ^ mixed >> fold) ^ copies[copy + word]) * _MIXING
        mixed = (mixed ^ mixed >> half) * _MIXING
        slot = mixed >> shift
        while table[slot]:
            slot = slot + _ONE & mask
            probes_left -= 1
            if probes_left < 0:
                return -1
        table[slot] = np.uint32(mixed << bits & tags | np.uint64(known + 1))
    mixes, slots = np.empty(_AT_ONCE, np.uint64), np.empty(_AT_ONCE, np.uint64)
    while row < count:
        rows = np.uint64(min(_AT_ONCE, count - row))
        start = np.uint64(row) * stride
        for i in range(rows):
            mixed, offset = words[start + last] * _MIXING, np.uint64(0)
            while offset < last:
                mixed = ((mixed ^ mixed >> fold) ^ words[start + offset]) * _MIXING
                offset += eight
            mixed = (mixed ^ mixed >> half) * _MIXING
            mixes[i], slots[i] = mixed, np.uint64(table[mixed >> shift])
            start += stride
        # Twice: most values are in their home, where the copies are read all at once.
        for is_search in (False, True):
            start = np.uint64(row) * stride
            for i in range(rows):
                here, start = start, start + stride
                if is_search and numbers[row + np.int64(i)] >= 0:
                    continue
                tag, slot = mixes[i] << bits & tags, mixes[i] >> shift
                number, entry = np.int64(-1), slots[i]
                while True:
                    if is_search:
                        entry = np.uint64(table[slot])
                    if entry == 0:
                        break
                    candidate, offset = (entry ^ tag) - _ONE, np.uint64(0)
                    if candidate < mask:
                        copy = candidate * (rest + _ONE)
                        differing = copies[copy + rest] ^ words[here + last]
                        while offset < last:
                            differing |= copies[copy] ^ words[here + offset]
                            offset += eight
                            copy += _ONE
                        if differing == 0:
                            number = np.int64(candidate)
                            break
                    if not is_search:
                        break
                    slot = slot + _ONE & mask
                    probes_left -= 1
                    if probes_left < 0:
                        return -1
                if is_search and number < 0:
                    if distinct == most:
                        return int(row + np.int64(i))
                    number = np.int64(distinct)
                    table[slot] = np.uint32(tag | np.uint64(number + 1))
                    first_row[number] = row + np.int64(i)
                    copy, offset = np.uint64(number) * (rest + _ONE), np.uint64(0)
                    copies[copy + rest] = words[here + last]
                    while offset < last:
                        copies[copy] = words[here + offset]
                        offset += eight
                        copy += _ONE
                    distinct += 1
                numbers[row + np.int64(i)] = number
        row += int(np.int64(rows))
    return row


@kernel(f"boolean({_INT64S}, int64[::1], int64[::1], boolean)")
def count_and_place(
    numbers: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],  # shape ``(count,)``, zeros
    places: npt.NDArray[np.int64],  # shape ``(N,)``, to be written
    inverted: bool,
) -> bool:
    """Order positions by number, as `stable_order`, or write the place of each (`inverted`).

    Returns false if a number has no place in `ends`.
    """
    if len(places) != len(numbers):
        return False
    for number in numbers:
        if number < 0 or number >= len(ends):
            return False
        ends[number] += 1
    total = 0
    for number in range(len(ends)):
        size = ends[number]
        ends[number] = total
        total += size
    for position in range(len(numbers)):
        number = numbers[position]
        place = ends[number]
        ends[number] = place + 1
        if inverted:
            places[position] = place
        else:
            places[place] = position
    return True
