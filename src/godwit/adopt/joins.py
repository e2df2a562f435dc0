"""Spark's ``Join`` of two streams as an operator of a flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType, TimestampType

from godwit.adopt.joined_rows import (
    EXPIRES,
    IS_LEFT,
    LATE_BY,
    LEFT,
    PASSES_OWN_CONDITION,
    JoinedRows,
    JoinedRowsInTime,
)
from godwit.adopt.lanes import LaneProjection, Packed
from godwit.adopt.plan import (
    SESSION_WINDOW,
    TIME_WINDOW,
    WATERMARK_DELAY,
    children_of,
    id_of,
    in_output,
    is_keyed_by_text,
    kind_of,
    metadata_of,
    option,
    output_of,
    references,
    type_of,
    walk,
)
from godwit.adopt.spark_states import JoinSideState, JoinState
from godwit.adopt.stateless import read_stateless
from godwit.plan.nodes import CustomNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.adopt.joined_rows import How
    from godwit.adopt.lanes import Adopted, Place, Translator
    from godwit.operators.operator import KeyedOperator

_HOW: Final[dict[str, How]] = {
    "Inner": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
}
_FILTERED: Final[dict[How, tuple[int, ...]]] = {
    "inner": (0, 1),
    "left": (1,),
    "right": (0,),
    "full": (),
    "semi": (0, 1),
}
"""Sides whose rows with null in a key column Spark drops before the join."""
_NOT_STORED: Final = (LATE_BY, EXPIRES, PASSES_OWN_CONDITION)
_SOME_TIME_MS: Final = 1_000_000_000_000


@dataclass(slots=True, kw_only=True)
class _Side:
    """One side of a join."""

    plan: Any
    own: set[int]  # numbers of its columns
    keys: list[Any] = field(default_factory=list)
    alone: list[Any] = field(default_factory=list)  # conditions that concern it alone
    columns: list[tuple[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the columns that come out
    places: list[tuple[Any, Place]] = field(default_factory=list)
    reach_us: int = 0


def join(translation: Translator, node: Any, below: list[Adopted | None]) -> Adopted:
    """Translate a join of two streams."""
    catalyst = translation.catalyst
    how = _HOW.get(str(node.joinType()))
    if how is None:
        raise translation.refused(node, "it is not supported yet", "Use another join type.")
    sides = [
        _Side(plan=child, own={id_of(a) for a in output_of(child)}) for child in children_of(node)
    ]
    both = _split_condition(translation, node, sides, how)
    marked = [any(kind_of(p) == "EventTimeWatermark" for p in walk(s.plan)) for s in sides]
    timed = any(marked)
    key_names: list[str] = []
    for number, side in enumerate(sides):
        _add_columns(translation, side, key_names if number else None)
        key_names = [key for key, _ in side.columns if key not in side.names]
    forgets = timed and _add_times(translation, node, sides)
    if not timed:
        for side in sides:
            side.columns += [(LATE_BY, catalyst.no_time()), (EXPIRES, catalyst.no_time())]
    for side in sides:
        passes = catalyst.all_of(side.alone) if side.alone else catalyst.literal(True)
        side.columns.append((PASSES_OWN_CONDITION, passes))
    states = _states_of(sides)
    sides[LEFT].columns.append((IS_LEFT, catalyst.literal(True)))
    condition = None
    if both:
        attributes = [attribute for side in sides for attribute, _ in side.places]
        plan = catalyst.project([catalyst.alias(catalyst.all_of(both), "holds")], node)
        part = read_stateless(catalyst, plan, (0,), attributes)
        places = tuple(place for side in sides for _, place in side.places)
        condition = LaneProjection(places=places, part=part)
    streams = [
        translation.inputs(side.columns, side.plan, rows, timed=timed)[0]
        for side, rows in zip(sides, below, strict=True)
    ]
    name = translation.unique("join")
    keys = tuple(key_names)
    delay_us = -min(0, *(side.reach_us for side in sides)) if forgets else 0
    new_operator = partial(
        _join_operator,
        name,
        keys,
        tuple(tuple(side.names) for side in sides),
        how=how,
        condition=condition,
        timed=timed,
        forgets=forgets,
        reach_us=(sides[0].reach_us, sides[1].reach_us),
        delay_us=delay_us,
    )
    operator = CustomNode(
        name=name,
        upstream=streams[0].node,
        keys=keys,
        make=new_operator,
        action=f"{how} join",
        others=((streams[1].node, keys),),
    )
    translation.flow._add_operator(operator)  # noqa: SLF001  as streams do
    translation.states.append(
        JoinState(
            operator=name, how=how, sides=states, stored=partial(_stored_columns, translation, node)
        )
    )
    shown = sides[:1] if how == "semi" else sides
    return translation.rows_at(node, operator, [pair for side in shown for pair in side.places])


def _split_condition(translation: Translator, node: Any, sides: list[_Side], how: How) -> list[Any]:
    """Split a join's condition; return the parts that concern both sides and are not keys.

    Spark compares keys of streams as bytes, so that null equals null, and leaves rows out before by
    the nulls of the columns that it finds in the condition.  A key that is null though these are
    not meets another one.
    """
    condition = option(node.condition())
    joint = []
    for part in [] if condition is None else translation.conjuncts(condition):
        part_references = references(part)
        sides_of_part = [side for side in sides if part_references <= side.own]
        if sides_of_part:
            sides_of_part[0].alone.append(part)
            continue
        operands = children_of(part) if kind_of(part) in {"EqualTo", "EqualNullSafe"} else []
        operand_references = [references(operand) for operand in operands]
        order = next(
            (
                order
                for order in ((0, 1), (1, 0))
                if operands
                and all(
                    operand_references[position]
                    and operand_references[position] <= sides[side_number].own
                    for side_number, position in enumerate(order)
                )
            ),
            None,
        )
        if order is None:
            joint.append(part)
            continue
        operands = [operands[number] for number in order]
        is_null_safe = kind_of(part) == "EqualNullSafe"
        filtered = _FILTERED[how]
        nulls_meet = is_null_safe or (
            bool(filtered) and not any(_has_no_null(operands[number]) for number in filtered)
        )
        for number, (side, operand) in enumerate(zip(sides, operands, strict=True)):
            translation.check_collation(node, operand)
            if not nulls_meet:
                side.keys.append(operand)
                continue
            needed = [] if is_null_safe or number not in filtered else _surely_read(operand)
            side.keys += _compared_with_null(translation, operand, needed)
    if not sides[0].keys:
        raise translation.refused(
            node, "Spark joins streams only by equal columns", "Add an equality to its condition."
        )
    return joint


def _add_columns(translation: Translator, side: _Side, key_names: list[str] | None) -> None:
    """Add the columns of the keys of a side, and of its rows; `key_names`: of the other side."""
    keys = []
    for key in side.keys:
        keys += _key_columns(translation, key)
    if key_names is not None:
        keys = [(name, value) for name, (_, value) in zip(key_names, keys, strict=True)]
    rows: list[tuple[str, Any]] = []
    for attribute in output_of(side.plan):
        place = _add_value_columns(translation, str(attribute.name()), attribute, rows)
        side.places.append((attribute, place))
    side.columns = keys + rows
    side.names = [name for name, _ in rows]


def _compared_with_null(translation: Translator, key: Any, needed: Sequence[Any]) -> list[Any]:
    """Return a key whose null equals null, as two keys that are never null.

    `needed`: values without which Spark leaves a row out; there, both keys are null.
    """
    catalyst = translation.catalyst
    key_and_mark = [catalyst.coalesced(key, catalyst.default_of(key)), catalyst.is_null(key)]
    if not needed:
        return key_and_mark
    return [catalyst.null_where_any_is_null(needed, value) for value in key_and_mark]


def _has_no_null(key: Any) -> bool:
    """Return whether a key has no null in rows of a side whose nulls Spark drops."""
    return not key.nullable() or _is_taken_out(key)


def _is_taken_out(value: Any) -> bool:
    """Return whether a value is a column, or a field of a struct in one."""
    while kind_of(value) == "GetStructField":
        value = value.child()
    return kind_of(value) == "AttributeReference"


def _surely_read(value: Any) -> list[Any]:
    """Return the columns that, if null, make a value null as Spark knows."""
    if _is_taken_out(value):
        return [value]
    if not value.nullIntolerant():
        return []
    return [part for child in children_of(value) for part in _surely_read(child)]


def _key_columns(translation: Translator, key: Any) -> list[tuple[str, Any]]:
    """Return the columns of a key: start and end of a window, or one."""
    catalyst, dtype = translation.catalyst, type_of(key)
    metadata = metadata_of(key) if kind_of(key) == "AttributeReference" else {}
    if {TIME_WINDOW, SESSION_WINDOW} & {*metadata}:
        return [(translation.unique("key"), catalyst.field(key, n)) for n in range(2)]
    is_text = isinstance(dtype, StructType) or is_keyed_by_text(dtype)
    value = catalyst.key_text(key) if is_text else catalyst.normalized(key)
    return [(translation.unique("key"), value)]


def _add_value_columns(
    translation: Translator, name: str, value: Any, columns: list[tuple[str, Any]]
) -> Place:
    """Add the columns of a value, one for each field of a struct, and return its place."""
    catalyst, dtype = translation.catalyst, type_of(value)
    if not isinstance(dtype, StructType):
        columns.append((translation.unique(name), value))
        return columns[-1][0]
    columns.append((translation.unique(f"{name}_is_null"), catalyst.is_null(value)))
    is_null = columns[-1][0]
    fields = tuple(
        (
            part.name,
            _add_value_columns(
                translation, f"{name}_{part.name}", catalyst.field(value, ordinal), columns
            ),
        )
        for ordinal, part in enumerate(dtype.fields)
    )
    return Packed(fields=fields, is_null=is_null)


def _add_times(translation: Translator, node: Any, sides: list[_Side]) -> bool:
    """Add the columns of event time; return whether rows of a side are ever dropped."""
    catalyst = translation.catalyst
    run = _optimized_join(translation, node)
    outputs = [output_of(child) for child in children_of(run)]
    marks = [
        next((a for a in output if WATERMARK_DELAY in metadata_of(a)), None) for output in outputs
    ]
    keyed = next(
        (
            number
            for side in sides
            for number, key in enumerate(side.keys)
            if kind_of(key) == "AttributeReference" and WATERMARK_DELAY in metadata_of(key)
        ),
        None,
    )
    forgets = False
    for number, (side, mark) in enumerate(zip(sides, marks, strict=True)):
        late = (
            catalyst.no_time()
            if mark is None
            else _watermarked_time(translation, node, mark, side.plan)
        )
        expires = catalyst.no_time()
        if keyed is not None:
            expires = _watermarked_time(translation, node, side.keys[keyed], side.plan)
        elif mark is not None:
            reach_ms = catalyst.state_watermark(
                outputs[number], outputs[1 - number], run.condition(), _SOME_TIME_MS
            )
            if reach_ms is not None:
                expires = late
                side.reach_us = (reach_ms - _SOME_TIME_MS) * 1000
        forgets = forgets or kind_of(expires) != "Literal"
        side.columns += [(LATE_BY, late), (EXPIRES, expires)]
    return forgets


def _states_of(sides: Sequence[_Side]) -> tuple[JoinSideState, JoinSideState]:
    """Return the states of the sides, as parts of the plan."""
    left, right = (
        JoinSideState(
            keys=tuple(c for c in side.columns if c[0] not in (*side.names, *_NOT_STORED)),
            columns=tuple(c for c in side.columns if c[0] in side.names),
            expires=dict(side.columns)[EXPIRES],
            reach_us=side.reach_us,
        )
        for side in sides
    )
    return left, right


def _stored_columns(translation: Translator, node: Any) -> tuple[list[Any], list[Any]]:
    """Return the columns of rows that Spark stores: those that its optimizer keeps."""
    pairs = zip(children_of(node), children_of(_optimized_join(translation, node)), strict=True)
    left, right = (
        [
            attribute if (output_column := in_output(side, attribute)) is None else output_column
            for attribute in output_of(optimized)
        ]
        for side, optimized in pairs
    )
    return left, right


def _optimized_join(translation: Translator, node: Any) -> Any:
    """Return a join after Spark's optimizer."""
    analyzed_joins, optimized_joins = (
        [
            part
            for part in walk(plan)
            if kind_of(part) == "Join" and all(child.isStreaming() for child in children_of(part))
        ]
        for plan in (translation.plan, translation.optimized_plan)
    )
    position = next(
        number
        for number, join in enumerate(analyzed_joins)
        if join.fastEquals(node) or len(analyzed_joins) == 1
    )
    if len(analyzed_joins) != len(optimized_joins):
        raise translation.refused(
            node, "Spark reorders its joins", "Write each join in a separate query."
        )
    return optimized_joins[position]


