"""Checks of the arguments of calls on streams.

Mistakes that need no knowledge of columns are found here, in the line that makes them; the others
when the flow is compiled.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from godwit.api.declarations import Identity, OnTimer, Output
from godwit.columns.types import to_schema
from godwit.model import plugins
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import spark_argument
from godwit.model.naming import (
    default_name,
    did_you_mean,
    is_one_of,
    listing,
    type_name,
)
from godwit.model.signatures import check_signature
from godwit.operators.aggregate import Aggregator
from godwit.operators.declared import HELD, PARTS, StateColumns, part_state_of
from godwit.operators.hot_keys import MAX_PARTS
from godwit.operators.timers import NO_TIMERS, Timing
from godwit.operators.window_specs import Hopping, RowWindows, Session, grid_of
from godwit.plan.event_times import check_output_time
from godwit.plan.nodes import (
    CustomNode,
    MapNode,
    ProcessNode,
    SourceNode,
    WindowedNode,
    branches_of,
    sources_of,
)
from godwit.store.columns import can_be_state
from godwit.time.durations import microseconds, signed_microseconds
from godwit.values.records import hint_text, is_row_class, row_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.columns.signed import Kind
    from godwit.operators.declared import Declared
    from godwit.operators.window_specs import WindowSpec
    from godwit.plan.nodes import Branch, StreamNode
    from godwit.time.durations import Duration


def check_not_results(where: str, **options: object) -> None:
    """Raise if an aggregate was passed as an option of ``compute``, such as ``name``.

    `where`: the call, for errors.
    """
    for option, value in options.items():
        if value is not None and not isinstance(value, str):
            given_text = "an aggregate" if hasattr(value, "bind") else type_name(value)
            raise InvalidFlowError(
                f"{where} was given {given_text} for {option}=.",
                remedy=f"{option}= is an option of compute and takes text. Give a result of that "
                f'name in a dict, as in compute({{"{option}": gw.last("column")}}), or choose '
                "another name for it.",
            )


def check_on_missing(where: str, on_missing: object) -> None:
    """Raise for an unknown action for deletes without a row; `where`: the call, for errors."""
    check_one_of(
        where,
        "on_missing",
        on_missing,
        ("refuse", "wait"),
        "Give 'refuse' (the epoch fails) or 'wait' (the delete waits for its row).",
    )


def all_results(where: str, results: object, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results given as a mapping, then those given by keyword; raise for other values.

    `where`: the call, for errors.
    """
    if results is None:
        return dict(named)
    remedy = (
        "Name each result, as in compute(flights=gw.count()), or give a dict of them, as in "
        'compute({"flights": gw.count()}).'
    )
    if not isinstance(results, Mapping):
        raise InvalidFlowError(
            f"{where} was given a value of type {type_name(results)} instead of results.",
            remedy=remedy,
        )
    if unnamed := [name for name in results if not isinstance(name, str) or not name]:
        raise InvalidFlowError(
            f"{where} was given a result with {unnamed[0]!r:.100} as its name.", remedy=remedy
        )
    if given_twice := [name for name in results if name in named]:
        raise InvalidFlowError(
            f"{where} was given the result {given_twice[0]!r} twice.",
            remedy="Leave one of the two out.",
            column=given_twice[0],
        )
    return {**results, **named}


def describe(node: StreamNode) -> str:
    """Return a stream as text for errors, such as ``source 'flights' after 1 map``."""
    parts = [_branch_text(branch) for branch in branches_of(node)]
    return parts[0] if len(parts) == 1 else f"the union of {' and '.join(parts)}"


def _branch_text(branch: Branch) -> str:
    """Return a branch as text for errors: its source or operator, and its number of maps."""
    kind = "source" if isinstance(branch.feed, SourceNode) else "operator"
    number = len(branch.maps)
    after = f" after {number} map{'s' if number > 1 else ''}" if number else ""
    return f"{kind} {branch.feed.name!r}{after}"


