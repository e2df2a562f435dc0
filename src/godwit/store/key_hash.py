"""The hash by which a table finds the row of a key; nobody outside the table knows its secret.

Problem: the hash that chooses a key's key group is known to everybody, so whoever sends keys can
choose them to share it, and one chain of equal hashes makes every search as long as the chain.  So
rows are found by another hash, over the bits of the key and a secret that each table draws itself.

Invariant: for two different keys chosen without knowing the secret, the upper halves of the sums
are equal with probability 2^-32; equal keys have equal hashes, whether or not other keys of the
batch are null.

Source: pair-multiply-shift over 32-bit words (M. Thorup, "High Speed Hashing for Integers and
Strings", 2015, on vectors and strings); the last mixing steps are those of MurmurHash3's finalizer,
since linear probing wants more than the independence of pairs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from godwit.store.columns import offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from godwit.store.columns import Encoded

__all__ = ["KeyHasher"]

UInt64Array = npt.NDArray[np.uint64]

_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_BYTES = np.uint64(8)
_FEW_WORDS = 64
_BLOCK = 16_384  # keys whose intermediate arrays stay in the cache


class KeyHasher:
    """Hashes encoded keys with one secret."""

    __slots__ = ("_secret",)

    def __init__(self, secret: tuple[int, int]) -> None:
        self._secret = secret

    def hash(self, keys: Sequence[Encoded], count: int) -> UInt64Array:
        """Hash `count` keys, column by column.

        Returns shape ``(count,)``; every bit depends on all bits of the key.
        """
        hashes = np.full(count, self._multipliers(0, 1)[0], np.uint64)
        for first in range(0, count, _BLOCK):
            block = slice(first, first + _BLOCK)
            sums = hashes[block]
            for number, column in enumerate(keys, start=1):
                if isinstance(column.values, np.ndarray):
                    self._add_fixed(sums, number, column.values[block])
                else:
                    self._add_strings(sums, number, column.values[block])
                if column.nulls is not None:  # a flag: nothing is added where nothing is null
                    sums += column.nulls[block] * self._multipliers(number, 1)[0]
            _mix(sums)
        return hashes

    def _multipliers(self, column: int, words: int) -> UInt64Array:
        """Two secret numbers for each of the first `words` words of a column, and one before."""
        count = max(_FEW_WORDS, 1 << (words - 1).bit_length())
        return _multipliers(self._secret, column, count)

    def _add_fixed(self, sums: UInt64Array, number: int, values: npt.NDArray[Any]) -> None:
        if values.ndim == 1:
            values = values[:, None]
        elif values.dtype.itemsize == 1:  # of an odd width: filled up to whole words
            padded = np.zeros((len(values), -(-values.shape[1] // 8) * 8), np.uint8)
            padded[:, : values.shape[1]] = values
            values = padded.view(np.uint64)
        multipliers = self._multipliers(number, values.shape[1])
        for word in range(values.shape[1]):
            sums += _product(values[:, word].astype(np.uint64), multipliers, word)

    def _add_strings(self, sums: UInt64Array, number: int, values: pa.Array) -> None:
        offsets = offsets_of(values)
        starts = offsets[:-1].astype(np.int64)
        lengths = np.diff(offsets).astype(np.int64)
        longest = int(lengths.max())
        multipliers = self._multipliers(number, 1 + -(-longest // 8))
        sums += _product(lengths.view(np.uint64), multipliers, 0)
        if not longest:
            return
        data = np.frombuffer(values.buffers()[2], np.uint8)
        if len(data) < 8:
            data = np.concatenate((data, np.zeros(8, np.uint8)))
        words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        rows: Any = slice(None)
        for word in range(-(-longest // 8)):
            remaining = lengths - 8 * word
            if remaining.min() <= 0:
                rows = np.flatnonzero(remaining > 0)
                remaining = remaining[rows]
            at = starts[rows] + 8 * word
            if at[-1] < len(words):
                chunk = words[at]
            else:  # the last bytes of the buffer are read by stepping back, and shifted into place
                readable = np.minimum(at, len(words) - 1)
                chunk = words[readable] >> ((at - readable).view(np.uint64) * _BYTES)
            if remaining.min() < 8:
                missing = np.maximum(8 - remaining, 0).view(np.uint64) * _BYTES
                chunk = (chunk << missing) >> missing
            sums[rows] += _product(chunk, multipliers, 1 + word)


def _product(words: UInt64Array, multipliers: UInt64Array, word: int) -> UInt64Array:
    high = words >> _HALF
    high += multipliers[1 + 2 * word]
    low = words & _LOW
    low += multipliers[2 + 2 * word]
    high *= low
    return high


def _mix(sums: UInt64Array) -> None:
    sums ^= sums >> np.uint64(33)
    sums *= np.uint64(0xFF51_AFD7_ED55_8CCD)
    sums ^= sums >> np.uint64(33)
    sums *= np.uint64(0xC4CE_B9FE_1A85_EC53)
    sums ^= sums >> np.uint64(33)


@lru_cache(maxsize=256)
def _multipliers(secret: tuple[int, int], column: int, words: int) -> UInt64Array:
    seed = np.random.SeedSequence([*secret, column])
    drawn = np.random.Generator(np.random.Philox(seed)).integers(
        0, 2**64 - 1, 1 + 2 * words, np.uint64, endpoint=True
    )
    drawn.setflags(write=False)
    return drawn
