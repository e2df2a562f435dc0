"""Queries of the arena as models: operators, the cost of a row, keys and state.

Nexmark's q1, q3, q5, q8 and q11, and Real Job 4 of paper 2 (§5.3).  Times of a row, selectivities
and sizes of state that are `measured` come from ``python lab/benchmarks/arena_costs.py``, which
runs the queries of ``lab/examples/nexmark.py`` in one process; rows are those of the source, so
that what a query sums up before its lanes counts as cheaper rows.  Those of Real Job 4 are chosen,
in proportion.  Numbers and frequencies of keys are chosen for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit_lab.simulator.flow import SimulatedComponent, UpstreamFeed
from godwit_lab.simulator.workload import Keys

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_GROUPS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator: what a row costs in it, what it keeps, and what it sends on."""

    name: str
    row_ms: float  # time of a lane for a row that comes in
    key_bytes: int  # state of a key
    # operator upstream → rows that it sends here for each row that it takes; none: the source
    feeds: Mapping[str, float] | None = None
    paired: float = 0.0  # share of these rows that go from a key group to one only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueryModel:
    """One query of the arena."""

    name: str
    purpose: str
    operators: tuple[Operator, ...]
    keys: int  # distinct
    zipf: float  # exponent of their frequencies
    measured: bool  # whether costs, selectivities and sizes come from a run

    def components(self) -> tuple[SimulatedComponent, ...]:
        """Return the operators as components of the simulator."""
        return tuple(
            SimulatedComponent(
                name=operator.name,
                key_groups=KEY_GROUPS,
                row_ms=operator.row_ms,
                key_bytes=operator.key_bytes,
                feeds=tuple(
                    UpstreamFeed(upstream=upstream, selectivity=rows, paired=operator.paired)
                    for upstream, rows in (operator.feeds or {}).items()
                ),
            )
            for operator in self.operators
        )

    def keys_of(self, *, zipf: float | None = None, shifts_s: tuple[float, ...] = ()) -> Keys:
        """Return the keys; `zipf` and `shifts_s` of a pattern go before those of the query."""
        return Keys(number=self.keys, zipf=self.zipf if zipf is None else zipf, shifts_s=shifts_s)

    @property
    def row_ms(self) -> float:
        """Lane time that a source row costs in all operators, on a core of speed 1."""
        rows: dict[str, float] = {}
        for operator in self.operators:
            feeds = operator.feeds or {}
            rows[operator.name] = sum(rows[up] * n for up, n in feeds.items()) if feeds else 1.0
        return sum(rows[operator.name] * operator.row_ms for operator in self.operators)


def _query(
    name: str,
    purpose: str,
    *operators: Operator,
    keys: int,
    zipf: float = 0.5,
    measured: bool = True,
) -> QueryModel:
    """Return a query of these operators."""
    return QueryModel(
        name=name, purpose=purpose, operators=operators, keys=keys, zipf=zipf, measured=measured
    )


QUERIES: Mapping[str, QueryModel] = {
    query.name: query
    for query in (
        _query(
            "q1",
            "currency conversion: a row, a result",
            Operator(name="passed", row_ms=0.0016, key_bytes=33),
            keys=10_000,
        ),
        _query(
            "q3",
            "local item suggestion: a join without an end",
            Operator(name="match", row_ms=0.0080, key_bytes=78),
            keys=20_000,
        ),
        _query(
            "q5",
            "hot items: overlapping windows, then one result a window",
            Operator(name="bids", row_ms=0.00014, key_bytes=190),
            Operator(name="hottest", row_ms=0.00061, key_bytes=290, feeds={"bids": 1.02}),
            keys=10_000,
            zipf=0.8,
        ),
        _query(
            "q8",
            "new users: a join of two streams within a window",
            Operator(name="joined", row_ms=0.00092, key_bytes=63),
            keys=20_000,
        ),
        _query(
            "q11",
            "user sessions: session windows of each bidder",
            Operator(name="sessions", row_ms=0.00049, key_bytes=155),
            keys=12_000,
        ),
        _query(
            "rj4",
            "Real Job 4 of paper 2: delays, routes joined with weather, couriers, stores",
            Operator(name="delays", row_ms=0.0016, key_bytes=200),
            Operator(name="routes", row_ms=0.0016, key_bytes=300, feeds={"delays": 1.0}),
            Operator(name="weather", row_ms=0.0012, key_bytes=500, feeds={"routes": 1.0}),
            Operator(
                name="couriers", row_ms=0.0012, key_bytes=200, feeds={"weather": 1.0}, paired=0.8
            ),
            Operator(name="stores", row_ms=0.0008, key_bytes=100, feeds={"couriers": 0.2}),
            keys=5_000,
            measured=False,
        ),
    )
}
