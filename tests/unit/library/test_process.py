"""``process``: what the function sees, what becomes of its state and rows, and how it fails."""

from __future__ import annotations

import datetime as dt
import pickle
import sys
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.oracles.lane import Lane, grouped

from godwit.checkpoint.entries import EntryLayout, Former
from godwit.checkpoint.evolution import plain
from godwit.library import calls
from godwit.library.process import ProcessOperator
from godwit.model.errors import (
    CheckpointMismatchError,
    StateEncodingError,
    UserFunctionError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.columns.python_values import KeyRows
    from godwit.values.codec import State

KEYS = pa.schema({"symbol": pa.string()})
INPUTS = pa.schema({"price": pa.float64(), "size": pa.int64()})
OUTPUT = pa.schema({"symbol": pa.string(), "n": pa.int64()})


class Book(msgspec.Struct):
    rows: int = 0
    prices: list[float | None] = []


def remember(key: tuple[str], rows: KeyRows, book: Book) -> Iterator[tuple[str, int]]:
    book.rows += len(rows)
    book.prices += rows.column("price")
    yield key[0], book.rows


def operator(function: Any = remember, state_type: Any = Book, **options: Any) -> ProcessOperator:
    return ProcessOperator(
        name="market",
        keys=KEYS,
        inputs=INPUTS,
        function=function,
        state_type=state_type,
        output=options.pop("output", OUTPUT),
        **options,
    )


def batch(*rows: tuple[str | None, float | None, int | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "symbol": pa.array([row[0] for row in rows], pa.string()),
            "price": pa.array([row[1] for row in rows], pa.float64()),
            "size": pa.array([row[2] for row in rows], pa.int64()),
        }
    )


def held(lane: Lane, state_type: Any = Book) -> dict[Any, Any]:
    """State of every key, decoded."""
    return {
        key[0]: msgspec.msgpack.decode(state["state"], type=state_type)
        for key, state in lane.store.items()
    }


def test_state_and_order_of_arrival_last_over_epochs() -> None:
    lane = Lane(operator())
    lane.epoch(batch(("a", 1.0, 1), ("b", 2.0, 1), ("a", 3.0, 1)))
    output = lane.epoch(batch(("c", 4.0, 1), ("a", None, 1), ("a", 0.5, 1))).output
    assert sorted(map(tuple, (row.values() for row in output.to_pylist()))) == [("a", 4), ("c", 1)]
    assert held(lane) == {
        "a": Book(4, [1.0, 3.0, None, 0.5]),
        "b": Book(1, [2.0]),
        "c": Book(1, [4.0]),
    }


def test_rows_are_named_tuples_of_the_inputs_in_order_of_arrival() -> None:
    seen = {}

    def look(key: tuple[str], rows: KeyRows, state: dict[str, int]) -> None:
        seen[key] = [(row.price, row.size) for row in rows]
        assert len(rows) == len(seen[key])
        assert rows.column("size") == [size for _, size in seen[key]]
        assert repr(rows).startswith("KeyRows(")

    Lane(operator(look, dict)).epoch(batch(("b", 1.0, 7), (None, 5.0, 6), ("b", 2.0, None)))
    assert seen == {("b",): [(1.0, 7), (2.0, None)], (None,): [(5.0, 6)]}


def test_values_are_those_of_python() -> None:
    inputs = pa.schema(
        {
            "moment": pa.timestamp("us", "UTC"),
            "day": pa.date32(),
            "price": pa.decimal128(5, 2),
            "flag": pa.bool_(),
            "bytes": pa.binary(),
        }
    )
    seen = []

    def look(key: tuple[int], rows: KeyRows, state: dict[str, int]) -> None:
        seen.extend([tuple(key), *(row[:-1] for row in rows), *(row.k for row in rows)])

    values = (
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        dt.date(2024, 1, 2),
        Decimal("1.10"),
        True,
        b"x",
    )
    made = ProcessOperator(
        name="o",
        keys=pa.schema({"k": pa.date32()}),
        inputs=inputs,
        function=look,
        state_type=dict,
        output=OUTPUT,
    )
    columns = [pa.array([value, None], f.type) for value, f in zip(values, inputs, strict=True)]
    day = dt.date(2020, 2, 2)
    Lane(made).epoch(
        pa.RecordBatch.from_arrays(
            [pa.array([day, day]), *columns], schema=pa.schema([("k", pa.date32()), *inputs])
        )
    )
    assert seen == [(day,), values, (None,) * 5, day, day]
    assert [type(value) for value in seen[1]] == [type(value) for value in values]


def test_rows_without_columns_can_still_be_counted() -> None:
    counts = []
    made = ProcessOperator(
        name="o",
        keys=KEYS,
        inputs=pa.schema([]),
        function=lambda key, rows, state: counts.append((key[0], len(rows), len(list(rows)))),
        state_type=dict,
        output=OUTPUT,
    )
    Lane(made).epoch(batch(("a", 1.0, 1), ("a", 1.0, 1)))
    assert counts == [("a", 2, 2)]


def test_columns_that_cannot_be_names_are_numbered() -> None:
    seen: list[Any] = []
    made = ProcessOperator(
        name="o",
        keys=KEYS,
        inputs=pa.schema({"class": pa.int64()}),
        function=lambda key, rows, state: seen.extend(
            (row._0, rows.column("class")) for row in rows
        ),
        state_type=dict,
        output=OUTPUT,
    )
    Lane(made).epoch(pa.record_batch({"symbol": ["a"], "class": [5]}))
    assert seen == [(5, [5])]


def test_changing_a_column_changes_no_other_view_of_it() -> None:
    def spoil(key: tuple[str], rows: KeyRows, state: dict[str, Any]) -> None:
        rows.column("size").clear()
        state["sizes"] = rows.column("size")

    lane = Lane(operator(spoil, dict))
    lane.epoch(batch(("a", 1.0, 1)))
    assert held(lane, dict) == {"a": {"sizes": [1]}}


def test_state_that_cannot_be_changed_in_place_is_held_by_a_state() -> None:
    def count(key: tuple[str], rows: KeyRows, state: State[int]) -> None:
        state.value += len(rows)

    lane = Lane(operator(count, int))
    lane.epoch(batch(("a", 1.0, 1), ("a", 1.0, 1), ("b", 1.0, 1)))
    lane.epoch(batch(("a", 1.0, 1)))
    assert held(lane, int) == {"a": 3, "b": 1}


@pytest.mark.parametrize("state_type", [list, set, dict])
def test_rows_cut_into_epochs_are_seen_once_as_in_one_epoch(state_type: Any) -> None:
    """A tuple that came back as a list would never be found among what was seen."""

    def remember_pairs(key: tuple[str], rows: KeyRows, seen: Any) -> Iterator[tuple[str, int]]:
        for row in rows:
            pair = (row.price, row.size)
            if pair not in seen:
                if isinstance(seen, list):
                    seen.append(pair)
                elif isinstance(seen, set):
                    seen.add(pair)
                else:
                    seen[pair] = len(seen)
                yield key[0], len(seen)

    rows = [("a", 1.0, 1), ("a", 2.0, 1), ("a", 1.0, 2)]
    whole = Lane(operator(remember_pairs, state_type)).epoch(batch(*rows * 4)).output
    lane = Lane(operator(remember_pairs, state_type))
    cut = [lane.epoch(batch(*rows)).output for _ in range(4)]
    assert pa.concat_batches(cut).to_pylist() == whole.to_pylist()
    assert whole.num_rows == 3


def test_dropped_state_is_removed_and_the_key_is_new_again() -> None:
    def until_two(key: tuple[str], rows: KeyRows, book: Book) -> list[tuple[str, int]]:
        book.rows += len(rows)
        if book.rows >= 2:
            rows.drop_state()
        return [(key[0], book.rows)]

    lane = Lane(operator(until_two))
    advance = lane.epoch(batch(("a", 1.0, 1), ("b", 1.0, 1), ("a", 1.0, 1), ("c", 1.0, 1)))
    assert advance.removed is not None
    assert advance.removed.sum() == 1
    assert set(held(lane)) == {"b", "c"}
    assert lane.epoch(batch(("a", 1.0, 1))).output["n"].to_pylist() == [1]
    assert lane.epoch(batch(("b", 1.0, 1))).output["n"].to_pylist() == [2]


def test_nothing_is_removed_where_nothing_is_dropped() -> None:
    assert Lane(operator()).epoch(batch(("a", 1.0, 1))).removed is None


def test_every_key_starts_with_a_state_of_its_own() -> None:
    lane = Lane(operator(lambda key, rows, state: state.append(key[0]), list))
    lane.epoch(batch(("a", 1.0, 1), ("b", 1.0, 1)))
    assert held(lane, list) == {"a": ["a"], "b": ["b"]}


def test_an_epoch_without_rows_calls_nothing() -> None:
    advance = Lane(operator(lambda *_: 1 / 0, dict)).epoch(batch())
    assert (advance.state.num_rows, advance.output.num_rows) == (0, 0)


def test_an_operator_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(operator(codec="pickle")))
    assert Lane(copy).epoch(batch(("a", 1.0, 1))).output["n"].to_pylist() == [1]


