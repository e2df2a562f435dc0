"""Recovery from a checkpoint: its owner, and its assignments on the present executors."""

from __future__ import annotations

import logging
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from godwit.checkpoint import partial_copies
from godwit.checkpoint.commit_log import CommitLog, check_identity, other_key_groups
from godwit.checkpoint.epochs import undelivered_sinks
from godwit.checkpoint.evolution import FlowChanges, apply_edits, compare_flows
from godwit.checkpoint.records import (
    IDENTITY,
    ComponentPlan,
    FlowIdentity,
    Number,
    PhysicalPlan,
    StateId,
)
from godwit.checkpoint.spark_log import check_no_spark_query
from godwit.engine.event_time import Times
from godwit.engine.initial_state import check_begins_with, check_states, write_initial_state
from godwit.engine.outcomes import empty_slots, state_bytes
from godwit.engine.repartition import repartition as write_placed
from godwit.engine.source_positions import RecordedSources, recorded_sources
from godwit.migration.messages import RunStarted, SlotPair
from godwit.migration.on_demand import OnDemand
from godwit.model import events
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import (
    CheckpointMismatchError,
    CorruptCheckpointError,
    InvalidPlanError,
)
from godwit.model.naming import listing
from godwit.operators.hot_keys import PART, Spreads
from godwit.operators.slots import Slots
from godwit.plan.feedback import check_loops_exist
from godwit.plan.grouping import regrouped
from godwit.plan.lineage import flow_version, layouts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any, TypeAlias

    from godwit.checkpoint.chains import Chains
    from godwit.checkpoint.epochs import TakenBack
    from godwit.checkpoint.evolution import FlowVersion, OperatorVersion
    from godwit.checkpoint.records import BatchRef, CommitRecord, HotKey
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.cluster import Cluster, Executor
    from godwit.engine.initial_state import InitialState, WrittenInitialState
    from godwit.engine.repartition import Rewritten
    from godwit.engine.settings import Lanes
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.outcome import LoadSummary
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.lineage import Layouts

    Components: TypeAlias = Callable[
        [CompiledFlow, frozenset[str], Callable[[], bool]], Mapping[str, tuple[str, ...]]
    ]

_logger = logging.getLogger("godwit")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """State of a flow recovered from its checkpoint, by present names."""

    # the flow under the physical plan of the checkpoint, as far as its operators still exist
    flow: CompiledFlow
    layouts: Layouts  # operator → layouts of its states and waiting rows
    changes: FlowChanges  # changes of operators since the last run
    # physical plan of the last run, by present names: assignments are recorded by its components
    before: PhysicalPlan
    # positions of Godwit's own sources, by present names
    sources: RecordedSources = field(default_factory=RecordedSources)
    # states that this start has written, of a flow that begins with state
    initial: tuple[WrittenInitialState, ...] = ()
    # state that this start has placed in another number of key groups
    regrouped: Rewritten | None = None
    # state was given, and ignored, since the checkpoint has epochs that began with it
    ignored_initial: bool = False

    def changes_event(self, *sinks: str) -> dict[str, Any] | None:
        """Return the fields of `events.FlowChanged`; ``None`` if nothing changed.

        `sinks`: texts about changed sinks.
        """
        changes = self.changes
        fields = {
            "added": changes.added,
            "returned": changes.returned,
            "removed": changes.removed,
            "renamed": changes.renamed,
            "results": (*changes.results, *self.sources.changes, *sinks),
        }
        return fields if any(fields.values()) else None

    def by_present_names(self, recorded: Mapping[str, _T]) -> dict[str, _T]:
        """Return recorded values by the present names of operators."""
        return {self.changes.renamed.get(name, name): value for name, value in recorded.items()}

    def _watermarks(self, recorded: Mapping[str, int]) -> dict[str, int]:
        """Return recorded watermarks by present names; names of one watermark get its maximum."""
        watermarks: dict[str, int] = {}
        for name, time_us in recorded.items():
            source, *reader = name.split("/")
            if len(self.flow.sources) == 1 and not self.flow.own_sources:
                (source,) = self.flow.sources  # it may have had another name
            source = self.sources.renamed.get(source, source)
            if reader:
                reader[0] = self.changes.renamed.get(reader[0], reader[0])
            if not reader or reader[0] not in self.changes.added:
                watermarks["/".join((source, *reader))] = time_us
        for names in self.flow.watermarks:
            known = [watermarks[name] for name in names if name in watermarks]
            watermarks.update(dict.fromkeys(names, max(known)) if known else {})
        return watermarks

    def slots(self, latest: CommitRecord | None) -> dict[str, Slots]:
        """Return operator with two-phase windows → slots of its key groups after the last epoch."""
        recorded = _recorded_slots(latest, self.changes)
        return {
            operator.name: Slots.of(recorded.get(operator.name, ()), self.flow.num_key_groups)
            for operator in self.flow.operators
            if operator.two_phase is not None and operator.two_phase.slot == 0
        }

    def times(self, latest: CommitRecord | None) -> Times | None:
        """Return event times after the last epoch, by present names; ``None`` without epochs."""
        if latest is None:
            return None
        slots = {  # also of removed operators, which may return
            name: Slots.of(recorded, self.flow.num_key_groups)
            for name, recorded in _recorded_slots(latest, self.changes).items()
        }
        slots.update(self.slots(latest))
        spreads = _without_dropped(latest.spreads, self.changes)
        return Times(
            watermarks=self._watermarks(latest.watermarks),
            newest=self._watermarks(latest.newest),
            query=latest.query_watermark,
            closed=self._by_present_state_names(latest.expired),
            slots=slots,
            spreads={name: Spreads.of(*keys) for name, keys in spreads.items()},
            reached=self._by_present_state_names(latest.reached),
            retained=self._by_present_state_names(latest.retained),
        )

    def _by_present_state_names(self, times_us: Mapping[str, _T]) -> dict[str, _T]:
        """Return times of states by present names, without states that start empty."""
        times = {}
        for text, time_us in times_us.items():
            operator, _, state = text.rpartition("/")
            name = self.changes.renamed.get(operator, operator)
            if name not in self.changes.added:
                times[str(StateId(name, state))] = time_us
        return times


