"""Sinks of a run in one process get what those of an undisturbed run get, wherever it dies.

Sinks that are idempotent by epoch have every row once; a function is called with every epoch, and
with the same rows if it is called again.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples.sqlite.godwit_sqlite import SqliteSink
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.number_source import Numbers
from tests.support.rounds import rounds

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.outputs import OpenSinks, staged_sinks
from godwit.engine.settings import Lanes
from godwit.local import LocalRun, staged_rows
from godwit.model.errors import UserFunctionError
from godwit.plan.staging import Rejections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.checkpoint.records import CommitRecord, SinkRecord
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.staging import StagedSink

EPOCHS, ROWS_PER_EPOCH = 4, 5
# In the order of an epoch; "delivering": some of its sinks have the epoch, others do not.
STEPS = ("planned", "shipped", "staged", "committed", "delivering", "delivered")
DEATH = st.tuples(st.integers(0, EPOCHS - 1), st.sampled_from(STEPS), st.booleans())
"""Epoch and step at which a run dies, and whether it delivered beside the next epoch's stages."""


class DiedError(Exception):
    """The process is dead."""


class Checked(SqliteSink):
    """Rejects even totals."""

    def __init__(self, path: Path, rejects: gw.sinks.Sink) -> None:
        super().__init__(str(path), "rows", rejects)

    def row_check(self) -> Any:
        def even(rows: pa.RecordBatch) -> Rejections | None:
            (found,) = (rows.column("total").to_numpy() % 2 == 0).nonzero()
            return Rejections(rows=found, reasons=["even"] * len(found)) if len(found) else None

        return even


@dataclass
class Targets:
    """Targets of a flow's sinks, which outlive its runs."""

    root: Path
    called: dict[int, list[Any]] = field(default_factory=dict)  # epoch → rows of the function
    observed: dict[int, list[Any]] = field(default_factory=dict)  # epoch → rows in its record
    fails_at: int | None = None  # epoch at which the function dies

    def flow(self) -> gw.Flow:
        flow = gw.Flow("totals", num_key_groups=4)
        numbers = flow.source("numbers", Numbers(EPOCHS * ROWS_PER_EPOCH, most=ROWS_PER_EPOCH))
        totals = numbers.key_by("key").compute(name="totals", total=gw.sum("number"))
        flow.sink("files", totals, gw.sinks.parquet(self.root / "files", lane_bytes=1))
        flow.sink("rows", totals, gw.sinks.parquet(self.root / "rows", lane_bytes=2**30))
        rejected = gw.sinks.parquet(self.root / "rejected")
        flow.sink("checked", totals, Checked(self.root / "sqlite", rejected))
        flow.sink("called", totals, gw.sinks.foreach_table(self._call))
        return flow

    def _call(self, rows: pa.Table, epoch: int) -> None:
        if epoch == self.fails_at:
            raise DiedError
        note(self.called, epoch, rows.to_pylist())

    def read(self) -> dict[str, Any]:
        """Return what every target has."""
        with closing(sqlite3.connect(self.root / "sqlite")) as database:
            checked = sorted(database.execute("SELECT * FROM rows"))
        return {
            "checked": checked,
            "called": self.called,
            "observed": self.observed,
            **{name: self._parquet(name) for name in ("files", "rows", "rejected")},
        }

    def _parquet(self, name: str) -> dict[str, list[Any]]:
        return {
            epoch.name: ordered(
                row
                for file in epoch.glob("*.parquet")
                for row in pq.ParquetFile(file).read().to_pylist()
            )
            for epoch in (self.root / name).glob("epoch=*")
        }


def ordered(rows: Iterable[dict[str, Any]]) -> list[Any]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


def note(epochs: dict[int, list[Any]], epoch: int, rows: Iterable[dict[str, Any]]) -> None:
    """Note an epoch's rows; when it comes again, they must be the same."""
    found = ordered(rows)
    assert epochs.setdefault(epoch, found) == found


class Run(LocalRun):
    """A run whose sinks are open, and which may die."""

    def __init__(self, targets: Targets, *, late: bool) -> None:
        self._targets = targets
        try:
            super().__init__(
                targets.flow().compiled(),
                CheckpointStorage.open(str(targets.root / "checkpoint")),
                executors={"a": 2, "b": 1},
                settings=Lanes(local_dir=str(targets.root / "local")),
            )
        except UserFunctionError:  # it died as it delivered the last epoch again
            self.opened.close()
            raise
        if late:  # as late as may be: just before the next commit
            self.loop._beside = lambda deliver: deliver

    def open_sinks(self, flow: CompiledFlow) -> list[StagedSink]:
        self.opened = OpenSinks(flow, self.log, cast("Any", None), renamed={})
        return staged_sinks(flow)

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        self.opened.deliver(record, again=again)
        batches = staged_rows(record, self.log.storage)["called"]
        note(self._targets.observed, record.epoch, (r for b in batches for r in b.to_pylist()))

    def sink_records(self) -> dict[str, SinkRecord]:
        return self.opened.records()

    def play(self) -> None:
        """Run epochs to the end of the source."""
        self.sources.open()
        while self.read_epoch() is not None:
            pass
        self.loop.finish_delivery()

    def close(self) -> None:
        self.sources.close()
        self.opened.close()


def play(root: Path, deaths: Iterable[tuple[int, str, bool]]) -> dict[str, Any]:
    """Play runs that die so, and one that does not; return what the targets have in the end."""
    targets = Targets(root)
    for epoch, step, late in deaths:

        def die(at: str, of: int, epoch: int = epoch, step: str = step) -> None:
            if (of, at) == (epoch, step):
                raise DiedError

        targets.fails_at = epoch if step == "delivering" else None
        with suppress(DiedError, UserFunctionError), closing(Run(targets, late=late)) as run:
            run.loop.at_step = die
            run.play()
    targets.fails_at = None
    with closing(Run(targets, late=False)) as run:
        run.play()
    return targets.read()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return play(tmp_path_factory.mktemp("undisturbed"), [])


@settings(derandomize=True, database=None, deadline=None, max_examples=rounds(8, 40))
@given(deaths=st.lists(DEATH, max_size=5))
@example(deaths=[(EPOCHS - 1, "committed", False)])
@example(deaths=[(1, "committed", False), (2, "committed", True), (2, "planned", True)])
@example(deaths=[(1, "delivering", False), (1, "delivering", False)])
def test_wherever_a_run_dies_its_sinks_get_what_an_undisturbed_run_delivers(
    deaths: list[tuple[int, str, bool]], undisturbed: dict[str, Any]
) -> None:
    assert len(undisturbed["called"]) == EPOCHS
    with tempfile.TemporaryDirectory() as root:
        assert play(Path(root), deaths) == undisturbed
