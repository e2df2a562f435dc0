"""Whatever a state holds comes back equal and of the same types, or is refused with its place."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import functools
import math
import zoneinfo
from typing import Any, Literal, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

from godwit.values.checks import TypeChecker
from godwit.values.codec import make_codec
from godwit.values.types import describe
from godwit.values.values import TaggedValues


class Side(enum.Enum):
    BUY = "b"
    SELL = ("s", 1)


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Point(NamedTuple):
    x: Any = 0
    y: Any = 0


class Leg(msgspec.Struct):
    price: float = 0.0
    notes: Any = None


class LongLeg(Leg):
    until: dt.date | None = None


@dataclasses.dataclass
class Order:
    """Its `__post_init__` would set back what a function has changed."""

    legs: list[Leg] = dataclasses.field(default_factory=list)
    seen: list = dataclasses.field(default_factory=list)  # type: ignore[type-arg]
    total: float = 0.0
    filled: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        self.filled = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    left: Any = None
    right: Any = None


CLASSES = [Side, Level, Rights, Point, Leg, LongLeg, Order, Pair]

ZONES = st.sampled_from(
    [
        None,
        dt.UTC,
        dt.timezone(dt.timedelta(hours=-3, minutes=-30), "NST"),
        zoneinfo.ZoneInfo("Europe/Berlin"),
    ]
)
DATETIMES = st.builds(
    lambda when, fold, zone: when.replace(fold=fold, tzinfo=zone),
    st.datetimes(),
    st.sampled_from([0, 1]),
    ZONES,
)
HASHABLE_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False)
    | st.dates()
    | DATETIMES
    | st.times(timezones=st.none())
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from([*Side, Level.LOW, Rights.READ | Rights.WRITE])
)
LEAVES = (
    HASHABLE_LEAVES
    | st.floats()
    | st.decimals()
    | st.binary(max_size=4).map(bytearray)
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.recursive(
    HASHABLE_LEAVES,
    lambda inner: (
        st.tuples(inner, inner)
        | st.frozensets(inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=4,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    dicts = st.dictionaries(KEYS, inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    return (
        lists
        | lists.map(tuple)
        | st.builds(collections.deque, lists, st.sampled_from([None, 2]))
        | dicts
        | dicts.map(lambda held: collections.OrderedDict(held))  # noqa: PLW0108 - mypy's wish
        | st.builds(collections.defaultdict, st.sampled_from([None, int, list, Order]), dicts)
        | st.dictionaries(KEYS, st.integers(), max_size=3).map(collections.Counter)
        | st.sets(KEYS, max_size=3)
        | st.builds(Leg, st.floats(), inner)
        | st.builds(LongLeg, st.floats(), inner, st.dates())
        | st.builds(Point, inner, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Order, st.lists(st.builds(Leg), max_size=2), lists)
    )


VALUES = st.recursive(LEAVES, containers, max_leaves=8)


def identical(one: Any, other: Any) -> bool:
    """True if no question that a function could ask tells two values apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (
            one == other or (math.isnan(one) and math.isnan(other))
        )
    if isinstance(one, dt.datetime | dt.time):
        return repr(one) == repr(other) and one.fold == other.fold
    if isinstance(one, dict):
        extra = getattr(one, "default_factory", 0) is getattr(other, "default_factory", 0)
        return extra and identical(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple | collections.deque):
        extra = getattr(one, "maxlen", 0) == getattr(other, "maxlen", 0)
        return extra and len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, set | frozenset):
        types = collections.Counter(map(type, one))
        return one == other and types == collections.Counter(map(type, other))
    if isinstance(one, msgspec.Struct):
        return identical(msgspec.structs.asdict(one), msgspec.structs.asdict(other))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(identical(getattr(one, n), getattr(other, n)) for n in names)
    return repr(one) == repr(other)


def through(state_type: Any, states: list[Any]) -> list[Any]:
    codec = make_codec("o", "msgpack", state_type, CLASSES)
    return codec.decode([memoryview(blob) for blob in codec.encode(states)])


PROFILE = settings(derandomize=True, deadline=None, max_examples=rounds(20, 100), database=None)


