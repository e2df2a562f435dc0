"""Spark's aggregate functions as Godwit's aggregates: of which arguments, and of which type.

The arguments are expressions of Spark's, which Spark computes before the rows reach an operator; a
``FILTER (WHERE ...)`` is one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from godwit.adopt.plan import children_of, kind_of, option, to_list
from godwit.model.errors import UnsupportedQueryError
from godwit.operators import aggregates as gw
from godwit.operators.aggregates.conditions import restricted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.adopt.plan import Catalyst
    from godwit.operators.aggregates import Aggregate


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateCall:
    """An aggregate of Godwit's, and the expressions of Spark's that it aggregates."""

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
    if expression.isDistinct():
        return _distinct(catalyst, function, kind, condition)
    if kind == "Count":
        return _count(catalyst, function, condition)
    if kind == "CollectList" and kind_of_type(children_of(function)[0]) == "StructType":
        return _structs(catalyst, children_of(function)[0], condition)
    if kind in _SKIPPING_NULLS:
        make = _SKIPPING_NULLS[kind]
        argument = children_of(function)[0]
        if condition is not None:
            argument = catalyst.when(condition, argument)
        return AggregateCall(arguments=(argument,), make=lambda names: make(names[0]))
    if kind in _OTHERS:
        call = _OTHERS[kind](function)
        if condition is None:
            return call
        return AggregateCall(
            arguments=(*call.arguments, condition),
            make=lambda names: restricted(call.make(names[:-1]), f"{names[-1]} = true"),
        )
    raise refused(kind, f"no aggregate of Godwit's computes {function.prettyName()}(...)")


def depends_on_order(expression: Any) -> bool:
    """Return whether the order of rows may matter to an ``AggregateExpression``."""
    return kind_of(expression.aggregateFunction()) in _ORDERED


def refused(kind: str, why: str) -> UnsupportedQueryError:
    """Return the error that an aggregate function cannot be adopted."""
    return UnsupportedQueryError(
        f"{kind} cannot be adopted: {why}.",
        remedy="Compute it from aggregates that can be adopted, such as sums, counts or "
        "collect_list, or in a function with state (applyInPandasWithState, transformWithState).",
        node=kind,
    )


def kind_of_type(expression: Any) -> str:
    """Return the name of the class of an expression's type."""
    return kind_of(expression.dataType())


def _structs(catalyst: Catalyst, argument: Any, condition: Any) -> AggregateCall:
    """Return the call for ``collect_list`` of structs, which are sent as their fields."""
    names = tuple(str(name) for name in argument.dataType().fieldNames())
    tests = [catalyst.is_not_null(argument), *([] if condition is None else [condition])]
    fields = [catalyst.field(argument, ordinal) for ordinal in range(len(names))]
    return AggregateCall(
        arguments=(*fields, catalyst.all_of(tests)),
        make=lambda columns: gw.collected_structs(tuple(columns), names),
    )


def _count(catalyst: Catalyst, function: Any, condition: Any) -> AggregateCall:
    """Return the call for ``count``: of rows in which no argument is null."""
    tests = [catalyst.is_not_null(a) for a in children_of(function) if a.nullable()]
    if condition is not None:
        tests.append(condition)
    if not tests:
        return AggregateCall(arguments=(), make=lambda _: gw.count())
    counted = catalyst.when(catalyst.all_of(tests), catalyst.literal(True))
    return AggregateCall(arguments=(counted,), make=lambda names: gw.count(names[0]))


def _distinct(catalyst: Catalyst, function: Any, kind: str, condition: Any) -> AggregateCall:
    """Return the call for an aggregate of distinct values."""
    arguments = children_of(function)
    if kind in {"Min", "Max"}:
        make = _SKIPPING_NULLS[kind]
    elif kind == "Count" and len(arguments) == 1:
        make = gw.count_distinct
    else:
        raise refused(kind, f"{function.prettyName()}(DISTINCT ...) of these arguments")
    argument = arguments[0]
    if condition is not None:
        argument = catalyst.when(condition, argument)
    return AggregateCall(arguments=(argument,), make=lambda names: make(names[0]))


