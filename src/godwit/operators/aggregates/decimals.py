"""Exact arithmetic on decimal128 columns: 128-bit integers as four limbs of 32 bits each.

Limbs are held in int64, so up to 2**31 values add up without a carry; carries are settled once at
the end.  A value is ``limbs[0] + limbs[1] * 2**32 + limbs[2] * 2**64 + limbs[3] * 2**96``, where
the last limb carries the sign.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import BoolArray, mask_of, words_of

__all__ = ["decimal_of", "integers_of", "limbs_of", "limbs_of_integers", "outside", "settle"]

Limbs: TypeAlias = npt.NDArray[np.int64]
"""Shape ``(4, N)``."""

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def limbs_of(column: pa.Array) -> Limbs:
    """Limbs of a decimal column; zero where null."""
    high, low = words_of(column)
    limbs = np.empty((4, len(column)), np.int64)
    limbs[0] = (low & _LOW).view(np.int64)
    limbs[1] = (low >> _HALF).view(np.int64)
    limbs[2] = high & 0xFFFFFFFF
    limbs[3] = high >> 32
    mask = mask_of(column)
    if mask is not None:
        limbs *= mask
    return limbs


def limbs_of_integers(values: npt.NDArray[np.int64]) -> Limbs:
    """Limbs of 64-bit integers."""
    limbs = np.empty((4, len(values)), np.int64)
    limbs[0] = values & 0xFFFFFFFF
    limbs[1] = (values >> 32) & 0xFFFFFFFF
    limbs[2] = (values >> 63) & 0xFFFFFFFF
    limbs[3] = values >> 63
    return limbs


def settle(limbs: Limbs) -> Limbs:
    """Carry what is over 32 bits into the next limb; the last limb shows an overflow."""
    settled = limbs.copy()
    for i in range(3):
        settled[i + 1] += settled[i] >> 32
        settled[i] &= 0xFFFFFFFF
    return settled


def outside(settled: Limbs, low: int, high: int) -> BoolArray:
    """Whether each value v is outside ``low <= v < high``; both bounds fit 128 bits."""
    return _at_least(settled, high) | ~_at_least(settled, low)


def decimal_of(settled: Limbs, mask: BoolArray | None, dtype: pa.DataType) -> pa.Array:
    """Join limbs that fit 128 bits into a decimal column."""
    words = np.empty((settled.shape[1], 2), np.uint64)
    unsigned = settled.view(np.uint64)
    words[:, 0] = unsigned[0] | (unsigned[1] << _HALF)
    words[:, 1] = unsigned[2] | (unsigned[3] << _HALF)
    bitmap = None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(dtype, len(words), [bitmap, pa.py_buffer(words)])


def integers_of(column: pa.Array) -> list[int]:
    """Unscaled values as Python integers; anything where null."""
    high, low = words_of(column)
    return [(h << 64) + w for h, w in zip(high.tolist(), low.tolist(), strict=True)]


def _at_least(settled: Limbs, bound: int) -> BoolArray:
    """Whether each value is at least `bound`."""
    result = np.ones(settled.shape[1], np.bool_)
    for i in range(4):  # from the lowest limb: a higher one decides over all below it
        limb = (bound >> (32 * i)) & 0xFFFFFFFF if i < 3 else bound >> 96
        result = (settled[i] > limb) | ((settled[i] == limb) & result)
    return result
