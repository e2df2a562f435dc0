"""Schemas written as text, in the whole of Spark's DDL for columns.

A grammar of our own, since a flow is built without asking Spark anything::

    columns   = column {"," column}  |  "struct" "<" columns ">"
    column    = name [":"] type ["not" "null"] ["comment" text]
    type      = "array" "<" type ">"  |  "map" "<" type "," type ">"
              | "struct" "<" [columns] ">"  |  "interval" unit ["to" unit]
              | "timestamp" "without" "time" "zone"
              | word ["(" number {"," number} ")"] ["collate" word]

Names may stand in backticks; ``--`` and ``/* */`` begin comments.  ``not null`` and ``comment`` are
read and of no effect: every column may hold nulls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, listing

__all__ = ["columns_of_text", "type_of_text"]

_BY_NAME: dict[str, pa.DataType] = {
    **dict.fromkeys(("boolean", "bool"), pa.bool_()),
    **dict.fromkeys(("byte", "tinyint", "int8"), pa.int8()),
    **dict.fromkeys(("short", "smallint", "int16"), pa.int16()),
    **dict.fromkeys(("int", "integer", "int32"), pa.int32()),
    **dict.fromkeys(("long", "bigint", "int64"), pa.int64()),
    **dict.fromkeys(("float", "real", "float32"), pa.float32()),
    **dict.fromkeys(("double", "float64"), pa.float64()),
    **dict.fromkeys(("string", "str", "varchar", "char", "character"), pa.string()),
    **dict.fromkeys(("binary", "bytes"), pa.binary()),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(("decimal", "dec", "numeric"), pa.decimal128(10, 0)),
}
_NESTED = ("array<...>", "map<..., ...>", "struct<...>", "interval day to second")
_DECIMALS = ("decimal", "dec", "numeric")
_WITH_LENGTH = ("varchar", "char", "character", "time")
_ELSEWHERE = {
    "void": "A column needs a type that values can have.",
    "variant": "Give it as text (string), such as JSON.",
    "geometry": "Give it as binary, such as WKB.",
    "geography": "Give it as binary, such as WKB.",
}
_DAY_UNITS = ("day", "hour", "minute", "second")
_MONTH_UNITS = ("year", "month")
_PAIRS = 'Write names and types in pairs, as in "symbol string, price double".'

_TOKEN = re.compile(
    r"""(?P<nothing>\s+|--[^\n]*|/\*.*?\*/)
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<word>\w+)
      | (?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)


def columns_of_text(text: str, where: str) -> list[tuple[str, pa.DataType]]:
    """Read names and types of columns.

    `text`: such as ``"symbol string, sizes array<bigint>, price decimal(10, 2) not null"``.
    `where`: subject of the messages, such as ``"The output of operator 'trades'"``. Raises
    `InvalidFlowError` if it cannot be read; says where it goes wrong.

    Examples
    --------
    >>> columns_of_text("symbol string, sizes array<bigint>", where="The output")
    [('symbol', DataType(string)), ('sizes', ListType(list<item: int64>))]
    """
    reader = _Reader(text, where)
    if not reader.has_more():
        return []
    inside = reader.takes("struct", "<")
    columns = reader.columns()
    if inside:
        reader.expect(">")
    if reader.has_more():
        raise reader.wrong(_PAIRS)
    return columns


def type_of_text(name: str, text: str, where: str) -> pa.DataType:
    """Read the type of column `name`.

    Raises `InvalidFlowError` if it cannot be read, or Arrow has no such type.
    """
    reader = _Reader(text, where, column=name)
    if not reader.has_more():
        raise reader.wrong("Write a type, such as string.")
    dtype = reader.type()
    if reader.has_more():
        raise reader.wrong("Write one type, such as decimal(10, 2).")
    return dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def value(self) -> str:
        return self.text.replace("``", "`") if self.kind == "quoted" else self.text.lower()


