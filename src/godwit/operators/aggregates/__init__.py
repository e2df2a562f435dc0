"""Aggregates per key: what ``compute`` keeps and returns.

`godwit.operators.aggregates.aggregate` says what an aggregate is; `builtin` has the constructors;
every other module is one family of them.
"""

from godwit.operators.aggregates.aggregate import Aggregate, Aggregator, BoundAggregate
from godwit.operators.aggregates.builtin import (
    approx_distinct,
    approx_median,
    approx_percentile,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004 - the names users know them by
    max_by,
    mean,
    min,  # noqa: A004
    min_by,
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
    "approx_median",
    "approx_percentile",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "stddev",
    "sum",
    "top_k",
    "variance",
]