def _recorded_slots(
    latest: CommitRecord | None, changes: FlowChanges
) -> dict[str, list[tuple[int, int, int, int]]]:
    """Return operator, by its present name → slots of key groups as `Slots.recorded` gives them.

    Slots of operators that left the flow are included, since their state stays; those of operators
    that were dropped, or start empty, are not.
    """
    return {} if latest is None else _without_dropped(latest.slots, changes)


def _without_dropped(recorded: Mapping[str, _T], changes: FlowChanges) -> dict[str, _T]:
    """Return recorded values by present names, without operators whose state is dropped."""
    dropped = () if changes.version is None else changes.version.dropped
    present = {changes.renamed.get(n, n): v for n, v in recorded.items() if n not in dropped}
    return {name: value for name, value in present.items() if name not in changes.added}


def recover_flow(
    flow: CompiledFlow,
    storage: CheckpointStorage,
    run_id: str,
    *,
    retain_epochs: int,
    components: Mapping[str, Iterable[str]] | Components | None = None,
    repartition: bool = False,
    placed: Mapping[str, tuple[str, ...]] | None = None,
    delivered: bool = False,
    initial: InitialState | None = None,
) -> tuple[CommitLog, Recovery]:
    """Open the checkpoint of a flow, or create it; return its commit log and the recovered state.

    Nothing is written before the flow has been checked. `retain_epochs`: number of epochs that stay
    readable. `components`: component → its operators from now on (others as in the checkpoint); or
    a function that returns it for the flow, its operators without state, whose rows it may place
    otherwise, and a function that returns true if state can be rewritten now. `repartition`:
    rewrite the state of operators whose ``partition_by`` has changed. `placed`: operator → columns
    that place its rows, in preference to the program. `delivered`: the output of the last epoch is
    known to be at its targets. `initial`: state that a checkpoint without epochs begins with; it is
    ignored if the checkpoint has epochs that began with it.

    Raises `CheckpointMismatchError`, with every difference, if the checkpoint is of another flow,
    or changes of this one do not fit its state; `InvalidPlanError` if operators of one component
    could not run together.
    """
    new = IDENTITY not in storage.list("")
    if new:
        check_no_spark_query(storage)
    identity = FlowIdentity(
        name=flow.name,
        num_key_groups=flow.num_key_groups,
        query_id=uuid.uuid4().hex if new else "",
        initial="" if initial is None else initial.digest,
        batches_before=0 if initial is None else initial.position.batches_before,
    )
    stored = None if new else CommitLog.open_read_only(storage)
    regroups = False
    if stored is not None and stored.latest is not None:  # an epoch claims the checkpoint
        check_identity(storage, stored.identity, identity)
        regroups = stored.chains.num_key_groups != flow.num_key_groups
        if regroups and not repartition:
            raise other_key_groups(storage.uri, stored.chains.num_key_groups, flow.num_key_groups)
        if initial is not None:
            check_begins_with(stored.identity, initial, storage.uri)
    before = None if stored is None or stored.flow < 0 else stored.version(stored.flow)
    edits = () if stored is None else stored.edits()
    without_state = _keep_stored_partitioning(
        flow, None if before is None else apply_edits(before, edits), placed or {}
    )
    if callable(components):
        components = components(
            flow, without_state, lambda: stored is None or not undelivered_sinks(stored)
        )
    version = flow_version(flow)
    latest = None if stored is None else stored.latest
    begins = latest is None and initial is not None
    if begins:
        assert initial is not None, "it is given"
        check_states(flow, initial)
        last = initial.position.batch
    else:
        last = None if latest is None else latest.last_batch
        known = () if before is None else before.sources
        _check_kind_of_sources(flow, known, last, storage.uri)
    sources = recorded_sources(last, flow.own_sources, storage.uri)
    check_loops_exist(latest, flow.loops, storage.uri)
    previous = -1 if stored is None else stored.flow
    changes = compare_flows(
        version,
        before,
        previous=previous,
        uri=storage.uri,
        edits=edits,
        repartition=repartition or bool(placed),
        regroup=regroups,
        starts_empty=flow.starts_empty,
    )
    if latest is not None and before is not None:
        _check_change_readers(version, before, changes)
    layouts = layouts_of(flow, stored, changes)
    _check_slots_remain(flow, _recorded_slots(latest, changes))
    _check_merge_remains(flow, {} if latest is None else _without_dropped(latest.spreads, changes))
    stored_plan = None if stored is None else stored.physical_plan
    flow = _flow_under_stored_plan(flow, stored_plan, changes.renamed)
    last_plan = flow.physical_plan
    if components:
        flow = flow.with_plan(regrouped(flow, components))
    log = CommitLog.create_or_open(
        storage,
        identity,
        run_id,
        flow=changes.version,
        # The repartitioning epoch runs under the last plan, by whose components its state is
        # placed.
        plan=last_plan if changes.repartitioned or regroups else flow.physical_plan,
        retain_epochs=retain_epochs,
    )
    rewritten = None
    if changes.repartitioned or regroups:
        rewritten = write_placed(flow, log, layouts, changes.repartitioned, delivered=delivered)
        log.use_plan(flow.physical_plan)
    written: tuple[WrittenInitialState, ...] = ()
    if begins and initial is not None:
        written = write_initial_state(flow, log, initial)
        changes = replace(changes, added=())  # none starts empty by a change of the flow
    return log, Recovery(
        flow=flow,
        layouts=layouts,
        changes=changes,
        before=last_plan,
        sources=sources,
        initial=written,
        regrouped=rewritten,
        ignored_initial=initial is not None and not begins,
    )


