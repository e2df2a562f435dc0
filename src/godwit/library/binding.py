"""Binding: operators of nodes whose columns have types; compilation finds `bind` by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.columns.signed import CHANGE
from godwit.columns.types import KEY_OF_ALL
from godwit.library.aggregates import first, last
from godwit.library.aggregates.conditions import computed
from godwit.library.batch import BatchProcess
from godwit.library.broadcast import BroadcastOperator
from godwit.library.compute import ComputeOperator
from godwit.library.compute_changes import ComputeChanges
from godwit.library.duplicates import DropDuplicates, DropDuplicatesWithin
from godwit.library.in_order import InOrder
from godwit.library.joins.changes import ChangesJoin, TableSide
from godwit.library.joins.interval import IntervalJoin
from godwit.library.joins.newest import NewestJoin
from godwit.library.joins.sides import JoinOperator, JoinSide
from godwit.library.latest import LatestOperator
from godwit.library.parts import MergedProcess, MergedStates
from godwit.library.passing import PassRows
from godwit.library.process import ProcessOperator
from godwit.library.states.operator import ProcessOfStates
from godwit.library.windows.compute import WindowedCompute
from godwit.library.windows.process import SessionProcess, WindowedProcess
from godwit.library.windows.rows import RowWindowsOperator
from godwit.library.windows.sessions import SessionCompute
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import check_column_names, listing
from godwit.operators.broadcast import Broadcast
from godwit.operators.declared import ttl_us_of
from godwit.operators.window_specs import Hopping, Session, grid_of
from godwit.plan.compilation import checked_column, keys_first, keys_of
from godwit.plan.compiled import SourceInput
from godwit.plan.event_times import check_event_time, event_time_of, time_columns
from godwit.plan.lineage import digest_of_branches
from godwit.plan.nodes import (
    ComputeNode,
    CustomNode,
    DropDuplicatesNode,
    JoinNode,
    LatestNode,
    PassNode,
    ProcessNode,
    WindowedNode,
    branches_of,
    kind_of,
    sources_of,
    table_keys,
    tables_of,
)
from godwit.store.columns import can_be_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from godwit.library.windows.operator import EventTimeOperator
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compilation import Compilation
    from godwit.plan.compiled import Input
    from godwit.plan.nodes import OperatorNode, StreamNode
    from godwit.time.event_time import RowTime


def bind(compilation: Compilation, node: OperatorNode) -> list[Input]:
    """Bind an operator to the types of its columns; return its inputs."""
    assert not isinstance(node, CustomNode), "it makes its operator itself"
    where = f"Operator {node.name!r}"
    schema, origin = compilation.columns.of(node.upstream)
    keys = keys_of(node.name, node.keys, schema, origin)
    if isinstance(node, JoinNode):
        return _bind_join(compilation, node, (schema, origin))
    if isinstance(node, PassNode):
        return _bind_rows(compilation, node, schema)
    if isinstance(node, DropDuplicatesNode):
        return _bind_duplicates(compilation, node, schema, origin)
    if isinstance(node, LatestNode):
        return _bind_latest(compilation, node, schema, origin)
    if isinstance(node, ComputeNode) and kind_of(node.upstream) == "changes":
        return _bind_compute_changes(compilation, node, keys, schema, origin)
    if isinstance(node, ComputeNode) or (isinstance(node, WindowedNode) and node.aggregates):
        node = _with_expressions(node, schema)
        inputs = pa.schema(
            {
                column: checked_column(schema, column, f"{where}, result {result!r}, reads", origin)
                for result, aggregate in node.aggregates.items()
                for column in aggregate.columns
            }.values()
        )
    else:
        inputs = pa.schema([field for field in schema if field.name not in node.keys])
        if isinstance(node, ProcessNode) and node.row_class is not None:
            node.row_class.check_columns(schema, node.name, origin)
            read = node.row_class.names  # others need not be sent
            inputs = pa.schema([field for field in inputs if field.name in read])
    exchanged = pa.schema([*keys, *(f for f in inputs if f.name not in node.keys)])
    time: RowTime | None = None
    if isinstance(node, WindowedNode):
        time = event_time_of(
            node.upstream,
            schema,
            origin,
            operator=node.name,
            does="has windows",
            time=node.time,
        )
        if node.late is not None:
            exchanged = keys_first(schema, node.keys)  # late rows come out as they came
        elif time.column not in exchanged.names:
            exchanged = exchanged.append(schema.field(time.column))
        if not node.keys:
            whole = replace(node, keys=tuple(KEY_OF_ALL.names))
            arriving = pa.schema([*KEY_OF_ALL, *exchanged])
            operator = windowed_operator(whole, arriving, inputs, time, compilation.zone)
        else:
            operator = windowed_operator(node, exchanged, inputs, time, compilation.zone)
        compilation.operators[node.name] = operator
        compilation.timed.update(source.name for source in sources_of(node))
    else:
        own = pa.schema(keys or KEY_OF_ALL)
        compilation.operators[node.name] = _keyed_operator(node, own, inputs, compilation.zone)
        if not exchanged.names:  # rows are counted by a column, whichever it is
            exchanged = pa.schema([schema.field(0)])
    compilation.operators[node.name].failures_to = compilation.errors.get(id(node), "")
    if isinstance(node, ProcessNode) and node.in_order:
        does = "processes rows in order of event time"
        time = event_time_of(node.upstream, schema, origin, operator=node.name, does=does)
        if node.late is not None:
            exchanged = keys_first(schema, node.keys)
        elif time.column not in exchanged.names:
            exchanged = exchanged.append(schema.field(time.column))
        check_storable(node.name, exchanged)
        compilation.timed.update(source.name for source in sources_of(node))
    if isinstance(node, ProcessNode) and node.timing.clock == "event":
        check_event_time(node.upstream, node.name, "has timers of event time")
        compilation.timed.update(source.name for source in sources_of(node))
    column = None if time is None else time.column
    inputs = compilation.inputs(node.name, node.upstream, node.keys, exchanged, time=column)
    if tables_of(node):
        assert isinstance(node, ProcessNode), "no other operator has tables"
        inputs += _bind_tables(compilation, node, len(inputs))
    if isinstance(node, ProcessNode) and time is not None:
        inner = compilation.operators[node.name]
        arriving = pa.schema([*([] if node.keys else KEY_OF_ALL), *exchanged])
        compilation.operators[node.name] = InOrder(inner, arriving=arriving, time=time)
    return inputs


def _bind_tables(compilation: Compilation, node: ProcessNode, first: int) -> list[Input]:
    """Bind an operator's broadcast tables; return their inputs, numbered from `first`."""
    bound: list[Input] = []
    tables = []
    for name, table in node.tables.items():
        schema, origin = compilation.columns.of(table.stream)
        where = f"table {name!r} of operator {node.name!r}"
        keys = keys_of(node.name, table.keys, schema, origin)
        columns = keys_first(schema, table.keys)
        check_storable(node.name, columns, f"stores the {where} in its lanes")
        inputs = compilation.inputs(
            node.name, table.stream, table.keys, columns, first=first + len(bound)
        )
        for edge in inputs:
            assert isinstance(edge, SourceInput), "KeyedStream.process refuses other streams"
            bound.append(replace(edge, table=name))
        tables.append(
            Broadcast(
                name=name,
                operator=node.name,
                keyed_by=compilation.operators[node.name].keys,
                keys=pa.schema(keys),
                values=pa.schema([f for f in columns if f.name not in table.keys]),
                inputs=frozenset(edge.number for edge in inputs),
                origin=describe_origin(table.stream),
            )
        )
    compilation.operators[node.name] = BroadcastOperator(compilation.operators[node.name], tables)
    return bound