class Wider(msgspec.Struct):
    rows: float = 0.0
    prices: list[float | None] = []
    last: str = ""


class Renamed(msgspec.Struct):
    count: int = 0
    prices: list[float | None] = []


class InOrder(msgspec.Struct, array_like=True):
    rows: int = 0
    prices: list[float | None] = []


class Camel(msgspec.Struct, rename=str.upper):
    rows: int = 0
    prices: list[float | None] = []


class StartsAnew(msgspec.Struct):
    rows: int = 0
    prices: list[float | None] = []

    def __post_init__(self) -> None:
        self.rows = 0


def stored(state_type: Any = Book, **options: Any) -> Any:
    """Description of a state's type as it stands in a checkpoint."""
    described = operator(state_type=state_type, **options).describe_state()
    return msgspec.structs.replace(described, type=plain(described.type))


def test_the_description_holds_the_schema_of_the_state() -> None:
    described = stored()
    assert described.columns == (("state", "large_binary"),)
    assert described.codec == "msgpack"
    assert list(described.type["classes"]["Book"]["fields"]) == ["rows", "prices"]
    assert operator().upgrade_from(described) is None


@pytest.mark.parametrize(
    ("made", "described", "said"),
    [
        (operator(), stored(dict), r"state: dict\[Any, Any\] → Book|Book: dict\[Any, Any\] → Book"),
        (operator(), stored(codec="pickle"), "codec: pickle → msgpack"),
        (operator(state_type=Renamed), stored(), "Renamed: rows gone and count new"),
        (operator(state_type=InOrder), stored(), "in a form that the declared type does not have"),
        (
            operator(state_type=StartsAnew),
            stored(),
            "in a form that the declared type does not have",
        ),
        (operator(state_type=Camel), stored(), "in a form that the declared type does not have"),
        (
            operator(state_type=dict, codec="pickle"),
            stored(codec="pickle"),
            "class: .*Book → .*dict",
        ),
    ],
)
def test_a_type_that_does_not_fit_is_refused_with_every_difference(
    made: ProcessOperator, described: Any, said: str
) -> None:
    with pytest.raises(CheckpointMismatchError, match=said) as caught:
        made.upgrade_from(described)
    assert "upgrade=" in caught.value.remedy
    assert caught.value.context["operator"] == "market"


