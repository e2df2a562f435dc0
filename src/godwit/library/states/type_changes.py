"""Evolution of Python state types: compatible changes, and the upgrade of states.

A change is compatible if everything that was written before still says the same when it is read as
today's type: a field that is new and has a default, a field that is gone, another member of an
enumeration, a type that takes more than before (``T`` to ``T | None``), a number that is widened
(``int`` to ``float``: every value is looked at, since not every integer is a float).

All else is refused, and so is one field gone together with another one new in the same class: that
may be a field renamed, whose values would be lost without a word.
"""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from godwit.checkpoint.evolution import plain
from godwit.model.errors import CheckpointMismatchError, StateEncodingError, UserFunctionError
from godwit.model.frames import user_traceback
from godwit.model.signatures import passed_on_hint
from godwit.values.checks import UnencodableError
from godwit.values.codec import MsgpackCodec
from godwit.values.types import node_text
from godwit.values.values import EXTENSION_MARKERS, TaggedValues, without_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.checkpoint.evolution import StateDescription, StateUpgrade, WrittenState
    from godwit.values.codec import StateCodec

_WIDENED = frozenset([("int", "float"), ("int", "complex"), ("float", "complex")])
_SELF_EVIDENT = frozenset(["none", "bool", "int", "float", "str", "bytes"])


@dataclass(slots=True, kw_only=True)
class StateChanges:
    """Differences between two descriptions."""

    # what does not fit, each as ``OrderBook.bids[].price: int → str``
    refused: list[str] = field(default_factory=list)
    widened: bool = False  # whether a number was widened, so that every value has to be looked at
    # name of a class as it was → as it is, for classes in the same place
    renamed: dict[str, str] = field(default_factory=dict)


def changes_between(old: dict[str, Any], new: dict[str, Any]) -> StateChanges:
    """Return the changes between two descriptions of a state's type in the checkpoint."""
    comparison = _Comparison(old, new)
    node = new["type"]
    root = node["name"] if isinstance(node, dict) and node["kind"] == "class" else "state"
    comparison.compare(old["type"], node, root)
    comparison.compare_others()
    return comparison.changes


