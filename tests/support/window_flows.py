"""Flows over event time for tests of lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.support.fake_flow import FakeDataFrame
from tests.support.timed_run import TIME, TimedRun

from godwit.api.flow import LogicalFlow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

__all__ = ["ROWS", "TIME", "Row", "WindowedRun", "batch_of"]

ROWS = pa.schema([("k", pa.string()), ("ts", TIME), ("v", pa.int64())])

Row = tuple[str, "int | None", int]


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    """Rows of (key, microseconds, value)."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)],
        schema=ROWS,
    )


class WindowedRun(TimedRun):
    """Lanes of one flow over one source with event time, in one process.

    Parameters
    ----------
    build
        Makes of the keyed stream the streams whose output is wanted.
    together
        Whether all operators share a component.
    columns, key
        Columns of the source, and the one that is its key.
    source
        Options of the source.
    """

    def __init__(
        self,
        build: Callable[[KeyedStream], Stream],
        root: Path,
        *,
        executors: Mapping[str, int] | None = None,
        num_key_groups: int = 16,
        together: bool = False,
        columns: pa.Schema = ROWS,
        key: str = "k",
        **source: Any,
    ) -> None:
        flow = LogicalFlow("flow", num_key_groups)
        frame: Any = FakeDataFrame(columns)
        source = {"event_time": "ts", **source}
        stream = build(flow.source("rows", frame, **source).key_by(key))
        super().__init__(flow, stream, root, executors=executors, together=together)

    def epoch(self, *parts: Iterable[Row]) -> list[tuple[Any, ...]]:
        """Run an epoch, a source partition each; return the rows that came out, sorted."""
        wanted = list(self.compiled.inputs[0].columns)
        rows = {0: [batch_of(part).select(wanted) for part in parts]} if parts else {}
        self.play(rows)
        return self.output("out")
