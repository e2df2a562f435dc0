"""Users' functions are held against the calls that they are made for, when they are given."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import godwit as gw
from godwit.model.errors import GodwitError, InvalidFlowError, SinkError
from godwit.model.signatures import check_signature

if TYPE_CHECKING:
    from collections.abc import Callable

PER_KEY = "function(key, rows, state)"


class Called:
    def __call__(self, key: Any, rows: Any, state: Any) -> None: ...

    def method(self, key: Any, rows: Any, state: Any) -> None: ...

    def short(self, key: Any, rows: Any) -> None: ...


def plain(key: Any, rows: Any, state: Any, more: int = 0, *, by: str = "x") -> None: ...
def four(conf: Any, key: Any, rows: Any, state: Any) -> None: ...
def needs_keyword(key: Any, rows: Any, state: Any, *, by: str) -> None: ...
async def awaited(key: Any, rows: Any, state: Any) -> None: ...


class Awaited:
    async def __call__(self, key: Any, rows: Any, state: Any) -> None: ...


def around(function: Any) -> Any:
    """A decorator that calls the function as it is called."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return call


def gives_more(function: Any) -> Any:
    """A decorator that gives a function one more argument."""

    @functools.wraps(function)
    def call(key: Any, rows: Any, state: Any) -> Any:
        return function("conf", key, rows, state)

    return around(call)


@pytest.mark.parametrize(
    "function",
    [
        plain,
        Called(),
        Called().method,
        functools.partial(four, None),
        lambda *_: None,
        lambda key, *rest: None,
        lambda a, _, v: None,
        lambda k, r, s: None,
        lambda key, rows, row: None,
        lambda key, rows, k: None,
        lambda a, r, k: None,
        lambda key, rows, window: None,
        lambda _key, _rows, states: None,
        lambda key, batch, total: None,
        lambda key, events, batch: None,
        lambda table, changes, seen: None,
        around(lambda key, rows, state: None),
        gives_more(four),
        functools.lru_cache(plain),
        print,
        max,
    ],
)
def test_functions_that_can_be_called_pass(function: Callable[..., Any]) -> None:
    check_signature("Operator 'o'", function, PER_KEY)


