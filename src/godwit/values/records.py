"""Records as state: made again of their fields, and refused if they hold what is no field."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import msgspec

from godwit.values.failures import UnheldError
from godwit.values.types import fields_of, is_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_attributes", "rebuilt", "runs_code"]


def rebuilt(cls: Any, held: Mapping[str, Any]) -> Any:
    """Make a record of its fields; those that are missing get their defaults.

    ``__post_init__`` makes what is no field, but does not get to change what is one.
    """
    names = fields_of(cls)
    given = {name: held[name] for name in names if name in held}
    if issubclass(cls, tuple):
        return cls(**given)
    if issubclass(cls, msgspec.Struct):
        struct = cls(**given)
        if hasattr(cls, "__post_init__"):
            for name, value in given.items():
                msgspec.structs.force_setattr(struct, name, value)
        return struct
    made = cls.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in given:
            value = given[field.name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            raise ValueError(f"field {field.name!r} of {cls.__qualname__} is missing")
        object.__setattr__(made, field.name, value)
    if hasattr(cls, "__post_init__") and not _takes_more(cls):
        made.__post_init__()
        for name, value in given.items():
            object.__setattr__(made, name, value)
    return made


def runs_code(cls: Any) -> bool:
    """Whether `rebuilt` runs methods that a class defines, which may raise or change its fields."""
    if not is_record(cls):
        return False
    if hasattr(cls, "__post_init__"):
        return True
    if issubclass(cls, tuple):  # a named tuple's own ``__new__`` is generated
        return getattr(cls.__new__, "__module__", "").partition("_")[0] != "namedtuple"
    if issubclass(cls, msgspec.Struct):
        return "__init__" in vars(cls) or cls.__setattr__ is not msgspec.Struct.__setattr__
    return cls.__new__ is not object.__new__ or any(
        hasattr(getattr(cls, name, None), "__set__") and name not in getattr(cls, "__slots__", ())
        for name in fields_of(cls)
    )


def _takes_more(cls: Any) -> bool:
    """Whether ``__post_init__`` wants what is not kept (``InitVar``)."""
    return any(
        field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]  # noqa: SLF001
        for field in cls.__dataclass_fields__.values()
    )


def check_attributes(value: Any, fields: Sequence[str]) -> None:
    """Refuse attributes that are no fields, unless reading makes them again."""
    attributes, cls = vars(value), type(value)
    made: dict[str, Any] | None = None
    for name in attributes.keys() - set(fields):
        if isinstance(getattr(cls, name, None), functools.cached_property):
            continue
        if made is None and hasattr(cls, "__post_init__"):
            made = vars(rebuilt(cls, {field: getattr(value, field) for field in fields}))
        if made is None or name not in made or made[name] != attributes[name]:
            raise UnheldError(
                f"an object with attribute {name!r}, which is no field of {cls.__qualname__}"
            )
