"""From what the user said of a join to an operator that knows its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import check_column_names, listing
from godwit.operators.joins.interval import IntervalJoin
from godwit.operators.joins.newest import NewestJoin
from godwit.operators.joins.sides import JoinOperator, JoinSide
from godwit.plan.nodes import branches_of, sources_of
from godwit.plan.origins import digest_of_way
from godwit.plan.window_binding import event_time_of, insist_on_kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.plan.nodes import JoinNode, StreamNode

__all__ = ["join_operator"]


def join_operator(
    node: JoinNode,
    left: tuple[pa.Schema, str],
    right: tuple[pa.Schema, str],
    inputs: tuple[int, int],
) -> JoinOperator:
    """Make the operator of a node.

    Parameters
    ----------
    left, right
        Columns of either stream, its key columns checked, and what to call it.
    inputs
        How many inputs each has; those of the left are numbered first.

    Raises
    ------
    InvalidFlowError
        If the keys have other types, a name would come twice, or event time is not there.
    """
    keys = pa.schema([left[0].field(key) for key in node.keys])
    _insist_on_same_keys(node, keys, left[1], right)
    of_left = [field for field in left[0] if field.name not in node.keys]
    of_right = [field for field in right[0] if field.name not in node.right_keys]
    insist_on_kept(node.name, [*of_left, *of_right])
    named = _named(node, [*keys, *of_left], of_right, left[1], right[1])
    does = "joins by event time"
    sides = [
        JoinSide(
            keys=names,
            columns=tuple(field.name for field in fields),
            named=columns,
            time=event_time_of(stream, schema, origin, operator=node.name, does=does),
            inputs=frozenset(numbers),
            origin=_origin(stream),
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
    if node.between_us is None:
        return NewestJoin(
            name=node.name,
            keys=keys,
            left=sides[0],
            right=sides[1],
            how=node.how,
            within_us=node.within_us,
        )
    earliest_us, latest_us = node.between_us
    return IntervalJoin(
        name=node.name,
        keys=keys,
        left=sides[0],
        right=sides[1],
        how=node.how,
        earliest_us=earliest_us,
        latest_us=latest_us,
    )


def _insist_on_same_keys(
    node: JoinNode, keys: pa.Schema, origin: str, right: tuple[pa.Schema, str]
) -> None:
    """Refuse keys that could not be equal."""
    others = [right[0].field(key) for key in node.right_keys]
    if len(keys) != len(others):
        raise InvalidFlowError(
            f"Operator {node.name!r} joins by {listing(node.keys)} of {origin} and by "
            f"{listing(node.right_keys)} of {right[1]}.",
            remedy="Key both streams by as many columns: the first of the one equals the first of "
            "the other, and so on.",
            operator=node.name,
        )
    for one, other in zip(keys, others, strict=True):
        if one.type != other.type:
            raise InvalidFlowError(
                f"Operator {node.name!r} joins column {one.name!r} of {origin}, whose type is "
                f"{one.type}, with {other.name!r} of {right[1]}, whose type is {other.type}.",
                remedy=f"Cast one of them in a map before key_by, such as {other.name!r} to "
                f"{one.type}.",
                operator=node.name,
                column=other.name,
            )


def _named(
    node: JoinNode,
    taken: Sequence[pa.Field],
    columns: Sequence[pa.Field],
    origin: str,
    other: str,
) -> pa.Schema:
    """Name the columns of the right; those that the left has too get the suffix."""
    names = {field.name.lower() for field in taken}
    both = [field.name for field in columns if field.name.lower() in names]
    if both and node.suffix is None:
        raise InvalidFlowError(
            f"Operator {node.name!r} joins {origin} with {other}, which both have {listing(both)}.",
            remedy='Say what is put behind those of the right, as in suffix="_right", or rename '
            "or drop them in a map.",
            operator=node.name,
            columns=both,
        )
    return pa.schema(
        [f.with_name(f"{f.name}{node.suffix}") if f.name in both else f for f in columns]
    )


def _origin(stream: StreamNode) -> dict[str, Any]:
    """Say where the rows of a stream come from; see `JoinSide.origin`."""
    branches = branches_of(stream)
    return {
        "sources": sorted(source.name for source in sources_of(stream)),
        "way": digest_of_way(
            (branch.feed.name, [step.function for step in branch.maps]) for branch in branches
        ),
    }
