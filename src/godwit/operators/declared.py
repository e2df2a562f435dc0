"""Declarations of state: ``state={"recent": gw.ListState(float, ttl="1 day")}``.

A `ValueState` without a name is the single state of a function, with options.
"""

from __future__ import annotations

import datetime as dt
import keyword
import types
import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
)

import pyarrow as pa

from godwit.model.errors import InvalidFlowError, UserFunctionError
from godwit.model.frames import user_class
from godwit.model.naming import did_you_mean, is_one_of, listing
from godwit.model.signatures import check_signature
from godwit.operators.operator import STATE
from godwit.time.durations import microseconds
from godwit.values.codec import CODECS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.time.durations import Duration
    from godwit.values.codec import Codec

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

TIMERS: Final = "timers"
"""Name of the state that holds an operator's timers."""

HELD: Final = "waiting_rows"
"""State of rows that wait for the watermark, of a function that gets them in order."""

PARTS: Final = "parts"
"""Name of the state of parts of an operator with one state, and beginning of those of others."""

Frames: TypeAlias = Literal["arrow", "pandas", "polars"]
FRAMES: Final[tuple[str, ...]] = get_args(Frames)
CALLED: Final = "function(rows, states, key_of_row)"
"""How a function over tables is called, as text."""

ITEM_TYPES: Final[dict[type, pa.DataType]] = {
    str: pa.string(),
    int: pa.int64(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    dt.date: pa.date32(),
}
"""Types of the keys of a map, or of the parts of a tuple, and their columns."""

_FORMER: Final = {"state_classes": "classes", "state_upgrade": "upgrade"}
"""Former name of an option of a declaration → its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredState:
    """Options of all declarations; for a type checker the class of a dict of several kinds."""

    ttl: Duration | None = None
    codec: Codec = "msgpack"
    classes: Mapping[str, type] | Sequence[type] = ()


@user_class
@dataclass(frozen=True, slots=True)
class ValueState(DeclaredState, Generic[T]):
    """Declares a state with one value per key: ``process(..., state=gw.ValueState(dict, ...))``.

    Without a name it is the function's only state, and the function gets the value itself, as with
    the bare type. In a dict of named states, ``state={"total": gw.ValueState(int)}``, the function
    gets it as a `ValueOfKey`.

    Attributes
    ----------
    value_type
        Type of the value; called without arguments to create the value of a key that has none.
    ttl
        Time-to-live, such as ``"30 days"``, by the driver's clock. A named value is removed if it
        was not written for this long; a single state, if its key had no rows and no timer that
        fired for this long. By default it is stored forever.
    codec
        Encoding of the value: ``"msgpack"``, or ``"pickle"`` for values that msgpack cannot encode.
        Unpickling can run any code, so open such a checkpoint only if you trust it.
    classes
        Classes (dataclasses, `msgspec.Struct`, named tuples, enumerations) that the value may hold
        beside those that its type mentions: a subclass in ``list[Base]``, anything in a plain
        ``dict``. A mapping of name → class stores them under these names, so that a class may be
        renamed later.
    upgrade
        Called with a stored value that does not fit the present type, as plain values (a dict for a
        class); returns it as the present type. Needed only after a change of the type that cannot
        be read as it is.
    merge
        Called as ``merge(value, other)`` with two values of a key; returns one merged value, which
        must not depend on their order. It allows the rows of a hot key to be divided among several
        lanes (parallel tasks), each with partial states of its own, by
        ``gw.control.Adaptation(spreading=gw.control.Spreading())`` or
        ``query.hot_keys.spread(...)``; of several states all need it. As long as a key is divided,
        the function sees only the rows and the partial states of its lane; these are merged when
        the key goes back to one lane. By default all rows of a key go to one lane.

    Examples
    --------
    >>> gw.ValueState(int, ttl="30 days").ttl
    '30 days'
    >>> gw.ValueState(int, merge=lambda value, other: value + other).merge(2, 3)
    5
    """

    _MEANT: ClassVar = {"of": "value_type", **_FORMER}

    value_type: type[T] | Callable[[], T]
    _: KW_ONLY
    upgrade: Callable[[Any], T] | None = None
    merge: Callable[[T, T], T] | None = None

    def __post_init__(self) -> None:
        if not callable(self.value_type):
            raise _not_a_type("ValueState", self.value_type)


@user_class
@dataclass(frozen=True, slots=True)
class ListState(DeclaredState, Generic[T]):
    """Declares a state with one list per key: ``process(..., state={"recent": ...})``.

    The function gets it as a `ListOfKey`. Appending reads and writes only the last page of the list
    (64 elements), however long the list is.

    Attributes
    ----------
    element_type
        Type of the elements.
    ttl
        Time-to-live, such as ``"1 day"``: an element is removed once it is this old, by the
        driver's clock. By default it is stored forever.
    codec, classes
        Encoding of the elements, and further classes that they may hold, as for `ValueState`.
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

    _MEANT: ClassVar = {"of": "element_type", **_FORMER}

    element_type: type[T]
    _: KW_ONLY
    upgrade: Callable[[Any], T] | None = None
    merge: Callable[[list[T], list[T]], list[T]] | None = None

    def __post_init__(self) -> None:
        if not _is_type(self.element_type):
            raise _not_a_type("ListState", self.element_type)


@user_class
@dataclass(frozen=True, slots=True)
class MapState(DeclaredState, Generic[K, V]):
    """Declares a state with one map per key: ``process(..., state={"per_zone": ...})``.

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
    codec, classes
        Encoding of the items' values, and further classes that they may hold, as for `ValueState`.
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

    _MEANT: ClassVar = {"by": "key_type", "of": "value_type", **_FORMER}

    key_type: type[K]
    value_type: type[V]
    _: KW_ONLY
    upgrade: Callable[[Any], V] | None = None
    merge: Callable[[V, V], V] | None = None

    def __post_init__(self) -> None:
        for given_type in (self.key_type, self.value_type):
            if not _is_type(given_type):
                raise _not_a_type("MapState", given_type)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateColumns:
    """State of a key as columns, and what they hold for a new key: null, or a default."""

    columns: pa.Schema
    defaults: Mapping[str, Any] = field(default_factory=dict)


Declared: TypeAlias = ValueState[Any] | ListState[Any] | MapState[Any, Any]


def declared_states(
    operator: str, state: Any
) -> tuple[ValueState[Any] | None, dict[str, Declared]]:
    """Return the single state of a function and its named states, of which one is unset.

    `state`: what the user gave: a type, a `ValueState`, or a mapping of names and declarations.
    Raises `InvalidFlowError` if it is not valid.
    """
    if isinstance(state, Mapping):
        return None, _named_states(operator, state)
    if isinstance(state, ListState | MapState):
        raise InvalidFlowError(
            f"Operator {operator!r} has state={state!r}, which needs a name.",
            remedy=f'Give it one, as in state={{"seen": gw.{type(state).__name__}(...)}}.',
            operator=operator,
        )
    if isinstance(state, type) and issubclass(state, ValueState | ListState | MapState):
        raise InvalidFlowError(
            f"Operator {operator!r} has state={state.__name__}, without a type.",
            remedy="Give it the type, as in state=gw.ValueState(dict).",
            operator=operator,
        )
    if not isinstance(state, ValueState):
        if not callable(state):
            given_text = "" if state is None else f", but {state!r}"
            raise InvalidFlowError(
                f"Operator {operator!r} has no type of state{given_text}.",
                remedy="Give a class that can be made without arguments, as in state=OrderBook or "
                "state=dict.",
                operator=operator,
            )
        state = ValueState(state)
    _check_options(f"operator {operator!r}", state, operator=operator)
    return state, {}


def _named_states(operator: str, states: Mapping[Any, Any]) -> dict[str, Declared]:
    """Return the declared states by name; raise `InvalidFlowError` if they are not valid."""
    if not states:
        raise InvalidFlowError(
            f"Operator {operator!r} was given an empty mapping for state=.",
            remedy='Declare a state, as in state={"seen": gw.ValueState(int)}; the type of a '
            "state that is a dict is state=dict.",
            operator=operator,
        )
    for name, declared in states.items():
        _check_name(operator, name)
        where = f"state {name!r} of operator {operator!r}"
        if not isinstance(declared, ValueState | ListState | MapState):
            raise InvalidFlowError(
                f"{_capitalized(where)} is declared as {declared!r}.",
                remedy="Declare it as gw.ValueState(T), gw.ListState(T) or gw.MapState(K, V).",
                operator=operator,
                state=name,
            )
        _check_options(where, declared, operator=operator, state=name)
        if isinstance(declared, MapState):
            item_types_of(declared, _capitalized(where))
    return dict(states)


def _check_options(where: str, declared: Declared, **context: Any) -> None:
    """Raise `InvalidFlowError` for wrong options of a declaration.

    `where`: the state or the operator, for errors. `context`: fields of the error.
    """
    subject = _capitalized(where)
    if not is_one_of(declared.codec, CODECS):
        raise InvalidFlowError(
            f"{subject} has codec={declared.codec!r}.",
            remedy=f"{did_you_mean(str(declared.codec), CODECS)}Give 'msgpack' or, for state that "
            "it cannot hold, 'pickle'.",
            **context,
        )
    given_classes: Any = declared.classes
    classes = [*given_classes.values()] if isinstance(given_classes, Mapping) else given_classes
    if not isinstance(classes, list | tuple | set | frozenset) or not all(
        isinstance(cls, type) for cls in classes
    ):
        raise InvalidFlowError(
            f"{subject} has classes={given_classes!r}.",
            remedy="Give classes in a list, as in gw.ValueState(dict, classes=[Order, Trade]), or "
            "a dict of names and classes.",
            **context,
        )
    if declared.upgrade is not None:
        if not callable(declared.upgrade):
            raise InvalidFlowError(
                f"{subject} was given upgrade={declared.upgrade!r}, which cannot be called.",
                remedy="Give a function that gets the old state as plain values and returns it as "
                "the present type.",
                **context,
            )
        check_signature(subject, declared.upgrade, "upgrade(stored)", **context)
    ttl_us_of(declared, where)


def _capitalized(where: str) -> str:
    """Return a text with its first letter as a capital."""
    return where[0].upper() + where[1:]


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
    """Return the time-to-live of a state in microseconds; ``None`` if it has none.

    `where`: the state or the operator, for errors.
    """
    if declared.ttl is None:
        return None
    return microseconds(declared.ttl, f"The time-to-live of {where}", least=1)


def part_state_of(state: str) -> str:
    """Return the name of the state that stores partial states, of parts of hot keys, of `state`."""
    return PARTS if state == STATE else f"{PARTS}_{state}"


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


class NoSuchStateError(UserFunctionError, AttributeError):
    """A function asked for a state that its operator does not declare."""


class States:
    """Named states of one key, for one call: ``states.recent`` or ``states["recent"]``.

    Godwit makes it: functions of ``process(..., state={...})`` get it as their third argument. Each
    state is a `ValueOfKey`, `ListOfKey` or `MapOfKey`.

    Examples
    --------
    >>> def newest(key, rows, states):
    ...     states.seen.value = list(rows)[-1].delay
    ...     return [(*key, states.seen.value)]
    >>> rows, declared = [{"delay": 5}, {"delay": 7}], {"seen": gw.ValueState(int)}
    >>> gw.testing.process(newest, rows, key={"plane": "N1"}, state=declared).rows
    [('N1', 7)]
    """

    __slots__ = ("_cells", "_given", "_group", "_key", "_operator", "_over")

    def __init__(
        self, cells: Mapping[str, Any], group: int, key: tuple[Any, ...], operator: str
    ) -> None:
        self._cells, self._group, self._key, self._operator = cells, group, key, operator
        self._given: dict[str, Any] = {}
        self._over = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        state = self._given.get(name)
        if state is None:
            self._check_open()
            cells = self._cells.get(name)
            if cells is None:
                raise NoSuchStateError(
                    f"Operator {self._operator!r} has no state {name!r}.",
                    remedy=f"{did_you_mean(str(name), list(self._cells))}It declares "
                    f"{listing(self._cells)}.",
                    operator=self._operator,
                )
            state = self._given[name] = cells.handle(cells, self._group, self._check_open)
        return state

    def __setattr__(self, name: str, value: Any) -> None:
        if name in States.__slots__:
            object.__setattr__(self, name, value)
            return
        raise UserFunctionError(
            f"Operator {self._operator!r} assigned states.{name}.",
            remedy=f"Assign states.{name}.value, or use replace(...) of a list and items of a map.",
            operator=self._operator,
        )

    def __repr__(self) -> str:
        return f"States({', '.join(self._cells)})"

    def _drop_all(self) -> None:
        """Delete all states of the key."""
        for cells in self._cells.values():
            cells.drop(self._group)

    def _close(self) -> None:
        """Make any further use of the states an error: the call has returned."""
        self._over = True

    def _check_open(self) -> None:
        """Raise if the call that these states were passed to has returned."""
        if self._over:
            raise UserFunctionError(
                f"A state of key {self._key!r} of operator {self._operator!r} was used after the "
                "function had returned; a change would be lost.",
                remedy="Use the state within the call only, and keep copies of its values.",
                operator=self._operator,
                key=self._key,
            )
