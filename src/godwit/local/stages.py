"""Stages of an epoch in this process: lists stand for the shuffle.

The lanes are those that run on executors; instructions and reports cross a pickle, as they do
there.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from godwit.engine.lane.lane import run_lane
from godwit.engine.lane.lane_flow import shipments
from godwit.engine.lane.messages import InstructionParts, LaneReport
from godwit.engine.lane.source_side import ship_input, ship_splits
from godwit.engine.lane.wire import FAILED, ship_arrivals, ship_unreadable, split_by_level
from godwit.time.event_time import Arrivals

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    import pyarrow as pa

    from godwit.engine.lane.lane_flow import LaneFlow, LaneInput
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.source_side import NumberedSplit
    from godwit.engine.lane.wire import Blob
    from godwit.sources.source import Source

Boxes = list[list[bytes]]
"""Place → payloads for it."""


def ship_rows(
    flow: LaneFlow,
    instruction: EpochInstruction,
    # input of an operator → its rows, a batch per source partition; sink → rows of failed calls
    rows: Mapping[LaneInput | str, Sequence[pa.RecordBatch]],
    # number of a watermark → event time, in microseconds, that it is to be moved by although no row
    # has it
    newest: Mapping[int, int] | None = None,
) -> Boxes:
    """Run the source side on rows in memory: combine rows per key, and divide them by lane.

    `newest`: number of a watermark → event time, in microseconds, as if a row with it had come.
    """
    boxes: Boxes = [[] for _ in instruction.places]
    shipped = shipments(flow, instruction)
    for lane_input, batches in rows.items():
        for partition, batch in enumerate(batches):
            if isinstance(lane_input, str):
                origin = (0, partition, 0, 0)
                for place, payload in ship_unreadable(
                    shipped[0], lane_input, batch, origin, keep=True, kind=FAILED
                ):
                    boxes[place].append(payload)
                continue
            shipment = shipped[lane_input.index]
            for place, payload in ship_input(shipment, lane_input, batch, partition):
                boxes[place].append(payload)
    if newest:
        origin = (0, 2**32 - 1, 0, 0)  # behind all partitions
        for place, payload in ship_arrivals(shipped[0], Arrivals(newest=dict(newest)), origin):
            boxes[place].append(payload)
    return boxes


def add_splits(
    boxes: Boxes,
    flow: LaneFlow,
    instruction: EpochInstruction,
    *,
    sources: Mapping[str, Source],
    splits: Sequence[NumberedSplit],
) -> None:
    """Run the source side on splits: read them, combine rows per key, add payloads to `boxes`."""
    routes = shipments(flow, instruction)
    for place, payload in ship_splits(flow, routes, sources, splits, places=len(boxes)):
        boxes[place].append(payload)


def run_lanes(flow: LaneFlow, instruction: EpochInstruction, boxes: Boxes) -> list[LaneReport]:
    """Run the lanes of every level one after the other; return their reports.

    `boxes`: payloads by lane.
    """
    reports: list[LaneReport] = []

    def reporting(lane: Generator[Blob, None, LaneReport]) -> Iterator[Blob]:
        """Yield a lane's payloads, and add its report once it ends."""
        report = yield from lane
        reports.append(LaneReport.loads(report.dumps()))

    parts: InstructionParts = pickle.loads(  # noqa: S301  our own
        pickle.dumps(InstructionParts.of(instruction))
    )
    for level in range(1, instruction.levels + 1):
        next_boxes: Boxes = [[] for _ in instruction.places]
        for place, box in enumerate(boxes):
            payloads, later_payloads = split_by_level(level, box)
            next_boxes[place].extend(later_payloads)
            for lane, payload in reporting(
                run_lane(flow, parts.for_place(place), level, place, payloads)
            ):
                next_boxes[lane].append(payload)
        boxes = next_boxes
    assert not any(boxes), "the last level has no receivers"
    return reports
