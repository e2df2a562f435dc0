"""Common mistakes are answered by what to do instead."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.oracles.lane import Lane
from tests.support.fake_flow import FakeDataFrame, FakeSink, flow_of, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.model.errors import InvalidFlowError, UserFunctionError
from godwit.model.frames import WrongArgumentsError

if TYPE_CHECKING:
    from godwit.api.streams import KeyedStream

ROWS = pa.schema(
    [("k", pa.string()), ("v", pa.int64()), ("_id", pa.string()), ("class", pa.int64())]
)


def keyed() -> KeyedStream:
    frame: Any = FakeDataFrame(ROWS)
    return LogicalFlow("flow", 8).source("rows", frame).key_by("k")


def run(function: Any, output: str = "k string", **options: Any) -> list[dict[str, Any]]:
    stream = keyed().process(function, output=output, **{"state": int, **options})
    flow_of(stream).sink("out", stream, FakeSink())
    (operator,) = flow_of(stream).compile(resolver(flow_of(stream))).operators
    rows = pa.RecordBatch.from_pylist([{"k": "ABC", "v": 1, "_id": "x", "class": 7}], schema=ROWS)
    return list(Lane(operator).epoch(rows).output.to_pylist())


CALLED_BY_USERS = [
    *(
        getattr(gw, name)
        for name in dir(gw)
        if inspect.isfunction(getattr(gw, name)) and name != "even_assignment"
    ),
    *(getattr(gw.sinks, n) for n in gw.sinks.__all__ if inspect.isfunction(getattr(gw.sinks, n))),
    *(
        gw.Flow,
        gw.Control,
        gw.migration.Bounds,
        gw.control.Budget,
        gw.control.Means,
        gw.migration.Policy,
        gw.control.Fusion,
        gw.control.Splitting,
    ),
    *(
        gw.control.Cadence,
        gw.control.Search,
        gw.control.Worth,
        gw.Checkpointing,
        gw.Lanes,
        gw.Sizing,
        gw.control.Adaptation,
    ),
    gw.Observability,
    *(gw.ValueState, gw.ListState, gw.MapState),
]


@pytest.mark.parametrize("call", CALLED_BY_USERS, ids=lambda call: call.__name__)
def test_an_argument_that_is_not_known_is_answered_with_those_that_are(call: Any) -> None:
    with pytest.raises(TypeError) as caught:
        call(no_such_argument=1)
    assert isinstance(caught.value, WrongArgumentsError)
    assert f"{call.__name__} has no argument 'no_such_argument'" in str(caught.value)
    assert "It takes " in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gw.sinks.parquet("o", partitionBy="a"), "is partition_by= here"),  # type: ignore[call-arg]
        (lambda: gw.Flow("x", key_groups=3), "Did you mean 'num_key_groups'"),  # type: ignore[call-arg]
        (lambda: gw.Control(min=1), "Did you mean 'min_executors'"),  # type: ignore[call-arg]
        (lambda: gw.Checkpointing(retain=3), "Did you mean 'retain_epochs'"),  # type: ignore[call-arg]
        (lambda: gw.sinks.delta("o", key="a"), "Did you mean 'keys'"),  # type: ignore[call-arg]
        (lambda: gw.hopping("1 hour", slide="1 minute"), "Did you mean 'every'"),  # type: ignore[call-arg]
        (
            lambda: keyed().window(gw.tumbling("1 hour")).compute(name="n"),  # type: ignore[arg-type]
            r"as in window\(..., name='n'\)",
        ),
        (lambda: gw.sum(3), r'instead of a column.*gw.sum\("column"\)'),  # type: ignore[arg-type]
        (lambda: gw.top_k("v", 3, by=4), "instead of a column's name"),  # type: ignore[arg-type]
        (lambda: gw.ListState("float"), "without quotes, as in gw.ListState"),  # type: ignore[arg-type]
        (lambda: gw.MapState(str, {}), "MapState was given {}, which is not a type"),  # type: ignore[arg-type]
        (lambda: gw.ValueState({}), r"as in gw.ValueState\(dict\)"),  # type: ignore[arg-type]
        (lambda: gw.ValueState("int"), "without quotes"),  # type: ignore[arg-type]
        (
            lambda: keyed().process(print, state=gw.ValueState, output="k string"),
            r"state=ValueState, without a type. Give it the type, as in state=gw.ValueState",
        ),
        (
            lambda: keyed().process(print, state=dict, output=gw.types.Output),
            "no output columns",
        ),
        (
            lambda: keyed().process(print, state=gw.ListState(int), output="k string"),  # type: ignore[call-overload]
            r'state={"seen": gw.ListState\(...\)}',
        ),
    ],
)
def test_a_declaration_that_will_not_do_is_refused_in_its_line(call: Any, said: str) -> None:
    with pytest.raises(InvalidFlowError, match=said):
        call()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("average", r"Use gw\.mean"),
        ("countDistinct", r"Use gw\.count_distinct, or gw\.approx_distinct"),
        ("median", r"Use gw\.approx_median"),
        ("utilization", "Use gw.control.utilisation"),
        ("window", r"Use stream\.key_by"),
        ("parquet", r"Use gw\.sinks\.parquet"),
        ("sinks.parqet", "Did you mean 'parquet'"),
        ("sinks.nothing_like_it", "There are 'console', 'data_source'"),
        ("sources.socket", "Use a DataFrame, as in .*socket"),
        ("sources.parqet", "Did you mean 'parquet'"),
        ("sources.nothing_like_it", "There are 'arrow', 'csv'"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_what_is(name: str, said: str) -> None:
    module: Any = gw
    *parents, last = name.split(".")
    for parent in parents:
        module = getattr(module, parent)
    assert not hasattr(module, last)
    with pytest.raises(AttributeError, match=f"has no attribute '{last}'.*{said}"):
        getattr(module, last)


def test_a_column_that_a_row_does_not_have_is_answered_with_those_it_has() -> None:
    def take(key: Any, rows: Any, state: Any) -> Any:
        for row in rows:
            yield key[0], row.prise

    with pytest.raises(UserFunctionError, match=r"no column 'prise'.*mean 'price'.*'price', '_id'"):
        gw.testing.process(take, [{"price": 1, "_id": 2}], key={"k": "a"}, state=int)


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (lambda key, rows, state: rows.columm("v"), r"It has .*column.*timers"),
        (lambda key, rows, state: [next(iter(rows))["v"]], r"its column is row\.name"),
        (lambda key, rows, state: [(key + "x",)], r"its value is key\[0\]"),
    ],
)
def test_what_is_easily_got_wrong_in_a_function_is_answered_by_what_to_write(
    take: Any, said: str
) -> None:
    with pytest.raises(UserFunctionError, match=said):
        gw.testing.process(take, [{"v": 1}], key={"k": "a"}, state=int)


def test_a_timer_says_what_it_has() -> None:
    def ring(key: Any, timer: Any, state: Any) -> Any:
        yield key[0], timer.now

    with pytest.raises(UserFunctionError, match=r"has no 'now'\. It has 'drop_state', 'time', "):
        gw.testing.process(
            lambda key, rows, state: None,
            [],
            key={"k": "a"},
            state=int,
            timers=gw.types.OnTimer(ring, clock="processing"),
            timers_before=["2024-05-01 08:00"],
            now="2024-05-01 09:00",
        )


def assigns(key: Any, rows: Any, state: dict[str, int]) -> None:
    state = {**state, "n": len(rows)}


def makes(key: Any, rows: Any, st: Any) -> None:
    if key:
        st = dict(st)


def takes_a_part(key: Any, rows: Any, state: Any) -> None:
    state["n"] = 1
    state = state.setdefault("a", {})
    state["b"] = 2


@pytest.mark.parametrize(("function", "name"), [(assigns, "state"), (makes, "st")])
def test_a_function_that_only_gives_its_states_name_away_is_warned_of(
    function: Any, name: str
) -> None:
    with pytest.warns(UserWarning, match=f"assigns its argument '{name}'.*in place") as caught:
        keyed().process(function, state=dict, output="k string")
    assert [warning.filename for warning in caught] == [__file__]


def test_a_function_that_goes_down_into_its_state_is_not_warned_of() -> None:
    keyed().process(takes_a_part, state=dict, output="k string")


def adds(key: Any, rows: Any, state: Any) -> None:
    state += 1


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (adds, {}, r"this is a State, which holds a value.*state\.value \+= 1"),
        (lambda _k, _r, state: [state == 0], {}, r"use its \.value"),
        (lambda _k, _r, state: [not state], {}, r"use its \.value"),
        (lambda _k, _r, state: [state.bit_length()], {}, r"state\.value\.bit_length"),
        (lambda _k, rows, _s: rows.timers.set(1), {}, r"timers=gw.types.OnTimer"),
        (lambda _k, rows, _s: [rows.v], {}, r"take row\.v, or use rows\.column\('v'\)"),
        (lambda _k, rows, _s: [rows.price], {}, "have no 'price'; columns are v"),
        (lambda _k, rows, _s: [rows[0]], {}, r"list\(rows\)\[0\]"),
        (lambda _k, rows, _s: [rows["v"]], {}, r"rows\.column\('v'\)"),
        (lambda key, _r, _s: [(key + "x",)], {}, r"The key is a tuple.*its value is key\[0\]"),
        (lambda key, _r, _s: [(key.lower(),)], {}, r"The key is a tuple.*its value is key\[0\]"),
        (lambda key, _r, _s: [(key,)], {}, r"The key is a tuple.*its value is key\[0\]"),
    ],
)
def test_what_functions_take_for_something_else_is_told_apart(
    function: Any, options: Any, said: str
) -> None:
    with pytest.raises(UserFunctionError, match=f"(?s){said}"):
        run(function, **options)


def test_columns_whose_names_python_cannot_write_are_attributes_of_rows_too() -> None:
    seen: list[Any] = []
    run(lambda _k, rows, _s: seen.extend(rows))
    (row,) = seen
    assert (row.v, row._id, row._1, getattr(row, "class")) == (1, "x", "x", 7)
    assert row._asdict() == {"v": 1, "_id": "x", "class": 7, "k": "ABC"}
    assert tuple(row) == (1, "x", 7, "ABC")
