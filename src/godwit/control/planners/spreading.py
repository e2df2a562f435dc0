"""Shapes of the grids of parts for hot keys of a join.

A key with l rows of the left, r of the right and p pairs, in a grid of a rows and b columns, costs
each part ``l / a + r / b + p / (a b)``, and all of them together ``b l + a r + p``: to divide one
side copies the other.

Invariant: of the grids that bring a part down to the goal the one with fewest parts is chosen, and
of those the one that copies least; if none does, the one whose parts have least work.

Source: the join matrix of Okcan, Riedewald (2011), §3, with work of pairs beside that of rows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesOfKey:
    """Rows and pairs of one key, each counted once."""

    left: float
    right: float
    pairs: float

    @property
    def total(self) -> float:
        """Work of the key if it is in one part: rows and pairs."""
        return self.left + self.right + self.pairs

    def work_of_part(self, rows: int, columns: int) -> float:
        """Return the work of one part if the key is divided into `rows` times `columns` parts.

        It is ``left / rows + right / columns + pairs / (rows * columns)``.

        Examples
        --------
        >>> SidesOfKey(left=80, right=10, pairs=40).work_of_part(4, 1)
        40.0
        """
        return self.left / rows + self.right / columns + self.pairs / (rows * columns)

    def copied_rows(self, rows: int, columns: int) -> float:
        """Return the additional rows if the key is divided into `rows` times `columns` parts.

        Each row of the left is in `columns` parts, each row of the right in `rows` parts.
        """
        return (columns - 1) * self.left + (rows - 1) * self.right


def choose_shape(key: SidesOfKey, *, max_parts: int, goal: float) -> tuple[int, int]:
    """Choose rows and columns of a key's grid of parts; `goal`: max. work of a part.

    Examples
    --------
    >>> choose_shape(SidesOfKey(left=900, right=10, pairs=0), max_parts=8, goal=250)
    (4, 1)
    >>> choose_shape(SidesOfKey(left=400, right=400, pairs=0), max_parts=4, goal=250)
    (2, 2)
    """
    shapes = [
        (rows, columns)
        for rows in range(1, max_parts + 1)
        for columns in range(1, max_parts // rows + 1)
    ]
    sufficient = [shape for shape in shapes if key.work_of_part(*shape) <= goal]
    if sufficient:
        return min(
            sufficient, key=lambda shape: (shape[0] * shape[1], key.copied_rows(*shape), shape)
        )
    return min(
        shapes,
        key=lambda shape: (
            round(key.work_of_part(*shape), 6),
            shape[0] * shape[1],
            key.copied_rows(*shape),
        ),
    )
