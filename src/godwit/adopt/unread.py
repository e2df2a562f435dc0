"""Removal of unread parts of a query, as by Spark's optimizer, so that they cannot fail.

Spark evaluates no column that nothing above it reads, no branch whose condition is a constant that
is false, and no argument of an aggregate for rows whose group a filter leaves out.  Computed here,
such a part could fail, as by a cast of a wrong text, and would have state.  Columns are left out,
and filters moved, by Spark's own rules, each of which runs alone: others change what a node is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from godwit.adopt.plan import children_of, id_of, kind_of, output_of, to_list, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adopt.plan import Catalyst

_PAIRS: Final = frozenset({"GlobalLimit", "UpdateEventTimeWatermarkColumn"})
"""Nodes that form a unit with the node below: a ``LocalLimit``, a ``TransformWithState``."""
_NULL_TESTS: Final = frozenset({"IsNull", "IsNotNull"})


def without_unread(catalyst: Catalyst, plan: Any, is_stateful: Callable[[Any], bool]) -> Any:
    """Return a plan whose stateful nodes compute only columns that are read.

    The parts below the lowest of them stay as they are, since the optimizer runs over these later.
    """

    def change(node: Any) -> Any:
        """Remove dead branches from a projection, with the columns that only they read."""
        if kind_of(node) != "Project" or not catalyst.has_choices(node):
            return None
        never_null = _never_null(node.child())
        listed = [
            without_dead_branches(catalyst, expression, never_null)
            for expression in to_list(node.projectList())
        ]
        return catalyst.project(listed, catalyst.rewrite(node.child(), change))

    stateful = {id(node) for node in walk(plan) if is_stateful(node)}
    parts: list[Any] = []  # without state, from the left

    def upper(node: Any) -> Any:
        """Replace the parts without state by leaves with their columns."""
        if any(id(part) in stateful for part in walk(node)):
            return catalyst.with_children(node, [upper(child) for child in children_of(node)])
        parts.append(node)
        return catalyst.project(output_of(node), catalyst.one_row())

    def whole(node: Any) -> Any:
        """Restore a part, with the columns that are read."""
        if kind_of(node) != "Project" or kind_of(node.child()) != "OneRowRelation":
            return None
        part, listed = parts.pop(0), to_list(node.projectList())
        return part if len(listed) == len(output_of(part)) else catalyst.project(listed, part)

    if not stateful:
        return plan
    plan = catalyst.rewrite(upper(plan), change)
    plan = catalyst.rewrite(catalyst.without_unread_columns(plan), whole)
    plan = catalyst.rewrite(plan, lambda node: _as_adjacent_pair(catalyst, node))
    return catalyst.with_filters_below_aggregates(plan)


def _as_adjacent_pair(catalyst: Catalyst, node: Any) -> Any:
    """Return two adjacent nodes again, if a projection was inserted between them."""
    if kind_of(node) not in _PAIRS or kind_of(node.child()) != "Project":
        return None
    between, below = [], node.child()
    while kind_of(below) == "Project":
        between.append(below)
        below = below.child()
    if kind_of(node) == "GlobalLimit":  # columns are left out below the local limit, too
        if kind_of(below) != "LocalLimit":
            return None
        narrow = below.child()
        for projection in reversed(between):
            narrow = catalyst.with_children(projection, [narrow])
        return catalyst.with_children(node, [catalyst.with_children(below, [narrow])])
    read = {id_of(attribute) for attribute in output_of(node)}
    pair = catalyst.with_children(node, [below])
    rest = catalyst.rewrite(pair, lambda part: _as_adjacent_pair(catalyst, part))
    return catalyst.project([a for a in output_of(rest) if id_of(a) in read], rest)


def _never_null(node: Any) -> frozenset[int]:
    """Return the ids of a node's columns that are never null.

    A stream's own columns may be null, so their attributes further up say so of all columns.
    """
    while kind_of(node) in {"SubqueryAlias", "Filter"}:
        node = node.child()
    if kind_of(node) not in {"Aggregate", "Project"}:
        return frozenset()
    aggregated = kind_of(node) == "Aggregate"
    named = to_list(node.aggregateExpressions() if aggregated else node.projectList())
    return frozenset(
        id_of(each) for each in named if kind_of(each) == "Alias" and not each.child().nullable()
    )


def without_dead_branches(
    catalyst: Catalyst, expression: Any, never_null: frozenset[int] = frozenset()
) -> Any:
    """Return an expression without the branches of ``CASE`` and ``if`` that are never evaluated.

    Nor is the argument of a null test evaluated if it cannot be null. `never_null`: ids of such
    columns.
    """
    if not catalyst.has_choices(expression):
        return expression

    def constant(part: Any) -> Any:
        """Replace a null test of an expression that is never null."""
        if kind_of(part) not in _NULL_TESTS:
            return None
        tested = part.child()
        is_column = kind_of(tested) == "AttributeReference"
        if tested.nullable() and not (is_column and id_of(tested) in never_null):
            return None
        return catalyst.literal(kind_of(part) == "IsNotNull")

    def change(part: Any) -> Any:
        """Remove branches with constant conditions from a choice."""
        if kind_of(part) not in {"CaseWhen", "If"}:
            return None
        *pairs, last = children_of(part)
        if len(pairs) % 2:
            pairs, last = [*pairs, last], catalyst.null(part.dataType())
        known = [_constant_truth(catalyst, condition) for condition in pairs[::2]]
        if set(known) == {None}:
            return None
        for condition, value, truth in reversed(
            [*zip(pairs[::2], pairs[1::2], known, strict=True)]
        ):
            if truth is None:
                last = catalyst.choice(condition, value, last)
            elif truth:
                last = value
        return catalyst.rewrite(last, change)

    return catalyst.rewrite(catalyst.rewrite(expression, constant), change)


def _constant_truth(catalyst: Catalyst, condition: Any) -> bool | None:
    """Return whether a condition is true; ``None`` if that depends on rows or on the time."""
    if not condition.foldable() or catalyst.reads_clock(condition):
        return None
    try:
        return condition.eval(None) is True
    except Py4JJavaError:  # it fails, or is evaluated in another form
        return None
