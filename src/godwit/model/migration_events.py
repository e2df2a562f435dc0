"""Events of migrations, of key groups on their way, and of the grouping of components."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  events are read by the types of their fields
from dataclasses import dataclass, field

from godwit.model.event import Event
from godwit.model.text import counted, human_bytes, key_groups_listed


@dataclass(frozen=True, slots=True, kw_only=True)
class _MigrationEvent(Event):
    """An event of a migration."""

    migration: str  # its name
    component: str

    @property
    def _subject(self) -> str:
        """The migration and its component, as text."""
        return f"migration {self.migration} of {self.component}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStarted(_MigrationEvent):
    """A migration plan was accepted, and its moves begin.

    Attributes
    ----------
    migration
        Identifier of the migration.
    component
        Name of the component.
    strategy
        Migration strategy, such as ``"live"``.
    moves
        Number of key groups to move.
    state_bytes
        Bytes of their state.
    reason
        Reason of the strategy, if it is not the one that was asked for; else empty.

    Examples
    --------
    >>> event = gw.events.MigrationStarted(
    ...     epoch=4, at_s=1.0, migration="m1", component="sum", strategy="live", moves=3,
    ...     state_bytes=2048,
    ... )
    >>> print(event.describe())
    migration m1 of sum started (live): 3 key groups, 2.0 KiB
    """

    strategy: str
    moves: int
    state_bytes: int = 0
    reason: str = ""

    def _one_line_text(self) -> str:
        why = f", since {self.reason}" if self.reason else ""
        return (
            f"{self._subject} started ({self.strategy}{why}): {counted(self.moves, 'key group')}, "
            f"{human_bytes(self.state_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFinished(_MigrationEvent):
    """A migration has ended, and an epoch was committed with its last assignment.

    Attributes
    ----------
    migration
        Identifier of the migration.
    component
        Name of the component.
    moved
        Number of key groups that moved.
    withdrawn
        Number of key groups that were to move and stayed where they were.
    """

    moved: int
    withdrawn: int = 0

    def _one_line_text(self) -> str:
        rest = f", {self.withdrawn} withdrawn" if self.withdrawn else ""
        return f"{self._subject} finished: {counted(self.moved, 'key group')} moved{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationCancelled(_MigrationEvent):
    """A migration ended early; key groups that had moved stay where they are.

    Attributes
    ----------
    migration
        Identifier of the migration.
    component
        Name of the component.
    reason
        Reason of the end.
    moved
        Number of key groups that moved.
    withdrawn
        Number of key groups that stayed where they were.
    """

    reason: str
    moved: int = 0
    withdrawn: int = 0

    _TEXT = (
        "{event._subject} cancelled: {event.reason} ({event.moved} moved, "
        "{event.withdrawn} withdrawn)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyGroupEvent(Event):
    """An event of key groups of a component."""

    component: str
    key_groups: tuple[int, ...]

    @property
    def _subject(self) -> str:
        """The component and its key groups, as text."""
        return f"{self.component}: {key_groups_listed(self.key_groups)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmingStarted(_KeyGroupEvent):
    """An executor began to load copies of the state of key groups, in the background.

    Attributes
    ----------
    component
        Name of the component.
    key_groups
        Numbers of the key groups.
    executor
        Executor that loads the copies.
    peers
        Executors that send copies of the state; the other copies are read from the checkpoint.
    why
        Reason why copies come from executors or from the checkpoint; empty if there was no choice.
    """

    executor: str
    peers: tuple[str, ...] = ()
    why: str = ""

    def _one_line_text(self) -> str:
        source = f" from {', '.join(self.peers)}" if self.peers else ""
        why = f"{'' if source else ' from the checkpoint'} ({self.why})" if self.why else ""
        return (
            f"{self.component}: warming {key_groups_listed(self.key_groups)} "
            f"at {self.executor}{source}{why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTransferFailed(_KeyGroupEvent):
    """An executor did not send copies of state; they are read from the checkpoint instead.

    Attributes
    ----------
    component
        Name of the component.
    key_groups
        Numbers of the key groups.
    executor
        Executor that needs the copies.
    source
        Executor that did not send them.
    reason
        Reason of the failure.
    """

    executor: str
    source: str
    reason: str

    _TEXT = "{event._subject} did not come from {event.source} to {event.executor}: {event.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsWarmed(_KeyGroupEvent):
    """An executor has loaded copies of the state of key groups, which are now up to date.

    Attributes
    ----------
    component
        Name of the component.
    key_groups
        Numbers of the key groups.
    executor
        Executor that has the copies.
    state_bytes
        Bytes of their state.
    peer_bytes
        Number of these bytes that other executors sent; the checkpoint had the rest.
    duration_ms
        Time that loading took, in milliseconds.
    """

    executor: str
    state_bytes: int = 0
    peer_bytes: int = 0
    duration_ms: float = 0.0

    def _one_line_text(self) -> str:
        peers = f", {human_bytes(self.peer_bytes)} from peers" if self.peer_bytes else ""
        return (
            f"{self._subject} warm at {self.executor} "
            f"({human_bytes(self.state_bytes)} in {self.duration_ms:.0f} ms{peers})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsSuspended(_KeyGroupEvent):
    """Rows of some key groups wait, because their executors do not have their state yet.

    So it is after the loss of an executor. `KeyGroupsResumed` follows.

    Attributes
    ----------
    component
        Name of the component.
    key_groups
        Numbers of the key groups.
    """

    _TEXT = "{event._subject} suspended, rows wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsResumed(_KeyGroupEvent):
    """Executors have the state of suspended key groups: the next epoch processes waiting rows.

    Attributes
    ----------
    component
        Name of the component.
    key_groups
        Numbers of the key groups.
    """

    _TEXT = "{event._subject} resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsLoaded(_KeyGroupEvent):
    """Key groups have come to an executor without their state, which the next epoch reads.

    Attributes
    ----------
    component
        Name of the component.
    key_groups
        Numbers of the key groups.
    on_demand
        True if the next epoch needs only the state of the keys of its rows; later epochs read the
        rest. False: it loads all state of key groups with rows first, unless much is missing and
        the setting ``restore`` of lanes is ``"touched"``.
    """

    on_demand: bool = False

    def _one_line_text(self) -> str:
        how = "fetches the state of its rows' keys of" if self.on_demand else "loads"
        return f"{self.component}: the next epoch {how} {key_groups_listed(self.key_groups)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSwitched(Event):
    """From the next epoch on, key groups are processed by their new executors or lanes.

    Attributes
    ----------
    component
        Name of the component.
    version
        Version of the new assignment.
    key_groups
        Numbers of the key groups that changed executor; empty if only lanes changed.
    """

    component: str
    version: int
    key_groups: tuple[int, ...] = ()

    def _one_line_text(self) -> str:
        moved = (
            f"moves {key_groups_listed(self.key_groups)}"
            if self.key_groups
            else "changes lanes only"
        )
        return f"{self.component}: assignment {self.version} {moved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegroupingEvent(Event):
    """Fields of all regrouping events."""

    regrouping: str  # its name
    # new component → its operators, separated by commas
    components: Mapping[str, str]

    @property
    def _new_components(self) -> str:
        """The new components and their operators, as text."""
        return "; ".join(f"{name} of {operators}" for name, operators in self.components.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingStarted(_RegroupingEvent):
    """Operators are to be fused into one component, or separated; first, key groups may move.

    Operators of a component run in the same tasks, so their key groups have to be on the same
    executors.

    Attributes
    ----------
    regrouping
        Identifier of the regrouping.
    components
        New component → its operators, separated by commas.
    moves
        Number of key groups that move first.
    state_bytes
        Bytes of their state.
    reason
        Reason, with the numbers; empty if a user asked for it.
    """

    moves: int
    state_bytes: int
    reason: str = ""

    def _one_line_text(self) -> str:
        why = f", since {self.reason}" if self.reason else ""
        return (
            f"regrouping {self.regrouping} started ({self._new_components}): "
            f"{counted(self.moves, 'key group')} to move, {human_bytes(self.state_bytes)}{why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentsRegrouped(_RegroupingEvent):
    """From the next epoch on, components consist of other operators.

    A component is a group of operators that share one exchange and one assignment of key groups.

    Attributes
    ----------
    regrouping
        Identifier of the regrouping.
    components
        New component → its operators, separated by commas.
    """

    _TEXT = "components regrouped ({event.regrouping}): {event._new_components}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingCancelled(_RegroupingEvent):
    """A change of components (groups of operators) ended early; the components stay as they are.

    Attributes
    ----------
    regrouping
        Identifier of the regrouping.
    components
        New component → its operators, separated by commas.
    reason
        Reason of the end.
    """

    reason: str

    _TEXT = "regrouping {event.regrouping} cancelled: {event.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsRepartitioned(Event):
    """Other key columns select the key group of a row, and the state was rewritten accordingly.

    Attributes
    ----------
    before, after
        Operator → key columns whose hash selected the key group of a row before the change, and
        those whose hash does now, separated by commas.
    reason
        Reason of the change.
    paused_ms
        Milliseconds for which no epoch could run.
    """

    before: Mapping[str, str]
    after: Mapping[str, str]
    reason: str
    paused_ms: float

    def _one_line_text(self) -> str:
        placed = "; ".join(
            f"{name} is placed by {columns} instead of {self.before.get(name, '')}"
            for name, columns in self.after.items()
        )
        return f"{placed} ({self.reason}); no epoch ran for {self.paused_ms:.0f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitioningCompared(Event):
    """Two ways to select the key group of a row were compared for an operator and the next one.

    The hash may be of all key columns, or only of those that both operators have; then they need no
    exchange (shuffle) between them, but lanes may be loaded less evenly.

    Attributes
    ----------
    operator, downstream
        Names of the operator, and of the operator that it feeds.
    columns
        Key columns that both operators have.
    chosen
        True if the hash is of `columns` alone from now on, for both.
    better
        True if epochs of the running query would be shorter with `columns` alone.
    imbalance
        Predicted load of the busiest lane with `columns` alone, divided by the mean load of all
        lanes; ``None`` if unknown.
    apart_ms, together_ms
        Time of an epoch in milliseconds, with all key columns (measured) and with `columns` alone
        (predicted); ``None`` before a query runs.
    reason
        Measurements that the comparison rests on, as text.
    """

    operator: str
    downstream: str
    columns: tuple[str, ...]
    chosen: bool
    reason: str
    imbalance: float | None = None
    better: bool = False
    apart_ms: float | None = None
    together_ms: float | None = None

    def _one_line_text(self) -> str:
        parts = []
        if self.apart_ms is not None and self.together_ms is not None:
            parts.append(f"{self.together_ms:.1f} ms an epoch instead of {self.apart_ms:.1f} ms")
        if self.imbalance is not None:
            parts.append(f"the busiest lane has {self.imbalance:.2f} of the mean")
        if self.apart_ms is None or self.chosen:
            answer = "chosen" if self.chosen else "not chosen"
        else:
            answer = f"partition_by= would {'' if self.better else 'not '}pay"
        figures = f" {', '.join(parts)};" if parts else ""
        return (
            f"placing {self.operator} by {', '.join(self.columns)}, as {self.downstream}:{figures} "
            f"{answer} ({self.reason})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsCompared(Event):
    """The costs of one-phase and two-phase windows over a period were compared.

    For windows with ``consolidate="measured"``. The costs of the present layout are measured, those
    of the other one are computed from the same measurements.

    Attributes
    ----------
    operator
        Name of the windowed operator.
    layout
        Present layout: ``"split"`` (two-phase) or ``"combined"`` (one-phase).
    cheaper
        Layout that would be better: the one with less CPU time, of those whose migrations keep
        `max_latency_ms`.
    epochs
        Number of epochs in the period; all costs are for the whole period.
    split_ms, combined_ms
        CPU time in each layout, in milliseconds.
    split_latency_ms, combined_latency_ms
        Time that all migrations of the period take in each layout, in milliseconds.
    max_latency_ms
        Maximum time that they may take (``max_latency`` of `godwit.control.Splitting`); ``None``:
        no limit.
    within
        True if the migrations of the `cheaper` layout keep this limit.
    numbers
        Measurements that the costs are computed from: name → value.
    """

    operator: str
    layout: str
    cheaper: str
    epochs: int
    split_ms: float
    combined_ms: float
    split_latency_ms: float
    combined_latency_ms: float
    max_latency_ms: float | None = None
    within: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _one_line_text(self) -> str:
        bound = ""
        if self.max_latency_ms is not None:
            bound = f" of {self.max_latency_ms:.0f} ms allowed"
            if not self.within:
                bound += f", which neither keeps to: {self.cheaper} comes closest"
        better = "stays so" if self.layout == self.cheaper else f"{self.cheaper} would be better"
        return (
            f"{self.operator} is {self.layout} and {better}: over {counted(self.epochs, 'epoch')} "
            f"split {self.split_ms:.1f} ms of CPU, combined {self.combined_ms:.1f} ms; "
            f"migrations take {self.split_latency_ms:.0f} ms split, "
            f"{self.combined_latency_ms:.0f} ms combined{bound}"
        )