class _Reader:
    """Reads a text from left to right; every method takes what it names."""

    def __init__(self, text: str, where: str, column: str = "") -> None:
        self._text, self._where, self._column = text, where, column
        self._tokens = [
            _Token(kind=str(found.lastgroup), text=found[str(found.lastgroup)], start=found.start())
            for found in _TOKEN.finditer(text)
            if found.lastgroup != "nothing"
        ]
        self._next = 0

    def has_more(self) -> bool:
        return self._next < len(self._tokens)

    def takes(self, *words: str) -> bool:
        """Take these words or signs, if they come next."""
        ahead = self._tokens[self._next : self._next + len(words)]
        if [t.value for t in ahead if t.kind in ("word", "sign")] != list(words):
            return False
        self._next += len(words)
        return True

    def expect(self, sign: str) -> None:
        if not self.takes(sign):
            raise self.wrong(f"A {sign!r} is missing there.")

    def wrong(self, remedy: str) -> InvalidFlowError:
        start = self._tokens[self._next].start if self.has_more() else len(self._text)
        rest = self._text[start : start + 30].strip()
        return InvalidFlowError(
            f"{self._where} cannot be read at {rest!r} (character {start + 1} of {self._text!r}).",
            remedy=remedy,
            text=self._text,
        )

    def columns(self) -> list[tuple[str, pa.DataType]]:
        found = [self.column()]
        while self.takes(","):
            found.append(self.column())
        return found

    def column(self) -> tuple[str, pa.DataType]:
        if not self.has_more() or self._tokens[self._next].kind not in ("word", "quoted"):
            raise self.wrong(_PAIRS)
        token = self._tokens[self._next]
        name = token.value if token.kind == "quoted" else token.text
        self._next += 1
        self.takes(":")
        if not self.has_more():
            self._next -= 1
            raise self.wrong(_PAIRS)
        outer, self._column = self._column, f"{self._column}.{name}" if self._column else name
        dtype = self.type()
        self._column = outer
        self.takes("not", "null")
        if self.takes("comment"):
            if not self.has_more() or self._tokens[self._next].kind != "text":
                raise self.wrong("Write the comment in quotes, as in comment 'in dollars'.")
            self._next += 1
        return name, dtype

    def type(self) -> pa.DataType:
        if self.takes("array", "<"):
            element = self.type()
            self.expect(">")
            return pa.list_(element)
        if self.takes("map", "<"):
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return pa.map_(key, value)
        if self.takes("struct", "<"):
            fields = [] if self.takes(">") else self.columns()
            if fields:
                self.expect(">")
            return pa.struct([pa.field(name, dtype) for name, dtype in fields])
        if self.takes("interval"):
            return self.interval()
        if self.takes("timestamp", "without", "time", "zone"):
            return pa.timestamp("us")
        if not self.has_more() or self._tokens[self._next].kind != "word":
            raise self.wrong(_PAIRS)
        word = self._tokens[self._next].value
        if word not in _BY_NAME:
            raise self._unknown(word)
        self._next += 1
        dtype = _BY_NAME[word]
        numbers = self.numbers(word)
        if numbers and word in _DECIMALS:
            dtype = self._decimal(numbers)
        if self.takes("collate"):
            self._next += 1
        return dtype

    def numbers(self, word: str) -> list[int]:
        if not self.takes("("):
            return []
        numbers: list[int] = []
        most = 2 if word in _DECIMALS else 1 if word in _WITH_LENGTH else 0
        while len(numbers) < most and self.has_more() and self._tokens[self._next].text.isdecimal():
            numbers.append(int(self._tokens[self._next].text))
            self._next += 1
            if not self.takes(","):
                break
        if not numbers:
            self._next -= not most
            raise self.wrong(
                "Write a number, as in decimal(10, 2)." if most else f"{word} takes no numbers."
            )
        self.expect(")")
        return numbers

    def interval(self) -> pa.DataType:
        units = [self._unit()]
        if self.takes("to"):
            units.append(self._unit())
        if units[0] in _DAY_UNITS and units[-1] in _DAY_UNITS:
            return pa.duration("us")
        raise InvalidFlowError(
            f"{self._where} gives column {self._column!r} an interval of {' to '.join(units)}s, "
            "which Arrow has no type for.",
            remedy="Give a number of months (int), or an interval day to second.",
            column=self._column,
        )

    def _unit(self) -> str:
        for unit in (*_DAY_UNITS, *_MONTH_UNITS):
            if self.takes(unit):
                return unit
        raise self.wrong("Name units, as in interval day to second.")

    def _decimal(self, numbers: list[int]) -> pa.DataType:
        precision, scale = (*numbers, 0)[:2]
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidFlowError(
                f"{self._where} gives column {self._column!r} the type "
                f"'decimal({precision}, {scale})'.",
                remedy="A decimal has 1 to 38 digits, and no more of them after the point.",
                column=self._column,
            )
        return pa.decimal128(precision, scale)

    def _unknown(self, word: str) -> InvalidFlowError:
        known = [*_BY_NAME, *_NESTED]
        return InvalidFlowError(
            f"{self._where} gives column {self._column!r} the type {word!r}, "
            + ("which Arrow has no type for." if word in _ELSEWHERE else "which is not known."),
            remedy=_ELSEWHERE.get(
                word,
                f"{did_you_mean(word, known)}Types are {listing(known, 40)}; for any other, give "
                "an Arrow type, as in {" + repr(self._column) + ": pa.large_string()}.",
            ),
            column=self._column,
        )
