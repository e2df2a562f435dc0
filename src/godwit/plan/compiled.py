"""A flow that can run: every column has a type, every operator is bound, every mistake was found.

The invariant: operators and their inputs form a DAG whose levels grow along every edge, so an
epoch that runs the components level by level has each operator's rows before it needs them; and
every operator has a path to a sink.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from godwit.checkpoint.records import StateId
    from godwit.operators.operator import KeyedOperator
    from godwit.operators.windows.event_time import SourceTime
    from godwit.plan.maps import ArrowMap

__all__ = [
    "CompiledFlow",
    "Component",
    "Input",
    "Output",
    "SourceInput",
    "UpstreamInput",
    "source_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInput:
    """What feeds an operator from a source, through an exchange.

    Attributes
    ----------
    operator
        Operator that is fed.
    source
        Name of the source.
    maps
        Functions DataFrame to DataFrame, in order.
    keys
        Key columns of the operator, in the order they are hashed.
    schema
        Columns that must come through the exchange: the key columns, then the others that the
        operator reads.
    time
        Column that holds the source's event time, if the flow uses that and the maps left it.
    number
        Which of the operator's inputs it is.
    others
        Operators that take some of the rows in place of `operator`: other slots of its key groups.
    retimed
        The first of `maps`, up to the last one that computed the event time anew; none if the rows
        have that of the source. Rows of the same source and the same `retimed` share a watermark.
    """

    operator: str
    source: str
    maps: tuple[Callable[[DataFrame], DataFrame], ...]
    keys: tuple[str, ...]
    schema: pa.Schema
    time: pa.Field | None = None
    number: int = 0
    others: tuple[str, ...] = ()
    retimed: tuple[Callable[[DataFrame], DataFrame], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in `schema`."""
        return tuple(self.schema.names)

    @property
    def branch(self) -> str:
        """Name of the watermark that it has beside its source's; see `watermark_of`."""
        return f"{self.source}/{self.operator}" + (f"/{self.number}" if self.number else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamInput:
    """What feeds an operator from another one, through an exchange.

    Attributes
    ----------
    operator
        Operator that is fed.
    upstream
        Operator that feeds it.
    maps
        Maps over Arrow tables, in order; they run in the lanes of `upstream`. The same map on the
        way to several operators and sinks is one object, so it has to run only once.
    keys, schema, number, others
        As in `SourceInput`.
    delay_us
        How far behind the watermark of `upstream` the event time of its rows may be.
    """

    operator: str
    upstream: str
    maps: tuple[ArrowMap, ...]
    keys: tuple[str, ...]
    schema: pa.Schema
    number: int = 0
    others: tuple[str, ...] = ()
    delay_us: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in `schema`."""
        return tuple(self.schema.names)

    @property
    def key_columns(self) -> pa.Schema:
        """Key columns of the operator, as they come."""
        return pa.schema([self.schema.field(key) for key in self.keys])


Input: TypeAlias = SourceInput | UpstreamInput


def source_of(watermark: str) -> str:
    """Source whose rows move the watermark of that name."""
    return watermark.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a sink gets.

    Attributes
    ----------
    name
        The sink's name.
    operator
        Operator that makes the rows.
    maps
        Maps over Arrow tables, in order; they run in the lanes of `operator`.
    schema
        Columns of the rows.
    keys
        The operator's key columns, if all of them are in `schema` still; else empty, since a part
        of a key does not tell rows apart.
    unique_keys
        Sets of columns of `schema`, each of which tells the rows of the result apart, widest first
        (see `godwit.operators.operator.KeyedOperator.unique_keys`); empty where rows are no result
        that a later row could replace.
    sink
        The sink, as the user gave it.
    rejects_of
        Name of the sink whose refused rows these are; ``None`` for the operator's own rows.
    left_out
        Whether it gets the rows that the operator left out, and not its output.
    formerly
        Name that the user says it had before; empty if none.
    """

    name: str
    operator: str
    maps: tuple[ArrowMap, ...]
    schema: pa.Schema
    keys: tuple[str, ...]
    sink: Any
    unique_keys: tuple[tuple[str, ...], ...] = ()
    rejects_of: str | None = None
    left_out: bool = False
    formerly: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Component:
    """Operators that share one partitioning, and hence one exchange and one assignment.

    Attributes
    ----------
    name
        Unique within the flow.
    operators
        At least one, upstream before downstream; their keys have the same types, and where one
        feeds another, their rows stay in the lane (`godwit.plan.grouping`).
    level
        1 if sources feed it, else 1 more than the highest level that feeds it.
    """

    name: str
    operators: tuple[KeyedOperator, ...]
    level: int

    @property
    def keys(self) -> tuple[str, ...]:
        """Partition attributes: the key columns that all its operators have in common."""
        first, *others = (operator.keys.names for operator in self.operators)
        return tuple(name for name in first if all(name in names for names in others))

    @property
    def is_flexible(self) -> bool:
        """Whether the state of every operator can be made of parts; else it is rigid (paper 3)."""
        return all(operator.partials is not None for operator in self.operators)

    @property
    def states(self) -> tuple[StateId, ...]:
        """States of its operators: each is brought forward, warmed and dropped on its own."""
        return tuple(state for operator in self.operators for state in operator.states)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledFlow:
    """A validated flow; `LogicalFlow.compile` makes it.

    Attributes
    ----------
    name
        The flow's name.
    num_key_groups
        Key groups of every component.
    sources
        Names of the sources, in the order they were declared.
    components
        In the order of their levels, and in the order they were declared within a level.
    formerly
        Operator's name → name that it had before, as the user says.
    unnamed
        Operators whose names nobody chose: they follow from results, function and key.
    times
        Source → its event time, of those whose event time some operator uses.
    inputs
        Upstream before downstream, in the same order whatever the physical plan; several of one
        operator, where streams meet in it, in the order of their numbers.
    outputs
        One for each sink, in the order they were declared; what a sink refuses comes after it.
    actions
        Operator's name → what it does, in words.
    """

    name: str
    num_key_groups: int
    sources: tuple[str, ...]
    components: tuple[Component, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    actions: Mapping[str, str]
    formerly: Mapping[str, str] = field(default_factory=dict)
    unnamed: frozenset[str] = frozenset()
    times: Mapping[str, SourceTime] = field(default_factory=dict)

    @property
    def operators(self) -> tuple[KeyedOperator, ...]:
        """Every operator, upstream before downstream; in one order, whatever the physical plan."""
        of = {operator.name: operator for c in self.components for operator in c.operators}
        fed = (name for given in self.inputs for name in (given.operator, *given.others))
        return tuple(of[name] for name in dict.fromkeys(fed))

    @property
    def levels(self) -> int:
        """Number of levels."""
        return max(component.level for component in self.components)

    def operator(self, name: str) -> KeyedOperator:
        """Return the operator of that name.

        Raises
        ------
        InvalidFlowError
            If there is none; offers the names that come closest.
        """
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
        found = self.operator(operator)
        return next(c for c in self.components if any(found is o for o in c.operators))

    @property
    def physical_plan(self) -> PhysicalPlan:
        """Which operators make a component."""
        return PhysicalPlan(
            components=tuple(
                ComponentPlan(name=c.name, operators=tuple(o.name for o in c.operators))
                for c in self.components
            )
        )

    def under(self, plan: PhysicalPlan) -> CompiledFlow:
        """Return the flow with the components of another plan; see `godwit.plan.grouping`.

        Raises
        ------
        InvalidPlanError
            If operators of one component could not run together, or the plan is of other operators.
        """
        from godwit.plan.grouping import grouped  # noqa: PLC0415 - it reads these values

        return grouped(self, plan)

    def inputs_of(self, operator: str) -> tuple[Input, ...]:
        """Return what feeds the operator of that name."""
        found = self.operator(operator).name
        return tuple(i for i in self.inputs if found == i.operator or found in i.others)

    def sources_of(self, operator: str) -> tuple[str, ...]:
        """Return the sources that the rows of the operator of that name descend from."""
        found: dict[str, None] = {}
        pending, seen = [operator], {operator}
        while pending:
            for given in self.inputs_of(pending.pop()):
                if isinstance(given, SourceInput):
                    found[given.source] = None
                elif given.upstream not in seen:
                    seen.add(given.upstream)
                    pending.append(given.upstream)
        return tuple(found)

    def fed_by(self, operator: str) -> tuple[UpstreamInput, ...]:
        """Return the inputs that take the output of the operator of that name."""
        found = self.operator(operator).name
        return tuple(
            given
            for given in self.inputs
            if isinstance(given, UpstreamInput) and given.upstream == found
        )

    @property
    def watermarks(self) -> tuple[tuple[str, ...], ...]:
        """Watermarks that rows of sources move, numbered; each under every name that it has.

        First those of the sources, by their names and in their order. Behind them those of branches
        whose maps compute the event time anew, by the names of the inputs that read them
        (`SourceInput.branch`), which stay when operators come and go.
        """
        found: dict[Any, list[str]] = {(source, ()): [source] for source in self.sources}
        for given in self.inputs:
            if isinstance(given, SourceInput) and given.retimed:
                found.setdefault((given.source, given.retimed), []).append(given.branch)
        return tuple(map(tuple, found.values()))

    def watermark_of(self, given: SourceInput) -> str:
        """Name of the watermark of an input's rows.

        Rows without an event time go by their source's; if no other rows have that either, by those
        of the first branch of it.
        """
        if given.retimed or given.time is not None:
            return given.branch if given.retimed else given.source
        moving = [
            other
            for other in self.inputs
            if isinstance(other, SourceInput)
            and other.source == given.source
            and other.time is not None
        ]
        whole = not moving or any(not other.retimed for other in moving)
        return given.source if whole else moving[0].branch

    def outputs_of(self, operator: str) -> tuple[Output, ...]:
        """Return the sinks that take the output of the operator of that name."""
        found = self.operator(operator).name
        return tuple(output for output in self.outputs if output.operator == found)

    def explain(self) -> str:
        """Say how the flow runs, for people: see `godwit.plan.explain`."""
        from godwit.plan.explain import explain  # noqa: PLC0415 - explain reads these values

        return explain(self)