def _keep_stored_partitioning(
    flow: CompiledFlow, stored: FlowVersion | None, placed: Mapping[str, tuple[str, ...]]
) -> frozenset[str]:
    """Set `partition_by` of operators: as `placed`, or as stored if the program names no columns.

    `placed`: operator → columns. Returns the operators that the checkpoint does not have.
    """
    new = set()
    for operator in flow.operators:
        stored_operator = None
        if stored is not None:
            former_name = flow.formerly.get(operator.name, "")
            stored_operator = stored.operator(operator.name) or stored.operator(former_name)
        if stored_operator is None:
            new.add(operator.name)
        if operator.name in placed:
            operator.partition_by = placed[operator.name]
        elif (
            stored_operator is None
            or operator.partition_stated
            or PART in operator.hash_columns.names
        ):
            continue  # with hot keys it places rows itself; a change if columns did before
        elif {*stored_operator.partition_by} <= {*operator.keys.names}:
            operator.partition_by = stored_operator.partition_by
    return frozenset(new)


def _check_kind_of_sources(
    flow: CompiledFlow,
    frames: Sequence[str],
    last: BatchRef | None,
    uri: str,
) -> None:
    """Raise if DataFrames have replaced own sources, or the reverse.

    The progress of one kind is not valid for the other. Sources of either kind may be added.
    `frames`: sources that were DataFrames in the last run. `last`: its last batch.
    """
    if last is None:
        return
    own_sources = list(flow.own_sources)
    frame_sources = [name for name in flow.sources if name not in flow.own_sources]
    recorded_identities = last.identities
    replacing_frames = [
        name for name in own_sources if name in frames and name not in recorded_identities
    ]
    replacing_own = [
        name for name in frame_sources if name in recorded_identities and name not in frames
    ]
    if frames and not frame_sources and not recorded_identities:
        replacing_frames = own_sources
    if not frames and not own_sources:
        replacing_own = frame_sources
    if replacing_frames:
        kind_before, kind_now, replaced = "DataFrames", "sources of Godwit's own", replacing_frames
    elif replacing_own:
        kind_before, kind_now, replaced = "sources of Godwit's own", "DataFrames", replacing_own
    else:
        return
    raise CheckpointMismatchError(
        f"Flow {flow.name!r} reads {kind_now} ({listing(replaced)}), and its checkpoint {uri!r} "
        "is of a "
        f"flow that read {kind_before}, whose positions do not apply.",
        remedy="Start it with its former sources, or with a new checkpoint, which reads sources "
        "from their start.",
        flow=flow.name,
        uri=uri,
    )


