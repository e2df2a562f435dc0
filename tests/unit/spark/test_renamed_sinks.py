"""An epoch that one program committed and another delivers, its operators and sinks renamed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.fake_flow import FakeDataFrame, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.records import CommitRecord, OutputRef
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.outputs import OpenSinks
from godwit.engine.recovery import recover_flow

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])


class Program:
    """Windows of two streams, each with a place for what is late."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.flow = LogicalFlow("flow", 8)
        rows: Any = FakeDataFrame(COLUMNS)
        self.rows = self.flow.source("rows", rows, event_time="ts")

    def windows(
        self, name: str, late: str, *, sink: str = "", formerly: str | None = None
    ) -> Program:
        windows = self.rows.key_by("k").window(
            gw.tumbling("1 hour"),
            late=gw.sinks.parquet(self.directory / late),
            name=gw.types.Identity(name, formerly=formerly),
        )
        out = windows.compute(total=gw.sum("v"))
        self.flow.sink(sink or name, out, gw.sinks.parquet(self.directory / f"{late}_main"))
        return self

    def start(self, *, epoch: bool = False) -> tuple[str, ...]:
        """Deliver the last epoch, and commit another one without delivering it."""
        compiled = self.flow.compile(resolver(self.flow))
        storage = CheckpointStorage.open(self.directory / "checkpoint")
        log, recovery = recover_flow(compiled, storage, uuid4().hex[:12], retain_epochs=3)
        renamed = recovery.changes.renamed
        flow = recovery.flow
        with closing(OpenSinks(flow, log, cast("Any", None), renamed=renamed)) as sinks:
            if log.latest is not None:
                sinks.deliver(log.latest, again=True)
            if epoch:
                writer = BlockWriter(storage, epoch=log.latest_epoch + 1, name="lane0")
                for output in flow.outputs:
                    row: dict[str, list[Any]] = {name: [None] for name in output.schema.names}
                    text = next(f.name for f in output.schema if pa.types.is_string(f.type))
                    row[text] = [output.name]  # what was staged for whom
                    writer.add(encode_batch(pa.record_batch(row, schema=output.schema)))
                outputs = tuple(
                    OutputRef(sink=output.name, flow=log.flow, lane=0, rows=1, block=block)
                    for output, block in zip(flow.outputs, writer.close(), strict=True)
                )
                log.commit(
                    CommitRecord(
                        epoch=log.latest_epoch + 1,
                        run_id="",
                        sinks=sinks.records(),
                        outputs=outputs,
                    )
                )
            return sinks.describe_changes()

    def delivered(self) -> dict[str, list[str]]:
        """Directory → for whom its rows were staged."""
        return {
            path.name: pq.read_table(path).column("k").to_pylist()
            for path in sorted(self.directory.iterdir())
            if list(path.glob("epoch=*"))
        }


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A checkpoint whose last epoch nobody has delivered."""
    program = Program(tmp_path).windows("a", "x").windows("b", "y")
    program.start(epoch=True)
    return tmp_path


AS_STAGED = {"x": ["a_late"], "x_main": ["a"], "y": ["b_late"], "y_main": ["b"]}


def test_what_is_late_follows_an_operator_that_was_renamed(before: Path) -> None:
    again = Program(before).windows("hourly", "x", formerly="a").windows("b", "y")
    told = again.start(epoch=True)
    assert again.delivered() == AS_STAGED
    assert {"sink a is now hourly", "sink a_late is now hourly_late"} <= set(told)
    assert Program(before).windows("hourly", "x", formerly="a").windows("b", "y").start() == ()


def test_what_is_late_goes_where_it_belongs_when_operators_exchange_names(before: Path) -> None:
    again = Program(before).windows("b", "x", formerly="a").windows("a", "y", formerly="b")
    again.start()
    assert again.delivered() == AS_STAGED


def test_sinks_that_exchange_names_get_what_is_theirs(before: Path) -> None:
    again = Program(before).windows("a", "x", sink="b").windows("b", "y", sink="a")
    again.start()
    assert again.delivered() == AS_STAGED


def test_rows_of_a_sink_that_is_gone_are_told_of(
    before: Path, caplog: pytest.LogCaptureFixture
) -> None:
    again = Program(before).windows("a", "x")
    (main, late) = again.start()
    assert again.delivered() == {"x": ["a_late"], "x_main": ["a"]}
    assert main.startswith("sink b is gone; 1 rows")
    assert late.startswith("sink b_late is gone; 1 rows")
    assert "Sink 'b_late' is gone" in caplog.text
