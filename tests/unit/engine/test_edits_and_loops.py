"""Edits of a stopped checkpoint leave out nothing that waits: in loops, or for a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.loop_flows import countdown_flow, counted_down, counts_in

import godwit as gw
from godwit.checkpoint.blocks import BlockWriter, read_block
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.epochs import undelivered_sinks
from godwit.checkpoint.journal import JournalWriter
from godwit.checkpoint.records import SinkRecord
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model.events import EpochCommitted

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("edit", "gone"), [(("drop", "down", "--key", "('x',)"), "x"), (("keep-offsets", "again"), "")]
)
def test_rows_that_wait_in_a_loop_survive_an_edit(
    edit: tuple[str, ...], gone: str, tmp_path: Path
) -> None:
    flow = countdown_flow(gw.testing.stream("key string, left long"), gw.sinks.noop())
    given = [("a", 5), ("b", 3), ("x", 0)]
    with gw.testing.cluster(flow, executors=2, checkpoint=tmp_path) as run:
        run.epoch({"rows": [{"key": key, "left": left} for key, left in given]})
    action, *arguments = edit
    for _ in range(1 if gone else 2):
        assert main(["checkpoint", action, str(tmp_path), *arguments]) == 0
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    with gw.testing.cluster(flow, checkpoint=tmp_path) as run:
        run.go_round()
        counted = counts_in(run)
    assert counted == {k: n for k, n in counted_down(given).items() if k != gone}


def with_sinks(storage: CheckpointStorage, sinks: dict[str, SinkRecord]) -> None:
    """Commit what the last epoch emitted once more, for sinks."""
    identity = CommitLog.open_read_only(storage).identity
    log = CommitLog.create_or_open(storage, identity, "run", retain_epochs=3)
    latest = log.latest
    assert latest is not None
    with BlockWriter(storage, epoch=1, name="again") as writer:
        for ref in latest.outputs:
            writer.add(read_block(storage, ref.block))
        blocks = writer.close()
    outputs = tuple(
        msgspec.structs.replace(ref, block=block)
        for ref, block in zip(latest.outputs, blocks, strict=True)
    )
    changes = {"before": latest.last_batch, "outputs": outputs, "sinks": sinks}
    log.commit(msgspec.structs.replace(latest, epoch=1, batch=None, segments=(), **changes))


@pytest.mark.parametrize("by_journal", [True, False])
def test_an_edit_wants_the_last_epoch_delivered(
    by_journal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = gw.Flow("totals")
    rows = flow.source("rows", gw.testing.stream("key string, n long"))
    total = rows.key_by("key").compute(total=gw.sum("n"), name="total")
    flow.sink("out", total, gw.sinks.parquet(tmp_path / "target"))
    with gw.testing.cluster(flow, checkpoint=tmp_path / "ck") as run:
        run.epoch({"rows": [{"key": "x", "n": 1}, {"key": "y", "n": 2}]})
    storage = CheckpointStorage.open(tmp_path / "ck")
    with_sinks(storage, {"out": SinkRecord(writer="out")})  # as a run has them that delivers
    command = ["checkpoint", "drop", str(tmp_path / "ck"), "total", "--key", "('x',)"]
    before = JournalWriter(storage, "query-former")  # of epochs that a repair has taken back
    before.add("event", EpochCommitted(at_s=0.0, epoch=1).to_dict())
    before.flush()
    assert main(command) == 2
    assert "Start the query once" in capsys.readouterr().err
    log = CommitLog.open_read_only(storage)
    assert (log.latest_epoch, undelivered_sinks(log)) == (1, ["out"])
    if by_journal:
        journal = JournalWriter(storage, "query-run")
        journal.add("event", EpochCommitted(at_s=0.0, epoch=1).to_dict())
        journal.flush()
        assert undelivered_sinks(log) == []
    else:
        command.append("--delivered")
    assert main(command) == 0
    latest = CommitLog.open_read_only(storage).latest
    assert latest is not None
    assert latest.sinks["out"].before == 1, "a target without epoch 1 lacks rows"
    assert main(["checkpoint", "verify", str(tmp_path / "ck")]) == 0
