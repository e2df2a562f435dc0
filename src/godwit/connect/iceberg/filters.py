"""Filters on rows: alternatives of predicates, as for `pyarrow.parquet.read_table`.

Arrow applies them to rows; the library finds the files that cannot have such rows, by partition
and metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

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

from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyiceberg.expressions import BooleanExpression

Predicate: TypeAlias = tuple[str, str, Any]
Filters: TypeAlias = "Sequence[Predicate] | Sequence[Sequence[Predicate]]"

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


def checked_filters(filters: object) -> tuple[tuple[Predicate, ...], ...]:
    """Return filters as alternatives of predicates; raise `SourceError` for other values."""
    if filters is None:
        return ()
    groups = filters
    if isinstance(groups, (list, tuple)) and groups and isinstance(groups[0], tuple):
        groups = [groups]
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(group, (list, tuple))
        and group
        and all(
            isinstance(part, (list, tuple)) and len(part) == 3 and part[1] in _EXPRESSIONS
            for part in group
        )
        for group in groups
    ):
        raise SourceError(
            f"The filters {filters!r} of an Iceberg source are not understood.",
            remedy='Give [("day", ">=", "2024-05-01"), ...], all of which hold; the operators are '
            f"{', '.join(_EXPRESSIONS)}. A list of such lists: one of them holds.",
        )
    return tuple(
        tuple((str(name), operator, value) for name, operator, value in group) for group in groups
    )


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