def _bind_duplicates(
    compilation: Compilation, node: DropDuplicatesNode, schema: pa.Schema, origin: str
) -> list[Input]:
    """Bind an operator that drops duplicate rows, and return its inputs.

    `schema`, `origin`: columns of its stream, and the stream's description for errors.
    """
    options: dict[str, Any] = {"name": node.name, "keys": node.keys, "columns": schema}
    column = None
    if kind_of(node.upstream) == "changes":
        compilation.operators[node.name] = _one_row_of_each_key(node, schema, first)
    elif node.within_us is None:
        compilation.operators[node.name] = DropDuplicates(**options)
    else:
        does = "drops duplicates by event time"
        time = event_time_of(node.upstream, schema, origin, operator=node.name, does=does)
        compilation.operators[node.name] = DropDuplicatesWithin(
            time=time, within_us=node.within_us, **options
        )
        compilation.timed.update(source.name for source in sources_of(node))
        column = time.column
    columns = keys_first(schema, node.keys)
    return compilation.inputs(node.name, node.upstream, node.keys, columns, time=column)


def _bind_latest(
    compilation: Compilation, node: LatestNode, schema: pa.Schema, origin: str
) -> list[Input]:
    """Bind an operator of the newest row of each key, and return its inputs.

    `schema`, `origin`: columns of its stream, and the stream's description for errors.
    """
    where = f"Operator {node.name!r}"
    if node.order_by is not None:
        checked_column(schema, node.order_by, f"{where} orders by", origin)
    check_storable(node.name, schema, "stores the newest row of each key")
    if kind_of(node.upstream) == "changes":
        operator = _one_row_of_each_key(node, schema, last, order_by=node.order_by)
        compilation.operators[node.name] = operator
    else:
        compilation.operators[node.name] = LatestOperator(
            name=node.name, keys=node.keys, columns=schema, order_by=node.order_by
        )
    columns = keys_first(schema, node.keys)
    return compilation.inputs(node.name, node.upstream, node.keys, columns)