@pytest.mark.parametrize(
    ("function", "called", "message"),
    [
        (lambda key, rows: None, PER_KEY, "cannot be called as .*too many.*these three arguments"),
        (Called().short, PER_KEY, "cannot be called as"),
        (functools.partial(plain, None, None, None, 0), PER_KEY, "too many positional"),
        (functools.partial(four, state=None, conf=None), PER_KEY, "too many positional"),
        (needs_keyword, PER_KEY, "missing a required.*'by'"),
        (awaited, PER_KEY, "function 'awaited' is asynchronous"),
        (Awaited(), PER_KEY, "is asynchronous"),
        (functools.partial(awaited, 1), "function(rows, state)", "is asynchronous"),
        (lambda rows, key, st: None, PER_KEY, r"'rows' would be the key.*\(key, rows, st\)"),
        (lambda key, state, rows: None, PER_KEY, r"'state' would be the rows.*\(key, rows, state"),
        (lambda state, key, rows: None, PER_KEY, r"in order: \(key, rows, state\)"),
        (lambda _rows, _key, book: None, PER_KEY, r"in order: \(_key, _rows, book\)"),
        (lambda a, key, rows: None, PER_KEY, r"in order: \(key, rows, a\)"),
        (around(lambda rows, key, st: None), PER_KEY, r"'rows' would be the key.*\(key, rows, st"),
        (lambda key, state, batch: None, PER_KEY, "'state' would be the rows"),
        (lambda r, k, s: None, PER_KEY, "'r' would be the key"),
        (lambda key, rows, timers: None, PER_KEY, "rows.timers"),
        (lambda key, rows, state: None, "on_timer(key, timer, state)", "A timer has no rows"),
        (lambda key, state, timer: None, "on_timer(key, timer, state)", "'state' would be the t"),
        (lambda key, window, rows: None, "function(key, rows, window)", "'window' would be the r"),
        (lambda key, rows, state: None, "function(key, rows, window)", "has no state"),
        (lambda states, rows, which: None, "function(rows, states, key_of_row)", "the rows"),
        (lambda key, rows, state: None, "function(rows, states, key_of_row)", r"'rows' would be"),
        (lambda epoch, rows: None, "function(rows, epoch)", r"in order: \(rows, epoch\)"),
        (lambda batch_id, df: None, "function(rows, epoch)", r"in order: \(df, batch_id\)"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(
    function: Callable[..., Any], called: str, message: str
) -> None:
    with pytest.raises(InvalidFlowError, match=f"Operator 'o'.*{message}"):
        check_signature("Operator 'o'", function, called, operator="o")


def test_two_of_a_kind_have_no_order() -> None:
    for merge in (lambda other, state: None, lambda mine, state: None, lambda a, b: None):
        check_signature("Operator 'o'", merge, "merge(state, other)")


def test_names_of_key_columns_and_of_collections_are_no_mistake() -> None:
    flow = gw.Flow("f")
    of_rows = flow.source("s", gw.testing.stream("state string, rows int, v int, ts timestamp"))
    output: Any = "state string"
    of_rows.key_by("state").process(lambda state, flights, seen: None, state=int, output=output)
    of_rows.key_by("rows").process(lambda rows, cells, seen: None, state=int, output=output)
    of_rows.key_by("v").process(lambda key, new, rows: None, state=list[int], output=output)
    of_rows.key_by("v").process(lambda key, new, timers: None, state=dict, output=output, name="t")
    in_hours = of_rows.key_by("state").window(HOUR, time="ts")
    in_hours.process(lambda state, flights, hour: None, output=output)
    swapped: Any = (lambda rows, state, seen: None, lambda key, new, rows: None)
    for wrong in swapped:
        with pytest.raises(InvalidFlowError, match="in order"):
            of_rows.key_by("state").process(wrong, state=int, output=output)


def test_annotations_are_those_of_the_function_that_is_called() -> None:
    flow = gw.Flow("f")
    keyed = flow.source("s", ROWS).key_by("k")

    def count(
        conf: str, key: tuple[str], rows: gw.types.KeyRows[Any], state: gw.types.State[int]
    ) -> None: ...
    def wrong(key: str, rows: Any, state: Any) -> None: ...

    keyed.process(gives_more(count), state=int, output="k string")
    with pytest.raises(InvalidFlowError, match="takes key: str"):
        keyed.process(around(wrong), state=int, output="k string")


def test_a_state_is_told_by_its_place_in_what_is_called() -> None:
    def of_conf(conf: str, key: Any, rows: Any, state: Any) -> None:
        rows = list(rows)

    def renews(conf: str, key: Any, rows: Any, state: Any) -> None:
        state = {"n": 1}  # noqa: F841

    keyed = gw.Flow("f").source("s", ROWS).key_by("k")
    keyed.process(functools.partial(of_conf, "x"), state=dict, output="k string")
    with pytest.warns(UserWarning, match="assigns its argument 'state'"):
        keyed.process(functools.partial(renews, "x"), state=dict, output="k string")


def test_arguments_by_name_are_held_against_the_parameters() -> None:
    def convert(key: Any, rows: Any, state: Any, rates: Any) -> None: ...

    check_signature("Operator 'o'", convert, PER_KEY, named=["rates"])
    with pytest.raises(InvalidFlowError, match=r"as function\(key, rows, state, rules=rules\)"):
        check_signature("Operator 'o'", convert, PER_KEY, named=["rules"])


class Short(gw.types.Aggregator):
    state = pa.schema({"n": pa.int64()})
    output = pa.int64()

    def create(self, count: int) -> pa.RecordBatch:
        return pa.record_batch([np.zeros(count, np.int64)], schema=self.state)

    def update(self, states: Any, groups: Any) -> pa.RecordBatch:
        return states

    def merge(self, left: Any, right: Any) -> pa.RecordBatch:
        return left

    def finish(self, states: Any) -> pa.Array:
        return states["n"]


two: Any = lambda a, b: 0  # noqa: E731
short: Any = lambda key: 0  # noqa: E731
without: Any = lambda: 0  # noqa: E731


async def asks(*_: Any) -> None: ...


ROWS = gw.testing.stream("k string, v bigint, ts timestamp")
HOUR = gw.tumbling("1 hour")
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "process": (
        lambda s: s.key_by("k").process(lambda k, r: 0, state=int, output="k string"),
        "cannot be called as function",
    ),
    "states": (
        lambda s: s.key_by("k").process(
            lambda rows, key, states: 0, state={"n": gw.ValueState(int)}, output="k string"
        ),
        "'rows' would be the key",
    ),
    "timer": (
        lambda s: s.key_by("k").process(
            plain,
            state=int,
            output="k string",
            timers=gw.types.OnTimer(short, clock="event"),
        ),
        "cannot be called as on_timer",
    ),
    "broadcast": (
        lambda s: s.key_by("k").process(
            lambda key, rows, state: 0, state=int, output="k string", broadcast={"b": s.key_by("k")}
        ),
        "b=b",
    ),
    "window": (
        lambda s: s.key_by("k").window(HOUR).process(lambda key, rows: 0, output="k string"),
        "cannot be called as function.key, rows, window",
    ),
    "window of four": (
        lambda s: (
            s.key_by("k").window(HOUR).process(lambda key, rows, window, state: 0, output="k int")
        ),
        "missing a required argument: 'state'",
    ),
    "batch": (
        lambda s: s.key_by("k").process_batch(asks, state="n long", output="k string"),
        "asynchronous",
    ),
    "map": (lambda s: s.map(lambda key, rows: rows), "cannot be called as map"),
    "async map": (lambda s: s.map(asks), "asynchronous"),
    "merge": (
        lambda s: s.key_by("k").process(
            plain, state=gw.ValueState(int, merge=short), output="k string"
        ),
        "merge.value, other",
    ),
    "merge of a state": (
        lambda s: s.key_by("k").process(
            plain, state={"n": gw.ValueState(int, merge=asks)}, output="k string"
        ),
        "asynchronous",
    ),
    "upgrade": (
        lambda s: s.key_by("k").process(
            plain, state=gw.ValueState(int, upgrade=without), output="k string"
        ),
        "upgrade.stored",
    ),
    "upgrade of a state": (
        lambda s: s.key_by("k").process(
            plain, state={"n": gw.ValueState(int, upgrade=two)}, output="k string"
        ),
        "upgrade.stored",
    ),
    "aggregate": (lambda s: s.key_by("k").compute(n=Short("v")), "update.states, groups, column1"),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_checks_its_functions_when_it_is_made(call: str) -> None:
    make, message = CALLS[call]
    with pytest.raises(InvalidFlowError, match=message):
        make(gw.Flow("f").source("s", ROWS, event_time="ts"))


@pytest.mark.parametrize("sink", [gw.sinks.foreach, gw.sinks.foreach_table])
def test_functions_of_sinks_are_checked(sink: Any) -> None:
    for function in (lambda rows: 0, asks, lambda epoch, rows: 0):
        with pytest.raises(SinkError, match="foreach sink"):
            sink(function)


async def later() -> int:
    return 1


@pytest.mark.parametrize(
    ("function", "state", "message"),
    [
        (lambda key, rows, state: [(key[0], later())], int, "has to be awaited"),
        (lambda key, rows, state: [later()], int, "has to be awaited"),
        (lambda key, rows, state: later(), int, "has to be awaited"),
        (lambda key, rows, state: state.update(a=later()), dict, "has to be awaited"),
        (lambda key, rows, state: state.update(a=np.float32(1)), dict, r"say float\(x\) or x.item"),
        (lambda key, rows, state: state.update(a=np.int64(1)), dict, r"say int\(x\) or x.item"),
        (lambda key, rows, state: state.update(a=np.bool_(1)), dict, r"say bool\(x\) or x.item"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_what_was_to_be_awaited_and_numbers_of_numpy_are_named(
    function: Any, state: Any, message: str
) -> None:
    with pytest.raises(GodwitError, match=message):
        gw.testing.process(function, [{"v": 1}], state=state, output="k string, v bigint")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_map_or_a_sink_that_returns_a_coroutine_is_told_so() -> None:
    flow = gw.Flow("f")
    mapped = flow.source("s", ROWS).map(lambda rows: later())
    flow.sink("o", mapped.key_by("k").compute(n=gw.count()), gw.sinks.noop())
    with pytest.raises(GodwitError, match="has to be awaited, which is done in key_by"):
        gw.testing.run(flow, {"s": [("a", 1, None)]})
