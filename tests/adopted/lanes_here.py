"""Lanes in the driver's process, instead of Spark jobs: the same lanes, many times as quick."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from godwit.engine.lane.lane import run_lane
from godwit.engine.lane.messages import InstructionParts, LaneReport
from godwit.engine.lane.wire import split_by_level
from godwit.spark.stages import pickling
from godwit.spark.stages.source_rows import SourceRows
from godwit.spark.stages.stages import run_stages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.engine.lane.messages import EpochInstruction
    from godwit.spark.stages.source_plans import Program
    from godwit.spark.stages.stages import EpochRows, Shipped


@contextmanager
def lanes_here() -> Iterator[None]:
    """Context in which the lanes of epochs with few rows run in this process."""
    flows: dict[str, Any] = {}  # run → its lanes, as an executor gets them

    def run_here(
        source: EpochRows | None,
        program: Shipped[Program],
        instruction: EpochInstruction,
        *args: Any,
        **kwargs: Any,
    ) -> list[LaneReport]:
        """Do what `run_stages` does."""
        if source is not None and not source.is_here:
            return run_stages(source, program, instruction, *args, **kwargs)
        here = program.here
        assert here is not None, "this is the driver"
        if instruction.run_id not in flows:
            flows[instruction.run_id] = pickle.loads(pickling.dumps(here)).lanes
        sent = list(here.ship(instruction, source.here, 0)) if source is not None else []
        return _run_levels(flows[instruction.run_id], instruction, sent)

    few = property(lambda _rows: True)
    with (
        patch("godwit.spark.cluster.run_stages", run_here),
        patch.object(SourceRows, "few_expected", few),
    ):
        yield


def _run_levels(
    flow: Any, instruction: EpochInstruction, sent: Sequence[tuple[int, bytes]]
) -> list[LaneReport]:
    """Run the lanes of all levels, one after the other; return their reports."""
    parts = pickle.loads(pickle.dumps(InstructionParts.of(instruction, {}, ())))
    payloads: dict[int, list[bytes]] = {}
    for place, payload in sent:
        payloads.setdefault(place, []).append(payload)
    reports = []
    for level in range(1, instruction.levels + 1):
        following: dict[int, list[bytes]] = {}
        for place in range(len(instruction.places)):
            due, later = split_by_level(level, payloads.get(place, ()))
            following.setdefault(place, []).extend(later)
            lane = run_lane(flow, parts.for_place(place), level, place, due)
            while True:
                try:
                    target, payload = next(lane)
                except StopIteration as end:
                    reports.append(LaneReport.loads(end.value.dumps()))
                    break
                following.setdefault(target, []).append(payload)
        payloads = following
    return reports
