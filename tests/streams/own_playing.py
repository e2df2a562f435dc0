"""Runs a drawn flow over drawn sources of Godwit's own, and compares what comes with plain Python.

In this process by `godwit.testing`, through migrations, executors and drivers that die, reads that
fail and restarts with everything in another order; or on Spark, by its own loop of epochs.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.streams import reference as ref
from tests.streams.drawing import draw
from tests.streams.own_sources import draw_source
from tests.streams.playing import differences, moment
from tests.support.fake_flow import FakeSink

import godwit as gw
from godwit import testing
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.loop import EpochLoop
from godwit.migration import LossPolicy, Policy
from godwit.model.errors import MigrationError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from tests.streams.drawing import Drawn
    from tests.streams.own_sources import DrawnSource

__all__ = ["play_own", "play_own_on_spark"]

_KEY_GROUPS = 8


class DiedError(Exception):
    """The driver is gone."""


def play_own(seed: int, *, epochs: int = 8) -> list[str]:
    """Play a history in this process; say what differs, or nothing."""
    with tempfile.TemporaryDirectory() as root:
        return _InThisProcess(draw(seed), Path(root)).run(epochs)


def play_own_on_spark(seed: int, spark: SparkSession, *, runs: int = 3) -> list[str]:
    """Play a history on Spark's loop of epochs over own sources; say what differs, or nothing.

    Silence of sources is a matter of the real clock there, so none of them may be silent.
    """
    drawn = draw(seed, most_operators=2)
    for name, source in drawn.sources.items():
        source.idle = drawn.options[name]["idle"] = None
        source.max_ahead = 400 * 366 * 86_400 * 10**6  # none is ahead of one clock and not of both
        drawn.options[name]["max_ahead"] = dt.timedelta(microseconds=source.max_ahead)
    with tempfile.TemporaryDirectory() as root:
        return _OnSpark(drawn, Path(root), spark).run(runs)


class _Played:
    """A drawn flow, its drawn sources, and what the reference says of them."""

    has_clock = True  # which the test moves

    def __init__(self, drawn: Drawn, root: Path) -> None:
        self.drawn, self.rng, self.root = drawn, drawn.rng, root
        self.world = ref.InputClock(clock=drawn.base + 10 * drawn.unit)
        clock = (lambda: self.world.clock) if self.has_clock else None
        (root / "in").mkdir()
        self.sources: dict[str, DrawnSource] = {
            name: draw_source(drawn, source, root / "in", clock)
            for name, source in drawn.sources.items()
        }
        self.owed: list[tuple[Any, ...]] = []
        self.came: list[tuple[Any, ...]] = []
        drawn.text += map(str, self.sources.values())

    def flow(self, sink: Any) -> gw.Flow:
        """Write the flow down, every time with columns and results in another order and zone."""
        self.drawn.reorder()
        flow = gw.Flow("flow", num_key_groups=_KEY_GROUPS)
        streams = {}
        self.made: dict[str, Any] = {}
        for name, of in self.sources.items():
            self.made[name] = of.made()
            stream = flow.source(name, self.made[name], **self.drawn.options[name])
            columns = [*self.drawn.types]
            streams[name] = stream.map(_reordered(columns)) if of.is_mapped else stream
        flow.sink("out", self.drawn.apply(streams), sink)
        return flow

    def arrive(self, at: float) -> None:
        """Let rows arrive, or not."""
        for of in self.sources.values():
            if self.rng.random() < 0.8:
                of.add(at - self.rng.choice([0, 0, 4]))

    def restarted(self) -> None:
        """Take note of a restart."""
        for name, of in self.sources.items():
            of.restarted()
            self.drawn.sources[name].heard = self.world.clock  # silence is counted anew

    def due(self) -> None:
        """Let the rows arrive at the reference that the next epoch reads."""
        for name, of in self.sources.items():
            self.drawn.sources[name].arrived = of.due()

    def taken(self) -> None:
        """Take note that these rows were read."""
        for of in self.sources.values():
            of.take()

    def refer(self, epochs: int) -> None:
        """Let the reference run some epochs, the first with the rows that are due."""
        node = self.drawn.node
        for _ in range(epochs):
            self.owed += [tuple(row[c] for c in node.columns) for row in node.epoch(self.world)]
            node.after(self.world)
            for source in self.drawn.sources.values():
                source.arrived = []

    def took(self, rows: pa.Table) -> None:
        """Take note of rows that came out."""
        columns = [rows[name] for name in self.drawn.node.columns]
        self.came += zip(
            *(
                (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
                for c in columns
            ),
            strict=True,
        )

    def compare(self, when: str) -> list[str]:
        """Say how all that came differs from what was due."""
        found = differences(self.owed, self.came)
        return [f"{when}: {text}" for text in found] + self.drawn.text if found else []


class _InThisProcess(_Played):
    """Played by `godwit.testing`."""

    def __init__(self, drawn: Drawn, root: Path) -> None:
        super().__init__(drawn, root)
        self.names = 2
        self.played = testing.cluster(
            self.flow(FakeSink()),
            executors={"1": 2, "2": 1},
            now=moment(self.world.clock),
            policy=Policy(on_loss=LossPolicy.LOAD),
        )

    def run(self, epochs: int) -> list[str]:
        """Play some epochs, and read until nothing is left."""
        at = 0.0
        for number in range(epochs):
            step = self.rng.choice([0, 1, 3, 6, 12])
            at += step
            self.world.clock += int(step) * self.drawn.unit
            with self._counted():
                by = dt.timedelta(microseconds=int(step) * self.drawn.unit)
                self._take(self.played.advance(by))
            self.arrive(at)
            said = self._epoch() or self.compare(f"epoch {number}")
            if said:
                return said
            self._misfortune()
        for _ in range(1_000):
            if not any(of.has_more for of in self.sources.values()):
                break
            if said := self._epoch():
                return said
        else:
            return ["rows are left for ever", *self.drawn.text]
        if said := self.compare("all rows read"):
            return said
        self.world.ended = True
        with self._counted():
            self._take(self.played.end_input())
        self.played.close()
        return self.compare("end")

    def _counted(self) -> Any:
        return _Counted(self)

    def _take(self, out: dict[str, pa.Table]) -> None:
        if "out" in out:
            self.took(out["out"])

    def _epoch(self) -> list[str]:
        """Run an epoch, which may not live to its end."""
        self.due()
        chance = self.rng.random()
        if chance < 0.1:
            return self._read_fails()
        if chance < 0.25:
            self._dies(self.rng.choice(["planned", "staged", "committed"]))
            return []
        with self._counted():
            self._take(self.played.epoch())
        self.taken()
        return []

    def _dies(self, where: str) -> None:
        """Let the driver die within an epoch, and start again."""
        driver = self.played._driver
        first = driver.log.latest_epoch + 1

        def at_step(step: str, _epoch: int) -> None:
            if step == where:
                raise DiedError

        driver.loop.at_step = at_step
        with suppress(DiedError):
            self._take(self.played.epoch())
            self.taken()  # there was nothing to do
        log = driver.log
        if where == "committed" and log.latest_epoch == first:  # its rows come with the restart
            self.refer(1)
            self.taken()
        self._restart()

    def _read_fails(self) -> list[str]:
        """Let one of the sources fail while it is read, and start again."""
        source = self.made[self.rng.choice([*self.made])]
        read = source.read

        def fails(split: Any, columns: Any) -> Iterator[pa.RecordBatch]:
            yield from list(read(split, columns))[:1]
            msg = "the disk is gone"
            raise OSError(msg)

        source.read = fails
        done = len(self.played.epochs)
        try:
            with self._counted():
                self._take(self.played.epoch())
            self.taken()  # there was nothing to read of it
        except SourceError as error:
            if "the disk is gone" not in str(error):
                raise
            if len(self.played.epochs) != done:
                return ["an epoch counts whose rows were not read", *self.drawn.text]
        self._restart()
        return []

    def _restart(self) -> None:
        for of in self.drawn.sources.values():
            of.arrived = []
        self.restarted()
        with self._counted():
            self._take(self.played.restart(self.flow(FakeSink())))

    def _misfortune(self) -> None:
        chance, played = self.rng.random(), self.played
        for of in self.drawn.sources.values():
            of.arrived = []
        if chance < 0.3:
            component = self.rng.choice([*played.placement.assignments])
            here = [*played.executors]
            some = {g: self.rng.choice(here) for g in self.rng.sample(range(_KEY_GROUPS), 4)}
            strategy = gw.migration.Strategy(
                self.rng.choice(["live", "disruptive", "stop_the_world"])
            )
            with self._counted(), suppress(MigrationError):  # windows in two parts go otherwise
                played.migrate(some, component=component, strategy=strategy)
        elif chance < 0.5:
            self.names += 1
            played.add(str(self.names), lanes=self.rng.choice([1, 2]))
            played.kill(self.rng.choice([*played.executors]))
        elif chance < 0.65:
            self._restart()


class _Counted:
    """Lets the reference run as many epochs as the product runs inside."""

    def __init__(self, of: _InThisProcess) -> None:
        self._of = of

    def __enter__(self) -> None:
        self._done = len(self._of.played.epochs)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._of.refer(len(self._of.played.epochs) - self._done)


def _reordered(columns: list[str]) -> Any:
    def select(rows: pa.Table) -> pa.Table:
        return rows.select(columns)

    return select


class _OnSpark(_Played):
    """Played by queries on Spark that end with what is there; some of them die before."""

    has_clock = False

    def __init__(self, drawn: Drawn, root: Path, spark: SparkSession) -> None:
        super().__init__(drawn, root)
        self.spark, self.sink, self.next = spark, gw.sinks.memory(), 0
        self.seen = set[int]()  # epochs whose rows were taken

    def run(self, runs: int) -> list[str]:
        """Play some runs, the last of which reads to the end of the input."""
        at = 0.0
        for number in range(runs):
            for _ in range(3):
                at += self.rng.choice([0, 1, 3, 6, 12])
                self.world.clock = self.drawn.base + int(at + 10) * self.drawn.unit
                self.arrive(at)
            where = self.rng.choice([None, "planned", "staged", "committed"])
            dies = where is not None and number < runs - 1
            self._play(where if dies else None, at_end=number == runs - 1)
            # A start with columns in another order forgets the rows, so they are taken before.
            for epoch, table in self.sink.epochs.items():
                if epoch not in self.seen:
                    self.took(table)
                    self.seen.add(epoch)
            self._refer(at_end=number == runs - 1)
            self.restarted()
        for of in self.sources.values():
            if of.has_more:
                return [f"rows of {of} were not read", *self.drawn.text]
        return self.compare("end")

    def _play(self, where: str | None, *, at_end: bool) -> None:
        """Run a query, which dies at the third such step at the latest."""
        left = self.rng.randrange(3)

        def at_step(step: str, _epoch: int) -> None:
            nonlocal left
            if step == where:
                left -= 1
                if left < 0:
                    raise DiedError

        at_no_step = EpochLoop.at_step
        setattr(EpochLoop, "at_step", staticmethod(at_step))  # noqa: B010  mypy takes no assignment
        try:
            query = self.flow(self.sink).start(
                checkpoint=self.root / "ck",
                session=self.spark,
                trigger={"availableNow": True},
                close_at_end=at_end,
                checkpointing=gw.Checkpointing(retain_epochs=10_000),
            )
            with suppress(gw.errors.GodwitError) if where else nullcontext():
                query.awaitTermination()
        finally:
            setattr(EpochLoop, "at_step", staticmethod(at_no_step))  # noqa: B010  as above

    def _refer(self, *, at_end: bool) -> None:
        """Let the reference run the epochs that were committed since."""
        log = CommitLog.open_read_only(CheckpointStorage.open(self.root / "ck"))
        records = [log.record(epoch) for epoch in range(self.next, log.latest_epoch + 1)]
        self.next = log.latest_epoch + 1
        last = max((n for n, record in enumerate(records) if record.batch is not None), default=-1)
        for number, record in enumerate(records):
            self.world.ended = at_end and number > last
            if record.batch is not None:
                self.due()
            self.refer(1)
            if record.batch is not None:
                self.taken()