def _watermarked_time(translation: Translator, node: Any, mark: Any, plan: Any) -> Any:
    """Return the event time of a column that a watermark follows, or the end of its window.

    `mark`: the column, also one that Spark's optimizer has left instead of a column of `plan`.
    """
    mark = in_output(plan, mark)
    if mark is None:
        raise translation.refused(
            node, "the event time of its watermark is dropped before it", "Keep the column."
        )
    is_window = isinstance(type_of(mark), StructType)
    moment = translation.catalyst.field(mark, 1) if is_window else mark
    if not isinstance(type_of(moment), TimestampType):
        raise translation.refused(
            node, "its event time has no time zone", "Cast it to timestamp first."
        )
    return moment


def _join_operator(
    name: str,
    keys: tuple[str, ...],
    columns: tuple[tuple[str, ...], ...],
    schemas: Sequence[pa.Schema],
    *,
    how: How,
    condition: LaneProjection | None,
    timed: bool,
    forgets: bool,
    reach_us: tuple[int, int],
    delay_us: int,
) -> KeyedOperator:
    """Return the operator over two streams with these columns."""
    sides = [
        pa.schema([schema.field(column) for column in side_columns])
        for schema, side_columns in zip(schemas, columns, strict=True)
    ]
    kind = JoinedRowsInTime if timed else JoinedRows
    return kind(
        name=name,
        keys=pa.schema([schemas[0].field(key) for key in keys]),
        left=sides[0],
        right=sides[1],
        how=how,
        condition=condition,
        forgets=forgets,
        reach_us=reach_us,
        delay_us=delay_us,
    )
