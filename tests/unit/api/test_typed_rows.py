"""Rows, state and output of classes: what functions get and return, and how mistakes are told."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import typing
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pytest

import godwit as gw
from godwit.values.records import row_class

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = "symbol string, price double, size long"
ROWS = [
    {"symbol": "A", "price": 9.5, "size": 3},
    {"symbol": "B", "price": 1.0, "size": 1},
    {"symbol": "A", "price": 8.0, "size": 2},
]


@dataclasses.dataclass
class Order:
    symbol: str
    price: float
    size: int


class Trade(msgspec.Struct):
    symbol: str
    price: float


class Refusal(msgspec.Struct):
    symbol: str
    reason: str


class Best(NamedTuple):
    symbol: str
    price: float


@dataclasses.dataclass
class Book:
    bids: list[float] = dataclasses.field(default_factory=list)


def clear(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> Iterator[Trade]:
    for order in rows:
        assert isinstance(order, Order)
        book.bids.append(order.price * order.size)
        yield Trade(order.symbol, max(book.bids))


def count(
    key: tuple[str], rows: gw.types.KeyRows[Order], seen: gw.types.State[int]
) -> Iterator[Trade]:
    seen.value += len(rows)
    yield Trade(key[0], float(seen.value))


def wake(key: tuple[str], timer: gw.types.FiredTimer, book: Book) -> None: ...


def played(rows: list[dict[str, Any]] = ROWS, columns: str = COLUMNS, **options: Any) -> pa.Table:
    flow = gw.Flow("market", num_key_groups=4)
    stream = flow.source("orders", gw.testing.stream(columns)).key_by("symbol")
    given: dict[str, Any] = {"state": Book, "output": Trade, "row": Order, **options}
    flow.sink("out", stream.process(given.pop("function", clear), **given), gw.sinks.noop())
    return gw.testing.run(flow, {"orders": rows}).rows("out")


def of_each(table: pa.Table) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in table.to_pylist():
        found.setdefault(row["symbol"], []).append(row["price"])
    return found


def test_rows_are_instances_and_instances_are_rows() -> None:
    table = played()
    assert table.schema == pa.schema({"symbol": pa.string(), "price": pa.float64()})
    assert of_each(table) == {"A": [28.5, 28.5], "B": [1.0]}


def test_named_tuples_and_structs_are_rows_too() -> None:
    def best(
        key: tuple[str], rows: gw.types.KeyRows[Trade], seen: gw.types.State[float]
    ) -> Iterator[Best]:
        seen.value = max(seen.value, *(row.price for row in rows), 0.0)
        yield Best(key[0], seen.value)

    assert of_each(played(function=best, row=Trade, state=float, output=Best)) == {
        "A": [9.5],
        "B": [1.0],
    }


def test_only_columns_of_the_class_are_sent_to_the_function() -> None:
    flow = gw.Flow("market", num_key_groups=4)
    stream = flow.source("orders", gw.testing.stream(COLUMNS)).key_by("symbol")

    def last(key: tuple[str], rows: gw.types.KeyRows[Trade], book: Book) -> Iterator[Trade]:
        yield from rows

    out = stream.process(last, row=Trade, state=Book, output=Trade)
    flow.sink("out", out, gw.sinks.noop())
    [feed] = flow.compiled().inputs
    assert sorted(feed.columns) == ["price", "symbol"]


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


@dataclasses.dataclass
class Level:
    price: float
    sizes: list[int]


@dataclasses.dataclass(kw_only=True)
class Quote:
    side: Side
    at: dt.datetime
    day: dt.date | None
    level: Level
    kind: Literal["limit", "market"]
    fee: Annotated[Decimal, "decimal(10, 2)"]
    tags: tuple[str, ...] = ()


QUOTES = (
    "symbol string, side string, at timestamp, day date, level struct<price: double, sizes: "
    "array<long>>, kind string, fee decimal(10, 2), tags array<string>"
)
QUOTE = {
    "symbol": "A",
    "side": "sell",
    "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    "day": None,
    "level": {"price": 1.5, "sizes": [1, 2]},
    "kind": "limit",
    "fee": Decimal("0.25"),
    "tags": ["x"],
}


def test_enumerations_nested_classes_and_annotated_types_go_in_and_out_as_they_are() -> None:
    got: list[Quote] = []

    def pass_on(key: tuple[str], rows: gw.types.KeyRows[Quote], book: Book) -> Iterator[Quote]:
        got.extend(rows)
        yield from rows

    table = played([QUOTE], QUOTES, function=pass_on, row=Quote, output=Quote)
    assert got == [
        Quote(
            side=Side.SELL,
            at=dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
            day=None,
            level=Level(1.5, [1, 2]),
            kind="limit",
            fee=Decimal("0.25"),
            tags=("x",),
        )
    ]
    assert table.to_pylist() == [{k: v for k, v in QUOTE.items() if k != "symbol"}]
    assert table.schema.field("fee").type == pa.decimal128(10, 2)


def test_whole_numbers_are_floats_where_the_field_says_so() -> None:
    table = played([{"symbol": "A", "price": 2, "size": 3}], "symbol string, price int, size int")
    assert of_each(table) == {"A": [6.0]}


def test_the_function_of_a_class_is_tested_alone_as_any_other() -> None:
    done = gw.testing.process(
        clear,
        [{"price": 2.0, "size": 3}],
        key={"symbol": "A"},
        state=Book,
        row=Order,
        output=Trade,
    )
    assert (done.rows, done.state) == ([{"symbol": "A", "price": 6.0}], Book([6.0]))


def test_windows_emit_instances_too() -> None:
    flow = gw.Flow("market", num_key_groups=4)
    rows = gw.testing.stream("symbol string, price double, at timestamp")
    keyed = flow.source("orders", rows, event_time="at").key_by("symbol")

    def top(key: tuple[str], rows: gw.types.KeyRows, window: gw.types.Window) -> Iterator[Trade]:
        yield Trade(key[0], max(rows.column("price")))

    flow.sink("out", keyed.window(gw.tumbling("1 hour")).process(top, output=Trade), NOOP)
    played = gw.testing.run(
        flow,
        {"orders": [{"symbol": "A", "price": 1.0, "at": "2024-01-01T00:10:00+00:00"}]},
        close_at_end=True,
    )
    assert of_each(played.rows("out")) == {"A": [1.0]}


NOOP = gw.sinks.noop()


# -- mistakes ------------------------------------------------------------------------------------


def other_state(
    key: tuple[str], rows: gw.types.KeyRows[Order], seen: gw.types.State[str]
) -> None: ...
def bare_state(key: tuple[str], rows: gw.types.KeyRows[Order], seen: int) -> None: ...
def other_rows(key: tuple[str], rows: gw.types.KeyRows[Trade], book: Book) -> None: ...
def other_book(key: tuple[str], rows: gw.types.KeyRows[Order], book: dict[str, int]) -> None: ...
def text_key(key: str, rows: gw.types.KeyRows[Order], book: Book) -> None: ...
def two_keys(key: tuple[str, int], rows: gw.types.KeyRows[Order], book: Book) -> None: ...
def list_rows(key: tuple[str], rows: list[Order], book: Book) -> None: ...
def timed_rows(key: tuple[str], rows: gw.types.TimedRows[Order], book: Book) -> None: ...
def wake_rows(key: tuple[str], timer: gw.types.KeyRows[Order], book: Book) -> None: ...
def merge_three(one: Book, two: Book, three: Book) -> Book:
    return one


def as_any(function: Any) -> Any:
    """Return a function that a type checker does not look at."""
    return function


@dataclasses.dataclass
class Wrong:
    symbol: str
    prize: float


@dataclasses.dataclass
class Texts:
    price: str


@dataclasses.dataclass
class Odd:
    things: dict[str, int]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"function": other_state, "state": int}, "seen: State[str]", "gw.types.State[int]"),
    ({"function": bare_state, "state": int}, "comes in a holder", "seen: gw.types.State[int]"),
    ({"function": other_book}, "book: dict[str, int], and state=Book", "Declare book: Book"),
    ({"function": other_rows}, "KeyRows[", "gw.types.KeyRows[Order], or say row=Trade"),
    ({"row": None}, "rows are named tuples", "row=Order"),
    ({"function": text_key}, "key: str, and the key is a tuple", "key: tuple[str]"),
    ({"function": two_keys}, "there are 1 key columns", "values of symbol"),
    ({"function": list_rows}, "rows: list[", "rows: gw.types.KeyRows[Order]"),
    ({"function": timed_rows}, "has no timers", "timers=gw.types.OnTimer"),
    (
        {"timers": gw.types.OnTimer(as_any(wake_rows), clock="processing")},
        "gets a gw.types.FiredTimer",
        "timer: gw.types.FiredTimer",
    ),
    (
        {"state": gw.ValueState(Book, merge=as_any(merge_three))},
        "cannot be called as merge(value, other)",
        "two arguments",
    ),
    ({"row": Wrong, "function": lambda k, r, s: None}, "'prize' is not a column", "Did you mean"),
    ({"row": Texts, "function": lambda k, r, s: None}, "'price' is str", "cast the column"),
    ({"row": Odd}, "'things' of type dict[str, int]", "Annotated"),
    ({"row": 3}, "is 3, which is not a class of rows", "row=Order"),
]


@pytest.mark.parametrize(("options", "what", "remedy"), REFUSED)
def test_a_function_that_takes_something_else_is_refused_before_anything_runs(
    options: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(gw.errors.InvalidFlowError) as caught:
        played(**options)
    assert what in caught.value.message, caught.value.message
    assert remedy in caught.value.remedy, caught.value.remedy


def emits(*rows: Any) -> Any:
    def function(key: tuple[str], orders: gw.types.KeyRows[Order], book: Book) -> Any:
        return rows

    return function


def reads_prize(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> Any:
    return [Trade(key[0], row.prize) for row in rows]  # type: ignore[attr-defined]


def forgets_price(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> Any:
    return [Trade(key[0])]  # type: ignore[call-arg]


def puts_text(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> Any:
    book.bids.append("high")  # type: ignore[arg-type]


FAILED: list[tuple[dict[str, Any], list[str]]] = [
    ({"function": emits(Refusal("A", "late"))}, ["of type Refusal, but output=Trade", "('B',)"]),
    ({"function": emits(("A", 1.0))}, ["of type tuple, but output=Trade"]),
    ({"function": emits(Trade("A", "x"))}, ["'x' in column 'price'"]),  # type: ignore[arg-type]
    ({"function": emits(Trade("A", None))}, ["None in Trade.price, which is float"]),  # type: ignore[arg-type]
    ({"function": reads_prize}, ["no attribute 'prize'", "Did you mean 'price'"]),
    ({"function": forgets_price}, ["Missing required argument 'price'"]),
    ({"function": puts_text}, ["cannot write its state of key ('B',)", "'high'"]),
    (
        {"rows": [*ROWS, {"symbol": "B", "price": None, "size": 1}]},
        ["a row of key ('B',) does not fit Order.price, which is float", "float | None"],
    ),
    (
        {
            "rows": [QUOTE, {**QUOTE, "symbol": "Z", "side": "rob"}],
            "columns": QUOTES,
            "row": Quote,
            "function": lambda key, rows, book: None,
        },
        ["a row of key ('Z',) does not fit Quote.side", "'rob'"],
    ),
]


@pytest.mark.parametrize(("options", "texts"), FAILED)
def test_a_mistake_while_it_runs_names_the_operator_the_key_and_the_field(
    options: dict[str, Any], texts: list[str]
) -> None:
    with pytest.raises(gw.errors.GodwitError) as caught:
        played(**options)
    assert all(text in str(caught.value) for text in texts), str(caught.value)


class Priced(Protocol):
    price: float


@pytest.mark.parametrize(
    ("hints", "options"),
    [
        ({"key": tuple[str] | None}, {}),
        ({"rows": gw.types.KeyRows[Any]}, {}),
        ({"rows": gw.types.KeyRows[Any]}, {"row": Order}),
        ({"rows": gw.types.KeyRows[Priced]}, {"row": Order}),
        ({"rows": gw.types.KeyRows[tuple[Any, ...]]}, {}),
        ({"rows": gw.types.KeyRows | list}, {}),
        ({"state": gw.types.State | None}, {"state": int}),
        ({"state": gw.types.State[tuple[Any, ...]]}, {"state": tuple[int, ...]}),
        ({"state": dict[str, int] | None}, {}),
        ({"state": typing.Dict[str, int]}, {"state": dict[str, int]}),  # noqa: UP006 - as old code
        ({"state": dict[str, list[Any]]}, {"state": dict[str, list[int]]}),
    ],
    ids=str,
)
def test_annotations_that_say_less_pass(hints: dict[str, Any], options: dict[str, Any]) -> None:
    def function(key: Any, rows: Any, state: Any) -> list[Any]:
        return []

    function.__annotations__ = hints
    keyed = gw.Flow("f").source("s", gw.testing.stream(COLUMNS)).key_by("symbol")
    keyed.process(function, output="n long", **{"state": dict, **options})


def test_a_class_without_fields_or_with_annotations_nobody_knows_is_refused() -> None:
    class Empty(msgspec.Struct):
        pass

    @dataclasses.dataclass
    class Lost:
        price: Nowhere  # type: ignore[name-defined]  # noqa: F821

    for cls, what in ((Empty, "has no fields"), (Lost, "cannot be looked up")):
        with pytest.raises(gw.errors.InvalidFlowError, match=what):
            row_class(cls, "It")


@pytest.mark.parametrize(
    "options", [{"rename": "camel"}, {"omit_defaults": True}, {"array_like": True}], ids=str
)
def test_a_class_within_whose_fields_are_not_found_by_name_is_refused(
    options: dict[str, Any],
) -> None:
    place = msgspec.defstruct("Place", [("row_number", int, 0)], **options)
    outer = dataclasses.make_dataclass("Seat", [("place", place)])
    with pytest.raises(gw.errors.InvalidFlowError, match="would not be found by name"):
        row_class(outer, "The class")
    within = dataclasses.make_dataclass("Seats", [("places", list[place])])  # type: ignore[valid-type]
    with pytest.raises(gw.errors.InvalidFlowError, match="would not be found by name"):
        row_class(within, "The class")
    assert row_class(place, "The class").names == ["row_number"]


@dataclasses.dataclass
class Point:
    x: int
    y: int | None = None


@dataclasses.dataclass
class Pin:
    side: Side = Side.BUY
    at: Point = dataclasses.field(default_factory=lambda: Point(1))
    sizes: list[int] = dataclasses.field(default_factory=list)
    grid: list[list[int]] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({"side": "hold"}, "side"),
        ({"at": {"xx": 1}}, "at"),
        ({"at": Trade("A", 1.0)}, "at"),
        ({"at": Point(1.5)}, "at"),  # type: ignore[arg-type]
        ({"at": Point(None)}, "at"),  # type: ignore[arg-type]
        ({"sizes": [1, 2.5]}, "sizes"),
        ({"sizes": [1, None]}, "sizes"),
        ({"grid": [[1], [2, None]]}, "grid"),
    ],
    ids=str,
)
def test_a_value_that_its_field_does_not_admit_is_refused_and_not_emptied(
    options: dict[str, Any], column: str
) -> None:
    def emit(_key: Any, _rows: Any, _state: Any) -> list[Any]:
        return [Pin(), Pin(**options)]

    with pytest.raises(gw.errors.UserFunctionError, match=column) as caught:
        gw.testing.process(emit, ROWS, state=int, output=Pin)
    assert caught.value.context["column"] == column


@dataclasses.dataclass
class Sizes:
    sizes: list[int]
    grid: list[list[int]] | None


@pytest.mark.parametrize(
    ("row", "column", "remedy"),
    [
        ({"sizes": None, "grid": None}, "sizes", "sizes: list[int] | None"),
        ({"sizes": [1, None], "grid": None}, "sizes", "sizes: list[int | None]"),
        ({"sizes": [], "grid": [[1], None]}, "grid", "grid: list[list[int] | None] | None"),
        ({"sizes": [], "grid": [[1, None]]}, "grid", "grid: list[list[int | None]] | None"),
    ],
)
def test_a_null_that_a_field_does_not_admit_is_refused_within_lists_too(
    row: dict[str, Any], column: str, remedy: str
) -> None:
    columns = "symbol string, sizes array<long>, grid array<array<long>>"
    fitting: dict[str, Any] = {"symbol": "A", "sizes": [], "grid": None}
    with pytest.raises(gw.errors.UserFunctionError, match=f"Sizes.{column}") as caught:
        played([fitting, {"symbol": "B", **row}], columns, row=Sizes, function=lambda *_: None)
    assert caught.value.context["column"] == column
    assert caught.value.context["key"] == ("B",)
    assert remedy in caught.value.remedy, caught.value.remedy


def test_nulls_in_lists_that_admit_them_pass() -> None:
    cls = dataclasses.make_dataclass("Loose", [("sizes", list[int | None])])
    rows: list[dict[str, Any]] = [{"symbol": "A", "sizes": [1, None]}]
    seen: list[Any] = []

    def keep(_key: Any, rows: Any, _book: Any) -> list[Any]:
        seen.extend(row.sizes for row in rows)
        return [cls(row.sizes) for row in rows]

    table = played(rows, "symbol string, sizes array<long>", row=cls, output=cls, function=keep)
    assert seen == table["sizes"].to_pylist() == [[1, None]]


class Nothing(enum.Enum):
    """An enumeration to be filled later."""


@dataclasses.dataclass
class Node:
    name: str
    children: list[Node]


@dataclasses.dataclass
class Tree:
    root: Node


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (dataclasses.make_dataclass("Empty", [("kind", Nothing)]), "without members"),
        (Node, r"Node, has the field 'children\[\]' of type Node, which contains itself"),
        (Tree, "of type Node, which contains itself"),
    ],
)
def test_a_class_whose_values_no_column_has_is_refused_when_it_is_read(cls: Any, what: str) -> None:
    with pytest.raises(gw.errors.InvalidFlowError, match=what):
        row_class(cls, "The class")


@dataclasses.dataclass
class Scaled:
    price: float
    scale: dataclasses.InitVar[int]

    def __post_init__(self, scale: int) -> None:
        self.price *= scale


def test_a_constructor_that_wants_more_than_fields_is_refused_for_rows_alone() -> None:
    with pytest.raises(gw.errors.InvalidFlowError, match="also requires 'scale'") as caught:
        played(row=Scaled, function=lambda *_: None)
    assert "InitVar" in caught.value.remedy
    emit = played(output=Scaled, function=lambda *_: [Scaled(2.0, 3)])
    assert set(emit["price"].to_pylist()) == {6.0}


def test_fractions_are_refused_within_structs_maps_and_lists_too() -> None:
    for dtype, value in {
        "array<array<long>>": [[1], None, [2.5]],
        "struct<a: long, b: double>": {"a": 1.5},
        "map<string, long>": {"a": 1.5},
    }.items():
        with pytest.raises(gw.errors.UserFunctionError, match="would lose the fraction"):
            gw.testing.process(
                lambda *_, value=value: [(value,)], ROWS, state=int, output=f"v {dtype}"
            )
    fitting = ({"a": 1.0, "b": 1.5}, {"a": 2}, {"b": 1.5, "a": 3})
    done = gw.testing.process(
        lambda *_: [(value,) for value in fitting],
        ROWS[:1],
        state=int,
        output="v struct<a: long, b: double>",
    )
    assert [row["v"]["a"] for row in done.rows] == [1, 2, 3]
