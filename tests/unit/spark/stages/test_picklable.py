"""Functions that cannot travel to executors are named, with what holds them back."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.errors import InvalidFlowError
from godwit.spark.stages.pickling import check_picklable

if TYPE_CHECKING:
    from collections.abc import Callable

LOCK = threading.Lock()


class Meter:
    def __init__(self) -> None:
        self.guard = threading.Lock()

    def measure(self, _key: Any, _rows: Any, _state: Any) -> None:
        self.guard.acquire()


class Spread:
    columns = ("v",)

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def bind(self, inputs: Any) -> Any:
        raise NotImplementedError


def flow_of(source: Any, function: Callable[..., Any], state: Any = dict) -> gw.Flow:
    flow = gw.Flow("flow")
    keyed = flow.source("orders", source).key_by("k")
    made = keyed.process(function, state=state, output="k string", name="p")
    flow.sink("out", made, gw.sinks.noop())
    return flow


def closing_over(value: Any) -> Callable[..., Any]:
    def helper() -> Any:
        return value

    def remember(_key: Any, _rows: Any, _state: Any, _lock: Any = None) -> Any:
        return helper()

    return remember


def test_functions_of_every_kind_that_can_travel_pass(orders: Any) -> None:
    for function in (
        lambda _key, _rows, _state: None,
        closing_over([1, 2, 3]),
        functools.partial(closing_over(3)),
    ):
        check_picklable(flow_of(orders, function))


def test_the_variable_in_the_way_is_named_however_deep_it_is(orders: Any) -> None:
    with pytest.raises(
        InvalidFlowError,
        match=r"Function 'remember' of operator 'p' cannot be sent to executors: its variable "
        r"'value' of 'helper', of type _thread\.lock, cannot be pickled\. Make it inside",
    ) as caught:
        check_picklable(flow_of(orders, closing_over(threading.Lock())))
    assert caught.value.context == {"operator": "p", "variable": "helper.value"}


def test_globals_arguments_and_attributes_are_variables_too(orders: Any) -> None:
    # The module itself would be found by name, so it is not asked for.
    globally: dict[str, Any] = {"LOCK": LOCK}
    exec("def f(key, rows, state):\n    LOCK.acquire()", globally)  # a script's own function
    globally["f"].__module__ = "__main__"
    with pytest.raises(InvalidFlowError, match=r"Function 'f'.*variable 'LOCK'"):
        check_picklable(flow_of(orders, globally["f"]))
    partial = functools.partial(closing_over(1), _lock=LOCK)
    with pytest.raises(InvalidFlowError, match=r"variable '_lock'"):
        check_picklable(flow_of(orders, partial))
    with pytest.raises(InvalidFlowError, match=r"Function 'measure'.*variable 'guard' of 'self'"):
        check_picklable(flow_of(orders, Meter().measure))


@pytest.mark.parametrize("option", ["merge", "upgrade"])
def test_functions_of_a_state_are_named_with_it(orders: Any, option: str) -> None:
    lock = LOCK
    function: Any = {"merge": lambda a, b: lock and a, "upgrade": lambda old: lock and old}[option]
    state = gw.ValueState(dict, **{option: function})
    with pytest.raises(InvalidFlowError, match=r"The state of operator 'p'.*'lock'"):
        check_picklable(flow_of(orders, closing_over(1), state))
    with pytest.raises(InvalidFlowError, match=r"State 'n' of operator 'p'.*'lock'"):
        check_picklable(flow_of(orders, closing_over(1), {"n": state}))


def test_an_aggregate_and_a_map_after_an_operator_are_named(orders: Any) -> None:
    flow = gw.Flow("flow")
    counted = flow.source("orders", orders).key_by("k").compute(name="c", n=gw.count())
    lock = LOCK
    flow.sink("out", counted.map(lambda table: lock and table), gw.sinks.noop())
    with pytest.raises(InvalidFlowError, match=r"Map '<lambda>' after operator 'c'.*'lock'"):
        check_picklable(flow)

    flow = gw.Flow("flow")
    spread = flow.source("orders", orders).key_by("k").compute(name="c", s=Spread())
    flow.sink("out", spread, gw.sinks.noop())
    with pytest.raises(InvalidFlowError, match=r"Aggregate 's' of operator 'c'.*variable 'lock'"):
        check_picklable(flow)


def test_what_belongs_to_the_driver_has_a_remedy_of_its_own(orders: Any) -> None:
    class Table:
        def __reduce__(self) -> Any:
            raise TypeError("not me")

    Table.__module__ = "pyspark.sql.dataframe"
    with pytest.raises(InvalidFlowError, match=r"DataFrames and sessions live on the driver"):
        check_picklable(flow_of(orders, closing_over(Table())))


def test_maps_before_an_operator_stay_on_the_driver(orders: Any) -> None:
    flow = gw.Flow("flow")
    lock = LOCK
    mapped = flow.source("orders", orders).map(lambda df: lock and df)
    flow.sink("out", mapped.key_by("k").compute(n=gw.count()), gw.sinks.noop())
    check_picklable(flow)
