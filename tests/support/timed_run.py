"""Lanes of a whole flow over event time, in one process: what tests of such flows share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.support.fake_flow import FakeSink, resolver
from tests.support.manual_run import ManualRun
from tests.support.restarted import changed

from godwit.checkpoint.records import ComponentPlan, PhysicalPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.manual_run import Rows

    from godwit.api.flow import LogicalFlow
    from godwit.api.streams import Stream
    from godwit.checkpoint.records import CommitRecord
    from godwit.engine.event_time import EventTimes
    from godwit.engine.lane.messages import LaneReport

__all__ = ["TIME", "TimedRun"]

TIME = pa.timestamp("us", tz="UTC")


class TimedRun:
    """Lanes of one flow, in one process; whoever derives from it feeds them.

    Parameters
    ----------
    flow, stream
        The flow, and the stream of it whose output is wanted, which goes to the sink "out".
    root
        Where checkpoint and local stores lie.
    executors
        Name → lanes.
    together
        Whether all operators share a component.

    Attributes
    ----------
    record, reports
        Of the last epoch.
    """

    record: CommitRecord
    reports: list[LaneReport]

    def __init__(
        self,
        flow: LogicalFlow,
        stream: Stream,
        root: Path,
        *,
        executors: Mapping[str, int] | None = None,
        together: bool = False,
    ) -> None:
        flow.sink("out", stream, FakeSink())
        self.compiled = flow.compile(resolver(flow))
        if together:
            names = tuple(operator.name for operator in self.compiled.operators)
            self.compiled = self.compiled.with_plan(
                PhysicalPlan(components=(ComponentPlan(name="one", operators=names),))
            )
        self._root, self._executors = root, executors or {"a": 2}
        self.run = ManualRun(self.compiled, root, self._executors)

    @property
    def times(self) -> EventTimes:
        """Event time of the run."""
        return self.run.epochs.times

    def play(self, rows: Rows) -> None:
        """Run an epoch."""
        self.record, self.reports = self.run.play(rows)

    def output(self, sink: str, *, ordered: bool = True) -> list[tuple[Any, ...]]:
        """Rows of the last epoch for a sink, moments as microseconds; sorted, or as they came."""
        found = self.run.output(sink)
        return sorted(found, key=repr) if ordered else found

    def left_out(self) -> list[tuple[Any, ...]]:
        """Rows of the last epoch for the sinks of rows that operators leave out, sorted."""
        sinks = (output.name for output in self.compiled.outputs if output.left_out)
        return [row for sink in sinks for row in self.output(sink)]

    def restart(self, *, knows_kept: bool = True) -> None:
        """Continue in a new run on the checkpoint, which may not say which windows stay."""
        if not knows_kept:
            changed(self._root, "commits", lambda record: record.update(kept={}))
        last, self.run = self.run, ManualRun(self.compiled, self._root, self._executors)
        for name in ("assignment", "suspended", "snapshots", "clock_us"):
            setattr(self.run, name, getattr(last, name))
