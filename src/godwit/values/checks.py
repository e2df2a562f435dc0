"""Checks of values as state, and errors that name the part that fails.

`is_same` compares a state with what came back of it, `TypeChecker` a value with its declared type.
Paths read like Python: ``.levels[3].price``, ``['a']``; an element of a set, which has no place of
its own, is ``{}``.  Records are rebuilt from their fields (`rebuilt`), and refused if they hold
other attributes.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import operator
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec

from godwit.model.signatures import awaiting_hint
from godwit.values.types import COLLECTIONS, MAPPINGS, SCALARS, fields_of, is_record, node_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from godwit.values.types import Described


class UnsupportedValueError(Exception):
    """A value has a type that state cannot hold."""


class UnencodableError(Exception):
    """A state cannot be encoded or decoded."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index  # position of the state


def apply_each(function: Callable[[Any], Any], values: Sequence[Any], first: int = 0) -> list[Any]:
    """Return the results for all values; raise `UnencodableError` for the first value that fails.

    `first`: position of the first value.
    """
    results = []
    for index, value in enumerate(values, first):
        try:
            results.append(function(value))
        except UnsupportedValueError as error:
            raise UnencodableError(index, str(error)) from error
        except Exception as error:
            raise UnencodableError(index, f"{type(error).__name__}: {error}") from error
    return results


def short_repr(value: object, limit: int = 80) -> str:
    """Return the first `limit` characters of a value's repr, for messages."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a class may do anything there
        text = "a value"
    return text if len(text) <= limit else f"{text[:limit]}..."


def plain_hint(value: Any) -> str:
    """Return how a value becomes one that state can hold, as text; empty if that is not known."""
    cls = type(value)
    if hint := awaiting_hint(value):
        return hint.rstrip(" .")
    if cls.__module__ == "numpy" and callable(getattr(value, "item", None)):
        plain = type(value.item()).__name__ if not getattr(value, "shape", ()) else "list"
        return "say x.tolist()" if plain == "list" else f"say {plain}(x) or x.item()"
    if callable(getattr(value, "to_pydatetime", None)):
        return "say x.to_pydatetime()"
    if (cls.__module__, cls.__name__) == ("godwit.columns.python_values", "Row"):
        return "say tuple(x), or x._asdict() for a dict"
    return ""


def unreadable_remedy(operator: str, key: tuple[Any, ...], what: str) -> str:
    """Return advice, as text, for stored state of one key that cannot be read.

    `operator`: its name. `what`: what the advice suggests to rename so that it starts without
    state, such as ``"the operator"``.
    """
    return (
        "State written by an earlier version of the program fits if fields were only added, with "
        f"defaults; otherwise give {what} a new name, or forget this key's state alone: stop the "
        f"query and run godwit checkpoint drop CHECKPOINT {operator} --key {quote(repr(key))}."
    )


def rebuilt(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return a record of class `cls` with these fields, missing ones by default, or raise.

    ``__post_init__`` may set other attributes; its changes of fields are undone.
    """
    names = fields_of(cls)
    present = {name: values[name] for name in names if name in values}
    if issubclass(cls, tuple):
        return cls(**present)
    if issubclass(cls, msgspec.Struct):
        struct = cls(**present)
        if hasattr(cls, "__post_init__"):
            for name, value in present.items():
                msgspec.structs.force_setattr(struct, name, value)
        return struct
    record = cls.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in present:
            value = present[field.name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            raise ValueError(f"field {field.name!r} of {cls.__qualname__} is missing")
        object.__setattr__(record, field.name, value)
    if hasattr(cls, "__post_init__") and not _has_init_vars(cls):
        record.__post_init__()
        for name, value in present.items():
            object.__setattr__(record, name, value)
    return record


def maker_of(cls: Any) -> Callable[[tuple[Any, ...]], Any] | None:
    """Return a function that makes records of a class of the values of all fields, as `rebuilt`.

    ``None`` if that runs code of the class.
    """
    if runs_code(cls):
        return None
    if issubclass(cls, tuple):
        return functools.partial(tuple.__new__, cls)
    names = fields_of(cls)
    if issubclass(cls, msgspec.Struct):
        return lambda values: cls(**dict(zip(names, values, strict=True)))
    new, assign = functools.partial(object.__new__, cls), object.__setattr__

    def make(values: tuple[Any, ...]) -> Any:
        """Make a dataclass's instance."""
        record = new()
        for name, value in zip(names, values, strict=True):
            assign(record, name, value)
        return record

    return make


def runs_code(cls: Any) -> bool:
    """Return whether `rebuilt` runs methods of a class, which may raise or change fields."""
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


def _has_init_vars(cls: Any) -> bool:
    """Return whether a dataclass has ``InitVar`` arguments, which are not stored."""
    return any(
        field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]  # noqa: SLF001
        for field in cls.__dataclass_fields__.values()
    )


