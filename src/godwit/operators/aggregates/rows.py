"""The rows of a key themselves, as a state that merges: what a function over sessions is given.

A key's state is its rows in order of arrival, packed (`godwit.operators.aggregates.packing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.evolution import type_text
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn
from godwit.operators.aggregates.ordering import can_be_held, rows_by_group
from godwit.operators.aggregates.packing import PackedColumn, pack, unpack, unpack_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateUpgrade

__all__ = ["bind_rows", "rows_of"]

IntArray = npt.NDArray[np.int64]


def bind_rows(*columns: pa.Field) -> BoundAggregate | None:
    """Keep all rows, with these columns."""
    if not columns or not all(can_be_held(column.type) for column in columns):
        return None
    return _Rows(
        columns=columns,
        layout=_layout(columns),
        state=pa.schema({"rows": pa.large_binary()}),
        output=pa.large_binary(),
        identity={"aggregate": "rows", "columns": [[c.name, type_text(c.type)] for c in columns]},
    )


def rows_of(states: pa.Array, columns: pa.Schema) -> tuple[IntArray, pa.RecordBatch]:
    """Take states apart.

    Returns
    -------
    starts, rows
        Rows ``starts[g]`` to ``starts[g + 1]`` are those of state g.
    """
    starts, found = unpack(states, _layout(columns))
    return starts, pa.RecordBatch.from_arrays(found, schema=columns)


def _layout(columns: pa.Schema | tuple[pa.Field, ...]) -> tuple[PackedColumn, ...]:
    return tuple(PackedColumn(dtype=column.type, nullable=True) for column in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowsByName:
    """A `StateUpgrade` of rows whose columns are in another order, or more.

    Attributes
    ----------
    written
        Names of the columns that were written.
    names, layout
        Those of today.
    """

    written: tuple[str, ...]
    names: tuple[str, ...]
    layout: tuple[PackedColumn, ...]

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Give as many states."""
        of = dict(zip(self.names, self.layout, strict=True))
        starts, columns = unpack(values.column(0), tuple(of[name] for name in self.written))
        found = dict(zip(self.written, columns, strict=True))
        count = int(starts[-1])
        rows = [
            found[name] if name in found else pa.nulls(count, column.dtype)
            for name, column in of.items()
        ]
        return pa.RecordBatch.from_arrays([pack(starts, rows, self.layout)], schema=values.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows(BuiltIn):
    columns: tuple[pa.Field, ...]
    layout: tuple[PackedColumn, ...]

    def upgrade_from(self, stored: Mapping[str, Any]) -> StateUpgrade | None:
        """Find the columns of rows by name; those that are new are null."""
        written = dict(stored.get("columns", ()))
        types = {field.name: type_text(field.type) for field in self.columns}
        if stored.get("aggregate") != "rows" or any(
            types.get(name) != dtype for name, dtype in written.items()
        ):
            return None
        return _RowsByName(written=tuple(written), names=tuple(types), layout=self.layout)

    def create(self, count: int) -> pa.RecordBatch:
        nothing = [pa.nulls(0, column.dtype) for column in self.layout]
        return self.states(pack(np.zeros(count + 1, np.int64), nothing, self.layout))

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        return self._joined(states.num_rows, self._held(states), (groups, list(columns)))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._joined(left.num_rows, self._held(left), self._held(right))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0)

    def _held(self, states: pa.RecordBatch) -> tuple[IntArray, list[pa.Array]]:
        return unpack_rows(states.column(0), self.layout)

    def _joined(
        self,
        count: int,
        earlier: tuple[IntArray, list[pa.Array]],
        later: tuple[IntArray, list[pa.Array]],
    ) -> pa.RecordBatch:
        order, starts = rows_by_group(np.concatenate([earlier[0], later[0]]), count)
        columns = [
            pa.concat_arrays([before, after]).take(pa.array(order))
            for before, after in zip(earlier[1], later[1], strict=True)
        ]
        return self.states(pack(starts, columns, self.layout))
