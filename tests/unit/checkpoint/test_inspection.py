from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint.blocks import BlockWriter
from godwit.checkpoint.collection import inspect
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.records import CommitRecord, FlowIdentity
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = FlowIdentity(name="flow", num_key_groups=4)


def test_a_summary_says_what_there_is(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    log = CommitLog.create_or_open(storage, IDENTITY, "some run", retain_epochs=2)
    for epoch in range(4):
        with BlockWriter(storage, epoch=epoch, name="a", inline_limit_bytes=0) as writer:
            writer.add(bytes(120))
            writer.add(bytes(70))
            changes, whole = writer.close()
        segment = segment_ref(
            state="" if epoch == 3 else "state",
            epoch=epoch,
            kind="waiting" if epoch == 3 else "changes",
            block=changes,
            key_groups=(0, 2),
            row_ends=(1, 2),
        )
        snapshot = snapshot_ref(key_group=2, version=1, rows=9, block=whole)
        log.commit(
            CommitRecord(
                epoch=epoch,
                run_id="",
                segments=(segment,),
                snapshots=(snapshot,) if epoch == 2 else (),
            )
        )
    with BlockWriter(storage, epoch=1, name="retry", inline_limit_bytes=0) as writer:
        writer.add(bytes(64))
        writer.close()
    summary = inspect(storage)
    assert (summary.identity, summary.run_id) == (log.identity, "some run")
    assert summary.epochs == (2, 3)
    (operator,) = summary.states
    assert (operator.operator, operator.state) == ("op", "state")
    assert (operator.removed, operator.key_groups, operator.waiting) == (False, 2, (0, 2))
    assert (operator.snapshot_rows, operator.snapshot_bytes) == (9, 70)
    assert operator.changelog_bytes == 3 * 60 + 60
    assert (operator.mean_segments, operator.max_segments) == (2.0, 3)
    on_disk = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert summary.files == len(on_disk)
    assert summary.file_bytes == sum(path.stat().st_size for path in on_disk)
    assert (summary.unneeded_files, summary.unneeded_bytes) == (1, 64)


def test_a_checkpoint_without_epochs_is_summed_up_too(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    CommitLog.create_or_open(storage, IDENTITY, "r")
    summary = inspect(storage)
    assert (summary.epochs, summary.states, summary.files) == (None, (), 4)


def test_there_must_be_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        inspect(CheckpointStorage.open(tmp_path))
