"""A cluster in this process: real coordinator, instructor, lanes, stores and checkpoint, no JVM.

`LocalRun` is a `godwit.engine.cluster.Cluster` and what drives it: lists stand for the shuffle
(`run_lanes`), a directory each for executors, and background copies are made when someone asks for
them, between two epochs.  The lanes are those that run on executors; instructions and reports cross
a pickle, as they do there.  So a run has no threads, and what happens in it follows
from the calls alone.  Time passes only where `LocalRun.clock_us` is set.
"""

from __future__ import annotations

import itertools
import pickle
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, read_block
from godwit.columns.tables import is_table, not_rows_error
from godwit.engine.cluster import Executor, SourceBatch
from godwit.engine.copies import (
    drop_copies,
    receive_copies,
    send_copies,
    warm_copies,
    warm_states,
)
from godwit.engine.flow_epochs import FlowEpochs, FlowRun, announce_problems
from godwit.engine.lane.executor import close_local_store, local_state, local_store_root
from godwit.engine.lane.lane import run_lane
from godwit.engine.lane.lane_flow import lane_flow, shipments, source_feeds
from godwit.engine.lane.messages import InstructionParts, LaneReport
from godwit.engine.lane.source_side import (
    MappedRows,
    check_repeated_reads,
    input_rows,
    ship_input,
    ship_splits,
)
from godwit.engine.lane.wire import FAILED, ship_arrivals, ship_unreadable, split_by_level
from godwit.engine.loop import EpochLoop
from godwit.engine.recovery import begin_run, recover_flow, run_started
from godwit.engine.repartition import check_can_repartition, checked_columns
from godwit.engine.source_positions import SourcePositions
from godwit.migration.coordinator import Coordinator
from godwit.migration.messages import DropCopies, StartWarming
from godwit.migration.strategy import Policy
from godwit.model.errors import InvalidInputError, MigrationError
from godwit.model.naming import did_you_mean, listing, type_name
from godwit.plan.feedback import is_fed_back
from godwit.plan.staging import StagedSink
from godwit.time.event_time import Arrivals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator
    from contextlib import AbstractContextManager

    from godwit.checkpoint.epochs import TakenBack
    from godwit.checkpoint.records import (
        BatchRef,
        CommitRecord,
        PhysicalPlan,
        SinkRecord,
        StateId,
    )
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.initial_state import InitialState
    from godwit.engine.lane.lane_flow import Feed, LaneFlow, LaneInput
    from godwit.engine.lane.messages import EpochInstruction, StateInstruction
    from godwit.engine.lane.source_side import NumberedSplit
    from godwit.engine.lane.wire import Blob
    from godwit.engine.latency import SourceLatency
    from godwit.engine.loop import Stopwatch
    from godwit.engine.settings import Lanes
    from godwit.migration.coordinator import Warmed
    from godwit.migration.messages import PeerCopies
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView
    from godwit.model.events import Event
    from godwit.operators.hot_key_orders import SpreadKeyOver
    from godwit.plan.compiled import CompiledFlow, SinkOutput
    from godwit.plan.staging import RowCheck
    from godwit.sources.source import Source
    from godwit.store.local_store import LocalState

    LocalRows = Mapping[LaneInput | str, Sequence[pa.RecordBatch]]
    """Input of an operator → its rows in memory, a batch per source partition.

    Sink → rows of failed calls of maps before.
    """


_PATIENCE = 3_000


