"""Expected results of every aggregate, in plain Python, from a key's values in arrival order."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction
from typing import Any

__all__ = [
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "count_rows",
    "extreme_by",
    "first",
    "first_valid",
    "last",
    "last_valid",
    "maximum",
    "mean",
    "mean_of_decimals",
    "minimum",
    "most_frequent",
    "percentile",
    "top_k",
    "top_k_by",
    "total",
    "variance",
]

Values = list[Any]


def _valid(values: Values) -> Values:
    return [value for value in values if value is not None]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _rank(value: Any) -> tuple[bool, Any]:
    """Sort key under which NaN is larger than anything."""
    return (True, 0.0) if _is_nan(value) else (False, value)


def count_rows(values: Values) -> int:
    return len(values)


def count(values: Values) -> int:
    return len(_valid(values))


def total(values: Values) -> Any:
    valid = _valid(values)
    if not valid:
        return None
    if isinstance(valid[0], float):
        special = [value for value in valid if not math.isfinite(value)]
        return sum(special) if special else math.fsum(valid)
    if isinstance(valid[0], decimal.Decimal):
        with decimal.localcontext(prec=60):
            return sum(valid, decimal.Decimal(0))
    return sum(valid)


def mean(values: Values) -> float | None:
    valid = [float(value) for value in _valid(values)]
    return total(valid) / len(valid) if valid else None


def mean_of_decimals(values: Values, scale: int) -> decimal.Decimal | None:
    valid = _valid(values)
    if not valid:
        return None
    exact = Fraction(total(valid)) / len(valid)
    with decimal.localcontext(prec=60):
        quotient = decimal.Decimal(exact.numerator) / decimal.Decimal(exact.denominator)
        return quotient.quantize(decimal.Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP)


def variance(values: Values, *, population: bool = False) -> float | None:
    valid = [float(value) for value in _valid(values)]
    divisor = len(valid) - (0 if population else 1)
    if not valid or divisor < 1:
        return None
    if not all(math.isfinite(value) for value in valid):
        return math.nan
    exact = [Fraction(value) for value in valid]
    centre = sum(exact) / len(exact)
    return float(sum((value - centre) ** 2 for value in exact) / divisor)


def minimum(values: Values) -> Any:
    return min(_valid(values), key=_rank, default=None)


def maximum(values: Values) -> Any:
    return max(_valid(values), key=_rank, default=None)


def first(values: Values) -> Any:
    return values[0]


def last(values: Values) -> Any:
    return values[-1]


def first_valid(values: Values) -> Any:
    return next(iter(_valid(values)), None)


def last_valid(values: Values) -> Any:
    return next(iter(_valid(values)[::-1]), None)


def collect_set(values: Values, limit: int) -> Values:
    found: Values = []
    for value in _valid(values):
        if not any(_same(value, other) for other in found):
            found.append(value)
    return found[:limit]


def collect_list(values: Values, limit: int) -> Values:
    return _valid(values)[:limit]


def count_distinct(values: Values) -> int:
    return len(collect_set(values, len(values)))


def percentile(values: Values, percentage: float) -> Any:
    """Smallest value with at least this share of all at or below it."""
    ordered = sorted(_valid(values), key=_rank)
    if not ordered:
        return None
    return float(ordered[max(math.ceil(percentage * len(ordered) - 1e-9) - 1, 0)])


def extreme_by(pairs: list[tuple[Any, Any]], *, largest: bool) -> Any:
    """First value of the pairs of a value and what decides that is larger, or smaller, than all."""
    best: list[tuple[Any, Any]] = []
    for pair in pairs:
        if pair[1] is None:
            continue
        ranks = [_rank(pair[1]), _rank(best[0][1])] if best else []
        if not best or (ranks[0] > ranks[1] if largest else ranks[0] < ranks[1]):
            best = [pair]
    return best[0][0] if best else None


def most_frequent(values: Values, k: int) -> list[dict[str, Any]]:
    """Distinct values with their numbers: the largest numbers first, then the smallest values."""
    found = [
        {"value": value, "count": sum(_same(value, other) for other in _valid(values))}
        for value in collect_set(values, len(values))
    ]
    return sorted(found, key=lambda of: (-of["count"], _rank(of["value"])))[:k]


def top_k(values: Values, k: int) -> Values:
    return sorted(_valid(values), key=_rank, reverse=True)[:k]


def top_k_by(values: list[tuple[Any, Any]], k: int) -> list[tuple[Any, Any]]:
    """Pairs of a value and what decides; Python's sort keeps ties in order, reversed or not."""
    counted = [pair for pair in values if pair[1] is not None]
    return sorted(counted, key=lambda pair: _rank(pair[1]), reverse=True)[:k]


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) or (_is_nan(left) and _is_nan(right))
