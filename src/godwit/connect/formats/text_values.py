"""One rule for values in text: numbers, booleans, times, bytes and exact numbers of JSON.

CSV files, names of partition directories, JSON files and JSON messages are read by the rules of
this module. Arrow's parsers are used where they agree with the rules, because they are fast; their
results are not used where they may differ (`has_small_numbers`, `has_hexadecimals`).

- A number is written in ASCII digits, with an optional sign, decimal point and exponent, and with
  blanks or tabs around it. ``1.0`` and ``1e2`` are whole numbers.
- An integer or a decimal is exact or refused. A float is the one nearest to the text, rounded once;
  a number beyond the largest one is refused. A double halfway between two narrower floats does not
  say which of them is nearer, so the text of such a number is read again (`TextsNeededError`).
- ``-0`` is the negative zero of a float in text. In JSON it is a whole number, so it is zero, as
  Spark reads it; ``-0.0`` is the negative zero. A zero that is the key of a map has no sign.
- ``NaN`` and the infinities have names in text; JSON has none of them.
- Times are text in ISO 8601, bytes in JSON are Base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from contextlib import contextmanager, suppress
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, convert_leaves, mask_of, values_of
from godwit.columns.types import is_binary, is_list, is_temporal, is_text
from godwit.connect.formats.time_texts import parse_times

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_SMALL: Final = re.compile(rb"\d\.?[eE]-0*[1-9]\d+(?![\w-])")
_HIDDEN: Final = re.compile(rb"\\u00(?:2[dD]|3\d|[46]5)")  # escapes of minus, digits, E and e
_NAME_OF_NUMBER: Final = re.compile(rb"(?:NaN|Inf(?:inity)?)\s*[,}\]]")
_BEFORE_NAME: Final = np.frombuffer(b":,[- \t\r\n", np.uint8)
_WHOLE_NEGATIVE_ZERO: Final = re.compile(rb"-0\s*[,}\]]")
_BLANKS: Final = " \t"
_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
NUMBER_SHAPE: Final = re.compile(_NUMBER)
_FLOAT: Final = rf"^(?:{_NUMBER}|[+-]?(?i:nan|inf|infinity))$"
_NOT_FINITE: Final = "(?i)n"  # is in the names of NaN and the infinities, and in no number
_SHORT_INTEGER: Final = r"^[+-]?[0-9]{1,18}(?:\.0*)?$"
_ZEROS_AT_END: Final = r"\.0*$"
_TEXTS_IN_JSON: Final[dict[str, str | None]] = {"-0": "0", "null": None}
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}
_DIGITS_OF_INTEGER: Final = 20
_CACHED: Final = 1 << 17  # bytes that a processor has at hand while it passes over them
_MAX_DIGITS: Final = 1000  # of an integer in a JSON text of a schema
_LONGEST: Final = 50  # characters of a text that an error shows


class TextsNeededError(ValueError):
    """Values need their texts: a double is halfway between two floats, or keys are equal."""


def is_number(dtype: pa.DataType) -> bool:
    """Return whether values of a type are numbers."""
    types = pa.types
    return bool(types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype))


def is_narrow_float(dtype: pa.DataType) -> bool:
    """Return whether values of a type are floats of 16 or 32 bits."""
    return bool(pa.types.is_float16(dtype) or pa.types.is_float32(dtype))


def as_json(dtype: pa.DataType) -> pa.DataType:
    """Return the type that the values of a leaf's type have in JSON."""
    if pa.types.is_floating(dtype):
        return pa.float64()
    return pa.string() if is_temporal(dtype) or is_binary(dtype) else dtype


def from_json(column: pa.Array, field: pa.Field) -> pa.Array:
    """Convert a column from the types of `as_json`, or from floats, to its type.

    Raises ValueError, with the column, for a value that the type does not have, and
    `TextsNeededError`.
    """
    with _naming(field):
        return convert_leaves(column, field.type, _from_json)


