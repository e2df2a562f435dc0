"""The progress of a stopped Spark query is read from its logs, as Spark writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import godwit as gw
from godwit.adopt.spark_progress import arranged, read_progress
from godwit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def write_log(directory: Path, *, planned: int, committed: int, version: str = "v1") -> None:
    """Write the logs of a query over files."""
    (directory / "metadata").parent.mkdir(parents=True, exist_ok=True)
    (directory / "metadata").write_text(json.dumps({"id": "7b0a"}))
    for name in ("offsets", "commits", "sources/0"):
        (directory / name).mkdir(parents=True)
    for batch in range(planned + 1):
        head = json.dumps({"batchWatermarkMs": 1000 * batch, "conf": {"a": "b"}})
        offset = json.dumps({"logOffset": batch})
        (directory / "offsets" / str(batch)).write_text(f"{version}\n{head}\n{offset}")
        (directory / "sources/0" / str(batch)).write_text('v1\n{"path":"f"}')
    for batch in range(committed + 1):
        text = json.dumps({"nextBatchWatermarkMs": 1000 * (batch + 1)})
        (directory / "commits" / str(batch)).write_text(f"v1\n{text}")
    (directory / "offsets" / ".1.crc").write_bytes(b"crc")


def test_the_last_batch_and_a_planned_one_are_found(tmp_path: Path) -> None:
    write_log(tmp_path, planned=3, committed=2)
    progress = read_progress(str(tmp_path))
    assert (progress.batch, progress.closed_ms, progress.watermark_ms) == (2, 2000, 3000)
    assert sorted(progress.files) == [
        *("commits/1", "commits/2", "offsets/1", "offsets/2", "offsets/3"),
        *(f"sources/0/{number}" for number in range(4)),
    ]


def test_the_command_shows_the_progress_and_the_lines_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path, planned=2, committed=2)
    assert main(["adopt", str(tmp_path), "new"]) == 0
    out = capsys.readouterr().out
    assert "last batch: 2" in out
    assert "watermark: 1970-01-01T00:00:03.000+00:00" in out
    assert f".from_spark_checkpoint({str(tmp_path)!r})" in out
    assert main(["adopt", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planned_batch"] is None


def test_what_is_not_the_checkpoint_of_a_query_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gw.errors.CheckpointError, match="the file 'metadata' is missing"):
        read_progress(str(tmp_path))
    write_log(tmp_path / "new", planned=0, committed=-1)
    with pytest.raises(gw.errors.CheckpointError, match="committed no batch"):
        read_progress(str(tmp_path / "new"))
    write_log(tmp_path / "other", planned=0, committed=0, version="v2")
    with pytest.raises(gw.errors.CheckpointError, match="version 'v2'"):
        read_progress(str(tmp_path / "other"))
    (tmp_path / "other" / "offsets" / "0").unlink()
    with pytest.raises(gw.errors.CheckpointError, match="no offsets for its last batch, 0"):
        read_progress(str(tmp_path / "other"))


def test_the_log_of_two_streams_is_put_in_the_order_of_the_flow(tmp_path: Path) -> None:
    write_log(tmp_path, planned=1, committed=1)
    (tmp_path / "sources/1").mkdir()
    (tmp_path / "sources/1/0").write_text("v1\n{}")
    for batch in range(2):
        head = json.dumps({"batchWatermarkMs": 0})
        lines = [json.dumps({"logOffset": number}) for number in (batch, 7)]
        (tmp_path / f"offsets/{batch}").write_text("\n".join(["v1", head, *lines]))
    progress = read_progress(str(tmp_path))
    same = arranged(progress, [0, 1], [0, 1], "old")
    assert same == progress
    turned = arranged(progress, [0, 1], [1, 0, 0], "old")
    seven, own = b'{"logOffset": 7}', b'{"logOffset": 1}'
    assert turned.offsets.splitlines()[2:] == [seven, own, own]
    assert turned.files["offsets/1"] == turned.offsets
    assert turned.files["sources/0/0"] == b"v1\n{}"
    assert {path for path in turned.files if path.startswith("sources/1")} == {
        "sources/1/0",
        "sources/1/1",
    }
    with pytest.raises(gw.errors.CheckpointError, match="offsets of 2 streams, but this query"):
        arranged(progress, [0], [0], "old")
