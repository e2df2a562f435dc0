"""Staged output: the contract between sinks on the driver and the lanes that produce rows.

A sink lives on the driver and is given an epoch once it is committed.  Two things cannot wait for
that.  A row that its target will never take has to be found while the epoch can still be refused,
or the row set aside: afterwards it would stop every delivery.  And the bytes should be written
where the rows are, by the lanes, so that delivery has only to name them.  Both are done by small
picklable objects that a sink makes once it is open.  Their types stand here, below both sides,
since sinks and lanes do not know each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from godwit.checkpoint.staged_output import WrittenFile
    from godwit.plan.feedback import Feedback
    from godwit.plan.maps import ArrowMap

REJECTED: Final = pa.schema(
    [
        pa.field("sink", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ]
)
"""Columns of rows that a sink could not take: plain ASCII, so that every target takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejections:
    """Rows that a target cannot take, with reasons."""

    rows: npt.NDArray[np.int64]  # their positions, ascending
    reasons: Sequence[str]  # why, one for each: names the column


RowCheck: TypeAlias = "Callable[[pa.RecordBatch], Rejections | None]"
"""Finds the rows that a target cannot take; ``None`` if it takes all. Picklable."""


class LaneWriter(Protocol):
    """Port: writes a lane's rows of one epoch as files of the target; picklable."""

    @property
    def target(self) -> str:
        """Path or URI of the target, without secrets."""

    def write(self, rows: pa.Table, *, epoch: int, place: int) -> Sequence[WrittenFile] | None:
        """Write rows to files with unique names that readers of the target do not see yet.

        Returns ``None`` if the target cannot be reached from here, or the rows are too few for a
        file: they must be staged in the checkpoint instead. `place`: number of the lane.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSink:
    """A sink's part that the lanes of its operator use; picklable."""

    name: str
    maps: tuple[ArrowMap, ...]  # on the way to it
    keys: tuple[str, ...]  # columns that tell its rows apart, for messages
    check: RowCheck | None  # finds the rows that its target cannot take; ``None`` if it takes any
    rejects: str | None  # sink that gets those rows; ``None`` if they are to stop the epoch
    writer: LaneWriter | None  # writes the target's own files; ``None``: rows go to the checkpoint
    time: str | None = None  # column of event time of which the least is recorded with the rows


def loop_sink(edge: Feedback) -> StagedSink:
    """Return the sink at the end of a loop: lanes stage its rows, which stay in the checkpoint."""
    return StagedSink(
        name=edge.staged_as,
        maps=edge.maps,
        keys=(),
        check=None,
        rejects=None,
        writer=None,
        time=edge.time,
    )
