"""Filters on the rows of a source: alternatives of predicates.

A filter is a list of (column, operator, value), all of which hold, or a list of such lists, one of
which holds, as for `pyarrow.parquet.read_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

Predicate: TypeAlias = tuple[str, str, Any]
Filters: TypeAlias = "Sequence[Predicate] | Sequence[Sequence[Predicate]]"

_OPERATORS: Final = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in")


def checked_filters(filters: object, where: str) -> tuple[tuple[Predicate, ...], ...]:
    """Return filters as alternatives of predicates; raise `SourceError` for other values.

    `where`: the source, for errors.

    Examples
    --------
    >>> checked_filters([("day", ">=", "2024-05-01")], "The source")
    ((('day', '>=', '2024-05-01'),),)
    """
    if filters is None:
        return ()
    groups = filters
    if isinstance(groups, (list, tuple)) and groups and isinstance(groups[0], tuple):
        groups = [groups]
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(group, (list, tuple))
        and group
        and all(
            isinstance(part, (list, tuple)) and len(part) == 3 and part[1] in _OPERATORS
            for part in group
        )
        for group in groups
    ):
        raise SourceError(
            f"{where} has filters={filters!r}, which are not valid.",
            remedy='Give [("day", ">=", "2024-05-01"), ...], which are combined by and; the '
            f"operators are {', '.join(_OPERATORS)}. A list of such lists is combined by or.",
        )
    return tuple(
        tuple((str(name), operator, value) for name, operator, value in group) for group in groups
    )
