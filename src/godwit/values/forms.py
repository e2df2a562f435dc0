"""Which types of state msgspec writes and reads by itself, so that all of it comes back.

What is compared afterwards, with ``==``, would not show everything: a time zone, a class that calls
itself equal to anything, a field that ``==`` leaves out.  Types with such parts are written in the
tagged form.  So are options of classes under which written state would depend on the order of
fields or on their defaults, which may change.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from godwit.values.types import Described

__all__ = ["is_native", "reads_native"]

_SCALARS = frozenset(
    [
        *["none", "bool", "int", "float", "str", "bytes", "bytearray"],
        *["decimal", "date", "timedelta", "uuid"],
    ]
)
_KEYS = frozenset(["int", "float", "str", "bytes"])
_OF_ONE = frozenset(["list", "set", "frozenset", "tuple", "dict"])


def is_native(state_type: Any, described: Described) -> bool:
    """Whether msgspec brings back all of a type that is described."""
    classes = described.schema["classes"]
    used: set[str] = set()
    if not _is_native_node(described.schema["type"], classes, used):
        return False
    if not all(_is_native_class(described.classes[name], classes[name]) for name in used):
        return False
    try:
        msgspec.msgpack.Decoder(state_type)
    except Exception:  # noqa: BLE001 - msgspec knows some types only from their parts
        return False
    return True


def reads_native(described: Described) -> bool:
    """Whether what msgspec wrote of such classes by their fields' names is read as it is by these.

    A ``__post_init__`` would run on it, and may set back what is in it.
    """
    return not any(
        hasattr(cls, "__post_init__")
        or (issubclass(cls, msgspec.Struct) and not _goes_by_names(cls))
        for cls in described.classes.values()
    )


def _goes_by_names(cls: Any) -> bool:
    config = cls.__struct_config__
    return (
        not (config.array_like or config.forbid_unknown_fields)
        and cls.__struct_encode_fields__ == cls.__struct_fields__
    )


def _is_native_node(node: Any, classes: Any, used: set[str]) -> bool:
    if isinstance(node, str):
        return node in _SCALARS
    kind = node["kind"]
    if kind == "literal":
        return True
    if kind == "class":
        if node["name"] in used:
            return True
        used.add(node["name"])
        described = classes[node["name"]]
        if "fields" not in described:
            return True
        fields = described["fields"].values()
        return all(_is_native_node(field["type"], classes, used) for field in fields)
    if kind in ("union", "fixed"):
        return all(_is_native_node(part, classes, used) for part in node["of"])
    if kind not in _OF_ONE or not _is_native_node(node["of"], classes, used):
        return False
    return "key" not in node or _is_native_key(node["key"])


def _is_native_key(node: Any) -> bool:
    if isinstance(node, str):
        return node in _KEYS
    return node["kind"] == "fixed" and all(map(_is_native_key, node["of"]))


def _is_native_class(cls: Any, described: Any) -> bool:
    kind = described["kind"]
    if kind == "enum":
        values = described["members"].values()
        same = {type(value) for value in values} in ({str}, {int})
        return same and len(set(values)) == len(values)
    if kind == "typeddict":
        return True
    if kind != "record" or hasattr(cls, "__post_init__"):
        return False
    if issubclass(cls, msgspec.Struct):
        config = cls.__struct_config__
        return (
            cls.__eq__ is msgspec.Struct.__eq__
            and config.eq
            and _goes_by_names(cls)
            and not config.omit_defaults
            and not cls.__dictoffset__
        )
    fields = dataclasses.fields(cls)
    return (
        cls.__dataclass_params__.eq
        and _is_made_by_dataclass(cls.__eq__)
        and all(field.init and field.compare for field in fields)
    )


def _is_made_by_dataclass(method: Any) -> bool:
    return getattr(getattr(method, "__code__", None), "co_filename", "") == "<string>"
