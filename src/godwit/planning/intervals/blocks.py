"""Blocks of rows that are computed apart from each other, here or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BLOCK_PAIRS", "Block", "BlockMap", "row_blocks", "serially"]

BLOCK_PAIRS = 1 << 14
"""Pairs of partitionings aligned at once; a few such matrices fit a core's cache."""

In = TypeVar("In")
Out = TypeVar("Out")
Block = tuple[int, int, int]
"""Index of a size, first row, last row + 1."""


class BlockMap(Protocol):
    """Port: apply a function to every block, in any place and order; results in order."""

    def __call__(self, function: Callable[[In], Out], blocks: Sequence[In]) -> list[Out]:
        """Return ``[function(block) for block in blocks]``."""
        ...


def serially(function: Callable[[In], Out], blocks: Sequence[In]) -> list[Out]:
    """Apply in this process: the `BlockMap` of small problems and of tests."""
    return [function(block) for block in blocks]


def row_blocks(counts: Sequence[int], widest: int) -> list[Block]:
    """Make blocks of rows of every size, small enough for a cache next to `widest` targets."""
    rows_at_once = max(1, min(256, BLOCK_PAIRS // max(1, min(widest, 256))))
    return [
        (size, first, min(count, first + rows_at_once))
        for size, count in enumerate(counts)
        for first in range(0, count, rows_at_once)
    ]
