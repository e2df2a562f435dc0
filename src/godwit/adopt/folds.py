"""``aggregate(array, start, merge, finish)`` of Spark over Arrow columns: a step for each element.

The first elements of all rows are merged at once, then the second ones, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.array_functions import rows_and_elements
from godwit.library.aggregates.arithmetic import EvaluationError
from godwit.library.aggregates.expressions import Expression, Rows

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(Expression):
    """The elements of every array merged into one value."""

    argument: Expression
    start: Expression
    merge: Expression
    variables: tuple[str, str]  # columns of the value so far, and of the element
    finish: Expression
    result: str  # column of the last value
    dtype: pa.DataType  # of the value so far

    def __str__(self) -> str:
        return f"aggregate({self.argument}, {self.start}, {self.merge}, {self.finish})"

    @property
    def can_fail(self) -> bool:
        return True

    def evaluate(self, rows: Rows) -> pa.Array:
        """Return the value of every row, null for an array that is null."""
        lists = rows.needed(self.argument.evaluate(rows))
        valid = rows.where(lists.is_valid())
        value = self.start.evaluate(valid).cast(self.dtype)
        numbers, elements = rows_and_elements(lists)
        sizes = np.bincount(numbers, minlength=len(lists))
        begins = np.cumsum(sizes) - sizes
        for element_number in range(int(sizes.max(initial=0))):
            longer_rows = np.flatnonzero(sizes > element_number)
            value = self._merge_elements(
                rows.columns,
                value,
                longer_rows,
                elements.take(begins[longer_rows] + element_number),
            )
        finished = self.finish.evaluate(
            Rows(columns={**rows.columns, self.result: value}, active=valid.active)
        )
        return pc.if_else(lists.is_valid(), finished, None)

    def _merge_elements(
        self,
        columns: Mapping[str, pa.Array],
        value: pa.Array,
        positions: np.ndarray,
        element: pa.Array,
    ) -> pa.Array:
        """Return the value so far with an element of some rows merged."""
        indices = pa.array(positions)
        element_columns = {name: column.take(indices) for name, column in columns.items()}
        element_columns |= dict(zip(self.variables, (value.take(indices), element), strict=True))
        try:
            merged = self.merge.evaluate(Rows(columns=element_columns)).cast(self.dtype)
        except EvaluationError as error:
            raise EvaluationError(
                int(positions[error.row]), error.reason, error.condition
            ) from error
        places = np.arange(len(value))
        places[positions] = len(value) + np.arange(len(positions))
        return pa.concat_arrays([value, merged]).take(pa.array(places))
