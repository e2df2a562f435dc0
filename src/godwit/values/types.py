"""Descriptions of state types as plain values, for checkpoints.

A description has two parts: ``type`` is a node, and ``classes`` holds what nodes refer to by name,
so that a class may hold itself.  A node is the name of a scalar (``"int"``, ``"any"``) or a dict
with a ``kind``::

    {"type": {"kind": "class", "name": "OrderBook"},
     "classes": {"OrderBook": {"kind": "record", "fields": {
         "bids": {"type": {"kind": "list", "of": "float"}, "default": []}}}}}

Invariant: the description says everything on which the meaning of written state depends, and
nothing else: a docstring or a method may change.

`is_native` says whether msgspec alone writes and reads a type so that all of it comes back.  A
comparison with ``==`` afterwards would not show every loss: a time zone, a class that calls
itself equal to anything, a field that ``==`` leaves out.  Types with such parts are written in the
tagged form.  So are options of classes under which written state would depend on the order of
fields or on their defaults, which may change.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import types
import typing
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCALARS: dict[Any, str] = {
    type(None): "none",
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
    bytes: "bytes",
    bytearray: "bytearray",
    decimal.Decimal: "decimal",
    dt.date: "date",
    dt.datetime: "datetime",
    dt.time: "time",
    dt.timedelta: "timedelta",
    uuid.UUID: "uuid",
}
"""Types without parts, and their names."""

COLLECTIONS: dict[Any, str] = {
    list: "list",
    set: "set",
    frozenset: "frozenset",
    collections.deque: "deque",
}
MAPPINGS: dict[Any, str] = {
    dict: "dict",
    collections.defaultdict: "defaultdict",
    collections.OrderedDict: "ordereddict",
    collections.Counter: "counter",
}
_REQUIRED = object()


class UndescribableError(Exception):
    """A part of a type cannot be state."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path  # where it is, such as ``Book.levels[]``


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Description of a state type, and the classes it refers to."""

    schema: dict[str, Any]  # its description, as plain values
    classes: dict[str, type]  # name in the description → class


def describe(
    state_type: Any, further_classes: Mapping[str, type] | Sequence[type] = ()
) -> Described:
    """Return a type of state as plain values, for the checkpoint.

    `further_classes`: further classes that state may hold where its type leaves it open; a mapping
    gives them names. Raises `UndescribableError` if a part of it cannot be state: a class that
    declares no fields, two classes of one name.
    """
    describer = _Describer()
    classes_by_name = (
        further_classes
        if isinstance(further_classes, Mapping)
        else {_class_name(cls): cls for cls in further_classes}
    )
    for name, cls in classes_by_name.items():
        describer.add_class(cls, name, name)
    node = describer.node(state_type, "state")
    return Described(
        schema={"type": node, "classes": describer.described}, classes=describer.classes
    )


def is_record(cls: Any) -> bool:
    """Return whether a class declares fields: a struct, a dataclass or a named tuple."""
    return isinstance(cls, type) and (
        issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls) or _is_named_tuple(cls)
    )


def fields_of(cls: Any) -> tuple[str, ...]:
    """Return the names of a record's fields."""
    if issubclass(cls, msgspec.Struct):
        names: tuple[str, ...] = cls.__struct_fields__
        return names
    if _is_named_tuple(cls):
        named: tuple[str, ...] = cls._fields
        return named
    return tuple(field.name for field in dataclasses.fields(cls))


def node_text(node: Any) -> str:
    """Return a type's description (tree node) as Python code, such as ``list[int]``."""
    if isinstance(node, str):
        return {"none": "None", "any": "Any"}.get(node, node)
    kind = node["kind"]
    if kind == "class":
        return str(node["name"])
    if kind == "union":
        return " | ".join(map(node_text, node["of"]))
    if kind == "literal":
        return f"Literal[{', '.join(map(repr, node['values']))}]"
    if kind == "fixed":
        return f"tuple[{', '.join(map(node_text, node['of'])) or '()'}]"
    if kind == "tuple":
        return f"tuple[{node_text(node['of'])}, ...]"
    if "key" in node:
        return f"{kind}[{node_text(node['key'])}, {node_text(node['of'])}]"
    return f"{kind}[{node_text(node['of'])}]"


