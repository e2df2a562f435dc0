"""Explanation of a flow in users' terms: operators, inputs, and how an epoch runs.

The text of `explain` follows an epoch: level by level, and within an operator from what it reads,
through the exchange, to its output and the readers of that.  `graph_of` has the same flow as plain
values, for the journal and for drawings.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from godwit.columns.types import visible_schema
from godwit.model.naming import RESERVED_PREFIX, function_name
from godwit.model.text import counted
from godwit.operators.aggregate import aggregate_text
from godwit.operators.declared import ListState, MapState
from godwit.operators.operator import KeyedOperator
from godwit.plan.compiled import SourceInput
from godwit.plan.maps import ArrowMap
from godwit.plan.nodes import (
    ComputeNode,
    CustomNode,
    DropDuplicatesNode,
    JoinNode,
    LatestNode,
    PassNode,
    ProcessNode,
    WindowedNode,
)
from godwit.time.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from godwit.model.events import Event
    from godwit.operators.declared import Declared
    from godwit.plan.compiled import CompiledFlow, Component, Input, SinkOutput
    from godwit.plan.nodes import OperatorNode
    from godwit.time.event_time import RowTime, SourceTime

_WIDTH = 100
_LABEL = 10
_INDENT = "    "
_TIE = "\xa0"
"""A blank that no line breaks at."""
_FIELDS_WITH_NAMES = frozenset({"component", "operator"})
"""Fields of events that name one of them."""
_BY_COMPONENT = frozenset({"components", "migrations"})
"""Fields of events that are mappings whose keys are components, to texts that may name more."""


class UserNames:
    """Users' names of operators and components, by the engine's names.

    A two-phase window is three operators to the engine (two slots that compute, one that
    consolidates), and may be three components; to the user it is one operator with one name.
    Output for people (explain, events, assignments, status) goes through this; names in the engine
    and the checkpoint do not.
    """

    def __init__(self, operators: Iterable[KeyedOperator]) -> None:
        self._of = {operator.name: operator.part_of for operator in operators if operator.part_of}

    def __getitem__(self, name: str) -> str:
        """Return the name of an operator or component; one that is unknown is its own."""
        if not self._of or name in self._of:
            return self._of.get(name, name)
        return "+".join(dict.fromkeys(self._of.get(part, part) for part in name.split("+")))

    def each(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the users' names of several operators, without repetitions."""
        return tuple(dict.fromkeys(self[name] for name in names))

    def labels(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return unique labels of several operators: users' names, numbered for parts of one."""
        labels: list[str] = []
        parts: dict[str, int] = {}
        for name in names:
            known = self[name]
            parts[known] = parts.get(known, 0) + 1
            labels.append(known if parts[known] == 1 else f"{known} (part {parts[known]})")
        return tuple(labels)

    def event(self, event: Event) -> Event:
        """Return an event with users' names of operators, not the engine's."""
        if not self._of:
            return event
        changed = {
            field.name: self._with_user_names(field.name, getattr(event, field.name))
            for field in fields(event)
            if field.name in _FIELDS_WITH_NAMES | _BY_COMPONENT | {"what"}
        }
        return replace(event, **changed)

    def _with_user_names(self, field: str, value: Any) -> Any:
        """Return an event's value of `field`, with users' names, not the engine's."""
        if field in _FIELDS_WITH_NAMES and isinstance(value, str):
            return self[value]
        if field == "what" and isinstance(value, str) and " of " in value:
            about, _, names = value.partition(" of ")
            return f"{about} of {', '.join(self.each(names.split(', ')))}"
        if isinstance(value, Mapping):
            merged: dict[str, dict[str, None]] = {}
            for name, text in value.items():
                merged.setdefault(self[name], {}).update(
                    dict.fromkeys(self.each(str(text).split(", ")))
                )
            return {name: ", ".join(texts) for name, texts in merged.items()}
        return value


def explain(flow: CompiledFlow) -> str:
    """Return a description of a flow: levels, operators, keys, exchanges, key groups and sinks.

    Lines have at most 100 characters, as far as names allow; the same flow gives the same text.
    """
    names = UserNames(flow.operators)
    operators = len(names.each(operator.name for operator in flow.operators))
    lines = [
        *_wrapped_lines(
            f"Flow {flow.name!r}: {counted(len(flow.sources) - len(flow.loops), 'source')}, "
            f"{counted(len(flow.loops), 'loop') + ', ' if flow.loops else ''}"
            f"{counted(operators, 'keyed operator')} on {counted(flow.levels, 'level')}, "
            f"{counted(len(flow.outputs), 'sink')}"
        ),
        *_wrapped_lines(
            "The keys of every operator fall into "
            f"{counted(flow.num_key_groups, 'key group')}; an exchange sends each row to the "
            "lane that owns its key group.",
        ),
        *_wrapped_lines(_physical_plan_text(flow, names)),
        *(
            line
            for name, time in flow.times.items()
            for line in _wrapped_lines(
                _loop_hold_text(flow, name) if name in flow.loops else _watermark_text(name, time)
            )
        ),
    ]
    for level in range(1, flow.levels + 1):
        lines += ["", f"Level {level}: fed by {_fed_by(flow, level)}"]
        for component in flow.components:
            if component.level == level:
                for operator in component.operators:
                    if operator.two_phase is not None and operator.two_phase.slot:
                        continue  # as the first slot
                    title = f"{operator.part_of}, its windows" if operator.consolidates else ""
                    lines += ["", f"  {title or operator.name}"]
                    lines += _operator_lines(flow, operator, names)
    if flow.levels > 1:
        lines += [
            "",
            *_wrapped_lines(
                "An epoch runs all levels as one chain of stages and is committed once."
            ),
        ]
    return "\n".join(lines)


def _watermark_text(source: str, time: SourceTime) -> str:
    """Return a sentence about the watermark of a source."""
    slack = f"less the slack of {duration_text(time.slack_us)}"
    if not time.slack_us:
        slack = 'without slack (slack="0 seconds"), so that rows out of order may be late'
    return f"Watermark of source {source!r}: the greatest {time.column!r} that was seen, {slack}."


def _loop_hold_text(flow: CompiledFlow, loop: str) -> str:
    """Return a sentence about how rows that wait in a loop hold watermarks back."""
    if not flow.loops[loop].holds_watermark:
        return f"Rows that wait in loop {loop!r} hold no watermark, and may be late."
    column = flow.times[loop].column
    return f"Rows that wait in loop {loop!r} hold the watermark of what reads it, by {column!r}."


def _fed_by(flow: CompiledFlow, level: int) -> str:
    """Return the text of what feeds a level: sources, operators or both."""
    if level == 1:
        return "sources"
    operators_of_level = {
        operator.name
        for component in flow.components
        if component.level == level
        for operator in component.operators
    }
    reads_sources = any(
        isinstance(flow_input, SourceInput)
        for flow_input in flow.inputs
        if flow_input.operator in operators_of_level
    )
    return "operators and sources" if reads_sources else "operators"


def _physical_plan_text(flow: CompiledFlow, names: UserNames) -> str:
    """Return a sentence about which operators share a component."""
    shared = [
        f"{', '.join(shared)} share component {names[component.name]!r} ({_shared_text(component)})"
        for component in flow.components
        for shared in [names.each(operator.name for operator in component.operators)]
        if len(shared) > 1
    ]
    if not shared:
        return "Every operator is a component of its own: its key groups move by themselves."
    return f"Key groups of one component move together: {'; '.join(shared)}."


def _shared_text(component: Component) -> str:
    """Return the text about a component of several operators: attributes, flexible or rigid."""
    by = f"by {', '.join(component.keys)}, " if component.keys else ""
    return by + ("flexible" if component.is_flexible else "rigid")


def _operator_lines(flow: CompiledFlow, operator: KeyedOperator, names: UserNames) -> Iterator[str]:
    """Yield the lines of the explanation about an operator."""
    inputs = flow.inputs_of(operator.name)
    yield from _labelled_lines("does", [flow.actions[operator.name]])
    reads = [_input_text(flow, feed, names) for feed in inputs]
    yield from _labelled_lines("reads", list(dict.fromkeys(reads)))
    key = _columns_text(operator.user_keys) or (
        "none: all rows are together" if operator.is_global else "none: each row is by itself"
    )
    yield from _labelled_lines("key", [key])
    if operator.partition_by:
        yield from _labelled_lines("placed", [f"by {', '.join(operator.partition_by)}"])
    if operator.window_time is not None:
        yield from _labelled_lines("time", [_event_time(operator.window_time)])
    exchanges = [_exchange_text(flow, feed, operator, names) for feed in inputs]
    yield from _labelled_lines("exchange", list(dict.fromkeys(exchanges)))
    yield from _labelled_lines(
        "state",
        ["none"]
        if operator.consolidates or operator.stateless
        else list(_texts_about_states(operator)),
    )
    yield from _labelled_lines("kind", [_kind_text(operator)])
    yield from _labelled_lines(
        "emits", [f"{_emission_text(operator)}: {_columns_text(visible_schema(operator.output))}"]
    )
    consumers = [_sink_text(output) for output in flow.outputs_of(operator.name)]
    consumers += [
        f"loop {edge.loop!r} in the next epoch{_arrow_maps_text(edge.maps)}"
        for edge in flow.feedbacks
        if edge.operator == operator.name
    ]
    consumers += [
        "its windows"
        if _is_partial_phase(operator)
        else f"operator {names[fed.operator]!r}{_arrow_maps_text(fed.maps)}"
        for fed in flow.inputs_fed_by(operator.name)
    ]
    yield from _labelled_lines("feeds", list(dict.fromkeys(consumers)))


def _event_time(time: RowTime) -> str:
    """Return the text about the event-time column of an operator."""
    column = f"event time {time.column!r}"
    return f"{column}, the end of a window" if time.is_end else column


def _texts_about_states(operator: KeyedOperator) -> Iterator[str]:
    """Yield a text about the columns of each state of an operator."""
    states = [state.state for state in operator.states]
    for state in states:
        columns = _columns_text(operator.schema_of(state).values)
        yield columns if len(states) == 1 else f"{state}: {columns}"


def _is_partial_phase(operator: KeyedOperator) -> bool:
    """Return whether an operator is the first phase of two-phase windows."""
    return operator.two_phase is not None and not operator.consolidates


def _input_text(flow: CompiledFlow, edge: Input, names: UserNames) -> str:
    """Return the text about what an input reads: source or operator, and the maps between."""
    if isinstance(edge, SourceInput):
        maps = _source_maps(edge)
        own = flow.own_sources.get(edge.source)
        if edge.table:
            return f"table {edge.table!r} by {', '.join(edge.keys)} of source {edge.source!r}{maps}"
        if edge.source in flow.loops:
            rounds = flow.loops[edge.source].max_rounds
            return f"loop {edge.source!r}, at most {rounds} rounds without other rows{maps}"
        return f"source {edge.source!r}{'' if own is None else f' ({own.identity})'}{maps}"
    if _is_partial_phase(flow.operator(edge.upstream)):
        return f"partial states of {names[edge.upstream]!r}"
    return f"operator {names[edge.upstream]!r}{_arrow_maps_text(edge.maps)}"


def _exchange_text(
    flow: CompiledFlow, edge: Input, operator: KeyedOperator, names: UserNames
) -> str:
    """Return the text about the rows that the exchange sends from an input to its operator."""
    if not isinstance(edge, SourceInput):
        above = flow.component_of(edge.upstream)
        if above is flow.component_of(operator.name):
            return f"none: rows stay in the lane of {names[edge.upstream]!r}"
    if isinstance(edge, SourceInput) and edge.table:
        return f"of table {edge.table!r} every row to every lane: {', '.join(edge.columns)}"
    side = "source side" if isinstance(edge, SourceInput) else "lanes that emit them"
    if operator.mergeable:
        return f"one partial state per key: the {side} may combine rows before they are sent"
    return f"every row, uncombined and in arrival order: {', '.join(edge.columns)}"


def _kind_text(operator: KeyedOperator) -> str:
    """Return the text about an operator's state: stateful or stateless, flexible or rigid."""
    if operator.mergeable:
        return "stateful and flexible: its state can be made of partial states"
    if operator.consolidates:
        return "stateless and rigid: partial states of a key have to come together"
    return "stateful and rigid: rows have to come to their state"


def _emission_text(operator: KeyedOperator) -> str:
    """Return the text about which rows an operator emits, and when."""
    if operator.complete:
        return "all keys, in every epoch"
    if operator.changes:
        return "of keys that changed in the epoch, the result before and the one after"
    if operator.over_event_time and type(operator).emits == KeyedOperator.emits:
        if operator.update:
            return "windows that grew in the epoch, with what they hold by then"
        return "windows, once each, when the watermark has passed their end"
    if operator.mergeable and operator.two_phase is None:
        return "keys that changed in the epoch"
    return operator.emits


def _sink_text(output: SinkOutput) -> str:
    """Return the text about an output: the sink's name and type, and the maps before it."""
    return f"sink {output.name!r} ({type(output.sink).__name__}){_arrow_maps_text(output.maps)}"


def _arrow_maps_text(maps: Sequence[ArrowMap], where: str = "in the lane") -> str:
    """Return the text about maps over Arrow tables; empty without maps. `where`: where they run."""
    return f", after {_maps_text([m.function for m in maps], where)}" if maps else ""


def _source_maps(edge: SourceInput) -> str:
    """Return the text about the maps between a source and an operator; empty without maps."""
    arrow = [m for m in edge.maps if isinstance(m, ArrowMap)]
    if arrow or not edge.maps:
        return _arrow_maps_text(arrow, "on the source side")
    return f", after {_maps_text(edge.maps, 'in Catalyst')}"


def _maps_text(functions: Sequence[Callable[..., object]], where: str) -> str:
    """Return the number and names of maps' functions as text; `where`: where they run."""
    names = [function_name(function) for function in functions]
    named = "" if "<lambda>" in names else f" ({', '.join(names)})"
    return f"{counted(len(names), 'map')} {where}{named}"


def _columns_text(schema: pa.Schema) -> str:
    """Return the columns of a schema, with their types, as text."""
    names = (field.name.removeprefix(f"{RESERVED_PREFIX}_") for field in schema)
    return ", ".join(f"{name}{_TIE}{field.type}" for name, field in zip(names, schema, strict=True))


def _labelled_lines(label: str, values: Sequence[str]) -> Iterator[str]:
    """Yield one line per value; only the first begins with the label."""
    for i, value in enumerate(values):
        head = _INDENT + (label if i == 0 else "").ljust(_LABEL)
        yield from _wrapped_lines(value, head=head)


def _wrapped_lines(text: str, head: str = "") -> list[str]:
    """Return the lines of a text, wrapped to the explanation's width; `head`: begins the first."""
    lines = textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TIE, " ") for line in lines]