def _position(name: str) -> Callable[[Any], AggregateCall]:
    """Return the maker of calls for ``first`` or ``last``."""
    make: Callable[..., Aggregate] = getattr(gw, name)

    def call(function: Any) -> AggregateCall:
        """Return the call of a function that takes the value of one row."""
        ignore = bool(function.ignoreNulls())
        return AggregateCall(
            arguments=(children_of(function)[0],),
            make=lambda names: make(names[0], ignore_nulls=ignore),
        )

    return call


def _extreme_by(*, largest: bool) -> Callable[[Any], AggregateCall]:
    """Return the maker of calls for ``max_by`` (`largest`) or ``min_by``."""

    def call(function: Any) -> AggregateCall:
        """Return the call of a function that takes the value of the row with an extreme."""
        if kind_of(function) not in {"MaxBy", "MinBy"}:
            raise refused(kind_of(function), "it takes several rows")
        value, by = children_of(function)[:2]
        return AggregateCall(
            arguments=(value, by),
            make=lambda names: gw.latest_by(names[0], names[1], largest=largest),
        )

    return call


def _constant(expression: Any, kind: str) -> Any:
    """Return the value of a constant argument, as Python has it."""
    if not expression.foldable():
        raise refused(kind, "an argument is not a constant")
    return expression.eval(None)


def _shares(expression: Any, kind: str) -> tuple[tuple[float, ...], bool]:
    """Return percentages, and whether they are an array."""
    value = _constant(expression, kind)
    if hasattr(value, "numElements"):
        numbers = value.toSeq(expression.dataType().elementType())
        return tuple(float(str(number)) for number in to_list(numbers)), True
    return (float(str(value)),), False


def _percentile(function: Any) -> AggregateCall:
    """Return the call for ``percentile`` or ``median``."""
    column, percentage, frequency = children_of(function)[:3]
    if not frequency.foldable() or int(frequency.eval(None)) != 1:
        raise refused("Percentile", "a frequency is given")
    if bool(getattr(function, "discrete", lambda: False)()):
        raise refused("Percentile", "it is discrete")
    shares, listed = _shares(percentage, "Percentile")
    return AggregateCall(
        arguments=(column,),
        make=lambda names: gw.from_counts("percentile", names[0], shares, listed=listed),
    )


def _approximate_percentile(function: Any) -> AggregateCall:
    """Return the call for ``percentile_approx``, which is exact here."""
    column, percentage = children_of(function)[:2]
    shares, listed = _shares(percentage, "ApproximatePercentile")
    return AggregateCall(
        arguments=(column,),
        make=lambda names: gw.from_counts("rank", names[0], shares, listed=listed),
    )


def _mode(function: Any) -> AggregateCall:
    """Return the call for ``mode``."""
    column = children_of(function)[0]
    return AggregateCall(arguments=(column,), make=lambda names: gw.from_counts("mode", names[0]))


def _approx_distinct(function: Any) -> AggregateCall:
    """Return the call for ``approx_count_distinct``."""
    error = float(function.relativeSD())
    return AggregateCall(
        arguments=(children_of(function)[0],),
        make=lambda names: gw.approx_distinct(names[0], error=min(max(error, 0.0041), 0.26)),
    )


_ORDERED: Final = frozenset(
    {"AnyValue", "CollectList", "CollectSet", "First", "Last", "MaxBy", "MinBy"}
)
"""Functions whose result depends on the order in which rows arrive."""
REPLACED: Final = frozenset(
    {"AnyValue", "CountIf", "BoolAnd", "BoolOr", "Median", "RegrCount", "PercentileCont"}
)
"""Functions that Spark's optimizer replaces by another one, which they name."""
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
}
"""Functions of one argument that skip nulls, and the aggregate of a column."""
_OTHERS: Final[dict[str, Callable[[Any], AggregateCall]]] = {
    "First": _position("first"),
    "Last": _position("last"),
    "MaxBy": _extreme_by(largest=True),
    "MinBy": _extreme_by(largest=False),
    "Percentile": _percentile,
    "ApproximatePercentile": _approximate_percentile,
    "Mode": _mode,
    "HyperLogLogPlusPlus": _approx_distinct,
}
