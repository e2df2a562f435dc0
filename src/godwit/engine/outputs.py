"""Sinks of a run: matched with those of the last epoch, opened, delivered to, closed.

Lanes stage rows in the checkpoint, or write them to the target and stage the names of the files;
the commit record names the staged output that counts, so a sink gets the same rows in the same
order, also after a crash.

An epoch is delivered after its commit, so the last epoch of a run may be delivered by the next run,
with another program.  Then a sink may have another name, write elsewhere, or be new; two may have
exchanged names.  Every row must go once to the sink for which it was staged.

A commit record has for every sink its *writer* (its permanent name at the target), its target, and
if its rows are the whole result.  A present sink is matched with the recorded sink of its
``formerly=``, else of its name and target, else with the only one of its target, else with the one
of its name.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, read_block
from godwit.checkpoint.records import SinkRecord
from godwit.engine.lane.files import accepted_rows, rejected_rows, rejected_rows_error
from godwit.model.errors import GodwitError, SinkError
from godwit.plan.compiled import is_whole_result
from godwit.plan.staging import REJECTED, DivertedRows, Rejections, StagedSink, decode_files
from godwit.sinks.carried_files import CarriedFiles, read_former_target
from godwit.sinks.checks import context_of
from godwit.sinks.continuity import Position, continue_delivery, divergence_choice
from godwit.sinks.file_systems import destination_of
from godwit.sinks.rows import with_columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.checkpoint.records import BlockRef, CommitRecord, OutputRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.plan.compiled import CompiledFlow, SinkOutput
    from godwit.plan.staging import RowCheck, WrittenFile, WrittenFiles
    from godwit.sinks.continuity import OnDivergence, Way
    from godwit.sinks.sink import EpochOutput, Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """A sink of this run, and its state in the last commit record."""

    writer: str  # its name at the target
    complete: bool  # its rows are the whole result
    # its name in the record of the last epoch; ``None`` if it is new, so that the epoch has no
    # rows for it
    former: str | None
    former_complete: bool  # the rows of that epoch are the whole result
    before: int  # the last epoch before it with rows for the sink; -1: none
    stays: bool  # its target is known to be the same
    former_kind: str  # of the rows of that epoch; see `SinkRecord.kind`


class Deliveries:
    """Matches the sinks of a run with those in commit records.

    `latest`: record of the last epoch; ``None`` before the first.
    `renamed`: old name → new name of operators since that epoch.
    """

    def __init__(
        self, flow: CompiledFlow, latest: CommitRecord | None, renamed: Mapping[str, str]
    ) -> None:
        outputs = [output for output in flow.outputs if output.sink.wants_rows]
        complete = {output.name: is_whole_result(flow, output) for output in outputs}
        recorded = {} if latest is None else latest.sinks
        previous_names = _previous_names(outputs, recorded, renamed)
        writers = {name: recorded[previous].writer for name, previous in previous_names.items()}
        for output in outputs:
            if output.name not in writers:
                writers[output.name] = _unused_writer_name(output.name, writers.values())
        self._outputs = {output.name: output for output in outputs}
        self._recorded, self._latest = recorded, latest
        self.states: dict[str, SinkState] = {}
        self._emitted: dict[str, int] = {}
        for output in outputs:
            is_complete, previous = complete[output.name], previous_names.get(output.name)
            self.states[output.name] = SinkState(
                writer=writers[output.name],
                complete=is_complete,
                former=previous,
                former_complete=is_complete if previous is None else recorded[previous].complete,
                before=-1 if previous is None else recorded[previous].before,
                stays=previous is not None and recorded[previous].target == _target(output) != "",
                former_kind="" if previous is None else recorded[previous].kind,
            )
            self._emitted[output.name] = (
                -1 if previous is None else self._last_epoch(previous, recorded[previous])
            )

    def _last_epoch(self, name: str, recorded: SinkRecord) -> int:
        """Return the last epoch with output for a sink; `recorded`: the sink in the last record."""
        assert self._latest is not None
        has_rows = any(ref.sink == name and ref.rows for ref in self._latest.outputs)
        return self._latest.epoch if has_rows or recorded.complete else recorded.before

    def records(self) -> dict[str, SinkRecord]:
        """Return sink → its description for the next commit record."""
        return {
            name: SinkRecord(
                writer=self.states[name].writer,
                target=output.sink.destination or "",
                complete=self.states[name].complete,
                formerly=output.formerly,
                before=self._emitted[name],
                kind="" if output.kind == "rows" else output.kind,
            )
            for name, output in self._outputs.items()
        }

    def committed(self, record: CommitRecord) -> None:
        """Record that an epoch has output for sinks."""
        with_rows = {ref.sink for ref in record.outputs if ref.rows}
        for name, state in self.states.items():
            if state.complete or name in with_rows:
                self._emitted[name] = record.epoch

    def describe_changes(self) -> Iterator[str]:
        """Yield a line for every sink that was added, removed or renamed."""
        for name, state in self.states.items():
            if state.former is not None and state.former != name:
                yield f"sink {state.former} is now {name}"
            elif state.former is None and self._latest is not None:
                yield f"sink {name} is new and gets the rows after epoch {self._latest.epoch}"
            elif state.former_complete != state.complete:
                before, now = (
                    "the whole result" if complete else "changed keys"
                    for complete in (state.former_complete, state.complete)
                )
                yield f"sink {name} gets {now}; up to this epoch it got {before}"
        for name, rows in self.undelivered_rows().items():
            yield (
                f"sink {name} is gone; {rows} rows that the last epoch has for it are at its "
                "target only if the last run delivered them"
                if rows
                else f"sink {name} is gone"
            )

    def undelivered_rows(self) -> dict[str, int]:
        """Return former sink → undelivered rows of the last epoch, for sinks not in this run."""
        still = {state.former for state in self.states.values()}
        outputs = () if self._latest is None else self._latest.outputs
        return {
            name: sum(ref.rows for ref in outputs if ref.sink == name)
            for name in self._recorded
            if name not in still
        }


def _previous_names(
    outputs: Iterable[SinkOutput], recorded: Mapping[str, SinkRecord], renamed: Mapping[str, str]
) -> dict[str, str]:
    """Return sink → its name in the last record, for sinks that the record has.

    `renamed`: old name → new name of operators.
    """
    previous: dict[str, str] = {}
    unmatched = list(outputs)
    old_names = {new: old for old, new in renamed.items()}

    def is_unclaimed(name: str) -> bool:
        """Return true if a sink was recorded under this name and is not matched yet."""
        return name in recorded and name not in previous.values()

    def claim(output: SinkOutput, old: str) -> None:
        """Match a sink with the recorded sink `old`, unless that is matched already."""
        if is_unclaimed(old):
            previous[output.name] = old
            unmatched.remove(output)

    for output in list(unmatched):
        is_matched = output.name in recorded and recorded[output.name].formerly == output.formerly
        if output.formerly and not is_matched:
            claim(output, output.formerly)
    for output in list(unmatched):
        has_same_target = output.name in recorded and recorded[output.name].target == _target(
            output
        )
        if has_same_target and _target(output):
            claim(output, output.name)
    targets_before = Counter(recorded[name].target for name in recorded if is_unclaimed(name))
    targets_now = Counter(map(_target, unmatched))
    for name in [name for name in recorded if is_unclaimed(name)]:
        target = recorded[name].target
        if target and targets_before[target] == targets_now[target] == 1:
            claim(next(output for output in unmatched if _target(output) == target), name)
    for output in list(unmatched):
        claim(output, _previous_derived_name(output, previous, old_names))
    for output in list(unmatched):
        claim(output, output.name)
    return previous


def _target(output: SinkOutput) -> str:
    """Return the target of a sink; empty if it is unknown."""
    return output.sink.destination or ""


def _previous_derived_name(
    output: SinkOutput, previous: Mapping[str, str], old_names: Mapping[str, str]
) -> str:
    """Return the previous name of a sink, which may be named after another sink or an operator.

    `previous`: sink → its name in the last record. `old_names`: new name → old name of operators.
    """
    if output.rejects_of is not None:
        return f"{previous.get(output.rejects_of, output.rejects_of)}_rejects"
    if not output.left_out:
        return output.name
    operator = output.name.removesuffix("_late")
    part = output.operator.removeprefix(operator)
    previous_operator = old_names.get(
        operator, old_names.get(output.operator, operator).removesuffix(part)
    )
    return f"{previous_operator}_late"


def _unused_writer_name(name: str, used_names: Iterable[str]) -> str:
    """Return `name`, with a number if it is among `used_names`, as a new sink's writer name."""
    used, writer, number = set(used_names), name, 1
    while writer in used:
        number += 1
        writer = f"{name}~{number}"
    return writer


