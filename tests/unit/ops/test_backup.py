"""The procedure of the guide to backups: no row is lost by it, and none is doubled."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.unit.spark.test_restored_backups import Parquet, run

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model.errors import SinkError

PAGE = Path(__file__).parents[3] / "docs/guide/backup.md"
BACKUP, RESTORE, KEEP = re.findall(
    r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
)


def carry_out(script: str) -> None:
    for line in script.splitlines():
        command, *args = shlex.split(line, comments=True)
        if command == "mv":
            Path(args[0]).rename(args[1])
        else:
            assert command == "godwit"
            assert main(args) == 0


def test_a_checkpoint_is_restored_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint, target = tmp_path / "checkpoint", Parquet(tmp_path)
    run(checkpoint, target.sink(), 2)
    carry_out(BACKUP)
    run(checkpoint, target.sink(), 5)
    assert target.rows() == [0, 1, 2, 3, 4, 5]
    carry_out(KEEP)
    for again in range(2):  # a backup can be restored more than once
        carry_out(RESTORE)
        assert "can be started" in capsys.readouterr().out
        with pytest.raises(SinkError, match="on_divergence"):
            run(checkpoint, target.sink(), 4)
        run(checkpoint, target.sink(), 6 + again, on_divergence="roll_back")
        assert target.rows() == list(range(7 + again))
        assert main(["checkpoint", "verify", str(checkpoint)]) == 0
        assert "A start is refused" not in capsys.readouterr().out
        (tmp_path / "checkpoint-broken").rename(tmp_path / f"broken-{again}")
    log = CommitLog.open_read_only(CheckpointStorage.open(checkpoint))
    backup = CommitLog.open_read_only(CheckpointStorage.open(tmp_path / "backups/monday"))
    assert log.identity.history != backup.identity.history
    assert log.identity.query_id == backup.identity.query_id
    assert backup.relation(log.point(7)) == "diverged"
