"""Sending what the main script or a notebook defines to executors, which cannot import it.

Problem: Spark's cloudpickle sends a class of ``__main__`` as its name, bases and attributes.  That
is not all there is to some: a `msgspec.Struct` is made of C fields by its metaclass and would come
out without any; a dataclass would come out with fields that `dataclasses` does not take for fields;
annotations that are text would be looked up in the ``__main__`` of the executor; and what msgspec
notes on classes that it has seen cannot be pickled at all.

Here such classes travel as recipes.  A recipe has two parts, since a class may be mentioned by its
own methods: what makes the class, and what is set on it once it can be referred to.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import typing
from typing import Any

import msgspec
from pyspark.cloudpickle import cloudpickle

__all__ = ["dumps"]

_NOTES = "__msgspec_cache__"
_track: Any = cloudpickle._get_or_create_tracker_id  # noqa: SLF001 - as it does for other classes
_tracked: Any = cloudpickle._lookup_class_or_track  # noqa: SLF001
_FIELD_KIND = type(dataclasses._FIELD)  # type: ignore[attr-defined]  # noqa: SLF001
_STRUCT_OPTIONS: tuple[str, ...] = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "repr_omit_defaults",
    "omit_defaults",
)
_STRUCT_OPTIONS += ("forbid_unknown_fields", "weakref", "dict", "cache_hash", "gc")


def dumps(value: Any) -> bytes:
    """Pickle a value; ``pickle.loads`` reads it, where Godwit can be imported."""
    file = io.BytesIO()
    pickler: Any = _Pickler
    pickler(file).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _FIELD_KIND:
            return obj.name  # what `dataclasses` tells apart by identity
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if not isinstance(obj, type) or not isinstance(reduced, tuple) or len(reduced) < 6:
            return reduced
        attributes, slots = reduced[2]
        attributes.pop(_NOTES, None)
        if attributes.get("__annotations__"):
            attributes["__annotations__"] = _evaluated(obj)
        if isinstance(obj, type(msgspec.Struct)):
            return _struct_recipe(obj, attributes)
        return (*reduced[:2], (attributes, slots), *reduced[3:])


def _evaluated(cls: type) -> dict[str, Any]:
    """Give a class's own annotations as types in place of text."""
    own = inspect.get_annotations(cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - they stay as they are; who needs them says what is missing
        return dict(own)
    return {name: hints.get(name, given) for name, given in own.items()}


# -- msgspec.Struct ---------------------------------------------------------------------------


class _Later:
    """Stands for a function that a class needs to be made, and that may mention the class."""

    def __init__(self) -> None:
        self.function: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def bound(self) -> Any:
        """As a method: what stands in a class has to be a function for that."""

        def call(instance: Any) -> None:
            self.function(instance)

        return call


def _struct_recipe(cls: Any, attributes: dict[str, Any]) -> tuple[Any, ...]:
    own = [name for name in inspect.get_annotations(cls) if name in _fields(cls)]
    config = cls.__struct_config__
    options = {name: getattr(config, name) for name in _STRUCT_OPTIONS}
    if config.tag is not None:
        options |= {"tag": config.tag, "tag_field": config.tag_field}
    options["kw_only"] = any(name not in cls.__match_args__ for name in own)
    names = zip(_fields(cls), cls.__struct_encode_fields__, strict=True)
    options["rename"] = {name: sent for name, sent in names if name in own}
    defaults, factories = {}, {}
    for info in msgspec.structs.fields(cls):
        if info.name in own and info.default is not msgspec.NODEFAULT:
            defaults[info.name] = info.default
        elif info.name in own and info.default_factory is not msgspec.NODEFAULT:
            factories[info.name] = info.default_factory
    later = {
        name: value
        for name, value in attributes.items()
        if name not in own and not name.startswith("__struct_") and name not in _MADE_ANEW
    }
    making = {
        "metaclass": type(cls),
        "name": cls.__name__,
        "bases": cls.__bases__,
        "described": {name: cls.__dict__[name] for name in ("__module__", "__doc__")}
        | {"__qualname__": cls.__qualname__},
        "fields": own,
        "defaults": defaults,
        "factories": tuple(factories),
        "options": options,
        "post_init": "__post_init__" in cls.__dict__,
        # One class, however often it is sent.
        "tracker": _track(cls),
    }
    return _make_struct, (making,), (later, factories), None, None, _finish_struct


def _make_struct(making: dict[str, Any]) -> Any:
    later = {name: _Later() for name in making["factories"]}
    namespace = {
        **making["described"],
        "__annotations__": dict.fromkeys(making["fields"], Any),
        **making["defaults"],
        **{name: msgspec.field(default_factory=late) for name, late in later.items()},
    }
    if making["post_init"]:
        later["__post_init__"] = _Later()
        namespace["__post_init__"] = later["__post_init__"].bound()
    made = making["metaclass"](making["name"], making["bases"], namespace, **making["options"])
    _unfinished.setdefault(made, later)
    return _tracked(making["tracker"], made)


def _finish_struct(cls: Any, state: Any) -> Any:
    attributes, factories = state
    for name, late in _unfinished.pop(cls, {}).items():
        late.function = attributes["__post_init__"] if name == "__post_init__" else factories[name]
    for name, value in attributes.items():
        setattr(cls, name, value)
    return cls


_MADE_ANEW = frozenset(["__slots__", "__match_args__", "__doc__", "__module__", "__qualname__"])
_unfinished: dict[Any, dict[str, _Later]] = {}


def _fields(cls: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = cls.__struct_fields__
    return names
