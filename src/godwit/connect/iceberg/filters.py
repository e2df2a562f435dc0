"""Filters on rows as the library's expressions, for pruning data files."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    Or,
)
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

    from godwit.connect.lakes.row_filters import Predicate

_COMPARABLE: Final[Sequence[tuple[type[IcebergType], type]]] = (
    (IntegerType, int),
    (LongType, int),
    (DoubleType, float),
    (StringType, str),
    (DateType, dt.date),
    (TimestampType, dt.datetime),
    (TimestamptzType, dt.datetime),
)
_EXPRESSIONS: Final[Mapping[str, Callable[[str, Any], BooleanExpression]]] = {
    "=": EqualTo,
    "==": EqualTo,
    "!=": NotEqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "in": In,
    "not in": NotIn,
}


def expression_of(
    groups: Sequence[Sequence[Predicate]], names: Mapping[str, str | None], schema: Schema
) -> BooleanExpression:
    """Convert filters to the library's expression, which holds for all rows that they accept.

    `names`: those of the columns in `schema`. A predicate is left out if the library compares its
    value in another way than Arrow does, as a decimal or a float of 32 bits.
    """
    alternatives: list[BooleanExpression] = []
    for group in groups:
        conjunction: BooleanExpression = AlwaysTrue()
        for name, operator, value in group:
            current = names[name]
            if current is not None and _is_comparable(schema.find_type(current), value):
                conjunction = And(
                    conjunction, _EXPRESSIONS[operator](current, _filter_literal(value))
                )
        alternatives.append(conjunction)
    disjunction, *others = alternatives
    for other in others:
        disjunction = Or(disjunction, other)
    return disjunction


def columns_cut_with_overflow(spec: PartitionSpec, schema: Schema) -> set[str]:
    """Return the columns whose partitions must not be used to skip files.

    The smallest integers, truncated to the multiple below, overflow: writers put them into a
    partition of large numbers, where the library does not look for them.
    """
    cut = [f.source_id for f in spec.fields if isinstance(f.transform, TruncateTransform)]
    names = [name for field_id in cut if (name := schema.find_column_name(field_id)) is not None]
    return {n for n in names if isinstance(schema.find_type(n), (IntegerType, LongType))}


def _is_comparable(dtype: IcebergType, value: Any) -> bool:
    """Return whether the library compares a value with a column as Arrow does."""
    if isinstance(value, (list, tuple, set, frozenset)):
        # Of values in a list, Arrow tells 0.0 from -0.0.
        zero = isinstance(dtype, DoubleType) and 0.0 in value
        return bool(value) and not zero and all(_is_comparable(dtype, item) for item in value)
    if isinstance(value, float) and math.isnan(value):
        return False
    return any(isinstance(dtype, kind) and type(value) is of_type for kind, of_type in _COMPARABLE)


def _filter_literal(value: Any) -> Any:
    """Convert a filter's value to the form that the library takes: times as text."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_filter_literal(item) for item in value]
    return value.isoformat() if isinstance(value, dt.date) else value
