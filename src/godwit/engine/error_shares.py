"""Failed calls of users' functions over epochs: when the query stops although they are diverted.

Invariant: an epoch with which the share of a function's recent rows that were diverted would exceed
its `SinkOutput.max_error_share` is not committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from godwit.engine.lane.messages import FailedRows
from godwit.model.errors import UserFunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.engine.lane.messages import LaneReport
    from godwit.plan.compiled import CompiledFlow

_MIN_ROWS: Final = 1000
"""Rows of which the share is taken at least, so that the first bad row does not stop a query."""
_RECENT_ROWS: Final = 1_000_000
"""Rows after which both counts are halved, so that the share is one of recent rows."""


class ErrorShares:
    """Counts, for each sink of failed calls, rows and diverted rows since the start of a run."""

    def __init__(self, flow: CompiledFlow) -> None:
        self._outputs = {o.name: o for o in flow.outputs if o.max_error_share is not None}
        self._counts: dict[str, tuple[float, float]] = {}  # sink → rows, diverted rows
        self._attempt: dict[str, tuple[float, float]] = {}  # the same, with the present attempt

    def check(self, reports: Iterable[LaneReport]) -> None:
        """Raise `UserFunctionError` if too many rows would be diverted with an attempt."""
        if not self._outputs:
            return
        reports = list(reports)
        failed = failed_rows(reports)
        rows_in: dict[str, int] = {}
        for report in reports:
            for operator_report in report.operators:
                lane_rows = sum(operator_report.rows_in.values())
                rows_in[operator_report.operator] = (
                    rows_in.get(operator_report.operator, 0) + lane_rows
                )
        self._attempt = {}
        for name, output in self._outputs.items():
            failed_of_sink = failed.get(name, FailedRows())
            diverted = failed_of_sink.rows or failed_of_sink.calls  # of timers there are only calls
            # A map on a source tells its rows only with a failure.
            new_rows = max(failed_of_sink.rows_in, rows_in.get(output.operator, 0), diverted)
            rows_before, diverted_before = self._counts.get(name, (0.0, 0.0))
            rows, diverted_rows = rows_before + new_rows, diverted_before + diverted
            assert output.max_error_share is not None
            if diverted and diverted_rows > output.max_error_share * max(rows, _MIN_ROWS):
                raise _too_many_errors(failed_of_sink, rows, diverted_rows, output.max_error_share)
            scale = 0.5 if rows > _RECENT_ROWS else 1.0
            self._attempt[name] = rows * scale, diverted_rows * scale

    def committed(self) -> None:
        """Take the counts of the last checked attempt, which was committed."""
        self._counts, self._attempt = self._attempt or self._counts, {}


def failed_rows(reports: Iterable[LaneReport]) -> dict[str, FailedRows]:
    """Return sink of failed calls → the failed calls of all lanes."""
    failed: dict[str, FailedRows] = {}
    for report in reports:
        for sink, of_lane in report.failed.items():
            failed.setdefault(sink, FailedRows()).add(of_lane)
    return failed


def calls_failed(reports: Iterable[LaneReport]) -> list[dict[str, Any]]:
    """Return the fields of `events.CallsFailed` for each function that failed."""
    return [
        {
            "operator": of_sink.first["operator"],
            "function": of_sink.first["function"],
            "calls": of_sink.calls,
            "rows": of_sink.rows,
            "error": f"{of_sink.first['error']}: {of_sink.first['message']:.200}",
            "key": "" if of_sink.first["key"] == "{}" else of_sink.first["key"],
            "sink": sink,
        }
        for sink, of_sink in failed_rows(reports).items()
        if of_sink.calls
    ]


def _too_many_errors(
    failed: FailedRows, rows: float, diverted: float, share: float
) -> UserFunctionError:
    """Return the error that a function fails for too large a share of its rows."""
    first: Mapping[str, str] = failed.first
    return UserFunctionError(
        f"Function {first['function']!r} of operator {first['operator']!r} failed for "
        f"{diverted:,.0f} of the last {rows:,.0f} rows, which is more than "
        f"max_error_share={share:g}: for key {first['key']}, row {first['row'] or 'none'}, with "
        f"{first['error']}: {first['message']}",
        remedy="Correct the function, or what it depends on; or allow a larger share. Nothing of "
        f"this epoch is committed. The first traceback is:\n{first['traceback']}",
        operator=first["operator"],
        key=first["key"],
        row=first["row"],
        error=first["error"],
        traceback=first["traceback"],
    )