def _bind_compute_changes(
    compilation: Compilation,
    node: ComputeNode,
    keys: list[pa.Field],
    schema: pa.Schema,
    origin: str,
) -> list[Input]:
    """Bind aggregates over changes, and return their inputs.

    `keys`: key columns. `schema`, `origin`: as for `_bind_latest`.
    """
    where = f"Operator {node.name!r}"
    computed_node = _with_expressions(node, schema)
    read = {}
    for result, aggregate in computed_node.aggregates.items():
        for column in aggregate.columns:
            reads = f"{where}, result {result!r}, reads"
            read[column] = checked_column(schema, column, reads, origin)
    if CHANGE.name in (*read, *node.keys):
        raise InvalidFlowError(
            f"{where} reads the sign {CHANGE.name!r} of changes, which the aggregates already "
            "apply.",
            remedy=(
                'gw.count() and gw.sum("x") cover the current rows of the table; to use the '
                "sign as an ordinary column, call as_rows() on the stream first."
            ),
            operator=node.name,
            column=CHANGE.name,
        )
    operator = ComputeChanges(
        name=node.name,
        keys=pa.schema(keys or KEY_OF_ALL),
        inputs=pa.schema([*read.values(), CHANGE]),
        aggregates=computed_node.aggregates,
        rows=schema,
        mode=node.mode,
        on_missing=node.on_missing,
    )
    compilation.operators[node.name] = operator
    others = [field for field in operator.inputs if field.name not in node.keys]
    exchanged = pa.schema([*keys, *others])
    return compilation.inputs(node.name, node.upstream, node.keys, exchanged)


def _bind_rows(compilation: Compilation, node: PassNode, schema: pa.Schema) -> list[Input]:
    """Bind an operator that passes rows on to a sink, and return its inputs."""
    by = node.row_keys or table_keys(node)
    by = by if set(by) <= set(schema.names) else ()
    compilation.operators[node.name] = PassRows(name=node.name, columns=schema, by=by)
    return compilation.inputs(node.name, node.upstream, (), schema)


