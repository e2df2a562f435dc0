"""Stages of an epoch in this process: lists stand for the shuffle.

The lanes are those that run on executors; reports cross a pickle, as they do there.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.engine.lane.lane import run_lane, shipments
from godwit.engine.lane.wire import due_at, ship, ship_arrivals
from godwit.operators.windows.event_time import Arrivals

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    import pyarrow as pa

    from godwit.engine.lane.lane import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.lane.wire import Blob, Shipment

__all__ = ["Boxes", "LaneInput", "run_lanes", "run_stages", "ship_rows"]

Boxes = list[list[bytes]]
"""Place → payloads for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInput:
    """One input of an operator that a source feeds."""

    index: int  # of the operator in the flow
    number: int = 0  # which of the operator's inputs
    watermark: int = 0  # number of the watermark that its event times move
    columns: tuple[str, ...] | None = None  # that the operator reads; None: those that there are
    time: str | None = None  # column of the event time; None if another input reports it


def run_stages(
    flow: LaneFlow,
    instruction: EpochInstruction,
    rows: Mapping[LaneInput, Sequence[pa.RecordBatch]],
    newest: Mapping[int, int] | None = None,
) -> list[LaneReport]:
    """Run all stages of an epoch and return the lanes' reports; see `ship_rows`."""
    return run_lanes(flow, instruction, ship_rows(flow, instruction, rows, newest))


def ship_rows(
    flow: LaneFlow,
    instruction: EpochInstruction,
    # input of an operator → its rows, a batch per source partition
    rows: Mapping[LaneInput, Sequence[pa.RecordBatch]],
    # number of a watermark → event time, in microseconds, that it is to be moved by although no row
    # has it
    newest: Mapping[int, int] | None = None,
) -> Boxes:
    """Do what the source side does: combine, split by lane."""
    boxes: Boxes = [[] for _ in instruction.places]
    shipped = shipments(flow, instruction)
    for lane_input, batches in rows.items():
        for partition, batch in enumerate(batches):
            for place, payload in _ship(shipped[lane_input.index], batch, partition, lane_input):
                boxes[place].append(payload)
    if newest:
        origin = (0, 2**32 - 1, 0, 0)  # behind all partitions
        for place, payload in ship_arrivals(shipped[0], Arrivals(newest=dict(newest)), origin):
            boxes[place].append(payload)
    return boxes


def run_lanes(flow: LaneFlow, instruction: EpochInstruction, boxes: Boxes) -> list[LaneReport]:
    """Run the lanes of every level, one after the other."""
    reports: list[LaneReport] = []

    def reporting(lane: Generator[Blob, None, LaneReport]) -> Iterator[Blob]:
        report = yield from lane
        reports.append(pickle.loads(report.dumps()))  # noqa: S301  our own

    for level in range(1, instruction.levels + 1):
        next_boxes: Boxes = [[] for _ in instruction.places]
        for place, box in enumerate(boxes):
            due, later = due_at(level, box)
            next_boxes[place].extend(later)
            for lane, payload in reporting(run_lane(flow, instruction, level, place, due)):
                next_boxes[lane].append(payload)
        boxes = next_boxes
    assert not any(boxes), "the last level has nobody to send rows to"
    return reports


def _ship(
    shipment: Shipment, batch: pa.RecordBatch, partition: int, lane_input: LaneInput
) -> Iterator[Blob]:
    number = lane_input.number
    if lane_input.time is not None:
        times = batch.column(batch.schema.get_field_index(lane_input.time))
        arrivals = Arrivals.of(lane_input.watermark, times, shipment.time.latest(number))
        yield from ship_arrivals(shipment, arrivals, (0, partition, 0, 0), number=number)
    columns = batch if lane_input.columns is None else batch.select(list(lane_input.columns))
    yield from ship(shipment, columns, (0, partition, 0), number=number)