class _Comparison:
    """Comparison of two type descriptions that records every change."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._old_classes, self._new_classes = old["classes"], new["classes"]
        self._root = old["type"]
        self._old_is_tagged = old["form"] == "tagged"
        self._compared_classes: set[tuple[str, str]] = set()
        self.changes = StateChanges()

    def compare(self, old: Any, new: Any, path: str) -> None:
        """Record the changes from type `old` to type `new`; `path`: position in the state."""
        if not self._old_fits_new(old, new, path):
            self.changes.refused.append(f"{path}: {node_text(old)} → {node_text(new)}")

    def compare_others(self) -> None:
        """Compare the classes of ``classes=`` that the state's type does not mention."""
        mentioned = _mentioned_classes(self._root, self._old_classes)
        for name in self._old_classes:
            if name in mentioned or any(old == name for old, _ in self._compared_classes):
                continue
            if name not in self._new_classes:
                self.changes.refused.append(f"class {name} is gone, of which there may be values")
            elif not self._classes_fit(name, name, name):
                kinds = self._old_classes[name]["kind"], self._new_classes[name]["kind"]
                self.changes.refused.append(f"{name}: {kinds[0]} → {kinds[1]}")

    def _old_fits_new(self, old: Any, new: Any, path: str) -> bool:
        """Return whether type `old` fits `new`, apart from its parts; record parts that do not.

        Parts (elements, dict keys) are compared on their own, with their `path`; a misfit goes to
        `changes.refused` and the result stays true.
        """
        if new == "any":
            return old == "any" or self._old_is_tagged or _is_self_evident(old)
        olds, news = _union_members(old), _union_members(new)
        if len(olds) > 1 or len(news) > 1:
            return all(self._fits_one_of(member, news) for member in olds)
        if isinstance(old, str) or isinstance(new, str):
            if isinstance(old, str) and isinstance(new, str) and (old, new) in _WIDENED:
                self.changes.widened = True
                return True
            return bool(old == new) or _are_literals_of(old, new)
        if old["kind"] != new["kind"]:
            return False
        if old["kind"] == "class":
            return self._classes_fit(old["name"], new["name"], path)
        if old["kind"] == "literal":
            return set(old["values"]) <= set(new["values"])
        if old["kind"] == "fixed":
            if len(old["of"]) != len(new["of"]):
                return False
            for index, parts in enumerate(zip(old["of"], new["of"], strict=True)):
                self.compare(*parts, f"{path}[{index}]")
            return True
        if "key" in old:
            self.compare(old["key"], new["key"], f"{path}[key]")
        self.compare(old["of"], new["of"], f"{path}[]")
        return True

    def _fits_one_of(self, old: Any, news: list[Any]) -> bool:
        """Return whether type `old` fits one of `news`; record only the changes to that one."""
        for new in sorted(news, key=lambda node: node != old):
            trial = _Comparison.__new__(_Comparison)
            trial._old_classes, trial._new_classes = self._old_classes, self._new_classes  # noqa: SLF001 - one of this class
            trial._old_is_tagged = self._old_is_tagged  # noqa: SLF001
            trial._compared_classes = set(self._compared_classes)  # noqa: SLF001
            trial.changes = StateChanges()
            trial.compare(old, new, "")
            if not trial.changes.refused:
                self.changes.widened |= trial.changes.widened
                self.changes.renamed |= trial.changes.renamed
                return True
        return False

    def _classes_fit(self, old_name: str, new_name: str, path: str) -> bool:
        """Return whether both classes are of one kind, such as enum; record their changes."""
        if (old_name, new_name) in self._compared_classes:
            return True
        self._compared_classes.add((old_name, new_name))
        old, new = self._old_classes[old_name], self._new_classes[new_name]
        if old["kind"] != new["kind"]:
            return False
        if old_name != new_name:
            self.changes.renamed[old_name] = new_name
        if "members" in old:
            self._compare_members(old["members"], new["members"], path)
            return True
        if old.get("tag") != new.get("tag") and not self._old_is_tagged:
            self.changes.refused.append(f"{path}: tag {old.get('tag')} → {new.get('tag')}")
        self._compare_fields(old["fields"], new["fields"], path)
        return True

    def _compare_members(self, old: dict[str, Any], new: dict[str, Any], path: str) -> None:
        """Record members of an enumeration that were removed or have another value."""
        for name, value in old.items():
            if name not in new:
                self.changes.refused.append(f"{path}: member {name} is gone")
            elif new[name] != value:
                self.changes.refused.append(f"{path}: member {name} {value!r} → {new[name]!r}")

    def _compare_fields(self, old: dict[str, Any], new: dict[str, Any], path: str) -> None:
        """Record fields that were removed, are new without a default, or have another type."""
        removed = [name for name in old if name not in new]
        added = [name for name in new if name not in old]
        if removed and added:
            self.changes.refused.append(
                f"{path}: {', '.join(removed)} gone and {', '.join(added)} new (renamed?)"
            )
        for name in added:
            if "default" not in new[name]:
                self.changes.refused.append(f"{path}.{name}: new, without a default")
        for name in old:
            if name in new:
                self.compare(old[name]["type"], new[name]["type"], f"{path}.{name}")


def _mentioned_classes(
    node: Any, classes: dict[str, Any], names: set[str] | None = None
) -> set[str]:
    """Return, or add to `names`, the classes that a type refers to, directly or through others."""
    names = set() if names is None else names
    if isinstance(node, str) or node["kind"] == "literal":
        return names
    if node["kind"] == "class":
        if node["name"] not in names:
            names.add(node["name"])
            for field_of in classes[node["name"]].get("fields", {}).values():
                _mentioned_classes(field_of["type"], classes, names)
        return names
    parts = node["of"] if node["kind"] in ("union", "fixed") else [node["of"]]
    for part in (*parts, *([node["key"]] if "key" in node else [])):
        _mentioned_classes(part, classes, names)
    return names


