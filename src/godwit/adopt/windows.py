"""Windows of one length as panes, if the result equals that of Spark's windows as group keys.

Spark makes a row of every window that a row falls into.  `WindowedCompute` keeps a partial state
per pane, which each row touches once, and merges a window's panes when it comes out.  The two agree
if the order of rows does not matter to the aggregates.

Which windows an expression of Spark's gives is found by evaluating it for some times
(`windows_of`): its text differs between versions of Spark.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from godwit.adopt.grouped import leave_out, only_rows
from godwit.adopt.plan import analysed, children_of, id_of, kind_of, output_of, references, to_list
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.library.windows.compute import WindowedCompute
from godwit.library.windows.operator import EventTimeOperator
from godwit.time.grid import BEGINNING, END, PaneGrid, TimeWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from godwit.adopt.plan import Catalyst
    from godwit.operators.operator import OperatorInput, OperatorOutput
    from godwit.time.event_time import Arrivals, EpochTime

_EPOCH: Final = 0  # Spark's first watermark, in microseconds
_SAMPLES: Final = 64


class SparkWindows(WindowedCompute):
    """Aggregates per key and window of one length, as Spark emits them."""

    def __init__(self, *, only_time: str, **options: Any) -> None:
        super().__init__(**options)
        # column that is true in rows that move the watermark and do no more
        self._only_time = only_time

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Assign rows to panes; drop rows whose windows were all removed by earlier batches."""
        rows = only_rows(rows, self._only_time)
        column = rows.column(self.time.column)
        mask = mask_of(column)
        if mask is not None:
            rows = rows.filter(column.is_valid())  # Spark's windows have no such rows either
        times = values_of(rows.column(self.time.column))
        rows, left_out, arrivals = leave_out(
            rows, self.is_late(times, max(time.closed, _EPOCH)), self
        )
        times = values_of(rows.column(self.time.column))
        panes = column_of(self.grid.panes(times), None, column.type)
        return self.with_panes(rows, panes), left_out, arrivals

    def closes(self, time: EpochTime) -> bool:
        """Return whether the watermark has advanced, so that a batch runs without rows."""
        return max(time.until, _EPOCH) > max(time.closed, _EPOCH)

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether the batch emits windows without rows."""
        return not self.update and EventTimeOperator.closes(self, _as_spark_time(time))

    def reads_all_keys(self, time: EpochTime) -> bool:
        """Return whether the batch emits windows without rows."""
        return self.needs_state(time)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Update the windows of the batch's rows; emit them, or the windows that it removes."""
        time = _as_spark_time(data.time)
        if not EventTimeOperator.closes(self, time):
            time = replace(time, until=time.closed)
        return super().process(replace(data, time=time))


def _as_spark_time(time: EpochTime) -> EpochTime:
    """Return the time of an epoch as in Spark, whose watermark begins at 1970."""
    return replace(time, closed=max(time.closed, _EPOCH), until=max(time.until, _EPOCH))


