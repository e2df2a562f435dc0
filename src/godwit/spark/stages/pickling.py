"""Sending what the main script or a notebook defines to executors, which cannot import it.

Problem: Spark's cloudpickle sends a class of ``__main__`` as its name, bases and attributes.  That
is not all there is to some: a `msgspec.Struct` is made of C fields by its metaclass and would come
out without any; a dataclass would come out with fields that `dataclasses` does not take for fields;
annotations that are text would be looked up in the ``__main__`` of the executor; and what msgspec
notes on classes that it has seen cannot be pickled at all.

Here such classes travel as recipes.  A recipe has two parts, since a class may be mentioned by its
own methods: the call that creates the class, and the attributes that are set on it afterwards.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import typing
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.cloudpickle import cloudpickle

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import error_line, function_name
from godwit.plan.nodes import (
    ComputeNode,
    ProcessNode,
    SourceNode,
    WindowedNode,
    branches_of,
    streams_read_by,
    tables_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.api.flow import LogicalFlow
    from godwit.plan.nodes import StreamNode

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
    """Pickle a value for executors; classes of the main script are pickled by value."""
    file = io.BytesIO()
    pickler: Any = _Pickler
    pickler(file).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    """Pickler whose classes of the main script can be rebuilt where it does not exist."""

    def reducer_override(self, obj: Any) -> Any:
        """Pickle classes of the main script by value, msgspec structs by their own recipe."""
        if type(obj) is _FIELD_KIND:
            return obj.name  # what `dataclasses` tells apart by identity
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if not isinstance(obj, type) or not isinstance(reduced, tuple) or len(reduced) < 6:
            return reduced
        attributes, slots = reduced[2]
        attributes.pop(_NOTES, None)
        if attributes.get("__annotations__"):
            attributes["__annotations__"] = _evaluated_annotations(obj)
        if isinstance(obj, type(msgspec.Struct)):
            return _struct_recipe(obj, attributes)
        return (*reduced[:2], (attributes, slots), *reduced[3:])


def _evaluated_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of a class's own fields, evaluated to types."""
    annotations = inspect.get_annotations(cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - hints stay as they are; their reader reports missing names
        return dict(annotations)
    return {name: hints.get(name, annotation) for name, annotation in annotations.items()}


# -- msgspec.Struct ---------------------------------------------------------------------------


class _Later:
    """Stands for a function that a class needs to be made, and that may mention the class."""

    def __init__(self) -> None:
        self.function: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def bound(self) -> Any:
        """Return the deferred method as a function, which Python binds to instances."""

        def call(instance: Any) -> None:
            """Call the deferred method on an instance."""
            self.function(instance)

        return call


def _struct_recipe(cls: Any, attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Return the pickling recipe, as of ``__reduce__``, of a msgspec class of the main script.

    `attributes`: those of the class.
    """
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
    recipe = {
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
    return _make_struct, (recipe,), (later, factories), None, None, _finish_struct


def _make_struct(recipe: dict[str, Any]) -> Any:
    """Return a struct class made again from the recipe of `_struct_recipe`.

    `_finish_struct` adds its functions.
    """
    later = {name: _Later() for name in recipe["factories"]}
    namespace = {
        **recipe["described"],
        "__annotations__": dict.fromkeys(recipe["fields"], Any),
        **recipe["defaults"],
        **{name: msgspec.field(default_factory=late) for name, late in later.items()},
    }
    if recipe["post_init"]:
        later["__post_init__"] = _Later()
        namespace["__post_init__"] = later["__post_init__"].bound()
    cls = recipe["metaclass"](recipe["name"], recipe["bases"], namespace, **recipe["options"])
    _unfinished.setdefault(cls, later)
    return _tracked(recipe["tracker"], cls)


def _finish_struct(cls: Any, state: Any) -> Any:
    """Return a struct class made by `_make_struct`, with its methods and factories added."""
    attributes, factories = state
    for name, late in _unfinished.pop(cls, {}).items():
        late.function = attributes["__post_init__"] if name == "__post_init__" else factories[name]
    for name, value in attributes.items():
        setattr(cls, name, value)
    return cls


_MADE_ANEW = frozenset(["__slots__", "__match_args__", "__doc__", "__module__", "__qualname__"])
_unfinished: dict[Any, dict[str, _Later]] = {}


def _fields(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a msgspec struct."""
    names: tuple[str, ...] = cls.__struct_fields__
    return names


_DRIVER_ONLY = ("pyspark.sql", "pyspark.core", "py4j")
_DEPTH = 5


def check_picklable(flow: LogicalFlow) -> None:
    """Raise if a function of the flow cannot be pickled for the executors.

    The error names the operator, the function, and the variable that cannot be pickled.
    """
    checked: set[int] = set()
    for where, value, context in _user_values(flow):
        if id(value) not in checked:
            checked.add(id(value))
            _check_value(value, where, context)


def _user_values(flow: LogicalFlow) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """Yield the user's values in a flow: description, value, and fields for an error about it."""
    for name, source in flow.own_sources.items():
        yield f"Source {name!r}", source, {"source": name}
    for node in flow.operators:
        context = {"operator": node.name}
        after = f"of operator {node.name!r}"
        if isinstance(node, ComputeNode) or (isinstance(node, WindowedNode) and node.aggregates):
            for result, aggregate in node.aggregates.items():
                yield f"Aggregate {result!r} {after}", aggregate, context
        elif isinstance(node, ProcessNode | WindowedNode):
            assert node.function is not None, "what has no aggregates has a function"
            yield f"Function {function_name(node.function)!r} {after}", node.function, context
            if isinstance(node, ProcessNode) and (on_timer := node.timing.on_timer) is not None:
                yield f"Function {function_name(on_timer)!r} {after}", on_timer, context
            if isinstance(node, ProcessNode) and node.asynchronous is not None:
                for name, factory in node.asynchronous.resources.items():
                    yield f"Resource {name!r} {after}", factory, context
            if isinstance(node, ProcessNode):
                yield f"The state {after}", node.state or node.columns, context
                for name, declared in node.states.items():
                    yield f"State {name!r} {after}", declared, context
        for stream in (*streams_read_by(node), *(table.stream for table in tables_of(node))):
            yield from _map_functions(stream)
    for sink in flow.sinks:
        yield from _map_functions(sink.upstream)


def _map_functions(node: StreamNode) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """Yield the user's functions in maps before a node, as `_user_values` does."""
    for branch in branches_of(node):
        if not branch.has_arrow_maps:
            continue
        feed = branch.feed
        kind, where = (
            ("source", "on source")
            if isinstance(feed, SourceNode)
            else ("operator", "after operator")
        )
        for step in branch.maps:
            text = f"Map {function_name(step.function)!r} {where} {feed.name!r}"
            yield text, step.function, {kind: feed.name}


def _check_value(value: Any, where: str, context: dict[str, str]) -> None:
    """Raise if a value cannot be pickled; the error names the part that cannot.

    `where`: subject of the error; `context`: its fields.
    """
    error = _pickling_error(value)
    if error is None:
        return
    path, culprit = _find_unpicklable(value, _DEPTH)
    kind = type(culprit)
    qualified = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if path:
        what = f"its variable {path[-1]!r}"
        for name in reversed(path[:-1]):
            what += f" of {name!r}"
        what += f", of type {qualified}, cannot be pickled"
    else:
        what = f"it cannot be pickled ({error_line(error)})"
    if kind.__module__.startswith(_DRIVER_ONLY):
        remedy = (
            "DataFrames and sessions live on the driver: join with a table in a map before "
            "key_by, or collect it (toArrow(), toPandas()) and use the result."
        )
    else:
        remedy = (
            "Make it inside the function at its first use (a function with functools.cache does), "
            "or keep only what can be pickled outside of it."
        )
    raise InvalidFlowError(
        f"{where} cannot be sent to executors: {what}.",
        remedy=remedy,
        variable=".".join(path),
        **context,
    )


def _pickling_error(value: Any) -> Exception | None:
    """Return the error of pickling a value; ``None`` if it can be pickled."""
    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001  a user's __reduce__ may raise anything
        return error
    return None


def _find_unpicklable(value: Any, depth: int) -> tuple[tuple[str, ...], Any]:
    """Return the unpicklable part of `value` after the names, at most `depth`, that lead to it."""
    if depth:
        for name, part in _referred_to(value):
            if _pickling_error(part) is not None:
                path, culprit = _find_unpicklable(part, depth - 1)
                return (name, *path), culprit
    return (), value


def _referred_to(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function, method or object refers to, with their names."""
    if inspect.ismethod(value):
        yield "self", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((f"argument {i}", part) for i, part in enumerate(value.args))
        yield from value.keywords.items()
        yield value.func.__name__, value.func
    elif inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        yield from variables.nonlocals.items()
        yield from variables.globals.items()
        for parameter in inspect.signature(value).parameters.values():
            if parameter.default is not parameter.empty:
                yield parameter.name, parameter.default
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):  # perhaps with slots
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif not type(value).__module__.startswith(_DRIVER_ONLY):
        yield from getattr(value, "__dict__", {}).items()
