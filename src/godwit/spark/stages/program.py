"""The part of a flow that executors need: its lanes, and the source side of its rows.

Rows are of DataFrames, of own sources, or both.  Each kind is read as it is by itself: a
micro-batch by Spark's plan, splits by tasks, and few rows of either by the driver.  An epoch of
both has one source side all the same, so that its lanes wait for one exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from godwit.engine.lane.lane_flow import shipments
from godwit.engine.lane.source_side import NumberedSplit, gather_batches, ship_input, ship_splits
from godwit.model.log_lines import add_to_log_context
from godwit.spark.stages.source_rows import read_feeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from godwit.engine.lane.lane_flow import Feed, LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.wire import Blob
    from godwit.sources.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The part of a flow that executors need."""

    lanes: LaneFlow
    sources: Mapping[str, Source]  # of Godwit's own; they are never opened where tasks run
    # of DataFrames: how their rows are laid out, without maps, which stay on the driver, and schema
    feeds: tuple[Feed, ...] = ()
    schema: pa.Schema | None = None

    def ship(
        self, instruction: EpochInstruction, items: Iterable[Any], partition: int
    ) -> Iterator[Blob]:
        """Combine the source rows of a partition per key, and split them by lane.

        `items` are numbered splits, or Arrow batches without their schema; `partition` tells the
        batches of several partitions apart. The two kinds send rows to different inputs of an
        operator, so the order of their payloads does not depend on the reader.
        """
        add_to_log_context(query=self.lanes.query, epoch=instruction.epoch, phase="read")
        routes = shipments(self.lanes, instruction)
        # A task may run again, while lanes have its first rows; the driver reads for all of them.
        places = 0 if TaskContext.get() is None else len(instruction.places)
        for are_splits, group in groupby(items, lambda item: isinstance(item, NumberedSplit)):
            if are_splits:
                yield from ship_splits(self.lanes, routes, self.sources, group, places=places)
                continue
            batches = (pa.ipc.read_record_batch(pa.py_buffer(data), self.schema) for data in group)
            for number, table in enumerate(gather_batches(batches)):
                for lane_input, rows in read_feeds(self.feeds, table):
                    yield from ship_input(
                        routes[lane_input.index], lane_input, rows, partition, number
                    )
