"""A run as its journal tells it: a graph, epochs, a migration and decisions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.checkpoint.journal import JournalWriter
from godwit.engine.run_record import placement_entry
from godwit.migration.outcome import LoadSummary
from godwit.model import events
from godwit.model.assignment import Assignment
from godwit.model.key_groups import KeyGroupLoad

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.model.events import Event

__all__ = ["BEGAN_S", "assignment", "epoch", "event", "load", "placement", "story", "write"]

BEGAN_S = 1_700_000_000.0


def event(
    kind: type[Event], *, epoch: int = 3, after_s: float = 3.5, **values: Any
) -> dict[str, Any]:
    return {"event": kind(epoch=epoch, at_s=BEGAN_S + after_s, **values).to_dict()}


def epoch(number: int, *, took_ms: float = 250.0, rows: int = 1000, **more: Any) -> dict[str, Any]:
    """Figures of an epoch; epochs begin a second apart."""
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGAN_S + number))
    values = {
        "epoch": number,
        "batchId": number,
        "timestamp": f"{began}.000Z",
        "numInputRows": rows,
        "numOutputRows": 10,
        "sinkRows": {"totals": 10},
        "durationMs": {"epoch": took_ms, "stages": took_ms - 20, "commit": 15.0},
        "latencyMs": {
            "p50": took_ms * 2,
            "p99": took_ms * 3,
            "sources": {"flights": {"rows": rows, "p50": took_ms * 2}},
        },
        "requests": {"epoch": {"list": 1, "put": 5}, "beside": {}},
        "changelogBytes": 4096,
        "snapshotBytes": 1024,
        "totalStateBytes": {"by_plane": 1_000_000 + number},
        "watermarks": {"flights": "2023-11-14T22:13:20.000Z"},
        "leftOutRows": {},
        "hotKeys": {},
        "loads": {"by_plane": {"keyGroups": 8, "rows": rows, "keys": 5, "cpuMs": 3.0}},
        "streams": [],
        "keyGroups": {"by_plane": {"a": 4, "b": 4}},
        "waitingKeyGroups": 0,
        "unreadStateBytes": 0,
        "stateTableBytes": 0,
        "evictedKeyGroups": 0,
        "fetchedKeys": 0,
        "suspendedKeyGroups": 0,
        "inFlightKeyGroups": 0,
        "plannedMoves": 0,
        "executors": {
            "a": {"lanes": 2, "draining": False, "cpuMs": 20.0, "busyMs": 30.0},
            "b": {"lanes": 2, "draining": False, "cpuMs": 8.0, "busyMs": 10.0},
        },
        **more,
    }
    return {"progress": values}


FLOW: dict[str, Any] = {
    "flow": {
        "name": "delays",
        "keyGroups": 8,
        "sources": ["flights"],
        "operators": [
            {
                "name": "by_plane",
                "parts": ["by_plane"],
                "components": ["by_plane"],
                "does": "compute total = sum(delay)",
                "keys": ["tailnum"],
            }
        ],
        "sinks": [{"name": "totals", "takes": "results"}],
        "edges": [
            {"from": ["source", "flights"], "to": ["operator", "by_plane"], "exchange": True},
            {"from": ["operator", "by_plane"], "to": ["sink", "totals"], "exchange": False},
        ],
    }
}


def assignment(
    *owners: int, version: int = 0, executors: tuple[str, ...] = ("a", "b")
) -> Assignment:
    """Key groups by the number of their executor; two lanes each, by turns."""
    owner = np.array(owners, np.int32)
    return Assignment(
        version=version,
        executors=executors,
        lanes=(2,) * len(executors),
        executor_of=owner,
        lane_of=(np.arange(len(owner)) % 2).astype(np.int32),
    )


def placement(number: int, before: Assignment | None, now: Assignment) -> dict[str, Any]:
    return {"placement": placement_entry(number, {"by_plane": (before, now)})}


def load(number: int, busy_ms: Iterable[float], epochs: int = 2) -> dict[str, Any]:
    """Loads of the first key groups, over some epochs."""
    column = np.array([*busy_ms], np.float64)
    size = len(column)
    of = KeyGroupLoad(
        key_groups=np.arange(size),
        rows=np.full(size, 10),
        keys=np.zeros(size, np.int64),
        cpu_ms=column,
        busy_ms=column,
        state_bytes=np.full(size, 100),
    )
    summary = LoadSummary(epoch=number, epochs=epochs, loads={"by_plane": of})
    return {"load": summary.to_dict()}


HERE = assignment(0, 0, 0, 0, 1, 1, 1, 1)
THERE = assignment(0, 0, 1, 1, 1, 1, 1, 1, version=1)


def story() -> list[dict[str, Any]]:
    """Six epochs; key groups 2 and 3 move from `a` to `b` after the fourth, which is slow."""
    moved: dict[str, Any] = {"migration": "m1", "component": "by_plane"}
    groups: dict[str, Any] = {"component": "by_plane", "key_groups": (2, 3)}
    return [
        event(events.QueryStarted, epoch=-1, after_s=0.0, name="delays"),
        FLOW,
        placement(0, None, HERE),
        epoch(0),
        {"sources": {"sources": [{"name": "flights", "description": "files", "behind": 4200}]}},
        epoch(1),
        epoch(2),
        load(2, [8.0, 0.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]),
        event(
            events.RebalancingStarted,
            epoch=2,
            migrations={"by_plane": "m1"},
            planner="milp",
            moves=2,
            state_bytes=2048,
            draining=0,
            distance_before=0.5,
            distance_after=0.1,
            gain_s=3.0,
            cost_s=2.0,
        ),
        event(
            events.MigrationStarted, epoch=2, strategy="live", moves=2, state_bytes=2048, **moved
        ),
        event(events.WarmingStarted, epoch=2, executor="b", **groups),
        epoch(3, inFlightKeyGroups=2),
        event(
            events.KeyGroupsWarmed, executor="b", state_bytes=2048, duration_ms=100.0, **groups
        ),
        event(events.AssignmentSwitched, version=1, **groups),
        epoch(4, took_ms=450.0),
        placement(4, HERE, THERE),
        event(events.MigrationFinished, epoch=4, after_s=4.6, moved=2, **moved),
        event(
            events.LoadMeasured,
            epoch=4,
            after_s=4.7,
            period_s=2.0,
            epochs=2,
            missing=0,
            arrival_per_s=1000.0,
            epoch_s=0.3,
            bottleneck="cpu",
            load_distance=0.12,
        ),
        event(
            events.RebalancingJudged, epoch=4, after_s=4.75, components=("by_plane",),
            verdict="helped", before=0.5, expected=0.1, measured=0.12, reason="even",
        ),
        event(
            events.ScaledOut, epoch=4, after_s=4.8, before=2, wanted=3, reason="too slow",
            numbers={"latency_s": 0.9},
        ),
        event(events.RowsUnreadable, epoch=4, after_s=4.9, source="flights", rows=7),
        epoch(
            5,
            leftOutRows={"by_plane": {"late": 3, "ahead": 1, "untimed": 0}},
            sinkRows={"totals": 10, "totals_rejects": 2},
            hotKeys={"by_plane": {'["N14228"]': 0.4}},
        ),
        event(
            events.DecisionJudged, epoch=5, after_s=5.6, before=2, wanted=3, verdict="helped",
            expected=0.4, measured=0.45, target=0.5, arrival_per_s=1000.0, reason="as foreseen",
        ),
        event(events.QueryStopped, epoch=5, after_s=6.0, name="delays"),
    ]  # fmt: skip


def write(storage: CheckpointStorage, journal: Iterable[dict[str, Any]]) -> CheckpointStorage:
    """Append entries to the journal of a checkpoint."""
    writer = JournalWriter(storage, "some-run")
    for entry in journal:
        ((kind, values),) = entry.items()
        writer.add(kind, values)
    writer.flush()
    return storage
