"""Joins of rows between two stateful nodes with a static table, in the lanes.

The table is read once, when the query starts, and is part of the lanes' program with an index of
its rows by their keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.encoding import order_keys
from godwit.adopt.functions import evaluated, truth_of
from godwit.adopt.plan import children_of, kind_of, references
from godwit.columns.arrays import mask_of, values_of
from godwit.columns.hashing import hash_keys
from godwit.library.aggregates.expressions import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from godwit.library.aggregates.expressions import Expression

    Integers = npt.NDArray[np.int64]

MAX_ROWS: Final = 1_000_000
"""Maximum number of rows of a table, since each lane holds all of them."""
_EQUAL: Final = {"EqualTo": False, "EqualNullSafe": True}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Index:
    """Rows of a table in the order of the hashes of their keys."""

    rows: Integers
    hashes: Integers
    keys: pa.Array

    @classmethod
    def of(cls, keys: pa.Array, rows: Integers) -> _Index:
        """Return the index of some rows; `keys`: those of all rows."""
        hashes = _hash_keys(keys)[rows]
        order = np.argsort(hashes, kind="stable")
        rows = rows[order]
        return cls(rows=rows, hashes=hashes[order], keys=keys.take(pa.array(rows)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StaticJoin:
    """A step that joins rows with those of a table."""

    how: str  # "inner", "outer" (rows without a partner stay), "semi" or "anti"
    table: dict[str, pa.Array]  # columns by their keys
    size: int  # rows of the table
    # of the rows, of the table, whether nulls are equal, and as text
    equal: tuple[tuple[Expression, Expression, bool, str], ...]
    conditions: tuple[tuple[Expression, str], ...]  # of pairs of rows, and as text
    index: _Index | None = field(init=False)  # of the table's rows; ``None``: all rows are partners

    def __post_init__(self) -> None:
        index = None
        if self.equal and self.size:  # a table without columns has no rows to evaluate over
            rows = Rows(columns=self.table)
            keys, usable = self._binary_keys(
                [evaluated(part, text, rows) for _, part, _, text in self.equal]
            )
            index = _Index.of(keys, np.flatnonzero(usable))
        object.__setattr__(self, "index", index)

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the joined rows, in the order of the stream's rows."""
        length = len(next(iter(columns.values())))
        rows, partners = self._equal_key_pairs(columns, length)
        for condition, text in self.conditions:
            pairs = Rows(columns=self._joined_columns(columns, rows, partners))
            chosen = np.flatnonzero(values_of(truth_of(condition, text, pairs).fill_null(False)))
            rows, partners = rows[chosen], partners[chosen]
        if self.how in {"semi", "anti"}:
            met = np.bincount(rows, minlength=length) > 0
            stays = pa.array(np.flatnonzero(met == (self.how == "semi")))
            return {key: column.take(stays) for key, column in columns.items()}
        if self.how == "outer":
            alone = np.flatnonzero(np.bincount(rows, minlength=length) == 0)
            order = np.argsort(np.concatenate([rows, alone]), kind="stable")
            rows = np.concatenate([rows, alone])[order]
            partners = np.concatenate([partners, np.full(len(alone), -1)])[order]
        return self._joined_columns(columns, rows, partners)

    def _equal_key_pairs(
        self, columns: Mapping[str, pa.Array], length: int
    ) -> tuple[Integers, Integers]:
        """Return the rows, and the rows of the table, whose keys are equal."""
        if self.index is None:
            return np.repeat(np.arange(length), self.size), np.tile(np.arange(self.size), length)
        values = [
            evaluated(of_rows, text, Rows(columns=columns)) for of_rows, *_, text in self.equal
        ]
        keys, usable = self._binary_keys(values)
        hashes = _hash_keys(keys)
        begins = np.searchsorted(self.index.hashes, hashes, "left")
        ends = np.searchsorted(self.index.hashes, hashes, "right")
        counts = np.where(usable, ends - begins, 0)
        rows = np.repeat(np.arange(length), counts)
        position_in_group = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(begins, counts) + position_in_group
        same = values_of(
            pc.equal(keys.take(pa.array(rows)), self.index.keys.take(pa.array(places)))
        )
        return rows[same], self.index.rows[places[same]]

    def _binary_keys(self, values: Sequence[pa.Array]) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Return the key of each row as a binary value, and whether it may equal another one."""
        keys = order_keys(pa.StructArray.from_arrays(values, list(map(str, range(len(values))))))
        usable = np.ones(len(keys), np.bool_)
        for column, (_, _, nulls_are_equal, _) in zip(values, self.equal, strict=True):
            mask = mask_of(column)
            if mask is not None and not nulls_are_equal:
                usable &= mask
        return keys, usable

    def _joined_columns(
        self, columns: Mapping[str, pa.Array], rows: Integers, partners: Integers
    ) -> dict[str, pa.Array]:
        """Return the columns of pairs; a partner of -1 is null."""
        mine, theirs = pa.array(rows), pa.array(partners, mask=partners < 0)
        joined = {key: column.take(mine) for key, column in columns.items()}
        return joined | {key: column.take(theirs) for key, column in self.table.items()}


def _hash_keys(keys: pa.Array) -> Integers:
    """Return the hashes of keys."""
    return hash_keys(pa.RecordBatch.from_arrays([keys], ["key"]))


def how_of(node: Any, stream: int) -> str | None:
    """Return how a join is computed; ``None`` if it is not.

    `stream`: number of the child whose rows are joined with the other one.
    """
    name = str(node.joinType().toString())
    outer = ("LeftOuter", "RightOuter")[stream]
    known = {"Inner": "inner", "Cross": "inner", outer: "outer"}
    if stream == 0:
        known |= {"LeftSemi": "semi", "LeftAnti": "anti"}
    return known.get(name)


def equal_parts(part: Any, of_table: set[int]) -> tuple[Any, Any, bool] | None:
    """Return the operands of an equation, of the rows and of the table; ``None`` if it is not one.

    `of_table`: numbers of the table's columns.
    """
    nulls_are_equal = _EQUAL.get(kind_of(part))
    if nulls_are_equal is None:
        return None
    left, right = children_of(part)
    sides = [references(left), references(right)]
    if not all(sides):
        return None
    if sides[1] <= of_table and not sides[0] & of_table:
        return left, right, nulls_are_equal
    if sides[0] <= of_table and not sides[1] & of_table:
        return right, left, nulls_are_equal
    return None