def _check_change_readers(today: FlowVersion, before: FlowVersion, changes: FlowChanges) -> None:
    """Raise if an operator reads changes of results, and has missed some of them.

    Its results would be wrong from then on: it would retract results that it never had, or keep
    results that are never retracted.
    """
    stored_name = {new: old for old, new in changes.renamed.items()}

    def version_before(name: str) -> OperatorVersion | None:
        """Return the last version of an operator; ``None`` if it begins without state."""
        return None if name in changes.added else before.operator(stored_name.get(name, name))

    for reader, operator in today.operators.items():
        reader_before = version_before(reader)
        read_before = (
            set()
            if reader_before is None
            else {changes.renamed.get(name_, name_) for name_ in reader_before.reads_changes or ()}
        )
        reads = operator.reads_changes or ()
        for name in reads:
            sender = version_before(name)
            if sender is None:
                continuing = {name_ for name_ in reads if name_ not in changes.added}
                left_behind = sorted(read_before - continuing)
                if not left_behind:
                    continue
                problem = (
                    f"which begins without state, and has results of {listing(left_behind)}, which "
                    "would never be retracted"
                )
            elif reader_before is None:
                problem = "which has state, and itself begins without state"
            elif name in changes.returned and reader not in changes.returned:
                continue  # both were removed together
            elif reader_before.reads_changes is not None and name not in read_before:
                problem = "which has state, and has not read them until now"
            elif reader in changes.returned and (
                name not in changes.returned or reader_before.left != sender.left
            ):
                problem = "which has state, and was out of the flow for a while"
            else:
                continue
            raise CheckpointMismatchError(
                f"Operator {reader!r} reads the changes of operator {name!r}, {problem}: its "
                "results would be wrong.",
                remedy=f"Let both begin without state: give {name!r} and {reader!r} new names "
                "by name=gw.types.Identity(name, starts_empty=True), or start with a new "
                'checkpoint. Or read results instead of changes (output="update").',
                operator=reader,
                upstream=name,
            )


def _check_slots_remain(flow: CompiledFlow, recorded: Collection[str]) -> None:
    """Raise if the flow lacks slots that still have partial states of open windows.

    `recorded`: present names of operators with slots in the checkpoint. Raises
    `CheckpointMismatchError`, which names the operator.
    """
    two_phase = {o.two_phase.first for o in flow.operators if o.two_phase is not None}
    for name in sorted({operator.name for operator in flow.operators}.intersection(recorded)):
        if name not in two_phase:
            raise CheckpointMismatchError(
                f"Operator {name!r} has key groups in the checkpoint that have migrated without "
                "their state: part of it is in slots of windows with consolidate='apart'.",
                remedy="Leave consolidate='apart' as it was. For a single component, start "
                "with components= that put its operators together.",
                operator=name,
            )


