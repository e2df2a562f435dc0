"""Functions of Spark over texts, and formatting of times; see `godwit.adopt.functions`."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.adopt.casts import local_times, year_as_text
from godwit.adopt.java_numbers import grouped_text
from godwit.adopt.json_texts import key_texts, to_json
from godwit.columns.arrays import mask_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adopt.casts import FunctionSpec

_LETTERS = {
    "yyyy": "year",
    "y": "year1",
    "yy": "year of 100",
    "Q": "quarter",
    "MM": "month",
    "M": "month1",
    "MMM": "Jan",
    "MMMM": "January",
    "dd": "day",
    "d": "day1",
    "D": "day of year",
    "E": "Mon",
    "EE": "Mon",
    "EEE": "Mon",
    "EEEE": "Monday",
    "HH": "hour",
    "H": "hour1",
    "hh": "hour of 12",
    "h": "hour of 12, 1",
    "a": "AM",
    "mm": "minute",
    "m": "minute1",
    "ss": "second",
    "s": "second1",
}
"""Letters of a pattern → the field of a time."""
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
_ALL_BITS = (1 << 64) - 1


def each(call: Callable[..., Any], dtype: pa.DataType, *columns: pa.Array) -> pa.Array:
    """Call a Python function for every row without a null."""
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([None if None in row else call(*row) for row in rows], dtype)


def _per_row(apply: Callable[..., Any]) -> Callable[..., pa.Array]:
    """Return a function that calls a Python function for every row."""

    def evaluate(call: FunctionSpec, *columns: pa.Array) -> pa.Array:
        return each(apply, call.dtype, *columns)

    return evaluate


def _pad_or_cut(text: str, length: int, pad: str, *, left: bool) -> str:
    """Pad or truncate a text to a length."""
    if length <= len(text) or not pad:
        return text[: max(length, 0)]
    fill = (pad * (length - len(text)))[: length - len(text)]
    return fill + text if left else text + fill


def part_of_text(text: str, first: int, count: int) -> str:
    """Return some characters of a text from a position, which counts from the end if negative."""
    start = first - 1 if first > 0 else len(text) + first if first < 0 else 0
    end = min(max(start + count, -(1 << 31)), (1 << 31) - 1)
    return text[max(start, 0) : max(end, 0)] if end > start else ""


def _overlay(text: str, part: str, first: int, count: int) -> str:
    """Replace some characters of a text by another text."""
    after = first + (count if count >= 0 else len(part))
    return part_of_text(text, 1, first - 1) + part + part_of_text(text, after, (1 << 31) - 1)


def _levenshtein(left: str, right: str) -> int:
    """Return the Levenshtein distance of texts."""
    before = list(range(len(right) + 1))
    for number, letter in enumerate(left, 1):
        row = [number]
        for place, other in enumerate(right):
            row.append(min(before[place + 1] + 1, row[-1] + 1, before[place] + (letter != other)))
        before = row
    return before[-1]


def _grouped_digits(call: FunctionSpec, numbers: pa.Array) -> pa.Array:
    """Return numbers with ``options[0]`` decimal places, and a comma before each three digits."""
    return each(lambda number: grouped_text(number, call.options[0]), call.dtype, numbers)


def _before_delimiter(text: str, delimiter: str, count: int) -> str:
    """Return the part before a number of delimiters, counted from the end if negative.

    Delimiters may overlap.
    """
    if not delimiter or not count:
        return ""
    place = -1 if count > 0 else len(text) - len(delimiter) + 1
    for _ in range(abs(count)):
        if count > 0:
            place = text.find(delimiter, place + 1)
        else:
            place = text.rfind(delimiter, 0, max(place - 1, -1) + len(delimiter))
        if place < 0:
            return text
    return text[:place] if count > 0 else text[place + len(delimiter) :]


def _locate(part: str, text: str, start: int) -> int:
    """Return the position of a part in a text, from 1, at `start` or later; else 0."""
    if not part:
        return int(start > 0)
    return text.find(part, start - 1) + 1 if start > 0 else 0


def _split(call: FunctionSpec, texts: pa.Array) -> pa.Array:
    """Return the parts of texts between the delimiter ``options[0]``."""
    delimiter = call.options[0]
    return each(lambda text: text.split(delimiter), call.dtype, texts)


def _sha_function(bits: int) -> Callable[[bytes], str]:
    """Return the hash function of a number of bits."""
    name = "sha256" if bits in (0, 256) else f"sha{bits}"
    return lambda data: hashlib.new(name, data).hexdigest()


def _sha2(call: FunctionSpec, data: pa.Array) -> pa.Array:
    """Return the SHA-2 hash with ``options[0]`` bits."""
    return each(_sha_function(call.options[0]), call.dtype, data)


def literal_pattern(pattern: str) -> str | None:
    """Return the literal text of a regular expression; ``None`` if it is not a literal."""
    plain = re.sub(r"\\([^\w\s])|\[([^\w\s\\^\]\[])\]", lambda m: m.group(1) or m.group(2), pattern)
    unescaped = re.sub(r"\\[^\w\s]|\[[^\w\s\\^\]\[]\]", "", pattern)
    return plain if plain and not set(unescaped) & set("\\[](){}.*+?^$|") else None


def date_format_of(pattern: str) -> tuple[str, ...] | None:
    """Return the parts of a pattern of times; ``None`` if some are unsupported.

    A part is the name of a field, ``fraction`` with its number of digits, or a text after ``=``.
    """
    parts: list[str] = []
    for match in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'", pattern):
        piece = match.group(0)
        if match.group(1) is not None:
            parts.append("=" + (match.group(1).replace("''", "'") or "'"))
        elif match.group(2) is not None:
            if set(piece) == {"S"} and len(piece) <= 6:
                parts.append(f"fraction{len(piece)}")
            elif piece in _LETTERS:
                parts.append(_LETTERS[piece])
            else:
                return None
        elif piece == "'" or set(piece) & set("[]{}#"):
            return None
        else:
            parts.append("=" + piece)
    return tuple(parts)


def _format_times(call: FunctionSpec, times: pa.Array) -> pa.Array:
    """Return times as text, by the parts in ``options[0]``, in the zone of the session."""
    mask = mask_of(times)
    micros = local_times(times, call.zone)
    moments = (micros if mask is None else np.where(mask, micros, 0)).astype("M8[us]")
    day = moments.astype("M8[D]")
    month = moments.astype("M8[M]")
    seconds = (moments - day).astype(np.int64) // 1_000_000
    year = moments.astype("M8[Y]")
    hour, months = seconds // 3600, month.astype(np.int64) % 12
    numbers_of = {
        "year": year.astype(np.int64) + 1970,
        "month": months + 1,
        "day": (day - month.astype("M8[D]")).astype(np.int64) + 1,
        "hour": hour,
        "minute": seconds // 60 % 60,
        "second": seconds % 60,
    }
    fields = {name: (number, 2) for name, number in numbers_of.items()}
    fields |= {f"{name}1": (number, 1) for name, number in numbers_of.items()}
    fields |= {
        "year of 100": (abs(numbers_of["year"]) % 100, 2),
        "quarter": (months // 3 + 1, 1),
        "day of year": ((day - year.astype("M8[D]")).astype(np.int64) + 1, 1),
        "hour of 12": ((hour - 1) % 12 + 1, 2),
        "hour of 12, 1": ((hour - 1) % 12 + 1, 1),
    }
    days = day.astype(np.int64)
    words = {"AM": np.where(hour < 12, "AM", "PM")}
    words |= {"Mon": _day_names(days), "Monday": _day_names(days, None)}
    words |= {"Jan": _month_names(months), "January": _month_names(months, None)}
    fraction = (moments - day).astype(np.int64) % 1_000_000
    texts = [""] * len(times)
    for part in call.options[0]:
        if part.startswith("="):
            texts = [text + part[1:] for text in texts]
            continue
        if part in words:
            texts = [text + word for text, word in zip(texts, words[part].tolist(), strict=True)]
            continue
        if part == "year":
            years = map(year_as_text, numbers_of[part].tolist())
            texts = [text + year for text, year in zip(texts, years, strict=True)]
            continue
        if part.startswith("fraction"):
            digits = int(part[8:])
            numbers, width = fraction // 10 ** (6 - digits), digits
        else:
            numbers, width = fields[part]
        texts = [
            f"{text}{number:0{width}d}"
            for text, number in zip(texts, numbers.tolist(), strict=True)
        ]
    return pa.array(texts, pa.string(), mask=None if mask is None else ~mask)


def _day_names(days: Any, letters: int | None = 3) -> Any:
    """Return the names of days since 1970, of some letters or all."""
    return np.array([name[:letters] for name in _DAYS])[(days + 3) % 7]


def _month_names(months: Any, letters: int | None = 3) -> Any:
    """Return the names of months since a January, of some letters or all."""
    return np.array([name[:letters] for name in _MONTHS])[months % 12]


def named_day(days: Any, mask: Any) -> pa.Array:
    """Return the short names of days since 1970."""
    return pa.array(_day_names(days), pa.string(), mask=None if mask is None else ~mask)


def named_month(months: Any, mask: Any) -> pa.Array:
    """Return the short names of months since 1970."""
    return pa.array(_month_names(months), pa.string(), mask=None if mask is None else ~mask)


def _capitalize_words(text: str) -> str:
    """Return a text whose words, between spaces, begin with a capital letter."""
    words = text.split(" ")
    return " ".join(word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in words)


def _base64_encode(call: FunctionSpec, data: pa.Array) -> pa.Array:
    """Return bytes as text, with a line break after 76 characters if ``options[0]`` says so."""

    def encoded(value: bytes) -> str:
        text = base64.b64encode(value).decode()
        width = 76 if any(call.options) else max(len(text), 1)
        return "\r\n".join(text[place : place + width] for place in range(0, len(text), width))

    return each(encoded, call.dtype, data)


def _hexadecimal(value: int | str | bytes) -> str:
    """Return bytes, or an integer of 64 bits, in hexadecimal digits."""
    if isinstance(value, int):
        return f"{value & _ALL_BITS:X}"
    return (value.encode() if isinstance(value, str) else value).hex().upper()


def _octet_length(value: str | bytes) -> int:
    """Return the number of bytes."""
    return len(value.encode() if isinstance(value, str) else value)


def _matches_pattern(call: FunctionSpec, texts: pa.Array) -> pa.Array:
    """Return whether a part of a text matches the pattern ``options[0]``."""
    pattern = call.options[0].pattern
    return each(lambda text: pattern.search(text) is not None, call.dtype, texts)


def _regexp_extract(call: FunctionSpec, texts: pa.Array) -> pa.Array:
    """Return group ``options[1]`` of the first match of ``options[0]``, or an empty text."""
    pattern, group = call.options[0].pattern, call.options[1]

    def extract(text: str) -> str:
        match = pattern.search(text)
        return (match and match[group]) or ""

    return each(extract, call.dtype, texts)


def _regexp_replace(call: FunctionSpec, texts: pa.Array) -> pa.Array:
    """Replace matches of ``options[0]`` in texts by ``options[1]``."""
    pattern, text = call.options[0].pattern, call.options[1]
    return each(lambda old: pattern.sub(lambda _: text, old), call.dtype, texts)


def _translate(call: FunctionSpec, texts: pa.Array) -> pa.Array:
    """Replace or remove characters of texts by the table ``options[0]``."""
    return each(lambda text: text.translate(call.options[0]), call.dtype, texts)


TEXTS: dict[str, Callable[..., Any]] = {
    "Ascii": _per_row(lambda text: ord(text[0]) if text else 0),
    "Base64": _base64_encode,
    "Bin": _per_row(lambda number: f"{number & _ALL_BITS:b}"),
    "BitLength": _per_row(lambda value: 8 * _octet_length(value)),
    "Crc32": _per_row(zlib.crc32),
    "DateFormatClass": _format_times,
    "FormatNumber": _grouped_digits,
    "Hex": _per_row(_hexadecimal),
    "InitCap": _per_row(_capitalize_words),
    "KeyText": key_texts,
    "Levenshtein": _per_row(_levenshtein),
    "Md5": _per_row(lambda data: hashlib.md5(data, usedforsecurity=False).hexdigest()),
    "Sha1": _per_row(lambda data: hashlib.sha1(data, usedforsecurity=False).hexdigest()),
    "Sha2": _sha2,
    "OctetLength": _per_row(_octet_length),
    "Overlay": _per_row(_overlay),
    "RLike": _matches_pattern,
    "RegExpExtract": _regexp_extract,
    "RegExpReplace": _regexp_replace,
    "StringInstr": _per_row(lambda text, part: text.find(part) + 1),
    "StringLPad": _per_row(lambda text, length, pad: _pad_or_cut(text, length, pad, left=True)),
    "StringLocate": _per_row(_locate),
    "StringRPad": _per_row(lambda text, length, pad: _pad_or_cut(text, length, pad, left=False)),
    "StringRepeat": _per_row(lambda text, times: text * max(times, 0)),
    "StringSplit": _split,
    "StringSplitSQL": _per_row(lambda text, part: text.split(part) if part else [text]),
    "StringTranslate": _translate,
    "StructsToJson": to_json,
    "SubstringIndex": _per_row(_before_delimiter),
}
"""Spark's expression class → its function of columns; null where the last of these is null."""
