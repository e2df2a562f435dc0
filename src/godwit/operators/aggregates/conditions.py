"""Conditions on the rows that an aggregate counts: a small part of SQL, evaluated on columns.

::

    or      := and ("or" and)*
    and     := not ("and" not)*
    not     := "not" not | test
    test    := "(" or ")" | operand [sign operand | "is" ["not"] "null" | ["not"] "in" (literals)]
    operand := column | `column` | number | 'text' | true | false

Values compare as in Spark SQL: what is compared with null is null, NaN equals itself and is larger
than any number, and text stands for a date or a timestamp where it is compared with one.  A
condition is a picklable value that is evaluated by Arrow alone, so it runs wherever rows are.
"""

from __future__ import annotations

import datetime as dt
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import values_of
from godwit.model.errors import InvalidFlowError
from godwit.operators.aggregates.aggregate import Aggregate, BoundAggregate, BuiltIn, column_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from godwit.checkpoint.evolution import StateUpgrade

IntArray = npt.NDArray[np.int64]

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.]) |
    (?P<text>'(?:[^']|'')*') |
    (?P<quoted>`[^`]+`) |
    (?P<word>[^\W\d]\w*) |
    (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,|-)
    )""",
    re.VERBOSE,
)
_MAX_DEPTH, _MAX_DIGITS = 30, 38  # what is evaluated and pickled by recursion is never deep
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
    "Compare columns with columns, numbers, 'text', true or false by =, <>, <, <=, >, >=, in (...) "
    "or is [not] null, join comparisons by and, or, not and parentheses; compute anything else "
    "as a boolean column in a map before, and name that column."
)


@dataclass(frozen=True, slots=True)
class Condition(ABC):
    """A condition or operand in a parsed ``where``; `str` normalises its text."""

    @abstractmethod
    def evaluate(self, rows: Mapping[str, pa.Array]) -> pa.Array:
        """Return a boolean for every row, null where SQL's result is unknown."""

    def operands(self) -> tuple[Condition, ...]:
        """Return the operands of the condition, which are conditions, columns and literals."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(value for value in values if isinstance(value, Condition))


@dataclass(frozen=True, slots=True)
class _Column(Condition):
    """A column."""

    name: str

    def __str__(self) -> str:
        return f"`{self.name}`"

    def evaluate(self, rows: Mapping[str, pa.Array]) -> pa.Array:
        return rows[self.name]


@dataclass(frozen=True, slots=True)
class _Literal(Condition):
    """A literal."""

    value: bool | int | Decimal | str

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return str(self.value).lower()

    def evaluate(self, rows: Mapping[str, pa.Array]) -> pa.Array:
        length = len(next(iter(rows.values())))
        return pa.repeat(pa.scalar(self.value), length)

    def as_type(self, dtype: pa.DataType) -> pa.Scalar:
        """Return the literal as a scalar of type `dtype`, that of the column it is compared with.

        Raises `ValueError` if it has no value of this type.
        """
        value = self.value
        if isinstance(value, bool):
            if pa.types.is_boolean(dtype):
                return pa.scalar(value)
        elif isinstance(value, str):
            return _text_as(value, dtype)
        elif pa.types.is_floating(dtype):
            return pa.scalar(float(value), pa.float64())
        elif pa.types.is_integer(dtype) and isinstance(value, int):
            return pa.scalar(value, pa.int64())
        elif pa.types.is_integer(dtype) or pa.types.is_decimal(dtype):
            return pa.scalar(Decimal(value))
        raise ValueError(dtype)


def _text_as(text: str, dtype: pa.DataType) -> pa.Scalar:
    """Return a text literal as a scalar of type `dtype`; raise `ValueError` if it is not valid."""
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return pa.scalar(text, dtype)
    if pa.types.is_date(dtype):
        return pa.scalar(dt.date.fromisoformat(text), dtype)
    if pa.types.is_timestamp(dtype):
        moment = dt.datetime.fromisoformat(text)
        if (moment.tzinfo is None) == (dtype.tz is None):  # else which moment is meant is a guess
            return pa.scalar(moment, dtype)
    raise ValueError(dtype)


@dataclass(frozen=True, slots=True)
class _Comparison(Condition):
    """A comparison of two operands by the operator `sign`, such as ``"<="``."""

    sign: str
    left: Condition
    right: Condition

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"

    def evaluate(self, rows: Mapping[str, pa.Array]) -> pa.Array:
        """Compare the operands; a literal is converted to the other operand's type."""
        left, right = self.left, self.right
        one = None if isinstance(left, _Literal) else left.evaluate(rows)
        other = None if isinstance(right, _Literal) else right.evaluate(rows)
        if one is None and other is not None:
            one = left.as_type(other.type)  # type: ignore[attr-defined]  # a literal
        elif other is None and one is not None:
            other = right.as_type(one.type)  # type: ignore[attr-defined]  # a literal
        return _compared(self.sign, one, other)


def _compared(sign: str, left: pa.Array | pa.Scalar, right: pa.Array | pa.Scalar) -> pa.Array:
    """Compare two operands as Spark does: NaN equals NaN, and is larger than any number."""
    if _type_family(left.type) != _type_family(right.type):
        raise ValueError(sign)
    left, right = (v.cast(pa.decimal128(20)) if v.type == pa.uint64() else v for v in (left, right))
    if not (pa.types.is_floating(left.type) or pa.types.is_floating(right.type)):
        return _COMPARISONS[sign](left, right)
    left, right = left.cast(pa.float64()), right.cast(pa.float64())
    if sign in (">", "<="):  # in terms of the two below
        left, right, sign = right, left, {">": "<", "<=": ">="}[sign]
    nan, other_nan = pc.is_nan(left), pc.is_nan(right)
    if sign in ("=", "<>"):
        found = pc.or_(pc.equal(left, right), pc.and_(nan, other_nan))
    else:
        found = pc.or_(pc.less(left, right), pc.and_(other_nan, pc.invert(nan)))
    return pc.invert(found) if sign in ("<>", ">=") else found


def _type_family(dtype: pa.DataType) -> str:
    """Return the family of a type, such as "number"; only types of one family can be compared."""
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "number"
    if pa.types.is_large_string(dtype):
        return "string"
    return "timestamp" if pa.types.is_timestamp(dtype) and dtype.tz else str(dtype)


@dataclass(frozen=True, slots=True)
class _IsNull(Condition):
    """The condition ``operand is null``."""

    operand: Condition

    def __str__(self) -> str:
        return f"({self.operand} is null)"

    def evaluate(self, rows: Mapping[str, pa.Array]) -> pa.Array:
        return self.operand.evaluate(rows).is_null()


@dataclass(frozen=True, slots=True)
class _Not(Condition):
    """The negation of a condition."""

    operand: Condition

    def __str__(self) -> str:
        return f"(not {self.operand})"

    def evaluate(self, rows: Mapping[str, pa.Array]) -> pa.Array:
        return pc.invert(_truth(self.operand, rows))


@dataclass(frozen=True, slots=True)
class _Both(Condition):
    """Two conditions joined by `word`, ``"and"`` or ``"or"``."""

    word: str
    left: Condition
    right: Condition

    def __str__(self) -> str:
        return f"({self.left} {self.word} {self.right})"

    def evaluate(self, rows: Mapping[str, pa.Array]) -> pa.Array:
        join = pc.and_kleene if self.word == "and" else pc.or_kleene
        return join(_truth(self.left, rows), _truth(self.right, rows))


def _truth(condition: Condition, rows: Mapping[str, pa.Array]) -> pa.Array:
    """Evaluate a condition; raise `ValueError` if the result is not boolean."""
    found = condition.evaluate(rows)
    if not pa.types.is_boolean(found.type):
        raise ValueError(str(condition))
    return found


def _columns_read(condition: Condition) -> tuple[str, ...]:
    """Return the names of the columns that a condition reads, each once."""

    def walk(part: Condition) -> Iterator[str]:
        """Yield the column names of a condition, with repetitions."""
        if isinstance(part, _Column):
            yield part.name
        for operand in part.operands():
            yield from walk(operand)

    return tuple(dict.fromkeys(walk(condition)))


def _check_condition(condition: Condition, inputs: pa.Schema, call: str) -> None:
    """Refuse a condition on missing columns, or between types that cannot be compared.

    `call`: the aggregate as its user wrote it, for errors.
    """

    def check(part: Condition) -> None:
        """Check one part of the condition and, recursively, its operands."""
        for operand in part.operands():
            check(operand)
        try:
            if not isinstance(part, _Literal):
                part.evaluate(rows)
            if part is condition:
                _truth(part, rows)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            types = ", ".join(
                f"{name} is {inputs.field(name).type}" for name in _columns_read(part)
            )
            raise InvalidFlowError(
                f"{call} has a condition of which {part} cannot be evaluated ({types}).",
                remedy="Compare numbers with numbers and text with text; write a date as "
                "'2026-03-29', a timestamp as '2026-03-29 01:00:00' if its column has no time zone "
                "and as '2026-03-29 01:00:00+00:00' if it has one; a column alone has to be "
                "boolean.",
                aggregate=call,
                columns=list(_columns_read(part)),
            ) from error

    names = _columns_read(condition)
    rows = {
        name: pa.nulls(1, column_type(inputs, name, f"The condition of {call}")) for name in names
    }
    check(condition)


def parse_condition(text: object, call: str) -> Condition:
    """Parse the text of a condition; refuse malformed ones, and those that read no column.

    `call`: the aggregate as its user wrote it, for errors.
    """
    if not isinstance(text, str):
        raise InvalidFlowError(
            f"{call} has where={text!r}, which is a value of type {type(text).__name__}.",
            remedy='Write the condition as text, as in where="delay > 15".',
            aggregate=call,
        )
    parser = _Parser(text, call)
    condition = parser.parse_or()
    if parser.tokens:
        parser.refuse(f"{parser.tokens[0][1]!r} is not expected")
    if not _columns_read(condition):
        parser.refuse("it names no column")
    return condition


def _balanced(word: str, parts: list[Condition]) -> Condition:
    """Join conditions by ``and`` or ``or`` (`word`), as a balanced tree."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return _Both(word, _balanced(word, parts[:half]), _balanced(word, parts[half:]))


class _Parser:
    """Recursive-descent parser of the grammar at the top of the module."""

    def __init__(self, text: str, call: str) -> None:
        self.text, self.call = text, call
        self.depth = 0
        self.tokens: list[tuple[str, str]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                self.refuse(f"{text[at:end].strip()!r} is not understood")
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()

    def refuse(self, why: str) -> NoReturn:
        """Raise the error that the condition is malformed, with the reason."""
        raise InvalidFlowError(
            f"{self.call} has the condition {self.text!r}, in which {why}.",
            remedy=_GRAMMAR,
            aggregate=self.call,
        )

    def parse_or(self) -> Condition:
        """Parse one or several conditions joined by ``or``."""
        parts = [self._parse_and()]
        while self._accept("or"):
            parts.append(self._parse_and())
        return _balanced("or", parts)

    def _parse_and(self) -> Condition:
        """Parse one or several conditions joined by ``and``."""
        parts = [self._parse_not()]
        while self._accept("and"):
            parts.append(self._parse_not())
        return _balanced("and", parts)

    def _parse_not(self) -> Condition:
        """Parse a condition, which may have ``not`` before it."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.refuse(f"parentheses and not are nested more than {_MAX_DEPTH} deep")
        condition = _Not(self._parse_not()) if self._accept("not") else self._parse_test()
        self.depth -= 1
        return condition

    def _parse_test(self) -> Condition:
        """Parse a comparison, ``is null``, ``in``, a boolean column, or any in parentheses."""
        if self._accept("("):
            condition = self.parse_or()
            self._expect(")")
            return condition
        operand = self._parse_operand()
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("null")
            return _Not(_IsNull(operand)) if negated else _IsNull(operand)
        if (negated := self._accept("not")) or (self.tokens and self._peek() == "in"):
            self._expect("in")
            found = self._parse_in(operand)
            return _Not(found) if negated else found
        kind, sign = self.tokens[0] if self.tokens else ("", "")
        sign = _SIGNS.get(sign, sign)
        if kind == "sign" and sign in _COMPARISONS:
            self.tokens.pop(0)
            return self._parse_comparison(sign, operand)
        return operand

    def _parse_in(self, operand: Condition) -> Condition:
        """Parse the list after ``operand in``, and return it as comparisons joined by ``or``."""
        self._expect("(")
        parts: list[Condition] = [self._parse_comparison("=", operand)]
        while self._accept(","):
            parts.append(self._parse_comparison("=", operand))
        self._expect(")")
        return _balanced("or", parts)

    def _parse_comparison(self, sign: str, left: Condition) -> Condition:
        """Parse the right operand of a comparison, and return the comparison."""
        right = self._parse_operand()
        if isinstance(left, _Literal) and isinstance(right, _Literal):
            self.refuse(f"{left} and {right} are compared, neither of which is a column")
        return _Comparison(sign, left, right)

    def _parse_operand(self) -> Condition:
        """Parse a column or a literal, and return it."""
        if not self.tokens:
            self.refuse("something is missing at the end")
        negative = self._accept("-")
        kind, token = self.tokens.pop(0) if self.tokens else ("", "")
        if kind == "number":
            if len(token) > _MAX_DIGITS:
                self.refuse(f"a number has more than {_MAX_DIGITS} digits")
            value = int(token) if token.isdigit() else Decimal(token)
            return _Literal(-value if negative else value)
        if negative:
            self.refuse("a minus sign is not followed by a number")
        if kind == "text":
            return _Literal(token[1:-1].replace("''", "'"))
        if kind == "quoted":
            return _Column(token[1:-1])
        if kind == "word" and token.lower() in ("true", "false"):
            return _Literal(token.lower() == "true")
        if kind == "word" and token.lower() == "null":
            self.refuse("a value is compared with null, which is never true: write is null")
        if kind == "word" and token.lower() not in _RESERVED:
            return _Column(token)
        return self.refuse(f"{token!r} is not expected")

    def _peek(self) -> str:
        """Return the next token in lower case; empty for literals and columns."""
        kind, token = self.tokens[0]
        return token.lower() if kind in ("word", "sign") else ""

    def _accept(self, word: str) -> bool:
        """Consume the next token if it is `word`; return whether it was."""
        if not self.tokens or self._peek() != word:
            return False
        self.tokens.pop(0)
        return True

    def _expect(self, word: str) -> None:
        """Consume the next token; refuse the condition if it is not `word`."""
        if not self._accept(word):
            after = f"before {self.tokens[0][1]!r}" if self.tokens else "at the end"
            self.refuse(f"{word!r} is missing {after}")


def restricted(aggregate: Aggregate, where: object) -> Aggregate:
    """Return the aggregate, applied only to rows that meet `where`; to all if that is ``None``."""
    if where is None:
        return aggregate
    condition = parse_condition(where, repr(aggregate))
    return Conditional(aggregate=aggregate, where=str(where), condition=condition)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Conditional:
    """An unbound aggregate restricted to the rows of a condition.

    A state is that of the aggregate itself: rows for which the condition is false or null are left
    out before it sees them, so it merges, moves and comes out as it would without a condition.
    """

    aggregate: Aggregate
    where: str  # the condition as it was written
    condition: Condition

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the aggregate reads, then those that the condition reads."""
        return tuple(dict.fromkeys([*self.aggregate.columns, *_columns_read(self.condition)]))

    def __repr__(self) -> str:
        call = repr(self.aggregate)
        return f"{call[:-1]}{'' if call.endswith('()') else ', '}where={self.where!r})"

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate and its condition to the columns of a stream."""
        bound = self.aggregate.bind(inputs)
        _check_condition(self.condition, inputs, repr(self))
        return _Filtered(
            aggregate=bound,
            own=len(self.aggregate.columns),
            columns=self.columns,
            condition=self.condition,
            state=bound.state,
            output=bound.output,
            identity={**bound.describe(), "where": str(self.condition)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filtered(BuiltIn):
    """A bound aggregate restricted to the rows of a condition."""

    aggregate: BoundAggregate
    own: int
    columns: tuple[str, ...]
    condition: Condition

    @property
    def commutative(self) -> bool:
        return self.aggregate.commutative

    @property
    def idempotent(self) -> bool:
        return self.aggregate.idempotent

    def create(self, count: int) -> pa.RecordBatch:
        return self.aggregate.create(count)

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        holds = self.condition.evaluate(dict(zip(self.columns, columns, strict=True)))
        rows = np.flatnonzero(values_of(holds.fill_null(False)))
        taken = columns[: self.own]
        if len(rows) < len(groups):
            at = pa.array(rows)
            groups, taken = groups[rows], tuple(column.take(at) for column in taken)
        return self.aggregate.update(states, groups, *taken)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self.aggregate.merge(left, right)

    @property
    def narrow(self) -> BoundAggregate:
        if not isinstance(self.aggregate, BuiltIn):
            return self
        inner = self.aggregate.narrow
        return replace(self, aggregate=inner, state=inner.state)

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return self.aggregate.finish(states)

    def upgrade_from(self, stored: Mapping[str, Any]) -> StateUpgrade | None:
        if stored.get("where") != self.identity["where"] or not isinstance(self.aggregate, BuiltIn):
            return None
        return self.aggregate.upgrade_from(
            {name: value for name, value in stored.items() if name != "where"}
        )
