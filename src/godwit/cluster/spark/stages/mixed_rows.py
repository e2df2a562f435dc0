"""Rows of a micro-batch and of Godwit's own sources, on their way to the lanes of one epoch.

Each kind is read as it is by itself: a micro-batch by Spark's plan, splits by tasks, and few rows
of either by the driver.  An epoch of both has one source stage all the same, so that its lanes wait
for one exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from godwit.engine.lane.source_side import NumberedSplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from godwit.cluster.spark.stages.source_rows import FrameStage
    from godwit.cluster.spark.stages.split_rows import SplitStage
    from godwit.engine.lane.lane import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.wire import Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStage:
    """The source stage of both kinds of rows (`SourceStage`); numbered splits are of own sources.

    What both send to an operator comes by different inputs of it, so the order of their payloads
    is the same whoever reads them.
    """

    frames: FrameStage
    splits: SplitStage

    def ship(
        self, lanes: LaneFlow, instruction: EpochInstruction, items: Iterable[Any], partition: int
    ) -> Iterator[Blob]:
        """Yield payloads of rows of both kinds of sources, combined per key and split by lane."""
        for are_splits, group in groupby(items, lambda item: isinstance(item, NumberedSplit)):
            stage = self.splits if are_splits else self.frames
            yield from stage.ship(lanes, instruction, group, partition)