def _function_name(node: ProcessNode) -> str:
    """Return the name of an operator's function, with the capacity of an asynchronous one."""
    name = function_name(node.function)
    if node.asynchronous is None:
        return name
    return f"{name} (asynchronous, {node.asynchronous.capacity} keys at once)"


def action_of(node: OperatorNode) -> str:
    """Return an operator's action as text, such as ``compute total = sum(delay)``."""
    if isinstance(node, PassNode):
        return "pass rows to a sink"
    if isinstance(node, CustomNode):
        return node.action
    if isinstance(node, ProcessNode) and node.states:
        states = "states" if len(node.states) > 1 else "state"
        described_states = ", ".join(
            f"{name} ({_declared_text(state)})" for name, state in node.states.items()
        )
        return f"process with {_function_name(node)}, {states} {described_states}"
    if isinstance(node, ProcessNode) and node.columns is not None:
        state = _columns_text(node.columns.columns)
        name = function_name(node.function)
        return f"process batches of {node.frames} tables with {name}, state {state}"
    if isinstance(node, ProcessNode):
        assert node.state is not None, "a function has a state"
        merge = node.state.merge
        hot_keys_text = (
            "" if merge is None else f"; hot keys in parts, merged by {function_name(merge)}"
        )
        state_type = function_name(node.state.value_type)
        return f"process with {_function_name(node)}, state {state_type}{hot_keys_text}"
    windows = ""
    if isinstance(node, WindowedNode):
        windows = f" per window: {', '.join(map(str, node.windows))}"
        if node.function is not None:
            return f"process with {function_name(node.function)}{windows}"
    if isinstance(node, DropDuplicatesNode):
        within = "" if node.within_us is None else f" within {duration_text(node.within_us)}"
        return f"drop duplicates by {', '.join(node.keys)}{within}"
    if isinstance(node, JoinNode):
        return _join_in_words(node)
    if isinstance(node, LatestNode):
        newest = "" if node.order_by is None else f" by {node.order_by}"
        return f"newest row of each {', '.join(node.keys)}{newest}"
    if isinstance(node, ComputeNode) and node.windows is not None:
        windows = f" per window: {node.windows}"
    results = (
        f"{result} = {aggregate_text(aggregate)}" for result, aggregate in node.aggregates.items()
    )
    return f"compute {', '.join(results)}{windows}"


