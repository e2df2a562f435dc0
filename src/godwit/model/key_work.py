"""Work for single keys of an operator, as lanes measure it: by it hot keys are found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
    of_key: dict[int, KeyWork] = {}
    for work in works:
        of_key[work.hash] = of_key[work.hash] + work if work.hash in of_key else work
    return tuple(sorted(of_key.values(), key=lambda work: (-work.total, work.hash)))
