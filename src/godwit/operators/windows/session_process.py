"""``window(session(...)).process``: any Python over the rows of a key and session, once it is over.

A session is not known before it is over, since the next row may join two.  So its rows are a state
that merges like an aggregate's: they lie in the session's entry, and are written again whenever the
session grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.columns.python_values import UTC
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.aggregates.builtin import kept_rows
from godwit.operators.aggregates.rows import rows_of
from godwit.operators.windows.calls import WindowFunction
from godwit.operators.windows.sessions import SessionCompute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from godwit.operators.windows.event_time import RowTime

__all__ = ["SessionProcess"]

_ROWS: Final = f"{RESERVED_PREFIX}_rows"


class SessionProcess(SessionCompute):
    """A function of the user, called per key and session.

    Parameters
    ----------
    name, keys, arriving, time, gap_us
        As of `SessionCompute`.
    function, output, zone
        As of `godwit.operators.windows.process.WindowedProcess`.  The function gets the rows of a
        session in order of event time.
    """

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,
        time: RowTime,
        function: Callable[..., Iterable[Any] | None],
        output: pa.Schema,
        gap_us: int,
        zone: str = UTC,
    ) -> None:
        self._rows = pa.schema([field for field in arriving if field.name not in keys])
        self.function = function
        self._function = WindowFunction(operator=name, function=function, output=output, zone=zone)
        super().__init__(
            name=name,
            keys=keys,
            arriving=arriving,
            time=time,
            inputs=self._rows,
            aggregates={_ROWS: kept_rows(*self._rows.names)},
            gap_us=gap_us,
        )

    @property
    def kind(self) -> str:
        """What makes one."""
        return "session process"

    def output_of(self, bounds: list[pa.Field]) -> pa.Schema:  # noqa: ARG002
        """Columns that the function returns."""
        return self._function.output

    def emitted(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Call the function for sessions that are over."""
        first, last, packed = self.results(keys, state)
        opens, ends = self.bounds(first, last)
        starts, rows = rows_of(packed, self._rows)
        session = np.repeat(np.arange(len(first)), np.diff(starts))
        times = values_of(rows.column(rows.schema.get_field_index(self.time.column)))
        return self._function(
            keys=keys.select(list(range(self.pane_position))),
            starts=opens,
            ends=ends,
            rows=rows,
            order=np.lexsort((times, session)),
            bounds=starts,
        )
