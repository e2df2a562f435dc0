"""Feedback: rows that an operator emits and one upstream of it reads in the next epoch.

An edge of feedback is staged output at its one end and a source at its other.  Lanes stage the rows
in the checkpoint, like those of a sink, so the commit record of epoch *e* names the rows that are
fed back by it; the loop's source reads them in epoch *e + 1*.  So they survive whatever the commit
record survives, are routed by that epoch's assignment, and are read again if that epoch is
attempted again.  The plan stays a graph without cycles, run once an epoch.

Invariant: every epoch reads all rows that the epoch before it fed back, and no others: they are
named in its record alone (`godwit.engine.source_positions` plans it, `godwit.engine.flow_epochs`
insists on it).  The position of the source is the last epoch whose rows were read.

Source: iterations of Flink's DataStream API and the feedback of Timely Dataflow, whose logical time
has a counter of rounds; the counter here is the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, read_block
from godwit.checkpoint.records import FED_BACK
from godwit.model.errors import CheckpointMismatchError, SourceError
from godwit.model.naming import error_line, listing
from godwit.model.text import counted
from godwit.sources.source import Lag, Source, Split

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import CommitRecord, OutputRef
    from godwit.plan.maps import ArrowMap
    from godwit.sources.source import Position

DEFAULT_MAX_ROUNDS: Final = 1000


def is_fed_back(staged_for: str) -> bool:
    """Return whether staged output of the name `staged_for` belongs to a loop, not to a sink."""
    return staged_for.startswith(FED_BACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Rows of an operator that are fed back to a loop's source."""

    loop: str  # name of the source
    operator: str  # that emits them
    maps: tuple[ArrowMap, ...]  # run in the lanes of `operator`, in order
    schema: pa.Schema  # columns of the loop; the maps return them in any order
    # column of event time that holds the watermark while rows wait; ``None``: nothing does
    time: str | None = None
    delay_us: int = 0  # how far behind the watermark of `operator` the event time may be

    @property
    def staged_as(self) -> str:
        """Name of these rows among the staged output in commit records."""
        return f"{FED_BACK}{self.loop}"


class FeedbackSource(Source):
    """Source of a loop: its rows are what the epoch before fed back.

    A position is the number of the last epoch whose rows were read.
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        *,
        max_rounds: int = DEFAULT_MAX_ROUNDS,
        holds_watermark: bool = True,
    ) -> None:
        self.name, self._schema = name, schema
        self.max_rounds, self.holds_watermark = max_rounds, holds_watermark
        self._log: CommitLog | None = None

    def __repr__(self) -> str:
        return f"<feedback {self.name!r}>"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the checkpoint behind: splits say where their rows are."""
        return {**self.__dict__, "_log": None}

    def bind(self, log: CommitLog) -> None:
        """Set the commit log from which the rows that wait in the loop are read."""
        self._log = log

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that are fed back to the loop."""
        return self._schema

    @property
    def identity(self) -> str:
        """Name of the loop, as users gave it."""
        return f"feedback {self.name}"

    @property
    def waiting(self) -> tuple[int, tuple[OutputRef, ...]]:
        """Number of the last epoch, and references to the rows that it fed back.

        -1 if there is none.
        """
        record = None if self._log is None else self._log.latest
        if record is None:
            return -1, ()
        return record.epoch, waiting_in(record, self.name)

    def start(self) -> Position:
        """Return -1, the position before the first epoch."""
        return -1

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the last epoch, as a position, if it has fed rows back; else `position`.

        `limit` is ignored, since all waiting rows are read. Rows of earlier epochs have been read.
        """
        del limit, until
        epoch, refs = self.waiting
        return epoch if refs else position

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return about `parallelism` splits of the rows that lanes staged, in lane order."""
        del begin
        epoch, refs = self.waiting
        assert self._log is not None, "rows wait in a checkpoint"
        assert epoch == end, "nothing was committed since the epoch was planned"
        share = -(-len(refs) // max(parallelism, 1))
        return [
            self._make_split(end, refs[first : first + share])
            for first in range(0, len(refs), share)
        ]

    def _make_split(self, epoch: int, refs: Sequence[OutputRef]) -> Split:
        """Make the split of rows that some lanes staged in `epoch`."""
        assert self._log is not None, "see above"
        return Split(
            rows=sum(ref.rows for ref in refs),
            size_bytes=sum(ref.block.length for ref in refs),
            what=f"of rows that epoch {epoch} fed back",
            payload=(self._log.storage, tuple(ref.block for ref in refs)),
        )

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split in columns of the loop's types; raise if they do not fit."""
        storage, blocks = split.payload
        for block in blocks:
            batch = decode_batch(read_block(storage, block))
            schema = pa.schema([self._schema.field(name) for name in columns])
            if {*batch.schema.names} != {*self._schema.names}:
                raise self._columns_error(f"they have {listing(batch.schema.names)}")
            try:
                rows = batch.select(list(columns)).cast(schema)
            except pa.ArrowException as error:
                raise self._columns_error(error_line(error)) from error
            yield rows

    def _columns_error(self, how: str) -> SourceError:
        """Return the error that waiting rows have other columns than the loop; `how`: as text."""
        return SourceError(
            f"Rows that wait in the loop {self.name!r} do not have its present columns "
            f"{listing(self._schema.names)} ({how}): an earlier version of the flow fed them back.",
            remedy="Start the earlier version, let its input end, and change the columns once no "
            "rows wait in the loop.",
            source=self.name,
        )

    def lag(self, position: Position) -> Lag:
        """Return a lag of 0 rows: every epoch reads all rows that wait."""
        del position
        return Lag(rows=0)

    def describe(self, position: Position) -> dict[str, Any]:
        """Return a position as plain values: the epoch whose rows were read last."""
        return {"fed back by epoch": position}


def waiting_in(record: CommitRecord, loop: str) -> tuple[OutputRef, ...]:
    """Return the staged rows that an epoch has fed back to a loop."""
    name = f"{FED_BACK}{loop}"
    return tuple(ref for ref in record.outputs if ref.sink == name and ref.rows)


def check_loops_exist(record: CommitRecord | None, loops: Container[str], uri: str) -> None:
    """Raise if rows wait in a loop that the flow does not have: they would be lost."""
    for ref in () if record is None else record.outputs:
        loop = ref.sink.removeprefix(FED_BACK)
        if ref.rows and is_fed_back(ref.sink) and loop not in loops:
            rows = sum(other.rows for other in waiting_in(record, loop)) if record else 0
            raise CheckpointMismatchError(
                f"In the checkpoint {uri!r} {counted(rows, 'row')} of the loop {loop!r} "
                f"{'waits' if rows == 1 else 'wait'} for the next epoch, and the flow no longer "
                "has that loop.",
                remedy=f"Keep flow.feedback({loop!r}, ...) under that name; or start the flow as "
                "it was, let its input end, and remove the loop once no rows wait in it.",
                loop=loop,
                uri=uri,
            )