def has_equal_keys(column: pa.Array) -> bool:
    """Return whether a map in a column has two keys of equal value."""
    if pa.types.is_struct(column.type):
        return any(map(has_equal_keys, column.flatten()))
    if is_list(column.type):
        return has_equal_keys(column.flatten())
    if not pa.types.is_map(column.type) or not len(column):
        return False
    bounds = values_of(column.offsets)
    inner = slice(int(bounds[0]), int(bounds[-1]))
    keys = column.keys[inner].dictionary_encode()
    in_map = np.repeat(np.arange(len(column)), np.diff(bounds)) * len(keys.dictionary)
    entries = np.unique(in_map + values_of(keys.indices))
    return len(entries) < len(keys) or has_equal_keys(column.items[inner])


def from_text(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Return texts as a column of their type.

    Raises ValueError, with the column and the text, for a text that is not a value of the type.
    """
    with _naming(field):
        return _parse(texts, field.type)


def load_json(text: str | bytes) -> Any:
    """Parse a JSON text; raise a readable ValueError for integers beyond Python's limit."""
    return json.loads(text, parse_int=_short_integer)


def _short_integer(text: str) -> int:
    """Return a text as an integer; raise if it has too many digits."""
    if len(text) > _MAX_DIGITS:
        msg = f"{_shortened(text)} is an integer of more than {_MAX_DIGITS} digits"
        raise ValueError(msg)
    return int(text)


@contextmanager
def _naming(field: pa.Field) -> Iterator[None]:
    """Name the column in a ValueError of the block."""
    try:
        yield
    except TextsNeededError:
        raise
    except ValueError as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from error


def _parse(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return texts as an array of a type without nesting; or raise."""
    if is_temporal(dtype):
        return parse_times(texts, dtype)
    if pa.types.is_boolean(dtype):
        return pa.array([_truth(text) for text in texts.to_pylist()], dtype)
    if not is_number(dtype):
        return texts.cast(dtype)
    texts = pc.utf8_trim(texts, _BLANKS)
    if pa.types.is_floating(dtype):
        return _parse_floats(texts, dtype)
    is_short = pc.match_substring_regex(texts, _SHORT_INTEGER)
    if pa.types.is_integer(dtype) and pc.all(is_short).as_py() is not False:
        with suppress(pa.ArrowInvalid):  # the number that does not fit is found below
            texts = pc.replace_substring_regex(_without_plus(texts), _ZEROS_AT_END, "")
            return texts.cast(pa.int64()).cast(dtype)
    return pa.array([_exact_text(text, dtype) for text in texts.to_pylist()], dtype)


def _parse_floats(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return texts, without blanks around them, as floats; or raise."""
    matches = pc.match_substring_regex(texts, _FLOAT)
    if pc.all(matches).as_py() is False:
        _refuse(texts.filter(pc.invert(matches))[0].as_py(), dtype)
    # Arrow rounds texts once to floats of 32 and 64 bits, but not to those of 16 bits.
    parsed_type = pa.float64() if pa.types.is_float16(dtype) else dtype
    numbers = _without_plus(texts).cast(parsed_type)
    if parsed_type is not dtype:
        numbers = _narrow_by_texts(numbers, texts, dtype)
    is_beyond = _is_not_finite(numbers)
    if is_beyond.any():
        is_named = values_of(pc.match_substring_regex(texts, _NOT_FINITE).fill_null(True))
        is_beyond &= ~is_named
    if is_beyond.any():
        _refuse_beyond(texts[int(np.argmax(is_beyond))].as_py(), dtype)
    return numbers


def narrow_floats(numbers: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Convert floats to a type of at most their width.

    Raises ValueError if one of them is not finite there, and `TextsNeededError`.
    """
    narrow = numbers
    if not numbers.type.equals(dtype):
        values, mask = values_of(numbers), mask_of(numbers)
        if len(_halfway(values, mask, dtype)):
            raise TextsNeededError
        narrow = column_of(_rounded(values, dtype), mask, dtype)
    beyond = _is_not_finite(narrow)
    if beyond.any():
        _refuse_beyond(str(numbers[int(np.argmax(beyond))].as_py()), dtype)
    return narrow


def _narrow_by_texts(numbers: pa.Array, texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return the floats nearest to texts; `numbers`: the doubles nearest to them.

    Where a double is halfway, the next double in the direction of the text rounds as the text does.
    """
    values, mask = values_of(numbers).copy(), mask_of(numbers)
    for place in _halfway(values, mask, dtype).tolist():
        double, text = Decimal(float(values[place])), Decimal(texts[place].as_py())
        if text != double:
            values[place] = np.nextafter(values[place], math.inf if text > double else -math.inf)
    return column_of(_rounded(values, dtype), mask, dtype)


def _halfway(
    values: npt.NDArray[np.float64], mask: npt.NDArray[np.bool_] | None, dtype: pa.DataType
) -> npt.NDArray[np.intp]:
    """Return where doubles may be halfway between two floats of a narrower type.

    Of the bits of such a double that the float lacks, at most the highest one is set. The same is
    true of few others; the float that is nearest to them is so for the next doubles, too.
    """
    dropped_bits = (1 << 51 - np.finfo(dtype.to_pandas_dtype()).nmant) - 1
    candidates = np.flatnonzero((values.view(np.int64) & dropped_bits) == 0)
    if mask is not None:
        candidates = candidates[mask[candidates]]
    candidate_values = values[candidates]
    is_between = (_rounded(candidate_values, dtype) != candidate_values) & ~np.isnan(
        candidate_values
    )
    return np.asarray(candidates[is_between], np.intp)


def _rounded(values: npt.NDArray[np.float64], dtype: pa.DataType) -> npt.NDArray[Any]:
    """Return doubles as floats of a narrower type; infinite if they are too large."""
    with np.errstate(over="ignore"):
        return values.astype(dtype.to_pandas_dtype())


def _is_not_finite(numbers: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where floats are NaN or infinite; nulls are neither."""
    beyond: npt.NDArray[np.bool_] = ~np.isfinite(values_of(numbers))
    mask = mask_of(numbers)
    return beyond if mask is None else beyond & mask


def _refuse_beyond(text: str, dtype: pa.DataType) -> NoReturn:
    """Raise for a number that is too large for a float."""
    msg = f"{_shortened(text)} is larger than the largest number of type {dtype}"
    raise ValueError(msg)


def _without_plus(texts: pa.Array) -> pa.Array:
    """Return texts of numbers without plus signs at their begin, which Arrow does not read."""
    return pc.utf8_ltrim(texts, "+")


def _truth(text: str | None) -> bool | None:
    """Return a text as a boolean; or raise."""
    if text is None:
        return None
    value = _TRUTHS.get(text.strip(_BLANKS).lower())
    if value is None:
        msg = f"{_shortened(text)!r} is neither true nor false"
        raise ValueError(msg)
    return value


def _exact_text(text: str | None, dtype: pa.DataType) -> Decimal | int | None:
    """Return a text as a number of an integer or decimal type; or raise."""
    if text is None:
        return None
    if not NUMBER_SHAPE.fullmatch(text):
        _refuse(text, dtype)
    return _exact_number(text, dtype)


def _refuse(text: str, dtype: pa.DataType) -> NoReturn:
    """Raise for a text that does not have the shape of a number."""
    msg = f"{_shortened(text)!r} is not a number of type {dtype}"
    raise ValueError(msg)


def _shortened(text: str) -> str:
    """Return a text, or its begin if it is long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _from_json(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return an array of leaves in its type."""
    if pa.types.is_floating(dtype):
        return narrow_floats(array, dtype)
    if is_temporal(dtype):
        return parse_times(array, dtype)
    if is_binary(dtype) and not is_binary(array.type):
        return pa.array([_decoded(text) for text in array.to_pylist()], dtype)
    return array


def _decoded(text: str | None) -> bytes | None:
    """Decode a Base64 text; or raise."""
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as error:
        msg = f"{text[:100]!r} is not Base64: {error}"  # type: ignore[index]
        raise ValueError(msg) from error


def exact_numbers(values: list[Any], field: pa.Field) -> list[Any]:
    """Return JSON values with their numbers in the form that Arrow takes.

    Integers and decimals are ``int``, ``Decimal`` or, for decimals, text; keys of maps are text;
    narrow floats may be `msgspec.Raw`, which is their text. Raises ValueError, with the column, for
    a value that its type does not hold exactly.
    """
    dtype, texts = field.type, _Texts()
    with _naming(field):
        if pa.types.is_decimal(dtype):
            scale = _quantum(dtype.precision, dtype.scale)
            with suppress(DecimalException):  # the number that does not fit is found below
                return [
                    value.quantize(*scale)
                    if type(value) is Decimal
                    else _exact_numbers(value, dtype, texts)
                    for value in values
                ]
        if is_narrow_float(dtype):
            cells = [None if value is None else _number_text(value) for value in values]
            return _parse(pa.array(cells, pa.string()), dtype).to_pylist()  # type: ignore[no-any-return]
        numbers = [_exact_numbers(value, dtype, texts) for value in values]
        if texts.parse():
            numbers = [_exact_numbers(value, dtype, texts) for value in values]
        return numbers


class _Texts:
    """Texts in a column's values, which are floats or keys of maps, parsed all at once.

    The first pass over the values collects them; after `parse` another pass has their values.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[str, Any]] = {}  # name of a type → text → its value
        self._types: dict[str, pa.DataType] = {}
        self._parsed = False

    def values(self, texts: list[str], dtype: pa.DataType) -> list[Any]:
        """Return the values of texts, or nulls until they are parsed."""
        name = str(dtype)
        values = self._values.setdefault(name, {})
        if not self._parsed:
            self._types[name] = dtype
            values.update(dict.fromkeys(texts))
        return [values[text] for text in texts]

    def parse(self) -> bool:
        """Parse all texts; return whether there are any."""
        for name, values in self._values.items():
            texts, dtype = pa.array([*values], pa.string()), self._types[name]
            values.update(zip(values, _values_in_json(texts, dtype), strict=True))
        self._parsed = True
        return bool(self._values)


def _values_in_json(texts: pa.Array, dtype: pa.DataType) -> list[Any]:
    """Return texts of JSON as numbers or booleans; for other types, one text for equal values."""
    if is_number(dtype) or pa.types.is_boolean(dtype):
        values: list[Any] = _parse(texts, dtype).to_pylist()
        for value, text in zip(values, texts, strict=True):
            if isinstance(value, float) and not math.isfinite(value):
                _refuse(text.as_py(), dtype)
        return values
    first: dict[int, str] = {}
    places = _from_json(texts, dtype).dictionary_encode().indices.to_pylist()
    return [first.setdefault(*each) for each in zip(places, texts.to_pylist(), strict=True)]


def _exact_numbers(value: Any, dtype: pa.DataType, texts: _Texts) -> Any:
    """Return a JSON value with its numbers in the form that Arrow takes."""
    if value is None:
        return None
    if pa.types.is_decimal(dtype):
        if type(value) is str:
            return _exact_text(value.strip(_BLANKS), dtype)
        if type(value) is not Decimal and type(value) is not int:
            _refuse(str(value), dtype)
        return _exact(value, dtype.precision, dtype.scale)
    if pa.types.is_integer(dtype):
        if type(value) is not int and type(value) is not Decimal:
            _refuse(str(value), dtype)
        return _exact_number(value, dtype)
    if is_list(dtype):
        return [_exact_numbers(element, dtype.value_type, texts) for element in value]
    if pa.types.is_struct(dtype):
        fields = (dtype.field(n) for n in range(dtype.num_fields))
        return {f.name: _exact_numbers(value.get(f.name), f.type, texts) for f in fields}
    if pa.types.is_map(dtype):
        names: list[Any] = [str(name) for name in value]
        if names and not is_text(dtype.key_type):
            names = texts.values(names, dtype.key_type)  # those of equal values are equal
            if pa.types.is_floating(dtype.key_type):  # a zero without a sign, as in Spark
                names = [abs(name) if name == 0 else name for name in names]
        items = [_exact_numbers(item, dtype.item_type, texts) for item in value.values()]
        return dict(zip(names, items, strict=True))
    if type(value) is msgspec.Raw:
        text = _number_text(value)
        return None if text is None else texts.values([text], dtype)[0]
    return value


def _number_text(value: msgspec.Raw) -> str | None:
    """Return the text of a number in JSON; ``None`` for null."""
    text = bytes(value).decode()
    return _TEXTS_IN_JSON.get(text, text)


def _exact_number(value: Any, dtype: pa.DataType) -> Decimal | int:
    """Return a number, or its text, as a number of an integer or decimal type; or raise."""
    if pa.types.is_decimal(dtype):
        return _exact(value, dtype.precision, dtype.scale)
    number, span = int(_exact(value, _DIGITS_OF_INTEGER, 0)), 1 << dtype.bit_width
    low = -span // 2 if pa.types.is_signed_integer(dtype) else 0
    if not low <= number < low + span:
        msg = f"{number} is out of range for type {dtype}"
        raise ValueError(msg)
    return number


def _exact(value: Any, precision: int, scale: int) -> Decimal:
    """Return a number with `scale` digits after the point; raise if it needs more.

    Arrow itself gets numbers of the type's scale only, since it is exact for these alone.
    """
    try:
        return Decimal(value).quantize(*_quantum(precision, scale))
    except DecimalException as error:
        text = _shortened(str(Decimal(value)) if type(value) is int else str(value))
        digits = f"{precision} digits, {scale} of them after the point"
        msg = f"{text} is not a number of {digits}" if scale else f"{text} is not an integer"
        msg = msg if scale else f"{msg} of at most {precision} digits"
        raise ValueError(msg) from error


@cache
def _quantum(precision: int, scale: int) -> tuple[Decimal, None, Context]:
    """Return the arguments that make `Decimal.quantize` exact."""
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    return Decimal((0, (1,), -scale)), None, exact


def has_small_numbers(text: bytes, marks: bytes = b"") -> bool:
    """Return whether a text may have a number with a negative exponent of two digits or more.

    `marks`: the quote and the escape character, which may stand within a number.
    """
    if b"\\u00" in text and _HIDDEN.search(text):
        return True
    data = np.frombuffer(text, np.uint8)
    before = np.flatnonzero(data == ord("-")) - 1
    for mark in reversed(marks):
        before -= data[before] == mark
    if not ((data[before] | 0x20) == ord("e")).any():  # in capitals, too
        return False
    return _SMALL.search(text.translate(None, marks) if marks else text) is not None


def has_negative_zeros(floats: pa.Array) -> bool:
    """Return whether an array of floats has a negative zero."""
    bits = values_of(floats).view(f"i{floats.type.bit_width // 8}")
    return bool((bits == np.iinfo(bits.dtype).min).any())


def has_whole_negative_zeros(text: bytes) -> bool:
    """Return whether a JSON text may have the number ``-0``."""
    return _WHOLE_NEGATIVE_ZERO.search(text) is not None


def has_hexadecimals(text: bytes, marks: bytes = b"") -> bool:
    """Return whether a text may have a number such as ``0x1F``, which Arrow reads as an integer.

    `marks`: the quote and the escape character, which may stand within a number.
    """
    letters = [letter for letter in b"xX" if letter in text]
    marks_in_text = [mark for mark in marks if mark in text]
    data = np.frombuffer(text, np.uint8)
    for start in range(0, len(data), _CACHED) if letters else ():
        part = data[max(start - len(marks) - 1, 0) : start + _CACHED]
        is_before = part[:-1] == ord("0")
        for mark in marks_in_text:
            is_before |= part[:-1] == mark
        for letter in letters:
            before = np.flatnonzero(is_before & (part[1:] == letter))
            for mark in reversed(marks):
                before -= part[before] == mark
            if (part[before] == ord("0")).any():
                return True
    return False


def has_names_of_numbers(text: bytes) -> bool:
    """Return whether a JSON text may have NaN or an infinity, which Arrow reads and JSON lacks."""
    data = np.frombuffer(text, np.uint8)
    for letter in b"NI":
        if letter in text:  # the search for single bytes is much faster than others
            places = np.flatnonzero(data == letter)
            places = places[np.isin(data[places - 1], _BEFORE_NAME)]
            if any(_NAME_OF_NUMBER.match(text, place) for place in places.tolist()):
                return True
    return False