def _union_members(node: Any) -> list[Any]:
    """Return the members of a type that is a union; of another type, the type itself."""
    return list(node["of"]) if isinstance(node, dict) and node["kind"] == "union" else [node]


def _is_self_evident(node: Any) -> bool:
    """Return whether msgpack bytes alone determine the Python values of a type."""
    if isinstance(node, str):
        return node in _SELF_EVIDENT
    if node["kind"] == "literal":
        return True
    if node["kind"] == "union":
        return all(map(_is_self_evident, node["of"]))
    return node["kind"] in ("list", "dict") and all(
        _is_self_evident(node[part]) for part in ("key", "of") if part in node
    )


def _are_literals_of(
    old: Any,  # node of a type description: a type's name, or a dict with its ``kind``
    new: Any,
) -> bool:
    """Return whether `old` has only literals, all of them of type `new`: str, int or bytes."""
    if isinstance(old, str) or old["kind"] != "literal":
        return False
    kind = {"str": str, "int": int, "bytes": bytes}.get(new) if isinstance(new, str) else None
    return kind is not None and all(type(value) is kind for value in old["values"])


# -- reading without the classes --------------------------------------------------------------

_PLAIN = TaggedValues({}, plain=True)
_FROM_TEXT: dict[str, Callable[[Any], Any]] = {
    "decimal": decimal.Decimal,
    "date": dt.date.fromisoformat,
    "timedelta": lambda text: msgspec.convert(text, dt.timedelta),
    "uuid": uuid.UUID,
    "bytearray": bytearray,
}


def read_plain(blob: bytes | memoryview, description: dict[str, Any]) -> Any:
    """Decode a state without its classes; a record becomes a dict, an enumeration a value."""
    value = _PLAIN.decode(blob)
    if description["form"] == "tagged" or blob[0] in EXTENSION_MARKERS:
        return value
    return _as_node(value, description["type"], description["classes"])


def drop_fields(
    blob: bytes | memoryview, description: dict[str, Any], gone: Mapping[str, frozenset[str]]
) -> bytes:
    """Remove fields, by name of their class, from an encoded state of the described type."""
    if description["form"] == "tagged" or blob[0] in EXTENSION_MARKERS:
        return without_fields(blob, gone)
    value = msgspec.msgpack.decode(blob)
    _drop_from_value(value, description["type"], description["classes"], gone)
    return msgspec.msgpack.encode(value)


def _drop_from_value(
    value: Any, node: Any, classes: dict[str, Any], gone: Mapping[str, Any]
) -> None:
    """Remove fields from a decoded value in place, in every record that its type has."""
    if isinstance(node, str) or value is None or node["kind"] == "literal":
        return
    if node["kind"] == "union":
        for member in _possible_members(value, node["of"], classes):
            _drop_from_value(value, member, classes, gone)
    elif node["kind"] == "class":
        fields = classes[node["name"]].get("fields", {})
        for name in gone.get(node["name"], ()):
            value.pop(name, None)
        for name in fields.keys() & (value if isinstance(value, dict) else {}):
            _drop_from_value(value[name], fields[name]["type"], classes, gone)
    elif node["kind"] == "fixed":
        for part, member in zip(value, node["of"], strict=True):
            _drop_from_value(part, member, classes, gone)
    else:
        for part in value.values() if "key" in node else value:
            _drop_from_value(part, node["of"], classes, gone)


