"""Spark's ``Aggregate`` as an operator of a flow."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from godwit.adopt.aggregate_functions import call_of, depends_on_order, is_nested
from godwit.adopt.group_keys import GroupKeys
from godwit.adopt.grouped import GroupedAggregates, GroupsInTime
from godwit.adopt.lanes import ONLY_TIME, TIME, Adopted, PlacedColumn
from godwit.adopt.plan import (
    id_of,
    kind_of,
    output_of,
    place_of,
    references,
    to_list,
    type_of,
    walk,
    watermarks_of,
)
from godwit.adopt.sessions import SparkSessions
from godwit.adopt.spark_aggregates import EncodedAggregate
from godwit.adopt.spark_states import AggregateState
from godwit.adopt.unread import without_dead_branches
from godwit.adopt.windows import SparkWindows, windows_of
from godwit.api.streams import Stream
from godwit.columns.types import KEY_OF_ALL
from godwit.library import aggregates as gw
from godwit.model.errors import InvalidFlowError, UnsupportedQueryError
from godwit.plan.nodes import CustomNode
from godwit.spark.platform.pyspark_versions import arrow_schema_of
from godwit.time.event_time import RowTime
from godwit.time.grid import PaneGrid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.adopt.aggregate_functions import AggregateCall
    from godwit.adopt.lanes import Translator
    from godwit.adopt.spark_aggregates import How
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import KeyedOperator


def aggregate(translation: Translator, node: Any, below: list[Adopted | None]) -> Adopted:
    """Translate an ``Aggregate``, or a ``Distinct``, which groups by all columns."""
    if kind_of(node) == "Distinct":
        grouping = results = output_of(node)
        child = node.child()
    else:
        grouping, results = to_list(node.groupingExpressions()), _results_of(translation, node)
        child = node.child()
    keys = GroupKeys(translation, node, grouping)
    functions = _functions_in(results)
    calls = [(function, _aggregate_call(translation, node, function)) for function in functions]
    if below[0] is None:
        child = _with_panes(translation, keys, functions, calls, child)
    aggregates: dict[str, Aggregate] = {}
    arguments: list[tuple[str, Any]] = []  # text alone does not tell two expressions apart
    for function, call in calls:
        names = []
        for argument in call.arguments:
            known = (name for name, value in arguments if value.semanticEquals(argument))
            name = next(known, None)
            if name is None:
                name = translation.unique(f"of_{argument.sql()}")
                arguments.append((name, argument))
            names.append(name)
        aggregates[translation.unique(str(function.sql()))] = call.make(names)
    results_named = list(aggregates)
    for name, key in keys.nested:
        arguments.append((translation.unique(f"of_{name}"), key))
        column = arguments[-1][0]
        aggregates[name] = gw.first(column)
        if is_nested(key):
            source: tuple[str, How] = (column, "value")
            aggregates[name] = EncodedAggregate(aggregate=gw.first("c0"), sources=(source,))
    if not aggregates:
        aggregates[translation.unique("count")] = gw.count()
    # In complete mode the watermark is idle, but late rows are of no session.
    follows = translation.mode != "complete" or keys.session is not None
    timed = follows and bool(watermarks_of(child))
    columns = [*keys.columns, *arguments]
    stream, schema = translation.inputs(columns, child, below[0], timed=timed)
    name = translation.unique("aggregate")
    new_operator = partial(
        _grouped_operator, name, keys, aggregates, mode=translation.mode, timed=timed
    )
    action = f"aggregate {', '.join(str(f.sql()) for f in functions) or 'distinct rows'}"
    operator = CustomNode(
        name=name, upstream=stream.node, keys=keys.names, make=new_operator, action=action
    )
    translation.flow._add_operator(operator)  # noqa: SLF001  as streams do
    translation.states.append(
        AggregateState(
            operator=name,
            grouping=tuple(grouping),
            keys=keys.of_groups(translation.catalyst),
            removed_by=keys.removed_by,
            by_window=keys.panes is not None,
            session=keys.session,
            results=tuple(zip(results_named, functions, strict=True)),
        )
    )
    attributes = [function.resultAttribute() for function in functions]
    _check_types(translation, aggregates, dict(zip(results_named, functions, strict=True)), schema)
    bound = [
        *keys.bound,
        *(
            PlacedColumn(attribute=attribute, place=column)
            for attribute, column in zip(attributes, results_named, strict=True)
        ),
    ]

    def change(expression: Any) -> Any:
        """Replace a group key, or an aggregate, by its column."""
        if kind_of(expression) == "AggregateExpression":
            return next(
                attribute
                for function, attribute in zip(functions, attributes, strict=True)
                if function.semanticEquals(expression)
            )
        return keys.attribute_of(expression)

    rewritten = [translation.catalyst.rewrite(result, change) for result in results]
    plan = translation.catalyst.project([translation.catalyst.named(e) for e in rewritten], child)
    return Adopted(
        stream=Stream(translation.flow, operator), columns=tuple(bound), plan=plan, path=(0,)
    )


def _with_panes(
    translation: Translator,
    keys: GroupKeys,
    functions: list[Any],
    calls: list[tuple[Any, AggregateCall]],
    child: Any,
) -> Any:
    """Replace windows of one length by panes, if that gives the same result.

    Returns the plan to aggregate: the one before the windows, or `child`.
    """
    if keys.window is None or any(map(depends_on_order, functions)):
        return child
    if translation.whole_windows and translation.mode == "update":
        return child
    attribute, *bound_columns = keys.window
    read = [value for name, value in keys.columns if name not in bound_columns]
    read += [argument for _, call in calls for argument in call.arguments]
    if any(id_of(attribute) in references(value) for value in read):
        return child
    panes = windows_of(translation.catalyst, child, attribute)
    if panes is None or len(watermarks_of(child)) != 1:
        return child
    window, time, child_without_windows = panes
    keys.use_panes(window, translation.unique(str(time.name())), time)
    return child_without_windows


def _aggregate_call(translation: Translator, node: Any, function: Any) -> AggregateCall:
    """Return the aggregate for one of Spark's; errors name its place."""
    try:
        return call_of(translation.catalyst, function)
    except UnsupportedQueryError as error:
        place = place_of(function) or place_of(node)
        where = f" ({place})" if place else ""
        raise UnsupportedQueryError(
            f"Aggregate{where}: {error.message}",
            remedy=error.remedy,
            node=error.context["node"],
            place=place,
        ) from None