def _bind_join(
    compilation: Compilation, node: JoinNode, left: tuple[pa.Schema, str]
) -> list[Input]:
    """Bind a join, and return the inputs of its left and right streams.

    `left`: columns of the left stream, and its description for messages.
    """
    right = compilation.columns.of(node.right)
    keys_of(node.name, node.right_keys, *right)
    inputs: list[Input] = []
    numbers = []
    for stream, keys, (schema, _) in (
        (node.upstream, node.keys, left),
        (node.right, node.right_keys, right),
    ):
        columns = keys_first(schema, keys)
        # of several, `join_operator` tells
        times = [] if node.of_tables else time_columns(stream)
        side_inputs = compilation.inputs(
            node.name, stream, keys, columns, time=next(iter(times), None), first=len(inputs)
        )
        numbers.append(len(side_inputs))
        inputs += side_inputs
    if node.of_tables:
        compilation.operators[node.name] = changes_join(node, left, right, (numbers[0], numbers[1]))
        return inputs
    operator = join_operator(node, left, right, (numbers[0], numbers[1]))
    compilation.operators[node.name] = operator
    compilation.timed.update(source.name for source in sources_of(node))
    return inputs


def _with_expressions(
    node: ComputeNode | WindowedNode, schema: pa.Schema
) -> ComputeNode | WindowedNode:
    """Return a node whose aggregates have expressions where no column has that name."""
    aggregates = {}
    for result, aggregate in node.aggregates.items():
        try:
            aggregates[result] = computed(aggregate, schema)
        except InvalidFlowError as error:
            raise InvalidFlowError(
                f"Result {result!r} of operator {node.name!r}: {error.message}",
                remedy=error.remedy,
                **{**error.context, "operator": node.name, "result": result},
            ) from error
    return replace(node, aggregates=aggregates)


def _one_row_of_each_key(
    node: DropDuplicatesNode | LatestNode,
    schema: pa.Schema,
    aggregate: Callable[[str], Aggregate],
    *,
    order_by: str | None = None,
) -> ComputeChanges:
    """Return an operator that outputs one live row of each key, as changes.

    `schema`: columns of the changes. `aggregate`: of a column, `first` or `last`.
    """
    others = [name for name in schema.names if name not in (*node.keys, CHANGE.name)]
    return ComputeChanges(
        name=node.name,
        keys=pa.schema([schema.field(key) for key in node.keys]),
        inputs=keys_first(schema, node.keys),
        aggregates={name: aggregate(name) for name in others},
        rows=schema,
        mode="changes",
        on_missing=node.on_missing,
        order_by=order_by,
    )


def _keyed_operator(
    node: ComputeNode | ProcessNode, keys: pa.Schema, inputs: pa.Schema, zone: str
) -> KeyedOperator:
    """Return the operator of a node that aggregates, or calls a function, per key.

    `inputs`: the columns that the operator reads. `zone`: the session's time zone.
    """
    if isinstance(node, ComputeNode) and node.windows is not None:
        return RowWindowsOperator(
            name=node.name,
            keys=keys,
            inputs=inputs,
            aggregates=dict(node.aggregates),
            windows=node.windows,
        )
    if isinstance(node, ComputeNode):
        return ComputeOperator(
            name=node.name,
            keys=keys,
            inputs=inputs,
            aggregates=dict(node.aggregates),
            mode=node.mode,
        )
    if node.columns is not None:
        assert node.frames is not None, "a function over tables says of which kind"
        return BatchProcess(
            name=node.name,
            keys=keys,
            inputs=inputs,
            function=node.function,
            state=node.columns,
            output=node.output,
            frames=node.frames,
            zone=zone,
        )
    options: dict[str, Any] = {
        "name": node.name,
        "keys": keys,
        "inputs": inputs,
        "function": node.function,
        "output": node.output,
        "zone": zone,
        "row_class": node.row_class,
        "output_class": node.output_class,
    }
    timed: dict[str, Any] = {
        "timing": node.timing,
        "asynchronous": node.asynchronous,
        "tables": tuple(node.tables),
    }
    if any(declared.merge is not None for declared in node.states.values()):
        return MergedStates(states=node.states, **options)
    if node.states:
        return ProcessOfStates(states=node.states, **timed, **options)
    single = node.state
    assert single is not None, "a function has a state"
    options |= {
        "state_type": single.value_type,
        "codec": single.codec,
        "state_classes": single.classes,
        "state_upgrade": single.upgrade,
    }
    if single.merge is not None:
        return MergedProcess(merge=single.merge, **options)
    ttl_us = ttl_us_of(single, f"operator {node.name!r}")
    return ProcessOperator(ttl_us=ttl_us, **timed, **options)


