"""Spark's aggregate functions as Godwit's aggregates, with their arguments and types.

The arguments are Spark expressions, which Spark computes before the rows reach an operator; a
``FILTER (WHERE ...)`` is one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from godwit.adopt.interval_sums import IntervalSum
from godwit.adopt.plan import children_of, has_method, kind_of, option, to_list
from godwit.adopt.spark_aggregates import EncodedAggregate, JoinedText, Numeric
from godwit.library import aggregates as gw
from godwit.library.aggregates.conditions import restricted
from godwit.model.errors import UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.adopt.plan import Catalyst
    from godwit.adopt.spark_aggregates import How
    from godwit.library.aggregates.arithmetic import Overflow
    from godwit.operators.aggregate import Aggregate


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateCall:
    """A Godwit aggregate, and the Spark expressions that it aggregates."""

    arguments: tuple[Any, ...]
    make: Callable[[Sequence[str]], Aggregate]  # of the columns that have the arguments


def call_of(catalyst: Catalyst, expression: Any) -> AggregateCall:
    """Return the aggregate that computes an ``AggregateExpression`` of Spark's.

    Raises `UnsupportedQueryError` if there is none.
    """
    function = expression.aggregateFunction()
    kind = kind_of(function)
    if kind in REPLACED:
        function = function.replacement()
        kind = kind_of(function)
    condition = option(expression.filter())
    if kind not in _OF_ANY_TEXT and any(map(catalyst.is_collated, children_of(function))):
        raise refused(kind, "it compares text with a collation")
    if expression.isDistinct():
        return _distinct_call(catalyst, function, kind, condition)
    if kind == "Count":
        return _count_call(catalyst, function, condition)
    if kind in _SKIPPING_NULLS:
        argument = children_of(function)[0]
        new_aggregate = _skipping_nulls(function, kind, argument)
        if condition is not None:
            argument = catalyst.when(condition, argument)
        return AggregateCall(arguments=(argument,), make=lambda names: new_aggregate(names[0]))
    if kind in _OTHERS:
        call = _OTHERS[kind](function)
        if condition is None:
            return call
        return AggregateCall(
            arguments=(*call.arguments, condition),
            make=lambda names: restricted(call.make(names[:-1]), f"{names[-1]} = true"),
        )
    raise refused(kind, REFUSED.get(kind, f"no aggregate computes {function.prettyName()}(...)"))


def depends_on_order(expression: Any) -> bool:
    """Return whether the order of rows may matter to an ``AggregateExpression``."""
    return kind_of(expression.aggregateFunction()) in _ORDERED


def refused(kind: str, why: str) -> UnsupportedQueryError:
    """Return the error that an aggregate function cannot be adopted."""
    return UnsupportedQueryError(
        f"{kind} cannot be adopted: {why}.",
        remedy="Compute it from supported aggregates, such as sums, counts or collect_list, or "
        "in a function with state (applyInPandasWithState, transformWithState).",
        node=kind,
    )


def is_nested(expression: Any) -> bool:
    """Return whether values of an expression are structs, arrays or maps."""
    return kind_of(expression.dataType()) in {"ArrayType", "MapType", "StructType"}


def _skipping_nulls(function: Any, kind: str, argument: Any) -> Callable[[str], Aggregate]:
    """Return the maker of an aggregate of one column that skips nulls."""
    if kind in {"CollectList", "CollectSet", "CollectUnion"} and not _ignores_nulls(function):
        raise refused(kind, "it collects nulls too (RESPECT NULLS)")
    if kind in {"Average", "Sum"} and kind_of(argument.dataType()) == "DayTimeIntervalType":
        interval_overflow: Overflow = "null" if _sum_overflow(function) == "null" else "error"
        return lambda name: IntervalSum(
            column=name, overflow=interval_overflow, is_mean=kind == "Average"
        )
    if kind == "Sum":
        overflow = _sum_overflow(function)
        return lambda name: gw.sum_as(name, overflow)
    if kind == "CollectUnion":
        return lambda name: EncodedAggregate(
            aggregate=_SKIPPING_NULLS["CollectSet"]("c0"),
            sources=((name, "identity"),),
            elements=True,
        )
    if not is_nested(argument):
        return _SKIPPING_NULLS[kind]
    if kind in {"Max", "Min"}:
        extreme_by = gw.max_by if kind == "Max" else gw.min_by
        return lambda name: EncodedAggregate(
            aggregate=extreme_by("c0", "c1"), sources=((name, "value"), (name, "order"))
        )
    how: How = "value" if kind == "CollectList" else "identity"
    return lambda name: EncodedAggregate(
        aggregate=_SKIPPING_NULLS[kind]("c0"), sources=((name, how),)
    )


def _ignores_nulls(function: Any) -> bool:
    """Return whether a collecting function skips nulls, as all of them do in older versions."""
    return not has_method(function, "ignoreNulls") or bool(function.ignoreNulls())


def _sum_overflow(function: Any) -> Overflow:
    """Return the handling of a sum that does not fit its type."""
    holder = function.evalContext() if has_method(function, "evalContext") else function
    return _OVERFLOWS[str(holder.evalMode().toString())]


def _count_call(catalyst: Catalyst, function: Any, condition: Any) -> AggregateCall:
    """Return the call for ``count``: of rows in which no argument is null."""
    tests = [catalyst.is_not_null(a) for a in children_of(function) if a.nullable()]
    if condition is not None:
        tests.append(condition)
    if not tests:
        return AggregateCall(arguments=(), make=lambda _: gw.count())
    counted = catalyst.when(catalyst.all_of(tests), catalyst.literal(True))
    return AggregateCall(arguments=(counted,), make=lambda names: gw.count(names[0]))


def _distinct_call(catalyst: Catalyst, function: Any, kind: str, condition: Any) -> AggregateCall:
    """Return the call for an aggregate of distinct values."""
    arguments = children_of(function)
    if kind in {"Min", "Max"}:
        new_aggregate = _skipping_nulls(function, kind, arguments[0])
    elif kind == "Count":
        new_aggregate = gw.count_distinct
    else:
        raise refused(
            kind,
            (
                f"{function.prettyName()}(DISTINCT ...) is not supported, only "
                f"{function.prettyName()}(...)"
            ),
        )
    argument = arguments[0]
    if len(arguments) > 1:
        tests = [catalyst.is_not_null(part) for part in arguments]
        struct = catalyst.struct((f"f{n}", part) for n, part in enumerate(arguments))
        argument = catalyst.when(catalyst.all_of(tests), struct)
    if kind == "Count" and is_nested(argument):
        new_aggregate = _distinct_nested
    if condition is not None:
        argument = catalyst.when(condition, argument)
    return AggregateCall(arguments=(argument,), make=lambda names: new_aggregate(names[0]))


def _distinct_nested(name: str) -> Aggregate:
    """Return the number of distinct values of a nested type."""
    return EncodedAggregate(aggregate=gw.count_distinct("c0"), sources=((name, "identity"),))


def _first_or_last_maker(name: str) -> Callable[[Any], AggregateCall]:
    """Return the maker of calls for ``first`` or ``last``."""
    new_aggregate: Callable[..., Aggregate] = getattr(gw, name)

    def call(function: Any) -> AggregateCall:
        """Return the call of a function that takes the value of one row."""
        ignore = bool(function.ignoreNulls())
        value = children_of(function)[0]
        if is_nested(value):
            return _call_of_encoded((value, "value"), make=new_aggregate("c0", ignore_nulls=ignore))
        return AggregateCall(
            arguments=(value,), make=lambda names: new_aggregate(names[0], ignore_nulls=ignore)
        )

    return call


def _call_of_encoded(*sources: tuple[Any, How], make: Aggregate) -> AggregateCall:
    """Return the call of an aggregate of expressions that may be nested."""
    hows = [how for _, how in sources]
    return AggregateCall(
        arguments=tuple(value for value, _ in sources),
        make=lambda names: EncodedAggregate(
            aggregate=make, sources=tuple(zip(names, hows, strict=True))
        ),
    )


def _extreme_by(*, largest: bool) -> Callable[[Any], AggregateCall]:
    """Return the maker of calls for ``max_by`` (`largest`) or ``min_by``."""

    def call(function: Any) -> AggregateCall:
        """Return the call of a function that takes the value of the row with an extreme."""
        value, order = children_of(function)[:2]
        if is_nested(value) or is_nested(order):
            make = gw.latest_by("c0", "c1", largest=largest)
            return _call_of_encoded((value, "value"), (order, "order"), make=make)
        return AggregateCall(
            arguments=(value, order),
            make=lambda names: gw.latest_by(names[0], names[1], largest=largest),
        )

    return call


def _numeric_maker(name: str) -> Callable[[Any], AggregateCall]:
    """Return the maker of calls for an aggregate of numbers."""

    def call(function: Any) -> AggregateCall:
        """Return the call of a function of one or two numbers."""
        return AggregateCall(
            arguments=tuple(children_of(function)),
            make=lambda names: Numeric(name=name, columns=tuple(names)),
        )

    return call


def _joined_text(function: Any) -> AggregateCall:
    """Return the call for ``listagg``."""
    text, delimiter = function.child(), _constant_argument(function.delimiter(), "ListAgg")
    is_text = kind_of(text.dataType()) == "StringType"
    empty: str | bytes = "" if is_text else b""
    separator = empty if delimiter is None else str(delimiter) if is_text else bytes(delimiter)
    orders = to_list(function.orderExpressions())
    kinds = [
        (
            kind_of(order.direction()) == "Descending",
            kind_of(order.nullOrdering()) == "NullsFirst",
        )
        for order in orders
    ]
    return AggregateCall(
        arguments=(text, *(order.child() for order in orders)),
        make=lambda names: JoinedText(
            text=names[0],
            delimiter=separator,
            orders=tuple((name, *kind) for name, kind in zip(names[1:], kinds, strict=True)),
        ),
    )


def _constant_argument(expression: Any, kind: str) -> Any:
    """Return the value of a constant argument as a Python value."""
    if not expression.foldable():
        raise refused(kind, "an argument is not a constant")
    return expression.eval(None)


def _percentages(expression: Any, kind: str) -> tuple[tuple[float, ...], bool]:
    """Return percentages, and whether they are an array."""
    value = _constant_argument(expression, kind)
    if hasattr(value, "numElements"):
        numbers = value.toSeq(expression.dataType().elementType())
        return tuple(float(str(number)) for number in to_list(numbers)), True
    return (float(str(value)),), False


def _percentile_call(function: Any) -> AggregateCall:
    """Return the call for ``percentile``, ``percentile_disc`` or ``median``."""
    kind = kind_of(function)
    column, percentage = children_of(function)[:2]
    shares, listed = _percentages(percentage, kind)
    arguments = [column]
    frequency = function.frequencyExpression()
    if not frequency.foldable() or int(frequency.eval(None)) != 1:
        arguments.append(frequency)
    name = "percentile"
    if kind == "PercentileDisc":
        if bool(function.legacyCalculation()):
            raise refused(kind, "spark.sql.legacy.percentileDiscCalculation is set")
        name = "percentile_disc"
    reverse = bool(function.reverse())
    return AggregateCall(
        arguments=tuple(arguments),
        make=lambda names: gw.from_counts(
            name, *names, percentages=shares, listed=listed, descending=reverse
        ),
    )


def _approximate_percentile(function: Any) -> AggregateCall:
    """Return the call for ``percentile_approx``, which is exact here."""
    column, percentage = children_of(function)[:2]
    shares, listed = _percentages(percentage, "ApproximatePercentile")
    return AggregateCall(
        arguments=(column,),
        make=lambda names: gw.from_counts("rank", names[0], percentages=shares, listed=listed),
    )


def _mode_call(function: Any) -> AggregateCall:
    """Return the call for ``mode``; of equal counts the smallest value, or the largest."""
    column = children_of(function)[0]
    smallest = option(function.reverseOpt())
    if is_nested(column):
        raise refused("Mode", "for nested values with equal counts, Spark's result is undefined")
    descending = smallest is not None and not bool(smallest)
    return AggregateCall(
        arguments=(column,),
        make=lambda names: gw.from_counts("mode", names[0], descending=descending),
    )


def _approx_distinct(function: Any) -> AggregateCall:
    """Return the call for ``approx_count_distinct``."""
    error = float(function.relativeSD())
    return AggregateCall(
        arguments=(children_of(function)[0],),
        make=lambda names: gw.approx_distinct(names[0], error=min(max(error, 0.0041), 0.26)),
    )


_OF_ANY_TEXT: Final = frozenset({"AnyValue", "CollectList", "Count", "First", "Last"})
"""Functions that do not compare their arguments."""
_OVERFLOWS: Final[dict[str, Overflow]] = {"ANSI": "error", "LEGACY": "wrap", "TRY": "null"}
_ORDERED: Final = frozenset(
    {
        *("AnyValue", "CollectList", "CollectSet", "CollectUnion", "First", "Last", "ListAgg"),
        *("MaxBy", "MinBy"),
    }
)
"""Functions whose result depends on the order in which rows arrive."""
REPLACED: Final = frozenset(
    {
        *("AnyValue", "CountIf", "BoolAnd", "BoolOr", "Median", "PercentileCont"),
        *("RegrAvgX", "RegrAvgY", "RegrCount", "RegrSXX", "RegrSYY"),
    }
)
"""Functions that Spark's optimizer replaces by another function in their fields."""
_SKIPPING_NULLS: Final[dict[str, Callable[[str], Aggregate]]] = {
    "Sum": gw.sum,
    "Average": gw.mean,
    "Min": gw.min,
    "Max": gw.max,
    "StddevSamp": gw.stddev,
    "StddevPop": lambda name: gw.stddev(name, population=True),
    "VarianceSamp": gw.variance,
    "VariancePop": lambda name: gw.variance(name, population=True),
    "CollectList": lambda name: gw.all_values("collect_list", name),
    "CollectSet": lambda name: gw.all_values("collect_set", name),
    "CollectUnion": lambda name: gw.all_values("collect_set", name),  # of elements
}
"""Functions of one argument that skip nulls, and the aggregate of a column."""
_OTHERS: Final[dict[str, Callable[[Any], AggregateCall]]] = {
    "First": _first_or_last_maker("first"),
    "Last": _first_or_last_maker("last"),
    "MaxBy": _extreme_by(largest=True),
    "MinBy": _extreme_by(largest=False),
    "Percentile": _percentile_call,
    "PercentileDisc": _percentile_call,
    "ApproximatePercentile": _approximate_percentile,
    "Mode": _mode_call,
    "HyperLogLogPlusPlus": _approx_distinct,
    "ListAgg": _joined_text,
    "BitAndAgg": _numeric_maker("bit_and"),
    "BitOrAgg": _numeric_maker("bit_or"),
    "BitXorAgg": _numeric_maker("bit_xor"),
    "Product": _numeric_maker("product"),
    "BitmapAndAgg": _numeric_maker("bitmap_and"),
    "BitmapConstructAgg": _numeric_maker("bitmap"),
    "BitmapOrAgg": _numeric_maker("bitmap_or"),
    "Skewness": _numeric_maker("skewness"),
    "Kurtosis": _numeric_maker("kurtosis"),
    "RegrReplacement": _numeric_maker("regr_s"),
    "CovPopulation": _numeric_maker("covar_pop"),
    "CovSample": _numeric_maker("covar_samp"),
    "Corr": _numeric_maker("corr"),
    "RegrSXY": _numeric_maker("regr_sxy"),
    "RegrR2": _numeric_maker("regr_r2"),
    "RegrSlope": _numeric_maker("regr_slope"),
    "RegrIntercept": _numeric_maker("regr_intercept"),
}
_SKETCH: Final = "its result has the format of a sketch library on the JVM"
REFUSED: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            *("CountMinSketchAgg", "HllSketchAgg", "HllUnionAgg", "ApproxTopKAccumulate"),
            *("ApproxTopKCombine", "ThetaSketchAgg", "ThetaUnionAgg", "ThetaIntersectionAgg"),
            *(f"KllMergeAgg{dtype}" for dtype in ("Bigint", "Double", "Float")),
            *(f"KllSketchAgg{dtype}" for dtype in ("Bigint", "Double", "Float")),
            *(
                f"Tuple{kind}Agg{dtype}"
                for kind in ("Sketch", "Union", "Intersection")
                for dtype in ("Double", "Integer")
            ),
        ),
        _SKETCH,
    ),
    "ApproxTopK": "its counts are estimates by a sketch library on the JVM",
    "HistogramNumeric": "its bins depend on Spark's merging of partitions",
    "MaxMinByK": "for rows with equal values, Spark's result is undefined",
}
"""Functions that no aggregate computes → the reason."""