def check_function(function: object, where: str, example: str) -> None:
    """Raise if a value is not callable; `example`: a correct call, for the error.

    `where`: the call, for errors.
    """
    if not callable(function):
        raise InvalidFlowError(
            f"{where} was given a value of type {type_name(function)}, which cannot be called.",
            remedy=f"Give it a function, as in {example}.",
        )


def check_same_flow(flow: Any, other: Any, where: str) -> None:
    """Raise if a stream belongs to another flow. `where`: the call, for errors."""
    if other is not flow:
        raise InvalidFlowError(
            f"{where} of flow {flow.name!r} was given a stream of another flow, {other.name!r}.",
            remedy="Build all streams from sources of one flow.",
            flow=flow.name,
        )


def check_window_function(name: str, node: WindowedNode) -> None:
    """Raise for options of windows that do not apply to a function over their rows."""
    if node.update:
        given_text = "output='update'"
        remedy = "A function is called when its window is over: leave output= of window out."
    elif node.consolidate != "together":
        given_text = f"consolidate={node.consolidate!r}"
        remedy = (
            "A function needs all rows of its window, and nothing says how to merge what it would "
            "make of some: leave consolidate= of window out."
        )
    elif node.lateness_us or node.length_as is not None:
        given_text = "allowed_lateness=" if node.lateness_us else "length_as="
        remedy = (
            "It is of windows that compute(...) makes: leave it out of window(...); the function "
            "is given its window's bounds, and slack= of the source waits for rows."
        )
    else:
        return
    raise InvalidFlowError(
        f"Operator {name!r} has a function, and {given_text}.", remedy=remedy, operator=name
    )


def check_keys(columns: tuple[object, ...], where: str, example: str) -> tuple[str, ...]:
    """Return the names of key columns; raise if there are none, duplicates, or other values.

    `where`: the call, for errors. `example`: a correct call.
    """
    if not columns:
        raise InvalidFlowError(
            f"{where} names no column.", remedy=f"Name at least one, as in {example}."
        )
    keys: list[str] = []
    for column in columns:
        if not isinstance(column, str):
            raise InvalidFlowError(
                f"{where} was given a value of type {type_name(column)}.",
                remedy=f"Name columns by text, as in {example}; compute any other "
                "key in an earlier map.",
            )
        if column in keys:
            raise InvalidFlowError(
                f"{where} names column {column!r} twice.",
                remedy="Name each column once.",
                column=column,
            )
        keys.append(column)
    return tuple(keys)


def check_partition_by(
    columns: object, keys: tuple[str, ...], where: str
) -> tuple[str, ...] | None:
    """Return the key columns in ``partition_by=``; raise if the value is not valid.

    Empty if they are all key columns in order; ``None`` if the user gave no value.
    """
    if columns is None:
        return None
    listed = (columns,) if isinstance(columns, str) else columns
    if not isinstance(listed, (list, tuple)):
        raise InvalidFlowError(
            f"{where} has partition_by= of type {type_name(columns)}.",
            remedy='Name a key column, or a list of some, as in partition_by="area".',
        )
    columns_ = check_keys(tuple(listed), f"partition_by= of {where}", 'partition_by="area"')
    unknown = [column for column in columns_ if column not in keys]
    if unknown:
        raise InvalidFlowError(
            f"{where} has partition_by={listing(columns_)}, and {listing(unknown)} is not a key "
            "column.",
            remedy=f"{did_you_mean(unknown[0], keys)}Rows of one key have to meet in one place, so "
            f"only key columns can place them: {listing(keys)}."
            if keys
            else "Leave it out: without key columns all rows are in one place.",
            column=unknown[0],
        )
    return () if columns_ == keys else columns_


def check_formerly(name: str, formerly: object, kind: str = "Operator") -> None:
    """Raise if a former name is empty, no text, or equal to the present name."""
    if formerly is not None and (not isinstance(formerly, str) or formerly in ("", name)):
        raise InvalidFlowError(
            f"{kind} {name!r} has formerly={formerly!r}.",
            remedy="Give the other name that it has in the checkpoint, or leave formerly= out.",
            operator=name,
        )


