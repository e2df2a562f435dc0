"""Targets are looked at without their flow: whether they continue from a checkpoint."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.unit.spark.test_restored_backups import Delta, Parquet, run

from godwit.checkpoint.blocks import BlockWriter
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.records import CommitRecord, FlowIdentity, OutputRef, SinkRecord
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model.errors import GodwitError
from godwit.ops.targets import check_targets
from godwit.plan.staging import WrittenFile, WrittenFiles, encode_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", [Parquet, Delta])
def test_a_target_beside_its_backup_is_told_to_be_ahead_and_a_restored_one_behind(
    tmp_path: Path, kind: type[Parquet | Delta], capsys: pytest.CaptureFixture[str]
) -> None:
    target = kind(tmp_path)
    run(tmp_path / "ck", target.sink(), 2)
    target.copy("old")
    shutil.copytree(tmp_path / "ck", tmp_path / "backup")
    run(tmp_path / "ck", target.sink(), 5)
    report = check_targets(CheckpointStorage.open(tmp_path / "ck"))
    assert (report.findings, report.refused, report.unseen) == ((), (), ())
    (ahead,) = check_targets(CheckpointStorage.open(tmp_path / "backup")).refused
    assert "has epochs up to 5, and the checkpoint ends with epoch 2" in ahead.problem
    assert main(["checkpoint", "verify", str(tmp_path / "backup")]) == 0
    assert "A start is refused: Sink 'out' cannot continue" in capsys.readouterr().out
    assert main(["checkpoint", "repair", str(tmp_path / "backup"), "--apply"]) == 0
    assert (
        "can be started, if on_divergence= says how its targets continue" in capsys.readouterr().out
    )
    target.restore("old")
    (behind,) = check_targets(CheckpointStorage.open(tmp_path / "ck")).refused
    assert "has epochs up to 2, and epochs up to 4 were delivered" in behind.problem


def with_lane_file(checkpoint: Path, target: str) -> CheckpointStorage:
    storage = CheckpointStorage.open(checkpoint)
    log = CommitLog.create_or_open(storage, FlowIdentity(name="f", num_key_groups=4), "r")
    written = WrittenFiles(
        target=target,
        files=(
            WrittenFile(
                path="_staging/0/a.parquet", delivered="epoch=0/a.parquet", rows=1, size_bytes=1
            ),
        ),
    )
    with BlockWriter(storage, epoch=0, name="lane0") as writer:
        writer.add(encode_files(written))
        (block,) = writer.close()
    log.commit(
        CommitRecord(
            epoch=0,
            run_id="",
            sinks={"out": SinkRecord(writer="out", target=target)},
            outputs=(OutputRef(sink="out", flow=0, lane=0, rows=1, kind="files", block=block),),
        )
    )
    return storage


def test_files_of_an_epoch_that_is_yet_to_be_delivered_are_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = with_lane_file(tmp_path / "ck", str(tmp_path / "out"))
    staged = tmp_path / "out/_staging/0/a.parquet"
    (gone,) = check_targets(storage).findings
    assert gone.file == str(staged)
    assert "has not been delivered to sink 'out' yet" in gone.problem
    assert main(["checkpoint", "verify", str(tmp_path / "ck")]) == 1
    assert "no longer exists" in " ".join(capsys.readouterr().out.split())
    carried = tmp_path / "ck/carried"
    carried.mkdir()
    name = hashlib.sha256(f"{tmp_path / 'out'}\0_staging/0/a.parquet".encode()).hexdigest()[:32]
    (carried / f"{name}.parquet").touch()
    assert check_targets(storage).findings == ()
    shutil.rmtree(carried)
    staged.parent.mkdir(parents=True)
    staged.touch()
    (tmp_path / "out/_godwit.json").write_text("{}")
    assert check_targets(storage).findings == ()


def test_what_lies_elsewhere_is_named_and_not_looked_at(tmp_path: Path) -> None:
    storage = with_lane_file(tmp_path / "ck", "s3://***@bucket/out")
    report = check_targets(storage)
    assert report.unseen == ("out (s3://***@bucket/out)",)
    assert (report.findings, report.refused) == ((), ())
    with pytest.raises(GodwitError):
        check_targets(CheckpointStorage.open(tmp_path / "nothing"))
