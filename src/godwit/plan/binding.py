"""Binding: operators of nodes whose columns have types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.columns.signed import CHANGE
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import check_column_names, listing
from godwit.operators.batch import BatchProcess
from godwit.operators.compute import ComputeOperator
from godwit.operators.hot_keys.parts import MergedProcess, MergedStates
from godwit.operators.joins.changes import ChangesJoin, TableSide
from godwit.operators.joins.interval import IntervalJoin
from godwit.operators.joins.newest import NewestJoin
from godwit.operators.joins.sides import JoinOperator, JoinSide
from godwit.operators.process import ProcessOperator
from godwit.operators.states.declared import ttl_us_of
from godwit.operators.states.operator import ProcessOfStates
from godwit.operators.windows.compute import WindowedCompute
from godwit.operators.windows.process import SessionProcess, WindowedProcess
from godwit.operators.windows.sessions import SessionCompute
from godwit.operators.windows.spec import Hopping, Session, grid_of
from godwit.plan.event_times import event_time_of
from godwit.plan.lineage import digest_of_branches
from godwit.plan.nodes import ComputeNode, branches_of, sources_of
from godwit.store.columns import can_be_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from godwit.operators.operator import KeyedOperator
    from godwit.operators.windows.operator import EventTimeOperator
    from godwit.plan.nodes import JoinNode, ProcessNode, StreamNode, WindowedNode
    from godwit.time.event_time import RowTime


def keyed_operator(
    node: ComputeNode | ProcessNode, keys: pa.Schema, inputs: pa.Schema, zone: str
) -> KeyedOperator:
    """Return the operator of a node that aggregates, or calls a function, per key.

    `inputs`: the columns that the operator reads. `zone`: the session's time zone.
    """
    if isinstance(node, ComputeNode) and node.windows is not None:
        return node.windows.operator(
            name=node.name, keys=keys, inputs=inputs, aggregates=dict(node.aggregates)
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
                remedy=f"Drop {field.name!r} in an earlier map, or make numbers or text of it.",
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
            remedy="A window's own state sees rows in order of arrival, and panes in order of "
            "time: leave share= out.",
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
            remedy="Key both streams by as many columns: the first of the one equals the first of "
            "the other, and so on.",
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
            remedy='Give a suffix for the names of the right, as in suffix="_right", or rename '
            "or drop them in a map.",
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
