"""Declarations of named states: ``states={"recent": gw.ListState(float, ttl="1 day")}``."""

from __future__ import annotations

import datetime as dt
import keyword
import types
import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar

import pyarrow as pa

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.naming import type_name
from godwit.model.signatures import check_signature
from godwit.time.durations import microseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.time.durations import Duration

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

TIMERS: Final = "timers"
"""Name of the state that holds an operator's timers."""

ITEM_TYPES: Final[dict[type, pa.DataType]] = {
    str: pa.string(),
    int: pa.int64(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    dt.date: pa.date32(),
}
"""Types of the keys of a map, or of the parts of a tuple, and their columns."""


@user_class
@dataclass(frozen=True, slots=True)
class ValueState(Generic[T]):
    """Declares a state with one value per key: ``process(..., states={"total": ...})``.

    The function gets it as a `ValueOfKey`.

    Attributes
    ----------
    value_type
        Type of the value; called without arguments to create the value of a key that has none.
    ttl
        Time-to-live, such as ``"30 days"``: the value is removed if it was not written for this
        long, by the driver's clock. By default it is stored forever.
    upgrade
        Called with a stored value that does not fit the present type, as plain values (a dict for a
        class); returns it as the present type. Needed only after a change of the type that cannot
        be read as it is.
    merge
        Called as ``merge(value, other)`` with two values of a key; returns one merged value, which
        must not depend on their order. If all states of a function have it, the rows of a hot key
        can be divided among several lanes (see ``merge`` of `godwit.types.KeyedStream.process`). By
        default all rows of a key go to one lane.

    Examples
    --------
    >>> gw.ValueState(int, ttl="30 days").ttl
    '30 days'
    >>> gw.ValueState(int, merge=lambda value, other: value + other).merge(2, 3)
    5
    """

    _MEANT: ClassVar = {"of": "value_type"}

    value_type: Callable[[], T]
    _: KW_ONLY
    ttl: Duration | None = None
    upgrade: Callable[[Any], T] | None = None
    merge: Callable[[T, T], T] | None = None

    def __post_init__(self) -> None:
        if not callable(self.value_type):
            raise _not_a_type("ValueState", self.value_type)


@user_class
@dataclass(frozen=True, slots=True)
class ListState(Generic[T]):
    """Declares a state with one list per key: ``process(..., states={"recent": ...})``.

    The function gets it as a `ListOfKey`. Appending reads and writes only the last page of the list
    (64 elements), however long the list is.

    Attributes
    ----------
    element_type
        Type of the elements.
    ttl
        Time-to-live, such as ``"1 day"``: an element is removed once it is this old, by the
        driver's clock. By default it is stored forever.
    upgrade
        Called with each stored element that does not fit the present type, as plain values (a dict
        for a class); returns it as the present type.
    merge
        Called as ``merge(elements, others)`` with two lists of a key that are not empty; returns
        one merged ``list``, which must not depend on their order. If all states of a function have
        it, the rows of a hot key can be divided among several lanes. By default they are not.

    Examples
    --------
    >>> gw.ListState(int, ttl="1 day").ttl
    '1 day'
    """

    _MEANT: ClassVar = {"of": "element_type"}

    element_type: type[T]
    _: KW_ONLY
    ttl: Duration | None = None
    upgrade: Callable[[Any], T] | None = None
    merge: Callable[[list[T], list[T]], list[T]] | None = None

    def __post_init__(self) -> None:
        if not _is_type(self.element_type):
            raise _not_a_type("ListState", self.element_type)


@user_class
@dataclass(frozen=True, slots=True)
class MapState(Generic[K, V]):
    """Declares a state with one map per key: ``process(..., states={"per_zone": ...})``.

    The function gets it as a `MapOfKey`. An access reads and writes only the items that it touches.

    Attributes
    ----------
    key_type
        Type of the items' keys: ``str``, ``int`` (64 bits), ``bytes``, ``bool``, ``datetime.date``,
        or a tuple of these, as in ``tuple[str, int]``.
    value_type
        Type of the items' values.
    ttl
        Time-to-live, such as ``"1 day"``: an item is removed if it was not written for this long,
        by the driver's clock. By default it is stored forever.
    upgrade
        Called with the stored value of each item that does not fit the present type, as plain
        values (a dict for a class); returns it as the present type.
    merge
        Called as ``merge(value, other)`` with the two values of an item that both of two maps of a
        key have; returns one merged value, which must not depend on their order. Items that only
        one map has stay as they are. If all states of a function have it, the rows of a hot key can
        be divided among several lanes. By default they are not.

    Examples
    --------
    >>> gw.MapState(str, int).key_type
    <class 'str'>
    """

    _MEANT: ClassVar = {"by": "key_type", "of": "value_type"}

    key_type: type[K]
    value_type: type[V]
    _: KW_ONLY
    ttl: Duration | None = None
    upgrade: Callable[[Any], V] | None = None
    merge: Callable[[V, V], V] | None = None

    def __post_init__(self) -> None:
        for given in (self.key_type, self.value_type):
            if not _is_type(given):
                raise _not_a_type("MapState", given)


def _is_type(given: object) -> bool:
    """Return whether a value is a type annotation, such as ``list[int]`` or ``int | None``."""
    return (
        isinstance(given, type | typing.NewType | typing.TypeVar | types.UnionType)
        or given is None
        or given is Any
        or typing.get_origin(given) is not None
        or hasattr(given, "__value__")
    )


def _not_a_type(kind: str, given: object) -> InvalidFlowError:
    """Return the error for a state that was declared with something other than a type."""
    remedy = "Give the class, as in gw.ListState(float) or gw.MapState(str, int)."
    if isinstance(given, str):
        remedy = f"Give the class itself, without quotes, as in gw.{kind}(float)."
    elif kind == "ValueState":
        remedy = f"Give the class, which makes a new key's value, as in gw.{kind}(dict)."
    return InvalidFlowError(f"{kind} was given {given!r:.100}, which is not a type.", remedy=remedy)


Declared: TypeAlias = ValueState[Any] | ListState[Any] | MapState[Any, Any]


def check_states(operator: str, states: object, **others: object) -> dict[str, Declared]:
    """Return the declared states by name; raise `InvalidFlowError` if they are not valid.

    `others`: options that exclude ``states=``, which must be unset.
    """
    remedy = 'Give a mapping, as in states={"seen": gw.ValueState(int)}.'
    for option, value in others.items():
        if value is not None:
            raise InvalidFlowError(
                f"Operator {operator!r} was given both states= and {option}=.",
                remedy=f"{option}= goes with a single state; say it in the declaration, as in "
                'states={"seen": gw.ValueState(int, ttl="1 day")}.',
                operator=operator,
            )
    if not isinstance(states, Mapping) or not states:
        given = "an empty mapping" if isinstance(states, Mapping) else f"a {type_name(states)}"
        raise InvalidFlowError(
            f"Operator {operator!r} was given {given} for states=.",
            remedy=remedy,
            operator=operator,
        )
    for name, declared in states.items():
        _check_name(operator, name)
        where = f"State {name!r} of operator {operator!r}"
        if not isinstance(declared, ValueState | ListState | MapState):
            raise InvalidFlowError(
                f"{where} is declared as {declared!r}.",
                remedy="Declare it as gw.ValueState(T), gw.ListState(T) or gw.MapState(K, V).",
                operator=operator,
                state=name,
            )
        if declared.upgrade is not None and not callable(declared.upgrade):
            raise InvalidFlowError(
                f"{where} was given upgrade={declared.upgrade!r}, which cannot be called.",
                remedy="Give a function that gets an old value as plain values.",
                operator=operator,
                state=name,
            )
        if declared.upgrade is not None:
            called = "upgrade(value)"
            check_signature(where, declared.upgrade, called, operator=operator, state=name)
        ttl_us_of(declared, where)
        if isinstance(declared, MapState):
            item_types_of(declared, where)
    return dict(states)


def _check_name(operator: str, name: object) -> None:
    """Raise `InvalidFlowError` unless a state's name is a lower-case identifier, not reserved."""
    good = isinstance(name, str) and name.isidentifier() and name.isascii()
    if not good or name != str(name).lower() or keyword.iskeyword(name) or name.startswith("_"):
        raise InvalidFlowError(
            f"Operator {operator!r} has a state named {name!r}.",
            remedy="Name states by lower-case letters, digits and underscores, beginning with a "
            "letter: functions reach them as states.name.",
            operator=operator,
        )
    if name == TIMERS:
        raise InvalidFlowError(
            f"Operator {operator!r} has a state named {name!r}, which is reserved for its timers.",
            remedy="Choose another name.",
            operator=operator,
        )


def ttl_us_of(declared: Declared, where: str) -> int | None:
    """Return the time-to-live of a state in microseconds; ``None`` if it has none."""
    if declared.ttl is None:
        return None
    return microseconds(declared.ttl, f"The time-to-live of {where[0].lower()}{where[1:]}", least=1)


def item_types_of(declared: MapState[Any, Any], where: str) -> tuple[type, ...]:
    """Return the types of a map's keys (one per element of tuples); raise for types not allowed.

    `where`: the operator and state, for errors.
    """
    parts = (declared.key_type,)
    if typing.get_origin(declared.key_type) is tuple:
        parts = typing.get_args(declared.key_type)
    if not parts or not all(part in ITEM_TYPES for part in parts):
        raise InvalidFlowError(
            f"{where} is a map with keys of type {declared.key_type!r}.",
            remedy="Use str, int, bytes, bool, datetime.date, or a tuple of "
            "these, as in gw.MapState(tuple[str, int], float).",
        )
    return parts
