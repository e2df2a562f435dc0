"""CPU time of lanes that run one after the other, as if each had a core of its own."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from godwit.engine.lane.lane import run_lane
from godwit.local import ship_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.took import Took

    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, LaneReport


class LaneTimes:
    """CPU milliseconds of each lane, by epoch; medians are without the first `warm_up` epochs."""

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        self.epochs: list[list[float]] = []
        self.source_ms: list[float] = []  # of the source side, an epoch each

    @property
    def busiest_ms(self) -> float:
        """CPU time of the busiest lane, the median over epochs."""
        return median(max(lanes) for lanes in self.epochs[self._warm_up :])

    @property
    def total_ms(self) -> float:
        """CPU time of all lanes, the median over epochs."""
        return median(sum(lanes) for lanes in self.epochs[self._warm_up :])

    @property
    def source_side_ms(self) -> float:
        """CPU time of the source side, the median over epochs."""
        return median(self.source_ms[self._warm_up :])

    def run_stages(
        self, flow: LaneFlow, instruction: EpochInstruction, batch: SourceBatch[Any] | None
    ) -> list[LaneReport]:
        """Run the stages of an epoch, whose lanes send no rows to others; return the reports."""
        assert batch is not None
        cpu = time.process_time()
        boxes = ship_rows(flow, instruction, batch.rows or {})
        self.source_ms.append((time.process_time() - cpu) * 1e3)
        reports, spent = [], []
        for place, box in enumerate(boxes):
            began = time.process_time()
            lane = run_lane(flow, instruction, 1, place, box)
            try:
                next(lane)
            except StopIteration as end:
                reports.append(end.value)
            spent.append((time.process_time() - began) * 1e3)
        self.epochs.append(spent)
        return reports


def in_parts(took: Sequence[Took]) -> str:
    """Return a line of text: CPU time of the parts of epochs, and of the phases of their lanes."""
    parts = {
        name: median(getattr(one, name) for one in took)
        for name in ("plan", "source", "lanes", "commit")
    }
    phases = {name: median(one.phases.get(name, 0.0) for one in took) for name in took[-1].phases}
    cpu, wall = ("".join(f"  {name} {ms:.1f}" for name, ms in of.items()) for of in (parts, phases))
    return f"{cpu} ms CPU; lanes, wall:{wall}"
