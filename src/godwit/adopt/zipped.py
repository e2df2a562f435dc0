"""``zip_with(left, right, function)`` of Spark over Arrow columns: a value for each pair.

Where an array is shorter than the other one, its elements are null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.array_functions import lists_of_rows, rows_and_elements
from godwit.library.aggregates.arithmetic import EvaluationError
from godwit.library.aggregates.expressions import Expression, Rows

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Zip(Expression):
    """The pairs of elements of two arrays, each combined to one value."""

    left: Expression
    right: Expression
    body: Expression
    variables: tuple[str, str]  # columns of the two elements
    dtype: pa.DataType

    def __str__(self) -> str:
        return f"zip_with({self.left}, {self.right}, {self.body})"

    @property
    def can_fail(self) -> bool:
        return True

    def evaluate(self, rows: Rows) -> pa.Array:
        """Return the arrays of all rows, null where one of the two is null."""
        left = rows.needed(self.left.evaluate(rows))
        right = self.right.evaluate(rows.where(left.is_valid()))
        right = pc.if_else(left.is_valid(), right, None)
        left = pc.if_else(right.is_valid(), left, None)
        sides = [rows_and_elements(left), rows_and_elements(right)]
        sizes = [np.bincount(numbers, minlength=len(left)) for numbers, _ in sides]
        most = np.maximum(*sizes)
        numbers = np.repeat(np.arange(len(left)), most)
        position_in_row = np.arange(len(numbers)) - np.repeat(np.cumsum(most) - most, most)
        taken = pa.array(numbers)
        columns = {name: column.take(taken) for name, column in rows.columns.items()}
        for name, size, (_, elements) in zip(self.variables, sizes, sides, strict=True):
            columns[name] = _padded_elements(elements, size, numbers, position_in_row)
        try:
            values = self.body.evaluate(Rows(columns=columns))
        except EvaluationError as error:
            row = int(numbers[error.row])
            raise EvaluationError(row, error.reason, error.condition) from error
        return lists_of_rows(numbers, values, left, self.dtype)


def _padded_elements(
    elements: pa.Array,
    sizes: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64],
    within: npt.NDArray[np.int64],
) -> pa.Array:
    """Return the elements at positions of rows, null after the last element of a row."""
    begins = np.cumsum(sizes) - sizes
    missing = within >= sizes[numbers]
    return elements.take(pa.array(begins[numbers] + within, mask=missing))