def check_storable(
    operator: str, columns: Iterable[pa.Field], keeps: str = "keeps rows until they are due"
) -> None:
    """Raise `InvalidFlowError` for columns whose types state cannot hold.

    `keeps`: the reason why the operator stores rows, as text.
    """
    for field in columns:
        if not can_be_state(field.type):
            raise InvalidFlowError(
                f"Operator {operator!r} {keeps}, and column {field.name!r} "
                f"has type {field.type}, which state cannot hold.",
                remedy=f"Drop {field.name!r} in an earlier map, or convert it to numbers or text.",
                operator=operator,
                column=field.name,
            )


def windowed_operator(
    node: WindowedNode, arriving: pa.Schema, inputs: pa.Schema, time: RowTime, zone: str
) -> EventTimeOperator:
    """Return the operator of windows of event time.

    `arriving`: columns of its rows. `inputs`: those of them that the aggregates or the function
    read. `time`: the column of event time. `zone`: the session's time zone.
    """
    options: dict[str, Any] = {
        "name": node.name,
        "keys": node.keys,
        "arriving": arriving,
        "time": time,
    }
    if node.function is None:
        options |= {"inputs": inputs, "aggregates": node.aggregates}
    else:
        check_storable(node.name, arriving)
        options |= {"function": node.function, "output": node.output, "zone": zone}
        options |= {"output_class": node.output_class}
    session = node.windows[0]
    if isinstance(session, Session):
        kind = SessionCompute if node.function is None else SessionProcess
        return kind(gap_us=session.gap_us, **options)
    hopping = [spec for spec in node.windows if isinstance(spec, Hopping)]
    options["grid"] = grid_of(hopping, f"Operator {node.name!r}")
    if node.function is not None:
        return WindowedProcess(**options)
    lengths = None
    if node.length_as is not None:
        lengths = node.length_as, {spec.window.length_us: spec.length for spec in hopping}
    compute = WindowedCompute(
        update=node.update,
        share=node.share,
        lateness_us=node.lateness_us,
        lengths=lengths,
        **options,
    )
    if node.share is False and not compute.commutative:
        raise InvalidFlowError(
            f"Operator {node.name!r} has share='never', but an aggregate that depends on the order "
            "of rows.",
            remedy=(
                "A state per window gets rows in order of arrival, and panes in order of time: "
                "leave share= out."
            ),
            operator=node.name,
        )
    return compute


def join_operator(
    node: JoinNode,
    left: tuple[pa.Schema, str],
    right: tuple[pa.Schema, str],
    inputs: tuple[int, int],
) -> JoinOperator:
    """Return the operator of a join.

    `left`, `right`: columns of each stream, and its description for errors. `inputs`: numbers of
    inputs of the left and of the right stream.
    """
    keys = pa.schema([left[0].field(key) for key in node.keys])
    _check_same_keys(node, keys, left[1], right)
    of_left = [field for field in left[0] if field.name not in node.keys]
    of_right = [field for field in right[0] if field.name not in node.right_keys]
    check_storable(node.name, [*of_left, *of_right])
    named = _right_columns(node, [*keys, *of_left], of_right, left[1], right[1])
    does = "joins by event time"
    sides = [
        JoinSide(
            keys=names,
            columns=tuple(field.name for field in fields),
            named=columns,
            time=event_time_of(stream, schema, origin, operator=node.name, does=does),
            inputs=frozenset(numbers),
            origin=describe_origin(stream),
        )
        for names, fields, columns, stream, (schema, origin), numbers in (
            (node.keys, of_left, pa.schema(of_left), node.upstream, left, range(inputs[0])),
            (
                node.right_keys,
                of_right,
                named,
                node.right,
                right,
                range(inputs[0], sum(inputs)),
            ),
        )
    ]
    check_column_names(
        [*keys.names, *(field.name for field in of_left), *named.names],
        f"The output of operator {node.name!r}",
    )
    options: dict[str, Any] = {
        "name": node.name,
        "keys": keys,
        "left": sides[0],
        "right": sides[1],
        "how": node.how,
        "spread": node.spread,
    }
    if node.between_us is None:
        return NewestJoin(within_us=node.within_us, **options)
    earliest_us, latest_us = node.between_us
    return IntervalJoin(earliest_us=earliest_us, latest_us=latest_us, **options)


