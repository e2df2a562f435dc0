"""Calls of users' functions that failed, where the flow goes on without their rows.

With `Flow.divert_errors` a call that raises is undone, and its rows go to a sink: the lane stages
them with the output of its attempt, so they are diverted exactly once, with their epoch.

Invariant: a call is either wholly done, or nothing of it remains but its rows in `FailedCalls`.
Errors that are not about the rows are never diverted (`is_divertible`): Godwit's own, a lack of
memory, and what ends a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.columns.failures import ascii_text, json_columns, json_objects
from godwit.columns.types import visible_names
from godwit.model.errors import GodwitError
from godwit.model.frames import user_traceback
from godwit.model.naming import error_line, function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from godwit.operators.operator import KeyedOperator
    from godwit.store.changes import StateRows

FAILED: Final = pa.schema(
    [
        pa.field(name, pa.string(), nullable=False)
        for name in ("operator", "function", "key", "row", "error", "message", "traceback")
    ]
)
"""Columns of rows of failed calls: plain ASCII, so that every target takes them.

A call without rows, such as of a timer, has a line whose ``row`` is empty. Only the first line of a
call has a ``traceback``.
"""

MAX_SEARCH_CALLS: Final = 1000
"""Maximum calls in one epoch and lane to find the rows that a function over tables fails for."""

_MAX_MESSAGE = 1000
_MAX_TRACEBACK = 4000


def is_divertible(error: BaseException) -> bool:
    """Return whether an error that a user's function raised may be about its rows."""
    return isinstance(error, Exception) and not isinstance(error, GodwitError | MemoryError)


class FailedCalls:
    """Collects the failed calls of a function in one lane and epoch."""

    def __init__(
        self,
        operator: str,  # of the function; of a map, the operator or source before it
        rows: pa.RecordBatch | pa.Table,  # the rows of all calls
        keys: Sequence[str] = (),  # names of the key columns
        order: npt.NDArray[np.int64] | None = None,  # positions of rows, to which spans refer
    ) -> None:
        self._operator, self._rows, self._order = operator, rows, order
        self._keys, self._names = visible_names(keys), visible_names(rows.schema.names)
        self._batches: list[tuple[int, pa.RecordBatch]] = []  # number of the key; rows of a call

    @classmethod
    def of(
        cls, operator: KeyedOperator, rows: StateRows, order: npt.NDArray[np.int64] | None = None
    ) -> FailedCalls | None:
        """Return the collector for an operator's rows; ``None`` if a failed call stops it."""
        if not operator.failures_to:
            return None
        keys = operator.keys.names
        columns = {name: rows.keys.column(name) for name in keys}
        columns |= dict(zip(rows.values.schema.names, rows.values.columns, strict=True))
        return cls(operator.name, pa.RecordBatch.from_pydict(columns), keys, order)

    def add(
        self,
        function: Callable[..., object],
        error: BaseException,
        span: tuple[int, int],
        key: Sequence[Any] | None = None,
        group: int = -1,
    ) -> None:
        """Add a failed call with the rows of a span.

        `key`: of the call; ``None``: of each row its own. `group`: number of the key, if several
        calls are for it.
        """
        first, end = span
        if self._order is None:
            rows = self._rows.slice(first, end - first)
        else:
            rows = self._rows.take(pa.array(self._order[first:end]))
        columns = json_columns(rows, self._names)
        if key is None:
            keys = json_objects({name: columns[name] for name in self._keys}, end - first)
        else:
            key_values = dict(zip(self._keys, key, strict=False))  # a hidden key has no name
            keys = json_objects({name: [value] for name, value in key_values.items()}, 1)
            keys *= max(end - first, 1)
            columns = {name: [key_values[name]] * (end - first) for name in self._keys} | columns
        texts = json_objects(columns, end - first) or [""]
        text = user_traceback(error) or error_line(error)
        message = error.message if isinstance(error, GodwitError) else str(error)
        call_columns = (self._operator, function_name(function))
        error_columns = (type(error).__qualname__, message[:_MAX_MESSAGE])
        arrays = [
            *([ascii_text(value)] * len(texts) for value in call_columns),
            keys,
            texts,
            *([ascii_text(value)] * len(texts) for value in error_columns),
            [ascii_text(text[-_MAX_TRACEBACK:]), *[""] * (len(texts) - 1)],
        ]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(values, pa.string()) for values in arrays], schema=FAILED
        )
        self._batches.append((group, batch))

    def forget(self, group: int) -> None:
        """Remove the failed calls for key number `group`, since all its calls are to be added."""
        self._batches = [(other, batch) for other, batch in self._batches if other != group]

    def to_batch(self) -> pa.RecordBatch | None:
        """Return the rows of all failed calls, with the columns `FAILED`; ``None`` if none."""
        return pa.concat_batches([b for _, b in self._batches]) if self._batches else None
