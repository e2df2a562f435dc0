"""Assignments as intervals: a small routing table instead of one entry per key group.

Problem: assignments of paper 1 give every executor one range of key groups; 32,768 entries say what
a handful of cuts do.

Invariant: intervals are in order, adjacent, not empty, and cover all key groups, so they are one of
two ways to write the same map, and neighbours with one value are one interval.

Source: paper 1 §3.1 (routing tables) and §4.1 (assignments by intervals).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from godwit.model.errors import InvalidPlanError
from godwit.model.key_groups import MAX_NUM_KEY_GROUPS

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Intervals", "pack", "unpack"]

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intervals:
    """Key group → value, as intervals of key groups with one value each.

    Raises `InvalidPlanError` if the intervals do not cover all key groups in order.

    Examples
    --------
    >>> table = Intervals.of(np.array([2, 2, 0, 0, 0, 1], np.int32))
    >>> table.starts.tolist(), table.values.tolist(), table.value(4)
    ([0, 2, 5], [2, 0, 1], 0)
    >>> table.to_map().tolist()
    [2, 2, 0, 0, 0, 1]
    """

    num_key_groups: int  # how many there are
    starts: IntArray  # shape ``(k,)``: first key group of each interval, ascending from 0
    values: IntArray  # shape ``(k,)``: executor (or lane) of each interval

    def __post_init__(self) -> None:
        starts, values = np.array(self.starts, np.int32), np.array(self.values, np.int32)
        covered = (
            starts.ndim == 1
            and starts.shape == values.shape
            and len(starts) > 0
            and starts[0] == 0
            and bool((np.diff(starts) > 0).all())
            and int(starts[-1]) < self.num_key_groups
        )
        if not covered:
            raise InvalidPlanError(
                f"Intervals that start at {starts.tolist()[:10]} do not cover "
                f"{self.num_key_groups} key groups.",
                remedy="Begin at 0 and ascend; give one value for each.",
            )
        starts.setflags(write=False)
        values.setflags(write=False)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "values", values)

    @classmethod
    def of(cls, value_of: IntArray) -> Self:
        """Write a map, shape ``(num_key_groups,)``, as intervals."""
        changes = np.concatenate(([True], value_of[1:] != value_of[:-1]))
        starts = np.flatnonzero(changes).astype(np.int32)
        return cls(num_key_groups=len(value_of), starts=starts, values=value_of[starts])

    def __len__(self) -> int:
        return len(self.starts)

    def value(self, key_group: int) -> int:
        """Value of one key group, O(log k)."""
        return int(self.values[np.searchsorted(self.starts, key_group, side="right") - 1])

    def to_map(self) -> IntArray:
        """Shape ``(num_key_groups,)``: the same as an arbitrary map."""
        lengths = np.diff(self.starts, append=self.num_key_groups)
        return np.repeat(self.values, lengths).astype(np.int32)


def pack(value_of: IntArray) -> list[int] | dict[str, list[int]]:
    """Write a map in plain values: as intervals where these are fewer than half as many numbers."""
    intervals = Intervals.of(value_of)
    if 4 * len(intervals) > len(value_of):
        plain: list[int] = value_of.tolist()
        return plain
    return {"starts": intervals.starts.tolist(), "values": intervals.values.tolist()}


def unpack(packed: object, num_key_groups: int) -> IntArray:
    """Undo `pack`.

    Raises `InvalidPlanError` if it is neither way of writing a map of so many key groups.
    """
    if not isinstance(packed, Mapping):
        return np.asarray(packed, np.int32)
    if not 1 <= num_key_groups <= MAX_NUM_KEY_GROUPS:
        raise InvalidPlanError(
            f"An assignment of {num_key_groups} key groups is not one.",
            remedy=f"There are 1 to {MAX_NUM_KEY_GROUPS}.",
        )
    fields: dict[str, Any] = {name: packed.get(name, ()) for name in ("starts", "values")}
    return Intervals(num_key_groups=num_key_groups, **fields).to_map()
