"""Changes of a type of state: what continues, what is refused, and that old bytes say the same."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import pickle
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest

from godwit.library.states.type_changes import PythonStateUpgrade, changes_between, read_plain
from godwit.model.errors import StateEncodingError, UserFunctionError
from godwit.values.codec import MsgpackCodec, make_codec


class Side(enum.Enum):
    BUY = "b"


class MoreSides(enum.Enum):
    BUY = "b"
    SELL = "s"


class OtherSides(enum.Enum):
    BUY = "B"


@dataclasses.dataclass
class Level:
    price: int = 0
    size: int = 1


@dataclasses.dataclass
class LevelOfText:
    price: str = ""
    size: int = 1


@dataclasses.dataclass
class LevelOfFloats:
    price: float = 0.0
    size: int | None = None
    side: Side = Side.BUY


class Book(msgspec.Struct):
    bids: list[Level] = []
    asks: dict[str, Level] = {}


class BookOfText(msgspec.Struct):
    bids: list[LevelOfText] = []
    asks: dict[str, Level] = {}


class BookOfFloats(msgspec.Struct):
    bids: list[LevelOfFloats] = []
    asks: dict[str, LevelOfFloats] = {}
    seen: list[Any] = []


class Renamed(msgspec.Struct):
    bids: list[Level] = []
    offers: dict[str, Level] = {}


class Fewer(msgspec.Struct):
    bids: list[Level] = []


class Needy(msgspec.Struct):
    bids: list[Level]
    asks: dict[str, Level]
    name: str


class Open(msgspec.Struct):
    seen: list[Any] = []
    when: dt.datetime | None = None


class OpenAgain(msgspec.Struct):
    seen: list[Any] = []
    when: dt.datetime | None = None
    n: int = 7


def described(state_type: Any) -> dict[str, Any]:
    if state_type is Needy:
        return {**described_type(Needy), "form": "native"}
    return make_codec("o", "msgpack", state_type).describe()


def described_type(state_type: Any) -> dict[str, Any]:
    from godwit.values.types import describe

    return describe(state_type).schema


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        (Book, Book, []),
        (Book, BookOfFloats, []),
        (Book, Fewer, []),
        (Fewer, Book, []),
        (Book, BookOfText, ["BookOfText.bids[].price: int → str"]),
        (Book, Renamed, ["Renamed: asks gone and offers new (renamed?)"]),
        (Book, Needy, ["Needy.name: new, without a default"]),
        (Open, OpenAgain, []),
        (dict[str, int], dict[str, float], []),
        (dict[str, float], dict[str, int], ["state[]: float → int"]),
        (dict[str, int], dict[str, int | None], []),
        (dict[str, int | None], dict[str, int], ["state[]: int | None → int"]),
        (dict[str, Side], dict[str, MoreSides], []),
        (dict[str, MoreSides], dict[str, Side], ["state[]: member SELL is gone"]),
        (dict[str, Side], dict[str, OtherSides], ["state[]: member BUY 'b' → 'B'"]),
        (list[int], set[int], ["state: list[int] → set[int]"]),
        (list[tuple[int, str]], list[tuple[int, int]], ["state[][1]: str → int"]),
        (list[tuple[int, int]], list, ["state[]: tuple[int, int] → Any"]),
        (dict[str, list[float]], dict, []),
        (list, list[int], ["state[]: Any → int"]),
        (list[Literal["a"]], list[Literal["a", "b"]], []),
        (list[Literal["a"]], list[str], []),
        (
            list[Literal["a", "b"]],
            list[Literal["a"]],
            ["state[]: Literal['a', 'b'] → Literal['a']"],
        ),
        (dict[int, int], dict[str, int], ["state[key]: int → str"]),
        (Book, dict, ["state: Book → dict[Any, Any]"]),
    ],
    ids=str,
)
def test_every_difference_is_said_with_its_path(old: Any, new: Any, refused: list[str]) -> None:
    assert changes_between(described(old), described(new)).refused == refused


def forward(old: Any, new: Any, states: list[Any], function: Any = None) -> list[Any]:
    was, today = make_codec("o", "msgpack", old), make_codec("o", "msgpack", new)
    changes = changes_between(was.describe(), today.describe())
    assert isinstance(today, MsgpackCodec)
    upgrade = PythonStateUpgrade(
        operator="o",
        stored=was.describe(),
        gone={},
        reader=today.with_names(changes.renamed),
        codec=today,
        function=function,
    )
    upgrade = pickle.loads(pickle.dumps(upgrade))
    values = pa.record_batch({"state": pa.array([*was.encode(states), b""], pa.large_binary())})
    blobs = upgrade(values).column(0).to_pylist()
    assert blobs.pop() == b""
    return today.decode([memoryview(blob) for blob in blobs])


@pytest.mark.parametrize(
    ("old", "new", "state", "expected"),
    [
        (
            Book,
            BookOfFloats,
            Book([Level(3, 4)], {"a": Level(2**60)}),
            BookOfFloats([LevelOfFloats(3.0, 4)], {"a": LevelOfFloats(2.0**60, 1)}),
        ),
        (Fewer, Book, Fewer([Level(2)]), Book([Level(2)])),
        (Book, Fewer, Book([Level(2)], {"a": Level()}), Fewer([Level(2)])),
        (Open, OpenAgain, Open([(1, {2})]), OpenAgain([(1, {2})])),
        (dict[str, Side], dict[str, MoreSides], {"a": Side.BUY}, {"a": MoreSides.BUY}),
        (dict[str, list[float]], dict, {"a": [1.5]}, {"a": [1.5]}),
        (Fewer, Fewer, Fewer([Level(2**80)]), Fewer([Level(2**80)])),
    ],
    ids=str,
)
def test_old_state_says_the_same_after_a_compatible_change(
    old: Any, new: Any, state: Any, expected: Any
) -> None:
    assert not changes_between(described(old), described(new)).refused
    assert forward(old, new, [state]) == [expected]


def test_a_whole_number_that_no_float_is_equal_to_is_refused() -> None:
    with pytest.raises(
        StateEncodingError, match="a number that the declared type does not have"
    ) as e:
        forward(dict[str, int], dict[str, float], [{"a": 1}, {"a": 2**60 + 1}])
    assert e.value.context["row"] == 1


def rename_asks(old: dict[str, Any]) -> Renamed:
    return Renamed(
        bids=[Level(**level) for level in old["bids"]],
        offers={name: Level(**level) for name, level in old["asks"].items()},
    )


def test_a_function_brings_old_state_forward() -> None:
    states = [Book([Level(1)], {"a": Level(2, 3)}), Book([Level(2**70)])]
    assert forward(Book, Renamed, states, rename_asks) == [
        Renamed([Level(1)], {"a": Level(2, 3)}),
        Renamed([Level(2**70)]),
    ]


def test_a_functions_fault_and_a_state_of_the_wrong_type_name_the_operator() -> None:
    with pytest.raises(UserFunctionError, match=r"'o' raised KeyError: 'gone'.*'bids': \[\]") as e:
        forward(Book, Renamed, [Book()], lost_field)
    assert "in lost_field" in e.value.context["traceback"]
    with pytest.raises(StateEncodingError, match=r"it is {'bids': .*}, declared as Renamed"):
        forward(Book, Renamed, [Book()], unchanged)


def lost_field(old: dict[str, Any]) -> Any:
    return old["gone"]


def unchanged(old: dict[str, Any]) -> Any:
    return old


@dataclasses.dataclass
class Everything:
    pair: tuple[int, str] = (1, "a")
    days: frozenset[dt.date] = frozenset()
    sums: dict[str, Decimal] = dataclasses.field(default_factory=dict)
    took: dt.timedelta = dt.timedelta()
    side: Side | None = None
    level: Level = dataclasses.field(default_factory=Level)


def test_old_state_is_read_as_plain_values_of_its_types() -> None:
    state = Everything(
        days=frozenset([dt.date(2024, 1, 2)]),
        sums={"a": Decimal("1.10")},
        took=dt.timedelta(days=1, microseconds=3),
        side=Side.BUY,
    )
    expected = {
        "pair": (1, "a"),
        "days": {dt.date(2024, 1, 2)},
        "sums": {"a": Decimal("1.10")},
        "took": dt.timedelta(days=1, microseconds=3),
        "side": "b",
        "level": {"price": 0, "size": 1},
    }
    for state_type, wrap in ((Everything, lambda one: one), (list, lambda one: [one])):
        codec = make_codec("o", "msgpack", state_type, [Everything])
        (blob,) = codec.encode([wrap(state)])
        assert read_plain(blob, codec.describe()) == wrap(expected)
