"""The pre-computation of projected costs on Spark (paper 1 §5.2 and §6).

Realises the port `godwit_lab.planners.intervals.pmc.BlockMap`: Spark tasks evaluate blocks of
partitionings.  The function (partitionings and costs so far) is broadcast once per sweep; a block
is three numbers and its result two vectors, so only the driver ever holds the whole table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark import SparkContext

In = TypeVar("In")
Out = TypeVar("Out")


class SparkBlockMap:
    """Apply a function to blocks by Spark tasks."""

    def __init__(self, context: SparkContext, *, slices: int | None = None) -> None:
        self._context = context
        self._slices = 4 * context.defaultParallelism if slices is None else slices

    def __call__(self, function: Callable[[In], Out], blocks: Sequence[In]) -> list[Out]:
        """Return ``[function(block) for block in blocks]``, computed on executors."""
        shared = self._context.broadcast(function)
        try:
            slices = max(1, min(self._slices, len(blocks)))
            computed = self._context.parallelize(blocks, slices).map(shared.value)
            return computed.collect()
        finally:
            shared.destroy()