def windows_of(catalyst: Catalyst, plan: Any, window: Any) -> tuple[TimeWindow, Any, Any] | None:
    """Return the windows that a plan assigns to a time: their lengths, the time, the plan before.

    Parameters
    ----------
    plan
        Child of an aggregate.
    window
        Attribute of the window.

    Returns
    -------
    tuple or None
        The windows; the column of the times; and the plan without the windows. ``None`` if the plan
        is not of this form, or the windows are not of one length.
    """
    number, filters = id_of(window), []
    while _only_chooses_columns(plan) or (kind_of(plan) == "Filter" and _is_above_filter(plan)):
        if kind_of(plan) == "Filter":
            filters.append(plan.condition())
        plan = plan.child()
    if kind_of(plan) != "Filter" or kind_of(plan.child()) not in {"Expand", "Project"}:
        return None
    node = plan.child()
    if kind_of(node) == "Expand":
        position = [id_of(a) for a in output_of(node)].index(number)
        candidates = [to_list(part)[position] for part in to_list(node.projections())]
    else:
        candidates = [e for e in to_list(node.projectList()) if id_of(e) == number]
        others = [e for e in to_list(node.projectList()) if id_of(e) != number]
        if any(kind_of(e) != "AttributeReference" for e in others):
            return None
    below = children_of(node)[0]
    read = set().union(*(references(e) for e in candidates)) if candidates else set()
    times = [a for a in output_of(below) if id_of(a) in read]
    if len(times) != 1 or str(times[0].dataType().typeName()) != "timestamp":
        return None
    if not references(plan.condition()) <= {*read, number}:
        return None
    columns = {id_of(a) for a in output_of(below)}
    if not all(references(condition) <= columns - {number} for condition in filters):
        return None
    windows = _window_of_expressions(catalyst, candidates, times[0])
    for condition in reversed(filters):
        below = catalyst.logical.Filter(condition, below)
    return None if windows is None else (windows, times[0], below)


def _only_chooses_columns(plan: Any) -> bool:
    """Return whether a node only selects columns, as after column pruning."""
    return kind_of(plan) == "Project" and all(
        kind_of(e) == "AttributeReference" for e in to_list(plan.projectList())
    )


def _is_above_filter(plan: Any) -> bool:
    """Return whether another filter is below a node, with only projections in between.

    The lowest one leaves out the rows that are in no window.
    """
    below = plan.child()
    while _only_chooses_columns(below):
        below = below.child()
    return kind_of(below) == "Filter"


def _window_of_expressions(
    catalyst: Catalyst, windows: Sequence[Any], time: Any
) -> TimeWindow | None:
    """Return the windows of expressions for some times; ``None`` if not of one length."""
    draw = random.Random(0)  # noqa: S311  the same times at every start
    span = 10**15
    micros = [draw.randrange(-span // 4, 2 * span) for _ in range(_SAMPLES)]
    micros += [base + step for base in micros[:8] for step in (1, 999_999, 60_000_000)]
    spark = catalyst.spark
    frame = spark.createDataFrame([(number,) for number in micros], "n bigint")
    frame = frame.selectExpr("n", "timestamp_micros(n) AS t")
    plan = analysed(frame)
    count, moment = output_of(plan)
    bound = catalyst.project([count, catalyst.alias(moment, time.name(), time.exprId())], plan)
    parts = [
        catalyst.alias(catalyst.micros(catalyst.field(window, ordinal)), f"w{number}_{ordinal}")
        for number, window in enumerate(windows)
        for ordinal in (0, 1)
    ]
    rows = catalyst.dataframe(catalyst.project([count, *parts], bound)).collect()
    every: dict[int, set[tuple[int, int]]] = {}
    for number, *bounds in rows:
        pairs = zip(bounds[::2], bounds[1::2], strict=True)
        every[number] = {(start, end) for start, end in pairs if start <= number < end}
    lengths = {end - start for pairs in every.values() for start, end in pairs}
    starts = sorted({start for pairs in every.values() for start, _ in pairs})
    if len(lengths) != 1 or len(starts) < 2:
        return None
    every_us = math.gcd(*(start - starts[0] for start in starts[1:]))
    (length_us,) = lengths
    if every_us > length_us:
        return None
    window = TimeWindow(length_us=length_us, every_us=every_us, offset_us=starts[0] % every_us)
    numbers = np.array(list(every), np.int64)
    grid = PaneGrid.of(window)
    panes = grid.windows_of(grid.panes(numbers), BEGINNING, END)
    ours: dict[int, set[tuple[int, int]]] = {number: set() for number in every}
    for row, start, end in zip(
        panes.pane.tolist(), panes.start.tolist(), panes.end.tolist(), strict=True
    ):
        ours[int(numbers[row])].add((start, end))
    return window if ours == every else None
