"""Spark's ``Deduplicate`` and ``DeduplicateWithinWatermark`` as operators of a flow."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DoubleType, FloatType, StructType, TimestampType

from godwit.adopt.first_rows import FirstRows, FirstRowsInTime
from godwit.adopt.plan import (
    WATERMARK_DELAY,
    id_of,
    in_output,
    is_keyed_by_text,
    kind_of,
    metadata_of,
    output_of,
    to_list,
    type_of,
    walk,
)
from godwit.adopt.spark_states import FirstRowsState
from godwit.plan.nodes import CustomNode
from godwit.time.grid import END

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from godwit.adopt.lanes import Adopted, Translator
    from godwit.operators.operator import KeyedOperator

_LATE_BY = "late_by"


def deduplicate(translation: Translator, node: Any, below: list[Adopted | None]) -> Adopted:
    """Translate a node that passes the first row of each key."""
    catalyst, child = translation.catalyst, node.child()
    within = kind_of(node) == "DeduplicateWithinWatermark"
    keys = to_list(node.keys())
    if not keys:
        raise translation.refused(node, "it has no column", "Give a column to dropDuplicates.")
    output = output_of(child)
    timed = any(kind_of(part) == "EventTimeWatermark" for part in walk(child))
    columns: list[tuple[str, Any]] = []
    key_columns: list[tuple[str, Any]] = []
    own: dict[int, str] = {}
    for attribute in output:
        own[id_of(attribute)] = translation.unique(str(attribute.name()))
        columns.append((own[id_of(attribute)], attribute))
    for key in keys:
        translation.check_collation(node, key)
        dtype = type_of(key)
        # A key has one zero, and the row that passes has its own.
        is_apart = isinstance(dtype, (DoubleType, FloatType, StructType)) or is_keyed_by_text(dtype)
        if not is_apart:
            key_columns.append((own[id_of(key)], key))
            continue
        for name, part in _comparable_parts(translation, str(key.name()), key, dtype):
            key_columns.append((translation.unique(f"{name}_key"), part))
            columns.append(key_columns[-1])
    names = tuple(column for column, _ in key_columns)
    within_us = expires = None
    null_us = END
    if timed:
        at_run = (in_output(child, a) for a in _output_at_run(translation, node))
        marked = [a for a in at_run if a is not None and WATERMARK_DELAY in metadata_of(a)]
        moment = catalyst.no_time()  # Spark drops no late rows if their event time is left out
        for mark in marked[:1]:
            if within:
                null_us = within_us = int(metadata_of(mark)[WATERMARK_DELAY]) * 1000
            elif id_of(mark) in {id_of(key) for key in keys}:
                within_us = 0
            moment = catalyst.field(mark, 1) if isinstance(type_of(mark), StructType) else mark
            if not isinstance(type_of(moment), TimestampType):
                raise translation.refused(
                    node, "its event time has no time zone", "Cast it to timestamp first."
                )
        expires = moment if within_us == 0 and not within else None
        columns.append((translation.unique(_LATE_BY), moment))
    late_by = columns[-1][0] if timed else None
    stream, _ = translation.inputs(columns, child, below[0], timed=timed)
    # Names of their own, since the state of one is not that of the other.
    name = translation.unique("drop_duplicates_within_watermark" if within else "drop_duplicates")
    own_columns = [column for column, _ in columns]
    new_operator = partial(
        _deduplicating_operator,
        name,
        names,
        own_columns,
        late_by=late_by,
        within_us=within_us,
        null_us=null_us,
    )
    action = f"drop duplicates of {', '.join(str(key.name()) for key in keys)}"
    operator = CustomNode(
        name=name, upstream=stream.node, keys=names, make=new_operator, action=action
    )
    translation.flow._add_operator(operator)  # noqa: SLF001  as streams do
    translation.states.append(
        FirstRowsState(
            operator=name,
            grouping=tuple(keys),
            keys=tuple(key_columns),
            within=within,
            expires=expires,
        )
    )
    return translation.rows_at(
        node, operator, [(attribute, own[id_of(attribute)]) for attribute in output]
    )


def _output_at_run(translation: Translator, node: Any) -> list[Any]:
    """Return the columns of a node's rows after Spark's optimizer has pruned some.

    The first one with an event time says which rows are late.
    """
    keys = {id_of(key) for key in to_list(node.keys())}
    for part in walk(translation.optimized_plan):
        if kind_of(part) == kind_of(node) and {id_of(k) for k in to_list(part.keys())} == keys:
            return output_of(part.child())
    return output_of(node.child())


def _comparable_parts(
    translation: Translator, name: str, value: Any, dtype: Any
) -> list[tuple[str, Any]]:
    """Return a key as columns that operators can compare."""
    catalyst = translation.catalyst
    if is_keyed_by_text(dtype):
        return [(name, catalyst.key_text(value))]
    if not isinstance(dtype, StructType):
        return [(name, value)]
    parts = [(f"{name}_is_null", catalyst.is_null(value))] if value.nullable() else []
    for ordinal, field in enumerate(dtype.fields):
        inner = catalyst.field(value, ordinal)
        parts += _comparable_parts(translation, f"{name}_{field.name}", inner, field.dataType)
    return parts


def _deduplicating_operator(
    name: str,
    keys: tuple[str, ...],
    columns: list[str],
    schemas: Sequence[pa.Schema],
    *,
    late_by: str | None,
    within_us: int | None,
    null_us: int,
) -> KeyedOperator:
    """Return the operator over a stream with these columns, and those of event time."""
    (schema,) = schemas
    if late_by is None:
        return FirstRows(name=name, keys=keys, columns=schema)
    return FirstRowsInTime(
        name=name,
        keys=keys,
        arriving=schema,
        passing=tuple(field.name for field in schema if field.name in columns),
        late_by=late_by,
        within_us=within_us,
        null_us=null_us,
    )
