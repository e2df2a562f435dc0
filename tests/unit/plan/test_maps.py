"""Maps of the user: finding the columns of their results, and holding results against them."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from godwit.model.errors import InvalidFlowError, UserFunctionError
from godwit.plan.maps import ArrowMap, bind_map, map_dataframe

INPUTS = pa.schema([("symbol", pa.string()), ("price", pa.float64())])


def doubled(table: pa.Table) -> pa.Table:
    return table.append_column("twice", pc.multiply(table["price"], 2))


def bind(function: Any, schema: pa.Schema | None = None) -> ArrowMap:
    return bind_map(function, feed="trades", inputs=INPUTS, schema=schema)


def rows(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_columns_are_found_by_a_table_without_rows() -> None:
    bound = bind(doubled)
    assert bound.schema == INPUTS.append(pa.field("twice", pa.float64()))
    assert bound.feed == "trades"
    assert bound.name == "doubled"
    result = bound.apply(rows(symbol=["a"], price=[1.5]))
    assert result.to_pylist() == [{"symbol": "a", "price": 1.5, "twice": 3.0}]


def test_a_map_with_a_schema_is_not_called_when_the_flow_is_compiled() -> None:
    def fails_on_nothing(table: pa.Table) -> pa.Table:
        return table.slice(0, 1).append_column("first", [[table["price"][0].as_py()]])

    schema = INPUTS.append(pa.field("first", pa.float64()))
    assert bind(fails_on_nothing, schema).schema == schema


def test_a_map_that_fails_on_nothing_needs_a_schema() -> None:
    def first(table: pa.Table) -> pa.Table:
        return table["price"].to_pylist()[0]

    with pytest.raises(InvalidFlowError) as caught:
        bind(first)
    text = str(caught.value)
    assert "The map 'first' after operator 'trades' raised IndexError" in text
    assert "(symbol string, price double)" in text
    assert "map(fn, schema=" in text


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (lambda _: None, ["'<lambda>' after operator 'trades'", "NoneType", "a pyarrow.Table"]),
        (lambda t: t.to_pandas(), ["DataFrame", "come before key_by"]),
        (lambda t: t.select([]), ["no columns", "schema="]),
        (lambda t: t.append_column("x", pa.nulls(0)), ["column 'x'", "open", "schema="]),
        (
            lambda t: t.append_column("__godwit_x", t["price"]),
            ["result of the map", "'__godwit_x'", "another name"],
        ),
        (lambda t: t.append_column("price", t["price"]), ["two columns named 'price'", "Drop"]),
    ],
)
def test_a_map_that_gives_no_columns_is_refused(function: Any, parts: list[str]) -> None:
    with pytest.raises(InvalidFlowError) as caught:
        bind(function)
    for part in parts:
        assert part in str(caught.value)


def test_results_come_in_the_declared_order_and_types() -> None:
    schema = pa.schema([("n", pa.int64()), ("symbol", pa.string())])
    bound = bind(lambda t: pa.table({"symbol": t["symbol"], "n": pa.array([1], pa.int8())}), schema)
    assert bound.apply(rows(symbol=["a"], price=[1.0])).schema == schema


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (lambda _: dict[str, str]()["k"], ["raised KeyError: 'k'", "Traceback"]),
        (lambda t: t.to_pylist(), ["type list", "Return a pyarrow.Table"]),
        (lambda t: t.select(["symbol"]), ["columns 'symbol' where 'symbol', 'price' were"]),
        (
            lambda t: t.set_column(1, "price", pa.array(["a"])),
            ["(symbol string, price string)", "does not become", "(symbol string, price double)"],
        ),
    ],
)
def test_a_result_that_does_not_fit_fails_in_the_map(function: Any, parts: list[str]) -> None:
    with pytest.raises(UserFunctionError) as caught:
        bind(function, INPUTS).apply(rows(symbol=["a"], price=[1.0]))
    for part in ["Map '<lambda>' after operator 'trades'", *parts]:
        assert part in str(caught.value)
    assert caught.value.remedy
    assert caught.value.context == {"operator": "trades", "function": "<lambda>"}


def test_a_bound_map_survives_pickling() -> None:
    bound = bind(doubled)
    copy = pickle.loads(pickle.dumps(bound))
    assert (copy.feed, copy.function, copy.schema) == (bound.feed, doubled, bound.schema)


def test_maps_over_dataframes_are_applied_in_order(flights: Any) -> None:
    maps: Any = [lambda df: df.drop("legs"), lambda df: df.with_column("x", pa.int8())]
    mapped = map_dataframe("flights", maps, flights)
    assert mapped.columns[-2:] == ["arr_delay", "x"]


def test_a_map_over_dataframes_that_fails_is_named(flights: Any) -> None:
    def late(df: Any) -> Any:
        raise ValueError("no such column")

    def nothing(df: Any) -> Any: ...

    with pytest.raises(InvalidFlowError) as caught:
        map_dataframe("flights", [lambda df: df.drop("legs"), late], flights)
    assert "Map 'late' on source 'flights' raised ValueError: no such column" in str(caught.value)
    assert "'arr_delay'" in caught.value.remedy
    with pytest.raises(InvalidFlowError, match=r"'nothing' on source 'flights' returned.*NoneType"):
        map_dataframe("flights", [nothing], flights)
