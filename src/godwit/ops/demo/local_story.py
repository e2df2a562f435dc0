"""The plot of the demo in this process: the same flow, moves and loss, without Spark and its JVMs.

Coordinator, lanes, local stores and checkpoint are the real ones (`godwit.local.run`);
executors are directories, so state really moves from one to another, and is really gone with one
that is killed.  Epochs follow one another, and what a migration copies is copied between two of
them.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import godwit as gw
from godwit.checkpoint.journal import JournalWriter
from godwit.checkpoint.storage import CheckpointStorage
from godwit.checkpoint.verification import verify
from godwit.control.policy import FlowEpoch
from godwit.control.run_record import RunRecorder
from godwit.engine.outcomes import progress_of, state_bytes
from godwit.engine.settings import Lanes
from godwit.local.run import LocalRun, staged_rows
from godwit.migration import Bounds, MigrationRequested, Strategy
from godwit.migration.placement import with_newcomers
from godwit.model import events
from godwit.ops.demo.recording import Audience, Comparison, Recording, compare, newest_rows
from godwit.ops.demo.story import (
    COLUMNS,
    PLANE,
    ROUTE,
    Days,
    Outcome,
    Settings,
    delays,
    third_to,
    write_day,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future

    from godwit.checkpoint.records import CommitRecord
    from godwit.engine.latency import SourceLatency
    from godwit.engine.loop import Stopwatch
    from godwit.migration import ComponentView, EpochOutcome
    from godwit.model.events import Event


def play(settings: Settings, audience: Audience, loading: Future[Days]) -> Outcome:
    """Run the demo from start to end in this process, and return its outcome.

    `audience`: is shown what happens. `loading`: the rows.
    """
    folder = settings.work_dir
    (folder / "in").mkdir()
    run = _Run(settings, Recording(started_s=time.time(), rows_in_all=0), audience)
    days = loading.result()
    run.recording.rows_in_all = sum(rows.num_rows for _, rows in days)
    audience.say(f"{len(days)} days of flights, {settings.executors - 1} executors in this process")
    try:
        _Script(settings, run, audience, days).play()
    finally:
        run.end()
    audience.say("the stream has ended; a batch query over the same rows decides")
    report = verify(CheckpointStorage.open(folder / "checkpoint"))
    return Outcome(
        recording=run.recording,
        comparisons=tuple(_compared(pa.concat_tables([rows for _, rows in days]), run)),
        checkpoint_problems=tuple(f"{f.file}: {f.problem}" for f in report.findings),
        stream_s=run.recording.epochs[-1].at_s,
    )


class _Run(LocalRun):
    """A run by this machine's clocks, which shows its epochs and keeps the rows of its sinks."""

    def __init__(self, settings: Settings, recording: Recording, audience: Audience) -> None:
        self.recording, self._audience = recording, audience
        self._kept: dict[str, list[pa.Table]] = {}
        self._folder = settings.work_dir
        storage = CheckpointStorage.open(self._folder / "checkpoint")
        self._journal = JournalWriter(storage, "demo")
        self._record = RunRecorder(lambda kind, values: self._journal.add(kind, values()))
        source = gw.sources.parquet(
            self._folder / "in",
            schema=COLUMNS,
            max_files_per_epoch=settings.days_per_epoch,
        )
        flow, by_plane, by_route = delays(settings, source)
        flow.sink("by_plane", by_plane, gw.sinks.noop())
        flow.sink("by_route", by_route, gw.sinks.noop())
        super().__init__(
            flow.compiled(),
            storage,
            executors={str(number): 1 for number in range(settings.executors - 1)},
            settings=Lanes(local_dir=str(self._folder / "local")),
            emit=self._on_event,
        )
        self.sources.open()

    def now_us(self) -> int:
        """Return Unix time in microseconds."""
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        """Return a monotonic time in microseconds."""
        return time.monotonic_ns() // 1000

    def _on_event(self, event: Event) -> None:
        """Record an event, and show it."""
        self.recording.log.append(event)
        self._journal.add("event", event.to_dict())
        if not isinstance(event, events.EpochCommitted):
            self._audience.event(event, self.recording)

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:  # noqa: ARG002
        """Store the rows that an epoch delivers to sinks; no other run is on the checkpoint."""
        for sink, batches in staged_rows(record, self.log.storage).items():
            rows = pa.Table.from_batches(batches)
            epoch = pa.array(np.full(rows.num_rows, record.epoch))
            self._kept.setdefault(sink, []).append(rows.append_column("epoch", epoch))

    def committed(
        self, outcome: EpochOutcome, component_views: Mapping[str, ComponentView], took_s: float
    ) -> None:
        """Write the assignment and the loads of key groups to the journal."""
        self._record.committed(
            FlowEpoch(
                outcome=outcome,
                component_views=component_views,
                took_s=took_s,
                at_s=time.time(),
                flow=self.flow,
            )
        )
        self._record.loads(self.coordinator.recent_load.due_summary())

    def delivered(
        self, outcome: EpochOutcome, stopwatch: Stopwatch, latencies: Mapping[str, SourceLatency]
    ) -> None:
        """Show the figures of a delivered epoch."""
        view = self.view
        status = {
            "executors": sorted(view.executors),
            "keyGroupsInFlight": sum(len(c.transfers) for c in view.components.values()),
            "keyGroupsSuspended": sum(len(c.suspended) for c in view.components.values()),
        }
        progress: dict[str, Any] = progress_of(outcome, view, stopwatch, latencies)
        figures = self.recording.add_epoch(progress, status, time.time())
        self._audience.epoch(figures, self.recording)
        self._journal.add("progress", progress)
        lags = self.sources.lags()
        told = [
            {"name": name, "description": source.identity, "behind": lags[name].rows}
            for name, source in self.sources.sources.items()
            if name in lags
        ]
        self._journal.add("sources", {"sources": told})
        self._journal.flush()
        if len(self.recording.epochs) == 1:
            self._audience.say("the first epoch is done")

    def end(self) -> None:
        """Close the sources, and write the end of the run to the journal."""
        self.sources.close()
        self.coordinator.announce(events.QueryStopped, name=self.flow.name)
        self._journal.flush()

    def kept(self, sink: str) -> pa.Table:
        """Return all rows that a sink got, with the column ``epoch``."""
        return pa.concat_tables(self._kept[sink])

    def mark(self, label: str) -> None:
        """Add a label at the current time to the recording, and show it."""
        self.recording.mark(label, time.time())
        self._audience.say(label)