def changes_join(
    node: JoinNode,
    left: tuple[pa.Schema, str],
    right: tuple[pa.Schema, str],
    inputs: tuple[int, int],
) -> ChangesJoin:
    """Return the operator of a join of tables that change; see `join_operator`."""
    keys = pa.schema([left[0].field(key) for key in node.keys])
    _check_same_keys(node, keys, left[1], right)
    of_left = [f for f in left[0] if f.name not in (*node.keys, CHANGE.name)]
    of_right = [f for f in right[0] if f.name not in (*node.right_keys, CHANGE.name)]
    named = _right_columns(node, [*keys, *of_left], of_right, left[1], right[1])
    check_column_names(
        [*keys.names, *(field.name for field in of_left), *named.names],
        f"The output of operator {node.name!r}",
    )
    sides = [
        TableSide(
            keys=names,
            columns=tuple(field.name for field in fields),
            named=columns,
            inputs=frozenset(numbers),
        )
        for names, fields, columns, numbers in (
            (node.keys, of_left, pa.schema(of_left), range(inputs[0])),
            (node.right_keys, of_right, named, range(inputs[0], sum(inputs))),
        )
    ]
    return ChangesJoin(
        name=node.name,
        keys=keys,
        left=sides[0],
        right=sides[1],
        how=node.how,
        on_missing=node.on_missing,
    )


def _check_same_keys(
    node: JoinNode, keys: pa.Schema, origin: str, right: tuple[pa.Schema, str]
) -> None:
    """Refuse a join whose key columns differ in number or types; `origin`: the left, for errors."""
    others = [right[0].field(key) for key in node.right_keys]
    if len(keys) != len(others):
        raise InvalidFlowError(
            f"Operator {node.name!r} joins by {listing(node.keys)} of {origin} and by "
            f"{listing(node.right_keys)} of {right[1]}.",
            remedy=(
                "Key both streams by the same number of columns; they are compared in order, "
                "the first with the first, and so on."
            ),
            operator=node.name,
        )
    for column, matched in zip(keys, others, strict=True):
        if column.type != matched.type:
            raise InvalidFlowError(
                f"Operator {node.name!r} joins column {column.name!r} of {origin}, whose type is "
                f"{column.type}, with {matched.name!r} of {right[1]}, whose type is "
                f"{matched.type}.",
                remedy=f"Cast one of them in a map before key_by, such as {matched.name!r} to "
                f"{column.type}.",
                operator=node.name,
                column=matched.name,
            )


def _right_columns(
    node: JoinNode,
    taken: Sequence[pa.Field],
    columns: Sequence[pa.Field],
    origin: str,
    other: str,
) -> pa.Schema:
    """Return the right stream's columns, renamed by a suffix where the left has the same name.

    `taken`: the left stream's columns. `origin`, `other`: left and right, for errors.
    """
    names = {field.name.lower() for field in taken}
    both = [field.name for field in columns if field.name.lower() in names]
    if both and node.suffix is None:
        raise InvalidFlowError(
            f"Operator {node.name!r} joins {origin} with {other}, which both have {listing(both)}.",
            remedy=(
                "Give a suffix for the names of the right stream's columns, as in "
                'suffix="_right", or rename or drop them in a map.'
            ),
            operator=node.name,
            columns=both,
        )
    return pa.schema(
        [f.with_name(f"{f.name}{node.suffix}") if f.name in both else f for f in columns]
    )


def describe_origin(stream: StreamNode) -> dict[str, Any]:
    """Return the sources and maps that a stream's rows come from, as plain values.

    See `JoinSide.origin`.
    """
    branches = branches_of(stream)
    return {
        "sources": sorted(source.name for source in sources_of(stream)),
        "way": digest_of_branches(
            (branch.feed.name, [step.function for step in branch.maps]) for branch in branches
        ),
    }