def _declared_text(state: Declared) -> str:
    """Return a named state as text, such as ``list of int``."""
    kind = type(state).__name__.removesuffix("State").lower()
    type_text = _type_text(state.element_type if isinstance(state, ListState) else state.value_type)
    by = f" by {_type_text(state.key_type)}" if isinstance(state, MapState) else ""
    merged = "" if state.merge is None else f", parts merged by {function_name(state.merge)}"
    return f"{kind} of {type_text}{by}{merged}"


def _type_text(declared: object) -> str:
    """Return a declared type as programs spell it."""
    return (
        declared.__name__
        if isinstance(declared, type) and not hasattr(declared, "__origin__")
        else str(declared)
    )


def _join_in_words(node: JoinNode) -> str:
    """Return a join as text: its kind, its interval and its hot keys."""
    if node.of_tables:
        return f"join ({node.how}) of tables that change"
    if node.between_us is None:
        old = "" if node.within_us is None else f", at most {duration_text(node.within_us)} old"
        spread = f"; every key in {node.spread} parts" if node.spread else ""
        return f"join ({node.how}) with the newest row of the right{old}{spread}"
    earliest, latest = (_signed_duration(moment) for moment in node.between_us)
    spread = f"; hot keys in up to {node.spread} parts" if node.spread else ""
    return f"join ({node.how}) with rows of the right from {earliest} to {latest} later{spread}"


