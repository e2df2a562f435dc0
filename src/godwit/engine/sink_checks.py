"""Checks of sinks without a run: of their configuration, and of their unchanged targets.

`flow.explain` and `godwit.testing` use them; a start opens the sinks (`godwit.engine.outputs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.errors import GodwitError, SinkError
from godwit.model.naming import type_name
from godwit.plan.compiled import is_whole_result
from godwit.sinks.sink import SinkContext

if TYPE_CHECKING:
    import pyarrow as pa

    from godwit.plan.compiled import CompiledFlow, SinkOutput
    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import Views


def check_columns_of_sinks(flow: CompiledFlow) -> None:
    """Raise `SinkError` if a sink's configuration does not fit its rows; no target is accessed."""
    for output in flow.outputs:
        check = getattr(output.sink, "check_columns", None)  # a sink need not derive from `Sink`
        if check is not None:
            check(context_of(output, flow))


def try_sink(output: SinkOutput, flow: CompiledFlow, query_id: str) -> RowCheck | None:
    """Check a sink's target without changing it; return the check for its rows.

    Raises `SinkError` if the target cannot take the rows, or cannot be reached.
    """
    check = getattr(output.sink, "check", None)
    if check is None:
        return None
    try:
        row_check: RowCheck | None = check(context_of(output, flow, query_id=query_id))
    except GodwitError:
        raise
    except Exception as error:
        raise SinkError(
            f"Sink {output.name!r} cannot be checked: {type(error).__name__}: {error}",
            remedy="Fix its target, or its method check.",
            sink=output.name,
        ) from error
    if row_check is not None and not callable(row_check):
        raise SinkError(
            f"The method check of sink {output.name!r} returned a value of type "
            f"{type_name(row_check)}.",
            remedy="Let it return a function that finds the rows that the target cannot take, or "
            "None.",
            sink=output.name,
        )
    return row_check


class _NoViews:
    """No-op views, for sinks that are only checked."""

    def show(self, name: str, rows: pa.Table) -> None:
        """No-op."""


def context_of(
    output: SinkOutput,
    flow: CompiledFlow,
    *,
    query_id: str = "",
    views: Views = _NoViews(),  # noqa: B008  it has no state
    writer: str | None = None,
    batches_before: int = 0,
) -> SinkContext:
    """Return the description of a sink's rows."""
    return SinkContext(
        name=output.name,
        writer=output.name if writer is None else writer,
        flow=flow.name,
        query_id=query_id,
        schema=output.schema,
        keys=output.keys,
        unique_keys=output.unique_keys,
        mapped=bool(output.maps),
        complete=output.sink.wants_rows and is_whole_result(flow, output),
        views=views,
        batches_before=batches_before,
        kind=output.kind,
        table_keys=output.table_keys,
    )