class LocalRun(FlowRun):
    """One run of a flow, from the recovery of its checkpoint on.

    `executors` says how many lanes each has; `plan` is the physical plan of a new checkpoint, and
    `components` the changes to the stored plan; `emit` takes every event,
    `on_commit` the outcome and `on_delivery` the record of every epoch, first that of the last one
    of the run before, which may have died before its delivery. `delivered`, `initial`: see
    `recover_flow`.
    `row_check` returns the check for the rows of a sink, by the sink's output and the query's id.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        storage: CheckpointStorage,
        *,
        executors: Mapping[str, int],
        settings: Lanes,
        policy: Policy | None = None,
        plan: PhysicalPlan | None = None,
        components: Mapping[str, Sequence[str]] | None = None,
        repartition: bool = False,
        # operator → columns that place its rows from now on
        placed: Mapping[str, tuple[str, ...]] | None = None,
        retain_epochs: int = 10,
        delivered: bool = False,
        initial: InitialState | None = None,
        taken_back: TakenBack | None = None,  # by this start
        close_at_end: bool = True,
        clock_us: int = 0,
        emit: Callable[[Event], None] = lambda _: None,
        on_commit: Callable[[EpochOutcome], None] = lambda _: None,
        on_delivery: Callable[[CommitRecord], None] = lambda _: None,
        row_check: Callable[[SinkOutput, str], RowCheck | None] = lambda _output, _query_id: None,
        # starts another run, whose operators have these partitioning columns
        place_by: Callable[[Mapping[str, tuple[str, ...]]], None] = lambda _placed: None,
    ) -> None:
        policy, run = policy or Policy(), uuid.uuid4().hex[:12]
        self.log, recovered = recover_flow(
            flow if plan is None else flow.with_plan(plan),
            storage,
            run,
            retain_epochs=retain_epochs,
            components=components,
            repartition=repartition,
            placed=placed,
            delivered=delivered,
            initial=initial,
        )
        self.run_id = f"{self.log.identity.query_id[:12]}-{run}"
        self.changes = recovered.changes  # of the flow, since the last run
        self.clock_us = clock_us
        self.announce, self._on_commit, self._on_delivery = emit, on_commit, on_delivery
        self.copies_held = False  # background copies are not carried out for now
        self.copies_fail: str | None = None  # why all of them fail for now
        self.executors: Mapping[str, Executor] = _executors(executors)
        self._settings = settings
        self._newest: Mapping[int, int] = {}  # of the present epoch: see `ship_rows`
        self._orders: list[StartWarming | DropCopies] = []
        self._row_check, self._place_by = row_check, place_by
        sinks = self.open_sinks(recovered.flow)
        self.lane_flow = lane_flow(recovered.flow, recovered.layouts, sinks)
        self.sources = SourcePositions(
            flow.own_sources,
            recovered.sources,
            log=self.log,
        )
        started = run_started(
            recovered.flow,
            self.log,
            recovered,
            {},
            [*self.executors.values()],
            run_id=self.run_id,
            settings=settings,
        )
        self.coordinator = Coordinator(
            started,
            states={c.name: c.states for c in recovered.flow.components},
            policy=policy,
            ports=self,
            plan=recovered.flow.physical_plan,
        )
        announce_problems(self.sources, self)
        self.epochs: FlowEpochs[LocalRows] = FlowEpochs(
            recovered,
            self.log,
            self,
            settings=settings,
            policy=policy,
            run_id=self.run_id,
            close_at_end=close_at_end,
        )
        self.loop: EpochLoop[SourceBatch[LocalRows]] = EpochLoop(
            self.epochs, self.coordinator, self
        )
        begin_run(self.coordinator, self, self.log, recovered, taken_back=taken_back)

    @property
    def lanes(self) -> dict[str, int]:
        """Live executors: name → number of lanes."""
        return {name: executor.lanes for name, executor in self.executors.items()}

    # -- changes on request (see `godwit.runtime.ports.ChangedRun`) -------------------------------

    def divide(self, change: SpreadKeyOver) -> bool:
        """Request other numbers of parts for a key; ``False`` if that is impossible now."""
        return self.spreading[change.operator].order(change.hash, change.key, change.grid)

    def manual_change(
        self,
        changes: Iterable[str],  # noqa: ARG002  no policy would reverse them
    ) -> AbstractContextManager[Callable[..., None]]:
        """Context in which a user makes changes; there are no policies to suspend."""
        return nullcontext(lambda *_: None)

    def repartition(self, columns: Mapping[str, Any]) -> None:
        """Change the partitioning columns of operators: another run takes the place of this one.

        `columns`: operator → columns. Raises what `checked_columns` and `check_can_repartition` do.
        """
        placed = checked_columns(self.flow, columns)
        for name in placed:
            check_can_repartition(self.flow.operator(name), self.log)
        if placed:
            self._place_by(placed)

    def carry_on(self) -> None:
        """Run epochs until requested changes have ended, since no thread does."""
        for _ in self.run_until_idle():
            pass

    # -- epochs -----------------------------------------------------------------------------------

    def epoch(self, rows: LocalRows | None, *, batch: BatchRef | None = None) -> EpochOutcome:
        """Run one epoch, with or without rows, and then background copies; return its outcome.

        `rows`: input of an operator → its batches. `batch`: reference to the micro-batch, if the
        caller counts them.
        """
        if rows is None:
            return self._run_epoch(self.sources.plan_next_round(self._num_lanes, due=True))
        played = self.sources.with_test_rows()
        return self._run_epoch(replace(played, ref=batch or played.ref, rows=rows))

    def advance_watermarks(self, newest: Mapping[int, int]) -> None:
        """Run an epoch without rows that advances watermarks.

        `newest`: number of a watermark → event time, in microseconds, as if a row with it had come.
        """
        self._newest = newest
        try:
            self.epoch({})
        finally:
            self._newest = {}

    def read_epoch(
        self, rows: LocalRows | None = None, *, limit: int | None = None
    ) -> EpochOutcome | None:
        """Run one epoch over rows of the open sources, and the rows given.

        `limit`: maximum rows of each source. Returns ``None`` if there are no rows.
        """
        limits = None if limit is None else dict.fromkeys(self.sources.sources, limit)
        planned = self.sources.plan(self._num_lanes, limits=limits)
        if rows is not None:
            planned = self.sources.with_test_rows(planned)
        if planned is None:
            return None
        return self._run_epoch(replace(planned, rows=rows))

    def run_round(self) -> EpochOutcome | None:
        """Run an epoch over rows in feedback loops; ``None`` if no rows wait, or loops pause."""
        looped = self.sources.plan_next_round(self._num_lanes)
        return None if looped is None else self._run_epoch(looped)

    @property
    def _num_lanes(self) -> int:
        """Number of lanes of all executors."""
        return sum(self.lanes.values())

    def _run_epoch(self, source: SourceBatch[LocalRows] | None) -> EpochOutcome:
        """Run one epoch, then background copies; return its outcome.

        Raises `MigrationError` if no epoch can run, such as without executors.
        """
        outcome = self.loop.run(source)
        if outcome is None:
            raise MigrationError(
                "No epoch can run: "
                + ("there is no executor." if not self.executors else f"{self.view.holds}."),
                remedy="Add an executor.",
            )
        if source is not None:
            self.sources.committed(source.ref, others=bool(source.rows))
        self.run_background_copies()
        return outcome

    def run_quiet_epoch(self) -> EpochOutcome | None:
        """Run an epoch without input if one is due; return its outcome, else ``None``."""
        self.run_background_copies()
        if self.is_due:
            return self.epoch(None)
        if self.view.awaits:
            self.coordinator.advance_clock()
        return None

    def run_until_idle(self) -> Iterator[EpochOutcome]:
        """Run epochs without input until none is due and no key group moves; yield the outcomes.

        Raises `MigrationError` if that takes more than `_PATIENCE` epochs.
        """
        for _ in range(_PATIENCE):
            outcome = self.run_quiet_epoch()
            if outcome is not None:
                yield outcome
            view = self.view
            moving = any(c.migration or c.transfers for c in view.components.values())
            if not (self.is_due or view.awaits or view.waiting or moving):
                return
        components = self.view.components.items()
        migrating = [name for name, c in components if c.migration or c.transfers]
        waiting = [name for name, c in components if c.waiting]
        reasons = [
            *([f"key groups move in {listing(migrating)}"] if migrating else []),
            *([f"rows wait for state in {listing(waiting)}"] if waiting else []),
            *(["windows, timers or loops are due"] if self.is_due else []),
        ]
        raise MigrationError(
            f"The run does not become idle: after {_PATIENCE} epochs without input "
            f"{', and '.join(reasons) or 'the migration protocol waits'}.",
            remedy="Look at the events: an executor may be missing, or background copies held. A "
            "function that sets its next timer each time is due for ever.",
        )

    # -- what the loop asks (see `godwit.engine.cluster.Cluster`, `godwit.engine.loop`) -----------

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[LocalRows] | None
    ) -> list[LaneReport]:
        """Run the stages one after the other in this process; return the lanes' reports."""
        rows = {} if batch is None or batch.rows is None else batch.rows
        splits = () if batch is None else batch.splits
        boxes = ship_rows(self.lane_flow, instruction, rows, self._newest)
        add_splits(
            boxes,
            self.lane_flow,
            instruction,
            sources=self.sources.sources,
            splits=splits,
        )
        self.loop.at_step("shipped", instruction.epoch)  # here alone: the source side is done
        reports = run_lanes(self.lane_flow, instruction, boxes)
        check_repeated_reads(reports, splits)
        return reports

    def open_sinks(self, flow: CompiledFlow) -> Iterable[StagedSink]:
        """Return the sinks, without writers of files: output stays in the checkpoint."""
        query_id = self.log.identity.query_id
        checks = {output.name: self._row_check(output, query_id) for output in flow.outputs}
        rejects = {output.rejects_of: output.name for output in flow.outputs if output.rejects_of}
        return [
            StagedSink(
                name=output.name,
                maps=output.maps,
                keys=output.keys,
                check=checks[output.name],
                rejects=rejects.get(output.name),
                writer=None,
            )
            for output in flow.outputs
            if output.rejects_of is None
        ]

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:  # noqa: ARG002
        """Call the run's ``on_delivery`` with a committed epoch's record; no sink is open."""
        self._on_delivery(record)

    def sink_records(self) -> Mapping[str, SinkRecord]:
        """Return an empty mapping, since sinks are not opened."""
        return {}

    def wait_while_held(self) -> bool:
        """Run pending background copies, which epochs wait for; return whether there were any."""
        waits = bool(self._orders) and not self.copies_held
        self.run_background_copies()
        return waits

    def warm(self, order: StartWarming) -> None:
        """Queue an order to copy state of key groups to an executor, or update its copies."""
        self._orders.append(order)

    def drop(self, order: DropCopies) -> None:
        """Queue an order to delete an executor's copies of state."""
        self._orders.append(order)

    def now_s(self) -> float:
        """Return the time of the run's clock, in seconds."""
        return self.now_us() / 1e6

    def now_us(self) -> int:
        """Return the time of the run's clock, in microseconds."""
        return self.clock_us

    def monotonic_us(self) -> int:
        """Return the time of the run's clock, in microseconds."""
        return self.clock_us

    def committed(
        self,
        outcome: EpochOutcome,
        component_views: Mapping[str, ComponentView],  # noqa: ARG002
        took_s: float,  # noqa: ARG002
    ) -> None:
        """Call the run's ``on_commit`` with the outcome of a committed epoch."""
        self._on_commit(outcome)

    def delivered(
        self, outcome: EpochOutcome, stopwatch: Stopwatch, latencies: Mapping[str, SourceLatency]
    ) -> None:
        """No-op; subclasses observe deliveries."""

    # -- executors and their copies ---------------------------------------------------------------

    def set_executors(self, executors: Mapping[str, int]) -> None:
        """Set the executors (name → lanes); removed ones lose their copies."""
        for name in self.executors.keys() - executors.keys():
            self.forget_store(name)
            # The process lives on, and would hold the memory of tables whose files are deleted.
            close_local_store(local_store_root(self._settings.local_path, self.run_id, name))
        self.executors = _executors(executors)
        self.coordinator.see(executors)

    def forget_store(self, executor: str) -> None:
        """Delete an executor's local store, without reporting it to the coordinator."""
        root = local_store_root(self._settings.local_path, self.run_id, executor)
        shutil.rmtree(root, ignore_errors=True)

    def run_background_copies(self) -> None:
        """Carry out the coordinator's queued orders to warm or drop copies."""
        if self.copies_held:
            return
        orders, self._orders = self._orders, []
        for order in orders:
            if order.executor not in self.executors:
                continue
            if isinstance(order, DropCopies):
                self._drop(order)
            elif self.copies_fail is not None:
                self.coordinator.warming_failed(order, self.copies_fail)
            else:
                try:
                    self._warm(order)
                except MigrationError as error:
                    self.coordinator.warming_failed(order, str(error))

    def _warm(self, order: StartWarming) -> None:
        """Bring the copies of an order up to date, and report them to the coordinator."""

        def catch_up(instruction: StateInstruction, committed: int) -> dict[int, int]:
            """Bring an executor's copies of one state up to the committed version."""
            return warm_copies(
                self._local_state(order.executor, instruction.state),
                order.key_groups,
                pickle.loads(pickle.dumps(instruction)),  # noqa: S301  our own
                layout=self.epochs.instructor.layout_of(instruction.state),
                storage=self.log.storage,
                committed=committed,
                lanes=self.executors[order.executor].lanes,
                index_only=order.index_only,
            )

        warmed = warm_states(
            order,
            self.epochs.instructor,
            held_versions=lambda state: self.coordinator.copies.versions(
                order.executor, state, self.flow.num_key_groups
            ),
            transfers=order.peers,
            fetch=lambda asked: self.fetch(order, asked),
            catch_up=catch_up,
            now_s=lambda: self.now_us() / 1e6,
        )
        self.warmed(order, warmed)

    def warmed(self, order: StartWarming, warmed: Warmed) -> None:
        """Report to the coordinator that an order's copies are up to date."""
        self.coordinator.warmed(order, warmed)

    def fetch(self, order: StartWarming, copies: PeerCopies) -> dict[StateId, dict[int, int]]:
        """Copy key groups of the order's states from one executor's store to another's.

        Returns state → key group → version of the copy.
        """
        received = {}
        for state in order.states:
            source, target = (
                self._local_state(executor, state) for executor in (copies.executor, order.executor)
            )
            sent = send_copies(source, copies.key_groups, state=state, run_id=self.run_id)
            lanes = self.executors[order.executor].lanes
            received[state] = receive_copies(
                target, copies.key_groups, sent, state=state, run_id=self.run_id, lanes=lanes
            )
        return received

    def _drop(self, order: DropCopies) -> None:
        """Delete the copies of an order."""
        for state in order.states:
            drop_copies(self._local_state(order.executor, state), order.key_groups)

    def _local_state(self, executor: str, state: StateId) -> LocalState:
        """Return one state in the local store of an executor."""
        root = local_store_root(self._settings.local_path, self.run_id, executor)
        schema = self.epochs.instructor.layout_of(state).schema
        return local_state(root, str(state), schema, self.flow.num_key_groups)


