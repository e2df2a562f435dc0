"""The demo's script: what it does to a running query, and when.

It hears every event of the query and decides after each; the clock serves only to notice that a
stream has run dry.
"""

from __future__ import annotations

import os
import queue
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from godwit.cli.demo.recording import Recording
from godwit.model import events
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.cli.demo.story import Audience, Settings
    from godwit.cluster.spark.platform.local_cluster import LocalCluster
    from godwit.cluster.spark.query.query import Migration, Query
    from godwit.model.assignment import Assignment

__all__ = ["Script", "third_to"]

_IDLE_S = 2.0
_STALL_S = 60.0


class Script:
    """Feeds the stream, listens to it, and does its deeds when their time has come.

    Parameters
    ----------
    settings
        What the demo is asked for.
    query
        The stream, started, with no input yet.
    cluster
        Whose executors may be killed.
    spark
        The session that runs the query.
    files
        Input, oldest first; released into the stream's directory step by step.
    audience
        Who is told.

    Attributes
    ----------
    recording
        Everything measured so far.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        query: Query,
        cluster: LocalCluster,
        spark: SparkSession,
        files: Sequence[Path],
        audience: Audience,
    ) -> None:
        self._settings, self._query, self._cluster = settings, query, cluster
        self._application = spark.sparkContext.applicationId
        self._audience = audience
        step = settings.days_per_epoch
        self._unread = [files[i : i + step] for i in range(0, len(files), step)]
        self._steps = len(self._unread)
        self._rows_of = {path: pq.read_metadata(path).num_rows for path in files}
        self._rows_released = 0
        self.recording = Recording(started_s=time.time(), rows_in_all=sum(self._rows_of.values()))
        self._heard: queue.Queue[events.Event] = queue.Queue()
        self._quiet_since = time.monotonic()
        self._joining = False
        self._moves: list[Migration] | None = None
        self._unfinished = 0
        self._killed: str | None = None
        self._recovered = False

    def play(self) -> None:
        """Return when every row is committed and no key group waits.

        Raises
        ------
        GodwitError
            If the query fails.
        """
        self._query.add_listener(self._heard.put)
        self._release_all_but(2 / 3)  # the last executor should find rows that still come
        while not self._over():
            try:
                self._hear(self._heard.get(timeout=0.25))
            except queue.Empty:
                self._check_alive()
                self._look_whether_recovered(time.time())
            self._join_when_due()
            self._migrate_when_due()
            self._kill_when_due()
            self._feed()

    def _release_all_but(self, share: float) -> None:
        reserve = max(2, int(self._steps * share))
        while len(self._unread) > reserve:
            self._release()

    def _release(self) -> None:
        for file in self._unread.pop(0):
            # Into place in one step: the source must not see half a file.
            os.link(file, self._settings.work_dir / "in" / file.name)
            self._rows_released += self._rows_of[file]
        self._quiet_since = time.monotonic()

    def _feed(self) -> None:
        """Release the next files that were held back once the stream has run dry.

        So there are rows while the deeds are done; what waits is drained with or without them.
        """
        if self._unread and self._dry():
            self._release()

    def _dry(self) -> bool:
        """Whether everything released is committed, and what follows from it has had its time."""
        quiet_s = time.monotonic() - self._quiet_since
        if self.recording.rows >= self._rows_released:
            return self._settled() or (bool(self._unread) and quiet_s > _IDLE_S)
        # Should rows be lost, the stream must still end, and the comparison say so.
        return quiet_s > _STALL_S and not self._query.status["isTriggerActive"]

    def _share(self) -> float:
        return self.recording.rows / self.recording.rows_in_all

    def _hear(self, event: events.Event) -> None:
        recording = self.recording
        self._quiet_since = time.monotonic()
        recording.told.append(event)
        if isinstance(event, events.EpochCommitted):
            made = next(
                p for p in reversed(self._query.recentProgress) if p["epoch"] == event.epoch
            )
            figures = recording.add_epoch(made, self._query.status, event.at_s)
            self._look_whether_recovered(event.at_s)
            self._audience.epoch(figures, recording)
            return
        if isinstance(event, events.MigrationFinished | events.MigrationCancelled):
            self._unfinished -= 1
            if self._unfinished == 0:
                recording.mark("migration finished", event.at_s)
        self._audience.event(event, recording)

    def _look_whether_recovered(self, at_s: float) -> None:
        """Notice that the loss is over, which may be between two epochs."""
        if self._killed is None or self._recovered:
            return
        if self._calm() and self._killed not in self._query.executors:
            self._recovered = True
            self.recording.mark("recovered", at_s)
            epoch = self._query.status["committedEpoch"]
            self._audience.say(f"recovered: no key group waits any more (after epoch {epoch})")

    def _calm(self) -> bool:
        status = self._query.status
        return not (status["keyGroupsWaiting"] or status["keyGroupsSuspended"])

    def _join_when_due(self) -> None:
        """Start the last executor once the stream flows; until then it would only take its time."""
        if self._joining or not self.recording.epochs:
            return
        self._joining = True
        self._audience.say("one more executor is on its way")
        self._cluster.add_worker(wait=False)

    def _migrate_when_due(self) -> None:
        if self._moves is not None or self._share() < 1 / 4:
            return
        idle = self._idle_executor()
        if idle is None:
            return
        self._release_all_but(1 / 8)
        self._audience.say(
            f"moving a third of the key groups of each operator, live, to executor {idle}"
        )
        self.recording.mark("migration started", time.time())
        plans = {
            name: third_to(assignment, idle)
            for name, assignment in self._query.placement.assignments.items()
        }
        self._unfinished = len(plans)
        self._moves = [
            self._query.migrate(plan, component=name, strategy="live")
            for name, plan in plans.items()
        ]

    def _idle_executor(self) -> str | None:
        owners = {
            assignment.executor(g)
            for assignment in self._query.placement.assignments.values()
            for g in range(assignment.num_key_groups)
        }
        return next((name for name in self._query.executors if name not in owners), None)

    def _kill_when_due(self) -> None:
        if not self._settings.kill or self._killed is not None or not self._moved():
            return
        if self._share() < 0.55:
            return
        # The first one owns key groups from the beginning, so its loss is a loss of much state.
        victim = self._query.executors[0]
        pid = self._cluster.kill_executor(victim, self._application)
        self._killed = victim
        self.recording.mark(f"executor {victim} killed", time.time())
        self._audience.say(f"executor {victim} killed (SIGKILL to its process {pid})")

    def _moved(self) -> bool:
        return self._moves is not None and self._unfinished == 0

    def _settled(self) -> bool:
        """Whether the deeds are done and their consequences are over."""
        done = self._moved() and (not self._settings.kill or self._recovered)
        return done and self._calm()

    def _over(self) -> bool:
        return not self._unread and self._dry()

    def _check_alive(self) -> None:
        if self._query.isActive:
            return
        raise self._query.exception() or EpochFailedError(
            "The query of the demo ended before its input did.",
            remedy=f"Look at the logs in {self._settings.work_dir / 'cluster'}.",
        )


def third_to(assignment: Assignment, executor: str) -> dict[int, str]:
    """Plan a third of all key groups for `executor`, taken evenly from where they are now."""
    count = assignment.num_key_groups // 3
    by_owner = sorted(
        (rank, g)
        for owner in assignment.executors
        if owner != executor
        for rank, g in enumerate(assignment.key_groups(owner).tolist())
    )
    return {g: executor for _, g in by_owner[:count]}
