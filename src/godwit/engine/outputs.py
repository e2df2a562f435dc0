"""The sinks of a flow on the driver: opened, given what is staged, closed.

Lanes stage rows in the checkpoint, or write them to the target and stage the names of the files;
the commit record names what counts, so whatever a sink is given, now or after a crash, is the same
rows in the same order.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, read_block
from godwit.checkpoint.staged_output import DivertedRows, decode_files
from godwit.engine.deliveries import Deliveries
from godwit.engine.lane.outputs import refusal, rejected_rows
from godwit.model.errors import GodwitError, SinkError
from godwit.plan.staging import REJECTED, Rejections, StagedSink
from godwit.sinks.carried_files import CarriedFiles, read_former_target
from godwit.sinks.continuity import Position, continue_delivery, way_of
from godwit.sinks.file_systems import destination_of
from godwit.sinks.rows import with_columns_of
from godwit.sinks.sink import SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.checkpoint.records import BlockRef, CommitRecord, OutputRef, SinkRecord
    from godwit.checkpoint.staged_output import WrittenFile, WrittenFiles
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.plan.compiled import CompiledFlow, Output
    from godwit.plan.staging import RowCheck
    from godwit.sinks.continuity import OnDivergence, Way
    from godwit.sinks.sink import EpochOutput, Sink

__all__ = ["OpenSinks", "Session", "StagedOutput", "staged_sinks"]

_logger = logging.getLogger("godwit")
_LOCAL_BYTES = 4 * 2**20


class Session(Protocol):
    """The session that sinks' DataFrames and views live in (see `godwit.sinks.sink.Views`)."""

    def show(self, name: str, rows: pa.Table) -> None:
        """Keep a temporary view."""

    def dataframe(self, rows: pa.Table) -> Any:
        """Make a DataFrame of rows that are here."""

    def stored_dataframe(
        self, storage: CheckpointStorage, blocks: Sequence[BlockRef], schema: pa.Schema
    ) -> Any:
        """Make a DataFrame of rows in the checkpoint, which executors read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutput:
    """The rows of one epoch for one sink (see `godwit.sinks.EpochOutput`).

    Attributes
    ----------
    output
        The sink, as the flow describes it.
    epoch
        The epoch.
    complete
        Whether it is the whole result; ``None``: as the sink was opened for.
    point
        The epoch in its history.
    refs
        Where the rows are, in order.
    storage
        The checkpoint.
    session
        Makes DataFrames.
    on_divert
        Gets rows that the sink rejects while it delivers, and who found them: all of each, however
        often the rows are read; ``None`` if nobody does.
    check
        Finds rows that the sink cannot take, where lanes have not looked for them: another run
        staged them, perhaps for another sink.
    carried
        Files of another query's target that the checkpoint, a copy, has with it.
    """

    output: Output
    epoch: int
    complete: bool | None
    point: HistoryPoint
    refs: Sequence[OutputRef]
    storage: CheckpointStorage
    session: Session
    on_divert: Callable[[str, pa.Table], None] | None = None
    check: RowCheck | None = None
    carried: CarriedFiles | None = None

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows: staged rows say it themselves."""
        held = next((ref for ref in self.refs if ref.kind == "rows"), None)
        return self.output.schema if held is None else self._batch(held).schema

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return sum(ref.rows for ref in self.refs)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows on the driver, one batch at a time, but for the sink's own files."""
        if self.check is None:
            yield from self._staged()
            return
        rejected: list[pa.RecordBatch] = []
        reasons: list[str] = []
        for batch in self._staged():
            try:
                found = self.check(with_columns_of(self.output.schema, batch))
            except pa.ArrowException:
                found = None  # the sink says what does not fit
            if found is None:
                yield batch
                continue
            rejected.append(batch.take(pa.array(found.rows)))
            reasons += found.reasons
            kept = np.ones(batch.num_rows, np.bool_)
            kept[found.rows] = False
            yield batch.filter(pa.array(kept))
        if rejected:
            rows = pa.concat_batches(rejected)
            found_all = Rejections(rows=np.arange(rows.num_rows), reasons=reasons)
            self._divert("check", rows, found_all)
        elif self.on_divert is not None:
            self.on_divert("check", REJECTED.empty_table())

    def _staged(self) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        for ref in self.refs:
            if ref.kind == "rows":
                yield self._batch(ref)
            elif not self._is_own(written := self._written(ref)):
                yield from read_former_target(written, schema, self.output.name, self.carried)

    def files(self) -> Sequence[WrittenFile]:
        """Files that lanes wrote to the sink's target."""
        written = [self._written(ref) for ref in self.refs if ref.kind == "files"]
        return [file for files in written if self._is_own(files) for file in files.files]

    def _is_own(self, written: WrittenFiles) -> bool:
        """Whether files were written to where the sink writes, be it with other credentials."""
        target = self.output.sink.target
        return target is not None and (
            written.target == target or destination_of(written.target) == destination_of(target)
        )

    def dataframe(self) -> Any:
        """Make a DataFrame of the rows; executors read them, unless they are few."""
        held = [ref for ref in self.refs if ref.kind == "rows"]
        size = sum(ref.block.length for ref in held)
        if size <= _LOCAL_BYTES or len(held) < len(self.refs):
            return self.session.dataframe(pa.Table.from_batches(self.batches(), schema=self.schema))
        return self.session.stored_dataframe(self.storage, [ref.block for ref in held], self.schema)

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        """Keep rows for the sink of rejected rows.

        Raises
        ------
        SinkError
            If there is none.
        """
        self._divert("target", rows, rejections)

    def _divert(self, who: str, rows: pa.RecordBatch, rejections: Rejections) -> None:
        keys = [key for key in self.output.keys if key in rows.schema.names]
        rejected = rejected_rows(self.output.name, keys, rows, rejections)
        if self.on_divert is None:
            raise refusal(
                self.output.name,
                rejected,
                keyed=bool(keys),
                where=f"epoch {self.epoch}, which is committed",
            )
        self.on_divert(who, rejected)

    def _batch(self, ref: OutputRef) -> pa.RecordBatch:
        return decode_batch(read_block(self.storage, ref.block))

    def _written(self, ref: OutputRef) -> WrittenFiles:
        return decode_files(read_block(self.storage, ref.block))


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithDiverted:
    """Rejected rows of an epoch: those that lanes staged, then those found in delivery."""

    staged: StagedOutput
    diverted: Sequence[pa.RecordBatch]

    @property
    def epoch(self) -> int:
        return self.staged.epoch

    @property
    def schema(self) -> pa.Schema:
        return self.staged.schema

    @property
    def complete(self) -> bool | None:
        return None

    @property
    def point(self) -> HistoryPoint:
        return self.staged.point

    @property
    def num_rows(self) -> int:
        return self.staged.num_rows + sum(int(batch.num_rows) for batch in self.diverted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.staged.batches()
        yield from self.diverted

    def files(self) -> Sequence[WrittenFile]:
        return self.staged.files()

    def dataframe(self) -> Any:
        diverted = self.staged.session.dataframe(pa.Table.from_batches(self.diverted))
        return self.staged.dataframe().unionByName(diverted)

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        self.staged.divert(rows, rejections)


_serving: dict[int, tuple[Sink, OpenSinks]] = {}
"""Id of a sink object → the object, and whose it is: one object knows one query."""


class OpenSinks:
    """The open sinks of a run: given every committed epoch, and closed at the end.

    Parameters
    ----------
    flow, log, session
        The flow, its checkpoint, and where sinks' DataFrames live.
    renamed
        Old name → new name of operators since the last epoch.
    on_divergence
        What to do with a target that does not go on from the checkpoint.

    Raises
    ------
    SinkError
        If a target cannot take what it will get; no sink is open then.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        log: CommitLog,
        session: Session,
        *,
        renamed: Mapping[str, str],
        on_divergence: OnDivergence = "refuse",
    ) -> None:
        self._flow, self._log, self._session = flow, log, session
        self._outputs = flow.outputs
        self._rejecting = {o.rejects_of: o for o in flow.outputs if o.rejects_of}
        self._diverted = DivertedRows(log.storage)
        self._carried = CarriedFiles(log.storage)
        self._deliveries = Deliveries(flow, log.latest, renamed)
        self._continued: list[str] = []
        for name, rows in self._deliveries.left_out().items():
            if rows:
                _logger.warning(
                    "Sink %r is gone; %d rows that the last epoch has for it are at its target "
                    "only if the run before got to deliver them.",
                    name,
                    rows,
                )
        try:
            for output in self._outputs:
                self._open(output)
                self._continue(output, way_of(on_divergence, output.name))
        except BaseException:
            self.close()
            raise

    def _open(self, output: Output) -> None:
        _, owner = _serving.setdefault(id(output.sink), (output.sink, self))
        if owner is not self:
            raise SinkError(
                f"The object given as sink {output.name!r} serves a query that is running.",
                remedy="Make a sink of its own for each query, or stop the other query first.",
                sink=output.name,
            )
        state = self._deliveries.of.get(output.name)
        output.sink.open(
            SinkContext(
                name=output.name,
                writer=output.name if state is None else state.writer,
                flow=self._flow.name,
                query_id=self._log.identity.query_id,
                schema=output.schema,
                keys=output.keys,
                unique_keys=output.unique_keys,
                complete=state is not None and state.complete,
                views=self._session,
            )
        )

    def _continue(self, output: Output, way: Way) -> None:
        state, identity = self._deliveries.of.get(output.name), self._log.identity
        if state is None:
            return
        by = identity.origin_of(max(self._log.latest_epoch, 0)).query_id
        position = Position(before=state.before, stays=state.stays, copied=by != identity.query_id)
        told = continue_delivery(output.sink, output.name, self._log, position, way)
        if told is not None:
            _logger.warning("%s.", told[0].upper() + told[1:])
            self._continued.append(told)

    def records(self) -> dict[str, SinkRecord]:
        """Describe the sinks as the record of the next epoch keeps them."""
        return self._deliveries.records()

    def changes(self) -> tuple[str, ...]:
        """Say in words what became of the sinks of the last epoch."""
        return (*self._deliveries.changes(), *self._continued)

    def close(self) -> None:
        """Close every sink, whatever goes wrong with another."""
        with ExitStack() as closing:
            for output in self._outputs:
                _, owner = _serving.get(id(output.sink), (None, None))
                if owner is self:
                    closing.callback(_serving.pop, id(output.sink), None)
                    closing.callback(output.sink.close)

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        """Give every sink what the record of an epoch names for it.

        Rejected rows go out once all other sinks have what is theirs: rows that targets refuse now
        are kept in the checkpoint before the others count.

        Parameters
        ----------
        record
            The epoch.
        again
            Whether another run staged the epoch, before the sinks were what they are. A sink that
            was not there then gets nothing.

        Raises
        ------
        SinkError
            If a sink failed; the epoch is committed all the same.
        """
        if not again:
            self._deliveries.committed(record)
            self._carried.forget()
        self._diverted.forget_before(record.epoch)
        for output in sorted(self._outputs, key=lambda o: o.rejects_of is not None):
            staged = self._staged(output, record, again=again)
            if staged is None:
                continue
            epoch: EpochOutput = staged
            if output.rejects_of is not None:
                main = self._deliveries.of[output.rejects_of].writer
                diverted = self._diverted.read(main, record.epoch)
                epoch = _WithDiverted(staged=staged, diverted=diverted) if diverted else staged
            elif again:
                self._forget_what_did_not_count(output, record.epoch)
            _give(output, epoch)

    def _forget_what_did_not_count(self, output: Output, epoch: int) -> None:
        """Let go of rows that were refused in an attempt that came to nothing."""
        if output.sink.keeps_epochs:
            last = output.sink.last_delivered()
            if last is None or last.epoch < epoch:
                self._diverted.forget(self._deliveries.of[output.name].writer, epoch)

    def _staged(self, output: Output, record: CommitRecord, *, again: bool) -> StagedOutput | None:
        """Find what an epoch has for a sink; ``None`` if the epoch did not know the sink."""
        found: dict[str, pa.Table] = {}
        state = self._deliveries.of.get(output.name)
        if state is None or (again and state.former is None):
            return None
        name = state.former if again else output.name

        def keep(who: str, rows: pa.Table) -> None:
            found[who] = rows
            if any(rejected.num_rows for rejected in found.values()):
                self._diverted.keep(state.writer, record.epoch, found.values())
            else:  # what an attempt before this one had refused
                self._diverted.forget(state.writer, record.epoch)

        return StagedOutput(
            output=output,
            epoch=record.epoch,
            complete=state.former_complete
            if again and state.former_complete != state.complete
            else None,
            refs=[ref for ref in record.outputs if ref.sink == name],
            point=self._log.point(record.epoch),
            storage=self._log.storage,
            carried=self._carried,
            session=self._session,
            on_divert=keep if output.name in self._rejecting else None,
            check=output.sink.row_check() if again and output.rejects_of is None else None,
        )


def staged_sinks(flow: CompiledFlow) -> list[StagedSink]:
    """Collect what the open sinks of a flow give to lanes, as far as these stage rows for them."""
    rejects = {output.rejects_of: output.name for output in flow.outputs if output.rejects_of}
    return [
        StagedSink(
            name=output.name,
            maps=output.maps,
            keys=output.keys,
            check=output.sink.row_check(),
            rejects=rejects.get(output.name),
            writer=output.sink.lane_writer(),
        )
        for output in flow.outputs
        if output.rejects_of is None and output.sink.wants_rows
    ]


def _give(output: Output, epoch: EpochOutput) -> None:
    try:
        output.sink.deliver(epoch)
    except GodwitError:
        raise
    except Exception as error:
        raise SinkError(
            f"Sink {output.name!r} failed on epoch {epoch.epoch}: {type(error).__name__}: {error}",
            remedy="The epoch is committed; it is delivered again when the query is started again.",
            sink=output.name,
            epoch=epoch.epoch,
        ) from error
