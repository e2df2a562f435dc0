"""Filters on rows as the library's expressions, which find files that cannot have such rows."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyiceberg.expressions import BooleanExpression

    from godwit.sources.row_filters import Predicate

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
    groups: Sequence[Sequence[Predicate]], names: Mapping[str, str | None]
) -> BooleanExpression:
    """Return filters as the library's expression; `names`: those of the newest schema."""
    alternatives: list[BooleanExpression] = []
    for group in groups:
        both: BooleanExpression = AlwaysTrue()
        for name, operator, value in group:
            text = names[name] or name
            both = And(both, _EXPRESSIONS[operator](text, _literal(value)))
        alternatives.append(both)
    first, *others = alternatives
    for other in others:
        first = Or(first, other)
    return first


def _literal(value: Any) -> Any:
    """Return a value of a filter as the library takes it: times as text."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_literal(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else value