def upgraded(lane: Lane, made: ProcessOperator) -> Lane:
    """Carry a lane's state over to a changed operator, as hydration does."""
    described = stored()
    upgrade = made.upgrade_from(described)
    layout = EntryLayout(
        name="market",
        schema=made.schema,
        former={3: Former(columns=described.columns, upgrade=upgrade)},
    )
    keys = pa.array([key[0] for key in lane.store], pa.string())
    states = pa.array([state["state"] for state in lane.store.values()], pa.large_binary())
    batch = pa.record_batch(
        {"h": pa.array(range(len(keys)), pa.int64()), "symbol": keys, "state": states}
    )
    after = Lane(made)
    values = layout.read(batch, 3).values.to_pylist()
    after.store = dict(zip(lane.store, values, strict=True))
    return after


def test_old_state_goes_on_after_a_compatible_change_and_after_an_upgrade() -> None:
    lane = Lane(operator())
    lane.epoch(batch(("a", 1.0, 1), ("b", 2.0, 1), ("a", 3.0, 1)))
    wider = upgraded(lane, operator(state_type=Wider))
    wider.epoch(batch(("a", 4.0, 1)))
    assert held(wider, Wider) == {"a": Wider(3.0, [1.0, 3.0, 4.0]), "b": Wider(1.0, [2.0])}
    renamed = upgraded(
        lane,
        operator(
            lambda *_: None,
            Renamed,
            state_upgrade=lambda old: Renamed(count=old["rows"], prices=old["prices"]),
        ),
    )
    assert held(renamed, Renamed) == {"a": Renamed(2, [1.0, 3.0]), "b": Renamed(1, [2.0])}