def identity_of(name: Any) -> Identity:
    """Return ``name=`` of an operator as an `Identity`."""
    return name if isinstance(name, Identity) else Identity(name)


def identity_fields(identity: Identity, default: str) -> dict[str, Any]:
    """Return the fields of a node that say which operator it is; raise for wrong values.

    `default`: the operator's name if the user gave none.
    """
    name = default if identity.name is None else identity.name
    check_formerly(name, identity.formerly)
    if not isinstance(identity.starts_empty, bool):
        raise InvalidFlowError(
            f"Operator {name!r} has starts_empty= of type {type_name(identity.starts_empty)}.",
            remedy="Give starts_empty=True to let it start without state, or leave it out.",
        )
    return {
        "name": name,
        "formerly": identity.formerly or "",
        "starts_empty": identity.starts_empty,
        "named": identity.name is not None,
    }


def operator_fields(
    node: StreamNode,
    keys: tuple[str, ...],
    name: Any,
    action: str,
    *,
    partition_by: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """Return the fields that all nodes of operators have; `action` is part of a default name.

    `name`: ``name=`` as the user gave it.
    """
    default = default_name([source.name for source in sources_of(node)], action, keys)
    return {
        **identity_fields(identity_of(name), default),
        "upstream": node,
        "keys": keys,
        "partition_by": partition_by,
    }


def is_sink(value: object) -> bool:
    """Return whether a value is an instance that has the methods of a sink."""
    calls = (getattr(value, call, None) for call in ("open", "deliver"))
    return not isinstance(value, type) and all(map(callable, calls))


def check_late(late: object, where: str) -> None:
    """Raise if a value of ``late=`` is not a sink. `where`: the call, for errors."""
    if late is not None and not is_sink(late):
        raise InvalidFlowError(
            f"{where} was given {type_name(late)} for late=, which is not a sink.",
            remedy='Give an instance of a sink, such as late=gw.sinks.parquet("late/").',
        )


def node_that_may_divert(
    sink: str, node: StreamNode
) -> MapNode | ProcessNode | WindowedNode | CustomNode:
    """Return a stream's node if rows for which its function fails can go to `sink`; or raise."""
    what, remedy = "", ""
    if isinstance(node, MapNode):
        if not all(branch.has_arrow_maps for branch in branches_of(node)):
            what = "a map over a DataFrame: Spark runs it, and does not say for which rows it fails"
            remedy = (
                "Read a source of Godwit's own (gw.sources), whose maps get Arrow tables; or map "
                "after a keyed operator; or let the map's expressions return null where they fail "
                "(try_cast, try_divide), and filter by that."
            )
    elif not (
        isinstance(node, ProcessNode)
        or (isinstance(node, WindowedNode) and node.function is not None)
        or (isinstance(node, CustomNode) and node.calls_function)
    ):
        what = f"{describe(node)}, which calls no function of yours"
        remedy = "Give the stream that map, process or process_batch returned."
    if what:
        raise InvalidFlowError(
            f"Sink {sink!r} of failed calls was given {what}.", remedy=remedy, sink=sink
        )
    assert isinstance(node, MapNode | ProcessNode | WindowedNode | CustomNode)
    return node


def check_one_of(
    subject: str, option: str, value: object, known: Sequence[str], remedy: str, **context: str
) -> None:
    """Raise if an option's value is not one of the `known` texts.

    The error suggests the closest.
    """
    if not is_one_of(value, known):
        raise InvalidFlowError(
            f"{subject} has {option}={value!r}.",
            remedy=f"{did_you_mean(str(value), known)}{remedy}",
            **context,
        )


def check_aggregate(aggregate: Any, result: str, operator: str) -> None:
    """Raise if the value for a result is not an aggregate, or its columns are not given by name."""
    # Asked of the type, since a Spark column has an attribute of any name.
    if not callable(getattr(type(aggregate), "bind", None)):
        if result in ("formerly", "starts_empty") and isinstance(aggregate, str | bool):
            raise InvalidFlowError(
                f"Operator {operator!r} was given {result}={aggregate!r} where results are named.",
                remedy=f"Say it with the name: name=gw.types.Identity({result}={aggregate!r}).",
                operator=operator,
                column=result,
            )
        if result in ("name", "output", "late") and isinstance(aggregate, str):
            raise InvalidFlowError(
                f"Operator {operator!r} was given {result}={aggregate!r} where windows take "
                "results alone.",
                remedy=f"Say it before, as in window(..., {result}={aggregate!r}).compute(...).",
                operator=operator,
                column=result,
            )
        if ours := spark_argument(result, ("output", "name")):
            raise InvalidFlowError(
                f"Operator {operator!r} has a result {result!r} that is not an aggregate.",
                remedy=f"What others call {result} is {ours}= here, as in "
                'compute(..., output="complete"), or window(..., output="update").',
                operator=operator,
                column=result,
            )
        aggregates = plugins.in_district("godwit.library.aggregates", "__all__")
        raise InvalidFlowError(
            f"Operator {operator!r} has a result {result!r} that is not an aggregate, but "
            f"{_spark_function(aggregate) or type_name(aggregate)}.",
            remedy=f'Give an aggregate of Godwit\'s, as in compute({result}=gw.sum("column")); '
            f"there are {', '.join(f'gw.{name}' for name in aggregates if name.islower())}.",
            operator=operator,
            column=result,
        )
    if isinstance(aggregate, Aggregator):
        _check_methods(aggregate, result, operator)
    for column in aggregate.columns:
        if not isinstance(column, str):
            raise InvalidFlowError(
                f"Operator {operator!r}, result {result!r}, was given a value of type "
                f"{type_name(column)} instead of a column's name.",
                remedy=f'Name columns by text, as in compute({result}=gw.sum("column")).',
                operator=operator,
                column=result,
            )


def _check_methods(aggregate: Aggregator, result: str, operator: str) -> None:
    """Raise if a method of a user's aggregate cannot be called as it will be."""
    columns = "".join(f", column{n}" for n, _ in enumerate(aggregate.columns, 1))
    for called in (
        "create(count)",
        f"update(states, groups{columns})",
        "merge(left, right)",
        "finish(states)",
    ):
        check_signature(
            f"Aggregate {result!r} ({type(aggregate).__qualname__}) of operator {operator!r}",
            getattr(aggregate, called.partition("(")[0]),
            called,
            operator=operator,
            aggregate=result,
        )


def read_output(name: str, output: Any) -> dict[str, Any]:
    """Return the fields of a node with the output of a function; raise without columns.

    `output`: ``output=`` as the user gave it: columns, a class, or an `Output`.
    """
    where = f"The output of operator {name!r}"
    given_output: Output[Any] = output if isinstance(output, Output) else Output(output)
    emitted: Any = given_output.columns
    if emitted is None or emitted is Output:
        raise InvalidFlowError(
            f"Operator {name!r} has no output columns.",
            remedy='Say what the function emits, as in output="symbol string, price double".',
            operator=name,
        )
    cls = row_class(emitted, where, example="output=Trade") if is_row_class(emitted) else None
    columns = to_schema(emitted, where=where) if cls is None else cls.schema
    column, slack_us = check_output_time(name, columns, given_output.event_time, given_output.slack)
    return {
        "output": columns,
        "output_class": cls,
        "event_time": column,
        "slack_us": slack_us,
    }


def read_state_columns(name: str, state: Any) -> StateColumns:
    """Return a function's state columns and defaults; raise without columns or a default."""
    where = f"The state of operator {name!r}"
    if state is None:
        raise InvalidFlowError(
            f"Operator {name!r} has no columns of state.",
            remedy='Name them, as in state="count long, total double", or give a class whose '
            "fields have defaults.",
            operator=name,
        )
    if not is_row_class(state):
        columns = StateColumns(columns=to_schema(state, where=where))
    else:
        cls = row_class(state, where, example="state=Total")
        columns = StateColumns(columns=cls.schema, defaults=cls.defaults())
        unset = [f.name for f in cls.fields if not f.nullable and f.name not in columns.defaults]
        if unset:
            raise InvalidFlowError(
                f"{where}, {state.__qualname__}, has a field {unset[0]!r} without a default, "
                "so a new key has no value for it.",
                remedy=f"Give the field a default, or declare it as `| None`, as in "
                f"{unset[0]}: {hint_text(cls.field(unset[0]).hint)} | None = None.",
                operator=name,
            )
    for column in columns.columns:
        if not can_be_state(column.type):
            raise InvalidFlowError(
                f"{where} has a column {column.name!r} of type {column.type}, which state cannot "
                "hold.",
                remedy="Use numbers, text, bytes, dates and timestamps; or a function per key, "
                "process(...), whose state is any Python value.",
                operator=name,
                column=column.name,
            )
    return columns


def timing_of(operator: str, timers: Any) -> Timing:
    """Return the options of an operator's timers; raise for wrong values.

    `timers`: ``timers=`` as the user gave it.
    """
    if timers is None:
        return NO_TIMERS
    where = f"Operator {operator!r}"
    if not isinstance(timers, OnTimer):
        clock = repr(timers) if is_one_of(timers, ("event", "processing")) else '"event"'
        raise InvalidFlowError(
            f"{where} has timers={timers!r:.100}.",
            remedy="Give the function that is called when a timer is due, and the timers' clock, "
            f"as in timers=gw.types.OnTimer(remind, clock={clock}).",
            operator=operator,
        )
    check_function(
        timers.function, f"{where}, timers=", 'timers=gw.types.OnTimer(remind, clock="event")'
    )
    remedy = 'Give "event" (they go by the watermark) or "processing" (by the clock).'
    clocks = ("event", "processing")
    check_one_of(where, "clock", timers.clock, clocks, remedy, operator=operator)
    if timers.order is not None:
        remedy = 'Give "before_rows", or "after_rows" as in Spark.'
        orders = ("before_rows", "after_rows")
        check_one_of(where, "order", timers.order, orders, remedy, operator=operator)
    return Timing(clock=timers.clock, on_timer=timers.function, order=timers.order or "before_rows")


def check_order(
    operator: str,
    order: object,
    *,
    late: object,
    timers: OnTimer[Any, Any] | None,
    states: Mapping[str, object],
) -> bool:
    """Return whether rows are processed in order of event time; raise if options contradict that.

    `states`: the named states.
    """
    where = f"Operator {operator!r}"
    orders = ("arrival", "event_time")
    remedy = 'Give "arrival", or "event_time": rows then wait until the watermark is past them.'
    check_one_of(where, "order", order, orders, remedy, operator=operator)
    in_order, conflict = order == "event_time", ""
    if not in_order and late is not None:
        conflict, remedy = "late=, but no order='event_time'", "No row is late in order of arrival."
    elif in_order and timers is not None and timers.order is not None:
        conflict = f"order='event_time' and timers with order={timers.order!r}"
        remedy = "Leave order= of the timers out: they fire between rows, by their times."
    elif in_order and timers is not None and timers.clock == "processing":
        conflict = "order='event_time' and timers with clock='processing'"
        remedy = 'Give the timers clock="event": the driver\'s clock has no order with rows.'
    elif in_order and HELD in states:
        conflict = f"order='event_time' and a state {HELD!r}"
        remedy = "Give the state another name: the rows that wait are stored under this one."
    if conflict:
        raise InvalidFlowError(f"{where} has {conflict}.", remedy=remedy, operator=operator)
    return in_order


def _spark_function(value: object) -> str:
    """Return a Column of Spark as text, such as ``F.sum("v")``; empty for other values."""
    if not type(value).__module__.startswith("pyspark.sql"):
        return ""
    return f"{value!r}, which Spark would compute on a DataFrame"


def check_merge(
    name: str, states: Mapping[str, Declared], other_options: Mapping[str, object]
) -> None:
    """Raise for a wrong ``merge=`` of a state, or options for whole keys that are given with it.

    `states`: the named states; or the single one, whose name is empty. `other_options`: name →
    value of such options.
    """
    merged = [state for state, declared in states.items() if declared.merge is not None]
    if not merged:
        return
    for state, declared in states.items():
        where = f"State {state!r} of operator {name!r}" if state else f"Operator {name!r}"
        context: dict[str, Any] = {"operator": name, **({"state": state} if state else {})}
        if declared.merge is None:
            raise InvalidFlowError(
                f"{where} has no merge=, but state {merged[0]!r} has one.",
                remedy="Give merge= to every state, since a key is divided with all its states; or "
                "to none, and all rows of a key go to one lane.",
                **context,
            )
        if not callable(declared.merge):
            raise InvalidFlowError(
                f"{where} was given merge={declared.merge!r:.100}, which cannot be called.",
                remedy="Give a function of two values that returns what they become, as in "
                "merge=lambda value, other: value + other.",
                **context,
            )
        check_signature(where, declared.merge, "merge(value, other)", **context)
        if declared.ttl is not None:
            raise InvalidFlowError(
                f"{where} has merge= and ttl=, but a merged state would live as long as the newest "
                "of its parts.",
                remedy="Leave out merge= or ttl=.",
                **context,
            )
        if state and (part_state_of(state) in states or state == PARTS):
            reserved = PARTS if state == PARTS else part_state_of(state)
            raise InvalidFlowError(
                f"Operator {name!r} has a state named {reserved!r}, a name that merge= needs.",
                remedy="Choose another name.",
                operator=name,
                state=reserved,
            )
    given_names = [other for other, value in other_options.items() if value]
    if given_names:
        raise InvalidFlowError(
            f"Operator {name!r} has merge=, which divides the rows of a key among lanes, and "
            f"{given_names[0]}=, which needs all rows of a key in one lane.",
            remedy=f"Leave out merge= or {given_names[0]}=.",
            operator=name,
        )


def check_table_names(name: str, broadcast: object, example: str) -> None:
    """Raise unless ``broadcast=`` is a mapping whose names can be names of states.

    `example`: names and streams as text, for the error.
    """
    if not isinstance(broadcast, Mapping) or not all(
        isinstance(table, str) and re.fullmatch("[a-z_][a-z0-9_]*", table) for table in broadcast
    ):
        raise InvalidFlowError(
            f"Operator {name!r} was given broadcast={broadcast!r:.100}.",
            remedy="Give names, of lower-case letters, digits and '_', and keyed streams, "
            f"{example}.",
            operator=name,
        )


def check_results(
    name: str, keys: tuple[str, ...], aggregates: Mapping[str, Any], output: object
) -> None:
    """Raise for results that are no aggregates, or have the name of a key column."""
    remedy = (
        "Give 'update' (keys that changed), 'complete' (all keys) or 'changes' (of keys that "
        "changed, before and after)."
    )
    known = ("update", "complete", "changes")
    check_one_of(f"Operator {name!r}", "output", output, known, remedy, operator=name)
    for result, aggregate in aggregates.items():
        if result in keys:
            raise InvalidFlowError(
                f"Operator {name!r} has a result {result!r}, which is the name of a key "
                "column too.",
                remedy="Give the result another name; key columns are in the output anyway.",
                operator=name,
                column=result,
            )
        check_aggregate(aggregate, result, name)


def check_suffix(suffix: object, where: str) -> None:
    """Raise if a suffix is empty or not text. `where`: the call, for errors."""
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        raise InvalidFlowError(
            f"{where} has suffix={suffix!r}.",
            remedy='Give a text, as in suffix="_right", or leave it out.',
        )


def checked_spread(spread: Any, where: str) -> int:
    """Return ``spread=``, the maximum number of parts of a hot key; raise if it is not valid.

    `where`: the call, for errors.
    """
    if not isinstance(spread, int) or isinstance(spread, bool) or not 2 <= spread <= MAX_PARTS:
        raise InvalidFlowError(
            f"{where} has spread={spread!r}.",
            remedy=f"Give a whole number from 2 to {MAX_PARTS}, such as the number of lanes, or "
            "leave it out.",
        )
    return spread


def interval_of(between: Any, where: str) -> tuple[int, int]:
    """Return the bounds of a join's ``between=`` in microseconds; raise if they are not valid.

    `where`: the call, for errors.
    """
    bounds = between if isinstance(between, tuple | list) else ()
    if len(bounds) != 2 or not all(isinstance(bound, str | dt.timedelta) for bound in bounds):
        raise InvalidFlowError(
            f"{where} has between={between!r}.",
            remedy="Give how long after a row of the left one of the right happens, at least and "
            'at most, as in between=("-10 minutes", "1 hour").',
        )
    earliest, latest = (signed_microseconds(bound_, f"A bound of {where}") for bound_ in bounds)
    if earliest > latest:
        raise InvalidFlowError(
            f"{where} has between={between!r}, which ends before it begins.",
            remedy="Give the earlier bound first.",
        )
    return earliest, latest


def check_join_of_tables(where: str, kinds: Sequence[Kind], **options: object) -> None:
    """Raise for a join without ``between=`` of streams that are not tables.

    `where`: the call, for errors. `kinds`: of both streams. `options`: those for event time.
    """
    if "changes" not in kinds:
        raise InvalidFlowError(
            f"{where} does not say how far apart in event time rows are that match.",
            remedy='Give between=("-10 minutes", "1 hour"), say. Tables that change are joined by '
            "key alone: key_by(...).latest() or as_changes() before key_by makes changes.",
        )
    given_names = [name for name, value in options.items() if value is not None]
    if given_names:
        raise InvalidFlowError(
            f"{where} joins tables that change, and was given {given_names[0]}=.",
            remedy=f"Leave {given_names[0]}= out: it is for joins by event time.",
        )


def check_windows(
    where: str,
    windows: tuple[WindowSpec | RowWindows, ...],
    options: Mapping[str, Any],
) -> int:
    """Return the allowed lateness in µs; raise for options of ``window`` that exclude each other.

    `where`: the call, for errors. `options`: name → value of all options.
    """
    if not windows:
        raise InvalidFlowError(
            f"{where} names no window.",
            remedy='Name at least one, as in window(gw.tumbling("1 hour")).',
        )
    for spec in windows:
        if not isinstance(spec, Hopping | Session | RowWindows):
            raise InvalidFlowError(
                f"{where} was given a value of type {type_name(spec)}.",
                remedy=f"Give windows, as in window(gw.tumbling({_example_length(spec)})) or "
                'window(gw.hopping("6 hours", every="1 hour")).',
            )
    for kind, described in ((RowWindows, "windows of rows"), (Session, "a session")):
        if len(windows) > 1 and any(isinstance(spec, kind) for spec in windows):
            raise InvalidFlowError(
                f"{where} has {described} beside other windows.",
                remedy="Call window(...) twice on the keyed stream, and give each result a name.",
            )
    if isinstance(windows[0], RowWindows):
        _check_rows(where, options)
    if fixed := [spec for spec in windows if isinstance(spec, Hopping)]:
        grid_of(fixed, where)
    for option, (known, remedy) in _WINDOW_OPTIONS.items():
        check_one_of(where, option, options[option], known, remedy)
    lateness = options["allowed_lateness"]
    lateness_us = microseconds(lateness, f"The allowed lateness of {where}", least=0)
    for problem, remedy in _window_option_conflicts(
        windows, options, lateness if lateness_us else None
    ):
        raise InvalidFlowError(f"{where} has {problem}.", remedy=remedy)
    for option in ("time", "name", "length_as"):
        if options[option] is not None and not isinstance(options[option], str):
            raise InvalidFlowError(
                f"{where} was given a value of type {type_name(options[option])} for {option}=.",
                remedy=f"Give {option}= as text.",
            )
    check_late(options["late"], where)
    return lateness_us


def _example_length(spec: object) -> str:
    """Return the length of a window for an example: the user's own if it is one."""
    return repr(spec) if isinstance(spec, str) else '"1 hour"'


_WINDOW_OPTIONS = {
    "output": (
        ("append", "update"),
        "Give 'append' (a window comes out when it is over) or 'update' (whenever it grows).",
    ),
    "share": (
        ("measured", "always", "never"),
        "Give 'always' (windows that overlap share panes), 'never' (each its own) or 'measured'.",
    ),
    "consolidate": (
        ("together", "apart", "measured"),
        (
            "Give 'together' (one operator), 'apart' (two, of which the first can be migrated "
            "without moving state) or 'measured' (two, in one component or apart as costs say)."
        ),
    ),
}


def _window_option_conflicts(
    windows: Sequence[WindowSpec | RowWindows],
    options: Mapping[str, Any],
    lateness: Duration | None,
) -> Iterator[tuple[str, str]]:
    """Yield a text for each two window options that exclude each other, with the remedy.

    `lateness`: ``allowed_lateness=``; ``None`` if it is 0.
    """
    consolidate, length_as = options["consolidate"], options["length_as"]
    session = "a session" if any(isinstance(spec, Session) for spec in windows) else ""
    emits_updates = "output='update'" if options["output"] == "update" else ""
    never_shared = "share='never'" if options["share"] == "never" else ""
    consolidated = "" if consolidate == "together" else f"consolidate={consolidate!r}"
    has_calendar = any(isinstance(spec, Hopping) and spec.calendar for spec in windows)
    if session and emits_updates:
        remedy = (
            "Two sessions may become one, so what came out would have to be taken back; leave "
            "output= out."
        )
        yield f"{session} and {emits_updates}", remedy
    if never_shared and emits_updates:
        remedy = "Windows that come out as they grow are made of panes; leave share= out."
        yield f"{never_shared} and {emits_updates}", remedy
    if has_calendar and (never_shared or consolidated):
        remedy = (
            "Windows of local days and months always share panes, and are consolidated where "
            "these are; leave the option out."
        )
        yield f"windows of a calendar, and {never_shared or consolidated}", remedy
    if consolidated and (session or emits_updates):
        remedy = (
            "Only windows of fixed lengths that come out once, when they are over, are made of "
            "partial states; leave consolidate= out."
        )
        yield f"{consolidated} and {session or emits_updates}", remedy
    if lateness is not None and (session or never_shared or consolidated):
        remedy = (
            "Only windows of fixed lengths that share panes, and are consolidated where these "
            "are, can come out again; give the source more slack= instead, or leave the other "
            "option out."
        )
        yield f"allowed_lateness={lateness!r} and {session or never_shared or consolidated}", remedy
    if session and length_as is not None:
        problem = f"length_as={length_as!r} and a session, which has no length of its own"
        yield problem, "Leave length_as= out."


def _check_rows(where: str, options: Mapping[str, Any]) -> None:
    """Raise for options of event time (name → value) together with windows of rows.

    `where`: the call, for errors.
    """
    defaults = {
        "name": options["name"],
        "output": "append",
        "share": "measured",
        "consolidate": "together",
        "allowed_lateness": "0 seconds",
    }
    for option, value in options.items():
        if value != defaults.get(option):
            raise InvalidFlowError(
                f"{where} has windows of rows and {option}={value!r}.",
                remedy=f"Leave {option}= out: windows of rows have no event time, and are emitted "
                "when their last row has come.",
            )
