"""A realization on Spark: a query of a local session, in which each core counts as an executor."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from tests.contract.flow import COLUMNS, NUM_KEY_GROUPS, add_operators
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.migration.messages import LanesRequested
from godwit.model.errors import MigrationError
from godwit.spark.background_copies import BackgroundCopies
from godwit.spark.resident.lanes import ResidentLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession
    from tests.contract.scenario import Misfortune, Policy, Warming

    from godwit.migration import Bounds, Strategy
    from godwit.migration.messages import EndMigration
    from godwit.migration.state import ProtocolView
    from godwit.model.assignment import Assignment
    from godwit.model.events import Event

__all__ = ["OnSpark"]

_PATIENCE_S = 120.0


class _DiedError(Exception):
    """The driver is as good as dead."""


class OnSpark:
    """See `tests.contract.realization.Realization`.

    Executors are ``local-0``, ``local-1``, ...: those that come or go are the last ones, and each
    has one lane.  An epoch can die, but not be aborted by nothing.

    Parameters
    ----------
    spark
        A session in local mode.
    directory
        For input, checkpoint and local stores.
    patch
        Undone when the scenario is over.
    deep, policy, again
        As in the scenario.
    own
        Rows come from a source of Godwit's own, and not from Spark's micro-batches.
    resident
        Lanes stay between epochs, and every epoch waits for them.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        patch: pytest.MonkeyPatch,
        *,
        deep: bool,
        policy: Policy,
        again: bool = False,
        own: bool = False,
        resident: bool = False,
    ) -> None:
        self._directory, self._deep, self._policy = directory, deep, policy
        self._again, self._resident = again, resident
        self._spark, self._own = spark, gw.sources.memory(COLUMNS) if own else None
        self._inbox = Inbox(spark=spark, directory=directory / "in", columns=COLUMNS)
        self._sinks = {
            name: gw.sinks.memory()
            for name in (
                "order",
                "totals",
                *(["shards"] if deep else []),
                *(["again"] if again else []),
            )
        }
        self._before: list[Event] = []
        self._query: gw.types.Query
        self._put = self._cores = 0
        self._goes, self._allowed = "works", threading.Event()
        warm = BackgroundCopies._warm

        def as_it_goes(copies: BackgroundCopies, order: Any) -> None:
            if self._goes == "held":
                assert self._allowed.wait(_PATIENCE_S)
            if self._goes == "fails":
                copies._coordinator.warming_failed(order, "no room")
            elif self._goes != "lost":
                warm(copies, order)

        patch.setattr(BackgroundCopies, "_warm", as_it_goes)
        patch.setattr(ResidentLanes, "waits_s", _PATIENCE_S)
        patch.setattr(SparkContext, "defaultParallelism", property(lambda _: self._cores))

    def executor(self, name: str) -> str:
        """See `Realization.executor`."""
        return name

    def start(self, executors: Mapping[str, int]) -> None:
        """See `Realization.start`."""
        self._cores = len(executors)
        flow = gw.Flow("contract", num_key_groups=NUM_KEY_GROUPS)
        add_operators(
            flow,
            self._inbox.stream() if self._own is None else self._own,
            deep=self._deep,
            again=self._again,
            sink=self._sinks.__getitem__,
        )
        self._query = flow.start(
            checkpoint=self._directory / "ck",
            session=self._spark,
            lanes=gw.Lanes(local_dir=self._directory / "local", resident=self._resident),
            policy=self._policy,
            executors=len(executors),
            name=f"{self._directory.name} {len(self._before)}",
        )
        if self._own is not None:
            # No log says that the rows of an epoch that died are one by themselves: whatever is
            # added by then would come with them.
            self._until(lambda: self._covered() >= self._put, "what is there to be processed")

    def stop(self) -> None:
        """See `Realization.stop`."""
        self._allowed.set()
        self._query.stop()
        self._before.extend(self._query.events)

    def epoch(
        self,
        rows: Sequence[tuple[int, int]],
        misfortune: Misfortune | None = None,
        loses: str | None = None,
    ) -> None:
        """See `Realization.epoch`."""
        assert loses is None

        def at_step(step: str, _epoch: int) -> None:
            if step == misfortune:
                raise _DiedError

        setattr(self._query._run.loop, "at_step", at_step)  # noqa: B010  a method of the class
        if self._own is None:
            self._inbox.put(rows)
            self._put += 1
        else:
            self._own.add([dict(zip(("k", "number"), row, strict=True)) for row in rows])
            self._put += len(rows)
        if misfortune is None:
            self._until(lambda: self._covered() >= self._put, f"epoch {self._put}")
            return
        self._until(lambda: self._query.exception() is not None, "the driver to die")

    def _covered(self) -> int:
        """Micro-batches that are committed; rows, of a source of Godwit's own."""
        failure = self._query.exception()
        if failure is not None:
            raise failure
        latest = self._query._run.log.latest
        last = None if latest is None else latest.last_batch
        if last is None:
            return 0
        return last.number + 1 if self._own is None else int(last.positions["rows"])

    def quiet(self) -> None:
        """See `Realization.quiet`: it happens by itself."""

    def settle(self) -> None:
        """See `Realization.settle`."""
        self._query.processAllAvailable()
        self._until(lambda: not self._going(), "everything to be over")
        self._query.processAllAvailable()

    def _going(self) -> bool:
        view = self.view
        moving = any(c.migration or c.transfers for c in view.components.values())
        return moving or view.due or view.waiting

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.02)

    def see(self, executors: Mapping[str, int]) -> None:
        """See `Realization.see`."""
        assert dict(executors) == {f"local-{i}": 1 for i in range(len(executors))}
        self._cores = len(executors)
        self._until(lambda: self.view.executors.keys() == executors.keys(), f"{executors}")

    def forget_store(self, executor: str) -> None:
        """See `Realization.forget_store`."""
        for store in (self._directory / "local").glob(f"*/*/{executor}"):
            shutil.rmtree(store, ignore_errors=True)

    def warming(self, goes: Warming) -> None:
        """See `Realization.warming`."""
        self._goes = goes.goes
        if goes.goes == "held":
            self._allowed.clear()
        else:
            self._allowed.set()

    def migrate(
        self, component: str, target: Assignment, strategy: Strategy, bounds: Bounds
    ) -> str:
        """See `Realization.migrate`."""
        return self._query.migrate(target, component=component, strategy=strategy, bounds=bounds).id

    def change_lanes(
        self, component: str, lanes: Mapping[str, int], lane_of: Mapping[int, int]
    ) -> None:
        """See `Realization.change_lanes`."""
        request = LanesRequested(component=component, lanes=lanes, lane_of=lane_of)
        self._query._run.coordinator.change_lanes(request)

    def component_of(self, operator: str) -> str:
        """See `Realization.component_of`."""
        components = self._query.status["components"]
        return next(str(name) for name, operators in components.items() if operator in operators)

    def regroup(self, components: Mapping[str, tuple[str, ...]]) -> None:
        """See `Realization.regroup`."""
        self._query.components.regroup(components)

    def drain(self, executor: str) -> None:
        """See `Realization.drain`."""
        self._query._run.coordinator.drain(executor)

    def cancel(self, migration: str) -> None:
        """See `Realization.cancel`."""
        locked = self._query._run.coordinator.locked()
        with suppress(MigrationError), locked as coordinator:  # it may not be under way
            coordinator.cancel(migration, "second thoughts")

    def ended(self, migration: str) -> EndMigration | None:
        """See `Realization.ended`."""
        return self._query._run.coordinator.ended(migration, 0)

    @property
    def view(self) -> ProtocolView:
        """See `Realization.view`."""
        return self._query._run.view

    @property
    def events(self) -> Sequence[Event]:
        """See `Realization.events`."""
        return [*self._before, *self._query.events]

    @property
    def rows_out(self) -> Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]]:
        """See `Realization.rows_out`."""
        return {
            name: {epoch: rows_of(table) for epoch, table in sink.epochs.items()}
            for name, sink in self._sinks.items()
        }
