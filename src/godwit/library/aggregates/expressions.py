"""Expressions over the columns of a row: a part of Spark's SQL, evaluated on columns.

::

    or       := and ("or" and)*
    and      := not ("and" not)*
    not      := "not" not | test
    test     := sum [sign sum | "is" ["not"] "null" | ["not"] "in" "(" sum {"," sum} ")"
                    | ["not"] "between" sum "and" sum]
    sum      := product {("+" | "-" | "||") product}
    product  := factor {("*" | "/" | "%") factor}
    factor   := ("-" | "+") factor | operand
    operand  := "(" or ")" | case | function "(" or {"," or} ")" | column | `column` | literal
    case     := "case" [or] {"when" or "then" or} ["else" or] "end"
    literal  := number | 'text' | true | false | null

``where=`` takes a boolean expression, and an aggregate takes any expression instead of a column.

Values are computed and compared as in Spark's ANSI mode (`godwit.library.aggregates.arithmetic`):
an operation on null gives null; NaN equals itself and is larger than any number; and text stands
for a date or a timestamp where it is compared with one.  ``and``, ``or``, ``case``, ``if`` and
``coalesce`` compute an operand only for the rows that need it, so ``b <> 0 and a / b > 2`` never
divides by zero.  An expression is a picklable value that Arrow evaluates, so it runs wherever rows
are.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.types import is_binary, is_text
from godwit.library.aggregates.arithmetic import (
    Operand,
    TypesError,
    absolute,
    as_type,
    calculate,
    common_type,
    is_number,
    negate,
    spark_column,
)
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean
from godwit.operators.aggregate import column_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.]) |
    (?P<text>'(?:[^']|'')*') |
    (?P<quoted>`[^`]+`) |
    (?P<word>[^\W\d]\w*) |
    (?P<sign><=|>=|<>|!=|==|\|\||=|<|>|\(|\)|,|-|\+|\*|/|%)
    )""",
    re.VERBOSE,
)
# Expressions are evaluated and pickled by recursion: bound their depth.
_MAX_DEPTH, _MAX_CHAIN, _MAX_DIGITS = 30, 50, 38
_SIGNS = {"==": "=", "!=": "<>"}
_COMPARISONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_RESERVED = {"and", "or", "not", "is", "in", "null", "true", "false", "between", "like"}
_GRAMMAR = (
    "Expressions may have the operators + - * / % ||, the comparisons =, <>, <, <=, >, >=, "
    "between, in (...) and is [not] null, the words and, or and not, parentheses, case when ... "
    "then ... else ... end, and the functions {functions}. Compute anything else in an earlier "
    "map, and use the resulting column."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that an expression is evaluated on, and which of them need its value."""

    columns: Mapping[str, pa.Array]
    active: pa.Array | None = None  # boolean, without nulls; None: all rows

    def needed(self, values: pa.Array) -> pa.Array:
        """Return the values, null in rows that need none, so that evaluation cannot fail there."""
        return values if self.active is None else pc.if_else(self.active, values, None)

    def where(self, holds: pa.Array) -> Rows:
        """Return the rows, where only those with `holds` true need a value."""
        holds = holds.fill_null(False)
        active = holds if self.active is None else pc.and_(self.active, holds)
        return Rows(columns=self.columns, active=active)


@dataclass(frozen=True, slots=True)
class Expression(ABC):
    """A parsed expression, or a part of one; `str` normalises its text."""

    @abstractmethod
    def evaluate(self, rows: Rows) -> pa.Array:
        """Return a value for every row, null where SQL's result is null.

        Raises `ValueError` for operands of types for which it is not defined, and
        `EvaluationError` for the first row without a value.
        """

    def operands(self) -> tuple[Expression, ...]:
        """Return the expressions that this one is made of."""
        operands: list[Expression] = []
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            operands += [
                v
                for v in (value if isinstance(value, tuple) else (value,))
                if isinstance(v, Expression)
            ]
        return tuple(operands)

    @property
    def can_fail(self) -> bool:
        """True if some row may have no value."""
        return any(operand.can_fail for operand in self.operands())


@dataclass(frozen=True, slots=True)
class Column(Expression):
    """A column."""

    name: str

    def __str__(self) -> str:
        return f"`{self.name}`"

    def evaluate(self, rows: Rows) -> pa.Array:
        return spark_column(rows.columns[self.name])

    @property
    def can_fail(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Literal(Expression):
    """A literal."""

    value: bool | int | Decimal | str | None
    is_double: bool = False  # whether it is a number with an exponent

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return "null" if self.value is None else str(self.value).lower()

    @property
    def can_fail(self) -> bool:
        return False

    def evaluate(self, rows: Rows) -> pa.Array:
        length = len(next(iter(rows.columns.values())))
        return pa.repeat(self._scalar(), length)

    def _scalar(self) -> pa.Scalar:
        """Return the value in the type that Spark gives the literal."""
        value = self.value
        if isinstance(value, Decimal):
            if self.is_double:
                return pa.scalar(float(value))
            _, digits, exponent = value.as_tuple()
            scale = -int(exponent)
            return pa.scalar(value, pa.decimal128(max(len(digits), scale), scale))
        if isinstance(value, int) and not isinstance(value, bool):
            if _fits_long(value):
                small = -(1 << 31) <= value < 1 << 31
                return pa.scalar(value, pa.int32() if small else pa.int64())
            return pa.scalar(Decimal(value), pa.decimal128(len(str(abs(value))), 0))
        return pa.scalar(value)

    def as_type(self, dtype: pa.DataType) -> pa.Scalar:
        """Return the literal as a scalar of type `dtype`, that of the operand it is compared with.

        Raises `ValueError` if it has no value of this type.
        """
        value = self.value
        if isinstance(value, bool):
            if pa.types.is_boolean(dtype):
                return pa.scalar(value)
        elif isinstance(value, str):
            return _text_as(value, dtype)
        elif value is None:
            raise ValueError(dtype)
        elif pa.types.is_floating(dtype) or (self.is_double and is_number(dtype)):
            return pa.scalar(float(value), pa.float64())
        elif pa.types.is_integer(dtype) and isinstance(value, int) and _fits_long(value):
            return pa.scalar(value, pa.int64())
        elif pa.types.is_integer(dtype) or pa.types.is_decimal(dtype):
            return pa.scalar(Decimal(value))
        raise ValueError(dtype)


def _fits_long(value: int) -> bool:
    """Return whether a number is one of Spark's ``bigint``; larger literals are decimals."""
    return -(1 << 63) <= value < 1 << 63


def _text_as(text: str, dtype: pa.DataType) -> pa.Scalar:
    """Return a text literal as a scalar of type `dtype`; raise `ValueError` if it is not valid."""
    if is_text(dtype):
        return pa.scalar(text, dtype)
    if pa.types.is_date(dtype):
        return pa.scalar(dt.date.fromisoformat(text), dtype)
    if pa.types.is_timestamp(dtype):
        moment = dt.datetime.fromisoformat(text)
        if (moment.tzinfo is None) == (dtype.tz is None):  # else which moment is meant is a guess
            return pa.scalar(moment, dtype)
    raise ValueError(dtype)


@dataclass(frozen=True, slots=True)
class _Comparison(Expression):
    """A comparison of two operands by the operator `symbol`, such as ``"<="``."""

    symbol: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"({self.left} {self.symbol} {self.right})"

    def evaluate(self, rows: Rows) -> pa.Array:
        """Compare the operands; a literal is converted to the other operand's type."""
        left, right = self.left, self.right
        if isinstance(right, _Literal):
            values = left.evaluate(rows)
            return compare(self.symbol, values, right.as_type(values.type))
        if isinstance(left, _Literal):
            values = right.evaluate(rows)
            return compare(self.symbol, left.as_type(values.type), values)
        values = left.evaluate(rows)
        return compare(self.symbol, values, values_after(values, right, rows))


def values_after(first: pa.Array, second: Expression, rows: Rows) -> pa.Array:
    """Return the values of a second operand, which Spark computes if `first` is not null."""
    if second.can_fail:
        rows = rows.where(first.is_valid())
    return second.evaluate(rows)


def compare(symbol: str, left: pa.Array | pa.Scalar, right: pa.Array | pa.Scalar) -> pa.Array:
    """Compare two operands as Spark does: NaN equals NaN, and is larger than any number."""
    if _type_family(left.type) != _type_family(right.type):
        raise ValueError(symbol)
    if not (pa.types.is_floating(left.type) or pa.types.is_floating(right.type)):
        return _COMPARISONS[symbol](*_in_one_decimal_type(left, right))
    left, right = (_as_double(value) for value in (left, right))
    if symbol in (">", "<="):  # in terms of the two below
        left, right, symbol = right, left, {">": "<", "<=": ">="}[symbol]
    left_is_nan, right_is_nan = pc.is_nan(left), pc.is_nan(right)
    if symbol in ("=", "<>"):
        result = pc.or_(pc.equal(left, right), pc.and_(left_is_nan, right_is_nan))
    else:
        result = pc.or_(pc.less(left, right), pc.and_(right_is_nan, pc.invert(left_is_nan)))
    return pc.invert(result) if symbol in ("<>", ">=") else result


def _as_double(value: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Return a number as a double."""
    if isinstance(value, pa.Scalar) or pa.types.is_floating(value.type):
        return value.cast(pa.float64())
    return as_type(value, pa.float64())


def _in_one_decimal_type(
    left: pa.Array | pa.Scalar, right: pa.Array | pa.Scalar
) -> tuple[pa.Array | pa.Scalar, pa.Array | pa.Scalar]:
    """Return two operands in types that Arrow compares: decimals in one that holds both."""
    if not (pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type)):
        return left, right
    scale = max(getattr(value.type, "scale", 0) for value in (left, right))
    wide_type = pa.decimal256(_MAX_DIGITS + scale, scale)
    return tuple(
        value.cast(pa.decimal128(20, 0)).cast(wide_type)
        if pa.types.is_integer(value.type)
        else value.cast(wide_type)
        for value in (left, right)
    )


def _type_family(dtype: pa.DataType) -> str:
    """Return the family of a type, such as "number"; only types of one family can be compared."""
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "number"
    if is_text(dtype):
        return "string"
    return "timestamp" if pa.types.is_timestamp(dtype) and dtype.tz else str(dtype)


@dataclass(frozen=True, slots=True)
class IsNull(Expression):
    """The condition ``operand is null``."""

    operand: Expression

    def __str__(self) -> str:
        return f"({self.operand} is null)"

    def evaluate(self, rows: Rows) -> pa.Array:
        return self.operand.evaluate(rows).is_null()


@dataclass(frozen=True, slots=True)
class Not(Expression):
    """The negation of a condition."""

    operand: Expression

    def __str__(self) -> str:
        return f"(not {self.operand})"

    def evaluate(self, rows: Rows) -> pa.Array:
        return pc.invert(truth(self.operand, rows))


@dataclass(frozen=True, slots=True)
class Both(Expression):
    """Two conditions joined by `word`, ``"and"`` or ``"or"``."""

    word: str
    left: Expression
    right: Expression
    fails: tuple[bool, bool] = field(compare=False)  # whether each of them can

    def __str__(self) -> str:
        return f"({self.left} {self.word} {self.right})"

    @property
    def can_fail(self) -> bool:
        return any(self.fails)

    def evaluate(self, rows: Rows) -> pa.Array:
        """Evaluate both, the right one only for rows that the left one does not decide."""
        join = pc.and_kleene if self.word == "and" else pc.or_kleene
        left = truth(self.left, rows)
        if self.fails[1]:
            is_and = self.word == "and"
            rows = rows.where(pc.equal(left, pa.scalar(is_and)).fill_null(True))
        return join(left, truth(self.right, rows))


@dataclass(frozen=True, slots=True)
class _Arithmetic(Expression):
    """Two numbers joined by `symbol`."""

    symbol: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"({self.left} {self.symbol} {self.right})"

    @property
    def can_fail(self) -> bool:
        return True

    def evaluate(self, rows: Rows) -> pa.Array:
        """Calculate the value of every row that needs one."""
        parts = [self.left, self.right]
        if self.symbol in "/%":  # of which Spark computes the divisor first
            parts.reverse()
        first = rows.needed(parts[0].evaluate(rows))
        values = [first, values_after(first, parts[1], rows)]
        if self.symbol in "/%":
            values.reverse()
        left, right = (
            Operand(values=column, literal=part.value if isinstance(part, _Literal) else None)
            for part, column in zip((self.left, self.right), values, strict=True)
        )
        return calculate(self.symbol, left, right)


@dataclass(frozen=True, slots=True)
class _Negative(Expression):
    """A number with the other sign."""

    operand: Expression

    def __str__(self) -> str:
        return f"(- {self.operand})"

    @property
    def can_fail(self) -> bool:
        return True

    def evaluate(self, rows: Rows) -> pa.Array:
        return negate(rows.needed(self.operand.evaluate(rows)))


@dataclass(frozen=True, slots=True)
class Case(Expression):
    """The value of the first condition that holds."""

    conditions: tuple[Expression, ...]
    values: tuple[Expression, ...]  # of each condition, and last that of no condition

    def __str__(self) -> str:
        pairs = zip(self.conditions, self.values, strict=False)
        when = " ".join(f"when {condition} then {value}" for condition, value in pairs)
        return f"(case {when} else {self.values[-1]} end)"

    def evaluate(self, rows: Rows) -> pa.Array:
        """Evaluate every value only for the rows that its condition selects."""
        holding, results = [], []
        for condition, value in zip(self.conditions, self.values, strict=False):
            holds = truth(condition, rows).fill_null(False)
            holding.append(holds)
            results.append(value.evaluate(rows.where(holds)))
            rows = rows.where(pc.invert(holds))
        results.append(self.values[-1].evaluate(rows))
        return choose(holding, results)


def choose(holding: Sequence[pa.Array], results: Sequence[pa.Array]) -> pa.Array:
    """Return, for every row, the value whose condition is the first to hold, else the last one."""
    dtype = common_type(values.type for values in results)
    *others, chosen = (as_type(values, dtype) for values in results)
    for holds, values in zip(reversed(holding), reversed(others), strict=True):
        chosen = pc.if_else(holds, values, chosen)
    return chosen


@dataclass(frozen=True, slots=True)
class _Call(Expression):
    """A call of one of the functions of `_FUNCTIONS`."""

    name: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"

    @property
    def can_fail(self) -> bool:
        return self.name == "abs" or any(operand.can_fail for operand in self.arguments)

    def evaluate(self, rows: Rows) -> pa.Array:
        return _FUNCTIONS[self.name][0](self.arguments, rows)


def _coalesce(arguments: tuple[Expression, ...], rows: Rows) -> pa.Array:
    """Return the first value that is not null."""
    valid, columns = [], []
    for argument in arguments:
        values = argument.evaluate(rows)
        columns.append(values)
        valid.append(values.is_valid())
        rows = rows.where(values.is_null())
    return choose(valid[:-1], columns)


def _if(arguments: tuple[Expression, ...], rows: Rows) -> pa.Array:
    """Return the second or the third argument, depending on the first."""
    condition, *values = arguments
    return Case((condition,), tuple(values)).evaluate(rows)


def extreme(symbol: str) -> Callable[[tuple[Expression, ...], Rows], pa.Array]:
    """Return the function of the smallest (``<``) or largest (``>``) argument that is not null."""

    def evaluate(arguments: tuple[Expression, ...], rows: Rows) -> pa.Array:
        columns = [argument.evaluate(rows) for argument in arguments]
        dtype = common_type(values.type for values in columns)
        best, *others = (as_type(values, dtype) for values in columns)
        for values in others:
            is_better = pc.or_kleene(best.is_null(), compare(symbol, values, best))
            replaces = pc.and_kleene(is_better, values.is_valid()).fill_null(False)
            best = pc.if_else(replaces, values, best)
        return best

    return evaluate


def _absolute(arguments: tuple[Expression, ...], rows: Rows) -> pa.Array:
    """Return numbers without their sign."""
    return absolute(rows.needed(arguments[0].evaluate(rows)))


def _case_function(
    plain: Callable[[pa.Array], pa.Array], full: Callable[[str], str]
) -> Callable[[tuple[Expression, ...], Rows], pa.Array]:
    """Return a function of text: `plain` for ASCII, `full` for each text that is not ASCII."""

    def evaluate(arguments: tuple[Expression, ...], rows: Rows) -> pa.Array:
        values = _text_operand(arguments[0], rows)
        if pc.all(pc.string_is_ascii(values)).as_py() is not False:
            return plain(values)
        return pa.array(
            [None if text is None else full(text) for text in values.to_pylist()], values.type
        )

    return evaluate


def _length(arguments: tuple[Expression, ...], rows: Rows) -> pa.Array:
    """Return the number of characters of text, or of bytes."""
    values = arguments[0].evaluate(rows)
    if is_binary(values.type):
        return pc.binary_length(values).cast(pa.int32())
    return pc.utf8_length(_text_operand(arguments[0], rows)).cast(pa.int32())


def _text_operand(operand: Expression, rows: Rows) -> pa.Array:
    """Return the values of an operand; raise `TypesError` if they are not text."""
    values = operand.evaluate(rows)
    if not is_text(values.type):
        raise TypesError(str(operand))
    return values


def _concatenated_texts(arguments: tuple[Expression, ...], rows: Rows) -> pa.Array:
    """Concatenate texts; null if any of them is null."""
    return pc.binary_join_element_wise(
        *(_text_operand(argument, rows) for argument in arguments), ""
    )


@dataclass(frozen=True, slots=True)
class _Joined(Expression):
    """Two texts concatenated by ``||``."""

    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"({self.left} || {self.right})"

    def evaluate(self, rows: Rows) -> pa.Array:
        return _concatenated_texts((self.left, self.right), rows)


_FUNCTIONS: dict[str, tuple[Callable[[tuple[Expression, ...], Rows], pa.Array], int, int]] = {
    "abs": (_absolute, 1, 1),
    "coalesce": (_coalesce, 1, 20),
    "greatest": (extreme(">"), 2, 20),
    "if": (_if, 3, 3),
    "least": (extreme("<"), 2, 20),
    "length": (_length, 1, 1),
    "lower": (_case_function(pc.ascii_lower, str.lower), 1, 1),
    "upper": (_case_function(pc.ascii_upper, str.upper), 1, 1),
}
"""Name → the function, and its minimum and maximum number of arguments."""


def truth(condition: Expression, rows: Rows) -> pa.Array:
    """Evaluate a condition; raise `ValueError` if the result is not boolean."""
    mask = condition.evaluate(rows)
    if pa.types.is_null(mask.type):
        return mask.cast(pa.bool_())
    if not pa.types.is_boolean(mask.type):
        raise ValueError(str(condition))
    return mask


def columns_read(expression: Expression) -> tuple[str, ...]:
    """Return the names of the columns that an expression reads, each once."""

    def walk(part: Expression) -> Iterator[str]:
        """Yield the column names of an expression, with repetitions."""
        if isinstance(part, Column):
            yield part.name
        for operand in part.operands():
            yield from walk(operand)

    return tuple(dict.fromkeys(walk(expression)))


def check_types(expression: Expression, inputs: pa.Schema, call: str, kind: str) -> pa.DataType:
    """Return the type of an expression; refuse missing columns, and types it is not defined for.

    `call`: the aggregate as its user wrote it, for errors. `kind`: ``"condition"``, whose value
    has to be boolean, or ``"expression"``.
    """

    def check(part: Expression) -> None:
        """Check one part of the expression and, recursively, its operands."""
        for operand in part.operands():
            check(operand)
        try:
            if not isinstance(part, _Literal):
                part.evaluate(rows)
            if part is expression and kind == "condition":
                truth(part, rows)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            types = ", ".join(f"{name} is {inputs.field(name).type}" for name in columns_read(part))
            raise InvalidFlowError(
                f"{call} has {_with_article(kind)} of which {part} cannot be evaluated"
                f"{f' ({types})' if types else ''}.",
                remedy=(
                    "Compare and compute numbers with numbers and text with text; write a date "
                    "as '2026-03-29', a timestamp as '2026-03-29 01:00:00' if its column has no "
                    "time zone and as '2026-03-29 01:00:00+00:00' if it has one; a column used "
                    "as a condition must be boolean. Cast columns in a map first."
                ),
                aggregate=call,
                columns=list(columns_read(part)),
            ) from error

    subject = f"The {kind} of {call}"
    rows = Rows(
        columns={
            name: pa.nulls(1, column_type(inputs, name, subject))
            for name in columns_read(expression)
        },
        active=pa.array([False]),  # no value is computed, not even of literals
    )
    check(expression)
    return expression.evaluate(rows).type


def _with_article(noun: str) -> str:
    """Return a noun with its indefinite article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def parse_condition(text: object, call: str) -> Expression:
    """Parse the text of a condition; refuse malformed ones, and those that read no column.

    `call`: the aggregate as its user wrote it, for errors.
    """
    if not isinstance(text, str):
        raise InvalidFlowError(
            f"{call} has where={text!r}, which is a value of type {type(text).__name__}.",
            remedy='Write the condition as text, as in where="delay > 15".',
            aggregate=call,
        )
    return _Parser(text, f"{call}: the condition {text!r} is not valid:", call).parse()


def parse_expression(text: str, call: str, columns: Sequence[str]) -> Expression:
    """Parse the text of an expression, given where a column is expected.

    `call`: the aggregate as its user wrote it, and `columns`: those of the stream, for errors.
    """
    lead = f"{call}: {text!r} is neither a column nor a valid expression:"
    return _Parser(text, lead, call, did_you_mean(text, columns)).parse()


def _balanced_tree(word: str, parts: list[Expression]) -> Expression:
    """Join conditions by ``and`` or ``or`` (`word`), as a balanced tree."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    left, right = _balanced_tree(word, parts[:half]), _balanced_tree(word, parts[half:])
    return Both(word, left, right, (left.can_fail, right.can_fail))


class _Parser:
    """Recursive-descent parser of the grammar at the top of the module."""

    def __init__(self, text: str, lead: str, call: str, hint: str = "") -> None:
        self.text, self.lead, self.call, self.hint = text, lead, call, hint
        self.depth = self.cases = 0
        self.tokens: list[tuple[str, str, int]] = []  # kind, text, and number of its character
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                rest = text[position:end]
                start = position + len(rest) - len(rest.lstrip())
                self.refuse(f"{rest.strip()!r} cannot be parsed", start)
            kind = match.lastgroup
            self.tokens.append((kind, match[kind], match.start(kind)))
            position = match.end()

    def refuse(self, why: str, position: int | None = None) -> NoReturn:
        """Raise the error that the expression is malformed; `at`: number of the character."""
        place = "" if position is None else f" (at character {position + 1})"
        raise InvalidFlowError(
            f"{self.lead} {why}{place}.",
            remedy=self.hint + _GRAMMAR.format(functions=", ".join(sorted(_FUNCTIONS))),
            aggregate=self.call,
        )

    def parse(self) -> Expression:
        """Parse the whole text."""
        expression = self._parse_or()
        if self.tokens:
            self._refuse_next()
        if not columns_read(expression):
            self.refuse("it refers to no column")
        return expression

    def _refuse_next(self) -> NoReturn:
        """Refuse the next token."""
        _, token, position = self.tokens[0]
        self.refuse(f"{token!r} is unexpected", position)

    def _parse_or(self) -> Expression:
        """Parse one or several conditions joined by ``or``."""
        parts = [self._parse_and()]
        while self._accept_token("or"):
            parts.append(self._parse_and())
        return _balanced_tree("or", parts)

    def _parse_and(self) -> Expression:
        """Parse one or several conditions joined by ``and``."""
        parts = [self._parse_not()]
        while self._accept_token("and"):
            parts.append(self._parse_not())
        return _balanced_tree("and", parts)

    def _enter_nested(self) -> None:
        """Enter a nested expression; refuse one that is nested too deep."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.refuse(f"parentheses, signs and not are nested more than {_MAX_DEPTH} deep")

    def _parse_not(self) -> Expression:
        """Parse a condition, which may have ``not`` before it."""
        self._enter_nested()
        condition = Not(self._parse_not()) if self._accept_token("not") else self._parse_test()
        self.depth -= 1
        return condition

    def _parse_test(self) -> Expression:
        """Parse a value, and a comparison, ``is null``, ``in`` or ``between`` after it."""
        operand = self._parse_sum()
        if self._accept_token("is"):
            negated = self._accept_token("not")
            self._expect_token("null")
            return Not(IsNull(operand)) if negated else IsNull(operand)
        negated = self._accept_token("not")
        if self._accept_token("between"):
            low = self._parse_comparison(">=", operand)
            self._expect_token("and")
            test = _balanced_tree("and", [low, self._parse_comparison("<=", operand)])
            return Not(test) if negated else test
        if negated or self._peek_token() == "in":
            self._expect_token("in")
            test = self._parse_in(operand)
            return Not(test) if negated else test
        symbol = _SIGNS.get(self._peek_token(), self._peek_token())
        if symbol in _COMPARISONS:
            self.tokens.pop(0)
            return self._parse_comparison(symbol, operand)
        return operand

    def _parse_in(self, operand: Expression) -> Expression:
        """Parse the list after ``operand in``, and return it as comparisons joined by ``or``."""
        self._expect_token("(")
        parts: list[Expression] = [self._parse_comparison("=", operand)]
        while self._accept_token(","):
            parts.append(self._parse_comparison("=", operand))
        self._expect_token(")")
        return _balanced_tree("or", parts)

    def _parse_comparison(self, symbol: str, left: Expression) -> Expression:
        """Parse the right operand of a comparison, and return the comparison."""
        return self._compare(symbol, left, self._parse_sum())

    def _compare(self, symbol: str, left: Expression, right: Expression) -> Expression:
        """Return a comparison; refuse one with null."""
        for operand in (left, right):
            if isinstance(operand, _Literal) and operand.value is None:
                self.refuse("a value is compared with null, which is never true: use is null")
        return _Comparison(symbol, left, right)

    def _parse_chain(self, signs: set[str], part: Callable[[], Expression]) -> Expression:
        """Parse one or several parts joined by `signs`, which hold from left to right."""
        result = part()
        for _ in range(_MAX_CHAIN):
            symbol = self._peek_token()
            if symbol not in signs:
                return result
            self.tokens.pop(0)
            right = part()
            result = (
                _Joined(result, right) if symbol == "||" else _Arithmetic(symbol, result, right)
            )
        return self.refuse(f"more than {_MAX_CHAIN} operations in a row")

    def _parse_sum(self) -> Expression:
        """Parse one or several products that are added, subtracted or joined as text."""
        return self._parse_chain({"+", "-", "||"}, self._parse_product)

    def _parse_product(self) -> Expression:
        """Parse one or several factors that are multiplied or divided."""
        return self._parse_chain({"*", "/", "%"}, self._parse_factor)

    def _parse_factor(self) -> Expression:
        """Parse an operand, which may have signs before it."""
        if self._peek_token() not in ("+", "-"):
            return self._parse_operand()
        self._enter_nested()
        if self._accept_token("+"):
            factor = self._parse_factor()
        else:
            self._expect_token("-")
            if self.tokens and self.tokens[0][0] == "number":
                factor = self._parse_operand(negative=True)
            else:
                factor = _Negative(self._parse_factor())
        self.depth -= 1
        return factor

    def _parse_operand(self, *, negative: bool = False) -> Expression:
        """Parse a literal, a column, a call, a case, or an expression in parentheses."""
        if not self.tokens:
            self.refuse("it ends too early")
        kind, token, position = self.tokens[0]
        word = token.lower()
        following = self.tokens[1][1].lower() if len(self.tokens) > 1 else ""
        if word == "case" and kind == "word" and self._begins_case():
            return self._parse_case()
        if kind == "word" and following == "(" and word not in _RESERVED:
            return self._parse_call(word, position)
        if self._accept_token("("):
            inner = self._parse_or()
            self._expect_token(")")
            return inner
        ends_case = kind == "word" and self.cases and word in ("when", "then", "else", "end")
        if kind == "sign" or ends_case or (kind == "word" and word in _RESERVED - _VALUES.keys()):
            self._refuse_next()
        self.tokens.pop(0)
        if kind == "number":
            if len(token) > _MAX_DIGITS:
                self.refuse(f"a number has more than {_MAX_DIGITS} digits", position)
            value = int(token) if token.isdigit() else Decimal(token)
            if "e" in word and math.isinf(float(value)):
                self.refuse(f"{token} does not fit a double", position)
            return _Literal(-value if negative else value, is_double="e" in word)
        if kind == "text":
            return _Literal(token[1:-1].replace("''", "'"))
        if kind == "quoted":
            return Column(token[1:-1])
        return _Literal(_VALUES[word]) if word in _VALUES else Column(token)

    def _parse_call(self, name: str, position: int) -> Expression:
        """Parse the call of a function; refuse unknown ones. `at`: where its name begins."""
        if name not in _FUNCTIONS:
            suggestion = did_you_mean(name, sorted(_FUNCTIONS)).strip()
            self.refuse(
                f"there is no function {name!r}{f'. {suggestion}' if suggestion else ''}", position
            )
        del self.tokens[:2]
        arguments = [self._parse_or()]
        while self._accept_token(","):
            arguments.append(self._parse_or())
        self._expect_token(")")
        _, min_arguments, max_arguments = _FUNCTIONS[name]
        if not min_arguments <= len(arguments) <= max_arguments:
            expected = (
                str(min_arguments)
                if min_arguments == max_arguments
                else f"{min_arguments} to {max_arguments}"
            )
            self.refuse(f"{name} takes {expected} arguments, but has {len(arguments)}", position)
        return _Call(name, tuple(arguments))

    def _begins_case(self) -> bool:
        """Return whether the next word begins a case, and is not a column of that name."""
        if len(self.tokens) < 2:
            return False
        kind, after, _ = self.tokens[1]
        return (
            after == "("
            or kind in ("text", "number", "quoted")
            or (
                kind == "word" and after.lower() not in _RESERVED - _VALUES.keys() | {"end", "then"}
            )
        )

    def _parse_case(self) -> Expression:
        """Parse a case, with or without a value that is compared."""
        del self.tokens[0]
        self._enter_nested()
        self.cases += 1
        subject = None if self._peek_token() == "when" else self._parse_or()
        conditions, values = [], []
        while self._accept_token("when"):
            condition = self._parse_or()
            conditions.append(
                condition if subject is None else self._compare("=", subject, condition)
            )
            self._expect_token("then")
            values.append(self._parse_or())
        if not conditions:
            self._expect_token("when")
        values.append(self._parse_or() if self._accept_token("else") else _Literal(None))
        self._expect_token("end")
        self.cases -= 1
        self.depth -= 1
        return Case(tuple(conditions), tuple(values))

    def _peek_token(self) -> str:
        """Return the next token in lower case; empty for literals, and at the end."""
        kind, token, _ = self.tokens[0] if self.tokens else ("", "", 0)
        return token.lower() if kind in ("word", "sign") else ""

    def _accept_token(self, word: str) -> bool:
        """Consume the next token if it is `word`; return whether it was."""
        if not self.tokens or self._peek_token() != word:
            return False
        self.tokens.pop(0)
        return True

    def _expect_token(self, word: str) -> None:
        """Consume the next token; refuse the expression if it is not `word`."""
        if not self._accept_token(word):
            if not self.tokens:
                self.refuse(f"{word!r} is missing at the end")
            _, token, position = self.tokens[0]
            self.refuse(f"{word!r} is missing before {token!r}", position)


_VALUES: dict[str, bool | None] = {"true": True, "false": False, "null": None}
