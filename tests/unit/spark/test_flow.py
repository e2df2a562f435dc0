"""Starting a flow: what is found wrong before any Spark is loaded."""

from __future__ import annotations

import datetime as dt
import inspect
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

import godwit as gw
from godwit.model.errors import GodwitError, InvalidFlowError
from godwit.runtime.settings import Options


def test_start_takes_every_option_with_its_default() -> None:
    taken = {
        name: parameter.default
        for name, parameter in inspect.signature(gw.Flow.start).parameters.items()
        if name != "self"
    }
    defaults = {
        field.name: inspect.Parameter.empty
        if field.default is MISSING and field.default_factory is MISSING
        else None
        if field.default_factory is not MISSING
        else field.default
        for field in fields(Options)
    }
    assert taken == defaults


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"chekpoint": "ck"}, r"start has no argument 'chekpoint'\. Did you mean 'checkpoint' or"),
        ({}, r"start\(\) missing 1 required keyword-only argument: 'checkpoint'\. It takes 'check"),
        ({"checkpoint": ""}, "without a checkpoint"),
        ({"checkpoint": None}, "option checkpoint of start is of type NoneType"),
        ({"checkpoint": b"ck"}, "option checkpoint of start is of type bytes"),
        (
            {"checkpoint": "ck", "retain_epochs": 100},
            r"no argument 'retain_epochs'\. .*checkpointing=gw\.Checkpointing\(retain_epochs=",
        ),
        ({"checkpoint": "ck", "max_executors": 4}, r"control=gw\.Control\(max_executors="),
        ({"checkpoint": "ck", "metrics_port": 0}, r"gw\.Observability\(metrics_port="),
        ({"checkpoint": "ck", "executors": 0}, r"executors of start is 0\. Give at least"),
        ({"checkpoint": "ck", "trigger": "1 second"}, r'trigger=\{"processingTime": "1 second"\}'),
    ],
)
def test_options_that_do_not_exist_or_make_no_sense(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidFlowError, match=told):
        gw.Flow("flow").start(**options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("checkpoint", 5),
        ("checkpoint", ["ck"]),
        ("trigger", [1]),
        ("trigger", dt.timedelta(seconds=1)),
        ("trigger", {"processingTime": dt.timedelta(seconds=1)}),
        ("executors", "2"),
        ("executors", 1.5),
        ("executors", True),
        ("lanes", {"resident": True}),
        ("lanes", gw.Lanes),
        ("checkpointing", "ck"),
        ("sizing", gw.Lanes()),
        ("adaptation", gw.control.Fusion()),
        ("observability", gw.Observability),
        ("control", "milp"),
        ("policy", gw.migration.LossPolicy.LOAD),
        ("components", ["planes"]),
        ("name", 5),
        ("close_at_end", "yes"),
        ("on_divergence", 5),
        ("on_divergence", ["refuse"]),
        ("on_divergence", {"planes": ["refuse"]}),
    ],
)
def test_an_option_of_a_wrong_type_is_named_before_anything_starts(
    flights: Any, option: str, value: Any
) -> None:
    flow = gw.Flow("delays")
    planes = flow.source("flights", flights).key_by("tailnum").compute(name="planes", n=gw.count())
    flow.sink("planes", planes, gw.sinks.noop())
    with pytest.raises(GodwitError, match=rf"(?i)\b{option}\b"):
        flow.start(**{"checkpoint": "ck", option: value})


def test_components_are_named_before_the_flow_has_started(flights: Any) -> None:
    flow = gw.Flow("delays")
    stream = flow.source("flights", flights)
    first = stream.key_by("tailnum").compute(name="planes", n=gw.count())
    first.key_by("n").compute(name="histogram", planes=gw.count())
    stream.key_by("origin").compute(name="airports", n=gw.count())
    assert flow.components == ("planes", "airports", "histogram")


def test_a_mistake_is_shown_with_the_users_line_and_one_of_ours(flights: Any) -> None:
    stream = gw.Flow("delays").source("flights", flights)
    with pytest.raises(InvalidFlowError) as caught:
        stream.key_by("tailnum").compute()
    files = [Path(str(entry.path)).name for entry in caught.traceback]
    assert files == [Path(__file__).name, "frames.py"]


def test_the_sources_of_a_flow_are_of_one_session(flights: Any, orders: Any) -> None:
    flow = gw.Flow("delays")
    flow.source("flights", flights)
    flow.source("orders", orders)
    stranger = replace(orders, sparkSession=type(orders.sparkSession)())
    with pytest.raises(InvalidFlowError, match="'flights' and 'more' come from two Spark sessions"):
        flow.source("more", stranger)
    assert list(flow.sources) == ["flights", "orders"]


def test_a_source_of_spark_connect_is_refused_where_it_is_given(flights: Any) -> None:
    connect = replace(flights, sparkSession=object())
    with pytest.raises(InvalidFlowError, match=r"'flights' was .* Spark Connect session"):
        gw.Flow("delays").source("flights", connect)
