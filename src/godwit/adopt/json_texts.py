"""``to_json`` over Arrow columns, with exactly the text of Spark's generator.

Fields without a value are left out of structs; in arrays and maps null stands for them.  Times are
written by the clock of the session's zone, with the offset from UTC.
"""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.adopt.casts import dates_as_text, decimals_as_text, intervals_as_text, local_times
from godwit.adopt.java_numbers import text_of
from godwit.columns.arrays import values_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.adopt.casts import FunctionSpec

_ESCAPES = {code: f"\\u{code:04X}" for code in range(32)} | {
    ord(character): f"\\{letter}"
    for character, letter in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)
}
"""Code of a character that JSON escapes → its escape, as in Spark."""
_EXACT = ""
"""Zone of the texts of keys: times in UTC, with microseconds."""
_SECOND_US, _DAY_US = 1_000_000, 86_400_000_000


def quoted(text: str) -> str:
    """Quote a text for JSON."""
    return f'"{text.translate(_ESCAPES)}"'


def has_json(dtype: pa.DataType) -> bool:
    """Return whether values of a type can be written as Spark writes them."""
    if pa.types.is_map(dtype):
        return pa.types.is_string(dtype.key_type) and has_json(dtype.item_type)
    if pa.types.is_nested(dtype):
        return all(has_json(dtype.field(place).type) for place in range(dtype.num_fields))
    tests = ("boolean", "integer", "floating", "decimal", "string", "binary", "date", "timestamp")
    return any(getattr(pa.types, f"is_{name}")(dtype) for name in tests)


def to_json(call: FunctionSpec, values: pa.Array) -> pa.Array:
    """Return values as JSON; ``options[0]``: whether Java writes the shortest texts of floats."""
    return pa.array(_value_texts(values, call.zone, call.options[0]), pa.string())


def has_key_text(dtype: pa.DataType) -> bool:
    """Return whether `key_texts` supports values of a type as group keys."""
    if pa.types.is_list(dtype):
        return has_key_text(dtype.value_type)
    return bool(pa.types.is_duration(dtype) or has_json(dtype))


def key_texts(call: FunctionSpec, values: pa.Array) -> pa.Array:
    """Return values as the texts in JSON that they are as group keys (`Catalyst.key_text`)."""
    texts = _value_texts(values, _EXACT, call.options[0])
    return pa.array([None if text is None else f'{{"key":{text}}}' for text in texts], pa.string())


def _value_texts(values: pa.Array, zone: str, shortest: bool) -> list[str | None]:
    """Return the text of each value; ``None`` for null."""
    texts = list(_texts_of_valid(values, zone, shortest))
    if values.null_count:
        valid = values.is_valid().to_pylist()
        return [text if ok else None for text, ok in zip(texts, valid, strict=True)]
    return texts


def _texts_of_valid(values: pa.Array, zone: str, shortest: bool) -> Iterable[str | None]:
    """Return the text of each value; arbitrary for null."""
    dtype = values.type
    if pa.types.is_struct(dtype):
        names = [f"{quoted(dtype.field(place).name)}:" for place in range(dtype.num_fields)]
        parts = [_value_texts(part, zone, shortest) for part in values.flatten()]
        rows = zip(*parts, strict=True) if parts else [()] * len(values)
        return [
            "{" + ",".join(n + text for n, text in zip(names, row, strict=True) if text) + "}"
            for row in rows
        ]
    if pa.types.is_map(dtype):
        keys, items = (
            [*map(_or_null, _value_texts(part, zone, shortest))]
            for part in _keys_and_values(values)
        )
        entries = [f"{key}:{item}" for key, item in zip(keys, items, strict=True)]
        return ["{" + ",".join(part) + "}" for part in _texts_by_row(values, entries)]
    if pa.types.is_list(dtype):
        elements = [*map(_or_null, _value_texts(values.flatten(), zone, shortest))]
        return ["[" + ",".join(part) + "]" for part in _texts_by_row(values, elements)]
    if pa.types.is_string(dtype):
        return [None if text is None else quoted(text) for text in values.to_pylist()]
    if pa.types.is_binary(dtype):
        encoded = (base64.b64encode(value or b"").decode() for value in values.to_pylist())
        return [*map(quoted, encoded)]
    if pa.types.is_decimal(dtype):
        return decimals_as_text(values, "wrap")
    if pa.types.is_duration(dtype):
        return [
            *map(quoted, intervals_as_text(np.where(_valid_values(values), values_of(values), 0)))
        ]
    if pa.types.is_temporal(dtype):
        return _time_texts(values, zone)
    numbers = values_of(values).tolist()
    if not pa.types.is_floating(dtype):
        return [str(number).lower() for number in numbers]
    single = pa.types.is_float32(dtype)
    texts = [text_of(number, is_single=single, shortest=shortest) for number in numbers]
    return [f'"{text}"' if text[-1] in "Ny" else text for text in texts]


def _or_null(text: str | None) -> str:
    return "null" if text is None else text


def _keys_and_values(maps: pa.Array) -> list[pa.Array]:
    """Return all keys, and all values, of maps that are not null."""
    plain = maps.cast(pa.list_(pa.struct([maps.type.key_field, maps.type.item_field])))
    entries: list[pa.Array] = plain.flatten().flatten()
    return entries


def _texts_by_row(lists: pa.Array, texts: list[str]) -> Iterable[list[str]]:
    """Return the texts of the elements of each array or map."""
    offsets = lists.offsets.to_pylist()
    sizes = [end - begin for begin, end in itertools.pairwise(offsets)]
    valid = lists.is_valid().to_pylist()
    place = 0
    for size, ok in zip(sizes, valid, strict=True):
        yield texts[place : place + size] if ok else []
        place += size if ok else 0


def _time_texts(values: pa.Array, zone: str) -> list[str]:
    """Return dates and times as text."""
    if pa.types.is_date(values.type):
        numbers = np.where(_valid_values(values), values_of(values), 0).astype(np.int64)
        return [f'"{day}"' for day in dates_as_text(numbers)]
    times_us = np.where(_valid_values(values), values_of(values), 0)
    if zone == _EXACT:
        clock = np.datetime_as_string((times_us % _DAY_US).astype("M8[us]")).tolist()
        days = dates_as_text(times_us // _DAY_US)
        return [f'"{day} {time[11:]}"' for day, time in zip(days, clock, strict=True)]
    local_us = np.where(_valid_values(values), local_times(values, zone), 0)
    clock = np.datetime_as_string((local_us % _DAY_US // 1000).astype("M8[ms]")).tolist()
    dates = dates_as_text(local_us // _DAY_US)
    texts = [f"{date}{time[10:]}" for date, time in zip(dates, clock, strict=True)]
    if values.type.tz is None:
        return [f'"{text}"' for text in texts]
    offsets = ((local_us - times_us) // _SECOND_US).tolist()
    return [
        f'"{text}{_offset_text(seconds)}"' for text, seconds in zip(texts, offsets, strict=True)
    ]


def _offset_text(seconds: int) -> str:
    """Return a UTC offset as text; historical local times have offsets with seconds."""
    sign, size = "-" if seconds < 0 else "+", abs(seconds)
    text = f"{sign}{size // 3600:02}:{size // 60 % 60:02}"
    if not seconds:
        return "Z"
    return f"{text}:{size % 60:02}" if size % 60 else text


def _valid_values(values: pa.Array) -> Any:
    return values_of(values.is_valid())
