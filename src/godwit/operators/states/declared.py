"""States as users declare them: ``states={"recent": gw.ListState(float, ttl="1 day")}``."""

from __future__ import annotations

import datetime as dt
import keyword
import types
import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import pyarrow as pa

from godwit.model.durations import microseconds
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.naming import type_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.model.durations import Duration

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
    """One value for each key.

    Attributes
    ----------
    of
        Its type, called without arguments for a key that has none.
    ttl
        It is forgotten once it was not written for this long by the driver's clock.
    upgrade
        Called with a value of an earlier type, as plain values, where that does not fit as it is;
        returns one of today's.

    Examples
    --------
    >>> ValueState(int, ttl="30 days")
    ValueState(of=<class 'int'>, ttl='30 days', upgrade=None)
    """

    of: Callable[[], T]
    _: KW_ONLY
    ttl: Duration | None = None
    upgrade: Callable[[Any], T] | None = None

    def __post_init__(self) -> None:
        if not callable(self.of):
            raise _no_type("ValueState", self.of)


@user_class
@dataclass(frozen=True, slots=True)
class ListState(Generic[T]):
    """A list per key: appending costs its last page, however long it is."""

    of: type[T]  # type of its elements
    _: KW_ONLY
    ttl: Duration | None = None  # an element is forgotten once it is this old by the driver's clock
    upgrade: Callable[[Any], T] | None = None  # as of `ValueState`, for an element

    def __post_init__(self) -> None:
        if not _is_type(self.of):
            raise _no_type("ListState", self.of)


@user_class
@dataclass(frozen=True, slots=True)
class MapState(Generic[K, V]):
    """A map per key: access costs only the items touched."""

    # Type of what items are found by: ``str``, ``int`` (64 bits), ``bytes``, ``bool``,
    # ``datetime.date``, or a tuple of these, as in ``tuple[str, int]``.
    by: type[K]
    of: type[V]  # type of the values
    _: KW_ONLY
    # An item is forgotten once it was not written for this long by the driver's clock.
    ttl: Duration | None = None
    upgrade: Callable[[Any], V] | None = None  # as of `ValueState`, for an item's value

    def __post_init__(self) -> None:
        for given in (self.by, self.of):
            if not _is_type(given):
                raise _no_type("MapState", given)


def _is_type(given: object) -> bool:
    """Return whether a value can stand for a type, as ``list[int]`` or ``int | None`` do."""
    return (
        isinstance(given, type | typing.NewType | typing.TypeVar | types.UnionType)
        or given is None
        or given is Any
        or typing.get_origin(given) is not None
        or hasattr(given, "__value__")
    )


def _no_type(kind: str, given: object) -> InvalidFlowError:
    """Return the error that a state was declared with something that is no type."""
    remedy = "Give the class, as in gw.ListState(float) or gw.MapState(str, int)."
    if isinstance(given, str):
        remedy = f"Give the class itself, without quotes, as in gw.{kind}(float)."
    elif kind == "ValueState":
        remedy = f"Give the class, which makes a new key's value, as in gw.{kind}(dict)."
    return InvalidFlowError(f"{kind} was given {given!r:.100}, which is no type.", remedy=remedy)


Declared: TypeAlias = ValueState[Any] | ListState[Any] | MapState[Any, Any]


def check_states(operator: str, states: object, **others: object) -> dict[str, Declared]:
    """Refuse declarations that are no mapping of names to states, and options of a single state."""
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
        ttl_us_of(declared, where)
        if isinstance(declared, MapState):
            item_types_of(declared, where)
    return dict(states)


def _check_name(operator: str, name: object) -> None:
    """Refuse a name of a state that is no plain lower-case identifier."""
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
            f"Operator {operator!r} has a state named {name!r}, which is that of its timers.",
            remedy="Choose another name.",
            operator=operator,
        )


def ttl_us_of(declared: Declared, where: str) -> int | None:
    """Return the time-to-live of a state in microseconds."""
    if declared.ttl is None:
        return None
    return microseconds(declared.ttl, f"The time-to-live of {where[0].lower()}{where[1:]}", least=1)


def item_types_of(declared: MapState[Any, Any], where: str) -> tuple[type, ...]:
    """Return the key types of a map: one, or those of a tuple."""
    parts = (declared.by,)
    if typing.get_origin(declared.by) is tuple:
        parts = typing.get_args(declared.by)
    if not parts or not all(part in ITEM_TYPES for part in parts):
        raise InvalidFlowError(
            f"{where} is a map by {declared.by!r}.",
            remedy="Its items are found by str, int, bytes, bool, datetime.date, or a tuple of "
            "these, as in gw.MapState(tuple[str, int], float).",
        )
    return parts