def _check_types(
    translation: Translator,
    aggregates: dict[str, Aggregate],
    functions: dict[str, Any],
    schema: pa.Schema,
) -> None:
    """Raise if the result of an aggregate has a different type than Spark's analyser gives it."""
    for name, function in functions.items():
        try:
            output = aggregates[name].bind(schema).output
        except InvalidFlowError as error:
            raise translation.refused(function, error.message.rstrip("."), error.remedy) from None
        result = StructType([StructField("result", type_of(function))])
        spark = arrow_schema_of(result, zone="UTC").field(0)
        if not _same_type(output, spark.type):
            raise translation.refused(
                function,
                f"its result has type {output}, but Spark's has {spark.type}",
                "Cast its argument, or its result.",
            )


def _grouped_operator(
    name: str,
    group: GroupKeys,
    aggregates: dict[str, Aggregate],
    schemas: Sequence[pa.Schema],
    *,
    mode: str,
    timed: bool,
) -> KeyedOperator:
    """Return the operator of an aggregate over a stream with these columns."""
    (schema,) = schemas
    keys = group.names
    own = pa.schema([schema.field(key) for key in keys] or KEY_OF_ALL)
    read = {column for aggregate in aggregates.values() for column in aggregate.columns}
    inputs = pa.schema([field for field in schema if field.name in read])
    if not timed:
        return GroupedAggregates(
            name=name,
            keys=own,
            inputs=inputs,
            aggregates=aggregates,
            mode="complete" if mode == "complete" else "update",
        )
    if group.session is not None:
        start, end = group.session
        return SparkSessions(
            name=name,
            keys=keys,
            arriving=schema,
            start=start,
            end=end,
            only_time=ONLY_TIME,
            inputs=inputs,
            aggregates=aggregates,
            complete=mode == "complete",
        )
    if group.panes is not None:
        window, time = group.panes
        return SparkWindows(
            name=name,
            keys=tuple(own.names),
            arriving=schema if keys else pa.schema([*KEY_OF_ALL, *schema]),
            time=RowTime(column=time),
            inputs=inputs,
            aggregates=aggregates,
            grid=PaneGrid.of(window),
            update=mode == "update",
            only_time=ONLY_TIME,
        )
    return GroupsInTime(
        name=name,
        keys=own,
        arriving=schema if keys else pa.schema([*KEY_OF_ALL, *schema]),
        time=TIME,
        removed_by=group.removed_by,
        only_time=ONLY_TIME,
        inputs=inputs,
        aggregates=aggregates,
        append=mode == "append",
    )


def _results_of(translation: Translator, node: Any) -> list[Any]:
    """Return the results of an ``Aggregate``."""
    results = to_list(node.aggregateExpressions())
    return [without_dead_branches(translation.catalyst, result) for result in results]


def _functions_in(results: Sequence[Any]) -> list[Any]:
    """Return the distinct aggregate functions in expressions, in order."""
    functions: list[Any] = []
    for result in results:
        for part in walk(result):
            if kind_of(part) == "AggregateExpression" and not any(
                known.semanticEquals(part) for known in functions
            ):
                functions.append(part)
    return functions


def _same_type(flow_type: pa.DataType, spark_type: pa.DataType) -> bool:
    """Return whether two types are equal, except for zones and the nullability of parts."""
    if pa.types.is_map(flow_type) and pa.types.is_map(spark_type):
        return _same_type(flow_type.key_type, spark_type.key_type) and _same_type(
            flow_type.item_type, spark_type.item_type
        )
    if pa.types.is_list(flow_type) and pa.types.is_list(spark_type):
        return _same_type(flow_type.value_type, spark_type.value_type)
    if pa.types.is_struct(flow_type) and pa.types.is_struct(spark_type):
        return [field.name for field in flow_type] == [field.name for field in spark_type] and all(
            _same_type(flow_field.type, spark_field.type)
            for flow_field, spark_field in zip(flow_type, spark_type, strict=True)
        )
    if pa.types.is_timestamp(flow_type) and pa.types.is_timestamp(spark_type):
        return (flow_type.tz is None) == (spark_type.tz is None)
    return bool(flow_type == spark_type)
