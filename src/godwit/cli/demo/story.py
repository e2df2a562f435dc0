"""The plot of the demo: stream, move a third of the key groups, kill an executor, go on, compare.

The script reacts to events and never to the clock, so that a slow machine sees the same story:

1. every executor but one shares the key groups; the last one joins them while the stream flows;
2. when it is there, and after a quarter of the rows, a third of the key groups of each operator
   move live to it;
3. when they have arrived, and over half of the rows are in, one executor is killed;
4. its key groups are suspended, warmed elsewhere and resumed, while the others go on;
5. the last files are held back until nobody waits; then the stream ends, and a batch query over
   the same files says whether a single row was lost or counted twice.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from godwit.checkpoint.storage import CheckpointStorage
from godwit.checkpoint.verification import verify
from godwit.cli.demo.flights import find_flights, load_flights, write_days
from godwit.cli.demo.queries import compare_with_batch, start_stream
from godwit.cli.demo.script import Script
from godwit.cluster.spark.platform.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from godwit.cli.demo.comparison import Comparison
    from godwit.cli.demo.recording import EpochFigures, Recording
    from godwit.model.events import Event

__all__ = ["Audience", "Outcome", "Settings", "play"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the demo is asked for.

    Attributes
    ----------
    work_dir
        Everything is written here.
    executors
        Number of executor processes.
    days, days_per_epoch
        Days to stream, and how many of them make an epoch.
    key_groups
        Key groups of each operator.
    kill
        Whether an executor is killed.
    """

    work_dir: Path
    executors: int = 3
    days: int = 365
    days_per_epoch: int = 7
    key_groups: int = 96
    kill: bool = True


class Audience(Protocol):
    """Who is told what happens, as it happens."""

    def say(self, text: str) -> None:
        """Take a line for people."""

    def epoch(self, figures: EpochFigures, recording: Recording) -> None:
        """Take the figures of an epoch that was just committed."""

    def event(self, event: Event, recording: Recording) -> None:
        """Take anything else that happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended.

    Attributes
    ----------
    recording
        What was measured.
    comparisons
        Each result against the batch query.
    checkpoint_problems
        What verification of the checkpoint found.
    stream_s
        Seconds from the start of the stream to its end.
    """

    recording: Recording
    comparisons: tuple[Comparison, ...]
    checkpoint_problems: tuple[str, ...]
    stream_s: float

    @property
    def ok(self) -> bool:
        """Whether every result is exact and the checkpoint is whole."""
        return not self.checkpoint_problems and all(c.equal for c in self.comparisons)


def play(settings: Settings, audience: Audience) -> Outcome:
    """Run the demo from start to end; whatever happens, no process is left behind."""
    folder = settings.work_dir
    archive = find_flights()
    # Spark takes seconds to start: its programs start side by side, and the days are written
    # meanwhile.
    beside = ThreadPoolExecutor(1, thread_name_prefix="godwit-demo-days")
    writing = beside.submit(_written_days, archive, folder / "days", settings.days)
    beside.shutdown(wait=False)
    with LocalCluster(
        settings.executors - 1,
        work_dir=folder / "cluster",
        conf={"spark.sql.shuffle.partitions": "2"},
    ) as cluster:
        audience.say(
            f"Spark is starting: a master and {settings.executors - 1} executors at "
            f"{cluster.master_url}"
        )
        spark = cluster.session("godwit-demo")
        spark.sparkContext.setLogLevel("ERROR")
        files = writing.result()
        audience.say(f"{len(files)} days of flights are in {folder / 'days'}")
        query, streamed = start_stream(settings, spark)
        try:
            script = Script(
                settings,
                query=query,
                cluster=cluster,
                spark=spark,
                files=files,
                audience=audience,
            )
            script.play()
        finally:
            query.stop()
        recording = script.recording
        audience.say("the stream has ended; a batch query over the same files decides")
        comparisons = compare_with_batch(settings, spark, streamed)
    report = verify(CheckpointStorage.open(folder / "checkpoint"))
    return Outcome(
        recording=recording,
        comparisons=comparisons,
        checkpoint_problems=tuple(f"{f.file}: {f.problem}" for f in report.findings),
        stream_s=recording.epochs[-1].at_s,
    )


def _written_days(archive: Path, folder: Path, days: int) -> Sequence[Path]:
    return write_days(load_flights(archive), folder, days=days)