_logger = logging.getLogger("godwit")
_LOCAL_BYTES = 4 * 2**20


class SessionPort(Protocol):
    """Port to the session of sinks' DataFrames and views (see `godwit.sinks.sink.Views`)."""

    def show(self, name: str, rows: pa.Table) -> None:
        """Create or replace a temporary view."""

    def dataframe(self, rows: pa.Table) -> Any:
        """Return a DataFrame of local rows."""

    def stored_dataframe(
        self, storage: CheckpointStorage, blocks: Sequence[BlockRef], schema: pa.Schema
    ) -> Any:
        """Return a DataFrame of rows in the checkpoint, which executors read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutput:
    """Rows of one epoch for one sink (see `godwit.sinks.EpochOutput`)."""

    output: SinkOutput  # the sink, as the flow describes it
    epoch: int
    complete: bool | None  # the whole result; ``None``: as declared when the sink was opened
    refs: Sequence[OutputRef]  # to the rows, in order
    log: CommitLog  # of the epoch
    session: SessionPort
    # called with rows that the sink rejects in delivery, and what rejected them (``"check"`` or
    # ``"target"``): all rows of each, at every read of the rows; ``None``: no sink takes them
    on_divert: Callable[[str, pa.Table], None] | None = None
    # finds rows that the sink cannot take, if lanes did not check them: another run staged them,
    # perhaps for another sink
    check: RowCheck | None = None
    # files of another query's target that came with a copied checkpoint
    carried: CarriedFiles | None = None
    former_kind: str = ""  # of the rows, if another run staged them; see `SinkRecord.kind`
    # rows rejected in delivery, for their sink; they follow the staged ones
    diverted: Sequence[pa.RecordBatch] = ()

    @property
    def point(self) -> HistoryPoint:
        """The epoch in its history."""
        return self.log.point(self.epoch)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows, as they were staged."""
        staged = next((ref for ref in self.refs if ref.kind == "rows"), None)
        return self.output.schema if staged is None else self._read_batch(staged).schema

    @property
    def num_rows(self) -> int:
        """Total number of rows, including those in files."""
        return sum(ref.rows for ref in self.refs) + sum(
            int(rows.num_rows) for rows in self.diverted
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, read on the driver, without those in files at the sink's own target."""
        if self.check is None:
            yield from self._read_staged()
            yield from self.diverted
            return
        rejected: list[pa.RecordBatch] = []
        reasons: list[str] = []
        for batch in self._read_staged():
            try:
                rejections = self.check(with_columns_of(self.output.schema, batch))
            except pa.ArrowException:
                rejections = None  # the sink raises an error with the details
            if rejections is None:
                yield batch
                continue
            rejected.append(batch.take(pa.array(rejections.rows)))
            reasons += rejections.reasons
            yield accepted_rows(batch, rejections)
        if rejected:
            rows = pa.concat_batches(rejected)
            self._divert("check", rows, Rejections(rows=np.arange(rows.num_rows), reasons=reasons))
        elif self.on_divert is not None:
            self.on_divert("check", REJECTED.empty_table())

    def _read_staged(self) -> Iterator[pa.RecordBatch]:
        """Yield rows that lanes staged, or wrote to a former target of the sink."""
        if self.refs:
            self._check_kind()
        for ref in self.refs:
            if ref.kind == "rows":
                yield self._read_batch(ref)
            elif not self._is_in_target(written := self._read_file_list(ref)):
                yield from read_former_target(written, self.schema, self.output.name, self.carried)

    def _check_kind(self) -> None:
        """Raise for changes that an earlier flow staged, if the sink took their signs otherwise."""
        output = self.output
        if not self.former_kind or self.former_kind == output.kind:
            return
        if getattr(output.sink, "deletes", False) and output.sink.keeps_epochs:
            raise SinkError(
                f"Sink {output.name!r}, epoch {self.epoch}: an earlier flow emitted the rows as "
                f"{self.former_kind}, and this one emits {output.kind}.",
                remedy="Start the earlier flow once more, which delivers this epoch; then this "
                "one.",
                sink=output.name,
                epoch=self.epoch,
            )

    def files(self) -> Sequence[WrittenFile]:
        """Return the files that lanes wrote to the sink's target."""
        written = [self._read_file_list(ref) for ref in self.refs if ref.kind == "files"]
        return [file for files in written if self._is_in_target(files) for file in files.files]

    def _is_in_target(self, written: WrittenFiles) -> bool:
        """Return true if files were written for this sink's target, ignoring credentials."""
        target = self.output.sink.target
        return target is not None and (
            written.target == target or destination_of(written.target) == destination_of(target)
        )

    def dataframe(self) -> Any:
        """Return the rows as a DataFrame; executors read them, unless they are few."""
        staged = [ref for ref in self.refs if ref.kind == "rows"]
        size = sum(ref.block.length for ref in staged)
        if size <= _LOCAL_BYTES or len(staged) < len(self.refs):
            return self.session.dataframe(pa.Table.from_batches(self.batches(), schema=self.schema))
        blocks = [ref.block for ref in staged]
        stored = self.session.stored_dataframe(self.log.storage, blocks, self.schema)
        if not self.diverted:
            return stored
        diverted = self.session.dataframe(pa.Table.from_batches(self.diverted))
        return stored.unionByName(diverted)

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        """Divert rows to the sink of rejected rows. Raises `SinkError` without one."""
        self._divert("target", rows, rejections)

    def _divert(self, by: str, rows: pa.RecordBatch, rejections: Rejections) -> None:
        """Store rows for the sink of rejected rows; `by`: ``"check"`` or ``"target"``."""
        keys = [key for key in self.output.keys if key in rows.schema.names]
        rejected = rejected_rows(self.output.name, keys, rows, rejections)
        if self.on_divert is None:
            raise rejected_rows_error(
                self.output.name,
                rejected,
                keyed=bool(keys),
                where=f"epoch {self.epoch}, which is committed",
            )
        self.on_divert(by, rejected)

    def _read_batch(self, ref: OutputRef) -> pa.RecordBatch:
        """Return the staged rows of a reference."""
        return decode_batch(read_block(self.log.storage, ref.block))

    def _read_file_list(self, ref: OutputRef) -> WrittenFiles:
        """Return the description of files that a lane wrote."""
        return decode_files(read_block(self.log.storage, ref.block))


_serving: dict[int, tuple[Sink, OpenSinks]] = {}
"""Id of a sink object → the object, and its owner: an object serves one query."""


class OpenSinks:
    """Open sinks of a run, to which every committed epoch is delivered.

    Raises `SinkError` if a target cannot take its rows; no sink is open then.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        log: CommitLog,
        session: SessionPort,
        *,
        renamed: Mapping[str, str],  # old name → new name of operators since the last epoch
        # treatment of a target that does not match the checkpoint
        on_divergence: OnDivergence = "refuse",
    ) -> None:
        self._flow, self._log, self._session = flow, log, session
        self._outputs = flow.outputs
        self._rejecting = {o.rejects_of: o for o in flow.outputs if o.rejects_of}
        self._diverted = DivertedRows(log.storage)
        self._carried = CarriedFiles(log.storage)
        self._deliveries = Deliveries(flow, log.latest, renamed)
        self._continued: list[str] = []
        self.took_s: dict[str, float] = {}
        """Sink → seconds that the last epoch's delivery to it took."""
        for name, rows in self._deliveries.undelivered_rows().items():
            if rows:
                _logger.warning(
                    "Sink %r is gone; %d rows that the last epoch has for it are at its target "
                    "only if the last run delivered them.",
                    name,
                    rows,
                )
        try:
            for output in self._outputs:
                self._open(output)
                self._continue(output, divergence_choice(on_divergence, output.name))
        except BaseException:
            self.close()
            raise

    def _open(self, output: SinkOutput) -> None:
        """Open a sink; raise if it is in use by another query."""
        _, owner = _serving.setdefault(id(output.sink), (output.sink, self))
        if owner is not self:
            raise SinkError(
                f"The object given as sink {output.name!r} serves another running query.",
                remedy="Create a sink for each query, or stop the other query first.",
                sink=output.name,
            )
        state = self._deliveries.states.get(output.name)
        output.sink.open(
            context_of(
                output,
                self._flow,
                query_id=self._log.identity.query_id,
                views=self._session,
                writer=output.name if state is None else state.writer,
                batches_before=self._log.identity.batches_before,
            )
        )

    def _continue(self, output: SinkOutput, way: Way) -> None:
        """Check that a sink's target and the checkpoint agree, and prepare the next delivery.

        `way`: the user's choice for a target that has diverged.
        """
        state, identity = self._deliveries.states.get(output.name), self._log.identity
        if state is None:
            return
        written_by = identity.origin_of(max(self._log.latest_epoch, 0)).query_id
        position = Position(
            before=state.before, stays=state.stays, copied=written_by != identity.query_id
        )
        message = continue_delivery(output.sink, output.name, self._log, position, way)
        if message is not None:
            _logger.warning("%s.", message[0].upper() + message[1:])
            self._continued.append(message)

    def records(self) -> dict[str, SinkRecord]:
        """Return sink → its description for the next commit record."""
        return self._deliveries.records()

    def describe_changes(self) -> tuple[str, ...]:
        """Return a line for every sink that was added, removed or renamed."""
        return (*self._deliveries.describe_changes(), *self._continued)

    @property
    def deliver_concurrently(self) -> bool:
        """True if all sinks that get rows allow delivery during the stages of the next epoch."""
        sinks = [output.sink for output in self._outputs if output.sink.wants_rows]
        return bool(sinks) and all(sink.delivers_concurrently for sink in sinks)

    def close(self) -> None:
        """Close every sink, even if closing another fails."""
        with ExitStack() as closing:
            for output in self._outputs:
                _, owner = _serving.get(id(output.sink), (None, None))
                if owner is self:
                    closing.callback(_serving.pop, id(output.sink), None)
                    closing.callback(output.sink.close)

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        """Deliver a committed epoch to every sink.

        Sinks of rejected rows come last: rows that targets refuse now are stored in the checkpoint
        before the other rows are recorded as delivered. `again`: another run staged the epoch,
        perhaps with other sinks; a sink that is new since then gets nothing. Raises `SinkError` if
        a sink failed; the epoch stays committed.
        """
        if not again:
            self._deliveries.committed(record)
            self._carried.forget()
        self.took_s = {}
        self._diverted.delete_before(record.epoch)
        for output in sorted(self._outputs, key=lambda o: o.rejects_of is not None):
            staged = self._output_of(output, record, again=again)
            if staged is None:
                continue
            if output.rejects_of is not None:
                main = self._deliveries.states[output.rejects_of].writer
                staged = replace(staged, diverted=self._diverted.read(main, record.epoch))
            elif again:
                self._discard_unfinished_rejects(output, record.epoch)
            started_s = time.perf_counter()
            _deliver(output, staged)
            self.took_s[output.name] = time.perf_counter() - started_s

    def _discard_unfinished_rejects(self, output: SinkOutput, epoch: int) -> None:
        """Discard the rejected rows of a delivery that did not complete."""
        if output.sink.keeps_epochs:
            last = output.sink.last_delivered()
            if last is None or last.epoch < epoch:
                self._diverted.delete(self._deliveries.states[output.name].writer, epoch)

    def _output_of(
        self, output: SinkOutput, record: CommitRecord, *, again: bool
    ) -> StagedOutput | None:
        """Return an epoch's rows for one sink; ``None`` if the sink is newer than the epoch.

        `again`: see `deliver`.
        """
        rejected_by: dict[str, pa.Table] = {}
        state = self._deliveries.states.get(output.name)
        if state is None or (again and state.former is None):
            return None
        name = state.former if again else output.name

        def keep(by: str, rows: pa.Table) -> None:
            """Store rows that `by` rejected, for the sink of rejected rows."""
            rejected_by[by] = rows
            if any(rejected.num_rows for rejected in rejected_by.values()):
                self._diverted.store(state.writer, record.epoch, rejected_by.values())
            else:  # rows that an earlier attempt rejected
                self._diverted.delete(state.writer, record.epoch)

        return StagedOutput(
            output=output,
            epoch=record.epoch,
            complete=state.former_complete
            if again and state.former_complete != state.complete
            else None,
            refs=[ref for ref in record.outputs if ref.sink == name],
            log=self._log,
            carried=self._carried,
            session=self._session,
            on_divert=keep if output.name in self._rejecting else None,
            former_kind=state.former_kind if again else "",
            check=output.sink.row_check() if again and output.rejects_of is None else None,
        )


def staged_sinks(flow: CompiledFlow) -> list[StagedSink]:
    """Return the open sinks for which lanes stage output, as lanes need them."""
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


def _deliver(output: SinkOutput, epoch: EpochOutput) -> None:
    """Deliver an epoch to a sink; errors that are not Godwit's become `SinkError`."""
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