def staged_rows(
    record: CommitRecord, storage: CheckpointStorage
) -> dict[str, list[pa.RecordBatch]]:
    """Return sink → rows that an epoch staged for it, in order, without those in its files."""
    batches: dict[str, list[pa.RecordBatch]] = {}
    for ref in record.outputs:
        if ref.rows and ref.kind == "rows" and not is_fed_back(ref.sink):
            batch = decode_batch(read_block(storage, ref.block))
            batches.setdefault(ref.sink, []).append(batch)
    return batches


def _executors(lanes: Mapping[str, int]) -> dict[str, Executor]:
    """Return executor name → executor, from executor name → number of lanes."""
    return {name: Executor(name=name, location=None, lanes=n) for name, n in lanes.items()}


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


def check_sources(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise `InvalidInputError` if one of `names` is not a source of the flow (`known`)."""
    if not isinstance(names, Mapping):
        example = known[0] if known else "orders"
        raise InvalidInputError(
            f"Rows were given as a value of type {type_name(names)}, which names no source.",
            remedy=f"Give a dict of sources and rows, as in {{{example!r}: [...]}}; the sources "
            f"are {listing(known)}.",
        )
    for name in names:
        if name not in known:
            raise InvalidInputError(
                f"The flow has no source {name!r}.",
                remedy=f"{did_you_mean(str(name), known)}Its sources are {listing(known)}.",
                source=name,
            )


def check_loops(names: Iterable[str], loops: Collection[str]) -> None:
    """Raise if rows are given for a loop, whose rows only an operator feeds back."""
    for name in names:
        if name in loops:
            raise InvalidInputError(
                f"Rows were given for {name!r}, which is a loop.",
                remedy="Give rows of a source; the flow itself feeds rows to a loop.",
                source=name,
            )


def split_into_epochs(
    source: str, rows: Any, *, epochs: int | None, rows_per_epoch: int | None
) -> list[Any]:
    """Return a source's rows for each epoch: a list of epochs as given, or one table divided.

    Raises `InvalidInputError` for other values.
    """
    is_rows = is_table(rows) or (
        isinstance(rows, Sequence) and bool(rows) and isinstance(rows[0], Mapping | tuple)
    )
    if not is_rows:
        if isinstance(rows, str) or not isinstance(rows, Sequence):
            raise not_rows_error(source, rows)
        if epochs is not None or rows_per_epoch is not None:
            raise InvalidInputError(
                f"Source {source!r} was given a list of epochs, and epochs= or rows_per_epoch= "
                "says how to cut one table.",
                remedy="Give one table (or one list of rows) to be cut, or leave that out.",
                source=source,
            )
        return list(rows)
    if epochs is None and rows_per_epoch is None:
        return [rows]
    count = _count_rows(rows)
    if rows_per_epoch is not None:
        edges = [*range(0, count, rows_per_epoch), count]
    else:
        assert epochs is not None, "one of both is given"
        edges = [count * number // epochs for number in range(epochs + 1)]
    return [_slice_rows(rows, *edge) for edge in itertools.pairwise(edges)]


def lane_inputs(
    flow: CompiledFlow,
    tables: Mapping[str, pa.Table],  # source → its rows
    # ``mapped(source, maps, table)`` applies DataFrame maps; by default they change nothing
    mapped: Callable[[str, tuple[Any, ...], pa.Table], pa.Table] = lambda _source, _maps, rows: (
        rows
    ),
    *,
    partitions: int = 1,  # source partitions that the rows of a source come in
) -> dict[LaneInput | str, list[pa.RecordBatch]]:
    """Apply maps to the sources' tables; return input of an operator → its batches.

    `tables`: source → its rows in an epoch. `partitions`: number of batches to divide them into.
    Rows for which a map fails are added by the name of their sink.
    """
    feeds = source_feeds(flow)
    inputs: dict[LaneInput | str, list[pa.RecordBatch]] = {}
    for source, table in tables.items():
        own = MappedRows(table)

        def after(feed: Feed, own: MappedRows = own, rows: pa.Table = table) -> pa.Table:
            """Return the source's rows after a feed's maps."""
            if feed.source in flow.own_sources:
                return own.of_feed(feed)
            return mapped(feed.source, feed.maps, rows)

        for lane_input, rows in input_rows(feeds, source, after):
            edges = [rows.num_rows * part // partitions for part in range(partitions + 1)]
            inputs.setdefault(lane_input, []).extend(
                rows.slice(start, stop - start)
                for start, stop in itertools.pairwise(edges)
                if stop > start
            )
        for failed_map, failed in own.diverted:
            inputs.setdefault(failed_map.failures_to, []).append(failed)
    return inputs


def _count_rows(rows: Any) -> int:
    """Return the number of rows of a table or a list."""
    return int(rows.num_rows) if isinstance(rows, pa.Table | pa.RecordBatch) else len(rows)


def _slice_rows(rows: Any, start: int, stop: int) -> Any:
    """Return rows `start` to `stop` of a table, a pandas frame or a list."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows.slice(start, stop - start)
    return rows.iloc[start:stop] if is_table(rows) else rows[start:stop]
