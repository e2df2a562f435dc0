"""Figures of a stream in the journal: read back as they were, small, and never an error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from godwit.engine.policies import Topology
from godwit.engine.run_record import STREAM, EpochColumns, StreamRecorder, StreamSummary
from godwit.model.assignment import even_assignment
from godwit_lab.simulator import (
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
)

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray


def summary(key_groups: int = 8, epochs: int = 3) -> StreamSummary:
    columns: dict[str, FloatArray] = {
        name: np.arange(epochs, dtype=np.float64) + 1.5
        for name in ("epoch", "ended_s", "took_ms", "rows", "busiest_ms", "busy_ms", "touched")
    }
    return StreamSummary(
        epoch=9,
        topology=Topology(stages=(("a",), ("b",)), downstream=(("a", "b"),), trigger_s=2.0),
        assignments={name: even_assignment(key_groups, ["x", "y"], [1, 3]) for name in ("a", "b")},
        epochs=EpochColumns(**columns),
    )


def test_it_is_read_back_as_it_was() -> None:
    written = summary()
    found = StreamSummary.from_dict(json.loads(json.dumps(written.to_dict())))
    assert found is not None
    assert found.topology == written.topology
    assert found.assignments == dict(written.assignments)
    assert found.lanes == {"x": 1, "y": 3}
    assert found.epochs.busy_ms.tolist() == written.epochs.busy_ms.tolist()


@pytest.mark.parametrize(
    "damage",
    [
        {"places": {}},
        {"places": {"a": {"executors": ["x"], "lanes": [0], "lane_of": ""}}},
        {"stages": 3},
        {"stages": []},
        {"trigger_s": -1},
        {"epochs": {}},
        {"epochs": {key: [float("nan")] for key in summary().to_dict()["epochs"]}},
        {"epochs": summary().to_dict()["epochs"] | {"rows": [1.0]}},
        {"epoch": "last"},
    ],
)
def test_one_that_is_damaged_is_none(damage: dict[str, Any]) -> None:
    assert StreamSummary.from_dict(summary().to_dict() | damage) is None


def test_thousands_of_key_groups_and_hundreds_of_epochs_take_some_kilobytes() -> None:
    assert len(json.dumps(summary(8192, 16).to_dict())) < 32_000


def test_a_run_writes_one_beside_every_summary_of_loads() -> None:
    entries: list[tuple[str, Any]] = []
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(),) * 2),
        components=(SimulatedComponent(name="sums", key_groups=16, row_ms=1.0),),
        rate=Rate(rows_per_s=500),
        keys=Keys(number=100),
        duration_s=40,
        trigger_s=1.0,
    )
    Simulation(scenario, note=lambda kind, values: entries.append((kind, dict(values)))).run()
    loads = [values["epoch"] for kind, values in entries if kind == "load"]
    streams = [StreamSummary.from_dict(values) for kind, values in entries if kind == STREAM]
    assert len(loads) >= 2
    assert [stream.epoch for stream in streams if stream] == loads
    first = streams[0]
    assert first is not None
    assert len(first.epochs) == 16
    assert np.diff(first.epochs.ended_s)[1:] == pytest.approx(1.0, abs=0.2)
    # All of an epoch's time is its lanes' or fixed, and lanes do not take more than there is.
    assert (first.epochs.busiest_ms < first.epochs.took_ms).all()
    assert (first.epochs.busy_ms <= 2 * first.epochs.busiest_ms + 1e-6).all()


def test_a_recorder_has_nothing_to_tell_before_an_epoch_and_after_its_components_are_gone() -> None:
    recorder = StreamRecorder()
    assert recorder.summary(Topology(stages=())) is None
    recorder.forget()
    assert recorder.summary(Topology(stages=())) is None
