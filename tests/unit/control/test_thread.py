"""The controller's thread: what it is handed, what it asks for, what goes wrong in it."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.oracles.controlled import ControlledCluster, Part
from tests.support.controls import control_of

from godwit.checkpoint.journal import JournalWriter
from godwit.checkpoint.records import BatchRef
from godwit.checkpoint.storage import CheckpointStorage
from godwit.control.loop import Controller
from godwit.control.scaling import latency
from godwit.control.thread import (
    ControllerThread,
    last_memory,
)
from godwit.engine.policies import CommittedEpoch, Topology, topology_of
from godwit.migration.messages import MigrationRequested
from godwit.migration.outcome import EpochOutcome
from godwit.model import events
from godwit.model.errors import MigrationError
from godwit.plan.compiled import UpstreamInput
from godwit.runtime.dispatcher import past_decisions
from godwit.runtime.placement import cancel_own

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


PATIENCE_S = 120.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def flow(*levels: list[str], feeds: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return what of a compiled flow is looked at."""
    components = [
        SimpleNamespace(name=f"of {name}", level=at, operators=[SimpleNamespace(name=name)])
        for at, names in enumerate(levels, start=1)
        for name in names
    ]
    inputs = [
        UpstreamInput(upstream=up, operator=name, maps=(), keys=(), schema=None)
        for up, name in feeds
    ]
    return SimpleNamespace(components=components, inputs=inputs)


def test_components_of_a_level_are_a_stage() -> None:
    topology = topology_of(flow(["a", "b"], ["c"], feeds=(("a", "c"), ("b", "c"))))
    assert topology.stages == (("of a", "of b"), ("of c",))
    assert topology.downstream == (("of a", "of c"), ("of b", "of c"))


@pytest.mark.parametrize(
    ("limits_epochs", "scaling", "longest_s"),
    [
        (True, latency("2.0 seconds"), 3.0),
        (False, latency("2.0 seconds"), math.inf),
        (True, None, math.inf),
    ],
)
def test_the_model_knows_how_long_epochs_may_be_where_their_rows_are_limited(
    monkeypatch: pytest.MonkeyPatch, scaling: Any, longest_s: float, *, limits_epochs: bool
) -> None:
    seen: list[Topology] = []

    class Seeing(Controller):
        """A controller that tells which topology it is given."""

        def __init__(self, *given: Any, topology: Topology, **named: Any) -> None:
            seen.append(topology)
            super().__init__(*given, topology=topology, **named)

        def regroup(self, topology: Topology) -> None:
            seen.append(topology)

    monkeypatch.setattr("godwit.control.thread.Controller", Seeing)
    controlling = ControllerThread(
        control_of(period="4 seconds", scaling=scaling),
        flow(["sums"]),
        coordinator=ControlledCluster({"of sums": Part(rows=np.ones(4))}, {"a": 1}).coordinator,
        pool=None,
        state_bytes={},
        past=[],
        trigger_s=3.0,
        limits_epochs=limits_epochs,
    )
    try:
        controlling.regrouped(flow(["sums", "more"]))
        until(lambda: len(seen) == 2)
    finally:
        controlling.close()
    assert [(each.trigger_s, each.longest_epoch_s) for each in seen] == [(3.0, longest_s)] * 2


# -- the thread -----------------------------------------------------------------------------------


class Run:
    """A stream in virtual time, whose controller has a thread of its own."""

    def __init__(self, **settings: Any) -> None:
        given: dict[str, Any] = {"period": "50 ms", "min_epochs": 2, "planner": "milp"} | settings
        rows = np.full(16, 30.0)
        rows[::2] *= 4.0
        self.noted: list[tuple[str, dict[str, Any]]] = []
        self.world = ControlledCluster({"of sums": Part(rows=rows)}, {"a": 2, "b": 2})
        self.coordinator = self.world.coordinator
        self.controlling = ControllerThread(
            control_of(**given),
            flow(["sums"]),
            coordinator=self.coordinator,
            pool=None,
            state_bytes={},
            past=[],
            note=lambda kind, values: self.noted.append((kind, dict(values()))),
        )

    def epoch(self) -> None:
        """Run an epoch, as Spark's driver does beside the controller."""
        seen: list[CommittedEpoch] = []
        hands_over: Any = SimpleNamespace(observe=seen.append, step=lambda: None)
        self.world.control = hands_over
        with self.coordinator.locked():
            self.world.run(0.01)
        for epoch in seen:
            self.controlling.epoch_committed(epoch)

    def told(self, kind: type[events.Event]) -> list[Any]:
        with self.coordinator.locked():
            return self.world.told(kind)


def batch_of_files(
    directory: Path, *, read: int, pending: int, sizes: Sequence[int] = ()
) -> BatchRef:
    """Write files, the first of which a micro-batch has read; return the micro-batch."""
    entries = []
    for number in range(read + pending):
        file = directory / f"{number}.parquet"
        file.write_bytes(bytes(sizes[number] if sizes else 100))
        os.utime(file, (1000 + number, 1000 + number))
        entry = {"path": file.as_uri(), "timestamp": 1000 * (1000 + number), "batchId": 0}
        entries.append(json.dumps(entry).encode())
    return BatchRef(
        number=0,
        digest="",
        offsets=b'v1\n{}\n{"logOffset":0}',
        sources={"sources/0/0": b"\n".join([b"v1", *entries[:read]])},
    )