def _check_merge_remains(flow: CompiledFlow, recorded: Mapping[str, Sequence[HotKey]]) -> None:
    """Raise if an operator lost its ``merge=`` while keys still have state in parts.

    `recorded`: present name of an operator → its divided keys. Raises `CheckpointMismatchError`,
    which names the operator and the keys.
    """
    for operator in flow.operators:
        keys = recorded.get(operator.name, ())
        if keys and not operator.max_parts:
            raise CheckpointMismatchError(
                f"Operator {operator.name!r} has state of {listing([k.key for k in keys])} in "
                "several parts, and no merge= any more by which these would become one.",
                remedy="Start the flow with merge=, bring the keys together by "
                f"query.hot_keys.gather({operator.name!r}, key), and leave merge= out after an "
                "epoch with input.",
                operator=operator.name,
            )


def _flow_under_stored_plan(
    flow: CompiledFlow, stored_plan: PhysicalPlan | None, renamed: Mapping[str, str]
) -> CompiledFlow:
    """Return the flow under the checkpoint's physical plan, or its own if that is impossible."""
    try:
        return flow.with_plan(adapt_stored_plan(stored_plan, flow.physical_plan, renamed))
    except InvalidPlanError:  # keys have changed, or an operator was inserted between two of them
        return flow


def last_loads(
    written: Sequence[LoadSummary], flow: CompiledFlow, recovery: Recovery
) -> LoadSummary | None:
    """Return the last run's loads from the journal's summaries; ``None`` if there are none.

    `written`: oldest first. Components that are gone or repartitioned, and key groups that do not
    exist, are left out.
    """
    if not written:
        return None
    summary = written[-1]
    repartitioned = set(recovery.changes.repartitioned)  # loads of other key groups
    unchanged_components = {
        component.name
        for component in flow.components
        if not repartitioned & {operator.name for operator in component.operators}
    }
    if recovery.regrouped is not None or summary.num_key_groups not in (0, flow.num_key_groups):
        return None
    loads = {
        name: load
        for name, load in recovery.by_present_names(summary.loads).items()
        if name in unchanged_components and (load.key_groups < flow.num_key_groups).all()
    }
    return replace(summary, loads=loads)


def adapt_stored_plan(
    stored: PhysicalPlan | None, own: PhysicalPlan, renamed: Mapping[str, str]
) -> PhysicalPlan:
    """Return a checkpoint's physical plan, adapted to the operators of today's flow.

    It has the operators' names of its time, `renamed` since; operators that it does not have are
    placed as in `own`, the plan of the flow without a checkpoint.
    """
    todays_operators = {name for component in own.components for name in component.operators}
    carried: list[ComponentPlan] = []
    for component in () if stored is None else stored.components:
        names = (renamed.get(name, name) for name in component.operators)
        operators = tuple(name for name in names if name in todays_operators)
        if operators:
            name = renamed.get(component.name, component.name)
            carried.append(ComponentPlan(name=name, operators=operators))
    component_of_operator = {
        name: number for number, component in enumerate(carried) for name in component.operators
    }
    new = []
    for component in own.components:
        added_operators = tuple(
            name for name in component.operators if name not in component_of_operator
        )
        stored_positions = [
            component_of_operator[name]
            for name in component.operators
            if name in component_of_operator
        ]
        if not stored_positions:
            new.append(component)
        elif added_operators:  # part of an operator that is one of several now
            neighbour = carried[stored_positions[0]]
            carried[stored_positions[0]] = ComponentPlan(
                name=neighbour.name, operators=(*neighbour.operators, *added_operators)
            )
    if {component_.name for component_ in carried} & {component_.name for component_ in new} or len(
        {component_.name for component_ in carried}
    ) < len(carried):
        return own  # a name has another meaning now
    return PhysicalPlan(components=(*carried, *new))