class _Describer:
    """Builder of a description; classes are added as types refer to them."""

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        self.described: dict[str, Any] = {}
        self._names: dict[type, str] = {}

    def node(self, hint: Any, path: str) -> Any:
        """Return the description (tree node) of an annotated type; raise if state cannot have it.

        `path`: its position in the state, for errors, such as ``Book.levels[]``.
        """
        while isinstance(hint, typing.NewType) or hasattr(hint, "__value__"):
            hint = getattr(hint, "__value__", None) or hint.__supertype__
        if hint is None:
            return "none"
        if hint in (Any, object, typing.Hashable) or isinstance(hint, typing.TypeVar):
            return "any"
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Annotated, typing.Final, typing.Required, typing.NotRequired):
            return self.node(arguments[0], path)
        if origin in (typing.Union, types.UnionType):
            return self._describe_union(arguments, path)
        if origin is typing.Literal:
            members = {type(value) for value in arguments if isinstance(value, enum.Enum)}
            if members:
                return self._describe_union(sorted(members, key=_class_name), path)
            return {"kind": "literal", "values": list(arguments)}
        kind = origin or hint
        if kind in SCALARS:
            return SCALARS[kind]
        if kind in COLLECTIONS:
            return {
                "kind": COLLECTIONS[kind],
                "of": self._describe_argument(arguments, 0, f"{path}[]"),
            }
        if kind is tuple:
            return self._describe_tuple(arguments, bare=origin is None, path=path)
        if kind in MAPPINGS:
            item = (
                "int"
                if kind is collections.Counter
                else self._describe_argument(arguments, 1, f"{path}[]")
            )
            key = self._describe_argument(arguments, 0, f"{path}[key]")
            return {"kind": MAPPINGS[kind], "key": key, "of": item}
        if getattr(kind, "__module__", "") == "collections.abc":
            return "any"
        if isinstance(kind, type):
            return {"kind": "class", "name": self.add_class(kind, None, path)}
        raise UndescribableError(path, f"{hint!r} is not a type that state can have")

    def add_class(self, cls: Any, name: str | None, path: str) -> str:
        """Add the description of a class, once; return its name in the description, or raise.

        `path`: its position in the state, for errors.
        """
        if cls in self._names:
            return self._names[cls]
        name = name or _class_name(cls)
        other = self.classes.get(name)
        if other is not None:
            raise UndescribableError(
                path, f"{other.__module__}.{name} and {cls.__module__}.{name} share a name"
            )
        self._names[cls], self.classes[name] = name, cls
        self.described[name] = {}  # takes its place before its fields, which may refer to it
        if issubclass(cls, enum.Enum):
            self.described[name] = _describe_enumeration(cls)
        elif typing.is_typeddict(cls):
            self.described[name] = self._describe_record(
                cls, "typeddict", cls.__annotations__, path
            )
        elif is_record(cls):
            kind = "namedtuple" if _is_named_tuple(cls) else "record"
            self.described[name] = self._describe_record(cls, kind, fields_of(cls), path)
        else:
            raise UndescribableError(path, f"{_class_name(cls)} is a class that declares no fields")
        return name

    def _describe_record(self, cls: Any, kind: str, names: Any, path: str) -> dict[str, Any]:
        """Return the description of a class: types and defaults of its fields."""
        where = path if path.endswith(_class_name(cls)) else _class_name(cls)
        hints = _resolved_annotations(cls, where)
        defaults = defaults_of(cls)
        fields: dict[str, Any] = {}
        for name in names:
            field = {"type": self.node(hints.get(name, Any), f"{where}.{name}")}
            default = defaults.get(name, _REQUIRED)
            if default is not _REQUIRED:
                field["default"] = _plain_default(default)
            fields[name] = field
        described = {"kind": kind, "fields": fields}
        if issubclass(cls, msgspec.Struct) and cls.__struct_config__.tag is not None:
            described["tag"] = [cls.__struct_config__.tag_field, cls.__struct_config__.tag]
        return described

    def _describe_union(self, arguments: Sequence[Any], path: str) -> Any:
        """Return the description of a union, with nested unions flattened."""
        nodes: list[Any] = []
        for argument in arguments:
            node = self.node(argument, path)
            parts = node["of"] if isinstance(node, dict) and node["kind"] == "union" else [node]
            nodes += [part for part in parts if part not in nodes]
        if "any" in nodes:
            return "any"
        return nodes[0] if len(nodes) == 1 else {"kind": "union", "of": nodes}

    def _describe_tuple(self, arguments: Sequence[Any], *, bare: bool, path: str) -> Any:
        """Return the description of a tuple type; `bare`: its annotation names no elements."""
        if bare:
            return {"kind": "tuple", "of": "any"}
        if len(arguments) == 2 and arguments[1] is ...:
            return {"kind": "tuple", "of": self.node(arguments[0], f"{path}[]")}
        parts = [self.node(argument, f"{path}[{i}]") for i, argument in enumerate(arguments)]
        return {"kind": "fixed", "of": parts}

    def _describe_argument(self, arguments: Sequence[Any], index: int, path: str) -> Any:
        """Return the description of a type's argument number `index`; "any" if it has none."""
        return self.node(arguments[index], path) if len(arguments) > index else "any"


