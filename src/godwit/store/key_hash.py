"""Keyed hash by which a table finds rows; every table draws its own secret.

The hash that chooses a key's key group is public, so an attacker can send keys that share it, and
every search would follow one long chain of equal hashes.  So rows are looked up by another hash,
over the bits of the key and the secret.

Invariant: for two different keys chosen without knowing the secret, the upper halves of the
sums are equal with probability 2^-32; equal keys have equal hashes, even if other keys
of the batch are null.

Source: pair-multiply-shift over 32-bit words (M. Thorup, "High Speed Hashing for Integers and
Strings", 2015, on vectors and strings); the last mixing steps are those of MurmurHash3's
finalizer, since linear probing needs more than pairwise independence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from godwit.store.columns import fixed_width, offsets_of, word_at, words_anywhere
from godwit.store.compiled import kernel, read_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from godwit.store.columns import Encoded, FixedWidth

UInt64Array = npt.NDArray[np.uint64]
Secret = tuple[int, int]
_Multipliers = Callable[[int], UInt64Array]
"""Number of 64-bit words of a key column → its secret multipliers, for at least as many words."""

_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_BYTES, _ONE = np.uint64(8), np.uint64(1)
_FEW_WORDS = 64
_BLOCK = 16_384  # keys whose intermediate arrays stay in the cache


def keyed_hashes(keys: Sequence[Encoded], count: int, secret: Secret) -> UInt64Array:
    """Return the hashes of `count` keys; every bit depends on all bits of the key."""
    hashes = np.full(count, _multipliers(secret, 0, 1)[0], np.uint64)
    for first in range(0, count, _BLOCK):
        block = slice(first, first + _BLOCK)
        sums = hashes[block]
        for number, column in enumerate(keys, start=1):
            multipliers = partial(_multipliers, secret, number)
            if isinstance(column.values, np.ndarray):
                _add_fixed(sums, column.values[block], multipliers)
            else:
                _add_strings(sums, column.values[block], multipliers)
            if column.nulls is not None:  # a flag: adds nothing for values that are not null
                sums += column.nulls[block] * multipliers(1)[0]
        _mix(sums)
    return hashes


def _add_fixed(sums: UInt64Array, values: npt.NDArray[Any], multipliers_of: _Multipliers) -> None:
    """Add fixed-width values of a column to the hash sums, in place."""
    if values.ndim == 1:
        values = values[:, None]
    elif values.dtype.itemsize == 1:  # of an odd width: padded to whole words
        padded = np.zeros((len(values), -(-values.shape[1] // 8) * 8), np.uint8)
        padded[:, : values.shape[1]] = values
        values = padded.view(np.uint64)
    multipliers = multipliers_of(values.shape[1])
    for word in range(values.shape[1]):
        _add_products(sums, values[:, word].astype(np.uint64, copy=False), multipliers, word)


def _add_strings(sums: UInt64Array, values: pa.Array, multipliers_of: _Multipliers) -> None:
    """Add strings or binaries of a column to the hash sums, in place."""
    same_width = fixed_width(values)
    if same_width is not None and same_width.dtype.itemsize >= 8:
        _add_equal_lengths(sums, same_width, multipliers_of)
        return
    offsets = offsets_of(values)
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    longest = int(lengths.max())
    multipliers = multipliers_of(1 + -(-longest // 8))
    _add_products(sums, lengths.view(np.uint64), multipliers, 0)
    if not longest:
        return
    data = np.frombuffer(values.buffers()[2], np.uint8)
    if len(data) < 8:
        data = np.concatenate((data, np.zeros(8, np.uint8)))
    words = words_anywhere(data)
    if (add := _add_words_of_strings.ready(len(sums))) is not None:
        if not add(sums, words, offsets, multipliers):
            raise IndexError("A value is not within the bytes of its column.")
        return
    rows: Any = slice(None)
    for word in range(-(-longest // 8)):
        remaining = lengths - 8 * word
        if remaining.min() <= 0:
            rows = np.flatnonzero(remaining > 0)
            remaining = remaining[rows]
        begins = starts[rows] + 8 * word
        if begins[-1] < len(words):
            chunk = words[begins]
        else:  # the last bytes of the buffer are read by stepping back, and shifted into place
            readable = np.minimum(begins, len(words) - 1)
            chunk = words[readable] >> ((begins - readable).view(np.uint64) * _BYTES)
        if remaining.min() < 8:
            missing = np.maximum(8 - remaining, 0).view(np.uint64) * _BYTES
            chunk = (chunk << missing) >> missing
        sums[rows] += _product(chunk, multipliers, 1 + word)


def _add_equal_lengths(sums: UInt64Array, values: FixedWidth, multipliers_of: _Multipliers) -> None:
    """Add byte strings of one length, at least 8 bytes, to the hash sums, in place."""
    width = values.dtype.itemsize
    words, rest = divmod(width, 8)
    multipliers = multipliers_of(1 + -(-width // 8))
    sums += _product(np.array([width], np.uint64), multipliers, 0)
    for word in range(words):
        _add_products(sums, word_at(values, 8 * word, "<u8"), multipliers, 1 + word)
    if rest:
        last = word_at(values, width - 8, "<u8") >> np.uint64(64 - 8 * rest)
        _add_products(sums, last, multipliers, 1 + words)


def _add_products(
    sums: UInt64Array, words: UInt64Array, multipliers: UInt64Array, word: int
) -> None:
    """Add word number `word` of every key, times its secret multipliers, to the sums, in place."""
    if (add := _add_products_of_words.ready(len(sums))) is not None:
        add(sums, words, multipliers, word)
    else:
        sums += _product(words, multipliers, word)


@kernel(f"void(uint64[::1], {read_only('uint64', anywhere=True)}, {read_only('uint64')}, int64)")
def _add_products_of_words(
    sums: UInt64Array, words: UInt64Array, multipliers: UInt64Array, word: int
) -> None:
    """Do what `_product` does, and add it, in one pass."""
    high, low = multipliers[1 + 2 * word], multipliers[2 + 2 * word]
    for i in range(len(sums)):
        sums[i] += ((words[i] >> _HALF) + high) * ((words[i] & _LOW) + low)


@kernel(
    f"boolean(uint64[::1], {read_only('uint64', anywhere=True)}, {read_only('uint64')},"
    f" {read_only('uint64')})"
)
def _add_words_of_strings(
    sums: UInt64Array, words: UInt64Array, offsets: UInt64Array, multipliers: UInt64Array
) -> bool:
    """Add all words of strings to their sums; return false if one is not within the bytes.

    `words`: the eight bytes from every byte on, so that there are seven fewer than bytes.
    """
    eight, readable = np.uint64(8), np.uint64(len(words))
    for i in range(len(sums)):
        begin, end = offsets[i], offsets[i + 1]
        number = 3  # of the multiplier; the length has the first ones
        if begin > end or end > readable + np.uint64(7):
            return False
        if np.uint64(2) * ((end - begin + np.uint64(7)) // eight) + np.uint64(3) > len(multipliers):
            return False
        while begin < end:
            if begin < readable:
                word = words[begin]
            else:  # the last bytes are read by stepping back, and shifted into place
                word = words[readable - _ONE] >> ((begin - readable + _ONE) * eight)
            if end - begin < eight:
                missing = (eight - (end - begin)) * eight
                word = (word << missing) >> missing
            sums[i] += ((word >> _HALF) + multipliers[number]) * (
                (word & _LOW) + multipliers[number + 1]
            )
            number += 2
            begin += eight
    return True


def _product(words: UInt64Array, multipliers: UInt64Array, word: int) -> UInt64Array:
    """Return the product of the two halves of each word, after adding a secret number to each."""
    high = words >> _HALF
    high += multipliers[1 + 2 * word]
    low = words & _LOW
    low += multipliers[2 + 2 * word]
    high *= low
    return high


def _mix(sums: UInt64Array) -> None:
    """Mix the bits of each hash sum in place, so that every bit depends on all."""
    if (mix := _mix_bits.ready(len(sums))) is not None:
        mix(sums)
        return
    sums ^= sums >> np.uint64(33)
    sums *= np.uint64(0xFF51_AFD7_ED55_8CCD)
    sums ^= sums >> np.uint64(33)
    sums *= np.uint64(0xC4CE_B9FE_1A85_EC53)
    sums ^= sums >> np.uint64(33)


@kernel("void(uint64[::1])")
def _mix_bits(sums: UInt64Array) -> None:
    """Mix as `_mix` does, in one pass."""
    shift = np.uint64(33)
    for i in range(len(sums)):
        mixed = sums[i]
        mixed = (mixed ^ (mixed >> shift)) * np.uint64(0xFF51_AFD7_ED55_8CCD)
        mixed = (mixed ^ (mixed >> shift)) * np.uint64(0xC4CE_B9FE_1A85_EC53)
        sums[i] = mixed ^ (mixed >> shift)


def _multipliers(secret: Secret, column: int, words: int) -> UInt64Array:
    """Return secret multipliers of a column: one, and two for each of at least `words` words."""
    return _drawn(secret, column, max(_FEW_WORDS, 1 << (words - 1).bit_length()))


@lru_cache(maxsize=256)
def _drawn(secret: Secret, column: int, words: int) -> UInt64Array:
    """Return the multipliers of a column, the same for the same `secret`; read-only."""
    seed = np.random.SeedSequence([*secret, column])
    drawn = np.random.Generator(np.random.Philox(seed)).integers(
        0, 2**64 - 1, 1 + 2 * words, np.uint64, endpoint=True
    )
    drawn.setflags(write=False)
    return drawn