def test_an_upgrade_that_fails_names_operator_and_key() -> None:
    lane = Lane(operator())
    lane.epoch(batch(("a", 1.0, 1), ("b", None, 1)))
    made = operator(
        state_type=Renamed, state_upgrade=lambda old: Renamed(count=int(old["prices"][0]))
    )
    with pytest.raises(UserFunctionError, match=r"Key \('b',\): .* operator 'market' raised") as e:
        upgraded(lane, made)
    assert e.value.context["key"] == ("b",)


def deep_failure(key: tuple[str], rows: KeyRows, state: Book) -> None:
    def inner() -> None:
        if key == ("b",):
            raise ZeroDivisionError("no price")

    inner()


def late_failure(key: tuple[str], rows: KeyRows, state: Book) -> Iterator[tuple[str, int]]:
    yield key[0], 1
    deep_failure(key, rows, state)


@pytest.mark.parametrize("function", [deep_failure, late_failure])
def test_a_failure_names_operator_function_and_key_and_shows_the_traceback(function: Any) -> None:
    with pytest.raises(UserFunctionError) as caught:
        Lane(operator(function)).epoch(batch(("a", 1.0, 1), ("b", 1.0, 1)))
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.message == (
        f"Function '{function.__name__}' of operator 'market' raised ZeroDivisionError for key "
        "('b',): no price."
    )
    assert error.context["key"] == ("b",)
    assert error.context["operator"] == "market"
    assert "in inner" in error.remedy
    assert "in deep_failure" in error.context["traceback"]
    assert "process.py" not in error.context["traceback"].replace("test_process.py", "")


def leave(key: Any, rows: KeyRows, book: Book) -> None:
    if key == ("b",):
        sys.exit("enough")


def interrupt(key: Any, rows: KeyRows, book: Book) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (leave, r"raised SystemExit for key \('b',\): enough.*query\.stop"),
        (interrupt, r"raised KeyboardInterrupt for key \('a',\)"),
    ],
)
def test_a_function_that_would_end_the_process_fails_its_epoch(function: Any, said: str) -> None:
    with pytest.raises(UserFunctionError, match=f"(?s){said}") as caught:
        Lane(operator(function), num_key_groups=1).epoch(batch(("a", 1.0, 1), ("b", 1.0, 1)))
    assert f"in {function.__name__}" in caught.value.context["traceback"]


def test_a_traceback_holds_the_users_frames_alone() -> None:
    def ask(key: Any, rows: KeyRows, book: Book) -> None:
        try:
            rows.column("volume")
        except KeyError as error:
            raise RuntimeError("no such luck") from error

    with pytest.raises(UserFunctionError) as caught:
        Lane(operator(ask)).epoch(batch(("a", 1.0, 1)))
    told = caught.value.context["traceback"]
    assert told.count("File ") == told.count(__file__) == 2
    assert "no such luck" in told
    assert "There is no column 'volume'" in told