def check_attributes(value: Any, fields: Sequence[str]) -> None:
    """Raise if a record has attributes besides its fields, which decoding would not restore."""
    attributes, cls = vars(value), type(value)
    expected: dict[str, Any] | None = None
    for name in attributes.keys() - set(fields):
        if isinstance(getattr(cls, name, None), functools.cached_property):
            continue
        if expected is None and hasattr(cls, "__post_init__"):
            expected = vars(rebuilt(cls, {field: getattr(value, field) for field in fields}))
        if expected is None or name not in expected or expected[name] != attributes[name]:
            raise UnsupportedValueError(
                f"an object with attribute {name!r}, which is not a field of {cls.__qualname__}"
            )


_DEEPEST = 40
_DEEPEST_AT_ONCE = 8
_SCALAR_TYPES = {name: kind for kind, name in SCALARS.items()}
_SCALAR_TYPES_ACCEPTED: dict[str, Any] = {
    **_SCALAR_TYPES,
    "float": (float, int),
    "complex": (complex, float, int),
}
_CONTAINERS = {name: kind for kind, name in (COLLECTIONS | MAPPINGS | {tuple: "tuple"}).items()}


def is_same(first: Any, second: Any) -> bool:
    """Return whether two values are equal, with the same types at every depth; NaN equals NaN.

    Records are compared by their fields, whatever their ``__eq__`` says; cached properties do not
    count.
    """
    kind = type(first)
    if kind is not type(second):
        return False
    if is_record(kind):
        if _record_attributes(first) != _record_attributes(second):
            return False
        return all(
            is_same(getattr(first, field), getattr(second, field)) for field in fields_of(kind)
        )
    if isinstance(first, dict):
        if getattr(first, "default_factory", None) is not getattr(second, "default_factory", None):
            return False
        if len(first) != len(second):
            return False
        pairs = zip(first.items(), second.items(), strict=True)
        return all(
            is_same(first_key, second_key) and is_same(first_value, second_value)
            for (first_key, first_value), (second_key, second_value) in pairs
        )
    if isinstance(first, (list, tuple, collections.deque)):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, (set, frozenset)):
        types = collections.Counter(map(type, first))
        if types != collections.Counter(map(type, second)):
            return False
        only_in_first, second_value = (
            sorted(part, key=repr) for part in (first - second, second - first)
        )  # NaN
        return len(only_in_first) == len(second_value) and all(
            map(is_same, only_in_first, second_value)
        )
    if getattr(kind, "__eq__", None) is not object.__eq__ or first is second:
        try:
            answer = first == second
            if answer is False and first != first:  # noqa: PLR0124 - NaN, of any type of numbers
                answer = second != second  # noqa: PLR0124
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 - a class may do anything there
            answer = None
        if isinstance(answer, bool):
            return answer
    # No answer, or one for each element: compared by what pickle and copy take for the state of an
    # object, where a text names what exists once.
    parts, others = first.__reduce_ex__(2), second.__reduce_ex__(2)
    return not isinstance(parts, str) and is_same(list(parts[1:3]), list(others[1:3]))


def _record_attributes(record: Any) -> set[str]:
    """Return the names of a record's attributes, without cached properties."""
    cls, names = type(record), getattr(record, "__dict__", {})
    return {
        name
        for name in names
        if not isinstance(getattr(cls, name, None), functools.cached_property)
    }


