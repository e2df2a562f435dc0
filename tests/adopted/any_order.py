"""The rule to compare aggregates by, whose result depends on an order that Spark leaves open.

Above a stateful operator, rows come in the order of the state store (a hash map's, or that of the
keys' bytes) and of the shuffle's partitions, so ``first`` and ``collect_list`` have other results
if one of these is changed (``findings/spark_order_after_stateful_operator.sh``).  What Spark
defines is compared: the groups, all other columns, and of which values a result is made.

A case names the query that collects every value (`tests.support.native.Case.every_value`).  Its
last column is compared as a multiset, and a result of the query itself has to agree with it.
Below a stateful operator an order is defined, and nothing is compared so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.alike import alike

if TYPE_CHECKING:
    from collections.abc import Mapping

    Batches = Mapping[int, list[tuple[Any, ...]]]


def without_order(batches: Batches) -> dict[int, list[tuple[Any, ...]]]:
    """Return batches with the list in the last column of each row sorted."""
    return {
        number: [(*row[:-1], sorted(row[-1], key=repr)) for row in rows]
        for number, rows in batches.items()
    }


def without_last(batches: Batches) -> dict[int, list[tuple[Any, ...]]]:
    """Return batches without the last column, each sorted as `plain_rows` does."""
    return {
        number: sorted((row[:-1] for row in rows), key=repr) for number, rows in batches.items()
    }


def assert_possible(results: Batches, every: Batches) -> None:
    """Assert that the last column may come of the values that its group has, in some order.

    `results`: of the query, ending in ``first`` or ``collect_list`` of a value. `every`: the same
    with all values as a list of structs, whose nulls ``collect_list`` leaves out.
    """
    for number, rows in results.items():
        left = list(every.get(number, []))
        for row in rows:
            group = next((other for other in left if _is_possible(row, other)), None)
            assert group is not None, f"batch {number}: {row!r} is made of no group of {left!r}"
            left.remove(group)


def _is_possible(row: tuple[Any, ...], group: tuple[Any, ...]) -> bool:
    """Return whether a row may be the result for a group and its values.

    A list of all values has another type than one of them, and types are compared before.
    """
    if not alike(row[:-1], group[:-1]):
        return False
    result, values = row[-1], [value for (value,) in group[-1]]
    known = sorted((value for value in values if value is not None), key=repr)
    collected = isinstance(result, list) and alike(sorted(result, key=repr), known)
    return collected or any(alike(result, value) for value in values)
