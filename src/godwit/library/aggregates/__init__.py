"""Aggregates per key, by the names that users write: ``gw.sum`` and so on.

`godwit.operators.aggregate` says what an aggregate is; here are the constructors of the
built-in ones, and every other module is one family of them.

Nulls are treated as in Spark SQL: aggregates of a column skip them (``first`` and ``last`` only if
asked to), and an aggregate of nothing is null, except counts, which are 0.

Every one takes ``where``, a condition on the columns of a row: rows for which it is false or null
are left out, as by ``FILTER (WHERE ...)`` in SQL.  Instead of a column each takes an expression,
such as ``"price * size"`` (`godwit.library.aggregates.expressions`).

All raise `InvalidFlowError`: the call, if an option is not valid; `explain` and `start`, if a
column does not exist or has a type that the aggregate does not take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.library.aggregates.chosen import bind_extreme, bind_extreme_by, bind_position
from godwit.library.aggregates.collected import (
    bind_from_counts,
    bind_most_frequent,
    bind_row_collector,
    bind_top_k,
    bind_values,
)
from godwit.library.aggregates.conditions import restricted
from godwit.library.aggregates.distinct import bind_approx_distinct
from godwit.library.aggregates.moments import bind_moments
from godwit.library.aggregates.quantiles import bind_percentile
from godwit.library.aggregates.sums import bind_count, bind_mean, bind_sum
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import NoSuchCallError, type_name
from godwit.operators.aggregate import (
    Aggregate,
    Aggregator,
    BoundAggregate,
    column_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.library.aggregates.arithmetic import Overflow

__all__ = [
    "Aggregate",
    "Aggregator",
    "BoundAggregate",
    "approx_distinct",
    "approx_median",
    "approx_percentile",
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
    "most_frequent",
    "stddev",
    "sum",
    "top_k",
    "variance",
]

_NUMBERS = "integers (up to 64 bits, signed), floats and decimals"
_ORDERED = "numbers, booleans, dates, timestamps, durations, strings and binary"
_HASHED = "numbers, booleans, dates, timestamps, durations, strings, binary and decimals"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _BuiltIn:
    """A built-in aggregate of named columns."""

    name: str
    columns: tuple[str, ...]
    # Binds to a field per column, with the options; None for types that it cannot take.
    binder: Callable[..., BoundAggregate | None]
    takes: str  # those that it can
    options: Mapping[str, Any]
    repr_arguments: tuple[str, ...]  # ``repr`` of the other arguments

    def __post_init__(self) -> None:
        for column in self.columns:
            if not isinstance(column, str):
                raise InvalidFlowError(
                    f"{self.name} was given a value of type {type_name(column)} instead of a "
                    "column's name.",
                    remedy=(
                        f'Pass a column\'s name, as in gw.{self.name}("column"), or an '
                        f'expression, as in gw.{self.name}("price * size").'
                    ),
                    aggregate=self.name,
                )

    if not TYPE_CHECKING:  # type checkers refuse unknown names themselves

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise NoSuchCallError(
                f"The aggregate {self!r} has no attribute {name!r}.",
                remedy='Name the result, as in compute(total=gw.sum("v")), and compute with '
                "results in a map after it.",
                call=name,
            )

        def _compute(self, *_: object) -> Any:
            raise InvalidFlowError(
                f"The aggregate {self!r} was used in an expression.",
                remedy=(
                    'Give each aggregate a name, as in compute(total=gw.sum("v"), '
                    "n=gw.count()), and combine the results in a map after it; put expressions "
                    'over columns inside the aggregate, as in gw.sum("price * size").'
                ),
                aggregate=self.name,
            )

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _compute
        __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __neg__ = _compute
        __lt__ = __le__ = __gt__ = __ge__ = _compute

    def __repr__(self) -> str:
        return f"gw.{self.name}({', '.join([*map(repr, self.columns[:1]), *self.repr_arguments])})"

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Return the aggregate bound to its columns; refuse types that it cannot take."""
        arguments = ", ".join(repr(column) for column in self.columns)
        call = f"{self.name}({arguments})"
        fields = [pa.field(name, column_type(inputs, name, call)) for name in self.columns]
        bound = self.binder(*fields, **self.options)
        if bound is None:
            types = " and ".join(str(f.type) for f in fields)
            raise InvalidFlowError(
                f"{call} does not accept a column of type {types}.",
                remedy=f"{self.name} accepts {self.takes}; cast the column in a map before it.",
                aggregate=call,
                columns=list(self.columns),
            )
        return bound


