"""Aggregates per key: what ``compute`` keeps and returns.

`godwit.dataflow.aggregates.aggregate` says what an aggregate is; `builtin` has the constructors;
every other module is one family of them.
"""

from godwit.dataflow.aggregates.aggregate import Aggregate, Aggregator, BoundAggregate
from godwit.dataflow.aggregates.builtin import (
    approx_distinct,
    avg,
    collect_set,
    count,
    first,
    last,
    max,  # noqa: A004 - the names users know them by
    mean,
    min,  # noqa: A004
    stddev,
    sum,  # noqa: A004
    top_k,
    variance,
)

__all__ = [
    "Aggregate",
    "Aggregator",
    "BoundAggregate",
    "approx_distinct",
    "avg",
    "collect_set",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "stddev",
    "sum",
    "top_k",
    "variance",
]