def test_epochs_are_handed_over_and_key_groups_move() -> None:
    run = Run()
    try:

        def moved() -> bool:
            run.epoch()
            # The controller tells of a decision once it has begun to carry it out.
            return all(map(run.told, (events.MigrationFinished, events.RebalancingStarted)))

        until(moved)
        assert run.told(events.RebalancingStarted)[0].planner == "milp"
        assert run.controlling.status["planner"] == "milp"
    finally:
        run.controlling.close()


def test_what_the_controller_moves_gives_way_to_what_somebody_wants_by_hand() -> None:
    run = Run()
    run.world.warms = False
    try:

        def moving() -> bool:
            run.epoch()
            return bool(run.told(events.RebalancingStarted))

        while True:
            until(moving)
            target = run.world.coordinator.view.components["of sums"].assignment.moved({0: "b"})
            wanted = MigrationRequested(id="by hand", component="of sums", target=target)
            with run.coordinator.locked() as coordinator:
                if coordinator.view.components["of sums"].migration is None:
                    continue  # it is just planned anew
                with pytest.raises(MigrationError, match="is under way"):
                    coordinator.migrate(wanted)
                cancel_own(coordinator, "of sums")
                coordinator.migrate(wanted)
                cancel_own(coordinator, "of sums")
                assert coordinator.view.components["of sums"].migration == "by hand"
            break
        cancelled = run.told(events.MigrationCancelled)[-1]
        assert cancelled.reason == "superseded by a manual migration"
        until(lambda: bool(run.told(events.ManualOverrideRespected)))
    finally:
        run.controlling.close()


def test_files_that_lie_there_count_as_rows_that_are_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CommittedEpoch] = []
    monkeypatch.setattr(
        "godwit.control.loop.Controller.observe", lambda _self, epoch: seen.append(epoch)
    )
    run = Run()
    try:
        batch = batch_of_files(tmp_path, read=2, pending=3)
        observed = CommittedEpoch(
            outcome=EpochOutcome(epoch=0, batch=0, rows_in=50), component_views={}, took_s=1.0
        )
        run.controlling.epoch_committed(observed, batch, 50)
        until(lambda: bool(seen))
        assert seen[0].backlog_rows == 75
        assert seen[0].backlog_s is not None
    finally:
        run.controlling.close()


def test_where_both_kinds_of_sources_are_mixed_files_count_beside_what_own_sources_hold_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CommittedEpoch] = []
    monkeypatch.setattr(
        "godwit.control.loop.Controller.observe", lambda _self, epoch: seen.append(epoch)
    )
    run = Run()
    run.controlling.backlog_rows = lambda: 7
    try:
        observed = CommittedEpoch(
            outcome=EpochOutcome(epoch=0, batch=0, rows_in=80), component_views={}, took_s=1.0
        )
        run.controlling.epoch_committed(
            observed
        )  # of own rows alone, before there was a micro-batch
        # Own sources had 30 of the epoch's 80 rows.
        run.controlling.epoch_committed(observed, batch_of_files(tmp_path, read=2, pending=3), 50)
        run.controlling.epoch_committed(observed)
        until(lambda: len(seen) == 3)
        assert [epoch.backlog_rows for epoch in seen] == [7, 82, 82]
    finally:
        run.controlling.close()


def test_an_epoch_never_waits_for_a_planner() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def thinks(problem: Any) -> Any:
        inside.set()
        go_on.wait(PATIENCE_S)
        return problem.current

    run = Run(planner=thinks, time_limit=f"{PATIENCE_S} seconds")
    try:

        def planning() -> bool:
            run.epoch()
            return inside.is_set()

        until(planning)
        before = run.world.epoch
        for _ in range(5):
            run.epoch()
        assert run.world.epoch == before + 5
        assert not go_on.is_set()
    finally:
        go_on.set()
        run.controlling.close()


def test_a_controller_that_fails_is_told_of_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_self: object, _epoch: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("godwit.control.loop.Controller.observe", fails)
    run = Run()
    try:
        run.epoch()
        until(lambda: run.told(events.PlannerFailed))
        run.epoch()
        (failed,) = run.told(events.PlannerFailed)
        assert (failed.planner, failed.reason) == ("controller", "RuntimeError: a fault of ours")
    finally:
        run.controlling.close()


def test_what_a_controller_remembers_is_written_down_and_found_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("godwit.control.thread._NOTED_EVERY_S", 0.0)
    run = Run()
    try:
        run.controlling.policy_loop.overrides.record(["scaling"], time.time())

        def remembered() -> bool:
            run.epoch()
            return any("scaling" in values["overrides"] for _, values in run.noted)

        until(remembered)
    finally:
        run.controlling.close()
    storage = CheckpointStorage.open(str(tmp_path / "ck"))
    assert last_memory(storage) is None
    writer = JournalWriter(storage, "r")
    for kind, values in run.noted:
        writer.add(kind, values)
    for _ in range(1500):
        writer.add("progress", {})
    writer.flush()
    memory = last_memory(storage)
    assert memory is not None
    assert "scaling" in memory.overrides


def test_the_past_is_what_the_journal_has_kept(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(str(tmp_path / "ck"))
    journal = JournalWriter(storage, "run")
    event = events.ManualOverrideRespected(epoch=1, at_s=5.0, what="scaling", until_s=65.0)
    journal.add("event", event.to_dict())
    journal.add("event", {"kind": "OfAnotherVersion"})
    journal.add("outcome", {"epoch": 1})
    journal.flush()
    assert past_decisions(storage) == [event]