@PROFILE
@given(states=st.lists(st.lists(VALUES, max_size=3), max_size=3))
def test_what_stands_in_an_untyped_list_comes_back_as_it_was(states: list[Any]) -> None:
    assert identical(through(list, states), states)


@PROFILE
@given(states=st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=3))
def test_what_stands_in_an_untyped_dict_comes_back_as_it_was(states: list[Any]) -> None:
    assert identical(through(dict, states), states)


@PROFILE
@given(
    legs=st.lists(
        st.builds(Leg, st.floats(), VALUES) | st.builds(LongLeg, st.floats()), max_size=3
    ),
    seen=st.lists(VALUES, max_size=3),
    filled=st.integers(0, 9),
)
def test_subclasses_and_what_post_init_would_set_back_come_back(
    legs: list[Leg], seen: list[Any], filled: int
) -> None:
    order = Order(legs=legs, seen=seen)
    order.filled = filled
    assert identical(through(Order, [Order(), order]), [Order(), order])


class Plain(msgspec.Struct):
    """Of types that msgspec brings back by itself."""

    n: int = 0
    x: float = 0.0
    name: str | None = None
    side: Level | None = None
    legs: list[tuple[int, float]] = []
    sums: dict[str, float] = {}
    kinds: frozenset[str] = frozenset()


@PROFILE
@given(
    states=st.lists(
        st.builds(
            Plain,
            n=st.integers(),
            x=st.floats(),
            name=st.none() | st.text(),
            side=st.sampled_from([None, Level.LOW]),
            legs=st.lists(st.tuples(st.integers(-(2**70), 2**70), st.floats()), max_size=3),
            sums=st.dictionaries(st.text(max_size=3), st.floats(), max_size=3),
            kinds=st.frozensets(st.text(max_size=3), max_size=3),
        ),
        max_size=4,
    )
)
def test_typed_state_comes_back_as_it_was(states: list[Plain]) -> None:
    assert identical(through(Plain, states), states)


@dataclasses.dataclass
class Noted:
    """Has attributes beside its fields, at times."""

    n: Any = 0
    when: Any = None

    @functools.cached_property
    def text(self) -> str:
        return str(self.n)


def noted(n: Any, when: Any, asked: bool) -> Noted:
    made = Noted(n, when)
    assert not asked or made.text
    return made


RECORDS: dict[type, st.SearchStrategy[Any]] = {
    Point: st.builds(Point, VALUES, VALUES),
    Pair: st.builds(Pair, VALUES, VALUES),
    LongLeg: st.builds(LongLeg, st.floats() | st.integers(), VALUES, st.none() | st.dates()),
    Noted: st.builds(noted, VALUES, DATETIMES, st.booleans()),
}


@PROFILE
@given(
    data=st.sampled_from(sorted(RECORDS, key=str)).flatmap(
        lambda cls: st.tuples(st.just(cls), st.lists(RECORDS[cls], min_size=1, max_size=4))
    ),
    others=st.lists(VALUES, max_size=1),
)
def test_many_records_are_written_and_read_as_one_at_a_time(
    data: tuple[type, list[Any]], others: list[Any]
) -> None:
    cls, records = data
    values = TaggedValues({c.__name__: c for c in [*CLASSES, Noted]})
    blobs = list(map(values.encode, [*records, *others]))
    assert values.encode_all([*records, *others]) == blobs
    assert identical(values.decode_all(blobs, cls), list(map(values.decode, blobs)))


TYPES: list[Any] = [
    *(int, float, str | None, bool | float | dt.date, list[int], dict[str, float]),
    *(dict[Any, Pair | None], tuple[int, str], set[str], Literal[1, "a"], Point, LongLeg, Order),
    *(list[Order] | Level | None, collections.deque[Any], complex),
]


@PROFILE
@given(
    hint=st.sampled_from(TYPES),
    values=st.lists(
        VALUES
        | st.lists(st.integers() | st.text(max_size=2), max_size=3)
        | st.tuples(st.integers(), st.integers() | st.text(max_size=2)),
        min_size=1,
        max_size=3,
    ),
)
def test_values_fit_a_type_at_once_only_if_each_does(hint: Any, values: list[Any]) -> None:
    fits = TypeChecker(describe(hint, CLASSES))
    assert fits.all(values) == all(map(fits, values))
