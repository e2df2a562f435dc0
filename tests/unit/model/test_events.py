"""The events that users see, one of each kind."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from godwit.model import events
from godwit.model.errors import GodwitError
from godwit.model.events import Event, event_from_dict

# One event of each kind as the journal stores it, with the line that describes it.
LINES = Path(__file__).with_name("events.jsonl").read_text().splitlines()
STORED = [json.loads(line) for line in LINES]


def test_there_is_a_stored_event_of_every_kind() -> None:
    kinds = [stored["event"]["kind"] for stored in STORED]
    assert sorted(kinds) == sorted(set(events.__all__) - {"Event", "event_from_dict"})


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored["event"]["kind"])
def test_a_stored_event_is_read_described_and_written_as_it_was(stored: dict[str, Any]) -> None:
    event = event_from_dict(stored["event"])
    assert event.describe() == stored["line"]
    assert event.to_dict() == stored["event"]
    assert pickle.loads(pickle.dumps(event)) == event
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
                "users is placed by area instead of area, user; trips is placed by car instead "
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
def test_optional_fields_change_the_line(event: Event, line: str) -> None:
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