def _possible_members(value: Any, nodes: list[Any], classes: dict[str, Any]) -> list[Any]:
    """Return those of a union's `nodes` that a decoded value may belong to: by kind, or tag."""
    kinds = [node for node in nodes if isinstance(node, dict) and node["kind"] != "literal"]
    if isinstance(value, list):
        return [node for node in kinds if node["kind"] != "class" and "key" not in node]
    if not isinstance(value, dict):
        return []
    objects = [node for node in kinds if node["kind"] == "class" or "key" in node]
    if len(objects) == 1:
        return objects
    tags = [(classes[node["name"]].get("tag"), node) for node in objects if "name" in node]
    return [node for tag, node in tags if tag is not None and value.get(tag[0]) == tag[1]]


def _as_node(value: Any, type_node: Any, classes: dict[str, Any]) -> Any:
    """Return the Python value of a decoded msgpack value; `classes`: name → description."""
    if isinstance(type_node, str):
        return _FROM_TEXT[type_node](value) if type_node in _FROM_TEXT else value
    kind = type_node["kind"]
    if kind == "union":
        return _as_union_member(value, type_node["of"], classes)
    if kind == "class":
        fields = classes[type_node["name"]].get("fields")
        if fields is None or not isinstance(value, dict):
            return value
        known_fields = {name: part for name, part in value.items() if name in fields}
        return {
            name: _as_node(part, fields[name]["type"], classes)
            for name, part in known_fields.items()
        }
    if kind == "fixed":
        parts = zip(value, type_node["of"], strict=True)
        return tuple(_as_node(part, member, classes) for part, member in parts)
    if kind == "dict":
        return {
            _as_node(key, type_node["key"], classes): _as_node(item, type_node["of"], classes)
            for key, item in value.items()
        }
    if kind == "literal":
        return value
    items = [_as_node(part, type_node["of"], classes) for part in value]
    if kind == "tuple":
        return tuple(items)
    try:
        return {"set": set, "frozenset": frozenset}.get(kind, list)(items)
    except TypeError:  # records, which are dicts here
        return items


def _as_union_member(value: Any, nodes: list[Any], classes: dict[str, Any]) -> Any:
    """Return the Python value of a decoded value of a union, by the one of `nodes` that fits."""
    if value is None:
        return None
    members = [node for node in nodes if node != "none"]
    is_tagged = isinstance(value, dict) and len(members) > 1
    for node in members if is_tagged else ():
        tag = (
            classes[node["name"]].get("tag") if isinstance(node, dict) and "name" in node else None
        )
        if tag is not None and value.get(tag[0]) == tag[1]:
            return _as_node(value, node, classes)
    return _as_node(value, members[0], classes) if len(members) == 1 else value


_NO_MOMENT = 2**61
"""In a column of event times: none; as `godwit.time.grid.END`."""