def _signed_duration(length_us: int) -> str:
    """Return a length of time, which may be negative, as text."""
    return f"-{duration_text(-length_us)}" if length_us < 0 else duration_text(length_us)


_MAX_NODES: Final = 500  # of each kind; the graph of a larger flow is cut short
_MAX_TEXT: Final = 200


def graph_of(flow: CompiledFlow) -> dict[str, Any]:
    """Return sources, operators, sinks and the edges between them, as plain values.

    ``name``, ``keyGroups`` (of every operator), ``sources``, ``operators`` (``name``, ``parts``:
    the engine's operators that it is made of, ``components``: those that hold them, ``does``,
    ``keys``), ``sinks`` (``name``, ``takes``), ``edges`` (``from`` and ``to`` are kind and name,
    ``exchange``: rows are sent to other lanes).
    """
    names = UserNames(flow.operators)
    component_of = {
        o.name: component.name for component in flow.components for o in component.operators
    }
    operators: dict[str, dict[str, Any]] = {}
    for operator in flow.operators[:_MAX_NODES]:
        node = operators.setdefault(
            names[operator.name],
            {
                "name": names[operator.name],
                "parts": [],
                "components": [],
                "does": flow.actions[operator.name][:_MAX_TEXT],
                "keys": list(operator.keys.names)[:16],
            },
        )
        node["parts"].append(operator.name)
        if component_of[operator.name] not in node["components"]:
            node["components"].append(component_of[operator.name])
    edges: dict[tuple[tuple[str, str], tuple[str, str]], bool] = {}
    for feed in flow.inputs:
        receiver = names[feed.operator]
        if isinstance(feed, SourceInput):
            edges[("source", feed.source), ("operator", receiver)] = True
        elif names[feed.upstream] != receiver:
            is_exchanged = component_of[feed.upstream] != component_of[feed.operator]
            edges[("operator", names[feed.upstream]), ("operator", receiver)] = is_exchanged
    for output in flow.outputs[:_MAX_NODES]:
        edges[("operator", names[output.operator]), ("sink", output.name)] = False
    return {
        "name": flow.name,
        "keyGroups": flow.num_key_groups,
        "sources": list(flow.sources[:_MAX_NODES]),
        "operators": list(operators.values()),
        "sinks": [{"name": o.name, "takes": _rows_of_sink(o)} for o in flow.outputs[:_MAX_NODES]],
        "edges": [
            {"from": list(start), "to": list(end), "exchange": exchange}
            for (start, end), exchange in edges.items()
        ],
    }


def _rows_of_sink(output: SinkOutput) -> str:
    """Return which rows a sink gets: ``results``, ``left out``, ``rejected`` and the like."""
    if output.rejects_of is not None:
        return "rejected"
    if output.unreadable_of:
        return "unreadable"
    if output.max_error_share is not None:
        return "failed"
    return "left out" if output.left_out else "results"