def run_started(
    flow: CompiledFlow,
    log: CommitLog,
    recovery: Recovery,
    assignments: Mapping[str, Assignment],  # see `first_assignments`
    executors: Sequence[Executor],
    *,
    run_id: str,
    settings: Lanes,
) -> RunStarted:
    """Return the protocol's first fact: durable state, assignments and executors."""
    recorded = {} if log.latest is None else recovery.by_present_names(log.latest.assignments)
    obstacles = {
        operator.name: obstacle_to_demand(operator, log.storage, settings)
        for operator in flow.operators
        if operator.states
    }
    if settings.state_memory_bytes:
        for obstacle in sorted({text for text in obstacles.values() if text}):
            _logger.warning(
                "State is read whole in spite of state_memory, since %s: an epoch fails if that "
                "needs more than a lane's share.",
                obstacle,
            )
    return RunStarted(
        run_id=run_id,
        executors={e.name: e.lanes for e in executors},
        assignments=first_assignments(
            flow, _assignments_by_component(flow, recovery.before, recorded), assignments, executors
        ),
        committed=log.latest_epoch,
        waiting={
            component.name: sorted(
                {
                    key_group
                    for o in component.operators
                    for key_group in log.chains.waiting_key_groups(o.name)
                }
            )
            for component in flow.components
        },
        state_bytes={
            component.name: {
                key_group: int(sizes[key_group]) for key_group in np.flatnonzero(sizes).tolist()
            }
            for component in flow.components
            for sizes in [state_bytes(component.states, log.chains)]
        },
        slots=_slot_pairs(flow, log.chains, recovery.slots(log.latest)),
        on_demand=OnDemand(
            obstacles={
                state: obstacles[operator.name]
                for operator in flow.operators
                for state in operator.states
            },
            timed=[
                state
                for operator in flow.operators
                if operator.over_event_time or operator.has_timers
                for state in operator.states
            ],
            min_bytes=partial_copies.FROM_BYTES,
            local=log.storage.maps,
        ),
    )


def obstacle_to_demand(operator: KeyedOperator, storage: CheckpointStorage, settings: Lanes) -> str:
    """Return why an operator's state cannot be fetched on demand by new owners; else empty."""
    if settings.restore == "whole":
        return 'lanes load state whole, by Lanes(restore="whole")'
    if not storage.maps:
        return "the checkpoint is not on a local disk of this machine"
    if operator.complete or not operator.reads_touched:
        return f"operator {operator.name!r} reads the state of other keys than those of its rows"
    return ""


def begin_run(
    coordinator: Coordinator,
    cluster: Cluster[Any],
    log: CommitLog,
    recovery: Recovery,
    *,
    starts: bool = True,  # false: the run continues
    changed_sinks: Iterable[str] = (),  # a text about each
    taken_back: TakenBack | None = None,
) -> None:
    """Announce a run that `starts` and its changes, and deliver the last epoch again.

    The run that committed this epoch may have died before its delivery.
    """
    resumed = log.latest is not None
    if starts:
        resumed_run = resumed and not recovery.initial
        coordinator.announce(events.QueryStarted, name=recovery.flow.name, resumed=resumed_run)
        for written in recovery.initial:
            coordinator.announce(
                events.InitialStateWritten,
                operator=written.state.operator,
                state=written.state.state,
                entries=written.entries,
                size_bytes=written.size_bytes,
                duration_s=written.duration_s,
            )
        if taken_back is not None:
            repeated_sinks = [
                output.name for output in recovery.flow.outputs if not output.sink.keeps_epochs
            ]
            coordinator.announce(
                events.StartedFromEpoch,
                asked=taken_back.asked,
                after=taken_back.epoch,
                last=taken_back.last,
                goes_on_after=taken_back.goes_on_after,
                again=tuple(repeated_sinks) if taken_back.goes_on_after is None else (),
            )
        if recovery.regrouped is not None:
            coordinator.announce(events.KeyGroupsChanged, **asdict(recovery.regrouped))
        if recovery.ignored_initial:
            coordinator.announce(events.InitialStateIgnored)
    if resumed and (changes := recovery.changes_event(*changed_sinks)) is not None:
        coordinator.announce(events.FlowChanged, **changes)
    if log.latest is not None:
        cluster.deliver(log.latest, again=True)


def _slot_pairs(
    flow: CompiledFlow, chains: Chains, last: Mapping[str, Slots]
) -> tuple[SlotPair, ...]:
    """Return the pairs of slots of two-phase windows, after the last epoch."""
    empty = empty_slots(flow, chains)
    pairs = []
    for name, slots in last.items():
        role = flow.operator(name).two_phase
        assert role is not None, "no other operator has slots"
        states = tuple(flow.operator(n).states[0] for n in (role.first, role.second))
        pair = SlotPair(
            states=(states[0], states[1]), second=set(np.flatnonzero(slots.active).tolist())
        )
        pair.record_empty(empty)
        pairs.append(pair)
    return tuple(pairs)


