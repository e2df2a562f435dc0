"""Calling a function of the user for every key and window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.python_values import UTC, Columns, KeyRows, rows_as_tuples
from godwit.model.frames import function_failed
from godwit.operators.emitted import Emitted

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

__all__ = ["Window", "WindowFunction"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """A window of event time: from `start` up to, but not including, `end`."""

    start: dt.datetime
    end: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFunction:
    """A function over the rows of a key and window."""

    operator: str  # name of the operator that calls it
    # ``function(key, rows, window)``; returns an iterable of rows, or ``None``.
    function: Callable[..., Iterable[Any] | None]
    output: pa.Schema  # columns of the rows that it returns
    zone: str = UTC  # the session's, of datetimes without one that it returns

    def __call__(
        self,
        *,
        keys: pa.RecordBatch,
        starts: pa.Array,
        ends: pa.Array,
        rows: pa.RecordBatch,
        order: IntArray,
        bounds: IntArray,
    ) -> pa.RecordBatch:
        """Call the function for n windows, and give what it returned.

        Parameters
        ----------
        keys, starts, ends
            n rows: key and bounds of each window.
        rows
            Rows of any of them.
        order, bounds
            Rows ``order[bounds[i]:bounds[i + 1]]`` are those of window i.
        """
        given = rows_as_tuples(keys)
        moments = rows_as_tuples(pa.RecordBatch.from_arrays([starts, ends], names=["start", "end"]))
        columns = Columns(rows, rows.schema, order)
        emitted: list[Any] = []
        counts: list[int] = []
        edges = bounds.tolist()
        for i, (key, window) in enumerate(zip(given, moments, strict=True)):
            of = KeyRows(columns, edges[i], edges[i + 1])
            try:
                result = self.function(key, of, Window(*window))
                if result is not None:
                    emitted.extend(result)
            except BaseException as error:
                raise function_failed(self.operator, self.function, key, error) from error
            counts.append(len(emitted))
        return Emitted(
            rows=emitted,
            ends=counts,
            keys=given,
            schema=self.output,
            operator=self.operator,
            zone=self.zone,
        ).to_batch()