def test_cpu_time_is_measured_where_it_is_spent() -> None:
    """A key that computes for long, among others of as many rows, is seen in its key group."""

    def work(key: tuple[str], rows: KeyRows, book: Book) -> None:
        until = time.thread_time() + (0.02 if key == ("k7",) else 0.0)
        while time.thread_time() < until:
            pass

    rows = batch(*((f"k{i}", 1.0, 1) for i in range(40)))
    groups, keys = grouped(rows.select(["symbol"]), 16)
    lane = Lane(operator(work))
    measured = lane.epoch(rows).cpu_ms
    assert measured is not None
    where = groups.key_groups[keys.column(0).to_pylist().index("k7")]
    spent = dict(zip(sorted(set(groups.key_groups.tolist())), measured.tolist(), strict=True))
    assert len(spent) == len(measured) > 8
    assert spent[int(where)] >= 20.0
    assert spent[int(where)] == max(spent.values())


def test_a_key_that_waits_is_busy_and_costs_no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = np.zeros(2)  # CPU and wall time, in seconds
    monkeypatch.setattr(calls, "_cpu_and_elapsed_s", clocks.copy)

    def wait(key: tuple[str], rows: KeyRows, book: Book) -> None:
        if key == ("k7",):
            clocks[1] += 0.05

    rows = batch(*((f"k{i}", 1.0, 1) for i in range(40)))
    groups, keys = grouped(rows.select(["symbol"]), 16)
    made = Lane(operator(wait)).epoch(rows)
    assert made.busy_ms is not None
    assert made.cpu_ms is not None
    key_groups = sorted(set(groups.key_groups.tolist()))
    where = key_groups.index(int(groups.key_groups[keys.column(0).to_pylist().index("k7")]))
    assert made.busy_ms[where] == made.busy_ms.sum() == pytest.approx(50.0)
    assert not made.cpu_ms.any()


def test_a_result_that_is_no_iterable_is_explained() -> None:
    with pytest.raises(UserFunctionError, match=r"not rows, for key \('a',\).*Return a list"):
        Lane(operator(lambda *_: 7, dict)).epoch(batch(("a", 1.0, 1)))


def test_a_row_that_does_not_fit_the_output_is_explained() -> None:
    with pytest.raises(UserFunctionError, match=r"for key \('a',\), 'x' in column 'n'"):
        Lane(operator(lambda key, rows, state: [("a", "x")], dict)).epoch(batch(("a", 1.0, 1)))


def test_an_unknown_column_names_those_there_are() -> None:
    with pytest.raises(UserFunctionError, match="no column 'prize'; the columns are price, size"):
        Lane(operator(lambda key, rows, state: rows.column("prize"), dict)).epoch(
            batch(("a", 1.0, 1))
        )


def test_state_that_cannot_be_written_names_operator_key_and_type() -> None:
    def spoil(key: tuple[str], rows: KeyRows, book: Book) -> None:
        if key == ("b",):
            book.rows = "three"  # type: ignore[assignment]  # as users do

    with pytest.raises(StateEncodingError) as caught:
        Lane(operator(spoil)).epoch(batch(("a", 1.0, 1), ("b", 1.0, 1)))
    assert "Operator 'market' cannot write its state of key ('b',), of type Book" in str(
        caught.value
    )
    assert ".rows is 'three', declared as int" in caught.value.message
    assert caught.value.context["key"] == ("b",)


def test_state_of_another_shape_names_operator_and_key() -> None:
    lane = Lane(operator())
    lane.epoch(batch(("a", 1.0, 1), ("b", 1.0, 1)))
    changed = Lane(operator(lambda *_: None, list))
    changed.store = lane.store
    with pytest.raises(
        StateEncodingError,
        match=r"(?s)cannot read its state of key \('a',\) as list.*drop CHECKPOINT market --key",
    ):
        changed.epoch(batch(("a", 1.0, 1), ("new", 1.0, 1)))