def blank_columns(schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Return `count` rows of state columns of a new key: no timer, no expiry, no bytes."""
    columns = [
        pa.array([_NO_MOMENT] * count, field.type)
        if pa.types.is_integer(field.type)
        else pa.array([b""] * count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def upgrade_between(
    operator: str,
    written: WrittenState,
    today: StateDescription,
    codec: StateCodec,
    function: Callable[[Any], Any] | None,
) -> StateUpgrade | None:
    """Return the upgrade of states from the stored description to today's; raise if none exists.

    Returns ``None`` if the present codec reads the old state as it is.
    """
    stored = written.description
    if (stored.codec, plain(stored.type)) == (today.codec, plain(today.type)):
        return None
    reader = codec
    if function is None:
        refused, rewritten = [], False
        if stored.codec != today.codec:
            refused = [f"codec: {stored.codec} → {today.codec}"]
        elif not isinstance(codec, MsgpackCodec):
            refused = [f"class: {stored.type['class']} → {today.type['class']}"]
        else:
            changes = changes_between(stored.type, today.type)
            refused = changes.refused
            if stored.type["form"] == "native" and not codec.reads_native:
                refused = [
                    *refused,
                    "it was written in a form that the declared type does not have",
                ]
            rewritten = changes.widened or bool(changes.renamed) or bool(written.gone)
            reader = codec.with_names(changes.renamed)
        if refused:
            raise CheckpointMismatchError(
                f"The state of operator {operator!r} in the checkpoint does not fit the declared "
                f"type: {'; '.join(refused)}.",
                remedy="Declare the state with a function that converts stored state to the "
                "declared type, as in gw.ValueState(..., upgrade=convert), undo the change, or "
                "give the operator a new name, under which it starts empty.",
                operator=operator,
                differences=refused,
            )
        if not rewritten:
            return None
    return PythonStateUpgrade(
        operator=operator,
        stored=stored.type,
        gone=written.gone,
        reader=reader,
        codec=codec,
        function=function,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStateUpgrade:
    """A `StateUpgrade` of Python state: every state is encoded again."""

    operator: str  # whose state, for messages
    stored: dict[str, Any]  # description of the type as it was; of a pickle, its class
    # name of a record → fields that some version of it in between did not have
    gone: Mapping[str, frozenset[str]]
    # reads stored values as today's type; unused with a `function`
    reader: StateCodec
    codec: StateCodec  # writes today's type
    # what the user gave: the old state, as plain values, to the new one
    function: Callable[[Any], Any] | None

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Return as many states; those that were removed, which have no bytes, stay so."""
        index = values.schema.get_field_index("state")
        blobs = values.column(index).to_pylist()
        upgraded = [
            self._upgraded_state(row, blob) if blob else blob for row, blob in enumerate(blobs)
        ]
        field = values.schema.field(index)
        return values.set_column(index, field, pa.array(upgraded, field.type))

    def _upgraded_state(self, row: int, blob: bytes) -> bytes:
        """Return an encoded state converted to today's type, or raise; `row`: for errors."""
        if self.gone:
            blob = drop_fields(blob, self.stored, self.gone)
        try:
            state = self._decode_old(row, blob)
            (written,) = self.codec.encode([state])
        except UnencodableError as error:
            raise StateEncodingError(
                f"Operator {self.operator!r} cannot convert its stored state to the declared "
                f"type: {error}.",
                remedy="Let upgrade= return a state of the declared type.",
                operator=self.operator,
                row=row,
            ) from error
        if self.function is None and not _agree_where_both(
            old := read_plain(blob, self.stored), read_plain(written, self.codec.describe())
        ):
            raise StateEncodingError(
                f"Operator {self.operator!r} has stored state with a number that the declared type "
                f"does not have: {old!r:.200}.",
                remedy="Convert integers that no float is equal to by upgrade=.",
                operator=self.operator,
                row=row,
            )
        return written

    def _decode_old(self, row: int, blob: bytes) -> Any:
        """Decode an old state, by the present codec or by the user's upgrade function."""
        if self.function is None:
            return self.reader.decode([memoryview(blob)])[0]
        is_pickle = "class" in self.stored  # which was asked for by name
        old = pickle.loads(blob) if is_pickle else read_plain(blob, self.stored)  # noqa: S301
        try:
            return self.function(old)
        except Exception as error:
            raise UserFunctionError(
                f"The upgrade function of operator {self.operator!r} raised "
                f"{type(error).__qualname__}: {error}.",
                remedy="Correct the function: an old state may be of any earlier version that is "
                f"still in the checkpoint; this one was {old!r:.200}."
                f"{passed_on_hint(self.function, error, 'upgrade(stored)')} Its traceback is:\n"
                f"{(text := user_traceback(error))}",
                operator=self.operator,
                row=row,
                traceback=text,
            ) from error


def _agree_where_both(old: Any, new: Any) -> bool:
    """Return whether two plain values are equal in all parts that both have."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_agree_where_both(item, new[key]) for key, item in old.items() if key in new)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_agree_where_both, old, new))
    return bool(old == new) or (old != old and new != new)  # noqa: PLR0124 - NaN alone
