"""What a value that comes from JSON or a command line has to be: how it is read, and its schema.

Problem: a problem's field or a planner's option of the wrong type must be refused by name where it
comes in, not by whatever trips over it inside a planner.

Invariant: a `Plain` reads only what its schema describes, or raises `InvalidProblemError` with the
name and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from godwit.model.errors import InvalidProblemError

__all__ = [
    "ARRAY",
    "FLAG",
    "NUMBER",
    "NUMBERS",
    "TEXTS",
    "WHOLE",
    "WHOLES",
    "Plain",
    "list_of",
    "mapping_of",
    "one_of",
    "optional",
    "wrong_field",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """One type of plain value.

    Attributes
    ----------
    read
        From a value and its name to what it stands for.
    schema
        JSON Schema of it.
    """

    read: Callable[[object, str], Any]
    schema: Mapping[str, Any]


def wrong_field(name: str, value: object, remedy: str) -> InvalidProblemError:
    """Error that names a field, shows its value, shortened if it is long, and says what to give."""
    text = repr(value)
    shown = text if len(text) <= 200 else text[:200] + "..."
    return InvalidProblemError(
        f"{name} = {shown} is wrong.", remedy=remedy, field=name, value=value
    )


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise wrong_field(name, value, "Give a number.")
    try:
        float(value)
    except OverflowError:
        raise wrong_field(name, value, "Give a smaller number.") from None
    return value  # type: ignore[return-value]  # whole numbers stay whole


def _whole(value: object, name: str) -> int:
    number = _number(value, name)
    if isinstance(number, float) and not number.is_integer():
        raise wrong_field(name, value, "Give a whole number.")
    if abs(number) > np.iinfo(np.int64).max:
        raise wrong_field(name, value, "Give a smaller number.")
    return int(number)


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_field(name, value, "Give true or false.")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise wrong_field(name, value, "Give a text.")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise wrong_field(name, value, "Give a list.")
    return list(value)


def _array(value: object, name: str) -> Any:
    items = value.tolist() if isinstance(value, np.ndarray) else _list(value, name)
    try:
        array = np.asarray(items)
    except (ValueError, OverflowError):
        raise wrong_field(name, items, "Give numbers, as many in each row.") from None
    if array.dtype.kind not in "fiub":
        odd = next((v for v in np.ravel(np.asarray(items, object)) if not _is_number(v)), items)
        raise wrong_field(name, odd, "Give numbers.")
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < np.inf


NUMBER = Plain(read=_number, schema={"type": "number"})
WHOLE = Plain(read=_whole, schema={"type": "integer"})
FLAG = Plain(read=_flag, schema={"type": "boolean"})
TEXT = Plain(read=_text, schema={"type": "string"})
ARRAY = Plain(read=_array, schema={"type": "array"})
"""Numbers, in as many dimensions as the field has."""


def list_of(item: Plain) -> Plain:
    """Make the type of a list, read as a tuple."""

    def read(value: object, name: str) -> tuple[Any, ...]:
        return tuple(item.read(part, f"{name}[{i}]") for i, part in enumerate(_list(value, name)))

    return Plain(read=read, schema={"type": "array", "items": item.schema})


def mapping_of(item: Plain) -> Plain:
    """Make the type of an object with any names."""

    def read(value: object, name: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong_field(name, value, "Give an object.")
        return {str(key): item.read(part, f"{name}.{key}") for key, part in value.items()}

    return Plain(read=read, schema={"type": "object", "additionalProperties": item.schema})


def one_of(*texts: str) -> Plain:
    """Make the type of one of a few texts."""

    def read(value: object, name: str) -> str:
        if not isinstance(value, str) or value not in texts:
            raise wrong_field(name, value, f"Give one of {', '.join(texts)}.")
        return value

    return Plain(read=read, schema={"enum": list(texts)})


def optional(plain: Plain) -> Plain:
    """Make the type of what `plain` reads, or nothing."""

    def read(value: object, name: str) -> Any:
        return None if value is None else plain.read(value, name)

    return Plain(read=read, schema={"oneOf": [plain.schema, {"type": "null"}]})


NUMBERS, WHOLES, TEXTS = list_of(NUMBER), list_of(WHOLE), list_of(TEXT)
