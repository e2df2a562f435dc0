"""`godwit advise` on what a real Spark application wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from godwit.cli.main import main
from godwit.ops.advise.event_log import EventLogError, open_event_log

if TYPE_CHECKING:
    from typing import Any

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

STREAM = Path(__file__).with_name("advised_stream.py")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the stream once; its log is rolled and compressed by Spark's defaults."""
    directory = tmp_path_factory.mktemp("advised")
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, str(STREAM), str(directory / "run")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return directory / "run"


def advised(path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["advise", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_hot_partition_of_a_real_run_is_found(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (log,) = (run / "logs").iterdir()
    assert log.name.startswith("eventlog_v2_")
    values = advised(log, capsys)
    assert (values["application"], values["notes"]) == ("hot key", [])
    (stage,) = values["stages"]
    assert stage["operators"] == ["FlatMapGroupsInPandasWithState"]
    assert (stage["batches"], stage["slots"]) == (2, [2, 2])
    assert len(stage["partitions"]) == 3
    *others, hot = sorted(stage["partitions"].values(), key=lambda p: p["shuffle_rows"])
    # In each of two micro-batches 300 rows of one key, at 2 ms a row, and 60 of all the others.
    assert hot["work_s"] >= 1.2
    assert hot["shuffle_rows"] >= 600
    assert sum(p["shuffle_rows"] for p in others) <= 120
    assert sum(p["state_rows"] for p in stage["partitions"].values()) == 61
    (query,) = values["queries"].values()
    assert (query["name"], query["batches"]) == ("hot", 2)
    (operator,) = query["operators"].values()
    assert operator["rows"] == 61
    # Of measured times, which both sides round.
    assert stage["bound_s"] <= stage["moved_s"] <= 1.01 * stage["as_run_s"]


def test_a_real_log_that_is_cut_short_gives_what_came_before(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((log, *_),) = ([*d.glob("events_*")] for d in (run / "logs").iterdir())
    whole = log.read_bytes()
    whole_lines = list(open_event_log(str(log)).lines())
    for share in (0.9, 0.5, 0.1):
        cut = tmp_path / f"app-{share}.zstd"
        cut.write_bytes(whole[: int(len(whole) * share)])
        opened = open_event_log(str(cut))
        found = list(opened.lines())
        assert found[:-1] == whole_lines[: max(len(found) - 1, 0)]
        assert "is truncated or damaged" in opened.notes[0]
    main(["advise", str(tmp_path / "app-0.9.zstd")])
    assert "is truncated or damaged" in "".join(capsys.readouterr())


def test_what_spark_s_zstd_writes_is_read(run: Path) -> None:
    log = open_event_log(str(run / "text.zstd"))
    assert b"\n".join(log.lines()) + b"\n" == (run / "text").read_bytes()
    assert log.notes == []


@pytest.mark.parametrize("codec", ["lz4", "snappy", "lzf"])
def test_what_spark_s_other_codecs_write_is_refused_by_name(codec: str, run: Path) -> None:
    with pytest.raises(EventLogError, match=f"(?i)compressed by {codec}"):
        list(open_event_log(str(run / f"text.{codec}")).lines())