def _class_name(cls: type) -> str:
    """Return the name by which state refers to a class, independent of its module."""
    return cls.__qualname__.rpartition("<locals>.")[2]


def _is_named_tuple(cls: type) -> bool:
    """Return whether a class was made by ``NamedTuple``."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _resolved_annotations(cls: Any, where: str) -> dict[str, Any]:
    """Return the annotations of a class, resolved; raise if they cannot be."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise UndescribableError(
            where, f"its annotations cannot be looked up: {type(error).__name__}: {error}"
        ) from error


def defaults_of(cls: Any) -> dict[str, Any]:
    """Return field → default, or factory of the default, for every field that has one."""
    defaults: dict[str, Any] = {}
    if issubclass(cls, msgspec.Struct):
        for info in msgspec.structs.fields(cls):
            if info.default is not msgspec.NODEFAULT:
                defaults[info.name] = info.default
            elif info.default_factory is not msgspec.NODEFAULT:
                defaults[info.name] = info.default_factory
    elif _is_named_tuple(cls):
        defaults = dict(cls._field_defaults)
    elif dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.default is not dataclasses.MISSING:
                defaults[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                defaults[field.name] = field.default_factory
    elif typing.is_typeddict(cls):
        defaults = dict.fromkeys(cls.__optional_keys__)
    return defaults


def _plain_default(default: Any) -> Any:
    """Return a default as plain values, or a text about it."""
    value: Any = default
    if inspect.isclass(default) or inspect.isroutine(default):
        factory: Callable[[], Any] = default
        if factory not in (*COLLECTIONS, *MAPPINGS, tuple):
            return {"made by": getattr(factory, "__qualname__", type(factory).__name__)}
        value = factory()
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except Exception:  # noqa: BLE001 - a default may be anything
        return {"of type": type(value).__qualname__}


def _describe_enumeration(cls: type[enum.Enum]) -> dict[str, Any]:
    """Return the description of an enumeration: its members' values."""
    members = {
        name: member.value if isinstance(member.value, (str, int)) else repr(member.value)
        for name, member in cls.__members__.items()
    }
    kind = "flag" if issubclass(cls, enum.Flag) else "enum"
    return {"kind": kind, "members": members}


_SCALARS = frozenset(
    [
        *["none", "bool", "int", "float", "str", "bytes", "bytearray"],
        *["decimal", "date", "timedelta", "uuid"],
    ]
)
_KEYS = frozenset(["int", "float", "str", "bytes"])
_KINDS_WITH_ONE_PART = frozenset(["list", "set", "frozenset", "tuple", "dict"])


def is_native(state_type: Any, described: Described) -> bool:
    """Return whether msgspec encodes and decodes all values of a described type without change."""
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
    """Return whether msgspec decodes records of a described type by field names.

    Not if a class has a ``__post_init__``, which would run on decoded values and may change them.
    """
    return not any(
        hasattr(cls, "__post_init__")
        or (issubclass(cls, msgspec.Struct) and not _goes_by_names(cls))
        for cls in described.classes.values()
    )


def _goes_by_names(cls: Any) -> bool:
    """Return whether msgspec encodes a struct by field names."""
    config = cls.__struct_config__
    return (
        not (config.array_like or config.forbid_unknown_fields)
        and cls.__struct_encode_fields__ == cls.__struct_fields__
    )


def keeps_names(cls: Any) -> bool:
    """Return whether plain values of a record have all of its fields, by their names."""
    if not issubclass(cls, msgspec.Struct):
        return True
    return _goes_by_names(cls) and not cls.__struct_config__.omit_defaults


def _is_native_node(node: Any, classes: Any, used: set[str]) -> bool:
    """Return whether msgspec round-trips all values of a description; add its classes to `used`."""
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
    if kind not in _KINDS_WITH_ONE_PART or not _is_native_node(node["of"], classes, used):
        return False
    return "key" not in node or _is_native_key(node["key"])


def _is_native_key(node: Any) -> bool:
    """Return whether msgspec round-trips dict keys of a described type."""
    if isinstance(node, str):
        return node in _KEYS
    return node["kind"] == "fixed" and all(map(_is_native_key, node["of"]))


def _is_native_class(cls: Any, described: Any) -> bool:
    """Return whether msgspec round-trips all instances of a described class."""
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
    """Return whether ``dataclass`` generated a method."""
    return getattr(getattr(method, "__code__", None), "co_filename", "") == "<string>"
