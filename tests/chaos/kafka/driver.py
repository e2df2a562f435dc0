"""A driver without Spark, to be killed: the engine, the lanes and the sinks in one process.

It reads until it is killed, or, told to finish, until nothing is left of what is there.
"""

from __future__ import annotations

import logging
import random
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.kafka.flow import NUM_KEY_GROUPS, die_at, kafka_flow, kill_this

from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.outputs import OpenSinks, staged_sinks
from godwit.engine.settings import Lanes
from godwit.local import LocalRun
from godwit.migration import Bounds, Strategy
from godwit.migration.messages import MigrationRequested
from godwit.migration.placement import with_newcomers
from godwit.model.errors import GodwitError
from godwit.runtime.threads import DaemonPool

if TYPE_CHECKING:
    from godwit.checkpoint.records import CommitRecord, SinkRecord
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.staging import StagedSink

__all__ = ["drive"]

_IDLE_S = 0.01
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _NoSession:
    """No sink here asks for DataFrames."""

    def show(self, name: str, rows: Any) -> None: ...
    def dataframe(self, rows: Any) -> Any: ...
    def stored_dataframe(self, storage: Any, blocks: Any, schema: Any) -> Any: ...


class _Run(LocalRun):
    """A run whose sinks are open."""

    def open_sinks(self, flow: CompiledFlow) -> list[StagedSink]:
        self.opened = OpenSinks(flow, self.log, _NoSession(), renamed={})
        return staged_sinks(flow)

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        self.opened.deliver(record, again=again)

    def sink_records(self) -> dict[str, SinkRecord]:
        return self.opened.records()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000


def drive(told: dict[str, Any]) -> None:
    """Run the flow as `told` says; ends the process with status 0 once it has finished."""
    directory = Path(told["directory"])
    sys.stdout = sys.stderr = (directory / "log").open("a", buffering=1)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
    if told["deed"] == "kill at":
        die_at(told, kill_this)
    storage = CheckpointStorage.open(str(directory / "ck"))
    lease = acquire_lease(storage, uuid.uuid4().hex)
    run = _Run(
        kafka_flow(told).compiled(),
        storage,
        executors=told["executors"],
        settings=Lanes(local_dir=str(directory / "local"), inline_bytes=512, snapshot_growth=0.1),
        retain_epochs=4,
        emit=lambda event: _LOGGER.info("%s", event.describe()),
    )
    delivering = DaemonPool(1, "delivery")
    if told["number"] % 2:  # epochs are delivered beside the stages of the next, or not
        run.loop._beside = lambda deliver: delivering.submit(deliver).result
    run.sources.open()
    (directory / "ready").touch()
    _epochs(run, told, random.Random(told["number"]))
    delivering.close()
    run.sources.close()
    run.opened.close()
    lease.release()


def _epochs(run: _Run, told: dict[str, Any], rng: random.Random) -> None:
    """Run epochs, and move key groups in between."""
    finish = Path(told["directory"]) / "finish"
    migrations, finishing = told["migrations"], False
    while True:
        if not finishing and finish.exists():
            finishing = True
            run.sources.fix_ends()
        if migrations and rng.random() < 0.5:
            migrations -= 1
            _migrate(run, rng, migrations)
        outcome = run.read_epoch()
        for _ in run.run_until_idle():
            pass
        if outcome is None:
            run.loop.finish_delivery()
            if finishing:
                break
            time.sleep(_IDLE_S)
    if told["end"]:
        run.epochs.end_input()
        for _ in run.run_until_idle():
            pass
        run.loop.finish_delivery()


def _migrate(run: _Run, rng: random.Random, number: int) -> None:
    component = rng.choice(sorted(run.view.components))
    here = with_newcomers(run.view.components[component].assignment, dict(run.view.executors))
    moving = rng.sample(range(NUM_KEY_GROUPS), rng.randint(1, NUM_KEY_GROUPS))
    with suppress(GodwitError):  # one is under way
        run.coordinator.migrate(
            MigrationRequested(
                id=f"m{number}",
                component=component,
                target=here.moved(dict.fromkeys(moving, rng.choice(sorted(run.executors)))),
                strategy=rng.choice([Strategy.LIVE, Strategy.DISRUPTIVE, Strategy.STOP_THE_WORLD]),
                bounds=Bounds(max_moves=rng.randint(1, 4)),
            )
        )
