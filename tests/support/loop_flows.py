"""Flows with loops, and what comes out of them, computed without a stream."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EDGES = "node long, origin long, target long"
"""An edge: `origin` is null. A step of the closure: `origin` reaches `node`, and `target` is null.
"""


def reach(key: Any, rows: Any, state: Any) -> Iterator[tuple[int, int, None]]:
    """Remember what a node reaches by one edge and who reaches it; pass on what is new."""
    (node,) = key
    targets, origins = state.setdefault("targets", []), state.setdefault("origins", [node])
    for row in rows:
        if row.origin is None:
            if row.target not in targets:
                targets.append(row.target)
                yield from ((row.target, origin, None) for origin in origins)
        elif row.origin not in origins:
            origins.append(row.origin)
            yield from ((target, row.origin, None) for target in targets)


def closure_flow(edges: Any, sink: Any, **options: Any) -> gw.Flow:
    """Build the transitive closure of a graph that grows: pairs (origin, node), some of them often.

    How often depends on the order in which rows meet; which pairs there are does not.
    """
    flow = gw.Flow("closure", num_key_groups=8)
    loop = flow.feedback("steps", EDGES, **options)
    steps = (
        flow.source("edges", edges)
        .union(loop)
        .key_by("node")
        .process(reach, name="reach", state=dict, output=EDGES)
    )
    steps.feed_back_to(loop)
    flow.sink("pairs", steps, sink)
    return flow


def closure_of(edges: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the pairs of which the first reaches the second, by a search from every node."""
    targets = defaultdict(set)
    for node, target in edges:
        targets[node].add(target)
    pairs = set()
    for origin in list(targets):
        pending = [origin]
        while pending:
            for node in targets.get(pending.pop(), ()):
                if (origin, node) not in pairs:
                    pairs.add((origin, node))
                    pending.append(node)
    return pairs


ROUNDS = "key string, left long"


def count_down(key: Any, rows: Any, state: Any) -> Iterator[tuple[str, int]]:
    """Emit every row with one round less, and count the rows."""
    for row in rows:
        state["rows"] = state.get("rows", 0) + 1
        state["sum"] = state.get("sum", 0) + row.left
        if row.left:
            yield f"{key[0][0]}{row.left % 5}", row.left - 1


def countdown_flow(source: Any, sink: Any, **options: Any) -> gw.Flow:
    """Build a flow in which a row with ``left`` rounds goes round so often, by other keys."""
    flow = gw.Flow("countdown", num_key_groups=8)
    loop = flow.feedback("again", ROUNDS, **options)
    left = (
        flow.source("rows", source)
        .union(loop)
        .key_by("key")
        .process(count_down, name="down", state=dict, output=ROUNDS)
    )
    left.feed_back_to(loop)
    totals = left.key_by("key").compute(name="totals", n=gw.count(), left=gw.sum("left"))
    flow.sink("totals", totals, sink)
    return flow


def counted_down(rows: Iterable[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    """Return key → number and sum of the rows that were counted down at it."""
    seen: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for start, rounds in rows:
        key = start
        for left in range(rounds, -1, -1):
            seen[key] += 1
            sums[key] += left
            key = f"{key[0]}{left % 5}"
    return {key: (count, sums[key]) for key, count in seen.items()}


def counts_in(run: Any) -> dict[str, tuple[int, int]]:
    """Return the same as the state of a flow that was played has it."""
    rows = run.state("down").to_pylist()
    states = {row["key"]: json.loads(row["state"]) for row in rows}
    return {key: (state["rows"], state["sum"]) for key, state in states.items()}
