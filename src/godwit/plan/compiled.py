"""Compiled flow: columns typed, operators bound, mistakes refused.

The invariant: operators and their inputs form a DAG whose levels grow along every edge, so an
epoch that runs the components level by level has each operator's rows before it needs them; and
every operator has a path to a sink.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.model.errors import InvalidFlowError, InvalidPlanError
from godwit.model.naming import did_you_mean, listing
from godwit.operators.hot_keys import PART
from godwit.plan.feedback import FeedbackSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from godwit.checkpoint.records import StateId
    from godwit.columns.signed import Kind
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.feedback import Feedback
    from godwit.plan.maps import ArrowMap
    from godwit.sources.source import Source
    from godwit.time.event_time import QueryWatermark, SourceTime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """Rows that feed an operator."""

    operator: str
    # in order: functions over DataFrames on a source that is one, else `ArrowMap`s. Those after an
    # operator run in its lanes; the same map on the way to several operators and sinks is one
    # object, so it has to run only once.
    maps: tuple[Any, ...]
    keys: tuple[str, ...]  # key columns of the operator, in the order they are hashed
    # columns that must come through the exchange: the key columns, then those the operator reads
    schema: pa.Schema
    number: int = 0  # which of the operator's inputs it is
    # operators that take some of the rows instead of `operator`: other slots of its key groups
    others: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in `schema`."""
        return tuple(self.schema.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInput(_Input):
    """Rows of a source that feed an operator, through an exchange."""

    source: str
    # column that holds the source's event time, if the flow uses that and the maps left it
    time: pa.Field | None = None
    # the first of `maps`, up to the last one that recomputed the event time; none if the rows
    # have that of the source. Rows of the same source and the same `retimed` share a watermark.
    retimed: tuple[Any, ...] = ()
    table: str = ""  # the operator's table that the rows are of; empty: they are rows to process

    @property
    def branch(self) -> str:
        """Name of the input's own watermark, used if its maps recompute the event time."""
        return f"{self.source}/{self.operator}" + (f"/{self.number}" if self.number else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamInput(_Input):
    """Rows of an operator that feed another one."""

    upstream: str  # operator that feeds it
    delay_us: int = 0  # how far behind the watermark of `upstream` the rows' event time may be


Input: TypeAlias = SourceInput | UpstreamInput


def source_of(watermark: str) -> str:
    """Return the source whose rows advance the watermark with this name."""
    return watermark.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOutput:
    """Rows of an operator for one sink."""

    name: str  # the sink's
    operator: str
    maps: tuple[ArrowMap, ...]  # run in the lanes of `operator`, in order
    schema: pa.Schema
    # the operator's key columns, if all of them are in `schema` still; else empty, since a part of
    # a key does not tell rows apart
    keys: tuple[str, ...]
    sink: Any  # as the user gave it
    # sets of columns of `schema`, each of which tells the rows of the result apart, widest first
    # (see `KeyedOperator.unique_keys`); empty where no later row could replace a row
    unique_keys: tuple[tuple[str, ...], ...] = ()
    rejects_of: str | None = None  # sink whose refused rows these are
    left_out: bool = False  # the rows that the operator left out, and not its output
    # source whose rows these are that could not be read; `operator` is one that it feeds
    unreadable_of: str = ""
    # of rows of failed calls of the operator, or of a map: share above which the query stops
    max_error_share: float | None = None
    formerly: str = ""  # name that the user says it had before
    kind: Kind = "rows"  # whether rows have a sign; see `godwit.columns.signed`
    # columns that identify a row of the table whose changes these are; empty: not known
    table_keys: tuple[str, ...] = ()

    @property
    def is_result(self) -> bool:
        """True for rows that the operator emits, and rows that a sink rejects."""
        others = self.left_out or self.unreadable_of or self.max_error_share is not None
        return not others


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Component:
    """Operators that share one partitioning, and so one exchange and one assignment.

    Their state of a key group is in one place, moves, waits and resumes together.  Where one of
    them feeds another, its rows stay in the lane.
    """

    name: str  # unique within the flow
    operators: tuple[KeyedOperator, ...]  # upstream before downstream; keys of the same types
    level: int  # 1 if sources feed it, else 1 more than the highest level that feeds it

    @property
    def keys(self) -> tuple[str, ...]:
        """Partition attributes that all its operators have in common."""
        first, *others = (operator.placed_by.names for operator in self.operators)
        return tuple(name for name in first if all(name in names for names in others))

    @property
    def is_flexible(self) -> bool:
        """True if all operators can merge partial states of a key.

        Else the component is rigid (paper 3).
        """
        return all(operator.mergeable for operator in self.operators)

    @property
    def states(self) -> tuple[StateId, ...]:
        """Ids of the states of its operators."""
        return tuple(state for operator in self.operators for state in operator.states)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledFlow:
    """A validated flow; made by `LogicalFlow.compile`."""

    name: str
    num_key_groups: int  # of every component
    sources: tuple[str, ...]  # in the order they were declared
    # in the order of their levels, and in the order they were declared within a level
    components: tuple[Component, ...]
    # upstream before downstream, in the same order regardless of the physical plan; several of one
    # operator, where streams meet in it, in the order of their numbers
    inputs: tuple[Input, ...]
    # one for each sink, in the order they were declared; what a sink refuses comes after it
    outputs: tuple[SinkOutput, ...]
    actions: Mapping[str, str]  # operator's name → what it does, in words
    formerly: Mapping[str, str] = field(default_factory=dict)  # operator → former name
    # operators that may start empty although others leave state behind
    starts_empty: frozenset[str] = frozenset()
    unnamed: frozenset[str] = frozenset()  # operators with generated names
    # source → its event time, of those whose event time some operator uses
    times: Mapping[str, SourceTime] = field(default_factory=dict)
    own_sources: Mapping[str, Source] = field(
        default_factory=dict
    )  # those of Godwit's own, by name
    feedbacks: tuple[Feedback, ...] = ()  # several of one loop, where streams meet before it
    # The lowest watermark of all sources, or the greatest, is that of the whole query, as in Spark;
    # ``None``: every operator has the lowest of those upstream of it.
    query_watermark: QueryWatermark | None = None
    # Timers fire, and windows close, in epochs with input alone.
    waits_for_input: bool = False

    @property
    def operators(self) -> tuple[KeyedOperator, ...]:
        """All operators, upstream before downstream; independent of the physical plan."""
        by_name = {
            operator.name: operator
            for component in self.components
            for operator in component.operators
        }
        fed = (name for edge in self.inputs for name in (edge.operator, *edge.others))
        return tuple(by_name[name] for name in dict.fromkeys(fed))

    @property
    def levels(self) -> int:
        """Number of levels: stages of lanes that run one after the other in an epoch."""
        return max(component.level for component in self.components)

    @property
    def loops(self) -> dict[str, FeedbackSource]:
        """Name of each loop → its source."""
        sources = self.own_sources.items()
        return {name: source for name, source in sources if isinstance(source, FeedbackSource)}

    def operator(self, name: str) -> KeyedOperator:
        """Return the operator of that name; an unknown name raises with the closest names."""
        for component in self.components:
            for operator in component.operators:
                if operator.name == name:
                    return operator
        names = [operator.name for operator in self.operators]
        raise InvalidFlowError(
            f"Flow {self.name!r} has no operator {name!r}.",
            remedy=f"{did_you_mean(name, names)}Its operators are {listing(names)}.",
            flow=self.name,
            operator=name,
        )

    def component_of(self, operator: str) -> Component:
        """Return the component that holds the operator of that name."""
        known = self.operator(operator)
        return next(
            component
            for component in self.components
            if any(known is o for o in component.operators)
        )

    @property
    def physical_plan(self) -> PhysicalPlan:
        """Physical plan: the operators that each component fuses (runs in one task)."""
        return PhysicalPlan(
            components=tuple(
                ComponentPlan(
                    name=component.name,
                    operators=tuple(operator.name for operator in component.operators),
                )
                for component in self.components
            )
        )

    def with_plan(self, plan: PhysicalPlan) -> CompiledFlow:
        """Return the flow under another physical plan, with the same results.

        Each operator keeps state of its own, so the plan is refused (`InvalidPlanError`) only if it
        cannot run: it fuses operators whose keys have other types, since equal keys would then be
        of different key groups; an operator that feeds one keyed by other columns, since its rows
        must be sent to other lanes; operators with one of another component between them, since a
        component runs on one level, once an epoch.

        Source: partition attributes and fusion, Madsen et al. (Enorm) §4.3 and §4.4.
        """
        planned = [name for component in plan.components for name in component.operators]
        operator_names = [operator.name for operator in self.operators]
        if sorted(planned) != sorted(operator_names):
            raise InvalidPlanError(
                f"The physical plan has operators {listing(sorted(planned))}, but flow "
                f"{self.name!r} has {listing(sorted(operator_names))}.",
                remedy="Name every operator of the flow once.",
                flow=self.name,
            )
        component_of = {
            name: component_.name for component_ in plan.components for name in component_.operators
        }
        fed_by: dict[str, set[str]] = {component.name: set() for component in plan.components}
        for edge in self.inputs:
            if isinstance(edge, UpstreamInput):
                sending = component_of[edge.upstream]
                for receiving in {component_of[name] for name in (edge.operator, *edge.others)}:
                    if receiving != sending:
                        fed_by[receiving].add(sending)
                    else:
                        _check_same_lane(self, edge, receiving)
        levels = _levels_of(fed_by)
        components = sorted(
            (
                _bind_component(self, component, levels[component.name])
                for component in plan.components
            ),
            key=lambda component: component.level,
        )
        return replace(self, components=tuple(components))

    def inputs_of(self, operator: str) -> tuple[Input, ...]:
        """Return the inputs of the operator of that name."""
        name = self.operator(operator).name
        return tuple(i for i in self.inputs if name == i.operator or name in i.others)

    def sources_of(self, operator: str) -> tuple[str, ...]:
        """Return the names of all sources upstream of the operator of that name."""
        sources: dict[str, None] = {}
        pending, seen = [operator], {operator}
        while pending:
            for edge in self.inputs_of(pending.pop()):
                if isinstance(edge, SourceInput):
                    sources[edge.source] = None
                elif edge.upstream not in seen:
                    seen.add(edge.upstream)
                    pending.append(edge.upstream)
        return tuple(sources)

    def inputs_fed_by(self, operator: str) -> tuple[UpstreamInput, ...]:
        """Return the inputs, of other operators, that read the output of an operator."""
        name = self.operator(operator).name
        return tuple(
            edge
            for edge in self.inputs
            if isinstance(edge, UpstreamInput) and edge.upstream == name
        )

    @property
    def watermarks(self) -> tuple[tuple[str, ...], ...]:
        """Names of each watermark of source rows; the position of a watermark is its number.

        First those of the sources, by their names and in their order. Then those of branches whose
        maps recompute the event time, by the names of the inputs that read them
        (`SourceInput.branch`), which stay when operators are added or removed.
        """
        branches: dict[Any, list[str]] = {(source, ()): [source] for source in self.sources}
        for edge in self.inputs:
            if isinstance(edge, SourceInput) and edge.retimed:
                branches.setdefault((edge.source, edge.retimed), []).append(edge.branch)
        return tuple(map(tuple, branches.values()))

    def watermark_of(self, edge: SourceInput) -> str:
        """Return the name of the watermark that the rows of an input advance.

        Rows without an event time follow the watermark of their source; if no rows of the source
        have one, that of its first branch.
        """
        if edge.retimed or edge.time is not None:
            return edge.branch if edge.retimed else edge.source
        moving = [
            other
            for other in self.inputs
            if isinstance(other, SourceInput)
            and other.source == edge.source
            and other.time is not None
        ]
        whole = not moving or any(not other.retimed for other in moving)
        return edge.source if whole else moving[0].branch

    def outputs_of(self, operator: str) -> tuple[SinkOutput, ...]:
        """Return the outputs of the operator of that name."""
        name = self.operator(operator).name
        return tuple(output for output in self.outputs if output.operator == name)


def _bind_component(flow: CompiledFlow, plan: ComponentPlan, level: int) -> Component:
    """Return a component with the operators that its plan names; raise if they cannot share one.

    They cannot if their keys' types differ, or one of several may spread its keys. `level`: stage
    of the epoch in which it runs, from 1.
    """
    operators = tuple(o for o in flow.operators if o.name in plan.operators)
    spread = [operator.name for operator in operators if PART in operator.hash_columns.names]
    if spread and len(operators) > 1:
        raise InvalidPlanError(
            f"Operator {spread[0]!r} may spread rows of a key over key groups, so it cannot share "
            f"component {plan.name!r} with others.",
            remedy="Leave it in a component of its own, or leave spread= or merge= out.",
            component=plan.name,
            operators=spread,
        )
    types = {operator.name: tuple(operator.placed_by.types) for operator in operators}
    if len(set(types.values())) > 1:
        keys = "; ".join(f"{name} by {', '.join(map(str, t))}" for name, t in types.items())
        raise InvalidPlanError(
            f"Operators of component {plan.name!r} have keys of different types: {keys}.",
            remedy="Let only operators share a component whose keys have the same types. Where the "
            "key of one contains that of another, partition_by= of its key_by places its rows by "
            "the columns that both have.",
            component=plan.name,
        )
    return Component(name=plan.name, operators=operators, level=level)


def _check_same_lane(flow: CompiledFlow, edge: UpstreamInput, component: str) -> None:
    """Refuse to fuse operators whose rows belong to different lanes."""
    sender, receiver = flow.operator(edge.upstream), flow.operator(edge.operator)
    if edge.others:
        raise InvalidPlanError(
            f"Operator {sender.name!r} of component {component!r} feeds {receiver.name!r}, whose "
            "windows are consolidated apart, by an operator with a placement of its own.",
            remedy="Leave either in a component of its own, or leave consolidate= out.",
            component=component,
            operators=[sender.name, receiver.name],
        )
    sent, received_by = sender.placed_by.names, receiver.placed_in(edge.keys)
    if tuple(sent) != received_by:
        verb = "partitioned" if sender.partition_by or receiver.partition_by else "keyed"
        raise InvalidPlanError(
            f"Operator {sender.name!r} of component {component!r} feeds {receiver.name!r}, and is "
            f"{verb} by {listing(sent)}, not by {listing(received_by)}: its rows belong to other "
            "lanes.",
            remedy="Let an operator share a component with the one that feeds it only where both "
            "are keyed by the same columns, in the same order, or partition_by= says that the "
            "same columns place their rows.",
            component=component,
            operators=[sender.name, receiver.name],
        )


def is_whole_result(flow: CompiledFlow, output: SinkOutput) -> bool:
    """Return whether an epoch's rows for a sink are the whole result (complete mode).

    Rejected, late and unreadable rows never are.
    """
    is_result = output.is_result and output.rejects_of is None
    return is_result and flow.operator(output.operator).complete


def _levels_of(fed_by: Mapping[str, set[str]]) -> dict[str, int]:
    """Return component → level: 1, or 1 more than the highest that feeds it; raise for a cycle.

    `fed_by`: component → the components upstream of it.
    """
    levels: dict[str, int] = {}
    while len(levels) < len(fed_by):
        ready = [n for n in fed_by if n not in levels and fed_by[n] <= levels.keys()]
        if not ready:
            around = sorted(fed_by.keys() - levels.keys())
            raise InvalidPlanError(
                f"Components {listing(around)} feed one another.",
                remedy="A component runs once in each epoch: if two operators share one, put all "
                "operators between them into it, too.",
                components=around,
            )
        for name in ready:
            levels[name] = 1 + max((levels[upstream] for upstream in fed_by[name]), default=0)
    return levels