def failing_path(value: Any, fails: Callable[[Any], bool]) -> tuple[str, Any]:
    """Return path and value of the innermost failing part; path ``""`` if no part fails."""
    path = ""
    for _ in range(_DEEPEST):
        failing = next(
            ((step, part) for step, part in _parts_with_steps(value) if fails(part)), None
        )
        if failing is None:
            break
        path, value = path + failing[0], failing[1]
    return path, value


def _parts_with_steps(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with its step in a path, such as ``.price`` or ``[3]``."""
    if is_record(type(value)):
        for name in fields_of(type(value)):
            yield f".{name}", getattr(value, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"[key {key!r}]", key
            yield f"[{key!r}]", item
    elif isinstance(value, (list, tuple, collections.deque)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield "{}", item


def _are_subclasses(kinds: set[type], classes: Any) -> bool:
    """Return whether all of `kinds` are subclasses of a class, or of one of several."""
    return all(issubclass(kind, classes) for kind in kinds)


class TypeChecker:
    """Check of values against a declared type.

    An integer fits where a float is declared, and an instance of a subclass where a class is.
    """

    def __init__(self, described: Described) -> None:
        self._type = described.schema["type"]
        self._schema, self._classes = described.schema["classes"], described.classes

    def __call__(self, value: Any) -> bool:
        """Return whether all of a value fits."""
        return self.misfit(value, self._type) is None

    def all(self, values: Sequence[Any]) -> bool:
        """Return whether all values fit the declared type."""
        return self._surely_fit(values, self._type) or all(map(self, values))

    def _surely_fit(self, values: Collection[Any], node: Any, depth: int = 0) -> bool:
        """Return whether values fit a type, looking at the classes of all of them at once.

        False also if that does not tell.
        """
        if not values or node == "any":
            return True
        if depth > _DEEPEST_AT_ONCE:  # values may contain themselves
            return False
        kinds, deeper = set(map(type, values)), depth + 1
        if isinstance(node, str):
            return _are_subclasses(kinds, _SCALAR_TYPES_ACCEPTED[node])
        kind = node["kind"]
        if kind == "union":
            return self._surely_fit_union(values, kinds, node["of"], deeper)
        if kind == "literal":
            return False
        if kind == "class":
            return self._surely_fit_class(values, kinds, node["name"], deeper)
        if kind == "fixed":
            parts = node["of"]
            return (
                _are_subclasses(kinds, tuple)
                and set(map(len, values)) == {len(parts)}
                and all(
                    self._surely_fit([value[place] for value in values], part, deeper)
                    for place, part in enumerate(parts)
                )
            )
        if not _are_subclasses(kinds, _CONTAINERS[kind]):
            return False
        if "key" not in node:
            return node["of"] == "any" or self._surely_fit(
                list(itertools.chain.from_iterable(values)), node["of"], deeper
            )
        return all(
            part == "any"
            or self._surely_fit(list(itertools.chain.from_iterable(parts)), part, deeper)
            for part, parts in (
                (node["key"], values),
                (node["of"], (value.values() for value in values)),
            )
        )

    def _surely_fit_union(
        self, values: Collection[Any], kinds: set[type], parts: Any, depth: int
    ) -> bool:
        """Return whether values fit a union: its scalars, and besides these another part of it."""
        scalars = {
            kind
            for kind in kinds
            for part in parts
            if isinstance(part, str) and issubclass(kind, _SCALAR_TYPES_ACCEPTED[part])
        }
        if scalars == kinds:
            return True
        others = [value for value in values if type(value) not in scalars]
        return any(
            self._surely_fit(others, part, depth) for part in parts if not isinstance(part, str)
        )

    def _surely_fit_class(
        self, values: Collection[Any], kinds: set[type], name: str, depth: int
    ) -> bool:
        """Return whether values fit a record, enum or typed dict."""
        cls, described = self._classes[name], self._schema[name]
        if described["kind"] == "typeddict":
            fields = described["fields"]
            return (
                _are_subclasses(kinds, dict)
                and all(map(fields.keys().__ge__, [value.keys() for value in values]))
                and all(
                    self._surely_fit(
                        [value[field] for value in values if field in value],
                        declared["type"],
                        depth,
                    )
                    for field, declared in fields.items()
                )
            )
        return _are_subclasses(kinds, cls) and (
            issubclass(cls, enum.Enum)
            or all(
                self._surely_fit(
                    list(map(operator.attrgetter(field), values)), declared["type"], depth
                )
                for field, declared in described["fields"].items()
            )
        )

    def explain(self, value: Any) -> str:
        """Return the first misfit of a value as text, such as ``.n is 'x', declared as int``."""
        path, part, expected = self.misfit(value, self._type) or ("", value, self._type)
        hint = plain_hint(part)
        problem = f"{path or 'it'} is {short_repr(part)}, declared as {node_text(expected)}"
        return f"{problem} ({hint})" if hint else problem

    def misfit(self, value: Any, node: Any) -> tuple[str, Any, Any] | None:
        """Return path, value and type of the first part that does not fit; ``None`` if all do."""
        if isinstance(node, str):
            fits = node == "any" or isinstance(value, _SCALAR_TYPES_ACCEPTED[node])
            return None if fits else ("", value, node)
        kind = node["kind"]
        if kind == "union":
            if any(self.misfit(value, part) is None for part in node["of"]):
                return None
            return "", value, node
        if kind == "literal":
            return None if value in node["values"] else ("", value, node)
        if kind == "class":
            return self._misfit_in_class(value, node)
        if kind == "fixed":
            if not isinstance(value, tuple) or len(value) != len(node["of"]):
                return "", value, node
            return self._first_misfit(enumerate(value), zip(value, node["of"], strict=True))
        if not isinstance(value, _CONTAINERS[kind]):
            return "", value, node
        return self._misfit_in_container(value, node)

    def _misfit_in_container(self, value: Any, node: Any) -> tuple[str, Any, Any] | None:
        """Return path, value and type of the first part of a container that does not fit."""
        if "key" in node:
            if node["key"] != "any":
                for key in value:
                    if (mismatch := self.misfit(key, node["key"])) is not None:
                        return f"[key {key!r}]{mismatch[0]}", *mismatch[1:]
            if node["of"] == "any":
                return None
            return self._first_misfit(
                ((repr(key), item) for key, item in value.items()),
                ((item, node["of"]) for item in value.values()),
            )
        if node["of"] == "any":
            return None
        return self._first_misfit(enumerate(value), ((item, node["of"]) for item in value))

    def _first_misfit(self, places: Any, pairs: Any) -> tuple[str, Any, Any] | None:
        """Return path, value and type of the first (value, type) pair that does not fit."""
        for (place, _), (item, node) in zip(places, pairs, strict=True):
            if (mismatch := self.misfit(item, node)) is not None:
                return f"[{place}]{mismatch[0]}", *mismatch[1:]
        return None

    def _misfit_in_class(self, value: Any, node: Any) -> tuple[str, Any, Any] | None:
        """Return path, value and type of the first misfit in a record, enum or typed dict."""
        cls = self._classes[node["name"]]
        described = self._schema[node["name"]]
        if described["kind"] == "typeddict":
            if not isinstance(value, dict):
                return "", value, node
            for name, item in value.items():
                if name not in described["fields"]:
                    return f"[{name!r}]", item, node
            value_of: Any = lambda name: value[name]  # noqa: E731 - one of two ways to read a field
            names = [name for name in described["fields"] if name in value]
        elif not isinstance(value, cls):
            return "", value, node
        elif isinstance(value, enum.Enum):
            return None
        else:
            value_of = lambda name: getattr(value, name)  # noqa: E731
            names = list(described["fields"])
        for name in names:
            field = described["fields"][name]["type"]
            if (mismatch := self.misfit(value_of(name), field)) is not None:
                return f".{name}{mismatch[0]}", *mismatch[1:]
        return None