def _built_in(
    name: str,
    columns: tuple[str, ...],
    binder: Callable[..., BoundAggregate | None],
    takes: str,
    where: str | None,
    /,
    *repr_arguments: str,
    **options: Any,
) -> Aggregate:
    """Return the built-in aggregate `name`, restricted to rows that meet `where` if it is given.

    `binder`: binds the aggregate to its columns, and returns ``None`` for types that it cannot
    take; `takes`: those that it can, for errors. `repr_arguments`: arguments as text, for the
    aggregate's repr. `options`: keyword arguments of `binder`.
    """
    aggregate = _BuiltIn(
        name=name,
        columns=columns,
        binder=binder,
        takes=takes,
        options=options,
        repr_arguments=repr_arguments,
    )
    return restricted(aggregate, where)


@user_call
def count(column: str | None = None, *, where: str | None = None) -> Aggregate:
    """Count rows, or the non-null values of a column, as an int64.

    Parameters
    ----------
    column
        Column of any type, or expression; ``None``: all rows are counted.
    where
        Only rows that meet this condition are counted, as by ``FILTER (WHERE ...)`` in SQL:
        comparisons of columns and constants, such as ``"arr_delay > 15"``, joined by ``and``,
        ``or`` and ``not``. Operands may be expressions, such as ``"price * size > 100"``.

    Raises
    ------
    InvalidFlowError
        If `where` cannot be parsed as a condition. If a column does not exist, when the flow is
        explained or started.

    Examples
    --------
    >>> results(rows=gw.count(), delays=gw.count("delay"), late=gw.count(where="delay > 10"))
    {'rows': 4, 'delays': 3, 'late': 2}
    """
    columns = () if column is None else (column,)
    return _built_in("count", columns, bind_count, "", where)


