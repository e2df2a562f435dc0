"""How a flow runs, said to the person who wrote it.

The text follows an epoch: level by level, and within an operator from what it reads, through the
exchange, to what it emits and who gets that.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from godwit.model.naming import RESERVED_PREFIX, function_name
from godwit.model.time_lengths import spelled
from godwit.operators.operator import KeyedOperator
from godwit.operators.windows.compute import WindowedCompute
from godwit.operators.windows.operator import EventTimeOperator
from godwit.operators.windows.process import WindowedProcess
from godwit.operators.windows.sessions import SessionCompute
from godwit.plan.compiled import SourceInput
from godwit.plan.user_names import UserNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from godwit.operators.windows.event_time import SourceTime
    from godwit.plan.compiled import CompiledFlow, Component, Input, Output
    from godwit.plan.maps import ArrowMap

__all__ = ["explain"]

_WIDTH = 100
_LABEL = 10
_INDENT = "    "
_TIE = "\xa0"
"""A blank that no line breaks at."""


def explain(flow: CompiledFlow) -> str:
    """Describe `flow`: levels, operators, keys, exchanges, key groups and sinks.

    Returns
    -------
    str
        Lines of at most 100 characters, as far as names allow; the same flow gives the same text.
    """
    names = UserNames(flow.operators)
    operators = len(names.each(operator.name for operator in flow.operators))
    lines = [
        *_wrap(
            f"Flow {flow.name!r}: {_count(len(flow.sources), 'source')}, "
            f"{_count(operators, 'keyed operator')} on {_count(flow.levels, 'level')}, "
            f"{_count(len(flow.outputs), 'sink')}"
        ),
        *_wrap(
            f"The keys of every operator fall into {_count(flow.num_key_groups, 'key group')}; "
            "an exchange sends each row to the lane that owns its key group.",
        ),
        *_wrap(_physical(flow, names)),
        *(line for name, time in flow.times.items() for line in _wrap(_watermark(name, time))),
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
            *_wrap("An epoch runs all levels as one chain of stages and is committed once."),
        ]
    return "\n".join(lines)


def _watermark(source: str, time: SourceTime) -> str:
    """Say how far event time has come, and what is late."""
    slack = f"less the slack of {spelled(time.slack_us)}"
    if not time.slack_us:
        slack = 'without slack (slack="0 seconds"), so that rows out of order may be late'
    return f"Watermark of source {source!r}: the greatest {time.column!r} that was seen, {slack}."


def _fed_by(flow: CompiledFlow, level: int) -> str:
    """Say what feeds the operators of a level."""
    if level == 1:
        return "sources"
    here = {o.name for c in flow.components if c.level == level for o in c.operators}
    mixed = any(isinstance(i, SourceInput) for i in flow.inputs if i.operator in here)
    return "operators and sources" if mixed else "operators"


def _physical(flow: CompiledFlow, names: UserNames) -> str:
    """Say what operators share a component."""
    shared = [
        f"{', '.join(shared)} share component {names[component.name]!r} ({_shared(component)})"
        for component in flow.components
        for shared in [names.each(operator.name for operator in component.operators)]
        if len(shared) > 1
    ]
    if not shared:
        return "Every operator is a component of its own: its key groups move by themselves."
    return f"Key groups of one component move together: {'; '.join(shared)}."


def _shared(component: Component) -> str:
    by = f"by {', '.join(component.keys)}, " if component.keys else ""
    return by + ("flexible" if component.is_flexible else "rigid")


def _operator_lines(flow: CompiledFlow, operator: KeyedOperator, names: UserNames) -> Iterator[str]:
    inputs = flow.inputs_of(operator.name)
    yield from _labelled("does", [flow.actions[operator.name]])
    reads = [_reads(flow, given, names) for given in inputs]
    yield from _labelled("reads", list(dict.fromkeys(reads)))
    yield from _labelled("key", [_columns(operator.keys)])
    if isinstance(operator, WindowedCompute | WindowedProcess | SessionCompute):
        yield from _labelled("time", [_event_time(operator)])
    exchanges = [_exchange(flow, given, operator, names) for given in inputs]
    yield from _labelled("exchange", list(dict.fromkeys(exchanges)))
    yield from _labelled("state", ["none"] if operator.consolidates else list(_states(operator)))
    yield from _labelled("kind", [_kind(operator)])
    yield from _labelled("emits", [f"{_emits(operator)}: {_columns(operator.output)}"])
    consumers = [_sink(output) for output in flow.outputs_of(operator.name)]
    consumers += [
        "its windows"
        if _computes(operator)
        else f"operator {names[fed.operator]!r}{_arrow_maps(fed.maps)}"
        for fed in flow.fed_by(operator.name)
    ]
    yield from _labelled("feeds", list(dict.fromkeys(consumers)))


def _event_time(operator: EventTimeOperator) -> str:
    column = f"event time {operator.time.column!r}"
    return f"{column}, the end of a window" if operator.time.is_end else column


def _states(operator: KeyedOperator) -> Iterator[str]:
    states = [state.state for state in operator.states]
    for state in states:
        columns = _columns(operator.schema_of(state).values)
        yield columns if len(states) == 1 else f"{state}: {columns}"


def _computes(operator: KeyedOperator) -> bool:
    """Whether an operator is the half of a two-phase window that computes."""
    return operator.two_phase is not None and not operator.consolidates


def _reads(flow: CompiledFlow, given: Input, names: UserNames) -> str:
    if isinstance(given, SourceInput):
        maps = f", after {_maps(given.maps, 'in Catalyst')}" if given.maps else ""
        return f"source {given.source!r}{maps}"
    if _computes(flow.operator(given.upstream)):
        return f"partial states of {names[given.upstream]!r}"
    return f"operator {names[given.upstream]!r}{_arrow_maps(given.maps)}"


def _exchange(flow: CompiledFlow, given: Input, operator: KeyedOperator, names: UserNames) -> str:
    if not isinstance(given, SourceInput):
        above = flow.component_of(given.upstream)
        if above is flow.component_of(operator.name):
            return f"none: rows stay in the lane of {names[given.upstream]!r}"
    side = "source side" if isinstance(given, SourceInput) else "lanes that emit them"
    if operator.partials is not None:
        return f"one partial state per key: the {side} may combine rows before they are sent"
    return f"every row, uncombined and in arrival order: {', '.join(given.columns)}"


def _kind(operator: KeyedOperator) -> str:
    if operator.partials is not None:
        return "stateful and flexible: its state can be made of partial states"
    if operator.consolidates:
        return "stateless and rigid: partial states of a key have to come together"
    return "stateful and rigid: rows have to come to their state"


def _emits(operator: KeyedOperator) -> str:
    if operator.complete:
        return "all keys, in every epoch"
    if isinstance(operator, EventTimeOperator) and type(operator).emits == KeyedOperator.emits:
        if operator.update:
            return "windows that grew in the epoch, with what they hold by then"
        return "windows, once each, when the watermark has passed their end"
    if operator.partials is not None and operator.two_phase is None:
        return "keys that changed in the epoch"
    return operator.emits


def _sink(output: Output) -> str:
    return f"sink {output.name!r} ({type(output.sink).__name__}){_arrow_maps(output.maps)}"


def _arrow_maps(maps: Sequence[ArrowMap]) -> str:
    return f", after {_maps([m.function for m in maps], 'in the lane')}" if maps else ""


def _maps(functions: Sequence[Callable[..., object]], where: str) -> str:
    names = [function_name(function) for function in functions]
    named = "" if "<lambda>" in names else f" ({', '.join(names)})"
    return f"{_count(len(names), 'map')} {where}{named}"


def _columns(schema: pa.Schema) -> str:
    names = (field.name.removeprefix(f"{RESERVED_PREFIX}_") for field in schema)
    return ", ".join(f"{name}{_TIE}{field.type}" for name, field in zip(names, schema, strict=True))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _labelled(label: str, values: Sequence[str]) -> Iterator[str]:
    for i, value in enumerate(values):
        head = _INDENT + (label if i == 0 else "").ljust(_LABEL)
        yield from _wrap(value, head=head)


def _wrap(text: str, head: str = "") -> list[str]:
    lines = textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TIE, " ") for line in lines]
