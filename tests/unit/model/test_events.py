"""The events that users see; those of the examples in their docstrings, one of each kind."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest
from tests.support.public_api import example_of

import godwit as gw
from godwit.model import events
from godwit.model.errors import GodwitError
from godwit.model.events import Event, event_from_dict

KINDS = [name for name in events.__all__ if name not in {"Event", "event_from_dict"}]


def example(kind: str) -> Event:
    """Return the event that the example of a kind makes."""
    found = example_of(kind, getattr(events, kind))
    assert found is not None
    names: dict[str, Any] = {"gw": gw}
    exec(found.examples[0].source, names)
    event = names["event"]
    assert isinstance(event, Event)
    return event


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_survives_json_and_pickle_and_is_told_in_one_line(kind: str) -> None:
    event = example(kind)
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    assert pickle.loads(pickle.dumps(event)) == event
    assert event.describe()
    assert "\n" not in event.describe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.epoch = 5  # type: ignore[misc]  # that it cannot be set is what is tested


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            events.AssignmentSwitched(epoch=0, at_s=0.0, component="sum", version=2),
            "sum: assignment 2 changes lanes only",
        ),
        (
            events.OperatorsRepartitioned(
                epoch=4,
                at_s=1.0,
                before={"users": "area, user", "trips": "area"},
                after={"users": "area", "trips": "car"},
                reason="asked for",
                paused_ms=412.3,
            ),
            (
                "users is placed by area in place of area, user; trips is placed by car in place "
                "of area (asked for); no epoch ran for 412 ms"
            ),
        ),
        (
            events.PartitioningCompared(
                epoch=4,
                at_s=1.0,
                operator="users",
                downstream="areas",
                columns=("area",),
                chosen=False,
                reason="'area' has 50 values, and 8 lanes need 128",
                imbalance=1.12,
            ),
            (
                "placing users by area, as areas: the busiest lane has 1.12 of the mean; not "
                "chosen ('area' has 50 values, and 8 lanes need 128)"
            ),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_lines_than_those_of_the_examples_read_like_sentences(
    event: Event, line: str
) -> None:
    assert event.describe() == line


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(GodwitError, match="no event of kind 'Nonsense'"):
        event_from_dict({"kind": "Nonsense", "epoch": 0, "at_s": 0.0})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"nonsense": 1}, "has no field 'nonsense'"),
        ({"lanes": 1.5}, "Expected `int`"),
        ({"lanes": None}, "Expected `int`"),
        ({"executor": 3}, "Expected `str`"),
        ({"at_s": float("nan")}, "happened at nan s"),
    ],
)
def test_values_that_are_none_of_the_kind_are_refused(changed: dict[str, Any], told: str) -> None:
    event = events.ExecutorAdded(epoch=4, at_s=1.0, executor="3", lanes=1)
    with pytest.raises(GodwitError, match=told):
        event_from_dict(event.to_dict() | changed)