class _Script:
    """Lets days in, one epoch after the other, and acts at set points of the stream's progress."""

    def __init__(
        self,
        settings: Settings,
        run: _Run,
        audience: Audience,
        days: Days,
    ) -> None:
        self._settings, self._run, self._audience, self._days = settings, run, audience, days
        self._last = str(settings.executors - 1)  # the executor that joins
        self._moves: list[str] = []
        self._moved = self._recovered = False
        self._killed: str | None = None

    def play(self) -> None:
        """Run epochs until every row is committed and no key group is suspended."""
        step, folder = self._settings.days_per_epoch, self._settings.work_dir / "in"
        steps = [self._days[at : at + step] for at in range(0, len(self._days), step)]
        # The files of an epoch are written while the one before it runs.
        with ThreadPoolExecutor(1, thread_name_prefix="godwit-demo-days") as writer:
            written = [
                writer.submit(lambda of: [write_day(folder, *day) for day in of], of)
                for of in steps
            ]
            for number, files in enumerate(written):
                files.result()
                share = number / len(steps)
                self._act(share)
                self._run.read_epoch()
                self._look()
        while self._run.read_epoch() is not None:
            self._look()
        for _ in self._run.run_until_idle():
            self._look()
        self._look()

    def _act(self, share: float) -> None:
        """Take the steps of the demo that are due after this share of the rows."""
        run = self._run
        if share > 0 and self._last not in run.lanes:
            self._audience.say(f"executor {self._last} joins")
            run.set_executors({**run.lanes, self._last: 1})
        if share >= 1 / 4 and not self._moves:
            self._migrate()
        if self._settings.kill and share >= 0.55 and self._moved and self._killed is None:
            # It owns key groups from the beginning, so its loss is a loss of much state.
            self._killed = next(iter(sorted(run.lanes)))
            run.mark(f"executor {self._killed} killed")
            run.set_executors(
                {name: lanes for name, lanes in run.lanes.items() if name != self._killed}
            )

    def _migrate(self) -> None:
        """Move a third of the key groups of each operator, live, to the executor that joined."""
        run = self._run
        self._audience.say(
            f"moving a third of the key groups of each operator, live, to executor {self._last}"
        )
        run.recording.mark("migration started", time.time())
        for name, component in run.view.components.items():
            here = with_newcomers(component.assignment, dict(run.view.executors))
            sizes = state_bytes(run.coordinator.copies.states(name), run.log.chains)
            self._moves.append(f"move-{len(self._moves) + 1}")
            run.coordinator.migrate(
                MigrationRequested(
                    id=self._moves[-1],
                    component=name,
                    target=here.moved(third_to(here, self._last)),
                    strategy=Strategy.LIVE,
                    bounds=Bounds(),
                    state_bytes={g: int(sizes[g]) for g in np.flatnonzero(sizes).tolist()},
                )
            )

    def _look(self) -> None:
        """Add labels to the recording when the migration, and the recovery, have ended."""
        run = self._run
        if self._moves and not self._moved:
            self._moved = all(run.coordinator.ended(name) is not None for name in self._moves)
            if self._moved:
                run.recording.mark("migration finished", time.time())
        components = run.view.components.values()
        if self._killed is not None and not self._recovered:
            self._recovered = not any(c.waiting or c.suspended for c in components)
            if self._recovered:
                run.recording.mark("recovered", time.time())
                self._audience.say("recovered: no key group waits any more")


def _compared(flights: pa.Table, run: _Run) -> Iterable[Comparison]:
    """Yield comparisons of the sinks' rows with plain aggregates of the same input."""
    delay, one = "arr_delay", pc.CountOptions(mode="all")
    by_plane = flights.group_by(list(PLANE)).aggregate(
        [(delay, "count", one), (delay, "count"), (delay, "sum"), (delay, "mean")]
    )
    by_plane = by_plane.rename_columns([*PLANE, "flights", "arrived", "total_delay", "mean_delay"])
    by_route = flights.group_by(list(ROUTE)).aggregate(
        [(delay, "count", one), (delay, "mean"), (delay, "max")]
    )
    by_route = by_route.rename_columns([*ROUTE, "flights", "mean_delay", "worst_delay"])
    for what, sink, batch, keys in (
        ("delays by airplane and year", "by_plane", by_plane, PLANE),
        ("delays by route", "by_route", by_route, ROUTE),
    ):
        try:
            yield compare(what, newest_rows(run.kept(sink), keys), batch, keys)
        except ValueError as error:
            yield Comparison(what=what, rows=batch.num_rows, differences=(str(error),))