@user_call
def sum(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - the name users know it by
    """Sum a column: integers exactly in int64, decimals exactly, floats as doubles.

    Nulls are skipped; without any value the result is null. Decimals of precision p have a sum of
    precision ``min(38, p + 10)``, as in Spark. A sum that overflows its type fails the epoch, as in
    Spark's ANSI mode.

    Parameters
    ----------
    column
        Column of integers, floats or decimals, or expression such as ``"price * size"``.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(total=gw.sum("delay"))
    {'total': 29}
    """
    return _built_in("sum", (column,), bind_sum, _NUMBERS, where)


@user_call
def min(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - the name users know it by
    """Smallest value of a column; NaN is larger than any number, as in Spark.

    Nulls are skipped; without any value the result is null.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text or binary.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(best=gw.min("delay"))
    {'best': 5}
    """
    return _built_in("min", (column,), bind_extreme, _ORDERED, where, largest=False)


@user_call
def max(column: str, *, where: str | None = None) -> Aggregate:  # noqa: A001 - the name users know it by
    """Largest value of a column; NaN is larger than any number, as in Spark.

    Nulls are skipped; without any value the result is null.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text or binary.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(worst=gw.max("delay"))
    {'worst': 12}
    """
    return _built_in("max", (column,), bind_extreme, _ORDERED, where, largest=True)


@user_call
def mean(column: str, *, where: str | None = None) -> Aggregate:
    """Mean of a column: a double, or for decimals(p, s) a decimal(p + 4, s + 4), as in Spark.

    Nulls are skipped; without any value the result is null.

    Parameters
    ----------
    column
        Column of integers, floats or decimals, or expression such as ``"price * size"``.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(mean=gw.mean("delay", where="delay < 10"))
    {'mean': 5.0}
    """
    return _built_in("mean", (column,), bind_mean, _NUMBERS, where)


@user_call
def variance(column: str, *, population: bool = False, where: str | None = None) -> Aggregate:
    """Variance of a column, as a double: Spark's ``var_samp``, or ``var_pop``.

    Nulls are skipped. Numerically stable: deviations from the mean are summed, and merged by Chan's
    formula.

    Parameters
    ----------
    column
        Column of integers, floats or decimals, or expression such as ``"price * size"``.
    population
        ``False``: sample variance, null for fewer than two values. ``True``: population variance,
        null without any value.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> round(results(spread=gw.variance("delay"))["spread"], 1)
    16.3
    """
    return _variance_or_stddev("variance", column, where, population=population, root=False)


@user_call
def stddev(column: str, *, population: bool = False, where: str | None = None) -> Aggregate:
    """Compute the standard deviation of a column, as a double: the root of `variance`.

    Nulls are skipped.

    Parameters
    ----------
    column
        Column of integers, floats or decimals, or expression such as ``"price * size"``.
    population
        ``False``: of a sample (divided by n - 1), null for fewer than two values. ``True``: of the
        whole population, null without any value.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> round(results(spread=gw.stddev("delay", population=True))["spread"], 1)
    3.3
    """
    return _variance_or_stddev("stddev", column, where, population=population, root=True)


@user_call
def first(column: str, *, ignore_nulls: bool = False, where: str | None = None) -> Aggregate:
    """Value of a column in the row of the key that arrived first.

    The result is null if there are no rows.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text or binary.
    ignore_nulls
        ``False``: the result is null if the first row has null in the column. ``True``: it is the
        first value that is not null.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(first=gw.first("origin"))
    {'first': 'JFK'}
    """
    return _first_or_last("first", column, where, ignore_nulls=ignore_nulls)


@user_call
def last(column: str, *, ignore_nulls: bool = False, where: str | None = None) -> Aggregate:
    """Value of a column in the row of the key that arrived last.

    The result is null if there are no rows.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text or binary.
    ignore_nulls
        ``False``: the result is null if the last row has null in the column. ``True``: it is the
        last value that is not null.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(last=gw.last("delay"), known=gw.last("delay", ignore_nulls=True))
    {'last': None, 'known': 12}
    """
    return _first_or_last("last", column, where, ignore_nulls=ignore_nulls)


@user_call
def approx_distinct(column: str, *, error: float = 0.02, where: str | None = None) -> Aggregate:
    """Estimate the number of different values of a column (HyperLogLog), as an int64.

    Nulls are skipped.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text, binary or decimals.
    error
        Relative standard deviation of the estimate, 0.0041 to 0.26. The state of a key has 4 bytes
        per different value at first, and at most ``(1.04 / error) ** 2`` bytes, rounded up to a
        power of two: 4 KiB by default. Small numbers are almost exact.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(origins=gw.approx_distinct("origin"))
    {'origins': 3}
    """
    if not (isinstance(error, float | int) and 0.0041 <= error <= 0.26):
        raise InvalidFlowError(
            f"approx_distinct({column!r}) has error={error!r}.",
            remedy="Give a relative error between 0.0041 (64 KiB per key) and 0.26.",
            aggregate="approx_distinct",
        )
    precision = math.ceil(2 * math.log2(1.04 / error))
    repr_arguments = () if error == 0.02 else (f"error={error!r}",)
    return _built_in(
        "approx_distinct",
        (column,),
        bind_approx_distinct,
        _HASHED,
        where,
        *repr_arguments,
        precision=precision,
    )


@user_call
def top_k(column: str, k: int, *, by: str | None = None, where: str | None = None) -> Aggregate:
    """Collect the k rows with the largest values, largest first.

    The result is a list of values, or with `by` a list of structs of the two columns; empty if
    there are no rows. Of equal values, the one that arrived first comes first. Rows with null in
    the column to order by are left out; NaN is larger than any number.

    Parameters
    ----------
    column
        Column whose values are returned, of numbers, booleans, dates, timestamps, durations, text
        or binary.
    k
        Maximum number of rows, 1 to 10,000.
    by
        Column to order rows by; by default `column`.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(worst=gw.top_k("origin", 2, by="delay"))
    {'worst': [{'origin': 'LGA', 'delay': 12}, {'origin': 'JFK', 'delay': 12}]}
    """
    _check_size("top_k", column, "k", k)
    columns = (column,) if by is None or (isinstance(by, str) and by == column) else (column, by)
    repr_arguments = (repr(k),) if by is None else (repr(k), f"by={by!r}")
    return _built_in("top_k", columns, bind_top_k, _ORDERED, where, *repr_arguments, k=k)


@user_call
def collect_set(column: str, limit: int = 100, *, where: str | None = None) -> Aggregate:
    """Collect the different values of a column as a list, in order of first arrival.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text or binary; nulls are
        skipped.
    limit
        Maximum number of values, 1 to 10,000. The result is the first `limit` different values;
        further ones are ignored. It is complete if it has fewer than `limit`.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(delays=gw.collect_set("delay"))
    {'delays': [5, 12]}
    """
    return _collecting_aggregate("collect_set", column, limit, where)


@user_call
def collect_list(column: str, limit: int = 100, *, where: str | None = None) -> Aggregate:
    """Collect the values of a column as a list, in order of arrival.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text or binary; nulls are
        skipped.
    limit
        Maximum number of values, 1 to 10,000. The result is the first `limit` values; further ones
        are ignored.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(delays=gw.collect_list("delay"))
    {'delays': [5, 12, 12]}
    """
    return _collecting_aggregate("collect_list", column, limit, where)


@user_call
def count_distinct(column: str, *, where: str | None = None) -> Aggregate:
    """Count the different values of a column exactly, as an int64; nulls are skipped.

    The state of a key has all its different values, and is written whole in every epoch that has
    rows of the key. If there are many, prefer `approx_distinct`, whose state is at most a few KiB.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text or binary.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(origins=gw.count_distinct("origin"))
    {'origins': 3}
    """
    name = "count_distinct"
    return _built_in(name, (column,), bind_values, _ORDERED, where, name=name)


@user_call
def most_frequent(column: str, k: int = 1, *, where: str | None = None) -> Aggregate:
    """Collect the k values that most rows have, with the number of these rows, most frequent first.

    The result is a list of structs of ``value`` and ``count``; empty without any value. Of values
    with equal counts the smaller one comes first, so the result does not depend on the order of
    rows. Counts are exact: the state of a key has all its different values, and is written whole in
    every epoch that has rows of the key. Nulls are skipped.

    Parameters
    ----------
    column
        Column of numbers, booleans, dates, timestamps, durations, text or binary.
    k
        Maximum number of values, 1 to 10,000. It may be changed without losing state.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(usual=gw.most_frequent("delay", 2))
    {'usual': [{'value': 12, 'count': 2}, {'value': 5, 'count': 1}]}
    """
    _check_size("most_frequent", column, "k", k)
    repr_arguments = () if k == 1 else (repr(k),)
    name = "most_frequent"
    return _built_in(name, (column,), bind_most_frequent, _ORDERED, where, *repr_arguments, k=k)


@user_call
def max_by(column: str, by: str, *, where: str | None = None) -> Aggregate:
    """Value of `column` in the row with the largest value of the column `by`.

    Of equal values of `by`, the row that arrived first is taken. Rows with null in `by` are left
    out, and NaN is larger than any number. The result is null if that row has null in `column`, or
    if there are no rows.

    Parameters
    ----------
    column
        Column of the result, of numbers, booleans, dates, timestamps, durations, text or binary.
    by
        Column to compare, of the same types.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(where_worst=gw.max_by("origin", "delay"))
    {'where_worst': 'LGA'}
    """
    return _extreme_by("max_by", column, by, where, largest=True)


@user_call
def min_by(column: str, by: str, *, where: str | None = None) -> Aggregate:
    """Value of `column` in the row with the smallest value of the column `by`.

    Of equal values of `by`, the row that arrived first is taken. Rows with null in `by` are left
    out, and NaN is larger than any number. The result is null if that row has null in `column`, or
    if there are no rows.

    Parameters
    ----------
    column
        Column of the result, of numbers, booleans, dates, timestamps, durations, text or binary.
    by
        Column to compare, of the same types.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> results(where_best=gw.min_by("origin", "delay"))
    {'where_best': 'JFK'}
    """
    return _extreme_by("min_by", column, by, where, largest=False)


@user_call
def approx_percentile(
    column: str, percentage: float, *, error: float = 0.01, where: str | None = None
) -> Aggregate:
    """Estimate a percentile of a column of numbers (DDSketch), as a double.

    The result is null without any value.

    Parameters
    ----------
    column
        Column of integers, floats or decimals; nulls are skipped, and NaN is larger than any
        number.
    percentage
        Share of the values at or below the result, 0 to 1: 0.5 is the median, 0.99 the value that
        one in a hundred exceeds.
    error
        Maximum relative error, 0.001 to 0.25: the result differs from the exact percentile (the
        smallest value with at least `percentage` of all values at or below it) by at most this
        share of it.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> round(results(p90=gw.approx_percentile("delay", 0.9, error=0.001))["p90"], 1)
    12.0
    """
    repr_arguments = (repr(percentage), *(() if error == 0.01 else (f"error={error!r}",)))
    return _approximate_percentile(
        "approx_percentile", column, percentage, error, where, *repr_arguments
    )


@user_call
def approx_median(column: str, *, error: float = 0.01, where: str | None = None) -> Aggregate:
    """Estimate the median of a column of numbers, as a double: `approx_percentile` with 0.5.

    The result is null without any value.

    Parameters
    ----------
    column
        Column of integers, floats or decimals; nulls are skipped, and NaN is larger than any
        number.
    error
        Maximum relative error of the result, 0.001 to 0.25.
    where
        Condition such as ``"arr_delay > 15"``: only rows that meet it are used. See `count`.

    Examples
    --------
    >>> round(results(typical=gw.approx_median("delay", error=0.001))["typical"], 1)
    12.0
    """
    repr_arguments = () if error == 0.01 else (f"error={error!r}",)
    return _approximate_percentile("approx_median", column, 0.5, error, where, *repr_arguments)


def all_values(name: str, column: str) -> Aggregate:
    """Collect all values of a column, by `collect_list` or `collect_set`; not for users."""
    return _built_in(name, (column,), bind_values, _ORDERED, None, name=name, limit=2**31 - 1)


def from_counts(
    name: str,
    *columns: str,
    percentages: tuple[float, ...] = (),
    listed: bool = False,
    descending: bool = False,
) -> Aggregate:
    """Compute a mode or exact percentiles from counts of values; not for users.

    `columns`: the values, and how many times each is counted, if not once.
    """
    options: dict[str, Any] = {
        "name": name,
        "percentages": percentages,
        "listed": listed,
        "descending": descending,
    }
    return _built_in(name, columns, bind_from_counts, _ORDERED, None, **options)


def sum_as(column: str, overflow: Overflow) -> Aggregate:
    """Sum a column; `overflow`: of sums that do not fit their type; not for users."""
    return _built_in("sum", (column,), bind_sum, _NUMBERS, None, overflow=overflow)


def latest_by(column: str, by: str, *, largest: bool) -> Aggregate:
    """Value of the row with the extreme `by` that arrived last; not for users."""
    name = "max_by" if largest else "min_by"
    columns = (column,) if by == column else (column, by)
    options = {"largest": largest, "latest": True}
    return _built_in(name, columns, bind_extreme_by, _ORDERED, None, repr(by), **options)


def kept_rows(*columns: str) -> Aggregate:
    """Collect whole rows in order of arrival, for functions over sessions; not for users."""
    return _built_in("kept_rows", columns, bind_row_collector, _ORDERED, None)


def _variance_or_stddev(
    name: str, column: str, where: str | None, *, population: bool, root: bool
) -> Aggregate:
    """Return the aggregate `name`, ``variance`` or (`root`) ``stddev``; see `variance`."""
    _check_flag(name, column, "population", population)
    repr_arguments = ("population=True",) if population else ()
    options = {"population": population, "root": root}
    return _built_in(name, (column,), bind_moments, _NUMBERS, where, *repr_arguments, **options)


def _first_or_last(name: str, column: str, where: str | None, *, ignore_nulls: bool) -> Aggregate:
    """Return the aggregate `name`, ``first`` or ``last``; see `first`."""
    _check_flag(name, column, "ignore_nulls", ignore_nulls)
    repr_arguments = ("ignore_nulls=True",) if ignore_nulls else ()
    options = {"last": name == "last", "ignore_nulls": ignore_nulls}
    return _built_in(name, (column,), bind_position, _ORDERED, where, *repr_arguments, **options)


def _collecting_aggregate(name: str, column: str, limit: int, where: str | None) -> Aggregate:
    """Return the aggregate `name`, which collects at most `limit` values of a column."""
    _check_size(name, column, "limit", limit)
    repr_arguments = () if limit == 100 else (f"limit={limit}",)
    options = {"name": name, "limit": limit}
    return _built_in(name, (column,), bind_values, _ORDERED, where, *repr_arguments, **options)


def _extreme_by(name: str, column: str, by: str, where: str | None, *, largest: bool) -> Aggregate:
    """Return the aggregate ``max_by`` if `largest`, else ``min_by``."""
    columns = (column,) if isinstance(by, str) and by == column else (column, by)
    return _built_in(name, columns, bind_extreme_by, _ORDERED, where, repr(by), largest=largest)


def _approximate_percentile(
    name: str, column: str, percentage: float, error: float, where: str | None, *repr_arguments: str
) -> Aggregate:
    """Return the aggregate of an approximate percentile; see `_built_in` for `repr_arguments`."""
    for option, value, low, high in (
        ("percentage", percentage, 0, 1),
        ("error", error, 0.001, 0.25),
    ):
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        if not (is_number and low <= value <= high):
            raise InvalidFlowError(
                f"{name}({column!r}) has {option}={value!r}.",
                remedy=f"Give {option} as a number between {low} and {high}.",
                aggregate=name,
            )
    options = {"percentage": float(percentage), "error": float(error)}
    return _built_in(name, (column,), bind_percentile, _NUMBERS, where, *repr_arguments, **options)


def _check_size(name: str, column: str, option: str, size: int) -> None:
    """Raise `InvalidFlowError` if the value of `option` is not an integer from 1 to 10,000."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 10_000:
        raise InvalidFlowError(
            f"{name}({column!r}) has {option}={size!r}.",
            remedy=f"Give {option} as a whole number between 1 and 10,000.",
            aggregate=name,
        )


def _check_flag(name: str, column: str, option: str, value: object) -> None:
    """Raise `InvalidFlowError` if the value of `option` is not a bool."""
    if not isinstance(value, bool):
        raise InvalidFlowError(
            f"{name}({column!r}) has {option}={value!r}.",
            remedy=f"Pass {option}=True, or omit it.",
            aggregate=name,
        )