def _assignments_by_component(
    flow: CompiledFlow, before: PhysicalPlan, recorded: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return component → recorded assignment of the component that had its first operator."""
    of_operator = {
        name: component.name for component in before.components for name in component.operators
    }
    homes = {
        component.name: of_operator[component.operators[0].name] for component in flow.components
    }
    return {name: recorded[home] for name, home in homes.items() if home in recorded}


def first_assignments(
    flow: CompiledFlow,
    recorded: Mapping[str, Mapping[str, Any]],
    assignments: Mapping[str, Assignment],
    executors: Sequence[Executor],
) -> dict[str, Assignment]:
    """Return the assignment of every component at the beginning of a run.

    `recorded`: component → as in the last commit record, which is adapted to today's executors.
    `assignments`: component → as the user wants it, if nothing is recorded; other components are
    distributed evenly. Raises `InvalidPlanError` if the user names a component that does not exist,
    or places another number of key groups.
    """
    components = [component.name for component in flow.components]
    unknown = sorted(assignments.keys() - set(components))
    if unknown:
        raise InvalidPlanError(
            f"Assignments were given for components that do not exist: {unknown}.",
            remedy=f"Components are {', '.join(components)}.",
        )
    names, lanes = (
        [executor.name for executor in executors],
        [executor.lanes for executor in executors],
    )
    first = {}
    for name in components:
        if name in recorded:
            recorded_assignment = _recorded_assignment(name, recorded[name], flow.num_key_groups)
            first[name] = map_to_executors(recorded_assignment, names, lanes)
        elif name not in assignments:
            first[name] = even_assignment(flow.num_key_groups, names, lanes)
        elif assignments[name].num_key_groups == flow.num_key_groups:
            first[name] = assignments[name]
        else:
            raise InvalidPlanError(
                f"The assignment of {name!r} has {assignments[name].num_key_groups} key groups.",
                remedy=f"The flow has {flow.num_key_groups}; place every one of them.",
            )
    return first


def _recorded_assignment(
    component: str, values: Mapping[str, Any], num_key_groups: int
) -> Assignment:
    """Return a component's assignment from the last commit record; raise if it is invalid."""
    try:
        version = msgspec.convert(int(values["version"]), Number)
        assignment = Assignment.from_dict({**values, "version": version})
        problem = f"it has {assignment.num_key_groups} key groups, not {num_key_groups}"
        if assignment.num_key_groups == num_key_groups:
            return assignment
    except (InvalidPlanError, LookupError, TypeError, ValueError, OverflowError) as error:
        problem = f"{type(error).__name__}: {error}".removesuffix(".")
    raise CorruptCheckpointError(
        f"The last epoch of the checkpoint has an invalid assignment of component {component!r}: "
        f"{problem}.",
        remedy="Restore the record of this epoch from a copy of the checkpoint; run "
        "`godwit checkpoint verify` to see what else is affected.",
        component=component,
    )


def map_to_executors(
    recorded: Assignment, names: Sequence[str], lanes: Sequence[int]
) -> Assignment:
    """Return a recorded assignment on today's executors, which have other names.

    Executors are matched in order, and key groups stay with their match. Key groups without a match
    go to the executors with the fewest per lane; additional executors take their share from those
    with the most. Nothing else moves.
    """
    executor_of = recorded.executor_of.astype(np.int32)
    lane_of = (
        recorded.lane_of % np.asarray(lanes, np.int32)[np.minimum(executor_of, len(lanes) - 1)]
    )
    width = np.asarray(lanes, np.float64)
    counts = np.bincount(executor_of, minlength=len(names))[: len(names)].astype(np.int64)

    def move(key_group: int, executor: int) -> None:
        """Assign a key group to an executor and, round robin, to one of its lanes."""
        executor_of[key_group] = executor
        lane_of[key_group] = counts[executor] % lanes[executor]
        counts[executor] += 1

    for key_group in np.flatnonzero(executor_of >= len(names)).tolist():
        move(key_group, int(np.argmin((counts + 1) / width)))
    shares = len(executor_of) * width / width.sum()
    for newcomer in range(len(recorded.executors), len(names)):
        while counts[newcomer] + 1 <= shares[newcomer]:
            donor = int(np.argmax(counts / width))
            counts[donor] -= 1
            move(int(np.flatnonzero(executor_of == donor)[-1]), newcomer)
    return Assignment(
        version=recorded.version + 1,
        executors=tuple(names),
        lanes=tuple(lanes),
        executor_of=executor_of,
        lane_of=lane_of.astype(np.int32),
    )
